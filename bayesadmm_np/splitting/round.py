"""One round: the server's half as functions of what the clients sent, and the round that asks them in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from .._errors import ArgumentError
from .._validation import Array
from ..clients.problem import ClientStatus
from ..families.base import ExponentialFamily
from ..families.coordinates import Natural
from ..families.gaussian import Gaussian, LearnedPrecisionGaussian
from ..families.precision import DensePrecision
from ..losses.base import Expected
from ..losses.tensors import JointSums
from . import guarded, sketched
from .accelerated import mix, remember
from .history import ClientRecord, Edges, RoundRecord
from .joint import joint_step, told_by
from .messages import Broadcast, Reply
from .methods import Method
from .server import Server
from .state import Memory, State, Step
from .status import Failure, Status
from .team import Team, require_start

UNBOUNDED = 1e6
"""The objective rises without bound when it exceeds its start, and its best value by this many times its size."""

_WHY = {
    ClientStatus.ITERATION_LIMIT: Status.CLIENT_LIMIT,
    ClientStatus.COARSE_RULE: Status.COARSE_RULE,
    ClientStatus.NOT_FINITE: Status.NOT_FINITE,
    ClientStatus.UNRESOLVED: Status.UNRESOLVED,
}
_RESOLVE = "scale the columns, leave out those that repeat others, or raise the prior's precision"

UNKNOWN = float("inf")
"""Residual that no client has reported yet."""

StateT = TypeVar("StateT", bound=Any)
"""The core's `State`, or that of networks: both have `history` and `start_objective`."""

Participation = float | Callable[[int, int, np.random.Generator], Any]


class Gathered(NamedTuple):
    """The server's answer to the replies: every η_k and λ_k, λ_g, the α that was taken, the acceleration's memory.

    `weights` are those of an accelerated mix, which the clients need for their own sites; empty after a plain step.
    `counts` is False where a guarded row leaves the replies unused: sites and λ_k stay what they were. A Newton row
    adds its step where all clients told their slopes, and its next mean, which λ_g does not keep to the last bit.
    """

    sites: tuple[Natural, ...]
    naturals: tuple[Natural, ...]
    natural: Natural
    alpha: float
    memory: tuple[Memory, ...] = ()
    weights: tuple[float, ...] = ()
    counts: bool = True
    step: Step | None = None
    mean: Array | None = None
    sketches: tuple[Array, ...] = ()


class Advance(NamedTuple):
    """The state after gather, whose last record waits for its objective, and two fields of `Gathered`."""

    state: State
    weights: tuple[float, ...]
    counts: bool


class Success(NamedTuple):
    """The next state, and every client's expectation at its q_g."""

    state: State
    at_server: list[Expected]


def needs_all(method: Method, state: State) -> bool:
    """Whether a round that some clients are absent from changes nothing."""
    return method.is_joint or guarded.is_judged(method, state)


