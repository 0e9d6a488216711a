"""The study behind Figure 4 and the page of the figures: results follow from draws, and the page has their numbers."""

import importlib
import json
import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="the demos need the extra `demos`")
pytest.importorskip("sklearn", reason="the demos need the extra `demos`")

import bayesadmm_np as ba
from bayesadmm_np.demos import fig4_outlier as figure
from bayesadmm_np.demos import fig5b_logistic, reproduce, shared

ROOT = Path(__file__).resolve().parents[2]
CLEAN = ("none", "right")  # settings without a wrong label


@pytest.fixture
def study(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("outlier")


@pytest.fixture(scope="module")
def content():
    return json.loads((ROOT / "benchmarks" / "results" / "outlier.json").read_text(encoding="utf-8"))


def drawn(row, seed):
    """One draw of a setting, out of its columns."""
    return {
        key: {k: v[seed] for k, v in value.items()} if isinstance(value, dict) else value[seed]
        for key, value in row.items()
        if key != "setting"
    }


@pytest.mark.parametrize(("name", "seed"), [("base", 0), ("far4", 1), ("turn90", 2), ("points14", 3), ("none", 4)])
def test_a_draw_is_that_of_the_results_file(study, content, name, seed):
    """Twin: the next draw is another one. No distance lies so near the criterion that rounding may decide."""
    found = study.measured(name, seed)
    assert found == drawn(content[name], seed)
    assert found != drawn(content[name], seed + 1)
    runs, _ = figure.compare(*study.draw(name, seed), study.ROUNDS)
    assert min(abs(value - 1.0) for near, *_ in runs.values() for value in near) > 1e-5


def test_every_setting_has_twenty_draws_and_says_what_differs(study, content):
    assert list(content) == list(study.SETTINGS)
    assert len(content) == 19
    for name, row in content.items():
        assert row["setting"] == study.SETTINGS[name][0]
        assert {len(counts) for counts in row["rounds"].values()} == {study.DRAWS} == {20}


def test_counting_pairs_and_medians(study):
    row = {"rounds": {"a": [1, 2, 3, None, None], "b": [1, 3, 2, None, 4]}}
    assert study.counts({"x": row}, a="a", b="b") == (2, 1, 2)
    assert study.median([1, None, None]) == "never"
    assert study.median([1, 2, 2, None]) == "2"


def test_what_the_study_found(study, content):
    """The statements of docs/figures.md that are no cell of its table."""
    assert max(max(row["rounds"][figure.METRIC]) for row in content.values()) == 3
    ended = [status for row in content.values() for status in row["small_rho"]]
    assert {status.split()[0] for status in ended} == {"ILL_POSED_CLIENT"}
    assert sum(status.endswith(" 1") for status in ended) == 362
    wrong = [row for name, row in content.items() if name not in CLEAN]
    assert sum(rank == 1 for row in wrong for rank in row["sd_rank"]) == 30
    assert sum(len(row["sd_rank"]) for row in wrong) == 340
    apart = [np.abs(np.subtract(row["share"], row["share_mean"])).max() for row in wrong]
    assert max(apart) < 0.03


# The page -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page():
    return (ROOT / "docs" / "figures.md").read_text(encoding="utf-8")


def section(page, key):
    return page.split(f"#figure-{key} }}")[1].split("\n## ")[0]


@pytest.mark.parametrize("key", ["3", "4", "5a", "5b", "5c"])
def test_the_page_marks_what_the_results_mark(page, key):
    """Count the marks "≠ paper" of the page and of the results file; ✓ is there, and the picture is shown."""
    demo = reproduce.load(key)
    claims = shared.read_results(ROOT / "figures" / demo.results)[key]["claims"]
    rows = [line for line in section(page, key).splitlines() if line.startswith("| ")]
    ends = [row.strip("| ").rpartition("|")[2].strip() for row in rows[1:]]
    assert ends.count("≠ paper") == [shared.mark(claim) for claim in claims].count("≠ paper")
    assert "✓" in ends
    assert "✗" not in ends
    assert f"](../figures/{demo.name}.png)" in section(page, key)


def numbers_in(text):
    return [float(number) for number in re.findall(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:e-?\d+)?", text.replace("−", "-"))]


def claimed(page, key):
    """Return the numbers of each row of a claim table: the paper's, and ours."""
    rows = section(page, key).split("| paper | ours | |\n|---|---|---|\n")[1].split("\n\n")[0].splitlines()
    return [tuple(numbers_in(cell) for cell in row.split("|")[1:3]) for row in rows]


def measured(key):
    """Return what `claimed` should be: ours from the results file; the paper's and names such as client 1 as typed."""
    entry = shared.read_results(ROOT / "figures" / reproduce.load(key).results)[key]
    found, said = entry["numbers"], [numbers_in(claim["measured"]) for claim in entry["claims"]]
    if key == "3":
        (first, one), (second, other) = ((said[k][1], said[k + 2][0]) for k in (0, 3))
        return [([], [found["tol"], first, second]), ([], [float(f"{max(one, other):.0e}")])]
    if key == "4":
        curves, (slow, clean), rho = found["curves"], said[4], [figure.RHO]
        return [
            ([*rho, 5], [curves[figure.SMALL]["rounds"]]),
            ([*rho, 2], [found["small_rho"]["rounds"], 1]),
            ([2, 4.1], [curves[figure.BAYES]["rounds"], figure.ROWS[figure.BAYES][0].rho]),
            ([], [slow, clean, said[5][0]]),
            ([], [said[3][1], 1, said[3][2]]),
            ([], said[7][:1]),
        ]
    if key == "5a":
        ends = [float(f"{said[k][0]:.{digits}e}") for k, digits in ((2, 1), (3, 0))]
        return [([], [max(entry["accuracy"]["absolute"], *said[0])]), ([], [said[2][1], *ends])]
    if key == "5b":
        (rho, fast, slow), (rounds,), (safe, damped) = said[2], said[5], said[7]
        full, near = numbers_in(entry["claims"][4]["claim"]), 100 * fig5b_logistic.NEAR
        return [([], []), ([], full), ([rho], [fast, slow, near]), ([], [rounds]), ([], [safe, damped])]
    (admm, pvi), lead, last = (said[3][:2], said[3][2:]), said[0], [found["rounds"], *said[2]]
    return [([], [1, len(lead), *lead]), ([], said[1]), ([100, 46.6, 47.5, 5], last), ([2.0, 2.2, 5], [*pvi, *admm])]


@pytest.mark.parametrize("key", ["3", "4", "5a", "5b", "5c"])
def test_every_number_of_the_claim_tables_is_that_of_the_results(page, key):
    """Twins: each number of the table, changed in its last digit."""
    expected = measured(key)
    assert claimed(page, key) == expected
    table = section(page, key).split("|---|---|---|\n")[1].split("\n\n")[0]
    for place in re.finditer(r"(?<![\w.])\d[\d.]*(?:e-\d+)?", table):
        other = f"{place.group()[:-1]}{(int(place.group()[-1]) + 1) % 10}"
        wrong = table[: place.start()] + other + table[place.end() :]
        assert claimed(page.replace(table, wrong), key) != expected, other


def test_the_page_has_the_numbers_of_the_study(study, content, page):
    """Its table and its sentences; the twin is the other order of a pair."""
    table = page.split("<!-- study -->\n\n")[1].split("\n\n<!-- end -->")[0]
    names = ("base", "none", "right", "far4", "turn90", "points14", "unequal")
    assert table == study.table(content, names)
    text = " ".join(page.split())
    same, slower, faster = study.counts(content)
    assert f"same round in {same} of 380 problems, later in {slower} and sooner in {faster}." in text
    assert f"later in {faster} and sooner in {slower}." not in text
    _, slower, faster = study.counts(content, "with_length")
    assert f"sooner with averages in {slower} problems and later in {faster}." in text
    _, slower, faster = study.counts(content, "with_length", figure.PVI, figure.PVI_MEAN)
    assert f"the two are level ({slower} and {faster})" in text
    ranks = [np.median(content["base"][key]) for key in ("sd_rank", "sd_rank_other_label")]
    assert f"median rank is {ranks[0]:g} of 151. With the right label the same point ranks {ranks[1]:g}:" in text
    assert "30 of 340 draws" in text


def test_the_page_says_what_the_runs_of_figures_3_and_4_measure(page):
    """The factors of a round near the solution, the rounds, and a client's share of the curvature with its limit."""
    losses, full = figure.problem(), ba.families.FullGaussian(np.zeros(3), figure.DELTA)
    isotropic = ba.families.IsotropicGaussian(np.zeros(3), figure.DELTA)
    points, learned = ba.local_rates(losses, isotropic, expectation=ba.losses.Delta(1)), ba.local_rates(losses, full)
    text = " ".join(section(page, "3").split())
    assert f"the factor is {learned.factor(ba.methods.BayesADMM(1.0)):.2f}." in text
    one, small = (points.factor(ba.methods.ADMM(rho)) for rho in (1.0, 0.2))
    assert f"{one:.2f} at $\\rho = 1$ and {small:.2f} at $\\rho = 0.2$" in text
    rounds = ba.run(ba.methods.PVI(), losses, full, tol=1e-8, solver=ba.clients.VariationalNewton(tol=1e-10)).rounds
    assert f"has {learned.factor(ba.methods.PVI()):.2f} and closes in {rounds} rounds" in text
    failure = ba.run(ba.methods.BayesADMM(figure.RHO), losses, full, raise_on_failure=False).failure
    text = " ".join(section(page, "4").split())
    assert f"the limit is {failure.limit:.0%}".replace("%", " %") in text
    assert f"client 1 has {failure.share:.0%}".replace("%", " %") in text


def test_the_page_says_what_a_stronger_regulariser_does_to_admm(page):
    """Rounds of ADMM at ρ = 0.2 for two δ, each to its own optimum; no distance lies near the criterion."""
    losses, found = figure.problem(), {}
    for delta in (0.2, 5.0):
        prior = ba.families.IsotropicGaussian(np.zeros(3), delta)
        optimum = ba.solve_pooled(losses, prior, expectation=ba.losses.Delta(1)).posterior.mean
        near, found[delta], _ = figure.arrive(
            list(figure.in_metric(losses, figure.RHO * np.eye(3), delta, 60)), optimum
        )
        assert min(abs(value - 1.0) for value in near) > 1e-4
    text = " ".join(section(page, "4").split())
    assert f"{found[0.2]} rounds at $\\delta = 0.2$, and {found[5.0]} at $\\delta = 5$." in text


@pytest.mark.parametrize(("delta", "bounded"), [(1.0, False), (20.0, True)])
def test_rho_below_one_over_k_may_still_converge(delta, bounded):
    """By local minima with a weak prior, and with a strong one because ρS_0 outweighs the rest."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(20, 2)), rng.random(20) < 0.5
    losses = [ba.losses.Logistic(X[rows], y[rows].astype(int)) for rows in (slice(10), slice(10, 20))]
    result = ba.run(ba.methods.BayesADMM(0.2), losses, ba.families.FullGaussian(np.zeros(2), delta))
    assert result.status is ba.Status.CONVERGED
    assert {client.well_posed for record in result.history[1:] for client in record.clients} == {bounded}
