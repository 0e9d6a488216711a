"""Two-stage meta-analyses of the sites' own fits: against statsmodels' fits at each site, and metafor's formulas."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.optimize import minimize_scalar

from bayesadmm_np.estimators import (
    FederatedGLM,
    FederatedLinearRegression,
    FederatedLogisticRegression,
    FederatedPoissonRegressor,
    heterogeneity,
    load_model,
    save_model,
)
from bayesadmm_np.estimators.between_sites import SEPARATED, UNDETERMINED, differing_site
from bayesadmm_np.estimators.caveats import Caveat, SeparationWarning
from bayesadmm_np.estimators.summary import as_dict
from bayesadmm_np.glm.kinds import read_kind
from bayesadmm_np.glm.own_fit import own_fit
from oracles.refusals import assert_refused

sm = pytest.importorskip("statsmodels.api")


def two_stage(b, v):
    """Return the numbers of metafor's rma(b, v) with method FE, DL and REML, and of predict."""
    b, v = np.asarray(b), np.asarray(v)

    def pooled(tau2):
        w = 1 / (v + tau2)
        mean, se = (w * b).sum() / w.sum(), w.sum() ** -0.5
        reach = stats.norm.isf(0.025) * np.sqrt(se**2 + tau2)
        return mean, se, mean - reach, mean + reach

    def restricted(tau2):
        w = 1 / (v + tau2)
        return np.log(v + tau2).sum() + np.log(w.sum()) + (w * (b - pooled(tau2)[0]) ** 2).sum()

    w, df = 1 / v, len(b) - 1
    Q = (w * (b - pooled(0.0)[0]) ** 2).sum()
    dl = max(0.0, (Q - df) / (w.sum() - (w**2).sum() / w.sum()))
    most = 10 * np.ptp(b) ** 2
    grid = np.concatenate([[0.0], np.geomspace(1e-8, 1.0, 400) * most])
    place = int(np.argmin([restricted(tau2) for tau2 in grid]))
    ends = grid[max(place - 1, 0)], grid[min(place + 1, len(grid) - 1)]
    reml = minimize_scalar(restricted, bounds=ends, method="bounded", options={"xatol": 1e-13 * most}).x
    reml = reml if restricted(reml) < restricted(0.0) else 0.0
    return {"Q": Q, "I2": max(0.0, 1 - df / Q), "dl": dl, "reml": reml, "pooled": pooled}


def assert_two_stage(row, b, v, rtol=1e-6):
    """Hold a row to the formulas; a minimum of REML's flat criterion is known to about the root of rounding."""
    want = two_stage(b, v)
    assert np.allclose([one.coef for one in row.sites.values()], b, rtol=rtol, atol=1e-9)
    assert np.allclose([one.std_err for one in row.sites.values()], np.sqrt(v), rtol=rtol)
    assert np.isclose(row.Q.statistic, want["Q"], rtol=rtol, atol=1e-9)
    assert (row.Q.df, row.Q.df_residual) == (len(b) - 1, None)
    assert np.isclose(row.Q.p_value, stats.chi2.sf(want["Q"], len(b) - 1), rtol=1e-5, atol=1e-12)
    assert np.isclose(row.I_squared, want["I2"], rtol=rtol, atol=1e-8)
    assert np.isclose(row.tau_squared, want["dl"], rtol=rtol, atol=1e-9)
    assert np.isclose(row.tau_squared_reml, want["reml"], rtol=1e-4, atol=1e-6 * np.max(v))
    fixed = want["pooled"](0.0)
    assert np.allclose([row.fixed.coef, row.fixed.std_err], fixed[:2], rtol=rtol, atol=1e-9)
    for found, tau2 in ((row.random_dl, row.tau_squared), (row.random, row.tau_squared_reml)):
        mean, se, *prediction = want["pooled"](tau2)
        assert np.allclose([found.pooled.coef, found.pooled.std_err], [mean, se], rtol=rtol, atol=1e-9)
        assert np.allclose(found.prediction, prediction, rtol=rtol, atol=1e-9)
        assert np.isclose(found.pooled.high, mean + stats.norm.isf(0.025) * se, rtol=rtol, atol=1e-9)


