"""The linear model with a random intercept, by REML as lme4's default, or by maximum likelihood.

At a ratio ρ = τ/σ the coefficients and σ are known in closed form from sums over sites, so that one number is sought,
by an iteration that the caller drives.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_solve

from .._errors import ArgumentError
from .._numerics import EPS, Trial, line_search, nested, rounding_unit
from .._validation import Array
from ..losses.random_intercept import Profile

CLOSE = 1e-9
"""Last step in ρ, in its standard errors."""


class ProfileQuestion(NamedTuple):
    """ρ."""

    ratio: float


class MixedFit(NamedTuple):
    """The fit at ρ: `information` is XᵀV⁻¹X/σ² of all sites, and `criterion` half of lme4's deviance or REML criterion.

    `bend` is the criterion's second derivative in ρ; `profiles` are the sites' sums there.
    """

    ratio: float
    coef: Array
    sigma: float
    information: Array
    criterion: float
    bend: float
    profiles: tuple[Profile, ...]
    exchanges: int


class _Point(NamedTuple):
    """A ρ, with the criterion and its derivatives there."""

    fit: MixedFit
    slope: float


def mixed(
    is_restricted: bool = True, start: float = 1.0, *, most_steps: int = 100
) -> Generator[ProfileQuestion, Iterable[Profile], MixedFit]:
    """Minimise the criterion over ρ by Newton's method with a line search; yields a question for all sites.

    Raises a ValueError where the rows do not determine the model.
    """
    exchanges = 0

    def at(begin: float, step: float, t: float) -> Generator[ProfileQuestion, Iterable[Profile], Trial]:
        nonlocal exchanges
        exchanges += 1
        ratio = abs(begin + t * step)  # the criterion is even
        answers = tuple((yield ProfileQuestion(ratio)))
        point = _point(ratio, answers, is_restricted, exchanges)
        return Trial(point.fit.criterion, point.slope * np.sign(begin + t * step) * step, point)

    point: _Point = (yield from at(start, 1.0, 0.0)).point
    for _ in range(most_steps):
        fit, slope = point
        step = -slope / (abs(fit.bend) or 1.0)
        if slope * -step <= CLOSE**2:
            return fit
        hidden = rounding_unit() * abs(fit.criterion)
        there, _ = yield from nested(line_search(fit.criterion, slope * step, hidden), partial(at, fit.ratio, step))
        if there is None:
            return fit
        point = there.point
    raise ArgumentError("group", "must have rows that differ within groups, or standard deviations have no maximum")


def _point(ratio: float, profiles: tuple[Profile, ...], is_restricted: bool, exchanges: int) -> _Point:
    root = np.asarray(np.linalg.qr(np.vstack([one.root for one in profiles]), mode="r"))
    first, second, log_det = (np.sum([one[i] for one in profiles], axis=0) for i in (1, 2, 3))
    n_groups, n_rows = (sum(one[i] for one in profiles) for i in (4, 5))
    p = root.shape[1] - 1
    _require_determined(root, n_groups, n_rows)
    inner, df = root[:p, :p], n_rows - p * is_restricted
    coef = np.linalg.solve(inner, root[:p, p])
    inverse = cho_solve((inner, False), np.eye(p))
    to_residual, size = np.append(-coef, 1.0), float(root[p, p] ** 2)
    pull = first @ to_residual
    slope = np.array([log_det[1] + df * (to_residual @ pull) / size])
    turn = to_residual @ second @ to_residual - 2.0 * pull[:p] @ inverse @ pull[:p]
    bend = log_det[2] + df * (turn / size - (to_residual @ pull / size) ** 2)
    criterion = log_det[0] + df * (1.0 + np.log(2.0 * np.pi * size / df))
    if is_restricted:
        moved = inverse @ first[:p, :p]
        criterion += 2.0 * np.log(np.abs(np.diagonal(inner))).sum()
        slope = slope + np.trace(moved)
        bend += np.trace(inverse @ second[:p, :p]) - np.trace(moved @ moved)
    information = inner.T @ inner * (df / size)
    fit = MixedFit(
        ratio,
        coef,
        float(np.sqrt(size / df)),
        information,
        0.5 * float(criterion),
        0.5 * float(bend),
        profiles,
        exchanges,
    )
    return _Point(fit, 0.5 * float(slope[0]))


def _require_determined(root: Array, n_groups: int, n_rows: int) -> None:
    p = root.shape[1] - 1
    if n_groups < 2:
        raise ArgumentError("group", "must name two groups at least over all sites", n_groups)
    if n_groups == n_rows:
        expected = "must have groups of several rows: with one row a group, the variances cannot be told apart"
        raise ArgumentError("group", expected, f"{n_groups} groups of {n_rows} rows")
    sizes = np.abs(np.diagonal(root))
    if root.shape[0] <= p or sizes[p] <= 100.0 * EPS * np.linalg.norm(root[:, p]):
        raise ArgumentError("X", "must leave residuals: the fit is perfect")
    if (sizes[:p] <= 100.0 * EPS * np.linalg.norm(root[:, :p], axis=0)).any():
        raise ArgumentError("X", "must have no column that is a combination of others, in a mixed model")
