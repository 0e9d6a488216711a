"""Least squares from the triangular factors that sites send: NIST's certified values, pooled fits, what is refused."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from bayesadmm_np.losses import stacked_qr
from bayesadmm_np.losses.stacked_qr import site_factor, solve_stacked
from oracles import strd
from oracles.refusals import assert_refused

EPS = np.finfo(float).eps
IS_EXTENDED = np.finfo(np.longdouble).eps < EPS
"""Whether the processor has a long double."""

SPLITS = {
    "in turn": lambda n: np.arange(n) % 3,
    "in blocks": lambda n: np.arange(n) * 3 // n,
    "one row, two rows, the rest": lambda n: np.minimum(np.arange(n), 3) // 2 + (np.arange(n) > 0),
}


def split(X, y, sites, weights=None):
    rows = [X, y] if weights is None else [X, y, weights]
    return [tuple(part[sites == k] for part in rows) for k in np.unique(sites)]


def fit_least_squares(sites, has_intercept=True, **options):
    return solve_stacked([site_factor(*rows, has_intercept=has_intercept) for rows in sites], **options)


def covariance_root(fit):
    """C with covariance σ² C Cᵀ of the coefficients and then the intercept; NaN of a column that is left out."""
    p, d = fit.centre.size, fit.information_root.shape[1]
    kept = [j for j in range(d) if j >= p or not np.isnan(fit.coef[0, j])]
    root = np.full((d, len(kept)), np.nan)
    root[kept] = np.linalg.inv(fit.information_root[:, kept])
    if d > p:
        root[p] -= fit.centre @ np.nan_to_num(root[:p])
    return root


def std_err(fit):
    return np.outer(np.sqrt(fit.variance), np.sqrt((covariance_root(fit) ** 2).sum(axis=1)))


def table(n=40, p=4, q=None, seed=0, far=0.0):
    rng = np.random.default_rng(seed)
    X = far + rng.standard_normal((n, p))
    y = X @ rng.standard_normal((p, q or 1)) + 2.0 + rng.standard_normal((n, q or 1))
    return X, y if q else y[:, 0], rng


# ----------------------------------------------------------------------------------------------------
# NIST
# ----------------------------------------------------------------------------------------------------


def pooled_qr(X, y):
    """Return coefficients and standard errors by LAPACK's Householder QR on the pooled table, as R's `lm` has them."""
    design = np.column_stack([np.ones(len(X)), X])
    Q, R = np.linalg.qr(design)
    coef = np.linalg.solve(R, Q.T @ y)
    rss = ((y - design @ coef) ** 2).sum()
    inverse = np.linalg.solve(R, np.eye(len(coef)))
    return coef, np.sqrt(rss / (len(y) - len(coef))) * np.linalg.norm(inverse, axis=1)


def pooled_sums(X, y):
    """The broken twin: sites send XᵀX and Xᵀy."""
    design = np.column_stack([np.ones(len(X)), X])
    gram, sums = design.T @ design, design.T @ y
    coef = np.linalg.solve(gram, sums)
    rss = ((y - design @ coef) ** 2).sum()
    return coef, np.sqrt(rss / (len(y) - len(coef)) * np.abs(np.diag(np.linalg.inv(gram))))


def right_digits(problem, coef, std_err):
    return strd.digits(coef, problem.coef), strd.digits(std_err, problem.std_err)


def stacked(problem, sites):
    fit = fit_least_squares(split(problem.X, problem.y, sites(len(problem.y))))
    return np.append(fit.intercept, fit.coef), np.roll(std_err(fit)[0], 1)


@pytest.mark.parametrize("name", strd.PROBLEMS)
def test_the_transcribed_data_have_the_certified_values(name):
    """In rational numbers. Certified values have 15 digits: half a unit of the last of 1.0… is 5e-15."""
    problem = strd.PROBLEMS[name]
    coef, squares, rss = strd.exact(problem.rows, problem.target)
    assert_allclose([float(b) for b in coef], problem.coef, rtol=5e-15)
    assert_allclose(np.sqrt([float(s) for s in squares]), problem.std_err, rtol=5e-15)
    assert_allclose(np.sqrt(float(rss) / (len(problem.y) - len(coef))), problem.residual_sd, rtol=5e-15)


@pytest.mark.parametrize("sites", SPLITS.values(), ids=SPLITS)
@pytest.mark.parametrize("name", ["Longley", "Norris"])
def test_eleven_right_digits_at_three_sites(name, sites):
    assert min(right_digits(strd.PROBLEMS[name], *stacked(strd.PROBLEMS[name], sites))) >= 11


@pytest.mark.parametrize("sites", SPLITS.values(), ids=SPLITS)
@pytest.mark.parametrize("name", [name for name in strd.PROBLEMS if name not in ("Longley", "Norris")])
def test_at_least_the_digits_of_a_qr_of_the_pooled_table(name, sites):
    """As many as the median order of the pooled rows has, but for a factor of two, 0.3 digits.

    A backward-stable factorisation draws its rounding anew for each order of the rows and each BLAS: over twenty orders
    Wampler2 has 12.8 digits in the median, and 13.7 in its own order on one processor. Filip loses to its own rounding:
    the exact solution of its table of doubles has 7.7 right digits. The broken twin below misses by 3 to 7 digits.
    """
    problem, rng = strd.PROBLEMS[name], np.random.default_rng(0)
    orders = [rng.permutation(len(problem.y)) for _ in range(20)]
    pooled = [right_digits(problem, *pooled_qr(problem.X[order], problem.y[order])) for order in orders]
    ours = right_digits(problem, *stacked(problem, sites))
    assert all(found >= least - 0.3 for found, least in zip(ours, np.median(pooled, axis=0), strict=True))


@pytest.mark.skipif(not IS_EXTENDED, reason="this processor has no long double")
@pytest.mark.parametrize("sites", SPLITS.values(), ids=SPLITS)
@pytest.mark.parametrize("name", ["Longley", "Wampler1", "Wampler3", "Wampler4", "Wampler5"])
def test_a_long_double_wins_digits_over_the_pooled_table(name, sites):
    """Of tables of integers, which doubles hold exactly: a factor of five. The rest goes where R is sent as doubles."""
    problem = strd.PROBLEMS[name]
    coef, _ = right_digits(problem, *stacked(problem, sites))
    assert coef >= right_digits(problem, *pooled_qr(problem.X, problem.y))[0] + 0.7


@pytest.mark.parametrize("name", ["Longley", "Filip", "Wampler1", "Wampler3", "Wampler4"])
def test_plain_sums_lose_digits(name):
    problem = strd.PROBLEMS[name]
    assert right_digits(problem, *pooled_sums(problem.X, problem.y))[0] < (
        right_digits(problem, *stacked(problem, SPLITS["in turn"]))[0] - 1.5
    )


def test_plain_sums_have_fewer_than_nine_digits_of_longley():
    problem = strd.PROBLEMS["Longley"]
    assert max(right_digits(problem, *pooled_sums(problem.X, problem.y))) < 9


def test_a_column_far_from_zero_loses_no_digits(monkeypatch):
    """Entries 1e8 + x, x of 20 bits, are exact: so is x, and its fit is that of x. Without the shift 7 digits go."""
    X, y, _ = table(30, 2)
    X = np.round(X * 2**18) / 2**18
    near, far = (fit_least_squares(split(at, y, SPLITS["in turn"](30))) for at in (X, X + 2.0**26))
    assert_allclose(far.coef, near.coef, rtol=100 * EPS)
    assert_allclose(std_err(far)[0, :-1], std_err(near)[0, :-1], rtol=100 * EPS)
    monkeypatch.setattr(stacked_qr, "_triangle", lambda rows: np.linalg.qr(rows.astype(float), mode="r"))
    without = fit_least_squares([(np.column_stack([X + 2.0**26, np.ones(30)]), y)], has_intercept=False)
    assert np.abs(without.coef[0, :2] / near.coef[0] - 1).max() > 1e-11


# ----------------------------------------------------------------------------------------------------
# The pooled fit
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_intercept", [True, False])
@pytest.mark.parametrize("q", [None, 3])
def test_any_split_is_the_pooled_fit_in_closed_form(q, has_intercept):
    X, y, rng = table(q=q, far=3.0)
    weights, offset = rng.uniform(0.2, 3.0, 40), rng.standard_normal(y.shape)
    weights[::7] = 0.0
    design = np.column_stack([X, np.ones(40)]) if has_intercept else X
    root = np.sqrt(weights)
    goal = (y - offset).reshape(40, -1)
    coef = np.linalg.lstsq(root[:, None] * design, root[:, None] * goal)[0].T
    rss = weights @ (goal - design @ coef.T) ** 2
    inverse = np.linalg.inv(design.T @ (weights[:, None] * design))
    df = weights.sum() - design.shape[1]
    for sites in (np.zeros(40), np.arange(40) % 3, np.arange(40)):
        rows = [(X[sites == k], y[sites == k], weights[sites == k], offset[sites == k]) for k in np.unique(sites)]
        fit = fit_least_squares(rows, has_intercept=has_intercept)
        # the condition number of the design is below 20
        assert_allclose(fit.coef, coef[:, :4], rtol=1e-12)
        assert_allclose(fit.intercept, coef[:, 4] if has_intercept else np.zeros(len(coef)), rtol=1e-12)
        assert_allclose(fit.rss, rss, rtol=1e-12)
        root = covariance_root(fit)
        assert_allclose(fit.variance[:, None, None] * (root @ root.T), (rss / df)[:, None, None] * inverse, rtol=1e-11)
        assert_allclose(fit.df, df, rtol=1e-14)
        there = np.eye(design.shape[1])
        there[-1, :4] += fit.centre * has_intercept
        information = (fit.information_root @ there).T @ (fit.information_root @ there)
        assert_allclose(information, np.linalg.inv(inverse), rtol=1e-11)


def test_a_frequency_weight_of_two_is_the_row_twice_and_an_analytic_one_is_not():
    X, y, _ = table()
    twice = np.arange(40) % 4 == 0
    weighted = fit_least_squares(split(X, y, np.arange(40) % 3, 1.0 + twice))
    repeated = fit_least_squares([(np.concatenate([X, X[twice]]), np.concatenate([y, y[twice]]))])
    analytic = fit_least_squares(split(X, y, np.arange(40) % 3, 1.0 + twice), weight_kind="analytic")
    assert_allclose(std_err(weighted), std_err(repeated), rtol=1e-12)
    for name in ("coef", "df", "rss"):
        assert_allclose(getattr(weighted, name), getattr(repeated, name), rtol=1e-13)
    assert (analytic.df, repeated.df) == (35, 45)
    assert_allclose(analytic.coef, repeated.coef, rtol=1e-13)
    assert_allclose(analytic.variance, analytic.rss / 35, rtol=1e-15)
    # scaling analytic weights scales the variance alone
    thrice = fit_least_squares(split(X, y, np.arange(40) % 3, 3.0 + 3.0 * twice), weight_kind="analytic")
    assert_allclose(std_err(thrice), std_err(analytic), rtol=1e-13)


def test_statsmodels_has_the_same_table():
    sm = pytest.importorskip("statsmodels.api")
    X, y, rng = table()
    weights = rng.uniform(0.2, 3.0, 40)
    for given, options in ((None, {}), (weights, {"weight_kind": "analytic"})):
        fit = fit_least_squares(split(X, y, np.arange(40) % 3, given), **options)
        theirs = sm.WLS(y, sm.add_constant(X), weights=1.0 if given is None else given).fit()
        assert_allclose(np.append(fit.intercept, fit.coef), theirs.params, rtol=1e-12)
        assert_allclose(np.roll(std_err(fit)[0], 1), theirs.bse, rtol=1e-12)
        assert_allclose((fit.rss[0], fit.df), (theirs.ssr, theirs.df_resid), rtol=1e-12)


@pytest.mark.parametrize("alpha", [0.0, 1e-3, 2.0, np.array([0.0, 1.0, 2.0, 3.0])], ids=str)
def test_a_penalty_is_scikit_learns_alpha(alpha):
    X, y, _ = table(q=2, far=5.0)
    fit = fit_least_squares(split(X, y, np.arange(40) % 3), penalty=alpha)
    centred = X - X.mean(axis=0)
    gram = centred.T @ centred
    penalised = gram + np.diag(np.broadcast_to(alpha, 4))
    coef = np.linalg.solve(penalised, centred.T @ y).T
    assert_allclose(fit.coef, coef, rtol=1e-11)
    assert_allclose(fit.intercept, y.mean(axis=0) - coef @ X.mean(axis=0), rtol=1e-11)
    assert_allclose(fit.rss, ((y - X @ fit.coef.T - fit.intercept) ** 2).sum(axis=0), rtol=1e-12)
    assert_allclose(fit.parameters, 1 + np.trace(np.linalg.solve(penalised, gram)), rtol=1e-12)
    assert_allclose(covariance_root(fit)[:4] @ covariance_root(fit)[:4].T, np.linalg.inv(penalised), rtol=1e-11)


@pytest.mark.parametrize("scale", [1e-150, 1e150])
def test_units_do_not_matter(scale):
    if scale > 1 and not IS_EXTENDED:
        pytest.skip("squares overflow in doubles")
    X, y, _ = table()
    fit = fit_least_squares(split(X, y, np.arange(40) % 3))
    other = fit_least_squares(split(X * [scale, 1.0, 1.0, 1.0], y, np.arange(40) % 3))
    assert_allclose(other.coef * [scale, 1.0, 1.0, 1.0], fit.coef, rtol=1e-13)
    assert other.collinear == ()


def test_large_factorisations_are_lapacks(monkeypatch):
    X, y, _ = table()
    fit = fit_least_squares(split(X, y, np.arange(40) % 3))
    monkeypatch.setattr(stacked_qr, "MOST_EXTENDED", 0)
    other = fit_least_squares(split(X, y, np.arange(40) % 3))
    assert_allclose(std_err(other), std_err(fit), rtol=1e-12)
    assert_allclose(other.coef, fit.coef, rtol=1e-12)


# ----------------------------------------------------------------------------------------------------
# Collinear columns
# ----------------------------------------------------------------------------------------------------


def collinear(*columns, has_intercept=True):
    X, y, _ = table(30, 3, far=7.0)
    extra = [column(X) for column in columns]
    names = ["a", "b", "c", *(f"z{j}" for j in range(len(extra)))]
    rows = split(np.column_stack([X, *extra]), y, np.arange(30) % 3)
    return fit_least_squares(rows, has_intercept=has_intercept, names=names)


@pytest.mark.parametrize(
    "column",
    [
        lambda X: X[:, 0],
        lambda X: 2.0 * X[:, 1] + 32.0,
        lambda X: 0.1 * X[:, 0] + 0.7 * X[:, 1] - 1e3 * X[:, 2],
        lambda X: (X[:, 0] - X[:, 0].mean()) / X[:, 0].std(),
        lambda X: np.full(30, 0.1),
        lambda X: np.zeros(30),
    ],
    ids=["copy", "other units", "combination", "standardised", "constant", "zero"],
)
def test_collinear_columns_are_left_out_by_name(column):
    fit, without = collinear(column), collinear()
    assert fit.collinear == ("z0",)
    assert fit.rank == without.rank == 4
    assert np.isnan(fit.coef[0, 3])
    assert np.isnan(std_err(fit)[0, 3])
    assert_allclose(fit.coef[0, :3], without.coef[0], rtol=1e-12)
    assert_allclose(std_err(fit)[0, [0, 1, 2, 4]], std_err(without)[0], rtol=1e-12)


def test_a_column_that_is_nearly_collinear_is_kept():
    """The broken twin of the check above: 1e-9 of another column is no rounding, and the fit says how close it was."""
    fit = collinear(lambda X: X[:, 0] + 1e-9 * np.sin(np.arange(30)))
    assert fit.collinear == ()
    assert 1e-12 < fit.closeness < 1e-9


def test_a_constant_is_collinear_with_an_intercept_alone():
    assert collinear(lambda X: np.full(30, 0.1)).collinear == ("z0",)
    assert collinear(lambda X: np.full(30, 0.1), has_intercept=False).collinear == ()


def test_fewer_rows_than_columns_leave_the_last_columns_out():
    X, y, _ = table(4, 6)
    fit = fit_least_squares([(X, y)])
    assert fit.collinear == ("x3", "x4", "x5")
    assert (fit.rank, fit.df) == (4, 0)
    assert np.isnan(fit.variance).all()
    assert fit_least_squares([(X, y)], penalty=1.0).collinear == ()


# ----------------------------------------------------------------------------------------------------
# What a site sends, and what is refused
# ----------------------------------------------------------------------------------------------------


def test_a_site_sends_a_triangle_whatever_its_rows():
    X, y, _ = table(1000, 4)
    factor = site_factor(X, y)
    m = 6
    assert factor.root.shape == (m, m)
    assert not np.tril(factor.root, -1).any()
    assert factor.floats == m * (m + 1) // 2 + 5 + 3
    assert solve_stacked([factor, site_factor(X[:3], y[:3])]).floats == factor.floats + (6 + 5 + 4) + 5 + 3


def test_a_site_without_weight_changes_nothing():
    X, y, _ = table()
    fit = fit_least_squares([(X, y)])
    other = fit_least_squares([(X, y), (X[:3], y[:3], np.zeros(3))])
    assert_allclose(other.coef, fit.coef, rtol=1e-14)
    assert other.df == fit.df


def test_wrong_arguments_are_named():
    X, y, _ = table()
    one, other = site_factor(X, y), site_factor(X[:, :2], y)
    given = [("X", [[np.nan]]), ("y", [1.0, 2.0]), ("weights", [-1.0]), ("offset", [np.inf]), ("offset", [1.0, 2.0])]
    options = [("penalty", -1.0), ("penalty", [1.0]), ("weight_kind", "size")]
    with np.errstate(over="ignore"):
        assert_refused(
            [
                *((lambda a=a, b=b: site_factor(**{"X": [[1.0]], "y": [1.0], a: b}), a) for a, b in given),
                (lambda: site_factor([[1.0]], [1e308], offset=[-1e308]), "offset"),
                *((lambda a=a, b=b: solve_stacked([one], **{a: b}), a) for a, b in options),
                (lambda: solve_stacked([one, other]), "factors"),
                (lambda: solve_stacked([site_factor(X, y, np.zeros(40))]), "factors"),
            ]
        )


@pytest.mark.parametrize("penalty", [0.0, 0.5])
def test_the_shortest_solution_is_that_of_the_pseudoinverse(penalty):
    """Least ‖β‖ where columns depend; a ridge penalty leaves that plane by itself, so that there the answer is its own.

    Errors are those of least squares with a condition of about 10, a hundred ulp.
    """
    X, y, _ = table(30, 4)
    X = np.column_stack([X, X[:, 0] + 3.0 * X[:, 1], -2.0 * X[:, 2]])
    fit = fit_least_squares(split(X, y, np.arange(30) % 3), penalty=penalty, shortest=True)
    away, goal = X - X.mean(axis=0), y - y.mean()
    rows = np.vstack([away, np.sqrt(penalty) * np.eye(6)])
    expected = np.linalg.lstsq(rows, np.append(goal, np.zeros(6)), rcond=1e-10)[0]
    assert_allclose(fit.coef[0], expected, rtol=1e-11, atol=1e-12)
