"""The linearised round is that of the code, for every row with a dual; what is said of γ and ρ follows from it."""

from dataclasses import replace

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np import Accelerated, Sketched
from bayesadmm_np import methods as M
from bayesadmm_np._errors import ArgumentError
from bayesadmm_np.splitting.average import Average, as_step
from bayesadmm_np.splitting.rates import LocalRates, local_rates
from bayesadmm_np.splitting.round import Round, Success
from bayesadmm_np.splitting.state import State
from bayesadmm_np.splitting.team import assemble
from oracles.problems import loss, prior, rows, spd, team

ROWS = {
    "PVI": M.PVI(),
    "PVI(0.7)": M.PVI(0.7),
    "BayesADMM(0.4)": M.BayesADMM(0.4),
    "BayesADMM(1)": M.BayesADMM(1.0),
    "BayesADMM(5), γ": M.BayesADMM(5.0, 0.5),
    "AMA(3)": M.AMA(3.0),
    "by rows": M.PVI("rows"),
    "BLR": M.BLR(0.3),
    "FedDyn": M.FedDyn(2.0),
}
SIZES = (25, 40)
H = 1e-4
"""Deviations of the measured rounds: their squares, 1e-8 and some, and a solve to 1e-12 leave 1e-7 of a derivative."""


def optimum(row, clients, prior_):
    """The state in which nothing moves: λ_g at the pooled optimum and η_k = −∇L_k there."""
    made = assemble(as_step(row), clients, prior_, None, None, 1e-10)
    q = ba.solve_pooled(clients, prior_, expectation=row.expectation, tol=1e-13).posterior
    gradients = [worker.expect(q).natural_gradient for worker in made.workers]
    sites = [-gradient for gradient in gradients]
    if row.prior_at == "clients":  # the dual takes the client's part of the prior too
        parts = [(worker.coefficients.prior, site) for worker, site in zip(made.workers, sites, strict=True)]
        sites = [site + part * (prior_.natural - prior_.prior_weight * q.natural) for part, site in parts]
    return made, q, sites


def measured_round(row, clients, prior_):
    """The derivative of one round of the code at the optimum, by central differences in the Fisher metric."""
    made, q, sites = optimum(row, clients, prior_)
    one = Round(made, map, 0, warm_start=False, participation=1.0)
    n, count = q.natural.size, len(clients)

    def after(vector):
        x, *ys = np.split(vector, count + 1)
        served = q.with_natural(q.natural + q.unwhiten(x))
        duals = tuple(site + q.unwhiten(y) for site, y in zip(sites, ys, strict=True))
        state = State(served, duals, (served.natural,) * count, None, np.inf, ())
        done = one(state, made.expect_all(state, map))
        assert isinstance(done, Success), done
        moved = [q.whiten(new - old) for new, old in zip(done.state.sites, sites, strict=True)]
        return np.concatenate([q.whiten(done.state.q_g.natural - q.natural), *moved])

    units = np.eye((count + 1) * n)
    return np.stack([(after(H * unit) - after(-H * unit)) / (2 * H) for unit in units], axis=1)


def radius(matrix):
    return np.abs(np.linalg.eigvals(matrix)).max()


@pytest.mark.parametrize(
    ("row", "family"),
    [*((row, family) for row in ROWS if row != "FedDyn" for family in ("full", "diagonal")), ("FedDyn", "isotropic")],
)
def test_the_round_of_the_code_is_the_one_predicted(row, family):
    """All entries to 1e-5 of the largest, and so the factor to far more than three digits."""
    name = ("logistic", "poisson", "squares")[list(ROWS).index(row) % 3]
    method, prior_ = ROWS[row], prior(family, 3)
    clients = team(name, sizes=SIZES)
    rates = local_rates(clients, prior_, expectation=method.expectation)
    found, predicted = measured_round(method, clients, prior_), rates.round(method)
    assert np.abs(found - predicted).max() < 1e-5 * max(1.0, np.abs(predicted).max())
    assert abs(radius(found) - rates.factor(method)) < 1e-3 * rates.factor(method) + 1e-3


def test_another_damping_is_seen():
    """The twin: γ = .7 is not predicted by γ = .71, nor a client by another."""
    clients, prior_ = team("logistic", sizes=SIZES), prior("diagonal", 3)
    rates = local_rates(clients, prior_)
    found = measured_round(M.PVI(0.7), clients, prior_)
    assert np.abs(found - rates.round(M.PVI(0.71))).max() > 1e-3
    mixed = replace(rates, curvatures=rates.curvatures[::-1])
    assert np.abs(found - mixed.round(M.PVI(0.7))).max() > 1e-3


