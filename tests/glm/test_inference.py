"""What a table says beside the coefficients, from sums over sites, against statsmodels on the pooled rows.

The tolerance is 1e-8 relative: both sides solve the same equations to a Newton decrement of 1e-12 or less, on columns
of unit scale, so that what is left is rounding times the condition of the Hessian (below 1e4 here).
"""

import contextlib
from dataclasses import replace
from functools import reduce
from operator import add

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import chi2

from bayesadmm_np.glm.inference import (
    goodness_of_fit,
    likelihood_ratio_test,
    robust_covariance,
    wald_test,
)
from bayesadmm_np.glm.kinds import read_kind
from bayesadmm_np.glm.questions import QUESTIONS, pack, unpack
from bayesadmm_np.glm.refit import derivatives, drive, refit, without
from bayesadmm_np.glm.site_statistics import SiteStatistics, check_clusters, site_statistics, with_all_robust

sm = pytest.importorskip("statsmodels.api")

TIGHT = 1e-8


def scaled(frame):
    """Columns per standard deviation, with an intercept at the end: Longley's own would cost ten digits."""
    values = frame.to_numpy(dtype=float)
    values = (values - values.mean(axis=0)) / values.std(axis=0)
    return np.column_stack([values, np.ones(len(values))])


def spector():
    data = sm.datasets.spector.load_pandas()
    return "logistic", scaled(data.exog), data.endog.to_numpy()


def fair():
    data = sm.datasets.fair.load_pandas().data[::3]
    return "logistic", scaled(data.drop(columns="affairs")), (data["affairs"] > 0).to_numpy(dtype=float)


def randhie():
    data = sm.datasets.randhie.load_pandas()
    return "poisson", scaled(data.exog[::10]), data.endog.to_numpy()[::10]


def longley():
    data = sm.datasets.longley.load_pandas()
    return "linear", scaled(data.exog), data.endog.to_numpy() / 1000.0


def anes96():
    data = sm.datasets.anes96.load_pandas()
    return "multinomial", scaled(data.exog), data.endog.to_numpy()


class Fit:
    """A pooled fit by sums over three sites."""

    def __init__(self, problem, weights=None, offset=None, robust=(), clusters=None, meaning="frequency"):
        name, self.X, self.y = problem
        self.kind, self.meaning = read_kind(name), meaning
        self.noise = "estimated" if self.kind.has_noise else "none"
        self.outputs, (n, p) = self.kind.n_outputs(len(set(self.y))), self.X.shape
        y = self.y.astype(int) if self.kind.is_classifier else self.y
        self.sites = [np.arange(n)[k::3] for k in range(3)]

        def at(values):
            return [None if values is None else values[own] for own in self.sites]

        rows = zip(at(self.X), at(y), at(weights), at(offset), strict=True)
        self.losses = [self.kind.make_loss(*own, n_outputs=self.outputs) for own in rows]
        self.free = np.ones(self.outputs * p, dtype=bool)
        self.intercepts = np.arange(self.free.size) % p == p - 1
        self.theta = drive(refit(np.zeros(self.free.size), self.free), self.losses).theta
        self.null = drive(refit(self.theta, self.intercepts), self.losses).theta
        self.bread = np.linalg.inv(sum(derivatives(loss, self.theta).hessian for loss in self.losses))
        settings = {"robust": robust, "bread": self.bread, "weights": meaning}
        self.by_site = [
            site_statistics(self.kind, loss, self.theta, self.null, clusters=own, **settings)
            for loss, own in zip(self.losses, at(clusters), strict=True)
        ]
        self.total = reduce(add, self.by_site)

    @property
    def n_parameters(self):
        return int(self.free.sum())

    def goodness(self, **changes):
        total, settings = replace(self.total, **changes), {"noise": self.noise, "weights": self.meaning}
        return goodness_of_fit(self.kind, total, self.n_parameters, int(self.intercepts.sum()), **settings)

    @property
    def covariance(self):
        return self.bread * (self.goodness().dispersion if self.noise == "estimated" else 1.0)


def close(ours, theirs, tolerance=TIGHT):
    return np.abs(np.asarray(ours) / np.asarray(theirs) - 1.0).max() < tolerance


def newton(model, **options):
    return model.fit(disp=0, method="newton", tol=1e-13, maxiter=200, **options)


