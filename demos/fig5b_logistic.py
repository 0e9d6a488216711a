"""Figure 5b: multiclass logistic regression, split by label pairs over five clients, against the pooled VB optimum.

Ten classes, prior N(0, I/δ). The axis is the objective's relative distance from the pooled variational Bayes solution
of the same family and integration rule. The default is the first 600 digits at 4 × 4 pixels, which is quick. With
`--dataset mnist` the data are the paper's, which does not state how many images it takes. We take the first 5000,
averaged to 14 × 14 pixels (1960 parameters), which is slow.

The paper shows one panel, in which undamped PVI diverges. With clients solved exactly that is a property of the
*diagonal* family; with full covariance undamped PVI is among the fastest. So there are two panels. Four methods carry
that, and each has a dotted twin: the same with the mean in place of every average, against its own pooled solution.

Only the curve whose label says "safeguard" raises the server's α until every client's problem has a minimum; all others
are the papers' updates. A run that fails ends in ✗.

Your own method: `--add module:NAME` draws it as well, from a module in the current folder. NAME is a method (or a step
such as ba.Accelerated(...)), or a function of no arguments that returns one. Claims are about built-in curves alone.

    # halfway.py
    import bayesadmm_np as ba
    HALFWAY = ba.methods.Method("halfway", rho=1.0, dual_step=1.0, alpha=0.5)

    python demos/fig5b_logistic.py --add halfway:HALFWAY   # figures/added/fig5b_logistic_with_HALFWAY.png

In Python: compute(add={"halfway": HALFWAY}).
"""

import importlib
import inspect
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

import bayesadmm_np as ba
from bayesadmm_np.demos import shared, style
from bayesadmm_np.demos.shared import Claim, finite, words
from bayesadmm_np.splitting.average import as_step

DELTA, NEAR = 10.0, 0.01
SIDES, FIRST = {"digits": 4, "mnist": 14}, {"digits": 600, "mnist": 5000}
PVI, DAMPED, AMA, BREGMAN, FAST = "PVI", "damped PVI", "AMA", "BregmanADMM", "Accelerated PVI"
BAYES1, BAYES2, SAFE = "BayesADMM (ρ=1)", "BayesADMM (ρ=2)", "BayesADMM (ρ=1, safeguard)"
LOOKS = {label: style.look(label) for label in (PVI, DAMPED)}  # of the four that have twins
LOOKS |= {BAYES1: style.look("BayesADMM"), SAFE: style.look("safeguarded")}
LOOKS = {label: replace(look, line="-") for label, look in LOOKS.items()}
STRONG = tuple(LOOKS)
LOOKS |= {AMA: style.Look(style.FAINT, "P", "-"), BREGMAN: style.Look(style.FAINT, "D", "-")}
LOOKS |= {BAYES2: style.Look(style.FAINT, "h", "-"), FAST: style.Look(style.FAINT, "*", "-")}
YOURS = style.Look(style.BLACK, "X", "-")


