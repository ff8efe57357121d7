"""What a stage keeps between forward and backward, and for how long."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from tests.conformance.harness import BACKENDS, build
from tests.conformance.test_step import vectors

each_backend = pytest.mark.parametrize("backend", BACKENDS)


class Watched(nn.Module):
    """`add` saves nothing for backward: neither its stage's input nor its output need be kept."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.add = Add()
        self.last = Add()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.add(self.first(x)))


class Add(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight


@each_backend
@pytest.mark.parametrize(("recompute", "kept"), [("never", False), ("always", True)])
def test_boundary_values_are_not_kept(backend: str, recompute: str, kept: bool) -> None:
    model = Watched()
    rig = build(model, *vectors(8), cuts=["add", "last"], backend=backend, recompute=recompute)
    inputs: list[StorageWeakRef] = []
    outputs: list[StorageWeakRef] = []

    def note(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        inputs.append(StorageWeakRef(args[0].untyped_storage()))
        outputs.append(StorageWeakRef(output.untyped_storage()))

    model.add.register_forward_hook(note)
    call = rig.forward(*vectors(8))
    assert [ref.expired() for ref in inputs] == [not kept] * 4
    assert [ref.expired() for ref in outputs] == [not kept] * 4  # the last stage's inputs
    rig.backward(call, [(torch.ones(2, 8),)] * 4)
    assert all(ref.expired() for ref in inputs)
    assert torch.equal(model.add.weight.grad, torch.full((8,), 8.0))
    rig.backend.close()


@each_backend
@pytest.mark.parametrize(("schedule", "most"), [("gpipe", 8), ("1f1b", 2)])
def test_frames_alive_at_once(backend: str, schedule: str, most: int) -> None:
    """1F1B's first of two stages holds at most two micro-batches, GPipe's all."""
    model = nn.Sequential(nn.Linear(8, 8), Counter(), nn.Linear(8, 8))
    rig = build(model, *vectors(16), stages=2, cuts=["2"], backend=backend)
    model[1].alive.clear()  # of the recording
    model[1].most = 0
    rig.step(*vectors(16), chunks=8, schedule=schedule, loss_fn=lambda y, t: y.mean())
    assert model[1].most == most
    rig.backend.close()


class Counter(nn.Module):
    """Counts the graphs through it that are alive."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: set[object] = set()
        self.most = 0

    def forward(self, x: Tensor) -> Tensor:
        return Counted.apply(x, self)


class Counted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor, counter: Counter) -> Tensor:
        ctx.counter = counter
        ctx.ticket = object()
        counter.alive.add(ctx.ticket)
        counter.most = max(counter.most, len(counter.alive))
        return x * 1.0

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> tuple[Tensor, None]:
        ctx.counter.alive.discard(ctx.ticket)
        return grad, None
