"""ADMM on graphs: the fixed point, the linear map against the rounds of the code, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

import bayesadmm_np as ba

K = 6


def ring(nodes=K):
    along = np.roll(np.eye(nodes), 1, axis=0)
    return along + along.T


def path_with_weights():
    edges = np.diag([1.0, 0.5, 2.0, 1.0, 0.3], k=1)
    return edges + edges.T


def star():
    edges = np.zeros((K, K))
    edges[0, 1:] = 1.0
    return edges + edges.T


GRAPHS = {"ring": ring(), "path": path_with_weights(), "star": star(), "everyone": 1.0 - np.eye(K)}


def designs(scale=1.0, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((30, 2)) * [1.0, scale] + 0.3 * k for k in range(K)]


def least_squares(scale=1.0):
    return [ba.losses.LeastSquares(X, X @ [1.0, -1.0 / scale] + np.cos(X[:, 0] * 7)) for X in designs(scale)]


def logistic():
    return [ba.losses.Logistic(X, (X @ [1.0, -0.5] + np.cos(9 * X[:, 0]) > 0.2).astype(int)) for X in designs()]


def poisson():
    return [ba.losses.Poisson(X, np.floor(np.abs(3 * np.cos(5 * X[:, 0])))) for X in designs()]


FAMILIES = {
    "full": lambda d=2: ba.families.FullGaussian(np.zeros(d), 1.0),
    "diagonal": lambda d=2: ba.families.DiagonalGaussian(np.full(d, 0.1), 0.5),
    "isotropic": lambda d=2: ba.families.IsotropicGaussian(np.zeros(d), 2.0),
}


OPTIMA = [
    (least_squares, "full", "ring", None),
    (logistic, "full", "path", None),
    (poisson, "full", "star", None),
    (logistic, "diagonal", "everyone", None),
    (poisson, "diagonal", "ring", 0.3),
    (logistic, "isotropic", "star", 10.0),
    (least_squares, "isotropic", "everyone", 20.0),
]


@pytest.mark.parametrize(("clients", "family", "graph", "rho"), OPTIMA)
def test_nodes_agree_on_the_pooled_optimum(clients, family, graph, rho):
    """Residuals below tol leave some tol/(1 − factor) of distance: a hundred times tol is enough."""
    clients, prior = clients(), FAMILIES[family]()
    result = ba.run_on_graph(clients, prior, GRAPHS[graph], rho, rounds=1000, tol=1e-7)
    assert result.status is ba.Status.CONVERGED
    pooled = ba.solve_pooled(clients, prior).posterior
    for q in result.posteriors:
        assert pooled.fisher_norm(q.natural - pooled.natural) <= 1e-5
    total = prior.natural.combine([1.0] * (K + 1), [prior.natural, *result.sites])
    assert pooled.fisher_norm(total - prior.prior_weight * pooled.natural) <= 1e-5 * max(prior.prior_weight, 1.0)
    assert result.pooled <= 1e-4


def linear_run(graph, rho, dual_part=0.5, rounds=40):
    """λ_k − λ* of least squares under a full covariance, predicted from the start by the page's two lines."""
    clients, prior = least_squares(), FAMILIES["full"]()
    result = ba.run_on_graph(clients, prior, graph, rho=rho, rounds=rounds, tol=1e-300)
    best = ba.solve_pooled(clients, prior).posterior.natural
    degrees = graph.sum(axis=1)
    z = np.array([np.concatenate([p.ravel() for p in (prior.natural - best).parts])] * K)
    duals = [
        -loss.expect(prior, ba.losses.Exact()).natural_gradient - (best - prior.natural) * (1 / K) for loss in clients
    ]
    y = -np.array([np.concatenate([p.ravel() for p in dual.parts]) for dual in duals])
    errors = []
    for naturals in result.naturals[1:]:
        z = (0.5 * rho * (degrees[:, None] * z + graph @ z) - y) / (1 / K + rho * degrees)[:, None]
        y = y + dual_part * rho * (degrees[:, None] * z - graph @ z)
        found = np.array([np.concatenate([p.ravel() for p in (x - best).parts]) for x in naturals])
        errors.append(np.abs(found - z).max())
    return max(errors), np.abs(z).max()


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
@pytest.mark.parametrize("rho", [0.05, 0.4])
def test_least_squares_under_a_full_covariance_is_the_linear_map(graph, rho):
    """To rounding of numbers below 1e3, for forty rounds."""
    assert linear_run(graph, rho)[0] <= 1e-9
    assert linear_run(graph, rho, dual_part=1.0, rounds=5)[0] > 1e-3  # the twin whose dual moves twice as far


