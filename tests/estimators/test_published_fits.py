"""Fits of public data sets that R's glm, lm and nnet::multinom have, over one to five sites and at both doors.

`oracles/published.R` wrote data and fits. Two of them are the data of vantage6's v6-glm-py, whose own tests expect the
numbers in `V6_GLM` (test/test.py, `test_central_until_convergence_poisson` and `_gaussian`).
"""

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

from bayesadmm_np.estimators import FederatedGLM

pd = pytest.importorskip("pandas")

FITS = json.loads((Path(__file__).parents[1] / "oracles" / "published.json").read_text())
V6_GLM = {
    "poisson_sim": {
        "coef": [-5.247124398538717, 1.0838591456207733, 0.3698092298424788, 0.07015239749371881],
        "std_err": [0.6584530709259728, 0.3582529823879555, 0.441070293006936, 0.010599204955928867],
        "p_value": [1.6013676524256278e-15, 0.002483031869261843, 0.40178585541153466, 3.625009954110168e-11],
        "deviance": 189.4496199102934,
        "null_deviance": 287.67223445286476,
    },
    "trees": {
        "coef": [-36.94346, 5.0658564],
        "std_err": [3.36514, 0.247376],
        "p_value": [7.621448e-12, 8.64433e-19],
        "deviance": 524.3025,
        "null_deviance": 8106.08387,
    },
}
SITES = {
    "one": lambda n: np.zeros(n, int),
    "two, in turn": lambda n: np.arange(n) % 2,
    "three, in blocks": lambda n: np.arange(n) * 3 // n,
    "five, in turn": lambda n: np.arange(n) % 5,
}


def words_of(fit):
    """Columns of text, whose levels are all meant though some are at one site alone."""
    return [name for name, cells in fit["data"].items() if isinstance(cells[0], str) and name in fit["formula"]]


def frame_of(fit, sites):
    frame = pd.DataFrame(fit["data"])
    return frame.assign(site=[f"s{k}" for k in SITES[sites](len(frame))])


def check(fit, rows, goodness):
    """Hold a table to R's, to 1e-6 of a standard error; multinom stops at a gradient that is good for 1e-4.

    Sums of deviances of at most 6e7 keep ten digits.
    """
    within = 1e-4 if fit["kind"] == "multinomial" else 1e-6
    errors = np.array([row["std_err"] for row in rows])
    found = np.array([row["coef"] for row in rows])
    assert_allclose(errors, fit["std_err"], rtol=within)
    assert_allclose((found - fit["coef"]) / errors, 0.0, atol=within)
    for name in {"deviance", "null_deviance", "log_likelihood", "df_residual"} & set(fit):
        if name == "df_residual" and fit.get("weights"):
            continue  # R counts rows, whatever their weights say
        assert_allclose(goodness[name], fit[name], rtol=1e-9, err_msg=name)


def intercept_first(rows, n_outputs):
    """R's order: of each output the intercept, then its columns."""
    width = len(rows) // n_outputs
    return [row for k in range(n_outputs) for row in np.roll(rows[k * width : (k + 1) * width], 1)]


@pytest.mark.parametrize("sites", SITES)
@pytest.mark.parametrize("name", FITS)
def test_the_estimators_fit_is_rs(name, sites):
    fit = FITS[name]
    data = frame_of(fit, sites)
    options = {"weights": fit["weights"]} if fit.get("weights") else {}
    options |= {"kind": fit["kind"], "as_written": words_of(fit)}
    model = FederatedGLM.from_formula(fit["formula"], data, client="site", **options)
    assert model.certificate_.holds
    rows = [vars(row) for row in model.summary().rows]
    check(fit, intercept_first(rows, model.fitted_.layout.n_outputs), vars(model.fitted_.goodness()))


@pytest.mark.parametrize("name", FITS)
def test_the_commands_fit_is_rs(name, tmp_path, bayesadmm):
    fit = FITS[name]
    frame_of(fit, "three, in blocks").to_csv(tmp_path / "rows.csv", index=False)
    words = ["fit", tmp_path / "rows.csv", "--client", "site", "--formula", fit["formula"], "--json"]
    words += ["--loss", fit["kind"], *(["--weights", fit["weights"]] if fit.get("weights") else [])]
    words += ["--as-written", ",".join(words_of(fit))] if words_of(fit) else []
    code, out, err = bayesadmm(*words)
    assert code == 0, err
    found = json.loads(out)
    rows, n_outputs = found["coefficients"], 2 if fit["kind"] == "multinomial" else 1
    check(fit, intercept_first(rows, n_outputs), found["goodness"])


@pytest.mark.parametrize("name", V6_GLM)
def test_the_numbers_of_vantage6_are_ours(name):
    """To the digits that its tests write: seven decimals, or six significant ones, of which the last are cut."""
    fit, right = FITS[name], V6_GLM[name]
    model = FederatedGLM.from_formula(
        fit["formula"], frame_of(fit, "three, in blocks"), client="site", kind=fit["kind"]
    )
    rows = model.summary().shown
    for field in ("coef", "std_err", "p_value"):
        assert_allclose([getattr(row, field) for row in rows], right[field], rtol=5e-6, atol=1e-7 * (name != "trees"))
    goodness = model.fitted_.goodness()
    assert_allclose((goodness.deviance, goodness.null_deviance), (right["deviance"], right["null_deviance"]), rtol=1e-6)


def test_the_check_can_fail():
    """Broken twin: a tenth of the rows is left out."""
    fit = FITS["Pima.tr"]
    data = frame_of(fit, "one").iloc[:-20]
    model = FederatedGLM.from_formula(fit["formula"], data, client="site", kind="logistic")
    with pytest.raises(AssertionError):
        check(fit, intercept_first([vars(row) for row in model.summary().rows], 1), vars(model.fitted_.goodness()))
