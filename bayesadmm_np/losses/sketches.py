"""Sketches of a site's curvature: a correlation matrix R in V = D^{1/2} R D^{1/2}, D = diag E_q[∇²ℓ] exactly.

So V ⪰ 0 has the diagonal of the curvature whatever R is, and zero rows where the curvature is zero. D travels with the
site, and the ones on R's diagonal are not sent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._errors import ArgumentError
from .._registry import Registry
from .._validation import Array, as_count
from ..families.precision import DensePrecision
from .base import Curvature, KroneckerCurvature, RowCurvature

SWEEPS = 6
"""Alternating least-squares steps of the nearest Kronecker product; the first one is within some percent of it."""

MOST_DECOMPOSED = 200
"""Largest number of parameters for a full decomposition; above, Lanczos steps find the largest eigenvalues."""

ROUNDING = 1e-8
"""Excess of a correlation, or of a variance, over one that is taken for rounding."""


class Sketch(ABC):
    """A structure of R; a frozen dataclass of plain values.

    Examples
    --------
    V of a site with the curvature [[1, 1], [1, 4]], without its diagonal:

    >>> import numpy as np
    >>> Full().coupling(np.array([0.5]), diagonal=np.array([1.0, 4.0]))
    array([[0., 1.],
           [1., 0.]])
    """

    @abstractmethod
    def check(self, dim: int, n_outputs: int) -> None:
        """Raise a ValueError where a loss of so many parameters, and predictors a row, has no such structure."""

    @abstractmethod
    def size(self, dim: int) -> int:
        """Return how many numbers a sketch has."""

    @abstractmethod
    def of(self, curvature: Curvature, diagonal: Array) -> Array:
        """Return the sketch, shape (size,), of a curvature with this diagonal."""

    @abstractmethod
    def correlations(self, numbers: Array, dim: int) -> Array:
        """Return R, shape (d, d), of a sketch; its diagonal is ignored."""

    @abstractmethod
    def is_valid(self, numbers: Array, dim: int) -> bool:
        """Return whether R is a correlation matrix, up to rounding."""

    def coupling(self, numbers: Array, diagonal: Array) -> Array:
        """Return V without its diagonal, shape (d, d)."""
        dim = len(diagonal)
        if not numbers.any():
            return np.zeros((dim, dim))
        roots = np.sqrt(diagonal)
        matrix = self.correlations(numbers, dim)
        matrix *= np.outer(roots, roots)  # one product of both: symmetric to the last bit, as one triangle is sent
        np.fill_diagonal(matrix, 0.0)
        return matrix


SKETCHES: Registry[type[Sketch]] = Registry("sketch")
"""Every sketch by the name of its class."""


@SKETCHES.register
@dataclass(frozen=True)
class Full(Sketch):
    """The whole curvature: d(d − 1)/2 numbers beside the diagonal. For d up to some hundreds.

    Examples
    --------
    >>> Full().size(4)
    6
    """

    def check(self, dim: int, n_outputs: int) -> None:
        """Every loss has it."""

    def size(self, dim: int) -> int:
        return dim * (dim - 1) // 2

    def of(self, curvature: Curvature, diagonal: Array) -> Array:
        return _upper(_scaled(curvature.dense(), diagonal))

    def correlations(self, numbers: Array, dim: int) -> Array:
        return _symmetric(numbers, dim)

    def is_valid(self, numbers: Array, dim: int) -> bool:
        return _is_correlation(_symmetric(numbers, dim))


@SKETCHES.register
@dataclass(frozen=True)
class LowRank(Sketch):
    """R = UUᵀ and, on the diagonal, what is missing to one; U (d × r) holds the leading eigenvectors of R times roots.

    d r numbers. For logistic and Poisson regression with many parameters.

    Parameters
    ----------
    rank : int
        r, from 1 to d − 1.

    Raises
    ------
    ValueError
        When `rank` is no count; from `check` when it is d or more.

    Examples
    --------
    >>> LowRank(2).size(5)
    10
    """

    rank: int

    def __post_init__(self) -> None:
        as_count(self.rank, "rank")

    def check(self, dim: int, n_outputs: int) -> None:
        if self.rank >= dim:
            raise ArgumentError("rank", f"must be below {dim}, the number of parameters: take 'full'", self.rank)

    def size(self, dim: int) -> int:
        return dim * self.rank

    def of(self, curvature: Curvature, diagonal: Array) -> Array:
        """Return U; the rest of R is positive semidefinite, so that no row of U is longer than one."""
        dim = len(diagonal)
        if not diagonal.any():
            return np.zeros(self.size(dim))
        if dim <= MOST_DECOMPOSED:
            values, vectors = np.linalg.eigh(_scaled(curvature.dense(), diagonal))
            values, vectors = values[-self.rank :], vectors[:, -self.rank :]
        else:
            values, vectors = _leading(curvature, _inverse_roots(diagonal), self.rank)
        return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0))).ravel()

    def correlations(self, numbers: Array, dim: int) -> Array:
        rows = numbers.reshape(dim, self.rank)
        matrix = rows @ rows.T
        return 0.5 * (matrix + matrix.T)

    def is_valid(self, numbers: Array, dim: int) -> bool:
        return bool(((numbers.reshape(dim, self.rank) ** 2).sum(axis=1) <= 1.0 + ROUNDING).all())


@SKETCHES.register
@dataclass(frozen=True)
class Kronecker(Sketch):
    """R = R_C ⊗ R_p: correlations of the C outputs and of the p columns, of the nearest product A_C ⊗ A_p.

    C(C − 1)/2 + p(p − 1)/2 numbers, for softmax and for least squares with many outputs, where it is exact. R_p is
    close to a weighted Gram matrix of the columns.

    Parameters
    ----------
    n_outputs : int
        C, the predictors of a row, from 2.

    Raises
    ------
    ValueError
        When `n_outputs` is no count from 2; from `check` when the loss has another number.

    Examples
    --------
    >>> Kronecker(10).size(640)
    2061
    """

    n_outputs: int

    def __post_init__(self) -> None:
        as_count(self.n_outputs, "n_outputs", minimum=2)

    def check(self, dim: int, n_outputs: int) -> None:
        if n_outputs == 1:
            raise ArgumentError("sites", "must be 'full' or LowRank(r) for a loss with one predictor a row", repr(self))
        if n_outputs != self.n_outputs:
            raise ArgumentError("n_outputs", f"must be that of the loss, {n_outputs}", self.n_outputs)

    def size(self, dim: int) -> int:
        return sum(n * (n - 1) // 2 for n in (self.n_outputs, dim // self.n_outputs))

    def of(self, curvature: Curvature, diagonal: Array) -> Array:
        """Return both factors, by alternating least squares; each step keeps them positive semidefinite."""
        outputs, columns = self.n_outputs, len(diagonal) // self.n_outputs
        if isinstance(curvature, KroneckerCurvature):
            return np.concatenate([np.zeros(outputs * (outputs - 1) // 2), _correlations(curvature.gram)])
        if isinstance(curvature, RowCurvature):
            left_of, right_of = _of_rows(curvature)
        else:
            left_of, right_of = _of_dense(curvature.dense(), outputs)
        left, right = np.eye(outputs), np.zeros((columns, columns))
        for _ in range(SWEEPS if diagonal.any() else 0):
            right = right_of(left) / np.vdot(left, left)
            left = left_of(right) / np.vdot(right, right)
        return np.concatenate([_correlations(left), _correlations(right)])

    def correlations(self, numbers: Array, dim: int) -> Array:
        return np.asarray(np.kron(*self._factors(numbers, dim)))

    def is_valid(self, numbers: Array, dim: int) -> bool:
        return all(_is_correlation(factor) for factor in self._factors(numbers, dim))

    def _factors(self, numbers: Array, dim: int) -> tuple[Array, Array]:
        outputs = self.n_outputs
        first, second = np.split(numbers, [outputs * (outputs - 1) // 2])
        return _symmetric(first, outputs), _symmetric(second, dim // outputs)


Contraction = Callable[[Array], Array]


def _of_rows(curvature: RowCurvature) -> tuple[Contraction, Contraction]:
    """Return B -> Σ_i A_i (x_iᵀBx_i) and A -> Σ_i ⟨A_i, A⟩ x_ix_iᵀ of Σ_i A_i ⊗ x_ix_iᵀ."""
    X, weights = curvature.X, curvature.weights

    def left_of(right: Array) -> Array:
        return np.asarray(np.einsum("i,iab->ab", np.einsum("ij,ij->i", X @ right, X), weights))

    def right_of(left: Array) -> Array:
        return np.asarray(X.T @ (np.einsum("iab,ab->i", weights, left)[:, None] * X))

    return left_of, right_of


def _of_dense(matrix: Array, outputs: int) -> tuple[Contraction, Contraction]:
    blocks = matrix.reshape(outputs, len(matrix) // outputs, outputs, -1)
    return (
        lambda right: np.asarray(np.einsum("ajbk,jk->ab", blocks, right)),
        lambda left: np.asarray(np.einsum("ajbk,ab->jk", blocks, left)),
    )


def _correlations(matrix: Array) -> Array:
    return _upper(_scaled(matrix, np.diagonal(matrix)))


def _inverse_roots(diagonal: Array) -> Array:
    positive = diagonal > 0
    return np.where(positive, 1.0 / np.sqrt(np.where(positive, diagonal, 1.0)), 0.0)


def _scaled(matrix: Array, diagonal: Array) -> Array:
    """Return the correlations of a positive semidefinite matrix; zero where its diagonal is."""
    scale = _inverse_roots(diagonal)
    return matrix * np.outer(scale, scale)


def _leading(curvature: Curvature, scale: Array, rank: int) -> tuple[Array, Array]:
    from scipy.sparse.linalg import LinearOperator, eigsh  # here: few need it, and it takes long to load

    def product(vector: Array) -> Array:
        return scale * curvature.multiply(scale * np.ravel(vector))

    dim = len(scale)
    operator: Any = LinearOperator((dim, dim), matvec=product, dtype=np.float64)
    # a fixed start, so that the same rows always make the same sketch
    values, vectors = eigsh(operator, k=rank, v0=np.random.default_rng(0).standard_normal(dim))
    return values, vectors


def _upper(matrix: Array) -> Array:
    return np.asarray(matrix[np.triu_indices(len(matrix), 1)])


def _symmetric(upper: Array, dim: int) -> Array:
    matrix = np.zeros((dim, dim))
    matrix[np.triu_indices(dim, 1)] = upper
    matrix += matrix.T
    np.fill_diagonal(matrix, 1.0)
    return matrix


def _is_correlation(matrix: Array) -> bool:
    return bool((np.abs(matrix) <= 1.0 + ROUNDING).all()) and DensePrecision(matrix).is_semidefinite()
