"""Answers of a fit over four unequal sites against R: predictions, averages, hypotheses, models compared, inflation."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason="tables are frames")
pytest.importorskip("cyclopts", reason="the command line needs the extra `cli`")

from bayesadmm_np._errors import ArgumentError  # noqa: E402
from bayesadmm_np.estimators import FederatedGLM, contrast, evaluate  # noqa: E402
from bayesadmm_np.estimators.effects import (  # noqa: E402
    average_effects,
    compare_models,
    joint_test,
    predict_interval,
    variance_inflation,
)

R = json.loads((Path(__file__).parents[1] / "oracles" / "menu_answers.json").read_text())
KINDS = {"logistic": "logistic", "poisson": "poisson", "linear": "linear", "multinomial": "multinomial"}


def fitted(name, formula="formula"):
    case = R[name]
    rows = pd.DataFrame(case["data"])
    return case, rows, FederatedGLM.from_formula(case.get(formula, formula), rows, "site", kind=KINDS[name])


@pytest.mark.parametrize("scale", ["link", "response"])
@pytest.mark.parametrize("name", ["logistic", "poisson", "linear"])
def test_predictions_have_the_errors_of_r(name, scale):
    """The fit is within 1e-8 standard errors of R's, and a slope of the link has a relative error of 1e-10."""
    case, rows, model = fitted(name)
    if scale not in case:
        return
    found = predict_interval(model, rows, scale=scale)
    assert found.estimate == pytest.approx(case[scale][0], rel=1e-6)
    assert found.std_err == pytest.approx(case[scale][1], rel=1e-6)


def test_the_error_of_the_link_is_another_one():
    """The broken twin gives the error of the predictor where the mean's is asked for."""
    case, rows, model = fitted("logistic")
    twin = predict_interval(model, rows, scale="link").std_err
    assert np.abs(twin / case["response"][1] - 1.0).max() > 0.5


@pytest.mark.parametrize("kind", ["logistic", "probit", "cloglog"])
def test_an_error_is_not_lost_near_one(kind):
    """The broken twin, differences of means, has errors of 0 where 1 − p is below rounding."""
    rows = pd.DataFrame({"x": [0.0, 1, 2, 3, 4, 5, 6, 7], "y": [0, 1, 0, 1, 0, 1, 1, 1], "site": list("abcdabcd")})
    model = FederatedGLM.from_formula("y ~ x", rows, "site", kind=kind)
    from scipy.stats import gumbel_l, logistic, norm

    density = {"logistic": logistic, "probit": norm, "cloglog": gumbel_l}[kind].pdf
    for x in (5.0, 11.0, 60.0 if kind == "logistic" else 20.0):
        one = pd.DataFrame({"x": [x]})
        link, mean = (predict_interval(model, one, scale=scale) for scale in ("link", "response"))
        assert mean.std_err == pytest.approx(density(link.estimate) * link.std_err, rel=1e-9, abs=0.0)


def test_an_interval_of_the_mean_is_that_of_the_predictor():
    _, rows, model = fitted("logistic")
    link, mean = (predict_interval(model, rows, scale=scale, level=0.8) for scale in ("link", "response"))
    assert mean.low == pytest.approx(1.0 / (1.0 + np.exp(-link.low)), rel=1e-12)
    assert mean.high == pytest.approx(1.0 / (1.0 + np.exp(-link.high)), rel=1e-12)
    assert (mean.low >= 0.0).all()
    case, rows, model = fitted("linear")  # t with the residuals' degrees of freedom
    assert predict_interval(model, rows, level=0.8).low == pytest.approx(case["low"], rel=1e-9)


def test_probabilities_of_classes_have_errors():
    """By the delta method: differences of the fitted probabilities along each coefficient give the same gradient."""
    case, rows, model = fitted("multinomial")
    found, fit = predict_interval(model, rows), model.fitted_
    assert found.estimate == pytest.approx(np.array(case["chances"]), abs=1e-6)

    def moved(way):
        return replace(fit, posterior=fit.posterior.at(fit.posterior.mean + way, fit.posterior.factor.parts))

    ways = 1e-6 * np.eye(fit.layout.dim)
    slopes = np.stack([(moved(w).probabilities(rows) - moved(-w).probabilities(rows)) / 2e-6 for w in ways], axis=-1)
    expected = np.sqrt(np.einsum("nci,ij,ncj->nc", slopes, fit.spread, slopes))
    assert found.std_err == pytest.approx(expected, rel=1e-6)
    assert ((found.low > 0) & (found.low < found.estimate) & (found.estimate < found.high) & (found.high < 1)).all()


