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
    load_digits,
    load_mnist,
    loaders,
    partition,
)

# Partitions -----------------------------------------------------------------------------------

RNG = np.random.default_rng(0)
Y = np.repeat(np.arange(10), 6)

seeds = st.integers(0, 2**32 - 1)
label_lists = st.lists(st.integers(-3, 6), min_size=1, max_size=80)
concentrations = st.floats(1e-6, 1e6)


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


def test_label_pairs_are_the_pairs(rng):
    y = rng.permutation(Y)
    for k, part in enumerate(partition.label_pairs(y, 5)):
        assert set(y[part]) == {2 * k, 2 * k + 1}


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


@pytest.mark.parametrize("a", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("b", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("seed", range(5))
def test_two_dirichlet_covers_once_at_the_ends_of_its_range(a, b, seed):
    parts = partition.two_dirichlet(Y, 7, a, b, np.random.default_rng(seed))
    assert_partition(parts, len(Y), 7)


def class_shares(y, parts, classes):
    counts = np.array([np.bincount(y[part], minlength=classes) for part in parts])
    return counts / counts.sum(axis=1, keepdims=True)


def test_large_concentrations_give_equal_sizes_and_even_mixes(rng):
    y = np.repeat(np.arange(4), 250)
    parts = partition.two_dirichlet(y, 5, 1e6, 1e6, rng)
    np.testing.assert_allclose([len(part) for part in parts], 200, atol=3)
    np.testing.assert_allclose(class_shares(y, parts, 4), 0.25, atol=0.02)


def test_the_first_concentration_is_of_sizes_and_the_second_of_classes(rng):
    y = np.repeat(np.arange(4), 250)
    parts = partition.two_dirichlet(y, 4, 1e6, 0.01, rng)
    np.testing.assert_allclose([len(part) for part in parts], 250, atol=3)
    assert class_shares(y, parts, 4).max(axis=1).mean() > 0.6
    parts = partition.two_dirichlet(y, 4, 0.01, 1e6, rng)
    assert max(len(part) for part in parts) > 500
    large = [part for part in parts if len(part) > 100]
    np.testing.assert_allclose(class_shares(y, large, 4), 0.25, atol=0.02)


def test_which_rows_of_a_class_a_client_gets_is_random(rng):
    first, _ = partition.two_dirichlet(np.zeros(40, int), 2, 1e6, 1.0, rng)
    assert not np.array_equal(first, np.arange(len(first)))


def test_smaller_concentrations_give_less_equal_sizes_and_purer_mixes():
    y = np.repeat(np.arange(10), 100)
    spread, purity = [], []
    for concentration in (0.1, 1.0, 10.0, 100.0):
        runs = [
            partition.two_dirichlet(y, 10, concentration, concentration, np.random.default_rng(i)) for i in range(20)
        ]
        spread.append(np.mean([np.std([len(part) for part in parts]) for parts in runs]))
        purity.append(np.mean([class_shares(y, parts, 10).max(axis=1).mean() for parts in runs]))
    assert np.all(np.diff(spread) < 0)
    assert np.all(np.diff(purity) < 0)


def test_two_dirichlet_gives_the_wishes_when_they_can_be_met():
    wishes = np.array([[3.0, 1.0], [2.0, 4.0]])
    counts = partition._integer_margins(wishes, np.array([4, 6]), np.array([5, 5]))
    np.testing.assert_array_equal(counts, wishes)


@pytest.mark.parametrize("scale", [1, 7, 10**9])
def test_sums_are_met_where_the_scaling_cannot_converge(scale):
    """Each client wishes for one class alone, and the classes have other sizes."""
    rows, columns = scale * np.array([3, 1, 1]), scale * np.array([1, 1, 3])
    counts = partition._integer_margins(np.diag(rows).astype(float), rows, columns)
    assert counts.min() >= 0
    np.testing.assert_array_equal(counts.sum(axis=1), rows)
    np.testing.assert_array_equal(counts.sum(axis=0), columns)


def test_no_count_is_negative_where_a_class_is_sought_by_too_many():
    wishes = np.zeros((4, 5))
    wishes[0, :2] = 0.01, 982_153
    wishes[1, :2] = 15_950, 616_116
    wishes[2, 4], wishes[3, 3] = 1_975_922, 2_830_867
    rows = np.array([982153, 632066, 1975922, 2830867])
    columns = np.array([370827, 1236034, 1553362, 1283340, 1977445])
    counts = partition._integer_margins(wishes, rows, columns)
    assert counts.min() >= 0
    np.testing.assert_array_equal(counts.sum(axis=1), rows)
    np.testing.assert_array_equal(counts.sum(axis=0), columns)


def test_scaling_keeps_the_odds_ratio_of_the_wishes():
    wishes = np.array([[800.0, 200.0], [300.0, 700.0]])
    rows, columns = np.array([100_000, 100_000]), np.array([150_000, 50_000])
    counts = partition._integer_margins(wishes, rows, columns)
    np.testing.assert_array_equal(counts.sum(axis=1), rows)
    np.testing.assert_array_equal(counts.sum(axis=0), columns)
    odds = counts[0, 0] * counts[1, 1] / (counts[0, 1] * counts[1, 0])
    assert odds == pytest.approx((800 * 700) / (200 * 300), rel=1e-3)


@given(values=st.lists(st.sampled_from(["a", "b", "Ü", ""]), min_size=1))
def test_by_column_has_one_client_per_value(values):
    parts = partition.by_column(values)
    assert_partition(parts, len(values), len(set(values)))
    for part, value in zip(parts, sorted(set(values)), strict=True):
        assert {values[i] for i in part} == {value}


@pytest.mark.parametrize(
    "call",
    [
        lambda rng: partition.iid(60, 7, rng),
        lambda rng: partition.shards(Y, 5, 3, rng),
        lambda rng: partition.two_dirichlet(Y, 7, 1.0, 0.5, rng),
    ],
    ids=["iid", "shards", "two_dirichlet"],
)
def test_the_generator_decides(call):
    def flat(seed):
        return np.concatenate(call(np.random.default_rng(seed))).tolist()

    assert flat(1) == flat(1)
    assert flat(1) != flat(2)


NOT_A_GENERATOR = r"^rng must be a numpy\.random\.Generator, .*, got "
WRONG = {
    "iid n 0": (lambda: partition.iid(0, 1, RNG), "n must be an integer of at least 1, got 0"),
    "iid n float": (lambda: partition.iid(4.0, 1, RNG), "n must be an integer .* got 4.0"),
    "iid n bool": (lambda: partition.iid(True, 1, RNG), "n must be an integer .* got True"),
    "iid clients 0": (lambda: partition.iid(4, 0, RNG), "clients must be an integer .* got 0"),
    "iid clients str": (lambda: partition.iid(4, "2", RNG), "clients must be .* got '2'"),
    "iid too many": (
        lambda: partition.iid(4, 5, RNG),
        "clients must be at most the number of rows, 4, got 5",
    ),
    "pairs indivisible": (
        lambda: partition.label_pairs(Y, 3),
        "clients must divide the number of distinct labels in y, 10, got 3",
    ),
    "pairs clients": (lambda: partition.label_pairs(Y, -2), "clients must be an integer"),
    "pairs 2-d": (lambda: partition.label_pairs([[0, 1]], 1), r"y must be .* shape \(1, 2\)"),
    "pairs ragged": (lambda: partition.label_pairs([[0], [0, 1]], 1), "y must be a one-dim"),
    "pairs empty": (lambda: partition.label_pairs([], 1), "y must have at least one row"),
    "pairs float": (lambda: partition.label_pairs([0.0], 1), "y must have integer .* float64"),
    "shards float": (lambda: partition.shards([0.5], 1, 1, RNG), "y must have integer labels"),
    "shards clients": (lambda: partition.shards(Y, 61, 1, RNG), "clients must be at most .* 60"),
    "shards per_client 0": (lambda: partition.shards(Y, 2, 0, RNG), "per_client must be an int"),
    "shards too many": (
        lambda: partition.shards(Y, 20, 4, RNG),
        "per_client must be at most 3, the rows of y for each of 20 clients, got 4",
    ),
    "dirichlet str": (lambda: partition.two_dirichlet(["a"], 1, 1, 1, RNG), "y must have int"),
    "dirichlet clients": (lambda: partition.two_dirichlet(Y, 61, 1, 1, RNG), "clients must be"),
    "dirichlet size 0": (
        lambda: partition.two_dirichlet(Y, 2, 0, 1, RNG),
        "size_concentration must be a number from 1e-6 to 1e6, got 0",
    ),
    "dirichlet size str": (
        lambda: partition.two_dirichlet(Y, 2, "1", 1, RNG),
        "size_concentration must be a number .* got '1'",
    ),
    "dirichlet class inf": (
        lambda: partition.two_dirichlet(Y, 2, 1, np.inf, RNG),
        "class_concentration must be a number from 1e-6 to 1e6, got inf",
    ),
    "dirichlet class nan": (
        lambda: partition.two_dirichlet(Y, 2, 1, np.nan, RNG),
        "class_concentration must be a number",
    ),
    "dirichlet class None": (
        lambda: partition.two_dirichlet(Y, 2, 1, None, RNG),
        "class_concentration must be a number",
    ),
    "column 0-d": (lambda: partition.by_column(3), r"values must be .* got shape \(\)"),
    "column empty": (lambda: partition.by_column([]), "values must have at least one row"),
    "column nan": (lambda: partition.by_column([1.0, np.nan]), "values must not have missing"),
    "column NaT": (
        lambda: partition.by_column(np.array(["2026-01-01", "NaT"], dtype="datetime64[D]")),
        "values must not have missing",
    ),
    "column mixed": (
        lambda: partition.by_column(np.array([1, "a"], dtype=object)),
        "values must be of kinds that can be sorted",
    ),
}


@pytest.mark.parametrize(("call", "message"), WRONG.values(), ids=WRONG.keys())
def test_wrong_input_to_a_partition(call, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        call()


@pytest.mark.parametrize("rng", [None, 0, np.random.RandomState(0), np.random], ids=type)
@pytest.mark.parametrize(
    "call",
    [
        lambda rng: partition.iid(4, 2, rng),
        lambda rng: partition.shards(Y, 2, 2, rng),
        lambda rng: partition.two_dirichlet(Y, 2, 1, 1, rng),
    ],
    ids=["iid", "shards", "two_dirichlet"],
)
def test_rng_must_be_a_generator(call, rng):
    with pytest.raises(TypeError, match=NOT_A_GENERATOR + type(rng).__name__):
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
    with pytest.raises(ImportError, match=r"pip install 'bayesadmm-np\[demos\]'"):
        load_digits()


def test_importing_the_loaders_imports_no_extra():
    code = "import sys, bayesadmm_np.data; print([m for m in ('sklearn', 'pooch', 'matplotlib') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_dataset_is_frozen():
    toy = Dataset(np.zeros((1, 1)), np.zeros(1, np.int64), None, None, 1, "toy")
    with pytest.raises(AttributeError):
        toy.name = "other"


def keras_arrays(n=6, m=3):
    rng = np.random.default_rng(1)
    return {
        "x_train": rng.integers(0, 256, (n, 28, 28), dtype=np.uint8),
        "y_train": rng.integers(0, 10, n, dtype=np.uint8),
        "x_test": rng.integers(0, 256, (m, 28, 28), dtype=np.uint8),
        "y_test": rng.integers(0, 10, m, dtype=np.uint8),
    }


@pytest.fixture
def no_variable(monkeypatch):
    monkeypatch.delenv("BAYESADMM_DATA", raising=False)


@pytest.fixture
def cache(monkeypatch, tmp_path, no_variable):
    """An empty pooch cache, and a network that is down."""
    pooch = pytest.importorskip("pooch")
    folder = tmp_path / "cache"

    def retrieve(url, known_hash, fname, path):
        raise ConnectionError("no route to host")

    monkeypatch.setattr(pooch, "os_cache", lambda name: folder)
    monkeypatch.setattr(pooch, "retrieve", retrieve)
    return folder


@pytest.fixture
def folder(tmp_path, cache):
    folder = tmp_path / "own"
    folder.mkdir()
    np.savez(folder / "mnist.npz", **keras_arrays())
    return folder


@pytest.mark.parametrize("size", [28, 14, 7])
def test_mnist_is_the_block_mean_flattened_row_by_row(folder, size):
    arrays = keras_arrays()
    mnist = load_mnist(size, data_dir=folder)
    block = 28 // size
    for X, images in [(mnist.X, arrays["x_train"]), (mnist.X_test, arrays["x_test"])]:
        assert X.dtype == np.float64
        assert X.shape == (len(images), size**2)
        for i, j in [(0, 0), (1, 3), (size - 1, size - 2)]:
            patch = images[:, block * i : block * (i + 1), block * j : block * (j + 1)]
            expected = patch.astype(float).mean(axis=(1, 2)) / 255
            np.testing.assert_allclose(X[:, size * i + j], expected, rtol=1e-14)
    np.testing.assert_array_equal(mnist.y, arrays["y_train"])
    np.testing.assert_array_equal(mnist.y_test, arrays["y_test"])
    assert (mnist.y.dtype, mnist.y_test.dtype) == (np.int64, np.int64)
    assert (mnist.n_classes, mnist.name) == (10, "mnist")


def test_bytes_0_and_255_become_0_and_1_exactly(folder):
    arrays = keras_arrays()
    arrays["x_train"][0], arrays["x_train"][1] = 0, 255
    np.savez(folder / "mnist.npz", **arrays)
    for size in (28, 14, 7):
        X = load_mnist(size, data_dir=folder).X
        assert np.all(X[0] == 0.0)
        assert np.all(X[1] == 1.0)


def test_train_keeps_the_first_rows(folder):
    whole, part = load_mnist(7, data_dir=folder), load_mnist(7, 4, data_dir=folder)
    np.testing.assert_array_equal(part.X, whole.X[:4])
    np.testing.assert_array_equal(part.y, whole.y[:4])
    np.testing.assert_array_equal(part.X_test, whole.X_test)


def test_the_argument_goes_before_the_variable(folder, tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.mkdir()
    np.savez(other / "mnist.npz", **keras_arrays(n=2))
    monkeypatch.setenv("BAYESADMM_DATA", str(other))
    assert len(load_mnist(7).X) == 2
    assert len(load_mnist(7, data_dir=folder).X) == 6
    assert len(load_mnist(7, data_dir=tmp_path / "nothing here").X) == 2


def test_a_file_of_ones_own_is_not_written_to(folder):
    path = folder / "mnist.npz"
    before = path.read_bytes(), path.stat().st_mtime_ns
    load_mnist(7, data_dir=folder)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert os.listdir(folder) == ["mnist.npz"]


def test_a_tilde_is_the_home_directory(folder, monkeypatch):
    for variable in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(variable, str(folder.parent))
    assert len(load_mnist(7, data_dir="~/own").X) == 6


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"size": 10}, ValueError, r"size must be one of \(28, 14, 7\), got 10"),
        ({"size": 28.0}, ValueError, r"size must be one of .* got 28\.0"),
        ({"size": "28"}, ValueError, "size must be one of .* got '28'"),
        ({"size": None}, ValueError, "size must be one of .* got None"),
        ({"train": 0}, ValueError, "train must be None or an integer of at least 1, got 0"),
        ({"train": True}, ValueError, "train must be .* got True"),
        ({"train": 2.0}, ValueError, r"train must be .* got 2\.0"),
        ({"train": 7}, ValueError, r"train must be at most 6, the rows in .*mnist\.npz, got 7"),
        ({"data_dir": 3}, TypeError, "data_dir must be a path or None, got int"),
        ({"data_dir": b"x"}, TypeError, "data_dir must be a path or None, got bytes"),
    ],
)
def test_wrong_arguments_to_load_mnist(folder, arguments, error, message):
    with pytest.raises(error, match=f"^{message}"):
        load_mnist(**{"data_dir": folder, **arguments})


