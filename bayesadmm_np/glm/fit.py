"""The fit of a GLM as questions to its sites: the same in one process, by files and on Flower.

    prepare    before the first round: superfluous columns, origin, prior; least squares and Firth's penalty whole
    watch      between rounds: whether a long run has an end
    tabulate   after the last round: why there is no maximum, deviance and criteria, robust sums, tests, own fits

Each is a function of a `Problem` and of `ask`, which takes a problem and a question of `glm.questions` to all sites,
and returns their answers in order. In one process the rows answer (`estimators.search`). Between sites the functions
are called again with each answer that comes (`federation.questions`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import add
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from .._errors import ArgumentError
from .._numerics import driven
from .._validation import Array
from ..families import FullGaussian
from ..losses.base import GaussianExpected, KroneckerCurvature, Margins
from ..losses.expectations import Delta
from ..splitting.certificate import Certificate, PooledObjective
from ..splitting.result import Result
from ..splitting.status import RoundRecord, Status
from .columns import HOLD
from .diagnosis import (
    Dependent,
    Endless,
    Finding,
    Searched,
    Separation,
    Undecided,
    is_suspect,
    search_dependence,
    search_separation,
)
from .estimable import moved
from .firth import FirthQuestion, firth, firth_without
from .hypotheses import REFITS, Hypothesis, TermTest, TestName, hypotheses
from .inference import FAR, FitStatistics, Noise, likelihood_ratio_test, null_fit, null_start
from .least_squares import dependence, information_of, settled, solve
from .limit import Steps, held_at, limit, of_prior, supremum
from .mixed import ONE_GROUP, ProfileQuestion, mixed
from .own_fit import OwnFit
from .prior import RunFacts, deviations_of
from .problem import Problem
from .questions import (
    Apart,
    ApartQuestion,
    DerivativesQuestion,
    Design,
    DesignQuestion,
    LeastSquaresQuestion,
    OwnFitQuestion,
    RowsQuestion,
    StatisticsQuestion,
    Sums,
    SumsQuestion,
)
from .refit import Refit
from .separation import Unanswered
from .site_statistics import SiteStatistics, with_all_robust
from .whole import Whole, definite, maximise, stepped, undetermined


class Ask(Protocol):
    """A way to ask all sites; `done` counts the questions, and `floats` the numbers that all parties sent."""

    done: int
    floats: int

    def __call__(self, problem: Problem, question: Any, /) -> list[Any]:
        """Return the answers of all sites in order; a Declined names those that gave none."""
        ...


class Declined(Exception):
    """Sites that did not answer a question, with their reasons."""

    def __init__(self, name: str, reasons: Mapping[Any, str]) -> None:
        self.name, self.reasons = name, reasons
        super().__init__("; ".join(f"site {site}: {reason}" for site, reason in reasons.items()))


class Refused(Declined, Unanswered):
    """Every site was there, and some refused the question."""


class Unsettled(ValueError):
    """A question that was asked again and again, and came to no end: answers of several sites do not fit together."""

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        super().__init__(reason)


# --- Before the first round -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Prepared:
    """Facts known before the first round.

    `problem` is that of the rounds, with columns measured at their means, and a prior that holds superfluous ones at
    zero. `design` has the sites' sums where they were asked, `null` θ of the model of intercepts alone, `facts` those
    of the prior. `result` is a fit that needs no rounds, after so many `exchanges`, `own` the sites' own fits where it
    starts from these, and `restriction` what REML adds to −log likelihood. `missing` has sentences on missing parts of
    the table. `flat` is that of `FittedGLM`. `searched` is the end of a search for separation; None without a search,
    and `unsearched` the reason.
    """

    problem: Problem
    findings: tuple[Finding, ...] = ()
    design: tuple[Design, ...] | None = None
    null: Array | None = None
    facts: RunFacts | None = None
    noise: Noise = "none"
    noise_variance: float = 1.0
    result: Result | None = None
    own: tuple[OwnFit, ...] = ()
    exchanges: int = 1
    restriction: float | None = None
    missing: tuple[str, ...] = ()
    flat: Array | None = None
    searched: Searched | None = None
    unsearched: str = ""

    def lacking(self, what: str, declined: Declined | Unsettled) -> Prepared:
        """Return the facts with another sentence about what is missing."""
        return replace(self, missing=(*self.missing, lacks(what, declined)))

    @property
    def start(self) -> Array:
        """θ of the model of intercepts alone, where that is finite; zeros elsewhere."""
        if self.null is None:
            return np.zeros(self.problem.layout.dim)
        return np.where(np.abs(self.null) == FAR, 0.0, self.null)

    @property
    def shares(self) -> Array | None:
        """Weight of each class; None for numbers, and before the sites were asked."""
        if self.design is None or not self.problem.kind.is_classifier:
            return None
        return np.asarray(np.sum([one.target for one in self.design], axis=0))


def lacks(what: str, why: Declined | Unsettled) -> str:
    """Return a sentence on a missing part of a table."""
    how = "as a site did not answer the question" if isinstance(why, Declined) else "as no end came of the question"
    return f"{what}, {how} {why.name!r} ({why})."


def prepare(problem: Problem, ask: Ask) -> Prepared:
    """Ask what must be known before the first round."""
    kind = problem.kind
    if problem.penalty and (kind.is_least_squares or kind.outputs == "classes"):
        expected = "must be None: 'firth' is for logistic and Poisson regression"
        raise ArgumentError("penalty", expected, kind, "Only binary classification is supported with it")
    found = Prepared(problem, noise="given" if kind.has_noise else "none")
    if kind.likelihood is not None:
        try:
            return _whole(found, ask)
        except Declined as declined:
            raise ValueError(f"{kind.title} needs sums of all sites, and {declined}.") from declined
    if problem.is_mode and kind.is_least_squares:
        return _least_squares(found, ask)
    if problem.stated is not None and not problem.stated.is_flat:
        return state_prior(found, ask)
    if not problem.is_flat:
        return found
    try:
        found = _independent(designed(found, ask), ask)
    except Declined as declined:
        if problem.penalty:
            raise ValueError(f"penalty: Firth's needs sums of all sites, and {declined}.") from declined
        return found.lacking("Collinear and constant columns were not looked for", declined)
    return _firth(found, ask) if problem.penalty else found


def state_prior(found: Prepared, ask: Ask | None) -> Prepared:
    """Return the facts with the prior that was stated, in the units of the run; sites are asked for what it needs."""
    problem, stated = found.problem, found.problem.stated
    if stated is None or stated.is_flat:
        return found
    is_sd, layout, kind = stated.unit == "sd", problem.layout, problem.kind
    is_exact = problem.is_likelihood and problem.is_full
    has_flat_shift = kind is not None and kind.has_flat_shift
    needs_null = problem.is_free_intercept and (has_flat_shift or not is_exact)
    moments: tuple[Array, Array] | None = None
    known: dict[str, Any] = {}
    name, expected = ("prior_unit", "must be 'unit'") if is_sd else ("penalize_intercept", "must be True")
    if ask is None and (is_sd or needs_null):
        raise ArgumentError(name, f"{expected} where sites are not asked for sums about columns")
    if ask is not None and (is_sd or problem.is_likelihood or problem.is_free_intercept):
        try:
            found = designed(found, ask)
            assert found.design is not None
            moments = _moments(found.design, layout)
            if problem.is_full and (is_sd or problem.is_free_intercept):
                found = _about_the_means(found)
                is_moved = found.problem.layout is not layout
                moments = (np.zeros_like(moments[0]), moments[1]) if is_moved else moments
            if needs_null:
                known = {"null": found.start, "information": _on_intercepts(found, ask)}
        except Declined as declined:
            if is_sd or needs_null:
                raise ArgumentError(name, f"{expected} in a new run, without sums of all sites", declined) from declined
    problem = found.problem
    p = layout.n_features
    centre = np.zeros(p) if problem.layout.centre is None else problem.layout.centre
    units, origin = stated.units(centre, np.ones(p), moments)
    facts = RunFacts(problem.layout, units, origin, is_exact, has_flat_shift, **known)
    found = replace(found, facts=facts)
    if stated.precision == "evidence":
        return found
    precision: Any = stated.precision if problem.precision is None else problem.precision
    member = stated.member(precision, type(problem.prior), facts)
    return replace(found, problem=replace(problem, prior=member))


def designed(found: Prepared, ask: Ask) -> Prepared:
    """Ask for the sums about columns and target."""
    problem = found.problem
    answers: list[Design] = ask(problem, DesignQuestion())
    weight = sum(one.weight for one in answers)
    null = _null(problem, np.sum([one.target for one in answers], axis=0) / weight)
    noise = _told_noise(problem, answers) or 1.0
    if problem.is_likelihood:
        found = replace(found, problem=replace(problem, tol=tolerance(problem.tol, answers)))
    return replace(found, design=tuple(answers), null=null, noise_variance=noise)


def tolerance(tol: float, designs: Sequence[Design]) -> float:
    """Return the tolerance of a likelihood: a residual is in standard errors, which are wide where weights are small.

    So the tolerance is times the root of the mean weight, where that is below 1, and the coefficients do not depend on
    the scale of weights.
    """
    mean = sum(one.weight for one in designs) / sum(one.n_rows for one in designs)
    return tol * min(1.0, float(np.sqrt(mean)))


def _told_noise(problem: Problem, answers: Sequence[Any]) -> float | None:
    """Return the noise variance that all sites were given."""
    told = {site: answer.noise_variance for site, answer in zip(problem.sites, answers, strict=True)}
    if len(set(told.values())) > 1:
        each = ", ".join(f"{value} at site {site}" for site, value in told.items())
        raise ValueError(f"noise_variance must be the same at all sites, got {each}.")
    return answers[0].noise_variance


def _null(problem: Problem, mean: Array) -> Array:
    """Return θ of the intercepts alone, which lie at `FAR` where they are infinite; zeros without intercepts."""
    layout = problem.layout
    theta = np.zeros((layout.n_outputs, layout.width))
    if layout.has_intercept:
        with np.errstate(divide="ignore"):
            theta[:, -1] = np.clip(problem.kind.null(mean), -FAR, FAR)
    return theta.ravel()


def _moments(designs: Sequence[Design], layout: Any) -> tuple[Array, Array]:
    """Return means and standard deviations of the columns over all rows, in the units in which sites were asked."""
    p, weight = layout.n_features, sum(one.weight for one in designs)
    means = np.sum([one.sums for one in designs], axis=0)[:p] / weight
    root = np.vstack([one.root for one in designs])
    if layout.has_intercept:  # below the ones, R has the columns about their means
        squares = (np.asarray(np.linalg.qr(np.roll(root, 1, axis=1), mode="r"))[1:, 1:] ** 2).sum(axis=0)
    else:
        squares = (root**2).sum(axis=0) - weight * means**2
    return means, deviations_of(squares / weight, means)


def _about_the_means(found: Prepared) -> Prepared:
    """Measure columns at their pooled means, and offsets at theirs, where the intercept can take that up."""
    problem, designs = found.problem, found.design
    assert designs is not None
    layout = problem.layout
    if not (layout.has_intercept and layout.centre is None and all(one.moves for one in designs)):
        return found
    weight = sum(one.weight for one in designs)
    centre = np.sum([one.sums for one in designs], axis=0)[: layout.n_features] / weight
    shift = 0.0
    if problem.is_free_intercept and all(one.offset is not None for one in designs):
        shift = sum(one.weight * (one.offset or 0.0) for one in designs) / weight
    return replace(found, problem=problem.moved(centre, shift))


def _on_intercepts(found: Prepared, ask: Ask) -> float:
    """Return the information of all rows on one intercept of the null model: its mean over the outputs."""
    layout = found.problem.layout
    answers = ask(found.problem, DerivativesQuestion(found.start))
    whole = np.sum([np.diagonal(one.hessian) for one in answers], axis=0)
    return float(whole[layout.width - 1 :: layout.width].mean())


def information_on(found: Prepared, ask: Ask) -> Array:
    """Return the approximate information of the rows on each coefficient in the model of intercepts alone, shape (d,).

    Centring leaves only rounding of a constant column, so that lengths are those at the user's origin.
    """
    layout = found.problem.layout
    if found.design is None or not layout.has_intercept:
        answers = ask(found.problem, DerivativesQuestion(found.start))
        return np.asarray(np.diagonal(np.sum([one.hessian for one in answers], axis=0)))
    squares = sum((one.root**2).sum(axis=0) for one in found.design) / sum(one.weight for one in found.design)
    return _on_intercepts(found, ask) * np.tile(np.where(squares > 0.0, squares, 1.0), layout.n_outputs)


def _independent(found: Prepared, ask: Ask) -> Prepared:
    """Name superfluous columns and hold them at zero, and measure columns at their pooled means."""
    assert found.design is not None
    problem = found.problem
    back = problem.layout.outward[: problem.layout.width, : problem.layout.width]
    findings, flat = search_dependence([one.root @ back for one in found.design], problem.columns, problem.intercepts)
    found = _about_the_means(replace(found, findings=findings))
    problem, layout = found.problem, found.problem.layout
    if findings:
        places = [problem.columns.index(one.column) for one in findings]
        information = information_on(found, ask)
        precision = np.zeros(layout.dim)
        for j in (output * layout.width + place for output in range(layout.n_outputs) for place in places):
            precision[j] = HOLD * (information[j] if information[j] > 0 else information.max(initial=1.0))
        problem = replace(problem, prior=FullGaussian(np.zeros(layout.dim), np.diag(precision)))
    return replace(found, problem=problem, flat=_in_the_run(problem, flat))


def _in_the_run(problem: Problem, flat: Array) -> Array:
    """Return directions of the coefficients of one output, at the user's origin, as directions of θ."""
    whole = np.asarray(np.kron(np.eye(problem.layout.n_outputs), flat))
    return moved(problem.layout.outward, whole)


