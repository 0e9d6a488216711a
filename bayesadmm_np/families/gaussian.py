"""Gaussian families: a mean and a precision, which is learned, T = (θ, −½θθᵀ), or fixed, T = θ."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from .._errors import ArgumentError
from .._validation import Array, as_float_array, frozen
from .base import ExponentialFamily
from .coordinates import Displacement, Expectation, Natural
from .precision import DensePrecision, DiagonalPrecision, NotPositiveDefiniteError, Precision

LOG_2PI = float(np.log(2.0 * np.pi))


class Gaussian(ExponentialFamily):
    """N(mean, S⁻¹) with a structured precision S; base class of the five Gaussian families.

    Raises
    ------
    ValueError
        When mean and precision do not fit each other, or the precision is not positive definite.
    """

    learns_precision: ClassVar[bool] = True
    factor: Precision
    mean: Array

    def __init__(self, mean: ArrayLike, precision: Any) -> None:
        centre = as_float_array(mean, "mean", ndim=1)
        self._set(centre.copy(), self._read_precision(precision, centre.shape[0], "precision"))

    @staticmethod
    @abstractmethod
    def _read_precision(value: Any, dim: int, name: str) -> Precision:
        """Check a user's matrix of the family's shape."""

    @classmethod
    def from_covariance(cls, mean: ArrayLike, covariance: Any) -> Self:
        """Return N(mean, covariance); the covariance has the shape that `precision` has in the constructor."""
        centre = as_float_array(mean, "mean", ndim=1)
        factor = cls._read_precision(covariance, centre.shape[0], "covariance")
        return cls._make(centre.copy(), factor.from_covariance(factor.parts))

    @classmethod
    def _make(cls, mean: Array, factor: Precision) -> Self:
        """Build a member from checked pieces."""
        member = cls.__new__(cls)
        member._set(mean, factor)
        return member

    def _set(self, mean: Array, factor: Precision) -> None:
        self.mean = frozen(mean)
        self.factor = factor

    def at(self, mean: Array, parts: Sequence[Array]) -> Self:
        """Return the member with this mean to the last bit, and this precision: λ keeps a mean to cond(S) ulp alone."""
        own = all(new is old for new, old in zip(parts, self.factor.parts, strict=True))
        factor = self.factor if own else self.factor.like(parts)
        if not (np.isfinite(mean).all() and factor.is_positive_definite()):
            raise NotPositiveDefiniteError("the mean is not finite, or its precision is not positive definite.")
        return self._make(np.array(mean), factor)

    @property
    def dim(self) -> int:
        """Number of parameters d."""
        return self.mean.shape[0]

    @cached_property
    def is_proper(self) -> bool:
        """Return whether S is positive definite; a prior with a singular S is flat along Sθ = 0."""
        return self.factor.is_positive_definite()

    @property
    def precision(self) -> Any:
        """S in the family's shape: (d, d), (d,) or a tuple of blocks."""
        return _single(self.factor.parts)

    @property
    def covariance(self) -> Any:
        """S⁻¹ in the family's shape."""
        return _single(self.factor.covariance_parts)

    @property
    def covariance_matrix(self) -> Array:
        """S⁻¹ as a dense (d, d) matrix, whatever the family."""
        whole = self.factor.covariance_block(slice(0, self.dim), slice(0, self.dim))
        assert whole is not None
        return np.diag(whole) if whole.ndim == 1 else np.array(whole)

    @property
    def variance(self) -> Array:
        """Marginal variances, shape (d,)."""
        parts = self.factor.covariance_parts
        return np.concatenate([p if p.ndim == 1 else np.diagonal(p) for p in parts])

    @abstractmethod
    def unwhiten(self, whitened: Array, low: float = -np.inf) -> Natural:
        """Return the δ with `whiten(δ)` = `whitened`, or the nearest in Fisher length with δ_S ⪰ low S, if learned."""

    @abstractmethod
    def natural_from(self, linear: Array, precision_parts: Sequence[Array]) -> Natural:
        """Return (linear, precision) as a natural vector, without the precision where that is fixed."""

    def natural_gradient(self, gradient: Array, hessian_parts: Sequence[Array]) -> Natural:
        """∇_μ E_q[ℓ] = (g − Hm, −H) of g = E_q[∇ℓ], H = E_q[∇²ℓ] (Eq. 48, 60); g for a fixed precision (Eq. 21)."""
        if not self.learns_precision:
            return self.natural_from(gradient, ())
        curvature = self.factor.like(hessian_parts)
        linear = gradient - curvature.multiply(self.mean)
        return self.natural_from(linear, [-part for part in hessian_parts])

    def log_density(self, theta: ArrayLike) -> Array:
        points = np.asarray(theta, dtype=np.float64)
        if points.shape[-1:] != (self.dim,):
            raise ArgumentError("theta", f"must have last dimension {self.dim}", f"shape {points.shape}")
        deviations = (points - self.mean).reshape(-1, self.dim).T
        energies = np.einsum("dn,dn->n", deviations, self.factor.multiply(deviations))
        constant = 0.5 * (self.factor.logdet - self.dim * LOG_2PI)
        return (constant - 0.5 * energies).reshape(points.shape[:-1])

    def sample(self, rng: np.random.Generator, size: int = 1) -> Array:
        return self.mean + self.factor.colour(rng.standard_normal((self.dim, size))).T

    @property
    def entropy(self) -> float:
        """½ (d log 2πe − log det S)."""
        return 0.5 * (self.dim * (1.0 + LOG_2PI) - self.factor.logdet)

    def mean_distance(self, other: Gaussian) -> float:
        """½ ‖m − m'‖² in the metric of `other`."""
        deviation = self.mean - other.mean
        return 0.5 * float(deviation @ other.factor.multiply(deviation))

    def kl(self, other: ExponentialFamily) -> float:
        """KL(self‖other) = ½[tr(S'S⁻¹) − d + log det S − log det S' + ‖m − m'‖²_{S'}] (Eq. 50).

        To a flat prior, which has no normaliser, −H(self) + ½ E‖θ − m'‖²_{S'}.
        """
        self._require_same_family(other)
        assert isinstance(other, Gaussian)
        if self.factor is other.factor and other.is_proper:
            return self.mean_distance(other)
        trace = self.factor.trace_solve(other.factor.parts)
        if not other.is_proper:
            return 0.5 * trace - self.entropy + self.mean_distance(other)
        shape = 0.5 * (trace - self.dim + self.factor.logdet - other.factor.logdet)
        return shape + self.mean_distance(other)

    def __repr__(self) -> str:
        with np.printoptions(precision=4, threshold=12):
            return f"{type(self).__name__}(mean={self.mean}, precision={self.precision})"


