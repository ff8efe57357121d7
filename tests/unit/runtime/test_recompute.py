from __future__ import annotations

import pytest
import torch
from torch import nn

from fxpipe.runtime.recompute import ChangedBuffers, Recompute


@pytest.mark.parametrize(
    ("mode", "reruns"),
    [
        ("never", [False, False, False]),
        ("except_last", [True, True, False]),
        ("always", [True, True, True]),
    ],
)
def test_which_micro_batches_are_rerun(mode: str, reruns: list[bool]) -> None:
    assert [Recompute(mode).reruns(m, 3) for m in range(3)] == reruns


class Counting(nn.Module):
    """`count` is written into, `mean` is replaced; a stage reads `count` itself, too."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(()))
        self.stage = {"count": self.count}

    def forward(self) -> tuple[float, float]:
        found = (self.count.item(), self.mean.item())
        assert self.stage["count"] is self.count
        self.count += 1
        self.mean = self.mean + 10
        return found


def changed(module: Counting) -> ChangedBuffers:
    places = [[(module._buffers, "count"), (module.stage, "count")]]
    return ChangedBuffers(places, [module._buffers])


def test_reruns_read_what_their_forward_read() -> None:
    module = Counting()
    buffers = changed(module)
    users = module.count
    buffers.begin()
    found, first = [], []
    for _ in range(3):
        found.append(buffers.found())
        buffers.fork()
        first.append(module())
    assert first == [(0.0, 0.0), (1.0, 10.0), (2.0, 20.0)]
    for m in (1, 0, 2, 2):
        with buffers.as_in(found[m]):
            assert module() == first[m]
    buffers.end(keep=True)
    assert (module.count.item(), module.mean.item()) == (3.0, 30.0)
    assert module.count is module.stage["count"] is users


def test_what_a_graph_has_saved_is_not_written_into() -> None:
    module = Counting()
    module.count += 1
    buffers = changed(module)
    x = torch.ones((), requires_grad=True)
    buffers.begin()
    losses = []
    for _ in range(2):
        buffers.fork()
        module.count.add_(1)
        losses.append(x * module.count)
    sum(losses).backward()
    assert x.grad is not None
    assert x.grad.item() == 2.0 + 3.0  # each as its own forward left it
    buffers.end(keep=True)


def test_after_a_failure_the_buffers_are_as_before() -> None:
    module = Counting()
    users = (module.count, module.mean)
    buffers = changed(module)
    buffers.begin()
    buffers.fork()
    module()
    buffers.end(keep=False)
    assert (module.count, module.mean) == users
    assert module.count is users[0]
    assert module.mean is users[1]
    assert (module.count.item(), module.mean.item()) == (0.0, 0.0)


def test_a_failed_rerun_puts_the_buffers_back() -> None:
    module = Counting()
    buffers = changed(module)
    buffers.begin()
    found = buffers.found()
    buffers.fork()
    module()
    with pytest.raises(ZeroDivisionError), buffers.as_in(found):
        print(1 / module.count.item())
    assert module.count.item() == 1.0
    buffers.end(keep=True)


def test_a_buffer_that_is_none_until_forward_sets_it() -> None:
    module = nn.Module()
    module.register_buffer("cache", None)
    buffers = ChangedBuffers([[(module._buffers, "cache")]], [module._buffers])
    buffers.begin()
    buffers.fork()
    module.cache = torch.ones(2)
    buffers.end(keep=True)
    assert torch.equal(module.cache, torch.ones(2))


def test_what_is_kept_for_a_rerun_is_not_the_users_buffer() -> None:
    module = Counting()
    buffers = changed(module)
    buffers.begin()
    found = buffers.found()
    buffers.fork()
    first = module()
    buffers.end(keep=True)
    assert module.count.item() == 1.0
    buffers.begin()
    with buffers.as_in(found):
        assert module() == first
    buffers.end(keep=True)
    assert module.count.item() == 1.0


def test_a_buffer_put_in_the_place_of_the_users_is_not_written_into() -> None:
    module = nn.Module()
    module.register_buffer("table", torch.zeros(0))
    buffers = ChangedBuffers([[(module._buffers, "table")]], [module._buffers])
    scale = torch.ones(3, requires_grad=True)
    buffers.begin()
    losses = []
    for _ in range(3):
        buffers.fork()
        if module.table.shape[0] < 3:
            module.table = torch.arange(3.0)
        losses.append((module.table * scale).sum())
    buffers.end(keep=True)
    sum(losses).backward()  # as of a call, whose step is over before
    assert torch.equal(module.table, torch.arange(3.0))
    assert scale.grad is not None
    assert torch.equal(scale.grad, 3 * torch.arange(3.0))
