"""A fitted GLM: the one that estimators, commands, model files and runs by files share.

It holds a posterior and sums over the sites, and no rows.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import solve_triangular

from .._text import word
from .._validation import Array
from .._version import __version__
from ..design.agreement import Agreement, design
from ..design.rows import Layout
from ..families import FullGaussian, IsotropicGaussian
from ..families.coordinates import Natural
from ..families.gaussian import Gaussian
from ..families.gaussians import FAMILIES
from ..families.precision import DensePrecision
from ..glm.diagnosis import Finding, without_estimate
from ..glm.inference import FitStatistics, GoodnessOfFit, goodness_of_fit
from ..glm.kinds import IDENTITY, Kind
from ..glm.prior import Prior
from ..glm.problem import are_held, carry, carry_distance
from ..losses.base import Loss
from ..losses.expectations import Rule
from ..splitting.certificate import Certificate, PooledObjective
from ..splitting.distance import Distance
from ..splitting.methods import Newton
from ..splitting.status import Status

STACKED_QR = replace(Newton(), name="stacked QR")
"""The row of Newton, whose one step on a quadratic this is, by factors in place of sums."""

SAME = 1e-6
"""Relative, of a precision times a mean, and the linear part that stands for it: far above rounding."""

UNBOUNDED = "the likelihood has no maximum, or none that is proven"
"""Why no distance to the pooled fit is known."""

ROUNDING = 64 * float(np.finfo(np.float64).eps)
"""Root of the residual over the null deviance up to which residuals are rounding: a few dozen operations a row."""

CLOSE = 1e-6
"""Bound on a coefficient, relative to the largest, from which on it says nothing."""

DETERMINED = 1.0 - 1e-8
"""Share of the prior in the information on some direction from which on rounding alone may be the rows'."""
Units = Literal["original", "standardized"]
UNITS: tuple[Units, ...] = ("original", "standardized")


@dataclass(frozen=True, eq=False)
class Columns:
    """How the columns of a table become the columns of a design matrix, which are centred and scaled.

    `names` are those of the p design columns, `centre` and `scale` have shape (p,), and `agreement` is what a formula
    makes of a table, None where the table's own columns are those of the design.
    """

    names: tuple[str, ...]
    centre: Array
    scale: Array
    agreement: Agreement | None = None

    @classmethod
    def plain(cls, names: Sequence[str]) -> Self:
        """Return numeric columns that are left alone."""
        return cls(tuple(names), np.zeros(len(names)), np.ones(len(names)))

    @property
    def are_left_alone(self) -> bool:
        """Whether nothing is centred or scaled."""
        return not self.centre.any() and bool((self.scale == 1.0).all())

    def design(self, table: Any) -> Array:
        """Return the design columns (n, p) of a table, or of an array with these columns."""
        if isinstance(table, np.ndarray):
            raw = table
        elif self.agreement is not None:
            raw = design(table, self.agreement, for_prediction=True).matrix
        else:
            raw = np.column_stack([np.asarray(table[name], dtype=np.float64) for name in self.names])
        return raw if self.are_left_alone else (raw - self.centre) / self.scale


@dataclass(frozen=True)
class Site:
    """What a site contributed: its factor exp⟨η_k, T(θ)⟩, its number of rows, and of those left out as incomplete."""

    factor: Natural
    n_rows: int
    n_missing: int = 0


@dataclass(frozen=True)
class Check:
    """A certificate computed again: ‖wλ_g − η_0 + Σ_k ∇_μ E_{q_g}[ℓ_k]‖ and, by site, ‖η_k + ∇_μ E_{q_g}[ℓ_k]‖."""

    pooled: float
    apart: Mapping[Hashable, float]
    distance: Distance | None


