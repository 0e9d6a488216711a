"""Noise on what a site sends: it is calibrated, its promise is the accountant's, and nothing goes around it."""

import math
import sys

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np.clients import ClientStatus, VariationalNewton
from bayesadmm_np.families.precision import DensePrecision
from bayesadmm_np.federation import Coordinator, GLMData, GLMTask, Message, MessageError, Site
from bayesadmm_np.splitting import privacy as module
from bayesadmm_np.splitting import team as teams
from bayesadmm_np.splitting.average import as_step
from bayesadmm_np.splitting.messages import Broadcast
from bayesadmm_np.splitting.privacy import FLOOR, fresh_normals
from bayesadmm_np.splitting.step import Own
from oracles.problems import EPS, PRIORS, assert_close, prior, same_bits, team
from oracles.refusals import assert_refused

M = ba.methods
Mechanism = ba.GaussianMechanism
SIZES = (6, 9, 7)


def member(family, d=4, seed=3):
    """A member of a run: not the prior, whose precision may lie outside the isotropic family."""
    return prior(family, d, seed).start()


def normals(q, seed=0):
    return np.random.default_rng(seed).standard_normal(q.natural.size)


# --- Coordinates


@pytest.mark.parametrize("family", PRIORS)
def test_unwhiten_inverts_whiten(family):
    q = member(family)
    u = normals(q)
    # both ways go through L and L⁻¹, whose condition is below 10 here, and through d = 4 sums: 1e3 ε leaves a margin
    assert_close(q.whiten(q.unwhiten(u)), u, 1e3 * EPS)
    assert q.unwhiten(u).shapes == q.natural.shapes


def test_the_check_of_the_inverse_can_fail(monkeypatch):
    """Without the √2 of the diagonal, coordinates are not those of `whiten`, and noise would not be isotropic."""
    q, right = member("full"), DensePrecision.unwhiten

    def wrong(self, whitened, low):
        i, j = np.triu_indices(self.dim)
        return right(self, whitened * np.where(i == j, np.sqrt(0.5), 1.0), low)

    monkeypatch.setattr(DensePrecision, "unwhiten", wrong)
    with pytest.raises(AssertionError):
        assert_close(q.whiten(q.unwhiten(normals(q))), normals(q), 1e-3)


def relative_eigenvalues(change, q):
    """Eigenvalues of S⁻¹δ_S, by a route of its own."""
    d = q.dim
    S = np.linalg.solve(q.covariance_matrix, np.eye(d))
    parts = change.parts[1:]
    if parts[0].ndim == 1:
        dense = np.diag(parts[0])
    else:
        dense, start = np.zeros((d, d)), 0
        for part in parts:
            dense[start : start + len(part), start : start + len(part)] = part
            start += len(part)
    return np.sort(np.linalg.eigvals(np.linalg.solve(S, dense)).real)


@pytest.mark.parametrize("family", ["full", "diagonal", "block"])
def test_the_bound_raises_small_eigenvalues_and_leaves_the_others(family):
    q = member(family)
    u = 2.0 * normals(q)
    free, bounded = (relative_eigenvalues(q.unwhiten(u, low), q) for low in (-np.inf, -0.3))
    assert free[0] < -0.5, "the bound must have something to do"
    # a projection onto a spectral interval moves eigenvalues to its end; sums of d² terms and two solves: 1e4 ε
    assert_close(bounded, np.maximum(free, -0.3), 1e4 * EPS)
    assert same_bits(q.unwhiten(u, free[0] - 0.1), q.unwhiten(u)), "an idle bound changes nothing"


# --- Clipping and noise


