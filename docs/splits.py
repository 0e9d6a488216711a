"""Draw `docs/figures/splits.png`: one panel per partitioner. Needs the heart disease and credit approval tables.

Run it as ``python docs/splits.py``, with BAYESADMM_DATA naming the directory that has them.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bayesadmm_np.data import load_credit_approval, load_digits, load_heart_disease, partition

OUT = Path(__file__).parent / "figures" / "splits.png"
RC = {
    "font.size": 8.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 8.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
}


# Okabe and Ito's palette, distinguishable under every common colour blindness.
FEW = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")


def plot_split(y, parts, ax, clients=None, classes=None):
    """Draw how many rows of each class each client has, as one stacked bar per client."""
    labels, code = np.unique(y, return_inverse=True)
    colours = FEW if len(labels) <= len(FEW) else mpl.colormaps["viridis"](np.linspace(0, 1, len(labels)))
    names, base = clients or [str(k + 1) for k in range(len(parts))], np.zeros(len(parts))
    for c, title in enumerate(classes or labels):
        height = np.array([np.count_nonzero(code[part] == c) for part in parts])
        ax.bar(names, height, bottom=base, label=str(title), color=colours[c], edgecolor="white", linewidth=0.4)
        base += height
    ax.set(xlabel="client", ylabel="rows")
    if clients is not None:
        ax.tick_params("x", rotation=20)
    # the order of the legend is that of the bars, from top to bottom
    ax.legend(title="class", loc="upper left", bbox_to_anchor=(1, 1), frameon=False, reverse=True)
    return ax


def draw() -> Figure:
    """Return the figure of six panels; one legend serves the four of the digits."""
    y, credit, heart = load_digits().y, load_credit_approval(), load_heart_disease().pooled()
    digits = {
        "iid": partition.iid(len(y), 10, np.random.default_rng(0)),
        "label_pairs": partition.label_pairs(y, 5),
        "shards, 2 per client": partition.shards(y, 10, 2, np.random.default_rng(0)),
        "two_dirichlet, α₁ = 1, α₂ = 0.5": partition.two_dirichlet(y, 10, 1.0, 0.5, np.random.default_rng(1)),
    }
    figure = Figure(figsize=(8.4, 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 3).ravel()
    for ax, (title, parts) in zip(axes, digits.items(), strict=False):
        plot_split(y, parts, ax=ax).set_title(title)
        legend = ax.get_legend()
        handles, titles = legend.legend_handles, [text.get_text() for text in legend.get_texts()]
        legend.remove()
    figure.legend(handles, titles, title="digit", loc="outside right upper", frameon=False)

    small_large = partition.small_large(credit.y, 10, np.random.default_rng(0))
    plot_split(credit.y, small_large, ax=axes[4], classes=["refused", "approved"]).set_title("small_large (credit)")
    axes[4].legend(loc="upper left", frameon=False, reverse=True)
    hospitals = np.unique(heart.site).tolist()
    by_hospital = partition.by_column(heart.site)
    plot_split(heart.y, by_hospital, ax=axes[5], clients=hospitals, classes=["healthy", "ill"])
    axes[5].set_title("by_column (heart disease)")
    axes[5].legend(loc="upper right", frameon=False, reverse=True)
    for ax in axes[[1, 2, 4, 5]]:
        ax.set_ylabel("")
    for ax in axes[:3]:
        ax.set_xlabel("")
    return figure


if __name__ == "__main__":
    with mpl.rc_context(RC):
        draw().savefig(OUT, dpi=160)
