"""The sites of a fit in one process: their rows as losses, which answer the questions of `glm.fit`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from .._errors import PLAIN, ArgumentError, Words
from .._validation import Array, frozen
from ..design.rows import SiteRows, require_size
from ..glm.fit import Refused
from ..glm.kinds import Kind
from ..glm.layout import Layout
from ..glm.problem import Problem
from ..glm.questions import Respondent, name_of, pack
from ..losses.base import Loss
from ..losses.likelihood import SiteLikelihood

LARGE = 10.0
"""Mean offset of which a failed run is told: a chance of 5e-5, or counts of 2e4."""

APART = 150.0
"""Means of offsets at two sites, a factor of 1e65 of rates: Newton's way from one to the other is a unit a round."""

OFFSET = (
    "The offsets have a mean of {:g}, and no unpenalised intercept takes it up: fit one ({}), or "
    "subtract a number from the offsets."
)
OVERFLOWS = "site {!r}: the loss overflows at the start of the fit; scale X{}, or look at its rows."


class Sites:
    """Rows of all sites of a fit, an `Ask` of `glm.fit`.

    Parameters
    ----------
    kind : Kind
    rows : dict of SiteRows
        With coded targets: labels 0, 1, …, or numbers.
    noise_variance : float, optional
        The variance that the sites are told, by which they divide their losses.
    n_auxiliary : int, default 0
        First columns of X, which are zeros.
    """

    def __init__(
        self,
        kind: Kind,
        rows: Mapping[Hashable, SiteRows],
        noise_variance: float | None = None,
        n_auxiliary: int = 0,
    ) -> None:
        self.kind, self.rows, self.noise_variance, self.n_auxiliary = kind, dict(rows), noise_variance, n_auxiliary
        self.done = self.floats = 0
        self._designs: tuple[Any, list[Array]] = (None, [])
        self._losses: tuple[Any, list[Loss]] = (None, [])
        self._respondents: tuple[Any, list[Respondent]] = (None, [])

    def losses(self, layout: Layout, noise_variance: float) -> list[Loss]:
        """Return a loss for each site in the units of a run; the last designs and losses are kept."""
        centre = None if layout.centre is None else layout.centre.tobytes()
        if self._designs[0] != centre or not self._designs[1]:
            self._designs = centre, [frozen(layout.design(site.X)) for site in self.rows.values()]
        key = (centre, layout.shift, noise_variance)
        if self._losses[0] != key:
            made = [
                self.kind.make_loss(
                    X,
                    site.y,
                    site.weights,
                    layout.beside(site.offset, len(X)),
                    layout.n_outputs,
                    noise_variance,
                    self.n_auxiliary,
                )
                for X, site in zip(self._designs[1], self.rows.values(), strict=True)
            ]
            self._losses = key, made
        return self._losses[1]

    def __call__(self, problem: Problem, question: Any) -> list[Any]:
        """Return the answers of all sites; `Refused` where some have none, with their reasons."""
        name, losses = name_of(question), self.losses(problem.layout, self.noise_variance or 1.0)
        if self._respondents[0] is not self._losses[0]:
            told = self.noise_variance if self.kind.has_noise else None
            made = [Respondent(self.kind, loss, told, moves=True) for loss in losses]
            self._respondents = self._losses[0], made
        answers, reasons = [], {}
        for site, respondent in zip(self.rows, self._respondents[1], strict=True):
            try:
                answers.append(respondent.answer(name, question))
            except ArgumentError:
                raise
            except ValueError as error:
                reasons[site] = str(error)
        if reasons:
            raise Refused(name, reasons)
        self.done += 1
        sent = [*[question] * len(answers), *answers]
        self.floats += sum(array.size for one in sent for array in pack(one)[1].values())
        return answers

    @cached_property
    def mean_square(self) -> tuple[float, float]:
        """Mean square of the targets about their mean, and the mean weight of a row."""
        y = np.concatenate([site.y for site in self.rows.values()])
        w = np.concatenate([site.weights for site in self.rows.values()])
        with np.errstate(over="ignore"):  # `require_sums` names what is too large
            spread = (y.reshape(w.size, -1) - w @ y / w.sum()) ** 2
            return float(w @ spread.mean(axis=1) / w.sum()), float(w.mean())


