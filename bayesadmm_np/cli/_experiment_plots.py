"""The plots of `experiment`: scores by round, and for a grid of two keys a heat map."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import LogNorm, Normalize
from matplotlib.ticker import MaxNLocator

from ..demos import style
from ._trial_plots import COLOURS, MARKERS, Cell, draw_cells

SYMBOLS = {"rho": "ρ", "gamma": "γ", "prior_precision": "δ", "temperature": "τ"}
ROWS = ("FedAvg", "FedProx", "FedDyn", "FedLap", "FedLapCov", "IVONADMM", "FedLapFunc")
"""Rows that look the same in the plots of different experiments."""
PANELS = (("accuracy", "Accuracy / %", 100.0, ".1f", "YlGnBu"), ("nll", "NLL", 1.0, ".3f", "YlGnBu_r"))
"""Of a heat map: the score, its title, scale and digits, and the colours, darker where it is better."""


def draw_curves(title: str, labels: Sequence[str], outcomes: Sequence[Any], folder: Path) -> list[str]:
    """Draw accuracy and NLL at the mean by round; the band is one standard deviation over seeds.

    Returns the names of the files, none where there is nothing to draw.
    """
    if not labels:
        return []
    columns = max(1, min(4, len(labels), 110 // (max(map(len, labels)) + 10)))
    with style.context():
        figure = style.new_figure(style.WIDTH, 2.6 + 0.16 * -(-len(labels) // columns))
        looks = _places(labels)
        for axes, name in zip(figure.subplots(1, 2), ("accuracy", "nll"), strict=True):
            for j, label in zip(looks, labels, strict=True):
                own = [outcome.history for outcome in outcomes if outcome.label == label]
                # a run that failed ends the mean
                together = [records for records in zip(*own, strict=False) if records[0].at_mean is not None]
                values = np.array([[getattr(record.at_mean, name) for record in records] for records in together])
                if not values.size:
                    continue
                rounds, mean, sd = [records[0].round for records in together], values.mean(axis=1), values.std(axis=1)
                colour, marker = COLOURS[j % len(COLOURS)], MARKERS[j % len(MARKERS)]
                axes.fill_between(rounds, mean - sd, mean + sd, color=colour, alpha=0.18, linewidth=0)
                axes.plot(rounds, mean, color=colour, marker=marker, label=_plain(label), linewidth=1.0, markersize=3.5)
            axes.set(xlabel="round", ylabel={"nll": "NLL"}.get(name, name))
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            style.tidy(axes)
        handles, names = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=columns)
        figure.suptitle(_plain(_wrapped(title, figure)), fontsize=8.5)
        return [path.name for path in style.save(figure, folder, "curves")]


def _places(labels: Sequence[str]) -> list[int]:
    """Number the looks of methods: a row's first line has the row's own, all others the first that are free."""
    words = [label.split(" ")[0] for label in labels]
    kept = {words.index(row): place for place, row in enumerate(ROWS) if row in words}
    free = (place for place in itertools.count() if place not in kept.values())
    return [kept[j] if j in kept else next(free) for j in range(len(labels))]


def new_stem(label: str, taken: Sequence[str]) -> str:
    """Return a name for a file, of a label; another than those taken also where letters' case does not count.

    Examples
    --------
    >>> from bayesadmm_np.cli._experiment_plots import new_stem
    >>> new_stem("a: b", ["heatmap_A_b"])
    'heatmap_a_b_2'
    """
    stem = "heatmap_" + re.sub(r"[^\w.-]+", "_", label).strip("_")
    folded = {name.casefold() for name in taken}
    others = (f"{stem}_{number}" for number in itertools.count(2))
    return next(name for name in itertools.chain([stem], others) if name.casefold() not in folded)


def draw_heatmap(
    stem: str, grid: Mapping[str, Sequence[Any]], rows: Sequence[Mapping[str, Any]], title: str, folder: Path
) -> list[str]:
    """Draw accuracy and NLL over a grid of two keys; ✗ where no seed came to the round.

    The first key runs down, the second to the right; of the table there is a row a point, the second running fastest.
    """
    (down, right), (heights, widths) = list(grid), list(grid.values())
    with style.context():
        figure = style.new_figure(max(2 * (1.0 + 0.62 * len(widths)), 5.0), 1.3 + 0.46 * len(heights))
        for axes, (name, heading, scale, digits, colours) in zip(figure.subplots(1, 2), PANELS, strict=True):
            values = scale * np.array([row[f"{name}_mean"] for row in rows]).reshape(len(heights), len(widths))
            known = values[np.isfinite(values)]
            low, high = (known.min(), known.max()) if known.size else (1.0, 1.0)
            norm = LogNorm(low, high) if name == "nll" and 0.0 < low < high else Normalize(low, high)
            fills = colormaps[colours](norm(values))
            cells = [
                [_cell(values[i, j], digits, fills[i, j], rows[i * len(widths) + j]) for j in range(len(widths))]
                for i in range(len(heights))
            ]
            draw_cells(axes, [*map(_text, heights)], [*map(_text, widths)], cells)
            axes.set_xlabel(SYMBOLS.get(right, right))
            axes.set_ylabel(SYMBOLS.get(down, down))
            axes.set_title(heading)
        figure.suptitle(_plain(_wrapped(title, figure)), fontsize=8.5)
        if any(row["seeds_done"] == 0 for row in rows):
            figure.supxlabel("✗ failed", fontsize=7, color=style.MUTED)
        return [path.name for path in style.save(figure, folder, stem)]


def _cell(value: float, digits: str, fill: Any, row: Mapping[str, Any]) -> Cell:
    """Write one value and, small below it, the number of its seeds where some failed."""
    if row["seeds_done"] == 0:
        return Cell("✗", None, "////")
    below = "" if row["seeds_done"] == row["seeds"] else f"{row['seeds_done']} of {row['seeds']} seeds"
    return Cell(f"{value:{digits}}", fill, None, below) if np.isfinite(value) else Cell("∞", None, None, below)


def _wrapped(title: str, figure: Any) -> str:
    """A title in lines that the figure is wide enough for."""
    return "\n".join(textwrap.wrap(title, width=round(14 * figure.get_figwidth())))


def _plain(text: str) -> str:
    """Escape a user's text, so that it is not read as a formula."""
    return text.replace("$", r"\$")


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
