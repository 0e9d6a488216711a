"""Likelihoods with an intercept of its own for each group of a site's rows, N(0, τ²): linear and logistic.

y has two columns, the response and the code of the row's group. Groups are independent, and a group lies in one site,
so that −log likelihood is a sum over sites.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp, softmax

from .._errors import ArgumentError
from .._validation import Array
from .base import effective_rows
from .likelihood import Derivatives, SiteLikelihood
from .pointwise import BinomialLogit

MOST_STEPS = 200
"""Most steps to a mode: each halves a bracket at least."""


class RandomIntercept(SiteLikelihood):
    """Rows of a site by group, sorted by the codes of `groups`; y, shape (n, 2), has response and code."""

    is_convex = False

    def __init__(
        self, X: ArrayLike, y: ArrayLike, weights: Any = None, offset: Any = None, n_auxiliary: int = 0
    ) -> None:
        super().__init__(X, y, weights, offset, n_auxiliary)
        self.order = np.argsort(self.y[:, 1], kind="stable")
        self.groups, self.starts, self.sizes = np.unique(self.y[self.order, 1], return_index=True, return_counts=True)
        self.response, self.columns = self.y[self.order, 0], self.X[self.order]

    def sums(self, values: Array) -> Array:
        """Return the sums over the rows of each group of values that are sorted as the groups are."""
        return np.asarray(np.add.reduceat(values, self.starts, axis=0))

    @abstractmethod
    def modes(self, theta: Array) -> Array:
        """Return the mode of each group's intercept given its rows, in the order of `groups`; they stay at the site."""


class Profile(NamedTuple):
    """Sums of a site's rows at a ratio ρ = τ/σ of standard deviations, with V = I + ρ² 11ᵀ for each group.

    `root` is R with RᵀR = [X y]ᵀV⁻¹[X y], `first` and `second` are the derivatives of that product in ρ, `log_det` is
    log det V with both of its own.
    """

    root: Array
    first: Array
    second: Array
    log_det: Array
    n_groups: int
    n_rows: int


class GaussianRandomIntercept(RandomIntercept):
    """−log likelihood of y = Xβ + u_g + e with u ~ N(0, ρ²σ²) and e ~ N(0, σ²); θ = (ρ, log σ, β).

    The likelihood is even in ρ, so that ρ = 0 is no edge. Rows have no weights.
    """

    @cached_property
    def _table(self) -> tuple[Array, Array]:
        """[X y], and its sums by group."""
        if (self.weights != 1.0).any():
            raise ArgumentError("weights", "must be left out for a linear model with a random intercept")
        target = self.response if self.offset is None else self.response - self.offset[self.order]
        columns = np.column_stack([self.columns[:, 2:], target])
        return columns, self.sums(columns)

    def profile(self, ratio: float) -> Profile:
        """Return the sums at ρ."""
        n, square, (columns, sums) = self.sizes, ratio**2, self._table
        spread = 1.0 + square * n
        shrink = (1.0 - 1.0 / np.sqrt(spread)) / n  # V^{-1/2} = I − shrink 11ᵀ, V⁻¹ = I − ρ²/(1 + ρ²n) 11ᵀ
        slopes = -2.0 * ratio / spread**2, -2.0 * (1.0 - 3.0 * square * n) / spread**3
        rates = 2.0 * ratio * n / spread, 2.0 * n * (1.0 - square * n) / spread**2
        root = np.asarray(np.linalg.qr(columns - np.repeat(shrink[:, None] * sums, n, axis=0), mode="r"))
        products = [(slope * sums.T) @ sums for slope in slopes]
        first, second = (0.5 * (product + product.T) for product in products)
        log_det = np.array([np.log(spread).sum(), *(rate.sum() for rate in rates)])
        return Profile(root, first, second, log_det, n.size, self.n_rows)

    def derivatives(self, theta: Array) -> Derivatives:
        (ratio, log_noise), n, precision = theta[:2], self.n_rows, float(np.exp(-2.0 * theta[1]))
        at = self.profile(ratio)
        to_residual = np.append(-theta[2:], 1.0)
        left = at.root @ to_residual
        parts = left @ at.root, at.first @ to_residual, at.second @ to_residual
        sizes = left @ left, to_residual @ parts[1], to_residual @ parts[2]
        by_ratio, by_noise = 0.5 * precision * sizes[1], -precision * sizes[0]
        by_coef, mixed = -precision * parts[0][:-1], -precision * parts[1][:-1]
        gradient = np.concatenate([[by_ratio + 0.5 * at.log_det[1], by_noise + n], by_coef])
        hessian = np.pad(precision * (at.root.T @ at.root)[:-1, :-1], ((2, 0), (2, 0)))
        hessian[0, 0] = 0.5 * (at.log_det[2] + precision * sizes[2])
        hessian[0, 1:] = hessian[1:, 0] = np.concatenate([[-2.0 * by_ratio], mixed])
        hessian[1, 1], hessian[1, 2:], hessian[2:, 1] = -2.0 * by_noise, -2.0 * by_coef, -2.0 * by_coef
        value = 0.5 * (at.log_det[0] + precision * sizes[0]) + n * (log_noise + 0.5 * np.log(2.0 * np.pi))
        return Derivatives(float(value), gradient, hessian)

    def information(self, theta: ArrayLike) -> Array:
        """Return the Hessian but for its part between β and (ρ, log σ), whose mean is zero: errors are as lme4's."""
        found = self.hessian(theta).copy()
        found[:2, 2:], found[2:, :2] = 0.0, 0.0
        return found

    def modes(self, theta: Array) -> Array:
        square = theta[0] ** 2
        return np.asarray(square / (1.0 + square * self.sizes) * (self._table[1] @ np.append(-theta[2:], 1.0)))


