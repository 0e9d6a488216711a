"""Heart disease at four hospitals: logistic regression with error bars, without moving a patient's row.

The data are FLamby's (thirteen features and an intercept, 486 training and 254 test rows, standardised hospital by
hospital); which rows are for training is drawn anew for every seed. δ, the prior precision, is the best of a grid by
the evidence bound of a federated PVI run on the training rows: a sum of one number per hospital. The other settings are
in tabular.py.

All methods fit FLamby's model, with one intercept for all. Because every hospital's columns are centred, that model
has the four share one prevalence, which they do not. So PVI also fits an intercept for each hospital, a column of ones
that is zero elsewhere, under the prior N(0, 10); so do the hospitals that fit their own rows only.

Coefficients (of the model with four intercepts), distances to the pooled fit and counts of rounds are those of one
split, the first in which a hospital has a single class among its training rows (Switzerland, whose cholesterol column
is constant in every split). Scores are means over all splits. Reliability is that of the test predictions of all splits
together, in ten bins of equal width; the expected calibration error is Σ_b n_b |mean p_b − mean y_b| / Σ_b n_b over
these bins.
"""

import numpy as np

import bayesadmm_np as ba
from bayesadmm_np import data
from bayesadmm_np.demos import shared, style, tabular
from bayesadmm_np.demos.tabular import NEAR, SAME, TOL, cell, percent

BINS, ALL = 10, "all"
OWN_PRECISION = 0.1
POOLED, POOLED_MODE, LOCAL, OWN = "pooled VB", "pooled mode", "own rows only", "PVI, four intercepts"
PAPER = {  # Swaroop et al. (2025), Table 1, FLambyH: accuracy after 10 and after 20 rounds, mean (sd) of three runs
    tabular.FEDAVG: ("72.6 (1.1)", "77.6 (0.6)"),
    tabular.FEDPROX: ("77.5 (1.5)", "77.7 (0.5)"),
    tabular.FEDDYN: ("76.9 (0.5)", "78.1 (0.6)"),
    tabular.FEDLAP: ("77.5 (1.1)", "77.7 (0.5)"),
    tabular.COV: ("79.2 (1.8)", "80.0 (0.5)"),
}


def compute(seeds=(0, 1, 2, 3, 4), rounds=100, deltas=(0.1, 1.0, 10.0, 100.0), track=iter):
    """Fit every split; the one with a single-class hospital is drawn, or the first where there is none."""
    splits = [fit_split(data.load_heart_disease(seed=seed), rounds, deltas) for seed in track(seeds)]
    odd = (i for i, split in enumerate(splits) if any(len(np.unique(site.y)) == 1 for site in split["sites"]))
    chosen = next(odd, 0)
    shown = splits[chosen]
    names = [site.name for site in shown["sites"]]
    drawn = {"pooled": shown["target"], "federated": shown["fits"][-1].posterior}
    drawn |= dict(zip(names, shown["local"], strict=True))
    return {
        "seeds": seeds,
        "seed": seeds[chosen],
        "evidence": [split["evidence"] for split in splits],
        "hospitals": [hospital(site) for site in shown["sites"]],
        "coefficients": [*shown["sites"][0].feature_names, *(f"intercept, {name}" for name in names)],
        "intervals": {name: {"mean": q.mean, "sd": np.sqrt(q.variance)} for name, q in drawn.items()},
        "curves": [curve(fit) for fit in shown["fits"]],
        "summaries": [summary(label, splits) for label in shown["predictions"]],
        "reliability": [reliability(label, splits) for label in shown["predictions"]],
    }


