"""Exchanges that the pooled mode takes: guarded Newton and FedLap-Cov from the sites' own fits, and Newton from zero.

Newton from zero, without a guard, is what DataSHIELD's `ds.glm` does. Columns are standardised, the intercept has a
flat prior, and the other coefficients have the prior precision 0 (where the maximum-likelihood estimate exists), 1 or
0.01. An exchange is one message down and one up, and the start is one. They count until every coefficient is within
1e-6 standard errors of the mode, which other code finds from all rows. Writes results/exchanges.json; the table of
docs/benchmarks.md is made by cost_tables.py.

With --posterior the same for the variational posterior with full covariance, at prior precisions of 1, 0.01 and 1e-4:
guarded JointNewton, and PVI and accelerated PVI from the prior and from the same start. They count until every mean is
within 1e-6 posterior standard deviations, and every standard deviation within 1e-6 of itself. A case is separable if a
linear programme finds a direction in which no label is against it. Writes results/exchanges_posterior.json.

    BAYESADMM_DATA=/folder/with/the/tables python benchmarks/exchanges.py
"""

import argparse
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import numpy as np
from common import RESULTS, machine, write_json
from practice import problems as practice_problems
from scipy.optimize import linprog
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_wine
from sklearn.preprocessing import scale
from statsmodels import datasets

import bayesadmm_np as ba
from bayesadmm_np.splitting.average import as_step

CLOSE = 1e-6
"""Standard errors."""
WORST = 1e10
"""Condition of the information, in units of one on the diagonal, from which on no mode is taken to exist."""
FURTHEST = 50.0
"""Largest coefficient per standard deviation of a mode that exists."""
FLAT = 1e-12
"""Precision of the intercept for PVI from the prior, which cannot begin at a flat one, relative to its information."""
MOST = 60
"""Rounds after which a method counts as lost."""
SITES = (2, 5, 10, 20)
RNG = np.random.default_rng(0)
PRECISIONS = (0.0, 1.0, 0.01)
POSTERIOR_PRECISIONS = (1.0, 0.01, 1e-4)
POSTERIOR_METHODS = {
    "guarded JointNewton": (ba.Guarded(ba.methods.JointNewton()), True),
    "accelerated PVI": (ba.Accelerated(ba.methods.PVI()), False),
    "PVI": (ba.methods.PVI(), False),
    "accelerated PVI from own fits": (ba.Accelerated(ba.methods.PVI()), True),
    "PVI from own fits": (ba.methods.PVI(), True),
}
OF_CLASSES = ("guarded JointNewton", "accelerated PVI")
"""Methods that are tried with several classes, where PVI takes seconds a round."""
LOSSES = {"logistic": ba.losses.Logistic, "poisson": ba.losses.Poisson, "squares": ba.losses.LeastSquares}
"""By kind; "softmax 3" and the like is a softmax of so many classes with a reference."""
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


def classes() -> Iterator[Table]:
    """Yield the same of targets with several classes."""

    def design(X: Any) -> np.ndarray:
        return np.column_stack([scale(np.asarray(X, dtype=float)), np.ones(len(X))])

    anes = datasets.anes96.load_pandas().data
    X, party = design(anes[["logpopul", "selfLR", "age", "educ", "income"]]), anes["PID"].to_numpy(float)
    yield "anes96, party", "softmax 7", X, party
    yield "anes96, party in three", "softmax 3", X, np.digitize(party, [2.5, 3.5]).astype(float)
    X, y = load_wine(return_X_y=True)
    yield "wine, 3 columns", "softmax 3", design(X[:, [1, 2, 4]]), y.astype(float)
    X, y = load_digits(n_class=4, return_X_y=True)
    coarse = X.reshape(-1, 2, 4, 2, 4).sum(axis=(2, 4)).reshape(-1, 4)
    yield "digits 0 to 3, 2×2 pixels", "softmax 4", design(coarse), y.astype(float)
    X, y = load_iris(return_X_y=True)
    yield "iris, sepals", "softmax 3", design(X[:, :2]), y.astype(float)
    rng = np.random.default_rng(1)
    for count, p, n in ((3, 6, 200), (4, 5, 300)):
        X = np.column_stack([rng.normal(size=(n, p)), np.ones(n)])
        f = X @ rng.normal(size=(p + 1, count))
        yield f"random, {count} classes", f"softmax {count}", X, (f + rng.gumbel(size=f.shape)).argmax(1).astype(float)


def loss_of(kind: str, X: np.ndarray, y: np.ndarray) -> Any:
    """Return the loss of a kind."""
    if kind in LOSSES:
        return LOSSES[kind](X, y)
    return ba.losses.ReferenceSoftmax(X, y.astype(int), int(kind.split()[1]))