def _firth(found: Prepared, ask: Ask) -> Prepared:
    """Fit with Firth's penalty by questions."""
    problem = found.problem
    free = np.diagonal(problem.prior.precision) == 0
    try:
        fit = driven(firth(found.start, free=free), partial(ask, problem))
    except ArgumentError as error:
        if error.argument == "X":
            raise
        raise Unsettled("firth", f"the question 'firth' did not settle: {error}") from error
    posterior = FullGaussian(fit.mean, fit.information + problem.prior.precision)
    tilted = [
        own._replace(value=own.value - float(pull @ fit.mean), gradient=own.gradient - pull)
        for own, pull in zip(ask(problem, SumsQuestion(fit.mean)), fit.pulls, strict=True)
    ]
    result = settled(problem.prior, posterior, [_expected(posterior, own, None) for own in tilted], problem.tol)
    return replace(found, result=result)


def _whole(found: Prepared, ask: Ask) -> Prepared:
    """Fit a likelihood that is no sum over rows by questions, and the model without coefficients beside it."""
    problem = found.problem
    kind, layout = problem.kind, problem.layout
    if problem.penalty or not (problem.is_likelihood and problem.is_flat):
        expected = "must be left out: this kind is fitted by maximum likelihood alone"
        raise ArgumentError("prior_precision, penalty or inference", expected, str(kind))
    question: Any = ProfileQuestion if kind.is_linear_mixed else DerivativesQuestion
    found, start = _started(found, ask)
    problem, layout = found.problem, found.problem.layout
    steps: Any = mixed(kind.is_restricted) if kind.is_linear_mixed else maximise(start, np.ones(layout.dim))
    try:
        fit: Whole = driven(steps, lambda at: ask(problem, question(at)))
    except ValueError:
        if kind.form == "group":
            raise
        found, start = _away(found, ask)  # own fits can meet outside of a domain, and be lies
        problem = found.problem
        fit = driven(maximise(start, np.ones(layout.dim)), lambda at: ask(problem, question(at)))
    theta = fit.theta
    if kind.form == "group":  # the likelihood is even in the first parameter, the groups' standard deviation
        theta[0] = abs(theta[0])
        said = (SINGULAR,) if theta[0] < 1e-4 else ()
        found = replace(found, restriction=fit.more, missing=(*found.missing, *said))
    metric = definite(fit.hessian) if kind.is_convex and fit.is_maximum and fit.hessian is not None else None
    for _ in range(MOST_STEPS):
        sums: list[Sums] = ask(problem, SumsQuestion(theta, metric))
        if fit.pulls is not None:
            sums = [own._replace(gradient=own.gradient + pull) for own, pull in zip(sums, fit.pulls, strict=True)]
        whole = np.sum([own.hessian for own in sums], axis=0)
        posterior = FullGaussian(theta, definite(whole))
        if metric is not None:  # of which sites told reach and curvature error
            stretch = max(1.0, float(eigh(metric, definite(whole), eigvals_only=True)[-1]))
            sums = [own.stretched(stretch) for own in sums]
        answers = [_expected(posterior, own, own.reach) for own in sums]
        result = settled(problem.prior, posterior, answers, problem.tol)
        if result.status is Status.CONVERGED or not fit.is_maximum:
            break
        theta = stepped(theta, np.sum([own.gradient for own in sums], axis=0), whole)
    found = replace(found, exchanges=ask.done)
    open_ones = undetermined(whole)
    named = ", ".join(np.array(problem.parameters)[open_ones].tolist())
    if named and fit.is_maximum:
        expected = "must have columns that the rows of the sites tell apart"
        raise ArgumentError("X", expected, f"no information on {named}", "leave one of them out")
    found = replace(found, result=result)
    reason = kind.endless or ENDLESS
    if named:
        reason += f"; or the rows hardly tell {named} apart: subtract a constant from a column far from zero"
    return found if fit.is_maximum else _undecided(found, reason)


