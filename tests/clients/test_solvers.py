"""Solvers of the client's subproblem (Eq. 15), against a dense twin of it that shares no code with the package."""

import numpy as np
import pytest
from scipy.linalg import block_diag
from scipy.optimize import minimize

import bayesadmm_np as ba
from bayesadmm_np.clients import VON, ClientStatus, ClosedForm, GradientSteps, Subproblem, VariationalNewton
from bayesadmm_np.clients.anderson import Mixer, mixing_weights
from bayesadmm_np.clients.descent import descend
from bayesadmm_np.clients.problem import Iterate
from oracles.members import FAMILIES, as_dense, every_family, spd
from oracles.refusals import assert_refused

F, L = ba.families, ba.losses
RNG = np.random.default_rng(0)  # handed to deterministic solvers, which never draw from it
TOL = 1e-8

# ----------------------------------------------------------------------------------------------------
# The subproblem with dense matrices
# ----------------------------------------------------------------------------------------------------

LEARNED = ("diagonal", "block", "full")


def logistic(f, y):
    p = 0.5 + 0.5 * np.tanh(0.5 * f[..., 0])
    value = np.log1p(np.exp(-np.abs(f[..., 0]))) + np.maximum(f[..., 0], 0) - y * f[..., 0]
    return value, (p - y)[..., None], (p * (1 - p))[..., None, None]


def poisson(f, y):
    rate = np.exp(f[..., 0])
    return rate - y * f[..., 0], (rate - y)[..., None], rate[..., None, None]


def softmax(f, y):
    top = f.max(axis=-1, keepdims=True)
    p = np.exp(f - top)
    total = p.sum(axis=-1, keepdims=True)
    p = p / total
    own = np.eye(f.shape[-1])[int(y)]
    value = (np.log(total) + top)[..., 0] - f @ own
    return value, p - own, p[..., :, None] * np.eye(f.shape[-1]) - p[..., :, None] * p[..., None, :]


def least_squares(f, y):
    return 0.5 * (f[..., 0] - y) ** 2, (f[..., 0] - y)[..., None], np.ones((*f.shape[:-1], 1, 1))


class Rows:
    """Data of one loss with the plain formula of a row."""

    def __init__(self, formula, X, y, n_outputs=1):
        self.formula, self.X, self.y, self.n_outputs = formula, X, y, n_outputs

    def expectations(self, mean, covariance, nodes):
        """Return E[ℓ], E[∇ℓ], E[∇²ℓ]; nodes are (points, weights) for a standard normal, or None for its mean."""
        d = mean.size
        value, gradient, hessian = 0.0, np.zeros(d), np.zeros((d, d))
        points, weights = nodes if nodes is not None else (np.zeros((1, self.n_outputs)), np.ones(1))
        for x, y in zip(self.X, self.y, strict=True):
            design = np.kron(np.eye(self.n_outputs), x)
            spread = design @ covariance @ design.T
            f = design @ mean + points @ np.linalg.cholesky(spread).T
            v, s, c = self.formula(f, y)
            value += weights @ v
            gradient += design.T @ (weights @ s)
            hessian += design.T @ np.tensordot(weights, c, axes=1) @ design
        return value, gradient, hessian


def make(kind, rng, n=8, d=3):
    """Return the package's loss and its plain twin; all of dimension d, but softmax of 2·(d − 1) or 3·(d − 1)."""
    X = rng.standard_normal((n, d)) * np.sqrt(3 / d)  # predictors of the same size whatever d
    if kind == "logistic":
        y = rng.integers(0, 2, n).astype(float)
        return L.Logistic(X, y), [Rows(logistic, X, y)]
    if kind == "poisson":
        X, y = 0.7 * X, rng.poisson(2.0, n).astype(float)
        return L.Poisson(X, y.copy()), [Rows(poisson, X, y)]
    if kind == "least squares":
        y = rng.standard_normal(n)
        return L.LeastSquares(X, y), [Rows(least_squares, X, y)]
    if kind == "total":
        losses, twins = zip(*(make(name, rng, n, d) for name in ("logistic", "poisson", "least squares")), strict=True)
        return L.Total(losses), [rows for twin in twins for rows in twin]
    classes = {"softmax": 3, "softmax of two": 2}[kind]
    X, y = X[:, 1:], rng.integers(0, classes, n)
    return L.Softmax(X, y, classes), [Rows(softmax, X, y, classes)]


KINDS = ["logistic", "poisson", "least squares", "softmax", "softmax of two", "total"]


def line(reach=9.0, step=0.12):
    """A trapezoidal rule for the standard normal, good to 1e-13 for logistics of a deviation up to 4."""
    z = np.arange(-reach, reach, step)
    weights = np.exp(-0.5 * z**2)
    return z[:, None], weights / weights.sum()


