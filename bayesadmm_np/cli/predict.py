"""`bayesadmm predict`: new rows from a model file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from .._archive import replace_text
from ..glm.inference import LEVEL
from ._options import PLAIN, FileSettings, Json, Level, ModelFile, Spread, option
from ._rows import rows_to_predict
from ._run_files import read_model
from ._terminal import note, print_json, require_out

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
    intervals: Annotated[
        bool, option("Give standard errors and intervals of means or probabilities, in place of an observation's sd.")
    ] = False,
    effects: Annotated[
        bool, option("Give the average prediction of the rows, and the average effect of each variable on it.")
    ] = False,
    level: Level = LEVEL,
    files: Annotated[FileSettings, Spread] = PLAIN,
    json: Json = False,
) -> int:
    """Predict new rows from a model file.

    A classification model gives the probability of each class, averaged over the
    posterior if there is one. A regression gives the mean and the standard deviation
    of a new observation. DATA must have the columns of the fit; other columns are
    ignored, and a note names them. If the fit does not determine the prediction of a
    row, the prediction is blank, and a note says why.

    Examples of use:
      bayesadmm predict model.npz new.csv --out predictions.csv
      bayesadmm predict model.npz new.csv --dropna
      bayesadmm predict model.npz new.csv --intervals --level 0.9
      bayesadmm predict model.npz rows.csv --effects        average marginal effects

    Exit codes: 0 predicted; 2 the command, the model or the data were refused;
    4 predicted, but the likelihood of the model has no maximum.
    """
    from ._kinds import code_of

    if out is not None:
        require_out(out, [model, data])
    fitted = read_model(model)
    rows, places, table = rows_to_predict(fitted, data, dropna, files)
    if effects:
        found = _effects(fitted, table, level)
    else:
        found = _with_intervals(fitted, rows, level) if intervals else _predicted(fitted, rows)
    if dropna and not effects:
        found.insert(0, "row", places)
    if out is not None:
        replace_text(out, found.to_csv(index=False, lineterminator="\n"))
        note(f"{len(found)} predictions written to {out}.")
    if json:
        told = None if out is None else str(out)
        print_json({"rows": len(found), "out": told, "predictions": found.to_dict("records")})
    elif out is None:
        print(found.to_csv(index=False, lineterminator="\n"), end="")
    return code_of(fitted, "predictions are limits, or blank")


def _with_intervals(model: FittedGLM, rows: Design, level: float) -> Any:
    """Return a data frame of means or probabilities with their errors and intervals."""
    import pandas as pd

    from .._text import word
    from ..estimators.effects import predict_interval

    found = predict_interval(model, rows.matrix, level=level, covariance=model.record.shown, offset=rows.offset)
    names = ("mean", "std_err", "low", "high")
    each = [found.estimate, found.std_err, found.low, found.high]
    if found.estimate.ndim == 1:
        event = f"probability_{word(model.columns.classes[1])}" if model.kind.is_classifier else _named(model)
        return pd.DataFrame(dict(zip((event, *names[1:]), each, strict=True)))
    return pd.DataFrame(
        {
            f"{'probability' if name == 'mean' else name}_{word(label)}": values[:, c]
            for c, label in enumerate(model.columns.classes)
            for name, values in zip(names, each, strict=True)
        }
    )


def _effects(model: FittedGLM, table: Any, level: float) -> Any:
    """Return a data frame of average effects over the complete rows of a file."""
    import pandas as pd

    from ..estimators.effects import average_effects

    found = average_effects(model, table, level=level, covariance=model.record.shown)
    listed = ("name", "coef", "std_err", "statistic", "p_value", "low", "high")
    return pd.DataFrame([[getattr(one, name) for name in listed] for one in found], columns=list(listed))


def _named(model: FittedGLM) -> str:
    """Return the name of the expected target's column: times have a risk in its place, relative to a row of zeros."""
    return "relative_risk" if model.kind.form == "survival" else "mean"


def _predicted(model: FittedGLM, rows: Design) -> Any:
    """Return a data frame of predictions; what the fit does not determine is missing."""
    import pandas as pd

    from .._text import word

    if model.kind.is_classifier:
        chances = model.probabilities(rows.matrix, offset=rows.offset)
        numbers = pd.DataFrame(
            {f"probability_{word(label)}": chances[:, k] for k, label in enumerate(model.columns.classes)}
        )
        places = model.labels(rows.matrix, offset=rows.offset)
        labels = [word(model.columns.classes[k]) if k >= 0 else None for k in places]
        found = pd.concat([pd.Series(labels, name="predicted", dtype=object), numbers], axis=1)
    elif model.kind.variance is None:  # as a relative risk is no observation
        found = numbers = pd.DataFrame({_named(model): model.expected(rows.matrix, rows.offset)})
    else:
        found = numbers = pd.DataFrame(
            dict(zip(("mean", "sd"), model.mean_and_sd(rows.matrix, rows.offset), strict=True))
        )
    said = model.left_open(rows.matrix, numbers.isna().any(axis=1).to_numpy())
    if said:
        note(f"{said}; their predictions are blank.")
    return found