def _started(found: Prepared, ask: Ask) -> tuple[Prepared, Array]:
    """Return where Newton's method starts: at the sites' own fits together, or where these leave something open."""
    problem = found.problem
    kind, layout = problem.kind, problem.layout
    if kind.form == "group":  # a site of few groups has no fit of its own
        found = _about_the_means(designed(found, ask)) if layout.has_intercept else found
        start = found.start
        start[0] = 0.7
        return found, start
    own: list[OwnFit] = ask(problem, OwnFitQuestion(np.ones(layout.width), problem.weights))
    found = replace(found, own=tuple(own))
    information = np.sum([one.root.T @ one.root for one in own], axis=0)
    if not undetermined(information).any():
        whole = np.sum([one.root.T @ (one.root @ one.mean) for one in own], axis=0)
        start = stepped(np.zeros(layout.dim), -whole, information)
        if kind.domain is None or kind.domain(start[: len(kind.auxiliaries(problem.classes))]):
            return found, start
    return _away(found, ask)


def _away(found: Prepared, ask: Ask) -> tuple[Prepared, Array]:
    """Return a start that takes nothing from the sites' own fits."""
    kind, layout = found.problem.kind, found.problem.layout
    if kind.start is not None:
        return found, kind.start(layout, partial(ask, found.problem))
    if not layout.has_intercept:
        return found, np.zeros(layout.dim)
    found = _about_the_means(designed(replace(found, own=()), ask))
    return found, found.start


