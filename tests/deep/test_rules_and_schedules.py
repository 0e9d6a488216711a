"""Dual rules and schedules of a user's own in runs of networks."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

import bayesadmm_np as ba

torch = pytest.importorskip("torch", minversion="2.4", reason="the deep-learning path needs the extra `torch`")
from bayesadmm_np.splitting.methods import DualRule, Geometric  # noqa: E402
from bayesadmm_np.torch import IVONADMM, AdamSteps, IVONSteps, run  # noqa: E402
from oracles.small_networks import binary  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


@dataclass(frozen=True)
class Relaxed(DualRule):
    factor: float

    def __call__(self, site, own, served, step):
        return site + self.factor * step * (own - served)


@dataclass(frozen=True)
class OfDistributions(DualRule):
    reads_natural: ClassVar[bool] = False

    def __call__(self, site, own, served, step):
        return site


def answer(row, rounds=3):
    torch.manual_seed(1)
    network = torch.nn.Linear(4, 2).double()
    is_ivon = row.name.startswith("IVON")
    solver = IVONSteps(lr=0.05, epochs=2, batch_size=8) if is_ivon else AdamSteps(lr=0.05, epochs=2, batch_size=8)
    return run(row, binary((9, 12)), network, rounds=rounds, solver=solver)


ROWS = [IVONADMM(rho=1.0, gamma=1.0), ba.methods.FedLap()]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_rule_of_plus_and_times_moves_the_duals_of_networks(row):
    """A factor on the rule is one on γ; powers of two change no digit."""
    own = answer(replace(row, dual_rule=Relaxed(0.5))).state
    other = answer(replace(row, dual_step=0.5 * row.dual_step)).state
    plain = answer(row).state
    assert torch.equal(own.mean, other.mean)
    assert torch.equal(own.site_linear, other.site_linear)
    assert torch.equal(own.site_precision, other.site_precision)
    assert not torch.equal(own.mean, plain.mean)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_schedule_gives_each_round_its_row(row):
    """The first round is the row's own, the second that of a row with the second's numbers."""
    scheduled = replace(row, schedule=Geometric(rho=0.5))
    first, plain = answer(scheduled, 1).state, answer(row, 1).state
    assert torch.equal(first.mean, plain.mean)
    later, constant = answer(scheduled), answer(row)
    assert not torch.equal(later.state.mean, constant.state.mean)
    assert [record.alpha for record in later.history] == [scheduled.at(t).server_alpha(2) for t in (1, 2, 3)]


@dataclass(frozen=True)
class OfNaturals(DualRule):
    """The parts of λ have other names in tensors."""

    def __call__(self, site, own, served, step):
        return site + step * type(site)(*(mine - theirs for mine, theirs in zip(own.parts, served.parts, strict=True)))


@pytest.mark.parametrize("rule", [OfDistributions(), OfNaturals()])
def test_a_rule_of_more_than_plus_and_times_is_refused(rule):
    with pytest.raises(ValueError, match="is a row of the core only"):
        answer(replace(ROWS[0], dual_rule=rule))
