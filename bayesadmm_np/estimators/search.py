"""The search for a fit: a run at a given prior and noise variance, or runs until their evidence is largest."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from .._errors import PLAIN, ArgumentError, Words, worded
from .._numerics import driven
from .._threads import one_thread_where_small
from .._validation import Array
from ..design.rows import INTERCEPT, Layout, SiteRows, require_size
from ..families import FullGaussian
from ..families.coordinates import Natural
from ..families.gaussian import Gaussian
from ..glm.diagnosis import Finding, Searched, Separation, Undecided, is_suspect
from ..glm.estimable import moved
from ..glm.firth import Tilted, fit_firth
from ..glm.least_squares import dependence, settled, solve
from ..glm.limit import held_at, limit, of_prior
from ..glm.problem import Glm, carry
from ..glm.refit import Derivatives, derivatives
from ..losses.base import Loss
from ..losses.expectations import Delta
from ..losses.stacked_qr import site_factor
from ..splitting.loop import run
from ..splitting.methods import FedLapCov
from ..splitting.result import Result, RunError
from ..splitting.status import RoundRecord, Status
from .evidence import maximise
from .faults import name_dependence, name_failure, name_separation, name_superfluous
from .fitted import STACKED_QR
from .settings import MINIMUM_NORM, Settings, facts_of, make_prior

PRECISIONS = (1e-6, 1e6)
"""Range in which the evidence may choose the prior's precision; over the variance of y where a kind has noise."""

NOISES = (1e-6, 1e2)
"""Range of the noise variance that the evidence may choose, relative to the variance of y."""


LARGE = 10.0
"""Mean offset of which a failed run is told: a chance of 5e-5, or counts of 2e4."""

APART = 150.0
"""Means of offsets at two sites, a factor of 1e65 of rates: Newton's way from one to the other is a unit a round."""

OFFSET = (
    "The offsets have a mean of {:g}, and no unpenalised intercept takes it up: fit one ({}), or "
    "subtract a number from the offsets."
)
OVERFLOWS = "site {!r}: the loss overflows at the start of the fit; scale X{}, or look at its rows."


@dataclass(frozen=True)
class Fit:
    """A finished run, the data for a warm start, and messages for the user.

    `settings` are those of the run, whose method may be another than was asked for. `rounds` counts the exchanges of
    all runs of a search, and `floats` the numbers that the history of `result` lacks. `message` says where the
    evidence is largest, `caveat` and `caveats` what a user should know besides `findings`. `searched` is the end of a
    search for separation, None before one, `flat` that of `FittedGLM`, and `prior` that of the model where the run's
    holds more.
    """

    result: Result
    glm: Glm
    settings: Settings
    precision: float | Array
    noise: float
    rounds: int
    message: str = ""
    caveat: str = ""
    searched: Searched | None = None
    floats: int = 0
    findings: tuple[Finding, ...] = ()
    caveats: tuple[Callable[[Words], str], ...] = ()
    flat: Array | None = None
    prior: Gaussian | None = None

    @property
    def start(self) -> Start:
        """Sites and settings from which a next run may start; a fit at infinity has none."""
        sites = {} if self.prior is not None else dict(zip(self.glm.names, self.result.sites, strict=True))
        return Start(sites, self.precision, self.noise, self.glm.layout)


@dataclass(frozen=True)
class Start:
    """Sites by name, and the prior's precision, the noise variance and the origin that they were fitted with."""

    sites: Mapping[Hashable, Natural]
    precision: float | Array
    noise: float
    layout: Layout


@one_thread_where_small(lambda glm, *_: glm.layout.dim)
def fit_and_diagnose(
    glm: Glm, rows: Mapping[Hashable, SiteRows], settings: Settings, start: Start | None, names: Sequence[str]
) -> Fit:
    """Fit a model to rows in their own units, and name what is wrong with its data.

    A RunError is raised where a run failed and the data do not say why.
    """
    _require_sums(glm, names)
    settings = settings.chosen(glm.losses(1.0))
    is_exact = settings.method is STACKED_QR
    findings: tuple[Finding, ...] = ()
    flat = None
    if settings.is_flat and not is_exact:
        glm, findings, flat = name_superfluous(glm, rows, names)
    try:
        fit = fit_glm(glm, settings, start, names)
        is_known = fit.searched is not None or is_exact or _is_proven(fit)
        fit = fit if is_known else replace(fit, searched=name_separation(glm, settings, names))
    except RunError as error:
        fit = _mended(error, glm, rows, settings, names)
    caveat = fit.caveat
    caveats = (*((lambda words: caveat,) if caveat else ()), *fit.caveats)
    fit = replace(fit, findings=(*findings, *fit.findings), caveats=caveats, flat=fit.flat if flat is None else flat)
    searched = fit.searched
    if searched is None or searched.finding is None:
        return fit
    fit = replace(fit, findings=(*findings, searched.finding))
    return _at_limit(fit, searched, names) if isinstance(searched.finding, Separation) else fit


