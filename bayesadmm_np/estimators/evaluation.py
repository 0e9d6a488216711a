"""Predictions held against outcomes over several sites: discrimination, calibration and Brier score, from counts.

Rows at hand are counted at each predicted probability, which loses nothing. A site whose rows stay sends counts over
spans of the predicted log-odds (`SiteCounts.coarse`): no row and no prediction of a row leaves it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, logit, xlogy

from .._archive import Archive, content_of
from .._errors import ArgumentError
from .._fields import Field, read_fields
from .._text import aligned, word
from .._validation import Array, as_float_array
from ..design.rows import read_client, require_index
from ..families.precision import DensePrecision
from ..glm.refit import drive, refit
from ..losses import Binomial
from .fitted import FittedGLM

EDGES = np.linspace(-16.0, 16.0, 3201)
"""Inner edges of the bins, in log-odds: a bin is 0.01 wide, and the two at the ends hold everything beyond."""

WIDTH = 25
"""Bins of the narrowest span of coarse counts: 0.25 in log-odds."""

NORMAL_975 = 1.959963984540054
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's palette; more sites than these could not be told apart and are not drawn one by one."""


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % interval; the ends are None where the counts determine none."""

    estimate: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        ends = "" if self.low is None or self.high is None else f" [{self.low:.3f}, {self.high:.3f}]"
        return f"{self.estimate:.3f}{ends}"


@dataclass(frozen=True, eq=False)
class SiteCounts:
    """Counts of rows at each predicted probability of the second class, `values`, rising; counts of sites add up.

    `events` are rows of the second class, `others` those of the first. Coarse counts have `spans` (first bin, last bin,
    events, others, bin of the mean prediction), whose rows stand in the middle of one bin each.
    """

    values: Array
    events: Array
    others: Array
    spans: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(cls, values: Array, events: Array, others: Array, spans: tuple[tuple[int, ...], ...] = ()) -> SiteCounts:
        """Add up the counts at equal values."""
        known, place = np.unique(values, return_inverse=True)
        n_events, n_others = (np.bincount(place, part).astype(np.float64) for part in (events, others))
        return cls(known, n_events, n_others, spans)

    def __add__(self, other: SiteCounts) -> SiteCounts:
        rows = [np.array([one.values, one.events, one.others]) for one in (self, other)]
        values, events, others = np.concatenate(rows, axis=1)
        return SiteCounts.of(values, events, others, self.spans + other.spans)

    @property
    def predicted(self) -> Array:
        """Sums of the predicted probabilities."""
        return self.values * (self.events + self.others)

    @property
    def n_events(self) -> int:
        """Rows of the second class."""
        return int(self.events.sum())

    @property
    def n_rows(self) -> int:
        """Rows."""
        return self.n_events + int(self.others.sum())

    @cached_property
    def auc(self) -> Interval:
        """P(an event is predicted above another row), ties counted half, with DeLong's interval, cut to [0, 1].

        The interval of coarse counts is wider by what it takes to hold that of the rows' own AUC (`auc_error`).
        """
        n1, n0 = self.n_events, self.n_rows - self.n_events
        if not n1 * n0:
            return Interval(float("nan"))
        below = (np.cumsum(self.others) - 0.5 * self.others) / n0
        above = (n1 - np.cumsum(self.events) + 0.5 * self.events) / n1
        auc = float(self.events @ below) / n1
        if n1 < 2 or n0 < 2 or (not 0.0 < auc < 1.0 and not self.spans):
            return Interval(auc)
        variance = float(self.events @ (below - auc) ** 2) / (n1 * (n1 - 1))
        variance += float(self.others @ (above - auc) ** 2) / (n0 * (n0 - 1))
        reach, (least, most) = NORMAL_975 * float(np.sqrt(variance)), self._auc_bounds if self.spans else (auc, auc)
        return Interval(auc, max(least - reach, 0.0), min(most + reach, 1.0))

    @cached_property
    def _auc_bounds(self) -> tuple[float, float]:
        """The least and the largest AUC that rows in such spans can have."""
        pairs = self.n_events * (self.n_rows - self.n_events)
        first, last, events, others, _ = np.array(self.spans).T

        def others_where(ends: Array, starts: Array, side: Any) -> Array:
            order = np.argsort(ends)
            return np.append(0, np.cumsum(others[order]))[np.searchsorted(ends[order], starts, side)]

        sides = others_where(last, first, "left"), others_where(first, last, "right")
        return float(events @ sides[0] / pairs), float(events @ sides[1] / pairs)

    @property
    def auc_error(self) -> float:
        """Bound on what coarse counts change in the AUC: by the pairs of rows whose spans overlap; else 0."""
        is_exact = not self.spans or np.isnan(self.auc.estimate)
        return 0.0 if is_exact else float(np.abs(np.subtract(self._auc_bounds, self.auc.estimate)).max())

    @property
    def brier_error(self) -> float:
        """Bound on what coarse counts change in the Brier score: every row at either end of its span; else 0."""
        if not self.spans:
            return 0.0
        first, last, events, others, mean = np.array(self.spans).T
        low, high, m = expit(np.append(-np.inf, EDGES)[first]), expit(np.append(EDGES, np.inf)[last]), _middle(mean)
        most = events @ ((1 - low) ** 2 - (1 - m) ** 2) + others @ (high**2 - m**2)
        least = events @ ((1 - m) ** 2 - (1 - high) ** 2) + others @ (m**2 - low**2)
        return float(max(most, least)) / self.n_rows

    def coarse(self, rows: int, of_class: int) -> SiteCounts:
        """Return what may leave a site: counts in spans of `rows` and more, with no or `of_class` rows of each class.

        All bins are halved, and their halves, to a width of 0.25 in log-odds; a half that may not leave joins its
        neighbour, so that no edge of a span stands where a row is. A sum over predictions could hold single rows in its
        digits: of it the bin of the mean is known. A ValueError is raised where all rows together may not leave.
        """
        with np.errstate(divide="ignore"):
            bins = np.searchsorted(EDGES, logit(self.values), side="right")
        each = [np.bincount(bins, part, EDGES.size + 1) for part in (self.events, self.others, self.predicted)]
        sums: Array = np.cumsum(np.insert(each, 0, 0.0, axis=1), axis=1, dtype=np.float64)

        def held(span: tuple[int, int]) -> Array:
            return sums[:, span[1]] - sums[:, span[0]]

        def may_leave(span: tuple[int, int]) -> bool:
            events, others, _ = held(span)
            return events + others >= max(rows, 1) and all(n == 0 or n >= of_class for n in (events, others))

        def spans(whole: tuple[int, int]) -> list[tuple[int, int]]:
            first, end = whole
            halves = (first, (first + end) // 2), ((first + end) // 2, end)
            if end - first < 2 * WIDTH or not any(map(may_leave, halves)):
                return [whole]
            found = [span for half in halves for span in (spans(half) if may_leave(half) else [half])]
            found = [span for span in found if held(span)[:2].any()]
            while not may_leave(found[0]):
                found[:2] = [(found[0][0], found[1][1])]
            while not may_leave(found[-1]):
                found[-2:] = [(found[-2][0], found[-1][1])]
            return found

        whole = 0, EDGES.size + 1
        if not may_leave(whole):
            raise ArgumentError("counts", f"must be of {rows} rows, and of no or {of_class} of each class")
        found = []
        for first, end in spans(whole):
            events, others, predicted = held((first, end))
            mean = np.searchsorted(EDGES, logit(np.clip(predicted / (events + others), 0.0, 1.0)), side="right")
            found.append((first, end - 1, int(events), int(others), int(np.clip(mean, first, end - 1))))
        return as_counts(found)

    @property
    def observed_to_expected(self) -> Interval:
        """Events over the sum of predicted probabilities, with the Poisson interval of the logarithm."""
        ratio = self.n_events / float(self.predicted.sum())
        if not self.n_events:
            return Interval(ratio)
        reach = NORMAL_975 / np.sqrt(self.n_events)
        return Interval(ratio, float(ratio * np.exp(-reach)), float(ratio * np.exp(reach)))

    @property
    def brier_score(self) -> float:
        """Mean of (y − p)²."""
        return float(self.events @ (1.0 - self.values) ** 2 + self.others @ self.values**2) / self.n_rows

    @property
    def log_loss(self) -> float:
        """Mean of −log p(y); NaN of coarse counts, which do not tell it."""
        whole = -xlogy(self.events, self.values).sum() - xlogy(self.others, 1.0 - self.values).sum()
        return float("nan") if self.spans else float(whole / self.n_rows)

    @cached_property
    def recalibration(self) -> tuple[Interval, Interval]:
        """Slope of the outcome on the predicted log-odds, 1 of right predictions, and the intercept at slope 1, then 0.

        Both are of logistic regressions, with Wald's intervals: D. R. Cox, Biometrika 45 (1958). The log-odds of coarse
        counts are those of the middles of their spans. A prediction of 0 or 1 has no log-odds, and is left out.
        """
        inside = (self.values > 0.0) & (self.values < 1.0)
        f, n = logit(self.values[inside]), (self.events + self.others)[inside]
        share = np.divide(self.events[inside], n, out=np.zeros_like(n), where=n > 0)
        columns = np.column_stack([f, np.ones_like(f)])
        sides = [f[share > 0.0], f[share < 1.0]]
        has_both = all(side.size for side in sides)
        is_apart = has_both and (sides[0].min() >= sides[1].max() or sides[0].max() <= sides[1].min())
        found = []
        for X, offset, is_known in ((columns, None, has_both and not is_apart), (columns[:, 1:], f, has_both)):
            if not is_known:
                found.append(Interval(float("nan")))
                continue
            loss = Binomial(X, share, n, offset)
            fit = drive(refit(np.eye(1, X.shape[1])[0] * (offset is None), np.ones(X.shape[1])), [loss])
            spread = DensePrecision(loss.hessian(fit.theta)).covariance_parts[0]
            reach = NORMAL_975 * float(np.sqrt(spread[0, 0]))
            found.append(Interval(float(fit.theta[0]), float(fit.theta[0] - reach), float(fit.theta[0] + reach)))
        return found[0], found[1]

    def calibration(self, groups: int = 10) -> list[tuple[float, Interval, int]]:
        """Return mean prediction, share of events with Wilson's interval, and rows, of groups of about equal size."""
        rows = self.events + self.others
        place = (np.cumsum(rows) - 0.5 * rows) / max(rows.sum(), 1.0) * groups
        found = []
        for k in range(groups):
            here = (place >= k) & (place < k + 1) & (rows > 0)
            n, events = float(rows[here].sum()), float(self.events[here].sum())
            if n:
                found.append((float(self.predicted[here].sum()) / n, _wilson(events, n), int(n)))
        return found


