"""Sites that keep more than the diagonal: where a run ends, how fast, what is refused; in process and by messages."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bayesadmm_np as ba
from bayesadmm_np.families import Natural
from bayesadmm_np.federation import Coordinator, GLMTask, MessageError
from bayesadmm_np.losses.sketches import SKETCHES, Full, Kronecker, LowRank
from bayesadmm_np.splitting.average import Average
from bayesadmm_np.splitting.sketched import gathered, unpack_cavity
from oracles.couriers import carried, differences, drive, introduce
from oracles.problems import DIM, EPS, assert_close, prior, team
from oracles.refusals import assert_refused

M = ba.methods
DIAGONAL = ba.families.DiagonalGaussian
ROWS = {"PVI": M.PVI(), "BLR": M.BLR(1.0)}
LAPLACE = M.FedLapCov()
CASES = [
    ("logistic", Full()),
    ("logistic", LowRank(1)),
    ("poisson", Full()),
    ("poisson", LowRank(2)),
    ("squares", Full()),
    ("squares", LowRank(2)),
    ("softmax", Full()),
    ("softmax", Kronecker(3)),
    ("softmax", LowRank(3)),
    ("softmax2", Kronecker(2)),
]


def dense(kind, loss, q, rule=None):
    """V of a loss at q, with its diagonal."""
    expected = loss.expect(q, loss.check(q, rule or ba.losses.Auto()))
    (diagonal,) = expected.projected
    return kind.coupling(kind.of(expected.curvature, diagonal), diagonal) + np.diag(
        diagonal
    ), expected.curvature.dense()


# --- Sketches


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**31), case=st.sampled_from(CASES), zeros=st.booleans())
def test_a_sketch_has_the_exact_diagonal_and_no_negative_eigenvalue(seed, case, zeros):
    """Eigenvalues of a d × d matrix with entries up to ‖V‖ are good to d² ulp of it; the products take some more."""
    name, kind = case
    rng = np.random.default_rng(seed)
    (loss,) = team(name, seed, sizes=(int(rng.integers(1, 12)),))
    if zeros and name != "squares":  # a column without curvature, and a site without any
        X = loss.X.copy()
        X[:, -1] = 0.0
        X *= rng.integers(0, 2)
        loss = replace_rows(loss, X)
    q = DIAGONAL(rng.standard_normal(DIM[name]), rng.uniform(0.3, 3.0, DIM[name]))
    sketch, exact = dense(kind, loss, q)
    size = 1.0 + np.abs(exact).max()
    # the diagonal is taken as it is; that of the dense curvature is the same sum in another order
    assert np.abs(np.diagonal(sketch) - np.diagonal(exact)).max() <= 100 * EPS * size
    assert np.linalg.eigvalsh(sketch).min() >= -1e3 * EPS * size
    if isinstance(kind, Full):
        assert np.abs(sketch - exact).max() <= 100 * EPS * size


def replace_rows(loss, X):
    made = type(loss)
    extra = {"n_classes": loss.n_classes} if isinstance(loss, ba.losses.Softmax) else {}
    return made(X, loss.y, **extra)


def test_a_product_is_exact_for_least_squares_with_many_outputs(rng):
    loss = ba.losses.LeastSquares(rng.standard_normal((9, 4)), rng.standard_normal((9, 3)))
    sketch, exact = dense(Kronecker(3), loss, DIAGONAL(np.zeros(12), 1.0))
    assert_close(sketch, exact, 1e-13)


def test_the_nearest_product_is_the_same_from_rows_and_from_the_matrix(rng):
    """The two ways of contracting, and the best product of one row is that row's."""
    loss = ba.losses.Softmax(rng.standard_normal((7, 4)), rng.integers(0, 3, 7), n_classes=3)
    q = DIAGONAL(rng.standard_normal(12), 2.0)
    both = [dense(Kronecker(3), one, q)[0] for one in (loss, ba.losses.Total([loss]))]
    assert_close(both[0], both[1], 1e-10)
    one = ba.losses.Softmax(rng.standard_normal((1, 4)), [1], n_classes=3)
    sketch, exact = dense(Kronecker(3), one, q)
    assert_close(sketch, exact, 1e-10)


def test_lanczos_finds_what_the_whole_decomposition_does(rng, monkeypatch):
    loss = ba.losses.Logistic(rng.standard_normal((30, 25)), rng.random(30) < 0.5)
    q = DIAGONAL(np.zeros(25), 1.0)
    whole, _ = dense(LowRank(4), loss, q)
    monkeypatch.setattr(ba.losses.sketches, "MOST_DECOMPOSED", 3)
    assert_close(dense(LowRank(4), loss, q)[0], whole, 1e-10)


