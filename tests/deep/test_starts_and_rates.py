"""Where IVON's Hessian estimate starts a round, a given λ, and rates that fall over the rounds."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

import bayesadmm_np as ba

torch = pytest.importorskip("torch", minversion="2.4", reason="the deep-learning path needs the extra `torch`")
from bayesadmm_np.torch import IVONADMM, IVONPVI, AdamSteps, IVONSteps, Rows, run  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
SOLVER = IVONSteps(epochs=5, batch_size=8, lr=0.1, hess_init=0.5, beta2=0.99)


def clients(sizes=(23, 10, 17, 8), weights=None):
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
    return run(method, data or clients(), model, 1.5, rounds, solver=solver, **settings)


# ----------------------------------------------------------------------------------------------------
# The start of h
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [IVONADMM(rho=1.0, gamma=0.5), IVONPVI(gamma=0.5)], ids=lambda row: row.name)
def test_from_the_server_the_precision_is_learned_over_the_rounds(method):
    """Rounds of 10 to 15 steps under 1 − β₂ = 0.01, too short to forget h₀; the pooled solution by the core.

    From the server the precision's median error is 0.11 after 60 rounds: one sample a step leaves ĥ's noise. The twin,
    from h₀, is 20 times too precise, and more so with every round. The certificates, 0.10 ± 0.01 and 0.47, say so.
    """
    losses = [ba.losses.Softmax(rows.X.numpy(), rows.y.numpy(), n_classes=3) for rows in clients()]
    prior = ba.families.DiagonalGaussian(np.zeros(12), 1.5)
    pooled = ba.solve_pooled(losses, prior, expectation=ba.losses.QuasiMonteCarlo(256)).posterior

    def of(start):
        solver = replace(SOLVER, hess_start=start, schedule="cosine", schedule_rounds=60)
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
    still = replace(SOLVER, lr=1e-300, beta2=1.0 - 1e-16, hess_start="server")
    first, second = (trained(still, IVONPVI(gamma=0.1), rounds, [clients()[0]]).state for rounds in (1, 2))
    expected = 23 * SOLVER.hess_init + 1.5
    assert first.client_precision.numpy() == pytest.approx(expected, rel=1e-12)
    assert second.client_precision[0].numpy() == pytest.approx(first.precision.numpy(), rel=1e-12)
    with pytest.warns(UserWarning, match="the Hessian estimate has moved"):
        twin = trained(replace(still, hess_start="h0"), IVONPVI(gamma=0.1), 2, [clients()[0]]).state
    assert (twin.client_precision[0] > 1.5 * first.precision).all()


# ----------------------------------------------------------------------------------------------------
# λ
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ess", "same"), [(7.0, True), (8.0, False)])
def test_a_given_ess_weighs_a_clients_rows(ess, same):
    """λ_k = 7 for all is a weight of 7ρτ/N_k on every row: the same rounds, objective and certificate, to rounding.

    2 rounds of 30 float64 steps keep 1e-10. The twin has another λ.
    """
    method, tau, short = IVONADMM(rho=0.7, gamma=0.3), 0.4, replace(SOLVER, epochs=2)
    weights = [7.0 * method.rho * tau / n for n in (23, 10, 17, 8)]
    found = trained(replace(short, ess=ess), method, 2)
    expected = trained(short, method, 2, clients(weights=weights), temperature=tau)
    assert (float((found.mean - expected.mean).abs().max()) < 1e-10) == same
    assert (found.objective == pytest.approx(expected.objective, rel=1e-10)) == same
    assert (found.certificate().pooled == pytest.approx(expected.certificate().pooled, rel=1e-8)) == same


# ----------------------------------------------------------------------------------------------------
# Rates
# ----------------------------------------------------------------------------------------------------


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