X3 = np.zeros((3, 28, 28), np.uint8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_train": X3.reshape(3, 784)}, r"x_train in .* shape \(n, 28, 28\), got \(3, 784\)"),
        ({"x_test": X3[:, :, :27]}, r"x_test in .* got \(3, 28, 27\)"),
        ({"x_test": X3[:0]}, r"x_test in .* got \(0, 28, 28\)"),
        ({"x_train": X3.astype(float)}, "x_train in .* must have type uint8, got float64"),
        ({"y_train": np.zeros(5, int)}, r"y_train in .* shape \(6,\), got \(5,\)"),
        ({"y_test": np.zeros((3, 10), int)}, r"y_test in .* shape \(3,\), got \(3, 10\)"),
        ({"y_test": np.zeros(3)}, "y_test in .* must have an integer type, got float64"),
        ({"y_test": np.full(3, 10)}, "y_test in .* labels from 0 to 9, got 10 to 10"),
        ({"y_test": np.full(3, -1)}, "y_test in .* labels from 0 to 9, got -1 to -1"),
        ({"y_train": None, "x_test": None}, ".* must hold the arrays .* lacks y_train, x_test"),
        ({"x_train": np.array([{}] * 6, dtype=object)}, ".* is not a readable .* allow_pickle"),
    ],
)
def test_a_file_in_another_layout(folder, change, message):
    arrays = {name: a for name, a in (keras_arrays() | change).items() if a is not None}
    np.savez(folder / "mnist.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        load_mnist(data_dir=folder)


def flip_a_byte_of_the_data(path):
    content = bytearray(path.read_bytes())
    content[1000] ^= 0xFF
    path.write_bytes(content)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


def single_array(path):
    with path.open("wb") as file:
        np.save(file, np.zeros(3))


@pytest.mark.parametrize(
    "damage",
    [
        flip_a_byte_of_the_data,
        truncate,
        single_array,
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"<html>not found</html>"),
        lambda path: path.write_bytes(b"PK\x03\x04" + bytes(100)),
    ],
    ids=["flipped byte", "truncated", "single array", "empty", "html", "zip magic only"],
)
def test_a_damaged_file_is_named(folder, damage):
    damage(folder / "mnist.npz")
    with pytest.raises(ValueError, match=r"mnist\.npz is not a readable \.npz archive"):
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


