"""Counts with an estimated size and ordered classes over four unequal sites, against MASS and ordinal of R."""

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason="tables are frames")

from bayesadmm_np._errors import ArgumentError  # noqa: E402
from bayesadmm_np.estimators import FederatedGLM, heterogeneity  # noqa: E402
from bayesadmm_np.estimators.check_kind import check_kind  # noqa: E402
from bayesadmm_np.federation import Coordinator, GLMTable, Site  # noqa: E402
from bayesadmm_np.losses.negative_binomial import NegativeBinomial  # noqa: E402
from bayesadmm_np.losses.ordinal import ProportionalOdds, class_chances  # noqa: E402
from oracles.doors import plan  # noqa: E402
from oracles.menu import apart, read, table  # noqa: E402

CASES = read("ordinal")
COUNTS = [name for name, case in CASES.items() if case["kind"] == "negative_binomial"]
ORDERED = [name for name in CASES if name not in COUNTS]


def fitted(name, **options):
    case = CASES[name]
    rows = table(case)
    return (
        case,
        rows,
        FederatedGLM.from_formula(
            case["formula"], rows, "site", kind=case["kind"], weights=case.get("weights"), **options
        ),
    )


def estimates(model):
    """Return estimates and standard errors in R's order: intercept or cutpoints first."""
    rows = sorted(model.summary().rows, key=lambda row: not (row.is_intercept or row.is_auxiliary))
    rows = [row for row in rows if row.name != "log(size)"]
    return [row.coef for row in rows], [row.std_err for row in rows]


@pytest.mark.parametrize("name", CASES)
def test_estimates_are_those_of_r(name):
    """MASS alternates between size and coefficients until 1e-14, and stops some 2e-7 standard errors from the fit."""
    case, _, model = fitted(name)
    far, wide = apart(estimates(model)[0], case, estimates(model)[1])
    assert far < 1e-6
    assert wide < 1e-6
    assert model.log_likelihood_ == pytest.approx(case["log_likelihood"], rel=1e-10)
    assert model.certificate_.holds
    assert model.n_rounds_ <= 7  # own fits, four or five points, sums


@pytest.mark.parametrize("name", COUNTS)
def test_the_size_is_that_of_mass(name):
    case, _, model = fitted(name)
    assert np.exp(model.auxiliary_["log(size)"]) == pytest.approx(case["size"], rel=1e-7)
    shown = str(model.summary())
    assert f"{case['size']:.6g} (SE {case['size_std_err']:.6g})" in shown
    whole = model.fitted_.goodness()
    assert whole.aic == pytest.approx(case["aic"], rel=1e-10)
    assert whole.deviance == pytest.approx(case["deviance"], rel=1e-7)
    assert whole.null_deviance is None  # the null model has another size


def test_the_covariance_is_of_the_expected_information(monkeypatch):
    """The broken twin takes the Hessian, whose standard errors are others: MASS has those of the expectation."""
    monkeypatch.setattr(NegativeBinomial, "information", NegativeBinomial.hessian)
    case, _, model = fitted("quine")
    assert apart(*[estimates(model)[0], case], estimates(model)[1])[1] > 1e-3


@pytest.mark.parametrize("name", ORDERED)
def test_the_score_test_of_proportional_odds(name):
    """R's is made from the likelihood with coefficients of their own by numDeriv, good to some 1e-8."""
    case, _, model = fitted(name)
    test = model.test_terms(how="lr")[-1]
    assert test.name == "proportional odds (score)"
    assert test.df == case["score_df"]
    assert test.statistic == pytest.approx(case["score"], rel=1e-6)


@pytest.mark.parametrize("name", ORDERED)
def test_polr_agrees_to_its_own_accuracy(name):
    """The Hessian of polr is a difference of slopes: its standard errors have six digits."""
    case, _, model = fitted(name)
    assert estimates(model)[1] == pytest.approx(case["polr_std_err"], rel=1e-5)


@pytest.mark.parametrize("name", ORDERED)
def test_probabilities_add_up_and_are_those_of_the_likelihood(name):
    case, rows, model = fitted(name)
    chances = model.predict_proba(rows)
    assert chances.sum(axis=1) == pytest.approx(np.ones(len(rows)))
    place = rows[case["formula"].split(" ~")[0]].cat.codes.to_numpy()
    weights = rows[case["weights"]] if case["weights"] else np.ones(len(rows))
    assert weights @ np.log(chances[np.arange(len(rows)), place]) == pytest.approx(case["log_likelihood"])


def test_tails_lose_no_digit():
    """P(y = 2) of cutpoints −1, 1 at f = ∓60 is F(∓60 + 1) nearly: the difference of two ones would be zero."""
    chances = class_chances(np.array([-60.0, 60.0]), np.array([-1.0, 1.0]), link="logit")
    assert chances[0, 2] == pytest.approx(np.exp(-61.0), rel=1e-12)
    assert chances[1, 0] == pytest.approx(np.exp(-61.0), rel=1e-12)


