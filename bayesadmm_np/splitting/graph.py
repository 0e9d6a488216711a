"""ADMM without a server: neighbours on a graph agree on a distribution.

Node k keeps q_k and a dual η_k, and hears λ_l of its neighbours l alone. With weights w_kl of the edges and
w_k = Σ_l w_kl, a round is

    node   q_k ← arg min E_q[ℓ_k] + KL(q‖prior)/K + ⟨η_k, μ⟩ + ρ Σ_l w_kl KL(q‖q̄_kl),   λ̄_kl = (λ_k + λ_l)/2
    dual   η_k ← η_k + ½ρ Σ_l w_kl (λ_k − λ_l)

which is decentralised consensus ADMM (Shi et al. 2014) with KL in place of the squared distance. Σ_k η_k stays 0, so
that nodes that agree are at the pooled optimum: −η_k − (λ_k − λ_0)/K is the natural gradient of ℓ_k.

Near the optimum, in the metric of `rates.py`, with deviations z_k of λ_k and y_k of η_k,

    z_k ← (1/K + ρw_k + B_k)⁻¹ (½ρ Σ_l w_kl (z_k + z_l) − y_k),    y_k ← y_k + ½ρ Σ_l w_kl (z_k − z_l)

Least squares under a full covariance has B_k = 0: the factor then depends on the graph and on ρ, and not on the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .._errors import ArgumentError
from .._validation import Array, as_count, as_float_array, as_positive
from ..clients.problem import Solution, Subproblem
from ..clients.solver import Solver
from ..families.base import ExponentialFamily
from ..families.coordinates import Natural
from ..losses.base import Loss
from ..losses.expectations import Rule
from .loop import counter
from .methods import PVI
from .round import client_failure
from .status import Failure, Status
from .team import Team, assemble, require_start


@dataclass(frozen=True, repr=False)
class GraphResult:
    """The outcome of `run_on_graph`.

    Attributes
    ----------
    status : Status
    message : str
    posteriors : tuple of ExponentialFamily
        q_k of every node.
    sites : tuple of Natural
        η_k + (λ_k − λ_0)/K of every node: its Bayesian site.
    disagreement : ndarray, shape (rounds,)
        Largest Fisher length per parameter of λ_k − λ_l over edges, after each round.
    pooled : float
        Fisher length per parameter of the pooled condition's residual at the first node: 0 at the pooled optimum.
    floats : int
        Numbers sent in a round, over all edges and both directions.
    rho : float
    """

    status: Status
    message: str
    posteriors: tuple[Any, ...]
    sites: tuple[Natural, ...]
    disagreement: Array
    pooled: float
    floats: int
    rho: float
    naturals: tuple[tuple[Natural, ...], ...] = field(repr=False)
    """λ_k of every node after each round, the start first."""

    def __repr__(self) -> str:
        return f"GraphResult({self.status.name} after {self.rounds} rounds, pooled residual {self.pooled:.1e})"

    @property
    def rounds(self) -> int:
        """Rounds done."""
        return len(self.disagreement)


def run_on_graph(
    clients: Sequence[Loss],
    prior: ExponentialFamily,
    graph: ArrayLike,
    rho: float | None = None,
    rounds: int = 1000,
    *,
    expectation: Rule | None = None,
    solver: Solver | None = None,
    tol: float = 1e-6,
    progress: bool = False,
) -> GraphResult:
    """Let the nodes of a graph agree on the pooled posterior, in one process.

    Parameters
    ----------
    clients : sequence of Loss
        One a node; ℓ_k is a sum over rows.
    prior : ExponentialFamily
        Its type is the family.
    graph : array_like, shape (K, K)
        w_kl >= 0, symmetric, with a zero diagonal; the graph must be connected.
    rho : float, optional
        ρ > 0; default that of `best_graph_rho`, the fastest for least squares under a full covariance.
    rounds : int, default 1000
        At most.
    expectation : Rule, optional
        As in `run`; default `Auto()`.
    solver : Solver, optional
        As in `run`; default one for each loss.
    tol : float, default 1e-6
        The run ends when no edge's disagreement, and no node's change, is above it; in posterior standard deviations
        per parameter.
    progress : bool, default False

    Raises
    ------
    ValueError
        When arguments do not fit each other.

    Examples
    --------
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> X = np.random.default_rng(0).standard_normal((40, 2))
    >>> clients = [ba.losses.Logistic(part, part[:, 0] > 0.3) for part in np.split(X, 4)]
    >>> ring = np.array([[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]])
    >>> prior = ba.families.FullGaussian(np.zeros(2), 1.0)
    >>> result = ba.run_on_graph(clients, prior, ring)
    >>> result.status.name, result.pooled < 1e-5
    ('CONVERGED', True)
    """
    team = assemble(PVI(), clients, prior, expectation, solver, min(tol, 1e-2))
    require_start(team.method, prior)
    weights = read_graph(graph, len(team.workers))
    strength = best_graph_rho(weights, prior.prior_weight) if rho is None else as_positive(rho, "rho")
    as_count(rounds, "rounds", minimum=0)
    as_positive(tol, "tol")
    begin = prior.start()
    q, sites = [begin] * len(weights), [begin.natural.zeros()] * len(weights)
    told, apart = [tuple(x.natural for x in q)], []
    status, message = Status.ROUND_LIMIT, Status.ROUND_LIMIT.value
    rng = np.random.default_rng(0)  # of solvers that draw
    for number in counter(0, rounds, "graph", progress):
        after = _round(team, weights, strength, q, sites, number + 1, rng)
        if isinstance(after, Failure):
            status, message = after.status, after.message
            break
        moved = max(new.fisher_norm(new.natural - old.natural) for new, old in zip(after, q, strict=True))
        q, naturals = after, [x.natural for x in after]
        sites = [s - (0.5 * strength) * x for s, x in zip(sites, _differences(weights, naturals), strict=True)]
        told.append(tuple(naturals))
        lengths = [q[k].fisher_norm(naturals[k] - naturals[j]) for k, j in np.argwhere(weights)]
        apart.append(max(lengths, default=0.0))
        if max(moved, apart[-1]) <= tol:
            status, message = Status.CONVERGED, Status.CONVERGED.value
            break
    own = [s + (prior.prior_weight * x.natural - prior.natural) * (1.0 / len(q)) for s, x in zip(sites, q, strict=True)]
    sent = int(np.count_nonzero(weights)) * begin.natural.size
    last = _pooled_residual(team, q[0])
    return GraphResult(status, message, tuple(q), tuple(own), np.array(apart), last, sent, float(strength), tuple(told))


def _round(
    team: Team,
    weights: Array,
    rho: float,
    q: Sequence[ExponentialFamily],
    sites: Sequence[Natural],
    number: int,
    rng: np.random.Generator,
) -> list[ExponentialFamily] | Failure:
    """Return the nodes' answers to what they heard in the last round."""
    found: list[Solution] = []
    prior, naturals = team.prior, [x.natural for x in q]
    for k, worker in enumerate(team.workers):
        total = prior.prior_weight / len(q) + rho * weights[k].sum()
        near = np.flatnonzero(weights[k])
        parts = [1.0 / len(q), 0.5 * rho * weights[k].sum(), *(0.5 * rho * weights[k, near])]
        mixed = prior.natural.combine(parts, [prior.natural, naturals[k], *(naturals[j] for j in near)])
        anchor = q[k].with_natural(mixed * (1.0 / total))
        problem = Subproblem(worker.loss, worker.rule, anchor, sites[k], float(total))
        with np.errstate(over="ignore", invalid="ignore"):
            found.append(worker.solver.solve(problem, q[k] if problem.is_well_posed else anchor, rng))
    failed = client_failure(found, number, safeguard=True)
    return replace(failed, knob="take another rho") if failed else [solution.posterior for solution in found]


