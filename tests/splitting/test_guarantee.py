"""A guard: lemma and theorem of docs/guarantee.md, and rows that are lost where a guarded one is not."""

import itertools

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np.losses.tensors import JointSums, unpack_tensors
from bayesadmm_np.splitting import guarded, line
from bayesadmm_np.splitting.joint import (
    along,
    curvature_step,
    joint_model,
    joint_step,
    secant_model,
    secant_step,
    slope_to,
)
from bayesadmm_np.splitting.status import Failure
from oracles.couriers import drive
from oracles.problems import DIM, EPS, assert_close, prior, team
from oracles.refusals import assert_refused

M = ba.methods
DIAGONAL = ba.families.DiagonalGaussian
SEARCHES = {
    "tensors": M.JointNewton(start="prior"),
    "no tensors": M.JointNewton(start="prior", tensors=False),
    "own fits": M.JointNewton(),
}
ROWS = {
    "PVI": M.PVI(),
    "damped PVI": M.PVI(0.3),
    "BayesADMM": M.BayesADMM(1.0),
    "AMA": M.AMA(2.0),
    "BLR": M.BLR(1.0),
    "accelerated PVI": ba.Accelerated(M.PVI(0.4)),
    "PVI, full sites": ba.Sketched(M.PVI(), "full"),
    "BLR, full sites": ba.Sketched(M.BLR(1.0), "full"),
}
BOTH = {**ROWS, **SEARCHES}
ROUNDING = 2 * EPS * (200 + 24 + 1000)
"""Rounding of two values of F relative to |F| + d, for at most 200 rows and d = 24 (`losses.base.rounding_unit`)."""


def hostile(seed):
    """Three or four sites of a diagonal posterior: one measures a sum, one all but it, the rest everything, poorly.

    Of both kinds of site a diagonal takes the wrong share of the curvature (docs/rates.md). The prior is wide, so that
    what is near the optimum is not all: expected curvatures at the start are 1e30 times those at the optimum (Poisson),
    or a tenth (logistic).
    """
    rng = np.random.default_rng(seed)
    d, count, share = int(rng.integers(8, 25)), int(rng.integers(3, 5)), rng.uniform(0.05, 0.15)
    kind = ("squares", "logistic", "poisson")[seed % 3]
    sums, rest = np.full((6, d), np.sqrt(share)), np.sqrt(0.9 * d / (d - 1)) * (np.eye(d) - 1 / d)
    clients = []
    for X in (sums, rest, *(0.03 * np.eye(d) for _ in range(count - 2))):
        X = X + 0.01 * rng.standard_normal(X.shape)
        f = X @ rng.standard_normal(d)
        weights = np.full(len(X), (4.0 if kind == "logistic" else 1.0) / (6.0 if X.shape == sums.shape else 1.0))
        y = {
            "squares": f + rng.standard_normal(len(f)),
            "logistic": (rng.random(len(f)) < 1 / (1 + np.exp(-f))).astype(float),
            "poisson": rng.poisson(np.exp(np.clip(f, -4, 4))).astype(float),
        }[kind]
        made = {"squares": ba.losses.LeastSquares, "logistic": ba.losses.Logistic, "poisson": ba.losses.Poisson}[kind]
        clients.append(made(X, y, weights=weights))
    return clients, DIAGONAL(np.zeros(d), 0.01)


class Watched(ba.Guarded):
    """A guard whose searches are kept, one a round."""

    def step(self, server, state, replies):
        found = super().step(server, state, replies)
        if not isinstance(found, Failure):
            SEEN.append(found.memory)
        return found


SEEN = []


def watched(method, *args, **options):
    """Return the result of a guarded run and the search after each of its rounds."""
    SEEN.clear()
    result = ba.run(Watched(method), *args, raise_on_failure=False, **options)
    return result, list(SEEN)


def error(result, clients, prior_):
    """Distance to the pooled optimum, in its Fisher metric."""
    pooled = ba.solve_pooled(clients, prior_).posterior
    return pooled.fisher_norm(result.posterior.natural - pooled.natural)


def accepted(searches):
    """F at the points from which a line begins, in their order."""
    values = [search.accepted.value for search in searches if search.accepted is not None]
    return np.array([value for value, last in zip(values, [None, *values], strict=False) if value != last])


def assert_never_rises(values):
    assert (np.diff(values) <= ROUNDING * (np.abs(values[1:]) + 24)).all()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("row", SEARCHES)
