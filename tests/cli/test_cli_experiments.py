"""compare and sweep: one row a run, and a failure is a row."""

import json

import numpy as np
import pytest

pytest.importorskip("cyclopts", reason="the command line needs the extra `cli`")
pytest.importorskip("tqdm", reason="the command line needs the extra `cli`")
pytest.importorskip("pandas", reason="the command line needs the extra `cli`")
pytest.importorskip("sklearn", reason="the command line needs the extra `cli`")
pytest.importorskip("matplotlib", reason="the command line needs the extra `cli`")

import pandas as pd

import bayesadmm_np as ba
from bayesadmm_np.cli._trials import Problem, Trial, evaluate
from bayesadmm_np.glm.kinds import read_kind

CANCER = ("--target", "target", "--client", "site", "--no-progress")
SMALL = ("--features", "mean_radius,mean_texture")


def test_every_method_is_a_row_and_the_distance_is_that_from_the_pooled_fit(bayesadmm, csv, tmp_path):
    path = csv("cancer")
    code, out, err = bayesadmm("compare", path, *CANCER, *SMALL, "--out", tmp_path / "new", "--rounds", "12", "--json")
    assert code == 0, err
    rows = {row["method"]: row for row in json.loads(out)["methods"]}
    assert set(rows) == {*ba.methods.TABLE, "damped PVI", "accelerated PVI"}
    for name in ("PVI", "FedLapCov", "accelerated PVI"):
        assert rows[name]["status"] == "converged"
        # 1e-6 of Fisher length per parameter, nine of them
        assert rows[name]["distance_sd"] < 1e-5
        assert rows[name]["certificate_holds"]
        assert rows[name]["accuracy"] > 0.8
    for name in ("FedAvg", "FedProx", "FedIvon", "BCM"):  # their fixed points are others
        assert not rows[name]["certificate_holds"]
        assert rows[name]["distance_sd"] > 1e-2
    assert rows["BCM"]["rounds"] == 1
    names = {file.name for file in (tmp_path / "new").iterdir()}
    assert names == {"compare.csv", "compare_rounds.csv", "compare.svg", "compare.png"}
    table = pd.read_csv(tmp_path / "new" / "compare.csv").set_index("method")
    assert set(table.index) == set(rows)
    by_round = pd.read_csv(tmp_path / "new" / "compare_rounds.csv")
    assert (by_round.groupby("method")["round"].max() == table["rounds"].loc[lambda r: r > 0].sort_index()).all()
    last = by_round[by_round["method"] == "PVI"]["distance_sd"].iloc[-1]
    assert last == pytest.approx(rows["PVI"]["distance_sd"])


def test_a_method_that_fails_is_a_row_that_says_why(bayesadmm, csv):
    code, out, _ = bayesadmm(
        "compare", csv("cancer"), *CANCER, "--methods", "BregmanADMM,PVI", "--rounds", "20", "--holdout", "0"
    )
    assert code == 0
    lines = [line for line in out.splitlines() if line.startswith(("PVI", "BregmanADMM", "✗"))]
    assert [line.split()[0] for line in lines] == ["PVI", "BregmanADMM", "✗"]
    assert "not a distribution" in lines[1]
    assert "lower gamma or raise rho" in lines[2]
    assert "the rows fitted" in out


def test_a_failing_site_is_named(bayesadmm, csv):
    arguments = ("--methods", "BayesADMM", "--rho", "0.05", "--holdout", "0")
    _, out, _ = bayesadmm("compare", csv("cancer"), *CANCER, *arguments)
    assert "ill posed client" in out
    assert "✗ BayesADMM: site '" in out
    assert "--safeguard" in out


@pytest.mark.parametrize(
    ("name", "target", "loss", "score"),
    [
        ("wine", "cultivar", "softmax", "accuracy"),
        ("diabetes", "target", "ridge", "r2"),
        ("diabetes", "target", "poisson", "d2"),
    ],
)
def test_other_losses(bayesadmm, csv, name, target, loss, score):
    data = ("--target", target, "--client", "site", "--loss", loss, "--no-progress")
    code, out, _ = bayesadmm("compare", csv(name), *data, "--methods", "PVI,FedAvg", "--rounds", "10", "--json")
    assert code == 0
    best = json.loads(out)["methods"][0]
    assert best["method"] == "PVI"
    assert best[score] > 0.3
    assert np.isfinite(best["nll"])


