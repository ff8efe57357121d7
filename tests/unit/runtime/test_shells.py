from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fxpipe.runtime.shells import Forward, Shells, Swap, referring_to


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.5)
        self.scale = 2.0
        self.calls = 0
        self.register_buffer("total", torch.zeros(()))
        self.by_list = [self.drop]

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.latest = x.sum().item()
        self.total += 1
        return self.drop(self.linear(x)) * self.scale


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = Block()
        self.second = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.nothing = None
        self.register_module("empty", None)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


def doubled(shell: nn.Module, usual: Forward) -> Forward:
    return lambda x: x * 2


def shells_of(model: Model) -> tuple[Shells, Model]:
    shells = Shells({model.first.drop: Swap(doubled)})
    shell = shells.of(model)
    assert isinstance(shell, Model)
    return shells, shell


def test_only_the_way_to_a_swap_is_copied() -> None:
    model = Model()
    shells, shell = shells_of(model)
    assert type(shell) is Model
    assert shell is not model
    assert shell.first is not model.first
    assert shell.first.drop is not model.first.drop
    assert type(shell.first.drop) is nn.Dropout
    assert shell.first.linear is model.first.linear
    assert shell.second is model.second
    assert shells.of(model.second) is model.second
    assert shells.of(model.first) is shell.first
    assert len(list(shells)) == 3


def test_the_swap_takes_effect_in_the_shell_alone() -> None:
    model = Model().eval()
    _, shell = shells_of(model)
    x = torch.randn(2, 4)
    usual = model(x)
    assert torch.equal(shell.first(x), model.first.linear(x) * 2 * 2.0)
    assert torch.equal(model(x), usual)
    assert shell.first.by_list[0] is shell.first.drop
    assert model.first.by_list[0] is model.first.drop


def test_parameters_and_buffers_are_the_users_own() -> None:
    model = Model()
    _, shell = shells_of(model)
    assert shell.first._buffers is model.first._buffers
    assert [id(p) for p in shell.parameters()] == [id(p) for p in model.parameters()]
    model.first.register_buffer("later", torch.ones(()))
    assert shell.first.later.item() == 1


def test_training_flag_and_attributes_are_followed() -> None:
    model = Model()
    shells, shell = shells_of(model)
    model.eval()
    model.first.scale = 3.0
    model.first.extra = "new"
    for one in shells:
        one.follow()
    assert not any(module.training for module in shell.modules())
    assert shell.first.scale == 3.0
    assert shell.first.extra == "new"
    del model.first.extra
    for one in shells:
        one.follow()
    assert not hasattr(shell.first, "extra")


def test_what_forward_writes_goes_back() -> None:
    model = Model()
    shells, shell = shells_of(model)
    shell(torch.ones(2, 4))
    assert (model.first.calls, hasattr(model.first, "latest")) == (0, False)
    assert model.first.total.item() == 1  # a buffer is shared
    for one in shells:
        one.write_back()
    assert (model.first.calls, model.first.latest) == (1, 8.0)
    del shell.first.latest
    for one in shells:
        one.write_back()
    assert not hasattr(model.first, "latest")


def test_write_back_does_not_undo_what_the_user_has_set_since() -> None:
    model = Model()
    shells, shell = shells_of(model)
    shell(torch.ones(2, 4))
    model.first.scale = 7.0
    for one in shells:
        one.write_back()
    assert model.first.scale == 7.0


def test_hooks_get_the_users_module() -> None:
    model = Model()
    seen: list[tuple[str, bool]] = []

    def noting(name: str, module: nn.Module) -> Any:
        return lambda found, *_, **__: seen.append((name, found is module))

    for module in (model, model.first, model.first.drop):
        module.register_forward_pre_hook(noting("pre", module))
        module.register_forward_pre_hook(noting("pre kw", module), with_kwargs=True)
        module.register_forward_hook(noting("post", module), always_call=True)
        module.register_full_backward_hook(noting("back", module))
        module.register_full_backward_pre_hook(noting("back pre", module))
    _, shell = shells_of(model)
    shell(torch.ones(2, 4, requires_grad=True)).sum().backward()
    assert len(seen) == 3 * 5
    assert all(right for _, right in seen)


