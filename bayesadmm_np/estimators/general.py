"""The estimators: any kind of GLM by its name; linear, ridge, Poisson and logistic regression."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np

from .._errors import ArgumentError
from .._validation import Array, as_number, as_positive, as_switch
from ..families import FullGaussian
from ..glm.kinds import Kind
from ..glm.prior import Prior
from .base import FederatedModel
from .fitted import STACKED_QR
from .settings import MINIMUM_NORM, WEIGHT_MEANINGS, Settings, read_choice, read_noise

BINARY = ("exact", "gauss-hermite", "probit", "plug-in")
MULTINOMIAL = ("quasi-monte-carlo", "plug-in")


@dataclass(eq=False, repr=False)
class FederatedGLM(FederatedModel):
    """A generalised linear model of any kind on rows that stay at their sites.

    The kinds are the rows of `bayesadmm_np.estimators.KINDS`; a user's own package may register more. With ℓ_k the sum
    of −log p over the rows of site k, a likelihood minimises Σ_k ℓ_k(θ) − log prior(θ), and a posterior
    Σ_k E_q[ℓ_k] + KL(q‖prior) (Eq. 9), as the estimators do that are named after a kind.

    Parameters
    ----------
    kind : Kind or str, default 'softmax'
        A row, its name, or its name with options, as in "ordinal(link=probit)".
    prior_precision : float, array_like or "evidence", default 0.0
        Precision of a Gaussian prior on the coefficients, 0 for none: a number, a vector (p,) or a matrix (p, p) of
        units 1/coefficient². "evidence" maximises the ELBO over a number in [1e-6, 1e6] (for kinds with noise over the
        variance of y), and is a posterior's.
    prior_unit : {'unit', 'sd'}
        Unit of the coefficients that have the prior: per unit of a column, or per pooled standard deviation of a
        column (each of the design, 0/1 columns too), as after scikit-learn's `StandardScaler`.
    inference : {'auto', 'likelihood', 'posterior'}
        "likelihood" is the maximum of likelihood and prior with model standard errors, as `glm` has them: maximum
        likelihood without a prior. "posterior" is the variational posterior, over which predictions are averaged.
        "auto" is the likelihood, unless another argument asks for what a posterior alone has: `method`, a `family`
        other than the full one, or the evidence.
    noise_variance : float, "auto", "unbiased" or "evidence", default 'auto'
        σ² of the kinds that have one, such as "linear". "unbiased", the default of a likelihood, is the residual sum of
        squares over its degrees of freedom; "evidence", of a posterior, maximises the ELBO over 1e-6 to 1e2 times the
        variance of y.
    method : str, Method or Step, default 'auto'
        A row of `bayesadmm_np.methods` by name, or one with its arguments. "auto" is guarded Newton for a likelihood. A
        posterior with full covariance and participation=1 takes guarded JointNewton, up to 33 coefficients of a
        logistic, linear or Poisson regression and some 45 of a softmax. A diagonal covariance takes guarded PVI whose
        sites keep their correlations, up to 362 coefficients. Everything else takes guarded accelerated PVI
        (`bayesadmm_np.methods.recommended`).
    family : {'auto', 'full', 'diagonal', 'fixed', 'isotropic'}
        Family of the posterior; "auto" is the fullest that the method is defined for.
    fit_intercept : bool, default True
    penalize_intercept : bool, default False
        False leaves the intercept without a prior, as in scikit-learn. (A posterior's gets a nearly flat one about
        the null model's intercept b, of precision I·max(1e-8/√I, 1e-12) where its information I is above 1. It
        moves no estimate by more than max(1e-8, 1e-12 √I) |m − b| standard errors, m being the intercept.) True
        counts it among the coefficients (with `prior_unit="sd"` that at the columns' means): a vector or matrix
        `prior_precision` then has an entry for it, the last.
    penalty : {'firth'}, optional
        Firth's penalty, for logistic and Poisson regression by maximum likelihood: the mode of likelihood × √det I,
        which is finite for separated data too; standard errors are from the information I there.
    weight_meaning : {'frequency', 'analytic'}
        A frequency weight of two is the row twice. An analytic one is a row of half the variance, as a mean of two
        measurements has: the row counts once, in degrees of freedom, likelihood and robust errors (R's `weights`,
        statsmodels' `var_weights`).
    max_rounds : int, default 100
    tol : float, default 1e-8
        Tolerance on the residuals of the certificate (Fisher lengths per parameter).
    warm_start : bool, default False
        Whether `fit` starts from the sites of the last fit that have the same names.
    participation : float or callable, default 1.0
        Share of the sites that take part in a round; see `bayesadmm_np.run`.
        A step of a likelihood waits for a round in which all are there, which a share may never bring.
    random_state : int, optional
        Seed of participation and of stochastic solvers; None is 0, so that a fit can be repeated.
    n_jobs : int, optional
        Sites solved at the same time, in threads; -1 is all cores.
    progress : bool, default False
        Whether to show a progress bar (needs tqdm).

    Attributes
    ----------
    fitted_ : FittedGLM
        The fitted model, as model files and commands have it; `save_model(path, fitted_)` writes a model file.
    coef_ : ndarray, shape (p,) or (C, p), of two classes (1, p)
    intercept_ : float or ndarray, shape (C,)
    covariance_ : ndarray, shape (d, d), or None
        Covariance of the coefficients and then the intercept, output by output; None where the family learns none.
    classes_ : ndarray, shape (C,)
        Labels, where y names classes.
    certificate_ : Certificate
    n_rounds_, n_iter_ : int
        Exchanges of all runs of the fit, those of start and certificate included.
    history_ : tuple of RoundRecord
        Records of the last run.
    sites_, site_rows_, site_factors_ : list, dict, dict
        Names in order; rows and factors η_k by name.
    posterior_, prior_ : Gaussian
    prior_precision_ : float or ndarray
    log_likelihood_ : float
        Log likelihood at the mean, all constants kept.
    elbo_ : float
        Of a posterior, the bound on the log evidence, all constants kept.
    status_ : Status
    message_, evidence_message_, method_ : str

    Raises
    ------
    ValueError
        In `fit`, when an argument is out of range or arguments do not fit each other.

    Examples
    --------
    >>> import numpy as np
    >>> from bayesadmm_np.estimators import FederatedGLM
    >>> X = np.array([[-1.0], [-1.0], [1.0], [1.0]])
    >>> model = FederatedGLM("poisson", 1e-6).fit(X, [9.0, 11.0, 38.0, 42.0], client=[1, 2, 1, 2])
    >>> model.coef_.round(1), model.fitted_.title
    (array([0.7]), 'Poisson regression of y')
    """

    kind: Kind | str = "softmax"
    _: KW_ONLY
    noise_variance: Any = "auto"


@dataclass(eq=False, repr=False)
class FederatedLinearRegression(FederatedModel):
    """Linear regression on rows that stay at their sites: y = xᵀw + b + noise of variance σ².

    Minimises Σ_i w_i (y_i − f_i)² over the rows of all sites in one exchange. Each site sends the triangular factor R
    of a QR of its rows, not the sums RᵀR, which lose half of the digits; the server stacks the factors and solves.
    Coefficients, standard errors and residual variance RSS/(n − p − 1) are those of `lm` on the pooled rows, with as
    many right digits.

    Other parameters and attributes are those of `FederatedGLM`.

    Parameters
    ----------
    inference : {'auto', 'likelihood', 'posterior'}
        "likelihood" is least squares, penalised where there is a prior. "posterior" is the exact posterior of a given
        or of the most probable σ². "auto" is the first unless another argument asks for what a posterior alone has.
    noise_variance : float, "auto", "unbiased" or "evidence", default 'auto'
        σ². "unbiased" is RSS/(n − p − 1), with a prior n minus the effective number of coefficients; "evidence" as in
        `FederatedGLM`. Several outputs share it.
    dependent : {'hold', 'minimum_norm'}
        Coefficients of columns that others add up to. "hold" leaves out each column that depends on those before it,
        as R's `lm` does. "minimum_norm" takes the solution of least ‖w‖, as scikit-learn does; coefficients that the
        rows do not determine then have no standard error.

    Examples
    --------
    >>> import numpy as np
    >>> from bayesadmm_np.estimators import FederatedLinearRegression
    >>> X = np.array([[0.0], [1.0], [2.0], [3.0]])
    >>> model = FederatedLinearRegression().fit(X, [1.0, 3.5, 4.5, 7.0], client=["a", "a", "b", "b"])
    >>> model.coef_.round(4), round(model.intercept_, 4), model.n_rounds_
    (array([1.9]), 1.15, 1)
    >>> np.sqrt(np.diag(model.covariance_)).round(4)  # standard errors
    array([0.2121, 0.3969])
    """

    kind = "linear"
    _: KW_ONLY
    noise_variance: Any = "auto"
    dependent: str = "hold"
    penalty: Any = field(default=None, init=False)


class FederatedPoissonRegressor(FederatedModel):
    """Poisson regression on rows that stay at their sites: counts of mean exp(xᵀw + b).

    Maximum likelihood with model standard errors, as `glm` has them on the pooled rows. With `inference="posterior"`
    minimises Σ_k E_q[ℓ_k] + KL(q‖prior) (Eq. 9), ℓ_k = Σ_i w_i (exp f_i − y_i f_i) summed over the rows of site k, with
    expectations in closed form. For rates, give `fit` and `predict` the `exposure`.

    Other parameters and attributes are those of `FederatedGLM`.

    Parameters
    ----------
    prior_precision : float, array_like or "evidence", default 0.0
        Precision of a Gaussian prior on the coefficients, 0 for none. scikit-learn's `PoissonRegressor` takes a mean
        over rows, so that this is its alpha × Σ sample_weight. See `FederatedGLM`.

    Examples
    --------
    >>> import numpy as np
    >>> from bayesadmm_np.estimators import FederatedPoissonRegressor
    >>> X = np.array([[-1.0], [-1.0], [1.0], [1.0]])
    >>> model = FederatedPoissonRegressor(1e-6).fit(X, [9.0, 11.0, 38.0, 42.0], client=[1, 2, 1, 2])
    >>> model.coef_.round(1)  # ½ log(40/10)
    array([0.7])
    >>> model.certificate_.holds
    True
    """

    kind = "poisson"


@dataclass(eq=False, repr=False)
class FederatedLogisticRegression(FederatedModel):
    """Logistic regression on rows that stay at their sites: p(y = 1) = σ(xᵀw + b), or softmax for three classes on.

    Maximum likelihood with model standard errors, as `glm` has them on the pooled rows; `certificate_` says how nearly.
    With `inference="posterior"` minimises Σ_k E_q[ℓ_k] + KL(q‖prior) (Eq. 9), ℓ_k the sum of −log p over the rows of
    site k; two classes are integrated exactly, more by moment-matched quasi-Monte-Carlo points. A likelihood of three
    classes on is relative to the first class; a posterior has one row of coefficients per class, which the prior makes
    identifiable, and unpenalised intercepts sum to zero.

    Other parameters and attributes are those of `FederatedGLM`.

    Parameters
    ----------
    prior_precision : float, array_like or "evidence", default 0.0
        Precision of a Gaussian prior on the coefficients, 0 for none; scikit-learn's 1/C. See `FederatedGLM`.
    method : str, Method or Step, default 'auto'
        See `FederatedGLM`. Where the points of a posterior of three classes on do not suffice (separable classes under
        a weak prior) "auto" takes FedLapCov, the Laplace approximation, and warns.
    class_weight : dict or "balanced", optional
        Factors of the row weights; "balanced" is n/(classes × rows of the class), from counts that sites send as sums.
    integrate : {'auto', 'exact', 'gauss-hermite', 'probit', 'quasi-monte-carlo', 'plug-in'}
        Rule by which `predict_proba` averages over the posterior: "exact", "gauss-hermite" (32 nodes) and "probit"
        (MacKay's approximation) are for two classes, "quasi-monte-carlo" for more; "plug-in" takes the posterior mean.
        "auto" is exact where there are two classes, and for a likelihood "plug-in".

    Examples
    --------
    >>> import numpy as np
    >>> from bayesadmm_np.estimators import FederatedLogisticRegression
    >>> X = np.array([[-2.0], [-1.0], [0.0], [1.0], [2.0], [3.0]])
    >>> y = np.array(["ill", "well", "ill", "well", "ill", "well"])
    >>> hospital = ["north", "north", "north", "south", "south", "south"]
    >>> model = FederatedLogisticRegression().fit(X, y, client=hospital)
    >>> model.certificate_.holds, model.sites_
    (True, ['north', 'south'])
    >>> model.predict_proba([[0.5]]).round(6)  # half way: the data are symmetric about 0.5
    array([[0.5, 0.5]])
    """

    kind = "softmax"
    _: KW_ONLY
    class_weight: Any = None
    integrate: str = "auto"

    def _class_factors(self, classes: Array, counts: Array) -> Array:
        """The factor of each class, from the sites' summed counts."""
        given = self.class_weight
        if given is None:
            return np.ones(classes.size)
        if isinstance(given, str) and given == "balanced":
            return np.asarray(counts.sum() / (classes.size * counts))
        if not isinstance(given, Mapping):
            raise ValueError(f"class_weight must be None, 'balanced' or a dict, got {given!r}.")
        known = classes.tolist()
        left, unknown = [label for label in known if label not in given], [key for key in given if key not in known]
        if left and unknown:  # as in scikit-learn: a weight too many is none, one for another class is a mistake
            listed = ", ".join(map(repr, known))
            raise ValueError(f"class_weight names the class {unknown[0]!r} and not {left[0]!r}; y holds {listed}.")
        return np.array([as_positive(given.get(label, 1.0), f"class_weight[{label!r}]") for label in known])

    def _integration(self, n_classes: int, averages: bool) -> str:
        """Resolve "auto" and refuse what does not fit."""
        how = read_choice(self.integrate, "integrate", ("auto", *BINARY[:3], *MULTINOMIAL))
        fitting = BINARY if n_classes == 2 else MULTINOMIAL
        if how == "auto":
            return fitting[0] if averages else "plug-in"
        if how not in fitting:
            allowed = ", ".join(map(repr, ("auto", *fitting)))
            raise ValueError(f"integrate must be one of {allowed} with {n_classes} classes, got {how!r}.")
        if how != "plug-in" and not averages:
            raise ValueError(
                f"integrate={how!r} needs inference='posterior' and a family that learns a covariance; use 'auto' or "
                "'plug-in'."
            )
        return how


class FederatedRidge(FederatedModel):
    """scikit-learn's `Ridge(alpha)` on rows that stay at their sites: least squares plus alpha ‖w‖².

    Minimises Σ_i w_i (y_i − f_i)² + alpha ‖w‖² over the rows of all sites in one exchange of triangular factors, as
    `FederatedLinearRegression` does; the intercept has no penalty. The covariance σ²(XᵀX + alpha I)⁻¹ is that of the
    posterior under the prior N(0, σ²/alpha). If columns depend and alpha is zero, or below their rounding, the
    coefficients are those of minimum norm, the limit of a small alpha. The certificate then does not hold.

    Other attributes are those of `FederatedGLM`.

    Parameters
    ----------
    alpha : float, default 1.0
        Penalty >= 0.
    fit_intercept : bool, default True
    noise_variance : float or "unbiased", default 'unbiased'
        σ². "unbiased" is RSS/(n − tr[(XᵀX + alpha I)⁻¹XᵀX]), the intercept counted. Several outputs share it.
    weight_meaning : {'frequency', 'analytic'}
        See `FederatedGLM`; n is the sum of frequency weights, and the number of rows of analytic ones.

    Attributes
    ----------
    noise_variance_ : float
    prior_precision_ : float
        alpha/σ².

    Raises
    ------
    ValueError
        In `fit`, when an argument is out of range.

    Examples
    --------
    >>> import numpy as np
    >>> from bayesadmm_np.estimators import FederatedRidge
    >>> X = np.array([[0.0], [1.0], [2.0], [3.0]])
    >>> model = FederatedRidge(alpha=5.0).fit(X, [1.0, 3.0, 5.0, 7.0], client=["a", "a", "b", "b"])
    >>> model.coef_.round(4), round(model.intercept_, 4)  # 2 × 5/(5 + alpha)
    (array([1.]), 2.5)
    """

    kind = "linear"
    warm_start = False

    def __init__(
        self,
        alpha: Any = 1.0,
        *,
        fit_intercept: bool = True,
        noise_variance: Any = "unbiased",
        weight_meaning: str = "frequency",
    ) -> None:
        self.alpha, self.fit_intercept, self.noise_variance = alpha, fit_intercept, noise_variance
        self.weight_meaning = weight_meaning

    def _settings(self) -> Settings:
        alpha = as_number(self.alpha, "alpha")
        if alpha < 0:
            raise ArgumentError("alpha", "must be >= 0", f"{alpha:g}")
        return Settings(
            method=STACKED_QR,
            family=FullGaussian,
            inference="likelihood",
            precision=alpha,
            prior=Prior(),
            noise=read_noise(self.noise_variance, "likelihood"),
            fit_intercept=as_switch(self.fit_intercept, "fit_intercept"),
            options={"tol": 1e-8},  # of the certificate's residuals
            is_relative=True,
            weights=read_choice(self.weight_meaning, "weight_meaning", WEIGHT_MEANINGS),
            dependent=MINIMUM_NORM,
        )
