"""Partitions of rows over clients.

Each function returns a list with one ascending array of row numbers a client. The arrays are disjoint, none is empty,
and every row is in one of them. An `rng` that is no `numpy.random.Generator` is a TypeError.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._validation import as_count, as_number

__all__ = [
    "by_column",
    "iid",
    "label_pairs",
    "shards",
    "small_large",
    "two_dirichlet",
]

Partition = list[NDArray[np.int64]]


def iid(n: int, clients: int, rng: np.random.Generator) -> Partition:
    """Deal the rows at random, in portions that differ by at most one row.

    Parameters
    ----------
    n : int
        Number of rows.
    clients : int
        Number of clients K, from 1 to n.
    rng : numpy.random.Generator

    Raises
    ------
    ValueError
        When `n` or `clients` is not as above.

    Examples
    --------
    >>> import numpy as np
    >>> parts = iid(7, 3, np.random.default_rng(0))
    >>> [len(part) for part in parts]
    [3, 2, 2]
    >>> np.sort(np.concatenate(parts))
    array([0, 1, 2, 3, 4, 5, 6])
    """
    n = as_count(n, "n")
    clients = _clients(clients, n)
    _check_rng(rng)
    return _sorted(np.array_split(rng.permutation(n), clients))


def label_pairs(y: ArrayLike, clients: int) -> Partition:
    """Give each client the rows of a group of consecutive labels.

    The C distinct labels in `y`, in ascending order, are cut into K groups of g = C/K. Client k gets the rows of labels
    number gk, …, gk + g − 1; with ten classes and five clients the pairs (2k, 2k + 1).

    Parameters
    ----------
    y : array_like of int, shape (n,)
        The label of each row.
    clients : int
        Number of clients K, a divisor of the number of distinct labels.

    Raises
    ------
    ValueError
        When `y` or `clients` is not as above.

    Examples
    --------
    >>> label_pairs([0, 1, 2, 3, 3, 0], 2)
    [array([0, 1, 5]), array([2, 3, 4])]
    """
    labels = _labels(y)
    clients = as_count(clients, "clients")
    classes, code = np.unique(labels, return_inverse=True)
    if len(classes) % clients:
        raise ValueError(f"clients must divide the number of distinct labels in y, {len(classes)}, got {clients}")
    return _groups(code // (len(classes) // clients), clients)


def shards(y: ArrayLike, clients: int, per_client: int, rng: np.random.Generator) -> Partition:
    """Sort the rows by label, cut them into shards, and deal each client a few at random.

    There are KS shards of ⌊n/KS⌋ or ⌈n/KS⌉ consecutive rows of the sorted data. Rows with the same label keep their
    order.

    Parameters
    ----------
    y : array_like of int, shape (n,)
        The label of each row.
    clients : int
        Number of clients K.
    per_client : int
        Number S of shards of a client, with KS ≤ n.
    rng : numpy.random.Generator

    Raises
    ------
    ValueError
        When `y`, `clients` or `per_client` is not as above.

    Examples
    --------
    >>> import numpy as np
    >>> y = np.repeat([0, 1, 2, 3], 4)
    >>> parts = shards(y, 2, 2, np.random.default_rng(0))
    >>> [sorted(set(y[part].tolist())) for part in parts]
    [[0, 2], [1, 3]]
    """
    labels = _labels(y)
    clients = _clients(clients, len(labels))
    per_client = as_count(per_client, "per_client")
    if clients * per_client > len(labels):
        raise ValueError(
            f"per_client must be at most {len(labels) // clients}, the rows of y for each of "
            f"{clients} clients, got {per_client}"
        )
    _check_rng(rng)
    pieces = np.array_split(np.argsort(labels, kind="stable"), clients * per_client)
    order = rng.permutation(len(pieces)).reshape(clients, per_client)
    return _sorted([np.concatenate([pieces[i] for i in mine]) for mine in order])


def two_dirichlet(
    y: ArrayLike,
    clients: int,
    size_concentration: float,
    class_concentration: float,
    rng: np.random.Generator,
) -> Partition:
    """Draw the sizes of the clients and their mixes of classes from Dirichlet distributions.

    Shares s ~ Dir(α₁1_K) are drawn for the sizes of the clients, and a mix π_k ~ Dir(α₂1_C) for each client. From the
    m_c rows of class c, client k gets

        N_kc ≈ m_c s_k π_kc / Σ_j s_j π_jc,

    rounded by largest remainders. Which rows of a class a client gets is random. A client that would be left with
    nothing takes one row from the largest.

    Source: Swaroop et al. (2025), "Connecting Federated ADMM to Bayes", App. E.1, with α₁ = 1 and α₂ = 0.5.

    Parameters
    ----------
    y : array_like of int, shape (n,)
        The label of each row; C of them are distinct.
    clients : int
        Number of clients K, from 1 to n.
    size_concentration : float
        α₁, from 1e-6 to 1e6; the larger, the more equal the sizes.
    class_concentration : float
        α₂, from 1e-6 to 1e6; the larger, the more alike the mixes.
    rng : numpy.random.Generator

    Raises
    ------
    ValueError
        When `y`, `clients` or a concentration is not as above.

    Examples
    --------
    >>> import numpy as np
    >>> y = np.repeat([0, 1, 2], 20)
    >>> parts = two_dirichlet(y, 4, 1.0, 0.5, np.random.default_rng(0))
    >>> len(parts), sum(len(part) for part in parts)
    (4, 60)
    """
    labels = _labels(y)
    clients = _clients(clients, len(labels))
    size_concentration = _concentration("size_concentration", size_concentration)
    class_concentration = _concentration("class_concentration", class_concentration)
    _check_rng(rng)

    classes, code = np.unique(labels, return_inverse=True)
    shares = rng.dirichlet(np.full(clients, size_concentration))
    mixes = rng.dirichlet(np.full(len(classes), class_concentration), size=clients)
    # A class in which every client's share underflows to zero is shared evenly.
    wishes = np.maximum(shares[:, None] * mixes, 1e-300)
    counts = np.column_stack(
        [
            _largest_remainders(total * wish / wish.sum(), total)
            for wish, total in zip(wishes.T, np.bincount(code), strict=True)
        ]
    )
    for empty in np.flatnonzero(counts.sum(axis=1) == 0):
        giver = counts.sum(axis=1).argmax()
        given = counts[giver].argmax()
        counts[giver, given] -= 1
        counts[empty, given] += 1
    return _deal(code, counts, rng)


def small_large(
    y: ArrayLike,
    clients: int,
    rng: np.random.Generator,
    *,
    size_imbalance: float = 0.3,
    small_rate: float = 0.06,
) -> Partition:
    """Make half of the clients small with few positives, and half large with many.

    The first K/2 clients get about (1 − β) n/K rows each, a fraction r of them with the larger label (positive). The
    last K/2 get about (1 + β) n/K rows each, and share the other positives evenly. Every row is used once; the choice
    of rows is random. Source: Ashman et al. (2022); Swaroop et al. (2025), App. E.2, for the credit data.

    Parameters
    ----------
    y : array_like of int, shape (n,)
        The label of each row; two distinct values.
    clients : int
        Number of clients K, even.
    rng : numpy.random.Generator
    size_imbalance : float, default 0.3
        β, from 0 (equal sizes) to below 1.
    small_rate : float, default 0.06
        r, the fraction of positives at the small clients, from 0 to 1.

    Raises
    ------
    ValueError
        When an argument is not as above, a small client would have no row, or the rows have too few positives or
        negatives.

    Examples
    --------
    >>> import numpy as np
    >>> y = np.repeat([0, 1], [285, 230])
    >>> parts = small_large(y, 10, np.random.default_rng(0))
    >>> [len(part) for part in parts]
    [36, 36, 36, 36, 36, 67, 67, 67, 67, 67]
    >>> [int(y[part].sum()) for part in parts]
    [2, 2, 2, 2, 2, 44, 44, 44, 44, 44]
    """
    labels = _labels(y)
    classes, code = np.unique(labels, return_inverse=True)
    if len(classes) != 2:
        raise ValueError(f"y must have two distinct labels, got {len(classes)}")
    n, available = len(labels), int(code.sum())
    clients = _clients(clients, n)
    if clients % 2:
        raise ValueError(f"clients must be even, half of them small and half large, got {clients}")
    size_imbalance = as_number(size_imbalance, "size_imbalance")
    if not 0 <= size_imbalance < 1:
        raise ValueError(f"size_imbalance must be at least 0 and below 1, got {size_imbalance:g}")
    small_rate = as_number(small_rate, "small_rate")
    if not 0 <= small_rate <= 1:
        raise ValueError(f"small_rate must lie in [0, 1], got {small_rate:g}")
    _check_rng(rng)

    large = np.repeat([False, True], clients // 2)
    sizes = _largest_remainders(n / clients * np.where(large, 1 + size_imbalance, 1 - size_imbalance), n)
    if sizes.min() == 0:
        raise ValueError(f"size_imbalance must leave each small client a row of {n}, got {size_imbalance:g}")
    small_positives = np.rint(small_rate * sizes[~large]).astype(np.int64)
    positives = available - int(small_positives.sum())
    room = int(sizes[large].sum())
    if not 0 <= positives <= room:
        raise ValueError(
            f"small_rate must leave the large clients 0 to {room} positives, got {small_rate:g}, which leaves "
            f"{positives} of {available}"
        )
    rates = _largest_remainders(sizes[large] * (positives / room), positives)
    counts = np.concatenate([small_positives, rates])
    return _deal(code, np.column_stack([sizes - counts, counts]), rng)


def by_column(values: ArrayLike) -> Partition:
    """Make one client of each distinct value, such as a hospital's name, in ascending order.

    Parameters
    ----------
    values : array_like, shape (n,)
        One value per row: numbers, strings, dates or anything else that can be sorted.

    Raises
    ------
    ValueError
        When `values` is not one-dimensional, is empty, lacks values (NaN, NaT), or has values that cannot be sorted.

    Examples
    --------
    >>> by_column(["Zurich", "Basel", "Zurich"])
    [array([1]), array([0, 2])]
    """
    column = _column("values", values)
    if np.any(column != column):
        raise ValueError("values must not have missing values (NaN or NaT)")
    try:
        distinct, code = np.unique(column, return_inverse=True)
    except TypeError as error:
        raise ValueError(f"values must be of kinds that can be sorted: {error}") from error
    return _groups(code, len(distinct))


def _column(name: str, values: ArrayLike) -> NDArray[Any]:
    try:
        column = np.asarray(values)
    except ValueError as error:  # ragged
        raise ValueError(f"{name} must be a one-dimensional array: {error}") from error
    if column.ndim != 1:
        raise ValueError(f"{name} must be a one-dimensional array, got shape {column.shape}")
    if len(column) == 0:
        raise ValueError(f"{name} must have at least one row, got none")
    return column


def _labels(y: ArrayLike) -> NDArray[Any]:
    labels = _column("y", y)
    if labels.dtype.kind not in "iu":
        raise ValueError(f"y must have integer labels, got type {labels.dtype}")
    return labels


def _clients(clients: int, n: int) -> int:
    clients = as_count(clients, "clients")
    if clients > n:
        raise ValueError(f"clients must be at most the number of rows, {n}, got {clients}")
    return clients


def _concentration(name: str, value: float) -> float:
    number = as_number(value, name)
    if not 1e-6 <= number <= 1e6:
        raise ValueError(f"{name} must lie from 1e-6 to 1e6, got {value!r}")
    return number


def _check_rng(rng: np.random.Generator) -> None:
    if not isinstance(rng, np.random.Generator):
        raise TypeError(
            f"rng must be a numpy.random.Generator, for example numpy.random.default_rng(0), got {type(rng).__name__}"
        )


def _sorted(parts: list[NDArray[Any]]) -> Partition:
    return [np.sort(part).astype(np.int64, copy=False) for part in parts]


def _groups(owner: NDArray[Any], clients: int) -> Partition:
    """Return the rows of each client, given the client of each row."""
    order = np.argsort(owner, kind="stable").astype(np.int64, copy=False)
    return np.split(order, np.cumsum(np.bincount(owner, minlength=clients))[:-1])


def _deal(code: NDArray[Any], counts: NDArray[np.int64], rng: np.random.Generator) -> Partition:
    """Give each client `counts` (clients, classes) random rows of each class."""
    owner = np.empty(len(code), dtype=np.int64)
    for c in range(counts.shape[1]):
        owner[rng.permutation(np.flatnonzero(code == c))] = np.repeat(np.arange(len(counts)), counts[:, c])
    return _groups(owner, len(counts))


def _largest_remainders(ideal: NDArray[np.float64], total: int) -> NDArray[np.int64]:
    """Round numbers that sum to `total` to integers with exactly this sum."""
    counts = np.floor(ideal).astype(np.int64)
    short = total - int(counts.sum())
    counts[np.argsort(counts - ideal, kind="stable")[:short]] += 1
    return counts
