"""`bayesadmm evaluate`: predictions of a model against outcomes, by site and pooled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from ._kinds import code_labels, code_of
from ._options import PLAIN, Client, Files, FileSettings, Json, ModelFile, Spread, option
from ._results import Counted
from ._rows import agreement_of, rows_of_model
from ._run_files import read_config, read_model
from ._sites import rules_of
from ._terminal import Refused, note, require_out, show


def evaluate(
    model: ModelFile,
    data: Files,
    /,
    *,
    client: Client = None,
    figure: Annotated[
        Path | None, option("File for a figure of discrimination and calibration: .svg, .pdf or .png.", "FILE")
    ] = None,
    files: Annotated[FileSettings, Spread] = PLAIN,
    json: Json = False,
) -> int:
    """Measure the discrimination and calibration of a classification model, by site and pooled.

    Prints the area under the ROC curve with DeLong's interval, the ratio of observed
    to expected events, the Brier score and the log loss. With three or more classes,
    each class is compared with all others. The sites may differ from the sites of
    the fit; new rows are the better test. Counts from `site evaluate` are coarse,
    and the output says how far its numbers can be from those of the rows.

    Examples of use:
      bayesadmm evaluate model.npz new.csv --client hospital
      bayesadmm evaluate model.npz north.csv south.csv --figure validation.svg
      bayesadmm evaluate model.npz counts-*.npz             of `site evaluate`: no rows

    Exit codes: 0 evaluated; 2 the command, the model or the data were refused;
    4 evaluated, but the likelihood of the model has no maximum.
    """
    from ..estimators.evaluation import evaluate as held_against
    from ..estimators.evaluation import read_counts

    fitted = _model_of_classes(model)
    if figure is not None:
        require_out(figure, [model, *data])
        if figure.suffix not in (".svg", ".pdf", ".png"):
            raise Refused(f"--figure: {figure} must end in .svg, .pdf or .png.")
    if all(path.suffix == ".npz" for path in data):
        found: Any = read_counts(data, fitted)
    else:
        chances, labels, names, sites = _predicted(fitted, data, client, files)
        found = held_against(chances, labels, sites, classes=tuple(names))
    show(found, json)
    if figure is not None:
        from ..demos import style

        with style.context():
            page = style.new_figure(style.WIDTH, 3.3)
            found.plot(page)
            page.savefig(figure, dpi=220)
        note(f"figure written to {figure}.")
    return code_of(fitted, "predictions are limits")


def count(folder: Path, model: Path, data: Path | None, out: Path | None) -> Counted:
    """Write the counts of a site's predictions, under its rules, and list them among its messages."""
    from ..design.terms import parse
    from ..estimators.evaluation import pack_counts, site_counts
    from ..federation.disclosure import checked_counts
    from ..federation.ledger import Entry, Ledger
    from ..federation.lock import locked

    fitted, config = _model_of_classes(model), read_config(folder)
    fitted = replace(fitted, columns=replace(fitted.columns, client=None))
    if len(fitted.columns.classes) > 2:
        raise Refused(
            f"{model}: a model of two classes was expected, and it has {len(fitted.columns.classes)}. Counts of more "
            "classes about the same rows could be subtracted from each other."
        )
    if config.privacy_noise is not None:
        raise Refused(f"{folder}: this site adds noise to what it sends, and counts of predictions have no noise.")
    rules, path = rules_of(config), data or config.data
    chances, labels, names, _ = _predicted(fitted, [Path(f"{config.name}={path}")], None, config)
    out = folder / f"counts-{config.name}.npz" if out is None else out
    require_out(out, [model, path], folder)
    classes = {str(name): int((labels == name).sum()) for name in names}
    whole = site_counts(chances[:, 1], labels == names[1])
    least = max(rules.minimum_rows, 1), rules.minimum_class_count
    is_enough = all(n == 0 or n >= least[1] for n in classes.values()) and len(labels) >= least[0]
    agreed = agreement_of(fitted)
    columns = [name for name in (*agreed.parsed.predictors, fitted.columns.target) if name != agreed.client]
    named = tuple(parse(config.formula).roles) if config.formula else (*config.features, config.target)
    with locked(folder, "site"):
        said = pack_counts(config.name, fitted, whole.coarse(*least) if is_enough else whole)
        entry = Entry.of(said, rules.overrides)
        allowed = replace(rules, allow=rules.allow or named)
        ledger = Ledger.read(folder)
        ledger.enter(checked_counts(config.name, allowed, classes, columns, entry, ledger.entries))
        said.write(out)
    return Counted(written=str(out), site=config.name, rows=len(labels), classes=classes)


def _model_of_classes(path: Path) -> Any:
    fitted = read_model(path)
    if not fitted.columns.classes:
        raise Refused(f"{path}: a model of classes was expected, and it is a {fitted.kind.title}.")
    if fitted.kind.has_trials:
        raise Refused(f"{path}: a model of single outcomes was expected, and this one is of events over trials.")
    return fitted


def _predicted(fitted: Any, data: list[Path], client: str | None, written: FileSettings) -> tuple[Any, Any, Any, Any]:
    """Return probabilities, labels, names of the classes, and sites of rows."""
    from .._text import word

    designs = rows_of_model(fitted, data, client, written, with_weights=False).designs
    names = np.array([word(label) for label in fitted.columns.classes])
    labels = names[np.concatenate([code_labels(fitted, made.y, None) for made in designs.values()])]
    matrix = np.concatenate([made.matrix for made in designs.values()])
    offsets = [made.offset for made in designs.values() if made.offset is not None]
    chances = fitted.probabilities(matrix, offset=np.concatenate(offsets) if offsets else None)
    said = fitted.left_open(matrix, np.isnan(chances))
    if said:
        raise Refused(f"{', '.join(map(str, data))}: rows must have predictions: {said}.")
    return chances, labels, names, np.repeat([*designs], [len(made.y) for made in designs.values()])
