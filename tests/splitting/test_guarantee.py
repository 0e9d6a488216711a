"""Rows that cannot diverge: lemma and theorem of docs/guarantee.md, and rows that do diverge where they do not."""

from dataclasses import replace

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np.losses.sketches import Full, Kronecker, LowRank
from bayesadmm_np.splitting import guarded
from bayesadmm_np.splitting.joint import along, slope_to
from bayesadmm_np.splitting.sketched import gathered, sketch_of
from oracles.couriers import differences, drive
from oracles.problems import DIM, EPS, assert_close, prior, team
from oracles.refusals import assert_refused

M = ba.methods
DIAGONAL = ba.families.DiagonalGaussian
GUARDED = {
    "BLR": ba.Guarded(M.BLR(1.0)),
    "full sites": ba.Guarded(ba.Sketched(M.BLR(1.0), "full")),
    "low rank": ba.Guarded(ba.Sketched(M.BLR(1.0), LowRank(2))),
}
WRAPPED = {
    "PVI": ba.Guarded(M.PVI()),
    "damped PVI": ba.Guarded(M.PVI(0.3)),
    "BayesADMM": ba.Guarded(M.BayesADMM(1.0)),
    "AMA": ba.Guarded(M.AMA(2.0)),
    "accelerated PVI": ba.Guarded(ba.Accelerated(M.PVI(0.4))),
    "PVI, full sites": ba.Guarded(ba.Sketched(M.PVI(), "full")),
}


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


def error(result, clients, prior_):
    """Distance to the pooled optimum, in its Fisher metric."""
    pooled = ba.solve_pooled(clients, prior_).posterior
    return pooled.fisher_norm(result.posterior.natural - pooled.natural)


def accepted(result):
    """F at the points that were not taken back: those after which a new step was begun."""
    alphas = [record.alpha for record in result.history]
    counted = [any(client.status.name != "ABSENT" for client in record.clients) for record in result.history]
    return [F for F, follows in zip(result.objective, [*counted, True], strict=True) if follows], alphas


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("row", ["BLR", "full sites"])
def test_a_guarded_row_ends_at_the_pooled_optimum(row, seed):
    """Residuals of 1e-6 a parameter are errors of 1e-5 where the pooled Jacobian is at least .1 of the identity."""
    clients, prior_ = hostile(seed)
    result = ba.run(GUARDED[row], clients, prior_, rounds=300)
    assert result.status is ba.Status.CONVERGED
    assert error(result, clients, prior_) < 1e-5
    values, _ = accepted(result)
    slack = 2 * EPS * (200 + 24 + 1000) * (np.abs(values[1:]).max() + 24)
    assert (np.diff(values) <= slack).all()


def fall(result):
    """Rounds in which clients ceased to solve; the last record has α = 0 where the run ended at an earlier point."""
    return [record.round for record in result.history[:-1] if record.alpha == 0.0]


@pytest.mark.parametrize("row", WRAPPED)
def test_a_row_with_a_guard_ends_there_too(row):
    """It runs as it is while it makes progress, and falls where it does not: all but two rows do on some problem."""
    falls = 0
    for seed in range(2):
        clients, prior_ = hostile(seed)
        result = ba.run(WRAPPED[row], clients, prior_, rounds=300)
        assert result.status is ba.Status.CONVERGED
        assert error(result, clients, prior_) < 1e-5
        assert result.objective[-1] <= result.objective[0]
        falls += len(fall(result))
    assert (falls == 0) == (row in ("accelerated PVI", "PVI, full sites"))


def test_a_row_that_makes_progress_is_left_alone():
    """Bit for bit, and no number more is sent. A run that is stopped above its start ends at the prior."""
    clients, prior_ = team("logistic", sizes=(20, 30)), prior("full", 3)
    for row in (M.PVI(), M.BayesADMM(1.0), ba.Accelerated(M.PVI(0.4))):
        plain, found = ba.run(row, clients, prior_), ba.run(ba.Guarded(row), clients, prior_)
        assert np.array_equal(plain.posterior.natural.to_vector(), found.posterior.natural.to_vector())
        assert [record.floats_up for record in plain.history] == [record.floats_up for record in found.history]
    clients, prior_ = hostile(0)
    plain = ba.run(M.PVI(), clients, prior_, rounds=5, raise_on_failure=False)
    assert plain.objective[-1] > plain.objective[0]
    stopped = ba.run(WRAPPED["PVI"], clients, prior_, rounds=5)
    assert stopped.posterior.natural == prior_.natural
    assert stopped.objective[-1] == stopped.objective[0]


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
    result = ba.run(GUARDED["BLR"], clients, prior_, rounds=200, tol=1e-8)
    assert result.status is ba.Status.CONVERGED
    assert_close(result.posterior.natural, ba.solve_pooled(clients, prior_).posterior.natural, 1e-6)
    assert {record.floats_up for record in result.history} == {2 * prior_.natural.size}