def test_hooks_that_change_values_or_take_themselves_off() -> None:
    model = Model().eval()
    handle = model.first.register_forward_hook(lambda module, args, output: output * 10)

    def once(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        once_handle.remove()
        return (args[0] + 1,)

    once_handle = model.first.register_forward_pre_hook(once)
    shells, shell = shells_of(model)
    x = torch.randn(2, 4)
    plain = model.first.linear(x + 1) * 2 * 2.0
    assert torch.equal(shell.first(x), plain * 10)
    assert torch.equal(shell.first(x), model.first.linear(x) * 2 * 2.0 * 10)
    handle.remove()
    for one in shells:
        one.follow()
    assert torch.equal(shell.first(x), model.first.linear(x) * 2 * 2.0)


def test_a_module_used_twice_has_one_shell() -> None:
    drop = nn.Dropout(0.5)
    model = nn.ModuleList([nn.Sequential(drop), nn.Sequential(drop, nn.ReLU())])
    shells = Shells({drop: Swap(doubled)})
    shell = shells.of(model)
    assert shell[0][0] is shell[1][0]
    assert len(shell[1]) == 2


def test_a_forward_set_on_the_instance_is_kept_inside_the_swap() -> None:
    layer = nn.Linear(4, 4)
    layer.forward = lambda x: x + 100.0
    shells = Shells({layer: Swap(lambda shell, usual: lambda x: usual(x) * 2)})
    x = torch.ones(1, 4)
    assert torch.equal(shells.of(layer)(x), (x + 100) * 2)


def test_a_module_that_contains_itself() -> None:
    model = Model()
    model.first._modules["parent"] = model
    _, shell = shells_of(model)
    assert shell.first.drop is not model.first.drop


def test_own_parameters_can_be_replaced() -> None:
    layer = nn.Linear(4, 4)
    shells = Shells({layer: Swap(own_parameters=True)})
    shell = shells.of(layer)
    other = nn.Parameter(torch.zeros(4, 4))
    shell._parameters["weight"] = other
    assert shell.weight is other
    assert layer.weight is not other
    for one in shells:
        one.follow()
    assert shell.weight is other


def test_values_that_refer_to_modules() -> None:
    """Every kind of reference is rebuilt if it leads to a module that has a shell, and only then."""
    one, other, its_shell = nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 1)

    def shell_of(module: nn.Module) -> nn.Module:
        return its_shell if module is one else module

    def to(value: Any) -> Any:
        return referring_to(value, shell_of)

    def closed(module: nn.Module) -> Any:
        return lambda *, default=None: (module, default)

    assert to([one, (other, {"a": one})]) == [its_shell, (other, {"a": its_shell})]
    assert to(one.forward).__self__ is its_shell
    assert to(partial(one.forward, one, named=one)).func.__self__ is its_shell
    assert to(partial(print, one, named=one)).keywords == {"named": its_shell}
    assert to(closed(one))() == (its_shell, None)
    lists = defaultdict(list, {"a": [one]})
    assert to(lists)["a"] == [its_shell]
    assert to(lists)["b"] == []
    for untouched in (
        [other, 1],
        {"a": other},
        other.forward,
        closed(other),
        partial(print),
        len,
    ):
        assert to(untouched) is untouched
    endless: list[Any] = [one]
    endless.append(endless)
    assert to(endless)[0] is its_shell


def test_what_forward_leaves_on_the_users_module_refers_to_users_modules() -> None:
    model = Model()
    shells, shell = shells_of(model)
    shell.latest = [shell.first.drop]
    for each in shells:
        each.write_back()
    assert model.latest[0] is model.first.drop
    for each in shells:
        each.follow()
    assert shell.latest[0] is shell.first.drop


def isolated(model: nn.Module) -> tuple[Shells, nn.Module]:
    """Shells that share nothing with the user's modules but memory."""
    own = Swap(own_parameters=True, own_buffers=True)
    shells = Shells({module: own for module in model.modules()}, hooks_see_users=False)
    return shells, shells.of(model)


def test_leaves_are_read_in_place_of_parameters_and_buffers() -> None:
    model = Model()
    shells, shell = isolated(model)
    weight, total = model.first.linear.weight, model.first.total
    leaves = {weight: nn.Parameter(weight.detach()), total: total.clone()}
    for each in shells:
        each.read(leaves)
    assert shell.first.linear.weight is leaves[weight]
    assert shell.first.total is leaves[total]
    assert shell.first.linear.bias is model.first.linear.bias
    assert model.first.linear.weight is weight
    assert model.first.total is total
    for each in shells:
        each.read({})
    assert shell.first.linear.weight is weight
    assert shell.first.total is total


def test_parameters_in_attributes_are_leaves_too() -> None:
    """As in recurrent layers, which have a list of theirs."""
    layer = nn.LSTM(3, 2)
    shells, shell = isolated(layer)
    leaves = {p: nn.Parameter(p.detach()) for p in layer.parameters()}
    for each in shells:
        each.read(leaves)
    shell(torch.ones(1, 3))[0].sum().backward()
    assert all(parameter.grad is None for parameter in layer.parameters())
    assert all(leaf.grad is not None for leaf in leaves.values())
    shell.note = "left by a forward"
    for each in shells:
        each.write_back()
        each.read({})
    assert all(
        one is other for one, other in zip(layer._flat_weights, layer.parameters(), strict=True)
    )
    assert layer.note == "left by a forward"


def test_hooks_may_see_shells() -> None:
    model = Model()
    seen: list[nn.Module] = []
    model.first.register_forward_hook(lambda module, args, result: seen.append(module))
    _, shell = isolated(model)
    shell(torch.ones(2, 4))
    assert seen == [shell.first]
