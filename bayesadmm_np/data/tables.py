"""Loaders of two tables of the UCI Machine Learning Repository, offline first."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._validation import Array, as_count
from .dataset import Dataset, FederatedDataset
from .files import Download, PathLike, fetch, find

ARCHIVE = "https://archive.ics.uci.edu/ml/machine-learning-databases/"

HEART = {
    hospital: Download(f"processed.{hospital}.data", f"{ARCHIVE}heart-disease/processed.{hospital}.data", sha256)
    for hospital, sha256 in (
        ("cleveland", "bb4252811d4b51ddeba725b47e1c476e77ba21ea1b9e4d06f022166fb9e2e555"),
        ("hungarian", "1779eccd017b4c03c5c9df161b99cc7e059940dd38168ea202209a49b7072d04"),
        ("switzerland", "9e2a578a46363f412741c11cf97b54aa5675cfdab7b5b19c6f7452414f4ca1bf"),
        ("va", "eb477d882bad73cbe605f8aef4350d8128cde20b3c931f1d5a5d2e0635a4f50b"),
    )
}
HEART_WIDTH = 14
HEART_NUMERIC = {"age": 0, "sex": 1, "trestbps": 3, "chol": 4, "fbs": 5, "thalach": 7, "exang": 8, "oldpeak": 9}
HEART_LEVELS = {"cp": (2, (1, 2, 3, 4)), "restecg": (6, (0, 1, 2))}
HEART_LABEL = 13
HEART_TRAIN = 0.66

CREDIT_NAMES = ("crx.csv", "crx.data")
CREDIT = Download("crx.data", f"{ARCHIVE}credit-screening/crx.data", None)
CREDIT_SHA256 = "fff49bc186cbddb3ace7371d40d9fbbb3af4f126019c13ff3f562249b1454f4d"
CREDIT_WIDTH = 16
CREDIT_NUMERIC = {"a2": 1, "a3": 2, "a8": 7, "a11": 10, "a14": 13, "a15": 14}
CREDIT_LEVELS = {
    "a1": (0, ("a", "b")),
    "a4": (3, ("u", "y", "l")),
    "a5": (4, ("g", "p", "gg")),
    "a6": (5, ("c", "d", "cc", "i", "j", "k", "m", "r", "q", "w", "x", "e", "aa", "ff")),
    "a7": (6, ("v", "h", "bb", "j", "n", "z", "dd", "ff", "o")),
    "a9": (8, ("f", "t")),
    "a10": (9, ("f", "t")),
    "a12": (11, ("f", "t")),
    "a13": (12, ("g", "p", "s")),
}
CREDIT_TRAIN = 0.8


def load_heart_disease(*, seed: int = 0, data_dir: PathLike | None = None, verify: bool = True) -> FederatedDataset:
    r"""Load the heart disease data of four hospitals, prepared as in FLamby.

    The columns slope, ca and thal are dropped, then every row that lacks a value. Chest pain (cp) and resting ECG
    (restecg) become indicators of every level but the first: thirteen features. The label is 1 where the last column is
    > 0. At each hospital a random :math:`\lfloor 0.66\, N \rfloor` of its rows are for training, 486 in all. Both parts
    are standardised by mean and standard deviation (divisor n) of the hospital's own training rows. A column that is
    constant there becomes zero.

    Parameters
    ----------
    seed : int, default 0
        Seed of the draw of training rows. The sizes are FLamby's; its own random split differs.
    data_dir : path-like, optional
        Directory to search before that of ``BAYESADMM_DATA``; else the tables are downloaded, once, to a cache.
    verify : bool, default True
        Require the known SHA-256 sum of each table. False reads your own tables of this layout: no header, ``?`` for a
        missing value.

    Returns
    -------
    FederatedDataset
        Four sites, with rows in the order of the files and without a column of ones.

    Raises
    ------
    ValueError
        When `seed` is not a count, or a file is not as described, or has another sum.
    TypeError, DataUnavailableError
        As `load_mnist`.

    Notes
    -----
    Janosi, Steinbrunn, Pfisterer and Detrano (1989), https://doi.org/10.24432/C52P4X, CC BY 4.0. The recipe is that of
    du Terrail et al. (2022), FLamby, as used by Swaroop et al. (2025), App. E.3.

    Examples
    --------
    >>> load_heart_disease()  # doctest: +SKIP
    FederatedDataset('heart disease', sites={'cleveland': 199, 'hungarian': 172, 'switzerland': 30, 'va': 85})
    """
    rng = np.random.default_rng(as_count(seed, "seed", minimum=0))
    sites = []
    for hospital, download in HEART.items():
        path = find(data_dir, download.name) or fetch(download, download.name, data_dir)
        rows = _read_table(path, HEART_WIDTH, download.sha256 if verify else None)
        used = [*HEART_NUMERIC.values(), *(column for column, _ in HEART_LEVELS.values()), HEART_LABEL]
        rows = _complete(rows, used, path, at_least=2)
        X, names = _features(rows, HEART_NUMERIC, HEART_LEVELS, path)
        y = (_numbers(rows, HEART_LABEL, path) > 0).astype(np.int64)
        train, test = _split(len(y), math.floor(HEART_TRAIN * len(y)), rng)
        X = _standardised(X, train, range(X.shape[1]))
        sites.append(
            Dataset(
                X=X[train],
                y=y[train],
                X_test=X[test],
                y_test=y[test],
                n_classes=2,
                name=hospital,
                feature_names=names,
            )
        )
    return FederatedDataset(tuple(sites), "heart disease")


def load_credit_approval(
    train: int | None = None, *, seed: int = 0, data_dir: PathLike | None = None, verify: bool = True
) -> Dataset:
    r"""Load the credit approval data, complete rows only.

    Of 690 applications the 653 without a missing value are kept. The six numbers are standardised by mean and standard
    deviation (divisor n) of the training rows; the nine categories become indicators of every level but the first: 37
    features. Swaroop et al. (2025), App. E.2, say only "520 training points (with 45% positive labels)"; preparation
    and split are this library's choice.

    Parameters
    ----------
    train : int, optional
        Number of rows for training; default :math:`\lfloor 0.8\, n \rfloor` = 522. The others are the test set.
    seed : int, default 0
        Seed of the draw of training rows.
    data_dir : path-like, optional
        Directory to search before that of ``BAYESADMM_DATA``, for ``crx.csv`` or ``crx.data``, with or without a
        header; else ``crx.data`` is downloaded, once, to a cache.
    verify : bool, default True
        Require the known SHA-256 sum of the rows. False reads your own table of this layout: sixteen columns, ``?`` for
        a missing value, ``+`` or ``-`` at the end.

    Returns
    -------
    Dataset
        Rows in the order of the file, without a column of ones.

    Raises
    ------
    ValueError
        When `train` or `seed` is not as above, or the file is not as described, or has another sum.
    TypeError, DataUnavailableError
        As `load_mnist`.

    Notes
    -----
    Quinlan (1987), https://doi.org/10.24432/C5FS30, CC BY 4.0. The sum is that of the 690 rows, each ending in a line
    feed; the sum of the archive's own file is not known.

    Examples
    --------
    >>> load_credit_approval()  # doctest: +SKIP
    Dataset('credit approval', X=(522, 37), X_test=(131, 37), n_classes=2)
    """
    rng = np.random.default_rng(as_count(seed, "seed", minimum=0))
    if train is not None:
        train = as_count(train, "train")
    path = find(data_dir, *CREDIT_NAMES) or fetch(CREDIT, " or ".join(CREDIT_NAMES), data_dir)
    rows = _read_table(path, CREDIT_WIDTH, CREDIT_SHA256 if verify else None)
    rows = _complete(rows, range(CREDIT_WIDTH), path, at_least=2)
    if train is not None and train >= len(rows):
        raise ValueError(f"train must be less than {len(rows)}, the complete rows in {path}, got {train}.")
    X, names = _features(rows, CREDIT_NUMERIC, CREDIT_LEVELS, path)
    train_rows, test_rows = _split(len(X), train or math.floor(CREDIT_TRAIN * len(X)), rng)
    X = _standardised(X, train_rows, range(len(CREDIT_NUMERIC)))
    y = _codes(rows[:, CREDIT_WIDTH - 1], ("-", "+"), "the label", path)
    return Dataset(
        X=X[train_rows],
        y=y[train_rows],
        X_test=X[test_rows],
        y_test=y[test_rows],
        n_classes=2,
        name="credit approval",
        feature_names=names,
    )


def _read_table(path: Path, width: int, sha256: str | None) -> NDArray[np.str_]:
    """Return the cells, without the header if there is one, and check the sum of the rows if it is given."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="ascii").splitlines()]
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be a table in plain text: {error}.") from error
    lines = [line for line in lines if line]
    # The header that some copies of crx.data have.
    if lines and lines[0].lower().startswith("a1,a2,"):
        del lines[0]
    if sha256 is not None:
        found = hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()
        if found != sha256:
            raise ValueError(
                f"the rows of {path} have SHA-256 {found} where {sha256} was expected: the file is damaged or another "
                "one. Replace it, or pass verify=False to read a table of your own."
            )
    if not lines:
        raise ValueError(f"{path} must have at least one row, got none.")
    cells = [[cell.strip() for cell in line.split(",")] for line in lines]
    for number, row in enumerate(cells):
        if len(row) != width:
            raise ValueError(f"{path} must have {width} columns, got {len(row)} in row {number}.")
    return np.array(cells)