# ----------------------------------------------------------------------------------------------------
# The lemma: the way to T is one of descent, in mean and root, and in λ it need not be
# ----------------------------------------------------------------------------------------------------


def somewhere(family, name, rng):
    """A random distribution of the family, far from the optimum."""
    if not (q := prior(family, DIM[name])).learns_precision:
        return q.start().at(rng.standard_normal(q.dim), q.start().factor.parts)
    q = prior(family, DIM[name], seed=int(rng.integers(1000)))
    scales = 10.0 ** rng.uniform(-1, 2, (q.dim, q.dim) if family == "diagonal" else (9, 1))
    parts = zip(scales, q.factor.parts, strict=False)
    return q.at(2.0 * rng.standard_normal(q.dim), [scale * part for scale, part in parts])


def steps(family, name, kind, rng):
    """Sites at a random q, the T that they ask for, and F."""
    clients, prior_, q = (
        team(name, int(rng.integers(1000)), sizes=(4, 9)),
        prior(family, DIM[name]),
        somewhere(family, name, rng),
    )
    expected = [loss.expect(q, loss.check(prior_, ba.losses.Auto())) for loss in clients]
    sites = [-own.natural_gradient for own in expected]
    if kind is None:
        weights = [1.0 / prior_.prior_weight] * (1 + len(sites))
        natural = prior_.natural.combine(weights, [prior_.natural, *sites])
    else:
        natural = gathered(prior_, kind, sites, [q.natural] * len(sites), [sketch_of(kind, own) for own in expected])

    def objective(at):
        return sum(loss.expect(at, loss.check(prior_, ba.losses.Auto())).value for loss in clients) + at.kl(prior_)

    return prior_, q, sites, q.with_natural(natural), objective


CASES = [
    *((family, None) for family in ("full", "diagonal", "block", "fixed", "isotropic")),
    *(("diagonal", kind) for kind in (Full(), LowRank(2), LowRank(1))),
]


@pytest.mark.parametrize("name", ["logistic", "poisson"])
@pytest.mark.parametrize(("family", "kind"), CASES, ids=lambda one: getattr(type(one), "__name__", str(one)))
def test_the_way_is_one_of_descent_on_which_the_objective_is_convex(family, kind, name):
    """The slope is that of F, to differences over 1e-5; and F lies above its lower model, and below its chord."""
    rng = np.random.default_rng(len(name))
    for _ in range(4):
        prior_, q, sites, end, objective = steps(family, name, kind, rng)
        found = slope_to(prior_, q, sites, end)
        assert found.value < 0.0
        assert found.change <= 1e-12 * found.size
        assert found.change >= found.value - 1e-12 * found.size
        at = [q.with_natural(along(q, end, w)) for w in (-1e-5, 1e-5, 0.5, 1.0)]
        assert_close(at[3].natural, end.natural, 1e-9)
        F = [objective(point) for point in at]
        start = objective(q)
        rounding = 2e3 * EPS * (1.0 + abs(start)) / 1e-5
        assert abs((F[1] - F[0]) / 2e-5 - found.value) <= 1e-4 * found.size + rounding
        assert F[2] <= 0.5 * (start + F[3]) + 1e-12 * (1.0 + abs(start))
        assert F[3] >= start + found.change - 1e-12 * (1.0 + abs(start) + found.size)


def test_along_natural_parameters_a_sketched_step_may_climb():
    """The twin: the line in λ towards the same T, with the slope ⟨∇_μF, λ_T − λ⟩ in the Fisher metric.

    Without a sketch λ_T − λ is −∇_μF, and it descends. With one the mean's part of the slope is −gᵀ(S_q⁻¹ D S⁻¹)g, for
    a diagonal D: a product of positive definite matrices, which need not be one.
    """
    X = np.array([[3.0, 3.0], [1.0, -1.0]])
    loss, prior_, up = ba.losses.LeastSquares(X, [0.0, 0.0]), DIAGONAL(np.zeros(2), 0.01), {None: 0, Full(): 0}
    for angle in np.linspace(0.0, np.pi, 60):
        q = DIAGONAL(100.0 * np.array([np.cos(angle), np.sin(angle)]), [1.0, 100.0])
        expected = loss.expect(q, loss.check(prior_, ba.losses.Auto()))
        site, gradient = -expected.natural_gradient, q.natural - prior_.natural + expected.natural_gradient
        sketched = gathered(prior_, Full(), [site], [q.natural], [sketch_of(Full(), expected)])
        for kind, natural in ((None, prior_.natural + site), (Full(), sketched)):
            up[kind] += q.whiten(gradient) @ q.whiten(natural - q.natural) > 0.0
            assert slope_to(prior_, q, [site], q.with_natural(natural)).value < 0.0
    assert up[None] == 0
    assert up[Full()] > 0


