"""Regression of ordered classes: proportional odds, and the same with the normal distribution."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_expit, log_ndtr

from .._validation import Array, as_labels
from .base import effective_rows
from .likelihood import Derivatives, SiteLikelihood


class Latent(NamedTuple):
    """A symmetric distribution of the latent variable: log F, log F′ and F″/F′."""

    log_cdf: Any
    log_density: Any
    log_slope: Any


LATENT = {
    "logit": Latent(log_expit, lambda u: log_expit(u) + log_expit(-u), lambda u: -np.tanh(0.5 * u)),
    "probit": Latent(log_ndtr, lambda u: -0.5 * u * u - 0.5 * np.log(2.0 * np.pi), lambda u: -u),
}
"""Distributions by the name of their link."""


class ProportionalOdds(SiteLikelihood):
    """−log likelihood of ordered classes: P(y ≤ c) = F(ζ_c − f), with cutpoints ζ_0 < ζ_1 < … first in θ.

    F is the logistic, or with link "probit" the normal distribution; ℓ is convex in cutpoints and coefficients (Pratt,
    JASA 76, 1981), and infinite where cutpoints do not rise. P. McCullagh, J. R. Statist. Soc. B 42 (1980).

    Parameters
    ----------
    X, weights, offset
        As in `SiteLikelihood`.
    y : array_like, shape (n,)
        Labels 0 … C − 1; a site need not have all of them.
    n_auxiliary : int
        C − 1.
    link : {'logit', 'probit'}

    Raises
    ------
    ValueError
        When an array is not finite or of the wrong shape, or a label is out of range.
    """

    def __init__(
        self,
        X: ArrayLike,
        y: ArrayLike,
        weights: Any = None,
        offset: Any = None,
        n_auxiliary: int = 2,
        link: str = "logit",
    ) -> None:
        super().__init__(X, as_labels(y, "y", n_auxiliary + 1), weights, offset, n_auxiliary)
        self.latent = LATENT[link]
        marks = np.eye(n_auxiliary + 1)[self.y.astype(np.intp)]
        # mark the cutpoint over a row's class, and the one under
        self._above, self._below = marks[:, :-1], marks[:, 1:]

    def derivatives(self, theta: Array) -> Derivatives:
        a = self.n_auxiliary
        return self._at(theta[:a], np.repeat(self.predictor(theta)[:, None], a, axis=1), self._ways)

    @cached_property
    def _ways(self) -> tuple[Array, Array]:
        """Return ∂u/∂θ and ∂l/∂θ of the ends u = ζ_y − f and l = ζ_{y−1} − f of each row's interval, each (n, d)."""
        X = self.X[:, self.n_auxiliary :]
        above, below = (
            np.column_stack([marks, -marks.sum(axis=1, keepdims=True) * X]) for marks in (self._above, self._below)
        )
        return above, below

    def _at(self, cuts: Array, f: Array, ways: tuple[Array, Array]) -> Derivatives:
        """Return the derivatives from the predictor at each cutpoint, shape (n, C − 1), and those of the ends."""
        d, w, found = ways[0].shape[1], self.weights, self._in_ends(cuts, f)
        if found is None:
            return Derivatives(np.inf, np.zeros(d), np.eye(d))
        log_p, (a, b), curves = found
        U, L = ways
        gradient = -(U.T @ (w * a) + L.T @ (w * b))
        cross = (U.T * (w * a * b)) @ L
        hessian = cross + cross.T - (U.T * (w * curves[0])) @ U - (L.T * (w * curves[1])) @ L
        return Derivatives(-float(w @ log_p), gradient, hessian)

    def rests_on(self, theta: ArrayLike) -> list[float]:
        point, k = np.asarray(theta, dtype=np.float64), self.n_auxiliary
        found = self._in_ends(point[:k], np.repeat(self.predictor(point)[:, None], k, axis=1))
        if found is None:
            return [0.0]
        slopes, curves = found[1:]
        return [effective_rows(2.0 * slopes[0] * slopes[1] - curves[0] - curves[1], self.weights)]

    def _in_ends(self, cuts: Array, f: Array) -> tuple[Array, list[Array], list[Array]] | None:
        """Return log p of each row, and its first and second derivatives in both ends; None outside of the domain."""
        if (np.diff(cuts) <= 0.0).any():
            return None
        ends = cuts - f
        u = np.where(self._above.any(axis=1), (self._above * ends).sum(axis=1), np.inf)
        lower = np.where(self._below.any(axis=1), (self._below * ends).sum(axis=1), -np.inf)
        if (u <= lower).any():
            return None
        log_p = _log_between(self.latent, u, lower)
        slopes, curves = [], []
        for end, sign in ((u, 1.0), (lower, -1.0)):
            is_end = np.isfinite(end)
            at = np.where(is_end, end, 0.0)
            ratio = np.where(is_end, np.exp(self.latent.log_density(at) - log_p), 0.0)  # F′/p
            slopes.append(sign * ratio)
            curves.append(sign * ratio * self.latent.log_slope(at) - ratio**2)
        return log_p, slopes, curves

    def own_start(self) -> Array:
        """Return the cutpoints of the classes' shares, each with half a row more."""
        counts = np.bincount(self.y.astype(np.intp), self.weights, self.n_auxiliary + 1) + 0.5
        shares = np.cumsum(counts)[:-1] / counts.sum()
        return np.append(np.log(shares / (1.0 - shares)), np.zeros(self.dim - self.n_auxiliary))

    @property
    def rows_at_cutpoints(self) -> list[float]:
        """Return on how many rows the sums of each cutpoint rest: those of its two classes; infinity for none."""
        rows = (self._above + self._below)[self.weights > 0].sum(axis=0)
        return np.where(rows > 0, rows, np.inf).tolist()

    def apart(self, theta: ArrayLike) -> tuple[Array, Array]:
        """Return gradient and Hessian at θ of the model with coefficients of their own at each cutpoint.

        Its parameters are the cutpoints, and then the coefficients of cutpoint 0, 1, …; at θ all are those of θ.
        """
        theta, a = np.asarray(theta, dtype=np.float64), self.n_auxiliary
        X = self.X[:, a:]
        above, below = (
            np.column_stack([marks, (-marks[:, :, None] * X[:, None, :]).reshape(len(X), -1)])
            for marks in (self._above, self._below)
        )
        found = self._at(theta[:a], np.repeat(self.predictor(theta)[:, None], a, axis=1), (above, below))
        return found.gradient, 0.5 * (found.hessian + found.hessian.T)


def _log_between(latent: Latent, u: Array, lower: Array) -> Array:
    """Return log(F(u) − F(l)), on the side where F is small, so that no digit of a tail cancels."""
    flip = lower + u > 0.0
    high, low = np.where(flip, -lower, u), np.where(flip, -u, lower)
    top = latent.log_cdf(high)
    return np.asarray(top + np.log1p(-np.exp(latent.log_cdf(low) - top)))


def class_chances(f: Array, cuts: Array, how: str | None = None, *, link: str = "logit") -> Array:
    """Return P(y = c), shape (n, C), from predictors (n,) and cutpoints (C − 1,); there is one way, whatever `how`."""
    ends = np.column_stack([np.full(len(f), -np.inf), cuts - f[:, None], np.full(len(f), np.inf)])
    return np.exp(
        np.column_stack([_log_between(LATENT[link], ends[:, c + 1], ends[:, c]) for c in range(len(cuts) + 1)])
    )