def test_clipping_keeps_direction_and_what_is_short():
    u = np.array([3.0, 4.0])
    assert Mechanism(5.0, 1.0).clipped(u) is not None
    np.testing.assert_array_equal(Mechanism(6.0, 1.0).clipped(u), u)
    np.testing.assert_allclose(Mechanism(1.0, 1.0).clipped(u), u / 5.0, rtol=2 * EPS)
    for lost in ([np.nan, 1.0], [np.inf, 0.0], [1e200, 1e200]):
        np.testing.assert_array_equal(Mechanism(1.0, 1.0).clipped(np.array(lost)), [0.0, 0.0])
    np.testing.assert_array_equal(Mechanism(1.0, 1.0).clipped(np.zeros(2)), [0.0, 0.0])


def draws(mechanism, q, natural, count, seed):
    """Whitened answers λ_k − λ_g, shape (count, size)."""
    rng = np.random.default_rng(seed)
    sent = (mechanism.noised(q, natural, rng.standard_normal(q.natural.size)) for _ in range(count))
    return np.array([q.whiten(natural - q.natural) for natural in sent])


def assert_white(sample, scale):
    """Mean 0 and covariance scale² I; 5 standard errors, which 14 + 14 numbers pass but once in 6e4 seeds."""
    n = len(sample)
    white = sample / scale
    assert np.abs(white.mean(axis=0)).max() <= 5 / np.sqrt(n)
    covariance = white.T @ white / n - np.eye(sample.shape[1])
    assert np.abs(np.diag(covariance)).max() <= 5 * np.sqrt(2 / n)
    assert np.abs(covariance - np.diag(np.diag(covariance))).max() <= 5 / np.sqrt(n)


@pytest.mark.parametrize("family", PRIORS)
def test_noise_is_isotropic_with_the_stated_scale(family):
    q = member(family, 2)
    # ‖noise‖ = 2Cz‖ε‖ stays below C for ‖ε‖ < 10 in 5 dimensions at most: neither the ball nor the floor is met
    mechanism = Mechanism(clip=0.3, noise_multiplier=0.05)
    sample = draws(mechanism, q, q.natural, 2000, seed=1)
    assert np.linalg.norm(sample, axis=1).max() < mechanism.clip
    assert_white(sample, mechanism.scale)
    with pytest.raises(AssertionError):  # the twin: sensitivity C
        assert_white(sample, mechanism.scale / 2)


def test_answers_lie_where_clipped_updates_lie():
    """The second clipping is the projection onto a ball that holds the clipped update: it never leads away from it."""
    q = member("full")
    mechanism = Mechanism(clip=0.3, noise_multiplier=2.0)  # below (1 − ½)/√2 the floor is idle
    truth = mechanism.clipped(normals(q, 7))
    sample = draws(mechanism, q, q.natural + q.unwhiten(truth), 50, seed=2)
    assert np.linalg.norm(sample, axis=1).max() <= mechanism.clip * (1 + 1e3 * EPS)
    rng = np.random.default_rng(2)
    for answer in sample:
        raw = truth + mechanism.scale * rng.standard_normal(q.natural.size)
        assert np.linalg.norm(answer - truth) <= np.linalg.norm(raw - truth)


def workers(clients, start, mechanism=None, row=None, solver=None):
    return teams.assemble(
        as_step(row or M.PVI(1 / len(clients))), clients, start, None, solver, 1e-6, mechanism
    ).workers


def reply_of(worker, q, noise=None):
    zero = q.natural.zeros()
    return worker.answer(Broadcast(1, q.natural), q, Own(q.natural, zero), worker.expect(q), None, 0, 0, noise)


FAR = ba.losses.LeastSquares([[1.0]], [1e6]), ba.losses.LeastSquares([[1.0]], [-1e6])
"""Two data sets of one site that lie as far apart as clipped updates can."""


def test_the_sensitivity_is_reached_and_not_passed():
    start = ba.families.FixedPrecisionGaussian(np.zeros(1), 2.0)
    mechanism = Mechanism(clip=0.7, noise_multiplier=1.0)
    sent = [reply_of(worker, start.start(), np.zeros(1)).natural for worker in workers(FAR, start, mechanism)]
    distance = np.linalg.norm(start.whiten(sent[0] - sent[1]))
    assert distance == pytest.approx(mechanism.sensitivity, rel=1e3 * EPS)
    assert distance > 1.9 * mechanism.clip, "half the sensitivity is not enough"


