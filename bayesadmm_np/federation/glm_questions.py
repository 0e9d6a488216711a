"""Questions of the engine of GLMs beside the rounds, so that a run has the table that one process would have given.

Before the first round: which columns say the same, where they lie, and of least squares or Firth's penalty the fit
itself. After the last one: why a likelihood has no maximum, and the sums of deviance, criteria and robust covariances.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial, reduce
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._archive import refusal
from .._errors import ArgumentError
from .._fields import Field, read_fields, read_plain
from .._numerics import driven
from .._validation import Array
from ..design.agreement import terms_of
from ..design.rows import INTERCEPT, Layout
from ..families import FullGaussian
from ..families.precision import DensePrecision
from ..glm.diagnosis import (
    Dependent,
    Finding,
    Searched,
    Separation,
    Undecided,
    as_dict,
    coefficient_names,
    is_suspect,
    read_finding,
    search_dependence,
    search_separation,
)
from ..glm.estimable import moved
from ..glm.firth import FirthAnswer, firth
from ..glm.hypotheses import TermTest, hypotheses, ratio_tests
from ..glm.inference import FAR, FitStatistics, Noise, null_fit, null_start
from ..glm.kinds import Kind, is_kind_of_loss, kind_of_loss
from ..glm.least_squares import dependence, information_of, settled, solve
from ..glm.limit import Steps, held_at, limit, of_prior, supremum
from ..glm.own_fit import OwnFit
from ..glm.prior import RunFacts, deviations_of
from ..glm.problem import HOLD
from ..glm.questions import (
    LARGEST,
    QUESTIONS,
    DerivativesQuestion,
    Design,
    DesignQuestion,
    LeastSquaresQuestion,
    OwnFitQuestion,
    RowsQuestion,
    StatisticsQuestion,
    Sums,
    SumsQuestion,
    name_of,
    pack,
    pack_statistics,
    unpack,
    unpack_statistics,
)
from ..glm.refit import Derivatives
from ..glm.separation import Question as SeparationQuestion
from ..glm.site_statistics import SiteStatistics, with_all_robust
from ..losses.base import GaussianExpected, KroneckerCurvature, Margins
from ..losses.expectations import Delta
from ..splitting.certificate import Certificate, PooledObjective
from ..splitting.result import Result
from ..splitting.status import Status
from .messages import Outcome
from .questions import Asking, Declined, Refused, Talk, Unsettled

Covariance = Callable[[], Array]


# --- Questions and answers as messages ------------------------------------------------------------------------


def sizes_of(spec: Any) -> dict[str, int]:
    """Return the numbers that letters of the shapes in `glm.questions` stand for."""
    d, p = spec.prior.natural.linear.size, len(spec.features)
    c = d // p
    return {"d": d, "p": p, "c": c, "n": p + c}


def pack_question(question: Any) -> tuple[str, dict[str, Any], dict[str, Array]]:
    """Return the name of a question, its plain values, and its arrays."""
    return name_of(question), *pack(question)


def question_made(spec: Any, name: str, content: Mapping[str, Any], arrays: Mapping[str, Array]) -> Any:
    """Return a question; one that is not in the table is refused."""
    if name not in QUESTIONS:
        raise refusal("name", f"a question of the table: {', '.join(QUESTIONS)}", name)
    entry = QUESTIONS[name]
    return unpack(entry.question, content, arrays, entry.asked, sizes_of(spec))


def answer_made(
    spec: Any, question: Any, content: Mapping[str, Any], arrays: Mapping[str, Array], about: Mapping[str, Any] | None
) -> Any:
    """Return the answer to a question; `about` is what the hello said, or None of an answer that was checked before."""
    entry, kind, sizes = QUESTIONS[name_of(question)], kind_of_loss(spec.loss), sizes_of(spec)
    asked = {name: getattr(question, name) for name in entry.asked}
    sizes["k"] = 2 if kind.is_classifier and kind.outputs == "one" else sizes["c"] + kind.has_reference
    if isinstance(question, SeparationQuestion):
        sizes["r"] = question.basis.shape[1]
    if isinstance(question, LeastSquaresQuestion):
        sizes["s"] = sizes["n"] - question.has_intercept
    least = 0.0 if kind.is_classifier or kind.is_least_squares else -np.inf
    drops = spec.agreement is not None and spec.agreement.drop_withheld
    known = {
        **sizes,
        **asked,
        "drops": drops,
        "kind": kind,
        "least": least,
        "has_ones": spec.has_intercept,
        **(about or {}),
    }
    found = unpack(entry.answer, content, arrays, entry.said, known, is_own=about is None)
    if isinstance(found, SiteStatistics) and set(found.meats) != set(question.robust):
        raise refusal("meats", f"those of {list(question.robust)}", sorted(found.meats))
    if isinstance(found, Derivatives | FirthAnswer) and not all((np.abs(value) <= LARGEST).all() for value in found):
        return found._replace(value=np.inf)  # what has overflowed is of no use to a search but for that
    return found


# --- Before the first round -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Prepared:
    """Facts known before the first round.

    `spec` is that of the rounds, with columns measured at their means, and a prior that holds superfluous ones at zero.
    `design` has the sites' sums where they were asked, `null` θ of the model of intercepts alone, `result` a fit that
    needs no rounds, `missing` what the table lacks, and why. `flat` is that of `FittedGLM`. `searched` is the end of a
    search for separation; None where nobody has looked, and `unsearched` why nobody could. `done` and `floats` count
    the questions and the numbers that they took.
    """

    spec: Any
    findings: tuple[Finding, ...] = ()
    design: tuple[Design, ...] | None = None
    null: Array | None = None
    noise: Noise = "none"
    noise_variance: float = 1.0
    result: Result | None = None
    caveat: str = ""
    missing: tuple[str, ...] = ()
    flat: Array | None = None
    searched: Searched | None = None
    unsearched: str = ""
    done: int = 0
    floats: int = 0

    def lacking(self, what: str, declined: Declined | Unsettled) -> Prepared:
        """Return it with another sentence about what is missing."""
        return replace(self, missing=(*self.missing, lacks(what, declined)))


def lacks(what: str, why: Declined | Unsettled) -> str:
    """Say what a table lacks."""
    how = "as a site did not answer the question" if isinstance(why, Declined) else "as no end came of the question"
    return f"{what}, {how} {why.name!r} ({why})."


def prepare(spec: Any, ask: Asking) -> Prepared:
    """Ask what must be known before the first round."""
    kind = kind_of_loss(spec.loss)
    found = Prepared(spec, noise="given" if kind.has_noise else "none")
    is_likelihood = spec.step.at_mean and type(spec.prior) is FullGaussian and not spec.prior.mean.any()
    if is_likelihood and kind.is_least_squares:
        return _least_squares(found, ask)
    if spec.stated is not None and not spec.stated.is_flat:
        ask.spec = spec = with_prior(spec, ask)
        return replace(found, spec=spec)
    if not is_likelihood or spec.prior.precision.any():
        return found
    try:
        found = _moved(_designed(found, kind, ask), ask)
    except Declined as declined:
        if spec.penalty:
            raise ValueError(f"penalty: Firth's needs sums of all sites, and {declined}.") from declined
        return found.lacking("Collinear and constant columns were not looked for", declined)
    return _firth(found, ask) if spec.penalty else found


def with_prior(spec: Any, ask: Asking | None) -> Any:
    """Return the spec with the prior that was stated, in the units of the run; sites are asked for what it needs."""
    stated, is_sd = spec.stated, spec.stated is not None and spec.stated.unit == "sd"
    if stated is None or stated.is_flat:
        return spec
    kind = kind_of_loss(spec.loss) if is_kind_of_loss(spec.loss) else None
    is_free = spec.has_intercept and not stated.penalize_intercept
    is_exact = spec.step.at_mean and type(spec.prior) is FullGaussian
    has_flat_shift = kind is not None and kind.has_flat_shift
    needs_null = is_free and (has_flat_shift or not is_exact)
    moments: tuple[Array, Array] | None = None
    changes: dict[str, Any] = {}
    if is_sd or needs_null:
        name, expected = ("prior_unit", "must be 'unit'") if is_sd else ("penalize_intercept", "must be True")
        if ask is None or kind is None:
            raise ArgumentError(name, f"{expected} where sites are not asked for sums about columns")
        try:
            designs: list[Design] = ask(DesignQuestion())
            moments = _moments(designs, spec)
            if (is_free or is_sd) and type(spec.prior) is FullGaussian:
                ask.spec = moved_spec = _about_the_means(spec, designs)
                moments = moments if moved_spec is spec else (np.zeros_like(moments[0]), moments[1])
                spec = moved_spec
            if needs_null:
                total = np.sum([one.target for one in designs], axis=0), sum(one.weight for one in designs)
                null = _null(kind, spec, *total)
                hessian = np.sum([np.diagonal(one.hessian) for one in ask(DerivativesQuestion(null))], axis=0)
                width = len(spec.features)
                changes = {"null": null, "information": float(hessian[width - 1 :: width].mean())}
        except Declined as declined:
            raise ArgumentError(name, f"{expected} in a new run, without sums of all sites", declined) from declined
    p = len(spec.features) - spec.has_intercept
    layout = Layout(p, sizes_of(spec)["c"], spec.has_intercept)
    centre, scale = (np.zeros(p), np.ones(p)) if spec.centre is None else (spec.centre[:p], spec.scale[:p])
    units, origin = stated.units(centre, scale, moments)
    facts = RunFacts(layout, units, origin, is_exact, has_flat_shift, **changes)
    return replace(spec, prior=stated.member(stated.precision, type(spec.prior), facts))


def _about_the_means(spec: Any, designs: Sequence[Design]) -> Any:
    """Measure columns at their pooled means, where the run has no units yet, and sites can move."""
    if not (spec.has_intercept and spec.centre is None and all(one.moves for one in designs)):
        return spec
    mean = np.sum([one.sums for one in designs], axis=0) / sum(one.weight for one in designs)
    mean[-1] = 0.0
    return replace(spec, centre=mean, scale=np.ones(mean.size))


def _moments(designs: Sequence[Design], spec: Any) -> tuple[Array, Array]:
    """Return means and standard deviations of the columns over all rows, in the units in which sites were asked."""
    p, weight = len(spec.features) - spec.has_intercept, sum(one.weight for one in designs)
    means = np.sum([one.sums for one in designs], axis=0)[:p] / weight
    root = np.vstack([one.root for one in designs])
    if spec.has_intercept:  # below the ones, R has the columns about their means
        squares = (np.asarray(np.linalg.qr(np.roll(root, 1, axis=1), mode="r"))[1:, 1:] ** 2).sum(axis=0)
    else:
        squares = (root**2).sum(axis=0) - weight * means**2
    return means, deviations_of(squares / weight, means)


def _designed(found: Prepared, kind: Kind, ask: Asking) -> Prepared:
    """Ask for the sums about columns and target."""
    answers: list[Design] = ask(DesignQuestion())
    noise = _told_noise(found.spec, answers) or 1.0
    null = _null(kind, found.spec, np.sum([one.target for one in answers], axis=0), sum(one.weight for one in answers))
    return replace(found, design=tuple(answers), null=null, noise_variance=noise)


def _told_noise(spec: Any, answers: Sequence[Any]) -> float | None:
    """Return the noise variance that the sites were told, which is one."""
    told = {site: answer.noise_variance for site, answer in zip(spec.sites, answers, strict=True)}
    if len(set(told.values())) > 1:
        each = ", ".join(f"{value} at site {site}" for site, value in told.items())
        raise ValueError(f"noise_variance must be the same at all sites, got {each}.")
    return answers[0].noise_variance


def _null(kind: Kind, spec: Any, target: Array, weight: float) -> Array:
    """θ of the model of intercepts alone, which lie at `FAR` where they are infinite; zeros without intercepts."""
    sizes = sizes_of(spec)
    theta = np.zeros((sizes["c"], sizes["p"]))
    if spec.has_intercept:
        with np.errstate(divide="ignore"):
            null = kind.null(target / weight)
        theta[:, -1] = np.clip(null, -FAR, FAR)
    return theta.ravel()


def _moved(found: Prepared, ask: Asking) -> Prepared:
    """Name superfluous columns and hold them at zero, and measure columns at their pooled means."""
    assert found.design is not None
    spec, sizes = found.spec, sizes_of(found.spec)
    findings, flat = search_dependence(
        [one.root @ _units(spec) for one in found.design], _columns(spec), _intercepts(spec)
    )
    ask.spec = spec = _about_the_means(spec, found.design)
    if findings:
        places = [_columns(spec).index(one.column) for one in findings]
        diagonal = _information(found, ask)
        precision = np.zeros(diagonal.shape)
        for j in (output * sizes["p"] + place for output in range(sizes["c"]) for place in places):
            precision[j] = HOLD * (diagonal[j] if diagonal[j] > 0 else diagonal.max(initial=1.0))
        spec = replace(spec, prior=FullGaussian(np.zeros(sizes["d"]), np.diag(precision)))
        ask.spec = spec
    return replace(found, spec=spec, findings=findings, flat=_in_the_run(spec, flat))


def _information(found: Prepared, ask: Asking) -> Array:
    """About what the rows have on each coefficient: at the model of intercepts alone, where that is finite."""
    null = np.zeros(sizes_of(found.spec)["d"]) if found.null is None else found.null
    answers = ask(DerivativesQuestion(np.where(np.abs(null) == FAR, 0.0, null)))
    return np.asarray(np.diagonal(np.sum([one.hessian for one in answers], axis=0)))


def _in_the_run(spec: Any, flat: Array) -> Array:
    """Directions of the coefficients in the columns' own units as directions of θ."""
    units, each = _units(spec), np.eye(flat.shape[1])
    own = [int(np.flatnonzero((flat == one).all(axis=1))[0]) for one in each]  # where each is 1, and stays so
    return np.asarray(np.kron(np.eye(sizes_of(spec)["c"]), moved(units, flat / np.diagonal(units)[own])))


