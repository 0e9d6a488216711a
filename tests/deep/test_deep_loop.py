"""The loop for networks: against the core's exact solves, the papers' listings, and batched against one by one."""

from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import ClassVar

import numpy as np
import pytest

import bayesadmm_np as ba

torch = pytest.importorskip("torch", minversion="2.4", reason="the deep-learning path needs the extra `torch`")
from bayesadmm_np._archive import Archive, ArchiveError  # noqa: E402
from bayesadmm_np.splitting.methods import DualRule, Geometric  # noqa: E402
from bayesadmm_np.torch import (  # noqa: E402
    IVON,
    IVONADMM,
    IVONPVI,
    MLP,
    AdamSteps,
    FedLapFunc,
    IVONSteps,
    Rows,
    SGDSteps,
    curvature,
    merge,
    run,
    score,
    steps,
)
from bayesadmm_np.torch.certificate import sampled_length  # noqa: E402
from bayesadmm_np.torch.curvature import diagonal_ggn  # noqa: E402
from bayesadmm_np.torch.network import Network  # noqa: E402
from bayesadmm_np.torch.problem import LocalProblem  # noqa: E402
from bayesadmm_np.torch.randomness import noise_key, normals  # noqa: E402
from bayesadmm_np.torch.round import Replies, gathered  # noqa: E402
from bayesadmm_np.torch.steps import local_work  # noqa: E402
from bayesadmm_np.torch.team import assemble  # noqa: E402
from oracles.refusals import assert_refused  # noqa: E402
from oracles.small_networks import (  # noqa: E402
    DELTA,
    SIZES,
    curvature_by_autograd,
    func,
    network,
    problem,
    states_of,
    with_statistics,
)

pytestmark = pytest.mark.usefixtures("one_thread")
methods = ba.methods
CPU = torch.device("cpu")


def with_gelu():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.GELU(), torch.nn.Linear(5, 3)).double()


IVON_SHORT = IVONSteps(epochs=3, batch_size=6, lr=0.1, hess_init=0.1, beta2=0.9)
ADAM_SHORT = AdamSteps(epochs=3, batch_size=6, lr=0.01)
ROWS = {
    "IVON-ADMM": (IVONADMM(0.7, 0.3), IVON_SHORT),
    "from the server": (IVONADMM(0.7, 0.3), replace(IVON_SHORT, hess_start="server", ess=30.0)),
    "two samples": (
        methods.BayesADMM(),
        IVONSteps(epochs=2, batch_size=6, lr=0.1, samples=2, beta2=0.9, clip_radius=1.0),
    ),
    "FedDyn": (methods.FedDyn(0.5), ADAM_SHORT),
    "FedLapCov": (methods.FedLapCov(0.5), ADAM_SHORT),
}


# ----------------------------------------------------------------------------------------------------
# Local work
# ----------------------------------------------------------------------------------------------------


def local_problem(rows, parameters, seed=3):
    source = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=source, dtype=torch.float64)

    return LocalProblem(
        start=draw(parameters),
        centre=draw(1, parameters),
        precision=draw(1, parameters).exp(),
        linear=draw(1, parameters),
        curvature=0.1 * draw(1, parameters).abs(),
        rho=torch.full((1, 1), 0.7, dtype=torch.float64),
        scale=torch.full((1, 1), 0.5 / len(rows), dtype=torch.float64),
    )


def set_parameters(model, flat):
    torch.nn.utils.vector_to_parameters(flat.clone(), model.parameters())
    return model


def test_local_work_is_the_optimiser_under_appendix_d4(monkeypatch):
    """λ = N_k/(ρτ), v = (τ/N_k)v_k, u = (τ/N_k)u_k, prior N(m_g, 1/s_g): 12 full-batch steps, float64 rounding."""
    key, steps = noise_key(7), iter(range(12))

    def normal_(tensor, mean=0.0, std=1.0, generator=None):
        return normals(tensor, key, next(steps)).mul_(std).add_(mean)

    (rows,) = problem((23,))
    model = network()
    net = Network(model, CPU)
    task = local_problem(rows, len(net.start))
    solver = IVONSteps(epochs=12, batch_size=23, beta2=0.9, lr=0.05, hess_init=0.1)
    trained = local_work(net, [rows], task, solver, [7], {})

    set_parameters(model, task.start)
    optimiser = IVON(
        model.parameters(),
        lr=0.05,
        ess=23 / (0.7 * 0.5),
        hess_init=0.1,
        beta2=0.9,
        prior_mean=task.centre[0],
        prior_precision=task.precision[0],
        linear=0.5 / 23 * task.linear[0],
        curvature=0.5 / 23 * task.curvature[0],
    )
    monkeypatch.setattr(torch.Tensor, "normal_", normal_)
    for _ in range(12):
        with optimiser.sampled_params(train=True):
            torch.nn.functional.cross_entropy(model(rows.X), rows.y).backward()
        optimiser.step()
    mean, precision = optimiser.posterior()
    assert (trained.mean[0] - mean).abs().max() < 1e-12
    assert (trained.precision[0] / precision - 1).abs().max() < 1e-12


@pytest.mark.parametrize("squared", [True, False])
def test_local_work_of_a_point_method_is_adam_on_the_whole_objective(squared):
    """ℓ_k/τ + vᵀθ − ½θᵀVθ + ½ρ‖θ − m_g‖²_S, over N_k/τ, to torch's Adam; the twin's proximal term is not squared."""
    (rows,) = problem((23,))
    model = network()
    net = Network(model, CPU)
    task = local_problem(rows, len(net.start))
    solver = AdamSteps(epochs=12, batch_size=23, lr=0.01)
    trained = local_work(net, [rows], task, solver, [7], {})

    set_parameters(model, task.start)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(12):
        theta = torch.cat([p.reshape(-1) for p in model.parameters()])
        away = (task.precision[0] * (theta - task.centre[0]) ** 2).sum()
        anchor = 0.5 * 0.7 * (away if squared else away.sqrt())
        site = task.linear[0] @ theta - 0.5 * (task.curvature[0] * theta**2).sum()
        loss = torch.nn.functional.cross_entropy(model(rows.X), rows.y, reduction="sum") / 0.5 + site + anchor
        optimiser.zero_grad()
        (0.5 / 23 * loss).backward()
        optimiser.step()
    expected = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    assert ((trained.mean[0] - expected).abs().max() < 1e-11) == squared


