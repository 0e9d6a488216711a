"""IVON's noise: standard normals of a step, each a function of (key, step, place) on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from . import compiled
from .randomness import generator, noise_key

Words = NDArray[np.uint32]
LANES = 256
"""Counters of a block: its 1024 normals are the cosines and sines of two words each, in this order."""
LOW, HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
FACTORS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
WEYL = 0x9E3779B9, 0xBB67AE85


def philox(counter: Sequence[Any], key: Words) -> list[Any]:
    """Encipher counters of four 32-bit words by Philox4x32-10 (Salmon et al. 2011, Sec. 3.3); words broadcast."""
    a, b, c, d = counter
    first, second = (int(word) for word in key)
    for _ in range(10):
        p, q = FACTORS[0] * a, FACTORS[1] * c
        a, b = (q >> HALF) ^ (b ^ np.uint64(first)), q & LOW
        c, d = (p >> HALF) ^ (d ^ np.uint64(second)), p & LOW
        first, second = (first + WEYL[0]) & int(LOW), (second + WEYL[1]) & int(LOW)
    return [a, b, c, d]


def normals(out: Tensor, key: Words, step: int) -> Tensor:
    """Write standard normals into `out`, shape (P,), on a CPU; number i is a function of (key, step, i) alone.

    r·cos 2πt and r·sin 2πt with r = √(−2 ln u) (Box and Muller 1958), u = (w + 1)/2²⁴ and t = w′/2²⁴ for the upper 24
    bits w, w′ of two words of the cipher. Compiled code, where it is there, gives the same numbers to rounding.
    """
    if (compiled_normals := compiled.kernel_of("normals")) is not None:
        compiled_normals(out.numpy(), key, step)
        return out
    lanes = np.arange(LANES * -(-len(out) // (4 * LANES)), dtype=np.uint64)
    words = np.empty((4, len(lanes)), np.int32)
    for row, word in zip(words, philox((lanes, np.uint64(step), np.uint64(0), np.uint64(0)), key), strict=True):
        np.right_shift(word, np.uint64(8), out=row, casting="unsafe")
    pairs = torch.from_numpy(words).view(2, 2, -1).float()
    radius = pairs[:, 0].add_(1.0).mul_(2.0**-24).log_().mul_(-2.0).sqrt_()
    turns = pairs[:, 1].mul_(2.0**-24)
    angle = turns.sub_(turns.round()).mul_(2.0 * np.pi)  # within half a turn of zero, so that it loses less to rounding
    drawn = torch.stack([angle.cos().mul_(radius), angle.sin_().mul_(radius)], dim=1).view(4, -1, LANES)
    return out.copy_(drawn.transpose(0, 1).flatten()[: len(out)])


def draw_normals(out: Tensor, source: torch.Generator | None) -> Tensor:
    """Write the next standard normals of the optimiser's generator, or of torch's global one, into `out`, shape (P,).

    On a CPU a generator that is given draws the key of a cipher, and the global one the normals themselves.
    """
    if source is None or out.device.type != "cpu":
        return out.normal_(generator=source)
    return normals(out, next_key(source), 0)


def next_key(source: torch.Generator) -> Words:
    """Draw the key of the next sample of an optimiser on a CPU."""
    return torch.randint(2**32, (2,), generator=source, device=source.device).numpy().astype(np.uint32)


class Noise:
    """Standard normals of a stack: on a CPU of each client's own key, elsewhere of one generator in one call."""

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        self.keys = [noise_key(seed) for seed in seeds]
        self.source = None if device.type == "cpu" else generator(device, int(self.keys[0][0]))

    def fill(self, out: Tensor, step: int) -> None:
        """Write the normals of a step, counted from 0; `out` has a row for each of the first clients."""
        if self.source is not None:
            out.normal_(generator=self.source)
            return
        for row, key in zip(out, self.keys, strict=False):
            normals(row, key, step)
