"""Gradients of plain networks by hand against autograd's."""

from functools import partial

import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="the deep-learning path needs the extra `torch`")
from torch.nn.utils import prune  # noqa: E402

from bayesadmm_np.torch import MLP  # noqa: E402
from bayesadmm_np.torch.dense import ACTIVATIONS, Dense  # noqa: E402
from bayesadmm_np.torch.network import Network  # noqa: E402

nn = torch.nn


def tanh_and_relu():
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))


PLAIN = {
    "perceptron of images": (lambda: MLP((6, 5, 4, 3)), (2, 3)),
    "tanh and relu of vectors": (tanh_and_relu, (6,)),
    "one layer": (lambda: nn.Linear(6, 3), (6,)),
}


def batch(K, shape):
    source = torch.Generator().manual_seed(1)
    X = torch.randn(K, 7, *shape, generator=source, dtype=torch.float64)
    y = torch.randint(0, 3, (K, 7), generator=source)
    weights = torch.rand(K, 7, generator=source, dtype=torch.float64)
    weights[:, -1] = 0.0
    return {"X": X, "y": y, "weights": weights}


def gradients(net, K, **rows):
    source = torch.Generator().manual_seed(2)
    return gradients_at(net, torch.randn(K, len(net.start), generator=source, dtype=torch.float64), **rows)


def gradients_at(net, theta, X, y, weights):
    return net.gradient(theta, torch.empty_like(theta), X, partial(net.likelihood.slope, y=y, weights=weights), {})


@pytest.mark.parametrize("K", [1, 4])
@pytest.mark.parametrize(("make", "shape"), PLAIN.values(), ids=PLAIN.keys())
def test_dense_gradients_are_those_of_autograd(make, shape, K):
    """Sums of 7 rows of float64 numbers of order 1, through three layers."""
    net, rows = Network(make().double(), torch.device("cpu")), batch(K, shape)
    assert net.dense is not None
    found = gradients(net, K, **rows)
    net.dense = None
    assert (found - gradients(net, K, **rows)).abs().max() < 1e-13


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_a_wrong_slope_is_seen(kind, monkeypatch):
    """The twin of the test above: f′ = 1."""
    net, rows = (
        Network(nn.Sequential(nn.Linear(6, 5), kind(), nn.Linear(5, 3)).double(), torch.device("cpu")),
        batch(2, (6,)),
    )
    right = gradients(net, 2, **rows)
    monkeypatch.setitem(ACTIVATIONS, kind, (ACTIVATIONS[kind][0], torch.ones_like))
    assert (right - gradients(net, 2, **rows)).abs().max() > 1e-2


def hooked():
    module = tanh_and_relu()
    module[0].register_forward_hook(lambda *_: None)
    return module


def frozen():
    module = tanh_and_relu()
    module[0].weight.requires_grad_(False)
    return module


def tied():
    module = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    module[2].weight = module[0].weight
    return module


def pruned():
    """Torch puts a weight that was pruned, or parametrised, behind its bias."""
    module = tanh_and_relu()
    prune.l1_unstructured(module[0], "weight", 0.5)
    prune.remove(module[0], "weight")
    assert [name for name, _ in module[0].named_parameters()] == ["bias", "weight"]
    return module


def tied_with_one_of_its_own():
    module = tied()  # as many parameters as two layers have, and not theirs
    module.register_parameter("scale", nn.Parameter(torch.ones(9)))
    return module


def doubled_by_hand():
    module = tanh_and_relu()
    forward = module[0].forward
    module[0].forward = lambda x: 2 * forward(x)
    return module


class Doubled(nn.Sequential):
    def forward(self, x):
        return 2 * super().forward(x)


OTHERS = {
    "convolution": lambda: nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)),
    "dropout": lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Dropout(), nn.Linear(5, 3)),
    "another activation": lambda: nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 3)),
    "activation at the end": lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU()),
    "no bias": lambda: nn.Linear(6, 3, bias=False),
    "normalised weights": lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 3))),
    "a forward of its own": lambda: Doubled(*tanh_and_relu()),
    "hooks": hooked,
    "frozen": frozen,
    "tied": tied,
    "tied, and a parameter of its own": tied_with_one_of_its_own,
    "pruned": pruned,
    "a forward of one object": doubled_by_hand,
}


def test_other_networks_are_left_to_autograd():
    assert [name for name, make in OTHERS.items() if Dense.of(make()) is not None] == []


def test_rows_that_are_no_vectors_are_left_to_autograd():
    """Without a layer that flattens, nn.Linear maps the last dimension of an image."""
    dense = Dense.of(tanh_and_relu())
    assert dense.takes(torch.zeros(2, 7, 6))
    assert not dense.takes(torch.zeros(2, 7, 3, 6))


def test_autocast_is_left_to_autograd():
    net, rows = Network(MLP((6, 5, 3)), torch.device("cpu")), batch(1, (6,))
    rows["X"], rows["weights"] = rows["X"].float(), rows["weights"].float()
    whole = gradients_at(net, net.start[None], **rows)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = gradients_at(net, net.start[None], **rows)
    assert rounded.dtype == torch.float32
    # products of numbers of 8 bits
    assert 0 < (rounded - whole).abs().max() < 0.05
