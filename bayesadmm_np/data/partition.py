"""Partitions of rows over clients.

Each function returns a list of arrays of row numbers, one per client, each in ascending order.
The arrays are disjoint, none is empty, and together they hold every row.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["by_column", "iid", "label_pairs", "shards", "two_dirichlet"]

Partition = list[NDArray[np.int64]]


def iid(n: int, clients: int, rng: np.random.Generator) -> Partition:
    r"""Deal the rows at random, in portions that differ by at most one row.

    Parameters
    ----------
    n : int
        The number of rows.
    clients : int
        The number of clients, :math:`1 \le K \le n`.
    rng : numpy.random.Generator
        The source of randomness.

    Returns
    -------
    list of ndarray of int64
        :math:`K` arrays of :math:`\lfloor n / K \rfloor` or :math:`\lceil n / K \rceil` rows.

    Raises
    ------
    ValueError
        If `n` or `clients` is not a positive integer, or there are more clients than rows.
    TypeError
        If `rng` is not a `numpy.random.Generator`.

    Examples
    --------
    >>> import numpy as np
    >>> parts = iid(7, 3, np.random.default_rng(0))
    >>> [len(part) for part in parts]
    [3, 2, 2]
    >>> np.sort(np.concatenate(parts))
    array([0, 1, 2, 3, 4, 5, 6])
    """
    n = _positive_integer("n", n)
    clients = _clients(clients, n)
    _check_rng(rng)
    return _sorted(np.array_split(rng.permutation(n), clients))


def label_pairs(y: ArrayLike, clients: int) -> Partition:
    r"""Give each client the rows of a group of consecutive labels.

    The :math:`C` distinct labels in `y`, in ascending order, are cut into :math:`K` groups of
    :math:`g = C / K`; client :math:`k` gets the rows whose label is one of those numbered
    :math:`gk, \dots, gk + g - 1`. With ten classes and five clients these are the pairs
    :math:`(2k, 2k + 1)`.

    Parameters
    ----------
    y : array_like of int, shape (n,)
        The label of each row.
    clients : int
        The number of clients, :math:`K`, a divisor of the number of distinct labels.

    Returns
    -------
    list of ndarray of int64
        :math:`K` arrays of row numbers.

    Raises
    ------
    ValueError
        If `y` is not a nonempty one-dimensional array of integers, or `clients` is not a
        positive integer that divides the number of distinct labels.

    Examples
    --------
    >>> label_pairs([0, 1, 2, 3, 3, 0], 2)
    [array([0, 1, 5]), array([2, 3, 4])]
    """
    labels = _labels(y)
    clients = _positive_integer("clients", clients)
    classes, code = np.unique(labels, return_inverse=True)
    if len(classes) % clients:
        raise ValueError(f"clients must divide the number of distinct labels in y, {len(classes)}, got {clients}")
    return _groups(code // (len(classes) // clients), clients)


def shards(y: ArrayLike, clients: int, per_client: int, rng: np.random.Generator) -> Partition:
    r"""Sort the rows by label, cut them into shards, and deal each client a few at random.

    There are :math:`K S` shards of :math:`\lfloor n / KS \rfloor` or :math:`\lceil n / KS \rceil`
    consecutive rows of the sorted data. Rows with the same label keep their order.

    Parameters
    ----------
    y : array_like of int, shape (n,)
        The label of each row.
    clients : int
        The number of clients, :math:`K`.
    per_client : int
        The number of shards for each client, :math:`S`, with :math:`K S \le n`.
    rng : numpy.random.Generator
        The source of randomness.

    Returns
    -------
    list of ndarray of int64
        :math:`K` arrays of row numbers.

    Raises
    ------
    ValueError
        If `y` is not a nonempty one-dimensional array of integers, `clients` or `per_client` is
        not a positive integer, or there are more shards than rows.
    TypeError
        If `rng` is not a `numpy.random.Generator`.

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
    per_client = _positive_integer("per_client", per_client)
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
    r"""Draw the sizes of the clients and their mixes of classes from Dirichlet distributions.

    The sizes are :math:`n_k \approx 1 + (n - K) s_k` with
    :math:`s \sim \mathrm{Dir}(\alpha_1 \mathbf 1_K)`, rounded by largest remainders, and client
    :math:`k` wishes for the mix :math:`\pi_k \sim \mathrm{Dir}(\alpha_2 \mathbf 1_C)`. As every
    row must be used exactly once the wishes cannot all be met: class :math:`c` has just
    :math:`m_c` rows. The counts are those nearest to the wishes :math:`W_{kc} = n_k \pi_{kc}`
    in the sense of

    .. math::
        \min_N \sum_{kc} N_{kc} \log \frac{N_{kc}}{W_{kc}}
        \quad \text{subject to} \quad
        \sum_c N_{kc} = n_k, \quad \sum_k N_{kc} = m_c,

    found by alternately scaling the rows and columns of :math:`W`, then rounded to integers with
    the same sums. Which rows of a class a client gets is random.

    Parameters
    ----------
    y : array_like of int, shape (n,)
        The label of each row; :math:`C` of them are distinct.
    clients : int
        The number of clients, :math:`1 \le K \le n`.
    size_concentration : float
        :math:`\alpha_1`, from 1e-6 to 1e6; the larger, the more equal the sizes.
    class_concentration : float
        :math:`\alpha_2`, from 1e-6 to 1e6; the larger, the more alike the mixes.
    rng : numpy.random.Generator
        The source of randomness.

    Returns
    -------
    list of ndarray of int64
        :math:`K` arrays of row numbers, none empty.

    Raises
    ------
    ValueError
        If `y` is not a nonempty one-dimensional array of integers, `clients` is not a positive
        integer, there are more clients than rows, or a concentration is not in its range.
    TypeError
        If `rng` is not a `numpy.random.Generator`.

    Examples
    --------
    >>> import numpy as np
    >>> y = np.repeat([0, 1, 2], 20)
    >>> parts = two_dirichlet(y, 4, 1.0, 0.5, np.random.default_rng(0))
    >>> len(parts), sum(len(part) for part in parts)
    (4, 60)
    """
    labels = _labels(y)
    n = len(labels)
    clients = _clients(clients, n)
    size_concentration = _concentration("size_concentration", size_concentration)
    class_concentration = _concentration("class_concentration", class_concentration)
    _check_rng(rng)

    classes, code = np.unique(labels, return_inverse=True)
    shares = rng.dirichlet(np.full(clients, size_concentration))
    mixes = rng.dirichlet(np.full(len(classes), class_concentration), size=clients)

    sizes = 1 + _largest_remainders(shares * (n - clients), n - clients)
    counts = _integer_margins(sizes[:, None] * mixes, sizes, np.bincount(code))
    owner = np.empty(n, dtype=np.int64)
    for c in range(len(classes)):
        rows = np.flatnonzero(code == c)
        owner[rng.permutation(rows)] = np.repeat(np.arange(clients), counts[:, c])
    return _groups(owner, clients)


