"""The messages of a run, whatever the engine: their fields, and how the fields are read.

A message is an archive of one of these kinds. It is read here, at the door, into a frozen record that was checked
whole; what is an engine's own is read by the engine's table of fields. Behind the door nobody sees an archive.
Sites and servers with keys seal what they send; whose seal a message needs is checked before the message is read.

    hello      site → server    the site's name, the names of its columns, and counts; no rows
    inquiry    server → sites   the run's spec, and what is asked beside the rounds; see `questions`
    answer     site → server    sums over the site's rows, or why there are none
    broadcast  server → sites   the run's spec, q_g, which answers are counted, what is asked
    reply      site → server    the site's part of the objective at q_g, and the site's answer
    final      server → sites   q_g, how the run ended, the certificate
    lost       site → server    this site's state is lost: what does the server hold of it?
    copy       server → site    the answer, for the site whose key has asked
    site       a file           what a site keeps between rounds
    server     a file           what a server keeps between rounds
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib import import_module
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from .._archive import LIMIT, content_of, read_as, refusal
from .._archive import Archive as Message
from .._archive import ArchiveError as MessageError
from .._fields import Field, read_fields
from .._signatures import shown
from .._validation import Array
from ..splitting.certificate import Certificate
from ..splitting.messages import Ask
from ..splitting.status import Status
from .bounds import most_numbers
from .columns import TableHeader
from .refusals import Refusal
from .spec import ENGINES, MOST_ROWS, SPEC_VECTORS, RunSpec, as_site_name, run_of

LONGEST_IDENTITY = 200
"""Characters: a public key of any kind in use fits."""

Mixed = tuple[int, tuple[float, ...]]
"""The last round that acceleration mixed, and its weights."""


# --- Headers --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HelloHeader:
    """Header of a hello: a site's facts about itself."""

    site: str
    identity: str | None
    loss: str
    dim: int
    rows: int
    weight: float
    features: tuple[str, ...]
    classes: tuple[str, ...]
    table: TableHeader | None = None

    def __post_init__(self) -> None:
        as_site_name(self.site)
        if self.dim < (self.table is None):
            raise ValueError(f"dim must be an integer from 1, got {self.dim}")
        if not 1 <= self.rows <= MOST_ROWS:
            raise ValueError(f"rows must be an integer from 1 to {MOST_ROWS}, got {self.rows}")
        if not 0 <= self.weight < np.inf:
            raise ValueError(f"weight must be a finite number >= 0, got {self.weight}")
        if self.identity is not None and len(self.identity) > LONGEST_IDENTITY:
            raise ValueError(f"identity must be at most {LONGEST_IDENTITY} characters, got {len(self.identity)}")


@dataclass(frozen=True, eq=False, kw_only=True)
class Hello(HelloHeader):
    """A site's introduction as a server has read it; a site with raw columns has no dim, features and classes yet."""

    source: str

    def require_same_site(self, other: Hello) -> None:
        """Raise unless two introductions under one name are of one key."""
        if self.identity != other.identity:
            raise self.refusal(
                "site", f"a name of its own: {self.site} is {shown(other.identity)}", shown(self.identity)
            )

    @property
    def named(self) -> int:
        """Number of the names of columns, classes and levels."""
        columns = () if self.table is None else self.table.described.columns.values()
        return len(self.features) + len(self.classes) + sum(len(column.levels or ()) for column in columns)

    @property
    def plain(self) -> dict[str, Any]:
        """Facts about the site, as JSON has them."""
        said = {item.name: getattr(self, item.name) for item in fields(HelloHeader) if item.name != "table"}
        if self.table is not None:
            said["table"] = self.table.plain
        return {name: list(value) if isinstance(value, tuple) else value for name, value in said.items()}

    def refusal(self, name: str, expected: str, got: Any) -> MessageError:
        """Return the error for a field."""
        return refusal(name, expected, got, self.source)


