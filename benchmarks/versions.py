"""Times of this checkout over those of another one, such as an earlier commit's.

    git worktree add --detach ../earlier b93a714
    OPENBLAS_NUM_THREADS=1 python benchmarks/versions.py ../earlier

Three processes keep the package loaded: one with this checkout, and two with the other. They run the same problem in
turns, forwards and backwards, so that other work on the machine falls on all; the two that are the same say how far a
ratio can be trusted. They are started anew several times, because where memory lies is drawn once a process. The clock
is that of the process, with one thread. The first run of each is not counted. A problem's answers are compared: a ratio
of two different computations would say nothing. Imports, and commands, are timed as whole processes in turns: their
user and system seconds.
"""

from __future__ import annotations

import argparse
import math
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

Problem = Callable[[], Any]
"""A run, which returns numbers that both checkouts must agree on."""


def core_problems() -> dict[str, Problem]:
    """Rounds of the core: methods, families and losses, few parameters and many."""
    import bayesadmm_np as ba

    methods, families, losses = ba.methods, ba.families, ba.losses
    rng = np.random.default_rng(0)

    def sites(n_sites: int, n: int, d: int, kind: str) -> list[Any]:
        found = []
        truth = rng.standard_normal(d) / math.sqrt(d)
        for _ in range(n_sites):
            X = rng.standard_normal((n, d))
            z = X @ truth
            if kind == "logistic":
                found.append(losses.Logistic(X, (z + rng.logistic(size=n) > 0).astype(int)))
            elif kind == "poisson":
                found.append(losses.Poisson(X, rng.poisson(np.exp(0.3 * z))))
            elif kind == "softmax":
                found.append(losses.Softmax(X, rng.integers(0, 5, n), n_classes=5))
            else:
                found.append(losses.LeastSquares(X, z + rng.standard_normal(n)))
        return found

    def run(method: Any, clients: Any, family: Any, rounds: int, d: int, repeat: int = 1) -> Problem:
        def work() -> Any:
            for _ in range(repeat):
                # a prior of its own: it keeps its factor
                result = ba.run(method, clients, family(np.zeros(d), 1.0), rounds=rounds)
            return result.posterior.mean[:5], result.rounds

        return work

    Full, Diagonal, Isotropic = families.FullGaussian, families.DiagonalGaussian, families.IsotropicGaussian
    small, tall = sites(2, 7, 3, "logistic"), sites(5, 1000, 50, "logistic")
    wide = sites(3, 100, 300, "logistic")
    ridge, softmax, poisson = sites(5, 300, 400, "ridge"), sites(2, 100, 40, "softmax"), sites(4, 300, 20, "poisson")
    return {
        "BayesADMM, full, logistic, d = 3": run(methods.BayesADMM(rho=1.0), small, Full, 20, 3, repeat=3),
        "PVI, full, logistic, d = 3": run(methods.PVI(0.5), small, Full, 20, 3, repeat=3),
        "PVI, full, logistic, d = 50": run(methods.PVI(0.2), tall, Full, 5, 50),
        "BayesADMM, diagonal, logistic, d = 50": run(methods.BayesADMM(rho=1.0), tall, Diagonal, 5, 50),
        "PVI, full, logistic, d = 300": run(methods.PVI(0.25), wide, Full, 1, 300),
        "ADMM, logistic, d = 50": run(methods.ADMM(rho=1.0), tall, Isotropic, 10, 50),
        "ADMM, logistic, d = 3": run(methods.ADMM(rho=1.0), small, Isotropic, 50, 3, repeat=3),
        "FedLap-Cov, full, logistic, d = 50": run(methods.FedLapCov(0.2), tall, Full, 10, 50),
        "FedLap-Cov, full, logistic, d = 300": run(methods.FedLapCov(0.25), wide, Full, 2, 300),
        "FedAvg, logistic, d = 50": run(methods.FedAvg(), tall, Isotropic, 10, 50),
        "BayesADMM, full, ridge, d = 400": run(methods.BayesADMM(rho=0.2), ridge, Full, 1, 400),
        "PVI, diagonal, softmax, d = 200": run(methods.PVI(0.25), softmax, Diagonal, 1, 200),
        "PVI, full, softmax, d = 200": run(methods.PVI(0.25), softmax, Full, 1, 200),
        "FedLap-Cov, full, softmax, d = 200": run(methods.FedLapCov(0.25), softmax, Full, 3, 200),
        "PVI, full, Poisson, d = 20": run(methods.PVI(0.25), poisson, Full, 5, 20),
    }


