"""The promises of a guard on problems that are hard on it: eight found by hand, two dozen of `benchmarks/guard.py`."""

from dataclasses import replace

import numpy as np
import pytest

import bayesadmm_np as ba
from oracles.guard_judge import ROUNDS, attempt, judge, verdicts
from oracles.guard_optimum import Pooled
from oracles.guard_problems import COUNT, Problem, problem

SAMPLE = (0, 1, 3, 4, 5, 6, 10, 11, 12, 13, 14, 21, 22, 24, 27, 30, 33, 34, 38, 40, 42, 47, 53, 54)
"""Of the first sixty problems, those that take less than a second."""

ROWS = ba.methods
ACCELERATED = ba.Accelerated(ROWS.PVI(0.4))


def poisson(name, X, y, family="full", n_sites=1, mean=0.0, precision=1.0, **others):
    """A Poisson regression whose rows are dealt out in turn."""
    X, y = np.asarray(X, dtype=float), np.asarray(y, dtype=float)
    return Problem(
        name, "poisson", family, X, y, np.arange(len(X)) % n_sites, np.full(X.shape[1], mean), precision, **others
    )


def twelve_rows(seed, family, precision):
    """Three sites of few events: one with none asks for a wide posterior under a wide prior."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([np.ones(12), rng.standard_normal((12, 2))])
    if family == "diagonal":
        one = poisson(f"twelve rows {seed}", X, rng.poisson(np.exp(0.5 if seed % 3 == 2 else -0.7), 12), family)
        return replace(one, site=np.arange(12) // 4, precision=precision)
    y = rng.poisson(np.exp(0.5 * X[:, 1] - (0.7 if seed % 3 % 2 else 0.0)))
    return poisson(f"twelve rows {seed}", X, y, family, n_sites=3, precision=precision, blocks=(2, 1))


def close_columns(gap, seed):
    """Two columns `gap` apart, in two blocks."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(30)
    X = np.column_stack([np.ones(30), x, x + gap * rng.standard_normal(30)])
    return poisson(f"columns {seed}", X, rng.poisson(np.exp(0.5 + x)), "block", 3, precision=0.01, blocks=(2, 1))


def scaled_columns(seed):
    """Nearly equal columns in units from 1e-6 to 1e6: rounding of F hides its minimum."""
    rng = np.random.default_rng(seed)
    gap, x = 10.0 ** rng.uniform(-7, -5), rng.standard_normal(12)
    X = np.column_stack([np.ones(12), x, x + gap * rng.standard_normal(12)]) * 10.0 ** rng.uniform(-6, 6, 3)
    kind = ("least squares", "logistic", "poisson")[seed % 3]
    if kind == "least squares":
        y = x + rng.standard_normal(12)
    elif kind == "logistic":
        y = (rng.random(12) < 0.5).astype(float)
    else:
        y = rng.poisson(np.exp(1 + x)).astype(float)
    return Problem(f"scaled {seed}", kind, "full", X, y, np.arange(12) % 3, np.zeros(3), 10.0 ** rng.uniform(-6, 1))


def counts(fraction, family="full"):
    """Sixty rows at six sites, a fraction of which takes part in a round."""
    rng = np.random.default_rng(0)
    X = np.column_stack([np.ones(60), rng.standard_normal((60, 2))])
    y = rng.poisson(np.exp(0.5 + 0.5 * X[:, 1] - 0.5 * X[:, 2]))
    return poisson("away", X, y, family, 6, precision=0.01, fraction=fraction)


def recommended(one):
    return ROWS.recommended(one.prior, one.clients)


def verdict(one, guarded, plain, rounds=ROUNDS, name="guarded"):
    return judge(one, attempt(one, guarded, rounds), attempt(one, plain, rounds), name)


@pytest.mark.parametrize(
    ("seed", "family", "precision", "row"),
    [
        (2113, "diagonal", 1e-3, ROWS.AMA(2.0)),
        (2113, "diagonal", 1e-3, ROWS.BLR(1.0)),
        (1003, "block", 1e-5, ROWS.AMA(2.0)),
        (1027, "block", 1e-5, ROWS.PVI()),
        (2113, "diagonal", 1e-3, ROWS.PVI()),
    ],
)
def test_where_the_prior_has_no_finite_objective(seed, family, precision, row):
    found = verdict(twelve_rows(seed, family, precision), ba.Guarded(row), row)
    assert not found.faults, str(found)


@pytest.mark.parametrize(
    ("fraction", "family", "row"),
    [
        (0.75, "full", None),
        (0.75, "diagonal", None),
        (0.7, "full", ROWS.AMA(2.0)),
        (0.7, "", ROWS.AMA(2.0)),
    ],
)
def test_where_sites_are_away(fraction, family, row):
    one = counts(fraction, family) if family else replace(problem(399), fraction=fraction, subsets=False)
    found = verdict(one, recommended(one) if row is None else ba.Guarded(row), row or ROWS.PVI())
    assert not found.faults, str(found)
    assert found.has_converged or not family


def test_a_fraction_by_its_number():
    one = counts(1.0)
    assert ba.run(recommended(one), one.clients, one.prior, ROUNDS, participation=0.75).status is ba.Status.CONVERGED


FAR = poisson("far", [[1000.0]], [0.0], mean=1.0)


@pytest.mark.parametrize("row", [ROWS.Newton(), ROWS.JointNewton(), ROWS.PVI()], ids=["Newton", "JointNewton", "PVI"])
def test_an_overflow_at_the_start_does_not_escape(row):
    found = verdict(FAR, ba.Guarded(row), row, name="Newton" if row.name == "Newton" else "guarded")
    assert found.plain.error_type in ("", "RunError"), found.plain.error
    assert not found.faults, str(found)


