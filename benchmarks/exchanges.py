"""Exchanges that the pooled mode takes: guarded Newton and FedLap-Cov from the sites' own fits, and Newton from zero.

Newton from zero, without a guard, is what DataSHIELD's `ds.glm` does. Columns are standardised, the intercept has a
flat prior, and the other coefficients have the prior precision 0 (where the maximum-likelihood estimate exists), 1 or
0.01. An exchange is one message down and one up, and the start is one. They count until every coefficient is within
1e-6 standard errors of the mode, which other code finds from all rows. Writes results/exchanges.json, and prints the
Markdown table of docs/benchmarks.md.

    BAYESADMM_DATA=/folder/with/the/tables python benchmarks/exchanges.py
"""

import argparse
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from common import RESULTS, machine, write_json
from practice import problems as practice_problems
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.preprocessing import scale
from statsmodels import datasets

import bayesadmm_np as ba

CLOSE = 1e-6
"""Standard errors."""
WORST = 1e10
"""Condition of the information, in units of one on the diagonal, from which on no mode is taken to exist."""
FURTHEST = 50.0
"""Largest coefficient per standard deviation of a mode that exists."""
MOST = 60
"""Rounds after which a method counts as lost."""
SITES = (2, 5, 10, 20)
PRECISIONS = (0.0, 1.0, 0.01)
LOSSES = {"logistic": ba.losses.Logistic, "poisson": ba.losses.Poisson, "squares": ba.losses.LeastSquares}
METHODS = {
    "guarded Newton": (ba.Guarded(ba.methods.Newton()), True),
    "FedLap-Cov": (ba.methods.FedLapCov(), True),
    "Newton from zero": (ba.methods.Newton(start="prior"), False),
}

Table = tuple[str, str, np.ndarray, np.ndarray]


def tables() -> Iterator[Table]:
    """Yield name, kind, standardised columns with an intercept last, and y, of the public data."""

    def design(X: Any) -> np.ndarray:
        return np.column_stack([scale(np.asarray(X, dtype=float)), np.ones(len(X))])

    spector = datasets.spector.load_pandas()
    yield "spector", "logistic", design(spector.exog), spector.endog.to_numpy(float)
    anes = datasets.anes96.load_pandas().data
    yield "anes96, vote", "logistic", design(anes[["selfLR", "age", "educ", "income"]]), anes["vote"].to_numpy(float)
    fair = datasets.fair.load_pandas()
    yield "fair, any", "logistic", design(fair.exog), (fair.endog > 0).to_numpy(float)
    randhie = datasets.randhie.load_pandas()
    yield "randhie", "poisson", design(randhie.exog), randhie.endog.to_numpy(float)
    X, y = load_breast_cancer(return_X_y=True)
    yield "breast cancer, 5 columns", "logistic", design(X[:, [0, 1, 4, 8, 9]]), y.astype(float)
    X, y = load_diabetes(return_X_y=True)
    yield "diabetes", "squares", design(X), y / np.std(y)


def splits(y: np.ndarray, rng: np.random.Generator) -> Iterator[tuple[str, np.ndarray]]:
    """Yield ways to give rows to sites: at random, and in the order of the labels."""
    for count in SITES:
        if len(y) >= 2 * count:
            yield f"random, {count}", rng.permutation(np.arange(len(y)) % count)
            ranks = np.argsort(np.argsort(y, kind="stable"), kind="stable")
            yield f"by label, {count}", ranks * count // len(y)


def problems() -> Iterator[tuple[str, str, str, np.ndarray, np.ndarray, np.ndarray]]:
    """Yield table, split, kind, X, y and the site of each row."""
    rng = np.random.default_rng(0)
    for name, X, y, site in practice_problems():
        if name not in ("separable", "four rows at four sites"):
            design = np.column_stack([scale(np.asarray(X, dtype=float)), np.ones(len(X))])
            yield name, "as it is", "logistic", design, np.asarray(y, dtype=float), np.asarray(site)
            if name == "heart disease":
                for split, other in splits(np.asarray(y), rng):
                    yield name, split, "logistic", design, np.asarray(y, dtype=float), other
    for name, kind, X, y in tables():
        for split, site in splits(y, rng):
            yield name, split, kind, X, y, site


