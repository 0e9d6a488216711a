"""A formula in one process: from a table with a column of sites, or a table for each, to a fitted estimator."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from .._errors import ArgumentError
from ..design.agreement import Agreement, Design, Table, design
from ..design.formula import agree, describe_columns, expression_values, require_readable
from ..design.levels import TableError, cells_of, is_missing, level_name, lines_of_classes
from ..design.terms import with_offset
from ..glm.kinds import read_kind
from ..glm.site_statistics import check_clusters

M = TypeVar("M")

OPTIONS = (
    *("weights", "trials", "offset", "exposure", "reference", "ignore_case", "site_intercepts", "reference_site"),
    "as_written",
)
"""Arguments of `fit_formula` beside formula, data and client."""


def fit_formula(
    estimator: M,
    formula: str,
    data: Any,
    client: str | None = None,
    *,
    weights: str | None = None,
    trials: str | None = None,
    offset: str | None = None,
    exposure: str | None = None,
    reference: Mapping[str, str] | None = None,
    ignore_case: bool = False,
    site_intercepts: bool = False,
    reference_site: str | None = None,
    as_written: str | Collection[str] = (),
) -> M:
    """Fit an estimator to the design that a formula makes of the tables of several sites.

    Levels, references, knots and means are agreed by name first (`design.formula.agree`); what cannot be made alike
    is refused. Rows with missing values are left out and counted. Predictions then take tables like those of the fit.

    Parameters
    ----------
    estimator : estimator
        One of this library's. Its `fit_intercept` must be what the formula says.
    formula : str
        As of formulaic and of R: "died ~ age*sex + C(ward) + bs(age, 4) + offset(log(days))".
    data : frame, mapping from names to columns, or mapping from sites to tables
        Of pandas or polars, or anything whose columns NumPy reads.
    client : str, optional
        Column of sites in one table; with a table for each site, the name of the factor of sites, default "site".
    weights : str, optional
        Column of row weights.
    trials : str, optional
        Column of numbers of trials: the target holds the events among them, or their shares; see `FederatedGLM.fit`.
    offset, exposure : str, optional
        Columns that join a formula without offset(…), as offset(column) and, for a log link, as offset(log(column)).
    reference : dict of str to str, optional
        Reference level by column; default its first level.
    ignore_case : bool, default False
        Whether levels that differ in case, or in blanks between words, are one.
    site_intercepts : bool, default False
        Whether each site has an intercept of its own.
    reference_site : str, optional
        Site whose intercept is the model's; default the first by name.
    as_written : str or collection of str, default ()
        Columns whose values mean what they say, though a site shares none of them with the others.

    Returns
    -------
    estimator
        The same, fitted; `agreement_.lines` says what was made alike, `site_missing_` how many rows each site left out.

    Raises
    ------
    TableError
        When the tables cannot be made alike without a guess; it names site and column.
    ArgumentError
        When an argument does not fit the formula.

    Examples
    --------
    >>> from bayesadmm_np.estimators import FederatedLogisticRegression
    >>> wards = {"hospital": ["A"] * 4 + ["B"] * 4, "ward": ["x", "y"] * 4, "died": [0, 1, 1, 0, 1, 1, 0, 0]}
    >>> model = fit_formula(FederatedLogisticRegression(prior_precision=1.0), "died ~ ward", wards, "hospital")
    >>> model.feature_names_in_.tolist()
    ['ward[T.y]']
    >>> model.predict({"ward": ["y", "x"]}).shape
    (2,)
    """
    if exposure is not None:
        read_kind(getattr(estimator, "kind", "poisson")).require_log("exposure")
    if trials is not None and weights is not None:
        raise ArgumentError("weights", "must be left out beside trials, which are the weights", repr(weights))
    if client is not None and not isinstance(client, str):
        raise ArgumentError("client", "must be the name of a column of the table", type(client).__name__)
    tables = split_table(data, client)
    agreement, designs = make_designs(
        tables,
        with_offset(formula, offset, exposure),
        weights=trials or weights,
        reference=reference,
        ignore_case=ignore_case,
        site_intercepts=site_intercepts,
        reference_site=reference_site,
        client=client or "site",
        as_written=as_written,
    )
    fit_designs(estimator, agreement, designs, client, tables, trials is not None)
    return estimator


def fit_designs(
    estimator: Any,
    agreement: Agreement,
    designs: Mapping[str, Design],
    client: str | None,
    tables: Mapping[str, Any],
    has_trials: bool,
) -> None:
    """Fit an estimator to the designs that sites have made of their tables as agreed."""
    import pandas as pd

    if bool(estimator.fit_intercept) != agreement.has_intercept:
        says = "with" if agreement.has_intercept else "without"
        raise ArgumentError("fit_intercept", f"must be {agreement.has_intercept} for a formula {says} an intercept")
    if agreement.parsed.response or agreement.parsed.group or read_kind(estimator.kind).form:
        read_kind(estimator.kind).require_formula(agreement.parsed)
    if agreement.parsed.group is not None:
        named = {site: table for site, table in tables.items() if agreement.parsed.group in table}
        check_clusters({site: table[agreement.parsed.group] for site, table in named.items()})
    if not agreement.names and not agreement.has_intercept:
        raise ArgumentError("formula", "must have a predictor or an intercept", agreement.formula)
    if read_kind(estimator.kind).is_classifier and not agreement.classes and not has_trials:
        labels = {site: [*map(level_name, set(part.y.tolist()))] for site, part in designs.items()}
        said = lines_of_classes(agreement.target, labels)
        agreement = replace(agreement, lines=(*agreement.lines, *said))
    made = list(designs.values())
    indices = [_index(tables[site], part.kept) for site, part in designs.items()]
    index = None if any(own is None for own in indices) else indices[0].append(indices[1:])
    X = pd.DataFrame(np.concatenate([part.matrix for part in made]), index, list(agreement.names))
    y = np.concatenate([part.y for part in made])
    if agreement.classes:
        y = pd.Categorical(y, read_kind(estimator.kind).in_order(agreement.classes))
    given: dict[str, Any] = {"client": np.repeat(np.array([*designs], dtype=object), [len(part.y) for part in made])}
    if agreement.weights is not None:
        given["trials" if has_trials else "sample_weight"] = np.concatenate([part.weights for part in made])
    if agreement.parsed.offsets:
        given["offset"] = np.concatenate([part.offset for part in made])
    estimator.fit(X, y, **given)
    if index is None:
        estimator._rows = {site: replace(rows, index=None) for site, rows in estimator._rows.items()}
    fitted = estimator.fitted_
    sites = {name: replace(site, n_missing=designs[str(name)].n_dropped) for name, site in fitted.sites.items()}
    estimator.fitted_ = replace(
        fitted,
        # the formula has the offset
        columns=replace(fitted.columns, agreement=agreement, target=agreement.said_target, client=client, offset=None),
        sites=sites,
    )


def _index(table: Any, kept: Any) -> Any:
    """Return the labels of a table's rows that are kept; None where no column of pandas has them."""
    column: Any = next((table[name] for name in Table.of(table).names), None)
    return column.index[kept] if hasattr(column, "iloc") else None


