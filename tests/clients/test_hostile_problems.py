"""Strictly convex problems with weak priors, wild units and separated labels are solved, or the reason is named."""

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np.clients import VariationalNewton
from bayesadmm_np.clients import newton as newton_module
from bayesadmm_np.clients.descent import Chart, hessian
from bayesadmm_np.clients.problem import ClientStatus
from oracles.hostile import draw

SAMPLE = 80
"""Problems in every run of the tests; the slow test has ten thousand."""
IN_DOUBT = 6446
"""A softmax whose curvature is singular to rounding: called ROUNDED, and .03 standard deviations off."""
SOLVED = (ClientStatus.CONVERGED, ClientStatus.ROUNDED)


def solve(seed):
    drawn = draw(seed)
    return drawn, VariationalNewton().solve(drawn.problem, drawn.start, np.random.default_rng(0))


def error(drawn, q):
    """How far q is from stationary: the Newton decrement of the mean, and the precision relative to what it should be.

    Both are small only near the minimum, whatever the metric of S says: N holds the curvature of the data.
    """
    problem, d = drawn.problem, q.dim
    expected = problem.expect(q)
    gradient = problem.mean_gradient(q, expected)
    newton = expected.curvature.dense() + problem.rho * problem.anchor.factor.multiply(np.eye(d))
    if q.learns_precision:
        newton = newton - q.factor.like(problem.site.parts[1:]).multiply(np.eye(d))
    units = 1 / np.sqrt(np.diagonal(newton))
    values, vectors = np.linalg.eigh(newton * np.outer(units, units))
    values = np.maximum(values, 1e-15 * values[-1])  # what rounding leaves of smaller ones
    decrement = np.linalg.norm((vectors.T @ (units * gradient)) / np.sqrt(values))
    if not q.learns_precision:
        return decrement
    target = q.factor.like(problem.target(expected.natural_gradient).parts[1:])
    change = [own - wanted for own, wanted in zip(q.factor.parts, target.parts, strict=True)]
    return max(decrement, np.abs(target.whiten(change)).max())


def check(seed):
    """Return the status; a problem that is called solved must be."""
    drawn, solution = solve(seed)
    if solution.status is ClientStatus.CONVERGED:
        again = drawn.problem.target(drawn.problem.expect(solution.posterior).natural_gradient)
        assert solution.posterior.fisher_norm(solution.posterior.natural - again) <= 1.01e-8, drawn.words
    if solution.status is ClientStatus.ROUNDED:
        # a fall of 1000 ulp of the objective's terms passes: a decrement of √(2 · 2.2e-13 · 1e5) = 2e-4
        assert error(drawn, solution.posterior) < 2e-3, drawn.words
    return solution.status


def test_hostile_problems_are_solved():
    unsolved = [draw(seed).words for seed in range(SAMPLE) if check(seed) not in SOLVED]
    assert len(unsolved) <= 2, unsolved


def test_without_the_descent_many_are_not(monkeypatch):
    def give_up(problem, current, done, max_iter, tol):
        status = ClientStatus.CONVERGED if current.residual <= tol else ClientStatus.ITERATION_LIMIT
        return current.solution(done, status)

    monkeypatch.setattr(newton_module, "descend", give_up)
    assert sum(check(seed) not in SOLVED for seed in range(60)) >= 6


@pytest.mark.slow
def test_ten_thousand_hostile_problems():
    """Most others are Poisson problems of a few rows whose S has a condition of 1e15 or more, and are named so."""
    ended = {seed: check(seed) for seed in range(10_000) if seed != IN_DOUBT}
    unsolved = {draw(seed).words: status.name for seed, status in ended.items() if status not in SOLVED}
    assert len(unsolved) + 1 <= 40, unsolved
    assert not set(unsolved.values()) - {"UNRESOLVED", "COARSE_RULE", "NOT_FINITE"}, unsolved


def test_an_error_of_a_hundredth_of_a_standard_deviation_is_seen():
    """The twin of the check for what stopped at rounding."""
    drawn, solution = solve(9)
    q = solution.posterior
    assert error(drawn, q) < 1e-7
    assert error(drawn, q.at(q.mean + 0.01 * np.sqrt(q.variance), q.factor.parts)) > 1e-3


# ----------------------------------------------------------------------------------------------------
# The coordinates of the descent
# ----------------------------------------------------------------------------------------------------

FAMILIES = {
    "full": lambda: ba.families.FullGaussian([0.3, -0.2, 0.1], [[2.0, 0.3, 0.1], [0.3, 1.0, 0.2], [0.1, 0.2, 0.5]]),
    "diagonal": lambda: ba.families.DiagonalGaussian([0.3, -0.2, 0.1], [2.0, 1.0, 0.5]),
    "block": lambda: ba.families.BlockDiagonalGaussian([0.3, -0.2, 0.1], [[[2.0, 0.3], [0.3, 1.0]], [[0.5]]]),
}


def chart_of(family, power, loss=None):
    rng = np.random.default_rng(3)
    X = 2.0 * rng.standard_normal((8, 3))
    loss = loss or ba.losses.Logistic(X, rng.random(8) < 0.5)
    anchor = FAMILIES[family]()
    problem = ba.clients.Subproblem(loss, ba.losses.Exact(), anchor, 0.3 * anchor.natural, 0.7)
    return Chart(problem, anchor, True, power), rng


