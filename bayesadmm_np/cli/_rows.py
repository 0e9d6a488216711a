"""CSV files as tables of sites, and their rows by a formula, for which a list of columns stands too."""

from __future__ import annotations

import gzip
import re
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .._registry import nearest
from .._text import word
from .._validation import Array
from ..design.agreement import Agreement, Design, Table, design, needed_columns
from ..design.levels import (
    DECIMAL,
    NUMBER,
    AgreedColumn,
    Numeral,
    Unread,
    cells_of,
    fold,
    is_missing,
    require_readable,
    words_among,
)
from ..design.rows import is_nameless
from ..design.terms import formula_of_columns, parse, with_offset
from ..estimators.formula_fit import make_designs, split_table
from ._options import ColumnSettings, DataSettings, FileSettings, RowSettings, levels_of
from ._terminal import Refused, missing_name, note

if TYPE_CHECKING:
    from ..estimators.fitted import FittedGLM

SEPARATORS = ",;\t|"
"""Characters between cells that are looked for in a header, in this order."""
NAMED = re.compile(r'"?sep=(.)"?\s*', re.IGNORECASE)
"""Excel's first line, which says what separates the cells."""
TABS = ("tab", "\\t")
BOMS = ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))
BINARY = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0", b"\x1f\x8b", b"\xfd7zXZ", b"BZh")
"""First bytes of workbooks and archives."""
LONGEST_HEADER = 2**24
LEAST_WHOLE = 100.0
"""Whole numbers from here on, beside fractions of three digits, show that a mark is one of thousands."""


def _opening(path: Path, written: FileSettings) -> dict[str, Any]:
    """Return how pandas shall read a file, by its first bytes and lines: encoding, separator, lines to leave out."""
    opened: Any = gzip.open if path.suffix == ".gz" else open
    if path.is_dir():
        raise Refused(f"{path} is a folder; name the CSV file of the rows.")
    if path.exists() and not path.is_file():  # a pipe can be read once, and is read twice here
        raise Refused(f"{path} is no file; save the rows to a CSV file, and name that file.")
    with opened(path, "rb") as file:
        start = file.read(9)
    if start.startswith(BINARY) or (b"\0" in start and start.endswith(b"{")):
        if path.suffix == ".npz":
            raise Refused(f"{path} is a model or a message, where this command reads a CSV file of rows; name that.")
        cure = "save the sheet as 'CSV UTF-8' in the spreadsheet program, and name that file"
        raise Refused(f"{path} is a workbook or an archive, and no text with a row on each line; {cure}.")
    encoding = next((name for mark, name in BOMS if start.startswith(mark)), written.encoding)
    if encoding == written.encoding and b"\0" not in start:
        with opened(path, "rb") as file:  # an option is for those files of a command that are not UTF-8
            encoding = "utf-8" if _is_utf8(file) else encoding
    if b"\0" in start and "16" not in encoding:
        raise Refused(f"{path} is not text in {encoding}; name --encoding utf-16-{'be' if start[0] == 0 else 'le'}.")
    with opened(path, "rt", encoding=encoding) as file:
        first = file.readline(LONGEST_HEADER)
        stated = NAMED.fullmatch(first)
        header = next((line for line in chain(() if stated else (first,), file) if line.strip()), "")
    plain = re.sub(r'"[^"]*"', "", header)
    found = stated[1] if stated else next((mark for mark in SEPARATORS if mark in plain), ",")
    separator = "\t" if written.separator in TABS else written.separator or found
    for option, mark in (("--separator", separator), ("--decimal", written.decimal)):
        if len(mark) != 1:
            raise Refused(f"{option}: {mark!r} is not one character{' (write tab for a tab)' * (mark == separator)}.")
    return {"encoding": encoding, "sep": separator, "skiprows": int(stated is not None)}


def _is_utf8(lines: Iterable[bytes]) -> bool:
    """Return whether a file is UTF-8 for certain: letters beyond ASCII are hardly valid UTF-8 by chance."""
    found = [line for line in lines if not line.isascii()]
    try:
        return bool(b"".join(found).decode())
    except UnicodeDecodeError:
        return False


