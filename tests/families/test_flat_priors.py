"""Flat priors: what they are the limit of, where they work, and where they are refused in words."""

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np.families import FullGaussian
from bayesadmm_np.families.precision import DensePrecision
from bayesadmm_np.splitting.average import as_step
from bayesadmm_np.splitting.certificate import PooledObjective
from bayesadmm_np.splitting.distance import FLAT
from oracles.problems import assert_close, spd, team

M = ba.methods
DELTA = ba.losses.Delta(2)


def flat(d, mean=None):
    return FullGaussian(np.zeros(d) if mean is None else mean, 0.0)


def kl_gap(q, p, precision, eps, entropy=1.0):
    """KL of q to a proper prior that is nearly flat, less that to the flat one, of which `entropy` is kept."""
    near, limit = FullGaussian(p, precision + eps * np.eye(q.dim)), FullGaussian(p, precision)
    return q.kl(near) - (q.kl(limit) + (1.0 - entropy) * q.entropy)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_the_kl_is_that_to_nearly_flat_priors_but_for_a_constant(rank, rng):
    root = np.array([[1.0, 2.0], [1.0, 2.0], [0.0, 1.0]])[:, :rank]  # whole numbers: singular without rounding
    precision, mean = root @ root.T, rng.standard_normal(3)
    qs = [FullGaussian(rng.standard_normal(3), spd(rng, 3)) for _ in range(4)]
    eps = 1e-7
    gaps = np.array([kl_gap(q, mean, precision, eps) for q in qs])
    constant = 1.5 * np.log(2 * np.pi) - 0.5 * np.linalg.slogdet(precision + eps * np.eye(3))[1]
    # the quadratics differ by ½ eps E‖θ − m‖², of at most some 20 here
    assert np.abs(gaps - constant).max() < 20 * eps
    # the broken twin, without the entropy, differs from q to q
    twin = np.array([kl_gap(q, mean, precision, eps, entropy=0.0) for q in qs])
    assert np.ptp(twin) > 0.1


def test_the_gradient_of_the_pooled_objective_vanishes_at_its_minimum(rng):
    """Central differences of Σ E_q[ℓ_k] + KL(q‖flat) in (m, S); the twin without the entropy has a slope."""
    losses, prior = team("logistic", sizes=(20, 30)), flat(3)
    best = ba.solve_pooled(losses, prior).posterior
    rule = ba.losses.Exact()

    def slope(direction, with_entropy):
        def value(t):
            q = best.with_natural(best.natural + t * direction)
            total = sum(loss.expect(q, rule).value for loss in losses) + q.kl(prior)
            return total if with_entropy else total + q.entropy

        return (value(1e-4) - value(-1e-4)) / 2e-4

    size = np.abs(best.precision).max()
    for _ in range(5):
        symmetric = rng.standard_normal((3, 3))
        direction = best.natural_from(rng.standard_normal(3), (0.1 * (symmetric + symmetric.T),))
        assert abs(slope(direction, True)) < 1e-6 * size  # differences of second order: h² times the third derivative
        assert abs(slope(direction, False)) > 1e-4


def test_semidefinite_precisions_are_flat_and_indefinite_ones_are_refused():
    wide = np.diag([1e8, 1.0, 0.0])
    assert not FullGaussian(np.zeros(3), wide).is_proper
    assert not FullGaussian(np.zeros(2), np.ones((2, 2))).is_proper
    assert FullGaussian(np.zeros(2), 1e-300).is_proper
    for bad in (np.diag([1e8, 1.0, -1e-9]), np.array([[0.0, 1.0], [1.0, 1.0]]), np.array([[1.0, 1.1], [1.1, 1.0]])):
        with pytest.raises(ValueError, match="precision must be positive semidefinite"):
            FullGaussian(np.zeros(len(bad)), bad)
    with pytest.raises(ValueError, match="precision must be >= 0"):
        FullGaussian(np.zeros(2), -1.0)
    for other in (ba.families.DiagonalGaussian, ba.families.FixedPrecisionGaussian, ba.families.IsotropicGaussian):
        with pytest.raises(ValueError, match="precision must be"):
            other(np.zeros(2), 0.0)


