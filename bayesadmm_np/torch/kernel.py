"""IVON on flat buffers, of shape (K, P) for a stack of K clients and (P,) for the optimiser.

Line numbers refer to Algorithm 2 (App. D.4) of *Federated ADMM from Bayesian Duality*. The formulas are in
`arithmetic`; here they are applied to buffers, in loops that Numba compiled or by torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from .._validation import as_number, as_positive, as_switch
from . import arithmetic


@dataclass(frozen=True)
class Terms:
    """Terms beside the loss in Eq. 64; numbers, or tensors that broadcast against the buffers; None is zero.

    `ess` is λ, the number of rows over ρτ, `delta` δ = s_p/λ, `rate` α, rescaled by
    `step_rate`, `slope` v − δm_p and `curvature` u.
    """

    ess: float | Tensor
    delta: float | Tensor
    rate: float | Tensor
    slope: Tensor | None = None
    curvature: Tensor | None = None

    def first(self, k: int) -> Terms:
        """Return views of the first k rows of terms of shapes (K, P), (K, 1) and (1, P)."""
        return Terms(*(x[:k] if isinstance(x, Tensor) else x for x in vars(self).values()))


@dataclass(frozen=True)
class Rates:
    """Hyper-parameters of a step but for its learning rate, for the clients' work and the optimiser."""

    hess_init: float
    beta1: float
    beta2: float
    clip_radius: float
    rescale_lr: bool

    def __post_init__(self) -> None:
        as_positive(self.hess_init, "hess_init")
        check_decays(beta1=self.beta1, beta2=self.beta2)
        as_switch(self.rescale_lr, "rescale_lr")
        if isinstance(self.clip_radius, bool | str) or not self.clip_radius > 0:
            raise ValueError(f"clip_radius must be > 0, got {self.clip_radius!r}.")

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Rates:
        """Pick the hyper-parameters from an optimiser's or a solver's settings."""
        return _checked(*(settings[name] for name in cls.__dataclass_fields__))


_checked = lru_cache(maxsize=64, typed=True)(Rates)  # once: an optimiser asks for its own several times in a step


def check_decays(**decays: float) -> None:
    """Check what averages of gradients are multiplied by in a step: β₁ and β₂, or a momentum."""
    for name, value in decays.items():
        if not 0 <= as_number(value, name) < 1:
            raise ValueError(f"{name} must lie in [0, 1), got {value!r}.")


@dataclass(frozen=True)
class Buffers:
    """Contiguous tensors of one shape: m, h and g are the state.

    `gradient` and `product` are sums over the samples since the last step, of ĝ and of ĝ∘(θ − m)(h + δ) (or of ĝ²).
    `noise` is √(1/λ) ε and then (θ − m)(h + δ), `theta` the sample, and `scratch` ĝ of every sample but the first.
    """

    mean: Tensor
    hess: Tensor
    momentum: Tensor
    gradient: Tensor
    product: Tensor
    noise: Tensor
    theta: Tensor
    scratch: Tensor

    @classmethod
    def like(cls, mean: Tensor, hess: float | Tensor, *, one_sample: bool = False) -> Buffers:
        """Return the buffers of a start at m and h; with one sample a step the product takes the place of the noise."""
        momentum, gradient, noise, theta = (torch.zeros_like(mean) for _ in range(4))
        product, scratch = (noise, gradient) if one_sample else (torch.zeros_like(mean), torch.zeros_like(mean))
        return cls(mean, torch.zeros_like(mean) + hess, momentum, gradient, product, noise, theta, scratch)

    def first(self, k: int) -> Buffers:
        """Return views of the first k rows."""
        return Buffers(*(x[:k] for x in vars(self).values()))

    def slot(self, samples: int) -> Tensor:
        """Return where the gradient at the next sample goes, after `samples` others."""
        return self.scratch if samples else self.gradient


def step_rate(lr: float, delta: float | Tensor, rates: Rates) -> float | Tensor:
    """Return α, or α(h₀ + δ): gradient descent with the rate α at first, but no more than Newton's step."""
    if not rates.rescale_lr:
        return lr
    rate = lr * (rates.hess_init + delta)
    # a stiff prior (few rows under a precise server) would turn the rate of gradient descent into a step of many
    # times Newton's, which overshoots further every time
    return rate.clamp_(max=1.0) if isinstance(rate, Tensor) else rate


def draw(b: Buffers, terms: Terms) -> None:
    """Line 2, for √(1/λ) ε in `noise`."""
    if is_looped(b):
        arithmetic.draw(*(_rows(x, b.mean) for x in (b.mean, b.hess, terms.delta, b.noise, b.theta)))
    else:
        moved, theta = arithmetic.sampled(b.mean, b.hess, terms.delta, b.noise)
        b.noise.copy_(moved)
        b.theta.copy_(theta)


def collect(b: Buffers, gradient: Tensor, rates: Rates, samples: int) -> None:
    """Add the gradient in `b.slot(samples)` to the sums over `samples` others."""
    if samples == 0:
        torch.mul(gradient, b.noise, out=b.product)
    else:
        b.product.addcmul_(gradient, b.noise)
        b.gradient.add_(gradient)


def update(b: Buffers, terms: Terms, rates: Rates, step: int, samples: int) -> None:
    """Lines 3 to 6, from the sums over `samples`; the other buffers may be overwritten.

    `step` counts from 1.
    """
    moved, inertia = 1.0 - rates.beta2, 1.0 - rates.beta1
    factor = 1.0 / (1.0 - rates.beta1**step)
    if samples > 1:
        b.gradient.div_(samples)
    ess = terms.ess / samples
    if is_looped(b):
        state, sums = (b.mean, b.hess, b.momentum), (b.gradient, b.product)
        around = terms.delta, terms.rate, terms.slope, terms.curvature
        own, given, prior = (tuple(_rows(x, b.mean) for x in each) for each in (state, sums, around))
        numbers = tuple(map(own[0].dtype.type, (factor, moved, inertia, 0.5, rates.clip_radius)))
        arithmetic.update(own, given, prior, _rows(ess, b.mean[..., :1])[:, 0], numbers)
        return
    slope, curvature = (0.0 if x is None else x for x in (terms.slope, terms.curvature))
    held = b.mean, b.hess, b.momentum, b.gradient, b.product
    hess, momentum, direction = arithmetic.updated(
        *held, terms.delta, slope, curvature, ess, factor, moved, inertia, half=0.5
    )
    b.hess.copy_(hess)
    b.momentum.copy_(momentum)
    if rates.clip_radius != float("inf"):
        direction.clamp_(-rates.clip_radius, rates.clip_radius)
    b.mean.sub_(terms.rate * direction)


def is_looped(b: Buffers) -> bool:
    """Return whether Numba's loops do the passes: on a CPU, with the extra `compiled`."""
    return arithmetic.IS_COMPILED and b.mean.device.type == "cpu"


def _rows(term: float | Tensor | None, like: Tensor) -> NDArray[Any]:
    """Return a term as an array of rows with an entry a parameter; None is zero."""
    given = term if isinstance(term, Tensor) else like.new_full((1, 1), term or 0.0)
    rows = torch.atleast_2d(given)
    return rows.expand(len(rows), like.shape[-1]).contiguous().numpy()
