"""What goes wrong is said, with client, round and knob; what need not go wrong does not."""

from dataclasses import replace

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np.clients import ClientStatus, ClosedForm, GradientSteps, Subproblem, VariationalNewton
from bayesadmm_np.families import Natural
from bayesadmm_np.losses import Auto, Delta, Exact, GaussHermite, LinearInStatistics
from oracles.problems import (
    assert_close,
    blocks_of,
    data,
    loss,
    prior,
    skewed_logistic,
    team,
)
from oracles.refusals import assert_refused

M = ba.methods
Status = ba.Status


def make_prior(family, mean, precision):
    if family == "block":
        sizes = blocks_of(mean.size) if mean.size > 1 else [1]
        return ba.families.BlockDiagonalGaussian(mean, precision, blocks=sizes)
    made = {
        "full": ba.families.FullGaussian,
        "diagonal": ba.families.DiagonalGaussian,
        "fixed": ba.families.FixedPrecisionGaussian,
        "isotropic": ba.families.IsotropicGaussian,
    }
    return made[family](mean, precision)


# --- (a) Awkward data is solved where the problem is well posed; tests/properties draws the others


def awkward(name, kind, seed):
    """A small data set with a difficulty."""
    rng = np.random.default_rng(seed)
    d, n = int(rng.integers(1, 6)), int(rng.integers(1, 20))
    if kind == "one row":
        n = 1
    if kind == "fewer rows":
        d = int(rng.integers(4, 9))
        n = int(rng.integers(1, d))
    X = rng.standard_normal((n, d))
    if kind == "constant column":
        X[:, 0] = 1.0
    if kind == "zero column":
        X[:, -1] = 0.0
    if kind == "scaled":
        X *= 10.0 ** rng.uniform(0, 3)
    f = X @ rng.standard_normal(d)
    if name == "logistic":
        y = (rng.random(n) < 0.5).astype(float)
        if kind == "separable":
            y = (f > 0).astype(float)
        if kind == "one class":
            y[:] = 1.0
    else:
        y = rng.poisson(10.0 ** rng.uniform(0, 5, n) if kind == "large counts" else np.exp(np.clip(f, -5, 3)))
    return X, np.asarray(y, dtype=float), rng


def solve(name, kind, family, precision, rho, seed):
    """One client's problem that is well posed, and what the solver makes of it."""
    X, y, rng = awkward(name, kind, seed)
    anchor = make_prior(family, rng.standard_normal(X.shape[1]) * (seed % 2), precision).start()
    client = loss(name, X, y)
    problem = Subproblem(client, client.check(anchor, Auto()), anchor, 0.0 * anchor.natural, rho)
    assert problem.is_well_posed
    return problem, VariationalNewton().solve(problem, anchor, rng)


def assert_solved(*case):
    problem, solution = solve(*case)
    assert solution.status is ClientStatus.CONVERGED, case
    q = solution.posterior
    # evaluated again at the answer; the tolerance is the solver's own
    assert q.fisher_norm(q.natural - problem.target(problem.expect(q).natural_gradient)) <= 1e-8, case


KINDS = ("plain", "separable", "one class", "constant column", "zero column", "fewer rows", "one row", "scaled")
POISSON_HARD = [
    ("plain", "full", 0.032, 1.0, 437),
    ("one row", "full", 0.0058, 1.0, 745),
    ("one row", "block", 0.017, 10.0, 827),
    ("plain", "diagonal", 0.013, 1.0, 14),
    ("large counts", "isotropic", 33.0, 1.0, 513),
    ("large counts", "diagonal", 4.2, 1 / 3, 553),
    ("scaled", "block", 76.0, 1.0, 809),  # overflow at the mean: f reaches 1049 there
    ("large counts", "fixed", 7.7, 1 / 3, 631),
]
POISSON_HOPELESS = [
    # E exp f overflows under every mean, as the covariance is fixed: the variance of f reaches 1e5
    (("scaled", "fixed", 0.1, 1.0, 809), ClientStatus.NOT_FINITE),
    # a fixed, wide covariance puts the objective at 1e14, and the residual is in the units of that covariance
    (("plain", "fixed", 0.1, 1.0, 100), ClientStatus.ROUNDED),
]