def _without_coefficients(found: Prepared, ask: Ask) -> Prepared:
    """Fit the model of auxiliary parameters and intercepts alone, for a test of all coefficients."""
    problem = found.problem
    layout, n_auxiliary = problem.layout, len(problem.kind.auxiliaries(problem.classes))
    assert found.result is not None
    free: Any = layout.is_intercept.copy()
    free[:n_auxiliary] = True
    posterior: Any = found.result.posterior
    null = null_start(posterior.mean, posterior.covariance_matrix, np.asarray(free))
    if problem.kind.has_rows and layout.has_intercept:  # inside of every domain
        null = designed(found, ask).start
    null[:1] = max(1e-1, *posterior.mean[:1]) if problem.kind.form == "group" else null[:1]  # at zero it is flat
    if free.any():
        try:
            null = driven(maximise(null, free), lambda at: ask(problem, DerivativesQuestion(at))).theta
        except (Declined, ValueError):
            return found
    return replace(found, null=null)


def _expected(posterior: FullGaussian, sums: Sums, reach: float | None) -> GaussianExpected:
    margins = Margins(reach, sums.errors, sums.curvature_error)
    curvature = KroneckerCurvature(sums.hessian, 1)
    return GaussianExpected(posterior, sums.value, sums.gradient, curvature, Delta(2), lambda: margins)