def test_rows_without_a_linearised_round_are_refused():
    rates = local_rates(team("logistic", sizes=SIZES), prior("full", 3))
    for row in (M.FedAvg(), M.BregmanADMM(1.0), M.Newton(), M.JointNewton(), Sketched(M.PVI()), Accelerated(M.PVI())):
        with pytest.raises(ArgumentError) as refused:
            rates.factor(row)
        assert refused.value.argument == "method"
    with pytest.raises(ValueError, match="3000"):
        local_rates([ba.losses.Logistic(np.eye(60), np.zeros(60))], ba.families.FullGaussian(np.zeros(60), 1.0))


def test_a_run_shrinks_by_the_factor():
    """The ratio of the last errors above rounding; a second eigenvalue near the first still shows in it."""
    clients, prior_ = team("logistic", sizes=SIZES), prior("full", 3)
    pooled, rates = ba.solve_pooled(clients, prior_, tol=1e-13).posterior, local_rates(clients, prior_)
    for row, rounds, other in ((M.BayesADMM(1.0), 45, M.PVI(0.7)), (M.PVI(0.7), 15, M.BayesADMM(1.0))):
        errors, solver = [], ba.clients.VariationalNewton(tol=1e-12)

        def note(record, q, errors=errors):
            errors.append(pooled.fisher_norm(q.natural - pooled.natural))

        ba.run(row, clients, prior_, rounds=rounds, tol=1e-300, solver=solver, callback=note)
        last = [error for error in errors if error > 1e-9][-2:]
        assert abs(last[1] / last[0] - rates.factor(row)) < 0.05
        assert abs(last[1] / last[0] - rates.factor(other)) > 0.1


# --- What follows: dampings, ρ, and two counterexamples


def two_sites(d=24, others=0):
    """Least squares: site 1 measures the sum of the coefficients alone, site 2 everything but it; shares .09 and .9.

    A diagonal family takes each site's curvature for shares of every coordinate. In the direction of the sum site 1 has
    more curvature than that (b = .09 · 23) and site 2 less (b = −.9), so that the eigenvalues of G are
    1 ± i√(.674 · 9), and γ_max = 2/(1 + .674 · 9) = .283. `others` sites measure every coefficient, poorly.
    """
    ones = np.ones((d, d)) / d
    first = ba.losses.LeastSquares(np.sqrt(0.09) * np.ones((1, d)), [1.0])
    second = ba.losses.LeastSquares(np.sqrt(0.9 * d / (d - 1)) * (np.eye(d) - ones), np.arange(d) / d)
    rest = [ba.losses.LeastSquares(0.03 * np.eye(d), np.ones(d)) for _ in range(others)]
    return [first, second, *rest], ba.families.DiagonalGaussian(np.zeros(d), 0.01)


def ends(row, clients, prior_, rounds=300):
    """The last error relative to the first, in the Fisher metric of the pooled fit."""
    pooled, errors = ba.solve_pooled(clients, prior_).posterior, []

    def note(record, q):
        errors.append(pooled.fisher_norm(q.natural - pooled.natural))

    ba.run(row, clients, prior_, rounds=rounds, tol=1e-300, raise_on_failure=False, callback=note)
    return errors[-1] / errors[0]


def test_one_over_k_is_not_a_safe_damping():
    """γ_max lies below 1/K = ½: ½ diverges, and half of γ_max converges."""
    clients, prior_ = two_sites()
    rates = local_rates(clients, prior_)
    assert rates.gamma_max == pytest.approx(2 / (1 + 9 * (1 - 1 / (1 + 0.09 * 23))), rel=1e-6)
    assert rates.factor(M.PVI(0.5)) > 1.0
    assert ends(M.PVI(0.5), clients, prior_) > 100
    assert ends(M.PVI(1.05 * rates.gamma_max), clients, prior_) > 10
    assert ends(M.PVI(0.95 * rates.gamma_max), clients, prior_) < 1e-2


