"""Tests of terms and contrasts of a fitted model, against statsmodels on the pooled rows."""

from dataclasses import replace

import numpy as np
import pytest

from bayesadmm_np.estimators import (
    FederatedGLM,
    FederatedLinearRegression,
    FederatedLogisticRegression,
    fit_formula,
)
from bayesadmm_np.estimators.term_tests import contrast, likelihood_ratio_tests, read_terms, wald_tests
from bayesadmm_np.families import FullGaussian

sm = pytest.importorskip("statsmodels.api")

WARDS = {"age": ["age"], "ward": ["ward b", "ward c"]}


def rows(seed=0, n=240):
    import pandas as pd

    rng = np.random.default_rng(seed)
    ward = rng.integers(0, 3, n)
    X = pd.DataFrame({"age": rng.normal(size=n), "ward b": ward == 1, "ward c": ward == 2}).astype(float)
    return X, X.to_numpy() @ [0.6, 0.4, -0.3] - 0.2, rng.integers(0, 3, n), rng


@pytest.fixture(scope="module")
def logistic():
    X, f, site, rng = rows()
    y = (f + rng.logistic(size=len(f)) > 0).astype(float)
    return FederatedLogisticRegression().fit(X, y, client=site), X, y


def test_a_term_of_levels_is_one_test(logistic):
    model, X, y = logistic
    full = sm.GLM(y, sm.add_constant(X, prepend=False), sm.families.Binomial()).fit(tol=1e-14)
    age, ward = model.test_terms(WARDS)
    theirs = full.wald_test(np.eye(4)[[1, 2]], scalar=True)
    assert np.allclose([ward.statistic, ward.p_value], [theirs.statistic, theirs.pvalue], rtol=1e-6)
    assert (age.name, age.df, ward.name, ward.df) == ("age", 1, "ward", 2)
    assert np.isclose(age.statistic, full.tvalues.iloc[0] ** 2, rtol=1e-6)
    one, two = model.test_terms(WARDS, how="lr")
    for found, columns in ((one, ["ward b", "ward c"]), (two, ["age"])):
        reduced = sm.GLM(y, sm.add_constant(X[columns], prepend=False), sm.families.Binomial()).fit(tol=1e-14)
        assert np.isclose(found.statistic, 2.0 * (full.llf - reduced.llf), rtol=1e-8)
    # broken twins: the levels one by one, and Wald for the ratio
    alone = model.test_terms()
    assert [test.name for test in alone] == ["age", "ward b", "ward c"]
    assert not np.isclose(alone[1].statistic + alone[2].statistic, ward.statistic, rtol=1e-3)
    assert not np.isclose(two.statistic, ward.statistic, rtol=1e-4)
    assert str(ward).startswith("ward: χ²(2) = ")


def test_a_robust_wald_test_has_the_robust_covariance(logistic):
    model, X, y = logistic
    white = sm.GLM(y, sm.add_constant(X, prepend=False), sm.families.Binomial()).fit(tol=1e-14, cov_type="HC0")
    _, ward = model.test_terms(WARDS, covariance="HC0")
    theirs = white.wald_test(np.eye(4)[[1, 2]], scalar=True)
    assert np.isclose(ward.statistic, theirs.statistic, rtol=1e-6)
    assert not np.isclose(ward.statistic, model.test_terms(WARDS)[1].statistic, rtol=1e-4)


def test_least_squares_has_f():
    X, f, site, rng = rows(1)
    y = f + rng.normal(size=len(f))
    full = sm.OLS(y, sm.add_constant(X, prepend=False)).fit()
    model = FederatedLinearRegression().fit(X, y, client=site)
    F, P, _ = full.compare_f_test(sm.OLS(y, sm.add_constant(X[["age"]], prepend=False)).fit())
    for how in ("wald", "lr"):  # of least squares they are the same test
        found = model.test_terms(WARDS, how=how)[1]
        assert np.allclose([found.statistic, found.p_value, found.df_residual], [F, P, 236], rtol=1e-6)
    # a broken twin: χ² of a noise variance that was given
    model = FederatedLinearRegression(noise_variance=full.scale).fit(X, y, client=site)
    assert not np.isclose(model.test_terms(WARDS)[1].p_value, P, rtol=1e-3)


