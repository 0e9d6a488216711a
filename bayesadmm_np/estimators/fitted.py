"""A fitted GLM: the one that estimators, commands, model files and runs by files share.

It holds a posterior and sums over the sites, and no rows.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import qr, solve_triangular

from .._errors import ArgumentError
from .._numerics import EPS
from .._text import word
from .._validation import Array
from .._version import __version__
from ..design.agreement import Agreement, Term, design, terms_of
from ..families import FullGaussian, IsotropicGaussian
from ..families.coordinates import Natural
from ..families.gaussian import Gaussian
from ..families.gaussians import FAMILIES
from ..families.precision import DensePrecision
from ..glm.columns import are_held
from ..glm.diagnosis import Dependent, Finding, Undecided, enumerated, without_estimate
from ..glm.estimable import Reach, estimable, moved
from ..glm.hypotheses import TermTest
from ..glm.inference import FitStatistics, GoodnessOfFit, Noise, goodness_of_fit
from ..glm.kinds import IDENTITY, Kind
from ..glm.layout import Layout, carry, carry_distance
from ..glm.mixed import restriction_pulls
from ..glm.own_fit import ROUNDING, OwnFit
from ..glm.prior import Prior
from ..losses.base import GaussianExpected, Loss
from ..losses.expectations import Rule
from ..splitting.certificate import Certificate, PooledObjective
from ..splitting.distance import Distance
from ..splitting.methods import Newton
from ..splitting.status import Status


@dataclass(frozen=True)
class StackedQR(Newton):
    """Newton's step, of which a quadratic needs one, by factors in place of sums."""

    @property
    def name(self) -> str:
        """Name in tables."""
        return "stacked QR"


STACKED_QR = StackedQR()


SAME = 1e-6
"""Relative, of a precision times a mean, and the linear part that stands for it: far above rounding."""

NO_NOISE = "the residuals give no noise variance"
"""Reason why a term has no test."""

UNBOUNDED = "the likelihood has no maximum, or no proof of one"
"""Reason why no distance to the pooled fit is known."""

CLOSE = 1e-6
"""Bound on a coefficient, relative to the largest, from which on it says nothing."""

LISTED = 1000
"""Rows without a prediction of which the reasons are looked for."""

DETERMINED = 1.0 - 1e-8
"""Share of the prior in the information on some direction from which on rounding alone may be the rows'."""


@dataclass(frozen=True, eq=False)
class Columns:
    """Columns that a model reads, by name.

    `names` are those of the design matrix, the first `n_auxiliary` of which are parameters beside the coefficients with
    columns of zeros. `agreement` is how a formula makes the design of a table, where there is a formula. `classes` are
    in the order of the labels, none of regressions. `client`, the column of the sites, `offset` and
    `exposure` are None where there are none.
    """

    names: tuple[str, ...]
    agreement: Agreement | None = None
    target: str = "y"
    classes: tuple[Any, ...] = ()
    client: str | None = None
    offset: str | None = None
    exposure: str | None = None
    n_auxiliary: int = 0

    @property
    def terms(self) -> tuple[Term, ...]:
        """Terms of the formula, or without one each column by itself."""
        return terms_of(self.names, self.agreement, self.n_auxiliary)

    @property
    def read(self) -> tuple[str, ...]:
        """Names of the columns of a design, without parameters beside the coefficients."""
        return self.names[self.n_auxiliary :]

    @property
    def factors(self) -> tuple[str, ...]:
        """Columns of the formula that are factors."""
        return () if self.agreement is None else self.agreement.factors

    def levels(self, name: str) -> tuple[str, ...]:
        """Levels of a factor, the reference first."""
        assert self.agreement is not None
        return self.agreement.columns[name].levels

    def complete(self, columns: Mapping[str, Any]) -> Any:
        """Return columns as `design` takes them: with a formula, those that it reads."""
        return columns if self.agreement is None else {name: columns[name] for name in self.agreement.parsed.predictors}

    def design(self, table: Any) -> Array:
        """Return the design columns (n, p) of a table, or of an array with these columns."""
        if isinstance(table, np.ndarray):
            found = table
        elif self.agreement is not None:
            found = design(table, self.agreement, for_prediction=True).matrix
        else:
            found = np.column_stack([np.asarray(table[name], dtype=np.float64) for name in self.read])
        return np.pad(found, ((0, 0), (self.n_auxiliary, 0))) if self.n_auxiliary else found


@dataclass(frozen=True)
class Site:
    """Contribution of a site: its factor exp⟨η_k, T(θ)⟩, its number of rows, and of those left out as incomplete.

    `own` is its own maximum-likelihood fit, in the run's θ, where the fit of all is one and the site has told it.
    """

    factor: Natural
    n_rows: int
    n_missing: int = 0
    own: OwnFit | None = None


