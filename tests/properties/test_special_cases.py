"""Eq. 21–22 and App. C.3–D.1: which choice of family, ρ, α and expectation makes which known method.

Examples a test: two fifths of the profile's (10 by default, 200 in the wide profile); broken twins run on every
example, except those marked "some" (50 cases at most are searched).

The textbook recursions are those of oracles/textbook.py, here on drawn problems, and one more for AMA and the
smoothed ADMM of Eq. 22. Both sides are solved to gradients of 1e-11 and less.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import bayesadmm_np as ba
from bayesadmm_np.families import FixedPrecisionGaussian, IsotropicGaussian, pairing
from bayesadmm_np.losses import Delta, Exact
from oracles.draws import (
    SOLVER,
    budget,
    cases,
    data,
    log_uniform,
    member,
    own_natural_gradient,
    spd,
    team,
)
from oracles.problems import expected_derivatives, point_derivatives
from oracles.textbook import dense, half_laplace, structure, textbook_admm, textbook_fedlap, textbook_laplace
from oracles.textbook import textbook_pvi as textbook_sites

M = ba.methods
fails = pytest.raises(AssertionError)
losses = st.sampled_from(["logistic", "squares", "poisson"])
curved = st.sampled_from(["logistic", "poisson"])
small = cases(max_d=4, max_clients=3, max_rows=5, max_decades=1.0)
rhos = log_uniform(0.3, 5)
gammas = st.floats(0.2, 1.0)
ROUNDS = 3

# A client's residual of 1e-11 √d moves θ_k by 1e-11 √d (ρ-strong convexity, and the residual is the gradient over ρ);
# ADMM is non-expansive, so ROUNDS rounds add up at most; v_k and rows with α = 1, which are not, multiply by
# (1 + ρ + 1/ρ)K a round at most: 3 · 2 · (6.3 · 3)² · 1e-11 < 2.5e-8 in the worst case. Relative to the entries' size.
TOL = 3e-8


def near(a, b):
    a, b = np.ravel(a), np.ravel(b)
    assert np.abs(a - b).max() <= TOL * max(1.0, np.abs(a).max(), np.abs(b).max())


def results_of(row, clients, prior, expectation=None, rounds=ROUNDS, may_diverge=False):
    options = {"tol": 1e-300, "raise_on_failure": False, "solver": SOLVER, "expectation": expectation}
    results = [ba.run(row, clients, prior, rounds=t, **options) for t in range(1, rounds + 1)]
    if may_diverge:  # AMA does for some ρ, and then there is nothing to compare
        assume(not results[-1].status.is_failure)
    assert not results[-1].status.is_failure, results[-1].message
    return results


def check_points(results, textbook):
    for result, (theta, v, theta_g) in zip(results, textbook, strict=True):
        near(result.posterior.mean, theta_g)
        for q, site, t, dual in zip(result.client_posteriors, result.sites, theta, v, strict=True):
            near(q.mean, t)
            near(site.linear, dual)


def check_same(first, second):
    """The same run to the bit."""
    for a, b in zip(first, second, strict=True):
        assert a.posterior.natural == b.posterior.natural
        assert all(x == y for x, y in zip(a.sites, b.sites, strict=True))


# ----------------------------------------------------------------------------------------------------
# Eq. 21: what the isotropic family makes of λ, μ, KL and the natural gradient
# ----------------------------------------------------------------------------------------------------


@given(name=losses, case=small)
@budget(0.4)
def test_the_isotropic_family_is_euclidean(name, case):
    """λ = μ = m, KL = ½‖m − m'‖², ∇L(m) = E[∇ℓ]; under the delta method ∇ℓ(m)."""
    prior = member("isotropic", case, delta=1.0)
    q = prior.with_natural(prior.natural)
    (part, *_), (client, *_) = data(name, case), team(name, data(name, case))
    assert np.array_equal(q.natural.linear, q.mean)
    assert np.array_equal(q.expectation.mean, q.mean)
    other = q.with_natural(q.natural + 0.5 * own_natural_gradient(name, part, q, Delta(1)))
    near(q.kl(other), 0.5 * np.sum((q.mean - other.mean) ** 2))
    with fails:
        near(q.kl(other), np.sum((q.mean - other.mean) ** 2))
    near(pairing(other.natural, q.expectation), other.mean @ q.mean)
    near(client.expect(q, Exact()).natural_gradient.linear, own_natural_gradient(name, part, q, Exact()).linear)
    near(client.expect(q, Delta(1)).natural_gradient.linear, point_derivatives(name, *part, q.mean)[0])
    if name != "squares":
        with fails:
            near(client.expect(q, Exact()).natural_gradient.linear, point_derivatives(name, *part, q.mean)[0])


# ----------------------------------------------------------------------------------------------------
# ADMM, preconditioned ADMM
# ----------------------------------------------------------------------------------------------------


