"""The diagonal of the generalised Gauss-Newton matrix of the cross entropy, for FedLap-Cov."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import vjp, vmap

from .network import Network, Rows

__all__ = ["diagonal_ggn"]

CHUNK = 8
"""Rows whose gradients, one a class, are held at the same time where a network is not dense."""


def diagonal_ggn(network: Network, theta: Tensor, rows: Rows, buffers: dict[str, Tensor]) -> Tensor:
    """The diagonal of Σ_i w_iJ_iᵀ(diag p_i − p_ip_iᵀ)J_i at θ, shape (P,): exact and >= 0.

    For Eq. 14 of Swaroop et al. 2025. diag p − ppᵀ = Σ_c a_ca_cᵀ with a_c = √p_c(e_c − p), so that the squares of C
    gradients a row add up to it. In a network of dense layers Σ_i (b_iz_iᵀ)² = (b²)ᵀz² for inputs z and slopes
    b of the outputs, and no row needs a gradient of its own. The network is in evaluation mode.
    """
    each, chunk = (_dense, 1000) if _is_dense(network.module) else (_by_row, CHUNK)
    some = zip(rows.X.split(chunk), rows.weighted.to(theta).split(chunk), strict=True)
    parts = [each(network, theta, X, weights, buffers) for X, weights in some]
    return torch.stack(parts).sum(dim=0)


def _is_dense(module: nn.Module) -> bool:
    """Whether all parameters belong to dense layers that see one vector a row, as in a plain sequence."""
    layers = [layer for layer in module.modules() if list(layer.parameters(recurse=False))]
    flat = isinstance(module, nn.Linear) or (
        isinstance(module, nn.Sequential)
        and isinstance(module[0], nn.Flatten)
        and not any(list(child.children()) for child in module)
    )
    return flat and len(set(layers)) == len(layers) and all(type(layer) is nn.Linear for layer in layers)


def _roots(logits: Tensor) -> Tensor:
    """a_c as row c, shape (..., C, C)."""
    p = logits.softmax(dim=-1)
    return p.sqrt().diag_embed() - p.sqrt()[..., :, None] * p[..., None, :]


def _dense(network: Network, theta: Tensor, X: Tensor, weights: Tensor, buffers: dict[str, Tensor]) -> Tensor:
    seen: list[tuple[Tensor, Tensor]] = []
    layers = [layer for layer in network.module.modules() if isinstance(layer, nn.Linear)]
    hooks = [layer.register_forward_hook(lambda _, inputs, out: seen.append((inputs[0], out))) for layer in layers]
    try:
        logits = network.logits(network.leaves(theta[None]), X[None], buffers, train=False)[0]
    finally:
        for hook in hooks:
            hook.remove()
    # the inputs are the same for all classes, so one product a layer is enough
    total = [torch.zeros_like(out) for _, out in seen]
    for slope in _roots(logits.detach()).unbind(dim=1):
        gradients = torch.autograd.grad(logits, [out for _, out in seen], slope, retain_graph=True)
        for squares, gradient in zip(total, gradients, strict=True):
            squares.addcmul_(gradient, gradient)
    parts = []
    for layer, (inputs, _), squares in zip(layers, seen, total, strict=True):
        squares.mul_(weights[:, None])
        if layer.weight.requires_grad:
            parts.append((squares.T @ inputs.detach().square()).reshape(-1))
        if layer.bias is not None and layer.bias.requires_grad:
            parts.append(squares.sum(dim=0))
    return torch.cat(parts)


def _by_row(network: Network, theta: Tensor, X: Tensor, weights: Tensor, buffers: dict[str, Tensor]) -> Tensor:
    leaves = [leaf.detach() for leaf in network.leaves(theta[None])]

    def slopes(x: Tensor) -> tuple[Tensor, ...]:
        def logits(*leaves: Tensor) -> Tensor:
            return network.logits(leaves, x[None, None], buffers, train=False)[0, 0]

        # indexed, because its type depends on an option that is not used here
        pulled = vjp(logits, *leaves)
        return vmap(pulled[1])(_roots(pulled[0]))

    squares = [g.square().sum(dim=1).flatten(1) for g in vmap(slopes)(X)]
    return torch.cat([weights @ square for square in squares])
