"""An estimator by a formula: the fit to formulaic's pooled design, and predictions of tables like those of the fit."""

import pickle
from dataclasses import replace

import formulaic
import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from bayesadmm_np._archive import Archive, ArchiveError
from bayesadmm_np._errors import ArgumentError
from bayesadmm_np.design.formula import agree, describe_columns
from bayesadmm_np.design.levels import TableError
from bayesadmm_np.estimators import (
    FederatedLinearRegression,
    FederatedLogisticRegression,
    FederatedPoissonRegressor,
    contrast,
    load_model,
    save_model,
)
from bayesadmm_np.estimators.formula_fit import fit_formula
from bayesadmm_np.estimators.summary import as_dict
from bayesadmm_np.federation import GLMTable

FORMULA = "died ~ center(age)*sex + C(ward, Treatment('medical')) + bs(bmi, 4)"


@pytest.fixture
def table(rng):
    n = 150
    return pd.DataFrame(
        {
            "hospital": rng.choice(["Basel", "Bern", "Chur"], n),
            "died": rng.choice(["no", "yes"], n),
            "stays": rng.poisson(2.0, n),
            "age": rng.integers(30, 90, n).astype(float),
            "bmi": rng.normal(25, 4, n),
            "sex": rng.choice(["f", "m"], n),
            "ward": rng.choice(["medical", "surgical", "icu"], n),
            "flag": rng.random(n) < 0.5,
        }
    )


def pooled(formula, table):
    return formulaic.model_matrix(formula, table).rhs.drop(columns="Intercept", errors="ignore")


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame, dict])
def test_the_fit_is_that_of_the_pooled_design(table, frame):
    model = FederatedLogisticRegression.from_formula(
        FORMULA, frame({name: table[name].to_numpy() for name in table}), "hospital", prior_precision=1.0
    )
    X = pooled(FORMULA, table)
    right = FederatedLogisticRegression(prior_precision=1.0).fit(X, table.died, client=table.hospital)
    assert list(model.feature_names_in_) == list(X)
    # the two runs end within tol of the same mode, in Fisher length
    gap = np.abs(model.posterior_.mean - right.posterior_.mean) / np.sqrt(np.diag(right.covariance_))
    assert gap.max() < 1e-6
    np.testing.assert_allclose(model.predict_proba(table)[:, 1], right.predict_proba(X)[:, 1], rtol=1e-6)
    new = table.drop(columns=["died", "hospital"]).iloc[[3]]
    np.testing.assert_allclose(model.predict_proba(new), right.predict_proba(X.iloc[[3]]), rtol=1e-6)
    assert model.fitted_.columns.target == "died"
    assert model.fitted_.columns.client == "hospital"
    assert "died" in str(model.summary())


def test_tables_by_site_may_be_written_differently(table):
    parts = {site: rows.drop(columns="hospital").reset_index(drop=True) for site, rows in table.groupby("hospital")}
    parts["Bern"]["sex"] = " " + parts["Bern"].sex
    parts["Basel"] = {name: parts["Basel"][name].tolist() for name in reversed(parts["Basel"].columns)}
    parts["Chur"]["ward"] = parts["Chur"].ward.astype(pd.CategoricalDtype(["surgical", "medical", "icu"]))
    parts["Chur"].loc[[0, 5], "age"] = np.nan
    model = FederatedLogisticRegression.from_formula(FORMULA, parts, site_intercepts=True)
    assert model.site_missing_ == {"Basel": 0, "Bern": 0, "Chur": 2}
    assert "site[T.Bern]" in model.feature_names_in_
    assert any("' m' for 'm'" in line for line in model.agreement_.lines)
    assert any("site 'Chur': 2 of" in line for line in model.agreement_.lines)
    said = " ".join(str(model.summary()).split())
    assert all(line in said for line in model.agreement_.lines)
    assert "left out, because" not in said  # the lines say it
    assert as_dict(model.fitted_)["missing"] == {"Basel": 0, "Bern": 0, "Chur": 2}
    kept = pd.concat(
        [rows.drop(index=rows.index[[0, 5]] if site == "Chur" else []) for site, rows in table.groupby("hospital")]
    )
    kept = kept.rename(columns={"hospital": "site"})
    X = pooled(f"{FORMULA} + site", kept)
    right = FederatedLogisticRegression().fit(X, kept.died, client=kept.site)
    gap = np.abs(model.posterior_.mean - right.posterior_.mean) / np.sqrt(np.diag(right.covariance_))
    assert gap.max() < 1e-6
    np.testing.assert_allclose(model.predict_proba(kept), right.predict_proba(X), rtol=1e-6)
    parts["Chur"]["sex"] = parts["Chur"].sex.str.upper()
    with pytest.raises(TableError, match=r"column 'sex'.*'Chur'"):
        FederatedLogisticRegression.from_formula(FORMULA, parts)
    again = FederatedLogisticRegression.from_formula(FORMULA, parts, ignore_case=True)
    assert list(again.feature_names_in_) == list(pooled(FORMULA, table))


