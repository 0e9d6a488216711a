"""Offsets and exposures of every kind: a column whose coefficient is known, or refused in words."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import expit

from bayesadmm_np.estimators import (
    FederatedGLM,
    FederatedLinearRegression,
    FederatedLogisticRegression,
    FederatedPoissonRegressor,
)
from oracles.cohorts import cohort


def rows(kind):
    X, y, sites = cohort({"linear": "ridge", "multinomial": "softmax"}.get(kind, kind))
    return X, y, sites, 0.5 * np.sin(np.arange(len(y)))


def test_a_score_of_rates_is_that_of_statsmodels():
    """1 − deviance/null deviance, whose null model has the exposure too; the broken twin is a score without it."""
    sm = pytest.importorskip("statsmodels.api")
    rng = np.random.default_rng(3)
    X, years = rng.normal(size=(120, 2)), rng.uniform(0.1, 20.0, 120)
    y = rng.poisson(years * np.exp(0.4 * X[:, 0])).astype(float)
    found = sm.GLM(y, sm.add_constant(X), sm.families.Poisson(), offset=np.log(years)).fit(tol=1e-14)
    fitted = FederatedPoissonRegressor().fit(X, y, np.arange(120) % 3, exposure=years)
    right = 1.0 - found.deviance / found.null_deviance
    assert_allclose(fitted.score(X, y, exposure=years), right, rtol=1e-8)
    assert_allclose(fitted.score(X, y, offset=np.log(years)), right, rtol=1e-8)
    with pytest.warns(UserWarning, match="fitted with exposure"):
        assert abs(fitted.score(X, y) - right) > 0.1
    assert np.isnan(fitted.score(X, np.zeros(120), exposure=years))  # there is no deviance to explain
    # of least squares the null model is a mean beside the offset
    z = X[:, 0] + years + rng.normal(size=120)
    linear = FederatedLinearRegression().fit(X, z, offset=years)
    residual, spread = z - linear.predict(X, offset=years), (z - years) - (z - years).mean()
    assert_allclose(linear.score(X, z, offset=years), 1.0 - residual @ residual / (spread @ spread), rtol=1e-10)


def test_classes_take_an_offset_wherever_they_are_predicted():
    X, y, sites, offset = rows("logistic")
    fitted = FederatedLogisticRegression().fit(X, y, client=sites, offset=offset)
    f = fitted.decision_function(X, offset)
    with pytest.warns(UserWarning, match="fitted with offset"):
        assert_allclose(f, fitted.decision_function(X) + offset, rtol=1e-12)
    assert_allclose(fitted.predict_proba(X, offset)[:, 1], expit(f), rtol=1e-12)
    assert_allclose(fitted.predict_log_proba(X, offset)[:, 1], np.log(expit(f)), rtol=1e-12)
    assert fitted.score(X, y, offset=offset) == np.mean((f > 0) == y)


@pytest.mark.parametrize("kind", ["poisson", "softmax", "linear"])
def test_an_offset_that_is_not_finite_or_of_several_targets_is_refused(kind):
    X, y, sites, offset = rows(kind)
    wrong = offset if kind == "linear" else np.append(np.nan, offset[1:])
    y = np.column_stack([y, y]) if kind == "linear" else y
    with pytest.raises(ValueError, match=r"^offset "):
        FederatedGLM(kind).fit(X, y, client=sites, offset=wrong)


@pytest.mark.parametrize("kind", ["softmax", "multinomial"])
def test_an_offset_of_several_classes_is_refused_in_fit_and_prediction(kind):
    """Three numbers for three rows were added class by class."""
    X, y, sites, offset = rows(kind)
    with pytest.raises(ValueError, match=r"^offset "):
        FederatedGLM(kind).fit(X, y, client=sites, offset=offset)
    fitted = FederatedGLM(kind, method="FedLapCov").fit(X, y, client=sites)
    for predict in (fitted.predict_proba, fitted.predict):
        with pytest.raises(ValueError, match=r"^offset "):
            predict(X[:3], offset=offset[:3])
