"""Reading CSV files into sites, features and target; every refusal names the file, the column and what to do."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .._validation import Array
from ..design.rows import is_nameless
from ._options import ColumnSettings, DataSettings, FileSettings
from ._terminal import Refused, missing_name, note, worded_for_options

if TYPE_CHECKING:
    from ..design.agreement import Agreement
    from ..estimators.fitted import FittedGLM

SEPARATED = "if it is separated otherwise, say so by --separator ';' or tab"
TABS = ("tab", "\\t")


@dataclass(frozen=True)
class Rows:
    """The rows of all sites, in the order of the files; of rows to be predicted names, matrix and offset alone.

    The matrix, shape (n, p), holds features as they are, or what the agreement of a formula made of the table. All
    weights are > 0, and the offset includes the logarithm of the exposure. `site_dropped` counts rows left out by site.
    Clusters are within their site.
    """

    names: tuple[str, ...]
    matrix: Array
    target: Any = None
    weights: Array | None = None
    site: Any = None
    offset: Array | None = None
    agreement: Agreement | None = None
    site_dropped: Mapping[str, int] = field(default_factory=dict)
    cluster: Any = None

    @property
    def clusters(self) -> dict[str, list[Any]] | None:
        """Clusters of the rows of positive weight by site, with the site in their names."""
        if self.cluster is None:
            return None
        found: dict[str, list[Any]] = {}
        weights = np.ones(len(self.site)) if self.weights is None else self.weights
        for site, label, weight in zip(self.site.astype(str), self.cluster, weights, strict=True):
            if weight > 0:
                found.setdefault(site, []).append(f"{label} at {site}")
        seen = Counter(label for site in dict.fromkeys(self.site) for label in set(self.cluster[self.site == site]))
        shared = [str(label) for label, count in seen.items() if count > 1]
        if shared:
            note(f"clusters lie within sites: {shared[0]!r} at two sites is two clusters.")
        return found

    @property
    def dropped(self) -> int:
        """Rows left out because a value was missing."""
        return sum(self.site_dropped.values())


def read_frame(path: Path, written: FileSettings, labels: Collection[str | None] = ()) -> Any:
    """Read one CSV file with a header as a pandas data frame; columns of labels stay as they are written.

    As numbers 010 and 10 would be one level, or two, depending on what else the file holds. Where all labels of a
    column are numbers they are `Numeral`. A column without a name has that of pandas, Unnamed: 0.
    """
    import pandas as pd

    path, separator = named_file(path)[1], "\t" if written.separator in TABS else written.separator
    for option, mark in (("--separator", separator), ("--decimal", written.decimal)):
        if len(mark) != 1:
            raise Refused(f"{option}: {mark!r} is not one character{' (write tab for a tab)' * (mark == separator)}.")
    if separator == written.decimal:
        raise Refused(f"--decimal: {separator!r} is the character between cells; --separator names another.")
    how: dict[str, Any] = {"sep": separator, "encoding": written.encoding}
    try:
        header = pd.read_csv(path, header=None, nrows=1, dtype=str, keep_default_na=False, **how)
        names = [str(name) or f"Unnamed: {k}" for k, name in enumerate(header.iloc[0])]
        texts = [name for name in dict.fromkeys(names) if name in labels]
        how |= {"na_values": list(written.na), "decimal": written.decimal, "dtype": dict.fromkeys(texts, str)}
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # a row longer than the header
            frame = pd.read_csv(path, low_memory=False, index_col=False, **how)
            words = frame.select_dtypes(exclude=["number", "bool"])
            blank = {cell for name in words for cell in words[name] if isinstance(cell, str) and not cell.strip()}
            if blank:  # a cell that is blank has no value, and makes no text of a column of numbers
                how["na_values"] += sorted(blank)
                frame = pd.read_csv(path, low_memory=False, index_col=False, **how)
    except pd.errors.EmptyDataError as error:
        raise Refused(f"{path} is empty: a table with a header line was expected.") from error
    except pd.errors.ParserError as error:
        raise Refused(f"{path} is not a table: {' '.join(str(error).split())}") from error
    except pd.errors.ParserWarning as error:
        fact = f"{path} is not a table: a row has more cells than the header"
        raise Refused(f"{fact}; {SEPARATED}.") from error
    except UnicodeDecodeError as error:
        raise Refused(f"{path} is not text in {written.encoding}; name its --encoding, such as cp1252.") from error
    except LookupError as error:
        raise Refused(f"--encoding: there is no encoding {written.encoding!r}.") from error
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise Refused(f"{path} has the column {repeated[0]!r} {names.count(repeated[0])} times; rename one of them.")
    if frame.empty:
        raise Refused(f"{path} has a header but no rows.")
    if len(names) == 1 and any(mark in names[0] for mark in ",;\t|"):
        raise Refused(f"{path} has one column {names[0]!r}; {SEPARATED}.")
    frame.columns = names
    for name in texts:
        frame[name] = _numerals(frame[name], written.decimal)
    return frame


def _numerals(column: Any, decimal: str) -> Any:
    """Return a column of labels, as `Numeral` where all of them are numbers."""
    from ..design.levels import DECIMAL, Numeral

    cells = {text: text.strip().replace(decimal, ".") for text in column.dropna().unique()}
    if not all(map(DECIMAL.fullmatch, cells.values())):
        return column
    numerals = {text: Numeral(cell) for text, cell in cells.items()}
    return column.astype(object).map(numerals, na_action="ignore")


def require_column(option: str, name: str, columns: Collection[str], path: Path) -> None:
    """Refuse a name that is no column, and suggest the nearest."""
    if name not in columns:
        raise Refused(f"{option}: {missing_name(f'{path} has no column', name, columns)}")


def read_rows(paths: Sequence[Path], settings: DataSettings) -> Rows:
    """Read one file with a site column, or one file a site (its name without the ending is the site's)."""
    frame, site = stack(paths, settings.client, settings)
    taken, chosen = _taken_and_chosen(frame.columns, settings, paths[0])
    cluster = getattr(settings, "cluster", None)
    needed = [*(name for name in taken if name not in (cluster, settings.client)), *chosen]
    frame, site, lost = _without_missing(frame, site, needed, settings.dropna)
    weights = None
    if weights_of(settings) is not None:
        weights = _weights(frame[weights_of(settings)], site)
        # a row of weight zero is no row, and a site without rows is no site
        frame, site, weights = frame[weights > 0], site[weights > 0], weights[weights > 0]
    return Rows(
        tuple(chosen),
        _matrix(frame, chosen),
        _target(frame[settings.target]),
        weights,
        site,
        read_offset(frame, settings.offset, settings.exposure),
        site_dropped=lost,
        cluster=None if cluster is None else read_clusters(frame[cluster], cluster),
    )


def weights_of(settings: ColumnSettings) -> str | None:
    """Return the column of weights, which are the trials where there are some."""
    return getattr(settings, "trials", None) or settings.weights


def read_clusters(labels: Any, name: str) -> Any:
    """Return the clusters of rows, which every row must have."""
    from ..design.levels import is_missing

    missing = int(is_missing(labels).sum())
    if missing:
        raise Refused(f"--cluster: column {name!r} names no cluster in {missing} row(s); fill it in.")
    return np.asarray(labels, dtype=object)


def choose_columns(columns: Collection[str], settings: ColumnSettings, path: Path) -> list[str]:
    """Return the predictors of a file, in order."""
    return _taken_and_chosen(columns, settings, path)[1]


def _taken_and_chosen(
    columns: Collection[str], settings: ColumnSettings, path: Path
) -> tuple[dict[str, str], list[str]]:
    """Return the options by the columns that they name, and the predictors."""
    taken: dict[str, str] = {}
    for known in ("target", "client", "weights", "trials", "cluster", "offset", "exposure"):
        option, name = f"--{known}", getattr(settings, known, None)
        if name is None:
            continue
        require_column(option, name, columns, path)
        if name in taken:
            raise Refused(f"{option}: {name!r} is the column of {taken[name]} already.")
        taken[name] = option
    return taken, _features(columns, settings, taken, path)


def _features(columns: Collection[str], settings: ColumnSettings, taken: Mapping[str, str], path: Path) -> list[str]:
    named = {"--features": settings.features or (), "--drop": settings.drop, "--categorical": settings.categorical}
    for option, names in named.items():
        for name in names:
            require_column(option, name, columns, path)
            if names.count(name) > 1:
                raise Refused(f"{option}: {name!r} is named twice.")
            if option != "--drop" and name in taken:
                raise Refused(f"{option}: {name!r} is the column of {taken[name]}.")
    candidates = settings.features or [name for name in columns if name not in taken]
    chosen = [name for name in candidates if name not in settings.drop]
    nameless = next((name for name in chosen if is_nameless(name)), None)
    if nameless is not None and not settings.features:
        fact = f"{path} has a column without a name, {nameless!r}, as DataFrame.to_csv() writes row numbers"
        raise Refused(f"{fact}; write the file with index=False, or leave the column out with --drop '{nameless}'.")
    if not chosen:
        raise Refused(f"{path} leaves no feature: its columns are {', '.join(columns)}.")
    for name in settings.categorical:
        if name not in chosen:
            raise Refused(f"--categorical: {name!r} is not among the features.")
    return chosen


def named_file(path: Path) -> tuple[str, Path]:
    """Return the site of a file, and the file: of NAME=FILE.csv, or of a file that is called as the site."""
    name, mark, file = str(path).partition("=")
    return (name, Path(file)) if mark and not path.exists() else (path.stem, path)


def read_sites(
    paths: Sequence[Path], client: str | None, written: FileSettings, labels: Collection[str] = ()
) -> dict[str, Any]:
    """Return a frame for each file, by the file's name; one file alone may have a column of sites."""
    if client is not None and len(paths) > 1:
        raise Refused("--client is for one file with a column of sites; with several files each file is a site.")
    names = [named_file(path)[0] for path in paths]
    for name in names:
        if names.count(name) > 1:
            raise Refused(
                f"two files are called {name!r}: a site's name is its file's name; write NAME=FILE.csv for one."
            )
    frames = {name: read_frame(path, written, (client, *labels)) for name, path in zip(names, paths, strict=True)}
    if client is not None:
        require_column("--client", client, frames[names[0]].columns, paths[0])
    return frames


def stack(paths: Sequence[Path], client: str | None, written: FileSettings) -> tuple[Any, Any]:
    """Return the rows of all files and the site of each."""
    import pandas as pd

    named = read_sites(paths, client, written)
    frames = list(named.values())
    if client is not None:
        return frames[0], _labels(frames[0][client])
    expected = set(frames[0].columns)
    for path, frame in zip(paths[1:], frames[1:], strict=True):
        if set(frame.columns) != expected:
            lacking = sorted(expected - set(frame.columns))
            extra = sorted(set(frame.columns) - expected)
            says = [f"lacks {', '.join(lacking)}"] * bool(lacking) + [f"also has {', '.join(extra)}"] * bool(extra)
            raise Refused(f"{path} and {paths[0]} have different columns: the first {' and '.join(says)}.")
    site = np.repeat(np.array([*named], dtype=object), [len(frame) for frame in frames])
    if len(frames) == 1:
        return frames[0], site
    return pd.concat([frame[frames[0].columns] for frame in frames], ignore_index=True), site


def _without_missing(frame: Any, site: Any, names: list[str], dropna: bool) -> tuple[Any, Any, dict[str, int]]:
    gone = frame[names].isna()
    of_site = gone.groupby(site.astype(str), sort=False).sum()
    listed = require_complete(of_site.to_dict("index"), dropna)
    if not listed:
        return frame, site, {}
    keep = ~gone.any(axis=1).to_numpy()
    kept = _kept(frame, keep, f"dropped because of missing values in {listed}")
    empty = sorted(set(site.astype(str)) - set(site[keep].astype(str)))
    if empty:
        raise Refused(f"no row is complete at {', '.join(empty)}; leave out a column with --drop.")
    return kept, site[keep], dict(Counter(site[~keep].astype(str)))


def rows_to_predict(
    model: FittedGLM, path: Path, drop: Sequence[str], dropna: bool, written: FileSettings
) -> tuple[Rows, list[int]]:
    """Return the rows that a model predicts, and their numbers in the file, from 1."""
    from ..design.agreement import design

    agreement = model.columns.agreement
    used = model.columns.names if agreement is None else agreement.parsed.predictors
    needed = [*used, *filter(None, (model.offset, model.exposure))]
    frame = read_frame(path, written, () if agreement is None else agreement.factors)
    for name in drop:
        require_column("--drop", name, frame.columns, path)
    expected = {*needed, *drop, model.client, *((model.target,) if agreement is None else agreement.columns)}
    ignored = [name for name in frame.columns if name.strip() not in expected]
    if ignored:
        note(f"the model does not know the column(s) {', '.join(ignored)}: ignored.")
    keep = np.ones(len(frame), dtype=bool)
    if dropna:
        keep = ~frame[[name for name in frame.columns if name.strip() in needed]].isna().any(axis=1).to_numpy()
        frame = _kept(frame, keep, "left out because of missing values")
    places = [int(i) + 1 for i in keep.nonzero()[0]]
    if agreement is not None:
        with worded_for_options():
            made = design(frame, agreement, for_prediction=True)
        return Rows(agreement.names, made.matrix, offset=made.offset, agreement=agreement), places
    lacking = [name for name in needed if name not in frame.columns]
    if lacking:
        raise Refused(f"{path} lacks the column(s) {', '.join(lacking)}, with which the model was fitted.")
    listed = _missing(frame[needed].isna().sum())
    if listed:
        raise Refused(f"missing values in {listed}: these rows cannot be predicted, and --dropna leaves them out.")
    known = read_offset(frame, model.offset, model.exposure)
    return Rows(model.columns.names, _matrix(frame, model.columns.names), offset=known), places


def require_complete(sites: Mapping[str, Mapping[str, int]], dropna: bool) -> str:
    """Refuse missing values that are not to be dropped; return how many all sites have of each column."""
    total: Counter[str] = Counter()
    for counts in sites.values():
        total.update(counts)
    listed = _missing(total)
    if listed and not dropna:
        raise Refused(f"missing values in {listed}: fill them in, or leave --no-dropna out.")
    return listed


def _missing(counts: Any) -> str:
    """List how many values of each column are missing."""
    return ", ".join(f"{name} ({count})" for name, count in counts.items() if count)


def _kept(frame: Any, keep: Any, why: str) -> Any:
    """Return the rows of a frame that are kept, and say how many are not."""
    if not keep.all():
        note(f"{int((~keep).sum())} of {len(frame)} rows {why}.")
    if not keep.any():
        raise Refused("no row is complete.")
    return frame[keep].infer_objects()


def _matrix(frame: Any, names: Sequence[str]) -> Array:
    """Return columns of numbers."""
    return np.column_stack([_numbers(frame[name]) for name in names])


def _numbers(column: Any) -> Array:
    """Refuse a feature that is not numeric and finite."""
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    from ..design.levels import require_readable, words_among

    if not is_numeric_dtype(column) and not is_bool_dtype(column):
        require_readable(column.name, column, column.notna().to_numpy(), "number")
        raise holds_text(column.name, words_among(column.astype(str)))
    values: Array = column.to_numpy(dtype=np.float64)
    if not np.isfinite(values).all():
        raise Refused(f"column {column.name!r} holds {int((~np.isfinite(values)).sum())} infinite value(s).")
    return values


def holds_text(name: str, words: Sequence[str]) -> Refused:
    """Return the refusal of a feature that is text, with what to do."""
    levels = f"make 0/1 columns of its levels with --categorical {name}, or leave it out with --drop {name}"
    return Refused(f"column {name!r} holds text ({', '.join(map(repr, words[:3]))}); {levels}.")


def read_offset(frame: Any, offset: str | None, exposure: str | None) -> Array | None:
    """Return the known part of each row's predictor: a column, plus the logarithm of another."""
    from ..design.rows import read_offset as known_part

    known, at_risk = (None if name is None else _numbers(frame[name]) for name in (offset, exposure))
    return known_part(known, at_risk, len(frame))


def _weights(column: Any, site: Any) -> Array:
    from ..design.agreement import check_weights
    from ..design.levels import TableError

    values = _numbers(column)
    for name in dict.fromkeys(site):
        try:
            check_weights(values[site == name], column.name)
        except TableError as error:
            raise Refused(f"--weights: site {str(name)!r}: {error}") from error
    return values


def _labels(column: Any) -> Any:
    """Return names of sites as they are written, but of a column of numbers 1.0 and 1 are one."""
    from ..design.levels import Numeral, number_name

    missing = int(column.isna().sum())
    if missing:
        raise Refused(f"--client: column {column.name!r} names no site in {missing} row(s); fill it in.")
    return np.array([number_name(cell) if isinstance(cell, Numeral) else cell for cell in column], dtype=object)


def _target(column: Any) -> Any:
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    if is_numeric_dtype(column) and not is_bool_dtype(column):
        return _numbers(column)
    return np.array([str(value) for value in column], dtype=object)
