"""FedLap-Func's second channel: soft labels at a few inputs that clients and server share.

Equation numbers refer to *Connecting Federated ADMM to Bayes* (Swaroop et al. 2025). The cross entropy is linear
in its labels, ℓ(ŷ, θ) = −ŷᵀlog p(θ), so that all function-space terms of a client are one sum over the shared inputs:

    −Σ_{i∈M_k} τ_iℓ(ŷ_i, θ) + Σ_{k'}Σ_{i∈M_k'} τ_iℓ(ŷ_{i,g}, θ) = −Σ_i t_{k,i}ᵀlog p_i(θ)
    t_{k,i} = τ_i(ŷ_{i,g} − [i∈M_k]ŷ_i)

Predictions at shared inputs are made in evaluation mode, here and in the soft labels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from .likelihoods import cross_entropy_slope
from .methods import FunctionalMethod
from .network import Network, Rows
from .randomness import of_points

Gradient = Callable[[Tensor, Tensor], Tensor]  # (θ, out) → the gradients of the clients' mean losses, in out
Buffers = dict[str, Tensor]


@dataclass(frozen=True)
class Memory:
    """Shared points, sorted by owner: X_i, the round in which it was sent, τ_i = τN_{k,c}/M_{k,c} and ŷ_i, (M, C)."""

    X: Tensor
    owner: Tensor
    joined: Tensor
    weight: Tensor
    soft: Tensor

    def of(self, chosen: Tensor) -> Memory:
        """Return some of the points; `chosen` is a mask or an index."""
        return Memory(*(getattr(self, field.name)[chosen] for field in fields(self)))

    def owned_by(self, clients: Sequence[int]) -> Tensor:
        """Return which points are these clients', as a mask of shape (M,)."""
        return torch.isin(self.owner, torch.tensor(list(clients), device=self.owner.device))


@dataclass(frozen=True)
class SharedTerms:
    """Terms −Σ_i t_{k,i}ᵀlog p_i(θ) of stacked clients k; `targets` is t_{k,i}, shape (K, M, C)."""

    X: Tensor
    targets: Tensor

    def of(self, chosen: Sequence[int]) -> SharedTerms:
        """Return the terms of some of the clients."""
        return SharedTerms(self.X, self.targets[list(chosen)])

    def gradient(self, network: Network, theta: Tensor, out: Tensor, buffers: Buffers) -> Tensor:
        """The gradients of the first clients' terms, shape (K, P) as θ, into `out`."""
        X = self.X.expand(len(theta), *self.X.shape)
        slope_at = partial(cross_entropy_slope, targets=self.targets[: len(theta)])
        return network.gradient(theta, out, X, slope_at, buffers, train=False)

    def beside(self, gradient: Gradient, network: Network, workspace: Tensor, buffers: Buffers) -> Gradient:
        """Return `gradient` with these terms added; `workspace` has shape (K, P)."""

        def both(theta: Tensor, out: Tensor) -> Tensor:
            return gradient(theta, out).add_(self.gradient(network, theta, workspace[: len(theta)], buffers))

        return both


def shared_terms(
    network: Network, memory: Memory, mean: Tensor, chosen: Sequence[int], rows: Tensor, buffers: Buffers
) -> SharedTerms:
    """Return the chosen clients' terms (Eq. 17) at the server's mean, over N_k in `rows`, shape (K, 1)."""
    at_server = network.predict(mean, memory.X, buffers).softmax(dim=1)
    weight, clients = memory.weight[:, None], torch.tensor(list(chosen), device=mean.device)
    is_own = (memory.owner == clients[:, None])[:, :, None]
    return SharedTerms(memory.X, (weight * at_server - is_own * (weight * memory.soft)) / rows[:, :, None])


