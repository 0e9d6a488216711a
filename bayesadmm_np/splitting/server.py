"""The server's half of a round: gather (Eq. 54), and the safeguard that keeps the clients' problems well posed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ..families.base import ExponentialFamily
from ..families.coordinates import Natural
from .method import ClientCoefficients, Method, circuit_weights, client_coefficients, gather_weights
from .state import State

BISECTIONS = 12


@dataclass(frozen=True)
class Server:
    """The server as a pure function of what the clients sent."""

    row: Method
    prior: ExponentialFamily
    shares: tuple[float, ...]  # N_k/N
    # the row of the next round, where a schedule changes it: with its ρ_k the clients must be well posed
    following: Method | None = None
    safeguard: bool = False  # whether α is raised until all clients' problems have a minimum
    sets_duals: bool = False  # whether clients take a dual from the server, as those of one process do
    total: float = 0.0  # N, which bounds the rounding of a sum over rows
    n_outputs: int = 1  # predictors a row of the clients' losses, C

    def at(self, round: int) -> Server:
        """Return the server with the method of a round."""
        if self.row.schedule is None:
            return self
        return replace(self, row=self.row.at(round), following=self.row.at(round + 1))

    @cached_property
    def ahead(self) -> tuple[ClientCoefficients, ...]:
        """Scalars of each client in the next round."""
        row = self.following or self.row
        return tuple(client_coefficients(row, share, len(self.shares)) for share in self.shares)

    def gather(
        self,
        sites: Sequence[Natural],
        naturals: Sequence[Natural],
        alpha: float,
        present: Sequence[bool] | None = None,
    ) -> Natural:
        """Return λ_g = [(1 − α) mean λ_k + α(η_0 + Ση_k)] / (1 − α + αw), Eq. 54.

        With the prior at the clients η_0 and w are zero, and this is FedDyn's server, mean λ_k + Ση_k/(ρK).
        """
        weight = self.prior.prior_weight
        found = gather_weights(self.row, self.shares, alpha=alpha, prior_weight=weight, present=present)
        weights = [*found.naturals, found.prior, *(found.sites for _ in sites)]
        terms = [*naturals, self.prior.natural, *sites]
        kept = [(weight, term) for weight, term in zip(weights, terms, strict=True) if weight]
        return self.prior.natural.combine([weight for weight, _ in kept], [term for _, term in kept])

    def gather_residual(self, natural: Natural, sites: Sequence[Natural]) -> Natural:
        """Return wλ_g − η_0 − Ση_k: the third edge of the circuit."""
        weight, prior = circuit_weights(self.row, self.prior.prior_weight)
        terms, weights = [natural, *sites], [weight, *(-1.0 for _ in sites)]
        if prior:
            terms, weights = [*terms, self.prior.natural], [*weights, -prior]
        return natural.combine(weights, terms)

    def objective(self, state: State, values: Sequence[float]) -> float:
        """Return Σ_k E_{q_g}[ℓ_k] + KL(q_g‖prior) from the clients' values."""
        return sum(values) + state.q_g.kl(self.prior)

    def is_well_posed(self, natural: Natural, sites: Sequence[Natural]) -> bool:
        """Return whether λ_g and every λ_g − η_k/ρ_k lie in Ω (Gaussians: ρS_g − V_k ⪰ 0)."""
        contains = self.prior.contains
        return contains(natural) and all(
            contains(natural - site * (1.0 / client.rho)) for client, site in zip(self.ahead, sites, strict=True)
        )

    def safe_alpha(self, sites: Sequence[Natural], naturals: Sequence[Natural], alpha: float) -> float:
        """Return the smallest α in [alpha, 1] (to 1/4096 of the way) that leaves all clients well posed, or 1.

        The domain is convex and λ_g(α) is a line. For ρ >= 1, convex losses and duals along λ α = 1 always helps.
        """
        if self.is_well_posed(self.gather(sites, naturals, alpha), sites):
            return alpha
        low, high = alpha, 1.0
        if not self.is_well_posed(self.gather(sites, naturals, high), sites):
            return high
        for _ in range(BISECTIONS):
            middle = 0.5 * (low + high)
            if self.is_well_posed(self.gather(sites, naturals, middle), sites):
                high = middle
            else:
                low = middle
        return high
