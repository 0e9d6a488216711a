"""Third and fourth expected derivatives of a loss as symmetric tensors, each entry kept once.

In coordinates z in which q is standard, θ = m + L⁻ᵀz with S = LLᵀ, a site's tensors are

    T³_jkl = Σ_i w_i E_q[ℓ'''(f_i)] z_ij z_ik z_il,    T⁴_jklm = Σ_i w_i E_q[ℓ''''(f_i)] z_ij z_ik z_il z_im

with z_i = L⁻¹x_i, and they are packed as d(d+1)(d+2)/6 and d(d+1)(d+2)(d+3)/24 numbers. The entry (j, k, l, m), sorted,
is at C(m+3, 4) + C(l+2, 3) + C(k+1, 2) + j. With a pair (j, k), j ≤ k, as one index, T³ is a matrix of
d × d(d+1)/2 numbers, and T⁴ one of d(d+1)/2 × d(d+1)/2: as in the Hessian of the pooled objective in mean
and Cholesky factor.

With C predictors a row, f_ia = x_iᵀθ_a, T³_(a,j)(b,k)(c,l) = Σ_i w_i E_q[∂³ℓ/∂f_a∂f_b∂f_c] z_ij z_ik z_il is symmetric
in the classes and in the columns, each alone: C(C+2, 3) C(p+2, 3) + C(C+3, 4) C(p+3, 4) numbers are kept. The rows
z_i = R⁻¹x_i are then in units that all classes share, RRᵀ = the mean of the classes' blocks of S.

A family whose precision has blocks needs the pairs within blocks alone: T³_jkl with k and l of one block, and T⁴_jklm
with j, k of one and l, m of one; they are in units of L, and packed in the order of the places above.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations, combinations_with_replacement
from math import comb
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._validation import Array
from ..families.gaussian import Gaussian
from ..families.precision import DensePrecision, Precision

BLOCK = 1024
"""Rows whose products z_ij z_ik are held at once: for 20 columns 1.7 MB, which stay in cache."""

GROUP = 4
"""Second indices in one matrix product: fewer make products small, more compute entries twice."""

CHUNK = 1 << 20
"""Numbers of products z_ij z_ik held at once (8 MiB)."""

MOST_ROWS = 2048
"""Rows of the tensors of a family with blocks taken at once."""


class JointSums(NamedTuple):
    """A site's sums at q for a Newton step in mean and covariance."""

    gradient: Array  # shape (d,): E_q[∇ℓ]
    curvature: Array  # shape (d, d): E_q[∇²ℓ], dense in every family
    tensors: Array | None = None  # packed entries of E_q[∇³ℓ] and E_q[∇⁴ℓ], None where they are not told


def tensor_size(q: Gaussian | int, n_outputs: int = 1) -> int:
    """Return the numbers of both tensors for q's family and C predictors; an integer d means a full covariance."""
    sizes, dim = ((q,), q) if isinstance(q, int) else (block_sizes(q), q.dim)
    if isinstance(q, int) or is_shared(q, n_outputs):
        width = dim // n_outputs
        return comb(n_outputs + 2, 3) * comb(width + 2, 3) + comb(n_outputs + 3, 4) * comb(width + 3, 4)
    each = [comb(b + 1, 2) for b in sizes]
    within = sum(comb(b + 2, 3) + (dim - b) * n + comb(b + 3, 4) for b, n in zip(sizes, each, strict=True))
    return within + sum(one * other for one, other in combinations(each, 2))


def block_sizes(q: Gaussian) -> tuple[int, ...]:
    """Return the sizes of the blocks of a learned precision; none where the precision is fixed."""
    return q.factor.sizes if q.learns_precision else ()


def entries(q: Gaussian) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return j and k, j ≤ k, of every entry of a factor of q's covariance; none where the precision is fixed."""
    found = np.array(q.factor.entries if q.learns_precision else (), dtype=np.intp).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def is_shared(q: Gaussian, n_outputs: int) -> bool:
    """Return whether a site's tensors are in units of all classes: several predictors under a full covariance."""
    return n_outputs > 1 and q.learns_precision and isinstance(q.factor, DensePrecision)