def nodes_for(rule, n_outputs):
    """Points of the named rule, or enough of them to be exact."""
    if rule.is_delta:
        return None
    if rule in (L.Exact(), L.Auto()):
        if n_outputs == 1:
            return line()
        z, w = line(step=0.3)
        grid = np.stack(np.meshgrid(z[:, 0], z[:, 0], indexing="ij"), axis=-1).reshape(-1, 2)
        return grid, np.outer(w, w).ravel()
    return rule.nodes(n_outputs)


class DenseProblem:
    """Eq. 15 written with dense matrices: S_g, V and the structure as a matrix of zeros and ones."""

    def __init__(self, problem, twins):
        anchor = problem.anchor
        self.twins, self.rule, self.rho = twins, problem.rule, problem.rho
        self.learned = type(anchor) in (F.FullGaussian, F.DiagonalGaussian, F.BlockDiagonalGaussian)
        parts = anchor.factor.parts
        self.S_g, self.m_g = as_dense(parts), np.array(anchor.mean)
        self.v = problem.site.parts[0]
        self.V = as_dense(problem.site.parts[1:]) if self.learned else np.zeros_like(self.S_g)
        self.mask = np.eye(anchor.dim) if parts[0].ndim == 1 else block_diag(*[np.ones_like(p) for p in parts])
        self.size = anchor.dim
        if self.learned:
            self.size += int(np.triu(self.mask).sum())

    def expectations(self, q):
        covariance = np.linalg.inv(as_dense(q.factor.parts))
        found = []
        for rows in self.twins:
            # every rule but the delta method is exact for a quadratic
            exact = rows.formula is least_squares and not self.rule.is_delta
            found.append(
                rows.expectations(q.mean, covariance, nodes_for(L.Exact() if exact else self.rule, rows.n_outputs))
            )
        value, gradient, hessian = (sum(parts) for parts in zip(*found, strict=True))
        if self.rule == L.Delta(1):
            return value, gradient, np.zeros_like(hessian)
        return value, gradient, hessian * self.mask

    def objective(self, q):
        """E_q[ℓ] + vᵀm − ½ tr V(mmᵀ + Σ) + ρ KL(q‖q_g)."""
        S, m = as_dense(q.factor.parts), q.mean
        covariance = np.linalg.inv(S)
        deviation = m - self.m_g
        kl = 0.5 * (np.trace(self.S_g @ covariance) - m.size + deviation @ self.S_g @ deviation)
        kl += 0.5 * (np.linalg.slogdet(S)[1] - np.linalg.slogdet(self.S_g)[1])
        site = self.v @ m - 0.5 * np.trace(self.V @ (np.outer(m, m) + covariance))
        return self.expectations(q)[0] + site + self.rho * kl

    def residual(self, q, flip=1.0):
        """Fisher length per parameter of λ − [λ_g − (η + ∇_μ E_q[ℓ])/ρ]; `flip` is −1 in the broken twin."""
        _, gradient, hessian = self.expectations(q)
        S, m = as_dense(q.factor.parts), q.mean
        covariance = np.linalg.inv(S)
        if not self.learned:
            missing = S @ m - (self.S_g @ self.m_g - (self.v + gradient) / self.rho)
            return np.sqrt(missing @ covariance @ missing / self.size)
        linear = S @ m - (self.S_g @ self.m_g - (self.v + gradient - flip * hessian @ m) / self.rho)
        precision = S - (self.S_g - (self.V - flip * hessian) / self.rho)
        missing = linear - precision @ m
        relative = covariance @ precision
        return np.sqrt((missing @ covariance @ missing + 0.5 * np.trace(relative @ relative)) / self.size)


def random_site(q, rho, rng, share=0.4):
    """A dual with a random sign that leaves ρS_g − V positive definite: V is `share` of the smallest eigenvalue."""
    site = q.natural.from_vector(rng.standard_normal(q.natural.size))
    if len(site.parts) == 1:
        return site
    V, smallest = as_dense(site.parts[1:]), np.linalg.eigvalsh(as_dense(q.factor.parts))[0]
    scale = share * rho * smallest / np.linalg.norm(V, 2)
    return F.Natural(site.linear, *(scale * part for part in site.parts[1:]))


def prepared(kind, family, rule, seed=0, rho=0.7, n=8, d=3):
    rng = np.random.default_rng(seed)
    loss, twins = make(kind, rng, n, d)
    anchor = FAMILIES[family](rng, loss.dim)
    problem = Subproblem(loss, loss.check(anchor, rule), anchor, random_site(anchor, rho, rng), rho)
    return problem, DenseProblem(problem, twins), rng


def nearby(q, rng, length):
    """A member of the family at Fisher distance about `length`, or None outside the domain."""
    direction = q.natural.from_vector(rng.standard_normal(q.natural.size))
    natural = q.natural + (length / np.linalg.norm(q.whiten(direction))) * direction
    return q.with_natural(natural) if q.contains(natural) else None


