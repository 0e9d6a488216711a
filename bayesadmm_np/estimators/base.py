"""What the estimators share: rows by site, the run, the search for the evidence, sites that come and go."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from .._errors import worded
from .._validation import Array
from ..families import FullGaussian
from ..families.coordinates import Natural
from ..families.gaussian import Gaussian
from ..splitting.certificate import Certificate
from ..splitting.loop import run
from ..splitting.methods import FedLapCov
from ..splitting.result import Result, RunError
from ..splitting.status import Status
from .evidence import maximise
from .glm import Glm, Layout, carry, carry_distance, newton_sites
from .rows import SiteRows, read_client, split_rows
from .settings import Settings, make_prior, read_settings
from .summary import Summary, make_summary

__all__ = ["FederatedModel", "Fit"]

PRECISIONS = (1e-6, 1e6)
"""Range in which the evidence may choose the prior's precision."""


@dataclass(frozen=True)
class Fit:
    """A run that ended, and what it takes to start another one there.

    Attributes
    ----------
    result : Result
    names : tuple
        Of the sites.
    precision : float or ndarray
        Of the prior.
    noise : float
        Noise variance (1 but for ridge regression).
    rounds : int
        Of all runs of a search together.
    message : str
        What the search for the evidence found.
    centre : ndarray or None
        See `Layout`.
    """

    result: Result
    names: tuple[Hashable, ...]
    precision: float | Array
    noise: float
    rounds: int
    centre: Array | None
    message: str = ""

    @property
    def start(self) -> Start:
        """Where a next run may start."""
        return Start(dict(zip(self.names, self.result.sites, strict=True)), self.precision, self.noise, self.centre)


@dataclass(frozen=True)
class Start:
    """Sites by name, and the prior's precision and the noise variance that they were fitted with."""

    sites: Mapping[Hashable, Natural]
    precision: float | Array
    noise: float
    centre: Array | None


