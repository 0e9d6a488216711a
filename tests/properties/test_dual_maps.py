"""The two coordinate systems: ∇A and ∇A*, Fisher = ∇²A, KL = Bregman, natural gradient = F⁻¹ gradient, Bonnet, Price.

Examples a test and family: three fifths of the profile's (15 by default, 300 in the wide profile), two for losses;
broken twins run on every example, except those marked "some" (50 cases at most are searched).

tests/families has the same identities at well conditioned members (`check_family`); here the precisions have condition
numbers up to 10⁴, and the statements are made in both coordinates.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bayesadmm_np as ba
from bayesadmm_np.families import FullGaussian, pairing
from bayesadmm_np.losses import Exact
from oracles.draws import (
    CONJUGATE,
    GAUSSIANS,
    Case,
    assert_some_fail,
    budget,
    cases,
    data,
    member,
    n_parameters,
    other_member,
    spd,
    team,
)
from oracles.geometry import derivative, fisher_matrix, norm, unit_direction
from oracles.problems import EPS
from oracles.rules import MonteCarlo

every_family = pytest.mark.parametrize("family", CONJUGATE)
fails = pytest.raises(AssertionError)
members = cases(max_decades=4.0)

# `derivative` is a five-point rule with step 1e-3: along a direction of Fisher length one the fifth derivatives of A,
# of A* and of E_q[ℓ] are of order 10² at most, so that truncation is about 1e-12 · 10²/30; rounding of a function of
# size |f| adds some ten ε|f|/1e-3.
STEP = 1e-3


def difference_error(*values):
    return 1e-9 + 1e2 * EPS / STEP * max(1.0, *(abs(float(v)) for v in values))


def draw(family, case):
    q = member(family, case, delta=1.0)
    return q, other_member(q, case), unit_direction(q, case.other(2).rng)


def moments_along(q, direction):
    """dμ = F dλ, by differences: a direction in μ that belongs to a direction in λ of Fisher length one."""
    return q.expectation.from_vector(
        derivative(lambda t: q.with_natural(q.natural + t * direction).expectation.to_vector(), STEP)
    )


@every_family
@given(case=members)
@budget(0.6)
def test_the_maps_invert_each_other(family, case):
    q, _, _ = draw(family, case)
    there_and_back = q.with_expectation(q.with_natural(q.natural).expectation)
    # rounding μ by ε moves λ by F⁻¹εμ, a Fisher length of ε‖μ‖/√λ_min(F), and so does the inversion of S
    root = np.sqrt(np.linalg.eigvalsh(fisher_matrix(q))[0])
    allowed = 1e3 * EPS * norm(q.expectation) / root
    assert np.linalg.norm(q.whiten(there_and_back.natural - q.natural)) <= allowed
    assert norm(there_and_back.expectation - q.expectation) <= 1e3 * EPS * norm(q.expectation) / root**2
    if family in ("full", "diagonal", "block"):
        with fails:  # the moments without the mean's square
            wrong = ba.families.Expectation(2.0 * q.expectation.mean, *q.expectation.parts[1:])
            try:
                assert np.linalg.norm(q.whiten(q.with_expectation(wrong).natural - q.natural)) <= allowed
            except ValueError:
                raise AssertionError from None


@every_family
@given(case=members)
@budget(0.6)
def test_each_map_is_a_gradient(family, case):
    """dA = ⟨dλ, μ⟩ and dA* = ⟨λ, dμ⟩."""
    q, _, direction = draw(family, case)
    slope = derivative(lambda t: q.with_natural(q.natural + t * direction).log_partition, STEP)
    change = moments_along(q, direction)
    conjugate_slope = derivative(lambda t: q.with_expectation(q.expectation + t * change).conjugate, STEP)

    def check(natural, expectation):
        assert abs(slope - pairing(direction, expectation)) <= difference_error(q.log_partition, slope)
        # dμ itself carries the error of a difference
        size = max(abs(q.conjugate), norm(natural) * norm(change), norm(natural) * norm(q.expectation))
        assert abs(conjugate_slope - pairing(natural, change)) <= difference_error(size)

    check(q.natural, q.expectation)
    with fails:
        check(q.natural, 1.01 * q.expectation + moments_along(q, direction))
    with fails:  # λ shifted by a unit of Fisher length along the very direction
        check(q.natural + direction, q.expectation)


@every_family
@given(case=members)
@budget(0.6)
def test_fisher_is_the_hessian_of_the_log_partition_and_inverts_that_of_its_conjugate(family, case):
    """⟨δ, dμ⟩ = ‖whiten(δ)‖² along δ, and dλ = F⁻¹dμ brings δ back."""
    q, _, direction = draw(family, case)
    change = moments_along(q, direction)
    curvature = pairing(direction, change)
    back = q.natural.from_vector(
        derivative(lambda t: q.with_expectation(q.expectation + t * change).natural.to_vector(), STEP)
    )
    # ⟨δ, dμ⟩ has terms of size ‖δ‖‖dμ‖ and differences of μ rounded by ε‖μ‖
    allowed = difference_error(norm(direction) * norm(q.expectation))
    assert abs(curvature - q.whiten(direction) @ q.whiten(direction)) <= allowed
    with fails:
        assert abs(curvature - 1.01 * q.whiten(direction) @ q.whiten(direction)) <= allowed
    root = np.sqrt(np.linalg.eigvalsh(fisher_matrix(q))[0])
    inverse_error = 1e-7 + 1e3 * EPS / STEP * norm(q.expectation) / root
    assert np.linalg.norm(q.whiten(back - direction)) <= inverse_error
    with fails:
        assert np.linalg.norm(q.whiten(back + direction)) <= inverse_error


def bregman(q, p):
    """A's divergence from λ_q to λ_p, that is with μ_q: KL(q‖p)."""
    return p.log_partition - q.log_partition - pairing(p.natural - q.natural, q.expectation)


