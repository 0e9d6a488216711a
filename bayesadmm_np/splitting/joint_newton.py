"""The joint Newton step for a posterior, in mean and covariance at once; its model is in `joint.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .._errors import ArgumentError
from .._validation import as_switch
from ..clients.problem import ClientStatus, Solution
from ..families.base import ExponentialFamily
from ..families.gaussian import Gaussian
from ..losses.base import Expected, Loss
from ..losses.expectations import Rule
from ..losses.tensors import tensor_size
from .average import as_distribution, merged, require_choice
from .line import Point, PosteriorLine, Told
from .messages import Ask, Reply
from .method import Method
from .status import Failure, Status
from .step import STEPS, Gathered, Start, Step, is_stationary

if TYPE_CHECKING:
    from .server import Server
    from .state import State
    from .worker import Worker

MOST_JOINT = 1 << 20
"""Most numbers of a client: of a full covariance those of 68 parameters, without tensors of 1024; 8 MiB."""

ROW = Method("JointNewton", rho=1.0, dual_step=1.0, alpha=1.0, client="gradient", knobs="wrap the method in Guarded")


@STEPS.register
@dataclass(frozen=True)
class JointNewton(Step):
    """Newton's method for the variational posterior of a Gaussian family, in mean and covariance at once.

        (m, C) ← argmin of the pooled objective with E_q[ℓ_k] to second order around q_g,  q = N(m, CCᵀ),

    for triangular C with the family's entries: coordinates in which the objective is convex for convex losses
    (`splitting/joint.py`). Where PVI contracts linearly, because it freezes how the sites' curvature depends on q, this
    converges quadratically. Clients solve nothing. They give the gradient E_{q_g}[∇ℓ_k], the dense curvature
    E_{q_g}[∇²ℓ_k], and how the family's part of it changes with q: entries of the tensors of third and fourth expected
    derivatives. Of a full covariance these are d(d+1)(d+2)/6 + d(d+1)(d+2)(d+3)/24 numbers, so that it is for d up to
    some thirty; of a diagonal one d² + d(d+1)/2. A round that lacks a site is done again.

    With the tensors the step runs in one process alone, because the fourth-order tensor of fewer than d(d−1)/2 rows
    gives every row. Without them the step is Newton's in the mean, and BLR's in the precision; a guard adds how the
    gradient has changed since the point before.

    Parameters
    ----------
    start : {'sites', 'prior'}, default 'sites'
        Whether round 1 collects Laplace's approximations at the sites' own modes, or begins at the prior.
    tensors : bool, default True
        Whether clients tell the tensors; losses must have these: logistic, Poisson, least squares, softmax.

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

    def __post_init__(self) -> None:
        require_choice(self.start)
        as_switch(self.tensors, "tensors")

    @property
    def row(self) -> Method:
        return ROW

    @property
    def is_between_sites(self) -> bool:
        return not self.tensors

    @property
    def line(self) -> PosteriorLine:
        """Line of the search."""
        return PosteriorLine(self.tensors)

    def require(self, loss: Loss, prior: ExponentialFamily, rule: Rule) -> None:
        """Raise a ValueError where a loss has no tensors, or they would be too many."""
        if not isinstance(prior, Gaussian):
            raise ArgumentError("prior", f"must be a Gaussian for {self.name}", type(prior).__name__)
        if rule.is_delta:
            expected = f"must not be the delta method for {self.name}, which is of a posterior"
            raise ArgumentError("expectation", expected, rule)
        if self.tensors and not loss.has_tensors:
            raise ValueError(f"{self.name} needs the third and fourth derivatives of {loss.name}, which are not known.")
        numbers = prior.dim**2 + (tensor_size(prior, loss.n_outputs) if self.tensors else 0)
        if numbers > MOST_JOINT:
            raise ValueError(
                f"{self.name} sends {numbers} numbers for {prior.dim} parameters, and at most {MOST_JOINT} are allowed."
            )

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
            told = [Told.of(reply) for reply in replies if reply is not None]
            end = self.line.target(server, Point.of(server, state.q_g, told), None, False)
            natural = natural if end is None else end.natural
        q_g = as_distribution(self, server, state, natural)
        return q_g if isinstance(q_g, Failure) else found._replace(q_g=q_g)

    def waits_for(self, state: State) -> list[int]:
        """Return all clients: a step needs the sums of every one at the same q_g."""
        return list(range(len(state.sites)))

    def advice(self, server: Server, state: State) -> str:
        away = bool(state.history) and any(one.status is ClientStatus.ABSENT for one in state.history[-1].clients)
        lacks = f"a step of {self.name} needs all clients in one round: wrap the method in Guarded, which keeps answers"
        return lacks if away else super().advice(server, state)

    def terminate(self, server: Server, state: State, at_server: Sequence[Expected], tol: float) -> Status | None:
        """A run ends at q_g, where its duals would be natural gradients."""
        return Status.CONVERGED if is_stationary(server, state, at_server, tol) else None
