"""Small models that the tests of code generation cut."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(before, after, 3, padding=1)
        self.norm = nn.BatchNorm2d(after)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        return self.drop(F.relu(self.norm(self.conv(x))))


class SmallUNet(nn.Module):
    """Two levels, two skip connections, a table of weights and a random function at the top."""

    def __init__(self) -> None:
        super().__init__()
        self.enc1 = Block(1, 4)
        self.enc2 = Block(4, 8)
        self.mid = Block(8, 8)
        self.up2 = nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.dec2 = Block(16, 4)
        self.up1 = nn.ConvTranspose2d(4, 4, 2, stride=2)
        self.dec1 = Block(8, 4)
        self.scale = nn.Parameter(torch.ones(4, 1, 1))
        self.register_buffer("shift", torch.full((1,), 0.5))
        self.head = nn.Conv2d(4, 2, 1)

    def forward(self, image, weight):
        one = self.enc1(image)
        two = self.enc2(F.max_pool2d(one, 2))
        deep = self.mid(F.max_pool2d(two, 2))
        deep = F.dropout(deep, 0.1, self.training)
        up = self.dec2(torch.cat([self.up2(deep), two], dim=1))
        up = self.dec1(torch.cat([self.up1(up), one], dim=1))
        logits = self.head(up * self.scale + self.shift)
        return {"logits": logits * weight, "features": [deep, one], "weight": weight}


class Parts(nn.Module):
    """A block that returns several things and one that returns nothing of use."""

    class Pair(nn.Module):
        def forward(self, x, *, double):
            y = torch.relu(x)
            return {"sum": y + 1, "parts": (y, y * 2 if double else y)}

    class Recorder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x):
            self.seen.add_(x.detach().sum())

    class Both(nn.Module):
        def forward(self, x):
            y = x.tanh()
            return y, y.unsqueeze(0)

    def __init__(self) -> None:
        super().__init__()
        self.pair = Parts.Pair()
        self.recorder = Parts.Recorder()
        self.both = Parts.Both()

    def forward(self, x):
        found = self.pair(x, double=True)
        self.recorder(x)
        y, rows = self.both(found["sum"])
        return y + found["parts"][1] + rows.sum(0)
