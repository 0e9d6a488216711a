"""benchmarks/divergence.py: each change of IVON-ADMM is the one that its name says."""

import importlib
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="the deep-learning path needs the extra `torch`")
from bayesadmm_np.torch import IVONADMM, IVONSteps  # noqa: E402
from oracles.small_networks import DELTA, network, states_of  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
SOLVER = IVONSteps(epochs=2, batch_size=6, lr=0.1, hess_init=0.5, beta2=0.9, hess_start="server")
ROW = IVONADMM(rho=0.5, gamma=0.2)


@pytest.fixture
def changed(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    script = importlib.import_module("divergence")

    def states(name, rounds=2):
        with script.PATCHES[name]():
            return states_of(ROW, rounds, SOLVER)

    return states


def test_the_servers_update_comes_before_that_of_the_duals(changed):
    """After one round, whose old duals have no precision, s_g is (1 − α) mean s_k + αδ."""
    alpha = ROW.server_alpha(4)

    def is_old(state):
        expected = (1 - alpha) * state.client_precision.mean(dim=0) + alpha * DELTA
        return np.allclose(state.precision.numpy(), expected.numpy(), rtol=1e-12)

    assert is_old(changed("old duals at the server", 1)[0])
    assert not is_old(states_of(ROW, 1, SOLVER)[0])


def test_precisions_stay_above_the_servers_where_h_is_clamped(changed):
    def lowest(states):
        return float((states[1].client_precision / states[0].precision).min())

    assert lowest(changed("h clamped at zero")) >= 1.0 - 1e-12
    assert lowest(states_of(ROW, 2, SOLVER)) < 1.0


def test_momentum_is_carried_from_the_second_round_on(changed):
    carried, plain = changed("momentum carried"), states_of(ROW, 2, SOLVER)
    assert torch.equal(carried[0].mean, plain[0].mean)
    assert not torch.equal(carried[1].mean, plain[1].mean)


def test_a_start_at_the_prior_has_no_duals(changed):
    """Σ_k v_k after a round is γ Σ_k (s_km_k − s_gm_g) alone; the plain start shares δm_g among the sites."""

    def shared(states, start):
        own = states[0].site_linear - 0.2 * (states[0].client_linear - DELTA * start)
        return float(own.abs().max())

    mean = torch.cat([p.detach().reshape(-1) for p in network().parameters()])
    assert shared(changed("duals start at zero", 1), mean) < 1e-9
    assert shared(states_of(ROW, 1, SOLVER), mean) > 1e-3
