"""`bayesadmm predict`: new rows from a model file."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ._options import NA, Drop, Json, ModelFile, Separator, option
from ._terminal import Refused, note, print_json, require_out, write_csv

if TYPE_CHECKING:
    from ..estimators.fitted import FittedGLM


def predict(
    model: ModelFile,
    data: Annotated[Path, option("CSV file of new rows.")],
    /,
    *,
    out: Annotated[Path | None, option("File of the predictions. Default: standard output.", "FILE.csv")] = None,
    drop: Drop = (),
    dropna: Annotated[
        bool, option("Leave out rows with missing values; a column row then counts the rows of the file from 1.")
    ] = False,
    separator: Separator = ",",
    na: NA = (),
    json: Json = False,
) -> int:
    """Predict new rows from a model file.

    Classification: the probability of each class, integrated over a posterior.
    Regression: mean and standard deviation of a new observation. The columns of the
    fit must be there; others are ignored, and a note names them.

    Examples of use:
      bayesadmm predict model.npz new.csv --out predictions.csv
      bayesadmm predict model.npz new.csv --dropna

    Exit codes: 0 predicted; 2 the command, the model or the data were refused;
    4 predicted, but the likelihood of the model has no maximum.
    """
    from ..estimators.model_file import load_model
    from ._design import code_of

    if out is not None:
        require_out(out, [model, data])
    fitted = load_model(model)
    rows = _predictions(fitted, data, drop, dropna, separator, na)
    if out is not None:
        write_csv(out, rows)
        note(f"{len(rows)} predictions written to {out}.")
    if json:
        print_json({"rows": len(rows), "out": None if out is None else str(out), "predictions": rows})
    elif out is None:
        writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return code_of(fitted, "predictions")


def _predictions(
    model: FittedGLM, path: Path, drop: Sequence[str], dropna: bool, separator: str, missing: Sequence[str]
) -> list[dict[str, Any]]:
    """Return one dictionary a row of the file."""
    from ._rows import read_frame, require_column

    agreement = model.columns.agreement
    used = model.columns.names if agreement is None else agreement.parsed.predictors
    needed = [*used, *filter(None, (model.offset, model.exposure))]
    levels = () if agreement is None else agreement.factors
    frame = read_frame(path, separator, missing, levels)
    for name in drop:
        require_column("--drop", name, frame, path)
    _note_ignored(model, frame, [*needed, *drop])
    if dropna:
        frame, places = _complete(frame, needed)
        return [{"row": place, **row} for place, row in zip(places, _of_frame(model, frame, path, needed), strict=True)]
    return _of_frame(model, frame, path, needed)


def _note_ignored(model: FittedGLM, frame: Any, known: Sequence[str]) -> None:
    agreement = model.columns.agreement
    said = {model.target, model.client} if agreement is None else {*agreement.columns, model.client}
    ignored = [name for name in frame.columns if name.strip() not in {*known, *said}]
    if ignored:
        note(f"the model does not know the column(s) {', '.join(ignored)}: ignored.")


def _complete(frame: Any, needed: Sequence[str]) -> tuple[Any, list[int]]:
    """Return the rows without a missing value, and their numbers in the file, from 1."""
    keep = ~frame[[name for name in frame.columns if name.strip() in needed]].isna().any(axis=1).to_numpy()
    if not keep.all():
        note(f"{int((~keep).sum())} of {len(frame)} rows left out because of missing values.")
    if not keep.any():
        raise Refused("--dropna leaves no rows.")
    return frame[keep].infer_objects(), [int(i) + 1 for i in keep.nonzero()[0]]


def _of_frame(model: FittedGLM, frame: Any, path: Path, needed: Sequence[str]) -> list[dict[str, Any]]:
    """Predict the rows of a frame."""
    from ..design.agreement import design
    from ._formula import worded_for_options
    from ._rows import feature_columns, read_offset

    agreement = model.columns.agreement
    if agreement is not None:
        with worded_for_options():
            made = design(frame, agreement, for_prediction=True)
        return _predicted(model, made.matrix, made.offset)
    lacking = [name for name in needed if name not in frame.columns]
    if lacking:
        raise Refused(f"{path} lacks the column(s) {', '.join(lacking)}, with which the model was fitted.")
    gone = frame[needed].isna().sum()
    if gone.any():
        listed = ", ".join(f"{name} ({count})" for name, count in gone.items() if count)
        raise Refused(f"missing values in {listed}: these rows cannot be predicted, and --dropna leaves them out.")
    table = feature_columns(frame, model.columns.names)
    return _predicted(model, table, read_offset(frame, model.offset, model.exposure))


def _predicted(model: FittedGLM, table: Any, offset: Any) -> list[dict[str, Any]]:
    from ..estimators.fitted import word

    if model.kind.is_classifier:
        chances = model.probabilities(table, offset=offset)
        best = chances.argmax(axis=1)
        names = [f"probability_{word(label)}" for label in model.classes]
        return [
            {"predicted": word(model.classes[k]), **dict(zip(names, map(float, row), strict=True))}
            for k, row in zip(best, chances, strict=True)
        ]
    return [{"mean": float(m), "sd": float(s)} for m, s in zip(*model.mean_and_sd(table, offset), strict=True)]
