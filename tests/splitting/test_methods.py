"""Every convergent row of the table ends at the pooled answer, and says so; the averaging rows do not, and say so."""

from types import SimpleNamespace

import numpy as np
import pytest
import scipy.optimize

import bayesadmm_np as ba
from bayesadmm_np.losses import Auto, Delta, LinearInStatistics
from bayesadmm_np.splitting.step import Step
from oracles.pooled import TOL, assert_pooled, reference
from oracles.problems import DIM, LEARNED, PRIORS, assert_close, data, glm_moments, loss, prior, rows, team

M = ba.methods
POINT = ("fixed", "isotropic")
LOSSES = ("logistic", "poisson", "squares", "softmax")


def rows_for(name, family):
    """The convergent rows, with steps for which they converge.

    AMA is forward-backward splitting of the dual: it needs ρ < 2w/K, w the modulus of the prior (Tseng 1991); BLR is
    gradient descent: 1/(1 + L); ADMM converges for every ρ, best near the root of L w; PVI is damped by 1/K.
    """
    total = sum(reference(name, family)[1])
    result = {
        "BayesADMM": M.BayesADMM(max(1.0, total / 4)),
        "damped BayesADMM": M.BayesADMM(max(1.0, total / 4), gamma=0.7),
        "damped PVI": M.PVI(0.5),
        "accelerated": ba.Accelerated(M.PVI(0.4)),
        "BLR": M.BLR(1 / (1 + total)),
    }
    if family in LEARNED:
        result |= {"AMA": M.AMA(1.0), "PVI": M.PVI()}
    else:
        result["AMA"] = M.AMA(prior(family, DIM[name]).prior_weight / 2)
        result["BregmanADMM"] = M.BregmanADMM(max(1.0, total / 4))
    return result


EVERYWHERE = ("BayesADMM", "damped PVI", "accelerated", "BLR", "AMA")


CASES = [(family, row) for family in PRIORS for row in (*EVERYWHERE, "PVI" if family in LEARNED else "BregmanADMM")]
CASES += [("full", "damped BayesADMM"), ("isotropic", "damped BayesADMM")]