def read_frame(path: Path, written: FileSettings, labels: Collection[str | None] = ()) -> Any:
    """Read one CSV file with a header as a pandas data frame; columns of labels stay as they are written.

    As numbers 010 and 10 would be one level, or two, depending on what else the file holds. Where all labels of a
    column are numbers they are `Numeral`. A column without a name has that of pandas, Unnamed: 0.
    """
    import pandas as pd

    path = named_file(path)[1]
    try:
        how = _opening(path, written)
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
        fact = f"{path} is not a table: a row has more cells than the first line, which is the header"
        cure = 'if another character separates the cells, name it, as in --separator ";"'
        raise Refused(f"{fact}; delete lines above the header; {cure}.") from error
    except UnicodeError as error:
        cure = "Excel's plain CSV has --encoding cp1252, its CSV UTF-8 needs no option"
        raise Refused(f"{path} is not text in {written.encoding}; name its --encoding ({cure}).") from error
    except LookupError as error:
        raise Refused(f"--encoding: there is no encoding {written.encoding!r}.") from error
    except EOFError as error:
        raise Refused(f"{path} ends in the middle: copy the archive again.") from error
    repeated = sorted(name for name, times in Counter(names).items() if times > 1)
    if repeated:
        raise Refused(f"{path} has the column {repeated[0]!r} {names.count(repeated[0])} times; rename one of them.")
    _require_rows_on_lines(path, frame, len(names), how["sep"])
    if frame.empty:
        raise Refused(f"{path} has a header but no rows.")
    if len(names) == 1 and any(mark in names[0] for mark in SEPARATORS):
        raise Refused(f"--separator: {path} has one column {names[0]!r}; leave the option out, or name another.")
    frame.columns = names
    empty = [name for name in names if is_nameless(name) and frame[name].isna().all()]
    frame = frame.drop(columns=empty)  # of a spreadsheet whose sheet was wider once
    whole, names = names, list(frame.columns)
    if not names:
        raise Refused(f"{path} has no name of a column in its first line, which is the header.")
    for row in np.flatnonzero(frame[names[0]].astype(str) == names[0]):
        if frame.iloc[row].astype(str).tolist() == names:
            raise Refused(f"{path} has its header a second time, as row {row + 1}; delete that line of the file.")
    for name in texts:
        frame[name] = _numerals(frame[name], written.decimal)
    for name in frame.select_dtypes(exclude=["number", "bool"]) if written.decimal != "." else ():
        if name not in texts:
            frame[name] = _with_points(frame[name], written.decimal)
    mark = written.decimal
    thousands = [name for name in names if frame[name].dtype.kind == "f" and _may_be_thousands(frame[name])]
    if thousands:
        cells = pd.read_csv(path, index_col=False, **{**how, "dtype": str}).set_axis(whole, axis=1)
        group = re.compile(rf"\s*[+-]?[1-9]\d{{0,2}}(\{mark}\d{{3}})\s*")
        for name in thousands:
            texts = cells[name]
            marked = texts.str.contains(mark, regex=False, na=False)
            if not all(map(group.fullmatch, texts[marked])):
                continue
            if frame[name][~marked].abs().max() >= LEAST_WHOLE:
                frame[name] = texts.map(lambda text: Unread(text) if mark in text else text, "ignore")
            elif marked.sum() == texts.count():
                shown = (
                    f"each number of column {name!r} has three digits after the {mark!r}, as {texts[marked].iloc[0]!r}"
                )
                note(f"{path}: {shown}; if {mark!r} marks thousands, delete the marks from the file.")
    return frame


def _require_rows_on_lines(path: Path, frame: Any, n_columns: int, separator: str) -> None:
    """Refuse a cell of several lines with as many separators as a row has: a quotation mark took rows into the cell."""
    for name in frame.select_dtypes(exclude=["number", "bool"]):
        for row, cell in enumerate(frame[name]):
            if isinstance(cell, str) and "\n" in cell and cell.count(separator) >= n_columns - 1 > 0:
                cell_of = f"{path} has whole rows in one cell, row {row + 1} of column {name!r}"
                raise Refused(f"{cell_of}: delete the quotation mark that opens the cell, or the cell's line breaks.")


def _may_be_thousands(column: Any) -> bool:
    """Return whether all fractions of a column could be groups of three digits.

    Fewer digits, or numbers below 10 alone, are those of a measurement, but beside whole numbers from 100 on.
    """
    values = column.to_numpy()[np.isfinite(column.to_numpy())]
    is_whole = values == np.rint(values)
    thousandths = 1000.0 * values[~is_whole]
    if not thousandths.size or (np.abs(thousandths - np.rint(thousandths)) >= 1e-6).any():
        return False
    has_last_digit = np.rint(thousandths) % 10 != 0
    is_grouped = has_last_digit.mean() >= 0.75 and np.abs(values).max() >= 10.0
    return bool(is_grouped or np.abs(values[is_whole]).max(initial=0.0) >= LEAST_WHOLE)


