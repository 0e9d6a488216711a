"""The certificate's bound on the distance to the pooled fit: it holds, it is not wasteful, and each part is needed."""

from dataclasses import replace

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bayesadmm_np as ba
from bayesadmm_np.splitting import certificate as certificates
from bayesadmm_np.splitting import distance as module
from bayesadmm_np.splitting import newton
from bayesadmm_np.splitting.distance import ClientSums, client_sums, distance_bound
from oracles.problems import prior, team

F, L, M = ba.families, ba.losses, ba.methods

# --- Problems: a design of a given width, a family, a rule, and a distribution away from the pooled fit

MAKE = {
    "logistic": L.Logistic,
    "poisson": L.Poisson,
    "squares": L.LeastSquares,
    "softmax": lambda X, y: L.Softmax(X, y, n_classes=3),
    "softmax2": lambda X, y: L.Softmax(X, y, n_classes=2),
    "reference": lambda X, y: L.ReferenceSoftmax(X, y, n_classes=3),
}
OUTPUTS = {"softmax": 3, "softmax2": 2, "reference": 2}
CASES = {
    "logistic, full": ("logistic", "full", L.Exact()),
    "logistic, diagonal": ("logistic", "diagonal", L.Exact()),
    "logistic, block": ("logistic", "block", L.Exact()),
    "logistic, fixed": ("logistic", "fixed", L.Exact()),
    "logistic, point": ("logistic", "isotropic", L.Delta(1)),
    "logistic, Laplace": ("logistic", "full", L.Delta(2)),
    "poisson, full": ("poisson", "full", L.Exact()),
    "poisson, diagonal": ("poisson", "diagonal", L.Exact()),
    "poisson, point": ("poisson", "isotropic", L.Delta(1)),
    "ridge, full": ("squares", "full", L.Exact()),
    "ridge, diagonal": ("squares", "diagonal", L.Exact()),
    "ridge, block": ("squares", "block", L.Exact()),
    "ridge, point": ("squares", "isotropic", L.Delta(1)),
    "softmax, point": ("softmax", "isotropic", L.Delta(1)),
    "softmax, Laplace": ("softmax", "full", L.Delta(2)),
    "softmax, fixed": ("softmax", "fixed", L.QuasiMonteCarlo(32)),
    "reference class, point": ("reference", "isotropic", L.Delta(1)),
    "reference class, Laplace": ("reference", "full", L.Delta(2)),
    "reference class, fixed": ("reference", "fixed", L.QuasiMonteCarlo(32)),
    "two classes, full": ("softmax2", "full", L.Exact()),
}
FAMILIES = {
    "full": lambda dim, strength: F.FullGaussian(np.zeros(dim), np.diag(strength)),
    "diagonal": lambda dim, strength: F.DiagonalGaussian(np.zeros(dim), strength),
    "block": lambda dim, strength: F.BlockDiagonalGaussian(
        np.zeros(dim), [np.diag(strength[:1]), np.diag(strength[1:])]
    ),
    "fixed": lambda dim, strength: F.FixedPrecisionGaussian(np.zeros(dim), np.diag(strength)),
    "isotropic": lambda dim, strength: F.IsotropicGaussian(np.zeros(dim), strength[-1]),
}


def problem(case, seed, n=40, d=3, width=0.7, strength=0.5, intercept=None, n_clients=3):
    """Return clients, prior and rule; `intercept` is the prior's precision of the first coefficient."""
    name, family, rule = CASES[case]
    rng = np.random.default_rng(seed)
    X = width * rng.standard_normal((n, d))
    X[:, 0] = 1.0
    f = X @ rng.standard_normal(d) / (width * np.sqrt(d))
    y = {
        "logistic": lambda: rng.random(n) < 1 / (1 + np.exp(-f)),
        "poisson": lambda: rng.poisson(np.exp(0.7 * f)),
        "squares": lambda: f + 0.5 * rng.standard_normal(n),
        "softmax": lambda: rng.integers(0, 3, n),
        "reference": lambda: rng.integers(0, 3, n),
        "softmax2": lambda: rng.random(n) < 1 / (1 + np.exp(-f)),
    }[name]()
    clients = [MAKE[name](X[k::n_clients], np.asarray(y, float)[k::n_clients]) for k in range(n_clients)]
    dim = d * OUTPUTS.get(name, 1)
    precision = np.full(dim, strength)
    if intercept is not None and family != "isotropic":
        precision[0] = intercept
    return clients, FAMILIES[family](dim, precision), rule