@dataclass(frozen=True, eq=False)
class FittedGLM:
    """A fitted generalised linear model with its posterior and its sites' factors.

    θ stacks, output by output, the coefficients of the p design columns and then, where there is one, the intercept.
    It is in the units of the run: of `columns`, and with the intercept measured at `layout.centre`.

    Attributes
    ----------
    kind : Kind
    target : str
        Name of a column.
    columns : Columns
    layout : Layout
        Places of coefficients and intercept in θ.
    classes : tuple
        Classes in the order of the labels; empty for regressions.
    prior, posterior : Gaussian
    sites : dict of Site
        Sites by name.
    rule : Rule
        The expectation rule that the posterior is optimal under.
    method : str
    status : Status
    message : str
    certificate : Certificate or None
        Certificate in the units of the run; None where a site's sums were missing at the end.
    rounds : int
        Number of rounds; of all runs together where the evidence chose a number.
    objective : ndarray, shape (n,)
        After each round of the last run; a sum over rows.
    floats : int
        Numbers sent by all parties together in the last run.
    noise_variance : float
        1 for kinds without one.
    inference : {'likelihood', 'posterior'}
        Whether `posterior` is N(mode, curvature⁻¹), whose covariance holds the model standard errors and whose mode
        alone predicts, or the variational posterior, over which predictions are averaged.
    penalty : {None, 'firth'}
        Penalty of the likelihood beside the prior's.
    target_centre, target_scale : float
        Centre and scale of the measurements: θ and the noise variance are in units of `target_scale`.
    client : str or None
        Name of the column of sites; None where each file was a site.
    offset, exposure : str or None
        Names of the columns of the known part of the predictor; None where there are none.
    reduced : dict of str to float
        Pooled loss of the fit without each term, at a noise variance of 1, where it was asked for.
    statistics : FitStatistics or None
        Totals over the sites for deviance, criteria, tests and robust covariances; None in models that were fitted
        without them.
    log_likelihood, elbo : float or None
        Log-likelihood at the mean and bound on the log evidence, all constants kept; None where not computed, and where
        the likelihood has no maximum.
    findings : tuple of Finding
        What is wrong with the data.
    shown : str
        Covariance of the table that the fit printed, which is that of the model file's table.
    stated : Prior or None
        The prior as it was asked for, with the numbers that were used; None of a run whose prior was made in Python.
    version : str
        Version of the library that fitted it.
    """

    kind: Kind
    target: str
    columns: Columns
    layout: Layout
    classes: tuple[Any, ...]
    prior: Gaussian
    posterior: Gaussian
    sites: Mapping[Any, Site]
    rule: Rule
    method: str
    status: Status
    message: str
    certificate: Certificate | None
    rounds: int
    objective: Array
    floats: int
    noise_variance: float = 1.0
    penalty: Literal["firth"] | None = None
    inference: Literal["likelihood", "posterior"] = "posterior"
    target_centre: float = 0.0
    target_scale: float = 1.0
    client: str | None = None
    offset: str | None = None
    exposure: str | None = None
    statistics: FitStatistics | None = None
    reduced: Mapping[str, float] = field(default_factory=dict)
    log_likelihood: float | None = None
    elbo: float | None = None
    findings: tuple[Finding, ...] = ()
    shown: str = "model"
    stated: Prior | None = None
    version: str = __version__

    # ------------------------------------------------------------------------------------------------
    # Names
    # ------------------------------------------------------------------------------------------------

    @property
    def family(self) -> str:
        """The family's short name."""
        return next(name for name, family in FAMILIES.items() if type(self.prior) is family)

    @property
    def learns_covariance(self) -> bool:
        """Whether there are standard errors."""
        return self.posterior.learns_precision

    @property
    def output_names(self) -> tuple[str, ...]:
        """One name an output: of its class, or y0, y1, …; an empty one where there is a single output."""
        return self.kind.output_names(tuple(map(word, self.classes)), self.layout.n_outputs)

    @property
    def coefficient_names(self) -> tuple[str, ...]:
        """Names of the entries of θ; with several outputs `output: column`."""
        return self.layout.parameters(self.columns.names, self.output_names)

    @property
    def pull(self) -> Array:
        """By how many standard errors of the rows alone the prior moved each coefficient: H⁻¹S_0(m_0 − m)/√diag H⁻¹.

        H = S − S_0 is the information of the rows. That is the whole way for least squares, and elsewhere what a Newton
        step without the prior undoes. NaN where the rows do not determine all coefficients.
        """
        free = np.flatnonzero(~self.held)
        q, prior, block = self.posterior, self.prior.precision, np.ix_(free, free)
        assert isinstance(q.factor, DensePrecision)  # of the full family
        root = np.asarray(
            np.linalg.qr(q.factor.cholesky.T[:, free], mode="r")
        ).T  # least squares never formed S, but its factor
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
        """Whether no finding, and no end of the rounds, says that the likelihood may have no maximum."""
        return self.status is not Status.NO_MAXIMUM and not without_estimate(self.findings)

    @property
    def holds(self) -> bool:
        """Whether the pooled stationarity residual was below tol at the fit, of a likelihood that has a maximum."""
        return self.certificate is not None and self.certificate.holds and self.has_maximum

    @property
    def is_at_maximum(self) -> bool:
        """Whether it is a maximum of the likelihood, which criteria, R² and the test of all coefficients suppose."""
        return self.fit_name == "maximum likelihood" and (self.holds or self.is_exact)

    def goodness(self, loss: float | None = None, n_dropped: int = 0) -> GoodnessOfFit | None:
        """Return what is known of the fit as a whole, in the units of the target; None in models without statistics.

        `loss` and `n_dropped` are for the same model without some coefficients: the pooled loss of its own fit, at a
        noise variance of 1, and how many coefficients are gone.
        """
        found, layout = self.statistics, self.layout
        if found is None:
            return None
        # a shift common to all classes leaves every probability as it is
        free = layout.n_outputs - self.kind.has_flat_shift
        return goodness_of_fit(
            self.kind,
            found.total if loss is None else replace(found.total, loss=loss),
            free * layout.width - n_dropped - int(self.held.sum()),
            free * layout.has_intercept,
            n_outputs=layout.n_outputs,
            noise=found.noise,
            noise_variance=self.noise_variance,
            target_scale=self.target_scale,
            weights=found.weights,
            has_null=found.has_null,
        )

    @cached_property
    def has_noise_of_rounding(self) -> bool:
        """Whether residuals of least squares are the rounding of y, from which no noise variance can be told."""
        whole = self.goodness() if self.statistics is not None and self.statistics.noise == "estimated" else None
        return whole is not None and whole.deviance <= ROUNDING**2 * (whole.null_deviance or 0.0)

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
        proof = self.certificate
        pooled = proof.pooled if proof is not None and self.has_maximum else float("inf")
        return proof and replace(proof, pooled=pooled, distance=self.distance())

    @property
    def is_exact(self) -> bool:
        """Whether triangular factors of the rows gave the fit, which sums may be too coarse to certify."""
        return self.method == STACKED_QR.name

    @property
    def title(self) -> str:
        """Stands above a report."""
        return self.titled()

    def titled(self, reference: Any = None) -> str:
        """Return the title of a report whose classes are compared with `reference`, by default the first."""
        classes = list(map(word, self.classes))
        if reference is not None:
            classes.sort(key=lambda label: label != word(reference))
        return self.kind.describe(self.target, tuple(classes), self.noise_variance * self.target_scale**2)

    @property
    def fit_name(self) -> str:
        """Which fit this is, in words."""
        if self.penalty == "firth":
            return "Firth's penalised likelihood"
        if self.inference == "posterior":
            if not self.learns_covariance:
                return "posterior mode (a point without standard errors)"
            return "posterior (Laplace's approximation)" if self.rule.is_delta else "posterior (variational)"
        known = self._prior_diagonal[~self.held]
        return "penalised likelihood (posterior mode)" if known.any() else "maximum likelihood"

    @cached_property
    def held(self) -> NDArray[np.bool_]:
        """Which coefficients of a likelihood are held at zero, because no rows determine them beside the others."""
        if self.inference == "posterior" or self.family != "full":
            return np.zeros(self.layout.dim, dtype=bool)
        information = np.diagonal(self.posterior.precision) - self._prior_diagonal  # where the sites are not known
        if self.sites:
            information = np.sum([np.diagonal(site.factor.precision) for site in self.sites.values()], axis=0)
        return are_held(self._prior_diagonal, information)

    def unknown(self, change: Array) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return which entries of change @ θ are of held coefficients alone, and which mix one without an estimate.

        Of the first rounding is all that there is. Of the second the standard error is the rounding of infinite ones.
        """
        lost = np.isin(self.coefficient_names, list(without_estimate(self.findings)))
        held = ~change[:, ~self.held].any(axis=1)
        return np.asarray(held), np.asarray((change[:, lost] != 0.0).any(axis=1))

    @property
    def _prior_diagonal(self) -> Array:
        precision = np.asarray(self.prior.precision)
        return np.broadcast_to(np.diagonal(precision) if precision.ndim == 2 else precision, self.layout.dim)

    # ------------------------------------------------------------------------------------------------
    # Units
    # ------------------------------------------------------------------------------------------------

    def in_units(self, units: Units) -> tuple[Array, Array]:
        """Return the matrix A and the vector b of θ in other units = Aθ + b.

        "standardized" are the units of `columns`, "original" those of the columns themselves. In both the intercept is
        the predictor where every column is zero.
        """
        layout, columns = self.layout, self.columns
        home = np.eye(layout.dim) if layout.centre is None else layout.move(-layout.centre)
        if units == "standardized":
            return home, layout.shifts
        block, shift = np.diag(np.append(1.0 / columns.scale, [1.0] * layout.has_intercept)), np.zeros(layout.width)
        if layout.has_intercept:
            block[-1, : layout.n_features] = -columns.centre / columns.scale
            shift[-1] = self.target_centre
        change = self.target_scale * np.kron(np.eye(layout.n_outputs), block)
        shift = np.tile(shift, layout.n_outputs) + change @ layout.shifts
        return np.asarray(change @ home, dtype=np.float64), shift

    def mean(self, units: Units = "original") -> Array:
        """Return the posterior mean of θ in these units, shape (d,)."""
        change, shift = self.in_units(units)
        return change @ self.posterior.mean + shift

    def covariance(self, units: Units = "original") -> Array | None:
        """Return the posterior covariance of θ in these units, shape (d, d); None where the family learns none."""
        if not self.learns_covariance:
            return None
        change, _ = self.in_units(units)
        root = self.posterior.factor.colour(np.eye(self.layout.dim))
        root[self.held] = 0.0  # of a held coefficient rounding is all that there is
        half = change @ root
        return np.asarray(half @ half.T)

    @property
    def spread(self) -> Array:
        """The posterior covariance of the run's θ, shape (d, d), with zeros where a coefficient is held."""
        free = ~self.held
        return np.asarray(self.posterior.covariance_matrix * np.outer(free, free))

    @cached_property
    def uncentred(self) -> FittedGLM:
        """The same model with the intercept measured where the design columns are zero: precisions still add up."""
        layout = self.layout
        if layout.centre is None:
            return self
        there, back, by = layout.move(layout.centre), layout.move(-layout.centre), layout.shifts
        q = self.posterior
        sites = {name: replace(site, factor=carry(site.factor, there, -by)) for name, site in self.sites.items()}
        try:
            prior = FullGaussian(back @ self.prior.mean + by, carry(self.prior.natural, there).precision)
            assert isinstance(q.factor, DensePrecision)
            posterior = FullGaussian(back @ q.mean + by, DensePrecision.from_root(q.factor.cholesky.T @ there))
        except ValueError as error:
            raise ValueError(
                "X has a column too large, or too far from zero for its spread: rescale it, or subtract a constant."
            ) from error
        proof = self.certificate
        return replace(
            self,
            layout=replace(layout, centre=None, shift=0.0),
            prior=prior,
            posterior=posterior,
            sites=sites,
            certificate=proof and replace(proof, distance=self.distance("standardized")),
        )

    def distance(self, units: Units = "original", bound: Distance | None = None) -> Distance | None:
        """Return a bound on the distance to the pooled fit for θ in these units; default the certificate's own.

        Where intercepts mix other coefficients they are off by no more than these together. A likelihood without a
        maximum has no pooled fit, and no bound, whatever the sums said.
        """
        if not self.has_maximum:
            return Distance.unknown(self.layout.dim, UNBOUNDED)
        if bound is None and self.certificate is not None:
            bound = self.certificate.distance
        layout = self.layout
        if bound is None or not self.learns_covariance:
            return bound
        if layout.centre is not None:
            bound = carry_distance(bound, layout.move(-layout.centre), self._covariance("standardized"))
        if units == "standardized":
            return bound
        change, _ = replace(self, layout=replace(layout, centre=None)).in_units("original")
        return carry_distance(bound, change, self._covariance("original"))

    def widest_distance(self, bound: Distance | None = None) -> Distance | None:
        """Return the larger of the bounds in both units."""
        bounds = [found for units in UNITS if (found := self.distance(units, bound)) is not None]
        return max(bounds, key=lambda found: found.sd_units, default=None)

    def said_distance(self) -> str | None:
        """Return the bound in words; of a fit that sums cannot certify in the coefficients' own units, if at all."""
        found, own = self.widest_distance(), self.distance()
        if found is None or own is None or not self.is_exact or self.holds or not np.isfinite(own.sd_units):
            return None if found is None else str(found)
        widest = own.per_coefficient.max()
        if widest > CLOSE * np.abs(self.mean()).max():
            return "no bound: sums in doubles give none for these columns, and triangular factors need no sums"
        return f"every coefficient is within {widest:.1e} of the pooled fit (guaranteed), in its own units"

    def _covariance(self, units: Units) -> Array:
        found = self.covariance(units)
        assert found is not None
        return found

    # ------------------------------------------------------------------------------------------------
    # Predictions
    # ------------------------------------------------------------------------------------------------

    def design(self, table: Mapping[str, ArrayLike] | Array) -> Array:
        """Return the design matrix of rows in the units of θ, with the intercept's column of ones."""
        return self.layout.design(self.columns.design(table))

    @property
    def averages(self) -> bool:
        """Whether predictions are averaged over the posterior; a likelihood and a point method plug their point in."""
        return self.learns_covariance and self.inference == "posterior"

    def predictor(self, table: Mapping[str, ArrayLike] | Array, offset: Array | None = None) -> tuple[Array, Array]:
        """Return posterior mean and (co)variance of the predictors of rows: (n,) twice, or (n, C) and (n, C, C)."""
        design = self.design(table)
        mean, spread = predictor(self.posterior, design, self.layout.n_outputs)
        known = self._beside(offset, len(design))
        return mean if known is None else mean + known, spread

    def predictor_mean(self, table: Mapping[str, ArrayLike] | Array, offset: Array | None = None) -> Array:
        """Return the posterior mean of the predictors of rows, shape (n,) or (n, C)."""
        design = self.design(table)
        mean = predictor_mean(self.posterior, design, self.layout.n_outputs)
        known = self._beside(offset, len(design))
        return mean if known is None else mean + known

    def _beside(self, offset: Array | None, n_rows: int) -> Array | None:
        """The known part of the predictors of rows, in the units of the run."""
        self.layout.require_offset(offset)
        return self.layout.beside(None if offset is None else offset / self.target_scale, n_rows)

    def probabilities(
        self, table: Mapping[str, ArrayLike] | Array, how: str | None = None, offset: Array | None = None
    ) -> Array:
        """Return class probabilities, shape (n, C); see `averages`."""
        return self.kind.class_probabilities(*self.predictor(table, offset), how if self.averages else "plug-in")

    def expected(self, table: Mapping[str, ArrayLike] | Array, offset: Array | None = None) -> Array:
        """Return the mean of new observations, (n,) or (n, C); variances are computed where they are needed alone."""
        if self.averages and self.kind.link is not IDENTITY:
            return self.mean_and_sd(table, offset)[0]
        centre = self.kind.link.inverse(self.predictor_mean(table, offset))
        return self.target_centre + self.target_scale * centre

    def mean_and_sd(self, table: Mapping[str, ArrayLike] | Array, offset: Array | None = None) -> tuple[Array, Array]:
        """Return mean and standard deviation of new observations, each (n,) or (n, C)."""
        mean, spread = self.predictor(table, offset)
        variance = spread if spread.ndim == mean.ndim else np.einsum("ncc->nc", spread)
        centre, sd = self.kind.mean_and_sd(mean, variance, self.noise_variance)
        if not self.averages:
            centre = self.kind.link.inverse(mean)
        return self.target_centre + self.target_scale * centre, self.target_scale * sd

    # ------------------------------------------------------------------------------------------------
    # Checks
    # ------------------------------------------------------------------------------------------------

    def make_loss(
        self,
        table: Mapping[str, ArrayLike] | Array,
        target: ArrayLike,
        weights: Any = None,
        offset: Array | None = None,
    ) -> Loss:
        """Return the loss ℓ_k of rows; `target` holds labels 0 … C − 1, or numbers."""
        if not self.kind.is_classifier:
            target = (np.asarray(target) - self.target_centre) / self.target_scale
        outputs, rows = self.layout.n_outputs, self.design(table)
        return self.kind.make_loss(
            rows,
            target,
            weights,
            offset=self._beside(offset, len(rows)),
            n_outputs=outputs,
            noise_variance=self.noise_variance,
        )

    def check(self, losses: Mapping[Any, Loss]) -> Check:
        """Recompute the certificate from the losses of the sites' rows, which answer by sums at the posterior."""
        expected = {name: loss.expect(self.posterior, self.rule) for name, loss in losses.items()}
        apart = {
            name: self.posterior.fisher_norm(self.sites[name].factor + item.natural_gradient)
            for name, item in expected.items()
        }
        pooled = PooledObjective(self.prior, self.posterior, tuple(expected.values()))
        distance = pooled.distance
        return Check(pooled.residual, apart, None if distance is None else self.widest_distance(distance))


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
    if not (posterior.learns_precision and np.abs(product - natural.linear).max() <= SAME * size):
        raise ValueError("mean must be that of the posterior")
    return {"prior": prior, "posterior": posterior.at(own_mean, posterior.factor.parts)}


def predictor(posterior: Gaussian, design: Array, n_outputs: int) -> tuple[Array, Array]:
    """Return mean and (co)variance of each row's predictors; a point method knows no variance."""
    mean = predictor_mean(posterior, design, n_outputs)
    if not posterior.learns_precision:
        return mean, np.zeros(mean.shape if n_outputs == 1 else (*mean.shape, n_outputs))
    if n_outputs == 1:
        return mean, posterior.factor.row_variances(design)
    return mean, posterior.factor.class_covariances(design, n_outputs)


def predictor_mean(posterior: Gaussian, design: Array, n_outputs: int) -> Array:
    """Return the mean of each row's predictors, shape (n,) or (n, C)."""
    return np.asarray(design @ (posterior.mean if n_outputs == 1 else posterior.mean.reshape(n_outputs, -1).T))
