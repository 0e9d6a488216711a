"""Where a run of a Newton row ends: at its last accepted point, with the curvature there.

A Newton round gives q_g the curvature at the point before. When the clients have evaluated q_g, the server knows the
curvature at its mean as well, and Laplace's approximation there needs no further exchange.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..losses.base import Expected
from .certificate import PooledObjective
from .guarded import withdrawn
from .server import Server
from .state import State


def concluded(
    server: Server, state: State, at_server: Sequence[Expected] | None, has_converged: bool
) -> tuple[State, Sequence[Expected] | None]:
    """Return the state that a run ends at, and the expectations at its q_g; None where the server lacks them."""
    if not (server.method.is_newton or server.method.guarded) or not state.history:
        return state, at_server
    back = None if has_converged else withdrawn(server, state, at_server)
    if back is not None:
        return back, None
    if at_server is None or not server.method.is_newton:
        return state, at_server
    last = PooledObjective(server.prior, state.q_g, at_server)
    found = last.laplace
    if found is None:
        return state, at_server
    curvature = [np.add.reduce(own) for own in zip(*(sums.projected for sums in found.sums), strict=True)]
    traces = found.q.factor.trace_solve(curvature) - last.q.factor.trace_solve(curvature)
    record = state.history[-1]
    objective = record.objective + 0.5 * traces + found.q.kl(server.prior) - last.q.kl(server.prior)
    record = replace(record, objective=objective)
    return replace(state, q_g=found.q, history=(*state.history[:-1], record)), found.sums
