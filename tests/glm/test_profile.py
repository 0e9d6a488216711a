"""Profile-likelihood intervals over sites against the definition, by statsmodels' fits with the coefficient held."""

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import chi2

from bayesadmm_np.estimators import (
    FederatedGLM,
    FederatedLinearRegression,
    FederatedLogisticRegression,
    FederatedPoissonRegressor,
)

sm = pytest.importorskip("statsmodels.api")
CUT = chi2(1).isf(0.05)


def ends(likelihood, at, best, error):
    """The two values at which twice the drop of a likelihood is 3.84, to 1e-12."""

    def excess(b):
        return 2.0 * (best - likelihood(b)) - CUT

    return [brentq(excess, at, at + side * 4.0 * error, xtol=1e-12) for side in (-1.0, 1.0)]


def held(y, full, j, family, offset=0.0):
    """Likelihood as a function of coefficient j, by fits whose offset holds its part."""
    rest = np.delete(full, j, axis=1)

    def likelihood(b):
        return sm.GLM(y, rest, family, offset=offset + b * full[:, j]).fit(tol=1e-14, maxiter=200).llf

    return likelihood


def spector():
    data = sm.datasets.spector.load_pandas()
    return data.exog.to_numpy(), data.endog.to_numpy(), np.arange(32) % 3


@pytest.fixture(scope="module")
def logistic():
    X, y, site = spector()
    return FederatedLogisticRegression().fit(X, y, client=site)


def test_intervals_of_a_logistic_regression_are_those_of_the_definition(logistic):
    """To 1e-6: statsmodels' llf is right to 1e-12, and its root to about the square root of that over the slope."""
    X, y, _ = spector()
    full = sm.add_constant(X, prepend=False)
    found = sm.GLM(y, full, sm.families.Binomial()).fit(tol=1e-14)
    table = logistic.summary(intervals="profile")
    for j, row in enumerate(table.rows):
        right = ends(held(y, full, j, sm.families.Binomial()), found.params[j], found.llf, found.bse[j])
        np.testing.assert_allclose([row.low, row.high], right, rtol=1e-6)
    # the broken twin: Wald's are symmetric, and elsewhere
    plain = logistic.summary()
    assert all(abs(row.low - other.low) > 0.05 * row.std_err for row, other in zip(table.rows, plain.rows, strict=True))
    assert "profile likelihood" in " ".join(str(table).split())
    assert [row.p_value for row in table.rows] == [row.p_value for row in plain.rows]


def test_intervals_of_counts_with_exposure_and_units(logistic):
    rng = np.random.default_rng(2)
    X, years = rng.normal([0.0, 50.0], [1.0, 9.0], size=(40, 2)), rng.uniform(0.5, 3.0, 40)
    y = rng.poisson(years * np.exp(0.5 * X[:, 0] - 0.3)).astype(float)
    model = FederatedPoissonRegressor().fit(X, y, np.arange(40) % 3, exposure=years)
    full = sm.add_constant(X, prepend=False)
    found = sm.GLM(y, full, sm.families.Poisson(), offset=np.log(years)).fit(tol=1e-14)
    rows = model.summary(intervals="profile").rows
    for j, row in enumerate(rows):
        held_there = held(y, full, j, sm.families.Poisson(), np.log(years))
        right = ends(held_there, found.params[j], found.llf, found.bse[j])
        np.testing.assert_allclose([row.low, row.high], right, rtol=1e-5, atol=1e-7)
    # of another unit the ends are the same in that unit, which Wald's have too, and ratios are exp of them
    scaled = FederatedPoissonRegressor().fit(X * [1.0, 100.0], y, np.arange(40) % 3, exposure=years)
    other = scaled.summary(intervals="profile").rows[1]
    np.testing.assert_allclose([other.low, other.high], [rows[1].low / 100.0, rows[1].high / 100.0], rtol=1e-6)
    assert rows[0].ratio[1:] == (np.exp(rows[0].low), np.exp(rows[0].high))


def test_two_groups_have_the_closed_form():
    """Events over years: n(λ − ȳ) − Σ y log(λ/ȳ) = 1.92, one equation a group."""
    group, y = np.repeat([0, 1], 6), np.array([2, 0, 1, 3, 1, 1, 0, 1, 0, 0, 1, 0.0])
    model = FederatedPoissonRegressor(fit_intercept=False).fit(np.eye(2)[group], y, np.arange(12) % 2)
    for k, row in enumerate(model.summary(intervals="profile").rows):
        own = y[group == k]
        n, total = own.size, own.sum()
        best = total * np.log(total / n) - total
        right = ends(lambda b, n=n, t=total: t * b - n * np.exp(b), np.log(total / n), best, 1 / np.sqrt(total))
        np.testing.assert_allclose([row.low, row.high], right, atol=1e-8)


def test_classes_and_their_differences():
    """The interval of a difference is that of the fit whose first class is the reference."""
    rng = np.random.default_rng(1)
    X, site = rng.normal(size=(60, 2)), rng.integers(0, 3, 60)
    y = np.argmax(X @ rng.normal(size=(2, 3)) + rng.gumbel(size=(60, 3)), axis=1)
    model = FederatedGLM("multinomial").fit(X, y, client=site)
    turned = FederatedGLM("multinomial").fit(X, (y + 1) % 3, client=site)  # class 2 is the first
    for row, same in zip(
        model.summary(intervals="profile", reference_class=2).rows,
        turned.summary(intervals="profile").rows,
        strict=True,
    ):
        np.testing.assert_allclose([row.coef, row.low, row.high], [same.coef, same.low, same.high], atol=1e-6)


def test_what_has_no_profile_is_refused(logistic):
    X, y, site = spector()
    with pytest.raises(ValueError, match="'wald' unless the fit is by maximum likelihood"):
        FederatedLinearRegression().fit(X, y, client=site).summary(intervals="profile")
    with pytest.raises(ValueError, match="intervals must be 'wald' unless"):
        FederatedLogisticRegression(1.0).fit(X, y, client=site).summary(intervals="profile")
    with pytest.raises(ValueError, match="intervals must be 'wald' unless"):
        logistic.summary(intervals="profile", covariance="HC0")
    with pytest.raises(ValueError, match="intervals must be one of 'wald', 'profile', got 'exact'"):
        logistic.summary(intervals="exact")
