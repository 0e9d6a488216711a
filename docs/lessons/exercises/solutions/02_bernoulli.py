"""A is convex, so F > 0, so μ rises with λ and the map can be inverted: the log-odds."""

import numpy as np


def expectation(natural):
    """Return μ = ∇A(λ)."""
    return 1.0 / (1.0 + np.exp(-natural))


def natural(expectation):
    """Return λ for μ, the inverse map."""
    return np.log(expectation / (1.0 - expectation))


def fisher(natural):
    """Return F(λ) = ∂μ/∂λ, the variance of θ."""
    return expectation(natural) * (1.0 - expectation(natural))


def kl(p, q):
    """Return KL(p ‖ q) = A(q) − A(p) − (q − p) ∇A(p)."""
    return np.logaddexp(0.0, q) - np.logaddexp(0.0, p) - (q - p) * expectation(p)


def wrong(natural):
    """Take the Fisher information of μ for that of λ."""
    return 1.0 / fisher(natural)


MISTAKE = {"fisher": wrong}