def test_offline_says_what_is_missing_and_where_it_was_sought(cache, tmp_path, monkeypatch):
    first, second = tmp_path / "first", tmp_path / "second"
    monkeypatch.setenv("BAYESADMM_DATA", str(second))
    with pytest.raises(DataUnavailableError) as caught:
        load_mnist(data_dir=first)
    assert isinstance(caught.value, OSError)
    message = str(caught.value)
    for part in ("mnist.npz", str(first), str(second), str(cache), "BAYESADMM_DATA", "no route"):
        assert part in message


@pytest.mark.parametrize("value", [None, ""])
def test_offline_without_any_directory(cache, monkeypatch, value):
    if value is not None:
        monkeypatch.setenv("BAYESADMM_DATA", value)
    with pytest.raises(DataUnavailableError, match=r"searched: no directory \(none was named\)"):
        load_mnist()


def test_without_pooch(monkeypatch, no_variable, tmp_path):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(DataUnavailableError, match=r"needs pooch: pip install 'bayesadmm-np\["):
        load_mnist(data_dir=tmp_path)


def test_a_cached_file_with_a_wrong_sum_is_an_error_and_stays(cache):
    cache.mkdir()
    np.savez(cache / "mnist.npz", **keras_arrays())
    before = (cache / "mnist.npz").read_bytes()
    with pytest.raises(DataUnavailableError, match=r"cached file .*mnist\.npz has SHA-256 .* dele"):
        load_mnist()
    assert (cache / "mnist.npz").read_bytes() == before


