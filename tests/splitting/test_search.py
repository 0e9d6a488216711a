"""The state of a guard: when it leaves a row, what it keeps, where it goes back to, and how it ends."""

import copy
from dataclasses import dataclass, replace

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np._archive import Archive, ArchiveError
from bayesadmm_np._numerics import LONGEST, SHORTEST
from bayesadmm_np.splitting import line
from bayesadmm_np.splitting.line import Change
from bayesadmm_np.splitting.status import Failure, Status
from bayesadmm_np.splitting.step import Gathered
from bayesadmm_np.splitting.tree import pack
from bayesadmm_np.splitting.wrapper import Wrapper
from oracles.problems import assert_close, prior, team

M = ba.methods
DIAGONAL = ba.families.DiagonalGaussian


def problem():
    """Least squares with a common direction: BLR diverges under a diagonal family."""
    X = np.random.default_rng(0).standard_normal((60, 4)) + 1.0
    return [ba.losses.LeastSquares(part, part.sum(axis=1)) for part in np.split(X, 3)], DIAGONAL(np.zeros(4), 1.0)


@dataclass(frozen=True)
class Slowed(Wrapper):
    """A row whose λ_k − λ_g shrink by a factor a round, towards the pooled optimum, or bounce."""

    factor: float = 0.9
    bounce: float = 0.0
    fails_at: int = 0

    def step(self, server, state, replies):
        if state.round + 1 == self.fails_at:
            return Failure(Status.UNRESOLVED, state.round + 1, knob="scale the columns")
        best = TARGET[0].natural
        step = self.factor if state.round % 2 == 0 else self.factor + self.bounce
        q_g = state.q_g.with_natural(best + step * (state.q_g.natural - best))
        naturals = (state.q_g.natural,) * len(state.sites)
        return Gathered(q_g, state.sites, naturals, None, 1.0, counts=False)  # the answers of clients play no part


TARGET = [None]


@pytest.fixture
def slowed():
    clients, prior_ = team("logistic", sizes=(20, 30)), prior("full", 3)
    TARGET[0] = ba.solve_pooled(clients, prior_, tol=1e-13).posterior
    return clients, prior_


def rounds_in_row(row, clients, prior_, rounds=40, **options):
    """How many rounds the row made before the guard left it; all of them where it never did."""
    phases = []
    for limit in range(1, rounds + 1):
        result = ba.run(row, clients, prior_, limit, tol=1e-14, raise_on_failure=False, **options)
        phases.append(result.state.memory.phase)
        if phases[-1] == "line":
            break
    return phases.index("line") if "line" in phases else rounds


@pytest.mark.parametrize(("gamma", "stays"), [(0.4, True), (0.02, False)])
def test_a_row_must_halve_its_largest_edge_in_five_rounds(slowed, gamma, stays):
    """Damped PVI shrinks its edges by some 1 − γ a round. A rule of "any progress" (1.0 for .5) would keep both."""
    row = ba.Guarded(M.PVI(gamma))
    made = rounds_in_row(row, *slowed, rounds=16)
    assert (made == 16) == stays


def test_a_row_is_left_as_soon_as_the_objective_rises(slowed):
    """Differences are halved in time, and F rises in round 2; a guard that looks at differences alone goes on."""
    steep = ba.Guarded(Slowed(M.PVI(), factor=0.5, bounce=1.0))
    made = rounds_in_row(steep, *slowed, rounds=10)
    assert made == 2
    result = ba.run(steep, *slowed, 3, tol=1e-14)
    search = result.state.memory
    assert search.best.value == pytest.approx(result.objective[1], abs=1e-12)
    assert_close(result.state.q_g.natural, search.best.natural, 1e-12)


def test_the_first_diagnosis_survives(slowed):
    clients, prior_ = slowed
    row = ba.Guarded(Slowed(M.PVI(), factor=0.6, fails_at=2))
    result = ba.run(row, clients, prior_, 3, tol=1e-14)
    assert result.state.memory.reason.status is Status.UNRESOLVED
    assert "scale the columns" in result.message
    assert ba.run(row, clients, prior_).status is Status.CONVERGED


@pytest.mark.parametrize("row", [M.BLR(1.0), M.JointNewton("prior"), M.PVI()], ids=lambda row: row.name)
def test_a_loose_tolerance_ends_no_run_above_its_start(row):
    """Every point is stationary to a tolerance of 1e6; the twin without a guard ends at its first one."""
    X = np.random.default_rng(0).standard_normal((60, 4)) + 3.0
    clients = [ba.losses.LeastSquares(part, 9.0 * part.sum(axis=1)) for part in np.split(X, 3)]
    prior_ = DIAGONAL(np.full(4, 8.0), 1.0)
    result = ba.run(ba.Guarded(row), clients, prior_, 30, tol=1e6, raise_on_failure=False)
    assert result.objective[-1] <= result.objective[0] + line.CREDIT * (1.0 + abs(result.objective[0]))
    if row.name == "BLR":
        twin = ba.run(row, clients, prior_, 30, tol=1e6, raise_on_failure=False)
        assert twin.objective[-1] > twin.objective[0] or twin.status.is_failure


