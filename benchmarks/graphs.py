"""ADMM without a server: rounds by the graph, and by the scales of the columns. docs/benchmarks.md has the method.

python benchmarks/graphs.py          # some minutes; writes benchmarks/results/graphs.json and docs/figures/graphs.png
python benchmarks/graphs.py --plot   # draws the results again
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common import RESULTS, machine, write_json
from scipy.optimize import minimize_scalar
from tqdm import tqdm

import bayesadmm_np as ba
from bayesadmm_np.clients.problem import Subproblem
from bayesadmm_np.demos import style
from bayesadmm_np.splitting.average import as_step
from bayesadmm_np.splitting.team import assemble

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
ROWS, TOL, MOST = 40, 1e-6, 2000
BESIDE: dict[str, Any] = {"textcoords": "offset points", "ha": "right", "fontsize": 7}


def ring(nodes: int) -> np.ndarray:
    along = np.roll(np.eye(nodes), 1, axis=0)
    return along + along.T


def grid(side: int) -> np.ndarray:
    path = np.diag(np.ones(side - 1), 1)
    path = path + path.T
    return np.kron(path, np.eye(side)) + np.kron(np.eye(side), path)


def expander(nodes: int) -> np.ndarray:
    """Two random rings over one another: nearly every such graph is an expander, of degree four."""
    rng = np.random.default_rng(0)
    while True:
        orders = [rng.permutation(nodes) for _ in range(2)]
        found = sum(ring(nodes)[np.ix_(order, order)] for order in orders)
        if found.max() == 1.0:
            return found


GRAPHS = {
    "ring": [ring(nodes) for nodes in (6, 9, 16, 25, 36)],
    "grid": [grid(side) for side in (3, 4, 5, 6)],
    "expander": [expander(nodes) for nodes in (9, 16, 25, 36)],
    "all with all": [1.0 - np.eye(nodes) for nodes in (6, 16, 36)],
}
SCALES = (1.0, 3.0, 10.0, 30.0, 100.0)


def clients(nodes: int, scale: float = 1.0, kind: str = "logistic") -> list[ba.losses.Loss]:
    """Every node has rows about a centre of its own."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((nodes, ROWS, 3)) + 0.5 * rng.standard_normal((nodes, 1, 3))
    f = X @ [1.0, -1.0, 0.5]
    y = f + rng.standard_normal(f.shape) if kind == "linear" else rng.random(f.shape) < 1 / (1 + np.exp(-f))
    X = X * [1.0, scale, 1.0]
    loss = ba.losses.LeastSquares if kind == "linear" else ba.losses.Logistic
    return [loss(X[k], y[k]) for k in range(nodes)]


def reached(result: Any, best: Any) -> int | None:
    """First round whose nodes are all within TOL posterior standard deviations a parameter."""
    for number, naturals in enumerate(result.naturals):
        if max(best.fisher_norm(natural - best.natural) for natural in naturals) <= TOL:
            return number
    return None


class GraphResult(NamedTuple):
    """λ_k of every node after each round, and the pooled residual at the first node at the end."""

    naturals: list[list[Any]]
    rho: float
    pooled: float
    converged: bool

    @property
    def status(self) -> str:
        return "CONVERGED" if self.converged else "ROUND_LIMIT"


def run_on_graph(
    losses: list[ba.losses.Loss],
    prior: Any,
    graph: np.ndarray,
    rho: float | None = None,
    rounds: int = 1000,
    tol: float = 1e-6,
) -> GraphResult:
    """Run the two steps of the page until no edge's disagreement, and no node's change, is above `tol`."""
    team = assemble(as_step(ba.methods.PVI()), losses, prior, None, None, min(tol, 1e-2))
    rho = best_graph_rho(graph, prior.prior_weight) if rho is None else rho
    laplacian = np.diag(graph.sum(axis=1)) - graph
    q, duals = [prior] * len(graph), [prior.natural.zeros()] * len(graph)
    heard, converged, rng = [[x.natural for x in q]], False, np.random.default_rng(0)
    for number in range(rounds):
        after = []
        for k, worker in enumerate(team.workers):
            total = prior.prior_weight / len(q) + rho * graph[k].sum()
            near = np.flatnonzero(graph[k])
            parts = [1.0 / len(q), 0.5 * rho * graph[k].sum(), *(0.5 * rho * graph[k, near])]
            terms = [prior.natural, heard[-1][k], *(heard[-1][j] for j in near)]
            anchor = q[k].with_natural(prior.natural.combine(parts, terms) * (1.0 / total))
            problem = Subproblem(worker.loss, worker.rule, anchor, duals[k], float(total))
            solution = worker.solver.solve(problem, anchor, rng)
            if not solution.status.is_usable:
                raise RuntimeError(f"node {k} has no answer in round {number + 1}: take another rho.")
            after.append(solution.posterior)
        moved = max(new.fisher_norm(new.natural - old.natural) for new, old in zip(after, q, strict=True))
        q, naturals = after, [x.natural for x in after]
        steps = [naturals[0].combine(list(-row), naturals) for row in laplacian]  # Σ_l w_kl (λ_l − λ_k)
        duals = [dual - (0.5 * rho) * step for dual, step in zip(duals, steps, strict=True)]
        heard.append(naturals)
        apart = max((q[k].fisher_norm(naturals[k] - naturals[j]) for k, j in np.argwhere(graph)), default=0.0)
        if max(moved, apart) <= tol:
            converged = True
            break
    gradients = [worker.expect(q[0]).natural_gradient for worker in team.workers]
    weights = [prior.prior_weight, -1.0, *[1.0] * len(gradients)]
    residual = q[0].natural.combine(weights, [q[0].natural, prior.natural, *gradients])
    return GraphResult(heard, float(rho), q[0].fisher_norm(residual), converged)