def fit_split(hospitals, rounds, deltas):
    """Fit every method; `target` and `local` are of the model with four intercepts, probabilities of the test rows."""
    sites, slopes, K = hospitals.sites, len(hospitals.feature_names), len(hospitals.sites)
    one = [ba.losses.Logistic(shared.with_ones(site.X), site.y) for site in sites]
    four = [ba.losses.Logistic(own_intercept(site.X, k, K), site.y) for k, site in enumerate(sites)]

    def same(delta):
        return ba.families.FullGaussian(np.zeros(slopes + 1), delta)

    def weak(intercepts, delta):
        precision = np.diag(np.repeat([delta, OWN_PRECISION], [slopes, intercepts]))
        return ba.families.FullGaussian(np.zeros(slopes + intercepts), precision)

    def evidence(losses, prior):
        return -float(ba.run(ba.methods.PVI(), losses, prior).objective[-1])

    bounds = {
        "deltas": deltas,
        "one": [evidence(one, same(delta)) for delta in deltas],
        "four": [evidence(four, weak(K, delta)) for delta in deltas],
    }
    delta, delta_four = best_delta(bounds, "one"), best_delta(bounds, "four")
    target, target_four = tabular.pooled(one, same(delta)), tabular.pooled(four, weak(K, delta_four))
    local = [ba.solve_pooled([loss], weak(1, delta_four)).posterior for loss in one]
    fits = [tabular.fit(line, one, delta, target, rounds, tol=TOL) for line in tabular.lines(K)]
    line = tabular.Line(OWN, lambda _, delta: weak(K, delta), (ba.methods.PVI(),))
    fits.append(tabular.fit(line, four, delta_four, target_four, rounds, tol=TOL))
    mode = ba.families.IsotropicGaussian(target.laplace.mean)
    served = {POOLED: [target.variational] * K, POOLED_MODE: [mode] * K}
    served |= {fit.label: [fit.posterior] * K for fit in fits[:-1]}
    served |= {LOCAL: local, OWN: [fits[-1].posterior] * K}
    return {
        "sites": sites,
        "evidence": bounds,
        "target": target_four.variational,
        "local": local,
        "fits": fits,
        "predictions": {label: predict(label, posteriors, sites) for label, posteriors in served.items()},
    }


def own_intercept(X, k, n_sites):
    """Append one column a hospital: ones in that of hospital k, zeros elsewhere."""
    return np.column_stack([X, np.tile(np.eye(n_sites)[k], (len(X), 1))])


def best_delta(evidence, kind):
    return evidence["deltas"][int(np.argmax(evidence[kind]))]


def predict(label, posteriors, sites):
    """P(y = 1) of the test rows, hospital by hospital."""
    columns = [
        own_intercept(site.X_test, k, len(sites)) if label == OWN else shared.with_ones(site.X_test)
        for k, site in enumerate(sites)
    ]
    return [tabular.probability(q, X) for q, X in zip(posteriors, columns, strict=True)]


def hospital(site):
    """Rows, and what is odd about the training rows of the split that is drawn."""
    columns = zip(site.feature_names, site.X.T, strict=True)
    constant = [name for name, column in columns if column.min() == column.max()]
    sizes = {"train": len(site.y), "test": len(site.y_test), "classes": len(np.unique(site.y))}
    return {"name": site.name, **sizes, "constant_columns": constant}


def curve(fit):
    """One method on the split that is drawn; distances in standard deviations of the pooled posterior."""
    near = {"rounds_near": fit.rounds_to(NEAR), "rounds_same": fit.rounds_to(SAME)}
    found = {"label": fit.label, "rho": fit.rho, "status": fit.status, "rounds": fit.rounds, **near}
    return {**found, "floats_per_round": fit.floats_per_round, "distance": fit.distance}


def summary(label, splits):
    """One method over all splits: scores as (mean, sd), the largest distance and spread; references have no run."""
    groups = {}
    for split in splits:
        truth = [site.y_test for site in split["sites"]]
        for site, p, y in zip(split["sites"], split["predictions"][label], truth, strict=True):
            groups.setdefault(site.name, []).append(tabular.scores(p, y))
        everywhere = tabular.scores(np.concatenate(split["predictions"][label]), np.concatenate(truth))
        groups.setdefault(ALL, []).append(everywhere)
    kinds = ("accuracy", "nll", "brier")
    scores = {
        group: {kind: tabular.mean_sd([score[kind] for score in found]) for kind in kinds}
        for group, found in groups.items()
    }
    runs = [(split["sites"], fit) for split in splits for fit in split["fits"] if fit.label == label]
    spreads = [fit.spread for _, fit in runs if fit.spread is not None]
    return {
        "label": label,
        "scores": scores,
        "after": [tabular.mean_sd([accuracy(*run, n) for run in runs]) for n in (10, 20)] if runs else None,
        "distance": max((fit.distance[-1] for _, fit in runs), default=None),
        "spread": max(spreads, default=None),
        "failures": tabular.failures(fit for _, fit in runs),
    }


