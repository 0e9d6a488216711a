"""What the messages of a round hold, read and checked before anything is computed from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .._validation import Array
from ..clients.problem import ClientStatus
from ..families.base import ExponentialFamily
from ..families.coordinates import Natural
from ..families.gaussian import Gaussian
from ..losses.base import Expected, GaussianExpected, Margins
from ..losses.expectations import Delta, Exact
from ..splitting.messages import Reply
from ..splitting.worker import moved_site
from .message import Message
from .terms import Terms

__all__ = [
    "Answered",
    "Sent",
    "Served",
    "as_flag",
    "as_integer",
    "as_real",
    "as_text",
    "read_counted",
    "read_reply",
    "read_served",
    "require_answer",
]

BROADCAST = ("run", "round", "solve", "certify", "counted", "mixed", "terms")
FINAL = ("run", "round", "counted", "mixed", "terms", "status", "message", "objective", "certificate")
REPLY = ("run", "round", "site", "answers", "value", "edge", "solved", "certificate")
SOLVED = {"status", "iterations", "residual", "edge", "well_posed"}
CERTIFICATE = {"reach", "curvature_error", "at_mean"}


@dataclass(frozen=True)
class Served:
    """A broadcast: λ_g, what to do with it, and which answers it rests on.

    `counted[k]` is the round of the k-th site's last answer in the server's sum (0: none yet); `mixed` is the last
    round that acceleration mixed, with its weights.
    """

    round: int
    natural: Natural
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
class Answered:
    """A reply: E_{q_g}[ℓ_k], the natural-gradient edge of the site as counted, the solve, and the sums at q_g.

    `round` is that of the broadcast. A site with privacy sends no value, and ∞ for its edge.
    """

    round: int
    value: float | None
    edge: float
    reply: Reply | None
    at_server: Expected | GaussianExpected | None


def read_served(message: Message, terms: Terms) -> Served:
    """Read a broadcast or a final message of this run."""
    kind, fields = ("final", FINAL) if message.kind == "final" else ("broadcast", BROADCAST)
    message.require(kind, fields, {"natural"} | terms.vectors(message))
    header = message.header
    number, counted = read_counted(message, terms.run, len(terms.sites))
    natural = message.natural("natural", terms.prior.natural)
    _require_inside(message, "natural", natural, terms.prior)
    return Served(
        round=number,
        natural=natural,
        solve=as_flag(message, "solve", header.get("solve", False)),
        certify=as_flag(message, "certify", header.get("certify", False)),
        counted=counted,
        mixed=_read_mixed(message, header["mixed"], number),
    )


def read_counted(message: Message, run: str, n_sites: int) -> tuple[int, tuple[int, ...]]:
    """Return the round of a broadcast of this run, and the rounds of the sites' answers that it counts."""
    if message.header["run"] != run:
        raise message.refusal("run", f"the digest of its terms, {run}", message.header["run"])
    counted = message.header["counted"]
    if not isinstance(counted, list) or len(counted) != n_sites:
        raise message.refusal("counted", f"{n_sites} rounds, one a site", counted)
    number = as_integer(message, "round", message.header["round"], 1)
    return number, tuple(as_integer(message, "counted", value, 0, number - 1) for value in counted)


def require_answer(message: Message, run: str, number: int, digest: str) -> None:
    """Raise unless a reply is to the broadcast of this run, round and digest."""
    for field, value, expected in (
        ("run", run, run),
        ("round", number, f"{number}: let the site answer that broadcast"),
        ("answers", digest, "the digest of this run's broadcast"),
    ):
        if message.header[field] != value:
            raise message.refusal(field, expected, message.header[field])


def read_reply(message: Message, terms: Terms, served: Served, digest: str, site: Natural) -> Answered:
    """Read a site's answer to the broadcast with this digest; `site` is its η_k so far, which the server follows."""
    header = message.header
    message.require("reply", REPLY, _reply_arrays(message, terms))
    require_answer(message, terms.run, served.round, digest)
    if (header["solved"] is not None) != served.solve:
        raise message.refusal(
            "solved", "given" if served.solve else "null in a round without a solve", header["solved"]
        )
    value = header["value"]
    return Answered(
        round=served.round,
        value=None if value is None else as_real(message, "value", value, finite=False),
        edge=as_real(message, "edge", header["edge"], finite=False),
        reply=_read_solved(message, terms, served, site),
        at_server=_read_sums(message, terms, served),
    )