def test_an_intercept_is_what_the_formula_says(table):
    model = FederatedPoissonRegressor.from_formula("stays ~ 0 + ward + flag", table, "hospital")
    assert not model.fitted_.layout.has_intercept
    assert list(model.feature_names_in_) == list(pooled("stays ~ 0 + ward + flag", table))
    with pytest.raises(ArgumentError, match=r"^fit_intercept "):
        fit_formula(FederatedPoissonRegressor(), "stays ~ ward - 1", table, "hospital")
    with pytest.raises(ArgumentError, match=r"^formula "):
        FederatedPoissonRegressor.from_formula("stays ~ 0", table, "hospital")


def test_a_model_file_holds_the_agreement_and_checks_it(table, tmp_path):
    model = FederatedLogisticRegression.from_formula(FORMULA, table, "hospital", reference={"sex": "m"})
    path = tmp_path / "model.npz"
    save_model(path, model.fitted_)
    again = load_model(path)
    assert again.columns.agreement == model.agreement_
    new = {name: table[name].tolist() for name in ("age", "bmi", "sex", "ward")}
    np.testing.assert_array_equal(
        again.probabilities(new), model.fitted_.probabilities(model.fitted_.columns.design(new))
    )
    np.testing.assert_array_equal(again.decision(new), model.decision_function(table))
    archive = Archive.read(path)
    plain = archive.header["agreement"]
    spline = {**plain["learned"]["bs(bmi, 4)"], "knots": [99]}
    stranger = {
        "features must be those": {"formula": FORMULA.replace("*", "+")},
        "must not call exec": {"formula": FORMULA + " + exec(age)"},
        "learned must be": {"learned": {}},
        "center\\(age\\) must have center, scale": {"learned": {**plain["learned"], "center(age)": {}}},
        "rising knots": {"learned": {**plain["learned"], "bs(bmi, 4)": spline}},
        "no level 'medical'": {"columns": {**plain["columns"], "ward": {"kind": "factor", "levels": ["icu", "x"]}}},
        "columns must be": {"columns": {}},
    }
    for says, change in stranger.items():
        header = {**archive.header, "agreement": {**plain, **change}}
        replace(archive, header=header).write(path)
        with pytest.raises(ArchiveError, match=says):
            load_model(path)


def test_it_stays_an_estimator_of_scikit_learn(table):
    model = FederatedLogisticRegression.from_formula("died ~ age + ward", table, "hospital", prior_precision=2.0)
    assert clone(model).prior_precision == 2.0
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(table), model.predict(table))
    with pytest.raises(TableError, match="'dental'"):
        model.predict(table.assign(ward="dental"))
    with pytest.raises(TableError, match="column 'age'"):
        model.predict(table.assign(age=table.age.where(table.index != 3)))
    with pytest.raises(ValueError, match="forget_site"):
        model.forget_site("Basel")
    with pytest.raises(ValueError, match="partial_fit_site"):
        model.partial_fit_site("Genf", table, table.died)
    model.fit(table[["age"]], table.died)
    with pytest.raises(AttributeError, match="agreement_"):
        model.agreement_  # noqa: B018
    with pytest.raises(NotFittedError):
        FederatedLogisticRegression().predict(table)


def test_the_column_of_sites_is_named_and_whole(table):
    with pytest.raises(ArgumentError, match=r"^client "):
        FederatedLogisticRegression.from_formula("died ~ age", table, "clinic")
    with pytest.raises(TableError, match="'hospital'"):
        FederatedLogisticRegression.from_formula(
            "died ~ age", table.assign(hospital=table.hospital.where(table.index != 4)), "hospital"
        )
    alone = FederatedLogisticRegression.from_formula("died ~ age", table)
    assert alone.sites_ == ["all"]
    weighted = FederatedLogisticRegression.from_formula(
        "died ~ age", table.assign(w=(table.index % 2).astype(float)), "hospital", weights="w"
    )
    half = FederatedLogisticRegression.from_formula("died ~ age", table[table.index % 2 == 1], "hospital")
    np.testing.assert_allclose(weighted.posterior_.mean, half.posterior_.mean, rtol=1e-6)


