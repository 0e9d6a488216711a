"""Rows by site, which a site keeps to itself, and the places of their columns in θ."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np

from .._errors import ArgumentError
from .._validation import Array, as_float_array

INTERCEPT = "(intercept)"
"""Name of the intercept among coefficients."""

WHOLE = "all"
"""Name of the only site when no labels are given."""


WEIGHTS = (1e-12, 1e12)
"""Range of the mean weight in which rows add up to an information that a run in double precision resolves."""


SMALLEST = 1e-70
"""Size of a column: squares of 1e-140 and sums of 1e140 leave room for products with weights and curvatures."""


@dataclass(frozen=True)
class SiteRows:
    """The rows of one site, all of positive weight: X (n, p), y (n,) or (n, C), weights (None for ones) and offset.

    `index` has the labels of the rows in the frame of pandas that they come from.
    """

    X: Array
    y: Any
    weights: Any
    offset: Array | None = None
    index: Any = None

    def align(self, labels: Any, what: str) -> Any:
        """Return one label a row: a Series of pandas by the index of the frame, anything else by position."""
        if self.index is None or not hasattr(labels, "reindex") or labels.index.equals(self.index):
            return labels
        if not labels.index.is_unique or not self.index.is_unique or not self.index.isin(labels.index).all():
            expected = "must have the index of the frame, each label once, to be aligned with its rows"
            raise ArgumentError(what, expected, "another index", "give .to_numpy() for an order by position")
        return labels.reindex(self.index)


def require_different(expected: str, names: Sequence[str]) -> None:
    """Refuse two columns or coefficients of one name."""
    if len(set(names)) < len(names):
        twice = next(name for j, name in enumerate(names) if name in names[:j])
        raise ArgumentError("X", expected, f"{twice!r} twice", "rename one of them")


def require_index(table: Any, name_of_table: str = "X", /, **given: Any) -> None:
    """Refuse a Series whose index is not that of a frame: by position its values would go to other rows."""
    index: Any = getattr(table, "index", None)
    for name, values in given.items():
        own = getattr(values, "index", None)
        if hasattr(index, "equals") and hasattr(own, "equals") and not index.equals(own):
            advice = f"give {name}.loc[{name_of_table}.index], or {name}.to_numpy() for an order by position"
            expected = f"must have the index of {name_of_table}, in its order"
            raise ArgumentError(name, expected, "another index or order", advice)


def read_events(y: Any, trials: Any, names: tuple[str, str] = ("y", "trials")) -> tuple[Array, Array]:
    """Return shares of events and numbers of trials, each (n,); y holds counts of events, or else shares.

    Counts are whole numbers from 0 to the trials, also where all are 0 or 1; shares times trials must be whole to 1e-6.
    """
    n, events = (as_float_array(values, name, ndim=1) for values, name in ((trials, names[1]), (y, names[0])))
    if n.shape != events.shape:
        raise ArgumentError(names[1], f"must hold one number a row, shape {events.shape}", n.shape)
    if (n < 0).any() or (n != np.rint(n)).any():
        wrong = n[(n < 0) | (n != np.rint(n))][0]
        raise ArgumentError(names[1], "must hold whole numbers of trials >= 0", f"{wrong:g}")
    wrong = (events < 0) | (events > n) | (events != np.rint(events))
    if wrong.any():
        whole = np.rint(events * n)
        if (events <= 1).all():
            wrong = (events < 0) | (np.abs(events * n - whole) > 1e-6)
        if wrong.any():
            expected = f"must hold counts of events, or shares of them, among the {names[1]} of each row"
            got = f"{events[wrong][0]:.6g} of {n[wrong][0]:g}"
            raise ArgumentError(names[0], expected, got, "counts are whole, and shares times the trials are, to 1e-6")
        events = whole
    return np.divide(events, n, out=np.zeros_like(n), where=n > 0), n


def read_client(client: Any, n_rows: int) -> list[Hashable]:
    """Return one label a row; None means one site."""
    if client is None:
        return [WHOLE] * n_rows
    # of a mapping one would read the keys, and a set has no order
    if isinstance(client, str | bytes | Mapping | Set) or not isinstance(client, Iterable):
        raise ValueError(f"client must hold one site label a row, got {client!r}.")
    labels = client.tolist() if isinstance(client, np.ndarray) else list(client)
    if len(labels) != n_rows:
        raise ValueError(f"client must hold one site label a row, {n_rows}, got {len(labels)}.")
    for i, label in enumerate(labels):
        if not isinstance(label, Hashable):
            raise ValueError(f"client must hold hashable labels, one a row, got {label!r} at [{i}].")
        # NaN and NaT differ from themselves, and pandas' NA has no truth value
        if label is None or type(label).__name__ == "NAType" or label != label:
            raise ValueError(f"client must name a site for every row, got {label!r} at [{i}].")
    return labels


def require_numbers(X: Any) -> None:
    """Refuse a matrix with a column of dates or of text, with missing or infinite values, by the column's name.

    That of a frame, or x0, x1, … as `fit` calls the columns of an array.
    """
    if np.ma.is_masked(X):
        raise ArgumentError(
            "X", "must have a value in every row", "masked cells", "drop these rows or impute the values"
        )
    if hasattr(X, "columns"):
        require_different("must have columns of different names", list(X.columns))
        columns = {name: np.asarray(X[name]) for name in X.columns}
    elif isinstance(X, np.ndarray) and X.ndim == 2 and (X.dtype.kind in "OUSmM" or not _is_finite(X)):
        columns = {f"x{j}": column for j, column in enumerate(X.T)}
    else:
        return
    for name, column in columns.items():
        if is_nameless(name):
            raise ArgumentError(
                "X", "must have a name for each column", repr(name), "it holds row numbers of a file: drop it"
            )
        _require_column(f"X: column {name!r}", column)


def is_nameless(name: object) -> bool:
    """Return whether a column has no name, or the one that pandas gives to such a column of a file."""
    return re.fullmatch(r"\s*|Unnamed: \d+", str(name)) is not None


def _is_finite(values: Array) -> bool:
    return values.dtype.kind != "f" or bool(np.isfinite(values).all())


def _require_column(what: str, column: Array) -> None:
    _require_values(what, column)
    if not _is_finite(column):
        raise ArgumentError(what, "must hold finite numbers", f"{int(np.isinf(column).sum())} infinite ones")
    word = _first_word(column)
    if word is not None:
        advice = "code it as numbers, one 0/1 column a level, or use a formula"
        raise ArgumentError(what, "must hold numbers", repr(str(word)), advice)


def _require_values(what: str, column: Array, kind: str = "numbers") -> None:
    """Refuse dates and missing values."""
    if column.dtype.kind in "mM" or (column.dtype.kind == "O" and any(isinstance(cell, date) for cell in column)):
        raise ArgumentError(what, f"must hold {kind}", "dates", "use the time since a day")
    missing = find_missing(column)
    if missing.any():
        gaps = f"NaN or nothing in {missing.sum()} of {missing.size} rows, the first of them row {missing.argmax()}"
        raise ArgumentError(what, "must have a value in every row", gaps, "drop these rows or impute the values")


def require_size(what: str, column: Array) -> None:
    """Refuse numbers whose squares no sum holds: the same in all front ends, whatever the kind."""
    size = float(np.abs(column).max(initial=0.0))
    if size and not SMALLEST <= size <= 1.0 / SMALLEST:
        expected = f"must have a largest value between {SMALLEST:g} and {1.0 / SMALLEST:g} in size, or zeros"
        raise ArgumentError(what, expected, f"{size:.3g}", "give it in another unit")


def _first_word(column: Array) -> Any:
    """Return the first cell that is text and no number; None where there is none."""
    if column.dtype.kind in "OUS":
        for cell in column:
            try:
                float(cell)
            except ValueError:
                return cell
            except TypeError:  # no text either: `fit` says what it must be
                continue
    return None


MANY = 20
"""Numbers in a target, and rows of each on average, up to which they may be classes."""


def read_target(y: Any, is_labels: bool) -> Any:
    """Return a target of which dates, missing labels and text in the place of numbers are refused.

    Numbers that a table keeps as objects become numbers.
    """
    column = np.asarray(y)
    texts = column.ravel() if column.dtype.kind in "OU" else ()
    if np.ma.is_masked(y) or any(isinstance(cell, str) and not cell.strip() for cell in texts):
        raise ArgumentError("y", "must have a value in every row", "masked or blank cells", "drop these rows")
    if column.ndim == 1 and column.dtype.kind == "f":
        _require_column("y", column)
        if is_labels and (column != np.floor(column)).any():
            got = f"numbers such as {column[column != np.floor(column)][0]:g}"
            advice = (
                "measurements are for FederatedLinearRegression, shares of events have trials=… (Unknown label type: "
            )
            advice += "continuous)"
            raise ArgumentError("y", "must hold class labels", got, advice)
    if is_labels and column.ndim == 1 and column.dtype.kind in "iuf":
        many = np.unique(column).size
        if many > MANY and column.size < MANY * many:
            got = f"{many} different numbers in {column.size} rows"
            advice = "measurements are for FederatedLinearRegression, counts for FederatedPoissonRegressor"
            raise ArgumentError("y", "must hold class labels", got, f"{advice}; write labels as text")
    if column.ndim != 1 or column.dtype.kind not in "OUSmM":
        return y
    _require_values("y", column, "class labels" if is_labels else "numbers")
    word = _first_word(column)
    if not is_labels and word is not None:
        raise ArgumentError("y", "must hold numbers", repr(str(word)), "classes are for a classifier")
    if column.dtype.kind != "O":
        return y
    kinds = {isinstance(cell, str) for cell in column}
    if len(kinds) > 1:
        one, other = (next(cell for cell in column if isinstance(cell, str) is is_text) for is_text in (True, False))
        expected = "must hold labels of one kind" if is_labels else "must hold numbers"
        raise ArgumentError("y", expected, f"{one!r} and {other!r}", "write them in one way")
    return y if kinds == {True} else np.array(column.tolist())


def find_missing(column: Array) -> Any:
    """Return whether each value is NaN, NaT, None or pandas' NA."""
    if column.dtype.kind in "biu":
        return np.zeros(column.size, dtype=bool)
    if column.dtype.kind == "f":
        return np.isnan(column)
    gone = (value is None or type(value).__name__ == "NAType" or value != value for value in column)
    return np.fromiter(gone, dtype=bool, count=column.size)


