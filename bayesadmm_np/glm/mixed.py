"""The linear model with a random intercept, by REML as lme4's default, or by maximum likelihood.

At a ratio ρ = τ/σ sums over sites have the coefficients and σ in closed form, so that one number is sought.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular

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
    """A fit at θ = (ρ, log σ, β): `value` is half of lme4's REML criterion, or deviance, and `slope`, `bend` are in ρ.

    `more` is what REML adds to −log likelihood, and `pulls`, shape (K, 2), are the sites' shares of its gradient in
    (ρ, log σ); both are zero of maximum likelihood.
    """

    theta: Array
    value: float
    slope: float
    bend: float
    more: float
    pulls: Array


def mixed(
    is_restricted: bool = True, *, start: float = 1.0, most_steps: int = 100
) -> Generator[ProfileQuestion, Iterable[Profile], MixedFit]:
    """Minimise the criterion over ρ by Newton's method with a line search; yields questions for all sites.

    Raises a ValueError where the rows do not determine the model.
    """

    def at(begin: float, step: float, t: float) -> Generator[ProfileQuestion, Iterable[Profile], Trial]:
        ratio = begin + t * step
        fit = _at(abs(ratio), tuple((yield ProfileQuestion(abs(ratio)))), is_restricted)  # the criterion is even
        return Trial(fit.value, fit.slope * float(np.copysign(step, ratio * step)), fit)

    fit: MixedFit = (yield from at(start, 0.0, 0.0)).point
    for _ in range(most_steps):
        step = -fit.slope / (abs(fit.bend) or 1.0)
        search = line_search(fit.value, fit.slope * step, rounding_unit() * abs(fit.value))
        if -fit.slope * step <= CLOSE**2:
            return fit
        there, _ = yield from nested(search, partial(at, fit.theta[0], step))
        if there is None:
            return fit
        fit = there.point
    raise ArgumentError("group", "must have rows that differ within groups", "", "the ratio of variances is infinite")


def _at(ratio: float, profiles: tuple[Profile, ...], is_restricted: bool) -> MixedFit:
    root = np.asarray(np.linalg.qr(np.vstack([one.root for one in profiles]), mode="r"))
    first, second, log_det = (np.sum([one[i] for one in profiles], axis=0) for i in (1, 2, 3))
    n_groups, n_rows = (sum(one[i] for one in profiles) for i in (4, 5))
    p = root.shape[1] - 1
    _require_determined(root, n_groups, n_rows)
    inverse = solve_triangular(root[:p, :p], np.eye(p))  # R⁻¹, so that a sum M is R⁻ᵀMR⁻¹ in units of the columns
    to_residual, size, df = np.append(-inverse @ root[:p, p], 1.0), root[p, p] ** 2, n_rows - p * is_restricted
    pull, turn = first @ to_residual, to_residual @ second @ to_residual
    rate, own = to_residual @ pull / size, pull[:p] @ inverse
    value = log_det[0] + df * (1.0 + np.log(2.0 * np.pi * size / df))
    slope, bend = log_det[1] + df * rate, log_det[2] + df * ((turn - 2.0 * own @ own) / size - rate**2)
    log_sigma, more, pulls = 0.5 * np.log(size / df), 0.0, np.zeros((len(profiles), 2))
    if is_restricted:
        each = [inverse.T @ one.first[:p, :p] @ inverse for one in profiles]
        whole, shares = np.sum(each, axis=0), [((one.root[:, :p] @ inverse) ** 2).sum() for one in profiles]
        pulls = np.column_stack([[0.5 * np.trace(one) for one in each], np.negative(shares)])
        log_size = 2.0 * np.log(np.abs(np.diagonal(root)[:p])).sum()
        value, slope = value + log_size, slope + np.trace(whole)
        bend += np.trace(inverse.T @ second[:p, :p] @ inverse) - (whole**2).sum()
        more = 0.5 * log_size - p * (log_sigma + 0.5 * np.log(2.0 * np.pi))
    theta = np.concatenate([[ratio, log_sigma], -to_residual[:p]])
    return MixedFit(theta, 0.5 * float(value), 0.5 * float(slope), 0.5 * float(bend), float(more), pulls)


def _require_determined(root: Array, n_groups: int, n_rows: int) -> None:
    if n_groups == n_rows:
        expected = "must have groups of several rows: with one row a group, the variances cannot be told apart"
        raise ArgumentError("group", expected, f"{n_groups} groups of {n_rows} rows")
    if n_groups < 2:
        raise ArgumentError("group", "must name two groups at least over all sites", n_groups)
    apart = np.abs(np.diagonal(root)) > 100.0 * EPS * np.linalg.norm(root, axis=0)
    if root.shape[0] < root.shape[1] or not apart.all():
        raise ArgumentError("X", "must leave residuals, and have no column that is a combination of others")
