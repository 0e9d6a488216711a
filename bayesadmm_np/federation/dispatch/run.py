"""The server of a run with its client manager: what synchronous and asynchronous rounds have in common."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..._archive import replace_atomically, sync_folder
from .. import Coordinator
from ..folders import STATE
from ..messages import Message, content_of
from .client_manager import ClientManager
from .envelope import Answer, Request
from .plan import Plan

__all__ = ["FINAL", "PROGRESS", "Run", "TooFewError", "trim_log"]

PROGRESS, FINAL = "progress.jsonl", "final.npz"


class TooFewError(RuntimeError):
    """Fewer sites than asked for, for longer than the server is patient; the checkpoint is kept.

    Examples
    --------
    >>> from bayesadmm_np.federation.dispatch import TooFewError
    >>> issubclass(TooFewError, RuntimeError)
    True
    """


@dataclass
class Run(ABC):
    """A server, and the client manager by which it reaches the sites."""

    plan: Plan
    clients: ClientManager
    server: Any

    @abstractmethod
    def advance(self) -> None:
        """Ask sites until there are answers to take in, take them in, and write the checkpoint."""

    def farewell(self) -> None:
        """Give the final message to the sites that can be reached, and write it.

        Last: where the file is, the sites have been told, and a run that stopped before tells them again.
        """
        final = self.server.broadcast()
        request = Request(self.clients.label, final.to_bytes())

        def hear(name: str, sent: Request, said: Answer) -> Request | None:
            if said.refused:
                return self._with_copy(name, sent, said)
            self._note(name, said)
            return None

        self.clients.ask(lambda name: request, hear, self.plan.deadline)
        final.write(self.plan.folder / FINAL)

    def _too_few(self, who: str, missing: Collection[str]) -> TooFewError:
        """Return the error that names who answered and who did not, and how to go on."""
        served, names = self.server.served, ", ".join(sorted(missing))
        words = (
            f"round {self.server.number}: {who} answered within {self.plan.patience:g} s; the same command goes on "
            f"from the checkpoint in {self.plan.folder}. No answer that could be used came from {names}."
        )
        if served.certify and served.solve:
            words += (
                " Only the certificate is missing, which needs all sites; without these a run does not converge: leave "
                "them out of a new run, in a folder of its own."
            )
        return TooFewError(words)

    def _commit(self, server: Coordinator, answered: list[str], more: Mapping[str, Any] | None = None) -> None:
        """Go on from there: write a line of what happened, and the checkpoint.

        The line first: a crash between the two leaves one too many, which `trim_log` finds, and never one too few.
        """
        self.server = server
        for name in answered:
            self.clients.recovered(name)
        last = server.state.history[-1] if server.state.history else None
        line = {
            "round": server.state.round,
            "objective": server.state.start_objective if last is None else last.objective,
            "edges": None if last is None else asdict(last.edges),
            "answered": answered,
            **(more or {}),
            "status": None if server.outcome is None else server.outcome.status.name,
        }
        path = self.plan.folder / PROGRESS
        is_new = not path.exists()
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            sync_folder(self.plan.folder)
        server.save().write(self.plan.folder / STATE)

    def _note(self, name: str, said: Answer) -> None:
        if said.note:
            self.clients.tell(f"site {name}: {'refused: ' if said.refused else ''}{said.note}")

    def _with_copy(self, name: str, sent: Request, said: Answer) -> Request | None:
        """Return the request again with the server's copy of the site, once."""
        self._note(name, said)
        return replace(sent, copy=self.server.copy_of(name).to_bytes()) if sent.copy is None else None

    def _checked(self, name: str, said: Answer, sent: Any) -> Message:
        """Return a reply that the server can take in."""
        message = Message.from_bytes(said.message or b"", f"reply of {name}", self.server.reply_limit)
        if message.header.get("site") != name:
            raise message.refusal("site", name, message.header.get("site"))
        with content_of(message, "a reply"):
            self.server.check(message, sent)
        return message

    def _leave_out(self, name: str, reply: Message) -> None:
        self.clients.tell(f"site {name}: its value must be finite as that of others, got {reply.header['value']}")
        self.clients.failed(name)


def trim_log(folder: Path, server: Coordinator) -> None:
    """Leave of the log the lines of the steps that the checkpoint holds: one for each broadcast but the last."""
    path, steps = folder / PROGRESS, server.number - 1
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    if len(lines) > steps:
        replace_atomically(path, lambda file: file.writelines(lines[:steps]))
