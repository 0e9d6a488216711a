"""Columns of tables at several sites: what a site says of a column, and how the sites' columns are made alike.

A site describes its columns without a row of them (`describe_column`); the server finds one reading of each column for
all sites, or refuses it by site and column (`agree_column`); the site reads its cells that way (`AgreedColumn.read`).
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, time, timedelta
from decimal import Decimal
from functools import partial
from numbers import Real
from typing import Any, Literal

import numpy as np

from .._errors import PLAIN, Worded, Words, ended
from .._validation import Array
from .rows import find_missing

Kind = Literal["number", "boolean", "text", "date", "mixed", "empty"]

NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
"""A number as text; with leading zeros it is a code."""
DECIMAL = re.compile(r"(-?)(0|[1-9][0-9]*)(?:\.([0-9]*))?")
"""A level that is a number; 2E1 is a code."""
DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}(?:[T ]\S+)?|\d{1,2}([./-])\d{1,2}\1(?:\d{4}|\d{2})")
MARKS = frozenset({"?", ".", "--", "na", "NA", "n/a", "N/A", "#N/A", "nan", "NaN", "null", "NULL"})
"""Texts that name no level, but stand for a missing value."""
CODE = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]{1,3})?")
"""A folded level that may be a number, or a code of the same digits."""
SWITCHES = {"False", "True"}
CODE_ALIKE = "write them in one way at all sites"
FOR_MISSING = frozenset({*(mark.casefold() for mark in MARKS), "-", "missing", "unknown"})
"""Words, in lower case, that tables have for a missing value."""
MOST = 6
"""Levels shown in a sentence."""
FEW_WORDS = 3
"""Different texts among numbers, up to which they are taken for words for a missing value."""


Remedy = str | Callable[[Words], str]
"""Advice; a function gives advice in the words of a reader."""


class TableError(Worded):
    """A table that cannot be used: "site {site}: column {column} {fact}; {remedy}.".

    Parameters
    ----------
    fact : str
        What is wrong, a predicate of the column where there is one.
    remedy : str or callable, default ""
        What to do; a function of the reader's words for arguments, `_errors.Words`, says it in them.
    site, column : str, optional
        Names, where one of them is at fault.

    Examples
    --------
    >>> print(TableError("holds dates", "write the year as a number", "Basel", "visit"))
    site 'Basel': column 'visit' holds dates; write the year as a number.
    """

    def __init__(self, fact: str, remedy: Remedy = "", site: str | None = None, column: str | None = None) -> None:
        super().__init__(fact, remedy, site, column)
        self.fact, self.remedy, self.site, self.column = fact, remedy, site, column

    def worded(self, words: Words) -> str:
        """Return the sentence."""
        where = f"site {self.site!r}: " if self.site is not None else ""
        what = f"column {self.column!r} " if self.column is not None else ""
        remedy = self.remedy if isinstance(self.remedy, str) else self.remedy(words)
        return ended(f"{where}{what}{self.fact}{f'; {remedy}' if remedy else ''}")


# ----------------------------------------------------------------------------------------------------
# Cells
# ----------------------------------------------------------------------------------------------------


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
        return "text"
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
    return NUMBER.fullmatch(cell.strip()) is not None and bool(np.isfinite(float(cell)))


def other_words(cells: Iterable[Any]) -> list[str]:
    """Return the different texts that are no numbers, in their order."""
    return [str(cell) for cell in dict.fromkeys(cells) if not _is_number(cell)]


def advice_on_words(cells: Iterable[Any], is_beside_numbers: bool = False, words: Words = PLAIN) -> str:
    """Say how to read the few words of a column of numbers as missing; "" where it has none, many, or no number."""
    known = list(dict.fromkeys(cells))
    others = other_words(known)
    is_coding = len(others) == len(known) and not (is_beside_numbers and (len(others) == 1 or not _is_coding(others)))
    if not 0 < len(others) <= FEW_WORDS or is_coding:
        return ""
    stand = "stands" if len(others) == 1 else "stand"
    return f"if {_listed(others)} {stand} for a missing value, {words.missing(others)}"


def level_name(cell: Any) -> str:
    """Write a cell as the name of a level: without blanks around it, 1.0 as 1, letters with accents composed."""
    if isinstance(cell, bool | np.bool_):
        return str(bool(cell))
    if not isinstance(cell, str):
        cell = str(int(cell)) if np.isfinite(float(cell)) and cell == int(cell) else repr(float(cell))
    text = unicodedata.normalize("NFC", cell).strip()
    number = DECIMAL.fullmatch(text)
    if number is None:
        return text
    sign, whole, decimals = number[1], number[2], (number[3] or "").rstrip("0")
    written = f"{whole}.{decimals}" if decimals else whole
    return written if written == "0" else sign + written


def _fold(level: str) -> str:
    """Return what levels share that differ in case, in blanks or in the form of their letters alone."""
    return " ".join(unicodedata.normalize("NFKC", level).casefold().split())


def twin(level: str) -> str:
    """Return what likely twins share: their fold, or the number that both may be, as 010 and 10."""
    fold = _fold(level)
    is_short = len(fold) <= 28  # digits of a Decimal
    return str(Decimal(fold).normalize()) if is_short and CODE.fullmatch(fold) else fold


def _in_order(levels: Iterable[str]) -> tuple[str, ...]:
    """Numbers by size, then texts."""
    found = list(levels)
    if all(DECIMAL.fullmatch(level) for level in found):
        return tuple(sorted(found, key=lambda level: (float(level), level)))
    return tuple(sorted(found))


# ----------------------------------------------------------------------------------------------------
# A site's half
# ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SiteColumn:
    """Description of a column at a site: plain values, no rows.

    The kind is "empty" where no complete row has a value. A numeric column has numbers, or texts that can be read as
    numbers. `levels` counts complete rows by level, and is None where levels were not asked for; `withheld` counts
    levels of too few rows to be named. An ordered column has levels in the order that a categorical of pandas declares.
    `rewritten` has the cells that levels of text are written as there, such as " Yes" for "Yes".
    """

    kind: Kind
    missing: int = 0
    is_numeric: bool = False
    infinite: int = 0
    levels: dict[str, int] | None = None
    withheld: int = 0
    is_ordered: bool = False
    rewritten: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        counts = (self.missing, self.infinite, self.withheld, *(self.levels or {}).values())
        if not all(0 <= count < 1 << 53 for count in counts):
            raise ValueError(f"a column's counts must be >= 0, got {min(counts)}")
        for level in self.levels or {}:
            if level != level_name(level) or not level:
                raise ValueError(f"a level must have no blanks around it, got {level!r}")


def describe_column(column: Any, complete: Array, wants_levels: bool, minimum_count: int = 0) -> SiteColumn:
    """Describe a column by its complete rows; levels of fewer rows than `minimum_count` are not named.

    Levels of text and of booleans are always named, those of numbers where `wants_levels` says so.
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
    infinite = _count_infinite(cells) if is_numeric else 0
    # numbers are not levels: to name them would send the values of rows
    is_plain = is_numeric and kind != "boolean" and not wants_levels
    if kind == "date" or (kind == "mixed" and not is_numeric) or is_plain or infinite:
        return SiteColumn(kind, missing, is_numeric, infinite)
    counts = Counter(cells.tolist())
    found: Counter[str] = Counter()
    rewritten = {}
    for cell, count in counts.items():
        level = level_name(cell)
        found[level] += count
        if isinstance(cell, str) and cell != level and not DECIMAL.fullmatch(level):  # 1.0 and 1 are one number
            rewritten[level] = cell
    order = [level for level in _declared(column) if level in found]
    is_ordered = bool(order)
    kept = {level: found[level] for level in order or _in_order(found) if found[level] >= minimum_count}
    rewritten = {level: cell for level, cell in sorted(rewritten.items()) if level in kept}
    return SiteColumn(kind, missing, is_numeric, 0, kept, len(found) - len(kept), is_ordered, rewritten)