@pytest.mark.parametrize(("number", "family", "row"), [(n, *case) for n, case in enumerate(CASES)])
def test_fixed_points_are_the_pooled_answer(number, family, row):
    """Every row with every family; the losses take turns."""
    name = LOSSES[(number + number // len(LOSSES)) % len(LOSSES)]
    result = ba.run(rows_for(name, family)[row], team(name), prior(family, DIM[name]), rounds=4000, tol=TOL)
    assert_pooled(result, reference(name, family), exact=name != "softmax")


@pytest.mark.parametrize(
    ("name", "row", "family", "order"),
    [
        ("logistic", "ADMM", "isotropic", 1),
        ("poisson", "FedDyn", "isotropic", 1),
        ("squares", "PreconditionedADMM", "fixed", 1),
        ("softmax", "FedLap", "fixed", 1),
        ("logistic", "FedLapCov", "full", 2),
        ("poisson", "FedLapCov", "diagonal", 2),
        ("softmax", "FedLapCov", "block", 2),
    ],
)
def test_fixed_points_of_delta_methods_are_the_pooled_answer_of_their_rule(name, row, family, order):
    ref = reference(name, family, order)
    rho = max(1.0, sum(ref[1]) / 4)
    method = M.TABLE[row](0.5) if row.startswith("FedLap") else M.TABLE[row](rho)
    result = ba.run(method, team(name), prior(family, DIM[name]), rounds=4000, tol=TOL)
    assert_pooled(result, ref, exact=order == 1)
    if row in ("ADMM", "FedDyn"):  # the MAP estimate, which scipy finds by itself
        clients, mean = team(name), result.prior.mean
        best = scipy.optimize.minimize(
            lambda t: sum(c.value(t) for c in clients) + 0.35 * np.sum((t - mean) ** 2),
            mean,
            jac=lambda t: sum(c.gradient(t) for c in clients) + 0.7 * (t - mean),
            method="BFGS",
            options={"gtol": 1e-7},
        )
        # pooled residual <= 2e-5 at worst, stiffness >= δ = 0.7
        assert_close(result.posterior.mean, best.x, 1e-4)


def test_bregman_admm_with_learned_precision_reaches_the_pooled_answer_slowly():
    """Its dual moves by s²γρFΔλ, with F ~ 1/(2S²) the Fisher matrix: s near S makes steps of order one, a few fail."""
    prior_, clients = ba.families.DiagonalGaussian(np.zeros(3), 3.0), team("logistic")
    result = ba.run(M.BregmanADMM(4.0, statistic_scale=4.0), clients, prior_, rounds=500, tol=1e-4)
    pooled = ba.solve_pooled(clients, prior_).posterior
    assert result.status is ba.Status.CONVERGED
    assert result.rounds > 100
    # residuals of 1e-4, Lipschitz constants of a few
    assert_close(result.posterior.natural, pooled.natural, 1e-2)


def test_conjugate_families_reach_the_pooled_answer_with_any_row():
    Natural = ba.families.Natural
    prior_ = ba.families.Gamma([2.0, 1.0], [1.0, 0.5])
    clients = [LinearInStatistics(Natural(np.array([3.0, 1.0 + k]), np.array([-1.0, -2.0]))) for k in range(3)]
    pooled = ba.solve_pooled(clients, prior_).posterior.natural
    for row in (M.BayesADMM(0.8), M.AMA(0.5), M.PVI(0.6), M.BLR(0.4), ba.Accelerated(M.BayesADMM(2.0))):
        result = ba.run(row, clients, prior_, rounds=300, tol=1e-9)
        assert result.status is ba.Status.CONVERGED
        assert_close(result.posterior.natural, pooled, 1e-7)  # residual 1e-9, contraction at least 1 − α = 6/7


# --- A pooled oracle that shares nothing with the library: BFGS over (m, C), Σ = CCᵀ, with our own quadrature


def independent_vb(name, parts, m0, S0, *, diagonal):
    """Minimise Σ E_q[ℓ] + KL(q‖N(m₀, S₀⁻¹)) over mean and (diagonal or lower triangular) root of the covariance."""
    X = np.vstack([X for X, _ in parts])
    y = np.concatenate([y for _, y in parts])
    d = m0.size
    lower = np.diag_indices(d) if diagonal else np.tril_indices(d)

    def objective(z):
        m, C = z[:d], np.zeros((d, d))
        C[lower] = z[d:]
        logs = np.diag(C).copy()
        np.fill_diagonal(C, np.exp(logs))
        half = X @ C
        sd = np.linalg.norm(half, axis=1)
        value, slope, curvature = glm_moments(name, X @ m, sd, y)
        kl = 0.5 * (np.trace(S0 @ C @ C.T) + (m - m0) @ S0 @ (m - m0) - d - np.linalg.slogdet(S0)[1]) - logs.sum()
        # ∂E ℓ/∂(sd²) = ½E ℓ'': so ∂/∂C = Σ ℓ'' x xᵀC
        gradient_C = X.T @ (curvature[:, None] * half) + S0 @ C
        on_diagonal = np.diag(gradient_C) * np.exp(logs) - 1
        np.fill_diagonal(gradient_C, on_diagonal)
        return value.sum() + kl, np.concatenate([X.T @ slope + S0 @ (m - m0), gradient_C[lower]])

    start = np.concatenate([m0, np.zeros(len(lower[0]))])
    best = scipy.optimize.minimize(objective, start, jac=True, method="BFGS", options={"gtol": 1e-9, "maxiter": 2000})
    C = np.zeros((d, d))
    C[lower] = best.x[d:]
    np.fill_diagonal(C, np.exp(np.diag(C)))
    assert np.abs(best.jac).max() < 1e-6  # BFGS stops where rounding of the objective hides progress
    return best.x[:d], C @ C.T, best.fun


@pytest.mark.parametrize("family", ["full", "diagonal"])
@pytest.mark.parametrize("name", ["logistic", "poisson", "squares"])
def test_solve_pooled_is_the_minimum_that_bfgs_finds(name, family):
    parts = [(X[:, :2], y) for X, y in data(name)]
    prior_ = prior(family, 2, 0)
    S0 = prior_.precision if family == "full" else np.diag(prior_.precision)
    m, covariance, value = independent_vb(name, parts, prior_.mean, S0, diagonal=family == "diagonal")
    clients = [loss(name, X, y) for X, y in parts]

    def check(pooled):
        # a gradient of 1e-6 over a stiffness of at least ½ (the prior's); second order in the value
        assert_close(pooled.posterior.mean, m, 2e-6, "mean")
        assert_close(pooled.posterior.covariance_matrix, covariance, 2e-6, "covariance")
        assert pooled.objective == pytest.approx(value, rel=1e-11, abs=1e-10)

    check(ba.solve_pooled(clients, prior_))
    with pytest.raises(AssertionError):  # the delta method is another answer
        check(ba.solve_pooled(clients, prior_, expectation=Delta(1)))


# --- The partition does not matter


@pytest.mark.parametrize(
    ("row", "family"),
    [(M.BayesADMM(1.0), "isotropic"), (M.PVI(0.4), "full")],
    ids=lambda one: getattr(one, "name", one),
)
def test_client_order_and_splitting_do_not_change_the_fixed_point(row, family):
    parts, prior_ = data("logistic", sizes=(5, 8, 4)), prior(family, 3)
    ref = ba.solve_pooled([loss("logistic", X, y) for X, y in parts], prior_).posterior.natural
    split = [*parts[:2], (parts[2][0][:1], parts[2][1][:1]), (parts[2][0][1:], parts[2][1][1:])]
    for arrangement in (parts[::-1], split):
        clients = [loss("logistic", X, y) for X, y in arrangement]
        result = ba.run(row, clients, prior_, rounds=1000, tol=1e-7)
        assert result.status is ba.Status.CONVERGED
        # edges of 1e-7 times a few Lipschitz constants, over a stiffness near one: see assert_pooled
        assert_close(result.posterior.natural, ref, 1e-5)
    short = [loss("logistic", X[:-1], y[:-1]) for X, y in parts]
    with pytest.raises(AssertionError):  # a lost row does
        assert_close(ba.run(row, short, prior_, rounds=1000, tol=1e-7).posterior.natural, ref, 1e-5)


@pytest.mark.parametrize("name", ["logistic", "softmax"])
def test_duplicated_rows_are_weights_of_two_and_absent_ones_of_zero(name):
    prior_ = prior("full", DIM[name])
    twice = [loss(name, np.vstack([X, X]), np.hstack([y, y])) for X, y in data(name)]
    padded = [(np.vstack([X, 9.0 + X[:2]]), np.append(y, y[:2])) for X, y in data(name)]
    weighted = [loss(name, X, y, weights=np.r_[np.full(len(y) - 2, 2.0), 0.0, 0.0]) for X, y in padded]
    runs = [ba.run(M.PVI(0.5), clients, prior_, rounds=4) for clients in (twice, weighted, team(name))]
    # sums in another order; inner residuals of 1e-8 where the steps then differ
    assert_close(runs[0].posterior.natural, runs[1].posterior.natural, 1e-7)
    assert runs[0].objective == pytest.approx(runs[1].objective, rel=1e-7)
    with pytest.raises(AssertionError):
        assert_close(runs[0].posterior.natural, runs[2].posterior.natural, 1e-7)


# --- The certificate tells the pooled answer from others


def test_certificate_holds_at_the_pooled_answer_and_nowhere_else():
    clients, prior_ = team("logistic"), prior("full", 3)
    done = ba.run(M.PVI(), clients, prior_, rounds=50, tol=1e-8).certificate()
    early = ba.run(M.BayesADMM(1.0), clients, prior_, rounds=3, tol=1e-8).certificate()
    assert (done.holds, "NOT" in str(done)) == (True, False)
    assert (early.holds, "NOT" in str(early)) == (False, True)
    with pytest.raises(ValueError, match="round"):
        ba.run(M.PVI(), clients, prior_, rounds=0).certificate()


@pytest.mark.parametrize("row", [M.FedAvg(), M.FedProx(0.5), M.FedIvon()], ids=lambda row: row.name)
def test_averaging_ends_away_from_the_pooled_answer(row):
    clients, prior_ = team("logistic"), prior("diagonal" if row.name == "FedIvon" else "isotropic", 3)
    result = ba.run(row, clients, prior_, rounds=100)
    if row.name != "FedIvon":  # which takes some thousand rounds to stand still
        later = ba.run(row, clients, prior_, rounds=105)
        assert_close(result.posterior.mean, later.posterior.mean, 1e-7)
    pooled = ba.solve_pooled(clients, prior_, expectation=row.expectation).posterior
    assert np.abs(result.posterior.mean - pooled.mean).max() > 1e-2
    assert not result.certificate().holds
    assert result.certificate().pooled > 1e-2


# --- What a run reports


@pytest.mark.parametrize(("family", "name"), [*zip(PRIORS, ["squares", *LOSSES], strict=True)])
def test_objective_is_that_of_the_posterior_of_each_round(name, family):
    clients, prior_ = team(name), prior(family, DIM[name])
    seen = []
    result = ba.run(M.BayesADMM(4.0), clients, prior_, rounds=5, callback=lambda _, q: seen.append(q) and None)
    assert result.objective.shape == (result.rounds + 1,) == (6,)
    for value, q in zip(result.objective, [prior_.start(), *seen], strict=True):
        direct = sum(c.expect(q, c.check(prior_, Auto())).value for c in clients) + q.kl(prior_)
        assert value == pytest.approx(direct, rel=1e-14, abs=1e-13)
    assert seen[-1].natural == result.posterior.natural
    best = ba.solve_pooled(clients, prior_).objective
    assert (result.objective >= best - 1e-10 * abs(best)).all()


def test_objective_at_the_start_by_hand():
    """KL = 0 at the prior, and E softplus under N(0, 1) is 0.806059…; y = 0, one row, one column."""
    prior_ = ba.families.FullGaussian(np.zeros(1), 1.0)
    result = ba.run(M.PVI(), [ba.losses.Logistic([[1.0]], [0])], prior_, rounds=0)
    # a plain sum over z, as in problems.glm_moments
    assert result.objective == pytest.approx([glm_moments("logistic", np.zeros(1), np.ones(1), np.zeros(1))[0][0]])


def test_floats_count_what_crosses():
    """A symmetric d × d matrix is d(d+1)/2 numbers; each of K clients receives λ_g and sends λ_k."""
    sizes = {"full": 3 + 6, "diagonal": 3 + 3, "block": 3 + 3 + 1, "fixed": 3, "isotropic": 3}
    for family, size in sizes.items():
        for record in ba.run(M.PVI(0.5), team("logistic"), prior(family, 3), rounds=3, tol=1e-300).history:
            assert record.floats_down == 2 * size
            assert record.floats_up == 2 * size
    accelerated = ba.run(ba.Accelerated(M.PVI(0.5), memory=2), team("logistic"), prior("full", 3), rounds=5, tol=1e-300)
    for record in accelerated.history:  # one mixing weight for each remembered round goes to each client
        assert record.floats_down == 2 * (9 + (min(record.round, 3) if record.mixed else 0))


def test_records_name_rounds_clients_and_time():
    result = ba.run(M.BayesADMM(1.0), team("logistic"), prior("full", 3), rounds=3, tol=1e-300)
    assert [record.round for record in result.history] == [1, 2, 3]
    for record in result.history:
        assert record.alpha == 1 / 3
        assert record.seconds > 0
        assert len(record.clients) == 2
        for client in record.clients:
            assert client.status is ba.clients.ClientStatus.CONVERGED
            assert client.residual <= 1e-8
            assert client.iterations >= 1
            assert 0 <= client.seconds <= record.seconds
        assert record.edges.broadcast == max(client.broadcast for client in record.clients)
        assert record.edges.natural_gradient == max(client.natural_gradient for client in record.clients)
        assert record.edges.dual_map < 1e-12


def test_method_table_is_complete_and_named():
    for name, make in M.TABLE.items():
        row = make()
        assert isinstance(row, M.Method | Step)
        assert row.name == name
    assert M.BayesADMM(0.5).server_alpha(4) == 1 / 3
    assert M.AMA(0.5).server_alpha(4) == M.PVI().server_alpha(4) == 1.0
    assert ba.run(M.BCM(), team("logistic"), prior("full", 3), rounds=50).rounds == 1


def test_rows_draws_overlapping_classes():
    """The problems of this file are what they claim: all classes occur, and no plane separates them."""
    _, y = rows("logistic", np.random.default_rng(0), 13)
    assert set(y) == {0.0, 1.0}
    assert np.linalg.norm(ba.solve_pooled(team("logistic"), prior("full", 3)).posterior.mean) < 5


def site(n_rows, dim=6, **others):
    """What `recommended` asks of a client's loss."""
    told = {"dim": dim, "n_rows": n_rows, "n_outputs": 1, "is_convex": True, "has_tensors": True}
    return SimpleNamespace(**told | others)


def test_the_recommended_row_is_chosen_by_processor_time_and_numbers():
    """Tensors of 6 parameters are 182 numbers, and of 30 some 46 000; half a million rows of the former are many."""
    full, diagonal = ba.families.FullGaussian, ba.families.DiagonalGaussian

    def chosen(family, *sites):
        return M.recommended(family(np.zeros(sites[0].dim), 1.0), sites)

    whole, plain = ba.Guarded(M.JointNewton()), ba.Guarded(M.JointNewton(tensors=False))
    assert chosen(full, site(100), site(100)) == whole
    assert chosen(full, site(500_000), site(500_000)) == plain
    assert chosen(full, site(100), site(1_000_000)) == plain
    assert chosen(diagonal, site(500_000), site(500_000)) == whole  # 57 numbers
    assert chosen(full, site(100), site(100, has_tensors=False)) == plain
    assert chosen(full, site(100, dim=40)) == plain
    assert chosen(full, site(100, dim=400)) == ba.Guarded(ba.Accelerated(M.PVI()))
    assert chosen(full, site(100, is_convex=False)) == ba.Accelerated(M.PVI())
    fixed = ba.families.FixedPrecisionGaussian
    assert chosen(fixed, site(100)) == ba.Guarded(M.JointNewton("prior"))
    assert M.recommended(full(np.zeros(6), 1.0)) == ba.Guarded(ba.Accelerated(M.PVI()))
    assert M.recommended(diagonal(np.zeros(6), 1.0)) == ba.Guarded(ba.Sketched(M.PVI(), "full"))
    assert M.recommended(diagonal(np.zeros(400), 1.0)) == ba.Guarded(ba.Accelerated(M.PVI(0.4)))
