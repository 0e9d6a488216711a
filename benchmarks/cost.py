"""What a pooled fit costs between sites, in units of one fit of scikit-learn on all rows.

One process, one thread, processor time, the best of some repeats. Rows are made up: logistic, d columns with an
intercept, K sites at random, a prior precision of 1. The unit is LogisticRegression by lbfgs at tol 1e-8 with the same
penalty. The mode is by guarded Newton and FedLap-Cov; the variational posterior, full covariance, by PVI, guarded
JointNewton and the recommended row. Printed are the ratio, rounds, and floats up of one site.

    python benchmarks/cost.py --rows 100000
"""

import argparse
from time import process_time
from typing import Any

import numpy as np
from common import best_seconds
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

import bayesadmm_np as ba


def rows(n: int, d: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return columns, the last of ones, and labels of a logistic model."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.standard_normal((n, d - 1)), np.ones(n)])
    return X, (X @ (rng.standard_normal(d) / np.sqrt(d)) + rng.logistic(size=n) > 0).astype(float)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--sites", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    d, sites = options.columns, options.sites
    X, y = rows(options.rows, d)
    losses = [ba.losses.Logistic(X[k::sites], y[k::sites]) for k in range(sites)]
    prior = ba.families.FullGaussian(np.zeros(d), 1.0)
    sklearn = LogisticRegression(C=1.0, fit_intercept=False, tol=1e-8, max_iter=1000)
    unit = best_seconds(lambda: sklearn.fit(X, y), options.repeats, process_time)
    print(f"{options.rows} rows, {d} columns, {sites} sites; scikit-learn's lbfgs takes {unit:.3f} s\n")
    print("| fit | ratio | rounds | floats up of a site | status | from lbfgs, sd |\n|---|---:|---:|---:|---|---:|")
    methods = {
        "mode, guarded Newton": ba.Guarded(ba.methods.Newton()),
        "mode, FedLap-Cov": ba.methods.FedLapCov(),
        "posterior, PVI": ba.methods.PVI(),
        "posterior, guarded JointNewton": ba.Guarded(ba.methods.JointNewton()),
        "posterior, recommended": ba.methods.recommended(prior, losses),
    }
    for name, method in methods.items():
        found: list[Any] = []

        def run(method: Any = method, found: list[Any] = found) -> None:
            found.append(ba.run(method, losses, prior, raise_on_failure=False))

        seconds = best_seconds(run, options.repeats, process_time)
        result = found[-1]
        floats = sum(record.floats_up for record in result.history) // sites
        away = np.abs(result.posterior.mean - sklearn.coef_[0]) * np.sqrt(np.diag(result.posterior.precision))
        print(
            f"| {name} | {seconds / unit:.1f} | {result.rounds} | {floats} | {result.status.name} | {away.max():.0e} |"
        )


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
