"""A formula over the tables of several sites: the design matrix that the pooled table would have had.

Three steps, with a plain message after the first and the second: each site describes the columns of its table
(`describe_columns`), the server makes them alike or refuses (`agree`), each site makes its design (`design`). What a
transform takes from data (the knots of a spline, the mean of a column) is agreed too: no site computes its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .._errors import ArgumentError
from .._registry import nearest
from .._validation import Array
from .agreement import Agreement, Table, complete_rows, needed_columns
from .bases import quadrature, recurrence
from .levels import (
    AgreedColumn,
    SiteColumn,
    TableError,
    agree_column,
    are_named,
    describe_column,
)
from .levels import require_readable as require_cells
from .terms import MOST_BENDS, SPLINES, Learned, Parsed, parse, read_expression, refuse

Quantiles = Callable[..., Sequence[float]]
"""Quantiles of an expression: of (expression, probabilities), and of values between bounds where these follow."""
FLAT = 1e-14
"""Ratio of β to β₁ below which a polynomial is zero in all rows but for rounding, as for R."""


# --- A site's half --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Moments:
    """Number of values, their mean, and the sum of squared deviations from the mean.

    `alpha` and `beta` are the recurrence of the values' orthogonal polynomials, for poly(…).
    """

    count: int
    mean: float
    squares: float
    alpha: tuple[float, ...] = ()
    beta: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        is_recurrence = (
            MOST_BENDS >= len(self.alpha) in (len(self.beta), len(self.beta) + 1) and min(self.beta, default=1.0) > 0
        )
        if not is_recurrence or not np.isfinite([*self.alpha, *self.beta]).all():
            raise ValueError(f"a recurrence must be finite, with β > 0, got {self}")
        if self.count < 0 or not np.isfinite([self.mean, self.squares]).all() or self.squares < 0:
            raise ValueError(f"moments must be finite, of a count >= 0, got {self}")

    @classmethod
    def of(cls, values: Array, degree: int = 0) -> Moments:
        """Return the moments of some values, at least one, and their recurrence up to a degree."""
        if not np.isfinite(values).all():
            raise ValueError("values must be finite")
        mean = float(values.mean())
        points, counts = np.unique(values, return_counts=True)
        alpha, beta = recurrence(points, counts.astype(np.float64), degree)
        return cls(len(values), mean, float(((values - mean) ** 2).sum()), tuple(alpha), tuple(beta))

    @property
    def rarest(self) -> float:
        """Rows of the rarest value where the recurrence tells all values, which are no more than its degree."""
        is_told = len(self.alpha) > len(self.beta)
        return float(np.rint(self.count * quadrature(self.alpha, self.beta)[1].min())) if is_told else np.inf

    @classmethod
    def pooled(cls, parts: Sequence[Moments]) -> Moments:
        """Return the moments of all values together."""
        count = sum(part.count for part in parts)
        mean = sum(part.count * part.mean for part in parts) / count
        return cls(count, mean, sum(part.squares + part.count * (part.mean - mean) ** 2 for part in parts))


@dataclass(frozen=True)
class SiteColumns:
    """Description of a site's table before the first round: plain values of the formula's columns, no rows.

    `lacking` names columns that the table has not, with the most similar other column of each; `renamed` those with
    blanks around their name. `moments` are for center(…) and scale(…).
    """

    formula: str
    n_rows: int
    n_complete: int
    columns: dict[str, SiteColumn]
    lacking: dict[str, tuple[str, ...]] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)
    moments: dict[str, Moments] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 <= self.n_complete <= self.n_rows < 1 << 53:
            raise ValueError(f"rows must be counts, got {self.n_complete} complete ones of {self.n_rows}")


def describe_columns(
    table: Any, formula: str, *, weights: str | None = None, minimum_count: int = 0, classes: bool = False
) -> SiteColumns:
    """Describe the columns of a site's table that a formula needs.

    Levels of text and of C(…) are named, of predictors where they have `minimum_count` complete rows. Rows of others
    are nowhere in the description, but for `n_rows`: they are no rows of a run. Where the target names `classes`, its
    numbers are levels, too.
    """
    parsed = parse(formula)
    roles, table = roles_of(parsed, weights, classes), Table.of(table)
    own, found = table.own_names(roles), table.named(roles)
    others = [name for name in map(str, table.names) if name.strip() not in roles]
    alike = {name: nearest(name, others) for name in roles if name not in found}
    lacking: dict[str, tuple[str, ...]] = {name: () if near is None else (near,) for name, near in alike.items()}
    complete = complete_rows(found, table.n_rows)
    least = {name: 0 if name == parsed.target else minimum_count for name in found}
    named, withheld = np.ones(table.n_rows, dtype=bool), dict.fromkeys(found, 0)
    while True:  # without the rows of a level others may be rarer
        columns = {
            name: describe_column(column, complete & named, roles[name] == "factor", least[name])
            for name, column in found.items()
        }
        withheld = {name: count + columns[name].withheld for name, count in withheld.items()}
        if not any(column.withheld for column in columns.values()):
            break
        named &= np.all([are_named(column, columns[name]) for name, column in found.items()], axis=0)
    columns = {name: replace(column, withheld=withheld[name]) for name, column in columns.items()}
    moments = {} if lacking else _moments(parsed, Table(tuple(found), found).of_rows(named))
    renamed = {name: str(called) for name, called in own.items() if str(called) != name}
    return SiteColumns(formula, len(complete), int((complete & named).sum()), columns, lacking, renamed, moments)


def require_readable(
    table: Any, formula: str, weights: str | None = None, site: str | None = None, is_list: bool = False
) -> None:
    """Refuse columns that no reading mends where the table is: see `levels.require_readable`."""
    parsed, table = parse(formula), Table.of(table)
    roles = needed_columns(parsed.roles, weights)
    found = table.named(roles)
    complete = complete_rows(found, table.n_rows)
    for name, column in found.items():
        role = "target" if name == parsed.target and roles[name] == "any" else roles[name]
        require_cells(name, column, complete, role, site, is_list)


def roles_of(parsed: Parsed, weights: str | None, classes: bool) -> dict[str, Any]:
    """Return what each column must be; a target of classes is a factor."""
    roles = needed_columns(parsed.roles, weights)
    return {**roles, parsed.target: "factor"} if classes and parsed.target in roles else roles


def expression_values(table: Any, expression: str, rows: Array | None = None) -> Array:
    """Return the values of an expression, rising: in these rows, or, as in R's model.frame, in all that have it."""
    table, read = Table.of(table), read_expression(expression)
    columns = table.named([*read.columns.values()])
    rows = complete_rows(columns, table.n_rows) if rows is None else rows
    values = {name: AgreedColumn("number").read(column, rows, name) for name, column in columns.items()}
    found = np.broadcast_to(np.asarray(read.value(values), dtype=np.float64), (int(rows.sum()),))
    return np.sort(found)


