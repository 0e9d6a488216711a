"""Questions of the engine of GLMs beside the rounds, so that a run has the table that one process would have given.

Before the first round: which columns say the same, where they lie, and of least squares or Firth's penalty the fit
itself. After the last one: why a likelihood has no maximum, and the sums of deviance, criteria and robust covariances.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from .._archive import refusal
from .._errors import ArgumentError
from .._fields import Field, read_fields, read_plain
from .._validation import Array
from ..design.agreement import terms_of
from ..design.rows import INTERCEPT, Layout
from ..families import FullGaussian
from ..families.precision import DensePrecision
from ..glm.diagnosis import (
    Collinear,
    Constant,
    Finding,
    Separation,
    Undecided,
    Zero,
    as_dict,
    coefficient_names,
    diagnose_before,
    find_separation,
    read_finding,
    without_estimate,
)
from ..glm.firth import FirthAnswer, firth
from ..glm.inference import FitStatistics, Noise, null_fit, null_start
from ..glm.kinds import Kind, is_kind_of_loss, kind_of_loss
from ..glm.least_squares import information_of, settled, solve
from ..glm.prior import RunFacts, deviations_of
from ..glm.problem import HOLD
from ..glm.questions import (
    LARGEST,
    QUESTIONS,
    DerivativesQuestion,
    Design,
    DesignQuestion,
    LeastSquaresQuestion,
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
from ..glm.refit import Derivatives, driven, refit, without
from ..glm.separation import Question as SeparationQuestion
from ..glm.site_statistics import SiteStatistics, with_all_robust
from ..losses.base import GaussianExpected, KroneckerCurvature, Margins
from ..losses.expectations import Delta
from ..splitting.certificate import Certificate, PooledObjective
from ..splitting.result import Result
from ..splitting.status import Status
from .questions import Asking, Declined, Refused, Unsettled

Covariance = Callable[[], Array]


# ----------------------------------------------------------------------------------------------------
# Questions and answers as messages
# ----------------------------------------------------------------------------------------------------


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


# ----------------------------------------------------------------------------------------------------
# Before the first round
# ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Prepared:
    """Facts known before the first round.

    `spec` is that of the rounds, with columns measured at their means, and a prior that holds superfluous ones at zero.
    `design` has the sites' sums where they were asked, `null` θ of the model of intercepts alone, `result` a fit that
    needs no rounds, `missing` what the table lacks, and why. `searched` is a separation, or none; None where nobody has
    looked, and `unsearched` why nobody could. `done` and `floats` count the questions and the numbers that they took.
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
    searched: tuple[Finding, ...] | None = None
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
    is_likelihood = spec.row.is_newton and type(spec.prior) is FullGaussian and not spec.prior.mean.any()
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
    is_exact = spec.row.is_newton and type(spec.prior) is FullGaussian
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
            if is_free and type(spec.prior) is FullGaussian:
                ask.spec = spec = _about_the_means(spec, designs)
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
    """θ of the model of intercepts alone; zeros where that has no maximum, or there is none."""
    sizes = sizes_of(spec)
    theta = np.zeros((sizes["c"], sizes["p"]))
    if spec.has_intercept:
        with np.errstate(divide="ignore"):
            null = kind.null(target / weight)
        theta[:, -1] = null if np.isfinite(null).all() else 0.0
    return theta.ravel()


def _moved(found: Prepared, ask: Asking) -> Prepared:
    """Name superfluous columns and hold them at zero, and measure columns at their pooled means."""
    assert found.design is not None
    spec, sizes = found.spec, sizes_of(found.spec)
    findings = diagnose_before([one.root @ _units(spec) for one in found.design], _columns(spec), _intercepts(spec))
    ask.spec = spec = _about_the_means(spec, found.design)
    superfluous = [f.column for f in findings if isinstance(f, Zero | Constant | Collinear)]
    places = [_columns(spec).index(name) for name in superfluous]
    if places:
        assert found.null is not None
        hessian = np.sum([one.hessian for one in ask(DerivativesQuestion(found.null))], axis=0)
        diagonal = np.diagonal(hessian)
        precision = np.zeros(diagonal.shape)
        for j in (output * sizes["p"] + place for output in range(sizes["c"]) for place in places):
            precision[j] = HOLD * (diagonal[j] if diagonal[j] > 0 else diagonal.max(initial=1.0))
        spec = replace(spec, prior=FullGaussian(np.zeros(sizes["d"]), np.diag(precision)))
        ask.spec = spec
    return replace(found, spec=spec, findings=findings)


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
    try:
        fit = driven(firth(found.null, free=free), ask)
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
    roots = [_design_root(one, is_free) @ _units(spec) for one in factors]
    findings = diagnose_before(roots, columns, _intercepts(spec)) if not precision.any() else ()
    own, null_variance = information_of(factors)
    settings = {"noise": noise, "weight_kind": spec.weight_meaning}
    solved = solve(factors, precision[:p, :p], columns[:p], own, null_variance, **settings)
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
        null=null.ravel(),
        noise="given" if noise is not None else "estimated",
        noise_variance=solved.noise,
    )
    share = (noise or 1.0) / solved.noise
    sums = (Sums(*(share * one for one in own)) for own in ask(SumsQuestion(theta)))
    expected = [_expected(posterior, own, 0.0) for own in sums]
    result = settled(prior, posterior, expected, spec.tol)
    return replace(found, result=result, caveat=solved.caveat(result.status is Status.CONVERGED))


