"""The duality of ADMM and variational Bayes, identity by identity; every check is also run on a broken twin."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.linalg

import bayesadmm_np as ba
from bayesadmm_np.families import Natural
from bayesadmm_np.losses import Delta, Exact, LinearInStatistics
from bayesadmm_np.splitting.messages import Broadcast
from oracles.problems import (
    DIM,
    EPS,
    LEARNED,
    PRIORS,
    assert_close,
    data,
    expected_derivatives,
    iterates,
    loss,
    point_derivatives,
    prior,
    spd,
    team,
    vector,
)
from oracles.textbook import (
    M0,
    RULES,
    TIGHT,
    crew,
    dense,
    gaussian_prior,
    half_laplace,
    newton,
    structure,
    textbook_admm,
    textbook_fedlap,
    textbook_laplace,
    textbook_pvi,
    textbook_tilted,
)

ADMM, AMA, BCM, BLR = ba.methods.ADMM, ba.methods.AMA, ba.methods.BCM, ba.methods.BLR
PVI, BayesADMM, BregmanADMM = ba.methods.PVI, ba.methods.BayesADMM, ba.methods.BregmanADMM
FedLap, FedLapCov, FedDyn = ba.methods.FedLap, ba.methods.FedLapCov, ba.methods.FedDyn
FedAvg, FedProx, PreconditionedADMM = ba.methods.FedAvg, ba.methods.FedProx, ba.methods.PreconditionedADMM

fails = pytest.raises(AssertionError)

# ----------------------------------------------------------------------------------------------------
# 1. Prop. D.1: losses linear in T, server at the prior, ρ = 1/K: exact after one round, and the sharp converse
# ----------------------------------------------------------------------------------------------------

# A round is a few sums and two solves with matrices of condition number κ: relative errors of about κ d ε. The
# conditions below are at most 1e3 and d <= 6: 1e3 · 6 · 2e-16 ≈ 1.3e-12.
CONJUGATE = 2e-12


def ridge(family, n_clients):
    """Ridge regression whose Hessians lie in the family's structure: Grams are dense, block-diagonal or diagonal."""
    rng = np.random.default_rng(3)
    prior_ = prior(family, 4)
    sizes = {"full": [4], "block": [2, 2], "diagonal": [1, 1, 1, 1]}[family]
    clients, coefficients = [], []
    for _ in range(n_clients):
        X = scipy.linalg.block_diag(*[rng.standard_normal((5, n)) for n in sizes])
        y = rng.standard_normal(X.shape[0])
        clients.append(ba.losses.LeastSquares(X, y))
        parts = {"full": [X.T @ X], "block": [(X.T @ X)[:2, :2], (X.T @ X)[2:, 2:]], "diagonal": [(X**2).sum(0)]}
        coefficients.append(Natural(X.T @ y, *parts[family]))
    return prior_, clients, coefficients


def conjugate(family, n_clients):
    rng = np.random.default_rng(4)

    def draw(n):  # small, so that the broken twins below stay distributions and fail by their numbers
        return rng.uniform(0.05, 0.25, n)

    counts = {
        "gamma": lambda: Natural(draw(2), -draw(2)),
        "beta": lambda: Natural(draw(2), draw(2)),
        "dirichlet": lambda: Natural(draw(3)),
    }
    prior_ = {
        "gamma": ba.families.Gamma([2.0, 0.5], [1.0, 3.0]),
        "beta": ba.families.Beta([2.0, 0.7], [1.0, 3.0]),
        "dirichlet": ba.families.Dirichlet([0.5, 1.0, 2.0]),
    }[family]
    coefficients = [counts[family]() for _ in range(n_clients)]
    return prior_, [LinearInStatistics(c, n_rows=k + 1) for k, c in enumerate(coefficients)], coefficients


def linear_problem(family, n_clients=3):
    return ridge(family, n_clients) if family in LEARNED else conjugate(family, n_clients)


def total(naturals):
    result = naturals[0].zeros()
    for natural in naturals:
        result = result + natural
    return result


