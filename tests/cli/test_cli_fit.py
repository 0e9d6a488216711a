"""Fit, predict, summary and certify as a practitioner types them."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cyclopts", reason="the command line needs the extra `cli`")
pytest.importorskip("tqdm", reason="the command line needs the extra `cli`")
pytest.importorskip("pandas", reason="the command line needs the extra `cli`")
pytest.importorskip("sklearn", reason="the command line needs the extra `cli`")
pytest.importorskip("matplotlib", reason="the command line needs the extra `cli`")

import pandas as pd

from bayesadmm_np._archive import Archive
from bayesadmm_np.estimators import FederatedGLM, FederatedLogisticRegression, search
from bayesadmm_np.estimators.model_file import load_model
from bayesadmm_np.splitting.result import RunError
from bayesadmm_np.splitting.status import Failure, Status

CANCER = ("--target", "target", "--client", "site", "--no-progress")


def test_a_fit_prints_a_table_and_a_certificate_and_writes_a_model_without_rows(bayesadmm, csv, tmp_path):
    path = csv("cancer")
    code, out, err = bayesadmm("fit", path, *CANCER, "--out", tmp_path / "model.npz")
    assert code == 0, err
    assert "mean_radius" in out
    assert "logistic" in err
    model = load_model(tmp_path / "model.npz")
    assert list(model.sites) == list(dict.fromkeys(pd.read_csv(path)["site"]))
    rows = len(pd.read_csv(path))
    assert all(rows not in array.shape for array in Archive.read(tmp_path / "model.npz").arrays.values())


def test_one_file_a_site_is_the_same_fit(bayesadmm, csv, tmp_path):
    whole = csv("cancer")
    frame = pd.read_csv(whole)
    paths = [csv(name, frame[frame["site"] == name].drop(columns="site")) for name in dict.fromkeys(frame["site"])]
    one = json.loads(bayesadmm("fit", whole, *CANCER, "--json")[1])
    several = json.loads(bayesadmm("fit", *paths, "--target", "target", "--no-progress", "--json")[1])
    assert list(several["sites"].items()) == list(one["sites"].items())
    for a, b in zip(one["coefficients"], several["coefficients"], strict=True):
        # sums over rows in another order: rounding, times the condition number of the undone centring
        assert a["coef"] == pytest.approx(b["coef"], rel=1e-9)


@pytest.mark.parametrize(
    ("name", "target", "options", "columns"),
    [
        ("wine", "cultivar", (), ["predicted", *(f"probability_{c}" for c in ("barbera", "barolo", "grignolino"))]),
        ("diabetes", "target", ("--loss", "ridge"), ["mean", "sd"]),
        ("diabetes", "target", ("--loss", "poisson"), ["mean", "sd"]),
    ],
)
def test_predictions_of_every_loss(bayesadmm, csv, tmp_path, name, target, options, columns):
    path = csv(name)
    common = ("--target", target, "--client", "site", "--no-progress", "--out", tmp_path / "m.npz", *options)
    assert bayesadmm("fit", path, *common)[0] == 0
    code, out, _ = bayesadmm("predict", tmp_path / "m.npz", path)
    assert code == 0
    found = pd.read_csv(io.StringIO(out))
    assert list(found.columns) == columns
    truth = pd.read_csv(path)[target]
    if "predicted" in columns:
        # softmax: the loss's slope plus one for class 0, exact to rounding
        assert np.allclose(found[columns[1:]].sum(axis=1), 1.0, atol=1e-12)
        assert (found["predicted"].astype(str) == truth.astype(str)).mean() > 0.75
    else:
        assert np.corrcoef(found["mean"], truth)[0, 1] > 0.5
        if "ridge" in options:
            assert (np.abs(found["mean"] - truth) < 2 * found["sd"]).mean() > 0.9
        else:  # the law of total variance: more than the Poisson's own
            assert (found["sd"] > np.sqrt(found["mean"])).all()


def test_predictions_go_to_a_file_and_extra_columns_are_named_and_ignored(bayesadmm, csv, tmp_path):
    path = csv("cancer")
    bayesadmm("fit", path, *CANCER, "--out", tmp_path / "m.npz")
    new = csv("new", pd.read_csv(path).drop(columns=["target", "site"]).assign(id=1).head(3))
    code, out, err = bayesadmm("predict", tmp_path / "m.npz", new, "--out", tmp_path / "p.csv")
    assert (code, out) == (0, "")
    assert "id: ignored" in err
    assert len(pd.read_csv(tmp_path / "p.csv")) == 3
    # those of the fit are not worth a word
    assert "ignored" not in bayesadmm("predict", tmp_path / "m.npz", path, "--out", tmp_path / "p.csv")[2]


@pytest.mark.parametrize("how", [("--formula", "target ~ mean_radius + mean_texture", "--client", "site"), CANCER])
def test_rows_with_missing_values_are_left_out_by_number(bayesadmm, csv, tmp_path, how):
    """The rows that are left have the predictions that they have in a file of their own."""
    frame = pd.read_csv(csv("cancer"))
    bayesadmm("fit", csv("cancer"), *how, "--out", tmp_path / "m.npz")
    new = frame.head(6).assign(note=np.nan)
    new.loc[[1, 4], "mean_radius"] = np.nan
    code, _, _ = bayesadmm("predict", tmp_path / "m.npz", csv("new", new))
    assert code == 2
    code, out, err = bayesadmm("predict", tmp_path / "m.npz", csv("new", new), "--dropna", "--json")
    assert code == 0
    assert "2 of 6 rows left out" in err
    found = json.loads(out)["predictions"]
    assert [row.pop("row") for row in found] == [1, 3, 4, 6]  # not the empty column that nothing needs
    alone = bayesadmm("predict", tmp_path / "m.npz", csv("kept", new.drop(index=[1, 4])), "--json")[1]
    assert found == json.loads(alone)["predictions"]
    new["mean_radius"] = np.nan
    assert "no row is complete" in bayesadmm("predict", tmp_path / "m.npz", csv("new", new), "--dropna")[2]


def test_summary_shows_ratios_and_says_what_a_file_does_not_hold(bayesadmm, csv, tmp_path):
    bayesadmm("fit", csv("cancer"), *CANCER, "--out", tmp_path / "m.npz")
    code, out, _ = bayesadmm("summary", tmp_path / "m.npz", "--ratios")
    assert (code, "odds ratio" in out) == (0, True)
    before = json.loads(bayesadmm("summary", tmp_path / "m.npz", "--json")[1])
    row = before["coefficients"][0]
    assert row["ratio"] == pytest.approx([np.exp(row[key]) for key in ("coef", "low", "high")])
    for name in ("HC1", "HC3"):  # a fit that was not asked for them keeps their sums
        asked = json.loads(bayesadmm("fit", csv("cancer"), *CANCER, "--covariance", name, "--json")[1])
        kept = json.loads(bayesadmm("summary", tmp_path / "m.npz", "--covariance", name, "--json")[1])
        assert kept["coefficients"] == asked["coefficients"] != before["coefficients"]
    code, _, err = bayesadmm("summary", tmp_path / "m.npz", "--reference-class", "9")
    assert (code, "--reference-class must be a class" in err) == (2, True), err


WARDS = np.arange(90) % 11
DOORS = {  # options, arguments of the estimator, arguments of its table
    "likelihood": ("", {}, {}),
    "robust": ("--covariance HC3", {}, {"covariance": "HC3"}),
    "clusters": ("--covariance cluster --cluster ward", {}, {"covariance": "cluster"}),
    "profile": ("--intervals profile", {}, {"intervals": "profile"}),
    "reference": ("--reference-class yes", {}, {"reference_class": "yes"}),
    "no intercept": ("--no-intercept", {"fit_intercept": False}, {}),
    "Firth": ("--penalty firth", {"penalty": "firth"}, {}),
    "prior": ("--prior-precision 2 --prior-unit sd", {"prior_precision": 2.0, "prior_unit": "sd"}, {}),
    "posterior": ("--prior-precision 1 --method PVI", {"prior_precision": 1.0, "method": "PVI"}, {}),
    "least squares": ("--target stay --loss linear", {}, {}),
    "noise": ("--target stay --loss linear --noise-variance 2", {"noise_variance": 2.0}, {}),
    "weights": (
        "--target stay --loss linear --weights w --weight-meaning analytic",
        {"weight_meaning": "analytic"},
        {},
    ),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_fit_is_that_of_the_estimator(bayesadmm, csv, door):
    """To the last bit: the command hands columns over as they are. The twin is the fit without the option."""
    options, arguments, shown = DOORS[door]
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": 1e3 + 40 * rng.normal(size=90), "z": 1e-3 * rng.normal(size=90), "w": WARDS % 4 + 1})
    frame["died"] = np.where(frame.x - 1e3 + 60 * rng.logistic(size=90) > 0, "yes", "no")
    frame["stay"], frame["site"], frame["ward"] = frame.x + 20 * rng.normal(size=90), list("pqr") * 30, WARDS
    data = ("fit", csv("wards", frame), "--target", "died", "--client", "site", "--features", "x,z", "--no-progress")
    code, out, err = bayesadmm(*data, *options.split(), "--json")
    assert code == 0, err
    y = frame["stay" if "stay" in options else "died"]
    model = FederatedGLM("linear" if "stay" in options else "logistic", **arguments)
    model.fit(frame[["x", "z"]], y, frame["site"], sample_weight=frame["w"] if "weights" in options else None)
    if "--cluster " in options:
        wards = frame["ward"].astype(str) + " at " + frame["site"]
        shown = {**shown, "clusters": dict(list(wards.groupby(frame["site"])))}
    found, keys = json.loads(out)["coefficients"], ("name", "coef", "std_err", "low", "high")
    right = model.summary(**shown).rows
    assert [[row[key] for key in keys] for row in found] == [[getattr(row, key) for key in keys] for row in right]
    plain = json.loads(bayesadmm(*data, "--json")[1])["coefficients"]
    assert (found == plain) == (not options)


def test_a_fit_shows_ratios_and_writes_no_file_of_a_table_that_is_refused(bayesadmm, csv, tmp_path):
    code, out, _ = bayesadmm("fit", csv("cancer"), *CANCER, "--ratios", "--covariance", "HC3")
    assert (code, "odds ratio" in out, "HC3" in out) == (0, True, True)
    data = (csv("diabetes"), "--target", "target", "--client", "site", "--loss", "linear", "--no-progress")
    for wrong in (("--ratios",), ("--covariance", "HC3", "--inference", "posterior", "--prior-precision", "1")):
        code, _, err = bayesadmm("fit", *data, *wrong, "--out", tmp_path / "none.npz")
        assert (code, wrong[0] in err, (tmp_path / "none.npz").exists()) == (2, True, False), err


def test_a_likelihood_without_a_maximum_is_exit_code_4_and_firth_mends_it(bayesadmm, csv, tmp_path):
    """In ward 1 nobody dies: its coefficient has no estimate, and with Firth's penalty one of a finite size."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.integers(30, 90, 60), "ward": (np.arange(60) % 5 == 0).astype(int)})
    frame["died"] = ((rng.random(60) < frame["age"] / 120) & (frame["ward"] == 0)).astype(int)
    data = (csv("wards", frame), "--target", "died", "--no-progress", "--json")
    code, out, _ = bayesadmm("fit", *data)
    assert (code, {row["name"]: row["coef"] for row in json.loads(out)["coefficients"]}["ward"]) == (4, None)
    out = bayesadmm("fit", *data[:-1])[1]
    assert ("--penalty firth" in out, "penalty='firth'" in out) == (True, False), out
    code, out, _ = bayesadmm("fit", *data, "--penalty", "firth", "--out", tmp_path / "firth.npz")
    assert code == 0
    found = json.loads(out)
    assert -10 < {row["name"]: row["coef"] for row in found["coefficients"]}["ward"] < 0
    # criteria of the likelihood's maximum are none of Firth's mode; the likelihood itself is a number there
    withheld = ("aic", "bic", "r_squared", "test")
    again = json.loads(bayesadmm("summary", tmp_path / "firth.npz", "--json")[1])
    for whole in (found["goodness"], again["goodness"]):
        assert [whole[name] for name in withheld] == [None] * 4
        assert whole["log_likelihood"] < 0 < whole["deviance"]
    text = bayesadmm("summary", tmp_path / "firth.npz")[1]
    assert ("AIC" in text, "Deviance" in text) == (False, True)
    # twin: at a maximum they are there
    plain = json.loads(bayesadmm("fit", *data, "--drop", "ward")[1])["goodness"]
    assert None not in [plain[name] for name in withheld]


