"""The search for a fit: a run at a given prior and noise variance, or runs until their evidence is largest."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .._errors import worded
from .._validation import Array
from ..families.coordinates import Natural
from ..families.gaussian import Gaussian
from ..splitting.loop import run
from ..splitting.result import Result, RunError
from .evidence import maximise
from .exact import STACKED_QR, fit_exact
from .glm import Glm, carry, newton_sites
from .settings import Settings, make_prior

__all__ = ["Fit", "Start", "fit_glm"]

PRECISIONS = (1e-6, 1e6)
"""Range in which the evidence may choose the prior's precision."""

NOISES = (1e-6, 1e2)
"""Range of the noise variance that the evidence may choose, relative to the variance of y."""


@dataclass(frozen=True)
class Fit:
    """A run that ended, and what it takes to start another one there.

    Attributes
    ----------
    result : Result
    glm : Glm
    precision : float or ndarray
        Precision of the prior.
    noise : float
        Noise variance; 1 for kinds without one.
    rounds : int
        Number of exchanges of all runs of a search together, those of start and certificate included.
    message : str
        Result of the search for the largest evidence, in words.
    caveat : str
        What a user should know of the fit.
    """

    result: Result
    glm: Glm
    precision: float | Array
    noise: float
    rounds: int
    message: str = ""
    caveat: str = ""

    @property
    def start(self) -> Start:
        """Sites and settings from which a next run may start."""
        sites = dict(zip(self.glm.names, self.result.sites, strict=True))
        return Start(sites, self.precision, self.noise, self.glm.layout.centre)


@dataclass(frozen=True)
class Start:
    """Sites by name, and the prior's precision and the noise variance that they were fitted with."""

    sites: Mapping[Hashable, Natural]
    precision: float | Array
    noise: float
    centre: Array | None


def fit_glm(glm: Glm, settings: Settings, start: Start | None = None, names: Sequence[str] = ()) -> Fit:
    """Fit a model to the rows of its sites; a RunError names site, round and the knob to turn.

    Parameters
    ----------
    glm : Glm
    settings : Settings
        Method, prior and options; a precision or a noise variance of None is found by the evidence.
    start : Start, optional
        Where an earlier fit ended.
    names : sequence of str, optional
        Of the columns, for messages.
    """
    if settings.row is STACKED_QR:
        result, noise, caveat = fit_exact(glm, settings, names)
        return Fit(result, glm, settings.prior_precision(noise), noise, 1, caveat=caveat)
    if settings.precision is None:
        return _fit_precision(glm, settings, start)
    return _fit_noise(glm, settings, settings.precision, start)


def _fit_precision(glm: Glm, settings: Settings, start: Start | None) -> Fit:
    """Maximise the ELBO over log δ: by the envelope theorem its slope is ½(d − δ E_q‖θ‖²), penalised entries."""
    penalised = np.ones(glm.layout.dim, dtype=bool)
    if settings.is_free_intercept:
        penalised = ~glm.layout.is_intercept

    def at(value: float, last: Fit | None) -> tuple[float, Fit]:
        fit = _fit_noise(glm, settings, value, start if last is None else last.start)
        fit = replace(fit, rounds=fit.rounds + (last.rounds if last else 0))
        q = fit.result.posterior
        energy = float(((q.mean**2 + q.variance)[penalised]).sum())
        return 0.5 * (int(penalised.sum()) - value * energy), fit

    first = float(start.precision) if start is not None and np.ndim(start.precision) == 0 else 1.0
    fit, message = maximise(at, first, PRECISIONS, "prior_precision")
    return replace(fit, message=" ".join(filter(None, [message, fit.message])))


def _fit_noise(glm: Glm, settings: Settings, precision: float | Array, start: Start | None) -> Fit:
    """Fit at a given prior; find σ², where there is one, by the slope of the ELBO in log σ²: E_q[Σ_k ℓ_k] − N/2."""
    if not glm.kind.has_noise:
        return _run(glm, settings, precision, 1.0, start)
    if settings.noise is not None:
        return _run(glm, settings, precision, settings.noise, start)
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


def _run(glm: Glm, settings: Settings, precision: float | Array, noise: float, start: Start | None) -> Fit:
    losses = glm.losses(noise)
    prior = make_prior(settings, precision, glm, noise)
    sites = _first_sites(glm, settings, losses, prior, noise, start)
    try:
        result = run(settings.method, losses, prior, sites=sites, **settings.options)
    except RunError as error:
        message = worded(error, client=lambda k: f"site {glm.names[k]!r}")
        raise RunError(replace(error.result, message=message)) from error
    # the last broadcast is answered too: by what the certificate needs
    return Fit(result, glm, precision, noise, result.rounds + 1 + (sites is not None))


def _first_sites(
    glm: Glm, settings: Settings, losses: Any, prior: Gaussian, noise: float, start: Start | None
) -> list[Natural] | None:
    """Sites by name where a fit is continued, Newton steps for the others; None where the method knows no sites."""
    if not settings.takes_sites:
        return None
    known = {} if start is None else _known_sites(glm, prior, noise, start)
    if not known and (getattr(settings.row, "start", "") == "sites" or not settings.learns_covariance):
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
            raise ValueError(
                f"site {name!r}: the loss overflows at the start of the fit; scale X, or look at its rows."
            )
    return [known.get(name, site) for name, site in zip(glm.names, fresh, strict=True)]


def _known_sites(glm: Glm, prior: Gaussian, noise: float, start: Start) -> dict[Hashable, Natural]:
    """The sites of an earlier fit, brought to the present noise variance and origin; none when they do not fit."""
    known = {name: start.sites[name] * (start.noise / noise) for name in glm.names if name in start.sites}
    centre = glm.layout.centre
    same = all(site.shapes == prior.natural.shapes for site in known.values())
    if not same or (centre is None) != (start.centre is None):
        return {}
    if centre is not None and start.centre is not None and not np.array_equal(centre, start.centre):
        back = glm.layout.move(start.centre - centre)
        known = {name: carry(site, back) for name, site in known.items()}
    return known
