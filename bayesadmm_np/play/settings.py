"""The settings of the page, and examples of them worth looking at, by the sentence that they illustrate."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """One position of every control of the page."""

    method: str = "BayesADMM"
    family: str = "full"
    rho: float = 1.0
    gamma: float = 1.0
    accelerated: bool = False
    safeguard: bool = False
    rounds: int = 40
    outlier: tuple[float, float] = (-3.0, -1.5)
    skew: float = 0.5


EXAMPLES: dict[str, Settings] = {
    "BayesADMM closes the circuit": Settings(),
    "ADMM: the same loop with points": Settings(method="ADMM", family="isotropic", rho=0.2),
    "One class each": Settings(rho=1.0, skew=1.0),
    "Small ρ: a client has no minimum": Settings(rho=0.7, skew=0.0),
    "… and the safeguard repairs it": Settings(rho=0.7, skew=0.0, safeguard=True),
    "Duals along μ: not a distribution": Settings(method="BregmanADMM"),
    "PVI: few rounds with a full covariance": Settings(method="PVI"),
    "PVI with points: it never settles": Settings(method="PVI", family="isotropic"),
    "… and Anderson mixing repairs it": Settings(method="PVI", family="isotropic", accelerated=True),
    "FedProx: no dual, another answer": Settings(method="FedProx", family="isotropic", skew=1.0),
}
"""The first is where the page starts."""
