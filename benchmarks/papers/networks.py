"""The papers' networks for 32×32 images: plain modules that map images to logits."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn


class ZenkeCNN(nn.Sequential):
    """The CIFAR-10 network of Zenke et al. 2017 (App. B): two blocks of two convolutions, dropout, one hidden layer.

    Convolutions 3×3 with 32, 32, 64, 64 channels, the second of each block without padding; max-pooling and dropout of
    0.25 after each block; 512 hidden units with dropout of 0.5. 1 250 858 parameters for 10 classes.
    """

    def __init__(self, n_classes: int = 10) -> None:
        def block(inputs: int, outputs: int) -> list[nn.Module]:
            return [
                nn.Conv2d(inputs, outputs, 3, padding=1),
                nn.ReLU(),
                nn.Conv2d(outputs, outputs, 3),
                nn.ReLU(),
                nn.MaxPool2d(2),
                nn.Dropout(0.25),
            ]

        super().__init__(
            *block(3, 32),
            *block(32, 64),
            nn.Flatten(),
            nn.Linear(64 * 6 * 6, 512),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(512, n_classes),
        )


def _two_convolutions(first: int, second: int, wide: int, narrow: int, n_classes: int) -> list[nn.Module]:
    """Layers for 32×32 colours: convolutions 5×5, each pooled 2×2, and two hidden layers."""
    convolutions = [nn.Conv2d(3, first, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(first, second, 5), nn.ReLU()]
    hidden = [nn.Linear(second * 5 * 5, wide), nn.ReLU(), nn.Linear(wide, narrow), nn.ReLU()]
    return [*convolutions, nn.MaxPool2d(2), nn.Flatten(), *hidden, nn.Linear(narrow, n_classes)]


class AcarCNN(nn.Sequential):
    """The CIFAR network of Acar et al. 2021, after McMahan et al.: two convolutions, two hidden layers, no dropout.

    Convolutions 5×5 with 64 channels, each followed by 2×2 max-pooling; hidden layers of 384 and 192 units.
    797 962 parameters for 10 classes.
    """

    def __init__(self, n_classes: int = 10) -> None:
        super().__init__(*_two_convolutions(64, 64, 384, 192, n_classes))


class LeNet(nn.Sequential):
    """The small CNN of the FedIvon tables: convolutions 5×5 with 16 and 32 channels, hidden layers of 120 and 84 units.

    Each convolution is followed by 2×2 max-pooling. 121 182 parameters for 10 classes.
    """

    def __init__(self, n_classes: int = 10) -> None:
        super().__init__(*_two_convolutions(16, 32, 120, 84, n_classes))


class FilterResponseNorm(nn.Module):
    """Filter response normalisation with a thresholded linear unit (Singh & Krishnan 2020, Eq. 2-4).

    y = max(γ x/√(mean(x²) + |ε|) + β, t), the mean over each image's own pixels: nothing is shared between rows, so
    that there are no running statistics to average over clients. It is normalisation and activation at once.
    """

    def __init__(self, channels: int, eps: float = 1e-6) -> None:
        super().__init__()
        shape = (1, channels, 1, 1)
        self.scale = nn.Parameter(torch.ones(shape))
        self.shift = nn.Parameter(torch.zeros(shape))
        self.threshold = nn.Parameter(torch.zeros(shape))
        self.eps = abs(eps)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise and threshold images, shape (rows, channels, height, width)."""
        squares = x.square().mean(dim=(2, 3), keepdim=True)
        return torch.maximum(self.scale * (x * torch.rsqrt(squares + self.eps)) + self.shift, self.threshold)


class _Block(nn.Module):
    """Two 3×3 convolutions around which the input is added; where the shape changes, subsampled and zero-padded."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: str) -> None:
        super().__init__()
        self.stride, self.extra = stride, outputs - inputs
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = _norm(outputs, norm)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = FilterResponseNorm(outputs) if norm == "frn" else _plain_norm(outputs, norm)
        self.last = nn.Identity() if norm == "frn" else nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm2(self.conv2(self.norm1(self.conv1(x))))
        if self.stride > 1 or self.extra:
            x = nn.functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.extra))
        return self.last(inner + x)


def _norm(channels: int, norm: str) -> nn.Module:
    """Return normalisation and activation together."""
    return FilterResponseNorm(channels) if norm == "frn" else nn.Sequential(_plain_norm(channels, norm), nn.ReLU())


def _plain_norm(channels: int, norm: str) -> nn.Module:
    return nn.BatchNorm2d(channels) if norm == "batch" else nn.GroupNorm(2, channels)


class ResNet20(nn.Sequential):
    """The 20-layer residual network for 32×32 images (He et al. 2016, Sec. 4.2), identity shortcuts without weights.

    Three groups of three blocks with 16, 32 and 64 channels. For 10 classes 269 722 parameters with batch
    or group normalisation, and 270 410 with filter response norm, which has a threshold besides scale and shift. Batch
    normalisation keeps running statistics, which are no parameters and have no posterior. With two groups of channels
    and the initialisation of He et al. 2015 the network is that of "Federated ADMM from Bayesian Duality".
    """

    def __init__(self, n_classes: int = 10, norm: Literal["frn", "batch", "group"] = "frn") -> None:
        channels = [16, *[16] * 3, *[32] * 3, *[64] * 3]
        blocks = [_Block(inputs, outputs, 2 if outputs > inputs else 1, norm) for inputs, outputs in pairwise(channels)]
        super().__init__(
            nn.Conv2d(3, 16, 3, padding=1, bias=False),
            _norm(16, norm),
            *blocks,
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(64, n_classes),
        )
        if norm == "group":
            for layer in self.modules():
                if isinstance(layer, nn.Conv2d | nn.Linear):
                    nn.init.kaiming_normal_(layer.weight)
