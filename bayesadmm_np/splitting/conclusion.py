"""Where a run of a Newton row ends: at its last accepted point, with the curvature there.

A Newton round gives q_g the curvature at the point before. When the clients have evaluated q_g, the server knows the
curvature at its mean as well, and Laplace's approximation there needs no further exchange.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..families.gaussian import Gaussian, LearnedPrecisionGaussian
from ..losses.base import Expected, GaussianExpected
from .certificate import pooled_curvature
from .guarded import withdrawn
from .server import Server
from .state import State

__all__ = ["concluded", "laplace"]


def laplace(
    prior: Gaussian, q_g: LearnedPrecisionGaussian, at_server: Sequence[Expected]
) -> tuple[LearnedPrecisionGaussian, list[GaussianExpected]] | None:
    """Return N(m, (P_0 + Σ_kH_k)⁻¹) with the curvature at m, q_g's mean, and the expectations there, else None.

    None stands for a curvature that is not finite and positive definite. Under the delta method g_k and H_k depend on m
    alone. The reach of a site's rows, which does not, is bounded by that under q_g: a variance xᵀS⁻¹x grows at most by
    the largest eigenvalue of S_g relative to S, and that is at most 1 + ‖S^{-1/2}(S_g − S)S^{-1/2}‖_F.
    """
    found = [expected for expected in at_server if isinstance(expected, GaussianExpected)]
    if not all(expected.natural_gradient.is_finite() for expected in found):
        return None
    parts = pooled_curvature(prior, found)
    factor = q_g.factor.like(parts)
    if not factor.is_positive_definite():
        return None
    q = q_g.at(q_g.mean, factor.parts)
    change = q.factor.whiten([old - new for old, new in zip(q_g.factor.parts, parts, strict=True)])
    stretch = float(np.sqrt(1.0 + np.linalg.norm(change)))
    return q, [expected.moved(q, stretch) for expected in found]


def concluded(
    server: Server, state: State, at_server: Sequence[Expected] | None, has_converged: bool
) -> tuple[State, Sequence[Expected] | None]:
    """Return the state that a run ends at, and the expectations at its q_g; None where the server lacks them."""
    prior, q_g = server.prior, state.q_g
    if not server.method.is_newton or not state.history:
        return state, at_server
    back = None if has_converged else withdrawn(server, state, at_server)
    if back is not None:
        return back, None
    assert isinstance(prior, Gaussian)
    assert isinstance(q_g, LearnedPrecisionGaussian)
    found = None if at_server is None else laplace(prior, q_g, at_server)
    if found is None:
        return state, at_server
    q, moved = found
    curvature = [np.add.reduce(own) for own in zip(*(expected.projected for expected in moved), strict=True)]
    traces = q.factor.trace_solve(curvature) - q_g.factor.trace_solve(curvature)
    record = state.history[-1]
    record = replace(record, objective=record.objective + 0.5 * traces + q.kl(prior) - q_g.kl(prior))
    return replace(state, q_g=q, history=(*state.history[:-1], record)), moved
