"""A generalised linear model as the loop takes it: parameter layout, one loss a site, and the null model."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._errors import ArgumentError
from .._numerics import EPS
from .._text import word
from .._threads import one_thread_where_small
from .._validation import Array, frozen
from ..design.rows import Layout, SiteRows
from ..families.coordinates import Natural
from ..losses.base import Loss
from ..splitting.distance import Distance
from .inference import FAR, FitStatistics, Noise, fit_statistics
from .kinds import Kind
from .own_fit import OwnFit, own_fit
from .prior import deviations_of
from .site_statistics import WeightMeaning

HOLD = 1.0 / EPS
"""Prior precision that holds a coefficient at zero, relative to the information that the rows seem to have on it."""

CHANGE = 1e3
"""Most that the information may change from the model without effects to a fit, for a held coefficient to be known."""


def are_held(precision: Array, information: Array) -> NDArray[np.bool_]:
    """Return which coefficients their prior precisions hold at zero, where a fit has some information on them."""
    return np.asarray(CHANGE / HOLD * precision > information)


@dataclass(frozen=True, eq=False)
class Glm:
    """A kind of GLM on the rows of all sites.

    `rows` has design, coded target, weights and offset of each site: the one copy of the data that losses share. `null`
    are the intercepts of the model without features, and `information` = Σ_i w_i ℓ''(null) is the Fisher information of
    one intercept there, at noise variance 1; `dropped` is the part of −log likelihood that the losses leave out. Where
    there is a noise variance, `n_observed` counts rows (Σ_i w_i of frequency weights) times outputs, each of which adds
    ½ log σ² to −log likelihood, and `null_variance` is the mean square of y about its mean. `labels` are those of the
    classes; `is_single` says whether the target came as a vector; `held` has the places in θ that are held at zero,
    because other columns say what theirs says.
    """

    kind: Kind
    layout: Layout
    names: tuple[Hashable, ...]
    rows: tuple[SiteRows, ...]
    null: Array
    information: float
    dropped: float
    n_observed: float = 0.0
    null_variance: float = 0.0
    labels: Any = None
    is_single: bool = True
    held: tuple[int, ...] = ()
    weights: WeightMeaning = "frequency"

    def loss(self, theta: Array, noise: float) -> float:
        """Return Σ_k ℓ_k(θ)."""
        return float(sum(one.value(theta) for one in self.losses(noise)))

    def information_on(self, j: int) -> float:
        """Return about the information of all rows on θ_j, about zero; an intercept's where the column is one of zeros.

        Of a constant column centring leaves rounding, which says nothing: its constant counts.
        """
        column = j % self.layout.width
        total = sum(site.weights.sum() for site in self.rows)
        square = sum(squares[column] for squares in self.squares) / total
        if self.layout.centre is not None and column < self.layout.n_features:
            square += self.layout.centre[column] ** 2
        return self.information * float(square if square > 0.0 else 1.0)

    @cached_property
    def squares(self) -> tuple[Array, ...]:
        """Σ_i w_i x_ij² of each column of the design, one row a site; not finite where no float holds it."""
        with np.errstate(over="ignore", invalid="ignore"):
            return tuple(site.weights @ site.X**2 for site in self.rows)

    @cached_property
    def moments(self) -> tuple[Array, Array]:
        """Means and standard deviations of the columns over all rows, from sums over sites."""
        p = self.layout.n_features
        total = sum(site.weights.sum() for site in self.rows)
        means = np.sum([site.weights @ site.X[:, :p] for site in self.rows], axis=0) / total
        squares = np.sum([site.weights @ (site.X[:, :p] - means) ** 2 for site in self.rows], axis=0) / total
        far = means + (0.0 if self.layout.centre is None else self.layout.centre)
        return means, deviations_of(squares, far)

    def losses(self, noise: float) -> Sequence[Loss]:
        """Return one loss a site at a noise variance; designs are shared, and the last losses are kept."""
        if noise not in self._made:
            self._made.clear()
            self._made[noise] = [
                self.kind.make_loss(site.X, site.y, site.weights, site.offset, self.layout.n_outputs, noise)
                for site in self.rows
            ]
        return self._made[noise]

    @cached_property
    def _made(self) -> dict[float, list[Loss]]:
        return {}

    @property
    def shares(self) -> Array | None:
        """Weight of each class; None of numbers."""
        if self.labels is None:
            return None
        if self.kind.has_trials:
            return np.sum([site.weights @ np.column_stack([1.0 - site.y, site.y]) for site in self.rows], axis=0)
        return np.sum([np.bincount(site.y, site.weights, self.labels.size) for site in self.rows], axis=0)

    @property
    def outputs(self) -> tuple[str, ...]:
        """One name an output: of its class, or y0, y1, …; an empty one where there is a single output."""
        return self.kind.output_names([word(label) for label in self.classes], self.layout.n_outputs)

    @property
    def classes(self) -> list[Any]:
        """Labels of the classes; none of numbers."""
        return [] if self.labels is None else list(self.labels.tolist())

    def statistics(self, theta: Array, noise: float, source: Noise, **robust: Any) -> FitStatistics | None:
        """Return the sums over the sites that a table needs beside the coefficients; see `fit_statistics`.

        None where a loss from elsewhere does not tell its rows apart, or a sum is no number.
        """
        losses = dict(zip(self.names, self.losses(noise), strict=True))
        if any(type(loss).rows is Loss.rows for loss in losses.values()):
            return None
        # with offsets the intercepts alone are a fit of their own
        begins = self.layout.is_intercept if any(site.offset is not None for site in self.rows) else None
        settings = {"is_intercept": begins, "noise": source, "noise_variance": noise, "weights": self.weights, **robust}
        found = fit_statistics(self.kind, losses, theta, self.null_parameter, **settings)
        return found if found.total.is_finite else None

    def own_fits(self, held: NDArray[np.bool_]) -> dict[Hashable, OwnFit]:
        """Return each site's own maximum-likelihood fit, without the coefficients `held`; see `own_fit`.

        A site has none whose loss, from elsewhere, does not tell its rows apart.
        """
        found, free = {}, ~held[: self.layout.width]
        for name, loss in zip(self.names, self.losses(1.0), strict=True):
            with suppress(ValueError):
                found[name], _ = own_fit(self.kind, loss, free, weights=self.weights)
        return found

    @property
    def null_parameter(self) -> Array:
        """θ of the model without features."""
        theta = np.zeros((self.layout.n_outputs, self.layout.width))
        if self.layout.has_intercept:
            theta[:, -1] = self.null
        return theta.ravel()


@one_thread_where_small(lambda kind, rows, *_, **__: max(site.X.shape[1] for site in rows.values()))
def make_glm(
    kind: Kind,
    rows: Mapping[Hashable, SiteRows],
    has_intercept: bool,
    is_free: bool,
    centre: Array | None,
    class_factors: Callable[[Array, Array], Array],
    meaning: WeightMeaning = "frequency",
    classes: Array | None = None,
    has_limit: bool = False,
) -> Glm:
    """Read all targets and return the model; `is_free` says whether the prior leaves the intercept alone.

    `class_factors` maps classes and their weights to a factor of the row weights for each class; `classes` has the
    labels in order. With `has_limit` an intercept may have no finite estimate.
    """
    targets = [site.y for site in rows.values()]
    weights = [site.weights for site in rows.values()]
    first = next(iter(rows.values()))
    labels = classes
    if labels is not None:
        if not kind.has_trials:
            targets, weights = _code(targets, weights, class_factors, labels)
        kind = kind.of_classes(labels.size)
        if kind.outputs == "one" and labels.size > 2:
            binary = "Only binary classification is supported"  # the words that scikit-learn asks for
            raise ArgumentError("y", f"must hold two classes for the kind {kind}", labels.size, binary)
    y, w = np.concatenate(targets), np.concatenate(weights)
    n_outputs = kind.n_outputs(0 if labels is None else labels.size, 1 if y.ndim == 1 else y.shape[1])
    layout = Layout(first.X.shape[1], n_outputs, has_intercept, centre)
    layout.require_offset(first.offset)
    for name, site in rows.items():
        kind.require_offset(site.offset, str(name))
    if centre is not None and first.offset is not None:
        layout = replace(layout, shift=float(w @ np.concatenate([site.offset for site in rows.values()]) / w.sum()))
    if kind.has_trials:
        known = np.column_stack([1.0 - y, y])
    else:  # the target itself, or one column a class
        known = y if labels is None else np.asarray(y[:, None] == np.arange(labels.size), dtype=np.float64)
    mean = w @ known / w.sum()
    null = about = kind.null(mean)
    if not np.isfinite(null).all():  # one class has all weight, or all counts are zero: the rounds find it out
        about = np.zeros_like(null)
        null = np.clip(null, -FAR, FAR) if has_limit else about
    glm = Glm(
        kind=kind,
        layout=layout,
        names=tuple(rows),
        rows=tuple(
            SiteRows(frozen(layout.design(site.X)), target, weight, layout.beside(site.offset, len(weight)))
            for site, target, weight in zip(rows.values(), targets, weights, strict=True)
        ),
        null=null,
        information=_information(kind, y, w, about),
        dropped=kind.left_out(y, w),
        labels=labels,
        is_single=y.ndim == 1,
        weights=meaning,
    )
    if not kind.has_noise:
        return glm
    if meaning == "analytic":  # a noise variance has its own constant a row: ½ log 2πσ²/w
        glm = replace(glm, dropped=kind.left_out(y, w, np.ones_like(w)) - 0.5 * n_outputs * float(np.log(w).sum()))
    n_observed = (float(w.sum()) if meaning == "frequency" else float(w.size)) * n_outputs
    with np.errstate(over="ignore"):  # the fit names what is too large
        spread = (y.reshape(w.size, -1) - mean) ** 2
    return replace(glm, n_observed=n_observed, null_variance=float(w @ spread.sum(axis=1)) / n_observed)


def _code(
    targets: Sequence[Any], weights: Sequence[Array], class_factors: Any, labels: Any
) -> tuple[list[Any], list[Array]]:
    """Labels as numbers 0, 1, …, and weights times the factor of their class."""
    if labels.size < 2:
        raise ArgumentError("y", "must hold at least two classes", f"one class: {labels.tolist()[0]!r}")
    order = np.argsort(labels)
    codes = order[np.searchsorted(labels[order], np.concatenate(targets))]
    given = np.concatenate(weights)
    counts = np.bincount(codes, weights=given, minlength=labels.size).astype(np.float64)
    edges = np.cumsum([len(target) for target in targets])[:-1]
    return np.split(codes, edges), np.split(given * class_factors(labels, counts)[codes], edges)


def _information(kind: Kind, y: Any, weights: Array, null: Array) -> float:
    """Mean over the outputs of Σ_i w_i ℓ'' at the model of intercepts alone."""
    alone = kind.make_loss(np.ones((weights.size, 1)), y, weights, n_outputs=null.size)
    return float(np.diagonal(alone.hessian(null)).mean())


def carry(natural: Natural, back: Array, by: Array | None = None) -> Natural:
    """Return a factor of θ as a factor of θ', where θ = back @ θ' + by."""
    curvature = back.T @ natural.parts[1] @ back
    linear = natural.linear if by is None or not by.any() else natural.linear - natural.parts[1] @ by
    return Natural(back.T @ linear, 0.5 * (curvature + curvature.T))


def carry_distance(distance: Distance, back: Array, covariance: Array) -> Distance:
    """Return a bound on θ as a bound on back @ θ, whose posterior covariance is given.

    An entry that mixes others, such as an intercept at another origin, is off by at most the sum of their bounds, and
    by at most `mahalanobis` of its standard deviations.
    """
    if not np.isfinite(distance.sd_units):
        return distance
    deviations = np.sqrt(np.diagonal(covariance))
    each = np.minimum(np.abs(back) @ distance.per_coefficient, distance.mahalanobis * deviations)
    free = deviations > 0  # a coefficient that is held has no standard error
    return replace(distance, per_coefficient=each, sd_units=float((each[free] / deviations[free]).max(initial=0.0)))