def test_a_run_that_converges_is_not_spoiled():
    one = close_columns(1e-3, 2)
    found = verdict(one, ba.Guarded(ACCELERATED), ACCELERATED, 120)
    assert found.plain.status == "CONVERGED"
    assert not found.faults, str(found)
    assert found.has_converged


@pytest.mark.parametrize("x", [3.0, 5.0, 10.0, 20.0, 30.0], ids=["3", "5", "10", "20", "30"])
def test_of_a_steep_exponential(x):
    one = poisson("steep", [[x]], [0.0])
    for row in (ba.Guarded(ROWS.BLR(1.0)), recommended(one)):
        found = verdict(one, row, ROWS.BLR(1.0))
        assert not found.faults, str(found)
        assert found.has_converged


@pytest.mark.parametrize(("gap", "seed"), [(1e-3, 2), (1e-5, 2)])
def test_of_nearly_equal_columns_in_two_blocks(gap, seed):
    one = close_columns(gap, seed)
    found = verdict(one, recommended(one), ACCELERATED)
    assert not found.faults, str(found)
    assert found.has_converged


@pytest.mark.parametrize(
    ("seed", "row"),
    [
        (3132, ROWS.BLR(1.0)),
        (3047, ROWS.JointNewton()),
        (3176, ROWS.PVI()),
    ],
)
def test_of_steps_below_rounding(seed, row):
    """No rounding of the paths matters: a run may converge, and it may say that it cannot; it may not idle."""
    found = verdict(scaled_columns(seed), ba.Guarded(row), row, 300)
    assert not found.faults, str(found)
    assert found.guarded.status in ("CONVERGED", "ROUNDED")


def test_of_a_fixed_precision():
    prior = ba.families.IsotropicGaussian([0.0], 1.0)
    clients = [ba.losses.Poisson([[30.0]], [0])]
    for row in (ROWS.PVI(), ba.Guarded(ROWS.PVI())):
        result = ba.run(row, clients, prior, ROUNDS, raise_on_failure=False)
        assert result.status is ba.Status.CONVERGED
        assert result.posterior.mean == pytest.approx(ba.solve_pooled(clients, prior).posterior.mean, abs=1e-5)


def test_a_row_without_a_server_step_is_no_division_by_zero():
    row = replace(ROWS.BayesADMM(1.0), alpha=0.0)
    found = attempt(counts(1.0), ba.Guarded(row))
    assert found.error_type in ("", "ValueError", "ArgumentError"), found.error


@pytest.fixture(scope="module")
def usual():
    one = counts(1.0)
    return one, attempt(one, ba.Guarded(ROWS.PVI())), attempt(one, ROWS.PVI())


def broken(outcome, **changes):
    """The twin of a run, with another end."""
    if changes.pop("at_start", False):
        changes |= {"posterior": outcome.path[0], "returned": outcome.values[0]}
    if changes.pop("idles", False):
        changes |= {name: [*getattr(outcome, name), *[getattr(outcome, name)[-1]] * 25] for name in PATHS}
    return replace(outcome, **changes)


PATHS = ("path", "values", "present")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, set()),
        ({"at_start": True}, {"converged far from it", "above best"}),
        ({"at_start": True, "status": "ROUNDED"}, {"rounded far from it", "above best"}),
        ({"returned": 1e300}, {"above start", "above best", "false value"}),
        ({"status": "NOT_FINITE"}, {"failed", "slow"}),
        ({"idles": True, "status": "ROUND_LIMIT"}, {"idle", "slow"}),
        ({"idles": True}, {"slow"}),
        ({"warned": ("RuntimeWarning: overflow",)}, {"warning"}),
        ({"error_type": "NotPositiveDefiniteError"}, {"exception"}),
        ({"error_type": "OutOfTimeError"}, {"out of time"}),
    ],
)
def test_the_judge_finds_what_is_broken(usual, changes, expected):
    one, guarded, plain = usual
    assert {*judge(one, broken(guarded, **changes), plain).faults} == expected


def test_the_judge_knows_which_points_all_sites_have_seen():
    one = counts(0.5)
    found = attempt(one, ba.Guarded(ROWS.PVI()), 20)
    assert not all(found.heard)  # half of the sites at every point that is left after a round
    whole = attempt(counts(1.0), ROWS.PVI())
    assert whole.heard == [True] * whole.rounds + [False]


@pytest.mark.parametrize("at_mode", [False, True])
@pytest.mark.parametrize("kind", ["poisson", "logistic", "least squares"])
def test_the_optimum_is_one(kind, at_mode):
    """To second order F is above its minimum by half of the squared distance of the mean."""
    one = replace(close_columns(0.1, 0), kind=kind, family="full")
    pooled = Pooled(replace(one, y=np.minimum(one.y, 1.0)) if kind == "logistic" else one, at_mode)
    best = pooled.optimum
    for way in np.eye(3):
        near = best.at(best.mean + 1e-3 * best.factor.colour(way), best.factor.parts)
        gap, away = pooled.distance(near)
        assert away == pytest.approx(1e-3, rel=1e-6)
        assert gap == pytest.approx(0.5 * away**2, rel=0.05)


@pytest.mark.parametrize("index", SAMPLE)
def test_sample(index):
    found = [str(one) for one in verdicts(problem(index)) if one.faults]
    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, COUNT, 50))
def test_all(first):
    found = [str(one) for index in range(first, first + 50) for one in verdicts(problem(index)) if one.faults]
    assert not found, "\n".join(found)
