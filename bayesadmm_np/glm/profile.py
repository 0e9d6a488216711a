"""Intervals by the profile likelihood, over sums of sites: an iteration that the caller drives, as `refit` is."""

from __future__ import annotations

from collections.abc import Generator, Iterable

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from .._numerics import nested
from .._validation import Array
from .refit import Derivatives, refit

REACH = float(ndtri(0.975))
"""Signed root of the drop of 2 log L at an end of a 95 % interval: √3.84."""

CLOSE = 1e-9
"""On the signed root, which is a distance in standard errors."""

FARTHEST = 100.0
"""Standard errors beyond which no end is looked for: the likelihood is flat on that side."""


def profile_bound(
    theta: Array, loss: float, row: ArrayLike, std_err: float, side: float, free: ArrayLike
) -> Generator[Array, Iterable[Derivatives], float | None]:
    """Find where max{log L : aᵀθ = b} has dropped by 1.92: an end b of the 95 % interval of aᵀθ, or None without such.

    The signed root of twice the drop is nearly linear in b, so that a secant finds it; each b is a `refit` of all else.
    `loss` is the pooled loss at θ, `side` −1 or 1 for the lower or upper end, `free` which coefficients the model has.
    """
    a, mask = np.asarray(row, dtype=np.float64), np.array(free, dtype=bool)
    j = int(np.argmax(np.abs(a) * mask))
    back = np.eye(a.size)  # θ = back @ φ, where φ_j is aᵀθ and the other entries are those of θ
    back[j] = -a / a[j]
    back[j, j] = 1.0 / a[j]
    mask[j] = False
    point, centre = np.where(np.arange(a.size) == j, a @ theta, theta), float(a @ theta)

    def turned(at: Array) -> Generator[Array, Iterable[Derivatives], list[Derivatives]]:
        return [each.along(back) for each in (yield back @ at)]

    inner, outer = (0.0, 0.0), (np.inf, np.inf)  # distance and root on both sides of the end
    away = REACH * std_err
    while away <= FARTHEST * std_err:
        fixed = np.zeros(a.size)
        fixed[j] = centre + side * away
        found = yield from nested(refit(point, mask, fixed), turned)
        point = found.theta
        root = float(np.sqrt(2.0 * max(found.value - loss, 0.0)))
        if abs(root - REACH) <= CLOSE or outer[0] - inner[0] <= CLOSE * std_err:
            return float(fixed[j])
        last = inner if root > REACH or outer[0] == np.inf else outer
        slope = (root - last[1]) / (away - last[0])
        inner, outer = ((away, root), outer) if root < REACH else (inner, (away, root))
        away += (REACH - root) / slope if slope > 0 else std_err
        if not inner[0] < away < outer[0]:
            away = 0.5 * (inner[0] + outer[0]) if outer[0] < np.inf else 2.0 * inner[0]
    return None
