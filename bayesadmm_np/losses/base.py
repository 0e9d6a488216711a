"""The interface of a client's loss, and of its expectation under q."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike

from .._registry import Registry
from .._validation import Array
from ..families.base import ExponentialFamily
from ..families.coordinates import Natural
from ..families.gaussian import Gaussian
from ..families.precision import DensePrecision, Precision
from .expectations import Rule
from .tensors import tensor_size


class Curvature(Protocol):
    """A Hessian that is formed only on request."""

    def dense(self) -> Array:
        """Return the (d, d) matrix."""

    def project(self, factor: Precision) -> tuple[Array, ...]:
        """Return its restriction to a precision's structure."""

    def multiply(self, vector: Array) -> Array:
        """Return its product with a vector."""


class RowCurvature(NamedTuple):
    """Σ_i a_i x_i x_iᵀ, or Σ_i A_i ⊗ x_i x_iᵀ for several predictors a row."""

    X: Array
    weights: Array

    def dense(self) -> Array:
        """Return the (d, d) matrix."""
        dim = self.X.shape[1] * (1 if self.weights.ndim == 1 else self.weights.shape[1])
        return self.project(DensePrecision(np.broadcast_to(np.float64(0.0), (dim, dim))))[0]

    def project(self, factor: Precision) -> tuple[Array, ...]:
        """Restrict to the structure; never forms more than the structure holds."""
        with np.errstate(over="ignore", invalid="ignore"):  # an infinite curvature shows in the result
            if self.weights.ndim == 1:
                return factor.gram(self.X, self.weights)
            return factor.class_gram(self.X, self.weights)

    def multiply(self, vector: Array) -> Array:
        """Two passes over X."""
        if self.weights.ndim == 1:
            return np.asarray(self.X.T @ (self.weights * (self.X @ vector)))
        predictors = self.X @ vector.reshape(-1, self.X.shape[1]).T
        weighted = np.matmul(self.weights, predictors[:, :, None])[:, :, 0]
        return (weighted.T @ self.X).ravel()


@dataclass(frozen=True)
class KroneckerCurvature:
    """I_C ⊗ G: the Hessian of least squares with C outputs, kept as one p × p matrix."""

    gram: Array
    n_outputs: int

    def dense(self) -> Array:
        """Return the (Cp, Cp) matrix."""
        return np.asarray(np.kron(np.eye(self.n_outputs), self.gram), dtype=np.float64)

    def project(self, factor: Precision) -> tuple[Array, ...]:
        """Restrict to the structure."""
        return factor.repeated_block(self.gram, self.n_outputs)

    def multiply(self, vector: Array) -> Array:
        """One product with G for all outputs."""
        return (vector.reshape(self.n_outputs, -1) @ self.gram).ravel()


class Margins(NamedTuple):
    """Numbers of a client that a bound on the distance to the pooled fit needs beside its sums."""

    # Largest relative change, to first order, of a row's ℓ'' when θ moves by one standard deviation of q: M times the
    # largest standard deviation of a row's predictor (with C predictors, of a difference of two), where |ℓ'''| ≤ M ℓ'';
    # zero for a quadratic. None where no such M is known, or where the gradient is not that of an objective
    reach: float | None
    gradient_error: Array  # shape (d,): Bound on the rounding error of each entry of E_q[∇ℓ]
    curvature_error: float  # bound on the rounding error of each entry of E_q[∇²ℓ], relative to √(H_jj H_kk)


