"""Columns of tables at several sites: what a site says of a column, and how the sites' columns are made alike.

A site describes its columns without a row of them (`describe_column`). The server finds one reading of each column for
all sites, or refuses the column and names the site (`agree_column`). The site reads its cells that way
(`AgreedColumn.read`). Text is text: two spellings at one site are two levels. What may be one level in two spellings is
refused.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, time, timedelta
from decimal import Decimal
from functools import partial
from numbers import Real
from typing import Any, Literal

import numpy as np

from .._errors import ArgumentError, Words
from .._errors import TableError as TableError
from .._validation import Array
from .rows import find_missing

Kind = Literal["number", "boolean", "text", "date", "mixed", "empty"]
Code = Literal["", "0/1", "1/2", "-1/1", "more"]

NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
"""A number as text; with leading zeros it is a code."""
DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)(?:\.[0-9]*)?")
"""A level that is a number; 2E1 is a code."""
DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}(?:[T ]\S+)?|\d{1,2}([./-])\d{1,2}\1(?:\d{4}|\d{2})")
MARKED = re.compile(r"[+-]?\d+(?:[.,' \u00a0\u202f’]\d+)+")
"""A number with a decimal comma, or with marks for thousands."""
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(?:[.,' \u00a0\u202f’]\d{3})+")
"""A number that is likely to have marks for thousands."""
LIMIT = re.compile(r"[<>≤≥]\s*\S.*")
"""A value below or above what could be measured."""
UNIT = re.compile(r"[+-]?\d[\d.,]*(?:\s+[^\W\d]\S*|\s*%)")
"""A number with its unit."""
MARKS = frozenset(
    {"?", ".", "--", "na", "NA", "n/a", "N/A", "n.a.", "N.A.", "k.A.", "nan", "NaN", "null", "NULL"}
    | {"#N/A", "#NV", "#N/D", "#NAME?", "#NUM!", "#ZAHL!", "#REF!", "#BEZUG!", "#VALUE!", "#WERT!", "#DIV/0!"}
)
"""Texts that name no level, but stand for a missing value; those of spreadsheets begin with #."""
LIKELY_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]{1,3})?")
"""A folded level that may be a number, or a code of the same digits."""
FOR_MISSING = frozenset({*(mark.casefold() for mark in MARKS), "-", "missing", "unknown"})
"""Words, in lower case, that tables have for a missing value."""
CODES: Mapping[frozenset[str], Code] = {
    frozenset("01"): "0/1",
    frozenset("12"): "1/2",
    frozenset({"-1", "1"}): "-1/1",
}
"""Usual codes of two classes."""
UNKNOWN = frozenset({"8", "9", "88", "99", "999", "-1", "-8", "-9", "-99", "-999"})
"""Usual codes for a value that is not known."""
TRUTH = {"False": "0", "True": "1"}
"""Numbers that truth values are where another site has these numbers."""
MOST = 6
"""Levels shown in a sentence."""
LEAST_NUMBERS = 3
"""Different numbers in a text column from which on fewer words beside them are no levels."""
MANY = 50
"""Levels of a column of text from which on it hardly is a factor."""
FEW = 10
"""Levels up to which a column of text may be a factor, however few the rows are."""


# --- Cells ----------------------------------------------------------------------------------------------------


class Numeral(str):
    """A cell of a column of numbers in a text file, as it is written there: 1.0 and 1 are one number."""

    __slots__ = ()


class Unread(str):
    """A cell of a text file that is no number by the file's decimal mark: 1.234 where the mark is a comma."""

    __slots__ = ()


def is_missing(column: Any) -> Array:
    """Return where a column has no value: None, NaN, NaT, NA, or text that is blank, shape (n,) of bool."""
    cells = cells_of(column)
    if cells.dtype.kind != "O":
        return np.asarray(find_missing(cells))
    return np.array([isinstance(cell, str) and not cell.strip() for cell in cells], dtype=bool) | find_missing(cells)


