"""Block-diagonal covariance: between diagonal and full."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .._errors import ArgumentError
from .._validation import as_count, as_float_array
from .base import FAMILIES
from .gaussian import LearnedPrecisionGaussian, read_dense
from .precision import BlockPrecision


@FAMILIES.register
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
            values = [precision] * len(sizes) if np.ndim(precision) == 0 else list(precision)
            if len(values) != len(sizes):
                raise ArgumentError("precision", f"must hold {len(sizes)} blocks", len(values))
            precision = [read_dense(v, n, "precision").matrix for v, n in zip(values, sizes, strict=True)]
        super().__init__(mean, precision)

    @staticmethod
    def _read_precision(value: Any, dim: int, name: str) -> BlockPrecision:
        if not isinstance(value, Sequence | np.ndarray) or np.ndim(value[0]) == 0:
            raise ArgumentError(name, "must be a sequence of square blocks, or a number together with blocks=sizes")
        arrays = [as_float_array(block, name, ndim=2) for block in value]
        blocks = [read_dense(block, block.shape[0], name).matrix for block in arrays]
        if sum(block.shape[0] for block in blocks) != dim:
            sizes = [block.shape[0] for block in blocks]
            raise ArgumentError(name, f"must have blocks whose sizes add up to {dim}", sizes)
        return BlockPrecision(*blocks)
