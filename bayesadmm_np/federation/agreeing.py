"""Tables of sites elsewhere, at the server: what the sites agree on, from their hellos alone.

A hello has a description of the columns and no rows (`design.formula.describe_columns`). The first broadcast has in its
spec the agreement by which each site makes its design.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .._errors import ArgumentError
from ..design.agreement import Agreement
from ..design.formula import agree, same_terms
from ..design.levels import TableError
from ..design.terms import parse
from ..glm.kinds import Kind, read_kind
from .columns import INTERCEPT, TableHeader
from .messages import Hello


def features_of(agreement: Agreement, kind: Kind, classes: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of the design, those of parameters beside the coefficients first, and the ones last."""
    if INTERCEPT in agreement.names:
        raise TableError(f"cannot be called {INTERCEPT!r}: that is the column of ones", "rename it", None, INTERCEPT)
    ones = (INTERCEPT,) * (agreement.has_intercept and not kind.has_baseline)
    return (*kind.auxiliaries(classes), *agreement.names, *ones)


def classes_of(agreement: Agreement, kind: Kind) -> tuple[str, ...]:
    """Return the labels of a classifier; an expression is 0 or 1."""
    if not kind.is_classifier:
        if agreement.classes:
            raise TableError(f"holds text, and {kind} needs {kind.target.expected}", "", None, agreement.target)
        return ()
    found = agreement.classes or ("0", "1")
    several = {"classes": 2 + kind.has_reference, "ordered": 3}
    least, most = (several[kind.outputs], len(found)) if kind.outputs in several else (2, 2)
    if not least <= len(found) <= most:
        needs = f"{kind} needs {'two' if most == 2 else f'at least {least}'}"
        fact = f"holds {len(found)} classes at all sites ({', '.join(map(repr, found[:6]))}), and {needs}"
        raise TableError(fact, "", None, agreement.target)
    return tuple(kind.in_order(found))


def agreed_hellos(hellos: Sequence[Hello], choices: Mapping[str, Any] | None) -> tuple[Sequence[Hello], dict[str, Any]]:
    """Return hellos as of sites that have made their designs, and what the spec says of the agreement.

    Hellos are in order of the sites' names; choices are arguments of `design.formula.agree`.
    """
    tables = _tables(hellos)
    if not tables:
        if choices:
            raise ArgumentError(next(iter(choices)), "must be left out where sites describe no tables")
        return hellos, {}
    made = _settled(tables, choices or {})
    made.require_columns(sum(hello.named for hello in hellos))
    kind = read_kind(next(iter(tables.values())).kind)
    classes = classes_of(made, kind)
    features = features_of(made, kind, classes)
    dim = len(features) * kind.n_outputs(len(classes))
    whole = [replace(hello, dim=dim, features=features, classes=classes, table=None) for hello in hellos]
    return whole, {"agreement": made}


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
        if not table.is_list and not same_terms(table.described.formula, first.described.formula):
            expected = f"that of site {first_site}, {first.described.formula!r}"
            raise hello.refusal("formula", expected, table.described.formula)
    if first.is_list:
        for site, table in tables.items():
            _require_same_list(table, site, first, first_site)
    formula = first.described.formula
    return {site: replace(table, described=replace(table.described, formula=formula)) for site, table in tables.items()}


def _require_same_list(table: TableHeader, site: str, first: TableHeader, first_site: str) -> None:
    """Refuse a site whose list has another column; the order is that of the first site's list."""
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


def _settled(tables: Mapping[str, TableHeader], choices: Mapping[str, Any]) -> Agreement:
    first = next(iter(tables.values()))
    described = {site: table.described for site, table in tables.items()}
    settings = {"weights": first.weights, "classes": read_kind(first.kind).has_labels, **choices}
    return agree(described, first.described.formula, **settings)
