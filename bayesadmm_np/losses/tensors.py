"""Third and fourth expected derivatives of a loss as symmetric tensors, each entry kept once.

In coordinates z in which q is standard, θ = m + L⁻ᵀz with S = LLᵀ, a site's tensors are

    T³_jkl = Σ_i w_i E_q[ℓ'''(f_i)] z_ij z_ik z_il,    T⁴_jklm = Σ_i w_i E_q[ℓ''''(f_i)] z_ij z_ik z_il z_im

with z_i = L⁻¹x_i, and they are packed as d(d+1)(d+2)/6 and d(d+1)(d+2)(d+3)/24 numbers. The entry (j, k, l, m), sorted,
stands at C(m+3, 4) + C(l+2, 3) + C(k+1, 2) + j. With a pair (j, k), j ≤ k, as one index, T³ is a matrix of
d × d(d+1)/2 numbers, and T⁴ one of d(d+1)/2 × d(d+1)/2: so they stand in the Hessian of the pooled objective in mean
and Cholesky factor.
"""

from __future__ import annotations

from functools import lru_cache
from math import comb

import numpy as np
from numpy.typing import NDArray

from .._validation import Array

__all__ = ["pack_tensors", "pairs", "tensor_size", "unpack_tensors"]

CHUNK = 1 << 20
"""Numbers of products z_ij z_ik held at once (8 MiB)."""


def tensor_size(dim: int) -> int:
    """Return the numbers of both tensors.

    Examples
    --------
    >>> tensor_size(2)  # 4 and 5
    9
    """
    return comb(dim + 2, 3) + comb(dim + 3, 4)


def pairs(dim: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return j and k of every pair j ≤ k, in the order of the matrices."""
    rows, columns = np.triu_indices(dim)
    return rows, columns


def pack_tensors(z: Array, third: Array, fourth: Array) -> Array:
    """Return both tensors of rows z, shape (n, d), with the weights w_iE[ℓ'''] and w_iE[ℓ'''']."""
    dim = z.shape[1]
    rows, columns = pairs(dim)
    cubes, quads = np.zeros((dim, rows.size)), np.zeros((rows.size, rows.size))
    step = max(1, CHUNK // rows.size)
    for i in range(0, len(z), step):
        own = z[i : i + step]
        products = own[:, rows] * own[:, columns]
        cubes += own.T @ (third[i : i + step, None] * products)
        quads += products.T @ (fourth[i : i + step, None] * products)
    return np.concatenate(
        [table.ravel()[first] for table, (_, first) in zip((cubes, quads), _places(dim), strict=True)]
    )


def unpack_tensors(packed: Array, dim: int) -> tuple[Array, Array]:
    """Return T³ as (d, d(d+1)/2), and T⁴ as a square matrix of order d(d+1)/2."""
    three, four = np.split(packed, [comb(dim + 2, 3)])
    (third, _), (fourth, _) = _places(dim)
    return three[third], four[fourth]


@lru_cache(maxsize=4)
def _places(dim: int) -> tuple[tuple[NDArray[np.intp], NDArray[np.intp]], ...]:
    """For T³ and T⁴ the place of every entry of the matrix, and the first entry of every place."""
    rows, columns = pairs(dim)
    pair = np.stack([rows, columns])
    alone = np.arange(dim)[None, :]
    found: list[tuple[NDArray[np.intp], NDArray[np.intp]]] = []
    for left in (alone, pair):
        shape = left.shape[1], pair.shape[1]
        indices = [np.broadcast_to(one[:, None], shape) for one in left]
        indices += [np.broadcast_to(one[None, :], shape) for one in pair]
        places = np.zeros(shape, dtype=np.intp)
        for i, own in enumerate(np.sort(np.stack(indices), axis=0)):
            places += _choose(own + i, i + 1)
        found.append((places, np.unique(places, return_index=True)[1]))
    return tuple(found)


def _choose(n: NDArray[np.intp], k: int) -> NDArray[np.intp]:
    """C(n, k) of an array."""
    product = np.ones_like(n)
    for i in range(k):
        product = product * (n - i) // (i + 1)
    return product
