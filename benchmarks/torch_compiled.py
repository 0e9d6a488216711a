"""What compiled clients gain and cost: local work of the same clients with Numba and without, in turns in one run.

    OPENBLAS_NUM_THREADS=1 python benchmarks/torch_compiled.py

Ten clients of 600 rows with the MLP 784-200-100-10, five epochs at batch 32, one thread and its own clock. "stacks" are
torch's with compiled normals, "torch" is what a machine without Numba does. The cost is what a process waits for: the
import of Numba, and the first client-steps with nothing kept on disk, and with what was kept.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
from common import RESULTS, machine, write_json
from torch_ivon import BATCH, CLIENTS, EPOCHS, ROWS, Solver, clients_of, in_torch, take_turns

from bayesadmm_np.torch import compiled, steps

FIRST = """
import time
from torch_ivon import clients_of, steps
import torch
torch.set_num_threads(1)
net, data, problem, solvers = clients_of(32, 1)
began = time.perf_counter()
import numba
imported = time.perf_counter()
for solver in solvers.values():
    steps.local_work(net, data, problem, solver, [0], {})
first = time.perf_counter()
for solver in solvers.values():
    steps.local_work(net, data, problem, solver, [0], {})
print(imported - began, (first - imported) - (time.perf_counter() - first))
"""


def ways() -> dict[str, Callable[[], None]]:
    """Local work of all clients, by each solver and in each way."""
    net, data, problem, solvers = clients_of(BATCH)

    def work(solver: Solver) -> None:
        steps.local_work(net, data, problem, solver, list(range(CLIENTS)), {})

    def stacks(solver: Solver) -> None:
        with patch.object(compiled, "does", lambda *_: False):
            work(solver)

    def in_torch_alone(solver: Solver) -> None:
        with in_torch():
            work(solver)

    kinds = {"compiled": work, "stacks": stacks, "torch": in_torch_alone}
    return {f"{name}_{kind}": partial(does, solver) for name, solver in solvers.items() for kind, does in kinds.items()}


def first_call(cache: Path) -> dict[str, float]:
    """Seconds of Numba's import, and of a new process's first call beyond those of its second."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", FIRST], cwd=Path(__file__).parent, env=environment, capture_output=True, check=True
    )
    imported, compiling = map(float, done.stdout.split())
    return {"import": imported, "first_call": compiling}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--out", type=Path, default=RESULTS / "torch_compiled.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    load = [os.getloadavg()[0]] if hasattr(os, "getloadavg") else []
    client_steps = CLIENTS * EPOCHS * -(-ROWS // BATCH)
    found = take_turns(ways(), arguments.turns, 1)
    seconds = {kind: {which: x / client_steps for which, x in times.items()} for kind, times in found.items()}
    ratios = {
        f"{name}_{way}_over_compiled_{which}": seconds[f"{name}_{way}"][which] / seconds[f"{name}_compiled"][which]
        for name in ("adam", "ivon")
        for way in ("stacks", "torch")
        for which in ("best", "median")
    }
    with tempfile.TemporaryDirectory() as folder:
        cost = {"nothing_kept": first_call(Path(folder)), "kept": first_call(Path(folder))}
    load += [os.getloadavg()[0]] if load else []
    content = {"machine": {**machine(), "torch": torch.__version__}, "load": load}
    print(ratios, cost)
    write_json(arguments.out, {**content, "seconds_per_client_step": seconds, "ratios": ratios, "cost": cost})


if __name__ == "__main__":
    main()