def graph_factor(
    graph: np.ndarray, rho: float, curvatures: list[np.ndarray] | None = None, prior_weight: float = 1.0
) -> float:
    """Factor by which a round shortens the error in the end; without B_k, least squares under a full covariance."""
    count, degrees = len(graph), graph.sum(axis=1)
    curvatures = [np.zeros((1, 1))] * count if curvatures is None else list(curvatures)
    identity = np.eye(len(curvatures[0]))
    heard, apart = (0.5 * rho * (np.diag(degrees) + sign * graph) for sign in (1.0, -1.0))
    solve = np.zeros((count * len(identity),) * 2)
    for k, own in enumerate(curvatures):
        block = slice(k * len(identity), (k + 1) * len(identity))
        solve[block, block] = np.linalg.solve((prior_weight / count + rho * degrees[k]) * identity + own, identity)
    z = np.hstack([solve @ np.kron(heard, identity), -solve])
    y = np.kron(apart, identity) @ z
    y[:, len(solve) :] += np.eye(len(solve))
    # duals add up to zero from the start on: the sum is no error
    zero_sum = np.kron(np.linalg.qr(np.eye(count)[:, 1:] - 1.0 / count)[0], identity)
    onto = np.hstack([y[:, : len(solve)], y[:, len(solve) :] @ zero_sum])
    z = np.hstack([z[:, : len(solve)], z[:, len(solve) :] @ zero_sum])
    return float(np.abs(np.linalg.eigvals(np.vstack([z, zero_sum.T @ onto]))).max())


def best_graph_rho(graph: np.ndarray, prior_weight: float = 1.0) -> float:
    """Return the ρ with the smallest `graph_factor` for least squares under a full covariance."""
    scale = prior_weight / graph.sum()

    def factor(exponent: float) -> float:
        return graph_factor(graph, scale * 10.0**exponent, prior_weight=prior_weight)

    exponents = np.linspace(-2.0, 3.0, 26)
    least = int(np.argmin([factor(x) for x in exponents]))
    bounds = exponents[max(least - 1, 0)], exponents[min(least + 1, len(exponents) - 1)]
    found = minimize_scalar(factor, bounds=bounds, method="bounded", options={"xatol": 1e-3})
    return float(scale * 10.0**found.x)


def by_graph() -> list[dict[str, Any]]:
    found = []
    prior = ba.families.FullGaussian(np.zeros(3), 1.0)
    for name, graphs in GRAPHS.items():
        for graph in tqdm(graphs, desc=name):
            nodes, laplacian = len(graph), np.diag(graph.sum(axis=1)) - graph
            spectrum = np.linalg.eigvalsh(laplacian)
            row = {"graph": name, "nodes": nodes, "gap": float(spectrum[1] / spectrum[-1])}
            for kind in ("linear", "logistic"):
                losses = clients(nodes, kind=kind)
                best = ba.solve_pooled(losses, prior).posterior
                result = run_on_graph(losses, prior, graph, tol=1e-8)
                rates = ba.local_rates(losses, prior, best)
                row[kind] = {
                    "rounds": reached(result, best),
                    "factor": graph_factor(graph, result.rho, rates.curvatures),
                    "pooled": result.pooled,
                    "status": result.status,
                    "tree_hops": 2 * depth(graph) * newton_rounds(losses, best),
                }
            found.append(row)
    return found


def depth(graph: np.ndarray) -> int:
    """The least depth of a spanning tree."""
    away = np.where(graph > 0, 1.0, np.inf)
    np.fill_diagonal(away, 0.0)
    for k in range(len(away)):
        away = np.minimum(away, away[:, k : k + 1] + away[k])
    return int(away.max(axis=1).min())


