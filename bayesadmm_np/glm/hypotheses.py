"""Tests of terms, of type II and III, by estimates or by fits without a term; intervals of the profile likelihood."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import qr

from .._numerics import nested
from .._validation import Array
from ..design.agreement import Term
from .estimable import combinations
from .firth import firth_without, turned
from .inference import LEVEL, Noise, Test, likelihood_ratio_test, reach_of, wald_test
from .limit import Steps
from .refit import Derivatives, Refit, refit, without

TestName = Literal["none", "wald", "lr", "score"]
"""Tests of terms: from the estimates, or by fits without the terms (`REFITS`)."""

NAMES: Mapping[TestName, str] = {"wald": "Wald", "lr": "likelihood ratio", "score": "Rao's score"}

TestType = Literal["II", "III"]
TYPES: tuple[TestType, ...] = ("II", "III")

NOTHING = "other columns of the model make up its columns"
INFINITE = "a coefficient has no finite estimate; the likelihood ratio has a limit"


@dataclass(frozen=True)
class TermTest:
    """A test of a term: a χ² with `df` degrees of freedom, or an F with `df` and `df_residual` where that is not None.

    `df` is the number of coefficients of the term that the rows determine beside the others. Type II tests a term
    beside all that do not contain it (`car::Anova`), type III beside all other columns, in the coding of the formula.
    The type '' is that of columns that the user named. Without a statistic `why` has the reason. `how` names the test.
    """

    name: str
    statistic: float | None
    df: int
    df_residual: float | None
    p_value: float | None
    type: Literal["II", "III", ""] = ""
    why: str = ""
    how: TestName = "wald"

    def __post_init__(self) -> None:
        numbers = [value for value in (self.statistic, self.p_value) if value is not None]
        if self.df < 0 or not np.isfinite(numbers).all() or (len(numbers) < 2) is not bool(self.why):
            raise ValueError("a test must have a finite statistic with P, or a reason why it has none")

    def __str__(self) -> str:
        if self.statistic is None or self.p_value is None:
            return f"{self.name}: no test, as {self.why}"
        return str(Test(self.name, self.statistic, self.df, self.df_residual, self.p_value))


@dataclass(frozen=True)
class Hypothesis:
    """Zero coefficients at `places` of θ, in a model without those at `above`: terms that contain the tested one."""

    name: str
    places: tuple[int, ...]
    above: tuple[int, ...] = ()
    type: Literal["II", "III", ""] = ""

    def df(self, flat: Array) -> int:
        """Return by how many dimensions the model without the term is smaller."""
        return len(combinations(self.above + self.places, flat)) - len(combinations(self.above, flat))

    def found(self, test: Test) -> TermTest:
        """Return a test of it."""
        return TermTest(self.name, test.statistic, test.df, test.df_residual, test.p_value, self.type)

    def lacks(self, df: int, why: str) -> TermTest:
        """Return a test that there is not."""
        return TermTest(self.name, None, df, None, None, self.type, why.rstrip("."))


def hypotheses(
    terms: Sequence[Term], width: int, n_outputs: int, type: Literal["II", "III", ""]
) -> tuple[Hypothesis, ...]:
    """Return a hypothesis for each term, at all outputs of θ, which has `width` coefficients for each."""

    def places(columns: Sequence[int]) -> tuple[int, ...]:
        return tuple(output * width + j for output in range(n_outputs) for j in columns)

    def above(term: Term) -> list[int]:
        beyond = [other for other in terms if type == "II" and term.factors < other.factors]
        return [j for other in beyond for j in other.columns]

    return tuple(Hypothesis(term.name, places(term.columns), places(above(term)), type) for term in terms)


def wald_tests(
    asked: Iterable[Hypothesis],
    mean: Array,
    covariance: Array,
    flat: Array,
    determines: Callable[[Array], NDArray[np.bool_]],
    df_residual: float | None = None,
) -> tuple[TermTest, ...]:
    """Test that estimable combinations of a term are zero, given that those of the terms above it are.

    The combinations L of both are uncorrelated with those of the terms above alone, so that the statistic is
    W(both) − W(above), as in `car::Anova(test.statistic = "Wald")`.
    """
    found = []
    for one in asked:
        L, inner = combinations(one.above + one.places, flat), combinations(one.above, flat)
        df = len(L) - len(inner)
        if not df or not determines(L).all():
            found.append(one.lacks(df, INFINITE if df else NOTHING))
            continue
        if len(inner):
            L = L / np.sqrt(np.einsum("ij,jk,ik->i", L, covariance, L))[:, None]
            Q, _ = qr(L @ covariance @ inner.T / np.sqrt(np.einsum("ij,jk,ik->i", inner, covariance, inner)))
            L = Q[:, len(inner) :].T @ L
        found.append(one.found(wald_test(mean, covariance, L, name=one.name, df_residual=df_residual)))
    return tuple(found)


def ratio_tests(
    asked: Iterable[Hypothesis],
    fit: Callable[[NDArray[np.bool_]], Steps],
    flat: Array,
    full: float | None,
    noise: Noise,
    df_residual: float | None = None,
    left: float | None = None,
) -> Generator[Array, Iterable[Derivatives], tuple[TermTest, ...]]:
    """Test each term by the pooled losses of fits without and with it, both without the terms above it.

    Each `yield` is a θ to be sent to the sites. `fit` is the `supremum` of the model with some coefficients, and `full`
    the pooled loss of the whole model, None where it has to be found, in the units of the sites' losses. `left` stands
    for it in an F, where the residuals are measured otherwise.
    """
    known: dict[frozenset[int], float | ValueError] = {} if full is None else {frozenset(): full}

    def loss(dropped: frozenset[int]) -> Generator[Array, Iterable[Derivatives], float]:
        if dropped not in known:
            try:
                known[dropped] = (yield from fit(without(len(flat), list(dropped)))).value
            except ValueError as error:
                known[dropped] = error
        value = known[dropped]
        if isinstance(value, ValueError):
            raise value
        return value

    def drop(one: Hypothesis) -> Generator[Array, Iterable[Derivatives], float]:
        return (yield from loss(frozenset(one.above + one.places))) - (yield from loss(frozenset(one.above)))

    return (yield from _tests(asked, drop, flat, full if left is None else left, noise, df_residual))


def _tests(
    asked: Iterable[Hypothesis],
    drop: Callable[[Hypothesis], Generator[Array, Iterable[Derivatives], float]],
    flat: Array,
    full: float | None,
    noise: Noise,
    df_residual: float | None,
) -> Generator[Array, Iterable[Derivatives], tuple[TermTest, ...]]:
    """Test each term by the `drop` of the loss."""
    found = []
    for one in asked:
        df = one.df(flat)
        try:
            if not df:
                raise ValueError(NOTHING)
            test = likelihood_ratio_test(
                (yield from drop(one)), df, one.name, noise=noise, full=full, df_residual=df_residual
            )
            found.append(one.found(test))
        except ValueError as error:
            found.append(one.lacks(df, str(error)))
    return tuple(found)


RESOLVED = 1e-10
"""Smallest share of the information, in units of each coefficient's own, that is no rounding."""