def test_well_posed_problems_converge_for_weak_priors_and_awkward_data():
    """Of Poisson, E exp f is astronomical under a weak prior, or counts of 1e5 are far from the start."""
    for family in ("full", "diagonal", "block", "fixed", "isotropic"):
        for kind in KINDS:
            assert_solved("logistic", kind, family, 1e-4, 1.0, 0)
    for case in POISSON_HARD:
        assert_solved("poisson", *case)
    assert [solve("poisson", *case)[1].status for case, _ in POISSON_HOPELESS] == [said for _, said in POISSON_HOPELESS]


@pytest.mark.parametrize(
    ("row", "family"), [(M.BayesADMM(1.0), "full"), (M.PVI(), "diagonal"), (ba.Accelerated(M.PVI(0.5)), "diagonal")]
)
def test_awkward_clients_work_together(row, family):
    """One class, one row, a constant column, fewer rows than columns, all at once."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20, 4))
    X[:, 0] = 1.0
    y = (X[:, 1] > 0).astype(float)
    pieces = [
        y == 1,
        np.arange(20) == np.flatnonzero(y == 0)[0],
        (y == 0) & (np.arange(20) > np.flatnonzero(y == 0)[0]),
    ]
    clients = [ba.losses.Logistic(X[rows], y[rows]) for rows in pieces]
    result = ba.run(row, clients, make_prior(family, np.zeros(4), 0.1), rounds=300, tol=1e-6, safeguard=True)
    assert result.status is Status.CONVERGED
    assert result.certificate().pooled < 1e-4


# --- (b) The safeguard


@pytest.mark.parametrize(("family", "seed"), [("full", 1), ("diagonal", 7)])
def test_safeguard_saves_runs_that_fail_without_it(family, seed):
    clients, prior_ = skewed_logistic(seed, n_clients=5), make_prior(family, np.zeros(2), 0.05)
    plain = ba.run(M.BayesADMM(1.0), clients, prior_, rounds=150, raise_on_failure=False)
    assert plain.status is Status.ILL_POSED_CLIENT
    safe = ba.run(M.BayesADMM(1.0), clients, prior_, rounds=150, safeguard=True)
    assert safe.status is Status.CONVERGED
    alphas = np.array([record.alpha for record in safe.history])
    assert ((alphas >= 1 / 6) & (alphas <= 1.0)).all()
    assert 0 < np.count_nonzero(alphas > 1 / 6) < len(alphas) / 4  # raised when needed, and only then
    assert all(client.well_posed for record in safe.history for client in record.clients)
    # edges <= 1e-6, and constants of order ten for these weak priors
    assert_close(safe.posterior.natural, ba.solve_pooled(clients, prior_).posterior.natural, 1e-4)


def test_safeguard_leaves_alpha_alone_where_it_is_not_needed():
    clients, prior_ = team("logistic"), prior("full", 3)
    plain = ba.run(M.BayesADMM(1.0), clients, prior_, rounds=5)
    safe = ba.run(M.BayesADMM(1.0), clients, prior_, rounds=5, safeguard=True)
    assert {record.alpha for record in safe.history} == {1 / 3}
    assert plain.posterior.natural == safe.posterior.natural


def test_safeguard_raises_alpha_just_enough():
    """At the α of the safeguard every problem is well posed; half a per cent below it one is not."""
    clients, prior_ = skewed_logistic(3, n_clients=5), make_prior("full", np.zeros(2), 0.05)
    first = ba.run(M.BayesADMM(1.0), clients, prior_, rounds=1, safeguard=True)
    alpha = first.history[0].alpha
    assert 1 / 6 < alpha < 1

    def well_posed(a):
        row = replace(M.BayesADMM(1.0), alpha=a)
        at = ba.run(row, clients, prior_, rounds=1)
        return all(at.posterior.contains(at.posterior.natural - site) for site in at.sites)

    assert well_posed(alpha)
    assert not well_posed(alpha - 0.005)  # bisection to 1/4096 of the way


@pytest.mark.parametrize("seed", range(4))
def test_with_alpha_one_and_rho_one_nothing_is_ever_ill_posed(seed):
    """λ_g − η_k then holds the prior and all other sites, which are positive (DESIGN: ρ >= 1)."""
    clients, prior_ = skewed_logistic(seed, n_clients=4), make_prior("full", np.zeros(2), 0.05)
    for row in (M.PVI(), M.AMA(1.5)):
        result = ba.run(row, clients, prior_, rounds=20, raise_on_failure=False)
        assert result.status is not Status.ILL_POSED_CLIENT
        assert all(client.well_posed for record in result.history for client in record.clients)


# --- (c) How runs fail


def failing():
    """Arguments of a run, options, status, and the client, the round and the setting that the message names."""
    big = [ba.losses.LeastSquares(X * 3, y) for X, y in data("squares")]
    isotropic, full = prior("isotropic", 3), prior("full", 3)
    skewed, weak = skewed_logistic(3, n_clients=5), make_prior("full", np.zeros(2), 0.05)
    counts = [LinearInStatistics(Natural(np.array([-0.9]), np.array([-1.0]))) for _ in range(3)]
    few, gamma = [LinearInStatistics(Natural(np.array([-9.0]), np.array([-1.0])))], ba.families.Gamma([2.0], [1.0])
    steps, one = GradientSteps(steps=400, learning_rate=10.0), VariationalNewton(max_iter=1)
    left, ill_posed = Status.NOT_A_DISTRIBUTION, Status.ILL_POSED_CLIENT
    return {
        "left the domain": ((M.BregmanADMM(1.0, 0.5), team("squares"), full), {}, left, "round 3: .*gamma.*rho"),
        "left, conjugate": ((M.AMA(1.0), counts, gamma), {}, left, r"round \d: "),
        "diverged": ((M.AMA(100.0), big, isotropic), {}, Status.DIVERGED, r"round \d+: .*rho"),
        "ill posed": ((M.BayesADMM(1.0), skewed, weak), {}, ill_posed, r"client \d, round 2: .*safeguard"),
        "ill posed, conjugate": ((M.PVI(), few, gamma), {}, ill_posed, "client 0, round 1: "),
        "not finite": ((M.FedAvg(), big, isotropic), {"solver": steps}, Status.NOT_FINITE, "client 0, round 1: "),
        "client limit": (
            (M.PVI(), team("logistic"), full),
            {"solver": one},
            Status.CLIENT_LIMIT,
            "client 0, round 1: .*max_iter",
        ),
    }


@pytest.mark.parametrize("case", failing())
def test_failures_name_client_round_and_knob_and_keep_the_last_good_iterate(case):
    """Without a warning of NumPy's: the status is the message."""
    arguments, options, status, pattern = failing()[case]
    with pytest.raises(ba.RunError, match=f"^{pattern}") as caught:
        ba.run(*arguments, rounds=400, **options)
    quiet = ba.run(*arguments, rounds=400, raise_on_failure=False, **options)
    for result in (caught.value.result, quiet):
        assert result.status is status
        assert result.status.is_failure
        assert result.message == str(caught.value)
        assert status.value in result.message
        assert len(result.history) == result.rounds
        assert result.objective.shape == (result.rounds + 1,)
        assert result.posterior.natural.is_finite()
        assert result.posterior.contains(result.posterior.natural)
    # the last good iterate is that of a run which stops there
    before = ba.run(*arguments, rounds=quiet.rounds, **options) if quiet.rounds else None
    if before is not None:
        assert before.posterior.natural == quiet.posterior.natural