def _differences(weights: Array, naturals: Sequence[Natural]) -> list[Natural]:
    """Σ_l w_kl (λ_l − λ_k) of every node."""
    laplacian = np.diag(weights.sum(axis=1)) - weights
    return [naturals[0].combine(list(-row), list(naturals)) for row in laplacian]


def _pooled_residual(team: Team, q: ExponentialFamily) -> float:
    """Fisher length per parameter of wλ − λ_0 + Σ_k ∇_μE_q[ℓ_k]."""
    gradients = [worker.expect(q).natural_gradient for worker in team.workers]
    terms, weights = (
        [q.natural, team.prior.natural, *gradients],
        [team.prior.prior_weight, -1.0, *[1.0] * len(gradients)],
    )
    return q.fisher_norm(q.natural.combine(weights, terms))


def read_graph(graph: ArrayLike, nodes: int | None = None) -> Array:
    """Check the weights of a graph's edges, and return them."""
    weights = as_float_array(graph, "graph", ndim=(2,))
    count = len(weights) if nodes is None else nodes
    if weights.shape != (count, count):
        raise ArgumentError("graph", f"must have shape {(count, count)}, one row a client", weights.shape)
    if (weights < 0).any() or (weights != weights.T).any() or np.diag(weights).any():
        raise ArgumentError("graph", "must be symmetric and >= 0, with a zero diagonal", "another matrix")
    reached = np.zeros(count, dtype=bool)
    reached[0] = True
    for _ in range(count):
        reached |= weights[reached].any(axis=0)
    if not reached.all():
        missing = int(np.flatnonzero(~reached)[0])
        raise ArgumentError("graph", "must be connected", f"no way from node 0 to node {missing}")
    return weights