def _design_root(factor: Any, is_free: bool) -> Array:
    """R of the design alone: of the columns, and of the ones that come last."""
    root: Array = factor.root
    if not is_free:
        return root[:, : factor.n_features]
    ones, p = root[:, :1], factor.n_features
    return np.column_stack([root[:, 1 : p + 1] + ones * factor.shift[:p], ones])


# ----------------------------------------------------------------------------------------------------
# After the last round
# ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class AskedTable:
    """A table beside the posterior.

    `missing` says what it lacks, which site did not answer, and what keeps a fit from being certified; `method` how the
    fit was made where it needed no rounds. `exchanges` counts questions, `floats` the numbers of questions and answers.
    `exact` is the posterior where its natural parameters would lose digits, `reduced` the pooled loss of the fit
    without each term, at a noise variance of 1.
    """

    findings: tuple[Finding, ...] = ()
    statistics: FitStatistics | None = None
    noise_variance: float = 1.0
    missing: tuple[str, ...] = ()
    penalty: str | None = None
    method: str | None = None
    exchanges: int = 0
    floats: int = 0
    exact: FullGaussian | None = None
    reduced: Mapping[str, float] = field(default_factory=dict)

    def encode(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return the table as JSON values and arrays, without the exact posterior's natural parameters."""
        plain: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("noise_variance", "missing", "penalty", "method", "exchanges", "floats", "reduced")
        }
        plain["findings"] = [as_dict(finding) for finding in self.findings]
        plain["statistics"], meats = pack_statistics(self.statistics)
        arrays = {f"statistics/{name}": meat for name, meat in meats.items()}
        if self.exact is not None:
            arrays |= {"mean": self.exact.mean, "root": self.exact.factor.cholesky.T}
        return plain, {f"table/{name}": value for name, value in arrays.items()}

    @classmethod
    def read(cls, plain: Mapping[str, Any], arrays: Mapping[str, Array], spec: Any) -> AskedTable:
        """Inverse of `encode`."""
        d = sizes_of(spec)["d"]
        rest = dict(plain)
        findings = rest.pop("findings")
        statistics = unpack_statistics(rest.pop("statistics"), arrays, d, "statistics/")
        exact, own = None, {name: values for name, values in arrays.items() if not name.startswith("statistics/")}
        if own:
            found = read_fields({"mean": Field("d"), "root": Field("d d")}, own, known={"d": d})
            exact = FullGaussian(found["mean"], DensePrecision.from_root(found["root"]))
        head = read_plain(_Head, rest, "table")
        return cls(tuple(map(read_finding, findings)), statistics, **vars(head), exact=exact)


@dataclass(frozen=True)
class _Head:
    """The plain fields of a table."""

    noise_variance: float
    missing: tuple[str, ...]
    penalty: str | None
    method: str | None
    exchanges: int
    floats: int
    reduced: dict[str, float]

    def __post_init__(self) -> None:
        if not 0 < self.noise_variance < np.inf or min(self.exchanges, self.floats) < 0:
            raise ValueError("noise_variance must be > 0, exchanges and floats counts")
        if not np.isfinite([*self.reduced.values()]).all():
            raise ValueError("reduced must be losses")


def tabulate(found: Prepared, ask: Asking, theta: Array, covariance: Covariance | None, outcome: Any) -> AskedTable:
    """Ask what a table needs beside the fit at θ; `covariance` is given where robust ones are defined."""
    spec = ask.spec = found.spec
    kind = kind_of_loss(spec.loss)
    is_likelihood = spec.row.is_newton
    certificate = outcome.certificate
    bound = None if certificate is None else certificate.distance
    is_proven = outcome.status is Status.CONVERGED and bound is not None and bool(np.isfinite(bound.sd_units))
    if is_likelihood and found.result is None and not is_proven and found.searched is None:
        found = _searched(found, ask)
    if found.unsearched and bound is not None and not is_proven:  # a bound, which a maximum would make finite
        outputs = kind.output_names(tuple(spec.classes), sizes_of(spec)["c"])
        free = np.diagonal(spec.prior.precision) == 0
        names = tuple(np.array(coefficient_names(_columns(spec), outputs))[free].tolist())
        found = replace(found, searched=(Undecided(names, found.unsearched),))
    findings, missing = (*found.findings, *(found.searched or ())), [*found.missing, *filter(None, [found.caveat])]
    statistics = None
    if not without_estimate(findings) and not outcome.status.is_failure:
        try:
            statistics, found = _statistics(found, kind, ask, theta, covariance)
        except (Declined, Unsettled) as declined:
            missing.append(lacks("There are no deviance, AIC, BIC and robust standard errors", declined))
    reduced: dict[str, float] = {}
    if spec.tests != "none" and statistics is not None:
        try:
            reduced, lacking = _reduced(found, ask, theta)
            missing += lacking
        except Declined as declined:
            missing.append(lacks("There are no likelihood-ratio tests of terms", declined))
    fitted = found.result
    return AskedTable(
        findings=findings,
        statistics=statistics,
        noise_variance=found.noise_variance,
        missing=tuple(missing),
        penalty=spec.penalty,
        method="stacked QR" if fitted is not None and not spec.penalty else None,
        exchanges=ask.done,
        floats=ask.floats,
        exact=fitted.posterior if fitted is not None and isinstance(fitted.posterior, FullGaussian) else None,
        reduced=reduced,
    )


