from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import nn

from fxpipe.ir.capture import Capture, Span
from fxpipe.ir.findings import Fate
from fxpipe.ir.plan import PartitionPlan
from fxpipe.portals.calls import ModuleCall, SpanFate, drawing_paths, module_calls, span_fates
from fxpipe.portals.steps import stage_steps
from tests.builders import build_capture, plan_at


class Inner(nn.Module):
    def forward(self, x):
        y = torch.relu(x)
        return y + 1, {"before": y}


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = Inner()
        self.two = Inner()

    def forward(self, x):
        y, _ = self.one(x)
        z, rest = self.two(y)
        return z * rest["before"]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.outer = Outer()

    def forward(self, x):
        return torch.tanh(self.outer(torch.sigmoid(x)))


def called(capture: Capture, plan: PartitionPlan) -> list[str]:
    return [call.span.path for call in module_calls(capture, plan)]


def changed(capture: Capture, index: int, **changes: object) -> Capture:
    spans = list(capture.spans)
    spans[index] = replace(spans[index], **changes)
    return replace(capture, spans=tuple(spans))


def test_outermost_first() -> None:
    capture = build_capture(Model(), torch.randn(2))
    assert called(capture, plan_at(capture)) == ["outer"]
    assert called(capture, plan_at(capture, "relu")) == ["outer"]
    assert called(capture, plan_at(capture, "relu_1")) == ["outer.one", "outer.two"]
    assert called(capture, plan_at(capture, "add_1")) == ["outer.one"]


def test_a_fixed_span_gives_way_to_its_children() -> None:
    capture = build_capture(Model(), torch.randn(2))
    fixed = changed(capture, 0, fixed="it changes a list that it is handed")
    assert called(fixed, plan_at(fixed)) == ["outer.one", "outer.two"]


def test_a_value_read_outside_must_be_part_of_the_result() -> None:
    capture = build_capture(Model(), torch.randn(2))
    hidden = changed(capture, 2, outputs={"add_1": (0,)})  # relu_1 is read by the product
    assert called(hidden, plan_at(hidden, "relu_1")) == ["outer.one"]


def test_an_argument_hidden_in_another_call_is_not_available() -> None:
    capture = build_capture(Model(), torch.randn(2))
    relu = capture.node("relu")
    odd = changed(capture, 2, args=(*capture.spans[2].args, relu))
    odd = replace(
        odd, spans=(odd.spans[0], replace(odd.spans[1], outputs={"add": (0,)}), odd.spans[2])
    )
    assert called(odd, plan_at(odd, "relu_1")) == ["outer.one"]


def test_an_argument_only_handed_on_is_taken_out_of_the_result() -> None:
    """`relu` is among the arguments of the second call, although no node of it reads it."""
    capture = build_capture(Model(), torch.randn(2))
    odd = changed(capture, 2, args=(*capture.spans[2].args, capture.node("relu")))
    (_, first), (second, *_) = stage_steps(odd, plan_at(odd, "relu_1"))
    assert isinstance(first, ModuleCall)
    assert isinstance(second, ModuleCall)
    assert [node.name for node in first.writes] == ["relu", "add"]
    assert [node.name for node in second.reads] == ["add", "relu"]


class Closure(nn.Module):
    """`reader` gets `y` past its arguments."""

    class Reader(nn.Module):
        def forward(self, x):
            return x * self.memo[0]

    def __init__(self) -> None:
        super().__init__()
        self.reader = Closure.Reader()
        self.reader.memo = []

    def forward(self, x):
        y = torch.relu(x)
        self.reader.memo[:] = [y]
        return self.reader(x + 1)


def test_a_value_past_the_arguments_forbids_the_call() -> None:
    capture = build_capture(Closure(), torch.randn(2))
    assert called(capture, plan_at(capture)) == []


class Again(nn.Module):
    """The same module, three times."""

    class Noise(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, x):
            return self.drop(F.dropout(x, 0.5, self.training))

    def __init__(self) -> None:
        super().__init__()
        self.noise = Again.Noise()

    def forward(self, x):
        return self.noise(self.noise(self.noise(x)))


def test_calls_that_draw_are_numbered_without_gaps() -> None:
    """With the second call flat, the third would be counted as the second."""
    capture = build_capture(Again(), torch.randn(8))
    plan = plan_at(capture)
    assert [call.span.call for call in module_calls(capture, plan)] == [0, 1, 2]
    gap = changed(capture, 1, fixed="a reason")
    assert [call.span.call for call in module_calls(gap, plan)] == [0]
    late = changed(capture, 0, fixed="a reason")
    assert [call.span.call for call in module_calls(late, plan)] == [1, 2]


def test_drawing_paths() -> None:
    capture = build_capture(Again(), torch.randn(8))
    call = next(module_calls(capture, plan_at(capture)))
    assert drawing_paths(call) == {"noise": False, "noise.drop": True}


def fates(capture: Capture, plan: PartitionPlan) -> list[str]:
    return [f"{span.path}: {made.fate}" for span, made in paired(capture, plan)]


def paired(capture: Capture, plan: PartitionPlan) -> list[tuple[Span, SpanFate]]:
    return list(zip(capture.spans, span_fates(capture, plan), strict=True))


def test_every_span_has_a_fate() -> None:
    capture = build_capture(Model(), torch.randn(2))
    plan = plan_at(capture, "add_1")
    assert fates(capture, plan) == ["outer: divided", "outer.one: called", "outer.two: divided"]
    assert [made.stages for made in span_fates(capture, plan)] == [(0, 1), (0,), (0, 1)]
    assert span_fates(capture, plan)[0].reason == "cut before add_1"
    whole = fates(capture, plan_at(capture))
    assert whole == ["outer: called", "outer.one: inside", "outer.two: inside"]


def test_a_call_of_several_cuts_names_all_of_them() -> None:
    capture = build_capture(Model(), torch.randn(2))
    made = span_fates(capture, replace(plan_at(capture, "add", "add_1"), starts=("a", "b")))
    assert [each.reason for each in made] == ["cut before a and b", "cut before a", "cut before b"]


def test_what_is_written_out_has_a_reason() -> None:
    capture = build_capture(Model(), torch.randn(2))
    fixed = changed(capture, 0, fixed="it keeps secrets")
    made = span_fates(fixed, plan_at(fixed))[0]
    assert (made.fate, made.reason) == (Fate.FLAT, "it keeps secrets")
    deaf = changed(capture, 0, outputs={})
    assert (
        span_fates(deaf, plan_at(deaf))[0].reason
        == "mul is read outside, and is not part of its result"
    )
    empty = changed(capture, 2, nodes=())
    assert span_fates(empty, plan_at(empty, "relu_1"))[2].fate is Fate.EMPTY
