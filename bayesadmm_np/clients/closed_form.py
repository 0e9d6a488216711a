"""Quadratic losses and losses linear in T: one linear solve."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .._validation import Array
from ..families.base import ExponentialFamily
from ..families.coordinates import Natural
from ..families.gaussian import Gaussian
from ..families.precision import DensePrecision
from ..losses.base import Expected, GaussianExpected, Loss
from ..losses.expectations import Rule
from .problem import ClientStatus, Solution, Subproblem
from .solver import SOLVERS, Solver


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
        self,
        problem: Subproblem,
        start: ExponentialFamily,
        rng: np.random.Generator,
        expected: Expected | None = None,
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
    """Return the target with the anchor's own precision where the two are the same to the bit: q shares its factor.

    So it is where the dual is the natural gradient already, and the mean alone moves.
    """
    first, *rest = target.parts
    if isinstance(anchor, Gaussian) and all(map(np.array_equal, rest, anchor.natural.parts[1:])):
        return anchor.natural_from(first, anchor.factor.parts)
    return target


def _family_holds_hessian(q: ExponentialFamily, rule: Rule) -> bool:
    """Whether a quadratic is linear in this family's T, so that its natural gradient is constant."""
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
