"""What the estimators share when they fit: parameters, rows by site, updates by site."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import Any, Self

import numpy as np
from sklearn.utils import ClassifierTags, RegressorTags
from sklearn.utils.validation import _check_sample_weight, validate_data

from .._errors import Words
from .._threads import one_thread_where_small
from .._validation import Array
from ..design.levels import agree_classes
from ..design.rows import SiteRows, read_client, read_offset, read_target, require_numbers, split_rows
from ..families import FullGaussian
from ..families.gaussian import Gaussian
from ..glm.diagnosis import Undecided
from ..glm.kinds import Kind, read_kind
from ..glm.problem import make_glm
from ..splitting.status import Status
from .answers import FittedEstimator
from .caveats import Caveat, SeparationWarning
from .fitted import Columns, FittedGLM, Site
from .formula_fit import OPTIONS, fit_formula, has_intercept
from .search import Fit, Start, about_offset, fit_and_diagnose
from .settings import Settings, read_settings
from .summary import diagnose_fit


@dataclass(eq=False, repr=False)
class FederatedModel(FittedEstimator):
    """Base of the estimators: a generalised linear model fitted by a row of the table of methods.

    A subclass sets `kind`. A parameter of its own is a field, as are those here, stored as they are; `fit` checks them.
    One that is no argument here, such as the noise variance, becomes one when the subclass gives it a default anew.
    """

    kind: Kind | str = field(init=False)
    prior_precision: Any = 0.0
    _: KW_ONLY
    inference: str = "auto"
    noise_variance: Any = field(default="auto", init=False)
    method: Any = "auto"
    family: str = "auto"
    fit_intercept: bool = True
    penalize_intercept: bool = False
    penalty: Any = None
    weight_meaning: str = "frequency"
    max_rounds: int = 100
    tol: float = 1e-8
    warm_start: bool = False
    participation: Any = 1.0
    random_state: Any = None
    n_jobs: int | None = None
    progress: bool = False

    def __sklearn_tags__(self) -> Any:
        """Say what the kind is, and what y may hold: Firth's penalty and a kind of one output are for two classes."""
        tags = super().__sklearn_tags__()
        kind = read_kind(self.kind)
        if kind.is_classifier:
            is_multiple = kind.outputs != "one" and self.penalty is None
            tags.estimator_type, tags.classifier_tags = "classifier", ClassifierTags(multi_class=is_multiple)
        else:
            tags.estimator_type, tags.regressor_tags = "regressor", RegressorTags()
        tags.target_tags.required = True
        tags.target_tags.multi_output = kind.outputs == "columns"
        tags.target_tags.positive_only = kind.target.wrong(np.array([-1.0])) is not None
        return tags

    # ------------------------------------------------------------------------------------------------
    # What a model may say about itself
    # ------------------------------------------------------------------------------------------------

    def _class_factors(self, classes: Array, counts: Array) -> Array:
        """A factor of the row weights for each class, from the sites' summed counts."""
        return np.ones(classes.size)

    def _settings(self) -> Settings:
        """The constructor's arguments, checked."""
        return read_settings(self)

    def _features(self, n_features: int) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(getattr(self, "feature_names_in_", [f"x{j}" for j in range(n_features)]))

    # ------------------------------------------------------------------------------------------------
    # Fitting
    # ------------------------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any,
        client: Any = None,
        sample_weight: Any = None,
        offset: Any = None,
        exposure: Any = None,
    ) -> Self:
        """Fit to rows that lie at several sites.

        Parameters
        ----------
        X : array_like or frame, shape (n, p)
        y : array_like, shape (n,)
        client : array_like, shape (n,), optional
            The site of each row: strings, integers, anything hashable; default one site, "all".
        sample_weight : array_like, shape (n,), optional
            Weights >= 0; a row of weight zero counts as absent, and a weight of two as the row twice, unless
            `weight_meaning` says otherwise.
        offset : array_like, shape (n,), optional
            Known part of each row's predictor.
        exposure : array_like, shape (n,), optional
            Time or population at risk, > 0: its logarithm is added to the offset.

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
        X, y = self._validated(X, y)
        rows = self._read_rows(X, y, client, sample_weight, read_offset(offset, exposure, len(X)))
        start = getattr(self, "_start", None) if self.warm_start else None
        return self._fit_rows(rows, start)

    @classmethod
    def from_formula(cls, formula: str, data: Any, client: str | None = None, **options: Any) -> Self:
        """Fit a model to tables of several sites by a formula: "died ~ age*sex + C(ward)".

        Parameters
        ----------
        formula : str
        data : frame, mapping from names to columns, or mapping from sites to tables
        client : str, optional
            Column of sites.
        **options
            weights, reference, ignore_case, site_intercepts and reference_site are those of `fit_formula`; the others
            are parameters of the estimator.

        Returns
        -------
        estimator

        Raises
        ------
        TableError
            When the tables cannot be made alike without a guess; it names site and column.
        """
        known = {name: options.pop(name) for name in OPTIONS if name in options}
        return fit_formula(cls(**{"fit_intercept": has_intercept(formula), **options}), formula, data, client, **known)

    def partial_fit_site(
        self, name: Hashable, X: Any, y: Any, sample_weight: Any = None, offset: Any = None, exposure: Any = None
    ) -> Self:
        """Add a site: its factor starts as a Newton step from the present fit, then corrective rounds follow.

        The result is that of a fit to the rows of all sites together. When it fails the estimator stays as it was.

        Parameters
        ----------
        name : hashable
            Name of the new site; no other site may have it.
        X, y : array_like
            The site's rows.
        sample_weight, offset, exposure : array_like, optional

        Returns
        -------
        self

        Raises
        ------
        NotFittedError
            Before `fit`.
        ValueError
            When the name is taken, X has other features, y has classes that `fit` did not see, the fit was by a
            formula, or the sites' rows are not at hand because the estimator was unpickled.
        """
        rows = self._rows_at_hand("partial_fit_site")
        self._require_matrix("partial_fit_site")
        if not isinstance(name, Hashable):
            raise ValueError(f"name must be hashable, got {name!r}.")
        if name in rows:
            raise ValueError(f"name={name!r} is a site of this fit already; forget_site({name!r}) first.")
        X, y = self._validated(X, y, reset=False)
        added = self._read_rows(X, y, [name] * len(X), sample_weight, read_offset(offset, exposure, len(X)))
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
            When there is no such site, it is the only one, or the only one with a class, the fit was by a formula, or
            the sites' rows are not at hand because the estimator was unpickled.
        """
        rows = self._rows_at_hand("forget_site")
        self._require_matrix("forget_site")
        if name not in rows:
            known = ", ".join(map(repr, rows))
            raise ValueError(f"name={name!r} is no site of this fit; there are {known}.")
        left = {key: value for key, value in rows.items() if key != name}
        if not left:
            raise ValueError(f"name={name!r} is the only site: nothing would be left to fit.")
        self._check_left(left, name)
        return self._fit_rows(left, self._start)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the rows out: a pickle holds sums over sites, and nobody's data."""
        return {key: value for key, value in super().__getstate__().items() if key not in ("_rows", "_glm")}

    def _check_site(self, added: SiteRows) -> None:
        """Check the target of a site that joins a fit."""
        if not self.fitted_.kind.is_classifier:
            known = next(iter(self._rows.values())).y.shape[1:]
            if added.y.shape[1:] != known:
                raise ValueError(f"y must have rows of shape {known} as in fit, got {added.y.shape[1:]}.")
            return
        known = self.classes_.tolist()
        unseen = [label for label in np.unique(added.y).tolist() if label not in known]
        if unseen:
            listed = ", ".join(map(repr, known))
            raise ValueError(f"y holds the class {unseen[0]!r}, which fit did not see; it knows {listed}.")

    def _check_left(self, left: Mapping[Hashable, SiteRows], name: Hashable) -> None:
        """Check that the sites that are left still determine the model."""
        if not self.fitted_.kind.is_classifier:
            return
        missing = set(self.classes_.tolist()) - set(np.concatenate([site.y for site in left.values()]).tolist())
        if missing:
            raise ValueError(
                f"name={name!r} is the only site with the class {missing.pop()!r}; without it the model has other "
                "classes: call fit on the rows that are left."
            )

    def _require_matrix(self, method: str) -> None:
        """Refuse what would change the sites of a formula without their agreement."""
        if self.fitted_.columns.agreement is not None:
            raise ValueError(
                f"{method} is for fits to a matrix: with other sites a formula is agreed on anew, by a fit."
            )

    def _validated(self, X: Any, y: Any, reset: bool = True) -> Any:
        numeric = not read_kind(self.kind).is_classifier
        require_numbers(X)
        y = None if y is None else read_target(y, not numeric)
        return validate_data(self, X, y, reset=reset, dtype=np.float64, multi_output=True, y_numeric=numeric)

    def _read_rows(
        self, X: Array, y: Any, client: Any, sample_weight: Any, offset: Array | None
    ) -> dict[Hashable, SiteRows]:
        y = self._check_y(y)
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        return split_rows(X, y, weights, read_client(client, X.shape[0]), offset)

    def _fit_rows(self, rows: Mapping[Hashable, SiteRows], start: Start | None) -> Self:
        settings = self._settings()
        kind = read_kind(self.kind)
        if kind.is_classifier and len(rows) > 1:
            for line in agree_classes("y", {name: site.y.tolist() for name, site in rows.items()}):
                warnings.warn(line, stacklevel=3)
        glm = make_glm(
            kind.identified if settings.is_flat else kind,
            rows,
            settings.fit_intercept,
            settings.is_free_intercept,
            _centre(rows, settings),
            self._class_factors,
            settings.weights,
            settings.is_flat and settings.inference == "likelihood" and not settings.penalty,
        )
        if glm.labels is not None:
            self._integration(glm.labels.size, settings.averages)
        names = self._features(glm.layout.n_features)
        glm.layout.require_names(names, glm.outputs)
        fit = fit_and_diagnose(glm, rows, settings, start, names)
        self._store(rows, fit)
        if fit.searched is not None and fit.searched.finding is not None:
            warnings.warn(SeparationWarning(self.fitted_.findings), stacklevel=3)
            return self
        caveats: list[Callable[[Words], str]] = list(fit.caveats)
        # one round of BCM on a quadratic has the answer, though it cannot know
        if not fit.caveat and self.status_ is not Status.CONVERGED and not self.certificate_.holds:
            caveats.append(partial(self._limit, fit.settings))
        elif not (caveats or fit.findings or self.certificate_.holds):
            caveats.append(self._unbounded)
        if caveats or fit.findings:
            warnings.warn(Caveat(fit.findings, caveats), stacklevel=3)
        return self

    def _limit(self, settings: Settings, words: Words) -> str:
        """What a run that used up its rounds says."""
        row = settings.row
        if row.max_rounds is not None or row.dual_step == 0:
            advice = f"{row.name} does not aim at the pooled fit; take another method, such as 'auto'"
        else:
            rounds, tol = map(words.argument, ("max_rounds", "tol"))
            now = settings.options
            more = "" if self.status_ is Status.ROUNDED else f"{rounds} (now {now['rounds']}) or "
            advice = f"raise {more}{tol} (now {now['tol']:g})"
        residual, known = self.certificate_.pooled, about_offset(self._glm, words)
        message = (
            f"{self.message_.rstrip('.')}. Residual of the pooled stationarity condition: {residual:.1e}; {advice}."
        )
        return f"{message} {known}" if known else message

    def _unbounded(self, words: Words) -> str:
        """What a run says that converged to a point of which nothing is proven."""
        proof = self.certificate_
        return (
            f"The run converged, and its certificate does not hold: {proof.verdict()}. {proof.distance or ''}".strip()
        )

    @one_thread_where_small(lambda self, rows, fit: fit.glm.layout.dim)
    def _store(self, rows: Mapping[Hashable, SiteRows], fit: Fit) -> None:
        fitted = self._fitted(rows, fit)
        fitted = replace(fitted, findings=(*fit.findings, *diagnose_fit(fitted)))
        fitted.uncentred  # noqa: B018  # first, because it may raise
        self.fitted_ = fitted
        self._rows, self._glm = dict(rows), fit.glm
        self._start, self._is_single = fit.start, fit.glm.is_single
        self.prior_precision_ = fit.precision
        self.evidence_message_ = fit.message
        self.message_ = fit.result.message
        self.history_ = fit.result.history
        self.n_iter_ = fit.rounds
        if fit.glm.labels is not None:
            self.classes_ = fit.glm.labels

    def _fitted(self, rows: Mapping[Hashable, SiteRows], fit: Fit) -> FittedGLM:
        glm, result, settings = fit.glm, fit.result, fit.settings
        source = settings.noise_source(glm.kind)
        has_limit = not any(isinstance(finding, Undecided) for finding in fit.findings)
        prior = fit.prior or result.prior
        assert isinstance(prior, Gaussian)
        mean, dropped = result.posterior.mean, glm.dropped_at(fit.noise)
        rule = settings.row.expectation or glm.kind.rule
        # Newton's duals are natural gradients at the server: those at the end add up to the posterior
        steps = settings.row.is_newton or settings.row.is_joint
        factors = [-each.natural_gradient for each in result.at_server] if steps else result.sites
        return FittedGLM(
            kind=glm.kind,
            target="y",
            columns=Columns.plain(self._features(glm.layout.n_features)),
            layout=glm.layout,
            classes=() if glm.labels is None else tuple(glm.labels.tolist()),
            prior=prior,
            posterior=result.posterior,
            sites={name: Site(factor, rows[name].X.shape[0]) for name, factor in zip(glm.names, factors, strict=True)},
            rule=rule,
            method=settings.method.name,
            status=result.status,
            message="; ".join(filter(None, [result.status.value, fit.message])),
            certificate=result.certificate(),
            rounds=fit.rounds,
            objective=np.array([record.objective for record in result.history]),
            floats=fit.floats + sum(record.floats_down + record.floats_up for record in result.history),
            noise_variance=fit.noise,
            penalty=settings.penalty,
            inference=settings.inference,
            statistics=glm.statistics(mean, fit.noise, source) if has_limit else None,
            findings=fit.findings,
            flat=fit.flat,
            receding=None if fit.searched is None else fit.searched.receding,
            log_likelihood=-glm.loss(mean, fit.noise) - dropped if has_limit else None,
            elbo=-float(result.objective[-1]) - dropped if settings.averages and not rule.is_delta else None,
        )


@one_thread_where_small(lambda rows, settings: max(site.X.shape[1] for site in rows.values()))
def _centre(rows: Mapping[Hashable, SiteRows], settings: Settings) -> Array | None:
    """The pooled mean of the features, from sums over sites, where a free intercept may be measured from it.

    Not in a diagonal family: there the answer would depend on the origin.
    """
    if settings.family is not FullGaussian or not settings.is_free_intercept:
        return None
    totals = np.sum([site.weights @ site.X for site in rows.values()], axis=0)
    mean: Array = totals / sum(site.weights.sum() for site in rows.values())
    return mean