def cells_of(column: Any) -> Any:
    """Return the cells of a column, shape (n,): of numbers, or objects as they are."""
    if isinstance(column, list | tuple):  # NumPy would write all cells as text where one of them is
        cells = np.empty(len(column), dtype=object)
        cells[:] = column
    else:
        cells = np.asarray(column)
    if cells.ndim != 1:
        raise TableError(f"must hold one value a row, got shape {cells.shape}")
    return cells.astype(object) if cells.dtype.kind in "US" else cells


def _kind(cell: Any) -> str:
    """Return the kind of a cell that is not missing."""
    if isinstance(cell, str):
        return "number" if isinstance(cell, Numeral) else "text"
    if isinstance(cell, bool | np.bool_):
        return "boolean"
    if isinstance(cell, date | time | timedelta | np.datetime64 | np.timedelta64):
        return "date"
    if isinstance(cell, Real) or type(cell).__name__ == "Decimal":
        return "number"
    return "other"


def _kinds(cells: Any) -> set[str]:
    found = {"i": "number", "u": "number", "f": "number", "b": "boolean", "M": "date", "m": "date", "c": "other"}
    if cells.dtype.kind != "O":
        return {found.get(cells.dtype.kind, "other")}
    return {_kind(cell) for cell in cells}


def _is_number(cell: Any) -> bool:
    if not isinstance(cell, str):
        return _kind(cell) in ("number", "boolean")
    is_read = NUMBER.fullmatch(cell.strip()) is not None and not isinstance(cell, Unread)
    return is_read and bool(np.isfinite(float(cell)))


def words_among(cells: Iterable[Any]) -> list[str]:
    """Return the different texts that are no numbers, in their order."""
    return [str(cell) for cell in dict.fromkeys(cells) if not _is_number(cell)]


def level_name(cell: Any) -> str:
    """Write a cell as the name of a level: text without blanks around it, the number 1.0 as 1, accents composed."""
    if isinstance(cell, str):
        return unicodedata.normalize("NFC", cell).strip()
    if isinstance(cell, bool | np.bool_):
        return str(bool(cell))
    return str(int(cell)) if np.isfinite(float(cell)) and cell == int(cell) else repr(float(cell))


def number_name(cell: Any) -> str:
    """Write a cell as the name of a level that is a number where it can be one: 1.00 as 1."""
    return level_name(float(cell)) if isinstance(cell, str) and DECIMAL.fullmatch(cell.strip()) else level_name(cell)


def fold(level: str) -> str:
    """Return what levels share that differ in case, in blanks or in the form of their letters alone."""
    return " ".join(unicodedata.normalize("NFKC", level).casefold().split())


def _twin(level: str) -> str:
    """Return what likely twins share: their fold, or the number that both may be, as 010 and 10."""
    found = fold(level)
    is_short = len(found) <= 28  # digits of a Decimal
    return str(Decimal(found).normalize()) if is_short and LIKELY_NUMBER.fullmatch(found) else found


def _in_order(levels: Iterable[str]) -> tuple[str, ...]:
    """Numbers by size, then texts."""
    found = list(levels)
    if all(DECIMAL.fullmatch(level) for level in found):
        return tuple(sorted(found, key=lambda level: (float(level), level)))
    return tuple(sorted(found))


# --- A site's half --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SiteColumn:
    """Description of a column at a site: plain values, no rows.

    A numeric column has numbers, or texts that can be read as numbers. `levels` counts complete rows by level, None
    where levels were not asked for; `withheld` counts levels of too few rows to be named. An ordered column has the
    order that a categorical of pandas declares. `rewritten` has the cells of levels of text, such as " Yes" for "Yes".
    `code` says of numbers that are not levels whether they are a usual code of two classes.
    """

    kind: Kind
    missing: int = 0
    is_numeric: bool = False
    infinite: int = 0
    levels: dict[str, int] | None = None
    withheld: int = 0
    is_ordered: bool = False
    rewritten: dict[str, str] = field(default_factory=dict)
    code: Code = ""

    def __post_init__(self) -> None:
        counts = (self.missing, self.infinite, self.withheld, *(self.levels or {}).values())
        if not all(0 <= count < 1 << 53 for count in counts):
            raise ValueError(f"a column's counts must be >= 0, got {min(counts)}")
        for level in self.levels or {}:
            if level != level_name(level) or not level:
                raise ValueError(f"a level must have no blanks around it, got {level!r}")


