"""Base class of the estimators: parameters, rows by site, updates by site."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import Any, Self

import numpy as np
from sklearn.utils import ClassifierTags, RegressorTags
from sklearn.utils.validation import _check_sample_weight, validate_data

from .._errors import ArgumentError, Words
from .._text import word
from .._threads import one_thread_where_small
from .._validation import Array
from ..design.levels import level_name, lines_of_classes
from ..design.rows import (
    SiteRows,
    read_client,
    read_events,
    read_target,
    require_index,
    require_numbers,
    split_rows,
)
from ..design.terms import parse
from ..glm.diagnosis import SameRows, Undecided
from ..glm.kinds import Kind, read_kind
from ..glm.layout import Layout
from ..splitting.status import Status
from .answers import FittedEstimator
from .caveats import Caveat, SeparationWarning
from .fitted import Site
from .formula_fit import OPTIONS, fit_formula
from .from_run import fitted_model
from .search import Fit, Start, fit
from .settings import Settings, read_settings
from .sites import Sites, about_offset, code
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
    prior_unit: str = "unit"
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

    # --- What a model may say about itself --------------------------------------------------------------------

    def _class_factors(self, classes: Array, counts: Array) -> Array:
        """A factor of the row weights for each class, from the sites' summed counts."""
        return np.ones(classes.size)

    def _settings(self) -> Settings:
        """The constructor's arguments, checked."""
        return read_settings(self)

    def _features(self, n_features: int) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(getattr(self, "feature_names_in_", [f"x{j}" for j in range(n_features)]))

    # --- Fitting ----------------------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any,
        client: Any = None,
        sample_weight: Any = None,
        offset: Any = None,
        exposure: Any = None,
        trials: Any = None,
    ) -> Self:
        """Fit to rows that lie at several sites.

        Parameters
        ----------
        X : array_like or frame, shape (n, p)
            A Series of pandas beside a frame must have the frame's index.
        y : array_like, shape (n,)
            The classes of a categorical column have the order of its categories: the first is the reference.
        client : array_like, shape (n,), optional
            The site of each row: strings, integers, anything hashable; default one site, "all".
        sample_weight : array_like, shape (n,), optional
            Weights >= 0; a row of weight zero counts as absent, and a weight of two as the row twice, unless
            `weight_meaning` says otherwise.
        offset : array_like, shape (n,), optional
            Known part of each row's predictor.
        exposure : array_like, shape (n,), optional
            Time or population at risk, > 0, of a log link: its logarithm is added to the offset.
        trials : array_like, shape (n,), optional
            Numbers of trials, of logistic regression: y holds the events among them, or their shares, as in R's
            `glm(cbind(events, trials - events) ~ …)`. A row is then one observation.

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
        known = {"offset": offset, "exposure": exposure}
        rows, kind, classes = self._read_rows(X, y, client, sample_weight, trials, **known)
        start = getattr(self, "_start", None) if self.warm_start else None
        names = {name: str(getattr(one, "name", None) or name) for name, one in known.items() if one is not None}
        return self._fit_rows(rows, start, kind, classes, names)

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
            weights, trials, offset, exposure, reference, ignore_case, site_intercepts, reference_site and as_written
            are those of `fit_formula`; the others are parameters of the estimator.

        Returns
        -------
        estimator

        Raises
        ------
        TableError
            When the tables cannot be made alike without a guess; it names site and column.
        """
        known = {name: options.pop(name) for name in OPTIONS if name in options}
        estimator = cls(**{"fit_intercept": parse(formula).has_intercept, **options})
        return fit_formula(estimator, formula, data, client, **known)

    def partial_fit_site(
        self,
        name: Hashable,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        offset: Any = None,
        exposure: Any = None,
        trials: Any = None,
    ) -> Self:
        """Add a site: its factor starts as a Newton step from the present fit, then corrective rounds follow.

        The result is that of a fit to the rows of all sites together. When it fails the estimator stays as it was.

        Parameters
        ----------
        name : hashable
            Name of the new site; no other site may have it.
        X, y : array_like
            The site's rows.
        sample_weight, offset, exposure, trials : array_like, optional
            As in `fit`.

        Returns
        -------
        self

        Raises
        ------
        NotFittedError
            Before `fit`.
        ValueError
            When the name is taken, X has other features, or y has classes that `fit` did not see. Also after a fit by a
            formula, and when the estimator was unpickled without the sites' rows.
        """
        rows = self._rows_at_hand("partial_fit_site")
        self._require_matrix("partial_fit_site")
        if not isinstance(name, Hashable):
            raise ValueError(f"name must be hashable, got {name!r}.")
        if name in rows:
            raise ValueError(f"name={name!r} is a site of this fit already; forget_site({name!r}) first.")
        if (trials is None) is self.fitted_.kind.has_trials:
            raise ArgumentError("trials", "must be given for all sites or for none")
        known = {"offset": offset, "exposure": exposure}
        added, kind, _ = self._read_rows(X, y, name, sample_weight, trials, reset=False, **known)
        self._check_site(added[name])
        return self._fit_rows({**rows, **added}, self._start, kind, getattr(self, "classes_", None), self._named)

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
            When there is no such site, or it is the only one, or the only one with a class. Also after a fit by a
            formula, and when the estimator was unpickled without the sites' rows.
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
        kind = self._kind_of(trials=True if self.fitted_.kind.has_trials else None)
        return self._fit_rows(left, self._start, kind, getattr(self, "classes_", None), self._named)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the rows out: a pickle holds sums over sites, and nobody's data."""
        kept = super().__getstate__().items()
        return {key: value for key, value in kept if key not in ("_rows", "_sites", "_problem")}

    def _check_site(self, added: SiteRows) -> None:
        """Check the target of a site that joins a fit, and whether it has an offset as the others have."""
        if (added.offset is None) != all(site.offset is None for site in self._rows.values()):
            raise ArgumentError("offset", "and exposure must be given for all sites or for none")
        if not self.fitted_.kind.has_labels:
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
        if not self.fitted_.kind.has_labels:
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

    def _validated(self, X: Any, y: Any, numeric: bool, reset: bool) -> Any:
        require_numbers(X)
        y = None if y is None else read_target(y, not numeric)
        rest: dict[str, Any] = {"multi_output": True, "y_numeric": numeric}
        if hasattr(X, "columns") and np.shape(X)[1:] == (0,):  # of a formula that is an intercept alone
            X, rest = np.empty(np.shape(X)), {**rest, "ensure_min_features": 0}
        return validate_data(self, X, y, reset=reset, dtype=np.float64, **rest)

    def _kind_of(self, trials: Any) -> Kind:
        """Return the kind of a fit: of events over trials where there are some."""
        kind = read_kind(self.kind)
        if trials is None and kind.has_trials:
            raise ArgumentError("trials", f"must hold the number of trials of each row for the kind {kind}")
        if trials is None or kind.has_trials:
            return kind
        if kind.of_trials is None:
            raise ArgumentError("trials", f"must be left out for {kind.title}", "", "it is for logistic regression")
        return kind.of_trials

    def _read_rows(
        self, X: Any, y: Any, client: Any, sample_weight: Any, trials: Any, *, reset: bool = True, **known: Any
    ) -> tuple[dict[Hashable, SiteRows], Kind, Any]:
        """Return rows by site, the kind of the fit and the classes in order.

        `known` are offset and exposure; without `reset`, `client` is the name of a site that joins.
        """
        require_index(X, y=y, client=client, sample_weight=sample_weight, trials=trials, **known)
        index, declared = getattr(X, "index", None), getattr(getattr(y, "dtype", None), "categories", None)
        kind, classes = self._kind_of(trials), None
        if kind.has_trials:
            if sample_weight is not None:
                raise ArgumentError("sample_weight", "must be left out beside trials, which are the weights")
            if getattr(self, "class_weight", None) is not None:
                raise ArgumentError("class_weight", "must be left out beside trials")
            y, sample_weight = read_events(y, trials)
            classes = np.array([0, 1])
        X, y = self._validated(X, y, not kind.has_labels, reset)
        offset = self._known(n_rows=len(X), **known)
        if not kind.has_trials:
            y = self._check_y(y)
            classes = _in_order(np.unique(y), declared) if kind.is_classifier else None
            if classes is not None and kind.outputs == "ordered":
                classes = np.array(kind.in_order(classes.tolist()))
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        labels = read_client(client, len(X)) if reset else [client] * len(X)
        return split_rows(X, y, weights, labels, offset, index if hasattr(index, "reindex") else None), kind, classes

    @property
    def _named(self) -> dict[str, str]:
        """Names of the offset and the exposure of the fit, where it had them."""
        found = {name: getattr(self.fitted_.columns, name) for name in ("offset", "exposure")}
        return {name: own for name, own in found.items() if own is not None}

    def _fit_rows(
        self,
        rows: Mapping[Hashable, SiteRows],
        start: Start | None,
        kind: Kind,
        classes: Any,
        known: Mapping[str, str],
    ) -> Self:
        settings = self._settings()
        if kind.has_trials:
            settings = replace(settings, weights="analytic")
        elif kind.is_classifier and len(rows) > 1:  # labels of one array are not refused
            for line in lines_of_classes(
                "y", {name: map(level_name, set(one.y.tolist())) for name, one in rows.items()}
            ):
                warnings.warn(line, stacklevel=3)
        kind, coded = code(kind.identified if settings.is_flat else kind, rows, self._class_factors, classes)
        if kind.has_baseline:
            settings = replace(settings, fit_intercept=False)
        n_classes = 0 if classes is None else classes.size
        names_of_classes = () if classes is None else tuple(map(word, classes.tolist()))
        coded = {name: replace(one, X=kind.widened(one.X, names_of_classes)) for name, one in coded.items()}
        first = next(iter(coded.values()))
        n_columns = 1 if first.y.ndim == 1 else first.y.shape[1]
        n_outputs = kind.n_outputs(n_classes, n_columns)
        layout = Layout(first.X.shape[1], n_outputs, settings.fit_intercept)
        if classes is not None:
            self._integration(classes.size, settings.averages)
        auxiliaries = kind.auxiliaries(names_of_classes)
        names = (*auxiliaries, *self._features(layout.n_features - len(auxiliaries)))
        problem = settings.problem(kind, layout, names, tuple(coded), () if classes is None else classes)
        layout.require_names(names, problem.outputs)
        sites = Sites(kind, coded, settings.noise if kind.has_noise else None, len(auxiliaries))
        found = fit(problem, sites, settings, start)
        self._store(rows, sites, found, classes, known)
        if found.table.is_separated or any(isinstance(one, Undecided) for one in found.table.findings):
            warnings.warn(SeparationWarning(self.fitted_.findings), stacklevel=3)
            return self
        missing = found.table.missing
        caveats: list[Callable[[Words], str]] = [*map(_plainly, missing), *found.run.caveats]
        # one round of BCM on a quadratic has the answer, though it cannot know
        if not missing and self.status_ is not Status.CONVERGED and not self.certificate_.holds:
            caveats.append(partial(self._limit, found.run.settings))
        elif not (caveats or found.table.findings or self.certificate_.holds):
            caveats.append(self._unbounded)
        findings = [*found.table.findings, *(one for one in self.fitted_.findings if isinstance(one, SameRows))]
        if caveats or findings:
            warnings.warn(Caveat(findings, caveats), stacklevel=3)
        return self

    def _limit(self, settings: Settings, words: Words) -> str:
        """Return the message of a run that used up its rounds."""
        row = settings.row
        if row.max_rounds is not None or row.dual_step == 0:
            advice = f"{row.name} does not aim at the pooled fit; take another method, such as 'auto'"
        else:
            rounds, tol = map(words.argument, ("max_rounds", "tol"))
            now = settings.options
            more = "" if self.status_ is Status.ROUNDED else f"{rounds} (now {now['rounds']}) or "
            advice = f"raise {more}{tol} (now {now['tol']:g})"
        residual, known = self.certificate_.pooled, about_offset(self._sites.rows.values(), self.fitted_.layout, words)
        message = (
            f"{self.message_.rstrip('.')}. Residual of the pooled stationarity condition: {residual:.1e}; {advice}."
        )
        return f"{message} {known}" if known else message

    def _unbounded(self, words: Words) -> str:
        """Return the message of a run that converged to a point of which nothing is proven."""
        proof = self.certificate_
        return (
            f"The run converged, but its certificate does not hold: {proof.verdict()}. {proof.distance or ''}".strip()
        )

    @one_thread_where_small(lambda self, rows, sites, fit, *_: fit.problem.layout.dim)
    def _store(
        self, rows: Mapping[Hashable, SiteRows], sites: Sites, fit: Fit, classes: Any, names: Mapping[str, str]
    ) -> None:
        """Keep the fitted model, and what a next fit starts from."""
        problem, table, result, settings = fit.problem, fit.table, fit.result, fit.run.settings
        own = table.own or {}
        # Newton's duals are natural gradients at the server: those at the end add up to the posterior
        steps = settings.step.line is not None
        factors = [-each.natural_gradient for each in result.at_server] if steps else result.sites
        fitted = fitted_model(
            problem,
            result.posterior,
            table,
            target="y",
            classes=() if classes is None else tuple(classes.tolist()),
            # of a limit the prior holds coefficients that have no estimate
            prior=problem.prior if table.limit is not None else result.prior,
            stated=settings.prior.at(fit.run.precision),
            sites={
                name: Site(factor, rows[name].X.shape[0], 0, own.get(name))
                for name, factor in zip(problem.sites, factors, strict=True)
            },
            rule=settings.row.expectation or problem.kind.rule,
            method=settings.method.name,
            status=result.status,
            message="; ".join(filter(None, [result.message.rstrip("."), fit.run.message])),
            certificate=result.certificate(),
            rounds=fit.run.rounds,
            objective=np.array([record.objective for record in result.history]),
            floats=table.floats + sum(record.floats_down + record.floats_up for record in result.history),
            noise_variance=fit.run.noise,
            **names,
        )
        fitted = replace(fitted, findings=(*fitted.findings, *diagnose_fit(fitted)))
        fitted.uncentred  # noqa: B018  # first, because it may raise
        self.fitted_ = fitted
        self._rows, self._sites, self._problem = dict(rows), sites, problem
        self._start = fit.start
        self._is_single = sites.kind.outputs != "columns" or next(iter(sites.rows.values())).y.ndim == 1
        self.prior_precision_ = fit.run.precision
        self.evidence_message_ = fit.run.message
        self.message_ = result.message
        self.history_ = result.history
        self.n_iter_ = fit.run.rounds
        if classes is not None:
            self.classes_ = classes


def _plainly(sentence: str) -> Callable[[Words], str]:
    return lambda words: sentence


def _in_order(classes: Array, declared: Any) -> Array:
    """Return the classes, which are sorted, in the order of the categories of a categorical column."""
    if not hasattr(declared, "get_indexer"):
        return classes
    return np.asarray(classes[np.argsort(declared.get_indexer(classes))])
