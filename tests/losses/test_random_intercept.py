"""Likelihoods with a random intercept: densities by brute force, derivatives by differences, invariances."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import minimize_scalar
from scipy.stats import multivariate_normal, norm

from bayesadmm_np._numerics import driven
from bayesadmm_np.glm.mixed import mixed
from bayesadmm_np.glm.whole import maximise
from bayesadmm_np.losses import Binomial, LeastSquares
from bayesadmm_np.losses.random_intercept import GaussianRandomIntercept, LogisticRandomIntercept

SIZES = (1, 1, 2, 3, 5, 8, 8)
NODES = (1, 2, 7, 25)
THETA = {"linear": np.array([0.7, -0.2, 0.3, 0.1, -0.5]), "logistic": np.array([0.9, 0.3, -0.4, 0.2])}


def rows(kind, seed=0, sizes=SIZES):
    """Return design with its zeros, y with codes in any order, and offsets."""
    rng = np.random.default_rng(seed)
    codes = rng.permutation(np.repeat(rng.permutation(len(sizes)), sizes))
    n, n_auxiliary = codes.size, {"linear": 2, "logistic": 1}[kind]
    X = np.column_stack([np.zeros((n, n_auxiliary)), rng.normal(size=(n, 2)), np.ones(n)])
    predictor = X[:, -3:] @ [0.5, -0.5, 0.3] + rng.normal(size=len(sizes))[codes]
    noise = rng.normal(size=n)
    y = predictor + noise if kind == "linear" else (predictor + noise > 0.0).astype(float)
    return X, np.column_stack([y, codes]), 0.3 * rng.normal(size=n)


def made(kind, X, y, offset=None, weights=None, **options):
    cls = GaussianRandomIntercept if kind == "linear" else LogisticRandomIntercept
    return cls(X, y, weights, offset, X.shape[1] - 3, **options)


def likelihood(kind, seed=0, **options):
    return made(kind, *rows(kind, seed), **options)


def density(X, y, offset, theta):
    """−log of the multivariate normal density of all rows together."""
    same = y[:, 1][:, None] == y[:, 1]
    V = np.exp(2.0 * theta[1]) * (np.eye(len(y)) + theta[0] ** 2 * same)
    return -multivariate_normal(X @ np.r_[0.0, 0.0, theta[2:]] + offset, V).logpdf(y[:, 0])


def by_group(X, y, offset, theta):
    """Yield z → −log of likelihood of each group's rows and standard normal density at its intercept τz."""
    f = X @ theta + offset
    for code in np.unique(y[:, 1]):
        own = y[:, 1] == code

        def joint(z, eta=f[own], sign=2.0 * y[own, 0] - 1.0):
            return np.logaddexp(0.0, -sign * (eta + theta[0] * z)).sum() - norm.logpdf(z)

        yield joint


@pytest.mark.parametrize("seed", range(4))
def test_the_linear_one_is_a_multivariate_normal_density(seed):
    X, y, offset = rows("linear", seed)
    theta = THETA["linear"] + 0.1 * seed
    found = made("linear", X, y, offset)
    assert found.value(theta) == pytest.approx(density(X, y, offset, theta), rel=1e-13)
    y[0, 1] += 1.0  # the twin: a row in another group
    assert abs(found.value(theta) - density(X, y, offset, theta)) > 1e-3


@pytest.mark.parametrize("seed", range(3))
def test_one_node_is_the_approximation_by_laplace(seed):
    given, theta = rows("logistic", seed), THETA["logistic"]
    total = 0.0
    for joint in by_group(*given, theta):
        mode = minimize_scalar(joint, tol=1e-12)
        h = 1e-3
        bend = (joint(mode.x + h) - 2.0 * mode.fun + joint(mode.x - h)) / h**2
        total += mode.fun - 0.5 * np.log(2.0 * np.pi) + 0.5 * np.log(bend)
    assert made("logistic", *given).value(theta) == pytest.approx(total, abs=1e-6)  # by differences in h


