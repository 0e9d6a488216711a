"""Discrimination and calibration, against scikit-learn and DeLong's formula over all pairs."""

from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from scipy.integrate import trapezoid
from scipy.special import expit
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss, roc_auc_score

from bayesadmm_np.estimators import evaluate
from bayesadmm_np.estimators.evaluation import EDGES, NORMAL_975, WIDTH, Evaluation, roc, site_counts
from oracles.refusals import assert_refused


def draws(n=600, seed=0):
    rng = np.random.default_rng(seed)
    f = rng.normal(0.0, 1.5, n)
    return expit(f), (rng.random(n) < expit(f)).astype(int), rng.integers(0, 3, n)


def delong(p, y):
    """AUC and its variance over all pairs (DeLong, DeLong and Clarke-Pearson 1988)."""
    psi = (p[y == 1][:, None] > p[y == 0]) + 0.5 * (p[y == 1][:, None] == p[y == 0])
    tens, ones = psi.mean(axis=1), psi.mean(axis=0)
    return psi.mean(), tens.var(ddof=1) / tens.size + ones.var(ddof=1) / ones.size


def test_scores_are_those_of_scikit_learn():
    p, y, site = draws()
    p = np.round(p, 2)  # ties
    found = evaluate(p, y, site)
    for name, counts in [("all", found.pooled), *found.sites.items()]:
        here = np.ones(y.size, bool) if name == "all" else site == int(name)
        assert np.isclose(counts.auc.estimate, roc_auc_score(y[here], p[here]), rtol=1e-12)
        assert np.isclose(counts.brier_score, brier_score_loss(y[here], p[here]), rtol=1e-12)
        assert np.isclose(counts.log_loss, log_loss(y[here], p[here]), rtol=1e-12)
    others, events = roc(found.pooled)
    assert np.isclose(trapezoid(events, others), roc_auc_score(y, p), rtol=1e-12)


PROC = [
    # library(pROC); c(ci.auc(roc(y, p, direction="<"))), with the y and p of `TIED`
    (slice(None), (0.55759524091452484, 0.79591836734693877, 1.0)),
    # the same of y[1:10] and p[1:10]
    (slice(10), (0.50275674460811592, 0.8, 1.0)),
]
TIED = (
    np.array([0, 0, 1, 1, 0, 1, 0, 1, 1, 0, 0, 1, 0, 1]),
    np.array([0.1, 0.4, 0.35, 0.8, 0.4, 0.4, 0.2, 0.9, 0.7, 0.65, 0.05, 0.35, 0.35, 0.6]),
)


@pytest.mark.parametrize(("rows", "right"), PROC, ids=["14 rows", "10 rows"])
def test_the_interval_is_that_of_pROC(rows, right):
    y, p = TIED[0][rows], TIED[1][rows]
    auc = site_counts(p, y).auc
    assert np.allclose([auc.low, auc.estimate, auc.high], right, rtol=1e-14)


def test_the_interval_is_delongs_of_any_rows():
    """Ties, narrow risks and sites: the AUC is that of the ranks to rounding, and the interval that of all pairs."""
    for seed in range(30):
        rng = np.random.default_rng(seed)
        p = expit(rng.normal(rng.normal(0, 3), 10.0 ** rng.uniform(-6, 1), 120))
        p = np.round(p, rng.integers(1, 4)) if seed % 3 == 0 else p
        y, site = (rng.random(120) < 0.4).astype(int), rng.integers(0, 4, 120)
        found = evaluate(p, y, site)
        auc, variance = delong(p, y)
        reach = NORMAL_975 * np.sqrt(variance)
        pooled = found.pooled.auc
        assert np.isclose(pooled.estimate, roc_auc_score(y, p), rtol=1e-14)
        assert np.allclose([pooled.low, pooled.high], [max(auc - reach, 0), min(auc + reach, 1)], rtol=1e-12)
        assert found.pooled.auc_error == 0.0
        # the twin: ties of rows that differ by less than a percent of risk are another AUC
        assert seed % 3 == 0 or site_counts(np.round(p, 1), y).auc.estimate != pooled.estimate


