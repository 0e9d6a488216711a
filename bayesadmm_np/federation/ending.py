"""How a run ended, as the final message says it: read whole before anybody keeps anything of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..splitting.certificate import Certificate
from ..splitting.distance import Distance
from ..splitting.history import Edges
from ..splitting.status import Status
from .messages import Message, as_flag, as_integer, as_real, as_text, content_of
from .spec import RunSpec

__all__ = ["Ending", "decode_certificate", "encode_certificate", "read_ending"]

ALL_RECORDED = (Status.CONVERGED, Status.ROUND_LIMIT)
"""Statuses of a run whose last round was completed; a failure may leave it without its record."""


@dataclass(frozen=True)
class Ending:
    """What a final message says beside q_g.

    Attributes
    ----------
    status : Status
    message : str
    objective : tuple of float
        At the start and after each round.
    certificate : Certificate or None
    """

    status: Status
    message: str
    objective: tuple[float, ...]
    certificate: Certificate | None


def read_ending(message: Message, spec: RunSpec) -> Ending:
    """Read how a run of this spec ended.

    A final message has round T + 2 after T rounds, and T + 1 objectives; one fewer where the last round failed before
    its record was complete.

    Raises
    ------
    MessageError
        When a field is of another type, or fields contradict each other or the spec.
    """
    header = message.header
    number = as_integer(message, "round", header["round"], 2, spec.limit + 2)
    with content_of(message, "the result of a run"):
        status = Status[header["status"]]
        certificate = decode_certificate(message, header["certificate"])
    if status is Status.STOPPED:
        raise message.refusal("status", "that of a run between sites, which no callback stops", status.name)
    counts = {number - 1} if status in ALL_RECORDED else {number - 1, max(number - 2, 1)}
    values = header["objective"]
    if not isinstance(values, list) or len(values) not in counts:
        expected = " or ".join(map(str, sorted(counts)))
        got = len(values) if isinstance(values, list) else values
        raise message.refusal("objective", f"{expected} numbers in a final message of round {number}", got)
    _require_possible(message, spec, status, certificate)
    objective = tuple(as_real(message, "objective", value, finite=False) for value in values)
    return Ending(status, as_text(message, "message", header["message"]), objective, certificate)


def _require_possible(message: Message, spec: RunSpec, status: Status, certificate: Certificate | None) -> None:
    """Raise unless the run can have this certificate, and with it this status."""
    if certificate is None:
        if status is Status.CONVERGED:
            raise message.refusal("certificate", "given where a run has converged", None)
        return
    if spec.certified is None:
        raise message.refusal("certificate", f"null: a run of the engine {spec.engine} makes none", "one")
    dim, tol = spec.certified
    if certificate.tol != tol:
        raise message.refusal("certificate.tol", f"that of the run, {tol:g}", certificate.tol)
    lengths = {f"edges.{name}": value for name, value in asdict(certificate.edges).items()}
    if not certificate.pooled >= 0:
        raise message.refusal("certificate.pooled", ">= 0", certificate.pooled)
    if certificate.distance is not None:
        each = certificate.distance.per_coefficient
        if each.shape != (dim,):
            raise message.refusal("per_coefficient", f"{dim} numbers, one a parameter", each.size)
        lengths |= {f"distance.{name}": getattr(certificate.distance, name) for name in ("mahalanobis", "sd_units")}
        lengths["per_coefficient"] = float(each.min())
    for name, value in lengths.items():
        if value < 0:
            raise message.refusal(name, ">= 0", value)
    if status is Status.CONVERGED and not certificate.holds:
        expected = f"at most tol, {tol:g}, where a run has converged"
        raise message.refusal("certificate.pooled", expected, certificate.pooled)


def encode_certificate(certificate: Certificate | None) -> dict[str, Any] | None:
    """Return a certificate as plain values."""
    if certificate is None:
        return None
    distance = certificate.distance
    bound = None if distance is None else {**asdict(distance), "per_coefficient": distance.per_coefficient.tolist()}
    return {"edges": asdict(certificate.edges), "pooled": certificate.pooled, "tol": certificate.tol, "distance": bound}


def decode_certificate(message: Message, plain: Any) -> Certificate | None:
    """Return a certificate from what a message says of it."""
    if plain is None:
        return None

    def reals(name: str, values: dict[Any, Any]) -> dict[Any, float]:
        return {key: as_real(message, f"{name}.{key}", value, finite=False) for key, value in values.items()}

    bound, distance = plain["distance"], None
    if bound is not None:
        if not isinstance(bound["per_coefficient"], list):
            raise message.refusal("per_coefficient", "a list of numbers", bound["per_coefficient"])
        each = reals("per_coefficient", dict(enumerate(bound["per_coefficient"])))
        distance = Distance(
            **reals("distance", {name: bound[name] for name in ("mahalanobis", "sd_units")}),
            per_coefficient=np.array(list(each.values())),
            rigorous=as_flag(message, "distance.rigorous", bound["rigorous"]),
            reason=as_text(message, "distance.reason", bound["reason"]),
        )
    scalars = reals("certificate", {name: plain[name] for name in ("pooled", "tol")})
    return Certificate(Edges(**reals("edges", plain["edges"])), **scalars, distance=distance)
