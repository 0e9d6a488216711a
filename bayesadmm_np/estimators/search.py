"""The fit of an estimator: the questions of `glm.fit`, with rounds in this process between them.

The evidence may choose the prior's precision and the noise variance, and an earlier fit may be where the rounds start.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from .._errors import Words, worded
from .._threads import one_thread_where_small
from .._validation import Array
from ..families import FullGaussian
from ..families.coordinates import Natural
from ..families.gaussian import Gaussian
from ..glm.diagnosis import Separation
from ..glm.fit import Prepared, Table, designed, is_long, prepare, search, tabulate
from ..glm.layout import Layout, carry
from ..glm.problem import Problem
from ..losses.base import Loss
from ..losses.expectations import Delta
from ..splitting.loop import run
from ..splitting.methods import FedLapCov
from ..splitting.result import Result, RunError
from ..splitting.status import RoundRecord, Status
from .evidence import maximise
from .faults import name_dependence, name_failure
from .settings import Settings
from .sites import OVERFLOWS, Sites, about_offset, require_sums

PRECISIONS = (1e-6, 1e6)
"""Range in which the evidence may choose the prior's precision; over the variance of y where a kind has noise."""

NOISES = (1e-6, 1e2)
"""Range of the noise variance that the evidence may choose, relative to the variance of y."""


@dataclass(frozen=True, eq=False)
class Start:
    """Sites by name, and the prior's precision, the noise variance and the origin that they were fitted with."""

    sites: Mapping[Hashable, Natural]
    precision: float | Array
    noise: float
    layout: Layout


@dataclass(frozen=True, eq=False)
class Run:
    """A run at a prior and a noise variance, after `rounds` exchanges of all runs of a search for these.

    `settings` are those of the run, whose method may be another than was asked for. `message` says where the evidence
    is largest, `caveats` what a user should know.
    """

    found: Prepared
    result: Result
    settings: Settings
    precision: float | Array
    noise: float
    rounds: int
    message: str = ""
    caveats: tuple[Callable[[Words], str], ...] = ()

    @property
    def start(self) -> Start:
        """Sites and settings from which a next run may start."""
        names, layout = self.found.problem.sites, self.found.problem.layout
        return Start(dict(zip(names, self.result.sites, strict=True)), self.precision, self.noise, layout)


@dataclass(frozen=True, eq=False)
class Fit:
    """A finished fit: the run, the table beside it, and the result, which is at the limit of a separated likelihood."""

    run: Run
    table: Table
    result: Result

    @property
    def problem(self) -> Problem:
        """The problem in the units of the run."""
        return self.run.found.problem

    @property
    def start(self) -> Start:
        """Sites from which a next run may start; a fit at infinity has none."""
        return self.run.start if self.table.limit is None else replace(self.run.start, sites={})


@one_thread_where_small(lambda problem, *_: problem.layout.dim)
def fit(problem: Problem, sites: Sites, settings: Settings, start: Start | None) -> Fit:
    """Fit a model to the rows of its sites, and name what is wrong with its data.

    A RunError is raised where a run failed and the data do not say why.
    """
    require_sums(sites, problem)
    settings = settings.chosen(sites.losses(problem.layout, 1.0))
    found = prepare(problem, sites)
    if found.result is not None:
        noise = found.noise_variance
        known = Run(found, found.result, settings, settings.prior_precision(noise), noise, found.exchanges)
    else:
        try:
            known = _search(found, sites, settings, start)
        except RunError as error:
            known = _mended(error, found, sites, settings)
    found, result = known.found, known.result
    fitted: Any = result.posterior
    is_mode = settings.step.at_mean and type(result.prior) is FullGaussian
    spread = (lambda: fitted.covariance_matrix) if is_mode else None
    table = tabulate(found, sites, fitted.mean, result.status, result.certificate(), spread, robust=False)
    table = replace(table, noise_variance=known.noise)
    if table.limit is not None:
        result = replace(table.limit, state=replace(table.limit.state, history=(*result.history, *table.limit.history)))
    if table.is_separated:
        result = replace(result, status=Status.NO_MAXIMUM, ending=f"{Status.NO_MAXIMUM.value}.", failure=None)
    return Fit(known, table, result)


