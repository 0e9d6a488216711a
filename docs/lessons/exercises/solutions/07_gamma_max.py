"""|1 − γg|² = 1 − 2γ Re g + γ²|g|² < 1 means γ < 2 Re g/|g|², and the smallest of these counts."""

import numpy as np


def gamma_max(B):
    """Return the largest γ for symmetric B_k, shape (K, n, n)."""
    K, n = B.shape[:2]
    P = np.linalg.solve(np.eye(n) + B, np.broadcast_to(np.eye(n), B.shape))
    G = np.block([[(j == k) * P[k] + np.eye(n) - P[k] for j in range(K)] for k in range(K)])
    g = np.linalg.eigvals(G)
    return float(np.min(2.0 * g.real / np.abs(g) ** 2))


def wrong(B):
    """Take the rule of gradient descent, 2/max|g|, which holds for real eigenvalues alone."""
    K, n = B.shape[:2]
    P = np.linalg.solve(np.eye(n) + B, np.broadcast_to(np.eye(n), B.shape))
    G = np.block([[(j == k) * P[k] + np.eye(n) - P[k] for j in range(K)] for k in range(K)])
    return float(2.0 / np.max(np.abs(np.linalg.eigvals(G))))


MISTAKE = {"gamma_max": wrong}
