"""The Dirichlet distribution on the simplex."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import digamma, gammaln, logsumexp, polygamma, xlogy

from .._errors import ArgumentError
from .._validation import Array, as_float_array
from .base import FAMILIES
from .conjugate import ConjugateFamily, as_points, outside_is_impossible, positive_vectors
from .coordinates import Expectation, Natural
from .gamma import log_minus_digamma, trigamma_excess


@FAMILIES.register
class Dirichlet(ConjugateFamily):
    """Density ∝ Π θ_j^(α_j − 1) on the simplex {θ > 0, Σθ = 1} of K ≥ 2 coordinates; α is the concentration.

    λ = α − 1, T(θ) = log θ, h = 1 (with respect to the first K − 1 coordinates), μ_j = ψ(α_j) − ψ(Σα).

    Parameters
    ----------
    concentration : array_like, shape (K,)
        α, all entries positive.

    Raises
    ------
    ValueError
        When there are fewer than two entries, or one is not positive and finite.

    Notes
    -----
    ∇A∘∇A* is the identity to rounding error. ∇A*∘∇A returns α with a relative error of a few times
    Σα · (1 + |μ|) · 10⁻¹⁶: the total is read off −log Σ exp μ_j ≈ (K − 1)/(2Σα), which storing μ has already
    rounded.

    Examples
    --------
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> q = ba.families.Dirichlet(concentration=[1.0, 2.0, 5.0])
    >>> q.mean
    array([0.125, 0.25 , 0.625])
    >>> np.round(q.with_expectation(q.expectation).concentration, 12)
    array([1., 2., 5.])
    """

    arguments = ("concentration",)

    concentration: Array

    def __init__(self, concentration: ArrayLike) -> None:
        if as_float_array(concentration, "concentration", ndim=1).size < 2:
            raise ArgumentError("concentration", "must have at least 2 entries", "1")
        (self.concentration,) = positive_vectors(("concentration", concentration))

    @staticmethod
    def _from_parts(parts: Sequence[Array]) -> tuple[Array, ...]:
        return (parts[0] + 1.0,)

    @staticmethod
    def _from_moments(expectation: Expectation) -> tuple[Array, ...]:
        return (inverse_digamma_differences(expectation.parts[0][None, :])[0],)

    @cached_property
    def natural(self) -> Natural:
        return Natural(self.concentration - 1.0)

    @cached_property
    def expectation(self) -> Expectation:
        return Expectation(digamma_differences(self.concentration[None, :])[0])

    @cached_property
    def log_partition(self) -> float:
        return float(gammaln(self.concentration).sum() - gammaln(self.concentration.sum()))

    @property
    def mean(self) -> Array:
        """E[θ] = α/Σα, shape (K,)."""
        return self.concentration / self.concentration.sum()

    @property
    def variance(self) -> Array:
        """Var[θ_j] = p_j(1 − p_j)/(1 + Σα) with p the mean, shape (K,)."""
        return self.mean * (1.0 - self.mean) / (1.0 + self.concentration.sum())

    def whiten(self, difference: Natural) -> Array:
        """Symmetric root of diag(ψ'(α)) − ψ'(Σα) 11ᵀ, in closed form: it is diagonal plus rank one."""
        self._require(difference, Natural)
        return whiten_rows(self.concentration[None, :], difference.parts[0][None, :])[0]

    def log_density(self, theta: ArrayLike) -> Array:
        """Log-density at points of shape (..., K); −inf off the simplex (its sum may be off by rounding)."""
        points = as_points(theta, self.dim)
        inside = (points >= 0) & (np.abs(points.sum(axis=-1, keepdims=True) - 1.0) < 1e-9)
        terms = xlogy(self.concentration - 1.0, np.where(inside, points, 1.0))
        return outside_is_impossible(terms.sum(axis=-1) - self.log_partition, inside)

    def sample(self, rng: np.random.Generator, size: int = 1) -> Array:
        """Draw `size` points, shape (size, K); below α of about 0.01 coordinates underflow to 0."""
        return rng.dirichlet(self.concentration, size)


def digamma_differences(alpha: Array) -> Array:
    """Return ψ(α_j) − ψ(Σα) for each row of α, shape (n, K), without cancellation at large or unequal α."""
    total = alpha.sum(axis=1, keepdims=True)
    share = alpha / total
    # log of a share near one: through the sum of the others (at most one share exceeds a half)
    largest = np.arange(alpha.shape[1]) == alpha.argmax(axis=1)[:, None]
    others = np.where(largest, 0.0, alpha).sum(axis=1, keepdims=True) / total
    near_one = largest & (others < 0.5)
    log_share = np.where(near_one, np.log1p(-np.minimum(others, 0.5)), np.log(share))
    return log_share - log_minus_digamma(alpha) + log_minus_digamma(total)


def whiten_rows(alpha: Array, difference: Array) -> Array:
    """Return F^½ δ row by row, with F = diag(ψ'(α)) − ψ'(Σα) 11ᵀ; all of shape (n, K)."""
    trigammas, top, gap = _fisher_pieces(alpha)
    weights = 1.0 / np.sqrt(trigammas)
    direction = weights / np.linalg.norm(weights, axis=1, keepdims=True)
    scaled = np.sqrt(trigammas) * difference
    # in these coordinates F is I − c vvᵀ with 1 − c = ψ'(Σα) · gap
    removed = 1.0 - np.sqrt(top * gap)
    return scaled - removed * direction * (direction * scaled).sum(axis=1, keepdims=True)


def inverse_digamma_differences(target: Array) -> Array:
    """Solve ψ(α_j) − ψ(Σα) = target_j row by row, shape (n, K).

    Newton with a Hessian that is diagonal plus rank one (Minka 2000). The equations are the gradient of a
    convex function, so steps are shortened until they stay positive and do not pass the minimum along the
    step; near the solution full steps are taken.
    """
    # Σ exp μ_j < 1 is exactly the set of possible moments: the interior of the hull of {log θ}
    deficit = -logsumexp(target, axis=1, keepdims=True) if np.isfinite(target).all() else np.zeros(1)
    if not (deficit > 0).all():
        raise ValueError("impossible moments: Σ exp E[log θ_j] must be < 1, and every E[log θ_j] finite.")
    # the total for large concentrations, of the right order for small ones; then one fixed-point step
    alpha = _rough_inverse_digamma(target + digamma(0.5 * (target.shape[1] - 1) / deficit))
    settled = False
    for _ in range(200):
        trigammas, _, gap = _fisher_pieces(alpha)
        residual = target - digamma_differences(alpha)
        scaled = residual / trigammas
        step = scaled + scaled.sum(axis=1, keepdims=True) / (trigammas * gap)
        decrement = (residual * step).sum(axis=1, keepdims=True)
        alpha = alpha + _step_length(alpha, step, decrement, target) * step
        if settled:
            return alpha
        # the error is now about 1e-12 (convergence is quadratic), and one more step takes it to rounding
        settled = bool((decrement < 1e-12).all())
    # beyond a total of about 1e12, rounding in the moments keeps the decrement from getting this small
    if not (decrement < 1e-2).all():
        raise ValueError("impossible moments: too close to the boundary to be inverted in double precision.")
    return alpha


def _fisher_pieces(alpha: Array) -> tuple[Array, Array, Array]:
    """Return ψ'(α), ψ'(Σα) and 1/ψ'(Σα) − Σ 1/ψ'(α_j) > 0, the last through x − 1/ψ'(x) ≤ ½."""
    total = alpha.sum(axis=1, keepdims=True)
    trigammas, top = polygamma(1, alpha), polygamma(1, total)
    shortfalls = alpha * trigamma_excess(alpha) / trigammas
    gap = shortfalls.sum(axis=1, keepdims=True) - total * trigamma_excess(total) / top
    return trigammas, top, gap


def _step_length(alpha: Array, step: Array, decrement: Array, target: Array) -> Array:
    shrinking = np.where(step < 0, -step / alpha, 0.0).max(axis=1, keepdims=True)
    length = np.minimum(1.0, 0.9 / np.maximum(shrinking, 0.9))
    for _ in range(60):
        trial = target - digamma_differences(alpha + length * step)
        too_long = (decrement > 0.1) & ((trial * step).sum(axis=1, keepdims=True) < 0)
        if not too_long.any():
            break
        length = np.where(too_long, 0.5 * length, length)
    return length


def _rough_inverse_digamma(value: Array) -> Array:
    """Minka's starting value for ψ⁻¹: exp(y) + ½ for large y and −1/(y − ψ(1)) for small y."""
    small = value < -2.22
    at_small = -1.0 / (np.minimum(value, -2.22) - digamma(1.0))
    return np.where(small, at_small, np.exp(np.maximum(value, -2.22)) + 0.5)
