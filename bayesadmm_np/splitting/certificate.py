"""The proof that comes with an answer: residuals of the duality circuit and of the pooled stationarity condition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .._validation import Array
from ..families.base import ExponentialFamily
from ..families.gaussian import Gaussian
from ..families.precision import DensePrecision
from ..losses.base import Expected, GaussianExpected
from .distance import Distance, client_sums, distance_bound
from .history import Edges

__all__ = ["Certificate", "pooled_curvature", "pooled_distance", "pooled_residual"]

MOST_DENSE = 2000
"""Most parameters for which the dense pooled curvature, d² numbers, is formed for a family that is not dense."""


@dataclass(frozen=True)
class Certificate:
    """Residuals at the end of a run, in Fisher length per parameter.

    They certify the optimum of the pooled objective *under the run's expectation rule*: exact for least squares,
    logistic and Poisson, up to the integration error for softmax (compare rules with more points). For a diagonal
    family on collinear columns a residual r can mean an error of r times the condition number: centre the columns.

    Attributes
    ----------
    edges : Edges
        The four edges of the duality circuit (Eq. 13) after the last round.
    pooled : float
        wλ_g − η_0 + Σ_k ∇_μ E_{q_g}[ℓ_k]: zero exactly when q_g is the centralised VB solution (Eq. 12). It needs
        one sum over clients of natural gradients at q_g, and no rows.
    tol : float
    distance : Distance or None
        A bound on the distance to the mean of the pooled fit (docs/certificate.md); None outside the Gaussian families,
        and above 2000 parameters for a family whose precision is diagonal or has blocks.
    """

    edges: Edges
    pooled: float
    tol: float
    distance: Distance | None = None

    @property
    def holds(self) -> bool:
        """Whether the pooled stationarity residual is below tol."""
        return self.pooled <= self.tol

    def __str__(self) -> str:
        verdict = "holds" if self.holds else "does NOT hold"
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
        return "\n".join([f"pooled stationarity {verdict} to {self.tol:.0e}", *lines])


def pooled_residual(prior: ExponentialFamily, q_g: ExponentialFamily, at_server: Sequence[Expected]) -> float:
    """Length per parameter of the gradient of the pooled objective at q_g.

    The Fisher length; where the precision is fixed, and knows nothing of the data's units, the Newton decrement.
    """
    gaussian = _gaussian(at_server)
    if gaussian is not None and isinstance(q_g, Gaussian) and isinstance(prior, Gaussian):
        return _gaussian_residual(prior, q_g, gaussian)
    residual = prior.prior_weight * q_g.natural - prior.natural
    for expected in at_server:
        residual = residual + expected.natural_gradient
    return q_g.fisher_norm(residual)


def pooled_distance(prior: ExponentialFamily, q_g: ExponentialFamily, at_server: Sequence[Expected]) -> Distance | None:
    """Bound the distance from q_g to the pooled fit, where there is a bound to compute."""
    gaussian = _gaussian(at_server)
    if gaussian is None or not isinstance(q_g, Gaussian) or not isinstance(prior, Gaussian):
        return None
    holds_dense = isinstance(q_g.factor, DensePrecision) or not q_g.learns_precision
    if q_g.dim > MOST_DENSE and not holds_dense:
        return None
    return distance_bound(prior, q_g, [client_sums(expected) for expected in gaussian])


def _gaussian(at_server: Sequence[Expected]) -> list[GaussianExpected] | None:
    found = [expected for expected in at_server if isinstance(expected, GaussianExpected)]
    return found if len(found) == len(at_server) else None


def pooled_curvature(prior: Gaussian, at_server: Sequence[GaussianExpected]) -> list[Array]:
    """Return P_0 + Σ_kH_k, always to the same bits: a difference of two orders of adding is large next to a small S."""
    return [np.add.reduce(own) for own in zip(prior.factor.parts, *(e.projected for e in at_server), strict=True)]


def _gaussian_residual(prior: Gaussian, q_g: Gaussian, at_server: Sequence[GaussianExpected]) -> float:
    """Compute the residual of Gaussians from the gradient at the reported mean: Sm, a part of λ, would lose digits."""
    gradient = prior.factor.multiply(q_g.mean - prior.mean)
    for expected in at_server:
        gradient = gradient + expected.gradient
    if not q_g.learns_precision:
        curvature = np.add.reduce([expected.curvature.dense() for expected in at_server])
        newton = DensePrecision(curvature + prior.factor.multiply(np.eye(q_g.dim)))
        return float(np.linalg.norm(newton.half_solve(gradient)) / np.sqrt(q_g.dim))
    pooled = pooled_curvature(prior, at_server)
    excess = q_g.factor.like([own - part for own, part in zip(q_g.factor.parts, pooled, strict=True)])
    return q_g.fisher_norm(q_g.natural_from(gradient + excess.multiply(q_g.mean), excess.parts))
