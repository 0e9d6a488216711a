"""Figure 3: the duality circuits of ADMM and of Bayesian duality, with the numbers of an actual run on every edge.

Both methods run at ρ = 1 on the two-client logistic problem of Figure 4 (`outlier_data`), ADMM in the isotropic family
with the delta method, BayesADMM with full Gaussians. The numbers are: what leaves along each edge after rounds 0 (the
start: duals zero, everything at the prior), 1, 2 and at the end, and by how much the edge's equation is violated then.
Client vectors are those of client 1; residuals are the largest over both clients, as Fisher lengths per parameter.

On the left the regulariser is ½δ‖θ‖², so the last edge reads v_g = δθ_g (the paper draws δ = 1). The server keeps one
of the two, so this edge closes by construction, as the dual map on the right does; what the run has still to do shows
on the other three.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

import bayesadmm_np as ba
from bayesadmm_np.families.coordinates import Natural

from . import style
from .outlier_data import DELTA, POINTS, with_bias

__all__ = ["Circuit", "Figure3", "Snapshot", "claims", "compute", "draw", "notes", "record"]

NAME = "fig3_circuit"
RHO = 1.0
TOL = 1e-8
EDGES = ("broadcast", "natural_gradient", "gather", "dual_map")

Vector = tuple[float, ...]


@dataclass(frozen=True)
class Snapshot:
    """The circuit after one round.

    Attributes
    ----------
    round : int
    server, client1 : primal variables: (mean, marginal standard deviations; () for ADMM)
    dual1, dual_server : dual variables of client 1 and of the server: (linear part, diagonal of the precision part)
    residuals : mapping from edge to Fisher length per parameter
    """

    round: int
    server: tuple[Vector, Vector]
    client1: tuple[Vector, Vector]
    dual1: tuple[Vector, Vector]
    dual_server: tuple[Vector, Vector]
    residuals: dict[str, float]


@dataclass(frozen=True)
class Circuit:
    """One method's circuit at rounds 0, 1, 2 and the last."""

    method: str
    snapshots: tuple[Snapshot, ...]
    pooled_residual: float


@dataclass(frozen=True)
class Figure3:
    """Both circuits on the same problem."""

    rho: float
    delta: float
    tol: float
    admm: Circuit
    bayes: Circuit


def compute(rounds: int = 200) -> Figure3:
    """Run both methods to the end and look at the circuit on the way."""
    admm = _circuit(ba.methods.ADMM(RHO), ba.families.IsotropicGaussian(np.zeros(3), DELTA), rounds)
    bayes = _circuit(ba.methods.BayesADMM(RHO), ba.families.FullGaussian(np.zeros(3), DELTA), rounds)
    return Figure3(RHO, DELTA, TOL, admm, bayes)


def claims(result: Figure3) -> list[tuple[str, bool, str]]:
    """What the figure is meant to show."""
    found = []
    for circuit in (result.admm, result.bayes):
        start, *later = circuit.snapshots
        end = later[-1]
        largest = max(end.residuals.values())
        found.append(
            (
                f"{circuit.method}: all four edges close",
                largest <= result.tol,
                f"largest residual {largest:.1e} after round {end.round}",
            )
        )
        found.append(
            (
                f"{circuit.method}: the closed circuit is the pooled solution",
                circuit.pooled_residual <= 10 * result.tol,
                f"pooled stationarity {circuit.pooled_residual:.1e}",
            )
        )
        natural = max(snapshot.residuals["natural_gradient"] for snapshot in later)
        found.append(
            (
                f"{circuit.method}: duals are negative gradients after every client step, not at the start",
                natural <= 1e-6 < start.residuals["natural_gradient"],
                f"at most {natural:.1e}, {start.residuals['natural_gradient']:.2f} at the start",
            )
        )
    return found


def notes(result: Figure3) -> list[str]:
    """Measurements that are no claim."""
    ends = [f"{c.method} {c.snapshots[-1].round}" for c in (result.admm, result.bayes)]
    return [f"rounds until every edge is below {result.tol:g}: {', '.join(ends)}"]


def record(result: Figure3) -> dict[str, Any]:
    """Every plotted number as plain JSON."""
    return asdict(result)