def sums_at(clients, q, rule):
    return [client_sums(loss.expect(q, rule)) for loss in clients]


def pooled_fit(clients, prior_, rule):
    return ba.solve_pooled(clients, prior_, expectation=rule, tol=1e-9).posterior


def away(q, size, seed):
    """A member of the family about `size` standard deviations from q, its precision changed as much."""
    rng = np.random.default_rng(seed)
    mean = q.mean + size * q.factor.colour(rng.standard_normal(q.dim))
    if not q.learns_precision:
        return q.with_expectation(F.Expectation(mean))
    factors = np.exp(size * rng.standard_normal(q.dim))
    parts = []
    for part in q.factor.parts:
        own, factors = factors[: part.shape[0]], factors[part.shape[0] :]
        parts.append(part * own if part.ndim == 1 else np.sqrt(own)[:, None] * part * np.sqrt(own))
    factor = q.factor.like(parts)
    return q.with_natural(F.Natural(factor.multiply(mean), *factor.parts))


def lengths(q, pooled, metric):
    """|m_j − m*_j| and its length."""
    change = pooled.mean - q.mean
    return np.abs(change), np.sqrt(change @ metric.multiply(change))


def newton_of(clients, prior_, q, rule):
    curvature = sum(loss.expect(q, rule).curvature.dense() for loss in clients)
    return F.precision.DensePrecision(curvature + prior_.factor.multiply(np.eye(q.dim)))


# --- It holds


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=4)
@given(data=st.data())
def test_the_pooled_fit_lies_within_the_bound(case, data):
    clients, prior_, rule = problem(
        case,
        data.draw(st.integers(0, 10**6), "seed"),
        n=data.draw(st.sampled_from([6, 40, 150]), "n"),
        width=data.draw(st.sampled_from([0.3, 1.0, 3.0]), "width"),
        strength=data.draw(st.sampled_from([0.1, 1.0, 20.0]), "strength"),
        intercept=data.draw(st.sampled_from([None, 1e-4]), "intercept"),
        n_clients=data.draw(st.sampled_from([1, 4]), "clients"),
    )
    size = 10.0 ** -data.draw(st.integers(0, 6), "size")
    pooled = pooled_fit(clients, prior_, rule)
    q = away(pooled, size, data.draw(st.integers(0, 10**6), "direction"))
    bound = distance_bound(prior_, q, sums_at(clients, q, rule))
    # the reference is not exact either, and knows how far it may be off
    slack = distance_bound(prior_, pooled, sums_at(clients, pooled, rule))
    metric = q.factor if q.learns_precision else newton_of(clients, prior_, q, rule)
    each, length = lengths(q, pooled, metric)
    assert bound.rigorous
    assert np.isfinite(bound.per_coefficient).all()
    assert (each <= bound.per_coefficient + slack.per_coefficient).all()
    matrix = metric.multiply(np.eye(q.dim))
    assert length <= bound.mahalanobis + np.sqrt(slack.per_coefficient @ np.abs(matrix) @ slack.per_coefficient)
    deviations = np.sqrt(np.diagonal(metric.solve(np.eye(q.dim))))
    assert bound.sd_units == pytest.approx((bound.per_coefficient / deviations).max(), rel=1e-9)


ORDINARY = {
    "logistic, full": 10.0,
    "logistic, diagonal": 10.0,
    "logistic, point": 1.01,
    "logistic, Laplace": 1.01,
    "poisson, full": 10.0,
    "poisson, point": 1.01,
    "ridge, full": 1.01,
    "ridge, diagonal": 1.01,
    "softmax, point": 1.01,
    "two classes, full": 20.0,
}
"""How many times too large the bound may be. Point methods and ridge: to first order the bound is the Newton step. A
learned covariance adds reach times the residual in mean and covariance, d + d² numbers that may all point one way."""