def test_an_offset_of_the_formula_is_that_of_predictions_too(table):
    formula = "stays ~ age + flag + offset(log(bmi))"
    model = FederatedPoissonRegressor.from_formula(formula, table, "hospital")
    X = pooled("stays ~ age + flag", table)
    right = FederatedPoissonRegressor().fit(X, table.stays, client=table.hospital, exposure=table.bmi)
    gap = np.abs(model.posterior_.mean - right.posterior_.mean) / np.sqrt(np.diag(right.covariance_))
    assert gap.max() < 1e-6
    np.testing.assert_allclose(model.predict(table), right.predict(X, exposure=table.bmi), rtol=1e-6)
    matrix = X.to_numpy(dtype=float)
    with pytest.warns(UserWarning, match="feature names"):  # scikit-learn's
        found = model.predict(matrix, offset=np.log(table.bmi))
    np.testing.assert_array_equal(found, model.predict(table))
    with (
        pytest.warns(UserWarning, match="feature names"),
        pytest.raises(ArgumentError, match=r"^offset "),
    ):
        model.predict(matrix)
    with pytest.raises(ArgumentError, match=r"^offset "):
        model.predict(table, exposure=table.bmi)


@pytest.mark.parametrize("one_table", [False, True])
def test_sites_that_would_share_a_name_are_refused(one_table):
    """As names of sites 1 and "1" are the same: rows of one would be lost."""
    table = {"x": np.arange(6.0), "y": np.array([0.0, 1.1, 1.9, 3.2, 3.9, 5.1])}
    data = {1: table, "1": table}
    if one_table:
        data = {name: np.tile(values, 2) for name, values in table.items()}
        data["site"] = np.array([1] * 6 + ["1"] * 6, dtype=object)
    with pytest.raises(ValueError, match=r"^client .* 1 and '1'"):
        fit_formula(FederatedLinearRegression(), "y ~ x", data, client="site" if one_table else None)


def test_a_cell_of_another_kind_is_named_with_its_row_where_the_table_is():
    """In one process and at a site; the server of sites elsewhere is told no value."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"site": np.repeat(["a", "b"], 20), "x": rng.standard_normal(40), "y": rng.integers(0, 2, 40)})
    frame["x"] = frame["x"].astype(object)
    frame.loc[27, "x"] = "high"
    words = "column 'x' .*'high' in row 27"
    with pytest.raises(TableError, match=f"site 'b': {words}"):
        FederatedLogisticRegression.from_formula("y ~ x", frame, client="site")
    with pytest.raises(TableError, match=words):
        GLMTable(frame[frame.site == "b"], "y ~ x")
    with pytest.raises(TableError, match="column 'x'") as told:
        agree({"b": describe_columns(frame, "y ~ x")}, "y ~ x")
    assert "high" not in str(told.value)


def test_columns_of_one_name_and_a_client_that_is_no_name_are_refused():
    frame = pd.DataFrame(np.eye(6)[:, :3], columns=["y", "x", "x"]).assign(site=list("ab") * 3)
    with pytest.raises(TableError) as refused:
        FederatedLinearRegression.from_formula("y ~ x", frame, client="site")
    assert refused.value.column == "x"
    frame.columns = ["y", "x", "z", "site"]
    with pytest.raises(ArgumentError) as unnamed:
        FederatedLinearRegression.from_formula("y ~ x", frame, client=frame.site)
    assert unnamed.value.argument == "client"


def test_contrasts_of_an_estimator_have_the_covariances_of_its_table(rng):
    """Twin: of the fitted model, which lacks the sums, it is refused."""
    X = rng.normal(size=(40, 2))
    model = FederatedLinearRegression().fit(X, X[:, 0] + rng.normal(size=40), client=np.arange(40) % 2)
    for covariance in ("model", "HC0", "HC3"):
        found = contrast(model, {"x0": 1.0}, covariance)
        row = model.summary(covariance=covariance).rows[0]
        assert (found.coef, found.std_err, found.p_value) == pytest.approx(
            (row.coef, row.std_err, row.p_value), rel=1e-12
        )
    with pytest.raises(ArgumentError):
        contrast(model.fitted_, {"x0": 1.0}, "HC3")
    with pytest.raises(ArgumentError):
        contrast(model, "x0 = 0")
