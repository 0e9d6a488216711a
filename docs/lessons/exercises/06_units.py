"""Change the units.

A user measures the same coefficients in other units, θ′ = Dθ. Write what becomes of the natural parameters (Sm, S) of
a Gaussian, and of its expectation parameters (m, M) with M = mmᵀ + S⁻¹.
"""

import numpy as np


def natural_in_new_units(linear, precision, D):
    """Return (S′m′, S′)."""
    raise NotImplementedError("densities of θ′ = Dθ: what is S′?")


def expectation_in_new_units(mean, second, D):
    """Return (m′, M′)."""
    raise NotImplementedError


def check(natural_in_new_units, expectation_in_new_units):
    """Compare with samples' algebra, and show that λ moves against μ: ⟨λ, μ⟩ keeps its value."""
    rng = np.random.default_rng(2)
    root, mean, D = rng.standard_normal((3, 3)), rng.standard_normal(3), rng.standard_normal((3, 3)) + 3 * np.eye(3)
    precision = root @ root.T + np.eye(3)
    second = np.outer(mean, mean) + np.linalg.solve(precision, np.eye(3))
    linear, S = natural_in_new_units(precision @ mean, precision, D)
    m, M = expectation_in_new_units(mean, second, D)
    assert np.allclose(np.linalg.solve(S, linear), D @ mean), "the mean of Dθ is Dm"
    assert np.allclose(m, D @ mean)
    assert np.allclose(M, np.outer(m, m) + np.linalg.solve(S, np.eye(3))), "both describe one distribution"
    before = precision @ mean @ mean - 0.5 * np.sum(precision * second)
    assert np.isclose(linear @ m - 0.5 * np.sum(S * M), before), "⟨λ, μ⟩ has no units"


if __name__ == "__main__":
    check(natural_in_new_units, expectation_in_new_units)
    print("Right.")
