"""Redundant columns, from the sites' R factors: zeros, constants, and columns that others add up to.

A site's R factor, RᵀR = Σ_i w_i x_i x_iᵀ, has the size of these sums and twice their digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from .._numerics import EPS
from .._validation import Array

ROUNDING = 1e-11
"""Part of a column outside the span of others, relative to its length, below which it lies in the span.

A column that was computed from others in double precision is off by 2e-16 of its entries. QR of n rows adds at most n
times that, in practice √n. A table with entries of ten digits or fewer is farther away when it is not exact.
"""


HOLD = 1.0 / EPS
"""Prior precision that holds a coefficient at zero, relative to the information that the rows seem to have on it."""

CHANGE = 1e3
"""Most that the information may change from the model without effects to a fit, for a held coefficient to be known."""


def are_held(precision: Array, information: Array) -> NDArray[np.bool_]:
    """Return which coefficients their prior precisions hold at zero, where a fit has some information on them."""
    return np.asarray(CHANGE / HOLD * precision > information)


def orthonormal_basis(factors: Sequence[Array]) -> Array:
    """Return B, shape (p, r), such that X B has orthonormal columns that span those of X."""
    stacked, scale = _unit_columns(factors)
    _, values, vectors = np.linalg.svd(stacked, full_matrices=False)
    real = values > ROUNDING * max(values.max(initial=0.0), 1.0)
    return np.asarray(vectors[real].T / values[real] / scale[:, None])


def _unit_columns(factors: Sequence[Array]) -> tuple[Array, Array]:
    """Return the factors on top of each other with columns of length 1, and the lengths; zeros stay, with length 1."""
    stacked = np.vstack(factors)
    top = np.abs(stacked).max(axis=0, initial=0.0)
    top = np.where(top > 0, top, 1.0)  # first, so that no square overflows
    lengths = np.linalg.norm(stacked / top, axis=0)
    lengths = np.where(lengths > 0, lengths, 1.0)
    return stacked / top / lengths, top * lengths


@dataclass(frozen=True)
class Relation:
    """A column that is a sum of earlier ones, x_column = Σ_j coefficient_j x_j, but for a part `rest` of its length."""

    column: int
    terms: tuple[tuple[int, float], ...]
    rest: float = 0.0


def find_relations(factors: Sequence[Array], within: float | None = None) -> tuple[Relation, ...]:
    """Return one relation for each column that lies in the span of the columns before it, from the sites' R factors.

    The columns without a relation are a basis, as R's `lm` keeps them. `within` is the largest part outside the span,
    relative to the column's length, of a column that lies in it; default rounding.
    """
    within = ROUNDING if within is None else within
    unit, lengths = _unit_columns(factors)
    is_zero = np.abs(unit).max(axis=0, initial=0.0) == 0.0
    directions = np.zeros((unit.shape[0], 0))
    triangle = np.zeros((0, 0))
    kept: list[int] = []
    relations = []
    for j in range(unit.shape[1]):
        inside = directions.T @ unit[:, j]
        rest = unit[:, j] - directions @ inside
        again = directions.T @ rest  # twice is enough
        inside, rest = inside + again, rest - directions @ again
        size = np.linalg.norm(rest)
        if size > within:
            triangle = np.block([[triangle, inside[:, None]], [np.zeros((1, len(kept))), np.array([[size]])]])
            directions = np.column_stack([directions, rest / size])
            kept.append(j)
            continue
        terms: tuple[tuple[int, float], ...] = ()
        if not is_zero[j]:
            solved = solve_triangular(triangle, inside) if kept else inside
            # the triangle's condition multiplies the rounding of a term that is zero
            noise = within * max(1.0, float(np.abs(solve_triangular(triangle, np.eye(len(kept)))).max()))
            terms = tuple(
                (i, float(a * lengths[j] / lengths[i])) for i, a in zip(kept, solved, strict=True) if abs(a) > noise
            )
        relations.append(Relation(j, terms, float(size)))
    return tuple(relations)