def assert_multivariate(found, own, covariances):
    """Hold the test of all coefficients to generalised least squares; `own` has a name and value by site."""
    names = [row.name for row in found.coefficients]
    rows, values, weights = [], [], []
    for site, estimates in own.items():
        there = [name for name in names if name in estimates]
        rows.append(np.eye(len(names))[[names.index(name) for name in there]])
        values.append(np.array([estimates[name] for name in there]))
        weights.append(np.linalg.inv(covariances[site].loc[there, there].to_numpy()))
    precision = sum(E.T @ W @ E for E, W in zip(rows, weights, strict=True))
    linear = sum(E.T @ W @ b for E, W, b in zip(rows, weights, values, strict=True))
    beta = np.linalg.solve(precision, linear)
    Q = sum((b - E @ beta) @ W @ (b - E @ beta) for E, W, b in zip(rows, weights, values, strict=True))
    assert np.isclose(found.test.statistic, Q, rtol=1e-6, atol=1e-9)
    assert found.test.df == sum(map(len, values)) - len(names)


# ----------------------------------------------------------------------------------------------------
# Published numbers
# ----------------------------------------------------------------------------------------------------

BCG = np.array(  # metafor's dat.bcg: cases and others, of the vaccinated and of the controls
    [
        (4, 119, 11, 128),
        (6, 300, 29, 274),
        (3, 228, 11, 209),
        (62, 13536, 248, 12619),
        (33, 5036, 47, 5761),
        (180, 1361, 372, 1079),
        (8, 2537, 10, 619),
        (505, 87886, 499, 87892),
        (29, 7470, 45, 7232),
        (17, 1699, 65, 1600),
        (186, 50448, 141, 27197),
        (5, 2493, 3, 2338),
        (27, 16886, 29, 17825),
    ]
)


def bcg(kind):
    """Rows whose own fits are the trials': log odds ratios of rows with weights, log rate ratios of counts."""
    trial = np.repeat([f"{k:02d}" for k in range(13)], 4)  # sites are in the order of their names
    vaccine, case = np.tile([1.0, 1.0, 0.0, 0.0], 13), np.tile([1, 0, 1, 0], 13)
    if kind == "logistic":
        return FederatedLogisticRegression().fit(vaccine[:, None], case, client=trial, sample_weight=BCG.ravel())
    total = np.repeat(BCG.reshape(13, 2, 2).sum(axis=2).ravel(), 2)
    few = case == 1
    return FederatedPoissonRegressor().fit(vaccine[few, None], BCG.ravel()[few], client=trial[few], exposure=total[few])


def test_the_trials_of_bcg_have_the_numbers_of_metafor():
    """rma(measure="OR", ai=tpos, bi=tneg, ci=cpos, di=cneg, data=dat.bcg), with method "DL" and "FE", as published."""
    row = heterogeneity(bcg("logistic")).coefficients[0]
    assert (round(row.Q.statistic, 4), row.Q.df) == (163.1649, 12)
    assert round(row.tau_squared_reml, 4) == 0.3378
    mean = row.random.pooled
    assert [round(value, 4) for value in (mean.coef, mean.std_err, mean.low, mean.high)] == [
        -0.7452,
        0.1860,
        -1.1098,
        -0.3806,
    ]
    assert (round(row.tau_squared, 4), round(row.random_dl.pooled.coef, 4)) == (0.3663, -0.7474)
    odds = np.log(BCG[:, 0] * BCG[:, 3] / (BCG[:, 1] * BCG[:, 2]))
    assert_two_stage(row, odds, (1.0 / BCG).sum(axis=1))
    # rates: another measure, by Poisson regression with an exposure
    rates = np.log(BCG[:, 0] / BCG[:, :2].sum(axis=1)) - np.log(BCG[:, 2] / BCG[:, 2:].sum(axis=1))
    assert_two_stage(heterogeneity(bcg("poisson")).coefficients[0], rates, 1 / BCG[:, 0] + 1 / BCG[:, 2])
    # the risk ratios of the manual's first example: rma(yi, vi)
    risks = 1 / BCG[:, 0] - 1 / BCG[:, :2].sum(axis=1) + 1 / BCG[:, 2] - 1 / BCG[:, 2:].sum(axis=1)
    manual = two_stage(rates, risks)
    assert [round(value, 4) for value in (manual["Q"], manual["dl"], manual["reml"])] == [152.2330, 0.3088, 0.3132]
    assert [round(value, 4) for value in manual["pooled"](manual["reml"])] == [-0.7145, 0.1798, -1.8667, 0.4376]


