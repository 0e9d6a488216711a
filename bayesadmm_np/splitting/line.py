"""Lines along which a guard searches: a target from all clients' answers at a point, and F at both ends.

A line of the mode is straight in the mean, and F is Σ_kℓ_k(m) + ½‖m − m_0‖²_{P_0}. A line of the posterior is straight
in mean and Cholesky factor, where F = Σ_kE_q[ℓ_k] + KL(q‖π_0) is convex.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .._numerics import EPS, falls, parabola_share, rounding_unit
from .._validation import Array
from ..clients.problem import Solution
from ..families.base import ExponentialFamily
from ..families.coordinates import Natural
from ..families.gaussian import Gaussian, LearnedPrecisionGaussian
from ..families.precision import DensePrecision
from ..losses.base import GaussianExpected
from ..losses.tensors import JointSums, tensor_size
from .joint import along, curvature_step, joint_step, secant_step, slope_to, sums_of
from .messages import Reply
from .step import pooled_gradient
from .tree import MEMORIES

if TYPE_CHECKING:
    from .server import Server
    from .worker import Worker

CREDIT = 1e-3  # how far F may be above its lowest value, and above what its slope allows, relative to 1 + that value
MOST_BENT = 0.5  # longest bend, relative to Newton's step in the metric of the curvature

MOST_NUMBERS = 1 << 16
"""Numbers beside λ_k up to which a client makes them: tensors of 33 parameters (of 42 where rows have two predictors,
of 45 with three and 48 with six), the correlations of 362; half a MiB."""


@MEMORIES.register
@dataclass(frozen=True)
class Answer:
    """Sums of one client at a point; without a site where they overflow."""

    value: float  # E_q[ℓ_k]
    site: Natural | None = None  # −∇_μE_q[ℓ_k]
    slope: Array | None = None  # E_q[∇ℓ_k]
    curvature: Array | None = None  # E_q[∇²ℓ_k], where it is more than the family's part
    tensors: Array | None = None

    @classmethod
    def of(cls, reply: Reply) -> Answer:
        """Return the sums of a reply."""
        value = reply.value if np.isfinite(reply.value) else float("inf")
        if not (reply.status.is_usable and reply.site.is_finite()):
            return cls(float("inf"))
        return cls(value, reply.site, reply.slope, reply.curvature, reply.tensors)


@MEMORIES.register
@dataclass(frozen=True)
class Point:
    """A distribution of the server, and all clients' answers there."""

    natural: Natural
    mean: Array  # which λ keeps to rounding alone
    value: float = float("nan")  # Σ_kE_q[ℓ_k] + KL(q‖π_0)
    answers: tuple[Answer, ...] = ()
    values: tuple[float, ...] = ()  # E_q[ℓ_k], which stay where the answers are dropped

    @classmethod
    def of(cls, server: Server, q: Any, answers: Sequence[Answer] = ()) -> Point:
        """Return the point at q."""
        value = sum(one.value for one in answers) + q.kl(server.prior) if answers else float("nan")
        whole, values = float("inf") if answers and np.isnan(value) else float(value), [one.value for one in answers]
        return cls(q.natural, q.mean, whole, tuple(answers), tuple(values))

    def distribution(self, like: Any) -> Any:
        """Return the member of a family, at its mean to the last bit."""
        is_learned = isinstance(like, LearnedPrecisionGaussian)
        return like.at(self.mean, self.natural.parts[1:]) if is_learned else like.with_natural(self.natural)

    @property
    def sites(self) -> list[Natural]:
        """η_k of natural gradients at the point."""
        return [one.site for one in self.answers if one.site is not None]

    def slopes(self) -> list[Array] | None:
        """Return E_q[∇ℓ_k] of all clients, None where one is not known."""
        found = [one.slope for one in self.answers if one.slope is not None]
        return found if found and len(found) == len(self.answers) else None


@dataclass(frozen=True)
class Change:
    """F at both ends A and T of a step."""

    after: float
    before: float
    fall: float  # promised by a lower model
    rounding: float  # of both values
    tangent: float = np.nan  # the negated slope at A, where slopes are looked at
    slope: float = np.nan  # at T
    slope_rounding: float = 0.0

    @property
    def is_vague(self) -> bool:
        """Return whether the values are less accurate than the slopes."""
        rise = self.after - self.before
        if not np.isfinite(self.slope):
            return False
        return abs(rise) <= self.rounding or rise > self.slope + self.slope_rounding + self.rounding

    @property
    def is_coarse(self) -> bool:
        """Return whether F rose by a `CREDIT` more than its slope at T, as no convex function does."""
        excess = self.after - self.before - self.slope - self.slope_rounding - self.rounding
        return excess > CREDIT * (1.0 + abs(self.before))

    def is_accepted(self, lowest: float) -> bool:
        """Return whether T is a step down: by Armijo's rule, or where values are vague by a slope half of that at A.

        Even then F must stay close to its `lowest` known value.
        """
        least = min(self.before, lowest)
        credit = CREDIT * (1.0 + abs(least))
        if not self.is_vague:
            # a value whose rounding is larger than that is no evidence of a fall
            return falls(self.before, self.after, self.fall, min(self.rounding, credit))
        near = self.after <= least + credit
        return near and self.slope <= 0.5 * self.tangent + self.slope_rounding

    def stretch(self) -> float:
        """Return the next step relative to the one to T, by the slopes at both ends or by the fall and F at T."""
        if np.isfinite(self.tangent + self.slope):
            return parabola_share(self.tangent, slope=self.slope)
        return parabola_share(self.fall, rise=self.after - self.before)


