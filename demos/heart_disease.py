"""Heart disease at four hospitals: a logistic regression with error bars, while patients' rows stay where they are.

The data are those of FLamby: thirteen features and an intercept, 486 training rows and 254 test rows, standardised in
each hospital. Each seed draws the training rows anew. A grid offers values of the prior precision δ, and a federated
run of PVI on the training rows chooses the one with the largest evidence bound, which needs one number from each
hospital. All other settings are in tabular.py.

All methods fit FLamby's model, which has one intercept. Each hospital's columns are centred, so that this model gives
all hospitals the same prevalence, and the hospitals do not have the same. PVI therefore also fits one intercept for
each hospital under the prior N(0, 10): a column of ones there, and of zeros elsewhere. The fits of single hospitals
use this prior too.

One split has the coefficients (of the model with four intercepts), the distances to the pooled fit and the numbers of
rounds: the first split in which a hospital's training rows have a single class. (Switzerland's cholesterol is constant
in every split.) Scores are means over all splits. Reliability uses the test predictions of all splits in ten bins of
equal width. The expected calibration error is Σ_b n_b |mean p_b − mean y_b| / Σ_b n_b over these bins.
"""

import numpy as np

import bayesadmm_np as ba
from bayesadmm_np import data
from bayesadmm_np.demos import shared, tabular
from bayesadmm_np.demos.heart_disease_figure import ALL, LOCAL, OWN, POOLED, POOLED_MODE, by_label, draw, tables
from bayesadmm_np.demos.tabular import NEAR, SAME, TOL, cell

__all__ = ["DEMO", "tables"]

BINS, OWN_PRECISION = 10, 0.1


def compute(seeds=(0, 1, 2, 3, 4), rounds=100, deltas=(0.1, 1.0, 10.0, 100.0), track=iter):
    """Fit every split; the figure shows the split with a single-class hospital, or else the first."""
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
    """Append one column for each hospital: ones in the column of hospital k, zeros elsewhere."""
    return np.column_stack([X, np.tile(np.eye(n_sites)[k], (len(X), 1))])


def best_delta(evidence, kind):
    return evidence["deltas"][int(np.argmax(evidence[kind]))]


def predict(label, posteriors, sites):
    """Return P(y = 1) of the test rows, hospital by hospital."""
    columns = [
        own_intercept(site.X_test, k, len(sites)) if label == OWN else shared.with_ones(site.X_test)
        for k, site in enumerate(sites)
    ]
    return [tabular.probability(q, X) for q, X in zip(posteriors, columns, strict=True)]


def hospital(site):
    """Return the counts of rows, classes and constant columns of a hospital in the split that is drawn."""
    columns = zip(site.feature_names, site.X.T, strict=True)
    constant = [name for name, column in columns if column.min() == column.max()]
    sizes = {"train": len(site.y), "test": len(site.y_test), "classes": len(np.unique(site.y))}
    return {"name": site.name, **sizes, "constant_columns": constant}


def curve(fit):
    """Return one method's distances by round on the split that is drawn, in standard deviations of the pooled fit."""
    near = {"rounds_near": fit.rounds_to(NEAR), "rounds_same": fit.rounds_to(SAME)}
    found = {"label": fit.label, "rho": fit.rho, "status": fit.status, "rounds": fit.rounds, **near}
    return {**found, "floats_per_round": fit.floats_per_round, "distance": fit.distance}


def summary(label, splits):
    """Return one method's scores over all splits as (mean, sd), and its largest distance and spread if it has runs."""
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
    """Return the mean over this round and the two before it, as in the paper."""
    y = np.concatenate([site.y_test for site in sites])
    last = [np.concatenate(predict(fit.label, [fit.after(round_ - i)] * len(sites), sites)) for i in range(3)]
    return float(np.mean([tabular.scores(p, y)["accuracy"] for p in last]))


def reliability(label, splits):
    """Return rows, mean prediction and frequency of the disease in each bin of all splits; None in empty bins."""
    p = np.concatenate([part for split in splits for part in split["predictions"][label]])
    y = np.concatenate([site.y_test for split in splits for site in split["sites"]])
    bin_ = np.minimum((p * BINS).astype(int), BINS - 1)
    rows, sums, cases = (np.bincount(bin_, weights, BINS) for weights in (None, p, y))
    ece = float(np.abs(sums - cases).sum() / rows.sum())
    means = [[float(v / n) if n else None for v, n in zip(total, rows, strict=True)] for total in (sums, cases)]
    return {"label": label, "rows": rows.tolist(), "predicted": means[0], "observed": means[1], "ece": ece}


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
    """Yield the chosen settings, the gain over a hospital's own rows, and the runs that failed."""
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


MORE = {"results": "heart_disease.json", "needs": lambda _: data.load_heart_disease()}
TITLE = "Heart disease at four hospitals"
DEMO = shared.Demo("heart", "heart_disease", TITLE, compute, claims, draw, notes, tabular.ACCURACY, **MORE)

if __name__ == "__main__":
    DEMO.main()