def test_a_search_ends_at_the_pooled_optimum(row, seed):
    """Residuals of 1e-6 a parameter are errors of 1e-5 where the pooled Jacobian is at least .1 of the identity."""
    clients, prior_ = hostile(seed)
    result, searches = watched(SEARCHES[row], clients, prior_, rounds=300)
    assert result.status is ba.Status.CONVERGED
    assert error(result, clients, prior_) < 1e-5
    assert_never_rises(accepted(searches))


@pytest.mark.parametrize("row", ROWS)
def test_a_row_with_a_guard_ends_there_too(row):
    """F at the best point never rises, whoever found it, and the run ends there."""
    left = 0
    for seed in range(3):
        clients, prior_ = hostile(seed)
        result, searches = watched(ROWS[row], clients, prior_, rounds=200)
        assert result.status is ba.Status.CONVERGED
        assert error(result, clients, prior_) < 1e-5
        assert_never_rises(np.array([search.best.value for search in searches if search.best is not None]))
        assert_never_rises(np.array([np.nanmin(result.objective), result.objective[-1]]))
        left += searches[-1].phase == "line"
    assert (left == 0) == (row == "PVI, full sites")


def test_agreement_of_clients_with_a_new_server_says_nothing_of_stationarity():
    """Alike sites under PVI(1/K): λ_g becomes the λ_k that all agree on, far from the fixed point.

    Eq. 32 holds around the server before. The edge of natural gradients tells, and with it the certificate.
    """
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20, 3)) + 1.0
    clients = [ba.losses.Logistic(X, rng.random(20) < 0.7)] * 4
    result = ba.run(M.PVI(0.25), clients, DIAGONAL(np.zeros(3), 1.0), rounds=2, raise_on_failure=False)
    edges = result.history[-1].edges
    assert edges.broadcast < 1e-12
    assert edges.natural_gradient > 1e-3
    assert result.certificate().pooled > 1e-3
    found = ba.run(ba.Guarded(M.PVI(0.25)), clients, DIAGONAL(np.zeros(3), 1.0))
    assert found.status is ba.Status.CONVERGED
    assert found.certificate().pooled < 1e-6


def test_a_row_that_makes_progress_is_left_alone():
    """Bit for bit, and no number more is sent."""
    clients, prior_ = team("logistic", sizes=(20, 30)), prior("full", 3)
    for row in (M.PVI(), ba.Accelerated(M.PVI(0.4))):
        plain, found = ba.run(row, clients, prior_), ba.run(ba.Guarded(row), clients, prior_)
        assert found.state.memory.phase == "row"
        assert np.array_equal(plain.posterior.natural.to_vector(), found.posterior.natural.to_vector())
        assert [record.floats_up for record in plain.history] == [record.floats_up for record in found.history]


@pytest.mark.parametrize("row", ["PVI", "BLR", "accelerated PVI", "own fits"])
def test_a_run_ends_at_the_best_point_whatever_its_status(row):
    """At the round limit, by the callback, and where a twin without a guard has risen or failed."""
    clients, prior_ = hostile(2)
    best, method = [], BOTH[row]
    for rounds in range(1, 9):
        result = ba.run(ba.Guarded(method), clients, prior_, rounds=rounds)
        known = result.state.memory.best  # None until a point is known that is low enough to begin at
        assert known is None or known.value >= result.objective[-1] - ROUNDING * (abs(result.objective[-1]) + 24)
        best.append(result.objective[-1])
        stopped = ba.run(ba.Guarded(method), clients, prior_, callback=lambda one, _, n=rounds: one.round == n)
        assert np.array_equal(stopped.posterior.natural.to_vector(), result.posterior.natural.to_vector())
    assert_never_rises(np.array([result.objective[0], *best]))
    twin = ba.run(method, clients, prior_, rounds=8, raise_on_failure=False)
    assert row == "own fits" or twin.status.is_failure or (np.diff(twin.objective) > 0.0).any()


def test_a_search_that_takes_long_returns_to_its_row(monkeypatch):
    """With twice the patience; the best point never rises on the way back either."""
    monkeypatch.setattr(guarded, "RETURN", 0.4)
    clients, prior_ = hostile(2)
    result, searches = watched(M.PVI(), clients, prior_, rounds=200)
    phases = [search.phase for search in searches]
    assert ("line", "row") in set(itertools.pairwise(phases))
    assert searches[-1].patience > guarded.PATIENCE
    assert result.status is ba.Status.CONVERGED
    assert error(result, clients, prior_) < 1e-5
    assert_never_rises(np.array([search.best.value for search in searches if search.best is not None]))