def accuracy(sites, fit, round_):
    """Mean over the rounds up to this one and the two before it, as in the paper."""
    y = np.concatenate([site.y_test for site in sites])
    last = [np.concatenate(predict(fit.label, [fit.after(round_ - i)] * len(sites), sites)) for i in range(3)]
    return float(np.mean([tabular.scores(p, y)["accuracy"] for p in last]))


def reliability(label, splits):
    """Test predictions of all splits by bin: rows, mean prediction, frequency of the disease (None where empty)."""
    p = np.concatenate([part for split in splits for part in split["predictions"][label]])
    y = np.concatenate([site.y_test for split in splits for site in split["sites"]])
    bin_ = np.minimum((p * BINS).astype(int), BINS - 1)
    rows, sums, cases = (np.bincount(bin_, weights, BINS) for weights in (None, p, y))
    ece = float(np.abs(sums - cases).sum() / rows.sum())
    means = [[float(v / n) if n else None for v, n in zip(total, rows, strict=True)] for total in (sums, cases)]
    return {"label": label, "rows": rows.tolist(), "predicted": means[0], "observed": means[1], "ece": ece}


def by_label(rows):
    return {row["label"]: row for row in rows}


def claims(numbers):
    summaries, curves = by_label(numbers["summaries"]), by_label(numbers["curves"])
    for label in (tabular.PVI, OWN, tabular.BAYESADMM, tabular.ACCELERATED, tabular.COV_FULL):
        same, measured = tabular.is_pooled(summaries[label]["distance"], summaries[label]["spread"])
        what = "mode with its curvature" if label == tabular.COV_FULL else "variational posterior"
        yield f"{label} is the pooled {what} to {SAME:g} posterior sd, in every split", same, measured
    for label in (tabular.FEDAVG, tabular.FEDPROX):
        claim = f"{label} is not the pooled fit: off by more than a tenth of a standard error"
        end, most = curves[label]["distance"][-1], summaries[label]["distance"]
        yield claim, end > 0.1, f"{end:.2f} sd in the split that is drawn, at most {most:.2f}"
    odd = [h for h in numbers["hospitals"] if h["classes"] == 1 and h["constant_columns"]]
    failures = sum(summary["failures"] for summary in numbers["summaries"])
    said = ", ".join(f"{h['name']}: {h['classes']} class, constant {', '.join(h['constant_columns'])}" for h in odd)
    claim = "a hospital with a single class and a constant column makes no run fail"
    yield claim, bool(odd) and failures == 0, f"{said}; {failures} failures in {len(numbers['seeds'])} splits"
    gain = min(max(evidence["four"]) - max(evidence["one"]) for evidence in numbers["evidence"])
    one, four = (summaries[label]["scores"][ALL]["nll"][0] for label in (tabular.PVI, OWN))
    claim = "an intercept for each hospital has the higher evidence, in every split, and predicts better"
    measured = f"at least {gain:.1f} nats more; NLL of test rows {four:.3f} against {one:.3f}"
    yield claim, gain > 0 and four < one, measured


def notes(numbers):
    """Settings that were chosen, what federating buys, and what failed."""
    summaries, curves = by_label(numbers["summaries"]), by_label(numbers["curves"])
    one, four = (sorted({best_delta(e, kind) for e in numbers["evidence"]}) for kind in ("one", "four"))
    one, four = (" or ".join(f"{delta:g}" for delta in deltas) for deltas in (one, four))
    rhos = ", ".join(f"{label} ρ = {curves[label]['rho']:g}" for label in (tabular.FEDPROX, tabular.FEDDYN))
    alone, together = (cell(summaries[label]["scores"][ALL]["nll"]) for label in (LOCAL, OWN))
    slopes = len(numbers["coefficients"]) - len(numbers["hospitals"])
    own = np.min([numbers["intervals"][h["name"]]["sd"][:slopes] for h in numbers["hospitals"]], axis=0)
    narrowing = np.median(np.array(numbers["intervals"]["federated"]["sd"][:slopes]) / own)
    yield f"splits {', '.join(map(str, numbers['seeds']))}; split {numbers['seed']} is drawn"
    yield f"δ by evidence: {one} with one intercept, {four} with four; {rhos} by training objective"
    yield f"NLL of each hospital's own fit {alone}, of the federated one with four intercepts {together}"
    yield f"standard errors of slopes: federated ÷ smallest of the hospitals' own, median {narrowing:.2f}"
    for curve in filter(shared.failed, numbers["curves"]):
        yield f"{curve['label']} ends after {curve['rounds']} rounds: {curve['status']}"


