"""The limit of a likelihood that has no maximum: its supremum, and the fit of everything that stays finite.

Of a separation (`separation.Split`) let N span the directions that move no row whose loss has a minimum of its own, and
let d in N move all others downhill. Along d the pooled loss ℓ falls to a limit ℓ∞(θ) = lim_t ℓ(θ + td). It is convex,
the same along N, and has a minimum, because the rows that N leaves alone have one. As ℓ∞ ≤ ℓ, and values of ℓ tend to
each value of ℓ∞, inf ℓ = min ℓ∞. Take k = dim N coordinates P with N_P invertible. Each class θ + N has one member with
θ_P = t d_P + const, so that a fit of the other coordinates at a growing t tends to the minimum of ℓ∞: a row that moves
by m along d adds O(e^{−tm}). A function Lθ is finite there iff LN = 0, and its variance is LGLᵀ, where G is the inverse
of the information bordered by P: a generalised inverse, the same for every P.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._validation import Array
from ..families import FullGaussian
from .columns import HOLD
from .diagnosis import Searched, Separation
from .estimable import CANCELLED
from .refit import Derivatives, Refit, refit, rounding

SETTLED = 1e-10
"""Change of the loss, in nats, when t doubles, at which the limit is reached.

A row with e^{−tm} = x still adds x − x² ≥ x/2 to that change, or is so near its bound (tm < 1e-10) that it is fixed.
Its influence on an estimate is at most x‖a‖ against an information of 1/SE²: 1e-10 of a standard error.
"""

FASTEST = 100.0
"""Largest growth of t in a step: near the limit slopes along d are rounding."""

DEEP = 30.0
"""Logarithm of the factor by which a step along d lowers the decreasing losses: e^{−30} is 1e-13."""

MOST_STEPS = 40
"""Steps along d, each of which at least doubles t: rows move by at least 1e-9 of the farthest."""

MOST_EXCHANGES = 200
"""Exchanges of a fit at one t: with counts and offsets Newton's method takes about one for a unit of the predictor."""

Steps = Generator[Array, Iterable[Derivatives], Refit]
Search = Callable[[NDArray[np.bool_]], Searched]
"""Search for a separation of the model in which some coefficients are free, and all others are zero."""


def limit(starts: Sequence[ArrayLike], free: ArrayLike, searched: Searched) -> Steps:
    """Minimise ℓ∞ over the `free` coefficients of a separated model; see the module for ℓ∞.

    A generator as `refit`. The θ that it returns has its pivots far out along d, where ℓ(θ) is the infimum to 1e-10. A
    later start is tried if an earlier one fails; raises a ValueError if all fail.
    """
    *others, last = [start for start in starts if np.isfinite(start).all()]
    for start in others:
        try:
            return (yield from _limit(start, free, searched))
        except ValueError:
            continue
    return (yield from _limit(last, free, searched))


def _limit(start: ArrayLike, free: ArrayLike, searched: Searched) -> Steps:
    mask = np.asarray(free, dtype=bool).copy()
    mask[list(searched.pivots)] = False
    d = searched.receding[:, 0]
    theta, t, exchanges = np.array(start, dtype=np.float64), 1.0, 0
    before = np.inf
    for _ in range(MOST_STEPS):
        found = yield from refit(theta, mask, theta, most_exchanges=MOST_EXCHANGES)
        exchanges += found.exchanges
        assert found.gradient is not None
        assert found.hessian is not None
        if abs(before - found.value) <= max(SETTLED, rounding(found.value, found.theta, found.hessian)):
            return found._replace(exchanges=exchanges)
        before, fall, bend = found.value, -float(found.gradient @ d), float(d @ found.hessian @ d)
        # of losses e^{−tm} the ratio is a mean of the m, weighted by what is left of their slopes
        step = max(t, min(DEEP * fall / bend, FASTEST * t)) if fall > 0.0 and bend > 0.0 else t
        theta, t = found.theta + step * d, t + step
    raise ValueError("the likelihood did not come to its limit.")