def promise_is_kept(mechanism):
    """P(A ∈ E) <= e^ε P(B ∈ E) + δ for z = 1, ε = ½ and its δ, on an event where equality holds.

    Raw answers are N(C, (2C)²) and N(−C, (2C)²); after the second clipping E is "at the end C", which is raw >= C:
    P(A) = ½, P(B) = Φ(−1), and δ = ½ − e^½ Φ(−1), the analytic δ(½) at μ = 1. Slack: 4 standard errors.
    """
    start = ba.families.FixedPrecisionGaussian(np.zeros(1), 2.0)
    q, n, epsilon = start.start(), 6000, 0.5
    delta = 0.5 - math.exp(epsilon) * 0.5 * math.erfc(1 / math.sqrt(2))
    clean = [reply_of(worker, q).natural for worker in workers(FAR, start)]
    end = mechanism.clip * (1 - 1e-9)
    p, r = ((draws(mechanism, q, natural, n, seed) >= end).mean() for seed, natural in enumerate(clean))
    error = math.hypot(math.sqrt(p * (1 - p) / n), math.exp(epsilon) * math.sqrt(r * (1 - r) / n))
    return p <= math.exp(epsilon) * r + delta + 4 * error


class HalfTheNoise(Mechanism):
    """The twin that forgets that updates lie on both sides of zero."""

    @property
    def sensitivity(self):
        return self.clip


def test_the_promise_holds_at_the_extremes_and_its_twin_breaks_it():
    assert promise_is_kept(Mechanism(0.7, 1.0))
    assert not promise_is_kept(HalfTheNoise(0.7, 1.0))


def test_fresh_noise_is_normal_and_fresh():
    """Not seeded, by design: 6 standard errors fail once in 1e8 runs."""
    n = 20_000
    one, other = fresh_normals(n), fresh_normals(n)
    for moment, value, error in ((1, 0, 1), (2, 1, np.sqrt(2)), (4, 3, np.sqrt(96))):
        assert abs((one**moment).mean() - value) <= 6 * error / np.sqrt(n)
    assert abs(np.mean(one * other)) <= 6 / np.sqrt(n)


def test_fresh_noise_is_finite_at_the_ends_of_the_source(monkeypatch):
    for byte, bound in ((b"\x00", -8.3), (b"\xff", 8.3)):
        monkeypatch.setattr(module.secrets, "token_bytes", lambda count, byte=byte: byte * count)
        (number,) = fresh_normals(1)
        assert np.isfinite(number)
        assert abs(number - bound) < 0.2  # Φ⁻¹(2⁻⁵³) = −8.21


# --- The accountant


def analytic_delta(epsilon, mu):
    """Balle & Wang 2018, Thm. 8, with mpmath: δ(ε) of one Gaussian answer of multiplier 1/μ."""
    from mpmath import exp, mpf, ncdf

    epsilon, mu = mpf(epsilon), mpf(mu)
    return ncdf(mu / 2 - epsilon / mu) - exp(epsilon) * ncdf(-mu / 2 - epsilon / mu)


CASES = [(0.5, 1), (1.0, 5), (3.0, 40), (20.0, 7)]


@pytest.mark.parametrize(("z", "rounds"), CASES)
def test_epsilon_solves_the_closed_form(z, rounds):
    pytest.importorskip("dp_accounting", reason="needs the extra privacy")
    delta = 1e-5
    found = analytic_delta(Mechanism(1.0, z).epsilon(rounds, delta), np.sqrt(rounds) / z)
    # the accountant finds ε to 1e-12, and |dδ/dε| <= δ + e^ε Φ(…) < 1: relative to δ = 1e-5 that is 1e-7
    assert abs(float(found) / delta - 1) <= 1e-6
    single = analytic_delta(Mechanism(1.0, z).epsilon(1, delta), np.sqrt(rounds) / z)
    assert rounds == 1 or float(single) > 1.5 * delta, "the twin that forgets to compose"


