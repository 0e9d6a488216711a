"""Precision matrices of three structures with the same methods: blocks, dense and diagonal.

Nothing else factorises a precision, solves with it or inverts it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import combinations_with_replacement, pairwise
from typing import Any, Self

import numpy as np
from scipy.linalg import blas, lapack, solve_triangular

from .._numerics import EPS
from .._validation import Array, frozen
from .coordinates import pack, symmetric_from_lower, unpack

ROWS = 2048
"""Rows that are worked through at once: 20 columns of them stay in cache."""

WELL_CONDITIONED = 100.0
"""Condition of a factor up to which its inverse is multiplied by, in place of a solve: two digits at the worst."""


class NotPositiveDefiniteError(ValueError):
    """A precision that must be positive definite is not."""


class Precision:
    """A symmetric positive definite S of blocks; `parts` are its entries in the natural parameter."""

    dim: int
    parts: tuple[Array, ...]
    slices: tuple[slice, ...]
    _blocks: tuple[DensePrecision, ...] = ()

    def __init__(self, *blocks: Array) -> None:
        self._blocks = tuple(DensePrecision(block) for block in blocks)
        self.parts = tuple(block.matrix for block in self._blocks)
        edges = np.cumsum([0, *(block.dim for block in self._blocks)])
        self.slices = tuple(slice(int(a), int(b)) for a, b in pairwise(edges))
        self.dim = int(edges[-1])

    def like(self, parts: Sequence[Array]) -> Self:
        """Return the precision of the same structure with other entries."""
        return type(self)(*parts)

    def from_covariance(self, parts: Sequence[Array]) -> Self:
        """Return the precision of the same structure whose inverse has the entries `parts`."""
        return self.like(self.like(parts).covariance_parts)

    def is_positive_definite(self) -> bool:
        """Return whether a Cholesky factor exists, which is kept."""
        return all(block.is_positive_definite() for block in self._blocks)

    @property
    def logdet(self) -> float:
        """The log-determinant of S."""
        return sum(block.logdet for block in self._blocks)

    @property
    def covariance_parts(self) -> tuple[Array, ...]:
        """S⁻¹ in the structure's own shape."""
        return tuple(block.covariance_parts[0] for block in self._blocks)

    def multiply(self, vector: Array) -> Array:
        """Return S @ vector, for shape (d,) or (d, n)."""
        return self._map("multiply", vector)

    def solve(self, vector: Array) -> Array:
        """Return S⁻¹ @ vector, for shape (d,) or (d, n)."""
        return self._map("solve", vector)

    def half_solve(self, vector: Array) -> Array:
        """Return L⁻¹ @ vector, where S = LLᵀ, for shape (d,) or (d, n): it whitens a gradient-like vector."""
        return self._map("half_solve", vector)

    def colour(self, noise: Array) -> Array:
        """Return L⁻ᵀ @ noise for noise of shape (d,) or (d, n): covariance S⁻¹ from white noise."""
        return self._map("colour", noise)

    def whiten(self, parts: Sequence[Array]) -> Array:
        """Return L⁻¹ R L⁻ᵀ for a symmetric R of the same structure, as a vector of the same Frobenius length."""
        return np.concatenate(self._each("whiten", parts))

    def whiten_covariance(self, parts: Sequence[Array]) -> Array:
        """Return Lᵀ C L for a symmetric C of the same structure, as a vector of the same Frobenius length."""
        return np.concatenate(self._each("whiten_covariance", parts))

    def sandwich(self, parts: Sequence[Array]) -> tuple[Array, ...]:
        """Return S⁻¹ R S⁻¹ for a symmetric R of the same structure."""
        return tuple(found for (found,) in self._each("sandwich", parts))

    def unwhiten(self, whitened: Array, low: float) -> tuple[Array, ...]:
        """Return the R of a whitened vector, or the one nearest to it in Frobenius length with R ⪰ low S."""
        return tuple(block.unwhiten(piece, low)[0] for block, (piece,) in self._pieces(whitened))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes of the blocks: d ones of a diagonal matrix."""
        return tuple(block.dim for block in self._blocks)

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        """(j, k), j ≤ k, of every entry of a whitened vector."""
        starts = np.cumsum((0, *self.sizes)).tolist()
        pairs = zip(starts, self.sizes, strict=False)
        return tuple(pair for at, size in pairs for pair in combinations_with_replacement(range(at, at + size), 2))

    def map_whitened(self, whitened: Array, function: Callable[[Array], Array]) -> Array:
        """Return f(R) for a whitened R: the function of its eigenvalues."""
        return np.concatenate([block.map_whitened(piece, function) for block, (piece,) in self._pieces(whitened)])

    def symmetrised(self, whitened: Array, other: Array) -> Array:
        """Return ½(RQ + QR) for whitened R and Q."""
        return np.concatenate([block.symmetrised(*both) for block, both in self._pieces(whitened, other)])

    def solve_symmetrised(self, whitened: Array, right: Array) -> Array:
        """Return the E with E + ½(RE + ER) = `right`, for a whitened R ⪰ 0 and a whitened right side."""
        return np.concatenate([block.solve_symmetrised(*both) for block, both in self._pieces(whitened, right)])

    def relative(self, parts: Sequence[Array]) -> tuple[Array, ...]:
        """Return L⁻¹ R L⁻ᵀ for a symmetric R of the same structure, in its shape."""
        return tuple(found for (found,) in self._each("relative", parts))

    def stretch_to(self, other: Self) -> tuple[Array, ...]:
        """Return the upper triangular T with L'⁻ᵀ = L⁻ᵀT, where S' = L'L'ᵀ is the other one."""
        return tuple(own.stretch_to(its)[0] for own, its in zip(self._blocks, other._blocks, strict=True))

    def stretched(self, stretch: Sequence[Array]) -> Self:
        """Return the precision with the root L⁻ᵀT of its inverse: `stretch_to` turned round."""
        return self.like([found.matrix for found in self._each("stretched", stretch)])

    def trace_solve(self, parts: Sequence[Array]) -> float:
        """Return tr(S⁻¹ R) for a symmetric R of the same structure."""
        return sum(self._each("trace_solve", parts))

    def row_variances(self, X: Array) -> Array:
        """Return the diagonal of X S⁻¹ Xᵀ for X of shape (n, d): n d² flops."""
        pieces = zip(self._blocks, self.slices, strict=True)
        return np.asarray(sum(block.row_variances(X[:, columns]) for block, columns in pieces))

    def covariance_block(self, rows: slice, columns: slice) -> Array | None:
        """Return S⁻¹[rows, columns]: a matrix, a vector (its diagonal, when it is diagonal), or None (zero)."""
        result: Array | None = None
        for block, own in zip(self._blocks, self.slices, strict=True):
            r, c = _overlap(rows, own), _overlap(columns, own)
            if r is None or c is None:
                continue
            if result is None:
                result = np.zeros((rows.stop - rows.start, columns.stop - columns.start))
            inside = block.covariance_parts[0][_shift(r, own), _shift(c, own)]
            result[_shift(r, rows), _shift(c, columns)] = inside
        return result

    def outer(self, vector: Array) -> tuple[Array, ...]:
        """Return vector vectorᵀ restricted to the structure."""
        return tuple(np.outer(vector[rows], vector[rows]) for rows in self.slices)

    def gram(self, X: Array, weights: Array) -> tuple[Array, ...]:
        """Return Xᵀ diag(weights) X restricted to the structure; X has shape (n, d)."""
        pieces = zip(self._blocks, self.slices, strict=True)
        return tuple(block.gram(X[:, columns], weights)[0] for block, columns in pieces)

    def class_gram(self, X: Array, weights: Array) -> tuple[Array, ...]:
        """Return Σ_i W_i ⊗ x_i x_iᵀ restricted to the structure; X is (n, p), W is (n, C, C), d = C p."""
        p = X.shape[1]
        grams = []
        for own in self.slices:
            gram = np.zeros((own.stop - own.start,) * 2)
            touched = range(own.start // p, (own.stop - 1) // p + 1)
            for a in touched:
                for b in touched:
                    r, c = _overlap(slice(a * p, (a + 1) * p), own), _overlap(slice(b * p, (b + 1) * p), own)
                    assert r is not None
                    assert c is not None
                    left, right = X[:, _shift(r, slice(a * p, None))], X[:, _shift(c, slice(b * p, None))]
                    gram[_shift(r, own), _shift(c, own)] = left.T @ (weights[:, a, b, None] * right)
            grams.append(_symmetric(gram))
        return tuple(grams)

    def repeated_block(self, block: Array, copies: int) -> tuple[Array, ...]:
        """Return I ⊗ block, with d = copies · p, restricted to the structure."""
        p, result = block.shape[0], []
        for own in self.slices:
            part = np.zeros((own.stop - own.start,) * 2)
            for a in range(own.start // p, (own.stop - 1) // p + 1):
                copy = slice(a * p, (a + 1) * p)
                inside = _overlap(copy, own)
                assert inside is not None
                part[(_shift(inside, own),) * 2] = block[(_shift(inside, copy),) * 2]
            result.append(part)
        return tuple(result)

    def class_covariances(self, X: Array, n_classes: int) -> Array:
        """Covariances of the C predictors of each row, (n, C, C), when θ stacks C vectors of length p.

        Works on the p × p blocks of S⁻¹: C(C+1)/2 products of n p² flops instead of n C solves with S.
        """
        n, p = X.shape
        result = np.zeros((n, n_classes, n_classes))
        squares: Array | None = None
        for a in range(n_classes):
            for b in range(a, n_classes):
                block = self.covariance_block(slice(a * p, (a + 1) * p), slice(b * p, (b + 1) * p))
                if block is None:
                    continue
                if block.ndim == 1:
                    squares = X * X if squares is None else squares
                    values = squares @ block
                else:
                    values = np.einsum("ij,ij->i", X @ block, X)
                result[:, a, b] = values
                result[:, b, a] = values
        return result

    def _map(self, name: str, vector: Array) -> Array:
        pieces = zip(self._blocks, self.slices, strict=True)
        return np.concatenate([getattr(block, name)(vector[rows]) for block, rows in pieces])

    def _each(self, name: str, parts: Sequence[Array]) -> list[Any]:
        return [getattr(block, name)((part,)) for block, part in zip(self._blocks, parts, strict=True)]

    def _pieces(self, *whitened: Array) -> Iterator[tuple[DensePrecision, tuple[Array, ...]]]:
        ends = np.cumsum([block.dim * (block.dim + 1) // 2 for block in self._blocks])[:-1]
        return zip(self._blocks, zip(*(np.split(vector, ends) for vector in whitened), strict=True), strict=True)


class DensePrecision(Precision):
    """A full symmetric matrix."""

    def __init__(self, matrix: Array) -> None:
        self.parts = (_read_only(matrix),)
        self.dim = matrix.shape[0]
        self.slices = (slice(0, self.dim),)

    @classmethod
    def from_root(cls, root: Array) -> Self:
        """Return BᵀB, whose factor is the R of a QR of B, shape (n, d): at the condition of B, not its square."""
        triangle = np.asarray(np.linalg.qr(root, mode="r"))
        made = cls(_symmetric(triangle.T @ triangle))
        factor = np.asfortranarray((np.copysign(1.0, np.diagonal(triangle))[:, None] * triangle).T)
        is_whole = factor.shape == made.matrix.shape and np.diagonal(factor).all() and np.isfinite(made.matrix).all()
        made.__dict__["_factor"] = factor if is_whole else None
        return made

    @property
    def matrix(self) -> Array:
        """S itself."""
        return self.parts[0]

    @cached_property
    def _factor(self) -> Array | None:
        # LAPACK directly: scipy.linalg.cholesky costs three times as much at d = 3, the size of a textbook example;
        # transposed, because S is symmetric and its transpose is in Fortran's order already
        if not np.isfinite(self.matrix).all():
            return None
        factor, info = lapack.dpotrf(self.matrix.T, lower=1, clean=1)
        return factor if info == 0 else None

    @property
    def cholesky(self) -> Array:
        """The lower Cholesky factor L of S = LLᵀ."""
        if self._factor is None:
            raise NotPositiveDefiniteError(
                "the precision matrix is not positive definite: a flat prior, or anything else with such a precision, "
                "has no covariance, density, entropy or sample."
            )
        return self._factor

    def is_positive_definite(self) -> bool:
        return self._factor is not None

    def is_semidefinite(self) -> bool:
        """Return whether no eigenvalue is negative beyond rounding, in units in which the diagonal is one."""
        diagonal = np.diagonal(self.matrix)
        kept = diagonal > 0
        if not np.isfinite(self.matrix).all() or (diagonal < 0).any() or self.matrix[~kept].any():
            return False
        roots = np.sqrt(diagonal[kept])
        scaled = self.matrix[np.ix_(kept, kept)] / roots / roots[:, None]
        rounding = 2.0 * self.dim**2 * EPS  # of an eigenvalue of a matrix with a unit diagonal, whose norm is at most d
        return not kept.any() or bool(np.linalg.eigvalsh(scaled).min() >= -rounding)

    @cached_property
    def logdet(self) -> float:
        return 2.0 * float(np.log(np.diagonal(self.cholesky)).sum())

    @cached_property
    def _covariance(self) -> Array:
        inverse, _ = lapack.dpotri(self.cholesky, lower=1)
        return frozen(symmetric_from_lower(inverse))

    @property
    def covariance_parts(self) -> tuple[Array, ...]:
        return (self._covariance,)

    def multiply(self, vector: Array) -> Array:
        if vector.ndim == 1:  # in SciPy's BLAS like the factorisations: two pools of threads wait for each other
            return np.asarray(blas.dsymv(1.0, self.matrix.T, vector, lower=1))
        return np.asarray(self.matrix @ vector)

    def solve(self, vector: Array) -> Array:
        solution, _ = lapack.dpotrs(self.cholesky, vector, lower=1)
        return np.asarray(solution).reshape(vector.shape)

    def half_solve(self, vector: Array) -> Array:
        return self._substitute(vector, transposed=0)

    def colour(self, noise: Array) -> Array:
        return self._substitute(noise, transposed=1)

    def _substitute(self, right: Array, transposed: int) -> Array:
        solution = blas.dtrsm(1.0, self.cholesky, right.reshape(self.dim, -1), lower=1, trans_a=transposed)
        return np.asarray(solution.reshape(right.shape))

    def whiten(self, parts: Sequence[Array]) -> Array:
        return self._reduce(parts[0], itype=1)

    def whiten_covariance(self, parts: Sequence[Array]) -> Array:
        return self._reduce(parts[0], itype=2)

    def _reduce(self, matrix: Array, itype: int) -> Array:
        """Reduce a symmetric pencil in d³ flops, half of two triangular solves; pack one triangle."""
        whitened, _ = lapack.dsygst(matrix.T, self.cholesky, itype=itype, lower=1)
        return _packed(whitened.T)

    def sandwich(self, parts: Sequence[Array]) -> tuple[Array, ...]:
        return (_symmetric(self.solve(self.solve(parts[0]).T)),)

    def unwhiten(self, whitened: Array, low: float) -> tuple[Array, ...]:
        values, vectors = np.linalg.eigh(_unpacked(whitened, self.dim))
        half = self.cholesky @ vectors
        return (_symmetric((half * np.maximum(values, low)) @ half.T),)

    @property
    def sizes(self) -> tuple[int, ...]:
        return (self.dim,)

    def map_whitened(self, whitened: Array, function: Callable[[Array], Array]) -> Array:
        values, vectors = np.linalg.eigh(_unpacked(whitened, self.dim))
        return _packed((vectors * function(values)) @ vectors.T)

    def symmetrised(self, whitened: Array, other: Array) -> Array:
        product = _unpacked(whitened, self.dim) @ _unpacked(other, self.dim)
        return _packed(_symmetric(product))

    def solve_symmetrised(self, whitened: Array, right: Array) -> Array:
        values, vectors = np.linalg.eigh(_unpacked(whitened, self.dim))
        turned = vectors.T @ _unpacked(right, self.dim) @ vectors
        weights = 1.0 + 0.5 * np.maximum(values[:, None] + values, 0.0)
        return _packed(vectors @ (turned / weights) @ vectors.T)

    def relative(self, parts: Sequence[Array]) -> tuple[Array, ...]:
        return (_symmetric(self.half_solve(self.half_solve(parts[0]).T)),)

    def stretch_to(self, other: Self) -> tuple[Array, ...]:
        return (np.triu(other.half_solve(self.cholesky).T),)

    def stretched(self, stretch: Sequence[Array]) -> Self:
        return self.from_root(solve_triangular(stretch[0], self.cholesky.T))

    def trace_solve(self, parts: Sequence[Array]) -> float:
        return float(np.einsum("ij,ij->", self._covariance, parts[0]))

    def row_variances(self, X: Array) -> Array:
        """Solve for few rows; for many, multiply blocks of them by L⁻¹ where ‖|L⁻¹||L|‖ <= `WELL_CONDITIONED`."""
        if len(X) <= ROWS:
            half = self.half_solve(X.T)
            return np.asarray(np.einsum("ij,ij->j", half, half))
        inverse, _ = lapack.dtrtri(self.cholesky, lower=1)
        condition = float((np.abs(inverse) @ np.abs(self.cholesky)).sum(axis=1).max())
        variances = np.empty(len(X))
        for i in range(0, len(X), ROWS):
            block = X[i : i + ROWS].T
            half = np.asarray(inverse @ block) if condition <= WELL_CONDITIONED else self.half_solve(block)
            half *= half
            np.add.reduce(half, axis=0, out=variances[i : i + ROWS])
        return variances

    def covariance_block(self, rows: slice, columns: slice) -> Array | None:
        return self._covariance[rows, columns]

    def gram(self, X: Array, weights: Array) -> tuple[Array, ...]:
        """Add blocks of rows; products of X times roots of weights where no weight is negative."""
        if len(X) <= ROWS:
            return (_symmetric(X.T @ (weights[:, None] * X)),)
        has_roots = bool((weights >= 0).all())
        scale, total = np.sqrt(weights) if has_roots else weights, np.zeros((self.dim, self.dim))
        for i in range(0, len(X), ROWS):
            block = X[i : i + ROWS]
            scaled = scale[i : i + ROWS, None] * block
            total += (scaled if has_roots else block).T @ scaled
        return (_symmetric(total),)

    def class_gram(self, X: Array, weights: Array) -> tuple[Array, ...]:
        p, n_classes = X.shape[1], weights.shape[1]
        gram = np.empty((n_classes * p, n_classes * p))
        for a in range(n_classes):
            for b in range(a, n_classes):
                block = _symmetric(X.T @ (weights[:, a, b, None] * X))
                gram[a * p : (a + 1) * p, b * p : (b + 1) * p] = block
                gram[b * p : (b + 1) * p, a * p : (a + 1) * p] = block
        return (gram,)


class DiagonalPrecision(Precision):
    """A diagonal matrix, kept as the vector of its entries."""

    def __init__(self, diagonal: Array) -> None:
        self.parts = (_read_only(diagonal),)
        self.dim = diagonal.shape[0]

    @property
    def diagonal(self) -> Array:
        """The entries of S."""
        return self.parts[0]

    def from_covariance(self, parts: Sequence[Array]) -> Self:
        if not (parts[0] > 0).all():
            raise NotPositiveDefiniteError("the variances are not all positive.")
        return type(self)(1.0 / parts[0])

    def is_positive_definite(self) -> bool:
        return bool(np.isfinite(self.diagonal).all() and (self.diagonal > 0).all())

    @cached_property
    def _root(self) -> Array:
        if not self.is_positive_definite():
            raise NotPositiveDefiniteError("the precisions are not all positive.")
        return np.sqrt(self.diagonal)

    @property
    def logdet(self) -> float:
        return 2.0 * float(np.log(self._root).sum())

    @cached_property
    def _variances(self) -> Array:
        return frozen(1.0 / self._root**2)

    @property
    def covariance_parts(self) -> tuple[Array, ...]:
        return (self._variances,)

    def multiply(self, vector: Array) -> Array:
        return (vector.T * self.diagonal).T

    def solve(self, vector: Array) -> Array:
        return (vector.T * self._variances).T

    def half_solve(self, vector: Array) -> Array:
        return (vector.T / self._root).T

    def colour(self, noise: Array) -> Array:
        return (noise.T / self._root).T

    def whiten(self, parts: Sequence[Array]) -> Array:
        return parts[0] * self._variances

    def whiten_covariance(self, parts: Sequence[Array]) -> Array:
        return parts[0] * self.diagonal

    def sandwich(self, parts: Sequence[Array]) -> tuple[Array, ...]:
        return (parts[0] * self._variances**2,)

    def unwhiten(self, whitened: Array, low: float) -> tuple[Array, ...]:
        return (self.diagonal * np.maximum(whitened, low),)

    @property
    def sizes(self) -> tuple[int, ...]:
        return (1,) * self.dim

    def map_whitened(self, whitened: Array, function: Callable[[Array], Array]) -> Array:
        return function(whitened)

    def symmetrised(self, whitened: Array, other: Array) -> Array:
        return whitened * other

    def solve_symmetrised(self, whitened: Array, right: Array) -> Array:
        return right / (1.0 + np.maximum(whitened, 0.0))

    def relative(self, parts: Sequence[Array]) -> tuple[Array, ...]:
        return (self.whiten(parts),)

    def stretch_to(self, other: Self) -> tuple[Array, ...]:
        return (self._root / other._root,)

    def stretched(self, stretch: Sequence[Array]) -> Self:
        return self.like((self.diagonal / stretch[0] ** 2,))

    def trace_solve(self, parts: Sequence[Array]) -> float:
        return float(parts[0] @ self._variances)

    def row_variances(self, X: Array) -> Array:
        return np.asarray((X * X) @ self._variances)

    def covariance_block(self, rows: slice, columns: slice) -> Array | None:
        return self._variances[rows] if rows == columns else None

    def outer(self, vector: Array) -> tuple[Array, ...]:
        return (vector * vector,)

    def gram(self, X: Array, weights: Array) -> tuple[Array, ...]:
        return (np.asarray(weights @ (X * X)),)

    def class_gram(self, X: Array, weights: Array) -> tuple[Array, ...]:
        diagonal = np.einsum("icc->ic", weights)
        return (np.asarray(diagonal.T @ (X * X)).ravel(),)

    def repeated_block(self, block: Array, copies: int) -> tuple[Array, ...]:
        return (np.tile(np.diagonal(block), copies),)


class BlockPrecision(Precision):
    """A block-diagonal matrix; each block is a dense precision of its own."""


def _read_only(array: Array) -> Array:
    """The array where nobody writes to it, else a read-only view."""
    return frozen(array.view()) if array.flags.writeable else array


def _symmetric(matrix: Array) -> Array:
    return 0.5 * (matrix + matrix.T)


def _packed(matrix: Array) -> Array:
    """One triangle of a symmetric matrix, with the off-diagonal entries times √2."""
    packed = pack(matrix)
    packed[_diagonal_of(matrix.shape[0])] *= np.sqrt(0.5)
    packed *= np.sqrt(2.0)
    return packed


@lru_cache(maxsize=16)
def _diagonal_of(dim: int) -> Array:
    """Places of the diagonal in a packed triangle."""
    rows = np.arange(dim)
    return rows * dim - rows * (rows - 1) // 2


def _unpacked(whitened: Array, dim: int) -> Array:
    """The matrix of which `whitened` is the triangle."""
    matrix = np.sqrt(0.5) * unpack(whitened, dim)
    np.fill_diagonal(matrix, np.sqrt(2.0) * np.diagonal(matrix))
    return matrix


def _overlap(a: slice, b: slice) -> slice | None:
    start, stop = max(a.start, b.start), min(a.stop, b.stop)
    return slice(start, stop) if start < stop else None


def _shift(inner: slice, outer: slice) -> slice:
    return slice(inner.start - outer.start, inner.stop - outer.start)
