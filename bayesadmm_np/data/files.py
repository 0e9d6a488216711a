"""Finding a data file: the user's directories first, then this library's cache, then the network."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from .._errors import installing

DATA_VARIABLE = "BAYESADMM_DATA"

PathLike = str | os.PathLike[str]


class DataUnavailableError(OSError):
    """A data file was found in none of the places searched, and could not be downloaded."""


@dataclass(frozen=True)
class Download:
    """A published file; `sha256` is None where only its content can be checked. `name` is its path in the cache."""

    name: str
    url: str
    sha256: str | None


def find(data_dir: PathLike | None, *names: str) -> Path | None:
    """Return the path of a file: the first of `names` that exists, in the first of the user's directories with one."""
    if data_dir is not None and not isinstance(data_dir, str | os.PathLike):
        raise TypeError(f"data_dir must be a path or None, got {type(data_dir).__name__}")
    for place in _places(data_dir):
        for name in names:
            if (place / name).is_file():
                return place / name
    return None


def fetch(download: Download, wanted: str, data_dir: PathLike | None) -> Path:
    """Return the file in this library's cache, and download it first if need be; `wanted` names it in errors."""
    searched = ", ".join(map(str, _places(data_dir))) or "no directory (none was named)"
    remedy = f"Put {wanted} in a directory and name it in data_dir or in {DATA_VARIABLE}."
    try:
        import pooch
    except ImportError as error:
        raise DataUnavailableError(
            f"{wanted} was not found; searched: {searched}. {remedy} "
            f"Or let it be downloaded, which needs pooch: {installing('demos')}."
        ) from error

    cache = Path(pooch.os_cache("bayesadmm-np"))
    path = cache / download.name
    # pooch would silently replace a cached file whose sum is wrong: look before it does.
    if path.exists():
        if download.sha256 is not None:
            found = pooch.file_hash(str(path), alg="sha256")
            if found != download.sha256:
                raise DataUnavailableError(
                    f"the cached file {path} has SHA-256 {found} where {download.sha256} was expected: "
                    f"delete it to have it downloaded anew. {remedy}"
                )
        return path
    known_hash = None if download.sha256 is None else f"sha256:{download.sha256}"
    try:
        pooch.retrieve(download.url, known_hash=known_hash, fname=path.name, path=path.parent)
    except (OSError, ValueError) as error:
        raise DataUnavailableError(
            f"{wanted} was not found and could not be downloaded from {download.url} ({error}); "
            f"searched: {searched}, and the cache {cache}. {remedy}"
        ) from error
    return path


def _places(data_dir: PathLike | None) -> list[Path]:
    """Return the user's directories, in the order in which they are searched."""
    named = [data_dir, os.environ.get(DATA_VARIABLE) or None]
    return [Path(place).expanduser() for place in named if place is not None]