def near_the_optimum(clients, prior, graph, rho, rounds, dual_part=0.5):
    """One round of the page's linear map from a late round of the code, and the map as a matrix on all (z_k, y_k)."""
    result = ba.run_on_graph(clients, prior, graph, rho=rho, rounds=rounds, tol=1e-300)
    assert not result.status.is_failure, result.message
    best = ba.solve_pooled(clients, prior, tol=1e-13).posterior
    bent = ba.local_rates(clients, prior, best).curvatures
    degrees, laplacian = graph.sum(axis=1), np.diag(graph.sum(axis=1)) - graph
    z = [np.array([best.whiten(x - best.natural) for x in told]) for told in result.naturals]
    rules = [loss.check(prior, ba.losses.Auto()) for loss in clients]
    gradients = [
        best.whiten(loss.expect(best, rule).natural_gradient) for loss, rule in zip(clients, rules, strict=True)
    ]
    above = best.whiten(prior.prior_weight * best.natural - prior.natural) / K
    y = sum(0.5 * rho * laplacian @ step for step in z[1:-1]) + np.array(gradients) + above

    def after(z, y):
        heard = 0.5 * rho * (degrees[:, None] * z + graph @ z) - y
        weights = prior.prior_weight / K + rho * degrees
        z = np.array([np.linalg.solve(w * np.eye(len(B)) + B, x) for w, B, x in zip(weights, bent, heard, strict=True)])
        return z, y + dual_part * rho * laplacian @ z

    units = np.eye(2 * z[0].size).reshape(-1, 2, *z[0].shape)
    matrix = np.array([np.ravel(after(*unit)) for unit in units]).T
    error = np.abs(after(z[-2], y)[0] - z[-1]).max() / np.abs(z[-1]).max()
    return error, np.abs(z[-1]).max(), matrix, bent


CURVED = [
    (logistic, "star", "full", 0.3, 50),
    (poisson, "path", "full", 0.5, 50),
    (logistic, "everyone", "diagonal", 0.1, 50),
    (poisson, "star", "diagonal", 3.0, 80),
    (logistic, "everyone", "isotropic", 5.0, 150),
]


@pytest.mark.parametrize(("clients", "graph", "family", "rho", "rounds"), CURVED)
def test_late_rounds_are_the_linear_map(clients, graph, family, rho, rounds):
    """Its error is of second order: at most 30 times the deviation itself."""
    clients, prior, graph = clients(), FAMILIES[family](), GRAPHS[graph]
    error, size, matrix, bent = near_the_optimum(clients, prior, graph, rho, rounds)
    assert 1e-9 < size < 0.1
    assert error <= 30.0 * size + 1e-6
    # a sum of duals is kept by every round: so many eigenvalues are 1, and no error has a part there
    found = np.linalg.eigvals(matrix)
    found = found[np.argsort(np.abs(found - 1.0))][len(bent[0]) :]
    assert np.abs(found).max() == pytest.approx(ba.graph_factor(graph, rho, bent, prior.prior_weight), abs=1e-6)
    twin = near_the_optimum(clients, prior, graph, rho, rounds, dual_part=0.4)[2]
    assert np.abs(twin - matrix).max() > 0.01


def test_the_rate_of_a_full_covariance_is_the_graphs():
    """Columns whose scales differ by 10⁴: no round more. Classic ADMM, the isotropic family, has thousands."""
    full, isotropic = FAMILIES["full"], FAMILIES["isotropic"]
    counts = [ba.run_on_graph(least_squares(s), full(), ring(), tol=1e-6).rounds for s in (1.0, 1e4)]
    assert abs(counts[0] - counts[1]) <= 0.3 * counts[0]
    slow = ba.run_on_graph(least_squares(100.0), isotropic(), ring(), tol=1e-6, rounds=500)
    assert slow.status is ba.Status.ROUND_LIMIT


def test_the_factor_of_a_complete_graph_and_of_one_edge():
    """With a = −1 beside the mode of all: (d + a)/2 = K/2 − 1 and (d − a)/2 = K/2 stand for the disagreement."""
    rho, c = 0.03, 1 / K + 0.03 * (K - 1)
    heard, apart = rho * (K - 2) / 2, rho * K / 2
    pair = np.array([[heard / c, -1 / c], [apart * heard / c, 1 - apart / c]])
    expected = max(rho * (K - 1) / c, np.abs(np.linalg.eigvals(pair)).max())
    assert ba.graph_factor(GRAPHS["everyone"], rho) == pytest.approx(expected, rel=1e-9)
    assert ba.graph_factor(np.zeros((1, 1)), 1.0) == pytest.approx(0.0, abs=1e-12)


def test_best_rho_is_best():
    for graph in GRAPHS.values():
        rho = ba.best_graph_rho(graph)
        assert all(ba.graph_factor(graph, rho) <= ba.graph_factor(graph, x * rho) + 1e-9 for x in (0.3, 0.8, 1.25, 3.0))


