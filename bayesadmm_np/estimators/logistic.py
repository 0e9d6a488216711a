"""Logistic regression, binary and multinomial."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin

from .._validation import Array, as_positive
from .base import FederatedModel
from .settings import read_choice

__all__ = ["FederatedLogisticRegression"]

BINARY = ("exact", "gauss-hermite", "probit", "plug-in")
MULTINOMIAL = ("quasi-monte-carlo", "plug-in")


class FederatedLogisticRegression(ClassifierMixin, FederatedModel):
    """Logistic regression on rows that stay at their sites: p(y = 1) = σ(xᵀw + b), or softmax for three classes on.

    Minimises Σ_k E_q[ℓ_k] + KL(q‖prior) (Eq. 9), ℓ_k the sum of −log p over the rows of site k, so that coefficients
    and covariance are those that pooling the rows would have given; `certificate_` says how nearly. Two classes are
    integrated exactly, more by moment-matched quasi-Monte-Carlo points. The softmax has one row of coefficients per
    class; the prior makes them identifiable, and unpenalised intercepts sum to zero.

    Parameters
    ----------
    prior_precision : float, array_like or "evidence", default 1.0
        Precision of the coefficients: a number, a vector (p,) or a matrix (p, p) of units 1/coefficient²;
        scikit-learn's 1/C. "evidence" maximises the ELBO over a number in [1e-6, 1e6].
    method : str, Method or Accelerated, default 'auto'
        A row of `bayesadmm_np.methods` by name, or one with its arguments. "auto" is accelerated PVI, undamped for a
        full covariance and with γ = 0.4 for a diagonal one. Where the points of three classes on do not suffice (wide
        posteriors: separable classes under a weak prior) it takes FedLapCov, the Laplace approximation, and warns.
    family : {'auto', 'full', 'diagonal', 'fixed', 'isotropic'}
        Family of the posterior; "auto" is the fullest that the method is defined for.
    fit_intercept : bool, default True
    penalize_intercept : bool, default False
        False, as in scikit-learn, gives the intercept prior precision ε, 1e-8 of its information, which shifts
        estimates by at most ε |b| sd(b) standard errors, b being the intercept at the pooled mean of the columns.
        True counts it among the coefficients: a vector or matrix `prior_precision` then has an entry for it, the last.
    class_weight : dict or "balanced", optional
        Factors of the row weights; "balanced" is n/(classes × rows of the class), from counts that sites send as sums.
    integrate : {'auto', 'exact', 'gauss-hermite', 'probit', 'quasi-monte-carlo', 'plug-in'}
        Rule by which `predict_proba` averages over the posterior: "exact", "gauss-hermite" (32 nodes) and "probit"
        (MacKay's approximation) are for two classes, "quasi-monte-carlo" for more; "plug-in" takes the posterior mean.
        "auto" is exact where there are two classes.
    max_rounds : int, default 100
    tol : float, default 1e-8
        Tolerance on the residuals of the certificate (Fisher lengths per parameter).
    warm_start : bool, default False
        Whether `fit` starts from the sites of the last fit that have the same names.
    participation : float or callable, default 1.0
        Share of the sites that take part in a round; see `bayesadmm_np.run`.
    random_state : int, optional
        Seed of participation and of stochastic solvers; None is 0, so that a fit can be repeated.
    n_jobs : int, optional
        Sites solved at the same time, in threads; -1 is all cores.
    progress : bool, default False
        Whether to show a progress bar (needs tqdm).

    Attributes
    ----------
    coef_ : ndarray, shape (1, p) or (C, p)
    intercept_ : ndarray, shape (1,) or (C,)
    covariance_ : ndarray, shape (d, d), or None
        Covariance of the coefficients and then the intercept, class by class; None where the family learns none.
    classes_ : ndarray, shape (C,)
    certificate_ : Certificate
    n_rounds_, n_iter_ : int
        Rounds of all runs of the fit; the Newton step that it starts from costs one exchange more.
    history_ : tuple of RoundRecord
        Records of the last run.
    sites_, site_rows_, site_factors_ : list, dict, dict
        Names in order; rows and factors η_k by name.
    posterior_, prior_ : Gaussian
    prior_precision_ : float or ndarray
    objective_, elbo_, log_likelihood_ : float
        The run's objective, the bound on the log evidence and the log likelihood at the mean, all constants kept.
    status_ : Status
    message_, evidence_message_, method_ : str

    Raises
    ------
    ValueError
        In `fit`, when an argument is out of range or arguments do not fit each other.

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

    def __init__(
        self,
        prior_precision: Any = 1.0,
        *,
        method: Any = "auto",
        family: str = "auto",
        fit_intercept: bool = True,
        penalize_intercept: bool = False,
        class_weight: Any = None,
        integrate: str = "auto",
        max_rounds: int = 100,
        tol: float = 1e-8,
        warm_start: bool = False,
        participation: Any = 1.0,
        random_state: Any = None,
        n_jobs: int | None = None,
        progress: bool = False,
    ) -> None:
        self._keep(locals())

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
        for label in given:
            if label not in known:
                raise ValueError(f"class_weight names the class {label!r}; y holds {', '.join(map(repr, known))}.")
        return np.array([as_positive(given.get(label, 1.0), f"class_weight[{label!r}]") for label in known])

    def _integration(self, n_classes: int, learns_covariance: bool) -> str:
        """Resolve "auto" and refuse what does not fit."""
        how = read_choice(self.integrate, "integrate", ("auto", *BINARY[:3], *MULTINOMIAL))
        fitting = BINARY if n_classes == 2 else MULTINOMIAL
        if how == "auto":
            return fitting[0] if learns_covariance else "plug-in"
        if how not in fitting:
            allowed = ", ".join(map(repr, ("auto", *fitting)))
            raise ValueError(f"integrate must be one of {allowed} with {n_classes} classes, got {how!r}.")
        if how != "plug-in" and not learns_covariance:
            raise ValueError(f"integrate={how!r} needs a family that learns a covariance; use 'auto' or 'plug-in'.")
        return how
