"""What crosses between server and client: plain arrays and numbers, so that the client may be another machine."""

from __future__ import annotations

from typing import NamedTuple

from .._validation import Array
from ..clients.problem import ClientStatus
from ..families.coordinates import Natural
from .sketched import Cavity


class Broadcast(NamedTuple):
    """Server to client: the distribution to agree on.

    Attributes
    ----------
    round : int
        1 for the first round.
    natural : Natural
        λ_g.
    cavity : Cavity or None
        Of all sites' sketches, where sites keep them and solve around λ_g.
    """

    round: int
    natural: Natural
    cavity: Cavity | None = None

    @property
    def floats(self) -> int:
        """Numbers of λ_g; symmetric matrices count d(d+1)/2."""
        return self.natural.size


class Reply(NamedTuple):
    """Client to server: its distribution, and scalars about the solve.

    The dual η_k is kept by the client; the server follows it from λ_k and λ_g, so only one of the two is sent.

    Attributes
    ----------
    natural : Natural
        λ_k.
    site : Natural
        η_k after the dual step.
    iterations : int
    status : ClientStatus
    residual : float
        Natural-gradient residual of the solve.
    natural_gradient_edge : float
        Fisher length per parameter of η_k + ∇_μ E_{q_k}[ℓ_k] (0 when duals are natural gradients, Eq. 33).
    gap : Natural or None
        η_k + ∇_μ E_{q_k}[ℓ_k] itself; None once it has left the client's process, which keeps it.
    well_posed : bool
        Whether ρλ_g − η_k was a valid natural parameter before the solve.
    seconds : float
    slope : ndarray or None
        ∇ℓ_k(m_g) of a Newton row, which its site, H_km_g − g_k, keeps to the rounding of H_km_g alone.
    tensors : ndarray or None
        E_{q_g}[∇³ℓ_k] and E_{q_g}[∇⁴ℓ_k], packed, of a row that steps in mean and covariance at once.
    sketch : ndarray or None
        The numbers of the site's sketch, of a row whose sites keep one.
    is_evaluation : bool
        Whether λ_k is λ_g, and is not sent.
    """

    natural: Natural
    site: Natural
    iterations: int
    status: ClientStatus
    residual: float
    natural_gradient_edge: float
    gap: Natural | None
    well_posed: bool
    seconds: float
    slope: Array | None = None
    tensors: Array | None = None
    sketch: Array | None = None
    is_evaluation: bool = False

    @property
    def floats(self) -> int:
        """Numbers sent; symmetric matrices count d(d+1)/2. Beside a sketch λ_k and η_k are both sent."""
        both = self.sketch is not None and not self.is_evaluation
        beside = [one.size for one in (self.tensors, self.sketch) if one is not None]
        return self.natural.size * (1 + both) + sum(beside)