class Line(ABC):
    """A direction of descent of the pooled objective, and the comparison of two points along it."""

    def q_of(self, server: Server, point: Point) -> Any:
        """Return the distribution of a point, at its mean to the last bit."""
        return point.distribution(server.prior.start())

    highest: float = np.inf
    """Largest F per row of data at which a search may begin."""

    def beside(self, worker: Worker, solution: Solution) -> dict[str, Any]:
        """Return what a client gives of a point beside value and site."""
        return _sums(solution)

    @abstractmethod
    def target(self, server: Server, point: Point, last: Point | None, is_plain: bool) -> Point | None:
        """Return the end of the line from a point; None where there is none. `is_plain` asks for a second direction."""

    @abstractmethod
    def between(self, server: Server, point: Point, target: Point, share: float) -> Point:
        """Return the point at a share of the way."""

    @abstractmethod
    def change(self, server: Server, point: Point, trial: Point, target: Point, share: float) -> Change:
        """Compare F at a point, where clients may have sent values alone, with F at a trial point."""


class ModeLine(Line):
    """Newton's direction for the mode, by the dense curvature if clients send more than the family's part."""

    def target(self, server: Server, point: Point, last: Point | None, is_plain: bool) -> Point | None:
        natural = server.gather(point.sites, point.sites, 1.0)
        slopes, prior = point.slopes(), server.prior
        if slopes is None or not prior.contains(natural):
            return None
        q: Any = self.q_of(server, point)
        gradient = pooled_gradient(prior, q, slopes)  # type: ignore[arg-type]
        metric = here = q.factor.like(natural.parts[1:])
        curvature = [one.curvature for one in point.answers if one.curvature is not None]
        if len(curvature) == len(point.answers) and not is_plain:
            dense = DensePrecision(prior.factor.multiply(np.eye(q.dim)) + np.add.reduce(curvature))  # type: ignore[attr-defined]
            metric = dense if dense.is_positive_definite() else here
        move = -metric.solve(gradient)
        if not is_plain and last is not None:
            move = bent(self, server, here, q, gradient, move, last)
        return Point(q.at(point.mean + move, here.parts).natural, point.mean + move)

    def between(self, server: Server, point: Point, target: Point, share: float) -> Point:
        if share == 1.0:
            return target
        mean = point.mean + share * (target.mean - point.mean)
        q: Any = self.q_of(server, target)
        return Point(q.at(mean, q.factor.parts).natural, mean)

    def change(self, server: Server, point: Point, trial: Point, target: Point, share: float) -> Change:
        q, accepted = self.q_of(server, trial), self.q_of(server, point)
        after, rounding = mode_objective(server, q, trial.value, trial.sites)
        # with nothing told but values the unknown ½ tr(HΣ) ≥ 0 is left in F, which bounds F there from above
        before, own_rounding = mode_objective(server, accepted, point.value, point.sites)
        slopes, fall = point.slopes(), 0.0
        if slopes is not None:
            gradient = pooled_gradient(server.prior, accepted, slopes)  # type: ignore[arg-type]
            fall = -share * float(gradient @ (target.mean - point.mean))
        return Change(after, before, fall, rounding + own_rounding)


def bent(line: Line, server: Server, here: Any, q: Gaussian, gradient: Array, move: Array, last: Point) -> Array:
    """Return Newton's step corrected by the third derivative of F along the last step (docs/methods.md).

    ∇³F[a, a] ≈ 6(g_A − g) + 2H_Aa + 4Ha,    ∇³F[a] ≈ H − H_A    for the last step a = m − m_A,
    s − ½H⁻¹∇³F[s, s],    ∇³F[s, s] ≈ t²∇³F[a, a] + 2t∇³F[a]r    for s = ta + r, r ⟂ a in the metric of H
    """
    slopes = last.slopes()
    if slopes is None or not isinstance(here, DensePrecision):  # a part of H has no such derivative
        return move
    before = here.like(server.gather(last.sites, last.sites, 1.0).parts[1:])
    way = q.mean - last.mean
    turned = here.multiply(way)
    if not float(way @ turned) > 0.0:  # a step of no length tells nothing
        return move
    first = pooled_gradient(server.prior, line.q_of(server, last), slopes)  # type: ignore[arg-type]
    part = float(move @ turned) / float(way @ turned)
    rest = move - part * way
    along_ = 6.0 * (first - gradient) + 2.0 * before.multiply(way) + 4.0 * turned
    across = here.multiply(rest) - before.multiply(rest)
    bend = -0.5 * here.solve(part**2 * along_ + 2.0 * part * across)
    length = float(move @ here.multiply(move))
    return move + bend if float(bend @ here.multiply(bend)) <= MOST_BENT**2 * length else move


