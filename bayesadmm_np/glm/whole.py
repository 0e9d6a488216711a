"""The fit of a likelihood that is no sum over rows: Newton's method on sums over the sites."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._numerics import Trial, line_search, nested
from .._validation import Array
from .refit import Derivatives, rounding

MOST_EXCHANGES = 60
CLOSE = 1e-7
"""Squared length of a step in standard errors from which on the next point is the fit: the next step's is its square,
times some hundredths where rows are many, and sums for a certificate are asked there."""

AT_ONCE = 1e-12
"""Squared length of a first step from which on it is the fit: small weights make steps to infinity short, too."""

SLOW = 0.2
"""Share of the last decrement in the one before from which on steps do not shrink as they do near a maximum."""

SINGULAR = 1e-11
"""Smallest eigenvalue of the information, in units of each parameter's own, that is no rounding."""


class Whole(NamedTuple):
    """A fit: θ, its loss, points asked about, and whether steps shrank quadratically, as they do near a maximum.

    It is no maximum either where `MOST_EXCHANGES` did not suffice, or no step lowered the loss. `hessian` is the pooled
    one where the last step of a search began, `more` what REML adds to the loss, and `pulls`, shape (K, d), the sites'
    shares of its gradient; None of maximum likelihood.
    """

    theta: Array
    value: float
    exchanges: int
    is_maximum: bool
    hessian: Array | None = None
    more: float | None = None
    pulls: Array | None = None


def maximise(start: ArrayLike, free: ArrayLike) -> Generator[Array, Iterable[Derivatives], Whole]:
    """Minimise a pooled loss over the `free` parameters; the others stay where they start.

    Each `yield` is a θ for the sites; send back their `Derivatives`. Where the Hessian is not positive definite, the
    absolute values of its eigenvalues take their place. Near a maximum of the likelihood decrements shrink
    quadratically; on the way to infinity each is a constant share of the one before. Raises a ValueError when the sums
    overflow at the start.
    """
    mask, exchanges = np.asarray(free, dtype=bool), 0
    theta = np.array(start, dtype=np.float64)

    def at(point: Array) -> Generator[Array, Iterable[Derivatives], Trial]:
        nonlocal exchanges
        exchanges += 1
        answers = list((yield point))
        return Trial(sum(answer.value for answer in answers), point=(point, answers))

    def moved(begin: Array, step: Array, t: float) -> Generator[Array, Iterable[Derivatives], Trial]:
        return at(begin + t * step)

    here: Trial | None = yield from at(theta)
    if here is None or not np.isfinite(here.value):
        raise ValueError("the sums over the rows overflow where the fit begins.")
    before, last = np.inf, here.value
    while here is not None:
        theta, answers = here.point
        gradient = np.sum([answer.gradient for answer in answers], axis=0)
        hessian = np.sum([answer.hessian for answer in answers], axis=0)
        step = np.zeros(theta.size)
        if mask.any():
            step[mask] = -_solved(hessian[np.ix_(mask, mask)], gradient[mask])
        decrement = float(-gradient @ step)
        if decrement <= (CLOSE if exchanges > 1 else AT_ONCE):
            if decrement > SLOW * before:  # no step is known to lead to a number
                return Whole(theta, here.value, exchanges, is_maximum=False)
            return Whole(theta + step, here.value - 0.5 * decrement, exchanges, True, hessian)
        before = decrement
        search = line_search(
            here.value, -decrement, rounding(here.value, theta, np.abs(hessian)), MOST_EXCHANGES - exchanges
        )
        last = here.value
        here, _ = yield from nested(search, partial(moved, theta, step))
    return Whole(theta, last, exchanges, is_maximum=False)


def stepped(theta: Array, slope: Array, information: Array) -> Array:
    """Return θ after another step from sums that tell a slope which a certificate does not allow."""
    return theta - _solved(information, slope)


def _spectrum(hessian: Array) -> tuple[Array, Array, Array]:
    """Return units of the parameters, and eigenvalues and eigenvectors of H in these."""
    units = np.sqrt(np.abs(np.diagonal(hessian)))
    units = np.where(units > 0.0, units, 1.0)
    return units, *np.linalg.eigh(hessian / np.outer(units, units))


def _solved(hessian: Array, gradient: Array) -> Array:
    """Solve with |H|, in units of each parameter's own information."""
    units, values, vectors = _spectrum(hessian)
    sizes = np.maximum(np.abs(values), SINGULAR)
    return np.asarray(vectors @ (vectors.T @ (gradient / units) / sizes) / units)


def definite(hessian: Array) -> Array:
    """Return |H|, which is H at a maximum, and elsewhere a precision that can be kept."""
    units, values, vectors = _spectrum(hessian)
    if values[0] > SINGULAR:
        return hessian
    whole = (vectors * np.maximum(np.abs(values), SINGULAR)) @ vectors.T * np.outer(units, units)
    return np.asarray(0.5 * (whole + whole.T))


def undetermined(hessian: Array) -> NDArray[np.bool_]:
    """Return which parameters a combination moves on which the rows have no information, shape (d,)."""
    _, values, vectors = _spectrum(hessian)
    open_ways = vectors[:, values <= SINGULAR * max(values.max(initial=0.0), 1e-300)]
    return np.asarray((np.abs(open_ways) > 1e-4).any(axis=1))
