"""Exponential families: the dual pair (λ, μ), KL, and the geometry behind natural gradients."""

from .base import FAMILIES, ExponentialFamily
from .beta import Beta
from .block import BlockDiagonalGaussian
from .coordinates import Expectation, Natural, pairing
from .diagonal import DiagonalGaussian
from .dirichlet import Dirichlet
from .fixed import FixedPrecisionGaussian
from .full import FullGaussian
from .gamma import Gamma
from .gaussian import Gaussian
from .isotropic import IsotropicGaussian
from .precision import NotPositiveDefiniteError

__all__ = [
    "FAMILIES",
    "Beta",
    "BlockDiagonalGaussian",
    "DiagonalGaussian",
    "Dirichlet",
    "Expectation",
    "ExponentialFamily",
    "FixedPrecisionGaussian",
    "FullGaussian",
    "Gamma",
    "Gaussian",
    "IsotropicGaussian",
    "Natural",
    "NotPositiveDefiniteError",
    "pairing",
]
