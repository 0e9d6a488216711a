"""Close the circuit at the server.

Eq. 53 asks for λ_g with λ_g − η_0 − Σ_kη_k + ρΣ_k(λ_g − λ_k) = 0. Write it as Eq. 54 does: a mean of what the clients
believe and of what their duals add up to.
"""

import numpy as np


def gather(prior, duals, beliefs, rho):
    """Return λ_g from η_0 (n,), η_k (K, n) and λ_k (K, n)."""
    raise NotImplementedError("(1 − α) mean λ_k + α(η_0 + Ση_k), with which α?")


def check(gather):
    """Hold a solution against Eq. 53, and against the edge that holds from round 1 on when ρ = 1/K."""
    rng = np.random.default_rng(0)
    for rho in (0.25, 1.0, 7.0):
        prior, duals, beliefs = rng.standard_normal(3), rng.standard_normal((4, 3)), rng.standard_normal((4, 3))
        found = gather(prior, duals, beliefs, rho)
        gradient = found - prior - duals.sum(axis=0) + rho * (found - beliefs).sum(axis=0)
        assert np.allclose(gradient, 0.0), "Eq. 53 vanishes"
    rho, server, duals = 0.25, prior.copy(), np.zeros((4, 3))
    for _ in range(3):
        beliefs = server + rng.standard_normal((4, 3))  # whatever the clients answer
        duals = duals + rho * (beliefs - server)
        server = gather(prior, duals, beliefs, rho)
        assert np.allclose(server, prior + duals.sum(axis=0)), "the gather edge holds from round 1 on"


if __name__ == "__main__":
    check(gather)
    print("Right.")
