"""What a wrong argument is told, and what an estimator says when it could not do what it was asked."""

import subprocess
import sys
from dataclasses import replace
from datetime import date

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import bayesadmm_np as ba
from bayesadmm_np._errors import Words
from bayesadmm_np.design.rows import read_target
from bayesadmm_np.estimators import (
    FederatedLinearRegression,
    FederatedLogisticRegression,
    FederatedPoissonRegressor,
    FederatedRidge,
    SeparationWarning,
)
from bayesadmm_np.splitting.distance import Distance
from bayesadmm_np.splitting.result import Result
from oracles.cohorts import cohort, estimator, posterior_ridge

L, R, P = FederatedLogisticRegression, posterior_ridge, FederatedPoissonRegressor
X, Y, SITES = cohort("logistic")

ARGUMENTS = {
    "method": [L(method="Pvi"), L(method=ba.methods.PVI)],
    "family": [L(family="Full"), L(method="ADMM", family="full")],
    "penalize_intercept": [
        *(L(method="ADMM"), L(family="fixed"), L(method="BCM"), L(method="FedIvon"), L(penalize_intercept="no")),
    ],
    "prior_precision": [
        *(L(prior_precision=-1.0), L(prior_precision="strong"), L(prior_precision=-np.ones(2))),
        *(L(prior_precision=np.ones(3)), L(prior_precision=np.ones(2), penalize_intercept=True)),
        *(FederatedLinearRegression([1.0, 2.0, 3.0]), FederatedLinearRegression([-1.0, 2.0])),
        L(prior_precision=np.eye(2), family="diagonal"),
        L(prior_precision=np.ones(3), family="isotropic", penalize_intercept=True),
        *(L("evidence", method="FedLapCov"), L("evidence", family="fixed", penalize_intercept=True)),
    ],
    "noise_variance": [
        *(R(method="ADMM", penalize_intercept=True), R(noise_variance=-1.0), R(noise_variance="known")),
        *(FederatedRidge(noise_variance="evidence"), FederatedLinearRegression(noise_variance=0.0)),
        R(noise_variance="unbiased"),
    ],
    "alpha": [FederatedRidge(-1.0), FederatedRidge("evidence")],
    "inference": [FederatedLinearRegression(noise_variance="evidence", inference="likelihood")],
    "dependent": [FederatedLinearRegression(dependent="drop")],
    "fit_intercept": [L(fit_intercept=1)],
    "warm_start": [L(warm_start=None)],
    "progress": [L(progress="bar")],
    "max_rounds": [L(max_rounds=0)],
    "tol": [L(tol=-1e-8)],
    "participation": [L(participation=0.0), L(participation=0.5)],
    "random_state": [L(random_state="now")],
    "n_jobs": [L(n_jobs=0)],
    "integrate": [
        *(L(integrate="simpson"), L(integrate="quasi-monte-carlo")),
        L(1.0, integrate="exact", family="fixed", penalize_intercept=True),
    ],
    "class_weight": [L(class_weight="even"), L(class_weight={2: 1.0}), L(class_weight={1: 0.0})],
}


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_arguments_are_stored_unchecked_and_refused_by_fit(argument):
    for made in ARGUMENTS[argument]:
        with pytest.raises(ValueError, match=argument) as refused:
            made.fit(X, Y, client=SITES)
        assert getattr(refused.value, "argument", argument).startswith(argument)
        assert not [name for name in vars(made) if name.startswith("posterior")]


NORTH = np.asarray(SITES) == "north"
DAYS = np.arange(32).astype("datetime64[D]")
DATA = {
    "client": [
        *((L(), {"client": client}) for client in ("north", dict(enumerate(SITES)), set(range(32)), 3, SITES[:-1])),
        *((L(), {"client": client}) for client in ([None, *SITES[1:]], np.full(32, np.nan), np.ones((32, 1)))),
    ],
    "y": [
        *((L(), {"y": y}) for y in (np.zeros(32), np.linspace(0, 1, 32), np.where(X[:, 0] > 1, np.nan, Y), DAYS)),
        *((L(), {"y": np.array([first, *Y[1:]], dtype=object)}) for first in (None, "no")),
        *((R(), {"y": y}) for y in (np.where(X[:, 0] > 1, np.inf, Y), DAYS, np.append(1e200, np.ones(31)))),
        (R(), {"y": np.array(["a"] * 32)}),
        *((P(), {"y": y}) for y in (np.append(1e200, np.ones(31)), -np.ones(32))),
    ],
    "sample_weight": [
        *((L(), {"sample_weight": w}) for w in ((~NORTH).astype(float), -np.ones(32), np.ones(31))),
    ],
    "offset": [
        (L(), {"offset": np.full(32, 1e300)}),
        (P(), {"offset": np.where(X[:, 0] > 0, 800.0, 0.0)}),
        (P(), {"y": np.ones(32), "offset": np.where(NORTH, 650.0, 0.0)}),
    ],
    "noise_variance": [(R(), {"y": np.ones(32)})],
    "array": [(L(), {"X": X[:, 0]})],
    "column 'x0'": [
        *((L(), {"X": np.full((32, 2), cell)}) for cell in ("x", date(2020, 1, 1))),
        *((L(), {"X": np.where(X > 1, cell, X)}) for cell in (np.nan, np.inf)),
        *((L(), {"X": 1e-200 * X}), (L(1.0, inference="posterior"), {"X": 1e200 * X})),
    ],
    "column 'x1'": [(L(), {"X": X * [1.0, 1e200]})],
}


