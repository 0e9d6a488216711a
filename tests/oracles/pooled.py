"""How far a run with edges <= tol can be from the pooled answer."""

import functools

import numpy as np

import bayesadmm_np as ba
from bayesadmm_np.losses import Auto, Delta
from oracles.geometry import whitened_jacobian
from oracles.problems import DIM, prior, team

TOL = 1e-6


@functools.cache
def reference(name, family, order=0, seed=0):
    """The pooled answer, the norms of the clients' Jacobians, and the inverse stiffness of the pooled gradient."""
    clients, prior_ = team(name, seed), prior(family, DIM[name])
    rule = Delta(order) if order else Auto()
    pooled = ba.solve_pooled(clients, prior_, expectation=rule)
    maps = [
        whitened_jacobian(pooled.posterior, lambda q, c=c: c.expect(q, c.check(prior_, rule)).natural_gradient)
        for c in clients
    ]
    lipschitz = [np.linalg.norm(J, 2) for J in maps]
    whole = prior_.prior_weight * np.eye(len(maps[0])) + sum(maps)
    return pooled, lipschitz, 1 / np.linalg.svd(whole, compute_uv=False)[-1]


def assert_pooled(result, reference_, *, exact, tol=TOL):
    """The derived bounds, with 5 % for the differences' error and for the metrics of neighbouring points.

    wλ_g − η₀ + Σ∇_k(q_g) is the gather edge, plus K natural-gradient edges, plus Σ[∇_k(q_g) − ∇_k(q_k)], whose terms
    are at most ‖J_k‖ times a broadcast edge (and w times one where the prior sits at the clients). The pooled gradient
    map has Jacobian J, so the answer is off by at most ‖J⁻¹‖ times that residual and that of the reference.
    """
    pooled, lipschitz, softness = reference_
    q, weight = result.posterior, result.prior.prior_weight
    assert result.status is ba.Status.CONVERGED
    assert result.history[-1].edges.largest <= tol
    stationarity = result.certificate().pooled
    if not q.learns_precision:  # certified by the Newton decrement; the bounds here are in the Fisher metric
        assert stationarity <= 1.05 * tol
        gradient = sum((one.natural_gradient for one in result.at_server), weight * q.natural - result.prior.natural)
        stationarity = q.fisher_norm(gradient)
    bound = 1.05 * tol * (1 + len(lipschitz) + sum(lipschitz) + weight)
    assert stationarity <= bound
    off = q.fisher_norm(q.natural - pooled.posterior.natural)
    assert off <= 1.05 * softness * (stationarity + pooled.residual) + 1e-12
    # where gradient and value belong together (not for sampled rules and the second-order delta method) the objective
    # is stationary there: its excess is of second order in `off` (per parameter)
    excess = result.objective[-1] - pooled.objective
    assert not exact or abs(excess) <= q.natural.size * (1 + sum(lipschitz) + weight) * off**2 + 1e-11 * abs(
        pooled.objective
    )
