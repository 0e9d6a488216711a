"""Cochran's Q over sites from their factors alone, against fits at each site and statsmodels' meta-analysis."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import minimize_scalar

from bayesadmm_np.estimators import (
    FederatedGLM,
    FederatedLinearRegression,
    FederatedLogisticRegression,
    FederatedPoissonRegressor,
    heterogeneity,
)
from bayesadmm_np.estimators.between_sites import contradiction
from bayesadmm_np.estimators.caveats import Caveat
from bayesadmm_np.estimators.fitted import FittedGLM
from bayesadmm_np.estimators.summary import as_dict

sm = pytest.importorskip("statsmodels.api")
meta = pytest.importorskip("statsmodels.stats.meta_analysis")


def fitted(X, y, site=None, **settings):
    return FederatedLinearRegression(**settings).fit(X, y, client=site).fitted_


def linear(seed=0, apart=0.5, n=60):
    rng = np.random.default_rng(seed)
    X, site = rng.normal([0.0, 3.0], size=(n, 2)), np.arange(n) % 3
    beta = np.array([1.0, -0.5]) + apart * rng.normal(size=(3, 2))
    return X, 2.0 + (X * beta[site]).sum(axis=1) + rng.normal(size=n), site


def full(X):
    return np.column_stack([X, np.ones(len(X))])


def test_least_squares_is_chows_test():
    X, y, site = linear()
    pooled = sm.OLS(y, full(X)).fit()
    own = [sm.OLS(y[site == k], full(X[site == k])).fit() for k in range(3)]
    found = heterogeneity(fitted(X, y, site))
    within = sum(fit.ssr for fit in own)
    F = ((pooled.ssr - within) / 6) / (within / (60 - 9))
    assert np.isclose(found.test.statistic, F, rtol=1e-6)
    assert (found.test.df, found.test.df_residual) == (6, 51)
    assert np.isclose(found.test.p_value, stats.f.sf(F, 6, 51), rtol=1e-5)
    for j, row in enumerate(found.coefficients):
        assert np.allclose([item.coef for item in row.sites.values()], [fit.params[j] for fit in own], rtol=1e-6)
        # the site's own design with the pooled noise variance
        errors = [fit.bse[j] * np.sqrt(pooled.scale / fit.scale) for fit in own]
        assert np.allclose([item.std_err for item in row.sites.values()], errors, rtol=1e-6)
    # broken twin: the noise within the sites taken for the pooled one
    assert not np.isclose(found.test.statistic, ((pooled.ssr - within) / 6) / pooled.scale, rtol=1e-3)


def hospitals(n_sites, flipped=()):
    rng = np.random.default_rng(3)
    X, site = rng.normal(size=(200 * n_sites, 2)), np.repeat(np.arange(n_sites), 200)
    y = rng.random(len(X)) < 1.0 / (1.0 + np.exp(-X @ [1.0, -0.5]))
    return X, np.where(np.isin(site, flipped), ~y, y).astype(int), site


@pytest.mark.parametrize("n_sites", [2, 4])
def test_a_site_with_its_outcome_the_other_way_round_is_named_in_the_table(n_sites):
    """Twins: the same rows as they are, and sites that differ as hospitals do."""
    X, y, site = hospitals(n_sites, flipped=[1])
    model = FederatedLogisticRegression().fit(X, y, client=site)
    found = contradiction(model.fitted_)
    assert found.sites == ((0, 1) if n_sites == 2 else (1,))
    assert str(found) in model.summary().note
    X, y, site = hospitals(n_sites)
    agreed = FederatedLogisticRegression().fit(X, y, client=site)
    assert contradiction(agreed.fitted_) is None
    assert "contradict" not in agreed.summary().note
    X, y, site = linear(apart=0.1)
    assert contradiction(fitted(X, y, site)) is None


def test_the_statistic_of_a_contradiction_is_walds_of_two_fits():
    """Of least squares with a known variance the site's own fit and that of the others are exact."""
    X, y, site = linear(4, apart=3.0, n=300)
    found = contradiction(fitted(X, y, site, noise_variance=1.0))
    (k,) = found.sites
    one, others = (sm.OLS(y[rows], full(X[rows])).fit() for rows in (site == k, site != k))
    apart = one.params - others.params
    W = apart @ np.linalg.solve(one.normalized_cov_params + others.normalized_cov_params, apart)
    assert np.isclose(found.test.statistic, W, rtol=1e-8)
    assert np.isclose(found.test.p_value, 3 * stats.chi2.sf(W, 3), rtol=1e-6)
    assert contradiction(fitted(X[:60], y[:60], site[:60], noise_variance=1.0)) is None  # 20 rows for 3 coefficients


