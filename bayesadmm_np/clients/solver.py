"""What a client solver must answer."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from ..families.base import ExponentialFamily
from ..losses.base import Expected, GaussianExpected, Loss
from ..losses.expectations import Rule
from .problem import ClientStatus, Solution, Subproblem

__all__ = ["Solver"]


class Solver(ABC):
    """Minimises a `Subproblem`; frozen hyper-parameters, no state between calls."""

    def check(self, loss: Loss, prior: ExponentialFamily, rule: Rule) -> None:
        """Raise a ValueError, before round 0, when this solver cannot treat the loss."""
        return None

    @abstractmethod
    def solve(
        self,
        problem: Subproblem,
        start: ExponentialFamily,
        rng: np.random.Generator,
        expected: Expected | GaussianExpected | None = None,
    ) -> Solution:
        """Return the solution found from `start`.

        `rng` is used by stochastic solvers only; `expected` may carry the expectation at `start`, so that it is not
        computed again.
        """

    @staticmethod
    def measured(problem: Subproblem, q: ExponentialFamily, iterations: int, status: ClientStatus) -> Solution:
        """Evaluate the expectation and the residual at q."""
        expected = problem.expect(q)
        residual = q.fisher_norm(q.natural - problem.target(expected.natural_gradient))
        return Solution(q, expected, residual, iterations, status)
