"""AmoebaNet-D (L, D): L normal cells, D filters, as GPipe and torchgpipe measure it.

Real et al. 2018, "Regularized evolution for image classifier architecture search". A cell is a small
graph of operations given as data (`Genotype`); it reads the outputs of the two cells before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MakeOperation: TypeAlias = Callable[[int, int], nn.Module]
"""(channels, stride) → module."""


@dataclass(frozen=True)
class Genotype:
    """A cell: each node is the sum of two (operation, state) pairs; states 0 and 1 are the inputs."""

    nodes: tuple[tuple[tuple[MakeOperation, int], tuple[MakeOperation, int]], ...]
    outputs: tuple[int, ...]


class FactorizedReduction(nn.Module):
    """Halves height and width without losing pixels: two strided convolutions, one pixel apart."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.even = nn.Conv2d(inputs, outputs // 2, 1, stride=2, bias=False)
        self.odd = nn.Conv2d(inputs, outputs // 2, 1, stride=2, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(x)
        shifted = F.pad(x, [0, 1, 0, 1])[:, :, 1:, 1:]
        return self.norm(torch.cat([self.even(x), self.odd(shifted)], dim=1))


def relu_conv_norm(
    inputs: int,
    outputs: int,
    kernel: int | tuple[int, int] = 1,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
) -> nn.Sequential:
    """ReLU, convolution without bias, batch norm."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=padding, bias=False)
    return nn.Sequential(nn.ReLU(), conv, nn.BatchNorm2d(outputs))


def identity(channels: int, stride: int) -> nn.Module:
    """Nothing, or a factorised reduction if it has to halve the image."""
    return nn.Identity() if stride == 1 else FactorizedReduction(channels, channels)


def average_3x3(channels: int, stride: int) -> nn.Module:
    """Average pooling."""
    return nn.AvgPool2d(3, stride, padding=1, count_include_pad=False)


def max_3x3(channels: int, stride: int) -> nn.Module:
    """Max pooling over 3×3."""
    return nn.MaxPool2d(3, stride, padding=1)


def max_2x2(channels: int, stride: int) -> nn.Module:
    """Max pooling over 2×2."""
    return nn.MaxPool2d(2, stride)


def conv_1x1(channels: int, stride: int) -> nn.Module:
    """Pointwise convolution."""
    return relu_conv_norm(channels, channels, 1, stride)


def conv_3x3(channels: int, stride: int) -> nn.Module:
    """3×3 convolution in a bottleneck of a quarter of the channels."""
    mid = channels // 4
    return nn.Sequential(
        relu_conv_norm(channels, mid),
        relu_conv_norm(mid, mid, 3, stride, 1),
        relu_conv_norm(mid, channels),
    )


def conv_1x7_7x1(channels: int, stride: int) -> nn.Module:
    """A row and a column convolution in a bottleneck of a quarter of the channels."""
    mid = channels // 4
    return nn.Sequential(
        relu_conv_norm(channels, mid),
        relu_conv_norm(mid, mid, (1, 7), (1, stride), (0, 3)),
        relu_conv_norm(mid, mid, (7, 1), (stride, 1), (3, 0)),
        relu_conv_norm(mid, channels),
    )


NORMAL = Genotype(
    nodes=(
        ((conv_1x1, 1), (max_3x3, 1)),
        ((identity, 1), (conv_1x7_7x1, 0)),
        ((conv_1x1, 0), (conv_1x7_7x1, 0)),
        ((max_3x3, 2), (identity, 2)),
        ((average_3x3, 1), (conv_1x1, 5)),
    ),
    outputs=(0, 3, 4, 6),
)

REDUCTION = Genotype(
    nodes=(
        ((max_2x2, 0), (max_3x3, 0)),
        ((identity, 2), (conv_3x3, 1)),
        ((conv_1x7_7x1, 2), (max_3x3, 2)),
        ((identity, 3), (max_2x2, 1)),
        ((average_3x3, 2), (conv_1x1, 3)),
    ),
    outputs=(4, 5, 6),
)


class Cell(nn.Module):
    """One cell: (previous output, the one before it) → (its output, previous output)."""

    def __init__(
        self, before: int, previous: int, channels: int, *, reduces: bool, after_reduction: bool
    ) -> None:
        super().__init__()
        self.genotype = REDUCTION if reduces else NORMAL
        self.squeeze = relu_conv_norm(previous, channels)
        self.squeeze_before: nn.Module = nn.Identity()
        if after_reduction:
            self.squeeze_before = FactorizedReduction(before, channels)
        elif before != channels:
            self.squeeze_before = relu_conv_norm(before, channels)
        self.pairs = nn.ModuleList(
            nn.ModuleList(make(channels, 2 if reduces and state < 2 else 1) for make, state in node)
            for node in self.genotype.nodes
        )

    def forward(self, previous: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        states = [self.squeeze(previous), self.squeeze_before(before)]
        for node, (first, second) in zip(self.genotype.nodes, self.pairs, strict=True):
            (_, left), (_, right) = node
            states.append(first(states[left]) + second(states[right]))
        return torch.cat([states[i] for i in self.genotype.outputs], dim=1), previous


class AmoebaNetD(nn.Module):
    """AmoebaNet-D (L, D) for images [batch, 3, height, width], height and width multiples of 32.

    Args:
        layers: L, number of normal cells (a multiple of three).
        filters: D, four times the channels of the stem.
        classes: number of classes.
    """

    def __init__(self, layers: int, filters: int, classes: int = 1000) -> None:
        super().__init__()
        channels = filters // 4
        self.stem = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(3, channels, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )
        normal = [False] * (layers // 3)
        kinds = [True, True, *normal, True, *normal, True, *normal]
        self.cells, width = make_cells(kinds, channels)
        self.classifier = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = before = self.stem(x)
        for cell in self.cells:
            x, before = cell(x, before)
        x = F.avg_pool2d(x, min(7, x.shape[-1]))
        return self.classifier(x.flatten(1))


def make_cells(kinds: Sequence[bool], channels: int) -> tuple[nn.ModuleList, int]:
    """The cells, a reduction where `kinds` says so, and the number of channels that come out."""
    cells = nn.ModuleList()
    before = previous = channels
    after_reduction = False
    for reduces in kinds:
        channels *= 2 if reduces else 1
        cell = Cell(before, previous, channels, reduces=reduces, after_reduction=after_reduction)
        cells.append(cell)
        before, previous = previous, channels * len(cell.genotype.outputs)
        after_reduction = reduces
    return cells, previous
