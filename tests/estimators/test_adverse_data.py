"""Data that break a fit by maximum likelihood: it equals the pooled fit, or says in words what is the matter."""

import warnings
from collections import Counter
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from scipy.special import expit
from sklearn.preprocessing import scale

from bayesadmm_np import RunError, Status
from bayesadmm_np.estimators import (
    FederatedGLM,
    FederatedLogisticRegression,
    FederatedPoissonRegressor,
    SeparationWarning,
    TableError,
    load_model,
    save_model,
    search,
)
from bayesadmm_np.glm import diagnosis, fit
from bayesadmm_np.glm import prior as stated
from bayesadmm_np.glm.diagnosis import Digits, Searched, Separation, diagnose_after
from bayesadmm_np.glm.questions import DerivativesQuestion
from bayesadmm_np.losses import Logistic, Poisson
from bayesadmm_np.splitting import newton
from oracles.adverse import pooled, problem
from oracles.separable import is_separated, walls_of

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
    assert model.n_rounds_ <= diagnosis.LONG + 2 + 10  # and some ten to the limit
    assert model.status_ is Status.NO_MAXIMUM
    early = model.fitted_
    monkeypatch.setattr(diagnosis, "LONG", 1000)
    monkeypatch.setattr(diagnosis, "STEEP", -np.inf)
    with pytest.warns(SeparationWarning, match="x0"):
        model.fit(X, y, client=np.arange(60) % 3)
    assert model.fitted_.findings == early.findings
    if kind == "logistic":
        assert model.n_rounds_ > 30  # the twin, which goes on


def test_a_long_fit_that_has_a_maximum_is_not_stopped(rng, monkeypatch):
    X, y = overlapping_by_one_row(rng)
    model = FederatedLogisticRegression().fit(X, y)
    assert model.n_rounds_ > diagnosis.LONG
    assert model.status_ is Status.CONVERGED
    coef = model.coef_
    monkeypatch.setattr(diagnosis, "LONG", 1000)
    assert np.array_equal(model.fit(X, y).coef_, coef)
    # the broken twin, that stops without a proof
    monkeypatch.setattr(diagnosis, "LONG", 6)
    monkeypatch.setattr(diagnosis, "STEEP", -np.inf)
    found = Searched(Separation(("x0",), (("x0", 1.0),), ("x0",), False), np.eye(model.fitted_.layout.dim)[:, :1])
    monkeypatch.setattr(search, "search", lambda known, sites: replace(known, searched=found))
    with pytest.warns(SeparationWarning):
        model.fit(X, y)
    assert model.status_ is Status.NO_MAXIMUM


# ----------------------------------------------------------------------------------------------------
# Offsets far from zero
# ----------------------------------------------------------------------------------------------------


def with_offset(kind, rng, mean):
    """Rows whose predictor is X @ (0.5, −0.3) + 0.2 + e at an intercept of 0.2 − mean and an offset of e + mean."""
    X, e = rng.standard_normal((60, 2)), 0.3 * rng.standard_normal(60)
    f = X @ [0.5, -0.3] + 0.2 + e
    y = (rng.random(60) < 1 / (1 + np.exp(-f))).astype(int) if kind == "logistic" else rng.poisson(np.exp(f))
    family = sm.families.Binomial() if kind == "logistic" else sm.families.Poisson()
    oracle = sm.GLM(y, sm.add_constant(X), family=family, offset=e).fit(tol=1e-14)
    return X, y, e + mean, oracle


