"""Answers that looked right and were not: each of these once said converged, certified, or the same, wrongly."""

import numpy as np
import pytest

import bayesadmm_np as ba
from oracles.refusals import assert_refused

F, L, M = ba.families, ba.losses, ba.methods


def halves(make, X, y):
    n = len(y) // 2
    return [make(X[:n], y[:n]), make(X[n:], y[n:])]


def logistic(n=40, d=2, seed=0):
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.normal(size=(n, d)), np.ones(n)])
    return X, (rng.random(n) < 1 / (1 + np.exp(-X.sum(axis=1)))).astype(int)


def test_a_mean_far_from_the_origin_is_no_reason_to_go_on():
    """Rebuilding S⁻¹ from moments cancels like ε m²S; the run is right and must say so."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=1000)
    X, y = np.column_stack([np.ones(1000), x]), 1e4 * (1 + 0.3 * x) + rng.normal(size=1000)
    result = ba.run(M.PVI(), halves(L.LeastSquares, X, y), F.FullGaussian(np.zeros(2), 1e-6))
    assert result.history[-1].edges.dual_map > 1e-7
    assert result.status is ba.Status.CONVERGED
    ridge = np.linalg.solve(X.T @ X + 1e-6 * np.eye(2), X.T @ y)
    np.testing.assert_allclose(result.posterior.mean, ridge, rtol=1e-9)


def test_the_certificate_looks_at_the_mean_that_is_reported():
    """Nearly collinear columns of size 1e6: λ is right to rounding, and the mean that S⁻¹λ gives is not."""
    for seed in range(10):
        rng = np.random.default_rng(seed)
        a = rng.normal(size=20)
        X = 1e6 * np.column_stack([a, a + 1e-6 * rng.normal(size=20)])
        y = X @ [1e4, -2e4]
        result = ba.run(
            M.PVI(), halves(L.LeastSquares, X, y), F.FullGaussian(np.zeros(2), 1e-2), rounds=3, raise_on_failure=False
        )
        m = result.posterior.mean
        gradient = X.T @ (X @ m - y) + 1e-2 * m
        decrement = np.linalg.norm(result.posterior.factor.half_solve(gradient))
        assert not result.certificate().holds or decrement < 1e-4


@pytest.mark.parametrize("scale", [1e-8, 1e-4, 1.0])
def test_units_do_not_decide_when_a_point_method_has_arrived(scale):
    """An isotropic metric measures a gradient in the data's units; the decrement does not."""
    X, y = logistic()
    prior = F.IsotropicGaussian(np.zeros(3), 1e-4 * scale**2)
    result = ba.run(M.ADMM(), halves(L.Logistic, scale * X, y), prior, rounds=20)
    pooled = ba.solve_pooled(
        [L.Logistic(X, y)], F.IsotropicGaussian(np.zeros(3), 1e-4), expectation=L.Delta(1)
    ).posterior.mean
    arrived = np.allclose(scale * result.posterior.mean, pooled, rtol=1e-4)
    assert arrived or not result.certificate().holds
    assert arrived or result.status is not ba.Status.CONVERGED


@pytest.mark.parametrize("make", [L.Logistic, L.LeastSquares, L.Poisson])
def test_losses_keep_their_own_data(make):
    X, y = logistic()
    mine, target = X.copy(), y.astype(float)
    loss = make(mine, target)
    before = loss.value(np.ones(3)), loss.gradient(np.ones(3))
    mine *= 0.0
    target[:] = 7.0
    assert loss.value(np.ones(3)) == before[0]
    np.testing.assert_array_equal(loss.gradient(np.ones(3)), before[1])


@pytest.mark.parametrize("method", [M.FedAvg(), M.FedProx(), M.FedDyn()], ids=lambda row: row.name)
def test_a_row_of_weight_three_is_three_rows_also_in_the_clients_shares(method):
    X, y = logistic()
    prior = F.IsotropicGaussian(np.zeros(3), 1.0)
    heavy = [L.Logistic(X[:10], y[:10], weights=np.full(10, 3.0)), L.Logistic(X[10:], y[10:])]
    many = [L.Logistic(np.repeat(X[:10], 3, axis=0), np.repeat(y[:10], 3)), L.Logistic(X[10:], y[10:])]
    a, b = (ba.run(method, clients, prior, rounds=5).posterior.mean for clients in (heavy, many))
    np.testing.assert_allclose(a, b, rtol=1e-9)