def _moments(parsed: Parsed, table: Table) -> dict[str, Moments]:
    found: dict[str, Moments] = {}
    for call in sorted(parsed.learned, key=lambda call: call.options.get("degree", 0)):  # the highest degree stays
        try:
            if call.name not in SPLINES:
                degree = call.options.get("degree", 0)
                found[call.argument] = Moments.of(expression_values(table, call.argument), degree)
        except ValueError:  # text, log(0) or no row: refused by name when the sites agree
            continue
    return found


def agree(
    sites: Mapping[str, SiteColumns],
    formula: str,
    *,
    reference: Mapping[str, str] | None = None,
    ignore_case: bool = False,
    weights: str | None = None,
    drop_withheld: bool = False,
    site_intercepts: bool = False,
    reference_site: str | None = None,
    client: str = "site",
    quantiles: Quantiles | None = None,
    classes: bool = False,
    as_written: str | Collection[str] = (),
) -> Agreement:
    """Find one design for the tables of all sites, or refuse by site and column.

    `reference` has a level by column, in place of its first one. With `ignore_case` levels that differ in case, or in
    blanks between words, are one. Levels of columns in `as_written` are taken as they are, though a site may share none
    with the others. With `drop_withheld` sites may have left rows of levels out that they do not name. With
    `site_intercepts` a factor of the sites, of the name `client`, joins the formula. `quantiles` is a function from an
    expression and probabilities to quantiles over all sites' rows, for bs(x, df) in one process.
    """
    if not sites:
        raise ArgumentError("sites", "must hold one site at least")
    parsed = parse(formula)
    roles = roles_of(parsed, weights, classes)
    _check_sites(sites, formula, parsed, roles)
    lines = _missing_lines(sites)
    chosen = dict(reference or {})
    target, kept = parsed.target_column, {as_written} if isinstance(as_written, str) else set(as_written)
    if not kept <= set(roles):
        raise ArgumentError("as_written", "must name columns of the formula", repr(sorted(kept - set(roles))[0]))
    columns, coded = {}, {one.factor for one in parsed.expressions.values() if one.is_coded}
    for name, role in roles.items():
        own = {site: found.columns[name] for site, found in sites.items()}
        level = chosen.pop(name, None)
        columns[name], said = agree_column(
            name, own, role, level, ignore_case, drop_withheld, name in kept, name == target, name in coded
        )
        lines += said
    if chosen:
        raise ArgumentError("reference", "must name columns of the formula", repr(sorted(chosen)[0]))
    if columns.get(target, AgreedColumn("number")).kind == "factor" and target in (reference or {}):
        raise ArgumentError("reference", "must name predictors", repr(target), "classes are in order of name")
    learned, said = _learn(parsed, sites, quantiles)
    if not site_intercepts:
        if reference_site is not None:
            raise ArgumentError("reference_site", "must be left out without site_intercepts", repr(reference_site))
        return Agreement(formula, columns, learned, weights, None, (*lines, *said))
    columns[client] = _site_factor(sites, client, columns, reference_site)
    said.append(f"{client}: an intercept for each site; reference {columns[client].levels[0]!r}")
    return Agreement(with_sites(formula, client), columns, learned, weights, client, (*lines, *said))


