"""The server of a run: it makes a run from hellos, and the next broadcast from replies, until the run ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ..splitting.certificate import Certificate
from ..splitting.status import Failure, Status
from .ending import decode_certificate, encode_certificate
from .engine import ServerEngine, Task, require_sum_of_factors
from .messages import (
    COPY,
    Heard,
    Message,
    Sent,
    Served,
    by_site,
    content_of,
    digests_of,
    read_hellos,
    require_answer,
    require_room,
)
from .spec import RunSpec

__all__ = ["Coordinator", "Outcome"]

REPLY_HEADER = 1 << 18
"""Bytes of a reply without its vectors, of which a part is JSON."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    `round` is the number of the final message; `certificate` is None where a site did not send sums at the last λ_g,
    or these overflow.
    """

    status: Status
    message: str
    round: int
    certificate: Certificate | None


@dataclass(frozen=True, eq=False)
class Coordinator:
    """The server of a run as an explicit state with a pure step: (server, replies) → server.

    A round needs one broadcast and one reply of each site. The reply to the broadcast of q_g(t) holds two things: the
    site's part of the objective at q_g(t), which completes the record of round t, and λ_k of round t + 1. So the server
    decides about round t when these replies have come. On convergence it leaves their λ_k unused.

    Made by `start`, `step` and `restore`. Wall times are not recorded: the same messages make the same state.

    Parameters
    ----------
    engine : ServerEngine
    hellos : tuple of dict
        What each site said of itself when the run began.
    state : object
        The engine's, after the last round whose record is complete.
    waiting : object or None
        The state after a round that was gathered and waits for the sites' reports.
    counted : tuple of int
        Round of each site's last answer in the sum; 0 before the first.
    mixed : tuple or None
        The last round that acceleration mixed, and its weights.
    taken : tuple of str
        Digests of the replies of the last step, by which a repeated step is known.
    outcome : Outcome or None
        None while the run goes on.

    Examples
    --------
    See `Site` for a whole run.

    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> from bayesadmm_np.federation import Coordinator, GLMData, GLMTask, Site
    >>> site = Site("A", GLMData(ba.losses.LeastSquares([[1.0]], [1.0])))
    >>> task = GLMTask(ba.methods.PVI(), ba.families.FullGaussian(np.zeros(1), 1.0))
    >>> server = Coordinator.start([site.hello()], task)
    >>> server.broadcast().kind, server.number
    ('broadcast', 1)
    """

    engine: ServerEngine[Any]
    hellos: tuple[Mapping[str, Any], ...]
    state: Any
    waiting: Any
    counted: tuple[int, ...]
    mixed: tuple[int, tuple[float, ...]] | None
    taken: tuple[str, ...]
    outcome: Outcome | None

    @classmethod
    def start(cls, hellos: Sequence[Message], task: Task) -> Coordinator:
        """Make a run of the sites that said hello.

        Parameters
        ----------
        hellos : sequence of Message
            One a site; the sites' order is that of their names.
        task : GLMTask or NetworkTask
            What is to be fitted, and how.

        Raises
        ------
        MessageError
            When a hello is damaged, or sites do not agree.
        ValueError
            When a setting is out of range.
        """
        read = read_hellos(hellos)
        engine: ServerEngine[Any] = task.spec(read).at_server(task.model)
        require_room(read[0], len(read), engine.state_size)
        introductions = tuple(dict(hello.header) for hello in read)
        return cls(engine, introductions, engine.start(), None, (0,) * len(read), None, (), None)

    @property
    def spec(self) -> Any:
        """The run's spec."""
        return self.engine.spec

    @property
    def held(self) -> Any:
        """The newest state: sites and server as they are counted."""
        return self.state if self.waiting is None else self.waiting

    @property
    def number(self) -> int:
        """Round of the broadcast that waits for replies (of the final message: one more than the last)."""
        return self.outcome.round if self.outcome is not None else int(self.held.round) + 1

    @cached_property
    def served(self) -> Served:
        """What the outstanding broadcast says."""
        solve = self.outcome is None and self.number <= self.spec.limit
        closed = self.waiting is not None and self.engine.is_nearly_closed(self.waiting)
        certify = self.outcome is None and (not solve or closed)
        return Served(self.number, self.engine.q_of(self.held), solve, certify, self.counted, self.mixed)

    @cached_property
    def sent(self) -> Sent:
        """The outstanding broadcast, for a `step` that takes it in when the server is further on."""
        return Sent(self.served, self.broadcast().digest)

    @property
    def unsettled(self) -> frozenset[str]:
        """Sites whose residual λ_k − λ_g or η_k + ∇_μ E_{q_k}[ℓ_k] is, as far as is known, above tol.

        Before the first step these are all sites.
        """
        if self.waiting is None:
            return frozenset(self.spec.sites)
        return frozenset(self.spec.sites[k] for k in self.engine.unsettled(self.waiting))

    def broadcast(self) -> Message:
        """Return the message to the sites: q_g, or when the run has ended the final one."""
        served = self.served
        spec, arrays = self.spec.encode()
        header: dict[str, Any] = {
            "run": self.spec.run,
            "round": served.round,
            "counted": list(served.counted),
            "mixed": _encode_mixed(served.mixed),
            "spec": spec,
        }
        arrays |= self.engine.pack_q(self.held)
        if self.outcome is None:
            header |= {"solve": served.solve, "certify": served.certify}
            return Message("broadcast", header, arrays, f"broadcast {served.round}")
        header |= {
            "status": self.outcome.status.name,
            "message": self.outcome.message,
            "objective": [self.state.start_objective, *(record.objective for record in self.state.history)],
            "certificate": encode_certificate(self.outcome.certificate),
        }
        return Message("final", header, arrays, "final message")

    @np.errstate(over="ignore", invalid="ignore")  # the status says it
    def step(self, replies: Sequence[Message], earlier: Mapping[str, Sent] | None = None) -> Coordinator:
        """Take in the replies to the outstanding broadcast, of all sites or of those that came.

        A site without a reply keeps its η_k and λ_k in the sum. The objective of a round at which a site did not
        report is NaN, and convergence waits until all have. The same replies again change nothing.

        A reply to an `earlier` broadcast of version s moves its factor by Δη_k = γρ(λ_k − λ_g^{(s)}) all the same;
        what it says of objective and certificate, which are those of that λ_g, is left unused. η_k itself is never old:
        a broadcast from before the site's last counted answer is refused.

        Parameters
        ----------
        replies : sequence of Message
            At least one.
        earlier : mapping of str to Sent, optional
            By site, the broadcast that it answers where that is not the outstanding one. For rows whose server is the
            prior and the sum of the factors.

        Returns
        -------
        Coordinator

        Raises
        ------
        MessageError
            When a reply is damaged, or belongs to another run, round, site or broadcast.
        ValueError
            When there are no replies, the run has ended, or `earlier` is given for a row that cannot use it.
        """
        if earlier:
            require_sum_of_factors(self.spec.method)
        taken = digests_of(replies)
        if taken == self.taken:
            return self
        if self.outcome is not None:
            raise ValueError(f"the run has ended ({self.outcome.status.name}): there is no round for a reply.")
        return replace(self._advanced(self._read(replies, earlier or {})), taken=taken)

    def save(self) -> Message:
        """Return the whole state as a message of kind "server"."""
        spec, arrays = self.spec.encode()
        header: dict[str, Any] = {
            "spec": spec,
            "hellos": [dict(hello) for hello in self.hellos],
            "counted": list(self.counted),
            "mixed": _encode_mixed(self.mixed),
            "taken": list(self.taken),
            "start_objective": self.held.start_objective,
            "history": [self.engine.pack_record(record) for record in self.held.history],
            "state": None,
            "waiting": None,
            "outcome": None,
        }
        for name, state in (("state", self.state), ("waiting", self.waiting)):
            if state is not None:
                header[name], vectors = self.engine.pack_state(state)
                arrays |= {f"{name}/{part}": values for part, values in vectors.items()}
        if self.outcome is not None:
            certificate = encode_certificate(self.outcome.certificate)
            header["outcome"] = [self.outcome.status.name, self.outcome.message, self.outcome.round, certificate]
        return Message("server", header, arrays)

    @classmethod
    def restore(cls, message: Message, model: Any = None) -> Coordinator:
        """Return the server of a `save`.

        Parameters
        ----------
        message : Message
        model : Module, optional
            The network, where the run is of one.

        Raises
        ------
        MessageError
            When the file is not the state of a server, or that of one with another model.
        """
        if message.kind != "server":
            raise message.refusal("kind", "'server'", message.kind)
        spec = RunSpec.read(message)
        with content_of(message, "the state of a server"):
            return cls.restored(message, spec.at_server(model))

    @classmethod
    def restored(cls, message: Message, engine: ServerEngine[Any]) -> Coordinator:
        """Return the server of a `save` of the run that this engine is of."""
        header = message.header
        history = tuple(engine.read_record(plain) for plain in header["history"])
        done = history if header["waiting"] is None else history[:-1]
        like = replace(engine.start(), start_objective=float(header["start_objective"]))
        waiting, outcome, mixed = None, header["outcome"], header["mixed"]
        if header["waiting"] is not None:
            waiting = engine.read_state(message, "waiting", header["waiting"], replace(like, history=history))
        if outcome is not None:
            status, text, number, certificate = outcome
            outcome = Outcome(Status[status], text, number, decode_certificate(message, certificate))
        return cls(
            engine=engine,
            hellos=tuple(header["hellos"]),
            state=engine.read_state(message, "state", header["state"], replace(like, history=done)),
            waiting=waiting,
            counted=tuple(header["counted"]),
            mixed=None if mixed is None else (mixed[0], tuple(mixed[1])),
            taken=tuple(header["taken"]),
            outcome=outcome,
        )

    # ------------------------------------------------------------------------------------------------
    # What a transport needs beside the steps
    # ------------------------------------------------------------------------------------------------

    @property
    def reply_limit(self) -> int:
        """Bytes of a reply, at most: the numbers of its vectors, and its header."""
        return 8 * self.engine.reply_size + REPLY_HEADER

    def check(self, reply: Message, sent: Sent) -> None:
        """Raise MessageError unless the reply answers this broadcast, and holds what `step` can take in."""
        self._heard(reply, self.spec.sites.index(reply.header["site"]), sent)

    def without_value(self, replies: Mapping[str, Message]) -> list[str]:
        """Return the sites whose answer cannot count because their part of the objective is lost."""
        return [name for name, reply in replies.items() if self.engine.has_lost(reply.header["value"])]

    def copy_of(self, name: str) -> Message:
        """Return what is counted here of a site, for one that has lost its state."""
        k = self.spec.sites.index(name)
        n_past, arrays = self.engine.copy_of(self.held, k)
        header = dict(zip(COPY, (self.spec.run, name, self.counted[k], n_past), strict=True))
        return Message("copy", header, arrays, f"copy for {name}")

    def introduction(self, name: str) -> Mapping[str, Any]:
        """Return what the site said of itself when the run began; another identity is another site."""
        return self.hellos[self.spec.sites.index(name)]

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows of each site."""
        return tuple(int(hello["rows"]) for hello in self.hellos)

    # ------------------------------------------------------------------------------------------------
    # A round
    # ------------------------------------------------------------------------------------------------

    def _read(self, replies: Sequence[Message], earlier: Mapping[str, Sent]) -> list[Heard | None]:
        found: list[Heard | None] = [None] * len(self.spec.sites)
        for k, message in by_site(replies, self.spec.sites).items():
            found[k] = self._heard(message, k, earlier.get(self.spec.sites[k], self.sent))
        return found

    def _heard(self, message: Message, k: int, sent: Sent) -> Heard:
        current = self.served
        if sent.served.counted[k] != self.counted[k]:  # Δη_k is from a factor that is no longer counted
            name = self.spec.sites[k]
            raise message.refusal("answers", f"a broadcast that counts round {self.counted[k]} of it", name)
        require_answer(message, self.spec.run, sent)
        heard = self.engine.read_reply(message, sent.served, k, self.held)
        if sent.served.round == current.round:
            return heard
        if not current.solve:
            raise message.refusal("round", f"{current.round}: all rounds are done", sent.served.round)
        return replace(heard, report=replace(heard.report, value=None, sums=None))

    def _advanced(self, heard: list[Heard | None]) -> Coordinator:
        """The loop's decisions in the loop's order: complete round t, stop or not, gather round t + 1."""
        engine, number = self.engine, self.number
        state = engine.complete(self.held, heard)
        if isinstance(state, Failure):
            return self._ended(self.state, state.status, state.message, ())
        if engine.has_converged(state, heard):
            return self._ended(state, Status.CONVERGED, Status.CONVERGED.value, heard)
        if number > self.spec.limit:
            kept = engine.withdrawn(state, heard)
            last = (state, heard) if kept is None else (kept, ())
            return self._ended(last[0], Status.ROUND_LIMIT, engine.at_the_limit(last[0], heard), last[1])
        after = engine.gather(state, heard)
        if isinstance(after, Failure):
            return self._ended(state, after.status, after.message, heard)
        return replace(
            self,
            state=state,
            waiting=after.state,
            counted=tuple(
                old if one is None or one.answer is None or not after.counts else one.round
                for old, one in zip(self.counted, heard, strict=True)
            ),
            mixed=(number, after.weights) if after.weights else self.mixed,
        )

    def _ended(self, state: Any, status: Status, message: str, heard: Sequence[Heard | None]) -> Coordinator:
        certificate = self.engine.certificate(state, heard) if heard and state.history else None
        if certificate is not None and np.isnan(certificate.pooled):  # sums that overflow certify nothing
            certificate = None
        return replace(self, state=state, waiting=None, outcome=Outcome(status, message, self.number + 1, certificate))


def _encode_mixed(mixed: tuple[int, tuple[float, ...]] | None) -> list[Any] | None:
    return None if mixed is None else [mixed[0], list(mixed[1])]
