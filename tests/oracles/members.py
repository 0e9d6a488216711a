"""A member of each Gaussian family with entries at random, and dense matrices of their own."""

import numpy as np
import pytest
from scipy.linalg import block_diag

from bayesadmm_np.families import (
    BlockDiagonalGaussian,
    DiagonalGaussian,
    FixedPrecisionGaussian,
    FullGaussian,
    IsotropicGaussian,
)


def spd(rng, d):
    root = rng.standard_normal((d, d + 2))
    return root @ root.T / (d + 2) + 0.3 * np.eye(d)


FAMILIES = {
    "isotropic": lambda rng, d: IsotropicGaussian(rng.standard_normal(d)),
    "fixed diagonal": lambda rng, d: FixedPrecisionGaussian(rng.standard_normal(d), rng.uniform(0.5, 3, d)),
    "fixed dense": lambda rng, d: FixedPrecisionGaussian(rng.standard_normal(d), spd(rng, d)),
    "diagonal": lambda rng, d: DiagonalGaussian(rng.standard_normal(d), rng.uniform(0.5, 3, d)),
    "block": lambda rng, d: BlockDiagonalGaussian(rng.standard_normal(d), [spd(rng, d - 1), spd(rng, 1)]),
    "full": lambda rng, d: FullGaussian(rng.standard_normal(d), spd(rng, d)),
}
every_family = pytest.mark.parametrize("family", FAMILIES)


def as_dense(parts):
    """The matrix whose free entries these are."""
    return np.diag(parts[0]) if parts[0].ndim == 1 else block_diag(*parts)