def require_one_kind(name: str, column: Any, complete: Array, site: str | None = None) -> None:
    """Refuse a column of several kinds with a value and its row, which a description would disclose to the server.

    The value is the first of the rarest kind; rows have the labels of a frame, or count from 0.
    """
    said = describe_column(column, complete, False)
    if said.kind != "mixed" or said.is_numeric:
        return
    cells, rows = cells_of(column)[complete], np.flatnonzero(complete)
    kinds = [_kind(cell) for cell in cells.tolist()]
    i = kinds.index(min(reversed(kinds), key=Counter(kinds).__getitem__))
    label = column.index[rows[i]] if hasattr(column, "iloc") else rows[i]
    fact = f"mixes numbers, text or other kinds, such as {cells[i]!r} in row {label}"
    raise TableError(fact, "write all its values in one way", site, name)


def _count_infinite(cells: Any) -> int:
    if cells.dtype.kind == "O":
        cells = np.array([float(cell) for cell in cells if _kind(cell) == "number"])
    return int(np.isinf(cells).sum())


def _is_categorical(column: Any) -> bool:
    return hasattr(column, "cat") and hasattr(getattr(column, "dtype", None), "categories")


def _declared(column: Any) -> list[str]:
    """The order of levels that a categorical column of pandas declares."""
    if not _is_categorical(column):
        return []
    categories = [cell for cell in column.dtype.categories.tolist() if _kind(cell) in ("text", "number", "boolean")]
    return list(dict.fromkeys(map(level_name, categories)))


