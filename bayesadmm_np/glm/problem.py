"""A generalised linear model as it is posed to sites: kind, columns, prior and settings, and no row."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any, Literal

from .._validation import Array
from ..design.agreement import Term
from ..families import FullGaussian
from .hypotheses import TestName, TestType
from .kinds import Kind
from .layout import Layout
from .prior import Prior
from .site_statistics import WeightMeaning


@dataclass(frozen=True, eq=False, kw_only=True)
class Problem:
    """A generalised linear model of the rows of several sites; a fit changes `layout`, `prior` and `tol` alone.

    Parameters
    ----------
    kind : Kind
    layout : Layout
        Places in θ, and the map from the user's columns to those of the run.
    names : tuple of str
        Columns of the design.
    sites : tuple
    prior : ExponentialFamily
        In the units of the run, once `stated` has been made a member of its family.
    tol : float
        Fisher length per parameter.
    classes : tuple of str
    stated : Prior, optional
        The prior as given, and `precision` its matrix if it is one.
    is_likelihood : bool
        Whether the fit is a mode, with or without a penalty, and not a posterior.
    penalty : {'firth'}, optional
    weights : {'frequency', 'analytic'}
    is_relative : bool
        Whether the prior precision is multiplied by the noise variance, as scikit-learn's alpha.
    dependent : {'hold', 'minimum_norm'}
        Whether dependent columns of least squares are left out, or the solution has minimum norm.
    terms : tuple of Term
    tests : {'none', 'wald', 'lr', 'score'}
        Tests of the terms, made together with the fit.
    test_type : {'II', 'III'}
    """

    kind: Kind
    layout: Layout
    names: tuple[str, ...]
    sites: tuple[Hashable, ...]
    prior: Any
    tol: float
    classes: tuple[str, ...] = ()
    stated: Prior | None = None
    precision: Any = None
    is_likelihood: bool = True
    penalty: Literal["firth"] | None = None
    weights: WeightMeaning = "frequency"
    is_relative: bool = False
    dependent: Literal["hold", "minimum_norm"] = "hold"
    terms: tuple[Term, ...] = ()
    tests: TestName = "none"
    test_type: TestType = "II"

    @property
    def is_full(self) -> bool:
        """Return whether the family has full covariances, in which the run may move columns and hold coefficients."""
        return type(self.prior) is FullGaussian

    @property
    def is_mode(self) -> bool:
        """Return whether the fit is the mode of a likelihood with a full curvature and no prior but one about zero."""
        return self.is_likelihood and self.is_full and not self.prior.mean.any()

    @property
    def is_flat(self) -> bool:
        """Return whether the likelihood alone determines all coefficients."""
        if self.stated is not None:
            return self.stated.is_flat and self.is_full
        return self.is_full and not self.prior.mean.any() and not self.prior.precision.any()

    @property
    def is_free_intercept(self) -> bool:
        """Return whether there is an intercept that the prior leaves alone."""
        if not self.layout.has_intercept:
            return False
        if self.stated is not None:
            return not self.stated.penalize_intercept
        return self.is_full and not self.prior.precision[self.layout.width - 1].any()

    @property
    def columns(self) -> list[str]:
        """Names of the design's columns, that of the intercept last."""
        return self.layout.columns(self.names)

    @property
    def intercepts(self) -> list[int]:
        """Places of the intercept among the columns."""
        return [self.layout.n_features] if self.layout.has_intercept else []

    @property
    def outputs(self) -> tuple[str, ...]:
        """One name an output: of its class, or y0, y1, …; an empty one where there is a single output."""
        return self.kind.output_names(self.classes, self.layout.n_outputs)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the entries of θ."""
        return self.layout.parameters(self.names, self.outputs)

    def moved(self, centre: Array, shift: float = 0.0) -> Problem:
        """Return the problem with columns measured at `centre`, and offsets at `shift`."""
        return replace(self, layout=replace(self.layout, centre=centre, shift=shift))