DIVERGING = [(M.AMA(2.0), "squares", "fixed"), (M.PVI(), "squares", "isotropic"), (M.BLR(0.3), "squares", "fixed")]


@pytest.mark.parametrize(("row", "name", "family"), DIVERGING, ids=lambda x: getattr(x, "name", x))
def test_slow_geometric_divergence_is_noticed(row, name, family):
    """The objective grows by a constant factor a round: 1e100 after 300 rounds."""
    result = ba.run(row, team(name), prior(family, 3), rounds=300, raise_on_failure=False)
    assert result.status is Status.DIVERGED
    assert result.objective[-1] < 1e12


# --- (d) Bad input


def test_bad_input_is_refused_with_the_name_of_the_argument():
    """Arguments of a run; those of losses, families and solvers have their tests beside them."""
    full, clients, softmax, pvi = prior("full", 3), team("logistic"), team("softmax"), M.PVI()
    assert_refused(
        [
            (lambda: ba.run(pvi, [], full), "clients"),
            (lambda: ba.run("PVI", clients, full), "method"),
            (lambda: ba.run(M.PVI, clients, full), "method"),
            (lambda: ba.run(pvi, clients, "N(0, 1)"), "prior"),
            (lambda: ba.run(pvi, clients, full, rounds=-1), "rounds"),
            (lambda: ba.run(pvi, clients, full, rounds=1.5), "rounds"),
            (lambda: ba.run(pvi, clients, full, tol=0), "tol"),
            (lambda: ba.run(pvi, clients, full, tol=np.nan), "tol"),
            (lambda: ba.run(pvi, clients, full, n_jobs=0), "n_jobs"),
            (lambda: ba.run(pvi, clients, full, seed=-1), "seed"),
            (lambda: ba.solve_pooled([], full), "clients"),
            (lambda: Delta(3), "order"),
            (lambda: ba.losses.QuasiMonteCarlo(31), "points"),
            (lambda: ba.run(pvi, softmax, prior("full", 6), expectation=ba.losses.QuasiMonteCarlo(8)), "points"),
            *((lambda make=make, rho=rho: make(rho=rho), "rho") for make in WITH_RHO for rho in NOT_POSITIVE),
            *((lambda make=make, g=g: make(gamma=g), "gamma") for make in WITH_GAMMA for g in NO_FRACTIONS),
            *((lambda rate=rate: M.BLR(rate), "learning_rate") for rate in (0.0, 1.1)),
        ]
    )