@pytest.mark.parametrize("case", ORDINARY)
def test_the_bound_is_not_wasteful_in_ordinary_problems(case):
    for seed, intercept in ((0, None), (1, 1e-8)):
        clients, prior_, rule = problem(case, seed, n=200, strength=1.0, intercept=intercept)
        pooled = pooled_fit(clients, prior_, rule)
        q = away(pooled, 1e-5, seed)
        bound = distance_bound(prior_, q, sums_at(clients, q, rule))
        metric = q.factor if q.learns_precision else newton_of(clients, prior_, q, rule)
        each, length = lengths(q, pooled, metric)
        assert bound.reason == module.NEWTON
        # the reference's own residual is 1e-9 a parameter
        assert bound.mahalanobis <= ORDINARY[case] * length + 1e-8
        if ORDINARY[case] < 2:
            np.testing.assert_allclose(bound.per_coefficient, each, rtol=0.01, atol=1e-2 * each.max())


def test_runs_report_it():
    clients, prior_, rule = problem("logistic, full", 0, n=200)
    pooled = pooled_fit(clients, prior_, rule)
    for rounds in (1, 3, 6, 50):
        result = ba.run(M.PVI(0.5), clients, prior_, rounds=rounds)
        found = result.certificate().distance
        each = np.abs(result.posterior.mean - pooled.mean)
        assert (each <= found.per_coefficient + 1e-8).all()
    assert result.status is ba.Status.CONVERGED
    assert found.sd_units < 1e-4  # tol = 1e-6 per parameter, twelve parameters
    assert f"{found.sd_units:.1e} standard errors of the pooled fit" in str(result.certificate())


def test_a_method_that_stands_still_elsewhere_is_found_out():
    clients, prior_ = team("logistic"), prior("isotropic", 3)
    result = ba.run(M.FedAvg(), clients, prior_, rounds=100)
    pooled = pooled_fit(clients, prior_, L.Delta(1))
    each = np.abs(result.posterior.mean - pooled.mean)
    found = result.certificate().distance
    assert (each <= found.per_coefficient).all()
    assert (found.per_coefficient > 1e-2).any()


# --- Rounding: a residual of zero is no distance of zero


