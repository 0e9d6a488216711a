"""Distributions and links over four unequal sites, against R's glm: estimates, dispersion, likelihood and tests."""

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason="tables are frames")

from bayesadmm_np._errors import ArgumentError  # noqa: E402
from bayesadmm_np.estimators import FederatedGLM, contrast, joint_test, predict_interval  # noqa: E402
from bayesadmm_np.estimators.check_kind import check_kind  # noqa: E402
from bayesadmm_np.losses.generalized import DISTRIBUTIONS, GeneralizedLinear  # noqa: E402
from oracles.by_files import SITES  # noqa: E402
from oracles.doors import OTHERS, by_estimator, differing  # noqa: E402
from oracles.menu import apart, read, table  # noqa: E402

CASES = read("kinds")
DISPERSED = [name for name, case in CASES.items() if case["kind"].startswith(("gamma", "inverse", "gaussian"))]
KINDS = sorted({case["kind"] for case in CASES.values()} - {"quasi"})


def fitted(name):
    case = CASES[name]
    kind = {"quasi": "logistic"}.get(case["kind"], case["kind"].replace("binomial(", "logistic("))
    return case, FederatedGLM.from_formula(case["formula"], table(case), "site", kind=kind, trials=case["trials"])


def shown(case, model):
    return model.summary(covariance="quasi" if case["kind"] == "quasi" else "model").shown


@pytest.mark.parametrize("name", CASES)
def test_estimates_are_those_of_r(name):
    """R's last step is 1e-14 of the deviance, and some 1e-7 standard errors from the fit."""
    case, model = fitted(name)
    rows = shown(case, model)
    far, wide = apart([row.coef for row in rows], case, [row.std_err for row in rows])
    assert far < 1e-6
    assert wide < 1e-6
    assert [row.p_value for row in rows] == pytest.approx(case["p_value"], rel=1e-5, abs=1e-300)
    assert model.certificate_.holds
    assert model.n_rounds_ <= (9 if case["kind"] == "inverse_gaussian" else 7)


