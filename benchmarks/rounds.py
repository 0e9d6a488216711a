"""Rounds to 1 % and to 1e-6 above the pooled optimum, per method: the currency of federated learning.

    python benchmarks/rounds.py                          # everything; hours on two cores
    python benchmarks/rounds.py --only digits-diagonal   # one problem

Finished rows are kept in benchmarks/results/rounds.json and are not run again with the same settings. MNIST is found
through the environment variable BAYESADMM_DATA, or downloaded.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
from common import N_CLASSES, RESULTS, digits, machine, mnist, softmax_clients, write_json
from cost_tables import LEVELS, reached
from tqdm import tqdm

import bayesadmm_np as ba

CLOSE, _, EXACT = LEVELS
HOPELESS = 15
"""A run whose objective stayed above that of the prior for so many rounds is stopped."""
DELTA, N_CLIENTS = 10.0, 5


@dataclass(frozen=True)
class Problem:
    """A data set and a family."""

    title: str
    data: Callable[[], tuple[np.ndarray, np.ndarray]]
    family: Callable[..., Any]
    cap: int
    dim: int


PROBLEMS = {
    "digits-diagonal": Problem("digits, diagonal (d = 650)", digits, ba.families.DiagonalGaussian, 150, 650),
    "mnist-diagonal": Problem(
        "MNIST 14×14, first 5000, diagonal (d = 1960)", lambda: mnist(14, 5000), ba.families.DiagonalGaussian, 150, 1960
    ),
    "digits-full": Problem("digits, full (d = 650)", digits, ba.families.FullGaussian, 60, 650),
    "mnist-full": Problem(
        "MNIST 7×7, first 5000, full (d = 490)", lambda: mnist(7, 5000), ba.families.FullGaussian, 60, 490
    ),
}

METHODS: dict[str, Any] = {
    "PVI": ba.methods.PVI(),
    "damped PVI, γ = 1/K": ba.methods.PVI(gamma=1.0 / N_CLIENTS),
    "AMA, ρ = 2": ba.methods.AMA(rho=2.0),
    "BregmanADMM, ρ = 1": ba.methods.BregmanADMM(rho=1.0),
    "BayesADMM, ρ = 1": ba.methods.BayesADMM(rho=1.0),
    "BayesADMM, ρ = 2": ba.methods.BayesADMM(rho=2.0),
    "accelerated PVI, γ = 0.4": ba.Accelerated(ba.methods.PVI(gamma=0.4)),
    "accelerated BayesADMM, ρ = 1": ba.Accelerated(ba.methods.BayesADMM(rho=1.0)),
    "PVI, Kronecker sites": ba.Sketched(ba.methods.PVI(), ba.losses.Kronecker(N_CLASSES)),
    "PVI, LowRank(32) sites": ba.Sketched(ba.methods.PVI(), ba.losses.LowRank(32)),
    "PVI, full sites": ba.Sketched(ba.methods.PVI(), "full"),
    "BLR, full sites": ba.Sketched(ba.methods.BLR(1.0), "full"),
}


class Bench:
    """The cache of finished rows, and the runs that fill it."""

    def __init__(self, path: Path, settings: dict[str, Any], seconds: float) -> None:
        self.path, self.settings, self.seconds = path, settings, seconds
        self.content: dict[str, Any] = {"machine": machine(), "pooled": {}, "rows": {}}
        if path.is_file():
            self.content = json.loads(path.read_text())

    def finished(self, kind: str, key: str) -> dict[str, Any] | None:
        """What is known under the same settings; a row that a shorter time limit had stopped is run again."""
        found = self.content[kind].get(key)
        if found is None or found["settings"] != self.settings:
            return None
        stopped = found.get("status") == "TIME_LIMIT" and found["cpu_seconds"] < 0.99 * self.seconds
        return None if stopped else found

    def keep(self, kind: str, key: str, row: dict[str, Any]) -> None:
        if self.path.is_file():  # another process may have finished other rows meanwhile
            self.content = json.loads(self.path.read_text())
        self.content[kind][key] = {**row, "settings": self.settings}
        write_json(self.path, self.content)

    @property
    def expectation(self) -> Any:
        return ba.losses.QuasiMonteCarlo(self.settings["points"])

    def pooled(self, name: str, clients: list[Any], prior: Any) -> float:
        """The objective of the centralised solution under the same rule."""
        known = self.finished("pooled", name)
        if known is None:
            began = process_time()
            answer = ba.solve_pooled(clients, prior, expectation=self.expectation)
            known = {"objective": answer.objective, "residual": answer.residual, "cpu_seconds": process_time() - began}
            self.keep("pooled", name, known)
        return known["objective"]

    def run(self, key: str, method: Any, clients: list[Any], prior: Any, optimum: float, cap: int, **options: Any):
        """Run until the gap has been below 1e-6 twice in a row, or failure, cap, hopelessness or the time limit."""
        gaps: list[float] = []
        first = sum(client.expect(prior, self.expectation).value for client in clients)
        worst = (first - optimum) / abs(optimum)
        began = process_time()
        with tqdm(total=cap, desc=key, unit="round", leave=False) as bar:

            def watch(record: Any, posterior: Any) -> bool:
                gaps.append(abs(record.objective - optimum) / abs(optimum))
                bar.update()
                bar.set_postfix(gap=f"{gaps[-1]:.1e}")
                hopeless = len(gaps) >= HOPELESS and min(gaps[-HOPELESS:]) > worst
                late = process_time() - began > self.seconds
                return hopeless or late or (len(gaps) > 1 and max(gaps[-2:]) <= EXACT)

            result = ba.run(
                method,
                clients,
                prior,
                rounds=cap,
                expectation=self.expectation,
                solver=ba.clients.VariationalNewton(tol=self.settings["solver_tol"]),
                tol=1e-12,
                warm_start=True,
                callback=watch,
                raise_on_failure=False,
                **options,
            )
        seconds = process_time() - began
        exact = len(gaps) > 1 and max(gaps[-2:]) <= EXACT
        status = result.status.name
        if status == "STOPPED" and not exact:
            status = "ABOVE_START" if len(gaps) >= HOPELESS and min(gaps[-HOPELESS:]) > worst else "TIME_LIMIT"
        iterations = [[client.iterations for client in record.clients] for record in result.history]
        return {
            "status": status,
            "message": result.message,
            "rounds": result.rounds,
            "to_1_percent": reached(gaps, CLOSE),
            "to_1e-6": reached(gaps, EXACT) if exact else None,
            "gaps": [float(f"{gap:.4g}") for gap in gaps],
            "ill_posed_rounds": sum(not all(c.well_posed for c in record.clients) for record in result.history),
            "client_iterations": float(np.mean(iterations)) if iterations else None,
            "cpu_seconds": round(seconds, 1),
            "floats": [record_floats(result, name) for name in ("floats_up", "floats_down")],
        }


def record_floats(result: Any, name: str) -> int | None:
    """Numbers of one client in the last round; None where no round was completed."""
    return round(getattr(result.history[-1], name) / N_CLIENTS) if result.history else None


def fill(bench: Bench, names: list[str], methods: list[str]) -> None:
    """Run every row that is not finished, problem by problem."""
    with tqdm(total=len(names) * len(methods), desc="rows", unit="row") as bar:
        for name in names:
            problem = PROBLEMS[name]
            clients, prior = None, None
            for label in methods:
                if getattr(METHODS[label], "sites", None) and problem.family is not ba.families.DiagonalGaussian:
                    bar.update()
                    continue
                for safeguard in (False, True):
                    key = f"{name} | {label}{' | safeguard' if safeguard else ''}"
                    if bench.finished("rows", key) is not None:
                        continue
                    if safeguard and not safeguard_matters(METHODS[label], bench.finished("rows", key[:-12])):
                        continue
                    if clients is None:
                        X, y = problem.data()
                        clients = softmax_clients(X, y, N_CLIENTS)
                        prior = problem.family(np.zeros(clients[0].dim), DELTA)
                        optimum = bench.pooled(name, clients, prior)
                    row = bench.run(key, METHODS[label], clients, prior, optimum, problem.cap, safeguard=safeguard)
                    bench.keep("rows", key, row)
                bar.update()


def safeguard_matters(method: Any, plain: dict[str, Any] | None) -> bool:
    """With α = 1 there is nothing to raise, and where every client stayed well posed nothing is raised."""
    row = method.method if isinstance(method, ba.Accelerated) else method
    if row.server_alpha(N_CLIENTS) == 1.0:
        return False
    if plain is None or isinstance(method, ba.Accelerated):  # a mix hides that the plain step was ill posed
        return True
    return plain["ill_posed_rounds"] > 0 or ba.Status.__members__.get(plain["status"], ba.Status.STOPPED).is_failure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PROBLEMS, action="append", help="problem to run (repeat for several)")
    parser.add_argument("--method", default="", help="run only methods whose name contains this")
    parser.add_argument("--points", type=int, default=256, help="quasi-Monte-Carlo points of the expectations")
    parser.add_argument("--solver-tol", type=float, default=1e-8, help="residual of the client solver")
    parser.add_argument("--seconds", type=float, default=np.inf, help="limit of one row in processor seconds")
    parser.add_argument("--results", type=Path, default=RESULTS / "rounds.json", help="the cache of finished rows")
    arguments = parser.parse_args()
    settings = {"points": arguments.points, "solver_tol": arguments.solver_tol}
    bench = Bench(arguments.results, settings, arguments.seconds)
    fill(bench, arguments.only or list(PROBLEMS), [name for name in METHODS if arguments.method in name])


if __name__ == "__main__":
    main()