@pytest.mark.parametrize("rescale_lr", [True, False])
def test_a_client_of_one_row_does_not_overshoot_a_precise_server(rescale_lr):
    """δ = s_g/λ is some 4e3 here, so that a rate of 0.3(h₀ + δ) would be 1000 Newton steps; one ends at the prior.

    The twin, that rate by hand, overshoots at every step.
    """
    (rows,) = problem((1,))
    net = Network(network(), CPU)
    task = local_problem(rows, len(net.start))
    task = replace(task, precision=torch.full((1, len(net.start)), 1e4, dtype=torch.float64), curvature=0 * task.rho)
    rate = 0.3 if rescale_lr else 0.3 * 5000.0
    solver = IVONSteps(epochs=5, batch_size=8, lr=rate, hess_init=0.1, beta2=0.9, rescale_lr=rescale_lr)
    trained = local_work(net, [rows], task, solver, [7], {})
    # gradients and v are of order 1 and the anchor's curvature is 0.7 · 1e4
    assert ((trained.mean - task.centre).abs().max() < 1e-2) == rescale_lr


# ----------------------------------------------------------------------------------------------------
# The core's exact solves, for a linear model
# ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Relaxed(DualRule):
    """A rule of one's own, η_k ← ¾η_k + ¼(η_k + γ_k(λ_k − λ_g)) + ½γ_k(λ_k − λ_g)."""

    def __call__(self, site, own, served, step):
        return 0.75 * site + 0.25 * (site + step * (own - served)) + 0.5 * step * (own - served)


POINT_ROWS = {
    "FedProx": (methods.FedProx(0.8), ba.families.IsotropicGaussian),
    "FedAvg": (methods.FedAvg(), ba.families.IsotropicGaussian),
    "FedDyn": (methods.FedDyn(0.8), ba.families.IsotropicGaussian),
    "ADMM": (methods.ADMM(0.8), ba.families.IsotropicGaussian),
    "FedLap": (methods.FedLap(0.4), ba.families.FixedPrecisionGaussian),
    "FedLapCov": (methods.FedLapCov(0.4), ba.families.DiagonalGaussian),
    "scheduled FedLapCov": (
        replace(methods.FedLapCov(0.4), schedule=Geometric(gamma=0.5)),
        ba.families.DiagonalGaussian,
    ),
    "a rule of one's own": (replace(methods.FedLap(0.4), dual_rule=Relaxed()), ba.families.FixedPrecisionGaussian),
    "FedLapCov by rows": (methods.FedLapCov("rows"), ba.families.DiagonalGaussian),
}


@pytest.mark.parametrize(("method", "family"), POINT_ROWS.values(), ids=POINT_ROWS.keys())
def test_three_rounds_are_the_cores(method, family):
    """A linear model trained to convergence by full-batch Adam goes where the core's exact solver goes.

    Adam's last steps are far below 1e-5 here, and three rounds do not enlarge an error tenfold.
    """
    found, losses, prior = linear_problem(3, method, family, AdamSteps(epochs=600, batch_size=64, lr=0.02))
    exact = ba.run(method, losses, prior, rounds=3, raise_on_failure=False)
    assert np.abs(found.mean.numpy() - exact.posterior.mean).max() < 1e-4
    if method.dual_step:
        sites = np.stack([site.linear for site in exact.sites])
        assert np.abs(found.state.site_linear.numpy() - sites).max() < 1e-3
        assert np.abs(sites).max() > 0.1  # and the comparison is one of something
    if family is ba.families.DiagonalGaussian:
        assert np.abs(found.precision.numpy() / exact.posterior.precision - 1).max() < 1e-4
    # the certificate's edges, where both sides record them
    core = exact.history[-1].edges
    assert found.history[-1].edges.broadcast == pytest.approx(core.broadcast, rel=1e-2, abs=1e-4)
    assert found.history[-1].edges.gather == pytest.approx(core.gather, rel=1e-2, abs=1e-4)


def linear_problem(rounds, method, family, solver):
    clients = problem()
    model = torch.nn.Linear(4, 3, bias=False, dtype=torch.float64)
    torch.nn.init.zeros_(model.weight)
    losses = [ba.losses.Softmax(rows.X.numpy(), rows.y.numpy(), n_classes=3) for rows in clients]
    return run(method, clients, model, 1.5, rounds=rounds, solver=solver), losses, family(np.zeros(12), 1.5)


@pytest.mark.parametrize("name", ["FedProx", "FedDyn", "FedLap", "FedLapCov"])
def test_the_certificate_of_a_point_method_is_the_cores(name):
    """The same formulas without sampling, for the state that the network's loop ended in: rounding only."""
    method, family = POINT_ROWS[name]
    found, losses, prior = linear_problem(2, method, family, ADAM_SHORT)
    certificate = found.certificate()
    state = found.state
    q_g = prior.with_natural(natural_of(family, state.precision * state.mean, state.precision))
    rule = method.expectation or ba.losses.Delta()
    at_server = [loss.expect(q_g, rule) for loss in losses]
    residual = q_g.natural * prior.prior_weight - prior.natural
    for expected in at_server:
        residual = residual + expected.natural_gradient
    assert certificate.pooled == pytest.approx(q_g.fisher_norm(residual), rel=1e-9)
    gaps = []
    for k, loss in enumerate(losses):
        own = state.client_precision[k] if family is ba.families.DiagonalGaussian else state.precision
        q_k = prior.with_natural(natural_of(family, state.client_linear[k], own))
        gap = loss.expect(q_k, rule).natural_gradient
        if method.dual_step:
            u = state.site_precision[k] if len(state.site_precision) > 1 else state.site_precision[0]
            gap = gap + natural_of(family, state.site_linear[k], u)
        if method.prior_at == "clients":
            share = len(problem()[k]) / 58
            gap = gap + (q_k.natural * prior.prior_weight - prior.natural) * share
        gaps.append(q_k.fisher_norm(gap))
    assert certificate.edges.natural_gradient == pytest.approx(max(gaps), rel=1e-9)
    assert max(gaps) > 1e-3  # something is compared
    assert certificate.pairs == 0
    exact = sum(expected.value for expected in at_server) + q_g.kl(prior)
    # exact at a point; one pair of samples where there is a precision
    tolerance = 0.3 if family is ba.families.DiagonalGaussian else 1e-9
    assert found.objective[-1] == pytest.approx(exact, rel=tolerance)
    assert found.objective.shape == (3,)


def natural_of(family, linear, precision):
    like = family(np.zeros(len(linear)), 1.0).natural
    parts = [linear.numpy(), np.broadcast_to(precision.numpy(), linear.shape)]
    return type(like)(*parts[: len(like.parts)])