def gather(server: Server, limit: int, state: State, replies: Sequence[Reply | None], safeguard: bool) -> Gathered:
    """The server's half: α (raised by the safeguard), Eq. 54, and the mix of an accelerated method.

    None stands for a client that was absent: its site and its λ_k stay what they were. Such a round is not a step of
    one fixed-point map, so that it is not mixed and the memory (of at most `limit` rounds) starts anew.
    """
    server = server.at(state.round + 1)
    method = server.method
    judged = guarded.is_judged(method, state)
    if needs_all(method, state) and any(reply is None for reply in replies):
        # q_g cannot be judged, nor the step be made, without all sites there: it is asked for again
        return _again(state, state.q_g, state.history[-1].alpha if state.history else 0.0)
    if judged and (again := guarded.retried(server, state, replies)) is not None:
        return _again(state, *again)
    if guarded.falls(server, state, replies):
        return _again(state, guarded.refuge(server, state), 0.0)
    sites = tuple(old if reply is None else reply.site for old, reply in zip(state.sites, replies, strict=True))
    naturals = tuple(
        old if reply is None else reply.natural for old, reply in zip(state.naturals, replies, strict=True)
    )
    present = tuple(reply is not None for reply in replies)
    alpha = 1.0 if judged else method.server_alpha(len(sites))
    if not any(present):
        return Gathered(sites, naturals, state.q_g.natural, alpha)
    if safeguard and not judged and method.client == "proximal" and method.dual_step > 0.0:
        alpha = server.safe_alpha(sites, naturals, alpha)
    natural = server.gather(sites, naturals, alpha, present)
    if method.is_joint:
        natural = _joint(server, state.q_g, replies) or natural
    found = Gathered(sites, naturals, natural, alpha)
    if method.sites is not None:
        sketches = tuple(
            old if reply is None or reply.sketch is None else reply.sketch
            for old, reply in zip(state.sketches, replies, strict=True)
        )
        natural = sketched.gathered(server.prior, method.sites, sites, naturals, sketches)
        found = found._replace(natural=natural, sketches=sketches)
    if judged and not method.is_newton:
        natural, alpha = guarded.begun(server, state, sites, natural)
        return found._replace(natural=natural, alpha=alpha)
    if method.sites is not None:
        return found
    if method.is_newton and not limit and all(present) and server.prior.contains(natural):
        step = newton_step(server.prior, state.q_g, natural, [reply.slope for reply in replies if reply is not None])
        if method.guarded:
            step = guarded.bent(server, state, natural, step)
        return found._replace(step=step, mean=step.mean + step.move)
    if not limit or not all(present) or not server.prior.contains(natural):
        return found
    plain = server.prior.with_natural(natural)
    memory = remember(state.memory, limit, plain, (state.sites, state.q_g.natural), (sites, natural))
    mixed = mix(server, plain, memory, alpha)
    if mixed is None:
        return found._replace(memory=memory)
    sites, natural, weights = mixed
    return Gathered(sites, naturals, natural, alpha, memory, weights)


def advance(
    server: Server, limit: int, state: State, replies: Sequence[Reply | None], safeguard: bool
) -> Advance | Failure:
    """Compute λ_g from the replies of a round; `complete` adds what the clients then measure at q_g.

    The natural-gradient edges of a mixed round are ∞ until the clients, who know them, report them.
    """
    number = state.round + 1
    failed = client_failure(replies, number, safeguard)
    taken_back = server.method.guarded and (state.history or server.method.client == "proximal")
    # what a rule does not resolve is no fault of the point
    if failed is not None and (failed.status is Status.COARSE_RULE or not taken_back):
        return _advised(server, state, failed)
    if guarded.is_coarse(server, state, replies):
        return Failure(Status.COARSE_RULE, number)
    gathered = gather(server, limit, state, replies, safeguard)
    step = None
    try:
        q_g = server.prior.with_natural(gathered.natural)
        if server.method.is_newton:
            q_g, step = _newton_point(state.q_g, q_g, gathered)
    except ValueError:  # λ_g is outside the domain
        if not server.method.guarded or server.method.client != "proximal":
            if _is_rounding(server.prior, gathered.natural):
                return Failure(Status.UNRESOLVED, number, knob=_RESOLVE)
            return Failure(Status.NOT_A_DISTRIBUTION, number, knob=server.method.knobs)
        q_g = guarded.refuge(server, state)
        gathered = _again(state, q_g, 0.0)
    answers = replies if gathered.counts else [None] * len(replies)
    beside = sketched.floats_beside(server.method, q_g.natural.linear.size, len(state.sketches))
    clients = tuple(_client_record(state, k, reply, gathered, q_g) for k, reply in enumerate(answers))
    came = [reply for reply in replies if reply is not None]
    record = RoundRecord(
        round=number,
        objective=float("nan"),
        alpha=gathered.alpha,
        edges=edges(server, q_g, gathered.sites, clients),
        clients=clients,
        mixed=bool(gathered.weights),
        floats_down=(q_g.natural.size + len(gathered.weights) + beside) * len(came),
        floats_up=sum(reply.floats for reply in came),
        seconds=0.0,
    )
    after = State(
        q_g=q_g,
        sites=gathered.sites,
        naturals=gathered.naturals,
        memory=gathered.memory,
        start_objective=state.start_objective,
        history=(*state.history, record),
        step=step,
        sketches=gathered.sketches or state.sketches,
    )
    return Advance(after, gathered.weights, gathered.counts)


