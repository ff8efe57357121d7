from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
import torch.fx
import torch.nn.functional as F

from fxpipe import ops
from fxpipe.codegen.arguments import Arguments
from fxpipe.codegen.emit import _METHOD_INFIX, _REFLECTED, expression
from fxpipe.errors import CodegenError

graph = torch.fx.Graph()
x = graph.placeholder("x")
y = graph.placeholder("y")


def text(write: Arguments, op: str, target: Any, *args: Any, **kwargs: Any) -> str:
    return expression(graph.create_node(op, target, args, kwargs), write)


@pytest.mark.parametrize(
    ("target", "args", "kwargs", "expected"),
    [
        (torch.cat, ([x, y],), {"dim": 1}, "torch.cat([x, y], dim=1)"),
        (F.relu, (x,), {"inplace": False}, "F.relu(x)"),
        (F.relu, (x,), {"inplace": True}, "F.relu(x, inplace=True)"),
        (F.dropout, (x,), {"p": 0.1, "training": True}, "F.dropout(x, p=0.1)"),
        (operator.add, (x, y), {}, "x + y"),
        (operator.sub, (1, x), {}, "1 - x"),
        (operator.mul, (x, -1.5), {}, "x * -1.5"),
        (operator.pow, (-1, x), {}, "(-1) ** x"),
        (operator.truediv, (x, (1, 2)), {}, "x / ((1, 2))"),
        (operator.neg, (x,), {}, "-x"),
        (operator.invert, (x,), {}, "~x"),
        (operator.not_, (x,), {}, "not x"),
        (operator.iadd, (x, y), {}, "operator.iadd(x, y)"),
        (operator.getitem, (x, 0), {}, "x[0]"),
        (operator.getitem, (x, (slice(None), y)), {}, "x[:, y]"),
        (getattr, (x, "shape"), {}, "x.shape"),
        (getattr, (x, "no name"), {}, 'getattr(x, "no name")'),
        (ops.set_item, (x, 0, y), {}, "ops.set_item(x, 0, y)"),
        (
            torch.arange,
            (3,),
            {"device": torch.device("cpu"), "dtype": torch.int64},
            "torch.arange(3, device=self.device, dtype=torch.int64)",
        ),
        (
            ops.enter_autocast,
            ("cpu", torch.bfloat16, True, None),
            {},
            "ops.enter_autocast(self.device.type, torch.bfloat16, True, None)",
        ),
        (
            ops.enter_autocast,
            ("cuda", torch.bfloat16, True, None),
            {},
            'ops.enter_autocast("cuda", torch.bfloat16, True, None)',
        ),
    ],
)
def test_functions(write: Arguments, target: Any, args: Any, kwargs: Any, expected: str) -> None:
    assert text(write, "call_function", target, *args, **kwargs) == expected


@pytest.mark.parametrize(
    ("target", "args", "expected"),
    [
        ("view", (x, -1, 3), "x.view(-1, 3)"),
        ("add", (x, y), "x + y"),
        ("add_", (x, y), "x.add_(y)"),
        ("matmul", (x, y), "x @ y"),
        ("__rsub__", (x, 1), "1 - x"),
        ("__rsub__", (x, y), "x.__rsub__(y)"),
        ("__rpow__", (x, -2), "(-2) ** x"),
        ("__rdiv__", (x, 1), "1 / x"),
        ("__getitem__", (x, (slice(1, None), None)), "x[1:, None]"),
        ("__eq__", (x, 1), "x == 1"),
        ("__and__", (x, y), "x & y"),
        ("neg", (x,), "-x"),
        ("__invert__", (x,), "~x"),
        ("to", (x, "cpu"), "x.to(self.device)"),
        ("to", (x, "meta"), 'x.to("meta")'),
        ("to", (x, torch.float16), "x.to(torch.float16)"),
    ],
)
def test_methods(write: Arguments, target: str, args: Any, expected: str) -> None:
    assert text(write, "call_method", target, *args) == expected


def test_methods_with_keywords_keep_them(write: Arguments) -> None:
    assert text(write, "call_method", "add", x, y, alpha=2) == "x.add(y, alpha=2)"


def test_modules(write: Arguments) -> None:
    assert text(write, "call_module", "down.0", x, scale=2) == "self.down_0(x, scale=2)"
    node = graph.create_node("call_module", "up", (x,))
    node.meta["via"] = "forward"
    assert expression(node, write) == "self.up.forward(x)"


def test_a_function_without_a_name_is_bound(write: Arguments) -> None:
    def local(value):
        return value

    assert text(write, "call_function", local, x) == "self.local(x)"
    assert write.bindings.constants == {"local": local}


def test_no_stage_computes_a_placeholder(write: Arguments) -> None:
    with pytest.raises(CodegenError, match="x is a placeholder"):
        expression(x, write)


OPERATORS = [
    (method, other)
    for method in sorted({*_METHOD_INFIX, *_REFLECTED})
    for other in (3, torch.tensor([2, 5]))
    if hasattr(torch.Tensor, method) and ("matmul" not in method or isinstance(other, torch.Tensor))
]


@pytest.mark.parametrize(("method", "other"), OPERATORS)
def test_operators_compute_what_their_methods_do(
    write: Arguments, method: str, other: int | torch.Tensor
) -> None:
    value = torch.tensor([[4, 1], [3, 2]])
    found = text(write, "call_method", method, x, y if isinstance(other, torch.Tensor) else other)
    expected = getattr(value, method)(other)
    assert torch.equal(eval(found, {"x": value, "y": other}), expected)