def by_column(values: ArrayLike) -> Partition:
    """Make one client of each distinct value, such as the hospital a row comes from.

    Parameters
    ----------
    values : array_like, shape (n,)
        One value per row: numbers, strings, dates or anything else that can be sorted.

    Returns
    -------
    list of ndarray of int64
        One array of row numbers per distinct value, the values in ascending order.

    Raises
    ------
    ValueError
        If `values` is not one-dimensional, is empty, has missing values (NaN, NaT) or has values
        that cannot be sorted.

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


def _positive_integer(name: str, value: int) -> int:
    try:
        integer = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        integer = 0
    if integer < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
    return integer


def _clients(clients: int, n: int) -> int:
    clients = _positive_integer("clients", clients)
    if clients > n:
        raise ValueError(f"clients must be at most the number of rows, {n}, got {clients}")
    return clients


def _concentration(name: str, value: float) -> float:
    try:
        number = math.nan if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 1e-6 <= number <= 1e6:
        raise ValueError(f"{name} must be a number from 1e-6 to 1e6, got {value!r}")
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


def _largest_remainders(ideal: NDArray[np.float64], total: int) -> NDArray[np.int64]:
    """Round numbers that sum to `total` to integers that do so exactly."""
    counts = np.floor(ideal).astype(np.int64)
    short = total - int(counts.sum())
    counts[np.argsort(counts - ideal, kind="stable")[:short]] += 1
    return counts


def _integer_margins(
    wishes: NDArray[np.float64], rows: NDArray[np.int64], columns: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Scale a matrix to the given row and column sums, and round it to integers that keep them.

    Every sum is met exactly, whether or not the scaling has converged.
    """
    # A wish of zero would forbid the cell, and the sums might then be out of reach.
    scaled = np.maximum(wishes, 1e-12 * rows[:, None])
    for _ in range(1000):
        scaled *= columns / scaled.sum(axis=0)
        factors = rows / scaled.sum(axis=1)
        scaled *= factors[:, None]
        if np.max(np.abs(factors - 1.0)) < 1e-9:
            break
    scaled *= np.minimum(1.0, columns / scaled.sum(axis=0))  # now no sum is exceeded

    counts = np.floor(scaled + 1e-9).astype(np.int64)
    row_short = rows - counts.sum(axis=1)
    column_short = columns - counts.sum(axis=0)
    cells = np.argsort(counts - scaled, axis=None, kind="stable")  # largest fraction first
    for at_most in (1, int(rows.sum())):  # after the second pass nothing is short
        for cell in cells:
            k, c = divmod(int(cell), len(columns))
            extra = min(row_short[k], column_short[c], at_most)
            counts[k, c] += extra
            row_short[k] -= extra
            column_short[c] -= extra
    return counts
