"""The record of every round, how a run ended, and why a round could not be completed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from .._errors import PLAIN, Words
from ..clients.problem import ClientStatus


class Status(Enum):
    """End of a run; the value is the message."""

    CONVERGED = "converged: all residuals are below tol"
    ROUND_LIMIT = "stopped at the round limit; the residuals are above tol"
    ROUNDED = "stopped where steps are below the rounding of the objective; the residuals are above tol"
    RISEN = "all rounds done, but the objective has risen"
    STOPPED = "stopped by the callback"
    NO_MAXIMUM = "stopped: the likelihood has no maximum"
    DIVERGED = "diverged: the objective rises without bound"
    NOT_A_DISTRIBUTION = "diverged: the precisions of the sites no longer add up to a positive definite one"
    ILL_POSED_CLIENT = "a client's subproblem has no minimum near the server's distribution"
    NOT_FINITE = "a client's loss or gradient is not finite; scale the data or raise the prior's precision"
    COARSE_RULE = (
        "a client's rule for expectations has too few points for so wide a distribution; use more points, or raise the "
        "prior's precision"
    )
    CLIENT_LIMIT = (
        "a client's solver stopped above its tolerance; raise max_iter or tol of the solver, or the prior's precision"
    )
    UNRESOLVED = "rows and prior are too unequal for double precision"

    @property
    def is_failure(self) -> bool:
        """Return whether the answer should not be used without a look at the message."""
        limits = (Status.ROUND_LIMIT, Status.RISEN, Status.ROUNDED, Status.STOPPED)
        return self not in (Status.CONVERGED, Status.NO_MAXIMUM, *limits)


@dataclass(frozen=True)
class Failure:
    """Reason why a round could not be completed; the state is left as it was.

    Examples
    --------
    >>> failure = Failure(Status.ILL_POSED_CLIENT, 3, client=1, knob="raise rho", switch="safeguard")
    >>> print(failure.message)  # doctest: +ELLIPSIS
    client 1, round 3: a client's subproblem has no minimum near ...; raise rho or set safeguard=True.
    >>> print(failure.worded(Words(client=["Basel", "Bern"].__getitem__)))  # doctest: +ELLIPSIS
    Bern, round 3: a client's subproblem has no minimum near ...; raise rho or set safeguard=True.
    """

    status: Status
    round: int
    client: int | None = None  # whose answer cannot be used; None where it is the server's
    detail: str = ""  # finding, such as "it reached 1e+09"
    knob: str = ""  # parameter to change, and in which direction
    switch: str = ""  # name of a switch of `run` that would help too
    share: float | None = None  # largest share of the clients' curvature in one direction that this client has
    limit: float | None = None  # share above which round 2 has no minimum: 2ρ/(1 + ρK)

    def worded(self, words: Words = PLAIN) -> str:
        """Return round, client, reason and remedy in one sentence."""
        where = f"round {self.round}"
        if self.client is not None:
            where = f"{words.client(self.client)}, {where}"
        advice = " or ".join(filter(None, [self.knob, self.switch and words.switch(self.switch)]))
        return f"{where}: {'; '.join(filter(None, [self.status.value, self.detail, advice]))}."

    @property
    def message(self) -> str:
        """The sentence in the words of `run`."""
        return self.worded()


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
        ε‖m‖²_S for a mean far from the origin, without any error of the answer: reported, but no run waits for it.
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
