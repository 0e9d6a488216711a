"""Draw the two animated figures of the lessons (run it as `python docs/animate.py`).

`figures/circuit.gif` shows the four edges of the duality circuit and their residuals over the rounds of one run.
`figures/boundary.gif` shows the server's decision boundary of ADMM, and Bayesian ADMM's with its posterior band.
Both show the runs of lesson 4, which is executed for them. Nothing is random.
"""

from __future__ import annotations

import contextlib
import io
import runpy
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.animation import FuncAnimation, PillowWriter
from matplotlib.axes import Axes
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parent / "lessons"))

import _style as style
from _data import outlier_clients, outlier_data

import bayesadmm_np as ba

FIGURES = Path(__file__).parent / "figures"
ROUNDS, FRAMES = 36, 16
EDGES = ("broadcast", "natural_gradient", "gather", "dual_map")
LABELS = ("broadcast", r"$-\nabla_\mu\mathbb{E}_q[\ell_k]$", "gather", r"dual map $\nabla A$")
PLACES = np.array([(0.0, 1.0), (0.0, 0.0), (1.0, 0.0), (1.0, 1.0)])
NODES = (r"$\mu_g$", r"$\mu_k$", r"$\eta_k$", r"$\lambda_g$")
FLOOR, CEILING = 1e-16, 10.0


def of_lesson() -> dict[str, ba.Result]:
    """Return the runs of lesson 4 by their names: ADMM's first, then Bayesian ADMM's."""
    (lesson,) = (Path(__file__).parent / "lessons").glob("04_*.py")
    with contextlib.redirect_stdout(io.StringIO()), plt.rc_context():
        runs: dict[str, ba.Result] = runpy.run_path(str(lesson))["runs"]
        plt.close("all")
    return runs


def again(run: ba.Result) -> tuple[ba.Result, list[ba.families.Gaussian]]:
    """Repeat a run to rounding, with the server's distribution after every round (the prior first)."""
    path = [run.prior]
    result = ba.run(
        run.step, outlier_clients(), run.prior, rounds=ROUNDS, tol=1e-12, callback=lambda record, q: path.append(q)
    )
    return result, path


def width_of(residual: float) -> float:
    """Map a residual to a line width: 1 where the edge is closed, 10 where it is wide open."""
    share = (np.log10(max(residual, FLOOR)) - np.log10(FLOOR)) / (np.log10(CEILING) - np.log10(FLOOR))
    return 1.0 + 9.0 * float(np.clip(share, 0.0, 1.0)) ** 2


def circuit(result: ba.Result) -> FuncAnimation:
    """Animate the circuit beside the residuals."""
    values = np.array([[getattr(record.edges, name) for name in EDGES] for record in result.history])
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.5), dpi=90)

    def frame(index: int) -> None:
        left.clear()
        right.clear()
        for number, (text, label) in enumerate(zip(NODES, LABELS, strict=True)):
            start, stop = PLACES[number], PLACES[(number + 1) % 4]
            inset, residual = 0.22 * (stop - start), values[index, number]
            arrow = {"arrowstyle": "-|>", "color": style.CYCLE[number], "lw": width_of(residual), "mutation_scale": 22}
            left.annotate("", stop - inset, start + inset, arrowprops=arrow)
            x, y = 0.5 * (start + stop) + ((-0.13, 0), (0, -0.19), (0.13, 0), (0, 0.19))[number]
            side = ("right", "center", "left", "center")[number]
            note = f"{label}\n{residual:.0e}" if residual > 1e-8 else f"{label}\nholds"
            left.text(x, y, note, color=style.CYCLE[number], ha=side, va="center", fontsize=9)
            left.text(
                *PLACES[number], text, ha="center", va="center", fontsize=15, bbox={"boxstyle": "round", "fc": "w"}
            )
        left.set(xlim=(-0.85, 1.85), ylim=(-0.4, 1.4))
        left.set_title(f"round {index + 1}: thick edges are still open")
        left.axis("off")
        for number, name in enumerate(EDGES):
            shown = np.maximum(values[: index + 1, number], FLOOR)
            marker = style.MARKERS[number]
            right.plot(np.arange(1, index + 2), shown, color=style.CYCLE[number], marker=marker, label=name)
        style.log_axis(right, "residual")
        right.set(xlim=(0.5, ROUNDS + 0.5), ylim=(FLOOR / 3, 100))
        right.legend(fontsize=8, ncols=2, loc="upper right")

    return FuncAnimation(figure, frame, frames=len(values))


def band(axis: Axes, q: ba.families.Gaussian, uncertain: bool) -> None:
    """Draw where the mean score changes sign, and where the posterior does not tell its sign."""
    across, up = np.meshgrid(np.linspace(-3.6, 3.6, 181), np.linspace(-3.6, 3.6, 181))
    grid = np.column_stack([across.ravel(), up.ravel(), np.ones(across.size)])
    mean = (grid @ q.mean).reshape(across.shape)
    if uncertain:
        spread = np.sqrt(np.einsum("ij,jk,ik->i", grid, q.covariance, grid)).reshape(across.shape)
        axis.contourf(across, up, abs(mean / spread), levels=[0, 1.0, 1.96], colors=["0.76", "0.89"])
    if q.mean.any():
        axis.contour(across, up, mean, levels=[0.0], colors="k", linewidths=2)
    else:
        axis.text(0, 3.1, "start: every line is possible", ha="center", fontsize=8.5)


def points(axis: Axes) -> None:
    """Draw the rows of both clients."""
    for k, (X, y) in enumerate(outlier_data()):
        for label, colour in ((0, style.VERMILION), (1, style.BLUE)):
            rows = X[y == label]
            face = colour if k == 0 else "w"
            axis.scatter(*rows[:, :2].T, marker="os"[label], s=30, facecolors=face, edgecolors=colour, lw=1.4, zorder=3)
    axis.annotate("outlier", (2.6, -2.2), (1.2, -3.3), arrowprops={"arrowstyle": "->"}, fontsize=8.5)
    axis.set(xlim=(-3.6, 3.6), ylim=(-3.6, 3.6), xlabel="first feature", ylabel="second feature")
    axis.plot([], [], "o", color="k", label="client 1")
    axis.plot([], [], "o", mfc="w", color="k", label="client 2")
    axis.legend(fontsize=8, loc="lower left", frameon=True)


def boundary(points_only: list[ba.families.Gaussian], path: list[ba.families.Gaussian]) -> FuncAnimation:
    """Animate the server's decision boundary: ADMM's, and Bayesian ADMM's with its posterior band."""
    figure, axes = plt.subplots(1, 2, figsize=(8.4, 4.3), dpi=90)
    runs = ((points_only, "ADMM, ρ = 1"), (path, "Bayesian ADMM, ρ = 1, with bands"))

    def frame(index: int) -> None:
        for axis, (run, name) in zip(axes, runs, strict=True):
            axis.clear()
            band(axis, run[index], run is path)
            points(axis)
            axis.set_title(f"round {index}: {name}")

    return FuncAnimation(figure, frame, frames=FRAMES)


def save(animation: FuncAnimation, name: str, fps: int) -> Path:
    """Write a GIF and close its figure."""
    target = FIGURES / name
    animation.save(target, writer=PillowWriter(fps=fps))
    figure: Figure = animation._fig
    plt.close(figure)
    return target


def main() -> None:
    """Draw both."""
    style.use()
    (_, points_only), (result, path) = (again(run) for run in of_lesson().values())
    for animation, name in ((circuit(result), "circuit.gif"), (boundary(points_only, path), "boundary.gif")):
        target = save(animation, name, fps=2)
        print(f"{target.name}: {target.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
