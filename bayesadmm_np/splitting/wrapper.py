"""A step around another one, such as a guard or an acceleration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .._validation import Array
from ..clients.problem import Solution
from ..families.base import ExponentialFamily
from ..losses.base import Expected, Loss
from ..losses.expectations import Rule
from ..losses.sketches import Sketch
from .average import as_step
from .messages import Ask, Reply
from .method import Method
from .status import Failure, Status
from .step import Gathered, Own, Start, Step, Work

if TYPE_CHECKING:
    from .server import Server
    from .state import State
    from .worker import Worker


@dataclass(frozen=True)
class Wrapper(Step):
    """A step around another one: all that it does not define is that of the step inside.

    Parameters
    ----------
    method : Method or Step
        The row or the step inside.
    """

    method: Method | Step

    @property
    def inner(self) -> Step:
        """The step inside."""
        return as_step(self.method)

    @property
    def row(self) -> Method:
        return self.inner.row

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def knobs(self) -> str:
        return self.inner.knobs

    @property
    def is_between_sites(self) -> bool:
        return self.inner.is_between_sites

    @property
    def begins(self) -> Start:
        return self.inner.begins

    @property
    def sketch(self) -> Sketch | None:
        return self.inner.sketch

    @property
    def remembers(self) -> int:
        return self.inner.remembers

    @property
    def at_mean(self) -> bool:  # type: ignore[override]
        return self.inner.at_mean

    @property
    def takes_back(self) -> bool:  # type: ignore[override]
        return self.inner.takes_back

    @property
    def needs_alike(self) -> bool:  # type: ignore[override]
        return self.inner.needs_alike

    @property
    def sums_natural_gradients(self) -> bool:  # type: ignore[override]
        return self.inner.sums_natural_gradients

    def begun(self) -> Step:
        return replace(self, method=self.inner.begun())

    def at_own_fits(self) -> Step:
        return replace(self, method=self.inner.at_own_fits())

    def require(self, loss: Loss, prior: ExponentialFamily, rule: Rule) -> None:
        self.inner.require(loss, prior, rule)

    def require_start(self, prior: ExponentialFamily) -> None:
        self.inner.require_start(prior)

    def init(self, server: Server) -> Any:
        return self.inner.init(server)

    def asks(self, round: int) -> Ask:
        return self.inner.asks(round)

    def only_evaluates(self, memory: Any) -> bool:
        return self.inner.only_evaluates(memory)

    def keeps_mean(self, state: State) -> bool:
        return self.inner.keeps_mean(state)

    def told(self, state: State) -> Any:
        return self.inner.told(state)

    def floats_told(self, state: State) -> int:
        return self.inner.floats_told(state)

    def sketches(self, state: State) -> tuple[Array, ...]:
        return self.inner.sketches(state)

    def work(self, worker: Worker, q_g: ExponentialFamily, own: Own, at_server: Expected, told: Any) -> Work:
        return self.inner.work(worker, q_g, own, at_server, told)

    def beside(self, worker: Worker, asked: Ask, solution: Solution) -> dict[str, Any]:
        return self.inner.beside(worker, asked, solution)

    def is_natural_gradient(self, asked: Ask) -> bool:
        return self.inner.is_natural_gradient(asked)

    def step(self, server: Server, state: State, replies: Sequence[Reply | None]) -> Gathered | Failure:
        return self.inner.step(server, state, replies)

    def waits_for(self, state: State) -> list[int]:
        return self.inner.waits_for(state)

    def terminate(self, server: Server, state: State, at_server: Sequence[Expected], tol: float) -> Status | None:
        return self.inner.terminate(server, state, at_server, tol)

    def conclude(
        self, server: Server, state: State, at_server: Sequence[Expected] | None, status: Status
    ) -> tuple[State, Sequence[Expected] | None]:
        return self.inner.conclude(server, state, at_server, status)

    def advice(self, server: Server, state: State) -> str:
        return self.inner.advice(server, state)