def _at_limit(fit: Fit, searched: Searched, names: Sequence[str]) -> Fit:
    """Return the limit of a separated fit, which has an estimate of all that is finite; none where it has no end."""
    glm, old = fit.glm, fit.result
    losses, plain = glm.losses(1.0), make_prior(fit.settings, fit.precision, glm, 1.0)
    assert isinstance(plain, FullGaussian)
    free = np.isin(np.arange(glm.layout.dim), glm.held, invert=True)
    starts = [np.where(free, old.posterior.mean, 0.0), glm.null_parameter]

    def ask(theta: Array) -> list[Derivatives]:
        return [*(derivatives(loss, theta) for loss in losses), of_prior(plain, theta)]

    try:
        with np.errstate(over="ignore", invalid="ignore"):
            found = driven(limit(starts, free, searched), ask)
    except ValueError as error:
        everything = np.eye(glm.layout.dim)[:, free]
        labels = np.array(glm.layout.parameters(names, glm.outputs))[free]
        unknown = Undecided(tuple(labels.tolist()), str(error).removesuffix("."))
        return replace(fit, findings=(*fit.findings, unknown), searched=Searched(searched.finding, everything))
    theta = found.theta
    hessian = np.sum([loss.hessian(theta) for loss in losses], axis=0)
    information = np.array([glm.information_on(j) for j in range(theta.size)])
    prior, posterior = held_at(theta, searched.pivots, plain, hessian, information)
    expected = [loss.expect(posterior, Delta(2)) for loss in losses]
    end = settled(prior, posterior, expected, old.tol)
    end = replace(
        end,
        status=Status.NO_MAXIMUM,
        ending=f"{Status.NO_MAXIMUM.value}.",
        state=replace(end.state, history=(*old.history, *end.history)),
    )
    floats = found.exchanges * len(losses) * (2 * theta.size + 1 + theta.size**2)
    return replace(
        fit, result=end, rounds=fit.rounds + found.exchanges, floats=fit.floats + floats, searched=searched, prior=plain
    )


def _mended(
    error: RunError, glm: Glm, rows: Mapping[Hashable, SiteRows], settings: Settings, names: Sequence[str]
) -> Fit:
    """Return what is left of a fit that failed: its last state where the data are separated, or Laplace's method."""
    searched = name_separation(glm, settings, names)
    if isinstance(searched.finding, Separation) or (searched.finding is not None and error.result.history):
        rounds, precision = error.result.rounds + 1, 0.0 if settings.precision is None else settings.precision
        return Fit(error.result, glm, settings, precision, 1.0, rounds, searched=searched)
    if searched.finding is not None:  # no round was done: some prior keeps the numbers finite, which are no estimates
        return replace(fit_glm(glm, replace(settings, precision=1.0), None, names), searched=searched)
    if settings.is_auto and glm.kind.has_flat_shift and settings.averages and settings.precision is not None:
        return replace(fit_glm(glm, replace(settings, method=FedLapCov())), caveats=(partial(_fell_back, error),))
    raise name_dependence(error, glm, rows, names) from error


def _fell_back(error: RunError, words: Words) -> str:
    why = worded(error, **words._asdict())
    return f"The variational fit failed ({why}) This is FedLapCov, Laplace's approximation."


def fit_glm(glm: Glm, settings: Settings, start: Start | None = None, names: Sequence[str] = ()) -> Fit:
    """Fit a model to the rows of its sites; the evidence finds a precision or a noise variance of None.

    A RunError names site, round and the knob to turn.
    """
    if settings.penalty:
        return _fit_firth(glm, settings)
    if settings.method is STACKED_QR:
        return _fit_exact(glm, settings, names)
    if settings.precision is None:
        return _fit_precision(glm, settings, start)
    return _fit_noise(glm, settings, settings.precision, start, names)