def _mended(error: RunError, found: Prepared, sites: Sites, settings: Settings) -> Run:
    """Return what is left of a fit that failed: its last state where the data are separated, or Laplace's method."""
    finding, precision = None, 0.0 if settings.precision is None else settings.precision
    if found.problem.is_likelihood:
        found = search(found, sites)
        finding = found.searched and found.searched.finding
    if isinstance(finding, Separation) or (finding is not None and error.result.history):
        return Run(found, error.result, settings, precision, 1.0, error.result.rounds + 1)
    if finding is not None:  # no round was done: some prior keeps the numbers finite, which are no estimates
        dim = found.problem.layout.dim
        some = replace(found, problem=replace(found.problem, prior=FullGaussian(np.zeros(dim), 1.0)))
        return replace(_run(some, sites, settings, precision, 1.0, None), found=found)
    if settings.is_auto and sites.kind.has_flat_shift and settings.averages and settings.precision is not None:
        laplace = _search(found, sites, replace(settings, method=FedLapCov()), None)
        return replace(laplace, caveats=(partial(_fell_back, error),))
    raise name_dependence(error, found, sites) from error


def _fell_back(error: RunError, words: Words) -> str:
    why = worded(error, **words._asdict())
    return f"The variational fit failed ({why}) This is FedLapCov, Laplace's approximation."


# --- The evidence ---------------------------------------------------------------------------------------------


def _search(found: Prepared, sites: Sites, settings: Settings, start: Start | None) -> Run:
    """Run at a precision and a noise variance; the evidence finds each that is None.

    A RunError names site, round and the knob to turn.
    """
    if settings.precision is None:
        return _fit_precision(found, sites, settings, start)
    return _fit_noise(found, sites, settings, settings.precision, start)


def _fit_precision(found: Prepared, sites: Sites, settings: Settings, start: Start | None) -> Run:
    """Maximise the ELBO over log δ: by the envelope theorem its slope is ½(d − δ E_q‖θ‖²), penalised entries.

    ‖θ‖² is in the units of the prior.
    """
    assert found.facts is not None
    layout, block = found.problem.layout, settings.prior.block(1.0, found.facts)
    one = np.kron(np.eye(layout.n_outputs), np.diag(block) if block.ndim == 1 else block)
    count = layout.n_outputs * (layout.width - settings.is_free_intercept)

    def at(value: float, last: Run | None) -> tuple[float, Run]:
        now = _fit_noise(found, sites, settings, value, start if last is None else last.start)
        now = replace(now, rounds=now.rounds + (last.rounds if last else 0))
        q: Any = now.result.posterior
        spread = float(np.diagonal(one) @ q.variance if block.ndim == 1 else (one * q.covariance_matrix).sum())
        return 0.5 * (count - value * (float(q.mean @ one @ q.mean) + spread)), now

    # coefficients of measurements have the units of these
    variance = sites.mean_square[0] if sites.kind.has_noise else 1.0
    first = float(start.precision) if start is not None and np.ndim(start.precision) == 0 else 1.0 / variance
    best, message = maximise(at, first, (PRECISIONS[0] / variance, PRECISIONS[1] / variance), "prior_precision")
    return replace(best, message=" ".join(filter(None, [message, best.message])))


def _fit_noise(found: Prepared, sites: Sites, settings: Settings, precision: float | Array, start: Start | None) -> Run:
    """Fit at a given prior; find σ², where there is one, by the slope of the ELBO in log σ²: E_q[Σ_k ℓ_k] − N/2."""
    if not sites.kind.has_noise:
        return _run(found, sites, settings, precision, 1.0, start)
    if settings.noise is not None:
        return _run(found, sites, settings, precision, settings.noise, start)
    settings.require_evidence("noise_variance")
    scale = sites.mean_square[0]
    if scale == 0:
        raise ValueError(
            "noise_variance='evidence' needs targets that differ, got n_samples = 1 or a constant y; give a number."
        )
    weights = [site.weights for site in sites.rows.values()]
    counts = sum(float(own.sum()) if settings.weights == "frequency" else own.size for own in weights)
    n_observed = counts * found.problem.layout.n_outputs

    def at(value: float, last: Run | None) -> tuple[float, Run]:
        now = _run(found, sites, settings, precision, value, start if last is None else last.start)
        now = replace(now, rounds=now.rounds + (last.rounds if last else 0))
        result = now.result
        loss = float(result.objective[-1]) - result.posterior.kl(result.prior)
        return loss - 0.5 * n_observed, now

    first = scale if start is None else start.noise
    best, message = maximise(at, first, (NOISES[0] * scale, NOISES[1] * scale), "noise_variance")
    return replace(best, message=message)


