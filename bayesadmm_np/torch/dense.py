"""Fully connected networks, and their gradients by hand: a matrix product a layer, for a stack, into one flat buffer.

Autograd and vmap cost more than the arithmetic of networks as small as 784-200-100-10.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from .._validation import as_count

Slope = Callable[[Tensor], Tensor]

ACTIVATIONS: dict[type[nn.Module], tuple[Callable[[Tensor], Tensor], Slope]] = {
    nn.Sigmoid: (torch.sigmoid_, lambda a: a * (1.0 - a)),
    nn.Tanh: (torch.tanh_, lambda a: 1.0 - a * a),
    nn.ReLU: (torch.relu_, lambda a: (a > 0).to(a.dtype)),
}
"""f in place, and f′ as a function of f."""


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


@dataclass(frozen=True)
class Dense:
    """Plain networks x ↦ W_L f(… f(W_1x + b_1) …) + b_L for clients with parameters of their own.

    `shapes` are those of W_1 … W_L in the flat vector W_1, b_1, W_2, b_2, …; `between` are the activations. With
    `flattens`, inputs of any shape are made vectors first.
    """

    shapes: tuple[tuple[int, int], ...]
    between: tuple[type[nn.Module], ...]
    flattens: bool

    @classmethod
    def of(cls, module: nn.Module) -> Dense | None:
        """Return `module` in this form: dense layers with biases and known activations in turns, or None."""
        layers: list[nn.Module] = [module]
        if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
            layers = list(module)
        flattens = type(layers[0]) is nn.Flatten and (layers[0].start_dim, layers[0].end_dim) == (1, -1)
        layers = layers[flattens:]
        linear = [x for x in layers[::2] if type(x) is nn.Linear and x.bias is not None]
        between = [type(x) for x in layers[1::2] if type(x) in ACTIVATIONS]
        fits = len(linear) == len(between) + 1 and len(linear) + len(between) == len(layers)
        # one by one: a bias may come before its weight (after `prune.remove`), be shared, frozen or the module's own
        wanted = [p for x in linear for p in (x.weight, x.bias)]
        trained = [p for p in module.parameters() if p.requires_grad]
        is_plain = len(trained) == len(wanted) and all(a is b for a, b in zip(trained, wanted, strict=True))
        if not fits or not is_plain or any(map(runs_own_code, module.modules())):
            return None
        return cls(tuple((x.weight.shape[0], x.weight.shape[1]) for x in linear), tuple(between), flattens)

    def takes(self, X: Tensor) -> bool:
        """Return whether rows of this shape (X has shape (K, B, …)) are vectors for the first layer."""
        return self.flattens or X.ndim == 3

    def split(self, flat: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return views of a (K, P) tensor: W_l, shape (K, out, in), and b_l, shape (K, out)."""
        views, start = [], 0
        for rows, columns in self.shapes:
            stop = start + rows * columns
            views.append((flat[:, start:stop].unflatten(1, (rows, columns)), flat[:, stop : stop + rows]))
            start = stop + rows
        return views

    @torch.no_grad()
    def pull_back(self, theta: Tensor, out: Tensor, X: Tensor, slope_at: Slope) -> Tensor:
        """Write ∇_θ of a function of the logits into `out`; `slope_at` gives its derivatives in them, (K, B, C)."""
        layers, slots = self.split(theta), self.split(out)
        activations = [X.flatten(2)]
        for (W, b), kind in zip(layers, (*self.between, None), strict=True):
            z = torch.baddbmm(b[:, None], activations[-1], W.mT)
            activations.append(z if kind is None else ACTIVATIONS[kind][0](z))
        slope = slope_at(activations.pop())
        for i in reversed(range(len(layers))):
            torch.bmm(slope.mT, activations[i], out=slots[i][0])
            torch.sum(slope, dim=1, out=slots[i][1])
            if i:
                slope = torch.bmm(slope, layers[i][0]).mul_(ACTIVATIONS[self.between[i - 1]][1](activations[i]))
        return out


def runs_own_code(module: nn.Module) -> bool:
    """Return whether a pass through the module runs code of the user's: a hook, or a forward of this one object."""
    hooks = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
    return any(hooks) or "forward" in vars(module)