@pytest.mark.parametrize("unit", [2.0**-200, 2.0**200])
def test_numbers_between_sites_do_not_depend_on_units(unit):
    """Squares of the weights of such columns are no floats; units of powers of two change no digit."""
    X, y, site = linear(1, apart=0.8)
    known, found = (heterogeneity(fitted(X * scale, y, site)).coefficients[0] for scale in (1.0, unit))
    assert np.isclose(found.Q.statistic, known.Q.statistic, rtol=1e-9)
    for name in ("tau_squared", "tau_squared_reml"):
        assert np.isclose(getattr(found, name) * unit * unit, getattr(known, name), rtol=1e-9)


def test_each_coefficient_has_the_numbers_of_a_meta_analysis():
    X, y, site = linear(1, apart=0.8)
    for row in heterogeneity(fitted(X, y, site, noise_variance=1.0)).coefficients:
        b = np.array([item.coef for item in row.sites.values()])
        v = np.array([item.std_err for item in row.sites.values()]) ** 2
        theirs = meta.combine_effects(b, v, method_re="chi2")
        assert np.isclose(row.Q.statistic, theirs.q, rtol=1e-10)
        assert np.isclose(row.tau_squared, max(theirs.tau2, 0.0), rtol=1e-10)
        assert np.isclose(row.I_squared, max(theirs.i2, 0.0), rtol=1e-10)

        def restricted(tau, b=b, v=v):
            w = 1.0 / (v + tau)
            return 0.5 * (np.log(v + tau).sum() + np.log(w.sum()) + w @ (b - w @ b / w.sum()) ** 2)

        best = minimize_scalar(restricted, bounds=(0.0, 10.0), method="bounded", options={"xatol": 1e-10}).x
        assert np.isclose(row.tau_squared_reml, best, rtol=1e-5, atol=1e-7)  # of a flat minimum
        assert restricted(row.tau_squared_reml) <= restricted(best) + 1e-12


def test_the_statistic_is_a_chi_square_when_sites_agree_and_large_when_not():
    """Logistic: one Newton step a site. 60 draws, at each a mean of 6 ± 0.45."""
    rng = np.random.default_rng(5)
    found = {0.0: [], 0.8: []}
    for apart, T in found.items():
        for _ in range(60 if apart == 0.0 else 5):
            X, site = rng.normal(size=(600, 2)), np.arange(600) % 3
            beta = [0.5, -0.3] + apart * rng.normal(size=(3, 2))
            y = (0.2 + (X * beta[site]).sum(axis=1) + rng.logistic(size=600) > 0).astype(float)
            model = FederatedLogisticRegression(tol=1e-6).fit(X, y, client=site)
            T.append(heterogeneity(model.fitted_).test.statistic)
    # sd of a χ²(6) is √12; 60 draws: 0.45, five of them
    assert abs(np.mean(found[0.0]) - 6.0) < 5 * np.sqrt(12 / 60)
    assert stats.kstest(found[0.0], stats.chi2(6).cdf).pvalue > 1e-4
    assert stats.kstest(found[0.0], stats.chi2(9).cdf).pvalue < 1e-3  # a broken twin: K in place of K − 1
    assert min(found[0.8]) > stats.chi2(6).isf(1e-3)


