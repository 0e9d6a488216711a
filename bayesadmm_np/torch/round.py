"""Both halves of a round, in one process or with sites elsewhere: the clients' answers, and the server's gather."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..splitting.method import NetworkMethod, gather_weights
from ..splitting.status import Edges, Failure, Status
from .certificate import doubt, edges, narrowing, rise
from .curvature import diagonal_ggn
from .functional import Memory, gather_mean, merged, points_of, traffic
from .ivon import warn_unmoved
from .methods import FunctionalMethod, LaplaceMethod, PersonalMethod
from .network import Rows
from .problem import IVONSteps, Moments, PointSteps, Trained
from .randomness import client_seed, stream
from .state import Broadcast, Duals, RoundRecord, State, parts
from .steps import local_work
from .team import Team

Pair = tuple[Tensor, Tensor]
DONE = "all rounds done."


@dataclass(frozen=True)
class Replies:
    """Answers λ_k = (s_km_k, s_k), shape (k, P), or (1, 1) for a fixed precision; statistics, and shared points.

    `moments` stay with the clients.
    """

    clients: tuple[int, ...]
    linear: Tensor
    precision: Tensor
    buffers: dict[str, Tensor]
    memory: Memory | None = None
    moments: Moments | None = None

    def of(self, kept: Tensor) -> Replies:
        """Return the rows that a mask of shape (k,) keeps."""
        if bool(kept.all()):
            return self
        clients = tuple(k for k, is_kept in zip(self.clients, kept.tolist(), strict=True) if is_kept)
        precision = self.precision[kept] if len(self.precision) > 1 else self.precision
        buffers = {name: stack[kept] for name, stack in self.buffers.items()}
        memory = None if self.memory is None else self.memory.of(self.memory.owned_by(clients))
        moments = self.moments and self.moments.of(kept.nonzero()[:, 0].tolist())
        return Replies(clients, self.linear[kept], precision, buffers, memory, moments)


def answer(team: Team, broadcast: Broadcast, duals: Duals, chosen: Sequence[int], number: int, seed: int) -> Replies:
    """Solve Eq. 66 for the clients `chosen`, whose rows of `duals` come in that order; `number` is the round's."""
    team = team.at(number)
    trained, precision = _trained(team, broadcast, duals, chosen, [client_seed(seed, number, k) for k in chosen])
    if isinstance(team.solver, IVONSteps) and team.solver.hess_start == "h0" and number == 1:
        assert trained.hess is not None
        warn_unmoved(trained.hess, team.solver.hess_init, max(trained.steps), team.solver.beta2, stacklevel=6)
    memory = None
    if isinstance(team.method, FunctionalMethod):
        own = [{name: stack[i] for name, stack in trained.buffers.items()} for i in range(len(chosen))]
        rows = [held for k in chosen if isinstance(held := team.clients[k], Rows)]
        answers = dict(zip(chosen, zip(rows, trained.mean, own, strict=True), strict=True))
        memory = points_of(team.method, team.network, broadcast.memory, answers, number, seed)
    moments = None
    if duals.moments is not None:
        assert trained.moments is not None
        done = tuple(map(sum, zip(duals.moments.steps, trained.steps, strict=True)))
        moments = Moments(trained.moments, done)
    return Replies(tuple(chosen), trained.mean.mul_(precision), precision, trained.buffers, memory, moments)


def is_usable(replies: Replies, buffers: dict[str, Tensor]) -> Tensor:
    """Return whether λ_k is that of a distribution and running statistics are as finite as they were, shape (k,)."""
    finite = _are_finite(replies.linear) & _are_finite(replies.precision)
    if replies.moments is not None:
        finite = finite & _are_finite(replies.moments.vectors.flatten(1))
    for name, stack in replies.buffers.items():
        sound = torch.isfinite(stack) | ~torch.isfinite(buffers[name])  # a mask of −∞ is one from the start
        finite = finite & sound.reshape(len(stack), -1).all(dim=1)
    return finite & (replies.precision > 0).all(dim=1)


def _are_finite(rows: Tensor) -> Tensor:
    """Return whether rows are finite, shape (k,), a few rows at a time for the memory."""
    return torch.cat([torch.isfinite(few).all(dim=1) for few in parts(rows)])


