"""Adam whose moments go on from round to round: one long round is many short ones, in stacks and one by one."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="the deep-learning path needs the extra `torch`")
from bayesadmm_np import methods  # noqa: E402
from bayesadmm_np.federation import Coordinator, Site  # noqa: E402
from bayesadmm_np.torch import MLP, AdamSteps, NetworkData, NetworkTask, run  # noqa: E402
from oracles.small_networks import binary  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
SIZES = (12, 12, 5)
ADAM = AdamSteps(epochs=1, batch_size=12, lr=0.05, keep_moments=True)


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
        return run(methods.FedAvg(), binary(SIZES), net, 0.5, 3, solver=solver, participation=away, **options).mean

    whole = mean()
    for other in (mean(extra=True), mean(extra=True, batched=False), mean(batched=False)):
        assert (other - whole).abs().max() < 1e-9
    assert (mean(solver=replace(ADAM, keep_moments=False)) - whole).abs().max() > 1e-5


def test_a_checkpoint_has_them(tmp_path):
    """A run that goes on is the run without a pause, bit for bit; a checkpoint without moments is of another run."""
    path, args = tmp_path / "run.npz", (methods.FedAvg(), binary(SIZES), model(), 0.5)
    whole = run(*args, 4, solver=ADAM)
    run(*args, 2, solver=ADAM, checkpoint=path)
    again = run(*args, 4, solver=ADAM, resume=path)
    assert torch.equal(again.mean, whole.mean)
    assert torch.equal(again.state.moments.vectors, whole.state.moments.vectors)
    assert again.state.moments.steps == whole.state.moments.steps == tuple(4 * -(-n // 12) for n in SIZES)
    with pytest.raises(ValueError, match="solver"):
        run(*args, 4, solver=replace(ADAM, keep_moments=False), resume=path)


def test_where_they_cannot_be_kept_they_are_refused():
    with pytest.raises(ValueError, match="keep_moments"):
        AdamSteps(keep_moments=1)
    net, rows = model(torch.float32), binary(SIZES, torch.float32)
    sites = [Site(name, NetworkData(own, net)) for name, own in zip("AB", rows[:2], strict=True)]
    with pytest.raises(ValueError, match="kept moments"):
        Coordinator.start([site.hello() for site in sites], NetworkTask(methods.FedAvg(), net, solver=ADAM))
