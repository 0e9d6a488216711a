"""Figure 4: a single outlier slows ADMM down, and does not slow BayesADMM down.

Two clients fit a linear classifier with a bias in the plane (logistic loss, prior precision δ = 0.2); client 1 holds
one outlier. The data, and how they were chosen, are in `outlier_data`.

Rounds are counted by the classifier, not by the iterate: a run has arrived in the first round from which the direction
of the server's boundary stays within 2° and its distance from the origin within 0.05 of those of the pooled solution of
the *same method's own objective* (MAP for ADMM, variational Bayes for BayesADMM), until the end of the run.

At the paper's ρ = 0.2, solved exactly, BayesADMM comes to a client problem that has no minimum: ρS_g − V_1 is
indefinite, and no minimum is found near the server's distribution. The run ends there and says so; the figure shows
ρ = 1 beside it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import bayesadmm_np as ba

from . import style
from .outlier_data import DELTA, OUTLIER, POINTS, with_bias

__all__ = ["Figure4", "Run", "claims", "compute", "draw", "notes", "record"]

NAME = "fig4_outlier"
DEGREES, OFFSET = 2.0, 0.05
CRITERION = (
    f"first round from which the server's boundary stays within {DEGREES:g}° and {OFFSET:g} of the pooled solution's"
)
LAST_SHOWN = 8

Vector = tuple[float, ...]


@dataclass(frozen=True)
class Run:
    """One method at one ρ.

    Attributes
    ----------
    server, client1 : tuple of (w₁, w₂, b)
        Means after rounds 1, 2, …
    server_covariance, client1_covariance : tuple of 3 × 3 covariances, row by row
        Of the same rounds; empty for ADMM, which has no posterior.
    angle, offset : tuple of float
        Distance of the server's boundary from the pooled one, in degrees and in units of the plane.
    rounds : int or None
        By the criterion; None when the run failed or never arrived.
    least_curvature : float or None
        Least eigenvalue of ρS_g − V_1 after the last good round; negative means that client 1's next problem need not
        have a minimum. None for ADMM.
    status, message : str
    """

    method: str
    rho: float
    pooled: Vector
    server: tuple[Vector, ...]
    client1: tuple[Vector, ...]
    server_covariance: tuple[tuple[Vector, ...], ...]
    client1_covariance: tuple[tuple[Vector, ...], ...]
    angle: Vector
    offset: Vector
    rounds: int | None
    least_curvature: float | None
    status: str
    message: str


@dataclass(frozen=True)
class Figure4:
    """Runs in the order ADMM, BayesADMM at the paper's ρ, then both at the larger one."""

    delta: float
    criterion: str
    runs: tuple[Run, ...]
    points: tuple[tuple[Vector, ...], ...]
    labels: tuple[tuple[int, ...], ...]

    def run(self, method: str, rho: float) -> Run:
        """Find a run."""
        return next(run for run in self.runs if run.method == method and run.rho == rho)


def compute(rhos: tuple[float, float] = (0.2, 1.0), rounds: int = 60) -> Figure4:
    """Run both methods at both ρ."""
    return Figure4(
        delta=DELTA,
        criterion=CRITERION,
        runs=tuple(_run(name, rho, rounds) for rho in rhos for name in ("ADMM", "BayesADMM")),
        points=tuple(_rows(points) for points, _ in POINTS),
        labels=tuple(tuple(int(label) for label in labels) for _, labels in POINTS),
    )