def test_dampings_below_two_over_k_are_safe_where_every_site_is_convex():
    """B_k ⪰ 0 for all k: every γ < 2/K is stable. The counterexample has sites with B_k < 0."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        count = int(rng.integers(2, 6))
        rates = LocalRates(tuple(10 ** rng.uniform(-2, 3) * spd(rng, 3) for _ in range(count)), (1 / count,) * count)
        assert rates.gamma_max >= 2 / count * (1 - 1e-9)
    clients, prior_ = two_sites()
    assert min(spectrum[0] for spectrum in local_rates(clients, prior_).spectra) < -0.5


def test_the_best_values_are_best():
    clients, prior_ = team("poisson", sizes=(20, 30, 25)), prior("diagonal", 3)
    rates = local_rates(clients, prior_)
    gamma, factor = rates.best_gamma
    assert gamma < rates.gamma_max
    assert factor <= min(rates.factor(M.PVI(g)) for g in np.linspace(0.05, 1.0, 20)) + 1e-6
    rho, factor = rates.best_rho
    assert factor <= min(rates.factor(M.BayesADMM(r)) for r in 10.0 ** np.linspace(-3, 3, 40)) + 1e-3
    assert rates.factor(M.BayesADMM(rho)) == pytest.approx(factor)
    assert rates.factor(M.BayesADMM(3 * rho)) > factor + 0.01  # the twin


@pytest.mark.parametrize(("family", "name"), [("full", "logistic"), ("diagonal", "squares")])
def test_the_best_row_is_as_fast_as_the_best_of_a_grid(family, name):
    """From an optimum that four rounds came near; one round more is left for the start, as rates are of the end.

    The twin: the worst of the same grid takes three times as many.
    """
    clients, prior_ = team(name, sizes=(20, 30, 25)), prior(family, 3)

    def rounds(row):
        result = ba.run(row, clients, prior_, rounds=400, raise_on_failure=False)
        return result.rounds if result.status is ba.Status.CONVERGED else 400

    for row, grid in (
        (M.PVI(0.3), [M.PVI(gamma) for gamma in (0.1, 0.4, 0.7, 1.0)]),
        (M.BayesADMM(1.0), [M.BayesADMM(rho) for rho in (0.1, 0.3, 0.5, 2.0)]),
    ):
        near = ba.run(ba.Guarded(row), clients, prior_, rounds=4, tol=1e-300).posterior
        rates, counts = local_rates(clients, prior_, near), [rounds(one) for one in grid]
        best = M.PVI(min(rates.best_gamma[0], 1.0)) if row.alpha == 1.0 else M.BayesADMM(rates.best_rho[0])
        assert rounds(best) <= 1.2 * min(counts) + 1
        assert max(counts) > 3 * rounds(best)


def test_bayesadmm_is_slow_where_the_sites_agree_at_once():
    """B_k → 0 (many rows): PVI's factor tends to zero, and BayesADMM's to ρK/(1 + ρK)."""
    for count, rho in ((2, 0.5), (5, 1.0), (3, 4.0)):
        rates = LocalRates((1e-9 * np.eye(2),) * count, (1 / count,) * count)
        assert rates.factor(M.PVI()) < 1e-8
        assert rates.factor(M.BayesADMM(rho)) == pytest.approx(rho * count / (1 + rho * count), rel=1e-6)


def reach(clients, q):
    """The largest standard deviation of a row's predictor under q."""
    return max(float(np.sqrt(q.factor.row_variances(client.X).max())) for client in clients)


def bound(sigma):
    """Theorem A of docs/rates.md, for losses whose third and fourth derivatives are at most the second."""
    phi = sigma**2 / 4 + np.sqrt(sigma**4 / 16 + sigma**2 / 2)
    return phi / (1 - phi) if phi < 0.5 else np.inf


@pytest.mark.parametrize("name", ["logistic", "poisson"])
def test_undamped_pvi_has_the_factor_of_theorem_a(name):
    """For every split; a tenth of the bound is not one, so that it says something."""
    seen = above = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        X, y = rows(name, rng, int(rng.integers(30, 300)))
        count = int(rng.integers(2, 7))
        order = np.argsort(y, kind="stable") if seed % 2 else rng.permutation(len(y))  # by label, or at random
        clients = [loss(name, X[part], y[part]) for part in np.array_split(order, count)]
        prior_ = ba.families.FullGaussian(np.zeros(3), 10.0 ** rng.uniform(-2, 1))
        q = ba.solve_pooled(clients, prior_).posterior
        sigma = reach(clients, q)
        if sigma < 1 / np.sqrt(3):
            found = local_rates(clients, prior_, q).factor(M.PVI())
            assert found <= bound(sigma)
            seen, above = seen + 1, above + (found > 0.1 * bound(sigma))
    assert seen >= 4
    assert above > 0


