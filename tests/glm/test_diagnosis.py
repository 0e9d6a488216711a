"""Columns that say the same are named with their relation; so are coefficients that the prior or rounding holds."""

import json
import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from bayesadmm_np.estimators import FederatedLogisticRegression
from bayesadmm_np.estimators.caveats import SeparationWarning
from bayesadmm_np.glm import columns
from bayesadmm_np.glm.columns import find_relations, orthonormal_basis
from bayesadmm_np.glm.diagnosis import (
    Collinear,
    Constant,
    Digits,
    PriorPull,
    PriorShare,
    Separation,
    Zero,
    as_dict,
    diagnose_after,
    read_finding,
    search_dependence,
)
from bayesadmm_np.losses.linear_model import row_factor
from oracles.refusals import assert_refused

N = 60


def factors(X, n_sites=3, weights=None):
    given = np.ones(len(X)) if weights is None else weights
    return [row_factor(X[k::n_sites], given[k::n_sites]) for k in range(n_sites)]


@pytest.fixture
def table(rng):
    age, dose = rng.integers(20, 90, N).astype(float), rng.normal(size=N)
    return age, dose, np.ones(N)


def test_relations_are_those_that_made_the_columns(table):
    age, dose, one = table
    site = np.arange(N) % 3
    X = np.column_stack([age, dose, 2.0 * age, age - 3.0 * dose + 0.25, np.full(N, 7.5), np.zeros(N), one])
    names = ["age", "dose", "age2", "mix", "seven", "empty", "(intercept)"]
    found = search_dependence(factors(X), names, intercepts=[6])[0]
    assert [type(f) for f in found] == [Collinear, Collinear, Constant, Zero]
    assert [str(f).partition(" in every")[0] for f in found[:2]] == ["age2 = 2·age", "mix = 0.25 + age − 3·dose"]
    assert found[2] == Constant("seven", pytest.approx(7.5))
    assert str(found[3]).startswith("empty is zero in every row")
    # a column that is constant within every site is so for the sites' intercepts alone
    height = np.array([1.0, 4.0, 9.0])[site]
    X = np.column_stack([age, height, one, site == 1, site == 2])
    names = ["age", "height", "(intercept)", "site=1", "site=2"]
    assert search_dependence(factors(X), names, intercepts=[2, 3, 4])[0] == (Constant("height", None),)
    assert search_dependence(factors(X[:, :3]), names[:3], intercepts=[2])[0] == ()


def test_relations_over_random_matrices(rng):
    """As many relations as the rank lacks, each exact, and none with a term to spare."""
    for _ in range(100):
        n, p, r = int(rng.integers(5, 40)), int(rng.integers(2, 9)), int(rng.integers(1, 6))
        X = rng.integers(-3, 4, (n, min(r, p))) @ (rng.integers(-2, 3, (min(r, p), p)) * (rng.random(p) < 0.8))
        X = X * 10.0 ** rng.integers(-8, 9, p)
        found = find_relations(factors(X))
        unit = X / np.where(X.any(axis=0), np.linalg.norm(X, axis=0), 1.0)
        assert len(found) == p - np.linalg.matrix_rank(unit)
        for relation in found:
            sum_ = sum((value * X[:, j] for j, value in relation.terms), np.zeros(n))
            assert np.abs(sum_ - X[:, relation.column]).max() <= 1e-9 * np.linalg.norm(X[:, relation.column])
            chosen = [j for j, _ in relation.terms]
            assert np.linalg.matrix_rank(unit[:, [*chosen, relation.column]]) == len(chosen)
            for j in chosen:
                spared = [*(i for i in chosen if i != j), relation.column]
                assert np.linalg.matrix_rank(unit[:, spared]) == len(spared)


@pytest.mark.parametrize("noise", [1e-9, 1e-6])
def test_nearly_collinear_columns_are_not_called_collinear(table, noise):
    """A column off by one in ten digits is another column; a Gram matrix instead of R factors could not tell."""
    age, dose, one = table
    X = np.column_stack([age, 2.0 * age * (1.0 + noise * np.sign(dose)), one])
    assert search_dependence(factors(X), ["age", "other", "one"])[0] == ()
    values = np.linalg.eigvalsh((X / np.linalg.norm(X, axis=0)).T @ (X / np.linalg.norm(X, axis=0)))
    assert (values[0] < 1e-13) == (noise < 1e-7)  # the broken twin's eigenvalue is rounding


def test_a_looser_threshold_errs(table, monkeypatch):
    monkeypatch.setattr(columns, "ROUNDING", 1e-5)
    with pytest.raises(AssertionError):
        test_nearly_collinear_columns_are_not_called_collinear(table, 1e-6)


def test_columns_computed_in_double_precision_are_collinear(rng):
    celsius = rng.normal(37.0, 0.7, 100_000)
    X = np.column_stack([celsius, 1.8 * celsius + 32.0, np.ones(celsius.size)])
    (found,) = search_dependence(factors(X), ["celsius", "fahrenheit", "(intercept)"], intercepts=[2])[0]
    assert str(found).startswith("fahrenheit = 32 + 1.8·celsius in every row")


def test_fewer_rows_than_columns_and_rows_of_weight_zero(rng):
    X = rng.normal(size=(2, 4))
    assert [relation.column for relation in find_relations([row_factor(X[:1]), row_factor(X[1:])])] == [2, 3]
    doubled = np.column_stack([np.ones(5), [1.0, 1.0, 1.0, 1.0, 2.0]])
    weights = np.array([1.0, 1.0, 1.0, 1.0, 0.0])
    assert search_dependence(factors(doubled, 2, weights), "ab", intercepts=[0])[0] == (
        Constant("b", pytest.approx(1.0)),
    )


