"""The plots of `experiment`: scores by round, and for a grid of two keys a heat map."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import LogNorm, Normalize, hsv_to_rgb
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from ..demos import style
from ._trial_plots import COLOURS, MARKERS, Cell, draw_cells

SYMBOLS = {
    "rho": "ρ",
    "gamma": "γ",
    "prior_precision": "δ",
    "temperature": "τ",
    "solver.lr": "rate",
    "solver.epochs": "epochs",
    "solver.batch_size": "batch",
    "solver.hess_init": "h₀",
    "solver.beta2": "β₂",
    "solver.clip_radius": "clip radius",
}
"""Keys of an experiment file in words."""
NAMES = {"FedLapCov": "FedLap-Cov", "FedLapFunc": "FedLap-Func", "IVONADMM": "IVON-ADMM", "IVONPVI": "IVON-PVI"}
NAMES |= {"PFedMe": "pFedMe", "PFedBayes": "pFedBayes", "PFedVEM": "pFedVEM"}
ROWS = ("FedAvg", "FedProx", "FedDyn", "FedLap", "FedLapCov", "IVONADMM", "FedLapFunc", "IVONPVI")
"""Rows that look the same in the plots of different experiments."""
MORE_COLOURS = ("#8B5A2B", "#B2182B", "#6A3D9A", "#7F7F00", "#00CED1")
SETTLED = 0.2
"""Share of the rounds after which every point lies within the axes: first rounds would hide the others' differences."""
PANELS = (("accuracy", "Accuracy / %", 100.0, ".1f", "YlGnBu"), ("nll", "NLL", 1.0, ".3f", "YlGnBu_r"))
"""Of a heat map: the score, its title, scale and digits, and the colours, darker where it is better."""


@dataclass(frozen=True)
class Curve:
    """Scores of a method by round, in the order of `PANELS`: means over seeds, and standard deviations.

    `ended` says in words why there are no later rounds.
    """

    label: str
    rounds: Sequence[int]
    mean: NDArray[np.float64]
    sd: NDArray[np.float64]
    ended: str = ""


def curves_of(runs: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """Return the curve of every method of `runs` in results.json, of the rounds that all its seeds have."""
    last, found = max((run["rounds"] for run in runs), default=0), []
    for label in dict.fromkeys(run["method"] for run in runs):
        own = [run for run in runs if run["method"] == label]
        n = min(len(run["curves"]["round"]) for run in own)
        short = [run for run in own if run["rounds"] < last]
        ended = ""
        if short:
            seeds = "" if len(own) == 1 else f"{len(short)} of {len(own)} seeds, "
            ended = f"{seeds}from round {min(run['rounds'] for run in short) + 1} on"
        values = np.array([[run["curves"][name][:n] for name, *_ in PANELS] for run in own])
        found.append(Curve(label, own[0]["curves"]["round"][:n], values.mean(axis=0), values.std(axis=0), ended))
    return found


def draw_curves(title: str, curves: Sequence[Curve], folder: Path, stem: str = "curves") -> list[str]:
    """Draw accuracy and NLL at the mean by round; the band is one standard deviation over seeds.

    A curve that ends early has a ✗ at its end, and words in the legend. Returns the names of the files, none where
    there is nothing to draw.
    """
    if not curves:
        return []
    names = [in_words(curve.label) + (f" (✗ {curve.ended})" if curve.ended else "") for curve in curves]
    columns = max(1, min(4, len(names), 110 // (max(map(len, names)) + 10)))
    with style.context():
        figure = style.new_figure(style.WIDTH, 2.6 + 0.16 * -(-len(names) // columns))
        for k, (axes, (_, heading, scale, *_)) in enumerate(zip(figure.subplots(1, 2), PANELS, strict=True)):
            for curve, name, look in zip(curves, names, looks([curve.label for curve in curves]), strict=True):
                mean, sd, colour = scale * curve.mean[k], scale * curve.sd[k], look["color"]
                axes.fill_between(curve.rounds, mean - sd, mean + sd, color=colour, alpha=0.18, linewidth=0)
                axes.plot(curve.rounds, mean, label=_plain(name), markevery=-(-len(mean) // 12), **look)
                if curve.ended and len(mean):
                    axes.plot(curve.rounds[-1:], mean[-1:], color=colour, marker="x", markersize=6, markeredgewidth=1.6)
            axes.set(xlabel="round", title=heading)
            axes.set_ylim(*_limits([(curve.rounds, scale * curve.mean[k]) for curve in curves]))
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            style.tidy(axes)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=columns)
        figure.suptitle(_plain(_wrapped(title, figure)), fontsize=8.5)
        return [path.name for path in style.save(figure, folder, stem)]


def in_words(label: str) -> str:
    """A label without keys of the file.

    Examples
    --------
    >>> from bayesadmm_np.cli._experiment_plots import in_words
    >>> in_words("IVONADMM rho=0.5 solver.lr=0.1")
    'IVON-ADMM, ρ = 0.5, rate 0.1'
    """
    method, *rest = label.split(" ")
    words, values = [NAMES.get(method, method)], []
    for word in rest:
        key, is_value, value = word.partition("=")
        if is_value:
            name = SYMBOLS.get(key, key.removeprefix("solver.").replace("_", " "))
            values.append(f"{name} {value}" if len(name) > 2 else f"{name} = {value}")
        else:
            words.append(word)
    return ", ".join([" ".join(words), *values])


def looks(labels: Sequence[str]) -> list[dict[str, Any]]:
    """Keywords of `Axes.plot`, one a method: the same in every plot, and no two alike."""
    return [
        {"color": _colour(j), "marker": MARKERS[j % len(MARKERS)], "linewidth": 1.0, "markersize": 3.5}
        for j in places(labels)
    ]


def _limits(curves: Sequence[tuple[Sequence[int], NDArray[np.float64]]]) -> tuple[float | None, float | None]:
    """The span of the later rounds and the best of all, with a margin; (None, None) where it has no width."""
    last = max((max(rounds, default=0) for rounds, _ in curves), default=0)
    late = [mean[np.asarray(rounds) > SETTLED * last] for rounds, mean in curves if len(rounds)]
    values = np.concatenate([part[np.isfinite(part)] for part in late]) if late else np.empty(0)
    if values.size < 2 or not np.ptp(values) > 0:
        return None, None
    margin = 0.08 * float(np.ptp(values))
    return float(values.min()) - margin, float(values.max()) + margin


def _colour(place: int) -> Any:
    """A colour for every place, no two alike."""
    own = (*COLOURS, *MORE_COLOURS)
    if place < len(own):
        return own[place]
    return hsv_to_rgb((0.618034 * place % 1.0, 0.55, 0.45 + 0.4 / (1 + place - len(own))))


def places(labels: Sequence[str]) -> list[int]:
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