def _or_none(found: Interval) -> dict[str, Any] | None:
    return None if np.isnan(found.estimate) else asdict(found)


def _wilson(events: float, n: float) -> Interval:
    share, z = events / n, NORMAL_975
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    reach = z * np.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return Interval(share, float(max(centre - reach, 0.0)), float(min(centre + reach, 1.0)))


def _middle(bins: Array) -> Array:
    """Probability in the middle of each bin; of the two at the ends as if they were as wide as the others."""
    return np.asarray(expit(EDGES[0] + (bins - 0.5) * (EDGES[1] - EDGES[0])))


def as_counts(spans: Sequence[tuple[int, ...]]) -> SiteCounts:
    """Return coarse counts, whose rows all have the mean prediction of their span."""
    _, _, events, others, mean = np.array(spans).T
    return SiteCounts.of(_middle(mean), events, others, tuple(spans))


def site_counts(probability: ArrayLike, event: ArrayLike) -> SiteCounts:
    """Return the counts of predictions: probabilities of an event, and whether it came (0 or 1)."""
    p = as_float_array(probability, "probability", ndim=1)
    y = as_float_array(event, "event", ndim=1)
    if p.shape != y.shape:
        raise ArgumentError("event", f"must have one entry a prediction, shape {p.shape}", y.shape)
    if p.size and not (p.min() >= 0.0 and p.max() <= 1.0):
        raise ArgumentError("probability", "must lie in [0, 1]", f"{p.min():g} to {p.max():g}")
    if not np.isin(y, (0.0, 1.0)).all():
        raise ArgumentError("event", "must be 0 or 1 in every row")
    return SiteCounts.of(p, y, 1.0 - y)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Predictions against outcomes by site and pooled, `event` the second class; `str` and `plot` show them."""

    sites: Mapping[str, SiteCounts]
    event: str = "1"

    @cached_property
    def pooled(self) -> SiteCounts:
        """Counts of all sites together."""
        first, *others = self.sites.values()
        return sum(others, first)

    @property
    def _every(self) -> dict[str, SiteCounts]:
        return {"all": self.pooled, **self.sites}

    def __str__(self) -> str:
        lines = [["", "rows", "events", "AUC [95 %]", "O/E [95 %]", "Brier", "log loss"]]
        calibration = [["", "calibration slope [95 %]", "intercept [95 %]"]]
        for name, counts in self._every.items():
            auc = str(counts.auc) if np.isfinite(counts.auc.estimate) else "one class"
            loss = "–" if np.isnan(counts.log_loss) else f"{counts.log_loss:.4f}"
            ratio, brier = str(counts.observed_to_expected), f"{counts.brier_score:.4f}"
            slope, shift = ("–" if np.isnan(one.estimate) else str(one) for one in counts.recalibration)
            lines.append([name, str(counts.n_rows), str(counts.n_events), auc, ratio, brier, loss])
            calibration.append([name, slope, shift])
        every = self._every.values()
        note = f"Events are rows of {self.event!r}. O/E: events observed over expected. "
        if self.pooled.spans:
            off, brier_off = max(one.auc_error for one in every), max(one.brier_error for one in every)
            note += (
                f"These counts are coarse: an AUC can be off by {off:.2g}, which its interval includes, and a Brier "
            )
            note += f"score by {brier_off:.2g}"
        else:
            note += "AUC: by the ranks of the rows, ties counted half, with DeLong's interval"
        note += ". Slope: of the outcome on the predicted log-odds; intercept: at slope 1"
        return f"{_ruled(lines)}\n{_ruled(calibration)}\n{note}."

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            name: {
                "rows": counts.n_rows,
                "events": counts.n_events,
                "auc": asdict(counts.auc),
                "observed_to_expected": asdict(counts.observed_to_expected),
                "brier": counts.brier_score,
                "slope": _or_none(counts.recalibration[0]),
                "intercept": _or_none(counts.recalibration[1]),
                "log_loss": None if np.isnan(counts.log_loss) else counts.log_loss,
                "auc_error": counts.auc_error,
                "brier_error": counts.brier_error,
                "calibration": [
                    {"predicted": p, "observed": asdict(share), "rows": n} for p, share, n in counts.calibration()
                ],
            }
            for name, counts in self._every.items()
        }

    def plot(self, figure: Any) -> None:
        """Draw ROC curves and the calibration curve into a matplotlib figure."""
        left, right = _axes(figure, "area under the curve", "events", f"observed share of {self.event}")
        shown = self.sites.items() if 1 < len(self.sites) <= len(COLOURS) else ()
        for (name, counts), colour in zip(shown, COLOURS, strict=False):
            if np.isfinite(counts.auc.estimate):
                left.plot(*roc(counts), color=colour, linewidth=1.0, label=f"{name}: {counts.auc.estimate:.3f}")
        left.plot(*roc(self.pooled), color="black", linewidth=1.8, label=f"all sites: {self.pooled.auc}")
        means, shares, _ = zip(*self.pooled.calibration(), strict=True)
        low = [max(s.estimate - (s.low or 0.0), 0.0) for s in shares]
        high = [max((1.0 if s.high is None else s.high) - s.estimate, 0.0) for s in shares]
        right.errorbar(
            means, [s.estimate for s in shares], (low, high), color="black", marker="o", markersize=3, linewidth=1.0,
            elinewidth=0.8, label="all sites, tenths of the rows, 95 %",
        )  # fmt: skip
        _legends(left, right)


@dataclass(frozen=True, eq=False)
class ClassEvaluation:
    """Predictions of three and more classes against outcomes, by site and pooled; `str` prints them, `plot` draws them.

    `classes` has each class against all others; by site `surprise` is the sum of −log p(y), and `right` counts the rows
    whose most probable class is theirs.
    """

    classes: Mapping[str, Evaluation]
    surprise: Mapping[str, float]
    right: Mapping[str, int]

    def scores(self) -> dict[str, dict[str, float]]:
        """Return rows, share of right classes, Brier score Σ_c (y_c − p_c)² and log loss, of all rows and by site."""
        found = {}
        for name, sites in {"all": tuple(self.surprise), **{site: (site,) for site in self.surprise}}.items():
            counts = [one.sites[site] for one in self.classes.values() for site in sites]
            rows = sum(each.n_rows for each in counts) // len(self.classes)
            found[name] = {
                "rows": rows,
                "accuracy": sum(self.right[site] for site in sites) / rows,
                "brier": sum(each.brier_score * each.n_rows for each in counts) / rows,
                "log_loss": sum(self.surprise[site] for site in sites) / rows,
            }
        return found

    def __str__(self) -> str:
        lines = [("", "rows", "accuracy", "Brier", "log loss")]
        for name, score in self.scores().items():
            shown = [f"{score[key]:.4f}" for key in ("accuracy", "brier", "log_loss")]
            lines.append((name, str(score["rows"]), shown[0], shown[1], shown[2]))
        parts = [_ruled(lines)]
        sites = ["all", *self.surprise] if len(self.surprise) > 1 else ["all"]
        for site in sites:
            table = [(f"{site}: against all others", "rows", "AUC [95 %]", "O/E [95 %]")]
            for label, one in self.classes.items():
                counts = one.pooled if site == "all" else one.sites[site]
                auc = str(counts.auc) if np.isfinite(counts.auc.estimate) else "–"
                table.append((label, str(counts.n_events), auc, str(counts.observed_to_expected)))
            parts.append(_ruled(table))
        return "\n\n".join([*parts, "Brier: sum of (y − p)² over the classes. O/E: rows observed over expected."])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {**self.scores(), "classes": {label: one.to_dict() for label, one in self.classes.items()}}

    def plot(self, figure: Any) -> None:
        """Draw each class's ROC curve and calibration curve, of all sites, into a matplotlib figure."""
        left, right = _axes(figure, "a class against all others", "class", "observed share, in tenths of the rows")
        shown = [(label, one.pooled) for label, one in self.classes.items() if np.isfinite(one.pooled.auc.estimate)]
        for k, (label, counts) in enumerate(shown[: 2 * len(COLOURS)]):
            style = {"color": COLOURS[k % len(COLOURS)], "linestyle": "-:"[k // len(COLOURS)]}
            left.plot(*roc(counts), **style, linewidth=1.2, label=f"{label}: {counts.auc}")
            means, shares, _ = zip(*counts.calibration(), strict=True)
            right.plot(means, [s.estimate for s in shares], **style, marker="o", markersize=3, label=label)
        _legends(left, right)


def _ruled(lines: Sequence[Sequence[str]]) -> str:
    texts = aligned(lines)
    return "\n".join([texts[0], "-" * len(texts[0]), *texts[1:]])


def _axes(figure: Any, what: str, events: str, observed: str) -> tuple[Any, Any]:
    """Return axes for ROC curves and for calibration, with their diagonals."""
    left, right = figure.subplots(1, 2)
    for axis in (left, right):
        axis.plot([0, 1], [0, 1], color="0.6", linewidth=0.6, linestyle="--")
    left.set(xlabel="share of the others above the threshold", ylabel=f"share of the {events} above it")
    left.set_title(f"Discrimination ({what})")
    right.set(xlabel="mean predicted probability", ylabel=observed, xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    right.set_title("Calibration")
    return left, right


def _legends(left: Any, right: Any) -> None:
    left.legend(loc="lower right", fontsize="small", frameon=False)
    right.legend(loc="upper left", fontsize="small", frameon=False)


def roc(counts: SiteCounts) -> tuple[Array, Array]:
    """Share of the others, and of the events, above each threshold."""
    others, events = (np.append(0.0, np.cumsum(part[::-1])) / part.sum() for part in (counts.others, counts.events))
    return others, events


def evaluate(
    probability: ArrayLike, y: ArrayLike, client: Any = None, *, classes: Any = None
) -> Evaluation | ClassEvaluation:
    """Hold predicted probabilities against outcomes, by site and pooled.

    Parameters
    ----------
    probability : array_like, shape (n,) or (n, C)
        Predicted probability of the second class, or what `predict_proba` returns.
    y : array_like, shape (n,)
    client : array_like, shape (n,), optional
        The site of each row; default one site.
    classes : sequence, optional
        Labels in the order of `probability`, as an estimator's `classes_`, default 0 to C − 1; of two the second is the
        event.

    Returns
    -------
    Evaluation or ClassEvaluation
        The latter of three and more classes.

    Raises
    ------
    ValueError
        When an argument is out of range, or y holds another label.

    Examples
    --------
    >>> from bayesadmm_np.estimators import evaluate
    >>> found = evaluate([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1], ["a", "b", "a", "b"])
    >>> found.pooled.auc.estimate, found.sites["a"].auc.estimate
    (0.75, 1.0)
    """
    require_index(y, "y", client=client, probability=probability)
    p = np.asarray(probability, dtype=np.float64)
    p = np.column_stack([1.0 - p, p]) if p.ndim == 1 else p
    labels, names = np.asarray(y), np.asarray(range(p.shape[1]) if classes is None else list(classes))
    if names.shape != (p.shape[1],):
        raise ArgumentError("classes", f"must hold {p.shape[1]} labels, one a column of probability", names.tolist())
    known = np.isin(labels, names)
    if not known.all():
        listed = " and ".join(map(repr, names.tolist())) if names.size == 2 else ", ".join(map(repr, names.tolist()))
        raise ArgumentError("y", f"must hold the classes {listed}", repr(labels[~known].tolist()[0]))
    sites: dict[Hashable, list[int]] = {}
    for i, name in enumerate(read_client(client, labels.size)):
        sites.setdefault(name, []).append(i)
    if names.size == 2:
        return _against(p[:, 1], labels == names[1], sites, names[1])
    if not np.allclose(p.sum(axis=1), 1.0, atol=1e-6):
        raise ArgumentError("probability", "must add up to 1 in every row")
    own = p[labels[:, None] == names]
    with np.errstate(divide="ignore"):
        surprise = {str(name): float(-np.log(own[index]).sum()) for name, index in sites.items()}
    is_right = names[p.argmax(axis=1)] == labels
    right = {str(name): int(is_right[index].sum()) for name, index in sites.items()}
    each = {str(label): _against(p[:, c], labels == label, sites, label) for c, label in enumerate(names)}
    return ClassEvaluation(each, surprise, right)


def _against(p: Array, is_event: Array, sites: Mapping[Hashable, list[int]], label: Any) -> Evaluation:
    """A class against all others."""
    events = is_event.astype(np.float64)
    return Evaluation({str(name): site_counts(p[index], events[index]) for name, index in sites.items()}, str(label))


# --- Files of counts, which sites send: no row and no prediction of one --------------------------------------

DIGITS = 16
MOST_ROWS = 1 << 40


@dataclass(frozen=True)
class Header:
    """The header: site, digest of the model, and the class that is counted as event."""

    site: str
    run: str
    event: str


def digest_of(model: FittedGLM) -> str:
    """Return a digest of what a model predicts by."""
    said = repr((model.title, model.columns.classes, model.coefficient_names, model.criterion.inference)).encode()
    centre = np.zeros(0) if model.layout.centre is None else model.layout.centre
    vectors = model.posterior.natural.to_vector(), centre
    return hashlib.sha256(b"".join([said, *(vector.tobytes() for vector in vectors)])).hexdigest()[:DIGITS]


def pack_counts(site: str, model: FittedGLM, found: SiteCounts) -> Archive:
    """Return the file of coarse counts of the predictions of a model of two classes."""
    header = Header(site, digest_of(model), word(model.columns.classes[1]))
    spans = np.array(found.spans, dtype=np.float64).reshape(-1, 5)
    return Archive("evaluation", asdict(header), {"spans": spans}, f"counts of {site}")


def read_counts(paths: Sequence[str | os.PathLike[str]], model: FittedGLM) -> Evaluation:
    """Read files of counts; an ArchiveError where one is damaged, of another model, or of a site twice."""
    found: dict[str, SiteCounts] = {}
    for path in paths:
        archive = Archive.read(path)
        header = archive.header_as("evaluation", Header)
        if header.run != digest_of(model):
            raise archive.refusal("run", f"{digest_of(model)}, of this model (it is of another)", header.run)
        if header.site in found:
            raise archive.refusal("site", f"another than that of the files before, {', '.join(found)}", header.site)
        found[header.site] = _counts(archive)
    return Evaluation(found, word(model.columns.classes[1]))


def _counts(archive: Archive) -> SiteCounts:
    with content_of(archive, "counts"):
        spans = read_fields({"spans": Field("n 5")}, archive.arrays)["spans"]
    first, last, events, others, mean = spans.T
    is_right = (
        len(spans) > 0
        and (spans == np.floor(spans)).all()
        and ((spans >= 0) & (spans < MOST_ROWS)).all()
        and ((first <= mean) & (mean <= last)).all()
        and (first[1:] > last[:-1]).all()
        and last[-1] <= EDGES.size
        and (events + others > 0).all()
    )
    if not is_right:
        raise archive.refusal("spans", "rising bins, rows of two classes, and a bin between", spans[:1].tolist())
    return as_counts([tuple(map(int, span)) for span in spans])
