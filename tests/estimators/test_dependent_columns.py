"""Columns that depend on each other, under any penalty: no bound that does not hold, and no number where there is none.

The reference is ridge regression in rational numbers, of the doubles that the fit was given.
"""

import warnings
from fractions import Fraction

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression

from bayesadmm_np.estimators import FederatedLinearRegression, FederatedRidge, contrast, load_model, save_model
from bayesadmm_np.estimators.summary import summarise
from bayesadmm_np.splitting.status import Status

X = np.repeat(np.array([[1.0], [2.0], [3.0], [5.0]]), 2, axis=1)
Y = np.array([1.0, 2.0, 4.0, 5.0])


def quiet(model, X, y, site):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(X, y, client=site)


def exact_ridge(X, Y, alpha):
    """Return coefficients and intercepts, shape (q, p + 1), by Gauss-Jordan elimination of XᵀX + alpha I, centred."""
    n, p = X.shape
    rows = [[Fraction(v) for v in row] for row in np.column_stack([X, Y]).tolist()]
    means = [sum(column) / n for column in zip(*rows, strict=True)]
    rows = [[v - m for v, m in zip(row, means, strict=True)] for row in rows]
    sums = [
        [sum(row[j] * row[k] for row in rows) + (Fraction(alpha) if j == k else 0) for k in range(len(means))]
        for j in range(p)
    ]
    for j in range(p):
        sums[j] = [v / sums[j][j] for v in sums[j]]  # positive definite: no pivoting
        for i in range(p):
            if i != j:
                sums[i] = [a - sums[i][j] * b for a, b in zip(sums[i], sums[j], strict=True)]
    coef = [[sums[j][p + k] for j in range(p)] for k in range(Y.shape[1])]
    intercepts = [means[p + k] - sum(a * b for a, b in zip(coef[k], means, strict=False)) for k in range(len(coef))]
    return np.array([[*map(float, own), float(b)] for own, b in zip(coef, intercepts, strict=True)])


def variation(seed):
    """Return columns, outputs, alpha and sites; copies, sums, constants and sums to rounding, in any units."""
    rng = np.random.default_rng(seed)
    n, p, q = rng.integers(4, 14), rng.integers(1, 4), rng.integers(1, 4)
    X = rng.integers(-9, 10, (n, p)).astype(float)
    more = [X[:, rng.integers(p)], X.sum(axis=1) + 3.0, np.full(n, 7.0), X @ rng.standard_normal(p)][seed % 4]
    X = np.column_stack([X, more])[:, rng.permutation(p + 1)]
    X = X * (2.0 ** rng.integers(-40, 41, p + 1) if seed % 3 == 0 else 10.0 ** rng.integers(-13, 14))
    Y = rng.integers(-9, 10, (n, q)) + 0.1 * (seed % 2) * rng.standard_normal((n, q))
    return X, Y, 10.0 ** -rng.integers(0, 31), np.arange(n) % rng.integers(1, 6)


def rows_of(model):
    return {row.name: row for row in model.summary().rows}


def distance_of(model, shape):
    return model.certificate_.distance.per_coefficient.reshape(shape)


def test_every_bound_that_is_claimed_holds():
    """Of 120 generated fits; a perfect bound leaves the rounding of the numbers themselves, 2e-16 of each.

    The broken twin, the same answers held to another penalty, breaks bounds.
    """
    n_claimed = n_unresolved = n_broken = 0
    for seed in range(120):
        X, Y, alpha, site = variation(seed)
        model = quiet(FederatedRidge(alpha), X, Y, site)
        found = np.column_stack([np.reshape(model.coef_, (Y.shape[1], -1)), np.ravel(model.intercept_)])
        bound = distance_of(model, found.shape)
        is_claimed = np.isfinite(bound).all()
        right = exact_ridge(X, Y, alpha)
        assert (np.abs(found - right) <= bound + 4e-16 * np.abs(right)).all(), seed
        assert is_claimed or not (model.certificate_.holds or model.fitted_.holds), seed
        n_claimed += is_claimed
        n_unresolved += model.status_ is Status.UNRESOLVED
        if is_claimed and seed % 4 == 1:
            n_broken += not (np.abs(found - exact_ridge(X, Y, 2 * alpha + 1e-6)) <= bound).all()
    assert n_claimed > 40
    assert n_unresolved > 20
    assert n_broken > 3


@pytest.mark.parametrize(("alpha", "scale"), [(1e-26, 1.0), (1e-30, 1.0), (1.0, 1e13)])
def test_a_penalty_below_rounding_has_the_minimum_norm_and_guarantees_nothing(alpha, scale):
    """3.6/7 of each copy: the slope of y on one column is 36/35."""
    with pytest.warns(ConvergenceWarning, match="minimum norm") as said:
        model = FederatedRidge(alpha).fit(scale * X, Y, client=[1, 1, 2, 2])
    assert "ridge" not in str(said[0].message)
    assert_allclose(scale * model.coef_, [18 / 35, 18 / 35], rtol=1e-13)
    assert model.status_ is Status.UNRESOLVED
    assert not model.certificate_.holds
    assert not model.fitted_.holds
    assert model.certificate_.distance.sd_units == np.inf
    assert model.fitted_.fit_name == "penalised likelihood (posterior mode)"
    assert [row.std_err is None for row in model.summary().rows] == [True, True, False]
    assert [finding.column for finding in model.fitted_.findings] == ["x1"]


