"""Loaders, partitions and plots: what they return, what they refuse, and where they look for files."""

import dataclasses
import gzip
import hashlib
import io
import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayesadmm_np.data import (
    Dataset,
    DataUnavailableError,
    FederatedDataset,
    images,
    load_digits,
    load_fashion_mnist,
    load_mnist,
    partition,
)
from oracles.refusals import assert_refused

# Partitions -----------------------------------------------------------------------------------

RNG = np.random.default_rng(0)
Y = np.repeat(np.arange(10), 6)

seeds = st.integers(0, 2**32 - 1)
label_lists = st.lists(st.integers(-3, 6), min_size=1, max_size=80)
concentrations = st.one_of(st.sampled_from([1e-6, 1.0, 1e6]), st.floats(1e-6, 1e6))


def assert_partition(parts, n, clients):
    assert isinstance(parts, list)
    assert len(parts) == clients
    for part in parts:
        assert part.dtype == np.int64
        assert len(part) > 0
        assert np.all(np.diff(part) > 0)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(n))


@given(n=st.integers(1, 200), data=st.data(), seed=seeds)
def test_iid_covers_once_and_evenly(n, data, seed):
    clients = data.draw(st.integers(1, n))
    parts = partition.iid(n, clients, np.random.default_rng(seed))
    assert_partition(parts, n, clients)
    lengths = [len(part) for part in parts]
    assert max(lengths) - min(lengths) <= 1


@given(y=label_lists, data=st.data())
def test_label_pairs_covers_once_with_disjoint_labels(y, data):
    y = np.array(y)
    distinct = np.unique(y)
    clients = data.draw(st.sampled_from([k for k in range(1, len(distinct) + 1) if len(distinct) % k == 0]))
    parts = partition.label_pairs(y, clients)
    assert_partition(parts, len(y), clients)
    groups = distinct.reshape(clients, -1)
    for part, group in zip(parts, groups, strict=True):
        np.testing.assert_array_equal(np.unique(y[part]), group)


