"""Full covariance: the Newton-like family."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from .base import FAMILIES
from .gaussian import LearnedPrecisionGaussian, read_dense
from .precision import DensePrecision


@FAMILIES.register
class FullGaussian(LearnedPrecisionGaussian):
    """N(m, S⁻¹) with any positive definite S: Bayesian-ADMM becomes Newton-like (Eq. 46–56).

    λ = (Sm, S), T(θ) = (θ, −½θθᵀ), μ = (m, −½(mmᵀ + S⁻¹)).

    Parameters
    ----------
    mean : array_like, shape (d,)
    precision : float or array_like, shape (d, d)
        S; a number means that number times the identity. A semidefinite S, 0.0 among them, makes a flat (improper)
        prior: the KL to it drops the normaliser, and whatever needs a distribution raises a ValueError.

    Raises
    ------
    ValueError
        When a shape does not match, or the precision is not symmetric and positive semidefinite.

    Examples
    --------
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> prior = ba.families.FullGaussian(mean=np.zeros(2), precision=0.2)
    >>> prior.precision
    array([[0.2, 0. ],
           [0. , 0.2]])
    >>> ba.families.FullGaussian(mean=np.zeros(2), precision=0.0).is_proper
    False
    """

    factor: DensePrecision
    structure = DensePrecision

    @staticmethod
    def _read_precision(value: Any, dim: int, name: str) -> DensePrecision:
        return read_dense(value, dim, name, flat=name == "precision")  # a covariance must have an inverse

    def start(self) -> Self:
        """Return this member, or N(m, I + S) for a flat prior: a run begins at m, with a precision that it replaces."""
        return self if self.is_proper else type(self)(self.mean, self.factor.matrix + np.eye(self.dim))
