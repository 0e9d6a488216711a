"""Request and answer: the envelopes of a message, which name its run and carry the site's notes on its state."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Protocol

LONGEST_NOTE = 1000
"""Characters of what is said of a site in a log."""


def one_line(text: str) -> str:
    """Return text from elsewhere as one line of a log: bounded, and without what a terminal would obey."""
    shown = text if len(text) <= LONGEST_NOTE else f"{text[: LONGEST_NOTE - 3]}..."
    return "".join(character if character.isprintable() else "�" for character in shown)


@dataclass(frozen=True)
class Request:
    """Server to site.

    Parameters
    ----------
    label : str
        Label of the run. It tells two runs with the same spec apart.
    message : bytes, optional
        A broadcast, an inquiry or a final message; None asks the site to introduce itself.
    copy : bytes, optional
        The server's copy of the site's dual. The site refused the same broadcast with a signed request for it.

    Examples
    --------
    >>> from bayesadmm_np.federation.dispatch import Request
    >>> Request("7").message is None
    True
    """

    label: str
    message: bytes | None = None
    copy: bytes | None = None


@dataclass(frozen=True)
class Answer:
    """Site to server.

    Parameters
    ----------
    message : bytes, optional
        A hello or a reply; None after a final message. Where the broadcast was refused, the signed request of a site
        with a key for the server's copy of it, else None.
    note : str, default ''
        The site's note on its state.
    refused : bool, default False
        Whether the broadcast could not be answered, for the reason in `note`.
    withheld : bool, default False
        Whether that reason is a disclosure rule of the site, which asking again does not change.

    Examples
    --------
    >>> from bayesadmm_np.federation.dispatch import Answer
    >>> Answer(note="its rows have changed", refused=True).message is None
    True
    """

    message: bytes | None = None
    note: str = ""
    refused: bool = False
    withheld: bool = False


class Transport(Protocol):
    """Carrier of requests to nodes and answers back."""

    def nodes(self) -> Set[int]:
        """Nodes that can be reached now."""

    def push(self, requests: Mapping[int, Request], seconds: float) -> dict[str, int]:
        """Send one request a node, each valid for so many seconds; return the nodes by ticket."""

    def pull(self, tickets: Set[str]) -> dict[str, Answer | str]:
        """Return what has come by now; a text says why there is no answer."""
