"""What a client's loss must answer, and what its expectation under q consists of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from .._validation import Array
from ..families.base import ExponentialFamily
from ..families.coordinates import Natural
from ..families.gaussian import Gaussian
from ..families.precision import Precision
from .expectations import Rule

__all__ = ["Curvature", "Expected", "GaussianExpected", "KroneckerCurvature", "Loss", "RowCurvature"]


class Curvature(Protocol):
    """A Hessian that is never formed unless someone asks."""

    def dense(self) -> Array:
        """Return the (d, d) matrix."""

    def project(self, factor: Precision) -> tuple[Array, ...]:
        """Return its restriction to a precision's structure."""

    def multiply(self, vector: Array) -> Array:
        """Return its product with a vector."""


@dataclass(frozen=True)
class RowCurvature:
    """Σ_i a_i x_i x_iᵀ, or Σ_i A_i ⊗ x_i x_iᵀ for several predictors a row."""

    X: Array
    weights: Array

    def dense(self) -> Array:
        """Return the (d, d) matrix."""
        dim = self.X.shape[1] * (1 if self.weights.ndim == 1 else self.weights.shape[1])
        return self.project(_dense_layout(dim))[0]

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


@dataclass(frozen=True)
class Expected:
    """E_q[ℓ] and its natural gradient ∇_μ E_q[ℓ]."""

    value: float
    natural_gradient: Natural


class GaussianExpected:
    """E_q[ℓ], g = E_q[∇ℓ] and H = E_q[∇²ℓ] under a Gaussian q; the natural gradient follows from them.

    Attributes
    ----------
    gradient : ndarray, shape (d,)
    curvature : Curvature
        H, not formed until asked for.
    value_at_mean : float
        Under the delta method ℓ(m), which its Newton step descends; otherwise `value`.
    """

    def __init__(self, q: Gaussian, value: float, gradient: Array, curvature: Curvature, rule: Rule) -> None:
        self.value_at_mean = value
        self.gradient = gradient
        self.curvature = curvature
        self._q = q
        self._rule = rule

    @cached_property
    def value(self) -> float:
        """E_q[ℓ]; the second-order delta method adds ½ tr(H S⁻¹) to ℓ(m)."""
        if not (self._rule.is_delta and self._rule.carries_curvature):
            return self.value_at_mean
        return self.value_at_mean + 0.5 * self._q.factor.trace_solve(self.curvature.project(self._q.factor))

    @cached_property
    def projected(self) -> tuple[Array, ...]:
        """H in the family's structure; zero for the first-order delta method."""
        if self._rule.carries_curvature:
            return self.curvature.project(self._q.factor)
        return tuple(np.zeros_like(part) for part in self._q.factor.parts)

    @cached_property
    def natural_gradient(self) -> Natural:
        """∇_μ E_q[ℓ] = (g − Hm, −H), or g when the precision is fixed."""
        hessian: Sequence[Array] = self.projected if self._q.learns_precision else ()
        with np.errstate(over="ignore", invalid="ignore"):  # an overflow shows in the result
            return self._q.natural_gradient(self.gradient, hessian)


class Loss(ABC):
    """A client's loss ℓ_k(θ): a sum over its rows, never a mean.

    To add a loss, write one file with a subclass (or, for a generalised linear model, only a `Pointwise`).
    """

    dim: int
    n_rows: int
    total_weight: float
    """Σ of the row weights, by which methods that weigh clients by rows weigh them."""
    is_quadratic: bool = False
    """Whether ∇²ℓ is constant, so that Eq. 15 under a Gaussian is one linear solve."""
    is_linear_in_statistics: bool = False
    """Whether ∇_μ E_q[ℓ] is constant, so that Eq. 15 is one addition."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.n_rows} rows, {self.dim} parameters)"

    @abstractmethod
    def value(self, theta: ArrayLike) -> float:
        """Return ℓ(θ)."""

    @abstractmethod
    def gradient(self, theta: ArrayLike) -> Array:
        """Return ∇ℓ(θ), shape (d,)."""

    @abstractmethod
    def hessian(self, theta: ArrayLike) -> Array:
        """Return ∇²ℓ(θ), shape (d, d)."""

    @abstractmethod
    def check(self, prior: ExponentialFamily, rule: Rule) -> Rule:
        """Return the concrete rule for this loss, or say in one ValueError why loss, family and rule do not fit."""

    @abstractmethod
    def expect(self, q: ExponentialFamily, rule: Rule) -> Expected | GaussianExpected:
        """Return E_q[ℓ] and its natural gradient; `rule` comes from `check`."""


def _dense_layout(dim: int) -> Precision:
    from ..families.precision import DensePrecision

    return DensePrecision(np.broadcast_to(np.float64(0.0), (dim, dim)))