def _least_squares(found: Prepared, ask: Ask) -> Prepared:
    """Fit by the sites' triangular factors, in one exchange; a second exchange certifies the fit."""
    found = state_prior(found, ask)
    problem, layout = found.problem, found.problem.layout
    is_free = problem.is_free_intercept
    p = layout.width - is_free
    precision = np.asarray(problem.prior.precision)[:p, :p]
    try:
        answers = ask(problem, LeastSquaresQuestion(is_free))
    except Declined as declined:
        return found.lacking("The noise variance is not estimated, but 1 or the value given to sites", declined)
    noise = _told_noise(problem, answers)
    factors = [answer.factor(p, layout.n_outputs, is_free) for answer in answers]
    columns = problem.columns
    own, null_variance = information_of(factors)
    solved = solve(
        factors,
        precision,
        columns[:p],
        own,
        null_variance,
        noise=noise,
        is_relative=problem.is_relative,
        weight_kind=problem.weights,
        shortest=problem.dependent != "hold",
    )
    back = layout.outward[: layout.width, : layout.width]
    findings, flat, unnamed = dependence(factors, solved.fit.collinear, columns, problem.intercepts, back)
    centre = None
    if is_free and layout.centre is None and all(answer.moves for answer in answers):
        centre = solved.fit.centre
        problem = problem.moved(centre)
    theta, prior, posterior = solved.at_the_centre(centre)
    problem = replace(problem, prior=prior)
    mean = sum(one.total_weight * one.shift[p:] for one in factors) / sum(one.total_weight for one in factors)
    null = np.zeros((layout.n_outputs, layout.width))
    null[:, p:] = np.reshape(mean, (layout.n_outputs, 1))[:, : int(is_free)]
    share = (noise or 1.0) / solved.noise
    sums = (Sums(*(share * one for one in own[:5])) for own in ask(problem, SumsQuestion(theta)))
    expected = [_expected(posterior, own, 0.0) for own in sums]
    result = settled(prior, posterior, expected, problem.tol, solved.is_resolved)
    said = [unnamed, solved.caveat(result.status is Status.CONVERGED)]
    return replace(
        found,
        problem=problem,
        findings=findings,
        flat=_in_the_run(problem, flat),
        null=null.ravel(),
        noise="given" if noise is not None else "estimated",
        noise_variance=solved.noise,
        result=result,
        missing=(*found.missing, *filter(None, [" ".join(filter(None, said))])),
    )


# --- Between rounds -------------------------------------------------------------------------------------------


def is_long(found: Prepared, record: RoundRecord) -> bool:
    """Return whether it is time to look for a separation, which is done once."""
    return found.searched is None and is_suspect(record, found.shares)


def watch(found: Prepared, ask: Ask, q_g: Any, record: RoundRecord) -> tuple[Prepared, bool, Certificate | None]:
    """Look for a separation once a run is long; with a separation the run stops, with the certificate at q_g."""
    found = search(found, ask)
    if found.searched is None or not isinstance(found.searched.finding, Separation):
        return found, False, None
    try:
        expected = [_expected(q_g, own, None) for own in ask(found.problem, SumsQuestion(q_g.mean))]
    except Declined:  # at a point that may be far off
        return found, True, None
    pooled = PooledObjective(found.problem.prior, q_g, expected)
    return found, True, Certificate(record.edges, pooled.residual, found.problem.tol, pooled.distance)


def search(found: Prepared, ask: Ask) -> Prepared:
    """Search for a separation, unless the fit is least squares."""
    problem = found.problem
    nothing = Searched(None, np.zeros((problem.layout.dim, 0)))
    if problem.kind.is_least_squares:
        return replace(found, searched=nothing)
    try:
        penalised = np.diagonal(problem.prior.precision)[: problem.layout.width] > 0
        return replace(found, searched=_separation(problem, ask, ~penalised))
    except (Declined, Unsettled) as declined:
        return replace(found, searched=nothing, unsearched=str(declined)).lacking(
            "Separation was not looked for", declined
        )


def _separation(problem: Problem, ask: Ask, free: NDArray[np.bool_]) -> Searched:
    """Prove that the likelihood has a maximum in the free coefficients, shape (p,) or (d,), or return why not."""
    roots, layout = ask(problem, RowsQuestion()), problem.layout
    if not all(one.has_walls for one in roots):
        return Searched(None, np.zeros((layout.dim, 0)))
    return search_separation(
        partial(ask, problem),
        [one.root for one in roots],
        problem.columns,
        outputs=problem.outputs,
        intercepts=problem.intercepts,
        penalised=np.flatnonzero(~free[: layout.width]).tolist(),
        change=None if layout.centre is None else layout.homeward,
    )