def claims(result: Figure4) -> list[tuple[str, bool, str]]:
    """What the figure is meant to show."""
    small, large = sorted({run.rho for run in result.runs})
    found = []
    admm, bayes = result.run("ADMM", large), result.run("BayesADMM", large)
    both = admm.rounds is not None and bayes.rounds is not None
    found.append(
        (
            f"at ρ = {large:g} BayesADMM arrives within 2 rounds, ADMM needs at least twice as many",
            both and bayes.rounds <= 2 and admm.rounds >= 2 * bayes.rounds,
            f"BayesADMM {bayes.rounds}, ADMM {admm.rounds}",
        )
    )
    admm, bayes = result.run("ADMM", small), result.run("BayesADMM", small)
    ill_posed = bayes.status == ba.Status.ILL_POSED_CLIENT.name
    found.append(
        (
            f"at ρ = {small:g} BayesADMM arrives within 2 rounds, or says which client has no minimum",
            (ill_posed and bayes.least_curvature < 0) or (bayes.rounds is not None and bayes.rounds <= 2),
            f"client 1 has no minimum in round {len(bayes.server) + 1}: least eigenvalue of ρS_g − V_1 is "
            f"{bayes.least_curvature:.2g}"
            if ill_posed
            else f"BayesADMM {bayes.rounds}",
        )
    )
    found.append(
        (
            f"at ρ = {small:g} ADMM needs 5 rounds or more",
            admm.rounds is not None and admm.rounds >= 5,
            f"ADMM {admm.rounds}",
        )
    )
    return found


def notes(result: Figure4) -> list[str]:
    """Measurements that are no claim."""
    bayes = result.run("BayesADMM", max(run.rho for run in result.runs))
    spread = predictive_sd(np.array(result.points[0]), bayes.client1_covariance[0])
    more = int((spread > spread[-1]).sum())
    return [
        f"rounds are counted to the {CRITERION}",
        "the paper explains the speed by a higher uncertainty at the outlier; here, after client 1's first solve, the "
        f"sd of the logit is {spread[-1]:.2f} at the outlier, higher at {more} of its {len(spread) - 1} other points",
    ]


def predictive_sd(points: np.ndarray, covariance: tuple[Vector, ...]) -> np.ndarray:
    """Posterior standard deviation of the logit at points of shape (n, 2)."""
    rows = with_bias(points)
    return np.sqrt(np.einsum("ni,ij,nj->n", rows, np.array(covariance), rows))


def record(result: Figure4) -> dict[str, Any]:
    """Every plotted number as plain JSON."""
    return asdict(result)


def draw(result: Figure4) -> Figure:
    """Top row ADMM, bottom row BayesADMM; for each ρ the server and client 1."""
    small, large = sorted({run.rho for run in result.runs})
    with style.context():
        figure = style.new_figure(style.WIDTH, 4.2)
        axes = figure.subplots(2, 4, sharex=True, sharey=True)
        for column, rho in ((0, small), (2, large)):
            for row, method in enumerate(("ADMM", "BayesADMM")):
                run = result.run(method, rho)
                _panel(axes[row, column], result, run, "server")
                _panel(axes[row, column + 1], result, run, "client 1")
        for row, method in enumerate(("ADMM", "BayesADMM")):
            axes[row, 0].set_ylabel(f"{method}\n$x_2$")
        for axis in axes[1]:
            axis.set_xlabel("$x_1$")
        figure.legend(handles=_legend(), loc="outside lower center", ncols=5, columnspacing=1.4, handletextpad=0.5)
    return figure