def score_tests(
    asked: Iterable[Hypothesis],
    fit: Callable[[NDArray[np.bool_]], Steps],
    flat: Array,
    full: float | None,
    noise: Noise,
    df_residual: float | None = None,
    left: float | None = None,
) -> Generator[Array, Iterable[Derivatives], tuple[TermTest, ...]]:
    """Test each term by Rao's score UᵀI⁻¹U, U and I the slope and information at the fit without the term.

    Both are of the model with the term, but without the terms above it; where a whole fit has no maximum the score has
    a value all the same. For the arguments see `ratio_tests`. C. R. Rao, Proc. Camb. Phil. Soc. 44 (1948).
    """

    def drop(one: Hypothesis) -> Generator[Array, Iterable[Derivatives], float]:
        theta = (yield from fit(without(len(flat), list(one.above + one.places)))).theta
        answers, kept = list((yield theta)), without(len(flat), list(one.above))
        slope = np.sum([answer.gradient for answer in answers], axis=0)[kept]
        information = np.sum([answer.hessian for answer in answers], axis=0)[np.ix_(kept, kept)]
        units = np.sqrt(np.diagonal(information))
        units = np.where(units > 0.0, units, 1.0)
        # dependent columns have no slope along their direction
        step = np.linalg.lstsq(information / np.outer(units, units), slope / units, rcond=RESOLVED)[0]
        if slope / units @ step < 0.0:
            raise ValueError("the information without the term is not definite: take the likelihood ratio")
        return 0.5 * float(slope / units @ step)

    return (yield from _tests(asked, drop, flat, full if left is None else left, noise, df_residual))