@dataclass(frozen=True)
class PosteriorLine(Line):
    """The joint Newton direction for the posterior; the plain one leaves the tensors out."""

    tensors: bool = True
    highest = 1e6

    def beside(self, worker: Worker, solution: Solution) -> dict[str, Any]:
        found, q = super().beside(worker, solution), solution.posterior
        if not (found and isinstance(q, Gaussian)):
            return {}
        is_small = self.tensors and tensor_size(q, worker.loss.n_outputs) <= MOST_NUMBERS
        if is_small and worker.loss.has_tensors and not worker.rule.is_delta:
            found["tensors"] = worker.loss.tensors(q, worker.rule)
        return found

    def target(self, server: Server, point: Point, last: Point | None, is_plain: bool) -> Point | None:
        q = self.q_of(server, point)
        sums, prior = _joint_sums(q, point), server.prior
        if sums is None:
            natural = server.gather(point.sites, point.sites, 1.0)
            end: Any = prior.with_natural(natural) if prior.contains(natural) else None
            return None if end is None else Point(end.natural, end.mean)
        assert isinstance(prior, Gaussian)
        before = q if last is None else self.q_of(server, last)
        earlier = None if last is None or is_plain else _joint_sums(before, last)
        if not is_plain and all(own.tensors is not None for own in sums):
            end = joint_step(prior, q, sums, server.n_outputs)
        elif earlier is not None:
            end = secant_step(prior, q, sums, before, earlier)
        else:
            end = curvature_step(prior, q, sums)
        return None if end is None else Point(end.natural, end.mean)

    def between(self, server: Server, point: Point, target: Point, share: float) -> Point:
        if share == 1.0:
            return target
        q = along(self.q_of(server, point), self.q_of(server, target), share)
        return point if q is None else Point(q.natural, q.mean)

    def change(self, server: Server, point: Point, trial: Point, target: Point, share: float) -> Change:
        q, accepted, prior = self.q_of(server, trial), self.q_of(server, point), server.prior
        unit = rounding_unit(int(server.total), q.dim)
        rounding = unit * (abs(trial.value) + abs(point.value) + q.dim)
        if not point.answers:
            return Change(trial.value, point.value, 0.0, rounding)
        here = slope_to(prior, accepted, point.sites, q)  # type: ignore[arg-type]
        there = slope_to(prior, q, trial.sites, accepted)  # type: ignore[arg-type]
        return Change(trial.value, point.value, -here.change, rounding, -here.value, -there.value, unit * there.size)


def _sums(solution: Solution) -> dict[str, Any]:
    """Return gradient, and dense curvature where the family has a part of it alone and it is small enough."""
    q, expected = solution.posterior, solution.expected
    if not (isinstance(q, Gaussian) and isinstance(expected, GaussianExpected) and solution.status.is_usable):
        return {}
    found: dict[str, Any] = {"slope": expected.gradient}
    if dense_size(q):
        found["curvature"] = expected.curvature.dense()
    return found


def dense_size(q: Gaussian) -> int:
    """Return the numbers of a dense curvature, 0 where the family's part is all of it or they are too many."""
    size = q.dim * (q.dim + 1) // 2
    is_whole = q.learns_precision and isinstance(q.factor, DensePrecision)
    return 0 if is_whole or size > MOST_NUMBERS else size


def _joint_sums(q: Gaussian, point: Point) -> list[JointSums] | None:
    """Return gradient, dense curvature and tensors of all clients; None where a curvature is not known whole."""
    found = []
    for answer in point.answers:
        if answer.site is None:
            return None
        curvature, slope = answer.curvature, answer.slope
        if curvature is None and len(answer.site.parts) == 2 and answer.site.parts[1].ndim == 2:
            curvature = answer.site.parts[1]
        if curvature is None:
            return None
        found.append(JointSums(sums_of(q, answer.site)[0] if slope is None else slope, curvature, answer.tensors))
    return found or None


def mode_objective(
    server: Server, q: ExponentialFamily, objective: float, sites: Sequence[Natural]
) -> tuple[float, float]:
    """Return F(m) and its rounding: the objective at q without ½ tr((P_0 + Σ_kH_k)Σ) and the entropy."""
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
