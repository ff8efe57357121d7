"""U-Net (B, C): the simplified network that torchgpipe measures, of depth five.

Ronneberger et al. 2015; B convolutions per cell, C channels at full resolution.
"""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DEPTH = 5


class Unit(nn.Sequential):
    """3×3 convolution, dropout, instance norm, leaky ReLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.Dropout2d(0.1),
            nn.InstanceNorm2d(outputs),
            nn.LeakyReLU(0.01),
        )


class Cell(nn.Sequential):
    """`units` units: inputs → mid → … → mid → outputs channels."""

    def __init__(self, units: int, inputs: int, mid: int, outputs: int) -> None:
        channels = [inputs, *[mid] * (units - 1), outputs]
        super().__init__(*(Unit(a, b) for a, b in itertools.pairwise(channels)))


class UNet(nn.Module):
    """U-Net (B, C) for images [batch, inputs, height, width].

    Args:
        units: B, units per cell.
        channels: C, channels of the first level.
        inputs: channels of the image.
        outputs: channels of the result.
    """

    def __init__(self, units: int, channels: int, inputs: int = 3, outputs: int = 1) -> None:
        super().__init__()
        widths = [channels * 2**level for level in range(DEPTH)]
        self.encoder = nn.ModuleList(
            Cell(units, before, width, width)
            for before, width in zip([inputs, *widths[:-1]], widths, strict=True)
        )
        self.bottleneck = Cell(units, widths[-1], 2 * widths[-1], widths[-1])
        self.decoder = nn.ModuleList(
            Cell(units, 2 * width, width // 2, width // 2) for width in reversed(widths)
        )
        self.head = nn.Conv2d(channels // 2, outputs, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for cell in self.encoder:
            x = cell(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = self.bottleneck(x)
        for cell, skip in zip(self.decoder, reversed(skips), strict=True):
            x = F.interpolate(x, scale_factor=2)
            x = pad_to(x, skip)
            x = cell(torch.cat([x, skip], dim=1))
        return self.head(x)


def pad_to(x: Tensor, like: Tensor) -> Tensor:
    """`x` padded with zeros, right and below, to the height and width of `like`."""
    rows, columns = like.shape[2] - x.shape[2], like.shape[3] - x.shape[3]
    if rows == 0 and columns == 0:
        return x
    return F.pad(x, [0, columns, 0, rows])