@pytest.mark.parametrize("seed", range(3))
def test_many_nodes_are_the_integral(seed):
    given, theta = rows("logistic", seed), THETA["logistic"]
    integrals = [quad(lambda z, of=of: np.exp(-of(z)), -12, 12, epsabs=1e-14)[0] for of in by_group(*given, theta)]
    exact = -np.log(integrals).sum()
    errors = [abs(made("logistic", *given, nodes=nodes).value(theta) - exact) for nodes in NODES]
    assert errors[-1] < 1e-10
    assert errors[0] > errors[2] > 10.0 * errors[3]
    assert errors[0] > 1e-3  # Laplace's is another number: the twin


@pytest.mark.parametrize(("kind", "options"), [("linear", {}), *[("logistic", {"nodes": k}) for k in NODES]])
@pytest.mark.parametrize("ratio", [0.9, 1e-3, 0.0, -1.7, 5.0])
def test_derivatives(kind, options, ratio):
    loss, theta, h = likelihood(kind, **options), THETA[kind].copy(), 1e-5
    theta[0] = ratio
    at = loss.derivatives(theta)
    ends = [[loss.derivatives(theta + sign * h * unit) for sign in (1, -1)] for unit in np.eye(theta.size)]
    slopes = np.array([(up.value - down.value) / (2 * h) for up, down in ends])
    bends = np.array([(up.gradient - down.gradient) / (2 * h) for up, down in ends])
    size = np.abs(at.hessian).max()
    assert np.abs(at.gradient - slopes).max() < 1e-8 * size
    assert np.abs(at.hessian - bends).max() < 1e-8 * size
    assert np.array_equal(at.hessian, at.hessian.T) or np.abs(at.hessian - at.hessian.T).max() < 1e-14 * size


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", THETA)
def test_what_must_not_matter(kind, seed):
    """Order of rows, names of groups, sign of τ, and sites of groups; a group in two sites is two groups."""
    X, y, offset = rows(kind, seed)
    theta, whole = THETA[kind], made(kind, X, y, offset)
    turned = np.random.default_rng(seed).permutation(len(y))
    others = made(kind, X[turned], np.column_stack([y[:, 0], -7.0 * y[:, 1]])[turned], offset[turned])
    sites = [made(kind, X[own], y[own], offset[own]) for own in (y[:, 1] < 3, y[:, 1] >= 3)]
    mirrored = theta * np.r_[-1.0, np.ones(theta.size - 1)]
    for name in ("value", "gradient", "hessian"):
        expected = getattr(whole, name)(theta)
        assert getattr(others, name)(theta) == pytest.approx(expected, rel=1e-12, abs=1e-12)
        assert sum(getattr(one, name)(theta) for one in sites) == pytest.approx(expected, rel=1e-12, abs=1e-12)
    assert whole.value(mirrored) == pytest.approx(whole.value(theta), rel=1e-14)
    halves = [made(kind, X[k::2], y[k::2], offset[k::2]) for k in (0, 1)]
    assert abs(sum(one.value(theta) for one in halves) - whole.value(theta)) > 1e-2


def test_trials_are_rows():
    X, y, offset = rows("logistic")
    trials = np.arange(len(y)) % 3 + 1
    events = np.arange(len(y)) % 2 * y[:, 0]
    once = made("logistic", X, np.column_stack([events, y[:, 1]]), offset, trials)
    twice = [np.repeat(one, trials, axis=0) for one in (X, np.column_stack([events, y[:, 1]]), offset)]
    theta = THETA["logistic"]
    assert once.value(theta) == pytest.approx(made("logistic", *twice).value(theta), rel=1e-13)
    assert once.hessian(theta) == pytest.approx(made("logistic", *twice).hessian(theta), rel=1e-11)
    half = made("logistic", X, np.column_stack([np.full(len(y), 0.5), y[:, 1]]), offset, np.full(len(y), 2.0))
    each = np.r_[0 : len(y), 0 : len(y)]
    pairs = np.column_stack([np.repeat([0.0, 1.0], len(y)), y[each, 1]])
    assert half.gradient(theta) == pytest.approx(made("logistic", X[each], pairs, offset[each]).gradient(theta))