WITH_RHO = (M.BayesADMM, M.ADMM, M.PreconditionedADMM, M.BregmanADMM, M.AMA, M.FedProx, M.FedDyn)
WITH_GAMMA = (M.BayesADMM, M.BregmanADMM, M.PVI, M.FedLap, M.FedLapCov)
NOT_POSITIVE = (0.0, -1.0, np.nan, np.inf, "one", None)
NO_FRACTIONS = (0.0, 1.5, -0.1, np.nan, "half")


def misfits():
    """Calls whose loss, family, rule, solver and row do not fit each other, and a word of the error."""
    full, isotropic, fixed, clients = prior("full", 3), prior("isotropic", 3), prior("fixed", 3), team("logistic")
    counts, gamma = [LinearInStatistics(Natural(np.array([1.0]), np.array([-1.0])))], ba.families.Gamma([1.0], [1.0])
    wide = [clients[0], ba.losses.Logistic(np.ones((2, 5)), [0, 1])]
    run, pvi, softmax = ba.run, M.PVI(), (M.PVI(), team("softmax"), prior("full", 6))
    return [
        (lambda: run(pvi, wide, full), "client 1"),
        (lambda: run(pvi, [clients[0], "loss"], full), "client 1"),
        (lambda: run(pvi, clients, gamma), "Gaussian"),
        (lambda: run(pvi, counts, full), "coefficients"),
        (lambda: ba.solve_pooled(wide, full), "losses"),
        (lambda: LinearInStatistics(Natural(np.array([np.nan]))), "coefficients"),
        (lambda: run(M.ADMM(), clients, isotropic, expectation=Exact()), "ADMM"),
        (lambda: run(M.FedLapCov(), clients, full, expectation=Delta(1)), "FedLapCov"),
        *((lambda rule=rule: run(*softmax, expectation=rule), "expectation") for rule in (Exact(), GaussHermite())),
        *((lambda one=one: run(pvi, clients, full, solver=one), "solver") for one in (ClosedForm(), GradientSteps())),
        *(
            (lambda one=one: run(pvi, counts, gamma, solver=one), "solver")
            for one in (VariationalNewton(), ba.clients.VON())
        ),
        *((lambda row=row: run(row, clients, full), "Isotropic") for row in (M.ADMM(), M.FedAvg())),
        (lambda: run(M.FedDyn(), clients, fixed), "FedDyn"),
        *((lambda row=row: run(row, clients, full), "Fixed") for row in (M.FedLap(), M.PreconditionedADMM())),
        (lambda: run(M.FedLapCov(), clients, fixed), "FullGaussian"),
        (lambda: run(M.FedIvon(), clients, full), "DiagonalGaussian"),
    ]