def _is_proven(fit: Fit) -> bool:
    """Return whether the certificate bounds the distance, which proves that there is a maximum."""
    certificate = fit.result.certificate()
    bound = certificate.distance
    return fit.result.status is Status.CONVERGED and bound is not None and bool(np.isfinite(bound.sd_units))


def _fit_exact(glm: Glm, settings: Settings, names: Sequence[str]) -> Fit:
    """Fit least squares by one exchange: the posterior is N(θ̂, σ²(XᵀX + P)⁻¹), P = σ² × the prior's precision.

    An estimated σ² is RSS/(n − tr[(XᵀX + P)⁻¹XᵀX]); several outputs share it. A collinear column is held at zero, as by
    a prior of HOLD times its information, or a direction is, where the minimum norm is asked for.
    """
    began, layout = time.perf_counter(), glm.layout
    is_free = settings.is_free_intercept
    p = layout.n_features if is_free else layout.width
    factors = [
        site_factor(site.X[:, :p], site.y, site.weights, site.offset, has_intercept=is_free) for site in glm.rows
    ]
    labels = [*names, INTERCEPT][:p]
    assert settings.precision is not None
    block = settings.prior.block(settings.precision, facts_of(settings, glm, 1.0))
    precision = (np.diag(block) if block.ndim < 2 else block)[:p, :p]
    solved = solve(
        factors,
        precision,
        labels,
        _information(glm, p),
        glm.null_variance,
        noise=settings.noise,
        is_relative=settings.is_relative,
        weight_kind=settings.weights,
        shortest=settings.dependent == MINIMUM_NORM,
    )
    _, prior, posterior = solved.at_the_centre(None)
    expected = [loss.expect(posterior, Delta(2)) for loss in glm.losses(solved.noise)]
    tol, floats = settings.options["tol"], solved.fit.floats
    seconds = time.perf_counter() - began
    result = settled(prior, posterior, expected, tol, solved.is_resolved, floats=floats, seconds=seconds)
    block = layout.outward[: layout.width, : layout.width]
    intercepts = [layout.n_features] if layout.has_intercept else []
    findings, flat, unnamed = dependence(factors, solved.fit.collinear, layout.columns(names), intercepts, block)
    said = [unnamed, solved.caveat(result.status is Status.CONVERGED)]
    ways = np.asarray(np.kron(np.eye(layout.n_outputs), flat))
    fit = Fit(result, glm, settings, settings.prior_precision(solved.noise), solved.noise, 1)
    return replace(fit, caveat=" ".join(filter(None, said)), findings=findings, flat=moved(layout.outward, ways))


def _information(glm: Glm, p: int) -> Array:
    """Σ_i w_i x_ij² of each column in its own units, from sums over sites; 1 of a column of zeros."""
    far = np.zeros(p)
    if glm.layout.centre is not None:
        far[: glm.layout.n_features] = glm.layout.centre
    own = np.sum(glm.squares, axis=0)[:p]
    whole: Array = own + far**2 * sum(site.weights.sum() for site in glm.rows)
    return np.where(whole > 0, whole, 1.0)


def _fit_firth(glm: Glm, settings: Settings) -> Fit:
    """Fit with Firth's penalty, and end with the run that stays at the mode: its posterior, sites and certificate."""
    losses = glm.losses(1.0)
    free = np.ones(glm.layout.dim, dtype=bool)
    free[list(glm.held)] = False
    found = fit_firth(losses, glm.null_parameter, free=free)
    tilted = [Tilted(loss, pull) for loss, pull in zip(losses, found.pulls, strict=True)]
    result = run(
        settings.method, tilted, make_prior(settings, 0.0, glm, 1.0), sites=found.sites, **run_options(glm, settings)
    )
    return Fit(result, glm, settings, 0.0, 1.0, found.exchanges + result.rounds + 1, floats=found.floats)


