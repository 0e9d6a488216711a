"""Sums over a site's rows after the fit, for the numbers of a table beside the coefficients.

The sums of the sites add up to those of the pooled rows, so one exchange after the fit is enough, and secure summation
can carry it. `inference` reads the totals at the server.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import softmax

from .._errors import ArgumentError
from .._numerics import EPS
from .._validation import Array, frozen
from ..losses.base import Loss, RowCurvature, Rows
from ..losses.likelihood import SiteLikelihood
from .kinds import LOGIT, Kind

T = TypeVar("T")

ROBUST = ("HC0", "HC1", "HC2", "HC3", "cluster")
"""Names of the robust covariances."""

WeightMeaning = Literal["frequency", "analytic"]
"""A frequency weight of two is the row twice; an analytic one divides the row's variance, and the row counts once."""

LARGEST_PEARSON = 1e150
"""Largest χ² reported: beyond it the fit considers the rows impossible, and the square overflows."""

HIGHEST_LEVERAGE = 1.0 - 1e-10
"""Above it a row is fitted whatever its target, and residual²/(1 − h) is rounding error."""

BREAD = 1e-6
"""Rounding of a bread, relative to the rows' own: a Hessian is that of the last step before θ."""


@dataclass(frozen=True, eq=False)
class SiteStatistics:
    """Sums over a site's rows at the pooled fit, at a noise variance of 1, in the units of the loss; `+` adds sites.

    `weight` and `log_weight` are Σ w_i and Σ log w_i. `loss`, `null_loss` and `saturated_loss` are Σ w_i ℓ_i at the
    fit, at the model of intercepts alone, and where every mean is the observation itself; `constant` is what the loss
    leaves out of −log p. `pearson` is Σ w_i (y_i − μ_i)²/V(μ_i); of classes, summed over them with V = μ; None where a
    row that the fit takes for impossible makes it larger than `LARGEST_PEARSON`. `meats` has Σ s_i s_iᵀ,
    shape (d, d), s_i the score of a row: "HC0", "HC2" (s_i over √(1 − h_i)), "HC3" (over 1 − h_i), and "cluster", where
    s is that of one of `n_clusters` clusters.
    """

    n_rows: int
    weight: float
    log_weight: float
    loss: float
    null_loss: float
    saturated_loss: float
    constant: float
    pearson: float | None
    meats: Mapping[str, Array] = field(default_factory=dict)
    n_clusters: int = 0

    def __add__(self, other: Self) -> Self:
        if self.meats.keys() != other.meats.keys():
            own, theirs = sorted(self.meats), sorted(other.meats)
            raise ValueError(f"sites must send the same robust covariances, got {own} and {theirs}.")
        both = {name: (getattr(self, name), getattr(other, name)) for name in self.__dict__ if name != "meats"}
        sums: dict[str, Any] = {name: None if None in two else sum(two) for name, two in both.items()}
        return type(self)(**sums, meats={name: frozen(self.meats[name] + other.meats[name]) for name in self.meats})

    @property
    def is_finite(self) -> bool:
        """Return whether every sum that is there is a number: not so of a fit that ran away."""
        sums = (value for name, value in vars(self).items() if name != "meats" and value is not None)
        return bool(np.isfinite([*sums]).all()) and all(np.isfinite(meat).all() for meat in self.meats.values())

    def require_possible(self) -> Self:
        """Return these sums, or raise a ValueError where no rows have them."""
        if not self.is_finite or self.weight <= 0 or (self.pearson or 0.0) < 0:
            raise ValueError("statistics must be finite sums over rows, of positive weight")
        if not (1 <= self.n_rows < 1 << 53 and 0 <= self.n_clusters <= self.n_rows):
            raise ValueError(f"n_rows must be from 1, n_clusters at most as many, got {self.n_rows}, {self.n_clusters}")
        for name, meat in self.meats.items():
            if name not in ROBUST:
                raise ValueError(f"meats must be some of {', '.join(ROBUST)}, got {name!r}")
            if not (np.array_equal(meat, meat.T) and np.linalg.eigvalsh(meat)[0] >= -1e-8 * np.trace(meat)):
                raise ValueError(f"meats/{name} must be symmetric and positive semidefinite")
        return self

    def n_observations(self, weights: WeightMeaning) -> float:
        """Return the number of observations: Σ w_i of frequency weights, the number of rows of analytic ones."""
        return self.weight if weights == "frequency" else float(self.n_rows)


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # a fit that ran away shows in the sums
def site_statistics(
    kind: Kind,
    loss: Loss,
    theta: ArrayLike,
    null: ArrayLike,
    *,
    robust: Collection[str] = (),
    bread: Array | None = None,
    clusters: Sequence[Hashable] | None = None,
    noise_variance: float = 1.0,
    weights: WeightMeaning = "frequency",
) -> SiteStatistics:
    """Return the sums of a site's rows at the pooled fit θ and at `null`, where all but the intercepts are zero.

    HC1 takes the sums of HC0. `bread`, the inverse of the pooled Hessian at a noise variance of 1, gives the leverages
    h_i = ℓ''_i x_iᵀ bread x_i of HC2 and HC3. A cluster lies in one site; see `check_clusters`. Raises a ValueError
    when the loss does not show its rows, a robust covariance is not defined for it, or a row has leverage 1.
    """
    unknown = set(robust) - set(ROBUST)
    if unknown:
        raise ArgumentError("robust", f"must name some of {', '.join(ROBUST)}", repr(unknown.pop()))
    theta, null = np.asarray(theta, dtype=np.float64), np.asarray(null, dtype=np.float64)
    rows = loss.rows(theta)
    if isinstance(loss, SiteLikelihood) and not loss.has_rows:
        return _of_likelihood(kind, loss, theta, null, robust)
    w = undivided(rows.weights, noise_variance)
    rows = rows._replace(weights=w)
    # a noise variance has its own constant a row, which an analytic weight does not multiply
    counted = np.ones_like(w) if kind.has_noise and weights == "analytic" else w
    pearson = float(w @ _squared_pearson(kind, rows))
    is_clustered = "cluster" in robust
    return SiteStatistics(
        n_rows=int(w.size),
        weight=float(w.sum()),
        log_weight=float(np.log(w[w > 0]).sum()),
        loss=loss.value(theta) * noise_variance,
        null_loss=loss.value(null) * noise_variance,
        saturated_loss=0.0
        if kind.has_labels or kind.likelihood is not None
        else kind.loss_at(rows.target, rows.target, w),
        constant=kind.left_out(rows.target, w, counted),
        pearson=pearson if pearson <= LARGEST_PEARSON else None,
        meats=_meats(kind, rows, set(robust), bread, clusters, weights),
        n_clusters=len(set(_require_clusters(clusters, w.size))) if is_clustered else 0,
    )


