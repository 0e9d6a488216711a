"""The sum of several losses: what a centralised solver would see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from .._errors import ArgumentError
from .._validation import Array
from ..families.base import ExponentialFamily
from ..families.gaussian import Gaussian
from ..families.precision import Precision
from .base import LOSSES, Curvature, Expected, GaussianExpected, Loss
from .expectations import Rule


@LOSSES.register
class Total(Loss):
    """Σ_k ℓ_k(θ) over losses of the same dimension.

    Parameters
    ----------
    losses : sequence of Loss
        ℓ_k, at least one.

    Raises
    ------
    ValueError
        When there is none, or dimensions differ.

    Examples
    --------
    >>> import bayesadmm_np as ba
    >>> halves = [ba.losses.LeastSquares([[1.0]], [1.0]), ba.losses.LeastSquares([[2.0]], [2.0])]
    >>> ba.losses.Total(halves).value([0.0])
    2.5
    """

    def __init__(self, losses: Sequence[Loss]) -> None:
        if not isinstance(losses, Sequence) or not all(isinstance(loss, Loss) for loss in losses):
            raise ArgumentError("clients", "must be a sequence of losses of bayesadmm_np.losses", repr(losses))
        self.losses = tuple(losses)
        if not self.losses:
            raise ArgumentError("clients", "must hold at least one loss", "none")
        dims = {loss.dim for loss in self.losses}
        if len(dims) > 1:
            raise ArgumentError("losses", "must have the same number of parameters", sorted(dims))
        self.dim = dims.pop()
        self.n_rows = sum(loss.n_rows for loss in self.losses)
        self.total_weight = sum(loss.total_weight for loss in self.losses)
        self.is_convex = all(loss.is_convex for loss in self.losses)
        self.is_quadratic = all(loss.is_quadratic for loss in self.losses)
        self.is_linear_in_statistics = all(loss.is_linear_in_statistics for loss in self.losses)

    def value(self, theta: ArrayLike) -> float:
        return sum(loss.value(theta) for loss in self.losses)

    def gradient(self, theta: ArrayLike) -> Array:
        return np.sum([loss.gradient(theta) for loss in self.losses], axis=0)

    def hessian(self, theta: ArrayLike) -> Array:
        return np.sum([loss.hessian(theta) for loss in self.losses], axis=0)

    def check(self, prior: ExponentialFamily, rule: Rule) -> Rule:
        """Check every loss; return the rule that all of them resolve to, or `rule`, which each resolves for itself."""
        resolved = {loss.check(prior, rule) for loss in self.losses}
        return resolved.pop() if len(resolved) == 1 else rule

    def expect(self, q: ExponentialFamily, rule: Rule) -> Expected:
        parts = [loss.expect(q, loss.check(q, rule)) for loss in self.losses]
        gaussian = [part for part in parts if isinstance(part, GaussianExpected)]
        if len(gaussian) < len(parts):
            gradient = q.natural.zeros()
            for part in parts:
                gradient = gradient + part.natural_gradient
            return Expected(sum(part.value for part in parts), gradient)
        assert isinstance(q, Gaussian)
        return GaussianExpected(
            q,
            sum(part.value if not rule.is_delta else part.value_at_mean for part in gaussian),
            np.sum([part.gradient for part in gaussian], axis=0),
            _TotalCurvature(tuple(part.curvature for part in gaussian)),
            rule,
        )


@dataclass(frozen=True)
class _TotalCurvature:
    terms: tuple[Curvature, ...]

    def dense(self) -> Array:
        return np.sum([term.dense() for term in self.terms], axis=0)

    def project(self, factor: Precision) -> tuple[Array, ...]:
        parts = [term.project(factor) for term in self.terms]
        return tuple(np.sum(pieces, axis=0) for pieces in zip(*parts, strict=True))

    def multiply(self, vector: Array) -> Array:
        return np.sum([term.multiply(vector) for term in self.terms], axis=0)