def same_terms(one: str, other: str, in_any_order: bool = False) -> bool:
    """Return whether two formulas make the same columns, however they are written."""
    order = sorted if in_any_order else list
    first, second = (
        (found.target, order(found.terms), order(found.offsets), found.response, found.group)
        for found in map(parse, (one, other))
    )
    return first == second


def with_sites(formula: str, client: str) -> str:
    """Return a formula with the factor of the sites as its last term."""
    return f"{formula} + {client if client.isidentifier() else f'`{client}`'}"


def site_factor(sites: Iterable[str], reference: str | None) -> AgreedColumn:
    """Return the factor of the sites: the reference first, by default that of the first name."""
    names = sorted(sites)
    first = names[0] if reference is None else reference
    return AgreedColumn("factor", (first, *(name for name in names if name != first)))


def _site_factor(
    sites: Mapping[str, Any], client: str, columns: Mapping[str, Any], reference: str | None
) -> AgreedColumn:
    if client in columns:
        raise ArgumentError("client", "must name no column of the formula, which site_intercepts adds", repr(client))
    names = sorted(sites)
    if reference is not None and reference not in names:
        raise ArgumentError("reference_site", f"must be one of {', '.join(names)}", repr(reference))
    if len(names) < 2:
        raise ArgumentError("site_intercepts", "must be off with one site: its intercept is the model's")
    return site_factor(names, reference)


def require_columns(sites: Mapping[Any, SiteColumns], parsed: Parsed, names: Iterable[str]) -> None:
    """Refuse the first of these columns that a site's table has not, and name the column that was meant."""
    for name in names:
        without = {site: found.lacking.get(name, ()) for site, found in sites.items() if name not in found.columns}
        if not without:
            continue
        site, everywhere = next(iter(without)), len(without) == len(sites)
        near = next(filter(None, without.values()), ()) if everywhere else without[site]
        remedy = "leave it out of the formula" if name in parsed.predictors else ""
        if near:
            same = not everywhere and near[0].strip().casefold() == name.casefold()
            remedy = f"its own name for it is {near[0]!r}: rename it" if same else f"did you mean {near[0]!r}?"
        if everywhere and len(sites) > 1:
            raise TableError("is not in the table of any site", remedy, None, name)
        raise TableError("is not in the table", remedy, site, name)


def _check_sites(sites: Mapping[str, SiteColumns], formula: str, parsed: Parsed, names: Iterable[str]) -> None:
    for site, found in sites.items():
        if found.formula != formula:
            raise TableError(f"described its table for the formula {found.formula!r}, not {formula!r}", "", site)
    require_columns(sites, parsed, names)
    for site, found in sites.items():
        if not found.n_rows:
            raise TableError("has no row", "leave it out", site)
        if not found.n_complete:
            worst = max(found.columns, key=lambda name: found.columns[name].missing)
            count = found.columns[worst].missing
            raise TableError(
                f"is missing in {count} of {found.n_rows} rows, and no row is complete",
                "leave the site or the column out",
                site,
                worst,
            )


def _missing_lines(sites: Mapping[str, SiteColumns]) -> list[str]:
    lines = []
    for site, found in sites.items():
        for name, own in found.renamed.items():
            lines.append(f"{name}: site {site!r} calls it {own!r}")
        lost = found.n_rows - found.n_complete
        if lost:
            gaps = ", ".join(f"{name} {column.missing}" for name, column in found.columns.items() if column.missing)
            withheld = [name for name, column in found.columns.items() if column.withheld]
            why = [f"missing values ({gaps})"] * bool(gaps) + [f"levels of {', '.join(withheld)}"] * bool(withheld)
            lines.append(f"site {site!r}: {lost} of {found.n_rows} rows left out because of {' and '.join(why)}")
    return lines