def _complete(rows: NDArray[np.str_], used: Sequence[int], path: Path, at_least: int) -> NDArray[np.str_]:
    """Keep the rows that have a value in each column that is used."""
    complete = rows[~(rows[:, list(used)] == "?").any(axis=1)]
    if len(complete) < at_least:
        raise ValueError(f"{path} must have at least {at_least} rows without a missing value, got {len(complete)}.")
    return complete


def _features(
    rows: NDArray[np.str_],
    numeric: dict[str, int],
    levels: dict[str, tuple[int, tuple[Any, ...]]],
    path: Path,
) -> tuple[Array, tuple[str, ...]]:
    """Return the numbers, then an indicator of each level but the first, and the names of these columns."""
    columns = [_numbers(rows, column, path) for column in numeric.values()]
    names = list(numeric)
    for name, (column, allowed) in levels.items():
        cells = _numbers(rows, column, path) if isinstance(allowed[0], int) else rows[:, column]
        code = _codes(cells, allowed, name, path)
        columns += [(code == level).astype(np.float64) for level in range(1, len(allowed))]
        names += [f"{name}={level}" for level in allowed[1:]]
    return np.column_stack(columns), tuple(names)


def _numbers(rows: NDArray[np.str_], column: int, path: Path) -> Array:
    try:
        values = rows[:, column].astype(np.float64)
    except ValueError as error:
        raise ValueError(f"column {column} of {path} must hold numbers: {error}.") from error
    if not np.isfinite(values).all():
        raise ValueError(f"column {column} of {path} must hold finite numbers.")
    return values


def _codes(cells: NDArray[Any], allowed: tuple[Any, ...], name: str, path: Path) -> NDArray[np.int64]:
    """Return the index of each cell in the list of allowed values."""
    matches = cells[:, None] == np.array(allowed)
    unknown = cells[~matches.any(axis=1)]
    if len(unknown):
        raise ValueError(f"{name} in {path} must be one of {allowed}, got {unknown[0]}.")
    return matches.argmax(axis=1)


def _split(n: int, train: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    order = rng.permutation(n)
    return np.sort(order[:train]), np.sort(order[train:])


def _standardised(X: Array, train: NDArray[np.int64], columns: Sequence[int]) -> Array:
    """Centre and scale columns by their training rows; a column that is constant there becomes zero."""
    standardised = X.copy()
    for j in columns:
        values = X[train, j]
        scale = 0.0 if values.min() == values.max() else values.std()
        standardised[:, j] = (X[:, j] - values.mean()) / scale if scale else 0.0
    return standardised
