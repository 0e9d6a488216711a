"""Damping by rows, γ_k = N_k/N, for networks; three rounds of its rows against the core are in test_deep_loop."""

from itertools import pairwise

import pytest

import bayesadmm_np as ba

torch = pytest.importorskip("torch", minversion="2.4", reason="the deep-learning path needs the extra `torch`")
from bayesadmm_np.torch import IVONPVI, IVONSteps  # noqa: E402
from oracles.small_networks import SIZES, func, states_of  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
M = ba.methods
IVON_SHORT = IVONSteps(epochs=3, batch_size=6, lr=0.1, hess_init=0.1, beta2=0.9)
SHARES = torch.tensor(SIZES, dtype=torch.float64)[:, None] / sum(SIZES)


CASES = {
    "IVON-PVI": (IVONPVI("rows"), {"solver": IVON_SHORT}),
    "FedLap": (M.FedLap("rows"), {}),
    "FedLapCov": (M.FedLapCov("rows"), {}),
    "FedLap-Func": (func("rows"), {}),
}


@pytest.mark.parametrize(("method", "options"), CASES.values(), ids=CASES)
def test_every_dual_moves_by_its_own_step(method, options):
    """η_k − η_k' = γ_k(λ_k − λ_g) in every round, to rounding; equal steps of the same mean are not these."""
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