TWINS = {
    "PVI": (M.PVI(), {}),
    "damped PVI": (None, {}),
    "BayesADMM": (M.BayesADMM(1.0), {}),
    "BayesADMM with safeguard": (M.BayesADMM(1.0), {"safeguard": True}),
    "BLR": (M.BLR(1.0), {}),
    "BLR, full sites": (ba.Sketched(M.BLR(1.0), "full"), {}),
}


@pytest.mark.parametrize("twin", TWINS)
def test_the_twins_are_lost_on_some_of_these_problems(twin):
    """Each diverges, cycles or loses a client; damped PVI has γ = 1/K, said to be safe."""
    row, options = TWINS[twin]
    for seed in range(6):
        clients, prior_ = hostile(seed)
        method = M.PVI(1 / len(clients)) if row is None else row
        result = ba.run(method, clients, prior_, rounds=60, raise_on_failure=False, **options)
        if result.status.is_failure or error(result, clients, prior_) > 0.1:
            return
    raise AssertionError("lost on none of them")


FIVE = ("full", "diagonal", "block", "fixed", "isotropic")


@pytest.mark.parametrize(
    ("name", "family"),
    [*zip(["logistic", "poisson", "softmax2", "squares", "poisson"], FIVE, strict=True)],
)
def test_whatever_the_family(name, family):
    clients, prior_ = team(name, sizes=(9, 12)), prior(family, DIM[name])
    pooled = ba.solve_pooled(clients, prior_).posterior.natural
    for row in (M.BLR(1.0), M.PVI()):
        result = ba.run(ba.Guarded(row), clients, prior_, rounds=200, tol=1e-8)
        assert result.status in (ba.Status.CONVERGED, ba.Status.ROUNDED)
        assert_close(result.posterior.natural, pooled, 1e-6)


# --- The start, clients that are away, and rounding


@pytest.mark.parametrize("row", BOTH)
def test_a_start_at_which_the_objective_overflows(row):
    """A wide prior and counts: F is 1e87 or ∞ at the prior, and the first points are drawn to its mean."""
    rng = np.random.default_rng(3)
    X = np.column_stack([np.ones(12), rng.standard_normal((12, 2))])
    clients = [ba.losses.Poisson(X[k::3], rng.poisson(1.0, 4)) for k in range(3)]
    prior_ = DIAGONAL(np.zeros(3), 0.001)
    result = ba.run(ba.Guarded(BOTH[row]), clients, prior_, rounds=60)
    assert not result.objective[0] < 1e80
    assert result.status is ba.Status.CONVERGED
    assert error(result, clients, prior_) < 1e-5


def attends(number, k, rng):
    """Two of three clients, in turns."""
    return np.arange(k) != number % k


@pytest.mark.parametrize("row", ["PVI", "BLR", "PVI, full sites"])
def test_answers_are_kept_while_clients_are_away(row):
    """No round has all clients: a search makes a step where all have been heard at one q_g."""
    clients, prior_ = hostile(0)[0][:3], hostile(0)[1]
    result, searches = watched(ROWS[row], clients, prior_, rounds=150, participation=attends)
    assert result.status is ba.Status.CONVERGED
    assert error(result, clients, prior_) < 1e-5
    waiting = [sum(one is not None for one in search.answers) for search in searches if search.phase == "line"]
    assert not waiting or 0 < max(waiting) < 3
    assert (row == "PVI, full sites") or waiting


@pytest.mark.parametrize("row", SEARCHES)
def test_a_tolerance_below_rounding_ends_a_run_soon(row):
    """Not at the round limit; and the posterior is the pooled one as far as F tells it: errors of √rounding."""
    for seed in range(3):
        clients, prior_ = hostile(seed)
        result = ba.run(ba.Guarded(SEARCHES[row]), clients, prior_, rounds=300, tol=1e-17)
        assert result.status in (ba.Status.ROUNDED, ba.Status.CONVERGED)
        assert error(result, clients, prior_) < 1e-5


# --- The lemma: the way to T is one of descent, in mean and root, and in λ it need not be


def somewhere(family, name, rng):
    """A random distribution of the family, far from the optimum."""
    if not (q := prior(family, DIM[name])).learns_precision:
        return q.start().at(rng.standard_normal(q.dim), q.start().factor.parts)
    q = prior(family, DIM[name], seed=int(rng.integers(1000)))
    scales = 10.0 ** rng.uniform(-1, 2, (q.dim, q.dim) if family == "diagonal" else (9, 1))
    parts = zip(scales, q.factor.parts, strict=False)
    return q.at(2.0 * rng.standard_normal(q.dim), [scale * part for scale, part in parts])


