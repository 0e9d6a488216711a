"""Prop. D.1 / 3.2: conjugate problems are exact after one round, and what happens when a condition is missing.

Examples a test and family: two fifths of the profile's (10 by default, 200 in the wide profile); broken twins
run on every example, except those marked "some", of which 50 cases at most are searched for a counterexample.

Derivation. Let ∇_μE_q[ℓ_k] = −c_k and w be the prior's weight (1 but for the isotropic family, where it is δ). Eq. 15
gives λ_k = λ_g + (c_k − η_k)/ρ. With ε = λ_g − λ*, λ* = (η₀ + Σc_k)/w, e_k = η_k − c_k and a bar for the mean over the
K clients, the dual step γρ(λ_k − λ_g) and Eq. 54 are

    e_k ← (1 − γ) e_k
    ε   ← {(1 − α) ε + [αK(1 − γ) − (1 − α)/ρ] ē} / (1 − α + αw)        (ē before the step)

From the prior ε = −Σc/w and ē = −Σc/K, so with γ = 1 the first round ends at ε = 0 exactly when ρ = w/K.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bayesadmm_np as ba
from oracles.draws import (
    CONJUGATE,
    GAUSSIANS,
    Turn,
    assert_some_fail,
    budget,
    cases,
    conjugate,
    log_uniform,
    one_round,
    other_member,
    size,
    total,
)
from oracles.draws import ridge as ridge_problem
from oracles.problems import EPS

BayesADMM, PVI, AMA, BCM = ba.methods.BayesADMM, ba.methods.PVI, ba.methods.AMA, ba.methods.BCM

every_problem = pytest.mark.parametrize("family", ["ridge", *CONJUGATE])
fails = pytest.raises(AssertionError)


def problem(family, case):
    return ridge_problem(case) if family == "ridge" else conjugate(family, case)


def allowance(family, prior, turns, coefficients, rho):
    """Rounding errors of some rounds.

    λ-space arithmetic: about 3K + 8 roundings a round of numbers as large as λ_g, λ_k, η_k and c_k/ρ. For Gaussians
    c_k is formed as (V_k m − v) − V_k m with m = S⁻¹λ, which costs κ, the ratio of the extreme eigenvalues in play,
    and least squares solves for a mean (κ) and multiplies it by a precision (κ again).
    """
    naturals = [n for turn in turns for n in (turn.q_g.natural, *turn.sites, *(q.natural for q in turn.posteriors))]
    scale = max(1.0, *(size(n) for n in naturals), *(size(c) for c in coefficients)) * max(1.0, 1.0 / rho)
    count = len(turns) * (3 * len(coefficients) + 8)
    if family not in (*GAUSSIANS, "ridge"):
        return count * EPS * scale
    matrices = [prior.covariance_matrix, *(q.covariance_matrix for turn in turns for q in (turn.q_g, *turn.posteriors))]
    eigenvalues = 1 / np.concatenate([np.linalg.eigvalsh(matrix) for matrix in matrices])
    curvatures = [1.0] + [np.linalg.norm(p, 2) for c in coefficients for p in c.parts[1:] if p.ndim == 2]
    curvatures += [np.abs(p).max() for c in coefficients for p in c.parts[1:] if p.ndim == 1]
    kappa = max(eigenvalues.max(), *curvatures) / eigenvalues.min() * max(1.0, rho, 1.0 / rho)
    return (count + 4 * prior.dim) * EPS * scale * (kappa**2 if family == "ridge" else kappa)


def turns_of(row, clients, prior, rounds):
    """The same through `run`."""
    results = [ba.run(row, clients, prior, rounds=t, tol=1e-300, raise_on_failure=False) for t in range(1, rounds + 1)]
    assert not results[-1].status.is_failure, results[-1].message
    return [Turn(r.posterior, r.sites, r.client_posteriors) for r in results]


def check_one_round(row, family, case, rounds=2):
    prior, clients, halves = problem(family, case)
    coefficients = [a + b for a, b in halves]
    answer = (prior.natural + total(coefficients)) * (1 / prior.prior_weight)
    turns = turns_of(row(prior.prior_weight / case.n_clients), clients, prior, rounds)
    bound = allowance(family, prior, turns, coefficients, prior.prior_weight / case.n_clients)
    for turn in turns:
        assert size(turn.q_g.natural - answer) <= bound
        for site, c in zip(turn.sites, coefficients, strict=True):
            assert size(site - c) <= bound
    pooled = ba.solve_pooled(clients, prior).posterior.natural
    assert size(pooled - answer) <= bound


@every_problem
@given(case=cases())
@budget(0.4)
def test_conjugate_problems_are_solved_in_one_round(family, case):
    check_one_round(BayesADMM, family, case)
    with fails:  # ρ = 2w/K leaves −Σc/3
        check_one_round(lambda rho: BayesADMM(2 * rho), family, case, 1)
    with fails:
        check_one_round(lambda rho: replace(BayesADMM(rho), dual_step=0.5 * rho), family, case, 1)
    with fails:
        check_one_round(lambda rho: replace(BayesADMM(rho), dual_step=-rho), family, case, 1)


@every_problem
@given(case=cases(), rho=log_uniform(0.2, 5))
@budget(0.4)
def test_without_the_servers_memory_every_rho_is_exact_in_one_round(family, case, rho):
    """α = 1: both coefficients of the recursion vanish at γ = 1."""
    check_one_round(lambda _: AMA(rho), family, case)
    check_one_round(lambda _: PVI(), family, case)
    check_one_round(lambda _: BCM(), family, case, 1)
    with fails:
        check_one_round(lambda _: PVI(gamma=0.5), family, case, 1)


# ----------------------------------------------------------------------------------------------------
# The converse
# ----------------------------------------------------------------------------------------------------


def predicted(row, error, dual_error, n_clients, weight):
    """The recursion of the module's docstring; returns the next ε and ē."""
    alpha, gamma = row.server_alpha(n_clients), row.dual_step / row.rho
    push = alpha * n_clients * (1 - gamma) - (1 - alpha) / row.rho
    moved = ((1 - alpha) * error + push * dual_error) * (1 / (1 - alpha + alpha * weight))
    return moved, (1 - gamma) * dual_error


