"""The one kind of file: a JSON header and named arrays, checked to the last byte before anything is computed.

Checkpoints, messages, models and the state of sites and servers are archives of different kinds. An archive is an
uncompressed npz that `numpy.load(path, allow_pickle=False)` opens:

    header.npy      {"header": {...}, "kind": ..., "schema": ..., "version": ...} as UTF-8
    NAME.npy        one entry an array, in order of the names, each with a checksum

The same content always makes the same bytes, and a reader takes only these bytes. It refuses an entry that is out of
order, repeated, overlapping, compressed, or spelled in a way that the writer does not use. Behind its last byte an
archive can have a seal, which says who wrote it and is verified before anything else is looked at.
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
import struct
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any, TypeVar, get_origin

import numpy as np
from numpy.typing import NDArray

from ._errors import needed_by
from ._signatures import SEAL_SIZE, SigningKey, identity_of, is_seal, shown, verify
from ._text import visible
from ._validation import ARRAYS, Array, frozen
from ._version import __version__

SCHEMA = 3
"""Of container and contents together; 1 and 2 were the four formats before there was one."""
LIMIT = 1 << 30
"""Bytes that are read from others, and written for them."""
HEADER = "header"
HEADER_SHARE = 32
"""JSON is at most this part of the limit, because it takes up to 60 times its length of memory."""
MOST_ARRAYS = 1 << 16
"""Of an archive with a limit: an array takes a reader as long as some 50 kB, and a file a few hundred bytes."""
MOST_NESTED = 32
"""Lists in lists: the parsers of JSON call themselves."""
DTYPES = {np.dtype(code).str for code in ("<f8", "<f4", "<f2", "<i8", "<i4", "<i2", "i1", "u1", "?")}

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
    """

    def __init__(self, reason: str, source: str = "") -> None:
        super().__init__(visible(f"{source}: {reason}" if source else reason))
        self.reason, self.source = reason, source


class MissingFileError(ArchiveError, FileNotFoundError):
    """There is no such file."""

    # FileNotFoundError would print its arguments
    __str__ = ValueError.__str__