class FederatedModel(BaseEstimator):
    """Base of the estimators: a generalised linear model fitted by a row of the table of methods."""

    # ------------------------------------------------------------------------------------------------
    # What a model must say about itself
    # ------------------------------------------------------------------------------------------------

    @abstractmethod
    def _check_y(self, y: Any) -> Any:
        """Check a target that came with X, without changing the estimator."""

    @abstractmethod
    def _make_glm(self, rows: Mapping[Hashable, SiteRows], settings: Settings, centre: Array | None) -> Glm:
        """Read all targets, set nothing, and return the model."""

    @abstractmethod
    def _set_coefficients(self, glm: Glm, fit: Fit) -> None:
        """Set `coef_` and `intercept_` in scikit-learn's shapes, and what else is the model's own."""

    @abstractmethod
    def _output_names(self, glm: Glm) -> list[str]:
        """Return a prefix for each output, empty for a single one."""

    def _fit_noise(self, glm: Glm, settings: Settings, precision: float | Array, start: Start | None) -> Fit:
        """Fit at a given prior; ridge regression has a noise variance to find."""
        return self._run(glm, settings, precision, 1.0, start)

    # ------------------------------------------------------------------------------------------------
    # Fitting
    # ------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, client: Any = None, sample_weight: Any = None) -> Self:
        """Fit to rows that lie at several sites.

        Parameters
        ----------
        X : array_like or frame, shape (n, p)
        y : array_like, shape (n,)
        client : array_like, shape (n,), optional
            The site of each row: strings, integers, anything hashable; default one site, "all".
        sample_weight : array_like, shape (n,), optional
            >= 0; a row of weight zero counts as absent, and a weight of two as the row twice.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            When an argument is out of range, or arguments do not fit each other.
        RunError
            When the run failed; its message names site, round and the knob to turn.
        """
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=self._y_is_numeric)
        rows = self._read_rows(X, y, client, sample_weight)
        start = getattr(self, "_start", None) if self.warm_start else None
        return self._fit_rows(rows, start)

    def partial_fit_site(self, name: Hashable, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Add a site: its factor starts as a Newton step from the present fit, then corrective rounds follow.

        The result is that of a fit to the rows of all sites together. When it fails the estimator stays as it was.

        Parameters
        ----------
        name : hashable
            Not the name of a site that is there already.
        X, y : array_like
            The site's rows.
        sample_weight : array_like, optional

        Returns
        -------
        self

        Raises
        ------
        NotFittedError
            Before `fit`.
        ValueError
            When the name is taken, X has other features, y has classes that `fit` did not see, or the sites' rows are
            not at hand because the estimator was unpickled.
        """
        rows = self._rows_at_hand("partial_fit_site")
        if not isinstance(name, Hashable):
            raise ValueError(f"name must be hashable, got {name!r}.")
        if name in rows:
            raise ValueError(f"name={name!r} is a site of this fit already; forget_site({name!r}) first.")
        X, y = validate_data(self, X, y, reset=False, dtype=np.float64, multi_output=True, y_numeric=self._y_is_numeric)
        added = self._read_rows(X, y, [name] * len(X), sample_weight)
        self._check_site(added[name])
        return self._fit_rows({**rows, **added}, self._start)

    def forget_site(self, name: Hashable) -> Self:
        """Remove a site: divide its factor out, then take corrective rounds among the others.

        The result is that of a fit to the rows of the other sites. When it fails the estimator stays as it was.

        Parameters
        ----------
        name : hashable

        Returns
        -------
        self

        Raises
        ------
        NotFittedError
            Before `fit`.
        ValueError
            When there is no such site, it is the only one, or the only one with a class, or the sites' rows are not
            at hand because the estimator was unpickled.
        """
        rows = self._rows_at_hand("forget_site")
        if name not in rows:
            known = ", ".join(map(repr, rows))
            raise ValueError(f"name={name!r} is no site of this fit; there are {known}.")
        left = {key: value for key, value in rows.items() if key != name}
        if not left:
            raise ValueError(f"name={name!r} is the only site: nothing would be left to fit.")
        self._check_left(left, name)
        return self._fit_rows(left, self._start)

    def summary(self) -> Summary:
        """Return the table of coefficients, with the share of each site in the information on them.

        Returns
        -------
        Summary

        Raises
        ------
        NotFittedError
            Before `fit`.
        """
        check_is_fitted(self, "posterior_")
        return make_summary(self)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the rows out: a pickle holds sums over sites, and nobody's data."""
        return {key: value for key, value in super().__getstate__().items() if key != "_rows"}

    _y_is_numeric = True

    def _check_site(self, added: SiteRows) -> None:
        """Check the target of a site that joins a fit."""

    def _check_left(self, left: Mapping[Hashable, SiteRows], name: Hashable) -> None:
        """Check that the sites that are left still determine the model."""

    def _rows_at_hand(self, method: str) -> dict[Hashable, SiteRows]:
        check_is_fitted(self, "posterior_")
        if not hasattr(self, "_rows"):
            raise ValueError(
                f"{method} needs the rows of all sites for its corrective rounds, and an estimator that was copied or "
                "unpickled holds none: call fit."
            )
        return dict(self._rows)

    def _read_rows(self, X: Array, y: Any, client: Any, sample_weight: Any) -> dict[Hashable, SiteRows]:
        y = self._check_y(y)
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        return split_rows(X, y, weights, read_client(client, X.shape[0]))

    def _fit_rows(self, rows: Mapping[Hashable, SiteRows], start: Start | None) -> Self:
        settings = read_settings(self)
        glm = self._make_glm(rows, settings, _centre(rows, settings))
        caveats = []
        try:
            fit = self._search(glm, settings, start)
        except RunError as error:
            sampled = glm.has_flat_shift and settings.learns_covariance
            if not (self.method == "auto" and sampled and settings.precision is not None):
                raise
            caveats.append(f"The variational fit failed ({error}) This is FedLapCov, the Laplace approximation.")
            settings = replace(settings, method=FedLapCov())
            fit = self._search(glm, settings, None)
        self._store(rows, settings, glm, fit)
        # one round of BCM on a quadratic has the answer, though it cannot know
        if self.status_ is not Status.CONVERGED and not self.certificate_.holds:
            caveats.append(self._limit(settings))
        if caveats:
            warnings.warn(" ".join(caveats), ConvergenceWarning, stacklevel=3)
        return self

    def _search(self, glm: Glm, settings: Settings, start: Start | None) -> Fit:
        if settings.precision is None:
            return self._fit_precision(glm, settings, start)
        return self._fit_noise(glm, settings, settings.precision, start)

    def _fit_precision(self, glm: Glm, settings: Settings, start: Start | None) -> Fit:
        """Maximise the ELBO over log δ: by the envelope theorem its slope is ½(d − δ E_q‖θ‖²), penalised entries."""
        penalised = np.ones(glm.layout.dim, dtype=bool)
        if settings.is_free_intercept:
            penalised = ~glm.layout.is_intercept

        def at(value: float, last: Fit | None) -> tuple[float, Fit]:
            fit = self._fit_noise(glm, settings, value, start if last is None else last.start)
            fit = replace(fit, rounds=fit.rounds + (last.rounds if last else 0))
            q = fit.result.posterior
            energy = float(((q.mean**2 + q.variance)[penalised]).sum())
            return 0.5 * (int(penalised.sum()) - value * energy), fit

        first = float(start.precision) if start is not None and np.ndim(start.precision) == 0 else 1.0
        fit, message = maximise(at, first, PRECISIONS, "prior_precision")
        return replace(fit, message=" ".join(filter(None, [message, fit.message])))

    def _run(self, glm: Glm, settings: Settings, precision: float | Array, noise: float, start: Start | None) -> Fit:
        losses = glm.losses(noise)
        prior = make_prior(settings, precision, glm, noise)
        sites = _first_sites(glm, settings, losses, prior, noise, start)
        try:
            result = run(settings.method, losses, prior, sites=sites, **settings.options)
        except RunError as error:
            message = worded(error, client=lambda k: f"site {glm.names[k]!r}")
            raise RunError(replace(error.result, message=message)) from error
        return Fit(result, glm.names, precision, noise, result.rounds, glm.layout.centre)

    def _store(self, rows: Mapping[Hashable, SiteRows], settings: Settings, glm: Glm, fit: Fit) -> None:
        result, q = fit.result, fit.result.posterior
        self._set_distributions(glm.layout, fit)  # first, because it may raise
        self._rows, self._start = dict(rows), fit.start
        self._layout, self._outputs = glm.layout, self._output_names(glm)
        self._run_posterior = q
        self._set_coefficients(glm, fit)
        self.prior_precision_ = fit.precision
        self.evidence_message_ = fit.message
        self.sites_ = list(glm.names)
        self.site_rows_ = {name: site.X.shape[0] for name, site in rows.items()}
        self.n_rounds_ = self.n_iter_ = fit.rounds
        self.history_ = result.history
        self.status_, self.message_ = result.status, result.message
        self.certificate_ = self._in_own_coordinates(glm.layout, result.certificate())
        self.method_ = settings.method.name
        dropped = glm.dropped_at(fit.noise)
        self.objective_ = float(result.objective[-1])
        self.elbo_ = -self.objective_ - dropped
        self.log_likelihood_ = -sum(loss.value(q.mean) for loss in glm.losses(fit.noise)) - dropped

    def _set_distributions(self, layout: Layout, fit: Fit) -> None:
        """Posterior, prior and sites of the user's θ, whose precisions still add up."""
        q, prior, sites = fit.result.posterior, fit.result.prior, dict(fit.start.sites)
        covariance = q.covariance_matrix if q.learns_precision else None
        if layout.centre is not None:
            there, back = layout.move(layout.centre), layout.move(-layout.centre)
            covariance = back @ q.covariance_matrix @ back.T
            sites = {name: carry(site, there) for name, site in sites.items()}
            try:
                prior = prior.with_natural(carry(prior.natural, there))
                q = FullGaussian(back @ q.mean, carry(q.natural, there).precision)
            except ValueError as error:
                raise ValueError(
                    "X has a column too large, or too far from zero for its spread: rescale it, or subtract a constant."
                ) from error
        self.posterior_, self.prior_, self.site_factors_ = q, prior, sites
        self.covariance_ = covariance

    def _in_own_coordinates(self, layout: Layout, certificate: Certificate) -> Certificate:
        """The certificate with its bound on the user's θ: the run measures the intercept elsewhere."""
        if layout.centre is None or certificate.distance is None or self.covariance_ is None:
            return certificate
        distance = carry_distance(certificate.distance, layout.move(-layout.centre), self.covariance_)
        return replace(certificate, distance=distance)

    def _limit(self, settings: Settings) -> str:
        """What a run that used up its rounds says."""
        row = settings.row
        if row.max_rounds is not None or row.dual_step == 0:
            advice = f"{row.name} does not aim at the pooled fit; take another method, such as method='auto'"
        else:
            advice = f"raise max_rounds (now {settings.options['rounds']}) or tol (now {settings.options['tol']:g})"
        residual = self.certificate_.pooled
        return f"{self.message_} Residual of the pooled stationarity condition: {residual:.1e}; {advice}."

    # ------------------------------------------------------------------------------------------------
    # Predicting
    # ------------------------------------------------------------------------------------------------

    def _predictor(self, X: Any) -> tuple[Array, Array]:
        """Posterior mean and (co)variance of the predictors of new rows: (n,) twice, or (n, C) and (n, C, C)."""
        check_is_fitted(self, "posterior_")
        X = validate_data(self, X, reset=False, dtype=np.float64)
        layout, q = self._layout, self._run_posterior
        design = layout.design(X)
        if layout.n_outputs == 1:
            spread = q.factor.row_variances(design) if q.learns_precision else np.zeros(X.shape[0])
            return design @ q.mean, spread
        mean = design @ q.mean.reshape(layout.n_outputs, -1).T
        if not q.learns_precision:
            return mean, np.zeros((*mean.shape, layout.n_outputs))
        return mean, q.factor.class_covariances(design, layout.n_outputs)

    def _require_covariance(self, argument: str) -> None:
        if self.covariance_ is None:
            raise ValueError(
                f"{argument} needs a posterior covariance, and {self.method_} with {type(self.posterior_).__name__} "
                "learns none; fit with family='full' or 'diagonal'."
            )


def _centre(rows: Mapping[Hashable, SiteRows], settings: Settings) -> Array | None:
    """The pooled mean of the features, from sums over sites, where a free intercept may be measured from it.

    Not in a diagonal family: there the answer would depend on the origin.
    """
    if settings.family is not FullGaussian or not settings.is_free_intercept:
        return None
    totals = np.sum([site.weights @ site.X for site in rows.values()], axis=0)
    mean: Array = totals / sum(site.weights.sum() for site in rows.values())
    return mean


def _first_sites(
    glm: Glm, settings: Settings, losses: Any, prior: Gaussian, noise: float, start: Start | None
) -> list[Natural] | None:
    """Sites by name where a fit is continued, Newton steps for the others; None where the method knows no sites."""
    if not settings.takes_sites:
        return None
    known = {} if start is None else _known_sites(glm, prior, noise, start)
    if not known and not settings.learns_covariance:
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
