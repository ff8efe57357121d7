"""A model that checks its values (here, as pytest rewrites asserts in files of tests)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.cases.blocks import Block


class ChecksValues(nn.Module):
    """Raises, in several ways, where something is not as it should be; and makes distributions."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Block(), Block()

    def forward(self, x: Tensor) -> Tensor:
        y = self.one(x)
        assert torch.isfinite(y).all(), f"no number is {y.tolist()}"
        if y.isnan().any() or not (y.abs() < 1e6).all().item():
            raise ValueError("not a number")
        spread = torch.distributions.Normal(y, self.two(y).exp())
        return -spread.log_prob(x.detach())
