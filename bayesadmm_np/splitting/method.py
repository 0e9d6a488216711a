"""A method: the scalars of Eq. 15, 16 and 54, and the place of the prior.

A round of any method is

    client   λ_k ← argmin E_q[ℓ_k] + ⟨η_k, μ⟩ + ρ_k KL(q‖q_g)                         Eq. 15
    dual     η_k ← η_k + step · (λ_k − λ_g)   or   step · (μ_k − μ_g)                 Eq. 16
    gather   λ_g ← [(1 − α) mean_k λ_k + α (η_0 + Σ_k η_k)] / (1 − α + αw)            Eq. 54

with w = 1 for every family that contains its prior (w = δ for the isotropic family under a N(·, I/δ) prior), and with
η_0 and w replaced by zero when the prior sits at the clients. NumPy and torch add up their arrays with the numbers of
`client_coefficients`, `gather_weights` and `circuit_weights`, and no other field of the method.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, NamedTuple

from .._errors import ArgumentError
from ..families.base import ExponentialFamily
from ..losses.expectations import Rule
from .duals import AlongNatural, DualRule, Schedule

CHOICES = {
    "client": ("proximal", "gradient"),
    "prior_at": ("server", "clients", "each", "nowhere"),
    "client_share": ("equal", "rows", "dual"),
    "server_share": ("equal", "rows"),
    "mean_over": ("all", "present"),
}
"""Values of a method's fields."""