def test_scores_against_their_definitions():
    rng = np.random.default_rng(0)
    design, prior = (
        np.column_stack([rng.normal(size=50), np.ones(50)]),
        ba.families.FixedPrecisionGaussian([0.5, 1.0], 1.0),
    )
    y = rng.poisson(np.exp(design @ prior.mean)).astype(float)

    def problem(kind, target, scale=1.0):
        return Problem(read_kind(kind), (), (), 1.0, 2.0, scale, 1, design, target, "")

    f, rate = design @ prior.mean, np.exp(design @ prior.mean)
    from scipy import stats
    from sklearn.metrics import d2_tweedie_score, log_loss, r2_score

    assert evaluate(problem("poisson", y), prior) == pytest.approx(
        (d2_tweedie_score(y, rate, power=1), -stats.poisson.logpmf(y, rate).mean()), rel=1e-12
    )
    assert evaluate(problem("ridge", y), prior) == pytest.approx(
        (r2_score(y, f), -stats.norm.logpdf(y, f, np.sqrt(2.0)).mean()), rel=1e-12
    )
    # y = 3 y': the density of y is a third of that of y'
    other = evaluate(problem("ridge", y, 3.0), prior)[1]
    assert other == pytest.approx(evaluate(problem("ridge", y), prior)[1] + np.log(3.0), rel=1e-12)
    labels = (rng.random(50) < 0.5).astype(int)
    p = 1 / (1 + np.exp(-f))
    expected = ((p > 0.5) == labels).mean(), log_loss(labels, p)
    assert evaluate(problem("logistic", labels), prior) == pytest.approx(expected, rel=1e-12)


def test_scores_of_a_method_that_ended_far_away_are_no_crash():
    """A rate that overflows, and a held-out target of one value."""
    far = ba.families.FixedPrecisionGaussian([1e5], 1.0)
    score, nll = evaluate(
        Problem(read_kind("poisson"), (), (), 1.0, 1.0, 1.0, 1, np.ones((2, 1)), np.array([1.0, 2.0]), ""), far
    )
    assert not np.isfinite(score)
    assert not np.isfinite(nll)
    score, _ = evaluate(Problem(read_kind("ridge"), (), (), 1.0, 1.0, 1.0, 1, np.ones((2, 1)), np.ones(2), ""), far)
    assert not np.isfinite(score)


def test_rounds_to_close_is_when_the_distance_stays_small():
    def trial(*distances):
        return Trial("m", "full", "converged", distances=distances).rounds_to_close

    assert trial(1.0, 0.001, 0.5, 0.009, 0.001) == 4
    assert trial(0.001) == 1
    assert trial(0.001, 1.0) is None
    assert trial(0.001, float("nan")) is None
    assert trial() is None


def test_a_sweep_marks_what_diverges(bayesadmm, csv, tmp_path):
    arguments = ("--rho", "0.05,1", "--gamma", "0.5,1", "--rounds", "30", "--out", tmp_path)
    code, out, _ = bayesadmm("sweep", csv("cancer"), *CANCER, *SMALL, *arguments)
    assert code == 0
    table = pd.read_csv(tmp_path / "sweep.csv").set_index(["rho", "gamma"])
    assert set(table.loc[0.05, "status"]) <= {"ill posed client", "not a distribution", "diverged", "client limit"}
    assert table.loc[(1.0, 1.0), "status"] in ("converged", "round limit")
    grid = [line.split() for line in out.splitlines() if line.startswith(("0.5", "1 "))]
    assert [row[1] for row in grid] == ["✗", "✗"]
    assert "✗ ρ = 0.05, γ = 0.5: " in out
    svg = (tmp_path / "sweep.svg").read_text(encoding="utf-8")
    assert svg.count("✗") == 3  # two cells and the legend
    assert (tmp_path / "sweep.png").stat().st_size > 0


def test_a_sweep_of_which_one_cell_converges_is_drawn(bayesadmm, csv, tmp_path):
    code, _, err = bayesadmm(
        "sweep", csv("cancer"), *CANCER, *SMALL, "--method", "PVI", "--gamma", "1", "--out", tmp_path
    )
    assert code == 0, err
    assert (tmp_path / "sweep.png").stat().st_size > 0


