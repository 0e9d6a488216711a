"""Dual rules and schedules of a user's own, beside those that are here."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np.splitting.methods import AlongExpectation, AlongNatural, DualRule, Geometric, Method, Schedule
from oracles.extensions import Listed, Relaxed, Sized
from oracles.problems import distance, prior, team
from oracles.refusals import assert_refused

M = ba.methods


# --- Dual rules


def test_a_rule_s_step_is_the_one_of_the_row():
    """A factor on the rule and on γ is the same: powers of two change no digit."""
    clients, start = team("logistic"), prior("full", 3)
    own = ba.run(replace(M.BayesADMM(rho=2.0), dual_rule=Relaxed(0.5)), clients, start, rounds=4, tol=1e-300)
    other = ba.run(M.BayesADMM(rho=2.0, gamma=0.5), clients, start, rounds=4, tol=1e-300)
    twin = ba.run(M.BayesADMM(rho=2.0), clients, start, rounds=4, tol=1e-300)
    assert own.posterior.natural == other.posterior.natural
    assert own.sites == other.sites
    assert distance(own.posterior.natural, twin.posterior.natural) > 1e-3


@pytest.mark.parametrize("rule", [Relaxed(1.2), Sized()], ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("accelerated", [False, True])
def test_a_rule_of_a_user_leads_to_the_pooled_solution(rule, accelerated):
    clients, start = team("logistic"), prior("full", 3)
    row = replace(M.BayesADMM(rho=1.0), dual_rule=rule)
    result = ba.run(ba.Accelerated(row) if accelerated else row, clients, start, rounds=300, tol=1e-8)
    assert result.status is ba.Status.CONVERGED
    goal = ba.solve_pooled(clients, start).posterior.natural
    # the certificate's residual is a Fisher length per parameter; the map from it to λ is of order one here
    assert distance(result.posterior.natural, goal) < 1e-6


def test_a_rule_that_moves_where_clients_agree_does_not_converge():
    @dataclass(frozen=True)
    class Drifting(DualRule):
        def __call__(self, site, own, served, step):
            return site + step * (own - 0.99 * served)

    row = replace(M.BayesADMM(rho=1.0), dual_rule=Drifting())
    clients, start = team("logistic"), prior("full", 3)
    result = ba.run(row, clients, start, rounds=60, raise_on_failure=False)
    assert result.status is not ba.Status.CONVERGED


def test_what_is_no_rule_or_schedule_is_refused():
    noise = ba.GaussianMechanism(1.0, 1.0)

    def private(**change):
        ba.run(replace(M.PVI(gamma=0.5), **change), team("logistic"), prior("full", 3), privacy=noise)

    wrong = ("natural", AlongNatural, None)
    assert_refused(
        [
            *((lambda rule=rule: Method("mine", 1.0, 1.0, dual_rule=rule), "dual_rule") for rule in wrong),
            (lambda: AlongExpectation(0.0), "statistic_scale"),
            (lambda: replace(M.BayesADMM(), schedule=Geometric), "schedule"),
            (lambda: Geometric(rho=0.0), "rho"),
            (lambda: private(dual_rule=Relaxed()), "privacy"),
            (lambda: private(schedule=Geometric(gamma=0.5)), "privacy"),
        ]
    )


# --- Schedules


def by_hand(rhos, points, delta):
    """ADMM (Eq. 5–7) for ½(θ − a_k)² with a prior N(0, 1/δ), ρ of each round in turn."""
    dual, server, K = np.zeros(len(points)), 0.0, len(points)
    found = []
    for rho in rhos:
        own = (points - dual + rho * server) / (1.0 + rho)
        dual = dual + rho * (own - server)
        server = (dual.sum() + rho * own.sum()) / (delta + rho * K)
        found.append(server)
    return np.array(found)


def servers(row, points, delta, rounds, **options):
    start = ba.families.IsotropicGaussian(np.zeros(1), delta)
    clients = [ba.losses.LeastSquares([[1.0]], [a]) for a in points]
    seen = []
    ba.run(row, clients, start, rounds, tol=1e-300, callback=lambda record, q: seen.append(float(q.mean[0])), **options)
    return np.array(seen)


POINTS = np.array([1.0, -0.5, 2.5])


@pytest.mark.parametrize(
    ("schedule", "rhos"),
    [(Geometric(rho=0.5), [2.0, 1.0, 0.5, 0.25, 0.125]), (Listed((3.0, 0.2, 1.0)), [3.0, 0.2, 1.0, 1.0, 1.0])],
)
def test_a_scheduled_run_is_the_listing_with_each_round_s_rho(schedule, rhos):
    row = replace(M.ADMM(rho=2.0), schedule=schedule)
    found = servers(row, POINTS, 0.7, 5)
    # five rounds of some ten roundings each
    np.testing.assert_allclose(found, by_hand(rhos, POINTS, 0.7), rtol=100 * np.finfo(float).eps)
    assert np.abs(servers(M.ADMM(rho=2.0), POINTS, 0.7, 5) - by_hand(rhos, POINTS, 0.7))[1:].min() > 1e-3


def test_gamma_is_scheduled_too():
    row = replace(M.PVI(gamma=0.5), schedule=Geometric(gamma=0.5))
    assert [row.at(t).dual_step for t in (1, 2, 3)] == [0.5, 0.25, 0.125]
    assert row.at(3).rho == 1.0
    both = replace(M.BayesADMM(rho=2.0, gamma=0.5), schedule=Geometric(rho=0.5, gamma=0.5))
    assert (both.at(2).rho, both.at(2).dual_step) == (1.0, 0.25)
    assert both.at(2).server_alpha(4) == 1 / 5


@pytest.mark.parametrize(("accelerated", "safeguard"), [(False, True), (True, False)])
def test_a_schedule_does_not_move_the_fixed_point(accelerated, safeguard):
    clients, start = team("logistic"), prior("full", 3)
    row = replace(M.BayesADMM(rho=1.0), schedule=Listed((4.0, 2.0, 1.0, 0.7)))
    method = ba.Accelerated(row) if accelerated else row
    result = ba.run(method, clients, start, rounds=300, tol=1e-8, safeguard=safeguard)
    assert result.status is ba.Status.CONVERGED
    assert distance(result.posterior.natural, ba.solve_pooled(clients, start).posterior.natural) < 1e-6
    # the rows' own numbers are recorded (the safeguard may raise them)
    assert result.history[0].alpha >= 1 / (1 + 4.0 * 2)


def test_the_safeguard_looks_at_the_rho_of_the_next_round():
    from bayesadmm_np.splitting.server import Server

    row = replace(M.BayesADMM(rho=1.0), schedule=Listed((1.0, 8.0, 2.0)))
    server = Server(row, prior("full", 3), (0.5, 0.5))
    assert server.at(1).row.rho == 1.0
    assert [client.rho for client in server.at(1).ahead] == [8.0, 8.0]
    assert [client.rho for client in server.at(2).ahead] == [2.0, 2.0]
    plain = Server(M.BayesADMM(rho=1.0), prior("full", 3), (0.5, 0.5))
    assert plain.at(5) is plain


@pytest.mark.parametrize(
    "change",
    [{"name": "other"}, {"client": "gradient"}, {"dual_step": 0.0}, {"server_share": "rows"}, None],
    ids=str,
)
def test_a_schedule_that_makes_another_method_is_refused(change):
    @dataclass(frozen=True)
    class Changing(Schedule):
        def row(self, method, round):
            return "a row" if change is None else replace(method, **change)

    with pytest.raises(ValueError, match="schedule"):
        replace(M.BayesADMM(), schedule=Changing()).at(1)