def read_offset(offset: Any, exposure: Any, n_rows: int) -> Array | None:
    """Return the known part of each row's predictor: the offset plus the logarithm of the exposure."""
    whole = None
    for name, given in (("offset", offset), ("exposure", exposure)):
        if given is None:
            continue
        values = as_float_array(given, name, ndim=1)
        if values.shape != (n_rows,):
            raise ArgumentError(name, f"must hold one number a row, shape ({n_rows},)", values.shape)
        if name == "exposure":
            if not (values > 0).all():
                raise ArgumentError(name, "must be > 0 in every row", f"{values.min():g}")
            values = np.log(values)
        whole = values if whole is None else whole + values
    return whole


def split_rows(
    X: Array, y: Any, weights: Array, labels: list[Hashable], offset: Array | None = None, index: Any = None
) -> dict[Hashable, SiteRows]:
    """Group rows by label, in order of their names; a row of weight zero is no row."""
    places: dict[Hashable, list[int]] = {}
    for i, label in enumerate(labels):
        if weights[i] > 0:
            places.setdefault(label, []).append(i)
    if not places:
        raise ValueError("sample_weight must be positive for at least one row.")
    without = next((name for name in labels if name not in places), None)
    if without is not None:
        got, advice = f"zeros at site {without!r}", "leave the rows of such a site out"
        raise ArgumentError("sample_weight", "must be positive in some row of each site", got, advice)
    require_weights(weights)
    return {
        name: SiteRows(
            X[own], y[own], weights[own], None if offset is None else offset[own], None if index is None else index[own]
        )
        for name, own in sorted(places.items(), key=lambda item: str(item[0]))
    }


def require_weights(weights: Array) -> None:
    """Refuse weights that add up to no information that a run resolves; some are positive."""
    with np.errstate(over="ignore"):
        mean = float(weights[weights > 0].mean())
    if not WEIGHTS[0] <= mean <= WEIGHTS[1]:
        expected = "must have a mean from {:g} to {:g} over its positive entries".format(*WEIGHTS)
        advice = "standard errors follow from the size of weights: multiply them by a number that is meant"
        raise ArgumentError("sample_weight", expected, f"{mean:g}", advice)