def test_ordered_classes_have_errors():
    from oracles.menu import read, table

    rows = table(read("ordinal")["wine"])
    model = FederatedGLM.from_formula("rating ~ temp + contact", rows, "site", kind="ordinal")
    found = predict_interval(model, rows[:4])
    assert found.estimate == pytest.approx(model.predict_proba(rows[:4]))
    assert (found.std_err > 0).all()
    # P(y <= 0) is a function of one combination, ζ_0 − f, whose error the covariance gives
    link = predict_interval(model, rows[:4], scale="link")
    L = np.zeros((4, 6))
    L[:, 0], L[:, 4:] = 1.0, -model.fitted_.design(rows[:4])[:, 4:]
    error = np.sqrt(np.einsum("ni,ij,nj->n", L, model.covariance_, L))
    p = found.estimate[:, 0]
    assert found.std_err[:, 0] == pytest.approx(p * (1 - p) * error, rel=1e-6)
    assert link.estimate.shape == (4,)


def test_what_the_fit_does_not_determine_has_no_number():
    rows = pd.DataFrame({"x": [0.0, 1, 2, 3, 4, 5], "z": [0.0, 2, 4, 6, 8, 10], "y": [0, 1, 0, 1, 0, 1]})
    rows["site"] = list("aabbcc")
    with pytest.warns(UserWarning, match="z = 2"):
        model = FederatedGLM.from_formula("y ~ x + z", rows, "site", kind="logistic")
    found = predict_interval(model, pd.DataFrame({"x": [1.0, 1.0], "z": [2.0, 0.0]}))
    assert np.isfinite([found.estimate[0], found.std_err[0]]).all()
    assert np.isnan([found.estimate[1], found.std_err[1], found.low[1], found.high[1]]).all()
    with pytest.raises(ArgumentError, match="not estimable"):
        average_effects(model, pd.DataFrame({"x": [1.0], "z": [0.0]}))
    with pytest.raises(ArgumentError, match="not estimable"):
        joint_test(model, "z = 0")


@pytest.mark.filterwarnings("ignore")
def test_separated_rows_have_no_error():
    rows = pd.DataFrame({"x": np.arange(12.0), "y": [0, 1, 0, 1, 1, 0, 0, 1, 0, 1, 1, 0], "g": [0] * 9 + [1] * 3})
    rows.loc[rows["g"] == 1, "y"] = 1
    rows["site"] = list("aaabbbcccabc")
    model = FederatedGLM.from_formula("y ~ x + g", rows, "site", kind="logistic")
    found = predict_interval(model, rows)
    assert found.estimate[-1] == 1.0  # the limit, as in R
    assert np.isnan(found.std_err[-1])
    assert np.isfinite(found.std_err[:9]).all()
    with pytest.raises(ArgumentError, match="no finite estimate"):
        joint_test(model, "g = 0")


def test_average_effects_are_those_of_the_rows_of_all_sites():
    """Slopes are differences over 1e-5 standard deviations: some 1e-10 of them is lost to either error."""
    case, rows, model = fitted("logistic")
    found = {one.name: one for one in average_effects(model, rows)}
    for name, key in {"average prediction": "prediction", "age: slope": "age"}.items():
        assert [found[name].coef, found[name].std_err] == pytest.approx(case[key], rel=1e-5)
    for level in ("other", "white"):
        one = found[f"race: {level} − black"]
        assert [one.coef, one.std_err] == pytest.approx(case[level], rel=1e-5)
    with pytest.raises(ArgumentError, match="did you mean 'smoke'"):
        average_effects(model, rows, ["smok"])


def test_an_interaction_is_followed(monkeypatch):
    """The broken twin takes the coefficient times the mean slope of the link, as if there were no interaction."""
    case, rows, model = fitted("logistic")
    p = model.predict_proba(rows)[:, 1]
    twin = dict(zip(model.fitted_.coefficient_names, model.fitted_.mean(), strict=True))["age"] * np.mean(p * (1 - p))
    assert abs(twin - case["age"][0]) > 0.001


def test_weights_of_the_averages():
    _, rows, model = fitted("poisson")
    twice = pd.concat([rows, rows[:7]])
    weights = np.r_[np.full(7, 2.0), np.ones(len(rows) - 7)]
    for one, other in zip(average_effects(model, twice), average_effects(model, rows, weights=weights), strict=True):
        assert [one.coef, one.std_err] == pytest.approx([other.coef, other.std_err], rel=1e-9)