def supremum(
    start: ArrayLike, present: ArrayLike, width: int, search: Search, flat: Array | None, receding: Array | None
) -> Steps:
    """Return the infimum of the pooled loss of a smaller model, at its minimum or at its limit; a generator as `refit`.

    `start`, shape (d,), is the fit of the whole model, whose `flat` and `receding` directions are those of `FittedGLM`.
    All coefficients but those `present` are zero; a removed column frees the one that it made superfluous. A predictor
    has `width` columns. `search`, such as that of `searching`, looks for a separation of the smaller model where the
    whole one has one. A ValueError is raised where the fit does not converge, or a separation is not decided.
    """
    free = np.asarray(present, dtype=bool).copy()
    theta, dim = np.array(start, dtype=np.float64), free.size
    nothing = np.zeros((dim, 0))
    flat, receding = (nothing if part is None else part for part in (flat, receding))
    outputs = dim // width
    free &= ~np.tile(_superfluous(flat[:width, : flat.shape[1] // outputs], free[:width]), outputs)
    if not receding.size:
        return (yield from refit(theta, free))
    # a direction of the smaller model is one of the whole model that moves no other coefficient
    ways = np.column_stack([receding, flat])
    theta = np.where(free, theta - receding @ np.linalg.lstsq(receding, theta)[0], 0.0)
    if _is_of_full_rank(ways[~free]):
        return (yield from refit(theta, free))
    searched = search(free)
    if searched.finding is None:
        return (yield from refit(theta, free))
    if not isinstance(searched.finding, Separation):
        raise ValueError("it is not decided whether the model without the term has a maximum.")
    return (yield from limit([theta, np.zeros(dim)], free, searched))


def of_prior(prior: FullGaussian, theta: Array) -> Derivatives:
    """Return ½(θ − m)ᵀS(θ − m) with its derivatives: a prior of some coefficients, beside the sites' losses."""
    slope = prior.precision @ (theta - prior.mean)
    return Derivatives(0.5 * float((theta - prior.mean) @ slope), slope, prior.precision)


def held_at(
    theta: Array, pivots: Sequence[int], prior: FullGaussian, hessian: Array, information: Array
) -> tuple[FullGaussian, FullGaussian]:
    """Return the prior that also holds the pivots at θ, and the posterior N(θ, (H + its precision)⁻¹).

    `information`, shape (d,), is about what the rows have on each coefficient in a model without effects: at the limit
    a row that is separated has none.
    """
    precision, mean = prior.precision.copy(), prior.mean.copy()
    for j in pivots:
        precision[j, j] = HOLD * (max(information[j], hessian[j, j]) or 1.0)
        mean[j] = theta[j]
    return FullGaussian(mean, precision), FullGaussian(theta, hessian + precision)


def _superfluous(flat: Array, present: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which columns to hold at zero in a smaller model: one for each direction that moves no removed column."""
    left, flat = list(range(flat.shape[1])), flat.copy()
    own = [int(np.flatnonzero((flat == np.eye(len(left))[i]).all(axis=1))[0]) for i in left]
    for j in np.flatnonzero(~present):
        size = CANCELLED * np.abs(flat[j]).max(initial=0.0)
        moving = [i for i in left if abs(flat[j, i]) > size]
        if not moving:
            continue
        first, *others = sorted(moving, key=lambda i: -abs(flat[j, i]))
        flat[:, others] -= np.outer(flat[:, first], flat[j, others] / flat[j, first])
        left.remove(first)
    return np.isin(np.arange(len(present)), [own[i] for i in left])


def _is_of_full_rank(matrix: Array) -> bool:
    """Return whether columns are independent, with room for rounding, whatever the units of the rows."""
    size = np.abs(matrix).max(axis=1, initial=0.0)
    rows = matrix[size > 0] / size[size > 0, None]
    values = np.linalg.svd(rows / np.maximum(np.linalg.norm(rows, axis=0), 1e-300), compute_uv=False)
    return len(values) == matrix.shape[1] and bool(values[-1] > CANCELLED * values[0])