# ----------------------------------------------------------------------------------------------------
# Generated sites
# ----------------------------------------------------------------------------------------------------

FAMILIES = {"logistic": sm.families.Binomial(), "poisson": sm.families.Poisson(), "linear": sm.families.Gaussian()}
TROUBLES = ("none", "constant", "zero", "collinear", "separated", "one class", "few rows")


def generated(kind, n_sites, trouble, seed):
    """Tables of sites with other baselines and slopes; at the second something is wrong with column b."""
    rng = np.random.default_rng([seed, n_sites, TROUBLES.index(trouble)])
    tables = {}
    for k in range(n_sites):
        n = 1 if trouble == "few rows" and k == 1 else int(rng.integers(80, 160))
        part = pd.DataFrame({"a": rng.normal(1.0, 2.0, n), "b": (rng.random(n) < 0.3) * 1.0, "c": rng.random(n)})
        part["days"], part["w"] = rng.uniform(-0.2, 0.2, n), rng.integers(1, 4, n) * 1.0
        f = (
            rng.normal(0, 0.7)
            + part["days"]
            + part[["a", "b", "c"]] @ (np.array([0.3, -0.6, 0.4]) + rng.normal(0, 0.1, 3))
        )
        if kind == "logistic":
            part["y"] = (rng.random(n) < 1 / (1 + np.exp(-f))).astype(float)
        else:
            part["y"] = rng.poisson(np.exp(f)).astype(float) if kind == "poisson" else f + rng.normal(size=n)
        if k == 1 and trouble in ("constant", "zero"):
            part["b"] = float(trouble == "constant")
        elif k == 1 and trouble == "collinear":
            part["b"] = 2 * part["a"] + 1
        elif k == 1 and trouble == "separated":
            part.loc[part["b"] == 1, "y"] = 0.0
        elif k == 1 and trouble == "one class":
            part["y"] = 0.0
        tables[f"s{k}"] = part
    return tables


def by_statsmodels(table, kind, intercept, is_weighted):
    """Return estimates and covariance of a site's determined coefficients, and what is lost to separation."""
    columns, lost = ["a", "b", "c", *[intercept] * bool(intercept)], set()
    X = table[["a", "b", "c"]].assign(**{intercept: 1.0} if intercept else {})
    used = np.ones(len(table), dtype=bool)
    if kind != "linear" and set(table["b"]) == {0.0, 1.0} and not table["y"][table["b"] == 1].any():
        used, lost = (table["b"] == 0).to_numpy(), {"b"}  # a separation along b fits the other rows perfectly
    if len(table) == 1 or (kind != "linear" and not table["y"].any()):
        return pd.Series(dtype=float), pd.DataFrame(), set(columns)
    # what has a number: a coefficient whose column is outside the span of the others
    rank = np.linalg.matrix_rank(X[used])
    known = [
        name
        for name in columns
        if name not in lost and np.linalg.matrix_rank(X.loc[used].drop(columns=name)) == rank - 1
    ]
    basis = [*known]
    for name in columns:
        if name not in basis and np.linalg.matrix_rank(X.loc[used, [*basis, name]]) == len(basis) + 1:
            basis.append(name)
    part = table[used]
    weights = part["w"] if is_weighted else None
    fit = sm.GLM(part["y"], X.loc[used, basis], FAMILIES[kind], offset=part["days"], freq_weights=weights).fit(
        tol=1e-13, maxiter=200
    )
    return fit.params[known], fit.cov_params().loc[known, known], lost


def variations():
    for kind in FAMILIES:
        for trouble in TROUBLES:
            if kind != "linear" or trouble not in ("separated", "one class"):
                yield kind, trouble


