"""Independent Beta distributions on (0, 1)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaln, xlog1py, xlogy

from .._validation import Array
from .base import FAMILIES
from .conjugate import ConjugateFamily, as_points, outside_is_impossible, positive_vectors
from .coordinates import Expectation, Natural
from .dirichlet import digamma_differences, inverse_digamma_differences, whiten_rows


@FAMILIES.register
class Beta(ConjugateFamily):
    """d independent Betas with density ∝ θ^(a − 1) (1 − θ)^(b − 1) on (0, 1).

    λ = (a − 1, b − 1), T(θ) = (log θ, log(1 − θ)), h = 1, μ = (ψ(a) − ψ(a + b), ψ(b) − ψ(a + b)).
    Each coordinate is a Dirichlet on two outcomes, and is computed as one.

    Parameters
    ----------
    a, b : float or array_like, shape (d,)
        All entries positive; a number is repeated to match the other argument.

    Raises
    ------
    ValueError
        When an entry is not positive and finite, or the lengths differ.

    Notes
    -----
    ∇A∘∇A* is the identity to rounding error. ∇A*∘∇A returns (a, b) with a relative error of a few times
    (a + b) · (1 + |μ|) · 10⁻¹⁶, which is what storing μ in double precision costs.

    Examples
    --------
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> q = ba.families.Beta(a=[1.0, 3.0], b=1.0)
    >>> q.mean
    array([0.5 , 0.75])
    >>> np.round(q.with_expectation(q.expectation).a, 12)
    array([1., 3.])
    """

    arguments = ("a", "b")

    a: Array
    b: Array

    def __init__(self, a: ArrayLike, b: ArrayLike) -> None:
        self.a, self.b = positive_vectors(("a", a), ("b", b))

    @staticmethod
    def _from_parts(parts: Sequence[Array]) -> tuple[Array, ...]:
        return parts[0] + 1.0, parts[1] + 1.0

    @staticmethod
    def _from_moments(expectation: Expectation) -> tuple[Array, ...]:
        pairs = inverse_digamma_differences(np.stack(expectation.parts, axis=1))
        return pairs[:, 0].copy(), pairs[:, 1].copy()

    @property
    def _pairs(self) -> Array:
        return np.stack([self.a, self.b], axis=1)

    @cached_property
    def natural(self) -> Natural:
        return Natural(self.a - 1.0, self.b - 1.0)

    @cached_property
    def expectation(self) -> Expectation:
        return Expectation(*digamma_differences(self._pairs).T)

    @cached_property
    def log_partition(self) -> float:
        return float(betaln(self.a, self.b).sum())

    @property
    def mean(self) -> Array:
        """E[θ] = a/(a + b), shape (d,)."""
        return self.a / (self.a + self.b)

    @property
    def variance(self) -> Array:
        """Var[θ] = ab/((a + b)²(a + b + 1)), shape (d,)."""
        total = self.a + self.b
        return self.a / total * (self.b / total) / (total + 1.0)

    def whiten(self, difference: Natural) -> Array:
        """Symmetric roots of the 2 × 2 blocks diag(ψ'(a), ψ'(b)) − ψ'(a + b) 11ᵀ, in closed form."""
        self._require(difference, Natural)
        return whiten_rows(self._pairs, np.stack(difference.parts, axis=1)).ravel()

    def log_density(self, theta: ArrayLike) -> Array:
        """Log-density at points of shape (..., d); −inf outside [0, 1]."""
        points = as_points(theta, self.dim)
        inside = (points >= 0) & (points <= 1)
        safe = np.where(inside, points, 0.5)
        terms = xlogy(self.a - 1.0, safe) + xlog1py(self.b - 1.0, -safe)
        return outside_is_impossible(terms.sum(axis=-1) - self.log_partition, inside)

    def sample(self, rng: np.random.Generator, size: int = 1) -> Array:
        """Draw `size` points, shape (size, d); parameters below about 0.01 let some round to 0 or 1."""
        return rng.beta(self.a, self.b, (size, self.dim))