def assert_local_minimum(twin, q, rng, draws=40):
    """No member nearby is better. The objective grows by about ½ρ·length²: 3e-7 at the least, far above rounding."""
    least = twin.objective(q)
    tried = 0
    for length in np.geomspace(1e-3, 1.0, draws):
        other = nearby(q, rng, length)
        if other is not None:
            assert twin.objective(other) > least
            tried += 1
    assert tried > draws // 2


# ----------------------------------------------------------------------------------------------------
# Closed form
# ----------------------------------------------------------------------------------------------------


@every_family
def test_closed_form_solves_least_squares(family):
    """One dense solve: a residual of the order of the condition number in roundings. Measured: below 1e-14."""
    problem, twin, rng = prepared("least squares", family, L.Auto())
    solution = ClosedForm().solve(problem, problem.anchor, RNG)
    assert (solution.status, solution.iterations) == (ClientStatus.CONVERGED, 1)
    assert twin.residual(solution.posterior) < 1e-12
    assert solution.residual < 1e-12
    assert_local_minimum(twin, solution.posterior, rng)
    assert twin.residual(nearby(solution.posterior, rng, 1e-3)) > 1e-6  # twin: not a solution
    # from anywhere else the answer is the same
    elsewhere = ClosedForm().solve(problem, nearby(problem.anchor, rng, 0.5), RNG)
    np.testing.assert_allclose(elsewhere.posterior.mean, solution.posterior.mean, rtol=1e-12)


@every_family
def test_closed_form_with_many_outputs(family, rng):
    outputs = 3
    X, y = rng.standard_normal((8, 2)), rng.standard_normal((8, outputs))
    anchor = FAMILIES[family](rng, 2 * outputs)
    loss = L.LeastSquares(X, y)
    problem = Subproblem(loss, L.Auto(), anchor, random_site(anchor, 0.7, rng), 0.7)
    padded = [np.kron(np.eye(outputs)[c], X) for c in range(outputs)]
    twin = DenseProblem(problem, [Rows(least_squares, padded[c], y[:, c]) for c in range(outputs)])
    assert twin.residual(ClosedForm().solve(problem, anchor, RNG).posterior) < 1e-12


def test_a_closed_form_whose_mean_alone_moves_shares_the_servers_factor(rng):
    """The dual holds the loss's own curvature then, and the precision is the anchor's to the bit."""
    loss, anchor = L.LeastSquares(rng.normal(size=(6, 3)), rng.normal(size=6)), F.FullGaussian(np.ones(3), spd(rng, 3))
    gradient = loss.expect(anchor, L.Auto()).natural_gradient
    for share, shared in ((1.0, True), (0.5, False)):
        site = F.Natural(np.zeros(3), -share * gradient.precision)
        found = ClosedForm().solve(Subproblem(loss, L.Auto(), anchor, site, 2.0), anchor, RNG).posterior
        assert (found.factor is anchor.factor) == shared
        assert np.abs(found.mean - anchor.mean).max() > 1e-3


def test_closed_form_says_when_there_is_no_minimum():
    eye = np.eye(2)
    full, diagonal = F.FullGaussian(np.zeros(2), 1.0), F.DiagonalGaussian(np.zeros(2), 1.0)
    loss = L.LeastSquares([[1.0, 0.0]], [1.0])
    for anchor, V in [(full, 1.5 * eye), (full, np.diag([0.0, 1.5])), (diagonal, np.array([0.0, 1.5]))]:
        problem = Subproblem(loss, L.Auto(), anchor, F.Natural(np.zeros(2), V), 1.0)
        assert not problem.is_well_posed
        solution = ClosedForm().solve(problem, anchor, RNG)
        assert solution.status is ClientStatus.ILL_POSED
        assert not solution.status.is_usable
        assert solution.posterior is anchor
    # twin: half of that V leaves a minimum
    problem = Subproblem(loss, L.Auto(), full, F.Natural(np.zeros(2), 0.75 * eye), 1.0)
    assert ClosedForm().solve(problem, full, RNG).status is ClientStatus.CONVERGED
    # data can make good what the dual takes: G + ρS_g − V is what counts
    strong = Subproblem(L.LeastSquares(2.0 * eye, [1.0, 1.0]), L.Auto(), full, F.Natural(np.zeros(2), 1.5 * eye), 1.0)
    assert not strong.is_well_posed
    solution = ClosedForm().solve(strong, full, RNG)
    assert (solution.status, solution.residual < 1e-13) == (ClientStatus.CONVERGED, True)


# ----------------------------------------------------------------------------------------------------
# Variational Newton: every loss, family and rule
# ----------------------------------------------------------------------------------------------------

RULES = [L.Auto(), L.Exact(), L.GaussHermite(24), L.QuasiMonteCarlo(64), L.Delta(1), L.Delta(2)]