def _columns(spec: Any) -> list[str]:
    names = list(spec.features)
    return [*names[:-1], INTERCEPT] if spec.has_intercept else names


def _intercepts(spec: Any) -> list[int]:
    return [len(spec.features) - 1] if spec.has_intercept else []


def _units(spec: Any) -> Array:
    """M with X M the design in the columns' own units."""
    p = len(spec.features)
    if spec.centre is None:
        return np.eye(p)
    back = np.diag(spec.scale)
    if spec.has_intercept:
        back[-1] += spec.centre
    return np.asarray(back)


def _change(spec: Any) -> Array | None:
    """A with θ in the columns' own units = Aθ."""
    if spec.centre is None:
        return None
    own = np.diag(1.0 / spec.scale)
    if spec.has_intercept:
        own[-1] -= spec.centre / spec.scale
    return np.asarray(np.kron(np.eye(sizes_of(spec)["c"]), own))


def _firth(found: Prepared, ask: Asking) -> Prepared:
    """Fit with Firth's penalty by questions."""
    spec = found.spec
    free = np.diagonal(spec.prior.precision) == 0
    assert found.null is not None
    start = np.where(np.abs(found.null) == FAR, 0.0, found.null)
    try:
        fit = driven(firth(start, free=free), ask)
    except ArgumentError as error:
        if error.argument == "X":
            raise
        raise Unsettled("firth", f"the question 'firth' did not settle: {error}") from error
    prior = spec.prior
    posterior = FullGaussian(fit.mean, fit.information + prior.precision)
    sums = ask(SumsQuestion(fit.mean))
    tilted = [
        own._replace(value=own.value - float(pull @ fit.mean), gradient=own.gradient - pull)
        for own, pull in zip(sums, fit.pulls, strict=True)
    ]
    result = settled(prior, posterior, [_expected(posterior, own, None) for own in tilted], spec.tol)
    return replace(found, result=result)