@dataclass(frozen=True)
class _ToSites:
    """Fields of broadcasts and final messages alike."""

    run: str
    round: int
    counted: tuple[int, ...]
    mixed: Mixed | None
    spec: dict[str, Any]

    def __post_init__(self) -> None:
        if self.round < 1:
            raise ValueError(f"round must be an integer from 1, got {self.round}")
        if not all(0 <= number < self.round for number in self.counted):
            raise ValueError(f"counted must be an integer from 0 to {self.round - 1} a site, got {list(self.counted)}")
        if self.mixed is not None:
            number, weights = self.mixed
            if not (1 <= number < self.round and weights and np.isfinite(weights).all()):
                raise ValueError(f"mixed must be an earlier round and its finite weights, got {self.mixed}")


@dataclass(frozen=True)
class BroadcastHeader(_ToSites):
    """A broadcast."""

    ask: Ask | None
    certify: bool


@dataclass(frozen=True)
class FinalHeader(_ToSites):
    """A final message."""

    status: str
    message: str
    objective: tuple[float, ...]
    certificate: Certificate | None
    table: dict[str, Any] | None


@dataclass(frozen=True)
class ReplyHeader:
    """Fields that the replies of all engines have in common; each adds `value`, `solved`, and what is its own."""

    run: str
    round: int
    site: str
    answers: str


@dataclass(frozen=True, eq=False)
class QuestionHeader:
    """A question beside the rounds."""

    run: str
    number: int
    name: str
    spec: dict[str, Any]
    content: dict[str, Any]

    def __post_init__(self) -> None:
        if self.number < 1:
            raise ValueError(f"number must be an integer from 1, got {self.number}")


@dataclass(frozen=True, eq=False)
class AnswerHeader:
    """The answer to a question, or the reason why there is none."""

    run: str
    number: int
    name: str
    site: str
    answers: str
    refused: Refusal | None
    content: dict[str, Any]


@dataclass(frozen=True)
class LostHeader(ReplyHeader):
    """A site's request for the server's copy of it; it answers a broadcast."""


@dataclass(frozen=True)
class CopyHeader:
    """A server's copy of a site: the round of its counted answer, and how many of its past duals are mixed."""

    run: str
    site: str
    counted: int
    past: int

    def __post_init__(self) -> None:
        if self.counted < 0:
            raise ValueError(f"counted must be an integer from 0, got {self.counted}")


def taken(message: Message, table: Mapping[str, Field], prefix: str = "") -> dict[str, Any]:
    """Return what a table of fields makes of the arrays of a message: of all of them, or of those with a prefix."""
    with content_of(message, "those of a table", ()):
        return read_fields(table, message.arrays, prefix)


def _under(message: Message, prefix: str) -> dict[str, Any]:
    """Return arrays by their names without a prefix."""
    return {name.removeprefix(prefix): values for name, values in message.arrays.items() if name.startswith(prefix)}


# --- What was read --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """End of a run, in the round of the final message, one more than that of the last broadcast."""

    status: Status
    message: str
    round: int
    objective: tuple[float, ...]
    """At the start and after each round; NaN where a site was absent."""
    certificate: Certificate | None
    """None where a site did not send its sums at the last λ_g, or these overflow."""
    table: Any = None
    """An `AskedTable`, where the run asks."""


@dataclass(frozen=True, eq=False)
class Served:
    """A broadcast: q_g, what to do with it, and which answers it rests on; or a final message, with an outcome."""

    round: int
    q_g: Any
    ask: Ask | None
    """Work of sites beside their report, "sums" for nothing but the sums of the certificate; None after all rounds."""
    certify: bool
    """True where all sites are asked: for the certificate, or for the objective after the last round."""
    counted: tuple[int, ...]
    """Round of each site's last answer in the server's sum; 0 for none yet."""
    mixed: Mixed | None
    outcome: Outcome | None = None
    digest: str = ""

    @property
    def solve(self) -> bool:
        """Return whether sites send an answer beside their report."""
        return self.ask not in (None, "sums")