def watch(found: Prepared, ask: Asking, state: Any) -> tuple[Prepared, bool, Certificate | None]:
    """Look for a separation once a run is long; with one the run stops, with the certificate of where it is, if any."""
    found = _searched(found, ask)
    if not any(isinstance(finding, Separation) for finding in found.searched or ()):
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
    kind = kind_of_loss(found.spec.loss)
    if kind.is_least_squares:
        return replace(found, searched=())
    try:
        return replace(found, searched=_separation(found.spec, kind, ask))
    except (Declined, Unsettled) as declined:
        return replace(found, searched=(), unsearched=str(declined)).lacking("Separation was not looked for", declined)


def _separation(spec: Any, kind: Kind, ask: Callable[[Any], list[Any]]) -> tuple[Finding, ...]:
    """Prove that the likelihood has a maximum, or name why not."""
    roots = ask(RowsQuestion())
    if not all(one.has_walls for one in roots):
        return ()
    sizes = sizes_of(spec)
    penalised = np.flatnonzero(np.diagonal(spec.prior.precision)[: sizes["p"]] > 0)
    found = find_separation(
        (),
        _columns(spec),
        outputs=kind.output_names(tuple(spec.classes), sizes["c"]),
        intercepts=_intercepts(spec),
        penalised=penalised.tolist(),
        change=_change(spec),
        ask=ask,
        factors=[one.root for one in roots],
    )
    return () if found is None else (found,)


def _statistics(
    found: Prepared, kind: Kind, ask: Asking, theta: Array, covariance: Covariance | None
) -> tuple[FitStatistics, Prepared]:
    """Ask for the sums of deviance, criteria and robust covariances."""
    spec = found.spec
    if found.null is None:
        found = _designed(found, kind, ask)
    null = found.null
    assert null is not None
    spread = None if covariance is None else covariance()
    if found.design is not None and any(one.has_offset for one in found.design):
        mask = np.zeros((sizes_of(spec)["c"], sizes_of(spec)["p"]), dtype=bool)
        mask[:, -1:] = spec.has_intercept
        if spread is not None:
            null = null_start(theta, spread, mask.ravel())
        null = null_fit(null, mask.ravel(), kind, lambda fit: driven(fit, lambda at: ask(DerivativesQuestion(at))))
    bread = None if spread is None else spread / found.noise_variance

    def ask_sums(robust: tuple[str, ...] = ()) -> SiteStatistics:
        about_null = theta if null is None else null
        return reduce(add, ask(StatisticsQuestion(theta, about_null, bread, robust, spec.weight_meaning)))

    total = ask_sums() if bread is None else with_all_robust(kind, ask_sums, Refused)
    return FitStatistics(total, found.noise, spec.weight_meaning, null is not None), found


def _reduced(found: Prepared, ask: Asking, start: Array) -> tuple[dict[str, float], list[str]]:
    """Refit without each term, for likelihood ratios; return also which tests are missing."""
    spec, sizes = found.spec, sizes_of(found.spec)
    free = np.diagonal(spec.prior.precision) == 0 if type(spec.prior) is FullGaussian else np.zeros(sizes["d"], bool)
    is_stated = spec.stated is not None and not spec.stated.is_flat
    if spec.penalty or is_stated or not (spec.row.is_newton and free.any()):
        return {}, ["There are no tests of terms: the fit is not by maximum likelihood."]
    if spec.tests == "wald":
        return {}, []
    told = found.noise_variance if found.noise == "given" else 1.0
    names, values, missing = list(spec.features[: sizes["p"] - spec.has_intercept]), {}, []
    for term, members in terms_of(names, spec.agreement).items():
        places = [o * sizes["p"] + names.index(name) for o in range(sizes["c"]) for name in members]
        if not free[places].any():
            continue
        try:
            fit = refit(start, without(sizes["d"], places) & free)
            values[term] = driven(fit, lambda at: ask(DerivativesQuestion(at))).value * told
        except Declined:
            raise
        except ValueError as error:
            missing.append(f"There is no likelihood-ratio test of {term}: {error}")
    return values, missing
