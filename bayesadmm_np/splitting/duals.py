"""Rules by which duals move (Eq. 16): along λ, along μ, or by a user's own; and schedules of ρ, γ and α over rounds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

from .._registry import Registry
from .._validation import as_positive
from ..families.base import ExponentialFamily
from ..families.coordinates import Natural

Row = TypeVar("Row", bound=Any)
"""A `Method`, or what has its `rho`, `dual_step` and `alpha`."""


class DualRule(ABC):
    """Rule for the dual η_k from a client's answer; a frozen dataclass without state (example in docs/extending.md).

    With `reads_natural` the rule uses λ_k and λ_g alone, and the server computes every dual itself. With +, − and
    products with numbers alone it works for networks too. Otherwise the client sends its dual with the reply.

    Examples
    --------
    >>> AlongNatural().reads_natural, AlongExpectation().reads_natural
    (True, False)
    """

    reads_natural: ClassVar[bool] = True
    """True where `own` and `served` are λ_k and λ_g; otherwise they are q_k and q_g."""
    is_natural_gradient: ClassVar[bool] = False
    """True where the rule claims Eq. 33: with γ_k = ρ_k, an exact solve leaves η_k = −∇_μ E_{q_k}[ℓ_k]."""

    @abstractmethod
    def __call__(self, site: Any, own: Any, served: Any, step: Any) -> Any:
        """Return η_k after the step γ_k; the same η_k if `own` equals `served`, so that fixed points stay."""


DUAL_RULES: Registry[type[DualRule]] = Registry("dual rule")
"""Every dual rule by the name of its class."""


@DUAL_RULES.register
@dataclass(frozen=True)
class AlongNatural(DualRule):
    """η_k ← η_k + γ_k(λ_k − λ_g): Eq. 16.

    Examples
    --------
    >>> AlongNatural()(1.0, own=3.0, served=2.0, step=0.5)
    1.5
    """

    is_natural_gradient: ClassVar[bool] = True

    def __call__(self, site: Any, own: Any, served: Any, step: Any) -> Any:
        return site + step * (own - served)


@DUAL_RULES.register
@dataclass(frozen=True)
class AlongExpectation(DualRule):
    """η_k ← η_k + γ_k(μ_k − μ_g): Wang & Banerjee's choice, which depends on how T is scaled.

    Parameters
    ----------
    statistic_scale : float, default 2.0
        s in T(θ) = (θ, s·(−½θθᵀ)) up to sign: the second part of the step is multiplied by s².

    Raises
    ------
    ValueError
        When `statistic_scale` is not positive.

    Examples
    --------
    >>> AlongExpectation(statistic_scale=1.0).reads_natural
    False
    """

    statistic_scale: float = 2.0

    reads_natural: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "statistic_scale", as_positive(self.statistic_scale, "statistic_scale"))

    def __call__(self, site: Natural, own: ExponentialFamily, served: ExponentialFamily, step: float) -> Natural:
        """Move along μ: with T₂ scaled by s, a moment is s times ours and acts on our λ s times again."""
        first, *rest = (own.expectation - served.expectation).parts
        return site + step * Natural(first, *(self.statistic_scale**2 * part for part in rest))


class Schedule(ABC):
    """ρ, γ and α of a method in each round; a frozen dataclass without state (example in docs/extending.md).

    Fixed points of a method do not depend on ρ and γ, so that a schedule changes only the path.

    Examples
    --------
    >>> from bayesadmm_np.splitting.methods import PVI
    >>> Geometric(gamma=0.5).row(PVI(), round=3).dual_step
    0.25
    """

    @abstractmethod
    def row(self, method: Row, round: int) -> Row:
        """Return the method of a round, counted from 1: `method` with another `rho`, `dual_step` or `alpha`."""


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
        rho, gamma = self.rho ** (round - 1), self.gamma ** (round - 1)
        return replace(method, rho=method.rho * rho, dual_step=method.dual_step * rho * gamma)