def refusal(name: str, expected: str, got: Any, source: str = "") -> ArchiveError:
    """Return the error for a field; without a source `content_of` adds it."""
    return ArchiveError(f"{name} must be {expected}, got {_short(got)}.", source)


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
        bare = replace(self, seal=b"")
        digest = hashlib.sha256()
        for piece in bare._pieces():
            digest.update(piece)
        return replace(bare, seal=key.seal(digest.digest()))

    @cached_property
    def digest(self) -> str:
        """SHA-256 over kind, header and arrays, by which an answer says what it answers."""
        found = hashlib.sha256(self._content)
        for name, array in self._ordered:
            found.update(f"\n{name} {array.dtype.str} {array.shape}\n".encode())
            found.update(_bytes(array))
        return found.hexdigest()

    @cached_property
    def size(self) -> int:
        """Bytes of the file."""
        entries = [_Entry(name, 0, len(_npy_start(a.dtype, a.shape)) + a.nbytes, 0) for name, a in self._all]
        return sum(len(entry.start) + entry.size for entry in entries) + len(_directory(entries, 0)) + len(self.seal)

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
        size -= len(seal)
        try:
            entries = _entries(file, size, limit)
            text = next(entries)[1].tobytes()
            top = _parsed(text)
            if top["schema"] == SCHEMA:
                found = cls(top["kind"], top["header"], dict(entries), source, top["version"], seal)
                # the same keys, spelled as the writer spells them, and none twice
                whole = isinstance(found.kind, str) and isinstance(found.header, dict)
                whole = whole and found._text == text
        # whatever bytes from outside make a parser raise, the answer is the same
        except Exception as error:
            raise ArchiveError(
                f"file must be a whole bayesadmm archive, and it is not ({_short(str(error), 240)}).", source
            ) from error
        if top["schema"] != SCHEMA:
            raise ArchiveError(
                f"schema must be {SCHEMA}, got {_short(top['schema'])}, as bayesadmm_np "
                f"{_short(top.get('version'))} writes; update the older side.",
                source,
            )
        if not whole:
            raise ArchiveError("file must be a whole bayesadmm archive, and its header is not one.", source)
        return found

    # ------------------------------------------------------------------------------------------------
    # Reading fields: every refusal names the archive, the field, and what was expected
    # ------------------------------------------------------------------------------------------------

    def refusal(self, name: str, expected: str, got: Any) -> ArchiveError:
        """Return the error for a field."""
        return refusal(name, expected, got, self.source)

    def require(self, kind: str, fields: Collection[str], arrays: Collection[str]) -> None:
        """Raise unless the archive is of this kind, with exactly these fields and arrays."""
        if self.kind != kind:
            raise self.refusal("kind", repr(kind), self.kind)
        if set(self.header) != set(fields):
            raise self.refusal("header", f"exactly the fields {sorted(fields)}", sorted(self.header))
        if set(self.arrays) != set(arrays):
            raise self.refusal("arrays", f"exactly {sorted(arrays)}", sorted(self.arrays))

    def array(self, name: str, *shapes: tuple[int, ...]) -> Array:
        """Return an array of finite float64 numbers, of one of these shapes."""
        values = self.arrays.get(name)
        if values is None or values.dtype != np.float64 or values.shape not in shapes:
            expected = " or ".join(map(shaped, shapes))
            raise self.refusal(name, expected, "nothing" if values is None else described(values))
        if not np.isfinite(values).all():
            bad = tuple(np.argwhere(~np.isfinite(values))[0].tolist())
            raise self.refusal(name, "finite", f"{values[bad]} at position {', '.join(map(str, bad))}")
        return values

    def vector(self, name: str, size: int) -> Array:
        """Return a vector of finite numbers of this length."""
        return self.array(name, (size,))

    def natural(self, name: str, like: Any) -> Any:
        """Return a natural parameter with the shapes of `like`; packed matrices are symmetric by construction."""
        return like.from_vector(self.vector(name, like.size))

    # ------------------------------------------------------------------------------------------------
    # Bytes
    # ------------------------------------------------------------------------------------------------

    @cached_property
    def _content(self) -> bytes:
        return _json({"schema": SCHEMA, "kind": self.kind, "header": self.header})

    @property
    def _text(self) -> bytes:
        return b'%s,"version":%s}' % (self._content[:-1], _json(__version__ if self.version is None else self.version))

    @cached_property
    def _ordered(self) -> list[tuple[str, NDArray[Any]]]:
        return [(name, _plain(name, self.arrays[name])) for name in sorted(self.arrays)]

    @property
    def _all(self) -> list[tuple[str, NDArray[Any]]]:
        return [(HEADER, np.frombuffer(self._text, dtype=np.uint8)), *self._ordered]

    def _require_size(self, limit: int | None) -> None:
        header = len(self._content)
        if limit is not None and len(self.arrays) > MOST_ARRAYS:
            raise ArchiveError(f"arrays must be at most {MOST_ARRAYS}, got {len(self.arrays)}.", self.source)
        if limit is not None and (self.size > limit or header > limit // HEADER_SHARE):
            raise ArchiveError(
                f"size must be at most {limit} bytes, 1/{HEADER_SHARE} of it JSON, for a reader to "
                f"take it, got {self.size} with {header} of JSON.",
                self.source,
            )

    def _pieces(self) -> Iterator[bytes | memoryview]:
        entries, offset = [], 0
        for name, array in self._all:
            start, body = _npy_start(array.dtype, array.shape), _bytes(array)
            entry = _Entry(name, zlib.crc32(body, zlib.crc32(start)), len(start) + len(body), offset)
            entries.append(entry)
            offset += len(entry.start) + entry.size
            yield entry.start
            yield start
            yield body
        yield _directory(entries, offset) + self.seal


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
            expected += " (a site whose folder was made anew has another key: put its key.hex back from a backup)"
        raise refusal("signature", expected, got, source)
    file.seek(0)
    if seal:
        digest, left = hashlib.sha256(), size - SEAL_SIZE
        while left and (piece := file.read(min(left, 1 << 20))):
            digest.update(piece)
            left -= len(piece)
        if not verify(seal, digest.digest()):
            raise ArchiveError(
                "signature must be that of these bytes: they were changed after they were signed.", source
            )
        file.seek(0)
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
        raise ArchiveError(error.reason, archive.source) from error
    except stumbles as error:
        raise ArchiveError(f"content must be {what}, and it is not: {error}", archive.source) from error


def read_as(kind: type[T], plain: Any, source: str) -> T:
    """Return plain JSON values as of an annotated type: nothing is converted, and no key is unknown.

    What a dataclass refuses in its `__post_init__` is a refusal with its own sentence.
    """
    with needed_by("reading files and messages needs msgspec", "estimators"):
        import msgspec  # here: the core is NumPy and SciPy alone
    try:
        found = msgspec.convert(plain, kind, dec_hook=_array)
        _require_known(plain, msgspec.to_builtins(found, enc_hook=lambda value: None), "$")
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

    if plain == read:
        return
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
    """Write text atomically, for whoever may read the folder."""
    replace_atomically(path, lambda file: file.write(text.encode()), 0o666)


def replace_atomically(path: str | os.PathLike[str], fill: Callable[[IO[bytes]], object], rights: int = 0o600) -> None:
    """Let `fill` write a file beside `path` and move it there when it is whole; both are on the disk then."""
    folder = Path(path).parent
    if os.path.exists(path) and not os.path.isfile(path):
        raise FileExistsError(errno.EEXIST, "It is there, and is no regular file", os.fspath(path))
    temporary = folder / f"tmp{secrets.token_hex(6)}.npz.part"
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


def sync_folder(folder: Path) -> None:
    """Let what was created, renamed or removed in a folder reach the disk; some systems open no folders."""
    with suppress(PermissionError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


# ----------------------------------------------------------------------------------------------------
# JSON
# ----------------------------------------------------------------------------------------------------


def _json(value: Any) -> bytes:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ArchiveError(f"header must be text that UTF-8 can hold, got {error.object[error.start]!r}.") from error


NO_MARKS = bytes(set(range(256)) - set(b'"[]{}'))


def _parsed(text: bytes) -> dict[str, Any]:
    """Return a JSON object; depth is bounded before a parser that calls itself sees it."""
    # without escapes every quote begins or ends a text
    marks = text.replace(rb"\\", b"").replace(rb"\"", b"").translate(None, NO_MARKS)
    codes = np.frombuffer(marks, dtype=np.uint8)
    quotes = codes == ord('"')
    outside = ~quotes & (np.cumsum(quotes, dtype=np.int32) % 2 == 0)
    steps = np.where((codes == ord("[")) | (codes == ord("{")), 1, -1)[outside]
    deepest = np.cumsum(steps, dtype=np.int32).max(initial=0)
    if deepest > MOST_NESTED:
        raise ValueError(f"JSON is nested {deepest} deep, more than {MOST_NESTED}")
    top = json.loads(text)
    if not isinstance(top, dict):
        raise ValueError("the header is no object")
    return top


def shaped(shape: tuple[int, ...]) -> str:
    """Say what an array of a shape is."""
    return f"a vector of {shape[0]} numbers" if len(shape) == 1 else f"numbers of shape {shape}"


def described(values: NDArray[Any]) -> str:
    """Say what came in place of an array."""
    if values.dtype != np.float64:
        return f"{values.dtype} of shape {values.shape}"
    return f"{values.size}" if values.ndim == 1 else f"shape {values.shape}"


def _without_waiting(path: str, flags: int) -> int:
    """Open a file; opening a named pipe would otherwise wait for its writer for ever."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _short(value: Any, length: int = 120) -> str:
    text = value if isinstance(value, str) else repr(value)
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= length else text[: length - 3] + "..."


# ----------------------------------------------------------------------------------------------------
# npy: magic, version and length, then a dictionary padded to 64 bytes, then the numbers
# ----------------------------------------------------------------------------------------------------

NPY = re.compile(rb"\{'descr': '([<|][a-z][1-8])', 'fortran_order': False, 'shape': \(([0-9, ]*)\), \} *\n")
NPY_START = struct.Struct("<8sH")
NPY_MAGIC = b"\x93NUMPY\x01\x00"
MOST_START = 4096


def _plain(name: str, value: Any) -> NDArray[Any]:
    """Return an array as it is written: little-endian, in C order, and of a dtype without objects."""
    array = np.asarray(value, order="C")
    array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    if array.dtype.str not in DTYPES:
        raise ArchiveError(f"{name} must be an array of float, integer or bool, got {array.dtype}.")
    if not NAME.fullmatch(name) or name == HEADER or len(name) > MOST_NAME:
        raise ArchiveError(f"array must have a name of words between slashes, got {_short(name)!r}.")
    return array


def _bytes(array: NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data if array.size else memoryview(bytearray())


def _npy_start(dtype: Any, shape: tuple[int, ...]) -> bytes:
    text = f"{{'descr': '{np.dtype(dtype).str}', 'fortran_order': False, 'shape': {shape!r}, }}"
    text += " " * (-(NPY_START.size + len(text) + 1) % 64) + "\n"
    return NPY_START.pack(NPY_MAGIC, len(text)) + text.encode()


def _read_npy(file: io.BufferedIOBase, size: int, crc: int) -> NDArray[Any]:
    """Read an npy of `size` bytes that are there; its own declaration is checked before memory is taken."""
    start = _take(file, NPY_START.size)
    length = NPY_START.unpack(start)[1]
    start += _take(file, min(length, MOST_START))
    said = NPY.fullmatch(start, NPY_START.size)
    if said is None or said[1].decode() not in DTYPES:
        raise ValueError("an array is of another type or order")
    dtype = np.dtype(said[1].decode())
    shape = tuple(int(n) for n in said[2].split(b",") if n.strip())
    if start != _npy_start(dtype, shape) or math.prod(shape) * dtype.itemsize != size - len(start):
        raise ValueError("an array is not as long as it says")
    array = np.empty(shape, dtype)
    body = _bytes(array)
    if file.readinto(body) != len(body) or zlib.crc32(body, zlib.crc32(start)) != crc:
        raise ValueError("an array is damaged")
    if dtype == np.bool_ and (array.view(np.uint8) > 1).any():
        raise ValueError("a truth value is neither true nor false")
    return frozen(array)


# ----------------------------------------------------------------------------------------------------
# zip, always in its 64-bit form: one spelling of an entry
# ----------------------------------------------------------------------------------------------------

NAME = re.compile(r"\w[\w.:+-]*(/\w[\w.:+-]*)*")
MOST_NAME = 400
LOCAL = struct.Struct("<4s5H3L2H")
LOCAL_SIZES = struct.Struct("<2H2Q")
CENTRAL = struct.Struct("<4s6H3L5H2L")
CENTRAL_SIZES = struct.Struct("<2H3Q")
END_64 = struct.Struct("<4sQ2H2L4Q")
LOCATOR = struct.Struct("<4sLQL")
END = struct.Struct("<4s4H2LH")
VERSION, UTF8, STORED, NO_TIME, NO_DATE, UNIX = 45, 0x800, 0, 0, 0x21, 3 << 8
IN_64 = 0xFFFFFFFF
EARLIER = (b"header.npy", b"server/part0.npy", b"mean.npy")
"""First entries of the formats of schemas 1 and 2."""


@dataclass(frozen=True)
class _Entry:
    """One file of the zip: its name without suffix, checksum, size and place."""

    name: str
    crc: int
    size: int
    offset: int

    @property
    def file_name(self) -> bytes:
        return f"{self.name}.npy".encode()

    @property
    def start(self) -> bytes:
        """The zip's local header, which stands before the bytes."""
        name, how = self.file_name, (VERSION, UTF8, STORED, NO_TIME, NO_DATE)
        sizes = LOCAL_SIZES.pack(1, 16, self.size, self.size)
        return LOCAL.pack(b"PK\3\4", *how, self.crc, IN_64, IN_64, len(name), len(sizes)) + name + sizes

    @property
    def listed(self) -> bytes:
        """Entry of the zip's central directory."""
        name, how = self.file_name, (VERSION | UNIX, VERSION, UTF8, STORED, NO_TIME, NO_DATE)
        sizes = CENTRAL_SIZES.pack(1, 24, self.size, self.size, self.offset)
        lengths, rights = (len(name), len(sizes), 0, 0, 0), 0o600 << 16
        return CENTRAL.pack(b"PK\1\2", *how, self.crc, IN_64, IN_64, *lengths, rights, IN_64) + name + sizes


def _directory(entries: list[_Entry], offset: int) -> bytes:
    listed = b"".join(entry.listed for entry in entries)
    count, end = len(entries), offset + len(listed)
    return (
        listed
        + END_64.pack(b"PK\6\6", END_64.size - 12, VERSION, VERSION, 0, 0, count, count, len(listed), offset)
        + LOCATOR.pack(b"PK\6\7", 0, end, 1)
        + END.pack(b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, IN_64, IN_64, 0)
    )


def _entries(file: io.BufferedIOBase, size: int, limit: int | None) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield names and arrays, the header first; a whole file is compared with what the writer would have written."""
    entries: list[_Entry] = []
    most_header = size if limit is None else limit // HEADER_SHARE
    while file.tell() + LOCAL.size + LOCAL_SIZES.size < size:
        offset = file.tell()
        start = _take(file, LOCAL.size)
        if entries and not start.startswith(b"PK\3\4"):
            file.seek(offset)
            break
        crc, length = LOCAL.unpack(start)[6], LOCAL.unpack(start)[9]
        name = _take(file, min(length, MOST_NAME))
        if not entries and name in EARLIER and start[6:8] != UTF8.to_bytes(2, "little"):
            raise ValueError(
                "bayesadmm_np 0.1.0 wrote it before all files became archives of schema 3: finish with the version "
                "that wrote it, or make it anew"
            )
        sizes = _take(file, LOCAL_SIZES.size)
        entry = _Entry(name.decode().removesuffix(".npy"), crc, LOCAL_SIZES.unpack(sizes)[2], offset)
        if start + name + sizes != entry.start or not NAME.fullmatch(entry.name):
            raise ValueError("an entry is not as this library writes them")
        if entry.size > size - file.tell():
            raise ValueError(f"{entry.name} says that it has {entry.size} bytes, more than there are")
        if entries and (entry.name == HEADER or (len(entries) > 1 and entry.name <= entries[-1].name)):
            raise ValueError(f"{entry.name} is there twice, or out of order")
        if not entries and (entry.name != HEADER or entry.size > most_header + MOST_START):
            raise ValueError(f"it begins with {entry.size} bytes of {entry.name} in place of a header that fits")
        if limit is not None and len(entries) > MOST_ARRAYS:
            raise ValueError(f"it has more than {MOST_ARRAYS} arrays")
        array = _read_npy(file, entry.size, entry.crc)
        if not entries and (array.dtype != np.uint8 or array.ndim != 1):
            raise ValueError("the header is no text")
        entries.append(entry)
        yield entry.name, array
    expected = _directory(entries, file.tell())
    if not entries or size - file.tell() != len(expected) or file.read(len(expected)) != expected:
        raise ValueError("its directory is not that of its entries")


def _take(file: io.BufferedIOBase, count: int) -> bytes:
    data = file.read(count)
    if len(data) < count:
        raise ValueError("it ends too early")
    return data