def network_problems() -> dict[str, Problem]:
    """Local work of networks, and the optimiser alone."""
    import torch
    from papers.networks import ZenkeCNN

    from bayesadmm_np import methods
    from bayesadmm_np.torch import IVON, IVONADMM, MLP, AdamSteps, IVONSteps, Rows, run

    torch.set_num_threads(1)
    source = torch.Generator().manual_seed(0)
    rows = [
        Rows(torch.rand(300, 784, generator=source), torch.randint(0, 10, (300,), generator=source)) for _ in range(5)
    ]
    images = [
        Rows(torch.rand(32, 3, 32, 32, generator=source), torch.randint(0, 10, (32,), generator=source))
        for _ in range(2)
    ]
    adam, sampled = AdamSteps(2, 32), IVONSteps(2, 32, lr=0.1)
    torch.manual_seed(0)
    plain, other = MLP((784, 200, 100, 10)), ZenkeCNN()

    def work(method: Any, solver: Any, batched: bool = True, clients: Any = rows, model: Any = plain) -> Problem:
        def once() -> Any:
            result = run(method, clients, model, 1.0, 1, solver=solver, temperature=0.1, batched=batched)
            return result.mean[:5].tolist()

        return once

    def optimiser(name: str) -> Problem:
        X, y = rows[0].X[:32], rows[0].y[:32]

        def once() -> Any:
            torch.manual_seed(0)
            model = MLP((784, 200, 100, 10))
            loss = torch.nn.functional.cross_entropy
            if name == "Adam":
                plain = torch.optim.Adam(model.parameters())
                for _ in range(100):
                    plain.zero_grad()
                    loss(model(X), y).backward()
                    plain.step()
            else:
                ivon = IVON(model.parameters(), lr=0.1, ess=6000.0, generator=torch.Generator().manual_seed(0))
                for _ in range(100):
                    with ivon.sampled_params(train=True):
                        ivon.zero_grad()
                        loss(model(X), y).backward()
                    ivon.step()
            return []  # the optimiser's own noise is not promised from version to version

        return once

    ivon_admm, fed_avg = IVONADMM(rho=1.0, gamma=0.1), methods.FedAvg()
    two = IVONSteps(2, 32, lr=0.1, samples=2)
    return {
        "IVON-ADMM, MLP, compiled": work(ivon_admm, sampled),
        "IVON-ADMM, MLP, one by one, compiled": work(ivon_admm, sampled, batched=False),
        "IVON-ADMM, MLP, two samples, in torch": work(ivon_admm, two),
        "IVON-ADMM, MLP, two samples, one by one": work(ivon_admm, two, batched=False),
        "IVON-ADMM, CNN, in torch": work(ivon_admm, sampled, clients=images, model=other),
        "FedAvg, MLP, compiled": work(fed_avg, adam),
        "FedAvg, MLP, one by one, compiled": work(fed_avg, adam, batched=False),
        "FedAvg, CNN, in torch": work(fed_avg, adam, clients=images, model=other),
        "FedLap-Cov, MLP, compiled": work(methods.FedLapCov(0.2), adam),
        "the optimiser IVON, 100 steps of the MLP": optimiser("IVON"),
        "torch's Adam, the same (a control)": optimiser("Adam"),
    }


PROBLEMS = {"core": core_problems, "networks": network_problems}

PROCESSES = {
    "import numpy, scipy.linalg, scipy.special (a control)": ["-c", "import numpy, scipy.linalg, scipy.special"],
    "import bayesadmm_np": ["-c", "import bayesadmm_np"],
    "import bayesadmm_np.estimators": ["-c", "import bayesadmm_np.estimators"],
    "import bayesadmm_np.torch": ["-c", "import bayesadmm_np.torch"],
    "bayesadmm --help": ["-m", "bayesadmm_np", "--help"],
    "bayesadmm fit --help": ["-m", "bayesadmm_np", "fit", "--help"],
}


def worker(which: str) -> None:
    """Run the problems that standard input names, and print what each took."""
    problems = PROBLEMS[which]()
    print("\t".join(problems), flush=True)
    for line in sys.stdin:
        began = time.process_time()
        answer = problems[line.strip()]()
        seconds = time.process_time() - began
        numbers = [x for part in answer for x in np.atleast_1d(part)]
        print(" ".join(repr(float(x)) for x in [seconds, *numbers]), flush=True)


