"""Linear regression: least squares with the table that statisticians know."""

from __future__ import annotations

from typing import Any

from sklearn.base import MultiOutputMixin, RegressorMixin

from .base import FederatedModel

__all__ = ["FederatedLinearRegression"]


class FederatedLinearRegression(MultiOutputMixin, RegressorMixin, FederatedModel):
    """Linear regression on rows that stay at their sites: y = xᵀw + b + noise of variance σ².

    Minimises Σ_i w_i (y_i − f_i)² over the rows of all sites in one exchange. Each site sends the triangular factor R
    of a QR of its rows, not the sums RᵀR, which lose half of the digits; the server stacks the factors and solves.
    Coefficients, standard errors and residual variance RSS/(n − p − 1) are those of `lm` on the pooled rows, with as
    many right digits.

    Other parameters and attributes are those of `FederatedGLM`.

    Parameters
    ----------
    prior_precision : float, array_like or "evidence", default 0.0
        Precision of the coefficients: a number, a vector (p,) or a matrix (p, p) of units 1/coefficient². At 0 there is
        no prior. "evidence" maximises the ELBO over a number in [1e-6, 1e6].
    inference : {'auto', 'likelihood', 'posterior'}
        "likelihood" is least squares, penalised where there is a prior. "posterior" is the exact posterior of a given
        or of the most probable σ². "auto" is the first unless another argument asks for what a posterior alone has.
    noise_variance : float, "auto", "unbiased" or "evidence", default 'auto'
        σ². "unbiased", the default of a likelihood, is RSS/(n − p − 1) (with a prior: n minus the effective number of
        coefficients). "evidence", of a posterior, maximises the ELBO over 1e-6 to 1e2 times the variance of y. Several
        outputs share it.

    Attributes
    ----------
    coef_ : ndarray, shape (p,) or (C, p)
    intercept_ : float or ndarray, shape (C,)
    covariance_ : ndarray, shape (d, d)
        Covariance of the coefficients and then the intercept, output by output.
    noise_variance_ : float

    Raises
    ------
    ValueError
        In `fit`, when an argument is out of range, arguments do not fit each other, columns are collinear, or there
        are not more rows than coefficients.

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

    def __init__(
        self,
        prior_precision: Any = 0.0,
        *,
        inference: str = "auto",
        noise_variance: Any = "auto",
        method: Any = "auto",
        family: str = "auto",
        fit_intercept: bool = True,
        penalize_intercept: bool = False,
        max_rounds: int = 100,
        tol: float = 1e-8,
        warm_start: bool = False,
        participation: Any = 1.0,
        random_state: Any = None,
        n_jobs: int | None = None,
        progress: bool = False,
    ) -> None:
        self._keep(locals())
