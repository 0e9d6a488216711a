"""Figures of results: scores by round, and for a grid of two keys a heat map."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import LogNorm, Normalize
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from bayesadmm_np.demos import style

SYMBOLS = {
    "rho": "ρ",
    "gamma": "γ",
    "prior_precision": "δ",
    "temperature": "τ",
    "solver.epochs": "epochs",
}
"""Keys of an experiment file in words."""
NAMES = {"FedLapCov": "FedLap-Cov", "FedLapFunc": "FedLap-Func", "IVONADMM": "IVON-ADMM", "IVONPVI": "IVON-PVI"}
NAMES |= {"PFedMe": "pFedMe", "PFedBayes": "pFedBayes", "PFedVEM": "pFedVEM"}
ROWS = ("FedAvg", "FedProx", "FedDyn", "FedLap", "FedLapCov", "IVONADMM", "FedLapFunc", "IVONPVI")
"""Rows that look the same in the plots of different experiments."""
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#222222")
COLOURS += ("#8B5A2B", "#B2182B", "#6A3D9A", "#7F7F00", "#00CED1")
MARKERS = ("o", "s", "^", "D", "v")
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
    mean: Any
    sd: Any
    ended: str = ""


def curves_of(runs: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """The curve of every method of `runs` in results.json, of the rounds that all its seeds have."""
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


def draw_curves(
    title: str, curves: Sequence[Curve], folder: Path, stem: str, front: Sequence[str] | None = None
) -> None:
    """Draw accuracy and NLL at the mean by round; the band is one standard deviation over seeds.

    Curves that `front` does not name are thin and grey, and have one entry of the legend together. A curve that ends
    early has a ✗ at its end, and words in the legend.
    """
    labels = [curve.label for curve in curves]
    behind = [] if front is None else [label for label in labels if label not in front]
    names = [in_words(curve.label) + (f" (✗ {curve.ended})" if curve.ended else "") for curve in curves]
    own = looks([label for label in labels if label not in behind])
    with style.context():
        figure = style.new_figure(style.WIDTH, 3.1)
        for k, (axes, (_, heading, scale, *_)) in enumerate(zip(figure.subplots(1, 2), PANELS, strict=True)):
            colours = iter(own)
            for curve, name in zip(curves, names, strict=True):
                mean, sd = scale * curve.mean[k], scale * curve.sd[k]
                if curve.label in behind:
                    words = f"{len(behind)} others, in the table" if curve.label == behind[0] else None
                    axes.plot(curve.rounds, mean, label=words, color="#BDBDBD", linewidth=0.7, zorder=1)
                    continue
                look = next(colours)
                axes.fill_between(curve.rounds, mean - sd, mean + sd, color=look["color"], alpha=0.18, linewidth=0)
                axes.plot(curve.rounds, mean, label=name, markevery=-(-len(mean) // 12), **look)
                if curve.ended and len(mean):
                    cross = {"marker": "x", "markersize": 6, "markeredgewidth": 1.6}
                    axes.plot(curve.rounds[-1:], mean[-1:], color=look["color"], **cross)
            axes.set(xlabel="round", title=heading)
            shown = [curve for curve in curves if curve.label not in behind]
            bands = [(c.rounds, scale * (c.mean[k] + sign * c.sd[k])) for c in shown for sign in (-1.0, 1.0)]
            axes.set_ylim(*_limits(bands))
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            style.tidy(axes)
        handles, entries = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, entries, loc="outside lower center", ncols=3)
        _finish(figure, title, folder, stem)


def draw_rounds(
    title: str, table: Sequence[Mapping[str, Any]], paper: Mapping[str, Any], folder: Path, stem: str
) -> None:
    """Draw accuracy and NLL of a table that has a few rounds: a line a method, darker with the round.

    Bars are standard deviations over seeds; a hollow diamond is the paper's number at its last round.
    """
    methods = list(dict.fromkeys(row["method"] for row in table))
    rounds = sorted({row["round"] for row in table})
    shades = [colormaps["Blues"](x) for x in np.linspace(0.45, 1.0, len(rounds))]
    with style.context():
        figure = style.new_figure(style.WIDTH, 1.3 + 0.26 * len(methods))
        for k, (axes, (name, heading, scale, *_)) in enumerate(
            zip(figure.subplots(1, 2, sharey=True), PANELS, strict=True)
        ):
            for number, (at, shade) in enumerate(zip(rounds, shades, strict=True)):
                own = [(methods.index(row["method"]), row) for row in table if row["round"] == at and row["seeds_done"]]
                own = [(place, row) for place, row in own if row[f"{name}_mean"] is not None]
                values, errors = ([scale * row[f"{name}_{kind}"] for _, row in own] for kind in ("mean", "sd"))
                heights = [place + 0.22 * (number - 0.5 * (len(rounds) - 1)) for place, _ in own]
                dots = {"fmt": "o", "markersize": 3.8, "linewidth": 0.9, "color": shade}
                axes.errorbar(values, heights, xerr=errors, label=f"round {at}", **dots)
            theirs = [(place, paper[method][k][-1]) for place, method in enumerate(methods) if method in paper]
            known = [(float(text.split(" ")[0]), place) for place, text in theirs if text != "–"]
            if known:
                look = {"marker": "D", "markersize": 4.5, "markerfacecolor": "white", "color": style.INK}
                axes.plot(*zip(*known, strict=True), linestyle="", label=f"the paper, round {rounds[-1]}", **look)
            axes.set(title=heading)
            style.tidy(axes)
        axes.set_yticks(range(len(methods)), [in_words(method) for method in methods])
        axes.invert_yaxis()
        handles, entries = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, entries, loc="outside lower center", ncols=len(entries))
        _finish(figure, title, folder, stem)


def in_words(label: str) -> str:
    """A label without keys of the file: 'IVON-ADMM, ρ = 0.5' of 'IVONADMM rho=0.5'."""
    method, *rest = label.split(" ")
    words, values = [NAMES.get(method, method)], []
    for word in rest:
        key, is_value, value = word.partition("=")
        if is_value:
            name = SYMBOLS.get(key, key)
            values.append(f"{name} {value}" if len(name) > 2 else f"{name} = {value}")
        else:
            words.append(word)
    return ", ".join([" ".join(words), *values])


def looks(labels: Sequence[str]) -> list[dict[str, Any]]:
    """Keywords of `Axes.plot`: a row's first line has the row's own in every plot, all others the first free ones."""
    words = [label.split(" ")[0] for label in labels]
    kept = {words.index(row): place for place, row in enumerate(ROWS) if row in words}
    free = (place for place in itertools.count() if place not in kept.values())
    places = [kept[j] if j in kept else next(free) for j in range(len(labels))]
    line = {"linewidth": 1.0, "markersize": 3.5}
    return [{"color": COLOURS[j % len(COLOURS)], "marker": MARKERS[j % len(MARKERS)], **line} for j in places]


def _limits(curves: Sequence[tuple[Sequence[int], Any]]) -> tuple[float | None, float | None]:
    """The span of the later rounds and the best of all, with a margin; (None, None) where it has no width."""
    last = max(max(rounds, default=0) for rounds, _ in curves)
    late = [mean[np.asarray(rounds) > SETTLED * last] for rounds, mean in curves if len(rounds)]
    values = np.concatenate([part[np.isfinite(part)] for part in late]) if late else np.empty(0)
    if values.size < 2 or not np.ptp(values) > 0:
        return None, None
    margin = 0.08 * float(np.ptp(values))
    return float(values.min()) - margin, float(values.max()) + margin


def draw_heatmap(
    stem: str, grid: Mapping[str, Sequence[Any]], rows: Sequence[Mapping[str, Any]], title: str, folder: Path
) -> None:
    """Draw accuracy and NLL over a grid of two keys; ✗ where no seed came to the round.

    The first key runs down, the second to the right; of the table there is a row a point, the second running fastest.
    """
    (down, right), (heights, widths) = list(grid), list(grid.values())
    with style.context():
        figure = style.new_figure(max(2 * (1.0 + 0.62 * len(widths)), 5.0), 1.3 + 0.46 * len(heights))
        for axes, (name, heading, scale, digits, colours) in zip(figure.subplots(1, 2), PANELS, strict=True):
            found = [row[f"{name}_mean"] for row in rows]
            values = scale * np.array([np.nan if value is None else value for value in found])
            low, high = np.nanmin(values), np.nanmax(values)
            norm = LogNorm(low, high) if name == "nll" and 0.0 < low < high else Normalize(low, high)
            for row, value, (i, j) in zip(rows, values, np.ndindex(len(heights), len(widths)), strict=True):
                _draw_cell(axes, i, j, row, value, digits, colormaps[colours](norm(value)))
            axes.set(xlim=(-0.5, len(widths) - 0.5), ylim=(len(heights) - 0.5, -0.5))
            axes.set_xticks(range(len(widths)), [f"{value:g}" for value in widths])
            axes.set_yticks(range(len(heights)), [f"{value:g}" for value in heights])
            axes.tick_params(length=0)
            axes.spines[:].set_visible(False)
            axes.set(xlabel=SYMBOLS.get(right, right), ylabel=SYMBOLS.get(down, down), title=heading)
        if any(row["seeds_done"] == 0 for row in rows):
            figure.supxlabel("✗ failed", fontsize=7, color=style.MUTED)
        _finish(figure, title, folder, stem)


def _draw_cell(axes: Any, i: int, j: int, row: Mapping[str, Any], value: float, digits: str, fill: Any) -> None:
    """One value and, small below it, the number of its seeds where some failed."""
    failed, is_dark = row["seeds_done"] == 0, float(np.dot(fill[:3], (0.299, 0.587, 0.114))) < 0.5
    face = {"facecolor": "white", "hatch": "////", "edgecolor": "#C9C9C9"} if failed else {"facecolor": fill}
    axes.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, **{"edgecolor": "white", "lw": 0.8, **face}))
    how: dict[str, Any] = {"ha": "center", "va": "center", "color": "white" if is_dark and not failed else style.INK}
    if failed:
        axes.text(j, i, "✗", fontsize=10, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5}, **how)
        return
    axes.text(j, i, f"{value:{digits}}", fontsize=8, **how)
    if row["seeds_done"] < row["seeds"]:
        axes.text(j, i + 0.32, f"{row['seeds_done']} of {row['seeds']} seeds", fontsize=5.5, **how)


def _finish(figure: Any, title: str, folder: Path, stem: str) -> None:
    """Save a figure, with its title in lines that the figure is wide enough for; pages show the PNG alone."""
    figure.suptitle("\n".join(textwrap.wrap(title, width=round(14 * figure.get_figwidth()))), fontsize=8.5)
    style.save(figure, folder, stem)
    (folder / f"{stem}.svg").unlink()
