"""`bayesadmm describe`: table one over sites, before a fit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np

from ._options import PLAIN, Client, Drop, Files, FileSettings, Json, Names, Spread, option, read_toml
from ._rows import by_site, read_sites, require_column, require_same_columns
from ._terminal import Refused, option_words, show


def describe(
    data: Files,
    /,
    *,
    client: Client = None,
    columns: Annotated[Names, option("Columns to describe. Default: all.", "A,B")] = (),
    drop: Drop = (),
    dictionary: Annotated[
        Path | None,
        option(
            "What each column may hold: a TOML table for each column, with min, max, levels, most_missing.",
            "FILE.toml",
        ),
    ] = None,
    time: Annotated[
        str | None, option("Column of times: print Kaplan-Meier curves and log-rank tests instead.", "NAME")
    ] = None,
    status: Annotated[str, option("Column of 1 for an event and 0, or an expression as 'status == 2'.", "NAME")] = "",
    by: Annotated[str | None, option("Column of groups that the curves compare.", "NAME")] = None,
    grid: Annotated[str, option("Times at which events are counted, as 0:1000:30.", "FROM:TO:STEP")] = "",
    minimum_count: Annotated[int, option("Fewest events, or censored rows, at a point.", "NUMBER")] = 3,
    files: Annotated[FileSettings, Spread] = PLAIN,
    json: Json = False,
) -> int:
    """Describe the columns of several sites before a fit: table one by site and pooled.

    Prints counts, means, standard deviations, quartiles, levels and missing values.
    Lines with an exclamation mark name what looks wrong: a cholesterol of 0, a site
    with another unit, levels that differ only in spelling, and values that
    contradict the data dictionary.

    Examples of use:
      bayesadmm describe patients.csv --client hospital
      bayesadmm describe north.csv south.csv --dictionary codebook.toml
      bayesadmm describe lung.csv --client site --time days --status died --by sex --grid 0:1050:30

    The file codebook.toml has one table for each column:
      [cholesterol]
      min = 80
      max = 700
      most_missing = 0.1

    Exit codes: 0 described, 1 described, but the data contradict the dictionary,
    2 the command or the data were not understood.
    """
    import pandas as pd

    from ..design.table_one import describe as table_one
    from ..design.table_one import read_dictionary

    frames = read_sites(data, client, files)
    require_same_columns(frames, data)
    if time is not None:
        if not status or not grid:
            raise Refused("--time: give --status and --grid too, as --status died --grid 0:1000:30.")
        from ..estimators.kaplan_meier import survival_table

        parts = by_site(frames, client)
        show(survival_table(parts, time, status, by, client, grid=grid, minimum_count=minimum_count), json)
        return 0
    tables = {name: pd.DataFrame(table) for name, table in by_site(frames, client).items()}
    frame = pd.concat(tables.values(), ignore_index=True)
    site = np.repeat([*tables], [len(table) for table in tables.values()])
    for option_name, names in (("--columns", columns), ("--drop", drop)):
        for name in names:
            require_column(option_name, name, frame.columns, data[0])
    try:
        rules = None if dictionary is None else read_dictionary(read_toml(dictionary, "--dictionary: "))
    except ValueError as error:
        raise Refused(f"--dictionary: {dictionary}: {error}") from error
    wanted = [name for name in columns or frame.columns if name not in (*drop, client)]
    found = table_one(frame, site, dictionary=rules, columns=wanted, words=option_words())
    show(found, json)
    return 1 if found.violations else 0