def test_without_a_spread_it_is_the_model_without_groups():
    X, y, offset = rows("logistic")
    theta = THETA["logistic"].copy()
    theta[0] = 0.0
    plain, loss = Binomial(X[:, 1:], y[:, 0], offset=offset), likelihood("logistic", nodes=5)
    assert loss.value(theta) == pytest.approx(plain.value(theta[1:]), rel=1e-13)
    assert loss.gradient(theta) == pytest.approx(np.r_[0.0, plain.gradient(theta[1:])], abs=1e-12)
    assert loss.hessian(theta)[1:, 1:] == pytest.approx(plain.hessian(theta[1:]), rel=1e-11)
    X, y, offset = rows("linear")
    theta = THETA["linear"] * [0, 0, 1, 1, 1]
    plain = LeastSquares(X[:, 2:], y[:, 0] - offset)
    assert likelihood("linear").gradient(theta)[2:] == pytest.approx(plain.gradient(theta[2:]), rel=1e-12)


def test_modes_far_from_the_start():
    """A group of a million events, and spreads of 1e-8 and 50: the slope at the mode is rounding."""
    X = np.column_stack([np.zeros(3), np.ones(3)])
    loss = LogisticRandomIntercept(X, [[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]], [1e6, 3.0, 5.0], None, 1)
    for tau in (1e-8, 0.5, 50.0):
        u = loss.modes(np.array([tau, 0.3]))
        for own, (mode, w, y) in enumerate(zip(u, ([1e6, 3.0], [5.0]), ([1.0, 0.0], [1.0]), strict=True)):
            p = 1.0 / (1.0 + np.exp(-(0.3 + mode)))
            slope = np.dot(w, p - np.array(y)) + mode / tau**2
            assert abs(slope) < 1e-7 * (abs(mode) / tau**2 + 1e-8), (own, tau)


@pytest.mark.parametrize("tau", [0.1, 2.0, 5.0, 6.0, 8.0, 20.0, 1e3])
def test_modes_where_newtons_steps_go_to_and_fro(tau):
    """Sixty groups of five rows, some of whose losses have the corners in which Newton's method alone cycles."""
    rng = np.random.default_rng(5)
    codes, x = np.repeat(np.arange(60.0), 5), rng.normal(size=300)
    y = (rng.random(300) < 1.0 / (1.0 + np.exp(-(x - 0.8 + 4.0 * rng.normal(size=60)[codes.astype(int)])))).astype(
        float
    )
    X = np.column_stack([np.zeros(300), x, np.ones(300)])
    loss, theta = LogisticRandomIntercept(X, np.column_stack([y, codes]), n_auxiliary=1), np.array([tau, 1.0, -2.3])
    u = loss.modes(theta)
    p = 1.0 / (1.0 + np.exp(-(X @ theta + np.repeat(u, 5))))
    slope = tau * (p - y).reshape(60, 5).sum(axis=1) + u / tau
    assert np.abs(slope).max() < 1e-11 * max(tau, 1.0)


def test_modes_of_the_linear_one_minimise_the_joint_loss():
    X, y, offset = rows("linear")
    theta, loss = THETA["linear"], likelihood("linear")
    residual = y[:, 0] - offset - X @ np.r_[0.0, 0.0, theta[2:]]
    for code, mode in zip(loss.groups, loss.modes(theta), strict=True):
        own = residual[y[:, 1] == code]
        assert (own - mode).sum() == pytest.approx(mode / theta[0] ** 2, abs=1e-12)


