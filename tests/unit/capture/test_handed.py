from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from fxpipe.capture.fallback import KeepWholeError
from fxpipe.capture.handed import Snapshot

X = torch.ones(2)
Pair = namedtuple("Pair", "left right")


def node(value: Any) -> torch.fx.Node | None:
    """The fx argument of a tensor: its own text will do."""
    return value if isinstance(value, torch.Tensor) else None


def snapshot(value: Any) -> Snapshot:
    return Snapshot(value, node, set())


@dataclass
class Settings:
    width: int = 3


@dataclass
class Layer:
    keys: torch.Tensor | None = None
    settings: Settings = field(default_factory=Settings)


class Cache:
    def __init__(self) -> None:
        self.layers = [Layer(), Layer()]
        self.names = {"a": 1}


def test_it_is_built_as_it_was_and_not_as_it_is_now() -> None:
    cache = Cache()
    cache.layers[0].keys = X
    before = snapshot(cache)
    cache.layers[1].keys = X + 1
    cache.layers.append(Layer())
    cache.names["b"] = 2
    make, leaves = before.rebuilt(before.stateful)
    assert leaves[0] is X
    assert leaves[1:] == (1,)
    built = make(X + 2, 5)
    assert type(built) is Cache
    assert [layer.keys for layer in built.layers[1:]] == [None]
    assert torch.equal(built.layers[0].keys, X + 2)
    assert built.names == {"a": 5}
    assert built.layers[0].settings is cache.layers[0].settings
    assert make(X, 5).layers[0] is not make(X, 5).layers[0]


def test_an_object_that_was_changed_is_no_bystander() -> None:
    cache = Cache()
    before = snapshot([cache])
    cache.layers[0].settings.width = 8
    (built,) = before.rebuilt(set())[0](*before.rebuilt(set())[1])
    assert built.layers[0].settings == Settings(3)
    assert built.layers[1] is cache.layers[1]


def test_changes() -> None:
    items = [X, (X, {"k": 1})]
    before = snapshot(items)
    assert before.changed is None
    items[1][1]["k"] = 2
    assert before.changed is items[1][1]
    assert before.is_plain
    assert before.holds_tensors
    assert not snapshot(Pair(X, 1)).is_plain


def test_what_cannot_be_built() -> None:
    assert snapshot([Layer(X)] * 2).problem == "it is handed a Layer in two places at once"

    items: list[Any] = [X]
    items.append((items,))
    assert snapshot(items).problem == "it is handed a list that holds itself"

    def refuse(value: Any) -> None:
        raise KeepWholeError("where does it come from?", "", "", "")

    assert Snapshot([X], refuse, set()).problem == "where does it come from?"


def test_makers_compare_by_what_they_build() -> None:
    def maker(value: Any) -> Any:
        return snapshot(value).rebuilt({Layer})[0]

    settings = Settings()
    one, other = maker(Layer(X, settings)), maker(Layer(X + 1, settings))
    assert one == other
    assert hash(one) == hash(other)
    assert one != maker(Layer(X))
    assert maker([X, True]) != maker([X, False])
    assert one.name == "Layer"
