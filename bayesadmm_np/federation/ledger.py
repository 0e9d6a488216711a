"""A site's record of its answers: the last one that the server counted, and the pending one.

An answer is λ_k as the site sent it, with η_k after the dual step. A site keeps two answers. The next broadcast says
which of them the server counts: the pending answer, or, if that got lost, the answer that was counted before. The site
goes on from the counted answer alone, so it never needs an older answer or a second pending one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from .._validation import Array
from .messages import COPY, Message, MessageError, as_integer, as_text

__all__ = ["Ledger", "counted_by", "require_state"]


class Kept(Protocol):
    """An answer as a site keeps it."""

    @property
    def round(self) -> int:
        """Round of the broadcast that was answered; 0 before the first."""

    @property
    def numbers(self) -> list[Any]:
        """The round and the other single numbers of the answer, for the header."""

    @property
    def vectors(self) -> Mapping[str, Array]:
        """The vectors of the answer."""


A = TypeVar("A", bound=Kept)


@dataclass(frozen=True)
class Ledger(Generic[A]):
    """A site's last answers: an answer is pending until the next broadcast says whether the server counts it.

    Attributes
    ----------
    counted : object
        The last answer that the server took into its sum; that of round 0 before the first.
    pending : object or None
        An answer that the server may or may not have counted; the site does not know yet.
    heard : tuple of (int, str)
        Round and digest of the last broadcast that was answered.
    """

    counted: A
    pending: A | None = None
    heard: tuple[int, str] = (0, "")

    def settled(self, broadcast: Message, counted: int) -> Ledger[A]:
        """Return what is known with a broadcast that counts the site's answer of round `counted`: nothing is pending.

        Raises
        ------
        MessageError
            When the broadcast is older than the last one, another of the same round, or counts an answer that the
            site does not remember.
        """
        number, answered = self.heard
        served, last = broadcast.header["round"], self.counted
        if served < number:
            raise broadcast.refusal("round", f"{number} or later: this site has answered that round", served)
        if served == number and broadcast.digest != answered:
            raise broadcast.refusal("digest", f"that of the broadcast of round {number} answered before", "another")
        # the same broadcast again is answered from the same state: what was pending then has been settled since
        if served > number and counted != last.round:
            if self.pending is None or counted != self.pending.round:
                known = [answer.round for answer in self._answers.values()]
                raise broadcast.refusal(
                    "counted", f"a round that this site remembers, {known} (was its state file put back?)", counted
                )
            last = self.pending
        return Ledger(last, None, (served, broadcast.digest))

    def encode(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return the ledger as fields and vectors of a site's state."""
        answers = self._answers.items()
        header = {"heard": list(self.heard), "answers": {name: answer.numbers for name, answer in answers}}
        return header, {f"{name}/{part}": values for name, answer in answers for part, values in answer.vectors.items()}

    @classmethod
    def read(cls, message: Message, read_answer: Callable[[Message, str, list[Any]], A]) -> Ledger[A]:
        """Inverse of `encode`; read_answer(message, name, numbers) checks the numbers, and finds the vectors."""
        answers = message.header["answers"]
        if not isinstance(answers, dict) or not {"counted"} <= set(answers) <= {"counted", "pending"}:
            raise message.refusal("answers", "that which is counted, and one that is pending or none", answers)
        found = {name: read_answer(message, name, numbers) for name, numbers in answers.items()}
        number, digest = message.header["heard"]
        heard = as_integer(message, "heard", number, 0), as_text(message, "heard", digest)
        return cls(found["counted"], found.get("pending"), heard)

    @property
    def _answers(self) -> dict[str, A]:
        return {"counted": self.counted} | ({} if self.pending is None else {"pending": self.pending})


def require_state(message: Message, name: str, data: str) -> None:
    """Raise unless the message is the state of this site, with the rows of this digest."""
    if message.kind != "site" or message.header.get("site") != name:
        raise message.refusal("file", f"the state of site {name!r}", message.kind)
    if message.header.get("data") != data:
        raise MessageError(
            f"the rows of site {name!r} must be those of the rounds before, and they have changed "
            "since; put the old ones back, or start a new run.",
            message.source,
        )


def counted_by(copy: Message, vectors: Collection[str], run: str, name: str) -> int:
    """Return the round of the answer that a server's copy of this site, in this run, is from."""
    copy.require("copy", COPY, vectors)
    for field, expected in (("run", run), ("site", name)):
        if copy.header[field] != expected:
            raise copy.refusal(field, expected, copy.header[field])
    return as_integer(copy, "counted", copy.header["counted"], 0)
