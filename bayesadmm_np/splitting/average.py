"""The step of Eq. 54: the server's mean of the clients' posteriors, its sum of the sites, and all that lies between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import scipy.linalg

from .._errors import ArgumentError
from .._validation import Array
from ..clients.problem import ClientStatus
from ..families.base import ExponentialFamily
from ..families.coordinates import Natural
from ..families.gaussian import LearnedPrecisionGaussian
from ..families.precision import DensePrecision
from ..losses.base import Loss
from ..losses.expectations import Delta
from .messages import Reply
from .method import Method
from .status import Failure, Status
from .step import STEPS, Gathered, Start, Step

if TYPE_CHECKING:
    from .server import Server
    from .state import State

_WHY = {
    ClientStatus.ITERATION_LIMIT: Status.CLIENT_LIMIT,
    ClientStatus.COARSE_RULE: Status.COARSE_RULE,
    ClientStatus.NOT_FINITE: Status.NOT_FINITE,
    ClientStatus.UNRESOLVED: Status.UNRESOLVED,
}
RESOLVE = "scale the columns, leave out those that repeat others, or raise the prior's precision"


@STEPS.register
@dataclass(frozen=True)
class Average(Step):
    """λ_g ← [(1 − α) mean_k λ_k + α(η_0 + Ση_k)] / (1 − α + αw) (Eq. 54): the step of every plain method.

    Parameters
    ----------
    method : Method
        α = 1 gives the sum of the sites (PVI, AMA, BLR), α = 0 the mean of the posteriors (FedAvg), and others both.
    start : {'prior', 'sites'}, default 'prior'
        With 'sites' round 1 collects the sites' own fits, for methods whose server adds duals to the prior.

    Raises
    ------
    ValueError
        When `method` is not a plain method, or cannot start at the sites' own fits.

    Examples
    --------
    >>> import bayesadmm_np as ba
    >>> Average(ba.methods.PVI(), start="sites").asks(1)
    'own'
    """

    method: Method
    start: Start = "prior"

    def __post_init__(self) -> None:
        if not isinstance(self.method, Method):
            raise ArgumentError("method", "must be a plain method, such as PVI()", repr(self.method))
        require_choice(self.start)
        if self.start == "sites" and not self.method.adds_sites:
            raise ArgumentError("start", f"must be 'prior' for {self.name}: its server does not add duals to the prior")

    @property
    def row(self) -> Method:
        return self.method

    def starting(self, start: Start) -> Step:
        return super().starting(start) if self.row.adds_sites else self

    def require_start(self, prior: ExponentialFamily) -> None:
        # a client that evaluates under the delta method reads the mean of q_g alone, which a flat prior has
        if not (self.row.client == "gradient" and self.row.expectation == Delta(2)):
            super().require_start(prior)

    def step(self, server: Server, state: State, replies: Sequence[Reply | None]) -> Gathered | Failure:
        found = merged(self, server, state, replies)
        if isinstance(found, Failure) or not any(reply is not None for reply in replies):
            return found
        present = tuple(reply is not None for reply in replies)
        alpha, row, asked = found.alpha, server.row, self.asks(state.round + 1)
        if server.safeguard and asked == "solve" and row.dual_step > 0.0:
            alpha = server.safe_alpha(found.sites, found.naturals, alpha)
        natural = server.gather(found.sites, found.naturals, alpha, present)
        q_g = as_distribution(self, server, state, natural)
        return q_g if isinstance(q_g, Failure) else found._replace(q_g=q_g, alpha=alpha)


def merged(step: Step, server: Server, state: State, replies: Sequence[Reply | None]) -> Gathered | Failure:
    """Return η_k and λ_k after the replies, at the present q_g, or the failure of a client."""
    failed = client_failure(replies, state.round + 1, server.safeguard)
    if failed is not None:
        return failed if step.asks(1) == "own" else advised(server, state, failed)  # own fits have another limit
    pairs = list(zip(state.sites, state.naturals, replies, strict=True))
    sites = tuple(site if reply is None else reply.site for site, _, reply in pairs)
    naturals = tuple(natural if reply is None else reply.natural for _, natural, reply in pairs)
    own = step.asks(state.round + 1) == "own"
    alpha = 1.0 if own else server.row.server_alpha(len(sites))
    return Gathered(state.q_g, sites, naturals, state.memory, alpha)


def as_distribution(step: Step, server: Server, state: State, natural: Natural) -> ExponentialFamily | Failure:
    """Return the member of the family with this λ, or why there is none."""
    try:
        return server.prior.with_natural(natural)
    except ValueError:  # outside the domain
        if is_singular_to_rounding(server.prior, natural):
            return Failure(Status.UNRESOLVED, state.round + 1, knob=RESOLVE)
        return Failure(Status.NOT_A_DISTRIBUTION, state.round + 1, knob=step.knobs)


ORDER = "the order of arguments is method, clients, prior"


def as_step(method: object) -> Step:
    """Return the step of a method, or the step itself; raise a ValueError for anything else."""
    if isinstance(method, Step):
        return method
    if isinstance(method, Method):
        return Average(method)
    expected, got = "must be a method of bayesadmm_np.methods, such as PVI()", repr(method)
    if isinstance(method, str):
        raise ArgumentError("method", expected, got, f"call the function of that name, methods.{method}(...)")
    if isinstance(method, ExponentialFamily | Loss | Sequence):
        raise ArgumentError("method", expected, type(method).__name__, ORDER)
    if callable(method) and getattr(method, "__module__", "").startswith(str(__package__)):
        raise ArgumentError("method", expected, "a function", f"call {getattr(method, '__name__', '')}(...)")
    raise ArgumentError("method", expected, got)


def require_choice(start: object) -> None:
    """Raise a ValueError unless `start` is 'prior' or 'sites'."""
    if start not in ("prior", "sites"):
        raise ArgumentError("start", "must be 'prior' or 'sites'", repr(start))


def client_failure(replies: Sequence[Reply | None], number: int, safeguard: bool) -> Failure | None:
    """Return the failure of the first client whose answer cannot be used, if there is one."""
    for k, reply in enumerate(replies):
        if reply is None or reply.status.is_usable:
            continue
        if reply.status is ClientStatus.ILL_POSED:
            switch = "" if safeguard else "safeguard"
            return Failure(Status.ILL_POSED_CLIENT, number, k, knob="raise rho", switch=switch)
        return Failure(_WHY[reply.status], number, k, knob=RESOLVE if reply.status is ClientStatus.UNRESOLVED else "")
    return None


def advised(server: Server, state: State, failed: Failure) -> Failure:
    """Add a client's share of the curvature in its worst direction, where that leaves its problem without a minimum.

    From the prior, round 2 has the cavity ρS_0 + 2ρ/(1 + ρK) Σ_jD_j − D_k, for curvatures D_j of the clients: the limit
    is 2ρ/(1 + ρK), whatever ρ at most 2/K, unless ρS_0 outweighs the rest (docs/rates.md).
    """
    row, prior, k = server.row, server.prior, failed.client
    is_plain = row.alpha is None and row.prior_at == "server" and row.dual_step == row.rho
    is_plain &= row.dual_rule.is_natural_gradient  # the duals are curvatures
    if failed.status is not Status.ILL_POSED_CLIENT or k is None or not is_plain:
        return failed
    if not isinstance(prior, LearnedPrecisionGaussian):
        return failed
    count, found = len(state.sites), []
    for i, first in enumerate(prior.factor.parts, start=1):
        found += _worst(state.sites[k].parts[i], np.add.reduce([site.parts[i] for site in state.sites]), first)
    if not found:
        return failed
    own, all_, first_ = max(found, key=lambda sizes: sizes[0] / sizes[1])
    share, limit = own / all_, 2.0 * row.rho / (1.0 + row.rho * count)
    if not share > (2.0 / count if server.safeguard else limit):  # the safeguard's α has another limit
        return failed
    linear = first_ + 2.0 * all_ - count * own  # first K ρ² + linear ρ − own = 0
    bottom = linear + np.sqrt(linear**2 + 4.0 * first_ * count * own)
    least = 2.0 * own / bottom if bottom > 0.0 else np.inf
    detail = f"it has {share:.0%} of the clients' curvature in one direction, and the limit is {limit:.0%}"
    knob = f"raise rho above {least:.2g}"
    if share > 2.0 / count:
        detail, knob = f"{detail}: a minimum is certain only for rho above {least:.0g}", "wrap the method in Guarded"
    return replace(failed, detail=detail, knob=knob, share=float(share), limit=limit)


def _worst(own: Array, total: Array, first: Array) -> list[tuple[float, float, float]]:
    """Return vᵀDv of a client, of all clients and of the prior, where the first is the largest part of the second."""
    if total.ndim == 1:
        rows = np.flatnonzero(total > 0.0)
        return [(own[j], total[j], first[j]) for j in rows[np.argsort(own[rows] / total[rows])[-1:]]]
    scale = np.sqrt(np.maximum(np.diagonal(total), 0.0))
    if not (scale > 0.0).any() or not np.isfinite(total).all():
        return []
    scale = np.where(scale > 0.0, scale, 1.0)
    units, ridge = np.outer(scale, scale), 1e-9 * np.eye(len(scale))  # rows that repeat others leave it singular
    try:
        v = scipy.linalg.eigh(own / units, total / units + ridge)[1][:, -1] / scale
    except np.linalg.LinAlgError:  # not convex
        return []
    return [(float(v @ own @ v), float(v @ total @ v), float(v @ first @ v))]


def is_singular_to_rounding(prior: ExponentialFamily, natural: Natural) -> bool:
    """Return whether a dense precision is singular to rounding, as for equal columns."""
    if not isinstance(prior, LearnedPrecisionGaussian) or not isinstance(prior.factor, DensePrecision):
        return False
    return natural.is_finite() and prior.factor.like(natural.parts[1:]).is_semidefinite()
