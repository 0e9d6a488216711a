"""IVON's noise: standard normals of a step, each a function of (key, step, place) on a CPU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from . import arithmetic
from .randomness import generator, noise_key

Words = NDArray[np.uint32]
FEW = 48
"""Blocks that NumPy makes at a time: their intermediate results stay in the cache."""


def normals(out: Tensor, key: Words, step: int) -> Tensor:
    """Write standard normals into `out`, shape (P,), on a CPU; number i is a function of (key, step, i) alone."""
    flat, lanes, zero = out.numpy(), arithmetic.LANES, arithmetic.ZERO
    if arithmetic.IS_COMPILED:
        arithmetic.fill(flat, key, step)
        return out
    for begin in range(0, len(flat), 4 * lanes * FEW):
        part = flat[begin : begin + 4 * lanes * FEW]
        counters = begin // 4 + np.arange(lanes * -(-len(part) // (4 * lanes)), dtype=np.uint32)
        words = arithmetic.philox(counters, np.uint32(step), zero, zero, key[:1], key[1:])
        drawn = np.stack([*arithmetic.normal_pair(*words[:2]), *arithmetic.normal_pair(*words[2:])])
        part[:] = drawn.reshape(4, -1, lanes).swapaxes(0, 1).reshape(-1)[: len(part)]
    return out


def draw_normals(out: Tensor, source: torch.Generator | None) -> Tensor:
    """Write the next standard normals of the optimiser's generator, or of torch's global one, into `out`, shape (P,).

    On a CPU a generator that is given draws the key of a cipher, and the global one the normals themselves.
    """
    if source is None or out.device.type != "cpu":
        return out.normal_(generator=source)
    key = torch.randint(2**32, (2,), generator=source, device=source.device).numpy().astype(np.uint32)
    return normals(out, key, 0)


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
