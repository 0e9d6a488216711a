"""Every random number of a run on networks is drawn from a stream that is made here.

| numbers | a function of |
|---|---|
| a client's order of rows, its noise on a CPU, dropout, labels for its curvature | seed, round, client |
| what a row of a Dataset draws in training | seed, round, client, step, row |
| what it draws in scores, objective, curvature and certificate | row |
| noise of a stack of clients on a GPU | seed, round, the first client |
| samples that scores are averaged over | seed, round |
| samples of the objective and the certificate | seed |
| samples of `Result.posterior` | seed |
| the points that a client shares (FedLap-Func) | seed, client |

Who takes part in a round is drawn by the core. The optimiser `IVON` draws from its own generator.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray


def client_seed(seed: int, number: int, client: int) -> int:
    """Return the seed of a client's work in round `number`."""
    return int(np.random.SeedSequence([seed, number, client]).generate_state(1)[0])


def noise_key(seed: int) -> NDArray[np.uint32]:
    """Return the key of a client's noise, which is apart from the order of its rows."""
    return np.random.SeedSequence([seed, 1]).generate_state(2).astype(np.uint32)


def row_seed(key: tuple[int, ...], row: int) -> int:
    """Return the seed of what a row of a Dataset draws; `key` is a client's seed and the step, or nothing."""
    return int(np.random.SeedSequence([*key, row], spawn_key=(6, len(key))).generate_state(1)[0])


def generator(device: torch.device | str, seed: int) -> torch.Generator:
    """Return torch's generator with this seed."""
    return torch.Generator(device).manual_seed(seed)


def of_scores(device: torch.device, seed: int, number: int) -> torch.Generator:
    """Return the stream of the posterior samples whose predictions are averaged after round `number`."""
    return generator(device, int(np.random.SeedSequence([seed, number]).generate_state(1)[0]))


def of_certificate(device: torch.device, seed: int) -> torch.Generator:
    """Return the stream of the samples at which objective and certificate look."""
    return generator(device, int(np.random.SeedSequence([seed], spawn_key=(2,)).generate_state(1)[0]))


def of_curvature(device: torch.device, seed: int) -> torch.Generator:
    """Return the stream of the labels that a client's curvature is estimated from, of the seed of its work."""
    return generator(device, int(np.random.SeedSequence([seed], spawn_key=(5,)).generate_state(1)[0]))


def of_points(seed: int, client: int) -> np.random.Generator:
    """Return the stream by which a client picks the points that it shares."""
    return np.random.default_rng(np.random.SeedSequence([seed, client], spawn_key=(3,)))


def of_posterior(device: torch.device, seed: int) -> torch.Generator:
    """Return the stream of the samples that a user draws from a posterior."""
    return generator(device, int(np.random.SeedSequence([seed], spawn_key=(4,)).generate_state(1)[0]))