def test_names_and_units_of_nodes_and_edges_do_not_matter():
    order = np.random.default_rng(1).permutation(K)
    clients, prior, graph = logistic(), FAMILIES["full"](), GRAPHS["path"]
    plain = ba.run_on_graph(clients, prior, graph, rho=0.1, rounds=30)
    moved = ba.run_on_graph([clients[k] for k in order], prior, graph[np.ix_(order, order)], rho=0.1, rounds=30)
    heavier = ba.run_on_graph(clients, prior, 4.0 * graph, rho=0.025, rounds=30)
    for k, j in enumerate(order):
        np.testing.assert_allclose(moved.posteriors[k].mean, plain.posteriors[j].mean, atol=1e-8)
        np.testing.assert_allclose(heavier.posteriors[j].mean, plain.posteriors[j].mean, atol=1e-8)
    assert plain.floats == 10 * prior.natural.size  # five edges, both ways


def test_one_node_is_the_pooled_problem():
    clients = logistic()[:1]
    result = ba.run_on_graph(clients, FAMILIES["full"](), [[0.0]])
    pooled = ba.solve_pooled(clients, FAMILIES["full"]()).posterior
    np.testing.assert_allclose(result.posteriors[0].mean, pooled.mean, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"graph": np.ones((K, K))}, "graph must be symmetric and >= 0, with a zero diagonal"),
        ({"graph": np.triu(np.ones((K, K)), 1)}, "graph must be symmetric"),
        ({"graph": -ring()}, "graph must be symmetric and >= 0"),
        ({"graph": ring(5)}, r"graph must have shape \(6, 6\), one row a client, got \(5, 5\)"),
        ({"graph": np.kron(np.eye(2), ring(3))}, "graph must be connected, got no way from node 0 to node 3"),
        ({"graph": np.full((K, K), np.nan)}, "graph must"),
        ({"rho": 0.0}, "rho must be > 0"),
        ({"tol": -1.0}, "tol must be > 0"),
        ({"rounds": -1}, "rounds must be at least 0"),
        ({"clients": []}, "clients must hold at least one loss"),
        ({"prior": ba.families.FullGaussian(np.zeros(2), 0.0)}, "flat"),
    ],
)
def test_bad_arguments_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        ba.run_on_graph(**{"clients": logistic(), "prior": FAMILIES["full"](), "graph": ring(), **changes})
    with pytest.raises(ValueError, match="curvatures must hold 6 matrices"):
        ba.graph_factor(ring(), 1.0, [np.eye(2)])


def test_a_node_that_has_no_answer_is_named():
    """Node 5 hangs on one weak edge, so that little holds it where its dual is indefinite. A larger ρ is no remedy."""
    clients, prior = poisson(), FAMILIES["diagonal"]()
    result = ba.run_on_graph(clients, prior, GRAPHS["path"], rho=0.7, rounds=20)
    assert result.status is ba.Status.ILL_POSED_CLIENT
    assert result.message.startswith("client 5, round 8")
    assert result.message.endswith("take another rho.")
    assert result.rounds == 7
    assert not ba.run_on_graph(clients, prior, GRAPHS["path"], rho=0.5, rounds=20).status.is_failure


MEASURED = Path(__file__).parents[2] / "benchmarks" / "results" / "graphs.json"


def test_the_page_says_what_was_measured():
    """docs/decentralised.md: a tree of sums wins on every graph, rounds grow as 1/√gap, and scales cost nothing."""
    found = json.loads(MEASURED.read_text(encoding="utf-8"))
    rows = {(row["graph"], row["nodes"]): row for row in found["graphs"]}
    kinds = [row[kind] for row in rows.values() for kind in ("linear", "logistic")]
    assert all(one["tree_hops"] < one["rounds"] for one in kinds)
    assert all(one["pooled"] <= 1e-6 for one in kinds)
    page = (MEASURED.parents[2] / "docs" / "decentralised.md").read_text(encoding="utf-8")
    ring, expander = rows["ring", 16], rows["expander", 36]
    told = [
        [one[kind][what] for kind in ("linear", "logistic")]
        for one in (ring, expander)
        for what in ("tree_hops", "rounds")
    ]
    (ring_hops, ring_rounds, hops, rounds) = told
    page = " ".join(page.split())
    assert f"{ring_hops[0]} hops for least squares where the graph's ADMM takes {ring_rounds[0]} rounds" in page
    assert f"and {ring_hops[1]} for a logistic posterior" in page
    assert f"where it takes {ring_rounds[1]};" in page
    assert f"36 nodes {hops[0]} and {hops[1]} against {rounds[0]} and {rounds[1]}" in page
    # a power of the gap, fitted over graphs that are not complete
    gaps, counts = np.log([[row["gap"], row["linear"]["rounds"]] for row in rows.values() if row["gap"] < 1.0]).T
    assert -0.6 < np.polyfit(gaps, counts, 1)[0] < -0.4
    full = [row["rounds"] for row in found["scales"] if row["family"] == "full covariance"]
    assert len(set(full)) == 1