@pytest.mark.parametrize("problem", [spector, fair])
def test_the_logistic_regression_is_statsmodels_logit(problem):
    fit, found = Fit(problem()), newton(sm.Logit(problem()[2], problem()[1]))
    g = fit.goodness()
    assert close(fit.theta, found.params)
    assert close(np.sqrt(np.diagonal(fit.covariance)), found.bse)
    assert close([g.log_likelihood, g.aic, g.bic], [found.llf, found.aic, found.bic])
    # its own null model stops early: 3e-7 above the minimum on fair
    null = newton(sm.Logit(fit.y, fit.X[:, -1])).llf
    assert g.null_log_likelihood >= found.llnull
    assert close(
        [g.null_log_likelihood, g.r_squared, g.test.statistic],
        [null, 1.0 - found.llf / null, 2.0 * (found.llf - null)],
    )
    assert close(g.test.p_value, chi2.sf(2.0 * (found.llf - null), found.df_model), 1e-6)  # χ² of 1062
    assert (g.df_model, g.df_residual) == (found.df_model, found.df_resid)
    glm = sm.GLM(fit.y, fit.X, sm.families.Binomial()).fit(tol=1e-14)
    assert close(
        [g.deviance, g.null_deviance, g.dispersion],
        [glm.deviance, glm.null_deviance, glm.pearson_chi2 / glm.df_resid],
    )
    # a broken twin: the rows of one site in place of n
    assert not close(fit.goodness(weight=fit.by_site[0].weight).bic, found.bic)


def test_poisson_regression_with_exposure_is_statsmodels_glm():
    kind, X, y = randhie()
    exposure = np.exp(np.random.default_rng(5).normal(size=len(y)))
    for offset in (None, np.log(exposure)):
        fit = Fit((kind, X, y), offset=offset)
        found = sm.GLM(y, X, sm.families.Poisson(), offset=offset).fit(tol=1e-14)
        g = fit.goodness()
        assert close(fit.theta, found.params)
        assert close(
            [g.log_likelihood, g.null_log_likelihood, g.deviance, g.null_deviance, g.aic, g.bic, g.dispersion],
            [
                found.llf,
                found.llnull,
                found.deviance,
                found.null_deviance,
                found.aic,
                found.bic_llf,
                found.pearson_chi2 / found.df_resid,
            ],
        )
    # broken twins: without log y!, and the intercept alone of rows without exposure
    assert not close(fit.goodness(constant=0.0).log_likelihood, found.llf)
    assert not close(fit.goodness(null_loss=Fit((kind, X, y)).total.null_loss).null_deviance, found.null_deviance)


def test_least_squares_with_weights_of_both_meanings():
    kind, X, y = longley()
    w = np.random.default_rng(2).integers(1, 5, size=len(y)).astype(float)
    copies = np.repeat(np.arange(len(y)), w.astype(int))
    for meaning, found in (
        ("frequency", sm.OLS(y[copies], X[copies]).fit()),
        ("analytic", sm.WLS(y, X, weights=w).fit()),
    ):
        robust = ("HC0", "HC2", "HC3")
        fit = Fit((kind, X, y), weights=w, meaning=meaning, robust=robust)
        g = fit.goodness()
        assert close(
            [g.log_likelihood, g.aic, g.bic, g.dispersion, g.test.statistic],
            [found.llf, found.aic, found.bic, found.scale, found.fvalue],
        )
        assert close(np.sqrt(np.diagonal(fit.covariance)), found.bse)
        for name in robust:
            ours = robust_covariance(name, fit.bread, fit.total, 7, weights=meaning)[0]
            theirs = getattr(found, f"cov_{name}")
            assert np.abs(ours - theirs).max() < TIGHT * np.abs(theirs).max()
        # a broken twin: the other meaning
        other = "analytic" if meaning == "frequency" else "frequency"
        fit.meaning = other
        assert not close(fit.goodness().bic, found.bic)


def test_n_is_a_count_whatever_the_noise_variance():
    kind, X, y = longley()
    for noise in (0.1, 3.0, 92936.00616732384, 1e-9):
        loss = read_kind(kind).make_loss(X, y, noise_variance=noise)
        found = site_statistics(read_kind(kind), loss, np.zeros(7), np.zeros(7), noise_variance=noise)
        assert found.weight == 16.0
        assert np.isclose(found.loss, 0.5 * y @ y, rtol=1e-13)
    # a weight that is no whole number is left alone
    loss = read_kind(kind).make_loss(X, y, np.full(16, 0.3), noise_variance=3.0)
    assert np.isclose(site_statistics(read_kind(kind), loss, X[0], X[0], noise_variance=3.0).weight, 4.8)


def test_a_given_noise_variance_has_its_own_likelihood():
    kind, X, y = longley()
    fit = Fit((kind, X, y))
    g = goodness_of_fit(fit.kind, fit.total, 7, 1, noise="given", noise_variance=0.3)
    left = y - X @ fit.theta
    expected = -0.5 * (left**2).sum() / 0.3 - 0.5 * len(y) * np.log(2.0 * np.pi * 0.3)
    assert close([g.log_likelihood, g.deviance], [expected, (left**2).sum()], 1e-12)
    assert g.test.df_residual is None
    assert close(g.test.statistic, 2.0 * (g.log_likelihood - g.null_log_likelihood), 1e-12)