class At:
    """A random q, what the sites tell there, and F."""

    def __init__(self, family, name, rng):
        self.clients = team(name, int(rng.integers(1000)), sizes=(4, 9))
        self.prior, self.q = prior(family, DIM[name]), somewhere(family, name, rng)
        self.rules = [loss.check(self.prior, ba.losses.Auto()) for loss in self.clients]
        self.last = somewhere(family, name, rng)  # a point before, for the secant
        self.sums, self.sites = self.told(self.q)
        self.gradient = self.prior.factor.multiply(self.q.mean - self.prior.mean) + sum(o.gradient for o in self.sums)
        self.curvature = self.prior.factor.multiply(np.eye(self.q.dim)) + sum(own.curvature for own in self.sums)

    def told(self, q):
        """Return the sites' sums and natural gradients at a point."""
        sums, sites = [], []
        for loss, rule in zip(self.clients, self.rules, strict=True):
            own = loss.expect(q, rule)
            sums.append(JointSums(own.gradient, own.curvature.dense(), loss.tensors(q, rule)))
            sites.append(-own.natural_gradient)
        return sums, sites

    def objective(self, q):
        values = [loss.expect(q, rule).value for loss, rule in zip(self.clients, self.rules, strict=True)]
        return sum(values) + q.kl(self.prior)

    def target(self, direction):
        """Return T, and the least fall of the lower model that the lemma promises."""
        before = self.prior, self.q, self.sums
        if direction in ("joint", "secant") and self.q.learns_precision:
            if direction == "joint":
                tensors = unpack_tensors(sum(own.tensors for own in self.sums), self.q, 1)
                end, model = joint_step(*before), joint_model(self.q, self.gradient, self.curvature, tensors)
            else:
                before += self.last, self.told(self.last)[0]
                end, model = secant_step(*before), secant_model(*before)
            move = model.minimum() - model.origin
            return end, move @ model.hessian @ move
        own = self.q.factor.like(self.q.factor.repeated_block(self.curvature, 1))
        if direction != "BLR":
            step = joint_step if direction == "joint" else curvature_step
            end, metric = step(*before), self.curvature
        else:
            weights = [1.0 / self.prior.prior_weight] * (1 + len(self.sites))
            end = self.q.with_natural(self.prior.natural.combine(weights, [self.prior.natural, *self.sites]))
            metric = (own if self.q.learns_precision else self.q.factor).multiply(np.eye(self.q.dim))
        least = self.gradient @ np.linalg.solve(metric, self.gradient)
        if self.q.learns_precision:
            stretch = self.q.factor.stretch_to(end.factor)
            least += sum(
                np.square(1 / one - 1 if one.ndim == 1 else np.linalg.inv(one) - np.eye(len(one))).sum()
                for one in stretch
            )
        return end, least


@pytest.mark.parametrize("name", ["logistic", "poisson"])
@pytest.mark.parametrize("direction", ["joint", "secant", "curvature", "BLR"])
@pytest.mark.parametrize("family", FIVE)
def test_the_way_is_one_of_descent_on_which_the_objective_is_convex(family, direction, name):
    """The slope is that of F, to differences over 1e-5; F lies above its lower model and below its chord.

    The model falls by what the lemma promises.
    """
    if direction == "BLR" and family in ("fixed", "isotropic"):
        return  # λ is not that of a Newton step there, and a search takes the other two
    rng = np.random.default_rng(len(name))
    for _ in range(4):
        at = At(family, name, rng)
        q, (end, least) = at.q, at.target(direction)
        found = slope_to(at.prior, q, at.sites, end)
        assert found.value < 0.0
        assert found.change >= found.value - 1e-12 * found.size
        assert found.change <= -least + 1e-9 * (found.size + least)
        points = [along(q, end, w) for w in (-1e-5, 1e-5, 0.5, 1.0)]
        assert_close(points[3].natural, end.natural, 1e-9)
        F, start = [at.objective(point) for point in points], at.objective(q)
        rounding = 2e3 * EPS * (1.0 + abs(start)) / 1e-5
        assert abs((F[1] - F[0]) / 2e-5 - found.value) <= 1e-4 * found.size + rounding
        assert F[2] <= 0.5 * (start + F[3]) + 1e-12 * (1.0 + abs(start))
        assert F[3] >= start + found.change - 1e-12 * (1.0 + abs(start) + found.size)