# ----------------------------------------------------------------------------------------------------
# Sampled rules, where values and slopes are not of one function
# ----------------------------------------------------------------------------------------------------


def few_points(seed, precision=0.2, points=64):
    rng = np.random.default_rng(seed)
    X = np.column_stack([3 * rng.standard_normal((24, 3)), np.ones(24)])
    clients = [ba.losses.Softmax(X[k::2], rng.integers(0, 3, 12), n_classes=3) for k in range(2)]
    return clients, DIAGONAL(np.zeros(12), precision), ba.losses.QuasiMonteCarlo(points=points)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_with_points_slopes_decide_where_values_contradict_them(seed, monkeypatch):
    """The root of the sampled conditions is reached, beside the minimum of the sampled values; the twin stays short."""
    clients, prior_, rule = few_points(seed)
    row = ba.Guarded(ba.Sketched(M.BLR(1.0), Kronecker(3)))
    result = ba.run(row, clients, prior_, rounds=100, expectation=rule)
    assert result.status is ba.Status.CONVERGED
    pooled = ba.solve_pooled(clients, prior_, expectation=rule, tol=1e-8).posterior
    assert_close(result.posterior.natural, pooled.natural, 1e-4)
    lowest = np.minimum.accumulate(accepted(result)[0])
    assert (np.array(accepted(result)[0]) <= lowest + guarded.CREDIT * (1.0 + np.abs(lowest))).all()
    monkeypatch.setattr(guarded.Change, "is_vague", False)
    twin = ba.run(row, clients, prior_, rounds=100, expectation=rule, raise_on_failure=False)
    assert twin.status is ba.Status.ROUND_LIMIT


def test_points_that_contradict_themselves_are_said_to_be_too_few():
    """F rises by more than a thousandth above what its slope allows; with exact integrals rounding alone does."""
    clients, prior_, rule = few_points(0, 0.05, 16)
    for row in (GUARDED["full sites"], ba.Guarded(ba.Sketched(M.BLR(1.0), Kronecker(3)))):
        result = ba.run(row, clients, prior_, expectation=rule, raise_on_failure=False)
        assert result.status is ba.Status.COARSE_RULE
    fine = ba.run(GUARDED["full sites"], *few_points(0, 0.05, 16)[:2], expectation=ba.losses.QuasiMonteCarlo(1024))
    assert fine.status is ba.Status.CONVERGED


# ----------------------------------------------------------------------------------------------------
# One run, wherever it runs
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ["BLR", "low rank", "PVI"])
def test_by_messages_and_resumed_bit_for_bit(row, tmp_path):
    """Steps were refused and shortened on the way, rows fell, and a site was away."""
    clients, prior_ = hostile(2)
    method, options = (GUARDED | WRAPPED)[row], {"rounds": 20, "tol": 1e-9}

    def attend(number, k, rng):
        return np.arange(k) != (0 if number == 4 else k)

    result = ba.run(method, clients, prior_, participation=attend, **options)
    values, alphas = accepted(result)
    assert min(alphas) < 1.0
    assert len(values) < 1 + result.rounds
    server, sites = drive(method, clients, prior_, lambda number, k: (number, k) == (4, 0), **options)
    differ = differences(result, server, sites)
    assert "posterior" not in differ
    assert row in WRAPPED or "sites" not in differ  # a site keeps the η_k of its last solve
    assert bool(fall(result)) == (row in WRAPPED)
    for limit in (2, 9):
        ba.run(method, clients, prior_, limit, participation=attend, tol=1e-9, checkpoint=tmp_path / "state")
        again = ba.run(method, clients, prior_, participation=attend, **options, resume=tmp_path / "state")
        assert np.array_equal(again.posterior.natural.to_vector(), result.posterior.natural.to_vector())
        assert np.array_equal(again.objective, result.objective)


def test_what_cannot_be_guarded_is_refused():
    clients, start, gamma = team("logistic"), prior("full", 3), ba.families.Gamma(2.0, 1.0)
    counts = [ba.losses.LinearInStatistics(-1.0 * gamma.natural)]
    assert_refused(
        [
            (lambda: replace(M.BregmanADMM(), guarded=True), "method"),
            (lambda: ba.run(WRAPPED["PVI"], clients, start, expectation=ba.losses.Delta(2)), "expectation"),
            (lambda: ba.run(WRAPPED["PVI"], clients, start, privacy=ba.GaussianMechanism(1.0, 1.0)), "privacy"),
            (lambda: ba.run(GUARDED["BLR"], counts, gamma), "guarded"),
            (lambda: ba.Accelerated(GUARDED["BLR"]), "method=guarded"),
        ]
    )