def _numerals(column: Any, decimal: str) -> Any:
    """Return a column of labels, as `Numeral` where all of them are numbers."""
    cells = {text: text.strip().replace(decimal, ".") for text in column.dropna().unique()}
    if not all(map(DECIMAL.fullmatch, cells.values())):
        return column
    numerals = {text: Numeral(cell) for text, cell in cells.items()}
    return column.astype(object).map(numerals, na_action="ignore")


def _with_points(column: Any, decimal: str) -> Any:
    """Return a column of text with points in its numbers, as in a file with decimal commas and a word in the column."""
    cells = {text: text.strip().replace(decimal, ".") for text in column.dropna().unique() if isinstance(text, str)}
    numbers = {text: cell for text, cell in cells.items() if NUMBER.fullmatch(cell) and not text.isdecimal()}
    made = {text: Unread(text) if "." in text else cell for text, cell in numbers.items()}
    return column.astype(object).map(lambda cell: made.get(cell, cell), na_action="ignore") if made else column


def require_column(option: str, name: str, columns: Collection[str], path: Path) -> None:
    """Refuse a name that is no column, and suggest the nearest."""
    if name not in columns:
        raise Refused(f"{option}: {missing_name(f'{path} has no column', name, columns)}")


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


def require_same_columns(frames: Mapping[str, Any], paths: Sequence[Path]) -> None:
    """Refuse files of which one has columns that another lacks."""
    first, *others = frames.values()
    for path, frame in zip(paths[1:], others, strict=True):
        lacking = sorted(set(first.columns) - set(frame.columns))
        extra = sorted(set(frame.columns) - set(first.columns))
        if lacking or extra:
            says = [f"lacks {', '.join(lacking)}"] * bool(lacking) + [f"also has {', '.join(extra)}"] * bool(extra)
            twins = {name: own for name in lacking for own in extra if fold(name) == fold(own)}
            cure = "".join(f"; rename {own!r} to {name!r} in {path}" for name, own in twins.items())
            raise Refused(f"{path} and {paths[0]} have different columns: the first {' and '.join(says)}{cure}.")


# --- Formulas -------------------------------------------------------------------------------------------------


def factors_of(settings: ColumnSettings) -> list[str]:
    """Return the columns that are factors, whose cells are read as they are written."""
    if settings.formula is None:
        return list(settings.categorical)
    return [name for name, role in parse(settings.formula).roles.items() if role == "factor"]


def stated_formula(
    settings: RowSettings, columns: Sequence[str], path: Path, *, no_intercept: bool = False
) -> tuple[str, tuple[str, ...]]:
    """Return the formula of a command, and the predictors that it lists where it stands for a list of columns."""
    if settings.trials is not None and settings.weights is not None:
        raise Refused("--weights: leave it out beside --trials, which are the weights.")
    if settings.formula is None:
        chosen = _chosen(columns, settings, path)
        formula = formula_of_columns(
            settings.target,
            chosen,
            factors=settings.categorical,
            offset=settings.offset,
            exposure=settings.exposure,
            intercept=not no_intercept,
        )
        return formula, tuple(chosen)
    for name in ("target", "features", "drop", "categorical"):
        if getattr(settings, name):
            raise Refused(f"--{name}: the formula says it; leave --{name} out.")
    if no_intercept:
        raise Refused("--no-intercept: write '- 1' in the formula.")
    asked = parse(settings.formula).roles
    if not any(nearest(name, [str(column).strip() for column in columns]) for name in asked):
        fact = f"{path} has no column of the formula: its first line, which is the header, has {', '.join(columns)}"
        raise Refused(f"{fact}; delete a title above the header, or write the header there.")
    return with_offset(settings.formula, settings.offset, settings.exposure), ()