@pytest.mark.parametrize("kind", ["logistic", "poisson"])
@pytest.mark.parametrize("mean", [-800.0, 20.0])
def test_a_constant_in_the_offset_is_the_intercepts(kind, mean, rng, tmp_path):
    """Within the bound that the fit states; the oracle has no constant; an ulp of 800 is 1e-13, some 1e-12 errors."""
    X, y, offset, oracle = with_offset(kind, rng, mean)
    model = FederatedGLM(kind).fit(X, y, client=np.arange(60) % 3, offset=offset)
    assert model.n_rounds_ <= 7
    intercept, *slopes = oracle.params
    bound = model.fitted_.distance()
    stated = bound.sd_units + 1e-10
    assert stated < 1e-6
    assert np.abs((model.coef_ - slopes) / oracle.bse[1:]).max() < stated
    assert abs(model.intercept_ - (intercept - mean)) / oracle.bse[0] < stated
    assert model.log_likelihood_ == pytest.approx(oracle.llf, rel=1e-12)
    rows = {row.name: row for row in model.summary().rows}
    assert rows["(intercept)"].coef == model.intercept_
    assert rows["x0"].std_err == pytest.approx(oracle.bse[1], rel=1e-7)  # statsmodels' are a step behind
    fitted = model.predict_proba(X, offset=offset)[:, 1] if kind == "logistic" else model.predict(X, offset=offset)
    rows_of = np.column_stack([X, np.ones(len(X))])
    # |Δf| is at most the Mahalanobis distance times the standard error of f; a mean changes by at most a factor e^|Δf|
    spread = np.sqrt(np.einsum("ij,jk,ik->i", rows_of, model.fitted_.covariance(), rows_of).max())
    np.testing.assert_allclose(fitted, oracle.fittedvalues, rtol=bound.mahalanobis * spread + 1e-10)
    # a file, and rows that are looked at again, know of it
    save_model(tmp_path / "model.npz", model.fitted_)
    loaded = load_model(tmp_path / "model.npz")
    assert np.array_equal(loaded.mean(), model.fitted_.mean())
    here = {name: np.flatnonzero(np.arange(60) % 3 == name) for name in range(3)}
    losses = {str(name): loaded.make_loss(X[i], y[i], None, offset[i]) for name, i in here.items()}
    assert loaded.check(losses).pooled < 1e-8
    assert max(loaded.check(losses).apart.values()) < 1e-8
    test = model.test_terms({"both": ["x0", "x1"]}, how="lr")[0]
    assert test.statistic == pytest.approx(2 * (oracle.llf - null_of(oracle)), rel=1e-6)


def null_of(oracle):
    model = oracle.model
    return sm.GLM(model.endog, np.ones(60), family=model.family, offset=model.offset).fit(tol=1e-14).llf


@pytest.mark.parametrize(
    ("kind", "mean"), [("logistic", -60.0), ("logistic", 800.0), ("poisson", 20.0), ("poisson", 800.0)]
)
def test_without_an_intercept_a_large_offset_is_fitted_or_named(kind, mean, rng):
    """A column of ones takes the constant up, unless rounding hides it."""
    X, y, offset, oracle = with_offset(kind, rng, mean)
    design, model = np.column_stack([np.ones(60), X]), FederatedGLM(kind, fit_intercept=False)
    if abs(mean) == 800.0:
        with pytest.raises((RunError, ValueError), match="offsets"):
            model.fit(design, y, client=np.arange(60) % 3, offset=offset)
        return
    model.fit(design, y, client=np.arange(60) % 3, offset=offset)
    found = np.ravel(model.coef_) + np.array([mean, 0.0, 0.0])
    assert np.abs((found - oracle.params) / oracle.bse).max() < 1e-6


# ----------------------------------------------------------------------------------------------------
# Columns that nearly say the same
# ----------------------------------------------------------------------------------------------------


def nearly_equal(rng, gap, kind):
    X = rng.standard_normal((60, 3))
    X[:, 2] = 1.0 + 2.0 * X[:, 0] + gap * rng.standard_normal(60)
    y = (rng.random(60) < 0.5).astype(int) if kind == "logistic" else rng.poisson(2.0, 60)
    return pd.DataFrame(X, columns=["dose", "age", "twice"]), y