def test_t_does_not_depend_on_units():
    X, y, site = linear(2)
    found = [heterogeneity(fitted(rows, y, site)) for rows in (X, X * [1.0, 100.0] + 7.0)]
    assert np.isclose(found[0].test.statistic, found[1].test.statistic, rtol=1e-5)
    assert np.isclose(found[0].coefficients[1].Q.statistic, found[1].coefficients[1].Q.statistic, rtol=1e-8)
    # the intercept is another one: where other columns are zero
    assert not np.isclose(found[0].coefficients[2].Q.statistic, found[1].coefficients[2].Q.statistic, rtol=1e-2)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_column_that_others_make_up_is_left_out():
    X, y, site = linear(6)
    plain, held = (heterogeneity(fitted(rows, y, site)) for rows in (X, np.column_stack([X, X[:, 0] - X[:, 1]])))
    assert held.test.df == plain.test.df
    assert np.isclose(held.test.statistic, plain.test.statistic, rtol=1e-8)
    assert [row.name for row in held.coefficients] == [row.name for row in plain.coefficients]
    for row, same in zip(held.coefficients, plain.coefficients, strict=True):
        assert np.isclose(row.Q.statistic, same.Q.statistic, rtol=1e-7)


def test_a_site_that_determines_nothing_is_left_out_by_name():
    X, y, site = linear(3)
    names = np.array(["north", "south", "west"])[site]
    names[:2] = "tiny"
    model = fitted(X, y, names)
    found = heterogeneity(model)
    assert found.left_out == ("tiny",)
    assert found.test.df == 6
    assert "tiny" in str(found)
    assert "tiny" not in found.coefficients[0].sites
    with pytest.raises(ValueError, match="needs two"):
        heterogeneity(fitted(X, y))
    with pytest.raises(ValueError, match="not: posterior"):
        heterogeneity(replace(model, inference="posterior"))


def test_overdispersed_counts_and_rounding_contradict_nobody(monkeypatch):
    """Twins: the same counts without their dispersion, and a plane that is another at one site."""
    rng = np.random.default_rng(55)
    X, site = rng.standard_normal((300, 2)), np.arange(300) % 3
    counted = FederatedGLM("poisson").fit(
        X, rng.poisson(rng.gamma(0.25, np.exp(1.5 + 0.3 * X[:, 0]) / 0.25)), client=site
    )
    assert "contradict" not in counted.summary().note
    with monkeypatch.context() as patched:
        patched.setattr(FittedGLM, "overdispersion", None)
        assert contradiction(counted.fitted_) is not None
    plane = 3.0 + 2.0 * X[:, 0]
    with pytest.warns(Caveat, match="perfect"):
        assert "contradict" not in FederatedGLM("linear").fit(X, plane, client=site).summary().note
    bent = plane + 1e-3 * (site == 1) * X[:, 1]
    assert "contradict" in FederatedGLM("linear").fit(X, bent, client=site).summary().note


def test_heterogeneity_of_a_quasi_likelihood_is_divided_by_the_dispersion():
    """T/φ over its degrees of freedom is an F, and every Q a φ-th; the twin, unscaled, finds sites that disagree."""
    rng = np.random.default_rng(18)
    X, site = rng.standard_normal((600, 2)), np.arange(600) % 3
    y = rng.poisson(rng.gamma(0.4, np.exp(1 + 0.3 * X[:, 0]) / 0.4))
    fitted = FederatedPoissonRegressor().fit(X, y, client=site).fitted_
    phi = fitted.overdispersion
    assert phi > 3
    plain, quasi = heterogeneity(fitted), heterogeneity(fitted, covariance="quasi")
    assert np.isclose(quasi.test.statistic, plain.test.statistic / plain.test.df / phi, rtol=1e-12)
    assert (quasi.test.df, quasi.test.df_residual) == (6, 597)
    assert plain.test.p_value < 1e-3 < 0.01 < quasi.test.p_value
    for one, other in zip(plain.coefficients, quasi.coefficients, strict=True):
        assert np.isclose(other.Q.statistic, one.Q.statistic / phi, rtol=1e-10)
        assert np.isclose(other.sites[0].std_err, one.sites[0].std_err * np.sqrt(phi), rtol=1e-12)
    assert as_dict(fitted, covariance="quasi")["heterogeneity"]["test"]["statistic"] == quasi.test.statistic
    classes = FederatedLogisticRegression().fit(X, y > 1, client=site).fitted_
    with pytest.raises(ValueError, match=r"^covariance "):
        heterogeneity(classes, covariance="quasi")