def _expected(posterior: FullGaussian, sums: Sums, reach: float | None) -> GaussianExpected:
    margins = Margins(reach, sums.errors, sums.curvature_error)
    curvature = KroneckerCurvature(sums.hessian, 1)
    return GaussianExpected(posterior, sums.value, sums.gradient, curvature, Delta(2), lambda: margins)


def _least_squares(found: Prepared, ask: Asking) -> Prepared:
    """Fit by the sites' triangular factors, in one exchange; a second one certifies the fit."""
    spec, sizes = found.spec, sizes_of(found.spec)
    p, c = sizes["p"], sizes["c"]
    precision, stated = np.asarray(spec.prior.precision)[:p, :p], spec.stated
    is_free = spec.has_intercept and not (precision[-1].any() if stated is None else stated.penalize_intercept)
    if stated is not None and not stated.is_flat:
        ask.spec = spec = with_prior(spec, ask)
        precision = np.asarray(spec.prior.precision)[:p, :p]
    try:
        answers = ask(LeastSquaresQuestion(is_free))
    except Declined as declined:
        return found.lacking("The noise variance is not estimated, but 1 or what sites were told", declined)
    noise = _told_noise(spec, answers)
    p -= is_free
    factors = [answer.factor(p, c, is_free) for answer in answers]
    columns = _columns(spec)
    own, null_variance = information_of(factors)
    settings = {"noise": noise, "weight_kind": spec.weight_meaning}
    solved = solve(factors, precision[:p, :p], columns[:p], own, null_variance, **settings)
    findings, flat, unnamed = dependence(factors, solved.fit.collinear, columns, _intercepts(spec), _units(spec))
    centre = None
    if is_free and spec.centre is None and all(answer.moves for answer in answers):
        centre = solved.fit.centre
        spec = replace(spec, centre=np.append(centre, 0.0), scale=np.ones(p + 1))
    theta, prior, posterior = solved.at_the_centre(centre)
    spec = replace(spec, prior=prior)
    ask.spec = spec
    mean = sum(one.total_weight * one.shift[p:] for one in factors) / sum(one.total_weight for one in factors)
    null = np.zeros((c, p + is_free))
    null[:, p:] = np.reshape(mean, (c, 1))[:, : int(is_free)]
    found = replace(
        found,
        spec=spec,
        findings=findings,
        flat=_in_the_run(spec, flat),
        null=null.ravel(),
        noise="given" if noise is not None else "estimated",
        noise_variance=solved.noise,
    )
    share = (noise or 1.0) / solved.noise
    sums = (Sums(*(share * one for one in own)) for own in ask(SumsQuestion(theta)))
    expected = [_expected(posterior, own, 0.0) for own in sums]
    result = settled(prior, posterior, expected, spec.tol, solved.is_resolved)
    said = [unnamed, solved.caveat(result.status is Status.CONVERGED)]
    return replace(found, result=result, caveat=" ".join(filter(None, said)))