class Rows(NamedTuple):
    """A loss row by row at θ, for sums that a site makes itself; it never leaves the site."""

    X: Array  # shape (n, p)
    weights: Array  # shape (n,)
    target: Array  # shape (n,) or (n, C): y, of classes one label a row
    predictor: Array  # shape (n,) or (n, C): the linear predictor f
    slope: Array  # shape (n,) or (n, C): ∂ℓ/∂f before weights
    curvature: Array  # shape (n,) or (n, C, C): ∂²ℓ/∂f² before weights; of least squares one number a row

    @property
    def effective(self) -> float:
        """Effective number of rows in the sums of curvatures, (Σv)²/Σv²; with several predictors v is a trace."""
        return effective_rows(self.curvature, self.weights)

    @property
    def others(self) -> list[int]:
        """For each column of X, the number of rows of positive weight without the column's most common value."""
        columns = self.X[self.weights > 0].T
        return [len(column) - int(np.unique(column, return_counts=True)[1].max()) for column in columns]

    @property
    def largest_leverage(self) -> float:
        """The largest (x_iᵀc)²/‖Xc‖² of all rows i of positive weight and all combinations c of columns."""
        return largest_leverage(self.X[self.weights > 0])


ALONE = 0.99
"""Leverage from which on a combination of columns is the value of one row."""


def largest_leverage(X: Array) -> float:
    """Return the largest (x_iᵀc)²/‖Xc‖² of all rows i and all combinations c of columns."""
    sizes = np.maximum(np.abs(X).max(axis=0), np.finfo(float).tiny)
    left, spread, _ = np.linalg.svd(X / sizes, full_matrices=False)
    return float((left[:, spread > spread.max() * 1e-12] ** 2).sum(axis=1).max())


def effective_rows(sizes: Array, weights: Array | float = 1.0) -> float:
    """Return (Σv)²/Σv² of sizes or traces v: n of n equal ones, 1 of one that outweighs all others."""
    found = weights * (sizes if sizes.ndim == 1 else np.trace(sizes, axis1=1, axis2=2))
    most = found.max(initial=0.0)
    size = found / most if 0 < most < np.inf else np.zeros(1)
    return float(size.sum() ** 2 / max(size @ size, 1e-300))


@dataclass(frozen=True, eq=False)
class Expected:
    """E_q[ℓ] and its natural gradient ∇_μ E_q[ℓ]."""

    value: float
    natural_gradient: Natural


class GaussianExpected(Expected):
    """E_q[ℓ], g = E_q[∇ℓ] and H = E_q[∇²ℓ] under a Gaussian q; the natural gradient follows from them.

    Attributes
    ----------
    gradient : ndarray, shape (d,)
    curvature : Curvature
        H, formed only on request.
    value_at_mean : float
        ℓ(m) under the delta method, whose Newton steps reduce it; otherwise `value`.
    """

    gradient: Array
    curvature: Curvature
    value_at_mean: float
    _q: Gaussian
    _rule: Rule
    _margins: Callable[[], Margins] | None

    def __init__(
        self,
        q: Gaussian,
        value: float,
        gradient: Array,
        curvature: Curvature,
        rule: Rule,
        margins: Callable[[], Margins] | None = None,
    ) -> None:
        # at once: every evaluation makes one, and a frozen class asks before each attribute that is set
        vars(self).update(
            value_at_mean=value, gradient=gradient, curvature=curvature, _q=q, _rule=rule, _margins=margins
        )

    @property
    def is_at_mean(self) -> bool:
        """Return whether the gradient is ∇ℓ(m): under the delta method, and for quadratics."""
        return self._rule.is_delta

    @cached_property
    def margins(self) -> Margins:
        """Reach and rounding errors, computed on request by another pass over the rows."""
        if self._margins is None:
            return Margins(None, np.zeros_like(self.gradient), 0.0)
        with np.errstate(over="ignore", invalid="ignore"):  # an overflow shows in the result
            return self._margins()

    @cached_property
    def value(self) -> float:
        """E_q[ℓ]; the second-order delta method adds ½ tr(H S⁻¹) to ℓ(m)."""
        if not (self._rule.is_delta and self._rule.carries_curvature):
            return self.value_at_mean
        parts = self.projected if self._q.learns_precision else self.curvature.project(self._q.factor)
        return self.value_at_mean + 0.5 * self._q.factor.trace_solve(parts)

    def moved(self, q: Gaussian, stretch: float) -> GaussianExpected:
        """Return the delta method's expectation at another q with the same mean and `stretch` times the reach."""

        def margins() -> Margins:
            reach = self.margins.reach
            return self.margins._replace(reach=None if reach is None else stretch * reach)

        return GaussianExpected(q, self.value_at_mean, self.gradient, self.curvature, self._rule, margins)

    @property
    def projected(self) -> tuple[Array, ...]:
        """H in the structure of a precision that is learned; zero for the first-order delta method."""
        # kept once, as the natural gradient's
        return tuple(-part for part in self.natural_gradient.parts[1:])

    @cached_property
    def natural_gradient(self) -> Natural:
        """∇_μ E_q[ℓ] = (g − Hm, −H), or g when the precision is fixed."""
        hessian: Sequence[Array] = ()
        if self._q.learns_precision and self._rule.carries_curvature:
            hessian = self.curvature.project(self._q.factor)
        elif self._q.learns_precision:
            hessian = [np.zeros_like(part) for part in self._q.factor.parts]
        with np.errstate(over="ignore", invalid="ignore"):  # an overflow shows in the result
            return self._q.natural_gradient(self.gradient, hessian)


