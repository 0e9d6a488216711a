"""What a curious server computes from honest messages of one site: attacks that recover rows where nothing stops them.

Every attack takes what the server holds and returns rows as it sees them; `recovered` counts those that are rows of the
site. None of them uses the site's rows.
"""

import numpy as np
from scipy.optimize import least_squares
from scipy.special import expit
from scipy.stats import norm

DIGITS = 1e-6
"""Of a recovered row: every number of it, relative to the column's range."""


def recovered(rows, seen, to=DIGITS):
    """Return how many of the rows are among those that were seen."""
    rows, seen = np.atleast_2d(rows), np.atleast_2d(seen)
    size = np.maximum(np.abs(rows).max(axis=0), 1.0)
    apart = (
        np.abs((rows[:, None, :] - seen[None, :, :]) / size).max(axis=2) if seen.size else np.full((len(rows), 1), 9.0)
    )
    return int((apart.min(axis=1) <= to).sum())


def rows_of_two_curvatures(first, second):
    """XᵀW₁X and XᵀW₂X of no more rows than columns, the last of ones: the pencil's eigenvectors are the rows' duals.

    With X = U the rows, W₁ = diag(w), W₂ = diag(v): in the range of XᵀW₁X, of n dimensions, (XᵀW₂X)c = λ(XᵀW₁X)c
    has λ_i = v_i/w_i, and (XᵀW₁X)c_i is a multiple of x_i.
    """
    values, vectors = np.linalg.eigh(first)
    basis = vectors[:, values > values[-1] * 1e-9]
    inner = np.linalg.solve(basis.T @ first @ basis, basis.T @ second @ basis)
    directions = first @ basis @ np.linalg.eig(inner)[1].real
    return (directions / directions[-1]).T


def row_of_a_single_one(gram, moment, column):
    """XᵀX and Xᵀy, a column being 1 in one row and 0 in the others: its line is the row, its moment the target."""
    return np.append(gram[column], moment[column])


def two_values(mean, squares):
    """A column of two rows from their mean and Σ(x − x̄)²."""
    return np.array([[mean - np.sqrt(squares / 2)], [mean + np.sqrt(squares / 2)]])


def largest_value(hessian):
    """The largest x of columns (x, 1), from the curvature far on its other side, where its row outweighs the others."""
    return hessian[0, 1] / hessian[1, 1]


def far_point(centre, slope):
    """A θ of columns (x, 1) with most weight at a centre."""
    return np.array([slope, -slope * centre])


def wide_but_at(row, width):
    """A precision under which predictors are narrow in one row of columns (x, z, …, 1), and wide at other x.

    E_q[ℓ''] of a logistic row falls with the width of its predictor.
    """
    precision = np.diag(np.r_[1 / width**2, np.ones(len(row) - 2), 0.0])
    return precision + np.outer(row, row)


def values_of_many_points(points, hessians, n_rows, seed=0):
    """All x of columns (x, 1) from XᵀWX at many points: as many equations as there are, by least squares."""
    upper = np.triu_indices(2)
    goal = np.concatenate([hessian[upper] for hessian in hessians])

    def left(x):
        f = np.outer([theta[0] for theta in points], x) + np.array([theta[1] for theta in points])[:, None]
        w = expit(f) * expit(-f)
        return np.column_stack([w @ x**2, w @ x, w.sum(axis=1)]).ravel() - goal

    rng, best = np.random.default_rng(seed), None
    usual = norm.ppf((np.arange(n_rows) + 0.5) / n_rows)
    for noise in (0.0, 0.1, 0.1, 0.2, 0.2):
        start = np.sort(usual + noise * rng.normal(size=n_rows))
        found = least_squares(left, start, xtol=1e-15, ftol=1e-15, gtol=1e-15, max_nfev=500)
        best = found if best is None or found.cost < best.cost else best
    return best.x[:, None]
