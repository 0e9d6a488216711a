"""What `conduct` and `answer` ask of a plan, a server and a site: of the core's families, and of networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ..exchange.coordinator import Outcome
from ..exchange.message import Message

__all__ = ["AnyPlan", "AnyServer", "AnySite", "S"]

S = TypeVar("S", bound="AnyServer")
S_co = TypeVar("S_co", bound="AnyServer", covariant=True)


class AnyServer(Protocol):
    """A server as an explicit state: `Coordinator`, `DeepCoordinator`."""

    @property
    def terms(self) -> Any:
        """Of the run; with `sites`, `seed` and `run`."""

    @property
    def state(self) -> Any:
        """After the last round whose record is complete."""

    @property
    def outcome(self) -> Outcome | None:
        """None while the run goes on."""

    @property
    def number(self) -> int:
        """Round of the broadcast that waits for replies."""

    @property
    def sent(self) -> Any:
        """The outstanding broadcast: what it says, `served`, and its digest."""

    @property
    def reply_size(self) -> int:
        """Numbers that a reply holds at most."""

    def broadcast(self) -> Message:
        """Return the message to the sites."""

    def step(self: S, replies: Sequence[Message]) -> S:
        """Take in replies."""

    def save(self) -> Message:
        """Return the whole state."""

    def check(self, reply: Message, sent: Any) -> None:
        """Raise MessageError unless `step` can take the reply in."""

    def without_value(self, replies: Mapping[str, Message]) -> list[str]:
        """Return the sites whose reply is dropped because its value is no number, unless those of all are."""

    def copy_of(self, name: str) -> Message:
        """Return what the server holds of a site."""

    def introduction(self, name: str) -> dict[str, Any]:
        """Return what the site said of itself when the run began."""


class AnyPlan(Protocol[S_co]):
    """A run as the server sees it: `Plan`, `DeepPlan`."""

    @property
    def folder(self) -> Path:
        """Of the checkpoint."""

    @property
    def sites(self) -> int:
        """With so many the run begins."""

    @property
    def least(self) -> int:
        """Answers that make a round."""

    @property
    def participation(self) -> float:
        """Fraction of the sites that are asked."""

    @property
    def deadline(self) -> float:
        """Seconds that a site has for an answer."""

    @property
    def patience(self) -> float:
        """Seconds without enough sites after which the run stops."""

    @property
    def keyed(self) -> bool:
        """Whether nodes have keys."""

    @property
    def max_staleness(self) -> int:
        """0: rounds."""

    def begin(self, hellos: Sequence[Message]) -> S_co:
        """Make the run of the sites that said hello."""

    def load(self) -> S_co:
        """Read the checkpoint."""

    def is_of(self, server: Any) -> bool:
        """Whether the server's run has the settings of this plan."""


class AnySite(Protocol):
    """A site as an explicit state: `Site`, `DeepSite`."""

    @property
    def name(self) -> str:
        """Of the site."""

    def step(self, broadcast: Message) -> tuple[Any, Message | None]:
        """Answer a broadcast."""

    def save(self) -> Message:
        """Return the state."""

    def restore(self, message: Message) -> Any:
        """Return the site with that state."""

    def adopt(self, terms: Any, copy: Message) -> Any:
        """Return the site as the server knows it."""
