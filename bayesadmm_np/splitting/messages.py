"""Messages between server and client: plain arrays and numbers, so that the client may be another machine."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from .._validation import Array
from ..clients.problem import ClientStatus
from ..families.coordinates import Natural

Ask = Literal["own", "solve", "evaluate", "sums"]
"""Task of clients: fit alone, solve Eq. 15 around q_g, give their natural gradient there, or all that a guard needs."""


class Broadcast(NamedTuple):
    """Server to client: the distribution to agree on."""

    round: int  # 1 for the first round
    natural: Natural  # λ_g
    ask: Ask = "solve"
    context: Any = None  # what a step tells beside λ_g, such as all sites' sketches

    @property
    def floats(self) -> int:
        """Numbers of λ_g; symmetric matrices count d(d+1)/2."""
        return self.natural.size


class Reply(NamedTuple):
    """Client to server: its distribution, and scalars about the solve.

    The dual η_k is kept by the client; the server follows it from λ_k and λ_g, so only one of the two is sent.
    """

    natural: Natural  # λ_k
    site: Natural  # η_k after the dual step
    iterations: int
    status: ClientStatus
    residual: float  # natural-gradient residual of the solve
    # Fisher length per parameter of η_k + ∇_μ E_{q_k}[ℓ_k] (0 when duals are natural gradients, Eq. 33)
    natural_gradient_edge: float
    gap: Natural | None  # η_k + ∇_μ E_{q_k}[ℓ_k] itself; None once it has left the client's process, which keeps it
    well_posed: bool  # whether ρλ_g − η_k was a valid natural parameter before the solve
    seconds: float
    value: float = float("nan")  # E_{q_g}[ℓ_k], which every client tells of the q_g that it answers
    slope: Array | None = None  # E_{q_g}[∇ℓ_k], which the site (H_km − g_k, H_k) keeps to the rounding of H_km alone
    curvature: Array | None = None  # E_{q_g}[∇²ℓ_k], shape (d, d), where it is more than the family's part in the site
    tensors: Array | None = None  # E_{q_g}[∇³ℓ_k] and E_{q_g}[∇⁴ℓ_k], packed
    sketch: Array | None = None  # the numbers of the site's sketch, of a row whose sites keep one
    is_evaluation: bool = False  # whether λ_k is λ_g, and is not sent

    @property
    def floats(self) -> int:
        """Numbers sent; symmetric matrices count d(d+1)/2. With a sketch both λ_k and η_k are sent."""
        both = self.sketch is not None and not self.is_evaluation
        beside = [one.size for one in (self.tensors, self.sketch) if one is not None]
        if self.curvature is not None:
            beside.append(len(self.curvature) * (len(self.curvature) + 1) // 2)
        return self.natural.size * (1 + both) + sum(beside)
