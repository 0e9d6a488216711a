"""Clients that are away, runs that start from given sites, and what the certificate says of both."""

import dataclasses

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np.families import Natural
from bayesadmm_np.splitting.round import present_clients
from bayesadmm_np.splitting.server import Server
from oracles.problems import prior, team
from oracles.refusals import assert_refused

M = ba.methods
SIZES = (5, 8, 6)

CONVERGENT = {
    "PVI": (M.PVI(), "full"),
    "BayesADMM": (M.BayesADMM(1.0), "full"),
    "AMA": (M.AMA(2.0), "full"),
    "FedLapCov": (M.FedLapCov(0.7), "full"),
    "BLR": (M.BLR(0.5), "full"),
    "accelerated": (ba.Accelerated(M.PVI(0.5)), "diagonal"),
    "FedDyn": (M.FedDyn(2.0), "isotropic"),
}


def optimum(row, clients, start):
    """The fixed point by a route that never sees an absent client."""
    return ba.run(row, clients, start, 300, tol=1e-10).posterior


@pytest.mark.parametrize("name", CONVERGENT)
def test_half_of_the_clients_a_round_reach_the_same_answer(name):
    row, family = CONVERGENT[name]
    clients, start = team("logistic", 3, SIZES), prior(family, 3)
    result = ba.run(row, clients, start, 1500, tol=1e-9, participation=0.5, seed=2)
    assert result.status is ba.Status.CONVERGED
    assert result.certificate().holds
    # tol bounds both gradients; the map from gradient to answer has a modulus of 0.1 at least on these problems
    distance = result.posterior.fisher_norm(optimum(row, clients, start).natural - result.posterior.natural)
    assert distance <= 20e-9
    assert any(client.status.name == "ABSENT" for record in result.history for client in record.clients)


def test_a_client_that_drops_out_for_a_while_changes_nothing_but_the_rounds():
    clients, start = team("poisson", 1, SIZES), prior("full", 3)

    def away(number, n_clients, rng):
        return np.array([True, not 2 <= number <= 9, True])

    result = ba.run(M.PVI(), clients, start, 60, tol=1e-10, participation=away)
    whole = ba.run(M.PVI(), clients, start, 60, tol=1e-10)
    assert result.status is ba.Status.CONVERGED
    assert result.rounds > 9
    assert result.posterior.fisher_norm(whole.posterior.natural - result.posterior.natural) <= 1e-9
    # nobody says that it has converged while the absent client disagrees
    assert min(result.history[n].edges.largest for n in range(2, 8)) > 1e-10


def test_a_client_that_never_comes_leaves_a_run_that_says_so():
    clients, start = team("logistic", 3, SIZES), prior("full", 3)
    result = ba.run(M.PVI(), clients, start, 30, participation=lambda n, k, rng: np.array([True, True, False]))
    assert result.status is ba.Status.ROUND_LIMIT
    assert not result.certificate().holds
    assert result.history[-1].edges.natural_gradient == np.inf
    # the answer is that of the two who came
    two = ba.solve_pooled(clients[:2], start).posterior
    assert np.allclose(result.posterior.mean, two.mean, atol=1e-6)


def test_a_round_without_anybody_changes_nothing():
    clients, start = team("logistic", 3, SIZES), prior("full", 3)

    def strike(number, n_clients, rng):
        return np.full(n_clients, number != 2)

    first = ba.run(M.BayesADMM(), clients, start, 1)
    second = ba.run(M.BayesADMM(), clients, start, 2, participation=strike)
    assert np.array_equal(second.posterior.natural.to_vector(), first.posterior.natural.to_vector())
    assert second.history[-1].floats_up == second.history[-1].floats_down == 0
    assert np.array_equal(
        ba.run(M.BayesADMM(), clients, start, 3, participation=strike).posterior.natural.to_vector(),
        ba.run(M.BayesADMM(), clients, start, 2).posterior.natural.to_vector(),
    )


def test_the_draw_is_a_function_of_seed_and_round_and_has_the_size_that_was_asked_for():
    drawn = [present_clients(0.4, number, 5, 7) for number in range(200)]
    assert all(np.array_equal(a, present_clients(0.4, n, 5, 7)) for n, a in enumerate(drawn))
    assert {int(a.sum()) for a in drawn} == {2}
    # 200 draws of 2 in 5: a client is present 80 times ± 5 standard deviations of 7
    assert (np.abs(np.sum(drawn, axis=0) - 80) < 35).all()
    assert not np.array_equal(np.array(drawn), np.array([present_clients(0.4, n, 5, 8) for n in range(200)]))
    assert present_clients(0.01, 1, 5, 0).sum() == 1