def describe_column(column: Any, complete: Array, wants_levels: bool, minimum_count: int = 0) -> SiteColumn:
    """Describe a column by its complete rows; levels of fewer rows than `minimum_count` are not named.

    Levels of text are always named, those of numbers where `wants_levels` says so.
    """
    missing = int(is_missing(column).sum())
    cells = cells_of(column)[complete]
    kinds = _kinds(cells)
    if not len(cells):
        return SiteColumn("empty", missing)
    kind: Any = kinds.pop() if len(kinds) == 1 else "mixed"
    if kind == "text" and all(DATE.fullmatch(cell.strip()) for cell in cells):
        kind = "date"
    kind = "mixed" if kind == "other" else kind
    is_numeric = kind in ("number", "boolean") or (kind != "date" and all(map(_is_number, cells)))
    if _is_categorical(column) and kind in ("number", "text", "boolean"):  # whoever declares levels means a factor
        kind, is_numeric = "text", False
    infinite = int(np.isinf(cells.astype(np.float64)).sum()) if is_numeric else 0
    if kind in ("date", "mixed") or infinite:
        return SiteColumn(kind, missing, is_numeric, infinite)
    if is_numeric and kind != "boolean" and not wants_levels:
        # numbers are not levels: to name them would send the values of rows
        return SiteColumn(kind, missing, True, code=_code(cells, minimum_count))
    found: Counter[str] = Counter()
    rewritten = {}
    for cell, count in Counter(cells.tolist()).items():
        level = level_name(cell)
        found[level] += count
        if isinstance(cell, str) and cell != level:
            rewritten[level] = cell
    if kind == "number" and not all(map(DECIMAL.fullmatch, found)):  # 1e+300
        kind = "text"
    order = [level for level in _declared(column) if level in found]
    is_ordered = bool(order)
    kept = {level: found[level] for level in order or _in_order(found) if found[level] >= minimum_count}
    rewritten = {level: cell for level, cell in sorted(rewritten.items()) if level in kept}
    return SiteColumn(kind, missing, is_numeric, 0, kept, len(found) - len(kept), is_ordered, rewritten)


def are_named(column: Any, said: SiteColumn) -> Array:
    """Return where a column has a level that its description names, or no value, shape (n,) of bool."""
    found = is_missing(column)
    if not said.withheld:
        return np.ones_like(found)
    pairs = zip(found.tolist(), cells_of(column).tolist(), strict=True)
    return np.array([gone or level_name(cell) in (said.levels or ()) for gone, cell in pairs], dtype=bool)


def _code(cells: Any, minimum_count: int) -> Code:
    """Return the usual code of two classes that a column's numbers are; "more" where there are three and more."""
    if len(set(cells[:100].tolist())) > 2:
        return "more"
    counts = Counter(map(number_name, cells.tolist()))
    is_told = len(counts) > 2 or min(counts.values()) >= minimum_count
    return CODES.get(frozenset(counts), "more" if len(counts) > 2 else "") if is_told else ""


