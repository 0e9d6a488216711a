"""The two tables of the UCI repository: their preparation, their splits, and files that are not theirs."""

import hashlib

import numpy as np
import pytest

from bayesadmm_np.data import (
    Dataset,
    DataUnavailableError,
    FederatedDataset,
    load_credit_approval,
    load_heart_disease,
    partition,
    tables,
)
from oracles.refusals import assert_refused

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")


def patient(rng, disease):
    """One row of the heart data, complete but for the three columns that are dropped."""
    numbers = [rng.integers(30, 70), rng.integers(2), rng.integers(1, 5), rng.integers(90, 200), rng.integers(100, 300)]
    numbers += [rng.integers(2), rng.integers(3), rng.integers(70, 200), rng.integers(2), rng.integers(40) / 10]
    return [*map(str, numbers), "?", "?", "?", str(disease)]


def hospital(rng, n, disease=None):
    return [patient(rng, rng.integers(5) if disease is None else disease) for _ in range(n)]


def application(rng, label):
    cells = [""] * 16
    for column in tables.CREDIT_NUMERIC.values():
        cells[column] = f"{rng.integers(1000) / 10:g}"
    for column, levels in tables.CREDIT_LEVELS.values():
        cells[column] = str(rng.choice(levels))
    return [*cells[:-1], label]


def write(path, rows, end="\n"):
    path.write_bytes("".join(",".join(row) + end for row in rows).encode("ascii"))


def heart_rows():
    """Four hospitals; the third has one class and no cholesterol."""
    rng = np.random.default_rng(3)
    rows = {name: hospital(rng, n) for name, n in zip(HOSPITALS, (30, 21, 12, 17), strict=True)}
    rows["switzerland"] = hospital(rng, 12, disease=2)
    for row in rows["switzerland"]:
        row[4] = "0"
    rows["va"][5][3] = "?"
    return rows


@pytest.fixture
def heart(tmp_path, cache):
    rows = heart_rows()
    for name, patients in rows.items():
        write(tmp_path / f"processed.{name}.data", patients)
    return tmp_path, rows


@pytest.fixture
def credit(tmp_path, cache):
    rng = np.random.default_rng(5)
    rows = [application(rng, "+" if i % 3 else "-") for i in range(40)]
    rows[7][1] = rows[9][3] = "?"
    write(tmp_path / "crx.data", rows)
    return tmp_path, rows


# Heart disease --------------------------------------------------------------------------------


def raw_features(rows):
    """The recipe of the docstring, row by row, without arrays."""
    kept = [row for row in rows if "?" not in row[:10] + row[13:]]
    features = [
        [float(row[j]) for j in (0, 1, 3, 4, 5, 7, 8, 9)]
        + [float(float(row[2]) == kind) for kind in (2, 3, 4)]
        + [float(float(row[6]) == kind) for kind in (1, 2)]
        for row in kept
    ]
    return np.array(features), np.array([int(float(row[13]) > 0) for row in kept])


def test_heart_disease_is_the_recipe(heart):
    folder, rows = heart
    data = load_heart_disease(data_dir=folder, verify=False, seed=4)
    assert isinstance(data, FederatedDataset)
    assert data.site_names == HOSPITALS
    assert data.feature_names == (
        *("age", "sex", "trestbps", "chol", "fbs", "thalach", "exang", "oldpeak"),
        *("cp=2", "cp=3", "cp=4", "restecg=1", "restecg=2"),
    )
    rng = np.random.default_rng(4)
    for part in data.sites:
        X, y = raw_features(rows[part.name])
        order = rng.permutation(len(X))
        n = int(0.66 * len(X))
        train, test = np.sort(order[:n]), np.sort(order[n:])
        mean, sd = X[train].mean(axis=0), X[train].std(axis=0)
        varies = np.ptp(X[train], axis=0) > 0
        for scaled, chosen in ((part.X, train), (part.X_test, test)):
            assert scaled.shape == (len(chosen), 13)
            np.testing.assert_allclose(scaled[:, varies], ((X[chosen] - mean) / np.where(varies, sd, 1))[:, varies])
            assert not scaled[:, ~varies].any()
        np.testing.assert_array_equal(part.y, y[train])
        np.testing.assert_array_equal(part.y_test, y[test])
        # the divisor is n: with n - 1 the squares of a column would sum to n - 1
        np.testing.assert_allclose((part.X[:, varies] ** 2).sum(axis=0), n)
    assert data.sites[3].X.shape[0] == int(0.66 * 16)  # the incomplete row is gone


def test_hospitals_with_one_class_and_columns_that_are_constant_in_training(heart):
    folder, rows = heart
    part = load_heart_disease(data_dir=folder, verify=False).sites[2]
    assert set(part.y) == {1}
    assert part.n_classes == 2
    assert not part.X[:, 3].any()
    assert not part.X_test[:, 3].any()
    assert np.isfinite(part.X).all()
    # a test row cannot escape in such a column
    train = np.sort(np.random.default_rng(0).permutation(30)[: int(0.66 * 30)])
    for i, row in enumerate(rows["cleveland"]):
        row[7] = "150" if i in train else "70"
    write(folder / "processed.cleveland.data", rows["cleveland"])
    assert not load_heart_disease(data_dir=folder, verify=False).sites[0].X_test[:, 5].any()


