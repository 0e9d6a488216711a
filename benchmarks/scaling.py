"""Cost of one iteration of a client's solve against N, d and K: shows N·d² + d³ and nothing worse.

    python benchmarks/scaling.py

Logistic loss, full covariance. One iteration is what VariationalNewton does between two iterates: a member from its
natural parameter (Cholesky), the expectations (N·d² for the variances, 2·N·d² for the Hessian), the merit (inverse,
for the trace of the KL term), the target and the whitened residual (2·d³). K clients that share the N rows cost K
times the d³ and once the N·d². Times are processor seconds with one BLAS thread, the best of several, so that other
jobs on the machine disturb them little.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
from common import RESULTS, best_seconds, dgemm_gflops, exponent, machine, write_json
from scipy.optimize import nnls
from threadpoolctl import threadpool_limits
from tqdm import tqdm

import bayesadmm_np as ba
from bayesadmm_np.losses import Auto

BASE_ROWS, BASE_DIM = 10_000, 200
ROWS = (1_000, 3_000, 10_000, 30_000, 100_000)
DIMS = (50, 100, 200, 400, 800, 1600)
CLIENTS = (2, 4, 8, 16, 32)
TALL, SMALL = 100_000, 500
"""Rows that make N·d² (TALL) or d³ (SMALL) the larger term in d."""


def clients_of(rows: int, dim: int, n_clients: int) -> list[ba.losses.Logistic]:
    rng = np.random.default_rng(rows + dim + n_clients)
    X = rng.standard_normal((rows, dim)) / np.sqrt(dim)
    y = (rng.random(rows) < 0.5).astype(int)
    return [ba.losses.Logistic(X[part], y[part]) for part in np.array_split(np.arange(rows), n_clients)]


def operations(rows: int, dim: int, n_clients: int) -> float:
    """N·d² for the variances, 2·N·d² for the Hessian; d³/3 Cholesky, 2/3 inverse and 2 whitening a client."""
    return 3.0 * rows * dim**2 + n_clients * (1 / 3 + 2 / 3 + 2) * dim**3


def seconds_of(rows: int, dim: int, n_clients: int, repeats: int) -> float:
    """Seconds of one iteration of all clients, best of `repeats`."""
    clients = clients_of(rows, dim, n_clients)
    prior = ba.families.FullGaussian(np.zeros(dim), 1.0)
    problems = [
        ba.clients.Subproblem(loss, Auto().resolve(loss.pointwise), prior, prior.natural.zeros(), 1.0)
        for loss in clients
    ]

    def iterate() -> None:
        for problem in problems:
            q = prior.with_natural(prior.natural)
            expected: Any = problem.expect(q)
            problem.merit(q, expected)
            q.whiten(problem.target(expected.natural_gradient) - q.natural)

    iterate()
    return best_seconds(iterate, repeats, process_time)


def sweep(repeats: int) -> list[dict[str, Any]]:
    series = [
        *(("N", (n, BASE_DIM, 1)) for n in ROWS),
        *(("d, many rows", (TALL, d, 1)) for d in DIMS[:4]),
        *(("d, few rows", (SMALL, d, 1)) for d in DIMS),
        *(("K", (BASE_ROWS, BASE_DIM, k)) for k in CLIENTS),
    ]
    measured = []
    for name, shape in tqdm(series, unit="point"):
        measured.append(
            {
                "series": name,
                "rows": shape[0],
                "dim": shape[1],
                "clients": shape[2],
                "seconds": seconds_of(*shape, repeats),
                "operations": operations(*shape),
            }
        )
    return measured


def model(measured: list[dict[str, Any]]) -> dict[str, Any]:
    """Fit seconds = a·N·d² + b·K·d³ + c·N + e·K, a, b, c, e >= 0, in relative error; nothing else is needed."""
    rows, dim, clients, seconds = (
        np.array([point[key] for point in measured], dtype=float) for key in ("rows", "dim", "clients", "seconds")
    )
    terms = np.column_stack([rows * dim**2, clients * dim**3, rows, clients])
    coefficients, _ = nnls(terms / seconds[:, None], np.ones(len(seconds)))
    ratios = seconds / (terms @ coefficients)
    for point, fitted in zip(measured, terms @ coefficients, strict=True):
        point["fitted_seconds"] = float(fitted)
    names = ("N d^2", "K d^3", "N", "K")
    return {
        "seconds_per": dict(zip(names, map(float, coefficients), strict=True)),
        "measured_over_fitted": [float(ratios.min()), float(ratios.max())],
    }


def exponents(measured: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Slope of each series, over all its points and between its last two."""
    found = {}
    for series, variable in (("N", "rows"), ("d, many rows", "dim"), ("d, few rows", "dim"), ("K", "clients")):
        points = [point for point in measured if point["series"] == series]
        sizes, seconds = [p[variable] for p in points], [p["seconds"] for p in points]
        found[series] = {"all": exponent(sizes, seconds), "last two": exponent(sizes[-2:], seconds[-2:])}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="the best of so many is kept")
    parser.add_argument("--out", type=Path, default=RESULTS / "scaling.json")
    parser.add_argument("--refit", action="store_true", help="fit the results that are there")
    arguments = parser.parse_args()
    if arguments.refit:
        content = json.loads(arguments.out.read_text())
    else:
        with threadpool_limits(1):
            content = {"machine": machine(), "dgemm_gflops": dgemm_gflops(1600, 3), "points": sweep(arguments.repeats)}
    fit, slopes = model(content["points"]), exponents(content["points"])
    write_json(arguments.out, {**content, "model": fit, "exponents": slopes})
    for point in content["points"]:
        print(
            f"{point['series']:<13} N = {point['rows']:>6} d = {point['dim']:>4} K = {point['clients']:>2}: "
            f"{point['seconds'] * 1e3:9.2f} ms, {point['operations'] / point['seconds'] / 1e9:6.1f} GFLOP/s"
        )
    for name, slope in slopes.items():
        print(f"{name:<13} slope {slope['all']:.2f}, between the last two {slope['last two']:.2f}")
    low, high = fit["measured_over_fitted"]
    print(f"measured / fitted between {low:.2f} and {high:.2f}; seconds per unit: {fit['seconds_per']}")


if __name__ == "__main__":
    main()
