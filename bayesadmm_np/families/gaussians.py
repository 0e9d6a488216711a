"""The Gaussian families of posteriors, by the short names of estimators and commands."""

from __future__ import annotations

from .diagonal import DiagonalGaussian
from .fixed import FixedPrecisionGaussian
from .full import FullGaussian
from .gaussian import Gaussian
from .isotropic import IsotropicGaussian

FAMILIES: dict[str, type[Gaussian]] = {
    "full": FullGaussian,
    "diagonal": DiagonalGaussian,
    "fixed": FixedPrecisionGaussian,
    "isotropic": IsotropicGaussian,
}
"""Families by their short names."""
