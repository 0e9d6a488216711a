"""The server's half of a run: hellos, then rounds; checks before arithmetic, and a checkpoint after every step."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..._archive import replace_atomically
from ...splitting.round import present_clients
from .. import Coordinator
from ..folders import STATE
from ..lock import locked
from ..messages import Message
from ..spec import as_site_name
from .async_rounds import AsyncRounds
from .client_manager import ClientManager
from .envelope import Answer, Request, Transport, one_line
from .plan import Plan
from .run import FINAL, PROGRESS, Run, TooFewError, trim_log

__all__ = ["PROGRESS", "Rounds", "TooFewError", "serve"]

LABEL = "label.txt"


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
    ValueError
        When the folder holds a finished run, or one with other settings, or another server is at work in it.

    Examples
    --------
    One site, in this process:

    >>> import tempfile
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> from bayesadmm_np.federation import GLMData, GLMTask, Site
    >>> from bayesadmm_np.federation.dispatch import Plan, answer, serve
    >>> site = Site("A", GLMData(ba.losses.LeastSquares([[1.0]], [1.0])))
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
    plan.folder.mkdir(parents=True, exist_ok=True)

    def say(text: str) -> None:
        tell(one_line(text))  # the folder holds what others have written

    with locked(plan.folder, "server"):
        make = _resumed if (plan.folder / STATE).exists() else _begun
        clients, server = make(plan, transport, as_site_name(label), say)
        trim_log(plan.folder, server)
        run = (AsyncRounds if plan.max_staleness else Rounds)(plan, clients, server)
        while run.server.outcome is None:
            run.advance()
        run.farewell()
        return run.server


@dataclass
class Rounds(Run):
    """Every step takes the answers to one broadcast."""

    def advance(self) -> None:
        """Ask until enough sites have answered, then step and write the checkpoint."""
        plan, server, current, began = self.plan, self.server, self.server.sent, time.monotonic()
        request = Request(self.clients.label, server.broadcast().to_bytes())
        answers: dict[str, Message] = {}
        served, sites = current.served, server.spec.sites
        share = 1.0 if served.certify else plan.participation
        # the certificate needs the sums of all sites together: the sums of some would only use up rounds
        least = len(sites) if served.certify and served.solve else plan.least
        chosen = present_clients(share, server.number, len(sites), server.spec.seed)
        asked = {name for name, is_chosen in zip(sites, chosen, strict=True) if is_chosen}
        tried: set[str] = set()

        def request_for(name: str) -> Request | None:
            if name not in asked or name in answers or (name in tried and self.clients.rests(name)):
                return None
            tried.add(name)
            return request

        def hear(name: str, sent: Request, said: Answer) -> Request | None:
            if said.refused:
                return self._with_copy(name, sent, said)
            answers[name] = self._checked(name, said, current)
            self._note(name, said)
            return None

        while len(self._left_out(answers)) < least:
            if time.monotonic() - began > plan.patience:
                raise self._too_few(f"{len(answers)} of at least {least} sites", asked - set(answers))
            before = len(answers)
            self.clients.ask(request_for, hear, plan.deadline)
            if len(answers) == before:
                self.clients.pause()
        self._commit(server.step([answers[name] for name in sorted(answers)]), sorted(answers))

    def _left_out(self, answers: dict[str, Message]) -> dict[str, Message]:
        """Drop answers whose value is no number, except where all are: then it is the method that diverges."""
        lost = self.server.without_value(answers)
        for name in lost if len(lost) < len(answers) else ():
            self._leave_out(name, answers.pop(name))
        return answers


def _begun(
    plan: Plan, transport: Transport, label: str, tell: Callable[[str], Any]
) -> tuple[ClientManager, Coordinator]:
    """Wait for the sites, and begin."""
    hellos: dict[str, Message] = {}

    def greet(hello: Message) -> None:
        hellos[hello.header["site"]] = hello

    clients = ClientManager(transport, label, plan.keyed, tell, greet, plan.patience)
    clients.meet(lambda: len(hellos) >= plan.sites, plan.patience)
    if len(hellos) < plan.sites:
        found = ", ".join(sorted(hellos)) or "none"
        raise TooFewError(f"{len(hellos)} of {plan.sites} sites said hello within {plan.patience:g} s: {found}.")
    server = plan.begin(list(hellos.values()))
    replace_atomically(plan.folder / LABEL, lambda file: file.write(label.encode()))
    (plan.folder / FINAL).unlink(missing_ok=True)  # of an older run: with it this one would be taken for one that ended
    server.save().write(plan.folder / STATE)
    clients.greet = partial(_require_known, server)  # from now on no new site belongs to the run
    return clients, server


def _resumed(
    plan: Plan, transport: Transport, label: str, tell: Callable[[str], Any]
) -> tuple[ClientManager, Coordinator]:
    """Read the checkpoint, and give its sites the time of one deadline to come back."""
    server = plan.load()
    if server.outcome is not None and (plan.folder / FINAL).exists():
        raise ValueError(f"run-folder {plan.folder} holds a run that has ended; give a new run a folder of its own.")
    if not plan.is_of(server):
        raise ValueError(
            f"run-folder {plan.folder} holds a run with other settings; give a new run a folder of its own."
        )
    kept = as_site_name((plan.folder / LABEL).read_text(encoding="utf-8"))
    tell(f"goes on from the checkpoint at round {server.number}")
    clients = ClientManager(transport, kept, plan.keyed, tell, partial(_require_known, server), plan.patience)
    clients.meet(lambda: len(clients.node_of) == len(server.spec.sites), plan.deadline)
    return clients, server


def _require_known(server: Coordinator, hello: Message) -> None:
    """Raise unless the hello is of a site of the run, with the rows that it had."""
    sites, name = server.spec.sites, hello.header["site"]
    if name not in sites:
        raise hello.refusal("site", f"one of {', '.join(sites)}", name)
    for item, value in server.introduction(name).items():
        if hello.header[item] != value:
            raise hello.refusal(item, f"as when the run began, {value}", hello.header[item])
