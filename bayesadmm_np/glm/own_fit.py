"""A site's own maximum-likelihood fit, from its rows alone: what a two-stage meta-analysis combines.

A column that is constant at a site, or a separation of its rows, leaves the site without an estimate of some
coefficients. The others keep theirs: the fit runs on the rows that no separation moves, where the likelihood has a
maximum, and its information has the rank of what these rows determine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from .._numerics import EPS, driven
from .._validation import Array
from ..losses.base import Loss, effective_rows
from ..losses.least_squares import LeastSquares
from ..losses.likelihood import SiteLikelihood
from ..losses.linear_model import LinearModelLoss, row_factor
from ..losses.pointwise import CategoricalLogit
from . import separation
from .columns import orthonormal_basis
from .kinds import Kind
from .refit import derivatives, refit
from .site_statistics import WeightMeaning, site_statistics, undivided
from .whole import maximise, undetermined

INSIDE = 1e-8
"""Part of a combination of coefficients outside what the rows determine, up to which it is rounding."""

FAR = 200.0
"""Predictor by which a class is left out of a row: its probability there is no number in doubles."""

ROUNDING = 64.0 * EPS
"""Root of the residual over the null deviance up to which residuals are rounding: a few dozen operations a row."""

MOST_STEPS = 400
"""Points that a fit may try: counts with offsets of 150 are as many steps from zero, and halved steps come first."""


@dataclass(frozen=True, eq=False)
class OwnFit:
    """A site's own maximum-likelihood fit `mean`, shape (d,), in the coordinates of the run.

    `root`, shape (r, d), has rootᵀroot = the information at a noise variance of 1; combinations in its row space have
    estimates. `span`, shape (q, d), has the row space of the columns where a separation makes that larger.
    `dispersion` is Pearson's χ² over `df_residual`, of least squares the residual variance, 0 where there is none.
    """

    mean: Array
    root: Array
    span: Array
    dispersion: float
    df_residual: float

    def combine(self, change: Array) -> tuple[NDArray[np.bool_], NDArray[np.bool_], Array]:
        """Return which of change @ θ have an estimate, which a separation makes infinite, and H of the first.

        H @ H.T is their covariance at a noise variance of 1.
        """
        known, half = _inside(self.root, change)
        return known, _inside(self.span, change)[0] & ~known, half


def _inside(rows: Array, change: Array) -> tuple[NDArray[np.bool_], Array]:
    """Return which rows of `change` lie in the row space of `rows`, and their coordinates c, cᵀrows, in it."""
    rows = rows[rows.any(axis=1)]
    if not len(rows):
        return np.zeros(len(change), dtype=bool), np.zeros((0, 0))
    scale = np.linalg.norm(rows, axis=0)
    scale = np.where(scale > 0.0, scale, 1.0)
    axes, triangle = np.linalg.qr((rows / scale).T)
    wanted = change / scale
    inner = wanted @ axes
    outside = np.linalg.norm(wanted - inner @ axes.T, axis=1)
    known = np.asarray(outside <= INSIDE * np.linalg.norm(wanted, axis=1))
    return known, np.asarray(solve_triangular(triangle, inner[known].T).T)


@np.errstate(over="ignore", invalid="ignore")  # where the search has gone too far
def own_fit(
    kind: Kind, loss: Loss, free: NDArray[Any], *, noise_variance: float = 1.0, weights: WeightMeaning = "frequency"
) -> tuple[OwnFit, float]:
    """Fit the rows of one site alone; return also the number of rows with information, infinity for none.

    `free`, shape (p,), is 0 for columns without a coefficient. The loss was divided by `noise_variance`. Raises a
    ValueError if the loss has no `rows`, or the fit does not converge.
    """
    if isinstance(loss, SiteLikelihood):
        return _of_likelihood(loss, weights)
    rows = loss.rows(np.zeros(loss.dim))  # which not every loss shows
    used = rows.weights > 0
    w, X = undivided(rows.weights[used], noise_variance), rows.X[used] * free
    n = float(w.sum() if weights == "frequency" else w.size)
    if isinstance(loss, LeastSquares):
        return _least_squares(loss, X, rows.target[used].reshape(len(w), -1), w, n)
    if not isinstance(loss, LinearModelLoss):
        raise ValueError(f"{type(loss).__name__} is no function of a predictor")
    offset = None if loss.offset is None else loss.offset[used]
    return _by_newton(kind, kind.make_loss(X, loss.y[used], w, offset, loss.n_outputs), n)


def _of_likelihood(loss: SiteLikelihood, weights: WeightMeaning) -> tuple[OwnFit, float]:
    """Fit a likelihood of a site's rows together; nothing where the rows leave a parameter open."""
    d, n = loss.dim, loss.total_weight if weights == "frequency" else float(loss.n_rows)
    nothing = OwnFit(np.zeros(d), np.zeros((1, d)), np.zeros((1, d)), 0.0, 0.0), np.inf
    try:
        found = driven(maximise(loss.own_start(), np.ones(d)), lambda theta: [derivatives(loss, theta)])
    except ValueError:
        return nothing
    information = loss.information(found.theta)
    if not found.is_maximum or not np.isfinite(information).all() or undetermined(information).any():
        return nothing
    root = np.ascontiguousarray(np.linalg.cholesky(information).T)  # as a message has the array
    return OwnFit(found.theta, root, np.zeros((1, d)), 0.0, n - d), min(loss.rests_on(found.theta))