@given(name=losses, case=small, rho=rhos, delta=log_uniform(0.3, 3))
@budget(0.4)
def test_isotropic_with_delta_is_admm(name, case, rho, delta):
    parts, prior = data(name, case), member("isotropic", case, delta=delta)
    results = results_of(M.ADMM(rho), team(name, parts), prior)
    P0 = delta * np.eye(case.d)
    check_points(results, textbook_admm(name, parts, prior.mean, P0, rho, ROUNDS))
    check_same(results, results_of(M.BayesADMM(rho), team(name, parts), prior, Delta(1)))
    for broken in ({"sign": -1.0}, {"squared": False}):
        with fails:
            check_points(results[:1], textbook_admm(name, parts, prior.mean, P0, rho, 1, **broken))
    with fails:
        check_points(results, textbook_admm(name, parts, prior.mean, P0, 1.1 * rho, ROUNDS))


@given(name=losses, case=small, rho=rhos, delta=log_uniform(0.3, 3))
@budget(0.4)
def test_fixed_precision_is_preconditioned_admm_with_rho_scaled(name, case, rho, delta):
    parts = data(name, case)
    S = spd(case.other(31).rng, case.d, case.decades)
    mean = member("isotropic", case).mean
    results = results_of(M.PreconditionedADMM(rho), team(name, parts), FixedPrecisionGaussian(mean, S))
    check_points(results, textbook_admm(name, parts, mean, S, rho, ROUNDS, S))
    with fails:
        check_points(results, textbook_admm(name, parts, mean, S, rho, ROUNDS, 1.1 * S))
    # S = δI is ADMM with ρδ, and with the isotropic family's own prior precision δ
    scaled = results_of(M.PreconditionedADMM(rho), team(name, parts), FixedPrecisionGaussian(mean, delta))
    plain = results_of(M.ADMM(rho * delta), team(name, parts), IsotropicGaussian(mean, delta))

    def check(pairs):
        for a, b in pairs:
            near(a.posterior.mean, b.posterior.mean)
            for x, y in zip(a.sites, b.sites, strict=True):
                near(x.linear, y.linear)

    check(zip(scaled, plain, strict=True))
    wrong = results_of(M.ADMM(rho * delta * 1.1), team(name, parts), IsotropicGaussian(mean, delta))
    with fails:
        check(zip(scaled, wrong, strict=True))


# ----------------------------------------------------------------------------------------------------
# Eq. 22 (ADMM on the smoothed loss) and AMA (Eq. 39–41)
# ----------------------------------------------------------------------------------------------------


def smoothed(name, X, y, theta):
    _, gradient, hessian = expected_derivatives(name, X, y, theta, np.eye(theta.size))
    return gradient, hessian


@given(name=losses, case=small, rho=rhos, delta=log_uniform(0.3, 3))
@budget(0.4)
def test_the_isotropic_family_is_admm_on_the_smoothed_loss(name, case, rho, delta):
    """Eq. 22: the expectation stays, and v_k = −E[∇ℓ_k]."""
    parts, prior = data(name, case), member("isotropic", case, delta=delta)
    results = results_of(M.BayesADMM(rho), team(name, parts), prior, Exact())
    arguments = (name, parts, prior.mean, delta * np.eye(case.d), rho, ROUNDS)
    check_points(results, textbook_admm(*arguments, derivatives=smoothed))
    with fails:
        check_points(results, textbook_admm(*arguments, derivatives=smoothed, sign=-1.0))
    if name != "squares":  # where smoothing adds a constant
        with fails:
            check_points(results, textbook_admm(*arguments))


@given(name=losses, case=small, rho=rhos, delta=log_uniform(0.3, 3))
@budget(0.4)
def test_ama_has_no_proximal_term_at_the_server(name, case, rho, delta):
    parts, prior = data(name, case), member("isotropic", case, delta=delta)
    arguments = (name, parts, prior.mean, delta * np.eye(case.d), rho, ROUNDS)
    point = results_of(M.AMA(rho), team(name, parts), prior, Delta(1), may_diverge=True)
    check_points(point, textbook_admm(*arguments, prox=False))
    check_points(
        results_of(M.AMA(rho), team(name, parts), prior, Exact(), may_diverge=True),
        textbook_admm(*arguments, derivatives=smoothed, prox=False),
    )
    if abs(rho * case.n_clients - delta) > 0.05:  # at ρ = w/K the duals add up to the server, and the two are one
        with fails:
            check_points(point, textbook_admm(*arguments))
        memory = results_of(M.BayesADMM(rho), team(name, parts), prior, Delta(1), may_diverge=True)
        with fails:
            check_points(memory, textbook_admm(*arguments, prox=False))


