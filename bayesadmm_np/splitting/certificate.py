"""The proof that comes with an answer: residuals of the duality circuit and of the pooled stationarity condition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..families.base import ExponentialFamily
from ..losses.base import Expected, GaussianExpected
from .history import Edges

__all__ = ["Certificate", "pooled_residual"]


@dataclass(frozen=True)
class Certificate:
    """Residuals at the end of a run, in Fisher length per parameter.

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
    """Fisher length per parameter of the gradient of the pooled objective at q_g."""
    residual = prior.prior_weight * q_g.natural - prior.natural
    for expected in at_server:
        residual = residual + expected.natural_gradient
    return q_g.fisher_norm(residual)
