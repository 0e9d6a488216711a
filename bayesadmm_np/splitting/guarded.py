"""The guard of a Newton row: which points are refused, and where the server goes instead.

Everything follows from a state and the curvatures at its q_g. The last accepted point A is the q_g that the counted
answers (state.sites, state.naturals) are from, its mean and the step from there are state.step, and state.q_g is the
point T that is judged. Records of rounds whose answers did not count have no client that took part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..clients.problem import ClientStatus
from ..families.base import ExponentialFamily
from ..families.coordinates import Natural
from ..families.gaussian import Gaussian, LearnedPrecisionGaussian
from ..families.precision import DensePrecision
from ..losses.base import Expected, rounding_unit
from .certificate import PooledObjective
from .joint import along, stretched, tangent_fall
from .messages import Reply
from .methods import Method
from .server import Server
from .state import State, Step

__all__ = ["Guarded", "bent", "is_at_rounding", "retried", "withdrawn"]

ARMIJO = 1e-4
"""Least decrease of F, relative to that of its tangent."""

EPS = float(np.finfo(np.float64).eps)

LONG_STILL = 20
"""Rounds that F did not tell apart, after which a run may end."""

MOST_BENT = 0.5
"""Longest bend, relative to Newton's step in the metric of the curvature."""

SHORTEST, LONGEST = 0.1, 0.5
"""Range of the next step, relative to the refused one."""


def Guarded(method: Method) -> Method:
    """Return the row with a guard: no step that the server accepts increases the pooled objective.

        F(m) = Σ_k ℓ_k(m) + ½ ‖m − m_0‖²_{P_0}   of Newton,   F(q) = Σ_k E_q[ℓ_k] + KL(q‖π_0)   of JointNewton

    The server knows F at m_g from the replies: the recorded objective holds ½ tr(H_kΣ) and the entropy beside it. Where
    F rose, the replies go unused, and the server broadcasts a point m + w(m⁺ − m) between the last accepted m and its
    point m⁺, with ever smaller w. m⁺ is Newton's point, m − S⁻¹∇F(m) with S = P_0 + Σ_kH_k ≻ 0, bent by the third
    derivative as far as the last step has told it (`bent`). The direction is gradient-related, (m⁺ − m)ᵀ∇F(m) <=
    −½‖S⁻¹∇F(m)‖²_S, so that some w decreases F, and for strictly convex F with a minimum the accepted points
    converge to it from every start. An overflow at m⁺ counts as F = ∞. The point that the sites' own fits make must not
    be worse than the prior's mean, as far as the server knows F there. A run that ends on a refused point returns the
    last accepted one. The slack is the rounding of F: N + d + 1000 ulp of its terms, d² + K of the trace's products. No
    mean makes a round trip through λ = Sm, which would lose cond(S) ulp of it.

    Of JointNewton the recorded objective is F itself, and the way from A to T is a line in mean and Cholesky factor, on
    which F is convex. The step minimises a convex model that has the gradient of F at A, so that F falls at first.

    Parameters
    ----------
    method : Method
        `JointNewton`, or a row of gradient clients under Delta(2) with α = 1, such as `Newton`; losses must be convex.

    Raises
    ------
    ValueError
        When `method` is another row, or a client's loss is not convex.

    Examples
    --------
    >>> import bayesadmm_np as ba
    >>> ba.Guarded(ba.methods.Newton()).name
    'guarded Newton'
    """
    row = Method.read(method)
    knobs = "the curvature is singular to rounding: leave nearly collinear columns out, or shrink them with a prior"
    return row if row.guarded else replace(row, name=f"guarded {row.name}", guarded=True, knobs=knobs)


def retried(server: Server, state: State, replies: Sequence[Reply | None]) -> tuple[Gaussian, float] | None:
    """Return q_g and the step w of a point that replaces state.q_g, or None where state.q_g is accepted."""
    came = [reply for reply in replies if reply is not None]
    usable = all(reply.status.is_usable for reply in came)
    step = _shorter(server, state, [reply.site for reply in came] if usable else None)
    if step is None:
        return None
    if server.method.is_joint:
        return _joint_point(server, state, step / state.history[-1].alpha), step
    assert state.step is not None
    _, full = _ends(server, state)
    return full.at(state.step.mean + step * state.step.move, full.factor.parts), step


def _joint_point(server: Server, state: State, share: float) -> Gaussian:
    """Return the point so far on the way from A to T, in mean and Cholesky factor.

    Where no objective is known at A, because it overflows there, the sites' own fits are drawn towards a point at m_0.
    """
    accepted, q = _accepted(server, state), state.q_g
    assert isinstance(q, Gaussian)
    if np.isfinite(_objective(state, _origin(state))):
        natural = along(accepted, q, share)
    else:
        natural = stretched(q, accepted.mean + share * (q.mean - accepted.mean), share * np.eye(q.dim))
    return q.with_natural(natural)


