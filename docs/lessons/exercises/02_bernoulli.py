"""Bring an exponential family to life: the coin.

q(θ) ∝ exp(λθ) on θ ∈ {0, 1} has the log-partition A(λ) = log(1 + exp λ). Everything else is a derivative of it. Write
the map to μ = E[θ], its inverse, the Fisher information F = A″(λ), and KL(p ‖ q) as a gap of A.
"""

import numpy as np


def log_partition(natural):
    """Return A(λ)."""
    return np.logaddexp(0.0, natural)


def expectation(natural):
    """Return μ = ∇A(λ)."""
    raise NotImplementedError("differentiate A")


def natural(expectation):
    """Return λ for μ, the inverse map."""
    raise NotImplementedError("solve μ = ∇A(λ) for λ")


def fisher(natural):
    """Return F(λ) = ∂μ/∂λ."""
    raise NotImplementedError("differentiate once more")


def kl(p, q):
    """Return KL(p ‖ q) for natural parameters p and q, from A alone (Eq. 14's gap)."""
    raise NotImplementedError("how far is A(q) above the tangent of A at p?")


def check(expectation, natural, fisher, kl):
    """Hold a solution against differences of A and sums over the two outcomes."""
    step = 1e-5
    for point in (-3.0, 0.2, 1.7):
        slope = (log_partition(point + step) - log_partition(point - step)) / (2 * step)
        assert np.isclose(expectation(point), slope), "μ is the slope of A"
        assert np.isclose(natural(expectation(point)), point), "the two maps are inverse"
        bend = (expectation(point + step) - expectation(point - step)) / (2 * step)
        assert np.isclose(fisher(point), bend), "F is ∂μ/∂λ, and not its inverse"
        for other in (-1.0, 2.0):
            p, q = (np.exp(x * np.arange(2) - log_partition(x)) for x in (point, other))
            assert np.isclose(kl(point, other), p @ np.log(p / q)), "KL is a gap of A"


if __name__ == "__main__":
    check(expectation, natural, fisher, kl)
    print("Right.")
