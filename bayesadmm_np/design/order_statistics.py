"""Order statistics of all sites' values, exact, from counts: how many values lie below some numbers, and at them.

A grid is rising numbers at which sites count: half of them decimals, because most columns hold decimals, so that ages
in years need one grid; half of them spread over the floats, so that any value is found after six to ten grids.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, log10

import numpy as np

from .._validation import Array

MOST_POINTS = 1 << 12
"""Numbers of a grid."""


@dataclass(frozen=True)
class Bracket:
    """Where the value of a rank lies: low ≤ value ≤ high."""

    rank: int
    low: float
    high: float

    @property
    def is_exact(self) -> bool:
        """Whether the value is known."""
        return self.low == self.high

    def narrowed(self, grid: Array, counts: Array) -> Bracket:
        """Return the bracket after the counts of all sites on a grid.

        Parameters
        ----------
        grid : ndarray, shape (m,)
            Rising.
        counts : ndarray, shape (2, m)
            Numbers of values below each of them, and at or below.
        """
        below, upto = counts
        after = int(np.searchsorted(upto, self.rank))  # the first at or below which enough values lie
        if after < len(grid) and below[after] < self.rank:
            return Bracket(self.rank, float(grid[after]), float(grid[after]))
        # strictly between two neighbours
        low = self.low if after == 0 else max(self.low, float_at(place_of(grid[after - 1]) + 1))
        high = self.high if after == len(grid) else min(self.high, float_at(place_of(grid[after]) - 1))
        if not low <= high:
            raise ValueError(f"counts must be those of values between {self.low:g} and {self.high:g}")
        return Bracket(self.rank, low, high)


def counts_on(rising: Array, grid: Array) -> Array:
    """Return how many values lie below each number of a grid, and at or below it, shape (2, m) of int64.

    Parameters
    ----------
    rising : ndarray, shape (n,)
        Values in rising order.
    grid : ndarray, shape (m,)
    """
    return np.stack([np.searchsorted(rising, grid, side=side) for side in ("left", "right")]).astype(np.int64)


def next_grid(brackets: list[Bracket]) -> Array:
    """Return the numbers to be asked for next, in rising order, at most `MOST_POINTS`; none where all is known."""
    places = {(one.low, one.high) for one in brackets if not one.is_exact}
    most = MOST_POINTS // max(len(places), 1)
    return np.unique([value for low, high in sorted(places) for value in _between(low, high, most)])


def _between(low: float, high: float, most: int) -> list[float]:
    """At most so many numbers from low to high: all floats, or the finest decimals and some floats."""
    first, last = place_of(low), place_of(high)
    if last - first < most:
        return [float_at(place) for place in range(first, last + 1)]
    half = most // 2
    found = [float_at(first + (last - first) * k // (half - 1)) for k in range(half)]
    if max(abs(low), abs(high)) < 1e290 and high - low > 1e-290:
        digits = floor(log10(half / (high - low)))
        step = 10.0**digits
        found += [float(f"{k}e{-digits}") for k in range(ceil(low * step), floor(high * step) + 1)][:half]
    return [value for value in found if low <= value <= high]


def float_at(place: int) -> float:
    """Return the float of a place: floats in rising order are numbered, with zero at 0."""
    found = float(np.array(abs(place), dtype=np.int64).view(np.float64))
    return -found if place < 0 else found


def place_of(value: float) -> int:
    """Inverse of `float_at`."""
    found = int(np.array(abs(value), dtype=np.float64).view(np.int64))
    return -found if value < 0 else found