def conjugate_bregman(q, p):
    """A*'s divergence, with the arguments in the other order."""
    return q.conjugate - p.conjugate - pairing(p.natural, q.expectation - p.expectation)


def check_kl(q, p, first, second, exact=1.0):
    size = abs(p.log_partition) + abs(q.log_partition) + (norm(p.natural) + norm(q.natural)) * norm(q.expectation)
    size += norm(p.natural) * norm(p.expectation)
    assert abs(exact * q.kl(p) - bregman(first, second)) <= 1e2 * EPS * (1 + size)
    assert abs(exact * q.kl(p) - conjugate_bregman(first, second)) <= 1e2 * EPS * (1 + size)


@every_family
@given(case=members)
@budget(0.6)
def test_kl_is_the_bregman_divergence_of_both_potentials(family, case):
    q, p, _ = draw(family, case)
    check_kl(q, p, q, p)
    assert q.kl(p) > 0
    with fails:
        check_kl(q, p, q, p, exact=0.5)


@pytest.mark.parametrize("family", [name for name in CONJUGATE if name not in ("fixed", "isotropic")])
def test_kl_is_not_the_divergence_in_the_other_order(family):
    """Some: members may be alike. With a fixed precision KL is symmetric."""

    def swapped(case):
        q, p, _ = draw(family, case)
        check_kl(q, p, p, q)

    assert_some_fail(swapped, members)


@every_family
@given(case=members)
@budget(0.6)
def test_kl_has_the_gradient_of_the_client_step(family, case):
    """∇_{μ_q} KL(q‖p) = λ_q − λ_p (below Eq. 32)."""
    q, p, direction = draw(family, case)
    change = moments_along(q, direction)
    slope = derivative(lambda t: q.with_expectation(q.expectation + t * change).kl(p), STEP)

    def check(gradient):
        # the factorisations behind ∇A* and KL add up d products for each entry
        size = q.dim * (q.kl(p) + (norm(q.natural) + norm(p.natural)) * (norm(change) + norm(q.expectation)))
        assert abs(slope - pairing(gradient, change)) <= difference_error(size)

    check(q.natural - p.natural)
    with fails:
        check(p.natural - q.natural + direction)


# ----------------------------------------------------------------------------------------------------
# Natural gradients
# ----------------------------------------------------------------------------------------------------

losses = st.sampled_from(["logistic", "poisson", "squares", "softmax2"])
smooth = cases(max_d=4, max_clients=1, max_decades=1.0)


