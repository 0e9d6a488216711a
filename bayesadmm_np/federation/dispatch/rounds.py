"""The server's half of a run: hellos, then rounds; checks before arithmetic, and a checkpoint after every step."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..._archive import private, private_folder, replace_atomically, sync_folder
from ...splitting.round import present_clients
from .. import Coordinator
from ..folders import STATE, with_key
from ..lock import locked
from ..messages import Hello, Message
from ..refusals import Refusal
from ..spec import as_site_name
from .client_manager import LOOK, Ask, ClientManager, Take
from .envelope import Answer, Request, Transport, one_line
from .plan import Plan

LABEL, PROGRESS, FINAL = "label.txt", "progress.jsonl", "final.npz"


class TooFewError(RuntimeError):
    """Fewer sites than asked for, for longer than the server is patient; the checkpoint is kept."""


class WithheldError(RuntimeError):
    """Sites keep back, by their disclosure rules, what the run cannot go on without; the checkpoint is kept."""

    def __init__(self, notes: Collection[str]) -> None:
        super().__init__(
            f"the run cannot go on: {'; '.join(sorted(set(notes)))}. The log of the site says what its rule asks for."
        )


def serve(plan: Plan, transport: Transport, label: str, tell: Callable[[str], Any]) -> Coordinator:
    """Do a whole run, or the rest of one, and return the server with its outcome.

    A site that is late, fails, or sends what is refused keeps its factor for the round, and is asked again in the next.

    Parameters
    ----------
    plan : Plan
    transport : Transport
        What carries requests to nodes and answers back.
    label : str
        Label of a new run, different from the labels of all other runs. A run that goes on keeps its own label.
    tell : callable
        Called with one sentence for everything that is not as it should be.

    Returns
    -------
    Coordinator

    Raises
    ------
    TooFewError
        When too few sites answer for `plan.patience` seconds.
    WithheldError
        At once, when sites keep back, by their disclosure rules, what the run cannot go on without.
    ValueError
        When the folder holds a finished run, or one with other settings, or another server is at work in it.

    Examples
    --------
    One site, in this process:

    >>> import tempfile
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> from bayesadmm_np.federation import DisclosureRules, GLMData, GLMTask, SigningKey, Site
    >>> from bayesadmm_np.federation.dispatch import Plan, answer, serve
    >>> loss = ba.losses.LeastSquares([[1.0]], [1.0])
    >>> allowed = DisclosureRules.none()  # one row would not be sent
    >>> site = Site("A", GLMData(loss), key=SigningKey(bytes(32)), rules=allowed)
    >>> class Here:
    ...     def nodes(self):
    ...         return {1}
    ...
    ...     def push(self, requests, seconds):
    ...         self.said = answer(requests[1], folder, lambda spec: (site, site.hello()))
    ...         return {"ticket": 1}
    ...
    ...     def pull(self, tickets):
    ...         return {"ticket": self.said}
    >>> task = GLMTask(ba.methods.PVI(), ba.families.FullGaussian(np.zeros(1), 1.0))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     server = serve(Plan(task, folder, sites=1), Here(), "7", print)
    >>> server.outcome.status.name, server.state.q_g.mean
    ('CONVERGED', array([0.5]))
    """
    private_folder(plan.folder)

    def say(text: str) -> None:
        tell(one_line(text))  # the folder holds what others have written

    with locked(plan.folder, "server"):
        make = _resumed if (plan.folder / STATE).exists() else _begun
        clients, server = make(plan, transport, as_site_name(label), say)
        _trim_log(plan.folder, server)
        run = Rounds(plan, clients, server)
        while run.server.outcome is None:
            (run.advance if run.server.question is None else run.inquire)()
        run.farewell()
        return run.server


Tell = Callable[[str], Any]


def _begun(plan: Plan, transport: Transport, label: str, tell: Tell) -> tuple[ClientManager, Coordinator]:
    """Wait for the sites, and begin."""
    hellos: dict[str, Hello] = {}

    def greet(hello: Hello) -> None:
        hello.require_same_site(hellos.setdefault(hello.site, hello))
        hellos[hello.site] = hello

    clients = ClientManager(transport, label, tell, greet, plan.patience)
    clients.meet(lambda: len(hellos) >= plan.sites or bool(clients.withheld), plan.patience)
    if len(hellos) < plan.sites:
        if clients.withheld:
            raise WithheldError(clients.withheld.values())
        found = ", ".join(sorted(hellos)) or "none"
        raise TooFewError(f"{len(hellos)} of {plan.sites} sites said hello within {plan.patience:g} s: {found}.")
    server = with_key(plan.folder, Coordinator.start(list(hellos.values()), plan.task), is_new=True)
    if server.signers is None:
        tell("the sites have no keys: anybody can use a site's name, and a site that loses its state cannot return")
    replace_atomically(plan.folder / LABEL, lambda file: file.write(label.encode()))
    (plan.folder / FINAL).unlink(missing_ok=True)  # of an older run: with it this one would be taken for one that ended
    server.save().write(plan.folder / STATE)
    clients.greet = partial(_require_known, server)  # from now on no new site belongs to the run
    return clients, server


def _resumed(plan: Plan, transport: Transport, label: str, tell: Tell) -> tuple[ClientManager, Coordinator]:
    """Read the checkpoint, and give its sites the time of one deadline to come back."""
    server = plan.load()
    is_over = server.outcome is not None and (plan.folder / FINAL).exists()
    if is_over or plan.task.again(server.origin.spec, server.rows).run != server.origin.spec.run:
        held = "that has ended" if is_over else "with other settings"
        raise ValueError(f"run-folder {plan.folder} holds a run {held}; give a new run a folder of its own.")
    kept = as_site_name((plan.folder / LABEL).read_text(encoding="utf-8"))
    tell(f"continues from the checkpoint at round {server.number}")
    clients = ClientManager(transport, kept, tell, partial(_require_known, server), plan.patience)
    clients.meet(lambda: len(clients.node_of) == len(server.spec.sites), plan.deadline)
    return clients, server


def _require_known(server: Coordinator, hello: Hello) -> None:
    """Raise unless the hello is of a site of the run, with the rows that it had."""
    sites, said = server.spec.sites, hello.plain
    if hello.site not in sites:
        raise hello.refusal("site", f"one of {', '.join(sites)}", hello.site)
    for item, value in server.introduction(hello.site).items():
        if said[item] != value:
            raise hello.refusal(item, f"as when the run began, {value}", said[item])


def _trim_log(folder: Path, server: Coordinator) -> None:
    """Leave of the log the lines of the steps that the checkpoint holds: one for each broadcast but the last."""
    path, steps = folder / PROGRESS, server.number - 1
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    if len(lines) > steps:
        replace_atomically(path, lambda file: file.writelines(lines[:steps]))


# --- Rounds ---------------------------------------------------------------------------------------------------


@dataclass
class Rounds:
    """A server, and the client manager by which it reaches the sites; every step takes the answers to one broadcast."""

    plan: Plan
    clients: ClientManager
    server: Coordinator

    def advance(self) -> None:
        """Ask until enough sites have answered, then step and write the checkpoint."""
        plan, server = self.plan, self.server
        request = Request(self.clients.label, server.broadcast().to_bytes())
        replies: dict[str, Any] = {}
        served, sites = server.served, server.spec.sites
        share = 1.0 if served.certify else plan.participation
        # the certificate needs the sums of all sites together: the sums of some would only use up rounds
        least = len(sites) if served.certify and served.solve else plan.least
        chosen = present_clients(share, server.number, len(sites), server.spec.seed)
        asked = {name for name, is_chosen in zip(sites, chosen, strict=True) if is_chosen}
        tried: set[str] = set()

        def request_for(name: str) -> Request | None:
            is_done = name in replies or name in self.clients.withheld
            if name not in asked or is_done or (name in tried and self.clients.rests(name)):
                return None
            tried.add(name)
            return request

        def take(name: str, sent: Request, answer: Answer) -> Request | None:
            if answer.refused:
                return self._with_copy(name, sent, answer)
            replies[name] = server.read([self._opened(name, answer, "reply")])[name]
            self._note(name, answer)
            return None

        def enough() -> bool:
            self._leave_out_strays(replies)
            # so many answers cannot come where rules of sites keep theirs back
            notes = [self.clients.withheld[name] for name in asked if name in self.clients.withheld]
            if len(replies) < least and notes and len(asked) - len(notes) < least:
                raise WithheldError(notes)
            return len(replies) >= least

        if not self._asked(request_for, take, enough, replies):
            raise self._too_few(f"{len(replies)} of at least {least} sites", asked - set(replies))
        self._commit(server.step([*replies.values()]), sorted(replies))

    def inquire(self) -> None:
        """Ask all sites the question that is out; who does not answer for as long as the server is patient is away."""
        server = self.server
        request = Request(self.clients.label, server.broadcast().to_bytes())
        said: dict[str, Any] = {}

        def request_for(name: str) -> Request | None:
            return None if name in said or self.clients.rests(name) else request

        def take(name: str, sent: Request, answer: Answer) -> None:
            self._note(name, answer)
            if not answer.refused:
                said[name] = one = server.read([self._opened(name, answer, "answer")])[name]
                refused: Refusal | None = getattr(one, "refused", None)
                if refused is not None:
                    self.clients.tell(f"site {name}: refused: {refused.text}")

        self._asked(request_for, take, lambda: len(said) == len(server.spec.sites), said)
        if not said:
            raise self._too_few("no site", server.spec.sites)
        self.server = server.step([*said.values()])
        for name in said:
            self.clients.recovered(name)
        self.server.save().write(self.plan.folder / STATE)

    def _asked(self, request_for: Ask, take: Take, enough: Callable[[], bool], came: dict[str, Any]) -> bool:
        """Ask until enough has come, or the server's patience is over; return whether enough has come."""
        began = time.monotonic()
        while not enough():
            if time.monotonic() - began > self.plan.patience:
                return False
            before = len(came)
            self.clients.ask(request_for, take, self.plan.deadline)
            if len(came) == before:
                self.clients.pause()
        return True

    def farewell(self) -> None:
        """Give the final message to the sites that can be reached, and write it.

        Last: where the file is, the sites have been told, and a run that stopped before tells them again.
        """
        final = self.server.broadcast()
        request = Request(self.clients.label, final.to_bytes())

        def take(name: str, asked: Request, answer: Answer) -> Request | None:
            if answer.refused:
                return self._with_copy(name, asked, answer)
            self._note(name, answer)
            return None

        self.clients.ask(lambda name: request, take, self.plan.deadline)
        final.write(self.plan.folder / FINAL)

    def _too_few(self, who: str, missing: Collection[str]) -> TooFewError:
        """Return the error that names who answered and who did not, and how to go on."""
        served, names = self.server.served, ", ".join(sorted(missing))
        words = (
            f"round {self.server.number}: {who} answered within {self.plan.patience:g} s. No usable answer came from "
            f"{names}. The same command continues from the checkpoint in {self.plan.folder}."
        )
        if served.certify and served.solve:
            words += (
                " Only the certificate is missing, which needs all sites. If these never return, begin a new run "
                "without them, in a new folder."
            )
        return TooFewError(words)

    def _commit(self, server: Coordinator, answered: list[str]) -> None:
        """Go on from there: write a line of what happened, and the checkpoint.

        The line first: a crash between the two leaves one too many, which `_trim_log` finds, and never one too few.
        """
        self.server = server
        self.clients.withheld.clear()  # some rules are about a point, and the next is another one
        for name in answered:
            self.clients.recovered(name)
        last = server.state.history[-1] if server.state.history else None
        line = {
            "round": server.state.round,
            "objective": server.state.start_objective if last is None else last.objective,
            "edges": None if last is None else asdict(last.edges),
            "answered": answered,
            "status": None if (end := server.outcome or server.ended) is None else end.status.name,
        }
        path = self.plan.folder / PROGRESS
        is_new = not path.exists()
        with open(path, "a", encoding="utf-8", opener=private) as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            sync_folder(self.plan.folder)
        server.save().write(self.plan.folder / STATE)

    def _note(self, name: str, answer: Answer) -> None:
        if answer.said is not None:
            answer.said.require_known(self.server.spec.named)
            self.clients.tell(f"site {name}: {f'refused: {answer.note}{LOOK}' if answer.refused else answer.note}")

    def _with_copy(self, name: str, asked: Request, answer: Answer) -> Request | None:
        """Return the request again with the server's copy of the site, once, if the site's key asks for it."""
        self._note(name, answer)
        if asked.copy is not None or asked.message is None or answer.message is None:
            return None
        copy = self.server.copy_for(self._opened(name, answer, "request"), Message.from_bytes(asked.message).digest)
        return replace(asked, copy=copy.to_bytes())

    def _opened(self, name: str, answer: Answer, what: str) -> Message:
        """Return the message of an answer, which must be of this site, and sealed by its key where it has one."""
        limit, known = self.server.reply_limit, self.server.signers or {}
        signers = {key: site for key, site in known.items() if site == name} or None
        message = Message.from_bytes(answer.message or b"", f"{what} of {name}", limit, signers)
        if message.header.get("site") != name:
            raise message.refusal("site", name, message.header.get("site"))
        return message

    def _leave_out_strays(self, replies: dict[str, Any]) -> None:
        """Drop replies that stand alone against all others; where all do it is the method that diverges."""
        for name, error in self.server.strays(replies).items():
            del replies[name]
            self.clients.tell(str(error))
            self.clients.failed(name)
