"""The interface of an exponential family; a member of the family is an immutable distribution."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from .._registry import Registry
from .._validation import Array
from .coordinates import Coordinates, Displacement, Expectation, Natural, pairing


class ExponentialFamily(ABC):
    """A member q(θ) = h(θ) exp(⟨λ, T(θ)⟩ − A(λ)) of an exponential family (Eq. 10).

    The class and its fixed structure are the family. The prior's family is that of the whole run. A subclass
    implements the abstract methods; KL, entropy, A* and the rest follow.
    """

    arguments: ClassVar[tuple[str, ...]] = ()
    """Names of the vectors that the constructor takes, in order; with them a registered family can be sent."""

    prior_weight: float = 1.0
    """w in KL(q‖π₀) = w · KL(q‖start) + const; 1 unless the prior lies outside the family (isotropic)."""

    @property
    def is_proper(self) -> bool:
        """Return whether this is a distribution; False for a flat prior, which is a limit of distributions."""
        return True

    @property
    @abstractmethod
    def natural(self) -> Natural:
        """The natural parameter λ."""

    @property
    @abstractmethod
    def expectation(self) -> Expectation:
        """The expectation parameter μ = ∇A(λ) = E_q[T(θ)]."""

    @property
    @abstractmethod
    def log_partition(self) -> float:
        """A(λ) = log ∫ h(θ) exp⟨λ, T(θ)⟩ dθ."""

    @abstractmethod
    def with_natural(self, natural: Natural) -> Self:
        """Return the member ∇A(λ); raises ValueError when λ is outside the domain Ω."""

    @abstractmethod
    def with_expectation(self, expectation: Expectation) -> Self:
        """Return the member whose natural parameter is ∇A*(μ); raises ValueError for impossible moments."""

    @abstractmethod
    def contains(self, natural: Natural) -> bool:
        """Return whether λ lies in the interior of Ω, so that a distribution with it exists."""

    @abstractmethod
    def whiten(self, difference: Natural) -> Array:
        """Return a vector u with uᵀu = ⟨δ, F(λ) δ⟩, the local Fisher length of a natural difference δ, squared."""

    def displacement(self, difference: Natural) -> Displacement:
        """Return the change of this member under a small change δ of λ, in parts that compare between members."""
        return Displacement._own(difference.parts)

    def whiten_displacement(self, displacement: Displacement) -> Array:
        """Return a vector whose length is a displacement's Fisher length at this member; it may be another member's."""
        return self.whiten(Natural._own(displacement.parts))

    @abstractmethod
    def log_density(self, theta: ArrayLike) -> Array:
        """Log-density at points θ of shape (..., d)."""

    @abstractmethod
    def sample(self, rng: np.random.Generator, size: int = 1) -> Array:
        """Draw `size` points, shape (size, d)."""

    def __repr__(self) -> str:
        """Return the arguments, or λ where the family names none."""
        with np.printoptions(precision=4, threshold=12):
            named = ", ".join(f"{name}={getattr(self, name)}" for name in self.arguments)
        return f"{type(self).__name__}({named or repr(self.natural)})"

    def start(self) -> Self:
        """Return the member that a run starts at when this is the prior."""
        return self

    @cached_property
    def conjugate(self) -> float:
        """A*(μ) = ⟨λ, μ⟩ − A(λ), the negative entropy relative to h."""
        return pairing(self.natural, self.expectation) - self.log_partition

    @property
    def entropy(self) -> float:
        """−E_q[log q]; equals −A*(μ) when the base measure h is one."""
        return -self.conjugate

    def kl(self, other: ExponentialFamily) -> float:
        """KL(self‖other) = A(λ_other) − A(λ) − ⟨λ_other − λ, μ⟩ in nats; a TypeError for another family."""
        self._require_same_family(other)
        return other.log_partition - self.log_partition - pairing(other.natural - self.natural, self.expectation)

    def fisher_norm(self, difference: Natural) -> float:
        """Root mean square of the whitened natural difference: its local Fisher length per parameter."""
        if not any(part.any() for part in difference.parts):
            return 0.0
        whitened = self.whiten(difference)
        return float(np.sqrt(np.einsum("i,i->", whitened, whitened) / difference.size))

    def lengths(self, members: Sequence[Natural]) -> list[float]:
        """Fisher lengths per parameter of λ − λ_self for the λ of other members."""
        return [self.fisher_norm(member - self.natural) for member in members]

    def _require_same_family(self, other: object) -> None:
        if type(other) is not type(self):
            raise TypeError(f"expected a {type(self).__name__}, got {type(other).__name__}.")
        assert isinstance(other, ExponentialFamily)
        if other.natural.shapes != self.natural.shapes:
            raise TypeError(f"members of different families: {self.natural.shapes} and {other.natural.shapes}.")

    def _require(self, value: object, kind: type[Coordinates]) -> None:
        """Raise a TypeError unless `value` is a coordinate of this kind and of this family's shapes."""
        if type(value) is not kind:
            raise TypeError(f"expected a {kind.__name__} parameter, got {type(value).__name__}.")
        assert isinstance(value, Coordinates)
        if value.shapes != self.natural.shapes:
            raise TypeError(
                f"{type(self).__name__} has parameters of shapes {self.natural.shapes}, got {value.shapes}."
            )


FAMILIES: Registry[type[ExponentialFamily]] = Registry("family")
"""Every family by the name of its class."""