def halves_each_round(row, error, dual_error, n_clients, weight):
    """What is true at ρ = 1/K once the duals are right, and often repeated without these conditions."""
    return 0.5 * error, (1 - row.dual_step / row.rho) * dual_error


def forgets_the_duals(row, error, dual_error, n_clients, weight):
    alpha = row.server_alpha(n_clients)
    return (1 - alpha) / (1 - alpha + alpha * weight) * error, (1 - row.dual_step / row.rho) * dual_error


def forgets_the_prior_weight(row, error, dual_error, n_clients, weight):
    return predicted(row, error, dual_error, n_clients, 1.0)


def check_recursion(family, case, rho, gamma, alpha, recursion=predicted, rounds=3):
    """Start anywhere: another member at the server, parts of the evidence as sites."""
    prior, clients, halves = problem(family, case)
    coefficients = [a + b for a, b in halves]
    answer = (prior.natural + total(coefficients)) * (1 / prior.prior_weight)
    row = replace(BayesADMM(rho, gamma), alpha=alpha)
    rng = case.other(3).rng
    sites = tuple(rng.uniform() * a + rng.uniform() * b for a, b in halves)
    turns = [Turn(other_member(prior, case), sites)]
    for _ in range(rounds):
        turns.append(one_round(row, clients, prior, turns[-1]))
    bound = allowance(family, prior, turns, coefficients, rho)
    count = case.n_clients
    error = turns[0].q_g.natural - answer
    mean_error = (total(sites) - total(coefficients)) * (1 / count)
    for turn in turns[1:]:
        error, mean_error = recursion(row, error, mean_error, count, prior.prior_weight)
        assert size(turn.q_g.natural - answer - error) <= bound
        assert size((total(turn.sites) - total(coefficients)) * (1 / count) - mean_error) <= bound


rhos = log_uniform(0.1, 10)
gammas = st.one_of(st.just(1.0), st.floats(0.1, 1.0))
alphas = st.one_of(st.none(), st.just(1.0), st.floats(0.05, 1.0))


@every_problem
@given(case=cases(), rho=rhos, gamma=gammas, alpha=alphas)
@budget(0.4)
def test_from_any_start_the_error_follows_the_recursion(family, case, rho, gamma, alpha):
    check_recursion(family, case, rho, gamma, alpha)


@every_problem
def test_other_recursions_are_refuted(family):
    """Some: each twin is right for particular constants."""
    twins = [halves_each_round, forgets_the_duals] + [forgets_the_prior_weight] * (family == "isotropic")
    for twin in twins:
        assert_some_fail(
            lambda case, rho, gamma, twin=twin: check_recursion(family, case, rho, gamma, None, twin),
            cases(),
            rhos,
            gammas,
        )


@every_problem
@given(case=cases(), rho=rhos)
@budget(0.4)
def test_rounds_of_this_file_are_those_of_run(family, case, rho):
    """`one_round` repeats `run` to the bit, so that what is shown from other starts is shown of the loop."""
    prior, clients, _ = problem(family, case)
    row = BayesADMM(rho, 0.8)
    start = prior.start()
    turn = Turn(start.with_natural(start.natural), tuple(start.natural.zeros() for _ in clients))
    for result in turns_of(row, clients, prior, 2):
        turn = one_round(row, clients, prior, turn)
        assert turn.q_g.natural == result.q_g.natural
        assert all(a == b for a, b in zip(turn.sites, result.sites, strict=True))