def test_a_budget_is_met_and_used_up():
    pytest.importorskip("dp_accounting", reason="needs the extra privacy")
    mechanism = Mechanism.for_budget(epsilon=2.0, delta=1e-6, rounds=8, clip=0.5)
    assert mechanism.clip == 0.5
    assert mechanism.epsilon(8, 1e-6) == pytest.approx(2.0, rel=1e-6)
    assert mechanism.epsilon(9, 1e-6) > 2.0


def test_arguments_that_make_no_sense():
    pytest.importorskip("dp_accounting", reason="needs the extra privacy")
    assert_refused(
        [
            *((lambda clip=clip: Mechanism(clip, 1.0), "clip") for clip in (0.0, "1")),
            *((lambda z=z: Mechanism(1.0, z), "noise_multiplier") for z in (-1.0, float("nan"))),
            (lambda: Mechanism(1.0, 1.0).epsilon(0, 1e-5), "rounds"),
            *((lambda d=d: Mechanism(1.0, 1.0).epsilon(2, d), "delta") for d in (0.0, 1.0)),
            (lambda: Mechanism.for_budget(0.0, 1e-5, 2, 1.0), "epsilon"),
            (lambda: ba.run(M.PVI(), CLIENTS, prior("full", 3), privacy=1.0), "privacy"),
        ]
    )


def test_without_the_accountant_a_sentence_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ImportError, match=r"\.\[privacy\]"):
        Mechanism(1.0, 1.0).epsilon(1, 1e-5)


# --- Runs in one process

CLIENTS = team("logistic", sizes=SIZES)


def test_almost_no_noise_is_the_run_without():
    """A wide clip and noise of 2e-9 in Fisher length: three rounds of contractions leave it below 1e-7."""
    start = prior("full", 3)
    noised, plain = (
        ba.run(M.PVI(0.3), CLIENTS, start, rounds=3, privacy=mechanism, tol=1e-12)
        for mechanism in (Mechanism(1e3, 1e-12), None)
    )
    assert_close(noised.posterior.natural, plain.posterior.natural, 1e-7)
    assert not same_bits(noised.posterior.natural, plain.posterior.natural)


def test_clipping_alone_slows_and_does_not_move_the_fixed_point():
    """A site's dual rests only where its clipped update, hence its update, is zero."""
    start, pooled = prior("full", 3), ba.solve_pooled(CLIENTS, prior("full", 3)).posterior
    first, late = (
        ba.run(M.PVI(1 / 3), CLIENTS, start, rounds=rounds, privacy=Mechanism(0.1, 1e-14)).posterior
        for rounds in (3, 120)
    )
    # a linear rate below 0.85 once the clip is idle; the solver works to 1e-8
    assert first.fisher_norm(first.natural - pooled.natural) > 0.05
    assert late.fisher_norm(late.natural - pooled.natural) < 1e-6


def test_all_rounds_are_done_whatever_the_rows_say():
    start = prior("full", 3)
    result = ba.run(M.PVI(1 / 3), CLIENTS, start, rounds=30, privacy=Mechanism(1e3, 1e-14), tol=1e-3)
    assert result.rounds == 30
    assert result.status is ba.Status.ROUND_LIMIT
    assert "noise" in result.message
    assert ba.run(M.PVI(1 / 3), CLIENTS, start, rounds=30, tol=1e-3).rounds < 30


def test_an_objective_that_explodes_does_not_end_a_run():
    """Without privacy the objective is waited for; with it, what it is on the rows may not be seen from the length."""
    clients = [ba.losses.Poisson([[8.0], [-8.0]], [0.0, 0.0])]
    start = ba.families.FixedPrecisionGaussian(np.zeros(1), 1.0)
    result = ba.run(M.PVI(), clients, start, rounds=6, privacy=Mechanism(3.0, 5.0))
    assert result.rounds == 6
    assert result.objective.max() > 1e6 * max(1.0, result.objective[0])


