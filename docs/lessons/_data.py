"""The data of lessons 4, 7 and 8 and of the animations: a plane with an outlier, and a few coarse pixels of digits."""

from __future__ import annotations

import numpy as np

import bayesadmm_np as ba
from bayesadmm_np.data import load_digits, partition

__all__ = ["digits_clients", "outlier_clients", "outlier_data"]


def outlier_data(outlier: bool = True) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return (X, y) per client: two coordinates and a constant; the last row of client 1 is the outlier."""
    rng = np.random.default_rng(3)
    centres = (((-1.6, 0.6), (0.4, 1.8)), ((-0.6, -1.6), (1.6, -0.4)))  # of the classes 0 and 1, client by client
    rows = []
    for k, pair in enumerate(centres):
        points = np.concatenate([np.array(centre) + 0.55 * rng.normal(size=(8, 2)) for centre in pair])
        y = np.repeat([0, 1], 8)
        if k == 0 and outlier:
            points, y = np.vstack([points, [2.6, -2.2]]), np.append(y, 0)
        rows.append((np.column_stack([points, np.ones(len(points))]), y))
    return rows


def outlier_clients(outlier: bool = True) -> list[ba.losses.Logistic]:
    """Return the two logistic losses."""
    return [ba.losses.Logistic(X, y) for X, y in outlier_data(outlier)]


def digits_clients(question: str = "odd") -> list[ba.losses.Logistic]:
    """Return five clients with two digits each: (0, 1), (2, 3), …; ten coarse pixels and a constant as features.

    "odd" asks whether the digit is odd; "high" whether it is at least five, which most clients never see both ways.
    """
    digits = load_digits()
    rows = np.arange(0, len(digits.y), 5)
    images, digit = digits.X[rows].reshape(-1, 8, 8), digits.y[rows]
    quarters = [images[:, a : a + 4, b : b + 4].mean((1, 2)) for a in (0, 4) for b in (0, 4)]
    middle = [images[:, :, 2:6].mean((1, 2)), images[:, 3:5].mean((1, 2))]
    X = np.column_stack([*quarters, *middle, np.ones(len(rows))])
    target = {"odd": digit % 2, "high": (digit >= 5).astype(int)}[question]
    return [ba.losses.Logistic(X[part], target[part]) for part in partition.label_pairs(digit, 5)]
