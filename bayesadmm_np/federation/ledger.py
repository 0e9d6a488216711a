"""The ledger of a site's folder: all that has left it or was refused, in all runs and by all transports.

A line is entered on the disk before its message leaves, and once, however often the message is sent. Each line holds a
digest of itself and of the one before. A line that a kill cut short is of a message that did not leave; of any other
line that is not whole nothing leaves any more. The first line holds a random key, which keys the hashes of cells.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from .._archive import Archive, ArchiveError, read_as, sync_folder
from ..splitting.privacy import GaussianMechanism
from .differencing import Cells, Source
from .messages import MessageError
from .refusals import Refusal

LEDGER = "ledger.jsonl"
DIGITS = 32
"""Digits of a digest in the ledger."""
SLACK = 1e-9
"""Rounding allowed in `Ledger.spent`, a sum of squared ratios; each ratio is one where the noise never changed."""
REFUSALS = 20
"""Refusals about the rows that take the whole budget."""


class SpentError(ArchiveError):
    """Too few of the answers that are granted are left for the rest of a run."""

    code = "spent"


@dataclass(frozen=True)
class Entry:
    """A message that has left the site, or a refusal, which is a message or a round without an answer.

    `number` is the round, or the number of the question of this `name`, `talk` the run whatever its origin, and `about`
    the formula or columns. `numbers` counts the different numbers, which cost `cost`, numbers by those that the rows
    hold. `asked` is the digest of the message that was answered, `design` that of the rows and columns, `noise` the
    multiplier of an answer with noise. `refused` is why there is no content, `allowed` has by rule what it was about
    and its limit, and `overrides` the rules that are not as by default.
    """

    time: str
    kind: str
    run: str
    number: int
    name: str
    bytes: int
    numbers: int
    digest: str
    asked: str = ""
    refused: str = ""
    talk: str = ""
    about: str = ""
    cost: float = 0.0
    design: str = ""
    noise: float = 0.0
    allowed: dict[str, list[float]] = field(default_factory=dict)
    overrides: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, said: Archive, overrides: Mapping[str, Any]) -> Entry:
        """Return the entry of a message, before the rules were asked."""
        header, refused = said.header, said.header.get("refused")
        values = [array.ravel().astype(np.float64) for array in said.arrays.values()]
        return cls(
            time=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            kind=said.kind,
            run=str(header.get("run", "")),
            number=int(header.get("number", header.get("round", 0))),
            name=str(header.get("name", "")),
            bytes=said.size,
            # a matrix has most of its entries twice, a reply some of its sums
            numbers=_floats(header) + (int(np.unique(np.concatenate(values)).size) if values else 0),
            digest=said.digest[:DIGITS],
            asked=str(header.get("answers", ""))[:DIGITS],
            refused="" if refused is None else read_as(Refusal, refused, said.source).text,
            overrides=json.loads(json.dumps(dict(overrides))),
        )


def _floats(plain: Any) -> int:
    """Count the numbers in a header that are not whole by their type."""
    if isinstance(plain, Mapping | list | tuple):
        return sum(map(_floats, plain.values() if isinstance(plain, Mapping) else plain))
    return int(isinstance(plain, float))


@dataclass(frozen=True)
class Ledger:
    """The entries of a folder, in order, and what the next one is chained to."""

    folder: Path = Path()
    entries: tuple[Entry, ...] = ()
    key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    link: str = ""
    size: int = 0
    """Bytes of the whole lines."""

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> Ledger:
        """Read a folder's ledger; a damaged or edited line is a MessageError, and the site sends nothing more."""
        path = Path(folder) / LEDGER
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        lines = [line for line in lines if line.endswith(b"\n")]
        if not lines:
            return cls(Path(folder))
        entries, link, key = [], "", b""
        for number, line in enumerate(lines, start=1):
            try:
                own, _, body = line.rstrip(b"\n").partition(b" ")
                link = _link(link, body)
                if own.decode() != link:
                    raise ValueError("its digest is another")
                plain = json.loads(body)
                if number == 1:
                    key = bytes.fromhex(plain["key"])
                else:
                    entries.append(read_as(Entry, plain, ""))
            except (ValueError, TypeError, KeyError) as error:
                raise MessageError(
                    f"line {number} must be as it was written, and it is damaged ({error}); nothing leaves the site "
                    "before an undamaged copy of the file is put back.",
                    os.fspath(path),
                ) from error
        return cls(Path(folder), tuple(entries), key, link, sum(map(len, lines)))

    def enter(self, entry: Entry, design: Source | None = None) -> None:
        """Append an entry, on the disk before the message leaves; what is sent again is there already."""
        if any(one.digest == entry.digest for one in self.entries):
            return
        whole = self if self.size else self._appended({"key": self.key.hex()})
        if design is not None and entry.design not in self.designs:
            Cells.of(design, self.key).write(self.folder, entry.design)
        whole._appended(asdict(entry))

    def _appended(self, plain: dict[str, Any]) -> Ledger:
        """Append a line to the file, in the place of one that was cut short."""
        body = json.dumps(plain).encode()
        link = _link(self.link, body)
        line = link.encode() + b" " + body + b"\n"
        with os.fdopen(os.open(self.folder / LEDGER, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.truncate(self.size)
            file.seek(self.size)
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        if not self.size:
            sync_folder(self.folder)
        return replace(self, link=link, size=self.size + len(line))

    @property
    def designs(self) -> tuple[str, ...]:
        """Digests of all designs of which something has left."""
        return tuple(dict.fromkeys(one.design for one in self.entries if one.design))

    # --- The budget

    def spent(self, but: str = "") -> float:
        """Return the numbers that have left, by those that the rows hold, with refusals; all but one message's."""
        return sum(one.cost for one in self.entries if one.digest != but)

    def refused(self, entry: Entry, reason: str, budget: float) -> Entry:
        """Return the entry of a refusal that tells of the rows; the same message is refused at the cost of one."""
        is_new = not any(one.refused and one.cost and one.asked == entry.asked for one in self.entries)
        cost = budget / REFUSALS if is_new and math.isfinite(budget) else 0.0
        return replace(entry, numbers=0, refused=reason, cost=cost, noise=0.0)

    # --- The noised answers

    def answers(self, mechanism: GaussianMechanism) -> float:
        """Return how many answers of this mechanism disclose as much as all noised answers that have left.

        T answers of noise multiplier z disclose as much as one answer of multiplier z/√T. Answers of different
        multipliers z_i disclose as much as one answer of multiplier (Σ_i z_i⁻²)^{-1/2}. So an old answer counts as
        (z/z_i)² answers of today's multiplier z.
        """
        ratios = [mechanism.noise_multiplier / one.noise for one in self.entries if one.noise]
        return sum(ratio * ratio for ratio in ratios)  # infinite where it is too large, which ** is not

    def charged(self, entry: Entry, limit: int, mechanism: GaussianMechanism, granted: int, source: str = "") -> Entry:
        """Return the entry of a noised answer, of a run of at most `limit` rounds; the same answer enters once.

        Raises a SpentError where the rest of the run could need more answers than are left of `granted`: the reply
        must not leave.
        """
        left, needed = granted - self.answers(mechanism), max(limit - entry.number, 0) + 1
        if needed > left + SLACK and not any(one.digest == entry.digest for one in self.entries):
            expected = f"{int(max(left + SLACK, 0.0))}, what is left of the {granted} answers granted here for all runs"
            raise SpentError(f"rounds to come must be at most {expected}, got {needed}.", source)
        return replace(entry, noise=mechanism.noise_multiplier)


def _link(before: str, body: bytes) -> str:
    return hashlib.sha256(before.encode() + b" " + body).hexdigest()[:DIGITS]
