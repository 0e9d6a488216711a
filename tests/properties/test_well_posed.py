"""Where the client's problem has a minimum the solver certifies it; where it has none near q_g the solver says so.

Examples a test: the profile's for well-posed problems (25 by default, 500 in the wide profile) and the conjugate ones,
a fifth of it where a natural-gradient flow is followed; broken twins run on every example.

ρS_g − V_k ⪰ 0 makes the dual and the KL term together a KL term to a proper distribution: for ℓ >= 0 (and for every
convex ℓ) a minimum exists and is the only stationary point. Elsewhere the answer is by definition where the flow
dλ/dt = target(λ) − λ leads from q_g, if it leads anywhere (tests/splitting/test_failures.py follows it
for problems met in runs).
"""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import scipy.linalg
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import bayesadmm_np as ba
from bayesadmm_np.clients import ClientStatus, ClosedForm, Subproblem, VariationalNewton
from bayesadmm_np.families import Natural
from oracles.draws import (
    GAUSSIANS,
    LEARNED,
    Case,
    budget,
    cases,
    conjugate,
    data,
    fisher,
    log_uniform,
    member,
    n_parameters,
    other_member,
    own_natural_gradient,
    size,
    team,
)
from oracles.geometry import unit_direction
from oracles.problems import EPS
from oracles.textbook import RULES

fails = pytest.raises(AssertionError)
TOL = 1e-8  # the solver's default
rng0 = np.random.default_rng(0)


def residual(name, part, problem, q):
    """Fisher length per parameter of λ − target(λ), with our own expectations."""
    gradient = own_natural_gradient(name, part, q, problem.rule)
    return q.fisher_norm(q.natural - problem.target(gradient))


def drawn_problem(name, family, case, rho, pull):
    """One client's problem at any q_g; the dual takes `pull` times ρS_g away: from one on it is not well posed."""
    (part, *_), prior = data(name, case), member(family, case, dim=n_parameters(name, case), delta=1.0)
    anchor, rng = other_member(prior, case), case.other(5).rng
    push = Natural(rng.standard_normal(anchor.dim), *(np.zeros_like(p) for p in anchor.natural.parts[1:]))
    site = rho * pull * anchor.natural + push
    (client, *_) = team(name, [part])
    return part, Subproblem(client, client.check(anchor, RULES[name][0]), anchor, site, rho)


# ----------------------------------------------------------------------------------------------------
# Well posed: certified, and the minimum
# ----------------------------------------------------------------------------------------------------


def check_certified(name, part, problem, solution, rng):
    assert solution.status is ClientStatus.CONVERGED
    q = solution.posterior
    # the quadratures of both sides agree to 1e-12 of the largest number whitened
    floor = 1e-11 * max(1.0, size(q.natural), size(problem.site) / problem.rho)
    assert residual(name, part, problem, q) <= 1.001 * TOL + floor
    if name == "softmax":  # the sampled objective does not quite go with its natural gradient
        return
    # a minimum: no member at Fisher distance 0.2 is better (the residual's share of that is below 0.2 √n 1e-8 ρ)
    best = problem.objective(q, solution.expected.value)
    for _ in range(4):
        near = q.natural + 0.2 * unit_direction(q, rng)
        if q.contains(near):
            other = q.with_natural(near)
            assert problem.objective(other, problem.expect(other).value) > best


@given(
    name=st.sampled_from([*RULES]), family=st.sampled_from(GAUSSIANS), case=cases(max_clients=1, max_decades=1.0),
    rho=log_uniform(0.3, 10), pull=st.floats(-0.5, 0.95),
)  # fmt: skip
def test_well_posed_problems_are_certified(name, family, case, rho, pull):
    part, problem = drawn_problem(name, family, case, rho, pull)
    assert problem.is_well_posed
    solution = VariationalNewton().solve(problem, problem.anchor, rng0)
    check_certified(name, part, problem, solution, case.other(2).rng)
    q = solution.posterior
    for wrong in (problem.anchor, q.with_natural(q.natural + 1e-3 * unit_direction(q, case.other(2).rng))):
        with fails:
            check_certified(name, part, problem, replace(solution, posterior=wrong), case.other(2).rng)
    if name == "squares":
        closed = ClosedForm().solve(problem, problem.anchor, rng0)
        # two residuals of 1e-8 over a modulus of 1 − pull >= 0.05
        assert fisher(q, closed.posterior.natural - q.natural) <= 2 * TOL * np.sqrt(q.natural.size) / 0.05


