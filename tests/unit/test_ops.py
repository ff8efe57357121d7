from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from fxpipe import ops
from fxpipe.errors import CaptureError

Point = namedtuple("Point", "x y")


def test_assignments_return_what_they_changed() -> None:
    x = torch.zeros(3)
    assert ops.set_item(x, 1, 5.0) is x
    assert x.tolist() == [0, 5, 0]
    assert ops.set_attribute(x, "requires_grad", True) is x
    assert x.requires_grad


def test_numbers_that_follow_the_batch_size() -> None:
    assert [ops.affine(n, 1, 2, 1) for n in (2, 3, 4)] == [2, 2, 3]
    assert ops.affine_float(4, 0.5, 1.0) == 3.0
    assert ops.ratio(1.0, 4) == 0.25


def test_autocast_is_entered_and_left() -> None:
    context = ops.enter_autocast("cpu", torch.bfloat16, True, None)
    assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.bfloat16
    ops.exit_autocast(context)
    assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32


def test_grad_mode_is_switched() -> None:
    ops.set_grad_enabled(False)
    assert not torch.is_grad_enabled()
    ops.set_grad_enabled(True)
    assert torch.is_grad_enabled()


class Triple(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: int) -> torch.Tensor:
        return x * factor

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient * 7, None


def test_handwritten_functions_keep_their_backward() -> None:
    x = torch.ones(1, requires_grad=True)
    ops.apply_function(Triple, x, 3).backward()
    assert x.grad is not None
    assert x.grad.item() == 7


def test_hooks_are_registered_on_the_tensor() -> None:
    x = torch.ones(1, requires_grad=True)
    y = x * 2
    assert ops.call_hook(y, "register_hook", lambda gradient: gradient * 10) is y
    y.backward()
    assert x.grad is not None
    assert x.grad.item() == 20


def test_call() -> None:
    assert ops.call(lambda a, b: a - b, 3, b=1) == 2


def test_checked_values() -> None:
    ops.check_value(True, True)
    ops.check_value(torch.tensor([1, 2]), [1, 2])
    with pytest.raises(CaptureError, match=r"True when recorded, now False"):
        ops.check_value(torch.tensor(False), True)


def test_rebuilt_tuples() -> None:
    assert ops.rebuild_tuple(Point, [1, 2]) == Point(1, 2)
    packed = pack_sequence([torch.zeros(2, 1), torch.zeros(1, 1)])
    made = ops.rebuild_tuple(PackedSequence, tuple(packed))
    assert isinstance(made, PackedSequence)
    assert made.data is packed.data
    highest = torch.max(torch.eye(2), 0)
    assert ops.rebuild_tuple(type(highest), list(highest)).values is highest.values


class Words(list[Any]):
    pass


class Output(OrderedDict[str, Any]):
    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        super().__setattr__(key, value)


def test_rebuilt_lists_and_dicts() -> None:
    words = ops.rebuild_list(Words, [1, 2], {"language": "en"})
    assert (type(words), words, words.language) == (Words, [1, 2], "en")
    made = ops.rebuild_mapping(Output, {"x": 1}, {"note": 2})
    assert (made["x"], made.x, made.note) == (1, 1, 2)
    counts = ops.rebuild_mapping(defaultdict, {"x": 1}, {}, int)
    assert counts["y"] == 0


class Strict:
    __slots__ = ("x",)

    def __init__(self) -> None:
        raise AssertionError("not called")


def test_rebuilt_objects_do_not_run_their_constructor() -> None:
    assert ops.rebuild_object(Strict, {"x": 3}).x == 3


ATEN = torch.ops.aten
X = torch.zeros(2)


@pytest.mark.parametrize(
    ("operator", "args", "kwargs", "draws"),
    [
        (ATEN.add.Tensor, (X, X), {}, False),
        (ATEN.bernoulli_.float, (X, 0.5), {}, True),
        (ATEN.bernoulli_.float, (X, 0.5), {"generator": torch.Generator()}, False),
        (ATEN.native_dropout.default, (X, 0.5, True), {}, True),
        (ATEN.native_dropout.default, (X, 0.5, False), {}, False),
        (ATEN._scaled_dot_product_flash_attention_for_cpu.default, (X, X, X), {}, False),
        (ATEN._scaled_dot_product_flash_attention_for_cpu.default, (X, X, X, 0.1), {}, True),
        (ATEN.randn.default, ([2],), {}, True),
    ],
)
def test_operators_that_draw(operator: Any, args: Any, kwargs: Any, draws: bool) -> None:
    assert ops.draws_random(operator, args, kwargs) is draws