# --- The fixed point, and the way to it


# BLR with full sites alone: an evaluation contracts where the sketch is near, and does not converge elsewhere
@pytest.mark.parametrize(
    ("name", "kind", "row"),
    [*((name, kind, "PVI") for name, kind in CASES), ("logistic", Full(), "BLR"), ("softmax", Full(), "BLR")],
)
def test_the_fixed_point_is_the_pooled_optimum(name, kind, row):
    """A residual r per parameter, in Fisher lengths, is an error of some r √(2d) times the condition of the problem."""
    clients, start = team(name, 3, sizes=(12, 9, 14)), prior("diagonal", DIM[name])
    method = ba.Sketched(ROWS[row], kind)
    result = ba.run(method, clients, start, tol=1e-9, rounds=200)
    pooled = ba.solve_pooled(clients, start)
    assert result.status is ba.Status.CONVERGED
    assert_close(result.posterior.mean, pooled.posterior.mean, 1e-6)
    assert_close(result.posterior.precision, pooled.posterior.precision, 1e-6)


def test_the_laplace_approximation_is_reached_too():
    clients, start = team("logistic", 3, sizes=(12, 9, 14)), prior("diagonal", 3)
    result = ba.run(ba.Sketched(LAPLACE, "full"), clients, start, tol=1e-10)
    plain = ba.run(M.FedLapCov(0.3), clients, start, tol=1e-10, rounds=1000)
    assert_close(result.posterior.mean, plain.posterior.mean, 1e-7)
    assert_close(result.posterior.precision, plain.posterior.precision, 1e-7)


@SKETCHES.register
@dataclass(frozen=True)
class Inflated(Full):
    """The broken twin: its diagonal is not that of the curvature."""

    def coupling(self, numbers, diagonal):
        return super().coupling(numbers, diagonal) + np.diag(0.3 * diagonal)


def test_a_sketch_whose_diagonal_is_not_exact_moves_the_fixed_point_or_the_rate():
    """With a diagonal of 1.3 D in v_k and D in S, the mean of least squares runs away."""
    clients, start = squares(), DIAGONAL(np.zeros(8), 1.0)
    exact = ba.run(ba.Sketched(M.PVI(), Full()), clients, start, tol=1e-9)
    broken = ba.run(ba.Sketched(M.PVI(), Inflated()), clients, start, tol=1e-9, rounds=60, raise_on_failure=False)
    assert (exact.status, exact.rounds) == (ba.Status.CONVERGED, 2)
    assert broken.status is ba.Status.DIVERGED


def squares(n_clients=3):
    """Columns that are alike, so that undamped PVI with a diagonal covariance diverges."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20 * n_clients, 8)) + 2.0
    y = X @ rng.standard_normal(8) + rng.standard_normal(len(X))
    return [ba.losses.LeastSquares(X[k::n_clients], y[k::n_clients]) for k in range(n_clients)]


def test_full_sites_are_one_round_for_least_squares_where_the_family_diverges():
    """With exact V_k the server's mean after round 1 is the pooled one, as with a full covariance (Prop. D.1)."""
    clients, start = squares(), DIAGONAL(np.zeros(8), 1.0)
    once = ba.run(ba.Sketched(M.PVI(), "full"), clients, start, rounds=1)
    assert_close(once.posterior.mean, ba.solve_pooled(clients, start).posterior.mean, 1e-10)
    plain = ba.run(M.PVI(), clients, start, rounds=60, raise_on_failure=False)
    assert plain.status is not ba.Status.CONVERGED
    assert not plain.objective[-1] < plain.objective[0]


def test_the_rate_is_nearly_that_of_a_full_covariance(rng):
    """Rounds to 1e-8 from the prior; the twin keeps no correlation, and is the family's own site."""
    X = rng.standard_normal((240, 6)) + 1.0
    y = rng.random(240) < 1.0 / (1.0 + np.exp(-(X @ rng.standard_normal(6)) * 0.5))
    clients = [ba.losses.Logistic(X[k::4], y[k::4]) for k in range(4)]
    start = DIAGONAL(np.zeros(6), 1.0)
    rich = ba.run(ba.Sketched(M.PVI(), "full"), clients, start, tol=1e-8)
    full = ba.run(M.PVI(), clients, ba.families.FullGaussian(np.zeros(6), 1.0), tol=1e-8)
    plain = ba.run(M.PVI(0.25), clients, start, tol=1e-8, rounds=60, raise_on_failure=False)
    assert rich.rounds <= full.rounds + 3
    assert plain.rounds >= 3 * rich.rounds


