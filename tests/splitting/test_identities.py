"""Rows against independent textbook versions, and what tests/properties does not draw; with broken twins."""

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np.losses import Exact
from oracles.problems import (
    DIM,
    assert_close,
    data,
    iterates,
    point_derivatives,
    prior,
    team,
)
from oracles.textbook import (
    M0,
    TIGHT,
    gaussian_prior,
    newton,
    textbook_admm,
    textbook_tilted,
)

ADMM = ba.methods.ADMM
BayesADMM, BregmanADMM = ba.methods.BayesADMM, ba.methods.BregmanADMM
FedAvg, FedDyn, FedProx = ba.methods.FedAvg, ba.methods.FedDyn, ba.methods.FedProx

fails = pytest.raises(AssertionError)

# A round is a few sums and two solves with matrices of condition number κ: relative errors of about κ d ε. The
# conditions below are at most 1e3 and d <= 6: 1e3 · 6 · 2e-16 ≈ 1.3e-12.
CONJUGATE = 2e-12


@pytest.mark.parametrize("shape", ["classes", "one"])
def test_one_round_with_many_outputs(shape):
    """Least squares with C outputs: the Hessian is I ⊗ XᵀX."""
    rng = np.random.default_rng(0)
    outputs = 3 if shape == "classes" else 1
    clients = [ba.losses.LeastSquares(rng.standard_normal((6, 2)), rng.standard_normal((6, outputs))) for _ in "ab"]
    prior_ = prior("full", 2 * outputs)
    result = ba.run(BayesADMM(1 / 2), clients, prior_, rounds=1)
    assert_close(result.posterior.natural, ba.solve_pooled(clients, prior_).posterior.natural, CONJUGATE)


# The solver stops at a residual λ_k − λ_g + (η_k + ∇)/ρ of Fisher length <= 1e-8, and after the dual step
# η_k + ∇ is ρ times that residual; sums of numbers of size ~10 add at most 1e-13.
def edge_bound(rho, tol=1e-8):
    return rho * tol + 1e-13


def test_an_edge_that_is_rounding_by_construction_is_not_measured():
    """After a closed form and a whole step; what is zero to rounding stands as zero. Twin: half a step is measured."""
    clients, prior_ = team("squares"), prior("full", DIM["squares"])
    edges = [ba.run(BayesADMM(1.5, gamma), clients, prior_, rounds=1).history[-1].edges for gamma in (1.0, 0.5)]
    assert edges[0].natural_gradient == 0.0
    assert edges[1].natural_gradient > 1e-2


@pytest.mark.parametrize(("family", "gamma"), [("full", 0.3), ("diagonal", 0.8), ("isotropic", 0.3)])
def test_damped_duals_forget_geometrically(family, gamma):
    """η' + ∇ = (1 − γ)(η + ∇), because ρ(λ_k − λ_g) = −(η + ∇)."""
    clients, prior_, rho = team("logistic"), prior(family, 3), 1.5
    before = [q.zeros() for q in [prior_.natural] * 2]
    for result in iterates(BayesADMM(rho, gamma), clients, prior_, 4):
        for client, q, old, new in zip(clients, result.client_posteriors, before, result.sites, strict=True):
            gradient = client.expect(q, Exact()).natural_gradient
            shrunk = (1 - gamma) * (old + gradient)
            assert q.fisher_norm(new + gradient - shrunk) <= edge_bound(gamma * rho)
            recorded = result.history[-1].edges.natural_gradient
            assert recorded >= q.fisher_norm(shrunk) - edge_bound(gamma * rho)
            with fails:
                assert q.fisher_norm(new + gradient - gamma * (old + gradient)) <= edge_bound(gamma * rho)
        before = result.sites


# A gradient residual of √d 1e-13 (the library's) or ~1e-15 (the textbook's) moves θ_k by at most that over ρ, and ADMM
# is non-expansive: after T = 5 rounds at most 5 · (√3 · 1e-13) < 1e-12.
ADMM_TOL = 1e-12


def check_admm(results, textbook):
    for result, (theta, v, theta_g) in zip(results, textbook, strict=True):
        assert_close(result.posterior.mean, theta_g, ADMM_TOL, "θ_g")
        for q, site, t, dual in zip(result.client_posteriors, result.sites, theta, v, strict=True):
            assert_close(q.mean, t, ADMM_TOL, "θ_k")
            assert_close(site.linear, dual, ADMM_TOL, "v_k")


DELTA = 0.4