# --- After the last round -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class Table:
    """Findings and sums beside a posterior.

    `missing` has sentences on missing parts, sites without an answer, and obstacles to a certificate;
    `method` how the fit was made where it needed no rounds. `exchanges` counts questions, `floats` the numbers of
    questions and answers. `exact` is the posterior where its natural parameters would lose digits, or at a limit,
    `ratio_tests` are those of the terms. `flat` and `receding` are those of `FittedGLM`. The server alone has
    `limit`, the result at the limit of a likelihood without a maximum, and `own`, the sites' own fits by site.
    """

    findings: tuple[Finding, ...] = ()
    statistics: FitStatistics | None = None
    noise_variance: float = 1.0
    missing: tuple[str, ...] = ()
    penalty: str | None = None
    method: str | None = None
    exchanges: int = 0
    floats: int = 0
    ratio_tests: tuple[TermTest, ...] = ()
    exact: FullGaussian | None = None
    flat: Array | None = None
    receding: Array | None = None
    limit: Result | None = None
    own: Mapping[Any, OwnFit] | None = None

    @property
    def is_separated(self) -> bool:
        """Return whether the likelihood has no maximum."""
        return any(isinstance(finding, Separation) for finding in self.findings)


RESTRICTED = "fits by REML do not compare, and mixed_linear(reml=0) fits by maximum likelihood"
SINGULAR = "The fit is singular: groups differ no more than rows by chance, and their standard deviation is zero."
MOST_STEPS = 10
"""Steps after a search, where a certificate asks for more than its last one."""
ENDLESS = "estimates grow without end, as if the data were separated"
ODDS = "proportional odds (score)"
LIMIT = "the limit of the likelihood was not reached"


def tabulate(
    found: Prepared,
    ask: Ask,
    theta: Array,
    status: Status,
    certificate: Certificate | None,
    covariance: Callable[[], Array] | None = None,
    robust: bool = True,
) -> Table:
    """Ask what a table needs beside the fit at θ, and its `covariance` where there is one; `robust` for robust sums."""
    problem = found.problem
    bound = None if certificate is None else certificate.distance
    is_proven = status is Status.CONVERGED and bound is not None and bool(np.isfinite(bound.sd_units))
    if problem.is_likelihood and found.result is None and not is_proven and found.searched is None:
        found = search(found, ask)
    missing = [*found.missing]
    if found.unsearched and bound is not None and not is_proven:  # a bound, which a maximum would make finite
        found = _undecided(found, found.unsearched)
    findings, end = found.findings, None
    if found.searched is not None and isinstance(found.searched.finding, Separation):
        findings = (*findings, found.searched.finding)
        try:
            end = at_limit = _limit(found, found.searched, ask, theta)
            theta, covariance = end.posterior.mean, covariance and (lambda: at_limit.posterior.covariance_matrix)
        except (Declined, ValueError) as error:
            missing.append(f"There is no deviance, AIC or BIC: {LIMIT} ({error}).")
            found = found if found.searched.finding.is_complete else _undecided(found, str(error))
    if found.searched is not None and isinstance(found.searched.finding, Undecided):
        findings = (*findings, found.searched.finding)
    statistics, own = None, None
    has_loss = end is not None or found.searched is None or found.searched.finding is None
    has_point = end is not None or not status.is_failure
    if has_loss and has_point:
        try:
            statistics, found = _statistics(found, ask, theta, covariance, end is not None, robust)
        except (Declined, Unsettled) as declined:
            missing.append(lacks("There are no deviance, AIC, BIC and robust standard errors", declined))
    if problem.is_likelihood and has_point:
        try:
            own = _own_fits(found, ask)
        except Declined as declined:
            missing.append(lacks("Some site has no part in heterogeneity", declined))
    tests: tuple[TermTest, ...] = ()
    if problem.tests != "none" and statistics is not None:
        try:
            tests, lacking = _term_tests(found, ask, theta, statistics)
            missing += lacking
        except Declined as declined:
            missing.append(lacks("There are no likelihood-ratio tests of terms", declined))
    fitted = found.result or end
    return Table(
        findings=findings,
        statistics=statistics,
        noise_variance=found.noise_variance,
        missing=tuple(missing),
        penalty=problem.penalty,
        method=_method_of(found),
        exchanges=ask.done,
        floats=ask.floats,
        ratio_tests=tests,
        exact=fitted.posterior if fitted is not None and isinstance(fitted.posterior, FullGaussian) else None,
        flat=None if found.flat is None or not found.flat.size else found.flat,
        receding=None if found.searched is None else found.searched.receding,
        limit=end,
        own=own,
    )


def _method_of(found: Prepared) -> str | None:
    """Return how a fit was made that needed no rounds and has no penalty."""
    if found.result is None or found.problem.penalty:
        return None
    return "stacked QR" if found.problem.kind.likelihood is None else "Newton"


