"""A site: it keeps its rows and its dual, and answers each broadcast with a reply."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, Literal

import numpy as np

from .._archive import read_as, refusal
from .._fields import read_plain
from .._signatures import SigningKey, shown
from .._threads import one_thread_if_small
from .._validation import Array, as_count
from ..glm.questions import pack
from ..splitting.privacy import GaussianMechanism
from .consent import MEMBERS, require_rules
from .differencing import Source
from .disclosure import DisclosureError, DisclosureRules, checked, described
from .engine import A, SiteData, SiteEngine, require
from .ledger import Entry, Ledger
from .messages import (
    Heard,
    Message,
    MessageError,
    Question,
    Served,
    answer_of,
    by_server,
    content_of,
    read_copy,
    read_past,
    read_question,
    read_served,
    read_spec,
    require_run,
    require_to_site,
    taken,
)
from .refusals import Refusal
from .spec import RunSpec, as_site_name

logger = logging.getLogger(__name__)

COMPUTABLE = "a q_g (natural) and a prior with which the rows of this site can be fitted"
"""Requirement on a broadcast beside numbers of the right count: an overflow is the server's doing."""
UNCOMPUTABLE = (ArithmeticError, ValueError)
"""Errors that other numbers raise in a computation; every other error is one of the site's own code."""


@dataclass(frozen=True)
class _KeptHeader:
    """Header of the answers in a state's file, beside their vectors."""

    heard: tuple[int, str]
    answers: dict[Literal["counted", "pending"], Any]

    def __post_init__(self) -> None:
        if self.heard[0] < 0:
            raise ValueError(f"heard must be of a round from 0, got {self.heard[0]}")
        if "counted" not in self.answers:
            raise ValueError(
                f"answers must be that which is counted, and one pending or none, got {list(self.answers)}"
            )


