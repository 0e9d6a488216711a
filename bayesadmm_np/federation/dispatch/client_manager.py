"""Record of which site is at which node, and at most one open request to each of them, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..messages import Hello, Message, MessageError, content_of, read_hello
from .envelope import Answer, Request, Transport

HELLO_LIMIT = 1 << 24
"""Bytes of a hello: names and sums of columns."""
POLL = 0.1
"""Seconds between two looks for answers."""
REFRESH = 2.0
"""Seconds between two looks for nodes."""
LOOK = "; see the log of the site"
LONGEST_REST = 30.0
"""Seconds that a site rests at the most which fails again and again."""
TRIES = 4
"""Least number of times that a site is asked before the server's patience is over."""


class _Open(NamedTuple):
    """A request on its way to a node."""

    ticket: str
    node: int
    request: Request


Ask = Callable[[str], Request | None]
"""Return the request for a site, or None where it is not asked now."""
Take = Callable[[str, Request, Answer], Request | None]
"""Take the answer of a site to a request; return the request that follows at once, or None."""


@dataclass
class ClientManager:
    """The sites' names and the nodes that they were last seen at.

    `greet` is called with every hello, and raises MessageError where that site does not belong here.
    """

    transport: Transport
    label: str
    tell: Callable[[str], Any]
    greet: Callable[[Hello], None]
    patience: float = float("inf")
    node_of: dict[str, int] = field(default_factory=dict)
    opened: dict[str, _Open] = field(default_factory=dict)
    """Request of each site whose answer has not come."""
    withheld: dict[str, str] = field(default_factory=dict)
    """Rule that keeps back what a site, or a node without a name yet, was asked for; forgotten with a round."""
    present: Set[int] = frozenset()
    _looked: float = float("-inf")
    _greeted: dict[str, int] = field(default_factory=dict)
    """Nodes by ticket whose hello has not come yet; nobody waits for them."""
    _refused: set[int] = field(default_factory=set)
    _replaced: dict[int, str] = field(default_factory=dict)
    """Nodes that are there, and the site that has been at another one since: greeted again they would take turns."""
    _failures: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Failures of each site since its last answer that was of use, and the time until which it is left alone."""

    def meet(self, enough: Callable[[], bool], seconds: float) -> None:
        """Take in hellos until there are enough, or the time is over."""
        end = time.monotonic() + seconds
        self._take_hellos(seconds)
        while not enough() and (left := end - time.monotonic()) > 0:
            self.pause()
            self._take_hellos(left)

    def ask(self, request_for: Ask, take: Take, seconds: float) -> None:
        """Send each site its request, pass each answer to `take`, and send what `take` returns, until the deadline.

        Sites that come, or come back at another node, while others are waited for are asked as well.
        """
        end = time.monotonic() + seconds
        self._looked = float("-inf")
        self.opened.clear()
        done: set[str] = set()
        while (left := end - time.monotonic()) > 0:
            self._send(lambda name: None if name in done else request_for(name), left)
            if not self.opened:
                return
            done.update(self._receive(take, left))
        for name in sorted(self.opened):  # both sides drop an answer that comes later
            self.tell(f"site {name}: no answer within {seconds:g} s; is the deadline too short for it?")
            self.failed(name)
        self.opened.clear()

    def failed(self, name: str) -> None:
        """Let a site rest, twice as long with every failure in a row."""
        count, _ = self._failures.get(name, (0, 0.0))
        rest = min(POLL * 2.0 ** min(count, 60), LONGEST_REST, self.patience / TRIES)
        self._failures[name] = count + 1, time.monotonic() + rest

    def recovered(self, name: str) -> None:
        """Forget that a site failed."""
        self._failures.pop(name, None)

    def rests(self, name: str) -> bool:
        """Return whether it is too early to ask a site again that failed."""
        return name in self._failures and time.monotonic() < self._failures[name][1]

    def pause(self) -> None:
        """Wait until it is worth looking again."""
        time.sleep(POLL)

    def _send(self, request_for: Ask, seconds: float) -> None:
        """Send its request to each site without an open one, at the node where it is."""
        self._take_hellos(seconds)
        wanted: dict[str, Request] = {}
        for name, node in self.node_of.items():
            is_asked = name in self.opened and self.opened[name].node == node
            if node in self.present and not is_asked and (request := request_for(name)):
                wanted[name] = request
        self._push(wanted, seconds)

    def _receive(self, take: Take, seconds: float) -> set[str]:
        """Pass each answer that has come to `take`, send what `take` returns, and return the sites that are done."""
        answers = self.transport.pull({one.ticket for one in self.opened.values()})
        came = {name: one for name, one in sorted(self.opened.items()) if one.ticket in answers}
        again: dict[str, Request] = {}
        for name, one in came.items():
            del self.opened[name]
            if (following := self._taken(name, one.request, answers[one.ticket], take)) is not None:
                again[name] = following
        self._push(again, seconds)
        if not came:
            self.pause()
        return set(came) - set(again)

    def _push(self, wanted: dict[str, Request], seconds: float) -> None:
        if not wanted:
            return
        names = {self.node_of[name]: name for name in wanted}
        for ticket, node in self.transport.push({node: wanted[name] for node, name in names.items()}, seconds).items():
            self.opened[names[node]] = _Open(ticket, node, wanted[names[node]])

    def _taken(self, name: str, request: Request, answer: Answer | str, take: Take) -> Request | None:
        following = None
        try:
            if isinstance(answer, str):
                raise MessageError(answer)
            if answer.withheld:
                self.withheld[name] = f"site {name}: {answer.note}"
            following = take(name, request, answer)
            if following is None and answer.refused:
                self.failed(name)
        except MessageError as error:
            self.tell(f"site {name}: {error}")
            self.failed(name)
        return following

    def _take_hellos(self, seconds: float) -> None:
        if time.monotonic() - self._looked > REFRESH:
            self._looked, self.present = time.monotonic(), self.transport.nodes()
            there = self.present
            self._replaced = {n: name for n, name in self._replaced.items() if {n, self.node_of[name]} <= there}
            if new := there - {*self.node_of.values(), *self._greeted.values(), *self._refused, *self._replaced}:
                self._greeted |= self.transport.push({node: Request(self.label) for node in new}, seconds)
        if not self._greeted:
            return
        for ticket, answer in self.transport.pull(self._greeted.keys()).items():
            node = self._greeted.pop(ticket)
            if isinstance(answer, str):
                self.tell(f"node {node}: {answer}")
                continue
            try:
                self._meet(node, answer)
            except MessageError as error:
                self.tell(f"node {node}: {error}")
                self._refused.add(node)

    def _meet(self, node: int, answer: Answer) -> None:
        if answer.withheld:
            self.withheld[f"node {node}"] = f"node {node}: {answer.note}"
        if answer.said is not None:
            raise MessageError(answer.note + LOOK)
        message = Message.from_bytes(answer.message or b"", f"hello of node {node}", HELLO_LIMIT)
        with content_of(message, "an introduction"):
            hello = read_hello(message)
        self.greet(hello)
        name = hello.site
        if (known := self.node_of.get(name)) is not None:
            still = f"; node {known}, which says so too, is not asked" if known in self.present else ""
            self.tell(f"site {name}: is at node {node} now{still}")
            self.recovered(name)
            self._replaced[known] = name
        self.node_of[name] = node
