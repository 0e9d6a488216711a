"""Tables of sites elsewhere, at the server: what must be asked, and what the sites agree on, from their hellos alone.

    hello      site → server    a description of the columns, no rows (`design.formula.describe_columns`)
    grids      server → sites   rising numbers, where knots of a spline are quantiles of all rows
    hello      site → server    again, with the counts on all grids so far
    broadcast  server → sites   the first: its spec holds the agreement by which each site makes its design

Without such splines there are no grids. A server keeps nothing between two of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from .._errors import ArgumentError
from .._validation import Array
from ..design.agreement import Agreement
from ..design.formula import agree, quantiles_needed, quantiles_of
from ..design.levels import TableError
from ..design.order_statistics import Bracket, next_grid
from ..design.terms import parse
from ..glm.kinds import Kind, read_kind
from .columns import INTERCEPT, TableHeader, asked_of, count_name
from .messages import Hello, Message, read_hellos


def features_of(agreement: Agreement) -> tuple[str, ...]:
    """Return the columns of the design, with the ones last."""
    if INTERCEPT in agreement.names:
        raise TableError(f"cannot be called {INTERCEPT!r}: that is the column of ones", "rename it", None, INTERCEPT)
    return (*agreement.names, INTERCEPT) if agreement.has_intercept else agreement.names


def classes_of(agreement: Agreement, kind: Kind) -> tuple[str, ...]:
    """Return the labels of a classifier; an expression is 0 or 1."""
    if not kind.is_classifier:
        if agreement.classes:
            raise TableError(f"holds text, and {kind} needs {kind.target.expected}", "", None, agreement.target)
        return ()
    found = agreement.classes or ("0", "1")
    least, most = (2 + kind.has_reference, len(found)) if kind.outputs == "classes" else (2, 2)
    if not least <= len(found) <= most:
        needs = f"{kind} needs {'two' if most == 2 else f'at least {least}'}"
        fact = f"holds {len(found)} classes at all sites ({', '.join(map(repr, found[:6]))}), and {needs}"
        raise TableError(fact, "", None, agreement.target)
    return found


def needed_grids(hellos: Sequence[Message | Hello], task: Any) -> Message | None:
    """Return the grids on which sites must count before a run can begin; None where their hellos are enough.

    Parameters
    ----------
    hellos : sequence of Message or Hello
        The last of each site.
    task : GLMTask or NetworkTask

    Returns
    -------
    Message or None
        Of kind "grids"; a step of a site answers them by another hello.

    Raises
    ------
    MessageError, TableError
        When the sites cannot agree.

    Examples
    --------
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> from bayesadmm_np.federation import Coordinator, GLMTable, GLMTask, Site, needed_grids
    >>> table = {"died": [0, 1, 1, 0], "age": [61, 54, 70, 38]}
    >>> site = Site("Basel", GLMTable(table, "died ~ bs(age, 2, degree=1)", shares_quantiles=True))
    >>> task = GLMTask(ba.methods.PVI(), lambda d: ba.families.FullGaussian(np.zeros(d), 1.0))
    >>> hellos = [site.hello()]
    >>> while (grids := needed_grids(hellos, task)) is not None:
    ...     hellos = [site.step(grids)[1]]
    >>> Coordinator.start(hellos, task).spec.agreement.lines[-1]
    'bs(age, 2, degree=1): knots at 57.5, between 38 and 70'
    """
    read = read_hellos(hellos)
    tables = _tables(read)
    if not tables:
        return None
    made = _settled(read, tables, getattr(task, "choices", None) or {})
    return made if isinstance(made, Message) else None


def agreed_hellos(hellos: Sequence[Hello], choices: Mapping[str, Any] | None) -> tuple[Sequence[Hello], dict[str, Any]]:
    """Return hellos as of sites that have made their designs, and what the spec says of the agreement.

    Parameters
    ----------
    hellos : sequence of Hello
        In the order of the sites' names.
    choices : dict
        Of `design.formula.agree`: reference, ignore_case, site_intercepts, reference_site.
    """
    tables = _tables(hellos)
    if not tables:
        if choices:
            raise ArgumentError(next(iter(choices)), "must be left out where sites describe no tables")
        return hellos, {}
    made = _settled(hellos, tables, choices or {})
    if isinstance(made, Message):
        raise ValueError("hellos must have the counts that needed_grids asks for.")
    kind = read_kind(next(iter(tables.values())).kind)
    features, classes = features_of(made), classes_of(made, kind)
    dim = len(features) * kind.n_outputs(len(classes))
    whole = [replace(hello, dim=dim, features=features, classes=classes, table=None, columns={}) for hello in hellos]
    return whole, {"agreement": made, **_pooled_units(tables, made, features)}


def _tables(hellos: Sequence[Hello]) -> dict[str, TableHeader]:
    """Descriptions by site: of all sites or of none, for one kind of GLM, weighted or not, of one formula."""
    found = {hello.site: hello for hello in hellos}
    tables = {site: hello.table for site, hello in found.items() if hello.table is not None}
    if not tables:
        return {}
    for site, hello in found.items():
        if hello.table is None:
            other = next(iter(tables))
            expected = f"a description of columns, as site {other} gives one, so that all have one formula or list"
            raise hello.refusal("table", expected, f"numbers alone at {site}")
    first_site, first = next(iter(tables.items()))
    for site, table in tables.items():
        hello = found[site]
        for name in ("kind", "weights", "is_list"):
            if getattr(table, name) != getattr(first, name):
                raise hello.refusal(name, f"that of site {first_site}, {getattr(first, name)!r}", getattr(table, name))
        if not table.is_list and table.described.formula != first.described.formula:
            expected = f"that of site {first_site}, {first.described.formula!r}"
            raise hello.refusal("formula", expected, table.described.formula)
        if bool(table.units) != bool(first.units):
            raise hello.refusal("standardize", f"as at site {first_site}", "columns in other units")
    if not first.is_list:
        return tables
    return {site: _as_listed(table, site, first, first_site) for site, table in tables.items()}


def _as_listed(table: TableHeader, site: str, first: TableHeader, first_site: str) -> TableHeader:
    """Take the order of the first site's list; a site with another column is refused."""
    own, told = (parse(one.described.formula) for one in (table, first))
    for name, role in own.roles.items():
        if told.roles.get(name) != role:
            how = "is not used" if name not in told.roles else "is used in another way"
            remedy = "choose the same columns everywhere, with the same ones as factors"
            raise TableError(f"{how} at site {first_site!r}", remedy, site, name)
    if own.target != told.target or set(own.offsets) != set(told.offsets) or len(own.terms) != len(told.terms):
        lacking = sorted(set(told.roles) - set(own.roles))
        fact = f"is used at site {first_site!r} and not here"
        raise TableError(fact, "choose the same columns everywhere", site, lacking[0] if lacking else own.target)
    return replace(table, described=replace(table.described, formula=first.described.formula))


