"""Solve a quadratic in one round.

Under a full covariance, client k's ½‖X_kθ − y_k‖² has *constant* −∇_μL_k = c_k = (X_kᵀy_k, X_kᵀX_k). Eq. 32, η_k −
c_k + ρ(λ_k − λ_g) = 0, is then solved by hand. Write it; which ρ makes the first round exact (Prop. D.1)?
"""

import numpy as np


def client(own, dual, server, rho):
    """Return λ_k from c_k, η_k and λ_g, all of the same shape."""
    raise NotImplementedError("solve Eq. 32 for λ_k")


def one_round_rho(K):
    """Return the ρ of Prop. D.1."""
    raise NotImplementedError


def check(client, one_round_rho):
    """Run BayesADMM from the prior and compare with prior + Σc_k."""
    rng = np.random.default_rng(1)
    K, prior, own = 3, rng.standard_normal(5), rng.standard_normal((3, 5))
    target = prior + own.sum(axis=0)

    def errors(rho, rounds):
        server, duals, found = prior, np.zeros_like(own), []
        for _ in range(rounds):
            beliefs = np.array([client(own[k], duals[k], server, rho) for k in range(K)])
            duals = duals + rho * (beliefs - server)
            assert np.allclose(duals, own), "the duals are right after the first round"
            alpha = 1.0 / (1.0 + rho * K)
            server = (1.0 - alpha) * beliefs.mean(axis=0) + alpha * (prior + duals.sum(axis=0))
            found.append(np.linalg.norm(server - target))
        return np.array(found)

    assert errors(one_round_rho(K), 1)[0] < 1e-12, "one round is exact"
    slow = errors(1.0, 5)
    assert np.allclose(slow[1:] / slow[:-1], 0.75), "ρ = 1 forgets by ρK/(1 + ρK) a round"


if __name__ == "__main__":
    check(client, one_round_rho)
    print("Right.")