def test_bases_are_orthonormal(rng):
    X = rng.normal(size=(50, 4)) * [1e-6, 1.0, 1e6, 1.0]
    X[:, 3] = X[:, 1]
    basis = orthonormal_basis(factors(X))
    assert basis.shape == (4, 3)
    assert np.abs((X @ basis).T @ (X @ basis) - np.eye(3)).max() < 1e-13


def test_factors_must_fit():
    wrong = ([np.ones((1, 3))], [np.full((1, 2), np.nan)])
    assert_refused((lambda one=one: search_dependence(one, "ab")[0], "factors") for one in wrong)


# ----------------------------------------------------------------------------------------------------
# After a fit
# ----------------------------------------------------------------------------------------------------


def test_a_prior_with_more_than_a_fifth_is_named_and_one_that_moves_an_estimate_whatever_its_share():
    assert diagnose_after(np.eye(3), "abc", np.array([0.19, 0.21, 0.9])) == (PriorShare((("b", 0.21), ("c", 0.9))),)
    found = diagnose_after(np.eye(3), "abc", np.array([1e-6, 0.0, 0.0]), prior_pull=np.array([-1.04, 0.4, np.nan]))
    assert found == (PriorPull((("a", -1.04),)),)


def test_digits_are_those_of_the_condition_without_units():
    """Units of columns do not count; a correlation of 1 − 1e-9 has condition 2e9, and 6 of 15.6 digits are left."""
    assert diagnose_after(np.diag([1e-12, 1e12]), "ab") == ()
    near = np.array([[1.0, 1.0 - 1e-9, 0.0], [1.0 - 1e-9, 1.0, 0.0], [0.0, 0.0, 1.0]])
    scale = np.array([1e5, 1e-5, 1.0])
    (found,) = diagnose_after(near * scale * scale[:, None], ["a", "b", "c"])
    assert (found.digits, found.names) == (6, ("a", "b"))
    assert found.condition == pytest.approx(2e9, rel=1e-3)
    (singular,) = diagnose_after(np.ones((2, 2)), ["a", "b"])
    assert (singular.digits, singular.of) == (0, "coefficients")


def test_digits_are_a_bound_that_solutions_keep(rng):
    """A solve with rounded data errs by no more than the digits say, and by more than with three digits more."""
    near = np.array([[1.0, 1.0 - 1e-9], [1.0 - 1e-9, 1.0]])
    (found,) = diagnose_after(near, "ab")
    truth = np.array([1.0, 2.0])
    errors = [
        np.abs(np.linalg.solve(near, (near @ truth) * (1.0 + 2.2e-16 * rng.choice([-1, 1], 2))) - truth).max()
        for _ in range(50)
    ]
    assert 10.0 ** -(found.digits + 3) < max(errors) < 10.0 ** -(found.digits - 1)


def test_findings_and_the_warning_carry_names():
    given = [
        Zero("a"),
        Constant("b", 2.0),
        Collinear("c", (("a", 1.0), ("b", -2.0))),
        PriorShare((("d", 0.5),)),
        PriorPull((("d", -0.7),)),
        Digits(3, 1e12, ("a",)),
        Separation(("x",), (("x", 1.0),), ("x",), is_complete=False),
    ]
    assert [read_finding(json.loads(json.dumps(as_dict(f)))) for f in given] == given
    some = as_dict(given[-1])
    for broken in ({"code": "nothing"}, {"code": "separation", "columns": []}, {}, {**some, "names": [1]}):
        with pytest.raises(ValueError, match="finding"):
            read_finding(broken)
    assert [f.code for f in given] == ["zero", "constant", "collinear", "prior", "pull", "digits", "separation"]
    warning = SeparationWarning(given[-1:])
    assert warning.findings == (given[-1],)
    assert str(warning) == str(given[-1])


# ----------------------------------------------------------------------------------------------------
# In a fitted model
# ----------------------------------------------------------------------------------------------------


def codes(model):
    return [f.code for f in model.fitted_.findings]


def test_fits_say_where_the_prior_speaks_and_what_rounding_takes(rng):
    X, hospital = rng.normal(size=(60, 2)), np.arange(60) % 3
    X[:, 1] *= 1e-2
    y = (rng.random(60) < 0.5).astype(int)
    plain = FederatedLogisticRegression(0.0, inference="likelihood").fit(X, y, client=hospital)
    assert codes(plain) == []
    twice = np.column_stack([X, 12 * X[:, 0]])
    with pytest.warns(ConvergenceWarning, match="12"):
        doubled = FederatedLogisticRegression().fit(twice, y, client=hospital)
    assert doubled.fitted_.held.sum() == 1
    assert codes(doubled) == ["collinear"]  # what holds the superfluous coefficient at zero is no prior

    held = FederatedLogisticRegression(1.0, inference="likelihood").fit(X, y, client=hospital)
    assert codes(held) == ["prior"]
    assert [name for name, _ in held.fitted_.findings[0].shares] == ["x1"]
    assert "Much of the information on x1" in " ".join(str(held.summary()).split())
    near = np.column_stack([X[:, 0], X[:, 0] + 1e-4 * X[:, 1]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the tolerance is out of reach
        close = FederatedLogisticRegression(0.0, inference="likelihood").fit(near, y, client=hospital)
    assert codes(close) == ["digits"]
    assert close.fitted_.findings[0].names == ("x0", "x1")
