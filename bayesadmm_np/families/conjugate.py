"""What families share whose ordinary parameters are positive vectors, in closed form on both sides of ∇A."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._errors import ArgumentError
from .._validation import Array, as_float_array, frozen
from .base import ExponentialFamily
from .coordinates import Expectation, Natural


class ConjugateFamily(ExponentialFamily):
    """A family whose ordinary parameters are the vectors `arguments`, of one length and positive.

    λ lies in the domain exactly when all of them are positive. A subclass says what they are as a function of λ
    and as a function of μ; λ, μ, A and the rest follow from them.
    """

    @staticmethod
    @abstractmethod
    def _from_parts(parts: Sequence[Array]) -> tuple[Array, ...]:
        """Return the ordinary parameters of λ, in the order of `arguments`."""

    @staticmethod
    @abstractmethod
    def _from_moments(expectation: Expectation) -> tuple[Array, ...]:
        """Return the ordinary parameters of μ; raises ValueError for impossible moments."""

    @classmethod
    def _make(cls, parameters: Sequence[Array]) -> Self:
        member = cls.__new__(cls)
        for name, value in zip(cls.arguments, parameters, strict=True):
            setattr(member, name, frozen(value))
        return member

    def with_natural(self, natural: Natural) -> Self:
        self._require(natural, Natural)
        parameters = self._inside(natural)
        if parameters is None:
            names = " and ".join(self.arguments)
            raise ValueError(f"natural parameter outside the domain: every {names} must be positive.")
        member = self._make(parameters)
        # keep λ as given: 1 is added and subtracted at the cost of a small parameter's last digits
        member.__dict__["natural"] = natural
        return member

    def with_expectation(self, expectation: Expectation) -> Self:
        self._require(expectation, Expectation)
        return self._make(self._from_moments(expectation))

    def contains(self, natural: Natural) -> bool:
        self._require(natural, Natural)
        return self._inside(natural) is not None

    @classmethod
    def _inside(cls, natural: Natural) -> tuple[Array, ...] | None:
        """Return the ordinary parameters of λ, or None when λ is outside the domain."""
        if not natural.is_finite():
            return None
        parameters = cls._from_parts(natural.parts)
        # adding 1 to a number next to −1 is exact, so the sign says on which side of the edge λ lies
        return parameters if all(bool((value > 0.0).all()) for value in parameters) else None

    @property
    def dim(self) -> int:
        """Number of variables d, or of coordinates K."""
        return self.natural.parts[0].size


def positive_vectors(*arguments: tuple[str, ArrayLike]) -> list[Array]:
    """Check named arguments to be positive vectors (or numbers, which are repeated) of one length."""
    arrays = [as_float_array(value, name, ndim=(0, 1)) for name, value in arguments]
    lengths = [array.size for array in arrays if array.ndim]
    dim = lengths[0] if lengths else 1
    for (name, _), array in zip(arguments, arrays, strict=True):
        if array.ndim and array.size != dim:
            raise ArgumentError(name, f"must have shape ({dim},) to match the others", array.shape)
        if not (array > 0).all():
            raise ArgumentError(name, "must be positive in every entry", f"{array.min():g}")
    return [frozen(np.array(np.broadcast_to(array, (dim,)))) for array in arrays]


def as_points(theta: ArrayLike, dim: int) -> Array:
    """Return θ as an array of shape (..., dim)."""
    points = np.asarray(theta, dtype=np.float64)
    if points.shape[-1:] != (dim,):
        raise ArgumentError("theta", f"must have last dimension {dim}", f"shape {points.shape}")
    return points


def outside_is_impossible(values: Array, inside: NDArray[np.bool_]) -> Array:
    """Put −inf where a coordinate of the point left the support."""
    return np.asarray(np.where(inside.all(axis=-1), values, -np.inf))
