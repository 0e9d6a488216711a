"""Networks of a user's own: sequences of tokens, modules that cannot be stacked, devices that are not offered."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="the deep-learning path needs the extra `torch`")
from bayesadmm_np import methods  # noqa: E402
from bayesadmm_np.torch import Rows, SGDSteps, merge, run  # noqa: E402
from bayesadmm_np.torch import team as teams  # noqa: E402
from bayesadmm_np.torch.curvature import diagonal_ggn  # noqa: E402
from bayesadmm_np.torch.network import Network  # noqa: E402
from oracles.small_networks import ADAM, IVON, KINDS, curvature_by_autograd  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
nn = torch.nn


class Sequences(nn.Module):
    """Tokens, embedded, through a recurrent layer or their mean."""

    def __init__(self, is_recurrent):
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.middle = nn.LSTM(6, 6, batch_first=True) if is_recurrent else None
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        found = self.embedding(x)
        found = found.mean(dim=1) if self.middle is None else self.middle(found)[0][:, -1]
        return self.last(found)


def model(is_recurrent=False):
    torch.manual_seed(1)
    return Sequences(is_recurrent).double()


def tokens(weights=False):
    source = torch.Generator().manual_seed(0)
    made = []
    for n in (20, 13):
        X = torch.randint(0, 11, (n, 5), generator=source)
        w = torch.rand(n, generator=source, dtype=torch.float64) if weights else None
        made.append(Rows(X, X[:, 0] % 3, w))
    return made


class OneHot(nn.Module):
    """The same function of one-hot vectors in floating point."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner.last((x @ self.inner.embedding.weight).mean(dim=1))


@pytest.mark.parametrize(
    ("name", "weights"), [("IVON-ADMM", True), ("FedLapCov", False), ("FedLapCov", True), ("FedLap-Func", False)]
)
def test_tokens_are_inputs(name, weights):
    """Against the same network on one-hot vectors, to rounding: 2 rounds of float64 steps keep 1e-9.

    The twin has other tokens. (The server's Adam of FedLap-Func makes steps of rounding where weighted terms cancel.)
    """
    method, solver = KINDS[name]
    clients = tokens(weights)
    hot = [Rows(nn.functional.one_hot(rows.X, 11).double(), rows.y, rows.weights) for rows in clients]
    found = run(method, clients, model(), rounds=2, solver=solver, evaluate=clients[0])
    expected = run(method, hot, OneHot(model()), rounds=2, solver=solver, evaluate=hot[0])
    assert (found.mean - expected.mean).abs().max() < 1e-9
    assert found.history[-1].at_mean.nll == pytest.approx(expected.history[-1].at_mean.nll, rel=1e-9)
    assert found.certificate().pooled == pytest.approx(expected.certificate().pooled, rel=1e-7)
    other = [replace(rows, X=(rows.X + 1) % 11) for rows in clients]
    assert (run(method, other, model(), rounds=2, solver=solver).mean - expected.mean).abs().max() > 1e-4
    assert merge(clients).X.dtype == torch.int64


def test_a_layer_that_torch_cannot_stack_is_trained_one_client_after_the_other():
    """An LSTM under vmap has no rule: one sentence says so, once, and the numbers are those of `batched=False`."""
    method, solver = KINDS["IVON-ADMM"]

    def go(batched):
        return run(method, tokens(), model(is_recurrent=True), rounds=2, solver=solver, batched=batched).mean

    alone = go(batched=False)
    with pytest.warns(UserWarning, match="clients are trained one after the other, torch cannot stack them") as caught:
        stacked = go(batched=True)
    assert len(caught) == 1
    assert (stacked - alone).abs().max() < 1e-11


def test_what_is_wrong_with_a_network_is_no_question_of_stacks():
    class Broken(nn.Linear):
        def forward(self, x):
            if self.training:
                raise RuntimeError("something else")
            return super().forward(x)

    clients = [Rows(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]))] * 2
    with pytest.raises(RuntimeError, match="something else"):
        run(methods.FedAvg(), clients, Broken(2, 2), rounds=1, solver=ADAM)