@pytest.mark.parametrize("d", [5, 60, 200])
def test_a_sum_of_squares_is_semidefinite_whatever_rounding_makes_of_its_zeros(d, rng):
    """Its zero eigenvalues are computed to within 2d² ulp of the largest; a millionth below zero is no rounding."""
    rows = rng.standard_normal((3, d)) * 10.0 ** rng.uniform(-3, 3, d)
    gram = rows.T @ rows
    units = np.sqrt(np.diagonal(gram))
    assert DensePrecision(gram).is_semidefinite()
    assert not DensePrecision(gram - 1e-6 * np.outer(units, units) * np.eye(d)).is_semidefinite()


def test_what_needs_a_distribution_says_so():
    q = flat(2)
    questions = [
        *(lambda name=name: getattr(q, name) for name in ("covariance", "variance", "entropy", "log_partition")),
        lambda: q.expectation,
        lambda: q.log_density(np.zeros(2)),
        lambda: q.sample(np.random.default_rng(0)),
        *(lambda other=other: q.kl(other) for other in (q, q.start())),
        lambda: q.whiten(q.natural),
    ]
    for ask in questions:
        with pytest.raises(ValueError, match="a flat prior"):
            ask()


def test_a_run_needs_a_distribution_to_begin_at():
    losses = team("logistic", sizes=(20, 30))
    with pytest.raises(ValueError, match="prior must be a distribution for PVI to begin at, got a flat one"):
        ba.run(M.PVI(), losses, flat(3))
    with pytest.raises(ValueError, match="sites and prior must add up to a distribution"):
        ba.run(M.PVI(), losses, flat(3), sites=[flat(3).start().natural.zeros()] * 2)


@pytest.mark.parametrize("row", [M.PVI(), M.FedLapCov(), M.Newton()], ids=lambda row: row.name)
def test_runs_from_sites_reach_the_pooled_fit(row, tmp_path):
    losses, prior = team("logistic", sizes=(20, 30)), flat(3, np.array([0.1, 0.2, 0.3]))
    sites = ba.clients.own_fits(losses, prior)
    path = tmp_path / "state"
    ba.run(row, losses, prior, rounds=2, sites=sites, checkpoint=path, tol=1e-9)
    result = ba.run(row, losses, prior, sites=sites, resume=path, tol=1e-9)
    assert result.status is ba.Status.CONVERGED
    pooled = ba.solve_pooled(losses, prior, expectation=as_step(row).row.expectation, tol=1e-10)
    assert_close(result.posterior.natural, pooled.posterior.natural, 1e-7)
    assert result.certificate().distance.rigorous
    assert result.certificate().distance.sd_units < 1e-6
    # a flat prior has no mean: another one changes nothing but rounding
    other = ba.solve_pooled(losses, flat(3), expectation=as_step(row).row.expectation, tol=1e-10)
    assert_close(other.posterior.natural, pooled.posterior.natural, 1e-8)


def test_no_bound_comes_from_a_flat_prior():
    losses, prior = team("logistic", sizes=(20, 30)), flat(3)
    far = FullGaussian(np.array([30.0, -30.0, 30.0]), 1.0)
    for rule in (DELTA, ba.losses.Exact()):
        found = PooledObjective(prior, far, [loss.expect(far, rule) for loss in losses]).distance
        assert not np.isfinite(found.sd_units)
    near = FullGaussian(np.zeros(3), 0.01)
    found = PooledObjective(prior, near, [loss.expect(near, DELTA) for loss in losses]).distance
    assert found.reason == FLAT
    assert FLAT in str(found)


def test_separable_data_have_no_maximum_likelihood():
    X = np.column_stack([np.ones(6), np.arange(6.0)])
    losses = [ba.losses.Logistic(X[::2], [0, 0, 1]), ba.losses.Logistic(X[1::2], [0, 1, 1])]
    with pytest.raises(RuntimeError, match="solve_pooled"):
        ba.solve_pooled(losses, flat(2), expectation=DELTA)
