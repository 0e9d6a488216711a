"""Losses at a point: values against plain formulas, derivatives by `check_loss`, margins, bad input, known optima."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import digamma

import bayesadmm_np as ba
from oracles.refusals import assert_refused

F, L = ba.families, ba.losses
N, P = 9, 3

# ----------------------------------------------------------------------------------------------------
# Plain formulas: sums over rows, one line each, sharing nothing with the package
# ----------------------------------------------------------------------------------------------------


def plain_least_squares(theta, X, y, w, offset):
    matrix = theta.reshape(-1, X.shape[1])
    residual = X @ matrix.T + offset.reshape(len(X), -1) - y.reshape(len(X), -1)
    return 0.5 * np.sum(w[:, None] * residual**2)


def plain_logistic(theta, X, y, w, offset):
    f = X @ theta + offset
    return np.sum(w * (np.log(1 + np.exp(f)) - y * f))


def plain_poisson(theta, X, y, w, offset):
    f = X @ theta + offset
    return np.sum(w * (np.exp(f) - y * f))


def plain_softmax(theta, X, y, w, offset):
    f = X @ theta.reshape(-1, X.shape[1]).T + offset
    return np.sum(w * (np.log(np.exp(f).sum(axis=1)) - f[np.arange(len(y)), y]))


def plain_reference_softmax(theta, X, y, w, offset):
    ours, zero = X @ theta.reshape(-1, X.shape[1]).T + offset, np.zeros((len(y), 1))
    f = np.hstack([zero, ours])
    return np.sum(w * (np.log(np.exp(f).sum(axis=1)) - f[np.arange(len(y)), y]))


# name: (class, outputs, draw of y, extra arguments, plain formula)
KINDS = {
    "least squares": (L.LeastSquares, 1, lambda rng: rng.standard_normal(N), {}, plain_least_squares),
    "least squares, 2 outputs": (L.LeastSquares, 2, lambda rng: rng.standard_normal((N, 2)), {}, plain_least_squares),
    "logistic": (L.Logistic, 1, lambda rng: rng.integers(0, 2, N), {}, plain_logistic),
    "softmax": (L.Softmax, 3, lambda rng: rng.integers(0, 3, N), {"n_classes": 3}, plain_softmax),
    "softmax, reference": (
        L.ReferenceSoftmax,
        2,
        lambda rng: rng.integers(0, 3, N),
        {"n_classes": 3},
        plain_reference_softmax,
    ),
    "poisson": (L.Poisson, 1, lambda rng: rng.poisson(2.0, N).astype(float), {}, plain_poisson),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


class Drawn:
    """A loss with the arrays that it was made of."""

    def __init__(self, kind, seed, weighted=True, offset=True):
        self.cls, self.outputs, draw, self.extra, self.plain = KINDS[kind]
        rng = np.random.default_rng(seed)
        self.X = rng.standard_normal((N, P))
        self.y = draw(rng)
        self.w = rng.uniform(0.2, 3.0, N) if weighted else np.ones(N)
        shape = N if self.outputs == 1 else (N, self.outputs)
        self.offset = rng.standard_normal(shape) if offset else np.zeros(shape)
        self.theta = rng.standard_normal(P * self.outputs)
        self.rng = rng

    def loss(self, weights="own", offset="own"):
        arguments = {"weights": self.w if isinstance(weights, str) else weights}
        arguments["offset"] = self.offset if isinstance(offset, str) else offset
        return self.cls(self.X, self.y.copy(), **self.extra, **arguments)

    def reference(self, theta):
        return self.plain(theta, self.X, self.y, self.w, self.offset)


def total_of(seed):
    """Return a sum of three different losses of the same dimension, and its plain formula."""
    parts = [Drawn(kind, seed + i) for i, kind in enumerate(["least squares", "logistic", "poisson"])]
    loss = L.Total([part.loss() for part in parts])
    return parts[0], loss, lambda theta: sum(part.reference(theta) for part in parts)


def drawn(kind, seed=0):
    if kind == "total":
        return total_of(seed)
    case = Drawn(kind, seed)
    return case, case.loss(), case.reference


every_loss = pytest.mark.parametrize("kind", [*KINDS, "total"])

# ----------------------------------------------------------------------------------------------------
# Values
# ----------------------------------------------------------------------------------------------------


@every_loss
@pytest.mark.parametrize("seed", range(5))
def test_value_is_the_plain_formula(kind, seed):
    """Sums of N terms of size at most 1e3: 1e-12 relative is about 1000 roundings."""
    case, loss, reference = drawn(kind, seed)
    assert loss.value(case.theta) == pytest.approx(reference(case.theta), rel=1e-12)
    assert loss.dim == case.theta.size
    assert loss.n_rows == (3 * N if kind == "total" else N)


@every_kind
def test_a_loss_is_a_sum_not_a_mean(kind):
    case = Drawn(kind, 1)
    assert case.loss().value(case.theta) != pytest.approx(case.reference(case.theta) / N, rel=1e-3)


@given(kind=st.sampled_from(list(KINDS)), seed=st.integers(0, 2**32 - 1))
def test_weights_are_duplicated_rows(kind, seed):
    case = Drawn(kind, seed)
    copies = case.rng.integers(0, 4, N)
    copies[0] = 2  # at least one row stays
    offset = np.repeat(case.offset, copies, axis=0)
    many = case.cls(np.repeat(case.X, copies, axis=0), np.repeat(case.y, copies, axis=0), **case.extra, offset=offset)
    few = case.loss(weights=copies)
    assert few.value(case.theta) == pytest.approx(many.value(case.theta), rel=1e-11, abs=1e-11)
    for name in ("gradient", "hessian"):
        a, b = getattr(few, name)(case.theta), getattr(many, name)(case.theta)
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12 * np.abs(b).max())


@given(kind=st.sampled_from(list(KINDS)), seed=st.integers(0, 2**32 - 1))
def test_offset_is_a_column_with_a_known_coefficient(kind, seed):
    """One more column a class, of coefficient one for its own class and zero for the others."""
    case = Drawn(kind, seed)
    columns = case.offset.reshape(N, -1)
    wide = case.cls(np.hstack([case.X, columns]), case.y.copy(), **case.extra, weights=case.w)
    rows = case.theta.reshape(case.outputs, P)
    extended = np.hstack([rows, np.eye(case.outputs)])
    loss = case.loss()
    assert loss.value(case.theta) == pytest.approx(wide.value(extended.ravel()), rel=1e-11, abs=1e-11)
    inner = wide.gradient(extended.ravel()).reshape(case.outputs, -1)[:, :P].ravel()
    np.testing.assert_allclose(loss.gradient(case.theta), inner, rtol=0, atol=1e-11 * max(1, np.abs(inner).max()))


def test_least_squares_keeps_one_gram_matrix_for_all_outputs(rng):
    """p = 40 and C = 500 outputs: the dense Hessian would have 4e8 entries (3.2 GB)."""
    X, y = rng.standard_normal((60, 40)), rng.standard_normal((60, 500))
    loss = L.LeastSquares(X, y)
    q = ba.families.DiagonalGaussian(np.zeros(loss.dim), 2.0)
    expected = loss.expect(q, loss.check(q, L.Auto()))
    assert expected.value == pytest.approx(0.5 * np.sum(y**2) + 0.25 * 500 * np.sum(X**2), rel=1e-12)
    np.testing.assert_allclose(expected.projected[0], np.tile((X**2).sum(axis=0), 500), rtol=1e-12)


# ----------------------------------------------------------------------------------------------------
# Margins (warnings are errors here: see pyproject.toml)
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1e3, 1e20])
@pytest.mark.parametrize("by", ["theta", "offset"])
def test_logistic_at_far_margins(size, by):
    """Right side: value, slope and curvature below exp(−1000) = 0. Wrong side: value = margin, slope one."""
    x = np.array([1.0, 0.0])
    for label in (0, 1):
        for sign in (-1.0, 1.0):
            offset = [sign * size] if by == "offset" else None
            theta = x * (sign * size if by == "theta" else 0.0)
            loss = L.Logistic([x], [label], offset=offset)
            wrong = (sign > 0) != bool(label)
            assert loss.value(theta) == (size if wrong else 0.0)
            np.testing.assert_array_equal(loss.gradient(theta), x * (sign if wrong else 0.0))
            np.testing.assert_array_equal(loss.hessian(theta), 0.0)


@pytest.mark.parametrize("size", [1e3, 1e20])
def test_softmax_at_far_margins(size):
    """Predictors (f, 0, −f): the winner has probability one to the last bit."""
    for sign in (-1.0, 1.0):
        theta = sign * size * np.array([1.0, 0.0, -1.0])
        probabilities = np.eye(3)[0 if sign > 0 else 2]
        for label in range(3):
            loss = L.Softmax([[1.0]], [label], 3)
            assert loss.value(theta) == size - theta[label]
            np.testing.assert_array_equal(loss.gradient(theta), probabilities - np.eye(3)[label])
            np.testing.assert_array_equal(loss.hessian(theta), 0.0)


@pytest.mark.parametrize("size", [1e3, 1e20])
def test_poisson_at_far_negative_margins(size):
    """The rate is below exp(−1000) = 0: value y·margin, slope −y."""
    loss = L.Poisson([[1.0, 0.0]], [3.0])
    theta = np.array([-size, 1.0])
    assert loss.value(theta) == 3 * size
    np.testing.assert_array_equal(loss.gradient(theta), [-3.0, 0.0])
    np.testing.assert_array_equal(loss.hessian(theta), 0.0)


def test_poisson_beyond_the_largest_float_is_infinite():
    """exp(1000) is not a float: infinite, and not NaN."""
    loss = L.Poisson([[1.0]], [3.0])
    assert loss.value([1e3]) == np.inf
    np.testing.assert_array_equal(loss.gradient([1e3]), [np.inf])


def test_least_squares_value_near_a_good_fit_of_large_targets():
    """y = 1e8 + noise (an identifier, a time stamp): the value is 0.5 · 0.02, and certainly not negative.

    A residual of size 0.1 next to targets of 1e8 is known to 1e8 · eps / 0.1 = 2e-7, its square to twice that.
    """
    y = 1e8 + np.array([0.1, 0.0, 0.2])
    loss = L.LeastSquares(np.ones((3, 1)), y)
    theta = 1e8 + 0.1
    assert loss.value([theta]) == pytest.approx(0.5 * np.sum((y - theta) ** 2), rel=1e-5)


# ----------------------------------------------------------------------------------------------------
# What a loss is made of stays the caller's
# ----------------------------------------------------------------------------------------------------


@every_kind
def test_arguments_are_not_frozen(kind):
    case = Drawn(kind, 0)
    case.cls(case.X, case.y, **case.extra, weights=case.w, offset=case.offset)
    assert all(array.flags.writeable for array in (case.X, case.y, case.w, case.offset))


@every_loss
def test_results_are_new_arrays(kind):
    case, loss, _ = drawn(kind)
    for name in ("gradient", "hessian"):
        first = getattr(loss, name)(case.theta)
        kept = first.copy()
        first += 1.0
        np.testing.assert_array_equal(getattr(loss, name)(case.theta), kept)


# ----------------------------------------------------------------------------------------------------
# Bad input: every message names the argument
# ----------------------------------------------------------------------------------------------------

NAN = np.nan
COMMON = [
    *(("X", bad) for bad in (np.empty((2, 0)), [1.0, 2.0], None, [[1.0, NAN], [0.0, 1.0]], [[1.0, 2.0], [1.0]])),
    *(("X", bad) for bad in ([["a", "b"], ["c", "d"]], np.empty((0, 2)))),
    *(("y", bad) for bad in ([0.0, NAN], None, [0, [1]], [0, 1, 1], np.zeros((2, 1, 1)))),
    *(("weights", bad) for bad in ([1.0], [[1.0, 1.0]], [1.0, -0.5], [1.0, NAN])),
    *(("offset", bad) for bad in ([0.0, NAN], [0.0, 1.0, 2.0], 1.0)),
]
LABELS = [("y", bad) for bad in ([0, -1], [0, 3], [0, 0.5], [0, 1e30], [[0], [1]])]
OFFSETS = [("offset", np.zeros(2)), ("offset", np.zeros((3, 2)))]
OWN = {
    L.LeastSquares: ({}, []),
    L.Logistic: ({}, [*LABELS, ("y", [0, 2])]),
    L.Poisson: ({}, [("y", [0, -1])]),
    L.Softmax: ({"n_classes": 3}, [*LABELS, *OFFSETS, *(("n_classes", bad) for bad in (1, 3.0, None))]),
    L.ReferenceSoftmax: ({"n_classes": 3}, [*LABELS, *OFFSETS, ("n_classes", 2)]),
}


@pytest.mark.parametrize("cls", OWN)
def test_bad_input_is_refused_with_the_name_of_the_argument(cls):
    extra, own = OWN[cls]
    good = {"X": [[1.0, 2.0], [3.0, 4.0]], "y": [0, 1], **extra}
    cls(**good)
    assert_refused((lambda a=argument, b=bad: cls(**{**good, a: b}), argument) for argument, bad in [*COMMON, *own])


def test_offset_of_one_output_in_a_column():
    X, y, offset = [[1.0], [2.0]], [[1.0], [2.0]], [[0.5], [1.0]]
    assert L.LeastSquares(X, y, offset=offset).value([0.0]) == pytest.approx(0.5 * (0.5**2 + 1.0**2))


@every_loss
@pytest.mark.parametrize("name", ["value", "gradient", "hessian"])
def test_bad_theta(kind, name):
    case, loss, _ = drawn(kind)
    with pytest.raises(ValueError, match=rf"theta must have shape \({loss.dim},\), got \({loss.dim + 1},\)"):
        getattr(loss, name)(np.zeros(loss.dim + 1))
    with pytest.raises(ValueError, match="theta must be finite"):
        getattr(loss, name)(np.full(loss.dim, NAN))
    with pytest.raises(ValueError, match="theta must be 1-dimensional"):
        getattr(loss, name)(case.theta.reshape(1, -1))


def test_bad_totals():
    one, two = L.LeastSquares([[1.0]], [1.0]), L.LeastSquares([[1.0, 2.0]], [1.0])
    assert_refused(
        [
            *((lambda bad=bad: L.Total(bad), "clients") for bad in ([], one, [1.0], None)),
            (lambda: L.Total([one, two]), "losses"),
        ]
    )


# ----------------------------------------------------------------------------------------------------
# Losses linear in T
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prior", "coefficients", "expected"),
    [
        # Poisson counts with sum s in n trials: −(s E log θ − n E θ)
        (F.Gamma([3.0], [2.0]), ([5.0], [-4.0]), -(5 * (digamma(3.0) - np.log(2.0)) - 4 * 1.5)),
        # s successes of n: −(s E log θ + (n − s) E log(1 − θ))
        (F.Beta([2.0], [5.0]), ([3.0], [1.0]), -(3 * (digamma(2) - digamma(7)) + (digamma(5) - digamma(7)))),
        (F.Dirichlet([1.0, 2.0]), ([3.0, 4.0],), -(3 * (digamma(1) - digamma(3)) + 4 * (digamma(2) - digamma(3)))),
    ],
    ids=["gamma", "beta", "dirichlet"],
)
def test_linear_in_statistics(prior, coefficients, expected):
    """The conjugate update is λ + c: the pooled solution adds the counts."""
    c = F.Natural(*(np.array(part) for part in coefficients))
    loss = L.LinearInStatistics(c, n_rows=9)
    answer = loss.expect(prior, loss.check(prior, L.Auto()))
    assert type(answer) is L.Expected
    assert answer.value == pytest.approx(expected, rel=1e-13)
    assert answer.natural_gradient == -c
    assert loss.n_rows == 9
    posterior = ba.solve_pooled([loss], prior).posterior
    for part, before, added in zip(posterior.natural.parts, prior.natural.parts, c.parts, strict=True):
        np.testing.assert_allclose(part, before + added, rtol=1e-14)


def test_linear_in_statistics_has_no_pointwise_values():
    loss = L.LinearInStatistics(F.Natural(np.array([1.0, 2.0])))
    for name in ("value", "gradient", "hessian"):
        with pytest.raises(NotImplementedError, match="LinearInStatistics is known through its expectation"):
            getattr(loss, name)([0.0, 0.0])


def test_bad_linear_in_statistics():
    two = F.Natural(np.ones(2))
    with pytest.raises(TypeError, match="coefficients must be a Natural, got list"):
        L.LinearInStatistics([1.0, 2.0])
    assert_refused(
        [
            (lambda: L.LinearInStatistics(F.Natural(np.array([1.0, NAN]))), "coefficients"),
            (lambda: L.LinearInStatistics(two, n_rows=0), "n_rows"),
            (lambda: L.LinearInStatistics(two).check(F.Dirichlet([1.0, 1.0, 1.0]), L.Auto()), "coefficients"),
        ]
    )


# ----------------------------------------------------------------------------------------------------
# Optima known independently
# ----------------------------------------------------------------------------------------------------


def map_estimate(loss, delta):
    """MAP under the penalty ½ δ ‖θ‖², through the isotropic family and the first-order delta method."""
    prior = F.IsotropicGaussian(np.zeros(loss.dim), precision=delta)
    return ba.solve_pooled([loss], prior, expectation=L.Delta(1)).posterior.mean


# loss of (X, f, weights, rng): the loss, the fitted model of scikit-learn, and how far apart the minima may be
SKLEARN = {
    "logistic": lambda m, X, f, w, y: (
        L.Logistic(X, y[0], weights=w),
        m.LogisticRegression(C=1 / 0.7, fit_intercept=False, solver="newton-cholesky", tol=1e-12).fit(X, y[0], w),
        1e-8,
    ),
    # lbfgs stops at a gradient of 1e-10 per unit weight or, at the latest, where the value is flat: 1e-7 in θ
    "multinomial": lambda m, X, f, w, y: (
        L.Softmax(X, np.digitize(f, [-0.5, 0.5]), 3, weights=w),
        m.LogisticRegression(C=1 / 0.7, fit_intercept=False, tol=1e-10, max_iter=10_000).fit(
            X, np.digitize(f, [-0.5, 0.5]), w
        ),
        1e-5,
    ),
    # the weighted mean plus ½ alpha ‖θ‖²: δ = alpha Σw
    "poisson": lambda m, X, f, w, y: (
        L.Poisson(X, y[1], weights=w),
        m.PoissonRegressor(alpha=0.7 / w.sum(), fit_intercept=False, solver="newton-cholesky", tol=1e-12).fit(
            X, y[1], w
        ),
        1e-8,
    ),
    "ridge": lambda m, X, f, w, y: (
        L.LeastSquares(X, y[2], weights=w),
        m.Ridge(alpha=0.7, fit_intercept=False, solver="cholesky").fit(X, y[2], w),
        1e-12,
    ),
}


@pytest.mark.parametrize("kind", SKLEARN)
def test_map_is_scikit_learns(kind, rng):
    """Both gradients are zero to 1e-10 and the Hessian is at least δ, so the minima agree to 1e-9."""
    X = rng.standard_normal((60, 4))
    f, w = X @ np.array([1.0, -0.5, 0.0, 0.3]), rng.uniform(0.2, 2.0, 60)
    y = [(rng.random(60) < 1 / (1 + np.exp(-f))).astype(int), rng.poisson(np.exp(f))]
    y.append(np.stack([f, -f], axis=1) + rng.standard_normal((60, 2)))
    loss, model, near = SKLEARN[kind](pytest.importorskip("sklearn.linear_model"), X, f, w, y)
    np.testing.assert_allclose(map_estimate(loss, 0.7), model.coef_.ravel(), atol=near)
    assert not np.allclose(map_estimate(loss, 1.4), model.coef_.ravel(), atol=1e-3)  # twin: δ doubled


def test_a_loss_needs_a_gaussian_of_its_dimension():
    loss = L.Logistic([[1.0, 2.0]], [1])
    with pytest.raises(ValueError, match="Logistic needs a Gaussian family, the prior is Gamma"):
        loss.check(F.Gamma([1.0], [1.0]), L.Auto())
    with pytest.raises(ValueError, match=re.escape("Logistic has 2 parameters, but the prior's mean has 3")):
        loss.check(F.FullGaussian(np.zeros(3), 1.0), L.Auto())