@dataclass(frozen=True)
class Answers(Generic[A]):
    """A site's last answers: an answer is pending until the next broadcast says whether the server counts it.

    An answer is λ_k as the site sent it, with η_k after the dual step. The next broadcast says which of the two the
    server counts: the pending answer, or, if that got lost, the one that was counted before. The site goes on from the
    counted answer alone, so it never needs an older answer or a second pending one.
    """

    counted: A
    pending: A | None = None
    answered: tuple[int, str] = (0, "")
    """Round and digest of the last broadcast that was answered."""

    def settled(self, served: Served, counted: int) -> Answers[A]:
        """Return what is known with a broadcast that counts the site's answer of round `counted`: nothing is pending.

        A broadcast that is older than the last one, another of the same round, or counts an answer that the site does
        not remember, is refused.
        """
        number, digest = self.answered
        last = self.counted
        if served.round < number:
            raise refusal("round", f"{number} or later: this site has answered that round", served.round)
        if served.round == number and served.digest != digest:
            raise refusal("digest", f"that of the broadcast of round {number} answered before", "another")
        # the same broadcast again is answered from the same state: what was pending then has been settled since
        if served.round > number and counted != last.round:
            if self.pending is None or counted != self.pending.round:
                known = [answer.round for answer in self._answers.values()]
                remedy = "was its state file lost, or an old one put back? `site step --lost` asks for a copy"
                expected = f"a round that this site remembers, {known} ({remedy})"
                raise refusal("counted", expected, counted)
            last = self.pending
        return Answers(last, None, (served.round, served.digest))

    def encode(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return the answers as fields and vectors of a site's state."""
        answers = self._answers.items()
        header = {"heard": list(self.answered), "answers": {name: answer.numbers for name, answer in answers}}
        return header, {f"{name}/{part}": values for name, answer in answers for part, values in answer.vectors.items()}

    @classmethod
    def read(cls, message: Message, engine: SiteEngine[A]) -> Answers[A]:
        """Inverse of `encode`; the engine knows the vectors of an answer."""
        kept = read_as(_KeptHeader, {name: message.header[name] for name in ("heard", "answers")}, message.source)
        found: dict[str, A] = {}
        for name, numbers in kept.answers.items():
            vectors = taken(message, engine.answer_fields, f"{name}/")
            found[name] = engine.answer_made(read_plain(engine.numbers, numbers, f"answers.{name}"), vectors)
            if found[name].round < 0:
                raise message.refusal(f"answers.{name}", "of a round from 0", found[name].round)
        return cls(found["counted"], found.get("pending"), kept.heard)

    @property
    def _answers(self) -> dict[str, A]:
        return {"counted": self.counted} | ({} if self.pending is None else {"pending": self.pending})


@dataclass(frozen=True)
class SiteState:
    """Memory of a site between rounds."""

    spec: RunSpec
    answers: Answers[Any]
    past: tuple[Any, ...]
    """The η_k that acceleration mixes."""
    server: str | None = None
    """Public key of the server that sent the first broadcast; None where it has none. No other is heard."""
    ended: bool = False
    """True once the final message has come, after which the folder may begin another run."""


@dataclass(frozen=True, eq=False)
class Site:
    """One site as an explicit state with a pure step: (site, broadcast) → (site, reply).

    Parameters
    ----------
    name : str
    data : GLMData or NetworkData
        The rows, with the loss or the network that they belong to.
    privacy : GaussianMechanism, optional
        Noise on every answer, fresh from the operating system. Nothing else in a reply depends on the rows then: no
        objective, no residual, no sums for a certificate.
    privacy_rounds : int, optional
        Answers that `privacy` is granted for; a run of more rounds is refused.
    key : SigningKey, optional
        It seals what this site sends. The server keeps its public half with the run, refuses every message under this
        name without its seal, and gives the copy of a lost state to nobody else. Without a key a name is all that a
        server knows of a site, and nobody is given a copy.
    kept : SiteState, optional
        What an earlier step left; made by `step`, `restore` and `adopt`.
    heard : Heard, optional
        What the last step has answered; made by `step`.
    refuses : tuple of str, default ()
        Questions of `glm.questions` that this site does not answer.
    rules : DisclosureRules, optional
        What the rows must be like before a message leaves by file or network, by default `DisclosureRules()`; in one
        process no rule applies.

    Raises
    ------
    ValueError
        When the name cannot be part of a file's name, or one of `privacy` and `privacy_rounds` is given alone.

    Examples
    --------
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> from bayesadmm_np.federation import Coordinator, GLMData, GLMTask, Site
    >>> losses = {"A": ba.losses.LeastSquares([[1.0]], [1.0]), "B": ba.losses.LeastSquares([[2.0]], [2.0])}
    >>> sites = [Site(name, GLMData(loss)) for name, loss in losses.items()]
    >>> task = GLMTask(ba.methods.PVI(), ba.families.FullGaussian(np.zeros(1), 1.0))
    >>> server = Coordinator.start([site.hello() for site in sites], task)
    >>> while server.outcome is None:
    ...     sites, replies = zip(*(site.step(server.broadcast()) for site in sites))
    ...     server = server.step(replies)
    >>> server.state.q_g
    FullGaussian(mean=[0.8333], precision=[[6.]])
    """

    name: str
    data: SiteData
    privacy: GaussianMechanism | None = None
    privacy_rounds: int | None = None
    key: SigningKey | None = None
    kept: SiteState | None = None
    heard: Heard | None = None
    refuses: tuple[str, ...] = ()
    rules: DisclosureRules | None = None

    def __post_init__(self) -> None:
        as_site_name(self.name)
        object.__setattr__(self, "rules", self.rules or DisclosureRules())
        if not hasattr(self.data, "introduction"):
            got = type(self.data).__name__
            raise ValueError(f"data must be GLMData(loss) or NetworkData(rows, model), got {got}.")
        if (self.privacy is None) != (self.privacy_rounds is None):
            raise ValueError("privacy and privacy_rounds must be given together.")
        if self.privacy_rounds is not None:
            require(self.data.engine, "privacy")
            as_count(self.privacy_rounds, "privacy_rounds")

    @property
    def factor(self) -> Any:
        """η_k as the server counts it; None before the first broadcast."""
        return None if self.kept is None else self.kept.answers.counted.dual

    @property
    def hears(self) -> Mapping[str, str] | None:
        """The server whose run this site has joined, by its public key; None where none is known."""
        return None if self.kept is None else by_server(self.kept.server)

    def hello(self) -> Message:
        """Return the message that a run is made from: names and counts, no rows."""
        identity = None if self.key is None else self.key.identity
        header = {"site": self.name, "identity": identity, **self.data.introduction()}
        return Message("hello", header, {}).sealed(self.key)

    def lost(self, broadcast: Message) -> Message:
        """Return the request for the server's copy of this site, whose state is lost; a broadcast says of when.

        A ValueError is raised without a key: the server could not know that it is this site which asks.
        """
        if self.key is None:
            raise ValueError(
                f"site {self.name} has no key, and a server gives its copy of a site to the site's key alone."
            )
        header = {"run": require_run(broadcast), "round": broadcast.header["round"], "site": self.name}
        return Message("lost", {**header, "answers": broadcast.digest}, {}, f"request of {self.name}").sealed(self.key)

    @np.errstate(over="ignore", invalid="ignore")  # the reply says it
    def step(self, broadcast: Message) -> tuple[Site, Message | None]:
        """Answer a broadcast. The same broadcast again gives the same reply; a final message gives None.

        Parameters
        ----------
        broadcast : Message
            Of kind "broadcast", "inquiry" or "final"; of an inquiry the site keeps nothing.

        Returns
        -------
        site : Site
            To be kept for the next round.
        reply : Message or None

        Raises
        ------
        MessageError
            When the broadcast is not one that this site can answer; the site is unchanged.
        ValueError
            When the rows do not fit the run's family, rule or solver.
        """
        require_to_site(broadcast)
        if self.kept is not None and broadcast.signer != self.kept.server:
            expected = f"that of the server whose run this site has joined, {shown(self.kept.server)}"
            raise broadcast.refusal("signature", expected, shown(broadcast.signer))
        if broadcast.kind == "inquiry":
            after, answer = self._questioned(broadcast)
            return after, answer.sealed(self.key)
        known = None if self.kept is None else self.kept.spec
        # the run's id is compared first, and a spec that is known is not read again
        require_run(broadcast, None if known is None else known.run)
        with content_of(broadcast, "of this run", ()):
            engine = self._engine(known or read_spec(broadcast, self.data))
        with one_thread_if_small(engine.spec.dim):
            with content_of(broadcast, "of this run", ()):
                served = read_served(broadcast, engine.spec, engine)
                self._require_granted(engine.spec, served)
            with content_of(broadcast, COMPUTABLE, UNCOMPUTABLE):
                after, reply = self._answered(served, engine, broadcast.signer)
        return after, None if reply is None else reply.sealed(self.key)

    def _questioned(self, message: Message) -> tuple[Site, Message]:
        """Answer a question beside the rounds, or say why not."""
        require_run(message, None if self.kept is None else self.kept.spec.run)
        with content_of(message, "a question of this run"):
            spec, question = read_spec(message, self.data), read_question(message)
            require_rules(MEMBERS, spec, self)
            respond = getattr(self.data, "respond", None)
            if respond is None:
                raise refusal("kind", "'broadcast' or 'final': a run of these rows asks no questions", message.kind)
            answer = respond(spec, self.name, name := question.name, question.content, question.arrays)
        refused = Refusal(("closed",)) if name in self.refuses else None
        if self.privacy is not None:
            refused = Refusal(("private",))
        try:
            with one_thread_if_small(spec.dim):
                content, arrays = ({}, {}) if refused else pack(answer())
        except UNCOMPUTABLE as error:
            logger.warning("question %s: %s", name, error)
            content, arrays, refused = {}, {}, Refusal(("no_sums",))
        return replace(self, heard=Heard(spec, question)), answer_of(question, self.name, content, arrays, refused)

    def cleared(self, said: Message, ledger: Ledger) -> tuple[Message, Entry, Source | None]:
        """Check a message of the last step against the rules; return it, its entry in the ledger, and its design.

        A question beside the rounds that the rules do not allow is answered by a refusal, so that the run can go on;
        any other message that a rule keeps back is a DisclosureError. `ledger` has all that has left this site.
        """
        assert self.rules is not None
        entry = described(self, Entry.of(said, self.rules.overrides))
        try:
            return said, *checked(self, entry, ledger)
        except DisclosureError as error:
            if said.kind != "answer":
                raise
            assert self.heard is not None
            assert isinstance(self.heard.asked, Question)
            logger.warning(str(error))
            refused = error.refusal(self.heard.spec.named)
            said = answer_of(self.heard.asked, self.name, {}, {}, refused).sealed(self.key)
            entry = described(self, Entry.of(said, self.rules.overrides))
            return said, ledger.refused(entry, entry.refused, self.rules.budget) if error.tells else entry, None

    def _answered(self, served: Served, engine: SiteEngine[Any], server: str | None) -> tuple[Site, Message | None]:
        known = self.kept or SiteState(engine.spec, Answers(engine.first(served.q_g)), (), server)
        # noise that was drawn is sent again, never drawn twice
        earlier = known.answers.pending if served.round == known.answers.answered[0] else None
        kept = _settled(known, served, engine)
        # also a final message: what is kept would begin at the q_g of its round, and not at that of the first
        if self.kept is None and served.round > 1 and engine.begins_at_round_one:
            raise refusal("round", "1, or a copy of the dual must come along, where a site begins", served.round)
        if served.outcome is not None:
            return replace(self, kept=replace(kept, ended=True), heard=None), None
        counted, solved = kept.answers.counted, None
        report, header, arrays = engine.report(served, counted)
        if served.solve:
            answer, solved, vectors = engine.answer(served, counted, report, earlier)
            arrays |= vectors
            if answer is not None:
                kept = replace(kept, answers=replace(kept.answers, pending=answer))
        common = {"run": engine.spec.run, "round": served.round, "site": self.name, "answers": served.digest}
        header = {**common, **header, "solved": solved}
        solved_at = getattr(kept.answers.pending if served.solve else None, "natural", None)
        after = replace(self, kept=kept, heard=Heard(engine.spec, served, report.sums, solved_at))
        return after, Message("reply", header, arrays, f"reply of {self.name}")

    def save(self) -> Message:
        """Return the state as a message of kind "site", without rows; a ValueError before the first broadcast."""
        if self.kept is None:
            raise ValueError(f"site {self.name!r} has not answered a broadcast yet: there is nothing to keep.")
        spec, arrays = self.kept.spec.encode()
        plain, answers = self.kept.answers.encode()
        header = {
            "site": self.name,
            "data": self._digest,
            "privacy": self._granted,
            "spec": spec,
            "past": len(self.kept.past),
            "server": self.kept.server,
            "ended": self.kept.ended,
            **plain,
        }
        past = {f"past{i}": dual.to_vector() for i, dual in enumerate(self.kept.past)}
        return Message("site", header, arrays | answers | past)

    def restore(self, message: Message) -> Site:
        """Return this site with the state of `save`; that of another site, or of other rows, is a MessageError."""
        self._require_own(message)
        with content_of(message, "the state of a site"):
            if message.header["privacy"] != self._granted:
                raise message.refusal("privacy", f"that of this site, {self._granted}", message.header["privacy"])
            engine = self._engine(read_spec(message, self.data))
            answers, past = Answers.read(message, engine), read_past(message, engine)
            kept = SiteState(engine.spec, answers, past, message.header.get("server"))
            return replace(self, kept=replace(kept, ended=message.header.get("ended") is True))

    def _require_own(self, message: Message) -> None:
        """Raise unless the message is the state of this site, with these rows."""
        name = self.name
        if message.kind != "site" or message.header.get("site") != name:
            raise message.refusal("file", f"the state of site {name!r}", message.kind)
        if message.header.get("data") != self._digest:
            raise MessageError(
                f"the rows of site {name!r} must be those of the rounds before, and they have changed "
                "since; put the old ones back, or start a new run.",
                message.source,
            )

    @np.errstate(over="ignore", invalid="ignore")  # no residual of a copy is trusted
    def adopt(self, spec: RunSpec, copy: Message) -> Site:
        """Return the site as the server knows it, from the server's copy of it.

        Refused is a copy of another run or site, and a site with privacy, whose spending the server does not know.
        """
        with content_of(copy, "of this run", ()):
            engine = self._engine(spec)
        counted, vectors, past = read_copy(copy, spec.run, self.name, engine)
        if self.privacy is not None:
            raise MessageError(
                f"site {self.name}: its account of answers with noise is lost with its state: start a new run."
            )
        with content_of(copy, COMPUTABLE, UNCOMPUTABLE), one_thread_if_small(spec.dim):
            answer = engine.adopted(counted, vectors)
        # without an answer of this site in the sum the start of a run is what the server counts on
        return self if answer is None else replace(self, kept=SiteState(spec, Answers(answer), past, copy.signer))

    @cached_property
    def _digest(self) -> str:
        return self.data.digest

    @property
    def _granted(self) -> list[float] | None:
        if self.privacy is None or self.privacy_rounds is None:
            return None
        return [self.privacy.clip, self.privacy.noise_multiplier, self.privacy_rounds]

    def _engine(self, spec: RunSpec) -> SiteEngine[Any]:
        require_rules(MEMBERS, spec, self)
        with one_thread_if_small(spec.dim):
            return self.data.join(spec, self.name, self.privacy)

    def _require_granted(self, spec: RunSpec, served: Served) -> None:
        if self.privacy_rounds is None:
            return
        rounds = max(spec.limit, served.round if served.solve else 0)
        if rounds > self.privacy_rounds:
            raise refusal("rounds", f"at most {self.privacy_rounds}, the privacy granted here", rounds)


def _settled(kept: SiteState, served: Served, engine: SiteEngine[Any]) -> SiteState:
    """Learn whether the last answer was counted, and mix the site where an accelerated step was taken."""
    before = kept.answers.counted
    answers = kept.answers.settled(served, served.counted[engine.index])
    if answers.counted is before:
        return replace(kept, answers=answers)
    answer, past = engine.settled(answers.counted, kept.past, served)
    return replace(kept, answers=replace(answers, counted=answer), past=past)
