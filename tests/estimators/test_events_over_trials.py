"""Events over trials: R's glm(cbind(k, n − k) ~ x), by every door and however the numbers are written."""

import itertools
import json
import warnings

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason="tables are frames")

from bayesadmm_np import losses  # noqa: E402
from bayesadmm_np.estimators import (  # noqa: E402
    FederatedGLM,
    FederatedLogisticRegression,
    FederatedPoissonRegressor,
    load_model,
    save_model,
)
from bayesadmm_np.estimators.summary import as_dict  # noqa: E402
from bayesadmm_np.families import FullGaussian  # noqa: E402
from bayesadmm_np.testing import check_loss  # noqa: E402
from oracles.by_files import differences  # noqa: E402
from oracles.overrides import OPTIONS  # noqa: E402
from oracles.refusals import assert_refused  # noqa: E402

# Bliss (1935), tobacco budworms by dose and sex; ldose <- rep(0:5, 2); sex <- rep(1:0, each = 6); n <- rep(20, 12)
BUDWORM = pd.DataFrame(
    {
        "ldose": [0, 1, 2, 3, 4, 5] * 2,
        "sex": [1] * 6 + [0] * 6,
        "dead": [1, 4, 9, 13, 18, 20, 0, 2, 6, 10, 12, 16],
        "n": 20,
        "lab": list("aabbccabcabc"),
    }
)
# m <- glm(cbind(dead, n - dead) ~ ldose + sex, binomial, epsilon = 1e-15)
COEF = [1.06421396992, 1.10074336300, -3.47315530709]  # summary(m)$coefficients
ERRORS = [0.131077489527, 0.355827130919, 0.468520379202]
DEVIANCE, NULL, AIC, BIC = 6.75706423223, 124.87559260441, 42.86746523365, 44.32218518301
PEARSON = 5.30601705871  # sum(residuals(m, "pearson")^2)
HC0 = [0.0911801129334, 0.2312458371343, 0.3302365035495]  # sqrt(diag(sandwich::vcovHC(m, "HC0")))
HC3 = [0.119569060599, 0.309803800825, 0.426685184802]
X = ["ldose", "sex"]
ROWS = [*X, "(intercept)"]


def errors(model, covariance="model"):
    return model.summary(covariance=covariance).to_frame()["std err"][ROWS]


def assert_is_of_r(model):
    """R prints 12 digits; the rounds end within 1e-8 standard errors."""
    whole = model.fitted_.goodness()
    np.testing.assert_allclose(model.summary().to_frame()["coef"][ROWS], COEF, rtol=1e-8)
    np.testing.assert_allclose(errors(model), ERRORS, rtol=1e-8)
    found = [whole.deviance, whole.null_deviance, whole.aic, whole.bic, whole.dispersion * 9]
    np.testing.assert_allclose(found, [DEVIANCE, NULL, AIC, BIC, PEARSON], rtol=1e-8)
    assert (whole.n_observations, whole.df_residual) == (12, 9)
    np.testing.assert_allclose(model.log_likelihood_, whole.log_likelihood, rtol=1e-12)


def test_a_table_of_groups_is_that_of_r():
    model = FederatedLogisticRegression().fit(BUDWORM[X], BUDWORM["dead"], BUDWORM["lab"], trials=BUDWORM["n"])
    assert_is_of_r(model)
    np.testing.assert_allclose(errors(model, "HC0"), HC0, rtol=1e-7)
    np.testing.assert_allclose(errors(model, "HC3"), HC3, rtol=1e-7)
    scale = np.sqrt(PEARSON / 9)
    np.testing.assert_allclose(errors(model, "quasi"), np.array(ERRORS) * scale, rtol=1e-8)
    assert model.classes_.tolist() == [0, 1]
    assert model.predict_proba(BUDWORM[X]).shape == (12, 2)
    # the broken twin: single rows have the same coefficients, and another deviance
    single = FederatedLogisticRegression().fit(*spread(BUDWORM))
    np.testing.assert_allclose(single.coef_, model.coef_, rtol=1e-9)
    assert single.fitted_.goodness().deviance > 20 * DEVIANCE


def spread(table):
    """One row a trial: columns, outcomes and sites."""
    times = np.concatenate([table["dead"], table["n"] - table["dead"]])
    whole = pd.concat([table.assign(y=1), table.assign(y=0)], ignore_index=True)
    whole = whole.iloc[np.repeat(np.arange(len(whole)), times)]
    return whole[X], whole["y"], whole["lab"]


