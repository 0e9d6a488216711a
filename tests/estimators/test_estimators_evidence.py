"""The evidence: its slope, its maximum by a direct formula, and what happens when there is none."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import multivariate_normal

from bayesadmm_np.estimators import FederatedLinearRegression, FederatedLogisticRegression, FederatedPoissonRegressor
from oracles.cohorts import cohort, estimator, posterior_ridge


def log_evidence(X, y, precision, noise):
    """log N(y; 0, σ²I + XXᵀ/δ): the intercept is left out."""
    return multivariate_normal(np.zeros(len(y)), noise * np.eye(len(y)) + X @ X.T / precision).logpdf(y)


def test_the_elbo_of_a_ridge_regression_is_the_log_evidence():
    """Exact for a full covariance: rounding only, some 1e-14 of numbers of size 1e2."""
    X, y, sites = cohort("ridge")
    for precision, noise in ((0.3, 0.2), (5.0, 2.0)):
        model = posterior_ridge(precision, noise_variance=noise, fit_intercept=False).fit(X, y, client=sites)
        assert np.isclose(model.elbo_, log_evidence(X, y, precision, noise), rtol=1e-11)


@pytest.mark.parametrize(
    ("kind", "penalize_intercept"), [("logistic", False), ("softmax", True), ("ridge", False), ("poisson", True)]
)
def test_slope_of_the_elbo(kind, penalize_intercept):
    """Central differences of step h = 1e-3 in log δ err by h²/6 times the third derivative, of the size of the slope:
    1e-6 relative. The softmax's rule has a value and a gradient that differ by its integration error.
    """
    X, y, sites = cohort(kind)

    def elbo(log_precision):
        made = estimator(kind, prior_precision=np.exp(log_precision), penalize_intercept=penalize_intercept, tol=1e-9)
        return made.fit(X, y, client=sites)

    delta, h = 0.7, 1e-3
    model = elbo(np.log(delta))
    difference = (elbo(np.log(delta) + h).elbo_ - elbo(np.log(delta) - h).elbo_) / (2 * h)
    penalised = np.tile([True, True, penalize_intercept], model.posterior_.dim // 3)
    energy = model.posterior_.mean**2 + model.posterior_.variance
    slope = 0.5 * (penalised.sum() - delta * energy[penalised].sum())
    assert np.isclose(slope, difference, rtol=2e-3 if kind == "softmax" else 1e-5)
    wrong = 0.5 * (penalised.sum() - delta * (model.posterior_.mean**2)[penalised].sum())  # the variance forgotten
    assert not np.isclose(wrong, difference, rtol=2e-3)


def test_the_precision_that_maximises_a_known_evidence():
    """Direct maximisation over log δ of the multivariate normal; its parabola is flat to 1e-8 within 1e-4."""
    X, y, sites = cohort("ridge")
    model = posterior_ridge("evidence", noise_variance=0.2, fit_intercept=False).fit(X, y, client=sites)
    direct = minimize_scalar(lambda t: -log_evidence(X, y, np.exp(t), 0.2), bounds=(-5, 5), options={"xatol": 1e-10})
    assert np.isclose(np.log(model.prior_precision_), direct.x, atol=1e-4)
    assert np.isclose(model.elbo_, -direct.fun, rtol=1e-11)
    assert model.evidence_message_ == "prior_precision is a maximum of the evidence."


def test_the_evidence_of_scikit_learns_bayesian_ridge():
    """With its hyperpriors switched off and centred data; it centres where we leave the intercept free, and counts
    n instead of n − 1 degrees of freedom, which is taken out.
    """
    from sklearn.linear_model import BayesianRidge

    X, y, sites = cohort("ridge", sizes=(30, 30, 40))
    other = BayesianRidge(alpha_1=0, alpha_2=0, lambda_1=0, lambda_2=0, fit_intercept=False, tol=1e-12, max_iter=5000)
    other.fit(X, y)
    model = posterior_ridge("evidence", fit_intercept=False).fit(X, y, client=sites)
    assert np.isclose(model.noise_variance_, 1 / other.alpha_, rtol=1e-6)
    assert np.isclose(model.prior_precision_, other.lambda_, rtol=1e-6)
    assert np.allclose(model.coef_, other.coef_, rtol=1e-6)


@pytest.mark.parametrize("made", [FederatedLogisticRegression, FederatedPoissonRegressor])
def test_a_stationary_point_of_the_elbo(made):
    kind = "poisson" if made is FederatedPoissonRegressor else "logistic"
    X, y, sites = cohort(kind, sizes=(30, 30, 40))
    model = made("evidence").fit(X, y, client=sites)
    best = model.elbo_
    energy = (model.posterior_.mean**2 + model.posterior_.variance)[:2].sum()
    # the search stops at 1e-9 in log δ, and the run at 1e-8 √9 sd
    assert np.isclose(model.prior_precision_ * energy, 2.0, rtol=1e-6)
    for factor in (0.8, 1.25):
        assert made(factor * model.prior_precision_, inference="posterior").fit(X, y, client=sites).elbo_ < best


def test_no_signal_is_said_and_not_warned_about():
    """Labels that balance exactly at every x: the slopes are zero, and no prior is too strong."""
    X = np.repeat(np.random.default_rng(0).standard_normal((20, 2)), 2, axis=0)
    y = np.tile([0, 1], 20)
    model = FederatedLogisticRegression("evidence", inference="posterior").fit(X, y, client=np.repeat([0, 1], 20))
    assert model.prior_precision_ == pytest.approx(1e6)
    assert "upper end" in model.evidence_message_
    assert model.evidence_message_ in " ".join(str(model.summary()).split())  # long facts take several lines
    assert np.abs(model.coef_).max() < 1e-6


def test_a_perfect_fit_says_so_too():
    X, _, sites = cohort("ridge")
    model = posterior_ridge(1e-6).fit(X, X @ [1.0, 2.0] + 3.0, client=sites)
    assert "lower end" in model.evidence_message_
    assert np.allclose(model.coef_, [1.0, 2.0], atol=1e-6)


def test_the_evidence_of_analytic_weights_is_that_of_rows_times_their_roots():
    """log N(y | f, σ²/w) = log N(√w y | √w f, σ²) + ½ log w; the broken twin counts a weight of two as two rows."""
    rng = np.random.default_rng(0)
    X, w, sites = rng.normal(size=(60, 2)), rng.uniform(0.2, 5.0, 60), np.arange(60) % 3
    y, root = X @ [1.0, -1.0] + rng.normal(size=60) / np.sqrt(w), np.sqrt(w)
    settings = {"inference": "posterior", "fit_intercept": False}
    weighted = FederatedLinearRegression(1.0, weight_meaning="analytic", **settings)
    weighted.fit(X, y, sites, sample_weight=w)
    plain = FederatedLinearRegression(1.0, **settings).fit(X * root[:, None], y * root, sites)
    shift = 0.5 * np.log(w).sum()
    assert np.isclose(weighted.elbo_, plain.elbo_ + shift, rtol=1e-12)
    assert np.isclose(weighted.log_likelihood_, plain.log_likelihood_ + shift, rtol=1e-9)  # at a σ² found to 1e-9
    assert np.isclose(weighted.noise_variance_, plain.noise_variance_, rtol=1e-8)
    counted = FederatedLinearRegression(1.0, **settings).fit(X, y, sites, sample_weight=w)
    assert not np.isclose(counted.noise_variance_, plain.noise_variance_, rtol=0.1)
