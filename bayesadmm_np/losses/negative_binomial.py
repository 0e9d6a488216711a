"""Negative binomial regression whose size is estimated beside the coefficients."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import digamma, gammaln, polygamma, xlogy

from .._errors import ArgumentError
from .._validation import Array
from .base import effective_rows
from .likelihood import Derivatives, SiteLikelihood

POISSON = 1e7
"""Size over the largest count from which on the counts are Poisson's, and sums of the size are rounding."""


class NegativeBinomial(SiteLikelihood):
    """−log likelihood of counts with mean μ = exp(f) and variance μ + μ²/r, but for Σ w log y!; θ_0 is log r.

    ℓ = Σ w [log Γ(r) − log Γ(y + r) + (y + r) log(r + μ) − r log r − y f]. The information is block diagonal, as in
    expectation: Xᵀdiag(w μ/(1 + μ/r))X of the coefficients, and the observed one of log r (Lawless, Canadian Journal of
    Statistics 15, 1987).

    Parameters
    ----------
    X, weights, offset
        As in `SiteLikelihood`.
    y : array_like, shape (n,)
        Counts.

    Raises
    ------
    ValueError
        When an array is not finite or of the wrong shape, or y holds no counts.
    """

    is_convex = False

    def __init__(self, X: ArrayLike, y: ArrayLike, weights: Any = None, offset: Any = None, n_auxiliary: int = 1):
        super().__init__(X, y, weights, offset, n_auxiliary)
        if self.y.ndim != 1 or (self.y < 0).any() or (self.y != np.rint(self.y)).any():
            raise ArgumentError("y", "must hold counts: whole numbers >= 0, one a row")

    def own_start(self) -> Array:
        """Return the least-squares fit to log(y + ½)."""
        goal = np.log(self.y + 0.5) - (0.0 if self.offset is None else self.offset)
        root = np.sqrt(self.weights)
        return np.asarray(np.linalg.lstsq(root[:, None] * self.X, root * goal)[0])

    def _parts(self, theta: Array) -> tuple[float, Array, Array]:
        """Return r, μ, and the weighted ∂ℓ/∂r with −∂²ℓ/∂r² of each row in it."""
        return float(np.exp(theta[0])), self.predictor(theta), np.exp(self.predictor(theta))

    def derivatives(self, theta: Array) -> Derivatives:
        r, f, mean = self._parts(theta)
        y, w, X = self.y, self.weights, self.X
        if not r <= POISSON * (1.0 + y.max()):
            return Derivatives(np.inf, np.zeros(self.dim), np.eye(self.dim))
        value = gammaln(r) - gammaln(y + r) + (y + r) * np.log(r + mean) - xlogy(r, r) - y * f
        slope = w * (mean - y) * r / (r + mean)
        gradient, hessian = X.T @ slope, (X.T * (w * (y + r) * mean * r / (r + mean) ** 2)) @ X
        first, second = self._of_size(r, mean)
        gradient[0] = r * first
        hessian[0] = hessian[:, 0] = X.T @ (w * mean * (mean - y) * r / (r + mean) ** 2)
        hessian[0, 0] = r**2 * second + r * first
        return Derivatives(w @ value, gradient, hessian)

    def rests_on(self, theta: ArrayLike) -> list[float]:
        r, _, mean = self._parts(np.asarray(theta, dtype=np.float64))
        return [effective_rows((self.y + r) * mean * r / (r + mean) ** 2, self.weights)]

    def _of_size(self, r: float, mean: Array) -> tuple[float, float]:
        """Return ∂ℓ/∂r and ∂²ℓ/∂r²."""
        y, w = self.y, self.weights
        first = digamma(r) - digamma(y + r) + np.log1p(mean / r) + (y - mean) / (r + mean)
        second = polygamma(1, r) - polygamma(1, y + r) - 1.0 / r + 2.0 / (r + mean) - (y + r) / (r + mean) ** 2
        return float(w @ first), float(w @ second)

    def information(self, theta: ArrayLike) -> Array:
        """Return the expected information of the coefficients, and the observed one of log r, shape (d, d)."""
        theta = np.asarray(theta, dtype=np.float64)
        r, _, mean = self._parts(theta)
        found = (self.X.T * (self.weights * mean * r / (r + mean))) @ self.X
        found[0, 0] = r**2 * self._of_size(r, mean)[1]
        return np.asarray(0.5 * (found + found.T))

    def saturated(self, theta: ArrayLike) -> float:
        """Return ℓ where every mean is the count itself, at the same size."""
        y, r = self.y, float(np.exp(np.asarray(theta)[0]))
        return float(self.weights @ (gammaln(r) - gammaln(y + r) + (y + r) * np.log(r + y) - xlogy(r, r) - xlogy(y, y)))
