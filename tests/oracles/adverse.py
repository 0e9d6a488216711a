"""Small regressions that are hard on the arithmetic, and their pooled fits by QR of all rows."""

from typing import NamedTuple

import numpy as np

CLOSE = 1e-8
"""Length of the last step of the oracle, in standard errors."""


class Problem(NamedTuple):
    """Rows of all sites, of a kind of GLM by name."""

    kind: str
    X: np.ndarray
    y: np.ndarray
    weights: np.ndarray | None
    offset: np.ndarray | None
    intercept: bool
    site: np.ndarray


def problem(seed):
    """Return a logistic, Poisson or linear regression, by seed.

    Columns are heavy, binary, nearly collinear or far from zero, in units from 1e-8 to 1e8; weights are whole numbers
    with zeros, uneven over eleven decades, or tiny or huge throughout; offsets have means up to some 600; sites have
    few rows, or one each; labels may be separated.
    """
    rng = np.random.default_rng([77, seed])
    kind = str(rng.choice(["logistic", "poisson", "linear"]))
    n, p = int(rng.integers(4, 80)), int(rng.integers(1, 5))
    n_sites = int(rng.integers(1, 7))
    X = columns(rng, n, p)
    reach = np.maximum(np.abs(X - X.mean(axis=0)).max(axis=0), 1e-300)
    predictor = (X - X.mean(axis=0)) @ (rng.standard_normal(p) * rng.choice([0.0, 1.0, 5.0]) / reach) + rng.normal()
    offset = None
    if rng.random() < 0.4:
        offset = rng.normal() * 10.0 ** rng.uniform(-1, 2.8) + rng.standard_normal(n) * rng.choice([0.0, 0.5, 3.0])
        predictor = predictor + offset - offset.mean()
    weights = row_weights(rng, n)
    y = targets(rng, kind, np.clip(predictor, -30.0, 8.0), X[:, 0])
    intercept = bool(rng.random() < 0.85)
    site = rng.integers(0, n_sites, n) if rng.random() < 0.8 else np.arange(n)
    return Problem(kind, X, y, weights, offset, intercept, site)


def columns(rng, n, p):
    X = rng.standard_normal((n, p))
    style = rng.integers(6)
    if style == 1:
        X = rng.integers(0, 2, (n, p)).astype(float)
    elif style == 2:
        X = rng.standard_t(1.5, (n, p))
    elif style == 3 and p > 1:
        X[:, 1] = X[:, 0] + 10.0 ** rng.uniform(-12, -1) * rng.standard_normal(n)
    elif style == 4:
        X = X + 10.0 ** rng.uniform(0, 8) * rng.standard_normal(p)
    return X * 10.0 ** rng.uniform(-8, 8, p) if rng.random() < 0.5 else X


def row_weights(rng, n):
    draw = rng.random()
    if draw < 0.15:
        return rng.uniform(0.1, 3.0, n)
    if draw < 0.25:
        return 10.0 ** rng.uniform(-8, 3, n)
    if draw < 0.35:
        return np.full(n, 10.0 ** rng.uniform(-11, 11))
    if draw < 0.45:
        weights = rng.integers(0, 3, n).astype(float)
        weights[0] = 1.0
        return weights
    return None


def targets(rng, kind, predictor, first):
    if kind == "linear":
        return predictor + rng.standard_normal(len(predictor)) * 10.0 ** rng.uniform(-6, 2)
    if rng.random() < 0.1:
        return (first > np.median(first)) * (1.0 if kind == "logistic" else 3.0)
    if kind == "logistic":
        return (rng.random(len(predictor)) < 1.0 / (1.0 + np.exp(-predictor))).astype(float)
    return rng.poisson(np.exp(np.minimum(predictor, 6.0))).astype(float)