def newton_step(prior: ExponentialFamily, q_g: ExponentialFamily, natural: Natural, slopes: Sequence[Any]) -> Step:
    """Newton's step from q_g's mean, of clients that told their slopes there; `natural` holds the pooled curvature."""
    assert isinstance(prior, Gaussian)
    assert isinstance(q_g, Gaussian)
    gradient = prior.factor.multiply(q_g.mean - prior.mean)
    for slope in slopes:
        gradient = gradient + slope
    return Step(q_g.mean, -q_g.factor.like(natural.parts[1:]).solve(gradient), gradient)


def _newton_point(last: Any, found: Any, gathered: Gathered) -> tuple[Any, Step]:
    """Return the next q_g of a Newton row at its mean to the last bit, and the step that led there."""
    mean = found.mean if gathered.mean is None else gathered.mean
    step = gathered.step or Step(last.mean, mean - last.mean)
    return found.at(mean, found.factor.parts), step


def complete(method: Method, state: StateT, objective: float, is_judged: bool, **known: Any) -> StateT | Failure:
    """Fill in the record of the last round: its objective, and other `known` fields; of networks too.

    An objective that is not judged, because it is of a part of the clients or must not end the run, may rise; so may
    that of a guarded row, which takes the step back.
    """
    record = state.history[-1]
    if is_judged and not method.guarded and rises_without_bound(objective, state):
        return diverged(record.round, objective, method.knobs)
    return replace(state, history=(*state.history[:-1], replace(record, objective=objective, **known)))


def edges(server: Server, q_g: ExponentialFamily, sites: Sequence[Natural], clients: Sequence[ClientRecord]) -> Edges:
    """Return the four edges of the circuit after a round."""
    return Edges(
        broadcast=max(client.broadcast for client in clients),
        natural_gradient=max(client.natural_gradient for client in clients),
        gather=q_g.fisher_norm(server.gather_residual(q_g.natural, sites)),
        dual_map=_dual_map(q_g),
    )


def _advised(server: Server, state: State, failed: Failure) -> Failure:
    """Say where a client without a minimum has a share of the curvature with which no usual ρ helps.

    From the prior, where clients j have curvatures D_j, round 2 has the cavity ρS_0 + 2ρ/(1 + ρK) Σ_jD_j − D_k: as the
    sum tends to 2/K of Σ_jD_j for large ρ, a client with more of it needs a ρS_0 that outweighs the rest.
    """
    row, prior, k = server.method, server.prior, failed.client
    has_precision = isinstance(prior, LearnedPrecisionGaussian) and row.alpha is None and row.prior_at == "server"
    if failed.status is not Status.ILL_POSED_CLIENT or k is None or not has_precision:
        return failed
    assert isinstance(prior, LearnedPrecisionGaussian)
    held = np.array([_diagonal(prior, site.parts[1:]) for site in state.sites])
    total, count = held.sum(axis=0), len(held)
    shares = np.where(total > 0.0, held[k] / np.where(total > 0.0, total, 1.0), 0.0)
    j = int(np.argmax(shares))
    if not shares[j] > 2.0 / count:
        return failed
    own, all_, first = held[k, j], total[j], _diagonal(prior, prior.factor.parts)[j]
    linear = first + 2.0 * all_ - count * own  # first K ρ² + linear ρ − own = 0
    least = (-linear + np.sqrt(linear**2 + 4.0 * first * count * own)) / (2.0 * first * count) if first else np.inf
    detail = f"it holds {shares[j]:.0%} of the curvature of coefficient {j}"
    detail += f": only from rho of about {least:.0g} on is a minimum sure"
    return replace(failed, detail=detail, knob="wrap the method in Guarded")


def _is_rounding(prior: ExponentialFamily, natural: Natural) -> bool:
    """Whether a dense precision lacks an inverse by no more than rounding: columns that are equal, say."""
    if not isinstance(prior, LearnedPrecisionGaussian) or not isinstance(prior.factor, DensePrecision):
        return False
    return natural.is_finite() and prior.factor.like(natural.parts[1:]).is_semidefinite()


def _diagonal(prior: LearnedPrecisionGaussian, parts: Sequence[Array]) -> Array:
    return np.concatenate([part if part.ndim == 1 else np.diagonal(part) for part in parts])


