"""Rounds that candidates for the default method of a posterior need, on problems that are easy and hard to federate.

Logistic regression, full covariance, unpenalised intercept, residuals of 1e-8; a dash is more than 60 rounds or a
failure. Prints the Markdown table of docs/benchmarks.md.

    BAYESADMM_DATA=/folder/with/the/tables python benchmarks/practice.py
"""

import warnings
from collections.abc import Iterator

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import scale

import bayesadmm_np as ba
from bayesadmm_np.data import load_heart_disease
from bayesadmm_np.estimators import FederatedLogisticRegression

Problem = tuple[str, np.ndarray, np.ndarray, np.ndarray]

METHODS = {
    "PVI": ba.methods.PVI(),
    "accelerated PVI": ba.Accelerated(ba.methods.PVI()),
    "accelerated PVI, γ = ½": ba.Accelerated(ba.methods.PVI(gamma=0.5)),
    "BayesADMM": ba.methods.BayesADMM(),
}
PRECISIONS = (1.0, 0.01, 1e-6)


def problems() -> Iterator[Problem]:
    """Yield name, X, y and the site of each row."""
    heart = load_heart_disease()
    site = np.repeat(np.arange(4), [len(part.y) for part in heart.sites])
    yield "heart disease", heart.pooled().X, heart.pooled().y, site
    X, y = load_breast_cancer(return_X_y=True)
    rng = np.random.default_rng(0)
    yield "breast cancer, random", scale(X), y, rng.integers(0, 5, len(y))
    yield "breast cancer, by label", scale(X), y, 2 * y + rng.integers(0, 2, len(y))
    site = rng.integers(0, 10, 200)
    X = rng.normal(size=(200, 5)) + rng.normal(size=(10, 5))[site]
    yield "shifted features", X, rng.random(200) < 1 / (1 + np.exp(-X @ rng.normal(size=5))), site
    X = rng.normal(size=(60, 4))
    yield "separable", X, X[:, 0] > 0, rng.integers(0, 3, 60)
    X = rng.normal(size=(12, 3))
    yield "twelve rows", X, np.tile([0, 1, 1], 4), np.arange(12) % 4
    yield "four rows at four sites", np.array([[-2.0], [-1.0], [1.0], [2.0]]), np.array([0, 0, 1, 1]), np.arange(4)


def rounds(method: object, precision: float, X: np.ndarray, y: np.ndarray, site: np.ndarray) -> str:
    """Return the rounds of one fit, or a dash."""
    model = FederatedLogisticRegression(method=method, prior_precision=precision, max_rounds=60)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", ConvergenceWarning)
            return str(model.fit(X, np.asarray(y, dtype=int), client=site).n_rounds_)
    except (ba.RunError, ConvergenceWarning):
        return "–"


def main() -> None:
    """Print the table."""
    print(f"| prior precision {' / '.join(f'{p:g}' for p in PRECISIONS)} | {' | '.join(METHODS)} |")
    print("|---|" + "---|" * len(METHODS))
    for name, X, y, site in problems():
        cells = [" / ".join(rounds(method, p, X, y, site) for p in PRECISIONS) for method in METHODS.values()]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
