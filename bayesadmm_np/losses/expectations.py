"""Rules for the mean of a pointwise loss over a Gaussian predictor: deterministic functions of its mean and covariance.

Gradients and Hessians come from E_q[∇ℓ] and E_q[∇²ℓ] (Bonnet, Price), never from reparametrised values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from .._errors import ArgumentError
from .._registry import Registry
from .._validation import Array, as_count, frozen
from .pointwise import Pointwise, RowMoments

CHUNK = 1 << 20
"""Numbers held at once by a point rule (8 MiB a temporary)."""


MOST_NODES = 350
"""NumPy's Gauss–Hermite weights overflow from some 375 nodes."""


class Rule(ABC):
    """Rule that averages a pointwise loss over its Gaussian predictor."""

    carries_curvature: ClassVar[bool] = True
    """Claim that E_q[∇²ℓ] enters the natural gradient (not for the first-order delta method)."""
    is_delta: ClassVar[bool] = False
    is_sampled: ClassVar[bool] = False
    """True if points replace the distribution: values and derivatives then match only up to the rule's error."""

    @abstractmethod
    def moments(self, loss: Pointwise, mean: Array, variance: Array, y: Array) -> RowMoments:
        """Average value, slope and curvature; mean is (n,) or (n, C), variance (n,) or (n, C, C)."""

    def higher_derivatives(self, loss: Pointwise, mean: Array, variance: Array, y: Array) -> tuple[Array, Array]:
        """Average the third and fourth derivatives; exactly, where the loss can."""
        return loss.higher_derivatives(mean, variance, y)

    def resolve(self, loss: Pointwise) -> Rule:
        """Return the concrete rule for this loss, or raise a ValueError saying why it does not fit."""
        return self


RULES: Registry[type[Rule]] = Registry("rule")
"""Every expectation rule by the name of its class."""


@RULES.register
@dataclass(frozen=True)
class Auto(Rule):
    """The most accurate deterministic rule: exact where there is one, else moment-matched quasi-Monte-Carlo.

    Examples
    --------
    >>> import bayesadmm_np as ba
    >>> from bayesadmm_np.losses.pointwise import BernoulliLogit, CategoricalLogit
    >>> ba.losses.Auto().resolve(BernoulliLogit())
    Exact()
    >>> ba.losses.Auto().resolve(CategoricalLogit(3))
    QuasiMonteCarlo(points=256, seed=0)
    """

    def resolve(self, loss: Pointwise) -> Rule:
        return Exact() if loss.has_exact else QuasiMonteCarlo()

    def moments(self, loss: Pointwise, mean: Array, variance: Array, y: Array) -> RowMoments:
        return self.resolve(loss).moments(loss, mean, variance, y)


@RULES.register
@dataclass(frozen=True)
class Exact(Rule):
    """Exact integrals: logistic, two-class softmax and Poisson (least squares is exact under every rule).

    Raises
    ------
    ValueError
        Before round 0, when the loss has none (softmax of three or more classes).

    Examples
    --------
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> from bayesadmm_np.losses.pointwise import PoissonLog
    >>> one = np.ones(1)
    >>> ba.losses.Exact().moments(PoissonLog(), 0 * one, 2 * one, 0 * one).value  # E exp(f) = e
    array([2.71828183])
    """

    def resolve(self, loss: Pointwise) -> Rule:
        if not loss.has_exact:
            raise ValueError(
                f"expectation=Exact() does not fit {type(loss).__name__}: no exact integral is known for "
                f"{loss.n_outputs} classes; use QuasiMonteCarlo() or leave the choice to Auto()."
            )
        return self

    def moments(self, loss: Pointwise, mean: Array, variance: Array, y: Array) -> RowMoments:
        moments = loss.exact(mean, variance, y)
        assert moments is not None, "resolve() checks this"
        return moments