def check_one_round(method, family, tol=CONJUGATE):
    prior_, clients, coefficients = linear_problem(family)
    answer = prior_.natural + total(coefficients)
    first, second = iterates(method, clients, prior_, 2)
    assert_close(first.posterior.natural, answer, tol, "one round and η₀ + Σc")
    assert_close(first.posterior.natural, ba.solve_pooled(clients, prior_).posterior.natural, tol, "one round, pooled")
    assert_close(second.posterior.natural, answer, tol, "two rounds and η₀ + Σc")
    for site, c in zip(second.sites, coefficients, strict=True):
        assert_close(site, c, tol, "site and coefficients")


linear_families = pytest.mark.parametrize("family", [*LEARNED, "gamma", "beta", "dirichlet"])


@linear_families
def test_conjugate_problems_are_solved_in_one_round(family):
    check_one_round(BayesADMM(1 / 3), family)
    check_one_round(PVI(), family)  # α = 1 is one-round at any ρ
    check_one_round(AMA(rho=2.0), family)
    check_one_round(BCM(), family)  # stops after its first round by itself
    check_one_round(replace(BayesADMM(1 / 3), alpha=0.25), family)  # with ρ = 1/K mean λ_k is the answer: so is any mix


@linear_families
@pytest.mark.parametrize(
    "twin",
    [
        BayesADMM(0.5),
        replace(BayesADMM(1 / 3), dual_step=-1 / 3),
        replace(BayesADMM(1 / 3), dual_step=1 / 6),
        replace(BayesADMM(0.5), alpha=0.5),
    ],
    ids=["rho is not 1/K", "dual sign", "half the dual step", "rho and alpha do not fit"],
)
def test_conjugate_problems_need_each_constant(family, twin):
    with fails:
        check_one_round(twin, family)


def predicted_error(rho, n_clients, rounds):
    """(λ_g − λ*)/Σc after t = 1, 2, … rounds from the prior.

    λ_k − λ_g = (c_k − η_k)/ρ. In round 1 η = 0, so the mean of λ_k is η₀ + Σc/(ρK), and with λ* = η₀ + Σc
    λ_g¹ − λ* = (1 − α)(1/(ρK) − 1) Σc. From then on η_k = c_k and λ_k = λ_g, so each round multiplies by 1 − α.
    """
    alpha = 1 / (1 + rho * n_clients)
    first = (1 - alpha) * (1 / (rho * n_clients) - 1)
    return [first * (1 - alpha) ** t for t in range(rounds)]


def check_converse(row, family, predicted):
    prior_, clients, coefficients = linear_problem(family)
    sum_ = total(coefficients)
    answer = prior_.natural + sum_
    for result, factor in zip(iterates(row, clients, prior_, 5), predicted, strict=True):
        assert_close(result.posterior.natural, answer + factor * sum_, CONJUGATE, f"error at round {result.rounds}")


@linear_families
@pytest.mark.parametrize("rho", [0.4, 1.0, 5.0])
def test_other_rho_leave_the_predicted_error(family, rho):
    check_converse(BayesADMM(rho), family, predicted_error(rho, 3, 5))
    with fails:  # the ½ of DESIGN's "halves per round" belongs to ρ = 1/K only
        check_converse(BayesADMM(rho), family, [predicted_error(rho, 3, 1)[0] / 2**t for t in range(5)])
    with fails:
        check_converse(BayesADMM(rho), family, [-factor for factor in predicted_error(rho, 3, 5)])
    with fails:  # wrong α
        check_converse(replace(BayesADMM(rho), alpha=1 / (1 + rho)), family, predicted_error(rho, 3, 5))


@pytest.mark.parametrize("rho", [0.01, 0.1, 0.3])
def test_small_rho_overshoots_but_never_by_more_than_the_start(rho):
    """(1 − α)(1/(ρK) − 1) = (1 − ρK)/(1 + ρK), in (0, 1) for ρK < 1."""
    assert 0 < predicted_error(rho, 3, 1)[0] < 1
    check_converse(BayesADMM(rho), "full", predicted_error(rho, 3, 5))