def require_readable(
    name: str, column: Any, complete: Array, role: str, site: str | None = None, is_list: bool = False
) -> None:
    """Refuse, where the table is, what no reading mends: several kinds, numbers with words, marks, names for levels.

    The sentence shows cells, which a description would disclose to the server. `is_list` is for a list of columns in
    place of a formula.
    """
    cells = cells_of(column)[complete]
    said = describe_column(column, complete, False)
    if said.kind == "mixed" and not said.is_numeric:
        kinds, rows = [_kind(cell) for cell in cells.tolist()], np.flatnonzero(complete)
        i = kinds.index(min(reversed(kinds), key=Counter(kinds).__getitem__))  # the first of the rarest kind
        label = column.index[rows[i]] if hasattr(column, "iloc") else rows[i]
        fact = f"mixes numbers, text or other kinds, such as {cells[i]!r} in row {label}"
        raise TableError(fact, "write all its values in one way", site, name)
    if said.kind == "date":
        _check_site(name, site or "", said, role)
    _check_infinite(said.infinite, site, name)
    if said.is_numeric and role == "factor" and not _is_categorical(column):
        said = describe_column(column, complete, True)
    elif said.kind != "text" or said.is_numeric:
        return
    levels, written = list(said.levels or ()), {level_name(cell): cell for cell in cells}
    words = [level for level in levels if not _is_number(written[level])]
    others = [word for word in words if not _is_marked(word)]
    numbers, likely = len(levels) - len(words), len(levels) - len(others)
    are_many = role == "number" or likely >= LEAST_NUMBERS
    are_names = len(levels) > MANY or len(levels) > max(FEW, len(cells) // 2)
    if role == "factor" and len(levels) > max(FEW, len(cells) // 2) and are_measured(levels):
        fact = f"holds {len(levels)} different values in {len(cells)} rows, most of them numbers, which are no levels"
        remedy = _without_levels if is_list else "write numbers, and the column without C(…)"
        raise TableError(fact, remedy, site, name)
    are_numbers = (are_many and likely > len(others)) or (are_names and are_measured(levels))
    if role != "factor" and not said.is_ordered and words and are_numbers:
        remedy = partial(_about_words, words, "else write numbers")
        raise TableError(f"holds {'numbers and ' * bool(numbers)}{_listed(words)}", remedy, site, name)
    # beside numbers unknown is no level
    has_levels = any(word.casefold() not in FOR_MISSING for word in words)
    marks = [word for word in words if word in MARKS or (numbers and not has_levels)]
    if marks:
        remedy = partial(_about_words, marks, "else give the level a name")
        raise TableError(f"holds {_listed(marks)} for a level", remedy, site, name)
    if role == "any" and are_names and not _is_categorical(column):
        fact = f"holds {len(levels)} different texts in {len(cells)} rows, such as {levels[0]!r}"
        raise TableError(fact, _otherwise(name, role, is_list), site, name)


def _is_marked(word: str) -> bool:
    return MARKED.fullmatch(word) is not None and not DATE.fullmatch(word)


def _is_measured(level: str) -> bool:
    """Return whether a level is a number, in whatever writing: with marks, a limit or a unit."""
    is_written = _is_number(level) or any(kind.fullmatch(level) for kind in (LIMIT, UNIT))
    return (is_written or MARKED.fullmatch(level) is not None) and not DATE.fullmatch(level)


def about_classes(levels: Collection[str], otherwise: str, words: Words) -> str:
    """Return the advice on too many classes: of three, a usual code for an unknown value comes first."""
    codes = [level for level in levels if level in UNKNOWN and frozenset(levels) - {level} in CODES]
    if len(levels) != 3 or not codes:
        return otherwise
    missing = f"empty its cells, or {words.missing(codes[:1])} if no other column holds it"
    return f"if {codes[0]} stands for an unknown value, {missing}; else {otherwise}"


def are_measured(levels: Collection[str]) -> bool:
    """Return whether most levels are numbers."""
    return 2 * sum(map(_is_measured, levels)) > len(levels)


def _without_levels(words: Words) -> str:
    return f"write numbers, and leave the column out of {words.argument('categorical')}"


def _otherwise(name: str, role: str, is_list: bool = False) -> Callable[[Words], str]:
    """Return the advice on text that is not missing values."""
    if role in ("number", "target"):
        return lambda _: "else write numbers"
    if is_list:
        levels, others = ("categorical", name), ("drop", name)
        return lambda words: f"{words.setting(*levels)} if its texts are levels, or else {words.setting(*others)}"
    return lambda _: f"write C({name}) if its texts are levels, or leave the column out"


def _about_words(found: Sequence[str], otherwise: str | Callable[[Words], str], words: Words) -> str:
    """Return the advice on words beside numbers: decimal commas, limits of measurement, and marks for nothing."""
    marked, limits = [word for word in found if _is_marked(word)], [word for word in found if LIMIT.fullmatch(word)]
    units = [word for word in found if UNIT.fullmatch(word)]
    dates = [word for word in found if DATE.fullmatch(word)]
    rest = [word for word in found if word not in (*marked, *limits, *units, *dates)]
    said = []
    if marked and all(map(THOUSANDS.fullmatch, marked)):
        whole = re.sub(r"\D", "", marked[0])
        said.append(
            f"delete marks for thousands ({whole} for {marked[0]!r}); if they are decimals, write as many digits in "
            f"all cells and the mark that {words.argument('decimal')} says"
        )
    elif any(map(NUMBER.fullmatch, marked)):  # no numbers in a file of decimal commas
        said.append(
            f"write decimals as {words.argument('decimal')} says, which holds for all files of a command, so save a "
            "file with another mark again; delete marks for thousands"
        )
    elif marked:
        said.append(
            f"for decimal commas read the file with {words.setting('decimal', ',')}; delete marks for thousands"
        )
    if limits:
        said.append(f"write a number for {_listed(limits)}, or leave such rows out ({words.missing(limits)})")
    if units:
        said.append(f"delete the unit of {_listed(units)}")
    if dates:
        said.append(f"write a number for the date {_listed(dates)}")
    if rest:
        stand = "stands" if len(rest) == 1 else "stand"
        said.append(f"if {_listed(rest)} {stand} for a missing value, {words.missing(rest)}")
    return "; ".join([*said, otherwise if isinstance(otherwise, str) else otherwise(words)])


def _is_categorical(column: Any) -> bool:
    return hasattr(column, "cat") and hasattr(getattr(column, "dtype", None), "categories")


def _declared(column: Any) -> list[str]:
    """The order of levels that a categorical column of pandas declares."""
    if not _is_categorical(column):
        return []
    categories = [cell for cell in column.dtype.categories.tolist() if _kind(cell) in ("text", "number", "boolean")]
    return list(dict.fromkeys(map(level_name, categories)))


# --- The server's half ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AgreedColumn:
    """The reading of a column that all sites share: levels of a factor, the reference first, and other spellings.

    Where `are_numbers`, levels were numbers at all sites, and 1.00 is the level 1.
    """

    kind: Literal["number", "factor"]
    levels: tuple[str, ...] = ()
    spellings: dict[str, str] = field(default_factory=dict)
    are_numbers: bool = False

    def __post_init__(self) -> None:
        if len(set(self.levels)) < len(self.levels) or bool(self.levels) != (self.kind == "factor"):
            raise ValueError(f"levels must be different ones of a factor, got {list(self.levels)} of a {self.kind}")
        if not set(self.spellings.values()) <= set(self.levels):
            raise ValueError(f"spellings must be those of levels, got {self.spellings}")

    def read(self, column: Any, rows: Any, name: str) -> Any:
        """Return a column's numbers in these rows; of a factor the levels' places, −1 where a level was not agreed."""
        cells = cells_of(column)[rows]
        if self.kind == "number":
            return _read_numbers(cells, name)
        place = {level: k for k, level in enumerate(self.levels)}
        place |= {spelling: place[level] for spelling, level in self.spellings.items()}
        alike = Counter(map(_twin, self.levels))
        keys = [(type(cell), cell) for cell in cells.tolist()]  # True and 1 are equal
        known = dict.fromkeys(keys, -1)
        for key in known:
            kind = _kind(key[1])
            if kind in ("date", "other"):
                raise TableError(f"holds {key[1]!r}, which is no level", column=name)
            level = number_name(key[1]) if self.are_numbers else level_name(key[1])
            if kind == "number" and not isinstance(key[1], str) and alike[_twin(level)] > 1:
                fact = f"holds the number {level}, and the levels are texts that differ in zeros"
                raise TableError(fact, "read the column as text", column=name)
            known[key] = place.get(level, -1)
        return np.array([known[key] for key in keys], dtype=int)

    def require(self, level: str, name: str) -> None:
        """Refuse a reference that is no level."""
        if level not in self.levels:
            near = [other for other in self.levels if fold(other) == fold(level)]
            fact = f"has no level {level!r} at any site; its levels are {_listed(self.levels)}"
            raise TableError(fact, f"did you mean {near[0]!r}?" if near else "choose one of them", column=name)


def _read_numbers(cells: Any, name: str) -> Array:
    if cells.dtype.kind not in "iufb":
        wrong = words_among(cells)
        if wrong:
            are_all = len(wrong) == len(set(cells)) and not any(map(_is_marked, wrong))
            remedy = "write numbers" if are_all else partial(_about_words, wrong, "else correct it")
            raise TableError(f"must hold numbers, got {wrong[0]!r}", remedy, None, name)
        cells = [float(cell) for cell in cells]
    values: Array = np.asarray(cells, dtype=np.float64)
    _check_infinite(int(np.isinf(values).sum()), None, name)
    return values


def _check_infinite(count: int, site: str | None, name: str) -> None:
    if count:
        raise TableError(f"holds {count} infinite number(s)", "correct them, or leave them empty", site, name)


def agree_column(
    name: str,
    sites: Mapping[str, SiteColumn],
    role: Literal["any", "number", "factor"],
    reference: str | None = None,
    ignore_case: bool = False,
    drop_withheld: bool = False,
    as_written: bool = False,
    are_classes: bool = False,
    is_coded: bool = False,
) -> tuple[AgreedColumn, list[str]]:
    """Return one reading of a column for all sites, and lines on what was made alike; or refuse by site and column.

    A column of the role "any" is a factor where sites hold text. `are_classes` is for a target of classes, `is_coded`
    for levels whose coding the formula has; for other options see `formula.agree`.
    """
    for site, column in sites.items():
        _check_site(name, site, column, role)
    if _agreed_kind(name, sites, role) == "number":
        if reference is not None:
            raise TableError(f"holds numbers, which have no reference level: write C({name})", column=name)
        if not as_written:
            codes = {site: "0/1" if column.kind == "boolean" else column.code for site, column in sites.items()}
            _require_one_code(
                name, {site: code.split("/") for site, code in codes.items() if code}, COUNTS * are_classes or ALL
            )
        return AgreedColumn("number"), _lines_of_numbers(name, sites)
    lines = [f"{name}: levels were taken as they are written"] if as_written else []
    for site, column in sites.items():
        if column.withheld:
            fact = f"has {column.withheld} level(s) with too few rows to be named"
            if not drop_withheld:
                raise TableError(fact, _about_withheld, site, name)
            lines.append(f"{name}: site {site!r} {fact}; rows of levels that their site does not name are left out")
        written = [f"{cell!r} for {level!r}" for level, cell in column.rewritten.items()]
        if written:
            lines.append(f"{name}: site {site!r} writes {_listed(written, str)}")
    numbers = [site for site, column in sites.items() if column.kind == "number"]
    are_numbers = not as_written and len(numbers) == len(sites)
    if are_numbers:
        every = [level for column in sites.values() for level in column.levels or ()]
        spellings = {level: number_name(level) for level in every if level != number_name(level)}
    else:
        counts = {site: column.levels or {} for site, column in sites.items()}
        spellings = {} if as_written else _spellings(name, counts, numbers, ignore_case)
        truths = {level for site, own in counts.items() if sites[site].kind == "boolean" for level in own}
        others = {level for site, own in counts.items() if sites[site].kind != "boolean" for level in own}
        if truths and others and others <= {*TRUTH.values()} and not as_written:
            spellings = {level: TRUTH[level] for level in truths}
            numbers = []
    if spellings:
        lines.append(f"{name}: " + _listed([f"{one!r} was read as {level!r}" for one, level in spellings.items()], str))
    merged = {
        site: list(dict.fromkeys(spellings.get(level, level) for level in column.levels or ()))
        for site, column in sites.items()
    }
    if not as_written:
        require_shared(name, merged, are_classes)
    if are_classes:
        lines += lines_of_classes(name, merged)
    order = _order(merged, sites)
    if len(order) < 2:
        fact = f"has one level, {order[0]!r}, at all sites" if order else "has no level"
        raise TableError(fact, "leave it out", column=name)
    if reference is not None and is_coded:
        raise ArgumentError("reference", f"must leave {name!r} out, whose coding the formula has", repr(reference))
    if reference is not None:
        first = spellings.get(level_name(reference), level_name(reference))
        AgreedColumn("factor", order).require(first, name)
        order = (first, *(level for level in order if level != first))
    for site, levels in merged.items():
        lacking = [level for level in order if level not in levels]
        if lacking:
            lines.append(f"{name}: site {site!r} has no row of {_listed(lacking)}")
        if sites[site].is_ordered and levels != [level for level in order if level in levels]:
            lines.append(f"{name}: site {site!r} lists its levels in another order")
    if numbers and not are_numbers:
        lines.append(f"{name}: numbers at {', '.join(map(repr, numbers))} were read as levels of text")
    lines += [f"{name}: level {one!r} may stand for a missing value" for one in order if one.casefold() in FOR_MISSING]
    lines.append(f"{name}: levels {_listed(order)}" + f"; reference {order[0]!r}" * (not is_coded and not are_classes))
    return AgreedColumn("factor", order, {} if are_numbers else spellings, are_numbers), lines


def _check_site(name: str, site: str, column: SiteColumn, role: str) -> None:
    """Refuse what no reading could mend."""
    if column.kind == "empty":
        raise TableError("has no value in the rows that are complete", "leave the site or the column out", site, name)
    if column.kind == "date":
        raise TableError("holds dates", "write them as numbers, such as years since a day", site, name)
    if column.kind == "mixed" and (role == "factor" or not column.is_numeric):
        raise TableError("mixes numbers, text or other kinds", "write all its values in one way", site, name)
    _check_infinite(column.infinite, site, name)


def _agreed_kind(name: str, sites: Mapping[str, SiteColumn], role: str) -> Literal["number", "factor"]:
    if role == "factor":
        return "factor"
    numbers = [site for site, column in sites.items() if column.kind in ("number", "boolean", "mixed")]
    written = [site for site, column in sites.items() if column.kind == "text" and column.is_numeric]
    others = [site for site in sites if site in {*numbers, *written}]
    for site, column in sites.items():
        if column.kind == "text" and not column.is_numeric and (others or role == "number"):
            words = words_among(column.levels or ())
            beside = f" where site {others[0]!r} has numbers" if others else ""
            shown = f" ({_listed(words)})" if words else ""
            remedy: str | Callable[[Words], str] = partial(
                _about_words,
                words,
                _otherwise(name, "number" if numbers or are_measured(column.levels or ()) else role),
            )
            if len(words) == len(column.levels or ()):
                remedy = "code it alike at all sites"
            raise TableError(f"holds text{shown}{beside}", remedy, site, name)
    if numbers or role == "number":
        return "number"
    if written:
        fact, factor = "holds numbers written as text at every site", f"write C({name}) for a factor"
        raise TableError(fact, f"{factor}, or turn it into numbers", written[0], name)
    return "factor"


def _about_withheld(words: Words) -> str:
    return (
        f"merge them there with another level, {words.switch('drop_withheld')} here to leave their rows out, or let "
        f"that site begin again with a smaller {words.argument('minimum_count')}"
    )


def _lines_of_numbers(name: str, sites: Mapping[str, SiteColumn]) -> list[str]:
    kinds = {site: column.kind for site, column in sites.items()}
    if {*kinds.values()} == {"boolean"}:  # R and patsy make a factor of them
        return [f"{name}: True and False were read as 1 and 0; C({name}) has levels"]
    texts = "{}: numbers written as text at site {!r} were read as numbers"
    said = {"text": texts, "mixed": texts, "boolean": "{}: True and False at site {!r} were read as 1 and 0"}
    return [said[kind].format(name, site) for site, kind in kinds.items() if kind in said]


def _spellings(
    name: str, levels: Mapping[Any, Mapping[str, int]], numbers: Collection[Any], ignore_case: bool
) -> dict[str, str]:
    """Return {other spelling: level} of likely twins, or refuse them; the level is the spelling of most rows.

    Texts that differ in zeros alone are two levels where a site has both: 250 and 250.00.
    """
    counts: Counter[str] = Counter()
    for own in levels.values():
        counts.update(own)
    groups: dict[str, list[str]] = {}
    for level in _in_order(counts):
        groups.setdefault(_twin(level), []).append(level)
    spellings: dict[str, str] = {}
    for group in groups.values():
        n_folds = len(set(map(fold, group)))
        held = {site: len(set(group) & set(own)) for site, own in levels.items()}
        are_texts = max(held.values()) > 1 and not any(held[site] == 1 for site in numbers)
        if len(group) == 1 or (n_folds == len(group) and are_texts):
            continue
        if not ignore_case or n_folds > 1:
            first, second = group[:2]
            other, site = (next(site for site, own in levels.items() if level in own) for level in (first, second))
            fact = f"holds {second!r}, and {first!r} at site {other!r}: the two differ in case, blanks or zeros alone"
            raise TableError(fact, partial(_about_twins, name, n_folds == 1), site, name)
        kept = max(group, key=lambda level: counts[level])
        spellings |= {level: kept for level in group if level != kept}
    return spellings


def _about_twins(name: str, differ_in_case: bool, words: Words) -> str:
    case = f", {words.switch('ignore_case')}" if differ_in_case else ""
    return f"write them alike{case}, or keep them apart by {words.setting('as_written', name)}"


def require_shared(name: str, levels: Mapping[Any, Sequence[str]], are_classes: bool = False) -> None:
    """Refuse a column that a site codes otherwise than the others do, by the levels of sites by site.

    Such are levels that no other site has, and two usual codes of two classes, as 0/1 and 1/2.
    """
    found = {site: list(own) for site, own in levels.items() if own}
    if len(found) < 2 or max(map(len, found.values())) < 2:
        return
    are_two = are_classes and max(map(len, found.values())) < 3
    _require_one_code(name, found, "" if are_two else ALL)
    if are_classes and all(DECIMAL.fullmatch(level) for own in found.values() for level in own):
        return
    for site in reversed(found):
        others = {level for other, own in found.items() if other != site for level in own}
        if not others & set(found[site]):
            other = next(one for one in found if one != site)
            shown, known = _listed(found[site]), _listed(found[other])
            fact = f"holds {shown}, none of which another site has: {known} at site {other!r}"
            raise TableError(fact, partial(_about_codes, name, "" if are_two else ALL), site, name)


def _require_one_code(name: str, found: Mapping[Any, Sequence[str]], meant: str) -> None:
    usual = {site: CODES[frozenset(own)] for site, own in found.items() if frozenset(own) in CODES}
    if len(set(usual.values())) < 2 or any(len(own) > 2 or "more" in own for own in found.values()):
        return
    first = next((site for site, code in usual.items() if code == "0/1"), next(iter(usual)))
    site = next(site for site, code in usual.items() if code != usual[first])
    one, other = (" and ".join(usual[place].split("/")) for place in (site, first))
    fact = f"holds {one}, and {other} at site {first!r}: these may be two classes in different codes"
    raise TableError(fact, partial(_about_codes, name, meant), site, name)


ALL, COUNTS = "all of them are meant", "the target is a count or a measurement"


def _about_codes(name: str, meant: str, words: Words) -> str:
    """Return the advice on two codings; two classes have two values, and then nothing else can be `meant`."""
    if not meant:
        return "code it alike at all sites"
    return f"code it alike at all sites, or, if {meant}, {words.setting('as_written', name)}"


def lines_of_classes(name: str, found: Mapping[Any, Iterable[str]]) -> list[str]:
    """Return a line where no site has three of three or more classes, by the levels of sites by site."""
    sets = [set(own) for own in found.values()]
    every = set().union(*sets)
    if len(every) < 3 or max(map(len, sets)) != 2:
        return []
    listed = _listed(_in_order(every))
    return [f"{name}: no site has more than two of its {len(every)} classes ({listed}): are all of them meant?"]


def _order(levels: Mapping[str, Sequence[str]], sites: Mapping[str, SiteColumn]) -> tuple[str, ...]:
    """The order that all sites declare, where they declare one and no two disagree; otherwise sorted."""
    longest = max(levels.values(), key=len)
    agree = all(list(found) == [level for level in longest if level in set(found)] for found in levels.values())
    is_declared = all(column.is_ordered for column in sites.values()) and agree
    return tuple(longest) if is_declared else _in_order({level for found in levels.values() for level in found})


def _listed(levels: Sequence[str], written: Callable[[str], str] = repr) -> str:
    shown = ", ".join(map(written, levels[:MOST]))
    return f"{shown}, …" if len(levels) > MOST else shown
