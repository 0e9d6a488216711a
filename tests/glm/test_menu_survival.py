"""Cox regressions stratified by site and piecewise exponential ones are those of R's survival, by every door.

`oracles/menu_survival.R` wrote data, sites and fits. Coefficients agree to 1e-6 of a standard error and errors to 1e-6
relative; log-likelihoods, sums of at most 2e3, keep ten digits.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

from bayesadmm_np.estimators import FederatedGLM, load_model, save_model
from bayesadmm_np.glm.kinds import read_kind
from bayesadmm_np.glm.questions import Sums
from bayesadmm_np.losses.survival import CoxPartialLikelihood

pd = pytest.importorskip("pandas")

FITS = json.loads((Path(__file__).parents[1] / "oracles" / "menu_survival.json").read_text())
FITS.pop("versions")
COX = [name for name, one in FITS.items() if one["kind"].startswith("cox")]
EXCHANGES = 6


def fitted(name, sites=None, **changed):
    fit = FITS[name] | changed
    data = pd.DataFrame(fit["data"])
    data = data if sites is None else data.assign(site=sites(len(data)))
    given = {} if fit["weights"] is None else {"weights": fit["weights"]}
    return fit, FederatedGLM.from_formula(fit["formula"], data, client="site", kind=fit["kind"], **given)


def apart(fit, model):
    """The largest difference of a coefficient in standard errors, and of an error relative to R's."""
    found, errors = model.fitted_.mean(), np.sqrt(np.diag(model.covariance_))
    return np.abs((found - fit["coef"]) / errors).max(), np.abs(errors / fit["std_err"] - 1.0).max()


@pytest.mark.parametrize("name", FITS)
def test_the_fit_is_rs(name):
    fit, model = fitted(name)
    assert model.status_.name == "CONVERGED"
    assert max(apart(fit, model)) < 1e-6
    whole = model.fitted_.goodness()
    assert_allclose(whole.log_likelihood, fit["log_likelihood"], rtol=1e-10)
    assert model.fitted_.record.rounds <= EXCHANGES + (name == "ovarian")  # own fits of three rows tell little
    distance = model.certificate_.distance
    assert distance.rigorous
    assert distance.sd_units < 1e-8
    if name in COX:
        assert_allclose(whole.null_log_likelihood, fit["null_log_likelihood"], rtol=1e-10)
        assert whole.test.df == fit["df"]
        assert_allclose(whole.test.statistic, fit["lr_test"], rtol=1e-8)
        assert_allclose(whole.test.p_value, fit["p_value"], rtol=1e-7)


@pytest.mark.parametrize("name", [name for name in COX if name != "lung, institutions"])
def test_terms_are_tested_as_by_refits_in_r(name):
    """Twice the fall of a log-likelihood near 1e3, which keeps ten digits."""
    fit, model = fitted(name)
    assert_allclose([one.statistic for one in model.test_terms(how="lr")], fit["tests"], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["lung", "veteran", "heart"])
def test_sites_are_strata_and_ties_are_told_apart(name):
    """Broken twins: all rows as one stratum, other sites, and Breslow's ties are other fits."""
    fit, _ = fitted(name)
    for _, model in (
        fitted(name, lambda n: ["one"] * n),
        fitted(name, lambda n: [f"s{i % 4}" for i in range(n)]),
        fitted(name, kind="cox(ties=breslow)"),
    ):
        assert max(apart(fit, model)) > 1e-4


def test_pieces_do_not_depend_on_the_split():
    fit, model = fitted("lung, pieces", lambda n: [f"s{i % 3}" for i in range(n)])
    assert max(apart(fit, model)) < 1e-6
    assert model.auxiliary_ == pytest.approx(dict(zip(model.fitted_.coefficient_names[:4], fit["coef"], strict=False)))
    assert [*model.auxiliary_][::3] == ["log hazard 0-90", "log hazard 365-"]
    _, moved = fitted("lung, pieces", kind="piecewise_exponential(cuts=91:180:365)")
    assert max(apart(fit, moved)) > 1e-4


@pytest.mark.parametrize("name", [name for name in COX if name != "heart, weights"])
def test_the_baseline_hazard_that_stays_at_a_site_is_rs(name):
    fit, model = fitted(name)
    data = pd.DataFrame(fit["data"])
    theta = model.fitted_.mean()
    for site, hazard in fit["hazard"].items():
        rows = data[data["site"] == site]
        X = model.fitted_.columns.design(rows)
        y = np.column_stack([rows.eval(part) for part in model.agreement_.parsed.response]).astype(float)
        weights = None if fit["weights"] is None else rows[fit["weights"]]
        loss = CoxPartialLikelihood(X, y, weights, ties="breslow" if "breslow" in fit["kind"] else "efron")
        found = loss.baseline_hazard(theta)[1]
        assert_allclose(found[-1] if found.size else 0.0, hazard, rtol=1e-7)


