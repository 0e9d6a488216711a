"""Likelihoods of all rows of a site: Newton's method on sums, and how it tells a maximum from a way to infinity."""

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from bayesadmm_np._numerics import driven
from bayesadmm_np.estimators import KINDS
from bayesadmm_np.estimators.check_kind import check_kind
from bayesadmm_np.glm import whole
from bayesadmm_np.glm.refit import Derivatives, derivatives
from bayesadmm_np.glm.whole import definite, maximise, undetermined
from bayesadmm_np.losses import Logistic
from oracles.weibull import Weibull, weibull


def sites_of_times(seed=0, sizes=(40, 25, 60, 35)):
    rng = np.random.default_rng(seed)
    for n in sizes:
        X = np.column_stack([np.zeros(n), rng.normal(size=(n, 2)), np.ones(n)])
        time = rng.weibull(1.7, n) * np.exp(-(X @ [0.0, 0.6, -0.4, 0.3]) / 1.7)
        end = rng.uniform(0.2, 3.0, n)
        yield Weibull(X, np.column_stack([np.minimum(time, end), time <= end]), n_auxiliary=1)


def fit(losses, start, free=None):
    asked = []

    def answer(theta):
        asked.append(theta)
        return [derivatives(loss, theta) for loss in losses]

    found = driven(maximise(start, np.ones(len(start)) if free is None else free), answer)
    return found, asked


def test_the_derivatives_of_the_oracle():
    """Central differences of 1e-6 are right to some 1e-9 of the size, and the bound is a thousand times that."""
    (loss, *_), theta = sites_of_times(), np.array([0.3, 0.2, -0.1, 0.4])
    gradient = [(loss.value(theta + h) - loss.value(theta - h)) / 2e-6 for h in 1e-6 * np.eye(4)]
    assert loss.gradient(theta) == pytest.approx(np.array(gradient), rel=1e-6, abs=1e-6)
    rows = [(loss.gradient(theta + h) - loss.gradient(theta - h)) / 2e-6 for h in 1e-6 * np.eye(4)]
    assert loss.hessian(theta) == pytest.approx(np.array(rows), rel=1e-6, abs=1e-5)
    assert approx_fprime(theta, loss.value, 1e-7) == pytest.approx(loss.gradient(theta), rel=1e-3, abs=1e-3)


def test_a_fit_is_stationary_whatever_the_start_and_the_split():
    losses = [*sites_of_times()]
    near, asked = fit(losses, np.zeros(4))
    far, _ = fit(losses, np.array([2.0, 1.0, 1.0, -3.0]))  # where the Hessian is indefinite
    joined = [Weibull(np.vstack([one.X for one in losses]), np.vstack([one.y for one in losses]), n_auxiliary=1)]
    pooled, _ = fit(joined, np.zeros(4))
    assert near.is_maximum
    assert far.is_maximum
    assert pooled.is_maximum
    assert len(asked) == near.exchanges <= 10
    information = sum(loss.hessian(near.theta) for loss in losses)
    units = 1.0 / np.sqrt(np.diag(np.linalg.inv(information)))
    # the last step is at most 1e-7 standard errors, and Newton's error its square times a number near 1
    assert far.theta * units == pytest.approx(near.theta * units, abs=1e-9)
    assert pooled.theta * units == pytest.approx(near.theta * units, abs=1e-9)
    slope = sum(loss.gradient(near.theta) for loss in losses)
    assert slope @ np.linalg.solve(information, slope) < 1e-18


def test_parameters_that_are_not_free_stay():
    losses = [*sites_of_times()]
    found, _ = fit(losses, np.array([0.0, 0.0, 0.0, 0.0]), [True, False, False, True])
    assert not found.theta[1:3].any()
    assert found.is_maximum
    assert abs(sum(loss.gradient(found.theta) for loss in losses)[[0, 3]]).max() < 1e-7


def separated():
    X = np.column_stack([np.arange(8.0) - 3.5, np.ones(8)])
    return [Logistic(X[::2], [0, 0, 1, 1]), Logistic(X[1::2], [0, 0, 1, 1])]


def test_a_way_to_infinity_is_no_maximum(monkeypatch):
    """Steps along it lower the loss by a constant share, 1/e, where those to a maximum shrink quadratically."""
    found, _ = fit(separated(), np.zeros(2))
    assert not found.is_maximum
    # the broken twin takes every small step for the end of a search
    monkeypatch.setattr(whole, "SLOW", 1.0)
    assert fit(separated(), np.zeros(2))[0].is_maximum


def test_a_loss_without_an_end_ends():
    found = driven(maximise(np.zeros(1), [True]), lambda at: [Derivatives(-at[0], -np.ones(1), 1e-3 * np.eye(1))])
    assert not found.is_maximum
    assert found.exchanges <= whole.MOST_EXCHANGES


def test_what_overflows_at_the_start_is_refused():
    with pytest.raises(ValueError, match="overflow"):
        fit([*sites_of_times()], np.array([800.0, 0.0, 0.0, 0.0]))


def test_parameters_without_information_are_named():
    """Column 2 is column 1 again: one combination of the two has no information, and the rest has."""
    X = np.random.default_rng(2).normal(size=(30, 2))[:, [0, 0, 1]]
    assert undetermined(X.T @ X).tolist() == [True, True, False]
    assert not undetermined((X[:, 1:]).T @ X[:, 1:]).any()
    assert not undetermined(np.diag([1e-20, 1.0, 1e20])).any()  # units say nothing


def test_a_definite_hessian_is_kept_and_another_made_so():
    H = np.array([[2.0, 0.5], [0.5, 1.0]])
    assert definite(H) is H
    assert np.linalg.eigvalsh(definite(np.array([[1.0, 2.0], [2.0, 1.0]])))[0] > 0


def test_the_check_of_a_kind_compares_derivatives(registries, monkeypatch):
    KINDS.register(weibull)
    check_kind("weibull")
    right = Weibull.derivatives
    monkeypatch.setattr(Weibull, "derivatives", lambda *at: right(*at)._replace(gradient=1.001 * right(*at).gradient))
    with pytest.raises(AssertionError, match="gradient: it is not that of the value"):
        check_kind("weibull")
    monkeypatch.setattr(Weibull, "derivatives", lambda *at: right(*at)._replace(hessian=1.001 * right(*at).hessian))
    with pytest.raises(AssertionError, match="hessian: it is not that of the gradient"):
        check_kind("weibull")