@pytest.mark.parametrize("kind", ["logistic", "poisson"])
@pytest.mark.parametrize("gap", [1e-9, 1e-8])
def test_columns_too_nearly_dependent_are_named_with_what_to_do(kind, gap, rng):
    X, y = nearly_equal(rng, gap, kind)
    with pytest.raises(RunError, match=r"twice = 1 \+ 2·dose in every row, up to \d"):
        FederatedGLM(kind).fit(X, y, client=np.arange(60) % 3)
    # what it says helps
    assert FederatedGLM(kind, 1e-3, inference="likelihood").fit(X, y).status_ is Status.CONVERGED
    assert FederatedGLM(kind).fit(X[["dose", "age"]], y).status_ is Status.CONVERGED


@pytest.mark.parametrize("scale", [1e68, 1e-68, 1e150, 1e-150])
def test_columns_of_extreme_scale_are_fitted_without_a_warning_or_refused_by_name(scale, rng):
    """Warnings are errors here; the fit is that of the column itself."""
    X = rng.standard_normal((90, 2))
    y = (rng.random(90) < expit(X[:, 0])).astype(int)
    plain = FederatedGLM("logistic").fit(X, y, client=np.arange(90) % 3)
    if abs(np.log10(scale)) > 70:
        with pytest.raises(ValueError, match="column 'x1'"):
            FederatedGLM("logistic").fit(X * [1.0, scale], y, client=np.arange(90) % 3)
        return
    scaled = FederatedGLM("logistic").fit(X * [1.0, scale], y, client=np.arange(90) % 3)
    str(scaled.summary())
    assert scaled.coef_ * [1.0, scale] == pytest.approx(plain.coef_, rel=1e-6)


def test_a_dropped_column_is_not_said_to_be_equal_where_it_is_not(rng):
    X, y = nearly_equal(rng, 1e-12, "logistic")
    with pytest.warns(UserWarning, match=r"up to \de-13"):
        FederatedGLM("logistic").fit(X, y)
    X["twice"] = 1.0 + 2.0 * X["dose"]  # the twin: rounding alone
    with pytest.warns(UserWarning, match=r"twice = 1 \+ 2·dose in every row:"):
        FederatedGLM("logistic").fit(X, y)


# ----------------------------------------------------------------------------------------------------
# Least squares that sums cannot certify
# ----------------------------------------------------------------------------------------------------


def test_ill_conditioned_least_squares_has_its_goodness_and_says_which_digits_are_left(rng):
    X, _ = nearly_equal(rng, 1e-7, "linear")
    y = X.to_numpy() @ [1.0, 2.0, 3.0] + rng.standard_normal(60)
    with pytest.warns(UserWarning, match="triangular"):
        model = FederatedGLM("linear").fit(X, y, client=np.arange(60) % 3)
    design = sm.add_constant(X.to_numpy())
    oracle = sm.OLS(y, design).fit(method="qr")
    assert f"{oracle.rsquared:.4f}" in str(model.summary())
    # the condition of the columns is some 1e7: nine digits of a residual, and of a standard error
    found = np.append(model.intercept_, model.coef_)
    assert np.abs((found - oracle.params) / oracle.bse).max() < 1e-6
    digits = [f for f in model.fitted_.findings if isinstance(f, Digits)]
    assert all(f.of == "coefficients" for f in digits)
    triangle = np.linalg.qr(design, mode="r")  # statsmodels inverts RᵀR, and errs by a per cent
    errors = np.linalg.norm(np.linalg.inv(triangle), axis=1) * np.sqrt(oracle.mse_resid)
    np.testing.assert_allclose(np.sqrt(np.diag(model.covariance_))[:3], errors[1:], rtol=1e-6)
    # the twin: digits by the information's condition, which no triangular factor squares
    assert diagnose_after(model.fitted_.posterior.precision, list("abcd"))[-1].digits <= 2


# ----------------------------------------------------------------------------------------------------
# Weights, and sites that are away
# ----------------------------------------------------------------------------------------------------