def _settled(
    hellos: Sequence[Hello], tables: Mapping[str, TableHeader], choices: Mapping[str, Any]
) -> Agreement | Message:
    """The agreement, or the grids that it needs."""
    first = next(iter(tables.values()))
    formula, kind = first.described.formula, read_kind(first.kind)
    described = {site: table.described for site, table in tables.items()}
    settings = {"weights": first.weights, "classes": kind.is_classifier, **choices}
    wanted = quantiles_needed(formula)
    if not wanted or not all(set(table.ranges) == set(wanted) for table in tables.values()):
        return agree(described, formula, **settings)
    with suppress(_EnoughError):  # what does not fit is refused before anything is asked
        agree(described, formula, quantiles=_enough, **settings)
    n_rows = sum(table.described.n_complete for table in tables.values())
    needed = list(wanted)
    brackets = {name: _brackets(name, wanted[name], n_rows, tables.values()) for name in needed}
    levels: list[dict[int, Array]] = []
    while grids := {index: grid for index, name in enumerate(needed) if (grid := next_grid(brackets[name])).size}:
        levels.append(grids)
        if not all(_has_counted(tables[hello.site], levels) for hello in hellos):
            arrays = {count_name(level, index): grid for level, of in enumerate(levels) for index, grid in of.items()}
            return Message("grids", {"formula": formula, "levels": len(levels)}, arrays, "grids")
        for index, grid in grids.items():
            counts = np.sum([_counts(hello, len(levels) - 1, index, grid.size) for hello in hellos], axis=0)
            known = brackets[needed[index]]
            brackets[needed[index]] = [one if one.is_exact else one.narrowed(grid, counts) for one in known]
    values = {(name, one.rank): one.low for name, found in brackets.items() for one in found}
    return agree(described, formula, quantiles=quantiles_of(lambda *key: values[key], n_rows), **settings)


