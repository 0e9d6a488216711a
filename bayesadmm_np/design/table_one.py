"""The tables of several sites before a fit: table one by site and pooled, and what looks wrong."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from .._errors import PLAIN, ArgumentError, Words
from .._text import aligned
from .._validation import Array
from .levels import TableError, agree_column, describe_column, is_missing, require_readable
from .rows import find_missing, is_nameless, read_client, require_index

QUANTILES = (0.25, 0.5, 0.75)
"""Quartiles of table one."""

MOST_LEVELS = 12
"""Levels of a text column that are listed; more look like names or codes of persons."""

FEW = 5
"""Different numbers up to which each is counted as a level."""

STEPS = 5.0
"""Usual distances between neighbouring values from which on a gap is wide."""

REPEATED = 3
"""Rows from which on one outlying value looks like a code for missing; one outlying zero is enough."""


@dataclass(frozen=True)
class Rule:
    """A column of a data dictionary: range of numbers, levels of text, largest share of missing values at a site."""

    minimum: float = -math.inf
    maximum: float = math.inf
    levels: tuple[str, ...] = ()
    most_missing: float = 1.0


@dataclass(frozen=True)
class Column:
    """A column at one site, or over all; `sd` has n − 1 in its denominator.

    `quantiles` are the smallest value, the quartiles and the largest value; `levels` counts rows of each text, or of
    each of a few numbers.
    """

    n: int
    missing: int
    mean: float | None = None
    sd: float | None = None
    quantiles: tuple[float, ...] = ()
    levels: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Description:
    """Table one over sites; `str` prints it.

    `sites` has the rows of each site, `columns` each column by site, pooled as "all", `findings` what looks wrong, and
    `violations` what contradicts the data dictionary, a sentence each.
    """

    sites: Mapping[str, int]
    columns: Mapping[str, Mapping[str, Column]]
    findings: tuple[str, ...]
    violations: tuple[str, ...]

    def __str__(self) -> str:
        heads = ["", f"all ({sum(self.sites.values())})", *(f"{name} ({n})" for name, n in self.sites.items())]
        lines = [heads, *(line for name, by_site in self.columns.items() for line in _lines(name, by_site))]
        texts = aligned(lines)
        texts.insert(1, "-" * len(texts[0]))
        notes = [f"! {sentence}" for sentence in (*self.violations, *self.findings)]
        return "\n".join([*(text.rstrip() for text in texts), *([""] if notes else []), *notes])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def describe(
    data: Any,
    client: Any = None,
    *,
    dictionary: Mapping[str, Rule] | None = None,
    columns: Sequence[str] | None = None,
    words: Words | None = None,
) -> Description:
    """Return counts, means, standard deviations, quartiles, levels and missing values by site, and what looks wrong.

    Works in one process, on the rows of all sites. A smallest or largest value is a row's own: what is printed here is
    for the owners of the rows.

    Parameters
    ----------
    data : frame or mapping of str to array_like, each (n,)
    client : str or array_like, shape (n,), optional
        Column of the sites, or one label a row; default one site, "all rows".
    dictionary : mapping of str to Rule, optional
        See `read_dictionary`.
    columns : sequence of str, optional
        Columns to describe; default all but the sites'.
    words : Words, optional
        The reader's names for arguments, in advice; default those of Python.

    Raises
    ------
    ValueError
        When a column is not there, or `client` does not fit.

    Examples
    --------
    >>> from bayesadmm_np.estimators import describe
    >>> table = {"age": [61.0, 58.0, 70.0, 66.0], "ward": ["icu", "icu", "er", "er"]}
    >>> found = describe(table, ["north", "north", "south", "south"])
    >>> found.columns["age"]["south"].mean, found.columns["ward"]["all"].levels
    (68.0, {'er': 2, 'icu': 2})
    """
    table = {str(name): np.asarray(data[name]) for name in (data if isinstance(data, Mapping) else data.columns)}
    if isinstance(client, str):
        if client not in table:
            raise ArgumentError("client", f"must be a column ({', '.join(table)}) or one label a row", repr(client))
        client = table.pop(client)
    require_index(data, "data", client=client)
    wanted = list(table) if columns is None else list(columns)
    for name in wanted:
        if name not in table:
            raise ArgumentError("columns", f"must be among {', '.join(table)}", repr(name))
    if not wanted:
        raise ArgumentError("data", "must have a column beside the sites'")
    n_rows = len(table[wanted[0]])
    found = ["all"] * n_rows if client is None else map(str, read_client(client, n_rows))
    labels = ["all rows" if label == "all" else label for label in found]  # "all" is the pooled column
    places = {
        site: np.array([i for i, label in enumerate(labels) if label == site]) for site in sorted({*labels}, key=str)
    }
    described, findings, violations = {}, [], []
    for name in wanted:
        parts = {site: _values(table[name][index]) for site, index in places.items()}
        if len({values.dtype.kind == "f" for values, _ in parts.values() if values.size}) > 1:
            parts = {site: (values.astype(str), missing) for site, (values, missing) in parts.items()}
        finite = {site: _finite(*part) for site, part in parts.items()}  # `_refused` counts the others
        findings += _refused(name, {site: table[name][index] for site, index in places.items()}, words or PLAIN)
        whole = np.concatenate([values for values, _ in finite.values()]), sum(gone for _, gone in finite.values())
        few = np.unique(whole[0]).size <= FEW if whole[0].dtype.kind == "f" else True
        described[name] = {site: _column(*part, few) for site, part in {"all": whole, **finite}.items()}
        findings += _findings(name, finite, described[name])
        if dictionary and name in dictionary:
            violations += _violations(name, dictionary[name], parts)
    violations += [
        f"{name} is in the dictionary and not in the data." for name in dictionary or () if name not in table
    ]
    sites = {site: len(index) for site, index in places.items()}
    return Description(sites, described, tuple(findings), tuple(violations))


def read_dictionary(plain: Mapping[str, Mapping[str, Any]]) -> dict[str, Rule]:
    """Return the rules of a data dictionary: by column the keys min, max, levels and most_missing, each optional."""
    rules = {}
    for name, given in plain.items():
        if not isinstance(given, Mapping) or not set(given) <= {"min", "max", "levels", "most_missing"}:
            raise ArgumentError(f"dictionary: {name}", "must have the keys min, max, levels or most_missing", given)
        try:
            rules[name] = Rule(
                float(given.get("min", -math.inf)),
                float(given.get("max", math.inf)),
                tuple(str(level) for level in given.get("levels", ())),
                float(given.get("most_missing", 1.0)),
            )
        except (TypeError, ValueError) as error:
            raise ArgumentError(f"dictionary: {name}", "must hold numbers, and a list of levels", given) from error
    return rules


# --- A site's half, and the sums ------------------------------------------------------------------------------


def _values(column: Array) -> tuple[Array, int]:
    """Return the values that are there, as numbers or as text without blanks around it, and how many are missing."""
    gone = find_missing(column)
    kept = column[~gone]
    if column.dtype.kind in "biuf":
        return kept.astype(np.float64), int(gone.sum())
    if column.dtype.kind not in "mM":
        try:
            return np.array([float(value) for value in kept]), int(gone.sum())
        except (TypeError, ValueError):
            pass
    return np.array([str(value).strip() for value in kept], dtype=object), int(gone.sum())


def _finite(values: Array, missing: int) -> tuple[Array, int]:
    return values[np.isfinite(values)] if values.dtype.kind == "f" else values, missing


def _column(values: Array, missing: int, has_levels: bool) -> Column:
    levels = dict(Counter(sorted(map(_level, values.tolist())))) if has_levels else {}
    if values.dtype.kind != "f" or not values.size:
        return Column(values.size, missing, levels=levels)
    sd = float(values.std(ddof=1)) if values.size > 1 else None
    quantiles = tuple(np.quantile(values, (0.0, *QUANTILES, 1.0)).tolist())
    return Column(values.size, missing, float(values.mean()), sd, quantiles, levels)


# --- What looks wrong -----------------------------------------------------------------------------------------


def _findings(name: str, parts: Mapping[str, tuple[Array, int]], columns: Mapping[str, Column]) -> list[str]:
    found = []
    empty = [site for site in parts if not columns[site].n]
    if empty:
        found.append(f"{name} has no value at {', '.join(empty)}.")
    values = np.concatenate([part for part, _ in parts.values()])
    if values.dtype.kind == "f":
        return [*found, *_code_for_missing(name, parts, values), *_other_units(name, parts)]
    return found


def _refused(name: str, parts: Mapping[str, Array], words: Words) -> list[str]:
    """Return the sentence by which a fit refuses the column of these sites."""
    if is_nameless(name):
        return [f"{name!r} is a column without a name, as files have for row numbers; leave it out."]
    there: dict[str, Any] = {site: np.logical_not(is_missing(cells)) for site, cells in parts.items()}
    try:
        for site, rows in there.items():
            require_readable(name, parts[site], rows, "any", site)
        said = {site: describe_column(parts[site], rows, False) for site, rows in there.items() if rows.any()}
        levels = {level for column in said.values() for level in column.levels or ()}
        if said and len(levels) <= max(MOST_LEVELS, sum(map(len, parts.values())) // 2):  # more are names of persons
            agree_column(name, said, "any")
    except TableError as error:
        return [error.worded(words)]
    return []


def _code_for_missing(name: str, parts: Mapping[str, tuple[Array, int]], values: Array) -> list[str]:
    """Notice a value that is repeated beyond a wide gap at an end of the column, as a cholesterol of 0 is."""
    found = []
    for end in (values.min(initial=np.inf), values.max(initial=-np.inf)):
        rest = values[values != end]
        times = values.size - rest.size
        # a code stands beside measurements, not beside levels
        if (times < REPEATED and end != 0.0) or np.unique(rest).size < 10:
            continue
        low, high = np.quantile(rest, (0.25, 0.75))
        nearest = rest[np.abs(rest - end).argmin()]
        step = float(np.median(np.diff(np.unique(rest))))  # 1 of counts, whose tails have gaps
        is_far = abs(nearest - end) > max(0.5 * (high - low), STEPS * step)
        if is_far or end < 0.0 <= rest.min():
            counts = {site: int((part == end).sum()) for site, (part, _) in parts.items()}
            where = ", ".join(f"{site} {count}" for site, count in counts.items() if count)
            found.append(
                f"{name} is {end:g} in {times} of {values.size} rows ({where}), and the nearest other value is "
                f"{nearest:g}: does {end:g} stand for a missing value?"
            )
    return found


def _other_units(name: str, parts: Mapping[str, tuple[Array, int]]) -> list[str]:
    """Notice a site whose quartiles lie outside the range of all other sites together."""
    found = []
    there = {site: values for site, (values, _) in parts.items() if values.size}
    for site, values in there.items():
        others = [part for other, part in there.items() if other != site]
        if len(others) < 2:  # of two sites one could not say which
            continue
        rest = np.concatenate(others)
        low, median, high = np.quantile(values, QUANTILES)
        if low < high and (low > rest.max() or high < rest.min()):
            found.append(
                f"{name} has the median {median:g} at {site} and {np.median(rest):g} at the other sites, from "
                f"{rest.min():g} to {rest.max():g}: is it in another unit?"
            )
    return found


def _violations(name: str, rule: Rule, parts: Mapping[str, tuple[Array, int]]) -> list[str]:
    found = []
    for site, (values, missing) in parts.items():
        total = values.size + missing
        if total and missing > rule.most_missing * total:
            found.append(
                f"{name} is missing in {missing} of {total} rows at {site}; allowed are {100 * rule.most_missing:g} %."
            )
        bounded = math.isfinite(rule.minimum) or math.isfinite(rule.maximum)
        if values.dtype.kind == "f":
            wrong = values[(values < rule.minimum) | (values > rule.maximum)] if bounded else values[:0]
        elif bounded and values.size:
            found.append(f"{name} holds text at {site} ({values[0]!r}), and the dictionary says numbers.")
            continue
        else:
            wrong = values[:0]
        if wrong.size:
            found.append(
                f"{name} lies outside [{rule.minimum:g}, {rule.maximum:g}] in {wrong.size} rows at {site}, from "
                f"{wrong.min():g} to {wrong.max():g}."
            )
        unknown = sorted(set(map(_level, values)) - set(rule.levels)) if rule.levels else []
        if unknown:
            found.append(f"{name} has the level {unknown[0]!r} at {site}; allowed are {', '.join(rule.levels)}.")
    return found


def _level(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


# --- Printing -------------------------------------------------------------------------------------------------


def _lines(name: str, by_site: Mapping[str, Column]) -> list[list[str]]:
    """The lines of a column in the table."""
    cells = list(by_site.values())
    missing = [["  missing", *(str(cell.missing) for cell in cells)]] if any(cell.missing for cell in cells) else []
    levels = by_site["all"].levels
    if levels:
        if len(levels) > MOST_LEVELS:
            return [[name, *(f"{len(cell.levels)} levels" for cell in cells)], *missing]
        shown = [[f"  {level}", *(_share(cell, level) for cell in cells)] for level in levels]
        return [[name, *("" for _ in cells)], *shown, *missing]
    whole = [name, *("–" if cell.mean is None else _spread(cell) for cell in cells)]
    middle = ["  quartiles", *(", ".join(f"{q:.4g}" for q in cell.quantiles[1:-1]) for cell in cells)]
    ends = ["  range", *(f"{cell.quantiles[0]:.4g} – {cell.quantiles[-1]:.4g}" if cell.n else "" for cell in cells)]
    return [whole, middle, ends, *missing]


def _spread(cell: Column) -> str:
    return f"{cell.mean:.4g}" if cell.sd is None else f"{cell.mean:.4g} ± {cell.sd:.3g}"


def _share(cell: Column, level: str) -> str:
    count = cell.levels.get(level, 0)
    return f"{count} ({100 * count / cell.n:.0f} %)" if cell.n else "0"
