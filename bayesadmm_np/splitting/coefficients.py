"""The scalars of a round: what a row of the table makes of clients' shares, in one place for NumPy and for torch.

    client   λ_k ← argmin E_q[ℓ_k] + ⟨η_k, μ⟩ + ρ_k KL(q‖q_g) + π_k KL(q‖π_0)        Eq. 15
    dual     η_k ← η_k + γ_k (λ_k − λ_g)                                            Eq. 16
    gather   λ_g ← Σ_k a_k λ_k + b Σ_k η_k + c η_0                                  Eq. 54

`client_coefficients` gives ρ_k, γ_k and π_k, and `gather_weights` gives a_k, b and c. A closed circuit has
wλ_g = c_0η_0 + Σ_kη_k, of which `circuit_weights` gives w and c_0. The arrays are added up elsewhere, from these
numbers and nothing else of the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .method import Method


class ClientCoefficients(NamedTuple):
    """Scalars of one client."""

    rho: float  # ρ_k
    step: float  # γ_k; 0 where the row has no dual
    prior: float  # π_k, the client's part of the regulariser; 0 where the server adds it


class GatherWeights(NamedTuple):
    """Scalars of the server."""

    naturals: tuple[float, ...]  # a_k, the weights of the clients' λ_k; all 0 where α = 1
    sites: float  # b, the weight of every η_k
    prior: float  # c, the weight of η_0; 0 where the prior sits at the clients
    divisor: float  # 1 − α + αw, by which the three are divided already


def client_coefficients(method: Method, share: float, n_clients: int) -> ClientCoefficients:
    """Return ρ_k, γ_k and π_k of a client that has N_k/N = `share` of the rows."""
    rho = method.rho * (share * n_clients if method.client_share == "rows" else 1.0)
    step = 0.0
    if method.dual_step:
        step = method.dual_step * share if method.client_share == "dual" else method.dual_step * rho / method.rho
    return ClientCoefficients(rho, step, {"server": 0.0, "clients": share, "each": 1.0}[method.prior_at])


def circuit_weights(method: Method, prior_weight: float) -> tuple[float, float]:
    """Return w and c_0 of wλ_g = c_0η_0 + Σ_kη_k; both are zero where the prior sits at the clients."""
    return (prior_weight, 1.0) if method.prior_at == "server" else (0.0, 0.0)


def gather_weights(
    method: Method,
    shares: Sequence[float],
    *,
    alpha: float | None = None,
    prior_weight: float = 1.0,
    present: Sequence[bool] | None = None,
) -> GatherWeights:
    """Return the weights of Eq. 54 for shares N_k/N; if the row says so, the mean leaves out absent clients."""
    alpha = method.server_alpha(len(shares)) if alpha is None else alpha
    weight, prior = circuit_weights(method, prior_weight)
    divisor = 1.0 - alpha + alpha * weight
    naturals = tuple((1.0 - alpha) * weight / divisor for weight in _mean(method, shares, present))
    each = alpha / divisor
    return GatherWeights(naturals, each, prior * each, divisor)


def _mean(method: Method, shares: Sequence[float], present: Sequence[bool] | None) -> Sequence[float]:
    """Weights of the mean over clients."""
    weights = shares if method.server_share == "rows" else (1.0 / len(shares),) * len(shares)
    if present is None or all(present) or method.mean_over == "all":
        return weights
    kept = [weight if here else 0.0 for weight, here in zip(weights, present, strict=True)]
    return [weight / sum(kept) for weight in kept]