def test_a_point_far_off_has_no_number():
    assert likelihood("logistic").value([1e200, 1e200, 0.0, 0.0]) == np.inf


@pytest.mark.parametrize("y", [[[2.0, 0.0]], [[-1.0, 0.0]], [[np.nan, 0.0]]])
def test_events_are_from_zero_to_one(y):
    with pytest.raises(ValueError, match="1 for an event"):
        LogisticRandomIntercept([[0.0, 1.0]], y, n_auxiliary=1)


def test_rows_of_the_linear_one_have_no_weights():
    X, y, _ = rows("linear")
    with pytest.raises(ValueError, match="weights must be left out"):
        made("linear", X, y, weights=np.full(len(y), 2.0)).value(THETA["linear"])


# ----------------------------------------------------------------------------------------------------
# The search in one number
# ----------------------------------------------------------------------------------------------------


def searched(losses, **options):
    asked = []

    def ask(ratio):
        asked.append(ratio)
        return [loss.profile(ratio) for loss in losses]

    return driven(mixed(**options), ask), asked


@pytest.mark.parametrize("seed", range(8))
def test_both_ways_to_the_maximum_of_the_likelihood(seed):
    """The search in ρ ends where Newton's method in all parameters ends, from sums over three sites."""
    X, y, offset = rows("linear", seed, sizes=(4,) * 6 + (9,) * 6)
    losses = [
        made("linear", X[own], y[own], offset[own]) for own in (y[:, 1] < 2, np.abs(y[:, 1] - 4) < 3, y[:, 1] > 6)
    ]
    found, _ = searched(losses, is_restricted=False)
    start = found.theta + 0.1
    newton = driven(maximise(start, np.ones(5)), lambda at: [loss.derivatives(at) for loss in losses])
    assert found.value == pytest.approx(newton.value, abs=1e-6)
    gradient = sum(loss.gradient(found.theta) for loss in losses)
    spread = np.linalg.inv(sum(loss.hessian(found.theta) for loss in losses))
    assert gradient @ spread @ gradient < 1e-16
    assert found.more is None


@pytest.mark.parametrize("seed", range(8))
def test_reml_is_the_likelihood_of_contrasts(seed):
    """REML is the density of AᵀY with AᵀX = 0, up to a constant: its maximum is where the search ends."""
    X, y, offset = rows("linear", seed)
    design = X[:, 2:]
    A = np.linalg.svd(design)[0][:, 3:]
    same = (y[:, 1][:, None] == y[:, 1]).astype(float)

    def of_contrasts(ratio, log_sigma):
        V = np.exp(2 * log_sigma) * (np.eye(len(y)) + ratio**2 * same)
        return -multivariate_normal(cov=A.T @ V @ A).logpdf(A.T @ (y[:, 0] - offset))

    found, _ = searched([made("linear", X, y, offset)])
    ratio, log_sigma = found.theta[:2]
    best = of_contrasts(ratio, log_sigma)
    constant = 0.5 * np.linalg.slogdet(design.T @ design)[1]
    assert best + constant == pytest.approx(found.value, abs=1e-10)
    for step in (0.03, -0.03):
        assert of_contrasts(ratio + step, log_sigma) >= best
        assert of_contrasts(ratio, log_sigma + step) > best
    ml, _ = searched([made("linear", X, y, offset)], is_restricted=False)
    assert ml.theta[1] < log_sigma  # the twin has smaller variances


def test_pulls_are_the_slope_of_the_penalty():
    """With the pulls of all sites the gradient at a fit by REML is zero, and without them it is not."""
    X, y, offset = rows("linear", 2)
    losses = [made("linear", X[own], y[own], offset[own]) for own in (y[:, 1] < 3, y[:, 1] >= 3)]
    found, _ = searched(losses)
    gradient = sum(loss.gradient(found.theta) for loss in losses)
    assert np.abs(gradient + found.pulls.sum(axis=0)).max() < 1e-8
    assert np.abs(gradient).max() > 0.1