class PointRule(Rule):
    """Rules of the form Σ_j w_j ℓ(mean + root · z_j) with the same points for every row."""

    is_sampled: ClassVar[bool] = True

    @abstractmethod
    def nodes(self, n_outputs: int) -> tuple[Array, Array]:
        """Return points (M, C) for a standard normal and their weights (M,)."""

    def moments(self, loss: Pointwise, mean: Array, variance: Array, y: Array) -> RowMoments:
        """Average over the points, in chunks of rows so that temporaries stay bounded."""
        points, weights = self.nodes(loss.n_outputs)
        size = max(1, CHUNK // points.size)
        chunks = [
            loss.expected_derivatives(_at(mean[i : i + size], variance[i : i + size], points), weights, y[i : i + size])
            for i in range(0, mean.shape[0], size)
        ]
        return RowMoments(*(np.concatenate(columns) for columns in zip(*chunks, strict=True)))

    def higher_derivatives(self, loss: Pointwise, mean: Array, variance: Array, y: Array) -> tuple[Array, Array]:
        if loss.n_outputs == 1:
            return loss.higher_derivatives(mean, variance, y)
        points, weights = self.nodes(loss.n_outputs)
        size = max(1, CHUNK // (points.shape[0] * loss.n_outputs * (loss.n_outputs + 1)))
        chunks = [
            loss.higher_derivatives_at(_at(mean[i : i + size], variance[i : i + size], points), weights)
            for i in range(0, mean.shape[0], size)
        ]
        third, fourth = (np.concatenate(columns) for columns in zip(*chunks, strict=True))
        return third, fourth


@RULES.register
@dataclass(frozen=True)
class GaussHermite(PointRule):
    """Gauss–Hermite quadrature for one predictor a row; good up to a standard deviation of about one.

    Parameters
    ----------
    points : int, default 32

    Raises
    ------
    ValueError
        When the loss has several predictors a row (softmax), or `points` is not in 1 to 350.

    Examples
    --------
    >>> import bayesadmm_np as ba
    >>> nodes, weights = ba.losses.GaussHermite(3).nodes(1)
    >>> (weights @ nodes**2).round(12)
    array([1.])
    """

    points: int = 32

    def __post_init__(self) -> None:
        if as_count(self.points, "points") > MOST_NODES:
            raise ArgumentError("points", f"must be at most {MOST_NODES}", self.points)

    def resolve(self, loss: Pointwise) -> Rule:
        if loss.n_outputs > 1:
            raise ValueError(
                f"expectation=GaussHermite() needs one predictor a row, {type(loss).__name__} has "
                f"{loss.n_outputs}; use QuasiMonteCarlo()."
            )
        return self

    def nodes(self, n_outputs: int) -> tuple[Array, Array]:
        return _gauss_hermite(self.points)


@RULES.register
@dataclass(frozen=True)
class QuasiMonteCarlo(PointRule):
    """Antithetic scrambled Sobol points, transformed so that their mean is 0 and their covariance I exactly.

    Any loss that is quadratic in the predictor is therefore integrated exactly.

    Parameters
    ----------
    points : int, default 256
        Number of points, even; a power of two keeps the Sobol set balanced.
    seed : int, default 0
        Seed of the scrambling.

    Raises
    ------
    ValueError
        When `points` is odd, or too small for the number of classes.

    Examples
    --------
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> nodes, weights = ba.losses.QuasiMonteCarlo(64).nodes(3)
    >>> np.allclose(nodes.T @ nodes / 64, np.eye(3))
    True
    """

    points: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        if as_count(self.points, "points", minimum=2) % 2:
            raise ArgumentError("points", "must be even (antithetic pairs)", self.points)
        as_count(self.seed, "seed", minimum=0)

    def resolve(self, loss: Pointwise) -> Rule:
        if self.points < 4 * loss.n_outputs:
            raise ArgumentError("points", f"must be at least {4 * loss.n_outputs} for {loss.n_outputs} classes")
        return self

    def nodes(self, n_outputs: int) -> tuple[Array, Array]:
        return matched_sobol(self.points, n_outputs, self.seed)


@RULES.register
@dataclass(frozen=True)
class Delta(Rule):
    """The delta method: expand ℓ at the mean.

    Order 1 is E_q[ℓ] ≈ ℓ(m), which makes point methods (Eq. 5 from Eq. 22). Order 2 adds ½ tr(∇²ℓ(m) S⁻¹), with third
    derivatives dropped from the gradient: the Laplace approximation, as in FedLap-Cov.

    Parameters
    ----------
    order : {1, 2}, default 1

    Raises
    ------
    ValueError
        When `order` is neither 1 nor 2.

    Examples
    --------
    >>> import bayesadmm_np as ba
    >>> ba.losses.Delta(order=2).carries_curvature
    True
    """

    order: int = 1
    is_delta: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.order not in (1, 2):
            raise ArgumentError("order", "must be 1 or 2", repr(self.order))

    @property
    def carries_curvature(self) -> bool:  # type: ignore[override]
        return self.order == 2

    def moments(self, loss: Pointwise, mean: Array, variance: Array, y: Array) -> RowMoments:
        """Evaluate at the mean; the loss adds the ½ tr(∇²ℓ S⁻¹) of order 2, which needs no row variances."""
        return loss.expected_derivatives(mean[:, None], np.ones(1), y)


def _at(mean: Array, variance: Array, points: Array) -> Array:
    """Return the predictors of rows at the points: (n, M), or (n, M, C)."""
    if mean.ndim == 1:
        return np.asarray(mean[:, None] + np.sqrt(variance)[:, None] * points[:, 0])
    predictors = np.matmul(points, _root(variance).transpose(0, 2, 1))
    predictors += mean[:, None, :]
    return np.asarray(predictors)


def _root(covariance: Array) -> Array:
    """Batched Cholesky factors; the jitter is below rounding and lets rows of zeros through."""
    n_outputs = covariance.shape[1]
    jitter = (1e-14 * np.einsum("ncc->nc", covariance) + 1e-300)[:, :, None]
    return np.asarray(np.linalg.cholesky(covariance + jitter * np.eye(n_outputs)))


@lru_cache(maxsize=16)
def _gauss_hermite(points: int) -> tuple[Array, Array]:
    nodes, weights = np.polynomial.hermite_e.hermegauss(points)
    return frozen(nodes[:, None]), frozen(weights / weights.sum())


@lru_cache(maxsize=16)
def matched_sobol(points: int, n_outputs: int, seed: int) -> tuple[Array, Array]:
    """Return quasi-random nodes of a standard normal, whose mean and covariance are exact, and their weights."""
    # imported here: scipy.stats takes longer to import than the rest of the package
    from scipy.special import ndtri
    from scipy.stats import qmc

    half = points // 2
    sobol = qmc.Sobol(n_outputs, scramble=True, rng=np.random.default_rng(seed))
    uniforms = sobol.random_base2(int(np.ceil(np.log2(half))))[:half]
    normal = ndtri(np.clip(uniforms, 1e-16, 1.0 - 1e-16))
    paired = np.concatenate([normal, -normal])
    second_moment = paired.T @ paired / points
    matched = np.linalg.solve(np.linalg.cholesky(second_moment), paired.T).T
    return frozen(np.ascontiguousarray(matched)), frozen(np.full(points, 1.0 / points))
