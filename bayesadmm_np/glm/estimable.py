"""Functions of the coefficients that the rows determine: the one gate of every answer of a fit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

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
