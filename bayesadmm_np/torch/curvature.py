"""The diagonal of the generalised Gauss-Newton matrix, for FedLap-Cov."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from .dense import runs_own_code
from .network import Network, Rows
from .stream import Stream

CHUNKS = {"dense": 1000, "convolutional": 32, "other": 8}
"""Rows at once, by the kind of network; kinds that are not dense store a gradient a row and class."""
Slopes = Callable[[Tensor, Tensor], Tensor]
"""Outputs of shape (n, C), y → the rows a of a root of the loss's Hessian in the outputs, shape (n, A, C)."""


def diagonal_ggn(
    network: Network,
    theta: Tensor,
    rows: Rows | Stream,
    buffers: dict[str, Tensor],
    samples: int | None = None,
    source: torch.Generator | None = None,
) -> Tensor:
    """Return the diagonal of Σ_i w_iJ_iᵀ∂²ℓ_iJ_i at θ, shape (P,), in evaluation mode (Eq. 14 of Swaroop et al. 2025).

    With ∂²ℓ = Σ aaᵀ, C − 1 terms for C classes, it is the sum of squared gradients with a for the outputs' slope. With
    S samples S gradients a row, at observations drawn from p(y | f), estimate it without bias.
    """
    likelihood = network.likelihood
    slopes_at: Slopes = likelihood.roots if samples is None else lambda f, y: likelihood.drawn(f, samples, source)
    kind = _kind(network.module)
    total, each, size = torch.zeros_like(theta), _by_row if kind == "other" else _by_layer, CHUNKS[kind]
    for X, y, weights in rows.passes(size):
        total += each(network, theta, (X, y, weights.to(theta)), buffers, slopes_at)
    return total


def _kind(module: nn.Module) -> str:
    """Name the kinds of layers with parameters in a plain sequence: dense, also convolutional, or other."""
    children = [module]
    if isinstance(module, nn.Sequential):
        children = list(module) if type(module).forward is nn.Sequential.forward else []
    layers = [child for child in children if list(child.parameters())]
    numbers = [parameter for layer in layers for parameter in layer.parameters()]  # a shared one twice
    is_flat = len(numbers) == len(set(numbers)) and not any(list(child.children()) for child in children)
    if not layers or not is_flat or not all(map(_has_rule, layers)) or any(map(runs_own_code, module.modules())):
        return "other"
    if any(type(layer) is nn.Conv2d for layer in layers):
        return "convolutional"
    return "dense" if len(children) == 1 or isinstance(children[0], nn.Flatten) else "other"


def _has_rule(layer: nn.Module) -> bool:
    if type(layer) is nn.Conv2d:
        return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return type(layer) is nn.Linear


def _by_layer(
    network: Network, theta: Tensor, part: tuple[Tensor, ...], buffers: dict[str, Tensor], slopes_at: Slopes
) -> Tensor:
    """Sum over rows from every layer's inputs and the slopes of its outputs, without the weights' gradients."""
    X, y, weights = part
    seen: list[tuple[nn.Module, Tensor, Tensor]] = []

    def note(layer: nn.Module, inputs: tuple[Tensor], out: Tensor) -> Tensor:
        seen.append((layer, inputs[0].detach(), out))
        return out.clone()  # an activation may work in place

    layers = [layer for layer in network.module.modules() if _has_rule(layer)]
    trained = [layer for layer in layers if any(parameter.requires_grad for parameter in layer.parameters())]
    hooks = [layer.register_forward_hook(note) for layer in trained]
    try:
        logits = network.logits(network.leaves(theta[None]), X[None], buffers, train=False)[0]
    finally:
        for hook in hooks:
            hook.remove()
    slopes = (slopes_at(logits.detach(), y) * weights.sqrt()[:, None, None]).movedim(1, 0)
    parts: list[Tensor] = []
    for (layer, inputs, _), own in zip(seen, _pulled(logits, [out for *_, out in seen], slopes), strict=True):
        if inputs.ndim > 2:
            found = _of_places(layer, inputs, own)
        else:  # Σ_i (b_iz_iᵀ)² = (b²)ᵀz²: no row needs a gradient of its own
            squares = own.square().sum(dim=0)
            found = {"weight": squares.T @ inputs.square(), "bias": squares.sum(dim=0)}
        parts += [found[name].reshape(-1) for name, parameter in layer.named_parameters() if parameter.requires_grad]
    return torch.cat(parts)


def _pulled(logits: Tensor, outputs: list[Tensor], slopes: Tensor) -> Sequence[Tensor]:
    """Return the slopes of layers' outputs, of shape (A, n, ...), in one backward pass where torch can stack them."""
    backward = partial(torch.autograd.grad, logits, outputs, retain_graph=True)
    try:
        return backward(slopes, is_grads_batched=True)
    except RuntimeError:  # a layer that vmap does not know
        return _one_by_one(backward)(slopes)


def _of_places(layer: nn.Module, inputs: Tensor, slopes: Tensor) -> dict[str, Tensor]:
    """A row's gradients are the products of its patches and its slopes, made at once for all slopes."""
    if isinstance(layer, nn.Conv2d):
        assert not isinstance(layer.padding, str)  # such layers are "other"
        patches = nn.functional.unfold(inputs, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
        slopes = slopes.flatten(3)
    else:  # a matrix for a row: one patch a place
        patches, slopes = inputs.flatten(1, -2).mT, slopes.flatten(2, -2).mT
    stacked = slopes.movedim(0, 1).flatten(1, 2)
    total = inputs.new_zeros(patches.shape[1], stacked.shape[1])
    for own, patch in zip(stacked, patches, strict=True):
        gradients = patch @ own.T
        total.addcmul_(gradients, gradients)
    shape = len(slopes), slopes.shape[2]
    weight = total.unflatten(1, shape).sum(dim=1).T
    return {"weight": weight, "bias": stacked.sum(dim=2).square().sum(dim=0).view(shape).sum(dim=0)}


def _by_row(
    network: Network, theta: Tensor, part: tuple[Tensor, ...], buffers: dict[str, Tensor], slopes_at: Slopes
) -> Tensor:
    X, y, weights = part
    leaves = [leaf.detach() for leaf in network.leaves(theta[None])]
    slopes = slopes_at(network.predict(theta, X, buffers), y)

    def squares(over: Any) -> Tensor:
        def gradients(x: Tensor, own: Tensor) -> Any:
            def logits(*leaves: Tensor) -> Tensor:
                return network.logits(leaves, x[None, None], buffers, train=False)[0, 0]

            # indexed, because its type depends on an option that is not used here
            return over(vjp(logits, *leaves)[1])(own)

        return torch.cat([weights @ g.square().sum(dim=1).flatten(1) for g in over(gradients)(X, slopes)])

    with sdpa_kernel(SDPBackend.MATH):  # the other kernels of attention have no rule for vmap
        try:
            return squares(vmap)
        except RuntimeError:  # nor has a layer such as an LSTM
            return squares(_one_by_one)


def _one_by_one(function: Callable[..., Sequence[Tensor]]) -> Callable[..., list[Tensor]]:
    """Return what `vmap` does, in a loop."""
    return lambda *given: [torch.stack(part) for part in zip(*map(function, *given), strict=True)]