def offset_ridge(seed):
    """Targets of size 1e6 on a column far from zero, with noise of size one."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([np.ones(30), 1e3 + rng.standard_normal(30)])
    return X, 1e6 + X @ [1.0, 2.0] + rng.standard_normal(30)


def exact_ridge(X, y, delta):
    with mpmath.workdps(60):
        design, target = mpmath.matrix(X.tolist()), mpmath.matrix(y.tolist())
        return mpmath.lu_solve(design.T * design + mpmath.mpf(delta) * mpmath.eye(2), design.T * target)


def errors_of(mean, exact):
    with mpmath.workdps(60):
        return np.array([float(abs(mpmath.mpf(m) - e)) for m, e in zip(mean.tolist(), exact, strict=True)])


def test_rounding_is_allowed_for():
    """Against 60 digits; without the allowance the same bound is broken."""
    broken = 0
    for seed in range(10):
        X, y = offset_ridge(seed)
        clients, prior_ = [L.LeastSquares(X[:10], y[:10]), L.LeastSquares(X[10:], y[10:])], F.FullGaussian([0, 0], 1e-2)
        q = pooled_fit(clients, prior_, L.Exact())
        for _ in range(2):  # refined to the last digit that a computed residual can see
            sums = sums_at(clients, q, L.Exact())
            step = newton_of(clients, prior_, q, L.Exact()).solve(
                sum(client.gradient for client in sums) + 1e-2 * q.mean
            )
            q = F.FullGaussian(q.mean - step, q.precision)
        sums = sums_at(clients, q, L.Exact())
        errors = errors_of(q.mean, exact_ridge(X, y, 1e-2))
        assert (errors <= distance_bound(prior_, q, sums).per_coefficient).all()
        trusting = [replace(client, gradient_error=np.zeros(2), curvature_error=0.0) for client in sums]
        gradient = sum(client.gradient for client in trusting) + 1e-2 * q.mean
        broken += (errors > np.abs(newton_of(clients, prior_, q, L.Exact()).solve(gradient))).any()
        # the server's own rounding is allowed for as well, but it is not all of it
        assert (
            distance_bound(prior_, q, trusting).per_coefficient < distance_bound(prior_, q, sums).per_coefficient
        ).all()
    assert broken > 0


def test_a_curvature_lost_to_rounding_certifies_nothing():
    rng = np.random.default_rng(0)
    a = rng.standard_normal(30)
    X = np.column_stack([a, a + 1e-9 * rng.standard_normal(30)])
    clients, prior_ = [L.Logistic(X, a > 0)], F.FullGaussian(np.zeros(2), 1e-15)
    q = F.FullGaussian(np.zeros(2), newton_of(clients, prior_, F.FullGaussian(np.zeros(2), 1.0), L.Exact()).matrix)
    bound = distance_bound(prior_, q, sums_at(clients, q, L.Exact()))
    assert bound.sd_units == np.inf


# --- The two inequalities behind it, by brute force over a grid of z, and twins with smaller constants

GRID = np.linspace(-9.0, 9.0, 181)
# trapezoidal rule of step 0.1 in two dimensions: integrands times φ are smooth and gone at the ends, errors < 1e-12
Z = np.stack(np.meshgrid(GRID, GRID), axis=-1).reshape(-1, 2)
WEIGHTS = np.exp(-0.5 * (Z**2).sum(axis=1)) / (2 * np.pi) * (GRID[1] - GRID[0]) ** 2


def curvatures(name, f):
    """ℓ'' and ℓ'''."""
    if name == "poisson":
        return np.exp(f), np.exp(f)
    p = 1 / (1 + np.exp(-f))
    return p * (1 - p), p * (1 - p) * (1 - 2 * p)


class Rows:
    """Σ_i E ℓ(o_i + s_iᵀ(a + Bz)) + ½E‖a + Bz‖²_P, whose Hessian in a at (0, I) is the identity."""

    def __init__(self, name, seed, reach):
        rng = np.random.default_rng(seed)
        self.name, self.reach = name, reach
        s = rng.standard_normal((4, 2))
        self.s = s * (reach / np.linalg.norm(s, axis=1).max())
        self.offset = 0.5 * rng.standard_normal(4)
        bend = self.second(np.zeros(2), np.eye(2))
        # weights that leave about a tenth of the curvature to the prior
        data = np.einsum("i,ij,ik->jk", bend, self.s, self.s)
        self.weight = 0.9 / np.linalg.eigvalsh(data)[-1]
        self.prior = np.eye(2) - self.weight * data

    def at(self, a, B):
        f = self.offset[:, None] + (self.s @ (a[:, None] + B @ Z.T))
        return curvatures(self.name, f)

    def second(self, a, B):
        return self.at(a, B)[0] @ WEIGHTS

    def along(self, alpha, D):
        return self.s @ (alpha[:, None] + D @ Z.T)

    def second_derivative(self, alpha, D):
        """At (0, I); the entropy −log det B adds ‖D‖²."""
        bend, _ = self.at(np.zeros(2), np.eye(2))
        data = self.weight * ((bend * self.along(alpha, D) ** 2) @ WEIGHTS).sum()
        return data + alpha @ self.prior @ alpha + np.trace(D @ self.prior @ D) + (D**2).sum()

    def third_derivative(self, a, B, alpha, D):
        """Of the data part, at (a, B)."""
        _, jump = self.at(a, B)
        return self.weight * ((jump * self.along(alpha, D) ** 3) @ WEIGHTS).sum()


def direction(rng):
    alpha, D = rng.standard_normal(2), rng.standard_normal((2, 2))
    D = 0.5 * (D + D.T)
    size = np.sqrt(alpha @ alpha + (D**2).sum())
    return alpha / size, D / size


def aligned(rows, rng):
    """A direction along the row that reaches furthest, where the inequalities are nearly tight."""
    s = rows.s[np.argmax(np.linalg.norm(rows.s, axis=1))]
    unit, angle = s / np.linalg.norm(s), rng.uniform(0, 2 * np.pi)
    return np.cos(angle) * unit, np.sin(angle) * np.outer(unit, unit)


BRUTE = [(name, 0, reach) for name in ("logistic", "poisson") for reach in (0.3, 1.0, 2.0)]


@pytest.mark.parametrize(("name", "seed", "reach"), BRUTE)
def test_the_curvature_at_the_server_and_third_derivatives_keep_their_bounds(name, seed, reach):
    rows, rng = Rows(name, seed, reach), np.random.default_rng(seed)
    found = [rows.second_derivative(*pick) for _ in range(20) for pick in (direction(rng), aligned(rows, rng))]
    assert min(found) >= module.least_curvature(reach) - 1e-9
    for radius in (0.0, 0.2):
        bound = module.largest_third_derivative(reach, reach, 1.0, radius)
        for _ in range(8):
            alpha, D = direction(rng)
            a, B = radius * alpha, np.eye(2) + radius * D
            for pick in (direction(rng), aligned(rows, rng)):
                assert abs(rows.third_derivative(a, B, *pick)) <= bound + 1e-9


def test_a_least_curvature_of_one_is_none():
    """Twin: mean and covariance are coupled by ℓ''', and together they bend less than the mean alone."""
    rows, rng = Rows("poisson", 0, 2.0), np.random.default_rng(0)
    assert min(rows.second_derivative(*aligned(rows, rng)) for _ in range(60)) < 0.9


def test_a_quarter_of_the_bound_is_none():
    """Twin: 0.9 of the curvature belongs to rows that reach equally far, so that the bound is nearly met."""
    rows, rng = Rows("poisson", 0, 2.0), np.random.default_rng(0)
    rows.s = np.repeat(rows.s[:1], 4, axis=0) * (2.0 / np.linalg.norm(rows.s[0]))
    curvature = rows.second(np.zeros(2), np.eye(2))
    rows.weight = 1.0 / (4.0 * curvature.sum())
    largest = max(abs(rows.third_derivative(np.zeros(2), np.eye(2), *aligned(rows, rng))) for _ in range(60))
    bound = module.largest_third_derivative(2.0, 2.0, 1.0, 0.0)
    assert 0.25 * bound < largest <= bound


# --- Broken twins of the whole bound


def test_the_newton_step_alone_is_no_bound_for_points():
    """Twin without the slack: the curvature falls on the way to the optimum, which is further than the step."""
    clients, prior_ = [L.Logistic(np.ones((10, 1)), [1] * 9 + [0])], F.IsotropicGaussian([0.0], 1e-3)
    pooled = pooled_fit(clients, prior_, L.Delta(1))
    q = pooled.with_expectation(F.Expectation(pooled.mean - 0.5))
    sums = sums_at(clients, q, L.Delta(1))
    step = newton_of(clients, prior_, q, L.Delta(1)).solve(sums[0].gradient + 1e-3 * q.mean)
    assert abs(step[0]) < 0.5 - 0.02
    assert distance_bound(prior_, q, sums).per_coefficient[0] >= 0.5
    none = [replace(client, reach=0.0) for client in sums]
    assert distance_bound(prior_, q, none).per_coefficient[0] < 0.5


def coupled(scale):
    """q_g with a gradient of zero and a wrong precision: the mean of the pooled fit is elsewhere all the same."""
    y = np.random.default_rng(3).poisson(3.0, 10)
    clients, prior_ = [L.Poisson(np.ones((10, 1)), y)], F.FullGaussian([0.0], 0.1)
    pooled = pooled_fit(clients, prior_, L.Exact())
    precision = scale * pooled.precision
    mean = pooled.mean.copy()
    for _ in range(60):  # Newton's iteration for g = 0 at this precision
        q = F.FullGaussian(mean, precision)
        expected = clients[0].expect(q, L.Exact())
        mean = mean - (expected.gradient + 0.1 * mean) / (expected.curvature.dense()[0] + 0.1)
    return clients, prior_, pooled, F.FullGaussian(mean, precision)


def test_a_gradient_of_zero_is_no_proof_when_the_precision_is_off():
    """Twin without the cross term reach · residual."""
    clients, prior_, pooled, q = coupled(1.001)
    sums = sums_at(clients, q, L.Exact())
    true = abs(q.mean - pooled.mean)[0]
    assert true > 1e-6
    bound = distance_bound(prior_, q, sums)
    assert bound.reason == module.NEWTON
    assert true <= bound.per_coefficient[0] < 10 * true
    without = [replace(client, reach=0.0) for client in sums]
    assert distance_bound(prior_, q, without).per_coefficient[0] < true


def test_the_residual_of_the_precision_counts():
    """Twin that takes the precision to be right."""
    clients, prior_, pooled, q = coupled(1.001)
    local = module.Local.at(prior_, q, sums_at(clients, q, L.Exact()))
    reach = sums_at(clients, q, L.Exact())[0].reach
    assert local._replace(excess=0.0).variational_ball(reach)[0] < abs(q.mean - pooled.mean)[0] * local.errors[0] ** -1


@pytest.mark.parametrize("reach", [0.3, 1.0])
@pytest.mark.parametrize("size", [1e-4, 1e-3])
def test_the_ball_solves_the_equation_of_the_proof(reach, size):
    """docs/certificate.md: r is the root of μr − ½Br² = √(|H^-½ g|² + |excess|²), and there is none beyond its top.

    Each factor that could be left out (2 before B, 1 + excess, its root in the cross term, ½Tr²) changes a number here
    by more than the tolerance, which is that of a few operations.
    """
    clients, prior_, _, q = coupled(1.001)
    local = module.Local.at(prior_, q, sums_at(clients, q, L.Exact()))
    local = local._replace(noise=0.0, fuzz=0.0, smallest=1.0, excess=size, gradient=0.0 * local.gradient)
    radius, slack, turned = local.variational_ball(reach)
    cross = reach * np.sqrt(1.0 + size)
    floor = module.least_curvature(cross)
    third = module.largest_third_derivative(reach, reach, 1.0 + size, 2.0 * size / floor)
    bend = third + module.ENTROPY_BEND
    np.testing.assert_allclose(floor * radius - 0.5 * bend * radius**2, size, rtol=1e-10)
    np.testing.assert_allclose(turned, cross * radius, rtol=1e-12)
    np.testing.assert_allclose(slack, cross * radius + 0.5 * third * radius**2, rtol=1e-12)
    sizes = np.geomspace(1e-6, 1.0, 400)  # the largest length with a ball is where the parabola has its top
    found = [local._replace(excess=own).variational_ball(reach) is not None for own in sizes]

    def top(own):
        least = module.least_curvature(reach * np.sqrt(1.0 + own))
        third = module.largest_third_derivative(reach, reach, 1.0 + own, 2.0 * own / least)
        return least**2 / (2.0 * (third + module.ENTROPY_BEND))

    assert found == [own <= top(own) for own in sizes]
    assert 0 < sum(found) < len(found)


def test_the_residual_of_a_fixed_precision_is_the_newton_decrement(rng):
    """√(gᵀH⁻¹g / d): a whole solve, or d for its root, is another number."""
    X = rng.standard_normal((30, 3))
    clients, prior_ = [L.LeastSquares(X, X.sum(axis=1))], F.FixedPrecisionGaussian(np.zeros(3), 0.5)
    q = prior_.at(np.array([0.3, -0.2, 0.1]), prior_.factor.parts)
    expected = [loss.expect(q, L.Delta(1)) for loss in clients]
    gradient = 0.5 * q.mean + X.T @ (X @ q.mean - X.sum(axis=1))
    decrement = np.sqrt(gradient @ np.linalg.solve(X.T @ X + 0.5 * np.eye(3), gradient))
    np.testing.assert_allclose(
        certificates.PooledObjective(prior_, q, expected).residual, decrement / np.sqrt(3.0), rtol=1e-12
    )


def test_the_prior_bounds_what_the_curvature_cannot():
    clients, prior_, rule = problem("logistic, full", 1)
    q = F.FullGaussian(np.full(3, 3.0), 0.5)
    bound = distance_bound(prior_, q, sums_at(clients, q, rule))
    assert bound.rigorous
    assert bound.reason == module.PRIOR
    assert (np.abs(q.mean - pooled_fit(clients, prior_, rule).mean) <= bound.per_coefficient).all()


# --- What is sent, and what is said


def test_how_rows_are_split_over_clients_changes_rounding_only():
    for case in ("logistic, full", "poisson, diagonal", "softmax, point", "ridge, block"):
        one, prior_, rule = problem(case, 0, n_clients=1)
        many, _, _ = problem(case, 0, n_clients=5)
        q = away(pooled_fit(one, prior_, rule), 1e-3, 0)
        a, b = (distance_bound(prior_, q, sums_at(clients, q, rule)) for clients in (one, many))
        np.testing.assert_allclose(a.per_coefficient, b.per_coefficient, rtol=1e-6)
        assert a.reason == b.reason


def test_messages_and_bounds_are_plain_numbers():
    """A message holds no NumPy scalars: a run by files of Newton's row could not write its end."""
    clients, prior_, rule = problem("logistic, full", 0)
    sums = sums_at(clients, prior_, rule)
    one = sums[0]
    assert [np.shape(value) for value in (one.gradient, one.curvature, one.gradient_error)] == [(3,), (3, 3), (3,)]
    deviations = np.sqrt(prior_.factor.row_variances(clients[0].X))
    assert one.reach == pytest.approx(deviations.max(), rel=1e-14)
    bound = distance_bound(prior_, prior_, sums)
    assert {type(number) for number in (one.reach, bound.mahalanobis, bound.sd_units)} == {float}
    assert ba.run(M.PVI(), COUNTS, F.Dirichlet([1.0, 1.0])).certificate().distance is None  # no mean in θ