def environment(folder: Path) -> dict[str, str]:
    """Return what makes a process import from the folder, keep what Python compiles, and use one thread."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": str(folder.resolve()), "OMP_NUM_THREADS": "1"}


class Checkout:
    """A folder with the package, and a process that runs problems with it."""

    def __init__(self, folder: Path, which: str):
        package = folder / "bayesadmm_np"
        if not package.is_dir():
            raise SystemExit(f"{folder} has no folder bayesadmm_np: name a checkout.")
        command = [sys.executable, "-P", str(Path(__file__).resolve()), "--worker", which]
        self.process = subprocess.Popen(
            command, env=environment(folder), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.names = self._read().split("\t")

    def _read(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("A checkout's process ended; its message stands above.")
        return line.rstrip("\n")

    def run(self, name: str) -> tuple[float, np.ndarray]:
        """Return what one run of a problem took, and its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(name + "\n")
        self.process.stdin.flush()
        took, *answer = map(float, self._read().split())
        return took, np.array(answer)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def process_seconds(folder: Path, arguments: list[str]) -> float:
    """Return the user and system seconds of a whole process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-P", *arguments], env=environment(folder), check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def in_turns(sides: list[Callable[[], float]], turns: int) -> list[list[float]]:
    """Time all sides, forwards and backwards by turns."""
    found: list[list[float]] = [[] for _ in sides]
    for turn in range(turns):
        order = range(len(sides)) if turn % 2 == 0 else reversed(range(len(sides)))
        for side in order:
            found[side].append(sides[side]())
    return found


def row(name: str, found: list[list[float]], note: str = "") -> None:
    """Print a row of the table: medians in ms, and the median ratio of a turn, here and of the other with itself."""
    ours, theirs, again = found
    ratios = [statistics.median(a / b for a, b in zip(side, theirs, strict=True)) for side in (ours, again)]
    a, b = (1e3 * statistics.median(side) for side in (ours, theirs))
    print(f"| {name} | {a:.0f} | {b:.0f} | {ratios[0]:.2f} | {ratios[1]:.2f} |{note}", flush=True)


def compare(which: str, folders: list[Path], like: str, starts: int, turns: int) -> None:
    """Time the problems of a kind, or whole processes."""
    found: dict[str, list[list[float]]] = {}
    notes: dict[str, str] = {}
    for _ in range(starts):
        if which == "processes":
            for name, command in PROCESSES.items():
                if like in name:
                    sides = [partial(process_seconds, folder, command) for folder in folders]
                    for side in sides:
                        side()  # writes what Python compiles
                    times = in_turns(sides, turns)
                    found[name] = [a + b for a, b in zip(found.get(name, [[]] * 3), times, strict=True)]
            continue
        checkouts = [Checkout(folder, which) for folder in folders]
        for name in checkouts[0].names:
            if like in name:
                answers = [checkout.run(name)[1] for checkout in checkouts]
                if answers[0].shape != answers[1].shape or not np.allclose(*answers[:2], rtol=1e-3, atol=1e-4):
                    notes[name] = f" other answers: {answers[0]}, {answers[1]}"
                times = in_turns([lambda c=c, name=name: c.run(name)[0] for c in checkouts], turns)
                found[name] = [a + b for a, b in zip(found.get(name, [[]] * 3), times, strict=True)]
        for checkout in checkouts:
            checkout.close()
    for name, times in found.items():
        row(name, times, notes.get(name, ""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="the other checkout")
    parser.add_argument("--starts", type=int, default=4, help="how often the processes are started")
    parser.add_argument("--turns", type=int, default=5, help="turns of each start")
    parser.add_argument("--only", choices=[*PROBLEMS, "processes"], action="append")
    parser.add_argument("--like", default="", help="problems whose name holds this")
    parser.add_argument("--worker", choices=list(PROBLEMS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.worker)
        return
    if arguments.folder is None:
        parser.error("name the other checkout")
    folders = [Path(__file__).resolve().parent.parent, arguments.folder, arguments.folder]
    print("| | here, ms | there, ms | ratio | there again |\n|---|---:|---:|---:|---:|")
    for which in arguments.only or [*PROBLEMS, "processes"]:
        compare(which, folders, arguments.like, arguments.starts, arguments.turns)


if __name__ == "__main__":
    main()
