"""The clients' local work, many clients at once in stacks, or one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from threading import Event
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .functional import Gradient
from .kernel import Buffers, Rates, Terms, collect, draw, step_rate, update
from .network import Network, Rows
from .problem import AdamSteps, IVONSteps, LocalProblem, PersonalSteps, PointSteps, SGDSteps, Solver, Trained
from .randomness import Noise
from .stream import Stream

WORTH_A_THREAD = 50_000
"""Parameters of all clients together; with fewer, threads are not worth their start."""
STACK = 917_504
"""Numbers in a buffer of a stack on a CPU: smaller stacks pay more for calls, larger ones for memory far away."""
CONVOLUTIONS = 16
"""A stack of convolutional networks on a CPU has as many times fewer numbers: a large convolution gains nothing."""
VECTORS, FEATURES, SHARE = 12, 64, 4
"""On a GPU a client needs so many vectors, and times its batch's inputs; stacks get 1/SHARE of the whole memory."""
AVERAGES = ("exp_avg", "exp_avg_sq")
"""The names that torch's Adam has for its averages."""


@dataclass(frozen=True)
class _Plan:
    """Rows of a stack in each step, clients with more steps first; `widths` is the fullest batch of each step."""

    clients: list[int]
    index: Tensor
    weight: Tensor
    steps: list[int]
    widths: list[int]

    def active(self, step: int) -> int:
        return sum(count > step for count in self.steps)


def make_plan(data: Mapping[int, Rows | Stream], solver: Solver, seeds: Sequence[int], like: Tensor) -> _Plan:
    """Return epochs of shuffled batches; where the last batch of an epoch is short, rows of weight zero fill it.

    A row of weight w_i has w_i n/N_k over the rows of its batch: the gradient estimates that of ℓ_k/N_k.
    """
    counts = {k: solver.steps_of(len(rows)) for k, rows in data.items()}
    order = sorted(data, key=lambda k: -counts[k])
    offsets = dict(zip(data, np.cumsum([0, *(len(rows) for rows in data.values())]).tolist(), strict=False))
    index = torch.zeros(len(data), max(counts.values()), solver.batch_size, dtype=torch.int64)
    weight = torch.zeros(index.shape, dtype=like.dtype)
    widths = np.zeros(max(counts.values()))
    for i, k in enumerate(order):
        n, source = len(data[k]), torch.Generator().manual_seed(seeds[k])
        rows = torch.stack([torch.randperm(n, generator=source) for _ in range(solver.epochs)])
        missing = -n % solver.batch_size
        # the last batch is filled with the client's own first row, because rows of others may not be finite
        index[i, : counts[k]] = offsets[k] + nn.functional.pad(rows, (0, missing)).view(counts[k], -1)
        filled = (torch.arange(n + missing) < n).double().view(-1, solver.batch_size)
        weight[i, : counts[k]] = (filled / filled.sum(dim=1, keepdim=True)).repeat(solver.epochs, 1)
        widths = np.maximum(widths, np.pad(np.tile(filled.sum(dim=1), solver.epochs), (0, len(widths) - counts[k])))
        if (own := data[k].weights) is not None:
            share = (own.double() * (n / data[k].mass)).cpu()[rows]
            weight[i, : counts[k]] *= nn.functional.pad(share, (0, missing)).view(counts[k], -1).to(weight)
    steps, device = [counts[k] for k in order], like.device
    return _Plan(order, index.to(device), weight.to(device), steps, widths.astype(int).tolist())


def local_work(
    network: Network,
    data: Sequence[Rows | Stream],
    problem: LocalProblem,
    solver: Solver,
    seeds: Sequence[int],
    buffers: dict[str, Tensor],
    batched: bool = True,
) -> Trained:
    """Solve the clients' problems in stacks, on a CPU with as many threads as torch has; or one after the other."""
    steps = tuple(solver.steps_of(len(rows)) for rows in data)
    threads = torch.get_num_threads() if batched and _is_divisible(network, data, problem.start) else 1
    most = 1
    if batched:
        inputs = solver.batch_size * data[0].first(1).numel()
        most = min(room_of(network, problem.start.device, problem.start.element_size(), inputs), len(data))
    out = Trained(steps, {name: torch.stack([buffer] * len(data)) for name, buffer in buffers.items()})
    work = Work(network, data, problem, solver, seeds, out)
    device = problem.start.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        groups = balanced(steps, threads)
        in_threads([partial(work.in_stacks, group, most) for group in groups])
    return out