def test_rows_that_average_whoever_is_present_leave_the_absent_out():
    shares, start = (0.2, 0.3, 0.5), prior("isotropic", 3)
    rng = np.random.default_rng(0)
    naturals = [Natural(rng.standard_normal(3)) for _ in shares]
    sites = [natural.zeros() for natural in naturals]
    present = (True, False, True)
    averaged = Server(M.FedProx(), start, shares).gather(sites, naturals, 0.0, present)
    assert np.allclose(averaged.linear, (0.2 * naturals[0].linear + 0.5 * naturals[2].linear) / 0.7, rtol=1e-14)
    # the twin keeps everybody, as ADMM's server does
    keeps = Server(dataclasses.replace(M.FedProx(), mean_over="all"), start, shares)
    assert not np.allclose(keeps.gather(sites, naturals, 0.0, present).linear, averaged.linear, rtol=1e-3)


def test_bad_participation_is_named():
    clients, start = team("logistic", 3, SIZES), prior("full", 3)
    wrong = (0.0, 1.5, "half", lambda n, k, rng: [True], lambda n, k, rng: [1, 0, 1])
    assert_refused((lambda p=p: ba.run(M.PVI(), clients, start, participation=p), "participation") for p in wrong)


# --- Starting from sites


def test_a_run_from_converged_sites_is_over_at_once_and_a_wrong_start_is_forgotten():
    clients, start = team("logistic", 3, SIZES), prior("full", 3)
    first = ba.run(M.PVI(0.5), clients, start, 200, tol=1e-9)
    again = ba.run(M.PVI(0.5), clients, start, 200, tol=1e-9, sites=first.sites)
    assert again.rounds == 1
    assert again.objective[0] == pytest.approx(first.objective[-1], rel=1e-14)
    wrong = ba.run(M.PVI(0.5), clients, start, 200, tol=1e-9, sites=[2.0 * site for site in first.sites])
    assert wrong.rounds > 5
    assert wrong.posterior.fisher_norm(first.posterior.natural - wrong.posterior.natural) <= 20e-9


def test_the_server_starts_at_the_prior_plus_the_sites():
    clients, start = team("squares", 3, SIZES), prior("full", 3)
    site = Natural(np.array([1.0, 2.0, 3.0]), np.diag([1.0, 0.0, 2.0]))
    result = ba.run(M.BayesADMM(), clients, start, 0, sites=[site] * 3)
    expected = start.natural + 3.0 * site
    assert np.allclose(result.posterior.natural.to_vector(), expected.to_vector(), rtol=1e-14)
    assert all(np.array_equal(kept.to_vector(), site.to_vector()) for kept in result.sites)


def test_a_conjugate_problem_is_solved_in_one_round_from_any_sites_that_the_server_has_added_up():
    """Prop. D.1 asks for λ_g = η_0 at η_k = 0; its proof only needs λ_g = η_0 + Ση_k, since then
    mean λ_k = λ_g − Σ(η_k + ∇_k) = η_0 − Σ∇_k at ρ = 1/K.
    """
    clients, start = team("squares", 3, SIZES), prior("full", 3)
    pooled = ba.solve_pooled(clients, start).posterior
    sites = [Natural(np.ones(3) * k, 0.3 * np.eye(3)) for k in range(3)]
    right = ba.run(M.BayesADMM(1 / 3), clients, start, 1, sites=sites)
    other = ba.run(M.BayesADMM(1.0), clients, start, 1, sites=sites)
    assert right.posterior.fisher_norm(pooled.natural - right.posterior.natural) <= 1e-12
    assert other.posterior.fisher_norm(pooled.natural - other.posterior.natural) > 1e-3


def test_bad_sites_are_named():
    flat, whole = Natural(np.zeros(3)), Natural(np.zeros(3), np.eye(3))
    wrong = [(row, "isotropic", [flat] * 3, "sites") for row in (M.FedProx(), M.FedDyn())]
    wrong += [(M.PVI(), "full", sites, "sites") for sites in ([whole] * 2, [whole, whole, -9.0 * whole])]
    finite = (flat, np.zeros(3), Natural(np.zeros(3), np.nan * np.eye(3)))
    wrong += [(M.PVI(), "full", [site] * 3, "sites[0]") for site in finite]
    clients = team("logistic", 3, SIZES)

    def run(row, family, sites, _):
        ba.run(row, clients, prior(family, 3), sites=sites)

    assert_refused((lambda case=case: run(*case), case[-1]) for case in wrong)
