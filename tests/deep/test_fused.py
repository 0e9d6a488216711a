"""Passes over stacks of clients that `torch.compile` makes one kernel of; on a GPU, and here on a CPU by request."""

import shutil

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from bayesadmm_np.torch import IVONADMM, IVONSteps, Rows, kernel, run  # noqa: E402

SIZES = (23, 10, 17, 29, 35)
"""With other numbers of steps each, so that a stack has five sizes."""


def means(epochs, **options):
    """The server's mean after two rounds in which clients drop out of the stack as they are done."""
    source = torch.Generator().manual_seed(0)
    X = [torch.randn(n, 4, generator=source, dtype=torch.float64) for n in SIZES]
    clients = [Rows(x, torch.arange(len(x)) % 3) for x in X]
    torch.manual_seed(0)
    solver = IVONSteps(epochs=epochs, batch_size=5, lr=0.1, hess_init=0.1, beta2=0.9, **options)
    # a stack of all clients, as on a GPU: an activation that is not known
    model = nn.Sequential(nn.Linear(4, 5), nn.Softplus(), nn.Linear(5, 3)).double()
    return run(IVONADMM(0.5, 0.3), clients, model, rounds=2, solver=solver).mean


def counting(monkeypatch, dynamic=True):
    """Let passes be compiled here, to what torch would do anyhow; return the list of programs."""
    programs = []

    def backend(graph, _):
        programs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    made = {f: torch.compile(f, dynamic=dynamic, backend=backend) for f in (kernel._draw, kernel._update)}
    monkeypatch.setattr(kernel, "_is_fused", lambda b: b.mean.ndim == 2)
    monkeypatch.setattr(kernel, "_fused", made.__getitem__)
    return programs


@pytest.mark.parametrize("options", [{}, {"samples": 2, "hess_approx": "gradsq"}, {"debias": False}])
def test_numbers_are_those_of_single_operations(monkeypatch, options):
    """Three programs a pass, however many steps and clients: for one client, some of a stack, and all."""
    expected = means(2, **options)
    programs = counting(monkeypatch)
    found = means(2, **options)
    assert (found - expected).abs().max() < 1e-12 * expected.abs().max()
    assert len(programs) == 6
    means(3, **options)
    assert len(programs) == 6


def test_the_count_can_grow(monkeypatch):
    """The twin: a program for every size of a stack."""
    programs = counting(monkeypatch, dynamic=False)
    means(1)
    assert len(programs) == 2 * len(SIZES)


def test_only_stacks_on_a_gpu(monkeypatch):
    monkeypatch.setattr(kernel, "_has_triton", lambda: True)

    def buffers(*shape, device):
        return kernel.Buffers.like(torch.zeros(*shape, device=device), 0.1)

    assert not kernel._is_fused(buffers(2, 3, device="cpu"))
    assert not kernel._is_fused(buffers(3, device="meta"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a compiler")
def test_what_the_compiler_makes(monkeypatch):
    expected = means(2)
    torch._dynamo.reset()
    monkeypatch.setattr(kernel, "_is_fused", lambda b: b.mean.ndim == 2)
    assert (means(2) - expected).abs().max() < 1e-12 * expected.abs().max()
