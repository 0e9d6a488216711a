"""The guard of a Newton row: which points are refused, and where the server goes instead.

Everything follows from a state and the curvatures at its q_g. The last accepted point A is the q_g that the counted
answers (state.sites, state.naturals) are from, its mean and the step from there are state.step, and state.q_g is the
point T that is judged. Records of rounds whose answers did not count have no client that took part.

A row whose clients solve is left alone as long as it makes progress. Where it does not, it *falls*: from then on
clients evaluate, and the steps are those of BLR. The record of the round in which it fell has α = 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import overload

import numpy as np

from ..clients.problem import ClientStatus
from ..families.base import ExponentialFamily
from ..families.coordinates import Natural
from ..families.gaussian import Gaussian, LearnedPrecisionGaussian
from ..families.precision import DensePrecision
from ..losses.base import Expected, rounding_unit
from .accelerated import Accelerated
from .certificate import PooledObjective
from .joint import along, slope_to, stretched
from .messages import Reply
from .methods import Method
from .server import Server
from .state import State, Step

ARMIJO = 1e-4
"""Least decrease of F, relative to that of its tangent."""

CREDIT = 1e-3
"""How far F may be above its lowest value, and above what its slope allows, relative to one more than that value."""

EPS = float(np.finfo(np.float64).eps)

LONG_STILL = 20
"""Rounds that F did not tell apart, after which a run may end."""

MOST_BENT = 0.5
"""Longest bend, relative to Newton's step in the metric of the curvature."""

PATIENCE = 10
"""Rounds in which a row whose clients solve must halve its largest |λ_k − λ_g|."""

SHORTEST, LONGEST = 0.1, 0.5
"""Range of the next step, relative to the refused one."""


