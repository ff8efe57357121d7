from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fxpipe import ops
from fxpipe.capture.functions import (
    as_node,
    is_checkable,
    is_shaped_as_first,
    is_sized_by_data,
    may_write,
    reads_data,
    reads_size,
)
from fxpipe.capture.trace import trace

X = torch.randn(2, 4)
T = torch.Tensor


def target_of(forward: Any) -> list[Any]:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return forward(x)

    return [node.target for node in trace(Model(), (X,)).body if node.name != "batch_size"]


@pytest.mark.parametrize(
    ("forward", "targets"),
    [
        (lambda x: x + 1, ["add"]),
        (lambda x: 1 - x, [operator.sub]),
        (lambda x: x[0], [operator.getitem]),
        (lambda x: x > 0, ["gt"]),
        (lambda x: ~(x == x), [operator.eq, operator.invert]),
        (lambda x: F.relu(x), [F.relu]),
        (lambda x: torch.cat([x, x]), [torch.cat]),
        (lambda x: x.T, [getattr]),
        (lambda x: ops.set_item(x.clone(), 0, 1.0), ["clone", ops.set_item]),
        (
            lambda x: torch.stack(list(x.unbind(1))),
            ["unbind", torch.stack],
        ),
        (lambda x: x.max(1)[0], ["max", operator.getitem, operator.getitem]),
        (lambda x: (x.size(0), x.dim(), x.dtype, str(x))[1] * x, ["mul"]),
    ],
)
def test_forms_of_calls(forward: Any, targets: list[Any]) -> None:
    assert target_of(forward) == targets


def test_reflected_operands_are_swapped() -> None:
    form = as_node(T.__rsub__, (X, 1), {})
    assert (form.target, form.args) == (operator.sub, (1, X))


def test_function_without_an_importable_name_goes_through_call() -> None:
    def local(x: torch.Tensor) -> torch.Tensor:
        return x

    assert as_node(local, (X,), {}).target is ops.call


def test_assignments_return_their_target() -> None:
    form = as_node(T.__setitem__, (X, 0, 1), {})
    assert form.result(None) is X
    hook = as_node(T.register_hook, (X, print), {})
    assert (hook.target, hook.args, hook.result("handle")) == (
        ops.call_hook,
        (X, "register_hook", print),
        X,
    )


@pytest.mark.parametrize(
    ("func", "args", "kwargs", "writes"),
    [
        (T.add_, (X, 1), {}, True),
        (T.add, (X, 1), {}, False),
        (T.__setitem__, (X, 0, 1), {}, True),
        (F.relu, (X,), {"inplace": True}, True),
        (torch.add, (X, X), {"out": X}, True),
    ],
)
def test_calls_that_may_write(func: Any, args: Any, kwargs: Any, writes: bool) -> None:
    assert may_write(func, kwargs) is writes


def test_reads_of_values() -> None:
    assert reads_data(T.item)
    assert reads_data(T.__bool__)
    assert not reads_data(T.sum)
    assert is_checkable(T.tolist)
    assert not is_checkable(T.numpy)


@pytest.mark.parametrize(
    ("func", "args", "kwargs", "sized"),
    [
        (torch.nonzero, (X,), {}, True),
        (torch.where, (X > 0,), {}, True),
        (torch.where, (X > 0, X, X), {}, False),
        (T.__getitem__, (X, X > 0), {}, True),
        (T.__getitem__, (X, (slice(None), torch.tensor([0]))), {}, False),
        (torch.repeat_interleave, (X, torch.tensor([1, 2])), {"dim": 0}, True),
        (torch.repeat_interleave, (X, 2), {}, False),
        (torch.repeat_interleave, (torch.tensor([1, 2]),), {}, True),
        (torch.repeat_interleave, (X,), {"repeats": 2}, False),
        (T.repeat_interleave, (X, torch.tensor([1, 2])), {"output_size": 3}, False),
        (F.one_hot, (torch.tensor([1, 2]),), {}, True),
        (F.one_hot, (torch.tensor([1, 2]), 5), {}, False),
        (F.one_hot, (torch.tensor([1, 2]),), {"num_classes": 5}, False),
        (T.__getitem__, (X, (slice(None), slice(torch.tensor(2)))), {}, True),
        (T.__getitem__, (X, slice(2)), {}, False),
        (torch.arange, (torch.tensor(2),), {}, True),
        (torch.zeros, ((2, torch.tensor(2)),), {}, True),
        (torch.zeros, (2, 2), {}, False),
        (T.narrow, (X, 0, 0, torch.tensor(2)), {}, True),
        (T.narrow, (X, 0, 0, 2), {}, False),
        (torch.unique, (X,), {}, True),
    ],
)
def test_results_sized_by_data(func: Any, args: Any, kwargs: Any, sized: bool) -> None:
    assert is_sized_by_data(func, args, kwargs) is sized


@pytest.mark.parametrize(
    ("func", "shaped"),
    [
        (T.add_, True),
        (T.__iadd__, True),
        (T.__setitem__, True),
        (T.index_add, True),
        (T.resize_, False),
        (T.data.__set__, False),
        (T.add, False),
        (T.__add__, False),
    ],
)
def test_results_shaped_as_their_first_argument(func: Any, shaped: bool) -> None:
    assert is_shaped_as_first(func) is shaped


@pytest.mark.parametrize(
    ("func", "args", "kwargs", "reads"),
    [
        (T.__iter__, (X,), {}, True),
        (T.unbind, (X,), {}, True),
        (T.unbind, (X, 1), {}, False),
        (T.chunk, (X, 2), {}, True),
        (T.chunk, (X, 2, -1), {}, False),
        (torch.split, (X, 2), {"dim": -1}, False),
        (torch.split, (X[0], 2), {"dim": -1}, True),
        (T.sum, (X,), {}, False),
    ],
)
def test_the_number_of_parts_is_a_size(func: Any, args: Any, kwargs: Any, reads: bool) -> None:
    assert reads_size(func, args, kwargs) is reads


def test_reads_of_sizes() -> None:
    assert reads_size(T.size)
    assert reads_size(T.shape.__get__)
    assert not reads_size(T.dtype.__get__)
