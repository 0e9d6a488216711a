"""Uncertainty or curvature? The question behind Figure 4, over 19 settings and 20 draws of each: 380 problems.

The paper explains that BayesADMM is fast beside a wrong label by a posterior that is wide there. If so, the same method
with the mean in place of every average (the delta method, Delta(2)) must be slower, the posterior must be wide at the
outlier, and a metric of curvature without any posterior must not be enough. Each setting changes one thing of

    300 points in two normal classes around ±2.5, half with each client, and on client 1 a point of class 0 at (4, 4).

    nice python benchmarks/outlier.py --only base --only none     # some settings; several processes may run at once
    python benchmarks/outlier.py --table                          # what is finished, as Markdown

A run arrives in the first round from which the server's boundary stays within 2° and 0.05 of its own pooled boundary;
`with_length` also asks for the length of θ to 1 %. The methods are those of demos/fig4_outlier.py, ADMM for 100 rounds.
Results: benchmarks/results/outlier.json, an entry a setting and in it a number a draw; null is never.
"""

import argparse
import json
import re

import numpy as np
from common import RESULTS
from filelock import FileLock
from scipy.special import expit

import bayesadmm_np as ba
from bayesadmm_np.demos import fig4_outlier as figure
from bayesadmm_np.demos.shared import finite, with_ones

PATH, DRAWS, ROUNDS = RESULTS / "outlier.json", 20, (100, 30)
SETTINGS = {  # (in words, what differs from the first)
    "base": ("300 points and a mislabelled one", {}),
    "none": ("no outlier", {"outlier": None}),
    "right": ("the same point, rightly labelled", {"label": 1}),
    "far2": ("outlier twice as far", {"outlier": (8.0, 8.0)}),
    "far4": ("outlier four times as far", {"outlier": (16.0, 16.0)}),
    "three": ("three equal outliers", {"copies": 3}),
    "ten": ("ten equal outliers", {"copies": 10}),
    "turn45": ("second client turned by 45°", {"turn": 45.0}),
    "turn90": ("second client turned by 90°", {"turn": 90.0}),
    "shift": ("second client shifted by (2, 2)", {"shift": 2.0}),
    "points14": ("14 points", {"sizes": (7, 7)}),
    "points40": ("40 points", {"sizes": (20, 20)}),
    "points1000": ("1000 points", {"sizes": (500, 500)}),
    "unequal": ("103 and 200 points", {"sizes": (102, 200)}),
    "overlap": ("classes around ±1.5", {"middle": 1.5}),
    "apart": ("classes around ±4", {"middle": 4.0}),
    "wide": ("second feature five times as wide", {"sd": (1.0, 5.0)}),
    "weak": ("δ = 0.02", {"delta": 0.02}),
    "strong": ("δ = 2", {"delta": 2.0}),
}


def draw(name, seed):
    """One problem: the points of both clients, and δ."""
    options = dict(SETTINGS[name][1])
    delta = options.pop("delta", figure.DELTA)
    return figure.scattered(seed, **options), delta


def measured(name, seed):
    """Rounds of every method, and where the outlier ranks in the posterior."""
    clients, delta = draw(name, seed)
    found, best = figure.compare(clients, delta, ROUNDS)
    rounds, with_length = ({label: runs[i] for label, runs in found.items()} for i in (1, 2))
    row = {"rounds": rounds, "with_length": with_length, "best_rho": best}
    losses, prior = figure.problem(clients), ba.families.FullGaussian(np.zeros(3), delta)
    plain = ba.run(ba.methods.BayesADMM(figure.RHO), losses, prior, ROUNDS[1], raise_on_failure=False)
    row["small_rho"] = f"{plain.status.name} {plain.rounds}"
    if SETTINGS[name][1].get("outlier", True) is not None:
        row |= at_outlier(clients, losses, prior)
    return row


