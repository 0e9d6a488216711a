"""The joint Newton step for a posterior, in mean and covariance at once; its model is in `joint.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .._errors import ArgumentError
from ..clients.problem import Solution
from ..families.base import ExponentialFamily
from ..families.coordinates import Natural
from ..families.full import FullGaussian
from ..families.gaussian import Gaussian
from ..losses.base import Expected, Loss
from ..losses.expectations import Rule
from .average import as_distribution, merged, require_choice
from .joint import joint_step
from .line import PosteriorLine
from .messages import Ask, Reply
from .method import Method
from .status import Failure, Status
from .step import STEPS, Gathered, Start, Step, is_stationary

if TYPE_CHECKING:
    from .server import Server
    from .state import State
    from .worker import Worker

MOST_JOINT = 64
"""Most parameters of a joint Newton step: its tensors are 6 MB then, and the Hessian at the server 37 MB."""

ROW = Method(
    "JointNewton",
    rho=1.0,
    dual_step=1.0,
    alpha=1.0,
    client="gradient",
    families=(FullGaussian,),
    knobs="wrap the method in Guarded",
)


@STEPS.register
@dataclass(frozen=True)
class JointNewton(Step):
    """Newton's method for the variational posterior, in mean and covariance at once (full covariance, small d).

        (m, C) ← argmin of the pooled objective with E_q[ℓ_k] to second order around q_g,  q = N(m, CCᵀ),

    for triangular C: coordinates in which the objective is convex for convex losses (`splitting/joint.py`). Where PVI
    contracts linearly, because it freezes how the sites' curvature depends on q, this converges quadratically. Clients
    solve nothing. They give the site −∇_μE_{q_g}[ℓ_k], as in BLR, and how it changes with q: the tensors of third and
    fourth expected derivatives, d(d+1)(d+2)/6 + d(d+1)(d+2)(d+3)/24 numbers, so that it is for d up to some thirty.
    Losses must have these tensors: logistic, Poisson, least squares, softmax. A round that lacks a site is done again.

    This row runs in one process, where it is the recommended one. Between sites it is refused, because the fourth-order
    tensor of fewer than d(d−1)/2 rows gives every row; take `Guarded(Accelerated(PVI()))` there.

    Parameters
    ----------
    start : {'sites', 'prior'}, default 'sites'
        Whether round 1 collects Laplace's approximations at the sites' own modes, or begins at the prior.

    Raises
    ------
    ValueError
        When `start` is neither.

    Examples
    --------
    >>> JointNewton().asks(1), JointNewton().asks(2)
    ('own', 'evaluate')
    """

    start: Start = "sites"

    line = PosteriorLine()
    needs_alike = True
    sums_natural_gradients = True

    def __post_init__(self) -> None:
        require_choice(self.start)

    @property
    def row(self) -> Method:
        return ROW

    @property
    def begins(self) -> Start:
        return self.start

    def begun(self) -> Step:
        return replace(self, start="prior")

    def require(self, loss: Loss, prior: ExponentialFamily, rule: Rule) -> None:
        """Raise a ValueError where a loss has no tensors, or they would be too many."""
        if not loss.has_tensors:
            raise ValueError(f"{self.name} needs the third and fourth derivatives of {loss.name}, which are not known.")
        if rule.is_delta:
            expected = f"must not be the delta method for {self.name}, which is of a posterior"
            raise ArgumentError("expectation", expected, rule)
        size = prior.natural.linear.size
        if size > MOST_JOINT:
            raise ValueError(
                f"{self.name} sends some d⁴/24 numbers: at most {MOST_JOINT} parameters, and here are {size}."
            )

    def beside(self, worker: Worker, asked: Ask, solution: Solution) -> dict[str, Any]:
        if asked == "own" or not solution.status.is_usable:
            return {}
        assert isinstance(solution.posterior, Gaussian)
        return {"tensors": worker.loss.tensors(solution.posterior, worker.rule)}

    def step(self, server: Server, state: State, replies: Sequence[Reply | None]) -> Gathered | Failure:
        if any(reply is None for reply in replies):  # q_g is asked for again
            return Gathered(state.q_g, state.sites, state.naturals, state.memory, 1.0, counts=False)
        found = merged(self, server, state, replies)
        if isinstance(found, Failure):
            return found
        natural = server.gather(found.sites, found.naturals, 1.0)
        came = [reply for reply in replies if reply is not None]
        if self.asks(state.round + 1) != "own":
            natural = self.target(server, state.q_g, came) or natural
        q_g = as_distribution(self, server, state, natural)
        return q_g if isinstance(q_g, Failure) else found._replace(q_g=q_g)

    def target(self, server: Server, q: Any, replies: Sequence[Any]) -> Natural | None:
        """Return λ of the model's minimiser, from what all clients told at q; None where there is none."""
        tensors = [one.tensors for one in replies]
        return joint_step(server.prior, q, [one.site for one in replies], tensors, server.n_outputs)

    def waits_for(self, state: State) -> list[int]:
        """Return all clients: a step needs the sums of every one at the same q_g."""
        return list(range(len(state.sites)))

    def terminate(self, server: Server, state: State, at_server: Sequence[Expected], tol: float) -> Status | None:
        """A run ends at q_g, where its duals would be natural gradients."""
        return Status.CONVERGED if is_stationary(server, state, at_server, tol) else None