def tables(numbers):
    """Return the tables of docs/flagship.md."""
    ece = {curve["label"]: f"{curve['ece']:.3f}" for curve in numbers["reliability"]}
    names = [hospital["name"] for hospital in numbers["hospitals"]]
    scores, hospitals, paper = [], [], []
    for summary in numbers["summaries"]:
        label, score = summary["label"], summary["scores"]
        whole = [percent(score[ALL]["accuracy"]), cell(score[ALL]["nll"]), cell(score[ALL]["brier"])]
        scores.append([label, *whole, ece[label]])
        hospitals.append([label, *(f"{percent(score[n]['accuracy'])} / {cell(score[n]['nll'])}" for n in names)])
        if label in PAPER:
            pairs = zip(summary["after"], PAPER[label], strict=True)
            paper.append([label, *(f"{percent(ours)}, {theirs}" for ours, theirs in pairs)])

    def arrival(curve, rounds):
        return "never" if rounds is None else f"{rounds} ({rounds * curve['floats_per_round']:,})"

    travel = []
    for curve in numbers["curves"]:
        arrivals = [arrival(curve, curve["rounds_near"]), arrival(curve, curve["rounds_same"])]
        travel.append(
            [curve["label"], str(curve["floats_per_round"]), *arrivals, shared.size(curve["distance"][-1], ".0e")]
        )
    head = ["", "floats a round", f"rounds (floats) to {NEAR:g} sd", f"to {SAME:g} sd", "distance at the end, sd"]
    return {
        "heart-scores": tabular.markdown(["", "accuracy, %", "NLL", "Brier", "ECE"], scores),
        "heart-hospitals": tabular.markdown(["accuracy, % / NLL", *names], hospitals),
        "heart-rounds": tabular.markdown(head, travel),
        "heart-paper": tabular.markdown(["accuracy, %: ours, the paper's", "10 rounds", "20 rounds"], paper),
    }


# ---- drawing ---------------------------------------------------------------------------------------------------------

COLOURS = (style.ORANGE, style.GREEN, style.PURPLE, style.SKY)
LOOKS = tabular.LOOKS | {OWN: style.Look(style.VERMILION, "o", "-")}


def draw(numbers):
    """Coefficients; distances and reliability; a table."""
    figure = style.new_figure(style.WIDTH, 8.2)
    upper, lower = figure.subfigures(2, 1, height_ratios=(1.0, 0.4))
    left, right = upper.subfigures(1, 2, width_ratios=(1.0, 1.12))
    slopes, intercepts = left.subplots(2, 1, height_ratios=(13, 4))
    draw_coefficients(slopes, numbers, slice(0, -len(numbers["hospitals"])))
    draw_coefficients(intercepts, numbers, slice(-len(numbers["hospitals"]), None))
    slopes.set_title("a  Federated = pooled, with error bars")
    intercepts.set_xlabel("coefficient and 95 % interval")
    handles, labels = slopes.get_legend_handles_labels()
    left.legend(handles, labels, loc="outside lower center", ncols=2, columnspacing=1.2, handlelength=1.6)
    distances, calibration = right.subplots(2, 1)
    draw_distances(distances, numbers)
    draw_reliability(calibration, numbers)
    draw_table(lower.subplots(), numbers)
    return figure


def draw_coefficients(axes, numbers, shown):
    names = numbers["coefficients"][shown]
    place = np.arange(len(names))

    def bars(who, part, at, **look):
        mean, sd = (np.array(numbers["intervals"][who][key][part]) for key in ("mean", "sd"))
        axes.errorbar(mean, at, xerr=1.96 * sd, **look)

    for i, (hospital, colour) in enumerate(zip(numbers["hospitals"], COLOURS, strict=True)):
        look = {"fmt": ".", "color": colour, "markersize": 3, "elinewidth": 0.8}
        look["label"] = f"{hospital['name']} alone ({hospital['train']})"
        if shown.start == 0:
            bars(hospital["name"], slice(0, -1), place + 0.13 + 0.16 * i, **look)
        else:
            bars(hospital["name"], slice(-1, None), place[i : i + 1] + 0.25, **look)
    bars("pooled", shown, place - 0.16, label="pooled rows", fmt="s", color="#B8B8B8", markersize=6, elinewidth=4.5)
    bars("federated", shown, place - 0.16, label="federated", fmt="o", color=style.BLACK, markersize=3, elinewidth=1.0)
    axes.axvline(0, color=style.MUTED, linewidth=0.6, zorder=0)
    axes.set_yticks(place, names)
    axes.set_ylim(len(place) - 0.2, -0.6)
    axes.grid(True, axis="x")
    axes.tick_params(length=0, axis="y")


