"""Full covariance: the Newton-like family."""

from __future__ import annotations

from .base import FAMILIES
from .gaussian import LearnedPrecisionGaussian, read_dense
from .precision import DensePrecision

__all__ = ["FullGaussian"]


@FAMILIES.register
class FullGaussian(LearnedPrecisionGaussian):
    """N(m, S⁻¹) with any positive definite S: Bayesian-ADMM becomes Newton-like (Eq. 46–56).

    λ = (Sm, S), T(θ) = (θ, −½θθᵀ), μ = (m, −½(mmᵀ + S⁻¹)).

    Parameters
    ----------
    mean : array_like, shape (d,)
    precision : float or array_like, shape (d, d)
        S; a number means that number times the identity.

    Raises
    ------
    ValueError
        When a shape does not match, or the precision is not symmetric and positive definite.

    Examples
    --------
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> prior = ba.families.FullGaussian(mean=np.zeros(2), precision=0.2)
    >>> prior.precision
    array([[0.2, 0. ],
           [0. , 0.2]])
    """

    factor: DensePrecision
    structure = DensePrecision
    _read_precision = staticmethod(read_dense)
