"""What a wrong argument is told, and what an estimator says when it could not do what it was asked."""

import re
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
from bayesadmm_np.estimators import FederatedLogisticRegression, FederatedPoissonRegressor, SeparationWarning
from bayesadmm_np.splitting.distance import Distance
from bayesadmm_np.splitting.result import Result
from oracles.cohorts import cohort, estimator, posterior_ridge

L, R, P = FederatedLogisticRegression, posterior_ridge, FederatedPoissonRegressor
X, Y, SITES = cohort("logistic")

ARGUMENTS = [
    (L(method="Pvi"), "method must be one of 'auto', 'BayesADMM'"),
    (L(method=ba.methods.PVI), "method must be one of 'auto', 'BayesADMM'"),
    (L(family="Full"), "family must be one of 'auto', 'full', 'diagonal', 'fixed', 'isotropic', got 'Full'"),
    (L(method="ADMM", family="full"), "family must be 'isotropic' for method ADMM, got 'full'"),
    (L(method="ADMM"), "penalize_intercept must be True for IsotropicGaussian"),
    (L(family="fixed"), "penalize_intercept must be True for FixedPrecisionGaussian"),
    (L(method="BCM"), "penalize_intercept must be True for BCM"),
    (L(method="FedIvon"), "penalize_intercept must be True for FedIvon"),
    (L(prior_precision=-1.0), "prior_precision must be a number >= 0"),
    (L(prior_precision="strong"), "prior_precision must be a number, an array or 'evidence', got 'strong'"),
    (L(prior_precision=np.ones(3)), "prior_precision must be a number, or have shape (2,) or (2, 2)"),
    (L(prior_precision=np.ones(2), penalize_intercept=True), "shape (3,) or (3, 3) for the 2 features and the interc"),
    (L(prior_precision=-np.ones(2)), "prior_precision: precision must be positive semidefinite"),
    (
        L(prior_precision=np.eye(2), family="diagonal"),
        "prior_precision must be a number or a vector for the diag",
    ),
    (
        L(prior_precision=np.ones(3), family="isotropic", penalize_intercept=True),
        "prior_precision must be a number for the isotropic family",
    ),
    (
        L("evidence", method="FedLapCov"),
        "prior_precision='evidence' needs a method that reaches the pooled variational",
    ),
    (L("evidence", family="fixed", penalize_intercept=True), "prior_precision='evidence' needs a method"),
    (R(method="ADMM", penalize_intercept=True), "noise_variance='evidence' needs a method"),
    (R(noise_variance=-1.0), "noise_variance must be > 0"),
    (R(noise_variance="known"), "noise_variance must be a number"),
    (L(fit_intercept=1), "fit_intercept must be True or False, got 1"),
    (L(penalize_intercept="no"), "penalize_intercept must be True or False, got 'no'"),
    (L(warm_start=None), "warm_start must be True or False"),
    (L(progress="bar"), "progress must be True or False"),
    (L(max_rounds=0), "max_rounds must be at least 1, got 0"),
    (L(tol=-1e-8), "tol must be > 0"),
    (L(participation=0.0), "participation must lie in (0, 1]"),
    (L(participation=0.5), "participation must be 1 with inference='likelihood'"),
    (L(random_state="now"), "random_state must be an integer"),
    (L(n_jobs=0), "n_jobs must be None or an integer other than 0"),
    (
        L(integrate="simpson"),
        "integrate must be one of 'auto', 'exact', 'gauss-hermite', 'probit', 'quasi-monte-carlo'",
    ),
    (L(integrate="quasi-monte-carlo"), "with 2 classes, got 'quasi-monte-carlo'"),
    (
        L(integrate="exact", family="fixed", penalize_intercept=True),
        "integrate='exact' needs inference='posterior' and a family that learns a co",
    ),
    (L(class_weight="even"), "class_weight must be None, 'balanced' or a dict, got 'even'"),
    (L(class_weight={2: 1.0}), "class_weight names the class 2; y holds 0, 1"),
    (L(class_weight={1: 0.0}), "class_weight[1] must be > 0"),
]