def test_a_column_of_several_classes_is_one_term():
    X, f, site, rng = rows(2)
    y = (f[:, None] * [0.0, 1.0, -0.5] + rng.gumbel(size=(len(f), 3))).argmax(axis=1)
    model = FederatedGLM("multinomial").fit(X, y, client=site)
    full = sm.MNLogit(y, sm.add_constant(X, prepend=False)).fit(disp=0, method="newton", tol=1e-14)
    reduced = sm.MNLogit(y, sm.add_constant(X[["age"]], prepend=False)).fit(disp=0, method="newton", tol=1e-14)
    found = model.test_terms({"ward": ["ward b", "ward c"]}, how="lr")[0]
    assert found.df == 4
    assert np.isclose(found.statistic, 2.0 * (full.llf - reduced.llf), rtol=1e-8)


def test_terms_of_a_formula_are_its_own():
    from statsmodels.formula.api import ols

    X, f, site, rng = rows(4)
    table = X[["age"]].assign(
        ward=np.array(["a", "b", "c"])[(X["ward b"] + 2 * X["ward c"]).astype(int)],
        site=np.array(["n", "s", "w"])[site],
        score=f + rng.normal(size=len(f)),
    )
    model = fit_formula(FederatedLinearRegression(), "score ~ age * ward", table, "site")
    tests = {test.name: test for test in model.test_terms(how="lr")}
    assert {name: test.df for name, test in tests.items()} == {"age": 1, "ward": 2, "age:ward": 2}
    full = ols("score ~ age * ward", table).fit()
    F, P, _ = full.compare_f_test(ols("score ~ age + ward", table).fit())
    assert np.allclose([tests["age:ward"].statistic, tests["age:ward"].p_value], [F, P], rtol=1e-8)


def test_contrasts_by_name(logistic):
    model, X, y = logistic
    full = sm.GLM(y, sm.add_constant(X, prepend=False), sm.families.Binomial()).fit(tol=1e-14)
    found = contrast(model.fitted_, {"ward b": 1.0, "ward c": -1.0})
    theirs = full.t_test([0.0, 1.0, -1.0, 0.0])
    assert np.allclose([found.coef, found.std_err, found.p_value], [theirs.effect[0], theirs.sd[0, 0], theirs.pvalue])
    assert found.name == "ward b − ward c"
    for weights, name in {
        (("age", -1.0), ("ward b", 2.0)): "−age + 2·ward b",
        (("age", -0.5), ("ward b", 1.0), ("ward c", -1.5)): "−0.5·age + ward b − 1.5·ward c",
    }.items():
        assert contrast(model.fitted_, dict(weights)).name == name
    for wrong, says in {"WARD_b": r"'WARD_b'; did you mean 'ward b'\?$", "dose": r"'dose'\.$"}.items():
        with pytest.raises(ValueError, match=rf"^weights .*, got {says}"):
            contrast(model.fitted_, {wrong: 1.0})
    with pytest.raises(ValueError, match=r"^weights "):
        contrast(model.fitted_, {})


def test_what_is_no_test_is_refused(logistic):
    model = logistic[0]
    with pytest.raises(ValueError, match=r"^terms .*'ward d'"):
        model.test_terms({"ward": ["ward d"]})
    with pytest.raises(ValueError, match=r"^terms .*'ward'"):
        model.test_terms({"ward": []})
    with pytest.raises(ValueError, match=r"^how "):
        model.test_terms(how="score")
    some = replace(model.fitted_, prior=FullGaussian(np.zeros(4), 1.0))
    for call in (lambda: wald_tests(some), lambda: likelihood_ratio_tests(some, [])):
        with pytest.raises(ValueError, match="not: penalised"):
            call()
    assert read_terms(model.fitted_, {"twice": ["age", "age"]})[0].places == (0,)
