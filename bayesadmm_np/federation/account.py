"""What a site has disclosed with noise: one account a folder, whatever the run, its label or the transport.

Every noised answer that leaves the folder is entered, once: an answer that is sent again is the same. The account lies
in a file beside the site's states, grows and never shrinks, and is written before the answer leaves.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path

from .._archive import Archive, ArchiveError, read_as
from .._validation import as_positive
from ..splitting.privacy import GaussianMechanism
from .site import Site

__all__ = ["ACCOUNT", "Account", "Entry", "charge"]

ACCOUNT = "privacy.npz"
KIND = "privacy account"
SLACK = 1e-9
"""Of a sum of squared ratios, which are one each where the noise never changed."""


@dataclass(frozen=True)
class Entry:
    """A noised answer that has left.

    Attributes
    ----------
    run : str
    round : int
    answer : str
        Digest of its vectors.
    noise_multiplier : float
        z of its noise.
    """

    run: str
    round: int
    answer: str
    noise_multiplier: float

    def __post_init__(self) -> None:
        as_positive(self.noise_multiplier, "noise_multiplier")


@dataclass(frozen=True)
class Account:
    """The noised answers that have left a site's folder.

    T answers of the multiplier z disclose as much as one of z/√T; answers of different multipliers as much as one of
    (Σ_i z_i⁻²)^{-1/2}. So an old answer counts (z/z_i)² of today's.

    Attributes
    ----------
    entries : tuple of Entry
    """

    entries: tuple[Entry, ...] = ()

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> Account:
        """Read a folder's account; an empty one where there is none.

        Raises
        ------
        ArchiveError
            When the file is damaged: nothing more is disclosed until it is put back.
        """
        path = Path(folder) / ACCOUNT
        if not path.exists():
            return cls()
        archive = Archive.read(path)
        archive.require(KIND, {"entries"}, ())
        return read_as(cls, archive.header, archive.source)

    def write(self, folder: str | os.PathLike[str]) -> None:
        """Write the account, and nothing where it is empty."""
        if self.entries:
            plain = {"entries": [vars(entry) for entry in self.entries]}
            Archive(KIND, plain, {}, ACCOUNT).write(Path(folder) / ACCOUNT)

    def spent(self, mechanism: GaussianMechanism) -> float:
        """Return how many answers of this mechanism disclose as much as what has left."""
        z = mechanism.noise_multiplier
        return sum((z / entry.noise_multiplier) ** 2 for entry in self.entries)

    def charged(self, reply: Archive, limit: int, mechanism: GaussianMechanism, granted: int) -> Account:
        """Return the account with a reply of a run of at most `limit` rounds.

        Raises
        ------
        ArchiveError
            When the rounds to come could need more than is left of the `granted` answers: the reply must not leave.
        """
        answer = _digest(reply)
        if not reply.arrays or any(entry.answer == answer for entry in self.entries):
            return self
        run, number = str(reply.header["run"]), int(reply.header["round"])
        left, needed = granted - self.spent(mechanism), max(limit - number, 0) + 1
        if needed > left + SLACK:
            raise ArchiveError(
                f"{reply.source}: rounds to come must be at most {max(int(left + SLACK), 0)}, what is left of the "
                f"{granted} answers granted here for all runs, got {needed}."
            )
        return replace(self, entries=(*self.entries, Entry(run, number, answer, mechanism.noise_multiplier)))


def charge(folder: str | os.PathLike[str], site: Site, reply: Archive | None) -> Account:
    """Return the folder's account with a reply of this site entered, where it is noised; it is not written yet.

    The state that holds the reply is written first, then the account, then the reply leaves: a step that stopped in
    between is repeated with the same noise, and enters it.

    Raises
    ------
    ArchiveError
        When the privacy granted is spent, or less is left than the run could need.
    """
    if site.privacy is None or site.privacy_rounds is None or reply is None or site.kept is None:
        return Account()
    return Account.read(folder).charged(reply, site.kept.spec.limit, site.privacy, site.privacy_rounds)


def _digest(reply: Archive) -> str:
    found = hashlib.sha256()
    for name in sorted(reply.arrays):
        found.update(name.encode() + b"\0" + reply.arrays[name].tobytes())
    return found.hexdigest()[:32]