@dataclass(frozen=True)
class Method:
    """A method: an entry of the table.

    Attributes
    ----------
    name : str
    rho : float
        Weight of the client's KL term to the server; 0 only if the prior is at the clients.
    dual_step : float
        Step of the dual; 0 means that there is no dual.
    alpha : float or None
        Server's step; None means 1/(1 + ρK).
    dual_rule : DualRule
        Rule by which the dual moves; `AlongExpectation` is Wang & Banerjee's choice.
    client : {"proximal", "gradient"}
        Whether a client solves Eq. 15, or only evaluates its natural gradient at the server.
    prior_at : {"server", "clients", "each", "nowhere"}
        Place where the regulariser is added; clients get the share N_k/N of it, or with 'each' all of it.
    client_share : {"equal", "rows", "dual"}
        Scalars proportional to a client's rows N_k: none; ρ_k = ρKN_k/N, and with it the dual step; or the dual step
        alone, which is then `dual_step` times N_k/N.
    server_share : {"equal", "rows"}
        Whether the weights of the mean at the server are equal or N_k/N.
    mean_over : {"all", "present"}
        Whether the server's mean keeps the last λ_k of clients that are absent from a round.
    expectation : Rule or None
        The method's own rule; None where every rule is allowed.
    families : tuple of type
        Families that the method is defined for; empty if every family is allowed.
    max_rounds : int or None
    knobs : str
        Advice when a run of this method fails: the parameters to change.
    schedule : Schedule or None
        Values of `rho`, `dual_step` and `alpha` in each round; None where they stay as they are.
    unset : tuple of {"rho", "gamma"}
        Arguments that were left out. Networks take them from their clients; exact clients take the fields as they are.

    Raises
    ------
    ValueError
        When `dual_rule`, `schedule`, `client_share`, `rho` or `alpha` is out of range.

    Examples
    --------
    >>> Method("HalfwayADMM", rho=2.0, dual_step=2.0, alpha=0.5).server_alpha(n_clients=3)
    0.5
    """

    for_networks: ClassVar[bool] = False
    """True where clients need inputs to predict at, which the core's losses have not."""
    name: str
    rho: float
    dual_step: float
    alpha: float | None = None
    dual_rule: DualRule = field(default_factory=AlongNatural)
    client: Literal["proximal", "gradient"] = "proximal"
    prior_at: Literal["server", "clients", "each", "nowhere"] = "server"
    client_share: Literal["equal", "rows", "dual"] = "equal"
    server_share: Literal["equal", "rows"] = "equal"
    mean_over: Literal["all", "present"] = "all"
    expectation: Rule | None = None
    families: tuple[type[ExponentialFamily], ...] = ()
    max_rounds: int | None = None
    knobs: str = "raise rho"
    schedule: Schedule | None = None
    unset: tuple[str, ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        at_clients = self.prior_at != "server"
        if not isinstance(self.dual_rule, DualRule):
            raise ArgumentError("dual_rule", "must be a rule such as AlongNatural()", repr(self.dual_rule))
        if not isinstance(self.schedule, Schedule | None):
            raise ArgumentError("schedule", "must be a schedule such as Geometric(), or None", repr(self.schedule))
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ArgumentError(name, f"must be one of {', '.join(map(repr, choices))}", repr(getattr(self, name)))
        if self.rho < 0 or (self.rho == 0 and (self.dual_step or not at_clients)):
            expected = "must be > 0 (0 only without a dual and with the prior at the clients)"
            raise ArgumentError("rho", expected, self.rho)
        if self.alpha is not None and not 0 <= self.alpha <= (0.0 if at_clients else 1.0):
            expected = "must lie in [0, 1], or be 0 or None where the prior is at the clients"
            raise ArgumentError("alpha", expected, self.alpha)

    @property
    def adds_sites(self) -> bool:
        """Return whether the server adds the sites to the prior."""
        return self.prior_at == "server" and self.dual_step > 0.0

    def at(self, round: int) -> Method:
        """Return the method of a round, from 1; a schedule may change `rho`, `alpha` and a positive `dual_step`."""
        if self.schedule is None:
            return self
        row = self.schedule.row(self, round)
        same = isinstance(row, Method) and bool(row.dual_step) == bool(self.dual_step)
        if not same or replace(row, rho=self.rho, dual_step=self.dual_step, alpha=self.alpha) != self:
            raise ValueError(
                f"{self.schedule!r} may change rho, a positive dual_step and alpha of {self.name} alone, "
                f"got {row!r} for round {round}."
            )
        return row

    def server_alpha(self, n_clients: int) -> float:
        """Return α for K clients."""
        return 1.0 / (1.0 + self.rho * n_clients) if self.alpha is None else self.alpha


@dataclass(frozen=True)
class NetworkMethod(Method):
    """Method that the core does not solve; `average` has the weights of the clients' means, s_k or λh_k."""

    for_networks = True
    average: Literal["precision", "hessian"] = "precision"


class ClientCoefficients(NamedTuple):
    """Scalars of one client."""

    rho: float  # ρ_k
    step: float  # γ_k; 0 where the row has no dual
    prior: float  # π_k, the client's part of the regulariser; 0 where the server adds it, or nobody


class GatherWeights(NamedTuple):
    """Scalars of the server."""

    naturals: tuple[float, ...]  # a_k, the weights of the clients' λ_k; all 0 where α = 1
    sites: float  # b, the weight of every η_k
    prior: float  # c, the weight of η_0; 0 where the prior sits at the clients


def client_coefficients(method: Method, share: float, n_clients: int) -> ClientCoefficients:
    """Return ρ_k, γ_k and π_k of a client that has N_k/N = `share` of the rows."""
    rho = method.rho * (share * n_clients if method.client_share == "rows" else 1.0)
    step = 0.0
    if method.dual_step:
        step = method.dual_step * share if method.client_share == "dual" else method.dual_step * rho / method.rho
    return ClientCoefficients(rho, step, {"clients": share, "each": 1.0}.get(method.prior_at, 0.0))


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
    """Return the weights of Eq. 54 for shares N_k/N."""
    alpha = method.server_alpha(len(shares)) if alpha is None else alpha
    weight, prior = circuit_weights(method, prior_weight)
    divisor = 1.0 - alpha + alpha * weight
    naturals = tuple((1.0 - alpha) * weight / divisor for weight in _mean(method, shares, present))
    each = alpha / divisor
    return GatherWeights(naturals, each, prior * each)


def _mean(method: Method, shares: Sequence[float], present: Sequence[bool] | None) -> Sequence[float]:
    """Return the weights of the mean over clients, without absent clients if `mean_over` is not 'all'."""
    weights = shares if method.server_share == "rows" else (1.0 / len(shares),) * len(shares)
    if present is None or all(present) or method.mean_over == "all":
        return weights
    kept = [weight if here else 0.0 for weight, here in zip(weights, present, strict=True)]
    return [weight / sum(kept) for weight in kept]