@pytest.mark.parametrize(("kind", "trouble"), [*variations()])
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")
def test_generated_sites_have_the_numbers_of_an_independent_two_stage_analysis(kind, trouble, tmp_path):
    """Two to five sites; weights or not; one intercept, one a site, or none; from the estimator and from a file."""
    compared = 0
    for n_sites, design in ((2, "1"), (3, "site"), (4, "0"), (5, "1")):
        tables = generated(kind, n_sites, trouble, 7)
        is_weighted = n_sites in (3, 5)
        formula = "y ~ a + b + c + offset(days)" + " + 0" * (design == "0")
        model = FederatedGLM.from_formula(
            formula,
            tables,
            kind=kind,
            weights="w" if is_weighted else None,
            site_intercepts=design == "site",
        )
        intercept = "" if design == "0" else "(intercept)"
        own, covariances, lost = {}, {}, {}
        for site, table in tables.items():
            own[site], covariances[site], lost[site] = by_statsmodels(table, kind, intercept, is_weighted)
        if n_sites == 2 and trouble in ("one class", "few rows"):
            with pytest.raises(ValueError, match="two sites determine, got site s1: "):
                heterogeneity(model)
            continue
        path = tmp_path / f"{n_sites}.npz"
        save_model(path, model.fitted_)
        for told in (model, load_model(path)):
            found = heterogeneity(told)
            names = ["a", "b", "c", *["(intercept)"] * (design == "1")]
            shared = [name for name in names if sum(name in one for one in own.values()) > 1]
            assert [row.name for row in found.coefficients] == shared
            for row in found.coefficients:
                there = [site for site in tables if row.name in own[site]]
                assert list(row.sites) == there
                v = [covariances[site].loc[row.name, row.name] for site in there]
                assert_two_stage(row, [own[site][row.name] for site in there], v, rtol=2e-6)
                reasons = {one.site: one.reason for one in found.left_out if row.name in one.names}
                assert set(reasons) == set(tables) - set(there)
                for site, reason in reasons.items():
                    if kind != "linear" and trouble != "few rows":
                        assert reason == (SEPARATED if row.name in lost[site] else UNDETERMINED), (site, row.name)
                compared += 1
            if design != "site":
                assert_multivariate(found, own, covariances)
            assert found.test.df == sum(row.Q.df for row in found.coefficients)
    assert compared >= 16


def classes(n_sites=3, n=150, seed=3):
    rng = np.random.default_rng(seed)
    X, site = rng.normal(size=(n_sites * n, 2)), np.repeat(np.arange(n_sites), n)
    f = np.column_stack([0 * site, 0.5 * site + X @ [0.8, -0.3], 0.2 - 0.4 * site + X @ [-0.5, 0.4]])
    return X, np.argmax(f + rng.gumbel(size=f.shape), axis=1), site


@pytest.mark.parametrize("lacks", [None, 0, 1, 2])
def test_a_class_that_a_site_lacks_is_left_out_there_and_the_other_is_compared(lacks):
    """Three classes: a site without one is a logistic regression of the two others, and without the first nothing."""
    X, y, site = classes()
    used = ~((site == 1) & (y == lacks))
    X, y, site = X[used], y[used], site[used]
    found = heterogeneity(FederatedGLM("softmax").fit(X, y, client=site))
    assert found.test.df == {None: 12, 0: 6}.get(lacks, 9)
    own = {}
    for k in range(3):
        here = site == k
        if lacks == 0 and k == 1:
            continue
        fit = sm.MNLogit(y[here], sm.add_constant(X[here], prepend=False)).fit(disp=0, method="newton", tol=1e-12)
        for j, label in enumerate(sorted({*y[here]} - {0})):
            own[k, label] = np.asarray(fit.params)[:, j], np.asarray(fit.bse)[:, j]
    for place, row in enumerate(found.coefficients):
        label, column = 1 + place // 3, place % 3
        there = [k for k in range(3) if (k, label) in own]
        values, errors = ([own[k, label][i][column] for k in there] for i in (0, 1))
        assert_two_stage(row, values, np.square(errors))
    assert [(one.site, one.reason) for one in found.left_out] == [(1, SEPARATED)] * (lacks is not None)


def test_a_coefficient_without_an_estimate_is_not_compared_and_the_others_are():
    """Separated in all rows together, and so at every site; by hand the others' fits are those of the other rows."""
    tables = generated("logistic", 3, "none", 1)
    for part in tables.values():
        part.loc[part["b"] == 1, "y"] = 1.0
    with pytest.warns(SeparationWarning):
        model = FederatedLogisticRegression.from_formula("y ~ a + b", tables)
    found = heterogeneity(model)
    assert found.not_compared == ("b",)
    fits = [
        sm.Logit(part["y"], sm.add_constant(part["a"])).fit(disp=0)
        for part in (part[part["b"] == 0] for part in tables.values())
    ]
    assert_two_stage(found.coefficients[0], [fit.params["a"] for fit in fits], [fit.bse["a"] ** 2 for fit in fits])


