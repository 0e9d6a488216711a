"""Least squares from the sites' triangular factors, and the result of a fit that needs no rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._errors import ArgumentError
from .._numerics import EPS
from .._validation import Array
from ..families import FullGaussian
from ..families.precision import DensePrecision
from ..losses.base import Expected
from ..losses.stacked_qr import SiteFactor, StackedFit, WeightKind, solve_stacked
from ..splitting.certificate import PooledObjective
from ..splitting.result import Result
from ..splitting.state import State
from ..splitting.status import Edges, RoundRecord, Status
from .columns import HOLD
from .diagnosis import Finding, search_dependence

MOST_STEPS = 200
NEAR = (
    "A relative change of {:.0e} in the columns makes one of them a combination of the others: the last digits of the "
    "coefficients are rounding, and sums in doubles cannot certify them."
)
HELD = (
    "Columns are nearly combinations of those before them, and their coefficients, which no rows determine, are held "
    "at zero: {}; leave them out."
)
PERFECT = "The fit is perfect, or nearly: standard errors are near rounding, and sums in doubles cannot certify it."
UNCERTIFIED = (
    "Sums in doubles cannot certify this fit, whose columns are nearly dependent; the coefficients are those of "
    "triangular factors, and need no such sums."
)
SHORTEST = (
    "The penalty is below the rounding of columns that depend on each other: the coefficients are those of minimum "
    "norm, nothing bounds their distance to the penalised fit, and those of such columns have no standard error."
)
NO_FREEDOM = (
    "There are as many coefficients as rows, or as weights add up to: the fit has no residuals to estimate the "
    "noise variance. The variance of y replaces it, and standard errors are meaningless; give noise_variance, or use "
    "fewer columns."
)


@dataclass(frozen=True, eq=False)
class Solved:
    """A least-squares fit, whose noise variance was given, or is RSS over the degrees of freedom.

    `penalty`, shape (p, p), is the prior precision times the noise variance; `hold`, shape (k,), is what holds the
    directions `fit.held` at zero; `null_variance` is the mean square of y about its mean.
    """

    fit: StackedFit
    noise: float
    is_estimated: bool
    null_variance: float
    penalty: Array
    hold: Array

    @property
    def is_resolved(self) -> bool:
        """Return whether no direction is held that the penalty determines, but by less than the columns' rounding."""
        held = self.fit.held
        return not (np.abs(held.T @ self.penalty @ held) > EPS * np.abs(self.penalty).max(initial=0.0)).any()

    def at_the_centre(self, centre: Array | None) -> tuple[Array, FullGaussian, FullGaussian]:
        """Return θ, prior and posterior; the intercept, where there is one, is b + coefᵀcentre for a `centre`."""
        fit = self.fit
        p, is_free = fit.coef.shape[1], self.penalty.shape[0] < fit.information_root.shape[1]
        width, n_outputs = p + is_free, fit.coef.shape[0]
        there = np.eye(width)
        coef, intercept = np.nan_to_num(fit.coef), fit.intercept
        if is_free:
            # the information is measured at a point of its own
            there[-1, :p] = fit.centre if centre is None else fit.centre - centre
            intercept = intercept if centre is None else intercept + coef @ centre
        held = np.zeros((self.hold.size, width))
        held[:, :p] = (np.sqrt(self.hold) * fit.held).T
        root = np.concatenate([fit.information_root @ there, held])
        root = np.kron(np.eye(n_outputs), root / np.sqrt(self.noise))
        theta = np.column_stack([coef, intercept])[:, :width].ravel()
        posterior = FullGaussian(theta, DensePrecision.from_root(root))
        block = np.zeros((width, width))
        block[:p, :p] = (self.penalty + (self.hold * fit.held) @ fit.held.T) / self.noise
        prior = FullGaussian(np.zeros(theta.size), np.kron(np.eye(n_outputs), block))
        return theta, prior, posterior

    def caveat(self, has_converged: bool) -> str:
        """Return what is to be known of the fit besides what is held."""
        if not self.is_resolved:
            return SHORTEST
        if self.is_estimated and not self.fit.df > 0:
            return NO_FREEDOM
        if has_converged:
            return ""
        is_perfect = self.noise <= EPS * self.null_variance
        near = NEAR.format(self.fit.closeness)
        return near if self.fit.closeness < np.sqrt(EPS) else PERFECT if is_perfect else UNCERTIFIED