def _run(name: str, rho: float, rounds: int) -> Run:
    bayes = name == "BayesADMM"
    method = ba.methods.BayesADMM(rho) if bayes else ba.methods.ADMM(rho)
    family = ba.families.FullGaussian if bayes else ba.families.IsotropicGaussian
    prior = family(np.zeros(3), DELTA)
    clients = [ba.losses.Logistic(with_bias(points), labels) for points, labels in POINTS]
    pooled = ba.solve_pooled(clients, prior, expectation=method.expectation).posterior.mean

    server: list[Any] = []
    result = ba.run(method, clients, prior, rounds, callback=lambda _, q: server.append(q), raise_on_failure=False)
    shown = min(len(server), LAST_SHOWN)
    client1 = [ba.run(method, clients, prior, done + 1).client_posteriors[0] for done in range(shown)]
    distances = [_distance(q.mean, pooled) for q in server]
    inside = [abs(angle) <= DEGREES and abs(offset) <= OFFSET for angle, offset in distances]
    arrived = next((i + 1 for i in range(len(inside)) if all(inside[i:])), None)
    return Run(
        method=name,
        rho=rho,
        pooled=_floats(pooled),
        server=tuple(_floats(q.mean) for q in server),
        client1=tuple(_floats(q.mean) for q in client1),
        server_covariance=tuple(_rows(q.covariance) for q in server[:shown]) if bayes else (),
        client1_covariance=tuple(_rows(q.covariance) for q in client1) if bayes else (),
        angle=tuple(angle for angle, _ in distances),
        offset=tuple(offset for _, offset in distances),
        rounds=None if result.status.is_failure else arrived,
        least_curvature=_least_curvature(result, rho) if bayes else None,
        status=result.status.name,
        message=result.message,
    )


def _least_curvature(result: ba.Result, rho: float) -> float:
    return float(np.linalg.eigvalsh(rho * result.posterior.precision - result.sites[0].precision)[0])


def _distance(theta: np.ndarray, pooled: np.ndarray) -> tuple[float, float]:
    angle = np.degrees(np.arctan2(theta[1], theta[0]) - np.arctan2(pooled[1], pooled[0]))
    offset = theta[2] / np.hypot(*theta[:2]) - pooled[2] / np.hypot(*pooled[:2])
    return float((angle + 180.0) % 360.0 - 180.0), float(offset)


def _floats(values: Any) -> Vector:
    return tuple(float(value) for value in values)


def _rows(matrix: Any) -> tuple[Vector, ...]:
    return tuple(_floats(row) for row in matrix)


# ---- drawing ---------------------------------------------------------------------------------------------------------

LIMITS = ((-3.4, 3.9), (-3.7, 3.5))


def _panel(axes: Axes, result: Figure4, run: Run, where: str) -> None:
    look = style.look(run.method)
    means = run.server if where == "server" else run.client1
    covariances = run.server_covariance if where == "server" else run.client1_covariance
    axes.set_xlim(LIMITS[0])
    axes.set_ylim(LIMITS[1])
    axes.set_aspect("equal")
    axes.set_xticks([-2, 0, 2])
    axes.set_yticks([-2, 0, 2])
    axes.tick_params(length=2.5)
    axes.set_title(f"{where}, ρ = {run.rho:g}", fontsize=8)
    _points(axes, result, (0, 1) if where == "server" else (0,))

    failed = ba.Status[run.status].is_failure
    last = min(len(means), LAST_SHOWN if run.rounds is None else min(run.rounds, LAST_SHOWN))
    if covariances:
        _band(axes, means[last - 1], covariances[last - 1])
    _boundary(axes, run.pooled, color=style.INK, linestyle=(0, (1, 1.5)), linewidth=1.0)
    taken = [np.array(OUTLIER)]
    for number in range(1, last + 1):
        depth = number / last
        _boundary(axes, means[number - 1], color=look.colour, linewidth=0.7 + 0.9 * depth, alpha=0.35 + 0.65 * depth)
        _number(axes, means[number - 1], number, look.colour, taken)
    if failed and where == "server":
        axes.text(0.98, 0.02, f"ends after round {len(run.server)}", **_corner(axes), fontsize=7.5, weight="bold")
    elif failed:
        note = f"round {len(run.server) + 1}: no minimum,\n" + r"$\rho S_g - V_1$ is indefinite"
        axes.text(0.98, 0.02, note, **_corner(axes), fontsize=7, color=style.VERMILION)
    elif where == "server":
        reached = "not reached" if run.rounds is None else f"{run.rounds} rounds"
        axes.text(0.98, 0.02, reached, **_corner(axes), fontsize=7.5, weight="bold")


