"""Data that break a fit by maximum likelihood: it equals the pooled fit, or says in words what is the matter."""

import numpy as np
import pytest

from bayesadmm_np import Status
from bayesadmm_np.estimators import (
    FederatedLogisticRegression,
    FederatedPoissonRegressor,
    SeparationWarning,
    load_model,
    save_model,
    search,
)
from bayesadmm_np.glm.diagnosis import Separation

# ----------------------------------------------------------------------------------------------------
# Separation
# ----------------------------------------------------------------------------------------------------


def separated(kind, rng):
    """A column whose sign is the label, of counts a category without events; with a harmless one."""
    X = rng.standard_normal((60, 2))
    if kind == "logistic":
        return FederatedLogisticRegression(), X, (X[:, 0] > 0).astype(int)
    X[:, 0] = np.arange(60) < 20
    return FederatedPoissonRegressor(), X, np.where(X[:, 0] > 0, 0, rng.poisson(3.0, 60))


def overlapping_by_one_row(rng):
    """A maximum that is far away: the fit needs more rounds than the search waits."""
    x = np.sort(rng.standard_normal(60))
    y = (x > 0).astype(int)
    near = np.flatnonzero(y)[0]
    y[near - 1], y[near] = 1, 0
    x[near - 1 : near + 1] = [-1e-6, 1e-6]
    return x[:, None], y


@pytest.mark.parametrize("kind", ["logistic", "poisson"])
def test_a_fit_to_separated_data_ends_early_with_the_same_findings(kind, rng, monkeypatch):
    model, X, y = separated(kind, rng)
    with pytest.warns(SeparationWarning, match="x0"):
        model.fit(X, y, client=np.arange(60) % 3)
    assert model.n_rounds_ <= search.LONG + 2
    assert model.status_ is Status.NO_MAXIMUM or model.status_ is Status.CONVERGED
    early = model.fitted_
    monkeypatch.setattr(search, "LONG", 1000)
    with pytest.warns(SeparationWarning, match="x0"):
        model.fit(X, y, client=np.arange(60) % 3)
    assert model.fitted_.findings == early.findings
    if kind == "logistic":
        assert model.n_rounds_ > 30  # the twin, which goes on


def test_a_long_fit_that_has_a_maximum_is_not_stopped(rng, monkeypatch):
    X, y = overlapping_by_one_row(rng)
    model = FederatedLogisticRegression().fit(X, y)
    assert model.n_rounds_ > search.LONG
    assert model.status_ is Status.CONVERGED
    coef = model.coef_
    monkeypatch.setattr(search, "LONG", 1000)
    assert np.array_equal(model.fit(X, y).coef_, coef)
    # the broken twin, that stops without a proof
    monkeypatch.setattr(search, "LONG", 6)
    monkeypatch.setattr(search, "name_separation", lambda *_: Separation(("x0",), (("x0", 1.0),), ("x0",), False))
    with pytest.warns(SeparationWarning):
        model.fit(X, y)
    assert model.status_ is Status.NO_MAXIMUM


@pytest.mark.parametrize("kind", ["logistic", "poisson"])
def test_without_a_maximum_there_is_no_log_likelihood(kind, rng, tmp_path):
    model, X, y = separated(kind, rng)
    with pytest.warns(SeparationWarning):
        model.fit(X, y, client=np.arange(60) % 3)
    assert model.log_likelihood_ is None
    assert not any(word in str(model.summary()) for word in ("Log-likelihood", "AIC", "Deviance"))
    save_model(tmp_path / "model.npz", model.fitted_)
    assert load_model(tmp_path / "model.npz").log_likelihood is None
    # it has one where there is a maximum
    assert np.isfinite(model.fit(X[:, 1:], y, client=np.arange(60) % 3).log_likelihood_)
