"""The archive: what is written is what is read; whatever else arrives is a refusal, in bounded memory."""

import itertools
import json
import os
import struct
import sys
import tracemalloc
import zlib
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesadmm_np import _archive
from bayesadmm_np._archive import Archive, ArchiveError, MissingFileError, read_as, replace_atomically, replace_text

WHOLE = "must be a whole bayesadmm archive"
RNG = np.random.default_rng(0)
HEADER = {"site": "Zürich", "counts": [1, 2.5, None, True, {"ρ": [[]]}], "text": 'a "]" \\ b', "x": float("inf")}
ARRAYS = {
    "natural": RNG.normal(size=7),
    "a/matrix": RNG.normal(size=(3, 2)),
    "a/single": RNG.normal(size=(2, 2, 2)).astype(np.float32),
    "counter": np.array(12),
    "mask": np.array([True, False, True]),
    "pixels": np.arange(6, dtype=np.uint8).reshape(2, 3),
    "nothing": np.zeros((0, 4)),
    "half": np.array([1.5, -0.0, np.inf], dtype=np.float16),
    "sizes": np.array([[-(2**31), 7]], dtype=np.int32),
    "a/sizes": np.array([-(2**15), 7, 9], dtype=np.int16),
    "a/signs": np.array(-128, dtype=np.int8),
    "tiny": np.array([5e-324, -0.0, np.nan, -np.inf]),
}
GOOD = Archive("reply", HEADER, ARRAYS).to_bytes()


def same(one, other):
    return (
        one.dtype == other.dtype
        and one.shape == other.shape
        and np.ascontiguousarray(one).tobytes() == np.ascontiguousarray(other).tobytes()
    )


# ----------------------------------------------------------------------------------------------------
# An independent writer of the format, which can also lie
# ----------------------------------------------------------------------------------------------------


CODES = {"<i8": "I64", "<f8": "F64", "<f4": "F32", "<i4": "I32", "<f2": "F16", "<i2": "I16"}
CODES |= {"|i1": "I8", "|u1": "U8", "|b1": "BOOL"}


def tensor(name, array, **lies):
    """Its name, what is said of it, and its bytes; the places are added by `forged`."""
    array = np.asarray(array)
    return name, {"dtype": CODES[array.dtype.str], "shape": array.shape} | lies, array.tobytes()