# ----------------------------------------------------------------------------------------------------
# The size of the tests
# ----------------------------------------------------------------------------------------------------


def drawn(rng, baselines=(-2.0, 0.0, 0.4), n=400):
    """Rows of sites with one slope and these baselines (risks of some 15, 50 and 60 %)."""
    x, site = rng.normal(size=n * len(baselines)), np.repeat(np.arange(len(baselines)), n)
    y = rng.random(x.size) < 1 / (1 + np.exp(-(0.8 * x + np.array(baselines)[site])))
    return x, y.astype(float), site


def own_slopes(x, y, site):
    """Return slope and variance of each site by the own fits of the library."""
    kind, found = read_kind("logistic"), []
    for k in np.unique(site):
        here = site == k
        loss = kind.make_loss(np.column_stack([x[here], np.ones(here.sum())]), y[here])
        fit = own_fit(kind, loss, np.ones(2))[0]
        found.append((fit.mean[0], float((fit.combine(np.eye(2)[:1])[2] ** 2).sum())))
    return np.array(found).T


def one_step(x, y, site):
    """The twin: slopes by one Newton step from the pooled fit, as a site's factor has them."""
    X = np.column_stack([x, np.ones(x.size)])
    theta, found = sm.Logit(y, X).fit(disp=0).params, []
    for k in np.unique(site):
        loss = read_kind("logistic").make_loss(X[site == k], y[site == k])
        inverse = np.linalg.inv(loss.hessian(theta))
        found.append(((theta - inverse @ loss.gradient(theta))[0], inverse[0, 0]))
    return np.array(found).T


def rejected(slopes, n_draws, seed, **sites):
    """Return the share of draws whose Q of the slope has P < .05."""
    rng = np.random.default_rng(seed)
    Q = [two_stage_q(*slopes(*drawn(rng, **sites))) for _ in range(n_draws)]
    return float(np.mean(np.array(Q) > stats.chi2.isf(0.05, 2)))


def two_stage_q(b, v):
    return float(((b - (b / v).sum() / (1 / v).sum()) ** 2 / v).sum())


def test_equal_slopes_are_rejected_as_often_as_the_level_says():
    """200 draws at 5 %: a share of .05 ± .015, three of them; one Newton step from the pooled fit fails the same."""
    assert abs(rejected(own_slopes, 200, 1) - 0.05) < 0.047
    assert rejected(one_step, 200, 1, baselines=(-3.5, 0.0, 0.5), n=1000) > 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("baselines", "n"),
    [((0.0, 0.0, 0.0), 400), ((-2.0, 0.0, 0.4), 400), ((-2.0, -1.0, 2.0), 400), ((-3.5, 0.0, 0.5), 1000)],
)
def test_the_size_is_that_of_the_level_to_one_per_cent(baselines, n):
    """Of 4000 draws 5.3, 4.5, 4.9 and 5.1 %: ±.01 is three deviations. By one step 4.3, 23, 69 and 100 % of 1000."""
    assert abs(rejected(own_slopes, 4000, 2, baselines=baselines, n=n) - 0.05) < 0.0103


# ----------------------------------------------------------------------------------------------------
# Units, quasi-likelihood, refusals
# ----------------------------------------------------------------------------------------------------


def linear(seed=0, apart=0.5, n=60):
    rng = np.random.default_rng(seed)
    X, site = rng.normal([0.0, 3.0], size=(n, 2)), np.arange(n) % 3
    beta = np.array([1.0, -0.5]) + apart * rng.normal(size=(3, 2))
    return X, 2.0 + (X * beta[site]).sum(axis=1) + rng.normal(size=n), site


def fitted(X, y, site=None, **settings):
    return FederatedLinearRegression(**settings).fit(X, y, client=site).fitted_


