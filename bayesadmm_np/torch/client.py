"""What a client does in a round: local work on its own rows, and λ_k from it. In one process, or at a site."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .curvature import diagonal_ggn
from .functional import Memory, points_of
from .ivon import UNMOVED, complaint, unmoved
from .methods import FunctionalMethod, LaplaceMethod
from .network import Rows
from .problem import IVONSteps, Moments, PointSteps, Trained
from .randomness import client_seed, stream
from .state import Broadcast, Duals, parts
from .steps import local_work
from .team import Team


@dataclass(frozen=True)
class Replies:
    """What some clients answered, one row a client: λ_k = (s_km_k, s_k), and their running statistics.

    `linear` is of shape (k, P), `precision` of shape (k, P), or (1, 1) where it is not learned. With FedLap-Func
    `memory` holds the points that the clients share. `moments` stay with the clients.
    """

    clients: tuple[int, ...]
    linear: Tensor
    precision: Tensor
    buffers: dict[str, Tensor]
    memory: Memory | None = None
    moments: Moments | None = None

    def of(self, kept: Tensor) -> Replies:
        """Return the rows that a mask of shape (k,) keeps; where it keeps all, these replies themselves."""
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
    seeds = [client_seed(seed, number, k) for k in chosen]
    trained = _trained(team, broadcast, duals, chosen, seeds)
    if isinstance(team.solver, IVONSteps) and team.solver.hess_start == "h0" and number == 1:
        assert trained.hess is not None
        moved = unmoved(trained.hess, team.solver.hess_init)
        if moved < UNMOVED:
            warnings.warn(complaint(moved, max(trained.steps), team.solver.beta2), stacklevel=4)
    precision = _precision(team, broadcast, duals, chosen, trained, seeds)
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
    """Whether λ_k is that of a distribution, and the running statistics are as finite as they were; shape (k,)."""
    finite = _are_finite(replies.linear) & _are_finite(replies.precision)
    if replies.moments is not None:
        finite = finite & _are_finite(replies.moments.vectors.flatten(1))
    for name, stack in replies.buffers.items():
        sound = torch.isfinite(stack) | ~torch.isfinite(buffers[name])  # a mask of −∞ is one from the start
        finite = finite & sound.reshape(len(stack), -1).all(dim=1)
    return finite & (replies.precision > 0).all(dim=1)


def _are_finite(rows: Tensor) -> Tensor:
    """Whether rows are finite, shape (k,); a few rows at a time, because the test makes a tensor of the same size."""
    return torch.cat([torch.isfinite(few).all(dim=1) for few in parts(rows)])


def _trained(team: Team, broadcast: Broadcast, duals: Duals, chosen: Sequence[int], seeds: Sequence[int]) -> Trained:
    problem, data = team.problem(broadcast, duals, chosen), [team.clients[k] for k in chosen]
    return local_work(team.network, data, problem, team.solver, seeds, broadcast.buffers, team.batched)


def kept(team: Team, broadcast: Broadcast, duals: Duals, chosen: Sequence[int], number: int, seed: int) -> Replies:
    """Do the local work of a round, and return what these clients keep: means in `linear`, with their precisions."""
    team = team.at(number)
    seeds = [client_seed(seed, number, k) for k in chosen]
    trained = _trained(team, broadcast, duals, chosen, seeds)
    mean, precision = trained.kept, trained.kept_precision
    if mean is None:
        mean, precision = trained.mean, _precision(team, broadcast, duals, chosen, trained, seeds)
    return Replies(tuple(chosen), mean, broadcast.precision[None] if precision is None else precision, trained.buffers)


def _precision(
    team: Team, broadcast: Broadcast, duals: Duals, chosen: Sequence[int], trained: Trained, seeds: Sequence[int]
) -> Tensor:
    """s_k: what IVON learned, the Laplace approximation S_g + (H_k/τ − V_k)/ρ_k or δ + H_k/τ, or the fixed one."""
    if not team.learns_precision:
        return broadcast.precision[None]
    if trained.precision is not None:
        return trained.precision
    assert isinstance(team.solver, PointSteps)
    samples, place = team.solver.curvature_samples, broadcast.mean.device
    hessians = [
        diagonal_ggn(team.network, theta, team.clients[k], broadcast.buffers, samples, stream(place, "curvature", own))
        for k, theta, own in zip(chosen, trained.mean, seeds, strict=True)
    ]
    change = torch.stack(hessians) / team.temperature - duals.precision
    if isinstance(team.method, LaplaceMethod):
        return change + team.delta
    return broadcast.precision + change / team.coefficients(chosen, "rho")