def fits(kind, rule):
    if kind.startswith("softmax") and isinstance(rule, L.GaussHermite):
        return False
    return not (kind == "softmax" and rule == L.Exact())


PAIRS = [(kind, family) for kind in KINDS for family in FAMILIES]
COMBINATIONS = [
    pytest.param(kind, family, rule, id=f"{kind}-{family}-{rule}")
    for number, (kind, family) in enumerate(PAIRS)
    for rule in [RULES[number % len(RULES)]]
    if fits(kind, rule)
]
"""Every kind with every family; the rules take turns."""


@pytest.mark.parametrize(("kind", "family", "rule"), COMBINATIONS)
def test_newton_reaches_the_tolerance(kind, family, rule):
    """The residual is recomputed with dense matrices and plain formulas; both agree to 1e-9, and at 1e-4 to a percent.

    Iterations measured over all combinations and three seeds: at most 17. The cap is about twice that.
    """
    problem, twin, rng = prepared(kind, family, rule)
    if rule == L.Auto() and kind == "softmax":
        twin.rule = L.QuasiMonteCarlo()
    solution = VariationalNewton(tol=TOL).solve(problem, problem.anchor, RNG)
    assert solution.status is ClientStatus.CONVERGED
    assert solution.residual <= TOL
    assert twin.residual(solution.posterior) <= TOL + 1e-9
    assert solution.iterations <= 32
    away = nearby(solution.posterior, rng, 1e-4)
    if not rule.is_delta:
        assert solution.expected.value == pytest.approx(twin.expectations(solution.posterior)[0], rel=1e-9)
    measured = VariationalNewton.measured(problem, away, 0, ClientStatus.STEPS_DONE).residual
    assert measured == pytest.approx(twin.residual(away), rel=1e-2)
    assert measured > 1e-6
    if family in LEARNED and rule != L.Delta(1):
        assert twin.residual(solution.posterior, flip=-1.0) > 1e-3  # twin: the curvature's sign


@pytest.mark.parametrize(
    ("kind", "family"), [*zip(["total", "softmax", "poisson", "logistic"] * 2, FAMILIES, strict=False)]
)
def test_answers_do_not_depend_on_mixing_or_start(kind, family):
    """Two answers of residual 1e-11 lie within 1e-9 of each other: the contraction leaves at least a tenth."""
    problem, _, rng = prepared(kind, family, L.Auto(), seed=5)
    mixed = VariationalNewton(tol=1e-11).solve(problem, problem.anchor, RNG)
    plain = VariationalNewton(tol=1e-11, memory=0).solve(problem, problem.anchor, RNG)
    elsewhere = VariationalNewton(tol=1e-11).solve(problem, nearby(problem.anchor, rng, 0.5), RNG)
    given = VariationalNewton(tol=1e-11).solve(problem, problem.anchor, RNG, problem.expect(problem.anchor))
    for other in (plain, elsewhere):
        assert other.status is ClientStatus.CONVERGED
        difference = other.posterior.natural - mixed.posterior.natural
        assert mixed.posterior.fisher_norm(difference) < 1e-9
    assert given.posterior.natural == mixed.posterior.natural
    assert given.iterations == mixed.iterations


