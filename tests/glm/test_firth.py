"""Firth's penalty gives the mode of the likelihood times √det I, by closed forms and by maximisation of pooled rows."""

import warnings
from functools import partial

import mpmath
import numpy as np
import pytest
from scipy.optimize import minimize

from bayesadmm_np._numerics import driven
from bayesadmm_np.estimators import (
    FederatedGLM,
    FederatedLogisticRegression,
    SeparationWarning,
    load_model,
    save_model,
)
from bayesadmm_np.families.coordinates import Natural
from bayesadmm_np.glm.firth import FirthQuestion, firth, firth_answer
from bayesadmm_np.losses import Logistic, Poisson, Softmax
from oracles.refusals import assert_refused

CLOSE = 1e-9
"""Two steps converge to tol = 1e-10 standard errors, which are of order 1 here."""


def fit_firth(losses, **options):
    """Fit to sites whose rows are in this process."""
    return driven(firth(np.zeros(losses[0].dim), **options), lambda asked: [firth_answer(one, asked) for one in losses])


def problem(seed, n_sites=3):
    """Return the sites' losses of a random problem, every other one of counts."""
    rng = np.random.default_rng(seed)
    n, p = int(rng.integers(9, 60)), int(rng.integers(1, 5))
    X = np.column_stack([rng.normal(size=(n, p)), np.ones(n)])
    predictor = X @ rng.normal(size=p + 1)
    if seed % 2:
        y, make = rng.poisson(np.exp(predictor / 2.0)), Poisson
    else:
        y, make = rng.random(n) < 1.0 / (1.0 + np.exp(-2.0 * predictor)), Logistic
    return [make(X[k::n_sites], y[k::n_sites].astype(float)) for k in range(n_sites)]


def two_by_two(failures, successes):
    """Return a loss of two groups, with columns for both."""
    rows = [(group, y) for group in (0, 1) for y, n in ((0, failures[group]), (1, successes[group])) for _ in range(n)]
    groups, y = np.array(rows).T
    return Logistic(np.column_stack([groups == 0, groups == 1]).astype(float), y)


@pytest.mark.parametrize(("failures", "successes"), [((3, 5), (4, 2)), ((0, 5), (4, 2)), ((0, 5), (4, 0))])
def test_tables_get_half_a_patient_more_in_each_cell(failures, successes):
    """As in a saturated model log det I is Σ log n_g p_g (1 − p_g); also with empty cells."""
    expected = np.log((np.array(successes) + 0.5) / (np.array(failures) + 0.5))
    assert np.abs(fit_firth([two_by_two(failures, successes)]).mean - expected).max() < CLOSE


def test_rates_get_half_an_event_more():
    """A Poisson rate over exposure E with s events is (s + ½)/E, also with none."""
    exposure, ward = np.array([1.0, 2.0, 3.0, 4.0]), np.array([0, 0, 1, 1])
    X = np.column_stack([ward == 0, ward == 1]).astype(float)
    losses = [Poisson(X[k::2], np.array([2.0, 5.0, 0.0, 0.0])[k::2], offset=np.log(exposure)[k::2]) for k in range(2)]
    assert np.abs(fit_firth(losses).mean - np.log([7.5 / 3.0, 0.5 / 7.0])).max() < CLOSE


def objective(losses, theta):
    """Return Σ ℓ_k − ½ log det Σ I_k from pooled rows; θ may be complex."""
    X, y = np.vstack([loss.X for loss in losses]), np.concatenate([loss.y for loss in losses])
    predictor = X @ theta
    if isinstance(losses[0], Poisson):
        rate = np.exp(predictor)
        value, bend = np.sum(rate - y * predictor), rate
    else:
        p = 1.0 / (1.0 + np.exp(-predictor))
        value, bend = -np.sum(np.log(np.where(y > 0, p, 1.0 - p))), p * (1.0 - p)
    return value - 0.5 * np.log(np.linalg.det((X.T * bend) @ X))


def slope(losses, theta):
    """Differentiate by a complex step, which has no cancellation."""
    return np.array([objective(losses, theta + 1e-30j * unit).imag for unit in np.eye(theta.size)]) / 1e-30


def test_the_mode_is_that_of_a_direct_maximisation():
    """The slope of the objective over pooled rows is that of the tolerance, and a general minimiser finds no less."""
    for losses in map(problem, range(12)):
        found = fit_firth(losses)
        left = slope(losses, found.mean)
        assert left @ np.linalg.solve(found.information, left) < (2e-10) ** 2
        assert found.value - found.penalty == pytest.approx(objective(losses, found.mean), abs=1e-11)
        elsewhere = minimize(partial(objective, losses), np.zeros(found.mean.size), method="BFGS")
        assert found.value - found.penalty <= elsewhere.fun + 1e-11


