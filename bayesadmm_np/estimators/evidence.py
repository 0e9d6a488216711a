"""Maximise the evidence over one positive number, each evaluation a run that starts where the last one ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from scipy.optimize import brentq

from ..families.gaussian import Gaussian
from ..splitting.result import Result

Fitted = TypeVar("Fitted")

XTOL = 1e-9
"""On the logarithm of the number."""

RANGE = 1e-8, 1e8
"""Prior precisions that Laplace's evidence may choose."""
SETTLED, LONGEST, MOST_FITS = 0.03, 3.0, 40
"""Last and longest step of that search in the logarithm, and its largest number of fits."""
NEAR = 0.3
"""Largest step before the last, for the slope to be known."""


def maximise(
    at: Callable[[float, Fitted | None], tuple[float, Fitted]],
    start: float,
    bracket: tuple[float, float],
    name: str,
) -> tuple[Fitted, str]:
    """Return the fit where the derivative changes from + to −, and a sentence about where that is.

    `at(value, last)` fits at a value and returns the derivative of the evidence in log(value) with the fit. The search
    walks from `start` uphill by factors of ten, so that it never visits a value that the data speak against, and
    finishes by Brent's method.
    """
    low, high = np.log(bracket[0]), np.log(bracket[1])
    last: Fitted | None = None

    def slope(place: float) -> float:
        nonlocal last
        found, last = at(float(np.exp(place)), last)
        return found

    here = float(np.clip(np.log(start), low, high))
    value = slope(here)
    direction = 1.0 if value > 0 else -1.0
    while True:
        ahead = float(np.clip(here + direction * np.log(10.0), low, high))
        if ahead == here:
            end = "upper" if direction > 0 else "lower"
            message = at_end(name, end, float(np.exp(here)), "evidence has no maximum")
            break
        following = slope(ahead)
        if following * value <= 0:
            root = float(brentq(slope, *sorted((here, ahead)), xtol=XTOL))
            slope(root)
            message = f"{name} is a maximum of the evidence."
            break
        here, value = ahead, following
    assert last is not None
    return last, message


def at_end(name: str, end: str, value: float, fact: str) -> str:
    """Return the sentence on a number that a search left at an end of its range."""
    return f"{name} is at the {end} end of its range, {value:g}: the {fact} on this side."


def maximise_laplace(at: Callable[[float], Result]) -> float:
    """Return the δ that maximises Laplace's log evidence −ℓ(m) − ½mᵀP_0m + ½log det P_0 − ½log det S, P_0 ∝ δ.

    `at` runs to the mode at a δ. The search walks in log δ until the best place has one on either side, and then steps
    to vertices of parabolas. If S did not change with m, the slope of −log evidence were ½(δ‖m‖² − γ): the first step
    of the walk is MacKay's, δ ← γ/‖m‖²; later ones are Newton's, with what the last two values say of the slope's rest.
    """
    place, slopes, values = 0.0, dict[float, float](), dict[float, float]()
    for _ in range(MOST_FITS):
        found = at(float(np.exp(place)))
        q, prior = found.posterior, found.prior
        assert isinstance(prior, Gaussian)
        length, known = q.mean @ prior.factor.multiply(q.mean), q.dim - q.factor.trace_solve(prior.factor.parts)
        slopes[place], values[place] = 0.5 * (length - known), float(found.objective[-1])
        order = sorted(values)
        best = min(order, key=values.__getitem__)
        i = order.index(best)
        if 0 < i < len(order) - 1:
            near = order[i - 1], best, order[i + 1]
            square, linear, _ = np.polyfit(np.subtract(near, best), [values[u] - values[best] for u in near], 2)
            away, step = min(near[1] - near[0], near[2] - near[1]), -0.5 * linear / square
        elif best != place:
            away, step = np.inf, 0.5 * (best - place)  # to the other side: the best place is between two then
        else:
            away, step = np.inf, float(np.log(max(known, 1e-300) / max(length, 1e-300)))
            if len(order) > 1:
                last = order[1 if i == 0 else -2]
                away, change = abs(place - last), (slopes[place] - slopes[last]) / (place - last)
                rest = (values[place] - values[last]) / (place - last) - 0.5 * (slopes[place] + slopes[last])
                step = -(slopes[place] + rest) / change if change > 0.0 else step
        place = float(np.clip(best + np.clip(step, -LONGEST, LONGEST), *np.log(RANGE)))
        if place in values or (abs(place - best) < SETTLED and away < NEAR):
            return float(np.exp(place))
    raise ValueError(f"the evidence has no maximum after {MOST_FITS} fits: give prior_precision a number.")