@pytest.mark.parametrize("shape", ["classes", "one"])
def test_one_round_with_many_outputs(shape):
    """Least squares with C outputs: the Hessian is I ⊗ XᵀX."""
    rng = np.random.default_rng(0)
    outputs = 3 if shape == "classes" else 1
    clients = [ba.losses.LeastSquares(rng.standard_normal((6, 2)), rng.standard_normal((6, outputs))) for _ in "ab"]
    prior_ = prior("full", 2 * outputs)
    result = ba.run(BayesADMM(1 / 2), clients, prior_, rounds=1)
    assert_close(result.posterior.natural, ba.solve_pooled(clients, prior_).posterior.natural, CONJUGATE)


# ----------------------------------------------------------------------------------------------------
# 2. Duals are natural gradients after every client step (Eq. 33)
# ----------------------------------------------------------------------------------------------------

every_family = pytest.mark.parametrize("family", PRIORS)


def edge(q, site, expected, half=1.0):
    """Fisher length per parameter of η + ∇_μ E_q[ℓ], from E∇ℓ and E∇²ℓ by Eq. 48 (`half` breaks its Hessian)."""
    hessian = [half * part for part in expected.projected] if q.learns_precision else []
    return q.fisher_norm(site + q.natural_gradient(expected.gradient, hessian))


# The solver stops at a residual λ_k − λ_g + (η_k + ∇)/ρ of Fisher length <= 1e-8, and after the dual step
# η_k + ∇ is ρ times that residual; sums of numbers of size ~10 add at most 1e-13.
def edge_bound(rho, tol=1e-8):
    return rho * tol + 1e-13


def check_natural_gradients(method, name, family, rule, half=1.0):
    clients, prior_ = team(name), prior(family, DIM[name])
    for result in iterates(method, clients, prior_, 3, expectation=rule):
        bound = edge_bound(method.rho)
        assert result.history[-1].edges.natural_gradient <= bound
        for client, q, site in zip(clients, result.client_posteriors, result.sites, strict=True):
            assert edge(q, site, client.expect(q, rule), half) <= bound


@every_family
@pytest.mark.parametrize("name", RULES)
def test_duals_are_natural_gradients_every_round(name, family):
    """Every loss with every family; the rules take turns."""
    rule = RULES[name][list(PRIORS).index(family) % len(RULES[name])]
    check_natural_gradients(BayesADMM(1.5), name, family, rule)


@every_family
@pytest.mark.parametrize("name", RULES)
def test_duals_of_broken_twins_are_not_natural_gradients(name, family):
    rule = RULES[name][0]
    with fails:
        check_natural_gradients(replace(BayesADMM(1.5), dual_step=-1.5), name, family, rule)
    with fails:
        check_natural_gradients(replace(BayesADMM(1.5), dual_step=0.75), name, family, rule)
    if family in LEARNED:
        with fails:  # ∇_μ = (g − Hm, ½H): the papers' ½ belongs to their statistic θθᵀ, not to −½θθᵀ
            check_natural_gradients(BayesADMM(1.5), name, family, rule, half=0.5)


def test_an_edge_that_is_rounding_by_construction_is_not_measured():
    """After a closed form and a whole step; what is zero to rounding stands as zero. Twin: half a step is measured."""
    clients, prior_ = team("squares"), prior("full", DIM["squares"])
    edges = [ba.run(BayesADMM(1.5, gamma), clients, prior_, rounds=1).history[-1].edges for gamma in (1.0, 0.5)]
    assert edges[0].natural_gradient == 0.0
    assert edges[1].natural_gradient > 1e-2


@pytest.mark.parametrize("family", LEARNED)
@pytest.mark.parametrize("name", ["logistic", "squares"])
def test_bregman_duals_are_not_natural_gradients(name, family):
    clients, prior_ = team(name), prior(family, DIM[name])
    result = ba.run(BregmanADMM(1.0, gamma=0.1), clients, prior_, rounds=1)
    assert result.history[-1].edges.natural_gradient > 1e-2
    with fails:
        check_natural_gradients(BregmanADMM(1.5, gamma=0.1), name, family, RULES[name][0])