def expectation_of(name, family, case):
    """q, and E_q[ℓ] as a function of q."""
    (client,) = team(name, data(name, case))
    prior = member(family, case, dim=n_parameters(name, case), delta=1.0)
    rule = client.check(prior, Exact())
    return prior, lambda q: client.expect(q, rule)


@pytest.mark.parametrize("family", GAUSSIANS)
@given(name=losses, case=smooth)
@budget(0.4)
def test_natural_gradients_are_gradients_along_moments(family, name, case):
    """d E_q[ℓ] = ⟨∇_μE_q[ℓ], dμ⟩ = ⟨F∇_μE_q[ℓ], dλ⟩: the natural gradient is F⁻¹ times the gradient in λ."""
    q, expect = expectation_of(name, family, case)
    natural = expect(q).natural_gradient
    direction = unit_direction(q, case.other(2).rng)
    change = moments_along(q, direction)
    in_natural = derivative(lambda t: expect(q.with_natural(q.natural + t * direction)).value, STEP)
    in_moments = derivative(lambda t: expect(q.with_expectation(q.expectation + t * change)).value, STEP)

    def check(gradient):
        allowed = 1e2 * difference_error(expect(q).value, norm(gradient) * norm(change))
        assert abs(in_moments - pairing(gradient, change)) <= allowed
        assert abs(in_natural - q.whiten(gradient) @ q.whiten(direction)) <= allowed

    check(natural)
    with fails:
        check(natural + 0.01 * direction)


def wiggled(q, mean, covariance):
    return FullGaussian.from_covariance(q.mean + mean, q.covariance + covariance)


@given(name=losses, case=smooth)
def test_bonnet_and_price(name, case):
    """∂E/∂m = E[∇ℓ] and ∂E/∂Σ = ½E[∇²ℓ] (Bonnet, Price), as directional derivatives in (m, Σ)."""
    q, expect = expectation_of(name, "full", case)
    rng, d = case.other(2).rng, q.dim
    root = np.linalg.cholesky(q.covariance)
    push, symmetric = root @ rng.standard_normal(d) / np.sqrt(d), spd(rng, d, 1.0)
    bend = 0.3 * root @ (symmetric / np.linalg.norm(symmetric, 2)) @ root.T  # stays positive definite
    here = expect(q)
    hessian = here.curvature.dense()
    by_mean = derivative(lambda t: expect(wiggled(q, t * push, 0.0)).value, STEP)
    by_covariance = derivative(lambda t: expect(wiggled(q, 0.0, t * bend)).value, STEP)
    allowed = 1e2 * difference_error(here.value, np.abs(here.gradient).max(), np.abs(hessian).max())

    def check(factor, half):
        assert abs(by_mean - factor * here.gradient @ push) <= allowed
        assert abs(by_covariance - half * np.vdot(hessian, bend)) <= allowed

    check(1.0, 0.5)
    with fails:
        check(1.0, 1.0)
    with fails:
        check(-1.0, 0.5)


def test_under_sampled_points_bonnet_holds_and_price_does_not():
    """Some. E over m + σz differentiates to E[∇ℓ] for any points; the ½ E[∇²ℓ] needs them to be normal.

    This is why the solver is driven by the natural gradient and not by a line search on the sampled objective.
    """

    def slopes(case):
        (client,) = team("logistic", data("logistic", case))
        q, rule = member("full", case), MonteCarlo(8)
        here, rng = client.expect(q, rule), case.other(2).rng
        push = rng.standard_normal(q.dim)
        by_mean = derivative(lambda t: client.expect(wiggled(q, t * push, 0.0), rule).value, STEP)
        by_scale = derivative(lambda t: client.expect(wiggled(q, 0.0, t * q.covariance), rule).value, STEP)
        price = 0.5 * np.vdot(here.curvature.dense(), q.covariance)
        return abs(by_mean - here.gradient @ push), abs(by_scale - price), here.value

    def bonnet(case):
        error, _, value = slopes(case)
        assert error <= 1e2 * difference_error(value)

    def price(case):
        _, error, value = slopes(case)
        assert error <= 1e2 * difference_error(value)

    for seed in range(10):
        bonnet(Case(d=1 + seed % 4, n_clients=1, rows=5, decades=1.0, skew=0.0, seed=seed))
    assert_some_fail(price, smooth)
