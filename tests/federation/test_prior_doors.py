"""One prior, one answer: an estimator, `bayesadmm fit`, a run by files and one on Flower, in the same words."""

import json
import tomllib
from itertools import product

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason="the command line needs the extra `cli`")

from bayesadmm_np.estimators import FederatedGLM, FederatedLogisticRegression, load_model  # noqa: E402
from bayesadmm_np.glm.prior import Prior  # noqa: E402
from oracles.by_files import SITES, introduce, run, tables_in_memory, write_tables  # noqa: E402
from oracles.overrides import ALLOWED, OPTIONS  # noqa: E402
from oracles.refusals import assert_refused  # noqa: E402

FILES = " ".join(f"{name}.csv" for name in SITES)
TARGETS = {"logistic": "died", "poisson": "visits", "linear": "pressure", "softmax": "ward"}
COLUMNS = ["age", "dose", "w"]
"""`age` has a mean of ten standard deviations, and `w` is 1 or 2."""

UNITS = {"unit": "unit", "sd": "pooled standard deviation"}


def numbers(model):
    """Coefficients, intercept last, and their standard errors, in the columns' own units."""
    return np.concatenate([model.mean(), np.sqrt(np.diag(model.covariance()))])


def options_of(inference, unit, penalises, kind):
    """The options of a command, and the arguments of an estimator."""
    noise = {"noise_variance": 1.0} if inference == "posterior" and kind == "linear" else {}
    typed = f"--prior-precision 2 --prior-unit {unit} --inference {inference} --tol 1e-11"
    typed += " --penalize-intercept" if penalises else ""
    own = {"prior_unit": unit, "inference": inference, "penalize_intercept": penalises, "tol": 1e-11}
    return typed, {**own, **noise}, " --noise-variance 1" if noise else ""


def by_estimator(rows, kind, target, own, precision=2.0):
    return FederatedGLM(kind, precision, **own).fit(rows[COLUMNS], rows[target], client=rows["site"]).fitted_


def by_fit(call, kind, target, typed, noise):
    command = f"fit {FILES} --loss {kind} --target {target} --features {','.join(COLUMNS)} {typed}{noise}"
    code, out, err = call(f"{command} --out fit.npz --no-progress --json")
    assert code in (0, 1), err
    model = load_model("fit.npz")
    assert json.loads(out)["prior_precision"] == model.stated.words(True)
    return model


def by_files(call, kind, target, typed, noise, site=""):
    site = f"--target {target} --loss {kind} --features {','.join(COLUMNS)}{noise} {site}"
    code, told, err = run(call, site, typed)
    assert code in (0, 1), err
    assert call("server status run --out run.npz")[0] in (0, 1)
    model = load_model("run.npz")
    assert told["table"]["prior_precision"] == told["prior"] == model.stated.words(True)
    return model


def on_flower(call, rows, kind, target, inference, unit, penalises, noise):
    """The app's configuration makes the task, and Flower's grid carries the messages."""
    from bayesadmm_np.cli.flower import read_plan
    from bayesadmm_np.estimators.from_run import fitted_run
    from bayesadmm_np.federation import GLMTable, Site, final_result
    from oracles.couriers import drive_sites

    assert call(f"flower new trial --sites {len(SITES)}")[0] == 0
    with open("trial/app/pyproject.toml", "rb") as file:
        config = tomllib.load(file)["tool"]["flwr"]["app"]["config"]
    given = {"prior-precision": 2.0, "prior-unit": unit, "penalize-intercept": penalises, "inference": inference}
    plan = read_plan({**config, **given, "tol": 1e-11})
    tables = {name: rows[rows["site"] == name] for name in SITES}
    formula = f"{target} ~ {' + '.join(COLUMNS)}"
    variance = {"noise_variance": 1.0} if noise else {}
    sites = [Site(name, GLMTable(part, formula, kind, **variance), rules=ALLOWED) for name, part in tables.items()]
    server, _ = drive_sites(sites, plan.task)
    return fitted_run(server.spec, final_result(server.broadcast(), server), dict.fromkeys(SITES, 1))


CASES = [
    pytest.param(*case, marks=() if (case[2] == "sd") == case[3] else pytest.mark.slow, id="-".join(map(str, case)))
    for case in product(TARGETS, ("likelihood", "posterior"), UNITS, (False, True))
]


