"""Many clients as one computation against one after the other, on a GPU (or, to try the script, on a CPU).

    python benchmarks/torch_device.py --device cuda
    python benchmarks/torch_device.py --device cpu --clients 4 --rows 64 --out try.json

100 clients with the MLP 784-200-100-10 and 600 made rows each at batch 64, ten epochs by Adam and by IVON. Written are
the seconds of a client-step both ways and their ratio; the operations of its matrix products, counted, over that time,
beside the rate of a large matrix product in the same precision; by how much the device's memory grows while the clients
work, in vectors of the network's parameters a client, copies of their rows included; and what rounds take by `run`: the
first, in which torch may compile, a later one, and the same with its objective, by the clock on the wall, and so the
hundred of the MNIST row, without scores and checkpoints.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
from common import RESULTS, best_seconds, machine, write_json

from bayesadmm_np.splitting.methods import FedAvg
from bayesadmm_np.torch import IVONADMM, AdamSteps, IVONSteps, dense, network, run, steps
from bayesadmm_np.torch.problem import LocalProblem

Solver = AdamSteps | IVONSteps
BATCH, EPOCHS, ROUNDS = 64, 10, 100


def clients_of(count: int, rows: int, device: torch.device) -> list[network.Rows]:
    source = torch.Generator().manual_seed(0)
    X = torch.rand(count, rows, 784, generator=source).to(device)
    y = torch.randint(0, 10, (count, rows), generator=source).to(device)
    return [network.Rows(*both) for both in zip(X, y, strict=True)]


def problem_of(net: network.Network, clients: int, rows: int) -> LocalProblem:
    start = net.start
    sites = torch.zeros(clients, len(start), device=start.device)
    ones = torch.ones(clients, 1, device=start.device)
    return LocalProblem(start, start[None], torch.ones_like(start)[None], sites, sites.clone(), ones, ones / rows)


def seconds_of(work: Callable[[], object], device: torch.device, repeats: int = 3) -> float:
    """The shortest of several; the first call, which allocates and chooses kernels, is not among them."""

    def whole() -> None:
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    whole()
    return best_seconds(whole, repeats)


def flops_of(net: network.Network) -> int:
    """Of the matrix products of a client-step: forward, both backward, but none for the inputs of the network."""
    assert net.dense is not None
    sizes = [rows * columns for rows, columns in net.dense.shapes]
    return 2 * BATCH * (3 * sum(sizes) - sizes[0])


def matmul_rate(device: torch.device) -> float:
    """FLOP/s of a large matrix product in float32, under torch's settings."""
    n = 8192 if device.type == "cuda" else 1024
    a = torch.rand(n, n, device=device)
    return 2.0 * n**3 / seconds_of(lambda: a @ a, device)


def both_ways(data: list[network.Rows], net: network.Network, solver: Solver) -> dict[str, float]:
    """Seconds of a client-step, batched and one after the other, and the memory that a client takes at work."""
    device, whole = net.start.device, problem_of(net, len(data), len(data[0]))
    client_steps = sum(solver.steps_of(len(rows)) for rows in data)

    def batched() -> None:
        steps.local_work(net, data, whole, solver, list(range(len(data))), {})

    def sequential() -> None:
        for k, rows in enumerate(data):
            steps.local_work(net, [rows], whole.of([k]), solver, [k], {})

    found = {"batched": seconds_of(batched, device) / client_steps}
    found["sequential"] = seconds_of(sequential, device) / client_steps
    found["sequential_over_batched"] = found["sequential"] / found["batched"]
    found["flops_per_second"] = flops_of(net) / found["batched"]
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        batched()
        grown = torch.cuda.max_memory_allocated(device) - before
        found["grown_vectors_a_client"] = grown / (4 * len(net.start) * len(data))
    return found


def rounds_of(data: list[network.Rows], device: torch.device) -> dict[str, dict[str, float]]:
    """Seconds of rounds of `run`: the first and the third without their objectives, and the third on the wall."""
    rows = {
        "adam": (FedAvg(), AdamSteps(EPOCHS, BATCH)),
        "ivon": (IVONADMM(0.5, 1.0 / len(data)), IVONSteps(EPOCHS, BATCH, lr=0.1, clip_radius=0.002)),
    }
    found = {}
    for name, (method, solver) in rows.items():
        ends: list[float] = []
        options = {"device": str(device), "callback": lambda *_, ends=ends: ends.append(time.perf_counter())}
        history = run(method, data, dense.MLP(), rounds=3, solver=solver, **options).history
        found[name] = {"first": history[0].seconds, "later": history[2].seconds, "wall": ends[2] - ends[1]}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rows", type=int, default=600, help="of a client")
    parser.add_argument("--out", type=Path, default=RESULTS / "torch_device.json")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("there is no CUDA device here; --device cpu tries the script.")
    torch.manual_seed(0)
    net = network.Network(dense.MLP(), device)
    data = clients_of(arguments.clients, arguments.rows, device)
    peak = matmul_rate(device)
    content = {
        "machine": {**machine(), "torch": torch.__version__, "threads": torch.get_num_threads(), "device": device.type},
        "clients": arguments.clients,
        "rows": arguments.rows,
        "batch": BATCH,
        "matmul_flops_per_second": peak,
        "local_work": {},
        "seconds_of_a_round": rounds_of(data, device),
    }
    if device.type == "cuda":
        content["machine"]["gpu"] = torch.cuda.get_device_name(device)
    for name, solver in {
        "adam": AdamSteps(EPOCHS, BATCH),
        "ivon": IVONSteps(EPOCHS, BATCH, lr=0.1, clip_radius=0.002),
    }.items():
        found = both_ways(data, net, solver)
        found["of_matmul_rate"] = found["flops_per_second"] / peak
        content["local_work"][name] = found
        print(f"{name}: " + ", ".join(f"{key} {value:.3g}" for key, value in found.items()))
    for name, seconds in content["seconds_of_a_round"].items():
        wall = seconds["wall"]
        print(f"{name}: {wall:.2f} s a round of {EPOCHS} epochs, {ROUNDS * wall:.0f} s for {ROUNDS} rounds")
    write_json(arguments.out, content)


if __name__ == "__main__":
    main()