def make_designs(
    tables: Mapping[str, Any], formula: str, *, weights: str | None = None, **choices: Any
) -> tuple[Agreement, dict[str, Design]]:
    """Let sites describe their tables, agree on `choices` (see `agree`), and make their designs, in one process."""
    for site, table in tables.items():
        require_readable(table, formula, weights, site)
    said = {site: describe_columns(table, formula, weights=weights) for site, table in tables.items()}

    def quantiles(
        expression: str, probabilities: Sequence[float], low: float = -np.inf, high: float = np.inf
    ) -> list[float]:
        values = np.concatenate([expression_values(table, expression) for table in tables.values()])
        values = values[(low <= values) & (values <= high)]
        if not values.size:
            raise TableError(f"{expression} has no value between the bounds {low:.6g} and {high:.6g}")
        found: list[float] = np.quantile(values, probabilities).tolist()
        return found

    agreement = agree(said, formula, weights=weights, quantiles=quantiles, **choices)
    return agreement, {site: design(table, agreement, site) for site, table in tables.items()}


def split_table(data: Any, client: str | None) -> dict[str, Any]:
    """Return tables by site: as they came, or the rows of one table by its column of sites; in order of their names."""
    parts = list(data.values()) if isinstance(data, Mapping) else []
    if parts and all(isinstance(part, Mapping) or hasattr(part, "columns") for part in parts):
        _require_distinct(data)
        return {str(site): data[site] for site in sorted(data, key=str)}
    names = Table.of(data).names
    if client is None:
        return {"all": data}
    if client not in names:
        raise ArgumentError(
            "client", f"must be a column of the table, which has {', '.join(map(str, names))}", repr(client)
        )
    labels = cells_of(data[client])
    missing: Any = is_missing(data[client])
    if missing.any():
        raise TableError(f"names no site in {int(missing.sum())} row(s)", "fill it in", column=client)
    _require_distinct(dict.fromkeys(labels.tolist()))
    sites = np.array([str(label) for label in labels.tolist()], dtype=object)
    return {
        site: {name: _take(data[name], np.flatnonzero(sites == site)) for name in names}
        for site in sorted({*sites.tolist()})
    }


def _require_distinct(sites: Iterable[Any]) -> None:
    """Refuse sites that would share a name, such as 1 and "1": rows of one would be lost, or count as the other's."""
    names: dict[str, Any] = {}
    for site in sites:
        other = names.setdefault(str(site), site)
        if other is not site and other != site:
            raise ArgumentError("client", "must name each site differently", f"{other!r} and {site!r}")


def _take(column: Any, rows: Any) -> Any:
    # a column of pandas keeps its declared levels
    return column.iloc[rows] if hasattr(column, "iloc") else cells_of(column)[rows]