def at_outlier(clients, losses, prior):
    """Rank of the outlier's logit sd on client 1 (1 is the largest), with either label; its share of the client's pull.

    The pull of a row is |E σ(xᵀθ) − y| ‖x‖ at the pooled posterior, or with σ at the pooled mode.
    """
    points, labels = clients[0]
    rows, first = with_ones(points), ba.run(ba.methods.BayesADMM(1.0), losses, prior, 1, safeguard=True)
    other = figure.problem([(points, np.append(labels[:-1], 1 - labels[-1])), clients[1]])
    second = ba.run(ba.methods.BayesADMM(1.0), other, prior, 1, safeguard=True)
    ranks = [
        int(np.sum((sd := figure.logit_sd(points, result.client_posteriors[0].covariance)) > sd[-1] * (1 + 1e-9))) + 1
        for result in (first, second)
    ]
    share, (nodes, weights) = [], np.polynomial.hermite_e.hermegauss(40)
    for rule in (None, figure.MEAN):
        q = ba.solve_pooled(losses, prior, expectation=rule).posterior
        wide = 0.0 if rule else figure.logit_sd(points, q.covariance)[:, None]
        chance = expit((rows @ q.mean)[:, None] + wide * nodes) @ weights / weights.sum()
        pull = np.abs(chance - labels) * np.linalg.norm(rows, axis=1)
        share.append(float(pull[-1] / pull.sum()))
    share_q, share_mean = (round(value, 6) for value in share)
    return {
        "sd_rank": ranks[0],
        "sd_rank_other_label": ranks[1],
        "of": len(rows),
        "share": share_q,
        "share_mean": share_mean,
    }


def columns(rows):
    """A list of equal dictionaries as one of lists."""
    first = rows[0]
    return {
        key: columns([row[key] for row in rows]) if isinstance(value, dict) else [row[key] for row in rows]
        for key, value in first.items()
    }


def counts(content, kind="rounds", a=figure.BAYES, b=figure.BAYES_MEAN):
    """Of all problems: in how many b is as fast as a, slower, faster."""
    pairs = [pair for row in content.values() for pair in zip(row[kind][a], row[kind][b], strict=True)]
    signs = [int(np.sign(finite(other) - finite(one))) if one != other else 0 for one, other in pairs]
    return signs.count(0), signs.count(1), signs.count(-1)


def median(values):
    """In words: 'never' where the median draw does not arrive."""
    middle = float(np.median([finite(value) for value in values]))
    return "never" if np.isinf(middle) else f"{middle:g}"


def table(content, names=tuple(SETTINGS)):
    """The medians as Markdown."""
    labels = list(content["base"]["rounds"])
    lines = ["| setting | " + " | ".join(labels) + " |", "|---" + "|---:" * len(labels) + "|"]
    for name in names:
        if name in content:
            cells = [median(content[name]["rounds"][label]) for label in labels]
            lines.append("| " + " | ".join([SETTINGS[name][0], *cells]) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=SETTINGS, action="append", help="setting to run (repeat for several)")
    parser.add_argument("--table", action="store_true", help="print what is finished and run nothing")
    arguments = parser.parse_args()
    for name in () if arguments.table else arguments.only or SETTINGS:
        found = columns([measured(name, seed) for seed in range(DRAWS)])
        with FileLock(f"{PATH}.lock"):
            content = json.loads(PATH.read_text(encoding="utf-8")) if PATH.exists() else {}
            content[name] = {"setting": SETTINGS[name][0], **found}
            text = json.dumps({key: content[key] for key in SETTINGS if key in content}, indent=1, ensure_ascii=False)
            lists = re.sub(r"\[[^][{}]*\]", lambda found: re.sub(r"\s+", " ", found[0]), text)  # a line each
            PATH.write_text(lists + "\n", encoding="utf-8")
    content = json.loads(PATH.read_text(encoding="utf-8"))
    print(table(content))
    for kind in ("rounds", "with_length"):
        print(f"{kind}: at the mean as fast, slower, faster than E_q:", counts(content, kind))


if __name__ == "__main__":
    main()
