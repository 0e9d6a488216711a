"""The clients' local work: K clients at once or one after the other, by the same code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from threading import Event
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from .._validation import as_count, as_number, as_positive
from .functional import SharedTerms
from .kernel import Buffers, Rates, Terms, collect, draw, step_rate, update
from .network import Network, Rows
from .threads import in_threads

__all__ = ["AdamSteps", "IVONSteps", "LocalProblem", "Trained", "local_work"]

Gradient = Callable[[Tensor, Tensor], Tensor]
"""(θ, out) → the gradients of the clients' mean losses, in out."""
WORTH_A_THREAD = 50_000
"""Parameters of a stack, below which a step is mostly Python, which threads do by turns."""
PIECE = 65_536
"""Numbers of a buffer in a piece: nine of 256 KiB are about what fits into two MiB."""
ADAM_STACK, IVON_STACK = 917_504, 524_288
"""Numbers of a buffer in a stack of plain networks: fewer pay more for calls, and more for memory that is far away."""
ALIGNED = 64
"""Pieces begin at multiples of it, so that the same numbers go through the processor's vector units as in one piece."""


@dataclass(frozen=True)
class AdamSteps:
    """Local work of a point method: Adam (Kingma & Ba 2015) on ℓ_k and the terms around it.

    Parameters
    ----------
    epochs : int, default 5
        Passes over the client's rows in a round.
    batch_size : int, default 32
    lr : float, default 1e-3
    beta1 : float, default 0.9
    beta2 : float, default 0.999
    eps : float, default 1e-8

    Raises
    ------
    ValueError
        When a number is out of range.

    Examples
    --------
    >>> from bayesadmm_np.torch import AdamSteps
    >>> AdamSteps(epochs=10).lr
    0.001
    """

    epochs: int = 5
    batch_size: int = 32
    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def __post_init__(self) -> None:
        as_count(self.epochs, "epochs")
        as_count(self.batch_size, "batch_size")
        as_positive(self.lr, "lr")
        as_positive(self.eps, "eps")
        _check_betas(self.beta1, self.beta2)


