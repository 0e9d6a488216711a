"""Streams of all random numbers of a run on networks, and IVON's noise.

| numbers | a function of |
|---|---|
| a client's order of rows, its noise on a CPU, dropout, labels for its curvature | seed, round, client |
| draws of a Dataset's row in training | seed, round, client, step, row |
| draws of a Dataset's row in scores, objective, curvature and certificate | row |
| noise of a stack of clients on a GPU | seed, round, the first client |
| samples that scores are averaged over | seed, round |
| samples of the objective and the certificate | seed |
| samples of `Result.posterior` | seed |
| the points that a client shares (FedLap-Func) | seed, client |

Who takes part in a round is drawn by the core. The optimiser `IVON` draws from its own generator.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from . import arithmetic

Words = NDArray[np.uint32]
Use = Literal["scores", "certificate", "posterior", "curvature"]
KEYS: dict[Use, tuple[int, ...]] = {"scores": (), "certificate": (2,), "posterior": (4,), "curvature": (5,)}


def client_seed(seed: int, number: int, client: int) -> int:
    """Return the seed of a client's work in round `number`."""
    return int(np.random.SeedSequence([seed, number, client]).generate_state(1)[0])


def noise_key(seed: int) -> Words:
    """Return the key of a client's noise, which is apart from the order of its rows."""
    return np.random.SeedSequence([seed, 1]).generate_state(2).astype(np.uint32)


def row_seeds(key: tuple[int, ...], rows: Sequence[int]) -> Iterator[int]:
    """Yield the seeds of a Dataset's rows; `key` is a client's seed and the step, or empty."""
    begun = blake2b(repr(key).encode(), digest_size=4)
    for row in rows:
        own = begun.copy()
        own.update(b"%d" % row)
        yield int.from_bytes(own.digest(), "little")


def stream(device: torch.device, use: Use, *seed: int) -> torch.Generator:
    """Return the generator of a use, as a function of the numbers in the table above."""
    own = np.random.SeedSequence(seed, spawn_key=KEYS[use]).generate_state(1)[0]
    return torch.Generator(device).manual_seed(int(own))


def of_points(seed: int, client: int) -> np.random.Generator:
    """Return the stream by which a client picks the points that it shares."""
    return np.random.default_rng(np.random.SeedSequence([seed, client], spawn_key=(3,)))


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
        self.source = None if device.type == "cpu" else torch.Generator(device).manual_seed(int(self.keys[0][0]))

    def fill(self, out: Tensor, step: int) -> None:
        """Write the normals of a step, counted from 0; `out` has a row for each of the first clients."""
        if self.source is not None:
            out.normal_(generator=self.source)
            return
        for row, key in zip(out, self.keys, strict=False):
            normals(row, key, step)