def compute(dataset="digits", first=0, side=0, rounds=(20, 12), points=64, add="", track=iter):
    """Run every row with diagonal and with full covariance; 0 stands for the sizes above.

    `add` is "module:NAME" of a method, or a mapping from labels to methods.
    """
    added = added_methods(add)
    if len(rounds) != 2:
        raise ValueError(f"rounds must be two numbers, of the diagonal and the full panel, got {rounds}.")
    images, text = shared.label_pairs(dataset, side or SIDES[dataset], first or FIRST[dataset])
    clients = [ba.losses.Softmax(X, y, 10) for X, y in images]
    zero, rule, methods = np.zeros(clients[0].dim), ba.losses.QuasiMonteCarlo(points), ba.methods
    table = {
        PVI: methods.PVI(),
        DAMPED: methods.PVI(gamma=1 / len(clients)),
        AMA: methods.AMA(rho=2.0),
        BREGMAN: methods.BregmanADMM(rho=1.0),
        BAYES1: methods.BayesADMM(rho=1.0),
        FAST: ba.Accelerated(methods.PVI(gamma=0.4), memory=5),
    }
    panels = {
        "diagonal": (ba.families.DiagonalGaussian(zero, DELTA), table | {BAYES2: methods.BayesADMM(rho=2.0)}),
        "full": (ba.families.FullGaussian(zero, DELTA), table | {SAFE: methods.BayesADMM(rho=1.0)}),
    }
    numbers = {"data": text, "parameters": len(zero), "clients": len(clients), "delta": DELTA, "points": points}
    for limit, (name, (prior, rows)) in zip(rounds, panels.items(), strict=True):
        if taken := [label for label in added if label in rows]:
            raise ValueError(f"add must have a name that no curve has, got {taken[0]!r}; choose another name.")
        numbers[name], rows = {"family": type(prior).__name__, "curves": []}, rows | added
        optimum, at_mean = (
            float(ba.solve_pooled(clients, prior, expectation=one).objective) for one in (rule, ba.losses.Delta(2))
        )
        numbers[name]["optimum"], numbers[name]["optimum_mean"] = optimum, at_mean
        for label, method in track(rows.items()):
            curve = {"label": label} | run(label, method, clients, prior, limit, rule, optimum)
            if label in added:
                curve["added"] = True
            if label in STRONG:
                curve["mean"] = run(label, method, clients, prior, limit, ba.losses.Delta(2), at_mean)
            numbers[name]["curves"].append(curve)
    return numbers


def added_methods(add):
    """Return methods by label: those of a mapping, or the one that "module:NAME" names."""
    if isinstance(add, Mapping) or not add:
        return dict(add or {})
    module, _, name = add.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"add must be module:NAME of a method in the current folder or installed: {error}.") from error
    finally:
        sys.path.remove(os.getcwd())
    if callable(found):
        try:
            inspect.signature(found).bind()
        except TypeError as error:
            raise ValueError(f"add must name a method or a function of no arguments, got {add}: {error}.") from error
        found = found()
    as_step(found)  # a ValueError before the built-in curves run
    return {name: found}


def run(label, method, clients, prior, rounds, rule, optimum):
    """Return the relative gap at the start and after every round, and the round from which it stays within 1 %."""
    options = {"expectation": rule, "solver": ba.clients.VariationalNewton(tol=1e-7), "safeguard": label == SAFE}
    result = ba.run(method, clients, prior, rounds, raise_on_failure=False, **options)
    gap = np.abs(result.objective - optimum) / abs(optimum)  # at the mean the fixed point is no minimum
    return {
        "gap": [float(value) if np.isfinite(value) else None for value in gap],
        "rounds_to_near": None if result.status.is_failure else shared.arrival(gap <= NEAR),
        "safeguard": label == SAFE,
        "status": result.status.name,
    }