def mode(loss: ba.losses.Total, prior: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the mode and its standard errors by damped Newton steps on all rows; None where there is no mode."""
    point = prior.mean
    for _ in range(200):
        precision = loss.hessian(point) + prior.precision
        gradient = loss.gradient(point) + prior.precision @ (point - prior.mean)
        units = np.sqrt(np.outer(np.diag(precision), np.diag(precision)))
        if np.linalg.cond(precision / units) > WORST or np.abs(point).max() > FURTHEST:
            return None
        step = np.linalg.solve(precision, gradient)
        if float(step @ gradient) < 1e-24:
            return point, np.sqrt(np.diag(np.linalg.inv(precision)))
        length, before = 1.0, _value(loss, prior, point)
        while not _value(loss, prior, point - length * step) <= before + 1e-12 * abs(before) and length > 1e-6:
            length *= 0.5
        point = point - length * step
    return None


def _value(loss: Any, prior: Any, point: np.ndarray) -> float:
    with np.errstate(over="ignore"):
        return float(loss.value(point) + 0.5 * (point - prior.mean) @ prior.precision @ (point - prior.mean))


def count(method: Any, losses: list[Any], prior: Any, target: tuple[np.ndarray, np.ndarray], from_sites: bool) -> Any:
    """Return the exchanges, the start among them, and the floats of one site; None where it does not get there."""
    best, errors = target
    found: list[int] = []

    def watch(record: Any, q: Any) -> bool:
        if np.abs((q.mean - best) / errors).max() <= CLOSE:
            found.append(record.round)
        return bool(found)

    options: dict[str, Any] = {"rounds": MOST, "tol": 1e-300, "callback": watch, "raise_on_failure": False}
    begun = method.start == "sites" or not from_sites
    if not begun:
        options["sites"] = ba.clients.own_fits(losses, prior)
        start = sum(options["sites"], prior.natural)
        if np.abs((prior.start().with_natural(start).mean - best) / errors).max() <= CLOSE:
            return 1, prior.natural.size
    with np.errstate(all="ignore"):
        result = ba.run(method, losses, prior, **options)
    if not found:
        return None
    rounds = found[0] + (0 if begun else 1)
    floats = sum(record.floats_down + record.floats_up for record in result.history[: found[0]]) // len(losses)
    return rounds, floats + (0 if begun else prior.natural.size)


def rows() -> Iterator[dict[str, Any]]:
    """Yield one result a problem, split and prior."""
    for name, split, kind, X, y, site in problems():
        losses = [LOSSES[kind](X[site == k], y[site == k]) for k in np.unique(site)]
        whole = ba.losses.Total([LOSSES[kind](X, y)])
        for precision in PRECISIONS:
            prior = ba.families.FullGaussian(np.zeros(X.shape[1]), np.diag([precision] * (X.shape[1] - 1) + [0.0]))
            target = mode(whole, prior)
            if target is None:
                yield {"problem": name, "split": split, "prior": precision, "mode": False}
                continue
            cells = {label: count(method, losses, prior, target, own) for label, (method, own) in METHODS.items()}
            yield {"problem": name, "split": split, "sites": len(losses), "prior": precision, "mode": True, **cells}


def main() -> None:
    """Write the results, or print their table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true", help="print the table of what is written already")
    path = RESULTS / "exchanges.json"
    if not parser.parse_args().table:
        found = []
        for row in rows():
            print(row, flush=True)
            found.append(row)
        write_json(path, {"machine": machine(), "rows": found})
    print(table(json.loads(path.read_text())["rows"]))


def table(found: list[dict[str, Any]]) -> str:
    """Return the Markdown table: mean (largest) exchanges with the start, floats of one site, and both countings."""
    cases = [row for row in found if row["mode"]]
    head = " | ".join(METHODS)
    lines = [f"| data | cases | {head} | floats of a site |", "|---|---:|" + "---:|" * (len(METHODS) + 1)]
    for name in [*dict.fromkeys(row["problem"] for row in cases), "all"]:
        own = [row for row in cases if name in ("all", row["problem"])]
        exchanges = [[row[label][0] for row in own] for label in METHODS]
        floats = [np.mean([row[label][1] for row in own]) for label in METHODS]
        cells = [f"{np.mean(counts):.1f} ({max(counts)})" for counts in exchanges]
        lines.append(f"| {name} | {len(own)} | {' | '.join(cells)} | {' / '.join(f'{x:.0f}' for x in floats)} |")
    zero = [row["Newton from zero"][0] for row in cases]
    for label in list(METHODS)[:2]:
        total = [row[label][0] for row in cases]
        few = np.mean([count - 1 <= 4 for count in total])
        after = np.mean([count - 1 <= other for count, other in zip(total, zero, strict=True)])
        whole = np.mean([count <= other for count, other in zip(total, zero, strict=True)])
        lines.append(
            f"\n{label}: at most four exchanges after the start in {few:.1%}; no more than Newton from zero in "
            f"{after:.1%} without the start, and in {whole:.1%} with it."
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