@dataclass(frozen=True)
class IVONSteps:
    """Local work of a variational method: IVON under prior and multipliers (Algorithm 2, App. D.4).

    The Hessian estimate starts at `hess_init` in every round. To learn it a round must be long enough to forget that:
    (1 − β₂) times the steps of a round should be well above 1. Otherwise `hess_init` is the precision that is chosen.

    Parameters
    ----------
    epochs : int, default 5
        Passes over the client's rows in a round.
    batch_size : int, default 32
    lr : float, default 1.0
        α, before the rescaling: the first step is one of gradient descent with this rate, or Newton's if that is less.
    hess_init : float, default 0.01
        h₀, on the scale of the mean loss.
    beta1 : float, default 0.9
    beta2 : float, default 0.99
    samples : int, default 1
        Of the posterior, a step.
    hess_approx : {'price', 'gradsq'}
    clip_radius : float, default inf
    debias : bool, default True
    rescale_lr : bool, default True

    Raises
    ------
    ValueError
        When a number is out of range.

    Examples
    --------
    >>> from bayesadmm_np.torch import IVONSteps
    >>> IVONSteps(epochs=10).samples
    1
    """

    epochs: int = 5
    batch_size: int = 32
    lr: float = 1.0
    hess_init: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    samples: int = 1
    hess_approx: Literal["price", "gradsq"] = "price"
    clip_radius: float = float("inf")
    debias: bool = True
    rescale_lr: bool = True

    def __post_init__(self) -> None:
        as_count(self.epochs, "epochs")
        as_count(self.batch_size, "batch_size")
        as_count(self.samples, "samples")
        as_positive(self.lr, "lr")
        as_positive(self.hess_init, "hess_init")
        _check_betas(self.beta1, self.beta2)
        if self.hess_approx not in ("price", "gradsq"):
            raise ValueError(f"hess_approx must be 'price' or 'gradsq', got {self.hess_approx!r}.")
        for name in ("debias", "rescale_lr"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be True or False, got {getattr(self, name)!r}.")
        if isinstance(self.clip_radius, bool | str) or not self.clip_radius > 0:
            raise ValueError(f"clip_radius must be > 0, got {self.clip_radius!r}.")

    @property
    def rates(self) -> Rates:
        """What `kernel.update` wants."""
        return Rates(
            self.hess_init, self.beta1, self.beta2, self.hess_approx, self.clip_radius, self.debias, self.rescale_lr
        )


def _check_betas(beta1: float, beta2: float) -> None:
    for name, value in (("beta1", beta1), ("beta2", beta2)):
        if not 0 <= as_number(value, name) < 1:
            raise ValueError(f"{name} must lie in [0, 1), got {value!r}.")


@dataclass(frozen=True)
class LocalProblem:
    """ℓ_k/τ + vᵀθ − ½θᵀVθ + ρ_k·(anchor), for the stacked clients k (Eq. 66): everything but the rows.

    The anchor is KL(q‖N(centre, 1/precision)); for point methods ½‖θ − centre‖² in that metric.

    Attributes
    ----------
    start : Tensor, shape (P,)
        Where the clients start: the server's mean.
    centre, precision : Tensor, shape (K, P), (1, P) or (1, 1)
    linear, curvature : Tensor, shape (K, P) or (1, 1)
        Site (v_k, V_k).
    rho : Tensor, shape (K, 1)
        Weight of the anchor.
    temperature : float
        τ.
    shared : SharedTerms or None
        Function-space terms over τ (Eq. 17 of Swaroop et al. 2025).
    """

    start: Tensor
    centre: Tensor
    precision: Tensor
    linear: Tensor
    curvature: Tensor
    rho: Tensor
    temperature: float
    shared: SharedTerms | None = None

    def of(self, chosen: Sequence[int]) -> LocalProblem:
        """Return the problem of some of the clients."""

        def rows(x: Tensor) -> Tensor:
            return x[list(chosen)] if len(x) > 1 else x

        centre, precision, linear, curvature, rho = map(
            rows, (self.centre, self.precision, self.linear, self.curvature, self.rho)
        )
        shared = None if self.shared is None else self.shared.of(chosen)
        return LocalProblem(self.start, centre, precision, linear, curvature, rho, self.temperature, shared)


@dataclass(frozen=True)
class Trained:
    """What local work returns: m_k and, for IVON, s_k and h_k; shapes (K, P), and the buffers of one client."""

    mean: Tensor
    precision: Tensor | None
    hess: Tensor | None
    steps: tuple[int, ...]
    buffers: dict[str, Tensor]

    def put(self, clients: Sequence[int], rows: tuple[Tensor, Tensor | None, Tensor | None]) -> None:
        """Set the rows of some clients."""
        for whole, part in zip((self.mean, self.precision, self.hess), rows, strict=True):
            if whole is not None and part is not None:
                whole[list(clients)] = part


@dataclass(frozen=True)
class _Plan:
    """Which rows a stack of clients sees in which step; clients with more steps come first."""

    clients: list[int]
    rows: list[int]
    index: Tensor
    weight: Tensor
    steps: list[int]

    def active(self, step: int) -> int:
        return sum(count > step for count in self.steps)


def _plan(data: Mapping[int, Rows], solver: AdamSteps | IVONSteps, seeds: Sequence[int], like: Tensor) -> _Plan:
    """Epochs of shuffled batches; the last batch of an epoch may be short, and then a row of weight zero fills it."""
    counts = {k: _steps(rows, solver) for k, rows in data.items()}
    order = sorted(data, key=lambda k: -counts[k])
    offsets = dict(zip(data, np.cumsum([0, *(len(rows) for rows in data.values())]).tolist(), strict=False))
    index = torch.zeros(len(data), max(counts.values()), solver.batch_size, dtype=torch.int64)
    weight = torch.zeros(index.shape, dtype=like.dtype)
    for i, k in enumerate(order):
        index[i] = offsets[k]  # of its own rows: those of others may not be finite
        source = torch.Generator().manual_seed(seeds[k])
        batches = [
            batch
            for _ in range(solver.epochs)
            for batch in torch.randperm(len(data[k]), generator=source).split(solver.batch_size)
        ]
        for t, batch in enumerate(batches):
            index[i, t, : len(batch)] = batch + offsets[k]
            weight[i, t, : len(batch)] = 1.0 / len(batch)
    device, sizes = like.device, [len(data[k]) for k in order]
    return _Plan(order, sizes, index.to(device), weight.to(device), [counts[k] for k in order])


def _steps(rows: Rows, solver: AdamSteps | IVONSteps) -> int:
    """How many steps a client takes in a round."""
    return solver.epochs * -(-len(rows) // solver.batch_size)


def local_work(
    network: Network,
    data: Sequence[Rows],
    problem: LocalProblem,
    solver: AdamSteps | IVONSteps,
    seeds: Sequence[int],
    buffers: dict[str, Tensor],
) -> Trained:
    """Solve the clients' problems side by side: in stacks, and on a CPU with as many threads as torch has.

    The order of a client's rows and its noise are functions of its own seed, so that a stack of clients does what its
    members would do alone, to rounding.
    """
    steps = tuple(_steps(rows, solver) for rows in data)
    threads = torch.get_num_threads() if _is_divisible(network, data, problem.start) else 1
    most = _largest_stack(network, data, problem.start, solver)
    with torch.inference_mode(False):  # a mode of the caller's thread, while others write as well
        room = partial(problem.start.new_empty, len(data), len(problem.start))
        precision, hess = (room(), room()) if isinstance(solver, IVONSteps) else (None, None)
        out = Trained(room(), precision, hess, steps, {name: buffer.clone() for name, buffer in buffers.items()})
    work = _Work(network, data, problem, solver, seeds, out)
    device = problem.start.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seeds[0])  # of dropout
        in_threads([partial(work.in_stacks, group, most) for group in _balanced(steps, threads)])
    return out


def _is_divisible(network: Network, data: Sequence[Rows], start: Tensor) -> bool:
    """Whether stacks in threads give what one stack gives, and sooner."""
    return (
        len(data) > 1
        and start.device.type == "cpu"
        and len(data) * len(start) >= WORTH_A_THREAD
        and network.is_pure(data[0].X)  # a module may draw from a generator that threads share, or keep a state
    )


def _largest_stack(network: Network, data: Sequence[Rows], start: Tensor, solver: AdamSteps | IVONSteps) -> int:
    """How many clients to stack; all of them, where a stack takes many calls, or draws from one generator."""
    if start.device.type != "cpu" or not network.is_pure(data[0].X):
        return len(data)
    return max((IVON_STACK if isinstance(solver, IVONSteps) else ADAM_STACK) // len(start), 1)


def _balanced(steps: Sequence[int], most: int) -> list[list[int]]:
    """The clients in at most so many groups of about as many steps, which are not empty."""
    groups: list[list[int]] = [[] for _ in range(min(most, len(steps)))]
    loads = [0] * len(groups)
    for k in sorted(range(len(steps)), key=lambda k: -steps[k]):
        i = loads.index(min(loads))
        groups[i].append(k)
        loads[i] += steps[k]
    return [sorted(group) for group in groups]


@dataclass(frozen=True)
class _Work:
    """The local work of a round; threads share it, and write into rows of their own."""

    network: Network
    data: Sequence[Rows]
    problem: LocalProblem
    solver: AdamSteps | IVONSteps
    seeds: Sequence[int]
    out: Trained

    def in_stacks(self, group: Sequence[int], most: int, halt: Event) -> None:
        """Do that of a group of clients, in stacks of at most so many and about the same size."""
        count = -(-len(group) // most)
        for i in range(count):
            if not halt.is_set():
                self.in_stack(group[i::count], halt)

    def in_stack(self, group: Sequence[int], halt: Event) -> None:
        """Do that of some clients as one computation."""
        network, start, buffers = self.network, self.problem.start, self.out.buffers
        plan = _plan({k: self.data[k] for k in group}, self.solver, self.seeds, start)
        X, y = torch.cat([self.data[k].X for k in group]), torch.cat([self.data[k].y for k in group])
        sizes = torch.tensor(plan.rows).to(start)[:, None]
        problem = self.problem.of(plan.clients)
        shared = None if problem.shared is None else problem.shared.over(sizes)
        room = start.new_empty(0 if shared is None else len(group), len(start))
        stack = self._stack(plan.clients, problem, problem.temperature / sizes)
        del problem  # its sites are copies
        for t in range(plan.steps[0]):
            if halt.is_set():
                break
            k = plan.active(t)
            chosen = plan.index[:k, t]
            batch, labels, weights = X[chosen], y[chosen], plan.weight[:k, t]
            gradient: Gradient = partial(network.gradient, X=batch, y=labels, weights=weights, buffers=buffers)
            if shared is not None:
                gradient = shared.beside(gradient, network, room, buffers)
            stack.step(k, t + 1, gradient)
        self.out.put(plan.clients, stack.result())

    def _stack(self, clients: Sequence[int], problem: LocalProblem, scale: Tensor) -> _Adam | _IVON:
        if isinstance(self.solver, AdamSteps):
            return _Adam(problem, scale, self.solver, len(clients))
        noise = [_stream(self.seeds[k], problem.start.device) for k in clients]
        return _IVON(problem, scale, self.solver, noise)


def _stream(seed: int, device: torch.device) -> torch.Generator:
    """The noise of a client, apart from the order of its rows."""
    return torch.Generator(device).manual_seed(int(np.random.SeedSequence([seed, 1]).generate_state(1)[0]))


def _blocks(stack: Tensor, clients: int) -> list[slice]:
    """How the first rows of a stack are cut for passes over its buffers: on a CPU a block of them fits the cache."""
    at_once = max(PIECE // stack.shape[1], 1) if stack.device.type == "cpu" else clients
    return [slice(k, min(k + at_once, clients)) for k in range(0, clients, at_once)]


def _stretches(stack: Tensor) -> list[slice]:
    """How a row that is too long for the cache is cut further, where many passes follow each other."""
    parameters = stack.shape[1]
    cuts = -(-parameters // PIECE) if stack.device.type == "cpu" else 1
    length = -(-parameters // cuts // ALIGNED) * ALIGNED
    return [slice(p, min(p + length, parameters)) for p in range(0, parameters, length)]


class _Adam:
    """Adam on the minibatch's mean loss plus (τ/N_k) times the quadratic of the site and the anchor."""

    def __init__(self, problem: LocalProblem, scale: Tensor, solver: AdamSteps, clients: int) -> None:
        self.mean = problem.start.expand(clients, -1).clone()
        self.gradient = torch.zeros_like(self.mean)
        pull = problem.rho * problem.precision
        stiffness = scale * (pull - problem.curvature)
        slope = scale * (problem.linear - pull * problem.centre)
        self.surrounded = bool(stiffness.any()) or bool(slope.any())  # not in FedAvg
        self.stiffness, self.slope = stiffness.expand_as(self.mean), slope.expand_as(self.mean)
        # a parameter for each client, because those that are done drop out
        self.rows = [row.requires_grad_() for row in self.mean.unbind()]
        for row, own in zip(self.rows, self.gradient, strict=True):
            row.grad = own
        fused = self.mean.device.type in ("cpu", "cuda")
        self.adam = torch.optim.Adam(self.rows, solver.lr, (solver.beta1, solver.beta2), solver.eps, fused=fused)

    def step(self, k: int, t: int, gradient: Gradient) -> None:
        gradient(self.mean[:k], self.gradient[:k])
        if self.surrounded:
            for piece in _blocks(self.mean, k):
                self.gradient[piece].addcmul_(self.stiffness[piece], self.mean[piece]).add_(self.slope[piece])
        for row in self.rows[k:]:
            row.grad = None
        self.adam.step()

    def result(self) -> tuple[Tensor, None, None]:
        return self.mean, None, None


class _IVON:
    """Algorithm 2 with λ = N_k/(ρτ), v = (τ/N_k)v_k, u = (τ/N_k)u_k and the server's distribution as prior."""

    def __init__(self, problem: LocalProblem, scale: Tensor, solver: IVONSteps, noise: list[torch.Generator]) -> None:
        self.solver, self.rates, self.noise = solver, solver.rates, noise
        start = problem.start.expand(len(noise), -1).clone()
        one_sample = solver.samples == 1
        self.room: Tensor | None = None
        if one_sample and start.device.type == "cpu":  # intermediate results of all pieces: it stays in the cache
            self.room = start.new_empty(2, start[_blocks(start, len(start))[0], _stretches(start)[0]].numel())
        self.buffers = Buffers.like(start, solver.hess_init, one_sample=one_sample, has_room=self.room is not None)
        ess = 1.0 / (problem.rho * scale)
        self.spread = ess.flatten().rsqrt().tolist()
        delta = (problem.precision / ess).expand(len(noise), -1)
        slope = torch.addcmul(scale * problem.linear, delta, problem.centre, value=-1.0)
        self.active = 0
        self.parts: list[tuple[Buffers, Terms]] = []
        self.terms = Terms(ess, delta, step_rate(solver.lr, delta, self.rates), slope, scale * problem.curvature)

    def step(self, k: int, t: int, gradient: Gradient) -> None:
        b, samples = self.buffers, self.solver.samples
        if k != self.active:
            self.active, pieces = k, list(product(_blocks(b.mean, k), _stretches(b.mean)))
            self.parts = [(b.part(*piece, self.room), self.terms.part(*piece)) for piece in pieces]
        for sample in range(samples):
            for row, spread, source in zip(b.noise[:k], self.spread, self.noise, strict=False):
                row.normal_(std=spread, generator=source)
            for own, terms in self.parts:
                draw(own, terms)
            gradient(b.theta[:k], b.room(sample)[:k])
            for own, terms in self.parts:
                collect(own, own.room(sample), self.rates, sample)
                if sample == samples - 1:
                    update(own, terms, self.rates, t, samples)

    def result(self) -> tuple[Tensor, Tensor, Tensor]:
        b = self.buffers
        return b.mean, (b.hess + self.terms.delta).mul_(self.terms.ess), b.hess