def test_the_certificate_of_ivon_is_the_cores_within_its_standard_error():
    """E_q[∇ℓ] and E_q[∇²ℓ] by the core's quadrature; 4 standard errors, which a wrong sign in the pair exceeds."""
    found, losses, prior = linear_problem(2, IVONADMM(0.7, 0.7), ba.families.DiagonalGaussian, IVON_SHORT)
    rule = ba.losses.QuasiMonteCarlo(1024)
    state = found.state
    q_g = ba.families.DiagonalGaussian(state.mean.numpy(), state.precision.numpy())
    residual = q_g.natural - prior.natural
    gaps, value = [], q_g.kl(prior)
    for k, loss in enumerate(losses):
        expected = loss.expect(q_g, rule)
        residual, value = residual + expected.natural_gradient, value + expected.value
        s = state.client_precision[k]
        q_k = ba.families.DiagonalGaussian((state.client_linear[k] / s).numpy(), s.numpy())
        site = type(prior.natural)(state.site_linear[k].numpy(), state.site_precision[k].numpy())
        gaps.append(q_k.fisher_norm(site + loss.expect(q_k, rule).natural_gradient))
    certificate = found.certificate(pairs=200)
    assert abs(certificate.pooled - q_g.fisher_norm(residual)) < 4 * certificate.pooled_error
    natural = certificate.edges.natural_gradient
    assert abs(natural - max(gaps)) < 4 * certificate.natural_gradient_error
    assert certificate.pooled_error < 0.1 * certificate.pooled  # and these are not idle
    assert certificate.natural_gradient_error < 0.1 * natural
    # the twin: curvature with the wrong sign
    assert abs(certificate.pooled - wrong_pooled(residual, q_g, prior)) > 4 * certificate.pooled_error
    # one pair of samples, on the scale of the whole objective
    assert found.objective[-1] == pytest.approx(value, rel=0.3)
    assert "standard errors from 200 pairs" in str(certificate)


def wrong_pooled(residual, q_g, prior):
    linear, precision = residual.parts
    flipped = 2.0 * (q_g.precision - prior.precision) - precision
    return q_g.fisher_norm(type(residual)(linear + (flipped - precision) * q_g.mean, flipped))


def test_lengths_are_free_of_the_noise_of_their_samples():
    """Noise of length 1 around a residual of length 0.1: the plain average of 8 samples would have 0.37."""
    rng = np.random.default_rng(0)
    size = 4000
    true = torch.full((size,), 0.1, dtype=torch.float64)
    one = torch.ones(1, dtype=torch.float64)
    lengths = []
    for _ in range(20):
        noisy = [(true + torch.tensor(rng.normal(size=size)), one) for _ in range(8)]
        lengths.append(sampled_length(noisy, one))
    found = np.array(lengths)
    # sd of the squared length √(2/(8·7·4000)) = 0.003, plus 2·0.1/√(8·4000) = 0.001: 0.015 of the length
    assert abs(found[:, 0].mean() - 0.1) < 4 * 0.016 / np.sqrt(20)
    assert 0.008 < found[:, 1].mean() < 0.03
    mean = torch.stack([a for a, _ in noisy]).mean(dim=0)
    assert mean.square().mean().sqrt() > 0.3  # the twin


def test_the_history_leaves_the_natural_gradients_to_the_certificate():
    result = run(IVONADMM(), problem(), network(), rounds=2, solver=IVON_SHORT)
    recorded, certified = result.history[-1].edges, result.certificate().edges
    assert recorded.natural_gradient == np.inf
    assert np.isfinite(certified.natural_gradient)
    assert (recorded.broadcast, recorded.gather) == (certified.broadcast, certified.gather)
    assert recorded.dual_map < 1e-10
    half = run(IVONADMM(), problem(), network(), rounds=1, solver=IVON_SHORT, participation=0.5)
    assert half.certificate().edges.natural_gradient == np.inf  # two clients have never been asked
    none = run(IVONADMM(), problem(), network(), rounds=0, solver=IVON_SHORT)
    with pytest.raises(ValueError, match="needs a completed round"):
        none.certificate()
    assert_refused([(lambda: result.certificate(pairs=2), "pairs"), (lambda: result.certificate(tol=0.0), "tol")])


# ----------------------------------------------------------------------------------------------------
# Algorithm 1
# ----------------------------------------------------------------------------------------------------


def test_rounds_are_those_of_algorithm_1():
    rho, gamma, delta = 0.7, 0.3, DELTA
    states = states_of(IVONADMM(rho, gamma), 3, IVON_SHORT)
    alpha = 1 / (1 + rho * 4)
    for before, after in pairwise(states):
        s_k = after.client_precision
        s_m = after.client_linear
        v = before.site_linear + gamma * (s_m - before.precision * before.mean)
        u = before.site_precision + gamma * (s_k - before.precision)
        s_g = (1 - alpha) * s_k.mean(dim=0) + alpha * (delta + u.sum(dim=0))
        m_g = ((1 - alpha) * s_m.mean(dim=0) + alpha * v.sum(dim=0)) / s_g
        for found, expected in ((after.site_linear, v), (after.site_precision, u), (after.precision, s_g)):
            assert (found - expected).abs().max() < 1e-11 * expected.abs().max()
        assert (after.mean - m_g).abs().max() < 1e-11
        # the twin: means averaged without their precisions
        assert (after.mean - (s_m / s_k).mean(dim=0)).abs().max() > 1e-4


SHARES = torch.tensor(SIZES, dtype=torch.float64)[:, None] / sum(SIZES)


BY_ROWS = {
    "IVON-PVI": (IVONPVI("rows"), {"solver": IVON_SHORT}),
    "FedLap": (methods.FedLap("rows"), {}),
    "FedLapCov": (methods.FedLapCov("rows"), {}),
    "FedLap-Func": (func("rows"), {}),
}


@pytest.mark.parametrize(("method", "options"), BY_ROWS.values(), ids=BY_ROWS)
def test_every_dual_moves_by_its_own_step(method, options):
    """η_k − η_k' = γ_k(λ_k − λ_g) in every round, to rounding; equal steps of the same mean are not these."""
    assert method.server_alpha(len(SIZES)) == 1.0  # the server is the prior and the sites, and nothing else
    states = states_of(method, 3, **options)
    moves = {}
    for before, after in pairwise(states):
        for part, served in (("linear", before.precision * before.mean), ("precision", before.precision)):
            site, last = getattr(after, f"site_{part}"), getattr(before, f"site_{part}")
            if len(site) > 1:  # the precision may be fixed
                moves[part] = site - last, getattr(after, f"client_{part}") - served
                moved, pull = moves[part]
                # numbers of some 1e2 in double precision
                assert (moved - SHARES * pull).abs().max() < 1e-11
                assert (moved - pull / len(SIZES)).abs().max() > 1e-3  # the twin
    assert set(moves) == ({"linear"} if len(states[0].site_precision) == 1 else {"linear", "precision"})


