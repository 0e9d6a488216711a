"""Ridge regression with a known or an estimated noise variance."""

from __future__ import annotations

from typing import Any

from sklearn.base import MultiOutputMixin, RegressorMixin

from .base import FederatedModel

__all__ = ["FederatedRidge"]


class FederatedRidge(MultiOutputMixin, RegressorMixin, FederatedModel):
    """Linear regression with a Gaussian prior on rows that stay at their sites: y = xᵀw + b + noise of variance σ².

    Minimises Σ_k E_q[ℓ_k] + KL(q‖prior) (Eq. 9), ℓ_k = Σ_i w_i (y_i − f_i)²/(2σ²) summed over the rows of site k,
    which with a full covariance is the exact posterior. The mean is scikit-learn's `Ridge(alpha=prior_precision × σ²)`.
    Several outputs share σ² and the prior.

    Other parameters and attributes are those of `FederatedGLM`.

    Parameters
    ----------
    prior_precision : float, array_like or "evidence", default 1.0
        Precision of the coefficients: a number, a vector (p,) or a matrix (p, p) of units 1/coefficient². "evidence"
        maximises the ELBO over a number in [1e-6, 1e6].
    noise_variance : float or "evidence", default 'evidence'
        σ². "evidence" maximises the ELBO over 1e-6 to 1e2 times the variance of y; sites send their expected sums of
        squares. Standard errors are right only where σ² is.

    Attributes
    ----------
    coef_ : ndarray, shape (p,) or (C, p)
    intercept_ : float or ndarray, shape (C,)
    covariance_ : ndarray, shape (d, d), or None
        Covariance of the coefficients and then the intercept, output by output; None where the family learns none.
    noise_variance_ : float

    Raises
    ------
    ValueError
        In `fit`, when an argument is out of range or arguments do not fit each other.

    Examples
    --------
    >>> import numpy as np
    >>> from bayesadmm_np.estimators import FederatedRidge
    >>> X = np.array([[0.0], [1.0], [2.0], [3.0]])
    >>> model = FederatedRidge(1e-6, noise_variance=1.0).fit(X, [1.0, 3.0, 5.0, 7.0], client=["a", "a", "b", "b"])
    >>> model.coef_.round(4), round(model.intercept_, 4)
    (array([2.]), 1.0)
    >>> mean, sd = model.predict([[4.0]], return_std=True)
    >>> mean.round(4), sd.round(4)  # √(σ² + xᵀΣx)
    (array([9.]), array([1.5811]))
    """

    kind = "ridge"

    def __init__(
        self,
        prior_precision: Any = 1.0,
        *,
        noise_variance: Any = "evidence",
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