@given(name=losses, family=st.sampled_from(["full", "diagonal", "block", "fixed", "isotropic"]), case=small, rho=rhos)
@budget(0.4)
def test_rows_with_alpha_one_are_each_other(name, family, case, rho):
    """AMA is Bayesian-ADMM with α = 1, PVI is AMA with ρ = 1, damping is the dual step; to the bit."""
    clients, prior = team(name, data(name, case)), member(family, case)
    rounds = 2
    undamped = results_of(M.PVI(), clients, prior, rounds=rounds)
    check_same(undamped, results_of(replace(M.BayesADMM(1.0), alpha=1.0), clients, prior, rounds=rounds))
    check_same(undamped, results_of(M.AMA(1.0), clients, prior, rounds=rounds))
    damped = results_of(M.PVI(0.4), clients, prior, rounds=rounds)
    check_same(damped, results_of(replace(M.BayesADMM(1.0, 0.4), alpha=1.0), clients, prior, rounds=rounds))
    with fails:
        check_same(undamped, damped)
    with fails:
        check_same(undamped, results_of(M.AMA(1.1), clients, prior, rounds=1) * rounds)


# ----------------------------------------------------------------------------------------------------
# PVI and its point versions
# ----------------------------------------------------------------------------------------------------


@given(name=losses, case=small, gamma=gammas, delta=log_uniform(0.5, 3))
@budget(0.4)
def test_fedlap_is_pvi_with_fixed_covariance(name, case, gamma, delta):
    parts, mean = data(name, case), member("isotropic", case).mean
    prior, clients = FixedPrecisionGaussian(mean, delta), team(name, parts)
    results = results_of(M.FedLap(gamma), clients, prior)
    check_same(results, results_of(M.PVI(gamma), clients, prior, Delta(1)))
    check_points(results, textbook_fedlap(name, parts, mean, delta, ROUNDS, gamma))
    with fails:
        check_points(results, textbook_fedlap(name, parts, mean, delta, ROUNDS, 0.9 * gamma))
    if case.n_clients > 1:  # FedLap is not ADMM: it lacks the server's prox, which does nothing at ρ = w/K
        with fails:
            check_points(results, textbook_admm(name, parts, mean, delta * np.eye(case.d), delta, ROUNDS))


def check_sites(results, textbook_rounds, family):
    for result, (V, v, S_g, m_g) in zip(results, textbook_rounds, strict=True):
        linear, precision = dense(result.posterior.natural, family)
        near(precision, S_g)
        near(linear, S_g @ m_g)
        for site, Vk, vk in zip(result.sites, V, v, strict=True):
            linear, precision = dense(site, family)
            near(precision, Vk)
            near(linear, vk)


def dense_prior(family, case):
    prior = member(family, case)
    return prior, prior.precision if family == "full" else np.diag(prior.precision)


learned = pytest.mark.parametrize("family", ["full", "diagonal"])


@learned
@given(name=curved, case=small, gamma=gammas)
@budget(0.4)
def test_fedlapcov_is_pvi_with_the_second_order_delta_method(family, name, case, gamma):
    """And V_k ← (1 − γ)V_k + γ∇²ℓ_k(m_k), the row of the table."""
    parts, (prior, S0) = data(name, case), dense_prior(family, case)
    results = results_of(M.FedLapCov(gamma), team(name, parts), prior)
    check_same(results, results_of(M.PVI(gamma), team(name, parts), prior, Delta(2)))
    arguments = (name, parts, prior.mean, S0, family, ROUNDS, gamma)
    check_sites(results, textbook_sites(*arguments, tilted=textbook_laplace), family)
    with fails:  # the appendix's stray ½
        check_sites(results, textbook_sites(*arguments, tilted=half_laplace), family)
    old = [np.zeros_like(S0) for _ in parts]

    def check(kept):
        for result in results:
            for k, (X, y) in enumerate(parts):
                H = structure(point_derivatives(name, X, y, result.client_posteriors[k].mean)[1], family)
                new = dense(result.sites[k], family)[1]
                near(new, kept * old[k] + gamma * H)
                old[k] = new

    check(1 - gamma)
    if gamma < 0.9:
        old = [dense(site, family)[1] for site in results[0].sites]
        with fails:
            check(1.0)


@learned
@given(name=curved, case=cases(max_d=3, max_clients=3, max_rows=5, max_decades=1.0), gamma=gammas)
@budget(0.2)
def test_rho_one_alpha_one_is_pvi_and_in_the_diagonal_family_the_recursion_of_ivon_pvi(family, name, case, gamma):
    """Algorithm 1 with α = ρ = 1: v_k, u_k move by γ(s_k m_k − s_g m_g), γ(s_k − s_g); s_g = δ + Σu_k."""
    parts, (prior, S0) = data(name, case), dense_prior(family, case)
    row = replace(M.BayesADMM(1.0, gamma), alpha=1.0)
    results = results_of(row, team(name, parts), prior, rounds=2)
    arguments = (name, parts, prior.mean, S0, family, 2)
    check_sites(results, textbook_sites(*arguments, gamma), family)
    with fails:
        check_sites(results, textbook_sites(*arguments, -gamma), family)
    if abs(gamma * case.n_clients - 1) > 0.05:  # Bayesian-ADMM proper has a server with a memory, unless γρK = 1
        memory = results_of(M.BayesADMM(1.0, gamma), team(name, parts), prior, rounds=2)
        with fails:
            check_sites(memory, textbook_sites(*arguments, gamma), family)