@pytest.mark.parametrize(
    ("method", "solver"),
    [ROWS["IVON-ADMM"], ROWS["FedDyn"], (FedLapFunc(server_steps=5), ADAM_SHORT)],
    ids=["IVON-ADMM", "FedDyn", "FedLap-Func"],
)
def test_a_round_without_anybody_leaves_everything_as_it_was(method, solver):

    def go(away):
        present = lambda number, clients, rng: np.full(clients, number not in away)  # noqa: E731
        return states_of(method, 3, solver, participation=present)

    first, second, third = go(away={2})
    assert second.history[1].present == ()
    assert second.history[1].bytes_down == second.history[1].bytes_up == 0
    for name in ("mean", "precision", "site_linear", "site_precision", "client_linear"):
        assert torch.equal(getattr(second, name), getattr(first, name))
    assert not torch.equal(third.mean, second.mean)
    before, *_ = go(away={1})
    assert torch.equal(before.mean, network_start())
    nobody = lambda number, clients, rng: np.zeros(clients, dtype=bool)  # noqa: E731
    result = run(method, problem(), network(), rounds=2, solver=solver, participation=nobody)
    assert result.status is ba.Status.ROUND_LIMIT
    assert result.certificate().edges.natural_gradient == np.inf


def network_start():
    return Network(network(), CPU).start


def test_a_run_ends_when_every_client_has_failed_and_not_when_one_is_drawn_alone():
    clients = problem(dtype=torch.float32)
    broken = Rows(torch.full((5, 4), 3e38), torch.tensor([0, 1, 2, 0, 1]))
    model = torch.nn.Linear(4, 3)
    torch.nn.init.constant_(model.weight, 5.0)
    solver = AdamSteps(epochs=1, batch_size=8)

    def go(rows, rounds=4):
        turns = lambda number, clients, rng: np.arange(clients) == number % clients  # noqa: E731
        return run(methods.FedAvg(), rows, model, rounds=rounds, solver=solver, participation=turns)

    with pytest.warns(UserWarning, match=r"clients \[1\] gave no finite answer"):
        result = go([clients[0], broken])
    assert result.status is ba.Status.ROUND_LIMIT
    assert [record.dropped for record in result.history] == [(1,), (), (1,), ()]
    with pytest.warns(UserWarning, match="left out"):
        result = go([broken, broken, broken])
    assert (result.status, result.failure.round) == (ba.Status.NOT_FINITE, 3)
    assert result.rounds == 2


@pytest.mark.parametrize(
    "row", [methods.FedLap(0.3), methods.FedLapCov(0.3), methods.PVI(0.3), methods.BayesADMM(0.5), methods.ADMM(2.0)]
)
def test_where_no_client_moves_the_server_stays(row):
    """λ_g = λ_0 + Ση_k at the start, though a network's parameters are not the prior's mean."""
    model = network()
    team = assemble(row, problem((23, 10, 17)), model, 0.7, 1.0, None, False, CPU)  # 1/3 is no float of any size

    def after_nothing(state):
        here = tuple(range(team.n_clients))
        return gathered(team, state, Replies(here, state.client_linear, state.client_precision, {})).mean

    start = team.start()
    assert start.mean.abs().max() > 0.1
    assert (after_nothing(start) - start.mean).abs().max() < 1e-15  # sums of three shares
    without = replace(start, site_linear=torch.zeros_like(start.site_linear))
    lost = 1.0 - (after_nothing(without) / start.mean).median().item()  # with α = 1 all of it
    alpha = row.server_alpha(team.n_clients)
    weight = alpha * team.prior_weight / (1.0 - alpha + alpha * team.prior_weight)
    assert lost == pytest.approx(weight, abs=1e-12)
    assert weight > 0.05


WEIGHTS = (2.0, 1.0, 3.0, 0.5, 1.0)


def weighted(clients, scale=1.0):
    return [Rows(r.X, r.y, scale * torch.tensor(WEIGHTS, dtype=r.X.dtype).repeat(len(r))[: len(r)]) for r in clients]


def repeated(clients, times=2):
    """Every row as often as twice its weight says, which is a whole number."""
    counts = [(times * rows.weights).long() for rows in weighted(clients)]
    return [Rows(r.X.repeat_interleave(c, 0), r.y.repeat_interleave(c)) for r, c in zip(clients, counts, strict=True)]


def same(found, expected, tolerance=1e-9):
    for name in ("mean", "precision", "site_linear", "client_linear"):
        a, b = getattr(found.state, name), getattr(expected.state, name)
        assert (a - b).abs().max() < tolerance * (1 + b.abs().max())
    assert found.objective == pytest.approx(expected.objective, rel=1e-9)


@pytest.mark.parametrize("make", [network, with_gelu], ids=["by hand", "by autograd"])
@pytest.mark.parametrize("row", ["IVON-ADMM", "FedDyn", "FedLapCov", "FedLap-Func"])
def test_a_row_of_weight_two_is_two_rows(row, make):
    """In batches of all rows; and weights of half the size are a temperature of twice it. Some 30 steps of float64."""
    method, solver = {**ROWS, "FedLap-Func": (FedLapFunc(server_steps=20, points_per_class=99), ADAM_SHORT)}[row]
    solver = replace(solver, batch_size=500, epochs=10)

    def go(clients, temperature, solver=solver, **options):
        return run(method, clients, make(), rounds=2, solver=solver, temperature=temperature, **options)

    found, expected = go(weighted(problem()), 1.0), go(repeated(problem()), 2.0)
    if row != "FedLap-Func":  # which shares rows, and so each of the repeated ones
        same(found, expected)
        assert found.certificate().pooled == pytest.approx(expected.certificate().pooled, rel=1e-6)
    alike = replace(solver, batch_size=6)
    for batched in (True, False):
        small = go(weighted(problem(), 0.25), 0.25, alike, batched=batched)
        same(small, go(weighted(problem()), 1.0, alike))
    plain = go(problem(), 1.0)
    assert (found.mean - plain.mean).abs().max() > 1e-4  # the twin: without weights


def test_batches_estimate_the_weighted_mean_without_a_bias():
    """Batches of four of twelve rows: in an epoch every row has w_i/N_k, times the number of batches."""
    (client,) = weighted(problem((12,)))
    like = torch.zeros(1, dtype=torch.float64)
    plan = steps.make_plan({0: client}, AdamSteps(epochs=2, batch_size=4), [0], like)
    found = torch.zeros(12, dtype=torch.float64).index_add_(0, plan.index.flatten(), plan.weight.flatten())
    assert torch.allclose(found / 6, client.weights / client.weights.sum(), rtol=1e-14, atol=0)
    assert plan.widths == [4] * 6