def _least_squares(loss: LeastSquares, X: Array, y: Array, w: Array, n: float) -> tuple[OwnFit, float]:
    """Fit n observations by the triangular factor of columns and target, whose digits are those of the rows."""
    triangle, p = row_factor(np.column_stack([X, y]), w), X.shape[1]
    R, goal = triangle[:, :p], triangle[:, p:]
    basis, back = _frame(R)
    coef = basis @ ((R @ basis).T @ goal)
    left = goal - R @ coef
    rss, spread = float((left**2).sum()), float(w @ ((y - w @ y / w.sum()) ** 2).sum(axis=1))
    df = (n - len(back)) * loss.n_outputs
    dispersion = rss / df if df > 0 and rss > ROUNDING**2 * spread else 0.0
    root = np.asarray(np.kron(np.eye(loss.n_outputs), back), dtype=np.float64)
    return OwnFit(coef.T.ravel(), root, np.zeros((1, root.shape[1])), dispersion, df), effective_rows(w)


def _by_newton(kind: Kind, loss: Loss, n: float) -> tuple[OwnFit, float]:
    """Fit n observations by Newton's method on what no separation moves."""
    assert isinstance(loss, LinearModelLoss)
    basis, back = _frame(np.asarray(np.kron(np.eye(loss.n_outputs), row_factor(loss.X)), dtype=np.float64))
    df, span, d = n - len(back), np.zeros((1, loss.dim)), loss.dim
    if separation.has_walls(loss):
        walls, stands = separation.walls_of(loss), separation.held(loss)
        moves = walls.any(axis=2) & ~stands
        if moves.any():
            span = back
            if not stands.any() or not (loss.n_outputs == 1 or isinstance(loss.pointwise, CategoricalLogit)):
                return OwnFit(np.zeros(d), np.zeros((1, d)), span, 0.0, 0.0), np.inf
            basis, back = _frame(_factor_of(loss.X, walls * stands[:, :, None]))
            loss = _standing(kind, loss, stands, moves)
    free = np.ones(len(back))
    found = driven(
        refit(0.0 * free, free, most_exchanges=MOST_STEPS), lambda z: [derivatives(loss, basis @ z).along(basis)]
    )
    mean = basis @ found.theta
    rows, information = loss.rows(mean), derivatives(loss, mean).along(basis).hessian
    root = np.linalg.cholesky(0.5 * (information + information.T)).T @ back
    pearson = site_statistics(kind, loss, mean, mean).pearson
    return OwnFit(mean, root, span, pearson / df if df > 0 and pearson is not None else 0.0, df), rows.effective


def _frame(factor: Array) -> tuple[Array, Array]:
    """Return B, which makes the columns of a factor orthonormal, and the coordinates of θ in it, shape (r, d)."""
    basis = orthonormal_basis([factor])
    return basis, (factor @ basis).T @ factor


def _standing(kind: Kind, loss: LinearModelLoss, stands: separation.Held, moves: separation.Held) -> Loss:
    """Return the loss where a separation has moved all that it moves: of the rows and classes that are left."""
    used = np.asarray(stands.any(axis=1))
    offset = None if loss.offset is None else loss.offset[used]
    if loss.n_outputs > 1:
        away = np.where(moves[used], -FAR, 0.0)  # a constraint for each class, that of a reference first
        away = away[:, 1:] - away[:, :1] if away.shape[1] > loss.n_outputs else away
        offset = away if offset is None else offset + away
    return kind.make_loss(loss.X[used], loss.y[used], loss.weights[used], offset, loss.n_outputs)


def _factor_of(X: Array, walls: Array) -> Array:
    """Return F with FᵀF = Σ a_j a_jᵀ over the constraints a_j = b_j ⊗ x_i, b in `walls`, shape (n, m, C)."""
    patterns, which = np.unique(walls.reshape(len(X), -1), axis=0, return_inverse=True)
    parts = [
        np.kron(pattern.reshape(walls.shape[1:]), row_factor(X[which.ravel() == place]))
        for place, pattern in enumerate(patterns)
        if pattern.any()
    ]
    return np.vstack(parts)
