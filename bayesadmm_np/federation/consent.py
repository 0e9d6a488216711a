"""A site's consent to a run: every field of its spec is checked against what the site itself has said.

A server makes an agreement from the hellos of all sites, which no site sees. So a site asks whether hellos of others
exist with which its own would give this agreement. What the others decide, such as their levels, the order of levels
and pooled means, must be another basis of the site's own columns, over the same rows.

A table below has the fields of one class. Each has a rule, or a text that says why its value can be whatever it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from .._archive import refusal
from ..design.agreement import Agreement, Design
from ..design.formula import roles_of, same_terms, site_factor, spline, with_sites
from ..design.levels import TRUTH, AgreedColumn, SiteColumn, fold, level_name, number_name
from ..design.terms import SPLINES, parse
from .agreeing import classes_of, features_of
from .spec import RunSpec

FARTHEST = 2.0**26
"""Largest ratio of a mean or scale to the root mean square of the site's own column.

A number x − c keeps half of the digits of x then. A server that chose c without a limit could round every x to one of
two values, by whether it is larger than a threshold.
"""

Rule = Callable[..., None] | str


def require_rules(rules: Mapping[str, Rule], *told: Any) -> None:
    """Refuse the first field whose rule is broken."""
    for rule in rules.values():
        if callable(rule):
            rule(*told)


# --- Whose run it is ------------------------------------------------------------------------------------------


def _sites(spec: RunSpec, site: Any) -> None:
    if site.name not in spec.sites:
        raise refusal("sites", f"names with {site.name!r} among them", list(spec.sites))


def _keys(spec: RunSpec, site: Any) -> None:
    told = dict(zip(spec.sites, spec.keys, strict=True)).get(site.name) if spec.keys else None
    own = None if site.key is None else site.key.identity
    if told != own:
        expected = "left out: this site has no key" if own is None else f"those of the sites, {own} of {site.name}"
        raise refusal("keys", expected, told)


MEMBERS: dict[str, Rule] = {
    "sites": _sites,
    "keys": _keys,
    "rounds": "each round is answered under the rules of the site",
    "seed": "for rules that sample; noise for privacy comes from the operating system",
}
"""Fields that specs of all engines have, but `weights`: rules of (spec, site)."""


# --- A run of losses ------------------------------------------------------------------------------------------


def _own(field: str, own: Callable[[Any], Any], told: Callable[[Any, str], Any] | None = None) -> Rule:
    """Return the rule that a field, or what is `told` of it, is the site's own."""

    def rule(spec: Any, data: Any, name: str) -> None:
        found = getattr(spec, field) if told is None else told(spec, name)
        if found != own(data):
            raise refusal(field, f"that of this site, {own(data)}", found)

    return rule


def _weight(spec: RunSpec, name: str) -> float:
    return spec.weights[spec.sites.index(name)]


def _not_of_a_table(field: str) -> Rule:
    def rule(spec: Any, data: Any, name: str) -> None:
        told = getattr(spec, field)
        if not data.moves and told is not None and (field != "shift" or told):
            raise refusal(field, "left out: this site has no table", "one")

    return rule


GLM: dict[str, Rule] = {
    "weights": _own("weights", lambda data: data.loss.total_weight, _weight),
    "features": _own("features", lambda data: data.features),
    "classes": _own("classes", lambda data: data.classes),
    "loss": _own("loss", lambda data: data.loss.name),
    "prior": _own("prior", lambda data: (data.loss.dim,), lambda spec, name: spec.prior.natural.linear.shape),
    "agreement": _not_of_a_table("agreement"),  # of a table AGREEMENT has the rules
    "centre": _not_of_a_table("centre"),  # of a table `require_origin` has the rules
    "shift": _not_of_a_table("shift"),
    **dict.fromkeys(
        ("method", "expectation", "solver", "tol", "safeguard", "warm_start"),
        "how the site solves its subproblem: sums of first and second order leave, by whatever method",
    ),
    "asks": "each question is answered under the rules of the site, and `refuses` names those that are not",
    **dict.fromkeys(
        ("penalty", "weight_meaning", "tests", "test_type", "sums_only", "stated"),
        "for the server's half alone",
    ),
}
"""Fields of a `GLMSpec` beside `MEMBERS`: rules of (spec, rows as a loss, name of the site)."""


