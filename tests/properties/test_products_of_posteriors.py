"""Claim 1 of the FedIvon paper (Pal et al. 2024), and the bounds of its appendix.

Claim 1: Π_k p(θ|D_k) / p(θ)^{K−1} is the pooled posterior, which is BCM's one round. What the paper's server takes,
Π_k p(θ|D_k)^{N_k/N}, is not: it has each client's likelihood to the power N_k/N.

The bounds: with weights that sum to one min_k s_k <= s_g <= max_k s_k. With prior="start" s_k = s_0 + E_{q_k}[ℓ_k″] for
exact clients, so that s_0 <= s_g <= s_0 + max_k sup ℓ_k″ in every round, for convex losses. With prior="server" the
upper bound fails: s_g grows by Σ_k(N_k/N)E[ℓ_k″] a round.
"""

import numpy as np
import pytest
from hypothesis import assume, given

import bayesadmm_np as ba
from oracles.draws import CONJUGATE, budget, cases, conjugate, log_uniform, ridge, rounding, size, total
from oracles.problems import iterates, prior, team

M = ba.methods
fails = pytest.raises(AssertionError)
every_problem = pytest.mark.parametrize("family", ["ridge", *CONJUGATE])


def local_posteriors(family, case):
    """The prior, λ of every client's own posterior under the whole prior, N_k, and the pooled posterior's λ."""
    start, clients, halves = ridge(case) if family == "ridge" else conjugate(family, case)
    own = [ba.solve_pooled([client], start).posterior.natural for client in clients]
    pooled = (start.natural + total([a + b for a, b in halves])) * (1.0 / start.prior_weight)
    return start, clients, own, np.array([client.total_weight for client in clients]), pooled


@every_problem
@given(case=cases())
@budget(0.4)
def test_claim_1(family, case):
    """The isotropic family holds the prior with the weight w: p(θ) is η₀/w there."""
    start, _, own, _, pooled = local_posteriors(family, case)
    anchor = start.natural * (1.0 / start.prior_weight)

    def check(product):
        # a local posterior is a solve of its own: relative 1e-9, on numbers that the sum may cancel
        assert size(product - pooled) <= 1e-9 * max(size(n) for n in (*own, anchor, pooled)) * len(own)

    check(total(own) - anchor * (len(own) - 1.0))
    if len(own) > 1:
        with fails:  # the prior counted K times
            check(total(own))


@every_problem
@given(case=cases())
@budget(0.4)
def test_the_weighted_product_tempers_every_likelihood(family, case):
    """Π p(θ|D_k)^{w_k} ∝ p(θ) Π p(D_k|θ)^{w_k} (Eq. 14), which is the pooled posterior for one client alone."""
    start, _, own, rows, pooled = local_posteriors(family, case)
    assume(len(own) > 1)
    anchor, weights = start.natural * (1.0 / start.prior_weight), rows / rows.sum()
    product = total([w * n for w, n in zip(weights, own, strict=True)])
    tempered = anchor + total([w * (n - anchor) for w, n in zip(weights, own, strict=True)])
    allowed = rounding(4 * len(own) + 4, anchor, *own)
    assert size(product - tempered) <= allowed
    with fails:  # the paper's "≈"
        assert size(product - pooled) <= 1e-6 * size(pooled)


@given(case=cases())
@budget(0.4)
def test_fedivon_from_the_start_is_that_product_in_every_round(case):
    start, clients, own, rows, _ = local_posteriors("diagonal", case)
    product = total([w * n for w, n in zip(rows / rows.sum(), own, strict=True)])

    def check(row):
        for result in iterates(row, clients, start, 2):
            assert size(result.posterior.natural - product) <= 1e-9 * max(size(n) for n in (*own, product))

    check(M.FedIvon(prior="start"))
    with fails:  # the server's posterior as the prior counts the rows anew in every round
        check(M.FedIvon())


def bounds_of(clients, start):
    """s_0, and s_0 + max_k sup diag ℓ_k″ of logistic losses, ¼Σ_i x_i²."""
    steepest = np.max([0.25 * (client.X**2).sum(axis=0) for client in clients], axis=0)
    return start.precision, start.precision + steepest


def within(posterior, low, high):
    """Precisions come from sums of a few terms: relative rounding of 1e-12."""
    assert (posterior.precision >= low * (1 - 1e-12)).all()
    assert (posterior.precision <= high * (1 + 1e-12)).all()


def test_bounds_of_the_servers_precision():
    clients, start = team("logistic"), prior("diagonal", 3)
    low, high = bounds_of(clients, start)
    for result in iterates(M.FedIvon(prior="start"), clients, start, 8):
        within(result.posterior, low, high)
        locals_ = [q.precision for q in result.client_posteriors]
        within(result.posterior, np.min(locals_, axis=0), np.max(locals_, axis=0))
    growing = iterates(M.FedIvon(), clients, start, 8)
    with fails:  # the broken twin: the server as the prior
        within(growing[-1].posterior, low, high)
    assert (np.diff([result.posterior.precision for result in growing], axis=0) > 0).all()


@given(case=cases(), beta=log_uniform(0.2, 5))
@budget(0.4)
def test_beta_weighs_the_server(case, beta):
    """Conjugate clients: λ_k = λ_g + c_k/β, so that a round adds Σ(N_k/N)c_k/β."""
    assume(abs(np.log(beta)) > 0.1)
    start, clients, halves = conjugate("diagonal", case)
    rows = np.array([client.total_weight for client in clients])
    step = total([w * (a + b) for w, (a, b) in zip(rows / rows.sum(), halves, strict=True)])
    results = iterates(M.FedIvon(beta=beta), clients, start, 2)

    def check(each):
        for count, result in enumerate(results, 1):
            expected = start.natural + count * each
            assert size(result.posterior.natural - expected) <= 1e-9 * max(size(expected), size(step) / beta)

    check(step * (1.0 / beta))
    with fails:
        check(step)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"prior": "clients"}, "prior must be 'server' or 'start'"),
        ({"beta": -1.0}, "beta"),
        ({"prior": "start", "beta": 0.5}, "beta must be 1.0 for prior='start'"),
    ],
)
def test_refused(arguments, match):
    with pytest.raises(ValueError, match=match):
        M.FedIvon(**arguments)