@given(
    family=st.sampled_from(LEARNED), case=cases(max_clients=1, max_decades=1.0),
    pull=st.floats(-0.5, 2.0), rho=log_uniform(0.3, 10),
)  # fmt: skip
def test_well_posed_means_that_the_dual_leaves_a_proper_distribution(family, case, pull, rho):
    """S_g − V/ρ positive definite, by its eigenvalues."""
    part, problem = drawn_problem("logistic", family, case, rho, pull)
    assert len(part) == 2
    left = [
        np.linalg.eigvalsh(np.atleast_2d(p) if p.ndim == 2 else np.diag(p))
        for p in (problem.anchor.natural - problem.site / rho).parts[1:]
    ]
    margin = np.concatenate(left).min()
    if abs(margin) > 1e-12:
        assert problem.is_well_posed == (margin > 0)
        assert problem.is_well_posed == (pull < 1)


# ----------------------------------------------------------------------------------------------------
# Not well posed: the stationary point that q_g is connected to, or ILL_POSED
# ----------------------------------------------------------------------------------------------------


def flow(problem, goal=1e-6, limit=1500):
    """Follow dλ/dt = target(λ) − λ from q_g by Heun steps of adaptive length (local error 1e-3 of a Fisher length).

    Returns the verdict, the end, and the distance still to go, residual/rate.
    """

    def velocity(q):
        return problem.target(problem.expect(q).natural_gradient) - q.natural

    q, t, here, before = problem.anchor, 0.02, None, None
    here = velocity(q)
    for _ in range(limit):
        trial = q.natural + t * here
        ahead = velocity(q.with_natural(trial)) if q.contains(trial) else None
        error = np.inf if ahead is None else 0.5 * t * fisher(q, ahead - here)
        if error > 1e-3 * max(1e-3, min(1.0, fisher(q, here))):
            t *= 0.5
            if t < 1e-7:
                return "left", q, np.inf
            continue
        following = q.natural + 0.5 * t * (here + ahead)
        if not q.contains(following):
            t *= 0.5
            continue
        q = q.with_natural(following)
        before, here = q.fisher_norm(here), velocity(q)
        length = q.fisher_norm(here)
        if q.kl(problem.anchor) > 1e3 * max(1.0, q.dim):
            return "left", q, np.inf
        if length < goal:
            rate = max(np.log(before / length) / t, 1e-2)
            return "converged", q, length / rate
        t = min(1.0, 1.3 * t)
    return "undecided", q, np.inf


def check_hard(name, part, problem, solution, outcome):
    """The solver ends where the flow does, or says ILL_POSED where it leaves."""
    verdict, end, to_go = outcome
    if solution.status is ClientStatus.CONVERGED:
        q = solution.posterior
        floor = 1e-11 * max(1.0, size(q.natural), size(problem.site) / problem.rho)
        assert residual(name, part, problem, q) <= 1.001 * TOL + floor
    else:
        assert solution.status is ClientStatus.ILL_POSED
    if verdict == "left":
        assert solution.status is ClientStatus.ILL_POSED
    if verdict == "converged":
        assert solution.status is ClientStatus.CONVERGED
        # the flow's own estimate, thrice for the rate's error, and the solver's 1e-8
        assert solution.posterior.fisher_norm(solution.posterior.natural - end.natural) <= 3 * to_go + 1e-6


hard = cases(max_d=3, max_clients=1, max_rows=16, max_decades=1.0)


def hard_problem(name, family, case, deficit):
    """A dual that is a natural gradient at another member, as runs leave it, and ρ too small for it.

    ρ is (1 − deficit) times the least for which ρS_g − V ⪰ 0; near q_g the curvature H − V + ρS_g may be positive.
    """
    part, problem = drawn_problem(name, family, case, 1.0, 0.0)
    q = problem.anchor.with_natural(problem.anchor.natural + 0.5 * unit_direction(problem.anchor, case.other(6).rng))
    site = -own_natural_gradient(name, part, q, problem.rule)
    pencil = [
        scipy.linalg.eigvalsh(V if V.ndim == 2 else np.diag(V), S if S.ndim == 2 else np.diag(S))
        for V, S in zip(site.parts[1:], problem.anchor.natural.parts[1:], strict=True)
    ]
    return part, replace(problem, site=site, rho=float((1 - deficit) * np.concatenate(pencil).max()))


