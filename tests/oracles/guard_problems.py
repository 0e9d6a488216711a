"""Thousands of small federated problems that are hard on a guard, each made from its index alone."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

import bayesadmm_np as ba

COUNT = 3000
"""Problems of a whole run; every further index is one too."""

KINDS = {"logistic": 0.28, "poisson": 0.36, "softmax": 0.16, "least squares": 0.2}
FAMILIES = {"full": 0.4, "diagonal": 0.35, "block": 0.25}
MOST_ROWS, MOST_PARAMETERS, MOST_SITES = 60, 8, 30
LARGEST_COUNT = 1e6


@dataclass(frozen=True)
class Problem:
    """Rows of all sites, a prior, and who takes part."""

    index: Any
    kind: str
    family: str
    X: np.ndarray
    y: np.ndarray
    site: np.ndarray
    mean: np.ndarray
    precision: float
    n_classes: int = 1
    blocks: tuple[int, ...] = ()
    fraction: float = 1.0
    subsets: bool = False
    traits: tuple[str, ...] = field(default=())

    def __str__(self):
        where = f"{self.kind}, {self.family}, {len(self.X)} rows, d = {self.dim}, K = {len(self.clients)}"
        away = f", {'subsets' if self.subsets else 'fraction'} {self.fraction:.2f}" if self.is_away else ""
        return f"{self.index}: {where}, precision {self.precision:.2g}{away} ({', '.join(self.traits)})"

    @property
    def dim(self):
        return self.X.shape[1] * self.n_classes

    @property
    def is_away(self):
        return self.fraction < 1.0

    @property
    def clients(self):
        return [self.loss(self.X[self.site == one], self.y[self.site == one]) for one in np.unique(self.site)]

    def loss(self, X, y):
        if self.kind == "softmax":
            return ba.losses.Softmax(X, y.astype(int), self.n_classes)
        kinds = {"logistic": ba.losses.Logistic, "poisson": ba.losses.Poisson, "least squares": ba.losses.LeastSquares}
        return kinds[self.kind](X, y)

    @property
    def prior(self):
        if self.family == "block":
            return ba.families.BlockDiagonalGaussian(self.mean, self.precision, blocks=self.blocks)
        family = {"full": ba.families.FullGaussian, "diagonal": ba.families.DiagonalGaussian}[self.family]
        return family(self.mean, self.precision)

    def present(self, number, n_clients, rng):
        """Who takes part: a fixed share drawn anew, or everyone with a probability of its own and at least one."""
        if not self.is_away:
            return np.ones(n_clients, dtype=bool)
        if not self.subsets:
            return rng.permutation(n_clients) < max(1, round(self.fraction * n_clients))
        present = rng.random(n_clients) < self.fraction
        present[rng.integers(n_clients)] = True
        return present


def problem(index):
    """Return one of the problems: logistic, Poisson, softmax or least squares, with 1 to 30 sites.

    Columns are in units from 1e-6 to 1e6 or collinear to 1e-7; labels are separable, or of one class at every site;
    counts reach a million; the prior's precision is between 1e-6 and 30. In a fifth of the problems a fraction of the
    sites between a half and three quarters takes part in a round, as many in every round or random subsets.
    """
    rng = np.random.default_rng([20261125, index])
    kind, family = (str(rng.choice([*shares], p=[*shares.values()])) for shares in (KINDS, FAMILIES))
    n_classes = int(rng.integers(2, 4)) if kind == "softmax" else 1
    width = int(rng.integers(1, MOST_PARAMETERS // n_classes + 1))
    n_rows = int(np.exp(rng.uniform(np.log(3), np.log(MOST_ROWS + 1))))
    most = MOST_SITES if rng.random() < 0.15 else 6
    n_sites = min(n_rows, int(np.exp(rng.uniform(0.0, np.log(most + 1)))))
    traits = []
    X, shape = columns(rng, n_rows, width, traits)
    coefficients = rng.standard_normal((width, n_classes)) * rng.choice([0.3, 1.0, 3.0])
    y = targets(rng, kind, shape @ coefficients, traits)
    site = np.arange(n_rows) % n_sites
    if kind in ("logistic", "softmax") and rng.random() < 0.3:
        traits.append("single-class sites")
        order = np.argsort(y, kind="stable")
        site[order] = np.sort(site)
    else:
        rng.shuffle(site)
    precision = float(10.0 ** rng.uniform(-6.0, np.log10(30.0)))
    mean = rng.standard_normal(width * n_classes) if rng.random() < 0.2 else np.zeros(width * n_classes)
    fraction, subsets = 1.0, False
    if rng.random() < 0.25 and n_sites > 1:
        fraction, subsets = float(rng.uniform(0.5, 0.75)), bool(rng.random() < 0.5)
    blocks = block_sizes(rng, width * n_classes) if family == "block" else ()
    return Problem(
        index, kind, family, X, y, site, mean, precision, n_classes, blocks, fraction, subsets, tuple(traits)
    )


def columns(rng, n_rows, width, traits):
    """Return columns in their units, and the same columns in units of one."""
    shape = rng.standard_normal((n_rows, width))
    style = rng.random()
    if style < 0.15:
        traits.append("binary")
        shape = rng.integers(0, 2, (n_rows, width)).astype(float)
    elif style < 0.25:
        traits.append("heavy")
        shape = np.clip(rng.standard_t(2.0, (n_rows, width)), -30.0, 30.0)
    if rng.random() < 0.6:
        shape[:, 0] = 1.0
    if width > 1 and rng.random() < 0.25:
        gap = rng.uniform(-7.0, -1.0)
        traits.append(f"collinear to 1e{gap:.0f}")
        shape[:, -1] = shape[:, 0] + 10.0**gap * rng.standard_normal(n_rows)
    if rng.random() < 0.3:
        traits.append("scales")
        return shape * 10.0 ** rng.uniform(-6.0, 6.0, width), shape
    return shape, shape


def targets(rng, kind, predictor, traits):
    """Return y of predictors, shape (n, C)."""
    rows = predictor[:, 0]
    if kind == "least squares":
        return rows + rng.choice([0.1, 1.0, 100.0]) * rng.standard_normal(len(rows))
    if kind == "poisson":
        level = rng.uniform(-2.0, np.log(LARGEST_COUNT)) if rng.random() < 0.3 else rng.uniform(-2.0, 2.0)
        traits.append(f"counts about e^{level:.0f}")
        return rng.poisson(np.minimum(np.exp(np.minimum(level + rows, 30.0)), LARGEST_COUNT)).astype(float)
    if rng.random() < 0.25:
        traits.append("separable")
        return (rows > np.median(rows)).astype(float) if kind == "logistic" else predictor.argmax(axis=1).astype(float)
    if kind == "logistic":
        return (rng.random(len(rows)) < 1.0 / (1.0 + np.exp(-np.clip(rows, -30.0, 30.0)))).astype(float)
    return (predictor + rng.gumbel(size=predictor.shape)).argmax(axis=1).astype(float)


def block_sizes(rng, dim):
    """Return sizes of blocks that add up to `dim`, several where there is more than one parameter."""
    cuts = np.sort(rng.choice(np.arange(1, dim), size=int(rng.integers(1, dim)), replace=False)) if dim > 1 else []
    return tuple(int(size) for size in np.diff([0, *cuts, dim]))
