"""Passes over stacks of clients that `torch.compile` makes one kernel of; on a GPU, and here on a CPU by request."""

import shutil

import pytest

torch = pytest.importorskip("torch")

from functorch.compile import make_boxed_func  # noqa: E402
from torch import nn  # noqa: E402
from torch._dynamo.backends.common import aot_autograd  # noqa: E402

from bayesadmm_np.torch import IVONADMM, IVONSteps, Rows, arithmetic, kernel, run  # noqa: E402


@pytest.fixture(autouse=True)
def without_numba(monkeypatch):
    monkeypatch.setattr(arithmetic, "IS_COMPILED", False)


SIZES = (23, 10, 17, 29, 35)
"""With other numbers of steps each, so that a stack has five sizes."""


def means(epochs, rho=0.5, **options):
    """The server's mean after two rounds in which clients drop out of the stack as they are done."""
    source = torch.Generator().manual_seed(0)
    X = [torch.randn(n, 4, generator=source, dtype=torch.float64) for n in SIZES]
    clients = [Rows(x, torch.arange(len(x)) % 3) for x in X]
    torch.manual_seed(0)
    solver = IVONSteps(epochs=epochs, batch_size=5, lr=0.1, hess_init=0.1, beta2=0.9, **options)
    # a stack of all clients, as on a GPU: an activation that is not known
    model = nn.Sequential(nn.Linear(4, 5), nn.Softplus(), nn.Linear(5, 3)).double()
    return run(IVONADMM(rho, 0.3), clients, model, rounds=2, solver=solver).mean


def counting(monkeypatch, dynamic=True):
    """Let passes be compiled here, to what torch would do anyhow; return the list of programs."""
    programs = []

    def compiler(graph, _):
        programs.append(graph)
        return make_boxed_func(graph.forward)

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=compiler)  # numbers become part of a program only here
    made = {f: torch.compile(f, dynamic=dynamic, backend=backend) for f in (kernel._draw, kernel._update)}
    monkeypatch.setattr(kernel, "_fuses", lambda kind: True)
    monkeypatch.setattr(kernel, "_fused", made.__getitem__)
    return programs


@pytest.mark.parametrize(
    "options",
    [
        {"clip_radius": 0.02},
        {"samples": 2, "hess_approx": "gradsq"},
        {"debias": False, "rescale_lr": False},
    ],
)
def test_numbers_are_those_of_single_operations(monkeypatch, options):
    """Two programs a pass, however many steps and clients: for some of a stack, and for all; to float64's rounding."""
    expected = means(2, **options)
    programs = counting(monkeypatch)
    found = means(2, **options)
    assert (found - expected).abs().max() < 1e-12 * expected.abs().max()
    assert len(programs) == 4
    means(3, **options, rho=0.7)
    assert len(programs) == 4


def test_the_count_can_grow(monkeypatch):
    """The twin: a program for every size of a stack."""
    programs = counting(monkeypatch, dynamic=False)
    means(1)
    assert len(programs) == 2 * (len(SIZES) - 1)


def test_only_several_clients_on_a_gpu(monkeypatch):
    def is_fused(*shape, device="meta"):
        return kernel.is_fused(kernel.Buffers.like(torch.zeros(*shape, device=device), 0.1))

    assert not is_fused(2, 3, device="cpu")
    monkeypatch.setattr(kernel, "_fuses", lambda kind: kind == "meta")
    assert is_fused(2, 3)
    assert not is_fused(2, 3, device="cpu")
    assert not is_fused(1, 3)
    assert not is_fused(3)


def test_without_a_compiler_there_are_single_operations(monkeypatch):
    def backend(graph, _):
        raise RuntimeError("no C compiler")

    compiles = torch.compile
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", lambda function, dynamic: compiles(function, backend=backend))
    draw = kernel._fused.__wrapped__(kernel._draw)
    b, terms = kernel.Buffers.like(torch.ones(2, 3), 0.1), kernel.Terms(1.0, torch.full((2, 1), 0.1), 1.0)
    with pytest.warns(UserWarning, match=r"IVON runs without torch\.compile.*no C compiler"):
        draw(b, terms)
    assert torch.equal(b.theta, torch.ones(2, 3))
    draw(b, terms)  # and says so once


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a compiler")
def test_what_the_compiler_makes(monkeypatch):
    expected = means(2)
    torch._dynamo.reset()
    monkeypatch.setattr(kernel, "_fuses", lambda kind: True)
    assert (means(2) - expected).abs().max() < 1e-12 * expected.abs().max()