def test_predictions_are_relative_risks(tmp_path):
    """The predictor is x'β, of no row's baseline, and predict its exponential; there is no score without one."""
    _, model = fitted("lung")
    save_model(tmp_path / "m.npz", model.fitted_)
    new = {"age": [60.0, 70.0], "sex": [1.0, 2.0], "ph.ecog": [0.0, 1.0]}
    linear = np.array([[60.0, 1.0, 0.0], [70.0, 2.0, 1.0]]) @ model.coef_
    assert_allclose(model.predict(new), np.exp(linear), rtol=1e-12)
    assert_allclose(load_model(tmp_path / "m.npz").expected(new), np.exp(linear), rtol=1e-12)
    with pytest.raises(ValueError, match="no score for Cox regression"):
        model.score(pd.DataFrame(new), [[1.0, 1.0], [2.0, 0.0]])


def test_a_likelihood_without_a_maximum_has_no_number():
    """All events are in one group, first at every site: R says that the coefficient may be infinite."""
    data = pd.DataFrame({"t": np.tile(np.arange(1.0, 9.0), 2), "d": 1.0, "site": np.repeat(["a", "b"], 8)})
    data["x"] = (data["t"] <= 4).astype(float)
    with pytest.warns(UserWarning, match="an estimate grows without end, as where a column tells"):
        model = FederatedGLM.from_formula("Surv(t, d) ~ x", data, client="site", kind="cox")
    assert np.isnan(model.coef_).all()


def test_an_interval_without_events_has_no_number():
    fit = FITS["lung, pieces"] | {"kind": "piecewise_exponential(cuts=90:900)"}
    with pytest.warns(UserWarning, match="as where an interval between cuts has no event"):
        model = FederatedGLM.from_formula(fit["formula"], pd.DataFrame(fit["data"]), client="site", kind=fit["kind"])
    assert np.isnan(model.coef_).all()


def test_columns_that_no_site_tells_apart_are_named():
    """A number of each site is the same for all rows of a stratum."""
    data = pd.DataFrame(FITS["lung"]["data"])
    data["beds"] = data["site"].str[1:].astype(float)
    with pytest.raises(ValueError, match="no information on beds"):
        FederatedGLM.from_formula("Surv(time, status == 2) ~ age + beds", data, client="site", kind="cox")


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("cox(ties=exact)", "ties of efron or breslow, got 'exact'"),
        ("cox(tie=efron)", r"options that cox takes \(ties\)"),
        ("piecewise_exponential(cuts=180:90)", "cuts > 0 in rising order"),
        ("piecewise_exponential(cuts=0:90)", "cuts > 0 in rising order"),
        ("piecewise_exponential(cuts=90:inf)", "cuts > 0 in rising order"),
        ("piecewise_exponential(cuts=soon)", "numbers with colons"),
    ],
)
def test_options_that_are_refused(kind, says):
    with pytest.raises(ValueError, match=says):
        read_kind(kind)


@pytest.mark.parametrize("written", ["cox", "cox(ties=breslow)", "piecewise_exponential(cuts=90:180.5:1234567)"])
def test_a_name_is_read_as_it_is_written(written):
    assert str(read_kind(written)) == written
    assert read_kind(written.replace("=", " = ").replace("180.5", "180.50")) == read_kind(written)
    assert read_kind(written).is_convex


@pytest.mark.parametrize(
    ("formula", "says"),
    [
        ("Surv(time, status) ~ age", "status of 0 or 1, got 2; write 1 for an event"),
        ("Surv(time + 1, time, status == 2) ~ age", "every entry before the time"),
        ("Surv(time - 100, status == 2) ~ age", "times >= 0, got -"),
        ("Surv(time, status == 2) ~ 1", "a predictor for Cox regression, which has no intercept"),
    ],
)
def test_formulas_that_are_refused(formula, says):
    with pytest.raises(ValueError, match=says):
        FederatedGLM.from_formula(formula, pd.DataFrame(FITS["lung"]["data"]), client="site", kind="cox")


def test_hazards_alone_have_no_test():
    """A dash in place of their P is not said to be the prior's."""
    _, model = fitted("lung, pieces", formula="Surv(time, status == 2) ~ 1")
    assert "log hazard 365-" in str(model.summary())
    assert "prior contributes" not in str(model.summary())


@pytest.mark.parametrize("seed", range(5))
def test_a_reach_in_another_metric_is_stretched(seed):
    """The largest √(x'Λ⁻¹x) of rows is at most √most times that under M, where M ≤ most Λ."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(50, 3))
    told, wanted = (root @ root.T for root in rng.normal(size=(2, 3, 5)))
    reaches = [np.sqrt(np.einsum("ij,jk,ik->i", X, np.linalg.inv(one), X).max()) for one in (told, wanted)]
    most = np.linalg.eigvals(np.linalg.solve(wanted, told)).real.max()
    sums = Sums(0.0, np.zeros(3), told, np.zeros(3), 1e-12, reaches[0])
    assert sums.stretched(most).reach >= reaches[1] * (1 - 1e-12)
    assert (
        sums.stretched(most).curvature_error * np.diag(wanted).min() >= 1e-12 * np.diag(told)[np.diag(wanted).argmin()]
    )
    assert sums._replace(reach=None).stretched(most).reach is None
