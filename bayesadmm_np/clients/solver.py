"""The interface of a client's solver."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from .._registry import Registry
from ..families.base import ExponentialFamily
from ..families.gaussian import Gaussian
from ..losses.base import Expected, Loss
from ..losses.expectations import Rule
from .problem import ClientStatus, Solution, Subproblem


class Solver(ABC):
    """Minimises a `Subproblem`; frozen hyper-parameters, no state between calls."""

    needs_gaussian: ClassVar[bool] = False
    """Whether it needs E_q[∇ℓ] and E_q[∇²ℓ], which every loss has under a Gaussian."""

    def check(self, loss: Loss, prior: ExponentialFamily, rule: Rule) -> None:
        """Raise a ValueError, before round 0, when this solver cannot treat the loss."""
        if self.needs_gaussian and not isinstance(prior, Gaussian):
            raise ValueError(
                f"solver={type(self).__name__}() needs a Gaussian family, the prior is {type(prior).__name__}; "
                "use solver=ClosedForm()."
            )

    @abstractmethod
    def solve(
        self,
        problem: Subproblem,
        start: ExponentialFamily,
        rng: np.random.Generator,
        expected: Expected | None = None,
    ) -> Solution:
        """Return the solution found from `start`.

        `rng` is used by stochastic solvers only; `expected` may carry the expectation at `start`, so that it is not
        computed again.
        """

    @staticmethod
    def measured(problem: Subproblem, q: ExponentialFamily, iterations: int, status: ClientStatus) -> Solution:
        """Evaluate the expectation and the residual at q."""
        with np.errstate(over="ignore", invalid="ignore"):  # an overflow shows in the residual
            expected = problem.expect(q)
            residual = q.fisher_norm(q.natural - problem.target(expected.natural_gradient))
        return Solution(q, expected, residual, iterations, status)


SOLVERS: Registry[type[Solver]] = Registry("solver")
"""Every client solver by the name of its class."""
