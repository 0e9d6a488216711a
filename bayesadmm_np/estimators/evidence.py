"""Maximise the evidence over one positive number, each evaluation a run that starts where the last one ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from scipy.optimize import brentq

Fitted = TypeVar("Fitted")

XTOL = 1e-9
"""On the logarithm of the number."""


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
