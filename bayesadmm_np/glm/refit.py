"""The fit of a smaller model, for tests and profiles: an iteration that the caller drives, over sums of sites."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cho_factor, cho_solve

from .._numerics import EPS, Trial, driven, line_search, nested, rounding_unit
from .._validation import Array
from ..losses.base import Loss

Found = TypeVar("Found")


class DesignQuestion(NamedTuple):
    """Ask for sums about columns and target."""


class DerivativesQuestion(NamedTuple):
    """θ."""

    theta: Array


class Derivatives(NamedTuple):
    """ℓ, ∇ℓ and ∇²ℓ of a site at θ."""

    value: float
    gradient: Array
    hessian: Array

    def along(self, basis: Array) -> Derivatives:
        """Return the derivatives in z, where θ = basis @ z."""
        return Derivatives(self.value, basis.T @ self.gradient, basis.T @ self.hessian @ basis)


def derivatives(loss: Loss, theta: Array) -> Derivatives:
    """Return a site's answer to θ in `refit`."""
    return Derivatives(loss.value(theta), loss.gradient(theta), loss.hessian(theta))


class Refit(NamedTuple):
    """The fit of some coefficients with the others given; the derivatives are at the start of the last step."""

    theta: Array
    value: float
    exchanges: int
    gradient: Array | None = None
    hessian: Array | None = None


def refit(
    start: ArrayLike, free: ArrayLike, fixed: ArrayLike = 0.0, *, most_exchanges: int = 50
) -> Generator[Array, Iterable[Derivatives], Refit]:
    """Minimise the pooled loss over the `free` coefficients; the others are `fixed`, for a smaller model at zero.

    Each `yield` is a θ to be sent to the sites; send back their `Derivatives`. The first θ is `start`, whose quadratic
    is minimised among the smaller models; then Newton's method, with shorter steps where the loss would rise. Raises a
    ValueError when the exchanges are used up, or the free coefficients are not determined.
    """
    mask, exchanges = np.asarray(free, dtype=bool), 0
    theta = np.array(start, dtype=np.float64)
    goal = np.where(mask, 0.0, fixed)

    def at(point: Array) -> Generator[Array, Iterable[Derivatives], Trial]:
        nonlocal exchanges
        exchanges += 1
        answers = list((yield point))
        return Trial(sum(answer.value for answer in answers), point=(point, answers))

    def moved(begin: Array, step: Array, t: float) -> Generator[Array, Iterable[Derivatives], Trial]:
        return at(np.where(mask, begin + t * step, goal))

    here: Trial | None = yield from at(theta)
    value = np.inf if here is None else here.value
    if not np.isfinite(value):
        raise ValueError("the sums over the rows overflow where the fit begins.")
    if (theta != goal)[~mask].any():  # the next point is the first of the smaller model, whatever its loss
        value = np.inf
    while here is not None:
        theta, answers = here.point
        gradient = np.sum([answer.gradient for answer in answers], axis=0)
        hessian = np.sum([answer.hessian for answer in answers], axis=0)
        step = np.where(mask, 0.0, goal - theta)
        pull = (gradient + hessian @ step)[mask]
        if mask.any():
            step[mask] = -_solved(hessian[np.ix_(mask, mask)], pull)
        decrement = float(-pull @ step[mask])
        if value < np.inf and decrement <= 1e-12:  # the step ends so near that sums there would tell rounding alone
            end = np.where(mask, theta + step, goal)
            return Refit(end, value - 0.5 * decrement, exchanges, np.asarray(gradient), np.asarray(hessian))
        search = line_search(value, -decrement, rounding(value, theta, hessian), most_exchanges - exchanges)
        here, _ = yield from nested(search, partial(moved, theta, step))
        value = np.inf if here is None else here.value
    raise ValueError(f"the model without the term did not converge in {most_exchanges} exchanges.")


def rounding(value: float, theta: Array, hessian: Array) -> float:
    """Return the rounding of a pooled loss: of counts it is a difference of terms of the size θᵀHθ."""
    return rounding_unit() * abs(value) + EPS * float(theta @ hessian @ theta)


def _solved(matrix: Array, vector: Array) -> Array:
    try:
        return np.asarray(cho_solve(cho_factor(matrix), vector))
    except np.linalg.LinAlgError as error:
        raise ValueError("the rows do not determine the coefficients of the model without the term.") from error


def drive(fit: Generator[Array, Iterable[Derivatives], Found], losses: Sequence[Loss]) -> Found:
    """Answer a `refit`, or what drives one, from the losses of all sites, in one process."""
    return driven(fit, lambda theta: [derivatives(loss, theta) for loss in losses])


def without(dim: int, term: ArrayLike) -> NDArray[np.bool_]:
    """Return the mask of `refit` for the model without some coefficients."""
    mask = np.ones(dim, dtype=bool)
    mask[np.asarray(term, dtype=int)] = False
    return mask
