"""Measurements of docs/paper: each new method beside the method that a reader would use today.

    python benchmarks/comparisons.py                 # all six studies, about an hour of one core
    python benchmarks/comparisons.py --only sites    # one of them

Every study counts rounds or exchanges, numbers that a site receives and sends ("floats"), and processor time, for
several seeds. Writes benchmarks/results/comparisons.json; `paper_tables.py` reads it. BLAS should have one thread.
"""

import argparse
import json
import warnings
from collections.abc import Callable, Iterator
from time import process_time
from typing import Any

import numpy as np
from common import N_CLASSES, RESULTS, digits, machine, softmax_clients, write_json
from cost_tables import reached
from exchanges import LOSSES, METHODS, POSTERIOR_METHODS, count, mode, near_mode, near_posterior, tables
from guard import problem
from tqdm import tqdm

import bayesadmm_np as ba
from oracles.guard_optimum import Pooled, Unresolved

PATH = RESULTS / "comparisons.json"
M, F, L = ba.methods, ba.families, ba.losses

SITES_SEEDS, SITES, DELTA, RULE = 5, 5, 10.0, L.QuasiMonteCarlo(64)
ONE_PERCENT, EXACT = 1e-2, 1e-6
SITE_METHODS = {
    "damped PVI, γ = 1/K": (M.PVI(gamma=1.0 / SITES), {}),
    "damped PVI, γ = 1/2": (M.PVI(gamma=0.5), {}),
    "BayesADMM, ρ = 1": (M.BayesADMM(rho=1.0), {"safeguard": True}),
    "BayesADMM, ρ = 2": (M.BayesADMM(rho=2.0), {"safeguard": True}),
    "accelerated PVI": (ba.Accelerated(M.PVI(gamma=0.4)), {}),
    "PVI, Kronecker sites": (ba.Sketched(M.PVI(), ba.losses.Kronecker(N_CLASSES)), {}),
    "PVI, full sites": (ba.Sketched(M.PVI(), "full"), {}),
}
GRID = {
    "damped PVI": {gamma: (M.PVI(gamma=gamma), {}) for gamma in (0.2, 0.3, 0.4, 0.5, 0.6)},
    "BayesADMM": {rho: (M.BayesADMM(rho=rho), {"safeguard": True}) for rho in (0.5, 1.0, 2.0, 4.0)},
}
"""Settings from which the study `tuning` chooses those of `SITE_METHODS`, on the first draw."""
MOST = {name: 200 for name in (*SITE_METHODS, *GRID) if name.startswith(("damped", "Bayes"))}
"""Rounds; 60 unless a method is given here."""


def sites() -> Iterator[dict[str, Any]]:
    """A softmax regression on digits, diagonal posterior, two labels a site; a seed pairs the labels anew.

    Gaps are |F − F*|/|F*|. A row has the rounds after which the gap stays below a level, and floats and seconds there.
    """
    for seed in range(SITES_SEEDS):
        drawn = draw(seed)
        for name, setting in SITE_METHODS.items():
            yield {"seed": seed, "method": name, **costs(*watched(name, *setting, *drawn)), "dim": drawn[1].dim}


def tuning() -> Iterator[dict[str, Any]]:
    """The settings of `GRID` on the first draw."""
    drawn = draw(0)
    for name, settings in GRID.items():
        for value, setting in settings.items():
            yield {"method": name, "value": value, **costs(*watched(name, *setting, *drawn))}


def draw(seed: int) -> tuple[list[Any], Any, float]:
    """Clients, prior and the minimum of F, for four in five of the rows of digits and pairs of labels."""
    (X, y), rng = digits(), np.random.default_rng(seed)
    kept = rng.permutation(len(y))[: int(0.8 * len(y))]
    relabelled = rng.permutation(N_CLASSES)[y[kept]]
    clients = softmax_clients(X[kept], relabelled, SITES)
    prior = F.DiagonalGaussian(np.zeros(clients[0].dim), DELTA)
    return clients, prior, ba.solve_pooled(clients, prior, expectation=RULE).objective


def costs(gaps: list[float], seconds: list[float], floats: list[float]) -> dict[str, Any]:
    """The gaps, and rounds, floats and seconds after which they stay below each level."""
    found: dict[str, Any] = {"gaps": [float(f"{gap:.4g}") for gap in gaps]}
    for words, level in (("1e-2", ONE_PERCENT), ("1e-6", EXACT)):
        at = reached(gaps, level)
        found[f"rounds {words}"] = at
        found[f"floats {words}"] = None if at is None else floats[at - 1]
        found[f"seconds {words}"] = None if at is None else round(seconds[at - 1], 3)
    return found