@dataclass(frozen=True)
class Report:
    """A site's report on q_g."""

    value: Any = None
    """The site's part of the objective; None at a site with privacy."""
    edge: float = float("inf")
    """Natural-gradient edge of the answer that is counted; ∞ where it is not known."""
    sums: Any = None
    """Sums for the certificate, where they were asked for."""


@dataclass(frozen=True, eq=False)
class SiteReply:
    """A reply that a server has read: the report, and the answer, None where there is none to count."""

    report: Report
    answer: Any
    site: int = -1
    digest: str = ""
    answers: str = ""
    """Digest of the broadcast that was out when the reply was read: no server in another round can take it in."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Question(QuestionHeader):
    """A question as a site has read it: plain values and arrays are those of its row in the table of questions."""

    arrays: Mapping[str, Array]
    digest: str


@dataclass(frozen=True, eq=False, kw_only=True)
class Answer(AnswerHeader):
    """An answer as a server has read it; plain values and arrays are those of its row in the table of questions."""

    arrays: Mapping[str, Array]
    digest: str
    source: str


class Heard(NamedTuple):
    """The last message as a site has read it: spec, what was asked, and E_{q_g}[ℓ_k] and λ_k where they were made."""

    spec: Any
    asked: Served | Question | None = None
    sums: Any = None
    solved: Any = None


# --- To the server --------------------------------------------------------------------------------------------


def read_hello(message: Message) -> Hello:
    """Read a site's introduction."""
    header = message.header_as("hello", HelloHeader, ())
    if message.signer != header.identity:
        raise message.refusal("signature", f"that of its identity, {shown(header.identity)}", shown(message.signer))
    return Hello(**vars(header), source=message.source)


def read_hellos(messages: Sequence[Message | Hello]) -> list[Hello]:
    """Read the introductions of a run's sites, those that are not read yet, and return them in order of their names."""
    read = [one if isinstance(one, Hello) else read_hello(one) for one in messages]
    if not read:
        raise ValueError("hellos must hold at least one message, got none.")
    read.sort(key=lambda hello: hello.site)
    for one, other in pairwise(read):
        if one.site == other.site:
            raise other.refusal("site", f"a name of its own ({one.source} has the same)", other.site)
    known: dict[str, Hello] = {}
    for hello in read if any(hello.identity for hello in read) else ():
        if hello.identity is None:
            signs = next(other.site for other in read if other.identity)
            raise hello.refusal("identity", f"a public key, as site {signs} has one: all sites have keys or none", None)
        if (other := known.setdefault(hello.identity, hello)) is not hello:
            raise hello.refusal("identity", "a key of its own", f"that of site {other.site}")
    return read


def require_room(hello: Hello, n_sites: int, numbers: int) -> None:
    """Raise unless the states of a run, one and another that waits, each of so many numbers, fit in a checkpoint."""
    size = 2 * 8 * numbers
    if size > LIMIT:
        expected = f"small enough for a checkpoint of {LIMIT} bytes with {n_sites} sites ({size} for site"
        raise hello.refusal("dim", f"{expected} {hello.site})", hello.dim)


def digests_of(replies: Sequence[Message | SiteReply | Answer]) -> tuple[str, ...]:
    """Return what replies are known by, in whatever order they came; a ValueError where there are none."""
    if not replies:
        raise ValueError("replies must hold at least one message, got none.")
    return tuple(sorted(reply.digest for reply in replies))


def by_site(kind: str, replies: Sequence[Message], sites: Sequence[str]) -> Mapping[int, Message]:
    """Return messages of a kind by the number of their site, in order: each of a site of the run, and one a site."""
    found: dict[int, Message] = {}
    for message in replies:
        if message.kind != kind:
            raise message.refusal("kind", repr(kind), message.kind)
        name = message.header.get("site")
        if name not in sites:
            raise message.refusal("site", f"one of {', '.join(sites)}", name)
        k = sites.index(name)
        if k in found:
            raise message.refusal("site", "one that has not replied yet", name)
        found[k] = message
    return dict(sorted(found.items()))