KINDS = ["logistic", "poisson", "linear", "multinomial"]


def of_kind(kind, rng):
    X = rng.standard_normal((60, 2))
    f = X @ [0.5, -0.3]
    y = {
        "logistic": (rng.random(60) < 1 / (1 + np.exp(-f))).astype(int),
        "poisson": rng.poisson(np.exp(f)),
        "linear": f + rng.standard_normal(60),
        "multinomial": rng.integers(0, 3, 60),
    }[kind]
    return X, y


@pytest.mark.filterwarnings("ignore:There are as many coefficients as rows")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weight", [1e-12, 1e12])
def test_coefficients_do_not_depend_on_the_scale_of_weights(kind, weight, rng, monkeypatch):
    """Standard errors do, by its root."""
    X, y = of_kind(kind, rng)
    plain = FederatedGLM(kind).fit(X, y, client=np.arange(60) % 3)
    model = FederatedGLM(kind).fit(X, y, client=np.arange(60) % 3, sample_weight=np.full(60, weight))
    assert model.fitted_.holds
    errors = np.sqrt(np.diag(plain.covariance_))
    assert np.abs((model.posterior_.mean - plain.posterior_.mean) / errors).max() < 1e-6
    if kind != "linear":  # whose variance is estimated
        np.testing.assert_allclose(np.sqrt(np.diag(model.covariance_) * weight), errors, rtol=1e-6)
    # the twin: at the same residual in wide standard errors, and without a bound on these, the run stops far away
    monkeypatch.setattr(newton, "ERRORS", np.inf)
    monkeypatch.setattr(fit, "tolerance", lambda tol, designs: tol)
    twin = FederatedGLM(kind).fit(X, y, client=np.arange(60) % 3, sample_weight=np.full(60, weight))
    error = np.abs((twin.posterior_.mean - plain.posterior_.mean) / errors).max()
    assert error > 1e-6 or weight != 1e-12 or kind == "linear"


def test_weights_out_of_range_are_refused(rng):
    X, y = of_kind("logistic", rng)
    for weight in (1e-300, 1e-13, 1e13, 1e300):
        with pytest.raises(ValueError, match="sample_weight"):
            FederatedGLM("logistic").fit(X, y, sample_weight=np.full(60, weight))


@pytest.mark.parametrize("kind", ["logistic", "poisson"])
def test_a_likelihood_fit_keeps_the_answers_of_sites_that_come_in_turns(kind, rng):
    """One site is away every other round, or some site always is; one that never comes is waited for."""
    X, y = of_kind(kind, rng)
    plain = FederatedGLM(kind).fit(X, y, client=np.arange(60) % 3)

    def often(number, n_sites, rng):
        return np.arange(n_sites) != (0 if number % 2 else n_sites)

    def in_turns(number, n_sites, rng):
        return np.arange(n_sites) != number % n_sites

    def never(number, n_sites, rng):
        return np.arange(n_sites) != 0

    for participation in (often, in_turns):
        model = FederatedGLM(kind, participation=participation).fit(X, y, client=np.arange(60) % 3)
        np.testing.assert_allclose(model.coef_, plain.coef_, atol=1e-9)
    with pytest.warns(UserWarning, match="waits for the answers of 1 of 3"):
        FederatedGLM(kind, participation=never).fit(X, y, client=np.arange(60) % 3)


# ----------------------------------------------------------------------------------------------------
# Random problems
# ----------------------------------------------------------------------------------------------------