@pytest.mark.parametrize("alpha", [1e-20, 1e-10, 1e-3, 1.0])
def test_a_penalty_above_rounding_is_not_divided_into_it(alpha):
    model = quiet(FederatedRidge(alpha), X, Y, [1, 1, 2, 2])
    assert_allclose(model.coef_, exact_ridge(X, Y[:, None], alpha)[0, :2], rtol=1e-12)


# ----------------------------------------------------------------------------------------------------
# Least squares: held at zero, or of minimum norm
# ----------------------------------------------------------------------------------------------------


def dependent(seed, q=None):
    """Return rows whose columns are copies, sums, a constant and zeros beside p of their own."""
    rng = np.random.default_rng(seed)
    n, p = int(rng.integers(8, 30)), int(rng.integers(1, 4))
    X = rng.standard_normal((n, p)) + rng.integers(0, 6)
    more = [2.0 * X[:, 0], X.sum(axis=1), np.full(n, 0.1), np.zeros(n)][: int(rng.integers(1, 5))]
    X = np.column_stack([X, *more])
    return X[:, rng.permutation(X.shape[1])], rng.standard_normal(n if q is None else (n, q)), np.arange(n) % 3


@pytest.mark.parametrize("q", [None, 2])
@pytest.mark.parametrize("has_intercept", [True, False])
def test_the_minimum_norm_is_scikit_learns(q, has_intercept):
    """To 1e-10 of the largest coefficient: columns of a condition below 1e3, times rounding, times 1e3."""
    for seed in range(12):
        X, y, site = dependent(seed, q)
        model = quiet(FederatedLinearRegression(dependent="minimum_norm", fit_intercept=has_intercept), X, y, site)
        held = quiet(FederatedLinearRegression(fit_intercept=has_intercept), X, y, site)
        theirs = LinearRegression(fit_intercept=has_intercept).fit(X, y)
        size = np.abs(theirs.coef_).max()
        assert_allclose(model.coef_, theirs.coef_, rtol=0, atol=1e-10 * size, err_msg=str(seed))
        assert_allclose(model.intercept_, theirs.intercept_, rtol=0, atol=1e-9 * (1 + size))
        assert_allclose(model.predict(X), held.predict(X), rtol=0, atol=1e-10)
        assert np.linalg.norm(model.coef_) <= np.linalg.norm(np.nan_to_num(held.coef_)) * (1 + 1e-12)
        assert model.certificate_.holds
        assert model.fitted_.fit_name == "maximum likelihood"
        ours, rs = model.fitted_.goodness(), held.fitted_.goodness()
        assert (ours.df_residual, ours.df_model) == (rs.df_residual, rs.df_model)
        assert_allclose((ours.aic, ours.deviance), (rs.aic, rs.deviance), rtol=1e-10)
        assert [str(one) for one in model.fitted_.findings] == [str(one) for one in held.fitted_.findings]


def test_a_coefficient_that_rows_do_not_determine_has_no_standard_error(tmp_path):
    rng = np.random.default_rng(3)
    X = rng.standard_normal((40, 3)) + 5.0
    X, y = np.column_stack([X, X[:, 0] + X[:, 1]]), rng.standard_normal(40)
    model = quiet(FederatedLinearRegression(dependent="minimum_norm"), X, y, np.arange(40) % 4)
    held = quiet(FederatedLinearRegression(), X, y, np.arange(40) % 4)
    rows = model.summary().rows
    assert [row.name for row in rows if row.std_err is None] == ["x0", "x1", "x3"]
    assert all(np.isfinite(row.coef) for row in rows)
    assert_allclose([rows[2].std_err, rows[4].std_err], [held.summary().rows[j].std_err for j in (2, 4)], rtol=1e-9)
    assert "x0, x1, x3" in model.summary().note
    with pytest.raises(ValueError, match="not estimable: x3 = x0 \\+ x1"):
        contrast(model.fitted_, {"x0": 1.0})
    assert_allclose(contrast(model.fitted_, {"x0": 1.0, "x3": 1.0}).std_err, rows_of(held)["x0"].std_err, rtol=1e-9)
    # a row off the dependence has the minimum norm's prediction, as in scikit-learn, and no standard deviation
    off = np.add(X[:3], [0.0, 0.0, 0.0, 1.0])
    assert_allclose(model.predict(off), LinearRegression().fit(X, y).predict(off), rtol=1e-10)
    with pytest.warns(UserWarning, match="3 of 3 rows are not estimable"):
        assert np.isnan(model.predict(off, return_std=True)[1]).all()
    assert_allclose(model.predict(X[:3], return_std=True)[1], held.predict(X[:3], return_std=True)[1], rtol=1e-9)
    for how in ("wald", "lr"):
        ours, theirs = (one.test_terms(how=how)[2] for one in (model, held))
        assert_allclose((ours.statistic, ours.p_value), (theirs.statistic, theirs.p_value), rtol=1e-8)
    save_model(tmp_path / "model.npz", model.fitted_)
    read = load_model(tmp_path / "model.npz")
    assert str(summarise(read)) == str(model.summary())
    assert read.holds