def test_pooled_hospitals_have_the_same_numbers_and_a_site_column(heart):
    parts = load_heart_disease(data_dir=heart[0], verify=False)
    pooled = parts.pooled()
    assert isinstance(pooled, Dataset)
    np.testing.assert_array_equal(pooled.X, np.concatenate([part.X for part in parts.sites]))
    for part, rows in zip(parts.sites, (pooled.site == name for name in HOSPITALS), strict=True):
        np.testing.assert_array_equal(pooled.X[rows], part.X)
        np.testing.assert_array_equal(pooled.y[rows], part.y)
    assert len(partition.by_column(pooled.site)) == 4


def test_the_seed_decides_which_rows_are_for_training(heart, credit):
    def heart_rows(seed):
        return load_heart_disease(seed=seed, data_dir=heart[0], verify=False).pooled().X

    def credit_rows(seed):
        return load_credit_approval(seed=seed, data_dir=credit[0], verify=False).X

    for rows in (heart_rows, credit_rows):
        np.testing.assert_array_equal(rows(1), rows(1))
        assert not np.array_equal(rows(1), rows(2))


# Credit approval ------------------------------------------------------------------------------


def test_credit_approval_is_the_recipe(credit):
    folder, rows = credit
    data = load_credit_approval(data_dir=folder, verify=False, seed=1)
    kept = [row for row in rows if "?" not in row]
    n = int(0.8 * len(kept))
    order = np.random.default_rng(1).permutation(len(kept))
    train, test = np.sort(order[:n]), np.sort(order[n:])
    assert (data.X.shape, data.X_test.shape) == ((n, 37), (len(kept) - n, 37))
    numbers = np.array([[float(row[j]) for j in (1, 2, 7, 10, 13, 14)] for row in kept])
    scaled = (numbers - numbers[train].mean(axis=0)) / numbers[train].std(axis=0)
    np.testing.assert_allclose(data.X[:, :6], scaled[train])
    np.testing.assert_allclose(data.X_test[:, :6], scaled[test])
    for j, name in enumerate(data.feature_names[6:], start=6):
        attribute, _, level = name.partition("=")
        column = int(attribute[1:]) - 1
        np.testing.assert_array_equal(data.X[:, j], [float(kept[i][column] == level) for i in train])
    np.testing.assert_array_equal(data.y_test, [int(kept[i][-1] == "+") for i in test])
    assert data.name == "credit approval"


@pytest.mark.parametrize(
    ("name", "header", "end"), [("crx.csv", True, "\n"), ("crx.data", False, "\n"), ("crx.data", True, "\r\n")]
)
def test_header_name_and_line_ends_do_not_matter(credit, monkeypatch, name, header, end):
    folder, rows = credit
    expected = load_credit_approval(data_dir=folder, verify=False)
    sha256 = hashlib.sha256("".join(",".join(row) + "\n" for row in rows).encode()).hexdigest()
    monkeypatch.setattr(tables, "CREDIT_SHA256", sha256)
    (folder / "crx.data").unlink()
    titles = [f"a{i}" for i in range(1, 16)]  # the label has no name
    write(folder / name, [*([titles] if header else []), *rows], end=end)
    np.testing.assert_array_equal(load_credit_approval(data_dir=folder).X, expected.X)


# Checks of the files --------------------------------------------------------------------------


@pytest.mark.parametrize("load", [load_heart_disease, load_credit_approval])
def test_a_table_with_another_sum_is_an_error_and_stays(heart, credit, load):
    before = {path.name: path.read_bytes() for path in heart[0].glob("*.data")}
    with pytest.raises(ValueError, match=r"SHA-256 .* verify=False"):
        load(data_dir=heart[0])
    assert {path.name: path.read_bytes() for path in heart[0].glob("*.data")} == before


def test_wrong_arguments_are_named(heart, credit):
    def load(loader, folder, name, bad):
        loader(**{"data_dir": folder, "verify": False, name: bad})

    wrong = [(load_heart_disease, heart[0], "seed", bad) for bad in (-1, None)]
    wrong += [(load_credit_approval, credit[0], "train", bad) for bad in (0, 2.5, 38)]
    wrong += [(load_credit_approval, credit[0], "seed", 0.5)]
    assert_refused((lambda each=each: load(*each), each[2]) for each in wrong)
    for loader, folder in ((load_heart_disease, 3), (load_credit_approval, b"x")):
        with pytest.raises(TypeError, match=r"^data_dir must"):
            loader(data_dir=folder)


def with_cell(rows, column, text):
    """A copy of a table with another cell in its fourth row."""
    return [[*row[:column], text, *row[column + 1 :]] if i == 3 else row for i, row in enumerate(rows)]