def _fit_precision(glm: Glm, settings: Settings, start: Start | None) -> Fit:
    """Maximise the ELBO over log δ: by the envelope theorem its slope is ½(d − δ E_q‖θ‖²), penalised entries.

    ‖θ‖² is in the units of the prior.
    """
    facts = facts_of(settings, glm, 1.0)
    block = settings.prior.block(1.0, facts)
    one = np.kron(np.eye(glm.layout.n_outputs), np.diag(block) if block.ndim == 1 else block)
    count = glm.layout.n_outputs * (glm.layout.width - settings.is_free_intercept)

    def at(value: float, last: Fit | None) -> tuple[float, Fit]:
        fit = _fit_noise(glm, settings, value, start if last is None else last.start)
        fit = replace(fit, rounds=fit.rounds + (last.rounds if last else 0))
        q = fit.result.posterior
        spread = float(np.diagonal(one) @ q.variance if block.ndim == 1 else (one * q.covariance_matrix).sum())
        return 0.5 * (count - value * (float(q.mean @ one @ q.mean) + spread)), fit

    # coefficients of measurements have the units of these
    variance = glm.null_variance * facts.target_scale**2 if glm.kind.has_noise else 1.0
    first = float(start.precision) if start is not None and np.ndim(start.precision) == 0 else 1.0 / variance
    fit, message = maximise(at, first, (PRECISIONS[0] / variance, PRECISIONS[1] / variance), "prior_precision")
    return replace(fit, message=" ".join(filter(None, [message, fit.message])))


def _fit_noise(
    glm: Glm, settings: Settings, precision: float | Array, start: Start | None, names: Sequence[str] = ()
) -> Fit:
    """Fit at a given prior; find σ², where there is one, by the slope of the ELBO in log σ²: E_q[Σ_k ℓ_k] − N/2."""
    if not glm.kind.has_noise:
        return _run(glm, settings, precision, 1.0, start, names)
    if settings.noise is not None:
        return _run(glm, settings, precision, settings.noise, start, names)
    settings.require_evidence("noise_variance")
    scale = glm.null_variance
    if scale == 0:
        raise ValueError(
            "noise_variance='evidence' needs targets that differ, got n_samples = 1 or a constant y; give a number."
        )

    def at(value: float, last: Fit | None) -> tuple[float, Fit]:
        fit = _run(glm, settings, precision, value, start if last is None else last.start)
        fit = replace(fit, rounds=fit.rounds + (last.rounds if last else 0))
        result = fit.result
        loss = float(result.objective[-1]) - result.posterior.kl(result.prior)
        return loss - 0.5 * glm.n_observed, fit

    first = scale if start is None else start.noise
    fit, message = maximise(at, first, (NOISES[0] * scale, NOISES[1] * scale), "noise_variance")
    return replace(fit, message=message)


class _Watch:
    """Stops a run, once it is long, whose likelihood is proven to have no maximum: more rounds come no nearer to it."""

    def __init__(self, glm: Glm, settings: Settings, names: Sequence[str]) -> None:
        self._search = partial(name_separation, glm, settings, names)
        self._shares = glm.shares if settings.inference == "likelihood" else None
        self.found: Searched | None = None

    def __call__(self, record: RoundRecord, q_g: object) -> bool:
        if self.found is None and is_suspect(record, self._shares):
            self.found = self._search()
        return self.found is not None and isinstance(self.found.finding, Separation)


def _run(
    glm: Glm,
    settings: Settings,
    precision: float | Array,
    noise: float,
    start: Start | None,
    names: Sequence[str] = (),
) -> Fit:
    losses = glm.losses(noise)
    prior = make_prior(settings, precision, glm, noise)
    sites = _first_sites(glm, settings, losses, prior, noise, start)
    watch = _Watch(glm, settings, names) if names else None
    try:
        result = run(settings.method, losses, prior, sites=sites, callback=watch, **run_options(glm, settings))
    except RunError as error:
        raise name_failure(error, glm.names, partial(about_offset, glm)) from error
    # the last broadcast is answered too: by what the certificate needs
    rounds = result.rounds + 1 + (sites is not None)
    if watch is None or watch.found is None:
        return Fit(result, glm, settings, precision, noise, rounds)
    if result.status is Status.STOPPED:
        result = replace(result, status=Status.NO_MAXIMUM, ending=f"{Status.NO_MAXIMUM.value}.")
    return Fit(result, glm, settings, precision, noise, rounds, searched=watch.found)


def run_options(glm: Glm, settings: Settings) -> dict[str, Any]:
    """Return the options of a run: a residual is in standard errors, which are wide where weights are small.

    So the tolerance of a likelihood is lowered by the root of the mean weight, where that is below 1, and the
    coefficients do not depend on the scale of weights.
    """
    weights = [site.weights for site in glm.rows]
    mean = sum(float(own.sum()) for own in weights) / sum(own.size for own in weights)
    if settings.inference != "likelihood" or mean >= 1.0:
        return settings.options
    return {**settings.options, "tol": settings.options["tol"] * float(np.sqrt(mean))}


