from __future__ import annotations

import torch

from fxpipe.runtime.backward import Roots
from fxpipe.runtime.values import edge_of


def test_nothing_runs_without_roots() -> None:
    starts = Roots()
    starts.add_all([None, None], [torch.ones(1), None])
    starts.run()


def test_gradients_from_outside_are_added_first() -> None:
    """In float32 (1e8 + 1) - 1e8 = 0, but (1e8 - 1e8) + 1 = 1: the order can be seen."""
    x = torch.zeros(1, requires_grad=True)
    y = x * 1.0
    early, late = y * 1.0, y * 1.0
    starts = Roots()
    starts.add_all([edge_of(early), edge_of(late)], [torch.ones(1), torch.tensor([-1e8])])
    starts.add_all([edge_of(y)], [torch.tensor([1e8])])
    starts.run()
    assert x.grad is not None
    assert x.grad.item() == 1.0  # ((1e8 - 1e8) + 1): later readers before earlier ones


def test_a_loss_and_containers() -> None:
    x = torch.ones(2, requires_grad=True)
    starts = Roots()
    starts.add_loss((x * 3).sum())
    starts.add_all([(edge_of(x * 2), edge_of(x * 5), None)], [(torch.ones(2), None, torch.ones(2))])
    starts.run()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.full((2,), 5.0))


def test_only_some_leaves() -> None:
    x, w = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    starts = Roots()
    starts.add_loss((x * w).sum())
    starts.run(only=(x,))
    assert x.grad is not None
    assert w.grad is None
