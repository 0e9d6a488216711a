"""Figure 3: the duality circuits of ADMM and of BayesADMM, with the numbers of a run on each edge.

Two clients fit the logistic regression of figure 4 (fig4_outlier.py) at ρ = 1. ADMM uses the isotropic family with the
delta method, BayesADMM full Gaussians. Each edge of a circuit is one condition of the pooled solution. Beside the edge
stands what the server or client 1 sends along it, and by how much the two clients violate the condition at most, as a
Fisher length per parameter. The numbers are those of round 0 (duals zero, everything at the prior), of rounds 1 and 2,
and of the end. When all four edges are closed, the run is at the pooled solution. The dual map is closed in every
round, because the server stores λ_g and computes μ_g from it. The paper draws ADMM's dual map for δ = 1.
"""

from dataclasses import asdict

import numpy as np

import bayesadmm_np as ba
from bayesadmm_np.demos import shared, style
from bayesadmm_np.demos.fig4_outlier import DELTA, problem

RHO, TOL = 1.0, 1e-8
# what of a snapshot flows along each edge; the equations of the edges are shared.CIRCUITS
FLOWS = {"broadcast": "server", "natural_gradient": "client1", "gather": "dual1", "dual_map": "dual_server"}


def compute(rounds=200, track=iter):
    """Run both methods for 0, 1 and 2 rounds, and to the end."""
    table = {
        "admm": (ba.methods.ADMM(RHO), ba.families.IsotropicGaussian(np.zeros(3), DELTA)),
        "bayes": (ba.methods.BayesADMM(RHO), ba.families.FullGaussian(np.zeros(3), DELTA)),
    }
    found = {}
    for name, (method, prior) in track(table.items()):
        solver = ba.clients.VariationalNewton(tol=TOL / 100)
        runs = [ba.run(method, problem(), prior, limit, tol=TOL, solver=solver) for limit in (0, 1, 2, rounds)]
        snapshots = [snapshot(result, edges_at_start(method, result)) for result in runs]
        found[name] = {"method": method.name, "snapshots": snapshots, "pooled_residual": runs[-1].certificate().pooled}
    return {"rho": RHO, "delta": DELTA, "tol": TOL, **found}


def snapshot(result, at_start):
    """Return each edge's residual, and its values after the last round: mean and sd, or linear part and precisions."""
    q, learns = result.posterior, result.posterior.learns_precision

    def primal(q):
        return [q.mean, np.sqrt(q.variance) if learns else []]

    def dual(natural):
        return [natural.linear, np.diagonal(natural.precision) if learns else []]

    edges = asdict(result.history[-1].edges) if result.history else at_start
    return {
        "round": result.rounds,
        "server": primal(q),
        "client1": primal(result.client_posteriors[0]),
        "dual1": dual(result.sites[0]),
        "dual_server": dual(result.prior.prior_weight * q.natural),
        "residuals": {edge: float(edges[edge]) for edge in FLOWS},
    }


def edges_at_start(method, result):
    """Return the four residuals of a run of no rounds, which has no record, by the formulas of `Edges`."""
    q, prior, rule = result.posterior, result.prior, method.expectation or ba.losses.Auto()
    gradients = [loss.expect(q, loss.check(prior, rule)).natural_gradient for loss in problem()]
    gathered = sum(result.sites, start=prior.natural)
    return {
        "broadcast": max(q.fisher_norm(p.natural - q.natural) for p in result.client_posteriors),
        "natural_gradient": max(q.fisher_norm(s + g) for s, g in zip(result.sites, gradients, strict=True)),
        "gather": q.fisher_norm(prior.prior_weight * q.natural - gathered),
        "dual_map": q.fisher_norm(q.with_expectation(q.expectation).natural - q.natural),
    }


def claims(numbers):
    for circuit in (numbers["admm"], numbers["bayes"]):
        name, (start, *later) = circuit["method"], circuit["snapshots"]
        largest, pooled, tol = max(later[-1]["residuals"].values()), circuit["pooled_residual"], numbers["tol"]
        measured = f"largest residual {largest:.1e} after round {later[-1]['round']}"
        yield f"{name}: all four edges close", largest <= tol, measured
        measured = f"pooled stationarity {pooled:.1e}"
        yield f"{name}: the closed circuit is the pooled solution", pooled <= 10 * tol, measured
        first = start["residuals"]["natural_gradient"]
        natural = max(shot["residuals"]["natural_gradient"] for shot in later)
        claim = f"{name}: duals are negative gradients after every client step, not at the start"
        yield claim, natural <= 1e-6 < first, f"at most {natural:.1e}, {first:.2f} at the start"


def notes(numbers):
    ends = []
    for circuit in (numbers["admm"], numbers["bayes"]):
        end = circuit["snapshots"][-1]
        closed = max(end["residuals"].values()) <= numbers["tol"]
        ends.append(f"{circuit['method']} {'' if closed else 'not within '}{end['round']}")
    yield f"rounds until every edge is below {numbers['tol']:g}: {', '.join(ends)}"


def draw(numbers):
    """Draw ADMM above and BayesADMM below, with a table on each edge."""
    figure = style.new_figure(style.WIDTH, 6.4)
    for axes, (key, circuit) in zip(figure.subplots(2, 1), shared.CIRCUITS.items(), strict=True):
        shots = numbers[key]["snapshots"]
        rows = {
            edge: [(shot["round"], [*shot[flow][0], *shot[flow][1]], shot["residuals"][edge]) for shot in shots]
            for edge, flow in FLOWS.items()
        }
        shared.circuit(axes, *circuit, rows)
    return figure


DEMO = shared.Demo("3", "fig3_circuit", "Figure 3: the two duality circuits", compute, claims, draw, notes)

if __name__ == "__main__":
    DEMO.main()