def test_a_failed_run_names_the_columns_in_the_words_of_a_command(bayesadmm, csv, rng):
    """Equal to 1e-10: squares cannot tell the two columns apart, and the run says more than that it failed."""
    x = rng.normal(size=60)
    near = pd.DataFrame({"dose": x, "twin": x * (1.0 + 1e-10 * rng.normal(size=60)), "died": rng.integers(0, 2, 60)})
    code, _, err = bayesadmm("fit", csv("near", near), "--target", "died", "--no-progress")
    assert code == 1
    assert "twin = dose in every row" in err
    assert "--prior-precision > 0" in err
    assert "prior_precision" not in err


@pytest.mark.parametrize("how", ["wald", "lr"])
def test_tests_of_terms_are_those_of_the_estimator_in_text_and_json(bayesadmm, csv, tmp_path, how):
    rng = np.random.default_rng(0)
    n, model = 300, tmp_path / "m.npz"
    table = pd.DataFrame(
        {"site": rng.choice(["a", "b"], n), "age": rng.normal(60, 9, n), "ward": rng.choice([*"xyz"], n)}
    )
    table["died"] = (rng.random(n) < 1 / (1 + np.exp(-(table["age"] - 60) / 9))).astype(int)
    formula = "died ~ age + C(ward)"
    words = ("fit", csv("wards", table), "--client", "site", "--formula", formula, "--no-progress", "--out", model)
    right = FederatedLogisticRegression.from_formula(formula, table, "site")
    found = json.loads(bayesadmm(*words, "--tests", how, "--json")[1])["tests"]
    for test, expected in zip(found, right.test_terms(how=how), strict=True):
        assert (test["name"], test["df"]) == (expected.name, expected.df)
        # both maxima are known to 1e-8 standard errors
        assert test["statistic"] == pytest.approx(expected.statistic, rel=1e-6)
    text = bayesadmm(*words, "--tests", how)[1]
    assert [line.split()[0] for line in text.splitlines() if line.startswith(("Tests", "age", "C(ward) "))][-3:] == [
        "Tests",
        "age",
        "C(ward)",
    ]
    assert str(right.summary(tests=how)).count("Tests of terms") == 1
    if how == "wald":  # from the file, too
        assert json.loads(bayesadmm("summary", model, "--tests", "wald", "--json")[1])["tests"] == found
    # twin: none where none are asked for
    assert json.loads(bayesadmm("summary", model, "--json")[1])["tests"] == []
    assert "Tests of terms" not in bayesadmm("summary", model)[1]


