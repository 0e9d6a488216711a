"""Splits that only the papers' experiments need; those of the library are `bayesadmm_np.data.partition`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rng = np.random.Generator


def two_classes(y: Any, clients: int, rng: Rng) -> list[NDArray[Any]]:
    """Give each client rows of two different classes, and each class to equally many clients.

    This is the split of MNIST among 100 clients in "Federated ADMM from Bayesian Duality", Table 2. One client after
    the other gets one of the classes that were given to the fewest clients so far, and another one at random.
    """
    classes, code = np.unique(y, return_inverse=True)
    if len(classes) < 2 or (2 * clients) % len(classes):
        raise ValueError(f"clients must be such that {len(classes)} classes divide twice their number, got {clients}.")
    uses = 2 * clients // len(classes)
    if np.bincount(code).min() < uses:
        raise ValueError(f"y must have at least {uses} rows of every class, one a client that has it.")
    left = np.full(len(classes), uses)
    given = np.zeros((clients, len(classes)), dtype=bool)
    for mine in given:
        # the fullest class first: none can be left with more uses than there are clients to come
        first = rng.choice(np.flatnonzero(left == left.max()))
        second = rng.choice(np.flatnonzero((left > 0) & (np.arange(len(classes)) != first)))
        mine[[first, second]] = True
        left -= mine
    owner = np.empty(len(code), dtype=np.int64)
    for c, total in enumerate(np.bincount(code)):
        counts = [len(part) for part in np.array_split(np.arange(total), uses)]
        owner[rng.permutation(np.flatnonzero(code == c))] = np.repeat(np.flatnonzero(given[:, c]), counts)
    return [np.flatnonzero(owner == client) for client in range(clients)]


def label_skew(y: Any, clients: int, rng: Rng) -> list[NDArray[Any]]:
    """Give one client of each pair a random half of the classes, and the other client the other half.

    Every class is shuffled and cut at the same K/2 − 1 distinct random points (on the scale of its size), and a pair
    has one piece of each class: clients differ in classes and in size, as in Zhu et al. (2023).
    """
    classes = len(np.unique(y))
    return _pairs(y, clients, rng, lambda: rng.permutation(classes) % 2)


def concept_drift(y: Any, clients: int, pairs: Any, rng: Rng) -> list[NDArray[Any]]:
    """Give one client of each pair one class of every superclass, and the other client the other class.

    `pairs`, shape (C/2, 2), holds the classes of each superclass. Cuts are those of `label_skew`. All clients have all
    superclasses, each with a class of its own behind it, as in Zhu et al. (2023).
    """
    groups, classes = np.asarray(pairs), np.unique(y)
    if groups.ndim != 2 or groups.shape[1] != 2 or not np.array_equal(np.sort(groups, axis=None), classes):
        raise ValueError(f"pairs must hold each class once, two a superclass, got {groups.tolist()}.")

    def owners() -> NDArray[np.int64]:
        first = rng.integers(2, size=len(groups))
        owner = np.empty(len(classes), dtype=np.int64)
        for column in (0, 1):
            owner[np.searchsorted(classes, groups[:, column])] = (first + column) % 2
        return owner

    return _pairs(y, clients, rng, owners)


def _pairs(y: Any, clients: int, rng: Rng, owners: Callable[[], NDArray[np.int64]]) -> list[NDArray[Any]]:
    """Cut every class at the same points; `owners` says for each class which client of a pair has its piece."""
    labels = np.asarray(y)
    classes, counts = np.unique(labels, return_counts=True)
    least, pairs = int(counts.min()), clients // 2
    if clients % 2 or pairs > least:
        raise ValueError(f"clients must be even, and at most {2 * least}, twice the smallest class, got {clients}.")
    cuts = 1 + np.sort(rng.choice(least - 1, pairs - 1, replace=False)) if pairs > 1 else np.empty(0, dtype=np.int64)
    having = np.array([owners() for _ in range(pairs)])
    owner = np.empty(len(labels), dtype=np.int64)
    for c, count in enumerate(counts):
        piece = np.searchsorted(cuts * count // least, np.arange(count), side="right")
        owner[rng.permutation(np.flatnonzero(labels == classes[c]))] = 2 * piece + having[piece, c]
    return [np.flatnonzero(owner == client) for client in range(clients)]