def test_digits_of_a_mode_by_mpmath():
    """One separated covariate, thirty digits: the mode is known to 1e-10 standard errors."""
    x, y = [-1.5, -0.5, 0.25, 1.0, 2.0], [0, 0, 0, 1, 1]
    with mpmath.workdps(30):

        def score(slope, level):
            p = [1 / (1 + mpmath.exp(-(slope * a + level))) for a in x]
            w = [q * (1 - q) for q in p]
            s0, s1, s2 = (mpmath.fsum(b * a**k for a, b in zip(x, w, strict=True)) for k in range(3))
            det = s0 * s2 - s1**2
            h = [b * (s2 - 2 * s1 * a + s0 * a**2) / det for a, b in zip(x, w, strict=True)]
            u = [b - q + g * (mpmath.mpf(1) / 2 - q) for b, q, g in zip(y, p, h, strict=True)]
            return mpmath.fsum(a * b for a, b in zip(x, u, strict=True)), mpmath.fsum(u)

        exact = np.array(mpmath.findroot(score, (1.5, -1.0)), dtype=float).ravel()
    found = fit_firth([Logistic(np.column_stack([x, np.ones(5)]), y)])
    errors = np.sqrt(np.diagonal(np.linalg.inv(found.information)))
    assert (np.abs(found.mean - exact) / errors).max() < 1e-9


@pytest.mark.parametrize("make", [Logistic, Poisson])
def test_leverages_are_those_of_all_sites(make, rng):
    """The sites' pulls add up to the slope of the penalty; their own informations in the broken twin do not."""
    losses = [make(rng.normal(size=(6, 2)), rng.integers(0, 2, 6).astype(float)) for _ in range(2)]
    theta = rng.normal(size=2)
    informations = [loss.hessian(theta) for loss in losses]
    expected = sum(loss.gradient(theta) for loss in losses) - slope(losses, theta)

    def pulls(matrices):
        inverses = [np.linalg.inv(matrix) for matrix in matrices]
        return sum(
            firth_answer(loss, FirthQuestion(theta, inverse)).pull
            for loss, inverse in zip(losses, inverses, strict=True)
        )

    assert np.abs(pulls([sum(informations)] * 2) - expected).max() < 1e-12
    assert np.abs(pulls(informations) - expected).max() > 1e-2


# ----------------------------------------------------------------------------------------------------
# Sites, weights, units
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1])
def test_sites_and_their_factors_add_up(seed):
    parts = problem(seed)
    X, y = np.vstack([loss.X for loss in parts]), np.concatenate([loss.y for loss in parts])
    pooled = fit_firth([type(parts[0])(X, y)])
    found = fit_firth(parts)
    one_row = fit_firth([type(parts[0])(X[i : i + 1], y[i : i + 1]) for i in range(len(X))])
    for each in (found, one_row):
        assert np.abs(each.mean - pooled.mean).max() < CLOSE
        total = sum(each.sites[1:], each.sites[0])
        assert isinstance(total, Natural)
        assert np.abs(total.parts[1] - each.information).max() < 1e-12 * np.abs(each.information).max()
        step = np.linalg.solve(each.information, total.linear) - each.mean
        assert step @ each.information @ step < 1e-10**2 * 1.01  # the tolerance of the last step


@pytest.mark.parametrize("make", [Logistic, Poisson])
def test_weights_are_rows_and_units_do_not_matter(make, rng):
    X, y = np.column_stack([rng.normal(size=12), np.ones(12)]), rng.integers(0, 2, 12).astype(float)
    counts = rng.integers(0, 3, 12)
    weighted = fit_firth([make(X, y, counts.astype(float))])
    repeated = fit_firth([make(np.repeat(X, counts, axis=0), np.repeat(y, counts))])
    assert np.abs(weighted.mean - repeated.mean).max() < CLOSE
    moved = fit_firth([make(X @ [[1e3, 0.0], [5e4, 1.0]], y, counts.astype(float))])
    assert np.abs([[1e3, 0.0], [5e4, 1.0]] @ moved.mean - weighted.mean).max() < 1e-7  # condition 1e5, squared in I


def test_one_class_and_no_events():
    assert fit_firth([Logistic(np.ones((9, 1)), np.ones(9))]).mean[0] == pytest.approx(np.log(9.5 / 0.5), abs=CLOSE)
    assert fit_firth([Poisson(np.ones((9, 1)), np.zeros(9))]).mean[0] == pytest.approx(np.log(0.5 / 9.0), abs=CLOSE)


# ----------------------------------------------------------------------------------------------------
# Refusals
# ----------------------------------------------------------------------------------------------------


