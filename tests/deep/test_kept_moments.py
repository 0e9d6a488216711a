"""Solvers whose moments go on from round to round: one long round is many short ones, in every engine."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="the deep-learning path needs the extra `torch`")
from bayesadmm_np import methods  # noqa: E402
from bayesadmm_np.federation import Coordinator, Site  # noqa: E402
from bayesadmm_np.torch import (  # noqa: E402
    IVONADMM,
    MLP,
    AdamSteps,
    IVONSteps,
    NetworkData,
    NetworkTask,
    SGDSteps,
    run,
)
from oracles.small_networks import binary  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
SIZES = (12, 12, 5)
SOLVERS = [
    AdamSteps(epochs=1, batch_size=12, lr=0.05, keep_moments=True),
    SGDSteps(epochs=1, batch_size=12, lr=0.1, momentum=0.9, keep_moments=True),
    IVONSteps(epochs=2, batch_size=4, lr=0.1, beta1=0.9, keep_moments=True),
]


def model(dtype=torch.float64, extra=False):
    torch.manual_seed(0)
    net = MLP((4, 5, 2)).to(dtype)
    return torch.nn.Sequential(torch.nn.Identity(), net) if extra else net  # no plain network: stacks and autograd


def method_of(solver):
    return IVONADMM(rho=1.0, gamma=0.1) if isinstance(solver, IVONSteps) else methods.FedAvg()


@pytest.mark.parametrize("solver", SOLVERS[:2], ids=lambda solver: type(solver).__name__)
@pytest.mark.parametrize("extra", [False, True])
def test_ten_rounds_of_a_step_are_one_round_of_ten(solver, extra):
    """One client with whole batches, in float64: rounds are then no more than pauses. The twin starts anew in each."""

    def mean(rounds, **changes):
        chosen = replace(solver, **changes)
        return run(methods.FedAvg(), binary((12,)), model(extra=extra), 1e-9, rounds, solver=chosen).mean

    whole = mean(1, epochs=10)
    assert (mean(10) - whole).abs().max() < 1e-9
    assert (mean(10, keep_moments=False) - whole).abs().max() > 1e-3


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: type(solver).__name__)
def test_stacks_and_single_clients_keep_the_same_with_clients_that_stay_away(solver):
    """By hand, by autograd and one by one agree to float64 rounding, where clients have taken part in 1 to 3 rounds."""

    def away(round, n_clients, rng):
        return [True, round != 2, round > 1]

    def mean(solver, extra=False, batched=True):
        found = run(
            method_of(solver),
            binary(SIZES),
            model(extra=extra),
            0.5,
            3,
            solver=solver,
            participation=away,
            batched=batched,
        )
        return found.mean

    whole = mean(solver)
    assert (mean(solver, extra=True) - whole).abs().max() < 1e-9
    assert (mean(solver, extra=True, batched=False) - whole).abs().max() < 1e-9
    assert (mean(solver, batched=False) - whole).abs().max() < 1e-9
    assert (mean(replace(solver, keep_moments=False)) - whole).abs().max() > 1e-5


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: type(solver).__name__)
def test_a_checkpoint_has_them(solver, tmp_path):
    """A run that goes on is the run without a pause, bit for bit; a checkpoint without moments is of another run."""
    path, args = tmp_path / "run.npz", (method_of(solver), binary(SIZES), model(), 0.5)
    whole = run(*args, 4, solver=solver)
    run(*args, 2, solver=solver, checkpoint=path)
    again = run(*args, 4, solver=solver, resume=path)
    assert torch.equal(again.mean, whole.mean)
    assert torch.equal(again.state.moments.vectors, whole.state.moments.vectors)
    assert (
        again.state.moments.steps
        == whole.state.moments.steps
        == tuple(4 * solver.epochs * -(-n // solver.batch_size) for n in SIZES)
    )
    with pytest.raises(ValueError, match="solver"):
        run(*args, 4, solver=replace(solver, keep_moments=False), resume=path)


def test_where_they_cannot_be_kept_they_are_refused():
    with pytest.raises(ValueError, match="keep_moments needs momentum > 0"):
        SGDSteps(keep_moments=True)
    with pytest.raises(ValueError, match="keep_moments"):
        AdamSteps(keep_moments=1)
    net, rows = model(torch.float32), binary(SIZES, torch.float32)
    sites = [Site(name, NetworkData(own, net)) for name, own in zip("AB", rows[:2], strict=True)]
    with pytest.raises(ValueError, match="kept moments"):
        Coordinator.start([site.hello() for site in sites], NetworkTask(methods.FedAvg(), net, solver=SOLVERS[0]))