def test_along_natural_parameters_a_step_with_the_full_curvature_may_climb():
    """The twin: the line in λ towards the same T, with the slope ⟨∇_μF, λ_T − λ⟩ in the Fisher metric.

    For BLR λ_T − λ is −∇_μF, and it descends. With the full curvature S the mean's part of the slope is
    −gᵀ(S_q⁻¹DS⁻¹)g, for D = diag S: a product of positive definite matrices, which need not be one.
    """
    X = np.array([[3.0, 3.0], [1.0, -1.0]])
    loss, prior_, up = ba.losses.LeastSquares(X, [0.0, 0.0]), DIAGONAL(np.zeros(2), 0.01), {"BLR": 0, "full": 0}
    for angle in np.linspace(0.0, np.pi, 60):
        q = DIAGONAL(100.0 * np.array([np.cos(angle), np.sin(angle)]), [1.0, 100.0])
        expected = loss.expect(q, loss.check(prior_, ba.losses.Auto()))
        site, gradient = -expected.natural_gradient, q.natural - prior_.natural + expected.natural_gradient
        full = curvature_step(prior_, q, [JointSums(expected.gradient, expected.curvature.dense())])
        for kind, end in (("BLR", q.with_natural(prior_.natural + site)), ("full", full)):
            up[kind] += q.whiten(gradient) @ q.whiten(end.natural - q.natural) > 0.0
            assert slope_to(prior_, q, [site], end).value < 0.0
    assert up["BLR"] == 0
    assert up["full"] > 0


# --- Sampled rules, where values and slopes are not of one function


def few_points(seed, precision=0.2, points=64):
    rng = np.random.default_rng(seed)
    X = np.column_stack([3 * rng.standard_normal((24, 3)), np.ones(24)])
    clients = [ba.losses.Softmax(X[k::2], rng.integers(0, 3, 12), n_classes=3) for k in range(2)]
    return clients, DIAGONAL(np.zeros(12), precision), ba.losses.QuasiMonteCarlo(points=points)


@pytest.mark.parametrize("seed", [1, 3, 4])
def test_with_points_slopes_decide_where_values_contradict_them(seed, monkeypatch):
    """The root of the sampled conditions is reached, beside the minimum of the sampled values; the twin stays short."""
    clients, prior_, rule = few_points(seed)
    row = M.JointNewton(start="prior")
    result, searches = watched(row, clients, prior_, rounds=60, expectation=rule)
    assert result.status is ba.Status.CONVERGED
    pooled = ba.solve_pooled(clients, prior_, expectation=rule, tol=1e-8).posterior
    assert_close(result.posterior.natural, pooled.natural, 1e-4)
    values = accepted(searches)
    lowest = np.minimum.accumulate(values)
    assert (values <= lowest + line.CREDIT * (1.0 + np.abs(lowest))).all()
    monkeypatch.setattr(line.Change, "is_vague", False)
    twin, _ = watched(row, clients, prior_, rounds=60, expectation=rule)
    assert twin.status in (ba.Status.ROUND_LIMIT, ba.Status.ROUNDED)


# --- One run, wherever it runs


@pytest.mark.parametrize("family", ["full", "diagonal"])
def test_a_search_by_messages_ends_there_too(family):
    """Sites send the family's part of their curvature alone, and no slope beside η_k."""
    clients, prior_ = team("poisson", sizes=(9, 12)), prior(family, 3)
    server, _ = drive(ba.Guarded(M.JointNewton(tensors=False)), clients, prior_, tol=1e-8)
    assert server.outcome.status is ba.Status.CONVERGED
    assert_close(server.state.q_g.natural, ba.solve_pooled(clients, prior_).posterior.natural, 1e-6)


def test_what_cannot_be_guarded_is_refused():
    clients, start, gamma = team("logistic"), prior("full", 3), ba.families.Gamma(2.0, 1.0)
    counts, guard = [ba.losses.LinearInStatistics(-1.0 * gamma.natural)], ba.Guarded(M.PVI())
    assert_refused(
        [
            (lambda: ba.Guarded(M.BregmanADMM()), "method"),
            (lambda: ba.run(guard, clients, start, expectation=ba.losses.Delta(2)), "expectation"),
            (lambda: ba.run(guard, clients, start, privacy=ba.GaussianMechanism(1.0, 1.0)), "privacy"),
            (lambda: ba.run(ba.Guarded(M.BLR(1.0)), counts, gamma), "guarded"),
            (lambda: ba.Accelerated(guard), "method"),
        ]
    )
