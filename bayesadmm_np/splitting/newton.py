"""Newton's step for the mode of the pooled objective: the federated `glm`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..clients.problem import Solution
from ..families.base import ExponentialFamily
from ..families.gaussian import Gaussian
from ..families.gaussians import BlockDiagonalGaussian, DiagonalGaussian, FullGaussian
from ..families.precision import DensePrecision
from ..losses.base import Expected
from ..losses.expectations import Delta
from .average import as_distribution, merged, require_choice
from .certificate import PooledObjective
from .line import ModeLine
from .messages import Ask, Reply
from .method import Method
from .status import Failure, Status
from .step import STEPS, Gathered, Start, Step, gradient_of, pooled_gradient

if TYPE_CHECKING:
    from .server import Server
    from .state import State
    from .worker import Worker

ERRORS = 100.0
"""Largest relative error of standard errors in units of the tolerance."""

ROW = Method(
    "Newton",
    rho=1.0,
    dual_step=1.0,
    alpha=1.0,
    client="gradient",
    expectation=Delta(2),
    families=(FullGaussian, DiagonalGaussian, BlockDiagonalGaussian),
    knobs="wrap the method in Guarded",
)
"""BLR with α = 1 under the delta method of order 2."""


@STEPS.register
@dataclass(frozen=True)
class Newton(Step):
    """Newton's method for the mode: BLR with α = 1 under the delta method of order 2.

        m_g ← m_g − (P_0 + Σ_k ∇²ℓ_k(m_g))⁻¹ [P_0(m_g − m_0) + Σ_k ∇ℓ_k(m_g)]

    with the covariance of Laplace's approximation. Clients solve nothing: they send g_k and H_k at m_g, as one site
    (H_km_g − g_k, H_k). It is the federated `glm` of DataSHIELD. Diagonal and block families keep that part of H_k.

    Parameters
    ----------
    start : {'sites', 'prior'}, default 'sites'
        Whether round 1 collects the sites' own fits, from which some three rounds follow (docs/methods.md), or begins
        at the prior's mean, as `glm` does.

    Raises
    ------
    ValueError
        When `start` is neither.

    Examples
    --------
    >>> Newton().asks(1), Newton().asks(2)
    ('own', 'evaluate')
    """

    start: Start = "sites"

    line = ModeLine()
    at_mean = True

    def __post_init__(self) -> None:
        require_choice(self.start)

    @property
    def row(self) -> Method:
        return ROW

    def require_start(self, prior: ExponentialFamily) -> None:
        """Clients read the mean of q_g alone, which a flat prior has."""

    def beside(self, worker: Worker, asked: Ask, solution: Solution) -> dict[str, Any]:
        return {} if asked == "own" else {"slope": gradient_of(solution.expected)}

    def step(self, server: Server, state: State, replies: Sequence[Reply | None]) -> Gathered | Failure:
        found = merged(self, server, state, replies)
        if isinstance(found, Failure) or not any(reply is not None for reply in replies):
            return found
        natural = server.gather(found.sites, found.naturals, 1.0)
        q_g: Any = as_distribution(self, server, state, natural)
        if isinstance(q_g, Failure):
            return q_g
        slopes = [reply.slope for reply in replies if reply is not None and reply.slope is not None]
        mean = q_g.mean
        if len(slopes) == len(replies):  # no mean makes a round trip through λ = Sm, which loses cond(S) ulp
            assert isinstance(state.q_g, Gaussian)
            assert isinstance(server.prior, Gaussian)
            mean = state.q_g.mean - q_g.factor.solve(pooled_gradient(server.prior, state.q_g, slopes))
        return found._replace(q_g=q_g.at(mean, q_g.factor.parts))

    @np.errstate(over="ignore", invalid="ignore")  # what is not finite has not converged
    def terminate(self, server: Server, state: State, at_server: Sequence[Expected], tol: float) -> Status | None:
        """A run ends at Laplace's approximation at q_g's mean, whose duals are natural gradients at the server.

        Its standard errors must be known too, to `ERRORS` times `tol` of themselves, unless the residual is rounding
        already: where the likelihood is nearly flat its curvature changes within the bound on the mean.
        """
        found = PooledObjective(server.prior, state.q_g, at_server).laplace
        if found is None or not found.residual <= tol:
            return None
        bound = found.distance if isinstance(found.q.factor, DensePrecision) else None
        known = bound is None or bound.is_rounding or (bound.errors is not None and bound.errors <= ERRORS * tol)
        return Status.CONVERGED if known else None

    def conclude(
        self, server: Server, state: State, at_server: Sequence[Expected] | None, status: Status
    ) -> tuple[State, Sequence[Expected] | None]:
        """Put the curvature at q_g's mean in the place of that at the point before, which needs no further exchange."""
        if at_server is None or not state.history or status.is_failure:
            return state, at_server
        last = PooledObjective(server.prior, state.q_g, at_server)
        found = last.laplace
        if found is None:
            return state, at_server
        curvature = [np.add.reduce(own) for own in zip(*(sums.projected for sums in found.sums), strict=True)]
        traces = found.q.factor.trace_solve(curvature) - last.q.factor.trace_solve(curvature)
        record = state.history[-1]
        objective = record.objective + 0.5 * traces + found.q.kl(server.prior) - last.q.kl(server.prior)
        record = replace(record, objective=objective)
        return replace(state, q_g=found.q, history=(*state.history[:-1], record)), found.sums
