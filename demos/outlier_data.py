"""The small two-client classification problem of Figures 3 and 4.

The paper shows its points only as a picture, so these are not the paper's. They were written down by hand: two
classes, left and right of a slanted line, six points a client, and one more point of class 0 deep inside class 1 on
client 1. Four positions of that outlier were tried on these twelve points, (3, 2.5), (4, 0), (2.5, −2) and (5, 3); the
figure uses the first. What the other three do, so that nobody has to guess what was left out: at ρ = 0.2 BayesADMM
meets a client problem without a minimum in all four. At ρ = 1 it needs two rounds (by the criterion of Figure 4) where
ADMM needs seven for (2.5, −2) and (5, 3) as well, but (4, 0) leaves client 1 without a minimum at ρ = 1, too.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["DELTA", "OUTLIER", "POINTS", "with_bias"]

DELTA = 0.2
OUTLIER = (3.0, 2.5)

_FIRST = ((-2.0, -1.0), (-1.5, 0.5), (-2.5, 0.3), (1.5, -0.5), (2.2, 0.4), (1.8, 1.2))
_SECOND = ((-1.2, -2.0), (-0.8, 1.5), (-2.0, 2.0), (1.0, -1.5), (0.9, 2.0), (2.5, -0.8))
_LABELS = (0, 0, 0, 1, 1, 1)

POINTS: tuple[tuple[NDArray[np.float64], NDArray[np.int64]], ...] = (
    (np.array([*_FIRST, OUTLIER]), np.array([*_LABELS, 0])),
    (np.array(_SECOND), np.array(_LABELS)),
)
"""(points, labels) of clients 1 and 2; the outlier is the last row of client 1."""


def with_bias(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Append a column of ones."""
    return np.column_stack([points, np.ones(len(points))])
