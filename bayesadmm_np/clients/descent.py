"""Newton's method in the mean and a factor of the covariance, where the objective is convex: the way that cannot stall.

With θ = m + C B z, z white noise, and ∂/∂(m, B) taken at B = I, where CCᵀ is the iterate's covariance,

    ∂F/∂m = E_q[∇ℓ] + v − Vm + ρS_g(m − m_g)
    ∂F/∂B = ρ Cᵀ (S_g + (E_q[∇²ℓ] − V)/ρ − S) C.

E_q[ℓ] = E ℓ(m + CBz) is convex in (m, B) where ℓ is convex; the quadratic terms are where ρS_g − V ⪰ 0, and so is
−ρ log det B. So a Newton step, damped by Armijo's rule, always makes progress. The Hessian is formed if the loss has
third and fourth derivatives and d is small. Otherwise products with it are differences of gradients, and conjugate
gradients solve for the step.

E exp(xᵀθ) is convex in mean and covariance too, where its valley, xᵀm + ½xᵀΣx constant, is straight. A step that had to
be shortened, or gained little, is followed by a step in the other coordinates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .._numerics import EPS, Trial, conjugate_gradients, driven, line_search, rounding_unit
from .._validation import Array
from ..families.gaussian import Gaussian
from ..families.precision import DensePrecision, NotPositiveDefiniteError
from ..losses.base import GaussianExpected
from ..losses.expectations import Exact
from ..losses.tensors import entries, unpack_tensors
from .problem import ClientStatus, Iterate, Solution, Subproblem

MOST_DENSE = 1000
"""Most parameters for which the d × d matrix of Newton's step in the mean is formed."""
PROBE = 1e-6
"""Length, in standard deviations, of the step over which gradients are differenced."""
MOST_PRODUCTS = 60
"""Most products with the Hessian in one step."""
MOST_FORMED = 250
"""Most coordinates for which the Hessian of a step in mean and covariance is formed."""
NEGLIGIBLE = 4e-7
"""Decrease of the objective still possible in an accepted answer: ½ (9e-4 standard deviations)²."""
NEAR = 2e-4
"""Residual of an accepted answer with a learned precision."""
MOST_IDLE = 3
"""Steps below rounding that do not lower the residual either, before the descent ends."""


def descend(problem: Subproblem, current: Iterate, done: int, max_iter: int, tol: float) -> Solution:
    """Minimise a well-posed subproblem from an iterate, until the tolerance, rounding, or the limit of iterations."""
    moves = current.q.learns_precision and not problem.rule.is_delta
    if moves and current.q.dim > MOST_DENSE and not current.residual <= tol:
        return current.solution(done, ClientStatus.ITERATION_LIMIT)
    power, best, idle, slope = 2, current, 0, -np.inf
    while not current.residual <= tol:
        if done >= max_iter:
            return current.solution(done, ClientStatus.ITERATION_LIMIT)
        step = _Step.at(Chart(problem, current.q, moves, power), current)
        idle = idle + 1 if step.is_hidden and current.residual > 0.9 * best.residual else 0
        best = current if not step.is_hidden or current.residual < best.residual else best
        following, t = step.search() if idle < MOST_IDLE else (None, 0.0)
        if following is None:
            return best.solution(done, step.ending)
        current, done = following, done + 1
        power = power if t == 1.0 and step.slope > 0.5 * slope else 3 - power
        slope = step.slope
    return current.solution(done, ClientStatus.CONVERGED)