@pytest.mark.parametrize("name", ["logistic", "poisson", "squares"])
def test_bregman_duals_are_natural_gradients_where_the_family_is_euclidean(name):
    check_natural_gradients(BregmanADMM(1.5), name, "isotropic", Delta(1))  # λ = μ


@every_family
@pytest.mark.parametrize("gamma", [0.3, 0.8])
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


# ----------------------------------------------------------------------------------------------------
# 3. ADMM, preconditioned ADMM: against the textbook (Eq. 5–7), iterate by iterate
# ----------------------------------------------------------------------------------------------------


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
point_problems = pytest.mark.parametrize("name", ["logistic", "squares", "poisson"])
rhos = pytest.mark.parametrize("rho", [0.7, 3.0])


@point_problems
@rhos
def test_admm_is_textbook_admm(name, rho):
    prior_ = ba.families.IsotropicGaussian(M0, DELTA)
    results = iterates(ADMM(rho), team(name), prior_, 5, solver=TIGHT)
    parts, P0 = data(name), DELTA * np.eye(3)
    check_admm(results, textbook_admm(name, parts, M0, P0, rho, 5))
    for broken in ({"squared": False}, {"sign": -1.0}):
        with fails:
            check_admm(results, textbook_admm(name, parts, M0, P0, rho, 5, **broken))
    with fails:  # the prior's mean is not zero
        check_admm(results, textbook_admm(name, parts, np.zeros(3), P0, rho, 5))
    with fails:  # δ is not one
        check_admm(results, textbook_admm(name, parts, M0, np.eye(3), rho, 5))
    for twin in (replace(ADMM(rho), alpha=0.5), replace(ADMM(rho), dual_step=rho / 2)):
        with fails:
            broken = iterates(twin, team(name), prior_, 5, solver=TIGHT)
            check_admm(broken, textbook_admm(name, parts, M0, P0, rho, 5))


def test_admm_with_the_closed_form_is_textbook_admm():
    prior_ = ba.families.IsotropicGaussian(M0, DELTA)
    results = iterates(ADMM(0.7), team("squares"), prior_, 5)
    check_admm(results, textbook_admm("squares", data("squares"), M0, DELTA * np.eye(3), 0.7, 5))


@point_problems
@rhos
def test_bayesadmm_with_precision_delta_is_admm_with_rho_delta(name, rho):
    prior_ = ba.families.FixedPrecisionGaussian(M0, DELTA)
    results = iterates(BayesADMM(rho), team(name), prior_, 5, solver=TIGHT, expectation=Delta(1))
    parts, P0 = data(name), DELTA * np.eye(3)
    check_admm(results, textbook_admm(name, parts, M0, P0, rho * DELTA, 5))
    with fails:
        check_admm(results, textbook_admm(name, parts, M0, P0, rho, 5))


@point_problems
@rhos
def test_preconditioned_admm_is_admm_in_the_metric_of_the_precision(name, rho):
    S = spd(np.random.default_rng(5), 3)
    results = iterates(PreconditionedADMM(rho), team(name), ba.families.FixedPrecisionGaussian(M0, S), 5, solver=TIGHT)
    check_admm(results, textbook_admm(name, data(name), M0, S, rho, 5, S))
    with fails:
        check_admm(results, textbook_admm(name, data(name), M0, S, rho, 5))
    with fails:
        check_admm(results, textbook_admm(name, data(name), M0, S, rho, 5, S, sign=-1.0))


# ----------------------------------------------------------------------------------------------------
# 4. PVI and its relatives, federated averaging, BLR: against independent textbook versions
# ----------------------------------------------------------------------------------------------------


# Both inner solvers stop at a residual of ~1e-13; T = 4 rounds with K = 2 sites and condition numbers below 1e2
# leave it below 1e-11 (the measured difference is some 1e-13).
PVI_TOL = 1e-11


