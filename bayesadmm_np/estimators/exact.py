"""The maximum of a least-squares likelihood: every site sends the factor of its rows once, and the server solves."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from .._errors import ArgumentError
from .._validation import Array
from ..families import FullGaussian
from ..families.precision import DensePrecision
from ..glm.problem import HOLD, Glm
from ..losses.expectations import Delta
from ..losses.stacked_qr import SiteFactor, StackedFit, site_factor, solve_stacked
from ..splitting.certificate import PooledObjective
from ..splitting.history import Edges, RoundRecord
from ..splitting.methods import Newton
from ..splitting.result import Result
from ..splitting.state import State
from ..splitting.status import Status

if TYPE_CHECKING:
    from .settings import Settings

__all__ = ["STACKED_QR", "fit_exact"]

STACKED_QR = replace(Newton(), name="stacked QR")
"""The row of Newton, whose one step on a quadratic this is, by factors in place of sums."""

EPS = float(np.finfo(np.float64).eps)
MOST_STEPS = 200
NEAR = (
    "A relative change of {:.0e} in the columns makes one of them a combination of the others: the last digits of the "
    "coefficients are rounding, and sums in doubles cannot certify them."
)
PERFECT = "The fit is perfect: standard errors are rounding, and sums in doubles cannot certify it."
UNCERTIFIED = (
    "Sums in doubles cannot certify this fit, whose columns are nearly dependent; the coefficients are those of "
    "triangular factors, and need no such sums."
)
HELD = (
    "X has columns that are constants or combinations of those before them, and their coefficients, which no rows "
    "determine, are held at zero: {}; drop them, or take FederatedRidge."
)
NO_FREEDOM = (
    "There are as many coefficients as rows, or as weights add up to: the fit has no residuals to tell the noise "
    "variance from. The variance of y stands in for it, and standard errors mean nothing; give noise_variance, or take "
    "fewer columns."
)


def fit_exact(glm: Glm, settings: Settings, names: Sequence[str]) -> tuple[Result, float, str]:
    """Fit by one exchange; return the result, of one round, the noise variance, and what is to be known of it.

    The posterior is N(θ̂, σ²(XᵀX + P)⁻¹), P = σ² × the prior's precision, or that precision itself where
    `settings.is_relative`. Where no noise variance is given it is the unbiased RSS/(n − tr[(XᵀX + P)⁻¹XᵀX]), which
    without a prior is RSS/(n − p − 1); several outputs share it. Where no degree of freedom is left for an estimate the
    variance of y about its mean stands in, which is none. A collinear column is held at zero, as by a prior of HOLD
    times its information: the others' estimates are those without it.
    """
    began, layout = time.perf_counter(), glm.layout
    is_free = settings.is_free_intercept
    p = layout.n_features if is_free else layout.width
    factors = [
        site_factor(design[:, :p], y, weights, offset, has_intercept=is_free) for design, y, weights, offset in glm.rows
    ]
    labels = [*names, "(intercept)"][:p]
    fit, noise, penalty, held = _solve(factors, settings, labels, glm)
    width = p + is_free
    there = np.eye(width)
    if is_free:
        there[-1, :p] = fit.centre
    root = np.kron(np.eye(layout.n_outputs), fit.information_root @ there / np.sqrt(noise))
    theta = np.column_stack([fit.coef, fit.intercept])[:, :width]
    posterior = FullGaussian(theta.ravel(), DensePrecision.from_root(root))
    block = np.zeros((width, width))
    block[:p, :p] = penalty / noise
    prior = FullGaussian(np.zeros(layout.dim), np.kron(np.eye(layout.n_outputs), block))

    expected = [loss.expect(posterior, Delta(2)) for loss in glm.losses(noise)]
    sites = tuple(-each.natural_gradient for each in expected)
    edges = Edges(0.0, 0.0, PooledObjective(prior, posterior, expected).residual, 0.0)
    objective = sum(each.value for each in expected) + posterior.kl(prior)
    record = RoundRecord(1, objective, 1.0, edges, (), False, 0, fit.floats, time.perf_counter() - began)
    state = State(posterior, sites, (posterior.natural,) * len(sites), (), objective, (record,))
    done = Status.CONVERGED if edges.gather <= settings.options["tol"] else Status.ROUND_LIMIT
    result = Result(done, done.value, prior, state, settings.options["tol"], expected, {})
    said = [] if not held else [HELD.format(", ".join(map(repr, held)))]
    if settings.noise is None and not fit.df > 0:
        said.append(NO_FREEDOM)
    elif done is not Status.CONVERGED:
        is_perfect = noise <= EPS * glm.null_variance
        said.append(
            NEAR.format(fit.closeness) if fit.closeness < np.sqrt(EPS) else PERFECT if is_perfect else UNCERTIFIED
        )
    return result, noise, " ".join(said)


def _solve(
    factors: Sequence[SiteFactor], settings: Settings, labels: Sequence[str], glm: Glm
) -> tuple[StackedFit, float, Array, tuple[str, ...]]:
    """Solve at the given noise variance, or repeat with the unbiased one until it is its own; name what is held."""
    assert settings.precision is not None
    p = len(labels)
    precision = np.asarray(settings.precision, dtype=np.float64)
    if precision.ndim and precision.shape != (p,) * precision.ndim:
        raise ArgumentError("prior_precision", f"must be a number, or have shape ({p},) or ({p}, {p})", precision.shape)
    precision = np.diag(np.broadcast_to(precision, (p,))) if precision.ndim < 2 else precision
    noise = settings.noise if settings.noise is not None else glm.null_variance
    lost: tuple[str, ...] = ()
    hold = np.zeros(p)
    for _ in range(MOST_STEPS):
        penalty = (precision if settings.is_relative else precision * noise) + np.diag(hold)
        try:
            fit = solve_stacked(factors, penalty, labels, weight_kind=settings.weights)
        except ArgumentError as error:
            raise ArgumentError("prior_precision", error.expected, error.got) from error
        if fit.collinear:
            lost = fit.collinear
            hold = HOLD * _information(glm, p) * np.isin(labels, lost)
            continue
        last = noise
        noise = _variance(fit, glm) if settings.noise is None else settings.noise
        if settings.is_relative or not precision.any() or abs(noise - last) <= 4.0 * EPS * noise:
            return fit, noise, penalty, lost
    raise ArgumentError("noise_variance", "must be a number here", "", "its estimate under this prior does not settle")


def _variance(fit: StackedFit, glm: Glm) -> float:
    """The unbiased noise variance; of an exact fit what rounding of the target leaves."""
    if not fit.df > 0:
        return glm.null_variance or 1.0
    least = EPS**2 * (glm.null_variance or 1.0)
    return max(float(fit.variance.mean()), least)


def _information(glm: Glm, p: int) -> Array:
    """Σ_i w_i x_ij² of each column in its own units, from sums over sites; 1 of a column of zeros."""
    far = np.zeros(p) if glm.layout.centre is None else glm.layout.centre
    own = np.sum(glm.squares, axis=0)[:p]
    whole: Array = own + far**2 * sum(weights.sum() for _, _, weights, _ in glm.rows)
    return np.where(whole > 0, whole, 1.0)