def canonical(top):
    return json.dumps(top, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def top(**changes):
    return {"schema": 4, "kind": "reply", "version": "0.1.0", "header": {}} | changes


def with_seven(spelling):
    """A header whose only value is spelled so."""
    return canonical(top(header={"a": 7})).replace(b"7", spelling)


def forged(text, tensors=(), crc=None, length=None, pad=b" "):
    """Return an archive of JSON text and tensors in this order, with the right checksum and length if none is given."""
    text = text if isinstance(text, bytes) else canonical(text)
    places = np.cumsum([0, *(len(body) for _, _, body in tensors)]).tolist()
    said = [
        canonical(name)
        + b":"
        + json.dumps({**about, **({"data_offsets": place} | about)}, separators=(",", ":")).encode()
        for (name, about, _), place in zip(tensors, itertools.pairwise(places), strict=True)
    ]
    layout, data = b"{" + b",".join(said) + b"}", b"".join(body for _, _, body in tensors)
    crc = zlib.crc32(data, zlib.crc32(text, zlib.crc32(layout))) if crc is None else crc
    text = (b'{"crc32":%d,' % crc + text[1:]).replace(b"\\", rb"\\").replace(b'"', rb"\"")
    head = b'{"__metadata__":{"bayesadmm":"' + text + b'"}' + (b"," if tensors else b"") + layout[1:]
    head += pad * (-len(head) % 8)
    return (len(head) if length is None else length).to_bytes(8, "little") + head + data


def test_the_bytes_are_those_of_an_independent_writer():
    order = sorted(ARRAYS, key=lambda name: (list(CODES).index(ARRAYS[name].dtype.str), name))
    assert forged(top(header=HEADER), [tensor(name, ARRAYS[name]) for name in order]) == GOOD


def test_the_bytes_are_those_of_safetensors():
    """Its writer makes the same bytes, and its reader the same arrays."""
    safetensors = pytest.importorskip("safetensors.numpy")
    length = 8 + int.from_bytes(GOOD[:8], "little")
    assert safetensors.save(ARRAYS, json.loads(GOOD[8:length])["__metadata__"]) == GOOD
    assert all(same(array, ARRAYS[name]) for name, array in safetensors.load(GOOD).items())
    assert len(safetensors.load(GOOD)) == len(ARRAYS)


# ----------------------------------------------------------------------------------------------------
# Written = read
# ----------------------------------------------------------------------------------------------------


def test_what_is_written_is_what_is_read(tmp_path):
    archive = Archive("reply", HEADER, ARRAYS)
    archive.write(tmp_path / "a.npz")
    for read in (Archive.from_bytes(GOOD), Archive.read(tmp_path / "a.npz")):
        assert (read.kind, read.header) == ("reply", HEADER)
        assert sorted(read.arrays) == sorted(ARRAYS)
        assert all(same(read.arrays[name], array) for name, array in ARRAYS.items())
        assert not any(array.flags.writeable for array in read.arrays.values())
        assert (read.to_bytes(), read.digest, read.size) == (GOOD, archive.digest, len(GOOD))


def test_the_order_of_axes_and_of_bytes_is_one():
    turned = {"m": np.asfortranarray(np.arange(6.0).reshape(2, 3)), "b": np.arange(3, dtype=">f8")}
    plain = {"m": np.arange(6.0).reshape(2, 3), "b": np.arange(3.0)}
    assert Archive("x", {}, turned).to_bytes() == Archive("x", {}, plain).to_bytes()
    assert Archive("x", {}, turned).digest == Archive("x", {}, plain).digest


@pytest.mark.parametrize(
    ("kind", "header", "arrays"),
    [
        ("answer", HEADER, ARRAYS),
        ("reply", {**HEADER, "site": "Bern"}, ARRAYS),
        ("reply", HEADER, {**ARRAYS, "counter": np.array(13)}),
        ("reply", HEADER, {**ARRAYS, "pixels": ARRAYS["pixels"].reshape(3, 2)}),
        ("reply", HEADER, {**ARRAYS, "counter": np.array(12.0)}),
        ("reply", HEADER, {**{k: v for k, v in ARRAYS.items() if k != "mask"}, "mask2": ARRAYS["mask"]}),
    ],
)
def test_the_digest_is_of_everything(kind, header, arrays):
    assert Archive(kind, header, arrays).digest != Archive("reply", HEADER, ARRAYS).digest


def test_what_is_no_archive_cannot_be_written():
    for array in (np.array([{}], dtype=object), np.array(["a"]), np.array([1j]), np.array([None])):
        with pytest.raises(ArchiveError, match="a must be an array"):
            Archive("x", {}, {"a": array}).to_bytes()
    for name in ("", "__metadata__", "../a", "a/../b", "/a", "a\\b", "a" * 500, "\ud800"):
        with pytest.raises(ArchiveError, match="must have a name"):
            Archive("x", {}, {name: np.zeros(1)}).to_bytes()
    with pytest.raises(ArchiveError, match="header must be text"):
        Archive("x", {"site": "a\ud800"}, {}).to_bytes()


# ----------------------------------------------------------------------------------------------------
# Limits hold for writing as for reading
# ----------------------------------------------------------------------------------------------------


def test_what_no_reader_would_take_is_not_written(tmp_path):
    path = tmp_path / "state.npz"
    small, large = Archive("x", {}, {"a": np.zeros(8)}), Archive("x", {}, {"a": np.zeros(3000)}, "state of the server")
    limit = 1 << 14
    small.write(path, limit)
    before = path.read_bytes()
    with pytest.raises(ArchiveError, match=rf"state of the server: size must be at most 16384 bytes.*got {large.size}"):
        large.write(path, limit)
    with pytest.raises(ArchiveError, match="size must be at most 16384 bytes"):
        large.to_bytes(limit)
    assert path.read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == ["state.npz"]
    large.write(path, limit=None)
    with pytest.raises(ArchiveError, match=f"size must be at most 16384 bytes, got {large.size}"):
        Archive.read(path, limit)
    assert Archive.read(path, limit=None).digest == large.digest


def test_the_header_has_its_share_of_the_limit():
    limit = 1 << 15
    for length in range(800, 1000, 7):
        archive = Archive("x", {"note": "x" * length}, {})
        try:
            data = archive.to_bytes(limit)
        except ArchiveError:
            # what is not written is not read
            assert length > 850
            continue
        assert Archive.from_bytes(data, limit=limit).header == archive.header


def test_a_header_whose_length_begins_like_a_zip_is_read():
    """19280 is b"PK" in the eight bytes of the length."""
    empty = len(Archive("model", {"pad": ""}, {"a": np.zeros(2)}).to_bytes())
    several = (Archive("model", {"pad": "x" * n}, {"a": np.zeros(2)}) for n in range(19280 - empty, 19281))
    data = next(one for archive in several if (one := archive.to_bytes()).startswith(b"PK"))
    assert Archive.from_bytes(data).to_bytes() == data


def test_sizes_are_exact():
    for length in (0, 1, 63, 64, 65, 1000):
        archive = Archive("x" * length, {"ü": "ü" * length}, {"a": np.zeros(length), "b": np.zeros((length, 2))})
        assert archive.size == len(archive.to_bytes())


# ----------------------------------------------------------------------------------------------------
# Whatever arrives
# ----------------------------------------------------------------------------------------------------

NAT = tensor("natural", np.zeros(3))
ONE, TWO = tensor("a", np.zeros(1)), tensor("b", np.zeros(1))
DEEP = {n: b"[" * n + b"]" * n for n in (33, 900, 10**5)}

BYTES = {
    "nothing": b"",
    "text": b"these are not the bytes of a message",
    "a pickle": b"\x80\x04N.",
    "half": GOOD[: len(GOOD) // 2],
    "all but one": GOOD[:-1],
    "one more": GOOD + b"\0",
    "one before": b"\0" + GOOD,
    "two archives": GOOD + GOOD,
    "nothing but a length": bytes(8),
    "no metadata": (2).to_bytes(8, "little") + b"{}",
    "a list": (8).to_bytes(8, "little") + b"[]      ",
    "other metadata": forged(top()).replace(b"bayesadmm", b"framework"),
    "more metadata": forged(top()).replace(b'"}}', b'","framework":"np"}}'),
    "out of order": forged(top(), [TWO, ONE]),
    "smaller types first": forged(top(), [tensor("a", np.zeros(2, np.float32)), TWO]),
    "twice": forged(top(), [NAT, NAT]),
    "the metadata's name": forged(top(), [tensor("__metadata__", np.zeros(1))]),
    "overlapping": forged(top(), [ONE, tensor("b", np.zeros(1), data_offsets=(0, 8))]),
    "a gap": forged(top(), [ONE, tensor("b", np.zeros(1), data_offsets=(16, 24))]),
    "backwards": forged(top(), [tensor("a", np.zeros(1), data_offsets=(8, 0))]),
    "bytes that no array has": forged(top(), [tensor("a", np.zeros(3), shape=(2,))]),
    "a path": forged(top(), [tensor("../a", np.zeros(1))]),
    "a name that is no text": forged(top(), [ONE]).replace(b'"a":', b'"\xff":'),
    "a checksum": forged(top(), [NAT], crc=1),
    "a checksum that is text": forged(top(), [NAT]).replace(rb"\"crc32\":", rb"\"crc32\":0"),
    "more than it holds": forged(top(), [tensor("a", np.zeros(0), shape=(10**15,))]),
    "2⁶³ bytes of JSON": forged(top(), [NAT], length=2**63),
    "no JSON": forged(top(), [NAT], length=0),
    "a shape without numbers": forged(top(), [tensor("a", np.zeros(0), shape=(0, 2**62, 2**62))]),
    "a shape less than nothing": forged(top(), [tensor("a", np.zeros(3), shape=(-1,))]),
    "a shape of truths": forged(top(), [tensor("a", np.zeros(1), shape=(True,))]),
    "a shape of fractions": forged(top(), [tensor("a", np.zeros(1), shape=(1.0,))]),
    "a shape that is none": forged(top(), [tensor("a", np.zeros(1), shape=1)]),
    "a place that is a fraction": forged(top(), [tensor("a", np.zeros(1), data_offsets=(0.0, 8))]),
    "an unknown type": forged(top(), [tensor("a", np.zeros(1), dtype="C64")]),
    "objects": forged(top(), [tensor("a", np.zeros(1), dtype="|O")]),
    "more said of an array": forged(top(), [tensor("a", np.zeros(1), order="F")]),
    "a truth value of two": forged(top(), [tensor("a", np.array([2], np.uint8), dtype="BOOL")]),
    "other spaces": forged(top(header={"a": 1}), pad=b"\n"),
    "spaces in the layout": forged(top(), [NAT]).replace(b',"shape":', b', "shape":'),
    "a header that is a list": forged(b"[]"),
    "a header without a kind": forged({"schema": 4, "header": {}, "version": ""}),
    "a kind that is a number": forged(top(kind=3)),
    "a header that is text": forged(top(header="x")),
    "an unknown key": forged(top(note=1)),
    "a key twice": forged(with_seven(b'2,"a":1')),
    "spaces": forged(canonical(top()) + b" "),
    "a number spelled otherwise": forged(with_seven(b"7e0")),
    "a surrogate": forged(with_seven(rb'"\ud800"')),
    "a surrogate as bytes": forged(top(header={"a": "\ud800"})),
    "a surrogate as a key": forged(canonical(top(header={"?": 1})).replace(b"?", rb"\udfff")),
    "an integer of 10⁵ digits": forged(with_seven(b"7" * 10**5)),
    **{f"nested {n} deep": forged(with_seven(deep)) for n, deep in DEEP.items()},
    "an array nested 900 deep": forged(top(), [tensor("a", np.zeros(1), shape=json.loads(DEEP[900]))]),
    "open brackets": forged(b"[" * 10**6),
    "a quote that does not end": forged(b'{"' + b"a" * 1000),
}


def test_bytes_that_are_no_archive_are_refused():
    taken = []
    for case, data in BYTES.items():
        try:
            Archive.from_bytes(data)
        except ArchiveError as error:
            taken += [case] * ("whole bayesadmm archive" not in str(error))
        else:
            taken.append(case)
    assert not taken


def test_the_forger_can_also_be_honest():
    """Twin of the table: the same ways of writing, without a lie, are read."""
    assert Archive.from_bytes(forged(top(), [NAT])).arrays["natural"].tolist() == [0.0, 0.0, 0.0]
    deep = forged(top(header={"a": json.loads(b"[" * 30 + b"]" * 30)}))
    assert Archive.from_bytes(deep).header["a"]


def at_depth(depth, function):
    return function() if depth == 0 else at_depth(depth - 1, function)


def test_a_caller_near_the_recursion_limit_gets_an_answer():
    """What remains of the stack suffices for a refusal, or the caller could not have called anything."""
    used = len(__import__("inspect").stack())

    def outcome():
        with pytest.raises(ArchiveError, match=WHOLE):
            Archive.from_bytes(BYTES["nested 900 deep"])

    at_depth(sys.getrecursionlimit() - used - 60, outcome)


def test_a_decoder_that_lets_a_surrogate_through_is_noticed(monkeypatch):
    """The broken twin: without the writer's own encoding as the judge, the lone surrogate arrives in the header."""
    honest = _archive._json
    monkeypatch.setattr(_archive, "_json", lambda *args, **kwargs: honest(*args, **kwargs).replace("\ud800", r"\ud800"))
    assert Archive.from_bytes(BYTES["a surrogate"]).header["a"] == "\ud800"


@pytest.mark.parametrize("first", ["header.npy", "server/part0.npy", "mean.npy"])
def test_files_of_before_are_refused_with_what_to_do(first, tmp_path):
    np.savez(tmp_path / "old.npz", **{first.removesuffix(".npy"): np.zeros(3), "meta": np.zeros(1)})
    with pytest.raises(ArchiveError, match=r"old\.npz.*0\.1\.0 wrote archives before schema 4: .*, or make it anew"):
        Archive.read(tmp_path / "old.npz")


def test_files_of_later_say_who_wrote_them():
    later = forged(top(schema=99, version="7.0"))
    with pytest.raises(ArchiveError, match=r"schema must be 4, got 99, as bayesadmm_np 7\.0 writes; update the older"):
        Archive.from_bytes(later)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(MissingFileError, match=r"none\.npz: file must be readable: No such file") as missing:
        Archive.read(tmp_path / "none.npz")
    assert isinstance(missing.value, FileNotFoundError)
    with pytest.raises(ArchiveError, match="file must be readable: Is a directory"):
        Archive.read(tmp_path)


# ----------------------------------------------------------------------------------------------------
# Fuzzing: bytes, and structure behind right checksums
# ----------------------------------------------------------------------------------------------------


@given(st.binary(max_size=2000))
@settings(max_examples=200)
def test_random_bytes_are_refused(data):
    with pytest.raises(ArchiveError):
        Archive.from_bytes(data)


HUGE = [0, 1, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1]


def mutated(rng):
    """Good bytes, spoiled: flipped, cut, doubled, swapped, or with a number written over."""
    data = bytearray(GOOD)
    for _ in range(rng.integers(1, 4)):
        at, end = sorted(rng.integers(0, len(data), 2).tolist())
        how = rng.integers(6)
        if how == 0:
            data[at] ^= int(rng.integers(1, 256))
        elif how == 1:
            del data[at:end]
        elif how == 2:
            data[at:at] = data[at:end]
        elif how == 3:
            data[at : at + 8] = struct.pack("<Q", HUGE[rng.integers(len(HUGE))])
        elif how == 4:
            data = data[end:] + data[:end]
        else:
            data[at:end] = rng.bytes(end - at)
        if len(data) < 2:
            break
    return bytes(data)


ODD = [
    rb'"\ud800"',
    rb'"\udfff\ud800"',
    b"[" * 40 + b"]" * 40,
    b"9" * 5000,
    b"1e999",
    b"NaN",
    b"-0",
    b"5e-324",
    b"{}",
    b"null",
]
ODD += [
    b'"\xed\xa0\x80"',
    b'"\xff"',
    b'{"a":1,"a":1}',
    b"[" + b"0," * 3000 + b"0]",
    b'"\\u0000"',
    b"[[[",
    b"tru",
    b"18446744073709551616",
]
SHAPES = [(), (0,), (3,), (2**31,), (2**62, 4), (0, 2**63), (1,) * 70, (2, 2), (-1,), (True,), (8.0,), None]
TYPES = ["F64", "C64", "F32", "BOOL", "I8", "bool", None, [[]]]
PLACES = [(0, 0), (0, 8), (8, 0), (0, 2**64), (-8, 8), (0.0, 8), (0,), None]


def structured(rng):
    """An archive whose checksum is right, and whose JSON and arrays are odd."""
    keys = rng.choice(["schema", "kind", "header", "version", "\ud800", "a"], rng.integers(1, 5))
    parts = [json.dumps(str(key)).encode() + b":" + ODD[rng.integers(len(ODD))] for key in keys]
    whole = with_seven(ODD[rng.integers(len(ODD))])
    text = whole if rng.random() < 0.6 else b"{" + b",".join(parts) + b"}"
    tensors = []
    for name in sorted(rng.choice(["a", "b/c", "__metadata__", "../d", "e"], rng.integers(0, 4)).tolist()):
        lies = {"dtype": TYPES[rng.integers(len(TYPES))], "shape": SHAPES[rng.integers(len(SHAPES))]}
        lies |= {"data_offsets": PLACES[rng.integers(len(PLACES))]} if rng.random() < 0.3 else {}
        values = rng.integers(0, 256, rng.integers(0, 40)).astype(np.uint8)
        tensors.append(tensor(name, values, **(lies if rng.random() < 0.7 else {})))
    return forged(text, tensors, length=HUGE[rng.integers(len(HUGE))] if rng.random() < 0.1 else None)


def fuzzed(seed, count, decode=Archive.from_bytes):
    """Decode mutants: what is taken is byte for byte what the library writes, and what is said of the rest is text."""
    rng = np.random.default_rng(seed)
    taken = 0
    for i in range(count):
        data = mutated(rng) if i % 2 else structured(rng)
        try:
            read = decode(data)
        except ArchiveError as error:
            str(error).encode()
            continue
        assert read.to_bytes() == data
        assert i % 2 == 0 or data == GOOD
        taken += 1
    return taken


def test_mutants_are_refused_or_are_honest():
    assert 0 < fuzzed(1, 3000) < 1500


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_many_mutants_are_refused_or_are_honest(seed):
    """A million in all: some twenty seconds a part."""
    fuzzed(100 + seed, 100_000)


def lenient(data):
    """A decoder with the usual leniences: the last of two keys, and text that is none."""
    length = 8 + int.from_bytes(data[:8], "little")
    layout = json.loads(data[8:length])
    found = json.loads(layout.pop("__metadata__")["bayesadmm"])
    kinds = {code: kind for kind, code in CODES.items()}
    arrays = {
        name: np.frombuffer(data[length:][slice(*about["data_offsets"])], kinds[about["dtype"]]).reshape(about["shape"])
        for name, about in layout.items()
    }
    return Archive(found["kind"], found["header"], arrays)


def test_a_refusal_keeps_the_file_apart_from_the_reason(tmp_path):
    path = tmp_path / "a.npz"
    with pytest.raises(MissingFileError) as missing:
        Archive.read(path)
    path.write_bytes(GOOD[:-1])
    with pytest.raises(ArchiveError) as damaged:
        Archive.read(path, source="resume='a.npz'")
    kind = Archive("reply", {}, {}, "reply of A").refusal("kind", "'hello'", "reply")
    fields = [(error.source, error.reason.split(" must")[0]) for error in (missing.value, damaged.value, kind)]
    assert fields == [(str(path), "file"), ("resume='a.npz'", "file"), ("reply of A", "kind")]
    for error in (missing.value, damaged.value, kind):
        assert str(error) == f"{error.source}: {error.reason}"
    assert str(ArchiveError("header must be text.")) == "header must be text."


def test_the_fuzzer_notices_a_lenient_decoder():
    def decode(data):
        try:
            return lenient(data)
        except Exception as error:
            raise ArchiveError("refused") from error

    with pytest.raises((AssertionError, ArchiveError)):
        fuzzed(1, 3000, decode)


BOMBS = {
    "a list of lists": b"[" + b"[]," * 20000 + b"[]]",
    "a list of objects": b"[" + b'{"a":1},' * 6000 + b"1]",
    "text": b'"' + b"a" * 60000 + b'"',
    "brackets in text": b'"' + b"[" * 60000 + b'"',
    "numbers": b"[" + b"1," * 30000 + b"1]",
}


@pytest.mark.parametrize("case", [*BOMBS, "entries"])
def test_memory_is_bounded_by_the_limit(case):
    """Three times the limit, for the densest JSON and for as many entries as the bytes can hold."""
    limit = 1 << 21
    if case == "entries":
        data = forged(top(), [tensor(f"a{i:04d}", np.zeros(0)) for i in range(900)])
    else:
        data = forged(with_seven(BOMBS[case]))
    assert len(data) <= limit
    tracemalloc.start()
    try:
        Archive.from_bytes(data, limit=limit)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * limit


def test_the_arrays_of_a_file_from_others_are_counted(monkeypatch):
    """Each takes a reader's time whatever its size; one's own files have as many as there are clients."""
    names = [f"a{k:03d}" for k in range(101)]
    whole = Archive("reply", {}, dict.fromkeys(names, np.zeros(0)))
    data = whole.to_bytes()
    Archive.from_bytes(data)
    monkeypatch.setattr(_archive, "MOST_ARRAYS", 100)
    with pytest.raises(ArchiveError, match="it has more than 100 arrays"):
        Archive.from_bytes(data)
    with pytest.raises(ArchiveError, match="arrays must be at most 100, got 101"):
        whole.to_bytes()
    assert len(Archive.from_bytes(whole.to_bytes(None), limit=None).arrays) == 101
    one_less = Archive("reply", {}, dict.fromkeys(names[:100], np.zeros(0)))
    assert len(Archive.from_bytes(one_less.to_bytes()).arrays) == 100


def test_the_values_of_a_header_from_others_are_counted_before_they_are_parsed(monkeypatch):
    """A million keys of two bytes take 200 MB of a parser. The twin: one's own files may have any number."""
    whole = Archive("reply", {"values": list(range(101))}, {})
    data = whole.to_bytes()
    Archive.from_bytes(data)
    monkeypatch.setattr(_archive, "MOST_VALUES", 100)
    monkeypatch.setattr(_archive.json, "loads", lambda text: {}["parsed"])
    with pytest.raises(ArchiveError, match="it has more than 100 values of JSON"):
        Archive.from_bytes(data)
    with pytest.raises(ArchiveError, match="header must have at most 100 values"):
        whole.to_bytes()
    with pytest.raises(ArchiveError, match="parsed"):
        Archive.from_bytes(whole.to_bytes(None), limit=None)


def test_a_longer_header_is_refused_before_it_is_read():
    data = forged(with_seven(BOMBS["a list of lists"]))
    with pytest.raises(ArchiveError, match="bytes of JSON, more than there are, or than fit"):
        Archive.from_bytes(data, limit=1 << 20)


# ----------------------------------------------------------------------------------------------------
# Atomic
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["replace", "fsync", "open"])
def test_a_crash_leaves_the_old_file(tmp_path, monkeypatch, call):
    path = tmp_path / "a.npz"
    Archive("x", {}, {}).write(path)
    before = path.read_bytes()

    def fail(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="disk full"):
        Archive("y", {}, {"a": np.zeros(9)}).write(path)
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == ["a.npz"]


def test_file_and_folder_are_synced_before_anybody_is_told(tmp_path, monkeypatch):
    told, real = [], {name: getattr(os, name) for name in ("fsync", "replace")}

    def fsync(handle):
        told.append("folder" if os.path.isdir(f"/proc/self/fd/{handle}") else "file")
        real["fsync"](handle)

    def replace(*paths):
        told.append("replace")
        real["replace"](*paths)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    replace_atomically(tmp_path / "a", lambda file: file.write(b"x"))
    assert told == ["file", "replace", "folder"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_named_pipe_is_refused_and_not_waited_for(tmp_path):
    """Whoever may write into the folder could otherwise stop the reader for ever."""
    os.mkfifo(tmp_path / "reply.npz")
    with pytest.raises(ArchiveError, match=r"reply\.npz.*file must be a regular file"):
        Archive.read(tmp_path / "reply.npz")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_neither_a_device_nor_a_folder_is_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(FileExistsError) as refused:
            replace_text(tmp_path / name, "x")
        assert refused.value.filename == str(tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "pipe"]
    assert not (tmp_path / "pipe").is_file()


@pytest.mark.skipif(os.name == "nt", reason="rights of a file are those of its folder")
def test_text_is_for_all_who_may_read_the_folder_and_archives_are_not(tmp_path):
    replace_text(tmp_path / "t.csv", "ü\n")
    Archive("x", {}, {}).write(tmp_path / "a.npz")
    before = os.umask(0o022)
    os.umask(before)
    assert (tmp_path / "t.csv").read_bytes() == "ü\n".encode()
    assert (tmp_path / "t.csv").stat().st_mode & 0o777 == 0o666 & ~before
    assert (tmp_path / "a.npz").stat().st_mode & 0o777 == 0o600 & ~before


# ----------------------------------------------------------------------------------------------------
# Typed reading
# ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Inner:
    rho: float
    names: tuple[str, ...] = ()

    def __post_init__(self):
        if self.rho <= 0:
            raise ValueError(f"rho must be > 0, got {self.rho:g}.")


@dataclass(frozen=True)
class Outer:
    inner: Inner
    by_name: dict[str, Inner]
    pair: tuple[int, float] | None = None


def test_plain_values_become_a_dataclass():
    plain = {"inner": {"rho": 1, "names": ["a"]}, "by_name": {"x": {"rho": float("inf")}}, "pair": [1, float("nan")]}
    found = read_as(Outer, plain, "message")
    assert found.inner == Inner(1.0, ("a",))
    assert found.by_name["x"].rho == float("inf")
    assert np.isnan(found.pair[1])


@pytest.mark.parametrize(
    ("plain", "words"),
    [
        ({"inner": {"rho": -1.0}, "by_name": {}}, "message: rho must be > 0, got -1. - at `$.inner`."),
        ({"inner": {"rho": "1"}, "by_name": {}}, "Expected `float`, got `str` - at `$.inner.rho`"),
        ({"inner": {"rho": True}, "by_name": {}}, "Expected `float`, got `bool`"),
        ({"inner": {"rho": 10**400}, "by_name": {}}, "out of range"),
        ({"inner": {"rho": 1.0, "names": [1]}, "by_name": {}}, "at `$.inner.names[0]`"),
        ({"inner": {"rho": 1.0}}, "missing required field `by_name`"),
        ({"inner": {"rho": 1.0}, "by_name": {}, "note": 1}, "unknown field `note`."),
        ({"inner": {"rho": 1.0}, "by_name": {"x": {"rho": 1.0, "y": 2}}}, "unknown field `y` - at `$.by_name.x`"),
        ([], "Expected `object`, got `array`"),
    ],
)
def test_what_does_not_fit_is_named_with_its_place(plain, words):
    with pytest.raises(ArchiveError) as refused:
        read_as(Outer, plain, "message")
    assert words in str(refused.value)
