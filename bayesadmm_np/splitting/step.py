"""The interface of a step: its settings, the state that the server keeps for it, and its two halves of a round.

A round of every step is the same five calls, in one process, by files and on Flower:

    ask        the server broadcasts q_g, and asks clients to fit alone, to solve Eq. 15, or only to evaluate
    answer     each client replies with λ_k and η_k, or with its sums at q_g
    step       the server makes the next q_g of the replies, or returns the reason why it cannot
    complete   the clients' expectations at that q_g complete the record of the round
    terminate  the run has converged, has come to rounding, or goes on

A step that needs more than λ_g, λ_k and η_k keeps it in `State.memory`, a frozen object of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np

from .._errors import ArgumentError
from .._registry import Registry
from .._validation import Array
from ..clients.problem import Solution, Solver, Subproblem
from ..families.base import ExponentialFamily
from ..families.coordinates import Natural
from ..families.gaussian import Gaussian
from ..losses.base import Expected, GaussianExpected, Loss
from ..losses.expectations import Rule
from ..losses.sketches import Sketch
from .certificate import PooledObjective
from .messages import Ask, Reply
from .method import Method
from .status import Failure, Status

if TYPE_CHECKING:
    from .server import Server
    from .state import State
    from .worker import Worker

STEPS: Registry[type[Step]] = Registry("step")
"""Every step by the name of its class: those that messages and checkpoints can name."""

Start = Literal["prior", "sites"]


class Gathered(NamedTuple):
    """The server's answer to the replies of a round: the next q_g, every η_k and λ_k, the step's own state.

    `alpha` is the server's step as recorded. `weights` are those of a mix of rounds, which clients need for their own
    sites; empty without a mix. `counts` is False where sites and λ_k stay what they were.
    """

    q_g: ExponentialFamily
    sites: tuple[Natural, ...]
    naturals: tuple[Natural, ...]
    memory: Any
    alpha: float
    weights: tuple[float, ...] = ()
    counts: bool = True


class Own(NamedTuple):
    """The last answer of a client, as the client keeps it: λ_k, η_k, and the numbers of its sketch."""

    natural: Natural
    site: Natural
    sketch: Array | None = None


class Work(NamedTuple):
    """The client's half of a solve: a problem, its solver, and the problem's expectation at q_g."""

    problem: Subproblem
    solver: Solver
    at_server: Expected


@dataclass(frozen=True)
class Step(ABC):
    """Server's computation of the next q_g from the replies of a round; a frozen dataclass of settings.

    Write a subclass with `row`, `step` and every method that differs from the defaults, and give it to `run`. Register
    it with `STEPS.register` if messages or checkpoints must name it (docs/extending.md).

    Examples
    --------
    >>> import bayesadmm_np as ba
    >>> step = ba.methods.Newton()
    >>> step.row.client, step.asks(2), step.begins
    ('gradient', 'evaluate', 'sites')
    """

    takes_back: ClassVar[bool] = False
    """True if the step rejects points with a higher objective, so that an increase does not end the run."""
    at_mean: ClassVar[bool] = False
    """True if q_g is stored as mean and precision: the mean would lose digits in λ = (Sm, S)."""
    line: ClassVar[Any] = None
    """`Line` along which a guard searches, of a step whose clients only evaluate; None for rounds taken whole."""

    @property
    @abstractmethod
    def row(self) -> Method:
        """Scalars of Eq. 15, 16 and 54."""

    @property
    def name(self) -> str:
        """Name in messages and tables."""
        return self.row.name

    @property
    def knobs(self) -> str:
        """Advice when a run fails: the parameters to change."""
        return self.row.knobs

    @property
    def is_between_sites(self) -> bool:
        """Return whether clients send sums of first and second order alone, and no tensors."""
        return True

    @property
    def begins(self) -> Start:
        """Start of the run: 'sites' where round 1 collects the sites' own fits (`bayesadmm_np.clients.own_fits`)."""
        start: Start = getattr(self, "start", "prior")
        return start

    @property
    def sketch(self) -> Sketch | None:
        """Sketch that sites keep of their curvature; None for the family's part alone."""
        return None

    @property
    def remembers(self) -> int:
        """Rounds that are mixed; 0 without a mix."""
        return 0

    def starting(self, start: Start) -> Step:
        """Return the step with another `start`; itself where it has no choice of one."""
        settings: dict[str, Any] = {"start": start} if hasattr(self, "start") else {}
        return replace(self, **settings)

    # --- before round 0

    def require(self, loss: Loss, prior: ExponentialFamily, rule: Rule) -> None:  # noqa: B027
        """Raise a ValueError where a client's loss, the family and the rule do not fit the step."""

    def require_start(self, prior: ExponentialFamily) -> None:
        """Raise a ValueError where the run has no distribution to begin at: a flat prior alone is none."""
        if not (prior.is_proper or self.begins == "sites"):
            expected = f"must be a distribution for {self.name} to begin at"
            advice = "give the sites' own fits as sites, or take methods.Newton()"
            raise ArgumentError("prior", expected, "a flat one", advice=advice)

    # --- a round

    def init(self, server: Server) -> Any:
        """Return the step's own state before round 1; None where a step keeps none."""
        return None

    def asks(self, round: int) -> Ask:
        """Return what clients do in a round, from 1, as far as the method alone decides."""
        if round == 1 and self.begins == "sites":
            return "own"
        return "solve" if self.row.client == "proximal" else "evaluate"

    def ask(self, state: State) -> Ask:
        """Return what clients do next."""
        return self.asks(state.round + 1)

    def keeps_mean(self, state: State) -> bool:
        """Return whether q_g was made from its mean, which a checkpoint then stores with λ_g, to the last bit."""
        return self.at_mean

    def context(self, state: State) -> Any:
        """Return what clients get beside λ_g; None for nothing."""
        return None

    def context_floats(self, state: State) -> int:
        """Return how many numbers each client gets beside λ_g."""
        return 0

    def sketches(self, state: State) -> tuple[Array, ...]:
        """Return the sites' sketches as the server holds them; empty where sites keep none."""
        return ()

    def work(self, worker: Worker, q_g: ExponentialFamily, own: Own, at_server: Expected, context: Any) -> Work:
        """Return a client's half of Eq. 15 around q_g."""
        return Work(worker.subproblem(q_g, own.site), worker.solver, at_server)

    def beside(self, worker: Worker, asked: Ask, solution: Solution) -> dict[str, Any]:
        """Return the fields of a client's reply that are this step's own."""
        return {}

    def is_natural_gradient(self, asked: Ask) -> bool:
        """Return whether η_k is −∇_μE_{q_k}[ℓ_k] by definition, and not what Eq. 16 makes of it."""
        return asked != "solve"

    @abstractmethod
    def step(self, server: Server, state: State, replies: Sequence[Reply | None]) -> Gathered | Failure:
        """Return the next q_g from the replies of a round; None is an absent client."""

    def waits_for(self, state: State) -> list[int]:
        """Return the clients without whose reply to the present q_g the server makes no step; most steps need none."""
        return []

    # --- the end

    def terminate(self, server: Server, state: State, at_server: Sequence[Expected], tol: float) -> Status | None:
        """Return the status at q_g from all clients' expectations there; None if the run goes on."""
        closed = state.history[-1].edges.largest <= tol
        return Status.CONVERGED if closed and is_stationary(server, state, at_server, tol) else None

    def conclude(
        self, server: Server, state: State, at_server: Sequence[Expected] | None, status: Status
    ) -> tuple[State, Sequence[Expected] | None]:
        """Return the last state of a run, and the expectations at its q_g, None if the server has none."""
        return state, at_server

    def advice(self, server: Server, state: State) -> str:
        """Return advice after all rounds are used; more rounds do not help if the objective has increased."""
        last = state.history[-1].objective if state.history else state.start_objective
        if not last > state.start_objective:
            return ""
        return f"the objective is above its start ({last:.6g} > {state.start_objective:.6g}): {self.knobs}"


@np.errstate(over="ignore", invalid="ignore")  # a residual that is not finite is not small
def is_stationary(server: Server, state: State, at_server: Sequence[Expected], tol: float) -> bool:
    """Return whether the pooled residual at q_g is at most tol (Fisher length per parameter)."""
    return PooledObjective(server.prior, state.q_g, at_server).residual <= tol


def pooled_gradient(prior: Gaussian, q: Gaussian, slopes: Sequence[Array]) -> Array:
    """Return P_0(m − m_0) + Σ_kg_k, shape (d,)."""
    gradient = prior.factor.multiply(q.mean - prior.mean)
    for slope in slopes:
        gradient = gradient + slope
    return gradient


def gradient_of(expected: Expected) -> Array | None:
    """Return E_q[∇ℓ_k], which the site, (H_km − g_k, H_k), keeps to the rounding of H_km alone; None elsewhere."""
    return expected.gradient if isinstance(expected, GaussianExpected) else None
