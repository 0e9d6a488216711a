"""Draw the idea in one picture (run it as `python docs/idea.py`): forces that cancel beside bells that multiply.

Three clients, least squares with one parameter, and one method, `BayesADMM(rho=1)`, whose family alone differs. On the
left a family of points: multipliers are forces on them. On the right Gaussians: duals are factors of the posterior.
`figures/idea.svg` and `.png` show the end of the run, `docs/figures/idea.gif` its rounds. Nothing is random.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib.animation import FuncAnimation, PillowWriter
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import bayesadmm_np as ba
from bayesadmm_np.demos import style

FIGURES = Path(__file__).parent / "figures"
PICTURES = Path(__file__).parents[1] / "figures"
STIFFNESS, ANCHORS = (1.2, 4.0, 2.0), (-2.4, 1.2, 2.4)
PRIOR_MEAN, PRIOR_PRECISION = -0.6, 1.0
ROUNDS = (*range(1, 13), 16, 24, 60)
NAMES = ("prior", "site 1", "site 2", "site 3")
COLOURS = (style.MUTED, style.BLUE, style.VERMILION, style.GREEN)
ROWS = (4.0, 3.0, 2.0, 1.0)  # heights of the four rows; their sum, or product, is drawn at 0
LEFT, RIGHT, PER_FORCE, TALL = -5.1, 4.7, 0.55, 0.74
LABELS, SEEN = LEFT - 1.5, 0.02
GRID = np.linspace(LEFT, RIGHT, 301)


@dataclass(frozen=True)
class Scene:
    """Numbers of a round; the prior is the first of the four rows."""

    round: int
    copies: np.ndarray  # (4,) the points of the prior (the server's) and of the clients
    forces: np.ndarray  # (4,) their multipliers; the prior pulls with −δ(θ_g − m_0)
    factors: np.ndarray  # (4, 2) linear part and precision of each factor's logarithm
    posterior: np.ndarray  # (2,) the same of the server's distribution

    @property
    def force_left(self) -> float:
        """Sum of the forces."""
        return float(abs(self.forces.sum()))

    @property
    def factor_left(self) -> float:
        """Largest difference between the server's distribution and the product of the factors, in λ."""
        return float(abs(self.factors.sum(axis=0) - self.posterior).max())


def scenes() -> list[Scene]:
    """Run both families and return every round; the first is the start, without forces or factors."""
    clients = [
        ba.losses.LeastSquares([[np.sqrt(s)]], [np.sqrt(s) * at]) for s, at in zip(STIFFNESS, ANCHORS, strict=True)
    ]
    found = []
    mean, method = np.array([PRIOR_MEAN]), ba.methods.BayesADMM(rho=1.0)
    points, bells = (
        ba.families.IsotropicGaussian(mean, PRIOR_PRECISION),
        ba.families.FullGaussian(mean, PRIOR_PRECISION),
    )
    prior = bells.natural.to_vector()
    found.append(Scene(0, np.full(4, PRIOR_MEAN), np.zeros(4), np.array([prior] + [[0.0, 0.0]] * 3), prior))
    for number in ROUNDS:
        left = ba.run(method, clients, points, rounds=number, tol=1e-300)
        right = ba.run(method, clients, bells, rounds=number, tol=1e-300)
        server = left.posterior.mean[0]
        pulls = [PRIOR_PRECISION * (PRIOR_MEAN - server), *(site.linear[0] for site in left.sites)]
        copies = [server, *(q.mean[0] for q in left.client_posteriors)]
        factors = [prior, *(site.to_vector() for site in right.sites)]
        posterior = right.posterior.natural.to_vector()
        found.append(Scene(number, np.array(copies), np.array(pulls), np.array(factors), posterior))
    return found


def bell(natural: np.ndarray) -> np.ndarray:
    """Return the density on the grid; a factor without precision is flat, and drawn as nothing."""
    linear, precision = natural
    if precision <= 0:
        return np.zeros_like(GRID)
    return np.sqrt(precision / (2 * np.pi)) * np.exp(-0.5 * precision * (GRID - linear / precision) ** 2)


def spring(axis: Axes, start: float, stop: float, height: float, colour: str, stiffness: float) -> None:
    """Draw a spring; stiff springs have thick wire."""
    share = np.linspace(0, 1, 181)
    turns = np.clip(round(4 * abs(stop - start)), 3, 10)
    coils = np.where((share > 0.1) & (share < 0.9), 0.13 * np.sin(2 * np.pi * turns * (share - 0.1) / 0.8), 0.0)
    axis.plot(start + share * (stop - start), height + coils, color=colour, lw=0.8 + 0.25 * stiffness, alpha=0.8)


