"""Runs by files with text, formulas, offsets and missing cells: the run of sites in Python, and one model for all."""

import json
from dataclasses import replace

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason="the command line needs the extra `cli`")
pytest.importorskip("cyclopts", reason="the command line needs the extra `cli`")

import bayesadmm_np as ba  # noqa: E402
from bayesadmm_np.federation import GLMTable, GLMTask, Message, Site, final_result  # noqa: E402
from bayesadmm_np.glm.prior import Prior  # noqa: E402
from bayesadmm_np.splitting.guarded import Guarded  # noqa: E402
from bayesadmm_np.splitting.methods import Newton  # noqa: E402
from oracles.couriers import drive_sites  # noqa: E402
from oracles.hospitals import SITES, tables_of, truth  # noqa: E402
from oracles.overrides import OPTIONS  # noqa: E402
from oracles.problems import same_bits  # noqa: E402

WARDS = [f"C(ward)[T.{level}]" for level in ("9", "ICU", "état")]
SPLINE = "bs(age, knots=(40, 60), lower_bound=0, upper_bound=120)"
FORMULAS = {
    "splines and weights": (f"died ~ {SPLINE} + ward", "logistic", "w"),
    "text that is predicted": ("stage ~ dose + ward", "multinomial", None),
}


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Each site's own file; two rows of each are incomplete."""
    monkeypatch.chdir(tmp_path)
    for name, table in tables_of(truth()).items():
        table.to_csv(f"{name}.csv", index=False)
    return tmp_path


def test_a_column_far_from_zero_leaves_the_intercept_its_error(bayesadmm, files):
    """It is held; its own error, which is rounding, times 1e12 was the intercept's. Twin: the fit without it."""
    for name in SITES:
        table = pd.read_csv(f"{name}.csv")
        table.assign(far=1e12 + table["dose"]).to_csv(f"{name}.csv", index=False)
    errors = []
    for k, formula in enumerate(("died ~ dose", "died ~ far + dose")):
        for name in SITES:
            settings = ("--data", f"{name}.csv", "--name", name, "--loss", "logistic", "--budget", "9")
            done(bayesadmm, "site", "init", f"{name}-{k}", *settings, "--formula", formula)
        found = done(bayesadmm, "server", "run", f"run-{k}", *(f"{name}-{k}" for name in SITES), "--no-progress")
        rows = {row["name"]: row for row in found["table"]["coefficients"]}
        errors.append([rows[name]["std_err"] for name in ("dose", "(intercept)")])
    assert rows["far"]["coef"] is None
    np.testing.assert_allclose(errors[1], errors[0], rtol=1e-3)  # the rounds stop at 1e-8 of other columns


def done(bayesadmm, *arguments):
    code, out, err = bayesadmm(*arguments, "--json")
    assert code == 0, err
    return json.loads(out)


def introduce(bayesadmm, *options):
    return {
        name: done(
            bayesadmm, "site", "init", f"at-{name}", "--data", f"{name}.csv", "--name", name, *OPTIONS.split(), *options
        )
        for name in SITES
    }


def play(bayesadmm, *options):
    """Do a whole run; test_exchange_commands.py holds that it is the same as step by step."""
    return done(bayesadmm, "server", "run", "run", *(f"at-{name}" for name in SITES), *options, "--no-progress")


@pytest.mark.parametrize("case", FORMULAS)
def test_a_run_by_files_is_the_run_of_sites_in_python(case, bayesadmm, files):
    """Bit for bit; cells of a file are numbers and text as pandas reads them, whatever the frame of the truth had."""
    formula, kind, weights = FORMULAS[case]
    more = ("--weights", weights) if weights else ()
    said = introduce(bayesadmm, "--formula", formula, "--loss", kind, *more)
    assert {one["missing_rows"] for one in said.values()} == {2}
    play(bayesadmm, "--seed", "0")
    sites = [Site(name, GLMTable(pd.read_csv(f"{name}.csv"), formula, kind, weights=weights)) for name in SITES]
    prior = lambda d: ba.families.FullGaussian(np.zeros(d), 0.0)  # noqa: E731
    task = GLMTask(Guarded(Newton()), prior, tol=1e-8, asks=True, stated=Prior())
    server, _ = drive_sites(sites, task)
    found = final_result(Message.read("run/final.npz"))
    assert replace(found.spec, keys=()).run == server.spec.run  # commands make keys
    assert same_bits(found.posterior.natural, server.state.q_g.natural)
    assert found.status.name == "CONVERGED"
    status = done(bayesadmm, "server", "status", "run")
    assert status["missing_rows"] == dict.fromkeys(sorted(SITES), 2)


def test_the_model_of_a_run_takes_raw_tables(bayesadmm, files):
    """What `fit` gives for the same formula; and predict, certify and evaluate read the sites' own files."""
    formula = f"died ~ {SPLINE} + dose*ward"
    introduce(bayesadmm, "--formula", formula, "--loss", "logistic")
    play(bayesadmm, "--tol", "1e-10")
    model = "model.npz"
    assert bayesadmm("server", "status", "run", "--out", model)[0] == 0
    paths = [f"{name}.csv" for name in SITES]
    assert done(bayesadmm, "certify", model, *paths)["holds"]
    assert set(SITES) <= done(bayesadmm, "evaluate", model, *paths).keys()
    told = done(bayesadmm, "summary", model)
    assert told["missing"] == dict.fromkeys(sorted(SITES), 2)
    assert any("knots" in line for line in told["agreed"])
    fitted = done(bayesadmm, "fit", *paths, "--formula", formula, "--loss", "logistic", "--no-progress")
    assert [row["name"] for row in told["coefficients"]] == [row["name"] for row in fitted["coefficients"]]
    # both end within 1e-8 Fisher lengths of the maximum, in which a standard error is one
    for own, other in zip(told["coefficients"], fitted["coefficients"], strict=True):
        assert abs(own["coef"] - other["coef"]) < 1e-6 * other["std_err"]
    rows = pd.read_csv("Bern.csv").dropna()
    rows[["age", "dose", "ward"]].to_csv("new.csv", index=False)
    chances = done(bayesadmm, "predict", model, "new.csv")["predictions"]
    assert len(chances) == len(rows)
    assert chances[0].keys() == {"predicted", "probability_0", "probability_1"}


