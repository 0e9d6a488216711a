"""How the lessons' figures look: the demos' style (Okabe–Ito colours) with larger type and text as outlines."""

from __future__ import annotations

import matplotlib
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from bayesadmm_np.demos.style import BLACK, BLUE, GREEN, MUTED, ORANGE, PURPLE, RC, SKY, VERMILION

__all__ = [
    "BLACK",
    "BLUE",
    "CYCLE",
    "GREEN",
    "GREY",
    "MARKERS",
    "ORANGE",
    "PURPLE",
    "SKY",
    "VERMILION",
    "log_axis",
    "use",
]

GREY = MUTED
CYCLE = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, BLACK)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def use() -> None:
    """Set the defaults of every figure that follows."""
    matplotlib.rcParams.update(
        {
            **RC,
            "axes.prop_cycle": matplotlib.cycler(color=CYCLE),
            "axes.titlesize": 9.5,
            "axes.labelsize": 9.5,
            "figure.constrained_layout.use": True,
            "font.size": 9.5,
            "lines.linewidth": 1.8,
            "svg.fonttype": "path",
        }
    )


def log_axis(ax: Axes, ylabel: str, xlabel: str = "round", floor: float | None = None) -> None:
    """Label a figure of residuals over rounds and let its y axis be logarithmic."""
    ax.set_yscale("log")
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    if floor is not None:
        ax.set_ylim(bottom=floor)
    ax.xaxis.set_major_locator(plt.MaxNLocator(integer=True))
    ax.grid(axis="y", alpha=0.25)
