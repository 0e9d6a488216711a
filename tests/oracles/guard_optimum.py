"""The pooled optimum by other means than the library's: Newton's method in (mean, Cholesky factor), all rows at hand.

    F(m, C) = Σ_i E[ℓ_i] + ½ (m − m_0)ᵀP_0(m − m_0) + ½ tr(P_0CCᵀ) − log det C − ½ (d + log det(P_0⁻¹ …))

is convex in (m, C) with C lower triangular in the family's blocks. At every point the step (a, T), m + Ca and CT, is
taken in the coordinates whitened by C, where F is well scaled whatever the units of the columns. Only the integrals of
a row over its predictor are the library's.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular

from bayesadmm_np.losses import Auto
from bayesadmm_np.losses.pointwise import BernoulliLogit, CategoricalLogit, PoissonLog

EPS = float(np.finfo(float).eps)

RESOLVED = 1e-3
"""Largest effect of rounding on the optimum, in posterior standard deviations, with which it is known."""

MOST_STEPS, MOST_SAMPLED = 200, 50
"""Steps from a start; of sampled integrals, which take a hundred times as long, the last ones tell nothing."""


class Unresolved(Exception):
    """The optimum is not known in double precision; the reason is the message."""


@dataclass(frozen=True)
class Point:
    """A Gaussian by its mean and a square root of its covariance."""

    mean: np.ndarray
    root: np.ndarray


class Pooled:
    """F of a problem, its derivatives, and its minimum; `at_mode` that of the mode alone, without a covariance."""

    def __init__(self, problem, at_mode=False):
        self.problem, self.at_mode = problem, at_mode
        n, C, p = len(problem.X), problem.n_classes, problem.X.shape[1]
        self.rows = np.zeros((n, C, C * p))
        for c in range(C):
            self.rows[:, c, c * p : (c + 1) * p] = problem.X
        self.dim = C * p
        sizes = {"full": (self.dim,), "diagonal": (1,) * self.dim, "block": problem.blocks}[problem.family]
        sizes = (self.dim,) if at_mode else sizes
        owner = np.repeat(np.arange(len(sizes)), sizes)
        self.same = owner[:, None] == owner[None, :]
        self.entries = [(j, k) for j in range(self.dim) for k in range(j + 1) if self.same[j, k]]
        self.pointwise = {
            "logistic": BernoulliLogit(),
            "poisson": PoissonLog(),
            "softmax": CategoricalLogit(max(C, 2)),
            "least squares": None,
        }[problem.kind]
        self.is_sampled = problem.n_classes > 2 and not at_mode

    def moments(self, f, V):
        """Mean value, slope and curvature of every row; f is (n, C) and V is (n, C, C)."""
        y = self.problem.y
        if self.pointwise is None:
            rest = f[:, 0] - y
            return 0.5 * (rest**2 + V[:, 0, 0]), rest[:, None], np.ones_like(V)
        if self.problem.kind == "poisson":
            rate = np.exp(f[:, 0] + 0.5 * V[:, 0, 0])
            return rate - y * f[:, 0], (rate - y)[:, None], rate[:, None, None]
        if self.problem.kind == "logistic":
            found = Auto().resolve(self.pointwise).moments(self.pointwise, f[:, 0], V[:, 0, 0], y)
            return found.value, found.slope[:, None], found.curvature[:, None, None]
        found = Auto().resolve(self.pointwise).moments(self.pointwise, f, V, y)
        return found.value, found.slope, found.curvature

    @np.errstate(all="ignore")
    def value(self, point):
        """F; infinite where it overflows. The constant of the prior's entropy is that of a KL divergence."""
        terms = self.terms(point)
        return float(terms.sum()) if np.isfinite(terms).all() else np.inf

    def terms(self, point):
        f, V = self.predictors(point)
        offset = point.mean - self.problem.mean
        precision = self.problem.precision
        own = [*self.moments(f, V)[0], 0.5 * precision * float(offset @ offset)]
        if not self.at_mode:
            own.append(0.5 * precision * float((point.root**2).sum()))
            own.append(-np.linalg.slogdet(point.root)[1])
            own.append(-0.5 * self.dim * (1.0 + np.log(precision)))
        return np.array(own)

    @np.errstate(all="ignore")
    def rounding(self, point):
        """Bound on the rounding of F by any order of adding, and of predictors formed from large means."""
        f, V = self.predictors(point)
        slope = self.moments(f, V)[1]
        size = np.abs(self.terms(point)).sum()
        predictor = np.einsum("icd,d,ic->", np.abs(self.rows), np.abs(point.mean), np.abs(slope))
        return float(EPS * ((len(self.rows) + self.dim + 1000) * size + 10 * self.dim * predictor))

    def slack(self, point):
        """How far values of F can be apart where nothing is wrong; a sampled integral is good to some digits."""
        sampled = 1e-5 * (1.0 + abs(self.value(point))) if self.is_sampled else 0.0
        return RESOLVED**2 + 8 * self.rounding(point) + sampled

    def predictors(self, point):
        f = self.rows @ point.mean
        if self.at_mode:
            return f, np.zeros((*f.shape, f.shape[1]))
        Z = self.rows @ point.root
        return f, Z @ Z.transpose(0, 2, 1)

    def slopes(self, point):
        """Gradient of F in the whitened (a, T) at (0, I), and what its Hessian is made of."""
        f, V = self.predictors(point)
        Z = self.rows @ point.root
        _, slope, W = self.moments(f, V)
        precision = self.problem.precision
        a = np.einsum("icd,ic->d", Z, slope) + precision * point.root.T @ (point.mean - self.problem.mean)
        R = np.einsum("icd,ice,ief->df", Z, W, Z) + precision * point.root.T @ point.root
        if self.at_mode:
            return a, R, (f, V, Z, W)
        T = np.array([R[j, k] - (j == k) for j, k in self.entries])
        return np.concatenate([a, T]), R, (f, V, Z, W)

    def hessian(self, R, f, V, Z, W):
        d, entries = self.dim, self.entries
        if self.at_mode:
            return R
        ways_T = np.zeros((len(entries), len(Z), Z.shape[1], Z.shape[1]))
        for e, (j, k) in enumerate(entries):
            outer = Z[:, :, j, None] * Z[:, None, :, k]
            ways_T[e] = outer + outer.transpose(0, 2, 1)
        dW_T, ds_T = self.bends(f, V, W, ways_T)
        H = np.zeros((d + len(entries), d + len(entries)))
        H[:d, :d] = R
        H[:d, d:] = np.einsum("icd,eic->de", Z, ds_T)
        H[d:, :d] = H[:d, d:].T
        for e, (j, k) in enumerate(entries):
            dR = np.einsum("icd,ice,ief->df", Z, dW_T[e], Z)
            dR[:, k] += R[:, j]  # R dT
            column = np.array([dR[row] for row in entries])
            column[e] += j == k
            H[d:, d + e] = column
        return 0.5 * (H + H.T)

    def bends(self, f, V, W, ways_T):
        """Changes of a row's curvature and slope along moves of its predictor's variance.

        By Price's theorem an integral moves as half its second derivative in the mean, which is formed by differences;
        exact for Poisson and least squares.
        """
        C = f.shape[1]
        if self.pointwise is None:
            zero = np.zeros_like(W)
            third, fourth = [zero], {(0, 0): zero}
        elif self.problem.kind == "poisson":
            third, fourth = [W], {(0, 0): 0.5 * W}
        else:
            h = 1e-2 * np.maximum(1.0, np.sqrt(np.diagonal(V, axis1=1, axis2=2).max(axis=1)))
            ways = h[:, None, None] * np.eye(C)
            wide = h[:, None, None]
            ahead = [self.moments(f + ways[:, c], V)[2] for c in range(C)]
            behind = [self.moments(f - ways[:, c], V)[2] for c in range(C)]
            third = [(one - other) / (2 * wide) for one, other in zip(ahead, behind, strict=True)]
            fourth = {(c, c): 0.5 * (ahead[c] - 2 * W + behind[c]) / wide**2 for c in range(C)}
            for c in range(C):
                for e in range(c):
                    both = self.moments(f + ways[:, c] + ways[:, e], V)[2]
                    fourth[c, e] = 0.5 * (both - ahead[c] - ahead[e] + W) / wide**2
        dW_T = sum(ways_T[:, :, c, e, None, None] * (1.0 if c == e else 2.0) * fourth[c, e] for c, e in fourth)
        # ds_c = ½ Σ_ef ∂W_ef/∂f_c dV_ef
        ds_T = np.stack([0.5 * np.einsum("tief,ief->ti", ways_T, third[c]) for c in range(C)], axis=2)
        return dW_T, ds_T

    def moved(self, point, step, share):
        """The point a share of the whitened step away."""
        mean = point.mean + share * point.root @ step[: self.dim]
        if self.at_mode:
            return Point(mean, point.root)
        T = np.eye(self.dim)
        for (j, k), entry in zip(self.entries, step[self.dim :], strict=True):
            T[j, k] += share * entry
        return Point(mean, point.root @ T) if np.diagonal(T).min() > 0.0 else None

    def begun(self):
        """A point where F is finite: the fit of a working response, with the curvature there."""
        problem, precision = self.problem, self.problem.precision
        C = problem.n_classes
        response = np.zeros((len(problem.X), C))
        weight = np.full(len(problem.X), 0.25 if C == 1 else 1.0 / C)
        if problem.kind == "poisson":
            response, weight = np.log(problem.y + 0.5)[:, None], problem.y + 0.5
        elif problem.kind == "least squares":
            response, weight = problem.y[:, None], np.ones(len(problem.y))
        H = precision * np.eye(self.dim) + np.einsum("icd,i,ice->de", self.rows, weight, self.rows)
        pull = np.einsum("icd,i,ic->d", self.rows, weight, response - self.rows @ problem.mean)
        size = np.sqrt(np.diag(H))
        scaled = H / np.outer(size, size)
        mean = problem.mean + np.linalg.lstsq(scaled, pull / size, rcond=1e-14)[0] / size
        root = np.zeros((self.dim, self.dim))
        owner = 0
        sizes = np.unique(np.argmax(self.same, axis=0), return_counts=True)[1]
        for n in sizes:
            part = slice(owner, owner + n)
            ridge = scaled[part, part] + 1e-13 * np.eye(n)
            upper = np.linalg.cholesky(ridge[::-1, ::-1])[::-1, ::-1]
            root[part, part] = solve_triangular(upper, np.eye(n), lower=False).T / size[part, None]
            owner += n
        tries = [Point(mean, root), *(Point(np.zeros(self.dim), size * root) for size in (1.0, 1e-3, 1e-6))]
        return next((one for one in tries if np.isfinite(self.value(one))), tries[0])

    @np.errstate(all="ignore")
    def minimum(self, start):
        """The point where Newton's method with halving ends."""
        point, best = start, self.value(start)
        if not np.isfinite(best):
            raise Unresolved("F is not finite at the start of the oracle")
        still = 0
        for _ in range(MOST_SAMPLED if self.is_sampled else MOST_STEPS):
            g, R, parts = self.slopes(point)
            step, decrement = solved(self.hessian(R, *parts), g)
            if not np.isfinite(step).all():
                raise Unresolved("a Newton step of the oracle is not finite")
            if decrement <= 1e-18:
                break
            noise = 4 * self.rounding(point)
            share, taken = 1.0, False
            while share > 1e-12:
                after = self.moved(point, step, share)
                value = np.inf if after is None else self.value(after)
                if value <= best - 1e-4 * share * decrement or (decrement <= noise and value <= best + noise):
                    taken = True
                    break
                share *= 0.5
            still = still + 1 if decrement <= noise else 0
            if not taken and self.is_sampled:
                return self.polished(point, step, decrement)
            if not taken or still > 12:
                break
            point, best = self.refactored(after), min(best, value)
        return point

    def polished(self, point, step, decrement):
        """Whole steps while they shrink: values of a sampled integral are not those of its slopes."""
        for _ in range(40):
            after = self.moved(point, step, 1.0)
            if after is None:
                break
            g, R, parts = self.slopes(after)
            step, now = solved(self.hessian(R, *parts), g)
            if not now < decrement:
                break
            point, decrement = after, now
        return point

    def refactored(self, point):
        """The point with a root that is the inverse root of its own curvature: of the mode, which has none else."""
        if not self.at_mode:
            return point
        _, R, _ = self.slopes(point)
        values, vectors = np.linalg.eigh(0.5 * (R + R.T))
        values = np.maximum(values, EPS * values.max())
        return Point(point.mean, point.root @ (vectors / np.sqrt(values)))

    @cached_property
    def optimum(self):
        """The minimum from two starts, which must agree.

        Raises
        ------
        Unresolved
            When rounding moves it by more than `RESOLVED` standard deviations, or no minimum is reached.
        """
        first = self.begun()
        found = self.minimum(self.refactored(first))
        rng = np.random.default_rng(0)
        shift = 0.3 * rng.standard_normal(self.dim + (0 if self.at_mode else len(self.entries)))
        shift = np.clip(shift, -0.5, 0.5)
        tries = [self.moved(found, shift, size) for size in (1.0, 0.1, 0.01)]
        other = next((one for one in tries if np.isfinite(self.value(one))), found)
        again = self.minimum(other)
        for point in (found, again):
            left, noise = self.decrement(point)
            if not noise <= RESOLVED:
                raise Unresolved("rounding of the gradient")
            if not left <= RESOLVED + noise:
                raise Unresolved("the oracle did not converge")
        values = self.value(found), self.value(again)
        if abs(values[0] - values[1]) > self.slack(found):
            raise Unresolved("two starts of the oracle disagree")
        return found if values[0] <= values[1] else again

    @np.errstate(all="ignore")
    def decrement(self, point):
        """√(gᵀH⁻¹g), F's distance to its minimum in standard deviations to first order; and the share of rounding."""
        g, R, (f, V, Z, W) = self.slopes(point)
        H = self.hessian(R, f, V, Z, W)
        shift = EPS * np.einsum("icd,d->ic", np.abs(self.rows), np.abs(point.mean))
        slope = EPS * np.abs(self.moments(f, V)[1]) + np.einsum("ice,ie->ic", np.abs(W), shift)
        # of independent signs: the bound by absolute values is far off where a thousand rows cancel
        noise = np.sqrt((np.einsum("icd,ic->id", Z, slope) ** 2).sum(axis=0))
        noise = np.concatenate([noise, np.zeros(len(g) - self.dim)])
        return float(np.sqrt(max(solved(H, g)[1], 0.0))), float(np.sqrt(max(solved(H, noise)[1], 0.0)))

    def reached(self, posterior):
        """The point of a posterior of the library."""
        return Point(np.asarray(posterior.mean), inverse_root(posterior.factor, self.dim))

    @np.errstate(all="ignore")
    def distance(self, point):
        """F above the optimum, and the largest distance of a mean in standard deviations of the optimum."""
        best = self.optimum
        away = np.linalg.lstsq(best.root, point.mean - best.mean, rcond=None)[0]
        return self.value(point) - self.value(best), float(np.linalg.norm(away))


def solved(H, g):
    """Newton's step −H⁻¹g, with negligible and negative eigenvalues lifted, and gᵀH⁻¹g."""
    size = np.sqrt(np.maximum(np.abs(np.diag(H)), 1e-300))
    values, vectors = np.linalg.eigh(H / np.outer(size, size))
    values = np.maximum(np.abs(values), 1e-15 * np.abs(values).max())
    inner = vectors.T @ (g / size)
    return -(vectors @ (inner / values)) / size, float(inner @ (inner / values))


def inverse_root(factor: Any, dim: int) -> np.ndarray:
    """A square root of the covariance of a precision: L⁻ᵀ of its Cholesky factor L, block by block."""
    root, at = np.zeros((dim, dim)), 0
    for part in factor.parts:
        if part.ndim == 1:
            return np.diag(1.0 / np.sqrt(part))
        n = len(part)
        size = np.sqrt(np.diag(part))
        try:
            lower = np.linalg.cholesky(part / np.outer(size, size))
        except np.linalg.LinAlgError:
            return np.full((dim, dim), np.nan)
        root[at : at + n, at : at + n] = solve_triangular(lower, np.eye(n), lower=True).T / size[:, None]
        at += n
    return root