@dataclass(frozen=True)
class Check:
    """A certificate computed again: ‖wλ_g − η_0 + Σ_k ∇_μ E_{q_g}[ℓ_k]‖ and, by site, ‖η_k + ∇_μ E_{q_g}[ℓ_k]‖."""

    pooled: float
    apart: Mapping[Hashable, float]
    distance: Distance | None


@dataclass(frozen=True)
class Criterion:
    """Objective of a fit.

    Attributes
    ----------
    rule : Rule
        Rule for expectations that the posterior is optimal under.
    inference : {'likelihood', 'posterior'}
        Whether `posterior` is N(mode, curvature⁻¹), whose covariance holds the model standard errors and whose mode
        alone predicts, or the variational posterior, over which predictions are averaged.
    penalty : {None, 'firth'}
    dependent : {'hold', 'minimum_norm'}
        Whether dependent columns of least squares were left out, or the solution of minimum norm was taken.
    noise_variance : float
        1 for kinds without a noise variance.
    """

    rule: Rule
    inference: Literal["likelihood", "posterior"] = "posterior"
    penalty: Literal["firth"] | None = None
    dependent: Literal["hold", "minimum_norm"] = "hold"
    noise_variance: float = 1.0


@dataclass(frozen=True, eq=False)
class Unidentified:
    """Directions of θ without a finite estimate.

    Attributes
    ----------
    flat : ndarray, shape (d, k), or None
        Directions that move no row's predictors, of dependent columns; each is 1 at a held coefficient of its own.
    receding : ndarray, shape (d, k), or None
        Directions of recession: the likelihood rises for ever along the first.
    """

    flat: Array | None = None
    receding: Array | None = None


@dataclass(frozen=True, eq=False)
class Totals:
    """Sums over the sites at the fit, and numbers made of them.

    Attributes
    ----------
    statistics : FitStatistics or None
        Totals for deviance, criteria, tests and robust covariances, where they were asked.
    ratio_tests : tuple of TermTest
        Tests of the terms by fits without them, where they were asked for.
    log_likelihood, elbo : float or None
        Log-likelihood at the mean and bound on the log evidence, all constants kept; None without a maximum.
    """

    statistics: FitStatistics | None = None
    ratio_tests: tuple[TermTest, ...] = ()
    log_likelihood: float | None = None
    elbo: float | None = None

    @property
    def noise(self) -> Noise | None:
        """Origin of the noise variance; None without statistics."""
        return None if self.statistics is None else self.statistics.noise


@dataclass(frozen=True, eq=False)
class Record:
    """The run that made a fit.

    Attributes
    ----------
    method, message : str
    status : Status
    certificate : Certificate or None
        Certificate at the origin of the run; None where a site's sums were missing at the end.
    rounds, floats : int
        Rounds, of all runs where the evidence chose a number, and numbers sent by all parties.
    objective : ndarray, shape (n,)
        After each round of the last run; a sum over rows.
    shown : str
        Covariance of the table that the fit printed, which is that of the model file's table.
    version : str
        Version of the library that fitted the model.
    """

    method: str
    status: Status
    message: str
    certificate: Certificate | None
    rounds: int
    objective: Array
    floats: int
    shown: str = "model"
    version: str = __version__


