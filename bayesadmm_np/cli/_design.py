"""From rows to a problem: which loss, which labels, which design columns in which units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .._text import word
from .._validation import Array
from ..design.levels import agree_classes
from ..design.rows import INTERCEPT, read_events, require_size
from ..estimators.fitted import Columns, FittedGLM
from ..glm.diagnosis import Collinear, Finding, Separation
from ..glm.kinds import Kind, read_kind
from ..glm.layout import Layout
from ._options import DataSettings
from ._rows import Rows, weights_of
from ._terminal import SEPARATED, Refused, note

MANY = 50
"""Texts in a target from which on it is hardly a class label."""
MANY_NUMBERS = 20
"""The same of numbers."""


def choose_kind(rows: Rows, settings: DataSettings) -> tuple[Kind, tuple[Any, ...]]:
    """Return the kind of GLM and the classes (none for numbers), and say a choice aloud."""
    values, target, loss = rows.target, settings.target, settings.loss
    if getattr(settings, "trials", None) is not None:
        return _kind_of_trials(rows, target, loss), (0.0, 1.0)
    is_text = values.dtype == object
    distinct = sorted(set(values.tolist()))
    if len(distinct) == 1 and (loss == "auto" or named_kind(loss).is_classifier):
        raise Refused(f"--target: column {target!r} holds one value, {word(distinct[0])}, in all rows.")
    labels = {site: values[rows.site == site].tolist() for site in dict.fromkeys(rows.site)}
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
    may_be_classes = len(distinct) <= MANY if is_text else all(value.is_integer() for value in distinct)
    if named is not None:
        may_be_classes = named.is_classifier
    is_agreed = rows.agreement is not None or target in getattr(settings, "as_written", ())
    # before a loss is asked for: none is right for two codes
    lines = agree_classes(target, labels, is_agreed) if may_be_classes else []
    kind = named or named_kind(_guess(target, distinct, is_text, values))
    if not kind.is_classifier:
        check_numbers(kind, target, values)
        return kind, ()
    for line in lines:
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


def _kind_of_trials(rows: Rows, target: str, loss: str) -> Kind:
    if loss != "auto" and named_kind(loss).of_classes(2) not in map(read_kind, ("logistic", "binomial")):
        raise Refused(f"--trials: events over trials are for --loss logistic, got {loss}.")
    if rows.target.dtype == object:
        raise Refused(f"--target: column {target!r} holds text, where --trials needs counts of events or their shares.")
    read_events(rows.target, rows.weights, ("target", "trials"))
    return read_kind("binomial")


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
        note(f"loss: logistic, because {target!r} is {first} or {second}; coefficients are those of {second}.")
        return "logistic"
    if is_text:
        if len(distinct) > MANY:
            raise Refused(f"--target: column {target!r} holds {len(distinct)} different texts; is it a class label?")
        note(f"loss: softmax (multinomial logistic), because {target!r} is one of {len(distinct)} classes.")
        return "softmax"
    if all(value.is_integer() for value in distinct):
        raise Refused(
            f"--loss: column {target!r} holds whole numbers from {distinct[0]:g} to {distinct[-1]:g}: say whether they "
            "are classes (--loss softmax), counts (--loss poisson) or measurements (--loss linear)."
        )
    note(f"loss: linear, because {target!r} holds measurements.")
    return "linear"


def code_labels(rows: Rows, target: str, classes: Sequence[Any], has_trials: bool = False) -> Any:
    """Return labels 0 … C − 1, or the numbers of a regression; a label that is not among the classes is refused.

    Of events over trials these are shares.
    """
    if has_trials:
        if rows.weights is None:
            raise Refused("--weights must name the column of trials: the model is one of events over trials.")
        return read_events(rows.target, rows.weights, ("target", "weights"))[0]
    if not classes:
        if rows.target.dtype == object:
            raise Refused(f"--target: column {target!r} holds text, but the model is a regression.")
        return rows.target
    place = {value: k for k, value in enumerate(classes)}
    unknown = sorted({word(value) for value in rows.target.tolist() if value not in place})
    if unknown:
        raise Refused(
            f"--target: column {target!r} holds {unknown[0]!r}, but the classes are {', '.join(map(word, classes))}."
        )
    return np.array([place[value] for value in rows.target.tolist()])


def fit_columns(rows: Rows, standardize: bool, intercept: bool = True) -> Columns:
    """Find, from sums over the sites' rows, the pooled means and standard deviations of the design columns.

    Columns of zeros and ones that a formula made stay as they are. Without an intercept nothing is centred: no
    coefficient could undo it.
    """
    names, plain = rows.names, replace(Columns.plain(rows.names), agreement=rows.agreement)
    centre, scale = plain.centre.copy(), plain.scale.copy()
    weights = np.ones(len(rows.target)) if rows.weights is None else rows.weights
    for j, column in enumerate(rows.matrix.T):
        here = column[weights > 0]
        require_size(f"column {names[j]!r}", here)
        if (here == here[0]).all():
            if intercept and rows.agreement is None:
                note(
                    f"column {names[j]!r} is constant: nothing can be learned about its coefficient. "
                    f"--drop {names[j]} leaves it out."
                )
        elif standardize and not (rows.agreement is not None and np.isin(column, (0.0, 1.0)).all()):
            mean, scale[j] = _moments(column, weights)
            centre[j] = mean if intercept else 0.0
    return replace(plain, centre=centre, scale=scale)


def target_units(kind: Kind, target: Array, weights: Array | None, standardize: bool) -> tuple[float, float]:
    """Return centre and scale of measurements, in units of which a fit computes."""
    if not kind.has_noise or not standardize:
        return 0.0, 1.0
    require_size("y", target)
    centre, scale = _moments(target, np.ones(len(target)) if weights is None else weights)
    return centre, scale or 1.0


def _moments(column: Array, weights: Array) -> tuple[float, float]:
    mean = float(weights @ column / weights.sum())
    return mean, float(np.sqrt(weights @ (column - mean) ** 2 / weights.sum()))


def in_own_units(finding: Finding, columns: Columns, layout: Layout, outputs: Sequence[str]) -> Finding:
    """Return a finding about standardised columns as one about the columns themselves."""

    def moved(terms: Sequence[tuple[str, float]], outputs: Sequence[str]) -> dict[str, float]:
        """Σ a_k z_k as Σ b_k x_k, the constant with the intercepts."""
        names = layout.parameters(columns.names, outputs)
        found: dict[str, float] = {}
        for name, value in terms:
            output, column = divmod(names.index(name), layout.width)
            centre, scale = (columns.centre[column], columns.scale[column]) if column < len(columns.names) else (0, 1)
            found[name] = found.get(name, 0.0) + value / float(scale)
            if centre:
                place = names[(output + 1) * layout.width - 1]
                found[place] = found.get(place, 0.0) - value * float(centre / scale)
        return found

    if isinstance(finding, Collinear):
        column = columns.names.index(finding.column)
        own, constant = float(columns.scale[column]), float(columns.centre[column])
        terms = {name: own * value for name, value in moved(finding.terms, [""]).items()}
        terms[INTERCEPT] = terms.get(INTERCEPT, 0.0) + constant
        size = max(map(abs, terms.values()))
        return replace(finding, terms=tuple((n, v) for n, v in terms.items() if abs(v) > 1e-10 * size))
    if isinstance(finding, Separation):
        way = moved(finding.direction, outputs)
        size = max(map(abs, way.values()))
        way = {name: value / size for name, value in way.items() if abs(value) > 1e-10 * size}
        names = finding.names
        if not finding.is_complete:  # the intercept of other columns is another coefficient
            along = {name for name, _ in finding.direction}
            names = tuple(dict.fromkeys([*way, *(name for name in names if name not in along)]))
        return replace(finding, direction=tuple(way.items()), names=names)
    return finding


def code_of(model: FittedGLM, what: str) -> int:
    """Return the exit code of what a model was used for; where its likelihood has no maximum, say `what` that means."""
    if model.has_maximum:
        return 0
    because = f" (no finite estimate of {', '.join(model.infinite)})" if model.infinite else ""
    note(f"the likelihood of this model has no maximum{because}: {what}; fit with --penalty firth or a prior.")
    return SEPARATED


def site_names(rows: Rows) -> tuple[str, ...]:
    """Return the sites in order of their names, as everywhere."""
    return tuple(sorted({str(name) for name in rows.site}))