def read_reply(message: Message, run: str, served: Served, engine: Any) -> tuple[Any, dict[str, Any]]:
    """Read a reply to this broadcast of this run, with a solve where one was asked for: its header, and its vectors."""
    for field, value, expected in (
        ("run", run, run),
        ("round", served.round, f"{served.round}: let the site answer that broadcast"),
        ("answers", served.digest, "the digest of this run's broadcast"),
    ):
        if message.header.get(field) != value:
            raise message.refusal(field, expected, message.header.get(field))
    solved = message.header.get("solved")
    if (solved is not None) != served.solve:
        raise message.refusal("solved", "given" if served.solve else "null in a round without a solve", solved)
    with content_of(message, "a reply"):
        header = read_as(engine.reply_header, message.header, message.source)
        return header, read_fields(engine.reply_fields(header, served), message.arrays)


def read_answer(message: Message, question: Any, about: Mapping[str, Any]) -> Answer:
    """Read an answer to a question that is outstanding; check it by the table of questions, and what its hello said."""
    answer = _read_answer(message)
    expected = {"run": question.spec.run, "number": question.number, "name": question.name}
    for name, value in {**expected, "answers": question.message.digest}.items():
        if getattr(answer, name) != value:
            remedy = f"{value}, as in the question that is out: let the site answer that"
            raise message.refusal(name, remedy, getattr(answer, name))
    if answer.refused and (answer.arrays or answer.content):
        raise message.refusal("content", "empty where the answer is refused", sorted(answer.arrays))
    if answer.refused:
        with content_of(message, "a refusal", ()):
            answer.refused.require_known(question.spec.named)
    else:
        try:
            question.made(answer, about)
        except MessageError as error:
            where = f"{message.source}: site {answer.site}, question {answer.name!r}"
            raise MessageError(error.reason, where) from error
    return answer


def _read_answer(message: Message) -> Answer:
    names = {name for name in message.arrays if name.startswith("a/")}
    header = message.header_as("answer", AnswerHeader, names)
    return Answer(**vars(header), arrays=_under(message, "a/"), digest=message.digest, source=message.source)


def answer_bytes(answer: Answer) -> bytes:
    """Return an answer as a server keeps it."""
    header = {item.name: getattr(answer, item.name) for item in fields(AnswerHeader)}
    header["refused"] = answer.refused and asdict(answer.refused)
    return Message("answer", header, {f"a/{name}": array for name, array in answer.arrays.items()}).to_bytes()


def read_answer_bytes(data: bytes, source: str) -> Answer:
    """Inverse of `answer_bytes`."""
    return _read_answer(Message.from_bytes(data, source))


# --- To the sites ---------------------------------------------------------------------------------------------


def by_server(identity: str | None) -> Mapping[str, str] | None:
    """Return whose seal a message of this server has; None for a server without a key."""
    return None if identity is None else {identity: "the server of this run"}


def require_to_site(message: Message) -> None:
    """Raise unless a message is of a kind that sites are sent."""
    if message.kind not in ("broadcast", "inquiry", "final"):
        raise message.refusal("kind", "'broadcast', 'inquiry' or 'final'", message.kind)


def require_run(message: Message, known: str | None = None) -> str:
    """Return the run of a broadcast, which must be the digest of its spec, and the `known` one where there is one."""
    spec = message.header.get("spec")
    if not isinstance(spec, dict):
        raise message.refusal("spec", "that of a run", spec)
    with content_of(message, "the spec of a run"):
        run = run_of(spec, message.arrays)
    if message.header.get("run") != run:
        raise message.refusal("run", f"the digest of its spec, {run}", message.header.get("run"))
    if known is not None and run != known:
        raise message.refusal("run", f"{known}, which this site takes part in", run)
    return run