COUNTS = [L.LinearInStatistics(F.Natural(np.array([3.0, 1.0])))]


def test_rows_of_weight_zero_do_not_reach():
    X, y = np.array([[1.0], [9.0]]), np.array([0, 1])
    q = F.FullGaussian([0.0], 1.0)
    heavy, light = (
        client_sums(L.Logistic(X, y, weights=w).expect(q, L.Exact())).reach for w in ([1.0, 1.0], [1.0, 0.0])
    )
    assert (heavy, light) == (9.0, 1.0)


def test_a_rule_whose_gradient_is_of_no_objective_gives_an_estimate():
    """So does a loss that does not say how far its rows reach."""
    clients, prior_, _ = problem("softmax, Laplace", 0)
    found = ba.run(M.PVI(0.5), clients, prior_, expectation=L.QuasiMonteCarlo()).certificate().distance
    assert (found.rigorous, found.reason) == (False, module.ESTIMATE)
    assert 0 < found.sd_units < 1e-4

    class Huberish(L.Logistic):
        def expect(self, q, rule):
            expected = super().expect(q, rule)
            expected._margins = None
            return expected

    X = np.random.default_rng(0).standard_normal((20, 2))
    result = ba.run(M.PVI(), [Huberish(X, X[:, 0] > 0)], F.FullGaussian(np.zeros(2), 1.0))
    assert not result.certificate().distance.rigorous