def test_json_is_one_object_and_everything_else_goes_to_standard_error(bayesadmm, csv, tmp_path):
    path = csv("cancer")
    code, out, err = bayesadmm("fit", path, "--target", "target", "--client", "site", "--json", "--out", tmp_path / "m")
    assert code == 0
    assert out.count("\n") == 1
    found = json.loads(out)
    assert found["certificate"]["holds"] is True
    assert found["model"] == str(tmp_path / "m")
    assert "round" in err  # the progress bar
    assert "loss:" in err


def test_gamma_may_be_the_share_of_the_rows(bayesadmm, csv, tmp_path):
    answers = []
    for gamma in ("rows", "0.3"):
        settings = ("--method", "PVI", "--gamma", gamma, "--rounds", "2", "--json")
        answers.append(json.loads(bayesadmm("fit", csv("cancer"), *CANCER, *settings)[1])["coefficients"])
    config = tmp_path / "study.toml"
    config.write_text('method = "PVI"\ngamma = "rows"\nrounds = 2\n', encoding="utf-8")
    answers.append(
        json.loads(bayesadmm("fit", csv("cancer"), *CANCER, "--config", config, "--json")[1])["coefficients"]
    )
    assert answers[0] == answers[2] != answers[1]


def test_not_converged_is_exit_code_1_with_a_sentence_and_the_model_is_written(bayesadmm, csv, tmp_path):
    code, _, err = bayesadmm("fit", csv("cancer"), *CANCER, "--rounds", "1", "--out", tmp_path / "m.npz")
    assert code == 1
    assert "--rounds" in err
    assert not load_model(tmp_path / "m.npz").holds


