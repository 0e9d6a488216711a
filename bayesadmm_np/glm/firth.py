"""Firth's penalty: maximum of the likelihood times √det I(θ), which is finite for separated data too.

An iteration that the caller drives, over sums of sites.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._errors import ArgumentError
from .._numerics import Trial, line_search, nested, rounding_unit
from .._validation import Array, as_count, as_float_array, as_positive
from ..families.coordinates import Natural
from ..families.precision import DensePrecision
from ..losses.base import Loss
from .refit import Refit


class FirthQuestion(NamedTuple):
    """θ, and I(θ)⁻¹ once it is known."""

    theta: Array
    covariance: Array | None


class FirthAnswer(NamedTuple):
    """ℓ_k(θ) of a site, its gradient and Hessian, and `pull`, the site's share of ½ ∇ log det I(θ).

    That is ½ Σ_i h_i r_i x_i with h_i = w_i ℓ''_i x_iᵀI⁻¹x_i the leverages and r_i = ∂ log ℓ''_i/∂f; zeros where no
    covariance came.
    """

    value: float
    gradient: Array
    hessian: Array
    pull: Array


@dataclass(frozen=True, eq=False)
class FirthFit:
    """The mode of ℓ(θ) − ½ log det I(θ), with the `information` I there; standard errors are from its inverse.

    `sites` has the factors (I_k θ − g_k, I_k), g_k the gradient with the site's share of the penalty's: they add up to
    (I θ, I). `pulls` are the shares of ½ ∇ log det I; `value` is ℓ, and `penalty` ½ log det I.
    """

    mean: Array
    information: Array
    sites: tuple[Natural, ...]
    pulls: tuple[Array, ...]
    value: float
    penalty: float
    exchanges: int


def firth_answer(loss: Loss, question: FirthQuestion) -> FirthAnswer:
    """Answer at a site; raise a ValueError if the loss has no `log_curvature_slope`."""
    theta, covariance = question
    rows = loss.rows(theta)
    pointwise = getattr(loss, "pointwise", None)
    ratio = None if pointwise is None else pointwise.log_curvature_slope(rows.predictor)
    if ratio is None:
        expected = "must be None: 'firth' is for logistic and Poisson regression"
        raise ArgumentError("penalty", expected, loss.name, "Only binary classification is supported with it")
    pull = np.zeros(loss.dim)
    if covariance is not None:
        leverage = rows.weights * rows.curvature * np.einsum("ij,jk,ik->i", rows.X, covariance, rows.X, optimize=True)
        pull = 0.5 * (leverage * ratio) @ rows.X
    return FirthAnswer(loss.value(theta), loss.gradient(theta), loss.hessian(theta), pull)


def firth(
    start: ArrayLike,
    *,
    free: ArrayLike | None = None,
    fixed: ArrayLike | None = None,
    tol: float = 1e-10,
    most_steps: int = 200,
) -> Generator[FirthQuestion, Iterable[FirthAnswer], FirthFit]:
    """Minimise Σ_k ℓ_k(θ) − ½ log det I(θ), I = Σ_k ∇²ℓ_k, by quasi-Newton steps, shortened if it would increase.

    Every step takes two exchanges, one for I(θ) and one for the leverages under it. Each `yield` is a question for all
    sites; send back their answers in order. Coefficients that are not `free` stay where they start, and
    have no part in I; those that are `fixed` stay too, and have, as tests and profiles compare fits of one penalty.
    `tol` is the largest √(gᵀI⁻¹g), g the gradient of the objective: the last step in standard errors. Raises a
    ValueError when I is singular, as with collinear columns, or the steps are used up.

    D. Firth, Biometrika 80 (1993); for the logistic G. Heinze and M. Schemper, Statistics in Medicine 21 (2002).
    """
    as_positive(tol, "tol")
    theta = as_float_array(start, "start", ndim=1)
    kept = np.arange(theta.size) if free is None else np.flatnonzero(free)
    moving = np.ones(kept.size, dtype=bool) if fixed is None else ~np.asarray(fixed, dtype=bool)[kept]
    exchanges = 0

    def at(theta: Array) -> Generator[FirthQuestion, Iterable[FirthAnswer], Trial]:
        nonlocal exchanges
        exchanges += 1
        point = _Point(theta, kept, tuple((yield FirthQuestion(theta, None))))
        return Trial(point.objective, point=point)

    def moved(begin: Array, step: Array, t: float) -> Generator[FirthQuestion, Iterable[FirthAnswer], Trial]:
        theta = begin.copy()
        theta[kept[moving]] += t * step
        return at(theta)

    point: _Point = (yield from at(theta)).point
    if not np.isfinite(point.objective):
        raise ArgumentError("X", "must have no collinear columns for Firth's penalty, and no rows that overflow")
    secants: list[tuple[Array, Array]] = []
    step, gradient = np.zeros(int(moving.sum())), None
    for _ in range(as_count(most_steps, "most_steps")):
        answers = list((yield FirthQuestion(point.theta, point.covariance)))
        pulls, exchanges = [answer.pull for answer in answers], exchanges + 1
        before, gradient = gradient, (point.gradient - np.sum(pulls, axis=0)[kept])[moving]
        factor = point.factor
        if not moving.all():
            factor = DensePrecision(point.information[np.ix_(kept[moving], kept[moving])])
        if before is not None:
            secants.append((step, gradient - before))
        if not gradient.size or gradient @ factor.solve(gradient) <= tol**2:
            sites = tuple(
                Natural(own.hessian @ point.theta - own.gradient + pull, own.hessian)
                for own, pull in zip(point.answers, pulls, strict=True)
            )
            return FirthFit(point.theta, point.information, sites, tuple(pulls), point.value, point.penalty, exchanges)
        step = -_solve(factor, secants, gradient)
        hidden = rounding_unit() * (abs(point.value) + abs(point.penalty))
        search = line_search(point.objective, float(gradient @ step), hidden)
        there, t = yield from nested(search, partial(moved, point.theta, step))
        if there is None:
            raise ArgumentError(
                "penalty", "must have a step that lowers the objective: sums of sites contradict each other"
            )
        point, step = there.point, t * step
    raise ArgumentError("most_steps", "must be enough for Firth's penalty to converge", most_steps)


def firth_without(start: Array, free: ArrayLike, fixed: ArrayLike) -> Generator[Any, Any, Refit]:
    """Fit with some coefficients fixed; the value is that of the penalised loss."""
    found = yield from firth(start, free=free, fixed=fixed)
    return Refit(found.mean, found.value - found.penalty, found.exchanges)


def turned(back: Array, at: FirthQuestion) -> Generator[FirthQuestion, Iterable[FirthAnswer], list[FirthAnswer]]:
    """Ask about φ with θ = back @ φ, and return the answers in φ."""
    covariance = None if at.covariance is None else back @ at.covariance @ back.T
    answers = yield FirthQuestion(back @ at.theta, covariance)
    return [
        FirthAnswer(one.value, back.T @ one.gradient, back.T @ one.hessian @ back, back.T @ one.pull) for one in answers
    ]


def _solve(information: DensePrecision, secants: Sequence[tuple[Array, Array]], gradient: Array) -> Array:
    """Solve with the information, corrected by the penalty's curvature along past steps (L-BFGS)."""
    left, scales = gradient, []
    usable = [(step, rise, step @ rise) for step, rise in secants if step @ rise > 0.0]
    for step, rise, curvature in reversed(usable):
        scales.append((step @ left) / curvature)
        left = left - scales[-1] * rise
    solved = information.solve(left)
    for step, rise, curvature in usable:
        solved = solved + (scales.pop() - (rise @ solved) / curvature) * step
    return np.asarray(solved)


@dataclass(frozen=True, eq=False)
class _Point:
    """The sums at a θ; the objective is infinite where I is singular."""

    theta: Array
    kept: NDArray[np.intp]
    answers: tuple[FirthAnswer, ...]

    @cached_property
    def value(self) -> float:
        return sum(answer.value for answer in self.answers)

    @cached_property
    def gradient(self) -> Array:
        return np.asarray(np.sum([answer.gradient for answer in self.answers], axis=0)[self.kept])

    @cached_property
    def information(self) -> Array:
        return np.asarray(np.sum([answer.hessian for answer in self.answers], axis=0))

    @cached_property
    def factor(self) -> DensePrecision:
        return DensePrecision(self.information[np.ix_(self.kept, self.kept)])

    @property
    def covariance(self) -> Array:
        whole = np.zeros_like(self.information)
        whole[np.ix_(self.kept, self.kept)] = self.factor.covariance_parts[0]
        return whole

    @property
    def penalty(self) -> float:
        return 0.5 * self.factor.logdet

    @cached_property
    def objective(self) -> float:
        finite = np.isfinite(self.value) and np.isfinite(self.information).all()
        return self.value - self.penalty if finite and self.factor.is_positive_definite() else np.inf
