"""A training step with IVON against one with Adam and with the ivon-opt package, and clients batched or one by one.

    OPENBLAS_NUM_THREADS=1 python benchmarks/torch_ivon.py

All kinds take turns in one run, so that other people's work on the machine falls on all of them; the best of many
short stretches counts, and the median is written beside it. With one thread the clock is that of the process, which
stands still while others have the core. The floor of a step is a forward and backward pass, P normals, and the traffic
with memory that no arrangement avoids: m and h read and θ written for a sample; ĝ, θ, m, h and g read and m, h and g
written for a step. Local work has its own: there the pass is the one that it uses itself.

`in_torch` is what local work is without the extra `compiled`: noise by NumPy, and IVON's passes by torch.

Threads are compared by the wall clock, so that this part needs a machine with that many free cores; the load before
and after it is written beside it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
from common import RESULTS, machine, write_json
from papers.networks import ResNet20

from bayesadmm_np.torch import IVON, AdamSteps, IVONSteps, arithmetic, dense, network, steps
from bayesadmm_np.torch.problem import LocalProblem
from bayesadmm_np.torch.randomness import noise_key, normals

UNAVOIDABLE = 11
"""Reads and writes of P numbers in a step, as listed above."""
FEW = 200
"""Steps in a stretch of what has no round."""
CLIENTS, ROWS, BATCH, EPOCHS = 10, 600, 32, 5


def stepper(kind: str, make: Callable[[], torch.nn.Module], X: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    """Return a function that does one training step."""
    torch.manual_seed(0)
    model, loss = make(), torch.nn.functional.cross_entropy
    if kind == "pass":

        def step() -> None:
            model.zero_grad()
            loss(model(X), y).backward()

        return step
    if kind.startswith("adam"):
        plain = torch.optim.Adam(
            model.parameters(), lr=1e-3, foreach=kind == "adam_foreach", fused=kind == "adam_fused"
        )

        def step() -> None:
            plain.zero_grad()
            loss(model(X), y).backward()
            plain.step()

        return step
    if kind == "ivon_opt":
        import ivon

        sampled = ivon.IVON(model.parameters(), lr=0.1, ess=6000.0)
    else:
        sampled = IVON(model.parameters(), lr=0.1, ess=6000.0, generator=torch.Generator().manual_seed(0))

    def step() -> None:
        with sampled.sampled_params(train=True):
            sampled.zero_grad()
            loss(model(X), y).backward()
        sampled.step()

    return step


def take_turns(
    kinds: dict[str, Callable[[], None]], turns: int, stretch: int, clock: Callable[[], float] | None = None
) -> dict[str, dict[str, float]]:
    """Seconds of one step of each kind: of the best stretch, and of the median one."""
    clock = clock or (time.process_time if torch.get_num_threads() == 1 else time.perf_counter)
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(turns):
        for kind, step in kinds.items():
            began = clock()
            for _ in range(stretch):
                step()
            seconds[kind].append((clock() - began) / stretch)
    return {kind: {"best": min(found), "median": statistics.median(found)} for kind, found in seconds.items()}


def floor(n_parameters: int, forward_backward: float, normals: float | None = None) -> dict[str, float]:
    """The counted floor, with the rates measured here; normals are torch's if no others are."""
    a, b = torch.rand(n_parameters), torch.rand(n_parameters)
    rates = take_turns({"normals": lambda: a.normal_(), "copy": lambda: b.copy_(a)}, 50, 5)
    drawn, copy = normals or rates["normals"]["best"], rates["copy"]["best"]
    return {"normals": drawn, "copy": copy, "floor": forward_backward + drawn + UNAVOIDABLE * copy / 2}