def test_weights_that_are_none_are_refused():
    X, y = torch.zeros(2, 1), torch.tensor([0, 1])
    wrong = [torch.tensor(w) for w in ([1.0], [1, 1], [1.0, -1.0], [0.0, 0.0], [1.0, float("nan")])]
    assert_refused([(partial(Rows, X, y, weights), "weights") for weights in (*wrong, ["1", "1"])])
    both = merge([Rows(X, y), Rows(X, y, torch.tensor([0.5, 2.0]))])
    assert both.weights.tolist() == [1.0, 1.0, 0.5, 2.0]
    assert (both.mass, len(both)) == (4.5, 4)
    half = Rows(X.bfloat16(), y, torch.tensor([2049.0, 1.0]))
    assert merge([half, half]).mass == 2 * half.mass  # bfloat16 has no 2049
    tiny = Rows(X, y, torch.tensor([1e-50, 0.0], dtype=torch.float64))
    with pytest.raises(ValueError, match="client 1: weights"):
        run(methods.FedAvg(), [Rows(X, y), tiny], torch.nn.Linear(1, 2), rounds=1)
    learned = Rows(X, y, torch.ones(2, requires_grad=True))
    assert run(methods.FedAvg(), [learned], torch.nn.Linear(1, 2), rounds=1).rounds == 1


# ----------------------------------------------------------------------------------------------------
# Curvature
# ----------------------------------------------------------------------------------------------------


def convolutions():
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 2, padding=1, dilation=2, bias=False),
        torch.nn.ReLU(inplace=True),
        torch.nn.Conv2d(2, 2, (3, 2), stride=2, padding=(1, 0)),
        torch.nn.Tanh(),
        torch.nn.Flatten(),
        torch.nn.LazyLinear(3),
    )


def frozen():
    """A pre-trained part that is not trained, and a bias before its weight, as pruning leaves it."""
    net = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 2), torch.nn.Tanh(), torch.nn.Flatten(), torch.nn.Linear(8, 3))
    net[0].requires_grad_(False)
    weight = net[3].weight
    del net[3].weight
    net[3].weight = weight
    return net


def tied():
    net = MLP((4, 4, 4))
    net[3].weight = net[1].weight
    return net


def tokens_of_a_picture():
    layers = torch.nn.Conv2d(1, 2, 2), torch.nn.Tanh(), torch.nn.Linear(2, 3), torch.nn.Flatten()
    return torch.nn.Sequential(*layers, torch.nn.Linear(12, 3))


class Residual(torch.nn.Sequential):
    """A sequence by its class alone: its first layer acts twice."""

    def forward(self, x):
        return self[2](self[1](self[0](x) + self[0](torch.tanh(x))))


NETWORKS = {
    "dense": (lambda: MLP((4, 5, 3)), (4,)),
    "one layer": (lambda: torch.nn.Linear(4, 3, bias=False), (4,)),
    "convolutions": (convolutions, (1, 3, 3)),
    "frozen": (frozen, (1, 3, 3)),
    "tied": (tied, (4,)),
    "matrices": (tokens_of_a_picture, (1, 3, 3)),
    "its own forward": (lambda: Residual(torch.nn.Linear(4, 4), torch.nn.Flatten(), torch.nn.Linear(4, 3)), (4,)),
    "another layer": (lambda: torch.nn.Sequential(torch.nn.LayerNorm(4), torch.nn.Linear(4, 3)), (4,)),
}


def ggn_case(make, shape):
    """A network, eleven weighted rows, and the curvature by whole Jacobians."""
    torch.manual_seed(0)
    X, weights = torch.randn(11, *shape, dtype=torch.float64), torch.rand(11, dtype=torch.float64)
    module = make().double()
    module(X)  # the widths of lazy layers
    net, rows = Network(module, CPU), Rows(X, torch.zeros(11, dtype=torch.int64), weights)
    return net, rows, curvature_by_autograd(net, net.start, rows)[0]


@pytest.mark.parametrize(("make", "shape"), NETWORKS.values(), ids=NETWORKS.keys())
def test_diagonal_ggn_is_its_definition(make, shape, monkeypatch):
    """Float64 rounding of sums of 11 rows; in chunks too."""
    net, rows, expected = ggn_case(make, shape)
    assert (diagonal_ggn(net, net.start, rows, {}) - expected).abs().max() < 1e-12
    monkeypatch.setattr(curvature, "CHUNKS", dict.fromkeys(curvature.CHUNKS, 4))
    found = diagonal_ggn(net, net.start, rows, {})
    assert (found - expected).abs().max() < 1e-12
    assert (found - 0.5 * expected).abs().max() > 1e-2  # the twin with a stray ½


def test_a_rule_for_layers_in_a_row_is_for_them_alone(monkeypatch):
    """The twin takes a sequence by its class alone for layers one after the other."""
    net, rows, expected = ggn_case(*NETWORKS["its own forward"])
    monkeypatch.setattr(curvature, "_kind", lambda _: "dense")
    with pytest.raises((ValueError, AssertionError, RuntimeError)):
        assert (diagonal_ggn(net, net.start, rows, {}) - expected).abs().max() < 1e-12


def test_a_sampled_diagonal_has_the_exact_one_for_its_mean():
    """Means of 400 estimates, within five of their standard errors in every entry; of one class alone it is 0."""
    net, rows, expected = ggn_case(*NETWORKS["convolutions"])
    source = torch.Generator().manual_seed(1)
    draws = torch.stack([diagonal_ggn(net, net.start, rows, {}, 2, source) for _ in range(400)])
    error = draws.std(dim=0) / 20.0
    assert bool(((draws.mean(dim=0) - expected).abs() <= 5.0 * error + 1e-12).all())
    assert bool(((0.5 * draws.mean(dim=0) - expected).abs() > 5.0 * error + 1e-12).any())  # the twin: without 1/√S
    sure = Network(MLP((1, 3, 1)).double(), CPU)
    plain = Rows(rows.X.reshape(-1, 1), rows.y.repeat(9))
    assert not any(bool(diagonal_ggn(sure, sure.start, plain, {}, samples).any()) for samples in (None, 2))


# ----------------------------------------------------------------------------------------------------
# What may go wrong
# ----------------------------------------------------------------------------------------------------


def test_an_improper_server_ends_the_run_with_a_status():
    """Undamped, K clients can subtract up to K times the server's precision, and noisy estimates do."""
    solver = IVONSteps(epochs=2, batch_size=4, lr=0.5, hess_init=1e-6, beta2=0.1)
    result = run(IVONPVI(1.0), problem((8,) * 12), network(), 50.0, rounds=20, solver=solver)
    assert result.status is ba.Status.NOT_A_DISTRIBUTION
    assert "lower gamma" in result.message
    assert bool((result.precision > 0).all())


