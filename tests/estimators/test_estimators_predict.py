"""Predictions average over the posterior; the summary says what the covariance says."""

from types import SimpleNamespace

import mpmath
import numpy as np
import pytest
from scipy.special import expit, softmax

import bayesadmm_np as ba
from bayesadmm_np.estimators import FederatedLogisticRegression
from bayesadmm_np.estimators.summary import information_shares
from oracles.cohorts import cohort, estimator, parameter, posterior_ridge


@pytest.fixture(scope="module")
def logistic():
    X, y, sites = cohort("logistic")
    return FederatedLogisticRegression(1.0, inference="posterior").fit(X, y, client=sites)


NEW = np.array([[0.3, -0.2], [4.0, 1.0], [-30.0, 20.0]])


def moments(model, X):
    A = np.column_stack([X, np.ones(len(X))])
    return A @ parameter(model), np.einsum("ij,jk,ik->i", A, model.covariance_, A)


def test_probabilities_are_integrals(logistic):
    """mpmath's quadrature of σ(f) N(f; m, v); both are good to 1e-12 relative, deep tail included."""
    for (mean, variance), found in zip(
        zip(*moments(logistic, NEW), strict=True), logistic.predict_proba(NEW), strict=True
    ):
        sd = float(np.sqrt(variance))

        def weighted(z, mean=float(mean), sd=sd):
            return mpmath.npdf(z) / (1 + mpmath.exp(-(mean + sd * z)))

        exact = float(mpmath.quad(weighted, [-30, -10, -5, 0, 5, 10, 30]))
        assert np.isclose(found[1], exact, rtol=1e-10)
        assert np.isclose(found.sum(), 1.0, rtol=1e-14)


@pytest.mark.parametrize(("integrate", "error"), [("gauss-hermite", 1e-6), ("probit", 0.02), ("plug-in", 0.2)])
def test_cheaper_rules_come_near(logistic, integrate, error):
    """Gauss–Hermite of 32 nodes at these spreads, MacKay's approximation, and no integral at all."""
    rough = FederatedLogisticRegression(1.0, integrate=integrate, inference="posterior").fit(
        *cohort("logistic")[:2], cohort("logistic")[2]
    )
    gap = np.abs(rough.predict_proba(NEW[:2]) - logistic.predict_proba(NEW[:2])).max()
    assert 1e-15 < gap < error
    if integrate == "plug-in":
        assert np.allclose(rough.predict_proba(NEW)[:, 1], expit(rough.decision_function(NEW)))


def test_multinomial_probabilities_are_means_over_the_posterior():
    """200 000 draws: a standard error of at most 0.5/√2e5 = 1.1e-3, of which five; and 256 moment-matched points."""
    X, y, sites = cohort("softmax")
    model = FederatedLogisticRegression(1.0, inference="posterior").fit(X, y, client=sites)
    draws = model.posterior_.sample(np.random.default_rng(0), 200_000).reshape(-1, 3, 3)
    A = np.column_stack([NEW[:2], np.ones(2)])
    f = np.einsum("scp,ip->sic", draws, A)
    p = np.exp(f - f.max(axis=2, keepdims=True))
    expected = (p / p.sum(axis=2, keepdims=True)).mean(axis=0)
    found = model.predict_proba(NEW[:2])
    assert np.abs(found - expected).max() < 6e-3
    assert np.allclose(found.sum(axis=1), 1.0)
    plug = FederatedLogisticRegression(1.0, integrate="plug-in", inference="posterior").fit(X, y, client=sites)
    assert np.abs(plug.predict_proba(NEW[:2]) - expected).max() > 6e-3


def test_ridge_predicts_the_spread_of_a_new_observation():
    X, y, sites = cohort("ridge")
    model = estimator("ridge").fit(X, y, client=sites)
    mean, sd = model.predict(NEW, return_std=True)
    expected, variance = moments(model, NEW)
    assert np.allclose(mean, expected)
    assert np.allclose(sd**2, 0.25 + variance)
    both = estimator("ridge").fit(X, np.column_stack([y, y]), client=sites)
    assert both.predict(NEW, return_std=True)[1].shape == (3, 2)


def test_shares_are_of_the_information_on_one_coefficient():
    """In a diagonal problem the share is the site's precision over all; a site that never varies x0 has none of it."""
    prior = ba.families.FullGaussian(np.zeros(2), np.diag([1.0, 2.0]))
    factors = [ba.families.Natural(np.zeros(2), np.diag(V)) for V in ([3.0, 0.0], [0.0, 6.0])]
    sites = {k: SimpleNamespace(factor=factor) for k, factor in enumerate(factors)}
    posterior = ba.families.FullGaussian(np.zeros(2), np.diag([4.0, 8.0]))
    model = SimpleNamespace(prior=prior, spread=posterior.covariance_matrix, sites=sites, scale=1.0)
    assert np.allclose(information_shares(model, np.eye(2)), [[0.25, 0.25], [0.75, 0.0], [0.0, 0.75]])


@pytest.mark.parametrize("method", ["ADMM", "PreconditionedADMM", "FedAvg"])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_point_methods_have_no_standard_errors_to_print(method):
    X, y, sites = cohort("logistic")
    model = FederatedLogisticRegression(5.0, method=method, penalize_intercept=True, max_rounds=20)
    model.fit(X, y, client=sites)
    assert model.covariance_ is None
    summary = model.summary()
    assert all(row.std_err is None and row.shares is None for row in summary.rows)
    assert summary.to_frame()["std err"].isna().all()
    assert np.allclose(model.predict_proba(X)[:, 1], expit(model.decision_function(X)))
    ridge = posterior_ridge(5.0, method=method, noise_variance=1.0, penalize_intercept=True, max_rounds=20)
    ridge.fit(*cohort("ridge")[:2], client=sites)
    with pytest.raises(ValueError, match="return_std"):
        ridge.predict(X, return_std=True)


def test_small_tails_of_every_class_are_kept():
    """At a point far along one class no other probability is lost to rounding of one minus one, class 0 included."""
    X, y, sites = cohort("softmax")
    model = FederatedLogisticRegression(1.0, integrate="plug-in", method="FedLapCov").fit(X, y, client=sites)
    far = 60.0 * model.coef_ / np.linalg.norm(model.coef_, axis=1, keepdims=True) ** 2
    found = model.predict_proba(far)
    expected = softmax(far @ model.coef_.T + model.intercept_, axis=1)
    assert expected[1:, 0].max() < 1e-16
    assert np.allclose(found, expected, rtol=1e-9, atol=0.0)
    assert np.isfinite(model.predict_log_proba(far)).all()
