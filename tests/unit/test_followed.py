"""What modules hold in Python, compared from call to call."""

from __future__ import annotations

import enum
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from fxpipe.followed import Followed


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Config:
    """A plain object of a user's."""

    def __init__(self) -> None:
        self.scale = 1.0
        self.more = {"act": "tanh"}


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.number: Any = 1.0
        self.pair: Any = (1.0, Color.RED)
        self.items = [1, [2, 3]]
        self.names = {"a": 1.0}
        self.chosen = {1, 2}
        self.config: Any = Config()
        self.space = SimpleNamespace(scale=1.0)
        self.color = Color.RED
        self.act: Any = torch.tanh
        self.tensor = torch.ones(3)
        self.table = np.arange(4)
        self.saved: Any = None

    def helper(self) -> int:
        return 1


def _add_hook(holder: Holder) -> None:
    holder.register_forward_pre_hook(lambda module, args: None)


CHANGES: dict[str, Callable[[Holder], object]] = {
    "number": lambda m: setattr(m, "number", 2.0),
    "its type": lambda m: setattr(m, "number", 1),
    "its sign": lambda m: setattr(m, "number", -0.0),
    "tuple": lambda m: setattr(m, "pair", (1.0, Color.BLUE)),
    "list": lambda m: m.items.append(4),
    "list in a list": lambda m: m.items[1].reverse(),
    "dict": lambda m: m.names.update(a=2.0),
    "set": lambda m: m.chosen.remove(1),
    "object": lambda m: setattr(m.config, "scale", 2.0),
    "dict in an object": lambda m: m.config.more.update(act="relu"),
    "another object": lambda m: setattr(m, "config", Config()),
    "namespace": lambda m: setattr(m.space, "scale", 2.0),
    "enum": lambda m: setattr(m, "color", Color.BLUE),
    "function": lambda m: setattr(m, "act", torch.sigmoid),
    "method of an object": lambda m: setattr(m, "act", m.tensor.add),
    "tensor": lambda m: setattr(m, "tensor", torch.ones(3)),
    "array": lambda m: m.table.fill(0),
    "shadowed method": lambda m: setattr(m, "helper", lambda: 2),
    "forward hook": lambda m: m.register_forward_hook(lambda module, args, result: None),
    "pre hook": _add_hook,
    "hook with kwargs": lambda m: m.register_forward_hook(
        print, with_kwargs=True, always_call=True
    ),
    "backward hook": lambda m: m.register_full_backward_hook(lambda module, had, got: None),
    "backward pre hook": lambda m: m.register_full_backward_pre_hook(lambda module, got: None),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_changes_is_seen(change: Callable[[Holder], object]) -> None:
    holder = Holder()
    followed = Followed(holder)
    before = followed.entries([""])
    assert followed.entries([""]) == before
    assert hash(followed.entries([""])) == hash(before)
    change(holder)
    assert followed.entries([""]) != before


def test_what_is_equal_is_the_same() -> None:
    holder = Holder()
    holder.act = holder.helper
    followed = Followed(holder)
    before = followed.entries([""])
    holder.pair, holder.items, holder.number = (1.0, Color.RED), [1, [2, 3]], 1.0
    holder.act = holder.helper
    assert followed.entries([""]) == before


def test_numbers_of_numpy_are_numbers() -> None:
    holder = Holder()
    holder.number = np.float64(1.5)
    followed = Followed(holder)
    before = followed.entries([""])
    holder.number = np.float64(1.5)
    assert followed.entries([""]) == before
    holder.number = np.float64(2.5)
    assert followed.entries([""]) != before


def test_a_reference_to_what_is_gone_is_looked_at() -> None:
    holder = Holder()
    config = Config()
    holder.act = weakref.proxy(config)
    del config
    followed = Followed(holder)
    before = followed.entries([""])
    assert followed.entries([""]) == before


def test_hooks_of_all_modules_are_seen_and_gone() -> None:
    holder = Holder()
    followed = Followed(holder)
    before = followed.entries([""])
    handle = register_module_forward_hook(lambda module, args, result: None)
    try:
        assert followed.entries([""]) != before
    finally:
        handle.remove()
    assert followed.entries([""]) == before


def test_another_object_at_the_same_place_in_memory_is_another() -> None:
    holder = Holder()
    followed = Followed(holder)
    seen = set()
    for _ in range(20):
        holder.tensor = torch.ones(3)  # the one before is gone, and its place free
        seen.add(followed.entries([""]))
    assert len(seen) == 20


def test_no_tensor_is_kept_alive() -> None:
    holder = Holder()
    kept = Followed(holder).entries([""])
    gone = weakref.ref(holder.tensor)
    holder.tensor = torch.zeros(3)
    assert gone() is None
    assert kept


def test_what_a_run_puts_there_is_not_followed() -> None:
    holder = Holder()
    followed = Followed(holder)
    before = followed.entries([""])
    holder.saved = torch.ones(2)
    holder.items.append(5)
    followed.ran([""])
    assert followed.entries([""]) == before
    holder.saved = torch.zeros(2)
    assert followed.entries([""]) == before
    holder.names["b"] = 1.0  # and all else is
    assert followed.entries([""]) != before


def test_numbers_are_followed_wherever_they_are_changed() -> None:
    holder = Holder()
    followed = Followed(holder)
    before = followed.entries([""])
    holder.number = 3.0
    followed.ran([""])
    assert followed.entries([""]) != before


def test_large_containers_count_by_identity() -> None:
    holder = Holder()
    holder.items = list(range(1000))
    followed = Followed(holder)
    before = followed.entries([""])
    holder.items[50] = -1
    assert followed.entries([""]) == before
    holder.items = list(holder.items)
    assert followed.entries([""]) != before