def graph_factor(
    graph: ArrayLike, rho: float, curvatures: Sequence[Array] | None = None, prior_weight: float = 1.0
) -> float:
    """Return the factor by which a round of `run_on_graph` shortens the error in the end; above 1 it diverges.

    Parameters
    ----------
    graph : array_like, shape (K, K)
    rho : float
    curvatures : sequence of ndarray, each of shape (n, n), optional
        B_k, such as `local_rates(clients, prior).curvatures`; default 0, least squares under a full covariance, where
        the factor depends on graph and ρ alone.
    prior_weight : float, default 1.0
        w of the family: 1 but for isotropic priors.

    Raises
    ------
    ValueError
        When the graph is not one, or `rho` is not positive.

    Examples
    --------
    All sites in one ring of 16, and each with all others:

    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> ring, everyone = np.roll(np.eye(16), 1, axis=0) + np.roll(np.eye(16), -1, axis=0), 1.0 - np.eye(16)
    >>> [round(ba.graph_factor(graph, ba.best_graph_rho(graph)), 2) for graph in (ring, everyone)]
    [0.83, 0.5]
    """
    weights, rho = read_graph(graph), as_positive(rho, "rho")
    count = len(weights)
    bent = [np.zeros((1, 1))] * count if curvatures is None else list(curvatures)
    if len(bent) != count:
        raise ArgumentError("curvatures", f"must hold {count} matrices, one a node", len(bent))
    degrees, identity = weights.sum(axis=1), np.eye(len(bent[0]))
    heard, apart = (0.5 * rho * (np.diag(degrees) + sign * weights) for sign in (1.0, -1.0))
    solve = np.zeros((count * len(identity),) * 2)
    for k, own in enumerate(bent):
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


def best_graph_rho(graph: ArrayLike, prior_weight: float = 1.0) -> float:
    """Return the ρ with the smallest `graph_factor` for least squares under a full covariance.

    Parameters
    ----------
    graph : array_like, shape (K, K)
    prior_weight : float, default 1.0

    Raises
    ------
    ValueError
        When the graph is not one.

    Examples
    --------
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> round(ba.best_graph_rho(1.0 - np.eye(6)), 3)
    0.033
    """
    from scipy.optimize import minimize_scalar  # here: it takes longer to load than the library

    weights = read_graph(graph)
    if len(weights) == 1:
        return 1.0
    scale = prior_weight / weights.sum()

    def factor(exponent: float) -> float:
        return graph_factor(weights, scale * 10.0**exponent, prior_weight=prior_weight)

    exponents = np.linspace(-2.0, 3.0, 26)
    least = int(np.argmin([factor(x) for x in exponents]))
    bounds = exponents[max(least - 1, 0)], exponents[min(least + 1, len(exponents) - 1)]
    found = minimize_scalar(factor, bounds=bounds, method="bounded", options={"xatol": 1e-3})
    return float(scale * 10.0**found.x)
