"""Functions of the coefficients that the rows determine: the one gate of every answer of a fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._validation import Array
from .columns import Relation

CANCELLED = 1e-7
"""Size of a sum, relative to the sizes of its terms, below which the terms cancel.

Directions of separation are known to 1e-9, those of dependent columns to the condition of the others times 1e-11.
"""

FAR = 1e4
"""Distance of predictors that replaces infinity: exp(−FAR) is zero, and sums with it keep twelve digits."""


def flat_directions(relations: Sequence[Relation], n_columns: int) -> Array:
    """Return a basis of the directions that move no row's predictor, shape (p, k), from the k relations."""
    basis = np.zeros((n_columns, len(relations)))
    for k, relation in enumerate(relations):
        basis[relation.column, k] = 1.0
        for j, value in relation.terms:
            basis[j, k] = -value
    return basis


def moved(change: Array, directions: Array, about: Array | float = 0.0) -> Array:
    """Return change @ directions, with exact zeros where terms cancel; `about` was taken from `change` before."""
    product = change @ directions
    if not product.size:
        return product
    size = (np.abs(change) + about) @ np.linalg.norm(directions, axis=1)
    return np.where((np.linalg.norm(product, axis=1) <= CANCELLED * size)[:, None], 0.0, product)


def orthonormal(directions: Array) -> tuple[Array, Array]:
    """Return units of the coefficients, shape (d,), and orthonormal directions that span the same in these units."""
    units = np.linalg.norm(directions, axis=1)
    is_moved, units = units > 0.0, np.where(units > 0.0, units, 1.0)
    return units, np.where(is_moved[:, None], np.linalg.qr(directions / units[:, None])[0], 0.0)


def estimable(L: Array, directions: Array, about: Array | float = 0.0) -> NDArray[np.bool_]:
    """Return for each row of L, shape (q, d), whether Lθ is the same along all directions, shape (d, k)."""
    units, basis = orthonormal(directions)
    return np.asarray(~moved(L * units, basis, about * units).any(axis=1))


def combinations(places: Sequence[int], directions: Array) -> Array:
    """Return independent combinations of some entries of θ that are the same along all directions, shape (m, d)."""
    units, basis = orthonormal(directions)
    left, sizes, _ = np.linalg.svd(basis[list(places)])
    rows = np.zeros((len(places) - int((sizes > CANCELLED).sum()), len(directions)))
    rows[:, list(places)] = left[:, len(places) - len(rows) :].T / units[list(places)]
    return rows


@dataclass(frozen=True, eq=False)
class Reach:
    """Effect of directions that the sites' rows leave open on predictors of other rows, those of `design` (n, p).

    `far`, shape (n,) or (n, C), takes predictors to their limit along the first receding direction: 0, or `FAR` of
    either sign. `leads`, shape (n, classes), marks the classes that are as large as any there. A row `is_blank`, and
    has no number, where a flat direction moves it, or more than one receding one may; it `is_tied` where not even the
    class that leads is known.
    """

    design: Array
    far: Array
    leads: NDArray[np.bool_]
    is_blank: NDArray[np.bool_]
    is_tied: NDArray[np.bool_]

    @classmethod
    def of(
        cls, design: Array, about: Array, flat: Array, receding: Array, has_reference: bool | None, is_known: bool
    ) -> Reach:
        """Return the reach of flat (p, j) and receding (C, p, k) directions; `about` is where columns were centred.

        `has_reference` is None for regressions. Unless `is_known`, no receding direction is better than another.
        """
        n_outputs, p, k = receding.shape
        is_flat = ~estimable(design, flat, np.abs(about))
        shape = (len(design), n_outputs)[: 1 + (n_outputs > 1)]
        if not k:
            return cls(design, np.zeros(shape), np.ones((len(design), 1), dtype=bool), is_flat, is_flat)
        units, basis = orthonormal(receding.reshape(-1, k))
        scaled = [design * own for own in units.reshape(n_outputs, p)]
        basis = basis.reshape(receding.shape)
        moves = np.stack([moved(rows, block) for rows, block in zip(scaled, basis, strict=True)], axis=1)
        first = np.column_stack([moved(design, block[:, :1]) for block in receding])
        is_single = k == 1 and is_known
        is_moved: Any
        if has_reference is None:
            is_moved = moves.reshape(len(design), -1).any(axis=1)
            is_tied = is_flat | is_moved
            far, leads = FAR * np.sign(first), first == 0.0
        else:  # the differences of the classes' predictors count
            pad = ((0, 0), (int(has_reference), 0))
            each, first = np.pad(moves, (*pad, (0, 0))), np.pad(first, pad)
            size = sum(np.abs(X) @ np.linalg.norm(block, axis=1) for X, block in zip(scaled, basis, strict=True))
            nothing = CANCELLED * size[:, None]
            along = CANCELLED * (np.abs(design) @ np.abs(receding[:, :, 0]).sum(axis=0))[:, None]
            leads = first >= first.max(axis=1, keepdims=True) - along
            far = np.where(leads, 0.0, -FAR)
            far = far[:, 1:] - far[:, :1] if has_reference else far
            is_moved = (np.ptp(each, axis=1) > nothing).any(axis=1)
            among = np.where(leads[:, :, None], each, np.nan)
            open_leads = (np.nanmax(among, axis=1) - np.nanmin(among, axis=1) > nothing).any(axis=1)
            is_tied = is_flat | (open_leads if is_known else is_moved)
        is_blank = is_flat if is_single else is_flat | is_moved
        return cls(design, far.reshape(shape), leads, is_blank, is_tied)