class LearnedPrecisionGaussian(Gaussian):
    """Gaussians whose natural parameter holds the precision: λ = (Sm, S), T = (θ, −½θθᵀ)."""

    structure: ClassVar[type[Precision]]
    """Class of the precision; its parts are λ's second to last."""

    def with_expectation(self, expectation: Expectation) -> Self:
        self._require(expectation, Expectation)
        layout = self.structure(*expectation.parts[1:])
        outer = layout.outer(expectation.mean)
        covariance = [-2.0 * part - o for part, o in zip(expectation.parts[1:], outer, strict=True)]
        try:
            factor = layout.from_covariance(covariance)
        except NotPositiveDefiniteError as error:
            raise NotPositiveDefiniteError(
                "expectation parameter outside the domain: the moments leave no positive definite covariance."
            ) from error
        return self._make(np.array(expectation.mean), factor)

    def with_natural(self, natural: Natural) -> Self:
        self._require(natural, Natural)
        # a member made of one's own λ shares the factorisation
        own = all(new is old for new, old in zip(natural.parts[1:], self.factor.parts, strict=True))
        factor = self.factor if own else self.structure(*natural.parts[1:])
        if not (np.isfinite(natural.linear).all() and factor.is_positive_definite()):
            raise NotPositiveDefiniteError(
                "natural parameter outside the domain: it is not finite, or its precision is not positive definite."
            )
        member = self._make(factor.solve(natural.linear), factor)
        # keep λ as given: recomputing S m would lose digits at each round trip
        member.__dict__["natural"] = natural
        return member

    def contains(self, natural: Natural) -> bool:
        self._require(natural, Natural)
        return natural.is_finite() and self.factor.like(natural.parts[1:]).is_positive_definite()

    def natural_from(self, linear: Array, precision_parts: Sequence[Array]) -> Natural:
        return Natural._own((linear, *precision_parts))

    @cached_property
    def natural(self) -> Natural:
        return self.natural_from(self.factor.multiply(self.mean), self.factor.parts)

    @property
    def expectation(self) -> Expectation:
        """μ = (m, −½(mmᵀ + S⁻¹)) restricted to the family's structure; as large as S, and not kept."""
        seconds = self.factor.outer(self.mean)
        for second, covariance in zip(seconds, self.factor.covariance_parts, strict=True):
            second += covariance
            second *= -0.5
        return Expectation._own((self.mean, *seconds))

    @property
    def log_partition(self) -> float:
        """A(λ) = ½(mᵀSm − log det S + d log 2π)."""
        energy = float(self.natural.linear @ self.mean)
        return 0.5 * (energy - self.factor.logdet + self.dim * LOG_2PI)

    def whiten(self, difference: Natural) -> Array:
        """Stack L⁻¹(δ_linear − δ_S m) and L⁻¹ δ_S L⁻ᵀ/√2: the Newton decrement and the relative precision."""
        change = self.factor.like(difference.parts[1:])
        mean_part = self.factor.half_solve(difference.linear - change.multiply(self.mean))
        precision_part = self.factor.whiten(change.parts)
        precision_part *= np.sqrt(0.5)
        return np.concatenate([mean_part, precision_part])

    def lengths(self, members: Sequence[Natural]) -> list[float]:
        """Whiten a precision that members share once: each time takes d³ flops."""
        squares: dict[tuple[int, ...], float] = {}
        found = []
        for member in members:
            difference, key = member - self.natural, tuple(map(id, member.parts[1:]))
            change = self.factor.like(difference.parts[1:])
            if key not in squares:
                is_moved = any(part.any() for part in change.parts)
                squares[key] = 0.5 * float(np.square(self.factor.whiten(change.parts)).sum()) if is_moved else 0.0
            mean_part = self.factor.half_solve(difference.linear - change.multiply(self.mean))
            found.append(float(np.sqrt((np.square(mean_part).sum() + squares[key]) / difference.size)))
        return found

    def displacement(self, difference: Natural) -> Displacement:
        """(S⁻¹(δ_linear − δ_S m), −S⁻¹ δ_S S⁻¹)."""
        change = self.factor.like(difference.parts[1:])
        mean_part = self.factor.solve(difference.linear - change.multiply(self.mean))
        return Displacement._own((mean_part, *(-part for part in self.factor.sandwich(change.parts))))

    def whiten_displacement(self, displacement: Displacement) -> Array:
        """Stack LᵀΔm and LᵀΔΣL/√2."""
        mean_part = self.factor.half_solve(self.factor.multiply(displacement.parts[0]))
        return np.concatenate([mean_part, np.sqrt(0.5) * self.factor.whiten_covariance(displacement.parts[1:])])

    def unwhiten(self, whitened: Array, low: float = -np.inf) -> Natural:
        """L a + δ_S m and δ_S, where L = S L⁻ᵀ."""
        mean_part, precision_part = np.split(whitened, [self.dim])
        change = self.factor.like(self.factor.unwhiten(np.sqrt(2.0) * precision_part, low))
        linear = self.factor.multiply(self.factor.colour(mean_part)) + change.multiply(self.mean)
        return self.natural_from(linear, change.parts)