def client_failure(replies: Sequence[Reply | None], number: int, safeguard: bool) -> Failure | None:
    """Return the failure of the first client whose answer cannot be used, if there is one."""
    for k, reply in enumerate(replies):
        if reply is None or reply.status.is_usable:
            continue
        if reply.status is ClientStatus.ILL_POSED:
            switch = "" if safeguard else "safeguard"
            return Failure(Status.ILL_POSED_CLIENT, number, k, knob="raise rho", switch=switch)
        return Failure(_WHY[reply.status], number, k, knob=_RESOLVE if reply.status is ClientStatus.UNRESOLVED else "")
    return None


def diverged(number: int, objective: float, knob: str) -> Failure:
    """Return the failure of a round whose objective rises without bound."""
    return Failure(Status.DIVERGED, number, detail=f"it reached {objective:.3g}", knob=knob)


def rises_without_bound(objective: float, state: Any) -> bool:
    """Whether the objective is not a number, or far above both its start and its best value."""
    if np.isnan(objective):
        return True
    past = np.array([state.start_objective, *(record.objective for record in state.history)])
    finite = past[np.isfinite(past)]
    if not finite.size:
        return False
    best = finite.min()
    return bool(objective > max(best + UNBOUNDED * (1.0 + abs(best)), finite[0]))


def present_clients(participation: Participation, number: int, n_clients: int, seed: int) -> NDArray[np.bool_]:
    """Draw who takes part in a round; the stream is a function of seed and round, apart from every client's own."""
    rng = np.random.default_rng([seed, number, n_clients])
    if not callable(participation):
        size = max(1, round(participation * n_clients))
        if size == n_clients:
            return np.ones(n_clients, dtype=np.bool_)
        chosen = rng.choice(n_clients, size=size, replace=False)
        return np.isin(np.arange(n_clients), chosen)
    present = np.asarray(participation(number, n_clients, rng))
    if present.shape != (n_clients,) or present.dtype != np.bool_:
        raise ArgumentError(
            "participation",
            f"must return one True or False a client, shape ({n_clients},), in round {number}",
            f"{present.dtype} of shape {present.shape}",
        )
    return present


@dataclass(frozen=True)
class Round:
    """state → next state, or a failure that leaves the state as it was."""

    team: Team
    apply: Any
    seed: int
    safeguard: bool
    warm_start: bool
    participation: Participation

    def __call__(self, state: State, at_server: Sequence[Expected]) -> Success | Failure:
        """Ask the clients, gather, and measure."""
        began = perf_counter()
        team = self.team
        is_evaluated = team.method.client == "proximal" and guarded.is_judged(team.method, state)
        kind, cavity = team.method.sites, None
        if kind is not None and sketched.is_told(team.method) and not is_evaluated:
            cavity = sketched.Cavity.of(kind, state.q_g, state.sites, state.sketches)
        broadcast = Broadcast(state.round + 1, state.q_g.natural, cavity)
        present = present_clients(self.participation, broadcast.round, len(team.workers), self.seed)
        if is_evaluated:
            told = [own if here else None for own, here in zip(at_server, present, strict=True)]
            replies = guarded.evaluations(state.q_g, told)
        else:
            replies = self._ask(broadcast, state, at_server, present)
        ahead = advance(team.server, team.memory, state, replies, self.safeguard)
        if isinstance(ahead, Failure):
            return ahead
        following = team.expect_all(ahead.state, self.apply)
        objective, seconds = team.objective(ahead.state, following), perf_counter() - began
        after = complete(team.method, ahead.state, objective, not team.is_private, seconds=seconds)
        return after if isinstance(after, Failure) else Success(after, following)

    def _ask(
        self,
        broadcast: Broadcast,
        state: State,
        at_server: Sequence[Expected],
        present: NDArray[np.bool_],
    ) -> list[Reply | None]:
        def answer(k: int) -> Reply | None:
            if not present[k]:
                return None
            start = state.q_g.with_natural(state.naturals[k]) if self.warm_start else None
            worker = self.team.workers[k]
            noise = None if worker.privacy is None else self._noise(broadcast, k)
            sketch = (state.naturals[k], state.sketches[k]) if state.sketches else None
            return worker.step(broadcast, state.q_g, state.sites[k], at_server[k], start, self.seed, k, noise, sketch)

        return list(self.apply(answer, range(len(self.team.workers))))

    def _noise(self, broadcast: Broadcast, k: int) -> Array:
        """Simulated noise of a client; the spawn key keeps it apart from the solver's stream."""
        sequence = np.random.SeedSequence([self.seed, broadcast.round, k], spawn_key=(1,))
        return np.random.default_rng(sequence).standard_normal(broadcast.floats)


