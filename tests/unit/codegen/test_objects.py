"""Objects that calls are handed: one variable of the stage, built anew where a stage begins."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fxpipe.capture.trace import trace
from fxpipe.codegen.generate import generate
from fxpipe.errors import CaptureError
from fxpipe.portals.edges import link
from tests.builders import load_stages, plan_at, run_stages
from tests.unit.codegen.test_reroll import body

X = torch.randn(2, 4)


class Cache:
    """Keys of every layer so far, and how many there are."""

    def __init__(self) -> None:
        self.keys: list[torch.Tensor] = []
        self.count = 0


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, cache: Cache) -> torch.Tensor:
        cache.keys.append(self.linear(x))
        cache.count += 1
        return sum(cache.keys) * cache.count


class Cached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, Cache]:
        cache = Cache()
        for layer in self.layers:
            x = layer(x, cache=cache)
        return x, cache


class Between(Cached):
    """Its own forward changes the cache between two calls."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        cache = Cache()
        x = self.layers[0](x, cache)
        cache.keys = [cache.keys[0].tanh()]
        return self.layers[1](x, cache).exp()


class Writes(nn.Module):
    """Writes into memory that it finds in a dict."""

    def __init__(self, row: int) -> None:
        super().__init__()
        self.row = row

    def forward(self, x: torch.Tensor, memory: dict[str, torch.Tensor]) -> torch.Tensor:
        memory["rows"][self.row] = x[0]
        memory[f"last_{self.row}"] = x * 2
        return x + memory["rows"].sum()


class WithMemory(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Writes(row) for row in range(3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        memory = {"rows": x.new_zeros(3, 4)}
        for layer in self.layers:
            x = layer(x, memory)
        return x.exp(), memory


def sources(model: nn.Module, *starts: str) -> tuple[list[list[str]], tuple[torch.Tensor, ...]]:
    """The lines of each stage, and what the stages compute."""
    capture = trace(model, (X,))
    plan = plan_at(capture, *starts)
    graph = link(capture, plan)
    programs = generate(capture, plan, graph, model)
    stages = load_stages(programs, model, capture)
    for _ in range(2):  # a second micro-batch finds nothing of the first
        results = run_stages(stages, programs, graph, [X])
    return [body(program.source) for program in programs], results


def test_an_object_lives_as_long_as_calls_of_the_stage_use_it() -> None:
    model = Cached()
    (first, second), results = sources(model, "layers_2_linear")
    assert first == [
        "cache = self.new_cache(0)",
        "mul = self.layers_0(x, cache=cache)",
        "layers_0_linear = cache.keys[0]",
        "mul_1 = self.layers_1(mul, cache=cache)",
        "del mul",
        "layers_1_linear = cache.keys[1]",
        "return (layers_0_linear, layers_1_linear, mul_1)",
    ]
    assert second[0] == "cache = self.new_cache(layers_0_linear, layers_1_linear, 2)"
    expected, cache = model(X)
    for found, wanted in zip(results, (expected, *cache.keys), strict=False):
        assert torch.equal(found, wanted)


def test_what_forward_itself_does_to_an_object_is_not_forgotten() -> None:
    model = Between()
    (lines, _), (result,) = sources(model, "exp")
    assert [line for line in lines if "new_cache" in line] == [
        "cache = self.new_cache(0)",
        "cache_1 = self.new_cache_1(tanh, 1)",
    ]
    assert torch.equal(result, model(X))


def test_writes_into_tensors_that_an_object_holds() -> None:
    model = WithMemory()
    expected, memory = model(X)
    (lines, _), results = sources(model, "exp")
    assert [line for line in lines if "self." in line] == [
        "dict_1 = self.new_dict(new_zeros)",
        "add = self.layers_0(x, dict_1)",
        "add_1 = self.layers_1(add, dict_1)",
        "add_2 = self.layers_2(add_1, dict_1)",
    ]
    found = [expected, *memory.values()]
    assert all(torch.equal(a, b) for a, b in zip(results, found, strict=True))


class Position:
    """Counts the layers as they are called."""

    def __init__(self) -> None:
        self.index = 0


class Positioned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, position: Position) -> torch.Tensor:
        position.index += 1
        return self.linear(x) * position.index


class Counts(nn.Module):
    """Its layers look at a counter: one made in forward, or the model's own."""

    def __init__(self, count: Position | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Positioned() for _ in range(2))
        self.count = count

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        position = self.count or Position()
        for layer in self.layers:
            x = layer(x, position)
        return x.exp()


def test_counters_made_in_forward_begin_anew() -> None:
    model = Counts()
    capture = trace(model, (X,))
    plan = plan_at(capture, "exp")
    graph = link(capture, plan)
    programs = generate(capture, plan, graph, model)
    assert "position = self.new_position(0)" in body(programs[0].source)
    stages = load_stages(programs, model, capture)
    results = [run_stages(stages, programs, graph, [X])[0] for _ in range(2)]
    assert all(torch.equal(found, model(X)) for found in results)


def test_counters_that_the_model_shares_among_its_layers_are_refused() -> None:
    model = Counts(Position())
    with pytest.raises(CaptureError, match="it changes its attribute 'count'"):
        trace(model, (X,))
    assert model.count is not None
    assert model.count.index == 0


class Lazy(nn.Module):
    """Looks at a cache that is empty now, and is not later."""

    def forward(self, x: torch.Tensor, cache: Cache) -> torch.Tensor:
        return x * (1 + len(cache.keys))


class LooksAhead(Cached):
    def __init__(self) -> None:
        super().__init__()
        self.lazy = Lazy()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        cache = Cache()
        x = self.lazy(x, cache)
        for layer in self.layers:
            x = layer(x, cache)
        return x.exp()


def test_an_object_that_is_empty_at_first_is_empty_in_every_micro_batch() -> None:
    model = LooksAhead()
    (lines, _), (result,) = sources(model, "exp")
    assert lines[:2] == ["cache = self.new_cache(0)", "mul = self.lazy(x, cache)"]
    assert torch.equal(result, model(X))


class Tagged:
    """Holds a class beside its tensor."""

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value
        self.kind = nn.Linear


class GivesTagged(nn.Module):
    def forward(self, x: torch.Tensor) -> Tagged:
        return Tagged(x.exp() + 1)


def test_a_class_among_the_results_is_imported() -> None:
    _, (result, kind) = sources(GivesTagged(), "add")
    assert torch.equal(result, X.exp() + 1)
    assert kind is nn.Linear
