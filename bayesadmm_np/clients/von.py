"""Variational online Newton: the stochastic solver that the papers ran."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .._errors import ArgumentError
from .._numerics import halvings
from .._validation import as_count, as_fraction, as_number
from ..families.base import ExponentialFamily
from ..families.coordinates import Natural
from ..families.gaussian import Gaussian
from ..losses.base import Expected, GaussianExpected
from ..losses.expectations import Delta
from .problem import ClientStatus, Solution, Subproblem
from .solver import SOLVERS, Solver


@SOLVERS.register
@dataclass(frozen=True)
class VON(Solver):
    """Variational online Newton (Khan & Rue 2023, Eq. 12) with sampled θ and a decaying step.

    With t_i = step_size/(1 + i)^decay and gradient ĝ and Hessian Ĥ of the loss averaged over samples of q,
    S ← (1 − t)S + t[S_g + (Ĥ − V)/ρ], m ← m − t S⁻¹(ĝ + v − Vm + ρS_g(m − m_g))/ρ, that is
    λ ← λ + t(target − λ) with a sampled natural gradient. Steps that would leave the domain are halved.

    Parameters
    ----------
    steps : int, default 500
    step_size : float, default 1.0
        Step of the first iteration, in (0, 1].
    decay : float, default 0.6
        Exponent of the decay, in [0, 1]; 0 keeps the step constant.
    samples : int, default 1
        Number of draws of θ a step.

    Raises
    ------
    ValueError
        When a parameter is out of range; before round 0, when the family is not Gaussian.

    Examples
    --------
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> prior = ba.families.FullGaussian(np.zeros(1), 1.0)
    >>> loss = ba.losses.Logistic([[1.0], [2.0]], [1, 1])
    >>> problem = ba.clients.Subproblem(loss, ba.losses.Exact(), prior, prior.natural.zeros(), rho=1.0)
    >>> ba.clients.VON(steps=50).solve(problem, prior, np.random.default_rng(0)).status.name
    'STEPS_DONE'
    """

    steps: int = 500
    step_size: float = 1.0
    decay: float = 0.6
    samples: int = 1
    needs_gaussian = True

    def __post_init__(self) -> None:
        as_count(self.steps, "steps")
        as_fraction(self.step_size, "step_size")
        if not 0 <= as_number(self.decay, "decay") <= 1:
            raise ArgumentError("decay", "must lie in [0, 1]", repr(self.decay))
        as_count(self.samples, "samples")

    def solve(
        self,
        problem: Subproblem,
        start: ExponentialFamily,
        rng: np.random.Generator,
        expected: Expected | None = None,
    ) -> Solution:
        """Take the steps, then measure the residual with the deterministic rule."""
        assert isinstance(start, Gaussian)
        q = start
        for i in range(self.steps):
            sampled = self.sampled_natural_gradient(problem, q, rng)
            direction = problem.target(sampled) - q.natural
            ahead = (q.natural + t * direction for t in halvings(self.step_size / (1.0 + i) ** self.decay, 1e-12))
            inside = next(filter(q.contains, ahead), None)
            if inside is None:
                return self.measured(problem, q, i, ClientStatus.ILL_POSED)
            q = q.with_natural(inside)
        return self.measured(problem, q, self.steps, ClientStatus.STEPS_DONE)

    def sampled_natural_gradient(self, problem: Subproblem, q: Gaussian, rng: np.random.Generator) -> Natural:
        """Average ∇ℓ(θ) and ∇²ℓ(θ) over draws of θ; the delta method at N(θ, ·) is evaluation at θ."""
        total = q.natural.zeros()
        for theta in q.sample(rng, self.samples):
            at_theta = q.with_natural(q.natural_from(q.factor.multiply(theta), q.factor.parts))
            expected = problem.loss.expect(at_theta, Delta(1))
            assert isinstance(expected, GaussianExpected)
            hessian = expected.curvature.project(q.factor) if q.learns_precision else ()
            total = total + q.natural_gradient(expected.gradient, hessian)
        return total * (1.0 / self.samples)
