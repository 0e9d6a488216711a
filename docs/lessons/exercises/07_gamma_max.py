"""Find the cliff of damping.

With α = ρ = 1, damped PVI is near its fixed point y ← (I − γG)y, where y stacks the K sites' deviations, G =
blockdiag(P_k) + (I − P_k)11ᵀ and P_k = (I + B_k)⁻¹: block (k, j) of G is δ_kj P_k + I − P_k. Each site's B_k is
given. Up to which γ is it stable?
"""

import numpy as np


def gamma_max(B):
    """Return the largest γ for symmetric B_k, shape (K, n, n)."""
    raise NotImplementedError("|1 − γg| < 1 for every eigenvalue g of G")


def check(gamma_max):
    """Compare with the opposed sites, with the library, and with rounds on both sides of the cliff."""
    import bayesadmm_np as ba

    opposed = gamma_max(np.array([[[0.09 * 23]], [[-0.9]]]))
    assert abs(opposed - 0.283) < 5e-4, "the two opposed sites: G has the eigenvalues 1 ± i√6.07"
    ones = np.ones((24, 24)) / 24  # one site measures the sum of the coefficients, the other all but the sum
    sums, rest = (
        ba.losses.LeastSquares(0.3 * np.ones((1, 24)), [1.0]),
        ba.losses.LeastSquares(np.eye(24) - ones, np.ones(24)),
    )
    clients = [sums, rest]
    rates = ba.local_rates(clients, ba.families.DiagonalGaussian(np.zeros(24), 0.01))
    B = np.array([0.5 * (matrix + matrix.T) for matrix in rates.curvatures])
    found = gamma_max(B)
    assert np.isclose(found, rates.gamma_max, rtol=1e-6), "the library finds the same cliff"
    for gamma, stable in ((0.95 * found, True), (1.05 * found, False)):
        assert (rates.factor(ba.methods.PVI(gamma)) < 1.0) == stable


if __name__ == "__main__":
    check(gamma_max)
    print("Right.")
