"""Hooks of modules and tensors: they run as often, see as much and change as much as in eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.cases.blocks import WIDTH, Block
from tests.exact import CHUNKS, Kind, vectors
from tests.kinds.check import assert_works, each
from tests.reference import run_eager_step


def three_blocks() -> nn.Sequential:
    return nn.Sequential(Block(), Block(), Block())


def forward_hook() -> nn.Module:
    model = three_blocks()
    model[1].register_forward_hook(lambda module, args, output: output + args[0])
    return model


def pre_hook() -> nn.Module:
    model = three_blocks()
    model[1].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    model[2].layer.register_forward_pre_hook(lambda module, args: None)
    return model


class TakesScale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Block(), self.Inner()

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
            return torch.tanh(self.layer(x)) * scale

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x), scale=0.5)


def keyword_hooks() -> nn.Module:
    def before(module: nn.Module, args: Any, kwargs: Any) -> Any:
        return args, {**kwargs, "scale": kwargs["scale"] * 3}

    def after(module: nn.Module, args: Any, kwargs: Any, output: Tensor) -> Tensor:
        return output / kwargs["scale"]

    model = TakesScale()
    model.two.register_forward_pre_hook(before, with_kwargs=True)
    model.two.register_forward_hook(after, with_kwargs=True)
    return model


def hooks_of_the_model() -> nn.Module:
    model = three_blocks()
    model.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    model.register_forward_hook(lambda module, args, output: (output, args[0]))
    return model


def prepended_and_always() -> nn.Module:
    model = three_blocks()
    model[1].register_forward_hook(lambda module, args, output: output * 2)
    model[1].register_forward_hook(lambda module, args, output: output + 1, prepend=True)
    model[1].register_forward_hook(lambda module, args, output: output - 3, always_call=True)
    return model


def backward_hook() -> nn.Module:
    model = three_blocks()
    model[1].register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 0.5,))
    model[2].register_full_backward_pre_hook(lambda module, outputs: (outputs[0] * 2,))
    return model


def backward_hook_of_layer() -> nn.Module:
    model = three_blocks()
    model[0].layer.register_full_backward_hook(lambda module, inputs, outputs: None)
    model[1].layer.register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 3,))
    return model


def parameter_hook() -> nn.Module:
    model = three_blocks()
    model[1].layer.weight.register_hook(lambda grad: grad * 0.5)
    model[2].layer.bias.register_post_accumulate_grad_hook(clamp_gradient)
    return model


def clamp_gradient(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.clamp_(-0.01, 0.01)


class TensorHooks(nn.Module):
    """Hooks on values of forward that change their gradients; `retain_grad`."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = Block(), Block(), Block()

    def forward(self, x: Tensor) -> Tensor:
        h = self.one(x)
        if h.requires_grad:
            h.register_hook(lambda grad: grad.clamp(-0.01, 0.01))
        y = self.two(h)
        if y.requires_grad:
            y.retain_grad()
            y.register_hook(lambda grad: grad * 2)
        return self.three(y) + h


KINDS = {
    "forward": Kind(forward_hook, vectors(WIDTH)),
    "forward pre": Kind(pre_hook, vectors(WIDTH)),
    "with keywords": Kind(keyword_hooks, vectors(WIDTH)),
    "of the model": Kind(hooks_of_the_model, vectors(WIDTH)),
    "prepended": Kind(prepended_and_always, vectors(WIDTH)),
    "full backward": Kind(backward_hook, vectors(WIDTH)),
    "full backward of a layer": Kind(backward_hook_of_layer, vectors(WIDTH)),
    "of parameters": Kind(parameter_hook, vectors(WIDTH)),
    "of tensors": Kind(TensorHooks, vectors(WIDTH)),
}


@each(KINDS)
@pytest.mark.filterwarnings("ignore:.* has forward hooks, and a cut divides it")
def test_hooks_change_what_they_change_in_eager(kind: Kind) -> None:
    assert_works(kind)


@pytest.mark.parametrize("recompute", ["never", "always"])
def test_hooks_run_as_often_as_in_eager(recompute: str) -> None:
    """Hooks of any form, on modules inside the stages; recomputation runs forward hooks again."""

    def watch(model: nn.Sequential, seen: list[str]) -> None:
        for n, block in enumerate(model):
            block.register_forward_hook(lambda *_, n=n: seen.append(f"after {n}"))
            block.layer.register_forward_pre_hook(lambda *_, n=n: seen.append(f"before {n}"))
            block.layer.register_full_backward_hook(lambda *_, n=n: seen.append(f"backward {n}"))
            block.register_full_backward_hook(lambda *_, n=n: seen.append(f"block {n}"))

    kind = Kind(three_blocks, vectors(WIDTH), cuts=("1", "2"))
    model, eager = kind.model(), kind.model()
    ours: list[str] = []
    theirs: list[str] = []
    watch(model, ours)
    watch(eager, theirs)
    with kind.pipe(model, 3, recompute=recompute, backend="inline") as pipe:
        ours.clear()
        args, _ = kind.data(6)
        pipe.step(*args, loss_fn=kind.loss)
    run_eager_step(eager, args, chunks=CHUNKS, loss_fn=kind.loss)
    again = [what for what in theirs if what.startswith(("after", "before"))]
    assert sorted(ours) == sorted([*theirs, *(again if recompute == "always" else ())])


def test_hooks_registered_and_removed_between_steps() -> None:
    kind = Kind(three_blocks, vectors(WIDTH), cuts=("1", "2"))
    model, eager = kind.model(), kind.model()
    with kind.pipe(model, 3) as pipe, torch.no_grad():
        args, _ = kind.data(6)
        for _ in range(2):
            torch.testing.assert_close(pipe(*args), eager(*args))
            handles = [m[1].register_forward_hook(lambda m, a, y: y * 2) for m in (model, eager)]
            torch.testing.assert_close(pipe(*args), eager(*args))
            for handle in handles:
                handle.remove()


def test_global_hooks_run() -> None:
    """The first step with the hook records it, which runs it too; later ones run it as eager does."""
    kind = Kind(three_blocks, vectors(WIDTH), cuts=("1", "2"))
    seen: list[type] = []
    with kind.pipe(kind.model(), 3) as pipe:
        handle = nn.modules.module.register_module_forward_hook(
            lambda module, args, output: seen.append(type(module))
        )
        try:
            args, _ = kind.data(6)
            pipe.step(*args, loss_fn=kind.loss)
            for _ in range(2):
                seen.clear()
                pipe.step(*args, loss_fn=kind.loss)
                assert seen.count(Block) == 3 * CHUNKS
                assert seen.count(nn.Linear) == 3 * CHUNKS
        finally:
            handle.remove()
