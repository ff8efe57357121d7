from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import fxpipe
from examples.models.transformer import TransformerStack
from examples.models.unet import UNet
from fxpipe.runtime.weight_pass import Deferring
from fxpipe.runtime.weight_queue import WeightQueue


@pytest.fixture
def deferring() -> Deferring:
    torch.manual_seed(0)
    made = Deferring()
    made.queue = WeightQueue()
    return made


def queue_of(deferring: Deferring) -> WeightQueue:
    assert deferring.queue is not None
    return deferring.queue


def test_the_input_pass_leaves_the_weights_alone(deferring: Deferring) -> None:
    layer, x = nn.Linear(3, 2), torch.randn(4, 5, 3, requires_grad=True)
    y = deferring.run(F.linear, (x, layer.weight, layer.bias), {})
    y.square().sum().backward()
    halves = x.grad, layer.weight.grad
    queue_of(deferring).run()
    grads = layer.weight.grad, layer.bias.grad
    layer.zero_grad()
    x.grad = None
    layer(x).square().sum().backward()
    assert halves[1] is None
    assert torch.equal(halves[0], x.grad)
    assert torch.equal(grads[0], layer.weight.grad)
    assert torch.equal(grads[1], layer.bias.grad)


def test_inputs_without_gradients_are_reached_too(deferring: Deferring) -> None:
    table = nn.Embedding(5, 3)
    deferring.run(F.embedding, (torch.tensor([1, 1, 4]), table.weight), {}).sum().backward()
    assert table.weight.grad is None
    queue_of(deferring).run()
    assert table.weight.grad.sum(1).tolist() == [0.0, 6.0, 0.0, 0.0, 3.0]


def test_hooks_of_a_weight_are_called_once_with_the_sum_of_its_uses(deferring: Deferring) -> None:
    weight, x = nn.Parameter(torch.randn(3, 3)), torch.randn(2, 3)
    seen: list[Tensor | None] = []
    weight.register_hook(seen.append)
    y = deferring.run(F.linear, (deferring.run(F.linear, (x, weight), {}), weight), {})
    y.square().sum().backward()
    assert seen == []
    queue_of(deferring).run()
    found, weight.grad = weight.grad, None
    F.linear(F.linear(x, weight), weight).square().sum().backward()
    assert torch.equal(found, weight.grad)
    assert len(seen) == 2  # one of them is eager's


def test_after_the_input_pass_only_what_weights_need_is_held(deferring: Deferring) -> None:
    weight = nn.Parameter(torch.randn(3, 3))
    inside = torch.tanh(torch.randn(2, 3).requires_grad_())  # the product's weight needs it
    outside = torch.tanh(deferring.run(F.linear, (inside, weight), {}))  # only tanh itself does
    loss = outside.sum()
    needed = StorageWeakRef(inside.untyped_storage())
    other = StorageWeakRef(outside.untyped_storage())
    del inside, outside
    assert not other.expired()
    loss.backward()
    del loss
    assert other.expired()
    assert not needed.expired()
    queue_of(deferring).run()
    assert needed.expired()


@pytest.mark.parametrize("why", ["no queue", "frozen", "no weight", "no_grad", "checkpoint"])
def test_what_is_run_as_it_is(deferring: Deferring, why: str) -> None:
    weight, x = nn.Parameter(torch.randn(3, 3)), torch.randn(2, 3, requires_grad=True)
    queue = queue_of(deferring)

    def run() -> Tensor:
        made: Tensor = deferring.run(F.linear, (x, weight), {})
        return made

    if why == "no queue":
        deferring.queue = None
    elif why == "frozen":
        weight.requires_grad_(False)
    elif why == "no weight":
        weight = weight.detach() * 1  # type: ignore[assignment]
    if why == "checkpoint":
        y = checkpoint(run, use_reentrant=False)
    else:
        with torch.set_grad_enabled(why != "no_grad"):
            y = run()
    if y.requires_grad:
        y.sum().backward()
    assert queue._uses == []
    assert torch.equal(y.detach(), F.linear(x, weight).detach())


@pytest.mark.parametrize("kind", ["transformer", "unet"])
def test_nine_tenths_of_the_weights_work_is_in_the_weight_pass(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model: nn.Module = TransformerStack(4, 32, 2) if kind == "transformer" else UNet(2, 4)
    shape = (2, 8, 32) if kind == "transformer" else (2, 3, 64, 64)
    counted = 0
    run = WeightQueue.run

    def counting(queue: WeightQueue) -> None:
        nonlocal counted
        with FlopCounterMode(display=False) as flops:
            run(queue)
        counted += flops.get_total_flops()

    monkeypatch.setattr(WeightQueue, "run", counting)
    x = torch.randn(shape)
    with fxpipe.compile(
        model, ["cpu", "cpu"], chunks=2, schedule="zb-h1", backend="inline", costs="estimate"
    ) as pipe:
        pipe.step(x, target=x, loss_fn=lambda y, _: y.square().mean())
    of_all, of_inputs = _backward_flops(model, x, True), _backward_flops(model, x, False)
    assert counted >= 0.9 * (of_all - of_inputs)


def _backward_flops(model: nn.Module, x: Tensor, weights: bool) -> int:
    model.requires_grad_(weights)
    loss = model(x.clone().requires_grad_()).square().mean()
    with FlopCounterMode(display=False) as flops:
        loss.backward()
    model.requires_grad_(True)
    return int(flops.get_total_flops())
