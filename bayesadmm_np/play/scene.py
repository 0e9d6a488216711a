"""The data of the page: two classes in the plane, two clients, one outlier; and what a belief looks like there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .._validation import Array, frozen
from ..families import ExponentialFamily
from ..families.gaussian import Gaussian
from ..losses import Logistic

CLASS_SIZE = 12
"""Points of each class, without the outlier."""
BOX = (-5.0, 5.0, -3.6, 3.6)
"""Visible part of the plane: left, right, bottom, top."""
SPREAD = 0.7
CENTRE = np.array([1.0, 0.4])
SEED = 1


@dataclass(frozen=True)
class Scene:
    """Labelled points and who owns them."""

    points: Array  # shape (n, 2): The outlier is the last
    labels: Array  # shape (n,): 0 or 1; the outlier has label 1
    owners: Array  # shape (n,): 0 for client 1, 1 for client 2; the outlier is client 1's

    def losses(self) -> list[Logistic]:
        """The clients' losses: logistic, linear in (x, y, 1)."""
        design = np.column_stack([self.points, np.ones(len(self.points))])
        return [Logistic(design[self.owners == k], self.labels[self.owners == k]) for k in (0, 1)]


@dataclass(frozen=True)
class Belief:
    """A distribution over the linear classifier's (w₁, w₂, bias), as numbers."""

    mean: Array  # shape (3,)
    covariance: Array | None  # shape (3, 3): Covariance; None for a point method, which learns none

    @classmethod
    def of(cls, q: ExponentialFamily) -> Belief:
        """Read the numbers off a Gaussian."""
        assert isinstance(q, Gaussian)
        return cls(frozen(q.mean), frozen(q.covariance_matrix) if q.learns_precision else None)


def make_scene(outlier: tuple[float, float], skew: float) -> Scene:
    """Place the outlier and deal the points to the clients."""
    rng = np.random.default_rng(SEED)
    first = SPREAD * rng.standard_normal((CLASS_SIZE, 2)) - CENTRE
    second = SPREAD * rng.standard_normal((CLASS_SIZE, 2)) + CENTRE
    with_client_1 = round(0.5 * CLASS_SIZE * (1.0 + skew))
    rank = np.arange(CLASS_SIZE)
    owners = np.concatenate([rank < with_client_1, rank >= with_client_1, [False]]).astype(int)
    points = np.vstack([first, second, np.asarray(outlier, dtype=np.float64)])
    labels = np.repeat([0, 1, 1], [CLASS_SIZE, CLASS_SIZE, 1])
    return Scene(frozen(points), frozen(labels), frozen(owners))


def boundary_segment(belief: Belief, box: tuple[float, float, float, float] = BOX) -> Array | None:
    """The part of the line w₁x + w₂y + bias = 0 that lies in a box, shape (2, 2); None where there is none."""
    (w1, w2, bias), (left, right, bottom, top) = belief.mean, box
    norm = float(np.hypot(w1, w2))
    if not norm > 1e-12:
        return None
    point = -bias * np.array([w1, w2]) / norm**2
    along = np.array([-w2, w1]) / norm
    low, high = -np.inf, np.inf
    for start, step, smallest, largest in zip(point, along, (left, bottom), (right, top), strict=True):
        if abs(step) < 1e-12:
            if not smallest <= start <= largest:
                return None
            continue
        ends = sorted(((smallest - start) / step, (largest - start) / step))
        low, high = max(low, ends[0]), min(high, ends[1])
    return None if low >= high else np.array([point + low * along, point + high * along])


def sign_certainty(belief: Belief, x: Array, y: Array) -> Array | None:
    """Posterior mean of the predictor over its standard deviation on a grid, shape (len(y), len(x)).

    Its zero is the decision boundary; between ±1.645 the posterior is less than 95 % sure of the side. None for a
    point method.
    """
    if belief.covariance is None:
        return None
    columns, rows = np.meshgrid(x, y)
    features = np.stack([columns, rows, np.ones_like(columns)], axis=-1)
    variance = np.einsum("...i,ij,...j->...", features, belief.covariance, features)
    return features @ belief.mean / np.sqrt(variance)
