"""A client's local work on a plain network, compiled: no calls between the matrix products, and one pass an update.

In torch each operation passes over its buffers, some twenty of them in a step of IVON, and costs its call. Here a step
reads and writes every buffer once. Numba releases Python's lock, so that clients in threads do not wait for each other.

Noise is a function of (seed, step, place) alone: Philox4x32-10 (Salmon et al. 2011, *Parallel random numbers: as easy
as 1, 2, 3*), and the transform of Box and Muller (1958).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = [
    "RELU",
    "SIGMOID",
    "TANH",
    "adam",
    "draw",
    "gradient",
    "ivon",
    "normals",
    "philox",
    "room",
    "sample",
    "update",
]

Floats = NDArray[np.floating[Any]]
Singles = NDArray[np.float32]
Integers = NDArray[np.int64]
Words = NDArray[np.uint32]
Layers = tuple[Integers, Integers, Floats, Floats, Floats]
Function = TypeVar("Function", bound=Callable[..., Any])

SIGMOID, TANH, RELU = 0, 1, 2
"""The activations' codes."""
LANES = 256
"""Counters that are enciphered side by side: their words stay in the first-level cache."""
BLOCK = 4 * LANES
"""Entries of a network that a pass takes at a time."""


def jit(function: Function) -> Function:
    """Compile, without licence to reorder sums or fuse products: so that the compiler's choices do not change a bit.

    It chooses anew in every process that finds nothing on disk, and a run may go on in another process.
    """
    made = partial(njit, nogil=True, error_model="numpy")
    try:
        return cast(Function, made(cache=True)(function))
    except RuntimeError:  # no directory to keep it in: every process compiles it anew
        return cast(Function, made()(function))


ZERO, HALF, ONE, TWO = np.float32(0.0), np.float32(0.5), np.float32(1.0), np.float32(2.0)  # do not widen float32
UNIT = np.float32(2.0**-24)
LN2 = np.float32(np.log(2.0))
ROOT2 = np.float32(np.sqrt(2.0))
QUARTER_TURN = np.float32(0.5 * np.pi)
ATANH = tuple(np.float32(2.0 / n) for n in (1, 3, 5, 7, 9))
SINE = tuple(np.float32(c) for c in (1.0, -1 / 6, 1 / 120, -1 / 5040, 1 / 362880))
COSINE = tuple(np.float32(c) for c in (1.0, -1 / 2, 1 / 24, -1 / 720, 1 / 40320, -1 / 3628800))
EIGHT, LOW = np.uint32(8), np.uint64(0xFFFFFFFF)
M0, M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
W0, W1 = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)
SHIFT = np.uint64(32)


@jit
def philox(words: Words, key: Words) -> None:
    """Encipher counters, the columns of a (4, n) array, in place by ten rounds (Salmon et al. 2011, Sec. 3.3)."""
    for j in range(words.shape[1]):
        a, b, c, d = words[0, j], words[1, j], words[2, j], words[3, j]
        k0, k1 = key[0], key[1]
        for _ in range(10):
            p, q = M0 * np.uint64(a), M1 * np.uint64(c)
            a, b = np.uint32(q >> SHIFT) ^ b ^ k0, np.uint32(q & LOW)
            c, d = np.uint32(p >> SHIFT) ^ d ^ k1, np.uint32(p & LOW)
            k0, k1 = np.uint32(k0 + W0), np.uint32(k1 + W1)
        words[0, j], words[1, j], words[2, j], words[3, j] = a, b, c, d


