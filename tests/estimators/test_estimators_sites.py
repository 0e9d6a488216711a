"""Sites join, leave, and stay away for a while; the answer is that of the rows that belong to it."""

import copy

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

import bayesadmm_np as ba
from bayesadmm_np.estimators import FederatedLogisticRegression
from oracles.cohorts import KINDS, cohort, estimator, parameter, posterior_ridge


def assert_same_fit(one, other):
    """Two fits to residuals of 1e-8 per parameter: means and covariances within 1e-6 in standard errors, as before."""
    assert one.certificate_.holds
    assert other.certificate_.holds
    sd = np.sqrt(np.diag(other.covariance_))
    assert np.abs((parameter(one) - parameter(other)) / sd).max() < 1e-6
    assert np.abs((one.covariance_ - other.covariance_) / np.outer(sd, sd)).max() < 1e-6
    assert np.isclose(one.elbo_, other.elbo_, rtol=0, atol=1e-8)


@pytest.mark.parametrize(("kind", "penalize_intercept"), [*zip(KINDS, [False, True, False, True], strict=True)])
def test_adding_and_forgetting_a_site_equal_the_refits(kind, penalize_intercept):
    X, y, sites = cohort(kind, sizes=(20, 16, 24))
    west = sites == "west"
    options = {"penalize_intercept": penalize_intercept}
    if kind in ("logistic", "softmax"):
        options["class_weight"] = "balanced"  # changes with every site
    all_three = estimator(kind, **options).fit(X, y, client=sites)
    two = estimator(kind, **options).fit(X[~west], y[~west], client=sites[~west])

    added = estimator(kind, **options).fit(X[~west], y[~west], client=sites[~west])
    added.partial_fit_site("west", X[west], y[west])
    assert added.sites_ == ["north", "south", "west"]
    assert_same_fit(added, all_three)

    forgotten = added.forget_site("west")
    assert forgotten.sites_ == ["north", "south"]
    assert "west" not in forgotten.site_factors_
    assert_same_fit(forgotten, two)


def test_the_comparison_with_the_refit_can_fail():
    """Dividing the factor out without corrective rounds is not the refit: the other factors remember the site."""
    X, y, sites = cohort("logistic")
    model = FederatedLogisticRegression(1.0, penalize_intercept=True, inference="posterior").fit(X, y, client=sites)
    west = sites == "west"
    two = FederatedLogisticRegression(1.0, penalize_intercept=True, inference="posterior").fit(
        X[~west], y[~west], client=sites[~west]
    )
    natural = model.posterior_.natural - model.site_factors_["west"]
    crude = model.posterior_.with_natural(natural).mean
    assert np.abs((crude - parameter(two)) / np.sqrt(np.diag(two.covariance_))).max() > 1e-3


def test_updates_of_a_ridge_regression_find_noise_and_prior_again():
    X, y, sites = cohort("ridge", sizes=(20, 16, 24))
    west = sites == "west"
    whole = posterior_ridge("evidence").fit(X, y, client=sites)
    model = posterior_ridge("evidence").fit(X[~west], y[~west], client=sites[~west])
    before = model.noise_variance_, model.prior_precision_
    model.partial_fit_site("west", X[west], y[west])
    # the searches stop at 1e-9 in the logarithm of either number; nested, an order more
    assert np.isclose(model.noise_variance_, whole.noise_variance_, rtol=1e-7)
    assert np.isclose(model.prior_precision_, whole.prior_precision_, rtol=1e-7)
    assert not np.isclose(before[0], whole.noise_variance_, rtol=1e-3)
    assert np.allclose(parameter(model), parameter(whole), atol=1e-7)


def state(model):
    return copy.deepcopy({key: value for key, value in vars(model).items() if key.endswith("_")})


BAD_UPDATES = {
    "taken": (lambda m, X, y: m.partial_fit_site("north", X, y), "name='north'"),
    "features": (lambda m, X, y: m.partial_fit_site("east", X[:, :1], y), "1 features"),
    "rows": (lambda m, X, y: m.partial_fit_site("east", X, y[:-1]), "inconsistent numbers of samples"),
    "class": (lambda m, X, y: m.partial_fit_site("east", X, y + 1), "class 2"),
    "weights": (lambda m, X, y: m.partial_fit_site("east", X, y, 0 * y), "[Ss]ample.weight"),
    "NaN": (lambda m, X, y: m.partial_fit_site("east", X * np.nan, y), "column 'x0'"),
    "unhashable": (lambda m, X, y: m.partial_fit_site(["east"], X, y), "hashable"),
    "unknown": (lambda m, X, y: m.forget_site("east"), "name='east'"),
}


@pytest.mark.parametrize("case", BAD_UPDATES)
def test_a_bad_update_is_refused_and_leaves_the_fit_as_it_was(case):
    X, y, sites = cohort("logistic")
    model = FederatedLogisticRegression(1.0, inference="posterior").fit(X, y, client=sites)
    before, summary = state(model), str(model.summary())
    update, message = BAD_UPDATES[case]
    with pytest.raises(ValueError, match=message):
        update(model, X, y)
    assert str(model.summary()) == summary
    assert set(state(model)) == set(before)
    assert model.sites_ == list(before["fitted_"].sites)
    model.forget_site("north")  # and it still works


def test_a_run_that_fails_leaves_the_fit_as_it_was():
    """A site whose rate overflows at the coefficients of the others; and a method that diverges."""
    X, y, sites = cohort("poisson")
    model = estimator("poisson", penalize_intercept=True, prior_precision=1e-3).fit(X, y, client=sites)
    before = parameter(model)
    with pytest.raises(ValueError, match="site 'east'"):
        model.partial_fit_site("east", 1e6 * np.eye(2), [1.0, 1e9])
    model.set_params(method=ba.methods.FedLap(), family="fixed")
    with pytest.raises(ba.RunError, match="gamma"):
        model.partial_fit_site("east", X, y)
    assert np.array_equal(parameter(model), before)
    assert model.sites_ == ["north", "south", "west"]


def test_the_last_site_and_the_last_of_a_class_stay():
    X, y, _ = cohort("logistic")
    alone = FederatedLogisticRegression(1.0, inference="posterior").fit(X, y)
    with pytest.raises(ValueError, match="'all'"):
        alone.forget_site("all")
    skewed = FederatedLogisticRegression(1.0, inference="posterior").fit(X, y, client=np.where(y == 1, "ill", "well"))
    with pytest.raises(ValueError, match="'ill'"):
        skewed.forget_site("ill")


@pytest.mark.parametrize("call", [lambda m: m.forget_site("a"), lambda m: m.partial_fit_site("a", [[1.0]], [1.0])])
def test_updates_need_a_fit(call):
    with pytest.raises(NotFittedError):
        call(posterior_ridge())
    with pytest.raises(NotFittedError):
        posterior_ridge().summary()


# ----------------------------------------------------------------------------------------------------
# Sites that stay away for a while
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["logistic", "ridge"])
def test_half_of_the_sites_a_round_reach_the_same_answer(kind):
    X, y, sites = cohort(kind)
    half = estimator(kind, participation=0.5, random_state=1, max_rounds=400).fit(X, y, client=sites)
    assert_same_fit(half, estimator(kind).fit(X, y, client=sites))
