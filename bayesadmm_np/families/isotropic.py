"""Unit covariance: the family of classic ADMM."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from .._validation import Array, as_positive
from .base import FAMILIES, ExponentialFamily
from .coordinates import Natural
from .gaussian import FixedPrecisionBase, Gaussian
from .precision import DiagonalPrecision, Precision


@FAMILIES.register
class IsotropicGaussian(FixedPrecisionBase):
    """The family {N(m, I)}: λ = μ = m, KL = ½‖m − m'‖², and Bayesian-ADMM with the delta method is ADMM (Eq. 21–22).

    As a prior, `precision` δ gives the regulariser ℓ₀ = ½δ‖θ − mean‖². N(mean, I/δ) lies outside the family unless
    δ = 1, so its natural parameter is η₀ = δ·mean and KL(q‖π₀) = δ·KL(q‖N(mean, I)) + const: `prior_weight` is δ.
    Members made during a run have unit covariance.

    Parameters
    ----------
    mean : array_like, shape (d,)
    precision : float, default 1.0
        δ.

    Raises
    ------
    ValueError
        When `precision` is not a positive number.

    Examples
    --------
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> prior = ba.families.IsotropicGaussian(mean=np.ones(2), precision=0.2)
    >>> prior.natural.linear, prior.start().natural.linear
    (array([0.2, 0.2]), array([1., 1.]))
    """

    factor: DiagonalPrecision

    def __init__(self, mean: ArrayLike, precision: Any = 1.0) -> None:
        super().__init__(mean, precision)

    @staticmethod
    def _read_precision(value: Any, dim: int, name: str) -> DiagonalPrecision:
        return DiagonalPrecision(np.full(dim, as_positive(value, name)))

    def _set(self, mean: Array, factor: Precision) -> None:
        super()._set(mean, factor)
        self.prior_weight = float(factor.parts[0][0])

    def _with_mean(self, mean: Array) -> Self:
        member = super()._with_mean(mean)
        if self.prior_weight != 1.0:  # the prior's alone
            member._set(mean, DiagonalPrecision(np.ones(self.dim)))
        return member

    def with_natural(self, natural: Natural) -> Self:
        self._require(natural, Natural)
        return self._with_mean(np.array(natural.linear))

    def start(self) -> Self:
        return self._with_mean(np.array(self.mean))

    def kl(self, other: ExponentialFamily) -> float:
        """KL between Gaussians of scalar precision: ½‖m − m'‖² within the family."""
        self._require_same_family(other)
        assert isinstance(other, Gaussian)
        ratio = float(other.factor.parts[0][0] / self.factor.parts[0][0])
        return 0.5 * self.dim * (ratio - 1.0 - np.log(ratio)) + self.mean_distance(other)