# --- Hostile numbers of clients, and of rows


def test_one_client():
    clients, start = team("logistic", sizes=(30,)), prior("diagonal", 3)
    result = ba.run(ba.Sketched(M.PVI(), "full"), clients, start, tol=1e-8)
    assert result.rounds <= 8
    assert_close(result.posterior.mean, ba.solve_pooled(clients, start).posterior.mean, 1e-6)


def test_many_clients(rng):
    X = rng.standard_normal((160, 3))
    y = rng.random(160) < 1.0 / (1.0 + np.exp(-X[:, 0]))
    clients = [ba.losses.Logistic(X[2 * k : 2 * k + 2], y[2 * k : 2 * k + 2]) for k in range(80)]
    start = DIAGONAL(np.zeros(3), 1.0)
    result = ba.run(ba.Sketched(M.PVI(), "full"), clients, start, tol=1e-6)
    assert_close(result.posterior.mean, ba.solve_pooled(clients, start).posterior.mean, 1e-4)
    assert result.history[0].floats_down == 80 * (6 + 3)  # their sum is shorter than all of them


def test_a_client_without_curvature():
    clients = [*team("logistic", sizes=(20, 15)), ba.losses.Logistic(np.zeros((4, 3)), [0, 1, 1, 0])]
    start = prior("diagonal", 3)
    for kind in (Full(), LowRank(2)):
        result = ba.run(ba.Sketched(M.PVI(), kind), clients, start, tol=1e-8)
        assert_close(result.posterior.mean, ba.solve_pooled(clients, start).posterior.mean, 1e-6)
        assert not result.state.memory[2].any()


@pytest.mark.parametrize("row", ROWS)
def test_clients_that_are_away_keep_their_sketches(row):
    clients, start = team("softmax", 3, sizes=(12, 9, 14)), prior("diagonal", 6)
    method = ba.Sketched(ROWS[row], "full")
    outage = lambda number, n, rng: np.array([True, number > 4, number != 2])  # noqa: E731
    result = ba.run(method, clients, start, participation=outage, tol=1e-8, rounds=200)
    assert result.status is ba.Status.CONVERGED
    assert_close(result.posterior.mean, ba.solve_pooled(clients, start).posterior.mean, 1e-6)


# --- By messages


@pytest.mark.parametrize(
    ("name", "kind", "row"),
    [("poisson", Full(), "PVI"), ("softmax", Kronecker(3), "PVI"), ("squares", LowRank(2), "BLR")],
)
def test_messages_carry_the_same_run_bit_for_bit(name, kind, row):
    """Also where a client is away in rounds 1, 2 and 4; the server does not know the objective then."""
    clients, start = team(name, 3, sizes=(12, 9, 14)), prior("diagonal", DIM[name])
    method, options = ba.Sketched(ROWS[row], kind), {"rounds": 6, "tol": 1e-300}
    for gaps, unknown in (((), set()), ((1, 2, 4), {"objective", "history"})):

        def away(number, k, gaps=gaps):
            return k == 1 and number in gaps

        def here(number, n, rng, away=away):
            return np.array([not away(number, k) for k in range(n)])

        result = ba.run(method, clients, start, participation=here, raise_on_failure=False, **options)
        server, sites = drive(method, clients, start, away, **options)
        assert set(differences(result, server, sites)) <= unknown
        same = zip(result.state.memory, server.state.memory, strict=True)
        assert all(np.array_equal(a, b) for a, b in same)


def test_a_site_that_lost_its_state_goes_on_from_the_servers_copy():
    clients, start = team("softmax", 3, sizes=(12, 9)), prior("diagonal", 6)
    method = ba.Sketched(M.PVI(), Kronecker(3))
    sites = introduce(clients)
    server = Coordinator.start([site.hello() for site in sites], GLMTask(method, start, rounds=4, tol=1e-300))
    while server.outcome is None:
        told = carried(server.broadcast())
        if server.number == 3:
            sites[1] = introduce(clients)[1].adopt(server.spec, carried(server.copy_of("s1")))
        stepped = [site.step(told) for site in sites]
        sites = [site for site, _ in stepped]
        server = server.step([reply for _, reply in stepped])
    whole = ba.run(method, clients, start, rounds=4, tol=1e-300)
    assert server.state.q_g.natural == whole.posterior.natural