def prior_of(kind: str, X: np.ndarray, precision: float) -> Any:
    """Return the prior, flat for intercepts."""
    outputs = 1 if kind in LOSSES else int(kind.split()[1]) - 1
    diagonal = np.tile([*[precision] * (X.shape[1] - 1), 0.0], outputs)
    return ba.families.FullGaussian(np.zeros(diagonal.size), np.diag(diagonal))


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


def count(method: Any, losses: list[Any], prior: Any, is_there: Callable[[Any], bool], from_sites: bool) -> Any:
    """Return the exchanges and floats of a site, both with the start's message down and up; None where it is lost."""
    found: list[int] = []

    def watch(record: Any, q: Any) -> bool:
        if is_there(q):
            found.append(record.round)
        return bool(found)

    options: dict[str, Any] = {"rounds": MOST, "tol": 1e-300, "callback": watch, "raise_on_failure": False}
    begun = as_step(method).begins == "sites" or not from_sites
    if not begun:
        options["sites"] = ba.clients.own_fits(losses, prior)
        start = sum(options["sites"], prior.natural)
        if is_there(prior.start().with_natural(start)):
            return 1, 2 * prior.natural.size
    with np.errstate(all="ignore"):
        result = ba.run(method, losses, prior, **options)
    if not found:
        return None
    rounds = found[0] + (0 if begun else 1)
    floats = sum(record.floats_down + record.floats_up for record in result.history[: found[0]]) // len(losses)
    return rounds, floats + (0 if begun else 2 * prior.natural.size)


def near_mode(target: tuple[np.ndarray, np.ndarray]) -> Callable[[Any], bool]:
    """Return whether a mean is that of the mode, from the mode and its standard errors."""
    best, errors = target
    return lambda q: bool(np.abs((q.mean - best) / errors).max() <= CLOSE)


def near_posterior(best: Any) -> Callable[[Any], bool]:
    """Return whether means and standard deviations are those of the pooled posterior."""
    deviation = np.sqrt(best.variance)

    def is_there(q: Any) -> bool:
        moved = np.abs((q.mean - best.mean) / deviation).max()
        return bool(max(moved, np.abs(np.sqrt(q.variance) / deviation - 1.0).max()) <= CLOSE)

    return is_there


def is_separable(kind: str, X: np.ndarray, y: np.ndarray) -> bool:
    """Whether some direction leaves no label on its wrong side, and some on its right one: the MLE is infinite."""
    if kind in ("poisson", "squares"):
        return False
    if kind == "logistic":
        signed = np.where(y > 0, 1.0, -1.0)[:, None] * X
    else:  # the label's predictor minus each other's
        units = np.eye(int(kind.split()[1]))
        signed = np.vstack(
            [np.kron(units[int(own)] - other, row) for row, own in zip(X, y, strict=True) for other in units]
        )
    found = linprog(-signed.sum(axis=0), A_ub=-signed, b_ub=np.zeros(len(signed)), bounds=(-1.0, 1.0))
    return bool(-found.fun > 1e-6)


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
            there = near_mode(target)
            cells = {label: count(method, losses, prior, there, own) for label, (method, own) in METHODS.items()}
            yield {"problem": name, "split": split, "sites": len(losses), "prior": precision, "mode": True, **cells}


def posterior_rows() -> Iterator[dict[str, Any]]:
    """Yield one result of the variational posterior a problem, split and prior."""
    of_classes = ((name, split, kind, X, y, site) for name, kind, X, y in classes() for split, site in splits(y, RNG))
    known: dict[str, bool] = {}
    for name, split, kind, X, y, site in chain(problems(), of_classes):
        losses = [loss_of(kind, X[site == k], y[site == k]) for k in np.unique(site)]
        whole = [loss_of(kind, X, y)]
        separable = known[name] = known[name] if name in known else is_separable(kind, X, y)
        for precision in POSTERIOR_PRECISIONS:
            prior = prior_of(kind, X, precision)
            try:
                there = near_posterior(ba.solve_pooled(whole, prior, tol=1e-11).posterior)
            except RuntimeError:  # too few points for so wide a posterior
                continue
            flat = np.where(np.diag(prior.precision) == 0.0, FLAT * 0.25 * len(y), 0.0)
            begun = ba.families.FullGaussian(prior.mean, prior.precision + np.diag(flat))
            cells = {
                label: count(method, losses, prior if own else begun, there, own)
                for label, (method, own) in POSTERIOR_METHODS.items()
                if kind in LOSSES or label in OF_CLASSES
            }
            yield {
                **{"problem": name, "split": split, "sites": len(losses), "dim": prior.dim},
                **{"prior": precision, "separable": separable, **cells},
            }


def main() -> None:
    """Write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--posterior", action="store_true", help="the variational posterior in place of the mode")
    given = parser.parse_args()
    found = []
    for row in posterior_rows() if given.posterior else rows():
        print(row, flush=True)
        found.append(row)
    name = "exchanges_posterior.json" if given.posterior else "exchanges.json"
    write_json(RESULTS / name, {"machine": machine(), "rows": found})


if __name__ == "__main__":
    main()
