"""Directions, derivatives and Fisher matrices by differences and bases."""

import numpy as np


def composition(rng, d):
    """Return random block sizes that add up to d."""
    cuts = np.flatnonzero(rng.random(d - 1) < 0.5) + 1
    return np.diff([0, *cuts, d]).tolist()


def unit_direction(q, rng):
    """Return a random natural direction of Fisher length one."""
    direction = q.natural.from_vector(rng.standard_normal(q.natural.size))
    return direction / np.linalg.norm(q.whiten(direction))


def derivative(function, step=1e-3):
    """Five-point rule; along a direction of unit Fisher length its error is far below 1e-8."""
    return (8 * (function(step) - function(-step)) - (function(2 * step) - function(-2 * step))) / (12 * step)


def norm(coordinates):
    return np.sqrt(sum(np.vdot(part, part) for part in coordinates.parts))


def whitened_jacobian(q, map_):
    """∂map/∂λ at q in coordinates where the Euclidean norm is the Fisher length (central differences)."""
    start, size = q.natural.to_vector(), q.natural.size
    basis = np.stack([q.whiten(q.natural.from_vector(e)) for e in np.eye(size)], axis=1)
    triangle = np.linalg.qr(basis, mode="r")
    columns = []
    for e in np.eye(size):
        h = 1e-5 * e
        plus, minus = (map_(q.with_natural(q.natural.from_vector(start + s * h))).to_vector() for s in (1, -1))
        columns.append((plus - minus) / 2e-5)
    return triangle @ np.stack(columns, axis=1) @ np.linalg.inv(triangle)
