"""The plots of `compare` and `sweep`, in the style of the figures."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import LogNorm
from matplotlib.patches import Rectangle
from matplotlib.transforms import offset_copy

from ..demos import style
from ._trials import CLOSE, Trial, cell_text

LOOKS = (
    ("#0072B2", "o"),
    ("#D55E00", "s"),
    ("#009E73", "^"),
    ("#CC79A7", "D"),
    ("#E69F00", "v"),
    ("#222222", "P"),
)
OTHERS = ("#B5B5B5", ".")

FLOOR = 1e-9
"""Standard deviations: below, the pooled answer itself is not known better."""

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#222222")
MARKERS = ("o", "s", "^", "D", "v")
ROUNDS = "YlGnBu"


def draw_compare(trials: Sequence[Trial], score: str, scored_on: str, folder: Path) -> None:
    """Draw the distance by round, and beside it each method's end."""
    with style.context():
        figure = style.new_figure(style.WIDTH, 1.4 + 0.17 * max(len(trials), 8))
        left, right = figure.subplots(1, 2, width_ratios=(1.15, 1.0))
        looks = _looks(trials)
        _by_round(left, trials, looks)
        _ends(right, trials, looks, score)
        figure.supxlabel(f"{score} on {scored_on}; filled: the certificate holds", fontsize=7, color=style.MUTED)
        style.save(figure, folder, "compare")


def _looks(trials: Sequence[Trial]) -> list[tuple[str, str]]:
    """A colour and a marker for as many methods as can be told apart, the nearest first; the others are grey."""
    drawn = [j for j, trial in enumerate(trials) if trial.distances][: len(LOOKS)]
    return [LOOKS[drawn.index(j)] if j in drawn else OTHERS for j in range(len(trials))]


def _by_round(axes: Any, trials: Sequence[Trial], looks: Sequence[tuple[str, str]]) -> None:
    named: list[Any] = []
    for trial, (colour, marker) in reversed(list(zip(trials, looks, strict=True))):  # the coloured lie above
        if trial.distances:
            values = np.maximum(trial.distances, FLOOR)
            rounds = np.arange(1, len(values) + 1)
            first = (colour, marker) == OTHERS and OTHERS not in [look for look, _ in named]
            width, name = (0.6, "the others") if (colour, marker) == OTHERS else (1.2, trial.method)
            (line,) = axes.plot(
                rounds, values, color=colour, marker=marker, markevery=[-1], linewidth=width, markersize=4
            )
            if first or (colour, marker) != OTHERS:
                named.append(((colour, marker), (line, name)))
    last = max((len(trial.distances) for trial in trials), default=1)
    ticks = [tick for tick in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if tick <= last]
    axes.set(xscale="log", yscale="log", xlabel="round", ylabel="distance / sd")
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.axhline(CLOSE, color=style.MUTED, linewidth=0.6, linestyle=(0, (4, 2)))
    outside = {"xycoords": ("axes fraction", "data"), "xytext": (3, 0), "textcoords": "offset points", "va": "center"}
    axes.annotate(f"{CLOSE:g} sd", (1.0, CLOSE), color=style.MUTED, fontsize=7, **outside)
    axes.set_title("Distance from the pooled answer by round")
    lines, names = zip(*(entry for _, entry in reversed(named)), strict=True) if named else ((), ())
    # Below the axes: inside them every corner holds the end of a curve.
    beneath = offset_copy(axes.transAxes, axes.figure, y=-32, units="points")
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "bbox_transform": beneath, "ncols": 2}
    axes.legend(lines, names, fontsize=6.5, handlelength=1.6, frameon=False, **below)
    style.tidy(axes)