def _of_likelihood(
    kind: Kind, loss: SiteLikelihood, theta: Array, null: Array, robust: Collection[str]
) -> SiteStatistics:
    """Return what there is of a likelihood that is no sum over rows: no residuals, and no scores of rows."""
    if robust:
        raise ValueError(f"{kind.title} has no robust covariance.")
    w = loss.weights
    return SiteStatistics(
        n_rows=int(w.size),
        weight=float(w.sum()),
        log_weight=float(np.log(w[w > 0]).sum()),
        loss=loss.value(theta),
        null_loss=loss.value(null),
        saturated_loss=loss.saturated(theta),
        constant=kind.left_out(loss.target, w),
        pearson=None,
        n_clusters=len(getattr(loss, "groups", ())),
    )


def with_all_robust(kind: Kind, ask: Callable[[tuple[str, ...]], T], refused: type[Exception] = ValueError) -> T:
    """Return the answer of `ask` with the sums of all robust covariances that it gives.

    Those with leverages are undefined for classes and for a row with leverage 1, and a site's rules may withhold them.
    If `ask` raises `refused`, it is called again without them.
    """
    if not kind.has_rows:
        return ask(())
    if kind.outputs != "classes":
        with suppress(refused):
            return ask(("HC0", "HC2", "HC3", "cluster"))
    return ask(("HC0", "cluster"))


def undivided(weights: Array, noise_variance: float) -> Array:
    """Take a noise variance off row weights; whole weights stay whole, so that n is a count."""
    w = weights * noise_variance
    whole = np.rint(w)
    return np.asarray(np.where(np.abs(w - whole) <= 4.0 * EPS * whole, whole, w))


def _squared_pearson(kind: Kind, rows: Rows) -> Array:
    """Return (y − μ)²/V(μ) of each row, shape (n,)."""
    if kind.outputs == "classes":
        # the slopes are p − y; those of a reference class, whose predictor is zero, are the rest
        predictor, slope = rows.predictor, rows.slope
        if kind.has_reference:
            predictor = np.column_stack([predictor, np.zeros(len(slope))])
            slope = np.column_stack([slope, -slope.sum(axis=1)])
        return np.asarray(_ratio(slope**2, softmax(predictor, axis=1)).sum(axis=1))
    if kind.link is LOGIT and kind.is_classifier:  # p − y and p(1 − p), of which no margin cancels
        return _ratio(rows.slope**2, rows.curvature)
    mean = kind.link.inverse(rows.predictor)
    variance = mean * (1.0 - mean) if kind.variance is None else kind.variance(mean, mean**2)
    squares = _ratio((rows.target - mean) ** 2, np.broadcast_to(variance, mean.shape))
    return np.asarray(squares if squares.ndim == 1 else squares.sum(axis=1))


def _ratio(squares: Array, variance: Array) -> Array:
    """A residual that has underflowed with its variance is none."""
    return np.asarray(np.divide(squares, variance, out=np.zeros_like(squares), where=squares != 0.0))


