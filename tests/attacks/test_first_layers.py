"""A crafted first layer gives a server the rows of a run of a network; by the usual rules no network is answered."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="the deep-learning path needs the extra `torch`")

from bayesadmm_np.federation import DisclosureError, DisclosureRules, Message, Site, step_site  # noqa: E402
from bayesadmm_np.torch import FedLaplace, NetworkData, NetworkTask, Rows, SGDSteps  # noqa: E402
from oracles.attacks import recovered  # noqa: E402
from oracles.couriers import started  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
UNITS, N, P = 200, 40, 4


def crafted():
    """Units that are active beyond rising thresholds of one predictor: two in a row differ by the rows between them."""
    model = torch.nn.Sequential(torch.nn.Linear(P, UNITS), torch.nn.ReLU(), torch.nn.Linear(UNITS, 2))
    with torch.no_grad():
        model[0].weight[:] = torch.tensor([0.5, 0.3, -0.4, 0.7])
        model[0].bias[:] = -torch.linspace(-3, 3, UNITS)
        model[2].weight[:] = torch.tensor([[1e-4], [-1e-4]])
        model[2].bias[:] = 0
    return model


def rows_between(sent, reply):
    """One step moves a unit by −lr Σ δ_i (x_i, 1) over its rows; of one row the ratio of differences is the row."""
    moved = reply.arrays["linear"] / reply.arrays["precision"] - sent.arrays["mean"]
    weights, biases = np.diff(moved[: P * UNITS].reshape(UNITS, P), axis=0), np.diff(moved[P * UNITS :][:UNITS])
    return weights[biases != 0] / biases[biases != 0][:, None]


@pytest.mark.parametrize("trusted", [False, True])
def test_a_crafted_first_layer_gives_rows(trusted, tmp_path):
    torch.manual_seed(1)
    X = torch.randn(N, P)
    data, model = Rows(X, (X[:, 0] > 0).long()), crafted()
    task = NetworkTask(FedLaplace(), model, solver=SGDSteps(epochs=1, batch_size=N, lr=1e4), rounds=2)
    rules = DisclosureRules(trusted_server=trusted)
    sites = [Site(name, NetworkData(data, model), rules=rules) for name in "ABC"]
    sent = started(sites, task).broadcast()
    sent.write(tmp_path / "broadcast.npz")
    if trusted:
        _, path = step_site(tmp_path, sites[0], tmp_path / "broadcast.npz")
        assert recovered(X.numpy(), rows_between(sent, Message.read(path)), to=1e-3) > N / 4
    else:
        with pytest.raises(DisclosureError) as raised:
            step_site(tmp_path, sites[0], tmp_path / "broadcast.npz")
        assert raised.value.rule == "trusted_server"
