"""Independent Gamma distributions, and the ψ-arithmetic that the Beta and Dirichlet families share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import digamma, gammaln, polygamma, xlogy

from .._validation import Array
from .base import FAMILIES
from .conjugate import ConjugateFamily, as_points, outside_is_impossible, positive_vectors
from .coordinates import Expectation, Natural

# log x − ψ(x) ~ 1/(2x) + Σ_k B_2k / (2k x^2k); from x = 10 on, these seven terms reach rounding error
_BERNOULLI = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
_ASYMPTOTIC_FROM = 10.0


@FAMILIES.register
class Gamma(ConjugateFamily):
    """d independent Gammas with density ∝ θ^(shape − 1) exp(−rate · θ) on θ > 0.

    λ = (shape − 1, −rate), T(θ) = (log θ, θ), h = 1, μ = (ψ(shape) − log rate, shape/rate).

    Parameters
    ----------
    shape, rate : float or array_like, shape (d,)
        All entries positive; a number is repeated to match the other argument.

    Raises
    ------
    ValueError
        When an entry is not positive and finite, or the lengths differ.

    Notes
    -----
    ∇A∘∇A* is the identity to rounding error. ∇A*∘∇A returns (shape, rate) with a relative error of a few
    times shape · (1 + |E log θ|) · 10⁻¹⁶, so 10⁻⁹ for a shape of 10⁶: the shape must be read off
    log E[θ] − E[log θ] ≈ 1/(2 shape), a difference that storing μ in double precision has already rounded.

    Examples
    --------
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> q = ba.families.Gamma(shape=[1.0, 3.0], rate=2.0)
    >>> q.mean, q.variance
    (array([0.5, 1.5]), array([0.25, 0.75]))
    >>> np.round(q.with_expectation(q.expectation).shape, 12)
    array([1., 3.])
    """

    arguments = ("shape", "rate")

    shape: Array
    rate: Array

    def __init__(self, shape: ArrayLike, rate: ArrayLike) -> None:
        self.shape, self.rate = positive_vectors(("shape", shape), ("rate", rate))

    @staticmethod
    def _from_parts(parts: Sequence[Array]) -> tuple[Array, ...]:
        return parts[0] + 1.0, -parts[1]

    @staticmethod
    def _from_moments(expectation: Expectation) -> tuple[Array, ...]:
        log_mean, mean = expectation.parts
        if not expectation.is_finite() or not (mean > 0).all() or not (log_mean < np.log(mean)).all():
            raise ValueError("impossible moments: they must be finite with E[θ] > 0, E[log θ] < log E[θ].")
        shape = _inverse_log_minus_digamma(np.log(mean) - log_mean)
        return shape, shape / mean

    @cached_property
    def natural(self) -> Natural:
        return Natural(self.shape - 1.0, -self.rate)

    @cached_property
    def expectation(self) -> Expectation:
        return Expectation(np.log(self.mean) - log_minus_digamma(self.shape), self.mean)

    @cached_property
    def log_partition(self) -> float:
        return float((gammaln(self.shape) - self.shape * np.log(self.rate)).sum())

    @property
    def mean(self) -> Array:
        """E[θ] = shape/rate, shape (d,)."""
        return self.shape / self.rate

    @property
    def variance(self) -> Array:
        """Var[θ] = shape/rate², shape (d,)."""
        return self.shape / self.rate**2

    def whiten(self, difference: Natural) -> Array:
        """Cholesky factor, rate first, of the 2 × 2 blocks [[ψ'(shape), 1/rate], [1/rate, shape/rate²]].

        The Schur complement ψ'(shape) − 1/shape is small for large shapes and evaluated without cancellation.
        """
        self._require(difference, Natural)
        first, second = difference.parts
        mean_part = (second + first / self.mean) * np.sqrt(self.shape) / self.rate
        return np.concatenate([np.sqrt(trigamma_excess(self.shape)) * first, mean_part])

    def log_density(self, theta: ArrayLike) -> Array:
        """Log-density at points of shape (..., d); −inf where a coordinate is negative."""
        points = as_points(theta, self.dim)
        terms = xlogy(self.shape - 1.0, np.where(points < 0, np.nan, points)) - self.rate * points
        return outside_is_impossible(terms.sum(axis=-1) - self.log_partition, points >= 0)

    def sample(self, rng: np.random.Generator, size: int = 1) -> Array:
        """Draw `size` points, shape (size, d); below a shape of about 0.01 some of them underflow to 0."""
        return rng.standard_gamma(self.shape, (size, self.dim)) / self.rate


def log_minus_digamma(x: Array) -> Array:
    """Return log x − ψ(x) for x > 0 to full relative accuracy: it tends to 1/(2x), its terms to log x."""
    z = 1.0 / np.maximum(x, _ASYMPTOTIC_FROM)
    series = 0.5 * z + z * z * np.polynomial.polynomial.polyval(z * z, _BERNOULLI)
    return np.where(x >= _ASYMPTOTIC_FROM, series, np.log(x) - digamma(x))


def trigamma_excess(x: Array) -> Array:
    """Return ψ'(x) − 1/x for x > 0 to full relative accuracy: it tends to 1/(2x²), its terms to 1/x."""
    z = 1.0 / np.maximum(x, _ASYMPTOTIC_FROM)
    slopes = [2 * k * term for k, term in enumerate(_BERNOULLI, start=1)]
    series = 0.5 * z * z + z**3 * np.polynomial.polynomial.polyval(z * z, slopes)
    return np.where(x >= _ASYMPTOTIC_FROM, series, polygamma(1, x) - 1.0 / x)


def _inverse_log_minus_digamma(target: Array) -> Array:
    """Solve log a − ψ(a) = target > 0: Newton in 1/a, in which the left-hand side is nearly linear."""
    # the start interpolates between a ≈ 1/(2 target) and a ≈ 1/target within 1.5 %, without cancellation
    root = np.sqrt(target * target + 18.0 * target + 9.0)
    a = np.where(target < 3.0, (3.0 - target + root) / (12.0 * target), 2.0 / (root + target - 3.0))
    for _ in range(20):
        gap = log_minus_digamma(a) - target
        change = gap / (a * trigamma_excess(a))
        a = a / (1.0 - change)
        if (np.abs(change) < 1e-9).all():  # convergence is quadratic: this step was the last that matters
            break
    return a
