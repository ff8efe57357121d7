"""ResNet-101 (He et al. 2016) with bottleneck blocks."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

EXPANSION = 4


class Bottleneck(nn.Module):
    """1×1, 3×3, 1×1 convolutions around a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = EXPANSION * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = F.relu(self.bn2(self.conv2(y)), inplace=True)
        y = self.bn3(self.conv3(y))
        y += self.shortcut(x)
        return F.relu(y, inplace=True)


class ResNet(nn.Module):
    """A bottleneck residual network for images [batch, 3, height, width].

    Args:
        blocks: blocks per level.
        classes: number of classes.
        width: channels of the first level.
    """

    def __init__(self, blocks: tuple[int, ...], classes: int = 1000, width: int = 64) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        inputs = width
        levels = []
        for level, count in enumerate(blocks):
            mid = width * 2**level
            strides = [1 if level == 0 else 2] + [1] * (count - 1)
            layers = []
            for stride in strides:
                layers.append(Bottleneck(inputs, mid, stride))
                inputs = EXPANSION * mid
            levels.append(nn.Sequential(*layers))
        self.levels = nn.ModuleList(levels)
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        x = F.max_pool2d(x, 3, stride=2, padding=1)
        for level in self.levels:
            x = level(x)
        x = F.adaptive_avg_pool2d(x, 1).flatten(1)
        return self.fc(x)


def resnet101(classes: int = 1000) -> ResNet:
    """The standard network of 101 layers."""
    return ResNet((3, 4, 23, 3), classes)