def measure(name: str, batch: int, turns: int, stretch: int) -> dict[str, object]:
    """All optimisers on one network."""
    make, shape = {
        "mlp": (dense.MLP, (784,)),
        "resnet20": (lambda: ResNet20(norm="frn"), (3, 32, 32)),
    }[name]
    X, y = torch.rand(batch, *shape), torch.randint(0, 10, (batch,))
    kinds = {kind: stepper(kind, make, X, y) for kind in ("pass", "adam", "adam_foreach", "adam_fused", "ivon")}
    try:
        kinds["ivon_opt"] = stepper("ivon_opt", make, X, y)
    except ImportError:
        print("ivon-opt is not installed: no comparison with it")
    seconds = take_turns(kinds, turns, stretch)
    n_parameters = sum(p.numel() for p in make().parameters())
    counted = floor(n_parameters, seconds["pass"]["best"])
    ratios = {"ivon_over_floor": seconds["ivon"]["best"] / counted["floor"]}
    for which in ("best", "median"):
        ours = seconds["ivon"][which]
        ratios[f"ivon_over_adam_{which}"] = ours / seconds["adam"][which]
        ratios[f"ivon_over_fused_adam_{which}"] = ours / seconds["adam_fused"][which]
        if "ivon_opt" in seconds:
            ratios[f"ivon_opt_over_ivon_{which}"] = seconds["ivon_opt"][which] / ours
    print(f"{name}, batch {batch}: " + ", ".join(f"{kind} {1e3 * s['best']:.2f} ms" for kind, s in seconds.items()))
    print("  " + ", ".join(f"{kind} {ratio:.2f}" for kind, ratio in ratios.items()))
    found = {"seconds": seconds, "counted": counted, "ratios": ratios}
    return {"model": name, "batch": batch, "parameters": n_parameters, **found}


Solver = AdamSteps | IVONSteps


Work = tuple[network.Network, list[network.Rows], LocalProblem, dict[str, Solver]]


def clients_of(batch: int, clients: int = CLIENTS) -> Work:
    """Clients with the MLP, and what solves their problems."""
    torch.manual_seed(0)
    net = network.Network(dense.MLP(), torch.device("cpu"))
    data = [network.Rows(torch.rand(ROWS, 784), torch.randint(0, 10, (ROWS,))) for _ in range(clients)]
    start = net.start
    problem = LocalProblem(
        start=start,
        centre=start[None],
        precision=torch.ones(1, len(start)),
        linear=torch.zeros(clients, len(start)),
        curvature=torch.zeros(clients, len(start)),
        rho=torch.ones(clients, 1),
        scale=torch.full((clients, 1), 1.0 / ROWS),
    )
    return net, data, problem, {"adam": AdamSteps(EPOCHS, batch), "ivon": IVONSteps(EPOCHS, batch, lr=0.1)}


@contextmanager
def in_torch() -> Iterator[None]:
    """As without Numba."""
    with patch.object(arithmetic, "IS_COMPILED", False):
        yield


def ways_to_work(batch: int) -> dict[str, Callable[[], None]]:
    """Local work of ten clients at once and one after the other, by IVON and by Adam, and at once in torch."""
    net, data, problem, solvers = clients_of(batch)

    def batched(solver: Solver) -> None:
        steps.local_work(net, data, problem, solver, list(range(CLIENTS)), {})

    def stacked(solver: Solver) -> None:
        with in_torch():
            batched(solver)

    def sequential(solver: Solver) -> None:
        for k in range(CLIENTS):
            steps.local_work(net, [data[k]], problem.of([k]), solver, [k], {})

    ways = {"batched": batched, "sequential": sequential, "in_torch": stacked}
    return {f"{name}_{way}": partial(work, solver) for name, solver in solvers.items() for way, work in ways.items()}


