"""A picture of a split; needs matplotlib, which is imported where it is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._errors import needed_by
from .partition import _labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette, distinguishable under every common colour blindness.
FEW = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")


def plot_split(
    y: ArrayLike,
    parts: Sequence[NDArray[np.int64]],
    *,
    ax: Axes | None = None,
    clients: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
) -> Axes:
    """Draw how many rows of each class each client has, as one stacked bar per client.

    Up to seven classes have the colours of Okabe and Ito; more have even steps of the map viridis. Both can be told
    apart by colour-blind readers.

    Parameters
    ----------
    y : array_like of int, shape (n,)
        The label of each row.
    parts : sequence of ndarray of int64
        The row numbers of each client, as the functions of `partition` return them.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on; those of a new figure if None.
    clients : sequence of str, optional
        The names of the clients; their numbers, from 1, if None.
    classes : sequence of str, optional
        The names of the classes in the order of their labels; the labels if None.

    Returns
    -------
    matplotlib.axes.Axes
        The axes drawn on.

    Raises
    ------
    ValueError
        If `y` is not a nonempty one-dimensional array of integers, `parts` is empty or holds anything but numbers of
        rows of `y`, or there are too few or too many names.
    ImportError
        If matplotlib is not installed.

    Examples
    --------
    >>> import numpy as np
    >>> from bayesadmm_np.data import partition
    >>> y = np.repeat([0, 1], [30, 20])
    >>> ax = plot_split(y, partition.small_large(y, 4, np.random.default_rng(0)), classes=["healthy", "ill"])
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('client', 'rows')
    """
    labels, code = np.unique(_labels(y), return_inverse=True)
    parts = [_rows(part, k, len(code)) for k, part in enumerate(parts)]
    if not parts:
        raise ValueError("parts must hold the rows of at least one client, got none")
    names = _names("clients", clients, [str(k + 1) for k in range(len(parts))])
    titles = _names("classes", classes, [str(label) for label in labels])
    with needed_by("plot_split needs matplotlib, which is not installed", "demos"):
        import matplotlib as mpl
        import matplotlib.pyplot as plt

    if ax is None:
        _, ax = plt.subplots(layout="constrained")
    colours = FEW if len(labels) <= len(FEW) else mpl.colormaps["viridis"](np.linspace(0, 1, len(labels)))
    base = np.zeros(len(parts))
    for c, title in enumerate(titles):
        height = np.array([np.count_nonzero(code[part] == c) for part in parts])
        ax.bar(names, height, bottom=base, label=title, color=colours[c], edgecolor="white", linewidth=0.4)
        base += height
    ax.set(xlabel="client", ylabel="rows")
    if clients is not None:
        ax.tick_params("x", rotation=20)
    # The order of the legend is that of the bars, from top to bottom.
    ax.legend(title="class", loc="upper left", bbox_to_anchor=(1, 1), frameon=False, reverse=True)
    return ax


def _rows(part: ArrayLike, k: int, n: int) -> NDArray[np.int64]:
    rows = np.asarray(part)
    if rows.ndim != 1 or rows.dtype.kind not in "iu" or (len(rows) and (rows.min() < 0 or rows.max() >= n)):
        raise ValueError(f"parts[{k}] must be an array of row numbers from 0 to {n - 1}, got {part!r}")
    return rows


def _names(argument: str, given: Sequence[str] | None, default: list[str]) -> list[str]:
    if given is None:
        return default
    if len(given) != len(default) or len(set(given)) != len(given):
        raise ValueError(f"{argument} must hold {len(default)} distinct names, got {list(given)!r}")
    return list(given)