def judged(seed, **changes):
    """What a fit to a random problem is worth: "equal" to the oracle, "said" where it differs and says so, ..."""
    given = problem(seed)
    X, site, options = given.X, given.site, {"sample_weight": given.weights, "offset": given.offset, **changes}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            model = FederatedGLM(given.kind, fit_intercept=given.intercept).fit(X, given.y, client=site, **options)
        except (RunError, ValueError):
            return "refused"
    assert not [one for one in caught if issubclass(one.category, RuntimeWarning)], f"a warning leaks, seed {seed}"
    assert model.n_rounds_ <= 101
    fitted, oracle = model.fitted_, pooled(given)
    if any(isinstance(finding, Separation) for finding in fitted.findings):
        kept = slice(None) if given.weights is None else given.weights > 0
        design = X[kept]
        if given.intercept:
            design = np.column_stack([scale(design), np.ones(len(design))])
        design = np.linalg.qr(design)[0]  # a programme has one tolerance
        walls, _ = walls_of([LOSSES[given.kind](design, given.y[kept])])
        return "said" if is_separated(walls) else "silent"
    if oracle is None:  # QR finds no maximum
        distance = model.certificate_.distance
        return "proven" if fitted.holds and distance.rigorous and distance.sd_units < 1e-6 else "unknown"
    if np.abs((oracle.of(fitted) - oracle.theta) / oracle.errors).max() < 1e-6:
        return "equal"
    return "said" if caught or fitted.findings or not fitted.holds else "silent"


LOSSES = {"logistic": Logistic, "poisson": Poisson}