@jit
def _radius(words: Words, out: Singles) -> None:
    """√(−2 ln u) for u = (w + 1)/2²⁴ in (0, 1], w the upper 24 bits of a word.

    With u = 2ᵉm and m in [√½, √2], ln m = 2 artanh s for s = (m − 1)/(m + 1), |s| < 0.172: five terms leave 1e-9.
    """
    bits = out.view(np.int32)
    for j in range(out.size):
        out[j] = (np.float32(words[j] >> EIGHT) + ONE) * UNIT
    for j in range(out.size):
        mantissa = np.int32((bits[j] & 0x007FFFFF) | 0x3F800000)
        words[j] = np.uint32(((bits[j] >> 23) - 127) + 32)  # e + 32: no longer needed as a word
        bits[j] = mantissa
    for j in range(out.size):
        m, e = out[j], np.float32(np.int32(words[j]) - 32)
        above = m > ROOT2
        m = HALF * m if above else m
        e = e + ONE if above else e
        s = (m - ONE) / (m + ONE)
        z = s * s
        ln = s * (ATANH[0] + z * (ATANH[1] + z * (ATANH[2] + z * (ATANH[3] + z * ATANH[4]))))
        out[j] = np.sqrt(-TWO * (e * LN2 + ln))


@jit
def _circle(words: Words, radius: Singles, x: Singles, y: Singles) -> None:
    """radius·(cos, sin) of 2πw/2²⁴: by quarter turns, and Taylor's series to 1e-9 within an eighth."""
    for j in range(radius.size):
        turns = np.float32(words[j] >> EIGHT) * (np.float32(4.0) * UNIT)
        quarter = np.int32(turns + HALF)
        t = (turns - np.float32(quarter)) * QUARTER_TURN
        z = t * t
        s = t * (SINE[0] + z * (SINE[1] + z * (SINE[2] + z * (SINE[3] + z * SINE[4]))))
        c = COSINE[0] + z * (COSINE[1] + z * (COSINE[2] + z * (COSINE[3] + z * (COSINE[4] + z * COSINE[5]))))
        odd = (quarter & 1) == 1
        u, v = (s, c) if odd else (c, s)
        x[j] = -radius[j] * u if ((quarter + 1) & 2) == 2 else radius[j] * u
        y[j] = -radius[j] * v if (quarter & 2) == 2 else radius[j] * v


@jit
def _block(words: Words, radius: Singles, drawn: Singles, key: Words, number: int, step: int) -> None:
    """Write the normals of a block of counters into `drawn`, of shape (4, LANES)."""
    for j in range(LANES):
        words[0, j] = np.uint32(number * LANES + j)
        words[1, j] = np.uint32(step)
        words[2, j] = np.uint32(0)
        words[3, j] = np.uint32(0)
    philox(words, key)
    for i in range(0, 4, 2):
        _radius(words[i], radius)
        _circle(words[i + 1], radius, drawn[i], drawn[i + 1])


