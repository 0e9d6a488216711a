"""Passes over the rows in a run: one at the server's point, one for each step of a solver, and none twice."""

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np.clients import newton as newton_module
from bayesadmm_np.clients.problem import Iterate
from bayesadmm_np.losses.base import RowCurvature
from bayesadmm_np.losses.linear_model import LinearModelLoss


def sites(rng, rows, n_clients=3):
    X = rng.normal(size=(n_clients, rows, 3))
    return [ba.losses.Logistic(own, (rng.random(rows) < 1 / (1 + np.exp(-own.sum(axis=1)))).astype(int)) for own in X]


@pytest.fixture
def passes(monkeypatch):
    """Count expectations and Gram matrices."""
    counts = {"expectations": 0, "grams": 0}

    def counting(name, function):
        def counted(*args):
            counts[name] += 1
            return function(*args)

        return counted

    monkeypatch.setattr(LinearModelLoss, "row_moments", counting("expectations", LinearModelLoss.row_moments))
    monkeypatch.setattr(RowCurvature, "project", counting("grams", RowCurvature.project))
    return counts


@pytest.mark.parametrize("method", [ba.methods.FedLapCov(), ba.methods.PVI()])
def test_a_round_costs_an_evaluation_at_the_server_and_one_a_step(method, passes, rng):
    """A site within tolerance after one step costs two, and one that is there already costs one."""
    clients = sites(rng, rows=200)
    result = ba.run(method, clients, ba.families.FullGaussian(np.zeros(3), 1.0))
    taken = [client.iterations for record in result.history for client in record.clients]
    assert min(taken) <= 1 < max(taken)
    assert passes["expectations"] == len(clients) * (1 + len(result.history)) + sum(taken)
    assert passes["grams"] == passes["expectations"]


@pytest.mark.parametrize(("mean", "twice"), [(0.0, 0), (0.1, 1)])
def test_a_start_with_mean_zero_is_its_own_origin(mean, twice, passes, rng):
    """Beyond `FAR` the solver also looks at mean zero, once."""
    (loss,) = sites(rng, rows=100_000, n_clients=1)
    prior = ba.families.FullGaussian(np.full(3, mean), 1.0)
    problem = ba.clients.Subproblem(loss, ba.losses.Delta(2), prior, prior.natural.zeros(), 1.0)
    assert Iterate.at(problem, prior).residual > newton_module.FAR
    passes["expectations"] = 0
    solution = ba.clients.VariationalNewton().solve(problem, prior, rng)
    assert passes["expectations"] == 1 + twice + solution.iterations
