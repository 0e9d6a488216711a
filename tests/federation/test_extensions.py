"""What a user's own package registers travels with a run: dual rule, schedule, solver and family."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

import bayesadmm_np as ba
from bayesadmm_np.clients import ClientStatus, Solver
from bayesadmm_np.splitting.methods import DUAL_RULES, SCHEDULES, DualRule, Geometric, Schedule
from oracles.couriers import differences, drive
from oracles.problems import prior, team

M = ba.methods
pytestmark = pytest.mark.usefixtures("registries")


@dataclass(frozen=True)
class Relaxed(DualRule):
    factor: float = 0.7

    def __call__(self, site, own, served, step):
        return site + self.factor * step * (own - served)


@dataclass(frozen=True)
class Sized(DualRule):
    """By the distributions: the dual travels with the reply."""

    reads_natural: ClassVar[bool] = False

    def __call__(self, site, own, served, step):
        return site + step / (1.0 + own.kl(served)) * (own.natural - served.natural)


@dataclass(frozen=True)
class Listed(Schedule):
    rhos: tuple[float, ...] = (3.0, 1.0, 2.0)

    def row(self, method, round):
        rho = self.rhos[min(round, len(self.rhos)) - 1]
        return replace(method, rho=rho, dual_step=method.dual_step * rho / method.rho)


@dataclass(frozen=True)
class HalfSteps(Solver):
    steps: int = 5

    def solve(self, problem, start, rng, expected=None):
        q = start
        for _ in range(self.steps):
            target = problem.target(problem.expect(q).natural_gradient)
            q = q.with_natural(0.5 * (q.natural + target))
        return self.measured(problem, q, self.steps, ClientStatus.STEPS_DONE)


ROW = M.BayesADMM(rho=2.0)
CASES = {
    "a rule of λ": (replace(ROW, dual_rule=Relaxed()), {}),
    "a rule of q": (replace(ROW, dual_rule=Sized()), {}),
    "a schedule": (replace(ROW, schedule=Listed()), {}),
    "a schedule with the safeguard": (replace(ROW, schedule=Listed()), {"safeguard": True}),
    "the schedule that is here": (replace(M.BregmanADMM(rho=4.0, gamma=0.1), schedule=Geometric(rho=0.9)), {}),
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
    assert differences(result, *drive(replace(ROW, schedule=Listed()), clients, start, **options))


@pytest.mark.parametrize("case", ["a rule of λ", "a schedule", "a solver"])
def test_what_is_not_registered_is_refused_in_one_sentence(case):
    row, options = CASES[case]
    with pytest.raises(ValueError, match=r"cannot be sent.*\.$") as caught:
        drive(row, team("logistic", sizes=(5, 8)), prior("full", 3), **options)
    assert "\n" not in str(caught.value)
