"""Ridge regression as scikit-learn has it."""

from __future__ import annotations

from typing import Any

from .._errors import ArgumentError
from .._validation import as_number, as_switch
from ..families import FullGaussian
from ..glm.prior import Prior
from .base import FederatedModel
from .fitted import STACKED_QR
from .settings import MINIMUM_NORM, WEIGHT_MEANINGS, Settings, read_choice, read_noise

TOL = 1e-8
"""Of the certificate's residuals."""


class FederatedRidge(FederatedModel):
    """scikit-learn's `Ridge(alpha)` on rows that stay at their sites: least squares plus alpha ‖w‖².

    Minimises Σ_i w_i (y_i − f_i)² + alpha ‖w‖² over the rows of all sites in one exchange of triangular factors, as
    `FederatedLinearRegression` does; the intercept has no penalty. The covariance σ²(XᵀX + alpha I)⁻¹ is that of the
    posterior under the prior N(0, σ²/alpha). Where columns depend and alpha is zero, or below their rounding, the
    coefficients are those of minimum norm, to which those of a small alpha tend, and the certificate does not hold.

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
            options={"tol": TOL},
            is_relative=True,
            weights=read_choice(self.weight_meaning, "weight_meaning", WEIGHT_MEANINGS),
            dependent=MINIMUM_NORM,
        )