def _undecided(found: Prepared, reason: str) -> Prepared:
    """Return the facts with no coefficient that is known to be finite."""
    problem = found.problem
    free = np.diagonal(problem.prior.precision) == 0
    kind = Undecided if problem.kind.likelihood is None else Endless
    finding = kind(tuple(np.array(problem.parameters)[free].tolist()), reason.removesuffix("."))
    return replace(found, searched=Searched(finding, np.eye(problem.layout.dim)[:, free]))


def _limit(found: Prepared, searched: Searched, ask: Ask, theta: Array) -> Result:
    """Fit what is finite at the limit of a separated likelihood."""
    problem = found.problem
    kept = np.tile(_kept(found), problem.layout.n_outputs)
    starts = [np.where(kept, theta, 0.0), found.start]
    with np.errstate(over="ignore", invalid="ignore"):
        fit = driven(
            limit(starts, kept, searched),
            lambda at: [*ask(problem, DerivativesQuestion(at)), of_prior(problem.prior, at)],
        )
    sums = ask(problem, SumsQuestion(fit.theta))
    hessian = np.sum([own.hessian for own in sums], axis=0)
    prior, posterior = held_at(fit.theta, searched.pivots, problem.prior, hessian, information_on(found, ask))
    return settled(prior, posterior, [_expected(posterior, own, None) for own in sums], problem.tol)


def _kept(found: Prepared) -> NDArray[np.bool_]:
    """Return which columns are not fixed at zero as combinations of others, shape (p,)."""
    held = [one.column for one in found.findings if isinstance(one, Dependent)]
    return np.isin(found.problem.columns, held, invert=True)


def _statistics(
    found: Prepared,
    ask: Ask,
    theta: Array,
    covariance: Callable[[], Array] | None,
    is_limit: bool,
    robust: bool,
) -> tuple[FitStatistics, Prepared]:
    """Ask for the sums of deviance, criteria and robust covariances."""
    if found.problem.kind.likelihood is not None:
        found = replace(found, null=None)  # and REML of other coefficients is that of other data
        found = _without_coefficients(found, ask) if found.restriction is None else found
        about = theta if found.null is None else found.null

        def ask_whole(robust: tuple[str, ...] = ()) -> SiteStatistics:
            bread = covariance() if covariance is not None and robust else None
            answers = ask(found.problem, StatisticsQuestion(theta, about, bread, robust, found.problem.weights))
            total: SiteStatistics = reduce(add, answers)
            return total

        is_robust = robust and covariance is not None
        whole = with_all_robust(found.problem.kind, ask_whole, Refused) if is_robust else ask_whole()
        whole = replace(whole, loss=whole.loss + (found.restriction or 0.0))
        if found.problem.kind.form == "group" and whole.n_clusters < 2:
            raise ArgumentError("formula", ONE_GROUP, whole.n_clusters)
        return FitStatistics(whole, found.noise, found.problem.weights, found.null is not None), found
    if found.null is None:
        found = designed(found, ask)
    problem, null, layout = found.problem, found.null, found.problem.layout
    is_intercept: Any = layout.is_intercept
    assert null is not None
    has_offset = found.design is not None and any(one.offset is not None for one in found.design)
    has_null = has_offset and not (np.abs(null) == FAR).any()
    spread = None if covariance is None or not (robust or has_null) else covariance()
    if has_null:
        if spread is not None and not is_limit:
            null = null_start(theta, spread, is_intercept)
        null = null_fit(
            null,
            is_intercept,
            problem.kind,
            lambda fit: driven(fit, lambda at: ask(problem, DerivativesQuestion(at))),
        )
    bread = spread / found.noise_variance if robust and spread is not None else None

    def ask_sums(robust: tuple[str, ...] = ()) -> SiteStatistics:
        about_null = theta if null is None else null
        answers = ask(problem, StatisticsQuestion(theta, about_null, bread, robust, problem.weights))
        total: SiteStatistics = reduce(add, answers)
        return total

    total = ask_sums() if bread is None else with_all_robust(problem.kind, ask_sums, Refused)
    return FitStatistics(total, found.noise, problem.weights, null is not None), found


def _own_fits(found: Prepared, ask: Ask) -> dict[Any, OwnFit] | None:
    """Ask each site for its own fit, if the pooled fit is by maximum likelihood."""
    problem, free = found.problem, _kept(found)
    if len(problem.sites) < 2 or problem.penalty or not problem.is_full or problem.kind.form == "group":
        return None
    if found.own:
        return dict(zip(problem.sites, found.own, strict=True))
    if np.diagonal(problem.prior.precision).reshape(-1, free.size)[:, free].any():
        return None
    answers = ask(problem, OwnFitQuestion(free.astype(np.float64), problem.weights))
    return dict(zip(problem.sites, answers, strict=True))