def kept(team: Team, broadcast: Broadcast, duals: Duals, chosen: Sequence[int], number: int, seed: int) -> Replies:
    """Do the local work of a round, and return what these clients keep: means in `linear`, with their precisions."""
    seeds = [client_seed(seed, number, k) for k in chosen]
    trained, precision = _trained(team.at(number), broadcast, duals, chosen, seeds)
    if trained.kept is None:
        return Replies(tuple(chosen), trained.mean, precision, trained.buffers)
    own = broadcast.precision[None] if trained.kept_precision is None else trained.kept_precision
    return Replies(tuple(chosen), trained.kept, own, trained.buffers)


def _trained(
    team: Team, broadcast: Broadcast, duals: Duals, chosen: Sequence[int], seeds: Sequence[int]
) -> tuple[Trained, Tensor]:
    """Do the local work; also return s_k: IVON's, Laplace's S_g + (H_k/τ − V_k)/ρ_k or δ + H_k/τ, or the fixed one."""
    problem, data = team.problem(broadcast, duals, chosen), [team.clients[k] for k in chosen]
    trained = local_work(team.network, data, problem, team.solver, seeds, broadcast.buffers, team.batched)
    if not team.learns_precision:
        return trained, broadcast.precision[None]
    if trained.precision is not None:
        return trained, trained.precision
    assert isinstance(team.solver, PointSteps)
    samples, place = team.solver.curvature_samples, broadcast.mean.device
    hessians = [
        diagonal_ggn(team.network, theta, team.clients[k], broadcast.buffers, samples, stream(place, "curvature", own))
        for k, theta, own in zip(chosen, trained.mean, seeds, strict=True)
    ]
    change = torch.stack(hessians) / team.temperature - duals.precision
    if isinstance(team.method, LaplaceMethod):
        return trained, change + team.delta
    return trained, broadcast.precision + change / team.coefficients(chosen, "rho")


def moved(team: Team, broadcast: Broadcast, duals: Duals, replies: Replies) -> Duals:
    """Eq. 16 for the clients of the replies, with the team of the round; the site and the server both do it."""
    if not team.method.dual_step:
        return duals
    steps, rule = team.coefficients(replies.clients, "step"), team.method.dual_rule

    def move(sites: Tensor, own: Tensor, served: Tensor) -> Tensor:
        """Move a few clients' duals at a time: a rule's temporaries of all clients' size would be a round's peak."""
        found = torch.empty_like(own)
        for new, site, theirs, step in zip(*map(parts, (found, sites, own, steps.expand_as(own))), strict=True):
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
    method = team.method
    sites, answers = (state.site_linear, state.site_precision), (state.client_linear, state.client_precision)
    came = replies.linear, replies.precision
    answers = _with_rows(answers, replies, came) if team.keeps_answers else came
    if method.dual_step:
        duals = moved(team, state.broadcast, state.duals(replies.clients), replies)
        sites = _with_rows(sites, replies, (duals.linear, duals.precision))
    present = [k in replies.clients for k in range(team.n_clients)]
    weights = gather_weights(method, team.shares.tolist(), prior_weight=team.prior_weight, present=present)
    is_whole = method.mean_over == "all"
    rows, own = (answers, weights.naturals) if is_whole else (came, [weights.naturals[k] for k in replies.clients])
    mixed, server = _mixed(own, rows[0], weights.sites, sites[0]), state.precision
    if team.learns_precision:
        server = _mixed(own, rows[1], weights.sites, sites[1]).add_(weights.prior * team.delta)
    if not bool((server > 0).all()):
        return Failure(Status.NOT_A_DISTRIBUTION, number, knob=method.knobs)
    mean, buffers = mixed / server, _statistics(team, replies) or state.buffers
    if isinstance(method, NetworkMethod) and method.average == "hessian":
        hess = rows[1] - team.delta  # λh_k: Algorithm 2 of FedIvon, lines 9 to 12
        total = _mixed(own, hess, weights.sites, sites[1])
        if not bool((total > 0).all()):
            return Failure(Status.NOT_A_DISTRIBUTION, number, detail="Σ_k N_kh_k <= 0 somewhere", knob=method.knobs)
        mean = _mixed(own, hess * rows[0] / rows[1], weights.sites, sites[0]) / total
    if isinstance(method, PersonalMethod):
        mean, server = method.server(replies.linear, replies.precision) or (mean, server)
    memory = merged(state.memory, replies.memory)
    if isinstance(method, FunctionalMethod) and memory is not None:
        problem = mixed, team.delta, team.temperature, buffers
        mean = gather_mean(method, team.network, memory, state.mean, *problem)
    moments = state.moments and state.moments.put(replies.clients, replies.moments or state.moments.of(replies.clients))
    return State(mean, server, *sites, *answers, buffers, state.start_objective, state.history, memory, moments)


