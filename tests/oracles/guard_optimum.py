"""The pooled optimum of a problem by `solve_pooled`, all rows at hand, and how far rounding lets its numbers be off."""

from functools import cached_property

import numpy as np

import bayesadmm_np as ba

EPS = float(np.finfo(float).eps)

RESOLVED = 1e-3
"""Largest effect of rounding on the optimum, in posterior standard deviations, with which it is known."""


class Unresolved(Exception):
    """The optimum is not known in double precision; the reason is the message."""


class Pooled:
    """F of a problem, and its minimum; `at_mode` that of the mode alone, without a covariance."""

    def __init__(self, problem, at_mode=False):
        self.problem, self.at_mode = problem, at_mode
        self.dim, self.clients, self.prior = problem.dim, problem.clients, problem.prior
        self.rows = [problem.loss(problem.X[i : i + 1], problem.y[i : i + 1]) for i in range(len(problem.X))]
        self.is_sampled = problem.n_classes > 2 and not at_mode
        self.rule = ba.losses.Delta(2) if at_mode else ba.losses.Auto()

    @np.errstate(all="ignore")
    def value(self, q):
        """F; infinite where it overflows."""
        losses, terms = self.terms(self.clients, q)
        found = sum(losses) + sum(terms)
        return float(found) if np.isfinite(found) else np.inf

    def terms(self, losses, q):
        """Values of losses, and the prior's part of F."""
        if self.at_mode:
            offset = q.mean - self.prior.mean
            return [loss.value(q.mean) for loss in losses], [0.5 * self.problem.precision * float(offset @ offset)]
        return [self.expect(loss, q).value for loss in losses], [q.kl(self.prior)]

    def expect(self, loss, q):
        return loss.expect(q, loss.check(self.prior, self.rule))

    @np.errstate(all="ignore")
    def rounding(self, q):
        """Bound on the rounding of F by any order of adding, and of predictors formed from large means."""
        values, own = self.terms(self.rows, q)
        size = np.abs([*values, *own]).sum() + self.dim
        predictor = sum(float(np.abs(self.expect(row, q).gradient) @ np.abs(q.mean)) for row in self.rows)
        return float(EPS * ((len(self.rows) + self.dim + 1000) * size + 10 * self.dim * predictor))

    def slack(self, q):
        """How far values of F can be apart where nothing is wrong; a sampled integral is good to some digits."""
        sampled = 1e-5 * (1.0 + abs(self.value(q))) if self.is_sampled else 0.0
        return RESOLVED**2 + 8 * self.rounding(q) + sampled

    @cached_property
    def optimum(self):
        """The posterior at the minimum.

        Raises
        ------
        Unresolved
            When rounding moves it by more than `RESOLVED` standard deviations, or no minimum is reached.
        """
        full = ba.families.FullGaussian(self.prior.mean, self.problem.precision)
        try:
            found = ba.solve_pooled(self.clients, full if self.at_mode else self.prior, expectation=self.rule)
        except (RuntimeError, ValueError) as reason:
            raise Unresolved(str(reason)[:60]) from reason
        if not (found.residual <= RESOLVED and self.noise(found.posterior) <= RESOLVED):
            raise Unresolved("rounding of the gradient")
        return found.posterior

    @np.errstate(all="ignore")
    def noise(self, q):
        """Effect on the mean of the rounding of the gradient, in standard deviations, for independent signs of rows."""
        sums = [self.expect(row, q) for row in self.rows]
        errors = [np.abs(one.gradient) + np.abs(one.curvature.dense()) @ np.abs(q.mean) for one in sums]
        curvature = self.problem.precision * np.eye(self.dim) + sum(one.curvature.dense() for one in sums)
        size = np.sqrt(np.diag(curvature))
        try:
            root = np.linalg.cholesky(curvature / np.outer(size, size))
        except np.linalg.LinAlgError:
            return np.inf
        return float(EPS * np.linalg.norm(np.linalg.solve(root, np.linalg.norm(errors, axis=0) / size)))

    @np.errstate(all="ignore")
    def distance(self, q):
        """F above the optimum, and the distance of the mean in standard deviations of the optimum."""
        best = self.optimum
        move = q.mean - best.mean
        return self.value(q) - self.value(best), float(np.sqrt(move @ best.factor.multiply(move)))