@dataclass(frozen=True, eq=False)
class FittedGLM:
    """A fitted generalised linear model with its posterior and its sites' factors.

    θ stacks, output by output, the coefficients of the p design columns and then, where there is one, the intercept.
    It is at the origin of the run: `layout` is the map to the user's θ, which all numbers are of that methods return.

    Attributes
    ----------
    kind : Kind
    columns : Columns
    layout : Layout
        Places of coefficients and intercept in θ, and the map to the user's θ.
    prior, posterior : Gaussian
    stated : Prior or None
        The prior as it was asked for, with the numbers that were used; None of a run whose prior was made in Python.
    criterion : Criterion
    sites : dict of Site
    findings : tuple of Finding
        Findings about the data.
    unidentified : Unidentified
    totals : Totals
    record : Record
    """

    kind: Kind
    columns: Columns
    layout: Layout
    prior: Gaussian
    posterior: Gaussian
    stated: Prior | None
    criterion: Criterion
    sites: Mapping[Any, Site]
    findings: tuple[Finding, ...]
    unidentified: Unidentified
    totals: Totals
    record: Record

    # --- Names ------------------------------------------------------------------------------------------------

    @property
    def family(self) -> str:
        """The family's short name."""
        return next(name for name, family in FAMILIES.items() if type(self.prior) is family)

    @property
    def learns_covariance(self) -> bool:
        """Return whether there are standard errors."""
        return self.posterior.learns_precision

    @property
    def output_names(self) -> tuple[str, ...]:
        """One name an output: of its class, or y0, y1, …; an empty one where there is a single output."""
        return self.kind.output_names(tuple(map(word, self.columns.classes)), self.layout.n_outputs)

    @property
    def coefficient_names(self) -> tuple[str, ...]:
        """Names of the entries of θ; with several outputs `output: column`."""
        return self.layout.parameters(self.columns.names, self.output_names)

    @property
    def pull(self) -> Array:
        """Shift of each coefficient by the prior, in standard errors of the rows alone: H⁻¹S_0(m_0 − m)/√diag H⁻¹.

        H = S − S_0 is the information of the rows. That is the whole way for least squares, and elsewhere what a Newton
        step without the prior undoes. NaN where the rows do not determine all coefficients.
        """
        free = np.flatnonzero(~self.held)
        q, prior, block = self.posterior, self.prior.precision, np.ix_(free, free)
        root = self._root_of(free).T
        # of S = LLᵀ and L⁻¹S_0L⁻ᵀ = UwUᵀ, H⁻¹ = RRᵀ with R = L⁻ᵀU(1 − w)^-½
        within = solve_triangular(root, solve_triangular(root, prior[block], lower=True).T, lower=True)
        shares, vectors = np.linalg.eigh(0.5 * (within + within.T))
        found = np.full(len(q.mean), np.nan)
        if shares[-1] < DETERMINED:
            R = solve_triangular(root.T, vectors / np.sqrt(1.0 - shares))
            found[free] = R @ (R.T @ (prior @ (self.prior.mean - q.mean))[free]) / np.linalg.norm(R, axis=1)
        return found

    @property
    def has_maximum(self) -> bool:
        """Return whether no finding, and no end of the rounds, says that the likelihood may have no maximum."""
        return self.record.status is not Status.NO_MAXIMUM and not without_estimate(self.findings)

    @property
    def holds(self) -> bool:
        """Return whether the likelihood has a maximum and the pooled stationarity residual is below tol."""
        is_known = self.has_maximum and self.record.status is not Status.UNRESOLVED
        return self.record.certificate is not None and self.record.certificate.holds and is_known

    @property
    def is_at_maximum(self) -> bool:
        """Return whether the fit is the supremum of the likelihood, as criteria, R² and the test of all suppose.

        A separated likelihood has it at a limit; where that was not found there are no statistics.
        """
        is_limit = not self.has_maximum and self.totals.statistics is not None
        return self.fit_name == "maximum likelihood" and (self.holds or self.is_exact or is_limit)

    def goodness(self) -> GoodnessOfFit | None:
        """Return what is known of the fit as a whole, in the units of the target; None in models without statistics."""
        found, layout = self.totals.statistics, self.layout
        if found is None:
            return None
        # a shift common to all classes leaves every probability as it is
        free = layout.n_outputs - self.kind.has_flat_shift
        whole = goodness_of_fit(
            self.kind,
            found.total,
            free * layout.width - int(self.superfluous.sum()),
            free * layout.has_intercept + self.columns.n_auxiliary,
            n_outputs=layout.n_outputs,
            noise=found.noise,
            noise_variance=self.criterion.noise_variance,
            weights=found.weights,
            has_null=found.has_null,
        )
        if self.columns.n_auxiliary:  # a model of other auxiliary parameters has another saturated one
            whole = replace(whole, null_deviance=None)
        if whole.null_deviance is None or whole.null_deviance > self._rounding_of_target(whole):
            return whole
        return replace(whole, r_squared=None, adjusted_r_squared=None, test=None)  # y is constant: 0/0

    def _rounding_of_target(self, whole: GoodnessOfFit) -> float:
        """Pearson's χ² that the rounding of y may be, by its mean; 0 where no dispersion is estimated."""
        if not (self.kind.has_noise or self.kind.has_dispersion) or not self.layout.has_intercept:
            return 0.0
        assert self.kind.variance is not None
        with np.errstate(all="ignore"):  # of a link with a domain, in which the intercept of a constant y is
            means: Any = self.kind.link.inverse(self.layout.intercepts(self.posterior.mean))
            units = np.nan_to_num((4.0 * EPS * means) ** 2 / self.kind.variance(means, means**2))
        return whole.n_observations * float(units.max())

    @cached_property
    def has_noise_of_rounding(self) -> bool:
        """Return whether residuals are the rounding of y, which tells no noise variance and no dispersion."""
        is_estimated = self.totals.noise == "estimated" or self.kind.has_dispersion
        whole = self.goodness() if is_estimated else None
        if whole is None:
            return False
        return whole.deviance <= ROUNDING**2 * (whole.null_deviance or 0.0) + self._rounding_of_target(whole)

    @cached_property
    def lacks_noise(self) -> bool:
        """Return whether nothing tells an estimated noise variance: residuals are rounding, or none is free."""
        is_estimated = self.totals.noise == "estimated" or self.kind.has_dispersion
        whole = self.goodness() if is_estimated else None
        return self.has_noise_of_rounding or (whole is not None and whole.df_residual <= 0)

    @property
    def overdispersion(self) -> float | None:
        """Pearson's χ² over its degrees of freedom at a maximum for counts; None elsewhere."""
        whole = self.goodness() if self.kind.is_of_counts and self.is_at_maximum else None
        return None if whole is None else whole.dispersion

    @property
    def claimed(self) -> Certificate | None:
        """The certificate, with its bound on θ in the columns' own units.

        Where the likelihood has no maximum a small residual proves nothing, as all are small on the way to infinity:
        there `pooled` is inf.
        """
        proof = self.record.certificate
        pooled = proof.pooled if proof is not None and self.has_maximum else float("inf")
        return proof and replace(proof, pooled=pooled, distance=self.distance())

    @property
    def is_exact(self) -> bool:
        """Return whether triangular factors of the rows gave the fit, which sums may be too coarse to certify."""
        return self.record.method == STACKED_QR.name

    @property
    def title(self) -> str:
        """Stands above a report."""
        return self.titled()

    def titled(self, reference: Any = None) -> str:
        """Return the title of a report whose classes are compared with `reference`, by default the first."""
        classes = list(map(word, self.columns.classes))
        if reference is not None:
            classes.sort(key=lambda label: label != word(reference))
        return self.kind.describe(self.columns.target, tuple(classes), self.criterion.noise_variance)

    @property
    def fit_name(self) -> str:
        """Name of this fit, in words."""
        if self.criterion.penalty == "firth":
            return "Firth's penalised likelihood"
        if self.kind.is_restricted:
            return "restricted maximum likelihood"
        if self.criterion.inference == "posterior":
            if not self.learns_covariance:
                return "posterior mode (a point without standard errors)"
            return "posterior (Laplace's approximation)" if self.criterion.rule.is_delta else "posterior (variational)"
        known = self._prior_diagonal[~self.held & self.has_error(np.eye(self.layout.dim))]
        is_penalised = known.any() or self.record.status is Status.UNRESOLVED
        return "penalised likelihood (posterior mode)" if is_penalised else "maximum likelihood"

    @property
    def _relations(self) -> list[Dependent]:
        return [found for found in self.findings if isinstance(found, Dependent)]

    @property
    def superfluous(self) -> NDArray[np.bool_]:
        """Mask of a likelihood's coefficients whose columns the columns before them make up."""
        if self.criterion.inference == "posterior" or self.family != "full":
            return np.zeros(self.layout.dim, dtype=bool)
        return self.held | self._named_dependent

    @property
    def _named_dependent(self) -> NDArray[np.bool_]:
        named = np.isin(self.layout.columns(self.columns.names), [found.column for found in self._relations])
        return np.tile(named, self.layout.n_outputs)

    @cached_property
    def held(self) -> NDArray[np.bool_]:
        """Mask of the superfluous coefficients at zero, because no rows determine them beside the others."""
        if self.criterion.inference == "posterior" or self.family != "full" or self.criterion.dependent != "hold":
            return np.zeros(self.layout.dim, dtype=bool)
        information = np.diagonal(self.posterior.precision) - self._prior_diagonal  # where the sites are not known
        if self.sites:
            information = np.sum([np.diagonal(site.factor.precision) for site in self.sites.values()], axis=0)
        found = are_held(self._prior_diagonal, information)
        # a prior on the others too is a strong one
        kept = self._prior_diagonal[~found & ~self.layout.is_intercept]
        return found if kept.size and not kept.any() else found & self._named_dependent

    @cached_property
    def undetermined(self) -> Array:
        """Return those of the `flat` directions, shape (d, k), for which no column is held (minimum norm)."""
        is_shortest = self.criterion.dependent != "hold" or self.record.status is Status.UNRESOLVED
        if self.unidentified.flat is None or not is_shortest:
            return np.zeros((self.layout.dim, 0))
        names = self.layout.columns(self.columns.names)
        stays = [not self.held[names.index(one.column)] for one in self._relations]
        return self.unidentified.flat[:, np.tile(np.array(stays, dtype=bool), self.layout.n_outputs)]

    def has_error(self, L: Array) -> NDArray[np.bool_]:
        """Return for each row of L, shape (q, d), whether a number for Lθ has an error: not by minimum norm alone."""
        return estimable(L, self.undetermined)

    @cached_property
    def pinned(self) -> NDArray[np.bool_]:
        """Mask of coefficients that are fixed for the others' covariance: at zero, or one a receding direction."""
        found = self.held.copy()
        if self._receding.size:  # first those on which there is most information, or that a limit was found at
            size = np.sqrt(np.diagonal(self.posterior.precision))
            order = qr((self._receding * size[:, None]).T, mode="r", pivoting=True)[1]
            found[order[: self._receding.shape[1]]] = True
        return found

    @property
    def _flat(self) -> Array:
        return np.zeros((self.layout.dim, 0)) if self.unidentified.flat is None else self.unidentified.flat

    @property
    def _receding(self) -> Array:
        return np.zeros((self.layout.dim, 0)) if self.unidentified.receding is None else self.unidentified.receding

    @property
    def _unnamed(self) -> NDArray[np.bool_]:
        """Held coefficients of columns that depend on others up to rounding alone."""
        return self.held & ~self._flat.any(axis=1)

    def determines(self, L: Array) -> NDArray[np.bool_]:
        """Return for each row of L, shape (q, d), whether the rows of the sites give Lθ a finite value."""
        return estimable(L, np.column_stack([self._flat, np.eye(self.layout.dim)[:, self._unnamed], self._receding]))

    def shows(self, L: Array) -> NDArray[np.bool_]:
        """Return for each row of L, shape (q, d), whether a table has a number for Lθ, held columns left out.

        R's convention: the coefficient of a dependent column is blank, the others are those of the fit without it.
        """
        seen = np.where(self.held, 0.0, L)
        return np.asarray(seen.any(axis=1) & estimable(seen, self._receding))

    def value(self, L: Array) -> Array:
        """Return Lθ in the model without held columns, shape (q,); NaN where `shows` says no."""
        return np.where(self.shows(L), L @ self.kept, np.nan)

    @property
    def kept(self) -> Array:
        """θ of the model without held columns, shape (d,): zero at their coefficients."""
        mean, held = self.posterior.mean, self.held
        return np.where(held, 0.0, mean - self._flat @ (self._flat[held].T @ mean[held])) if held.any() else mean

    @property
    def infinite(self) -> tuple[str, ...]:
        """Names of the coefficients without a finite estimate."""
        return self._named(~estimable(self.layout.homeward, self._receding))

    def _named(self, mask: NDArray[np.bool_]) -> tuple[str, ...]:
        return tuple(name for name, is_meant in zip(self.coefficient_names, mask, strict=True) if is_meant)

    def require_determined(self, L: Array, argument: str, what: str) -> None:
        """Refuse what the rows leave open, by the dependence or the coefficients that are to blame."""
        if not self.determines(L).all():
            expected = "must be a sum of coefficients that the rows determine"
            raise ArgumentError(argument, expected, f"{what}, not estimable: {self.reason(L)}")

    def reason(self, L: Array) -> str:
        """Return in words why rows of L, shape (q, d), have no value."""
        relations = [one.relation for one in self._relations]
        ways = [self._flat[:, k :: len(relations)] for k in range(len(relations))]
        words = [said for said, way in zip(relations, ways, strict=True) if not estimable(L, way).all()]
        words += [f"{name} is left out" for name in self._named(self._unnamed & (L != 0.0).any(axis=0))]
        if not estimable(L, self._receding).all():
            words.append(f"no finite estimate of {enumerated(self.infinite)}")
        return "; ".join(words)

    @property
    def _prior_diagonal(self) -> Array:
        precision = np.asarray(self.prior.precision)
        return np.broadcast_to(np.diagonal(precision) if precision.ndim == 2 else precision, self.layout.dim)

    # --- Units ------------------------------------------------------------------------------------------------

    def mean(self) -> Array:
        """Return the posterior mean of the user's θ, shape (d,); NaN where the table is blank."""
        change, shift = self.layout.to_user
        return self.value(change) + shift

    def covariance(self) -> Array | None:
        """Return the posterior covariance of the user's θ, shape (d, d), NaN where the table is blank.

        None where the family learns none.
        """
        if not self.learns_covariance:
            return None
        blank = ~self.shows(self.layout.homeward) | self.lacks_noise
        return np.where(blank | blank[:, None], np.nan, self._covariance)

    @cached_property
    def scale(self) -> float:
        """The dispersion that multiplies covariances: Pearson's χ² over n − p of kinds that have one, else 1."""
        whole = self.goodness() if self.kind.has_dispersion else None
        return 1.0 if whole is None or whole.dispersion is None else whole.dispersion

    @property
    def spread(self) -> Array:
        """The posterior covariance of the run's θ, shape (d, d), at fixed coefficients where `pinned` says so."""
        if self.pinned.any():
            return np.asarray(self._half @ self._half.T)
        return self.scale * np.asarray(self.posterior.covariance_matrix)

    @cached_property
    def _half(self) -> Array:
        """H with HHᵀ = `spread`, shape (d, d): the rounding of held coefficients, and infinite ones, are not in it."""
        half, free = np.zeros((self.layout.dim,) * 2), np.flatnonzero(~self.pinned)
        if free.size == self.layout.dim:
            return np.sqrt(self.scale) * self.posterior.factor.colour(np.eye(self.layout.dim))
        half[np.ix_(free, free)] = np.sqrt(self.scale) * solve_triangular(self._root_of(free), np.eye(free.size))
        return half

    def _root_of(self, free: Any) -> Array:
        """R, upper triangular, with RᵀR the precision of some coefficients: least squares never formed it."""
        assert isinstance(self.posterior.factor, DensePrecision)  # of the full family
        return np.asarray(np.linalg.qr(self.posterior.factor.cholesky.T[:, free], mode="r"))

    @cached_property
    def uncentred(self) -> FittedGLM:
        """The same model with the intercept measured where the design columns are zero, without the sites' own fits.

        Precisions still add up.
        """
        layout = self.layout
        if layout.centre is None:
            return self
        there, back, by = layout.outward, layout.homeward, layout.shifts
        q = self.posterior
        sites = {
            name: Site(carry(one.factor, there, -by), one.n_rows, one.n_missing) for name, one in self.sites.items()
        }
        try:
            prior = FullGaussian(back @ self.prior.mean + by, carry(self.prior.natural, there).precision)
            assert isinstance(q.factor, DensePrecision)
            posterior = FullGaussian(back @ q.mean + by, DensePrecision.from_root(q.factor.cholesky.T @ there))
        except ValueError as error:
            raise ValueError(
                "X has a column too large, or too far from zero for its spread: rescale it, or subtract a constant."
            ) from error
        proof, flat, receding = self.record.certificate, self.unidentified.flat, self.unidentified.receding
        return replace(
            self,
            layout=replace(layout, centre=None, shift=0.0),
            prior=prior,
            posterior=posterior,
            sites=sites,
            record=replace(self.record, certificate=proof and replace(proof, distance=self.distance())),
            unidentified=Unidentified(*(None if ways is None else moved(back, ways) for ways in (flat, receding))),
        )

    def distance(self, bound: Distance | None = None) -> Distance | None:
        """Return a bound on the distance to the pooled fit for the user's θ; default from the certificate's own.

        Where intercepts mix other coefficients they are off by no more than these together. A likelihood without a
        maximum has no pooled fit, and no bound, whatever the sums said.
        """
        if not self.has_maximum or self.record.status is Status.UNRESOLVED:
            reason = UNBOUNDED if not self.has_maximum else self.record.status.value
            return Distance.unknown(self.layout.dim, reason)
        if bound is None and self.record.certificate is not None:
            bound = self.record.certificate.distance
        if bound is None or not self.learns_covariance or self.layout.centre is None:
            return bound
        return carry_distance(bound, self.layout.homeward, self._covariance)

    def said_distance(self) -> str | None:
        """Return the bound in words; of a fit that sums cannot certify in the coefficients' own units, if at all."""
        found = self.distance()
        has_units = not self.is_exact or (self.holds and not self.has_noise_of_rounding)
        if found is None or has_units or not np.isfinite(found.sd_units):
            return None if found is None else str(found)
        widest = found.per_coefficient.max()
        if widest > CLOSE * np.nanmax(np.abs(self.mean())):
            return "no bound: sums of squares are too coarse for these columns; the fit itself does not use them"
        return f"every coefficient is within {widest:.1e} of the pooled fit (guaranteed), in its own units"

    @property
    def _covariance(self) -> Array:
        half = self.layout.homeward @ self._half
        return np.asarray(half @ half.T)

    # --- Predictions ------------------------------------------------------------------------------------------

    def design(self, table: Mapping[str, ArrayLike] | Array) -> Array:
        """Return the design matrix of rows in the units of θ, with the intercept's column of ones."""
        return self.layout.design(self.columns.design(table))

    @property
    def averages(self) -> bool:
        """Return whether predictions are averaged over the posterior, not made at its mean or at a point."""
        return self.learns_covariance and self.criterion.inference == "posterior"

    def _predictor_mean(self, design: Array, offset: Array | None) -> Array:
        mean = predictor_mean(self.posterior, design, self.layout.n_outputs)
        known = self._beside(offset, len(design))
        return mean if known is None else mean + known

    def _predictor(self, design: Array, offset: Array | None) -> tuple[Array, Array]:
        mean, n_outputs = self._predictor_mean(design, offset), self.layout.n_outputs
        if not self.pinned.any():
            return mean, self.scale * predictor_spread(self.posterior, design, n_outputs)
        paths = np.einsum("np,cpd->ncd", design, self._half.reshape(n_outputs, self.layout.width, -1))
        spread = np.einsum("ncd,ned->nce", paths, paths)
        return mean, spread[:, 0, 0] if n_outputs == 1 else spread

    def _reach(self, design: Array) -> Reach:
        layout = self.layout
        receding = self._receding.reshape(layout.n_outputs, layout.width, -1)
        flat = self._flat[: layout.width, : self._flat.shape[1] // layout.n_outputs]
        flat = flat[:, :0] if self.undetermined.size else flat  # the minimum norm has a prediction of every row
        has_reference = len(self.columns.classes) > layout.n_outputs
        is_known = not any(isinstance(finding, Undecided) for finding in self.findings)
        about = np.zeros(layout.n_features) if layout.centre is None else layout.centre
        about = np.append(about, [0.0] * layout.has_intercept)
        found = Reach.of(design, about, flat, receding, has_reference if self.columns.classes else None, is_known)
        if self._receding[: self.columns.n_auxiliary].any():  # cutpoints without an end leave every row open
            found = replace(found, is_blank=np.ones(len(design), dtype=bool), is_tied=np.ones(len(design), dtype=bool))
        return found

    def left_open(self, table: Mapping[str, ArrayLike] | Array, blank: NDArray[np.bool_]) -> str:
        """Return in words how many rows are `blank`, shape (n,) or (n, C), and why; empty where none is."""
        rows = blank.reshape(len(blank), -1).any(axis=1)
        if not rows.any():
            return ""
        some = self.design(table)[rows][:LISTED]
        reason = self.reason(np.asarray(np.kron(np.eye(self.layout.n_outputs), some), dtype=np.float64))
        return f"{rows.sum()} of {rows.size} rows are not estimable: {reason}" if reason else ""

    def _beside(self, offset: Array | None, n_rows: int) -> Array | None:
        """The known part of the predictors of rows, in the units of the run."""
        self.layout.require_offset(offset)
        return self.layout.beside(offset, n_rows)

    def probabilities(
        self, table: Mapping[str, ArrayLike] | Array, how: str | None = None, offset: Array | None = None
    ) -> Array:
        """Return class probabilities, shape (n, C); see `averages`.

        Under a separation along one direction they are limits; NaN in rows that the fit does not determine.
        """
        reach = self._reach(self.design(table))
        return np.where(reach.is_blank[:, None], np.nan, self._chances(reach, how, offset))

    def labels(
        self, table: Mapping[str, ArrayLike] | Array, how: str | None = None, offset: Array | None = None
    ) -> NDArray[np.intp]:
        """Return the place of each row's most probable class, −1 where the fit does not determine it.

        Under a separation along several directions, classes are those along the one that was found.
        """
        reach = self._reach(self.design(table))
        return np.where(reach.is_tied, -1, np.argmax(self._chances(reach, how, offset), axis=1))

    def decision(self, table: Mapping[str, ArrayLike] | Array, offset: Array | None = None) -> Array:
        """Return the predictor of two classes, shape (n,), or of each of several, (n, C); NaN where `labels` is −1.

        Under a separation predictors are infinite: of several classes −inf for those that do not lead, and the others'
        are differences to the first that does.
        """
        reach = self._reach(self.design(table))
        mean = self.kind.class_predictors(self._predictor_mean(reach.design, offset))
        if mean.ndim == 1:
            found = np.where(reach.far == 0.0, mean, np.copysign(np.inf, reach.far))
        else:
            first = mean[np.arange(len(mean)), np.argmax(reach.leads, axis=1)] * ~reach.leads.all(axis=1)
            found = np.where(reach.leads, mean - first[:, None], -np.inf)
        return np.where(reach.is_tied.reshape(-1, *[1] * (mean.ndim - 1)), np.nan, found)

    @property
    def auxiliary(self) -> Array:
        """Parameters beside the coefficients, shape (a,)."""
        return np.asarray(self.posterior.mean[: self.columns.n_auxiliary])

    def _chances(self, reach: Reach, how: str | None, offset: Array | None) -> Array:
        if self.kind.outputs == "ordered":
            assert self.kind.probabilities is not None
            return self.kind.probabilities(self._predictor_mean(reach.design, offset), self.auxiliary, None)
        mean, spread = self._predictor(reach.design, offset)
        return self.kind.class_probabilities(mean + reach.far, spread, how if self.averages else "plug-in")

    def expected(self, table: Mapping[str, ArrayLike] | Array, offset: Array | None = None) -> Array:
        """Return the mean of new observations, (n,) or (n, C); variances are computed where they are needed alone.

        Under a separation along one direction it is the limit, where that is finite; NaN as in `probabilities`.
        """
        if self.averages and self.kind.link is not IDENTITY:
            return self.mean_and_sd(table, offset)[0]
        reach = self._reach(self.design(table))
        return self._mean(reach, self._predictor_mean(reach.design, offset))

    def _mean(self, reach: Reach, predictor: Array) -> Array:
        with np.errstate(over="ignore"):
            found = self.kind.link.inverse(predictor + reach.far)
        blank = reach.is_blank if found.ndim == 1 else reach.is_blank[:, None]
        return np.where(blank | ((reach.far != 0.0) & ~np.isfinite(found)), np.nan, found)

    def mean_and_sd(self, table: Mapping[str, ArrayLike] | Array, offset: Array | None = None) -> tuple[Array, Array]:
        """Return mean and standard deviation of new observations, each (n,) or (n, C)."""
        reach = self._reach(self.design(table))
        mean, spread = self._predictor(reach.design, offset)
        variance = spread if spread.ndim == mean.ndim else np.einsum("ncc->nc", spread)
        noise = self.scale * self.criterion.noise_variance
        if self.kind.is_linear_mixed:  # a new row is of a new group
            noise = float(np.exp(2.0 * self.auxiliary[1]) * (1.0 + self.auxiliary[0] ** 2))
        centre, sd = self.kind.mean_and_sd(mean, variance, noise)
        centre = centre if self.averages else self._mean(reach, mean)
        rows = np.pad(reach.design, ((0, 0), (0, self.layout.dim - self.layout.width)))
        has_error = self.has_error(rows).reshape(-1, *[1] * (centre.ndim - 1))
        is_blank = np.isnan(centre) | (reach.far != 0.0) | ~has_error | self.lacks_noise
        return centre, np.where(is_blank, np.nan, sd)

    # --- Checks -----------------------------------------------------------------------------------------------

    def make_loss(
        self,
        table: Mapping[str, ArrayLike] | Array,
        target: ArrayLike,
        weights: Any = None,
        offset: Array | None = None,
    ) -> Loss:
        """Return the loss ℓ_k of rows; `target` holds labels 0 … C − 1, or numbers."""
        if not self.kind.is_classifier:
            target = np.asarray(target)
        outputs, rows = self.layout.n_outputs, self.design(table)
        return self.kind.make_loss(
            rows,
            target,
            weights,
            offset=self._beside(offset, len(rows)),
            n_outputs=outputs,
            noise_variance=self.criterion.noise_variance,
            n_auxiliary=self.columns.n_auxiliary,
        )

    def check(self, losses: Mapping[Any, Loss]) -> Check:
        """Recompute the certificate from the losses of the sites' rows, which answer by sums at the posterior."""
        expected: dict[Any, Any] = {
            name: loss.expect(self.posterior, self.criterion.rule) for name, loss in losses.items()
        }
        if self.kind.is_restricted:  # REML adds a term that is no sum over rows
            pulls = dict(zip(losses, restriction_pulls(losses.values(), float(self.auxiliary[0])), strict=True))
            expected = {
                name: GaussianExpected(
                    self.posterior, own.value, own.gradient + pulls[name], own.curvature, self.criterion.rule
                )
                for name, own in expected.items()
            }
        apart = {
            name: self.posterior.fisher_norm(self.sites[name].factor + item.natural_gradient)
            for name, item in expected.items()
        }
        pooled = PooledObjective(self.prior, self.posterior, tuple(expected.values()))
        distance = pooled.distance
        return Check(pooled.residual, apart, None if distance is None else self.distance(distance))


GROUPS: Mapping[str, Any] = {
    "columns": Columns,
    "criterion": Criterion,
    "unidentified": Unidentified,
    "totals": Totals,
    "record": Record,
}


def model_of(**given: Any) -> FittedGLM:
    """Return the model whose fields, and those of its groups, are given by name; those left out have defaults."""
    for group, kind in GROUPS.items():
        given[group] = kind(**{item.name: given.pop(item.name) for item in fields(kind) if item.name in given})
    return FittedGLM(**{"stated": None, "findings": (), **given})


def arrays_of_members(model: FittedGLM) -> dict[str, Array]:
    """Return prior and posterior of a model as arrays, from which `members` makes them again."""
    prior, posterior = model.prior, model.posterior
    isotropic = isinstance(prior, IsotropicGaussian)
    arrays = {
        "prior/mean": prior.mean,
        "prior/precision": np.array(prior.prior_weight) if isotropic else prior.factor.parts[0],
        "posterior": posterior.natural.to_vector(),
    }
    # a natural parameter keeps a mean to the condition of the precision alone
    kept = np.array_equal(prior.with_natural(posterior.natural).mean, posterior.mean)
    return arrays if kept else {**arrays, "mean": posterior.mean}


def members(
    family: str, mean: Array, precision: Array, natural: Natural, own_mean: Array | None = None
) -> dict[str, Any]:
    """Return prior and posterior of a family by its short name; `own_mean` has the digits that λ has lost."""
    kind: Any = FAMILIES[family]
    prior: Gaussian = kind(mean, precision if precision.ndim else float(precision))
    posterior = prior.with_natural(natural)
    if own_mean is None:
        return {"prior": prior, "posterior": posterior}
    product = posterior.factor.multiply(own_mean)
    size = np.abs(natural.linear).max() + np.abs(product).max()
    is_same = np.isfinite(size) and np.abs(product - natural.linear).max() <= SAME * size
    if not (posterior.learns_precision and is_same):
        raise ValueError("mean must be that of the posterior")
    return {"prior": prior, "posterior": posterior.at(own_mean, posterior.factor.parts)}


def predictor_mean(posterior: Gaussian, design: Array, n_outputs: int) -> Array:
    """Return the mean of each row's predictors, shape (n,) or (n, C)."""
    return np.asarray(design @ (posterior.mean if n_outputs == 1 else posterior.mean.reshape(n_outputs, -1).T))


def predictor_spread(posterior: Gaussian, design: Array, n_outputs: int) -> Array:
    """Return the variance of each row's predictor, shape (n,), or their covariance, shape (n, C, C)."""
    if not posterior.learns_precision:
        return np.zeros((len(design),) if n_outputs == 1 else (len(design), n_outputs, n_outputs))
    if n_outputs == 1:
        return posterior.factor.row_variances(design)
    return posterior.factor.class_covariances(design, n_outputs)
