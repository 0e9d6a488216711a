"""λ transforms with D⁻¹ and μ with D, so adding a difference of μ to η adds metres to 1/metres."""

import numpy as np


def natural_in_new_units(linear, precision, D):
    """Return (S′m′, S′) = (D⁻ᵀSm, D⁻ᵀSD⁻¹)."""
    return np.linalg.solve(D.T, linear), np.linalg.solve(D.T, np.linalg.solve(D.T, precision).T)


def expectation_in_new_units(mean, second, D):
    """Return (m′, M′) = (Dm, DMDᵀ)."""
    return D @ mean, D @ second @ D.T


def wrong(linear, precision, D):
    """Transform the natural parameter as a moment."""
    return expectation_in_new_units(linear, precision, D)


MISTAKE = {"natural_in_new_units": wrong}
