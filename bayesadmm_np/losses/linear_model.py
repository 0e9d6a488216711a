"""Pointwise losses of the predictor f_i = x_iᵀθ + offset_i, and their expectations under a Gaussian q.

E_q is an integral of dimension one (or C) a row: E_q[∇ℓ] = Xᵀ E[ℓ'(f)] and E_q[∇²ℓ] = Xᵀ diag(E[ℓ''(f)]) X.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from copy import copy
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from .._errors import ArgumentError
from .._numerics import rounding_unit
from .._validation import Array, as_float_array, frozen
from ..families.base import ExponentialFamily
from ..families.gaussian import Gaussian
from ..families.precision import DensePrecision
from .base import GaussianExpected, Loss, Margins, RowCurvature, Rows
from .expectations import Delta, Exact, Rule
from .pointwise import Pointwise, RowMoments
from .tensors import pack_entries, pack_tensors, shared_root

_OF_ROWS = ("X", "y", "weights", "offset", "n_rows", "total_weight", "pointwise")


class LinearModelLoss(Loss):
    """Σ_i w_i ℓ(x_iᵀθ + offset_i, y_i) for a pointwise loss; with C outputs θ stacks C vectors of length p."""

    pointwise: Pointwise

    def __init__(self, X: ArrayLike, y: Array, pointwise: Pointwise, weights: Any = None, offset: Any = None) -> None:
        self.X = read_design(X)
        self.n_rows, self.n_features = self.X.shape
        self.pointwise = pointwise
        self.n_outputs = pointwise.n_outputs
        self.is_convex = pointwise.is_convex
        self.dim = self.n_features * pointwise.n_outputs
        if y.shape[0] != self.n_rows:
            raise ArgumentError("y", f"must have {self.n_rows} rows like X", y.shape[0])
        self.y = frozen(np.array(y, dtype=np.float64))
        self.weights = read_weights(weights, self.n_rows)
        self.total_weight = float(self.weights.sum())
        shape = (self.n_rows,) if pointwise.n_outputs == 1 else (self.n_rows, pointwise.n_outputs)
        self.offset = read_offset(offset, shape)

    @property
    def settings(self) -> object | None:
        """Settings that losses must share to be joined into one loss; None if a class has others."""
        own = {name: value for name, value in vars(self).items() if name not in _OF_ROWS}
        known: list[object] = [type(self), self.name, type(self.pointwise)]
        known += [item for each in (own, vars(self.pointwise)) for item in sorted(each.items())]
        plain = all(
            isinstance(value, int | float | str) for each in (own, vars(self.pointwise)) for value in each.values()
        )
        return tuple(known) if plain else None

    def joined(self, others: Sequence[LinearModelLoss]) -> Self:
        """Return the loss of this one's rows and those of `others`, which must be of the same `settings`."""
        parts: list[LinearModelLoss] = [self, *others]
        whole = copy(self)
        whole.X, whole.y = (frozen(np.concatenate([getattr(part, name) for part in parts])) for name in ("X", "y"))
        whole.weights = frozen(np.concatenate([part.weights for part in parts]))
        if any(part.offset is not None for part in parts):
            shape = (-1,) if self.n_outputs == 1 else (-1, self.n_outputs)
            each = [np.zeros((part.n_rows, self.n_outputs)) if part.offset is None else part.offset for part in parts]
            whole.offset = frozen(np.concatenate([own.reshape(shape) for own in each]))
        whole.n_rows, whole.total_weight = len(whole.X), float(whole.weights.sum())
        return whole

    def predictor(self, theta: Array) -> Array:
        """Xθ + offset: (n,) or (n, C)."""
        matrix = theta if self.n_outputs == 1 else theta.reshape(self.n_outputs, -1).T
        linear = self.X @ matrix
        return np.asarray(linear if self.offset is None else linear + self.offset)

    def value(self, theta: ArrayLike) -> float:
        return float(self.weights @ self._at(theta).value)

    def gradient(self, theta: ArrayLike) -> Array:
        """Return ∇ℓ(θ) = Xᵀ(w ∘ ℓ'), shape (d,)."""
        return self._pull_back(self._at(theta).slope)

    def hessian(self, theta: ArrayLike) -> Array:
        """Return ∇²ℓ(θ) = Xᵀ diag(w ∘ ℓ'') X, shape (d, d)."""
        return self._curvature(self._at(theta).curvature).dense()

    def rows(self, theta: ArrayLike) -> Rows:
        at = self._at(theta)
        return Rows(self.X, self.weights, self.y, self.predictor(as_theta(theta, self.dim)), at.slope, at.curvature)

    def check(self, prior: ExponentialFamily, rule: Rule) -> Rule:
        """Require a Gaussian family of dimension d, and a rule that fits the pointwise loss."""
        require_gaussian(self, prior)
        return rule.resolve(self.pointwise)

    def expect(self, q: ExponentialFamily, rule: Rule) -> GaussianExpected:
        """Return E_q[ℓ], E_q[∇ℓ] and E_q[∇²ℓ] from the predictors' means and (co)variances."""
        assert isinstance(q, Gaussian)
        rows = self.row_moments(q, rule)
        return GaussianExpected(
            q,
            float(self.weights @ rows.value),
            self._pull_back(rows.slope),
            self._curvature(rows.curvature),
            rule,
            partial(self._margins, q, rule),
        )

    @property
    def has_tensors(self) -> bool:
        return self.pointwise.has_higher_derivatives

    def tensors(self, q: Gaussian, rule: Rule) -> Array:
        """Return Σ_i w_i E[ℓ'''] z_i⊗z_i⊗z_i and the like for ℓ'''', z_i = R⁻¹x_i, for each set of classes."""
        if not (self.has_tensors and q.learns_precision):
            return super().tensors(q, rule)
        known = rule.higher_derivatives(self.pointwise, self.predictor(q.mean), self._spread(q), self.y)
        third, fourth = ((self.weights * one.T).T for one in known)
        if not isinstance(q.factor, DensePrecision):
            return pack_entries(q, self.X, third, fourth)
        return pack_tensors(shared_root(q, self.n_outputs).half_solve(self.X.T).T, third, fourth)

    def row_moments(self, q: Gaussian, rule: Rule) -> RowMoments:
        spread = self.y if rule.is_delta else self._spread(q)  # the delta method never looks at it
        return rule.moments(self.pointwise, self.predictor(q.mean), spread, self.y)

    def _margins(self, q: Gaussian, rule: Rule) -> Margins:
        """Reach, and the rounding of predictors and of slopes pulled back through |X|."""
        known = rule.is_delta or isinstance(rule, Exact) or not q.learns_precision
        reach = None
        if known and self.pointwise.concordance is not None:
            reach = self.pointwise.concordance * self._largest_deviation(q)
        unit = rounding_unit(self.n_rows, self.n_features)
        size = np.abs(self.X) @ np.abs(q.mean).reshape(self.n_outputs, -1).T
        size += 0.0 if self.offset is None else np.abs(self.offset).reshape(size.shape)
        rows = self.row_moments(q, rule)
        curvature = np.abs(rows.curvature).reshape(self.n_rows, self.n_outputs, self.n_outputs)
        # a label is at most |slope| + curvature where the slope is their difference
        errors = np.abs(rows.slope).reshape(size.shape) + np.matmul(curvature, size[:, :, None] + 2.0)[:, :, 0]
        total = (self.weights[:, None] * errors).T @ np.abs(self.X)
        return Margins(reach, unit * total.ravel(), unit * (1.0 + float(size.max())))

    def _largest_deviation(self, q: Gaussian) -> float:
        """Return the largest standard deviation under q of a row's predictor, or of a difference of two predictors."""
        spread = self._spread(q)[self.weights > 0]
        if self.n_outputs > 1:
            if self.pointwise.has_reference:
                spread = np.pad(spread, ((0, 0), (1, 0), (1, 0)))
            own = np.einsum("ncc->nc", spread)
            spread = own[:, :, None] + own[:, None, :] - 2.0 * spread
        return float(np.sqrt(spread.max(initial=0.0)))

    def _at(self, theta: ArrayLike) -> RowMoments:
        point = as_theta(theta, self.dim)
        predictor = self.predictor(point)
        return Delta(1).moments(self.pointwise, predictor, predictor, self.y)

    def _spread(self, q: Gaussian) -> Array:
        if self.n_outputs == 1:
            return q.factor.row_variances(self.X)
        return q.factor.class_covariances(self.X, self.n_outputs)

    def _pull_back(self, slope: Array) -> Array:
        weights = self.weights if self.n_outputs == 1 else self.weights[:, None]
        with np.errstate(invalid="ignore"):  # an infinite slope times a zero of X: NaN says it
            return np.asarray((weights * slope).T @ self.X).ravel()

    def _curvature(self, curvature: Array) -> RowCurvature:
        weights = self.weights if curvature.ndim == 1 else self.weights[:, None, None]
        return RowCurvature(self.X, weights * curvature)