@pytest.mark.parametrize("kind", ["negative_binomial", "ordinal", "ordinal(link=probit)"])
def test_derivatives(kind):
    check_kind(kind)


def test_a_shift_of_the_offset_moves_the_cutpoints_alone():
    rng = np.random.default_rng(0)
    X, y = np.column_stack([np.zeros((50, 3)), rng.normal(size=(50, 2))]), rng.integers(0, 4, 50)
    theta = np.array([-1.0, 0.2, 0.9, 0.4, -0.3])
    here = ProportionalOdds(X, y, n_auxiliary=3)
    there = ProportionalOdds(X, y, offset=np.full(50, 0.7), n_auxiliary=3)
    assert there.value(theta + np.array([0.7, 0.7, 0.7, 0, 0])) == pytest.approx(here.value(theta), rel=1e-14)
    assert np.isinf(here.value(theta[[1, 0, 2, 3, 4]]))


def test_a_level_that_a_site_never_saw_is_agreed():
    rows = table(CASES["wine"])
    rows.loc[rows["site"] == "s2", "rating"] = "3"
    model = FederatedGLM.from_formula("rating ~ temp + contact", rows, "site", kind="ordinal")
    pooled = FederatedGLM.from_formula("rating ~ temp + contact", rows.drop(columns="site"), kind="ordinal")
    assert model.coef_ == pytest.approx(pooled.coef_, rel=1e-8)
    assert any("site 's2' has no row" in line for line in model.agreement_.lines)


@pytest.mark.parametrize("how", ["matrix", "formula", "files"])
def test_texts_that_nobody_has_ordered_are_refused(how):
    """In the order of the alphabet High < Low < Medium: the estimates would be right, and of another question."""
    rows = table(CASES["housing"])
    rows["Sat"] = rows["Sat"].astype(str)
    right = FederatedGLM.from_formula("Sat ~ Cont", rows, "site", kind="ordinal(order=Low:Medium:High)", weights="Freq")
    declared = FederatedGLM.from_formula("Sat ~ Cont", table(CASES["housing"]), "site", kind="ordinal", weights="Freq")
    assert right.coef_ == pytest.approx(declared.coef_, rel=1e-10)
    assert right.classes_.tolist() == ["Low", "Medium", "High"]
    tables = [part.drop(columns="site") for _, part in rows.groupby("site")]

    def ask(kind):
        if how == "formula":
            return FederatedGLM.from_formula("Sat ~ Cont", rows, "site", kind=kind)
        if how == "matrix":
            return FederatedGLM(kind).fit(rows[["Freq"]], rows["Sat"], client=rows["site"])
        sites = [Site(f"s{k}", GLMTable(part, "Sat ~ Cont", kind)) for k, part in enumerate(tables)]
        return Coordinator.start([site.hello() for site in sites], plan("none").task)

    with pytest.raises(ValueError, match="order that is not the alphabet's"):
        ask("ordinal")
    with pytest.raises(ValueError, match="order of the classes"):
        ask("ordinal(order=Low:High)")


def test_counts_that_vary_no_more_than_poisson_have_no_size():
    rng = np.random.default_rng(4)
    X = rng.normal(size=(200, 1))
    y = rng.binomial(6, 0.5, 200).astype(float)  # a variance of half the mean
    with pytest.warns(UserWarning, match="take poisson"):
        model = FederatedGLM("negative_binomial").fit(X, y, client=np.repeat(["a", "b"], 100))
    assert np.isnan(model.coef_).all()
    assert "take poisson" in str(model.summary())


def test_what_is_no_count_is_refused():
    with pytest.raises(ArgumentError, match="whole numbers"):
        FederatedGLM("negative_binomial").fit([[1.0], [2.0], [3.0]], [1.0, 2.5, 3.0])
    with pytest.raises(ArgumentError, match="link among logit, probit"):
        FederatedGLM("ordinal(link=cauchit)").fit([[1.0], [2.0], [3.0]], [0, 1, 2])


def test_sites_are_tested_against_each_other():
    """The own fits that the search starts from are those of a meta-analysis."""
    _, _, model = fitted("epil")
    found = heterogeneity(model)
    assert {"lbase", "lage", "V4"} <= {row.name for row in found.coefficients}


@pytest.mark.parametrize("far", [2000.0, 1e6])
def test_a_column_far_from_zero_loses_no_digit(far):
    """At a million standard deviations from zero the column is the intercept's to eleven digits, about its mean not."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=200)
    y = rng.negative_binomial(2, 2 / (2 + np.exp(0.5 * x)))
    near = FederatedGLM("negative_binomial").fit(x[:, None], y)
    found = FederatedGLM("negative_binomial").fit((x + far)[:, None], y, client=np.repeat(list("abcd"), 50))
    assert found.coef_ == pytest.approx(near.coef_, rel=1e-8)