@pytest.mark.parametrize("what", DATA)
def test_data_are_refused_with_a_reason(what):
    for made, given in DATA[what]:
        with pytest.raises(ValueError, match=what):
            made.fit(**{"X": X, "y": Y, "client": SITES, **given})


def test_three_classes_have_rules_of_their_own():
    X3, y3, sites = cohort("softmax")
    with pytest.raises(ValueError, match="integrate"):
        L(1.0, integrate="probit").fit(X3, y3, client=sites)
    with pytest.raises(ValueError, match="penalize_intercept"):
        L(1.0, family="diagonal").fit(X3, y3, client=sites)


def test_offsets_of_least_squares_have_the_size_of_its_target():
    model = R().fit(X, Y + 1e6, client=SITES, offset=np.full(32, 1e6))  # twin: no exponential is taken
    assert np.isfinite(model.coef_).all()


def test_a_converged_fit_of_which_nothing_is_proven_says_so():
    """Twin: the same fit with a bound."""
    model = L().fit(X, Y, client=SITES)
    proof = model.fitted_.record.certificate
    loose = replace(proof, distance=Distance.unknown(proof.distance.per_coefficient.size, "for this test"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Result, "certificate", lambda self: loose)
        with pytest.warns(ConvergenceWarning, match="certificate"):
            L().fit(X, Y, client=SITES)


def test_warnings_are_said_in_the_words_of_a_caller():
    options = Words(argument="--{}".format, setting=lambda name, value: f"--{name} {value}")
    with pytest.warns(SeparationWarning) as said:
        L().fit(X, (X[:, 0] > 0).astype(int), client=SITES)
    message = said[0].message
    assert "penalty='firth'" in str(message)
    assert "--penalty firth" in message.worded(options)
    assert "penalty='firth'" not in message.worded(options)


def test_too_few_rounds_are_never_silent():
    with pytest.warns(ConvergenceWarning, match="max_rounds"):
        model = L(max_rounds=2).fit(X, Y, client=SITES)
    assert not model.certificate_.holds
    assert model.status_ is ba.Status.ROUND_LIMIT


def test_a_failed_run_names_site_round_and_knob():
    """A small ρ: the dual of the site outweighs the KL term."""
    with pytest.raises(ba.RunError, match="site 'north', round"):
        L(0.01, method=ba.methods.BayesADMM(rho=0.05)).fit(X, Y, client=SITES)
    with pytest.raises(ba.RunError, match="lower gamma"):
        estimator("ridge", method=ba.methods.FedLap(), penalize_intercept=True).fit(*cohort("ridge")[:2], client=SITES)


def test_where_points_do_not_suffice_auto_takes_laplace_and_says_so():
    """Three classes far apart under a weak prior: predictors of a spread that 256 points do not resolve."""
    centres = np.repeat(5.0 * np.eye(3)[:, :2], 12, axis=0)
    X3 = centres + np.random.default_rng(0).standard_normal(centres.shape)
    y3, sites = np.repeat([0, 1, 2], 12), np.tile(["a", "b"], 18)
    with pytest.warns(ConvergenceWarning, match="FedLapCov"):
        model = L(1e-5, inference="posterior").fit(X3, y3, client=sites)
    assert model.method_ == "FedLapCov"
    assert model.certificate_.holds
    with pytest.raises(ba.RunError):
        L(1e-5, method="PVI").fit(X3, y3, client=sites)


def test_without_scikit_learn_the_sentence_names_the_extra(tmp_path):
    code = """
import sys
sys.modules["sklearn"] = None
import bayesadmm_np.estimators as estimators
print(type(estimators.Summary).__name__)
try:
    estimators.FederatedRidge
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ".[estimators]" in done.stdout


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="FederatedLasso"):
        ba.estimators.FederatedLasso  # noqa: B018
    assert "FederatedRidge" in dir(ba.estimators)


def test_separation_is_named_where_no_round_was_done():
    """A pair of columns that is nearly collinear, too: the first step has no curvature."""
    rng = np.random.default_rng(1)
    columns = rng.normal(size=(12, 3))
    nearly = np.column_stack([columns, columns[:, 2] + 1e-8 * rng.normal(size=12)])
    sites = np.argsort(np.argsort(nearly[:, 0])) * 3 // 12
    with pytest.warns(SeparationWarning, match="Separation"):
        model = L().fit(nearly, (nearly[:, 0] > 0).astype(int), client=sites)
    assert np.isnan(model.coef_).all()
    assert all(row.std_err is None for row in model.summary().rows)


def test_measurements_are_no_classes():
    """41 ages are no labels; the twins are ten digits, and 41 labels as text."""
    ages = np.arange(82) % 41 + 40
    rows, sites = np.arange(82.0)[:, None], np.arange(82) % 2
    for y in (ages, ages.astype(float)):
        with pytest.raises(ValueError, match="41 different numbers"):
            L().fit(rows, y, client=sites)
    assert read_target(ages % 10, is_labels=True) is not None
    assert read_target(ages.astype(str), is_labels=True) is not None
    assert read_target(np.repeat(ages, 21), is_labels=True) is not None


def test_a_mark_in_new_rows_is_refused_with_what_to_do():
    table = {"x": np.arange(40.0) % 7, "y": np.arange(40) % 2, "site": np.arange(40) % 2}
    model = L.from_formula("y ~ x", table, client="site")
    with pytest.raises(ValueError, match=r"column 'x' .*'\?'"):
        model.predict({"x": np.array([1.0, "?"], dtype=object)})
