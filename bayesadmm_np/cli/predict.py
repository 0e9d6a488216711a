"""`bayesadmm predict`: new rows from a model file."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from ._options import PLAIN, FileSettings, Json, ModelFile, Spread, option
from ._rows import rows_to_predict
from ._run_files import read_model
from ._terminal import note, print_json, require_out, write_csv

if TYPE_CHECKING:
    from ..design.agreement import Design
    from ..estimators.fitted import FittedGLM


def predict(
    model: ModelFile,
    data: Annotated[Path, option("CSV file of new rows.")],
    /,
    *,
    out: Annotated[Path | None, option("File for the predictions. Default: standard output.", "FILE.csv")] = None,
    dropna: Annotated[
        bool,
        option("Leave out rows with missing values; a column row then holds row numbers of the file, from 1."),
    ] = False,
    files: Annotated[FileSettings, Spread] = PLAIN,
    json: Json = False,
) -> int:
    """Predict new rows from a model file.

    A classification model gives the probability of each class, averaged over the
    posterior if there is one. A regression gives the mean and the standard deviation
    of a new observation. DATA must have the columns of the fit; other columns are
    ignored, and a note names them. A row that the fit does not determine is blank: it
    leaves a dependence of the columns, or goes along several directions of a separation.

    Examples of use:
      bayesadmm predict model.npz new.csv --out predictions.csv
      bayesadmm predict model.npz new.csv --dropna

    Exit codes: 0 predicted; 2 the command, the model or the data were refused;
    4 predicted, but the likelihood of the model has no maximum.
    """
    from ._kinds import code_of

    if out is not None:
        require_out(out, [model, data])
    fitted = read_model(model)
    new, places = rows_to_predict(fitted, data, dropna, files)
    rows = _predicted(fitted, new)
    if dropna:
        rows = [{"row": place, **row} for place, row in zip(places, rows, strict=True)]
    if out is not None:
        write_csv(out, rows)
        note(f"{len(rows)} predictions written to {out}.")
    if json:
        print_json({"rows": len(rows), "out": None if out is None else str(out), "predictions": rows})
    elif out is None:
        writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return code_of(fitted, "predictions are limits, or blank")


def _predicted(model: FittedGLM, rows: Design) -> list[dict[str, Any]]:
    """Return one dictionary a row; what the fit does not determine is None."""
    from .._text import word

    if model.kind.is_classifier:
        chances = model.probabilities(rows.matrix, offset=rows.offset)
        numbers = {f"probability_{word(label)}": chances[:, k] for k, label in enumerate(model.columns.classes)}
        places = model.labels(rows.matrix, offset=rows.offset)
        found: dict[str, Any] = {"predicted": [word(model.columns.classes[k]) if k >= 0 else None for k in places]}
    else:
        found, numbers = {}, dict(zip(("mean", "sd"), model.mean_and_sd(rows.matrix, rows.offset), strict=True))
    said = model.left_open(rows.matrix, np.any([np.isnan(values) for values in numbers.values()], axis=0))
    if said:
        note(f"{said}; what is blank has no number.")
    found |= {
        name: [None if value != value else value for value in values.tolist()] for name, values in numbers.items()
    }
    return [dict(zip(found, row, strict=True)) for row in zip(*found.values(), strict=True)]