def test_what_does_not_fit_is_named():
    for call, word in misfits():
        with pytest.raises(ValueError, match=word):
            call()


# --- (e) Warm starts


@pytest.mark.parametrize("family", ["full", "isotropic"])
def test_warm_starts_give_the_same_fixed_point(family):
    clients, prior_ = team("logistic"), prior(family, 3)
    cold = ba.run(M.PVI(0.5), clients, prior_, rounds=300, tol=1e-7)
    warm = ba.run(M.PVI(0.5), clients, prior_, rounds=300, tol=1e-7, warm_start=True)
    assert warm.status is cold.status is Status.CONVERGED
    assert_close(warm.posterior.natural, cold.posterior.natural, 1e-5)  # edges of 1e-7, constants of order ten
    last = [sum(c.iterations for c in result.history[-1].clients) for result in (warm, cold)]
    assert last[0] <= last[1]


def test_clients_whose_rows_all_have_weight_zero_have_no_shares():
    """Rows of the table that weigh clients by their rows refuse them; twin: the others find the prior."""
    clients = [ba.losses.Logistic(np.eye(2), [0, 1], weights=[0, 0]) for _ in range(2)]
    with pytest.raises(ValueError, match="weight"):
        ba.run(M.FedAvg(), clients, ba.families.IsotropicGaussian(np.zeros(2), 1.0))
    full = ba.families.FullGaussian(np.zeros(2), 1.0)
    assert ba.run(M.PVI(), clients, full).status is Status.CONVERGED


# --- What rounding or a loose bound is to be blamed for


def halves(X, y):
    return [ba.losses.Logistic(X[k::3], y[k::3]) for k in range(3)]


@pytest.mark.parametrize("row", [M.PVI(), M.BayesADMM(1.0)])
def test_equal_columns_and_a_weak_prior_are_named_and_not_rho(rng, row):
    z = rng.standard_normal(60)
    X = 1e4 * np.column_stack([z, z, rng.standard_normal(60)])
    clients = halves(X, rng.random(60) < 1 / (1 + np.exp(-z)))
    result = ba.run(row, clients, ba.families.FullGaussian(np.zeros(3), 1e-8), raise_on_failure=False)
    assert result.status is Status.UNRESOLVED
    assert "repeat" in result.message
    other = ba.run(row, clients, ba.families.FullGaussian(np.zeros(3), 1e8), raise_on_failure=False)
    assert other.status is Status.CONVERGED


def test_admm_with_a_huge_rho_and_nearly_flat_prior_fails_or_ends_in_words(rng):
    """Constant and both dummies × 100 leave the pooled curvature singular to rounding: no error escapes."""
    group = np.arange(60) % 2
    X = 100.0 * np.column_stack([np.ones(60), group, 1 - group])
    prior = ba.families.IsotropicGaussian(np.zeros(3), 1e-10)
    teams = [ba.losses.LeastSquares(X[k::3], (X @ [1.0, 0.5, 0.2])[k::3]) for k in range(3)]
    for clients in (teams, halves(X, rng.random(60) < 0.5)):
        result = ba.run(M.ADMM(1e6), clients, prior, raise_on_failure=False)
        assert not result.certificate().is_stationary


def test_a_pooled_fit_of_huge_columns_warns_of_nothing(rng):
    X = 1e150 * rng.standard_normal((60, 3))
    with pytest.raises(RuntimeError, match="solve_pooled"):
        ba.solve_pooled(halves(X, X[:, 0] > 0), ba.families.DiagonalGaussian(np.zeros(3), 1.0), max_iter=3)


@pytest.mark.parametrize("name", ["X", "y", "weights"])
def test_missing_values_behind_a_mask_are_refused(rng, name):
    given = {"X": rng.standard_normal((6, 2)), "y": np.arange(6.0) % 2, "weights": np.ones(6)}
    mask = np.zeros(given[name].shape, dtype=bool)
    whole = given | {name: np.ma.masked_array(given[name], mask)}
    ba.losses.Logistic(**whole)  # a mask that hides nothing is no fault
    mask.flat[3] = True
    with pytest.raises(ValueError, match=f"^{name} must"):
        ba.losses.Logistic(**(given | {name: np.ma.masked_array(given[name], mask)}))