def bent(server: Server, state: State, natural: Natural, step: Step) -> Step:
    """Return Newton's step from the accepted state.q_g, bent by the third derivative along the step that led there.

    At both ends of that step, a = m − m_A, the server knows gradient and Hessian of F, and of the cubic through them

        ∇³F[a, a] ≈ 6(g_A − g) + 2H_Aa + 4Ha,    ∇³F[a] ≈ H − H_A.

    With s = ta + r, where r is orthogonal to a in the metric of H, Chebyshev's third-order step is

        s − ½H⁻¹∇³F[s, s],    ∇³F[s, s] ≈ t²∇³F[a, a] + 2t∇³F[a]r,

    without what is of second order in r, and without a number more from any site. A bend longer than half of s is left
    out, so that −gᵀ(step) >= ½‖s‖²_H: the step stays gradient-related.
    """
    last, q_g = state.step, state.q_g
    if last is None or last.gradient is None or step.gradient is None:
        return step
    if not (isinstance(q_g, Gaussian) and isinstance(q_g.factor, DensePrecision)):  # a part of H has no such derivative
        return step
    before = q_g.factor.like(server.gather(state.sites, state.naturals, 1.0).parts[1:])
    here = q_g.factor.like(natural.parts[1:])
    way = q_g.mean - last.mean
    turned = here.multiply(way)
    if not float(way @ turned) > 0.0:  # a step of no length tells nothing
        return step
    part = float(step.move @ turned) / float(way @ turned)
    rest = step.move - part * way
    along = 6.0 * (last.gradient - step.gradient) + 2.0 * before.multiply(way) + 4.0 * turned
    across = here.multiply(rest) - before.multiply(rest)
    bend = -0.5 * here.solve(part**2 * along + 2.0 * part * across)
    length = float(step.move @ here.multiply(step.move))
    if not float(bend @ here.multiply(bend)) <= MOST_BENT**2 * length:
        return step
    return replace(step, move=step.move + bend)


def is_at_rounding(server: Server, state: State, at_server: Sequence[Expected] | None) -> bool:
    """Whether the steps of a guarded Newton row have become rounding.

    F tells points apart less finely than its gradient does, by which Newton's steps go on where they can. So a run has
    come to its end where its last `LONG_STILL` objectives, and the fall of the tangent, −wgᵀmove, are within the
    rounding of F, and the fall of the next Newton step, gᵀS⁻¹g, is no smaller.
    """
    step = state.step
    if not server.method.guarded or server.method.is_joint or step is None or step.gradient is None or not at_server:
        return False
    q_g, prior = state.q_g, server.prior
    sums = PooledObjective(prior, q_g, at_server).sums
    sites = [-own.natural_gradient for own in sums]
    if not all(site.is_finite() for site in sites) or _shorter(server, state, sites) is not None:
        return False
    origin = _origin(state)
    assert origin is not None
    assert isinstance(q_g, Gaussian)
    assert isinstance(prior, Gaussian)
    _, _, fall, rounding = _mode_change(server, state, origin, sites)
    curvature = q_g.factor.like(PooledObjective(prior, q_g, at_server).curvature)
    recent = [record.objective for record in state.history[-LONG_STILL:]]
    still = len(recent) == LONG_STILL and max(fall, float(np.ptp(recent))) <= rounding
    if not still or not curvature.is_positive_definite():
        return False
    gradient = prior.factor.multiply(q_g.mean - prior.mean)
    for own in sums:
        gradient = gradient + own.gradient
    return float(gradient @ curvature.solve(gradient)) >= fall


def withdrawn(server: Server, state: State, at_server: Sequence[Expected] | None) -> State | None:
    """Return the state at the last accepted point, where a run would end at one that is refused; None elsewhere."""
    if not server.method.guarded:
        return None
    sites = None if at_server is None else [-expected.natural_gradient for expected in at_server]
    if sites is not None and not all(site.is_finite() for site in sites):
        sites = None
    if _shorter(server, state, sites) is None:
        return None
    record = replace(state.history[-1], objective=_objective(state, _origin(state)), alpha=0.0)
    if server.method.is_joint:
        return replace(state, q_g=_accepted(server, state), history=(*state.history[:-1], record))
    accepted, full = _ends(server, state)
    q_g = full.at(accepted.mean, full.factor.parts)
    return replace(state, q_g=q_g, history=(*state.history[:-1], record))