@pytest.mark.parametrize("unit", [2.0**-200, 2.0**200])
def test_numbers_between_sites_do_not_depend_on_units(unit):
    """Squares of the weights of such columns are no floats; units of powers of two change no digit."""
    X, y, site = linear(1, apart=0.8)
    known, found = (heterogeneity(fitted(X * scale, y, site)) for scale in (1.0, unit))
    assert np.isclose(found.test.statistic, known.test.statistic, rtol=1e-9)
    known, found = known.coefficients[0], found.coefficients[0]
    assert np.isclose(found.Q.statistic, known.Q.statistic, rtol=1e-9)
    for name in ("tau_squared", "tau_squared_reml"):
        assert np.isclose(getattr(found, name) * unit * unit, getattr(known, name), rtol=1e-9)
    assert np.isclose(found.random.prediction[1] * unit, known.random.prediction[1], rtol=1e-9)


def test_the_test_of_all_does_not_depend_on_the_origin_and_a_known_variance_is_taken():
    X, y, site = linear(2)
    one, other = (heterogeneity(fitted(rows, y, site)) for rows in (X, X * [1.0, 100.0] + 7.0))
    assert np.isclose(one.test.statistic, other.test.statistic, rtol=1e-8)
    # the intercept is another one: where other columns are zero
    assert not np.isclose(one.coefficients[2].Q.statistic, other.coefficients[2].Q.statistic, rtol=1e-2)
    told = heterogeneity(fitted(X, y, site, noise_variance=4.0)).coefficients[0]
    fits = [sm.OLS(y[site == k], sm.add_constant(X[site == k])).fit() for k in range(3)]
    assert_two_stage(told, [fit.params[1] for fit in fits], [4.0 * fit.normalized_cov_params[1, 1] for fit in fits])