def _ends(axes: Any, trials: Sequence[Trial], looks: Sequence[tuple[str, str]], score: str) -> None:
    known = [max(trial.distance, FLOOR) for trial in trials if np.isfinite(trial.distance)] or [1.0]
    axes.set_xscale("log")
    axes.set_xlim(min(known) / 3.0, max(known) * 3.0)

    def write(place: float, x: float, text: str, **how: Any) -> None:
        axes.annotate(text, (x, place), xycoords=("axes fraction", "data"), va="center", **{"ha": "right", **how})

    write(-0.9, 1.2, "rounds", fontsize=7, color=style.MUTED)
    write(-0.9, 1.5, score, fontsize=7, color=style.MUTED)
    for place, (trial, (colour, marker)) in enumerate(zip(trials, looks, strict=True)):
        if trial.failed:
            write(place, 0.04, "✗ failed", ha="left", fontsize=7.5)
        elif np.isfinite(trial.distance):
            inside = colour if trial.holds else "white"
            end = max(trial.distance, FLOOR)
            axes.plot(end, place, marker=marker, markerfacecolor=inside, markeredgecolor=colour, markersize=5)
        write(place, 1.2, f"{trial.rounds}" if trial.rounds else "–", fontsize=7.5)
        write(place, 1.5, f"{trial.score:.3f}" if np.isfinite(trial.score) else "–", fontsize=7.5)
    axes.set_yticks(range(len(trials)), [trial.method for trial in trials])
    axes.set_ylim(len(trials) - 0.4, -1.4)
    axes.set_xlabel("distance / sd")
    axes.set_title("At the end")
    style.tidy(axes)


def draw_sweep(
    trials: Mapping[tuple[float | None, float | None], Trial],
    rhos: Sequence[float | None],
    gammas: Sequence[float | None],
    title: str,
    rounds: int,
    folder: Path,
) -> None:
    """Draw a heat map of rounds to convergence; failures are hatched and marked ✗."""
    done = [trial.rounds for trial in trials.values() if trial.status == "converged"]
    fewest = max(min(done, default=1), 1)
    norm = LogNorm(fewest, max(max(done, default=1), fewest + 1))  # of one value it would give an array

    def cell(trial: Trial) -> Cell:
        converged = trial.status == "converged"
        fill = colormaps[ROUNDS](norm(trial.rounds)) if converged else None
        return Cell(cell_text(trial, rounds), fill, "////" if trial.failed else None if converged else "....")

    with style.context():
        figure = style.new_figure(max(1.6 + 0.62 * len(rhos), 3.8), 1.5 + 0.42 * len(gammas))
        axes = figure.add_subplot()
        cells = [[cell(trials[rho, gamma]) for rho in rhos] for gamma in gammas]
        draw_cells(axes, [*map(_word, gammas)], [*map(_word, rhos)], cells)
        axes.invert_yaxis()
        axes.set_xlabel("" if None in rhos else "ρ")
        axes.set_ylabel("" if None in gammas else "γ", rotation=0, labelpad=10)
        axes.set_title(title)
        figure.supxlabel(f"✗ failed   >{rounds}: not converged after {rounds} rounds", fontsize=7, color=style.MUTED)
        style.save(figure, folder, "sweep")


def _word(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


@dataclass(frozen=True)
class Cell:
    """One cell of a heat map: without a fill it is white, and hatched where its run failed.

    Attributes
    ----------
    text : str
    fill : tuple of float or None
    hatch : str or None
    below : str
        In small letters.
    """

    text: str
    fill: Any = None
    hatch: str | None = None
    below: str = ""


def draw_cells(axes: Any, down: Sequence[str], right: Sequence[str], cells: Sequence[Sequence[Cell]]) -> None:
    """Draw a heat map, the first row above."""
    for i, j in itertools.product(range(len(down)), range(len(right))):
        found = cells[i][j]
        fill, edge = "white" if found.fill is None else found.fill, "#C9C9C9" if found.hatch else "white"
        axes.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, facecolor=fill, hatch=found.hatch, edgecolor=edge, lw=0.8))
        dark = found.fill is not None and float(np.dot(found.fill[:3], (0.299, 0.587, 0.114))) < 0.5
        how: dict[str, Any] = {"ha": "center", "va": "center", "color": "white" if dark else style.INK}
        behind = {"facecolor": "white", "edgecolor": "none", "pad": 1.5} if found.hatch else None
        axes.text(j, i, found.text, fontsize=10 if found.text == "✗" else 8, bbox=behind, **how)
        if found.below:
            axes.text(j, i + 0.32, found.below, fontsize=5.5, **how)
    axes.set(xlim=(-0.5, len(right) - 0.5), ylim=(len(down) - 0.5, -0.5))
    axes.set_xticks(range(len(right)), right)
    axes.set_yticks(range(len(down)), down)
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