@pytest.mark.parametrize(("intercept", "least", "most"), [(0.0, 0.05, 0.15), (-3.0, 0.25, 0.5)])
def test_the_largest_reach_is_far_above_the_share_of_parameters(intercept, least, most):
    """Σ_ih_is_i² is tr(I − S_0S⁻¹), so that the mean of s² weighted by h ≤ ¼ is near 4d/n; σ² is the largest s².

    n = 2000 rows, d = 10. Four times as many rows have about a quarter of it: the same rows four times, nearly exactly.
    """
    rng, n, d = np.random.default_rng(0), 2000, 10
    X = np.column_stack([np.ones(n), rng.standard_normal((n, d - 1))])
    f = X @ np.r_[intercept, rng.standard_normal(d - 1) / np.sqrt(d)]
    y, squares = (rng.random(n) < 1 / (1 + np.exp(-f))).astype(float), []
    for times in (1, 4):
        own = ba.losses.Logistic(X, y, weights=np.full(n, float(times)))
        q = ba.solve_pooled([own], ba.families.FullGaussian(np.zeros(d), 0.1)).posterior
        covariance = np.linalg.inv(q.precision)
        squares.append(np.einsum("ij,jk,ik->i", X, covariance, X))
        h = own.expect(q, own.check(q, ba.losses.Auto()))
        assert np.trace(h.curvature.dense() @ covariance) == pytest.approx(d - 0.1 * np.trace(covariance))
        assert squares[-1].mean() > 3.9 * d / (times * n)
    assert least < squares[0].max() < most
    assert squares[0].max() > 3 * squares[0].mean()
    assert squares[0].max() / squares[1].max() == pytest.approx(4.0, rel=0.2)


def test_a_site_is_not_convex_in_the_expectation_parameters():
    """B_k has eigenvalues of both signs, but for least squares: theorems on convex ADMM do not apply as they stand."""
    for name in ("logistic", "poisson"):
        for spectrum in local_rates(team(name, sizes=SIZES), prior("full", 3)).spectra:
            assert spectrum[0] < -1e-4 < 1e-4 < spectrum[-1]
    for spectrum in local_rates(team("squares", sizes=SIZES), prior("full", 3)).spectra:
        assert np.abs(spectrum).max() < 1e-9


# --- Round 2 of BayesADMM, and the advice of a run that fails there


@pytest.mark.parametrize("rho", [0.3, 1.0, 2.0, 5.0, 20.0, 1e3, 1e4])
def test_the_cavity_of_round_two(rho):
    """From the prior it is ρS_0 + 2ρ/(1 + ρK) ΣD_j − D_k: a share above 2/K is lost until ρS_0 outweighs it."""
    diagonals = np.array([[5.0, 1.0], [0.4, 1.0], [0.6, 1.0]])
    clients = [ba.losses.LeastSquares(np.diag(np.sqrt(own)), np.ones(2)) for own in diagonals]
    prior_ = ba.families.DiagonalGaussian(np.zeros(2), 1e-3)
    result = ba.run(M.BayesADMM(rho), clients, prior_, rounds=1, tol=1e-300)
    total = diagonals.sum(axis=0)
    for own, site in zip(diagonals, result.sites, strict=True):
        cavity = rho * result.posterior.precision - site.parts[1]
        assert np.allclose(cavity, rho * 1e-3 + 2 * rho / (1 + 3 * rho) * total - own, rtol=1e-8, atol=1e-8)
        if own[0] == 5.0:  # 5 of 6 in coefficient 0, more than 2/3
            assert (cavity[0] > 0) == (rho >= 1e4)
        else:  # the twin
            assert (cavity[1] > 0) == (rho >= 1.0)


@pytest.mark.parametrize("name", ["logistic", "squares"])
def test_an_indefinite_cavity_costs_a_logistic_site_its_minimum_but_not_least_squares(name):
    """Far out along a negative direction of ρS_g − V_k a logistic loss grows linearly, a squared one by all of V_k."""
    X = np.random.default_rng(0).standard_normal((60, 2))
    y = (X[:, 0] > 0) ^ (np.arange(60) % 5 == 0)
    clients = [loss(name, size * X, np.asarray(y, dtype=float)) for size in (3.0, 0.5, 0.5)]
    result = ba.run(M.BayesADMM(1.0), clients, ba.families.FullGaussian(np.zeros(2), 1e-3), rounds=1, tol=1e-300)
    q, site = result.posterior, result.sites[0]
    problem = ba.clients.Subproblem(clients[0], ba.losses.Auto(), q, site, 1.0)
    values, vectors = np.linalg.eigh(q.precision - site.parts[1])
    assert values[0] < 0
    assert not problem.is_well_posed
    ends = [
        problem.objective(far, problem.expect(far).value)
        for far in (q.at(q.mean + sign * 1e4 * vectors[:, 0], q.factor.parts) for sign in (1, -1))
    ]
    assert (max(ends) < -1e3) == (name == "logistic")
    assert (min(ends) > 1e3) == (name == "squares")