def _circuit(method: ba.methods.Method, prior: Any, rounds: int) -> Circuit:
    clients = [ba.losses.Logistic(with_bias(points), labels) for points, labels in POINTS]
    solver = ba.clients.VariationalNewton(tol=TOL / 100)

    def run(limit: int) -> ba.Result:
        return ba.run(method, clients, prior, limit, tol=TOL, solver=solver)

    runs = [run(0), run(1), run(2), run(rounds)]
    snapshots = []
    for result in runs:
        at_start = not result.history
        edges = _edges_at_start(clients, prior, result, method) if at_start else asdict(result.history[-1].edges)
        snapshots.append(_snapshot(result, edges))
    return Circuit(method.name, tuple(snapshots), runs[-1].certificate().pooled)


def _edges_at_start(clients: list[Any], prior: Any, result: ba.Result, method: ba.methods.Method) -> dict[str, float]:
    """The four residuals with all duals zero; the same formulas as `Edges`, before the first round."""
    q, rule = result.posterior, method.expectation or ba.losses.Auto()
    gradients = [loss.expect(q, loss.check(prior, rule)).natural_gradient for loss in clients]
    collected = prior.natural
    for site in result.sites:
        collected = collected + site
    return {
        "broadcast": max(q.fisher_norm(p.natural - q.natural) for p in result.client_posteriors),
        "natural_gradient": max(q.fisher_norm(s + g) for s, g in zip(result.sites, gradients, strict=True)),
        "gather": q.fisher_norm(prior.prior_weight * q.natural - collected),
        "dual_map": q.fisher_norm(q.with_expectation(q.expectation).natural - q.natural),
    }


def _snapshot(result: ba.Result, edges: dict[str, float]) -> Snapshot:
    learns = result.posterior.learns_precision

    def primal(q: Any) -> tuple[Vector, Vector]:
        return _floats(q.mean), _floats(np.sqrt(q.variance)) if learns else ()

    def dual(natural: Natural) -> tuple[Vector, Vector]:
        return _floats(natural.linear), _floats(np.diagonal(natural.precision)) if learns else ()

    return Snapshot(
        round=result.rounds,
        server=primal(result.posterior),
        client1=primal(result.client_posteriors[0]),
        dual1=dual(result.sites[0]),
        dual_server=dual(result.prior.prior_weight * result.posterior.natural),
        residuals={edge: float(edges[edge]) for edge in EDGES},
    )


def _floats(values: Any) -> Vector:
    return tuple(float(value) for value in values)


# ---- drawing ---------------------------------------------------------------------------------------------------------

# edge: (equation, what flows) on the left and on the right
LABELS = {
    "ADMM": {
        "title": "ADMM: point estimates (Eq. 4)",
        "nodes": (r"$\theta_g$", r"$\theta_k$", r"$\mathbf{v}_k$", r"$\mathbf{v}_g$"),
        "broadcast": ("broadcast", r"$\theta_k = \theta_g$"),
        "natural_gradient": ("gradient", r"$\mathbf{v}_k = -\nabla\ell_k(\theta_k)$"),
        "gather": ("gather", r"$\mathbf{v}_g = \sum_k \mathbf{v}_k$"),
        "dual_map": ("dual map", r"$\theta_g = \mathbf{v}_g/\delta$"),
        "flows": (r"$\theta_g$", r"$\theta_1$", r"$\mathbf{v}_1$", r"$\mathbf{v}_g$"),
    },
    "BayesADMM": {
        "title": "Bayesian duality: distributions (Eq. 13)",
        "nodes": (r"$\mu_g$", r"$\mu_k$", r"$\eta_k$", r"$\lambda_g$"),
        "broadcast": ("broadcast", r"$\mu_k = \mu_g$"),
        "natural_gradient": ("natural gradient", r"$\eta_k = -\widetilde{\nabla}\,\mathrm{E}_{q_k}[\ell_k]$"),
        "gather": ("gather", r"$\lambda_g = \eta_0 + \sum_k \eta_k$"),
        "dual_map": ("dual map", r"$\mu_g = \nabla A(\lambda_g)$"),
        "flows": (
            r"$\mu_g$: mean | sd",
            r"$\mu_1$: mean | sd",
            r"$\eta_1$: $v$ | diag $V$",
            r"$\lambda_g$: $Sm$ | diag $S$",
        ),
    },
}
PRIMAL, DUAL = style.BLUE, style.VERMILION


def draw(result: Figure3) -> Figure:
    """ADMM above, Bayesian duality below; a table on each edge."""
    with style.context():
        figure = style.new_figure(style.WIDTH, 6.4)
        for axes, circuit in zip(figure.subplots(2, 1), (result.admm, result.bayes), strict=True):
            _draw_circuit(axes, circuit)
    return figure


