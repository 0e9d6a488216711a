"""Say before the run which client is lost.

BayesADMM starts at a prior of precision S_0, and site j answers round 1 with V_j = D_j, its diagonal curvature. In
round 2 client k's proximal term has the precision ρS_g − V_k = ρS_0 + 2ρ/(1 + ρK) Σ_jD_j − D_k. Where it is not
positive, the loss alone must hold the client. Say which clients are in this danger, and find the smallest ρ that
spares them all, if there is one below `ceiling`.
"""

import numpy as np


def lost(prior, curvatures, rho):
    """Return the numbers of the clients in danger; S_0 (d,), D_j (K, d)."""
    raise NotImplementedError("the criterion, coordinate by coordinate")


def smallest_rho(prior, curvatures, ceiling):
    """Return the smallest ρ that spares all, to 1e-6, or None."""
    raise NotImplementedError("its left side grows with ρ: bisect")


def check(lost, smallest_rho):
    """Take round 1 with the library, look at ρS_g − V_k, and stand on both sides of the smallest ρ."""
    import bayesadmm_np as ba

    prior = np.full(2, 0.5)
    family = ba.families.DiagonalGaussian(np.zeros(2), prior)
    for curvatures in (np.array([[9.0, 1.0], [1.0, 1.0], [1.0, 9.0]]), np.array([[4.0, 1.0], [1.0, 3.0], [3.0, 3.0]])):
        sites = [ba.losses.LeastSquares(np.diag(np.sqrt(D)), np.ones(2)) for D in curvatures]
        for rho in (0.3, 1.0, 5.0, 30.0):
            after = ba.run(ba.methods.BayesADMM(rho), sites, family, rounds=1)
            proximal = [rho * after.posterior.natural.precision - site.precision for site in after.sites]
            negative = [k for k, precision in enumerate(proximal) if np.min(precision) <= 0.0]
            assert list(lost(prior, curvatures, rho)) == negative, "round 1 of the library agrees"
        edge = smallest_rho(prior, curvatures, ceiling=100.0)
        assert len(lost(prior, curvatures, 0.99 * edge))
        assert not len(lost(prior, curvatures, 1.01 * edge))
    assert smallest_rho(np.zeros(2), np.array([[9.0, 1.0], [1.0, 1.0], [1.0, 9.0]]), 100.0) is None, "more than 2/3"


if __name__ == "__main__":
    check(lost, smallest_rho)
    print("Right.")
