"""Exponential families: the dual pair (λ, μ), KL, and the geometry behind natural gradients."""

from .base import FAMILIES, ExponentialFamily
from .conjugate import Beta, Dirichlet, Gamma
from .coordinates import Expectation, Natural, pairing
from .gaussian import Gaussian
from .gaussians import BlockDiagonalGaussian, DiagonalGaussian, FixedPrecisionGaussian, FullGaussian, IsotropicGaussian
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