def claims(numbers):
    diagonal, full = (  # without the curves of others
        {curve["label"]: curve for curve in numbers[name]["curves"] if "added" not in curve}
        for name in ("diagonal", "full")
    )
    count = {label: finite(curve["rounds_to_near"]) for label, curve in diagonal.items()}
    said = {label: words(curve["rounds_to_near"]) for label, curve in diagonal.items()}
    for label, paper in ((PVI, "PVI without damping diverges"), (AMA, "")):
        start, *_, end = map(finite, diagonal[label]["gap"])
        measured = f"gap {start:.2g} at the start, {end:.2g} at the end"
        text = f"diagonal: {label} without damping diverges"
        yield Claim(text, math.isinf(count[label]) and end > start, measured, paper)
    best = min((BAYES1, BAYES2), key=count.get)
    text, slower = "diagonal: BayesADMM at its better ρ is within 1 % sooner than damped PVI", "damped PVI is slower"
    yield Claim(text, count[best] < count[DAMPED], f"{best} {said[best]}, damped PVI {said[DAMPED]}", slower)
    second = min((label for label in diagonal if label != FAST), key=count.get)
    text = "diagonal: the accelerated method is within 1 % first"
    yield Claim(text, count[FAST] < count[second], f"{said[FAST]}; next is {second}, {said[second]}")
    after = finite(full[PVI]["gap"][:6][-1])
    text = "full covariance: undamped PVI does not diverge, it is within 1e-6 after 5 rounds"
    yield Claim(text, after <= 1e-6, f"gap {after:.1e}", "PVI without damping diverges", after > 1e-6)
    plain, mean = full[BAYES1], full[BAYES1]["mean"]
    text = "full covariance: BayesADMM at ρ = 1 without a safeguard ends, as a client has no minimum"
    measured = f"{plain['status']} after {words(len(plain['gap']) - 1)}"
    yield Claim(text, plain["status"] == "ILL_POSED_CLIENT", measured, "it converges, sooner than damped PVI", False)
    text = "full covariance: with the mean in place of averages the same method arrives within 1 %"
    yield Claim(text, mean["rounds_to_near"] is not None, words(mean["rounds_to_near"]))
    safe, damped = full[SAFE]["rounds_to_near"], full[DAMPED]["rounds_to_near"]
    text = "full covariance: safeguarded BayesADMM is within 1 % sooner than damped PVI"
    measured = f"BayesADMM {words(safe)}, damped PVI {words(damped)}"
    yield Claim(text, finite(safe) < finite(damped), measured, slower)
    pairs = [
        (c["rounds_to_near"], c["mean"]["rounds_to_near"]) for c in (*diagonal.values(), *full.values()) if "mean" in c
    ]
    shifts = [abs(one - other) for one, other in pairs if None not in (one, other)]
    text = "a curve and its dotted twin, with the mean in place of averages, are within 1 % at most two rounds apart"
    worst = max(shifts, default=math.inf)
    yield Claim(text, worst <= 2, f"{len(shifts)} pairs in which both arrive, largest difference {worst:g}")


def notes(numbers):
    sizes = f"{numbers['parameters']} parameters, δ = {numbers['delta']:g}, {numbers['points']} points per row"
    yield f"{numbers['data']}, {sizes}"
    for name in ("diagonal", "full"):
        curves = numbers[name]["curves"]
        counts = ", ".join(f"{curve['label']} {words(curve['rounds_to_near'])}" for curve in curves)
        yield f"{name}, to 1 % above the optimum: {counts}"
        twins = [curve for curve in curves if "mean" in curve]
        counts = ", ".join(f"{curve['label']} {words(curve['mean']['rounds_to_near'])}" for curve in twins)
        yield f"{name}, the same at the mean: {counts}"
        for curve in filter(shared.failed, curves):
            yield f"{name}, {curve['label']} ends in round {len(curve['gap'])}: {curve['status']}"


def draw(numbers):
    """Two panels with one legend."""
    figure, looks = style.new_figure(style.WIDTH, 3.7), dict(LOOKS)
    for curve in numbers["full"]["curves"]:
        looks.setdefault(curve["label"], YOURS)
    panels, handles = figure.subplots(1, 2, sharey=True), {}
    for axes, name in zip(panels, ("diagonal", "full"), strict=True):
        handles |= shared.gaps(axes, f"{name.capitalize()} covariance", numbers[name]["curves"], NEAR, looks)
    panels[0].set_ylabel("objective from the pooled optimum (relative)")
    labels, lines = [*looks], [*map(handles.get, looks)]
    if any("mean" in curve for name in ("diagonal", "full") for curve in numbers[name]["curves"]):
        dotted = {"color": style.INK, "marker": "o", "markerfacecolor": "white", "linestyle": (0, (1, 1.2))}
        labels.append("the same at the mean")
        lines += panels[0].plot([], [], markersize=3.0, **dotted)
    labels.append("run ends: no minimum or divergence")
    lines.append(shared.cross(panels[0], [], [], style.INK))
    figure.legend(lines, labels, loc="outside lower center", ncols=3, columnspacing=1.6)
    return figure


TITLE = "Figure 5b: multiclass logistic regression"
DEMO = shared.Demo("5b", "fig5b_logistic", TITLE, compute, claims, draw, notes, needs=shared.find_images)

if __name__ == "__main__":
    DEMO.main()