@pytest.mark.parametrize("family", [F.FullGaussian, F.DiagonalGaussian])
@pytest.mark.parametrize("precision", [1.0, 1e-4])
def test_mixing_is_faster_than_the_plain_fixed_point(family, precision):
    """One row twenty times as far out as the others, weak priors. Measured: 10–43 steps against 22–159."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((20, 3))
    X[0] *= 20
    labels = [np.ones(20), (X[:, 0] > 0).astype(float), np.random.default_rng(2).integers(0, 2, 20)]
    steps = {6: 0, 0: 0}
    for y in labels:
        anchor = family(np.zeros(3), precision)
        problem = Subproblem(L.Logistic(X, y), L.Exact(), anchor, anchor.natural.zeros(), 1.0)
        for memory in steps:
            solution = VariationalNewton(memory=memory, max_iter=500).solve(problem, anchor, RNG)
            assert solution.status is ClientStatus.CONVERGED
            steps[memory] += solution.iterations
            assert memory == 0 or solution.iterations <= 60
    assert 1.5 * steps[6] < steps[0]


@pytest.mark.parametrize(
    ("kind", "family"), [("logistic", "full"), ("poisson", "diagonal"), ("least squares", "isotropic")]
)
def test_more_parameters_than_rows(kind, family):
    """d = 50, n = 30. Measured: at most 13 steps."""
    problem, twin, _ = prepared(kind, family, L.Auto(), n=30, d=50)
    solution = VariationalNewton().solve(problem, problem.anchor, RNG)
    assert solution.status is ClientStatus.CONVERGED
    assert solution.iterations <= 30
    assert twin.residual(solution.posterior) <= TOL + 1e-9


def wide_poisson(family, precision=1e-4):
    rng = np.random.default_rng(4)
    X, y = rng.standard_normal((20, 3)), rng.poisson(2.0, 20).astype(float)
    anchor = family(np.zeros(3), precision)
    problem = Subproblem(L.Poisson(X, y.copy()), L.Exact(), anchor, anchor.natural.zeros(), 1.0)
    return problem, DenseProblem(problem, [Rows(poisson, X, y)])


@pytest.mark.parametrize("family", [F.FullGaussian, F.DiagonalGaussian])
def test_poisson_overflow_starts_at_the_laplace_approximation(family):
    """E exp f overflows at the prior (deviations above 100), so that no step can start there."""
    problem, twin = wide_poisson(family)
    with np.errstate(over="ignore", invalid="ignore"):
        assert not problem.expect(problem.anchor).natural_gradient.is_finite()
    solution = VariationalNewton().solve(problem, problem.anchor, RNG)  # no warning leaks out
    assert solution.status is ClientStatus.CONVERGED
    assert solution.iterations <= 30
    assert twin.residual(solution.posterior) <= TOL + 1e-9


@pytest.mark.parametrize("rule", [L.Exact(), L.Delta(1), L.Delta(2)], ids=str)
def test_a_loss_that_is_infinite_at_the_start_is_reported(rule):
    anchor = F.FullGaussian([0.0], 1.0)
    loss = L.Poisson([[1.0]], [2.0], offset=[800.0])
    problem = Subproblem(loss, rule, anchor, anchor.natural.zeros(), 1.0)
    with np.errstate(over="ignore", invalid="ignore"):
        solution = VariationalNewton().solve(problem, anchor, RNG)
    assert solution.status is ClientStatus.NOT_FINITE


# ----------------------------------------------------------------------------------------------------
# Where no minimum need exist
# ----------------------------------------------------------------------------------------------------


def separable(v, V, rho=0.1):
    X = np.random.default_rng(0).standard_normal((20, 1))
    y = (X[:, 0] > 0).astype(float)
    anchor = F.FullGaussian([0.0], 1.0)
    problem = Subproblem(L.Logistic(X, y), L.Exact(), anchor, F.Natural(np.array([v]), np.array([[V]])), rho)
    return problem, DenseProblem(problem, [Rows(logistic, X, y)])


def test_a_local_minimum_is_found_where_the_objective_is_unbounded():
    """V > ρS_g: −∞ far out, and a proper minimum where the data's curvature outweighs the difference."""
    problem, twin = separable(v=3.0, V=0.15)
    assert not problem.is_well_posed
    solution = VariationalNewton().solve(problem, problem.anchor, RNG)
    assert solution.status is ClientStatus.CONVERGED
    assert twin.residual(solution.posterior) <= TOL + 1e-9
    assert_local_minimum(twin, solution.posterior, np.random.default_rng(0), draws=20)
    far = F.FullGaussian([1e4], 1.0)
    assert twin.objective(far) < twin.objective(solution.posterior) - 1e3


@pytest.mark.parametrize("V", [0.15, 1.0, 100.0])
def test_an_escape_is_reported_and_not_followed(V):
    """Nothing holds θ: loss, dual and KL together fall without end."""
    problem, _ = separable(v=0.0, V=V)
    solution = VariationalNewton().solve(problem, problem.anchor, RNG)
    assert solution.status is ClientStatus.ILL_POSED
    assert "raise rho" in solution.status.value
    assert not solution.status.is_usable
    assert solution.residual > 1.0
    # twin: with a ρ that the message asks for there is a solution
    better, twin = separable(v=0.0, V=V, rho=2 * V)
    answer = VariationalNewton().solve(better, better.anchor, RNG)
    assert answer.status is ClientStatus.CONVERGED
    assert twin.residual(answer.posterior) <= TOL + 1e-9


def test_iteration_limit():
    problem, _, _ = prepared("logistic", "full", L.Exact())
    solution = VariationalNewton(max_iter=1).solve(problem, problem.anchor, RNG)
    assert (solution.status, solution.iterations) == (ClientStatus.ITERATION_LIMIT, 1)
    assert solution.residual > TOL
    with pytest.raises(RuntimeError, match=r"solve_pooled: stopped at the iteration limit.*residual"):
        ba.solve_pooled([problem.loss], problem.anchor, max_iter=1)


# ----------------------------------------------------------------------------------------------------
# Delta method: MAP and Laplace, against SciPy's BFGS
# ----------------------------------------------------------------------------------------------------


def penalised(twins, m, S, theta):
    parts = [rows.expectations(theta, np.eye(theta.size), None) for rows in twins]
    value, gradient, hessian = (sum(p) for p in zip(*parts, strict=True))
    deviation = theta - m
    return value + 0.5 * deviation @ S @ deviation, gradient + S @ deviation, hessian + S