class Chart(NamedTuple):
    """The coordinates (a, E) around q = N(m, S⁻¹), S = LLᵀ: mean m + L⁻ᵀa, covariance L⁻ᵀ(I + E)ᵖL⁻¹, E symmetric.

    A vector stacks a and the entries of E, of Frobenius length; none where the precision is fixed or does not act back.
    """

    problem: Subproblem
    q: Gaussian
    moves_precision: bool
    power: int

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return self.q.natural.size if self.moves_precision else self.q.dim

    def point(self, vector: Array) -> Gaussian:
        """The member with these coordinates; NotPositiveDefiniteError where I + E is not positive definite."""
        q, a, e = self.q, *np.split(vector, [self.q.dim])
        mean = q.mean + q.factor.colour(a)
        if not self.moves_precision:
            return q.at(mean, q.factor.parts)
        inner = q.factor.map_whitened(e, self._of_precision)
        return q.at(mean, q.factor.unwhiten(inner, -np.inf))

    def _of_precision(self, values: Array) -> Array:
        if not (values > -1.0).all():
            raise NotPositiveDefiniteError("the step leaves the domain: I + E is not positive definite.")
        return (1.0 + values) ** -self.power

    def gradient(self, vector: Array, q: Gaussian, expected: GaussianExpected) -> Array:
        """The objective's gradient at the point `q` with these coordinates."""
        own = self.q.factor
        mean_part = own.half_solve(self.problem.mean_gradient(q, expected))
        if not self.moves_precision:
            return mean_part
        target = self.problem.target(expected.natural_gradient)
        excess = own.whiten([new - old for new, old in zip(target.parts[1:], q.factor.parts, strict=True)])
        if self.power == 2:
            excess = excess + own.symmetrised(excess, vector[self.q.dim :])
        return np.concatenate([mean_part, 0.5 * self.power * self.problem.rho * excess])


class _Step(NamedTuple):
    """A direction of descent in a chart, and how far to go along it."""

    chart: Chart
    current: Iterate  # that of the chart's origin
    direction: Array
    slope: float  # of the objective along the direction, < 0
    hidden: float  # change of the objective that rounding hides
    is_hidden: bool  # whether rounding hides what a Newton step could still gain

    @classmethod
    def at(cls, chart: Chart, current: Iterate) -> _Step:
        """Solve for an inexact Newton step; the preconditioned gradient where rounding leaves no better direction."""
        gradient = chart.gradient(np.zeros(chart.size), current.q, current.expected)
        precondition = _preconditioner(chart, current.expected)

        def product(vector: Array) -> Array:
            scale = PROBE / float(np.linalg.norm(vector))
            ends = [_gradient_at(chart, sign * scale * vector) for sign in (1.0, -1.0)]
            return (ends[0] - ends[1]) / (2.0 * scale)

        plain = direction = precondition(-gradient)
        formed = hessian(chart, current.expected, gradient)
        if formed is not None:
            direction = _solved(formed)(-gradient)
        elif chart.moves_precision or current.q.dim > MOST_DENSE:
            forcing = min(0.1, current.residual)
            direction, _ = conjugate_gradients(product, precondition, -gradient, forcing, MOST_PRODUCTS)
        slope, steepest = float(gradient @ direction), float(gradient @ plain)
        hidden = rounding_unit() * _size(chart.problem, current)
        if not slope < 0.0:
            direction, slope = plain, steepest
        return cls(chart, current, direction, slope, hidden, max(-slope, -steepest) <= hidden)

    @property
    def ending(self) -> ClientStatus:
        """Status of a descent without a step that helps: of a convex objective rounding or the rule is the reason."""
        problem = self.chart.problem
        if self.is_hidden:
            return ClientStatus.ROUNDED
        if problem.rule.is_sampled:
            return ClientStatus.COARSE_RULE
        is_negligible = -self.slope <= NEGLIGIBLE * min(1.0, problem.rho)
        is_negligible &= self.current.residual <= NEAR or not self.chart.moves_precision
        return ClientStatus.ROUNDED if is_negligible else ClientStatus.UNRESOLVED

    def search(self) -> tuple[Iterate | None, float]:
        """Find a step that lowers the merit, which is convex along the direction; also return its length."""
        trial, t = driven(line_search(self.current.merit, self.slope, self.hidden), self._tried)
        return (None if trial is None else trial.point), t

    def _tried(self, t: float) -> Trial:
        """The iterate a fraction t along; under the delta method with the precision that the origin asks for."""
        try:
            q = self.chart.point(t * self.direction)
            if q.learns_precision and not self.chart.moves_precision:
                q = q.at(q.mean, self.current.target.parts[1:])
        except ValueError:
            return Trial(np.inf)
        candidate = Iterate.at(self.chart.problem, q)
        if not candidate.is_finite:
            return Trial(np.inf)
        slope = float(self.chart.gradient(t * self.direction, candidate.q, candidate.expected) @ self.direction)
        return Trial(candidate.merit, slope, candidate)


