"""Likelihoods of times to an event, of which a site's rows are one stratum or have a baseline that all sites share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from .._errors import ArgumentError
from .._numerics import rounding_unit
from .._validation import Array, as_float_array
from ..families.gaussian import Gaussian
from .base import Margins, effective_rows
from .likelihood import Derivatives, SiteLikelihood


class SurvivalLikelihood(SiteLikelihood):
    """−log likelihood of rows with times, y = (time, status) or (entry, time, status) of rows that enter late.

    A row is at risk in (entry, time], and has its event at `time` where `status` is 1; it is censored where it is 0.
    """

    def __init__(
        self, X: ArrayLike, y: ArrayLike, weights: Any = None, offset: Any = None, n_auxiliary: int = 0
    ) -> None:
        response = as_float_array(y, "y", ndim=2)
        super().__init__(X, response, weights, offset, n_auxiliary)
        if response.shape[0] != self.n_rows:
            raise ArgumentError("y", f"must have {self.n_rows} rows like X", response.shape[0])
        if response.shape[1] not in (2, 3):
            raise ArgumentError("y", "must have the columns (time, status) or (entry, time, status)", response.shape)
        self.time, status = response[:, -2], response[:, -1]
        self.has_entry = response.shape[1] == 3
        self.entry = response[:, 0] if self.has_entry else np.zeros(self.n_rows)
        if not np.isin(status, (0.0, 1.0)).all():
            wrong = status[~np.isin(status, (0.0, 1.0))][0]
            advice = "write 1 for an event and 0 for none, as in Surv(time, status == 2)"
            raise ArgumentError("y", "must have a status of 0 or 1", f"{wrong:g}", advice)
        if self.entry.min() < 0 or self.time.min() < 0:
            raise ArgumentError("y", "must have times >= 0", f"{min(self.entry.min(), self.time.min()):g}")
        if self.has_entry and (self.entry >= self.time).any():
            first = int(np.argmax(self.entry >= self.time))
            got = f"an entry at {self.entry[first]:g} and a time of {self.time[first]:g}"
            raise ArgumentError("y", "must have every entry before the time", got)
        self.events = self.weights * status

    @property
    def outcomes(self) -> Array:
        return self.y[:, -1]

    def _unit(self, sizes: Array) -> float:
        """Return the relative rounding of expected events, whose predictors have terms of these sizes."""
        return 2.0 * (float(sizes.max()) + 1.0) * rounding_unit(self.n_rows, self.dim)

    @property
    def target(self) -> Array:
        """The times, shape (n,)."""
        return self.time


class CoxPartialLikelihood(SurvivalLikelihood):
    """−log partial likelihood of Cox's regression for the rows of a site, which are a stratum of their own.

    The sum over sites is that of R's `coxph(Surv(time, status) ~ x + strata(site))`, with its case weights. The
    baseline hazard of a site drops out. An event is in the risk set of its own time, so that none is empty. A site
    without events has no information, and rows of weight zero count as left out. Events are tied when their times are
    equal; R takes times together, too, that differ by rounding.

    Parameters
    ----------
    X : array_like, shape (n, d)
        Without an intercept.
    y : array_like, shape (n, 2) or (n, 3)
        (time, status), or (entry, time, status) of rows at risk in (entry, time]; a status is 1 for an event, else 0.
    weights, offset : array_like, shape (n,), optional
    n_auxiliary : int, default 0
    ties : {'efron', 'breslow'}
        Approximation for several events at a time.

    Raises
    ------
    ValueError
        When an array is empty, not finite or of the wrong shape, a time is negative or not after the entry, or a status
        is not 0 or 1.

    Examples
    --------
    >>> from bayesadmm_np.losses.survival import CoxPartialLikelihood
    >>> loss = CoxPartialLikelihood([[1.0], [0.0]], [[2, 1], [5, 0]])
    >>> round(loss.value([0.0]), 6), loss.gradient([0.0])  # one event, with two rows at risk
    (0.693147, array([-0.5]))
    """

    def __init__(
        self,
        X: ArrayLike,
        y: ArrayLike,
        weights: Any = None,
        offset: Any = None,
        n_auxiliary: int = 0,
        ties: str = "efron",
    ) -> None:
        super().__init__(X, y, weights, offset, n_auxiliary)
        if ties not in ("efron", "breslow"):
            raise ArgumentError("ties", "must be 'efron' or 'breslow'", repr(ties))
        self.times = np.unique(self.time[self.events > 0])
        entry = self.entry if self.has_entry else np.full(self.n_rows, -1.0)
        first, last = (np.searchsorted(self.times, each, side="right") for each in (entry, self.time))
        self._kept = (self.weights > 0) & (first < last)  # the others are in no risk set
        first, last, w, d = first[self._kept], last[self._kept], self.weights[self._kept], self.events[self._kept]
        X = self.X[self._kept]
        # the partial likelihood does not change; a column that is constant at the site is zero to the last bit
        X = X - X[:1]
        self._X, self._weights, self._events = X - X.mean(axis=0) if len(X) else X, w, d
        self._offset = np.zeros(w.size) if self.offset is None else self.offset[self._kept]
        self._members = _members(first, last, self.times.size)
        rows = np.flatnonzero(d)
        self._tied = csr_array((np.ones(rows.size), (last[rows] - 1, rows)), shape=(self.times.size, d.size))
        # Efron's k-th of m tied events has the share k/m of all of them taken out of its risk set
        counts = self._tied.sum(axis=1).astype(int)
        self._group = np.repeat(np.arange(counts.size), counts)
        order = np.arange(self._group.size) - np.repeat(np.cumsum(counts) - counts, counts)
        self._out = order / counts[self._group] * (ties == "efron")
        self._mass = (self._tied @ d / counts)[self._group]

    def _at_risk(self, theta: Array) -> tuple[Array, Array, Array, float]:
        """Return f, w exp(f − max f), the sums of the latter over the risk sets of all events, and max f."""
        f: Array = self._X @ theta + self._offset
        top = float(f.max(initial=-np.inf))
        rates: Array = self._weights * np.exp(f - top)
        return f, rates, self._over_sets(rates), top

    def _over_sets(self, values: Array) -> Array:
        """Return sums over each event's risk set, Efron's share of the tied events taken out."""
        out = self._out if values.ndim == 1 else self._out[:, None]
        nodes, sets = self._members
        return np.asarray((sets @ (nodes @ values))[self._group] - out * (self._tied @ values)[self._group])

    def _expected(self, rates: Array, total: Array) -> tuple[Array, Array]:
        """Return the steps of the baseline hazard, in units of exp(−max f), and the expected events of each row."""
        nodes, sets = self._members
        each = self._mass / total
        step: Any = np.bincount(self._group, each, self.times.size)
        tied = np.bincount(self._group, self._out * each, self.times.size)
        return step, rates * (nodes.T @ (sets.T @ step) - self._tied.T @ tied)

    def derivatives(self, theta: Array) -> Derivatives:
        f, rates, total, top = self._at_risk(theta)
        if not (np.isfinite(f).all() and (total > 1e-290).all()):  # predictors too far apart for one scale
            return Derivatives(np.inf, np.zeros(self.dim), np.zeros((self.dim, self.dim)))
        mean = self._over_sets(rates[:, None] * self._X) / total[:, None]
        expected = self._expected(rates, total)[1]
        return Derivatives(
            float(self._mass @ np.log(total) - self._events @ (f - top)),
            self._X.T @ (expected - self._events),
            (self._X.T * expected) @ self._X - (mean.T * self._mass) @ mean,
        )

    def rests_on(self, theta: ArrayLike) -> list[float]:
        _, rates, total, _ = self._at_risk(np.asarray(theta, dtype=np.float64))
        return [effective_rows(self._expected(rates, total)[1]) if self.times.size else np.inf]

    def baseline_hazard(self, theta: ArrayLike) -> tuple[Array, Array]:
        """Return the times of events, and the cumulative hazard of a row of zeros without offset: no site sends it.

        With ties by Efron's method it is Efron's estimate, as R's `basehaz(fit, centered = FALSE)`; else Breslow's.
        """
        point = np.asarray(theta, dtype=np.float64)
        _, rates, total, top = self._at_risk(point)
        step, _ = self._expected(rates, total)
        shift = (self.X[self._kept] - self._X)[:1] @ point
        return self.times, np.cumsum(step) * np.exp(-top - shift)

    def _margins(self, q: Gaussian) -> Margins:
        """Reach by differences of two rows of a site, and rounding of sums of expected events, if H is q's precision.

        An event's term is log Σ a_i exp f_i with a_i > 0: its third derivative is the third central moment of the rows
        at risk, so that |ℓ'''[u, u, v]| ≤ max |v·(x_i − x_j)| ℓ''[u, u]. A difference has at most twice the largest
        standard deviation of a row's predictor, wherever the columns are centred.
        """
        X, theta = self._X, q.mean
        if not len(X):
            return Margins(0.0, np.zeros(self.dim), 0.0)
        _, rates, total, _ = self._at_risk(theta)
        expected = self._expected(rates, total)[1]
        unit = self._unit(np.abs(X) @ np.abs(theta) + np.abs(self._offset))
        lost = (X**2).T @ expected * q.variance  # in differences of second moments and squares of means
        reach = 2.0 * float(np.sqrt(q.factor.row_variances(X).max()))
        return Margins(reach, unit * np.abs(X).T @ (expected + self._events), unit * float(lost.max()))


def _members(first: NDArray[np.intp], last: NDArray[np.intp], n_times: int) -> tuple[csr_array, csr_array]:
    """Return matrices N, S such that S @ (N @ v) sums v over the rows whose interval [first, last) has each time.

    N sums over the nodes of a binary tree whose leaves are the times, and S over the nodes above a leaf. Nothing is
    subtracted: as a difference of two sums, that over rows that entered late would lose digits.
    """
    rows: list[NDArray[np.intp]] = []
    nodes: list[NDArray[np.intp]] = []
    left, right = first + n_times, last + n_times
    while (left < right).any():
        for is_own, node in (((left < right) & (left % 2 == 1), left), ((left < right) & (right % 2 == 1), right - 1)):
            rows.append(np.flatnonzero(is_own))
            nodes.append(node[is_own])
        left, right = (left + 1) // 2, right // 2
    at, to = (np.concatenate([np.zeros(0, int), *part]) for part in (rows, nodes))
    leaves = np.arange(n_times) + n_times
    above = [leaves >> k for k in range(int(2 * n_times).bit_length() or 1)]
    times = np.concatenate([np.flatnonzero(each) for each in above])
    parents = np.concatenate([each[each > 0] for each in above])
    return (
        csr_array((np.ones(at.size), (to, at)), shape=(2 * n_times, first.size)),
        csr_array((np.ones(times.size), (times, parents)), shape=(n_times, 2 * n_times)),
    )


class PiecewiseExponential(SurvivalLikelihood):
    """−log likelihood of times whose hazard is exp(α_j + x'β + offset) in the j-th interval between the cuts.

    θ = (α, β), with one logarithm of a baseline hazard for each interval (0, c_1], (c_1, c_2], …, (c_m, ∞), and the
    first m + 1 columns of X are zeros for these. A Poisson regression of rows that are split at the cuts, with the
    logarithm of the time at risk as offset, has this likelihood but for the constant Σ log time. No row is split here.

    Parameters
    ----------
    X, y, weights, offset
        As in `CoxPartialLikelihood`.
    n_auxiliary : int
        Number of intervals.
    cuts : sequence of float, default ()
        Times > 0 at which the baseline hazard may change, in order; without one it is constant.

    Raises
    ------
    ValueError
        As `CoxPartialLikelihood`, and when the cuts are not positive and rising, or not one fewer than the intervals.

    Examples
    --------
    >>> from bayesadmm_np.losses.survival import PiecewiseExponential
    >>> loss = PiecewiseExponential([[0.0], [0.0]], [[2, 1], [5, 0]], n_auxiliary=1)
    >>> loss.gradient([0.0])  # a time at risk of seven, and one event
    array([6.])
    """

    def __init__(
        self,
        X: ArrayLike,
        y: ArrayLike,
        weights: Any = None,
        offset: Any = None,
        n_auxiliary: int = 1,
        cuts: Sequence[float] = (),
    ) -> None:
        super().__init__(X, y, weights, offset, n_auxiliary)
        edges = np.array([0.0, *cuts, np.inf])
        if not (np.diff(edges) > 0).all():
            raise ArgumentError("cuts", "must be times > 0 in rising order", repr(tuple(cuts)))
        if n_auxiliary != edges.size - 1:
            raise ArgumentError("n_auxiliary", f"must be {edges.size - 1}, one for each interval", n_auxiliary)
        if (self.time == 0).any():
            raise ArgumentError("y", "must have times > 0: a row is at risk before its event", "0")
        late, early = np.minimum(self.time[:, None], edges[1:]), np.maximum(self.entry[:, None], edges[:-1])
        self.at_risk = self.weights[:, None] * np.maximum(late - early, 0.0)
        interval = np.searchsorted(edges, self.time, side="left") - 1
        self.n_events = np.bincount(interval, self.events, n_auxiliary)

    def own_start(self) -> Array:
        """Return the logarithms of events over times at risk, and zeros."""
        hazard = np.maximum(self.n_events, 0.5) / np.maximum(self.at_risk.sum(axis=0), 1e-300)
        return np.concatenate([np.log(hazard), np.zeros(self.dim - self.n_auxiliary)])

    def _expected(self, theta: Array) -> Array:
        """Return the expected events of each row in each interval, shape (n, k)."""
        f = theta[: self.n_auxiliary] + self.predictor(theta)[:, None]
        return np.where(self.at_risk > 0, self.at_risk * np.exp(f), 0.0)

    def derivatives(self, theta: Array) -> Derivatives:
        k, f, expected = self.n_auxiliary, self.predictor(theta), self._expected(theta)
        each, X = expected.sum(axis=1), self.X
        gradient = X.T @ (each - self.events)
        gradient[:k] += expected.sum(axis=0) - self.n_events
        hessian = (X.T * each) @ X
        hessian[:k, :k] = np.diag(expected.sum(axis=0))
        hessian[:k, k:] = expected.T @ X[:, k:]
        hessian[k:, :k] = hessian[:k, k:].T
        value = each.sum() - self.n_events @ theta[:k] - self.events @ f
        return Derivatives(float(value) if np.isfinite(value) else np.inf, gradient, hessian)

    def rests_on(self, theta: ArrayLike) -> list[float]:
        expected = self._expected(np.asarray(theta, dtype=np.float64))
        each = [*expected.T[self.at_risk.any(axis=0)], expected.sum(axis=1)]
        return [effective_rows(one) for one in each]

    def _margins(self, q: Gaussian) -> Margins:
        """Reach by a row's predictor in an interval, as |ℓ'''| = ℓ'' of a Poisson regression, and rounding of sums."""
        k, expected, most = self.n_auxiliary, self._expected(q.mean), 0.0
        sizes = np.abs(self.X) @ np.abs(q.mean) + np.abs(q.mean[:k]).max()
        unit = self._unit(sizes if self.offset is None else sizes + np.abs(self.offset))
        for j, is_own in enumerate(self.at_risk.T > 0):
            rows = self.X[is_own] + np.eye(self.dim)[j]
            most = max(most, float(q.factor.row_variances(rows).max(initial=0.0)))
        errors = np.abs(self.X).T @ (expected.sum(axis=1) + self.events)
        errors[:k] += expected.sum(axis=0) + self.n_events
        return Margins(float(np.sqrt(most)), unit * errors, unit)
