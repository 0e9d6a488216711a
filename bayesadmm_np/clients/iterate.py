"""One evaluation of a client's subproblem: what every solver of it looks at."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .._validation import Array
from ..families.coordinates import Natural
from ..families.gaussian import Gaussian
from ..families.precision import Precision
from ..losses.base import Expected, GaussianExpected
from .problem import ClientStatus, Solution, Subproblem

__all__ = ["Iterate"]


@dataclass(frozen=True)
class Iterate:
    """A member q with everything that one evaluation of the expectations yields."""

    q: Gaussian
    expected: GaussianExpected
    merit: float
    target: Natural
    whitened: Array
    residual: float
    gradient: Array

    @classmethod
    def at(cls, problem: Subproblem, q: Gaussian, expected: Expected | None = None) -> Iterate:
        """Evaluate at q, or take the expectations that are known there."""
        with np.errstate(over="ignore", invalid="ignore"):  # an overflow makes the iterate not finite
            expected = problem.expect(q) if expected is None else expected
            assert isinstance(expected, GaussianExpected)
            target = problem.target(expected.natural_gradient)
            finite = target.is_finite() and np.isfinite(expected.value_at_mean)
            whitened = q.whiten(target - q.natural) if finite else np.full(1, np.inf)
            residual = float(np.sqrt(np.einsum("i,i->", whitened, whitened) / target.size))
            gradient = problem.mean_gradient(q, expected)
            return cls(q, expected, problem.merit(q, expected), target, whitened, residual, gradient)

    @property
    def is_finite(self) -> bool:
        """Whether merit and residual are."""
        return bool(np.isfinite(self.merit)) and bool(np.isfinite(self.residual))

    def release(self, shared: tuple[Precision, ...]) -> None:
        """Free matrices that are not needed while a successor is tried; the next access computes them again."""
        self.expected.release()
        if all(self.q.factor is not factor for factor in shared):
            self.q.factor.release()

    def solution(self, iterations: int, status: ClientStatus) -> Solution:
        """Return it as a solver's answer."""
        return Solution(self.q, self.expected, self.residual, iterations, status)