def test_a_large_diagonal_family_does_not_form_a_dense_curvature(monkeypatch):
    clients, prior_, _ = problem("logistic, diagonal", 0)
    result = ba.run(ba.Accelerated(M.PVI(0.4)), clients, prior_)
    assert result.certificate().distance is not None
    monkeypatch.setattr(certificates, "MOST_DENSE", 2)
    assert result.certificate().distance is None


def test_messages_that_do_not_fit_are_named():
    clients, prior_, rule = problem("logistic, full", 0)
    sums = sums_at(clients, prior_, rule)
    for wrong, words in (([], "client"), ([sums[0], replace(sums[1], gradient=np.zeros(2))], "client 1")):
        with pytest.raises(ValueError, match=words):
            distance_bound(prior_, prior_, wrong)


def test_reaches_beyond_measure_and_sums_that_are_not_finite():
    for case, reach in (("logistic, full", 1e4), ("logistic, point", np.inf)):
        clients, prior_, rule = problem(case, 0)
        q = away(pooled_fit(clients, prior_, rule), 1e-2, 0)
        sums = [replace(client, reach=reach) for client in sums_at(clients, q, rule)]
        assert distance_bound(prior_, q, sums).reason == module.PRIOR
    prior_ = F.FullGaussian([0.0], 1.0)
    bad = ClientSums(np.array([np.inf]), np.array([[np.nan]]), 1.0, np.zeros(1), 0.0, False)
    assert distance_bound(prior_, prior_, [bad]).sd_units == np.inf


