"""Diagonal covariance: the Adam-like family."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import ArrayLike

from .._validation import Array, as_float_array
from .base import FAMILIES
from .gaussian import LearnedPrecisionGaussian, read_diagonal
from .precision import DiagonalPrecision

__all__ = ["DiagonalGaussian"]


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

    def __init__(self, mean: ArrayLike, precision: Any) -> None:
        centre = as_float_array(mean, "mean", ndim=1)
        self._set(centre.copy(), self._read_precision(precision, centre.shape[0]))

    @classmethod
    def _read_precision(cls, value: Any, dim: int, name: str = "precision") -> DiagonalPrecision:
        return read_diagonal(value, dim, name)

    @classmethod
    def _factor_from(cls, parts: Sequence[Array]) -> DiagonalPrecision:
        return DiagonalPrecision(parts[0])
