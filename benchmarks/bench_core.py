"""Timings of the core with pytest-benchmark; not collected by the tests.

    pytest benchmarks/bench_core.py

The targets in the names are those of docs/benchmarks.md; nothing here asserts a time, only that the answer is right.
Set OPENBLAS_NUM_THREADS=1 when other jobs share the machine.
"""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
from common import softmax_clients

import bayesadmm_np as ba
from bayesadmm_np.losses.logistic_normal import logistic_normal_moments


def outlier_clients():
    """Two clients as in the papers' outlier example: 14 points in the plane, a bias, one point on the wrong side."""
    rng = np.random.default_rng(4)
    clients = []
    for k in range(2):
        y = np.array([0, 0, 0, 1, 1, 1, 1])
        points = np.column_stack([np.where(y, 1.5, -1.5), np.full(7, 2.0 * k - 1.0)]) + 0.5 * rng.standard_normal(
            (7, 2)
        )
        if k == 1:
            points[-1] = (-1.0, 1.0)
        clients.append(ba.losses.Logistic(np.column_stack([points, np.ones(7)]), y))
    return clients


def test_outlier_example_to_1e8_target_500_ms(benchmark):
    clients = outlier_clients()
    prior = ba.families.FullGaussian(np.zeros(3), 0.2)
    result = benchmark(lambda: ba.run(ba.methods.BayesADMM(rho=1.0), clients, prior, rounds=200, tol=1e-8))
    benchmark.extra_info["rounds"] = result.rounds
    benchmark.extra_info["client_iterations"] = sum(c.iterations for record in result.history for c in record.clients)
    assert result.status is ba.Status.CONVERGED


def test_ridge_in_one_round_490_parameters_target_100_ms(benchmark):
    rng = np.random.default_rng(5)
    weights = rng.standard_normal((49, 10))
    clients = []
    for _ in range(5):
        X = rng.random((100, 49))
        clients.append(ba.losses.LeastSquares(X, X @ weights + 0.1 * rng.standard_normal((100, 10))))

    def prior():  # anew for each run: it keeps its factor and its inverse
        return ba.families.FullGaussian(np.zeros(490), 1.0)

    result = benchmark(lambda: ba.run(ba.methods.BayesADMM(rho=1 / 5), clients, prior(), rounds=1))
    pooled = ba.solve_pooled(clients, prior()).posterior
    np.testing.assert_allclose(result.posterior.mean, pooled.mean, atol=1e-9)


def test_cholesky_of_order_490_of_which_the_ridge_round_takes_some_sixty(benchmark):
    root = np.random.default_rng(5).standard_normal((490, 490))
    benchmark(scipy.linalg.cholesky, root @ root.T + 490 * np.eye(490), lower=True, check_finite=False)


@pytest.mark.parametrize("deviation", [0.5, 8.0])
def test_logistic_integrals_of_10000_rows(benchmark, deviation):
    rng = np.random.default_rng(0)
    mean, variance = 3.0 * rng.standard_normal(10_000), np.full(10_000, deviation**2)
    moments = benchmark(logistic_normal_moments, mean, variance)
    benchmark.extra_info["nanoseconds_per_row"] = benchmark.stats["min"] * 1e5 if benchmark.stats else None
    assert np.isfinite(moments.softplus).all()


@pytest.mark.parametrize("family", [ba.families.DiagonalGaussian, ba.families.FullGaussian])
def test_softmax_expectation_of_1000_rows_50_features_10_classes(benchmark, family):
    rng = np.random.default_rng(0)
    y = np.arange(1000) % 10
    (loss,) = softmax_clients(rng.random((1000, 50)), y, 1)
    q = family(np.zeros(500), 10.0)
    rule = loss.check(q, ba.losses.Auto())
    expected = benchmark(lambda: loss.expect(family(np.zeros(500), 10.0), rule).natural_gradient)
    assert expected.is_finite()
