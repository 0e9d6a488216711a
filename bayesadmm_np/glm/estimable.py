"""Functions of the coefficients that the rows determine: the one gate of every answer of a fit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr

from .._validation import Array
from .columns import Relation

CANCELLED = 1e-7
"""Size of a sum, relative to the sizes of its terms, below which the terms cancel.

Directions of separation are known to 1e-9, those of dependent columns to the condition of the others times 1e-11.
"""


def flat_directions(relations: Sequence[Relation], n_columns: int) -> Array:
    """Return a basis of the directions that move no row's predictor, shape (p, k), from the k relations."""
    basis = np.zeros((n_columns, len(relations)))
    for k, relation in enumerate(relations):
        basis[relation.column, k] = 1.0
        for j, value in relation.terms:
            basis[j, k] = -value
    return basis


def moved(change: Array, directions: Array) -> Array:
    """Return change @ directions, with exact zeros where terms cancel."""
    product = change @ directions
    size = np.abs(change) @ np.linalg.norm(directions, axis=1)
    return np.where((np.linalg.norm(product, axis=1) <= CANCELLED * size)[:, None], 0.0, product)


def estimable(L: Array, directions: Array) -> NDArray[np.bool_]:
    """Return for each row of L, shape (q, d), whether Lθ is the same along all directions, shape (d, k)."""
    return np.asarray(~moved(L, directions).any(axis=1))


def combinations(places: Sequence[int], directions: Array) -> Array:
    """Return independent combinations of some entries of θ that are the same along all directions, shape (m, d)."""
    inside = directions[list(places)]
    scale = _sizes(inside)
    left, sizes, _ = np.linalg.svd(inside / scale[:, None])
    own = left[:, int((sizes > CANCELLED).sum()) :].T / scale
    rows = np.zeros((len(own), len(directions)))
    rows[:, list(places)] = own
    return rows


def flat_within(kept: NDArray[np.bool_], directions: Array) -> NDArray[np.intp]:
    """Return which of the kept entries of θ the others make superfluous, of flat directions, shape (d, k)."""
    scaled = directions / _sizes(directions)[:, None]
    _, sizes, right = np.linalg.svd(scaled[~kept])
    inside = scaled @ right[int((sizes > CANCELLED).sum()) :].T  # directions that move kept entries alone
    if not inside.shape[1]:
        return np.zeros(0, dtype=np.intp)
    return np.asarray(qr(inside.T, mode="economic", pivoting=True)[2][: inside.shape[1]])


def _sizes(rows: Array) -> Array:
    """Return the length of each row, 1 of a row of zeros: whatever the units of the columns."""
    found = np.linalg.norm(rows, axis=1)
    return np.where(found > 0.0, found, 1.0)
