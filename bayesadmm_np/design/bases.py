"""Columns of natural splines and orthogonal polynomials: those of R, whatever rows a site has."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .._validation import Array


def natural_spline(values: Array, knots: Sequence[float], low: float, high: float) -> Array:
    """Return the columns of R's ns: cubic between the bounds, a line beyond each.

    R multiplies the B-splines by the orthogonal factor Q of their second derivatives at the bounds. Its reflections
    have the signs of LAPACK's.
    """
    from scipy.interpolate import BSpline

    places = [low] * 4 + [*knots] + [high] * 4
    spline = BSpline(places, np.eye(len(places) - 4), 3)
    inside = np.clip(values, low, high)
    basis = spline(inside) + (values - inside)[:, None] * spline(inside, nu=1)
    bends = spline([low, high], nu=2)[:, 1:]
    found: Array = basis[:, 1:] @ np.linalg.qr(bends.T, mode="complete")[0][:, 2:]
    return found


def recurrence(points: Array, weights: Array, degree: int) -> tuple[list[float], list[float]]:
    """Return α₀, α₁, … and β₁, β₂, … of the polynomials that are orthogonal over distinct points with weights.

    The monic ones are pⱼ₊₁ = (x − αⱼ) pⱼ − βⱼ pⱼ₋₁. There are `degree` of each, or of m points up to that degree m
    and m − 1.
    """
    total = float(weights.sum())
    mean = float(weights @ points) / total
    x, size = points - mean, 0.0
    before, now = np.zeros(len(x)), np.full(len(x), total**-0.5)
    alpha: list[float] = []
    beta: list[float] = []
    for _ in range(min(degree, len(x))):
        centre = float(weights @ (x * now**2))
        alpha.append(mean + centre)
        after = (x - centre) * now - np.sqrt(size) * before
        size = float(weights @ after**2)
        if len(alpha) == len(x) or not size > 0:
            break
        beta.append(size)
        before, now = now, after / np.sqrt(size)
    return alpha, beta


def quadrature(alpha: Sequence[float], beta: Sequence[float]) -> tuple[Array, Array]:
    """Return points and weights of sum one whose polynomials have this recurrence: they stand for a site's rows.

    Polynomials up to twice the degree have the same mean over them. The last α touches none of these means.
    """
    centre = alpha[0]
    diagonal = np.array([*alpha, centre][: len(beta) + 1]) - centre
    points, vectors = np.linalg.eigh(np.diag(diagonal) + np.diag(np.sqrt(beta), -1))  # it reads the lower half
    return points + centre, vectors[0] ** 2


def orthogonal_polynomials(values: Array, alpha: Sequence[float], beta: Sequence[float]) -> Array:
    """Return the columns of R's poly, of degree 1, 2, …; β₀ is the number of rows over which they are orthogonal."""
    before, now = np.zeros_like(values), np.full_like(values, beta[0] ** -0.5)
    columns = []
    for centre, last, size in zip(alpha, [0.0, *beta[1:]], beta[1:], strict=False):
        before, now = now, ((values - centre) * now - np.sqrt(last) * before) / np.sqrt(size)
        columns.append(now)
    return np.column_stack(columns)