def _mixed(own: Sequence[float], naturals: Tensor, each: float, sites: Tensor) -> Tensor:
    """Σ_k a_kλ_k + b Σ_kη_k, shape (P,); with α = 1 every a_k is zero."""
    weights = torch.tensor(own, dtype=torch.float64).to(naturals)
    mean = weights @ naturals if any(own) else torch.zeros_like(naturals[0])
    return mean.add_(sites.sum(dim=0), alpha=each)


def _with_rows(wholes: Pair, replies: Replies, new: Pair) -> Pair:
    """Return copies with new rows of these replies; where these are all rows, the rows themselves."""
    index = torch.tensor(replies.clients, device=wholes[0].device)
    pairs = zip(wholes, new, strict=True)
    a, b = (rows if len(rows) == len(whole) else whole.index_copy(0, index, rows) for whole, rows in pairs)
    return a, b


def recorded(
    team: Team, state: State, after: State, present: Sequence[int], dropped: Sequence[int], has_edges: bool = True
) -> State:
    """Return `after` with the record of its round, whose objective is still to come; edges read all rows of a state."""
    numbers, size = len(after.mean) * (2 if team.learns_precision else 1), after.mean.element_size()
    answered = [k for k in present if k not in dropped]
    past = () if state.memory is None else state.history
    last = {k: before.round for before in past for k in before.present}
    down, up = traffic(state.memory, after.memory, {k: last.get(k, 0) for k in present}, answered)
    record = RoundRecord(
        round=state.round + 1,
        objective=float("nan"),
        alpha=team.method.at(state.round + 1).server_alpha(team.n_clients),
        edges=edges(team, after) if has_edges else Edges(*[float("nan")] * 4),
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


def ended(team: Team, state: State, limit: int) -> tuple[Status | None, str]:
    """Return `RISEN` after the last round of a run whose objective has risen, and the message of a run's last round.

    With a fixed precision, more than half of the descent from the start to the best value is lost. With a learned
    precision, whose divergence from the prior may grow, the objective is above its start. A record's one pair of
    samples leaves the variance ½tr((S⁻¹H)²), which the start's s = δ does not bound. So where a record is above the
    start, `rise` compares both at more pairs; a server without rows cannot, and finds nothing. Records that lack the
    loss of a client that was dropped do not count, and without one of the last round nothing is judged.
    """
    start = state.start_objective
    whole = [float("nan") if record.dropped else record.objective for record in state.history]
    if whole and state.round >= limit and np.isfinite([start, whole[-1]]).all():
        best, last = np.nanmin([start, *whole]), whole[-1]
        above = start if team.learns_precision else 0.5 * (start + best)
        if last > above + 1e-6 * abs(start) and (not team.learns_precision or rise(team, state) > 0.0):
            said = f"{Status.RISEN.value}, from {start:.4g} at the start and {best:.4g} at best to {last:.4g}"
            cost, knobs = narrowing(team, state), team.method.knobs
            if team.learns_precision and last - cost <= start:
                said += f", of which {cost:.4g} is KL of the precision: without this it is below its start"
                knobs = "trust the scores, or lower hess_init (of IVON) or temperature"
            return Status.RISEN, f"{said}; {knobs}."
        return None, DONE + doubt(team, state)
    return None, DONE


def _statistics(team: Team, replies: Replies) -> dict[str, Tensor]:
    """Running statistics of the clients that are not left out, averaged by rows; counters are rounded."""
    good = list(replies.clients)
    weights = team.shares[good] / team.shares[good].sum()
    averaged = {}
    for name, stack in replies.buffers.items():
        mixed = torch.tensordot(weights.to(stack.device), stack.double(), dims=1)
        averaged[name] = (mixed if stack.is_floating_point() else mixed.round()).to(stack.dtype)
    return averaged
