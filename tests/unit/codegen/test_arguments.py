from __future__ import annotations

import enum
import math
from collections import OrderedDict, namedtuple

import numpy as np
import pytest
import torch
import torch.fx
from torch.fx.immutable_collections import immutable_dict, immutable_list

from fxpipe.codegen.arguments import Arguments
from fxpipe.errors import CodegenError

Point = namedtuple("Point", ["x", "y"])


class Colour(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    LOW = 0


class Access(enum.Flag):
    READ = 1
    WRITE = 2


@pytest.fixture
def node() -> torch.fx.Node:
    return torch.fx.Graph().placeholder("x")


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        (None, "None"),
        (True, "True"),
        (..., "..."),
        (3, "3"),
        (-0.0, "-0.0"),
        (1e-5, "1e-05"),
        (math.inf, "math.inf"),
        (-math.inf, "-math.inf"),
        (1 + 2j, "(1+2j)"),
        (complex(0, math.inf), "complex(0.0, math.inf)"),
        (np.float64(0.5), "0.5"),
        ("it's", '"it\'s"'),
        (b"raw", "b'raw'"),
        (torch.float16, "torch.float16"),
        (torch.channels_last, "torch.channels_last"),
        (torch.strided, "torch.strided"),
        (torch.device("meta"), 'torch.device("meta")'),
        (torch.Size([1, 2]), "torch.Size([1, 2])"),
        (slice(1, None), "slice(1, None, None)"),
        ((), "()"),
        ((1,), "(1,)"),
        ([1, [2.0, None]], "[1, [2.0, None]]"),
        (immutable_list([1]), "[1]"),
        ({"a": (1, ...)}, '{"a": (1, ...)}'),
        (immutable_dict({1: "b"}), '{1: "b"}'),
        ({2, 1}, "{1, 2}"),
        (set(), "set()"),
        (frozenset({1}), "frozenset({1})"),
        (range(1, 5, 2), "range(1, 5, 2)"),
        (Point(1, 2), f"{__name__}.Point(1, 2)"),
        (Colour.RED, f"{__name__}.Colour.RED"),
        (Level.LOW, f"{__name__}.Level.LOW"),
        (torch.nn.Linear, "torch.nn.modules.linear.Linear"),
        (len, "len"),
    ],
)
def test_what_is_written_is_what_was_meant(write: Arguments, argument: object, text: str) -> None:
    assert write.text(argument) == text
    space: dict[str, object] = {}
    exec("\n".join(write.imports.lines), space)
    assert eval(text, space) == argument


def test_nan(write: Arguments) -> None:
    assert write.text(math.nan) == "math.nan"


def test_the_stage_has_its_own_device(write: Arguments) -> None:
    assert not write.names_device
    assert write.text(torch.device("cpu")) == "self.device"
    assert write.names_device
    assert write.call((), {"device": "cpu"}) == "device=self.device"
    assert write.call((), {"device": "meta"}) == 'device="meta"'
    assert write.call((), {"mode": "cpu"}) == 'mode="cpu"'


@pytest.mark.parametrize(
    "argument",
    [
        torch.Generator(),
        OrderedDict(a=1),
        lambda x: x,
        Access.READ | Access.WRITE,
        np.float32(1.0),
        np.arange(2),
        object(),
    ],
    ids=lambda argument: type(argument).__name__,
)
def test_what_has_no_text_is_bound(write: Arguments, argument: object) -> None:
    text = write.text(argument)
    assert text.startswith("self.")
    assert write.bindings.constants[text.removeprefix("self.")] is argument


def test_values_inside_containers(write: Arguments, node: torch.fx.Node) -> None:
    assert write.text([node, {"k": (node, 1)}]) == '[x, {"k": (x, 1)}]'
    assert write.text(slice(None, node)) == "slice(None, x, None)"


def test_values_in_an_unknown_container(write: Arguments, node: torch.fx.Node) -> None:
    with pytest.raises(CodegenError, match=r"a collections.OrderedDict that holds values"):
        write.text(OrderedDict(a=node))


@pytest.mark.parametrize(
    ("index", "text"),
    [
        (0, "0"),
        ((slice(None), slice(1, None)), ":, 1:"),
        ((..., None, slice(None, None, 2)), "..., None, ::2"),
        ((slice(-3, -1),), "-3:-1,"),
        ("key", '"key"'),
        ([0, 1], "[0, 1]"),
        ((), "()"),
    ],
)
def test_subscripts(write: Arguments, index: object, text: str) -> None:
    assert write.subscript(index) == text

    class Probe:
        def __getitem__(self, found: object) -> object:
            return found

    assert eval(f"probe[{text}]", {"probe": Probe()}) == index


def test_operands(write: Arguments, node: torch.fx.Node) -> None:
    assert [write.operand(a) for a in (node, 2, 1e-5, -1, 1j, (1, 2), "s", None)] == [
        "x",
        "2",
        "1e-05",
        "(-1)",
        "(1j)",
        "((1, 2))",
        '("s")',
        "None",
    ]


def test_calls(write: Arguments, node: torch.fx.Node) -> None:
    assert write.call((node, 1), {"dim": -1}) == "x, 1, dim=-1"
    assert write.call((), {"no name": 1, "lambda": 2}) == '**{"no name": 1, "lambda": 2}'
