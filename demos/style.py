"""One look for every figure: a colour, marker and line style per method, sizes that stay legible at column width."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

__all__ = ["CLASS_COLOURS", "FAINT", "INK", "MUTED", "WIDTH", "Look", "context", "look", "new_figure", "save", "tidy"]

WIDTH = 7.2
"""Inches: the text width of a two-column page."""

# Okabe and Ito's palette, distinguishable under every common colour blindness.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
INK, MUTED, FAINT = "#222222", "#6E6E6E", "#ABABAB"
CLASS_COLOURS = (ORANGE, BLUE)

RC: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 8.0,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.5,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.5,
    "mathtext.fontset": "dejavusans",
    "svg.fonttype": "none",
    "svg.hashsalt": "bayesadmm-np",
    "figure.dpi": 100,
}


@dataclass(frozen=True)
class Look:
    """How one method is drawn."""

    colour: str
    marker: str
    line: Any = "-"
    hollow: bool = False

    def kwargs(self) -> dict[str, Any]:
        """Return keywords for `Axes.plot`."""
        inside, edge = ("white", self.colour) if self.hollow else (self.colour, "white")
        marker = {"markerfacecolor": inside, "markeredgecolor": edge, "markeredgewidth": 0.4}
        return {"color": self.colour, "marker": self.marker, "linestyle": self.line, **marker}


LOOKS = {
    "ADMM": Look(MUTED, "s", (0, (4, 1.2))),
    "BregmanADMM": Look(PURPLE, "D", (0, (3, 1.2, 1, 1.2))),
    "PVI": Look(VERMILION, "v", (0, (1, 1))),
    "damped PVI": Look(ORANGE, "^", (0, (5, 1.5))),
    "AMA": Look(BLACK, "P", (0, (2, 1))),
    "BayesADMM": Look(BLUE, "o", "-"),
    "safeguarded": Look(SKY, "o", (0, (6, 1))),
    "Accelerated": Look(GREEN, "*", "-"),
}


HOLLOW = Look(BLUE, "h", (0, (3, 1)), hollow=True)
"""BayesADMM, once more in the same figure."""


def look(method: str) -> Look:
    """Return the look of a method; the same in every figure."""
    return LOOKS[method]


@contextmanager
def context() -> Iterator[None]:
    """Draw inside with these settings; the caller's are left alone."""
    with mpl.rc_context(RC):
        yield


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure that needs no display."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def tidy(axes: Axes) -> None:
    """Light grid, nothing else."""
    axes.grid(True, which="major")
    axes.tick_params(length=2.5)


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write name.svg and name.png; the bytes depend on the figure alone (no date, fixed ids)."""
    paths = [folder / f"{name}.svg", folder / f"{name}.png"]
    with context():
        figure.savefig(paths[0], metadata={"Date": None, "Creator": None}, facecolor="white")
        figure.savefig(paths[1], dpi=220, metadata={"Software": None}, facecolor="white")
    return paths
