"""One fixed precision: the family of preconditioned ADMM."""

from __future__ import annotations

from typing import Any

import numpy as np

from .base import FAMILIES, ExponentialFamily
from .gaussian import FixedPrecisionBase, read_dense, read_diagonal
from .precision import Precision


@FAMILIES.register
class FixedPrecisionGaussian(FixedPrecisionBase):
    """N(m, S⁻¹) with S given and never learned: Bayesian-ADMM becomes preconditioned ADMM (Table 3, row 2).

    λ = Sm, T(θ) = θ, μ = m; KL(q‖q') = ½‖m − m'‖²_S. The prior has the same precision S.

    Parameters
    ----------
    mean : array_like, shape (d,)
    precision : float or array_like, shape (d,) or (d, d)
        S; a number or a vector means a diagonal matrix.

    Raises
    ------
    ValueError
        When a shape does not match, or the precision is not symmetric and positive definite.

    Examples
    --------
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> q = ba.families.FixedPrecisionGaussian(mean=np.array([1.0, -1.0]), precision=[2.0, 4.0])
    >>> q.natural.linear
    array([ 2., -4.])
    """

    factor: Precision

    @staticmethod
    def _read_precision(value: Any, dim: int, name: str) -> Precision:
        return read_dense(value, dim, name) if np.ndim(value) == 2 else read_diagonal(value, dim, name)

    def kl(self, other: ExponentialFamily) -> float:
        """½‖m − m'‖²_S; members with another fixed precision belong to another family."""
        self._require_same_family(other)
        assert isinstance(other, FixedPrecisionGaussian)
        same = self.factor is other.factor or (
            type(self.factor) is type(other.factor) and np.array_equal(self.factor.parts[0], other.factor.parts[0])
        )
        if not same:
            raise TypeError("members of different families: their fixed precisions differ.")
        return self.mean_distance(other)
