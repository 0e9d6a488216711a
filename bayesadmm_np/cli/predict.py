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
    separator: Separator = ",",
    na: NA = (),
    json: Json = False,
) -> None:
    """Predict new rows from a model file.

    Classification: the probability of each class, integrated over the posterior.
    Regression: mean and standard deviation of a new observation. The columns must
    be those of the fit; the target's and the sites' may be there and are ignored.

    Examples of use:
      bayesadmm predict model.npz new.csv --out predictions.csv
      bayesadmm predict model.npz new.csv --drop patient_id

    Exit codes: 0 predicted, 2 the command, the model or the data were refused.
    """
    if out is not None:
        require_out(out, [model, data])
    rows = _predictions(model, data, drop, separator, na)
    if out is not None:
        write_csv(out, rows)
        note(f"{len(rows)} predictions written to {out}.")
    if json:
        print_json({"rows": len(rows), "out": None if out is None else str(out), "predictions": rows})
    elif out is None:
        writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _predictions(
    model_path: Path, path: Path, drop: Sequence[str], separator: str, missing: Sequence[str]
) -> list[dict[str, Any]]:
    """Return one dictionary a row of the file."""
    from ..design.agreement import design
    from ..estimators.model_file import load_model
    from ._formula import worded_for_options
    from ._rows import feature_columns, read_frame, read_offset, require_column

    model = load_model(model_path)
    agreement = model.columns.agreement
    levels = model.columns.levels if agreement is None else agreement.factors
    frame = read_frame(path, separator, missing, levels)
    for name in drop:
        require_column("--drop", name, frame, path)
    if agreement is not None:
        with worded_for_options():
            made = design(frame, agreement, for_prediction=True)
        return _predicted(model, made.matrix, made.offset)
    needed = [*model.columns.names, *filter(None, (model.offset, model.exposure))]
    lacking = [name for name in needed if name not in frame.columns]
    if lacking:
        raise Refused(f"{path} lacks the column(s) {', '.join(lacking)}, with which the model was fitted.")
    known = {*needed, model.target, model.client, *drop}
    extra = [name for name in frame.columns if name not in known]
    if extra:
        raise Refused(
            f"{path} has the column(s) {', '.join(extra)}, which the model does not know: --drop {','.join(extra)} "
            "leaves them out."
        )
    gone = frame[needed].isna().sum()
    if gone.any():
        listed = ", ".join(f"{name} ({count})" for name, count in gone.items() if count)
        raise Refused(f"missing values in {listed}: nothing can be predicted without them.")
    table = feature_columns(frame, model.columns.names, model.columns.levels)
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