def newton_rounds(losses: list[ba.losses.Loss], best: Any) -> int:
    """Exchanges of the joint Newton step, whose sums a tree can add up on the way."""
    row = ba.Guarded(ba.methods.JointNewton())
    for rounds in range(1, 20):
        q = ba.run(row, losses, ba.families.FullGaussian(np.zeros(3), 1.0), rounds=rounds, tol=1e-12).posterior
        if best.fisher_norm(q.natural - best.natural) <= TOL:
            return rounds
    raise RuntimeError("not within 20 exchanges.")


def by_scale() -> list[dict[str, Any]]:
    found, graph = [], ring(9)
    families = {"full covariance": ba.families.FullGaussian, "isotropic": ba.families.IsotropicGaussian}
    for name, family in families.items():
        for scale in tqdm(SCALES, desc=name):
            losses, prior = clients(9, scale, "linear"), family(np.zeros(3), 1.0)
            best, rates = ba.solve_pooled(losses, prior).posterior, ba.local_rates(losses, prior)
            rho = best_graph_rho(graph)
            if name == "isotropic":  # the best of a fine grid, by the theory
                tried = np.geomspace(0.1, 1e6, 57)
                rho = tried[np.argmin([graph_factor(graph, x, rates.curvatures) for x in tried])]
            result = run_on_graph(losses, prior, graph, rho=rho, tol=1e-8, rounds=MOST)
            factor = graph_factor(graph, rho, rates.curvatures)
            found.append(
                {
                    "family": name,
                    "scale": scale,
                    "rho": float(rho),
                    "rounds": reached(result, best),
                    "factor": factor,
                    "status": result.status,
                }
            )
    return found


def draw(results: dict[str, Any]) -> None:
    """Draw rounds by the spectral gap of the graph, and by the scale of a column."""
    colours = (style.BLUE, style.VERMILION, style.GREEN, style.BLACK)
    looks = dict(zip(GRAPHS, zip("os^D", colours, strict=True), strict=True))
    with style.context():
        figure = style.new_figure(style.WIDTH, 3.2)
        left, right = figure.subplots(1, 2)
        for row in results["graphs"]:
            marker, colour = looks[row["graph"]]
            for kind, face in (("linear", colour), ("logistic", "white")):
                left.plot(row["gap"], row[kind]["rounds"], marker, color=colour, markerfacecolor=face)
        gaps = np.geomspace(0.006, 1.0, 50)
        left.plot(gaps, 17.0 / np.sqrt(gaps), ":", color=style.MUTED, label="∝ 1/√gap")
        for name, (marker, colour) in looks.items():
            left.plot([], [], marker, color=colour, label=name)
        left.plot([], [], "o", color=style.MUTED, label="least squares")
        left.plot([], [], "o", color=style.MUTED, markerfacecolor="white", label="logistic")
        left.set(title="The graph sets the pace", xlabel="spectral gap: λ₂ over the largest λ of the Laplacian")
        for family, look in (("full covariance", style.look("BayesADMM")), ("isotropic", style.look("ADMM"))):
            rows = [row for row in results["scales"] if row["family"] == family]
            done = [row for row in rows if row["rounds"] is not None]
            right.plot([row["scale"] for row in done], [row["rounds"] for row in done], label=family, **look.kwargs())
            for row in rows[len(done) :]:
                right.plot(row["scale"], MOST, "^", color=look.colour, markerfacecolor="white")
                right.annotate(f"not within {MOST}", (row["scale"], MOST), xytext=(-6, -3), **BESIDE)
        right.set(title="Units of a column, ring of nine", xlabel="scale of one column against the others")
        right.set_ylim(20.0, 2.0 * MOST)
        for axes in (left, right):
            axes.set(xscale="log", yscale="log", ylabel="rounds to 1e-6 sd")
            axes.legend(loc="upper right" if axes is left else "upper left")
            axes.minorticks_off()
            style.tidy(axes)
        left.set_xticks([0.01, 0.1, 1.0], ["0.01", "0.1", "1"])
        left.set_yticks([20, 50, 100, 200], ["20", "50", "100", "200"])
        right.set_xticks(SCALES, [f"{scale:g}" for scale in SCALES])
        right.set_yticks([50, 100, 200, 500, 1000, 2000], ["50", "100", "200", "500", "1000", "2000"])
        style.save(figure, FIGURES, "graphs")
        (FIGURES / "graphs.svg").unlink()


def main() -> None:
    """Run and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot", action="store_true", help="draw the results again")
    path = RESULTS / "graphs.json"
    if not parser.parse_args().plot:
        write_json(path, {"machine": machine(), "graphs": by_graph(), "scales": by_scale()})
    draw(json.loads(path.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
