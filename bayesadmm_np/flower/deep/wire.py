"""What the messages of a round hold, read and checked before anything is computed from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ...exchange.message import Message
from ...exchange.wire import as_flag, as_real, read_counted, require_answer
from ...torch.state import Broadcast
from ...torch.team import Team
from .terms import DeepTerms, read_precision, read_q, read_tensor, unpacked

__all__ = ["DeepAnswered", "DeepSent", "DeepServed", "read_answered", "read_deep_served", "size_of"]

BROADCAST = ("run", "round", "solve", "counted", "terms")
FINAL = ("run", "round", "counted", "terms", "status", "message", "objective")
REPLY = ("run", "round", "site", "answers", "value", "solved")


@dataclass(frozen=True)
class DeepServed:
    """A broadcast: q_g, whether to train from it, and the round of each site's last answer in the server's sum."""

    round: int
    q_g: Broadcast
    solve: bool
    counted: tuple[int, ...]

    @property
    def certify(self) -> bool:
        """Whether all sites are asked: for the objective after the last round."""
        return not self.solve


@dataclass(frozen=True)
class DeepSent:
    """A broadcast that is out: what it says, and the digest that its answers repeat."""

    served: DeepServed
    digest: str


@dataclass(frozen=True)
class DeepAnswered:
    """A reply: ℓ_k at the points around m_g, and λ_k with its running statistics, None where it is no distribution."""

    value: tuple[float, ...]
    linear: Tensor | None
    precision: Tensor | None
    buffers: dict[str, Tensor]


def size_of(team: Team) -> int:
    """Return how many numbers a reply holds at most."""
    statistics = sum(value.numel() for value in team.network.buffers.values())
    return (2 if team.learns_precision else 1) * len(team.network.start) + statistics


def read_deep_served(message: Message, terms: DeepTerms, like: Broadcast) -> DeepServed:
    """Read a broadcast or a final message of this run."""
    kind, fields = ("final", FINAL) if message.kind == "final" else ("broadcast", BROADCAST)
    message.require(kind, fields, {"mean", "precision"} | ({"statistics"} if like.buffers else set()))
    number, counted = read_counted(message, terms.run, len(terms.sites))
    return DeepServed(
        round=number,
        q_g=read_q(message, like),
        solve=as_flag(message, "solve", message.header.get("solve", False)),
        counted=counted,
    )


def read_answered(message: Message, terms: DeepTerms, team: Team, sent: DeepSent) -> DeepAnswered:
    """Read a site's answer to this broadcast."""
    served = sent.served
    solved = message.header.get("solved")
    learned, like = team.learns_precision, served.q_g
    arrays: set[str] = set()
    if solved is True:
        arrays = {"linear"} | ({"precision"} if learned else set()) | ({"statistics"} if like.buffers else set())
    message.require("reply", REPLY, arrays)
    require_answer(message, terms.run, served.round, sent.digest)
    if isinstance(solved, bool) != served.solve or not isinstance(solved, bool | None):
        raise message.refusal("solved", "true or false" if served.solve else "null in a round without training", solved)
    value = _read_value(message, 2 if learned else 1)
    if not solved:
        return DeepAnswered(value, None, None, {})
    return DeepAnswered(
        value,
        read_tensor(message, "linear", like.mean),
        read_precision(message, "precision", like.precision) if learned else None,
        unpacked(message, "statistics", like.buffers),
    )


def _read_value(message: Message, points: int) -> tuple[float, ...]:
    value: Any = message.header["value"]
    if not isinstance(value, list) or len(value) != points:
        raise message.refusal("value", f"{points} numbers, one a point", value)
    return tuple(as_real(message, "value", each, finite=False) for each in value)