def bfgs(twins, m, S):
    """The mode; BFGS stops at a gradient of about 1e-6, three Newton steps square that away."""
    found = minimize(lambda t: penalised(twins, m, S, t)[:2], m, jac=True, method="BFGS", options={"gtol": 1e-6})
    theta = found.x
    assert np.linalg.norm(penalised(twins, m, S, theta)[1]) < 1e-3
    for _ in range(3):
        _, gradient, hessian = penalised(twins, m, S, theta)
        theta = theta - np.linalg.solve(hessian, gradient)
    assert np.abs(found.x - theta).max() < 1e-4  # the polish does not go elsewhere
    return theta, penalised(twins, m, S, theta)[2]


@pytest.mark.parametrize("kind", ["logistic", "poisson", "softmax", "total"])
@pytest.mark.parametrize("family", LEARNED)
def test_second_order_delta_method_is_laplace(kind, family):
    """Mean: the mode under the prior's own precision. Precision: the Hessian there, restricted to the structure."""
    rng = np.random.default_rng(6)
    loss, twins = make(kind, rng)
    prior = FAMILIES[family](rng, loss.dim)
    S = as_dense(prior.factor.parts)
    mode, hessian = bfgs(twins, prior.mean, S)
    posterior = ba.solve_pooled([loss], prior, expectation=L.Delta(2)).posterior
    np.testing.assert_allclose(posterior.mean, mode, rtol=0, atol=1e-9)
    mask = as_dense([np.ones_like(part) for part in prior.factor.parts])
    np.testing.assert_allclose(
        as_dense(posterior.factor.parts), hessian * mask, rtol=0, atol=1e-8 * np.abs(hessian).max()
    )
    # twin: exact expectations are another answer
    vb = ba.solve_pooled([loss], prior).posterior
    assert np.abs(vb.mean - mode).max() > 1e-4


# ----------------------------------------------------------------------------------------------------
# VON and gradient steps
# ----------------------------------------------------------------------------------------------------


@every_family
def test_von_is_reproducible(family):
    problem, twin, _ = prepared("logistic", family, L.Exact())
    one, two, other = (VON(steps=40).solve(problem, problem.anchor, np.random.default_rng(seed)) for seed in (7, 7, 8))
    assert one.status is ClientStatus.STEPS_DONE
    assert one.iterations == 40
    assert one.posterior.natural == two.posterior.natural
    assert one.posterior.natural != other.posterior.natural
    assert one.residual == pytest.approx(twin.residual(one.posterior), rel=1e-9)


@pytest.mark.parametrize("family", LEARNED)
def test_von_approaches_the_solution(family):
    """Root mean square Fisher distance over five seeds with four samples a step.

    Measured: 0.4 … 0.9 at the start, 0.06 … 0.07 after 10 steps, 0.02 … 0.03 after 300.
    """
    problem, _, _ = prepared("logistic", family, L.Exact())
    exact = VariationalNewton().solve(problem, problem.anchor, RNG).posterior

    def distance(q):
        return exact.fisher_norm(q.natural - exact.natural)

    def root_mean_square(steps):
        runs = [VON(steps, samples=4).solve(problem, problem.anchor, np.random.default_rng(s)) for s in range(5)]
        return np.sqrt(np.mean([distance(run.posterior) ** 2 for run in runs]))

    early, late = root_mean_square(10), root_mean_square(300)
    assert late < 0.1
    assert late < early < distance(problem.anchor)


def test_one_von_step_is_its_formula():
    """t = 1, one sample: S = S_g + (Ĥ − V)/ρ, m = m_g − S⁻¹(ĝ + v − V m_g)/ρ, from a gradient of the test's own."""
    problem, twin, _ = prepared("logistic", "full", L.Exact())
    anchor = problem.anchor
    theta = anchor.sample(np.random.default_rng(3), 1)[0]
    (rows,) = twin.twins
    _, gradient, hessian = rows.expectations(theta, np.eye(3), None)
    precision = twin.S_g + (hessian - twin.V) / twin.rho
    mean = twin.m_g - np.linalg.solve(precision, gradient + twin.v - twin.V @ twin.m_g) / twin.rho
    found = VON(steps=1).solve(problem, anchor, np.random.default_rng(3)).posterior
    np.testing.assert_allclose(found.precision, precision, rtol=1e-12)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-11)
    wrong = twin.m_g - np.linalg.solve(precision, gradient + twin.v) / twin.rho  # twin: −Vm dropped
    assert not np.allclose(found.mean, wrong, rtol=1e-3)


def test_von_halves_steps_that_leave_the_domain():
    """V > ρS_g with little data: every full step ends at a negative precision."""
    problem, _ = separable(v=0.0, V=1.0, rho=0.5)
    solution = VON(steps=20).solve(problem, problem.anchor, np.random.default_rng(0))
    assert solution.posterior.factor.is_positive_definite()
    hopeless, _ = separable(v=0.0, V=1e6, rho=0.5)
    assert VON(steps=200, decay=0.0).solve(hopeless, hopeless.anchor, np.random.default_rng(0)).status is (
        ClientStatus.ILL_POSED
    )