def check_sites(results, textbook, family):
    for result, (V, v, S_g, m_g) in zip(results, textbook, strict=True):
        linear, precision = dense(result.posterior.natural, family)
        assert_close(precision, S_g, PVI_TOL, "S_g")
        assert_close(linear, S_g @ m_g, PVI_TOL, "S_g m_g")
        for site, Vk, vk in zip(result.sites, V, v, strict=True):
            linear, precision = dense(site, family)
            assert_close(precision, Vk, PVI_TOL, "V_k")
            assert_close(linear, vk, PVI_TOL, "v_k")


@pytest.mark.parametrize("family", ["full", "diagonal"])
@pytest.mark.parametrize("name", ["logistic", "poisson"])
@pytest.mark.parametrize("gamma", [1.0, 0.4])
def test_pvi_is_textbook_pvi(name, family, gamma):
    prior_, S0 = gaussian_prior(family)
    results = iterates(PVI(gamma), team(name), prior_, 4, solver=TIGHT)
    check_sites(results, textbook_pvi(name, data(name), M0, S0, family, 4, gamma), family)
    for broken in ({"gamma": gamma / 2}, {"gamma": gamma, "sign": -1.0}):
        with fails:
            check_sites(results[:2], textbook_pvi(name, data(name), M0, S0, family, 2, **broken), family)
    twin = iterates(replace(PVI(gamma), alpha=0.5), team(name), prior_, 4, solver=TIGHT)
    with fails:
        check_sites(twin, textbook_pvi(name, data(name), M0, S0, family, 4, gamma), family)


@every_family
def test_bayesadmm_with_alpha_one_and_rho_one_is_pvi(family):
    clients, prior_ = team("logistic"), prior(family, 3)

    def agree(row):
        for a, b in zip(iterates(PVI(), clients, prior_, 3), iterates(row, clients, prior_, 3), strict=True):
            assert a.posterior.natural == b.posterior.natural
            assert all(x == y for x, y in zip(a.sites, b.sites, strict=True))

    agree(replace(BayesADMM(1.0), alpha=1.0))
    agree(AMA(rho=1.0))
    for twin in (BayesADMM(1.0), AMA(rho=1.5)):
        with fails:
            agree(twin)


def test_bcm_is_one_round_of_pvi():
    clients, prior_ = team("logistic"), prior("full", 3)
    once = ba.run(PVI(), clients, prior_, rounds=1)
    result = ba.run(BCM(), clients, prior_, rounds=50)
    assert result.rounds == 1
    assert result.posterior.natural == once.posterior.natural


@pytest.mark.parametrize("name", ["logistic", "squares"])
def test_fedlap_is_textbook_fedlap_and_pvi_with_fixed_covariance(name):
    delta, gamma = 2.5, 0.3
    prior_ = ba.families.FixedPrecisionGaussian(M0, delta)
    results = iterates(FedLap(gamma), team(name), prior_, 5, solver=TIGHT)
    check_admm(results, textbook_fedlap(name, data(name), M0, delta, 5, gamma))
    with fails:
        check_admm(results, textbook_fedlap(name, data(name), M0, delta, 5, gamma, scale=False))
    with fails:
        check_admm(results, textbook_fedlap(name, data(name), M0, delta, 5, -gamma))
    with fails:  # FedLap is not ADMM
        check_admm(results, textbook_admm(name, data(name), M0, delta * np.eye(3), delta, 5))
    for a, b in zip(
        results, iterates(PVI(gamma), team(name), prior_, 5, solver=TIGHT, expectation=Delta(1)), strict=True
    ):
        assert a.posterior.natural == b.posterior.natural


@pytest.mark.parametrize("family", ["full", "diagonal"])
@pytest.mark.parametrize("name", ["logistic", "poisson"])
def test_fedlapcov_is_textbook_fedlapcov(name, family):
    prior_, S0 = gaussian_prior(family)
    gamma = 0.6
    results = iterates(FedLapCov(gamma), team(name), prior_, 4, solver=TIGHT)
    arguments = (name, data(name), M0, S0, family, 4, gamma)
    check_sites(results, textbook_pvi(*arguments, tilted=textbook_laplace), family)
    with fails:
        check_sites(results, textbook_pvi(*arguments, tilted=half_laplace), family)
    with fails:  # variational expectations are another method
        check_sites(results, textbook_pvi(*arguments), family)
    for t in range(1, 4):  # V_k ← (1 − γ)V_k + γ H_k(w_k)
        for k, (X, y) in enumerate(data(name)):
            H = structure(point_derivatives(name, X, y, results[t].client_posteriors[k].mean)[1], family)
            old, new = (dense(results[s].sites[k], family)[1] for s in (t - 1, t))
            assert_close(new, (1 - gamma) * old + gamma * H, PVI_TOL)


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