def test_an_interval_of_coarse_counts_contains_the_auc_of_the_rows():
    """Narrow risks stand in one span: DeLong's interval of its ties, the broken twin, misses some."""
    n_missed = 0
    for seed in range(150):
        rng = np.random.default_rng(seed)
        f = rng.normal(rng.normal(0, 2), 10.0 ** rng.uniform(-3, 0.5), 90)
        y = (rng.random(90) < expit(3 * (f - f.mean()) / f.std())).astype(int)
        sites = np.arange(90) % 3
        if min(min(y[sites == k].sum(), (1 - y[sites == k]).sum()) for k in range(3)) < 3:
            continue
        counts, right = by_sites(expit(f), y, sites).pooled, roc_auc_score(y, f)
        assert counts.auc.low <= right <= counts.auc.high, seed
        ties = replace(counts, spans=()).auc
        n_missed += ties.low is None or not ties.low <= right <= ties.high
    assert n_missed > 10


def test_a_perfect_or_one_sided_prediction_has_no_interval():
    assert site_counts([0.1, 0.2, 0.9], [0, 0, 1]).auc.low is None
    assert np.isnan(site_counts([0.1, 0.2], [0, 0]).auc.estimate)
    text = str(evaluate([0.1, 0.2, 0.9], [0, 0, 1], ["a", "a", "b"]))
    assert text.count("one class") == 2
    assert "nan" not in text


def test_calibration_groups_hold_all_rows_and_cover():
    p, y, _ = draws(5000)
    groups = site_counts(p, y).calibration()
    assert sum(n for _, _, n in groups) == 5000
    assert sum(share.low <= mean <= share.high for mean, share, _ in groups) >= 8
    wrong = site_counts(expit(2 * np.log(p / (1 - p))), y).calibration()  # the twin: overconfident predictions
    assert sum(share.low <= mean <= share.high for mean, share, _ in wrong) <= 4


def draws_of_classes(n=400, seed=0):
    rng = np.random.default_rng(seed)
    f = rng.normal(size=(n, 3))
    p = np.exp(f) / np.exp(f).sum(axis=1, keepdims=True)
    names = np.array(["mild", "none", "severe"])
    return p, names[(np.cumsum(p, axis=1) < rng.random((n, 1))).sum(axis=1)], rng.integers(0, 2, n), names


def test_scores_of_three_classes_are_those_of_scikit_learn():
    p, y, site, names = draws_of_classes()
    found = evaluate(p, y, site, classes=names)
    for name, score in found.scores().items():
        here = np.ones(y.size, bool) if name == "all" else site == int(name)
        hot = y[here, None] == names
        assert score["rows"] == here.sum()
        assert np.isclose(score["accuracy"], accuracy_score(y[here], names[p[here].argmax(axis=1)]), rtol=1e-12)
        assert np.isclose(score["log_loss"], log_loss(y[here], p[here], labels=names), rtol=1e-12)
        assert np.isclose(score["brier"], ((p[here] - hot) ** 2).sum(axis=1).mean(), rtol=1e-12)
        for c, label in enumerate(names):
            counts = found.classes[label].pooled if name == "all" else found.classes[label].sites[name]
            truth = roc_auc_score(hot[:, c], p[here, c])
            assert np.isclose(counts.auc.estimate, truth, rtol=1e-14)
    # the twin: labels in another order are other scores
    turned = evaluate(p, y, site, classes=names[[1, 0, 2]]).scores()["all"]
    assert turned["log_loss"] > found.scores()["all"]["log_loss"] + 0.1
    assert turned["accuracy"] < found.scores()["all"]["accuracy"] - 0.1


def test_the_table_and_the_figure_of_three_classes_name_each():
    p, y, site, names = draws_of_classes()
    found = evaluate(p, y, site, classes=names)
    text = str(found)
    assert text.count("against all others") == 3  # all, and two sites
    assert all(text.count(f"\n{name} ") == 3 for name in names)
    with mpl.rc_context():
        figure = Figure(figsize=(7.2, 3.2), layout="constrained")
        found.plot(figure)
    left, right = ([text.get_text() for text in axis.get_legend().get_texts()] for axis in figure.axes)
    assert [text.split(":")[0] for text in left] == right == names.tolist()
    assert list(found.to_dict()) == ["all", *(str(name) for name in dict.fromkeys(site)), "classes"]


def test_refusals_name_the_argument():
    p, y, site, names = draws_of_classes()
    assert_refused(
        [
            (lambda: evaluate([0.2, 1.2], [0, 1]), "probability"),
            (lambda: evaluate([0.2, np.nan], [0, 1]), "probability"),
            (lambda: evaluate([0.2, 0.4], [0, 2]), "y"),
            (lambda: evaluate([0.2, 0.4], [0, 1], ["a"]), "client"),
            (lambda: evaluate(p, y, site, classes=["mild", "none"]), "classes"),
            (lambda: evaluate(p, y, site, classes=["mild", "none", "dead"]), "y"),
            (lambda: evaluate(0.9 * p, y, site, classes=names), "probability"),
        ]
    )