def test_a_run_that_fails_is_exit_code_1_and_writes_nothing(bayesadmm, csv, tmp_path):
    arguments = ("--method", "BayesADMM", "--rho", "0.001", "--out", tmp_path / "m.npz")
    code, out, err = bayesadmm("fit", csv("cancer"), *CANCER, *arguments)
    assert code == 1, out
    assert "rho" in err
    assert not (tmp_path / "m.npz").exists()


def test_categorical_columns_become_pooled_levels(bayesadmm, csv, tmp_path):
    """A level that only one site has gets its column at all of them."""
    frame = pd.read_csv(csv("cancer"))
    grade = np.where(frame["mean_radius"] > 15, "high", np.where(frame["mean_texture"] > 18, "mid", "low"))
    path = csv("graded", frame.assign(grade=grade))
    fit = ("fit", path, *CANCER, "--categorical", "grade", "--out", tmp_path / "m.npz")
    assert "site 'north': column 'grade' holds 'high', none of which another site has" in bayesadmm(*fit)[2]
    code, out, _ = bayesadmm(*fit, "--as-written", "grade")
    assert code == 0
    assert "C(grade)[T.low]" in out
    assert "C(grade)[T.mid]" in out
    assert "C(grade)[T.high]" not in out  # the reference
    model = load_model(tmp_path / "m.npz")
    design = model.columns.design(dict(frame.assign(grade=grade)))
    assert np.array_equal(design[:, -2], (grade == "low").astype(float))
    new = csv("new", frame.assign(grade="unheard").head(2))
    code, _, err = bayesadmm("predict", tmp_path / "m.npz", new)
    assert code == 2
    assert "'unheard'" in err
    assert "'high', 'low', 'mid'" in err


