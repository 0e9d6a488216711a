"""Check a row of the table of GLMs: that loss, link, variance function and constant belong to one distribution."""

from __future__ import annotations

import numpy as np

from .._validation import Array
from ..families import FullGaussian
from ..glm.kinds import KINDS, Kind, read_kind
from ..losses.expectations import GaussHermite
from ..losses.likelihood import SiteLikelihood
from ..testing import check_loss

STEP = 1e-5
"""Step of central differences: their error is about STEP² times a third derivative of order one, and 1e-16/STEP."""
CLOSE = 1e-6
"""Relative, of differences and of sums over a grid."""
N_ROWS = 40


def check_kind(kind: Kind | str) -> None:
    """Check that a kind of GLM is one: an AssertionError names what is wrong.

    A likelihood of a site's rows together has the derivatives that it says. The other checks are those of the loss
    (`bayesadmm_np.testing.check_loss`), weights and offset, and the link against its inverse and moments against
    quadrature. The loss must be least where the mean is the observation, with the curvature
    (dμ/df)²/V(μ). Probabilities must add up to one.
    """
    row = read_kind(kind)
    rng = np.random.default_rng(0)
    _require(
        row.name not in KINDS or read_kind(str(row)) == row, row, "name: options are not those that it is read from"
    )
    if row.likelihood is not None:
        _check_whole(row, rng)
        return
    y, n_outputs = _target(row, rng)
    _check_loss(row, y, n_outputs, rng)
    if row.is_classifier:
        _check_probabilities(row, n_outputs)
    else:
        _check_link(row)
        _check_likelihood(row)


def _require(holds: object, kind: Kind, what: str) -> None:
    if not holds:
        raise AssertionError(f"kind {kind}: {what}.")


def _near(found: Array, expected: Array) -> bool:
    scale = float(np.abs(expected).max(initial=0.0)) + 1.0
    return bool(np.abs(np.asarray(found) - expected).max(initial=0.0) <= CLOSE * scale)


def _target(kind: Kind, rng: np.random.Generator) -> tuple[Array, int]:
    """A target that the kind allows, and the number of outputs."""
    if kind.is_classifier:
        n_classes = 2 if kind.outputs == "one" else 3
        return rng.integers(0, n_classes, N_ROWS).astype(np.float64), kind.n_outputs(n_classes)
    tries = (rng.normal(size=N_ROWS), rng.poisson(3.0, N_ROWS).astype(np.float64), rng.uniform(0.1, 0.9, N_ROWS))
    allowed = [y for y in tries if kind.target.wrong(y) is None]
    _require(allowed, kind, "target: no number of −3 to 10 is allowed")
    return allowed[0], 1


def _check_loss(kind: Kind, y: Array, n_outputs: int, rng: np.random.Generator) -> None:
    X, weights, offset = rng.normal(size=(N_ROWS, 2)) / 2, rng.uniform(0.5, 2.0, N_ROWS), 0.3 * rng.normal(size=N_ROWS)
    moved = offset if n_outputs == 1 else np.outer(offset, np.arange(n_outputs))
    loss = kind.make_loss(X, y, weights, moved, n_outputs)
    check_loss(loss, FullGaussian(np.zeros(loss.dim), 1.0))
    theta = 0.5 * rng.normal(size=loss.dim)
    doubled = (np.vstack([X, X]), np.tile(y, 2), np.tile(weights, 2) / 2, np.concatenate([moved, moved]), n_outputs)
    same = _near(np.array(kind.make_loss(*doubled).value(theta)), np.array(loss.value(theta)))
    _require(same, kind, "weights: two halves are not a row")
    with_column = kind.make_loss(np.column_stack([X, offset]), y, weights, None, n_outputs)
    extended = np.column_stack([theta.reshape(n_outputs, 2), 1.0 if n_outputs == 1 else np.arange(n_outputs)]).ravel()
    same = _near(np.array(with_column.value(extended)), np.array(loss.value(theta)))
    _require(same, kind, "offset: it is not a column whose coefficient is known")


