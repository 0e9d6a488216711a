"""The proof that comes with an answer: residuals of the duality circuit and of the pooled stationarity condition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..families.base import ExponentialFamily
from ..families.gaussian import Gaussian
from ..families.precision import DensePrecision
from ..losses.base import Expected, GaussianExpected
from .history import Edges

__all__ = ["Certificate", "pooled_residual"]


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
    """

    edges: Edges
    pooled: float
    tol: float

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
        return "\n".join([f"pooled stationarity {verdict} to {self.tol:.0e}", *lines])


def pooled_residual(
    prior: ExponentialFamily, q_g: ExponentialFamily, at_server: Sequence[Expected | GaussianExpected]
) -> float:
    """Length per parameter of the gradient of the pooled objective at q_g.

    The Fisher length; where the precision is fixed, and knows nothing of the data's units, the Newton decrement.
    """
    gaussian = [expected for expected in at_server if isinstance(expected, GaussianExpected)]
    if isinstance(q_g, Gaussian) and isinstance(prior, Gaussian) and len(gaussian) == len(at_server):
        return _gaussian_residual(prior, q_g, gaussian)
    residual = prior.prior_weight * q_g.natural - prior.natural
    for expected in at_server:
        residual = residual + expected.natural_gradient
    return q_g.fisher_norm(residual)


def _gaussian_residual(prior: Gaussian, q_g: Gaussian, at_server: Sequence[GaussianExpected]) -> float:
    """The same with the gradient taken at the mean that is reported; in λ, where it is S m, the mean cancels."""
    gradient = prior.factor.multiply(q_g.mean - prior.mean)
    for expected in at_server:
        gradient = gradient + expected.gradient
    if not q_g.learns_precision:
        curvature = np.add.reduce([expected.curvature.dense() for expected in at_server])
        newton = DensePrecision(curvature + prior.factor.multiply(np.eye(q_g.dim)))
        return float(np.linalg.norm(newton.half_solve(gradient)) / np.sqrt(q_g.dim))
    parts = [own - first for own, first in zip(q_g.factor.parts, prior.factor.parts, strict=True)]
    for expected in at_server:
        parts = [part - hessian for part, hessian in zip(parts, expected.projected, strict=True)]
    excess = q_g.factor.like(parts)
    return q_g.fisher_norm(q_g.natural_from(gradient + excess.multiply(q_g.mean), excess.parts))
