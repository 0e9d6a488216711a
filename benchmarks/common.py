"""What the benchmark scripts share: problems, timing, and a description of the machine without its name."""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import scipy

import bayesadmm_np as ba
from bayesadmm_np.data import DataUnavailableError, load_digits, load_mnist, partition

RESULTS = Path(__file__).parent / "results"
N_CLASSES = 10


def softmax_clients(X: np.ndarray, y: np.ndarray, n_clients: int) -> list[ba.losses.Softmax]:
    """One softmax loss a client, each with its own labels only."""
    return [ba.losses.Softmax(X[rows], y[rows], n_classes=N_CLASSES) for rows in partition.label_pairs(y, n_clients)]


def digits() -> tuple[np.ndarray, np.ndarray]:
    """All 1797 digits: 64 pixels and a column of ones."""
    data = load_digits()
    return np.column_stack([data.X, np.ones(len(data.X))]), data.y


def mnist(size: int, train: int) -> tuple[np.ndarray, np.ndarray]:
    """The first `train` images of MNIST at size × size pixels, found through BAYESADMM_DATA or downloaded."""
    data = load_mnist(size, train)
    return data.X, data.y


def mnist_like(size: int, train: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, str]:
    """MNIST, or numbers of the same shape where it cannot be had; the third value says which."""
    try:
        return *mnist(size, train), "mnist"
    except DataUnavailableError:
        rng = np.random.default_rng(seed)
        y = rng.integers(0, N_CLASSES, train)
        y[:N_CLASSES] = np.arange(N_CLASSES)
        centres = rng.random((N_CLASSES, size * size))
        X = np.clip(0.5 * centres[y] + 0.3 * rng.random((train, size * size)), 0.0, 1.0)
        return X, y, "synthetic"


def best_seconds(function: Callable[[], Any], repeats: int, clock: Callable[[], float] = perf_counter) -> float:
    """The shortest of several runs: on a shared machine the rest is other people's work."""
    shortest = np.inf
    for _ in range(repeats):
        began = clock()
        function()
        shortest = min(shortest, clock() - began)
    return float(shortest)


def dgemm_gflops(n: int, repeats: int = 1) -> float:
    """Speed of an n × n × n matrix product in float64, best of `repeats`."""
    a = np.random.default_rng(0).random((n, n))
    return 2.0 * n**3 / best_seconds(lambda: a @ a, repeats) / 1e9


def machine() -> dict[str, Any]:
    """Cores, versions and BLAS: what a number depends on, and nothing that names a machine."""
    description: dict[str, Any] = {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "bayesadmm_np": ba.__version__,
    }
    try:
        from threadpoolctl import threadpool_info
    except ImportError:
        return description
    kept = ("internal_api", "version", "architecture", "num_threads")
    pools = [{key: pool.get(key) for key in kept} for pool in threadpool_info() if pool.get("user_api") == "blas"]
    return {**description, "blas": pools}


def write_json(path: Path, content: Any) -> None:
    """Write whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".json.part")
    with os.fdopen(handle, "w") as file:
        json.dump(content, file, indent=1)
        file.write("\n")
    Path(temporary).chmod(0o644)
    os.replace(temporary, path)


def exponent(sizes: Any, seconds: Any) -> float:
    """Slope of log(seconds) against log(size)."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])