class FixedPrecisionBase(Gaussian):
    """Gaussians of one fixed precision S: λ = Sm, T = θ, base measure h ∝ exp(−½θᵀSθ)."""

    learns_precision: ClassVar[bool] = False

    def with_natural(self, natural: Natural) -> Self:
        self._require(natural, Natural)
        member = self._with_mean(self.factor.solve(natural.linear))
        # keep λ as given: recomputing S m would lose digits at each round trip
        member.__dict__["natural"] = natural
        return member

    def with_expectation(self, expectation: Expectation) -> Self:
        self._require(expectation, Expectation)
        return self._with_mean(np.array(expectation.mean))

    def _with_mean(self, mean: Array) -> Self:
        if not np.isfinite(mean).all():
            raise ValueError("natural parameter outside the domain: it is not finite.")
        return self._make(mean, self.factor)

    def contains(self, natural: Natural) -> bool:
        self._require(natural, Natural)
        return natural.is_finite()

    def natural_from(self, linear: Array, precision_parts: Sequence[Array]) -> Natural:
        return Natural._own((linear,))

    @cached_property
    def natural(self) -> Natural:
        return self.natural_from(self.factor.multiply(self.mean), ())

    @cached_property
    def expectation(self) -> Expectation:
        return Expectation(self.mean)

    @property
    def log_partition(self) -> float:
        """A(λ) = ½ λᵀS⁻¹λ relative to h."""
        return 0.5 * float(self.natural.linear @ self.mean)

    def whiten(self, difference: Natural) -> Array:
        """L⁻¹δ: the Fisher matrix is S⁻¹."""
        return self.factor.half_solve(difference.linear)

    def unwhiten(self, whitened: Array, low: float = -np.inf) -> Natural:
        """L a; the precision does not change."""
        return self.natural_from(self.factor.multiply(self.factor.colour(whitened)), ())