def pick(rows: Rows, points: int, seed: int, client: int) -> tuple[Tensor, Tensor]:
    """Return at most `points` rows of each class in random order, and how many rows of the class each represents."""
    rng = of_points(seed, client)
    labels, weights = rows.y.cpu().numpy(), rows.weighted.double().cpu().numpy()
    drawn, stand_for = [], []
    for label in np.unique(labels[weights > 0]):
        members = np.flatnonzero((labels == label) & (weights > 0))
        drawn.append(rng.choice(members, size=min(points, len(members)), replace=False))
        stand_for.append(np.full(len(drawn[-1]), weights[members].sum() / max(len(drawn[-1]), 1)))
    order = rng.permutation(sum(map(len, drawn)))  # else the order would tell the labels
    index, count = (np.concatenate(parts)[order] for parts in (drawn, stand_for))
    return torch.from_numpy(index).to(rows.y.device), torch.from_numpy(count).to(rows.X)


def points_of(
    method: FunctionalMethod,
    network: Network,
    memory: Memory | None,
    answers: Mapping[int, tuple[Rows, Tensor, Buffers]],
    number: int,
    seed: int,
) -> Memory | None:
    """Return the points of a round's answers (rows, m_k, statistics), with soft labels at m_k; None without points."""
    sent = []
    for k, (rows, mean, buffers) in answers.items():
        known = None if memory is None else memory.of(memory.owned_by([k]))
        if known is not None and len(known.owner):
            own = known
        else:
            index, count = pick(rows, method.points_per_class, seed, k)
            fills = torch.full_like(index, k), torch.full_like(index, number)
            own = Memory(rows.X[index].detach(), *fills, method.tau * count, count)  # its soft labels come next
        if len(own.owner):
            sent.append(replace(own, soft=network.predict(mean, own.X, buffers).softmax(dim=1)))
    return _concatenated(sent) if sent else None


def merged(memory: Memory | None, sent: Memory | None) -> Memory | None:
    """Return the server's points after a round: new points of clients that answered, old points of the others."""
    if memory is None or sent is None:
        return sent if memory is None else memory
    both = _concatenated([memory.of(~torch.isin(memory.owner, sent.owner)), sent])
    return both.of(both.owner.argsort(stable=True))


def gather_mean(
    method: FunctionalMethod,
    network: Network,
    memory: Memory,
    start: Tensor,
    linear: Tensor,
    delta: float,
    temperature: float,
    buffers: Buffers,
) -> Tensor:
    """Take the server's step (Eq. 17), by Adam: arg min Σ_iτ_iℓ(ŷ_i, θ)/temperature − θᵀΣ_kv_k + ½δ‖θ‖²."""
    terms = SharedTerms(memory.X, (memory.weight[:, None] * memory.soft / temperature)[None])
    theta, slope = start.clone(), torch.empty_like(start)
    theta.grad = slope
    optimiser = torch.optim.Adam([theta], lr=method.server_lr, fused=start.device.type in ("cpu", "cuda"))
    for _ in range(method.server_steps):
        terms.gradient(network, theta[None], slope[None], buffers)
        slope.add_(theta, alpha=delta).sub_(linear)
        optimiser.step()
    return theta


def traffic(
    before: Memory | None, after: Memory | None, last_seen: Mapping[int, int], answered: Sequence[int]
) -> tuple[int, int]:
    """Return how many numbers of this channel a round sent down, and up.

    Down: inputs and τ_i that are new to the client; up: soft labels, and first inputs and τ_i.
    """
    down = up = 0
    if before is not None:
        new = [(before.joined >= seen) & (before.owner != k) for k, seen in last_seen.items()]
        down = sum(int(some.sum()) for some in new) * (before.X[0].numel() + 1)
    if after is not None:
        joined = len(after.owner) - (0 if before is None else len(before.owner))
        up = int(after.owned_by(answered).sum()) * after.soft.shape[1] + joined * (after.X[0].numel() + 1)
    return down, up


def _concatenated(parts: Sequence[Memory]) -> Memory:
    return Memory(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(Memory)))
