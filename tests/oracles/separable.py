"""Small problems with and without separation, and linear programmes that decide which (Konis, 2007)."""

from functools import partial

import numpy as np
from scipy.optimize import linprog

from bayesadmm_np.glm import separation
from bayesadmm_np.glm.diagnosis import search_separation
from bayesadmm_np.losses import Logistic, Poisson, ReferenceSoftmax, Softmax

N_CLASSES = 3
PROGRAMME = 1e-7
"""HiGHS's feasibility tolerance."""


def searched(losses, columns, **options):
    """Search for a separation among rows in this process."""
    known = [separation.held(loss) for loss in losses]

    def ask(question):
        return [separation.answer(loss, question, fixed) for loss, fixed in zip(losses, known, strict=True)]

    return search_separation(ask, separation.factors_of(losses), columns, **options)


def walls_of(losses):
    """Return all a_j = b_j ⊗ x_i, over columns of length 1, and these lengths: a programme has one tolerance."""
    pieces = []
    for loss in losses:
        kept = loss.weights > 0
        walls = loss.pointwise.walls(loss.y[kept])
        each = np.einsum("nmc,np->nmcp", walls, loss.X[kept]).reshape(-1, loss.dim)
        pieces.append(each[walls.any(axis=2).ravel()])
    walls = np.vstack(pieces)
    lengths = np.maximum(np.linalg.norm(walls, axis=0), 1e-300)
    return walls / lengths, lengths


def is_separated(walls):
    """Decide by max Σ_j a_jᵀd over a_jᵀd >= 0, |d| <= 1."""
    programme = linprog(-walls.sum(axis=0), A_ub=-walls, b_ub=np.zeros(len(walls)), bounds=(-1, 1), method="highs")
    assert programme.status == 0
    return -programme.fun > PROGRAMME


def is_complete(walls):
    """Decide by a_jᵀd >= 1 for all j."""
    cost, least = np.zeros(walls.shape[1]), np.ones(len(walls))
    return linprog(cost, A_ub=-walls, b_ub=-least, bounds=(None, None), method="highs").status == 0


def is_moved(walls, j):
    """Decide whether a direction that no wall opposes moves this one."""
    found = linprog(-walls[j], A_ub=-walls, b_ub=np.zeros(len(walls)), bounds=(-1, 1), method="highs")
    return -found.fun > PROGRAMME


def moved_coefficients(walls):
    """Return the coefficients that a direction of separation moves, by two programmes each."""
    found = []
    for j, unit in enumerate(np.eye(walls.shape[1])):
        ends = [
            linprog(cost, A_ub=-walls, b_ub=np.zeros(len(walls)), bounds=(-1, 1), method="highs").fun
            for cost in (unit, -unit)
        ]
        if min(ends) < -PROGRAMME:
            found.append(j)
    return found


def random_problem(rng):
    """Return the losses of one to three sites: integers, so that rounding decides nothing; a scale a column or none."""
    n, p, n_sites = (int(rng.integers(low, high)) for low, high in ((1, 30), (1, 6), (1, 4)))
    bound = int(rng.integers(1, 4))
    X = rng.integers(-bound, bound + 1, (n, p)) if rng.random() < 0.7 else rng.integers(0, 2, (n, p))
    X = X.astype(float)
    if rng.random() < 0.3:
        X *= 10.0 ** rng.integers(-4, 5, p)
    if rng.random() < 0.2 and p > 1:
        X[:, 1] = 2.0 * X[:, 0]
    if rng.random() < 0.7:
        X = np.column_stack([X, np.ones(n)])
    effects = rng.normal(size=X.shape[1]) * rng.choice([0.0, 1.0, 5.0]) / np.maximum(np.abs(X).max(axis=0), 1e-9)
    predictor = X @ effects
    weights = (rng.random(n) < 0.9) * rng.choice([1.0, 0.01, 3.0], n)
    weights[0] = weights[0] or 1.0
    kind = rng.integers(4)
    if kind == 0:
        y = (rng.random(n) < 1.0 / (1.0 + np.exp(-predictor))).astype(float)
    elif kind == 1:
        y = rng.poisson(np.exp(np.clip(predictor - 1.0, -20.0, 3.0))).astype(float)
    else:
        scores = np.outer(predictor, rng.normal(size=N_CLASSES)) + rng.gumbel(size=(n, N_CLASSES))
        y = scores.argmax(axis=1).astype(float)
    site = rng.integers(0, n_sites, n)
    make = (Logistic, Poisson, partial(Softmax, n_classes=N_CLASSES), partial(ReferenceSoftmax, n_classes=N_CLASSES))[
        kind
    ]
    return [make(X[site == k], y[site == k], weights=weights[site == k]) for k in np.unique(site)]
