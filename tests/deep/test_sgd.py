"""Local work by stochastic gradient descent: its recursion, its fixed points, and what is refused."""

import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="the deep-learning path needs the extra `torch`")
from bayesadmm_np import methods  # noqa: E402
from bayesadmm_np.torch import IVONADMM, SGDSteps, run  # noqa: E402
from oracles.refusals import assert_refused  # noqa: E402
from oracles.small_networks import binary  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def linear():
    model = torch.nn.Linear(4, 2, bias=False, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(torch.arange(8.0).view(2, 4) / 10.0)
    return model


def by_hand(rows, lr, momentum, steps):
    """θ ← θ − αb with b ← βb + ∇(ℓ/N), on all rows of a client at once."""
    theta, b = linear().weight.detach().requires_grad_(), 0.0
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
    found = run(methods.FedAvg(), rows, linear(), 1e-9, 1, solver=solver, batched=batched).mean

    def expected(beta):
        return (12 * by_hand(rows[0], 0.3, beta, 6) + 7 * by_hand(rows[1], 0.3, beta, 6)) / 19

    assert (found - expected(momentum)).abs().max() < 1e-8  # δ pulls by 1e-9
    assert (found - expected(0.9 - momentum)).abs().max() > 1e-2  # the twin: the other momentum


def test_what_does_not_fit_is_refused():
    wrong = lambda: run(IVONADMM(), binary((12, 7)), linear(), solver=SGDSteps())  # noqa: E731
    assert_refused([(lambda: SGDSteps(momentum=1.0), "momentum"), (wrong, "IVON-ADMM")])
