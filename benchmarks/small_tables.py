"""Logistic regressions of "Connecting Federated ADMM to Bayes": heart (Table 1), credit (Table 4), and App. D.2.

BAYESADMM_DATA=folder python benchmarks/small_tables.py     # into benchmarks/results/small_tables.json; some 6 minutes

Every method has the paper's local work, Adam on batches of 4, with a sweep over three values of the method's own, and
for the heart data over epochs and the rate (App. E.2, E.3); credit has ten epochs alone. The accuracy is the mean of
three rounds, of three seeds. The paper shows the best setting, on rows that it does not name; here are the best and the
worst by test accuracy at the last round.

The heart data are split as FLamby splits them: 34 % of each hospital's rows to test on, drawn by scikit-learn's
`train_test_split` with random_state=43, stratified by the label. FLamby's columns are as the files have them; once more
they are standardised by each hospital's own training rows. Credit has ten equal random clients.

App. D.2: two equal clients of the credit data. FedLap's optimum has the prior N(0, 1/δ), FedDyn's has none. Counted are
the rounds until the training loss stays within one per cent of that optimum's, with exact clients and with the paper's
1000 steps of Adam on all rows.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split

import bayesadmm_np as ba
from bayesadmm_np import data
from bayesadmm_np.data.files import find
from bayesadmm_np.demos import shared, tabular

OUT = Path(__file__).parent / "results" / "small_tables.json"
SEEDS, VALUES = (62, 63, 64), (0.1, 1.0, 10.0)
CREDIT_WORK = [(10, 1e-3)]
HEART_WORK = [(epochs, rate) for epochs in (1, 5, 10) for rate in (1e-3, 1e-2)]
CREDIT_AT, HEART_AT = (10, 25, 50, 100), (10, 20)
LEVELS = {2: (2, 3, 4), 6: (1, 2)}
"""Chest pain and resting ECG: the levels that have an indicator."""
WITHOUT = 1e-4
"""δ of a fit without a prior: of one that has a solution, since some columns are constant within a client."""

Row = tuple[Callable[[float, int], Any], Any, bool]
METHODS: dict[str, Row] = {
    "FedAvg": (lambda _, K: ba.methods.FedAvg("equal"), ba.families.IsotropicGaussian, True),
    "FedProx": (lambda rho, K: ba.methods.FedProx(rho), ba.families.IsotropicGaussian, False),
    "FedDyn": (lambda rho, K: ba.methods.FedDyn(rho, "equal"), ba.families.IsotropicGaussian, False),
    "FedLap": (lambda _, K: ba.methods.FedLap("rows"), ba.families.FixedPrecisionGaussian, True),
    "FedLapCov": (lambda _, K: ba.methods.FedLapCov(1 / K), ba.families.DiagonalGaussian, True),
}
"""Method by the swept value and K, its family, and whether that value is δ; otherwise it is ρ, and δ is `WITHOUT`."""


def rows() -> tuple[Any, Any, Any, Any]:
    credit = data.load_credit_approval(seed=0)
    return shared.with_ones(credit.X), credit.y, shared.with_ones(credit.X_test), credit.y_test


def heart(is_standardised: bool) -> tuple[list[tuple[Any, Any]], Any, Any]:
    """The hospitals' training rows, and all test rows, split as FLamby splits them."""
    sites, tests = [], []
    for hospital in ("cleveland", "hungarian", "switzerland", "va"):
        path = find(None, f"processed.{hospital}.data")
        assert path is not None
        table = pd.read_csv(path, header=None, na_values="?").drop(columns=[10, 11, 12]).dropna()
        y = (table[13].to_numpy() > 0).astype(np.int64)
        parts = [table[[0, 1, 3, 4, 5, 7, 8, 9]].to_numpy(dtype=float)]
        parts += [(table[[c]].to_numpy() == level).astype(float) for c, levels in LEVELS.items() for level in levels]
        X, enough = np.concatenate(parts, axis=1), np.bincount(y, minlength=2).min() > 2
        share = {"test_size": 1.0 - 0.66, "train_size": 0.66, "random_state": 43}
        train, test = train_test_split(np.arange(len(y)), stratify=y if enough else None, **share)
        if is_standardised:
            sd = X[train].std(axis=0)
            X = (X - X[train].mean(axis=0)) / np.where(sd > 0, sd, np.inf)
        sites.append((shared.with_ones(X[train]), y[train]))
        tests.append((shared.with_ones(X[test]), y[test]))
    return sites, np.concatenate([X for X, _ in tests]), np.concatenate([y for _, y in tests])


