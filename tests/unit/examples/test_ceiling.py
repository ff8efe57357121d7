"""The two-thread speed is a positive number and leaves the thread count alone."""

from __future__ import annotations

import torch
from torch import nn

from examples.ceiling import two_thread_speed


def test_speed_is_positive_and_threads_are_put_back() -> None:
    torch.set_num_threads(2)
    model = nn.Linear(8, 8)
    assert two_thread_speed(model, torch.randn(4, 8), repeats=2) > 0
    assert torch.get_num_threads() == 2
    assert model.weight.grad is None
