"""Answers of a fitted estimator: attributes, tables, tests, predictions; all read off its fitted model."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any, get_args

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from .._errors import ArgumentError
from .._validation import Array, as_switch
from ..design.agreement import Agreement, design
from ..design.rows import SiteRows, read_offset, require_index, require_numbers
from ..families.coordinates import Natural
from ..families.gaussian import Gaussian
from ..glm.hypotheses import TermTest, TestName, TestType
from ..glm.inference import LEVEL
from ..glm.kinds import Kind, read_kind
from ..glm.problem import Problem
from ..glm.site_statistics import SiteStatistics, check_clusters, site_statistics, with_all_robust
from ..losses.base import Loss
from ..splitting.certificate import Certificate
from ..splitting.status import Status
from .fitted import FittedGLM
from .settings import read_choice
from .sites import Sites
from .summary import COVARIANCES, MODEL, QUASI, Summary, summarise
from .term_tests import AtHand, refit_tests, wald_tests


def _is_classifier(model: FittedEstimator) -> bool:
    return read_kind(model.kind).is_classifier


class FittedEstimator(BaseEstimator):
    """Base of the estimators: what they answer once `fit` has set `fitted_`."""

    kind: Kind | str
    fitted_: FittedGLM
    classes_: Array
    _rows: dict[Hashable, SiteRows]
    _sites: Sites
    _problem: Problem
    _is_single: bool

    def _integration(self, n_classes: int, averages: bool) -> str | None:
        """Return how class probabilities are averaged over the posterior; checked before a fit."""
        return None

    def _rows_at_hand(self, method: str) -> dict[Hashable, SiteRows]:
        check_is_fitted(self, "fitted_")
        if not hasattr(self, "_rows"):
            raise ValueError(
                f"{method} needs the rows of all sites, and an estimator that was copied or unpickled holds none: "
                "call fit."
            )
        return dict(self._rows)

    def _check_y(self, y: Any) -> Any:
        """Check a target that came with X, without changing the estimator."""
        kind = read_kind(self.kind)
        if kind.is_classifier:
            check_classification_targets(y)
            return column_or_1d(y, warn=True)
        if kind.response:
            return kind.read_response(y)
        numbers = np.asarray(y if kind.outputs == "columns" else column_or_1d(y, warn=True), dtype=np.float64)
        wrong = kind.target.wrong(numbers)
        if wrong is not None:
            raise ArgumentError("y", f"must hold {kind.target.expected}", f"{wrong:g}")
        return numbers

    def _known(self, offset: Any, exposure: Any, n_rows: int) -> Array | None:
        """Return the known part of the predictors; an exposure is for a log link."""
        if exposure is not None:
            read_kind(self.kind).require_log("exposure")
        return read_offset(offset, exposure, n_rows)

    # --- What a fit has found: read off the fitted model ------------------------------------------------------

    @property
    def posterior_(self) -> Gaussian:
        """Posterior of the user's θ; an AttributeError where the rows leave a part of θ open."""
        if not self.fitted_.determines(np.eye(self.fitted_.layout.dim)).all():
            raise AttributeError("posterior_ exists only if the rows determine all coefficients; use coef_.")
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
        """Covariance of the user's θ, NaN where `coef_` and `intercept_` are; None where the family learns none."""
        return self.fitted_.covariance()

    @property
    def certificate_(self) -> Certificate:
        """The certificate, with its bound on the user's θ."""
        found = self.fitted_.claimed
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
        return self.fitted_.record.rounds

    @property
    def method_(self) -> str:
        """Name of the method that ran."""
        return self.fitted_.record.method

    @property
    def status_(self) -> Status:
        """Status at which the run ended."""
        return self.fitted_.record.status

    @property
    def elbo_(self) -> float:
        """The bound on the log evidence."""
        if self.fitted_.totals.elbo is None:
            raise AttributeError("elbo_ is of a variational posterior, whose method averages over it.")
        return self.fitted_.totals.elbo

    @property
    def log_likelihood_(self) -> float | None:
        """At the mean, all constants kept, of least squares at RSS/n; None without a maximum, or of an exact fit."""
        whole = self.fitted_.goodness() if self.fitted_.criterion.inference == "likelihood" else None
        if whole is not None:
            return None if self.fitted_.has_noise_of_rounding else whole.log_likelihood
        return self.fitted_.totals.log_likelihood

    @property
    def noise_variance_(self) -> float:
        """Noise variance of kinds that have one."""
        if not self.fitted_.kind.has_noise:
            raise AttributeError(f"{self.fitted_.kind} has no noise variance.")
        return self.fitted_.criterion.noise_variance

    @property
    def coef_(self) -> Array:
        """Coefficients in scikit-learn's shapes; NaN where the rows determine none, as NA in R."""
        fitted = self.fitted_
        found = fitted.layout.coefficients(fitted.mean())[:, fitted.columns.n_auxiliary :]
        return found[0] if self._is_single and not self.fitted_.kind.is_classifier else found

    @property
    def auxiliary_(self) -> dict[str, float]:
        """Parameters beside the coefficients by name, such as cutpoints; empty of most kinds."""
        n = self.fitted_.columns.n_auxiliary
        return dict(zip(self.fitted_.columns.names[:n], self.fitted_.mean()[:n].tolist(), strict=True))

    @property
    def intercept_(self) -> Any:
        """Intercepts in scikit-learn's shapes; NaN as in `coef_`."""
        found = self.fitted_.layout.intercepts(self.fitted_.mean())
        return float(found[0]) if self._is_single and not self.fitted_.kind.is_classifier else found

    @property
    def agreement_(self) -> Agreement:
        """Agreement of the sites, of a fit by a formula; its `lines` are a report."""
        found = self.fitted_.columns.agreement
        if found is None:
            raise AttributeError("agreement_ is of a fit by a formula.")
        return found

    @property
    def site_missing_(self) -> dict[Hashable, int]:
        """Rows that each site left out because of missing values, of a fit by a formula."""
        return {name: site.n_missing for name, site in self.fitted_.sites.items()}

    # --- Tables and tests -------------------------------------------------------------------------------------

    def summary(
        self,
        *,
        covariance: str = "model",
        clusters: Mapping[Hashable, Sequence[Hashable]] | None = None,
        ratios: bool = False,
        reference_class: Any = None,
        intervals: str = "wald",
        tests: str = "none",
        test_type: TestType = "II",
        level: float = LEVEL,
    ) -> Summary:
        """Return the table of coefficients, with the share of each site in the information on them.

        Parameters
        ----------
        covariance : {'model', 'quasi', 'HC0', 'HC1', 'HC2', 'HC3', 'cluster'}
            The model's, that times the dispersion of counts (quasi-likelihood), or a robust one: by row (White;
            MacKinnon and White) or by cluster (Liang and Zeger).
        clusters : dict of sequence, optional
            Cluster of each row by site, for "cluster" alone: `dict(list(frame.groupby("hospital")["ward"]))`. A Series
            is aligned with the rows of a frame by its index; anything else has one label a row of positive weight. A
            cluster lies in one site. By default each site is one.
        ratios : bool, default False
            Whether to show exp(coef), an odds or rate ratio, with its interval.
        reference_class : label, optional
            Of classes: rows are the differences to this class, log odds ratios.
        intervals : {'wald', 'profile'}
            Symmetric ones from the covariance, or those of the profile likelihood, which better fit small samples: the
            values at which twice the drop of the likelihood, maximised over all else, is 3.84 (for 95 %).
        tests : {'none', 'wald', 'lr', 'score'}
            Tests of the terms, below the coefficients: see `test_terms`.
        test_type : {'II', 'III'}
        level : float, default 0.95
            Probability of the intervals.

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
        fitted = self._with_covariance(covariance, clusters)
        losses = None
        if read_choice(intervals, "intervals", ("wald", "profile")) == "profile":
            losses = self.losses("A profile likelihood")
        shown: dict[str, Any] = {
            "covariance": covariance,
            "ratios": ratios,
            "reference": reference_class,
            "losses": losses,
            "level": level,
        }
        if read_choice(tests, "tests", get_args(TestName)) != "none":
            shown["tests"] = self.test_terms(how=tests, type=test_type, covariance=covariance, clusters=clusters)
        return summarise(fitted, **shown)

    def test_terms(
        self,
        terms: Mapping[str, Sequence[str]] | None = None,
        *,
        how: str = "wald",
        type: TestType | None = None,
        covariance: str = "model",
        clusters: Mapping[Hashable, Sequence[Hashable]] | None = None,
    ) -> tuple[TermTest, ...]:
        """Test terms of a fit by maximum likelihood: that all coefficients of a term are zero.

        Parameters
        ----------
        terms : dict of sequences of str, optional
            Names of columns by term, such as {"stage": ["stage 2", "stage 3"]}, each tested beside all other columns.
            By default the terms of the formula, or each column.
        how : {'wald', 'lr', 'score'}
            From the covariance, or by fits without the term: the likelihood ratio, or Rao's score (F of least squares).
        type : {'II', 'III'}, optional
            Models that a test of a term compares, as `car::Anova` of R does. II, the default: those without the
            interactions that contain the term, with and without it. III: the whole model, and it without the term's own
            columns; of a term in an interaction that is the effect where the other factors are zero, or at their
            reference level. Without interactions both are the same.
        covariance, clusters
            Of Wald tests; see `summary`.

        Returns
        -------
        tuple of TermTest
            Without a statistic, but with a reason `why`, where other columns say all that a term says, or where it has
            no finite estimate.

        Raises
        ------
        NotFittedError
            Before `fit`.
        ValueError
            When the fit is not by maximum likelihood, a column is unknown, or the rows are not at hand.
        """
        check_is_fitted(self, "fitted_")
        name: TestName = read_choice(how, "how", get_args(TestName)[1:])
        if name != "wald":
            return refit_tests(self.fitted_, self._at_hand("A fit without a term"), name, terms, type)
        return wald_tests(self._with_covariance(covariance, clusters), terms, covariance, type)

    def _with_covariance(self, name: str, clusters: Mapping[Hashable, Sequence[Hashable]] | None) -> FittedGLM:
        """Return the fitted model with the sums that a covariance takes."""
        check_is_fitted(self, "fitted_")
        if read_choice(name, "covariance", COVARIANCES) != "cluster" and clusters is not None:
            raise ArgumentError("clusters", f"must be left out beside covariance={name!r}", "", "take 'cluster'")
        if name in (MODEL, QUASI) or not self.fitted_.learns_covariance:
            return self.fitted_
        return self.with_robust((name,), clusters)

    def _at_hand(self, reader: str) -> AtHand:
        """Return the problem that was fitted, and the rows of its sites, which answer questions."""
        self._rows_at_hand(reader)
        return self._problem, self._sites

    def losses(self, reader: str = "losses()") -> Sequence[Loss]:
        """Return the loss of each site's rows, in the units of the run; `reader` is who needs the rows, in words."""
        self._rows_at_hand(reader)
        return self._sites.losses(self.fitted_.layout, self.fitted_.criterion.noise_variance)

    def with_robust(
        self,
        names: Sequence[str] | None = None,
        clusters: Mapping[Hashable, Sequence[Hashable]] | None = None,
    ) -> FittedGLM:
        """Return the fitted model with the sums of robust covariances by their names, as a model file may hold them.

        By default those of all that are defined. `clusters` are those of `summary`.
        """
        rows = self._rows_at_hand("A robust covariance")
        fitted = self.fitted_
        if fitted.totals.statistics is None:
            return fitted
        if clusters is not None and {*clusters} != {*fitted.sites}:
            expected = f"must have the sites {', '.join(map(str, fitted.sites))}"
            raise ArgumentError("clusters", expected, ", ".join(map(str, clusters)) or "none")
        known = fitted.totals.statistics
        labels = {
            name: [name] * site.n_rows if clusters is None else rows[name].align(clusters[name], f"clusters[{name!r}]")
            for name, site in fitted.sites.items()
        }
        check_clusters(labels)
        mean, bread = fitted.posterior.mean, fitted.posterior.covariance_matrix / fitted.criterion.noise_variance

        def sums(robust: Sequence[str]) -> SiteStatistics:
            settings: dict[str, Any] = {"robust": robust, "bread": bread, "weights": known.weights}
            settings["noise_variance"] = fitted.criterion.noise_variance
            each = zip(labels.values(), self.losses(), strict=True)
            parts = (site_statistics(fitted.kind, loss, mean, mean, clusters=own, **settings) for own, loss in each)
            total: SiteStatistics = reduce(add, parts)
            return total

        found = with_all_robust(fitted.kind, sums) if names is None else sums(names)
        total = replace(known.total, meats=found.meats, n_clusters=found.n_clusters)
        return replace(fitted, totals=replace(fitted.totals, statistics=replace(known, total=total)))

    # --- Predicting -------------------------------------------------------------------------------------------

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
        require_index(X, offset=offset, exposure=exposure)
        given = self._known(offset, exposure, len(rows))
        fitted = [name for name in (self.fitted_.columns.offset, self.fitted_.columns.exposure) if name is not None]
        if len(fitted) > (offset is not None) + (exposure is not None):
            given_as = "offset" if self.fitted_.columns.exposure is None else "exposure"
            said = f"the model was fitted with {' and '.join(fitted)}: give the {given_as} of these rows"
            warnings.warn(f"{said}; predictions without are those for an offset of 0, an exposure of 1.", stacklevel=3)
        if own is None and given is None and agreement is not None and agreement.parsed.offsets:
            raise ArgumentError("offset", "must be given with a matrix: the formula has one")
        if own is not None and given is not None:
            raise ArgumentError("offset", "and exposure must be left out: the formula has an offset")
        return rows, given if own is None else own

    def _predicted(self, rows: Array, *found: Array) -> Any:
        """Return predictions; a warning says how many rows have none (NaN), and why."""
        said = self.fitted_.left_open(rows, np.any([np.isnan(each) for each in found], axis=0))
        if said:
            warnings.warn(f"{said}; their predictions are NaN.", stacklevel=3)
        return found[0] if len(found) == 1 else found

    def predict(self, X: Any, return_std: bool = False, offset: Any = None, exposure: Any = None) -> Any:
        """Return the most probable class of new rows, or the mean of new observations.

        Parameters
        ----------
        X : array_like or frame, shape (n, p)
        return_std : bool, default False
            Whether to return the standard deviation of a new observation too; not for classes.
        offset, exposure : array_like, shape (n,), optional
            As in `fit`. Left out, the offset is 0 and the exposure 1; a warning says so of a model that was fitted to
            others.

        Returns
        -------
        ndarray, shape (n,) or (n, C), or two of them

        Raises
        ------
        ValueError
            When `return_std` asks for what the family does not learn, or what a class has not, and when the fit does
            not determine the class of a row: it leaves the dependence of columns. The mean of such a row is NaN.
        """
        wants_sd = as_switch(return_std, "return_std")
        rows, known = self._rows_to_predict(X, offset, exposure)
        if self.fitted_.kind.is_classifier:
            if wants_sd:
                raise ValueError("return_std must be False for classes: use predict_proba.")
            places = self.fitted_.labels(rows, self._how, known)
            if (places < 0).any():
                said = self.fitted_.left_open(rows, places < 0)
                raise ArgumentError("X", "must hold rows whose class the fit determines", said)
            return self.classes_[places]
        shape = (len(rows),) if self._is_single else (len(rows), self.fitted_.layout.n_outputs)
        if not wants_sd:
            return self._predicted(rows, self.fitted_.expected(rows, known).reshape(shape))
        self._require_covariance("return_std=True")
        mean, sd = self.fitted_.mean_and_sd(rows, known)
        return self._predicted(rows, mean.reshape(shape), sd.reshape(shape))

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
        require_index(X, y=y, sample_weight=sample_weight)
        if self.fitted_.kind.has_trials and not np.isin(y, self.classes_).all():
            raise ArgumentError("y", "must hold single outcomes, 0 and 1: the share of right classes is of these")
        if self.fitted_.kind.is_classifier:
            return float(accuracy_score(y, predicted, sample_weight=sample_weight))
        kind, y = self.fitted_.kind, self._check_y(y)
        rows, known = self._rows_to_predict(X, offset, exposure)
        said = self.fitted_.left_open(rows, np.isnan(predicted))
        if said:
            raise ArgumentError("X", "must hold rows whose mean the fit determines", said)
        if kind.has_noise:  # several columns of y count alike, as scikit-learn has it
            moved = 0.0 if known is None else known
            return float(r2_score(y - moved, predicted - moved, sample_weight=sample_weight))
        return kind.explained(y, predicted, sample_weight, known)

    @available_if(_is_classifier)
    def decision_function(self, X: Any, offset: Any = None) -> Array:
        """Return the posterior mean of the predictor xᵀw + b, shape (n,), or (n, C) for three classes on.

        Infinite under a separation; of several classes the others' predictors are then differences to the first that is
        possible. NaN where the rows of the fit do not determine the class.
        """
        rows, known = self._rows_to_predict(X, offset)
        return self._predicted(rows, self.fitted_.decision(rows, known))

    @available_if(_is_classifier)
    def predict_proba(self, X: Any, offset: Any = None) -> Array:
        """Return p(y = c) for every class, shape (n, C): at the mode, or averaged over the posterior.

        Under a separation along one direction they are limits, as in R. NaN where the rows of the fit do not determine
        them, and a warning says why.
        """
        rows, known = self._rows_to_predict(X, offset)
        return self._predicted(rows, self.fitted_.probabilities(rows, self._how, known))

    @available_if(_is_classifier)
    def predict_log_proba(self, X: Any, offset: Any = None) -> Array:
        """Return the logarithm of `predict_proba`."""
        with np.errstate(divide="ignore"):  # an impossible class has −inf
            return np.asarray(np.log(self.predict_proba(X, offset)))

    @property
    def _how(self) -> str | None:
        return self._integration(len(self.fitted_.columns.classes), self.fitted_.averages)

    def _require_covariance(self, argument: str) -> None:
        if not self.fitted_.learns_covariance:
            family = type(self.fitted_.posterior).__name__
            raise ValueError(
                f"{argument} needs a posterior covariance, and {self.method_} with {family} learns none; fit with "
                "family='full' or 'diagonal'."
            )
