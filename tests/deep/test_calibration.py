"""Reliability diagrams, and how well entropy tells rows of another kind."""

import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="the deep-learning path needs the extra `torch`")
from bayesadmm_np.torch import score  # noqa: E402
from oracles.papers import auroc, reliability  # noqa: E402

fails = pytest.raises(AssertionError)


def drawn(n, seed, sharpness=1.0):
    logits = sharpness * torch.randn(n, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return logits.softmax(dim=1)


def test_the_diagram_is_what_ece_sums():
    p = drawn(500, 0, 2.0)
    y = torch.randint(4, (500,), generator=torch.Generator().manual_seed(1))
    found = {name: np.array(values) for name, values in reliability(p, y).items()}
    gap = np.abs(found["accuracy"] - found["confidence"]) @ found["rows"] / 500
    assert gap == pytest.approx(score(p.log(), y).ece, rel=1e-12)
    confidence, right = p.max(dim=1).values.numpy(), (p.argmax(dim=1) == y).numpy()
    edges = np.ceil(confidence * 15)
    for row, b in enumerate(np.unique(edges)):  # by hand
        assert found["rows"][row] == (edges == b).sum()
        assert found["accuracy"][row] == pytest.approx(right[edges == b].mean(), rel=1e-12)
        assert found["confidence"][row] == pytest.approx(confidence[edges == b].mean(), rel=1e-12)


def test_auroc_counts_pairs_and_half_of_ties():
    inside = torch.cat([drawn(30, 0, 3.0), torch.full((5, 4), 0.25, dtype=torch.float64)])
    outside = torch.cat([drawn(40, 10), inside[:3], torch.full((4, 4), 0.25, dtype=torch.float64)])

    def by_pairs(tie):
        a, b = (torch.special.entr(p).sum(dim=1).tolist() for p in (inside, outside))
        return np.mean([1.0 if y > x else tie if y == x else 0.0 for x, y in itertools.product(a, b)])

    assert auroc(inside, outside) == pytest.approx(by_pairs(0.5), rel=1e-12)
    with fails:
        assert auroc(inside, outside) == pytest.approx(by_pairs(0.0), rel=1e-12)
    assert auroc(inside, outside) == pytest.approx(1.0 - auroc(outside, inside), rel=1e-12)