def begin(team: Team, sites: Sequence[Natural] | None = None) -> State:
    """Return sites at zero and the server at the prior, or given sites and the server at η_0 + Ση_k."""
    start = team.prior.start()
    if sites is None:
        require_start(team.method, team.prior)
        natural, given = start.natural, (start.natural.zeros(),) * len(team.workers)
    else:
        natural, given = _server_at(team, sites), tuple(sites)
    # through λ, as every later iterate: the first round then repeats to the bit after a resume
    q_g: Any = start if team.method.is_newton and sites is None else start.with_natural(natural)
    if team.method.is_newton:
        q_g = q_g.at(q_g.mean, q_g.factor.parts)
    sketches = sketched.no_sketches(team.method, team.prior.natural.linear.size, len(given))
    return State(q_g, given, (q_g.natural,) * len(given), (), float("nan"), (), sketches=sketches)


def _server_at(team: Team, sites: Sequence[Natural]) -> Natural:
    if team.method.dual_step == 0.0 or team.method.prior_at != "server":
        raise ValueError(f"sites cannot be given: in {team.method.name} the server does not add sites to the prior.")
    if len(sites) != len(team.workers):
        raise ArgumentError("sites", f"must hold one site a client, {len(team.workers)}", len(sites))
    shapes = team.prior.natural.shapes
    for k, site in enumerate(sites):
        if not isinstance(site, Natural) or site.shapes != shapes or not site.is_finite():
            raise ValueError(f"sites[{k}] must be a finite Natural with the shapes {shapes}.")
    natural = team.server.gather(sites, sites, 1.0)
    if not team.prior.contains(natural):
        raise ValueError("sites and prior must add up to a distribution of the prior's family.")
    return natural


def _again(state: State, q_g: ExponentialFamily, alpha: float) -> Gathered:
    """Return another point that is asked for, with the answers as they were."""
    assert isinstance(q_g, Gaussian)
    kept = state.sites, state.naturals
    return Gathered(*kept, q_g.natural, alpha, counts=False, step=state.step, mean=q_g.mean)


def _joint(server: Server, q_g: ExponentialFamily, replies: Sequence[Reply | None]) -> Natural | None:
    came = [reply for reply in replies if reply is not None and reply.tensors is not None]
    assert isinstance(q_g, Gaussian)
    assert isinstance(server.prior, Gaussian)
    told = [(told_by(q_g, reply.site), reply.tensors) for reply in came]
    sums = [JointSums(gradient, parts[0], tensors) for (gradient, parts), tensors in told]
    return joint_step(server.prior, q_g, sums, server.n_outputs)


def _client_record(
    state: State, k: int, reply: Reply | None, gathered: Gathered, q_g: ExponentialFamily
) -> ClientRecord:
    """Make a client's record after gather: its answer, or the last one where it is absent, and its distance to q_g."""
    own = state.naturals[k] if reply is None else reply.natural
    distance = q_g.fisher_norm(own - q_g.natural)
    if reply is None:
        if not state.history:
            return ClientRecord(0, ClientStatus.ABSENT, UNKNOWN, distance, UNKNOWN, True, 0.0)
        last = state.history[-1].clients[k]
        return replace(last, iterations=0, status=ClientStatus.ABSENT, broadcast=distance, seconds=0.0)
    edge = reply.natural_gradient_edge
    if gathered.weights:  # the site is no longer the one that the client answered with
        gap = reply.gap
        edge = UNKNOWN if gap is None else q_g.with_natural(own).fisher_norm(gap + (gathered.sites[k] - reply.site))
    return ClientRecord(reply.iterations, reply.status, reply.residual, distance, edge, reply.well_posed, reply.seconds)


def _dual_map(q_g: ExponentialFamily) -> float:
    try:
        return q_g.fisher_norm(q_g.with_expectation(q_g.expectation).natural - q_g.natural)
    except ValueError:  # rounding has lost the covariance in the moments: the run is about to fail
        return float("inf")