def test_raising_rho_does_not_help_where_one_client_has_the_curvature():
    """Every ρ loses a client in round 2, ρ = 1 with the safeguard diverges, and ρ = 2 with it converges."""
    clients, prior_ = two_sites(others=1)
    for rho in (1.0, 2.0, 5.0, 20.0):
        result = ba.run(M.BayesADMM(rho), clients, prior_, raise_on_failure=False)
        assert result.status is ba.Status.ILL_POSED_CLIENT
        assert result.failure.round == 2
    safe = {"rounds": 300, "safeguard": True, "raise_on_failure": False}
    assert ba.run(M.BayesADMM(1.0), clients, prior_, **safe).status is ba.Status.DIVERGED
    assert ba.run(M.BayesADMM(2.0), clients, prior_, **safe).status is ba.Status.CONVERGED
    assert local_rates(clients, prior_).factor(replace(M.BayesADMM(1.0), alpha=1.0)) > 1.0


def test_a_client_without_a_minimum_says_its_share_of_the_curvature():
    """.9 of .99 + 9e-4 in coefficient 0, above 2/3: no moderate ρ helps, and the advice is another one."""
    clients, prior_ = two_sites(others=1)
    failure = ba.run(M.BayesADMM(1.0), clients, prior_, raise_on_failure=False).failure
    assert failure.share == pytest.approx(0.9 / (0.99 + 9e-4))
    assert failure.limit == 0.5
    assert "Guarded" in failure.knob
    assert ba.run(ba.Guarded(M.BayesADMM(1.0)), clients, prior_).status is ba.Status.CONVERGED


def test_the_share_is_that_of_the_worst_direction():
    """The largest s of V_k v = s ΣV_j v, by an inverse; the diagonals show less."""
    clients, prior_ = team("logistic")[:2], prior("full", 3)
    failure = ba.run(M.BayesADMM(0.1), clients, prior_, raise_on_failure=False).failure
    sites = ba.run(M.BayesADMM(0.1), clients, prior_, rounds=1).sites
    own, total = sites[failure.client].parts[1], sites[0].parts[1] + sites[1].parts[1]
    assert failure.share == pytest.approx(np.linalg.eigvals(np.linalg.solve(total, own)).real.max())
    assert failure.share > 1.001 * (np.diagonal(own) / np.diagonal(total)).max()
    assert failure.share > failure.limit == pytest.approx(0.2 / 1.2)


def test_a_run_from_the_sites_own_fits_has_another_limit():
    """Round 2 then begins at ρ(S_0 + ΣV_j) − V_k. With a flat prior; twin: the share above."""
    clients, flat = team("logistic")[:2], ba.families.FullGaussian(np.zeros(3), 0.0)
    own = ba.run(Average(M.BayesADMM(0.1), start="sites"), clients, flat, raise_on_failure=False).failure
    assert (own.status, own.round) == (ba.Status.ILL_POSED_CLIENT, 2)
    assert (own.share, own.limit) == (None, None)


def test_a_share_at_the_limit_is_where_the_cavity_of_round_two_loses_its_minimum():
    """Curvatures 5 and 1 along (1, 1), three quarters in either coefficient: from ρ = 5/6 / (2 − 10/6) = 2.5 on."""
    turned = np.array([[1.0, 1.0], [1.0, -1.0]]) / np.sqrt(2.0)
    clients = [ba.losses.LeastSquares(np.diag([np.sqrt(size), 1.0]) @ turned, np.ones(2)) for size in (5.0, 1.0)]
    prior_ = ba.families.FullGaussian(np.zeros(2), 1e-6)
    for rho in (2.4, 2.6):
        second = ba.run(M.BayesADMM(rho), clients, prior_, rounds=2, tol=1e-300).history[1]
        assert second.clients[0].well_posed == (2 * rho / (1 + 2 * rho) > 5 / 6) == (rho > 2.5)


def test_the_best_damping_may_be_above_one():
    """B_k = −.2 at three clients: g = 1.25 and .5, whose best γ is 2/1.75."""
    rates = LocalRates((np.array([[-0.2]]),) * 3, (1 / 3,) * 3)
    assert rates.best_gamma[0] == pytest.approx(2 / 1.75, rel=1e-4)
