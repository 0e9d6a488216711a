"""The privacy account of a site: one account for each folder, shared by all runs and all transports.

Every noised answer that leaves the folder is entered once; sending the same answer again adds no entry. The account is
a file beside the site's states. It grows and never shrinks, and it is written before the answer leaves.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from .._archive import Archive, ArchiveError
from .._validation import Array, as_positive
from ..splitting.privacy import GaussianMechanism
from .site import Site

ACCOUNT = "privacy.npz"
KIND = "privacy account"
SLACK = 1e-9
"""Rounding allowed in `Account.spent`, a sum of squared ratios; each ratio is one where the noise never changed."""


class SpentError(ArchiveError):
    """Too few of the answers that are granted are left for the rest of a run."""

    code = "spent"


@dataclass(frozen=True)
class Entry:
    """A noised answer that has left the folder, with the digest of its vectors and the multiplier z of its noise."""

    run: str
    round: int
    answer: str
    noise_multiplier: float

    def __post_init__(self) -> None:
        as_positive(self.noise_multiplier, "noise_multiplier")


@dataclass(frozen=True)
class Account:
    """The noised answers that have left a site's folder.

    T answers of noise multiplier z disclose as much as one answer of multiplier z/√T. Answers of different multipliers
    z_i disclose as much as one answer of multiplier (Σ_i z_i⁻²)^{-1/2}. So an old answer counts as (z/z_i)² answers of
    today's multiplier z.
    """

    entries: tuple[Entry, ...] = ()

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> Account:
        """Read a folder's account; of a damaged file an ArchiveError, and the site discloses nothing more."""
        path = Path(folder) / ACCOUNT
        if not path.exists():
            return cls()
        archive = Archive.read(path)
        return archive.header_as(KIND, cls, ())

    def write(self, folder: str | os.PathLike[str]) -> None:
        """Write the account; an empty account writes no file."""
        if self.entries:
            plain = {"entries": [vars(entry) for entry in self.entries]}
            Archive(KIND, plain, {}, ACCOUNT).write(Path(folder) / ACCOUNT)

    def spent(self, mechanism: GaussianMechanism) -> float:
        """Return how many answers of this mechanism disclose as much as all answers that have left."""
        z = mechanism.noise_multiplier
        ratios = [z / entry.noise_multiplier for entry in self.entries]
        return sum(ratio * ratio for ratio in ratios)  # infinite where it is too large, which ** is not

    def charged(
        self, entry: Entry, limit: int, mechanism: GaussianMechanism, granted: int, source: str = ""
    ) -> Account:
        """Return the account with another answer, of a run of at most `limit` rounds; the same answer enters once.

        Raises a SpentError where the rest of the run could need more answers than are left of `granted`: the reply
        must not leave.
        """
        if any(other.answer == entry.answer for other in self.entries):
            return self
        left, needed = granted - self.spent(mechanism), max(limit - entry.round, 0) + 1
        if needed > left + SLACK:
            raise SpentError(
                f"rounds to come must be at most {int(max(left + SLACK, 0.0))}, what is left of the "
                f"{granted} answers granted here for all runs, got {needed}.",
                source,
            )
        return replace(self, entries=(*self.entries, entry))


def charge(folder: str | os.PathLike[str], site: Site) -> Account:
    """Return the folder's account after the noised answer that this site has just made; it is not written yet.

    The caller writes the state that holds the answer first, then the account, and then sends the reply. A step that
    stopped in between is repeated with the same noise, and enters the answer then.
    """
    answer = None if site.kept is None else site.kept.ledger.pending
    if site.kept is None or answer is None or site.privacy is None or site.privacy_rounds is None:
        return Account()
    run, z = site.kept.spec, site.privacy.noise_multiplier
    entry = Entry(run.run, answer.round, _digest(answer.vectors), z)
    limits = run.limit, site.privacy, site.privacy_rounds
    return Account.read(folder).charged(entry, *limits, f"reply of {site.name}")


def _digest(vectors: Mapping[str, Array]) -> str:
    """Return a digest of what is sent of an answer; η_k and its gap follow from this part."""
    return hashlib.sha256(b"natural\0" + vectors["natural"].tobytes()).hexdigest()[:32]