def read_dense(value: Any, dim: int, name: str, flat: bool = False) -> DensePrecision:
    """Check a symmetric positive definite matrix (semidefinite if `flat`), a `DensePrecision`, or a multiple of I."""
    if isinstance(value, DensePrecision) and value.dim == dim and value.is_positive_definite():
        return value
    value = value.matrix if isinstance(value, DensePrecision) else value
    array = as_float_array(value, name, ndim=(0, 2))
    if array.ndim == 0:
        if not (array > 0 or (flat and array == 0)):
            raise ArgumentError(name, f"must be {'>=' if flat else '>'} 0", f"{float(array):g}")
        return DensePrecision(float(array) * np.eye(dim))
    if array.shape != (dim, dim):
        raise ArgumentError(name, f"must have shape ({dim}, {dim}) to match the mean", array.shape)
    if not np.allclose(array, array.T, rtol=1e-10, atol=1e-12 * float(np.abs(array).max())):
        raise ArgumentError(name, "must be symmetric")
    factor = DensePrecision(0.5 * (array + array.T))
    if not (factor.is_positive_definite() or (flat and factor.is_semidefinite())):
        raise NotPositiveDefiniteError(f"{name} must be positive {'semi' * flat}definite, and it is not.")
    return factor


def read_diagonal(value: Any, dim: int, name: str) -> DiagonalPrecision:
    """Check a positive vector, or repeat a scalar."""
    array = as_float_array(value, name, ndim=(0, 1))
    if array.ndim == 1 and array.shape != (dim,):
        raise ArgumentError(name, f"must have shape ({dim},) to match the mean", array.shape)
    factor = DiagonalPrecision(np.array(np.broadcast_to(array, (dim,))))
    if not factor.is_positive_definite():
        raise NotPositiveDefiniteError(f"{name} must be positive in every entry, and it is not.")
    return factor


def _single(parts: tuple[Array, ...]) -> Any:
    return parts[0] if len(parts) == 1 else parts
