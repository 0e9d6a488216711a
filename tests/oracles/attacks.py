"""What a curious server computes from honest messages of one site: attacks that recover rows where nothing stops them.

Every attack takes what the server holds and returns rows as it sees them; `recovered` counts those that are rows of the
site. None of them uses the site's rows.
"""

import numpy as np
from scipy.special import expit

import bayesadmm_np as ba
from bayesadmm_np.federation import GLMData, GLMTask, Message, Site, step_site
from bayesadmm_np.federation.messages import inquiry_of
from bayesadmm_np.splitting.guarded import Guarded
from oracles.couriers import started

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


class CurvesOfRows:
    """Sums of a logistic site at several θ as functions of its rows (x, 1): Σ w xxᵀ and Σ (p − p₁)x.

    The outcomes cancel, as a gradient is compared with that at the first point.
    """

    def __init__(self, points, gradients, hessians, is_spread):
        self.points, self.upper = np.asarray(points), np.triu_indices(np.shape(points)[1])
        packed = np.array([hessian[self.upper] for hessian in hessians])
        self.goals = packed, np.asarray(gradients) - gradients[0]
        sizes = [np.abs(goal).max() for goal in self.goals]
        plain = [np.eye(len(points)) / size for size in sizes]
        self.mixes = plain if is_spread else [self._mix(goal) for goal in self.goals]

    def _mix(self, goal):
        """Return combinations over points that are orthonormal, so that points close to each other count too."""
        left, sizes, _ = np.linalg.svd(goal, full_matrices=False)
        kept = sizes > 3e-14 * np.abs(goal).max()
        return (left[:, kept] / sizes[kept]).T

    def left(self, free, n_rows):
        """What is left of the sums, and its derivatives in the free columns of the rows."""
        X = np.column_stack([free.reshape(n_rows, -1), np.ones(n_rows)])
        (i, j), m = self.upper, X.shape[1] - 1
        p = expit(X @ self.points.T)
        w, slopes = p * (1 - p), self.points[:, :m]
        pairs, moved = X[:, i] * X[:, j], p - p[:, :1]
        found = w.T @ pairs, moved.T @ X
        residuals = [(mix @ (a - b)).ravel() for mix, a, b in zip(self.mixes, found, self.goals, strict=True)]
        eye = np.eye(m + 1)[:, :m]
        in_pairs = eye[i] * X[:, j][:, :, None] + eye[j] * X[:, i][:, :, None]
        curved, sloped = self.mixes
        along = np.einsum("kt,nt,tm->knm", curved, w * (1 - 2 * p), slopes)
        first = np.einsum("kn,nqm->kqnm", curved @ w.T, in_pairs) + np.einsum("nq,knm->kqnm", pairs, along)
        along = np.einsum("kt,nt,tm->knm", sloped, w, slopes)
        along -= np.einsum("k,n,m->knm", sloped.sum(axis=1), w[:, 0], slopes[0])
        second = np.einsum("kn,qm->kqnm", sloped @ moved.T, eye) + np.einsum("nq,knm->kqnm", X, along)
        jacobian = [part.reshape(-1, n_rows * m) for part in (first, second)]
        return np.concatenate(residuals), np.concatenate(jacobian)

    def start(self, n_rows, rng):
        """Random rows with the weighted mean and covariance of the first point."""
        whole = np.zeros((self.points.shape[1],) * 2)
        whole[self.upper] = self.goals[0][0]
        whole = np.triu(whole, 1).T + whole
        mean = whole[-1, :-1] / whole[-1, -1]
        spread = np.linalg.cholesky(whole[:-1, :-1] / whole[-1, -1] - np.outer(mean, mean))
        normals = rng.normal(size=(n_rows, len(mean)))
        whitened = np.linalg.svd(normals - normals.mean(axis=0), full_matrices=False)
        return (mean + np.sqrt(n_rows) * whitened[0] @ whitened[2] @ spread.T).ravel()


def rows_of_many_sums(sums, n_rows, starts, seed=0, fits=1e-17):
    """Rows whose sums are those at several points: Levenberg and Marquardt's steps from random starts."""
    rng, best = np.random.default_rng(seed), (np.inf, None)
    for _ in range(starts):
        x, damping = sums.start(n_rows, rng), 0.1
        left, slope = sums.left(x, n_rows)
        costs = [left @ left]
        while len(costs) < 400 and (len(costs) < 40 or costs[-30] > 1.5 * costs[-1]) and costs[-1] > 1e-24:
            sizes = np.sqrt((slope**2).sum(axis=0)) + 1e-12
            U, s, V = np.linalg.svd(slope / sizes, full_matrices=False)
            along = U.T @ left
            for _ in range(10):
                tried = x - V.T @ (along * s / (s**2 + damping)) / sizes
                if np.abs(tried - x).max() <= 5:
                    new, new_slope = sums.left(tried, n_rows)
                    if new @ new < costs[-1]:
                        break
                damping *= 4
            else:
                break
            x, left, slope, damping = tried, new, new_slope, max(damping / 4, 1e-28)
            costs.append(left @ left)
        best = min(best, (costs[-1], tuple(x)))
        if best[0] < fits:
            break
    return np.column_stack([np.reshape(best[1], (n_rows, -1)), np.ones(n_rows)])


def asked(tmp_path, question, loss, rules):
    """Return the answer of a site to a question, or the codes of its refusal."""
    site = Site("A", GLMData(loss), rules=rules)
    task = GLMTask(Guarded(ba.methods.Newton()), lambda d: ba.families.FullGaussian(np.zeros(d), 0.0), asks=True)
    spec = started([Site(name, GLMData(loss)) for name in "ABC"], task).spec
    inquiry_of(spec, 1, *spec.pack_question(question)).write(tmp_path / "m.npz")
    said = Message.read(step_site(tmp_path, site, tmp_path / "m.npz")[1])
    arrays = {name.removeprefix("a/"): array for name, array in said.arrays.items()}
    return {**said.header["content"], **arrays}, said.header["refused"]
