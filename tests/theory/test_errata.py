"""docs/notation.md: the corrected lines of the papers hold, and the printed ones do not."""

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np import methods as M
from oracles.problems import prior, team


def test_the_multipliers_step_maximises_the_corrected_eq_26():
    client, server, old, rho = np.array([2.0, -1.0]), np.array([0.5, 0.5]), np.array([0.3, 0.1]), 0.7
    step = old + rho * (client - server)

    def slope(sign):
        """The gradient of sign · vᵀ(θ_k − θ_g) − ‖v − v_old‖²/2ρ at the step."""
        return sign * (client - server) - (step - old) / rho

    assert np.abs(slope(+1.0)).max() < 1e-15
    assert np.abs(slope(-1.0)).max() > 1.0  # as printed


def test_the_dual_is_minus_the_natural_gradient():
    """After Eq. 17; in the form of Eq. 33, at every round."""
    clients, prior_ = team("logistic"), prior("full", 3)
    result = ba.run(M.BayesADMM(1.0), clients, prior_, rounds=3, tol=1e-300)
    for client, q, site in zip(clients, result.client_posteriors, result.sites, strict=True):
        gradient = client.expect(q, ba.losses.Exact()).natural_gradient
        assert q.fisher_norm(site + gradient) < 1e-7  # the client's own tolerance
        assert q.fisher_norm(site - gradient) > 0.1  # as printed


def test_maximum_entropy_has_the_corrected_eq_30():
    """On four points: the derivative by q of the Lagrangian at q = h exp(λT − α)."""
    h, T, multiplier = np.array([0.1, 0.4, 0.3, 0.2]), np.array([-1.0, 0.0, 1.0, 3.0]), 0.6
    alpha = np.log(h @ np.exp(multiplier * T))
    q = h * np.exp(multiplier * T - alpha)
    slope = np.log(q / h) + 1.0
    assert np.abs(slope - multiplier * T + (alpha - 1.0)).max() < 1e-14
    assert np.ptp(slope + multiplier * T) > 1.0  # as printed: no α makes it vanish


def test_the_kl_of_diagonal_gaussians_has_the_corrected_eq_63():
    own = ba.families.DiagonalGaussian([0.3, -0.2], [2.0, 0.5])
    other = ba.families.DiagonalGaussian([0.1, 0.4], [1.5, 0.7])
    wide = ba.families.DiagonalGaussian([0.3, -0.2], [0.4, 0.1])

    def kl(q, logs):
        """Eq. 63 without its constant, which depends on q_g alone."""
        far = other.precision @ (q.mean - other.mean) ** 2
        return 0.5 * ((other.precision / q.precision + np.log(logs)).sum() + far)

    difference = own.kl(other) - wide.kl(other)
    assert kl(own, own.precision) - kl(wide, wide.precision) == pytest.approx(difference, rel=1e-13)
    # read as the server's precision, the printed log s_i would be a constant
    assert abs(kl(own, other.precision) - kl(wide, other.precision) - difference) > 0.1


def test_the_natural_gradient_of_kl_has_the_corrected_sign_of_the_prior():
    """App. B.2: ∇_μ E_q[ℓ_0] = −η_0 for ℓ_0 = −⟨η_0, T⟩, so that ∇_μ KL is λ + ∇_μ E_q[ℓ_0]; central differences."""
    q, pi = ba.families.FullGaussian([0.3, -0.2], 2.0), ba.families.FullGaussian([0.5, 0.4], 1.5)
    gradient_of_loss, step = -1.0 * pi.natural, 1e-5 * ba.families.FullGaussian([1.0, 2.0], 0.7).natural
    right, left = q.with_natural(q.natural + step), q.with_natural(q.natural - step)

    def missed(sign):
        slope = ba.families.pairing(q.natural + sign * gradient_of_loss, right.expectation - left.expectation)
        return abs(right.kl(pi) - left.kl(pi) - slope) / abs(slope)

    assert missed(+1.0) < 1e-8  # a relative error of the order of the step squared
    assert missed(-1.0) > 0.1  # as printed


def test_the_clients_problem_has_the_corrected_bracket_of_eq_49():
    """E_q[vᵀθ − ½ θᵀVθ] is ⟨η, μ⟩, as in Eq. 23; at the mean, as printed, the trace of the covariance is missing."""
    q, v, V = ba.families.FullGaussian([0.3, -0.2], 2.0), np.array([1.0, -0.5]), np.array([[0.7, 0.2], [0.2, 0.4]])
    pulled = v @ q.mean - 0.5 * q.mean @ V @ q.mean
    found = ba.families.pairing(ba.families.Natural(v, V), q.expectation)
    assert found == pytest.approx(pulled - 0.5 * np.trace(V @ q.covariance), rel=1e-14)
    assert abs(found - pulled) > 0.1  # as printed