def watched(
    name: str, method: Any, options: dict[str, Any], clients: list[Any], prior: Any, optimum: float
) -> tuple[list[float], list[float], list[float]]:
    """Run until the gap was below 1e-6 twice; gaps, processor seconds and floats of a site after each round."""
    gaps: list[float] = []
    seconds: list[float] = []
    began = process_time()

    def watch(record: Any, posterior: Any) -> bool:
        seconds.append(process_time() - began)
        gaps.append(abs(record.objective - optimum) / abs(optimum))
        return len(gaps) > 1 and max(gaps[-2:]) <= EXACT

    result = ba.run(
        method,
        clients,
        prior,
        rounds=MOST.get(name, 60),
        expectation=RULE,
        solver=ba.clients.VariationalNewton(tol=1e-7),
        tol=1e-12,
        warm_start=True,
        callback=watch,
        raise_on_failure=False,
        **options,
    )
    sent = [(record.floats_down + record.floats_up) / len(clients) for record in result.history]
    return gaps, seconds, list(np.cumsum(sent))


# --- Factors predicted and measured, and a damping chosen by them

FACTOR_PROBLEMS = 72
FACTOR_METHODS = {
    "PVI": M.PVI(),
    "BayesADMM, ρ = 1": M.BayesADMM(rho=1.0),
    "AMA, ρ = 5": M.AMA(rho=5.0),
}


KINDS, FAMILIES, SPLITS = ("logistic", "poisson", "squares"), ("full", "diagonal"), ("at random", "by target", "differ")


