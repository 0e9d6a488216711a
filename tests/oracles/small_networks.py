"""A small network over four clients of different size, and the states of its runs round by round."""

import torch

from bayesadmm_np import methods
from bayesadmm_np.torch import IVONADMM, MLP, AdamSteps, FedLapFunc, IVONSteps, Rows, run

DELTA = 1.5
SIZES = (23, 10, 17, 8)
SHORT = AdamSteps(epochs=2, batch_size=6, lr=0.01)
ADAM = AdamSteps(epochs=2, batch_size=8, lr=0.01)
IVON = IVONSteps(epochs=2, batch_size=8, lr=0.1, hess_init=0.1, beta2=0.9)
KINDS = {
    "IVON-ADMM": (IVONADMM(0.7, 0.3), IVON),
    "FedLapCov": (methods.FedLapCov(0.3), ADAM),
    "FedLap-Func": (FedLapFunc(0.3, server_steps=20), ADAM),
}
"""A method of each kind, with its solver."""


def problem(sizes=SIZES, dtype=torch.float64):
    """Clients of different size; the last two have two classes of three."""
    source = torch.Generator().manual_seed(0)
    true = torch.randn(4, 3, generator=source, dtype=dtype)
    clients = []
    for k, n in enumerate(sizes):
        X = torch.randn(n, 4, generator=source, dtype=dtype)
        y = (X @ true + 0.5 * torch.randn(n, 3, generator=source, dtype=dtype)).argmax(dim=1)
        clients.append(Rows(X, y.clamp(max=1) if k > 1 else y))
    return clients


def binary(sizes, dtype=torch.float64):
    """Clients of two noisy classes."""
    source = torch.Generator().manual_seed(0)
    made = []
    for n in sizes:
        X = torch.randn(n, 4, generator=source, dtype=dtype)
        made.append(Rows(X, (X[:, 0] > 0.5 * torch.randn(n, generator=source)).long()))
    return made


def network():
    torch.manual_seed(1)
    return MLP((4, 5, 3)).double()


def with_statistics(classes=3):
    """A network of images with batch normalisation."""
    torch.manual_seed(0)
    first = torch.nn.Conv2d(3, 4, 3, bias=False), torch.nn.BatchNorm2d(4), torch.nn.ReLU()
    return torch.nn.Sequential(*first, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(4, classes))


def func(gamma=0.4, **settings):
    return FedLapFunc(gamma, **{"tau": 0.3, "server_steps": 40, "server_lr": 0.01, **settings})


def states_of(method, rounds, solver=SHORT, clients=None, model=None, **options):
    states = []
    options = {"callback": lambda record, state: states.append(state), **options}
    run(method, clients or problem(), model or network(), DELTA, rounds=rounds, solver=solver, **options)
    return states


def curvature_by_autograd(net, theta, rows):
    """The diagonal of Σ_i w_iJ_iᵀ(diag p − ppᵀ)J_i, a gradient a row and class; and the Jacobians."""
    total, jacobians = torch.zeros_like(theta), []
    for x, weight in zip(rows.X, rows.weighted, strict=True):
        leaves = net.leaves(theta[None])
        f = net.logits(leaves, x[None, None], {}, train=False)[0, 0]
        each = [torch.autograd.grad(value, leaves, retain_graph=True) for value in f]
        J = torch.stack([torch.cat([g.reshape(-1) for g in gradients]) for gradients in each])
        p = f.detach().softmax(dim=0)
        total += weight * torch.einsum("cp,cd,dp->p", J, p.diag() - p.outer(p), J)
        jacobians.append(J)
    return total, torch.stack(jacobians)