def test_a_configuration_file_says_what_options_do_not(bayesadmm, csv, tmp_path):
    path = csv("cancer")
    config = tmp_path / "study.toml"
    config.write_text(
        'target = "target"\nclient = "site"\nprior-precision = 4\nno-intercept = true\n'
        'features = ["mean_radius", "mean_texture"]\nmethod = "PVI"\n',
        encoding="utf-8",
    )
    by_file = json.loads(bayesadmm("fit", path, "--config", config, "--json", "--no-progress")[1])
    typed = ("--prior-precision", "4", "--no-intercept", "--features", "mean_radius,mean_texture", "--method", "PVI")
    by_hand = json.loads(bayesadmm("fit", path, *CANCER, *typed, "--json")[1])
    assert by_file == by_hand
    override = json.loads(bayesadmm("fit", path, "--config", config, "--json", "--no-progress", "--method", "AMA")[1])
    assert override["method"] == "AMA"


def test_dropna_drops_and_says_how_many(bayesadmm, csv):
    frame = pd.read_csv(csv("cancer"))
    frame.loc[[0, 7], "mean_radius"] = np.nan
    frame.loc[[7, 9], "mean_texture"] = np.nan
    path = csv("holes", frame)
    code, _, err = bayesadmm("fit", path, *CANCER, "--no-dropna")
    assert code == 2
    assert "mean_radius (2), mean_texture (2)" in err
    code, out, err = bayesadmm("fit", path, *CANCER, "--json")
    assert code == 0
    assert "site 'west': 2 of" in err
    assert json.loads(out)["dropped_rows"] == 3
    assert sum(json.loads(out)["sites"].values()) == 566
    assert sum(json.loads(out)["missing"].values()) == 3