def _meats(
    kind: Kind, rows: Rows, robust: set[str], bread: Array | None, clusters: Any, weights: WeightMeaning
) -> dict[str, Array]:
    found: dict[str, Array] = {}
    is_frequency = weights == "frequency"
    times = rows.weights if is_frequency else rows.weights**2
    slope = rows.slope.reshape(len(times), -1)
    if robust & {"HC0", "HC1"}:
        found["HC0"] = _outer(rows.X, slope, times)
    leveraged = sorted(robust & {"HC2", "HC3"})
    if leveraged:
        if kind.outputs == "classes":
            raise ValueError(f"{leveraged[0]} is not defined for several classes: take HC0, HC1 or clusters.")
        if bread is None:
            raise ValueError(f"{leveraged[0]} needs bread, the inverse of the pooled Hessian.")
        require_bread(rows, bread)
        left = 1.0 - leverages(rows, bread, is_frequency)
        if left.min(initial=1.0) < 1.0 - HIGHEST_LEVERAGE:
            raise ValueError("HC2 and HC3 need leverages below 1, and a row alone determines a coefficient: take HC1.")
        for name in leveraged:
            found[name] = _outer(rows.X, slope, times / (left if name == "HC2" else left**2))
    if "cluster" in robust:
        labels = _require_clusters(clusters, len(times))
        places = {label: g for g, label in enumerate(dict.fromkeys(labels))}
        scores = (rows.weights[:, None] * slope)[:, :, None] * rows.X[:, None, :]
        sums = np.zeros((len(places), slope.shape[1] * rows.X.shape[1]))
        np.add.at(sums, [places[label] for label in labels], scores.reshape(len(times), -1))
        found["cluster"] = frozen(sums.T @ sums)
    return found


def _outer(X: Array, slope: Array, times: Array) -> Array:
    """Σ_i t_i s_i s_iᵀ ⊗ x_i x_iᵀ, shape (d, d)."""
    return frozen(RowCurvature(X, times[:, None, None] * slope[:, :, None] * slope[:, None, :]).dense())


def require_bread(rows: Rows, bread: Array) -> None:
    """Refuse a bread B that is no inverse of a Hessian of this site's rows and others: H^{1/2} B H^{1/2} ⪯ I.

    H is the Hessian of these rows. With B = (H + C)⁻¹ and C ⪰ 0 all eigenvalues of H^{1/2} B H^{1/2} are in [0, 1].
    """
    p = rows.X.shape[1]
    own = np.sqrt(rows.weights * rows.curvature)[:, None] * rows.X
    sizes = np.sqrt(np.maximum(np.diag(bread)[:p], 0.0))
    root = np.asarray(np.linalg.qr(own * sizes, mode="r"))
    inner = root @ (bread[:p, :p] / np.outer(*[np.where(sizes > 0.0, sizes, 1.0)] * 2)) @ root.T
    values = np.linalg.eigvalsh((inner + inner.T) / 2.0) if np.isfinite(inner).all() else np.array([np.inf])
    if not (values.min() >= -BREAD and values.max() <= 1.0 + BREAD):
        got = f"an eigenvalue of {values.max():.6g}, relative to that of these rows"
        raise ArgumentError("bread", "must be the inverse of a Hessian that these rows are part of", got)


def leverages(rows: Rows, bread: Array, is_frequency: bool) -> Array:
    """Return h_i of each row, shape (n,); several outputs (of least squares) share theirs."""
    p = rows.X.shape[1]
    h = rows.curvature * np.einsum("ij,ij->i", rows.X @ bread[:p, :p], rows.X)
    return np.asarray(h if is_frequency else h * rows.weights)


def _require_clusters(clusters: Sequence[Hashable] | None, n_rows: int) -> Sequence[Hashable]:
    if clusters is None or len(clusters) != n_rows:
        got = "none" if clusters is None else len(clusters)
        raise ArgumentError("clusters", f"must hold one cluster a row, {n_rows}", got)
    labels = np.asarray(clusters, dtype=object).tolist()
    missing = [label for label in labels if label is None or type(label).__name__ == "NAType" or label != label]
    if missing:
        raise ArgumentError("clusters", "must name a cluster for every row", repr(missing[0]))
    return labels


def check_clusters(clusters: Mapping[Any, Sequence[Hashable]]) -> None:
    """Refuse a label of a cluster that occurs at two sites: its scores would have to be summed over both."""
    home: dict[Hashable, Any] = {}
    for site, labels in clusters.items():
        for label in dict.fromkeys(labels):
            if home.setdefault(label, site) != site:
                raise ArgumentError(
                    "clusters",
                    "must lie in one site each",
                    f"the cluster {label!r} at the sites {home[label]!r} and {site!r}",
                    "put the site into its name if it is another cluster at each",
                )
