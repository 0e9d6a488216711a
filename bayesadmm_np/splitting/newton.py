"""Newton's step for the mode, the federated `glm`; and for the posterior, in mean and covariance (`joint.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .._errors import ArgumentError
from .._validation import as_switch
from ..clients.problem import ClientStatus, Solution
from ..families.base import ExponentialFamily
from ..families.gaussian import Gaussian
from ..families.gaussians import BlockDiagonalGaussian, DiagonalGaussian, FullGaussian
from ..families.precision import DensePrecision
from ..losses.base import Expected, Loss
from ..losses.expectations import Delta, Rule
from ..losses.tensors import tensor_size
from .average import as_distribution, merged, require_choice
from .certificate import PooledObjective
from .line import Answer, ModeLine, Point, PosteriorLine
from .messages import Ask, Reply
from .method import Method
from .status import Failure, Status
from .step import STEPS, Gathered, Start, Step, gradient_of, is_stationary, pooled_gradient

if TYPE_CHECKING:
    from .server import Server
    from .state import State
    from .worker import Worker

ERRORS = 100.0
"""Largest relative error of standard errors in units of the tolerance."""

MOST_JOINT = 1 << 20
"""Most numbers of a client: of a full covariance those of 68 parameters, without tensors of 1024; 8 MiB."""

MODE = Method(
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

JOINT = Method("JointNewton", rho=1.0, dual_step=1.0, alpha=1.0, client="gradient", knobs="wrap the method in Guarded")


@STEPS.register
@dataclass(frozen=True)
class Newton(Step):
    """Newton's method for the mode: BLR with α = 1 under the delta method of order 2.

        m_g ← m_g − (P_0 + Σ_k ∇²ℓ_k(m_g))⁻¹ [P_0(m_g − m_0) + Σ_k ∇ℓ_k(m_g)]

    with the covariance of Laplace's approximation: the federated `glm` of DataSHIELD. Clients solve nothing: they send
    (H_km_g − g_k, H_k) at m_g. Diagonal and block families keep that part of H_k.

    Parameters
    ----------
    start : {'sites', 'prior'}, default 'sites'
        Whether round 1 collects the sites' own fits (docs/methods.md), or begins at the prior's mean, as `glm` does.

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

    row = MODE
    line = ModeLine()
    at_mean = True

    def __post_init__(self) -> None:
        require_choice(self.start)

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
        """Return CONVERGED and Laplace's approximation at q_g's mean, if its standard errors are accurate too.

        Where the likelihood is nearly flat its curvature changes within the bound on the mean.
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
        """Return Laplace's approximation at q_g's mean, which needs no further exchange."""
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


@STEPS.register
@dataclass(frozen=True)
class JointNewton(Step):
    """Newton's method for the variational posterior of a Gaussian family, in mean and covariance at once.

        (m, C) ← argmin of the pooled objective with E_q[ℓ_k] to second order around q_g,  q = N(m, CCᵀ),

    for triangular C with the family's entries (docs/methods.md). It converges quadratically where PVI is linear.
    Clients solve nothing: they give E_{q_g}[∇ℓ_k], the dense E_{q_g}[∇²ℓ_k], and the tensors of third and fourth
    expected derivatives, d(d+1)(d+2)/6 + d(d+1)(d+2)(d+3)/24 numbers of a full covariance. A round with an
    absent site is repeated. The tensors of few rows reveal every row, so that they are for one process alone.
    Without them it is Newton's in the mean, and BLR's in the precision.

    Parameters
    ----------
    start : {'sites', 'prior'}, default 'sites'
        Whether round 1 collects Laplace's approximations at the sites' own modes, or begins at the prior.
    tensors : bool, default True
        Whether clients send the tensors; losses must have them: logistic, Poisson, least squares, softmax.

    Raises
    ------
    ValueError
        When an argument is out of range.

    Examples
    --------
    >>> JointNewton().asks(1), JointNewton().asks(2)
    ('own', 'evaluate')
    """

    start: Start = "sites"
    tensors: bool = True

    row = JOINT

    def __post_init__(self) -> None:
        require_choice(self.start)
        as_switch(self.tensors, "tensors")

    @property
    def is_between_sites(self) -> bool:
        return not self.tensors

    @property
    def line(self) -> PosteriorLine:
        return PosteriorLine(self.tensors)

    def require(self, loss: Loss, prior: ExponentialFamily, rule: Rule) -> None:
        if not isinstance(prior, Gaussian):
            raise ArgumentError("prior", f"must be a Gaussian for {self.name}", type(prior).__name__)
        if rule.is_delta:
            expected = f"must not be the delta method for {self.name}, which is of a posterior"
            raise ArgumentError("expectation", expected, rule)
        if self.tensors and not loss.has_tensors:
            raise ValueError(f"{self.name} needs the third and fourth derivatives of {loss.name}, which are not known.")
        numbers = prior.dim**2 + (tensor_size(prior, loss.n_outputs) if self.tensors else 0)
        if numbers > MOST_JOINT:
            sent = f"{self.name} sends {numbers} numbers for {prior.dim} parameters"
            raise ValueError(f"{sent}, and at most {MOST_JOINT} are allowed.")

    def beside(self, worker: Worker, asked: Ask, solution: Solution) -> dict[str, Any]:
        return {} if asked == "own" else self.line.beside(worker, solution)

    def step(self, server: Server, state: State, replies: Sequence[Reply | None]) -> Gathered | Failure:
        if any(reply is None for reply in replies):  # q_g is asked for again
            return Gathered(state.q_g, state.sites, state.naturals, state.memory, 1.0, counts=False)
        found = merged(self, server, state, replies)
        if isinstance(found, Failure):
            return found
        natural = server.gather(found.sites, found.naturals, 1.0)
        if self.asks(state.round + 1) != "own":
            answers = [Answer.of(reply) for reply in replies if reply is not None]
            end = self.line.target(server, Point.of(server, state.q_g, answers), None, False)
            natural = natural if end is None else end.natural
        q_g = as_distribution(self, server, state, natural)
        return q_g if isinstance(q_g, Failure) else found._replace(q_g=q_g)

    def waits_for(self, state: State) -> list[int]:
        return list(range(len(state.sites)))

    def advice(self, server: Server, state: State) -> str:
        away = bool(state.history) and any(one.status is ClientStatus.ABSENT for one in state.history[-1].clients)
        lacks = f"a step of {self.name} needs all clients in one round: wrap the method in Guarded, which keeps answers"
        return lacks if away else super().advice(server, state)

    def terminate(self, server: Server, state: State, at_server: Sequence[Expected], tol: float) -> Status | None:
        return Status.CONVERGED if is_stationary(server, state, at_server, tol) else None
