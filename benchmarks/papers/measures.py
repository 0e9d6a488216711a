"""Reliability diagrams, and how well the entropy of predictions tells rows of another kind."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesadmm_np.torch.metrics import binned


def reliability(probabilities: Tensor, y: Tensor, bins: int = 15) -> dict[str, list[float]]:
    """Return rows, accuracy and mean confidence of each bin of `Scores.ece` that has rows."""
    rows, right, confidence = binned(probabilities.detach().double(), y, bins)
    there = rows > 0
    means = {"accuracy": right / rows, "confidence": confidence / rows}
    return {"rows": rows[there].tolist(), **{name: x[there].tolist() for name, x in means.items()}}


def auroc(inside: Tensor, outside: Tensor) -> float:
    """Return the probability that a row outside has more entropy than a row inside, and half that of as much.

    ValueError where there are no rows, or an entry is no probability.
    """
    for name, p in (("inside", inside), ("outside", outside)):
        if not len(p) or not bool(((p >= 0) & (p <= 1 + 1e-5)).all()):
            raise ValueError(f"{name} must be rows of probabilities, got NaN, no rows or numbers outside 0 to 1.")
    low, high = (torch.special.entr(p.detach().double()).sum(dim=1) for p in (inside, outside))
    ranked = low.sort().values
    below, within = (torch.searchsorted(ranked, high, right=right).double() for right in (False, True))
    return float(0.5 * (below + within).mean() / len(low))
