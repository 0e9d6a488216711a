"""Textbook examples over three unequal sites, as a new user of R repeats them: a formula and a frame, nothing else.

`oracles/menu_textbook.R` wrote rows, sites and fits. Levels are missing at sites, and pbc has missing values.
"""

import json
import re

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason="tables are frames")
pytest.importorskip("cyclopts", reason="the command line needs the extra `cli`")

from bayesadmm_np._errors import ArgumentError  # noqa: E402
from bayesadmm_np.estimators import FederatedGLM  # noqa: E402
from bayesadmm_np.estimators.effects import average_effects, joint_test, predict_interval  # noqa: E402
from bayesadmm_np.estimators.model_file import save_model  # noqa: E402
from oracles import menu  # noqa: E402

FITS = menu.read("textbook")
EXCHANGES = 9


def fitted(name):
    case = FITS[name]
    rows = menu.table(case)
    given = {"trials": case["trials"]} if "trials" in case else {}
    return case, rows, FederatedGLM.from_formula(case["formula"], rows, "site", kind=case["kind"], **given)


def places(case, model):
    """Return the places of R's coefficients among the parameters; those left over are sizes and spreads."""
    names = [
        name.replace("[T.", "").replace("]", "").replace("C(", "factor(") for name in model.fitted_.coefficient_names
    ]
    names = [name.replace("(intercept)", "(Intercept)") for name in names]
    if case["kind"] == "ordinal":
        names[:2] = case["names"][:2]
    return [names.index(name) for name in case["names"]]


@pytest.mark.parametrize("name", FITS)
def test_the_fit_is_that_of_r(name):
    case, _, model = fitted(name)
    assert model.status_.name == "CONVERGED"
    assert model.fitted_.record.rounds <= EXCHANGES
    at = places(case, model)
    found = model.fitted_.mean()[at], np.sqrt(np.diag(model.covariance_))[at]
    assert max(menu.apart(found[0], case, found[1])) < 1e-6
    assert model.fitted_.goodness().log_likelihood == pytest.approx(case["log_likelihood"], rel=1e-10)


@pytest.mark.parametrize("name", FITS)
def test_several_coefficients_are_tested_together(name):
    case, _, model = fitted(name)
    tested = [
        k
        for k, one in zip(places(case, model), case["names"], strict=True)
        if pd.Series(one).str.contains(case["test"])[0]
    ]
    found = joint_test(model, np.eye(len(model.fitted_.coefficient_names))[tested])
    scale = found.df if name == "Boston" else 1  # an F, whose numerator is χ² a degree of freedom
    assert found.df == case["joint_df"]
    assert found.statistic * scale == pytest.approx(case["joint"], rel=1e-6)


@pytest.mark.parametrize("name", [name for name, case in FITS.items() if "line" in case])
def test_a_prediction_has_the_error_of_r(name):
    case, rows, model = fitted(name)
    found = predict_interval(model, rows.iloc[:1], scale="link")
    assert [found.estimate[0], found.std_err[0]] == pytest.approx(case["line"], rel=1e-6)


def test_chances_of_classes_are_those_of_r():
    case, rows, model = fitted("survey")
    assert model.predict_proba(rows.iloc[:1])[0] == pytest.approx(case["chances"], rel=1e-6)


@pytest.mark.parametrize("name", ["ships", "Insurance"])
def test_effects_know_the_offset_of_the_formula(name):
    """The average fitted count is the average count, and a count grows in proportion to its exposure."""
    case, rows, model = fitted(name)
    exposure = {"ships": "service", "Insurance": "Holders"}[name]
    found = {one.name: one for one in average_effects(model, rows, variables=[exposure])}
    assert found["average prediction"].coef == pytest.approx(rows[case["formula"].split(" ~")[0]].mean(), rel=1e-8)
    counts = predict_interval(model, rows).estimate
    assert found[f"{exposure}: slope"].coef == pytest.approx((counts / rows[exposure]).mean(), rel=1e-6)
    twin = predict_interval(model, rows, offset=np.zeros(len(rows))).estimate
    assert np.abs(twin / counts - 1.0).min() > 0.5
    with pytest.raises(ArgumentError, match="offset must be given with a matrix"):
        predict_interval(model, np.zeros((1, model.n_features_in_)))


@pytest.mark.parametrize("name", ["survey", "petrol"])
def test_a_file_is_certified_by_its_rows(name, bayesadmm, tmp_path):
    """Cutpoints are as many as the classes ask for; REML has a term that is no sum over rows. Changed rows are seen."""
    case = FITS[name]
    column, kind = {"survey": ("Pulse", "ordinal(order=No:Some:Freq)"), "petrol": ("EP", "mixed_linear")}[name]
    rows = pd.DataFrame(case["data"]).replace({"Exer": {"None": "No"}})
    rows.to_csv(tmp_path / "rows.csv", index=False)
    changed = rows.assign(**{column: rows[column] * (1 + 0.1 * (rows["site"] == "west"))})
    changed.to_csv(tmp_path / "changed.csv", index=False)
    given = ["--client", "site", "--formula", case["formula"], "--loss", kind, "--out", tmp_path / "model.npz"]
    assert bayesadmm("fit", tmp_path / "rows.csv", *given)[0] == 0
    assert bayesadmm("certify", tmp_path / "model.npz", tmp_path / "rows.csv")[0] == 0
    assert bayesadmm("certify", tmp_path / "model.npz", tmp_path / "changed.csv")[0] == 1