def read_spec(message: Message, data: Any = None) -> Any:
    """Read the spec that a message repeats, checking every type and range, with the reader of its engine.

    A site gives its `data`: another engine is refused before it is made.
    """
    plain = message.header.get("spec")
    name = plain.get("engine") if isinstance(plain, dict) else None
    if not isinstance(name, str) or name not in ENGINES:
        raise message.refusal("spec", f"that of a run, with an engine of {', '.join(ENGINES)}", plain)
    if data is not None and name != data.engine:
        raise message.refusal("engine", f"{data.engine!r}, as this site has rows for", name)
    module, kind, _ = ENGINES[name]
    own: type[RunSpec] = getattr(import_module(module), kind)
    expected = {"engine", *(item.name for item in fields(own))} - own.in_vectors
    assert isinstance(plain, dict)
    if set(plain) != expected:
        raise message.refusal("spec", f"exactly the fields {sorted(expected)}", sorted(map(str, plain)))
    sent = {name: array for name, array in message.arrays.items() if name in SPEC_VECTORS}
    with content_of(message, "the spec of a run"):
        vectors = read_fields({name: Field(array.size) for name, array in sent.items()}, sent)
        settings = {name: value for name, value in plain.items() if name != "engine"}
        names = plain.get("features", [])
        return own.decode(settings, vectors, most_numbers(len(names), message.arrays))


def read_served(message: Message, spec: RunSpec, engine: Any) -> Served:
    """Read a broadcast or a final message of this run, whole, before anybody keeps anything of it."""
    is_final = message.kind == "final"
    kind = "final" if is_final else "broadcast"
    beside = {name for name in message.arrays if name in SPEC_VECTORS or (is_final and name.startswith("table/"))}
    form: Any = FinalHeader if is_final else BroadcastHeader
    header: _ToSites = message.header_as(kind, form, set(engine.q_fields) | beside)
    if header.run != spec.run:
        raise message.refusal("run", f"the digest of its spec, {spec.run}", header.run)
    if len(header.counted) != len(spec.sites):
        raise message.refusal("counted", f"{len(spec.sites)} rounds, one a site", list(header.counted))
    if not is_final and header.round > spec.limit + 1:
        raise message.refusal("round", f"an integer from 1 to {spec.limit + 1}", header.round)
    ask: Ask | None = None
    certify, outcome = False, None
    if isinstance(header, BroadcastHeader):
        ask, certify = header.ask, header.certify
        if ask not in (allowed := {None, *spec.asked(header.round)}):
            raise message.refusal("ask", f"one of {sorted(map(str, allowed))}", ask)
    elif isinstance(header, FinalHeader):
        outcome = _read_outcome(message, header, spec)
    with content_of(message, "q_g", ()):
        vectors = read_fields(engine.q_fields, {name: message.arrays[name] for name in engine.q_fields})
        own = (header.round, engine.q_made(vectors), ask, certify)
    return Served(*own, header.counted, header.mixed, outcome, message.digest)


def read_final(message: Message, engine: Callable[[Any], Any]) -> tuple[Any, Served]:
    """Read a final message; `engine` makes the engine of the spec, or refuses it. Return engine and message."""
    if message.kind != "final":
        raise message.refusal("kind", "'final'", message.kind)
    require_run(message)
    spec = read_spec(message)
    with content_of(message, "of this run", ()):
        made = engine(spec)
    return made, read_served(message, spec, made)


def _read_outcome(message: Message, header: FinalHeader, spec: RunSpec) -> Outcome:
    """Read how a run ended.

    A final message has round T + 2 after T rounds, and T + 1 objectives; one fewer where the last round failed before
    its record was complete.
    """
    number, got = header.round, len(header.objective)
    if not 2 <= number <= spec.limit + 2:
        raise message.refusal("round", f"an integer from 2 to {spec.limit + 2}", number)
    # no callback stops a run between sites
    ended = [status.name for status in Status if status is not Status.STOPPED]
    if header.status not in ended:
        raise message.refusal("status", f"one of {', '.join(ended)}", header.status)
    status = Status[header.status]
    counts = {number - 1} if not status.is_failure else {number - 1, max(number - 2, 1)}
    if got not in counts:
        expected = " or ".join(map(str, sorted(counts)))
        raise message.refusal("objective", f"{expected} numbers in a final message of round {number}", got)
    _require_possible(message, spec, status, header)
    if header.table is None:
        return Outcome(status, header.message, number, header.objective, header.certificate)
    with content_of(message, "a table"):
        table = spec.read_table(header.table, _under(message, "table/"))
    return Outcome(status, header.message, number, header.objective, header.certificate, table)