def test_refusals():
    X = np.column_stack([np.arange(6.0), 2.0 * np.arange(6.0)])
    y = np.array([0.0, 1.0, 0.0, 1.0, 1.0, 0.0])
    assert_refused(
        [
            *((lambda n=n: fit_firth([Logistic(X[:n], y[:n])]), "X") for n in (6, 1)),  # collinear, and n < d
            (lambda: fit_firth([Softmax(X[:, :1], y, 2)]), "penalty"),
            (lambda: fit_firth(problem(0), most_steps=1), "most_steps"),
            (lambda: fit_firth(problem(0), tol=0.0), "tol"),
        ]
    )


def test_columns_that_others_make_up_stay_where_they_are(rng):
    X = rng.normal(size=(20, 2))
    y = (rng.random(20) < 0.5).astype(float)
    doubled = np.column_stack([X[:, 0], 2.0 * X[:, 0], X[:, 1]])
    expected = fit_firth([Logistic(X[k::2], y[k::2]) for k in range(2)])
    found = fit_firth([Logistic(doubled[k::2], y[k::2]) for k in range(2)], free=[True, False, True])
    assert np.abs(found.mean[[0, 2]] - expected.mean).max() < CLOSE
    assert found.mean[1] == 0.0
    # the sites' shares hold for the column that is left out too
    pull = sum(found.pulls)
    assert pull[1] == pytest.approx(2.0 * pull[0], rel=1e-12)


# ----------------------------------------------------------------------------------------------------
# Estimators
# ----------------------------------------------------------------------------------------------------


def patients(rng):
    """Return rows of which one ward tells the outcome, and the hospital of each."""
    age, ward = rng.normal(60.0, 10.0, 60), np.arange(60) % 6 == 0
    died = (rng.random(60) < 0.4) | ward
    return np.column_stack([age, ward, 2.0 * age]).astype(float), died.astype(int), np.arange(60) % 3


def flat(make=FederatedLogisticRegression, **options):
    return make(prior_precision=0.0, inference="likelihood", **options)


def test_estimators_take_the_penalty_where_the_likelihood_has_no_maximum(rng, tmp_path):
    X, y, hospital = patients(rng)
    with pytest.warns(SeparationWarning, match="by x1"):
        flat().fit(X, y, client=hospital)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model = flat(penalty="firth").fit(X, y, client=hospital)
    assert ["x2 = 2·x0" in str(warning.message) for warning in said] == [True]
    expected = fit_firth([Logistic(np.column_stack([X[:, :2], np.ones(60)]), y)])
    found = np.append(model.coef_[0], model.intercept_)
    errors = np.sqrt(np.diagonal(np.linalg.inv(expected.information)))
    assert (np.abs(found[[0, 1, 3]] - expected.mean) / errors).max() < 1e-8
    assert np.isnan(found[2])  # no row determines it beside the others
    assert abs(model.fitted_.posterior.mean[2]) < 1e-20  # held at zero by a prior
    rows = {row.name: row for row in model.summary().rows}
    assert rows["x1"].std_err == pytest.approx(errors[1], rel=1e-8)
    assert "Fit:   Firth's penalised likelihood" in str(model.summary())
    assert "AIC" not in str(model.summary())  # which is of a maximum
    save_model(tmp_path / "model.npz", model.fitted_)
    assert load_model(tmp_path / "model.npz").fit_name == "Firth's penalised likelihood"
    with pytest.raises(ValueError, match="needs a fit by maximum likelihood"):
        model.test_terms()


def test_estimators_with_the_penalty_gain_and_lose_sites(rng):
    X, y, hospital = patients(rng)
    X = X[:, :2]
    whole = flat(penalty="firth").fit(X, y, client=hospital)
    part = flat(penalty="firth").fit(X[hospital < 2], y[hospital < 2], client=hospital[hospital < 2])
    part.partial_fit_site(2, X[hospital == 2], y[hospital == 2])
    assert np.abs(part.coef_ - whole.coef_).max() < 1e-8
    assert whole.certificate_.holds


def test_penalties_that_are_refused(rng):
    X, y, hospital = patients(rng)
    models = [
        (FederatedLogisticRegression(1.0, penalty="firth"), y),
        (FederatedLogisticRegression(0.0, inference="posterior", penalty="firth"), y),
        *((flat(penalty=wrong), y) for wrong in ("Firth", True)),
        # three classes, and measurements
        (flat(penalty="firth"), y + (X[:, 0] > 60.0)),
        (flat(partial(FederatedGLM, "ridge"), noise_variance=1.0, penalty="firth"), y),
    ]
    assert_refused(
        (lambda model=model, target=target: model.fit(X[:, :2], target, client=hospital), "penalty")
        for model, target in models
    )
