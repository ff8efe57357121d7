from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.optim.optimizer import register_optimizer_step_pre_hook

from fxpipe.optim.by_stage import UpdateByStage

Make = Callable[[list[dict[str, Any]]], optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda groups: optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda groups: optim.Adam(groups, lr=0.1, amsgrad=True),
    "adamw": lambda groups: optim.AdamW(groups, lr=0.1),
    "adamw, lists": lambda groups: optim.AdamW(groups, lr=0.1, foreach=True),
    "adamw, fused": lambda groups: optim.AdamW(groups, lr=0.1, fused=True),
    "nadam": lambda groups: optim.NAdam(groups, lr=0.1),
    "radam": lambda groups: optim.RAdam(groups, lr=0.1),
    "adamax": lambda groups: optim.Adamax(groups, lr=0.1),
    "adagrad": lambda groups: optim.Adagrad(groups, lr=0.1),
    "adadelta": lambda groups: optim.Adadelta(groups, lr=0.1),
    "rmsprop": lambda groups: optim.RMSprop(groups, lr=0.1, centered=True),
    "rprop": lambda groups: optim.Rprop(groups, lr=0.1),
    "asgd": lambda groups: optim.ASGD(groups, lr=0.1),
    "adafactor": lambda groups: optim.Adafactor(groups, lr=0.1),
}


def parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    shapes = [(3, 4), (4,), (2, 3), (5,), (1,)]
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def groups(of: list[nn.Parameter]) -> list[dict[str, Any]]:
    return [{"params": of[:3]}, {"params": of[3:], "lr": 0.01, "weight_decay": 0.1}]


def give_gradients(to: list[nn.Parameter], step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for parameter in to[:-1]:  # the last one has none
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    return bool(one == other)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_parts_are_the_whole(name: str) -> None:
    """Groups that lie in several parts, a schedule of learning rates, a state that is loaded again."""
    parts, whole = parameters(), parameters()
    ours, theirs = (OPTIMIZERS[name](groups(of)) for of in (parts, whole))
    rates = [optim.lr_scheduler.StepLR(each, 1, 0.5) for each in (ours, theirs)]
    for step in range(4):
        give_gradients(parts, step)
        give_gradients(whole, step)
        update = UpdateByStage(ours)
        update.update([parts[3], parts[1], nn.Parameter(torch.ones(2))])
        update.update([parts[0]])
        update.update([parts[0]])  # once only
        update.finish()
        theirs.step()
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a scheduler warns if the optimiser has made no step
            for rate in rates:
                rate.step()
        assert all(torch.equal(one, other) for one, other in zip(parts, whole, strict=True))
        assert same(ours.state_dict(), theirs.state_dict())
        ours.load_state_dict(copy.deepcopy(ours.state_dict()))


def test_what_is_updated_is_updated_at_once() -> None:
    mine = parameters()
    give_gradients(mine, 0)
    before = [parameter.detach().clone() for parameter in mine]
    update = UpdateByStage(optim.SGD(mine, lr=0.1))
    update.update([mine[1]])
    assert [torch.equal(p, b) for p, b in zip(mine, before, strict=True)] == [
        True,
        False,
        *[True] * 3,
    ]


class Averaged(optim.SGD):
    """One that looks at all parameters."""

    steps = 0

    def step(self, closure: Any = None) -> Any:
        self.steps += 1
        return super().step(closure)


def hooked(of: list[nn.Parameter]) -> optim.Optimizer:
    """Clips all gradients together."""
    optimizer = optim.SGD(of, lr=0.1)
    optimizer.register_step_pre_hook(
        lambda *_: nn.utils.clip_grad_norm_(of, 0.1) and None  # type: ignore[func-returns-value]
    )
    return optimizer


@pytest.mark.parametrize(
    "make",
    [
        lambda of: Averaged(of, lr=0.1),
        hooked,
    ],
    ids=["own class", "hooks"],
)
def test_what_may_look_at_everything_waits_for_it(make: Callable[..., optim.Optimizer]) -> None:
    parts, whole = parameters(), parameters()
    ours, theirs = make(parts), make(whole)
    give_gradients(parts, 0)
    give_gradients(whole, 0)
    before = parts[0].detach().clone()
    update = UpdateByStage(ours)
    update.update(parts)
    assert torch.equal(parts[0], before)
    update.finish()
    theirs.step()
    assert all(torch.equal(one, other) for one, other in zip(parts, whole, strict=True))
    if isinstance(ours, Averaged):
        assert ours.steps == 1


def test_gradients_that_still_change_are_waited_for() -> None:
    mine = parameters()
    give_gradients(mine, 0)
    before = mine[0].detach().clone()
    update = UpdateByStage(optim.SGD(mine, lr=0.1), waits=True)
    update.update(mine)
    assert torch.equal(mine[0], before)
    update.finish()
    assert not torch.equal(mine[0], before)


def test_hooks_of_all_optimisers_see_the_whole_step() -> None:
    mine, seen = parameters(), []
    give_gradients(mine, 0)
    hook = register_optimizer_step_pre_hook(
        lambda optimizer, *_: seen.append(len(optimizer.param_groups[0]["params"]))
    )
    try:
        update = UpdateByStage(optim.SGD(mine, lr=0.1))
        update.update(mine[:2])
        update.finish()
    finally:
        hook.remove()
    assert seen == [len(mine)]