@pytest.mark.parametrize("row", [M.BLR(0.1), M.FedAvg(), M.FedProx()], ids=lambda row: row.name)
def test_the_safeguard_leaves_methods_alone_that_solve_no_subproblem_or_have_no_dual(row):
    clients, family = halves(L.Logistic, *logistic()), F.FullGaussian if row.name == "BLR" else F.IsotropicGaussian
    result = ba.run(row, clients, family(np.zeros(3), 1.0), rounds=3, safeguard=True)
    assert [record.alpha for record in result.history] == [row.alpha] * 3


@pytest.mark.parametrize("seed", range(5))
def test_a_poisson_problem_beyond_the_floats_has_a_status(seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(100, 3))
    clients = halves(L.Poisson, np.column_stack([X, X[:, 0]]), rng.poisson(2.0, 100))
    for mean in (30.0, 300.0):
        result = ba.run(M.PVI(), clients, F.FullGaussian(np.full(4, mean), 0.01), rounds=3, raise_on_failure=False)
        assert isinstance(result.status, ba.Status)


def test_a_round_limit_above_the_start_says_so():
    """Undamped PVI with points: a bounded cycle far above the start, which patience does not cure."""
    X, y = logistic(300)
    clients = halves(L.Logistic, X, y)
    result = ba.run(M.PVI(), clients, F.IsotropicGaussian(np.zeros(3), 0.1), rounds=20)
    assert result.status is ba.Status.ROUND_LIMIT
    assert "above its start" in result.message
    assert "lower gamma" in result.message
    patient = ba.run(M.BayesADMM(50.0), clients, F.FullGaussian(np.zeros(3), 1.0), rounds=2)
    assert "above its start" not in patient.message


X, Y = logistic()
ONE = L.Logistic(X, Y)
FULL = F.FullGaussian(np.zeros(3), 1.0)


def test_mistakes_are_named():
    assert_refused(
        [
            *((lambda c=c: ba.run(M.PVI(), c, FULL), "clients") for c in (ONE, None)),
            (lambda: ba.solve_pooled(ONE, FULL), "clients"),
            (lambda: ba.run(M.PVI(), [ONE], F.FullGaussian), "prior"),
            *((lambda y=y: L.Logistic(X, y), "y") for y in (np.where(Y, "yes", "no"), 2 * Y - 1)),
            *((lambda x=x: L.Logistic(x, Y), "X") for x in (X + 0j, X.astype(str), X * np.nan)),
            (lambda: M.BayesADMM(rho=True), "rho"),
            *(
                (lambda name=name, bad=bad: ba.run(M.PVI(), [ONE], FULL, **{name: bad}), name)
                for name, bad in (("tol", "1e-3"), ("safeguard", "no"), ("callback", 3), ("checkpoint", "no/such.npz"))
            ),
            (lambda: M.Method("mine", 0.0, 1.0), "rho"),
            (lambda: M.Method("mine", 1.0, 1.0, alpha=1.0, prior_at="clients"), "alpha"),
        ]
    )


def test_numpy_scalars_are_numbers(tmp_path):
    ba.run(
        ba.Accelerated(M.PVI(0.5), memory=np.int64(4)),
        [ONE],
        FULL,
        rounds=2,
        seed=np.int64(3),
        safeguard=np.True_,
        checkpoint=tmp_path / "state.npz",
    )


def test_results_and_losses_print_in_a_few_lines():
    result = ba.run(M.PVI(), [ONE], FULL)
    assert len(repr(result)) < 600
    assert "CONVERGED" in repr(result)
    assert repr(ONE) == "Logistic(40 rows, 3 parameters)"