WRITTEN = [
    *itertools.product(("count",), ("int64", "int8", "float32", "Int64", "object"), ("int64", "float64", "Int64")),
    *itertools.product(("share",), ("float64", "Float64", "object"), ("int64", "float64", "Int64")),
]


@pytest.mark.parametrize("made", [FederatedLogisticRegression, lambda: FederatedGLM("logistic")], ids=["own", "glm"])
def test_counts_and_shares_are_read_however_they_are_written(made):
    """In any order of the rows, with groups without trials among them."""
    empty = BUDWORM.iloc[:2].assign(dead=0, n=0)
    for seed, (how, own, of_trials) in enumerate(WRITTEN):
        table = pd.concat([BUDWORM, empty], ignore_index=True).sample(frac=1.0, random_state=seed)
        y = table["dead"] if how == "count" else table["dead"] / table["n"].clip(lower=1)
        model = made().fit(table[X], y.astype(own), table["lab"], trials=table["n"].astype(of_trials))
        assert_is_of_r(model)


def test_a_formula_and_a_model_file_have_it_too(tmp_path):
    shares = BUDWORM.assign(dead=BUDWORM["dead"] / 20)
    for table in (BUDWORM, shares, dict(list(BUDWORM.groupby("lab")))):
        client = "lab" if isinstance(table, pd.DataFrame) else None
        model = FederatedLogisticRegression.from_formula("dead ~ ldose + sex", table, client, trials="n")
        assert_is_of_r(model)
    save_model(tmp_path / "m.npz", model.fitted_)
    assert as_dict(load_model(tmp_path / "m.npz"))["goodness"] == as_dict(model.fitted_)["goodness"]


PENALISED = [
    {"penalty": "firth"},
    {"prior_precision": 1.0},
    {"prior_precision": 1.0, "inference": "posterior"},
    {"prior_precision": 1.0, "inference": "posterior", "family": "diagonal"},
]


@pytest.mark.parametrize("options", PENALISED, ids=str)
def test_penalties_and_posteriors_are_those_of_single_rows(options):
    grouped = FederatedLogisticRegression(**options).fit(
        BUDWORM[X], BUDWORM["dead"], BUDWORM["lab"], trials=BUDWORM["n"]
    )
    single = FederatedLogisticRegression(**options).fit(*spread(BUDWORM))
    np.testing.assert_allclose(grouped.coef_, single.coef_, rtol=1e-8)
    np.testing.assert_allclose(grouped.covariance_, single.covariance_, rtol=1e-7)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_loss_of_a_share_is_a_loss(share):
    rng = np.random.default_rng(0)
    loss = losses.Binomial(rng.normal(size=(6, 2)), np.full(6, share), rng.integers(1, 9, 6), rng.normal(size=6))
    check_loss(loss, FullGaussian(np.zeros(2), 1.0))


def test_groups_of_events_alone_separate():
    table = BUDWORM.assign(dead=np.where(BUDWORM["sex"] == 1, 20, BUDWORM["dead"]))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model = FederatedLogisticRegression().fit(table[X], table["dead"], table["lab"], trials=table["n"])
    assert model.fitted_.findings[0].names == ("sex",), said
    # one group with 19 of 20 is enough for a maximum
    table.loc[0, "dead"] = 19
    assert FederatedLogisticRegression().fit(table[X], table["dead"], table["lab"], trials=table["n"]).coef_[0, 1] > 0


def test_what_is_no_event_of_a_trial_is_refused():
    k, n, x, logistic = BUDWORM["dead"], BUDWORM["n"], BUDWORM[X], FederatedLogisticRegression
    formula = "dead ~ ldose"
    assert_refused(
        [
            (lambda: logistic().fit(x, k + 1, trials=n), "y"),
            (lambda: logistic().fit(x, -k, trials=n), "y"),
            (lambda: logistic().fit(x, k + 0.5, trials=n), "y"),
            (lambda: logistic().fit(x, (k / n).clip(0.1, 0.9) + 1e-3, trials=n), "y"),
            (lambda: logistic().fit(x, k, trials=n + 0.5), "trials"),
            (lambda: logistic().fit(x, k, trials=-n), "trials"),
            (lambda: logistic().fit(x, k, trials=n[:5].to_numpy()), "trials"),
            (lambda: logistic().fit(x, k, trials=n, sample_weight=n), "sample_weight"),
            (lambda: logistic(class_weight="balanced").fit(x, k, trials=n), "class_weight"),
            (lambda: FederatedGLM("binomial").fit(x, k), "trials"),
            (lambda: FederatedPoissonRegressor().fit(x, k, trials=n), "trials"),
            (lambda: logistic.from_formula(formula, BUDWORM, trials="n", weights="n"), "weights"),
            (lambda: losses.Binomial(x, k), "y"),
            (lambda: logistic().fit(x, k, trials=n).score(x, k), "y"),
        ]
    )


