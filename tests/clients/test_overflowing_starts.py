"""Poisson losses whose E_q[ℓ] overflows at the server's point: the optimum is found where double precision holds it."""

import numpy as np
import pytest
from scipy import optimize

import bayesadmm_np as ba
from bayesadmm_np.clients import newton as newton_module
from bayesadmm_np.splitting.guarded import Guarded
from bayesadmm_np.splitting.status import Status

FIXED = ba.families.IsotropicGaussian, ba.families.FixedPrecisionGaussian


def optimum(x, weight, variance):
    """Return the m with x exp(xm + ½x²v) + weight·m = 0, from logarithms."""
    return optimize.brentq(lambda m: m * x + 0.5 * x * x * variance - np.log(-weight * m / x), -x, -1e-9 / x)


@pytest.mark.parametrize("x", [1.0, 10.0, 30.0, 40.0, 1e3, 1e5])
@pytest.mark.parametrize("family", FIXED)
def test_one_steep_row_under_a_fixed_precision(family, x):
    """E exp f is e^450 at the start for x = 30, and infinite from x = 40 on: both were refused."""
    loss = ba.losses.Poisson([[x]], [0])
    found = ba.solve_pooled([loss], family([0.0], 1.0), tol=1e-8).posterior.mean[0]
    # the exponent ½x² is known to 1e-16 of itself, and so is the rate
    assert abs(found - optimum(x, 1.0, 1.0)) * x < 1e-7 + 1e-14 * x * x


def test_without_the_path_from_the_mode_there_is_no_start(monkeypatch):
    monkeypatch.setattr(newton_module, "_widened", lambda problem, first, mode: first)
    with pytest.raises(RuntimeError):
        ba.solve_pooled([ba.losses.Poisson([[40.0]], [0])], ba.families.IsotropicGaussian([0.0], 1.0))


@pytest.mark.parametrize("seed", range(8))
def test_many_rows_end_at_a_newton_decrement_of_rounding(seed):
    """The objective is convex: what a Newton step could still gain bounds the distance to the optimum."""
    rng = np.random.default_rng(seed)
    n, d = rng.integers(2, 12), rng.integers(1, 4)
    X = np.abs(rng.normal(size=(n, d))) * 10 ** rng.uniform(1, 3, size=d)
    y = rng.integers(0, 3, size=n).astype(float)
    variance = (X**2).sum(axis=1)
    assert variance.max() > 80
    halves = [ba.losses.Poisson(X[own], y[own]) for own in (slice(None, None, 2), slice(1, None, 2))]
    m = ba.solve_pooled(halves, ba.families.IsotropicGaussian(np.zeros(d), 1.0), tol=1e-8).posterior.mean
    rate = np.exp(X @ m + 0.5 * variance)
    gradient, hessian = X.T @ (rate - y) + m, (X.T * rate) @ X + np.eye(d)
    units = 1 / np.sqrt(np.diagonal(hessian))
    step = units * np.linalg.lstsq(hessian * np.outer(units, units), units * gradient, rcond=1e-15)[0]
    # exponents of size ½v are known to 1e-16 of themselves
    assert np.sqrt(gradient @ step) < 1e-7 + 1e-15 * variance.max() * np.sqrt(1 + y.sum() + rate.sum())


@pytest.mark.parametrize("method", [ba.methods.PVI(), ba.methods.BayesADMM(1.0)])
@pytest.mark.parametrize("family", FIXED)
def test_rows_with_a_client_solve_find_it(method, family):
    result = ba.run(method, [ba.losses.Poisson([[40.0]], [0])], family([0.0], 1.0))
    assert abs(result.posterior.mean[0] - optimum(40.0, 1.0, 1.0)) * 40 < 1e-6


def test_rows_that_pull_apart_have_no_optimum_that_double_precision_holds():
    """E exp f is e^(800 ± 40m): above e^800 everywhere."""
    loss = ba.losses.Poisson([[40.0], [-40.0]], [0, 0])
    result = ba.run(ba.methods.PVI(), [loss], ba.families.IsotropicGaussian([0.0], 1.0), raise_on_failure=False)
    assert result.status is Status.NOT_FINITE


@pytest.mark.parametrize("method", [ba.methods.Newton(), Guarded(ba.methods.Newton())])
@pytest.mark.parametrize("family", [ba.families.FullGaussian, ba.families.DiagonalGaussian])
def test_own_fits_where_the_information_at_the_prior_overflows(method, family):
    """The prior's part itself is then the site's prior: exp(1000) is no scale to lift it by."""
    result = ba.run(method, [ba.losses.Poisson([[1000.0]], [0])], family([1.0], 1.0), raise_on_failure=False)
    mode = optimize.brentq(lambda u: 1000 * u + np.log(1000) - np.log(1 - u), -1, 0)
    assert result.status is Status.CONVERGED
    assert abs(result.posterior.mean[0] - mode) * 1000 < 1e-5


def test_own_fits_that_do_not_exist_are_a_status():
    """With an offset of 800 E exp f overflows at the prior's mean and at zero."""
    loss = ba.losses.Poisson([[1.0]], [0], offset=[800.0])
    prior = ba.families.FullGaussian([1.0], 1.0)
    result = ba.run(ba.methods.Newton(), [loss], prior, raise_on_failure=False)
    assert result.status is Status.NOT_FINITE
