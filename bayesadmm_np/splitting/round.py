"""One round: what the server records of a step, and the round that asks the clients in one process."""

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
from ..losses.base import Expected
from .messages import Broadcast, Reply
from .server import Server
from .state import State
from .status import ClientRecord, Edges, Failure, RoundRecord, Status
from .step import Gathered, Own, Step
from .team import Team

UNBOUNDED = 1e6  # an objective above its start that exceeds its best value by this many times its size has diverged
APART = 1e3  # ratio of a client's part of the objective and that of all others, from which on it is this client's
UNKNOWN = float("inf")  # residual that no client has reported yet

StateT = TypeVar("StateT", bound=Any)
"""The core's `State`, or that of networks: both have `history` and `start_objective`."""

Participation = float | Callable[[int, int, np.random.Generator], Any]


class Advance(NamedTuple):
    """The state after a step, whose last record waits for its objective, and two fields of `Gathered`."""

    state: State
    weights: tuple[float, ...]
    counts: bool


class Success(NamedTuple):
    """The next state, and every client's expectation at its q_g."""

    state: State
    at_server: list[Expected]


def advance(step: Step, server: Server, state: State, replies: Sequence[Reply | None]) -> Advance | Failure:
    """Make the next q_g of the replies of a round; `complete` adds what the clients then measure there.

    None stands for an absent client. The natural-gradient edges of a mixed round are ∞ until the clients report.
    """
    number = state.round + 1
    server = server.at(number)
    gathered = step.step(server, state, replies)
    if isinstance(gathered, Failure):
        return gathered
    q_g = gathered.q_g
    answers = replies if gathered.counts else [None] * len(replies)
    naturals = [old if reply is None else reply.natural for old, reply in zip(state.naturals, answers, strict=True)]
    away = q_g.lengths(naturals)
    clients = tuple(_client_record(state, k, reply, gathered, q_g, away[k]) for k, reply in enumerate(answers))
    came = [reply for reply in replies if reply is not None]
    around = Edges(
        broadcast=max(client.broadcast for client in clients),
        natural_gradient=max(client.natural_gradient for client in clients),
        gather=q_g.fisher_norm(server.gather_residual(q_g.natural, gathered.sites)),
        dual_map=_dual_map(q_g),
    )
    record = RoundRecord(
        round=number,
        objective=float("nan"),
        alpha=gathered.alpha,
        edges=around,
        clients=clients,
        mixed=bool(gathered.weights),
        floats_down=(q_g.natural.size + len(gathered.weights) + step.context_floats(state)) * len(came),
        floats_up=sum(reply.floats for reply in came),
        seconds=0.0,
    )
    after = replace(
        state,
        q_g=q_g,
        sites=gathered.sites,
        naturals=gathered.naturals,
        memory=gathered.memory,
        history=(*state.history, record),
    )
    return Advance(after, gathered.weights, gathered.counts)


def complete(
    knobs: str, state: StateT, objective: float, is_judged: bool, values: Sequence[float] = (), **known: Any
) -> StateT | Failure:
    """Fill in the record of the last round, of networks too; an objective that `is_judged` must not rise for ever.

    A client whose part of it, of `values`, is `APART` times all others together is named.
    """
    record = state.history[-1]
    if is_judged and rises_without_bound(objective, state):
        largest = int(np.argmax(values)) if len(values) > 1 else None
        is_apart = largest is not None and values[largest] > APART * sum(
            abs(v) for k, v in enumerate(values) if k != largest
        )
        client, detail = largest if is_apart else None, f"it reached {objective:.3g}"
        return Failure(Status.DIVERGED, record.round, client, detail=detail, knob=knobs)
    return replace(state, history=(*state.history[:-1], replace(record, objective=objective, **known)))


def rises_without_bound(objective: float, state: Any) -> bool:
    """Return whether the objective is not a number, or far above both its start and its best value."""
    if np.isnan(objective):
        return True
    past = np.array([state.start_objective, *(record.objective for record in state.history)])
    finite = past[np.isfinite(past)]
    if not finite.size:
        return False
    best = finite.min()
    return bool(objective > max(best + UNBOUNDED * (1.0 + abs(best)), finite[0]))


