"""With v = −2μ₂ − m² a step of μ₁ moves the mean *and* the variance: hence the term −Hm."""

import numpy as np


def natural_gradient(m, v, x, y):
    """Return the two entries of ∇_μ E_q[ℓ]."""
    rate = np.exp(x * m + 0.5 * x**2 * v)
    g, H = x * rate - y * x, x**2 * rate
    return np.array([g - H * m, -H])


def wrong(m, v, x, y):
    """Forget that the variance moves with μ₁."""
    right = natural_gradient(m, v, x, y)
    return np.array([right[0] - right[1] * m, right[1]])


MISTAKE = {"natural_gradient": wrong}