# --- A run ----------------------------------------------------------------------------------------------------


class _Watch:
    """Callback of a run; it stops a long run whose likelihood is proven to have no maximum."""

    def __init__(self, found: Prepared, sites: Sites) -> None:
        self.found, self.sites = found, sites

    def __call__(self, record: RoundRecord, q_g: object) -> bool:
        if self.found.problem.is_likelihood and is_long(self.found, record):
            self.found = search(self.found, self.sites)
        searched = self.found.searched
        return searched is not None and isinstance(searched.finding, Separation)


def _run(
    found: Prepared, sites: Sites, settings: Settings, precision: float | Array, noise: float, start: Start | None
) -> Run:
    problem = found.problem
    losses = sites.losses(problem.layout, noise)
    prior = _prior(found, sites, settings, precision, noise)
    found, first = _first_sites(found, sites, settings, losses, prior, noise, start)
    watch = _Watch(found, sites)
    options = {**settings.options, "tol": problem.tol}
    try:
        result = run(settings.method, losses, prior, sites=first, callback=watch, **options)
    except RunError as error:
        more = partial(about_offset, sites.rows.values(), problem.layout)
        raise name_failure(error, problem.sites, more) from error
    # the last broadcast is answered too: by what the certificate needs
    return Run(watch.found, result, settings, precision, noise, result.rounds + 1 + (first is not None))


def _prior(found: Prepared, sites: Sites, settings: Settings, precision: float | Array, noise: float) -> Gaussian:
    """Return the prior of a run at a precision and a noise variance, of which sites were told another."""
    share = (sites.noise_variance or 1.0) / noise
    if found.facts is None:
        prior: Gaussian = found.problem.prior
        return prior if share == 1.0 else FullGaussian(prior.mean, prior.precision * share)
    facts = replace(found.facts, information=found.facts.information * share)
    return settings.prior.member(precision, settings.family, facts)


def _first_sites(
    found: Prepared,
    sites: Sites,
    settings: Settings,
    losses: Sequence[Loss],
    prior: Gaussian,
    noise: float,
    start: Start | None,
) -> tuple[Prepared, list[Natural] | None]:
    """Return sites by name where a fit is continued, Newton steps for the others; None for the method's own start."""
    if not settings.takes_sites:
        return found, None
    names = found.problem.sites
    known = {} if start is None else _known_sites(found.problem, prior, noise, start)
    if not known and (settings.step.begins == "sites" or not settings.learns_covariance):
        return found, None
    if found.null is None:
        found = designed(found, sites)
    theta = found.start
    if known:
        natural = prior.natural.combine([1.0] * (len(known) + 1), [prior.natural, *known.values()])
        if prior.contains(natural):
            theta = prior.with_natural(natural * (1.0 / prior.prior_weight)).mean
        else:
            known = {}
    fresh = newton_sites(losses, prior, theta)
    for name, site in zip(names, fresh, strict=True):
        if not site.is_finite():
            raise ValueError(OVERFLOWS.format(name, ""))
    return found, [known.get(name, site) for name, site in zip(names, fresh, strict=True)]


def _known_sites(problem: Problem, prior: Gaussian, noise: float, start: Start) -> dict[Hashable, Natural]:
    """The sites of an earlier fit, brought to the present noise variance and origin; none when they do not fit."""
    known = {name: start.sites[name] * (start.noise / noise) for name in problem.sites if name in start.sites}
    layout = problem.layout
    centre, earlier = layout.centre, start.layout.centre
    same = all(site.shapes == prior.natural.shapes for site in known.values())
    if not same or (centre is None) != (earlier is None):
        return {}
    by = layout.shifts - start.layout.shifts
    if centre is not None and earlier is not None and (by.any() or not np.array_equal(centre, earlier)):
        back = layout.move(earlier - centre)
        known = {name: carry(site, back, by) for name, site in known.items()}
    return known


def newton_sites(losses: Sequence[Loss], prior: Gaussian, theta: Array) -> list[Natural]:
    """Return η_k = (Hθ − g, H), g and H the gradient and Hessian of ℓ_k at θ: the server then takes a Newton step.

    Every H is positive semidefinite, so that no client's first problem is wider than the data of the others allow.
    """
    start = prior.start()
    at = start.with_natural(start.natural_from(start.factor.multiply(theta), start.factor.parts))
    return [-loss.expect(at, Delta(2)).natural_gradient for loss in losses]
