"""Generalised linear models of any distribution and link: half the deviance, with its derivatives by the chain rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri, xlogy

from .._errors import ArgumentError
from .._validation import Array
from .base import Rows
from .likelihood import Derivatives, SiteLikelihood


class Distribution(NamedTuple):
    """An exponential dispersion family: V and V′ at μ, half the deviance of (y, μ, 1 − μ), and the range of μ."""

    variance: Callable[[Array], Array]
    slope: Callable[[Array], Array]
    half_deviance: Callable[[Array, Array, Array], Array]
    least: float = -np.inf
    most: float = np.inf


def _of_events(y: Array, mean: Array, other: Array) -> Array:
    return xlogy(y, y) + xlogy(1.0 - y, 1.0 - y) - xlogy(y, mean) - xlogy(1.0 - y, other)


def _of_counts(y: Array, mean: Array, _: Array) -> Array:
    return xlogy(y, y) - xlogy(y, mean) - (y - mean)


DISTRIBUTIONS = {
    "gamma": Distribution(
        lambda mean: mean**2,
        lambda mean: 2.0 * mean,
        lambda y, mean, _: (y - mean) / mean - np.log(y / mean),
        0.0,
    ),
    "inverse_gaussian": Distribution(
        lambda mean: mean**3, lambda mean: 3.0 * mean**2, lambda y, mean, _: 0.5 * (y - mean) ** 2 / (mean**2 * y), 0.0
    ),
    "binomial": Distribution(lambda mean: mean * (1.0 - mean), lambda mean: 1.0 - 2.0 * mean, _of_events, 0.0, 1.0),
    "poisson": Distribution(lambda mean: mean, np.ones_like, _of_counts, 0.0),
    "gaussian": Distribution(np.ones_like, np.zeros_like, lambda y, mean, _: 0.5 * (y - mean) ** 2),
}
"""Distributions by name."""


class Inverse(NamedTuple):
    """A link by its inverse μ(f): μ, 1 − μ, μ′, μ″ at predictors, and the link itself; predictors lie above `least`."""

    mean: Callable[[Array], Array]
    other: Callable[[Array], Array]
    slope: Callable[[Array], Array]
    bend: Callable[[Array], Array]
    link: Callable[[Array], Array]
    least: float = -np.inf


def _density(f: Array) -> Array:
    return np.asarray(np.exp(-0.5 * f * f) / np.sqrt(2.0 * np.pi))


def _gumbel(f: Array) -> Array:
    return np.asarray(np.exp(f - np.exp(f)))


def _one_less(mean: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda f: 1.0 - mean(f)


def _reciprocal(f: Array) -> Array:
    return 1.0 / f


def _root(f: Array) -> Array:
    return f**-0.5


LINKS = {
    "identity": Inverse(np.asarray, lambda f: 1.0 - f, np.ones_like, np.zeros_like, np.asarray),
    "log": Inverse(np.exp, lambda f: -np.expm1(f), np.exp, np.exp, np.log),
    "inverse": Inverse(
        _reciprocal, _one_less(_reciprocal), lambda f: -(f**-2.0), lambda f: 2.0 * f**-3.0, _reciprocal, 0.0
    ),
    "1/mu^2": Inverse(
        _root, _one_less(_root), lambda f: -0.5 * f**-1.5, lambda f: 0.75 * f**-2.5, lambda mean: mean**-2.0, 0.0
    ),
    "sqrt": Inverse(np.square, lambda f: 1.0 - f * f, lambda f: 2.0 * f, lambda f: np.full_like(f, 2.0), np.sqrt, 0.0),
    "probit": Inverse(ndtr, lambda f: ndtr(-f), _density, lambda f: -f * _density(f), ndtri),
    "cloglog": Inverse(
        lambda f: -np.expm1(-np.exp(f)),
        lambda f: np.exp(-np.exp(f)),
        _gumbel,
        lambda f: _gumbel(f) * -np.expm1(f),
        lambda mean: np.log(-np.log1p(-mean)),
    ),
}
"""Links by name."""


class GeneralizedLinear(SiteLikelihood):
    """Half the deviance Σ w d(y, μ)/2 of a distribution with mean μ = g⁻¹(f), f = Xθ + offset.

    Outside the range of μ the value is infinity. ∂ℓ/∂f = −(y − μ) μ′/V, and the information is the expected one,
    Xᵀdiag(w μ′²/V)X, whatever the link. P. McCullagh and J. A. Nelder, Generalized Linear Models (1989), section 2.5.

    Parameters
    ----------
    X, weights, offset
        As in `SiteLikelihood`.
    y : array_like, shape (n,)
    family, link : str
        Keys of `DISTRIBUTIONS` and `LINKS`.

    Raises
    ------
    ValueError
        When an array is not finite or of the wrong shape, or y is none of the distribution.
    """

    is_convex = False
    has_rows = True

    def __init__(
        self,
        X: ArrayLike,
        y: ArrayLike,
        weights: Any = None,
        offset: Any = None,
        n_auxiliary: int = 0,
        family: str = "gamma",
        link: str = "log",
    ) -> None:
        super().__init__(X, y, weights, offset, n_auxiliary)
        self.distribution, self.inverse = DISTRIBUTIONS[family], LINKS[link]
        low, high = self.distribution.least, self.distribution.most
        is_open = family in ("gamma", "inverse_gaussian")
        if (self.y < low).any() or (self.y > high).any() or (is_open and not (self.y > 0.0).all()):
            expected = f"must hold numbers {'>' if is_open else '>='} {low:g}" + (
                f" and <= {high:g}" if high < 2 else ""
            )
            raise ArgumentError("y", expected, f"{self.y.min():g} to {self.y.max():g}")

    def rows(self, theta: ArrayLike) -> Rows:
        """Return the rows with slope and expected curvature."""
        f = self.predictor(np.asarray(theta, dtype=np.float64))
        with np.errstate(all="ignore"):  # at a point outside of the range there are none
            mean, slope = self.inverse.mean(f), self.inverse.slope(f)
            spread = self._spread(f, mean)
            first, curve = (mean - self.y) * slope / spread, slope**2 / spread
        return Rows(self.X, self.weights, self.y, f, np.nan_to_num(first), np.nan_to_num(curve))

    def _spread(self, f: Array, mean: Array) -> Array:
        """Return V(μ), of events as μ times 1 − μ, of which no tail is lost."""
        return mean * self.inverse.other(f) if self.distribution.most == 1.0 else self.distribution.variance(mean)

    def derivatives(self, theta: Array) -> Derivatives:
        f, w, y = self.predictor(theta), self.weights, self.y
        low, high = self.distribution.least, self.distribution.most
        mean = self.inverse.mean(f) if (f > self.inverse.least).all() else np.full_like(f, np.nan)
        spread = self._spread(f, mean)
        if not ((mean > low).all() and (mean <= high).all() and (spread > 0.0).all()):
            return Derivatives(np.inf, np.zeros(self.dim), np.eye(self.dim))
        slope, bend = self.inverse.slope(f), self.inverse.bend(f)
        value = w @ self.distribution.half_deviance(y, mean, self.inverse.other(f))
        curve = slope**2 / spread
        curve = curve - (y - mean) * (bend - slope * slope * self.distribution.slope(mean) / spread) / spread
        first = (mean - y) * slope / spread
        return Derivatives(float(value), self.X.T @ (w * first), (self.X.T * (w * curve)) @ self.X)

    def information(self, theta: ArrayLike) -> Array:
        """Return Xᵀdiag(w μ′²/V)X."""
        rows = self.rows(theta)
        found = (self.X.T * (self.weights * rows.curvature)) @ self.X
        return np.asarray(0.5 * (found + found.T))

    @np.errstate(all="ignore")  # of one class the link is infinite
    def own_start(self) -> Array:
        """Return the least-squares fit to the link of the target, drawn to its mean; or the mean alone."""
        mean, low, high = np.average(self.y, weights=self.weights), self.distribution.least, self.distribution.most
        if not low < mean < high:  # a site of no events, or of nothing else
            mean = np.clip(mean, low + 0.5 / self.n_rows, high - 0.5 / self.n_rows)
        inside = 0.9 * self.y + 0.1 * mean
        if low == -np.inf:  # of which a link may have a domain
            inside = np.maximum(inside, 0.1 * abs(mean))
        goal = self.inverse.link(inside)
        root, known = np.sqrt(self.weights), 0.0 if self.offset is None else self.offset
        start = np.asarray(np.linalg.lstsq(root[:, None] * self.X, root * (goal - known))[0])
        if np.isfinite(self.at(start).value) or not (self.X[:, -1] == 1.0).all():
            return start
        return np.append(np.zeros(self.dim - 1), self.inverse.link(np.array(mean)) - np.mean(known))
