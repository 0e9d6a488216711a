"""The two coordinate systems of an exponential family, as types that cannot be confused.

Duals and natural gradients are in the space of λ, moments in that of μ = ∇A(λ). Adding one to the other is a
TypeError; only `pairing` evaluates ⟨λ, μ⟩. Gaussians use the information form, T(θ) = (θ, −½θθᵀ): λ = (Sm, S), a site
exp(vᵀθ − ½θᵀVθ) is (v, V), and μ = (m, −½(mmᵀ + S⁻¹)).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Self

import numpy as np
from scipy.linalg import lapack

from .._errors import ArgumentError
from .._validation import Array, frozen


class Coordinates:
    """An immutable vector of parts in the order of T(θ); two-dimensional parts are symmetric matrices."""

    __slots__ = ("parts", "shapes")
    __array_ufunc__ = None  # np.float64(2) * λ asks λ, and array * λ is an error instead of an object array
    parts: tuple[Array, ...]
    shapes: tuple[tuple[int, ...], ...]

    def __init__(self, *parts: Array) -> None:
        self.parts = tuple([_shielded(part) for part in parts])
        self.shapes = tuple([part.shape for part in self.parts])

    @classmethod
    def _own(cls, parts: Iterable[Array]) -> Self:
        """Wrap arrays without a copy; nothing else may write to them."""
        new = cls.__new__(cls)
        new.parts = tuple([frozen(part) for part in parts])
        new.shapes = tuple([part.shape for part in new.parts])
        return new

    def _matching(self, other: Coordinates) -> tuple[Array, ...]:
        if type(other) is not type(self):
            raise TypeError(
                f"cannot add {type(other).__name__} to {type(self).__name__}: natural and expectation "
                "parameters live in dual spaces and meet only in pairing(natural, expectation)."
            )
        if self.shapes != other.shapes:
            raise TypeError(f"parameters of different families: {self.shapes} and {other.shapes}.")
        return other.parts

    @property
    def size(self) -> int:
        """Number of free parameters: a symmetric d × d part counts d(d+1)/2."""
        return sum([_packed_size(part) for part in self.parts])

    def __add__(self, other: Self) -> Self:
        return self._own([a + b for a, b in zip(self.parts, self._matching(other), strict=True)])

    def __sub__(self, other: Self) -> Self:
        return self._own([a - b for a, b in zip(self.parts, self._matching(other), strict=True)])

    def __mul__(self, scalar: float) -> Self:
        if not np.isscalar(scalar):
            return NotImplemented
        factor = float(scalar)  # type: ignore[arg-type]
        return self._own([factor * part for part in self.parts])

    __rmul__ = __mul__

    def __truediv__(self, scalar: float) -> Self:
        return self * (1.0 / scalar)

    def __neg__(self) -> Self:
        return self * -1.0

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        assert isinstance(other, Coordinates)
        return self.shapes == other.shapes and all(
            np.array_equal(a, b) for a, b in zip(self.parts, other.parts, strict=True)
        )

    __hash__ = None  # type: ignore[assignment]

    def combine(self, weights: Sequence[float], others: Sequence[Self]) -> Self:
        """Return Σ_i weights[i] others[i] (zero of this space for none), with two temporaries whatever their number."""
        total = [np.zeros_like(part) for part in self.parts]
        scratch = [np.empty_like(part) for part in self.parts]
        for weight, other in zip(weights, others, strict=True):
            for sum_, term, part in zip(total, scratch, self._matching(other), strict=True):
                sum_ += part if weight == 1.0 else np.multiply(part, weight, out=term)
        return self._own(total)

    def zeros(self) -> Self:
        """Return the zero vector of the same space."""
        return self._own(np.zeros_like(part) for part in self.parts)

    def is_finite(self) -> bool:
        """Return whether every entry is finite."""
        return all(bool(np.isfinite(part).all()) for part in self.parts)

    def to_vector(self) -> Array:
        """Pack the parts into one vector; symmetric matrices keep their upper triangle."""
        return np.concatenate([part if part.ndim == 1 else pack(part) for part in self.parts])

    def from_vector(self, vector: Array) -> Self:
        """Unpack a vector made by `to_vector` of a parameter of the same shapes."""
        if vector.shape != (self.size,):
            raise ArgumentError("vector", f"must have shape ({self.size},)", vector.shape)
        parts, start = [], 0
        for part in self.parts:
            stop = start + _packed_size(part)
            values = vector[start:stop]
            parts.append(values.copy() if part.ndim == 1 else unpack(values, part.shape[0]))
            start = stop
        return self._own(parts)

    def __repr__(self) -> str:
        body = ", ".join(np.array2string(part, precision=4, threshold=12) for part in self.parts)
        return f"{type(self).__name__}({body})"


class Natural(Coordinates):
    """A natural parameter λ, a site η or a natural gradient ∇_μ E_q[ℓ]; of Gaussians (Sm, S).

    Parameters
    ----------
    *parts : ndarray
        The components, copied; two-dimensional ones must be symmetric.

    Examples
    --------
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> q = ba.families.FullGaussian(mean=np.array([1.0, 2.0]), precision=2.0)
    >>> q.natural.linear
    array([2., 4.])
    >>> (q.natural - 0.5 * q.natural).precision
    array([[1., 0.],
           [0., 1.]])
    """

    __slots__ = ()

    @property
    def linear(self) -> Array:
        """The coefficient of θ."""
        return self.parts[0]

    @property
    def precision(self) -> Array | tuple[Array, ...]:
        """The coefficient of −½θθᵀ; a tuple of blocks for block-diagonal families."""
        if len(self.parts) == 1:
            raise AttributeError("this family keeps its precision fixed: its parameter is linear only.")
        return self.parts[1] if len(self.parts) == 2 else self.parts[1:]


class Expectation(Coordinates):
    """An expectation parameter μ = E_q[T(θ)] = ∇A(λ); of Gaussians (m, −½(mmᵀ + S⁻¹)) in the family's structure.

    Parameters
    ----------
    *parts : ndarray
        The components, copied; two-dimensional ones must be symmetric.

    Examples
    --------
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> q = ba.families.DiagonalGaussian(mean=np.array([1.0, 2.0]), precision=2.0)
    >>> q.expectation.second_moment
    array([1.5, 4.5])
    """

    __slots__ = ()

    @property
    def mean(self) -> Array:
        """The first part: E[θ] for Gaussians."""
        return self.parts[0]

    @property
    def second_moment(self) -> Array | tuple[Array, ...]:
        """The papers' second statistic, E[θθᵀ] = mmᵀ + S⁻¹; a tuple of blocks where the family has blocks."""
        if len(self.parts) == 1:
            raise AttributeError("this family keeps its precision fixed: its statistic is θ only.")
        moments = tuple(-2.0 * part for part in self.parts[1:])
        return moments[0] if len(moments) == 1 else moments


