"""Anderson mixing (type II) of a fixed-point map on natural parameters."""

from __future__ import annotations

from collections import deque

import numpy as np

from .._validation import Array
from ..families.coordinates import Natural

CHUNK = 1 << 15
"""Entries of a residual handled at once; a few such pieces fit into a core's cache."""


def mixing_weights(residuals: list[Array]) -> Array | None:
    """Return weights w, Σw = 1, that minimise ‖Σ_i w_i r_i‖; None where a square of a difference overflows."""
    past = len(residuals) - 1
    gram, right = np.zeros((past, past)), np.zeros(past)
    # normal equations, a cached piece at a time: a QR factorisation of millions of rows costs more than the round
    for start in range(0, residuals[-1].size, CHUNK):
        piece = slice(start, start + CHUNK)
        newest = residuals[-1][piece]
        differences = np.stack([residual[piece] for residual in residuals[:-1]]) - newest
        gram += differences @ differences.T
        right -= differences @ newest
    if not (np.isfinite(gram).all() and np.isfinite(right).all()):
        return None
    scales = np.sqrt(np.diagonal(gram))
    scales = np.where(scales > 0, scales, 1.0)
    coefficients, *_ = np.linalg.lstsq(gram / np.outer(scales, scales), right / scales, rcond=1e-12)
    coefficients = coefficients / scales
    weights: Array = np.append(coefficients, 1.0 - coefficients.sum())
    return weights if np.isfinite(weights).all() else None


class Mixer:
    """Remembers the last images of the map and proposes their best affine combination."""

    def __init__(self, memory: int) -> None:
        self._images: deque[Array] = deque(maxlen=memory + 1)
        self._residuals: deque[Array] = deque(maxlen=memory + 1)
        self._memory = memory

    def restart(self) -> None:
        """Forget everything but the newest image."""
        while len(self._images) > 1:
            self._images.popleft()
            self._residuals.popleft()

    def propose(self, image: Natural, residual: Array) -> Natural | None:
        """Record an image of the map with its whitened residual; return the mix, None without a history."""
        if self._memory == 0:
            return None
        self._images.append(image.to_vector())
        self._residuals.append(residual)
        if len(self._images) < 2:
            return None
        weights = mixing_weights(list(self._residuals))
        if weights is None:
            return None
        mixed = np.zeros_like(self._images[-1])
        for weight, packed in zip(weights, self._images, strict=True):
            mixed += weight * packed
        return image.from_vector(mixed)