# ----------------------------------------------------------------------------------------------------
# The server's half
# ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AgreedColumn:
    """The reading of a column that all sites share: levels of a factor, the reference first, and other spellings."""

    kind: Literal["number", "factor"]
    levels: tuple[str, ...] = ()
    spellings: dict[str, str] = field(default_factory=dict)

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
        keys = [(type(cell), cell) for cell in cells.tolist()]  # True and 1 are equal
        known = dict.fromkeys(keys, -1)
        for key in known:
            if _kind(key[1]) in ("date", "other"):
                raise TableError(f"holds {key[1]!r}, which is no level", column=name)
            known[key] = place.get(level_name(key[1]), -1)
        return np.array([known[key] for key in keys], dtype=int)

    def require(self, level: str, name: str) -> None:
        """Refuse a reference that is no level."""
        if level not in self.levels:
            near = [other for other in self.levels if _fold(other) == _fold(level)]
            fact = f"has no level {level!r} at any site; its levels are {_listed(self.levels)}"
            raise TableError(fact, f"did you mean {near[0]!r}?" if near else "choose one of them", column=name)


def _read_numbers(cells: Any, name: str) -> Array:
    if cells.dtype.kind not in "iufb":
        wrong = [cell for cell in cells if not _is_number(cell)]
        if wrong:
            texts = [str(cell) for cell in wrong]
            raise TableError(
                f"must hold numbers, got {wrong[0]!r}", lambda words: advice_on_words(texts, True, words), column=name
            )
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
) -> tuple[AgreedColumn, list[str]]:
    """Return one reading of a column for all sites, and lines on what was made alike; or refuse by site and column.

    A column of the role "any" is a number where sites hold numbers, and a factor where they hold text. The other
    options are those of `formula.agree`.
    """
    for site, column in sites.items():
        _check_site(name, site, column)
    kind = _agreed_kind(name, sites, role)
    if kind == "number":
        if reference is not None:
            raise TableError(f"holds numbers, which have no reference level: write C({name})", column=name)
        return AgreedColumn("number"), _lines_of_numbers(name, sites)
    return _agree_levels(name, sites, reference, ignore_case, drop_withheld)


def _check_site(name: str, site: str, column: SiteColumn) -> None:
    """Refuse what no reading could mend."""
    if column.kind == "empty":
        raise TableError("has no value in the rows that are complete", "leave the site or the column out", site, name)
    if column.kind == "date":
        raise TableError("holds dates", "write them as numbers, such as years since a day", site, name)
    if column.kind == "mixed" and not column.is_numeric:
        raise TableError("mixes numbers, text or other kinds", "write all its values in one way", site, name)
    _check_infinite(column.infinite, site, name)