class PointwiseLoss(LinearModelLoss):
    """A linear model whose class has the loss of a row, `pointwise`, and reads the targets, `_read`."""

    def __init__(self, X: ArrayLike, y: ArrayLike, weights: Any = None, offset: Any = None) -> None:
        super().__init__(X, self._read(y), self.pointwise, weights, offset)

    @staticmethod
    @abstractmethod
    def _read(y: ArrayLike) -> Array:
        """Check targets, and return them as numbers."""


def row_factor(X: Array, weights: Array | None = None) -> Array:
    """Return R, shape (min(n, p), p), with RᵀR = Σ_i w_i x_i x_iᵀ: what a site sends of its columns."""
    weighted = X if weights is None else np.sqrt(weights)[:, None] * X
    return np.asarray(np.linalg.qr(weighted, mode="r"))


def read_design(X: ArrayLike) -> Array:
    """Check a design matrix (n, p) and copy it, unless the array owns its numbers and is read-only."""
    design = as_float_array(X, "X", ndim=2)
    settled = design is X and design.flags.owndata and design.flags.c_contiguous and not design.flags.writeable
    return design if settled else frozen(np.array(design, order="C"))


def read_weights(weights: Any, n_rows: int) -> Array:
    """Check non-negative per-row weights; None means ones."""
    if weights is None:
        return frozen(np.ones(n_rows))
    array = as_float_array(weights, "weights", ndim=1)
    if array.shape != (n_rows,):
        raise ArgumentError("weights", f"must have shape ({n_rows},)", array.shape)
    if (array < 0).any():
        raise ArgumentError("weights", "must be >= 0", f"{array.min():g}")
    return frozen(array.copy())


def read_offset(offset: Any, shape: tuple[int, ...]) -> Array | None:
    """Check a known part of the predictor; None means zero."""
    if offset is None:
        return None
    array = as_float_array(offset, "offset")
    if array.shape != shape:
        raise ArgumentError("offset", f"must have shape {shape}", array.shape)
    return frozen(array.copy())


def as_theta(theta: ArrayLike, dim: int) -> Array:
    """Check a parameter vector (d,)."""
    point = as_float_array(theta, "theta", ndim=1)
    if point.shape != (dim,):
        raise ArgumentError("theta", f"must have shape ({dim},)", point.shape)
    return point


def require_gaussian(loss: Loss, prior: ExponentialFamily) -> None:
    """Raise unless the family is Gaussian and of the loss's dimension."""
    name = type(loss).__name__
    if not isinstance(prior, Gaussian):
        raise ValueError(f"{name} needs a Gaussian family, the prior is {type(prior).__name__}.")
    if prior.dim != loss.dim:
        raise ValueError(f"{name} has {loss.dim} parameters, but the prior's mean has {prior.dim}.")