def present_clients(participation: Participation, number: int, n_clients: int, seed: int) -> NDArray[np.bool_]:
    """Draw who takes part in a round, from a stream of seed and round."""
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
    warm_start: bool
    participation: Participation

    def __call__(self, state: State, at_server: Sequence[Expected]) -> Success | Failure:
        """Ask the clients, take the step, and measure."""
        began = perf_counter()
        team, step = self.team, self.team.step
        broadcast = Broadcast(state.round + 1, state.q_g.natural, step.ask(state), step.context(state))
        present = present_clients(self.participation, broadcast.round, len(team.workers), self.seed)
        replies = self._ask(broadcast, state, at_server, present)
        ahead = advance(step, team.server, state, replies)
        if isinstance(ahead, Failure):
            return ahead
        following = team.expect_all(ahead.state, self.apply)
        objective, seconds = team.objective(ahead.state, following), perf_counter() - began
        is_judged = not (team.is_private or step.takes_back)
        after = complete(
            step.knobs, ahead.state, objective, is_judged, [one.value for one in following], seconds=seconds
        )
        return after if isinstance(after, Failure) else Success(after, following)

    def _ask(
        self,
        broadcast: Broadcast,
        state: State,
        at_server: Sequence[Expected],
        present: NDArray[np.bool_],
    ) -> list[Reply | None]:
        sketches = self.team.step.sketches(state)

        def answer(k: int) -> Reply | None:
            if not present[k]:
                return None
            start = state.q_g.with_natural(state.naturals[k]) if self.warm_start else None
            worker = self.team.workers[k]
            noise = None if worker.privacy is None else self._noise(broadcast, k)
            own = Own(state.naturals[k], state.sites[k], sketches[k] if sketches else None)
            return worker.answer(broadcast, state.q_g, own, at_server[k], start, self.seed, k, noise)

        return list(self.apply(answer, range(len(self.team.workers))))

    def _noise(self, broadcast: Broadcast, k: int) -> Array:
        """Return the simulated noise of a client, apart from the solver's stream."""
        sequence = np.random.SeedSequence([self.seed, broadcast.round, k], spawn_key=(1,))
        return np.random.default_rng(sequence).standard_normal(broadcast.floats)


def begin(team: Team, sites: Sequence[Natural] | None = None) -> State:
    """Return sites at zero and the server at the prior, or given sites and the server at η_0 + Ση_k."""
    start, step = team.prior.start(), team.step
    if sites is None:
        step.require_start(team.prior)
        natural, given = start.natural, (start.natural.zeros(),) * len(team.workers)
    else:
        natural, given = _server_at(team, sites), tuple(sites)
    # through λ, as every later iterate: the first round then repeats to the bit after a resume
    q_g: Any = start if step.at_mean and sites is None else start.with_natural(natural)
    if step.at_mean:
        q_g = q_g.at(q_g.mean, q_g.factor.parts)
    return State(q_g, given, (q_g.natural,) * len(given), step.init(team.server), float("nan"), ())


def _server_at(team: Team, sites: Sequence[Natural]) -> Natural:
    if not team.step.row.adds_sites:
        raise ValueError(f"sites cannot be given: the server of {team.step.name} does not add duals to the prior.")
    if len(sites) != len(team.workers):
        raise ArgumentError("sites", f"must contain one dual for each client, {len(team.workers)}", len(sites))
    shapes = team.prior.natural.shapes
    for k, site in enumerate(sites):
        if not isinstance(site, Natural) or site.shapes != shapes or not site.is_finite():
            raise ValueError(f"sites[{k}] must be a finite Natural with the shapes {shapes}.")
    natural = team.server.gather(sites, sites, 1.0)
    if not team.prior.contains(natural):
        raise ValueError("sites and prior must add up to a distribution of the prior's family.")
    return natural


def _client_record(
    state: State, k: int, reply: Reply | None, gathered: Gathered, q_g: ExponentialFamily, distance: float
) -> ClientRecord:
    """Return a client's record after gather: of its answer, or the last one where it is absent."""
    if reply is None:
        if not state.history:
            return ClientRecord(0, ClientStatus.ABSENT, UNKNOWN, distance, UNKNOWN, True, 0.0)
        last = state.history[-1].clients[k]
        return replace(last, iterations=0, status=ClientStatus.ABSENT, broadcast=distance, seconds=0.0)
    edge = reply.natural_gradient_edge
    if gathered.weights:  # the site is no longer the one that the client answered with
        mixed, gap = q_g.with_natural(reply.natural), reply.gap
        edge = UNKNOWN if gap is None else mixed.fisher_norm(gap + (gathered.sites[k] - reply.site))
    return ClientRecord(reply.iterations, reply.status, reply.residual, distance, edge, reply.well_posed, reply.seconds)


def _dual_map(q_g: ExponentialFamily) -> float:
    try:
        return q_g.fisher_norm(q_g.with_expectation(q_g.expectation).natural - q_g.natural)
    except ValueError:  # rounding has lost the covariance in the moments: the run is about to fail
        return float("inf")