def test_several_classes_are_statsmodels_mnlogit():
    fit, found = Fit(anes96(), robust=("HC0",)), newton(sm.MNLogit(anes96()[2], anes96()[1]))
    g = fit.goodness()
    assert close(np.sqrt(np.diagonal(fit.covariance)), np.asarray(found.bse).T.ravel())
    white = newton(sm.MNLogit(fit.y, fit.X), cov_type="HC0")
    ours = robust_covariance("HC0", fit.bread, fit.total, fit.n_parameters)[0]
    assert close(np.sqrt(np.diagonal(ours)), np.asarray(white.bse).T.ravel())
    assert not close(np.sqrt(np.diagonal(fit.covariance)), np.asarray(white.bse).T.ravel(), 1e-3)
    assert close(fit.theta, np.asarray(found.params).T.ravel(), 1e-7)  # coefficients near zero
    null = newton(sm.MNLogit(fit.y, fit.X[:, -1])).llf
    assert close(
        [g.log_likelihood, g.null_log_likelihood, g.aic, g.bic, g.r_squared, g.test.statistic],
        [found.llf, null, found.aic, found.bic, 1.0 - found.llf / null, 2.0 * (found.llf - null)],
    )
    assert close(g.deviance, -2.0 * found.llf)
    p = found.predict()
    y = fit.y[:, None] == np.arange(7)
    assert close(fit.total.pearson, ((y - p) ** 2 / p).sum())


ALL_HC = ("HC0", "HC1", "HC2", "HC3")


@pytest.mark.parametrize(("problem", "family"), [(spector, "Binomial"), (fair, "Binomial"), (randhie, "Poisson")])
def test_robust_covariances_of_a_glm(problem, family):
    """HC0 is statsmodels'. Its HC1 to HC3 of a GLM are HC0 again: the others from its residuals and leverages."""
    fit = Fit(problem(), robust=ALL_HC)
    found = sm.GLM(fit.y, fit.X, getattr(sm.families, family)()).fit(tol=1e-14)
    white = sm.GLM(fit.y, fit.X, getattr(sm.families, family)()).fit(tol=1e-14, cov_type="HC0")
    n, d = fit.X.shape
    h, residual = found.get_hat_matrix_diag(), found.resid_response
    for name, divided, factor in (
        ("HC0", 1.0, 1.0),
        ("HC1", 1.0, n / (n - d)),
        ("HC2", 1 - h, 1),
        ("HC3", (1 - h) ** 2, 1),
    ):
        bread = found.normalized_cov_params
        meat = fit.X.T @ ((residual**2 / divided)[:, None] * fit.X)
        errors = np.sqrt(factor * np.diagonal(bread @ meat @ bread))
        ours = np.sqrt(np.diagonal(robust_covariance(name, fit.bread, fit.total, d)[0]))
        assert close(ours, errors)
        assert close(ours, white.bse) == (name == "HC0")


def test_a_cluster_at_two_sites_is_refused_by_name():
    where = {"north": ["w1", "w2", "w1"], "south": ["w3", "w2"]}
    with pytest.raises(ValueError, match=r"w2.*north.*south"):
        check_clusters(where)
    check_clusters({"north": ["w1", "w1"], "south": ["w3"]})


def test_the_refit_is_monotone_and_says_when_it_cannot():
    kind, X, y = spector()
    fit = Fit((kind, X, y))
    walk, values = refit(fit.theta, fit.intercepts), []
    theta = next(walk)
    with contextlib.suppress(StopIteration):
        while True:
            answers = [derivatives(loss, theta) for loss in fit.losses]
            values.append(sum(answer.value for answer in answers))
            theta = walk.send(answers)
    assert values[0] < values[1]  # the full model fits better
    assert np.diff(values[1:]).max() <= 1e-12 * values[1]
    assert close(expit(fit.null[-1]), y.mean(), 1e-10)
    twice = [fit.kind.make_loss(np.column_stack([X, X[:, 0]]), y.astype(int))]
    with pytest.raises(ValueError, match="do not determine"):
        drive(refit(np.zeros(6), [1, 0, 0, 0, 0, 1]), [fit.kind.make_loss(X[:, [0, 1, 1, 2, 2, 0]], y.astype(int))])
    assert drive(refit(np.zeros(5), without(5, [4])), twice).theta[4] == 0.0
    perfect = [fit.kind.make_loss([[1.0], [-1.0]], [1, 0])]  # separable: the loss has no minimum
    with pytest.raises(ValueError, match="8 exchanges"):
        drive(refit([0.0], [True], most_exchanges=8), perfect)