@pytest.mark.parametrize("family", LEARNED)
@given(name=st.sampled_from(["logistic", "softmax2"]), case=hard, deficit=st.floats(0.01, 0.7))
@budget(0.2)
def test_where_the_dual_outweighs_the_kl_term_there_is_never_a_wrong_converged(family, name, case, deficit):
    part, problem = hard_problem(name, family, case, deficit)
    assert not problem.is_well_posed
    solution = VariationalNewton().solve(problem, problem.anchor, rng0)
    outcome = flow(problem)
    check_hard(name, part, problem, solution, outcome)
    if outcome[0] != "undecided":  # an answer that did not move, or the opposite verdict
        flipped = ClientStatus.ILL_POSED if solution.status is ClientStatus.CONVERGED else ClientStatus.CONVERGED
        for wrong in (replace(solution, status=flipped), replace(solution, posterior=problem.anchor, status=flipped)):
            with fails:
                check_hard(name, part, problem, wrong, outcome)


@pytest.mark.parametrize("family", ["full", "diagonal"])
def test_the_drawn_problems_are_of_both_kinds(family):
    """The property above is not empty: of 40 fixed cases some converge and some have no stationary point near q_g."""
    verdicts = Counter()
    for seed in range(40):
        case = Case(d=1 + seed % 3, n_clients=1, rows=10, decades=1.0, skew=0.0, seed=seed)
        part, problem = hard_problem("logistic", family, case, 0.02 * (1 + seed % 35))
        solution = VariationalNewton().solve(problem, problem.anchor, rng0)
        verdicts[solution.status] += 1
        if seed % 20 == 0:
            check_hard("logistic", part, problem, solution, flow(problem))
    assert set(verdicts) == {ClientStatus.CONVERGED, ClientStatus.ILL_POSED}
    assert min(verdicts.values()) >= 4


# ----------------------------------------------------------------------------------------------------
# Conjugate families: the answer is λ_g − (η − c)/ρ if that is a distribution
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["full", "diagonal", "block", "gamma", "beta", "dirichlet"])
@given(case=cases(max_clients=1), rho=log_uniform(0.2, 5), reach=st.floats(-30.0, 1.0))
def test_conjugate_problems_are_solved_or_have_no_minimum(family, case, rho, reach):
    """The site is c minus `reach` times the evidence: the target λ_g + reach·c/ρ runs out of the domain for −∞."""
    prior, (client,), ((a, b),) = conjugate(family, case)
    q_g, c = other_member(prior, case), a + b
    problem = Subproblem(client, client.check(prior, ba.losses.Auto()), q_g, c - reach * c, rho)
    target = q_g.natural + (reach / rho) * c
    solution = ClosedForm().solve(problem, q_g, rng0)

    # within a part in a thousand of the domain's edge rounding may decide
    near_the_edge = q_g.contains(q_g.natural + (1.001 * reach / rho) * c) != q_g.contains(
        q_g.natural + (0.999 * reach / rho) * c
    )

    def check(found):
        if not near_the_edge:
            assert (found.status is ClientStatus.CONVERGED) == q_g.contains(target)
        if found.status is ClientStatus.CONVERGED:
            mean = np.abs(q_g.mean).max() if family in GAUSSIANS else 0.0
            bent = size(c) * (1 + abs(reach)) * (1 + q_g.dim * mean)
            assert size(found.posterior.natural - target) <= 64 * EPS * (size(q_g.natural) + bent / rho + bent)
        else:
            assert found.status is ClientStatus.ILL_POSED

    check(solution)
    flipped = ClientStatus.ILL_POSED if solution.status is ClientStatus.CONVERGED else ClientStatus.CONVERGED
    if abs(reach) > 0.01 and not near_the_edge:
        with fails:
            check(replace(solution, status=flipped, posterior=q_g))


@pytest.mark.parametrize("family", ["gamma", "beta", "dirichlet"])
@given(case=cases(max_clients=1), rho=log_uniform(0.2, 5), reach=st.floats(0.0, 3.0))
@settings(phases=[Phase.generate])  # while it fails, do not look for the smallest failing case
def test_well_posed_means_a_proper_distribution_in_every_family(family, case, rho, reach):
    """⟨η, μ⟩ + ρKL(q‖q_g) = ρKL(q‖q̃) + const with λ̃ = λ_g − η/ρ: it is λ̃ that must lie in Ω."""
    prior, (client,), ((a, b),) = conjugate(family, case)
    problem = Subproblem(client, client.check(prior, ba.losses.Auto()), prior, reach * (a + b), rho)
    assert problem.is_well_posed == prior.contains(prior.natural - problem.site / rho)
