"""The duality circuit (Eq. 13): fixed points, Eq. 33 after client steps, the Lagrangian of Eq. 43, and the BLR.

Examples a test: a fifth or two of the profile's (5 or 10 by default, 100 or 200 in the wide profile); broken twins run
on every example, except those marked "some" (50 cases at most are searched).

Gradients are plain sums over points (`draws.own_natural_gradient`), which share nothing with the library; for Exact
rules a trapezoidal sum over 801 points, for point rules the rule's own points. The state of a fixed point is built from
the pooled solution, λ_g = λ* and η_k = −∇_μE_{q*}[ℓ_k]; that runs converge to it is the matter of
tests/splitting/test_methods.py.
"""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bayesadmm_np as ba
from bayesadmm_np.families import Natural, pairing
from bayesadmm_np.losses import Auto
from oracles.draws import (
    CONJUGATE,
    GAUSSIANS,
    INNER,
    LEARNED,
    SOLVER,
    Case,
    Turn,
    assert_some_fail,
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
from oracles.geometry import derivative, norm, unit_direction, whitened_jacobian
from oracles.problems import EPS
from oracles.textbook import RULES, crew, replied

M = ba.methods
fails = pytest.raises(AssertionError)
families = st.sampled_from(GAUSSIANS)
exact_losses = st.sampled_from(["logistic", "poisson", "squares", "softmax2"])
small = cases(max_d=4, max_clients=3, max_rows=5, max_decades=1.0)
POOLED = 1e-10  # of solve_pooled, Fisher length per parameter


# ----------------------------------------------------------------------------------------------------
# The fixed point
# ----------------------------------------------------------------------------------------------------


def saddle(name, family, case):
    """Data, clients, prior, and the state that Eq. 13 describes."""
    parts, prior = data(name, case), member(family, case, dim=n_parameters(name, case))
    clients, rule = team(name, parts), RULES[name][0]
    q = ba.solve_pooled(clients, prior, expectation=rule).posterior
    sites = tuple(-own_natural_gradient(name, part, q, rule) for part in parts)
    return parts, clients, prior, Turn(q, sites, (q,) * len(parts))


def residuals(name, parts, prior, turn):
    """The four edges of Eq. 13, from their definitions."""
    q_g, rule = turn.q_g, RULES[name][0]
    broadcast = max(fisher(q_g, q.natural - q_g.natural) for q in turn.posteriors)
    gradients = [own_natural_gradient(name, part, q, rule) for part, q in zip(parts, turn.posteriors, strict=True)]
    duals = max(fisher(q, s + g) for q, s, g in zip(turn.posteriors, turn.sites, gradients, strict=True))
    gather = fisher(q_g, prior.prior_weight * q_g.natural - prior.natural - total(turn.sites))
    dual_map = fisher(q_g, q_g.with_expectation(q_g.expectation).natural - q_g.natural)
    return np.array([broadcast, duals, gather, dual_map])


def rows(rho):
    return [M.BayesADMM(rho), M.BayesADMM(rho, 0.5), M.AMA(rho), M.PVI(0.7), M.BregmanADMM(rho, 0.3)]


@given(name=exact_losses, family=families, case=small, rho=log_uniform(0.3, 5))
@budget(0.4)
def test_the_pooled_solution_is_a_fixed_point_of_every_row(name, family, case, rho):
    parts, clients, prior, here = saddle(name, family, case)
    count, rule = len(parts), RULES[name][0]
    # q* is off by POOLED per parameter, divided by the modulus of the pooled problem (w = 1, δ >= 0.3) and multiplied
    # by the Lipschitz constants of the gradients; a round adds the solver's 1e-11, weighed by ρ and 1/ρ
    maps = [whitened_jacobian(here.q_g, lambda q, c=c: c.expect(q, rule).natural_gradient) for c in clients]
    lipschitz = 1 + sum(np.linalg.norm(J, 2) for J in maps)
    allowed = 10 * lipschitz * POOLED * np.sqrt(here.q_g.natural.size) * (1 + rho + 1 / rho)
    assert (residuals(name, parts, prior, here) <= allowed).all()
    for row in rows(rho):
        after = one_round(row, clients, prior, here, rule=RULES[name][0])
        assert (residuals(name, parts, prior, after) <= allowed).all()
        assert fisher(here.q_g, after.q_g.natural - here.q_g.natural) <= allowed
    # each edge sees its own break, and a round of every row moves away from a state that is broken
    nudge = 0.1 * unit_direction(here.q_g, case.other(2).rng)
    moved = here.q_g.with_natural(here.q_g.natural + nudge)
    first = replace(here, posteriors=(moved, *here.posteriors[1:]))
    second = replace(here, sites=(here.sites[0] + nudge, *here.sites[1:]))
    third = replace(here, q_g=moved, posteriors=(moved,) * count)
    assert residuals(name, parts, prior, first)[0] > 1e3 * allowed
    assert (residuals(name, parts, prior, second)[1:3] > 1e3 * allowed).all()
    assert residuals(name, parts, prior, third)[2] > 1e3 * allowed
    gradients = tuple(-own_natural_gradient(name, part, moved, RULES[name][0]) for part in parts)
    consistent = replace(third, sites=gradients)  # three edges hold, the fourth does not
    broken = residuals(name, parts, prior, consistent)
    assert (broken[[0, 1, 3]] <= allowed).all()
    assert broken[2] > 1e3 * allowed
    with fails:
        after = one_round(M.BayesADMM(rho), clients, prior, consistent, rule=RULES[name][0])
        assert fisher(moved, after.q_g.natural - moved.natural) <= allowed


@given(name=exact_losses, family=families, case=small)
@budget(0.4)
def test_where_a_run_converges_the_four_residuals_vanish(name, family, case):
    """`CONVERGED` means what it says, by our own residuals; and the server is at the pooled solution."""
    parts, clients, prior, here = saddle(name, family, case)
    row = M.PVI(0.5)
    result = ba.run(row, clients, prior, rounds=60, tol=1e-6, expectation=RULES[name][0], raise_on_failure=False)
    turn = Turn(result.posterior, result.sites, result.client_posteriors)
    # one part in a thousand for the quadrature and for whitening at q_k
    edges = residuals(name, parts, prior, turn) / np.sqrt(turn.q_g.natural.size)
    if result.status is ba.Status.CONVERGED:
        assert (edges <= 1.001e-6).all()
        # over a modulus of 0.3 at least, and the metric of a neighbour
        assert fisher(here.q_g, result.posterior.natural - here.q_g.natural) <= 10e-6 * np.sqrt(here.q_g.natural.size)
    else:
        assert max(edges) > 1e-6 or result.certificate().pooled > 1e-6
    early = ba.run(row, clients, prior, rounds=1, tol=1e-6, expectation=RULES[name][0])
    if early.status is not ba.Status.CONVERGED:
        turn = Turn(early.posterior, early.sites, early.client_posteriors)
        assert early.certificate().pooled > 1e-6 or max(residuals(name, parts, prior, turn)) > 1e-6


def test_the_edges_of_an_accelerated_run_are_those_of_its_result():
    case, name = Case(d=1, n_clients=1, rows=4, decades=0.0, skew=0.0, seed=44073474), "logistic"
    parts, prior = data(name, case), member("full", case)
    for rounds in range(2, 6):
        row = ba.Accelerated(M.PVI(0.4))
        result = ba.run(row, team(name, parts), prior, rounds=rounds, tol=1e-300)
        turn = Turn(result.posterior, result.sites, result.client_posteriors)
        own = residuals(name, parts, prior, turn)[1] / np.sqrt(prior.natural.size)
        # per parameter, by the same definition; solvers at 1e-12
        assert result.history[-1].edges.natural_gradient == pytest.approx(own, rel=1e-6, abs=1e-10)


# ----------------------------------------------------------------------------------------------------
# The Lagrangian of Eq. 43
# ----------------------------------------------------------------------------------------------------


def lagrangian(clients, prior, moments, sites, q_g):
    """Σ_k [E_{q_k}[ℓ_k] + ⟨η_k, μ_k − μ_g⟩] + KL(q_g‖π₀)."""
    value = q_g.kl(prior)
    for client, q, site in zip(clients, moments, sites, strict=True):
        value += client.expect(q, client.check(prior, Auto())).value
        value += pairing(site, q.expectation - q_g.expectation)
    return value


def along(q, direction, t):
    """Move q along dμ = F dλ in moment coordinates."""
    change = derivative(lambda s: q.with_natural(q.natural + s * direction).expectation.to_vector())
    return q.with_expectation(q.expectation + t * q.expectation.from_vector(change))


def check_stationary(clients, prior, turn, rng):
    """Central differences in μ_k, η_k and μ_g along random directions of Fisher length one.

    The five-point rule errs by some 1e-9 and by 1e2 ε/1e-3 times the terms' size; the saddle itself by POOLED times
    the Lipschitz constants.
    """
    q_g, k = turn.q_g, int(rng.integers(len(clients)))
    direction = unit_direction(q_g, rng)
    terms = [abs(q_g.kl(prior))] + [norm(s) * norm(q_g.expectation) for s in turn.sites]
    terms += [abs(c.expect(q_g, c.check(prior, Auto())).value) for c in clients]
    allowed = 1e-7 + 1e3 * EPS / 1e-3 * sum(terms)

    def replaced(values, new):
        return [new if i == k else value for i, value in enumerate(values)]

    def by_client(t):
        moved = replaced(turn.posteriors, along(turn.posteriors[k], direction, t))
        return lagrangian(clients, prior, moved, turn.sites, q_g)

    def by_dual(t):
        moved = replaced(turn.sites, turn.sites[k] + t * direction)
        return lagrangian(clients, prior, turn.posteriors, moved, q_g)

    def by_server(t):
        return lagrangian(clients, prior, turn.posteriors, turn.sites, along(q_g, direction, t))

    for function in (by_client, by_dual, by_server):
        assert abs(derivative(function)) <= allowed


def check_twins(clients, prior, turn, case):
    check_stationary(clients, prior, turn, case.other(4).rng)
    for factor in (-1.0, 0.5):
        with fails:
            check_stationary(
                clients, prior, replace(turn, sites=tuple(factor * s for s in turn.sites)), case.other(4).rng
            )
    nudged = turn.q_g.with_natural(turn.q_g.natural + 0.1 * unit_direction(turn.q_g, case.other(4).rng))
    with fails:
        check_stationary(clients, prior, replace(turn, q_g=nudged), case.other(4).rng)


@given(name=exact_losses, family=families, case=small)
@budget(0.4)
def test_the_lagrangian_is_stationary_at_the_saddle(name, family, case):
    _, clients, prior, turn = saddle(name, family, case)
    check_twins(clients, prior, turn, case)


@pytest.mark.parametrize("family", ["gamma", "beta", "dirichlet"])
@given(case=small)
@budget(0.4)
def test_the_lagrangian_of_conjugate_families_is_stationary_at_the_saddle(family, case):
    prior, clients, halves = conjugate(family, replace(case, skew=0.0))
    sites = tuple(a + b for a, b in halves)
    q = prior.with_natural(prior.natural + total(sites))
    check_twins(clients, prior, Turn(q, sites, (q,) * len(clients)), case)


# ----------------------------------------------------------------------------------------------------
# Σ η_k = λ_g − η₀, round by round
# ----------------------------------------------------------------------------------------------------


def check_sum(row, clients, prior, turns, wrong=0.0):
    """With r = wλ_g − η₀ − Ση_k, Eq. 54 and the dual step γρ give, for every loss and every family with w = 1,

        r ← (1 − α)[r − (1 − 1/(γρK)) ΔΣη],

    because mean λ_k − λ_g = ΔΣη/(γρK) whatever the clients did. So r = 0 at every round if α = 1, or if γρK = 1 from
    the prior with zero duals: the two cases where the duals must add up to the server.
    """
    count, alpha = len(clients), row.server_alpha(len(clients))
    for old, new in itertools.pairwise(turns):
        before, after = (t.q_g.natural - prior.natural - total(t.sites) for t in (old, new))
        change = total(new.sites) - total(old.sites)
        expected = (1 - alpha) * (before - (1 - 1 / (row.dual_step * count) + wrong) * change)
        # K + 3 sums at the server, and the difference λ_k − λ_g times ρ at each client
        scale = max(size(n) for t in (old, new) for n in (t.q_g.natural, prior.natural, *t.sites))
        scale = max(1.0, scale, *(size(q.natural) for q in new.posteriors)) * max(1.0, row.dual_step, 1 / row.dual_step)
        assert size(after - expected) <= 8 * (count + 3) * EPS * scale


def turns_of(row, clients, prior, rounds, rule=None):
    turns = [Turn(prior, tuple(prior.natural.zeros() for _ in clients))]
    for t in range(1, rounds + 1):
        result = ba.run(
            row, clients, prior, rounds=t, tol=1e-300, expectation=rule, solver=SOLVER if rule else None,
            raise_on_failure=False,
        )  # fmt: skip
        if result.rounds < t:
            break
        turns.append(Turn(result.posterior, result.sites, result.client_posteriors))
    return turns


gammas = st.one_of(st.just(1.0), st.floats(0.2, 1.0))
alphas = st.one_of(st.none(), st.just(1.0), st.floats(0.1, 1.0))


@given(
    name=st.sampled_from(list(RULES)), family=st.sampled_from(["full", "diagonal", "block", "fixed"]), case=small,
    rho=log_uniform(0.5, 5), gamma=gammas, alpha=alphas,
)  # fmt: skip
@budget(0.4)
def test_what_the_duals_lack_to_the_server_follows_a_recursion(name, family, case, rho, gamma, alpha):
    prior, clients = member(family, case, dim=n_parameters(name, case)), team(name, data(name, case))
    row = replace(M.BayesADMM(rho, gamma), alpha=alpha)
    turns = turns_of(row, clients, prior, 3, RULES[name][0])
    check_sum(row, clients, prior, turns)
    if row.server_alpha(len(clients)) < 1 and len(turns) > 1:
        with fails:
            check_sum(row, clients, prior, turns, wrong=0.01)


# ----------------------------------------------------------------------------------------------------
# Eq. 33: after every client step the dual is the negative natural gradient of the loss at the client's posterior
# ----------------------------------------------------------------------------------------------------


def any_state(prior, case, rho, count):
    """A server anywhere and duals with ρS_g − V_k ⪰ 0, so that Eq. 15 has a solution: no run needs to lead there."""
    rng = case.other(5).rng
    q_g = other_member(prior, case)
    sites = []
    for _ in range(count):
        pull = Natural(0.5 * rng.standard_normal(q_g.dim), *(np.zeros_like(part) for part in q_g.natural.parts[1:]))
        sites.append(rho * rng.uniform(0, 0.8) * q_g.natural + pull)
    return Turn(q_g, tuple(sites))


def step(name, rule, family, case, rho, row=None):
    """One round from any state; returns the data, the state before and the state after."""
    parts = data(name, case)
    prior = member(family, case, dim=n_parameters(name, case))
    before = any_state(prior, case, rho, case.n_clients)
    after = one_round(row or M.BayesADMM(rho), team(name, parts), prior, before, rule=rule)
    return parts, before, after


def with_dual_step(before, after, step):
    """The same round with another dual step: it does not act back on the clients' solves."""
    moves = [q.natural - before.q_g.natural for q in after.posteriors]
    sites = tuple(site + step * move for site, move in zip(before.sites, moves, strict=True))
    return replace(after, sites=sites)


def allowance(rho, q, *naturals):
    """Fisher length of what is left of η + ∇.

    The solver ends at ‖λ_k − λ_g + (η_k + ∇)/ρ‖ <= INNER per parameter, and η' + ∇ is ρ times it. Sums over rows and
    moments err by some hundred roundings of the largest number, here whitened by at most 1/√λ_min(S) ‖m‖.
    """
    scale = max(size(n) for n in naturals) * (1 + float(np.abs(q.mean).max())) / np.sqrt(1 / q.variance.max())
    return rho * INNER * np.sqrt(q.natural.size) + 1e3 * EPS * scale


def check_duals(name, rule, rho, parts, before, after, half=1.0):
    for part, q, site, old in zip(parts, after.posteriors, after.sites, before.sites, strict=True):
        gradient = own_natural_gradient(name, part, q, rule, half=half)
        bound = allowance(rho, q, gradient, old, rho * q.natural, rho * before.q_g.natural)
        assert fisher(q, site + gradient) <= bound


every_rule = pytest.mark.parametrize(
    ("name", "rule"), [(name, rule) for name, rules in RULES.items() for rule in rules], ids=str
)


@every_rule
@given(family=families, case=small, rho=log_uniform(0.3, 10))
@budget(0.2)
def test_duals_are_natural_gradients_from_any_state(name, rule, family, case, rho):
    parts, before, after = step(name, rule, family, case, rho)
    check_duals(name, rule, rho, parts, before, after)
    for wrong in (-rho, 0.5 * rho):
        with fails:
            check_duals(name, rule, rho, parts, before, with_dual_step(before, after, wrong))
    if family in LEARNED and rule.carries_curvature:
        with fails:  # the papers' ½ belongs to their statistic θθᵀ
            check_duals(name, rule, rho, parts, before, after, half=0.5)


@pytest.mark.parametrize("name", RULES)
def test_duals_along_moments_are_not_natural_gradients(name):
    """Some: BregmanADMM with a learned precision."""

    def check(family, case):
        row, rule = M.BregmanADMM(1.0, 0.05), RULES[name][0]
        check_duals(name, rule, 1.0, *step(name, rule, family, case, 1.0, row))

    assert_some_fail(check, st.sampled_from(LEARNED), small)


@pytest.mark.parametrize("family", [*GAUSSIANS, "gamma", "beta", "dirichlet"])
@given(case=cases(), rho=log_uniform(0.3, 10))
def test_duals_of_conjugate_losses_are_their_coefficients(family, case, rho):
    """∇_μE_q[ℓ] = −c at every q: one step from parts of the evidence as sites is enough."""
    prior, clients, halves = conjugate(family, case)
    before = Turn(other_member(prior, case), tuple(a for a, _ in halves))

    def check(row):
        after = one_round(row, clients, prior, before)
        for q, site, (a, b) in zip(after.posteriors, after.sites, halves, strict=True):
            # η + ρ[λ_g + (c − η)/ρ − λ_g]: ten roundings; c is formed as (Vm − v) − Vm for Gaussians
            scale = max(size(a + b), rho * size(q.natural), rho * size(before.q_g.natural))
            if family in GAUSSIANS:
                mean = before.q_g.mean
                scale += sum(np.abs(part).sum() for part in (a + b).parts[1:]) * np.abs(mean).max()
            assert size(site - (a + b)) <= 16 * EPS * scale

    check(M.BayesADMM(rho))
    with fails:
        check(M.BayesADMM(rho, gamma=0.9))


# ----------------------------------------------------------------------------------------------------
# Prop. C.1 / 3.1: client steps iterated to convergence for one λ_g, then the server step, are one step of the BLR
#
# The inner map η_k → −∇_μE_{q_k}[ℓ_k] contracts by L/(L + ρ) where E_q[ℓ_k] is convex in μ, L being the Lipschitz
# constant of the natural gradient in λ, and by L/(ρ − L) where it is not (docs/rates.md: B(ρ + B)⁻¹, −L ≤ B ≤ L). ρ is
# drawn as a multiple of L, and the server's α apart from it, since Prop. C.1 holds for every learning rate α in (0, 1].
# ----------------------------------------------------------------------------------------------------

rates = st.one_of(st.none(), st.floats(0.05, 1.0))  # None is Bayesian-ADMM's own 1/(1 + ρK)
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
    row = replace(M.BayesADMM(surplus * lipschitz), alpha=alpha)
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
    row = replace(M.BayesADMM(rho), alpha=alpha)
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
            current = one_round(M.BLR(alpha), clients, prior, current, rule=rule)
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