def _agreed_kind(name: str, sites: Mapping[str, SiteColumn], role: str) -> Literal["number", "factor"]:
    if role == "factor":
        _check_factor(name, sites)
        return "factor"
    check_coding(name, sites)
    for site, column in sites.items():
        check_commas(name, site, column.levels or ())
    numbers = [site for site, column in sites.items() if column.kind in ("number", "boolean", "mixed")]
    texts = [site for site, column in sites.items() if column.kind == "text"]
    written = [site for site in texts if sites[site].is_numeric]
    others = [site for site in sites if site in {*numbers, *written}]
    for site in texts:
        column = sites[site]
        if not column.is_numeric and (others or role == "number"):
            other = f" where site {others[0]!r} has numbers" if others else ""
            factor = "" if numbers or role == "number" else f", or write C({name}) for a factor"
            shown = "".join(f" ({word!r})" for word in other_words(column.levels or ())[:1])
            otherwise = f"write numbers, or leave those cells empty{factor}"
            remedy = partial(_about_words, tuple(column.levels or ()), bool(others), otherwise)
            raise TableError(f"holds text{shown}{other}", remedy, site, name)
    if numbers or role == "number":
        return "number"
    if written:
        fact, factor = "holds numbers written as text at every site", f"write C({name}) for a factor"
        raise TableError(fact, f"{factor}, or turn it into numbers", written[0], name)
    _check_factor(name, sites)
    return "factor"


def has_comma(text: str) -> bool:
    """Return whether a text is a number with a comma in it."""
    return "," in text and re.sub("[., ]", "", text.lstrip("+-")).isdecimal()


def check_commas(name: str, site: str | None, levels: Iterable[str]) -> None:
    """Refuse 17,5 and 1.234,5, which a formula would take for levels; a TableError names column and site."""
    rest = [level for level in levels if not DECIMAL.fullmatch(level) and level.casefold() not in FOR_MISSING]
    if rest and all(map(has_comma, rest)):
        fact = f"holds numbers with commas ({', '.join(map(repr, rest[:3]))})"
        raise TableError(fact, f"write 1234.5 for 1.234,5, or C({name}) for a factor", site, name)


def _about_words(levels: Sequence[str], is_beside_numbers: bool, otherwise: str, words: Words) -> str:
    advice = advice_on_words(levels, is_beside_numbers, words)
    return f"{otherwise}; {advice}" if advice else otherwise


def _about_withheld(words: Words) -> str:
    return (
        f"merge them there with another level, {words.switch('drop_withheld')} here to leave their rows out, or let "
        f"that site begin again with a smaller {words.argument('minimum_count')}"
    )


def _check_factor(name: str, sites: Mapping[str, SiteColumn]) -> None:
    """Refuse levels of which nobody knows whether they are the same, and words that are none."""
    levels = {site: tuple(column.levels or ()) for site, column in sites.items()}
    rest = [level for own in levels.values() for level in own if level.casefold() not in FOR_MISSING]
    are_numbers = bool(rest) and all(map(DECIMAL.fullmatch, rest))
    for site, own in levels.items():
        if sites[site].kind == "mixed" and SWITCHES & set(own):
            raise TableError("mixes True and False with other values", "write them in one way", site, name)
        check_marks(name, site, own, are_numbers)
        others = [other for other, found in levels.items() if set(found) - SWITCHES]
        if own and set(own) <= SWITCHES and others:
            fact = f"holds {_listed(own, str)} where site {others[0]!r} has {_listed(levels[others[0]])}"
            raise TableError(fact, CODE_ALIKE, site, name)
    mixed = any(any(map(DECIMAL.fullmatch, own)) and not all(map(DECIMAL.fullmatch, own)) for own in levels.values())
    if not mixed:  # of one site that has both they are levels of one coding
        check_coding(name, sites)


def check_marks(name: str, site: str | None, levels: Iterable[str], are_numbers: bool = False) -> None:
    """Refuse texts such as '?', which name no level, and beside numbers words; a TableError names column and site."""
    missing = [level for level in levels if level in MARKS or (are_numbers and level.casefold() in FOR_MISSING)]
    if missing:
        fact = f"holds {_listed(missing)}, which {'stands' if len(missing) == 1 else 'stand'} for a missing value"
        raise TableError(fact, partial(_as_missing, missing), site, name)


