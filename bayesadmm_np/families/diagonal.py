"""Diagonal covariance: the Adam-like family."""

from __future__ import annotations

from .base import FAMILIES
from .gaussian import LearnedPrecisionGaussian, read_diagonal
from .precision import DiagonalPrecision


@FAMILIES.register
class DiagonalGaussian(LearnedPrecisionGaussian):
    """N(m, diag(s)⁻¹): Bayesian-ADMM becomes Adam-like (Eq. 59–63, the family of Algorithm 1).

    λ = (s∘m, s), T(θ) = (θ, −½θ²), μ = (m, −½(m² + 1/s)).

    Parameters
    ----------
    mean : array_like, shape (d,)
    precision : float or array_like, shape (d,)
        s, all entries positive.

    Raises
    ------
    ValueError
        When a shape does not match, or a precision is not positive.

    Examples
    --------
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> ba.families.DiagonalGaussian(mean=np.zeros(2), precision=[1.0, 4.0]).covariance
    array([1.  , 0.25])
    """

    factor: DiagonalPrecision
    structure = DiagonalPrecision
    _read_precision = staticmethod(read_diagonal)