def arrow(axis: Axes, start: float, stop: float, height: float, colour: str) -> None:
    """Draw a force."""
    if abs(stop - start) > 0.02:
        head = {"arrowstyle": "-|>", "color": colour, "lw": 2.4, "mutation_scale": 13, "shrinkA": 0, "shrinkB": 0}
        axis.annotate("", (stop, height), (start, height), arrowprops=head)


def draw_forces(axis: Axes, scene: Scene) -> None:
    """Draw each party's spring and force, and below the forces head to tail."""
    server = scene.copies[0]
    axis.axvline(server, ymin=0.02, ymax=1.0, color=style.INK, lw=1, ls=(0, (2, 2)), zorder=0)
    anchors, stiffness = (PRIOR_MEAN, *ANCHORS), (PRIOR_PRECISION, *STIFFNESS)
    at, below = server, 0.4
    for row, anchor, stiff, copy, force, colour in zip(
        ROWS, anchors, stiffness, scene.copies, scene.forces, COLOURS, strict=True
    ):
        spring(axis, anchor, copy, row + 0.24, colour, stiff)
        axis.plot(anchor, row + 0.24, "s", color=colour, ms=5)
        axis.plot(copy, row + 0.24, "o", color=style.INK, mec="w", ms=7, zorder=4)
        arrow(axis, copy, copy + PER_FORCE * force, row - 0.12, colour)
        arrow(axis, at, at + PER_FORCE * force, below, colour)
        at, below = at + PER_FORCE * force, below - 0.16
    axis.plot(server, 0.56, "o", color=style.INK, mec="w", ms=9, zorder=4)
    axis.plot(at, below + 0.16, "o", color="w", mec=style.INK, mew=1.2, ms=5, zorder=5)


def draw_bells(axis: Axes, scene: Scene) -> None:
    """Draw each factor, and below the server's distribution over the product of the factors."""
    base = -0.15
    for row, natural, colour in zip(ROWS, scene.factors, COLOURS, strict=True):
        height = TALL * bell(natural)
        axis.fill_between(GRID, row - 0.15, row - 0.15 + height, color=colour, alpha=0.28, lw=0)
        axis.plot(GRID, row - 0.15 + height, color=colour, lw=1.8)
    height = TALL * bell(scene.posterior)
    axis.fill_between(GRID, base, base + height, color=style.INK, alpha=0.22, lw=0)
    axis.plot(GRID, base + height, color=style.INK, lw=2)
    product = TALL * bell(scene.factors.sum(axis=0))
    axis.plot(GRID, base + product, color=style.INK, lw=1, ls=(0, (2, 2)))
    mean = scene.posterior[0] / scene.posterior[1]
    axis.axvline(mean, ymin=0.02, ymax=1.0, color=style.INK, lw=1, ls=(0, (2, 2)), zorder=0)


def draw(figure: Figure, scene: Scene, heads: tuple[str, str]) -> None:
    """Draw a round."""
    figure.clear()
    axes = figure.subplots(1, 2)
    results = ("= 0" if scene.force_left < SEEN else "≠ 0", "=" if scene.factor_left < SEEN else "≠")
    for axis, painter, sign, result, head in zip(
        axes, (draw_forces, draw_bells), ("+", "×"), results, heads, strict=True
    ):
        painter(axis, scene)
        for row, name, colour in zip(ROWS, NAMES, COLOURS, strict=True):
            axis.text(LABELS, row + 0.1, name, color=colour, fontsize=9, fontweight="bold", va="center")
        for row in ROWS[1:]:
            axis.text(LABELS + 0.15, row + 0.6, sign, fontsize=13, va="center", color=style.INK)
        axis.axhline(0.74, color=style.INK, lw=0.8)
        axis.text(LABELS + 0.15, 0.25, result, fontsize=15, va="center", color=style.INK)
        axis.set(xlim=(LABELS, RIGHT), ylim=(-0.3, 4.6), yticks=[], xticks=[], title=head)
        axis.spines[["left", "bottom"]].set_visible(False)


def main() -> None:
    """Draw the picture and the film."""
    shown = scenes()
    with style.context():
        figure = style.new_figure(style.WIDTH, 3.7)
        draw(
            figure,
            shown[-1],
            ("ADMM: points and forces that cancel", "Variational Bayes: bells and factors that multiply"),
        )
        style.save(figure, PICTURES, "idea")
        film = style.new_figure(style.WIDTH, 3.7)
        frames = [*shown, shown[-1], shown[-1]]

        def frame(number: int) -> None:
            at = f"round {frames[number].round}"
            draw(film, frames[number], (f"{at}: family of points", f"{at}: family of Gaussians"))

        animation = FuncAnimation(film, frame, frames=len(frames))
        animation.save(FIGURES / "idea.gif", writer=PillowWriter(fps=2), dpi=100)


if __name__ == "__main__":
    main()