def test_text_without_a_formula_is_a_formula_of_all_columns(bayesadmm, files):
    options = ("--target", "died", "--features", "age,stage,ward", "--loss", "logistic")
    said = introduce(bayesadmm, *options, "--categorical", "ward")  # codes are among its levels
    assert said["Bern"]["formula"] == "died ~ age + stage + C(ward)"
    play(bayesadmm)
    assert bayesadmm("server", "status", "run", "--out", "model.npz")[0] == 0
    names = [row["name"] for row in done(bayesadmm, "summary", "model.npz")["coefficients"]]
    assert names == ["age", "stage[T.II]", "stage[T.III]", *WARDS, "(intercept)"]


def test_offset_and_exposure_are_columns_by_name(bayesadmm, files):
    options = ("--target", "stays", "--features", "dose", "--exposure", "days", "--offset", "w", "--loss", "poisson")
    introduce(bayesadmm, *options)
    play(bayesadmm, "--tol", "1e-10")
    assert bayesadmm("server", "status", "run", "--out", "model.npz")[0] == 0
    told = done(bayesadmm, "summary", "model.npz")["coefficients"]
    paths = [f"{name}.csv" for name in SITES]
    fit = ("--formula", "stays ~ dose + offset(w) + offset(log(days))", "--loss", "poisson")
    fitted = done(bayesadmm, "fit", *paths, *fit, "--no-progress")["coefficients"]
    for own, other in zip(told, fitted, strict=True):
        assert abs(own["coef"] - other["coef"]) < 1e-8 * other["std_err"]


INIT = ("--data", "Bern.csv", "--name", "Bern", "--loss", "logistic")
TARGET = ("--target", "died", "--features", "age,ward")
WRONG = (
    ((*TARGET, "--categorical", "ward", "--no-dropna"), "missing values in age (1), ward (2)"),
    ((*TARGET, "--formula", "died ~ age"), "--target: the formula says it"),
    (("--formula", "died ~ age", "--no-intercept"), "write '- 1' in the formula"),
    ((), "--target must name the column"),
    ((*TARGET, "--categorical", "stage"), "'stage' is not among the features"),
)


def test_what_is_wrong_at_a_site_is_said_there(bayesadmm, files):
    for options, words in WRONG:
        code, out, err = bayesadmm("site", "init", "at-Bern", *INIT, *options)
        assert (code, out) == (2, "")
        assert words in err
        assert not (files / "at-Bern").exists()


def test_a_column_that_names_rows_is_refused_before_a_hello_tells_it(bayesadmm, files):
    pd.DataFrame({"age": [f"patient {k}" for k in range(30)], "died": np.arange(30) % 2}).to_csv("a.csv", index=False)
    options = ("--data", "a.csv", "--name", "A", "--target", "died", "--loss", "logistic", *OPTIONS.split())
    code, _, err = bayesadmm("site", "init", "at-A", *options)
    assert (code, "--categorical age" in err, (files / "at-A").exists()) == (2, True, False)
    for cells, died, word in ([*range(29), np.inf], 1, "infinite"), (range(30), 9, '--na "9"'):
        pd.DataFrame({"age": cells, "died": [died, *(k % 2 for k in range(29))]}).to_csv("a.csv", index=False)
        code, _, err = bayesadmm("site", "init", "at-A", *options)
        assert (code, word in err, (files / "at-A").exists()) == (2, True, False), err


def test_a_mismatch_is_a_refused_message_and_nothing_is_written(bayesadmm, files):
    table = pd.read_csv("Chur.csv")
    table.assign(ward=table.ward.str.lower()).to_csv("Chur.csv", index=False)
    introduce(bayesadmm, *TARGET, "--loss", "logistic", "--categorical", "ward")
    hellos = [f"at-{name}/hello.npz" for name in SITES]
    code, out, err = bayesadmm("server", "init", "run", *hellos)
    assert (code, out) == (3, "")
    assert "'Chur': column 'ward'" in err
    assert not (files / "run").exists()
    code, _, err = bayesadmm("server", "init", "run", *hellos, "--ignore-case", "--reference", "ward=ICU")
    assert code == 0
    assert "ward: levels 'ICU', '10', '9', 'état'; reference 'ICU'" in err
    code, _, err = bayesadmm("server", "init", "other", *hellos, "--reference", "ward")
    assert (code, "must be COLUMN=LEVEL" in err) == (2, True)


def test_site_intercepts_are_asked_for_at_the_server(bayesadmm, files):
    introduce(bayesadmm, *TARGET, "--loss", "logistic", "--categorical", "ward")
    play(bayesadmm, "--site-intercepts", "--reference-site", "Chur")
    assert bayesadmm("server", "status", "run", "--out", "model.npz")[0] == 0
    names = [row["name"] for row in done(bayesadmm, "summary", "model.npz")["coefficients"]]
    assert names[-3:] == ["site[T.Basel]", "site[T.Bern]", "(intercept)"]
    assert done(bayesadmm, "certify", "model.npz", *(f"{name}.csv" for name in SITES))["holds"]