def _learn(
    parsed: Parsed, sites: Mapping[str, SiteColumns], quantiles: Quantiles | None
) -> tuple[dict[str, Any], list[str]]:
    learned: dict[str, Any] = {}
    lines = []
    for call in parsed.learned:
        if call.text in learned:
            continue
        if call.name in SPLINES:
            learned[call.text] = spline(call, quantiles)
            inner = learned[call.text]["knots"]
            shown = ", ".join(f"{knot:.6g}" for knot in inner)
            low, high = learned[call.text]["lower_bound"], learned[call.text]["upper_bound"]
            lines.append(f"{call.text}: knots at {shown or 'none'}, between {low:.6g} and {high:.6g}")
        elif call.name == "poly":
            learned[call.text] = recurrence_of(call, sites)
            lines.append(f"{call.text}: orthogonal over all sites' rows that have it")
        else:
            learned[call.text] = _moments_of(call, sites)
            scale = learned[call.text]["scale"]
            lines.append(
                f"{call.text}: mean {learned[call.text]['center']:.6g}"
                + ("" if scale is None else f", standard deviation {scale:.6g}")
                + " of all sites' rows that have it"
            )
    return learned, lines


def _moments_of(call: Learned, sites: Mapping[str, SiteColumns]) -> dict[str, float | None]:
    """Pool means and squares; of `standardize` the divisor is n, of `scale` n − 1."""
    for site, found in sites.items():
        if call.argument not in found.moments:
            raise TableError(f"{call.text} has no finite mean there", "", site)
    whole = Moments.pooled([found.moments[call.argument] for found in sites.values()])
    divisor = whole.count if call.name == "standardize" else whole.count - 1
    if call.name == "center":
        return {"center": whole.mean, "scale": None}
    if divisor < 1 or not whole.squares > 0:
        raise TableError(f"{call.argument} is constant over all sites, and {call.text} would divide by zero", "")
    return {"center": whole.mean, "scale": float(np.sqrt(whole.squares / divisor))}


def recurrence_of(call: Learned, sites: Mapping[str, SiteColumns]) -> dict[str, Any]:
    """Pool recurrences of sites: of points that stand for each site's rows."""
    degree, parts = call.options["degree"], []
    for site, found in sites.items():
        own = found.moments.get(call.argument, Moments(0, 0.0, 0.0))
        if not own.count or not own.alpha or (len(own.beta) < degree and len(own.alpha) == len(own.beta)):
            raise TableError(f"{call.text} has no finite polynomials there", "", site)
        points, weights = quadrature(own.alpha, own.beta)
        parts.append((points, own.count * weights))
    points, weights = (np.concatenate(every) for every in zip(*parts, strict=True))
    alpha, beta = recurrence(points, weights, degree)
    if len(beta) < degree or min(beta) < FLAT * beta[0]:
        raise TableError(f"{call.argument} takes too few values for {call.text}", "choose a lower degree")
    return {"alpha": alpha, "beta": [float(weights.sum()), *beta]}


def spline(call: Learned, quantiles: Quantiles | None = None) -> dict[str, Any]:
    """Return knots and bounds of a spline: of its formula, or quantiles over all sites where these are at hand."""
    knots: Any = call.options.get("knots")
    bounds: list[Any] = [call.options.get("lower_bound"), call.options.get("upper_bound")]
    if quantiles is None and (knots is None or None in bounds):
        write = f"write {call.name}(x, knots=(…), lower_bound=…, upper_bound=…)"
        remedy = f"{write}: quantiles disclose values of single rows"
        raise refuse(call.text, "must have its knots and bounds in the formula, if sites keep their tables", remedy)
    if quantiles is not None:
        ends = quantiles(call.argument, [0.0, 1.0])
        bounds = [end if bound is None else bound for end, bound in zip(ends, bounds, strict=True)]
    if quantiles is not None and knots is None:
        least = call.options.get("degree", 3) + bool(call.options.get("include_intercept"))
        inner = call.options["df"] - (1 if call.name == "ns" else least)
        within = bounds if call.name == "ns" else ()  # as in R
        knots = quantiles(call.argument, np.linspace(0, 1, inner + 2)[1:-1].tolist(), *within)
    try:
        low, high = (float(bound) for bound in bounds)
        inner = [float(knot) for knot in knots]
    except (ArithmeticError, TypeError, ValueError) as error:
        raise refuse(call.text, "must have numbers for knots and bounds") from error
    if call.name == "ns" and [low, *inner, high] != sorted({low, *inner, high}):
        shown = ", ".join(f"{knot:.6g}" for knot in inner)
        remedy = f"they are at {shown or 'none'}, between {low:.6g} and {high:.6g}"
        raise refuse(call.text, "must have rising knots, all of them between its bounds", remedy)
    return {"knots": inner, "lower_bound": low, "upper_bound": high}
