"""The record of every round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..clients.problem import ClientStatus


@dataclass(frozen=True)
class Edges:
    """Residuals of the four edges of the duality circuit (Eq. 13): Fisher lengths per parameter.

    Attributes
    ----------
    broadcast : float
        max_k of λ_k − λ_g: primal agreement μ_k = μ_g.
    natural_gradient : float
        max_k of η_k + ∇_μ E_{q_k}[ℓ_k]: duals are natural gradients. Infinite until every client has taken part; 0, and
        not measured, after closed forms whose dual step makes it rounding by construction.
    gather : float
        λ_g − η_0 − Σ_k η_k: the duals add up to the server.
    dual_map : float
        λ_g − ∇A*(∇A(λ_g)): the two coordinate systems of the server agree. Rounding only, but it cancels like
        ε‖m‖²_S for a mean far from the origin, which says nothing about the answer: reported, never waited for.
    """

    broadcast: float
    natural_gradient: float
    gather: float
    dual_map: float

    @property
    def largest(self) -> float:
        """The largest of the first three: zero exactly at a fixed point."""
        return max(self.broadcast, self.natural_gradient, self.gather)


@dataclass(frozen=True)
class ClientRecord:
    """Record of one client in one round; an absent client keeps its last answer."""

    iterations: int
    status: ClientStatus
    residual: float
    broadcast: float
    natural_gradient: float
    well_posed: bool
    seconds: float


@dataclass(frozen=True)
class RoundRecord:
    """One round."""

    round: int  # from 1
    objective: float  # Σ_k E_{q_g}[ℓ_k] + KL(q_g‖prior) after the round
    alpha: float  # the server's step; above the method's own where the safeguard raised it
    edges: Edges
    clients: tuple[ClientRecord, ...]
    mixed: bool  # whether an accelerated step was taken
    floats_down: int  # numbers sent to all clients together
    floats_up: int  # numbers sent by all of them
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, strings and lists (for JSON)."""
        # not asdict: its deep copies take most of a checkpoint's time after some hundred rounds
        clients = [{**vars(client), "status": client.status.name} for client in self.clients]
        return {**vars(self), "edges": {**vars(self.edges)}, "clients": clients}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> RoundRecord:
        """Inverse of `to_dict`."""
        clients = tuple(
            ClientRecord(**{**client, "status": ClientStatus[client["status"]]}) for client in plain["clients"]
        )
        return cls(**{**plain, "edges": Edges(**plain["edges"]), "clients": clients})