@pytest.mark.parametrize(
    "seeds", [[*range(40), 1372], pytest.param(range(70, 2000), marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_no_random_problem_is_fitted_wrongly_in_silence(seeds):
    """Within 1e-6 standard errors of the fit to all rows, or something is said; three in four are fitted.

    Where the oracle finds no maximum the certificate has proven that the fit is one, but for a few.
    """
    found = Counter(judged(seed) for seed in seeds)
    assert found["silent"] == 0, found
    assert found["equal"] > 0.75 * len(seeds)
    assert found["unknown"] < 0.03 * len(seeds)


@pytest.mark.parametrize("dropped", ["sample_weight", "offset"])
def test_a_fit_that_overlooks_an_argument_is_found_out(dropped):
    assert Counter(judged(seed, **{dropped: None}) for seed in range(25))["silent"] > 3


def coded(site, low, high):
    """Rows of a site with a target that it codes in its own way."""
    rng = np.random.default_rng(site)
    x = rng.normal(size=40)
    return {"x": x, "died": np.where(x + rng.normal(size=40) > 0, high, low)}


@pytest.mark.parametrize("other", [(1, 2), (-1, 1), ("no", "yes"), (0, 1)])
def test_a_target_coded_otherwise_at_a_site_is_refused_and_makes_no_third_class(other):
    tables = {"Basel": coded(0, 0, 1), "Bern": coded(1, *other)}
    X = np.concatenate([table["x"] for table in tables.values()])[:, None]
    y = np.concatenate([table["died"] for table in tables.values()])
    client = np.repeat(["Basel", "Bern"], 40)
    if other == (0, 1):  # the twin: the same codes are fitted
        assert FederatedLogisticRegression().fit(X, y, client).classes_.tolist() == [0, 1]
        return
    with pytest.raises(TableError, match=r"site 'B\w+': column 'died'"):
        FederatedLogisticRegression.from_formula("died ~ x", tables)
    with pytest.warns(UserWarning, match="are all of them meant"):  # of one array labels are what they are
        assert len(FederatedLogisticRegression().fit(X, y, client).classes_) > 2


def _beside_a_constant(seed=0, n=40):
    rng = np.random.default_rng(seed)
    y, z = (rng.random(n) < 0.4) * 1.0, rng.normal(size=n)
    return y, z, 10.0 ** rng.uniform(-8, 0, n), np.arange(n) % 4


def _intercept_error(constant):
    y, z, weights, site = _beside_a_constant()
    columns = z[:, None] if constant is None else np.column_stack([np.full(len(z), constant), z])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = FederatedLogisticRegression().fit(columns, y, client=site, sample_weight=weights)
    return model.summary().rows[-1].std_err


@pytest.mark.parametrize("constant", [0.1, 3.0, -7e5])
def test_a_constant_column_leaves_the_error_of_the_intercept_alone(constant):
    """Weighted centring leaves its rounding in the column: the constant, not what is left, says what holds it at 0.

    To 1e-8: the two fits end at different points within the tolerance 1e-8 of a residual.
    """
    assert _intercept_error(constant) == pytest.approx(_intercept_error(None), rel=1e-8)


def test_what_centring_leaves_of_a_constant_holds_nothing(monkeypatch):
    """Twin: at a precision of what is left of the column the intercept's error is that of the column's own.

    A table has a second guard: it takes no variance of a column that is held, which the twin does.
    """

    def about_the_centre(found, ask):
        answers = ask(found.problem, DerivativesQuestion(found.start))
        return np.diagonal(np.sum([one.hessian for one in answers], axis=0))

    monkeypatch.setattr(fit, "information_on", about_the_centre)
    assert _intercept_error(3.0) == pytest.approx(_intercept_error(None), rel=1e-8)
    whole = property(lambda model: model.posterior.covariance_matrix)
    monkeypatch.setattr("bayesadmm_np.estimators.fitted.FittedGLM.spread", whole)
    assert max(_intercept_error(constant) for constant in (0.1, 3.0)) > 1e3 * _intercept_error(None)


@pytest.mark.parametrize(("share", "is_near"), [(stated.LEAST, True), (stated.FLAT, False)], ids=["", "twin"])
def test_a_posteriors_nearly_flat_intercept_moves_no_slope_of_large_counts(rng, monkeypatch, share, is_near):
    """Counts of e^15 know their intercept to 1e-5, so a prior of 1e-8 of the information, about zero, weighs much.

    Derived: ε√I|m − b| standard errors, ε√I = 1e-7 and |m − b| < 1; the bound of the runs is 2e-6, and the posterior's
    mean differs from the mode by 3e-6. The twin's ε√I is 1e-3.
    """
    monkeypatch.setattr(stated, "LEAST", share)
    X, site = rng.normal([1.0, 0.0], 0.3, (3000, 2)), np.arange(3000) % 3
    y = rng.poisson(np.exp(15.0 + X @ [0.7, -0.5])).astype(float)
    plain = FederatedPoissonRegressor().fit(X, y, client=site)
    posterior = FederatedPoissonRegressor(1e-6, inference="posterior").fit(X, y, client=site)
    errors = np.array([row.std_err for row in plain.summary().rows])
    moved = np.append(posterior.coef_ - plain.coef_, posterior.intercept_ - plain.intercept_) / errors
    assert (np.abs(moved).max() < 1e-5) == is_near


@pytest.mark.parametrize("delta", [1.0, 1000.0])
def test_the_pull_of_a_prior_is_the_way_from_least_squares_in_its_standard_errors(delta, rng):
    """However large the prior's share; the twin, of first order in it, falls as the share grows."""
    X = rng.standard_normal((60, 2)) @ [[1.0, 0.8], [0.0, 0.6]]
    y = X @ [0.5, -0.3] + rng.standard_normal(60)
    held, free = (FederatedGLM("linear", prior, noise_variance=1.0).fit(X, y).fitted_ for prior in (delta, 0.0))
    q, prior = held.posterior, held.prior
    wanted = (q.mean - free.posterior.mean) / np.sqrt(free.posterior.variance)
    assert held.pull == pytest.approx(wanted, abs=1e-6)
    first_order = q.covariance_matrix @ (prior.precision @ (prior.mean - q.mean)) / np.sqrt(q.variance)
    assert abs(first_order - wanted).max() > 1e-3
    assert any(finding.code == "pull" for finding in held.findings) == bool((abs(wanted) > 0.5).any())
    few = FederatedGLM("linear", delta, noise_variance=1.0).fit(X[:1], y[:1]).fitted_
    assert np.isnan(few.pull[:2]).all()  # one row, three coefficients