@pytest.mark.parametrize(("made", "message"), ARGUMENTS, ids=lambda value: value if isinstance(value, str) else "")
def test_arguments_are_stored_unchecked_and_refused_by_fit(made, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        made.fit(X, Y, client=SITES)
    assert not [name for name in vars(made) if name.startswith("posterior")]


DATA = [
    (L(), {"client": "north"}, "client must hold one site label a row, got 'north'"),
    (L(), {"client": dict(enumerate(SITES))}, "client must hold one site label a row, got {0: "),
    (L(), {"client": set(range(32))}, "client must hold one site label a row, got {0, 1"),
    (L(), {"client": 3}, "client must hold one site label a row, got 3"),
    (L(), {"client": SITES[:-1]}, "client must hold one site label a row, 32, got 31"),
    (L(), {"client": [None, *SITES[1:]]}, "client must name a site for every row, got None at [0]"),
    (L(), {"client": np.full(32, np.nan)}, "client must name a site for every row, got nan at [0]"),
    (L(), {"client": np.ones((32, 1))}, "client must hold hashable labels, one a row, got [1.0] at [0]"),
    (L(), {"y": np.zeros(32)}, "y must hold at least two classes, got one class: 0.0"),
    (
        L(),
        {"y": np.linspace(0, 1, 32)},
        "y must hold class labels, got numbers such as 0.0322581; measurements are for",
    ),
    (L(), {"y": np.where(X[:, 0] > 1, np.nan, Y)}, "y must have a value in every row, got NaN or nothing in"),
    (R(), {"y": np.where(X[:, 0] > 1, np.inf, Y)}, "y must hold finite numbers, got"),
    (
        L(),
        {"sample_weight": (np.array(SITES) != SITES[0]).astype(float)},
        f"sample_weight must be positive in some row of each site, got zeros at site {str(SITES[0])!r}",
    ),
    (
        L(),
        {"offset": np.full(32, 1e300)},
        "has offsets from 1e+300 to 1e+300, which is more than exponentials can hold",
    ),
    (P(), {"offset": np.where(X[:, 0] > 0, 800.0, 0.0)}, "site 'north': has offsets from 0 to 800, which is more"),
    (L(), {"sample_weight": -np.ones(32)}, "Negative values in data passed to `sample_weight`"),
    (L(), {"sample_weight": np.ones(31)}, "sample_weight.shape == (31,), expected (32,)"),
    (L(), {"X": X[:, 0]}, "Expected 2D array, got 1D array instead"),
    (L(), {"X": np.full((32, 2), "x")}, "X: column 'x0' must hold numbers, got 'x'"),
    (L(), {"X": np.where(X > 1, np.nan, X)}, "X: column 'x0' must have a value in every row, got NaN"),
    (L(), {"X": np.where(X > 1, np.inf, X)}, "X: column 'x0' must hold finite numbers, got"),
    (L(), {"X": np.full((32, 2), date(2020, 1, 1))}, "X: column 'x0' must hold numbers, got dates"),
    (L(), {"y": np.arange(32).astype("datetime64[D]")}, "y must hold class labels, got dates"),
    (R(), {"y": np.arange(32).astype("datetime64[D]")}, "y must hold numbers, got dates"),
    (
        L(),
        {"y": np.array([None, *Y[1:]], dtype=object)},
        "y must have a value in every row, got NaN",
    ),
    (L(), {"y": np.array(["no", *Y[1:]], dtype=object)}, "y must hold labels of one kind, got 'no' and "),
    (L(1.0, inference="posterior"), {"X": 1e200 * X}, "column 'x0' must have a largest value between 1e-70 and 1e+70"),
    (R(), {"y": np.append(1e200, np.ones(31))}, "y must have a largest value between 1e-70 and 1e+70 in size"),
    (P(), {"y": np.append(1e200, np.ones(31))}, "y must have a largest value between 1e-70 and 1e+70 in size"),
    (L(), {"X": 1e-200 * X}, "column 'x0' must have a largest value between 1e-70 and 1e+70 in size, or zeros, got"),
    (
        L(),
        {"X": X * np.where(np.arange(X.shape[1]) == 1, 1e200, 1.0)},
        "column 'x1' must have a largest value between 1e-70 and 1e+70 in size, or zeros, got",
    ),
    (
        P(),
        {"y": np.ones(32), "offset": np.where(np.asarray(SITES) == "north", 650.0, 0.0)},
        "offset must have means within 150 of each other at the sites, as parts of the linear predictor, got 0 and 650",
    ),
    (P(), {"y": -np.ones(32)}, "y must hold counts or rates >= 0, got -1"),
    (P(), {"y": np.zeros(32)}, "y has the mean 0, at which the log link is not finite: an unpenalised intercept"),
    (R(), {"y": np.ones(32)}, "noise_variance='evidence' needs targets that differ"),
    (R(), {"y": np.array(["a"] * 32)}, "y must hold numbers, got 'a'; classes are for a classifier"),
]


@pytest.mark.parametrize(("made", "given", "message"), DATA)
def test_data_are_refused_with_a_reason(made, given, message):
    arguments = {"X": X, "y": Y, "client": SITES, **given}
    with pytest.raises(ValueError, match=re.escape(message)):
        made.fit(**arguments)


def test_three_classes_have_rules_of_their_own():
    X3, y3, sites = cohort("softmax")
    with pytest.raises(
        ValueError, match="integrate must be one of 'auto', 'quasi-monte-carlo', 'plug-in' with 3 classes"
    ):
        L(1.0, integrate="probit").fit(X3, y3, client=sites)
    with pytest.raises(ValueError, match="penalize_intercept=False with three or more classes needs family='full'"):
        L(1.0, family="diagonal").fit(X3, y3, client=sites)


def test_offsets_of_least_squares_have_the_size_of_its_target():
    model = R().fit(X, Y + 1e6, client=SITES, offset=np.full(32, 1e6))  # twin: no exponential is taken
    assert np.isfinite(model.coef_).all()


def test_a_converged_fit_of_which_nothing_is_proven_says_so():
    """Twin: the same fit with a bound."""
    model = L().fit(X, Y, client=SITES)
    proof = model.fitted_.certificate
    loose = replace(proof, distance=Distance.unknown(proof.distance.per_coefficient.size, "for this test"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Result, "certificate", lambda self: loose)
        with pytest.warns(ConvergenceWarning, match="certificate does not hold: .* proves nothing without a bound"):
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
    with pytest.warns(ConvergenceWarning, match=r"raise max_rounds \(now 2\) or tol \(now 1e-08\)"):
        model = L(max_rounds=2).fit(X, Y, client=SITES)
    assert not model.certificate_.holds
    assert model.status_ is ba.Status.ROUND_LIMIT


def test_a_failed_run_names_site_round_and_knob():
    """A small ρ: the dual of the site outweighs the KL term."""
    with pytest.raises(ba.RunError, match=r"site 'north', round \d+: a client's subproblem has no minimum"):
        L(0.01, method=ba.methods.BayesADMM(rho=0.05)).fit(X, Y, client=SITES)
    with pytest.raises(ba.RunError, match="lower gamma"):
        estimator("ridge", method=ba.methods.FedLap(), penalize_intercept=True).fit(*cohort("ridge")[:2], client=SITES)


def test_where_points_do_not_suffice_auto_takes_laplace_and_says_so():
    """Three classes far apart under a weak prior: predictors of a spread that 256 points do not resolve."""
    centres = np.repeat(5.0 * np.eye(3)[:, :2], 12, axis=0)
    X3 = centres + np.random.default_rng(0).standard_normal(centres.shape)
    y3, sites = np.repeat([0, 1, 2], 12), np.tile(["a", "b"], 18)
    with pytest.warns(ConvergenceWarning, match="This is FedLapCov, Laplace's approximation"):
        model = L(1e-5, inference="posterior").fit(X3, y3, client=sites)
    assert model.method_ == "FedLapCov"
    assert model.certificate_.holds
    with pytest.raises(ba.RunError):
        L(1e-5, method="PVI").fit(X3, y3, client=sites)


def test_without_scikit_learn_the_sentence_names_the_extra(tmp_path):
    code = """
import sys
from dataclasses import replace
from datetime import date
sys.modules["sklearn"] = None
import bayesadmm_np.estimators as estimators
print(type(estimators.Summary).__name__)
try:
    estimators.FederatedRidge
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "FederatedRidge needs scikit-learn 1.6 or newer: pip install 'bayesadmm-np[estimators]'" in done.stdout


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'FederatedLasso'"):
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
    assert np.isfinite(model.coef_).all()
    assert all(row.std_err is None for row in model.summary().rows)


def test_measurements_are_no_classes():
    """41 ages are no labels; the twins are ten digits, and 41 labels as text."""
    ages = np.arange(82) % 41 + 40
    rows, sites = np.arange(82.0)[:, None], np.arange(82) % 2
    for y in (ages, ages.astype(float)):
        with pytest.raises(ValueError, match="y must hold class labels, got 41 different numbers in 82 rows; measure"):
            L().fit(rows, y, client=sites)
    assert read_target(ages % 10, is_labels=True) is not None
    assert read_target(ages.astype(str), is_labels=True) is not None
    assert read_target(np.repeat(ages, 21), is_labels=True) is not None


def test_a_mark_in_new_rows_is_refused_with_what_to_do():
    table = {"x": np.arange(40.0) % 7, "y": np.arange(40) % 2, "site": np.arange(40) % 2}
    model = L.from_formula("y ~ x", table, client="site")
    with pytest.raises(
        ValueError, match=r"column 'x' must hold numbers, got '\?'; if '\?' stands for a missing value, w"
    ):
        model.predict({"x": np.array([1.0, "?"], dtype=object)})