def test_a_heart_table_in_another_layout(heart):
    folder, rows = heart[0], heart[1]["cleveland"]
    changes = [
        ([], "one row"),
        (rows[:1], "2 rows without a missing value"),
        ([row[:10] + row[13:] for row in rows], "row 0"),
        ([*rows, ["1", "2"]], "row 30"),
        (with_cell(rows, 0, "old"), "numbers: .*'old'"),
        (with_cell(rows, 0, ""), "numbers"),
        (with_cell(rows, 0, "nan"), "finite numbers"),
        (with_cell(rows, 2, "5"), "one of .*, got 5"),
        (with_cell(rows, 6, "0.5"), r"one of .*, got 0\.5"),
        (with_cell(rows, 13, "yes"), "numbers"),
    ]
    for changed, words in changes:
        write(folder / "processed.cleveland.data", changed)
        with pytest.raises(ValueError, match=rf"processed\.cleveland\.data .*{words}"):
            load_heart_disease(data_dir=folder, verify=False)


def test_a_credit_table_in_another_layout(credit):
    folder, rows = credit
    changes = [
        ([], "one row"),
        ([["?", *row[1:]] for row in rows], "2 rows without a missing value"),
        ([row[:-1] for row in rows], "16 columns"),
        (with_cell(rows, 1, "x"), "column 1"),
        (with_cell(rows, 0, "c"), "a1"),
        (with_cell(rows, 15, "1"), "label"),
    ]
    for changed, words in changes:
        write(folder / "crx.data", changed)
        with pytest.raises(ValueError, match=words):
            load_credit_approval(data_dir=folder, verify=False)
    for content in (b"\xff\xfe\x00", "ü,1\n".encode()):
        (folder / "crx.data").write_bytes(content)
        with pytest.raises(ValueError, match="plain text"):
            load_credit_approval(data_dir=folder)


# Where the files come from --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("load", "wanted"),
    [(load_heart_disease, "processed.cleveland.data"), (load_credit_approval, "crx.csv or crx.data")],
)
def test_offline_names_file_folder_and_variable(cache, tmp_path, load, wanted):
    with pytest.raises(DataUnavailableError) as caught:
        load(data_dir=tmp_path / "first")
    for part in (wanted, str(tmp_path / "first"), str(cache), "BAYESADMM_DATA", "archive.ics.uci.edu", "no route"):
        assert part in str(caught.value)


def test_the_heart_tables_are_downloaded_to_the_cache_with_their_sums(downloads):
    rows = heart_rows()
    calls = downloads(lambda path: write(path, rows[path.name.split(".")[1]]))
    load_heart_disease(verify=False)
    archive = "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/processed"
    expected = [(f"{archive}.{name}.data", f"sha256:{tables.HEART[name].sha256}") for name in HOSPITALS]
    assert [call[:2] for call in calls] == expected


def test_a_cached_heart_table_with_another_sum_is_refused_even_unverified(cache):
    cache.mkdir()
    write(cache / "processed.cleveland.data", heart_rows()["cleveland"])
    with pytest.raises(DataUnavailableError, match=r"cached file .*cleveland\.data has SHA-256"):
        load_heart_disease(verify=False)


def test_a_downloaded_credit_table_is_checked_by_the_sum_of_its_rows(credit, downloads):
    """The sum of the archive's own bytes is not known: the download is not checked, its rows are."""
    calls = downloads(lambda path: write(path, credit[1]))
    with pytest.raises(ValueError, match="SHA-256"):
        load_credit_approval()
    assert [call[:2] for call in calls] == [(tables.CREDIT.url, None)]
    assert load_credit_approval(verify=False).X.shape[1] == 37  # from the cache, without another call
    assert len(calls) == 1


# The real tables ------------------------------------------------------------------------------


def test_the_real_heart_disease(real_folder):
    """The sizes are those of FLamby; its verified sums say that the files are the known ones."""
    data = load_heart_disease(data_dir=real_folder("processed.cleveland.data"))
    assert [len(part.X) for part in data.sites] == [199, 172, 30, 85]
    assert [len(part.X_test) for part in data.sites] == [104, 89, 16, 45]
    assert data.pooled().X.shape == (486, 13)
    labels = np.array([np.bincount(np.append(part.y, part.y_test), minlength=2) for part in data.sites])
    assert labels.tolist() == [[164, 139], [163, 98], [1, 45], [29, 101]]
    assert [np.flatnonzero(~part.X.any(axis=0)).tolist() for part in data.sites] == [[], [], [3], []]
    one_class = load_heart_disease(seed=1, data_dir=real_folder("processed.cleveland.data")).sites[2]
    assert set(one_class.y) == {1}


def test_the_real_credit_approval(real_folder):
    data = load_credit_approval(data_dir=real_folder("crx.csv", "crx.data"))
    assert (data.X.shape, data.X_test.shape) == ((522, 37), (131, 37))
    assert data.y.sum() + data.y_test.sum() == 296
    parts = partition.small_large(data.y, 10, np.random.default_rng(0))
    assert {len(part) for part in parts} == {36, 37, 68}
