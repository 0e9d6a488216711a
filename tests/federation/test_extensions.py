"""What a user's own package registers travels with a run: dual rule, schedule, solver and family."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np.clients import ClientStatus, Solver
from bayesadmm_np.families import Natural
from bayesadmm_np.splitting.methods import DUAL_RULES, SCHEDULES, Geometric
from oracles.couriers import differences, drive
from oracles.extensions import Exponential, Listed, Relaxed, Sized
from oracles.problems import prior, team

M = ba.methods
pytestmark = pytest.mark.usefixtures("registries")


@dataclass(frozen=True)
class HalfSteps(Solver):
    steps: int = 5

    def solve(self, problem, start, rng, expected=None):
        q = start
        for _ in range(self.steps):
            target = problem.target(problem.expect(q).natural_gradient)
            q = q.with_natural(0.5 * (q.natural + target))
        return self.measured(problem, q, self.steps, ClientStatus.STEPS_DONE)


ROW, LISTED = M.BayesADMM(rho=2.0), Listed((3.0, 1.0, 2.0))
CASES = {
    "a rule of λ": (replace(ROW, dual_rule=Relaxed(0.7)), {}),
    "a rule of q": (replace(ROW, dual_rule=Sized()), {}),
    "a schedule": (replace(ROW, schedule=LISTED), {}),
    "an accelerated one": (ba.Accelerated(replace(ROW, dual_rule=Relaxed(1.1), schedule=Geometric(rho=0.9))), {}),
    "a solver": (M.PVI(0.5), {"solver": HalfSteps(7)}),
}


def register():
    DUAL_RULES.register(Relaxed)
    DUAL_RULES.register(Sized)
    SCHEDULES.register(Listed)
    ba.clients.SOLVERS.register(HalfSteps)


@pytest.mark.parametrize("case", CASES)
def test_what_is_registered_travels_bit_for_bit(case):
    register()
    row, options = CASES[case]
    options = {"rounds": 6, "tol": 1e-300, **options}
    clients, start = team("logistic", sizes=(5, 8)), prior("full", 3)
    result = ba.run(row, clients, start, raise_on_failure=False, **options)
    assert result.rounds == 6
    assert not differences(result, *drive(row, clients, start, **options))


def test_the_rounds_of_a_schedule_differ():
    """The comparison above can fail: another schedule is another run."""
    register()
    clients, start, options = team("logistic", sizes=(5, 8)), prior("full", 3), {"rounds": 6, "tol": 1e-300}
    result = ba.run(replace(ROW, schedule=Listed((3.0, 1.0))), clients, start, **options)
    assert differences(result, *drive(replace(ROW, schedule=LISTED), clients, start, **options))


@pytest.mark.parametrize("case", ["a rule of λ", "a schedule", "a solver"])
def test_what_is_not_registered_is_refused(case):
    row, options = CASES[case]
    with pytest.raises(ValueError, match="cannot be sent"):
        drive(row, team("logistic", sizes=(5, 8)), prior("full", 3), **options)


class Silent(Exponential):
    arguments = ()


WAITING = [ba.losses.LinearInStatistics(Natural(np.array([-t, -2.0 * t]))) for t in (3.0, 1.0)]


def test_a_registered_family_travels_bit_for_bit():
    ba.families.FAMILIES.register(Exponential)
    start, options = Exponential([2.0, 0.1]), {"rounds": 5, "tol": 1e-300}
    for row in (M.BayesADMM(rho=0.7), M.PVI(0.3), ba.Accelerated(M.PVI(0.4))):
        result = ba.run(row, WAITING, start, **options)
        assert not differences(result, *drive(row, WAITING, start, **options))


@pytest.mark.parametrize("kind", [Exponential, Silent])
def test_a_family_that_cannot_be_sent_is_refused(kind):
    if kind is Silent:
        ba.families.FAMILIES.register(Silent)
    with pytest.raises(ValueError, match=r"^prior"):
        drive(M.PVI(), WAITING, kind([2.0, 0.1]))
