"""A client's subproblem beside sites with more than a diagonal: ℓ_k(θ) + ½(θ − m_g)ᵀO(θ − m_g) over diagonal q.

O is the part outside of the diagonal of the cavity's precision S − V_k; the rest is in the anchor and the dual.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from .._validation import Array
from ..families.base import ExponentialFamily
from ..families.gaussian import Gaussian
from ..families.precision import Precision
from ..losses.base import Curvature, Expected, GaussianExpected, Loss
from ..losses.expectations import Rule
from .newton import VariationalNewton
from .problem import Solver, Subproblem

LOOSE = 0.03, 1e-3
"""Residual at which a solve beside richer sites ends, relative to that at q_g, and the largest."""


class CoupledExpected(GaussianExpected):
    """E_q of a coupled loss; `own` is E_q[ℓ_k] alone, and `coupled` the rest of the value."""

    own: GaussianExpected
    coupled: float

    @cached_property
    def value(self) -> float:
        return self.own.value + self.coupled


@dataclass(frozen=True)
class _CoupledCurvature:
    """H + O; a diagonal does not see O."""

    own: Curvature
    coupling: Array

    def dense(self) -> Array:
        return self.own.dense() + self.coupling

    def project(self, factor: Precision) -> tuple[Array, ...]:
        return self.own.project(factor)

    def multiply(self, vector: Array) -> Array:
        return self.own.multiply(vector) + self.coupling @ vector


class Coupled(Loss):
    """ℓ(θ) + ½(θ − c)ᵀO(θ − c) for a symmetric O = `coupling` with a zero diagonal, under a diagonal Gaussian."""

    def __init__(self, loss: Loss, coupling: Array, centre: Array) -> None:
        self.loss, self.coupling, self.centre = loss, coupling, centre
        self.dim, self.n_rows, self.total_weight = loss.dim, loss.n_rows, loss.total_weight
        self.is_convex, self.is_quadratic = loss.is_convex, loss.is_quadratic

    def value(self, theta: ArrayLike) -> float:
        away = np.asarray(theta, dtype=np.float64) - self.centre
        return self.loss.value(theta) + 0.5 * float(away @ self.coupling @ away)

    def gradient(self, theta: ArrayLike) -> Array:
        return self.loss.gradient(theta) + self.coupling @ (np.asarray(theta, dtype=np.float64) - self.centre)

    def hessian(self, theta: ArrayLike) -> Array:
        return self.loss.hessian(theta) + self.coupling

    def check(self, prior: ExponentialFamily, rule: Rule) -> Rule:
        return self.loss.check(prior, rule)

    def expect(self, q: ExponentialFamily, rule: Rule) -> CoupledExpected:
        assert isinstance(q, Gaussian)
        return self.around(self.loss.expect(q, rule), q, rule)

    def around(self, own: Expected, q: Gaussian, rule: Rule) -> CoupledExpected:
        """Return the expectations, from those of the loss."""
        assert isinstance(own, GaussianExpected)
        away = q.mean - self.centre
        slope = self.coupling @ away
        coupled = 0.5 * float(away @ slope)
        curvature = _CoupledCurvature(own.curvature, self.coupling)
        found = CoupledExpected(q, own.value_at_mean + coupled, own.gradient + slope, curvature, rule)
        found.own, found.coupled = own, coupled
        return found


def loosened(solver: Solver, problem: Subproblem, q_g: ExponentialFamily, at_server: Expected) -> Solver:
    """Return the solver for a residual that the round can use: it loses what a solve leaves over, and no more."""
    if not isinstance(solver, VariationalNewton):
        return solver
    begin = q_g.fisher_norm(q_g.natural - problem.target(at_server.natural_gradient))
    share, most = LOOSE
    enough = min(share * begin, most)
    return replace(solver, tol=enough) if enough > solver.tol else solver