def _reply_arrays(message: Message, terms: Terms) -> set[str]:
    solved, certificate = (message.header.get(name) for name in ("solved", "certificate"))
    arrays: set[str] = set()
    if isinstance(solved, dict) and _status(message, solved).is_usable:
        arrays |= {"natural", "site"} if terms.site_travels else {"natural"}
    return arrays if certificate is None else arrays | {"sums", "errors"}


def _status(message: Message, solved: dict[str, Any]) -> ClientStatus:
    try:
        status = ClientStatus[solved["status"]]
    except (KeyError, TypeError) as error:
        raise message.refusal("solved.status", "a client's status", solved.get("status")) from error
    if status is ClientStatus.ABSENT:
        raise message.refusal("solved.status", "that of a site that took part", status.name)
    return status


def _read_solved(message: Message, terms: Terms, served: Served, site: Natural) -> Reply | None:
    solved = message.header["solved"]
    if solved is None:
        return None
    if not isinstance(solved, dict) or set(solved) != SOLVED:
        raise message.refusal("solved", f"exactly the fields {sorted(SOLVED)}", solved)
    status = _status(message, solved)
    natural = moved = served.natural
    if status.is_usable:
        natural = message.natural("natural", terms.prior.natural)
        _require_inside(message, "natural", natural, terms.prior)
        if terms.site_travels:
            moved = message.natural("site", terms.prior.natural)
        elif terms.row.dual_step == 0.0:
            moved = site
        else:
            share = terms.shares[terms.sites.index(message.header["site"])]
            moved = moved_site(terms.row.at(served.round), share, len(terms.sites), site, natural, served.natural)
    return Reply(
        natural=natural,
        site=moved,
        iterations=as_integer(message, "solved.iterations", solved["iterations"], 0),
        status=status,
        residual=as_real(message, "solved.residual", solved["residual"], finite=False),
        natural_gradient_edge=as_real(message, "solved.edge", solved["edge"], finite=False),
        gap=None,
        well_posed=as_flag(message, "solved.well_posed", solved["well_posed"]),
        seconds=0.0,
    )


def _read_sums(message: Message, terms: Terms, served: Served) -> Expected | GaussianExpected | None:
    """E_{q_g}[ℓ_k] as the site computed it, from g, H and the margins of its rounding."""
    sent = message.header["certificate"]
    if sent is None:
        return None
    if not served.certify or not isinstance(sent, dict) or set(sent) != CERTIFICATE:
        raise message.refusal("certificate", f"null, or when asked for the fields {sorted(CERTIFICATE)}", sent)
    sums = message.natural("sums", terms.certificate_like)
    q_g = terms.prior.start().with_natural(served.natural)
    at_mean = as_flag(message, "certificate.at_mean", sent["at_mean"])
    reach = sent["reach"]
    margins = Margins(
        None if reach is None else as_real(message, "certificate.reach", reach, finite=False),
        message.vector("errors", sums.linear.size),
        as_real(message, "certificate.curvature_error", sent["curvature_error"], finite=False),
    )
    value = as_real(message, "value", message.header["value"], finite=False)
    if not isinstance(q_g, Gaussian):
        return Expected(value, sums)
    rule = Delta(1) if not terms.rule.carries_curvature else Delta(2) if at_mean else Exact()
    expected = GaussianExpected(q_g, value, sums.linear, _Sent(sums.parts[1:]), rule, lambda: margins)
    expected.__dict__["value"] = value  # as computed at the site, whatever the rule adds
    return expected


@dataclass(frozen=True)
class _Sent:
    """A curvature as it came: dense, or in the structure of the family."""

    parts: tuple[Array, ...]

    def dense(self) -> Array:
        return self.parts[0]

    def project(self, factor: Any) -> tuple[Array, ...]:
        return self.parts

    def multiply(self, vector: Array) -> Array:
        return np.asarray(self.parts[0] @ vector)


def _read_mixed(message: Message, mixed: Any, number: int) -> tuple[int, tuple[float, ...]] | None:
    if mixed is None:
        return None
    if not (isinstance(mixed, list) and len(mixed) == 2 and isinstance(mixed[1], list) and mixed[1]):
        raise message.refusal("mixed", "null, or a round and its weights", mixed)
    weights = tuple(as_real(message, "mixed", weight) for weight in mixed[1])
    return as_integer(message, "mixed", mixed[0], 1, number - 1), weights


def _require_inside(message: Message, name: str, natural: Natural, family: ExponentialFamily) -> None:
    if not family.contains(natural):
        raise message.refusal(name, "a distribution: its precision must be positive definite", "one that is not")


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