def solve(
    factors: Sequence[SiteFactor],
    precision: Array,
    labels: Sequence[str],
    information: Array,
    null_variance: float,
    *,
    noise: float | None = None,
    is_relative: bool = False,
    weight_kind: WeightKind = "frequency",
    shortest: bool = False,
) -> Solved:
    """Solve at the given noise variance, or repeat with the unbiased one until it is its own; hold collinear columns.

    With `shortest` dependent columns have the solution of minimum norm. `precision`, shape (p, p), is the prior's,
    times the noise variance if `is_relative`; for `information` and `null_variance` see `information_of`. Raises a
    ValueError when the prior is none, or the estimate does not settle.
    """
    is_estimated, now = noise is None, null_variance if noise is None else noise
    settings: dict[str, Any] = {"weight_kind": weight_kind, "shortest": shortest, "sizes": np.sqrt(information)}
    for _ in range(MOST_STEPS):
        penalty = precision if is_relative else precision * now
        try:
            fit = solve_stacked(factors, penalty, labels, **settings)
        except ArgumentError as error:
            raise ArgumentError("prior_precision", error.expected, error.got) from error
        last = now
        now = _variance(fit, null_variance) if is_estimated else now
        if is_relative or not precision.any() or abs(now - last) <= 4.0 * EPS * now:
            # nᵀθ = 0 holds at any strength of a direction n; that of a coefficient tells that it is held
            strength = np.where((fit.held != 0.0).sum(axis=0) == 1, HOLD, 1.0)
            return Solved(fit, now, is_estimated, null_variance, penalty, strength * (information @ fit.held**2))
    raise ArgumentError("noise_variance", "must be a number here", "", "its estimate under this prior does not settle")


def _variance(fit: StackedFit, null_variance: float) -> float:
    """The unbiased noise variance; of an exact fit what rounding of the target leaves."""
    if not fit.df > 0:
        return null_variance or 1.0
    least = EPS**2 * (null_variance or 1.0)
    return max(float(fit.variance.mean()), least)


def information_of(factors: Sequence[SiteFactor]) -> tuple[Array, float]:
    """Return Σ_i w_i x_ij² of each column, 1 of a column of zeros, and the mean square of y about its mean."""
    first = factors[0]
    p, ones = first.n_features, int(first.has_intercept)
    total = sum(factor.total_weight for factor in factors)
    squares = np.zeros(p + first.n_outputs)
    for factor in factors:
        moved = factor.root[:, ones:] + (factor.root[:, :1] * factor.shift if ones else 0.0)
        squares += (moved**2).sum(axis=0)
    mean = sum(factor.total_weight / total * factor.shift[p:] for factor in factors)
    # about the mean of all, without subtracting squares
    spread = sum(
        ((factor.root[:, ones + p :] + (factor.root[:, :1] * (factor.shift[p:] - mean) if ones else 0.0)) ** 2).sum()
        for factor in factors
    )
    whole = squares[:p]
    return np.where(whole > 0, whole, 1.0), float(spread / (total * first.n_outputs))


def dependence(
    factors: Sequence[SiteFactor], held: Sequence[str], columns: Sequence[str], intercepts: Sequence[int], units: Array
) -> tuple[tuple[Finding, ...], Array, str]:
    """Return the relation of each column that a fit holds at zero, and its direction; see `search_dependence`.

    X @ units is the design in the columns' own units. A sentence names columns that have no relation, up to rounding.
    """
    findings, flat = search_dependence([_design_root(one) @ units for one in factors], columns, intercepts)
    known = [finding.column for finding in findings]
    kept = [i for i, name in enumerate(known) if name in held]
    unnamed = ", ".join(repr(name) for name in held if name not in known)
    return tuple(findings[i] for i in kept), flat[:, kept], HELD.format(unnamed) if unnamed else ""


def _design_root(factor: SiteFactor) -> Array:
    """R of the design alone: of the columns, and of the ones, which come last."""
    root, p = factor.root, factor.n_features
    if not factor.has_intercept:
        return root[:, :p]
    ones = root[:, :1]
    return np.column_stack([root[:, 1 : p + 1] + ones * factor.shift[:p], ones])


def settled(
    prior: FullGaussian,
    posterior: FullGaussian,
    expected: Sequence[Expected],
    tol: float,
    is_resolved: bool = True,
) -> Result:
    """Return the result of a fit that needed no rounds, of one record: it holds where the posterior is stationary.

    The posterior is that of its Cholesky factor, which a message has: doors agree bit for bit.
    """
    if posterior.factor.is_positive_definite():
        posterior = FullGaussian(posterior.mean, DensePrecision.from_root(posterior.factor.cholesky.T))
    sites = tuple(-each.natural_gradient for each in expected)
    edges = Edges(0.0, 0.0, PooledObjective(prior, posterior, expected).residual, 0.0)
    objective = sum(each.value for each in expected) + posterior.kl(prior)
    record = RoundRecord(1, objective, 1.0, edges, (), False, 0, 0, 0.0)
    state = State(posterior, sites, (posterior.natural,) * len(sites), None, objective, (record,))
    done = Status.CONVERGED if edges.gather <= tol else Status.ROUND_LIMIT
    done = done if is_resolved else Status.UNRESOLVED
    return Result(done, done.value, prior, state, tol, list(expected), dict)
