"""Kinds of likelihoods on hostile rows: numbers where one fit to all rows has them, and none elsewhere."""

import numpy as np
import pytest

from bayesadmm_np._errors import ArgumentError
from bayesadmm_np.design.terms import parse
from bayesadmm_np.estimators import FederatedGLM, SeparationWarning, predict_interval
from bayesadmm_np.glm.kinds import read_kind

N = 240
SITE = np.repeat(["a", "b", "c", "d"], [24, 48, 72, 96])


def rows(kind, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, 2))
    mean = np.exp(0.3 + X @ [0.5, -0.3])
    if kind.startswith(("gamma", "inverse")):
        return X, mean * rng.gamma(3.0, 1.0 / 3.0, N)
    if kind.startswith(("poisson", "negative")):
        return X, rng.poisson(mean * rng.gamma(2.0, 0.5, N))
    return X, (rng.uniform(size=N) < 1.0 / (1.0 + 1.0 / mean)).astype(int)


def both(kind, X, y):
    """Fit the sites, and all rows as one site."""
    return FederatedGLM(kind).fit(X, y, client=SITE), FederatedGLM(kind).fit(X, y, client=np.repeat("all", N))


def require_alike(one, other, tolerance=1e-8):
    se = np.sqrt(np.diag(other.covariance_))
    assert se == pytest.approx(np.sqrt(np.diag(one.covariance_)), rel=1e-6)
    assert np.ravel(one.coef_) == pytest.approx(np.ravel(other.coef_), abs=tolerance * se.min())


@pytest.mark.parametrize("kind", ["probit", "cloglog", "poisson(link=sqrt)"])
@pytest.mark.parametrize("event", [0, 1])
def test_a_site_of_one_class(kind, event):
    X, y = rows(kind)
    y[SITE == "b"] = event
    require_alike(*both(kind, X, y))


def test_own_fits_that_meet_outside_of_the_domain():
    """Where the mean of the sites' fits has a negative mean, the intercept alone is a start."""
    X, y = rows("gamma")
    X[:, 1] = -np.argsort(np.argsort(X[:, 1])) - 1.0
    X[:, 1] *= 1.0 + (SITE == "a")
    require_alike(*both("gamma", X, y))


@pytest.mark.parametrize("kind", ["probit", "gamma(link=log)", "negative_binomial"])
def test_columns_far_from_zero(kind):
    X, y = rows(kind)
    near = FederatedGLM(kind).fit(X, y, client=SITE)
    far = FederatedGLM(kind).fit(X + np.array([0.0, 1e6]), y, client=SITE)
    se = np.sqrt(np.diag(near.covariance_)[-3:-1])
    assert np.sqrt(np.diag(far.covariance_)[-3:-1]) == pytest.approx(se, rel=1e-6)
    assert np.ravel(far.coef_) == pytest.approx(np.ravel(near.coef_), abs=1e-6 * se.min())


def test_counts_that_do_not_vary():
    X, _ = rows("negative_binomial")
    with pytest.warns(SeparationWarning, match="take poisson"):
        model = FederatedGLM("negative_binomial").fit(X, np.full(N, 3), client=SITE)
    assert np.isnan(model.coef_).all()


def test_small_weights_hide_no_separation():
    X, _ = rows("probit")
    with pytest.warns(SeparationWarning, match="no maximum"):
        model = FederatedGLM("probit").fit(X, X[:, 0] > 0, client=SITE, sample_weight=np.full(N, 1e-9))
    assert np.isnan(model.coef_).all()


@pytest.mark.parametrize(
    ("formula", "says"),
    [
        ("y ~ x + (1 | g)*z", r"must not have R's '\|'"),  # once read as x*z
        ("y ~ (1 | g):z", r"must not have R's '\|'"),
        ("Surv(time, status) ~ x + status", "must not have the target among the predictors"),
    ],
)
def test_formulas_that_would_mean_something_else(formula, says):
    with pytest.raises(ArgumentError, match=says):
        parse(formula)


def test_signs_in_names_and_texts_are_no_brackets_of_the_formula():
    assert parse("Surv(`Time, days`, `ended (y/n)`) ~ x").response == ("`Time, days`", "`ended (y/n)`")
    assert parse("y ~ C(x, Treatment('+ (1 | g)')) + (1 | `b (c)`)").group == "b (c)"


@pytest.mark.parametrize("kind", ["gamma", "gamma(link=log)", "inverse_gaussian(link=log)", "gaussian"])
@pytest.mark.parametrize("slope", [0.0, 0.3])
def test_a_fit_without_residuals_has_no_dispersion(kind, slope):
    """Once a log-likelihood of infinity, and errors of 1e-17 with their P."""
    X, _ = rows(kind)
    y = 1.0 / (1.5 + slope * np.tanh(X[:, 0])) if kind == "gamma" else np.exp(0.2 + slope * np.tanh(X[:, 0]))
    model = FederatedGLM(kind).fit(np.tanh(X), y, client=SITE)
    assert np.ravel(model.coef_) == pytest.approx([slope, 0.0], abs=1e-6)
    assert np.isnan(model.covariance_).all()
    assert model.log_likelihood_ is None
    assert "exact up to rounding" in str(model.summary())
    assert all(test.p_value is None for test in model.test_terms())


def test_probabilities_of_classes_without_an_estimate_have_no_error():
    X, _ = rows("ordinal")
    with pytest.warns(SeparationWarning, match="no maximum"):
        model = FederatedGLM("ordinal").fit(X, np.digitize(X[:, 0], [-1.0, 1.0]), client=SITE)
    found = predict_interval(model, X[:3])
    assert np.isnan([found.estimate, found.std_err, found.low, found.high]).all()


@pytest.mark.parametrize(
    "kind",
    [
        "mixed_logistic(nodes=nan)",
        "mixed_logistic(nodes=1e9)",
        "mixed_logistic(nodes=2.5)",
        "mixed_linear(reml=nan)",
        "cox(ties=efron, ties=breslow)",
        "piecewise_exponential(cuts=0.1:0.10000000000000002)",
        f"piecewise_exponential(cuts={':'.join(map(str, range(1, 102)))})",
    ],
)
def test_options_that_are_none(kind):
    with pytest.raises(ArgumentError, match="kind must have"):
        read_kind(kind)


def test_an_order_names_each_class_once():
    with pytest.raises(ArgumentError, match="must have an order of the classes a:b"):
        read_kind("ordinal(order=b:a:a)").in_order(["a", "b"])
