"""The maximum of a least-squares likelihood: every site sends the factor of its rows once, and the server solves."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .._validation import Array
from ..design.rows import INTERCEPT
from ..glm.diagnosis import Finding
from ..glm.estimable import moved
from ..glm.least_squares import dependence, settled, solve
from ..glm.problem import Glm
from ..losses.expectations import Delta
from ..losses.stacked_qr import site_factor
from ..splitting.result import Result
from ..splitting.status import Status
from .settings import MINIMUM_NORM, Settings, facts_of


@dataclass(frozen=True)
class Exact:
    """A fit of one round, its noise variance, and what is to be known of it."""

    result: Result
    noise: float
    caveat: str
    findings: tuple[Finding, ...]
    flat: Array


def fit_exact(glm: Glm, settings: Settings, names: Sequence[str]) -> Exact:
    """Fit by one exchange: the posterior is N(θ̂, σ²(XᵀX + P)⁻¹) with P the prior's precision times σ², see `solve`.

    An estimated σ² is RSS/(n − tr[(XᵀX + P)⁻¹XᵀX]); several outputs share it. A collinear column is held at zero, as by
    a prior of HOLD times its information, or a direction is, where the minimum norm is asked for.
    """
    began, layout = time.perf_counter(), glm.layout
    is_free = settings.is_free_intercept
    p = layout.n_features if is_free else layout.width
    factors = [
        site_factor(site.X[:, :p], site.y, site.weights, site.offset, has_intercept=is_free) for site in glm.rows
    ]
    labels = [*names, INTERCEPT][:p]
    assert settings.precision is not None
    block = settings.prior.block(settings.precision, facts_of(settings, glm, 1.0))
    precision = (np.diag(block) if block.ndim < 2 else block)[:p, :p]
    solved = solve(
        factors,
        precision,
        labels,
        _information(glm, p),
        glm.null_variance,
        noise=settings.noise,
        is_relative=settings.is_relative,
        weight_kind=settings.weights,
        shortest=settings.dependent == MINIMUM_NORM,
    )
    _, prior, posterior = solved.at_the_centre(None)
    expected = [loss.expect(posterior, Delta(2)) for loss in glm.losses(solved.noise)]
    tol, floats = settings.options["tol"], solved.fit.floats
    seconds = time.perf_counter() - began
    result = settled(prior, posterior, expected, tol, solved.is_resolved, floats=floats, seconds=seconds)
    home = layout.outward
    block, intercepts = home[: layout.width, : layout.width], [layout.n_features] if layout.has_intercept else []
    findings, flat, unnamed = dependence(factors, solved.fit.collinear, layout.columns(names), intercepts, block)
    said = [unnamed, solved.caveat(result.status is Status.CONVERGED)]
    ways = np.asarray(np.kron(np.eye(layout.n_outputs), flat))
    return Exact(result, solved.noise, " ".join(filter(None, said)), findings, moved(home, ways))


def _information(glm: Glm, p: int) -> Array:
    """Σ_i w_i x_ij² of each column in its own units, from sums over sites; 1 of a column of zeros."""
    far = np.zeros(p)
    if glm.layout.centre is not None:
        far[: glm.layout.n_features] = glm.layout.centre
    own = np.sum(glm.squares, axis=0)[:p]
    whole: Array = own + far**2 * sum(site.weights.sum() for site in glm.rows)
    return np.where(whole > 0, whole, 1.0)