def test_predictions_of_a_file_have_the_errors_that_the_fit_printed(bayesadmm, tmp_path):
    """A quasi-likelihood scales every standard error by the root of the dispersion, those of predictions too."""
    case = FITS["ships"]
    pd.DataFrame(case["data"]).to_csv(tmp_path / "rows.csv", index=False)
    errors = {}
    for covariance in ("model", "quasi"):
        given = ["--client", "site", "--formula", case["formula"], "--loss", "poisson", "--covariance", covariance]
        assert bayesadmm("fit", tmp_path / "rows.csv", *given, "--out", tmp_path / "model.npz")[0] == 0
        for question in ("--intervals", "--effects"):
            found = tmp_path / "found.csv"
            assert bayesadmm("predict", tmp_path / "model.npz", tmp_path / "rows.csv", question, "--out", found)[0] == 0
            errors[covariance, question] = pd.read_csv(found)["std_err"].to_numpy()
    for question in ("--intervals", "--effects"):
        scale = errors["quasi", question] / errors["model", question]
        assert scale == pytest.approx(np.full(len(scale), case["dispersion"] ** 0.5), rel=1e-6)


def test_messages_name_the_options_that_there_are(bayesadmm, tmp_path):
    pd.DataFrame(FITS["pbc"]["data"]).to_csv(tmp_path / "rows.csv", index=False)
    given = ["--client", "site", "--formula"]
    code, _, said = bayesadmm("fit", tmp_path / "rows.csv", *given, "Surv(time, status) ~ age")
    assert (code, "--target must have a status of 0 or 1, got 2" in said) == (2, True)
    order = ["sex ~ age", "--loss", "ordinal(order=F:M)"]
    code, _, said = bayesadmm("fit", tmp_path / "rows.csv", *given, *order)
    assert (code, "--loss must have an order of the classes f:m, got F:M" in said) == (2, True)


@pytest.mark.parametrize("name", [name for name in FITS if name != "Insurance"])  # whose districts are numbers in files
def test_the_command_line_has_the_same(name, bayesadmm, tmp_path):
    """Each site has a file; options give R's order of levels. A class "None" would be a missing value in a file."""
    case, rows, model = fitted(name)
    places = [tmp_path / f"{site}.csv" for site, part in rows.groupby("site")]
    for place, (_, part) in zip(places, rows.groupby("site"), strict=True):
        part.drop(columns="site").astype(str).replace("None", "No").to_csv(place, index=False)
    target, _, predictors = case["formula"].partition(" ~")
    kind, levels = case["kind"], dict(case["levels"])
    if kind == "ordinal":
        kind = f"ordinal(order={':'.join(levels.pop(target)).replace('None', 'No')})"
    used = [f"{key}={known[0]}" for key, known in levels.items() if re.search(rf"(?<![|] )\b{key}\b", predictors)]
    given = ["--formula", case["formula"], "--loss", kind, "--json"]
    given += ["--trials", case["trials"]] if "trials" in case else []
    code, out, said = bayesadmm("fit", *places, *given, *(["--reference", ",".join(used)] if used else []))
    assert code == 0, said
    found = {row["name"]: row["coef"] for row in json.loads(out)["coefficients"]}
    for row in model.summary().rows:
        if "|" not in row.name:  # named by the classes, of which one has another word here
            assert found[row.name] == pytest.approx(row.coef, abs=1e-7 * row.std_err)


def test_what_has_no_number_is_said(bayesadmm, tmp_path):
    """A quasi-likelihood has no ratio, a relative risk no average, and a site of an indefinite Hessian no share."""
    pd.DataFrame(FITS["ships"]["data"]).to_csv(tmp_path / "ships.csv", index=False)
    given = ["--client", "site", "--formula", FITS["ships"]["formula"], "--loss", "poisson"]
    code, _, said = bayesadmm("fit", tmp_path / "ships.csv", *given, "--covariance", "quasi", "--tests", "lr")
    assert (code, "--tests must be 'wald' beside covariance 'quasi'" in said) == (2, True)
    _, rows, model = fitted("veteran")
    with pytest.raises(ArgumentError, match="against a row of zeros"):
        average_effects(model, rows)
    save_model(tmp_path / "veteran.npz", model.fitted_)
    rows.to_csv(tmp_path / "veteran.csv", index=False)
    out = tmp_path / "risks.csv"
    assert bayesadmm("predict", tmp_path / "veteran.npz", tmp_path / "veteran.csv", "--out", out)[0] == 0
    assert list(pd.read_csv(out)) == ["relative_risk"]
    _, _, model = fitted("petrol")
    shares = [row.shares for row in model.summary().rows]
    assert all(one is None or min(one) > -1e-3 for one in shares)
    spread = model.summary().rows[0]
    assert (spread.name, spread.low, spread.high) == ("sd ratio", None, None)
