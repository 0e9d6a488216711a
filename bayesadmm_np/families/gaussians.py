"""The five Gaussian families, which differ in the structure of the precision and in whether it is learned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from .._errors import ArgumentError
from .._validation import Array, as_count, as_float_array, as_positive
from . import base
from .base import ExponentialFamily
from .coordinates import Natural
from .gaussian import FixedPrecisionBase, Gaussian, LearnedPrecisionGaussian, read_dense, read_diagonal
from .precision import BlockPrecision, DensePrecision, DiagonalPrecision, Precision


@base.FAMILIES.register
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


@base.FAMILIES.register
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


@base.FAMILIES.register
class BlockDiagonalGaussian(LearnedPrecisionGaussian):
    """N(m, S⁻¹) with S block-diagonal: full within a block, independent between blocks.

    λ = (Sm, S₁, …, S_B) and T(θ) = (θ, −½θ₁θ₁ᵀ, …, −½θ_Bθ_Bᵀ).

    Parameters
    ----------
    mean : array_like, shape (d,)
    precision : float or sequence of array_like
        One symmetric positive definite matrix a block; with a number, `blocks` gives the sizes.
    blocks : sequence of int, optional
        Sizes of the blocks, which add up to d. Needed only when `precision` is a number.

    Raises
    ------
    ValueError
        When sizes do not add up, or a block is not symmetric and positive definite.

    Examples
    --------
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> q = ba.families.BlockDiagonalGaussian(mean=np.zeros(3), precision=2.0, blocks=[2, 1])
    >>> [block.shape for block in q.precision]
    [(2, 2), (1, 1)]
    """

    factor: BlockPrecision
    structure = BlockPrecision

    def __init__(self, mean: ArrayLike, precision: Any, blocks: Sequence[int] | None = None) -> None:
        if blocks is not None:
            if not isinstance(blocks, Sequence):
                raise ArgumentError("blocks", "must be a sequence of sizes", repr(blocks))
            sizes = [as_count(size, "blocks") for size in blocks]
            values = _blocks_of(precision) or [precision] * len(sizes)
            if len(values) != len(sizes):
                raise ArgumentError("precision", f"must hold {len(sizes)} blocks", len(values))
            precision = [read_dense(v, n, "precision").matrix for v, n in zip(values, sizes, strict=True)]
        super().__init__(mean, precision)

    @staticmethod
    def _read_precision(value: Any, dim: int, name: str) -> BlockPrecision:
        arrays = [as_float_array(block, name, ndim=(0, 2)) for block in _blocks_of(value)]
        if not arrays or not all(array.ndim for array in arrays):
            raise ArgumentError(name, "must be a sequence of square blocks, or a number together with blocks=sizes")
        blocks = [read_dense(array, array.shape[0], name).matrix for array in arrays]
        sizes = [block.shape[0] for block in blocks]
        if sum(sizes) != dim:
            raise ArgumentError(name, f"must have blocks whose sizes add up to {dim}", sizes)
        return BlockPrecision(*blocks)


def _blocks_of(value: Any) -> list[Any]:
    """Return the blocks of a sequence or an array; none of a number."""
    return list(value) if isinstance(value, Sequence) or getattr(value, "ndim", 0) > 0 else []


@base.FAMILIES.register
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


@base.FAMILIES.register
class IsotropicGaussian(FixedPrecisionBase):
    """The family {N(m, I)}: λ = μ = m, KL = ½‖m − m'‖², and Bayesian-ADMM with the delta method is ADMM (Eq. 21–22).

    As a prior, `precision` δ gives ℓ₀ = ½δ‖θ − mean‖²: η₀ = δ·mean, and KL(q‖π₀) = δ·KL(q‖N(mean, I)) + const, with
    `prior_weight` δ. Members made during a run have unit covariance.

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


FAMILIES: dict[str, type[Gaussian]] = {
    "full": FullGaussian,
    "diagonal": DiagonalGaussian,
    "fixed": FixedPrecisionGaussian,
    "isotropic": IsotropicGaussian,
}
"""Families by their short names."""