@pytest.mark.parametrize("family", ["full", "diagonal"])
@pytest.mark.parametrize("name", ["logistic", "poisson"])
def test_blr_is_a_natural_gradient_loop(name, family):
    """Khan & Rue 2023, Eq. 6: S ← (1 − α)S + α(S₀ + ΣH), Sm ← (1 − α)Sm + α(S₀m₀ + Σ(Hm − g))."""
    prior_, S0 = gaussian_prior(family)
    alpha = 0.3
    results = iterates(BLR(alpha), team(name), prior_, 5)

    def check(factor):
        S, linear = S0, S0 @ M0
        for result in results:
            m = np.linalg.solve(S, linear)
            pieces = [expected_derivatives(name, X, y, m, np.linalg.inv(S)) for X, y in data(name)]
            H = [factor * structure(h, family) for _, _, h in pieces]
            target = S0 @ M0 + sum(h @ m - g for h, (_, g, _) in zip(H, pieces, strict=True))
            S, linear = (1 - alpha) * S + alpha * (S0 + sum(H)), (1 - alpha) * linear + alpha * target
            # no inner solves here: quadrature to 1e-14 and sums, amplified at most κ(S) < 1e2 a round
            assert_close(dense(result.posterior.natural, family)[1], S, 1e-11, "S")
            assert_close(result.posterior.natural.linear, linear, 1e-11, "Sm")

    check(1.0)
    with fails:
        check(0.5)


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


# ----------------------------------------------------------------------------------------------------
# 5. Prop. C.1: client steps iterated to convergence, then the server step, are one step of the BLR
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", PRIORS)
@pytest.mark.parametrize("name", ["logistic", "poisson"])
def test_iterated_client_steps_make_a_blr_step(name, family):
    clients, prior_ = team(name), prior(family, 3)
    if family == "isotropic":
        prior_ = ba.families.IsotropicGaussian(M0, 1.0)  # δ = 1, so that the prior is a member
    rho = 20.0
    workers, server = crew(BayesADMM(rho), clients, prior_)
    q_g = prior_.start()
    alpha = server.method.server_alpha(2)
    assert alpha == 1 / (1 + 2 * rho)
    for count in (1, 2):  # the second step starts away from the prior, with duals that are not zero
        sites, naturals = [], []
        for k, worker in enumerate(workers):
            site, gap = q_g.natural.zeros(), np.inf
            at_server = worker.loss.expect(q_g, worker.rule)
            for _ in range(400):
                reply = worker.step(Broadcast(count, q_g.natural), q_g, site, at_server, None, 0, k)
                site, gap = reply.site, q_g.fisher_norm(reply.natural - q_g.natural)
                if gap < 1e-12:
                    break
            assert gap < 1e-12
            sites.append(site)
            naturals.append(reply.natural)
        q_g = q_g.with_natural(server.gather(sites, naturals, alpha))
        blr = ba.run(BLR(alpha), clients, prior_, rounds=count, tol=1e-300).posterior
        # the loop stops at λ_k − λ_g ~ 1e-12, the solver at 1e-13 · ρ in η: α times the sum of both is below 1e-11
        assert_close(q_g.natural, blr.natural, 1e-11, "server step and BLR")
        with fails:
            wrong = ba.run(BLR(1 / (1 + rho)), clients, prior_, rounds=count, tol=1e-300).posterior
            assert_close(q_g.natural, wrong.natural, 1e-11)
    with fails:  # one client step is not enough
        assert_close(ba.run(BayesADMM(rho), clients, prior_, rounds=1).posterior.natural, blr.natural, 1e-11)


