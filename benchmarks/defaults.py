r"""Every method of networks without an argument, on equal and on skewed clients: scores after 10 and 30 rounds.

python benchmarks/defaults.py --seeds 3                        # digits and a regression, into benchmarks/results
BAYESADMM_DATA=folder python benchmarks/defaults.py --fashion  # and 10 % of Fashion-MNIST, one seed
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from time import process_time
from typing import Any

import numpy as np
import torch
from common import RESULTS
from sklearn.datasets import make_friedman1

from bayesadmm_np import methods
from bayesadmm_np.data import load_digits, load_fashion_mnist, partition
from bayesadmm_np.torch import IVONADMM, IVONPVI, MLP, FedLapFunc, FedLaplace, Gaussian, Rows, run

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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        settings = task.settings | {"rounds": rounds, "seed": seed, "evaluate_every": 5, "ensemble": 2} | more
        result = run(method, task.clients, task.model(), evaluate=task.held, callback=note, **settings)
    objective = result.objective
    rose = bool(len(objective) and objective[-1] > result.state.start_objective)
    row = {"status": result.status.name, "rounds": result.rounds, "rose": rose, "seconds": process_time() - began}
    return row | {"scores": [round(kept[number], 4) if number in kept else None for number in at]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--fashion", action="store_true")
    parser.add_argument("--only", nargs="*", help="names of methods")
    parser.add_argument("--out", default=str(RESULTS / "defaults.json"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    found: list[dict[str, Any]] = []
    for seed in range(args.seeds):
        for task in tasks(seed, args.fashion):
            for name, method in METHODS.items():
                if args.only and name not in args.only:
                    continue
                row = {"task": task.name, "method": name, "seed": seed} | measured(task, method(), seed)
                found.append(row)
                print(f"{task.name:26} {name:12} {seed} {row['status']:20} {row['scores']} {row['rose']:d}", flush=True)
    with open(args.out, "w", encoding="utf-8") as file:
        json.dump({"torch": torch.__version__, "runs": found}, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