# --- A run of networks ----------------------------------------------------------------------------------------


NETWORK: dict[str, Rule] = {
    "network": _own("network", lambda data: data.network.signature),
    "likelihood": _own("likelihood", lambda data: data.network.likelihood),
    "weights": _own("weights", lambda data: data.mass, _weight),
    "dim": _own("dim", lambda data: data.most),
    **dict.fromkeys(
        ("method", "solver", "prior_precision", "temperature"),
        "how the site trains: its weights leave, by whatever method",
    ),
}
"""Fields of a `NetworkSpec` beside `MEMBERS`: rules of (spec, data, name of the site)."""


# --- An agreement on the columns of tables --------------------------------------------------------------------


def _formula(told: Agreement, own: Any, sites: tuple[str, ...]) -> None:
    """Take the terms of the site's formula, of a list in any order; the last term may be the factor of the sites."""
    base = told.formula
    if told.client is not None:
        base = base.removesuffix(with_sites("", told.client))
        if with_sites(base, told.client) != told.formula:
            base = ""
    if base == own.formula:
        return
    if base and same_terms(base, own.formula, own.is_list):
        return
    raise refusal("formula", f"that of this site, {own.formula}", told.formula)


def _client(told: Agreement, own: Any, sites: tuple[str, ...]) -> None:
    """Take a factor of the sites' names; the design has the site's own name in it, whatever the table has."""
    if told.client is None:
        return
    column = told.columns[told.client]
    if told.client in own.described.columns or column.levels[0] not in sites or len(sites) < 2:
        raise refusal("client", "the factor of two or more sites, and no column of this site's formula", told.client)
    if column != site_factor(sites, column.levels[0]):
        raise refusal("client", f"a factor of the sites {list(sites)}", list(column.levels))


def _columns(told: Agreement, own: Any, sites: tuple[str, ...]) -> None:
    roles = roles_of(parse(own.formula), own.weights, own.row.has_labels)
    if set(told.columns) - {told.client} != set(roles):
        raise refusal("columns", f"those of this site's formula, {sorted(roles)}", sorted(told.columns))
    for name, role in roles.items():
        require_rules(COLUMN, told.columns[name], own.described.columns[name], role, name)


def _learned(told: Agreement, own: Any, sites: tuple[str, ...]) -> None:
    """Take the knots of the formula; of means and scales those that do not cost the site's own column its digits."""
    for call in told.parsed.learned:
        found = told.learned[call.text]
        if call.name in SPLINES:
            if found != spline(call):
                raise refusal("learned", f"the knots and bounds of {call.text}", found)
            continue
        moments = own.described.moments.get(call.argument)
        centre, scale = cast("Any", (found.get("center"), found.get("scale")))
        if call.name == "poly":  # each step of the recurrence moves and divides, as center and scale do
            centre, scale = np.array(found["alpha"]), np.sqrt(cast("list[float]", found["beta"])[1:])
        if moments is None or (scale is None) != (call.name == "center"):
            raise refusal("learned", f"what {call.text} takes from data", found)
        with np.errstate(over="ignore"):
            spread = float(np.sqrt(moments.squares / moments.count))
            size = float(np.hypot(moments.mean, spread))
        is_scale = scale is None or (np.min(scale) > 0 and spread / FARTHEST <= np.min(scale) and _is_near(scale, size))
        if not np.all(is_scale & _is_near(centre, size)):
            raise refusal("learned", f"of the size of this site's own mean and scale of {call.argument}", found)


def _is_near(value: Any, size: Any) -> Any:
    """Return whether numbers are finite, and of a size with which those of the site keep their digits."""
    return np.isfinite(value) & ((size == 0) | (np.abs(value) <= FARTHEST * np.asarray(size)))