def _require_possible(message: Message, spec: RunSpec, status: Status, header: FinalHeader) -> None:
    """Raise unless the run can have this certificate, and with it this status."""
    certificate = header.certificate
    if certificate is None:
        if status is Status.CONVERGED:
            raise message.refusal("certificate", "given where a run has converged", None)
        return
    if spec.certified is None:
        raise message.refusal("certificate", f"null: a run of the engine {spec.engine} makes none", "one")
    dim, tol = spec.certified
    if certificate.tol != tol:
        raise message.refusal("certificate.tol", f"that of the run, {tol:g}", certificate.tol)
    if np.isnan(certificate.pooled):
        raise message.refusal("certificate.pooled", ">= 0", certificate.pooled)
    if certificate.distance is not None:
        each = certificate.distance.per_coefficient
        if each.shape != (dim,):
            raise message.refusal("per_coefficient", f"{dim} numbers, one a parameter", each.size)
    if status is not Status.CONVERGED:
        return
    if not certificate.is_stationary:
        expected = f"at most tol, {tol:g}, where a run has converged"
        raise message.refusal("certificate.pooled", expected, certificate.pooled)
    known = {f"certificate.edges.{name}": value for name, value in vars(certificate.edges).items()}
    for name, value in {**known, "objective": header.objective[-1]}.items():
        if np.isnan(value):
            raise message.refusal(name, "a number where a run has converged", value)


def read_copy(copy: Message, run: str, name: str, engine: Any) -> tuple[int, dict[str, Any], tuple[Any, ...]]:
    """Read a server's copy of this site, in this run: the round of its counted answer, vectors, and past duals."""
    header = copy.header_as("copy", CopyHeader)
    for field, expected in (("run", run), ("site", name)):
        if copy.header[field] != expected:
            raise copy.refusal(field, expected, copy.header[field])
    past = read_past(copy, engine)
    with content_of(copy, "a copy", ()):
        own = {name: values for name, values in copy.arrays.items() if not name.startswith("past")}
        return header.counted, read_fields(engine.copy_fields, own), past


def read_past(message: Message, engine: Any) -> tuple[Any, ...]:
    """Read the past duals of a site's state, or of a copy."""
    count = read_as(int, message.header["past"], f"{message.source}: past")
    most = min(engine.most_past, len(message.arrays))
    if not 0 <= count <= most:
        raise message.refusal("past", f"an integer from 0 to {most}", count)
    return tuple(taken(message, {str(i): engine.past_field for i in range(count)}, "past").values())


def inquiry_of(spec: RunSpec, number: int, name: str, content: Mapping[str, Any], arrays: Mapping[str, Any]) -> Message:
    """Return the message of a question."""
    plain, vectors = spec.encode()
    header = {"run": spec.run, "number": number, "name": name, "spec": plain, "content": content}
    sent = {f"q/{key}": value for key, value in arrays.items()}
    return Message("inquiry", header, vectors | sent, f"inquiry {number}")


def read_question(message: Message) -> Question:
    """Read what the questions of all engines have in common, after `require_run`."""
    names = {name for name in message.arrays if name.startswith("q/")}
    header = message.header_as("inquiry", QuestionHeader, names | (SPEC_VECTORS & set(message.arrays)))
    return Question(**vars(header), arrays=_under(message, "q/"), digest=message.digest)


def answer_of(
    question: Question, site: str, content: Mapping[str, Any], arrays: Mapping[str, Any], refused: Refusal | None = None
) -> Message:
    """Return the message of an answer, or of a refusal."""
    own = {name: getattr(question, name) for name in ("run", "number", "name")}
    plain = refused and asdict(refused)
    header = {**own, "site": site, "answers": question.digest, "refused": plain, "content": content}
    return Message("answer", header, {f"a/{key}": value for key, value in arrays.items()}, f"answer of {site}")
