"""Differentiate an expected Poisson loss by μ.

For a count y with rate exp(xθ) the loss is ℓ(θ) = exp(xθ) − yxθ, and q = N(m, v) in one coordinate. Find g = E_q[ℓ′]
and H = E_q[ℓ″] (Bonnet, Price: no other expectation is needed), and from them ∇_μ E_q[ℓ] in the library's
coordinates, T(θ) = (θ, −½θ²).
"""

import numpy as np


def natural_gradient(m, v, x, y):
    """Return the two entries of ∇_μ E_q[ℓ]."""
    raise NotImplementedError("E_q[exp(xθ)] = exp(xm + ½x²v)")


def check(natural_gradient):
    """Hold a solution against differences along μ = (m, −½(m² + v))."""

    def expected(mu, x, y):
        m, v = mu[0], -2.0 * mu[1] - mu[0] ** 2
        return np.exp(x * m + 0.5 * x**2 * v) - y * x * m

    for m, v, x, y in ((0.3, 0.5, 1.2, 2.0), (-1.0, 0.1, 2.0, 0.0)):
        mu = np.array([m, -0.5 * (m**2 + v)])
        steps = 1e-6 * np.eye(2)
        numeric = [(expected(mu + step, x, y) - expected(mu - step, x, y)) / 2e-6 for step in steps]
        assert np.allclose(natural_gradient(m, v, x, y), numeric, rtol=1e-6), "it is (g − Hm, −H)"


if __name__ == "__main__":
    check(natural_gradient)
    print("Right.")