@given(y=label_lists, data=st.data(), seed=seeds)
def test_shards_cover_once(y, data, seed):
    clients = data.draw(st.integers(1, len(y)))
    per_client = data.draw(st.integers(1, len(y) // clients))
    parts = partition.shards(y, clients, per_client, np.random.default_rng(seed))
    assert_partition(parts, len(y), clients)


def test_a_client_of_shards_has_few_labels(rng):
    y = rng.permutation(Y)  # 10 labels, 6 rows of each: 20 shards of 3 rows, each of one label
    parts = partition.shards(y, 10, 2, rng)
    assert {len(part) for part in parts} == {6}
    assert max(len(set(y[part])) for part in parts) == 2


@given(y=label_lists, data=st.data(), a=concentrations, b=concentrations, seed=seeds)
def test_two_dirichlet_covers_once(y, data, a, b, seed):
    clients = data.draw(st.integers(1, len(y)))
    parts = partition.two_dirichlet(y, clients, a, b, np.random.default_rng(seed))
    assert_partition(parts, len(y), clients)


def class_counts(y, parts, classes):
    return np.array([np.bincount(y[part], minlength=classes) for part in parts])


def test_the_first_concentration_is_of_sizes_and_the_second_of_classes(rng):
    def shares(parts):
        counts = class_counts(y, parts, 4)
        return counts / counts.sum(axis=1, keepdims=True)

    y = np.repeat(np.arange(4), 250)
    assert shares(partition.two_dirichlet(y, 4, 1e6, 0.01, rng)).max(axis=1).mean() > 0.6
    parts = partition.two_dirichlet(y, 4, 0.01, 1e6, rng)
    assert max(len(part) for part in parts) > 500
    np.testing.assert_allclose(shares([part for part in parts if len(part) > 100]), 0.25, atol=0.02)


def test_each_class_is_divided_in_proportion_to_size_times_mix():
    """App. E.1: the sampled mix times the sampled size, normalised across clients; drawn again here."""
    y, clients, classes = np.repeat(np.arange(3), [1000, 2000, 500]), 5, 3
    counts = class_counts(y, partition.two_dirichlet(y, clients, 1.0, 0.5, np.random.default_rng(7)), classes)
    twin = np.random.default_rng(7)
    shares = twin.dirichlet(np.ones(clients))
    mixes = np.stack([twin.dirichlet(np.full(classes, 0.5)) for _ in range(clients)])
    wishes = shares[:, None] * mixes
    expected = wishes / wishes.sum(axis=0) * np.bincount(y)
    assert np.max(np.abs(counts - expected)) < 1  # largest remainders move by less than a row
    assert np.max(np.abs(counts - mixes / mixes.sum(axis=0) * np.bincount(y))) > 100  # the sizes forgotten
    np.testing.assert_array_equal(counts.sum(axis=0), np.bincount(y))


def spread_of_the_papers(size_concentration, class_concentration):
    """Medians over 50 draws: share of the rows at the 2 and at the 6 largest of 10 clients, and in 4 classes."""
    y = np.repeat(np.arange(10), 600)
    found = []
    for seed in range(50):
        parts = partition.two_dirichlet(y, 10, size_concentration, class_concentration, np.random.default_rng(seed))
        counts = class_counts(y, parts, 10)
        sizes = np.sort(counts.sum(axis=1) / len(y))[::-1]
        four = np.sort(counts / counts.sum(axis=1, keepdims=True), axis=1)[:, -4:].sum(axis=1)
        found.append([sizes[:2].sum(), sizes[:6].sum(), four.min(), four.max()])
    return np.median(found, axis=0)


def test_the_papers_concentrations_spread_as_the_paper_says():
    """App. E.1: usually 2 clients have 50 % of the data, 6 have 90 %, and 60 to 95 % of a client's is in 4 classes.

    The medians are 45 %, 87 % and 72 to 95 %; the paper rounds the first two to tens and the others to fives.
    """
    two, six, least, most = spread_of_the_papers(1.0, 0.5)
    assert abs(two - 0.5) <= 0.05
    assert abs(six - 0.9) <= 0.05
    assert 0.575 <= least <= most <= 0.975
    # each of the two concentrations ten times as large, or a tenth, gives something else
    assert spread_of_the_papers(1.0, 5.0)[2] < 0.575
    assert spread_of_the_papers(1.0, 0.05)[3] > 0.975
    assert abs(spread_of_the_papers(10.0, 0.5)[0] - 0.5) > 0.05
    assert abs(spread_of_the_papers(0.1, 0.5)[0] - 0.5) > 0.05


def test_a_client_that_would_have_nothing_takes_a_row_from_the_largest():
    parts = partition.two_dirichlet(np.zeros(20, int), 5, 1e-6, 1.0, np.random.default_rng(0))
    assert sorted(len(part) for part in parts) == [1, 1, 1, 1, 16]


@given(seed=seeds, data=st.data())
def test_small_large_covers_once(seed, data):
    rng = np.random.default_rng(seed)
    # as many negatives as positives or more, so that the larger half of the rows has room for the positives
    positives = data.draw(st.integers(5, 60))
    y = rng.permutation(np.repeat([0, 1], [positives + data.draw(st.integers(10, 60)), positives]))
    clients = 2 * data.draw(st.integers(1, 5))
    parts = partition.small_large(
        y, clients, rng, size_imbalance=data.draw(st.floats(0, 0.4)), small_rate=data.draw(st.floats(0, 0.1))
    )
    assert_partition(parts, len(y), clients)


@pytest.mark.parametrize("n", [516, 520, 522, 523])
def test_small_large_is_the_credit_split_of_the_paper(n, rng):
    """App. E.2: 36 rows, 6 % positive, and 67 rows, 66 % positive; at most one row more, as none is left out."""
    y = rng.permutation(np.repeat([0, 1], [n - round(0.453 * n), round(0.453 * n)]))
    parts = partition.small_large(y, 10, rng)
    sizes = np.array([len(part) for part in parts])
    rates = np.array([y[part].mean() for part in parts])
    assert set(sizes[:5]) <= {36, 37}
    assert set(sizes[5:]) <= {67, 68}
    np.testing.assert_allclose(rates[:5], 0.06, atol=0.5 / 36)  # half a row
    np.testing.assert_allclose(rates[5:], 0.66, atol=0.02)  # the paper's train set is another random one
    # 0.7 n / K and 1.3 n / K without the rounding up of remainders are its sizes
    assert (int(0.7 * n / 10), int(1.3 * n / 10)) == (36, 67)
    even = [len(part) for part in partition.small_large(y, 10, rng, size_imbalance=0.0)]
    assert max(even) - min(even) <= 1


@given(values=st.lists(st.sampled_from(["a", "b", "Ü", ""]), min_size=1))
def test_by_column_has_one_client_per_value(values):
    parts = partition.by_column(values)
    assert_partition(parts, len(values), len(set(values)))
    for part, value in zip(parts, sorted(set(values)), strict=True):
        assert {values[i] for i in part} == {value}


RANDOM = {
    "iid": lambda rng: partition.iid(60, 7, rng),
    "shards": lambda rng: partition.shards(Y, 5, 3, rng),
    "two_dirichlet": lambda rng: partition.two_dirichlet(Y, 7, 1.0, 0.5, rng),
    "small_large": lambda rng: partition.small_large(Y % 2, 4, rng),
}


def test_the_generator_decides():
    def flat(call, seed):
        return np.concatenate(call(np.random.default_rng(seed))).tolist()

    assert [name for name, call in RANDOM.items() if flat(call, 1) != flat(call, 1)] == []
    assert [name for name, call in RANDOM.items() if flat(call, 1) == flat(call, 2)] == []


def test_wrong_input_to_a_partition_is_refused_with_the_name_of_the_argument():
    two, few, many = Y % 2, np.repeat([0, 1], [50, 10]), np.repeat([0, 1], [10, 50])
    p = partition
    assert_refused(
        [
            *((lambda n=n: p.iid(n, 1, RNG), "n") for n in (0, 4.0)),
            *((lambda k=k: p.iid(4, k, RNG), "clients") for k in (0, 5)),
            *((lambda k=k: p.label_pairs(Y, k), "clients") for k in (3, -2)),
            *((lambda y=y: p.label_pairs(y, 1), "y") for y in ([[0, 1]], [[0], [0, 1]], [], [0.0], ["a"])),
            (lambda: p.shards(Y, 61, 1, RNG), "clients"),
            *((lambda k=k, n=n: p.shards(Y, k, n, RNG), "per_client") for k, n in ((2, 0), (20, 4))),
            (lambda: p.two_dirichlet(Y, 61, 1, 1, RNG), "clients"),
            (lambda: p.two_dirichlet(Y, 2, 0, 1, RNG), "size_concentration"),
            (lambda: p.two_dirichlet(Y, 2, 1, np.inf, RNG), "class_concentration"),
            (lambda: p.small_large(Y, 4, RNG), "y"),
            *((lambda k=k: p.small_large(two, k, RNG), "clients") for k in (5, 62)),
            (lambda: p.small_large(two, 4, RNG, size_imbalance=1.0), "size_imbalance"),
            (lambda: p.small_large(two, 6, RNG, size_imbalance=0.99), "size_imbalance"),
            (lambda: p.small_large(two, 4, RNG, small_rate=-0.1), "small_rate"),
            (lambda: p.small_large(few, 2, RNG, small_rate=1.0), "small_rate"),
            (lambda: p.small_large(many, 2, RNG, small_rate=0.0), "small_rate"),
            *((lambda v=v: p.by_column(v), "values") for v in (3, [], [1.0, np.nan], np.array([1, "a"], object))),
            (lambda: p.by_column(np.array(["2026-01-01", "NaT"], dtype="datetime64[D]")), "values"),
        ]
    )


def test_rng_must_be_a_generator():
    for call in RANDOM.values():
        for rng in (None, 0, np.random.RandomState(0), np.random):
            with pytest.raises(TypeError, match=r"^rng must"):
                call(rng)


# Loaders --------------------------------------------------------------------------------------


def test_digits():
    digits = load_digits()
    assert isinstance(digits, Dataset)
    assert digits.X.shape == (1797, 64)
    assert digits.X.dtype == np.float64
    assert (digits.X.min(), digits.X.max()) == (0.0, 1.0)
    assert digits.y.dtype == np.int64
    np.testing.assert_array_equal(np.unique(digits.y), np.arange(digits.n_classes))
    assert digits.X_test is None
    assert digits.y_test is None
    assert digits.name == "digits"


def test_digits_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"pip install -e \"\.\[demos\]"):
        load_digits()


def test_importing_the_loaders_imports_no_extra():
    extras = ("sklearn", "pooch", "matplotlib", "PIL")
    code = f"import sys, bayesadmm_np.data; print([m for m in {extras} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def keras_arrays(n=6, m=3):
    """Bytes of images and their labels; in both parts the first image is all zeros and the second all 255."""
    rng = np.random.default_rng(1)
    images_of = [rng.integers(0, 256, (count, 28, 28), dtype=np.uint8) for count in (n, m)]
    for some in images_of:
        some[0], some[1] = 0, 255
    train, test = (rng.integers(0, 10, count, dtype=np.uint8) for count in (n, m))
    return {"x_train": images_of[0], "y_train": train, "x_test": images_of[1], "y_test": test}


@pytest.fixture
def folder(tmp_path, cache):
    folder = tmp_path / "own"
    folder.mkdir()
    for name in ("mnist.npz", "fashion_mnist.npz"):
        np.savez(folder / name, **keras_arrays())
    return folder


def assert_block_means(found, arrays, size):
    """Means of blocks, row by row, of the bytes over 255; bytes 0 and 255 are 0 and 1."""
    for X, raw in [(found.X, arrays["x_train"]), (found.X_test, arrays["x_test"])]:
        means = raw.reshape(len(raw), size, 28 // size, size, 28 // size).mean(axis=(2, 4))
        assert X.dtype == np.float64
        np.testing.assert_allclose(X, means.reshape(len(raw), -1) / 255, rtol=1e-14)
        assert np.all(X[0] == 0.0)
        assert np.all(X[1] == 1.0)
    np.testing.assert_array_equal(found.y, arrays["y_train"])
    np.testing.assert_array_equal(found.y_test, arrays["y_test"])
    assert (found.y.dtype, found.y_test.dtype, found.n_classes) == (np.int64, np.int64, 10)


def test_mnist_is_the_block_mean_flattened_row_by_row(folder):
    for size in (28, 14, 7):
        mnist = load_mnist(size, data_dir=folder)
        assert_block_means(mnist, keras_arrays(), size)
        part = load_mnist(size, 4, data_dir=folder)  # the first rows
        np.testing.assert_array_equal(part.X, mnist.X[:4])
        np.testing.assert_array_equal(part.y, mnist.y[:4])
        np.testing.assert_array_equal(part.X_test, mnist.X_test)
    assert mnist.name == "mnist"


def test_the_argument_goes_before_the_variable(folder, tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.mkdir()
    np.savez(other / "mnist.npz", **keras_arrays(n=2))
    monkeypatch.setenv("BAYESADMM_DATA", str(other))
    assert len(load_mnist(7).X) == 2
    assert len(load_mnist(7, data_dir=folder).X) == 6
    assert len(load_mnist(7, data_dir=tmp_path / "nothing here").X) == 2
    for variable in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(variable, str(folder.parent))
    assert len(load_mnist(7, data_dir="~/own").X) == 6


@pytest.mark.parametrize("load", [load_mnist, load_fashion_mnist])
def test_wrong_arguments_to_an_image_loader(folder, load):
    wrong = [*(("size", bad) for bad in (10, 28.0, "28", None)), *(("train", bad) for bad in (0, True, 2.0, 7))]
    assert_refused((lambda a=a, bad=bad: load(**{"data_dir": folder, a: bad}), a) for a, bad in wrong)
    for path in (3, b"x"):
        with pytest.raises(TypeError, match=r"^data_dir"):
            load(data_dir=path)


X3 = np.zeros((3, 28, 28), np.uint8)


def test_a_file_in_another_layout(folder):
    changes = [
        *(("x_train", bad) for bad in (X3.reshape(3, 784), X3.astype(float))),
        *(("x_test", bad) for bad in (X3[:, :, :27], X3[:0])),
        ("y_train", np.zeros(5, int)),
        *(("y_test", bad) for bad in (np.zeros((3, 10), int), np.zeros(3), np.full(3, 10), np.full(3, -1))),
    ]

    def read(name, array):
        np.savez(folder / "mnist.npz", **(keras_arrays() | {name: array}))
        load_mnist(data_dir=folder)

    assert_refused((lambda name=name, array=array: read(name, array), name) for name, array in changes)
    arrays = keras_arrays()
    np.savez(folder / "mnist.npz", x_train=arrays["x_train"], y_test=arrays["y_test"])
    with pytest.raises(ValueError, match="y_train, x_test"):
        load_mnist(data_dir=folder)


def test_a_damaged_file_is_named(folder):
    path, single = folder / "mnist.npz", io.BytesIO()
    np.save(single, np.zeros(3))
    whole = path.read_bytes()
    flipped = whole[:1000] + bytes([whole[1000] ^ 0xFF]) + whole[1001:]
    magic_only = b"PK\x03\x04" + bytes(100)
    for content in (flipped, whole[:-100], single.getvalue(), b"", b"<html>not found</html>", magic_only):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"mnist\.npz is not a readable"):
            load_mnist(data_dir=folder)


def test_a_pickle_is_never_run(folder):
    """An object array could run code when it is loaded; here it would make a file."""
    proof = folder / "proof"

    class Payload:
        def __reduce__(self):
            return (Path.touch, (proof,))

    payload = np.array([Payload()], dtype=object)
    np.savez(folder / "mnist.npz", **(keras_arrays() | {"y_test": payload}))
    with pytest.raises(ValueError, match="allow_pickle"):
        load_mnist(data_dir=folder)
    (folder / "mnist.npz").write_bytes(payload.dumps())
    with pytest.raises(ValueError, match="allow_pickle"):
        load_mnist(data_dir=folder)
    assert not proof.exists()


@pytest.mark.parametrize(
    ("load", "wanted"), [(load_mnist, ("mnist.npz",)), (load_fashion_mnist, ("fashion_mnist.npz", "train-images"))]
)
def test_offline_says_what_is_missing_and_where_it_was_sought(cache, tmp_path, monkeypatch, load, wanted):
    for value in (None, ""):
        if value is not None:
            monkeypatch.setenv("BAYESADMM_DATA", value)
        with pytest.raises(DataUnavailableError, match="no directory"):
            load()
    first, second = tmp_path / "first", tmp_path / "second"
    monkeypatch.setenv("BAYESADMM_DATA", str(second))
    with pytest.raises(DataUnavailableError) as caught:
        load(data_dir=first)
    assert isinstance(caught.value, OSError)
    for part in (*wanted, str(first), str(second), str(cache), "BAYESADMM_DATA", "no route"):
        assert part in str(caught.value)


def test_without_pooch(monkeypatch, no_variable, tmp_path):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(DataUnavailableError, match=r"needs pooch: pip install -e \"\.\["):
        load_mnist(data_dir=tmp_path)


def test_a_cached_file_with_a_wrong_sum_is_an_error_and_stays(cache):
    for load, name in ((load_mnist, "mnist.npz"), (load_fashion_mnist, images.FASHION["x_train"].name)):
        path = cache / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"something else")
        with pytest.raises(DataUnavailableError, match=f"{path.name} has SHA-256"):
            load()
        assert path.read_bytes() == b"something else"


def test_a_cached_file_with_the_right_sum_is_read_without_network(cache, monkeypatch):
    import pooch

    cache.mkdir()
    path = cache / "mnist.npz"
    np.savez(path, **keras_arrays())
    monkeypatch.setattr(images, "MNIST", dataclasses.replace(images.MNIST, sha256=pooch.file_hash(str(path))))
    assert load_mnist(7).X.shape == (6, 49)


def test_a_download_with_a_wrong_sum_is_refused(monkeypatch, no_variable, tmp_path):
    """Here pooch itself runs, with a downloader that fetches something else."""
    pooch = pytest.importorskip("pooch")

    class Elsewhere:
        def __call__(self, url, output_file, pooch):
            Path(output_file).write_bytes(b"something else")

    monkeypatch.setattr(pooch, "os_cache", lambda name: tmp_path / "cache")
    monkeypatch.setattr(pooch.core, "choose_downloader", lambda *args, **kwargs: Elsewhere())
    pooch.get_logger().setLevel(logging.WARNING)
    with pytest.raises(DataUnavailableError, match=r"could not be downloaded .*hash"):
        load_mnist()
    assert os.listdir(tmp_path / "cache") == []


def idx(array):
    """The bytes of an array in the layout in which Fashion-MNIST is published."""
    header = bytes([0, 0, 8, array.ndim]) + b"".join(length.to_bytes(4, "big") for length in array.shape)
    return gzip.compress(header + array.tobytes())


@pytest.fixture
def published_fashion(cache, monkeypatch):
    """The four published files in a cache, with their sums, made small; the network is down."""
    arrays = keras_arrays()
    files = {}
    for name, file in images.FASHION.items():
        content = idx(arrays[name])
        files[name] = dataclasses.replace(file, sha256=hashlib.sha256(content).hexdigest())
        path = cache / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    monkeypatch.setattr(images, "FASHION", files)
    return arrays


def test_fashion_mnist_is_read_from_the_published_files(published_fashion, folder):
    published = load_fashion_mnist(14)
    assert published.name == "fashion-mnist"
    own = load_fashion_mnist(14, data_dir=folder)  # the same arrays in the other layout
    for field in ("X", "y", "X_test", "y_test"):
        np.testing.assert_array_equal(getattr(published, field), getattr(own, field))
    np.testing.assert_array_equal(load_fashion_mnist(28).X[0], published_fashion["x_train"][0].ravel() / 255)
    assert_refused([(lambda: load_fashion_mnist(train=7), "train")])


# Parts and pictures ---------------------------------------------------------------------------


def site(name="a", n=2, d=3, n_classes=2, test=False, names=()):
    more = (np.full((1, d), 9.0), np.array([1])) if test else (None, None)
    return Dataset(np.full((n, d), float(n)), np.zeros(n, np.int64), *more, n_classes, name, feature_names=names)


def test_pooled_stacks_the_sites_and_says_where_each_row_is_from():
    pooled = FederatedDataset((site("a", 2, test=True), site("b", 3, test=True)), "both").pooled()
    np.testing.assert_array_equal(pooled.X[:, 0], [2, 2, 3, 3, 3])
    assert pooled.site.tolist() == ["a", "a", "b", "b", "b"]
    assert (pooled.X_test.shape, pooled.y_test.tolist(), pooled.name) == ((2, 3), [1, 1], "both")
    without = FederatedDataset((site("a"), site("b")), "both").pooled()
    assert (without.X_test, without.y_test) == (None, None)


def test_sites_must_agree():
    one, named = site("a"), site("a", names=("u", "v", "w"))
    others = [(one, site("b", d=2)), (one, site("b", n_classes=3)), (one, site("b", test=True))]
    others += [(named, site("b", names=("u", "w", "v"))), ()]
    assert_refused((lambda sites=sites: FederatedDataset(sites, "both"), "sites") for sites in others)


# The real images ------------------------------------------------------------------------------


def test_the_real_fashion_mnist(real_folder):
    fashion = load_fashion_mnist(7, data_dir=real_folder("fashion_mnist.npz"))
    # Fashion-MNIST is balanced, in whatever order its rows are
    assert np.bincount(fashion.y).tolist() == [6000] * 10
    assert np.bincount(fashion.y_test).tolist() == [1000] * 10
    assert fashion.X.mean() == pytest.approx(0.2860, abs=5e-5)  # of all pixels, as often published, to four digits


@pytest.mark.parametrize("size", [14, 7])
def test_the_real_mnist(real_folder, size):
    mnist = load_mnist(size, data_dir=real_folder("mnist.npz"))
    assert mnist.X.shape == (60_000, size**2)
    assert mnist.X_test.shape == (10_000, size**2)
    assert mnist.y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert mnist.X.mean() == pytest.approx(0.1306604762738429, rel=1e-12)  # of all 28 × 28 pixels
    assert np.bincount(mnist.y_test).tolist() == [
        980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009,
    ]  # fmt: skip