def test_noise_is_a_function_of_seed_round_and_client():
    start = prior("full", 3)

    def sent(seed, rounds=1):
        return ba.run(M.PVI(1 / 3), [CLIENTS[0]] * 2, start, rounds, privacy=Mechanism(1.0, 1.0), seed=seed)

    first, again, other = sent(0), sent(0), sent(1)
    assert same_bits(first.posterior.natural, again.posterior.natural)
    assert not same_bits(first.posterior.natural, other.posterior.natural)
    # the same rows at two sites, and two rounds with next to no update: the noise is another each time
    assert not same_bits(first.state.naturals[0], first.state.naturals[1])


def test_a_resumed_run_equals_the_uninterrupted_one(tmp_path):
    start, path = prior("full", 3), tmp_path / "state.npz"
    options = {"privacy": Mechanism(1.0, 0.5), "seed": 5, "warm_start": True}
    whole = ba.run(M.PVI(1 / 3), CLIENTS, start, rounds=6, **options)
    ba.run(M.PVI(1 / 3), CLIENTS, start, rounds=3, checkpoint=path, **options)
    resumed = ba.run(M.PVI(1 / 3), CLIENTS, start, rounds=6, resume=path, **options)
    assert same_bits(whole.posterior.natural, resumed.posterior.natural)
    for changed in (None, Mechanism(1.0, 0.6)):
        with pytest.raises(ValueError, match="privacy"):
            ba.run(M.PVI(1 / 3), CLIENTS, start, rounds=6, resume=path, **{**options, "privacy": changed})


DOMAIN = {"damped PVI": M.PVI(1 / 3), "AMA": M.AMA(1 / 3), "FedLapCov": M.FedLapCov(1 / 3), "FedIvon": M.FedIvon()}


@pytest.mark.parametrize(("name", "row"), DOMAIN.items(), ids=DOMAIN)
def test_no_noise_drives_the_server_out_of_its_domain(name, row):
    start = prior("diagonal" if name == "FedIvon" else "full", 3)
    kept = []
    away = lambda number, n, rng: rng.random(n) < 0.7  # noqa: E731
    ba.run(
        row,
        CLIENTS,
        start,
        rounds=20,
        privacy=Mechanism(5.0, 20.0),
        participation=away,
        callback=lambda record, q: kept.append(q),
    )
    for before, after in zip([start, *kept], kept, strict=False):
        # S_g + c Σ_k (S_k − S_g) ⪰ (1 − cK(1 − f)) S_g; rounding is that of sums of four matrices and a solve, d = 3
        lowest = relative_eigenvalues(after.natural - before.natural, before)[0]
        assert lowest >= FLOOR - 1.0 - 1e3 * EPS * np.linalg.cond(before.covariance_matrix)


@pytest.mark.parametrize("twin", ["no floor", "large steps"])
def test_without_floor_or_with_large_steps_noise_would_do_so(twin, monkeypatch):
    if twin == "no floor":
        monkeypatch.setattr(module, "FLOOR", -np.inf)
    else:
        monkeypatch.setattr(Mechanism, "check", lambda *arguments: None)
    row = M.PVI(1 / 3 if twin == "no floor" else 1.0)
    with pytest.raises((ba.RunError, ValueError), match=r"domain|positive definite"):
        ba.run(row, CLIENTS, prior("full", 3), rounds=20, privacy=Mechanism(5.0, 20.0))


def test_runs_that_cannot_be_noised_are_refused_before_round_0():
    gamma, full, mechanism = ba.families.Gamma(2.0, 1.0), prior("full", 3), Mechanism(1.0, 1.0)
    rows = (ba.Accelerated(M.PVI(0.4)), M.BregmanADMM(), M.BLR(), M.BayesADMM(1 / 3), M.PVI(0.34))
    runs = [(row, CLIENTS, full) for row in rows]
    runs.append((M.PVI(), [ba.losses.LinearInStatistics(-gamma.natural)], gamma))
    assert_refused((lambda one=one: ba.run(*one, privacy=mechanism), "privacy") for one in runs)