def code(
    kind: Kind,
    rows: Mapping[Hashable, SiteRows],
    class_factors: Callable[[Array, Array], Array],
    labels: Array | None,
) -> tuple[Kind, dict[Hashable, SiteRows]]:
    """Return the kind for these classes, and the rows with labels as numbers and weights times their class's factor.

    `class_factors` maps classes and their weights to a factor of the row weights for each class.
    """
    if labels is None:
        return kind, dict(rows)
    targets, weights = [site.y for site in rows.values()], [site.weights for site in rows.values()]
    if not kind.has_trials:
        if labels.size < 2:
            raise ArgumentError("y", "must hold at least two classes", f"one class: {labels.tolist()[0]!r}")
        order = np.argsort(labels)
        codes = order[np.searchsorted(labels[order], np.concatenate(targets))]
        given = np.concatenate(weights)
        counts = np.bincount(codes, weights=given, minlength=labels.size).astype(np.float64)
        edges = np.cumsum([len(target) for target in targets])[:-1]
        targets = np.split(codes, edges)
        weights = np.split(given * class_factors(labels, counts)[codes], edges)
    kind = kind.of_classes(labels.size)
    if kind.outputs == "one" and labels.size > 2:
        binary = "Only binary classification is supported"  # the words that scikit-learn asks for
        raise ArgumentError("y", f"must hold two classes for the kind {kind}", labels.size, binary)
    own = zip(rows.items(), targets, weights, strict=True)
    return kind, {name: SiteRows(site.X, y, w, site.offset, site.index) for (name, site), y, w in own}


def require_sums(sites: Sites, problem: Problem) -> None:
    """Refuse a column whose sums of squares, or a site whose losses without effects, no float holds."""
    kind, layout = sites.kind, problem.layout
    rows = sites.rows.values()
    layout.require_offset(next(iter(rows)).offset)
    for name, site in sites.rows.items():
        kind.require_offset(site.offset, str(name))
    for j, column in enumerate(problem.names):
        require_size(f"column {column!r}", np.array([np.abs(site.X[:, j]).max(initial=0.0) for site in rows]))
    if not problem.classes:
        require_size("y", np.concatenate([site.y.ravel() for site in rows]))
    means = [float(np.average(site.offset, weights=site.weights)) for site in rows if site.offset is not None]
    if not kind.is_least_squares and means and max(means) - min(means) > APART:
        expected = f"must have means within {APART:g} of each other at the sites, as parts of the linear predictor"
        raise ArgumentError(
            "offset", expected, f"{min(means):g} and {max(means):g}", "give the logarithm of an exposure"
        )
    theta = np.zeros(layout.dim)
    for (name, site), loss in zip(sites.rows.items(), sites.losses(layout, 1.0), strict=True):
        with np.errstate(over="ignore", invalid="ignore"):
            squares = site.weights @ site.X**2
            largest = [*squares, loss.value(loss.own_start() if isinstance(loss, SiteLikelihood) else theta)]
        if not np.isfinite(largest).all():
            large = [column for column, square in zip(problem.names, squares, strict=True) if not np.isfinite(square)]
            said = OVERFLOWS.format(name, f", above all {', '.join(large)}" if large else "")
            raise ValueError(" ".join(filter(None, [said, about_offset(rows, layout)])))


def about_offset(rows: Any, layout: Layout, words: Words = PLAIN) -> str:
    """Return a sentence on a large offset that no free intercept takes up; empty where there is none."""
    known: Sequence[Any] = [(site.offset, site.weights) for site in rows if site.offset is not None]
    if not known or layout.shift:
        return ""
    mean = sum(float(weights @ offset) for offset, weights in known) / sum(float(w.sum()) for _, w in known)
    return OFFSET.format(mean, words.argument("fit_intercept")) if abs(mean) > LARGE else ""