def test_joint_hypotheses():
    case, _, model = fitted("logistic")
    test = joint_test(model, ["age = 0", "race[T.other] - race[T.white] = 0.5"])
    assert [test.statistic, test.df] == pytest.approx(case["hypothesis"], rel=1e-6)
    assert joint_test(model, ["lwt=0", "smoke = 0"], covariance="HC0").statistic == pytest.approx(
        case["robust"], rel=1e-6
    )
    L = np.zeros((2, 7))
    L[0, 0], L[1, 3], L[1, 4] = 1.0, 1.0, -1.0
    assert joint_test(model, L, [0.0, 0.5]).statistic == pytest.approx(test.statistic, rel=1e-12)
    alone = joint_test(model, "2*age + 1 = 1")
    assert alone.statistic == pytest.approx(contrast(model, {"age": 2.0}).statistic ** 2, rel=1e-12)
    case, _, model = fitted("linear")
    test = joint_test(model, ["income = education", "type[T.prof] = 2*type[T.wc]"])
    assert [test.statistic, test.df, test.df_residual] == pytest.approx(case["hypothesis"], rel=1e-8)


@pytest.mark.parametrize("text", ["agee = 0", "age", "0 = 1", "age = = 2", "age + (2", "", "lwt = 0 = 1"])
def test_equations_that_are_none(text):
    _, _, model = fitted("logistic", "smaller")
    with pytest.raises(ArgumentError, match=r"hypothesis must be an equation"):
        joint_test(model, text)


@pytest.mark.parametrize("name", ["logistic", "linear"])
def test_two_models(name):
    case, _, larger = fitted(name)
    _, _, smaller = fitted(name, "smaller")
    test = compare_models(smaller, larger)
    assert [test.statistic, test.df] == pytest.approx(case["anova"], rel=1e-8)
    with pytest.raises(ArgumentError, match="columns that the larger model has too"):
        compare_models(larger, smaller)
    with pytest.raises(ArgumentError, match="more coefficients"):
        compare_models(larger, larger)


@pytest.mark.parametrize("link", ["log", "inverse"])
def test_two_models_with_a_dispersion(link):
    """The broken twin is a χ² of the deviances' difference, as if the dispersion were one."""
    case = R["gamma"]
    rows = pd.DataFrame(case["data"])
    kind = f"gamma(link={link})"
    smaller, larger = (FederatedGLM.from_formula(case[one], rows, "site", kind=kind) for one in ("smaller", "larger"))
    test = compare_models(smaller, larger)
    assert [test.statistic, test.p_value] == pytest.approx(case[link], rel=1e-7)
    drop = smaller.fitted_.goodness().deviance - larger.fitted_.goodness().deviance
    assert test.statistic > 10.0 * drop


def test_models_of_other_rows_are_not_compared():
    case, rows, larger = fitted("logistic")
    smaller = FederatedGLM.from_formula(case["smaller"], rows[1:], "site", kind="logistic")
    with pytest.raises(ArgumentError, match="rows and weights of the larger"):
        compare_models(smaller, larger)
    other = rows.assign(low=np.where(np.arange(len(rows)) == 3, 1 - rows["low"], rows["low"]))
    smaller = FederatedGLM.from_formula(case["smaller"], other, "site", kind="logistic")
    with pytest.raises(ArgumentError, match="rows and weights of the larger"):
        compare_models(smaller, larger)


def test_variance_inflation():
    case, rows, _ = fitted("logistic")
    model = FederatedGLM.from_formula("low ~ age + lwt + race + smoke", rows, "site", kind="logistic")
    assert [one.factor for one in variance_inflation(model)] == pytest.approx(case["vif"], rel=1e-6)
    case, _, model = fitted("linear")
    found = variance_inflation(model)
    assert [one.factor for one in found] == pytest.approx(case["vif"], rel=1e-8)
    assert found[2].scaled == pytest.approx(found[2].factor ** 0.25)


def test_intervals_of_another_level():
    case, _, model = fitted("logistic")
    rows = sorted([row.low, row.high] for row in model.summary(level=0.9).rows)
    assert np.array(rows) == pytest.approx(np.array(sorted(case["ninety"])), rel=1e-6)
    assert "[0.05" in str(model.summary(level=0.9))
    profile = model.summary(level=0.9, intervals="profile").rows[0]
    wide = model.summary(intervals="profile").rows[0]
    assert wide.low < profile.low < profile.high < wide.high
    for level in (0.0, 1.0, 95, -1, "x"):
        with pytest.raises(ArgumentError, match="level"):
            model.summary(level=level)


