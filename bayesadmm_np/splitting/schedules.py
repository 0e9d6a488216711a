"""Schedules of ρ, γ and α over rounds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from .._registry import Registry
from .._validation import as_positive

Row = TypeVar("Row", bound=Any)
"""A `Method`, or what has its `rho`, `dual_step` and `alpha`."""


class Schedule(ABC):
    """What a row's numbers are in each round; a frozen dataclass without state.

    Fixed points of a row do not depend on ρ and γ, so that a schedule changes the way there alone.

    Examples
    --------
    >>> from dataclasses import dataclass, replace
    >>> from bayesadmm_np.splitting.methods import PVI
    >>> @dataclass(frozen=True)
    ... class Whole(Schedule):
    ...     after: int
    ...
    ...     def row(self, method, round):
    ...         return method if round <= self.after else replace(method, dual_step=1.0)
    >>> row = replace(PVI(gamma=0.2), schedule=Whole(after=10))
    >>> row.at(10).dual_step, row.at(11).dual_step
    (0.2, 1.0)
    """

    @abstractmethod
    def row(self, method: Row, round: int) -> Row:
        """Return the row of a round, counted from 1: `method` with another `rho`, `dual_step` or `alpha`."""


SCHEDULES: Registry[type[Schedule]] = Registry("schedule")
"""Every schedule by the name of its class."""


@SCHEDULES.register
@dataclass(frozen=True)
class Geometric(Schedule):
    """ρ_t = ρ r^(t−1) and γ_t = γ g^(t−1); the dual step γρ follows both.

    Parameters
    ----------
    rho : float, default 1.0
        r, > 0.
    gamma : float, default 1.0
        g, > 0.

    Raises
    ------
    ValueError
        When a factor is not positive.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from bayesadmm_np.splitting.methods import BayesADMM
    >>> row = replace(BayesADMM(rho=2.0), schedule=Geometric(rho=0.5))
    >>> [row.at(t).rho for t in (1, 2, 3)]
    [2.0, 1.0, 0.5]
    """

    rho: float = 1.0
    gamma: float = 1.0

    def __post_init__(self) -> None:
        for name in ("rho", "gamma"):
            object.__setattr__(self, name, as_positive(getattr(self, name), name))

    def row(self, method: Row, round: int) -> Row:
        """Return the row of a round."""
        rho, gamma = self.rho ** (round - 1), self.gamma ** (round - 1)
        return replace(method, rho=method.rho * rho, dual_step=method.dual_step * rho * gamma)
