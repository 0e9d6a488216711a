"""A fixed number of gradient steps: the inexact local work of FedAvg."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .._validation import as_count, as_positive
from ..families.base import ExponentialFamily
from ..families.gaussian import Gaussian
from ..losses.base import Expected, GaussianExpected, Loss
from ..losses.expectations import Rule
from .problem import ClientStatus, Solution, Subproblem
from .solver import SOLVERS, Solver


@SOLVERS.register
@dataclass(frozen=True)
class GradientSteps(Solver):
    """Take `steps` gradient steps on the mean, m ← m − learning_rate · gradient (McMahan et al. 2016).

    The gradient is that of the sum over rows. For fixed-precision families only: with exact solves FedAvg would
    average once and stand still, and its usual behaviour comes from stopping early.

    Parameters
    ----------
    steps : int, default 10
    learning_rate : float, default 0.01

    Raises
    ------
    ValueError
        When a parameter is out of range; before round 0, when the family learns its precision.

    Examples
    --------
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> prior = ba.families.IsotropicGaussian(np.zeros(1), 1.0)
    >>> loss = ba.losses.LeastSquares([[1.0]], [1.0])
    >>> problem = ba.clients.Subproblem(loss, ba.losses.Delta(1), prior, prior.natural.zeros(), rho=1.0)
    >>> steps = ba.clients.GradientSteps(steps=1, learning_rate=0.1)
    >>> steps.solve(problem, prior, np.random.default_rng(0)).posterior.mean
    array([0.1])
    """

    steps: int = 10
    learning_rate: float = 0.01

    def __post_init__(self) -> None:
        as_count(self.steps, "steps")
        as_positive(self.learning_rate, "learning_rate")

    def check(self, loss: Loss, prior: ExponentialFamily, rule: Rule) -> None:
        if not isinstance(prior, Gaussian) or prior.learns_precision:
            raise ValueError(
                f"solver=GradientSteps() moves a mean only; it needs an isotropic or fixed-precision family, "
                f"the prior is {type(prior).__name__}."
            )

    def solve(
        self,
        problem: Subproblem,
        start: ExponentialFamily,
        rng: np.random.Generator,
        expected: Expected | None = None,
    ) -> Solution:
        assert isinstance(start, Gaussian)
        q = start
        for i in range(self.steps):
            with np.errstate(over="ignore", invalid="ignore"):  # a step that overflows is reported below
                expected = problem.expect(q)
                assert isinstance(expected, GaussianExpected)
                mean = q.mean - self.learning_rate * problem.mean_gradient(q, expected)
            if not np.isfinite(mean).all():
                return self.measured(problem, q, i, ClientStatus.NOT_FINITE)
            q = q.with_natural(q.natural_from(q.factor.multiply(mean), ()))
        return self.measured(problem, q, self.steps, ClientStatus.STEPS_DONE)
