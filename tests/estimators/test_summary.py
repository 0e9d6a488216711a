"""The printed table: what a statistician reads off it, and what it does not say."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from sklearn.exceptions import ConvergenceWarning

from bayesadmm_np.estimators import (
    FederatedGLM,
    FederatedLinearRegression,
    FederatedLogisticRegression,
    FederatedPoissonRegressor,
)
from bayesadmm_np.estimators.summary import as_dict, summarise
from bayesadmm_np.families import FullGaussian
from bayesadmm_np.glm.inference import FitStatistics
from bayesadmm_np.glm.kinds import read_kind
from bayesadmm_np.losses import Poisson
from bayesadmm_np.losses.base import Loss

sm = pytest.importorskip("statsmodels.api")

NEARLY = 1e-12
"""Prior precision that moves no digit that is looked at."""


def spector():
    data = sm.datasets.spector.load_pandas()
    return data.exog, data.endog.to_numpy(), np.array(["north", "south", "west"])[np.arange(32) % 3]


@pytest.fixture(scope="module")
def logistic():
    X, y, site = spector()
    return FederatedLogisticRegression().fit(X, y, client=site)


@pytest.fixture(scope="module")
def longley():
    data = sm.datasets.longley.load_pandas()
    X, y = (data.exog - data.exog.mean()) / data.exog.std(), data.endog
    found = sm.OLS(y, sm.add_constant(X, prepend=False)).fit()
    return FederatedLinearRegression().fit(X, y, client=np.arange(16) % 3), found


def test_a_logistic_table_has_the_numbers_of_statsmodels(logistic):
    X, y, _ = spector()
    found = sm.Logit(y, sm.add_constant(X, prepend=False)).fit(disp=0, tol=1e-14)
    table = logistic.summary()
    text = str(table)
    for row, b, se, z, p, (low, high) in zip(
        table.rows, found.params, found.bse, found.tvalues, found.pvalues, found.conf_int().to_numpy(), strict=True
    ):
        assert np.allclose(
            [row.coef, row.std_err, row.statistic, row.p_value, row.low, row.high],
            [b, se, z, p, low, high],
            rtol=1e-6,  # the certificate's 1e-8 of a standard error
        )
    for words in (
        f"{found.llf:.6g}",
        f"{found.aic:.6g}, {found.bic:.6g}",
        f"{found.prsquared:.4f}",
        f"{found.llr:.4g}, {found.llr_pvalue:.3g}",
        "28, 3",
    ):
        assert words in text
    assert "prior" not in text.split("Rows:")[0]  # there is none
    # a fit that is not there yet has no maximum
    proof = replace(logistic.fitted_.record.certificate, pooled=1.0)
    early = str(summarise(replace(logistic.fitted_, record=replace(logistic.fitted_.record, certificate=proof))))
    assert "does NOT hold" in early
    assert "AIC" not in early
    # broken twins: with its prior it is another fit, of which the same criteria mean nothing
    some = FullGaussian(np.zeros(4), NEARLY)
    other = replace(logistic.fitted_, prior=some)
    penalised = str(summarise(other))
    assert other.fit_name.startswith("penalised")
    assert "AIC" not in penalised
    assert "LR χ²" not in penalised
    assert "25.7793" in penalised  # the deviance stays


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # ADMM does not end here
def test_a_posterior_is_called_one(logistic):
    X, y, site = spector()
    model = FederatedLogisticRegression(0.01, inference="posterior").fit(X, y, client=site)
    text = str(model.summary())
    assert model.fitted_.fit_name == "posterior (variational)"
    assert "AIC" not in text
    assert "ELBO" in text
    assert "ELBO" not in str(logistic.summary())
    # a mode with its curvature, and a point, bound no evidence
    for method, settings in (("FedLapCov", {}), ("ADMM", {"penalize_intercept": True})):
        other = FederatedLogisticRegression(0.01, method=method, tol=1e-3, **settings).fit(X, y, client=site)
        assert "ELBO" not in str(other.summary())
        assert "variational" not in other.fitted_.fit_name
        with pytest.raises(AttributeError, match="elbo_"):
            other.elbo_  # noqa: B018
    ridge = FederatedLinearRegression(1.0, inference="posterior").fit(X, y, client=site)
    assert as_dict(ridge.fitted_)["log_likelihood"] == ridge.fitted_.totals.log_likelihood  # at the noise that it chose
    assert f"{ridge.fitted_.totals.log_likelihood:.6g}" in str(ridge.summary())
    with pytest.raises(ValueError, match=r"^covariance .*'HC3'"):
        model.summary(covariance="HC3")


def test_least_squares_has_t_and_f(longley):
    model, found = longley
    table = model.summary()
    assert table.statistic == "t"
    assert np.allclose([row.p_value for row in table.rows], found.pvalues, rtol=1e-5)
    assert np.allclose([[row.low, row.high] for row in table.rows], found.conf_int(), rtol=1e-6)
    text = str(table)
    sd = f"{found.scale**0.5:.6g}"
    for words in (sd, "P>|t|", f"{found.fvalue:.4g}, {found.f_pvalue:.3g}", f"{found.rsquared:.4f}, adjusted", "9, 6"):
        assert words in text
    assert f"{found.aic:.6g}" in text
    # a broken twin: a noise variance that was given has no t
    totals = model.fitted_.totals
    totals = replace(totals, statistics=replace(totals.statistics, noise="given"))
    given = summarise(replace(model.fitted_, totals=totals))
    assert given.statistic == "z"
    assert not np.allclose([row.p_value for row in given.rows], found.pvalues, rtol=0.1)


def test_robust_standard_errors(logistic, longley):
    X, y, site = spector()
    full = sm.add_constant(X, prepend=False)
    white = sm.Logit(y, full).fit(disp=0, tol=1e-14, cov_type="HC0")
    errors = [row.std_err for row in logistic.summary(covariance="HC0").rows]
    assert np.allclose(errors, white.bse, rtol=1e-6)
    assert not np.allclose(errors, [row.std_err for row in logistic.summary().rows], rtol=1e-2)
    wards = {name: [f"{name} {i % 4}" for i in range((site == name).sum())] for name in ("north", "south", "west")}
    groups = np.empty(32, dtype=int)
    for k, name in enumerate(wards):
        groups[site == name] = 4 * k + np.arange((site == name).sum()) % 4
    clustered = sm.Logit(y, full).fit(disp=0, tol=1e-14, cov_type="cluster", cov_kwds={"groups": groups})
    table = logistic.summary(covariance="cluster", clusters=wards)
    assert np.allclose([row.std_err for row in table.rows], clustered.bse, rtol=1e-6)
    assert "cluster" in str(table)
    assert "With 12 clusters" in " ".join(str(table).split())
    with pytest.raises(ValueError, match="cluster 'a'"):
        logistic.summary(covariance="cluster", clusters={name: ["a"] * len(wards[name]) for name in wards})
    with pytest.raises(ValueError, match=r"^clusters "):
        logistic.summary(covariance="cluster", clusters={"south": wards["south"], "west": wards["west"]})
    model, found = longley
    for name in ("HC0", "HC1", "HC2", "HC3"):
        rows = model.summary(covariance=name).rows
        assert np.allclose([row.std_err for row in rows], getattr(found, f"{name}_se"), rtol=1e-6)


def test_sites_are_clusters_where_none_are_named():
    rng = np.random.default_rng(8)
    site = np.repeat(np.arange(40), 5)
    X = rng.normal(size=(200, 2))
    y = (X[:, 0] + rng.normal(size=40)[site] + rng.logistic(size=200) > 0).astype(int)
    model = FederatedLogisticRegression().fit(X, y, client=site)
    found = sm.Logit(y, sm.add_constant(X, prepend=False)).fit(
        disp=0, tol=1e-14, cov_type="cluster", cov_kwds={"groups": site}
    )
    table = model.summary(covariance="cluster")
    assert np.allclose([row.std_err for row in table.rows], found.bse, rtol=1e-6)
    assert "cluster, 40 of them" in str(table)
    assert "are few" not in str(table)
    # a broken twin: the rows are no clusters
    assert not np.allclose([row.std_err for row in model.summary(covariance="HC1").rows], found.bse, rtol=0.05)
    three = FederatedLogisticRegression().fit(X, y, client=site % 3)
    with pytest.raises(ValueError, match=r"^covariance "):
        three.summary(covariance="cluster")


def test_analytic_weights_are_those_of_statsmodels_and_of_r():
    """WLS and `var_weights`; frequency weights are the broken twin: other degrees of freedom, other errors."""
    rng = np.random.default_rng(5)
    X, w, site = rng.normal(size=(40, 2)), rng.uniform(0.2, 6.0, 40), np.arange(40) % 3
    y = X @ [1.0, -1.0] + rng.normal(size=40) / np.sqrt(w)
    full = sm.add_constant(X, prepend=False)
    found = sm.WLS(y, full, weights=w).fit()
    for frame in (X * [1e3, 1.0], X):  # the units of a column change no test
        model = FederatedLinearRegression(weight_meaning="analytic").fit(frame, y, site, sample_weight=w)
        table, whole = model.summary(), model.fitted_.goodness()
        assert np.allclose([row.p_value for row in table.rows], found.pvalues, rtol=1e-8)
    ours = [row.std_err for row in table.rows]
    assert np.allclose(ours, found.bse, rtol=1e-10)
    assert np.isclose(model.noise_variance_, found.scale, rtol=1e-12)
    assert np.allclose(
        [whole.log_likelihood, whole.aic, whole.bic, whole.df_residual, whole.test.statistic],
        [found.llf, found.aic, found.bic, found.df_resid, found.fvalue],
        rtol=1e-10,
    )
    for name in ("HC0", "HC1", "HC3"):
        errors = [row.std_err for row in model.summary(covariance=name).rows]
        assert np.allclose(errors, getattr(found, f"{name}_se"), rtol=1e-8), name
    assert as_dict(model.fitted_)["weights"] == "analytic"
    # log N(y | f, σ²/w) at a σ² that is given, as an evidence takes it
    known = FederatedLinearRegression(weight_meaning="analytic", noise_variance=2.0).fit(X, y, site, sample_weight=w)
    density = stats.norm.logpdf(y, known.predict(X), np.sqrt(2.0 / w)).sum()
    assert np.isclose(known.fitted_.totals.log_likelihood, density, rtol=1e-12)
    assert np.isclose(known.fitted_.goodness().log_likelihood, density, rtol=1e-12)
    counted = FederatedLinearRegression().fit(X, y, site, sample_weight=w)
    assert np.allclose(counted.coef_, model.coef_, rtol=1e-12)
    assert not np.allclose([row.std_err for row in counted.summary().rows], ours, rtol=0.05)
    with pytest.raises(ValueError, match=r"^weight_meaning "):
        FederatedLinearRegression(weight_meaning="aweights").fit(X, y, site, sample_weight=w)


def test_analytic_weights_of_counts_are_those_of_statsmodels():
    rng = np.random.default_rng(6)
    X, w, site = rng.normal(size=(80, 2)), rng.uniform(0.2, 3.0, 80), np.arange(80) % 3
    y = rng.poisson(np.exp(0.5 * X[:, 0])).astype(float)
    full = sm.add_constant(X, prepend=False)
    found = sm.GLM(y, full, sm.families.Poisson(), var_weights=w).fit(tol=1e-14)
    model = FederatedPoissonRegressor(weight_meaning="analytic").fit(X, y, site, sample_weight=w)
    whole = model.fitted_.goodness()
    assert np.allclose([row.std_err for row in model.summary().rows], found.bse, rtol=1e-8)
    assert np.allclose([whole.deviance, whole.df_residual], [found.deviance, found.df_resid], rtol=1e-10)
    counted = FederatedPoissonRegressor().fit(X, y, site, sample_weight=w)
    assert not np.isclose(counted.fitted_.goodness().df_residual, found.df_resid, rtol=0.05)


def test_ratios_have_intervals(logistic, longley):
    table = logistic.summary(ratios=True)
    text = str(table).splitlines()
    row = table.rows[0]
    assert "odds ratio" in next(line for line in text if "std err" in line)
    line = next(line for line in text if line.startswith("GPA"))
    for value in (np.exp(row.coef), np.exp(row.low), np.exp(row.high)):
        assert f"{value:.3f}" in line
    # the intercept's is no ratio
    assert next(line for line in text if line.startswith("(intercept)")).split()[5:8] == ["–"] * 3
    counts = FederatedPoissonRegressor().fit([[0.0], [1.0], [2.0]], [1.0, 2.0, 5.0])
    assert "rate ratio" in str(counts.summary(ratios=True))
    with pytest.raises(ValueError, match=r"^ratios "):
        longley[0].summary(ratios=True)


def test_of_two_classes_the_reference_may_be_the_second(logistic):
    """The fit to the classes in another order: the other signs, the same tests; the broken twin is the first class."""
    rows, turned = logistic.summary().rows, logistic.summary(reference_class=1).rows
    assert turned[0].name == "0 vs 1: GPA"
    titles = [logistic.summary(reference_class=label).header["Model"] for label in (1, 0)]
    assert [title.split(": ")[1] for title in titles] == ["0 against 1", "1 against 0"]
    for row, other in zip(rows, turned, strict=True):
        assert (other.coef, other.std_err, other.p_value) == (-row.coef, row.std_err, row.p_value)
        assert np.allclose([other.low, other.high], [-row.high, -row.low], rtol=1e-14)
    plain = logistic.summary(reference_class=0).rows
    assert [row.coef for row in plain] == [row.coef for row in rows]
    with pytest.raises(ValueError, match=r"^reference_class "):
        FederatedLinearRegression().fit([[0.0], [1.0], [3.0]], [0.0, 1.0, 2.0]).summary(reference_class="a")


def test_another_reference_is_the_fit_with_its_labels_first():
    rng = np.random.default_rng(1)
    X, site = rng.normal(size=(200, 2)), rng.integers(0, 3, 200)
    y = np.argmax(X @ rng.normal(size=(2, 3)) + rng.gumbel(size=(200, 3)), axis=1)
    table = FederatedGLM("multinomial").fit(X, y, client=site)
    other = sm.MNLogit((y + 1) % 3, sm.add_constant(X, prepend=False)).fit(disp=0, method="newton", tol=1e-14)
    rows = table.summary(reference_class=2).rows  # class 2 is the other's class 0
    assert [row.name.split(":")[0] for row in rows] == ["0 vs 2"] * 3 + ["1 vs 2"] * 3
    assert np.allclose([row.coef for row in rows], other.params.T.ravel(), atol=1e-7)
    assert np.allclose([row.std_err for row in rows], other.bse.T.ravel(), rtol=1e-6)
    plain = [row.std_err for row in table.summary().rows]  # against class 0
    assert not np.allclose(plain, other.bse.T.ravel(), rtol=1e-2)


def test_robust_errors_of_several_columns_are_those_of_each():
    rng = np.random.default_rng(4)
    X, site = rng.normal(size=(60, 2)), np.arange(60) % 3
    Y = X @ rng.normal(size=(2, 2)) + rng.normal(size=(60, 2)) * [1.0, 3.0] * np.abs(X[:, :1])
    rows = FederatedLinearRegression().fit(X, Y, client=site).summary(covariance="HC3").rows
    for j in range(2):
        found = sm.OLS(Y[:, j], sm.add_constant(X, prepend=False)).fit()
        assert np.allclose([row.std_err for row in rows[3 * j : 3 * j + 3]], found.HC3_se, rtol=1e-6)
        t = [row.coef / row.std_err for row in rows[3 * j : 3 * j + 3]]
        low = found.params - stats.t(57).isf(0.025) * found.HC3_se
        assert np.allclose([row.low for row in rows[3 * j : 3 * j + 3]], low, rtol=1e-5, atol=1e-7)
        assert np.allclose([row.statistic for row in rows[3 * j : 3 * j + 3]], t)


def test_a_loss_that_does_not_tell_its_rows_apart_has_a_table_without_totals():
    class Opaque(Poisson):
        rows = Loss.rows

    kind = replace(read_kind("poisson"), name="opaque", loss=Opaque)
    with pytest.warns(ConvergenceWarning, match="does not tell its rows apart"):
        model = FederatedGLM(kind, 1.0).fit([[0.0], [1.0], [2.0]], [1.0, 2.0, 5.0])
    assert model.fitted_.totals.statistics is None
    assert "Deviance" not in str(model.summary())
    model.fitted_ = replace(model.fitted_, criterion=replace(model.fitted_.criterion, inference="likelihood"))
    with pytest.raises(ValueError, match=r"^covariance "):
        model.summary(covariance="HC0")


def test_a_coefficient_that_the_prior_dominates_has_no_test():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(200, 2)) * [1.0, 1e-3]
    model = FederatedLogisticRegression(1.0).fit(X, (X[:, 0] + rng.logistic(size=200) > 0).astype(int))
    seen, unseen, _ = model.summary().rows
    assert unseen.shares[0] > 0.99
    assert (unseen.statistic, unseen.p_value) == (None, None)
    assert unseen.std_err is not None
    assert seen.p_value < 0.05


def test_json_holds_what_the_table_says(logistic):
    model = logistic.fitted_
    found = json.loads(json.dumps(as_dict(model), allow_nan=False))
    whole = model.goodness()
    assert found["fit"] == "maximum likelihood"
    assert found["goodness"]["aic"] == whole.aic
    assert found["goodness"]["test"]["df"] == 3
    assert found["coefficients"][0]["ratio"] == [
        np.exp(found["coefficients"][0][key]) for key in ("coef", "low", "high")
    ]
    assert found["coefficients"][-1]["ratio"] is None
    exact = FederatedLinearRegression(noise_variance=1.0).fit([[0.0], [1.0]], [0.0, 1.0]).fitted_
    total = replace(exact.totals.statistics.total, loss=0.0)
    perfect = replace(exact, totals=replace(exact.totals, statistics=FitStatistics(total, "estimated")))
    assert json.loads(json.dumps(as_dict(perfect), allow_nan=False))["goodness"]["log_likelihood"] is None


def test_quasi_likelihood_is_that_of_statsmodels():
    """statsmodels' X2, and R's quasipoisson: the dispersion scales the variance, and t has its degrees of freedom."""
    rng = np.random.default_rng(0)
    X, site = rng.normal(size=(300, 2)), np.arange(300) % 3
    y = rng.negative_binomial(2, 0.3, 300)
    model = FederatedPoissonRegressor().fit(X, y, client=site)
    design = sm.add_constant(X, prepend=False)
    theirs = sm.GLM(y, design, family=sm.families.Poisson()).fit(scale="X2", tol=1e-14, use_t=True)
    found = model.summary(covariance="quasi")
    for name, values in {"std_err": theirs.bse, "statistic": theirs.tvalues, "p_value": theirs.pvalues}.items():
        assert np.allclose([getattr(row, name) for row in found.rows], values, rtol=1e-8)  # a tenth of 1e-8 residuals
    assert np.allclose([[row.low, row.high] for row in found.rows], theirs.conf_int(), atol=1e-8)
    assert found.statistic == "t"
    assert "root of the dispersion" in found.note
    # a quasi-likelihood has no likelihood, and none of what is made of it
    told, own = as_dict(model.fitted_, covariance="quasi"), as_dict(model.fitted_)
    for name in ("aic", "bic", "r_squared", "test", "log_likelihood"):
        assert told["goodness"][name] is None
        assert own["goodness"][name] is not None
    assert told["goodness"]["dispersion"] == own["goodness"]["dispersion"]
    for word in ("AIC", "LR χ²", "Log-likelihood", "McFadden"):
        assert word not in str(found).replace("no AIC", "")
        assert word in str(model.summary())
    (first, *_) = model.test_terms(covariance="quasi")
    assert np.isclose(first.statistic, theirs.tvalues[0] ** 2, rtol=1e-8)
    assert first.df_residual == 297
    # twins: the model's own errors, and classes, whose outcomes cannot vary more
    assert not np.allclose([row.std_err for row in model.summary().rows], theirs.bse, rtol=0.1)
    with pytest.raises(ValueError, match=r"^covariance "):
        FederatedLogisticRegression().fit(X, y > 4, client=site).summary(covariance="quasi")


def test_counts_that_vary_more_than_poisson_are_said_to():
    rng = np.random.default_rng(0)
    X, site = rng.normal(size=(400, 1)), np.arange(400) % 3
    wide = FederatedPoissonRegressor().fit(X, rng.negative_binomial(2, 0.3, 400), client=site)
    assert "varies" in wide.summary().note
    assert "varies" not in wide.summary(covariance="HC1").note  # which allows for it
    # twin: counts of the model, and classes, of which Pearson's statistic says nothing
    plain = FederatedPoissonRegressor().fit(X, rng.poisson(3.0, 400), client=site)
    assert "varies" not in plain.summary().note
