"""Solvers without a tolerance: closed forms, gradient steps, and sampled Newton steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .._errors import ArgumentError
from .._numerics import halvings
from .._validation import Array, as_count, as_fraction, as_number, as_positive
from ..families.base import ExponentialFamily
from ..families.coordinates import Natural
from ..families.gaussian import Gaussian
from ..families.precision import DensePrecision
from ..losses.base import Expected, GaussianExpected, Loss
from ..losses.expectations import Delta, Rule
from .problem import SOLVERS, ClientStatus, Solution, Solver, Subproblem


@SOLVERS.register
@dataclass(frozen=True)
class ClosedForm(Solver):
    """Solve Eq. 15 exactly for quadratic losses and for losses linear in the sufficient statistic.

    Linear in T: λ = λ_g − (η − c)/ρ. Quadratic with Hessian G: S = S_g + (G|structure − V)/ρ and one dense solve
    with G + ρS_g − V for the mean.

    Raises
    ------
    ValueError
        Before round 0, when the loss is neither.

    Examples
    --------
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> prior = ba.families.FullGaussian(np.zeros(1), 1.0)
    >>> loss = ba.losses.LeastSquares([[1.0]], [2.0])
    >>> problem = ba.clients.Subproblem(loss, ba.losses.Auto(), prior, prior.natural.zeros(), rho=1.0)
    >>> ba.clients.ClosedForm().solve(problem, prior, np.random.default_rng(0)).posterior
    FullGaussian(mean=[1.], precision=[[2.]])
    """

    def check(self, loss: Loss, prior: ExponentialFamily, rule: Rule) -> None:
        if not (loss.is_quadratic or loss.is_linear_in_statistics):
            raise ValueError(
                f"solver=ClosedForm() needs a quadratic loss or one linear in T, got {type(loss).__name__}; "
                "use solver=None to choose one that fits."
            )

    def solve(
        self, problem: Subproblem, start: ExponentialFamily, rng: np.random.Generator, expected: Expected | None = None
    ) -> Solution:
        """One linear solve; ILL_POSED when there is no minimum."""
        anchor = problem.anchor if problem.anchor.is_proper else start  # ∇_μ E_q[ℓ] is the same at every q
        if expected is None or start is not anchor:
            expected = problem.expect(anchor)
        target = problem.target(expected.natural_gradient)
        if problem.loss.is_linear_in_statistics or _family_holds_hessian(anchor, problem.rule):
            try:
                exact = anchor.with_natural(_shared(anchor, target))
            except ValueError:  # outside the domain: unbounded below
                return self.measured(problem, anchor, 0, ClientStatus.ILL_POSED)
            # ∇_μ E_q[ℓ] is constant, so λ is the target by construction, and there is no residual but rounding
            return Solution(exact, problem.expect(exact), 0.0, 1, ClientStatus.CONVERGED)
        assert isinstance(anchor, Gaussian)
        assert isinstance(expected, GaussianExpected)
        q = _gaussian_minimum(problem, anchor, expected, target.parts[1:])
        if q is None:
            return self.measured(problem, anchor, 0, ClientStatus.ILL_POSED)
        return self.measured(problem, q, 1, ClientStatus.CONVERGED)


def _shared(anchor: ExponentialFamily, target: Natural) -> Natural:
    """Return the target with the anchor's own precision where the two are the same to the bit: q shares its factor."""
    first, *rest = target.parts
    if isinstance(anchor, Gaussian) and all(map(np.array_equal, rest, anchor.natural.parts[1:])):
        return anchor.natural_from(first, anchor.factor.parts)
    return target


def _family_holds_hessian(q: ExponentialFamily, rule: Rule) -> bool:
    """Return whether a quadratic is linear in this family's T, so that its natural gradient is constant."""
    full = isinstance(q, Gaussian) and q.learns_precision and isinstance(q.factor, DensePrecision)
    return full and rule.carries_curvature


def _gaussian_minimum(
    problem: Subproblem, anchor: Gaussian, expected: GaussianExpected, precision_parts: tuple[Array, ...]
) -> Gaussian | None:
    """Newton's step from the anchor, which is exact for a quadratic, with the family's precision."""
    system = DensePrecision(problem.mean_hessian(anchor, expected))
    factor = anchor.factor.like(precision_parts) if anchor.learns_precision else anchor.factor
    if not (system.is_positive_definite() and factor.is_positive_definite()):
        return None
    mean = anchor.mean - system.solve(problem.mean_gradient(anchor, expected))
    linear = factor.multiply(mean)
    return anchor.with_natural(anchor.natural_from(linear, factor.parts))


@SOLVERS.register
@dataclass(frozen=True)
class GradientSteps(Solver):
    """Take `steps` gradient steps on the mean, m ← m − learning_rate · gradient (McMahan et al. 2016).

    The gradient is that of the sum over rows. For fixed-precision families only: with exact solves FedAvg would
    average once and then not change; its usual behaviour comes from early stopping.

    Parameters
    ----------
    steps : int, default 10
    learning_rate : float, default 0.01

    Raises
    ------
    ValueError
        When a parameter is out of range; before round 0, when the family learns its precision.

    Examples
    --------
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> prior = ba.families.IsotropicGaussian(np.zeros(1), 1.0)
    >>> loss = ba.losses.LeastSquares([[1.0]], [1.0])
    >>> problem = ba.clients.Subproblem(loss, ba.losses.Delta(1), prior, prior.natural.zeros(), rho=1.0)
    >>> steps = ba.clients.GradientSteps(steps=1, learning_rate=0.1)
    >>> steps.solve(problem, prior, np.random.default_rng(0)).posterior.mean
    array([0.1])
    """

    steps: int = 10
    learning_rate: float = 0.01

    def __post_init__(self) -> None:
        as_count(self.steps, "steps")
        as_positive(self.learning_rate, "learning_rate")

    def check(self, loss: Loss, prior: ExponentialFamily, rule: Rule) -> None:
        if not isinstance(prior, Gaussian) or prior.learns_precision:
            raise ValueError(
                f"solver=GradientSteps() moves a mean only; it needs an isotropic or fixed-precision family, "
                f"the prior is {type(prior).__name__}."
            )

    def solve(
        self, problem: Subproblem, start: ExponentialFamily, rng: np.random.Generator, expected: Expected | None = None
    ) -> Solution:
        assert isinstance(start, Gaussian)
        q = start
        for i in range(self.steps):
            with np.errstate(over="ignore", invalid="ignore"):  # a step that overflows is reported below
                expected = problem.expect(q)
                assert isinstance(expected, GaussianExpected)
                mean = q.mean - self.learning_rate * problem.mean_gradient(q, expected)
            if not np.isfinite(mean).all():
                return self.measured(problem, q, i, ClientStatus.NOT_FINITE)
            q = q.with_natural(q.natural_from(q.factor.multiply(mean), ()))
        return self.measured(problem, q, self.steps, ClientStatus.STEPS_DONE)


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
        self, problem: Subproblem, start: ExponentialFamily, rng: np.random.Generator, expected: Expected | None = None
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
