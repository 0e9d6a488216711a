"""Losses of one row as functions of its linear predictor f: value, ∂ℓ/∂f and ∂²ℓ/∂f², averaged over points."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .._validation import Array
from .logistic_normal import logistic_normal_moments, softplus_and_complement
from .tensors import pairs, sorted_indices


class RowMoments(NamedTuple):
    """Per-row means of value (n,), slope (n,) or (n, C), and curvature (n,) or (n, C, C)."""

    value: Array
    slope: Array
    curvature: Array


class Pointwise(ABC):
    """A twice differentiable loss ℓ(f, y) of a predictor with `n_outputs` components."""

    n_outputs: int = 1
    has_reference: bool = False
    """Presence of a reference class, whose predictor is zero, beside the others."""
    is_convex: bool = True
    """True if ∂²ℓ/∂f² ⪰ 0 for every f."""
    concordance: float | None = None
    """M such that |ℓ'''| ≤ M ℓ'' with ℓ'' log-concave in f; with several predictors |ℓ'''[u, u, v]| ≤ M (max v − min v)
    ℓ''[u, u]. None where no such M is known, and then no bound on the distance to the pooled fit is claimed."""

    @abstractmethod
    def expected_derivatives(self, predictors: Array, weights: Array, y: Array) -> RowMoments:
        """Average over points: predictors (n, M) or (n, M, C), weights (M,)."""

    def exact(self, mean: Array, variance: Array, y: Array) -> RowMoments | None:
        """Return exact means under f ~ N(mean, variance), or None where no exact rule is known."""
        return None

    @property
    def has_exact(self) -> bool:
        """Return whether `exact` is implemented."""
        return type(self).exact is not Pointwise.exact

    def higher_derivatives(self, mean: Array, variance: Array, y: Array) -> tuple[Array, Array]:
        """Return E[ℓ'''] and E[ℓ''''] under f ~ N(mean, variance), exactly; shapes (n,), or as at points."""
        raise NotImplementedError(f"the third and fourth derivatives of {type(self).__name__} are not known.")

    def higher_derivatives_at(self, predictors: Array, weights: Array) -> tuple[Array, Array]:
        """Average ℓ''' and ℓ'''' over points (n, M, C): shapes (n, C(C+2, 3)) and (n, C(C+3, 4)), each entry once."""
        raise NotImplementedError(f"the third and fourth derivatives of {type(self).__name__} are not known.")

    @property
    def has_higher_derivatives(self) -> bool:
        """Return whether third and fourth derivatives are known, with several predictors at points."""
        if self.n_outputs > 1:
            return type(self).higher_derivatives_at is not Pointwise.higher_derivatives_at
        return type(self).higher_derivatives is not Pointwise.higher_derivatives and self.has_exact

    def walls(self, y: Array) -> Array | None:
        """Return vectors b_ij, shape (n, m, C): ℓ(f_i + t u, y_i) stays bounded for t → ∞ iff b_ijᵀu >= 0 for all j.

        Zeros fill rows with fewer than m. None if they are not known; separation is then not diagnosed.
        """
        return None

    def log_curvature_slope(self, predictor: Array) -> Array | None:
        """Return ∂ log ℓ''/∂f, shape (n,), for Firth's penalty; None where it is not known, or depends on y."""
        return None


class BernoulliLogit(Pointwise):
    """ℓ(f, y) = softplus(f) − y f for y ∈ {0, 1}, evaluated as softplus(±f) so that no margin cancels."""

    concordance = 1.0

    def expected_derivatives(self, predictors: Array, weights: Array, y: Array) -> RowMoments:
        sign = (1.0 - 2.0 * y)[:, None]
        margin = sign * predictors
        with np.errstate(under="ignore"):
            e = np.exp(-np.abs(margin))
            ratio, large = softplus_and_complement(e)
            small = e * large
            return RowMoments(
                (np.maximum(margin, 0.0) + e * ratio) @ weights,
                sign[:, 0] * (np.where(margin > 0.0, large, small) @ weights),
                (small * large) @ weights,
            )

    def exact(self, mean: Array, variance: Array, y: Array) -> RowMoments:
        sign = 1.0 - 2.0 * y
        moments = logistic_normal_moments(sign * mean, variance)
        return RowMoments(moments.softplus, sign * moments.sigmoid, moments.slope)

    def higher_derivatives(self, mean: Array, variance: Array, y: Array) -> tuple[Array, Array]:
        """E σ'' and E σ''', which are the same for both labels."""
        moments = logistic_normal_moments(mean, variance, order=4)
        assert moments.skew is not None
        assert moments.jerk is not None
        return moments.skew, moments.jerk

    def log_curvature_slope(self, predictor: Array) -> Array:
        return np.asarray(-np.tanh(0.5 * predictor))

    def walls(self, y: Array) -> Array:
        """Against the label."""
        return np.asarray(2.0 * y - 1.0)[:, None, None]


class BinomialLogit(BernoulliLogit):
    """ℓ(f, y) = softplus(f) − y f for a share y ∈ [0, 1] of events: y rows of label 1 and 1 − y of label 0."""

    def expected_derivatives(self, predictors: Array, weights: Array, y: Array) -> RowMoments:
        return self._mixed(y, lambda label: super(BinomialLogit, self).expected_derivatives(predictors, weights, label))

    def exact(self, mean: Array, variance: Array, y: Array) -> RowMoments:
        return self._mixed(y, lambda label: super(BinomialLogit, self).exact(mean, variance, label))

    @staticmethod
    def _mixed(y: Array, of: Callable[[Array], RowMoments]) -> RowMoments:
        event, other = of(np.ones_like(y)), of(np.zeros_like(y))
        return RowMoments(*(y * one + (1.0 - y) * two for one, two in zip(event, other, strict=True)))

    def walls(self, y: Array) -> Array:
        """Against events, and against their absence, where there are some."""
        return np.stack([y > 0.0, -1.0 * (y < 1.0)], axis=1)[:, :, None]


class PoissonLog(Pointwise):
    """ℓ(f, y) = exp(f) − y f: the negative log-likelihood of counts with log link, log y! dropped."""

    concordance = 1.0

    def expected_derivatives(self, predictors: Array, weights: Array, y: Array) -> RowMoments:
        with np.errstate(over="ignore"):
            rate = np.exp(predictors)
            mean_rate = rate @ weights
            value = mean_rate - y * (predictors @ weights)
        return RowMoments(value, mean_rate - y, mean_rate)

    def exact(self, mean: Array, variance: Array, y: Array) -> RowMoments:
        with np.errstate(over="ignore"):
            rate = np.exp(mean + 0.5 * variance)
        return RowMoments(rate - y * mean, rate - y, rate)

    def higher_derivatives(self, mean: Array, variance: Array, y: Array) -> tuple[Array, Array]:
        """The rate, twice."""
        rate = self.exact(mean, variance, y).curvature
        return rate, rate

    def log_curvature_slope(self, predictor: Array) -> Array:
        return np.ones_like(predictor)

    def walls(self, y: Array) -> Array:
        """Upwards always, downwards for a count above zero."""
        return np.stack([-np.ones(y.size), (y > 0).astype(np.float64)], axis=1)[:, :, None]


class CategoricalLogit(Pointwise):
    """ℓ(f, y) = logsumexp(f) − f_y for y ∈ {0, …, C − 1}; with a reference f_0 = 0, and there are C − 1 predictors."""

    concordance = 1.0

    def __init__(self, n_classes: int, has_reference: bool = False) -> None:
        self.n_outputs = n_classes - has_reference
        self.has_reference = has_reference

    def expected_derivatives(self, predictors: Array, weights: Array, y: Array) -> RowMoments:
        if self.has_reference:
            whole = np.concatenate([np.zeros_like(predictors[:, :, :1]), predictors], axis=2)
            value, slope, curvature = CategoricalLogit(whole.shape[2]).expected_derivatives(whole, weights, y)
            return RowMoments(value, slope[:, 1:], curvature[:, 1:, 1:])
        labels = y.astype(np.intp)
        rows = np.arange(labels.shape[0])
        top = predictors.max(axis=2)
        probabilities = np.exp(predictors - top[:, :, None])
        total = probabilities.sum(axis=2)
        probabilities /= total[:, :, None]
        value = (top + np.log(total) - predictors[rows, :, labels]) @ weights
        mean = np.einsum("nmc,m->nc", probabilities, weights)
        # W^{1/2}P once, so that the product with its own transpose is exactly symmetric
        scaled = probabilities * np.sqrt(weights)[:, None]
        curvature = -np.matmul(scaled.transpose(0, 2, 1), scaled)
        # E[p_c(1 − p_c)] as Σ_{b≠c} E[p_c p_b]: the difference would lose all digits where a class is certain
        diagonal = np.arange(self.n_outputs)
        curvature[:, diagonal, diagonal] = 0.0
        curvature[:, diagonal, diagonal] = -curvature.sum(axis=2)
        slope = mean
        slope[rows, labels] -= 1.0
        return RowMoments(value, slope, curvature)

    def exact(self, mean: Array, variance: Array, y: Array) -> RowMoments | None:
        """Return the logistic integrals of f₁ − f₀ for two classes."""
        if not self.has_exact:
            return None
        difference = mean[:, 1] - mean[:, 0]
        spread = variance[:, 0, 0] + variance[:, 1, 1] - 2.0 * variance[:, 0, 1]
        binary = BernoulliLogit().exact(difference, np.maximum(spread, 0.0), y)
        signs = np.array([-1.0, 1.0])
        curvature = binary.curvature[:, None, None] * np.outer(signs, signs)
        return RowMoments(binary.value, binary.slope[:, None] * signs, curvature)

    def higher_derivatives(self, mean: Array, variance: Array, y: Array) -> tuple[Array, Array]:
        """Return the logistic's derivatives for two classes; each index has the sign of f₁ − f₀."""
        if not self.has_exact:
            return super().higher_derivatives(mean, variance, y)
        spread = variance[:, 0, 0] + variance[:, 1, 1] - 2.0 * variance[:, 0, 1]
        third, fourth = BernoulliLogit().higher_derivatives(mean[:, 1] - mean[:, 0], np.maximum(spread, 0.0), y)
        return third[:, None] * [-1.0, 1.0, -1.0, 1.0], fourth[:, None] * [1.0, -1.0, 1.0, -1.0, 1.0]

    def higher_derivatives_at(self, predictors: Array, weights: Array) -> tuple[Array, Array]:
        """Third and fourth cumulants of the label's indicators; the products of probabilities are averaged over points.

        With δ_ab of two classes, and sums over the ways to place the indices,

            κ_abc = δ_abc p_a − Σ δ_ab p_a p_c + 2 p_a p_b p_c
            κ_abcd = δ_abcd p_a − Σ δ_abc p_a p_d − Σ δ_ab δ_cd p_a p_c + 2 Σ δ_ab p_a p_c p_d − 6 p_a p_b p_c p_d
        """
        own = predictors
        if self.has_reference:
            own = np.concatenate([np.zeros_like(own[:, :, :1]), own], axis=2)
        p = np.exp(own - own.max(axis=2, keepdims=True))
        p = (p / p.sum(axis=2, keepdims=True))[:, :, int(self.has_reference) :]
        one = np.einsum("nma,m->na", p, weights)
        two = np.matmul((p * weights[:, None]).transpose(0, 2, 1), p)
        rows, columns = pairs(self.n_outputs)
        products = p[:, :, rows] * p[:, :, columns]
        weighted = (products * weights[:, None]).transpose(0, 2, 1)
        three, four = np.matmul(weighted, p), np.matmul(weighted, products)
        place = {pair: i for i, pair in enumerate(zip(rows.tolist(), columns.tolist(), strict=True))}

        def power(*indices: int) -> Array:
            """E[p_a p_b …] of up to four classes."""
            a, b, *rest = sorted(indices) if len(indices) > 1 else (indices[0], -1)
            if b < 0:
                return one[:, a]
            if not rest:
                return two[:, a, b]
            return three[:, place[a, b], rest[0]] if len(rest) == 1 else four[:, place[a, b], place[rest[0], rest[1]]]

        third = [_cumulant(key, power) for key in sorted_indices(self.n_outputs, 3)]
        fourth = [_cumulant(key, power) for key in sorted_indices(self.n_outputs, 4)]
        return np.stack(third, axis=1), np.stack(fourth, axis=1)

    @property
    def has_exact(self) -> bool:
        """Two classes reduce to the logistic."""
        return self.n_outputs == 2 and not self.has_reference

    def walls(self, y: Array) -> Array:
        """The label's predictor minus each other's; that of a reference class is zero."""
        units = np.eye(self.n_outputs + self.has_reference)[:, int(self.has_reference) :]
        return np.asarray(units[y.astype(np.intp)][:, None, :] - units)


def _cumulant(indices: tuple[int, ...], power: Callable[..., Array]) -> Array:
    """Joint cumulant of indicators: Σ over partitions of (−1)^(b−1)(b−1)! Π of the means of b blocks of one class."""
    total: Array | float = 0.0
    for blocks in _PARTITIONS[len(indices)]:
        found = [{indices[i] for i in block} for block in blocks]
        if all(len(block) == 1 for block in found):
            total = total + _SIGNS[len(found)] * power(*(next(iter(block)) for block in found))
    return np.asarray(total)


_SIGNS = {1: 1.0, 2: -1.0, 3: 2.0, 4: -6.0}


def _partitions(items: tuple[int, ...]) -> list[list[tuple[int, ...]]]:
    if not items:
        return [[]]
    first, rest = items[0], items[1:]
    found = []
    for smaller in _partitions(rest):
        found.append([(first,), *smaller])
        found += [[*smaller[:i], (first, *block), *smaller[i + 1 :]] for i, block in enumerate(smaller)]
    return found


_PARTITIONS = {order: _partitions(tuple(range(order))) for order in (3, 4)}