WIDE = 3.6
LEFT, RIGHT, TOP, BOTTOM = 4.05, 7.95, 4.75, 0.3


def _draw_circuit(axes: Axes, circuit: Circuit) -> None:
    labels = LABELS[circuit.method]
    axes.set_xlim(0, 12)
    axes.set_ylim(-0.15, 5.2)
    axes.axis("off")
    axes.set_title(labels["title"], fontsize=9.5)
    corners = ((LEFT, TOP), (LEFT, BOTTOM), (RIGHT, BOTTOM), (RIGHT, TOP))
    for start, end in zip(corners, (*corners[1:], corners[0]), strict=True):
        axes.add_patch(
            FancyArrowPatch(
                start, end, arrowstyle="-|>", mutation_scale=13, linewidth=1.3, color=style.INK, shrinkA=15, shrinkB=15
            )
        )
    for corner, name, colour in zip(corners, labels["nodes"], (PRIMAL, PRIMAL, DUAL, DUAL), strict=True):
        axes.text(
            *corner,
            name,
            fontsize=12,
            color="white",
            ha="center",
            va="center",
            bbox={"boxstyle": "circle,pad=0.28", "facecolor": colour, "edgecolor": "none"},
        )
    flows = labels["flows"]
    shots = circuit.snapshots
    _table(axes, (0.1, 3.5), labels["broadcast"], flows[0], [s.server for s in shots], shots, "broadcast")
    _table(
        axes, (4.2, 2.3), labels["natural_gradient"], flows[1], [s.client1 for s in shots], shots, "natural_gradient"
    )
    _table(axes, (8.3, 3.5), labels["gather"], flows[2], [s.dual1 for s in shots], shots, "gather")
    _table(axes, (4.2, 4.4), labels["dual_map"], flows[3], [s.dual_server for s in shots], shots, "dual_map")
    axes.text(LEFT - 0.45, TOP, "server, primal", ha="right", va="center", fontsize=7, color=PRIMAL)
    axes.text(LEFT - 0.45, BOTTOM, "clients, primal", ha="right", va="center", fontsize=7, color=PRIMAL)
    axes.text(RIGHT + 0.45, TOP, "server, dual", ha="left", va="center", fontsize=7, color=DUAL)
    axes.text(RIGHT + 0.45, BOTTOM, "clients, dual", ha="left", va="center", fontsize=7, color=DUAL)


def _table(
    axes: Axes,
    corner: tuple[float, float],
    label: tuple[str, str],
    flow: str,
    values: list[tuple[Vector, Vector]],
    shots: tuple[Snapshot, ...],
    edge: str,
) -> None:
    x, y = corner
    title, equation = label
    columns = (x + 0.1, x + 0.35, x + WIDE - 0.05)
    axes.text(x, y, title, fontsize=7.5, weight="bold", va="center")
    axes.text(x + WIDE, y, equation, fontsize=8, va="center", ha="right")
    small = {"fontsize": 6, "va": "center", "color": style.MUTED}
    axes.text(columns[0], y - 0.36, "t", ha="center", **small)
    for left, name in zip((columns[1], x + 1.82), flow.split(" | "), strict=False):
        axes.text(left, y - 0.36, name, ha="left", **small)
    axes.text(columns[2], y - 0.36, "residual", ha="right", **small)
    axes.plot([x, x + WIDE], [y - 0.53] * 2, color=style.MUTED, linewidth=0.5)
    for i, (snapshot, (first, second)) in enumerate(zip(shots, values, strict=True)):
        height = y - 0.72 - (0.29 * i)
        kwargs = {"fontsize": 6, "va": "center"}
        axes.text(columns[0], height, str(snapshot.round), ha="center", **kwargs)
        edges = [x + 0.22 + 0.47 * (j + 1) for j in range(3)] + [x + 1.74 + 0.4 * (j + 1) for j in range(3)]
        for right, value in zip(edges, (*first, *second), strict=False):
            axes.text(right, height, _round(value), ha="right", **kwargs)
        axes.text(columns[2], height, _size(snapshot.residuals[edge]), ha="right", **kwargs)


def _round(value: float) -> str:
    text = f"{value:.1f}" if abs(value) >= 9.95 else f"{value:.2f}"
    return (text if float(text) else "0").replace("-", "−")


def _size(value: float) -> str:
    return (
        "0"
        if value == 0
        else f"{value:.2f}"
        if value >= 0.01
        else f"{value:.0e}".replace("e-0", "e-").replace("-", "−")
    )
