"""A solution of a client's problem against the end of its natural-gradient flow."""

import numpy as np

import bayesadmm_np as ba
from bayesadmm_np.clients import ClientStatus
from bayesadmm_np.families import Natural
from oracles.problems import expected_derivatives


def independent_target(problem, q):
    """λ_g − (η + ∇)/ρ with our own quadrature; (linear, dense precision)."""
    _, g, H = expected_derivatives("logistic", problem.loss.X, problem.loss.y, q.mean, q.covariance_matrix)
    if isinstance(q, ba.families.DiagonalGaussian):
        h = np.diag(H)
        gradient = Natural(g - h * q.mean, -h)
    else:
        gradient = Natural(g - H @ q.mean, -H)
    return problem.anchor.natural - (problem.site + gradient) * (1 / problem.rho)


def check_against_flow(problem, solution, outcome):
    verdict, q, to_go = outcome
    if verdict == "left":
        assert solution.status is ClientStatus.ILL_POSED
        return
    assert solution.status is ClientStatus.CONVERGED
    answer = solution.posterior
    # twice the flow's own estimate, and the solver's residual of 1e-8
    assert answer.fisher_norm(answer.natural - q.natural) <= 2 * to_go + 1e-7
    residual = answer.fisher_norm(answer.natural - independent_target(problem, answer))
    assert residual <= 1.01e-8  # the solver's tolerance, by an independent quadrature