def by_sites(p, y, site, rows=10, of_class=3):
    """Coarse counts of each site, as files carry them."""
    return Evaluation({str(k): site_counts(p[site == k], y[site == k]).coarse(rows, of_class) for k in np.unique(site)})


def may_leave(found):
    return all(
        events + others >= 10 and all(n == 0 or n >= 3 for n in (events, others))
        for counts in found.sites.values()
        for *_, events, others, _ in counts.spans
    )


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 10_000), st.integers(60, 400), st.floats(0.05, 40.0), st.floats(-30.0, 30.0), st.sampled_from([0, 1])
)
def test_coarse_counts_hold_groups_and_their_bounds_hold(seed, n, spread, middle, ties):
    """Whatever the predictions: clumped, all beyond the last bin, tied, or in the wrong order."""
    rng = np.random.default_rng(seed)
    f = rng.normal(middle, spread, n)
    p = expit(np.round(f) if ties else f)
    y, site = (rng.random(n) < 0.5).astype(int), np.arange(n) % 2
    found = by_sites(p, y, site)
    assert may_leave(found)
    assert found.pooled.n_rows == n
    assert found.pooled.n_events == y.sum()
    for name, counts in [("all", found.pooled), *found.sites.items()]:
        here = np.ones(n, bool) if name == "all" else site == int(name)
        # sums of at most 400 numbers of at most 1: rounding below 1e-12
        assert abs(counts.auc.estimate - roc_auc_score(y[here], p[here])) <= counts.auc_error + 1e-12
        assert abs(counts.brier_score - brier_score_loss(y[here], p[here])) <= counts.brier_error + 1e-12
        within = np.abs(f[here]) < 16.0  # a bin's middle is 0.005 from either edge: e^0.005 in p, of the rows in bins
        if within.all():
            assert abs(counts.predicted.sum() / p[here].sum() - 1.0) < 0.0051


def test_the_bounds_are_no_wider_than_needed():
    """Twins that are broken: without the spans' pairs, or with half of the bound, some AUC lies beyond it."""
    beyond = np.zeros(2)
    for seed in range(40):
        rng = np.random.default_rng(seed)
        f = np.sort(rng.normal(0.0, 0.3, 40))
        y = np.zeros(40, int)
        y[20:30] = 1  # within a span the order is right, which ties do not see
        counts = site_counts(expit(f), y).coarse(10, 3)
        error = abs(counts.auc.estimate - roc_auc_score(y, f))
        same_bin = 0.5 * float(counts.events @ counts.others) / (10 * 30)
        assert error <= counts.auc_error
        beyond += error > 0.5 * same_bin, error > 0.2 * counts.auc_error
    assert beyond.min() > 0


def test_no_edge_of_a_span_stands_where_a_row_is():
    """Edges are halves of halves of all bins, however the rows lie; the tenth row, a twin's edge, is not."""
    fixed, parts = set(), [(0, EDGES.size + 1)]
    while parts:
        first, end = parts.pop()
        fixed |= {first, end}
        if end - first >= 2 * WIDTH:
            parts += [(first, (first + end) // 2), ((first + end) // 2, end)]
    for seed in range(20):
        p, y, _ = draws(300, seed)
        assert {
            edge for first, last, *_ in site_counts(p, y).coarse(10, 3).spans for edge in (first, last + 1)
        } <= fixed
    bins = np.searchsorted(EDGES, np.sort(np.log(p / (1 - p))), side="right")
    assert bins[9] + 1 not in fixed


@pytest.mark.parametrize(("n", "events"), [(9, 4), (40, 2), (40, 39)])
def test_too_few_rows_have_no_coarse_counts(n, events):
    y = (np.arange(n) < events).astype(int)
    with pytest.raises(ValueError, match=r"^counts "):
        site_counts(np.linspace(0.1, 0.9, n), y).coarse(10, 3)


def test_coarse_counts_say_what_they_do_not_know():
    p, y, site = draws()
    found = by_sites(p, y, site)
    assert found.to_dict()["all"]["log_loss"] is None
    assert "nan" not in str(found)
    exact = evaluate(p, y, site)
    for name, row in found.to_dict().items():
        right = exact.to_dict()[name]
        assert (
            abs(row["auc"]["estimate"] - right["auc"]["estimate"]) < 0.08
        )  # measured: at most 0.07 in 200 draws of 200 rows
        assert abs(row["brier"] - right["brier"]) < 0.02  # measured: at most 0.011
    assert exact.pooled.brier_error == 0.0
