"""The arithmetic of IVON and of its noise, written once: for numbers, which Numba compiles loops over, and for arrays.

With the extra `compiled` the loops at the end of this file run on a CPU; no other module imports Numba. Without the
extra NumPy makes the same noise bit for bit, and torch takes the same steps.

Normals are a function of (key, step, place): Philox4x32-10 (Salmon et al. 2011, *Parallel random numbers: as easy as 1,
2, 3*) and the transform of Box and Muller (1958). Line numbers refer to Algorithm 2 (App. D.4) of *Federated ADMM
from Bayesian Duality*.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

njit: Any = None
try:
    from numba import njit as _njit

    njit = _njit
except ImportError:  # also where Numba does not fit the NumPy that is installed
    pass

Function = TypeVar("Function", bound=Callable[..., Any])
Floats = NDArray[np.floating[Any]]
Words = NDArray[np.uint32]

IS_COMPILED = njit is not None
"""Presence of Numba; otherwise only the functions of numbers and arrays are called, and no loop."""
LANES = 256
"""Counters of a block: its 1024 normals are the cosines and sines of two words each, in this order."""
F, Z = np.float32, np.int32
HALF, ONE, TWO, FOUR = F(0.5), F(1.0), F(2.0), F(4.0)
UNIT, LN2, ROOT2, QUARTER_TURN = F(2.0**-24), F(np.log(2.0)), F(np.sqrt(2.0)), F(0.5 * np.pi)
ATANH = tuple(F(2.0 / n) for n in (1, 3, 5, 7, 9))
SINE = tuple(F(c) for c in (1.0, -1 / 6, 1 / 120, -1 / 5040, 1 / 362880))
COSINE = tuple(F(c) for c in (1.0, -1 / 2, 1 / 24, -1 / 720, 1 / 40320, -1 / 3628800))
LOW, WORD, EIGHT, ZERO = np.uint64(0xFFFFFFFF), np.uint64(32), np.uint32(8), np.uint32(0)
M0, M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
W0, W1 = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)


def inlined(function: Function) -> Function:
    """Compile a function of numbers into the loops that call it, where Numba is there."""
    return function if njit is None else cast(Function, njit(inline="always")(function))


def looped(function: Function) -> Function:
    """Compile a loop, where Numba is there; the compiler may neither reorder sums nor fuse products.

    Otherwise its choices could change a bit: it chooses anew in every process that finds nothing on disk, and a run may
    go on in another process.
    """
    if njit is None:
        return function
    try:
        return cast(Function, njit(nogil=True, error_model="numpy", cache=True)(function))
    except RuntimeError:  # no directory to keep it in: every process compiles it anew
        return cast(Function, njit(nogil=True, error_model="numpy")(function))


def philox(a: Any, b: Any, c: Any, d: Any, k0: Any, k1: Any) -> tuple[Any, Any, Any, Any]:
    """Encipher a counter of four 32-bit words by ten rounds (Salmon et al. 2011, Sec. 3.3)."""
    for _ in range(10):
        p, q = M0 * np.uint64(a), M1 * np.uint64(c)
        a, b = np.uint32(q >> WORD) ^ b ^ k0, np.uint32(q & LOW)
        c, d = np.uint32(p >> WORD) ^ d ^ k1, np.uint32(p & LOW)
        k0, k1 = np.uint32(k0 + W0), np.uint32(k1 + W1)
    return a, b, c, d


def normal_pair(w: Any, v: Any) -> tuple[Any, Any]:
    """Return √(−2 ln u)·(cos, sin) of 2πt, for u = (w′ + 1)/2²⁴ in (0, 1] and t = v′/2²⁴, of the words' upper 24 bits.

    With u = 2ᵉm and m in [√½, √2], ln m = 2 artanh s for s = (m − 1)/(m + 1), |s| < 0.172: five terms leave 1e-9. The
    angle is taken by quarter turns, and Taylor's series leave 1e-9 within an eighth. Products with 0, ½, 1 and −1 stand
    for branches.
    """
    bits = F((F(Z(w >> EIGHT)) + ONE) * UNIT).view(Z)
    m = Z((bits & Z(0x007FFFFF)) | Z(0x3F800000)).view(F)
    above = F(m > ROOT2)
    m, e = m * (ONE - HALF * above), F(Z((bits >> Z(23)) - Z(127))) + above
    s = (m - ONE) / (m + ONE)
    z = s * s
    ln = s * (ATANH[0] + z * (ATANH[1] + z * (ATANH[2] + z * (ATANH[3] + z * ATANH[4]))))
    radius = np.sqrt(-TWO * (e * LN2 + ln))
    turns = F(Z(v >> EIGHT)) * (FOUR * UNIT)
    quarter = Z(turns + HALF)
    t = (turns - F(quarter)) * QUARTER_TURN
    z = t * t
    s = t * (SINE[0] + z * (SINE[1] + z * (SINE[2] + z * (SINE[3] + z * SINE[4]))))
    c = COSINE[0] + z * (COSINE[1] + z * (COSINE[2] + z * (COSINE[3] + z * (COSINE[4] + z * COSINE[5]))))
    odd, back, down = F(Z(quarter & Z(1))), F(Z((quarter + Z(1)) & Z(2))), F(Z(quarter & Z(2)))
    x, y = odd * s + (ONE - odd) * c, odd * c + (ONE - odd) * s
    return radius * x * (ONE - back), radius * y * (ONE - down)


def sampled(mean: Any, hess: Any, delta: Any, noise: Any) -> tuple[Any, Any]:
    """Line 2: (θ − m)(h + δ) and θ = m + σε with σ = 1/√(λ(h + δ)) (line 7), from √(1/λ) ε."""
    precision = hess + delta
    moved = noise * precision**0.5
    return moved, mean + moved / precision


def updated(
    mean: Any,
    hess: Any,
    momentum: Any,
    gradient: Any,
    product: Any,
    delta: Any,
    slope: Any,
    curvature: Any,
    ess: Any,
    unbias: Any,
    moved: Any,
    inertia: Any,
    half: Any,
) -> tuple[Any, Any, Any]:
    """Lines 3 to 6: the new h and g, and the direction of m, of ĝ and `product` = ĝ∘(θ − m)(h + δ).

    `slope` is v − δm_p and `curvature` u; the numbers are λ, 1/(1 − β₁ᵗ), 1 − β₂, 1 − β₁ and ½.
    """
    excess = hess - ess * product + curvature  # h − ĥ
    change = moved * excess
    new = hess - change + half * change * change / (hess + delta)  # keeps h + δ > 0 (line 5)
    average = momentum + inertia * (gradient - momentum)
    return new, average, (unbias * average + slope + (delta - curvature) * mean) / (new + delta)


_philox, _normal_pair, _sampled, _updated = inlined(philox), inlined(normal_pair), inlined(sampled), inlined(updated)


@looped
def fill(out: Floats, key: Words, step: int) -> None:
    """Write the standard normals of a step: number i of `out`, shape (P,), is a function of (key, step, i)."""
    words, drawn = np.empty((4, LANES), np.uint32), np.empty((4, LANES), np.float32)
    flat, size = drawn.reshape(4 * LANES), 4 * LANES
    for block in range((out.size + size - 1) // size):
        for j in range(LANES):
            a, b, c, d = _philox(np.uint32(block * LANES + j), np.uint32(step), ZERO, ZERO, key[0], key[1])
            words[0, j], words[1, j], words[2, j], words[3, j] = a, b, c, d
        for i in range(0, 4, 2):
            for j in range(LANES):
                drawn[i, j], drawn[i + 1, j] = _normal_pair(words[i, j], words[i + 1, j])
        for j in range(min(size, out.size - block * size)):
            out[block * size + j] = flat[j]


@looped
def draw(mean: Floats, hess: Floats, delta: Floats, noise: Floats, theta: Floats) -> None:
    """Apply `sampled` to rows of shape (K, P), into `noise` and `theta`; `delta` may have one row."""
    for k in range(len(mean)):
        d = delta[min(k, len(delta) - 1)]
        m, h, e, out = mean[k], hess[k], noise[k], theta[k]
        for j in range(len(m)):
            e[j], out[j] = _sampled(m[j], h[j], d[j], e[j])


@looped
def update(
    state: tuple[Floats, ...],
    sums: tuple[Floats, ...],
    terms: tuple[Floats, ...],
    ess: Floats,
    numbers: tuple[Any, ...],
) -> None:
    """Apply `updated` to rows of shape (K, P), and step m; a term may have one row.

    `state` is m, h and g; `sums` are those of ĝ and of the product; `terms` are δ, α, v − δm_p and u; λ
    has a number a row, or one; `numbers` are 1/(1 − β₁ᵗ), 1 − β₂, 1 − β₁, ½ and the clip radius.
    """
    unbias, moved, inertia, half, clip = numbers
    for k in range(len(state[0])):
        m, h, g = state[0][k], state[1][k], state[2][k]
        gradient, product = sums[0][k], sums[1][k]
        d, rate = terms[0][min(k, len(terms[0]) - 1)], terms[1][min(k, len(terms[1]) - 1)]
        v, u = terms[2][min(k, len(terms[2]) - 1)], terms[3][min(k, len(terms[3]) - 1)]
        weight = ess[min(k, len(ess) - 1)]
        for j in range(len(m)):
            new, average, direction = _updated(
                m[j], h[j], g[j], gradient[j], product[j], d[j], v[j], u[j], weight, unbias, moved, inertia, half
            )
            direction = clip if direction > clip else direction
            direction = -clip if direction < -clip else direction
            m[j] -= rate[j] * direction
            h[j], g[j] = new, average