@pytest.mark.parametrize("gamma", [1.0, 0.1])
def test_undamped_duals_break_the_clients_problem_before_the_server(gamma):
    """What a bound on s_g could not mend: ρs_g − u_k < 0 somewhere while s_g > 0; the twin is damped and lives."""
    solver = IVONSteps(epochs=10, batch_size=4, lr=0.5, hess_init=0.1, beta2=0.9)
    states = []
    result = run(
        IVONADMM(1.0, gamma),
        problem((8,) * 12),
        network(),
        0.1,
        rounds=4,
        solver=solver,
        callback=lambda record, state: states.append(state),
    )
    assert all(bool((state.precision > 0).all()) for state in states)
    broken = [bool((state.precision < state.site_precision).any()) for state in states]
    assert broken == ([True] * len(states) if gamma == 1.0 else [False] * 4)
    assert result.status is (ba.Status.DIVERGED if gamma == 1.0 else ba.Status.ROUND_LIMIT)


def test_checkpoints_are_as_rare_as_wanted_and_the_last_round_is_never_without(tmp_path):
    file, seen = tmp_path / "state.npz", []

    def go(stop=0, **options):
        method, solver = ROWS["IVON-ADMM"]
        state = {"checkpoint": file, "checkpoint_every": 2, **options}

        def callback(record, _):
            seen.append((record.round, file.exists()))
            if record.round == stop < 3:
                return np.True_
            if record.round == stop:
                raise KeyboardInterrupt
            return None

        return run(method, problem(), network(), rounds=5, solver=solver, callback=callback, **state)

    with pytest.raises(KeyboardInterrupt):
        go(stop=3)
    assert seen == [(1, False), (2, True), (3, True)]
    whole, resumed = go(checkpoint=None), go(resume=file)
    assert [number for number, _ in seen[-3:]] == [3, 4, 5]  # the third is done again
    assert torch.equal(whole.mean, resumed.mean)
    file.unlink()
    assert go(stop=1).status is ba.Status.STOPPED
    assert go(resume=file).rounds == 5
    assert [number for number, _ in seen[-4:]] == [2, 3, 4, 5]
    with pytest.raises(ValueError, match="checkpoint_every must be"):
        go(checkpoint_every=0)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    file, (method, solver) = tmp_path / "state.npz", ROWS["IVON-ADMM"]

    def go(rounds, **options):
        return run(method, problem(), network(), rounds=rounds, solver=solver, **options)

    go(2, checkpoint=file)
    assert Archive.read(file).header["run"]["method"]["name"] == "IVON-ADMM"
    with pytest.raises(ValueError, match="of another run: its temperature is"):
        go(4, resume=file, temperature=2.0)
    with pytest.raises(ValueError, match="of another run: its seed"):
        go(4, resume=file, seed=5)
    rectified = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3)).double()
    torch.nn.utils.vector_to_parameters(network_start(), rectified.parameters())  # the same numbers, another function
    with pytest.raises(ValueError, match="of another run: its model"):
        run(method, problem(), rectified, rounds=4, solver=solver, resume=file)
    with pytest.raises(ValueError, match=r"of another run: its participation is 1.0, expected .*<lambda>"):
        go(4, resume=file, participation=lambda number, clients, rng: np.ones(clients, dtype=bool))
    content = file.read_bytes()
    for damaged in (content[:100], content[:-1] + bytes([content[-1] ^ 1])):
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match="must be a whole bayesadmm archive"):
            go(4, resume=file)
    with pytest.raises(FileNotFoundError, match="file must be readable: No such file"):
        go(4, resume=tmp_path / "other.npz")


def spoilt(path, field, at, value):
    """Rewrite a checkpoint with another number, with a checksum of its own."""
    archive = Archive.read(path)
    header, arrays = deepcopy(dict(archive.header)), {name: array.copy() for name, array in archive.arrays.items()}
    if field in arrays:
        arrays[field].reshape(-1)[at] = value
    elif field == "start_objective":
        header[field] = value
    else:
        (header["history"][at]["edges"] if field == "gather" else header["history"][at])[field] = value
    Archive(archive.kind, header, arrays).write(path)


@pytest.mark.parametrize(
    ("field", "at", "value"),
    [
        ("mean", 3, np.nan),
        ("site_precision", 0, np.inf),
        ("precision", 1, -1.0),
        ("client_precision", 1, 0.0),
        ("start_objective", 0, "1"),
        ("objective", 1, "1"),
        ("gather", 0, None),
        ("bytes_up", 0, 1.5),
        ("round", 1, True),
        ("round", 1, 3),
    ],
)
def test_a_checkpoint_with_values_that_no_run_has_is_refused_by_its_field(tmp_path, field, at, value):
    (method, solver), file = ROWS["IVON-ADMM"], tmp_path / "state"
    run(method, problem(), network(), rounds=2, solver=solver, checkpoint=file)
    spoilt(file, field, at, value)
    with pytest.raises(ArchiveError) as refused:
        run(method, problem(), network(), rounds=3, solver=solver, resume=file)
    assert refused.value.name == field
    assert str(file) in refused.value.source


def test_a_checkpoint_without_a_round_or_of_an_older_version_is_refused(tmp_path):
    (method, solver), file = ROWS["IVON-ADMM"], tmp_path / "state"

    def resume(change):
        run(method, problem(), network(), rounds=3, solver=solver, checkpoint=file)
        archive = Archive.read(file)
        header = deepcopy(dict(archive.header))
        change(header)
        Archive(archive.kind, header, archive.arrays).write(file)
        with pytest.raises(ArchiveError) as refused:
            run(method, problem(), network(), rounds=4, solver=solver, resume=file)
        return refused.value

    assert resume(lambda header: header["history"].pop(1)).name == "round"
    assert f"written by bayesadmm_np {ba.__version__}" in resume(lambda header: header["run"].update(schema=5)).reason


def test_running_statistics_are_averaged_by_rows_and_not_batched():
    source = torch.Generator().manual_seed(0)
    clients = [
        Rows(torch.randn(n, 3, 8, 8, generator=source) + shift, torch.randint(0, 3, (n,), generator=source))
        for n, shift in ((12, 0.0), (4, 4.0))
    ]
    model = with_statistics()
    with pytest.raises(ValueError, match=r"batched must be False .*running_mean"):
        run(methods.FedAvg(), clients, model)
    solver = AdamSteps(epochs=1, batch_size=12)
    both = run(methods.FedAvg(), clients, model, rounds=1, solver=solver, batched=False)
    each = [run(methods.FedAvg(), [c], model, rounds=1, solver=solver, batched=False) for c in clients]
    name = next(name for name in both.state.buffers if name.endswith("running_mean"))
    parts = [result.state.buffers[name] for result in each]
    expected = 0.75 * parts[0] + 0.25 * parts[1]
    assert (both.state.buffers[name] - expected).abs().max() < 1e-6
    assert (parts[0] - parts[1]).abs().max() > 1e-3
    assert bool((dict(model.named_buffers())[name] == 0).all())  # the caller's model is as it was
    broken = Rows(torch.full((3, 3, 8, 8), 3e38), torch.tensor([0, 1, 2]))
    with pytest.warns(UserWarning, match="left out"):
        some = run(methods.FedAvg(), [clients[0], broken], model, rounds=1, solver=solver, batched=False)
    assert torch.equal(some.state.buffers[name], parts[0])
    assert torch.equal(dict(both.model().named_buffers())[name], both.state.buffers[name])