# ----------------------------------------------------------------------------------------------------
# 6. The duals add up to the server
# ----------------------------------------------------------------------------------------------------


def check_sum(row, name, family, rounds=4, **options):
    prior_ = prior(family, DIM[name])
    for result in iterates(row, team(name), prior_, rounds, **options):
        left = total(result.sites)
        right = result.prior.prior_weight * result.posterior.natural - prior_.natural
        # exact algebra: sums of K + 1 terms, once a round, of numbers up to ~1e2 (relative error, so ε alone counts)
        assert_close(left, right, 64 * EPS, "Σ η_k and λ_g − η₀")
        assert result.history[-1].edges.gather <= 64 * EPS * np.abs(vector(left)).max()


@every_family
@pytest.mark.parametrize("name", ["logistic", "squares", "softmax"])
def test_duals_add_up_to_the_server(name, family):
    check_sum(PVI(0.3), name, family)
    check_sum(AMA(rho=2.0), name, family)
    with fails:  # the server's memory: the duals only add up in the limit
        check_sum(BayesADMM(1.0), name, family)


@pytest.mark.parametrize("family", ["full", "block", "diagonal", "fixed"])
@pytest.mark.parametrize("gamma", [1.0, 0.5])
def test_duals_add_up_when_the_dual_step_is_one_over_k(family, gamma):
    """From the prior, mean λ_k − λ_g = ΣΔη/(γρK): with γρK = 1 it is ΣΔη, so any α gives η₀ + Ση."""
    row = BayesADMM(1 / (2 * gamma), gamma)
    check_sum(row, "squares", family)
    check_sum(replace(row, alpha=0.9), "squares", family)
    with fails:
        check_sum(BayesADMM(1 / (3 * gamma), gamma), "squares", family)


def test_duals_do_not_add_up_for_a_prior_outside_the_family():
    """δ ≠ 1: the isotropic run starts at N(m, I), whose λ is m and not η₀ = δm."""
    with fails:
        check_sum(BayesADMM(1 / 2), "squares", "isotropic")


# ----------------------------------------------------------------------------------------------------
# 7. λ-space arithmetic is free of coordinates, μ-space arithmetic is not
# ----------------------------------------------------------------------------------------------------


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


def check_equivariance(row, name):
    """θ = Aθ' turns X into XA, N(m, S⁻¹) into N(A⁻¹m, (AᵀSA)⁻¹), (v, V) into (Aᵀv, AᵀVA)."""
    A = np.array([[1.0, 0.5, 0.0], [-0.3, 2.0, 0.4], [0.0, 0.7, 0.6]])
    prior_ = prior("full", 3)
    moved = ba.families.FullGaussian(np.linalg.solve(A, prior_.mean), A.T @ prior_.precision @ A)

    def carry(natural):
        return Natural(A.T @ natural.linear, A.T @ natural.precision @ A)

    parts = data(name)
    plain = iterates(row, [loss(name, X, y) for X, y in parts], prior_, 4, solver=TIGHT)
    other = iterates(row, [loss(name, X @ A, y) for X, y in parts], moved, 4, solver=TIGHT)
    for a, b in zip(plain, other, strict=True):
        # inner residuals of 1e-13 and κ(A)² < 1e2
        assert_close(carry(a.posterior.natural), b.posterior.natural, 1e-11, "λ_g")
        for x, y in zip(a.sites, b.sites, strict=True):
            assert_close(carry(x), y, 1e-11, "η_k")


@pytest.mark.parametrize("row", [BayesADMM(1.0), PVI(), AMA(2.0), FedLapCov(0.7), BLR(0.3)], ids=lambda row: row.name)
@pytest.mark.parametrize("name", ["logistic", "poisson"])
def test_natural_duals_are_equivariant(row, name):
    check_equivariance(row, name)


def test_expectation_duals_are_not_equivariant():
    with fails:
        check_equivariance(BregmanADMM(1.0, gamma=0.05), "logistic")
