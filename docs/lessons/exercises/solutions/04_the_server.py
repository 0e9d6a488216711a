"""Collect λ_g in Eq. 53: (1 + ρK) λ_g = η_0 + Ση_k + ρK · mean λ_k."""

import numpy as np


def gather(prior, duals, beliefs, rho):
    """Return λ_g from η_0 (n,), η_k (K, n) and λ_k (K, n)."""
    alpha = 1.0 / (1.0 + rho * len(duals))
    return (1.0 - alpha) * np.mean(beliefs, axis=0) + alpha * (prior + duals.sum(axis=0))


def wrong(prior, duals, beliefs, rho):
    """Exchange the two weights."""
    alpha = 1.0 / (1.0 + rho * len(duals))
    return alpha * np.mean(beliefs, axis=0) + (1.0 - alpha) * (prior + duals.sum(axis=0))


MISTAKE = {"gather": wrong}