@pytest.mark.parametrize(("kind", "inference", "unit", "penalises"), CASES)
def test_one_prior_has_one_answer_in_every_door(call, kind, inference, unit, penalises):
    """To 1e-9: all end within tol = 1e-11 Fisher lengths. The broken twin has the other unit."""
    pytest.importorskip("flwr", reason="needs the extra `flower`")
    rows, target = write_tables(), TARGETS[kind]
    typed, own, noise = options_of(inference, unit, penalises, kind)
    first = by_estimator(rows, kind, target, own)
    others = {
        "fit": by_fit(call, kind, target, typed, noise),
        "files": by_files(call, kind, target, typed, noise),
        "flower": on_flower(call, rows, kind, target, inference, unit, penalises, noise),
    }
    intercept = ", the intercept too" if penalises else ", the intercept free"
    assert first.stated.words(True) == f"2 per {UNITS[unit]} of each column{intercept}"
    scale = np.abs(numbers(first)).max()
    for door, model in others.items():
        assert model.stated == first.stated == Prior(2.0, unit, penalises)
        np.testing.assert_allclose(numbers(model), numbers(first), rtol=1e-9, atol=1e-9 * scale, err_msg=door)
    twin = by_estimator(rows, kind, target, {**own, "prior_unit": "sd" if unit == "unit" else "unit"})
    assert np.abs(numbers(twin) - numbers(first)).max() > 1e-4 * scale


@pytest.mark.parametrize("inference", ["likelihood", "posterior"])
def test_without_options_no_door_has_a_prior(call, inference):
    rows = write_tables()
    own = {"inference": inference, "tol": 1e-11}
    first = by_estimator(rows, "logistic", "died", own, 0.0)
    assert (numbers(by_estimator(rows, "logistic", "died", {**own, "prior_unit": "sd"}, 0.0)) == numbers(first)).all()
    typed = f"--inference {inference} --tol 1e-11"
    for model in (by_fit(call, "logistic", "died", typed, ""), by_files(call, "logistic", "died", typed, "")):
        assert model.stated.words(True) == "none"
        np.testing.assert_allclose(numbers(model), numbers(first), rtol=1e-9, atol=1e-9 * np.abs(numbers(first)).max())


@pytest.mark.parametrize("penalises", [False, True])
@pytest.mark.parametrize("inference", ["likelihood", "posterior"])
@pytest.mark.parametrize("kind", TARGETS)
def test_per_standard_deviation_is_the_fit_of_standardised_columns(kind, inference, penalises):
    """Whatever the units of the columns, their order, the order of the sites, and the weights; 24 of them."""
    rng, rows = np.random.default_rng(5), tables_in_memory()
    X, y, client, w = rows[COLUMNS].to_numpy(), rows[TARGETS[kind]].to_numpy(), rows["site"], rows["w"].to_numpy()
    mean = np.average(X, axis=0, weights=w)
    deviation = np.sqrt(np.average((X - mean) ** 2, axis=0, weights=w))
    _, own, _ = options_of(inference, "unit", penalises, kind)
    right = FederatedGLM(kind, 2.0, **own).fit((X - mean) / deviation, y, client=client, sample_weight=w).coef_
    for _ in range(3):
        units, order, places = 10.0 ** rng.integers(-3, 4, 3), rng.permutation(3), rng.permutation(len(y))
        moved = (X * units + rng.normal(size=3) * units)[places][:, order]
        model = FederatedGLM(kind, 2.0, **{**own, "prior_unit": "sd"})
        model.fit(moved, y[places], client=client.to_numpy()[places], sample_weight=w[places])
        found = np.empty_like(np.atleast_2d(model.coef_))
        found[:, order] = np.atleast_2d(model.coef_) * (units * deviation)[order]
        np.testing.assert_allclose(found, np.atleast_2d(right), rtol=1e-7, atol=1e-8)


def test_a_constant_column_has_the_prior_of_its_unit():
    """It has no standard deviation; without a prior on it nothing would determine its coefficient."""
    rows = tables_in_memory().assign(w=3.0)
    model = FederatedLogisticRegression(1.0, prior_unit="sd").fit(rows[COLUMNS], rows["died"], client=rows["site"])
    assert abs(model.coef_[0, 2]) < 1e-12
    assert model.certificate_.holds


