"""A likelihood of a site's rows that is no sum of a loss of each row's predictor: survival, ordered classes, groups."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .._numerics import rounding_unit
from .._validation import Array
from ..families.base import ExponentialFamily
from ..families.gaussian import Gaussian
from .base import GaussianExpected, KroneckerCurvature, Loss, Margins, Rows
from .expectations import Rule
from .linear_model import as_theta, read_design, read_offset, read_weights, require_gaussian


class Derivatives(NamedTuple):
    """ℓ, ∇ℓ and ∇²ℓ at a point."""

    value: float
    gradient: Array
    hessian: Array


class SiteLikelihood(Loss):
    """−log likelihood of a site's rows in θ, known by value, gradient and Hessian; its sum over sites is minimised.

    The first `n_auxiliary` entries of θ are parameters beside the coefficients, as cutpoints or the logarithm of a
    dispersion; their columns of X are zeros, so that Xθ is the linear predictor. A point outside the parameters'
    domain has the value infinity.

    Parameters
    ----------
    X : array_like, shape (n, d)
        Columns of zeros for the auxiliary parameters, then the design; an intercept is a column of ones.
    y : array_like, shape (n,) or (n, k)
        Response of each row, as the subclass reads it.
    weights, offset : array_like, shape (n,), optional
    n_auxiliary : int, default 0

    Raises
    ------
    ValueError
        When an array is empty, not finite or of the wrong shape.
    """

    has_rounds = False
    has_rows = False
    """True of a sum over rows, which have slopes and curvatures of their own."""

    def __init__(
        self, X: ArrayLike, y: ArrayLike, weights: Any = None, offset: Any = None, n_auxiliary: int = 0
    ) -> None:
        self.X = read_design(X)
        self.y = np.asarray(y, dtype=np.float64)
        self.n_rows, self.dim = self.X.shape
        self.n_features, self.n_auxiliary = self.dim, n_auxiliary
        self.weights = read_weights(weights, self.n_rows)
        self.total_weight = float(self.weights.sum())
        self.offset = read_offset(offset, (self.n_rows,))
        self.kind_name = ""
        self._last: tuple[bytes, Derivatives] | None = None

    @abstractmethod
    def derivatives(self, theta: Array) -> Derivatives:
        """Return ℓ, ∇ℓ and ∇²ℓ at θ, shape (d,)."""

    def predictor(self, theta: Array) -> Array:
        """Return Xθ + offset, shape (n,)."""
        linear = self.X @ theta
        return np.asarray(linear if self.offset is None else linear + self.offset)

    @property
    def name(self) -> str:
        """Name of the kind with its options, where a kind made the likelihood."""
        return self.kind_name or type(self).__name__

    def own_start(self) -> Array:
        """Return where a fit to these rows alone may start, shape (d,): by default at zeros."""
        return np.zeros(self.dim)

    @property
    def target(self) -> Array:
        """A number of each row for pooled sums before the fit, shape (n,): its first response."""
        return self.y if self.y.ndim == 1 else self.y[:, 0]

    def information(self, theta: ArrayLike) -> Array:
        """Return the information whose pooled inverse is the covariance, shape (d, d): here the Hessian."""
        return self.hessian(theta)

    def saturated(self, theta: ArrayLike) -> float:
        """Return ℓ of a model that fits each row perfectly, of which deviances are measured: here zero."""
        return 0.0

    @property
    def outcomes(self) -> Array | None:
        """A 1 or 0 of each row, of which sums tell the rows of either; None of others."""
        return None

    def rows(self, theta: ArrayLike) -> Rows:
        """Return the rows, for rules about their columns; `rests_on` knows their part in sums."""
        nothing, ones = np.zeros(self.n_rows), np.ones(self.n_rows)
        return Rows(self.X, self.weights, self.target, self.predictor(as_theta(theta, self.dim)), nothing, ones)

    def at(self, theta: ArrayLike) -> Derivatives:
        """Return the derivatives at θ, those of the last point without another pass over the rows."""
        point = as_theta(theta, self.dim)
        key = point.tobytes()
        if self._last is None or self._last[0] != key:
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # where a search has gone too far
                value, gradient, hessian = self.derivatives(point)
            self._last = key, Derivatives(float(value), gradient, 0.5 * (hessian + hessian.T))
        return self._last[1]

    def value(self, theta: ArrayLike) -> float:
        return self.at(theta).value

    def gradient(self, theta: ArrayLike) -> Array:
        return self.at(theta).gradient

    def hessian(self, theta: ArrayLike) -> Array:
        return self.at(theta).hessian

    def check(self, prior: ExponentialFamily, rule: Rule) -> Rule:
        """Require a Gaussian family, and the delta method: no integral under q is known."""
        require_gaussian(self, prior)
        if not rule.is_delta:
            raise ValueError(f"{type(self).__name__} is fitted by maximum likelihood alone, not by {rule!r}.")
        return rule

    def expect(self, q: ExponentialFamily, rule: Rule) -> GaussianExpected:
        """Return ℓ, ∇ℓ and the information at the mean of q."""
        assert isinstance(q, Gaussian)
        found = self.at(q.mean)
        curvature = KroneckerCurvature(self.information(q.mean), 1)
        return GaussianExpected(q, found.value, found.gradient, curvature, rule, lambda: self._margins(q))

    def _margins(self, q: Gaussian) -> Margins:
        """Rounding of sums of n terms; no reach is known, so that no distance is claimed."""
        theta = q.mean
        unit, size = rounding_unit(self.n_rows, self.dim), np.abs(self.X) @ np.abs(theta) + 1.0
        curvature = np.abs(self.hessian(theta))
        return Margins(
            None, unit * (curvature @ (np.abs(theta) + 1.0) + np.abs(self.gradient(theta))), unit * float(size.max())
        )
