"""The messages of a run, whatever the engine: their fields, and how the fields are read.

A message is an archive of one of these kinds. Each engine reads its own fields.

    hello      site → server    the site's name, the names of its columns, and counts; no rows
    broadcast  server → sites   the run's spec, q_g, which answers are counted, what is asked
    reply      site → server    the site's part of the objective at q_g, and the site's answer
    final      server → sites   q_g, how the run ended, the certificate
    copy       server → site    what the server holds of this site, for one that has lost its state
    site       a file           what a site keeps between rounds
    server     a file           what a server keeps between rounds
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from .._archive import LIMIT, content_of
from .._archive import Archive as Message
from .._archive import ArchiveError as MessageError
from .spec import MOST_ROWS, SPEC_VECTORS, RunSpec, as_site_name, run_of

__all__ = [
    "Heard",
    "Message",
    "MessageError",
    "Report",
    "Sent",
    "Served",
    "as_flag",
    "as_integer",
    "as_real",
    "as_text",
    "by_site",
    "content_of",
    "digests_of",
    "read_hello",
    "read_hellos",
    "read_served",
    "require_answer",
    "require_room",
    "require_run",
]

HELLO = ("site", "identity", "loss", "dim", "rows", "weight", "features", "classes")
COMMON = ("run", "round", "counted", "mixed", "spec")
BROADCAST = (*COMMON, "solve", "certify")
FINAL = (*COMMON, "status", "message", "objective", "certificate")
REPLY = ("run", "round", "site", "answers", "value", "solved")
COPY = ("run", "site", "counted", "past")

LONGEST_IDENTITY = 200
"""Characters: a public key of any kind in use fits."""


@dataclass(frozen=True)
class Served:
    """A broadcast: q_g, what to do with it, and which answers it rests on.

    Attributes
    ----------
    round : int
    q_g : object
        As the engine has it.
    solve : bool
        Whether sites solve, or only report.
    certify : bool
        Whether all sites are asked: for the certificate, or for the objective after the last round.
    counted : tuple of int
        Round of each site's last answer in the server's sum; 0 for none yet.
    mixed : tuple or None
        The last round that acceleration mixed, and its weights.
    """

    round: int
    q_g: Any
    solve: bool
    certify: bool
    counted: tuple[int, ...]
    mixed: tuple[int, tuple[float, ...]] | None


@dataclass(frozen=True, eq=False)
class Sent:
    """A broadcast that is out: what it says, and the digest that its answers repeat."""

    served: Served
    digest: str


@dataclass(frozen=True)
class Report:
    """A site's report on q_g.

    Attributes
    ----------
    value : object
        The site's part of the objective; None at a site with privacy, or where the value belongs to an older q_g.
    edge : float
        Natural-gradient edge of the answer that is counted; ∞ where it is not known.
    sums : object
        What the certificate is made of, where it was asked for.
    """

    value: Any = None
    edge: float = float("inf")
    sums: Any = None


@dataclass(frozen=True)
class Heard:
    """A reply to the broadcast of a round: the report, and the answer, None where there is none to count."""

    round: int
    report: Report
    answer: Any


# ----------------------------------------------------------------------------------------------------
# Reading messages
# ----------------------------------------------------------------------------------------------------


def require_run(message: Message, known: str | None = None) -> str:
    """Return the run of a broadcast; it is compared before anything else of the message is looked at.

    Raises
    ------
    MessageError
        When the run is not the digest of the spec that comes with it, or not the `known` one.
    """
    spec = message.header.get("spec")
    if not isinstance(spec, dict):
        raise message.refusal("spec", "that of a run", spec)
    with content_of(message, "the spec of a run"):
        run = run_of(message)
    if message.header.get("run") != run:
        raise message.refusal("run", f"the digest of its spec, {run}", message.header.get("run"))
    if known is not None and run != known:
        raise message.refusal("run", f"{known}, which this site takes part in", run)
    return run


def read_served(message: Message, spec: RunSpec, engine: Any) -> Served:
    """Read a broadcast or a final message of this run."""
    kind, fields = ("final", FINAL) if message.kind == "final" else ("broadcast", BROADCAST)
    message.require(kind, fields, set(engine.q_sizes) | (SPEC_VECTORS & set(message.arrays)))
    header, counted = message.header, message.header["counted"]
    if header["run"] != spec.run:
        raise message.refusal("run", f"the digest of its spec, {spec.run}", header["run"])
    if not isinstance(counted, list) or len(counted) != len(spec.sites):
        raise message.refusal("counted", f"{len(spec.sites)} rounds, one a site", counted)
    number = as_integer(message, "round", header["round"], 1)
    return Served(
        round=number,
        q_g=engine.read_q(message),
        solve=as_flag(message, "solve", header.get("solve", False)),
        certify=as_flag(message, "certify", header.get("certify", False)),
        counted=tuple(as_integer(message, "counted", value, 0, number - 1) for value in counted),
        mixed=_read_mixed(message, header["mixed"], number),
    )


def require_answer(message: Message, run: str, sent: Sent) -> None:
    """Raise unless a reply answers this broadcast of this run, with a solve where one was asked for."""
    served = sent.served
    for field, value, expected in (
        ("run", run, run),
        ("round", served.round, f"{served.round}: let the site answer that broadcast"),
        ("answers", sent.digest, "the digest of this run's broadcast"),
    ):
        if message.header.get(field) != value:
            raise message.refusal(field, expected, message.header.get(field))
    solved = message.header.get("solved")
    if (solved is not None) != served.solve:
        raise message.refusal("solved", "given" if served.solve else "null in a round without a solve", solved)


def read_hello(hello: Message) -> Message:
    """Check a site's introduction."""
    hello.require("hello", HELLO, {"sums", "squares"} & set(hello.arrays))
    header = hello.header
    try:
        as_site_name(header["site"])
    except ValueError as error:
        raise MessageError(str(error), hello.source) from error
    for field in ("features", "classes"):
        names = header[field]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise hello.refusal(field, "a list of names", names)
    as_text(hello, "loss", header["loss"])
    as_integer(hello, "dim", header["dim"], 1)
    as_integer(hello, "rows", header["rows"], 1, MOST_ROWS)
    if as_real(hello, "weight", header["weight"]) < 0:
        raise hello.refusal("weight", ">= 0", header["weight"])
    if header["identity"] is not None and len(as_text(hello, "identity", header["identity"])) > LONGEST_IDENTITY:
        raise hello.refusal("identity", f"at most {LONGEST_IDENTITY} characters", header["identity"])
    return hello


