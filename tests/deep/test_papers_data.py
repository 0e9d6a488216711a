"""benchmarks/papers: splits of its own, with broken twins, and the files of CIFAR-10."""

import io
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayesadmm_np.data.partition import iid, shards

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from papers.cifar10 import FINE_PARTS, PARTS, load_cifar10, load_cifar100
from papers.splits import concept_drift, label_skew, two_classes

fails = pytest.raises(AssertionError)
PAIRS = [[0, 6], [2, 4], [1, 3], [5, 7], [8, 9]]


def labels(rng):
    return rng.permutation(np.repeat(np.arange(10), rng.integers(30, 90, 10)))


def check(parts, y, complement):
    """Every row once; each class in pieces of the same cuts; a pair has all classes, and `complement` of each side."""
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(y)))
    for first, second in zip(parts[::2], parts[1::2], strict=True):
        own, other = set(y[first]), set(y[second])
        assert len(own) == len(other) == 5
        assert own | other == set(range(10))
        complement(own, other)
    both = [np.concatenate(pair) for pair in zip(parts[::2], parts[1::2], strict=True)]
    sizes = np.array([np.bincount(y[rows], minlength=10) for rows in both])
    shares = np.cumsum(sizes, axis=0) / sizes.sum(axis=0)
    assert np.ptp(shares, axis=1).max() <= 1 / np.bincount(y).min() + 1e-12  # one row of the smallest class


def one_of_each(own, other):
    assert all(len(own.intersection(pair)) == 1 for pair in PAIRS)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("clients", [2, 8, 40])
def test_what_clients_have(seed, clients):
    y = labels(np.random.default_rng(seed))
    check(label_skew(y, clients, np.random.default_rng(seed)), y, lambda own, other: None)
    check(concept_drift(y, clients, PAIRS, np.random.default_rng(seed)), y, one_of_each)
    with fails:
        check(iid(len(y), clients, np.random.default_rng(seed)), y, lambda own, other: None)
    if clients == 40:
        with fails:  # halves of the classes at random split some pair
            check(label_skew(y, clients, np.random.default_rng(seed)), y, one_of_each)


def test_sizes_differ_and_halves_are_drawn_anew():
    y = np.repeat(np.arange(10), 200)
    parts = label_skew(y, 40, np.random.default_rng(0))
    sizes = np.array([len(part) for part in parts])
    assert sizes.max() > 5 * sizes.min()
    assert len({frozenset(y[part]) for part in parts}) > 20
    drifted = concept_drift(y, 40, PAIRS, np.random.default_rng(0))
    assert len({frozenset(y[part]) for part in drifted}) > 10


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda y, rng: label_skew(y, 3, rng), "clients must be even"),
        (lambda y, rng: label_skew(y, 200, rng), "at most 60, twice the smallest class"),
        (lambda y, rng: concept_drift(y, 4, PAIRS[1:], rng), "pairs must hold each class once"),
    ],
)
def test_refused(call, match):
    with pytest.raises(ValueError, match=match):
        call(np.repeat(np.arange(10), 30), np.random.default_rng(0))


def assert_two_classes(y, parts, uses):
    """Two different classes a client, each class with as many clients, who share it evenly; every row once."""
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(y)))
    held = [np.unique(y[part], return_counts=True) for part in parts]
    assert all(len(classes) == 2 for classes, _ in held)
    for label in set(y.tolist()):
        counts = [count for classes, each in held for c, count in zip(classes, each, strict=True) if c == label]
        assert len(counts) == uses
        assert max(counts) - min(counts) <= 1


@given(classes=st.integers(2, 7), factor=st.integers(1, 6), rows=st.integers(0, 20), seed=st.integers(0, 2**32 - 1))
def test_two_classes_a_client_and_every_class_as_often(classes, factor, rows, seed):
    clients = classes * factor if classes % 2 else classes * factor // 2
    uses, rng = 2 * clients // classes, np.random.default_rng(seed)
    y = rng.permutation(np.repeat(np.arange(classes), uses + rows))
    assert_two_classes(y, two_classes(y, clients, rng), uses)


def test_shards_are_not_of_two_classes(rng):
    y = rng.permutation(np.repeat(np.arange(10), 55))
    with fails:
        assert_two_classes(y, shards(y, 100, 2, rng), 20)


# CIFAR-10 -------------------------------------------------------------------------------------


def colour_arrays():
    """Smooth images of three colours, of which JPEG keeps nearly all: ten for training, four to test on."""
    smooth = np.arange(32) * 4.0 + np.array([[[0.0]], [[60.0]], [[120.0]]])
    sizes = {"train": 10, "test": 4}
    images = {part: np.broadcast_to(smooth, (n, 3, 32, 32)).astype(np.uint8) for part, n in sizes.items()}
    return {part: (each, np.arange(len(each), dtype=np.uint8)) for part, each in images.items()}


def write_binary(folder):
    with tarfile.open(folder / "cifar-10-binary.tar.gz", "w:gz") as archive:
        for part, (images, y) in colour_arrays().items():
            records = np.concatenate([y[:, None], images.reshape(len(y), -1)], axis=1)
            for name, piece in zip(PARTS[part], np.split(records, len(PARTS[part])), strict=True):
                member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
                member.size = piece.size
                archive.addfile(member, io.BytesIO(piece.tobytes()))


def write_jpegs(folder):
    Image = pytest.importorskip("PIL.Image", reason="JPEG needs Pillow, of the extra `demos`")
    stored = {}
    for part, (images, y) in colour_arrays().items():
        files = [io.BytesIO() for _ in images]
        for image, file in zip(images, files, strict=True):
            Image.fromarray(image.transpose(1, 2, 0)).save(file, "JPEG", quality=90)
        content = [file.getvalue() for file in files]
        stored |= {f"jpeg_{part}": np.frombuffer(b"".join(content), np.uint8), f"y_{part}": y}
        stored[f"offset_{part}"] = np.cumsum([0, *map(len, content)])
    np.savez(folder / "cifar10_jpeg.npz", **stored)


@pytest.mark.parametrize(("write", "levels"), [(write_binary, 0), (write_jpegs, 5)])
def test_cifar10_is_read_colour_by_colour(tmp_path, write, levels):
    """JPEG moves a smooth image by a few of 255 levels, another order of colours by 60."""
    write(tmp_path)
    cifar, arrays = load_cifar10(tmp_path), colour_arrays()
    for X, y, part in ((cifar.X, cifar.y, "train"), (cifar.X_test, cifar.y_test, "test")):
        images, labels = arrays[part]
        assert np.abs(255 * X - images.reshape(len(X), -1)).mean() <= levels + 1e-12
        assert np.abs(255 * X - images[:, ::-1].reshape(len(X), -1)).mean() > 50
        assert np.array_equal(y, labels)


def test_cifar100_has_its_fine_labels(tmp_path):
    """Records have a coarse label, the twin, before the fine one."""
    arrays = colour_arrays()
    with tarfile.open(tmp_path / "cifar-100-binary.tar.gz", "w:gz") as archive:
        for part, (images, y) in arrays.items():
            records = np.concatenate(
                [7 * np.ones_like(y)[:, None], 90 + y[:, None], images.reshape(len(y), -1)], axis=1
            )
            member = tarfile.TarInfo(f"cifar-100-binary/{FINE_PARTS[part][0]}")
            member.size = records.size
            archive.addfile(member, io.BytesIO(records.tobytes()))
    cifar = load_cifar100(tmp_path)
    assert np.array_equal(cifar.y, 90 + np.arange(10))
    assert np.array_equal(255 * cifar.X_test, arrays["test"][0].reshape(4, -1))
