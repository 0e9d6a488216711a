"""Random client problems that are strictly convex and hard: weak priors, wild units, separation, collinear columns.

Every problem is a function of its seed. A problem is Eq. 15 with a convex loss and a valid λ_g − η/ρ, so that in
(mean, Cholesky factor of the covariance) its objective is strictly convex and has one minimum.
"""

from dataclasses import dataclass

import numpy as np

import bayesadmm_np as ba

LOSSES = ("logistic", "poisson", "softmax", "squares")
FAMILIES = ("full", "diagonal", "block", "isotropic", "fixed")
UNITS = (1.0, 1.0, 1.0, 1.0, 0.01, 10.0, 100.0, 1e4)
PRECISIONS = (1e-10, 1e-8, 1e-6, 1e-4, 1e-2, 1.0, 10.0)


@dataclass(frozen=True)
class Drawn:
    """A client's problem, where its solver starts, and words that say what it is."""

    problem: ba.clients.Subproblem
    start: ba.families.ExponentialFamily
    words: str


def _design(rng, n, p):
    X = rng.standard_normal((n, p))
    if rng.random() < 0.5:
        X[:, 0] = 1.0
    if p > 1 and rng.random() < 0.3:  # dummies
        X[:, -1] = rng.random(n) < 0.3
    if p > 2 and rng.random() < 0.15:  # nearly collinear
        X[:, 1] = X[:, 2] + 1e-4 * rng.standard_normal(n)
    if rng.random() < 0.1:  # heavy tails
        X *= np.exp(rng.standard_normal((n, 1)))
    units = rng.choice(UNITS) if rng.random() < 0.7 else rng.choice(UNITS, p)
    return X * units


def _labels(rng, kind, X, n_classes):
    """Labels of a model in the columns' own units; half of the problems are separated, or of one label."""
    n = len(X)
    sizes = np.sqrt(np.mean(X**2, axis=0))
    f = (X / np.where(sizes > 0, sizes, 1.0)) @ rng.standard_normal(X.shape[1])
    how = rng.choice(["model", "separated", "alike"], p=[0.6, 0.25, 0.15])
    if kind == "squares":
        return f + rng.standard_normal(n)
    if kind == "poisson":
        rate = np.exp(np.clip(f + rng.choice([-1.0, 0.0, 3.0]), -20.0, 12.0))
        return (np.zeros(n) if how == "alike" else rng.poisson(rate)).astype(float)
    if how == "alike":
        return np.zeros(n) if rng.random() < 0.5 else np.full(n, n_classes - 1.0)
    noise = 0.0 if how == "separated" else rng.logistic(size=n)
    edges = np.quantile(f, np.arange(1, n_classes) / n_classes)
    return np.searchsorted(edges, f + noise).astype(float)


def _loss(rng):
    kind = rng.choice(LOSSES, p=[0.4, 0.35, 0.17, 0.08])
    n, p = int(rng.choice([2, 5, 20, 60, 150])), int(rng.integers(1, 7))
    n_classes = 3 if kind == "softmax" else 2
    X = _design(rng, n, p)
    y = _labels(rng, kind, X, n_classes)
    sizes = np.maximum(np.abs(X).max(axis=0), 1e-3)
    offset = None
    if kind == "poisson" and rng.random() < 0.3:
        offset = rng.normal(0.0, 2.0, n)
    if kind == "softmax":
        return ba.losses.Softmax(X, y, n_classes=3), ba.losses.QuasiMonteCarlo(256), sizes
    if kind == "squares":
        return ba.losses.LeastSquares(X, y), ba.losses.Exact(), sizes
    made = {"logistic": ba.losses.Logistic, "poisson": ba.losses.Poisson}[kind]
    rule = ba.losses.Exact() if rng.random() < 0.85 else ba.losses.Delta(2)
    return made(X, y, offset=offset), rule, sizes


def _spd(rng, d):
    root = rng.standard_normal((d, d + 2))
    return root @ root.T / (d + 2) + 0.1 * np.eye(d)


def _member(rng, family, d, precision, sizes):
    mean = np.zeros(d) if rng.random() < 0.7 else rng.standard_normal(d) / np.tile(sizes, d // len(sizes))
    plain = rng.random() < 0.5
    cut = [d - d // 2, d // 2] if d > 1 else [1]
    made = {
        "full": lambda: ba.families.FullGaussian(mean, precision * (np.eye(d) if plain else _spd(rng, d))),
        "diagonal": lambda: ba.families.DiagonalGaussian(
            mean, precision * (np.ones(d) if plain else rng.random(d) + 0.1)
        ),
        "block": lambda: ba.families.BlockDiagonalGaussian(mean, [precision * _spd(rng, b) for b in cut]),
        "isotropic": lambda: ba.families.IsotropicGaussian(mean, precision),
        "fixed": lambda: ba.families.FixedPrecisionGaussian(mean, precision * _spd(rng, d)),
    }
    return made[family]()


def draw(seed):
    """Return the problem of a seed."""
    rng = np.random.default_rng([20, seed])
    loss, rule, sizes = _loss(rng)
    family = rng.choice(FAMILIES, p=[0.45, 0.3, 0.15, 0.05, 0.05])
    if family in ("isotropic", "fixed"):  # a covariance that knows nothing of the data: methods take the mode
        rule = ba.losses.Delta(1)
    precisions = PRECISIONS
    if isinstance(rule, ba.losses.QuasiMonteCarlo):  # sampled points resolve predictors of some ten standard deviations
        precisions = np.array([0.01, 0.1, 1.0, 10.0]) * (sizes**2).sum()
    precision = float(rng.choice(precisions))
    anchor = _member(rng, family, loss.dim, precision, sizes)
    rho = float(rng.choice([1.0, 1.0, 0.2, 5.0, 0.028]))
    site = anchor.natural.zeros()
    if rng.random() < 0.3:  # a dual with V ⪯ .9 ρ S_g and any linear part
        linear = rho * anchor.factor.multiply(rng.standard_normal(loss.dim) / np.sqrt(precision))
        share = rho * rng.uniform(-2.0, 0.9)
        parts = [share * part for part in anchor.factor.parts] if anchor.learns_precision else ()
        site = anchor.natural_from(linear, parts)
    start = anchor
    if rng.random() < 0.2 and family != "fixed":  # a warm start that has nothing to do with the answer
        start = _member(rng, family, loss.dim, float(rng.choice(precisions)), sizes)
    problem = ba.clients.Subproblem(
        loss, rule.resolve(loss.pointwise) if hasattr(loss, "pointwise") else rule, anchor, site, rho
    )
    words = f"seed {seed}: {loss!r}, {type(rule).__name__}, {family}, precision {precision:g}, rho {rho:g}"
    return Drawn(problem, start, words)
