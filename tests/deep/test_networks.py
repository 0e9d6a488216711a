"""The papers' networks have the papers' sizes, and use what they are given."""

import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="the deep-learning path needs the extra `torch`")
from bayesadmm_np.torch import MLP  # noqa: E402
from oracles.papers import networks  # noqa: E402
from oracles.refusals import assert_refused  # noqa: E402

# ResNet-20's 269 722 is the "0.27M" of He et al.; ZenkeCNN is the well-known CIFAR-10 example of Keras
SIZES = [
    (MLP, {}, (28, 28), 178_110),
    (networks.ZenkeCNN, {}, (3, 32, 32), 1_250_858),
    (networks.AcarCNN, {}, (3, 32, 32), 797_962),
    (networks.LeNet, {}, (3, 32, 32), 121_182),
    (networks.ResNet20, {"norm": "batch"}, (3, 32, 32), 269_722),
    (networks.ResNet20, {"norm": "group"}, (3, 32, 32), 269_722),
    (networks.ResNet20, {"norm": "frn"}, (3, 32, 32), 269_722 + 7 * 16 + 6 * 32 + 6 * 64),
]


@pytest.mark.parametrize(("make", "options", "shape", "size"), SIZES)
def test_sizes(make, options, shape, size):
    torch.manual_seed(0)
    model = make(**options)
    assert sum(p.numel() for p in model.parameters()) == size
    logits = model(torch.randn(3, *shape))
    assert logits.shape == (3, 10)
    logits.sum().backward()
    assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in model.parameters())


def test_filter_response_norm_is_its_formula():
    layer = networks.FilterResponseNorm(2, eps=1e-3).double()
    with torch.no_grad():
        for p, value in zip(layer.parameters(), (1.5, 0.2, -0.1), strict=True):
            p.fill_(value)
    x = torch.randn(4, 2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = torch.empty_like(x)
    for i in range(4):
        for c in range(2):
            scale = ((x[i, c] ** 2).sum() / 15 + 1e-3) ** 0.5
            expected[i, c] = (1.5 * x[i, c] / scale + 0.2).clamp(min=-0.1)
    assert (layer(x) - expected).abs().max() < 1e-14  # a few roundings of numbers below 5
    assert (layer(x) - (expected - 0.2)).abs().max() > 0.1  # the twin without its shift


def test_wrong_arguments_are_named():
    wrong = [(lambda: MLP((784,)), "widths"), (lambda: MLP((784, 0)), "widths")]
    assert_refused([*wrong, (lambda: MLP((784, 10), "tanh"), "activation")])
