"""Least squares with one or many outputs: its Hessian is one Gram matrix, computed once."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .._errors import ArgumentError
from .._numerics import rounding_unit
from .._validation import Array, as_float_array, frozen
from ..families.base import ExponentialFamily
from ..families.gaussian import Gaussian
from .base import LOSSES, GaussianExpected, KroneckerCurvature, Loss, Margins, Rows
from .expectations import Delta, Rule
from .linear_model import as_theta, read_design, read_offset, read_weights, require_gaussian


@LOSSES.register
class LeastSquares(Loss):
    """ℓ(θ) = ½ Σ_i w_i ‖Θ x_i + offset_i − y_i‖²: unit noise precision, ½ log 2π dropped; weights rescale the noise.

    With C outputs θ = vec of the rows of Θ (C × p) and ∇²ℓ = I_C ⊗ XᵀWX, of which only XᵀWX (p × p) is kept.

    Parameters
    ----------
    X : array_like, shape (n, p)
    y : array_like, shape (n,) or (n, C)
    weights : array_like, shape (n,), optional
    offset : array_like, shape (n,) or (n, C), optional

    Raises
    ------
    ValueError
        When an array is empty, not finite or of the wrong shape.

    Examples
    --------
    >>> import bayesadmm_np as ba
    >>> loss = ba.losses.LeastSquares([[1.0], [2.0]], [1.0, 2.0])
    >>> loss.value([0.0]), loss.hessian([0.0])
    (2.5, array([[5.]]))
    """

    is_quadratic = True

    def __init__(self, X: ArrayLike, y: ArrayLike, weights: Any = None, offset: Any = None) -> None:
        design = read_design(X)
        target = as_float_array(y, "y", ndim=(1, 2)).copy()
        self.n_rows, self.n_features = design.shape
        self.n_outputs = 1 if target.ndim == 1 else target.shape[1]
        self.dim = self.n_features * self.n_outputs
        if target.shape[0] != self.n_rows:
            raise ArgumentError("y", f"must have {self.n_rows} rows like X", target.shape[0])
        scale = read_weights(weights, self.n_rows)[:, None]
        known = read_offset(offset, target.shape)
        goal = (target if known is None else target - known).reshape(self.n_rows, -1)
        gram = design.T @ (scale * design)
        self._curvature = KroneckerCurvature(frozen(0.5 * (gram + gram.T)), self.n_outputs)
        self._design, self._goal, self._scale = design, frozen(goal), scale
        self.total_weight = float(scale.sum())

    def value(self, theta: ArrayLike) -> float:
        return self._value(self._residuals(as_theta(theta, self.dim)))

    def gradient(self, theta: ArrayLike) -> Array:
        return self._gradient(self._residuals(as_theta(theta, self.dim)))

    def hessian(self, theta: ArrayLike) -> Array:
        """Return I ⊗ XᵀWX as a dense matrix."""
        as_theta(theta, self.dim)
        return self._curvature.dense()

    def rows(self, theta: ArrayLike) -> Rows:
        """Return the rows with their derivatives at θ; an offset is taken off the target."""
        left = self._residuals(as_theta(theta, self.dim))
        shape = (self.n_rows,) if self.n_outputs == 1 else left.shape
        own = (self._goal.reshape(shape), (left + self._goal).reshape(shape), left.reshape(shape))
        return Rows(self._design, self._scale[:, 0], *own, np.ones(self.n_rows))

    def check(self, prior: ExponentialFamily, rule: Rule) -> Rule:
        """Require a Gaussian family of dimension d; every rule is exact for a quadratic."""
        require_gaussian(self, prior)
        return rule

    def expect(self, q: ExponentialFamily, rule: Rule) -> GaussianExpected:
        """E_q[ℓ] = ℓ(m) + ½ tr(H S⁻¹)."""
        assert isinstance(q, Gaussian)
        left = self._residuals(q.mean)
        # every rule but the first-order delta method sees the variance exactly
        seen = rule if rule.is_delta else Delta(2)
        margins = partial(self._margins, q)
        return GaussianExpected(q, self._value(left), self._gradient(left), self._curvature, seen, margins)

    def _margins(self, q: Gaussian) -> Margins:
        size = np.abs(self._design) @ np.abs(q.mean).reshape(self.n_outputs, -1).T + np.abs(self._goal)
        unit = rounding_unit(self.n_rows, self.n_features)
        return Margins(0.0, unit * ((self._scale * size).T @ np.abs(self._design)).ravel(), unit)

    def _value(self, left: Array) -> float:
        return 0.5 * float((self._scale * left**2).sum())

    def _gradient(self, left: Array) -> Array:
        return ((self._scale * left).T @ self._design).ravel()

    def _residuals(self, theta: Array) -> Array:
        # never expanded into the Gram matrix: a good fit of large targets would cancel
        return np.asarray(self._design @ theta.reshape(self.n_outputs, -1).T - self._goal)