def test_what_cannot_be_had_is_refused():
    kind, X, y = longley()
    alone, labels = np.vstack([X, np.eye(7)[0] * 1e9]), np.append(np.arange(15.0), np.nan)
    with pytest.raises(ValueError, match="a row alone"):
        Fit((kind, alone, np.append(y, 0.0)), robust=("HC3",))
    # those by leverage are left out then, and nothing else is
    kept = [with_all_robust(read_kind(one), lambda names: names) for one in (kind, "multinomial")]
    asks = lambda names: Fit((kind, alone, np.append(y, 0.0)), robust=names, clusters=np.arange(17)).total  # noqa: E731
    kept.append(tuple(with_all_robust(read_kind(kind), asks).meats))
    assert kept == [("HC0", "HC2", "HC3", "cluster"), ("HC0", "cluster"), ("HC0", "cluster")]
    fit, one = Fit((kind, X, y)), Fit((kind, X, y), robust=("cluster",), clusters=np.zeros(16, dtype=int))
    for call, words in (
        (lambda: with_all_robust(read_kind(kind), lambda names: Fit((kind, X, y), robust=names)), "clusters"),
        (lambda: Fit((kind, X, y), robust=("HC4",)), "robust"),
        (lambda: wald_test(fit.theta, fit.covariance, np.eye(7)[[0, 0]]), "L"),
        (lambda: likelihood_ratio_test(-1.0, 2, noise="none"), "reduced"),
        (lambda: Fit((kind, X, y), robust=("cluster",)), "clusters"),
        (lambda: Fit((kind, X, y), robust=("cluster",), clusters=labels), "clusters .*nan"),
        (lambda: Fit(anes96(), robust=("HC2",)), "HC2"),
        (lambda: robust_covariance("HC1", fit.bread, fit.total, 7), "HC1"),
        (lambda: fit.total + Fit((kind, X, y), robust=("HC0",)).total, "robust"),
        (lambda: robust_covariance("cluster", one.bread, replace(one.total, n_clusters=1), 7), "7 parameters"),
    ):
        with pytest.raises(ValueError, match=words):
            call()


def test_pearsons_residuals_far_out_are_none_where_the_label_is_right():
    """Both residual and variance underflow, and 0/0 would be no number; a wrong label is worth exp(f)."""
    for kind, theta, outputs in (
        ("logistic", [1.0], 1),
        ("multinomial", [1.0, 0.5], 2),
        ("softmax", [0.0, 1.0, 0.5], 3),
    ):
        row = read_kind(kind)
        right = row.make_loss([[800.0], [-800.0]], [1, 0], n_outputs=outputs)
        assert site_statistics(row, right, theta, np.zeros(len(theta))).pearson < 1e-100
        wrong = row.make_loss([[30.0]], [0], n_outputs=outputs)
        assert np.isclose(site_statistics(row, wrong, theta, np.zeros(len(theta))).pearson, np.exp(30.0), rtol=1e-5)
        # a larger one is not sent: by files it ended the run, as if the site had lied
        far = row.make_loss([[800.0]], [0], n_outputs=outputs)
        told = site_statistics(row, far, theta, np.zeros(len(theta)))
        assert told.pearson is None
        assert (told + told).require_possible().pearson is None
        assert goodness_of_fit(row, told + told, 1, 0, n_outputs=outputs).dispersion is None
        assert (
            unpack(SiteStatistics, *pack(told), QUESTIONS["statistics"].said, {"d": len(theta)}, is_own=True).pearson
            is None
        )
    counts = read_kind("poisson")
    away = site_statistics(counts, counts.make_loss([[800.0]], [2.0]), [1.0], [0.0])
    assert not away.is_finite
    assert site_statistics(counts, counts.make_loss([[-800.0]], [0.0]), [1.0], [0.0]).is_finite


def test_least_squares_without_an_intercept_has_the_zero_predictor_as_its_null():
    kind, X, y = longley()
    fit, found = Fit((kind, X[:, :3], y)), sm.OLS(y, X[:, :3]).fit()
    fit.total = replace(fit.total, null_loss=0.5 * float(y @ y))
    fit.intercepts = np.zeros(3, dtype=bool)
    g = fit.goodness()
    assert close(
        [g.r_squared, g.adjusted_r_squared, g.test.statistic], [found.rsquared, found.rsquared_adj, found.fvalue]
    )


def test_a_saturated_fit_claims_nothing():
    """As many coefficients as rows: no residual, no F, no dispersion, and no number that stands for them."""
    total = SiteStatistics(2, 2.0, 0.0, 0.0, 1.0, 0.0, np.log(2 * np.pi), 0.0)
    g = goodness_of_fit(read_kind("linear"), total, 2, 1, noise="estimated")
    assert (g.dispersion, g.test, g.adjusted_r_squared) == (None, None, None)
    assert g.log_likelihood == np.inf