def test_weights_of_variances_and_several_targets_have_each_sites_own_residual_variance():
    """Analytic weights: R's lm(weights=) at each site. Two targets share a variance, as they do in the pooled fit."""
    X, y, site = linear(5, n=90)
    w = np.random.default_rng(5).uniform(0.5, 2.0, 90)
    row = heterogeneity(
        FederatedLinearRegression(weight_meaning="analytic").fit(X, y, client=site, sample_weight=w)
    ).coefficients[1]
    fits = [sm.WLS(y[site == k], sm.add_constant(X[site == k]), w[site == k]).fit() for k in range(3)]
    assert_two_stage(row, [fit.params[2] for fit in fits], [fit.bse[2] ** 2 for fit in fits])
    both = np.column_stack([y, np.cos(y)])
    found = heterogeneity(FederatedLinearRegression().fit(X, both, client=site))
    for place, row in enumerate(found.coefficients):
        each = [
            [sm.OLS(column[site == k], sm.add_constant(X[site == k], prepend=False)).fit() for column in both.T]
            for k in range(3)
        ]
        j = place % 3
        v = [np.mean([fit.scale for fit in own]) * own[0].normalized_cov_params[j, j] for own in each]
        assert_two_stage(row, [own[place // 3].params[j] for own in each], v)


def test_what_cannot_be_compared_is_refused_and_sites_left_out_are_named():
    X, y, site = linear(3)
    names = np.array(["north", "south", "west"])[site]
    names[:2] = "tiny"
    found = heterogeneity(fitted(X, y, names))
    assert [one.site for one in found.left_out] == ["tiny"]
    assert found.test.df == 6
    assert "Without site tiny: " in str(found)
    with pytest.raises(ValueError, match="two sites determine"):
        heterogeneity(fitted(X, y))
    model = fitted(X, y, site)
    posterior = replace(model, criterion=replace(model.criterion, inference="posterior"))
    with pytest.raises(ValueError, match="not: posterior"):
        heterogeneity(posterior)
    assert_refused([(lambda: heterogeneity("a model"), "model")])


def test_heterogeneity_of_a_quasi_likelihood_takes_each_sites_dispersion():
    """The twin, unscaled, finds sites that disagree."""
    rng = np.random.default_rng(18)
    X, site = rng.standard_normal((600, 2)), np.arange(600) % 3
    y = rng.poisson(rng.gamma(0.4, np.exp(1 + 0.3 * X[:, 0]) / 0.4))
    model = FederatedPoissonRegressor().fit(X, y, client=site).fitted_
    plain, quasi = heterogeneity(model), heterogeneity(model, covariance="quasi")
    fits = [sm.GLM(y[site == k], sm.add_constant(X[site == k]), FAMILIES["poisson"]).fit(scale="X2") for k in range(3)]
    assert min(fit.scale for fit in fits) > 2
    assert_two_stage(quasi.coefficients[0], [fit.params[1] for fit in fits], [fit.bse[1] ** 2 for fit in fits])
    assert plain.test.p_value < 1e-3 < 0.01 < quasi.test.p_value
    assert as_dict(model, covariance="quasi")["heterogeneity"]["test"]["statistic"] == quasi.test.statistic
    labels = FederatedLogisticRegression().fit(X, y > 1, client=site).fitted_
    assert_refused([(lambda: heterogeneity(labels, covariance="quasi"), "covariance")])


# ----------------------------------------------------------------------------------------------------
# A site that differs, in the table
# ----------------------------------------------------------------------------------------------------


def hospitals(n_sites, flipped=(), baselines=0.0):
    rng = np.random.default_rng(3)
    X, site = rng.normal(size=(200 * n_sites, 2)), np.repeat(np.arange(n_sites), 200)
    y = rng.random(len(X)) < 1.0 / (1.0 + np.exp(-X @ [1.0, -0.5] - baselines * site))
    return X, np.where(np.isin(site, flipped), ~y, y).astype(int), site


@pytest.mark.parametrize("n_sites", [2, 4])
def test_a_site_with_its_outcome_the_other_way_round_is_named_in_the_table(n_sites):
    """Twins: the same rows as they are, and sites that differ as hospitals do, or in their baseline alone."""
    X, y, site = hospitals(n_sites, flipped=[1])
    model = FederatedLogisticRegression().fit(X, y, client=site)
    found = differing_site(model.fitted_)
    assert found.sites == ((0, 1) if n_sites == 2 else (1,))
    assert found.test.df == 2
    assert str(found) in model.summary().note
    tables = {f"s{k}": pd.DataFrame({"a": X[site == k, 0], "b": X[site == k, 1], "y": y[site == k]}) for k in {*site}}
    apart = FederatedLogisticRegression.from_formula("y ~ a + b", tables, site_intercepts=True)
    assert "differ" in apart.summary().note
    for baselines in (0.0, 0.7):
        X, y, site = hospitals(n_sites, baselines=baselines)
        agreed = FederatedLogisticRegression().fit(X, y, client=site)
        assert differing_site(agreed.fitted_) is None
        assert "differ" not in agreed.summary().note
    X, y, site = linear(apart=0.1)
    assert differing_site(fitted(X, y, site)) is None


def test_the_statistic_of_a_site_that_differs_is_walds_of_slopes():
    """The others together are the fixed-effect estimate of their own slopes, each beside its own intercept."""
    X, y, site = linear(4, apart=3.0, n=300)
    found = differing_site(fitted(X, y, site))
    (k,) = found.sites
    fits = [sm.OLS(y[site == j], sm.add_constant(X[site == j])).fit() for j in range(3)]
    b, V = [fit.params[1:] for fit in fits], [fit.cov_params()[1:, 1:] for fit in fits]
    others = [j for j in range(3) if j != k]
    spread = np.linalg.inv(sum(np.linalg.inv(V[j]) for j in others))
    apart = b[k] - spread @ sum(np.linalg.solve(V[j], b[j]) for j in others)
    W = apart @ np.linalg.solve(V[k] + spread, apart)
    assert np.isclose(found.test.statistic, W, rtol=1e-8)
    assert np.isclose(found.test.p_value, 3 * stats.chi2.sf(W, 2), rtol=1e-6)
    assert differing_site(fitted(X[:60], y[:60], site[:60])) is None  # 20 rows for 3 coefficients


def test_overdispersed_counts_and_rounding_differ_from_nobody():
    """Twin: counts that vary as the model says."""
    rng = np.random.default_rng(55)
    X, site = rng.standard_normal((300, 2)), np.arange(300) % 3
    rate = np.exp(1.5 + np.where(site == 1, -0.3, 0.3) * X[:, 0])
    wide = FederatedGLM("poisson").fit(X, rng.poisson(rng.gamma(0.25, rate / 0.25)), client=site)
    assert "differ" not in wide.summary().note
    assert "differ" in FederatedGLM("poisson").fit(X, rng.poisson(rate), client=site).summary().note
    with pytest.warns(Caveat, match="perfect"):
        assert "differ" not in FederatedGLM("linear").fit(X, 3.0 + 2.0 * X[:, 0], client=site).summary().note
