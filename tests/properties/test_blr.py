"""Prop. C.1 / 3.1: client steps iterated to convergence for one λ_g, then the server step, are one step of the BLR.

Examples a test: two fifths of the profile's (10 by default, 200 in the wide profile), all of it for the conjugate
losses; broken twins run on every example.

The inner map η_k → −∇_μE_{q_k}[ℓ_k] contracts by L/(L + ρ) where E_q[ℓ_k] is convex in μ, L being the Lipschitz
constant of the natural gradient in λ, and by L/(ρ − L) where it is not (docs/rates.md: B(ρ + B)⁻¹, −L ≤ B ≤ L). ρ is
drawn as a multiple of L, and the server's α apart from it, since Prop. C.1 holds for every learning rate α in (0, 1].
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
    SOLVER,
    Turn,
    budget,
    cases,
    conjugate,
    data,
    fisher,
    log_uniform,
    member,
    n_parameters,
    one_round,
    other_member,
    own_natural_gradient,
    size,
    team,
    total,
)
from oracles.geometry import whitened_jacobian
from oracles.problems import EPS
from oracles.textbook import RULES, crew, replied

BayesADMM, BLR = ba.methods.BayesADMM, ba.methods.BLR
fails = pytest.raises(AssertionError)

rates = st.one_of(st.none(), st.floats(0.05, 1.0))  # None is Bayesian-ADMM's own 1/(1 + ρK)
small = cases(max_d=4, max_clients=3, max_rows=5, max_decades=1.0)
families = st.sampled_from(GAUSSIANS)
SETTLED = 1e-9


def settle(worker, q_g, site, k, steps):
    """Repeat Eq. 15 and 16 for a fixed λ_g; returns λ_k, η_k and the last length of λ_k − λ_g."""
    at_server, gap = worker.expect(q_g), np.inf
    for _ in range(steps):
        reply = replied(worker, q_g, site, at_server, k)
        assert reply.status.is_usable
        site, gap = reply.site, fisher(q_g, reply.natural - q_g.natural)
        if gap < SETTLED:
            break
    return reply.natural, site, gap


def iterated_round(row, clients, prior, turn, rule, steps=400):
    """The server step after settled clients."""
    workers, server = crew(row, clients, prior, rule)
    closed = all(client.is_linear_in_statistics for client in clients)
    workers = [replace(worker, solver=ba.clients.ClosedForm() if closed else SOLVER) for worker in workers]
    settled = [settle(w, turn.q_g, site, k, steps) for k, (w, site) in enumerate(zip(workers, turn.sites, strict=True))]
    naturals, sites, gaps = zip(*settled, strict=True)
    natural = server.gather(sites, naturals, row.server_alpha(len(clients)))
    return Turn(turn.q_g.with_natural(natural), sites), max(gaps)


def blr_step(q_g, prior, gradients, alpha):
    """Khan & Rue 2023, Eq. 6, divided by 1 − α + αw where the prior lies outside the family."""
    weight = prior.prior_weight
    target = prior.natural - total(gradients)
    return ((1 - alpha) * q_g.natural + alpha * target) * (1 / (1 - alpha + alpha * weight))


def settled_round(name, family, case, surplus, alpha, steps):
    """ρ is `surplus` times the largest Lipschitz constant: the inner map contracts by 1/(surplus − 1) at worst."""
    rule, parts = RULES[name][0], data(name, case)
    prior = member(family, case, dim=n_parameters(name, case))
    q_g, clients = other_member(prior, case), team(name, parts)
    jacobians = [whitened_jacobian(q_g, lambda q, c=c: c.expect(q, rule).natural_gradient) for c in clients]
    lipschitz = max(1.0, *(np.linalg.norm(J, 2) for J in jacobians))
    row = replace(BayesADMM(surplus * lipschitz), alpha=alpha)
    start = Turn(q_g, tuple(q_g.natural.zeros() for _ in parts))
    after, gap = iterated_round(row, clients, prior, start, rule, steps)
    gradients = [own_natural_gradient(name, part, q_g, rule) for part in parts]
    return surplus, lipschitz, prior, q_g, gradients, row.server_alpha(len(parts)), after, gap


def check_blr(surplus, lipschitz, prior, q_g, gradients, alpha, after, gap, *, rate=1.0):
    expected = blr_step(q_g, prior, gradients, rate * alpha)
    # λ_k is off by SETTLED, η_k by L times it and by ρ times the solver's tolerance (1e-11 per parameter); the server
    # takes (1 − α) mean λ_k + αΣη_k and divides by 1 − α + αw >= min(1, w) >= 0.3.
    inner = lipschitz * (SETTLED + surplus * 1e-11 * np.sqrt(q_g.natural.size))
    assert gap < SETTLED
    assert fisher(q_g, after.q_g.natural - expected) <= 4 * (SETTLED + alpha * len(gradients) * inner)


@pytest.mark.parametrize("name", ["logistic", "poisson", "squares", "softmax"])
@given(family=families, case=small, surplus=log_uniform(4, 20), alpha=rates)
@budget(0.4)
def test_settled_clients_make_a_step_of_the_blr(name, family, case, surplus, alpha):
    done = settled_round(name, family, case, surplus, alpha, steps=60)
    check_blr(*done)
    with fails:  # another learning rate
        check_blr(*done, rate=0.9)
    with fails:  # one client step has not settled
        check_blr(*settled_round(name, family, case, surplus, alpha, steps=1))


@pytest.mark.parametrize("family", CONJUGATE)
@given(case=cases(), rho=log_uniform(0.2, 5), alpha=rates)
def test_conjugate_clients_settle_in_two_steps(family, case, rho, alpha):
    """The first step makes η_k = c_k, the second λ_k = λ_g: exact, for families that are not Gaussian too."""
    prior, clients, halves = conjugate(family, case)
    row = replace(BayesADMM(rho), alpha=alpha)
    start = Turn(other_member(prior, case), tuple(a for a, _ in halves))
    coefficients = [a + b for a, b in halves]

    def check(steps):
        after, gap = iterated_round(row, clients, prior, start, None, steps)
        expected = blr_step(start.q_g, prior, [-c for c in coefficients], row.server_alpha(len(clients)))
        # some 3K + 8 roundings; η_k/ρ amplifies those of the sites, and c_k = (Vm − v) − Vm those of Gaussians
        mean = np.abs(start.q_g.mean).max() if family in GAUSSIANS else 0.0
        bent = max(1 + mean * sum(np.abs(p).sum() for p in c.parts[1:]) for c in coefficients)
        scale = max(bent, size(start.q_g.natural), *(size(c) for c in coefficients)) * (1 + rho + 1 / rho)
        allowed = (3 * len(clients) + 8) * EPS * scale
        assert size(after.q_g.natural - expected) <= allowed
        assert gap <= allowed / np.sqrt(_least_fisher(start.q_g))

    check(2)
    with fails:
        check(1)


def _least_fisher(q):
    """A lower bound of 1/‖whiten‖²: lengths are at most entries over its root."""
    basis = np.eye(q.natural.size)
    return 1 / sum(float(np.sum(q.whiten(q.natural.from_vector(e)) ** 2)) for e in basis)


@pytest.mark.parametrize("name", ["logistic", "poisson", "squares", "softmax"])
@given(family=families, case=small, share=st.floats(0.05, 1.0))
@budget(0.4)
def test_the_blr_row_is_a_natural_gradient_loop(name, family, case, share):
    """Three rounds against Eq. 6 with our own expectations, at rates for which it descends: up to 1/(1 + L)."""
    parts, prior, rule = data(name, case), member(family, case, dim=n_parameters(name, case)), RULES[name][0]
    clients, turn = team(name, parts), None
    q_g = prior.start()
    turn = Turn(q_g, tuple(q_g.natural.zeros() for _ in parts))
    jacobians = [whitened_jacobian(q_g, lambda q, c=c: c.expect(q, rule).natural_gradient) for c in clients]
    alpha = share / (1 + sum(np.linalg.norm(J, 2) for J in jacobians))

    def check(half):
        q, current = q_g, turn
        for _ in range(3):
            current = one_round(BLR(alpha), clients, prior, current, rule=rule)
            gradients = [own_natural_gradient(name, part, q, rule, half=half) for part in parts]
            expected = blr_step(q, prior, gradients, alpha)
            # a sum over rows with integrals to 1e-13 and two products with m = S⁻¹λ, of condition number <= 1e3
            scale = max(size(expected), *(size(g) for g in gradients))
            assert size(current.q_g.natural - expected) <= 1e-11 * scale
            q = current.q_g

    check(1.0)
    if prior.learns_precision:
        with fails:
            check(0.5)
