"""The client's subproblem (Eq. 15), its solution, one evaluation of it, and the interface of its solvers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np

from .._registry import Registry
from .._validation import Array
from ..families.base import ExponentialFamily
from ..families.coordinates import Natural, pairing
from ..families.gaussian import Gaussian
from ..families.precision import Precision
from ..losses.base import Expected, GaussianExpected, Loss
from ..losses.expectations import Rule


class ClientStatus(Enum):
    """End of a client's solve; the value is the message."""

    CONVERGED = "converged to the tolerance"
    STEPS_DONE = "took its fixed number of steps (no residual is promised)"
    ROUNDED = "stopped where rounding hides any further progress, before the tolerance"
    ITERATION_LIMIT = "stopped at the iteration limit before reaching the tolerance"
    COARSE_RULE = "the rule's values and gradients contradict each other: too few points for so wide a distribution"
    UNRESOLVED = "rows and prior are too unequal for double precision: scale the columns, or raise the precision"
    ILL_POSED = "the subproblem has no minimum near the server's distribution: raise rho"
    NOT_FINITE = "the loss or its gradient is not finite near the server's distribution"
    ABSENT = "took no part in the round"

    @property
    def is_usable(self) -> bool:
        """Return whether the answer may be sent to the server."""
        return self in (ClientStatus.CONVERGED, ClientStatus.STEPS_DONE, ClientStatus.ROUNDED)


@dataclass(frozen=True)
class Subproblem:
    """min over q of E_q[ℓ] + ⟨η, μ⟩ + ρ KL(q‖anchor) (Eq. 15).

    Attributes
    ----------
    loss : Loss
    rule : Rule
        Rule for E_q.
    anchor : ExponentialFamily
        The server's distribution q_g; where methods put the prior at the clients, a mixture of q_g and the prior.
    site : Natural
        The dual η.
    rho : float
        Weight of the KL term, > 0.
    precondition : callable, optional
        vector -> vector, product with a matrix near to the inverse of the Hessian in the mean; default the anchor's.
    """

    loss: Loss
    rule: Rule
    anchor: ExponentialFamily
    site: Natural
    rho: float
    precondition: Callable[[Array], Array] | None = None

    def expect(self, q: ExponentialFamily) -> Expected:
        """E_q[ℓ] and its natural gradient."""
        return self.loss.expect(q, self.rule)

    def objective(self, q: ExponentialFamily, value: float) -> float:
        """Return the objective from `value` = E_q[ℓ]."""
        return value + pairing(self.site, q.expectation) + self.rho * q.kl(self.anchor)

    def merit(self, q: Gaussian, expected: GaussianExpected) -> float:
        """Return what a solver may descend: the objective, or under the delta method its part in the mean."""
        assert isinstance(self.anchor, Gaussian)
        linear = float(self.site.linear @ q.mean)
        if self.dual_precision is not None:
            linear -= 0.5 * float(q.mean @ self.dual_precision.multiply(q.mean))
        if self.rule.is_delta:
            return expected.value_at_mean + linear + self.rho * q.mean_distance(self.anchor)
        if self.dual_precision is not None:
            linear -= 0.5 * q.factor.trace_solve(self.dual_precision.parts)
        return expected.value + linear + self.rho * q.kl(self.anchor)

    @cached_property
    def dual_precision(self) -> Precision | None:
        """V of the dual (v, V); None where the precision is fixed."""
        anchor = self.anchor
        assert isinstance(anchor, Gaussian)
        return anchor.factor.like(self.site.parts[1:]) if anchor.learns_precision else None

    def mean_gradient(self, q: Gaussian, expected: GaussianExpected) -> Array:
        """Gradient of the objective with respect to the mean: g + v − Vm + ρS_g(m − m_g)."""
        assert isinstance(self.anchor, Gaussian)
        gradient = expected.gradient + self.site.linear
        if self.dual_precision is not None:
            gradient = gradient - self.dual_precision.multiply(q.mean)
        return gradient + self.rho * self.anchor.factor.multiply(q.mean - self.anchor.mean)

    def mean_hessian(self, q: Gaussian, expected: GaussianExpected) -> Array:
        """Hessian of the objective in the mean, dense: N = E_q[∇²ℓ] − V + ρS_g."""
        assert isinstance(self.anchor, Gaussian)
        identity = np.eye(q.dim)
        hessian = expected.curvature.dense() + self.rho * self.anchor.factor.multiply(identity)
        return hessian if self.dual_precision is None else hessian - self.dual_precision.multiply(identity)

    def target(self, natural_gradient: Natural) -> Natural:
        """λ_anchor − (η + ∇_μ E_q[ℓ])/ρ: equals λ exactly at a stationary point (Eq. 32)."""
        return self.anchor.natural - (self.site + natural_gradient) * (1.0 / self.rho)

    @cached_property
    def is_well_posed(self) -> bool:
        """Return whether λ_anchor − η/ρ is in the domain (of Gaussians ρS_g − V ⪰ 0): then a solution exists."""
        if not any(part.any() for part in self.site.parts):
            return True
        return self.anchor.contains(self.anchor.natural - self.site * (1.0 / self.rho))