def _term_tests(
    found: Prepared, ask: Ask, start: Array, statistics: FitStatistics
) -> tuple[tuple[TermTest, ...], list[str]]:
    """Fit without each term, for tests; return also why there are no tests."""
    problem, layout, total = found.problem, found.problem.layout, statistics.total
    free = np.diagonal(problem.prior.precision) == 0 if problem.is_full else np.zeros(layout.dim, bool)
    is_stated = problem.stated is not None and not problem.stated.is_flat
    is_wrong = bool(problem.penalty) and problem.tests != "lr"
    if is_wrong or is_stated or not (problem.is_likelihood and free.any()):
        return (), ["There are no tests of terms: the fit is not by maximum likelihood."]
    if problem.tests not in REFITS:
        return (), []
    if problem.kind.is_restricted:
        return (), [f"There are no tests of terms: {RESTRICTED}."]
    asked = hypotheses(problem.terms, layout.width, layout.n_outputs, problem.test_type)
    flat = np.eye(layout.dim)[:, ~free] if found.flat is None else found.flat
    outputs = layout.n_outputs if problem.kind.outputs == "columns" else 1
    df = outputs * total.n_observations(problem.weights) - int(free.sum())
    full = total.loss / (found.noise_variance if found.noise == "given" else 1.0)
    receding = None if found.searched is None else found.searched.receding
    settings: dict[str, Any] = {
        "flat": flat,
        "receding": receding,
        "full": full,
        "noise": found.noise,
        "df_residual": df,
    }
    if problem.kind.has_dispersion and total.pearson is not None:  # Pearson's statistic is the F's denominator, as in R
        settings |= {"noise": "estimated", "left": 0.5 * total.pearson}
    tests = ask_tests(problem.tests, asked, problem, ask, start, **settings)
    return (*tests, *test_of_odds(problem, ask, start, problem.tests)), []


def test_of_odds(problem: Problem, ask: Ask, theta: Array, how: TestName) -> tuple[TermTest, ...]:
    """Test by Rao's score that ordered classes have the same coefficients at each cutpoint; nothing of other kinds.

    UᵀI⁻¹U with U and I of the model with coefficients of their own, at the fit: a χ² with (C − 2) p degrees of freedom.
    B. Peterson and F. E. Harrell, Applied Statistics 39 (1990).
    """
    n_cuts = len(problem.kind.auxiliaries(problem.classes))
    df = (n_cuts - 1) * (problem.layout.dim - n_cuts)
    if problem.kind.outputs != "ordered" or not df:
        return ()
    try:
        answers = ask(problem, ApartQuestion(theta))
    except Declined as declined:
        return (TermTest(ODDS, None, df, None, None, "", str(declined).rstrip("."), how),)
    slope, information = (np.sum([getattr(one, name) for one in answers], axis=0) for name in Apart._fields)
    if undetermined(information).any():
        return (TermTest(ODDS, None, df, None, None, "", "some class has too few rows for its own coefficients", how),)
    step = stepped(np.zeros_like(slope), -slope, information)
    found = likelihood_ratio_test(0.5 * float(slope @ step), df, ODDS, noise="none")
    return (TermTest(ODDS, found.statistic, df, None, found.p_value, "", "", how),)


def _whole_without(start: Array, present: NDArray[np.bool_], inside: Array | None) -> Steps:
    """Fit a likelihood without some coefficients; `inside` is another start, where the first is outside of a domain."""
    try:
        found = yield from maximise(start, present)
    except ValueError:
        if inside is None:
            raise
        found = yield from maximise(inside, present)
    if not found.is_maximum:
        raise ValueError("the model without the term has no maximum that was found")
    return Refit(found.theta, found.value, found.exchanges)


def ask_tests(
    how: TestName,
    asked: Sequence[Hypothesis],
    problem: Problem,
    ask: Ask,
    theta: Array,
    *,
    flat: Array,
    receding: Array | None,
    full: float | None,
    noise: Noise,
    df_residual: float | None,
    left: float | None = None,
) -> tuple[TermTest, ...]:
    """Test hypotheses about the fit at θ by fits without them; see `hypotheses.REFITS`."""
    if problem.kind.is_restricted:
        raise ArgumentError("tests", "must be 'none' or 'wald' here", repr(how), RESTRICTED)

    def fit(present: NDArray[np.bool_]) -> Steps:
        if problem.kind.likelihood is not None:
            return _whole_without(np.where(present, theta, 0.0), present, inside)
        if problem.penalty:
            return firth_without(np.where(present, theta, 0.0), free, ~present)
        search = partial(_separation, problem, ask)
        return supremum(theta, present, problem.layout.width, search, flat, receding)

    free, kind = np.diagonal(problem.prior.precision) == 0, problem.kind
    has_domain = kind.likelihood is not None and kind.has_rows and problem.layout.has_intercept
    inside = designed(Prepared(problem), ask).start if has_domain else None
    tests = REFITS[how](asked, fit, flat, None if problem.penalty else full, noise, df_residual, left)
    found = driven(tests, lambda at: ask(problem, at if isinstance(at, FirthQuestion) else DerivativesQuestion(at)))
    return tuple(replace(one, how=how) for one in found)