# Both inner solvers stop at a residual of ~1e-13; T = 4 rounds with K = 2 sites and condition numbers below 1e2
# leave it below 1e-11 (the measured difference is some 1e-13).
PVI_TOL = 1e-11


def textbook_feddyn(name, parts, m0, delta, rho, rounds, *, sign=1.0, by_rows=True):
    """Acar et al. 2021, Alg. 1, full participation, clients weighted by p_k = N_k/N (the paper's 1/m for equal rows).

    Risks are means: L_k = (N/K)·mean of the client's rows + (1/K)(ℓ₀), so that Σ p_k K L_k = Σℓ_k + ℓ₀.
    The client's linear term is ∇L_k(θ_k) of its last solution; h ← h − ρ Σ p_k(θ_k − θ), θ ← Σ p_kθ_k − h/ρ.
    """
    count, d = len(parts), m0.size
    n = np.array([len(y) for _, y in parts])
    shares = n / n.sum()
    p = shares if by_rows else np.full(count, 1 / count)
    theta, h = m0.copy(), np.zeros(d)
    stored = [np.zeros(d) for _ in parts]
    for _ in range(rounds):
        local = []
        for k, (X, y) in enumerate(parts):

            def derivatives(t, X=X, y=y, share=shares[k], stored_k=stored[k], centre=theta):
                g, H = point_derivatives(name, X, y, t)
                risk_gradient = g / (count * share) + delta * (t - m0) / count
                risk_hessian = H / (count * share) + delta / count * np.eye(d)
                return risk_gradient - stored_k + rho * (t - centre), risk_hessian + rho * np.eye(d)

            local.append(newton(derivatives, theta))
        stored = [s - rho * (t - theta) for s, t in zip(stored, local, strict=True)]
        h = h - sign * rho * sum(pk * (t - theta) for pk, t in zip(p, local, strict=True))
        theta = sum(pk * t for pk, t in zip(p, local, strict=True)) - h / rho
        # the library's dual is −∇ of the sum: −K p_k ∇L_k
        yield local, [-count * pk * s for pk, s in zip(shares, stored, strict=True)], theta


@pytest.mark.parametrize("name", ["logistic", "squares"])
def test_feddyn_is_textbook_feddyn(name):
    prior_ = ba.families.IsotropicGaussian(M0, DELTA)
    rho = 2.0
    results = iterates(FedDyn(rho), team(name), prior_, 5, solver=TIGHT)
    check_admm(results, textbook_feddyn(name, data(name), M0, DELTA, rho, 5))
    with fails:
        check_admm(results, textbook_feddyn(name, data(name), M0, DELTA, rho, 5, sign=-1.0))
    with fails:
        check_admm(results, textbook_feddyn(name, data(name), M0, DELTA, rho, 5, by_rows=False))
    with fails:  # FedDyn is not ADMM
        check_admm(results, textbook_admm(name, data(name), M0, DELTA * np.eye(3), rho, 5))


def textbook_fedprox(name, parts, m0, delta, rho, rounds, *, by_rows=True, squared=True):
    """Li et al. 2020: each client minimises its share of the regularised risk + ½ρ‖θ − θ_g‖²; averaged by rows."""
    n = np.array([len(y) for _, y in parts])
    p = n / n.sum()
    theta = m0.copy()
    for _ in range(rounds):
        local = []
        for (X, y), share in zip(parts, p, strict=True):

            def derivatives(t, X=X, y=y, share=share, centre=theta):
                g, H = point_derivatives(name, X, y, t)
                g, H = g + share * delta * (t - m0), H + share * delta * np.eye(m0.size)
                if squared:
                    return g + rho * (t - centre), H + rho * np.eye(m0.size)
                length = np.sqrt((t - centre) @ (t - centre) + 1e-3)
                return g + 0.5 * rho * (t - centre) / length, H + 0.5 * rho / length * np.eye(m0.size)

            local.append(newton(derivatives, theta))
        weights = p if by_rows else np.full(len(parts), 1 / len(parts))
        theta = sum(w * t for w, t in zip(weights, local, strict=True))
        yield local, [np.zeros_like(m0) for _ in parts], theta