@dataclass(frozen=True)
class Solution:
    """Answer of a solver.

    Attributes
    ----------
    posterior : ExponentialFamily
        q_k.
    expected : Expected
        E_{q_k}[ℓ] and its natural gradient, evaluated at `posterior`.
    residual : float
        Fisher length per parameter of λ_k − target: the natural-gradient residual.
    iterations : int
    status : ClientStatus
    """

    posterior: ExponentialFamily
    expected: Expected
    residual: float
    iterations: int
    status: ClientStatus


class Iterate(NamedTuple):
    """A member q with everything that one evaluation of the expectations yields."""

    q: Gaussian
    expected: GaussianExpected
    merit: float
    target: Natural
    whitened: Array
    residual: float
    gradient: Array

    @classmethod
    def at(cls, problem: Subproblem, q: Gaussian, expected: Expected | None = None) -> Iterate:
        """Evaluate at q, or take the expectations that are known there; an overflow makes the iterate not finite."""
        expected = problem.expect(q) if expected is None else expected
        assert isinstance(expected, GaussianExpected)
        target = problem.target(expected.natural_gradient)
        finite = target.is_finite() and np.isfinite(expected.value_at_mean)
        whitened = q.whiten(target - q.natural) if finite else np.full(1, np.inf)
        residual = float(np.sqrt(np.einsum("i,i->", whitened, whitened) / target.size))
        gradient = problem.mean_gradient(q, expected)
        return cls(q, expected, problem.merit(q, expected), target, whitened, residual, gradient)

    @property
    def is_finite(self) -> bool:
        """Return whether merit and residual are finite."""
        return bool(np.isfinite(self.merit)) and bool(np.isfinite(self.residual))

    def solution(self, iterations: int, status: ClientStatus) -> Solution:
        """Return it as a solver's answer."""
        return Solution(self.q, self.expected, self.residual, iterations, status)


class Solver(ABC):
    """Minimises a `Subproblem`; frozen hyper-parameters, no state between calls."""

    needs_gaussian: ClassVar[bool] = False
    """Need of E_q[∇ℓ] and E_q[∇²ℓ], which every loss has under a Gaussian."""

    def check(self, loss: Loss, prior: ExponentialFamily, rule: Rule) -> None:
        """Raise a ValueError, before round 0, when this solver cannot treat the loss."""
        if self.needs_gaussian and not isinstance(prior, Gaussian):
            raise ValueError(
                f"solver={type(self).__name__}() needs a Gaussian family, the prior is {type(prior).__name__}; "
                "use solver=ClosedForm()."
            )

    @abstractmethod
    def solve(
        self, problem: Subproblem, start: ExponentialFamily, rng: np.random.Generator, expected: Expected | None = None
    ) -> Solution:
        """Return the solution found from `start`, whose expectation may be `expected`; only sampling uses `rng`."""

    @staticmethod
    def measured(problem: Subproblem, q: ExponentialFamily, iterations: int, status: ClientStatus) -> Solution:
        """Evaluate the expectation and the residual at q."""
        with np.errstate(over="ignore", invalid="ignore"):  # an overflow shows in the residual
            expected = problem.expect(q)
            residual = q.fisher_norm(q.natural - problem.target(expected.natural_gradient))
        return Solution(q, expected, residual, iterations, status)


SOLVERS: Registry[type[Solver]] = Registry("solver")
"""Every client solver by the name of its class."""
