"""The one affine map between the user's columns and the run's, and the places of coefficients in θ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .._errors import ArgumentError
from .._validation import Array
from ..design.rows import INTERCEPT, require_different
from ..families.coordinates import Natural
from ..splitting.distance import Distance


@dataclass(frozen=True)
class Layout:
    """Layout of θ, which stacks, output by output, the coefficients and then the intercept.

    The run's intercept is b + wᵀcentre + shift: measured at `centre`, shape (p,), and with a part `shift` of all
    offsets, so that columns and offsets far from zero do no harm.
    """

    n_features: int
    n_outputs: int
    has_intercept: bool
    centre: Array | None = None
    shift: float = 0.0

    @property
    def width(self) -> int:
        """Parameters of one output."""
        return self.n_features + self.has_intercept

    @property
    def dim(self) -> int:
        """Number of parameters."""
        return self.n_outputs * self.width

    @property
    def is_intercept(self) -> NDArray[np.bool_]:
        """Mask of the intercepts in θ."""
        mask = np.zeros((self.n_outputs, self.width), dtype=bool)
        mask[:, self.n_features :] = True
        return mask.ravel()

    def columns(self, names: Sequence[str]) -> list[str]:
        """Return the names of the design's columns, that of the intercept last."""
        return [*names, *[INTERCEPT] * self.has_intercept]

    def parameters(self, names: Sequence[str], outputs: Sequence[str]) -> tuple[str, ...]:
        """Return the names of the entries of θ; with several outputs `output: column`."""
        return tuple(f"{output}: {name}" if output else name for output in outputs for name in self.columns(names))

    def require_names(self, names: Sequence[str], outputs: Sequence[str]) -> None:
        """Refuse names of columns, classes and intercept that give two coefficients the same name."""
        require_different("must have columns of different names", names)
        if INTERCEPT in names:
            raise ArgumentError("X", "must have no column of the intercept's name", repr(INTERCEPT), "rename it")
        expected = "must have columns and classes that give no two coefficients one name"
        require_different(expected, self.parameters(names, outputs))

    def require_offset(self, offset: Array | None) -> None:
        """Refuse an offset if a row has several predictors: it would be ambiguous."""
        if offset is not None and self.n_outputs > 1:
            expected = "must be left out for several classes or targets, each of which has a predictor of its own"
            raise ArgumentError("offset", expected)

    def beside(self, offset: Array | None, n_rows: int) -> Array | None:
        """Return what of an offset the run's intercept does not hold, shape (n_rows,); None where that is nothing."""
        if not self.shift:
            return offset
        return (np.zeros(n_rows) if offset is None else offset) - self.shift

    @property
    def shifts(self) -> Array:
        """The user's θ less the run's, beside what `move` does."""
        return np.where(self.is_intercept, -self.shift, 0.0)

    def design(self, X: Array) -> Array:
        """Append the intercept's ones; row by row in memory, so that a frame and an array give the same bits."""
        centred = X if self.centre is None else X - self.centre
        whole = np.column_stack([centred, np.ones(X.shape[0])]) if self.has_intercept else centred
        return np.ascontiguousarray(whole)

    def move(self, by: Array) -> Array:
        """Return the matrix that maps intercepts b of θ to b + wᵀby, w being the slopes."""
        block = np.eye(self.width)
        block[-1, : self.n_features] = by
        return np.asarray(np.kron(np.eye(self.n_outputs), block), dtype=np.float64)

    @property
    def outward(self) -> Array:
        """The matrix that takes the intercepts of the user's θ to the run's centre."""
        return np.eye(self.dim) if self.centre is None else self.move(self.centre)

    @property
    def homeward(self) -> Array:
        """Inverse of `outward`."""
        return np.eye(self.dim) if self.centre is None else self.move(-self.centre)

    @property
    def to_user(self) -> tuple[Array, Array]:
        """The matrix A and the vector b of the user's θ = Aθ + b."""
        return self.homeward, self.shifts

    def coefficients(self, theta: Array) -> Array:
        """Return the coefficients of the user's θ, shape (n_outputs, n_features)."""
        return theta.reshape(self.n_outputs, -1)[:, : self.n_features].copy()

    def intercepts(self, theta: Array) -> Array:
        """Return the intercepts of the user's θ, shape (n_outputs,); zeros where there are none."""
        found = theta.reshape(self.n_outputs, -1)[:, self.n_features :].sum(axis=1)
        return np.asarray(found)


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
