"""Local work: SGD, Adam whose moments go on, where IVON's Hessian estimate starts, a given λ, and rates that fall."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

import bayesadmm_np as ba

torch = pytest.importorskip("torch", minversion="2.4", reason="the deep-learning path needs the extra `torch`")
from bayesadmm_np import methods  # noqa: E402
from bayesadmm_np.federation import Coordinator, Site  # noqa: E402
from bayesadmm_np.torch import (  # noqa: E402
    IVONADMM,
    IVONPVI,
    MLP,
    AdamSteps,
    IVONSteps,
    NetworkData,
    NetworkTask,
    Rows,
    SGDSteps,
    run,
)
from oracles.small_networks import binary  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
THREE = (12, 12, 5)
ADAM = AdamSteps(epochs=1, batch_size=12, lr=0.05, keep_moments=True)
IVON = IVONSteps(epochs=5, batch_size=8, lr=0.1, hess_init=0.5, beta2=0.99)


def eight():
    model = torch.nn.Linear(4, 2, bias=False, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(torch.arange(8.0).view(2, 4) / 10.0)
    return model


def by_hand(rows, lr, momentum, steps):
    """θ ← θ − αb with b ← βb + ∇(ℓ/N), on all rows of a client at once."""
    theta, b = eight().weight.detach().requires_grad_(), 0.0
    for _ in range(steps):
        (slope,) = torch.autograd.grad(torch.nn.functional.cross_entropy(rows.X @ theta.T, rows.y), theta)
        b = momentum * b + slope
        theta = (theta - lr * b).detach().requires_grad_()
    return theta.detach().reshape(-1)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("batched", [True, False])
def test_steps_are_those_of_the_recursion(momentum, batched):
    """A round of FedAvg with whole batches, in float64: the mean by rows of what each client gets by hand."""
    rows, solver = binary((12, 7)), SGDSteps(epochs=6, batch_size=12, lr=0.3, momentum=momentum)
    found = run(methods.FedAvg(), rows, eight(), 1e-9, 1, solver=solver, batched=batched).mean

    def expected(beta):
        return (12 * by_hand(rows[0], 0.3, beta, 6) + 7 * by_hand(rows[1], 0.3, beta, 6)) / 19

    assert (found - expected(momentum)).abs().max() < 1e-8  # δ pulls by 1e-9
    assert (found - expected(0.9 - momentum)).abs().max() > 1e-2  # the twin: the other momentum


def model(dtype=torch.float64, extra=False):
    torch.manual_seed(0)
    net = MLP((4, 5, 2)).to(dtype)
    return torch.nn.Sequential(torch.nn.Identity(), net) if extra else net  # no plain network: stacks and autograd


@pytest.mark.parametrize("extra", [False, True])
def test_ten_rounds_of_a_step_are_one_round_of_ten(extra):
    """One client with whole batches, in float64: rounds are then no more than pauses. The twin starts anew in each."""

    def mean(rounds, **changes):
        chosen = replace(ADAM, **changes)
        return run(methods.FedAvg(), binary((12,)), model(extra=extra), 1e-9, rounds, solver=chosen).mean

    whole = mean(1, epochs=10)
    assert (mean(10) - whole).abs().max() < 1e-9
    assert (mean(10, keep_moments=False) - whole).abs().max() > 1e-3


def test_stacks_and_single_clients_keep_the_same_with_clients_that_stay_away():
    """By hand, by autograd and one by one agree to float64 rounding, where clients have taken part in 1 to 3 rounds."""

    def away(round, n_clients, rng):
        return [True, round != 2, round > 1]

    def mean(extra=False, solver=ADAM, **options):
        net = model(extra=extra)
        return run(methods.FedAvg(), binary(THREE), net, 0.5, 3, solver=solver, participation=away, **options).mean

    whole = mean()
    for other in (mean(extra=True), mean(extra=True, batched=False), mean(batched=False)):
        assert (other - whole).abs().max() < 1e-9
    assert (mean(solver=replace(ADAM, keep_moments=False)) - whole).abs().max() > 1e-5


def test_a_checkpoint_has_them(tmp_path):
    """A run that goes on is the run without a pause, bit for bit; a checkpoint without moments is of another run."""
    path, args = tmp_path / "run.npz", (methods.FedAvg(), binary(THREE), model(), 0.5)
    whole = run(*args, 4, solver=ADAM)
    run(*args, 2, solver=ADAM, checkpoint=path)
    again = run(*args, 4, solver=ADAM, resume=path)
    assert torch.equal(again.mean, whole.mean)
    assert torch.equal(again.state.moments.vectors, whole.state.moments.vectors)
    assert again.state.moments.steps == whole.state.moments.steps == tuple(4 * -(-n // 12) for n in THREE)
    with pytest.raises(ValueError, match="solver"):
        run(*args, 4, solver=replace(ADAM, keep_moments=False), resume=path)


def test_where_they_cannot_be_kept_they_are_refused():
    with pytest.raises(ValueError, match="keep_moments"):
        AdamSteps(keep_moments=1)
    net, rows = model(torch.float32), binary(THREE, torch.float32)
    sites = [Site(name, NetworkData(own, net)) for name, own in zip("AB", rows[:2], strict=True)]
    with pytest.raises(ValueError, match="kept moments"):
        Coordinator.start([site.hello() for site in sites], NetworkTask(methods.FedAvg(), net, solver=ADAM))


def four_clients(sizes=(23, 10, 17, 8), weights=None):
    source = torch.Generator().manual_seed(1)
    made = []
    for k, n in enumerate(sizes):
        X = torch.randn(n, 4, generator=source, dtype=torch.float64)
        y = torch.randint(3, (n,), generator=source)
        made.append(Rows(X, y, None if weights is None else torch.full((n,), weights[k], dtype=torch.float64)))
    return made


def trained(solver, method, rounds, data=None, **settings):
    model = torch.nn.Linear(4, 3, bias=False, dtype=torch.float64)
    torch.nn.init.zeros_(model.weight)
    return run(method, data or four_clients(), model, 1.5, rounds, solver=solver, **settings)


# The start of h


@pytest.mark.parametrize("method", [IVONADMM(rho=1.0, gamma=0.5), IVONPVI(gamma=0.5)], ids=lambda row: row.name)
def test_from_the_server_the_precision_is_learned_over_the_rounds(method):
    """Rounds of 10 to 15 steps under 1 − β₂ = 0.01, too short to forget h₀; the pooled solution by the core.

    From the server the precision's median error is 0.11 after 60 rounds: one sample a step leaves ĥ's noise. The twin,
    from h₀, is 20 times too precise, and more so with every round. The certificates, 0.10 ± 0.01 and 0.47, say so.
    """
    losses = [ba.losses.Softmax(rows.X.numpy(), rows.y.numpy(), n_classes=3) for rows in four_clients()]
    prior = ba.families.DiagonalGaussian(np.zeros(12), 1.5)
    pooled = ba.solve_pooled(losses, prior, expectation=ba.losses.QuasiMonteCarlo(256)).posterior

    def of(start):
        solver = replace(IVON, hess_start=start, schedule="cosine", schedule_rounds=60)
        return trained(solver, method, 60)

    def error(result):
        return np.median(np.abs(result.precision.numpy() / pooled.precision - 1.0))

    found, twin = of("server"), of("h0")
    assert error(found) < 0.3
    assert error(twin) > 10.0
    ours, theirs = (result.certificate(pairs=200) for result in (found, twin))
    assert ours.pooled + 4 * ours.pooled_error < 0.2 < theirs.pooled - 4 * theirs.pooled_error


def test_the_first_round_starts_at_h0_and_the_second_at_the_server():
    """At agreement and with no step h stays where it starts: s_k = s_g in the second round, λ(h₀ + δ) in the first."""
    still = replace(IVON, lr=1e-300, beta2=1.0 - 1e-16, hess_start="server")
    first, second = (trained(still, IVONPVI(gamma=0.1), rounds, [four_clients()[0]]).state for rounds in (1, 2))
    expected = 23 * IVON.hess_init + 1.5
    assert first.client_precision.numpy() == pytest.approx(expected, rel=1e-12)
    assert second.client_precision[0].numpy() == pytest.approx(first.precision.numpy(), rel=1e-12)
    with pytest.warns(UserWarning, match="the Hessian estimate has moved"):
        twin = trained(replace(still, hess_start="h0"), IVONPVI(gamma=0.1), 2, [four_clients()[0]]).state
    assert (twin.client_precision[0] > 1.5 * first.precision).all()


# λ


@pytest.mark.parametrize(("ess", "same"), [(7.0, True), (8.0, False)])
def test_a_given_ess_weighs_a_clients_rows(ess, same):
    """λ_k = 7 for all is a weight of 7ρτ/N_k on every row: the same rounds, objective and certificate, to rounding.

    2 rounds of 30 float64 steps keep 1e-10. The twin has another λ.
    """
    method, tau, short = IVONADMM(rho=0.7, gamma=0.3), 0.4, replace(IVON, epochs=2)
    weights = [7.0 * method.rho * tau / n for n in (23, 10, 17, 8)]
    found = trained(replace(short, ess=ess), method, 2)
    expected = trained(short, method, 2, four_clients(weights=weights), temperature=tau)
    assert (float((found.mean - expected.mean).abs().max()) < 1e-10) == same
    assert (found.objective == pytest.approx(expected.objective, rel=1e-10)) == same
    assert (found.certificate().pooled == pytest.approx(expected.certificate().pooled, rel=1e-8)) == same


# Rates


@pytest.mark.parametrize("make", [AdamSteps, IVONSteps])
@pytest.mark.parametrize(
    ("schedule", "expected"),
    [("linear", [1.0, 0.775, 0.55, 0.325]), ("cosine", [1.0, 0.55 + 0.45 * math.cos(0.25 * math.pi), 0.55, None])],
)
def test_rates_by_hand(make, schedule, expected):
    """α_T = 0.1; in the fourth of four rounds the cosine is −cos(π/4), and rounds behind them have its rate."""
    solver = make(lr=1.0, schedule=schedule, schedule_rounds=4, lr_end=0.1)
    expected[3] = expected[3] or 1.1 - expected[1]
    assert [solver.at(t).lr for t in range(1, 7)] == pytest.approx([*expected, expected[3], expected[3]], rel=1e-12)
    assert make(lr=1.0).at(3) == make(lr=1.0)


@dataclass(frozen=True)
class Late(AdamSteps):
    """The broken twin: it counts rounds from 0."""

    def at(self, round):
        return super().at(round + 1)


@pytest.mark.parametrize(("kind", "same"), [(AdamSteps, True), (Late, False)])
def test_a_round_has_its_own_rate(kind, same):
    """The first of two rounds has the whole rate, bit for bit, and the second another one."""
    short = {"epochs": 2, "batch_size": 8, "lr": 0.1}
    falling, constant = kind(**short, schedule="linear", schedule_rounds=2), AdamSteps(**short)
    means = [[trained(solver, ba.methods.FedAvg(), t).mean for t in (1, 2)] for solver in (falling, constant)]
    assert torch.equal(means[0][0], means[1][0]) == same
    assert not torch.equal(means[0][1], means[1][1])
