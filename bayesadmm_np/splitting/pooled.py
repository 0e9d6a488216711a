"""The centralised answer: all losses in one place, no sites, no server, no rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .._errors import ArgumentError
from .._threads import one_thread_where_small
from ..clients.fixed_steps import ClosedForm
from ..clients.newton import VariationalNewton
from ..clients.problem import ClientStatus, Subproblem
from ..families.base import ExponentialFamily
from ..families.gaussian import Gaussian
from ..losses.base import Loss
from ..losses.expectations import Auto, Rule
from ..losses.linear_model import LinearModelLoss
from ..losses.total import Total

NEAR = 1e-3  # residual a parameter up to which rounding is taken to hide the optimum and not its absence


@dataclass(frozen=True)
class Pooled:
    """The centralised VB solution."""

    posterior: ExponentialFamily
    objective: float  # Σ_k E_q[ℓ_k] + KL(q‖prior) there
    residual: float  # Fisher length per parameter of its gradient; above tol only where rounding hides any progress


@one_thread_where_small(lambda clients, prior, **_: prior.dim if isinstance(prior, Gaussian) else 0)
def solve_pooled(
    clients: Sequence[Loss],
    prior: ExponentialFamily,
    *,
    expectation: Rule | None = None,
    tol: float = 1e-10,
    max_iter: int = 1000,
) -> Pooled:
    """Minimise Σ_k E_q[ℓ_k] + KL(q‖prior) (Eq. 9) with all losses at hand, for comparison.

    The problem is convex for convex losses, and is solved through no code of the splitting methods. Under a flat prior
    a solution exists where the data determine every coefficient; on separable data there is none.

    Parameters
    ----------
    clients : sequence of Loss
    prior : ExponentialFamily
    expectation : Rule, optional
        Must be the rule of the run that it is compared with.
    tol : float, default 1e-10
        Bound on the residual, where double precision reaches it.
    max_iter : int, default 1000

    Raises
    ------
    ValueError
        When losses, family and rule do not fit.
    RuntimeError
        When neither the tolerance nor the limit of double precision is reached.

    Examples
    --------
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> prior = ba.families.FullGaussian(mean=np.zeros(1), precision=1.0)
    >>> ba.solve_pooled([ba.losses.LeastSquares([[2.0]], [1.0])], prior).posterior
    FullGaussian(mean=[0.4], precision=[[5.]])
    """
    if expectation is not None and not isinstance(expectation, Rule):
        raise ArgumentError("expectation", "must be a rule of bayesadmm_np.losses", repr(expectation))
    total = Total(_joined(Total(clients).losses))
    rule = total.check(prior, expectation or Auto())
    start = prior.start()
    anchor = start if prior.is_proper else prior
    problem = Subproblem(total, rule, anchor, start.natural.zeros(), prior.prior_weight)
    solver = ClosedForm() if total.is_quadratic or total.is_linear_in_statistics else VariationalNewton(tol, max_iter)
    solver.check(total, prior, rule)
    solution = solver.solve(problem, start, np.random.default_rng(0))
    # under a flat prior there may be no optimum, and far out rounding hides that the objective still falls
    rounded = solution.status is ClientStatus.ROUNDED and (prior.is_proper or solution.residual <= NEAR)
    if solution.status is not ClientStatus.CONVERGED and not rounded:
        raise RuntimeError(f"solve_pooled: {solution.status.value} (residual {solution.residual:.1e}, tol {tol:.1e}).")
    objective = solution.expected.value + solution.posterior.kl(prior)
    return Pooled(solution.posterior, objective, solution.residual)


def _joined(clients: Sequence[Loss]) -> list[Loss]:
    """Join clients whose losses are of one kind to one loss: a thousand small ones cost a thousand calls."""
    kinds: dict[object, list[LinearModelLoss]] = {}
    found: list[Loss] = []
    for client in clients:
        if isinstance(client, LinearModelLoss) and (kind := client.settings) is not None:
            kinds.setdefault(kind, []).append(client)
        else:
            found.append(client)
    return [*(own[0].joined(own[1:]) if len(own) > 1 else own[0] for own in kinds.values()), *found]
