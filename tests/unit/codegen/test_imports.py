from __future__ import annotations

import functools
import math
import operator
from collections import OrderedDict

import pytest
import torch
import torch.nn.functional as F

from fxpipe import ops
from fxpipe.codegen.imports import Imports, is_importable


def own_function(x):
    return x


class Own:
    @staticmethod
    def inner(x):
        return x


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (len, "len"),
        (F.relu, "F.relu"),
        (F.max_pool2d, "F.max_pool2d"),
        (torch.relu, "torch.relu"),
        (torch.cat, "torch.cat"),
        (torch.conv2d, "F.conv2d"),
        (torch.Tensor.add, "torch.Tensor.add"),
        (torch.fft.fft, "torch.fft.fft"),
        (torch.linalg.inv, "torch.linalg.inv"),
        (torch.ops.aten.add.Tensor, "torch.ops.aten.add.Tensor"),
        (torch.ops.aten.add, "torch.ops.aten.add"),
        (math.sqrt, "math.sqrt"),
        (operator.iadd, "operator.iadd"),
        (ops.set_item, "ops.set_item"),
        (OrderedDict, "collections.OrderedDict"),
        (own_function, f"{__name__}.own_function"),
        (Own.inner, f"{__name__}.Own.inner"),
        (torch.nn.utils.rnn.pack_sequence, "torch.nn.utils.rnn.pack_sequence"),
    ],
)
def test_the_name_means_the_function(target: object, name: str) -> None:
    imports = Imports()
    assert imports.name_of(target) == name
    space: dict[str, object] = {}
    exec("\n".join(imports.lines), space)
    assert eval(name, space) == target


def decorated(function):
    @functools.wraps(function)
    def wrapper(x):
        return function(x)

    return wrapper


@pytest.mark.parametrize(
    "target",
    [
        lambda x: x,
        decorated(own_function),  # its name leads to the undecorated one
        functools.partial(own_function, 1),
        torch.nn.Linear(1, 1).forward,
        object(),
    ],
    ids=["lambda", "decorated", "partial", "bound method", "object"],
)
def test_no_name(target: object) -> None:
    imports = Imports()
    assert imports.name_of(target) is None
    assert imports.lines == ()


def test_a_module_that_others_cannot_import() -> None:
    assert not is_importable("__main__")
    assert not is_importable("no.such.module")
    assert not is_importable("<string>")
    assert is_importable("collections")


def test_lines_are_sorted_and_roots_known() -> None:
    imports = Imports()
    for target in (ops.affine, torch.cat, F.relu, OrderedDict):
        imports.name_of(target)
    assert imports.lines == (
        "import collections",
        "import torch",
        "import torch.nn.functional as F",
        "from fxpipe import ops",
    )
    assert imports.roots == {"collections", "torch", "F", "ops"}
