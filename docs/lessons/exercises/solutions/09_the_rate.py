"""A linear map is known by what it does to unit vectors; its eigenvalues say the rest."""

import numpy as np


def factor(b, rho):
    """Return the factor by which a round shortens errors in the end."""
    K = len(b)
    alpha = 1.0 / (1.0 + rho * K)
    columns = []
    for unit in np.eye(K + 1):
        x, y = unit[0], unit[1:]
        z = (rho * x - y) / (rho + b)
        y = y + rho * (z - x)
        columns.append([(1.0 - alpha) * z.mean() + alpha * y.sum(), *y])
    return float(np.max(np.abs(np.linalg.eigvals(np.array(columns).T))))


def best_rho(b, grid):
    """Return the ρ of `grid` with the smallest factor."""
    return min(grid, key=lambda rho: factor(b, rho))


def wrong(b, rho):
    """Leave the server out: the client alone would have this factor."""
    return float(np.max(np.abs(rho / (rho + b))))


MISTAKE = {"factor": wrong}