class _EnoughError(Exception):
    """The columns were agreed on, and quantiles are asked for."""


def _enough(expression: str, probabilities: Sequence[float]) -> Sequence[float]:
    raise _EnoughError


def _brackets(name: str, probabilities: Sequence[float], n_rows: int, tables: Collection[TableHeader]) -> list[Bracket]:
    """Where the order statistics lie of which the quantiles are made, as far as the sites' ranges say it."""
    low, high = min(one.ranges[name][0] for one in tables), max(one.ranges[name][1] for one in tables)
    ranks: set[int] = set()

    def noted(expression: str, rank: int) -> float:
        ranks.add(rank)
        return low

    quantiles_of(noted, n_rows)(name, probabilities)
    return [Bracket(rank, high if rank == n_rows else low, low if rank == 1 else high) for rank in sorted(ranks)]


def _has_counted(table: TableHeader, levels: Sequence[Mapping[int, Array]]) -> bool:
    """Whether a site has counted on these grids; counts on others, from before its rows changed, are of no use."""
    return table.asked[: len(levels)] == tuple(map(asked_of, levels))


def _counts(hello: Hello, level: int, index: int, size: int) -> Array:
    name, n_rows = count_name(level, index), hello.rows
    counts = hello.columns.get(name, np.zeros(0))
    if counts.size != 2 * size:
        raise hello.refusal(name, f"{2 * size} counts", counts.size)
    counts = counts.reshape(2, size)
    below, upto = counts
    rises = (np.diff(counts, axis=1) >= 0).all() and (below <= upto).all()
    if not (rises and (counts == np.floor(counts)).all() and counts.min() >= 0 and counts.max() <= n_rows):
        raise hello.refusal(name, f"rising counts of at most {n_rows} rows", "others")
    return counts


def _pooled_units(tables: Mapping[str, TableHeader], agreement: Agreement, features: Sequence[str]) -> dict[str, Array]:
    """Means and standard deviations of columns of numbers over all sites; levels are left as they are."""
    if not any(table.units for table in tables.values()):
        return {}
    centre, scale = np.zeros(len(features)), np.ones(len(features))
    for j, name in enumerate(features):
        if name not in agreement.columns or agreement.columns[name].kind != "number":
            continue
        for site, table in tables.items():
            if name not in table.units:
                raise TableError("has no mean and standard deviation", "write its values as numbers", site, name)
        parts = [table.units[name] for table in tables.values()]
        count = sum(part.count for part in parts)
        mean = sum(part.count * part.mean for part in parts) / count
        squares = sum(part.squares + part.count * (part.mean - mean) ** 2 for part in parts)
        if squares > 0:
            centre[j] = mean if agreement.has_intercept else 0.0
            scale[j] = np.sqrt(squares / count)
    return {"centre": centre, "scale": scale}