def threads(number: int, batch: int, turns: int) -> dict[str, object]:
    """Wall seconds of a client-step with one thread and with `number`."""

    def with_threads(count: int, work: Callable[[], None]) -> None:
        torch.set_num_threads(count)
        work()

    before = torch.get_num_threads()
    kinds = {
        f"{kind}_{count}": partial(with_threads, count, work)
        for kind, work in ways_to_work(batch).items()
        for count in (1, number)
    }
    load = [os.getloadavg()[0]] if hasattr(os, "getloadavg") else []
    found = take_turns(kinds, turns, 1, time.perf_counter)
    load += [os.getloadavg()[0]] if load else []
    torch.set_num_threads(before)
    client_steps = CLIENTS * EPOCHS * -(-ROWS // batch)
    seconds = {kind: {which: x / client_steps for which, x in times.items()} for kind, times in found.items()}
    ratios = {
        f"{name}_{way}_{count}_over_batched_{number}": seconds[f"{name}_{way}_{count}"]["best"]
        / seconds[f"{name}_batched_{number}"]["best"]
        for name in ("adam", "ivon")
        for way, count in (("sequential", number), ("sequential", 1), ("batched", 1), ("in_torch", number))
    }
    print(f"threads, batch {batch}: " + ", ".join(f"{kind} {ratio:.2f}" for kind, ratio in ratios.items()))
    return {"threads": number, "batch": batch, "load": load, "seconds_per_client_step": seconds, "ratios": ratios}


def local_steps(turns: int) -> dict[str, object]:
    """A client-step of ten clients' local work, its floor, and a step of the optimisers, in one run."""
    net, data, _, solvers = clients_of(BATCH)
    start, client_steps = net.start, CLIENTS * EPOCHS * -(-ROWS // BATCH)
    out, key = torch.empty_like(start), noise_key(0)
    X, y = data[0].X[:BATCH], data[0].y[:BATCH]
    slope_at = partial(net.likelihood.slope, y=y[None], weights=torch.full((1, BATCH), 1.0 / BATCH))
    once = {
        "gradient": lambda: net.gradient(start[None], out[None], X[None], slope_at, {}),
        "normals": lambda: normals(out, key, 0),
        "adam_optimiser": stepper("adam", dense.MLP, X, y),
        "ivon_optimiser": stepper("ivon", dense.MLP, X, y),
    }
    try:
        once["ivon_opt"] = stepper("ivon_opt", dense.MLP, X, y)
    except ImportError:
        print("ivon-opt is not installed: no comparison with it")

    def often(work: Callable[[], None]) -> None:
        for _ in range(FEW):
            work()

    all_kinds = {**{kind: partial(often, work) for kind, work in once.items()}, **ways_to_work(BATCH)}
    found = take_turns(all_kinds, turns, 1)
    counts = {kind: FEW if kind in once else client_steps for kind in found}
    seconds = {kind: {which: x / counts[kind] for which, x in times.items()} for kind, times in found.items()}
    counted = floor(len(start), seconds["gradient"]["best"], seconds["normals"]["best"])
    ratios = {"ivon_over_floor": seconds["ivon_sequential"]["best"] / counted["floor"]}
    for which in ("best", "median"):
        ours = seconds["ivon_sequential"][which]
        ratios[f"ivon_over_adam_{which}"] = ours / seconds["adam_sequential"][which]
        ratios[f"ivon_over_adam_optimiser_{which}"] = ours / seconds["adam_optimiser"][which]
        if "ivon_opt" in seconds:
            ratios[f"ivon_opt_over_ivon_{which}"] = seconds["ivon_opt"][which] / ours
        for name in solvers:
            for way in ("sequential", "in_torch"):
                ratio = seconds[f"{name}_{way}"][which] / seconds[f"{name}_batched"][which]
                ratios[f"{name}_{way}_over_batched_{which}"] = ratio
    print("local work: " + ", ".join(f"{kind} {1e3 * s['best']:.2f} ms" for kind, s in seconds.items()))
    print("  " + ", ".join(f"{kind} {ratio:.2f}" for kind, ratio in ratios.items()))
    return {"seconds_per_client_step": seconds, "counted": counted, "ratios": ratios}


def stacks(turns: int, clients: int = 100) -> dict[str, object]:
    """Seconds of a client-step of many clients in torch and one thread, in stacks of several sizes."""
    net, data, problem, solvers = clients_of(64, clients)
    client_steps = clients * EPOCHS * -(-ROWS // 64)

    def work(solver: Solver, size: int) -> None:
        with in_torch(), patch.object(steps, "STACK", size * len(net.start)):
            steps.local_work(net, data, problem, solver, list(range(clients)), {})

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    found: dict[str, object] = {"clients": clients, "batch": 64}
    try:
        for name, solver in solvers.items():
            kinds = {str(size): partial(work, solver, size) for size in (1, 5, clients)}
            seconds = {size: times["best"] / client_steps for size, times in take_turns(kinds, turns, 1).items()}
            found[name] = seconds
            words = ", ".join(f"{size}: {1e3 * each:.2f} ms" for size, each in seconds.items())
            print(f"{clients} clients, {name}, in stacks of {words}")
    finally:
        torch.set_num_threads(before)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="of everything but the comparison of threads")
    parser.add_argument("--against", type=int, default=os.cpu_count() or 1, help="threads to compare with one")
    parser.add_argument("--out", type=Path, default=RESULTS / "torch_ivon.json")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    content = {
        "machine": {**machine(), "torch": torch.__version__, "threads": arguments.threads},
        "ten_mlp_clients": local_steps(turns=5),
        "stacks": stacks(turns=1),
        "threads": [threads(arguments.against, batch, turns=3) for batch in (32, 64)],
        "steps": [measure("mlp", 32, 150, 4), measure("mlp", 64, 150, 4), measure("resnet20", 64, 6, 1)],
    }
    write_json(arguments.out, content)


if __name__ == "__main__":
    main()
