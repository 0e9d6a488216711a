"""The sum's weight 2ρ/(1 + ρK) never passes 2/K: a client with more than that share needs the prior's help."""

import numpy as np


def lost(prior, curvatures, rho):
    """Return the numbers of the clients in danger; S_0 (d,), D_j (K, d)."""
    weight = 2.0 * rho / (1.0 + rho * len(curvatures))
    kept = rho * prior + weight * curvatures.sum(axis=0) - curvatures
    return np.flatnonzero((kept <= 0.0).any(axis=1))


def smallest_rho(prior, curvatures, ceiling):
    """Return the smallest ρ that spares all, to 1e-6, or None."""
    if len(lost(prior, curvatures, ceiling)):
        return None
    low, high = 0.0, ceiling
    while high - low > 1e-6:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if len(lost(prior, curvatures, middle)) else (low, middle)
    return high


def wrong(prior, curvatures, rho):
    """Forget that the weight of the sum saturates."""
    kept = rho * prior + 2.0 * rho * curvatures.sum(axis=0) - curvatures
    return np.flatnonzero((kept <= 0.0).any(axis=1))


MISTAKE = {"lost": wrong}
