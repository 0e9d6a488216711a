"""`bayesadmm evaluate`: predictions of a model against outcomes, by site and pooled."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np

from ._design import code_labels, code_of
from ._formula import rows_of_model
from ._options import NA, Client, DropNA, Files, Json, ModelFile, Separator, option
from ._run_files import read_model
from ._terminal import Refused, note, print_json, require_out


def evaluate(
    model: ModelFile,
    data: Files,
    /,
    *,
    client: Client = None,
    figure: Annotated[
        Path | None, option("Figure of discrimination and calibration to write: .svg, .pdf or .png.", "FILE")
    ] = None,
    dropna: DropNA = False,
    separator: Separator = ",",
    na: NA = (),
    json: Json = False,
) -> int:
    """Hold a model of classes against outcomes: discrimination and calibration by site and pooled.

    Prints the area under the ROC curve with DeLong's interval, events observed over
    events expected, Brier score and log loss; of three and more classes each against
    all others. The sites need not be those of the fit:
    new rows are the better test. Computed from counts, as sites elsewhere can send.

    Examples of use:
      bayesadmm evaluate model.npz new.csv --client hospital
      bayesadmm evaluate model.npz north.csv south.csv --figure validation.svg

    Exit codes: 0 evaluated; 2 the command, the model or the data were refused;
    4 evaluated, but the likelihood of the model has no maximum.
    """
    from .._text import word
    from ..estimators.evaluation import evaluate as held_against

    fitted = read_model(model)
    if not fitted.classes:
        raise Refused(f"{model}: a model of classes was expected, and it is a {fitted.kind.title}.")
    if figure is not None:
        require_out(figure, [model, *data])
        if figure.suffix not in (".svg", ".pdf", ".png"):
            raise Refused(f"--figure: {figure} must end in .svg, .pdf or .png.")
    rows = rows_of_model(fitted, data, client=client, with_weights=False, dropna=dropna, separator=separator, na=na)
    labels = code_labels(rows, fitted.target, fitted.classes)
    chances = fitted.probabilities(rows.matrix, offset=rows.offset)
    names = np.array([word(label) for label in fitted.classes])
    found = held_against(chances, names[labels], rows.site.astype(str), classes=tuple(names))
    if json:
        print_json(found.to_dict())
    else:
        print(found)
    if figure is not None:
        from ..demos import style

        with style.context():
            page = style.new_figure(style.WIDTH, 3.3)
            found.plot(page)
            page.savefig(figure, dpi=220)
        note(f"figure written to {figure}.")
    return code_of(fitted, "predictions")
