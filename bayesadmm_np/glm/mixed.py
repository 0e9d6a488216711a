"""The linear model with a random intercept, by REML as lme4's default, or by maximum likelihood.

At a ratio ρ = τ/σ sums over sites have the coefficients and σ in closed form, so that one number is sought.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import solve_triangular

from .._errors import ArgumentError
from .._numerics import EPS, Trial, line_search, nested, rounding_unit
from .._validation import Array
from ..losses.base import Loss
from ..losses.random_intercept import GaussianRandomIntercept, Profile
from .whole import Whole

CLOSE = 1e-9
"""Last step in ρ, in its standard errors."""


MOST_STEPS = 100
ONE_GROUP = "must have a random intercept of two groups at least over all sites"


class ProfileQuestion(NamedTuple):
    """ρ."""

    ratio: float


def profile_of(loss: Loss, ratio: float) -> Profile:
    """Answer at a site; raise a ValueError if the loss is another."""
    if not isinstance(loss, GaussianRandomIntercept):
        raise ArgumentError("kind", "must be mixed_linear", loss.name)
    return loss.profile(ratio)


def restriction_pulls(losses: Iterable[Loss], ratio: float) -> Array:
    """Return the gradients of what REML adds to the sites' losses at ρ, shape (K, d)."""
    pulls = _at(ratio, tuple(profile_of(loss, ratio) for loss in losses), True)[0].pulls
    assert pulls is not None
    return pulls


def mixed(is_restricted: bool = True, start: float = 1.0) -> Generator[float, Iterable[Profile], Whole]:
    """Minimise half of lme4's REML criterion, or deviance, over ρ by Newton's method; yields each ρ for all sites.

    The fit is at θ = (ρ, log σ, β). Raises a ValueError where the rows do not determine the model.
    """
    exchanges = 0

    def at(begin: float, step: float, t: float) -> Generator[float, Iterable[Profile], Trial]:
        nonlocal exchanges
        exchanges += 1
        ratio = begin + t * step
        profiles = tuple((yield float(abs(ratio))))  # the criterion is even
        fit, slope, bend = _at(abs(ratio), profiles, is_restricted)
        return Trial(fit.value, slope * float(np.copysign(step, ratio * step)), (fit, slope, bend))

    there: Trial | None = yield from at(start, 0.0, 0.0)
    for _ in range(MOST_STEPS):
        if there is not None:
            fit, slope, bend = there.point
            step = -slope / (abs(bend) or 1.0)
        if there is None or -slope * step <= CLOSE**2:
            return fit._replace(exchanges=exchanges)
        search = line_search(fit.value, slope * step, rounding_unit() * abs(fit.value))
        there, _ = yield from nested(search, partial(at, fit.theta[0], step))
    raise ArgumentError("formula", "must have groups whose rows differ beyond their predictors")


def _at(ratio: float, profiles: tuple[Profile, ...], is_restricted: bool) -> tuple[Whole, float, float]:
    """Return the fit at ρ, and the first two derivatives of its criterion."""
    root = np.asarray(np.linalg.qr(np.vstack([one.root for one in profiles]), mode="r"))
    whole: Any = [sum(each) for each in [*zip(*profiles, strict=True)][1:]]
    first, second, log_det, n_groups, n_rows = whole
    p = root.shape[1] - 1
    _require_determined(root, n_groups, n_rows)
    inverse = solve_triangular(root[:p, :p], np.eye(p))  # R⁻¹, so that a sum M is R⁻ᵀMR⁻¹ in units of the columns
    to_residual, size, df = np.append(-inverse @ root[:p, p], 1.0), root[p, p] ** 2, n_rows - p * is_restricted
    pull, turn = first @ to_residual, to_residual @ second @ to_residual
    rate, own = to_residual @ pull / size, pull[:p] @ inverse
    log_sigma, constant = 0.5 * np.log(size / df), 0.5 * np.log(2.0 * np.pi)
    value = 0.5 * log_det[0] + df * (0.5 + log_sigma + constant)
    slope = 0.5 * (log_det[1] + df * rate)
    bend = 0.5 * (log_det[2] + df * ((turn - 2.0 * own @ own) / size - rate**2))
    fit = Whole(np.concatenate([[ratio, log_sigma], -to_residual[:p]]), value, 0, is_maximum=True)
    if is_restricted:  # ½ log det XᵀV⁻¹X/σ², and its gradient in ρ and log σ
        moved = [inverse.T @ one.first[:p, :p] @ inverse for one in profiles]
        turned, pulls = np.sum(moved, axis=0), np.zeros((len(profiles), p + 2))
        pulls[:, 0] = [0.5 * np.trace(one) for one in moved]
        pulls[:, 1] = [-((one.root[:, :p] @ inverse) ** 2).sum() for one in profiles]
        log_size = np.log(np.abs(np.diagonal(root)[:p])).sum()
        slope += 0.5 * np.trace(turned)
        bend += 0.5 * (np.trace(inverse.T @ second[:p, :p] @ inverse) - (turned**2).sum())
        more = float(log_size - p * (log_sigma + constant))
        fit = fit._replace(value=value + log_size, more=more, pulls=pulls)
    return fit, float(slope), float(bend)


def _require_determined(root: Array, n_groups: int, n_rows: int) -> None:
    if n_groups < 2:
        raise ArgumentError("formula", ONE_GROUP, n_groups)
    if n_groups == n_rows:
        raise ArgumentError("formula", "must have groups of several rows: one row each tells no variances apart")
    apart = np.abs(np.diagonal(root)) > 100.0 * EPS * np.linalg.norm(root, axis=0)
    if root.shape[0] < root.shape[1] or not apart.all():
        raise ArgumentError("X", "must leave residuals, and have no column that is a combination of others")