def test_words_for_missing_values(bayesadmm, csv):
    frame = pd.read_csv(csv("cancer")).astype({"mean_radius": object})
    frame.loc[3, "mean_radius"] = "?"
    path = csv("asked", frame)
    code, _, err = bayesadmm("fit", path, *CANCER)
    assert code == 2
    assert '--na "?"' in err
    code, out, err = bayesadmm("fit", path, *CANCER, "--na", "?", "--json")
    assert code == 0, err
    assert json.loads(out)["dropped_rows"] == 1


# ----------------------------------------------------------------------------------------------------
# certify
# ----------------------------------------------------------------------------------------------------


@pytest.fixture
def fitted(bayesadmm, csv, tmp_path):
    path = csv("cancer")
    assert bayesadmm("fit", path, *CANCER, "--out", tmp_path / "m.npz")[0] == 0
    return tmp_path / "m.npz", path


def test_certify_recomputes_the_certificate_from_the_rows(bayesadmm, fitted):
    model_path, path = fitted
    code, out, _ = bayesadmm("certify", model_path, path, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["holds"] is True
    assert found["distance"]["rigorous"] is True
    # the same sums over the same rows, but for the rounding of λ_g → m
    assert found["pooled"] == pytest.approx(load_model(model_path).record.certificate.pooled, abs=1e-12)


def test_certify_finds_the_site_whose_rows_are_not_those_of_the_fit(bayesadmm, fitted, csv):
    """Broken twin: one label of `south` is turned."""
    model_path, path = fitted
    frame = pd.read_csv(path)
    row = frame.index[frame["site"] == "south"][0]
    frame.loc[row, "target"] = 1 - frame.loc[row, "target"]
    code, out, _ = bayesadmm("certify", model_path, csv("turned", frame), "--json")
    found = json.loads(out)
    assert code == 1
    assert found["holds"] is False
    apart = {name: site["apart"] for name, site in found["sites"].items()}
    assert max(apart, key=apart.get) == "south"
    assert apart["south"] > 1e4 * max(apart["north"], apart["west"])
    # a residual below a tolerance of 10 bounds no distance
    assert found["distance"]["rigorous"] is False
    assert bayesadmm("certify", model_path, csv("turned", frame), "--tol", "10")[0] == 1


def test_a_site_of_weight_zero_is_refused(bayesadmm, csv, tmp_path):
    frame = pd.read_csv(csv("cancer"))
    path = csv("weighted", frame.assign(w=(frame["site"] != "west").astype(int)))
    code, _, err = bayesadmm("fit", path, *CANCER, "--weights", "w", "--out", tmp_path / "m.npz", "--json")
    assert code == 2
    assert "west" in err
    assert not (tmp_path / "m.npz").exists()


def test_certify_says_how_the_sites_of_the_model_were_named(bayesadmm, fitted, csv, tmp_path):
    model, path = fitted
    frame = pd.read_csv(path)
    parts = [csv(name.title(), part.drop(columns="site")) for name, part in frame.groupby("site")]
    code, _, err = bayesadmm("certify", model, *parts)
    assert code == 2
    assert "--client site" in err
    assert bayesadmm("fit", *parts, "--target", "target", "--no-progress", "--out", tmp_path / "files.npz")[0] == 0
    code, _, err = bayesadmm("certify", tmp_path / "files.npz", path, "--client", "site")
    assert code == 2
    assert "North=FILE.csv South=FILE.csv West=FILE.csv" in err


def test_certify_refuses_other_data(bayesadmm, fitted, csv):
    model_path, path = fitted
    for change, word in (
        (lambda f: f[f["site"] != "west"], "west"),
        (lambda f: f.replace({"site": {"west": "wets"}}), "did you mean 'west'"),
        (lambda f: f.drop(columns="mean_radius"), "'mean_radius'"),
        (lambda f: f.drop(columns="target"), "'target'"),
        (lambda f: f.assign(target=f["target"].replace({1: 2})), "'2'"),
    ):
        code, _, err = bayesadmm("certify", model_path, csv("other", change(pd.read_csv(path))))
        assert (code, word in err) == (2, True), err


def test_a_fit_that_fell_back_certifies_by_the_rule_it_fell_back_to(bayesadmm, csv, tmp_path, monkeypatch):
    """A variational fit of classes that fails in its first round: no data are known that do this to it."""
    path, model, run = csv("wine"), tmp_path / "m.npz", search.run

    def failing(method, *rest, **options):
        if method.name == "FedLapCov":
            return run(method, *rest, **options)
        result = run(method, *rest, **{**options, "rounds": 1})
        raise RunError(replace(result, failure=Failure(Status.DIVERGED, 1, detail="the points are too few")))

    monkeypatch.setattr(search, "run", failing)
    fit = ("--target", "cultivar", "--client", "site", "--prior-precision", "1", "--no-progress", "--out", model)
    fit = (*fit, "--inference", "posterior")
    code, out, err = bayesadmm("fit", path, *fit)
    assert code == 0, err
    assert "FedLapCov" in err
    assert "FedLapCov" in out
    assert bayesadmm("certify", model, path)[0] == 0


@pytest.mark.parametrize("site", [False, True])
def test_codes_with_leading_zeros_are_not_numbers(bayesadmm, tmp_path, csv, site):
    """In `b` every code is a whole number, in `a` one is not: 010 is the same level in both."""
    rng = np.random.default_rng(0)
    for name, codes in {"a": ["010", "11", "x1"], "b": ["010", "11"]}.items():
        frame = pd.DataFrame({"x": rng.standard_normal(40), "code": np.resize(codes, 40), "y": np.arange(40) % 3 % 2})
        csv(name, frame)
    b = pd.read_csv(tmp_path / "b.csv", dtype=str)["code"]
    fit = ("--target", "y", "--no-progress", "--json")
    if site:
        found = json.loads(bayesadmm("fit", tmp_path / "b.csv", *fit, "--client", "code")[1])
        assert found["sites"] == b.value_counts(sort=False).to_dict() == {"010": 20, "11": 20}
        return
    model = tmp_path / "m.npz"
    paths = (tmp_path / "a.csv", tmp_path / "b.csv")
    # the level x1 separates: a prior keeps its coefficient finite
    some = ("--categorical", "code", "--prior-precision", "1", "--out", model)
    assert bayesadmm("fit", *paths, *fit, *some)[0] == 0
    levels = load_model(model).columns.agreement.columns["code"].levels
    assert levels == ("010", "11", "x1")
    csv("new", pd.DataFrame({"x": [0.0] * 3, "code": ["010", "11", "x1"]}))
    found = json.loads(bayesadmm("predict", model, tmp_path / "new.csv", "--json")[1])["predictions"]
    chances = [row["probability_1"] for row in found]
    assert abs(chances[1] - chances[0]) > 1e-3
    csv("other", pd.DataFrame({"x": [0.0] * 2, "code": ["11.0", "x1"]}))
    assert "the level '11.0'" in bayesadmm("predict", model, tmp_path / "other.csv")[2]
    csv("b", pd.DataFrame({"x": [0.0, 1.0, 2.0], "code": ["010", "10", "x1"], "y": [0, 1, 0]}))
    assert bayesadmm("fit", *paths, *fit, *some)[0] == 0  # b shows that the two are two
    csv("b", pd.DataFrame({"x": [0.0, 1.0, 2.0], "code": ["10", "10", "x1"], "y": [0, 1, 0]}))
    code, _, err = bayesadmm("fit", *paths, *fit, *some)
    assert code == 2
    assert "site 'b': column 'code' holds '10', and '010' at site 'a'" in err


def test_a_file_that_is_read_is_not_written_over(bayesadmm, fitted, tmp_path):
    model, path = fitted
    config = tmp_path / "study.toml"
    config.write_text('target = "target"\n')
    before = {file: file.read_bytes() for file in (model, path, config)}
    for command in (
        ("fit", path, *CANCER, "--out", path),
        ("fit", path, *CANCER, "--config", config, "--out", config),
        ("predict", model, path, "--out", path),
        ("predict", model, path, "--out", model),
    ):
        code, out, err = bayesadmm(*command)
        assert (code, out) == (2, "")
        assert "--out" in err
    assert {file: file.read_bytes() for file in before} == before


def test_what_uses_a_model_without_a_maximum_says_so_and_ends_with_that_code(bayesadmm, csv, tmp_path, rng):
    x, model = np.arange(30.0), tmp_path / "model.npz"
    frame = {"far": x < 15, "other": rng.standard_normal(30), "died": (x < 15).astype(int)}
    path = csv("separated", pd.DataFrame(frame))
    uses = [("predict", model, path), ("evaluate", model, path), ("certify", model, path)]
    fit = ("fit", path, "--target", "died", "--no-progress", "--out", model)
    assert bayesadmm(*fit)[0] == 4
    for use in uses:
        code, out, err = bayesadmm(*use)
        assert code == (2 if use[0] == "evaluate" else 4)  # of several directions none is the limit
        assert bool(out) == (code == 4)
        assert "far" in err
    rows = bayesadmm(*uses[0])[1].splitlines()
    assert rows[1:] == ["1,,"] * 15 + ["0,,"] * 15
    found = json.loads(bayesadmm(*uses[2], "--tol", "1e9", "--json")[1])
    assert (found["holds"], found["has_maximum"], found["distance"]["rigorous"]) == (False, False, False)
    assert found["findings"][0]["code"] == "separation"
    # a sentence of a command has its options, and no argument of Python
    fitted = json.loads(bayesadmm(*fit, "--json")[1])["findings"]
    for finding in (found["findings"][0], fitted[0]):
        assert "--penalty firth" in finding["sentence"]
        assert "=" not in finding["sentence"]
    # twin: with a penalty there is a maximum, and nothing is said
    assert bayesadmm(*fit, "--penalty", "firth")[0] == 0
    for use in uses[:2]:
        code, _, err = bayesadmm(*use)
        assert code == 0
        assert "maximum" not in err
    assert json.loads(bayesadmm(*uses[2], "--json")[1])["has_maximum"]


@pytest.mark.parametrize("blank", [" ", "  ", ""])
def test_a_blank_cell_of_a_column_of_numbers_is_missing(bayesadmm, tmp_path, blank):
    rows = pd.DataFrame({"x": [f"{k * 0.7 % 3:.2f}" for k in range(40)], "y": np.arange(40) % 7 / 3.0})
    rows["site"] = list("pq") * 20
    rows.loc[3, "x"] = blank
    rows.to_csv(tmp_path / "rows.csv", index=False)
    for columns in (["--formula", "y ~ x"], ["--target", "y", "--features", "x"]):
        code, out, err = bayesadmm("fit", tmp_path / "rows.csv", "--client", "site", *columns, "--json")
        assert (code, json.loads(out)["missing"]) == (0, {"p": 0, "q": 1}), err


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_cluster_of_two_sites_is_said_to_be_two(bayesadmm, tmp_path, is_shared):
    rows = pd.DataFrame({"x": np.arange(24.0) % 7, "y": np.arange(24.0) % 5, "site": list("pq") * 12})
    rows["c"] = np.arange(24) // 2 % 6 + (0 if is_shared else 10 * (rows.site == "q"))
    rows.to_csv(tmp_path / "rows.csv", index=False)
    words = ["fit", tmp_path / "rows.csv", "--client", "site", "--formula", "y ~ x", "--loss", "linear"]
    code, _, err = bayesadmm(*words, "--cluster", "c", "--covariance", "cluster")
    assert (code, "at two sites is two clusters" in err) == (0, is_shared)
