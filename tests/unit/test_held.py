from __future__ import annotations

import copy
import queue
from collections import Counter, OrderedDict, UserDict, defaultdict, deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from fxpipe.capture.trace import trace
from fxpipe.held import Held


class Plain:
    def __init__(self) -> None:
        self.count = 0
        self.inner: dict[str, Any] = {"x": [0]}


class Base:
    __slots__ = ("value",)


@dataclass(slots=True)
class Slotted(Base):
    count: int = 0
    log: list[int] = field(default_factory=list)


class Log(list[int]):
    """A list of the user's own, with an attribute."""

    limit = 0

    def clear(self) -> None:
        raise AssertionError("the user's own method")


class Table(dict[str, int]):
    pass


class Pair(NamedTuple):
    one: list[int]


def full() -> dict[str, Any]:
    return {
        "list": [1, [2]],
        "dict": {"a": {"b": [1]}},
        "set": {1},
        "deque": deque([1], maxlen=2),
        "ordered": OrderedDict(a=1, b=2),
        "default": defaultdict(list, a=[1]),
        "counter": Counter("aab"),
        "tuple": ([1],),
        "object": Plain(),
        "slots": Slotted(),
        "own list": Log([1]),
        "own dict": Table(a=1),
        "named": Pair([1]),
        "namespace": SimpleNamespace(step=0, log=[]),
        "user dict": UserDict(a=1),
        "bytes": bytearray(b"ab"),
        "array": np.zeros(2),
    }


def shown(values: dict[str, Any]) -> dict[str, Any]:
    plain, slots = values["object"], values["slots"]
    return {
        **values,
        "object": (plain.count, plain.inner),
        "slots": (slots.count, slots.log, getattr(slots, "value", None)),
        "array": values["array"].tolist(),
        "limit": values["own list"].limit,
    }


def change(values: dict[str, Any]) -> None:
    values["list"][1].append(3)
    values["list"].clear()
    values["dict"]["a"]["b"].append(2)
    values["dict"]["c"] = 1
    values["set"].add(2)
    values["deque"].append(2)
    values["deque"].append(3)
    values["ordered"].move_to_end("a")
    values["default"]["a"].append(2)
    values["default"]["z"]
    values["counter"]["a"] += 1
    values["tuple"][0].append(2)
    values["object"].count += 1
    values["object"].inner["x"].append(1)
    values["object"].new = 1
    values["slots"].count += 1
    values["slots"].log.append(1)
    values["slots"].value = 3
    values["own list"].append(2)
    values["own list"].limit = 3
    values["own dict"]["b"] = 2
    values["named"].one.append(2)
    values["namespace"].step += 1
    values["namespace"].log.append(2)
    values["user dict"]["b"] = 2
    values["bytes"][0] = 7
    values["array"][0] += 1


def test_containers_and_objects_are_put_back() -> None:
    values = full()
    before = copy.deepcopy(shown(values))
    identities = {name: id(value) for name, value in values.items()}
    held = Held([values])
    change(values)
    held.put_back()
    assert shown(values) == before
    assert list(values["ordered"]) == ["a", "b"]
    assert values["deque"].maxlen == 2
    assert {name: id(value) for name, value in values.items()} == identities
    assert not hasattr(values["object"], "new")


def test_objects_that_hold_themselves() -> None:
    one, two = Plain(), []  # type: ignore[var-annotated]
    one.me, one.inner["up"] = one, two  # type: ignore[attr-defined]
    two.append(one)
    held = Held([one])
    one.count, one.inner["up"] = 3, None
    two.clear()
    held.put_back()
    assert one.count == 0
    assert one.inner["up"] is two
    assert two == [one]


@pytest.mark.parametrize("make", [nn.ReLU, queue.Queue, lambda: Plain, lambda: 1])
def test_what_is_no_plain_data_is_left_alone(make: Any) -> None:
    assert Held([make()])._contents == []


def test_what_has_changed() -> None:
    values = full()
    held = Held([values["tuple"], [], values["slots"], {"t": torch.ones(1)}])
    assert list(held.changed()) == []
    values["tuple"][0].append(2)
    values["slots"].count += 1
    assert [(at, content) for at, _, content in held.changed()] == [
        (0, [1]),
        (2, {"count": 0, "log": []}),
    ]


def test_tensors_do_not_count_as_changes() -> None:
    cache: dict[str, torch.Tensor] = {}
    kept: list[torch.Tensor] = []
    held = Held([cache, kept])
    cache["table"] = torch.ones(1)
    kept.append(torch.ones(1))
    assert list(held.changed()) == []
    held.put_back()
    assert not cache
    assert not kept


def test_tensors_are_found_once() -> None:
    tensor = torch.zeros(1)
    plain = Plain()
    plain.inner["t"] = (tensor,)
    assert Held([plain, [tensor]]).tensors == [tensor]


def test_a_recording_leaves_no_trace_in_python_objects() -> None:
    class Stateful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.values = full()
            self.scales = [torch.ones(4)]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            change(self.values)
            self.scales[0].mul_(2)
            return self.linear(x) * self.scales[0]

    model = Stateful()
    before = copy.deepcopy(shown(model.values))
    for mode in ("real", "fake"):
        trace(model, (torch.randn(2, 4),), mode=mode)
        assert shown(model.values) == before
        assert model.scales[0].tolist() == [1] * 4