def _size(problem: Subproblem, current: Iterate) -> float:
    """The size of the terms that cancel in the merit."""
    q, anchor = current.q, problem.anchor
    assert isinstance(anchor, Gaussian)
    return abs(current.merit) + abs(current.expected.value_at_mean) + problem.rho * (q.mean_distance(anchor) + q.dim)


def _gradient_at(chart: Chart, vector: Array) -> Array:
    """The gradient at a point of the chart; NaN outside the domain."""
    try:
        q = chart.point(vector)
    except ValueError:
        return np.full_like(vector, np.nan)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = chart.problem.expect(q)
        assert isinstance(expected, GaussianExpected)
        return chart.gradient(vector, q, expected)


def _preconditioner(chart: Chart, expected: GaussianExpected) -> Callable[[Array], Array]:
    """N⁻¹ in the mean, N = E_q[∇²ℓ] − V + ρS_g; in E the Hessian of E_q[ℓ] without its fourth derivatives."""
    problem, q = chart.problem, chart.q
    solve = _mean_solver(chart, expected) if q.dim <= MOST_DENSE else None
    spread = q.factor.whiten(problem.target(expected.natural_gradient).parts[1:]) if chart.moves_precision else None

    def precondition(vector: Array) -> Array:
        a, e = np.split(vector, [q.dim])
        if solve is not None:  # (L⁻¹NL⁻ᵀ)⁻¹ = LᵀN⁻¹L
            a = q.factor.half_solve(q.factor.multiply(solve(q.factor.multiply(q.factor.colour(a)))))
        if spread is None:
            return a
        shape = q.factor.solve_symmetrised(spread, e) if chart.power == 2 else 2.0 * e
        return np.concatenate([a, shape / problem.rho])

    return precondition


def _mean_solver(chart: Chart, expected: GaussianExpected) -> Callable[[Array], Array]:
    """N⁻¹ by Cholesky; where N is singular to rounding, with the eigenvalues that are lost raised to it."""
    matrix = chart.problem.mean_hessian(chart.q, expected)
    system = DensePrecision(matrix)
    return system.solve if system.is_positive_definite() else _solved(matrix)


def _solved(matrix: Array) -> Callable[[Array], Array]:
    """The inverse of |M|, in units with a unit diagonal; eigenvalues below rounding are raised to rounding."""
    units = 1.0 / np.sqrt(np.maximum(np.abs(np.diagonal(matrix)), np.finfo(float).tiny))
    values, vectors = np.linalg.eigh(matrix * np.outer(units, units))
    values = np.maximum(np.abs(values), len(values) * EPS * np.abs(values).max())
    return lambda vector: units * (vectors @ ((vectors.T @ (units * vector)) / values))


def hessian(chart: Chart, expected: GaussianExpected, gradient: Array) -> Array | None:
    """Return the Hessian at the origin of the chart from E_q[∇²ℓ] and the tensors of ∇³ and ∇⁴; None if not known.

    With dΣ = pE, (∂F/∂m)' = Na + ½T³:dΣ and (2∂F/∂Σ)' = T³a + ½T⁴:dΣ + ρE; with p = 2 sym(2∂F/∂Σ E) is added.
    """
    problem, q = chart.problem, chart.q
    if not (chart.moves_precision and chart.size <= MOST_FORMED and problem.loss.has_tensors):
        return None
    if problem.rule != Exact():
        return None
    third, fourth = unpack_tensors(problem.loss.tensors(q, problem.rule), q, problem.loss.n_outputs)
    rows, columns = entries(q)
    scale = np.where(rows == columns, 1.0, np.sqrt(2.0))
    half = 0.5 * chart.power
    cross = half * third * scale
    shape = half**2 * fourth * np.outer(scale, scale)
    shape += half * chart.power * problem.rho * np.eye(rows.size)
    if chart.power == 2:
        excess = gradient[q.dim :]
        shape += np.stack([q.factor.symmetrised(excess, unit) for unit in np.eye(rows.size)], axis=1)
    whitened = q.factor.half_solve(q.factor.half_solve(problem.mean_hessian(q, expected)).T)
    return np.block([[whitened, cross], [cross.T, shape]])