def _corner(axes: Axes) -> dict[str, Any]:
    box = {"boxstyle": "square,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}
    return {"transform": axes.transAxes, "ha": "right", "va": "bottom", "zorder": 6, "bbox": box}


def _points(axes: Axes, result: Figure4, clients: tuple[int, ...]) -> None:
    for client in clients:
        points, labels = np.array(result.points[client]), np.array(result.labels[client])
        for label, colour in enumerate(style.CLASS_COLOURS):
            chosen = points[labels == label]
            axes.scatter(
                chosen[:, 0],
                chosen[:, 1],
                s=15,
                marker="os"[label],
                facecolor=colour,
                edgecolor="white",
                linewidth=0.4,
                alpha=0.55 if client == 0 else 1.0,
                zorder=3,
            )
    axes.scatter(*OUTLIER, s=60, facecolor="none", edgecolor=style.VERMILION, linewidth=1.0, zorder=4)


def _boundary(axes: Axes, theta: Vector, **line: Any) -> None:
    (x0, x1), _ = LIMITS
    w1, w2, b = theta
    normal = np.hypot(w1, w2)
    foot = -b * np.array([w1, w2]) / normal**2
    along = np.array([-w2, w1]) / normal
    ends = np.stack([foot - 20 * (x1 - x0) * along, foot + 20 * (x1 - x0) * along])
    axes.plot(ends[:, 0], ends[:, 1], zorder=2, **line)


def _number(axes: Axes, theta: Vector, number: int, colour: str, taken: list[np.ndarray]) -> None:
    """Write the round on its boundary, at the first free place from the top down."""
    w1, w2, b = theta
    (x0, x1), (y0, y1) = LIMITS
    for height in np.arange(y1 - 0.4, y0 + 0.9, -0.62):
        spot = np.array([-(b + w2 * height) / w1, height])
        if not x0 + 0.3 < spot[0] < x1 - 0.3 or any(np.hypot(*(spot - other)) < 0.6 for other in taken):
            continue
        taken.append(spot)
        axes.text(
            *spot,
            str(number),
            fontsize=6,
            color="white",
            ha="center",
            va="center",
            zorder=5,
            bbox={"boxstyle": "circle,pad=0.12", "facecolor": colour, "edgecolor": "none"},
        )
        return


def _band(axes: Axes, mean: Vector, covariance: tuple[Vector, ...]) -> None:
    """Where the boundary may lie: |mean of the logit| below one and two of its posterior standard deviations."""
    (x0, x1), (y0, y1) = LIMITS
    grid = np.stack(np.meshgrid(np.linspace(x0, x1, 121), np.linspace(y0, y1, 111)), axis=-1)
    flat = grid.reshape(-1, 2)
    score = np.abs(with_bias(flat) @ np.array(mean)) / predictive_sd(flat, covariance)
    score = score.reshape(grid.shape[:2])
    axes.contourf(
        grid[..., 0], grid[..., 1], score, levels=[0, 1, 2], colors=["#BDBDBD", "#DCDCDC"], alpha=0.6, zorder=0
    )


def _legend() -> list[Any]:
    circle = {"linestyle": "none", "markeredgecolor": "white", "markersize": 5}
    return [
        Line2D([], [], marker="o", color=style.CLASS_COLOURS[0], label="class 0", **circle),
        Line2D([], [], marker="s", color=style.CLASS_COLOURS[1], label="class 1 (client 1 lighter)", **circle),
        Line2D(
            [],
            [],
            marker="o",
            linestyle="none",
            markerfacecolor="none",
            markeredgecolor=style.VERMILION,
            markersize=7,
            label="outlier",
        ),
        Line2D([], [], color=style.INK, linestyle=(0, (1, 1.5)), linewidth=1.0, label="pooled"),
        Line2D([], [], color="#C8C8C8", linewidth=6, label="±1, ±2 posterior sd"),
    ]