def in_turns(number, count, rng):
    """One client a round."""
    return np.arange(count) == number % count


@pytest.mark.parametrize("row", [M.Newton(), M.JointNewton()], ids=lambda row: row.name)
def test_answers_at_one_point_are_kept_until_all_are_there(row):
    """With one client a round a step takes K rounds, and no more; a server that forgets makes none."""
    clients, prior_ = team("logistic", sizes=(20, 30, 9)), prior("full", 3)
    own = ba.Guarded(row)
    whole, turns = [], []
    ba.run(own, clients, prior_, 5, tol=1e-300, callback=lambda record, q: whole.append(q.mean) and None)
    options = {"participation": in_turns, "callback": lambda record, q: turns.append(q.mean) and None}
    found = ba.run(own, clients, prior_, 15, tol=1e-300, **options)
    assert_close(np.array(turns[2::3]), np.array(whole), 1e-10)
    assert [record.floats_up > 0 for record in found.history] == [True] * 15


@pytest.mark.parametrize(
    "row", [M.Newton(), M.JointNewton(), M.BLR(1.0), ba.Accelerated(M.PVI(0.4))], ids=lambda row: row.name
)
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_a_search_goes_on_from_a_checkpoint_bit_for_bit(row, share, tmp_path):
    clients, prior_ = problem()
    path, options = tmp_path / "state", {"tol": 1e-300, "participation": share, "raise_on_failure": False}
    whole = ba.run(ba.Guarded(row), clients, prior_, 14, **options)
    for rounds in (1, 2, 3, 5, 8, 13):
        ba.run(ba.Guarded(row), clients, prior_, rounds, checkpoint=path, **options)
        again = ba.run(ba.Guarded(row), clients, prior_, 14, resume=path, **options)
        assert np.array_equal(again.objective, whole.objective, equal_nan=True)
        assert np.array_equal(again.posterior.mean, whole.posterior.mean)
        arrays, others = {}, {}
        assert pack(again.state.memory, arrays) == pack(whole.state.memory, others)
        assert all(np.array_equal(arrays[name], others[name], equal_nan=True) for name in arrays)


@pytest.mark.parametrize(
    "change",
    [
        {"end": {"type": "Status", "name": "CONVERGED"}},
        {"phase": "elsewhere"},
        {"best": 5},
        {"accepted": {"type": "Status", "name": "CONVERGED"}},
        {"answers": ["a", "b", "c"]},
        {"patience": -1},
        {"patience": True},
        {"share": {"float": "inf"}},
        {"share": {"float": "nan"}},
        {"reason": 3},
        {"edge": {"array": "state0", "shape": ["ab", 10**9]}},
        {"edge": {"array": "state0", "shape": [-1]}},
    ],
    ids=lambda change: str(change)[:40],
)
def test_a_forged_search_is_refused(change, tmp_path):
    """By the name of its part, and before it is used; the twin without a change is read."""
    clients, prior_ = problem()
    row, path = ba.Guarded(M.PVI()), tmp_path / "state"
    ba.run(row, clients, prior_, 2, checkpoint=path)
    found = Archive.read(path, limit=None, source="state")
    header = copy.deepcopy(found.header)
    Archive("checkpoint", header, found.arrays).write(path, limit=None)
    ba.run(row, clients, prior_, 2, resume=path)
    header["state"][4]["fields"] |= change
    Archive("checkpoint", header, found.arrays).write(path, limit=None)
    with pytest.raises(ArchiveError, match="state of a run"):
        ba.run(row, clients, prior_, 2, resume=path)


def test_a_change_is_judged_by_value_or_where_that_is_vague_by_slope():
    """Armijo; vague values; a coarse rule; and the next step of the parabola through both slopes, in [.1, .5]."""
    assert Change(1.0, 2.0, 1.5, 1e-9).is_accepted(2.0)
    assert not Change(2.0, 1.0, 1.5, 1e-9).is_accepted(1.0)
    assert not Change(2.0 - 1e-5, 2.0, 1.0, 0.0).is_accepted(2.0)  # falls, and by less than 1e-4 of the promise
    vague = Change(1.0, 1.0, 1e-13, 1e-12, tangent=1.0, slope=0.4)
    assert vague.is_vague
    assert vague.is_accepted(1.0)
    assert not replace(vague, slope=0.6).is_accepted(1.0)
    assert not replace(vague, after=1.0, before=1.0).is_accepted(0.5)  # far above the lowest known value
    assert Change(2.0, 1.0, 1.0, 0.0, tangent=1.0, slope=0.5).is_coarse
    assert not Change(2.0, 1.0, 1.0, 0.0, tangent=1.0, slope=1.0).is_coarse
    assert Change(2.0, 1.0, 1.0, 0.0, tangent=1.0, slope=3.0).stretch() == 0.25
    assert Change(2.0, 1.0, 1.0, 0.0, tangent=1.0, slope=99.0).stretch() == SHORTEST
    assert Change(2.0, 1.0, 1.0, 0.0, tangent=1.0, slope=0.1).stretch() == LONGEST
    assert Change(2.0, 1.0, 0.5, 0.0).stretch() == pytest.approx(0.5 / 3.0)