@pytest.mark.parametrize("family", ["isotropic", "fixed diagonal", "fixed dense"])
def test_gradient_steps_are_gradient_steps(family):
    problem, twin, _ = prepared("logistic", family, L.Delta(1))
    (rows,) = twin.twins
    theta = twin.m_g.copy()
    for _ in range(7):
        _, gradient, _ = rows.expectations(theta, np.eye(3), None)
        theta = theta - 0.05 * (gradient + twin.v + twin.rho * twin.S_g @ (theta - twin.m_g))
    solution = GradientSteps(steps=7, learning_rate=0.05).solve(problem, problem.anchor, RNG)
    assert (solution.status, solution.iterations) == (ClientStatus.STEPS_DONE, 7)
    np.testing.assert_allclose(solution.posterior.mean, theta, rtol=1e-12, atol=1e-13)
    assert solution.residual == pytest.approx(twin.residual(solution.posterior), rel=1e-9)


def test_diverging_gradient_steps_are_reported():
    """They end before the overflow, at a finite iterate, and without a warning."""
    problem, _, _ = prepared("least squares", "isotropic", L.Delta(1))
    solution = GradientSteps(steps=300, learning_rate=1e3).solve(problem, problem.anchor, RNG)
    assert solution.status is ClientStatus.NOT_FINITE
    assert np.isfinite(solution.posterior.mean).all()


# ----------------------------------------------------------------------------------------------------
# Mismatches and bad parameters
# ----------------------------------------------------------------------------------------------------


def test_solvers_that_do_not_fit_say_so():
    full, iso = F.FullGaussian(np.zeros(1), 1.0), F.IsotropicGaussian(np.zeros(1))
    one = L.Logistic([[1.0]], [1])
    gamma = F.Gamma([1.0], [1.0])
    linear = L.LinearInStatistics(gamma.natural)
    refused = (
        (ClosedForm(), one, full),
        (VariationalNewton(), linear, gamma),
        (VON(), linear, gamma),
        (GradientSteps(), one, full),
        (GradientSteps(), one, gamma),
    )
    for solver, loss, prior in refused:
        with pytest.raises(ValueError, match=rf"solver={type(solver).__name__}"):
            solver.check(loss, prior, L.Auto())
    GradientSteps().check(one, iso, L.Delta(1))
    VariationalNewton().check(one, full, L.Auto())
    ClosedForm().check(L.Total([L.LeastSquares([[1.0]], [1.0])]), full, L.Auto())


def test_bad_parameters():
    assert_refused(
        [
            *((lambda tol=tol: VariationalNewton(tol=tol), "tol") for tol in (0.0, -1.0, np.nan)),
            *((lambda n=n: VariationalNewton(max_iter=n), "max_iter") for n in (0, 10.0)),
            (lambda: VariationalNewton(memory=-1), "memory"),
            *((lambda solver=solver: solver(steps=0), "steps") for solver in (VON, GradientSteps)),
            *((lambda t=t: VON(step_size=t), "step_size") for t in (0.0, 1.5)),
            *((lambda t=t: VON(decay=t), "decay") for t in (-0.1, 2.0, "slow")),
            (lambda: VON(samples=0), "samples"),
            *((lambda t=t: GradientSteps(learning_rate=t), "learning_rate") for t in (-1.0, 0.0)),
        ]
    )


# ----------------------------------------------------------------------------------------------------
# Anderson mixing
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "seed"), [(2, 0), (3, 1), (6, 2)])
def test_mixing_weights_solve_the_constrained_least_squares(count, seed):
    """Σw = 1 and RᵀR w ∝ 1 (the Lagrange condition); normal equations of scaled columns keep half of the digits."""
    residuals = list(np.random.default_rng(seed).standard_normal((count, 10)))
    weights = mixing_weights(residuals)
    assert weights.sum() == pytest.approx(1.0, abs=1e-13)
    gram = np.array([[a @ b for b in residuals] for a in residuals])
    multipliers = gram @ weights
    np.testing.assert_allclose(multipliers, multipliers.mean(), rtol=1e-8)
    best = np.linalg.norm(weights @ np.stack(residuals))
    rng = np.random.default_rng(seed)
    for _ in range(20):
        step = rng.standard_normal(count) * 1e-2
        other = weights + step - step.mean()
        assert np.linalg.norm(other @ np.stack(residuals)) > best
    assert best < min(np.linalg.norm(r) for r in residuals)


def test_mixing_weights_of_dependent_residuals():
    """Twice the same residual: any split is best, none may blow up."""
    r = np.array([1.0, 2.0, 3.0])
    weights = mixing_weights([r, r, 0.5 * r])
    assert weights.sum() == pytest.approx(1.0, abs=1e-12)
    np.testing.assert_allclose(weights @ np.stack([r, r, 0.5 * r]), 0.0, atol=1e-12)
    assert np.abs(weights).max() < 10
    np.testing.assert_allclose(mixing_weights([r, r]).sum(), 1.0)


