r"""Every method of networks without an argument, on equal and on skewed clients: scores after 10 and 30 rounds.

python benchmarks/defaults.py --sweep digits,regression  # and the best of nearby settings; into benchmarks/results
BAYESADMM_DATA=folder python benchmarks/defaults.py --tasks fashion --seeds 0
"""

from __future__ import annotations

import argparse
import json
import platform
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from time import process_time
from typing import Any

import numpy as np
import torch
from common import RESULTS
from sklearn.datasets import make_friedman1

from bayesadmm_np import methods
from bayesadmm_np.data import load_digits, load_fashion_mnist, partition
from bayesadmm_np.torch import IVONADMM, IVONPVI, MLP, FedLapFunc, FedLaplace, Gaussian, IVONSteps, Rows, run

KEPT = RESULTS / "defaults.json"
METHODS: dict[str, Callable[..., Any]] = {
    "IVON-ADMM": IVONADMM,
    "IVON-PVI": IVONPVI,
    "BayesADMM": methods.BayesADMM,
    "PVI": methods.PVI,
    "FedIvon": methods.FedIvon,
    "FedLaplace": FedLaplace,
    "FedLap-Cov": methods.FedLapCov,
    "FedLap": methods.FedLap,
    "FedLap-Func": FedLapFunc,
    "ADMM": methods.ADMM,
    "FedDyn": methods.FedDyn,
    "FedProx": methods.FedProx,
    "FedAvg": methods.FedAvg,
}


@dataclass(frozen=True)
class Task:
    """Clients, rows for scores, the model, and what `run` needs beside them."""

    name: str
    clients: list[Rows]
    held: Rows
    model: Callable[[], torch.nn.Module]
    settings: dict[str, Any]


def rows(X: np.ndarray, y: np.ndarray) -> Rows:
    return Rows(torch.tensor(X, dtype=torch.float32), torch.tensor(y))