def pairs(dim: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return j and k of every pair j ≤ k, in the order of the matrices."""
    rows, columns = np.triu_indices(dim)
    return rows, columns


def sorted_indices(dim: int, order: int) -> list[tuple[int, ...]]:
    """Return the sorted indices of all entries, in the order in which they are packed."""
    return sorted(combinations_with_replacement(range(dim), order), key=lambda indices: indices[::-1])


def shared_root(q: Gaussian, n_outputs: int) -> Precision:
    """Return RRᵀ, the mean of the classes' blocks of S, whose root gives the rows' units; S itself of one predictor."""
    if n_outputs == 1:
        return q.factor
    assert isinstance(q.factor, DensePrecision)
    width = q.dim // n_outputs
    blocks = q.factor.matrix.reshape(n_outputs, width, n_outputs, width)
    return DensePrecision(np.einsum("ajak->jk", blocks) / n_outputs)


def pack_tensors(z: Array, third: Array, fourth: Array) -> Array:
    """Return both tensors of rows z, shape (n, p), weights w_iE[ℓ'''] and w_iE[ℓ'''']: (n,), or a column an entry."""
    dim = z.shape[1]
    third, fourth = third.reshape(len(z), -1).T, fourth.reshape(len(z), -1).T
    starts = np.cumsum([0, *range(dim, 0, -1)])  # of the pairs (k, l), l ≥ k, in the order of `pairs`
    groups = _groups(dim)
    cubes = [np.zeros((len(third), left.shape[1], dim - k)) for k, left in groups]
    quads = [np.zeros((len(fourth), left.shape[1], starts[-1] - starts[k])) for k, left in groups]
    products = np.empty((starts[-1], min(BLOCK, len(z))))
    for i in range(0, len(z), BLOCK):
        own = np.ascontiguousarray(z[i : i + BLOCK].T)
        right = products[:, : own.shape[1]]
        for k in range(dim):
            np.multiply(own[k], own[k:], out=right[starts[k] : starts[k + 1]])
        for g, (k, (first, second)) in enumerate(groups):
            left = own[first] * own[second]
            for sums, weights, tail in ((cubes, third, own[k:]), (quads, fourth, right[starts[k] :])):
                weighted = weights[:, None, i : i + BLOCK] * left
                sums[g] += (weighted.reshape(-1, left.shape[1]) @ tail.T).reshape(sums[g].shape)
    return np.concatenate(
        [
            np.concatenate([part.reshape(len(part), -1) for part in sums], axis=1)[:, order].ravel()
            for sums, order in zip((cubes, quads), _orders(dim), strict=True)
        ]
    )


def _groups(dim: int) -> list[tuple[int, NDArray[np.intp]]]:
    """Return the pairs (j, k), j ≤ k, for some k at once, and the smallest of these k."""
    found = []
    for low in range(0, dim, GROUP):
        span = range(low, min(low + GROUP, dim))
        found.append((low, np.array([(j, k) for k in span for j in range(k + 1)]).T))
    return found


@lru_cache(maxsize=4)
def _orders(dim: int) -> tuple[NDArray[np.intp], ...]:
    """Return the places among the groups' products of the entries of T³ and T⁴, in the order of packing."""
    found = []
    for tails in (np.arange(dim)[None, :], np.stack(pairs(dim))):
        whole = []
        for low, left in _groups(dim):
            own = tails[:, tails[0] >= low]
            whole.append(np.concatenate([np.repeat(left, own.shape[1], axis=1), np.tile(own, left.shape[1])]))
        found.append(np.unique(_at(np.concatenate(whole, axis=1)), return_index=True)[1])
    return tuple(found)


def pack_entries(q: Gaussian, X: Array, third: Array, fourth: Array) -> Array:
    """Return the entries of both tensors for a family with blocks, of rows X and the weights of `pack_tensors`."""
    (rows, columns), p = entries(q), X.shape[1]
    C = q.dim // p
    slots, classes = [slice(a * p, (a + 1) * p) for a in range(C)], list(combinations_with_replacement(range(C), 2))
    # coordinates that act on a class, and entries of T that act on two
    acts = [np.asarray(q.factor.half_solve(np.eye(q.dim)[:, own]).any(axis=1)) for own in slots]
    seen = [np.flatnonzero(own) for own in acts]
    used = [np.flatnonzero((acts[a][rows] & acts[b][columns]) | (acts[b][rows] & acts[a][columns])) for a, b in classes]
    cubes, quads = np.zeros((q.dim, rows.size)), np.zeros((rows.size,) * 2)
    third, fourth = third.reshape(len(X), -1), fourth.reshape(len(X), -1)
    at_third, at_fourth = _place(C, 3), _place(C, 4)
    step = min(MOST_ROWS, CHUNK // (C * q.dim) + 1)
    for i in range(0, len(X), step):
        three, four, z = third[i : i + step].T, fourth[i : i + step].T, []
        for own in slots:
            right = np.zeros((q.dim, three.shape[1]))
            right[own] = X[i : i + step].T
            z.append(q.factor.half_solve(right))
        products = []
        for (a, b), on in zip(classes, used, strict=True):
            both = z[a][rows[on]] * z[b][columns[on]]
            products.append(both if a == b else both + z[b][rows[on]] * z[a][columns[on]])
        for left, ((a, b), on) in enumerate(zip(classes, used, strict=True)):
            for c in range(C):
                cubes[np.ix_(seen[c], on)] += (three[at_third[a, b, c]] * z[c][seen[c]]) @ products[left].T
            for right_, (c, e) in enumerate(classes[: left + 1]):
                found = (four[at_fourth[a, b, c, e]] * products[left]) @ products[right_].T
                quads[np.ix_(on, used[right_])] += found
                if right_ < left:
                    quads[np.ix_(used[right_], on)] += found.T
    (_, first), (_, second) = _places(block_sizes(q))
    return np.concatenate([cubes.ravel()[first], quads.ravel()[second]])


def unpack_tensors(packed: Array, q: Gaussian, n_outputs: int = 1) -> tuple[Array, Array]:
    """Return T³ as (d, n) and T⁴ as (n, n), where q is standard, for the n `entries` of q's family."""
    dim, width = q.dim, q.dim // n_outputs
    if not is_shared(q, n_outputs):
        (third, first), (fourth, _) = _places(block_sizes(q))
        return packed[: first.size][third.reshape(dim, -1)], packed[first.size :][fourth]
    three, four = np.split(packed, [comb(n_outputs + 2, 3) * comb(width + 2, 3)])
    shared = shared_root(q, n_outputs)
    assert isinstance(shared, DensePrecision)
    turn = q.factor.half_solve(np.asarray(np.kron(np.eye(n_outputs), shared.cholesky), dtype=np.float64))
    rows, columns = pairs(dim)
    found = []
    for order, own in ((3, three), (4, four)):
        classes, numbers = _place(n_outputs, order), _place(width, order)
        table = own.reshape(-1, comb(width + order - 1, order))
        whole = table[classes.reshape(classes.shape + (1,) * order), numbers]
        axes = [axis for pair in zip(range(order), range(order, 2 * order), strict=True) for axis in pair]
        whole = whole.transpose(axes).reshape((dim,) * order)
        for _ in range(order):  # the first axis is turned and becomes the last
            whole = np.tensordot(whole, turn, axes=(0, 1))
        found.append(whole[..., rows, columns])
    third_, fourth_ = found[0], found[1][rows, columns]
    return third_, 0.5 * (fourth_ + fourth_.T)


def _place(dim: int, order: int) -> NDArray[np.intp]:
    """Return the place of every entry of a symmetric tensor, shape (dim,) * order."""
    return _at(np.stack(np.meshgrid(*(np.arange(dim),) * order, indexing="ij")))


def _at(indices: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the places of entries, whose indices are along the first axis."""
    places = np.zeros(indices.shape[1:], dtype=np.intp)
    for i, own in enumerate(np.sort(indices, axis=0)):
        places += _choose(own + i, i + 1)
    return places


@lru_cache(maxsize=4)
def _places(sizes: tuple[int, ...]) -> tuple[tuple[NDArray[np.intp], NDArray[np.intp]], ...]:
    """Return the place among the kept numbers of every entry of T³ and T⁴, and the first entry of every place."""
    starts = np.cumsum((0, *sizes))
    each = [at + np.stack(pairs(size)) for at, size in zip(starts, sizes, strict=False)]
    pair = np.concatenate(each or [np.zeros((2, 0), dtype=np.intp)], axis=1)
    alone = np.arange(starts[-1])[None, :]
    found: list[tuple[NDArray[np.intp], NDArray[np.intp]]] = []
    for left in (alone, pair):
        shape = left.shape[1], pair.shape[1]
        indices = [np.broadcast_to(one[:, None], shape) for one in left]
        indices += [np.broadcast_to(one[None, :], shape) for one in pair]
        _, first, places = np.unique(_at(np.stack(indices)), return_index=True, return_inverse=True)
        found.append((places.reshape(shape), first))
    return tuple(found)


def _choose(n: NDArray[np.intp], k: int) -> NDArray[np.intp]:
    """C(n, k) of an array."""
    product = np.ones_like(n)
    for i in range(k):
        product = product * (n - i) // (i + 1)
    return product