# ----------------------------------------------------------------------------------------------------
# Commands
# ----------------------------------------------------------------------------------------------------


@pytest.fixture
def call(bayesadmm, tmp_path, monkeypatch):
    pytest.importorskip("cyclopts", reason="the command line needs the extra `cli`")
    monkeypatch.chdir(tmp_path)
    BUDWORM.assign(share=BUDWORM["dead"] / 20).to_csv("all.csv", index=False)
    for lab, part in BUDWORM.groupby("lab"):
        part.drop(columns="lab").to_csv(f"{lab}.csv", index=False)
    return lambda text: bayesadmm(*text.split())


@pytest.mark.parametrize(
    "columns", ["--formula dead~ldose+sex", "--formula share~ldose+sex", "--target dead --features ldose,sex"]
)
def test_fit_takes_trials(call, columns):
    code, out, err = call(f"fit all.csv --client lab {columns} --trials n --out m.npz --json --no-progress")
    assert code == 0, err
    told = json.loads(out)
    coefficients = {row["name"]: row["coef"] for row in told["coefficients"]}
    np.testing.assert_allclose([coefficients[name] for name in ROWS], COEF, rtol=1e-8)
    assert told["goodness"]["deviance"] == pytest.approx(DEVIANCE, rel=1e-8)
    assert call(f"certify m.npz all.csv --client lab{'' if 'formula' in columns else ' --weights n'}")[0] == 0
    code, _, err = call("evaluate m.npz all.csv --client lab")
    assert (code, "events over trials" in err) == (2, True)


def test_by_files_it_is_the_table_of_the_estimator(call):
    for lab in "abc":
        site = f"--name {lab} --formula dead~ldose+sex --trials n --loss logistic"
        assert call(f"site init {lab} --data {lab}.csv {site} {OPTIONS}")[0] == 0
    code, out, err = call("server run run a b c --no-progress --json")
    assert code == 0, err
    model = FederatedLogisticRegression.from_formula("dead ~ ldose + sex", BUDWORM, "lab", trials="n")
    told, own = json.loads(out)["table"], as_dict(model.fitted_)
    assert differences(told["goodness"], own["goodness"], (), 1e-10) == []
    assert differences(told["coefficients"], own["coefficients"], (), 1e-7) == []


def test_by_files_shares_are_refused_as_a_site_of_zeros_and_ones_would_read_them_as_counts(call):
    pd.read_csv("all.csv").to_csv("a.csv", index=False)
    site = f"--loss logistic --formula share~ldose {OPTIONS}"
    code, _, err = call(f"site init a --data a.csv --name a --trials n {site}")
    assert (code, "numbers of events" in err) == (2, True), err
    code, _, err = call(f"site init a --data a.csv --name a {site}")
    assert (code, "column of trials" in err) == (2, True), err


def test_shares_with_whole_weights_are_no_measurements(call):
    """The regression of .05, .2, … on ldose was a linear one."""
    code, _, err = call("fit all.csv --client lab --formula share~ldose --weights n")
    assert (code, "--trials n" in err, "--loss linear" in err) == (2, True, True), err
    code, _, err = call("fit all.csv --client lab --formula share~ldose --weights n --loss logistic")
    assert (code, "--trials" in err) == (2, True), err
    assert call("fit all.csv --client lab --formula share~ldose --weights n --loss linear --no-progress")[0] == 0
    code, _, err = call("fit all.csv --client lab --formula dead~ldose --trials n --loss poisson")
    assert (code, "--trials" in err) == (2, True), err
    code, _, err = call("fit all.csv --client lab --formula dead~ldose --trials n --weights n")
    assert (code, "--weights" in err) == (2, True), err
    code, _, err = call("fit all.csv --client lab --formula dead~ldose --trials sex")
    assert (code, "--target must hold counts of events" in err) == (2, True), err
