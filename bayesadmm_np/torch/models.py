"""A fully connected network, that of most of the papers' tables."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

from torch import nn

from .._validation import as_count


class MLP(nn.Sequential):
    """Fully connected, sigmoids or ReLU between; 784-200-100-10 with sigmoids is McMahan's, and the papers' tables'.

    Images of any shape are flattened. 178 110 parameters by default.

    Parameters
    ----------
    widths : tuple of int, default (784, 200, 100, 10)
    activation : {'sigmoid', 'relu'}

    Raises
    ------
    ValueError
        When there are fewer than two widths, one is not positive, or the activation is neither.

    Examples
    --------
    >>> import torch
    >>> from bayesadmm_np.torch import MLP
    >>> MLP()(torch.zeros(2, 28, 28)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self, widths: tuple[int, ...] = (784, 200, 100, 10), activation: Literal["sigmoid", "relu"] = "sigmoid"
    ) -> None:
        sizes = [as_count(width, "widths") for width in widths]
        if activation not in ("sigmoid", "relu"):
            raise ValueError(f"activation must be 'sigmoid' or 'relu', got {activation!r}.")
        if len(sizes) < 2:
            raise ValueError(f"widths must hold at least two numbers, got {widths!r}.")
        layers: list[nn.Module] = [nn.Flatten()]
        for inputs, outputs in pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.Sigmoid() if activation == "sigmoid" else nn.ReLU()]
        super().__init__(*layers[:-1])
