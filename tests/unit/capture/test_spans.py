from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn

from fxpipe.capture.spans import (
    calls_modules,
    changed_argument,
    mutable_arguments,
    outputs_of,
)
from fxpipe.capture.trace import trace
from fxpipe.ir.capture import Inside, Span
from tests.unit.capture import small

X = torch.randn(2, 4)


def spans_of(model: nn.Module, *args: Any, **kwargs: Any) -> dict[str, Span]:
    return {f"{span.path}#{span.call}": span for span in trace(model, args, kwargs).spans}


def test_span_of_a_block() -> None:
    model = small.Chain(small.Mlp(), small.Mlp())
    capture = trace(model, (X,))
    root, first, second = capture.spans
    assert (root.path, root.parent, root.nodes) == ("", None, tuple(n.name for n in capture.body))
    assert first.nodes == ("parts_0_linear", "relu")
    assert first.args == (capture.node("x"),)
    assert first.outputs == {"relu": ()}
    assert first.parent == second.parent == 0
    assert second.args == (capture.node("relu"),)
    assert {span.fixed for span in capture.spans} == {None}


def test_calls_of_one_module_are_counted() -> None:
    block = small.Mlp()
    spans = spans_of(small.Chain(block, block), X)
    assert [spans[f"parts.0#{call}"].nodes for call in (0, 1)] == [
        ("parts_0_linear", "relu"),
        ("parts_0_linear_1", "relu_1"),
    ]


def test_forward_called_directly() -> None:
    spans = spans_of(small.CallsForward(), X)
    assert [spans[f"{path}#0"].via for path in ("", "first", "second")] == [
        "call",
        "forward",
        "forward",
    ]


class Gives(nn.Module):
    def forward(self, x: torch.Tensor, bias: Any = None) -> Any:
        y = x * 2
        return {"y": y, "rest": [x, small.Box(y + 1)], "bias": bias}


class Uses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gives = Gives()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given = self.gives(x, bias=(x.abs(), [3]))
        return given["y"] + given["rest"][1].value + given["bias"][0]


def test_arguments_and_places_in_the_result() -> None:
    span = spans_of(Uses(), X)["gives#0"]
    assert [node.name for node in span.args] == ["x"]
    assert str(span.kwargs) == "{'bias': (abs_1, [3])}"
    assert span.outputs == {
        "mul": ("y",),
        "x": ("rest", 0),
        "add": ("rest", 1, ".value"),
        "abs_1": ("bias", 0),
    }
    assert span.fixed is None


def test_what_a_hook_takes_of_a_module_inside_is_found_there() -> None:
    span = spans_of(small.Leaks(), X)["inner#0"]
    assert span.fixed is None
    assert span.inside == {"inner_0": Inside("0", 0, ())}


class Tells(nn.Module):
    """Lets out a value that no module returns."""

    def __init__(self, told: list[torch.Tensor]) -> None:
        super().__init__()
        self.told = told

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.told[:] = [x.sin()]
        return x + 1


def test_what_gets_out_otherwise_fixes_a_call() -> None:
    class Hears(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.told: list[torch.Tensor] = []
            self.tells = Tells(self.told)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.tells(x) * self.told[0]

    assert spans_of(Hears(), X)["tells#0"].fixed == (
        "mul reads sin, which is not part of its result"
    )


def test_objects_that_calls_change_are_built_anew() -> None:
    spans = spans_of(small.WithCache(), X)
    first, second = (spans[f"{name}#0"].args[1] for name in ("first", "second"))
    assert spans["first#0"].fixed is spans["second#0"].fixed is None
    assert spans["first#0"].changed == {"first_linear": (1, ".seen", 0)}
    assert spans["second#0"].changed == {"second_linear": (1, ".seen", 1)}
    assert (first.number, first.after) == (second.number, second.before)
    assert first.make().seen == []
    assert [node.name for node in second.leaves] == ["first_linear"]
    assert second.make(X).seen == [X]


class Reads(nn.Module):
    def __init__(self, holder: list[torch.Tensor]) -> None:
        super().__init__()
        self.holder = holder

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.holder[0]


def test_values_that_are_no_arguments_fix_a_call() -> None:
    holder: list[torch.Tensor] = []

    class Sets(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.reads = Reads(holder)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            holder[:] = [x.sin()]
            return self.reads(x)

    assert spans_of(Sets(), X)["reads#0"].fixed == (
        "it reads sin, which is not among its arguments"
    )


class PassesOn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop, self.linear = nn.Dropout(0.5), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.drop(x))


def test_eval_dropout_does_not_tie_the_residual_to_the_block() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = PassesOn()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = x * 2
            return h + self.block(h)

    capture = trace(Model().eval(), (X,))
    assert capture.node("add").args == (capture.node("mul"), capture.node("block_linear"))
    assert capture.spans[1].fixed is None


def test_helpers() -> None:
    box, items = small.Box(X), [X]
    held = mutable_arguments(((box, items), {"k": {"a": 1}}))
    assert [type(value) for value, _ in held] == [small.Box, list, dict, dict]
    assert changed_argument(held) is None
    items.append(X)
    assert changed_argument(held) is items
    assert outputs_of([X, (X,)], lambda value: None) == {}


class Demanding:
    """No object of it comes about without a size."""

    value: torch.Tensor

    def __new__(cls, size: int) -> Demanding:
        return object.__new__(cls)


class Takes(nn.Module):
    def forward(self, x: torch.Tensor, held: Any, again: Any = None) -> torch.Tensor:
        held.value = x + held.value
        return held.value


class Hands(nn.Module):
    def __init__(self, make: Any, twice: bool) -> None:
        super().__init__()
        self.takes, self.make, self.twice = Takes(), make, twice

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        held = self.make()
        held.value = x.sin()
        return self.takes(x, held, again=held if self.twice else None)


def test_objects_that_cannot_be_built_anew_fix_a_call() -> None:
    span = spans_of(Hands(lambda: Demanding(3), twice=False), X)["takes#0"]
    assert span.fixed is not None
    assert span.fixed.startswith("a Demanding cannot be built anew")
    span = spans_of(Hands(lambda: small.Box(None), twice=True), X)["takes#0"]
    assert span.fixed == "it is handed a Box in two places at once"


class AddsAll(nn.Module):
    def forward(self, ones: list[torch.Tensor], others: list[torch.Tensor]) -> torch.Tensor:
        return sum(ones) * sum(others)


def test_one_list_in_two_places_fixes_nothing_as_long_as_it_stays() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.adds = AddsAll()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            items = [x, x + 1]
            return self.adds(items, items)

    span = spans_of(Model(), X)["adds#0"]
    assert span.fixed is None
    assert str(span.args) == "([x, add], [x, add])"


def test_functions_that_call_modules() -> None:
    layer, other = nn.Linear(2, 2), 3
    assert calls_modules(functools.partial(layer))
    assert calls_modules(functools.partial(map, layer))
    assert calls_modules(layer.forward)
    assert calls_modules(lambda x: layer(x))
    assert not calls_modules(layer)
    assert not calls_modules(functools.partial(max, other))
    assert not calls_modules(lambda x: x + other)
