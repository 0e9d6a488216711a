"""What the estimators share: rows by site, attributes of the fitted model, predictions, updates by site."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import ClassifierTags, RegressorTags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, column_or_1d, validate_data

from .._errors import PLAIN, ArgumentError, Words
from .._validation import Array
from ..design.agreement import Agreement, design
from ..design.levels import agree_classes
from ..design.rows import SiteRows, read_client, read_offset, read_target, require_numbers, split_rows
from ..families import FullGaussian
from ..families.coordinates import Natural
from ..families.gaussian import Gaussian
from ..glm.diagnosis import without_estimate
from ..glm.inference import Test
from ..glm.kinds import Kind, read_kind
from ..glm.problem import make_glm
from ..splitting.certificate import Certificate
from ..splitting.status import Status
from .caveats import SeparationWarning
from .fitted import Columns, FittedGLM, Site, Units
from .formula_fit import OPTIONS, fit_formula, has_intercept
from .search import Found, Start, about_offset, fit_and_diagnose
from .settings import Settings, read_choice, read_settings, read_switch
from .summary import Summary, diagnose_fit, goodness, summarise
from .term_tests import likelihood_ratio_tests, wald_tests

__all__ = ["FederatedModel"]


def _is_classifier(model: FederatedModel) -> bool:
    return read_kind(model.kind).is_classifier


class Caveat(ConvergenceWarning):
    """What a user should know of a fit; `worded` says it in the words of a caller."""

    def __init__(self, sentences: Sequence[Callable[[Words], str]]) -> None:
        self.sentences = sentences
        super().__init__(self.worded(PLAIN))

    def worded(self, words: Words) -> str:
        """Return the sentences."""
        return " ".join(say(words) for say in self.sentences)


@dataclass(eq=False, repr=False)
class FederatedModel(BaseEstimator):
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
        """Say what the kind is, and what y may hold."""
        tags = super().__sklearn_tags__()
        kind = read_kind(self.kind)
        if kind.is_classifier:
            tags.estimator_type, tags.classifier_tags = "classifier", ClassifierTags()
        else:
            tags.estimator_type, tags.regressor_tags = "regressor", RegressorTags()
        tags.target_tags.required = True
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

    def _integration(self, n_classes: int, averages: bool) -> str | None:
        """How class probabilities are averaged over the posterior; checked before a fit."""
        return None

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

    @property
    def agreement_(self) -> Agreement:
        """What the sites agreed on, of a fit by a formula; its `lines` are a report."""
        found = self.fitted_.columns.agreement
        if found is None:
            raise AttributeError("agreement_ is of a fit by a formula.")
        return found

    @property
    def site_missing_(self) -> dict[Hashable, int]:
        """Rows that each site left out because of missing values, of a fit by a formula."""
        return {name: site.n_missing for name, site in self.fitted_.sites.items()}

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

    def summary(
        self,
        units: Units = "original",
        *,
        covariance: str = "model",
        clusters: Mapping[Hashable, Sequence[Hashable]] | None = None,
        ratios: bool = False,
        reference: Any = None,
        intervals: str = "wald",
    ) -> Summary:
        """Return the table of coefficients, with the share of each site in the information on them.

        Parameters
        ----------
        units : {'original', 'standardized'}
        covariance : {'model', 'HC0', 'HC1', 'HC2', 'HC3', 'cluster'}
            The model's, or a robust one: by row (White; MacKinnon and White) or by cluster (Liang and Zeger).
        clusters : dict of sequence, optional
            Cluster of each row by site, rows of weight zero left out, for "cluster":
            `dict(list(frame.groupby("hospital")["ward"]))`. A cluster lies in one site. By default each site is one.
        ratios : bool, default False
            Whether to show exp(coef), an odds or rate ratio, with its interval.
        reference : label, optional
            Of classes: rows are the differences to this class, log odds ratios.
        intervals : {'wald', 'profile'}
            Symmetric ones from the covariance, or those of the profile likelihood, which better fit small samples: the
            values at which twice the drop of the likelihood, maximised over all else, is 3.84.

        Returns
        -------
        Summary

        Raises
        ------
        NotFittedError
            Before `fit`.
        ValueError
            When the fit has no such covariance, its exp(coef) is no ratio, or there is no such class.
        """
        check_is_fitted(self, "fitted_")
        fitted = self.fitted_
        if covariance != "model" and fitted.learns_covariance:
            fitted = self._with_robust((covariance,), clusters)
        losses = None
        if read_choice(intervals, "intervals", ("wald", "profile")) == "profile":
            self._rows_at_hand("A profile likelihood")
            losses = self._glm.losses(fitted.noise_variance)
        return summarise(fitted, units, covariance=covariance, ratios=ratios, reference=reference, losses=losses)

    def test_terms(
        self,
        terms: Mapping[str, Sequence[str]] | None = None,
        *,
        how: str = "wald",
        covariance: str = "model",
        clusters: Mapping[Hashable, Sequence[Hashable]] | None = None,
    ) -> tuple[Test, ...]:
        """Test terms of a fit by maximum likelihood: that all coefficients of a term are zero.

        Parameters
        ----------
        terms : dict of sequences of str, optional
            Names of columns by term, such as {"stage": ["stage 2", "stage 3"]}; default one term a column.
        how : {'wald', 'lr'}
            From the covariance, or by a refit without the term ("lr": the likelihood ratio; F of least squares).
        covariance, clusters
            Of Wald tests; see `summary`.

        Returns
        -------
        tuple of Test

        Raises
        ------
        NotFittedError
            Before `fit`.
        ValueError
            When the fit is not by maximum likelihood, a column is unknown, or the rows are not at hand.
        """
        check_is_fitted(self, "fitted_")
        if read_choice(how, "how", ("wald", "lr")) == "lr":
            self._rows_at_hand("A likelihood-ratio test")
            return likelihood_ratio_tests(self.fitted_, self._glm.losses(self.fitted_.noise_variance), terms)
        robust = covariance != "model"
        fitted = self._with_robust((covariance,), clusters) if robust else self.fitted_
        return wald_tests(fitted, terms, covariance)

    def _with_robust(self, names: Sequence[str], clusters: Mapping[Any, Sequence[Hashable]] | None = None) -> FittedGLM:
        """Return the fitted model with the sums of robust covariances, as a model file may hold them."""
        self._rows_at_hand("A robust covariance")
        fitted = self.fitted_
        if fitted.statistics is None:
            return fitted
        bread = fitted.posterior.covariance_matrix / fitted.noise_variance
        if "cluster" in names and clusters is None:
            clusters = {name: [name] * site.n_rows for name, site in fitted.sites.items()}
        statistics = self._glm.statistics(
            fitted.posterior.mean,
            fitted.noise_variance,
            fitted.statistics.noise,
            robust=names,
            bread=bread,
            clusters=clusters,
        )
        return replace(fitted, statistics=statistics)

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

    def _check_y(self, y: Any) -> Any:
        """Check a target that came with X, without changing the estimator."""
        kind = read_kind(self.kind)
        if kind.is_classifier:
            check_classification_targets(y)
            return column_or_1d(y, warn=True)
        numbers = np.asarray(y if kind.outputs == "columns" else column_or_1d(y, warn=True), dtype=np.float64)
        wrong = kind.target.wrong(numbers)
        if wrong is not None:
            raise ArgumentError("y", f"must hold {kind.target.expected}", f"{wrong:g}")
        return numbers

    def _require_matrix(self, method: str) -> None:
        """Refuse what would change the sites of a formula without their agreement."""
        if self.fitted_.columns.agreement is not None:
            raise ValueError(
                f"{method} is for fits to a matrix: with other sites a formula is agreed on anew, by a fit."
            )

    def _rows_at_hand(self, method: str) -> dict[Hashable, SiteRows]:
        check_is_fitted(self, "fitted_")
        if not hasattr(self, "_rows"):
            raise ValueError(
                f"{method} needs the rows of all sites, and an estimator that was copied or unpickled holds none: "
                "call fit."
            )
        return dict(self._rows)

    def _validated(self, X: Any, y: Any, reset: bool = True) -> Any:
        numeric = not _is_classifier(self)
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
        )
        if glm.labels is not None:
            self._integration(glm.labels.size, settings.averages)
        found = fit_and_diagnose(glm, rows, settings, start, self._features(glm.layout.n_features))
        self._store(rows, found)
        if found.separation is not None:
            warnings.warn(SeparationWarning(self.fitted_.findings), stacklevel=3)
            return self
        caveats: list[Callable[[Words], str]] = [partial(_plain, sentence) for sentence in found.caveats]
        # one round of BCM on a quadratic has the answer, though it cannot know
        if not found.fit.caveat and self.status_ is not Status.CONVERGED and not self.certificate_.holds:
            caveats.append(partial(self._limit, found.settings))
        if caveats:
            warnings.warn(Caveat(caveats), stacklevel=3)
        return self

    def _store(self, rows: Mapping[Hashable, SiteRows], found: Found) -> None:
        fit, fitted = found.fit, self._fitted(rows, found)
        fitted = replace(fitted, findings=(*found.findings, *diagnose_fit(fitted)))
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

    def _fitted(self, rows: Mapping[Hashable, SiteRows], found: Found) -> FittedGLM:
        fit, settings, findings = found.fit, found.settings, found.findings
        glm, result = fit.glm, fit.result
        source, has_maximum = settings.noise_source(glm.kind), not without_estimate(findings)
        assert isinstance(result.prior, Gaussian)
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
            prior=result.prior,
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
            statistics=glm.statistics(mean, fit.noise, source) if has_maximum else None,
            findings=findings,
            log_likelihood=-glm.loss(mean, fit.noise) - dropped if has_maximum else None,
            elbo=-float(result.objective[-1]) - dropped if settings.averages and not rule.is_delta else None,
        )

    # ------------------------------------------------------------------------------------------------
    # What a fit has found: read off the fitted model
    # ------------------------------------------------------------------------------------------------

    @property
    def posterior_(self) -> Gaussian:
        """Posterior of the user's θ."""
        return self.fitted_.uncentred.posterior

    @property
    def prior_(self) -> Gaussian:
        """Prior of the user's θ."""
        return self.fitted_.uncentred.prior

    @property
    def site_factors_(self) -> dict[Hashable, Natural]:
        """Factors of the user's θ by name, whose precisions and the prior's add up to the posterior's."""
        return {name: site.factor for name, site in self.fitted_.uncentred.sites.items()}

    @property
    def covariance_(self) -> Array | None:
        """Covariance of the user's θ; None where the family learns none."""
        return self.fitted_.covariance()

    @property
    def certificate_(self) -> Certificate:
        """The certificate, with its bound on the user's θ: the run measures the intercept elsewhere."""
        found = self.fitted_.uncentred.claimed
        assert found is not None
        return found

    @property
    def sites_(self) -> list[Hashable]:
        """Names in order."""
        return list(self.fitted_.sites)

    @property
    def site_rows_(self) -> dict[Hashable, int]:
        """Numbers of rows by name."""
        return {name: site.n_rows for name, site in self.fitted_.sites.items()}

    @property
    def n_rounds_(self) -> int:
        """Rounds of all runs of the fit."""
        return self.fitted_.rounds

    @property
    def method_(self) -> str:
        """Name of the method that ran."""
        return self.fitted_.method

    @property
    def status_(self) -> Status:
        """How the run ended."""
        return self.fitted_.status

    @property
    def objective_(self) -> float:
        """The run's objective at the end."""
        return float(self.fitted_.objective[-1])

    @property
    def elbo_(self) -> float:
        """The bound on the log evidence."""
        if self.fitted_.elbo is None:
            raise AttributeError("elbo_ is of a variational posterior, whose method averages over it.")
        return self.fitted_.elbo

    @property
    def log_likelihood_(self) -> float | None:
        """At the mean, all constants kept, of least squares at the variance RSS/n; None without a maximum."""
        whole = goodness(self.fitted_) if self.fitted_.inference == "likelihood" else None
        if whole is not None:
            return whole.log_likelihood
        return self.fitted_.log_likelihood

    @property
    def noise_variance_(self) -> float:
        """Noise variance of kinds that have one."""
        if not self.fitted_.kind.has_noise:
            raise AttributeError(f"{self.fitted_.kind} has no noise variance.")
        return self.fitted_.noise_variance

    @property
    def coef_(self) -> Array:
        """Coefficients in scikit-learn's shapes."""
        found = self.fitted_.layout.coefficients(self.posterior_.mean)
        return found[0] if self._is_single and not self.fitted_.kind.is_classifier else found

    @property
    def intercept_(self) -> Any:
        """Intercepts in scikit-learn's shapes."""
        found = self.fitted_.layout.intercepts(self.posterior_.mean)
        return float(found[0]) if self._is_single and not self.fitted_.kind.is_classifier else found

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
        residual, known = self.certificate_.pooled, about_offset(self._glm)
        message = (
            f"{self.message_.rstrip('.')}. Residual of the pooled stationarity condition: {residual:.1e}; {advice}."
        )
        return f"{message} {known}" if known else message

    # ------------------------------------------------------------------------------------------------
    # Predicting
    # ------------------------------------------------------------------------------------------------

    def _rows_to_predict(self, X: Any, offset: Any = None, exposure: Any = None) -> tuple[Array, Array | None]:
        """Return design rows and the known part of their predictors, of a matrix or of a table like the formula's."""
        check_is_fitted(self, "fitted_")
        agreement = self.fitted_.columns.agreement
        own = None
        if agreement is not None and not isinstance(X, np.ndarray):
            made = design(X, agreement, for_prediction=True)
            rows, own = made.matrix, made.offset
        else:
            require_numbers(X)
            rows = np.asarray(validate_data(self, X, reset=False, dtype=np.float64))
        given = read_offset(offset, exposure, len(rows))
        if own is None and given is None and agreement is not None and agreement.parsed.offsets:
            raise ArgumentError("offset", "must be given with a matrix: the formula has one")
        if own is not None and given is not None:
            raise ArgumentError("offset", "and exposure must be left out: the formula has an offset")
        return rows, given if own is None else own

    def predict(self, X: Any, return_std: bool = False, offset: Any = None, exposure: Any = None) -> Any:
        """Return the most probable class of new rows, or the mean of new observations.

        Parameters
        ----------
        X : array_like or frame, shape (n, p)
        return_std : bool, default False
            Whether to return the standard deviation of a new observation too; not for classes.
        offset, exposure : array_like, shape (n,), optional
            As in `fit`.

        Returns
        -------
        ndarray, shape (n,) or (n, C), or two of them

        Raises
        ------
        ValueError
            When `return_std` asks for what the family does not learn, or what a class has not.
        """
        wants_sd = read_switch(return_std, "return_std")
        rows, known = self._rows_to_predict(X, offset, exposure)
        if self.fitted_.kind.is_classifier:
            if wants_sd:
                raise ValueError("return_std must be False for classes: predict_proba says how sure they are.")
            return self.classes_[np.argmax(self._probabilities(rows, known), axis=1)]
        shape = (len(rows),) if self._is_single else (len(rows), self.fitted_.layout.n_outputs)
        if not wants_sd:
            return self.fitted_.expected(rows, known).reshape(shape)
        self._require_covariance("return_std=True")
        mean, sd = self.fitted_.mean_and_sd(rows, known)
        return mean.reshape(shape), sd.reshape(shape)

    def score(self, X: Any, y: Any, sample_weight: Any = None, offset: Any = None, exposure: Any = None) -> float:
        """Return the share of right classes, R² of least squares, or the share of the deviance that the means explain.

        The deviance is that of the model without features, which has the offset too.

        Parameters
        ----------
        X : array_like or frame, shape (n, p)
        y : array_like, shape (n,)
        sample_weight, offset, exposure : array_like, shape (n,), optional
            As in `fit`.

        Returns
        -------
        float
        """
        predicted = self.predict(X, offset=offset, exposure=exposure)
        if self.fitted_.kind.is_classifier:
            return float(accuracy_score(y, predicted, sample_weight=sample_weight))
        kind, y = self.fitted_.kind, self._check_y(y)
        known = self._rows_to_predict(X, offset, exposure)[1]
        if kind.has_noise:  # several columns of y count alike, as scikit-learn has it
            moved = 0.0 if known is None else known
            return float(r2_score(y - moved, predicted - moved, sample_weight=sample_weight))
        return kind.explained(y, predicted, sample_weight, known)

    @available_if(_is_classifier)
    def decision_function(self, X: Any, offset: Any = None) -> Array:
        """Return the posterior mean of the predictor xᵀw + b, shape (n,), or (n, C) for three classes on."""
        rows, known = self._rows_to_predict(X, offset)
        return self.fitted_.kind.class_predictors(self.fitted_.predictor_mean(rows, known))

    @available_if(_is_classifier)
    def predict_proba(self, X: Any, offset: Any = None) -> Array:
        """Return p(y = c) for every class, shape (n, C): at the mode, or averaged over the posterior."""
        return self._probabilities(*self._rows_to_predict(X, offset))

    @available_if(_is_classifier)
    def predict_log_proba(self, X: Any, offset: Any = None) -> Array:
        """Return the logarithm of `predict_proba`."""
        with np.errstate(divide="ignore"):  # an impossible class has −inf
            return np.asarray(np.log(self.predict_proba(X, offset)))

    def _probabilities(self, rows: Array, offset: Array | None = None) -> Array:
        fitted = self.fitted_
        return fitted.probabilities(rows, self._integration(len(fitted.classes), fitted.averages), offset)

    def _require_covariance(self, argument: str) -> None:
        if not self.fitted_.learns_covariance:
            family = type(self.fitted_.posterior).__name__
            raise ValueError(
                f"{argument} needs a posterior covariance, and {self.method_} with {family} learns none; fit with "
                "family='full' or 'diagonal'."
            )


def _plain(sentence: str, words: Words) -> str:
    return sentence


def _centre(rows: Mapping[Hashable, SiteRows], settings: Settings) -> Array | None:
    """The pooled mean of the features, from sums over sites, where a free intercept may be measured from it.

    Not in a diagonal family: there the answer would depend on the origin.
    """
    if settings.family is not FullGaussian or not settings.is_free_intercept:
        return None
    totals = np.sum([site.weights @ site.X for site in rows.values()], axis=0)
    mean: Array = totals / sum(site.weights.sum() for site in rows.values())
    return mean
