"""Offsets and exposures of every kind: a column whose coefficient is known, or refused in words."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from bayesadmm_np.estimators import FederatedGLM, FederatedLinearRegression
from oracles.cohorts import cohort

ONE_PREDICTOR = ["logistic", "linear", "poisson"]


def rows(kind):
    X, y, sites = cohort({"linear": "ridge", "multinomial": "softmax"}.get(kind, kind))
    return X, y, sites, 0.5 * np.sin(np.arange(len(y)))


def model(kind):
    return FederatedGLM(kind, 0.5, inference="posterior", noise_variance=0.3, tol=1e-9)


@pytest.mark.parametrize("kind", ONE_PREDICTOR)
def test_an_offset_moves_each_rows_predictor(kind):
    """Of a fit on y with an offset that is β·x for a known β: coefficients are moved by β, and predictions are not."""
    X, y, sites, _ = rows(kind)
    beta = 0.3
    flat = FederatedGLM(kind, 1e-9, inference="posterior", method="FedLapCov", noise_variance=0.3, tol=1e-9)
    plain = flat.fit(X, y, client=sites)
    coef, expected = plain.coef_.ravel(), plain.fitted_.predictor_mean(X)
    moved = flat.fit(X, y, client=sites, offset=beta * X[:, 0])
    assert_allclose(moved.coef_.ravel(), coef - beta * (np.arange(coef.size) == 0), atol=1e-6)
    assert_allclose(moved.fitted_.predictor_mean(X, beta * X[:, 0]), expected, atol=1e-6)
    # twin: predicted without the offset
    assert np.abs(moved.fitted_.predictor_mean(X) - expected).max() > 1e-2


def test_an_exposure_is_the_offset_of_its_logarithm():
    X, y, sites, offset = rows("poisson")
    by_offset = model("poisson").fit(X, y, client=sites, offset=offset)
    coef = by_offset.coef_
    by_exposure = model("poisson").fit(X, y, client=sites, exposure=np.exp(offset))
    assert_allclose(by_exposure.coef_, coef, rtol=1e-9)


@pytest.mark.parametrize("kind", [*ONE_PREDICTOR, "softmax", "multinomial"])
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_an_offset_that_is_not_finite_is_refused(kind, bad):
    X, y, sites, offset = rows(kind)
    offset[3] = bad
    with pytest.raises(ValueError, match="offset must be finite"):
        model(kind).fit(X, y, client=sites, offset=offset)


@pytest.mark.parametrize("kind", ["softmax", "multinomial"])
def test_an_offset_of_several_classes_is_refused_in_fit_and_prediction(kind):
    """Three numbers for three rows were added class by class."""
    X, y, sites, offset = rows(kind)
    with pytest.raises(ValueError, match="offset must be left out for several classes"):
        model(kind).fit(X, y, client=sites, offset=offset)
    fitted = FederatedGLM(kind, method="FedLapCov").fit(X, y, client=sites)
    for predict in (fitted.predict_proba, fitted.predict):
        with pytest.raises(ValueError, match="offset must be left out for several classes"):
            predict(X[:3], offset=offset[:3])


def test_an_offset_of_several_targets_is_refused():
    X, y, sites, offset = rows("linear")
    with pytest.raises(ValueError, match="offset must be left out for several classes or targets"):
        FederatedLinearRegression().fit(X, np.column_stack([y, y]), client=sites, offset=offset)
