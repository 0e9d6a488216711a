"""Independent Beta distributions on (0, 1)."""

from __future__ import annotations

from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaln, xlog1py, xlogy

from .._validation import Array, frozen
from .base import FAMILIES, ExponentialFamily
from .coordinates import Expectation, Natural
from .dirichlet import digamma_differences, inverse_digamma_differences, whiten_rows
from .gamma import as_points, outside_is_impossible, positive_vectors, require_vectors

__all__ = ["Beta"]


@FAMILIES.register
class Beta(ExponentialFamily):
    """d independent Betas with density ∝ θ^(a − 1) (1 − θ)^(b − 1) on (0, 1).

    λ = (a − 1, b − 1), T(θ) = (log θ, log(1 − θ)), h = 1, μ = (ψ(a) − ψ(a + b), ψ(b) − ψ(a + b)).
    Each coordinate is a Dirichlet on two outcomes, and is computed as one.

    Parameters
    ----------
    a : float or array_like, shape (d,)
        All entries positive.
    b : float or array_like, shape (d,)
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

    @classmethod
    def _make(cls, a: Array, b: Array) -> Self:
        member = cls.__new__(cls)
        member.a, member.b = frozen(a), frozen(b)
        return member

    @classmethod
    def from_natural(cls, natural: Natural) -> Self:
        """Return the member with natural parameter (a − 1, b − 1).

        Raises
        ------
        ValueError
            When an a or a b would not be positive.
        """
        require_vectors(natural, Natural, 2)
        if not _inside(natural):
            raise ValueError("natural parameter outside the domain: a − 1 and b − 1 must be > −1.")
        member = cls._make(natural.parts[0] + 1.0, natural.parts[1] + 1.0)
        # keep λ as given: 1 is added and subtracted at the cost of a small parameter's last digits
        member.__dict__["natural"] = natural
        return member

    @classmethod
    def from_expectation(cls, expectation: Expectation) -> Self:
        """Return the member with the moments (E log θ, E log(1 − θ)), that is ∇A*(μ).

        Raises
        ------
        ValueError
            When exp E[log θ] + exp E[log(1 − θ)] is not below one.
        """
        require_vectors(expectation, Expectation, 2)
        pairs = inverse_digamma_differences(np.stack(expectation.parts, axis=1))
        return cls._make(pairs[:, 0].copy(), pairs[:, 1].copy())

    def with_natural(self, natural: Natural) -> Self:
        """Return the member with natural parameter λ."""
        require_vectors(natural, Natural, 2, self.dim)
        return type(self).from_natural(natural)

    def with_expectation(self, expectation: Expectation) -> Self:
        """Return the member with expectation parameter μ."""
        require_vectors(expectation, Expectation, 2, self.dim)
        return type(self).from_expectation(expectation)

    def contains(self, natural: Natural) -> bool:
        """Whether every a and b is positive and finite."""
        require_vectors(natural, Natural, 2, self.dim)
        return _inside(natural)

    @property
    def dim(self) -> int:
        """Number of variables d."""
        return self.a.size

    @property
    def _pairs(self) -> Array:
        return np.stack([self.a, self.b], axis=1)

    @cached_property
    def natural(self) -> Natural:
        """λ = (a − 1, b − 1)."""
        return Natural(self.a - 1.0, self.b - 1.0)

    @cached_property
    def expectation(self) -> Expectation:
        """μ = (ψ(a) − ψ(a + b), ψ(b) − ψ(a + b))."""
        return Expectation(*digamma_differences(self._pairs).T)

    @cached_property
    def log_partition(self) -> float:
        """A(λ) = Σ log B(a, b)."""
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
        require_vectors(difference, Natural, 2, self.dim)
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

    def __repr__(self) -> str:
        with np.printoptions(precision=4, threshold=12):
            return f"{type(self).__name__}(a={self.a}, b={self.b})"


def _inside(natural: Natural) -> bool:
    return natural.is_finite() and all(bool((part > -1.0).all()) for part in natural.parts)