def test_the_commands_say_the_same(bayesadmm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    case, rows, _ = fitted("logistic")
    rows.to_csv("rows.csv", index=False)
    for name, formula in (("larger", case["formula"]), ("smaller", case["smaller"])):
        code, out, err = bayesadmm("fit", "rows.csv", "--client", "site", "--formula", formula, "--out", f"{name}.npz")
        assert code == 0, err
    given = ("--level", "0.9", "--test", "age = 0; race[T.other] - race[T.white] = 0.5", "--against", "smaller.npz")
    code, out, err = bayesadmm("summary", "larger.npz", *given, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["level"] == 0.9
    tests = [(one["statistic"], one["df"]) for one in found["hypotheses"]]
    assert np.array(tests) == pytest.approx(np.array([case["hypothesis"], case["anova"]]), rel=1e-6)
    assert bayesadmm("summary", "larger.npz", "--test", "ages = 0")[0] == 2
    code, _, err = bayesadmm("summary", "larger.npz", "--against", "smaller.npz", "--covariance", "quasi")
    assert code == 2
    assert "compares likelihoods" in err
    code, out, err = bayesadmm("predict", "larger.npz", "rows.csv", "--intervals", "--out", "p.csv")
    assert code == 0, err
    table = pd.read_csv("p.csv")
    assert table["std_err"].to_numpy() == pytest.approx(case["response"][1], rel=1e-6)
    code, out, err = bayesadmm("predict", "larger.npz", "rows.csv", "--effects", "--out", "e.csv")
    assert code == 0, err
    slope = pd.read_csv("e.csv").set_index("name").loc["age: slope"]
    assert [slope["coef"], slope["std_err"]] == pytest.approx(case["age"], rel=1e-5)


@pytest.mark.parametrize("door", ["estimator", "files"])
def test_firth_has_likelihood_ratios(door):
    """The penalty of a restricted fit is that of all columns, as logistf has it; nlm is good to some 1e-9 of R's."""
    case = R["firth"]
    rows = pd.DataFrame(case["data"])
    if door == "estimator":
        model = FederatedGLM.from_formula(case["formula"], rows, "site", kind="logistic", penalty="firth")
        tests = model.test_terms(how="lr")
    else:
        from bayesadmm_np.federation import GLMTable, Site
        from oracles.couriers import drive_sites
        from oracles.doors import plan
        from oracles.overrides import ALLOWED

        tables = {name: part.reset_index(drop=True) for name, part in rows.groupby("site")}
        sites = [Site(name, GLMTable(part, case["formula"]), rules=ALLOWED) for name, part in tables.items()]
        server, _ = drive_sites(sites, replace(plan("lr").task, penalty="firth"))
        tests = server.outcome.table.ratio_tests
    assert [one.statistic for one in tests] == pytest.approx(case["lr"], rel=1e-7)


def test_firth_has_profile_intervals():
    case = R["firth"]
    model = FederatedGLM.from_formula(
        case["formula"], pd.DataFrame(case["data"]), "site", kind="logistic", penalty="firth"
    )
    rows = model.summary(intervals="profile").rows[:3]
    assert np.array([[row.low, row.high] for row in rows]) == pytest.approx(np.array(case["ends"]), rel=1e-6)
    # Wald's are others where the likelihood is skewed: the broken twin
    wald = model.summary().rows[0]
    assert abs(wald.high - case["ends"][0][1]) > 1.0


def test_a_restricted_fit_without_the_whole_penalty_is_another(monkeypatch):
    """The broken twin leaves a fixed coefficient's column out of the information."""
    from bayesadmm_np.glm import fit as engine
    from bayesadmm_np.glm.firth import firth
    from bayesadmm_np.glm.refit import Refit

    def twin(start, free, fixed):
        found = yield from firth(start, free=np.asarray(free) & ~np.asarray(fixed))
        return Refit(found.mean, found.value - found.penalty, found.exchanges)

    monkeypatch.setattr(engine, "firth_without", twin)
    case = R["firth"]
    model = FederatedGLM.from_formula(
        case["formula"], pd.DataFrame(case["data"]), "site", kind="logistic", penalty="firth"
    )
    assert abs(model.test_terms(how="lr")[0].statistic - case["lr"][0]) > 0.1


def test_calibration_by_site():
    """Cox's slope and intercept, of all rows those of two fits by glm; a site of one class has none."""
    case = R["calibration"]
    p, y = np.array(case["chance"]), np.array(case["event"])
    site = np.where(np.arange(len(p)) < 4, "few", np.where(np.arange(len(p)) % 3 == 0, "a", "b"))
    y[:4] = 0
    whole = evaluate(np.column_stack([1 - p, p]), np.array(case["event"]), np.arange(len(p)) % 3)
    slope, shift = whole.pooled.recalibration
    assert [slope.estimate, (slope.high - slope.low) / 2 / 1.959963984540054] == pytest.approx(
        [case["slope"], case["slope_se"]], rel=1e-9
    )
    assert [shift.estimate, (shift.high - shift.low) / 2 / 1.959963984540054] == pytest.approx(
        [case["intercept"], case["intercept_se"]], rel=1e-9
    )
    found = evaluate(np.column_stack([1 - p, p]), y, site)
    assert np.isnan(found.sites["few"].recalibration[0].estimate)
    assert found.to_dict()["few"]["slope"] is None
    assert "calibration slope" in str(found)