def collinear(noise):
    rng = np.random.default_rng(4)
    z = rng.standard_normal(60)
    X = np.column_stack([z, z + noise * rng.standard_normal(60), np.ones(60)])
    y = (rng.random(60) < 1 / (1 + np.exp(-z))).astype(float)
    return [ba.losses.Logistic(X[k::3], y[k::3]) for k in range(3)]


def test_a_certificate_says_when_its_residual_is_worth_little():
    """Nearly equal columns under a diagonal family; twin: columns that differ."""
    prior_ = ba.families.DiagonalGaussian(np.zeros(3), 1e-4)
    for noise, worth_little in ((1e-4, True), (1.0, False)):
        result = ba.run(ba.methods.PVI(0.3), collinear(noise), prior_, rounds=100, tol=1e-4)
        certificate = result.certificate()
        assert certificate.holds
        assert certificate.is_worth_little is worth_little
        assert ("little" in str(certificate)) is worth_little
        assert ("lower tol" in result.message) is worth_little


def nearly_flat(seed, size):
    """A logistic regression whose offsets leave few rows with any information."""
    rng = np.random.default_rng(seed)
    X, offset = rng.normal(size=(60, 2)), size * rng.normal(size=60)
    y = (rng.random(60) < 1.0 / (1.0 + np.exp(-np.clip(offset, -500.0, 500.0)))).astype(float)
    return np.column_stack([X, np.ones(60)]), y, offset


