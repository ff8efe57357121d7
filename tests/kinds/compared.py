"""Models that only compare numbers out of their data (here, as pytest rewrites asserts in tests)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.cases.blocks import WIDTH, Block


class _Two(nn.Module):
    limit = 7

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Block(), Block()


class ChecksLengths(_Two):
    """No length is larger than the sequence is long."""

    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        _, size = x.shape
        assert n.max().item() <= size
        assert int(n.max()) < x.shape[1] + 100, f"{n} too long"
        return self.two(self.one(x))


class ComparesByName(_Two):
    """A number with a name, compared twice and part of a message."""

    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        longest = int(n.max())
        x = self.one(x)
        if longest > self.limit:
            x = x * 2
        if longest == 1000:
            raise ValueError(f"no length is {longest}")
        return self.two(x)


class ComparesFractions(_Two):
    """A fractional number between two bounds."""

    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        if 0.5 < x.abs().max().item() < 1e4:
            x = x * 2
        return self.two(self.one(x))


class ChecksNumbers(_Two):
    """Raises if a number that layers compute is not as it should be."""

    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        y = self.one(x)
        assert y.abs().max().item() < 1e6 and y.isfinite().all()  # noqa: PT018 - what users write
        largest = y.max().item()
        if not largest <= 1e5:
            raise ValueError(f"{largest}")
        return self.two(y)


class UsesTheNumber(_Two):
    """A number is compared, and a factor."""

    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        longest = int(n.max())
        if longest > self.limit:
            x = x * 2
        return self.two(self.one(x)) * longest


class SelectsByMask(nn.Module):
    """Encodes what a mask leaves, and decodes what it takes: a masked autoencoder."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = Block(), Block(), Block()
        self.places = nn.Parameter(torch.randn(1, 4, WIDTH))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        rows, _, width = x.shape
        seen = self.two(self.one(x)[~mask].reshape(rows, -1, width))
        places = self.places.expand(rows, -1, -1)
        hidden = places[mask].reshape(rows, -1, width)
        full = torch.cat((seen + places[~mask].reshape(rows, -1, width), hidden), dim=1)
        return self.three(full)[:, -hidden.shape[1] :]
