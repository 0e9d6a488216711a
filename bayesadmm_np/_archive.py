"""Archives, the one format of files and messages: a JSON header and named arrays, checked before anything is computed.

An archive has the bytes that `safetensors` would write, and is read by it. It begins with the length of a JSON object,
8 bytes, and that object: the arrays' types, shapes and places, and one entry of metadata,

    {"crc32": of all else, "header": {...}, "kind": ..., "schema": ..., "version": ...}

The arrays follow, larger types first, then by name. The same content always makes the same bytes, and a reader takes
only these bytes. A seal can follow, which says who wrote the archive and is verified before anything else is read.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import math
import os
import re
import secrets
import stat
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import IO, Any, TypeVar, get_origin

import numpy as np
from numpy.typing import NDArray

from ._errors import needed_by
from ._signatures import SEAL_SIZE, SigningKey, identity_of, is_seal, shown, verify
from ._text import one_line, visible
from ._validation import ARRAYS, frozen
from ._version import __version__

SCHEMA = 4
"""Version of the format and of what archives hold."""
LIMIT = 1 << 30
"""Bytes that are read from others, and written for them."""
HEADER_SHARE = 32
"""JSON is at most this part of the limit, because a parser takes up to 60 times its length of memory."""
MOST_ARRAYS = 1 << 16
"""Largest number of arrays under a limit: a reader spends time on each, whatever its size."""
MOST_VALUES = 1 << 20
"""Values of JSON under a limit: a parser takes some hundred bytes, and half a microsecond, for each."""
MOST_NESTED = 32
"""Lists in lists: the parsers of JSON call themselves."""
NAME = re.compile(r"\w[\w.:+-]*(/\w[\w.:+-]*)*")
MOST_NAME = 400
DTYPES = {"<i8": "I64", "<f8": "F64", "<f4": "F32", "<i4": "I32", "<f2": "F16", "<i2": "I16"}
DTYPES |= {"|i1": "I8", "|u1": "U8", "|b1": "BOOL"}
"""Types of arrays, in the order of an archive, and their names in safetensors."""
METADATA, ENTRY = "__metadata__", "bayesadmm"

T = TypeVar("T")

Signers = Mapping[str, str] | None
"""Public keys that may have sealed an archive, with the names of their owners; None takes one without a seal too."""


class ArchiveError(ValueError):
    """A file or message was refused: the text names it, the field, and what was expected. Nothing was changed.

    Parameters
    ----------
    reason : str
        Sentence with the field and what was expected.
    source : str, default ''
        Name of the file or message, which the text begins with; '' where the sentence says it.
    name : str, default ''
        Field that was refused, where it was one.
    """

    def __init__(self, reason: str, source: str = "", name: str = "") -> None:
        super().__init__(one_line(f"{source}: {reason}" if source else reason))
        self.reason, self.source, self.name = reason, source, name


class MissingFileError(ArchiveError, FileNotFoundError):
    """There is no such file."""

    # FileNotFoundError would print its arguments
    __str__ = ValueError.__str__


def refusal(name: str, expected: str, got: Any, source: str = "") -> ArchiveError:
    """Return the error for a field; without a source `content_of` adds it."""
    return ArchiveError(f"{name} must be {expected}, got {_short(got)}.", source, name)


@dataclass(frozen=True, eq=False)
class Archive:
    """A JSON header and named arrays of numbers; the same content always makes the same bytes.

    Whatever bytes are read, the answer is an archive or an `ArchiveError`, in memory of at most about three times the
    limit. Checksums find damage. They and the digest are no signatures: who wrote an archive its `signer` says, where
    it was `sealed`.

    Parameters
    ----------
    kind : str
        Kind of the archive: "checkpoint", "model", "broadcast", "reply" ...
    header : mapping
        Values that JSON can hold; NaN and infinity are allowed.
    arrays : mapping of str to ndarray
        Arrays of float, integer or bool; read-only where they were read.
    source : str, default 'message'
        Name of the file, or of whoever sent it, as error messages say it.
    version : str, optional
        Of the library that made it, where that was not this one.
    seal : bytes, default b''
        Made by `sealed`, or verified when the archive was read.

    Examples
    --------
    >>> import numpy as np
    >>> from bayesadmm_np.federation import Message
    >>> message = Message("hello", {"site": "A"}, {"natural": np.arange(3.0)})
    >>> again = Message.from_bytes(message.to_bytes())
    >>> again.header, again.arrays["natural"], again.digest == message.digest
    ({'site': 'A'}, array([0., 1., 2.]), True)
    """

    kind: str
    header: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]
    source: str = field(default="message")
    version: str | None = None
    seal: bytes = b""

    @property
    def signer(self) -> str | None:
        """The public key that has sealed it; None without a seal."""
        return identity_of(self.seal) if self.seal else None

    def sealed(self, key: SigningKey | None) -> Archive:
        """Return the archive with the seal of a key; without one where there is no key."""
        if key is None:
            return self
        found = copy(self)  # with what was computed of its bytes
        object.__setattr__(found, "seal", key.seal(self._hash(self._start).digest()))
        return found

    @cached_property
    def digest(self) -> str:
        """SHA-256 over kind, header and arrays, by which an answer says what it answers."""
        content = _json({"header": self.header, "kind": self.kind, "schema": SCHEMA})
        return self._hash(_utf8(content + self._layout)).hexdigest()

    def _hash(self, start: bytes) -> Any:
        found = hashlib.sha256(start)
        for _, array in self._ordered:
            found.update(_bytes(array))
        return found

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return len(self._start) + sum(array.nbytes for _, array in self._ordered) + len(self.seal)

    def to_bytes(self, limit: int | None = LIMIT) -> bytes:
        """Return the file's bytes.

        Raises
        ------
        ArchiveError
            When they would be more than `limit`: no reader with that limit would take them.
        """
        self._require_size(limit)
        return b"".join(self._pieces())

    def write(self, path: str | os.PathLike[str], limit: int | None = LIMIT) -> None:
        """Write atomically: a crash leaves the old file or the new one, never half of one.

        Raises
        ------
        ArchiveError
            When the file would be larger than `limit`; the old file stays.
        """
        self._require_size(limit)
        replace_atomically(path, lambda file: file.writelines(self._pieces()))

    @classmethod
    def from_bytes(
        cls, data: bytes, source: str = "message", limit: int | None = LIMIT, signers: Signers = None
    ) -> Archive:
        """Read an archive of at most `limit` bytes, sealed by one of `signers` where these are given.

        Raises
        ------
        ArchiveError
            When it is too large, damaged, of another schema, or anything else than `to_bytes` makes.
        """
        return cls._decoded(io.BytesIO(data), len(data), source, limit, signers)

    @classmethod
    def read(
        cls,
        path: str | os.PathLike[str],
        limit: int | None = LIMIT,
        source: str | None = None,
        signers: Signers = None,
    ) -> Archive:
        """Read a file of at most `limit` bytes; None is for files that nobody else could have written.

        Raises
        ------
        MissingFileError
            When there is no such file.
        ArchiveError
            When it cannot be read, or is no archive.
        """
        source = os.fspath(path) if source is None else source
        try:
            with open(path, "rb", opener=_without_waiting) as file:
                about = os.fstat(file.fileno())
                if not stat.S_ISREG(about.st_mode):
                    raise ArchiveError("file must be a regular file, and it is not.", source)
                return cls._decoded(file, about.st_size, source, limit, signers)
        except FileNotFoundError as error:
            raise MissingFileError(f"file must be readable: {error.strerror}.", source) from error
        except OSError as error:
            raise ArchiveError(f"file must be readable: {error.strerror}.", source) from error

    @classmethod
    def _decoded(cls, file: io.BufferedIOBase, size: int, source: str, limit: int | None, signers: Signers) -> Archive:
        if limit is not None and size > limit:
            raise ArchiveError(f"size must be at most {limit} bytes, got {size}.", source)
        seal = _verified_seal(file, size, source, signers)
        try:
            start, top, arrays = _content(file, size, limit)
            found = cls(top["kind"], top["header"], arrays, source, top["version"], seal)
            is_whole = isinstance(found.kind, str) and isinstance(found.header, dict)
            # the bytes before the arrays say all of the layout, and have a checksum of everything
            if not (is_whole and found._start == start and found.size == size):
                raise ValueError("its bytes are not those that a writer makes of it")
        # whatever bytes from outside make a parser raise, the answer is the same
        except Exception as error:
            reason = f"file must be a whole bayesadmm archive, and it is not ({_short(str(error), 240)})."
            raise ArchiveError(reason, source) from error
        return found

    # ------------------------------------------------------------------------------------------------
    # Reading fields: every refusal names the archive, the field, and what was expected
    # ------------------------------------------------------------------------------------------------

    def refusal(self, name: str, expected: str, got: Any) -> ArchiveError:
        """Return the error for a field."""
        return refusal(name, expected, got, self.source)

    def require(self, kind: str, arrays: Collection[str] | None = None) -> None:
        """Raise unless the archive is of this kind, with exactly these arrays where they are given."""
        if self.kind != kind:
            raise self.refusal("kind", repr(kind), self.kind)
        if arrays is not None and set(self.arrays) != set(arrays):
            raise self.refusal("arrays", f"exactly {sorted(arrays)}", sorted(self.arrays))

    def header_as(self, kind: str, form: type[T], arrays: Collection[str] | None = None) -> T:
        """Return the header as of a type; see `require`."""
        self.require(kind, arrays)
        return read_as(form, self.header, self.source)

    # ------------------------------------------------------------------------------------------------
    # Bytes
    # ------------------------------------------------------------------------------------------------

    @cached_property
    def _ordered(self) -> list[tuple[str, NDArray[Any]]]:
        arrays = [(name, _plain(name, array)) for name, array in self.arrays.items()]
        return sorted(arrays, key=lambda item: (RANKS[item[1].dtype.str], item[0]))

    @cached_property
    def _layout(self) -> str:
        """Types, shapes and places of the arrays."""
        layout, at = {}, 0
        for name, array in self._ordered:
            places = [at, at + array.nbytes]
            layout[name] = {"dtype": DTYPES[array.dtype.str], "shape": array.shape, "data_offsets": places}
            at += array.nbytes
        return _json(layout, sort=False)

    @cached_property
    def _start(self) -> bytes:
        """All bytes before those of the arrays."""
        version = __version__ if self.version is None else self.version
        content = _json({"header": self.header, "kind": self.kind, "schema": SCHEMA, "version": version})
        show = visible if self.kind == "model" else one_line  # a user's own columns may have names of several lines
        for text in _texts([self.kind, self.header, version]):
            if show(text) != text:
                expected = "text that a terminal shows and does not obey: rename the column, level or site"
                raise refusal("header", expected, repr(text))
        crc = zlib.crc32(_utf8(self._layout + content))
        for _, array in self._ordered:
            crc = zlib.crc32(_bytes(array), crc)
        metadata = _json({METADATA: {ENTRY: f'{{"crc32":{crc},{content[1:]}'}})
        head = _utf8(metadata[:-1] + ("," if self.arrays else "") + self._layout[1:])
        head += b" " * (-len(head) % 8)
        return len(head).to_bytes(8, "little") + head

    def _require_size(self, limit: int | None) -> None:
        if limit is not None and len(self.arrays) > MOST_ARRAYS:
            raise ArchiveError(f"arrays must be at most {MOST_ARRAYS}, got {len(self.arrays)}.", self.source)
        if limit is not None and sum(self._start.count(mark) for mark in b",[{") > MOST_VALUES:
            raise ArchiveError(f"header must have at most {MOST_VALUES} values for a reader to take it.", self.source)
        if limit is not None and (self.size > limit or len(self._start) > limit // HEADER_SHARE):
            raise ArchiveError(
                f"size must be at most {limit} bytes, 1/{HEADER_SHARE} of it JSON, for a reader to "
                f"take it, got {self.size} with {len(self._start)} of JSON.",
                self.source,
            )

    def _pieces(self) -> Iterator[bytes | memoryview]:
        yield self._start
        yield from (_bytes(array) for _, array in self._ordered)
        yield self.seal


RANKS = {dtype: rank for rank, dtype in enumerate(DTYPES)}


def _plain(name: str, value: Any) -> NDArray[Any]:
    """Return an array as it is written: little-endian, in C order, and of a dtype without objects."""
    array = np.asarray(value, order="C")
    if array.dtype.str not in DTYPES:
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    if array.dtype.str not in DTYPES:
        raise ArchiveError(f"{name} must be an array of float, integer or bool, got {array.dtype}.")
    if not NAME.fullmatch(name) or name == METADATA or len(name) > MOST_NAME:
        raise ArchiveError(f"array must have a name of words between slashes, got {_short(name)!r}.")
    return array


def _bytes(array: NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data if array.size else memoryview(bytearray())


def _json(value: Any, sort: bool = True) -> str:
    return json.dumps(value, sort_keys=sort, separators=(",", ":"), ensure_ascii=False)


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in a header, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for one in value if not isinstance(value, Mapping) else chain(value, value.values()):
            yield from _texts(one)


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ArchiveError(f"header must be text that UTF-8 can hold, got {error.object[error.start]!r}.") from error


def _content(
    file: io.BufferedIOBase, size: int, limit: int | None
) -> tuple[bytes, dict[str, Any], dict[str, NDArray[Any]]]:
    """Parse an archive: the bytes before the arrays, their JSON, and the arrays. The caller compares the first."""
    start = file.read(8)
    if start.startswith(b"PK\x03\x04"):
        raise ValueError(
            f"an npz, as bayesadmm_np 0.1.0 wrote archives before schema {SCHEMA}: finish with the version that wrote "
            "it, or make it anew"
        )
    at = 8 + int.from_bytes(start, "little")
    if at > size or (limit is not None and at > limit // HEADER_SHARE):
        raise ValueError(f"another kind: it begins with {at} bytes of JSON, more than there are, or than fit")
    start += file.read(at - 8)
    if limit is not None and sum(start.count(mark) for mark in b",[{") > MOST_VALUES:
        raise ValueError(f"it has more than {MOST_VALUES} values of JSON")
    layout = json.loads(start[8:])
    top = json.loads(layout.pop(METADATA)[ENTRY])
    level = [top]
    for _ in range(MOST_NESTED + 1):
        inside = (value for one in level for value in (one.values() if isinstance(one, dict) else one))
        level = [value for value in inside if isinstance(value, dict | list)]
    if level:
        raise ValueError(f"JSON is nested more than {MOST_NESTED} deep")
    if top["schema"] != SCHEMA:
        writer = f"bayesadmm_np {top.get('version')}"
        raise ValueError(f"schema must be {SCHEMA}, got {top['schema']}, as {writer} writes; update the older side")
    if limit is not None and len(layout) > MOST_ARRAYS:
        raise ValueError(f"it has more than {MOST_ARRAYS} arrays")
    arrays = {}
    for name, said in layout.items():
        dtype, shape = TYPES[said["dtype"]], tuple(said["shape"])
        at += math.prod(shape) * dtype.itemsize
        if at > size:  # before memory is taken
            raise ValueError("an array is longer than the file")
        array = np.empty(shape, dtype)
        if file.readinto(_bytes(array)) != array.nbytes:
            raise ValueError("it ends too early")
        if dtype == np.bool_ and (array.view(np.uint8) > 1).any():
            raise ValueError("a truth value is neither true nor false")
        arrays[name] = frozen(array)
    return start, top, arrays


TYPES = {name: np.dtype(dtype) for dtype, name in DTYPES.items()}


def _verified_seal(file: io.BufferedIOBase, size: int, source: str, signers: Signers) -> bytes:
    """Return the seal of a file, which is left at its first byte; b'' where it has none."""
    file.seek(max(size - SEAL_SIZE, 0))
    seal = file.read(SEAL_SIZE)
    seal = seal if is_seal(seal) else b""
    signer = identity_of(seal) if seal else None
    if signers is not None and signer not in signers:
        known = " or ".join(f"{name}, {shown(identity)}" for identity, name in signers.items())
        expected = f"that of {known}" if len(signers) < 3 else "that of a site of this run"
        got = shown(signer) if seal else f"{shown(None)}: is the file whole?"
        if seal:
            expected += (
                " (a new run begins with `site init` at each site; a folder that was lost and made anew needs its old "
                "key.hex, from a backup)"
            )
        raise refusal("signature", expected, got, source)
    file.seek(0)
    if seal:
        digest, left = hashlib.sha256(), size - SEAL_SIZE
        while left and (piece := file.read(min(left, 1 << 20))):
            digest.update(piece)
            left -= len(piece)
        file.seek(0)
        if not verify(seal, digest.digest()):
            expected = "signature must be that of these bytes: they were changed after they were signed."
            raise ArchiveError(expected, source)
    return seal


STUMBLES = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


@contextmanager
def content_of(archive: Archive, what: str, stumbles: tuple[type[Exception], ...] = STUMBLES) -> Iterator[None]:
    """Turn whatever a reader stumbles over in a whole archive of the wrong content into a refusal with its source."""
    try:
        yield
    except ArchiveError as error:
        if error.source:
            raise
        raise ArchiveError(error.reason, archive.source, error.name) from error
    except stumbles as error:
        raise ArchiveError(f"content must be {what}, and it is not: {error}", archive.source) from error


def read_as(kind: type[T], plain: Any, source: str, has_arrays: bool = False) -> T:
    """Return plain JSON values as of an annotated type: nothing is converted, and no key is unknown.

    What a dataclass refuses in its `__post_init__` is a refusal with its own sentence. A list of numbers is an array,
    unless arrays are among the values.
    """
    with needed_by("reading files and messages needs msgspec", "estimators"):
        import msgspec  # here: the core is NumPy and SciPy alone
    try:
        found = msgspec.convert(plain, kind, dec_hook=(lambda hint, value: value) if has_arrays else _array)
        again = msgspec.to_builtins(found, enc_hook=lambda value: None)
        if has_arrays or plain != again:
            _require_known(plain, again, "$")
    except (msgspec.ValidationError, RecursionError) as error:
        text = str(error).removesuffix(" - at `$`").removesuffix(".")
        raise ArchiveError(f"{text}.", source) from error
    return found


def _array(kind: Any, plain: Any) -> Any:
    """Return a vector as a list of numbers says it; msgspec refuses whatever else is of none of its own types."""
    if get_origin(kind) not in ARRAYS:
        return plain
    if not isinstance(plain, list) or not all(type(value) is float for value in plain):
        raise ValueError("Expected a list of numbers with a decimal point")
    return np.array(plain)


def _require_known(plain: Any, read: Any, place: str) -> None:
    import msgspec

    if isinstance(plain, dict) and isinstance(read, dict):
        unknown = sorted(set(plain) - set(read), key=str)
        if unknown:
            raise msgspec.ValidationError(f"Object contains unknown field `{_short(unknown[0])}` - at `{place}`")
        for name, value in plain.items():
            _require_known(value, read[name], f"{place}.{name}")
    elif isinstance(plain, list) and isinstance(read, list | tuple):
        for i, (value, other) in enumerate(zip(plain, read, strict=True)):
            _require_known(value, other, f"{place}[{i}]")


def replace_text(path: str | os.PathLike[str], text: str) -> None:
    """Write text atomically, with the rights of the umask: a table that a user asked for."""
    replace_atomically(path, lambda file: file.write(text.encode()), 0o666)


def replace_atomically(path: str | os.PathLike[str], fill: Callable[[IO[bytes]], object], rights: int = 0o600) -> None:
    """Let `fill` write a file beside `path` and move it there when it is whole; both are on the disk then."""
    folder = Path(path).parent
    if os.path.exists(path) and not os.path.isfile(path):
        raise FileExistsError(errno.EEXIST, "It is there, and is no regular file", os.fspath(path))
    temporary = folder / f"tmp{secrets.token_hex(6)}.part"
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), rights)
        with os.fdopen(handle, "wb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None:
            # a full disk names no file, and nobody knows the temporary one
            raise OSError(error.errno, error.strerror, os.fspath(path)) from error
        raise
    sync_folder(folder)


def private_folder(folder: str | os.PathLike[str]) -> None:
    """Make a folder that its owner alone may enter, whatever the umask; a folder that is there keeps its rights."""
    Path(folder).mkdir(0o700, parents=True, exist_ok=True)


def private(path: str, flags: int) -> int:
    """Open a file that its owner alone may read, whatever the umask: the `opener` of what is appended to."""
    return os.open(path, flags, 0o600)


def sync_folder(folder: Path) -> None:
    """Let what was created, renamed or removed in a folder reach the disk; some systems open no folders."""
    with suppress(PermissionError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _without_waiting(path: str, flags: int) -> int:
    """Open a file; opening a named pipe would otherwise wait for its writer for ever."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _short(value: Any, length: int = 120) -> str:
    text = value if isinstance(value, str) else repr(value)
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= length else text[: length - 3] + "..."