def _require_sums(glm: Glm, names: Sequence[str]) -> None:
    """Refuse a column whose sums of squares, or a site whose losses without effects, no float holds."""
    for j, column in enumerate(names):
        require_size(f"column {column!r}", np.array([np.abs(site.X[:, j]).max(initial=0.0) for site in glm.rows]))
    if glm.labels is None:
        require_size("y", np.concatenate([site.y.ravel() for site in glm.rows]))
    means = [float(np.average(site.offset, weights=site.weights)) for site in glm.rows if site.offset is not None]
    if not glm.kind.is_least_squares and means and max(means) - min(means) > APART:
        expected = f"must have means within {APART:g} of each other at the sites, as parts of the linear predictor"
        low, high = (value + glm.layout.shift for value in (min(means), max(means)))
        raise ArgumentError("offset", expected, f"{low:g} and {high:g}", "give the logarithm of an exposure")
    for name, squares, loss in zip(glm.names, glm.squares, glm.losses(1.0), strict=True):
        with np.errstate(over="ignore", invalid="ignore"):
            largest = [*squares, loss.value(glm.null_parameter)]
        if not np.isfinite(largest).all():
            large = [column for column, square in zip(names, squares, strict=False) if not np.isfinite(square)]
            said = OVERFLOWS.format(name, f", above all {', '.join(large)}" if large else "")
            raise ValueError(" ".join(filter(None, [said, about_offset(glm)])))


def about_offset(glm: Glm, words: Words = PLAIN) -> str:
    """Say what a large offset does that no free intercept takes up; empty where there is none."""
    known = [(site.offset, site.weights) for site in glm.rows if site.offset is not None]
    if not known or glm.layout.shift:
        return ""
    mean = sum(float(weights @ offset) for offset, weights in known) / sum(float(w.sum()) for _, w in known)
    return OFFSET.format(mean, words.argument("fit_intercept")) if abs(mean) > LARGE else ""


def _first_sites(
    glm: Glm, settings: Settings, losses: Any, prior: Gaussian, noise: float, start: Start | None
) -> list[Natural] | None:
    """Sites by name where a fit is continued, Newton steps for the others; None where the method knows no sites."""
    if not settings.takes_sites:
        return None
    known = {} if start is None else _known_sites(glm, prior, noise, start)
    if not known and (settings.step.begins == "sites" or not settings.learns_covariance):
        return None
    theta = glm.null_parameter
    if known:
        natural = prior.natural.combine([1.0] * (len(known) + 1), [prior.natural, *known.values()])
        if prior.contains(natural):
            theta = prior.with_natural(natural * (1.0 / prior.prior_weight)).mean
        else:
            known = {}
    fresh = newton_sites(losses, prior, theta)
    for name, site in zip(glm.names, fresh, strict=True):
        if not site.is_finite():
            raise ValueError(OVERFLOWS.format(name, ""))
    return [known.get(name, site) for name, site in zip(glm.names, fresh, strict=True)]


def _known_sites(glm: Glm, prior: Gaussian, noise: float, start: Start) -> dict[Hashable, Natural]:
    """The sites of an earlier fit, brought to the present noise variance and origin; none when they do not fit."""
    known = {name: start.sites[name] * (start.noise / noise) for name in glm.names if name in start.sites}
    centre, earlier = glm.layout.centre, start.layout.centre
    same = all(site.shapes == prior.natural.shapes for site in known.values())
    if not same or (centre is None) != (earlier is None):
        return {}
    by = glm.layout.shifts - start.layout.shifts
    if centre is not None and earlier is not None and (by.any() or not np.array_equal(centre, earlier)):
        back = glm.layout.move(earlier - centre)
        known = {name: carry(site, back, by) for name, site in known.items()}
    return known


def newton_sites(losses: Sequence[Loss], prior: Gaussian, theta: Array) -> list[Natural]:
    """Return η_k = (Hθ − g, H), g and H the gradient and Hessian of ℓ_k at θ: the server then takes a Newton step.

    Every H is positive semidefinite, so that no client's first problem is wider than the data of the others allow.
    """
    start = prior.start()
    at = start.with_natural(start.natural_from(start.factor.multiply(theta), start.factor.parts))
    return [-loss.expect(at, Delta(2)).natural_gradient for loss in losses]