def test_batch_statistics_are_of_the_rows_of_the_batch_and_of_nothing_that_fills_it():
    source = torch.Generator().manual_seed(0)
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(2, momentum=None), torch.nn.Linear(2, 2))
    rows = Rows(torch.arange(10.0).view(5, 2).square(), torch.tensor([0, 1, 0, 1, 1]))

    def statistics(batch_size, epochs=1):
        solver = AdamSteps(epochs=epochs, batch_size=batch_size, lr=1e-12)
        return run(methods.FedAvg(), [rows], model, rounds=1, solver=solver, batched=False).state.buffers[
            "0.running_var"
        ]

    # momentum None averages the batches: one batch of all five rows is the variance itself, whatever it could hold
    assert torch.allclose(statistics(8), rows.X.var(dim=0))
    assert torch.equal(statistics(8), statistics(5))
    filled = torch.cat([rows.X, rows.X[:1].expand(3, -1)])
    assert not torch.allclose(filled.var(dim=0), rows.X.var(dim=0), rtol=0.01)  # what filling would give
    assert bool((statistics(3) > 0).all())  # batches of three and two
    with pytest.raises(ValueError, match="client 0: its 5 rows leave one to the last batch of 4; choose another"):
        statistics(4)
    images = Rows(torch.randn(5, 3, 8, 8, generator=source), rows.y)
    solver = AdamSteps(epochs=1, batch_size=4)  # an image has more than one value a channel
    found = run(methods.FedAvg(), [images], with_statistics(2), rounds=1, solver=solver, batched=False)
    assert found.status is ba.Status.ROUND_LIMIT
    drawing = torch.nn.Sequential(
        torch.nn.BatchNorm2d(3), torch.nn.Dropout(), torch.nn.Flatten(), torch.nn.Linear(192, 2)
    )
    before = torch.random.get_rng_state()
    run(methods.FedAvg(), [images], drawing, rounds=0, solver=solver, batched=False)  # tries a batch of one row
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_client_whose_statistics_overflow_is_left_out():
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 2))
    labels, solver = torch.tensor([0, 1, 0, 1]), AdamSteps(epochs=1, batch_size=4)
    values = torch.tensor([[1.0, -1.0], [2.0, 0.0], [0.5, 1.0], [-1.0, 2.0]])
    good, large = Rows(values, labels), Rows(1e25 * values, labels)  # whose squares are beyond float32
    with pytest.warns(UserWarning, match=r"clients \[1\] gave no finite answer"):
        both = run(methods.FedAvg(), [good, large], model, rounds=1, solver=solver, batched=False)
    assert both.history[0].dropped == (1,)
    assert all(bool(torch.isfinite(buffer).all()) for buffer in both.state.buffers.values())
    model.register_buffer("mask", torch.full((2, 2), -torch.inf).triu(1))  # which no client changes
    alone = run(methods.FedAvg(), [good], model, rounds=1, solver=solver, batched=False)
    assert alone.history[0].dropped == ()


def test_dropout_runs_batched_and_is_off_for_scores(monkeypatch):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3))
    clients = problem(dtype=torch.float32)
    options = {"rounds": 1, "solver": ADAM_SHORT, "evaluate": clients[0]}
    first, second = (run(methods.FedAvg(), clients, model, **options) for _ in range(2))
    assert torch.equal(first.mean, second.mean)  # the masks are a function of the seed
    alone = run(methods.FedAvg(), clients, model, batched=False, **options)
    assert not torch.equal(first.mean, alone.mean)
    monkeypatch.setattr(steps, "STACK", 1)  # and of the first client of a stack
    assert torch.equal(run(methods.FedAvg(), clients, model, **options).mean, alone.mean)
    logits = first.model().eval()(clients[0].X)
    assert score(logits.log_softmax(dim=1), clients[0].y).nll == pytest.approx(first.history[-1].at_mean.nll)


def test_a_method_of_one_round_stops_after_it():
    """Its second round would be that of PVI."""
    result = run(methods.BCM(), problem(), network(), rounds=3, solver=IVON_SHORT, evaluate=problem()[0])
    assert result.rounds == 1
    assert np.isfinite(result.objective[-1])


def test_history_counts_bytes_and_scores():
    clients = problem()
    result = run(IVONADMM(), clients, network(), rounds=3, solver=IVON_SHORT, evaluate=clients[0], evaluate_every=2)
    parameters = len(result.mean)
    assert [record.bytes_down for record in result.history] == [4 * 2 * parameters * 8] * 3
    assert [record.at_mean is None for record in result.history] == [True, False, False]
    assert result.history[-1].ensemble.nll != result.history[-1].at_mean.nll
    point = run(methods.FedAvg(), clients, network(), rounds=1, solver=ADAM_SHORT, participation=0.5)
    assert point.history[0].bytes_up == 2 * parameters * 8
    assert point.history[0].at_mean is None


def test_a_hessian_that_cannot_move_is_reported_once():
    solver = IVONSteps(epochs=1, batch_size=8, lr=0.1, hess_init=0.1, beta2=0.99999)
    with pytest.warns(UserWarning, match="the Hessian estimate has moved by") as caught:
        run(IVONADMM(), problem(), network(), rounds=3, solver=solver)
    assert len(caught) == 1