def _agreed_weights(told: Agreement, own: Any, sites: tuple[str, ...]) -> None:
    if told.weights != own.weights:
        raise refusal("weights", f"the column of weights of this site, {own.weights}", told.weights)


AGREEMENT: dict[str, Rule] = {
    "formula": _formula,
    "client": _client,
    "weights": _agreed_weights,
    "columns": _columns,
    "learned": _learned,
    "lines": "left out of messages: `GLMSpec.decode` refuses them",
}
"""Rules of (agreement, table of the site, names of the sites)."""


def _kind(told: AgreedColumn, own: SiteColumn, role: str, name: str) -> None:
    expected = "factor" if role == "factor" or (own.kind == "text" and not own.is_numeric) else "number"
    if told.kind != expected:
        raise refusal("kind", f"{expected} for column {name!r} of this site", told.kind)


def _levels(told: AgreedColumn, own: SiteColumn, role: str, name: str) -> None:
    """Take levels in any order, with those of other sites: no row of this site has a level that it has not named."""
    if told.kind == "number":
        return
    named = own.levels or ()
    read = [number_name(level) if told.are_numbers else told.spellings.get(level, level) for level in named]
    if not read or not set(read) <= set(told.levels) or not all(level_name(one) == one != "" for one in told.levels):
        raise refusal("levels", f"those of column {name!r} that this site has named, and others'", "fewer")


def _spellings(told: AgreedColumn, own: SiteColumn, role: str, name: str) -> None:
    wrong = [
        one
        for one, level in told.spellings.items()
        if one in told.levels or (fold(one) != fold(level) and TRUTH.get(one) != level)
    ]
    expected = f"of levels of column {name!r} that differ in case or blanks alone, or of truth values"
    if wrong or (told.spellings and told.are_numbers):
        raise refusal("spellings", expected, "others")


def _are_numbers(told: AgreedColumn, own: SiteColumn, role: str, name: str) -> None:
    if told.are_numbers and (told.kind == "number" or own.kind != "number"):
        raise refusal("are_numbers", f"false for column {name!r} of this site, which is {own.kind}", True)


COLUMN: dict[str, Rule] = {"kind": _kind, "levels": _levels, "spellings": _spellings, "are_numbers": _are_numbers}
"""Rules of (agreed column, description of the site's, role in the formula, name)."""


def require_agreed(spec: Any, own: Any) -> Agreement:
    """Return the agreement of a spec to which a site with a table consents."""
    told: Agreement | None = spec.agreement
    if told is None:
        raise refusal("agreement", "given: this site described the columns of a table", None)
    require_rules(AGREEMENT, told, own, spec.sites)
    classes = classes_of(told, own.row)
    for name, made in (("features", features_of(told, own.row, classes)), ("classes", classes)):
        if getattr(spec, name) != made:
            raise refusal(name, f"those of the agreement, {list(made)}", list(getattr(spec, name)))
    return told


def require_origin(spec: Any, made: Design, has_ones: bool) -> None:
    """Refuse an origin or a shift of offsets that is none of a run which has asked its sites for means."""
    if spec.centre is None:
        if spec.shift:
            raise refusal("shift", "0 where no column is measured from an origin", spec.shift)
        return
    if not (spec.asks and has_ones):
        raise refusal("centre", "left out: the run does not ask its sites for means", "an origin")
    used = made.used[made.kept]
    with np.errstate(over="ignore"):
        sizes = np.sqrt(np.mean(made.matrix[used] ** 2, axis=0))
        offset = None if made.offset is None else float(np.sqrt(np.mean(made.offset[used] ** 2)))
    if spec.centre[-1] or not np.all(_is_near(spec.centre[-1 - sizes.size : -1], sizes)):
        raise refusal("centre", "of the size of this site's own columns, and 0 for the ones", "another")
    if spec.shift and (offset is None or not _is_near(spec.shift, offset)):
        raise refusal("shift", "of the size of this site's own offsets", spec.shift)