class Loss(ABC):
    """A client's loss ℓ_k(θ): a sum over its rows, never a mean.

    To add a loss, write one file with a subclass (or, for a generalised linear model, only a `Pointwise`).
    """

    dim: int
    n_rows: int
    n_outputs: int = 1
    """Predictors a row: θ stacks as many vectors of coefficients of the same columns."""
    total_weight: float
    """Sum of the row weights, N_k: the weight of this client where methods weight clients by rows."""
    is_convex: bool = True
    """True if ∇²ℓ ⪰ 0 for every θ, as guarantees of convergence require."""
    has_rounds: bool = True
    """False where a fit between sites is made by questions alone, and no step is taken."""
    is_quadratic: bool = False
    """Claim that ∇²ℓ is constant, so that Eq. 15 under a Gaussian is one linear solve."""
    is_linear_in_statistics: bool = False
    """Claim that ∇_μ E_q[ℓ] is constant, so that Eq. 15 is one addition."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.n_rows} rows, {self.dim} parameters)"

    @property
    def name(self) -> str:
        """Name that sites and server must agree on: the class, and the numbers beside the rows that define ℓ."""
        return type(self).__name__

    @abstractmethod
    def value(self, theta: ArrayLike) -> float:
        """Return ℓ(θ)."""

    @abstractmethod
    def gradient(self, theta: ArrayLike) -> Array:
        """Return ∇ℓ(θ), shape (d,)."""

    @abstractmethod
    def hessian(self, theta: ArrayLike) -> Array:
        """Return ∇²ℓ(θ), shape (d, d)."""

    def rows(self, theta: ArrayLike) -> Rows:
        """Return the rows with their derivatives at θ; raise a ValueError if the loss has none."""
        raise ValueError(f"{type(self).__name__} does not tell its rows apart.")

    def rests_on(self, theta: ArrayLike) -> list[float]:
        """Return on how many rows the sums at θ rest, of each part that tells its own."""
        return [self.rows(theta).effective]

    @property
    def has_tensors(self) -> bool:
        """Return whether the expected third and fourth derivatives are known."""
        return self.is_quadratic or self.is_linear_in_statistics

    def tensors(self, q: Gaussian, rule: Rule) -> Array:
        """Return the entries of E_q[∇³ℓ] and E_q[∇⁴ℓ] for q's family, packed as in `losses/tensors.py`."""
        if not self.has_tensors:
            raise ValueError(f"the expected third and fourth derivatives of {type(self).__name__} are not known.")
        return np.zeros(tensor_size(q, self.n_outputs))

    @abstractmethod
    def check(self, prior: ExponentialFamily, rule: Rule) -> Rule:
        """Return the concrete rule for this loss; raise a ValueError if loss, family and rule do not fit."""

    @abstractmethod
    def expect(self, q: ExponentialFamily, rule: Rule) -> Expected:
        """Return E_q[ℓ] and its natural gradient; `rule` comes from `check`."""


LOSSES: Registry[type[Loss]] = Registry("loss")
"""Every loss by the name of its class."""