def _shorter(server: Server, state: State, sites: Sequence[Natural] | None) -> float | None:
    """Return the next w where state.q_g is refused, else None.

    `sites` are the clients' at state.q_g, None where one overflows. F must fall by ARMIJO times what its tangent at A
    falls, up to the rounding of both values. The next w is the minimum of the parabola through F and its slope at A,
    and F at T.
    """
    origin = _origin(state)
    if origin is None:
        return None
    last = state.history[-1]
    if sites is None or not np.isfinite(last.objective):
        return SHORTEST * last.alpha
    after, before, fall, rounding = (_joint_change if server.method.is_joint else _mode_change)(
        server, state, origin, sites
    )
    # NaN at A: a site was away when the others told theirs, and there is nothing to compare with
    if np.isnan(before) or after <= before - ARMIJO * fall + rounding:
        return None
    excess = after - before + fall
    return last.alpha * (min(max(0.5 * fall / excess, SHORTEST), LONGEST) if np.isfinite(excess) else SHORTEST)


def _mode_change(
    server: Server, state: State, origin: int, sites: Sequence[Natural]
) -> tuple[float, float, float, float]:
    """Return F at T and at A, what its tangent falls, and the rounding of both values: of the mode."""
    accepted, _ = _ends(server, state)
    last = state.history[-1]
    after, rounding = _mode_objective(server, state.q_g, last.objective, sites)
    if origin == 0 and server.method.start == "sites":
        # the sites' own fits follow from no point; with the unknown ½ tr(HΣ) ≥ 0 left in it, F(m_0) is bounded above
        before, own_rounding = _mode_objective(server, accepted, state.start_objective, ())
        fall = 0.0
    else:
        before, own_rounding = _mode_objective(server, accepted, _objective(state, origin), state.sites)
        assert state.step is not None
        assert state.step.gradient is not None
        fall = -last.alpha * float(state.step.gradient @ state.step.move)
    return after, before, fall, rounding + own_rounding


def _joint_change(
    server: Server, state: State, origin: int, sites: Sequence[Natural]
) -> tuple[float, float, float, float]:
    """Return the same of the posterior, whose objective is the recorded one."""
    q = state.q_g
    assert isinstance(q, Gaussian)
    assert isinstance(server.prior, Gaussian)
    after, before = state.history[-1].objective, _objective(state, origin)
    rounding = rounding_unit(int(server.total), q.dim) * (abs(after) + abs(before) + q.dim)
    if origin == 0 and server.method.start == "sites":
        return after, before, 0.0, rounding
    return after, before, tangent_fall(server.prior, _accepted(server, state), state.sites, q), rounding


def _origin(state: State) -> int | None:
    """Return the index of the last record whose answers count; A is the q_g that they were given at."""
    counted = [
        j
        for j, record in enumerate(state.history)
        if any(client.status is not ClientStatus.ABSENT for client in record.clients)
    ]
    return counted[-1] if counted else None


def _objective(state: State, origin: int | None) -> float:
    """The recorded objective at A."""
    return state.history[origin - 1].objective if origin else state.start_objective


def _ends(server: Server, state: State) -> tuple[LearnedPrecisionGaussian, LearnedPrecisionGaussian]:
    """Return q at A, and at the Newton point that its answers give."""
    start, step = server.prior.start(), state.step
    assert isinstance(start, LearnedPrecisionGaussian)
    assert step is not None
    whole = server.gather(state.sites, state.naturals, 1.0)
    return start.at(step.mean, state.naturals[0].parts[1:]), start.at(step.mean + step.move, whole.parts[1:])


def _accepted(server: Server, state: State) -> Gaussian:
    """Return q at A."""
    accepted = server.prior.start().with_natural(state.naturals[0])
    assert isinstance(accepted, Gaussian)
    return accepted


def _mode_objective(
    server: Server, q: ExponentialFamily, objective: float, sites: Sequence[Natural]
) -> tuple[float, float]:
    """Return F(m) and its rounding: the objective at q without ½ tr((P_0 + Σ_kH_k)Σ) and the entropy.

    The trace is a sum of d² products, which are large and cancel where Σ is nearly singular.
    """
    prior = server.prior
    assert isinstance(q, Gaussian)
    assert isinstance(prior, Gaussian)
    curvature = [np.add.reduce(parts) for parts in zip(*(site.parts[1:] for site in sites), strict=True)]
    trace = products = 0.0
    if sites:
        trace = 0.5 * q.factor.trace_solve(curvature)
        pairs = zip(q.factor.covariance_parts, curvature, strict=True)
        products = 0.5 * sum(float(np.abs(one * other).sum()) for one, other in pairs)
    shape = q.kl(prior) - q.mean_distance(prior)
    size = abs(objective) + abs(shape)
    rounding = rounding_unit(int(server.total), q.dim) * size + EPS * (q.dim**2 + len(sites)) * products
    return objective - trace - shape, rounding