def test_a_prior_that_a_door_cannot_have_is_refused_by_its_argument(call):
    rows = tables_in_memory()
    X, y = rows[COLUMNS], rows["died"]
    spec = {"method": "ADMM", "penalize_intercept": True}
    assert_refused(
        [
            (lambda: FederatedLogisticRegression(1.0, prior_unit="iqr").fit(X, y), "prior_unit"),
            (lambda: FederatedLogisticRegression(1.0, prior_unit="sd", **spec).fit(X, y), "prior_unit"),
            (lambda: FederatedLogisticRegression(0.0, **spec).fit(X, y), "prior_precision"),
            (lambda: FederatedLogisticRegression(1.0, method="ADMM").fit(X, y), "penalize_intercept"),
        ]
    )
    FederatedLogisticRegression(1.0, max_rounds=1, **spec).fit(X, y)  # twin
    write_tables()
    paths = introduce(call, f"{OPTIONS} --target died --loss logistic --features age,dose")
    for options, argument in {
        "--method ADMM --family isotropic": "--penalize-intercept",
        "--method ADMM --family isotropic --penalize-intercept": "--prior-precision",
        "--prior-precision 1 --prior-unit sd --sums-only": "--prior-unit",
        "--prior-precision 1 --prior-unit iqr": "--prior-unit",
        "--prior-precision -1": "--prior-precision",
    }.items():
        code, _, err = call(f"server init run {paths} {options}")
        assert (code, argument in err) == (2, True), (options, err)
    fit = f"fit {FILES} --loss logistic --target died --features age,dose --method ADMM --penalize-intercept"
    code, _, err = call(f"{fit} --prior-precision 1 --prior-unit sd")
    assert (code, "--prior-unit" in err) == (2, True), err
    assert call(f"{fit} --prior-precision 1 --tol 1e-3 --no-progress")[0] in (0, 1)


def test_a_run_that_has_begun_takes_no_other_options(call):
    """They were ignored in silence; the same ones, and none at all, go on."""
    write_tables()
    introduce(call, f"{OPTIONS} --target died --loss logistic --features age,dose")
    first = "--prior-precision 2 --prior-unit sd --tol 1e-7"
    command = f"server run run {' '.join(SITES)} --no-progress --json"
    told = json.loads(call(f"{command} {first}")[1])
    for options in (first, ""):
        assert json.loads(call(f"{command} {options}")[1])["mean"] == told["mean"]
    for options, names in {
        first.replace("precision 2", "precision 3"): ["--prior-precision"],
        "--tol 1e-7": ["--prior-precision, --prior-unit"],
        f"{first} --penalize-intercept": ["of --penalize-intercept."],
        f"{first} --method PVI": ["--method"],
        f"{first} --seed 1": ["of --seed."],
    }.items():
        code, out, err = call(f"{command} {options}")
        assert (code, out) == (2, ""), options
        assert all(name in err for name in names), err


@pytest.mark.parametrize(
    ("options", "argument", "cure"),
    [
        ("--prior-unit sd", "--prior-unit", ""),
        ("--inference posterior", "--penalize-intercept", "--inference posterior --penalize-intercept"),
    ],
)
def test_a_prior_needs_sums_that_a_site_may_keep_back(call, options, argument, cure):
    """The twin is what the refusal says: it needs none."""
    write_tables()
    site = f"{OPTIONS} --target died --loss logistic --features age,dose --refuse design"
    introduce(call, site)
    code, _, err = call(f"server run run {' '.join(SITES)} --prior-precision 1 {options}")
    assert (code, argument in err, "east" in err) == (2, True, True), err
    for name in SITES:
        assert call(f"site init {name}2 --data {name}.csv --name {name} {site}")[0] == 0
    folders = " ".join(f"{name}2" for name in SITES)
    assert call(f"server run other {folders} --prior-precision 1 {cure} --no-progress")[0] == 0


@pytest.mark.parametrize("shift", [0.0, 1e3, 1e6])
def test_a_prior_per_deviation_on_the_intercept_too_does_not_depend_on_the_origin(call, shift):
    """Sites measure columns at their means for it, as one process does."""
    rng = np.random.default_rng(0)
    a = rng.normal(size=60).round(2)
    rows = pd.DataFrame({"a": a + shift, "visits": rng.poisson(np.exp(0.4 * a)), "site": [*SITES] * 20})
    for name, part in rows.groupby("site"):
        part.drop(columns="site").to_csv(f"{name}.csv", index=False)
    typed = "--prior-precision 10 --prior-unit sd --penalize-intercept"
    code, out, err = call(f"fit {FILES} --formula visits~a --loss poisson {typed} --no-progress --json")
    assert code == 0, err
    code, told, err = run(call, "--formula visits~a --loss poisson", typed)
    assert code == 0, err
    own, other = (table["coefficients"][0] for table in (json.loads(out), told["table"]))
    assert [other["coef"], other["std_err"]] == pytest.approx([own["coef"], own["std_err"]], rel=1e-9)