class Pooled(NamedTuple):
    """A pooled fit: coefficients of columns in standard deviations about their means, at an offset of mean zero."""

    theta: np.ndarray
    errors: np.ndarray
    centre: np.ndarray
    scale: np.ndarray
    shift: float

    def of(self, fitted):
        """Return the θ of a fitted model in the same coordinates."""
        layout, theta, p = fitted.layout, fitted.posterior.mean, len(self.scale)
        if not layout.has_intercept:
            return theta * self.scale
        origin = np.zeros(p) if layout.centre is None else layout.centre
        intercept = theta[p] + theta[:p] @ (self.centre - origin) - layout.shift + self.shift
        return np.append(theta[:p] * self.scale, intercept)


def pooled(problem):
    """Return the pooled fit by damped, iteratively reweighted least squares with QR; None where that finds none."""
    weights = np.ones(len(problem.y)) if problem.weights is None else problem.weights
    kept = weights > 0
    X, y, weights = problem.X[kept], problem.y[kept], weights[kept] / weights[kept].mean()
    offset = np.zeros(len(y)) if problem.offset is None else problem.offset[kept]
    centre = (weights @ X) / weights.sum() if problem.intercept else np.zeros(X.shape[1])
    scale = np.sqrt((weights @ (X - centre) ** 2) / weights.sum())
    scale = np.where(scale > 0, scale, 1.0)
    shift = float(weights @ offset / weights.sum()) if problem.intercept else 0.0
    Z = (X - centre) / scale
    if problem.intercept:
        Z = np.column_stack([Z, np.ones(len(y))])
    if len(y) < Z.shape[1]:
        return None
    found = reweighted(problem.kind, Z, y, weights, offset - shift, problem.intercept)
    return None if found is None else Pooled(*found, centre, scale, shift)


def reweighted(kind, Z, y, weights, offset, intercept):
    theta = np.zeros(Z.shape[1])
    if kind == "poisson" and intercept and weights @ y > 0:
        theta[-1] = np.log(weights @ y / (weights @ np.exp(np.minimum(offset, 700.0))))
    value = loss(kind, Z @ theta + offset, y, weights)
    for _ in range(500):
        mean, bend = moments(kind, Z @ theta + offset)
        root = np.sqrt(np.maximum(weights * bend, 1e-300))
        Q, R = np.linalg.qr(root[:, None] * Z)
        sizes = np.abs(np.diag(R))
        if not sizes.min() > 1e-12 * sizes.max():
            return None
        whitened = Q.T @ (weights * (y - mean) / root)
        step, length = np.linalg.solve(R, whitened), 1.0
        ceiling = value + 1e-12 * abs(value)
        while length > 1e-12 and not loss(kind, Z @ (theta + length * step) + offset, y, weights) <= ceiling:
            length /= 2.0
        theta = theta + length * step
        value = loss(kind, Z @ theta + offset, y, weights)
        if kind == "linear":
            return theta, np.linalg.norm(np.linalg.inv(R), axis=1) * spread(Z, y - offset, theta, weights)
        if np.linalg.norm(whitened) < CLOSE:
            return theta, np.linalg.norm(np.linalg.inv(R), axis=1)
    return None


def spread(Z, y, theta, weights):
    """The standard deviation of residuals, which an exact fit has not."""
    return max(float(np.sqrt(weights @ (y - Z @ theta) ** 2 / len(y))), 1e-9 * float(np.std(y)) + 1e-300)


@np.errstate(over="ignore")
def loss(kind, predictor, y, weights):
    if kind == "linear":
        return 0.0
    return float(
        weights @ ((np.logaddexp(0.0, predictor) if kind == "logistic" else np.exp(predictor)) - y * predictor)
    )


@np.errstate(over="ignore")
def moments(kind, predictor):
    if kind == "linear":
        return predictor, np.ones_like(predictor)
    if kind == "poisson":
        return np.exp(predictor), np.exp(predictor)
    mean = 1.0 / (1.0 + np.exp(-predictor))
    return mean, mean / (1.0 + np.exp(predictor))