def merit(chart, vector):
    q = chart.point(vector)
    return chart.problem.merit(q, chart.problem.expect(q))


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_gradient_is_that_of_the_objective(family, power):
    chart, rng = chart_of(family, power)
    base = 0.1 * rng.standard_normal(chart.size)
    q = chart.point(base)
    gradient = chart.gradient(base, q, chart.problem.expect(q))
    direction, h = rng.standard_normal(chart.size), 1e-5
    slope = (merit(chart, base + h * direction) - merit(chart, base - h * direction)) / (2 * h)
    # central differences: h² times a third derivative of order ten, and rounding 1e-16/h
    assert abs(slope - gradient @ direction) < 1e-8 * (1 + abs(slope))
    other = Chart(chart.problem, chart.q, True, 3 - power)
    if power == 2:  # the twin: the gradient of the other coordinates is another
        assert abs(slope - other.gradient(base, q, chart.problem.expect(q)) @ direction) > 1e-3


def bends(chart, rng):
    """Smallest second difference of the objective along random lines, per squared length."""
    least = np.inf
    for _ in range(300):
        base = 0.2 * rng.standard_normal(chart.size)
        direction = rng.standard_normal(chart.size)
        h = 0.02
        try:
            values = [merit(chart, base + t * h * direction) for t in (-1, 0, 1)]
        except ValueError:  # outside the domain
            continue
        least = min(least, (values[0] - 2 * values[1] + values[2]) / (h * h * (direction @ direction)))
    return least


def concave_in_covariance():
    """One row far from balanced: E softplus is concave in the variance of its predictor where E σ''' < 0."""
    return ba.losses.Logistic(np.tile([[3.0, 0.0, 0.0]], (40, 1)), np.arange(40) % 2)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_objective_is_convex_in_mean_and_covariance_factor(family):
    chart, rng = chart_of(family, 2, concave_in_covariance())
    assert bends(chart, rng) > 0.0


def test_it_is_not_convex_in_mean_and_covariance():
    """The twin, and why the steps are taken in the factor first."""
    chart, rng = chart_of("diagonal", 1, concave_in_covariance())
    assert bends(chart, rng) < 0.0


def test_poisson_is_convex_in_mean_and_covariance():
    loss = ba.losses.Poisson(np.tile([[1.0, 0.5, 0.0]], (5, 1)), np.arange(5))
    for power in (1, 2):
        chart, rng = chart_of("full", power, loss)
        assert bends(chart, rng) > 0.0


def test_points_outside_the_domain_are_refused():
    chart, _ = chart_of("diagonal", 2)
    vector = np.zeros(chart.size)
    vector[-1] = -1.0
    with pytest.raises(ValueError, match="leaves the domain"):
        chart.point(vector)


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_hessian_that_is_formed_is_that_of_the_gradient(family, power):
    """Against central differences; without the term of the factor's own curvature it is another."""
    chart, _ = chart_of(family, power)
    origin = np.zeros(chart.size)
    expected = chart.problem.expect(chart.q)
    gradient = chart.gradient(origin, chart.q, expected)
    formed = hessian(chart, expected, gradient)
    columns = []
    for unit in np.eye(chart.size):
        ends = [chart.point(sign * 1e-5 * unit) for sign in (1.0, -1.0)]
        values = [
            chart.gradient(sign * 1e-5 * unit, q, chart.problem.expect(q))
            for sign, q in zip((1.0, -1.0), ends, strict=True)
        ]
        columns.append((values[0] - values[1]) / 2e-5)
    assert np.abs(formed - np.stack(columns, axis=1)).max() < 1e-8  # 1e-16/1e-5 and the square of 1e-5
    if power == 2:
        assert np.abs(formed - hessian(chart, expected, 0.9 * gradient)).max() > 1e-3


# ----------------------------------------------------------------------------------------------------
# What ends a descent
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [148, 1036, 4863, 7487])
def test_a_bent_valley_is_left(seed):
    """Wide Poisson predictors without counts: (m, B) alone creeps for 300 iterations, which the twin shows."""
    assert check(seed) is ClientStatus.CONVERGED


def test_without_the_other_coordinates_it_creeps(monkeypatch):
    monkeypatch.setattr(Chart, "power", property(lambda chart: 2), raising=False)
    assert check(7487) is ClientStatus.ITERATION_LIMIT


def test_predictors_of_variance_1e18_find_a_start():
    assert check(4902) in SOLVED


@pytest.mark.parametrize("seed", [1013, 5609])  # rounding decides of 6526 whether the start is within tol
def test_curvatures_further_apart_than_double_precision_are_named(seed):
    drawn, solution = solve(seed)
    assert solution.status is ClientStatus.UNRESOLVED
    system = solution.posterior.factor.multiply(np.eye(solution.posterior.dim))
    units = 1 / np.sqrt(np.diagonal(system))
    values = np.linalg.eigvalsh(system * np.outer(units, units))
    assert values[0] < 1e-15 * values[-1], drawn.words
