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
"""Of a prior precision that Laplace's evidence may choose."""
SETTLED, MOST_FITS = 0.03, 40
"""Last step of that search in the logarithm, and its largest number of fits."""


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
            message = (
                f"{name} is at the {end} end of its range, {np.exp(here):g}: the evidence has no maximum on this side."
            )
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


def maximise_laplace(at: Callable[[float], Result]) -> float:
    """Return the δ that maximises Laplace's log evidence −ℓ(m) − ½mᵀP_0m + ½log det P_0 − ½log det S, P_0 ∝ δ.

    `at` runs to the mode at a δ. MacKay's update δ ← γ/‖m‖² is that of a curvature which does not change with m. The
    rest of the slope in log δ, T, follows from two values of the evidence, and the update is δ ← (γ − 2T)/‖m‖².
    """
    place, rest = 0.0, 0.0
    last: tuple[float, float, float] | None = None
    for _ in range(MOST_FITS):
        found = at(float(np.exp(place)))
        q, prior = found.posterior, found.prior
        assert isinstance(prior, Gaussian)
        square = float(q.mean @ prior.factor.multiply(q.mean))  # δ‖m‖²
        known = q.dim - q.factor.trace_solve(prior.factor.parts)  # γ
        value, slope = float(found.objective[-1]), 0.5 * (square - known)  # of −log evidence
        if last is not None:
            rest = (value - last[1]) / (place - last[0]) - 0.5 * (slope + last[2])
        goal = np.exp(place) * max(known - 2.0 * rest, 1e-3 * known) / max(square, 1e-300)
        step = float(np.log(np.clip(goal, *RANGE))) - place
        last, place = (place, value, slope), place + step
        if abs(step) < SETTLED:
            return float(np.exp(place))
    raise ValueError(f"the evidence has no maximum after {MOST_FITS} fits: give prior_precision a number.")