def test_every_row_along_the_natural_parameter_can_be_noised_where_the_precision_is_fixed():
    for row in (M.ADMM(), M.FedAvg(), M.FedDyn(), M.BayesADMM(0.5)):
        assert ba.run(row, CLIENTS, prior("isotropic", 3), rounds=5, privacy=Mechanism(1.0, 3.0)).rounds == 5


# --- Nothing goes around the noise


def test_nothing_but_the_noised_answer_depends_on_the_rows():
    """Two data sets, of which one cannot be solved within the solver's steps: all else in the replies is equal."""
    start, mechanism = prior("full", 3), Mechanism(1.0, 1.0)
    q = start.start()
    solver = VariationalNewton(max_iter=1, tol=1e-12)
    clients = [CLIENTS[0], ba.losses.Logistic(1e4 * CLIENTS[1].X, CLIENTS[1].y)]
    statuses = [reply_of(worker, q).status for worker in workers(clients, start, solver=solver)]
    failed = [k for k, status in enumerate(statuses) if not status.is_usable]
    assert failed, "one solve must fail"
    noised = workers(clients, start, mechanism, solver=solver)
    replies = [reply_of(worker, q, normals(q)) for worker in noised]
    kept = [reply._replace(natural=None, site=None, gap=None) for reply in replies]
    assert kept[0] == kept[1]
    assert kept[0].status is ClientStatus.STEPS_DONE
    for reply in replies:
        step = M.PVI(1 / 2).dual_step
        assert same_bits(reply.site, step * (reply.natural - q.natural)), "the dual follows the noised answer"
    for k in failed:  # noise about the server
        assert same_bits(replies[k].natural, mechanism.noised(q, q.natural, normals(q)))
    assert_refused([(lambda: reply_of(noised[0], q), "noise")])  # which is never forgotten


# --- Rounds by messages

START = prior("full", 3)


def site(name, loss, rounds=3, **options):
    return Site(name, GLMData(loss), privacy=Mechanism(1.0, 1.0), privacy_rounds=rounds, **options)


def serve(sites, row=None, rounds=3, **options):
    return Coordinator.start(
        [one.hello() for one in sites], GLMTask(row or M.PVI(0.3), START, rounds=rounds, **options)
    )


def test_a_reply_holds_nothing_but_the_noised_answer():
    """The seed is in the terms of the run: noise from it could be subtracted, and so noise is drawn at the site."""
    broadcasts = serve([site("A", CLIENTS[0]), Site("B", GLMData(CLIENTS[1]))], tol=1e9).broadcast()
    rows = CLIENTS[0].rows(np.zeros(CLIENTS[0].dim))
    others = ba.losses.Logistic(rows.X[::-1] + 1.0, 1.0 - rows.target)  # as many rows: the number is in the hello
    one, other, again = (site("A", loss).step(broadcasts)[1] for loss in (CLIENTS[0], others, CLIENTS[0]))
    assert one.header == other.header
    assert one.header["value"] is None
    assert one.header["certificate"] is None
    assert set(one.arrays) == {"natural"}
    assert not np.array_equal(one.arrays["natural"], again.arrays["natural"])
    open_ = Site("A", GLMData(CLIENTS[0])).step(broadcasts)[1]
    assert open_.header["value"] is not None


