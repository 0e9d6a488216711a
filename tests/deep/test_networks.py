"""The papers' networks have the papers' sizes, and use what they are given."""

import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="the deep-learning path needs the extra `torch`")
from bayesadmm_np.torch import MLP  # noqa: E402
from oracles.papers import networks  # noqa: E402
from oracles.refusals import assert_refused  # noqa: E402

AcarCNN, LeNet, ResNet20, ZenkeCNN = networks.AcarCNN, networks.LeNet, networks.ResNet20, networks.ZenkeCNN


def count(model):
    return sum(p.numel() for p in model.parameters())


# Counted by hand from the layers: k·k·in·out + out for a convolution, in·out + out for a dense layer. ResNet-20's
# 269 722 is the "0.27M" of He et al.; ZenkeCNN is the well-known CIFAR-10 example of Keras with 1 250 858.
SIZES = [
    (lambda: MLP(), (28, 28), 10, 784 * 200 + 200 + 200 * 100 + 100 + 100 * 10 + 10, 178_110),
    (
        lambda: ZenkeCNN(),
        (3, 32, 32),
        10,
        (27 * 32 + 32) + (288 * 32 + 32) + (288 * 64 + 64) + (576 * 64 + 64) + (2304 * 512 + 512) + (5120 + 10),
        1_250_858,
    ),
    (
        lambda: AcarCNN(),
        (3, 32, 32),
        10,
        (75 * 64 + 64) + (1600 * 64 + 64) + (1600 * 384 + 384) + (384 * 192 + 192) + (1920 + 10),
        797_962,
    ),
    (
        lambda: LeNet(),
        (3, 32, 32),
        10,
        (75 * 16 + 16) + (400 * 32 + 32) + (800 * 120 + 120) + (120 * 84 + 84) + (840 + 10),
        121_182,
    ),
    (
        lambda: ResNet20(norm="batch"),
        (3, 32, 32),
        10,
        9 * (3 * 16 + 6 * 16 * 16 + 16 * 32 + 5 * 32 * 32 + 32 * 64 + 5 * 64 * 64)
        + 2 * (7 * 16 + 6 * 32 + 6 * 64)
        + 650,
        269_722,
    ),
    (lambda: ResNet20(norm="frn"), (3, 32, 32), 10, 269_722 + 7 * 16 + 6 * 32 + 6 * 64, 270_410),
    (lambda: ResNet20(n_classes=100), (3, 32, 32), 100, 270_410 + 90 * 65, 276_260),
]


def test_sizes():
    torch.manual_seed(0)
    for make, shape, classes, by_hand, known in SIZES:
        model = make()
        assert count(model) == by_hand == known
        logits = model(torch.randn(3, *shape))
        assert logits.shape == (3, classes)
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


def test_rows_do_not_see_each_other_without_batch_normalisation():
    torch.manual_seed(0)
    x = torch.randn(4, 3, 32, 32)
    for norm, independent in (("frn", True), ("batch", False)):
        model = ResNet20(norm=norm)
        alone = torch.cat([model(x[i : i + 1]) for i in range(4)])
        # float32 sums of 64 terms through 20 layers
        assert ((model(x) - alone).abs().max() < 1e-4) == independent


def test_wrong_arguments_are_named():
    assert_refused(
        [
            (lambda: MLP((784,)), "widths"),
            (lambda: MLP((784, 0)), "widths"),
            (lambda: MLP((784, 10), "tanh"), "activation"),
        ]
    )