def _as_missing(missing: Sequence[str], words: Words) -> str:
    return f"{words.missing(missing)}, or give the level a name"


def _lines_of_numbers(name: str, sites: Mapping[str, SiteColumn]) -> list[str]:
    lines = []
    if {column.kind for column in sites.values()} == {"boolean"}:  # R and patsy make a factor of them
        return [f"{name}: True and False were read as 1 and 0; C({name}) has levels"]
    for site, column in sites.items():
        if column.kind in ("text", "mixed"):
            lines.append(f"{name}: numbers written as text at site {site!r} were read as numbers")
        elif column.kind == "boolean":
            lines.append(f"{name}: True and False at site {site!r} were read as 1 and 0")
    return lines


def _agree_levels(
    name: str, sites: Mapping[str, SiteColumn], reference: str | None, ignore_case: bool, drop_withheld: bool
) -> tuple[AgreedColumn, list[str]]:
    lines = []
    for site, column in sites.items():
        if column.withheld:
            fact = f"has {column.withheld} level(s) with too few rows to be named"
            if not drop_withheld:
                raise TableError(fact, _about_withheld, site, name)
            lines.append(f"{name}: site {site!r} {fact}; rows of levels that no site names are left out")
        written = [f"{cell!r} for {level!r}" for level, cell in column.rewritten.items()]
        if written:
            lines.append(f"{name}: site {site!r} writes {_listed(written, str)}")
    spellings = _spellings(name, {site: column.levels or {} for site, column in sites.items()}, ignore_case)
    lines += [f"{name}: {spelling!r} was read as {level!r}" for spelling, level in spellings.items()]
    order = _order({site: _merged(column.levels or {}, spellings) for site, column in sites.items()}, sites)
    if len(order) < 2:
        raise TableError(
            f"has one level, {order[0]!r}, at all sites" if order else "has no level", "leave it out", column=name
        )
    if reference is not None:
        first = spellings.get(level_name(reference), level_name(reference))
        AgreedColumn("factor", order).require(first, name)
        order = (first, *(level for level in order if level != first))
    for site, column in sites.items():
        levels = _merged(column.levels or {}, spellings)
        lacking = [level for level in order if level not in levels]
        if lacking:
            lines.append(f"{name}: site {site!r} has no row of {_listed(lacking)}")
        if column.is_ordered and levels != [level for level in order if level in levels]:
            lines.append(f"{name}: site {site!r} lists its levels in another order")
    lines += [f"{name}: level {one!r} may stand for a missing value" for one in order if one.casefold() in FOR_MISSING]
    lines.append(f"{name}: levels {_listed(order)}; reference {order[0]!r}")
    return AgreedColumn("factor", order, spellings), lines


def agree_classes(name: str, labels: Mapping[Any, Iterable[Any]]) -> list[str]:
    """Refuse labels of sites by site that hardly mean the same classes; return what a report should say of the others.

    Refused are likely twins, numbers at a site where another has words, and codes of two classes, such as 0 and 1, that
    are not everywhere the same. A line says that no site has three of three or more classes.
    """
    found = {
        site: _in_order({cell if isinstance(cell, str) else level_name(cell) for cell in dict.fromkeys(own)})
        for site, own in labels.items()
    }
    every = set().union(*found.values())
    try:
        _spellings(name, {site: dict.fromkeys(own, 1) for site, own in found.items()}, ignore_case=False)
    except TableError as error:  # nothing here could ignore case
        raise TableError(error.fact, "write them alike", error.site, name) from None
    numbers = {site: own for site, own in found.items() if all(DECIMAL.fullmatch(level) for level in own)}
    words = {site: own for site, own in found.items() if not any(DECIMAL.fullmatch(level) for level in own)}
    _refuse_words_beside_numbers(name, words, numbers)
    pairs = {site: own for site, own in found.items() if len(own) == 2}
    if len(every) < 3 or not pairs or max(map(len, found.values())) > 2:
        return []
    first, pair = min(pairs.items(), key=lambda item: set(item[1]) != {"0", "1"})  # else the first site's
    if len(numbers) == len(found) and all(_is_code(own) for own in pairs.values()):
        site, own = next((site, own) for site, own in found.items() if not set(own) <= set(pair))
        fact = (
            f"holds {' and '.join(own)}, and {' and '.join(pair)} at site {first!r}: no site has more than two of the "
            f"{len(every)} classes, which may be two classes in different codes"
        )
        raise TableError(fact, "code two classes alike at all sites, or write three and more as words", site, name)
    listed = _listed(_in_order(every))
    return [f"{name}: no site has more than two of its {len(every)} classes ({listed}): are all of them meant?"]