class LogisticRandomIntercept(RandomIntercept):
    """−log likelihood with the integral over each group's intercept by adaptive Gauss–Hermite quadrature; θ = (τ, β).

    One node is Laplace's approximation. The likelihood is even in τ. Derivatives are exact for the quadrature as it
    is: nodes move with the mode and its curvature, by the implicit function theorem. y is 1 of an event, else 0, or a
    share of events where weights are trials.
    """

    pointwise = BinomialLogit()

    def __init__(self, *given: Any, nodes: int = 1, **named: Any) -> None:
        super().__init__(*given, **named)
        if not ((self.response >= 0.0) & (self.response <= 1.0)).all():
            raise ArgumentError("y", "must hold 1 for an event, else 0, or shares of events")
        points, masses = np.polynomial.hermite_e.hermegauss(nodes)
        self.nodes = tuple(zip(points.tolist(), (masses / masses.sum()).tolist(), strict=True))

    def derivatives(self, theta: Array) -> Derivatives:
        z = self._mode(theta)
        _, (_, bend, j_3, j_4), (_, j_1z, j_1zz, j_1zzz), (_, j_2z, j_2zz) = self._slopes(theta, z)
        j_3, j_4, relative = j_3[:, None], j_4[:, None], 1.0 / bend[:, None]
        # derivatives in θ of the mode z, of d = log j_zz there, and of s = exp(−d/2), the unit of the nodes
        z_1 = -relative * j_1z
        z_2 = -relative[:, None] * (j_2z + _pairs(j_1zz, z_1) + j_3[:, None] * _square(z_1))
        d_1 = relative * (j_1zz + j_3 * z_1)
        d_2 = j_2zz + _pairs(j_1zzz, z_1) + j_4[:, None] * _square(z_1) + j_3[:, None] * z_2
        d_2 = relative[:, None] * d_2 - _square(d_1)
        s = 1.0 / np.sqrt(bend)
        s_1, s_2 = -0.5 * s[:, None] * d_1, s[:, None, None] * (0.25 * _square(d_1) - 0.5 * d_2)
        logs, slopes, bends = [], [], []
        for t, mass in self.nodes:
            at_node, (j_z, j_zz, *_), (j_1, j_1z, *_), (j_2, *_) = self._slopes(theta, z + t * s)
            at_1, j_z = z_1 + t * s_1, j_z[:, None]
            bent = j_2 + _pairs(j_1z, at_1) + j_zz[:, None, None] * _square(at_1) + j_z[:, None] * (z_2 + t * s_2)
            logs.append(np.log(mass) + 0.5 * t * t - at_node)
            slopes.append(j_1 + j_z * at_1)
            bends.append(bent - _square(slopes[-1]))
        shares = softmax(logs, axis=0)
        first = np.einsum("kg,kgi->gi", shares, slopes)
        second = np.einsum("kg,kgij->gij", shares, bends) + _square(first) + 0.5 * d_2
        value = float((0.5 * np.log(bend) - logsumexp(logs, axis=0)).sum())
        gradient, hessian = (first + 0.5 * d_1).sum(axis=0), second.sum(axis=0)
        is_finite = np.isfinite([value, *gradient, *hessian.ravel()]).all()
        return Derivatives(value if is_finite else np.inf, gradient, hessian)

    @property
    def outcomes(self) -> Array | None:
        return self.y[:, 0] if np.isin(self.y[:, 0], (0.0, 1.0)).all() else None

    def rests_on(self, theta: ArrayLike) -> list[float]:
        point = np.asarray(theta, dtype=np.float64)
        return [effective_rows(self._rows(point, self._mode(point))[2])]

    def _mode(self, theta: Array) -> Array:
        """Return z with j_z = 0, which is between any z and z − j_z, as j_zz ≥ 1; halve where Newton's steps do not."""
        z = np.zeros(self.sizes.size)
        low, high, moved = z - np.inf, z + np.inf, z + np.inf
        for _ in range(MOST_STEPS):
            _, slope, bend, *_ = map(self.sums, self._rows(theta, z))
            pull = theta[0] * slope + z
            low = np.maximum(low, z - np.maximum(pull, 0.0))
            high = np.minimum(high, z - np.minimum(pull, 0.0))
            step = z - pull / (1.0 + theta[0] ** 2 * bend)
            is_shorter = (step >= low) & (step <= high) & (2.0 * np.abs(step - z) <= moved)
            last, z = z, np.where(is_shorter, step, 0.5 * (low + high))
            moved = np.abs(z - last)
            if not (moved > 1e-14 * (1.0 + np.abs(z))).any():
                break
        return z

    def _rows(self, theta: Array, z: Array) -> list[Array]:
        """Return w ℓ of each row, and its first four derivatives in the predictor."""
        f = self.predictor(theta)[self.order] + theta[0] * np.repeat(z, self.sizes)
        f = np.nan_to_num(np.clip(f, -1e100, 1e100))  # where a search has gone too far
        first = self.pointwise.expected_derivatives(f[:, None], np.ones(1), self.response)
        whole = (*first, *self.pointwise.higher_derivatives(f, 0.0 * f, self.response))
        return [self.weights[self.order] * one for one in whole]

    def _slopes(self, theta: Array, z: Array) -> tuple[Array, tuple[Array, ...], tuple[Array, ...], tuple[Array, ...]]:
        """Return j(z, θ) = Σ_i w_i ℓ(η_i + τz) + z²/2 of each group, z its intercept over τ, and derivatives at z.

        Those are j_z to j_zzzz, (G,); j_θ, j_θz, j_θzz and j_θzzz, (G, d); j_θθ, j_θθz and j_θθzz, (G, d, d).
        """
        tau, unit = theta[0], np.eye(self.dim)[:1]
        value, slope, *others = self._rows(theta, z)
        columns = self.columns.copy()
        columns[:, 0] = 1.0
        scale = np.ones((z.size, self.dim))
        scale[:, 0] = z  # ∂f/∂θ is scale ∘ (1, x)
        m_1, v_1 = self.sums(slope)[:, None], scale * self.sums(slope[:, None] * columns)
        whole = [self.sums(each[:, None, None] * _square(columns)) for each in others]
        m_2, m_3, m_4 = (each[:, :1, 0] for each in whole)
        v_2, v_3, v_4 = (scale * each[:, 0] for each in whole)
        q_2, q_3, q_4 = (each * _square(scale) for each in whole)
        along = tau * m_1[:, 0] + z, tau**2 * m_2[:, 0] + 1.0, tau**3 * m_3[:, 0], tau**4 * m_4[:, 0]
        once = v_1, tau * v_2 + m_1 * unit, tau * (tau * v_3 + 2 * m_2 * unit), tau**2 * (tau * v_4 + 3 * m_3 * unit)
        twice = q_2, tau * q_3 + _pairs(v_2, unit), tau**2 * q_4 + _pairs(2.0 * tau * v_3 + m_2 * unit, unit)
        return self.sums(value) + 0.5 * z**2, along, once, twice

    def modes(self, theta: Array) -> Array:
        return np.asarray(theta[0] * self._mode(theta))


def _square(vectors: Array) -> Array:
    return np.asarray(vectors[:, :, None] * vectors[:, None, :])


def _pairs(one: Array, other: Array) -> Array:
    product = one[:, :, None] * other[:, None, :]
    return np.asarray(product + product.transpose(0, 2, 1))