@jit
def normals(out: Floats, key: Words, step: int) -> None:
    """Standard normals of a step: number i of `out` is a function of (key, step, i)."""
    words, radius = np.empty((4, LANES), np.uint32), np.empty(LANES, np.float32)
    drawn = np.empty((4, LANES), np.float32)
    flat, size = drawn.reshape(4 * LANES), 4 * LANES
    for block in range((out.size + size - 1) // size):
        _block(words, radius, drawn, key, block, step)
        for j in range(min(size, out.size - block * size)):
            out[block * size + j] = flat[j]


def room(shapes: Integers, batch: int, like: Floats) -> tuple[Floats, Floats, Floats]:
    """Return what `gradient` wants: room for a batch and all layers' outputs, for the slopes there, and for labels."""
    outputs, targets = batch * int(shapes[:, 0].sum()), np.empty((batch, int(shapes[-1, 0])), like.dtype)
    return np.empty(batch * int(shapes[0, 1]) + outputs, like.dtype), np.empty(outputs, like.dtype), targets


@jit
def _activate(z: Floats, kind: int) -> None:
    if kind == SIGMOID:
        for j in range(z.size):
            z[j] = ONE / (ONE + np.exp(-z[j]))
    elif kind == TANH:
        for j in range(z.size):
            z[j] = np.tanh(z[j])
    else:
        for j in range(z.size):
            z[j] = ZERO if z[j] < ZERO else z[j]


@jit
def _chain(slope: Floats, a: Floats, kind: int) -> None:
    """Multiply by the activation's derivative, which is a function of its value."""
    if kind == SIGMOID:
        for j in range(a.size):
            slope[j] *= a[j] * (ONE - a[j])
    elif kind == TANH:
        for j in range(a.size):
            slope[j] *= ONE - a[j] * a[j]
    else:
        for j in range(a.size):
            slope[j] = slope[j] if a[j] > ZERO else ZERO


@jit
def _misfit(logits: Floats, targets: Floats, slope: Floats) -> None:
    """Write (Σ_c t_c)·softmax − t."""
    for i in range(len(targets)):
        top, total, weight = logits[i, 0], ZERO, ZERO
        for j in range(logits.shape[1]):
            top = max(top, logits[i, j])
            weight += targets[i, j]
        for j in range(logits.shape[1]):
            slope[i, j] = np.exp(logits[i, j] - top)
            total += slope[i, j]
        for j in range(logits.shape[1]):
            slope[i, j] = slope[i, j] * (weight / total) - targets[i, j]


@jit
def gradient(theta: Floats, out: Floats, layers: Layers) -> None:
    """∇_θ of −Σ_i t_iᵀlog p_i(θ) into `out`, shape (P,); the rows lie at the start of the layers' outputs.

    `layers` are shapes, activations, and what `room` returns, the last of it t.
    """
    shapes, kinds, outputs, slopes, targets = layers
    batch, last = len(targets), len(shapes) - 1
    at, below = 0, 0
    for i in range(last + 1):
        rows, columns = shapes[i]
        bias, above = at + rows * columns, below + batch * columns
        z = outputs[above : above + batch * rows].reshape(batch, rows)
        x = outputs[below:above].reshape(batch, columns)
        np.dot(x, theta[at:bias].reshape(rows, columns).T, z)
        for n in range(batch):
            for j in range(rows):
                z[n, j] += theta[bias + j]
        if i < last:
            _activate(outputs[above : above + batch * rows], kinds[i])
        at, below = bias + rows, above
    end = batch * shapes[last, 0]
    here = slopes.size - end
    _misfit(outputs[below : below + end].reshape(targets.shape), targets, slopes[here:].reshape(targets.shape))
    for i in range(last, -1, -1):
        rows, columns = shapes[i]
        bias, at = at - rows, at - rows - rows * columns
        above, below = below, below - batch * columns
        slope = slopes[here : here + batch * rows].reshape(batch, rows)
        x = outputs[below:above].reshape(batch, columns)
        np.dot(slope.T, x, out[at:bias].reshape(rows, columns))
        for j in range(rows):
            out[bias + j] = ZERO
        for n in range(batch):
            for j in range(rows):
                out[bias + j] += slope[n, j]
        if i > 0:
            here -= batch * columns
            under = slopes[here : here + batch * columns]
            np.dot(slope, theta[at:bias].reshape(rows, columns), under.reshape(batch, columns))
            _chain(under, outputs[below:above], kinds[i - 1])


@jit
def _take(rows: tuple[Floats, Integers], index: Integers, weights: Floats, layers: Layers) -> None:
    """Put a batch of rows and w_i·(one-hot labels) where `gradient` wants them; what lies behind them stays."""
    X, y = rows
    outputs, targets = layers[2], layers[4]
    width = X.shape[1]
    for n in range(len(index)):
        targets[n] = ZERO
        targets[n, y[index[n]]] = weights[n]
        for j in range(width):
            outputs[n * width + j] = X[index[n], j]


@jit
def adam(
    state: tuple[Floats, ...],
    terms: tuple[Floats, ...],
    rows: tuple[Floats, Integers],
    batches: tuple[Integers, Floats],
    layers: Layers,
    begun: int,
    rates: tuple[float, ...],
) -> None:
    """Adam's steps `begun` + 1, …, one a batch.

    `state` is θ, both moments and room for the gradient; `terms` are A's diagonal and b of ½θᵀAθ + bᵀθ, or empty;
    `batches` are numbers and weights of rows, shape (T, B); `rates` are α, β₁, β₂ and ε. Rows that lie in `layers`
    behind the B of a batch count in every step.
    """
    theta, momentum, square, grad = state
    stiffness, slope = terms
    index, weights = batches
    lr, beta1, beta2, eps = rates
    kind = theta.dtype.type
    b1, b2, small = kind(1.0 - beta1), kind(beta2), kind(eps)
    rest = kind(1.0 - beta2)
    for t in range(len(index)):
        _take(rows, index[t], weights[t], layers)
        gradient(theta, grad, layers)
        for i in range(stiffness.size):
            grad[i] += stiffness[i] * theta[i] + slope[i]
        step = begun + t + 1
        rate, root = kind(lr / (1.0 - beta1**step)), kind(np.sqrt(1.0 - beta2**step))
        for i in range(theta.size):
            g = grad[i]
            m = momentum[i] + b1 * (g - momentum[i])
            v = b2 * square[i] + rest * g * g
            momentum[i], square[i] = m, v
            theta[i] -= rate * m / (np.sqrt(v) / root + small)


@jit
def draw(mean: Floats, hess: Floats, delta: Floats, noise: Floats, theta: Floats) -> None:
    """Line 2 of Algorithm 2: θ = m + ε/√(λ(h + δ)), for the ε/√λ in `noise`, which becomes (θ − m)(h + δ)."""
    one = len(delta) == 1
    for i in range(mean.size):
        precision = hess[i] + (delta[0] if one else delta[i])
        noise[i] *= np.sqrt(precision)
        theta[i] = mean[i] + noise[i] / precision


@jit
def _spread(term: Floats, begin: int, end: int, room: Floats) -> Floats:
    """Entries `begin` to `end` of a term of all, of one number, or of none, which is zero."""
    if len(term) > 1:
        return term[begin:end]
    part = room[: end - begin]
    part[:] = term[0] if len(term) else ZERO
    return part


@jit
def _sample(
    mean: Floats, hess: Floats, delta: Floats, drawn: Singles, ess: float, noise: Floats, theta: Floats
) -> None:
    """`draw` for a block and its standard normals."""
    spread = mean.dtype.type(np.sqrt(1.0 / ess))
    for j in range(mean.size):
        precision = hess[j] + delta[j]
        noise[j] = spread * drawn[j] * np.sqrt(precision)
        theta[j] = mean[j] + noise[j] / precision


@jit
def sample(
    mean: Floats, hess: Floats, delta: Floats, noise: Floats, theta: Floats, ess: float, key: Words, step: int
) -> None:
    """`normals` and `draw`, block by block, so that the normals stay in the first-level cache."""
    words, radius = np.empty((4, LANES), np.uint32), np.empty(LANES, np.float32)
    drawn, wide = np.empty((4, LANES), np.float32), np.empty(BLOCK, mean.dtype)
    for begin in range(0, mean.size, BLOCK):
        end = min(begin + BLOCK, mean.size)
        d, flat = _spread(delta, begin, end, wide), drawn.reshape(BLOCK)
        _block(words, radius, drawn, key, begin // BLOCK, step)
        _sample(mean[begin:end], hess[begin:end], d, flat, ess, noise[begin:end], theta[begin:end])


@jit
def _update(
    state: tuple[Floats, ...],
    sums: tuple[Floats, ...],
    terms: tuple[Floats, ...],
    numbers: tuple[np.floating[Any], ...],
) -> None:
    """`update` for a block, without a branch, so that it is done in vectors."""
    mean, hess, momentum = state
    gradient, product = sums
    delta, rate, slope, curvature = terms
    weight, share, moved, inertia, unbias, clip = numbers
    for i in range(mean.size):
        h, d, u = hess[i], delta[i], curvature[i]
        excess = h - weight * product[i] + u
        new = h - moved * excess + HALF * moved * moved * excess * excess / (h + d)  # keeps h + δ > 0 (line 5)
        g = momentum[i] + inertia * (share * gradient[i] - momentum[i])
        direction = (unbias * g + slope[i] + (d - u) * mean[i]) / (new + d)
        direction = clip if direction > clip else direction
        direction = -clip if direction < -clip else direction
        mean[i] -= rate[i] * direction
        hess[i], momentum[i] = new, g


@jit
def _numbers(
    like: Floats, samples: int, ess: float, step: int, rates: tuple[float, ...], debias: bool
) -> tuple[np.floating[Any], ...]:
    """λ/S, 1/S, 1 − β₂, 1 − β₁, 1/(1 − β₁ᵗ) and the clip radius, for S samples."""
    beta1, beta2, clip_radius = rates
    kind = like.dtype.type
    unbias = kind(1.0 / (1.0 - beta1**step)) if debias else kind(1.0)
    return kind(ess / samples), kind(1.0 / samples), kind(1.0 - beta2), kind(1.0 - beta1), unbias, kind(clip_radius)


@jit
def update(
    state: tuple[Floats, ...],
    gradient: Floats,
    product: Floats,
    samples: int,
    terms: tuple[Floats, ...],
    ess: float,
    step: int,
    rates: tuple[float, ...],
    debias: bool,
) -> None:
    """Lines 3 to 6 in one pass, from sums of ĝ and ĝ∘(θ − m)(h + δ) over samples: `kernel.update` for one network.

    `state` is m, h and g; `terms` are δ and α, of one number or all, and v − δm_p and u, which may be empty; `rates`
    are β₁, β₂ and the clip radius.
    """
    mean, hess, momentum = state
    delta, rate, slope, curvature = terms
    numbers = _numbers(mean, samples, ess, step, rates, debias)
    room = np.empty((4, BLOCK), mean.dtype)
    for begin in range(0, mean.size, BLOCK):
        end = min(begin + BLOCK, mean.size)
        _update(
            (mean[begin:end], hess[begin:end], momentum[begin:end]),
            (gradient[begin:end], product[begin:end]),
            (
                _spread(delta, begin, end, room[0]),
                _spread(rate, begin, end, room[1]),
                _spread(slope, begin, end, room[2]),
                _spread(curvature, begin, end, room[3]),
            ),
            numbers,
        )


@jit
def ivon(
    state: tuple[Floats, ...],
    terms: tuple[Floats, ...],
    ess: float,
    rows: tuple[Floats, Integers],
    batches: tuple[Integers, Floats],
    layers: Layers,
    key: Words,
    begun: int,
    rates: tuple[float, ...],
    debias: bool,
) -> None:
    """Algorithm 2's steps `begun` + 1, …, one a batch and each with one sample.

    `state` is m, h, g and room for gradient, θ and noise; `ess` is λ, `terms` and `rates` are those of `update`, and
    the rest is as in `adam`.
    """
    mean, hess, momentum, grad, theta, noise = state
    delta, rate, slope, curvature = terms
    index, weights = batches
    words, radius = np.empty((4, LANES), np.uint32), np.empty(LANES, np.float32)
    drawn = np.empty((4, LANES), np.float32)
    sample(mean, hess, delta, noise, theta, ess, key, begun)
    for t in range(len(index)):
        _take(rows, index[t], weights[t], layers)
        gradient(theta, grad, layers)
        step = begun + t + 1
        numbers = _numbers(mean, 1, ess, step, rates, debias)
        for begin in range(0, mean.size, BLOCK):  # a step's update and the next one's sample, while all is at hand
            end = min(begin + BLOCK, mean.size)
            m, h, d = mean[begin:end], hess[begin:end], delta[begin:end]
            e, g = noise[begin:end], grad[begin:end]
            for i in range(e.size):
                e[i] *= g[i]
            around = d, rate[begin:end], slope[begin:end], curvature[begin:end]
            _update((m, h, momentum[begin:end]), (g, e), around, numbers)
            if t + 1 < len(index):
                _block(words, radius, drawn, key, begin // BLOCK, step)
                _sample(m, h, d, drawn.reshape(BLOCK), ess, e, theta[begin:end])