def test_wrong_arguments_are_named():
    def call(**changes):
        return lambda: run(**{"method": IVONADMM(), "clients": problem(), "model": network(), **changes})

    def client(X, y):
        return call(clients=[Rows(X, torch.tensor(y))])

    zeros = torch.zeros(2, 4)
    calls = [
        (call(clients=[]), "clients"),
        (call(clients=[zeros]), "client"),
        (call(clients=Rows(zeros, torch.tensor([0, 1]))), "clients"),
        (client(torch.zeros(2, 5), [0, 1]), "client"),
        (client(zeros, [0, 3]), "client"),
        (call(model="mlp"), "model"),
        (call(model=torch.nn.Flatten()), "model"),
        (call(method=methods.BregmanADMM()), "method"),
        (call(method=methods.FedAvg), "method"),
        (call(method=methods.FedAvg(), solver=IVONSteps()), "FedAvg"),
        (call(solver=AdamSteps()), "IVON-ADMM"),
        (call(method=replace(IVONADMM(), schedule=Geometric(rho=0.5)), solver=IVONSteps(ess=9.0)), "ess"),
        (call(method=methods.FedAvg(), solver=AdamSteps(curvature_samples=1)), "curvature_samples"),
        (call(model=torch.nn.PReLU(dtype=torch.float64)), "model"),  # one number, as a precision that is not learned
        (call(prior_precision=0.0), "prior_precision"),
        (call(temperature=-1.0), "temperature"),
        (call(participation=0.0), "participation"),
        (call(rounds=-1), "rounds"),
        (call(batched=1), "batched"),
        (call(device="nonsense"), "device='nonsense'"),
        (call(checkpoint="no/such/folder/state.npz"), "checkpoint"),
        (call(callback=3), "callback"),
        (lambda: Rows(torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64)), "X"),
        (lambda: score(torch.zeros(3, 2), torch.zeros(4, dtype=torch.int64)), "log_probabilities"),
        *((partial(IVONSteps, **{name: value}), name) for name, value in WRONG_IVON.items()),
        *((partial(AdamSteps, **wrong), name) for name, wrong in WRONG_ADAM),
        (lambda: SGDSteps(momentum=1.0), "momentum"),
        (lambda: IVONADMM(rho=0.0), "rho"),
        (lambda: IVONPVI(gamma=2.0), "gamma"),
    ]
    assert_refused(calls)


def test_errors_of_a_beginner_have_the_cure():
    with pytest.raises(ValueError, match=r"call FedAvg\(\.\.\.\)"):
        run(methods.FedAvg, problem(), network())
    q = run(methods.FedAvg(), problem(), network(), rounds=1).posterior
    for rows in (torch.zeros(2, 5), torch.utils.data.TensorDataset(torch.zeros(2, 5), torch.tensor([0, 1]))):
        with pytest.raises(ValueError, match=r"X: inputs of shape \(5,\) do not fit the model"):
            q.predict(rows)
    assert q.predict(torch.zeros(0, 4)).shape == (0,)


@dataclass(frozen=True)
class OfDistributions(DualRule):
    reads_natural: ClassVar[bool] = False

    def __call__(self, site, own, served, step):
        return site


@dataclass(frozen=True)
class OfNaturals(DualRule):
    """The parts of λ have other names in tensors."""

    def __call__(self, site, own, served, step):
        return site + step * type(site)(*(mine - theirs for mine, theirs in zip(own.parts, served.parts, strict=True)))


@pytest.mark.parametrize("rule", [OfDistributions(), OfNaturals()])
def test_a_rule_of_more_than_plus_and_times_is_refused(rule):
    with pytest.raises(ValueError, match="a proximal client and a dual"):
        run(replace(IVONADMM(), dual_rule=rule), problem(), network(), rounds=1)


WRONG_IVON = {"beta2": 1.0, "clip_radius": 0.0, "hess_start": "prior", "ess": 0.0}
WRONG_ADAM = [
    ("epochs", {"epochs": 0}),
    ("schedule", {"schedule": "step"}),
    ("schedule_rounds", {"schedule": "cosine"}),
    ("schedule_rounds", {"schedule_rounds": 3}),
    ("schedule_rounds", {"schedule": "linear", "schedule_rounds": 0}),
    ("lr_end", {"lr_end": 0.1}),
    ("curvature_samples", {"curvature_samples": 0}),
]


# ----------------------------------------------------------------------------------------------------
# Scores
# ----------------------------------------------------------------------------------------------------


def test_scores_by_hand():
    p = torch.tensor([[0.9, 0.1, 0.0], [0.3, 0.6, 0.1], [0.2, 0.2, 0.6]], dtype=torch.float64)
    y = torch.tensor([0, 0, 2])
    found = score(p.clamp(min=1e-300).log(), y, bins=2)
    assert found.accuracy == pytest.approx(2 / 3)
    assert found.nll == pytest.approx(-np.log([0.9, 0.3, 0.6]).mean())
    # all three confidences 0.9, 0.6, 0.6 lie in the upper bin: |2/3 − 0.7|
    assert found.ece == pytest.approx(abs(2 / 3 - 0.7))
    assert found.brier == pytest.approx(np.mean([0.01 + 0.01, 0.49 + 0.36 + 0.01, 0.04 + 0.04 + 0.16]))
    # with finer bins 0.9 is right and alone, and the two of 0.6 are right half the time: (0.1 + 2·0.1)/3
    assert score(p.clamp(min=1e-300).log(), y, bins=4).ece == pytest.approx(0.1)


@pytest.mark.parametrize("rho", [0.7, 0.8])
def test_where_the_loss_is_flat_rho_must_be_the_largest_share_of_the_rows(rho):
    """docs/deep_methods.md, Choosing; the solution of the recursion for s_g with s_k − s_g = A_k/ρ and A_k = N_kh₀/τ.

    With β₂ = 1 − 10⁻⁶ the estimate moves by less than 10⁻⁴ of h₀ + uτ/N in the 12 rounds of at most 6 steps.
    """
    source = torch.Generator().manual_seed(0)
    X = torch.randn(40, 2, generator=source)
    y = (X[:, 0] > 0).long()
    X[:, 1] = 0.0  # a dark pixel
    clients = [Rows(X[:10], y[:10]), Rows(X[10:], y[10:])]  # three quarters of the rows
    K, rounds, gamma, delta, h0, tau = 2, 12, 0.3, 0.1, 0.1, 0.5
    solver = IVONSteps(epochs=2, batch_size=10, hess_init=h0, beta2=1.0 - 1e-6, hess_start="h0")
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="the Hessian estimate has moved"):
        result = run(
            IVONADMM(rho, gamma), clients, torch.nn.Linear(2, 2), delta, rounds, solver=solver, temperature=tau
        )
    A = torch.tensor([10.0, 30.0]) * h0 / tau
    lag = 1.0 - (1.0 - 1.0 / (1.0 + rho * K)) ** rounds
    expected = gamma * rounds * (A.sum() - A / rho) + rho * A.sum() * (1.0 - gamma * K) * lag + rho * delta
    found = rho * result.precision - result.state.site_precision
    for weight in (1, 3):
        torch.testing.assert_close(found[:, weight], expected, rtol=1e-3, atol=1e-3)
    drift = (A.sum() - A / rho) > 0  # of every further round
    assert drift.tolist() == [True, rho > 0.75]