def read_hellos(hellos: Sequence[Message]) -> list[Message]:
    """Check the introductions of a run's sites, and return them in the order of their names."""
    read = sorted((read_hello(hello) for hello in hellos), key=lambda hello: str(hello.header["site"]))
    if not read:
        raise ValueError("hellos must hold at least one message, got none.")
    for one, other in pairwise(read):
        if one.header["site"] == other.header["site"]:
            raise other.refusal("site", f"a name of its own ({one.source} has the same)", other.header["site"])
    return read


def require_room(hello: Message, n_sites: int, numbers: int) -> None:
    """Raise unless the states of a run, one and another that waits, each of so many numbers, fit in a checkpoint."""
    size = 2 * 8 * numbers
    if size > LIMIT:
        expected = f"small enough for a checkpoint of {LIMIT} bytes with {n_sites} sites ({size} for site"
        raise hello.refusal("dim", f"{expected} {hello.header['site']})", hello.header["dim"])


def digests_of(replies: Sequence[Message]) -> tuple[str, ...]:
    """Return what replies are known by, in whatever order they came; a ValueError where there are none."""
    if not replies:
        raise ValueError("replies must hold at least one message, got none.")
    return tuple(sorted(reply.digest for reply in replies))


def by_site(replies: Sequence[Message], sites: Sequence[str]) -> Mapping[int, Message]:
    """Return the replies by the number of their site, in order: each of a site of the run, and one a site."""
    found: dict[int, Message] = {}
    for message in replies:
        if message.kind != "reply":
            raise message.refusal("kind", "'reply'", message.kind)
        name = message.header.get("site")
        if name not in sites:
            raise message.refusal("site", f"one of {', '.join(sites)}", name)
        k = sites.index(name)
        if k in found:
            raise message.refusal("site", "one that has not replied yet", name)
        found[k] = message
    return dict(sorted(found.items()))


def _read_mixed(message: Message, mixed: Any, number: int) -> tuple[int, tuple[float, ...]] | None:
    if mixed is None:
        return None
    if not (isinstance(mixed, list) and len(mixed) == 2 and isinstance(mixed[1], list) and mixed[1]):
        raise message.refusal("mixed", "null, or a round and its weights", mixed)
    weights = tuple(as_real(message, "mixed", weight) for weight in mixed[1])
    return as_integer(message, "mixed", mixed[0], 1, number - 1), weights


# ----------------------------------------------------------------------------------------------------
# Reading fields
# ----------------------------------------------------------------------------------------------------


def as_integer(message: Message, name: str, value: Any, minimum: int, maximum: int | None = None) -> int:
    """Return a field that must be an integer in a range."""
    beyond = maximum is not None and isinstance(value, int) and value > maximum
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum or beyond:
        upper = "" if maximum is None else f" to {maximum}"
        raise message.refusal(name, f"an integer from {minimum}{upper}", value)
    return value


def as_real(message: Message, name: str, value: Any, finite: bool = True) -> float:
    """Return a field that must be a number; NaN and ∞ only where a loss that overflows says so by them."""
    try:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        found = float(value) if is_number else np.nan
    except OverflowError:  # JSON has integers of any length
        is_number, found = False, np.nan
    if not is_number or (finite and not np.isfinite(found)):
        raise message.refusal(name, "a finite number" if finite else "a number", value)
    return found


def as_text(message: Message, name: str, value: Any) -> str:
    """Return a field that must be text."""
    if not isinstance(value, str):
        raise message.refusal(name, "text", value)
    return value


def as_flag(message: Message, name: str, value: Any) -> bool:
    """Return a field that must be true or false."""
    if not isinstance(value, bool):
        raise message.refusal(name, "true or false", value)
    return value