def _chosen(columns: Sequence[str], settings: RowSettings, path: Path) -> list[str]:
    """Return the predictors of a list, in order."""
    if not settings.target:
        raise Refused("--target must name the column to be predicted, or --formula say it.")
    taken: dict[str, str] = {}
    for known in ("target", "client", "weights", "trials", "cluster", "offset", "exposure"):
        option, name = f"--{known}", getattr(settings, known, None)
        if name is None:
            continue
        require_column(option, name, columns, path)
        if name in taken:
            raise Refused(f"{option}: {name!r} is the column of {taken[name]} already.")
        taken[name] = option
    for known in ("features", "drop", "categorical"):
        option, names = f"--{known}", getattr(settings, known)
        for name in names:
            require_column(option, name, columns, path)
            if names.count(name) > 1:
                raise Refused(f"{option}: {name!r} is named twice.")
            if known != "drop" and name in taken:
                raise Refused(f"{option}: {name!r} is the column of {taken[name]}.")
    candidates = settings.features or [name for name in columns if name not in taken]
    chosen = [name for name in candidates if name not in settings.drop]
    nameless = next((name for name in chosen if is_nameless(name)), None)
    if nameless is not None and not settings.features:
        fact = f"{path} has a column without a name, {nameless!r}, as DataFrame.to_csv() writes row numbers"
        raise Refused(f'{fact}; write the file with index=False, or leave the column out with --drop "{nameless}".')
    if not chosen:
        raise Refused(f"{path} leaves no feature: its columns are {', '.join(columns)}.")
    for name in settings.categorical:
        if name not in chosen:
            raise Refused(f"--categorical: {name!r} is not among the features.")
    return chosen


# --- Rows by site ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of all sites: the tables, and the designs that an agreement makes of them."""

    agreement: Agreement
    tables: Mapping[str, Any]
    designs: Mapping[str, Design]

    @property
    def target(self) -> Any:
        """Target of the complete rows, shape (n,)."""
        return np.concatenate([*self.labels.values()])

    @property
    def labels(self) -> dict[str, Any]:
        """The same by site."""
        return {site: made.y for site, made in self.designs.items()}

    @property
    def weights(self) -> Array | None:
        """Weights >= 0, shape (n,)."""
        weights = [made.weights for made in self.designs.values() if made.weights is not None]
        return np.concatenate(weights) if weights else None

    @property
    def site_dropped(self) -> dict[str, int]:
        """Rows left out by site, because a value was missing."""
        return {site: made.n_dropped for site, made in self.designs.items()}

    def clusters(self, name: str | None) -> dict[Any, list[Any]] | None:
        """Return the clusters of the rows of positive weight by site, with the site in their names."""
        if name is None:
            return None
        found = {}
        for site, made in self.designs.items():
            own = Table.of(self.tables[site]).named([name])
            if not own:
                raise Refused(f"--cluster: the rows of {site} have no column {name!r}.")
            missing = int(is_missing(own[name])[made.kept].sum())
            if missing:
                raise Refused(f"--cluster: column {name!r} names no cluster in {missing} row(s); fill it in.")
            found[site] = cells_of(own[name])[made.used].tolist()
        seen = Counter(label for labels in found.values() for label in set(labels))
        shared = next((label for label, count in seen.items() if count > 1), None)
        if shared is not None:
            note(f"clusters lie within sites: {str(shared)!r} at two sites is two clusters.")
        return {site: [f"{label} at {site}" for label in labels] for site, labels in found.items()}


def rows_of_fit(paths: Sequence[Path], settings: DataSettings, *, no_intercept: bool = False) -> Rows:
    """Read the files' tables by site, let them agree, and keep the rows that are complete."""
    frames = read_sites(paths, settings.client, settings, factors_of(settings))
    columns = list(next(iter(frames.values())).columns)
    formula, chosen = stated_formula(settings, columns, paths[0], no_intercept=no_intercept)
    if chosen and not settings.features:
        require_same_columns(frames, paths)
    tables = by_site(frames, settings.client)
    for name in chosen:
        if name not in settings.categorical:
            _require_numbers(name, tables)
    agreement, designs = make_designs(
        tables,
        formula,
        weights=weights_of(settings),
        client=settings.client or "site",
        reference=levels_of(settings.reference),
        **{name: getattr(settings, name) for name in ("ignore_case", "site_intercepts", "as_written")},
    )
    require_complete({site: made.missing for site, made in designs.items()}, settings.no_dropna)
    for line in agreement.lines:
        note(f"{line}.")
    return Rows(agreement, tables, designs)


def weights_of(settings: RowSettings) -> str | None:
    """Return the column of weights, which are the trials where there are some."""
    return settings.trials or settings.weights


