"""Credit approval in "Connecting Federated ADMM to Bayes": ten equal clients (Table 4), and two of them (App. D.2).

BAYESADMM_DATA=folder python benchmarks/credit.py        # into benchmarks/results/credit.json; some 8 minutes

Table 4: every method with the sweep of App. E.2, five, ten and 20 epochs of Adam (batches of 4, rate 1e-3) and three
values of its own; the accuracy is the mean of three rounds, of three splits. The paper shows the best setting, on rows
that it does not name; here are the best and the worst of nine by test accuracy at round 100.

App. D.2: two equal clients. FedLap's optimum has the prior N(0, 1/δ), FedDyn's has none. Counted are the rounds until
the training loss stays within one per cent of that optimum's, with exact clients and with the paper's 1000 steps of
Adam on all rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import bayesadmm_np as ba
from bayesadmm_np import data
from bayesadmm_np.demos import shared, tabular

OUT = Path(__file__).parent / "results" / "credit.json"
SEEDS, ROUNDS, REPORT, K = (62, 63, 64), 100, (10, 25, 50, 100), 10
EPOCHS, VALUES = (5, 10, 20), (0.1, 1.0, 10.0)
WITHOUT = 1e-4
"""δ of a fit without a prior: of one that has a solution, since some columns are constant within a client."""

Row = tuple[Callable[[float], Any], Any, bool]
METHODS: dict[str, Row] = {
    "FedAvg": (lambda _: ba.methods.FedAvg("equal"), ba.families.IsotropicGaussian, True),
    "FedProx": (ba.methods.FedProx, ba.families.IsotropicGaussian, False),
    "FedDyn": (lambda rho: ba.methods.FedDyn(rho, "equal"), ba.families.IsotropicGaussian, False),
    "FedLap": (lambda _: ba.methods.FedLap("rows"), ba.families.FixedPrecisionGaussian, True),
    "FedLapCov": (lambda _: ba.methods.FedLapCov(1 / K), ba.families.DiagonalGaussian, True),
}
"""Method by the swept value, its family, and whether that value is δ; otherwise it is ρ, and δ is `WITHOUT`."""


def rows() -> tuple[Any, Any, Any, Any]:
    credit = data.load_credit_approval(seed=0)
    return shared.with_ones(credit.X), credit.y, shared.with_ones(credit.X_test), credit.y_test


def table_4() -> dict[str, Any]:
    """Accuracy by round of every method and setting: mean over seeds, and each seed at the reported rounds."""
    X, y, X_test, y_test = rows()
    found: dict[str, Any] = {}
    for label, (method, family, is_prior) in METHODS.items():
        found[label] = []
        for epochs in EPOCHS:
            for value in VALUES:
                curves = []
                for seed in SEEDS:
                    parts = data.partition.iid(len(y), K, np.random.default_rng(seed))
                    clients = [ba.losses.Logistic(X[part], y[part]) for part in parts]
                    prior = family(np.zeros(X.shape[1]), value if is_prior else WITHOUT)
                    curve: list[float] = []

                    def note(_: Any, q: Any, curve: list[float] = curve) -> None:
                        curve.append(float(np.mean((X_test @ q.mean > 0) == (y_test == 1))))

                    own = {"solver": tabular.LocalAdam(epochs), "seed": seed, "callback": note}
                    ba.run(method(value), clients, prior, ROUNDS, raise_on_failure=False, tol=1e-12, **own)
                    curves.append(curve)
                lost = sum(len(curve) < ROUNDS for curve in curves)
                means = [[float(np.mean(c[at - 3 : at])) for c in curves] for at in REPORT] if not lost else None
                found[label].append({"epochs": epochs, "value": value, "lost": lost, "accuracy": means})
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
    for value in (*VALUES, 100.0):
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
    found = {"seeds": SEEDS, "report": REPORT, "table 4": table_4(), "two clients": two_clients()}
    OUT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