class Displacement(Coordinates):
    """A small change of a distribution, comparable between neighbours: (Δm, ΔΣ) of a Gaussian.

    Changes of λ are not comparable: (Sm, S) of a narrow and of a wide Gaussian differ in size.
    """

    __slots__ = ()


def pairing(natural: Natural, expectation: Expectation) -> float:
    """Evaluate ⟨λ, μ⟩, for a site η the expected log-factor E_q[⟨η, T(θ)⟩].

    Parameters
    ----------
    natural : Natural
    expectation : Expectation
        μ of a member of the same family.

    Raises
    ------
    TypeError
        When the arguments are of other types, are swapped, or have different shapes.

    Examples
    --------
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> q = ba.families.FullGaussian(mean=np.array([1.0]), precision=2.0)
    >>> ba.families.pairing(q.natural, q.expectation)  # 2·1 + 2·(−½)(1 + ½)
    0.5
    """
    if type(natural) is not Natural or type(expectation) is not Expectation:
        raise TypeError(
            f"pairing needs (Natural, Expectation), got ({type(natural).__name__}, {type(expectation).__name__})."
        )
    if natural.shapes != expectation.shapes:
        raise TypeError(f"parameters of different families: {natural.shapes} and {expectation.shapes}.")
    pairs = zip(natural.parts, expectation.parts, strict=True)
    return float(sum(np.einsum("i,i->", a.ravel(), b.ravel()) for a, b in pairs))


def _shielded(part: Array) -> Array:
    """A read-only float64 array that later writes to `part` do not reach."""
    array = np.asarray(part, dtype=np.float64)
    return frozen(array.copy()) if array.flags.writeable else array


def _packed_size(part: Array) -> int:
    return part.size if part.ndim == 1 else part.shape[0] * (part.shape[0] + 1) // 2


def pack(matrix: Array) -> Array:
    """Return the upper triangle of a square matrix, row after row."""
    # the transpose, because it is in Fortran's order already
    packed, _ = lapack.dtrttp(matrix.T, uplo="L")
    return np.asarray(packed)


def unpack(packed: Array, dim: int) -> Array:
    """Return the symmetric matrix of a packed upper triangle."""
    lower, _ = lapack.dtpttr(dim, packed, uplo="L")
    return symmetric_from_lower(lower)


def symmetric_from_lower(matrix: Array) -> Array:
    """Copy the lower triangle of a matrix in Fortran's order, as LAPACK leaves it, onto the upper one, in place."""
    for j in range(1, matrix.shape[0]):
        matrix[:j, j] = matrix[j, :j]
    return matrix.T
