"""The server of a run: it makes a run from hellos, and the next broadcast from replies, until the run ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from .._archive import read_as
from .._errors import Words
from .._signatures import SigningKey, shown
from .._threads import one_thread_where_small
from ..splitting.certificate import Certificate
from ..splitting.messages import Ask
from ..splitting.status import Failure, Status
from .engine import ServerEngine, Task
from .messages import (
    Answer,
    Hello,
    HelloHeader,
    LostHeader,
    Message,
    MessageError,
    Mixed,
    Outcome,
    Served,
    SiteReply,
    by_site,
    content_of,
    digests_of,
    read_answer,
    read_hellos,
    read_reply,
    read_spec,
    require_room,
    taken,
)
from .questions import Outstanding, Talk, Waiting

NOTHING_ASKED = Talk()

LeftOut = tuple[tuple[Literal["round", "question"], int, tuple[str, ...]], ...]

REPLY_HEADER = 1 << 18
"""Bytes of a reply without its vectors, of which a part is JSON."""


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
    talk : Talk, default Talk(exchanges=())
        What sites were asked beside the rounds, and said.
    origin : ServerEngine, optional
        That the run began with; what sites answer before the first round can change columns and prior.
    question : Outstanding, optional
        The question that is out, before the first round or after the last.
    ended : Outcome, optional
        How the rounds ended, while sites are asked for the table.
    watched : bool, default False
        Whether sites were asked, or are, if the run has an end.
    left_out : tuple of (str, int, tuple of str), default ()
        Rounds and questions that were closed without sites because the coordinator said so: "round" or "question",
        number, names.
    key : SigningKey, optional
        It seals what the server sends; no part of the state.

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
    mixed: Mixed | None
    taken: tuple[str, ...]
    outcome: Outcome | None
    talk: Talk = NOTHING_ASKED
    origin: Any = None
    question: Outstanding | None = None
    ended: Outcome | None = None
    watched: bool = False
    left_out: LeftOut = ()
    key: SigningKey | None = None

    @classmethod
    def start(cls, hellos: Sequence[Message | Hello], task: Task) -> Coordinator:
        """Make a run of the sites that said hello.

        Parameters
        ----------
        hellos : sequence of Message or Hello
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
        return cls._begun(engine, tuple(hello.plain for hello in read), NOTHING_ASKED)

    @classmethod
    @one_thread_where_small(lambda cls, origin, *_: origin.spec.dim)
    def _begun(cls, origin: ServerEngine[Any], hellos: tuple[Mapping[str, Any], ...], talk: Talk) -> Coordinator:
        """Ask what must be known before the first round, and begin it; some fits need none."""
        new = cls(origin, hellos, origin.start(), None, (0,) * len(hellos), None, (), None, talk, origin)
        try:
            engine, result = origin.prepared(talk)
        except Waiting as waiting:
            return replace(new, question=waiting.question)
        new = replace(new, engine=engine, state=engine.start() if result is None else result.state)
        return new if result is None else new._closed(result.status, result.message, result.certificate())

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
        end = self.outcome or self.ended
        return end.round if end is not None else int(self.held.round) + 1

    @property
    def asks(self) -> tuple[Ask | None, bool]:
        """Request of the outstanding broadcast, and whether it asks for the sums of the certificate."""
        if self.outcome is not None:
            return None, False
        ask = self.engine.ask(self.held) if self.number <= self.spec.limit else None
        closed = self.waiting is not None and self.engine.is_nearly_closed(self.waiting)
        return ask, ask in (None, "sums") or closed

    @cached_property
    def served(self) -> Served:
        """Contents of the outstanding message, by which a reply is read."""
        own = self.engine.q_of(self.held), *self.asks, self.counted, self.mixed, self.outcome
        return Served(self.number, *own, self._message().digest)

    @property
    def asked(self) -> int:
        """Number of questions that were answered."""
        return len(self.talk.exchanges)

    @property
    def exchanges(self) -> int:
        """Number of messages that sites have answered: questions and broadcasts, the first and the last included."""
        needed_none = self.ended is not None and not self.held.history
        return self.asked + (0 if needed_none else self.number - 1)

    def broadcast(self) -> Message:
        """Return the message to the sites: a question, q_g, or when the run has ended the final one."""
        return self._message().sealed(self.key)

    def _message(self) -> Message:
        if self.question is not None:
            return self.question.message
        spec, arrays = self.spec.encode()
        header: dict[str, Any] = {
            "run": self.spec.run,
            "round": self.number,
            "counted": self.counted,
            "mixed": self.mixed,
            "spec": spec,
        }
        arrays |= self.engine.pack_q(self.held)
        if self.outcome is None:
            header |= dict(zip(("ask", "certify"), self.asks, strict=True))
            return Message("broadcast", header, arrays, f"broadcast {self.number}")
        header |= {
            "status": self.outcome.status.name,
            "message": self.outcome.message,
            "objective": self.outcome.objective,
            "certificate": self.outcome.certificate and self.outcome.certificate.plain,
            "table": None,
        }
        if self.outcome.table is not None:
            header["table"], vectors = self.outcome.table.encode()
            arrays |= vectors
        return Message("final", header, arrays, "final message")

    @one_thread_where_small(lambda self, _: self.spec.dim)
    @np.errstate(over="ignore", invalid="ignore")  # the status says it
    def step(self, replies: Sequence[Message | SiteReply | Answer]) -> Coordinator:
        """Take in the replies to the outstanding broadcast, of all sites or of those that came.

        A site without a reply keeps its η_k and λ_k in the sum. The objective of a round at which a site did not
        report is NaN, and convergence waits until all have. The same replies again change nothing.

        Parameters
        ----------
        replies : sequence of Message, SiteReply or Answer
            At least one; those that `read` has read are not read again.

        Returns
        -------
        Coordinator

        Raises
        ------
        MessageError
            When a reply is damaged, or belongs to another run, round, site or broadcast.
        ValueError
            When there are no replies, the run has ended, or a reply was read by another server.
        """
        digests = digests_of(replies)
        if digests == self.taken:
            return self
        found: list[Any] = [None] * len(self.spec.sites)
        out = self.served.digest if self.question is None else self.question.message.digest
        unread = self.read([reply for reply in replies if isinstance(reply, Message)])
        for reply in [*unread.values(), *(one for one in replies if not isinstance(one, Message))]:
            k = self.spec.sites.index(reply.site) if isinstance(reply, Answer) else reply.site
            if reply.answers != out or found[k] is not None:
                raise ValueError("replies must be read by this server in this round, once a site.")
            found[k] = reply
        for error in self.strays({name: one for name, one in zip(self.spec.sites, found, strict=True) if one}).values():
            raise error
        after = self._advanced(found) if self.question is None else self._heard(found)
        return replace(after, taken=digests, left_out=self.left_out, key=self.key)

    def without(self, replies: Sequence[SiteReply | Answer], names: Sequence[str]) -> Coordinator:
        """Take in replies, and record that the round or question was closed without these sites."""
        question, after = self.question, self.step(replies)
        if not names:
            return after
        what: Literal["round", "question"] = "round" if question is None else "question"
        number = self.number if question is None else question.number
        return replace(after, left_out=(*self.left_out, (what, number, tuple(names))))

    @np.errstate(over="ignore", invalid="ignore")
    def read(self, replies: Sequence[Message]) -> dict[str, SiteReply | Answer]:
        """Return replies to the outstanding broadcast by site, each one that `step` can take in; it refuses as that."""
        if replies and self.outcome is not None:
            raise ValueError(f"the run has ended ({self.outcome.status.name}): there is no round for a reply.")
        sites = self.spec.sites
        for message in replies:
            self._require_signed(message)
        if self.question is not None:
            each = by_site("answer", replies, sites).items()
            told = [
                {"told_rows": int(hello["rows"]), "told_weight": weight}
                for hello, weight in zip(self.hellos, self.spec.weights, strict=True)
            ]
            return {sites[k]: read_answer(one, self.question, told[k]) for k, one in each}
        return {sites[k]: self._read(one, k) for k, one in by_site("reply", replies, sites).items()}

    def save(self) -> Message:
        """Return the whole state as a message of kind "server"."""
        spec, arrays = self.origin.spec.encode()
        talk, said = self.talk.encode()
        arrays |= said
        end = self.outcome or self.ended
        header: dict[str, Any] = {
            "spec": spec,
            "talk": talk,
            "watched": self.watched,
            "lines": self.origin.spec.lines,
            "hellos": [dict(hello) for hello in self.hellos],
            "counted": self.counted,
            "mixed": self.mixed,
            "taken": self.taken,
            "left_out": self.left_out,
            "start_objective": self.held.start_objective,
            "history": [record.to_dict() for record in self.held.history],
            "state": None,
            "waiting": None,
            "outcome": None,
        }
        for name, state in (("state", self.state), ("waiting", self.waiting)):
            if state is not None:
                header[name], vectors = self.engine.pack_state(state)
                arrays |= {f"{name}/{part}": values for part, values in vectors.items()}
        if end is not None:
            proof = end.certificate and end.certificate.plain
            header["outcome"] = [end.status.name, end.message, end.round, proof]
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
        spec = read_spec(message)
        with content_of(message, "the state of a server"):
            spec = spec.with_lines(read_as(tuple[str, ...], message.header["lines"], message.source))
            return cls.restored(message, spec.at_server(model))

    @classmethod
    @one_thread_where_small(lambda cls, message, engine: engine.spec.dim)
    def restored(cls, message: Message, engine: ServerEngine[Any]) -> Coordinator:
        """Return the server of a `save` of the run that this engine is of."""
        header = message.header
        talk = Talk.read(header["talk"], message.arrays, engine.spec.sites)
        left_out = read_as(LeftOut, header["left_out"], message.source)
        hellos: Any = read_as(tuple[HelloHeader, ...], header["hellos"], message.source)
        if [hello.site for hello in hellos] != list(engine.spec.sites):
            raise message.refusal("hellos", f"of {', '.join(engine.spec.sites)}", [hello.site for hello in hellos])
        begun = cls._begun(engine, tuple(header["hellos"]), talk)
        begun = replace(begun, taken=tuple(header["taken"]), left_out=left_out)
        if begun.question is not None or begun.outcome is not None:  # no round was begun, or none was needed
            return begun
        engine = begun.engine
        history = tuple(engine.record.from_dict(plain) for plain in header["history"])
        done = history if header["waiting"] is None else history[:-1]
        like = replace(engine.start(), start_objective=float(header["start_objective"]))
        waiting, outcome = None, header["outcome"]

        def state(name: str, history: tuple[Any, ...]) -> Any:
            vectors = taken(message, engine.state_fields(header[name], like), f"{name}/")
            return engine.state_made(header[name], vectors, replace(like, history=history))

        if header["waiting"] is not None:
            waiting = state("waiting", history)
        if outcome is not None:
            kept: Any = tuple[str, str, int, Certificate | None]
            status, text, number, certificate = read_as(kept, outcome, message.source)
            outcome = Outcome(Status[status], text, number, _objective(like, done), certificate)
        counted = read_as(tuple[int, ...], header["counted"], message.source)
        is_one_each = len(counted) == len(engine.spec.sites)
        if not (is_one_each and all(0 <= one <= len(history) + 1 for one in counted) and (history or waiting is None)):
            raise message.refusal("counted", "a round of the history, or the next one, for each site", list(counted))
        kinds: Any = Mixed | None
        mixed = read_as(kinds, header["mixed"], message.source)
        server = replace(begun, state=state("state", done), waiting=waiting, counted=counted, mixed=mixed)
        if read_as(bool, header["watched"], message.source):
            # the state that was looked at is kept where the run ended there; otherwise it plays no part any more
            server = server._watched()
        return server if outcome is None or server.outcome is not None else replace(server, ended=outcome)._asked()

    # --- What a transport needs beside the steps --------------------------------------------------------------

    @property
    def reply_limit(self) -> int:
        """Bytes of a reply, at most: the numbers of its vectors, and its header."""
        size = self.engine.reply_size if self.question is None else self.question.answer_size
        return 8 * size + REPLY_HEADER

    @property
    def signers(self) -> Mapping[str, str] | None:
        """The sites' names by their public keys; None where the sites have none."""
        known = {hello["identity"]: hello["site"] for hello in self.hellos}
        return None if None in known else known

    def _require_signed(self, message: Message) -> None:
        """Raise unless a message is sealed by the key with which the site of its name has joined."""
        if self.signers is None:
            return
        name = message.header.get("site")
        key = next((identity for identity, site in self.signers.items() if site == name), None)
        if key is None or message.signer != key:
            expected = "that of a site of this run" if key is None else f"that of {name}, {shown(key)}"
            raise message.refusal("signature", expected, shown(message.signer))

    def copy_for(self, request: Message, digest: str) -> Message:
        """Return what is counted here of a site that has lost its state, for its own signed request.

        `digest` is that of the broadcast that the site could not answer. Refused is a request that the key of the site
        has not sealed, and one of another run or broadcast.
        """
        asked = request.header_as("lost", LostHeader, ())
        if self.signers is None:
            raise request.refusal("signature", "that of a site with a key: copies go to nobody else", "none")
        self._require_signed(request)
        for name, value in {"run": self.spec.run, "answers": digest}.items():
            if getattr(asked, name) != value:
                raise request.refusal(name, f"{value}: let the site step that broadcast", getattr(asked, name))
        return self.copy_of(asked.site).sealed(self.key)

    def copy_of(self, name: str) -> Message:
        """Return what is counted here of a site, whoever asks."""
        k = self.spec.sites.index(name)
        n_past, arrays = self.engine.copy_of(self.held, k)
        header = {"run": self.spec.run, "site": name, "counted": self.counted[k], "past": n_past}
        return Message("copy", header, arrays, f"copy for {name}")

    def introduction(self, name: str) -> Mapping[str, Any]:
        """Return what the site said of itself when the run began; another identity is another site."""
        return self.hellos[self.spec.sites.index(name)]

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows of each site."""
        return tuple(int(hello["rows"]) for hello in self.hellos)

    @property
    def missing_rows(self) -> dict[str, int]:
        """Rows that sites left out, by site, where there are any: no value, or a level that the site does not name."""
        told = {hello["site"]: hello["table"]["described"] for hello in self.hellos if hello.get("table")}
        left_out = {site: int(one["n_rows"]) - int(one["n_complete"]) for site, one in told.items()}
        return {site: count for site, count in left_out.items() if count}

    # --- A round ----------------------------------------------------------------------------------------------

    def _read(self, message: Message, k: int) -> SiteReply:
        try:
            header, vectors = read_reply(message, self.spec.run, self.served, self.engine)
            with content_of(message, "a reply"):
                reply = self.engine.reply_made(header, vectors, self.served, k, self.held)
        except MessageError as error:
            where = f"site {self.spec.sites[k]}, round {self.number}"
            raise MessageError(f"{where}: {error.reason}", error.source) from error
        return replace(reply, site=k, digest=message.digest, answers=self.served.digest)

    def strays(self, replies: Mapping[str, SiteReply | Answer]) -> dict[str, MessageError]:
        """Return by site the replies that no others are like, each with why it must not count; none where all are."""
        read = {one.site: one for one in replies.values() if isinstance(one, SiteReply)}
        found = self.engine.strays(self.held, read)
        names, number = self.spec.sites, self.number
        refused = {names[k]: MessageError(f"site {names[k]}, round {number}: {why}.") for k, why in found.items()}
        return refused if len(refused) < len(read) else {}

    def _advanced(self, replies: list[SiteReply | None]) -> Coordinator:
        """The loop's decisions in the loop's order: complete round t, stop or not, gather round t + 1."""
        engine, number, replies = self.engine, self.number, self.engine.used(self.held, replies)
        state = engine.complete(self.held, replies)
        if isinstance(state, Failure):
            return self._ended(self.state, state.status, self._worded(state), ())
        status = engine.terminated(state, replies)
        if status is None and number > self.spec.limit:
            status = Status.ROUND_LIMIT
        if status is not None:
            last, known = engine.concluded(state, replies, status)
            said = engine.at_the_limit(last, replies) if status in (Status.ROUND_LIMIT, Status.RISEN) else status.value
            return self._ended(last, status, said, known)
        after = engine.gather(state, replies)
        if isinstance(after, Failure):
            last, known = engine.concluded(state, replies, after.status)
            return self._ended(last, after.status, self._worded(after), known)
        going = replace(
            self,
            state=state,
            waiting=after.state,
            counted=tuple(
                old if one is None or one.answer is None or not after.counts else number
                for old, one in zip(self.counted, replies, strict=True)
            ),
            mixed=(number, after.weights) if after.weights else self.mixed,
        )
        return going._watched() if self.engine.is_long(state) else going

    def _worded(self, failure: Failure) -> str:
        """Say where a run has failed, with the site's name."""
        return failure.worded(Words(client=lambda k: f"site {self.spec.sites[k]}"))

    def _watched(self) -> Coordinator:
        """Ask whether the run has an end, and go on, or end it."""
        now = replace(self, question=None, watched=True)
        try:
            engine, is_over, certificate = self.engine.watched(self.talk, self.state)
        except Waiting as waiting:
            return replace(now, question=waiting.question)
        if not is_over:
            return replace(now, engine=engine)
        status = Status.NO_MAXIMUM
        return replace(now, engine=engine, waiting=None)._closed(status, f"{status.value}.", certificate)

    def _ended(self, state: Any, status: Status, message: str, replies: Sequence[SiteReply | None]) -> Coordinator:
        certificate = self.engine.certificate(state, replies) if replies and state.history else None
        if certificate is not None and np.isnan(certificate.pooled):  # sums that overflow certify nothing
            certificate = None
        return replace(self, state=state, waiting=None)._closed(status, message, certificate, self.number + 1)

    def _closed(self, status: Status, message: str, certificate: Certificate | None, number: int = 0) -> Coordinator:
        """End the rounds at the present state."""
        objective = _objective(self.state, self.state.history)
        return replace(self, ended=Outcome(status, message, number or self.number + 1, objective, certificate))._asked()

    def _asked(self) -> Coordinator:
        """Ask what a table needs, and end the run when all is known."""
        assert self.ended is not None
        try:
            table = self.engine.table(self.talk, self.state, self.ended)
        except Waiting as waiting:
            return replace(self, question=waiting.question)
        outcome = self.ended if table is None else table.ending(self.ended)
        return replace(self, question=None, ended=None, outcome=outcome)

    def _heard(self, answers: Sequence[Answer | None]) -> Coordinator:
        """Go on after the answers to a question; a site without one is away."""
        talk = self.talk.then(answers)
        if self.ended is not None:
            return replace(self, talk=talk)._asked()
        if self.waiting is not None:
            return replace(self, talk=talk)._watched()
        return self._begun(self.origin, self.hellos, talk)


def _objective(state: Any, history: Sequence[Any]) -> tuple[float, ...]:
    return (state.start_objective, *(record.objective for record in history))