@overload
def Guarded(method: Method) -> Method: ...
@overload
def Guarded(method: Accelerated) -> Accelerated: ...
def Guarded(method: Method | Accelerated) -> Method | Accelerated:
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

    Of the other rows the recorded objective is F itself, and the way from A to T, the point that the row asks for, is
    a line in mean and Cholesky factor, on which F is convex. JointNewton's T minimises a convex model that has the
    gradient of F at A; that of BLR(1.0), with sketches or without, is m_A − S⁻¹∇F(m_A) with S = P_0 + Σ_kV_k ≻ 0 and
    the curvature at A. Both are gradient-related, so that F falls at first (proof in docs/guarantee.md): from every
    start the accepted points converge to the pooled posterior, whatever the family.

    A row whose clients solve, such as PVI, runs as it is while it makes progress: the objective stays below that at the
    start, and in every ten rounds the largest |λ_k − λ_g| is halved. Where it does not, or a client has no minimum, the
    rest of the run takes the steps of BLR(1.0), from the last sketches where there are some: clients evaluate E_q[ℓ_k]
    and its natural gradient, and solve nothing.

    Parameters
    ----------
    method : Method or Accelerated
        `Newton()`, `JointNewton()`, `BLR(1.0)`, or a row whose clients solve Eq. 15 and whose dual moves along λ, with
        sketches or acceleration or without; losses must be convex.

    Raises
    ------
    ValueError
        When `method` is another row, or a client's loss is not convex, or the prior is no Gaussian.

    Examples
    --------
    >>> import bayesadmm_np as ba
    >>> ba.Guarded(ba.methods.Newton()).name
    'guarded Newton'

    BLR diverges here; a guard takes one number of each site and round.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((60, 4)) + 1.0
    >>> clients = [ba.losses.LeastSquares(part, part.sum(axis=1)) for part in np.split(X, 3)]
    >>> prior = ba.families.DiagonalGaussian(np.zeros(4), 1.0)
    >>> for row in (ba.methods.BLR(1.0), ba.Guarded(ba.methods.BLR(1.0))):
    ...     print(ba.run(row, clients, prior, raise_on_failure=False).status.name)
    DIVERGED
    CONVERGED
    """
    if isinstance(method, Accelerated):
        return replace(method, method=Guarded(method.method))
    row = Method.read(method)
    knobs = "the curvature is singular to rounding: leave nearly collinear columns out, or shrink them with a prior"
    return row if row.guarded else replace(row, name=f"guarded {row.name}", guarded=True, knobs=knobs)


def is_judged(method: Method, state: State) -> bool:
    """Whether the server compares the objective at q_g with that at A: clients evaluate, and solve nothing."""
    return method.guarded and (method.client != "proximal" or _fall(state) is not None)


def falls(server: Server, state: State, replies: Sequence[Reply | None]) -> bool:
    """Whether a guarded row whose clients solve has ceased to make progress.

    A client has no usable answer, the objective is above that at the start, or in the last `PATIENCE` rounds the
    largest |λ_k − λ_g| was not halved.
    """
    if not server.method.guarded or is_judged(server.method, state):
        return False
    if any(reply is not None and not reply.status.is_usable for reply in replies):
        return True
    if all(reply is not None for reply in replies) and _is_above_start(state):
        return True
    edges = [record.edges.broadcast for record in state.history]
    return len(edges) > PATIENCE and not min(edges[-PATIENCE:]) <= 0.5 * min(edges[:-PATIENCE])


def refuge(server: Server, state: State) -> ExponentialFamily:
    """Return where a row that falls begins anew: at q_g, or at a proper prior where the objective has risen since."""
    return server.prior.start() if server.prior.is_proper and _is_above_start(state) else state.q_g


def evaluations(q_g: ExponentialFamily, expected: Sequence[Expected | None]) -> list[Reply | None]:
    """Return the replies of clients that evaluate at q_g, from what they told there; None for who is away."""
    return [None if own is None else _evaluation(q_g, -own.natural_gradient) for own in expected]


def _evaluation(q_g: ExponentialFamily, site: Natural) -> Reply:
    status = ClientStatus.STEPS_DONE if site.is_finite() else ClientStatus.NOT_FINITE
    return Reply(q_g.natural, site, 0, status, 0.0, 0.0, site.zeros(), True, 0.0, is_evaluation=True)


def _fall(state: State) -> int | None:
    """Return the index of the record of the round in which the row fell."""
    return next((j for j, record in enumerate(state.history) if record.alpha == 0.0), None)


def _is_above_start(state: State) -> bool:
    """Whether the objective at q_g is not known to be at most that at the start, which is known if all told it."""
    known = bool(state.history) and all(one.status is not ClientStatus.ABSENT for one in state.history[0].clients)
    return known and not state.history[-1].objective <= state.start_objective


def retried(server: Server, state: State, replies: Sequence[Reply | None]) -> tuple[Gaussian, float] | None:
    """Return q_g and the step w of a point that replaces state.q_g, or None where state.q_g is accepted."""
    came = [reply for reply in replies if reply is not None]
    usable = all(reply.status.is_usable for reply in came)
    step = _shorter(server, state, [reply.site for reply in came] if usable else None)
    if step is None:
        return None
    if not server.method.is_newton:
        return _point(server, state, step / state.history[-1].alpha), step
    assert state.step is not None
    _, full = _ends(server, state)
    return full.at(state.step.mean + step * state.step.move, full.factor.parts), step


def begun(server: Server, state: State, sites: Sequence[Natural], natural: Natural) -> tuple[Natural, float]:
    """Return the first point on the way from the accepted state.q_g to T, and its w.

    Where the last step was shortened it begins at the w with which that step would have ended at the minimum of its
    parabola, as Barzilai and Borwein (1988) do, and at most at twice the last w.
    """
    origin, share = _origin(state), 1.0
    if origin is not None and not server.method.is_joint and server.prior.contains(natural):
        last = state.history[-1].alpha
        share = min(1.0, last * _change(server, state, origin, sites).stretch(SHORTEST, 2.0)) if last < 1.0 else 1.0
    if share == 1.0:
        return natural, 1.0
    q, end = state.q_g, state.q_g.with_natural(natural)
    assert isinstance(q, Gaussian)
    assert isinstance(end, Gaussian)
    return along(q, end, share), share


def _point(server: Server, state: State, share: float) -> Gaussian:
    """Return the point so far on the way from A to T, in mean and Cholesky factor.

    Where no objective is known at A, because it overflows there, the sites' own fits are drawn towards a point at m_0.
    """
    accepted, q = _accepted(server, state), state.q_g
    assert isinstance(q, Gaussian)
    if np.isfinite(_objective(state, _origin(state))):
        natural = along(accepted, q, share)
    else:
        mean = accepted.mean + share * (q.mean - accepted.mean)
        natural = stretched(q, mean, [share * one for one in q.factor.stretch_to(q.factor)])
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
    return step._replace(move=step.move + bend)


def is_at_rounding(server: Server, state: State, at_server: Sequence[Expected] | None) -> bool:
    """Whether the steps of a guarded Newton row have become rounding.

    F tells points apart less finely than its gradient does, by which Newton's steps go on where they can. So a run has
    come to its end where its last `LONG_STILL` objectives, and the fall of the tangent, −wgᵀmove, are within the
    rounding of F, and the fall of the next Newton step, gᵀS⁻¹g, is no smaller.
    """
    step = state.step
    if not server.method.guarded or step is None or step.gradient is None or not at_server:
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
    change = _mode_change(server, state, origin, sites)
    curvature = q_g.factor.like(PooledObjective(prior, q_g, at_server).curvature)
    recent = [record.objective for record in state.history[-LONG_STILL:]]
    still = len(recent) == LONG_STILL and max(change.fall, float(np.ptp(recent))) <= change.rounding
    if not still or not curvature.is_positive_definite():
        return False
    gradient = prior.factor.multiply(q_g.mean - prior.mean)
    for own in sums:
        gradient = gradient + own.gradient
    return float(gradient @ curvature.solve(gradient)) >= change.fall


def withdrawn(server: Server, state: State, at_server: Sequence[Expected] | None) -> State | None:
    """Return the state at the last accepted point, where a run would end at one that is refused; None elsewhere."""
    if not server.method.guarded:
        return None
    if not is_judged(server.method, state):
        if not (server.prior.is_proper and _is_above_start(state)):
            return None
        record = replace(state.history[-1], objective=state.start_objective, alpha=0.0)
        return replace(state, q_g=server.prior.start(), history=(*state.history[:-1], record))
    sites = None if at_server is None else [-expected.natural_gradient for expected in at_server]
    if sites is not None and not all(site.is_finite() for site in sites):
        sites = None
    if _shorter(server, state, sites) is None:
        return None
    record = replace(state.history[-1], objective=_objective(state, _origin(state)), alpha=0.0)
    if not server.method.is_newton:
        return replace(state, q_g=_accepted(server, state), history=(*state.history[:-1], record))
    accepted, full = _ends(server, state)
    q_g = full.at(accepted.mean, full.factor.parts)
    return replace(state, q_g=q_g, history=(*state.history[:-1], record))


def is_coarse(server: Server, state: State, replies: Sequence[Reply | None]) -> bool:
    """Whether F rose from A by a `CREDIT` more than its slope at T: no convex function does, but a coarse rule may."""
    origin = _origin(state) if is_judged(server.method, state) and not server.method.is_newton else None
    if origin is None or not all(reply is not None and reply.status.is_usable for reply in replies):
        return False
    change = _change(server, state, origin, [reply.site for reply in replies if reply is not None])
    excess = change.after - change.before - change.slope - change.slope_rounding - change.rounding
    return excess > CREDIT * (1.0 + abs(change.before))


def _shorter(server: Server, state: State, sites: Sequence[Natural] | None) -> float | None:
    """Return the next w where state.q_g is refused, else None.

    `sites` are the clients' at state.q_g, None where one overflows. F must fall by ARMIJO times what a model below it
    falls, up to the rounding of both values. Where the values are vague, the slope at T decides: it must be at most
    half of that at A, as of a parabola whose minimum is at two thirds of the way. Vague are values that rounding does
    not tell apart, and those of a sampled rule that contradict the slope: F is convex along the way and cannot rise by
    more. Even then F must stay close to its lowest value. The next w is the minimum of the parabola through the two
    slopes, or through F and its slope at A, and F at T.
    """
    origin = _origin(state) if is_judged(server.method, state) else None
    if origin is None:
        return None
    last = state.history[-1]
    if sites is None or not np.isfinite(last.objective):
        return SHORTEST * last.alpha
    change = (_mode_change if server.method.is_newton else _change)(server, state, origin, sites)
    # NaN at A: a site was away when the others told theirs, and there is nothing to compare with
    if np.isnan(change.before) or change.is_accepted(state):
        return None
    return last.alpha * change.stretch(SHORTEST, LONGEST)


@dataclass(frozen=True)
class Change:
    """What is known of F on the way from A to T.

    F at both ends, what a lower model of it falls, and the rounding of both values; and where slopes are looked at,
    that at A (negated), that at T, and the rounding of the latter.
    """

    after: float
    before: float
    fall: float
    rounding: float
    tangent: float = np.nan
    slope: float = np.nan
    slope_rounding: float = 0.0

    @property
    def is_vague(self) -> bool:
        """Whether the values tell less than the slopes do."""
        rise = self.after - self.before
        if not np.isfinite(self.slope):
            return False
        return abs(rise) <= self.rounding or rise > self.slope + self.slope_rounding + self.rounding

    def is_accepted(self, state: State) -> bool:
        """Whether T is."""
        if not self.is_vague:
            return self.after <= self.before - ARMIJO * self.fall + self.rounding
        values = [state.start_objective, *(record.objective for record in state.history)]
        # what was told by all: with those that are away in between, a server elsewhere knows no value
        told = [all(one.status is not ClientStatus.ABSENT for one in record.clients) for record in state.history]
        lowest = min([self.before, *(value for value, known in zip(values, told, strict=False) if known)])
        near = self.after <= lowest + CREDIT * (1.0 + abs(lowest))
        return near and self.slope <= 0.5 * self.tangent + self.slope_rounding

    def stretch(self, shortest: float, longest: float) -> float:
        """Return the step to the minimum of the parabola, relative to the step that led to T."""
        fall, excess = self.tangent, self.tangent + self.slope
        if not np.isfinite(excess):
            fall, excess = self.fall, 2.0 * (self.after - self.before + self.fall)
        if not np.isfinite(excess):
            return shortest
        return min(max(fall / excess, shortest), longest) if excess > 0.0 else longest


def _mode_change(server: Server, state: State, origin: int, sites: Sequence[Natural]) -> Change:
    """Return it of the mode."""
    accepted, _ = _ends(server, state)
    last = state.history[-1]
    after, rounding = mode_objective(server, state.q_g, last.objective, sites)
    if origin == 0 and server.method.start == "sites":
        # the sites' own fits follow from no point; with the unknown ½ tr(HΣ) ≥ 0 left in it, F(m_0) is bounded above
        before, own_rounding = mode_objective(server, accepted, state.start_objective, ())
        fall = 0.0
    else:
        before, own_rounding = mode_objective(server, accepted, _objective(state, origin), state.sites)
        assert state.step is not None
        assert state.step.gradient is not None
        fall = -last.alpha * float(state.step.gradient @ state.step.move)
    return Change(after, before, fall, rounding + own_rounding)


def _change(server: Server, state: State, origin: int, sites: Sequence[Natural]) -> Change:
    """Return it of the posterior, whose objective is the recorded one."""
    q, prior = state.q_g, server.prior
    assert isinstance(q, Gaussian)
    assert isinstance(prior, Gaussian)
    after, before = state.history[-1].objective, _objective(state, origin)
    unit = rounding_unit(int(server.total), q.dim)
    rounding = unit * (abs(after) + abs(before) + q.dim)
    if origin == 0 and server.method.start == "sites":
        return Change(after, before, 0.0, rounding)
    accepted = _accepted(server, state)
    here, there = slope_to(prior, accepted, state.sites, q), slope_to(prior, q, sites, accepted)
    return Change(after, before, -here.change, rounding, -here.value, -there.value, unit * there.size)


def _origin(state: State) -> int | None:
    """Return the index of the last record whose answers count; A is the q_g that they were given at."""
    first = _fall(state) or 0
    counted = [
        first + j
        for j, record in enumerate(state.history[first:])
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


def mode_objective(
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


def concluded(
    server: Server, state: State, at_server: Sequence[Expected] | None, has_converged: bool
) -> tuple[State, Sequence[Expected] | None]:
    """Return the state that a run ends at, and the expectations at its q_g; None where the server lacks them.

    A Newton round gives q_g the curvature at the point before. When the clients have evaluated q_g, the server knows
    the curvature at its mean as well, and Laplace's approximation there needs no further exchange.
    """
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
