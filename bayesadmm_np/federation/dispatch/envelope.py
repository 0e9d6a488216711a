"""Request and answer: the envelopes of a message, which name its run and carry what the site says of its state."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Protocol

from ..refusals import Refusal

LONGEST_NOTE = 1000
"""Characters of what is said of a site in a log."""


def one_line(text: str) -> str:
    """Return text from elsewhere as one line of a log: bounded, and without what a terminal would obey."""
    shown = text if len(text) <= LONGEST_NOTE else f"{text[: LONGEST_NOTE - 3]}..."
    return "".join(character if character.isprintable() else "�" for character in shown)


@dataclass(frozen=True)
class Request:
    """Request of the server to a site: a message of the run of a label, by which two runs of one spec are told apart.

    Without a message (a broadcast, an inquiry or a final one) the site introduces itself. `copy` is the server's copy
    of the site, for a site that refused the same broadcast with a signed request for the copy.
    """

    label: str
    message: bytes | None = None
    copy: bytes | None = None


@dataclass(frozen=True)
class Answer:
    """Answer of a site to the server: a hello or a reply, none after a final message, and what the site says of it.

    A refused broadcast has for a message the signed request of a site with a key for the server's copy of it.
    """

    message: bytes | None = None
    said: Refusal | None = None

    @property
    def note(self) -> str:
        """The sentence of `said`, from the list of this library."""
        return "" if self.said is None else self.said.text

    @property
    def refused(self) -> bool:
        """Return whether the request is refused."""
        return self.said is not None and not self.said.is_note

    @property
    def withheld(self) -> bool:
        """Return whether a disclosure rule keeps the answer back, which asking again does not change."""
        return self.said is not None and bool(self.said.rules)


class Transport(Protocol):
    """Carrier of requests to nodes and answers back."""

    def nodes(self) -> Set[int]:
        """Nodes that can be reached now."""

    def push(self, requests: Mapping[int, Request], seconds: float) -> dict[str, int]:
        """Send one request a node, each valid for so many seconds; return the nodes by ticket."""

    def pull(self, tickets: Set[str]) -> dict[str, Answer | str]:
        """Return what has come by now; a text says why there is no answer."""