def test_a_forged_sketch_is_refused():
    """Correlations of a matrix with a negative eigenvalue, a row longer than one, and a diagonal below zero."""
    clients, start = team("softmax", 3, sizes=(12, 9)), prior("diagonal", 6)
    forged = {Full(): -0.9 * np.ones(15), Kronecker(3): -np.ones(4), LowRank(2): 2.0 * np.ones(12)}
    for kind, numbers in forged.items():
        sites = introduce(clients)
        task = GLMTask(ba.Sketched(M.PVI(), kind), start)
        server = Coordinator.start([site.hello() for site in sites], task)
        replies = [site.step(server.broadcast())[1] for site in sites]
        assert replies[0].arrays["sketch"].shape == numbers.shape
        for name, values in (("sketch", numbers), ("site", -np.ones(12))):
            bad = replace(replies[0], arrays={**replies[0].arrays, name: values})
            with pytest.raises(MessageError, match=f"^{name}|: {name} must"):
                server.step([bad, replies[1]])
        assert server.step(replies).number == 2


def test_a_cavity_of_a_negative_diagonal_is_refused():
    """One site whose sketch is shorter than the sum of all: it is sent whole, and read with its diagonal."""
    q, kind = DIAGONAL(np.zeros(6), 1.0), LowRank(1)
    for diagonal, is_fine in ((np.ones(6), True), (np.r_[np.ones(5), -0.5], False)):
        numbers = np.concatenate([diagonal, np.full(6, 0.5)])
        if is_fine:
            assert unpack_cavity(kind, q, 1, numbers).precondition is not None
        else:
            with pytest.raises(ValueError, match="semidefinite"):
                unpack_cavity(kind, q, 1, numbers)


@pytest.mark.parametrize(("length", "is_valid"), [(1.0, True), (1.5, False)])
def test_no_row_of_a_low_rank_is_longer_than_one(length, is_valid):
    assert LowRank(2).is_valid(np.sqrt(length / 2.0) * np.ones(12), 6) is is_valid


def test_where_the_sum_of_sketches_is_indefinite_the_diagonal_factors_are_gathered():
    """Correlations of −.9 between three parameters have an eigenvalue of −.8; those of .5 are a correlation matrix."""
    start, kind = DIAGONAL(np.zeros(3), 0.1), Full()
    site, own = Natural(np.array([1.0, 2.0, -1.0]), 2.0 * np.ones(3)), start.natural
    plain = start.natural + site
    found = {r: gathered(start, kind, [site], [own], [r * np.ones(3)]) for r in (-0.9, 0.5)}
    assert found[-0.9] == plain
    assert np.abs(found[0.5].linear - plain.linear).max() > 0.1
    assert np.array_equal(found[0.5].parts[1], plain.parts[1])


# --- What is refused


def test_rows_structures_and_arguments_that_do_not_fit_are_refused():
    rows = (M.BayesADMM(), M.AMA(2.0), M.PVI(0.5), M.PVI("rows"), M.BLR(0.5), M.Newton("prior"), M.JointNewton())
    rows += (M.BregmanADMM(), M.FedAvg(), M.FedIvon(), Average(M.PVI(), start="sites"))
    row, noise = ba.Sketched(M.PVI(), "full"), ba.GaussianMechanism(clip=1.0, noise_multiplier=1.0)

    def run(kind, name="logistic", family="diagonal", **options):
        ba.run(ba.Sketched(M.PVI(), kind), team(name), prior(family, DIM[name]), **options)

    assert_refused(
        [
            *((lambda one=one: ba.Sketched(one, "full"), "method") for one in rows),
            *((lambda wrong=wrong: ba.Sketched(M.PVI(), wrong), "sites") for wrong in ("half", 3, None, Full)),
            *((lambda rank=rank: LowRank(rank), "rank") for rank in (0, -1, 1.5, "2")),
            *((lambda rank=rank: run(LowRank(rank)), "rank") for rank in (3, 9)),
            (lambda: Kronecker(1), "n_outputs"),
            (lambda: run(Kronecker(3)), "sites"),
            (lambda: run(Kronecker(2), "softmax"), "n_outputs"),
            *((lambda family=family: run(Full(), family=family), "prior") for family in ("full", "block", "fixed")),
            (lambda: ba.Accelerated(row), "method"),
            (lambda: run("full", expectation=ba.losses.Delta(1)), "expectation"),
            (lambda: run("full", privacy=noise), "privacy"),
        ]
    )
    one = ba.run(row, [ba.losses.Logistic([[1.0], [2.0]], [0, 1])] * 2, DIAGONAL(np.zeros(1), 1.0))
    assert one.status is ba.Status.CONVERGED  # d = 1: a sketch of no numbers
