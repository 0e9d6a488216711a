"""The minima of Eq. 5 and 7 are linear systems: their gradients vanish."""

import numpy as np


def admm_round(X, y, theta_g, v, rho, delta):
    """Return θ_k of all clients (K, d), their multipliers v_k (K, d) and the server's θ_g (d,)."""
    K, d = v.shape
    theta = np.empty((K, d))
    for k in range(K):
        theta[k] = np.linalg.solve(X[k].T @ X[k] + rho * np.eye(d), X[k].T @ y[k] - v[k] + rho * theta_g)  # Eq. 5
    v = v + rho * (theta - theta_g)  # Eq. 6
    return theta, v, (v.sum(axis=0) + rho * theta.sum(axis=0)) / (delta + rho * K)  # Eq. 7


def wrong(X, y, theta_g, v, rho, delta):
    """Move the multipliers the other way."""
    theta, new, _ = admm_round(X, y, theta_g, v, rho, delta)
    v = 2 * v - new
    return theta, v, (v.sum(axis=0) + rho * theta.sum(axis=0)) / (delta + rho * len(v))


MISTAKE = {"admm_round": wrong}