def credit(seed: int) -> tuple[list[tuple[Any, Any]], Any, Any]:
    """Ten equal random clients, and the test rows."""
    X, y, X_test, y_test = rows()
    parts = data.partition.iid(len(y), 10, np.random.default_rng(seed))
    return [(X[part], y[part]) for part in parts], X_test, y_test


def swept(split: Callable[[int], Any], works: list[tuple[int, float]], report: tuple[int, ...]) -> dict[str, Any]:
    """Accuracy of every method and setting at the reported rounds: one list a round, of every seed."""
    found: dict[str, Any] = {}
    for label, (method, family, is_prior) in METHODS.items():
        found[label] = []
        for (epochs, rate), value in itertools.product(works, VALUES):
            curves = []
            for seed in SEEDS:
                sites, X_test, y_test = split(seed)
                clients = [ba.losses.Logistic(X, y) for X, y in sites]
                prior = family(np.zeros(X_test.shape[1]), value if is_prior else WITHOUT)
                curve: list[float] = []

                def note(_: Any, q: Any, at: Any = (curve, X_test, y_test)) -> None:
                    at[0].append(float(np.mean((at[1] @ q.mean > 0) == (at[2] == 1))))

                own = {"solver": tabular.LocalAdam(epochs, learning_rate=rate), "seed": seed, "callback": note}
                row = method(value, len(clients))
                ba.run(row, clients, prior, report[-1], raise_on_failure=False, tol=1e-12, **own)
                curves.append(curve)
            lost = sum(len(curve) < report[-1] for curve in curves)
            means = None if lost else [[float(np.mean(c[at - 3 : at])) for c in curves] for at in report]
            setting = {"epochs": epochs, "rate": rate, "value": value}
            found[label].append({**setting, "lost": lost, "accuracy": means})
        print(label, flush=True)
    return found


def loss_of(X: Any, y: Any, theta: Any, delta: float) -> float:
    margin = X @ theta
    return float(np.sum(np.logaddexp(0.0, margin) - y * margin) + 0.5 * delta * theta @ theta)


def two_clients() -> dict[str, Any]:
    """Rounds to one per cent of each method's own optimum, and the optima's NLL on test rows."""
    X, y, X_test, y_test = rows()
    halves = data.partition.iid(len(y), 2, np.random.default_rng(0))
    clients, whole = [ba.losses.Logistic(X[part], y[part]) for part in halves], [ba.losses.Logistic(X, y)]

    def ideal(delta: float) -> Any:
        prior = ba.families.FixedPrecisionGaussian(np.zeros(X.shape[1]), delta)
        return ba.solve_pooled(whole, prior, expectation=ba.losses.Delta(1)).posterior.mean

    def count(method: Any, family: Any, delta: float, target: float, solver: Any, most: int) -> int | None:
        near: list[bool] = []

        def note(_: Any, q: Any) -> None:
            near.append(abs(loss_of(X, y, q.mean, target) - best) <= 0.01 * best)

        best = loss_of(X, y, ideal(target), target)
        prior = family(np.zeros(X.shape[1]), delta)
        ba.run(method, clients, prior, most, tol=1e-12, raise_on_failure=False, solver=solver, callback=note)
        return shared.arrival(np.array([False, *near])) if near else None

    adam = tabular.LocalAdam(1000, batch=len(y))
    found: dict[str, Any] = {"FedLap": [], "FedDyn": []}
    for value in VALUES:
        for work, solver, most in (("exact", None, 300), ("Adam", adam, 300)):
            laplace = ba.methods.FedLap("rows"), ba.families.FixedPrecisionGaussian, value, value
            dynamic = ba.methods.FedDyn(value, "equal"), ba.families.IsotropicGaussian, WITHOUT, WITHOUT
            for label, setting in (("FedLap", laplace), ("FedDyn", dynamic)):
                rounds = count(*setting, solver, most)
                found[label].append({"value": value, "work": work, "rounds": rounds, "most": most})
                print(label, value, work, rounds, flush=True)
    nll = {str(delta): loss_of(X_test, y_test, ideal(delta), 0.0) / len(y_test) for delta in (1.0, WITHOUT)}
    return found | {"test NLL": nll, "test rows": len(y_test)}


def main() -> None:
    found: dict[str, Any] = {"seeds": SEEDS, "report": {"heart": HEART_AT, "credit": CREDIT_AT}}
    stages: dict[str, Callable[[], Any]] = {
        "heart": lambda: swept(lambda seed: heart(False), HEART_WORK, HEART_AT),
        "heart, standardised": lambda: swept(lambda seed: heart(True), HEART_WORK, HEART_AT),
        "two clients": two_clients,
        "credit": lambda: swept(credit, CREDIT_WORK, CREDIT_AT),
    }
    for name, stage in stages.items():
        found[name] = stage()
        OUT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
