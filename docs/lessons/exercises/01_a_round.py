"""Write one round of ADMM for least squares.

Client k holds ℓ_k(θ) = ½‖X_k θ − y_k‖², the server ½δ‖θ‖². Take Eq. 5, 6 and 7 in their order. Nothing but θ_k, v_k
and θ_g passes between client and server.
"""

import numpy as np


def admm_round(X, y, theta_g, v, rho, delta):
    """Return θ_k of all clients (K, d), their multipliers v_k (K, d) and the server's θ_g (d,)."""
    raise NotImplementedError("write Eq. 5, 6 and 7")


def check(admm_round):
    """Hold a solution against the pooled least-squares solution and Eq. 8."""
    rng = np.random.default_rng(3)
    X = [rng.standard_normal((rows, 2)) for rows in (8, 5, 12)]
    y = [rng.standard_normal(len(part)) for part in X]
    theta_g, v = np.zeros(2), np.zeros((3, 2))
    for _ in range(200):
        theta, v, theta_g = admm_round(X, y, theta_g, v.copy(), rho=4.0, delta=0.5)
        for k in range(3):
            assert np.allclose(v[k], -X[k].T @ (X[k] @ theta[k] - y[k])), "Eq. 8: v_k is the negative gradient"
    rows, values = np.vstack(X), np.concatenate(y)
    pooled = np.linalg.solve(rows.T @ rows + 0.5 * np.eye(2), rows.T @ values)
    assert np.allclose(theta_g, pooled), "after 200 rounds θ_g is the pooled solution"


if __name__ == "__main__":
    check(admm_round)
    print("Right.")