def test_a_repeated_step_sends_the_same_bytes_again():
    """Two answers to one broadcast would be two draws: their mean has half the variance."""
    sites = [site("A", CLIENTS[0]), Site("B", GLMData(CLIENTS[1]))]
    server = serve(sites)
    for _ in range(3):
        broadcast = server.broadcast()
        replies = []
        for k, one in enumerate(sites):
            after, reply = one.step(broadcast)
            restored = one.restore(Message.from_bytes(after.save().to_bytes()))
            again, repeated = restored.step(broadcast)
            assert repeated.to_bytes() == reply.to_bytes()
            assert again.save().to_bytes() == after.save().to_bytes()
            sites[k] = again
            replies.append(reply)
        server = server.step(replies)
    assert server.state.round == 2


def test_a_whole_run_ends_with_all_rounds_and_no_certificate():
    sites = [site("A", CLIENTS[0]), Site("B", GLMData(CLIENTS[1])), site("C", CLIENTS[2])]
    server = serve(sites, M.PVI(1 / 3), tol=1e9)
    while server.outcome is None:
        sites, replies = zip(*(one.step(server.broadcast()) for one in sites), strict=True)
        server = server.step(replies)
    assert server.state.round == 3
    assert server.outcome.status is ba.Status.ROUND_LIMIT
    assert "noise" in server.outcome.message
    assert server.outcome.certificate is None
    assert np.isnan(server.state.history[-1].objective)
    final = server.broadcast()
    for one, factor in zip(sites, server.state.sites, strict=True):
        assert same_bits(one.step(final)[0].factor, factor)


def test_a_site_answers_no_run_that_it_did_not_grant():
    """A longer one, a later round, a method whose noise is not accounted for, or a state with other privacy."""
    private, open_ = site("A", CLIENTS[0]), Site("A", GLMData(CLIENTS[0]))
    honest = serve([private]).broadcast()
    late = Message("broadcast", {**honest.header, "round": 4}, honest.arrays)
    for broadcast, words in ((serve([private], rounds=4).broadcast(), "rounds"), (late, "at most 3")):
        with pytest.raises(MessageError, match=words):
            private.step(broadcast)
    with pytest.raises(ValueError, match="indefinite"):
        private.step(serve([private], M.BayesADMM()).broadcast())
    with pytest.raises(MessageError, match="privacy"):
        open_.restore(private.step(honest)[0].save())
    for options in ({"privacy": Mechanism(1.0, 1.0)}, {"privacy_rounds": 3}):
        with pytest.raises(ValueError, match="privacy"):
            Site("A", GLMData(CLIENTS[0]), **options)


def test_on_the_command_line(tmp_path, monkeypatch, capsys):
    pytest.importorskip("dp_accounting", reason="needs the extra privacy")
    cli = pytest.importorskip("bayesadmm_np.cli", reason="needs the extra cli")
    rows = np.column_stack([np.linspace(-1, 1, 30), np.arange(30) % 2])
    np.savetxt(tmp_path / "a.csv", rows, delimiter=",", header="dose,died", comments="")

    def bayesadmm(*arguments):
        monkeypatch.setattr(sys, "argv", ["bayesadmm", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        out, err = capsys.readouterr()
        return stopped.value.code or 0, out + err

    start = ("site", "init", tmp_path / "a", "--data", tmp_path / "a.csv", "--target", "died", "--name", "A")
    start += ("--loss", "logistic", "--privacy-clip", "1")
    code, said = bayesadmm(*start)
    assert (code, "must be given together" in said) == (2, True)
    code, said = bayesadmm(*start, "--privacy-noise", "2", "--privacy-rounds", "5")
    assert code == 0
    assert f"ε = {Mechanism(1.0, 2.0).epsilon(5, 1e-5):.3g} at δ = 1e-05 for at most 5 answers" in said
    hello, run = tmp_path / "a" / "hello.npz", tmp_path / "run"
    prior = ("--prior-precision", "1", "--penalize-intercept")
    assert bayesadmm("server", "init", run, hello, "--rounds", "6", "--method", "PVI", *prior)[0] == 0
    code, said = bayesadmm("site", "step", tmp_path / "a", run / "broadcast-0001.npz")
    assert (code, "at most 5, the privacy granted here, got 6" in said) == (3, True)
