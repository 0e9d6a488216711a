"""The key pair of a site or a server: made in its own folder, of which the private half never leaves."""

from __future__ import annotations

import os
from pathlib import Path

from .._archive import ArchiveError, replace_atomically
from .._signatures import SigningKey, shown

KEY = "key.hex"


def site_key(folder: str | os.PathLike[str]) -> SigningKey:
    """Return the key of a folder, and make one where there is none; a key that is there is never replaced.

    Parameters
    ----------
    folder : path

    Raises
    ------
    ArchiveError
        When the file is damaged.

    Examples
    --------
    >>> import tempfile
    >>> from bayesadmm_np.federation import site_key
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     site_key(folder) == site_key(folder)
    True
    """
    path = Path(folder) / KEY
    if not path.exists():
        text = os.urandom(32).hex() + "\n"
        replace_atomically(path, lambda file: file.write(text.encode()))  # for its owner alone
    return read_key(folder)


def read_key(folder: str | os.PathLike[str], identity: str | None = None) -> SigningKey:
    """Return the key of a folder; one that is lost, damaged, or not of the given identity is an ArchiveError."""
    path = Path(folder) / KEY
    remedy = "put it back from a backup of this folder; without it, a new run must begin"
    try:
        text = path.read_text(encoding="ascii")
        key = SigningKey(bytes.fromhex(text))
        key.identity  # noqa: B018  # of 32 bytes
    except FileNotFoundError as error:
        raise ArchiveError(f"the private key is lost; {remedy}.", str(path)) from error
    except (OSError, ValueError) as error:
        raise ArchiveError(f"the private key is damaged; {remedy}.", str(path)) from error
    if identity is not None and key.identity != identity:
        fault = f"the private key must be that of {shown(identity)}, and it is another"
        raise ArchiveError(f"{fault}; {remedy}.", str(path))
    return key