def check_coding(name: str, sites: Mapping[str, SiteColumn]) -> None:
    """Refuse a column that is words at one site and numbers at another: such words are a coding, not missing values."""
    levels = {site: tuple(column.levels or ()) for site, column in sites.items()}
    words = {
        site: own
        for site, own in levels.items()
        if own and not sites[site].is_numeric and not set(own) <= SWITCHES and _is_coding(own)
    }
    numbers = {
        site: own
        for site, own in levels.items()
        if sites[site].is_numeric or (own and all(map(DECIMAL.fullmatch, own)))
    }
    _refuse_words_beside_numbers(name, words, numbers)


def _is_coding(levels: Sequence[str]) -> bool:
    """Whether all levels are words, and none stands for a missing value as far as is known."""
    return not any(_is_number(level) or level.casefold() in FOR_MISSING for level in levels)


def _refuse_words_beside_numbers(
    name: str, words: Mapping[str, Sequence[str]], numbers: Mapping[str, Sequence[str]]
) -> None:
    if words and numbers:
        site, own = next(iter(words.items()))
        other, codes = next(iter(numbers.items()))
        fact = f"holds {_listed(own)} where site {other!r} has {_listed(codes, str) or 'numbers'}"
        raise TableError(fact, partial(_about_words, own, True, CODE_ALIKE), site, name)


def _is_code(pair: Sequence[str]) -> bool:
    """Whether two numbers are those by which tables code two classes."""
    low, high = sorted(map(float, pair))
    return high - low == 1 or (low, high) == (-1, 1)


def _spellings(name: str, levels: Mapping[Any, Mapping[str, int]], ignore_case: bool) -> dict[str, str]:
    """Return {other spelling: level} of likely twins, or refuse them; the level is the one that most rows hold."""
    counts: Counter[str] = Counter()
    for own in levels.values():
        counts.update(own)
    alike: dict[str, list[str]] = defaultdict(list)
    for level in _in_order(counts):
        alike[twin(level)].append(level)
    spellings: dict[str, str] = {}
    for group in alike.values():
        folds = set(map(_fold, group))
        if len(group) > 1 and (not ignore_case or len(folds) > 1):
            first, second = group[:2]
            other, site = (next(site for site, own in levels.items() if level in own) for level in (first, second))
            fact = f"holds {second!r}, and {first!r} at site {other!r}: the two differ in case, blanks or zeros alone"
            remedy = "write them alike" if len(folds) > 1 else _about_case
            raise TableError(fact, remedy, site, name)
        kept = max(group, key=lambda level: counts[level])
        spellings |= {level: kept for level in group if level != kept}
    return spellings


def _about_case(words: Words) -> str:
    return f"write them alike, or {words.switch('ignore_case')}"


def _merged(levels: Iterable[str], spellings: Mapping[str, str]) -> list[str]:
    return list(dict.fromkeys(spellings.get(level, level) for level in levels))


def _order(levels: Mapping[str, Sequence[str]], sites: Mapping[str, SiteColumn]) -> tuple[str, ...]:
    """The order that all sites declare, where they declare one and no two disagree; otherwise sorted."""
    union = _in_order({level for found in levels.values() for level in found})
    longest = max(levels.values(), key=len)
    agree = all(list(found) == [level for level in longest if level in set(found)] for found in levels.values())
    if all(column.is_ordered for column in sites.values()) and agree and len(longest) == len(union):
        return tuple(longest)
    return union


def _listed(levels: Sequence[str], written: Callable[[str], str] = repr) -> str:
    shown = ", ".join(map(written, levels[:MOST]))
    return f"{shown}, …" if len(levels) > MOST else shown