def exact_errors(X, y, offset, start):
    """Standard errors at the mode, by Newton's method in sixty digits."""
    with mpmath.workdps(60):
        rows, theta = [[mpmath.mpf(float(x)) for x in row] for row in X], mpmath.matrix(list(map(float, start)))
        for _ in range(100):
            gradient, hessian = mpmath.matrix(3, 1), mpmath.matrix(3, 3)
            for row, label, by in zip(rows, y, offset, strict=True):
                p = 1 / (1 + mpmath.exp(-float(by) - sum(x * theta[j] for j, x in enumerate(row))))
                for j in range(3):
                    gradient[j] += (p - int(label)) * row[j]
                    for k in range(3):
                        hessian[j, k] += p * (1 - p) * row[j] * row[k]
            step = mpmath.lu_solve(hessian, gradient)
            theta = theta - step
            if mpmath.norm(step) < mpmath.mpf(10) ** -30:
                covariance = mpmath.inverse(hessian)
                return np.array([float(mpmath.sqrt(covariance[j, j])) for j in range(3)])
    raise AssertionError("Newton's method did not converge")


@pytest.mark.parametrize(("seed", "size"), [(5, 300.0), (8, 300.0), (1, 1000.0), (0, 10.0)])
def test_standard_errors_have_a_bound_that_a_run_waits_for(seed, size, monkeypatch):
    """Where the information changes within the bound on the mean; the twin waits for the residual alone.

    Residuals of 1e-8 then leave errors of up to 0.17.
    """
    X, y, offset = nearly_flat(seed, size)
    losses = [ba.losses.Logistic(X[k::3], y[k::3], offset=offset[k::3]) for k in range(3)]
    flat = ba.families.FullGaussian(np.zeros(3), 0.0)

    def off(result):
        truth = exact_errors(X, y, offset, result.posterior.mean)
        return np.abs(np.sqrt(result.posterior.variance) / truth - 1.0).max(), result.certificate().distance

    options = {"rounds": 100, "tol": 1e-8}
    error, bound = off(ba.run(ba.Guarded(ba.methods.Newton()), losses, flat, **options))
    assert error <= bound.errors + 1e-8  # what sums in double precision lose of so small an information
    assert error < 2e-6
    assert bound.errors < 1e-5
    monkeypatch.setattr(newton, "ERRORS", np.inf)
    twin, bound = off(ba.run(ba.Guarded(ba.methods.Newton()), losses, flat, **options))
    assert size == 10.0 or twin > 4e-6
    if bound.errors is not None:
        assert twin <= bound.errors + 1e-8
        assert ("standard errors are known" in str(bound)) == (size != 10.0)


@pytest.mark.parametrize("turn", [0.05, 0.3, 1.0])
def test_the_bound_on_standard_errors_is_reached(turn):
    """One count at x = 1: ℓ'' = e^f, so that from f = log y + turn the standard error is e^(−turn/2) of that there."""
    flat, mean = ba.families.FullGaussian(np.zeros(1), 0.0), np.log(4.0) + turn
    q = ba.families.FullGaussian(np.array([mean]), np.exp(mean))
    loss = ba.losses.Poisson([[1.0]], [4.0])
    found = certificates.PooledObjective(flat, q, [loss.expect(q, ba.losses.Delta(2))]).distance
    assert found.errors == pytest.approx(np.expm1(0.5 * turn), rel=1e-6)