def by_site(frames: dict[str, Any], client: str | None) -> dict[str, Any]:
    """Return a table for each site: of a file, or of a column in one file."""
    return frames if client is None else split_table(next(iter(frames.values())), client)


def _require_numbers(name: str, tables: Mapping[str, Any]) -> None:
    """Refuse a listed column that holds text at a site, where it is not said to be categorical."""
    for site, table in tables.items():
        if name not in table:
            continue
        column = table[name].dropna()
        if column.dtype.kind in "biuf" or not len(column):
            continue
        require_readable(name, table[name], table[name].notna().to_numpy(), "number", site)
        words = words_among(column)
        if words:
            listed = ", ".join(map(repr, words[:3]))
            levels = f"make 0/1 columns of its levels with --categorical {name}, or leave it out with --drop {name}"
            raise Refused(f"column {name!r} holds text ({listed}); {levels}.")


def agreement_of(model: FittedGLM, weights: str | None = None) -> Agreement:
    """Return how a model reads tables: by its formula, or of a fit to a matrix by that of its columns."""
    if model.columns.agreement is not None:
        return model.columns.agreement
    formula = formula_of_columns(
        model.columns.target, model.columns.read, offset=model.columns.offset, exposure=model.columns.exposure
    )
    numbers: dict[str, Any] = dict.fromkeys(needed_columns(parse(formula).roles, weights), AgreedColumn("number"))
    if any(isinstance(label, str) for label in model.columns.classes):
        numbers[model.columns.target] = AgreedColumn("factor", tuple(map(word, model.columns.classes)))
    return Agreement(formula, numbers, weights=weights)


def rows_of_model(
    model: FittedGLM,
    paths: Sequence[Path],
    client: str | None,
    written: FileSettings,
    weights: str | None = None,
    *,
    with_weights: bool = True,
) -> Rows:
    """Read rows with the columns of a fitted model."""
    client = client or (model.columns.client if len(paths) == 1 else None)
    agreement = agreement_of(model, weights)
    if weights not in (None, agreement.weights):
        raise Refused(f"--weights: the model's weights are the column {agreement.weights!r}.")
    if not with_weights and agreement.weights is not None:
        columns = {name: column for name, column in agreement.columns.items() if name != agreement.weights}
        agreement = replace(agreement, weights=None, columns=columns)
    tables = by_site(read_sites(paths, client, written, agreement.factors), client)
    rows = Rows(agreement, tables, {site: design(table, agreement, site) for site, table in tables.items()})
    left_out = ", ".join(f"{site} {count}" for site, count in rows.site_dropped.items() if count)
    if left_out:
        note(f"rows left out because of missing values: {left_out}.")
    return rows


def rows_to_predict(model: FittedGLM, path: Path, dropna: bool, written: FileSettings) -> tuple[Design, list[int], Any]:
    """Return the design of the rows that a model predicts, their numbers in the file, from 1, and the rows."""
    agreement = agreement_of(model)
    needed = agreement.parsed.predictors
    frame = read_frame(path, written, agreement.factors)
    ignored = [
        name for name in frame.columns if name.strip() not in {*needed, *agreement.columns, model.columns.client}
    ]
    if ignored:
        note(f"the model does not know the column(s) {', '.join(ignored)}: ignored.")
    gone = frame[[name for name in frame.columns if name.strip() in needed]].isna()
    listed = _missing(gone.sum())
    if listed and not dropna:
        raise Refused(f"missing values in {listed}: these rows cannot be predicted, and --dropna leaves them out.")
    keep = ~gone.any(axis=1).to_numpy()
    if not keep.all():
        note(f"{int((~keep).sum())} of {len(frame)} rows left out because of missing values.")
    if not keep.any():
        raise Refused("no row is complete.")
    frame = frame[keep].infer_objects()
    made = design(frame, agreement, for_prediction=True)
    return made, (keep.nonzero()[0] + 1).tolist(), frame.rename(columns=str.strip)


def require_complete(sites: Mapping[str, Mapping[str, int]], no_dropna: bool) -> None:
    """Refuse missing values that are not to be dropped."""
    total: Counter[str] = Counter()
    for counts in sites.values():
        total.update(counts)
    listed = _missing(total)
    if listed and no_dropna:
        raise Refused(f"missing values in {listed}: fill them in, or leave --no-dropna out.")


def _missing(counts: Any) -> str:
    """List how many values of each column are missing."""
    return ", ".join(f"{name} ({count})" for name, count in counts.items() if count)
