"""Kinds of GLM by the values of a target, and its labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._text import word
from ..design.levels import about_classes, level_name, lines_of_classes
from ..design.rows import read_events
from ..estimators.fitted import FittedGLM
from ..glm.kinds import FORMS, Kind, read_kind
from ._options import RowSettings
from ._rows import Rows, weights_of
from ._terminal import SEPARATED, Refused, note, option_words

MIXED = {"linear": "mixed_linear", "logistic": "mixed_logistic"}
"""Kinds with a random intercept, by those without."""

MANY = 50
"""Texts in a target from which on it is hardly a class label."""
MANY_NUMBERS = 20
"""The same of numbers."""


def choose_kind(rows: Rows, loss: str, settings: RowSettings) -> tuple[Kind, tuple[Any, ...]]:
    """Return the kind of GLM and the classes (none for numbers), and say a choice aloud."""
    values, target = rows.target, rows.agreement.target
    if values.ndim == 2 and values.dtype != object:
        return _kind_of_form(rows, loss), ()
    if settings.trials is not None:
        return _kind_of_trials(rows, loss), (0.0, 1.0)
    is_text = values.dtype == object
    distinct = sorted(set(values.tolist()))
    if len(distinct) == 1 and (loss == "auto" or named_kind(loss).is_classifier):
        raise Refused(f"--target: column {target!r} holds one value, {word(distinct[0])}, in all rows.")
    has_shares = not is_text and distinct[0] >= 0 and distinct[-1] <= 1 and not set(distinct) <= {0.0, 1.0}
    if loss == "auto" and has_shares and rows.weights is not None and (rows.weights == np.rint(rows.weights)).all():
        raise Refused(
            f"--loss: column {target!r} holds numbers from 0 to 1, and the weights are whole: for events over trials "
            f"write --trials {weights_of(settings)} in place of --weights, for measurements --loss linear."
        )
    named = None if loss == "auto" else named_kind(loss)
    if named is not None and (named.has_trials or (named.is_classifier and has_shares)):
        got = f"column {target!r} holds shares like {next(v for v in distinct if v % 1):.4g}" if has_shares else "none"
        raise Refused(f"--loss {named} of events over trials needs --trials, the column of their numbers; {got}.")
    kind = named or named_kind(_guess(target, distinct, is_text, values))
    if not kind.is_classifier:
        check_numbers(kind, target, values)
        return kind, ()
    if not rows.agreement.classes:  # of text the sites agreed
        for line in lines_of_classes(target, {k: map(level_name, set(y.tolist())) for k, y in rows.labels.items()}):
            note(line)
    if kind.outputs == "one" and len(distinct) > 2:
        shown = ", ".join(word(value) for value in distinct[:4])
        measured = not is_text and (len(distinct) > MANY_NUMBERS or not all(value.is_integer() for value in distinct))
        raise Refused(
            f"--loss {kind} needs two classes, but column {target!r} holds {len(distinct)} ({shown}"
            f"{', …' if len(distinct) > 4 else ''}); take --loss {'linear' if measured else 'softmax'}."
        )
    if not is_text and not all(value.is_integer() for value in distinct):
        raise Refused(f"--loss {kind} needs class labels, but column {target!r} holds numbers like {distinct[0]:g}.")
    return kind.of_classes(len(distinct)), tuple(distinct)


def _kind_of_form(rows: Rows, loss: str) -> Kind:
    """Return the kind of a formula with Surv(…) or a random intercept; `auto` is Cox's, or by the target's values."""
    parsed = rows.agreement.parsed
    if parsed.response:
        name = "cox" if loss == "auto" else loss
    else:
        is_event = set(np.unique(rows.target[:, 0]).tolist()) <= {0.0, 1.0}
        name = {"auto": "logistic" if is_event else "linear"}.get(loss, loss)
        name = MIXED.get(name, name)
    kind = named_kind(name)
    if loss != str(kind):
        note(f"loss: {kind}, because the formula has {FORMS[kind.form]}.")
    return kind


def _kind_of_trials(rows: Rows, loss: str) -> Kind:
    target = rows.agreement.target
    kind = named_kind("logistic" if loss == "auto" else loss).of_trials
    if kind is None:
        raise Refused(f"--trials: events over trials are for --loss logistic, got {loss}.")
    if rows.target.dtype == object:
        raise Refused(f"--target: column {target!r} holds text, where --trials needs counts of events or their shares.")
    read_events(rows.target, rows.weights, ("target", "trials"))
    return kind


def named_kind(loss: str) -> Kind:
    """Return the kind of a name, which may have options."""
    try:
        return read_kind(loss)
    except ValueError as error:
        raise Refused(f"--loss: {error}") from error


def check_numbers(kind: Kind, target: str, values: Any) -> None:
    """Refuse a column that does not hold what a kind needs."""
    if values.dtype == object:
        raise Refused(f"--loss {kind} needs numbers, but column {target!r} holds text ({word(min(values))!r}, …).")
    wrong = kind.target.wrong(values)
    if wrong is not None:
        raise Refused(f"--loss {kind} needs {kind.target.expected}, but column {target!r} holds {wrong:g}.")


def _guess(target: str, distinct: Sequence[Any], is_text: bool, values: Any) -> str:
    if len(distinct) == 2 and (is_text or all(value.is_integer() for value in distinct)):
        first, second = map(word, distinct)
        note(f"loss: logistic, because {target!r} is {first} or {second}.")
        return "logistic"
    if is_text:
        if len(distinct) > MANY:
            raise Refused(f"--target: column {target!r} holds {len(distinct)} different texts; is it a class label?")
        note(f"loss: softmax (multinomial logistic), because {target!r} is one of {len(distinct)} classes.")
        return "softmax"
    if all(value.is_integer() for value in distinct):
        kinds = "are classes (--loss softmax), counts (--loss poisson) or measurements (--loss linear)"
        cure = about_classes([*map(level_name, distinct)], f"say whether they {kinds}", option_words())
        raise Refused(
            f"--loss: column {target!r} holds whole numbers from {distinct[0]:g} to {distinct[-1]:g}: {cure}."
        )
    note(f"loss: linear, because {target!r} holds measurements.")
    return "linear"


def code_labels(model: FittedGLM, y: Any, weights: Any) -> Any:
    """Return labels 0 … C − 1, shares of events, or the numbers of a regression; an unknown label is refused."""
    if model.kind.has_trials:
        if weights is None:
            raise Refused("--weights must name the column of trials: the model is one of events over trials.")
        return read_events(y, weights, ("target", "weights"))[0]
    if not model.columns.classes:
        return y
    place = {value: k for k, value in enumerate(model.columns.classes)}
    unknown = sorted({word(value) for value in y.tolist() if value not in place})
    if unknown:
        classes = ", ".join(map(word, model.columns.classes))
        raise Refused(f"--target: column {model.columns.target!r} holds {unknown[0]!r}, but the classes are {classes}.")
    return np.array([place[value] for value in y.tolist()])


def code_of(model: FittedGLM, what: str) -> int:
    """Return the exit code of what a model was used for; where its likelihood has no maximum, say `what` that means."""
    if model.has_maximum:
        return 0
    because = f" (no finite estimate of {', '.join(model.infinite)})" if model.infinite else ""
    note(f"the likelihood of this model has no maximum{because}: {what}; fit with --penalty firth or a prior.")
    return SEPARATED
