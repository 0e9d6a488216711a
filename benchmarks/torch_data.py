"""An epoch of a client that is a Dataset against an epoch of torch's DataLoader, in one run.

    OPENBLAS_NUM_THREADS=1 python benchmarks/torch_data.py

6 000 rows of 28 × 28 in batches of 32; the client's rows are checked as in a run. Augmented images are shifted by up to
two pixels and flipped, with numbers from torch's, NumPy's or Python's generator. Both take turns, and the best of many
epochs counts. Without workers the clock is that of the process, which stands still while others have the core; with
workers it is that of the wall, so that other work on the machine falls on both.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import RESULTS, machine, write_json
from torch.utils.data import DataLoader, Dataset

from bayesadmm_np.torch import MLP
from bayesadmm_np.torch.network import Network
from bayesadmm_np.torch.stream import Stream
from bayesadmm_np.torch.team import fit

ROWS, BATCH = 6000, 32
DRAWS: dict[str, Callable[[], tuple[int, int, int]] | None] = {
    "none": None,
    "torch": lambda: tuple(torch.randint(0, 5, (3,)).tolist()),  # type: ignore[arg-type, return-value]
    "numpy": lambda: tuple(np.random.randint(0, 5, 3)),  # type: ignore[return-value]  # noqa: NPY002
    "python": lambda: (random.randrange(5), random.randrange(5), random.randrange(5)),
}
"""Where an augmentation gets three numbers 0 … 4 from."""


class Images(Dataset[Any]):
    """Images of noise, as they are or moved."""

    def __init__(self, kind: str) -> None:
        source = torch.Generator().manual_seed(0)
        self.X, self.y = torch.rand(ROWS, 1, 28, 28, generator=source), torch.randint(0, 10, (ROWS,), generator=source)
        self.draw = DRAWS[kind]

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        x = self.X[i]
        if self.draw is not None:
            a, b, flip = self.draw()
            x = torch.nn.functional.pad(x, (2, 2, 2, 2))[:, a : a + 28, b : b + 28]
            x = x.flip(2) if flip > 2 else x
        return x, int(self.y[i])


def measure(kind: str, workers: int, turns: int) -> dict[str, Any]:
    """Return the seconds of the best epoch of each, and their ratio."""
    images = Images(kind)
    loader = DataLoader(images, BATCH, shuffle=True, num_workers=workers)
    client = fit(DataLoader(images, BATCH, num_workers=workers), "client", Network(MLP(), torch.device("cpu")), CPU)
    assert isinstance(client, Stream)

    def ours() -> None:
        order = torch.randperm(ROWS).tolist()
        for _ in client.batches([(order[i : i + BATCH], (0, i)) for i in range(0, ROWS, BATCH)]):
            pass

    def plain() -> None:
        for _ in loader:
            pass

    clock, best = time.perf_counter if workers else time.process_time, {"ours": float("inf"), "loader": float("inf")}
    for _ in range(turns):
        for name, epoch in (("loader", plain), ("ours", ours)):
            began = clock()
            epoch()
            best[name] = min(best[name], clock() - began)
    ratio = best["ours"] / best["loader"]
    print(
        f"{kind:6} {workers} workers: {best['loader']:.3f} s, ours {best['ours']:.3f} s, ratio {ratio:.2f}", flush=True
    )
    return {"draws": kind, "workers": workers, "seconds": best, "ratio": ratio}


CPU = torch.device("cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--out", type=Path, default=RESULTS / "torch_data.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = [measure(kind, workers, arguments.turns) for kind in DRAWS for workers in (0, 2)]
    write_json(arguments.out, {"machine": {**machine(), "torch": torch.__version__}, "epochs": found})


if __name__ == "__main__":
    main()
