"""The proof that comes with an answer: residuals of the duality circuit and of the pooled stationarity condition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from .._validation import Array
from ..families.gaussian import Gaussian
from ..families.precision import DensePrecision
from ..losses.base import Expected, GaussianExpected
from .distance import Distance, client_sums, distance_bound
from .status import Edges

WORTHWHILE = 0.01  # distance in standard errors above which a small residual is reported to be worth little
MOST_DENSE = 2000  # parameters up to which the dense pooled curvature is formed for a family that is not dense


@dataclass(frozen=True)
class Certificate:
    """Residuals at the end of a run, in Fisher length per parameter.

    They certify the optimum of the pooled objective *under the run's expectation rule*: exact for least squares,
    logistic and Poisson, up to the integration error for softmax.

    Attributes
    ----------
    edges : Edges
        The four edges of the duality circuit (Eq. 13) after the last round.
    pooled : float
        wλ_g − η_0 + Σ_k ∇_μ E_{q_g}[ℓ_k]: zero exactly when q_g is the centralised VB solution (Eq. 12). It needs
        one sum over clients of natural gradients at q_g, and no rows.
    tol : float
    distance : Distance or None
        A bound on the distance to the mean of the pooled fit (docs/certificate.md). None outside the Gaussian families,
        and for diagonal or block precisions above 2000 parameters.

    Raises
    ------
    ValueError
        When a residual is negative.
    """

    edges: Edges
    pooled: float
    tol: float
    distance: Distance | None = None

    def __post_init__(self) -> None:
        lengths = {f"edges.{name}": value for name, value in vars(self.edges).items()} | {"pooled": self.pooled}
        for name, value in lengths.items():
            if value < 0:
                raise ValueError(f"certificate.{name} must be >= 0, got {value}")

    @property
    def is_stationary(self) -> bool:
        """Return whether the pooled stationarity residual is below tol."""
        return self.pooled <= self.tol

    @property
    def holds(self) -> bool:
        """Return whether the residual is below tol, and the distance has a bound where one was looked for."""
        return self.is_stationary and (self.distance is None or bool(np.isfinite(self.distance.sd_units)))

    @property
    def is_worth_little(self) -> bool:
        """Return whether the certificate holds, and yet no coefficient is known to 0.01 of its standard error.

        Such are diagonal families on collinear columns, where a small residual hides a large error.
        """
        return self.holds and self.distance is not None and not self.distance.sd_units <= WORTHWHILE

    @property
    def doubt(self) -> str:
        """Doubt that the bound on the distance casts on a residual below tol, in words; empty for none."""
        if self.is_worth_little:
            assert self.distance is not None
            return f"yet the mean may be {self.distance.sd_units:.1g} standard errors off: lower tol"
        return "yet nothing bounds the distance: see certificate()" if self.is_stationary and not self.holds else ""

    @property
    def plain(self) -> dict[str, Any]:
        """Values that JSON can hold, from which a reader of files makes the certificate again."""
        found = asdict(self)
        if self.distance is not None:
            found["distance"]["per_coefficient"] = self.distance.per_coefficient.tolist()
        return found

    def verdict(self, has_maximum: bool = True) -> str:
        """Return in words whether the certificate holds; it does not if the likelihood has no maximum."""
        if not has_maximum:
            return "does NOT hold: the likelihood has no maximum"
        said = f"pooled stationarity {'holds' if self.is_stationary else 'does NOT hold'} to {self.tol:.0e}"
        if self.is_stationary and not self.holds:
            said += ", which proves nothing without a bound on the distance"
        return said

    def __str__(self) -> str:
        rows = [
            ("broadcast        μ_k = μ_g", self.edges.broadcast),
            ("natural gradient η_k = −∇_μ E[ℓ_k]", self.edges.natural_gradient),
            ("gather           λ_g = η_0 + Σ η_k", self.edges.gather),
            ("dual map         μ_g = ∇A(λ_g)", self.edges.dual_map),
            ("pooled           λ_g = η_0 − Σ ∇_μ E_{q_g}[ℓ_k]", self.pooled),
        ]
        lines = [f"  {name:<50} {value:.1e}" for name, value in rows]
        if self.distance is not None:
            lines.append(str(self.distance))
        said = self.verdict()
        if self.is_worth_little:
            said += ", but a small residual means little here: see the bound on the distance, and lower tol"
        return "\n".join([said, *lines])


@dataclass(frozen=True)
class PooledObjective:
    """Σ_k E_q[ℓ_k] + KL(q‖prior) (Eq. 9) around a q, from the clients' expectations there."""

    prior: Any
    q: Any
    expected: Sequence[Expected]  # E_q[ℓ_k] of every client, with its natural gradient

    @cached_property
    def residual(self) -> float:
        """Fisher length per parameter of its gradient at q; the Newton decrement where the precision is fixed."""
        if not self.is_gaussian:
            residual = self.prior.prior_weight * self.q.natural - self.prior.natural
            for own in self.expected:
                residual = residual + own.natural_gradient
            return float(self.q.fisher_norm(residual))
        # from the gradient at the reported mean: Sm, a part of λ, would lose digits
        gradient = self.prior.factor.multiply(self.q.mean - self.prior.mean)
        for sums in self.sums:
            gradient = gradient + sums.gradient
        if not self.q.learns_precision:
            curvature = np.add.reduce([sums.curvature.dense() for sums in self.sums])
            newton = DensePrecision(curvature + self.prior.factor.multiply(np.eye(self.q.dim)))
            if not newton.is_positive_definite():  # singular to rounding: what is not determined has not converged
                return float("inf")
            return float(np.linalg.norm(newton.half_solve(gradient)) / np.sqrt(self.q.dim))
        excess = self.q.factor.like([own - part for own, part in zip(self.q.factor.parts, self.curvature, strict=True)])
        return float(self.q.fisher_norm(self.q.natural_from(gradient + excess.multiply(self.q.mean), excess.parts)))

    @property
    def distance(self) -> Distance | None:
        """Bound on the distance from q to the pooled fit, where there is a bound to compute."""
        if not self.is_gaussian:
            return None
        holds_dense = isinstance(self.q.factor, DensePrecision) or not self.q.learns_precision
        if self.q.dim > MOST_DENSE and not holds_dense:
            return None
        return distance_bound(self.prior, self.q, [client_sums(sums) for sums in self.sums])

    @property
    def curvature(self) -> list[Array]:
        """P_0 + Σ_kH_k, always to the same bits: a difference of two orders of adding is large next to a small S."""
        return [
            np.add.reduce(own) for own in zip(self.prior.factor.parts, *(s.projected for s in self.sums), strict=True)
        ]

    @property
    def laplace(self) -> PooledObjective | None:
        """The objective around N(m, S⁻¹), S = P_0 + Σ_kH_k at q's mean m; None where S is not positive definite.

        The reach of a site's rows is bounded by that under q: a variance xᵀS⁻¹x grows at most by the largest eigenvalue
        of S_q relative to S, which is at most 1 + ‖S^{-1/2}(S_q − S)S^{-1/2}‖_F.
        """
        if not all(sums.natural_gradient.is_finite() for sums in self.sums):
            return None
        factor = self.q.factor.like(self.curvature)
        if not factor.is_positive_definite():
            return None
        q = self.q.at(self.q.mean, factor.parts)
        change = q.factor.whiten([old - new for old, new in zip(self.q.factor.parts, factor.parts, strict=True)])
        stretch = float(np.sqrt(1.0 + np.linalg.norm(change)))
        return PooledObjective(self.prior, q, [sums.moved(q, stretch) for sums in self.sums])

    @property
    def is_gaussian(self) -> bool:
        """Return whether q is a Gaussian, and all clients gave their gradients and curvatures."""
        return isinstance(self.q, Gaussian) and len(self.sums) == len(self.expected)

    @property
    def sums(self) -> list[GaussianExpected]:
        """Expectations of clients with gradients and curvatures."""
        return [own for own in self.expected if isinstance(own, GaussianExpected)]
