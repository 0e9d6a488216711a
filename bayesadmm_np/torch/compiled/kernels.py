"""Numba's code for one client with a plain network on a CPU: noise, gradient, Adam's steps and IVON's.

In torch an operation is a call and a pass over its arrays, and a step of IVON has some twenty. Here a step reads and
writes every array once. Numba releases Python's lock, so that clients in threads do not wait for each other.

Normals are a function of (key, step, place): Philox4x32-10 (Salmon et al. 2011, *Parallel random numbers: as easy as 1,
2, 3*) and the transform of Box and Muller (1958), as in `noise.normals`. The formulas are those of `dense`,
`torch.optim.Adam` and `kernel`; tests compare them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

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
    """Compile a function; the compiler may neither reorder sums nor fuse products.

    Otherwise its choices could change a bit: it chooses anew in every process that finds nothing on disk, and a run may
    go on in another process.
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


def workspace(shapes: Integers, batch: int, like: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the arrays that `gradient` works in: inputs and all layers' outputs, the slopes there, and targets."""
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
    """Write ∇_θ of −Σ_i t_iᵀlog p_i(θ) into `out`, shape (P,).

    `layers` are shapes, activations and the arrays of `workspace`: the first begins with the rows, the last holds t.
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
    """Copy a batch of rows and its targets w_i·(one-hot labels) to the start of the workspace; the rest stays."""
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

    `state` is θ, both moments and memory for the gradient; `terms` are A's diagonal and b of ½θᵀAθ + bᵀθ, or empty;
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
def _draw(mean: Floats, hess: Floats, delta: Floats, drawn: Singles, ess: float, noise: Floats, theta: Floats) -> None:
    """Line 2 of Algorithm 2 for a block: θ = m + ε/√(λ(h + δ)) for the ε in `drawn`; (θ − m)(h + δ) goes to `noise`."""
    spread = mean.dtype.type(np.sqrt(1.0 / ess))
    for j in range(mean.size):
        precision = hess[j] + delta[j]
        noise[j] = spread * drawn[j] * np.sqrt(precision)
        theta[j] = mean[j] + noise[j] / precision


@jit
def _update(
    state: tuple[Floats, ...],
    sums: tuple[Floats, ...],
    terms: tuple[Floats, ...],
    numbers: tuple[np.floating[Any], ...],
) -> None:
    """Lines 3 to 6 of Algorithm 2 for a block; `sums` are ĝ and ĝ∘(θ − m)(h + δ).

    There is no branch, so that the compiler makes vectors of it. `terms` are δ, α, v − δm_p and u; `numbers` are λ,
    1 − β₂, 1 − β₁, 1/(1 − β₁ᵗ) and the clip radius.
    """
    mean, hess, momentum = state
    gradient, product = sums
    delta, rate, slope, curvature = terms
    ess, moved, inertia, unbias, clip = numbers
    for i in range(mean.size):
        h, d, u = hess[i], delta[i], curvature[i]
        excess = h - ess * product[i] + u
        new = h - moved * excess + HALF * moved * moved * excess * excess / (h + d)  # keeps h + δ > 0 (line 5)
        g = momentum[i] + inertia * (gradient[i] - momentum[i])
        direction = (unbias * g + slope[i] + (d - u) * mean[i]) / (new + d)
        direction = clip if direction > clip else direction
        direction = -clip if direction < -clip else direction
        mean[i] -= rate[i] * direction
        hess[i], momentum[i] = new, g


@jit
def _spread(term: Floats, begin: int, end: int, memory: Floats) -> Floats:
    """Return a block of a term of all parameters; of a term of one number, or of none, which is zero, in `memory`."""
    if term.size > 1:
        return term[begin:end]
    part = memory[: end - begin]
    part[:] = term[0] if term.size else ZERO
    return part


@jit
def sample(state: tuple[Floats, ...], delta: Floats, ess: float, key: Words, out: tuple[Floats, ...]) -> None:
    """`_draw` with the normals of step 0, block by block: `state` is m and h, and `out` are noise and θ."""
    mean, hess = state
    noise, theta = out
    words, radius = np.empty((4, LANES), np.uint32), np.empty(LANES, np.float32)
    drawn, memory = np.empty((4, LANES), np.float32), np.empty(BLOCK, mean.dtype)
    for begin in range(0, mean.size, BLOCK):
        end = min(begin + BLOCK, mean.size)
        _block(words, radius, drawn, key, begin // BLOCK, 0)
        m, h, d = mean[begin:end], hess[begin:end], _spread(delta, begin, end, memory)
        _draw(m, h, d, drawn.reshape(BLOCK), ess, noise[begin:end], theta[begin:end])


@jit
def update(
    state: tuple[Floats, ...],
    sums: tuple[Floats, ...],
    terms: tuple[Floats, ...],
    numbers: tuple[np.floating[Any], ...],
) -> None:
    """`_update`, block by block, where a term may be one number, or none."""
    mean, hess, momentum = state
    gradient, product = sums
    delta, rate, slope, curvature = terms
    memory = np.empty((4, BLOCK), mean.dtype)
    for begin in range(0, mean.size, BLOCK):
        end = min(begin + BLOCK, mean.size)
        d, a = _spread(delta, begin, end, memory[0]), _spread(rate, begin, end, memory[1])
        v, u = _spread(slope, begin, end, memory[2]), _spread(curvature, begin, end, memory[3])
        own = mean[begin:end], hess[begin:end], momentum[begin:end]
        _update(own, (gradient[begin:end], product[begin:end]), (d, a, v, u), numbers)


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
    done: int,
) -> None:
    """Algorithm 2's steps `begun` + 1, …, one a batch and each with one sample.

    `state` is m, h, g and memory for gradient, θ and noise; `terms` are δ, α, v − δm_p and u, an entry a parameter;
    `ess` is λ; `rates` are β₁, β₂ and the clip radius; `done` steps are behind g; the rest is as in `adam`.
    """
    mean, hess, momentum, grad, theta, noise = state
    delta, rate, slope, curvature = terms
    index, weights = batches
    beta1, beta2, clip = rates
    kind = mean.dtype.type
    words, radius = np.empty((4, LANES), np.uint32), np.empty(LANES, np.float32)
    drawn = np.empty((4, LANES), np.float32)
    unbias = kind(1.0)
    for t in range(len(index) + 1):  # the update of step t and the sample of step t + 1, while a block is in the cache
        if t > 0:
            _take(rows, index[t - 1], weights[t - 1], layers)
            gradient(theta, grad, layers)
            if debias:
                unbias = kind(1.0 / (1.0 - beta1 ** (done + begun + t)))
        numbers = kind(ess), kind(1.0 - beta2), kind(1.0 - beta1), unbias, kind(clip)
        for begin in range(0, mean.size, BLOCK):
            end = min(begin + BLOCK, mean.size)
            m, h, d = mean[begin:end], hess[begin:end], delta[begin:end]
            e, g = noise[begin:end], grad[begin:end]
            if t > 0:
                for i in range(e.size):
                    e[i] *= g[i]
                around = d, rate[begin:end], slope[begin:end], curvature[begin:end]
                _update((m, h, momentum[begin:end]), (g, e), around, numbers)
            if t < len(index):
                _block(words, radius, drawn, key, begin // BLOCK, begun + t)
                _draw(m, h, d, drawn.reshape(BLOCK), ess, e, theta[begin:end])
