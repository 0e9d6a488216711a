"""The image data of Figure 5, split by label pairs over five clients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bayesadmm_np import data

__all__ = ["CLIENTS", "DATASETS", "Images", "load"]

CLIENTS = 5
DATASETS = ("digits", "mnist")


@dataclass(frozen=True, eq=False)
class Images:
    """Rows of pixels in [0, 1] without a bias column, as in the paper, and the rows of each client."""

    X: NDArray[np.float64]
    y: NDArray[np.int64]
    parts: tuple[NDArray[np.int64], ...]
    text: str


def load(dataset: str, side: int, first: int) -> Images:
    """Return the first `first` images as side × side block means."""
    if dataset not in DATASETS:
        raise ValueError(f"dataset must be one of {', '.join(DATASETS)}, got {dataset!r}.")
    if dataset == "mnist":
        raw = data.load_mnist(size=side, train=first)
        X, y = raw.X, raw.y
    else:
        raw = data.load_digits()
        block = 8 // side
        X = raw.X[:first].reshape(-1, side, block, side, block).mean(axis=(2, 4)).reshape(-1, side * side)
        y = raw.y[:first]
    parts = tuple(data.partition.label_pairs(y, CLIENTS))
    return Images(X, y, parts, f"{dataset}, first {len(y)} images, {side}×{side} pixels")
