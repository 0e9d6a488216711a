"""The settings of the page."""

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