def room_of(network: Network, device: torch.device, size: int, inputs: int) -> int:
    """Return the largest number of clients in a stack; a number has `size` bytes, and a batch `inputs` numbers.

    On a GPU the bound follows from the memory of the card, and not from what is free: the noise there is a stack's.
    """
    parameters = len(network.start)
    if device.type == "cpu":
        is_convolutional = any(isinstance(layer, nn.modules.conv._ConvNd) for layer in network.module.modules())
        return max(STACK // (parameters * (CONVOLUTIONS if is_convolutional else 1)), 1)
    if device.type != "cuda":
        return 2**31
    return max(torch.cuda.mem_get_info(device)[1] // (SHARE * size * (VECTORS * parameters + FEATURES * inputs)), 1)


def _seed(device: torch.device, seed: int) -> None:
    """Seed the generators that dropout draws from here, and none of another device."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)


def _is_divisible(network: Network, data: Sequence[Rows | Stream], start: Tensor) -> bool:
    """Return whether several threads give the result of one, and give it sooner."""
    return (
        len(data) > 1
        and start.device.type == "cpu"
        and len(data) * len(start) >= WORTH_A_THREAD
        and all(isinstance(rows, Rows) for rows in data)
        and network.is_pure(data[0].first(1))  # a module may draw from a generator that threads share, or keep a state
    )


def balanced(steps: Sequence[int], most: int) -> list[list[int]]:
    """Return the clients in at most `most` groups, none empty, which have about as many steps each."""
    groups: list[list[int]] = [[] for _ in range(min(most, len(steps)))]
    loads = [0] * len(groups)
    for k in sorted(range(len(steps)), key=lambda k: -steps[k]):
        i = loads.index(min(loads))
        groups[i].append(k)
        loads[i] += steps[k]
    return [sorted(group) for group in groups]


def in_threads(tasks: Sequence[Callable[[Event], Any]]) -> list[Any]:
    """Run tasks side by side, with torch's threads divided among them; their event is set when another has failed."""
    halt = Event()
    if len(tasks) == 1:
        return [tasks[0](halt)]
    total = torch.get_num_threads()

    def run(task: Callable[[Event], Any]) -> Any:
        # the number is the thread's own, but setting it sets the default of threads to come as well, which each reads
        # once, in its first operation: so this one reads it before it is set, and puts it back in the end
        torch.get_num_threads()
        torch.set_num_threads(max(total // len(tasks), 1))
        try:
            return task(halt)
        finally:
            torch.set_num_threads(total)

    with ThreadPoolExecutor(len(tasks)) as pool:
        try:
            futures = [pool.submit(run, task) for task in tasks]
            waiting = {*futures}
            while waiting:  # not for good, which Ctrl-C would not end everywhere
                done, waiting = wait(waiting, timeout=0.5, return_when=FIRST_EXCEPTION)
                for future in done:
                    future.result()
        finally:
            halt.set()
    return [future.result() for future in futures]


@dataclass(frozen=True)
class Work:
    """The local work of a round; threads share it, and write into rows of their own."""

    network: Network
    data: Sequence[Rows | Stream]
    problem: LocalProblem
    solver: Solver
    seeds: Sequence[int]
    out: Trained

    def in_stacks(self, group: Sequence[int], most: int, halt: Event) -> None:
        """Do the work of some clients in stacks of about the same size, of at most `most` clients each."""
        count = -(-len(group) // most)
        for i in range(count):
            if not halt.is_set():
                self.in_stack(group[i::count], halt)

    def in_stack(self, group: Sequence[int], halt: Event) -> None:
        """Do the work of some clients as one computation."""
        network, start = self.network, self.problem.start
        _seed(start.device, self.seeds[group[0]])
        buffers = {name: stack[group[0]] for name, stack in self.out.buffers.items()}  # of a stack of one
        plan = make_plan({k: self.data[k] for k in group}, self.solver, self.seeds, start)
        problem = self.problem.of(plan.clients)
        shared = problem.shared
        workspace = start.new_empty(0 if shared is None else len(group), len(start))
        stack = self._stack(plan.clients, problem)
        del problem  # its sites are copies
        batches = self._batches(group, plan)
        for t in range(plan.steps[0]):
            if halt.is_set():
                break
            k = plan.active(t)
            width = plan.widths[t]  # batch statistics are of every row that is passed, whatever its weight
            batch, labels = next(batches)
            slope_at = partial(network.likelihood.slope, y=labels, weights=plan.weight[:k, t, :width])
            gradient: Gradient = partial(network.gradient, X=batch, slope_at=slope_at, buffers=buffers)
            if shared is not None:
                gradient = shared.beside(gradient, network, workspace, buffers)
            stack.step(k, t + 1, gradient)
        self.out.put(plan.clients, stack.result())

    def _batches(self, group: Sequence[int], plan: _Plan) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the clients' inputs and labels of every step, shape (k, B, ...)."""
        data = [self.data[k] for k in group]
        shown = [plan.index[: plan.active(t), t, :width] for t, width in enumerate(plan.widths)]
        held = [rows for rows in data if isinstance(rows, Rows)]
        if len(held) == len(data):
            X, y = torch.cat([rows.X for rows in held]), torch.cat([rows.y for rows in held])
            yield from ((X[chosen], y[chosen]) for chosen in shown)
            return
        before = dict(zip(group, np.cumsum([0, *map(len, data)]).tolist(), strict=False))
        each = [
            self.data[k].batches([((shown[t][i] - before[k]).tolist(), (self.seeds[k], t)) for t in range(steps)])
            for i, (k, steps) in enumerate(zip(plan.clients, plan.steps, strict=True))
        ]
        for chosen in shown:
            found = [next(batches) for batches in each[: len(chosen)]]
            yield torch.stack([rows.X for rows in found]), torch.stack([rows.y for rows in found])

    def _stack(self, clients: Sequence[int], problem: LocalProblem) -> Any:
        solver, seeds = self.solver, [self.seeds[k] for k in clients]
        steps = [solver.steps_of(len(self.data[k])) for k in clients]
        if isinstance(solver, PointSteps):
            return _Point(problem, solver, steps)
        noise = Noise(seeds, problem.start.device)
        if isinstance(solver, PersonalSteps):
            return solver.stack(self.network, problem, noise, steps)
        return _IVON(problem, solver, noise)


class _Point:
    """Adam or SGD on the minibatch's mean loss plus (τ/N_k) times the quadratic of the site and the anchor."""

    def __init__(self, problem: LocalProblem, solver: PointSteps, steps: Sequence[int]) -> None:
        self.mean = problem.start.expand(len(steps), -1).clone()
        self.gradient = torch.zeros_like(self.mean)
        quadratic = problem.quadratic()
        self.quadratic = quadratic and tuple(x.expand_as(self.mean) for x in quadratic)
        # one parameter for all clients of the same numbers of steps, now and before: they drop out together
        self.kept = problem.moments
        done = (0,) * len(steps) if self.kept is None else self.kept.steps
        sizes = [len(list(group)) for _, group in groupby(zip(steps, done, strict=True))]
        self.rows = [rows.requires_grad_() for rows in self.mean.split(sizes)]
        self.first = [sum(sizes[:i]) for i in range(len(sizes))]
        for rows, own in zip(self.rows, self.gradient.split(sizes), strict=True):
            rows.grad = own
        self.optimiser: torch.optim.Optimizer
        if isinstance(solver, SGDSteps):
            self.optimiser = torch.optim.SGD(self.rows, solver.lr, solver.momentum)
        else:
            assert isinstance(solver, AdamSteps)
            fused, betas = self.mean.device.type in ("cpu", "cuda"), (solver.beta1, solver.beta2)
            self.optimiser = torch.optim.Adam(self.rows, solver.lr, betas, solver.eps, fused=fused)
        if self.kept is not None:
            for rows, first in zip(self.rows, self.first, strict=True):
                vectors = self.kept.vectors[first : first + len(rows)].unbind(dim=1)
                state = {name: vector.clone() for name, vector in zip(AVERAGES, vectors, strict=True)}
                self.optimiser.state[rows] = {"step": torch.tensor(float(done[first])).to(rows.device), **state}

    def step(self, k: int, t: int, gradient: Gradient) -> None:
        gradient(self.mean[:k], self.gradient[:k])
        if self.quadratic:
            stiffness, slope = self.quadratic
            self.gradient[:k].addcmul_(stiffness[:k], self.mean.detach()[:k]).add_(slope[:k])
        for rows, first in zip(self.rows, self.first, strict=True):
            if first >= k:
                rows.grad = None
        self.optimiser.step()

    def result(self) -> dict[str, Tensor]:
        if self.kept is None:
            return {"mean": self.mean}
        states = [self.optimiser.state[rows] for rows in self.rows]
        vectors = [torch.cat([state[name] for state in states]) for name in AVERAGES]
        return {"mean": self.mean, "moments": torch.stack(vectors, dim=1)}


class _IVON:
    """Algorithm 2."""

    def __init__(self, problem: LocalProblem, solver: IVONSteps, noise: Noise) -> None:
        self.solver, self.rates, self.noise = solver, Rates.of(vars(solver)), noise
        start = problem.start.expand(len(noise.keys), -1).clone()
        ess, delta, *around = problem.terms()
        hess = solver.hess_init if problem.reached is None else problem.reached / ess - delta
        self.buffers = Buffers.like(start, hess, one_sample=solver.samples == 1)
        self.ess, self.delta, self.spread = ess, delta, ess.rsqrt()
        self.terms = Terms(ess, delta, step_rate(solver.lr, delta, self.rates), *around)

    def step(self, k: int, t: int, gradient: Gradient) -> None:
        b, terms, samples = self.buffers.first(k), self.terms.first(k), self.solver.samples
        for sample in range(samples):
            self.noise.fill(b.noise, (t - 1) * samples + sample)
            b.noise.mul_(self.spread[:k])
            draw(b, terms)
            collect(b, gradient(b.theta, b.slot(sample)), self.rates, sample)
        update(b, terms, self.rates, t, samples)

    def result(self) -> dict[str, Tensor]:
        b = self.buffers
        return {"mean": b.mean, "precision": (b.hess + self.delta).mul_(self.ess), "hess": b.hess}