def regression(seed: int) -> tuple[list[Any], Any, np.ndarray, dict[str, Any]]:
    """Losses, prior, all rows and traits of a random regression with correlated columns at 2 to 8 sites.

    Rows are split at random or in the order of the targets; or sites differ: the signs of their correlations do.
    """
    rng = np.random.default_rng(seed)
    kind, family, split = KINDS[seed % 3], FAMILIES[seed // 3 % 2], SPLITS[seed // 6 % 3]
    n, d, k = int(rng.integers(100, 600)), int(rng.integers(4, 8 if family == "full" else 17)), int(rng.integers(2, 9))
    common, site = rng.uniform(0.0, 0.9), np.arange(n) * k // n
    signs = np.where(rng.random((k if split == "differ" else 1, d - 1)) < 0.5, -1.0, 1.0)
    own = np.sqrt(common) * rng.standard_normal((n, 1)) * signs[site % len(signs)]
    X = np.column_stack([np.ones(n), own + np.sqrt(1.0 - common) * rng.standard_normal((n, d - 1))])
    f = X @ rng.standard_normal(d) / np.sqrt(d)
    y = {
        "logistic": lambda: (rng.random(n) < 1 / (1 + np.exp(-f))).astype(float),
        "poisson": lambda: rng.poisson(np.exp(0.7 * f)).astype(float),
        "squares": lambda: f + rng.standard_normal(n),
    }[kind]()
    order = {"at random": rng.permutation(n), "by target": np.argsort(y, kind="stable"), "differ": np.arange(n)}[split]
    clients = [LOSSES[kind](X[order[site == j]], y[order[site == j]]) for j in range(k)]
    make = {"full": F.FullGaussian, "diagonal": F.DiagonalGaussian}[family]
    traits = {"seed": seed, "kind": kind, "family": family, "split": split, "sites": k, "dim": d, "rows": n}
    return clients, make(np.zeros(d), 10.0 ** rng.uniform(-1, 1)), X, traits


def errors_of(
    method: Any, clients: list[Any], prior: Any, best: Any, rounds: int
) -> tuple[list[float], list[int], float]:
    """Fisher distances from the pooled fit by round, floats of a site up to there, and processor seconds."""
    errors: list[float] = []

    def note(record: Any, q: Any) -> bool:
        errors.append(float(best.fisher_norm(q.natural - best.natural)))
        return errors[-1] < 1e-10 or not errors[-1] < 1e12

    began = process_time()
    with np.errstate(all="ignore"):
        result = ba.run(
            method,
            clients,
            prior,
            rounds=rounds,
            tol=1e-300,
            solver=ba.clients.VariationalNewton(tol=1e-12),
            callback=note,
            raise_on_failure=False,
        )
    sent = np.cumsum([(one.floats_down + one.floats_up) // len(clients) for one in result.history])
    return errors, [int(one) for one in sent], process_time() - began


def factors() -> Iterator[dict[str, Any]]:
    """The factor by theory and in a run, Theorem A's bound, γ_max, and rounds with γ by theory and γ = 1/K.

    The measured factor is the geometric mean of the last five to twelve ratios of errors between 1e-9 and 1e-2.
    """
    for seed in range(FACTOR_PROBLEMS):
        clients, prior, X, traits = regression(seed)
        best = ba.solve_pooled(clients, prior, tol=1e-13).posterior
        began = process_time()
        rates = ba.local_rates(clients, prior)
        planned = process_time() - began
        reach = float(np.sqrt(np.max(np.einsum("ij,ji->i", X, best.factor.solve(X.T)))))
        gamma = min(1.0, rates.best_gamma[0])
        chosen = {
            **FACTOR_METHODS,
            "BayesADMM, ρ = 1/K": M.BayesADMM(rho=1.0 / len(clients)),
            "PVI, γ = 1/K": M.PVI(gamma=1.0 / len(clients)),
            "PVI, γ by theory": M.PVI(gamma=gamma),
        }
        found: dict[str, Any] = {
            **traits,
            **{"reach": reach, "gamma": gamma, "gamma_max": float(rates.gamma_max), "seconds of rates": planned},
        }
        for name, method in chosen.items():
            errors, sent, seconds = errors_of(method, clients, prior, best, 400)
            last = [error for error in errors if 1e-9 < error < 1e-2][-13:]
            there = next((i for i, error in enumerate(errors) if error < EXACT), None)
            found[name] = {
                "predicted": float(rates.factor(method)),
                "measured": float((last[-1] / last[0]) ** (1 / (len(last) - 1))) if len(last) > 5 else None,
                "rounds": None if there is None else there + 1,
                "floats": None if there is None else sent[there],
                "seconds": seconds,
            }
        yield found


# --- The certificate beside the change of the last round

CERTIFICATE_PROBLEMS = 300
RUNS = {
    "PVI": (lambda k: M.PVI(), {}),
    "PVI, γ = 1/K": (lambda k: M.PVI(gamma=1.0 / k), {}),
    "BayesADMM, ρ = 1": (lambda k: M.BayesADMM(rho=1.0), {"safeguard": True}),
}


def certificates() -> Iterator[dict[str, Any]]:
    """After a random number of rounds: the distance to the pooled fit, its bound, and the change of the last round.

    All in standard deviations of the pooled posterior, the largest over coefficients.
    """
    for seed in range(CERTIFICATE_PROBLEMS):
        clients, prior, _, traits = regression(1000 + seed)
        best = ba.solve_pooled(clients, prior, tol=1e-13).posterior
        deviation = np.sqrt(best.variance)
        name = list(RUNS)[seed // 18 % len(RUNS)]
        make, options = RUNS[name]
        rounds, path = int(np.random.default_rng(seed).integers(2, 25)), [prior.mean]

        def note(record: Any, q: Any, path: Any = path) -> bool:
            path.append(q.mean)
            return False

        began = process_time()
        with np.errstate(all="ignore"):
            result = ba.run(
                make(len(clients)),
                clients,
                prior,
                rounds=rounds,
                tol=1e-10,
                callback=note,
                raise_on_failure=False,
                **options,
            )
        a_round = (process_time() - began) / max(1, result.rounds)
        if result.status.is_failure or len(path) < 3:
            yield {**traits, "method": name, "status": result.status.name}
            continue
        began = process_time()
        distance = result.certificate().distance
        off = np.abs(result.posterior.mean - best.mean)
        yield {
            **traits,
            **{"method": name, "status": result.status.name, "rounds": result.rounds},
            "distance": float(np.max(off / deviation)),
            "change": float(np.max(np.abs(path[-1] - path[-2]) / deviation)),
            "bound": None if distance is None else float(np.max(distance.per_coefficient / deviation)),
            "rigorous": bool(distance is not None and distance.rigorous),
            "reason": None if distance is None else distance.reason,
            "held": bool(distance is not None and (off <= distance.per_coefficient).all()),
            "seconds": process_time() - began,
            "seconds of a round": a_round,
            # q_g down; the gradient, the curvature, the value and the reach up
            "floats": prior.natural.size + prior.dim * (prior.dim + 3) // 2 + 2,
            "floats of a round": int(result.history[-1].floats_down + result.history[-1].floats_up) // len(clients),
        }


# --- Guarded methods beside the same methods without a guard

GUARD_PROBLEMS = 300
GUARD_ROUNDS = 60
NEAR = 1e-3
"""Gap in F, above its rounding, with which a run counts as arrived."""


def guards() -> Iterator[dict[str, Any]]:
    """Problems of benchmarks/guard.py with two or more sites, all of which take part, with and without a guard."""
    for index in range(GUARD_PROBLEMS):
        one = problem(index)
        if one.is_away or len(one.clients) < 2:
            continue
        pooled = Pooled(one)
        try:
            optimum = pooled.optimum
        except Unresolved:
            continue
        slack = NEAR + pooled.slack(optimum)
        clients = one.clients
        methods = {
            "damped PVI": M.PVI(gamma=1.0 / len(clients)),
            "PVI": M.PVI(),
            "guarded PVI": ba.Guarded(M.PVI()),
            "BLR": M.BLR(1.0),
            "guarded BLR": ba.Guarded(M.BLR(1.0)),
            "recommended": M.recommended(one.prior, clients),
        }
        found: dict[str, Any] = {"index": index, "kind": one.kind, "family": one.family, "traits": list(one.traits)}
        found["sites"] = len(clients)
        for name, method in methods.items():
            began = process_time()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = ba.run(method, clients, one.prior, GUARD_ROUNDS, raise_on_failure=False)
            seconds = process_time() - began
            gap = pooled.distance(result.posterior)[0]
            values = [value for value in result.objective if np.isfinite(value)]
            found[name] = {
                "status": result.status.name,
                "rounds": result.rounds,
                "arrived": bool(gap <= slack),
                "gap": float(gap),
                "above start": bool(values and result.objective[-1] > result.objective[0] + slack),
                "floats": sum(record.floats_down + record.floats_up for record in result.history) // len(clients),
                "seconds": seconds,
            }
        yield found


# --- Regressions on public tables

TABLE_SEEDS, TABLE_SITES = 5, 5


def timed(run: Callable[[], Any]) -> Any:
    """The counts of a run and its processor seconds; None where it does not arrive."""
    began = process_time()
    found = run()
    return None if found is None else [*found, process_time() - began]


def two_stage(losses: list[Any], prior: Any, target: Any) -> float | None:
    """Largest error, in pooled standard errors, of the average of the sites' own estimates by their precisions.

    None where some site's own rows have no maximum-likelihood estimate.
    """
    own = [mode(ba.losses.Total([one]), prior) for one in losses]
    if any(one is None for one in own):
        return None
    precisions = [one.hessian(found[0]) for one, found in zip(losses, own, strict=True)]
    together = np.linalg.solve(sum(precisions), sum(p @ found[0] for p, found in zip(precisions, own, strict=True)))
    return float(np.max(np.abs(together - target[0]) / target[1]))


def regressions() -> Iterator[dict[str, Any]]:
    """Maximum likelihood and a posterior (prior precision 1) at five sites; rows at random or in the target's order."""
    for name, kind, X, y in tables():
        whole = [LOSSES[kind](X, y)]
        d = X.shape[1]
        flat, prior = (F.FullGaussian(np.zeros(d), np.diag([own] * (d - 1) + [0.0])) for own in (0.0, 1.0))
        target, best = mode(ba.losses.Total(whole), flat), ba.solve_pooled(whole, prior, tol=1e-11).posterior
        begun = F.FullGaussian(np.zeros(d), prior.precision + np.diag([0.0] * (d - 1) + [1e-12 * 0.25 * len(y)]))
        for seed in range(TABLE_SEEDS):
            rng = np.random.default_rng(seed)
            order = rng.permutation(len(y))
            by_label = order[np.argsort(y[order], kind="stable")]
            for split, rows in (("random", order), ("by target", by_label)):
                losses = [LOSSES[kind](X[part], y[part]) for part in np.array_split(rows, TABLE_SITES)]
                found = {"table": name, "rows": len(y), "dim": d, "seed": seed, "split": split}
                if target is not None:
                    found["mode"] = {
                        label: timed(lambda: count(method, losses, flat, near_mode(target), own))  # noqa: B023
                        for label, (method, own) in METHODS.items()
                    }
                    found["two-stage"] = two_stage(losses, flat, target)
                found["posterior"] = {
                    label: timed(lambda: count(method, losses, prior if own else begun, near_posterior(best), own))  # noqa: B023
                    for label, (method, own) in POSTERIOR_METHODS.items()
                }
                yield found


STUDIES = {
    "sites": (sites, SITES_SEEDS * len(SITE_METHODS)),
    "tuning": (tuning, sum(map(len, GRID.values()))),
    "factors": (factors, FACTOR_PROBLEMS),
    "certificates": (certificates, CERTIFICATE_PROBLEMS),
    "guards": (guards, GUARD_PROBLEMS),
    "regressions": (regressions, TABLE_SEEDS * 12),
}


def main() -> None:
    """Run the studies and keep each as soon as it is finished."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=STUDIES, action="append", help="a study (repeat for several)")
    for name in parser.parse_args().only or STUDIES:
        study, total = STUDIES[name]
        rows = list(tqdm(study(), total=total, desc=name))
        content = json.loads(PATH.read_text(encoding="utf-8")) if PATH.is_file() else {}
        write_json(PATH, {**content, name: {"machine": machine(), "rows": rows}})


if __name__ == "__main__":
    main()
