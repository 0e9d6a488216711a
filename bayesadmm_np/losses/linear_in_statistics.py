"""Losses linear in the sufficient statistic: the conjugate case of Proposition D.1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .._errors import ArgumentError
from .._validation import Array, as_count
from ..families.base import ExponentialFamily
from ..families.coordinates import Natural, pairing
from ..families.gaussian import Gaussian
from ..families.precision import Precision
from .base import LOSSES, Expected, GaussianExpected, Loss
from .expectations import Delta, Rule


@LOSSES.register
class LinearInStatistics(Loss):
    """ℓ(θ) = −⟨c, T(θ)⟩, so that E_q[ℓ] = −⟨c, μ⟩ and ∇_μ E_q[ℓ] = −c for every q (Prop. D.1).

    The likelihoods conjugate to a family have this form: for a `Gamma` rate, n Poisson counts with sum s have
    c = (s, −n); for a `Beta`, s successes in n trials c = (s, n − s); for a `Dirichlet`, class counts.

    Parameters
    ----------
    coefficients : Natural
        c, in the natural coordinates of the prior's family.
    n_rows : int, default 1
        Number of observations summarised (used only by methods that weigh clients by their rows).

    Raises
    ------
    ValueError
        When the coefficients are not finite.
    TypeError
        When they are not a `Natural`.

    Examples
    --------
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> counts = ba.losses.LinearInStatistics(ba.families.Natural(np.array([3.0, 1.0])), n_rows=4)
    >>> prior = ba.families.Dirichlet([1.0, 1.0])
    >>> counts.expect(prior, ba.losses.Auto()).value
    4.0
    """

    is_convex = False  # what T is, and so what bends, is known to the family alone
    is_linear_in_statistics = True

    def __init__(self, coefficients: Natural, n_rows: int = 1) -> None:
        if type(coefficients) is not Natural:
            raise TypeError(f"coefficients must be a Natural, got {type(coefficients).__name__}.")
        if not coefficients.is_finite():
            raise ArgumentError("coefficients", "must be finite")
        self.coefficients = coefficients
        self.n_rows = as_count(n_rows, "n_rows")
        self.total_weight = float(self.n_rows)
        self.dim = coefficients.linear.shape[0]

    def check(self, prior: ExponentialFamily, rule: Rule) -> Rule:
        """Require coefficients of the prior's shapes; every rule is exact."""
        if prior.natural.shapes != self.coefficients.shapes:
            raise ArgumentError(
                "coefficients",
                f"must have the shapes {prior.natural.shapes} of the natural parameter of {type(prior).__name__}",
                self.coefficients.shapes,
            )
        return rule

    def expect(self, q: ExponentialFamily, rule: Rule) -> Expected:
        """Return −⟨c, μ⟩ and −c; for a Gaussian q the quadratic −vᵀθ + ½θᵀVθ, which can be added to other losses."""
        if not isinstance(q, Gaussian):
            return Expected(-pairing(self.coefficients, q.expectation), -self.coefficients)
        flat = [np.zeros_like(part) for part in q.factor.parts]
        bending = q.factor.like(self.coefficients.parts[1:] if q.learns_precision else flat)
        curvature = _StructuredCurvature(bending)
        product = curvature.multiply(q.mean)
        at_mean = float(q.mean @ (0.5 * product - self.coefficients.linear))
        seen = rule if rule.is_delta else Delta(2)
        return GaussianExpected(q, at_mean, product - self.coefficients.linear, curvature, seen)

    def value(self, theta: ArrayLike) -> Any:
        """Not available, nor are derivatives: T(θ) is known to the family, not to the loss."""
        raise NotImplementedError(
            "LinearInStatistics is known through its expectation −⟨c, μ⟩ only; use expect(q, rule)."
        )

    gradient = hessian = value


@dataclass(frozen=True)
class _StructuredCurvature:
    """A Hessian that has the family's own structure."""

    matrix: Precision

    def dense(self) -> Array:
        return self.multiply(np.eye(self.matrix.dim))

    def project(self, factor: Precision) -> tuple[Array, ...]:
        return self.matrix.parts

    def multiply(self, vector: Array) -> Array:
        return self.matrix.multiply(vector)