def _check_whole(kind: Kind, rng: np.random.Generator) -> None:
    """Check gradient and Hessian of a likelihood of a site's rows together, against central differences."""
    n_classes = 3 if kind.outputs == "ordered" else 0
    classes = ("0", "1", "2")[:n_classes]
    n_auxiliary = len(kind.auxiliaries(classes))
    X = kind.widened(np.column_stack([rng.uniform(size=(N_ROWS, 2)) / 4, np.ones(N_ROWS)]), classes)
    time, events = rng.exponential(size=N_ROWS), rng.integers(0, 2, N_ROWS).astype(np.float64)
    if kind.form == "survival":
        y = np.column_stack([*[0.2 * time] * (min(kind.response) - 2), time, events])
    elif n_classes:
        y = rng.integers(0, n_classes, N_ROWS).astype(np.float64)
    elif kind.is_classifier:
        y = events
    else:
        tries = (rng.normal(size=N_ROWS), rng.poisson(3.0, N_ROWS).astype(np.float64), events)
        y = next(y for y in tries if kind.target.wrong(y) is None)
        y = np.column_stack([y, np.arange(N_ROWS) // 4]) if kind.form == "group" else y
    if kind.has_baseline:
        X = X[:, :-1]
    loss = kind.make_loss(X, y, n_auxiliary=n_auxiliary)
    theta = np.concatenate([np.linspace(-0.5, 0.5, n_auxiliary), 0.5 * rng.normal(size=X.shape[1] - n_auxiliary)])
    theta = loss.own_start() * 0.99 if kind.has_rows and isinstance(loss, SiteLikelihood) else theta
    ways = STEP * np.eye(theta.size)
    slope = [(loss.value(theta + way) - loss.value(theta - way)) / (2.0 * STEP) for way in ways]
    _require(_near(loss.gradient(theta), np.array(slope)), kind, "gradient: it is not that of the value")
    hessian = [(loss.gradient(theta + way) - loss.gradient(theta - way)) / (2.0 * STEP) for way in ways]
    _require(_near(loss.hessian(theta), np.array(hessian)), kind, "hessian: it is not that of the gradient")


def _check_probabilities(kind: Kind, n_outputs: int) -> None:
    """Σ_c p_c = 1 and Σ_c p_c ∇ℓ(f, c) = 0 at any predictor."""
    f = np.linspace(-2.0, 2.0, 5) if n_outputs == 1 else np.outer(np.linspace(-1.0, 1.0, 5), np.arange(n_outputs) - 1.0)
    spread = np.zeros(f.shape if n_outputs == 1 else (*f.shape, n_outputs))
    chances = kind.class_probabilities(f, spread, "plug-in")
    _require(_near(chances.sum(axis=1), np.ones(5)), kind, "probabilities: they do not add up to one")
    for row, p in zip(f, chances, strict=True):
        slopes = [
            kind.make_loss(np.ones((1, 1)), [c], None, row[None], n_outputs).gradient(np.zeros(n_outputs))
            for c in range(p.size)
        ]
        _require(
            _near(p @ np.array(slopes), np.zeros(n_outputs)), kind, "probabilities: they are not those of the loss"
        )


def _check_link(kind: Kind) -> None:
    f, link = np.linspace(-1.5, 1.5, 7), kind.link
    _require(_near(link.forward(link.inverse(f)), f), kind, "link: forward is not the inverse of inverse")
    nodes, weights = GaussHermite(64).nodes(1)
    values = link.inverse(f[:, None] + 0.5 * nodes[:, 0])
    centre, spread = link.mean_and_variance(f, np.full(7, 0.25))
    expected = values @ weights
    _require(_near(centre, expected), kind, "link: the mean of its moments is not that of quadrature")
    variance = (values - expected[:, None]) ** 2 @ weights
    _require(_near(spread, variance), kind, "link: the variance of its moments is not that of quadrature")


def _check_likelihood(kind: Kind) -> None:
    f, zero = np.linspace(-1.0, 1.0, 5), np.zeros(1)
    mean = kind.link.inverse(f)
    jacobian = (kind.link.inverse(f + STEP) - kind.link.inverse(f - STEP)) / (2.0 * STEP)
    assert kind.variance is not None
    information = jacobian**2 / kind.variance(mean, mean**2)
    for i in range(f.size):
        own = kind.make_loss(np.ones((1, 1)), mean[i : i + 1], None, f[i : i + 1])
        _require(_near(own.gradient(zero), zero), kind, "link: the loss is not least where the mean is the observation")
        same = _near(own.hessian(zero)[0], information[i : i + 1])
        _require(same, kind, "variance: the curvature of the loss is not (dμ/df)²/V(μ)")
    counts = np.arange(0.0, 400.0)
    grid, unit = (counts, 1.0) if kind.target.wrong(-counts) is not None else (np.linspace(-40.0, 40.0, 8001), 0.01)
    if kind.target.wrong(grid) is not None or (kind.constant is None and "count" not in kind.target.expected):
        return  # a density that the grid does not fit: a target on a part of the line, or one that says no counts
    left_out = np.zeros(grid.size) if kind.constant is None else kind.constant(grid)
    for at in f:
        # one row at a time: a loss is the sum over its rows
        each = [kind.make_loss(np.ones((1, 1)), [y], None, np.array([at])).value(zero) for y in grid]
        total = unit * float(np.exp(-np.array(each) - left_out).sum())
        _require(abs(total - 1.0) < CLOSE, kind, f"constant: the probabilities add up to {total:.6g}")
