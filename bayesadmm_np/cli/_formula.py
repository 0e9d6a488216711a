"""Rows by a formula: tables of files, made alike between the sites, as the other commands take rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .._errors import ArgumentError
from ..design.terms import with_offset
from ._options import ColumnSettings, DataSettings, FormulaSettings
from ._rows import (
    Rows,
    choose_columns,
    read_clusters,
    read_frame,
    read_rows,
    read_sites,
    require_complete,
    require_numeric,
    weights_of,
)
from ._terminal import Refused, note, worded_for_options

if TYPE_CHECKING:
    from ..design.agreement import Agreement, Design
    from ..estimators.fitted import FittedGLM


def require_formula_alone(settings: ColumnSettings) -> None:
    """Refuse options that name columns beside a formula which says them."""
    for name in ("target", "features", "drop", "categorical"):
        if getattr(settings, name):
            raise Refused(f"--{name}: the formula says it; leave --{name} out.")


def rows_of_fit(paths: Sequence[Path], settings: FormulaSettings, intercept: bool = True) -> Rows:
    """Read rows for a fit: by a formula, or by names of columns."""
    if settings.trials is not None and settings.weights is not None:
        raise Refused("--weights: leave it out beside --trials, which are the weights.")
    if settings.formula is not None:
        require_formula_alone(settings)
        with worded_for_options():
            formula = with_offset(settings.formula, settings.offset, settings.exposure)
        rows = _formula_rows(paths, settings, formula)
        if rows.agreement is not None and rows.agreement.has_intercept and not intercept:
            raise Refused("--no-intercept: write '- 1' in the formula.")
        return rows
    if (settings.reference or settings.site_intercepts or settings.ignore_case) and not settings.categorical:
        names = "--reference (a level of a factor), --site-intercepts and --ignore-case"
        raise Refused(f"{names} are for a --formula, or for --categorical; a class is --reference-class.")
    if not settings.target:
        raise Refused("--target must name the column to predict, or --formula say it.")
    return listed_rows(paths, settings, intercept)


def listed_rows(paths: Sequence[Path], settings: DataSettings, intercept: bool = True) -> Rows:
    """Read rows by names of columns: numbers; or with categorical columns by the formula that lists them all."""
    if not settings.categorical:
        return read_rows(paths, settings)
    frame = read_frame(paths[0], settings.separator, settings.na, settings.categorical)
    chosen = choose_columns(frame.columns, settings, paths[0])
    for path in paths:
        table = read_frame(path, settings.separator, settings.na)
        for name in chosen:
            if name not in settings.categorical and name in table.columns:
                require_numeric(table[name].dropna())
    return _formula_rows(paths, settings, list_formula(settings, chosen, intercept))


def levels_of(pairs: Sequence[str]) -> dict[str, str]:
    """Return levels by column, of COLUMN=LEVEL,…."""
    levels = {}
    for pair in pairs:
        column, mark, level = pair.partition("=")
        if not (column and mark and level):
            advice = "the class with which others are compared is --reference-class, of the table"
            raise ArgumentError("reference", "must be COLUMN=LEVEL", repr(pair), advice)
        levels[column] = level
    return levels


def list_formula(settings: ColumnSettings, chosen: Sequence[str], intercept: bool) -> str:
    """Return the formula that lists the chosen columns."""
    from ..design.terms import formula_of_columns

    with worded_for_options():
        return formula_of_columns(
            settings.target,
            chosen,
            factors=settings.categorical,
            offset=settings.offset,
            exposure=settings.exposure,
            intercept=intercept,
        )


def rows_of_model(
    model: FittedGLM, paths: Sequence[Path], *, client: str | None, with_weights: bool = True, **settings: Any
) -> Rows:
    """Read rows with the columns of a fitted model; other settings are those of `DataSettings`."""
    site = client or (model.client if len(paths) == 1 else None)
    if model.columns.agreement is not None:
        return _rows_as_agreed(
            model.columns.agreement, paths, site, DataSettings(target=model.target, **settings), with_weights
        )
    known: dict[str, Any] = {"target": model.target, "offset": model.offset, "exposure": model.exposure}
    return read_rows(paths, DataSettings(client=site, features=model.columns.names, **known, **settings))


def _formula_rows(paths: Sequence[Path], settings: DataSettings, formula: str) -> Rows:
    """Read the files' tables by site, let them agree, and keep the rows that are complete."""
    from ..design.agreement import Table
    from ..design.levels import cells_of
    from ..design.terms import parse
    from ..estimators.formula_fit import make_designs

    choices = {name: getattr(settings, name) for name in ("ignore_case", "site_intercepts") if hasattr(settings, name)}
    with worded_for_options():
        choices["reference"] = levels_of(getattr(settings, "reference", ()))
        roles = parse(formula).roles
        tables = _tables(paths, settings.client, roles, settings)
        agreement, designs = make_designs(
            tables,
            formula,
            weights=weights_of(settings),
            client=settings.client or "site",
            **choices,
        )
    rows = _rows(agreement, designs, settings.dropna)
    cluster = getattr(settings, "cluster", None)
    if cluster is not None:
        own = {site: Table.of(table).named([cluster]) for site, table in tables.items()}
        for site in own:
            if not own[site]:
                raise Refused(f"--cluster: the rows of {site} have no column {cluster!r}.")
        found = [read_clusters(cells_of(own[site][cluster])[made.kept], cluster) for site, made in designs.items()]
        rows = replace(rows, cluster=np.concatenate(found))
    for line in agreement.lines:
        note(f"{line}.")
    return rows


def _rows_as_agreed(
    agreement: Agreement, paths: Sequence[Path], client: str | None, settings: DataSettings, with_weights: bool
) -> Rows:
    """Read rows for a model that a formula made."""
    from ..design.agreement import design

    if settings.weights not in (None, agreement.weights):
        raise Refused(f"--weights: the model's weights are the column {agreement.weights!r}.")
    if not with_weights and agreement.weights is not None:
        columns = {name: column for name, column in agreement.columns.items() if name != agreement.weights}
        agreement = replace(agreement, weights=None, columns=columns)
    with worded_for_options():
        tables = _tables(paths, client, agreement.parsed.roles, settings)
        designs = {site: design(table, agreement, site) for site, table in tables.items()}
    return _rows(agreement, designs, settings.dropna)


def _tables(
    paths: Sequence[Path], client: str | None, roles: Mapping[str, str], settings: DataSettings
) -> dict[str, Any]:
    """Return a table for each site: of a file, or of a column in one file; codes stay as they are written."""
    from ..estimators.formula_fit import split_table

    texts = [name for name, role in roles.items() if role == "factor"]
    frames = read_sites(paths, client, settings.separator, settings.na, texts)
    return frames if client is None else split_table(next(iter(frames.values())), client)


def _rows(agreement: Agreement, designs: Mapping[str, Design], dropna: bool) -> Rows:
    """Stack the complete rows of all sites."""
    require_complete({site: made.missing for site, made in designs.items()}, dropna)
    made = list(designs.values())
    return Rows(
        agreement.names,
        np.concatenate([part.matrix for part in made]),
        np.concatenate([part.y for part in made]),
        None if agreement.weights is None else np.concatenate([part.weights for part in made]),
        np.repeat(np.array([*designs], dtype=object), [int(part.kept.sum()) for part in made]),
        np.concatenate([part.offset for part in made]) if agreement.parsed.offsets else None,
        agreement,
        {name: part.n_dropped for name, part in designs.items()},
    )
