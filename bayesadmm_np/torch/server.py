"""What the server does in a round with what the clients answered. In one process, or with sites elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..splitting.coefficients import GatherWeights, gather_weights
from ..splitting.status import Failure, Status
from .certificate import edges
from .client import Replies
from .functional import gather_mean, merged, traffic
from .methods import FunctionalMethod
from .personal import PersonalMethod, mean_of_scales
from .state import AT_ONCE, Broadcast, Duals, RoundRecord, State
from .team import Team


def moved(team: Team, broadcast: Broadcast, duals: Duals, replies: Replies) -> Duals:
    """Eq. 16 for the clients of the replies, with the team of the round; the site and the server both do it."""
    if not team.method.dual_step:
        return duals
    steps, rule = team.coefficients(replies.clients, "step"), team.method.dual_rule

    def move(sites: Tensor, own: Tensor, served: Tensor) -> Tensor:
        """Move a few clients' duals at a time: a rule's temporaries of all clients' size would be a round's peak."""
        found, few = torch.empty_like(own), max(AT_ONCE // own.shape[1], 1)
        for new, site, theirs, step in zip(*(x.split(few) for x in (found, sites, own, steps)), strict=True):
            new.copy_(rule(site, theirs, served, step))
        return found

    linear = move(duals.linear, replies.linear, broadcast.precision * broadcast.mean)
    if not team.learns_precision:
        return Duals(linear, duals.precision)
    return Duals(linear, move(duals.precision, replies.precision, broadcast.precision))


def gathered(team: Team, state: State, replies: Replies) -> State | Failure:
    """Eq. 16 and Eq. 54: the duals move, and the server mixes means, sites and prior. The record is still to come."""
    number = state.round + 1
    if not replies.clients:
        return Failure(Status.NOT_FINITE, number, detail="no client gave a finite answer", knob=team.method.knobs)
    team = team.at(number)
    method, learned = team.method, team.learns_precision
    client_linear = _with_rows(state.client_linear, replies.clients, replies.linear)
    client_precision = state.client_precision
    site_linear, site_precision = state.site_linear, state.site_precision
    if learned:
        client_precision = _with_rows(client_precision, replies.clients, replies.precision)
    if method.dual_step:
        duals = moved(team, state.broadcast, state.duals(replies.clients), replies)
        site_linear = _with_rows(site_linear, replies.clients, duals.linear)
        if learned:
            site_precision = _with_rows(site_precision, replies.clients, duals.precision)
    present = [k in replies.clients for k in range(team.n_clients)]
    weights = gather_weights(method, team.shares.tolist(), prior_weight=team.prior_weight, present=present)
    mixed = _mixed(weights, client_linear, site_linear)
    server = state.precision
    if learned:
        server = _mixed(weights, client_precision, site_precision).add_(weights.prior * team.delta)
    if not bool((server > 0).all()):
        return Failure(Status.NOT_A_DISTRIBUTION, number, knob=method.knobs)
    mean, buffers = mixed / server, _statistics(team, replies) or state.buffers
    if isinstance(method, PersonalMethod) and method.averages_scales:
        mean, server = mean_of_scales(replies.linear, replies.precision)
    memory = merged(state.memory, replies.memory)
    if isinstance(method, FunctionalMethod) and memory is not None:
        problem = mixed, team.delta, team.temperature, buffers
        mean = gather_mean(method, team.network, memory, state.mean, *problem)
    moments = state.moments and state.moments.put(replies.clients, replies.moments or state.moments.of(replies.clients))
    sites, clients = (site_linear, site_precision), (client_linear, client_precision)
    return State(mean, server, *sites, *clients, buffers, state.start_objective, state.history, memory, moments)


def _mixed(weights: GatherWeights, naturals: Tensor, sites: Tensor) -> Tensor:
    """Σ_k a_kλ_k + b Σ_kη_k, shape (P,)."""
    own = torch.tensor(weights.naturals, dtype=torch.float64).to(naturals)
    return (own @ naturals).add_(sites.sum(dim=0), alpha=weights.sites)


def _with_rows(whole: Tensor, clients: Sequence[int], rows: Tensor) -> Tensor:
    """`whole` with new rows for some clients, in a copy; where they are all clients, the rows themselves."""
    if list(clients) == list(range(len(whole))):
        return rows
    return whole.index_copy(0, torch.tensor(clients, device=whole.device), rows)


def recorded(team: Team, state: State, after: State, present: Sequence[int], dropped: Sequence[int]) -> State:
    """Return `after` with the record of its round, whose objective is still to come."""
    numbers, size = len(after.mean) * (2 if team.learns_precision else 1), after.mean.element_size()
    answered = [k for k in present if k not in dropped]
    seen = {} if after.memory is None else {k: _last_seen(state, k) for k in present}
    down, up = traffic(state.memory, after.memory, seen, answered)
    record = RoundRecord(
        round=state.round + 1,
        objective=float("nan"),
        alpha=team.method.at(state.round + 1).server_alpha(team.n_clients),
        edges=edges(team, after),
        present=tuple(present),
        dropped=tuple(dropped),
        bytes_down=(numbers * len(present) + down) * size,
        bytes_up=(numbers * len(answered) + up) * size,
        seconds=0.0,
        at_mean=None,
        ensemble=None,
        precision_median=float(after.precision.median()),
    )
    return replace(after, history=(*state.history, record))


def _last_seen(state: State, k: int) -> int:
    """The last round that a client took part in; 0 for none."""
    return max((record.round for record in state.history if k in record.present), default=0)


def _statistics(team: Team, replies: Replies) -> dict[str, Tensor]:
    """Running statistics of the clients that are not left out, averaged by rows; counters are rounded."""
    if not team.network.keeps_statistics:
        return {}
    good = list(replies.clients)
    weights = team.shares[good] / team.shares[good].sum()
    averaged = {}
    for name, stack in replies.buffers.items():
        mixed = torch.tensordot(weights.to(stack.device), stack.double(), dims=1)
        averaged[name] = (mixed if stack.is_floating_point() else mixed.round()).to(stack.dtype)
    return averaged
