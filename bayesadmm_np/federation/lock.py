"""One process at a time in a folder: a step reads the folder's state, computes, and writes what follows from it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from .._archive import ArchiveError, MissingFileError
from .._errors import ArgumentError, needed_by
from .ledger import LEDGER

PATIENCE = 60.0
"""Seconds that a second process waits for the first."""


class BusyError(ArchiveError):
    """Another process is at work in the folder."""

    code = "busy"


def require_no_site(folder: str | os.PathLike[str]) -> None:
    """Refuse a server the folder of a site, whose files it would replace; a ledger or site.json tells."""
    if any(Path(folder, name).exists() for name in (LEDGER, "site.json")):
        expected = "must be the server's own folder, which begins or continues a run"
        cure = "name the server's folder first, then the sites or their files"
        raise ArgumentError("folder", expected, f"the folder of a site, {os.fspath(folder)}", cure)


@contextmanager
def locked(folder: str | os.PathLike[str], who: Literal["server", "site"]) -> Iterator[None]:
    """Hold a folder as its server or as its site; the system lets go of the folder however the process ends.

    Raises a BusyError where another process holds the folder for longer than `PATIENCE`, and an ArgumentError where a
    server names the folder of a site.
    """
    with needed_by("folders of a run need filelock", "cli"):
        from filelock import FileLock, Timeout
    if not Path(folder).is_dir():
        raise MissingFileError(f"{os.fspath(folder)}: folder must be one that can be written to, and there is none.")
    if who == "server":
        require_no_site(folder)
    lock = FileLock(Path(folder) / f".{who}.lock", mode=0o600)
    try:
        lock.acquire(timeout=PATIENCE)
    except Timeout as error:
        why = "is in use by another process; wait until its step has ended, and try again."
        raise BusyError(f"{os.fspath(folder)} {why}") from error
    except OSError as error:
        why = f"folder must be one that can be written to: {error.strerror}."
        raise ArchiveError(f"{os.fspath(folder)}: {why}") from error
    try:
        yield
    finally:
        lock.release()