def draw_distances(axes, numbers):
    tabular.draw_distances(axes, numbers["curves"], LOOKS, marks=9, dashes=(0, (2, 2)), top=20)
    axes.set_xscale("symlog", linthresh=10, linscale=1.2)
    ticks = [0, 2, 4, 6, 8, 10, 20, 50, 100]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_xlim(0, max(len(curve["distance"]) for curve in numbers["curves"]) - 1)
    axes.set(ylabel="largest error of a mean\n(posterior sd)", title="b  Distance to each method's pooled fit")


def draw_reliability(axes, numbers):
    axes.plot([0, 1], [0, 1], color=style.MUTED, linewidth=0.7, linestyle=(0, (2, 2)))
    found = by_label(numbers["reliability"])
    looks = {LOCAL: style.Look(style.ORANGE, "s", (0, (1, 1)))}
    for label in (LOCAL, tabular.FEDAVG, tabular.PVI, OWN):
        predicted, observed = ([v for v in found[label][key] if v is not None] for key in ("predicted", "observed"))
        text = f"{label}: ECE {found[label]['ece']:.3f}"
        axes.plot(predicted, observed, label=text, **(LOOKS | looks)[label].kwargs())
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="predicted probability of disease", ylabel="observed frequency")
    axes.set_title("c  Calibration on test patients")
    axes.legend(loc="lower right")
    style.tidy(axes)


HEADS = ("accuracy, %", "NLL", "Brier", "rounds to\n0.01 sd", "rounds to\n$10^{-6}$ sd", "floats to\n$10^{-6}$ sd")
COLUMNS = (0.33, 0.47, 0.61, 0.74, 0.86, 0.99)


def draw_table(axes, numbers):
    curves = by_label(numbers["curves"])
    axes.set_axis_off()
    axes.set(xlim=(0, 1), ylim=(len(numbers["summaries"]) + 0.1, -1.6))
    for x, head in zip(COLUMNS, HEADS, strict=True):
        axes.text(x, -0.55, head, ha="right", va="bottom", fontsize=7, fontweight="bold", linespacing=1.1)
    axes.set_title(f"d  All test patients, mean (sd) of {len(numbers['seeds'])} splits; rounds of the split in a and b")
    axes.axhline(-0.45, color=style.MUTED, linewidth=0.6)
    for row, summary in enumerate(numbers["summaries"]):
        label, score = summary["label"], summary["scores"][ALL]
        if label == LOCAL:
            axes.axhline(row - 0.48, color=style.MUTED, linewidth=0.4)
        cells = [percent(score["accuracy"]), cell(score["nll"]), cell(score["brier"])]
        if label in curves:
            near, same = curves[label]["rounds_near"], curves[label]["rounds_same"]
            counts = (near, same, same and same * curves[label]["floats_per_round"])
            cells += ["–" if count is None else f"{count:,}" for count in counts]
            axes.plot(0.012, row + 0.02, clip_on=False, **LOOKS[label].kwargs())
            axes.plot([0, 0.024], [row + 0.02] * 2, clip_on=False, **(LOOKS[label].kwargs() | {"marker": ""}))
        axes.text(0.035, row, label, va="center", fontsize=7)
        for x, text in zip(COLUMNS, cells, strict=False):
            axes.text(x, row, text, ha="right", va="center", fontsize=7)


MORE = {"results": "heart_disease.json", "needs": lambda _: data.load_heart_disease()}
TITLE = "Heart disease at four hospitals"
DEMO = shared.Demo("heart", "heart_disease", TITLE, compute, claims, draw, notes, tabular.ACCURACY, **MORE)

if __name__ == "__main__":
    DEMO.main()