def test_a_device_that_is_not_offered_is_refused(monkeypatch):
    """As on a Mac, where torch has one: no float64, and never tested."""
    assert teams.read_device("cpu").type == "cpu"
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: torch.ones(1))
    with pytest.raises(ValueError, match="device='mps' cannot be used: only 'cpu' and 'cuda'"):
        teams.read_device("mps")


class Attentive(nn.Module):
    """Tokens through one layer of a transformer."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 4)
        self.layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True)
        self.last = nn.Linear(4, 3)

    def forward(self, x):
        return self.last(self.layer(self.embedding(x)).mean(dim=1))


def attentive():
    torch.manual_seed(1)
    return Attentive().double()


@pytest.mark.parametrize("name", ["IVON-ADMM", "FedLapCov"])
def test_a_transformer_is_trained_in_stacks_and_scored_by_samples(name):
    """Without a warning, with the numbers of one client after the other: two rounds of float64 steps keep 1e-9.

    By SGD, because the loss does not depend on a key's bias, and Adam makes steps of its gradient's rounding.
    """
    method, solver = KINDS[name]
    solver = IVON if name == "IVON-ADMM" else SGDSteps(epochs=2, batch_size=8, lr=0.1)
    clients = tokens()
    found, alone = (
        run(method, clients, attentive(), rounds=2, solver=solver, evaluate=clients[0], ensemble=8, batched=batched)
        for batched in (True, False)
    )
    assert (found.mean - alone.mean).abs().max() < 1e-9
    assert (found.precision / alone.precision - 1).abs().max() < 1e-9
    assert found.history[-1].ensemble.nll == pytest.approx(alone.history[-1].ensemble.nll, rel=1e-9)


@pytest.mark.parametrize("module", [attentive, lambda: model(is_recurrent=True)], ids=["transformer", "LSTM"])
def test_curvature_and_linearisation_are_those_of_the_jacobian(module):
    """By autograd, row by row. Sums of 20 rows in float64: 1e-10 of the largest. The twin has another point."""
    network, rows = Network(module(), torch.device("cpu")), tokens()[0]
    theta = network.start
    expected, J = curvature_by_autograd(network, theta, rows)
    found = diagonal_ggn(network, theta, rows, {})
    assert (found - expected).abs().max() < 1e-10 * expected.max()
    assert (diagonal_ggn(network, 1.1 * theta, rows, {}) - expected).abs().max() > 1e-3 * expected.max()
    change = torch.randn(len(theta), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    linear = network.predict_linear(theta, change, rows.X, {})
    assert (linear - network.predict(theta, rows.X, {}) - J @ change).abs().max() < 1e-10


@pytest.mark.parametrize("is_frozen", [True, False])
def test_tied_weights_are_one_parameter(is_frozen):
    """An embedding that is the last layer's matrix too: gradients of both uses, and it moves once or not at all."""

    class Tied(Sequences):
        def __init__(self):
            super().__init__(is_recurrent=False)
            self.last = nn.Linear(6, 11)
            self.last.weight = self.embedding.weight

    torch.manual_seed(1)
    tied = Tied().double()
    tied.embedding.weight.requires_grad_(not is_frozen)
    method, solver = KINDS["FedLapCov"]
    result = run(method, tokens(), tied, rounds=1, solver=solver)
    trained = result.model()
    assert len(result.mean) == (11 if is_frozen else 77)
    assert trained.last.weight is trained.embedding.weight
    assert torch.equal(trained.last.weight, tied.last.weight) == is_frozen
    network, rows = Network(tied, torch.device("cpu")), tokens()[0]
    expected, _ = curvature_by_autograd(network, network.start, rows)
    assert (diagonal_ggn(network, network.start, rows, {}) - expected).abs().max() < 1e-10 * expected.max()


def test_half_precision_is_refused_with_what_was_got():
    with pytest.raises(ValueError, match=r"got torch\.bfloat16"):
        run(methods.FedAvg(), tokens(), model().bfloat16(), rounds=1, solver=ADAM)