def test_a_cached_file_with_the_right_sum_is_read_without_network(cache, monkeypatch):
    import pooch

    cache.mkdir()
    path = cache / "mnist.npz"
    np.savez(path, **keras_arrays())
    monkeypatch.setattr(loaders, "MNIST_SHA256", pooch.file_hash(str(path)))
    assert load_mnist(7).X.shape == (6, 49)


def test_the_file_is_downloaded_to_the_cache_and_nowhere_else(cache, tmp_path, monkeypatch):
    import pooch

    own = tmp_path / "own"
    own.mkdir()
    calls = []

    def retrieve(url, known_hash, fname, path):
        calls.append((url, known_hash, Path(path, fname)))
        Path(path).mkdir()
        np.savez(Path(path, fname), **keras_arrays())

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    assert load_mnist(7, data_dir=own).X.shape == (6, 49)
    assert calls == [
        (loaders.MNIST_URL, f"sha256:{loaders.MNIST_SHA256}", cache / "mnist.npz"),
    ]
    assert os.listdir(own) == []


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


@pytest.fixture(scope="module")
def real_folder():
    named = os.environ.get("BAYESADMM_DATA")
    if not named:
        pytest.skip("BAYESADMM_DATA is not set: the real MNIST is not tested")
    if not Path(named, "mnist.npz").is_file():
        pytest.skip("no mnist.npz in the directory BAYESADMM_DATA: the real MNIST is not tested")
    return named


@pytest.mark.parametrize("size", [14, 7])
def test_the_real_mnist(real_folder, size):
    mnist = load_mnist(size, data_dir=real_folder)
    assert mnist.X.shape == (60_000, size**2)
    assert mnist.X_test.shape == (10_000, size**2)
    assert mnist.y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert mnist.X.mean() == pytest.approx(0.1306604762738429, rel=1e-12)  # of all 28 × 28 pixels
    assert np.bincount(mnist.y_test).tolist() == [
        980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009,
    ]  # fmt: skip


def test_the_real_mnist_at_full_size(real_folder):
    mnist = load_mnist(train=1000, data_dir=real_folder)
    assert mnist.X.shape == (1000, 784)
    assert (mnist.X.min(), mnist.X.max()) == (0.0, 1.0)
    assert np.bincount(mnist.y, minlength=10).sum() == 1000