def test_a_sweep_over_one_knob(bayesadmm, csv):
    code, out, _ = bayesadmm("sweep", csv("cancer"), *CANCER, *SMALL, "--method", "PVI", "--gamma", "1,0.5", "--json")
    assert code == 0
    cells = json.loads(out)["cells"]
    assert [(cell["rho"], cell["gamma"]) for cell in cells] == [(None, 0.5), (None, 1.0)]
    assert all(cell["converged"] for cell in cells)
    assert cells[1]["rounds"] < cells[0]["rounds"]


def test_without_a_prior_the_methods_that_need_one_are_named(bayesadmm, csv):
    """The broken twin is the default, whose line says that there is a prior."""
    chosen = ("--methods", "Newton,ADMM,PVI,FedAvg", "--holdout", "0")
    code, out, _ = bayesadmm("compare", csv("cancer"), *CANCER, *SMALL, *chosen, "--prior-precision", "0", "--json")
    assert code == 0
    found = json.loads(out)
    assert (found["prior_precision"], found["left_out"]) == (0.0, ["ADMM", "FedAvg"])
    assert {row["method"]: row["status"] for row in found["methods"]} == {"PVI": "converged", "Newton": "converged"}
    assert all(row["distance_sd"] < 1e-4 for row in found["methods"])
    text = bayesadmm("compare", csv("cancer"), *CANCER, *SMALL, *chosen, "--prior-precision", "0")[1]
    assert "No prior. Left out, because they need one: ADMM, FedAvg." in text
    text = bayesadmm("compare", csv("cancer"), *CANCER, *SMALL, "--methods", "Newton")[1]
    assert "has prior precision 1, because most methods need a prior; fit has none" in text
    code, out, _ = bayesadmm("sweep", csv("cancer"), *CANCER, *SMALL, "--rho", "1", "--method", "ADMM",
                             "--prior-precision", "0", "--json")  # fmt: skip
    assert "needs a prior" in json.loads(out)["cells"][0]["message"]


@pytest.mark.parametrize(
    ("command", "options", "words"),
    [
        ("compare", ("--methods", "PVI,PIV"), ["--methods", "did you mean 'PVI'"]),
        ("compare", ("--family", "block"), ["--family", "full, diagonal"]),
        ("compare", ("--holdout", "1"), ["--holdout"]),
        ("compare", ("--rounds", "0"), ["--rounds"]),
        ("compare", ("--prior-precision", "-1"), ["--prior-precision must be >= 0"]),
        (
            "compare",
            ("--prior-precision", "0", "--methods", "ADMM,FedAvg"),
            ["must be > 0 for all of these: ADMM, Fed"],
        ),
        ("compare", ("--rho", "-1"), ["rho must be > 0"]),
        ("sweep", (), ["--rho and --gamma"]),
        ("sweep", ("--rho", "1,big"), ["--rho", "'1,big'"]),
        ("sweep", ("--rho", "1,1"), ["--rho", "twice"]),
        ("sweep", ("--rho", "1", "--gamma", "0"), ["gamma"]),
        ("sweep", ("--method", "PVI", "--rho", "1"), ["--rho must be left out: PVI takes gamma"]),
        ("sweep", ("--method", "FedAvg"), ["FedAvg has neither rho nor gamma"]),
        ("sweep", ("--method", "auto", "--rho", "1"), ["'auto'"]),
        ("sweep", ("--method", "ADMM", "--rho", "1", "--accelerate", "--target", "nope"), ["'nope'"]),
    ],
)
def test_bad_options_are_refused(bayesadmm, csv, command, options, words):
    code, out, err = bayesadmm(command, csv("cancer"), *CANCER, *options)
    assert code == 2, out
    assert out == ""
    for word in words:
        assert word in err


@pytest.mark.parametrize(
    ("distances", "oscillates"),
    [
        ([700.0 + 60.0 * (-1) ** k for k in range(50)], True),
        ([3.1 + 1e-9 * (-1) ** k for k in range(50)], False),  # it stands still, far away
        ([0.9**k for k in range(50)], False),
    ],
)
def test_a_run_that_oscillates_is_said_to(distances, oscillates):
    from bayesadmm_np.cli._trials import Trial

    trial = Trial("FedLap", "fixed", "round limit", distances=tuple(distances), failed=False)
    assert trial.oscillates is oscillates
    assert not Trial("FedLap", "fixed", "converged", distances=tuple(distances), failed=False).oscillates