@pytest.mark.parametrize("scale", [1e-150, 1e150])
def test_mixing_weights_do_not_depend_on_the_scale(scale, rng):
    residuals = list(rng.standard_normal((4, 7)))
    weights = mixing_weights([scale * r for r in residuals])
    np.testing.assert_allclose(weights, mixing_weights(residuals), rtol=1e-9)


def iterate(matrix, shift, memory, steps):
    """Distances to the fixed point of x ↦ Ax + b, mixed as the solvers do it."""
    solution = np.linalg.solve(np.eye(len(shift)) - matrix, shift)
    x, mixer, distances = np.zeros(len(shift)), Mixer(memory), []
    for _ in range(steps):
        image = matrix @ x + shift
        mixed = mixer.propose(F.Natural(image), image - x)
        x = image if mixed is None else np.array(mixed.linear)
        distances.append(np.linalg.norm(x - solution) / np.linalg.norm(solution))
    return np.array(distances)


@pytest.mark.parametrize(("d", "radius"), [(1, 0.9), (2, 0.99), (6, 0.9)])
def test_mixing_solves_a_linear_map_in_d_plus_one_steps(d, radius):
    """Type II Anderson mixing of full memory is GMRES. Measured: 1e-9 at worst; the plain map is then at 0.3 … 0.98.

    The weights come from normal equations, whose condition is squared: with radius 0.99 that costs six digits.
    """
    rng = np.random.default_rng(d)
    matrix = rng.standard_normal((d, d))
    matrix *= radius / np.abs(np.linalg.eigvals(matrix)).max()
    shift = rng.standard_normal(d)
    assert iterate(matrix, shift, d + 1, d + 1)[-1] < 1e-7
    assert iterate(matrix, shift, 0, d + 1)[-1] > 1e-2  # twin: no mixing
    if d > 1:
        assert iterate(matrix, shift, d + 1, d)[-1] > 1e-6  # twin: a step less


def test_mixer_forgets():
    mixer = Mixer(2)
    for i in range(5):
        mixer.propose(F.Natural(np.array([float(i)])), np.array([1.0 + i]))
    mixer.restart()
    # the newest image stays, so that the next proposal is a secant through two points
    mixed = mixer.propose(F.Natural(np.array([10.0])), np.array([1.0]))
    np.testing.assert_allclose(mixed.linear, [1.0 * 10 * 1.25 - 0.25 * 4])
    assert Mixer(0).propose(F.Natural(np.array([1.0])), np.array([1.0])) is None
    assert Mixer(3).propose(F.Natural(np.array([1.0])), np.array([1.0])) is None


@pytest.mark.parametrize("family", ["diagonal", "block"])
def test_the_descent_has_the_tensors_of_two_classes_in_every_family(family):
    X = 5.0 * np.random.default_rng(0).standard_normal((12, 2))
    loss = L.Softmax(X, (X[:, 0] > 0).astype(float), 2)
    anchor = (
        F.DiagonalGaussian(np.zeros(4), 0.1)
        if family == "diagonal"
        else F.BlockDiagonalGaussian(np.zeros(4), 0.1, [1, 3])
    )
    problem = Subproblem(loss, loss.check(anchor, L.Auto()), anchor, anchor.natural.zeros(), 1.0)
    assert descend(problem, Iterate.at(problem, anchor), 0, 100, 1e-9).status is ClientStatus.CONVERGED


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("name", ["diagonal", "full"])
def test_newtons_step_of_a_quadratic_is_the_last_whatever_the_dual(name, share, rng):
    """Conjugate gradients leave a ten-thousandth of the gradient; a step without V gains a factor of 1 − V/(H + ρS)."""
    prior = {"diagonal": ba.families.DiagonalGaussian, "full": ba.families.FullGaussian}[name](np.zeros(4), 100.0)
    X = rng.standard_normal((30, 4))
    site = prior.natural_from(np.ones(4), [share * part for part in prior.factor.parts])
    loss = ba.losses.LeastSquares(X, X.sum(axis=1))
    solution = VariationalNewton().solve(Subproblem(loss, ba.losses.Delta(2), prior, site, 1.0), prior, rng)
    assert solution.status is ClientStatus.CONVERGED
    assert solution.iterations <= 2


def test_own_fits_need_a_learned_precision():
    losses = [ba.losses.Logistic([[1.0]], [1])]
    for prior in (ba.families.FixedPrecisionGaussian(np.zeros(1), np.ones(1)), ba.families.Gamma(1.0, 1.0)):
        with pytest.raises(ValueError, match="learned precision"):
            ba.clients.own_fits(losses, prior)
