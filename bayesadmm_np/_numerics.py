"""Rounding, line searches and conjugate gradients, each written once.

A search is a generator that its caller drives: it yields a question and is sent the answer. `driven` answers in this
process; `nested` answers by a generator, which may ask others in turn, such as sites between two rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ._validation import Array

EPS = float(np.finfo(np.float64).eps)
ARMIJO = 1e-4  # least fall of a function, relative to that of its tangent
SHORTEST, LONGEST = 0.1, 0.5  # range of the next step, relative to a refused one
LENGTHEN = 4.0  # factor between the trials of a search that goes beyond the first step
MOST_TRIALS = 60  # most points of one line search

Asked = TypeVar("Asked")
Answers = TypeVar("Answers")
Found = TypeVar("Found")


def up_to_a_power_of_two(value: float) -> float:
    """Return the smallest power of two that is not below a number; zero, infinity and NaN stay as they are."""
    mantissa, exponent = np.frexp(value)
    is_exact = mantissa == 0.5 or not 0.0 < value < np.inf
    return float(value) if is_exact else float(np.ldexp(1.0, int(exponent)))


def driven(search: Generator[Asked, Answers, Found], ask: Callable[[Asked], Answers]) -> Found:
    """Return the result of a generator that yields questions, when `ask` answers them."""
    try:
        question = next(search)
        while True:
            question = search.send(ask(question))
    except StopIteration as end:
        return end.value


def nested(
    search: Generator[Asked, Answers, Found], ask: Callable[[Asked], Generator[Any, Any, Answers]]
) -> Generator[Any, Any, Found]:
    """Return the result of a generator that yields questions, when `ask` answers them by questions of its own."""
    try:
        question = next(search)
        while True:
            question = search.send((yield from ask(question)))
    except StopIteration as end:
        return end.value


def rounding_unit(*counts: int) -> float:
    """Relative rounding of a sum, ε(1000 + Σ counts), over `counts` rows, features or clients.

    A sum of N terms in any order has an error of at most εN Σ|terms| (Higham 2002, Eq. 4.4); integrals, exponentials
    and logarithms among the terms are good to 1000 ulp.

    Examples
    --------
    >>> rounding_unit(24) == 1024 * EPS
    True
    """
    return EPS * (sum(counts) + 1000)


def falls(before: float, after: float, promised: float, rounding: float = 0.0) -> bool:
    """Return whether f(x + tp) ≤ f(x) − c·promised to the `rounding` of both; NaN and ∞ are no fall.

    `promised` is −t ∇fᵀp ≥ 0 and c = `ARMIJO` (Nocedal and Wright 2006, Eq. 3.4).
    """
    return before - after >= ARMIJO * promised - rounding


def parabola_share(tangent: float, slope: float = np.nan, rise: float = np.nan) -> float:
    """Return the next step relative to a refused one, to the minimum of a parabola, in [1/10, 1/2].

    The parabola has the slope −`tangent` < 0 at 0 and, at 1, the `slope`, or a value above that at 0 by `rise`
    (Nocedal and Wright 2006, Eq. 3.57). Slopes decide where they are known, because rounding hides less of them. The
    share is 1/10 where neither is finite, and 1/2 where the parabola has no minimum.

    Examples
    --------
    >>> parabola_share(1.0, slope=3.0), parabola_share(1.0, rise=1.0)
    (0.25, 0.25)
    """
    bend = tangent + slope if np.isfinite(tangent + slope) else 2.0 * (tangent + rise)
    if not np.isfinite(bend):
        return SHORTEST
    return min(max(tangent / bend, SHORTEST), LONGEST) if bend > 0.0 else LONGEST


def halvings(first: float, shortest: float) -> Iterator[float]:
    """Yield first, first/2, … above `shortest`: steps of a search that a domain or a filter decides, and no value."""
    while first > shortest:
        yield first
        first *= 0.5


class Trial(NamedTuple):
    """A point of a line search: f, ∞ outside of its domain, and the slope along the line, NaN where it is not known."""

    value: float
    slope: float = np.nan
    point: Any = None


def line_search(
    value: float, slope: float, rounding: float = 0.0, most: int = MOST_TRIALS
) -> Generator[float, Trial, tuple[Trial | None, float]]:
    """Search for a step t that lowers a function which is convex along the line; yields t, and is sent its `Trial`.

    f(0) is `value` and f′(0) is `slope` ≤ 0. A step is taken under the strong Wolfe conditions, by Armijo's rule and
    |f′(t)| ≤ ½|f′(0)| (Nocedal and Wright 2006, Eq. 3.7): t grows fourfold while f falls and f′(t) < 0, shrinks while f
    rises, and is between the two afterwards. Where the change of f is within its `rounding`, the slope alone decides;
    where slopes are unknown, the first t of an Armijo fall is taken (Algorithm 3.1). Returns that trial and its t, or
    the lowest; None and 0 where none falls.

    Examples
    --------
    >>> trial, t = driven(line_search(16.0, -64.0), lambda t: Trial((4 - 8 * t) ** 2))  # Newton's step is 1/2
    >>> t, trial.value
    (0.5, 0.0)
    """
    t, low, high = 1.0, 0.0, np.inf
    found: tuple[Trial | None, float] = None, 0.0
    for count in range(most):
        trial = yield t
        fall = value - trial.value
        is_lower = falls(value, trial.value, -t * slope) and fall > rounding
        flat = (is_lower or abs(fall) <= rounding) and abs(trial.slope) <= -0.5 * slope
        if np.isnan(trial.slope):
            flat = falls(value, trial.value, -t * slope, rounding)
        if flat:
            return trial, t
        if is_lower and (found[0] is None or trial.value < found[0].value):
            found = trial, t
        if is_lower and trial.slope < 0.0:
            low = t
        else:
            high = t
        if low > 0.0 and (high <= 2.0 * low or (high < np.inf and low >= 1.0) or count > most // 2):
            break
        if low == t and high == np.inf:  # as steep as at the start: along E exp f a full step is short
            t *= LENGTHEN
        else:
            t = float(np.sqrt(low * high)) if low > 0.0 else t * (LONGEST if count < 3 else SHORTEST)
    return found


def conjugate_gradients(
    product: Callable[[Array], Array], precondition: Callable[[Array], Array], right: Array, forcing: float, most: int
) -> tuple[Array, bool]:
    """Solve Ax = b by at most `most` products, to `forcing` times the first residual in the preconditioner's metric.

    Preconditioned conjugate gradients (Nocedal and Wright 2006, Algorithm 5.3). Returns x, shape (d,), and whether all
    directions had a positive curvature. The first one without ends the iteration with the x before, at the very first
    with the preconditioned b (Algorithm 7.1).

    Examples
    --------
    >>> x, _ = conjugate_gradients(lambda v: 2.0 * v, lambda v: v, np.array([2.0, 4.0]), 1e-8, 10)
    >>> x
    array([1., 2.])
    """
    residual = right
    preconditioned = precondition(residual)
    direction, energy = preconditioned, float(residual @ preconditioned)
    solution, goal = np.zeros_like(right), forcing**2 * energy
    for _ in range(most):
        if not energy > goal:
            break
        curved = product(direction)
        curvature = float(direction @ curved)
        if not (curvature > 0 and np.isfinite(curvature)):
            return (solution if solution.any() else direction), False
        step = energy / curvature
        solution = solution + step * direction
        residual = residual - step * curved
        preconditioned = precondition(residual)
        previous, energy = energy, float(residual @ preconditioned)
        direction = preconditioned + (energy / previous) * direction
    return solution, True