def label_split(y: np.ndarray, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Two labels a client, five for two clients; the rows of a label are dealt evenly to the clients that have it."""
    per_client = max(2, 10 // clients)
    owners: list[list[int]] = [[] for _ in range(10)]
    labels = np.concatenate([rng.permutation(10) for _ in range(clients * per_client // 10)])
    for i, label in enumerate(labels):
        owners[label].append(i % clients if clients < 10 else i // per_client)
    parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for label, mine in enumerate(owners):
        shuffled = rng.permutation(np.flatnonzero(y == label))
        for k, piece in zip(mine, np.array_split(shuffled, len(mine)), strict=True):
            parts[k].append(piece)
    return [np.concatenate(pieces) for pieces in parts]


@cache
def digits() -> tuple[np.ndarray, ...]:
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.X))
    X, y = data.X[order] / data.X.max(), data.y[order]
    return X[:1437], y[:1437], X[1437:], y[1437:]


@cache
def fashion() -> tuple[np.ndarray, ...]:
    data = load_fashion_mnist()
    order = np.random.default_rng(0).permutation(60_000)[:6_000]
    return data.X[order], data.y[order], data.X_test[:5_000], data.y_test[:5_000]


def images(name: str, sizes: tuple[int, ...], clients: int, equal: bool, seed: int) -> Task:
    X, y, *held = digits() if name == "digits" else fashion()
    rng = np.random.default_rng(seed)
    parts = partition.iid(len(X), clients, rng) if equal else label_split(y, clients, rng)
    split = "equal" if equal else "labels"
    own = [rows(X[part], y[part]) for part in parts]
    return Task(f"{name} K={clients} {split}", own, rows(*held), lambda: MLP(sizes), {})


def regression(clients: int, equal: bool, seed: int) -> Task:
    """Friedman's first function of five of ten inputs, standardised; unequal clients are quantiles of an input."""
    X, y = make_friedman1(1500, noise=1.0, random_state=seed)
    X, y = (X - X.mean(axis=0)) / X.std(axis=0), ((y - y.mean()) / y.std())[:, None]
    if equal:
        parts = partition.iid(1000, clients, np.random.default_rng(seed))
    else:
        parts = np.array_split(np.argsort(X[:1000, 3]), clients)
    own = [rows(X[part], y[part].astype(np.float32)) for part in parts]
    split = "equal" if equal else "quantiles"
    settings = {"likelihood": Gaussian(0.1)}
    held = rows(X[1000:], y[1000:].astype(np.float32))
    return Task(f"regression K={clients} {split}", own, held, lambda: MLP((10, 50, 1)), settings)


def tasks(seed: int, with_fashion: bool) -> Iterator[Task]:
    """Every task of a seed."""
    for equal in (True, False):
        for clients in (2, 5, 10):
            yield images("digits", (64, 50, 10), clients, equal, seed)
        for clients in (2, 5):
            yield regression(clients, equal, seed)
    if with_fashion and not seed:
        for equal in (True, False):
            yield images("fashion", (784, 200, 100, 10), 10, equal, seed)


SWEPT = ("IVON-ADMM", "IVON-PVI", "FedIvon", "FedLaplace", "FedLap-Cov", "FedLap", "FedDyn", "FedProx", "FedAvg")
"""Methods whose neighbours are tried; BayesADMM and PVI have the numbers of two of these, and ADMM nearly FedDyn's."""


def variants(method: Any, solver: Any) -> Iterator[tuple[Any, Any]]:
    """Settings in the neighbourhood of a default, one number changed at a time, at the same δ and τ."""
    is_point = not isinstance(solver, IVONSteps)
    for factor in (0.3, 3.0):
        for name in ("lr",) if is_point else ("hess_init", "clip_radius"):
            yield method, replace(solver, **{name: factor * getattr(solver, name)})
        if method.alpha is None or method.name == "FedProx":
            rho = max(factor, 0.3 if is_point else 0.6) * method.rho
            yield replace(method, rho=rho, dual_step=rho if is_point and method.dual_step else method.dual_step), solver
    if method.dual_step and not (is_point and method.alpha is None):
        for factor in (0.5, 1.5):
            yield replace(method, dual_step=factor * method.dual_step), solver
    if not is_point:
        yield method, replace(solver, hess_start="h0" if solver.hess_start == "server" else "server")


def measured(task: Task, method: Any, seed: int, rounds: int = 30, at: tuple[int, ...] = (10, 30), **more: Any) -> Any:
    """Status, and accuracy or R² at the server's mean after some rounds; None for a round that was not reached."""
    torch.manual_seed(seed)
    kept: dict[int, float] = {}

    def note(record: Any, state: Any) -> None:
        if record.at_mean is not None:
            y = task.held.y
            kept[record.round] = getattr(record.at_mean, "accuracy", float("nan"))
            if hasattr(record.at_mean, "rmse"):
                kept[record.round] = 1.0 - record.at_mean.rmse**2 / float(y.var(correction=0))

    began = process_time()
    settings = {"rounds": rounds, "seed": seed, "evaluate_every": 10, "ensemble": 1, "objective_every": 10}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = run(
            method, task.clients, task.model(), evaluate=task.held, callback=note, **task.settings, **settings | more
        )
    row = {"status": result.status.name, "rounds": result.rounds, "seconds": round(process_time() - began, 1)}
    return row | {"scores": [round(kept[number], 4) if number in kept else None for number in at]}


def compared(task: Task, name: str, seed: int, swept: bool) -> dict[str, Any]:
    """The default's row, and with it the best score of its neighbours after each number of rounds."""
    method = METHODS[name]()
    rounds = 10 if name == "FedLap-Func" or task.name.startswith("fashion") else 30
    row = {"task": task.name, "method": name, "seed": seed} | measured(task, method, seed, rounds)
    if swept and name in SWEPT:
        settings = run(method, task.clients, task.model(), rounds=0, objective_every=0, **task.settings).settings
        others = [measured(task, pair[0], seed, rounds, solver=pair[1]) for pair in variants(**settings)]
        best = [max(one["scores"][i] or -1.0 for one in [row, *others]) for i in range(2)]
        row |= {"best": best, "failed": sum(one["status"] != "ROUND_LIMIT" for one in others)}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1])
    parser.add_argument("--tasks", default="digits,regression", help="beginnings of their names, by commas")
    parser.add_argument("--sweep", default="", help="beginnings of tasks whose neighbours are tried, by commas")
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    args = parser.parse_args()
    torch.set_num_threads(1)
    kept = json.loads(KEPT.read_text(encoding="utf-8"))["runs"] if KEPT.exists() else []
    found = {(row["task"], row["method"], row["seed"]): row for row in kept}
    for seed in args.seeds:
        for task in tasks(seed, "fashion" in args.tasks):
            if not task.name.startswith(tuple(args.tasks.split(","))):
                continue
            swept = bool(args.sweep) and task.name.startswith(tuple(args.sweep.split(",")))
            for name in args.methods:
                if name == "FedLap-Func" and "likelihood" in task.settings:
                    continue  # it shares soft labels
                row = compared(task, name, seed, swept)
                key = (row["task"], name, seed)
                found[key] = found.get(key, {}) | row  # a sweep made before stays
                print(
                    f"{task.name:26} {name:12} {seed} {row['status']:12} {row['scores']} {row.get('best')}", flush=True
                )
            whole = {"torch": torch.__version__, "machine": platform.machine(), "runs": list(found.values())}
            KEPT.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