# --- After the last round -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class _Head:
    """The plain fields of a table."""

    noise_variance: float
    missing: tuple[str, ...]
    penalty: str | None
    method: str | None
    exchanges: int
    floats: int
    ratio_tests: tuple[TermTest, ...]

    def __post_init__(self) -> None:
        if not 0 < self.noise_variance < np.inf or min(self.exchanges, self.floats) < 0:
            raise ValueError("noise_variance must be > 0, exchanges and floats counts")


@dataclass(frozen=True, eq=False)
class AskedTable(_Head):
    """A table beside the posterior.

    `missing` says what it lacks, which site did not answer, and what keeps a fit from being certified; `method` how the
    fit was made where it needed no rounds. `exchanges` counts questions, `floats` the numbers of questions and answers.
    `exact` is the posterior where its natural parameters would lose digits, or at a limit, `ratio_tests` are those of
    the terms. `flat` and `receding` are those of `FittedGLM`. The server alone knows `limit`, the result at the limit
    of a likelihood without a maximum.
    """

    findings: tuple[Finding, ...] = ()
    statistics: FitStatistics | None = None
    exact: FullGaussian | None = None
    flat: Array | None = None
    receding: Array | None = None
    limit: Result | None = None

    def ending(self, outcome: Outcome) -> Outcome:
        """Return how the run ended, with this table: a likelihood without a maximum has an end of its own."""
        if any(isinstance(finding, Separation) for finding in self.findings):
            status = Status.NO_MAXIMUM
            outcome = replace(outcome, status=status, message=f"{status.value}.")
        if self.limit is not None:
            outcome = replace(outcome, certificate=self.limit.certificate())
        return replace(outcome, table=self)

    def encode(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return the table as JSON values and arrays, without the exact posterior's natural parameters."""
        plain: dict[str, Any] = {item.name: getattr(self, item.name) for item in fields(_Head)}
        plain["ratio_tests"] = [asdict(test) for test in self.ratio_tests]
        plain["findings"] = [as_dict(finding) for finding in self.findings]
        plain["statistics"], meats = pack_statistics(self.statistics)
        arrays = {f"statistics/{name}": meat for name, meat in meats.items()}
        if self.exact is not None:
            arrays |= {"mean": self.exact.mean, "root": self.exact.factor.cholesky.T}
        arrays |= {name: values for name in WAYS if (values := getattr(self, name)) is not None and values.size}
        return plain, {f"table/{name}": value for name, value in arrays.items()}

    @classmethod
    def read(cls, plain: Mapping[str, Any], arrays: Mapping[str, Array], spec: Any) -> AskedTable:
        """Inverse of `encode`."""
        d = sizes_of(spec)["d"]
        rest = dict(plain)
        findings = rest.pop("findings")
        statistics = unpack_statistics(rest.pop("statistics"), arrays, d, "statistics/")
        exact, own = None, {name: values for name, values in arrays.items() if not name.startswith("statistics/")}
        is_exact = not set(own) <= set(WAYS)
        fields = {"mean": Field("d"), "root": Field("d d")} if is_exact else {}
        fields |= {name: Field(f"d {name}") for name in WAYS if name in own}
        found = read_fields(fields, own, known={"d": d})
        if is_exact:
            exact = FullGaussian(found.pop("mean"), DensePrecision.from_root(found.pop("root")))
        head = read_plain(_Head, rest, "table")
        return cls(tuple(map(read_finding, findings)), statistics, **vars(head), exact=exact, **found)


WAYS = ("flat", "receding")
"""Directions of θ in a table; none is kept of no columns."""


def tabulate(found: Prepared, ask: Asking, theta: Array, covariance: Covariance | None, outcome: Any) -> AskedTable:
    """Ask what a table needs beside the fit at θ; `covariance` is given where robust ones are defined."""
    spec = ask.spec = found.spec
    kind = kind_of_loss(spec.loss)
    is_likelihood = spec.step.at_mean
    certificate = outcome.certificate
    bound = None if certificate is None else certificate.distance
    is_proven = outcome.status is Status.CONVERGED and bound is not None and bool(np.isfinite(bound.sd_units))
    if is_likelihood and found.result is None and not is_proven and found.searched is None:
        found = _searched(found, ask)
    missing = [*found.missing, *filter(None, [found.caveat])]
    if found.unsearched and bound is not None and not is_proven:  # a bound, which a maximum would make finite
        found = _undecided(found, found.unsearched)
    findings, end = found.findings, None
    if found.searched is not None and isinstance(found.searched.finding, Separation):
        findings = (*findings, found.searched.finding)
        try:
            end = _limit(found, found.searched, ask, theta)
            theta, covariance = end.posterior.mean, covariance and (lambda: end.posterior.covariance_matrix)
        except (Declined, ValueError) as error:
            missing.append(f"There is no deviance, AIC or BIC: {LIMIT} ({error}).")
            found = found if found.searched.finding.is_complete else _undecided(found, str(error))
    if found.searched is not None and isinstance(found.searched.finding, Undecided):
        findings = (*findings, found.searched.finding)
    statistics = None
    has_loss = end is not None or found.searched is None or found.searched.finding is None
    if has_loss and (end is not None or not outcome.status.is_failure):
        try:
            statistics, found = _statistics(found, kind, ask, theta, covariance, end is not None)
        except (Declined, Unsettled) as declined:
            missing.append(lacks("There are no deviance, AIC, BIC and robust standard errors", declined))
    if is_likelihood and (end is not None or not outcome.status.is_failure):
        missing += _own_fits_asked(found, ask)
    tests: tuple[TermTest, ...] = ()
    if spec.tests != "none" and statistics is not None:
        try:
            tests, lacking = _term_tests(found, ask, theta, statistics)
            missing += lacking
        except Declined as declined:
            missing.append(lacks("There are no likelihood-ratio tests of terms", declined))
    fitted = found.result or end
    return AskedTable(
        findings=findings,
        statistics=statistics,
        noise_variance=found.noise_variance,
        missing=tuple(missing),
        penalty=spec.penalty,
        method="stacked QR" if found.result is not None and not spec.penalty else None,
        exchanges=ask.done,
        floats=ask.floats,
        exact=fitted.posterior if fitted is not None and isinstance(fitted.posterior, FullGaussian) else None,
        ratio_tests=tests,
        flat=found.flat,
        receding=None if found.searched is None else found.searched.receding,
        limit=end,
    )


LIMIT = "the limit of the likelihood was not reached"


def _undecided(found: Prepared, reason: str) -> Prepared:
    """Return it with no coefficient that is known to be finite."""
    spec, sizes = found.spec, sizes_of(found.spec)
    free = np.diagonal(spec.prior.precision) == 0
    names = coefficient_names(_columns(spec), kind_of_loss(spec.loss).output_names(tuple(spec.classes), sizes["c"]))
    finding = Undecided(tuple(np.array(names)[free].tolist()), reason)
    return replace(found, searched=Searched(finding, np.eye(sizes["d"])[:, free]))


def _limit(found: Prepared, searched: Searched, ask: Asking, theta: Array) -> Result:
    """Fit what is finite at the limit of a separated likelihood."""
    spec, kept = found.spec, np.tile(_kept(found), sizes_of(found.spec)["c"])
    starts = [np.where(kept, theta, 0.0), np.zeros(theta.size)]
    with np.errstate(over="ignore", invalid="ignore"):
        fit = driven(
            limit(starts, kept, searched),
            lambda at: [*ask(DerivativesQuestion(at)), of_prior(spec.prior, at)],
        )
    sums = ask(SumsQuestion(fit.theta))
    hessian = np.sum([own.hessian for own in sums], axis=0)
    prior, posterior = held_at(fit.theta, searched.pivots, spec.prior, hessian, _information(found, ask))
    return settled(prior, posterior, [_expected(posterior, own, None) for own in sums], spec.tol)


def _kept(found: Prepared) -> NDArray[np.bool_]:
    """Columns that are not held at zero because other columns say the same, shape (p,)."""
    held = [one.column for one in found.findings if isinstance(one, Dependent)]
    return np.isin(_columns(found.spec), held, invert=True)


def is_long(found: Prepared, state: Any) -> bool:
    """Return whether it is time to look for a separation, which is done once."""
    if found.searched is not None or not state.history:
        return False
    shares = None if found.design is None else np.sum([one.target for one in found.design], axis=0)
    return is_suspect(state.history[-1], shares if kind_of_loss(found.spec.loss).is_classifier else None)


def watch(found: Prepared, ask: Asking, state: Any) -> tuple[Prepared, bool, Certificate | None]:
    """Look for a separation once a run is long; with one the run stops, with the certificate of where it is, if any."""
    found = _searched(found, ask)
    if found.searched is None or not isinstance(found.searched.finding, Separation):
        return found, False, None
    spec, q_g = found.spec, state.q_g
    try:
        expected = [_expected(q_g, own, None) for own in ask(SumsQuestion(q_g.mean))]
    except Declined:  # at a point that may be far off
        return found, True, None
    pooled = PooledObjective(spec.prior, q_g, expected)
    return found, True, Certificate(state.history[-1].edges, pooled.residual, spec.tol, pooled.distance)


def _searched(found: Prepared, ask: Asking) -> Prepared:
    """Look for a separation, where that has a meaning."""
    spec, nothing = found.spec, Searched(None, np.zeros((sizes_of(found.spec)["d"], 0)))
    if kind_of_loss(spec.loss).is_least_squares:
        return replace(found, searched=nothing)
    try:
        penalised = np.diagonal(spec.prior.precision)[: sizes_of(spec)["p"]] > 0
        return replace(found, searched=_separation(spec, ask, ~penalised))
    except (Declined, Unsettled) as declined:
        return replace(found, searched=nothing, unsearched=str(declined)).lacking(
            "Separation was not looked for", declined
        )


def _separation(spec: Any, ask: Callable[[Any], list[Any]], free: NDArray[np.bool_]) -> Searched:
    """Prove that the likelihood has a maximum in the free coefficients, shape (p,) or (d,), or say why not."""
    roots, sizes = ask(RowsQuestion()), sizes_of(spec)
    if not all(one.has_walls for one in roots):
        return Searched(None, np.zeros((sizes["d"], 0)))
    return search_separation(
        (),
        _columns(spec),
        outputs=kind_of_loss(spec.loss).output_names(tuple(spec.classes), sizes["c"]),
        intercepts=_intercepts(spec),
        penalised=np.flatnonzero(~free[: sizes["p"]]).tolist(),
        change=_change(spec),
        ask=ask,
        factors=[one.root for one in roots],
    )


def _statistics(
    found: Prepared, kind: Kind, ask: Asking, theta: Array, covariance: Covariance | None, is_limit: bool
) -> tuple[FitStatistics, Prepared]:
    """Ask for the sums of deviance, criteria and robust covariances."""
    spec = found.spec
    if found.null is None:
        found = _designed(found, kind, ask)
    null = found.null
    assert null is not None
    spread = None if covariance is None else covariance()
    has_offset = found.design is not None and any(one.has_offset for one in found.design)
    if has_offset and not (np.abs(null) == FAR).any():
        mask = np.zeros((sizes_of(spec)["c"], sizes_of(spec)["p"]), dtype=bool)
        mask[:, -1:] = spec.has_intercept
        if spread is not None and not is_limit:
            null = null_start(theta, spread, mask.ravel())
        null = null_fit(null, mask.ravel(), kind, lambda fit: driven(fit, lambda at: ask(DerivativesQuestion(at))))
    bread = None if spread is None else spread / found.noise_variance

    def ask_sums(robust: tuple[str, ...] = ()) -> SiteStatistics:
        about_null = theta if null is None else null
        return reduce(add, ask(StatisticsQuestion(theta, about_null, bread, robust, spec.weight_meaning)))

    total = ask_sums() if bread is None else with_all_robust(kind, ask_sums, Refused)
    return FitStatistics(total, found.noise, spec.weight_meaning, null is not None), found


def _own_fits_asked(found: Prepared, ask: Asking) -> list[str]:
    """Ask each site for its own fit, where the fit of all is by maximum likelihood; return what is missing."""
    spec, free = found.spec, _kept(found)
    if len(spec.sites) < 2 or spec.penalty or type(spec.prior) is not FullGaussian:
        return []
    if np.diagonal(spec.prior.precision).reshape(-1, free.size)[:, free].any():
        return []
    try:
        ask(OwnFitQuestion(free.astype(np.float64), spec.weight_meaning))
    except Declined as declined:
        return [lacks("Some site has no part in heterogeneity", declined)]
    return []


def own_fits(spec: Any, talk: Talk) -> dict[str, OwnFit]:
    """Return the own fits that the server was told, by site; the final message does not have them."""
    return {
        site: unpack(OwnFit, one.content, one.arrays, QUESTIONS["own_fit"].said, sizes_of(spec), is_own=True)
        for answers in talk.exchanges
        for site, one in zip(spec.sites, answers, strict=True)
        if one is not None and one.name == "own_fit" and not one.refused
    }


def _term_tests(
    found: Prepared, ask: Asking, start: Array, statistics: FitStatistics
) -> tuple[tuple[TermTest, ...], list[str]]:
    """Fit without each term, for likelihood ratios; return also why there are no tests."""
    spec, sizes, total = found.spec, sizes_of(found.spec), statistics.total
    free = np.diagonal(spec.prior.precision) == 0 if type(spec.prior) is FullGaussian else np.zeros(sizes["d"], bool)
    is_stated = spec.stated is not None and not spec.stated.is_flat
    if spec.penalty or is_stated or not (spec.step.at_mean and free.any()):
        return (), ["There are no tests of terms: the fit is not by maximum likelihood."]
    if spec.tests == "wald":
        return (), []
    terms = terms_of(spec.features[: sizes["p"] - spec.has_intercept], spec.agreement)
    asked = hypotheses(terms, sizes["p"], sizes["c"], spec.test_type)
    flat = np.eye(sizes["d"])[:, ~free] if found.flat is None else found.flat
    outputs = sizes["c"] if kind_of_loss(spec.loss).outputs == "columns" else 1
    n_rows = outputs * total.n_observations(spec.weight_meaning)
    receding = None if found.searched is None else found.searched.receding
    full = total.loss / (found.noise_variance if found.noise == "given" else 1.0)

    def fit(present: NDArray[np.bool_]) -> Steps:
        return supremum(start, present, sizes["p"], partial(_separation, spec, ask), flat, receding)

    tests = ratio_tests(asked, fit, flat, full, found.noise, n_rows - int(free.sum()))
    return driven(tests, lambda at: ask(DerivativesQuestion(at))), []
