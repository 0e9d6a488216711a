"""A run's message names predictions that no row has a part in, and a variance that is not the residuals'."""

import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="the deep-learning path needs the extra `torch`")

from torch import nn  # noqa: E402

from bayesadmm_np import methods  # noqa: E402
from bayesadmm_np.torch import Bernoulli, Categorical, Gaussian, OwnLoss, Rows, run  # noqa: E402
from bayesadmm_np.torch.round import DONE  # noqa: E402

SOURCE = torch.Generator().manual_seed(0)
X = torch.randn(60, 3, generator=SOURCE, dtype=torch.float64)
SHORT = {"rounds": 2, "prior_precision": 1e-3}


def message(y, outputs, likelihood, start=None, weights=None):
    """Message of FedAvg with two clients; the network is linear, and starts at a multiple of the identity."""
    torch.manual_seed(0)
    model = nn.Linear(3, outputs).double()
    if start is not None:
        with torch.no_grad():
            model.weight.copy_(start * torch.eye(outputs, 3))
            model.bias.zero_()
    w = torch.ones(60, dtype=torch.float64) if weights is None else weights
    clients = [Rows(X[part], y[part], w[part]) for part in (slice(0, 25), slice(25, 60))]
    return run(methods.FedAvg(), clients, model, likelihood=likelihood, **SHORT).message


@pytest.mark.parametrize(("likelihood", "outputs"), [(Categorical(), 3), (Bernoulli(), 1)])
def test_predictions_worse_than_a_constant_are_named(likelihood, outputs):
    """Two rounds of small steps do not mend a start that is confident of wrong classes. Twin: of the right ones."""
    y = X[:, :outputs].argmax(dim=1) if outputs > 1 else (X[:, 0] > 0).long()
    assert "the same for every row fit better" in message(y, outputs, likelihood, start=-20.0)
    assert message(y, outputs, likelihood, start=20.0) == DONE


def test_a_variance_that_is_not_the_residuals_is_named():
    """Residuals of the mean square 0.01. Twins: that variance, and one not four times as large."""
    y = X @ torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64) + 0.1 * torch.randn(60, generator=SOURCE).double()

    def said(variance):
        torch.manual_seed(0)
        model = nn.Linear(3, 1).double()
        with torch.no_grad():
            model.weight.copy_(torch.tensor([[1.0, 2.0, -1.0]]))
            model.bias.zero_()
        clients = [Rows(X[:25], y[:25]), Rows(X[25:], y[25:])]
        return run(methods.FedAvg(), clients, model, likelihood=Gaussian(variance), **SHORT).message

    assert "give likelihood=Gaussian(0.0" in said(1.0)
    assert "give likelihood=Gaussian(" in said(1e-4)
    assert said(0.01) == said(0.03) == DONE


def test_a_loss_without_a_known_constant_is_not_judged():
    assert message(X[:, 0], 1, OwnLoss(distance), start=-20.0) == DONE


def distance(outputs, y):
    return (outputs[:, 0] - y).abs()


@pytest.mark.parametrize(
    ("likelihood", "y", "outputs"),
    [
        (Categorical(), torch.arange(60) % 7 % 3, 3),
        (Bernoulli(), (torch.arange(60) % 3 == 0).long(), 1),
        (Gaussian(0.3), X[:, :2], 2),
    ],
)
def test_the_constant_costs_least(likelihood, y, outputs):
    """The slope of Σ wℓ is zero to rounding, and the sum is convex. Twin: without the weights."""
    w = torch.rand(60, generator=SOURCE, dtype=torch.float64)

    def slope(weights):
        best = likelihood.constant(y, weights, outputs)
        return likelihood.slope(best.expand(60, -1).clone(), y, w).sum(dim=0).abs().max()

    assert slope(w) < 1e-12 * 60
    assert slope(torch.ones_like(w)) > 0.1


def test_probabilities_in_place_of_logits_are_refused():
    clients = [Rows(X, (X[:, 0] > 0).long())]
    with pytest.raises(ValueError, match="client 0: the model must return logits, got probabilities"):
        run(methods.FedAvg(), clients, nn.Sequential(nn.Linear(3, 2).double(), nn.Softmax(dim=1)))
    run(methods.FedAvg(), clients, nn.Sequential(nn.Linear(3, 2).double(), nn.LogSoftmax(dim=1)), rounds=1)