REFITS = {"lr": ratio_tests, "score": score_tests}
"""Tests by fits without a term, by name: a generator added here is available everywhere."""


# --- Intervals -------------------------------------------------------------------------------------------------

CLOSE = 1e-9
"""On the signed root, which is a distance in standard errors."""

FARTHEST = 100.0
"""Standard errors beyond which no end is looked for: the likelihood is flat on that side."""


def profile_bound(
    theta: Array,
    loss: float | None,
    row: ArrayLike,
    std_err: float,
    side: float,
    free: ArrayLike,
    level: float = LEVEL,
) -> Generator[Any, Any, float | None]:
    """Find where max{log L : aᵀθ = b} has dropped by ½q²: an end b of the interval of aᵀθ, or None without such.

    q is the normal quantile of the `level`, so that the drop is 1.92 for 95 %.

    The signed root of twice the drop is nearly linear in b, so that a secant finds it; each b is a `refit` of all else.
    `loss` is the pooled loss at θ, or None with Firth's penalty; `side` −1 or 1 for the lower or upper end, `free`
    which coefficients the model has.
    """
    a, mask = np.asarray(row, dtype=np.float64), np.array(free, dtype=bool)
    j = int(np.argmax(np.abs(a) * mask))
    back = np.eye(a.size)  # θ = back @ φ, where φ_j is aᵀθ and the other entries are those of θ
    back[j] = -a / a[j]
    back[j, j] = 1.0 / a[j]
    mask[j] = False
    point, centre = np.where(np.arange(a.size) == j, a @ theta, theta), float(a @ theta)

    def along(at: Array) -> Generator[Array, Iterable[Derivatives], list[Derivatives]]:
        return [each.along(back) for each in (yield back @ at)]

    def fit(start: Array, fixed: Array) -> Generator[Any, Any, Refit]:
        if is_penalised:
            begin = np.where(mask, start, fixed)
            return (yield from nested(firth_without(begin, free, ~mask), partial(turned, back)))
        return (yield from nested(refit(start, mask, fixed), along))

    is_penalised = loss is None
    if loss is None:
        loss = (yield from fit(point, np.where(np.arange(a.size) == j, centre, 0.0))).value
    inner, outer = (0.0, 0.0), (np.inf, np.inf)  # distance and root on both sides of the end
    reach = reach_of(level)
    away = reach * std_err
    while away <= FARTHEST * std_err:
        fixed = np.zeros(a.size)
        fixed[j] = centre + side * away
        found = yield from fit(point, fixed)
        point = found.theta
        root = float(np.sqrt(2.0 * max(found.value - loss, 0.0)))
        if abs(root - reach) <= CLOSE or outer[0] - inner[0] <= CLOSE * std_err:
            return float(fixed[j])
        last = inner if root > reach or outer[0] == np.inf else outer
        slope = (root - last[1]) / (away - last[0])
        inner, outer = ((away, root), outer) if root < reach else (inner, (away, root))
        away += (reach - root) / slope if slope > 0 else std_err
        if not inner[0] < away < outer[0]:
            away = 0.5 * (inner[0] + outer[0]) if outer[0] < np.inf else 2.0 * inner[0]
    return None