@pytest.mark.parametrize("name", CASES)
def test_the_fit_as_a_whole_is_that_of_r(name):
    case, model = fitted(name)
    whole = model.fitted_.goodness()
    assert whole.deviance == pytest.approx(case["deviance"], rel=1e-9)
    assert whole.null_deviance == pytest.approx(case["null_deviance"], rel=1e-9)
    if case["kind"] != "quasi":
        assert model.log_likelihood_ == pytest.approx(case["log_likelihood"], rel=1e-9)
    if name in DISPERSED or case["kind"] == "quasi":
        assert whole.dispersion == pytest.approx(case["dispersion"], rel=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_the_check_of_kinds(kind):
    check_kind(kind)


def test_the_covariance_is_of_the_expected_information(monkeypatch):
    """The broken twin takes the Hessian, whose standard errors are others where the link is not canonical."""
    monkeypatch.setattr(GeneralizedLinear, "information", GeneralizedLinear.hessian)
    case, model = fitted("probit")
    rows = model.summary().shown
    assert apart([row.coef for row in rows], case, [row.std_err for row in rows])[1] > 1e-3


def test_a_canonical_link_has_one_information():
    rng = np.random.default_rng(0)
    X, y = np.column_stack([rng.uniform(size=30), np.ones(30)]), rng.gamma(2.0, size=30)
    loss = GeneralizedLinear(X, y, family="gamma", link="inverse")
    theta = np.array([0.3, 0.5])
    assert loss.information(theta) == pytest.approx(loss.hessian(theta), rel=1e-12)


@pytest.mark.parametrize("name", DISPERSED)
def test_the_dispersion_is_in_every_answer(name):
    """Table, covariance, contrast, joint test and interval have one standard error, and t with n − p."""
    case, model = fitted(name)
    row = model.summary().rows[0]
    df = model.fitted_.goodness().df_residual
    assert np.sqrt(model.covariance_[0, 0]) == pytest.approx(row.std_err, rel=1e-12)
    one = contrast(model, {row.name: 1.0})
    assert [one.std_err, one.p_value] == pytest.approx([row.std_err, row.p_value], rel=1e-12)
    test = joint_test(model, f"{row.name} = 0")
    assert [test.statistic, test.df_residual] == pytest.approx([row.statistic**2, df], rel=1e-9)
    wald = next(one for one in model.test_terms(type="III") if one.name == row.name)
    assert wald.statistic == pytest.approx(row.statistic**2, rel=1e-9)
    rows = table(case)
    found, rough = predict_interval(model, rows, scale="link"), model.fitted_.posterior.covariance_matrix
    design = model.fitted_.design(rows)
    error = np.sqrt(case["dispersion"] * np.einsum("ni,ij,nj->n", design, rough, design))
    assert found.std_err == pytest.approx(error, rel=1e-6)
    shares = np.array([row.shares for row in model.summary().rows])
    assert shares.sum(axis=1) == pytest.approx(np.ones(len(shares)))
    with pytest.raises(ArgumentError, match="quasi"):
        model.summary(covariance="quasi")


def test_tests_of_terms_are_those_of_anova():
    """With the inverse link a model without a term starts at the mean, which is inside of the domain."""
    _, model = fitted("gamma, log")
    small = FederatedGLM.from_formula("Volume ~ log(Girth)", table(CASES["gamma, log"]), "site", kind="gamma(link=log)")
    test = model.test_terms(how="lr")[1]
    whole = model.fitted_.goodness()
    drop = small.fitted_.goodness().deviance - whole.deviance
    assert test.statistic == pytest.approx(drop / whole.dispersion, rel=1e-8)
    assert test.df_residual == whole.df_residual
    _, model = fitted("gamma")
    assert all(one.statistic > 0 for one in model.test_terms(how="lr"))


def test_robust_errors_are_of_the_expected_information():
    """HC0 by its definition: A⁻¹ Σ s sᵀ A⁻¹ with A the expected information."""
    _, model = fitted("probit")
    loss = model.losses()
    theta = model.fitted_.posterior.mean
    bread = np.linalg.inv(sum(one.information(theta) for one in loss))
    rows = [one.rows(theta) for one in loss]
    meat = sum((one.X.T * one.slope**2) @ one.X for one in rows)
    errors = np.sqrt(np.diag(bread @ meat @ bread))
    assert [row.std_err for row in model.summary(covariance="HC0").rows] == pytest.approx(errors, rel=1e-8)


@pytest.mark.parametrize("name", ["probit", "gamma"])
@pytest.mark.parametrize("door", OTHERS, ids=lambda door: door.__name__)
def test_every_door_has_one_model(call, name, door):
    case = CASES[name]
    rows = table(case)
    parts = [rows[rows["site"].isin(names)] for names in (["s1", "s2"], ["s3"], ["s4"])]
    tables = {site: part.drop(columns="site").reset_index(drop=True) for site, part in zip(SITES, parts, strict=True)}
    if name == "gamma":
        given = (call, tables, "time~log(u)*lot", "gamma", None, "lr")
    else:
        tables = {site: part.assign(low=np.where(part["low"] > 0, "yes", "no")) for site, part in tables.items()}
        given = (call, tables, "low~age+lwt+smoke", "probit", None, "none")
    assert differing(by_estimator(*given), door(*given)) == set()


@pytest.mark.parametrize(
    ("kind", "y", "says"),
    [
        ("gamma", [1.0, 0.0, 2.0], "numbers > 0"),
        ("inverse_gaussian(link=log)", [1.0, -1.0, 2.0], "numbers > 0"),
        ("poisson(link=sqrt)", [1.0, -1.0, 2.0], "counts or rates >= 0"),
        ("gamma(link=logit)", [1.0, 1.0, 2.0], "link among inverse, log, identity"),
        ("logistic(link=cauchit)", [0, 1, 0], "link among logit"),
    ],
)
def test_what_is_refused(kind, y, says):
    with pytest.raises(ArgumentError, match=says):
        FederatedGLM(kind).fit([[1.0], [2.0], [4.0]], y)


def test_tails_of_the_probit_lose_no_digit():
    """P(y = 0) at f = 10 is 8e-24, which one less the probability of the other cannot be."""
    loss = GeneralizedLinear([[10.0]], [0.0], family="binomial", link="probit")
    assert loss.value([1.0]) == pytest.approx(53.2312851505, rel=1e-10)
    assert set(DISTRIBUTIONS) == {"gamma", "inverse_gaussian", "binomial", "poisson", "gaussian"}


@pytest.mark.parametrize("kind", ["probit", "cloglog", "logistic(link=log)", "ordinal", "poisson(link=sqrt)"])
def test_a_site_of_one_class_takes_part(kind):
    """The fit is that of the pooled rows, though one site alone has no fit of its own."""
    rng = np.random.default_rng(3)
    x = rng.uniform(size=90)
    y = (rng.random(90) < 0.2 + 0.2 * x).astype(int) + (rng.random(90) < 0.1) * (kind == "ordinal")
    site = np.where((y == 0) & (np.arange(90) < 40), "none", np.where(np.arange(90) % 2, "a", "b"))
    model = FederatedGLM(kind).fit(x[:, None], y, client=site)
    pooled = FederatedGLM(kind).fit(x[:, None], y)
    assert model.certificate_.holds
    assert model.coef_ == pytest.approx(pooled.coef_, rel=1e-7)


@pytest.mark.filterwarnings("ignore:.*no maximum")
@pytest.mark.filterwarnings("ignore:.*not estimable")
@pytest.mark.parametrize("kind", ["probit", "cloglog", "ordinal"])
def test_separated_classes_have_no_number_at_any_door(kind):
    X = np.arange(9.0)[:, None]
    y = np.repeat([0, 0, 1], 3) if kind != "ordinal" else np.repeat([0, 1, 2], 3)
    model = FederatedGLM(kind).fit(X, y, client=list("aaabbbccc"))
    assert np.isnan(model.coef_).all()
    assert np.isnan(model.predict_proba(X)).all()
    assert np.isnan(predict_interval(model, X).estimate).all()
    assert all(row.std_err is None for row in model.summary().rows)
