"""Rows by site: what a site keeps to itself."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._validation import Array

__all__ = ["SiteRows", "read_client", "split_rows"]

WHOLE = "all"
"""Name of the only site when no labels are given."""


@dataclass(frozen=True)
class SiteRows:
    """The rows of one site, all of positive weight.

    Attributes
    ----------
    X : ndarray, shape (n, p)
    y : ndarray, shape (n,) or (n, C)
        Target as the user gave it.
    weights : ndarray, shape (n,)
    """

    X: Array
    y: Any
    weights: Array


def read_client(client: Any, n_rows: int) -> list[Hashable]:
    """Return one label a row; None means one site."""
    if client is None:
        return [WHOLE] * n_rows
    # of a mapping one would read the keys, and a set has no order
    if isinstance(client, str | bytes | Mapping | Set) or not isinstance(client, Iterable):
        raise ValueError(f"client must hold one site label a row, got {client!r}.")
    labels = client.tolist() if isinstance(client, np.ndarray) else list(client)
    if len(labels) != n_rows:
        raise ValueError(f"client must hold one site label a row, {n_rows}, got {len(labels)}.")
    for i, label in enumerate(labels):
        if not isinstance(label, Hashable):
            raise ValueError(f"client must hold hashable labels, one a row, got {label!r} at [{i}].")
        # NaN and NaT differ from themselves, and pandas' NA has no truth value
        if label is None or type(label).__name__ == "NAType" or label != label:
            raise ValueError(f"client must name a site for every row, got {label!r} at [{i}].")
    return labels


def split_rows(X: Array, y: Any, weights: Array, labels: list[Hashable]) -> dict[Hashable, SiteRows]:
    """Group rows by label, in order of first appearance; a row of weight zero is no row."""
    places: dict[Hashable, list[int]] = {}
    for i, label in enumerate(labels):
        if weights[i] > 0:
            places.setdefault(label, []).append(i)
    if not places:
        raise ValueError("sample_weight must be positive for at least one row.")
    return {name: SiteRows(X[index], y[index], weights[index]) for name, index in places.items()}
