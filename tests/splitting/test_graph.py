"""benchmarks/graphs.py: the nodes agree on the pooled optimum, by the linear map of docs/benchmarks.md."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest

import bayesadmm_np as ba

ROOT = Path(__file__).parents[2]
PRIOR = ba.families.FullGaussian(np.zeros(3), 1.0)


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("graphs")


def test_nodes_agree_on_the_pooled_optimum(script):
    losses, graph = script.clients(6), script.ring(6)
    result = script.run_on_graph(losses, PRIOR, graph, tol=1e-7)
    pooled = ba.solve_pooled(losses, PRIOR).posterior
    assert result.converged
    assert result.pooled < 1e-5
    for natural in result.naturals[-1]:
        assert pooled.fisher_norm(natural - pooled.natural) < 1e-5
    early = script.run_on_graph(losses, PRIOR, graph, rounds=3)
    assert not early.converged
    assert pooled.fisher_norm(early.naturals[-1][0] - pooled.natural) > 1e-3


def test_nodes_that_agree_go_on_until_they_stand_still(script):
    """Equal rows at all nodes: no edge disagrees in any round, so that a stop by the edges alone would be at once."""
    losses, graph = script.clients(1) * 6, script.ring(6)
    result = script.run_on_graph(losses, PRIOR, graph, tol=1e-7)
    assert result.converged
    assert result.pooled < 1e-5
    assert len(result.naturals) > 3


def linear_errors(script, dual_part):
    """Largest difference between rounds of least squares and the page's two lines, predicted from the start."""
    losses, graph, rho = script.clients(6, kind="linear"), script.ring(6), 0.05
    naturals = script.run_on_graph(losses, PRIOR, graph, rho, rounds=10, tol=1e-300).naturals
    best, degrees = ba.solve_pooled(losses, PRIOR).posterior.natural, graph.sum(axis=1)
    z = np.array([(x - best).to_vector() for x in naturals[0]])
    gradients = [loss.expect(PRIOR, ba.losses.Exact()).natural_gradient for loss in losses]
    y = np.array([(gradient + (best - PRIOR.natural) * (1 / 6)).to_vector() for gradient in gradients])
    errors = []
    for found in naturals[1:]:
        z = (0.5 * rho * (degrees[:, None] * z + graph @ z) - y) / (1 / 6 + rho * degrees)[:, None]
        y = y + dual_part * rho * (degrees[:, None] * z - graph @ z)
        errors.append(np.abs(np.array([(x - best).to_vector() for x in found]) - z).max())
    return max(errors)


def test_least_squares_under_a_full_covariance_is_the_linear_map(script):
    assert linear_errors(script, 0.5) < 1e-9
    assert linear_errors(script, 1.0) > 1e-3  # the twin whose dual moves twice as far


def test_the_page_says_what_was_measured():
    """A tree of sums wins on every graph, rounds grow as 1/√gap, and scales cost nothing."""
    found = json.loads((ROOT / "benchmarks" / "results" / "graphs.json").read_text(encoding="utf-8"))
    rows = {(row["graph"], row["nodes"]): row for row in found["graphs"]}
    kinds = [row[kind] for row in rows.values() for kind in ("linear", "logistic")]
    assert all(one["tree_hops"] < one["rounds"] and one["pooled"] <= 1e-6 for one in kinds)
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    for kind in ("linear", "logistic"):
        for key in (("ring", 16), ("expander", 36)):
            row = rows[key][kind]
            assert f"| {key[0]} of {key[1]}, {kind} | {row['rounds']} | {row['tree_hops']} |" in page
    # a power of the gap, fitted over graphs that are not complete
    gaps, counts = np.log([[row["gap"], row["linear"]["rounds"]] for row in rows.values() if row["gap"] < 1.0]).T
    assert -0.6 < np.polyfit(gaps, counts, 1)[0] < -0.4
    assert len({row["rounds"] for row in found["scales"] if row["family"] == "full covariance"}) == 1