@pytest.mark.parametrize("name", ["logistic", "squares"])
@pytest.mark.parametrize("rho", [0.0, 1.5])
def test_fedprox_and_fedavg_are_textbook(name, rho):
    prior_ = ba.families.IsotropicGaussian(M0, DELTA)
    row = FedProx(rho) if rho else FedAvg()
    results = iterates(row, team(name), prior_, 4, solver=TIGHT)
    check_admm(results, textbook_fedprox(name, data(name), M0, DELTA, rho, 4))
    with fails:
        check_admm(results, textbook_fedprox(name, data(name), M0, DELTA, rho, 4, by_rows=False))
    if rho:
        with fails:
            check_admm(results, textbook_fedprox(name, data(name), M0, DELTA, rho, 4, squared=False))
    else:  # exact local solves: FedAvg averages once and stands still
        assert_close(results[0].posterior.mean, results[3].posterior.mean, ADMM_TOL)


def test_fedavg_with_gradient_steps_is_mcmahans():
    prior_ = ba.families.IsotropicGaussian(M0, DELTA)
    parts, eta, n_steps = data("logistic"), 0.05, 3
    n = np.array([len(y) for _, y in parts])
    p = n / n.sum()
    solver = ba.clients.GradientSteps(steps=n_steps, learning_rate=eta)
    results = iterates(FedAvg(), team("logistic"), prior_, 4, solver=solver)

    def check(learning_rate):
        theta = M0.copy()
        for result in results:
            local = []
            for (X, y), share in zip(parts, p, strict=True):
                t = theta.copy()
                for _ in range(n_steps):
                    t -= learning_rate * (point_derivatives("logistic", X, y, t)[0] + share * DELTA * (t - M0))
                local.append(t)
            theta = sum(w * t for w, t in zip(p, local, strict=True))
            assert_close(result.posterior.mean, theta, 1e-14 * 100)  # a hundred roundings

    check(eta)
    with fails:  # losses are sums over rows, not means
        check(eta / 5)


def test_fedivon_is_averaging_of_local_posteriors():
    """Pal et al. 2024: the server's posterior is the clients' prior; (s m, s) are averaged by rows, then divided."""
    prior_, S0 = gaussian_prior("diagonal")
    parts = data("logistic")
    n = np.array([len(y) for _, y in parts])
    results = iterates(ba.methods.FedIvon(), team("logistic"), prior_, 4, solver=TIGHT)

    def check(average_means):
        S, m, zero = S0, M0, np.zeros((3, 3))
        for result in results:
            local = [textbook_tilted("logistic", X, y, S, m, zero, np.zeros(3), "diagonal") for X, y in parts]
            p = n / n.sum()
            S = sum(w * s for w, (s, _) in zip(p, local, strict=True))
            linear = sum(w * s @ x for w, (s, x) in zip(p, local, strict=True))
            m = sum(w * x for w, (_, x) in zip(p, local, strict=True)) if average_means else np.linalg.solve(S, linear)
            assert_close(result.posterior.mean, m, PVI_TOL, "m")
            assert_close(result.posterior.precision, np.diag(S), PVI_TOL, "s")

    check(average_means=False)
    with fails:  # means and variances averaged separately
        check(average_means=True)


def check_bregman_step(family, statistic_scale, factor, rho=1.5, gamma=0.1):
    """V ← V − ½ s² γρ ΔM and v ← v + γρ Δm, with M the second moments mmᵀ + S⁻¹ (−2γρ for the papers' θθᵀ)."""
    prior_ = prior(family, 3)
    old, oldsites = prior_, [prior_.natural.zeros()] * 2
    for result in iterates(BregmanADMM(rho, gamma, statistic_scale), team("logistic"), prior_, 2):
        for q, before, site in zip(result.client_posteriors, oldsites, result.sites, strict=True):
            seconds = (np.outer(x.mean, x.mean) + x.covariance_matrix for x in (q, old))
            change = next(seconds) - next(seconds)
            change = change if family == "full" else np.diag(change)
            # a difference of second moments of order one
            assert_close(site.precision, before.precision + factor * gamma * rho * change, 1e-13, "V")
            assert_close(site.linear, before.linear + gamma * rho * (q.mean - old.mean), 1e-13, "v")
        old, oldsites = result.posterior, result.sites


@pytest.mark.parametrize("family", ["full", "diagonal"])
def test_bregman_duals_depend_on_the_scale_of_the_statistic(family):
    check_bregman_step(family, 2.0, -2.0)  # T = (θ, θθᵀ)
    check_bregman_step(family, 1.0, -0.5)  # T = (θ, −½θθᵀ)
    for factor in (2.0, -1.0, -0.5):  # sign, a dropped ½, the other scale
        with fails:
            check_bregman_step(family, 2.0, factor)
