"""The Gaussian prior of a fit as it is asked for, the same in all front ends, and as a member of a family."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from .._errors import ArgumentError
from .._numerics import EPS
from .._validation import Array
from ..families import DiagonalGaussian, FullGaussian, IsotropicGaussian
from ..families.gaussian import Gaussian
from ..splitting.methods import Method
from ..splitting.settings import SETTINGS
from .layout import Layout

EVIDENCE: Literal["evidence"] = "evidence"

FLAT = 1e-8
"""Prior precision ε of a posterior's unpenalised intercept, relative to the information I of all rows on it.

Centred at the null model's intercept b, the prior moves the intercept m by ε√I (m − b) standard errors, and a slope by
no more: Σ Λ₀ (b − m) with Λ₀ = εI on the intercept alone and |Σ_0j| <= √(Σ_00 Σ_jj). So that rows without number do
not make this large, ε falls to `FLAT`/√I, but not below `LEAST`, which sums in double precision still resolve.
"""
LEAST = 1e-12

CONSTANT = 64 * EPS
"""Standard deviation relative to the root mean square below which a column is constant."""
ROUNDING = 1e-12
"""Relative difference of units, and mean in standard deviations, that is the rounding of columns once standardised."""

Unit = Literal["unit", "sd"]
WORDS = {"unit": "unit", "sd": "pooled standard deviation"}


@dataclass(frozen=True)
class RunFacts:
    """Facts of a run that its prior depends on.

    For `units` and `origin` see `Prior.units`. `information` and `null` are of the intercepts of the null model; where
    `is_exact` a free intercept has no precision at all.
    """

    layout: Layout
    units: Array
    origin: Array
    is_exact: bool
    has_flat_shift: bool
    information: float = 0.0
    null: Array = field(default_factory=lambda: np.zeros(0))


@SETTINGS.register
@dataclass(frozen=True)
class Prior:
    """A prior as a user states it: N(0, 1/precision) on each coefficient, in the unit named.

    Parameters
    ----------
    precision : float, tuple of float or "evidence"
        0 is no prior; a tuple is the diagonal of an array; the evidence chooses "evidence".
    unit : {'unit', 'sd'}
        Of the coefficients: per unit of a column, or per pooled standard deviation of a column, so that the prior is on
        the coefficients of (x − mean)/sd. Every column of the design counts, those of levels too; a constant one has 1.
    penalize_intercept : bool
        Whether the intercept has the prior too: with "unit" the one where all columns are 0, with "sd" at their means.
    """

    precision: float | tuple[float, ...] | Literal["evidence"] = 0.0
    unit: Unit = "unit"
    penalize_intercept: bool = False

    def at(self, precision: float | Array) -> Prior:
        """Return this prior with the numbers that were used."""
        array = np.asarray(precision, dtype=np.float64)
        diagonal = np.diagonal(array) if array.ndim == 2 else array
        return replace(self, precision=float(array) if not array.ndim else tuple(diagonal.tolist()))

    @property
    def is_flat(self) -> bool:
        """Return whether there is no prior."""
        return self.precision == 0.0

    def words(self, has_intercept: bool) -> str:
        """Return the prior in the words of every head, JSON and report."""
        if self.is_flat:
            return "none"
        values = self.precision if isinstance(self.precision, tuple) else (self.precision,)
        low, high = min(values), max(values)
        said = low if low == EVIDENCE else f"{low:.6g}" if low == high else f"{low:.6g} to {high:.6g}"
        intercept = ", the intercept too" if self.penalize_intercept else ", the intercept free"
        return f"{said} per {WORDS[self.unit]} of each column{intercept if has_intercept else ''}"

    def require(self, row: Method, family: type[Any], has_intercept: bool) -> None:
        """Refuse a prior that a method or its family cannot take."""
        is_free = has_intercept and not self.penalize_intercept
        if is_free and not family.learns_precision:
            expected = f"must be on for {row.name} with {family.__name__}, whose prior is one for all coefficients"
            advice = "switch it on, or take another family, such as 'full'"
            raise ArgumentError("penalize_intercept", expected, "off", advice)
        if is_free and not (row.dual_step > 0 and row.prior_at == "server" and row.max_rounds is None):
            why = "which starts from the prior alone and needs a proper prior of the intercept"
            raise ArgumentError("penalize_intercept", f"must be on for {row.name}, {why}", "off", "switch it on")
        if self.is_flat and not issubclass(family, FullGaussian):
            raise ArgumentError("prior_precision", f"must be > 0 for {row.name} with {family.__name__}", 0)

    def units(self, centre: Array, scale: Array, moments: tuple[Array, Array] | None) -> tuple[Array, Array]:
        """Return `RunFacts.units` and `origin` for columns (x − centre)/scale, with their means and deviations."""
        if self.unit == "unit" or moments is None:
            return 1.0 / scale, -centre / scale
        means, deviations = moments
        return deviations, np.where(np.abs(means) > ROUNDING * deviations, means, 0.0)

    def block(self, precision: float | Array, facts: RunFacts) -> Array:
        """Return the precision of one output in the run's units, (width,) or (width, width); a free intercept has 0."""
        layout = facts.layout
        p, width = layout.n_features, layout.width
        is_penalised = layout.has_intercept and self.penalize_intercept
        given = width if is_penalised else p
        array = np.asarray(precision, dtype=np.float64)
        array = array if array.ndim else np.full(given, array)
        if array.shape != (given,) * array.ndim:
            last = " and the intercept, which comes last" if given > p else ""
            expected = f"must be a number, or have shape ({given},) or ({given}, {given}) for the {p} features{last}"
            raise ArgumentError("prior_precision", expected, array.shape)
        found = np.zeros((width,) * array.ndim)
        found[(slice(0, given),) * array.ndim] = array
        units = np.append(facts.units, np.ones(width - p))
        if not (is_penalised and facts.origin.any()):
            return np.asarray(found * (units**2 if array.ndim == 1 else np.outer(units, units)))
        change = np.diag(units)
        change[-1, :p] = facts.origin
        return np.asarray(change.T @ (np.diag(found) if array.ndim == 1 else found) @ change)

    def member(self, precision: float | Array, family: type[Gaussian], facts: RunFacts) -> Gaussian:
        """Return the prior of a family: of mean zero, but flat (`FLAT`) about the null model for a free intercept."""
        layout, mean, block = facts.layout, np.zeros(facts.layout.dim), self.block(precision, facts)
        is_one = family is IsotropicGaussian
        if np.ndim(precision) and is_one:
            raise ArgumentError("prior_precision", "must be a number for the isotropic family")
        if np.ndim(precision) == 2 and family is DiagonalGaussian:
            raise ArgumentError("prior_precision", "must be a number or a vector for the diagonal family", "a matrix")
        is_diagonal = family is DiagonalGaussian or is_one
        if (is_diagonal and block.ndim == 2) or (is_one and np.ptp(block) > ROUNDING * block.max()):
            expected = f"must be that of the run's columns for {family.__name__}, which holds no other prior"
            other = "'sd'" if self.unit == "unit" else "'unit'"
            raise ArgumentError(
                "prior_unit", expected, repr(self.unit), f"take {other}, or scale the columns otherwise"
            )
        if is_one:
            return IsotropicGaussian(mean, float(block[0]))
        if block.ndim == 1 and family is not FullGaussian:
            whole = np.tile(block, layout.n_outputs)
        else:
            dense = np.diag(block) if block.ndim == 1 else block
            whole = np.asarray(np.kron(np.eye(layout.n_outputs), dense), dtype=np.float64)
        if layout.has_intercept and not self.penalize_intercept and not (facts.is_exact and not facts.has_flat_shift):
            share = max(FLAT / max(1.0, np.sqrt(facts.information)), LEAST)
            whole = _free_intercepts(whole, facts, share)
            mean = np.where(layout.is_intercept, facts.null, 0.0)
        try:
            return family(mean, whole)
        except ValueError as error:
            raise ValueError(f"prior_precision: {error}") from error


def _free_intercepts(whole: Array, facts: RunFacts, share: float) -> Array:
    """Give free intercepts a precision of a share of their information."""
    where = np.flatnonzero(facts.layout.is_intercept)
    flat = share * facts.information
    if not facts.has_flat_shift:
        whole[(where,) * whole.ndim] = flat
        return whole
    if whole.ndim == 1:
        raise ValueError(
            "penalize_intercept=False with three or more classes needs family='full': a common shift of all "
            "intercepts changes nothing, and only a dense prior can hold it without holding the intercepts."
        )
    # a shift common to all classes leaves the likelihood as it is: holding it at zero costs nothing
    mean = np.full((where.size, where.size), 1.0 / where.size)
    whole[np.ix_(where, where)] = flat * (np.eye(where.size) - mean) + facts.information * mean
    return whole


def deviations_of(variances: Array, means: Array) -> Array:
    """Return standard deviations; 1 for a column that is constant to the rounding of its mean."""
    deviations = np.sqrt(np.maximum(variances, 0.0))
    return np.where(deviations > CONSTANT * np.abs(means), deviations, 1.0)
