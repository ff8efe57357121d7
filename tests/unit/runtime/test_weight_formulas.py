"""Formulas have the bits, and the strides, of autograd's nodes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fxpipe.runtime.weight_formulas import formula_of
from fxpipe.runtime.weight_pass import Deferring
from fxpipe.runtime.weight_queue import PrivateUse, WeightQueue

TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def parameter(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape).to(dtype))


def plain(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape).to(dtype)


LAYOUTS: dict[str, Callable[[Callable[..., Tensor], int], Tensor]] = {
    "matrix": lambda make, width: make(13, width),
    "one row": lambda make, width: make(1, width),
    "columns first": lambda make, width: make(width, 13).t(),
    "every second": lambda make, width: make(26, 2 * width)[::2, ::2],
    "sequence": lambda make, width: make(3, 5, width),
    "four dimensions": lambda make, width: make(2, 3, 4, width),
    "transposed sequence": lambda make, width: make(5, 3, width).transpose(0, 1),
    "channels last": lambda make, width: make(3, width, 5).transpose(1, 2),
    "first token": lambda make, width: make(3, 5, width)[:, :1],
    "token of one": lambda make, width: make(1, 5, width)[:, :1],
    "expanded": lambda make, width: make(1, 5, width).expand(3, 5, width),
    "permuted images": lambda make, width: make(2, width, 4, 3).permute(0, 2, 3, 1),
    "large and transposed": lambda make, width: make(4, 16 * width, 64).transpose(1, 2),
    "large": lambda make, width: make(4, 32, 16 * width),
}
"""Inputs of some values per row, in every layout that a model may give them."""


def rows(layout: str, dtype: torch.dtype, width: int) -> Tensor:
    return LAYOUTS[layout](partial(plain, dtype=dtype), width)


def gradients_of(made: Tensor, layout: str) -> Tensor:
    """A gradient as it may arrive: contiguous, out of a broadcast, or a piece of something larger."""
    match layout:
        case "own":
            return torch.randn(made.shape).to(made)
        case "expanded":
            return torch.randn(()).to(made.dtype).expand(made.shape)
        case "piece":
            wide = (*made.shape[:-1], 2 * made.shape[-1])
            return torch.randn(wide).to(made.dtype)[..., : made.shape[-1]]
        case "permuted":
            return (
                torch.randn(made.shape[::-1]).to(made.dtype).permute(*reversed(range(made.dim())))
            )
    raise ValueError(layout)


def compare(
    function: Callable[..., Any], args: tuple[Any, ...], grad: str = "own", formula: bool = True
) -> None:
    """Results and gradients of a call with its weights put off, and of the call itself."""
    given = [value for value in args if isinstance(value, Tensor) and value.is_floating_point()]
    weights = [value for value in given if isinstance(value, nn.Parameter)]
    inputs = [value.requires_grad_() for value in given if value not in set(weights)]
    trained = [weight for weight in weights if weight.requires_grad]
    deferring = Deferring()
    deferring.queue = queue = WeightQueue()
    assert (formula_of(function, args) is not None) == formula
    eager = function(*args)
    g = gradients_of(eager, grad)
    wanted = torch.autograd.grad(eager, [*inputs, *trained], g)
    made = deferring.run(function, args, {})
    assert torch.equal(made, eager)
    assert made.stride() == eager.stride()
    made.backward(g, inputs=[*inputs, deferring._anchor])
    assert [weight.grad for weight in trained] == [None] * len(trained)
    assert [isinstance(use, PrivateUse) for use in queue._uses] == [not formula]
    reached = [tensor.grad for tensor in inputs]
    queue.run()
    for tensor, expected in zip(
        (*reached, *(weight.grad for weight in trained)), wanted, strict=True
    ):
        assert tensor is not None
        assert torch.equal(tensor, expected)


def bits_of_input(function: Callable[..., Any], args: tuple[Any, ...], grad: str) -> None:
    """The gradient of the input has eager's strides: how the stage before sums it depends on them."""
    found = formula_of(function, args)
    assert found is not None
    formula, x, weight, _ = found
    x.requires_grad_()
    eager = function(*args)
    g = gradients_of(eager, grad)
    (wanted,) = torch.autograd.grad(eager, x, g)
    with torch.no_grad():
        made = formula.of_input(g, x, weight)
    assert made is not None
    assert torch.equal(made, wanted)
    assert made.stride() == wanted.stride()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("width", [1, 6, 32])
@pytest.mark.parametrize("bias", [True, False])
def test_linear(dtype: torch.dtype, layout: str, width: int, bias: bool) -> None:
    x = rows(layout, dtype, width)
    weight = parameter(8, x.shape[-1], dtype=dtype)
    args = (x, weight, parameter(8, dtype=dtype) if bias else None)
    for grad in ("own", "expanded", "piece", "permuted"):
        for value in args[1:]:
            if value is not None:
                value.grad = None
        compare(F.linear, (x.detach(), *args[1:]), grad)
        bits_of_input(F.linear, (x.detach(), *args[1:]), grad)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("weight", ["rows first", "columns first", "piece"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("function", [torch.matmul, operator.matmul, Tensor.matmul, torch.mm])
def test_products(
    dtype: torch.dtype, weight: str, layout: str, function: Callable[..., Any]
) -> None:
    x = rows(layout, dtype, 6)
    if function is torch.mm and x.dim() != 2:
        return
    width = x.shape[-1]
    values = {
        "rows first": plain(width, 7, dtype=dtype),
        "columns first": plain(7, width, dtype=dtype).t(),
        "piece": plain(width, 14, dtype=dtype)[:, ::2],
    }
    args = (x, nn.Parameter(values[weight]))
    for grad in ("own", "permuted"):
        compare(function, (args[0].detach(), nn.Parameter(args[1].detach())), grad)
        bits_of_input(function, (args[0].detach(), args[1]), grad)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("layout", ["matrix", "columns first", "every second"])
def test_a_weight_from_the_left(dtype: torch.dtype, layout: str) -> None:
    x = rows(layout, dtype, 6)
    for grad in ("own", "expanded", "permuted"):
        compare(torch.mm, (parameter(5, 13, dtype=dtype), x.detach()), grad)
        bits_of_input(operator.matmul, (parameter(5, 13, dtype=dtype), x.detach()), grad)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("layout", ["own", "transposed", "expanded"])
def test_batches_of_products(dtype: torch.dtype, layout: str) -> None:
    x = {
        "own": plain(3, 5, 6, dtype=dtype),
        "transposed": plain(3, 6, 5, dtype=dtype).transpose(1, 2),
        "expanded": plain(1, 5, 6, dtype=dtype).expand(3, 5, 6),
    }[layout]
    for weight in (plain(3, 6, 4, dtype=dtype), plain(3, 4, 6, dtype=dtype).transpose(1, 2)):
        for grad in ("own", "expanded", "piece", "permuted"):
            compare(torch.bmm, (x.detach(), nn.Parameter(weight)), grad)
            bits_of_input(Tensor.bmm, (x.detach(), nn.Parameter(weight)), grad)


@pytest.mark.parametrize("equation", ["bij,jk->bik", "bij,bjk->bki", "bij,kj->kb"])
def test_einsum_by_its_graph(equation: str) -> None:
    shape = {"bij,jk->bik": (6, 4), "bij,bjk->bki": (3, 6, 4), "bij,kj->kb": (4, 6)}[equation]
    compare(torch.einsum, (equation, plain(3, 5, 6), parameter(*shape)), formula=False)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("bias", [(7,), (1, 7), (13, 1), (13, 7), (1,), ()], ids=str)
def test_addmm_with_biases_that_are_spread(dtype: torch.dtype, bias: tuple[int, ...]) -> None:
    for layout in ("matrix", "columns first"):
        x, weight = rows(layout, dtype, 6), parameter(6, 7, dtype=dtype)
        for grad in ("own", "permuted"):
            compare(torch.addmm, (parameter(*bias, dtype=dtype), x.detach(), weight), grad)
            weight.grad = None


CONVOLUTIONS = [
    (F.conv1d, (2, 4, 9), (6, 4, 3), (2, 1, 1, 1)),
    (F.conv1d, (2, 4, 9), (6, 2, 1), (1, 0, 1, 2)),
    (F.conv2d, (2, 4, 8, 7), (6, 4, 3, 3), (1, 1, 1, 1)),
    (F.conv2d, (2, 4, 8, 7), (6, 4, 1, 1), ((1, 1), (0, 0), (1, 1), 1)),
    (F.conv2d, (1, 3, 16, 16), (8, 3, 7, 7), ((2, 2), (3, 3), (1, 1), 1)),
    (F.conv2d, (2, 4, 8, 7), (4, 1, 3, 3), ((1, 2), (1, 0), (1, 1), 4)),
    (F.conv2d, (2, 4, 8, 7), (6, 2, 3, 3), ((1, 1), (2, 2), (2, 2), 2)),
    (F.conv3d, (2, 3, 5, 6, 4), (4, 3, 3, 1, 3), ((1, 1, 1), (1, 0, 1), (1, 1, 1), 1)),
    (F.conv_transpose1d, (2, 4, 9), (4, 6, 2), (2, 0, 1, 1, 1)),
    (F.conv_transpose2d, (2, 4, 8, 7), (4, 3, 3, 3), ((2, 2), (1, 1), (1, 1), 1, (1, 1))),
    (F.conv_transpose2d, (2, 4, 8, 7), (4, 3, 2, 2), ((1, 1), (0, 0), (0, 0), 2, (2, 2))),
    (F.conv_transpose3d, (2, 4, 3, 4, 5), (4, 3, 2, 2, 2), (2, 0, 0, 1, 1)),
]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("layout", ["own", "channels last", "piece"])
@pytest.mark.parametrize("case", range(len(CONVOLUTIONS)))
def test_convolutions(dtype: torch.dtype, bias: bool, layout: str, case: int) -> None:
    function, shape, kernel, settings = CONVOLUTIONS[case]
    x, weight = plain(*shape, dtype=dtype), parameter(*kernel, dtype=dtype)
    if layout == "channels last":
        x = x.transpose(1, -1).contiguous().transpose(1, -1)
    elif layout == "piece":
        x = torch.cat([x, x], 1)[:, : shape[1]]
    channels = function(x, weight, None, *settings).shape[1]
    args = (weight, parameter(channels, dtype=dtype) if bias else None, *settings)
    for grad in ("own", "expanded", "piece"):
        for value in args[:2]:
            if value is not None:
                value.grad = None
        compare(function, (x.detach(), *args), grad)
        bits_of_input(function, (x.detach(), *args), grad)


def test_defaults_of_convolutions() -> None:
    x = plain(2, 4, 8, 8)
    compare(F.conv2d, (x, parameter(4, 4, 3, 3)))
    compare(F.conv_transpose2d, (x.detach(), parameter(4, 4, 3, 3), parameter(4)))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("padding", [None, 0, 3, -1])
def test_lookups(dtype: torch.dtype, padding: int | None) -> None:
    ids = torch.randint(0, 11, (4, 7))
    for grad in ("own", "expanded", "permuted"):
        compare(F.embedding, (ids, parameter(11, 6, dtype=dtype), padding), grad)


def test_a_frozen_bias() -> None:
    bias = parameter(3).requires_grad_(False)
    compare(F.linear, (plain(4, 5), parameter(3, 5), bias))
    assert bias.grad is None


class Tagged(Tensor):
    pass


def test_what_has_no_formula() -> None:
    x, weight, bias = plain(4, 5), parameter(3, 5), parameter(3)
    images, kernel = plain(2, 4, 8, 8), parameter(4, 4, 3, 3)
    for function, args in (
        (F.linear, (x.as_subclass(Tagged), weight, bias)),
        (F.linear, (x, weight, bias.detach())),
        (F.linear, (x[0], weight, bias)),
        (F.linear, (x[:0], weight, bias)),
        (F.linear, (x.to_mkldnn(), weight, bias)),
        (F.linear, (x.to(torch.cfloat), nn.Parameter(weight.to(torch.cfloat)))),
        (F.linear, (x, nn.Parameter(weight.detach(), requires_grad=False), bias)),
        (F.conv2d, (images[0], kernel)),
        (F.conv2d, (images, kernel, None, 1, "same")),
        (F.embedding, (torch.tensor([1]), weight, None, 1.0)),
        (torch.matmul, (x[0], parameter(5, 3))),
        (torch.matmul, (weight, plain(2, 5, 3))),
        (torch.matmul, (parameter(3, 5), parameter(5, 3))),
        (torch.bmm, (parameter(2, 3, 3), plain(2, 3, 3))),
        (torch.einsum, ("ij,jk->ik", x, parameter(5, 3))),
    ):
        assert formula_of(function, args) is None
    with torch.autocast("cpu", torch.bfloat16):
        assert formula_of(F.linear, (x, weight, bias)) is None
    assert formula_of(F.linear, (x, weight, bias)) is not None


@pytest.mark.parametrize("order", ["formula last", "formula first", "between"])
def test_a_weight_with_and_without_formula(order: str) -> None:
    """Sums are made in the order of eager, also where only some of the uses have a private graph."""
    weight, x = parameter(6, 6), plain(40, 6).requires_grad_()

    def model(linear: Callable[..., Any]) -> Tensor:
        def cast(y: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                for _ in range(2):
                    y = torch.tanh(linear(y, weight))
            return y.float()

        def plainly(y: Tensor) -> Tensor:
            return torch.tanh(linear(y, weight))

        parts = {
            "formula last": (cast, plainly, plainly),
            "formula first": (plainly, plainly, cast),
            "between": (cast, plainly, cast, plainly),
        }
        y = x
        for part in parts[order]:
            y = part(y)
        return y.square().sum()

    (wanted,) = torch.autograd.grad(model(F.linear), weight)
    deferring = Deferring()
    deferring.queue = queue = WeightQueue()
    model(lambda *args: deferring.run(F.linear, args, {})).backward()
    kinds = {isinstance(use, PrivateUse) for use in queue._uses}
    queue.run()
    assert kinds == {True, False}
    assert torch.equal(weight.grad, wanted)


def test_what_may_change_before_the_backward() -> None:
    """As in eager: a weight is kept for the gradient of the input only, an input for the weight's."""
    ids, table = torch.tensor([1, 2]), parameter(5, 3)
    layer, x = parameter(3, 3), plain(2, 3).requires_grad_()
    deferring = Deferring()
    deferring.queue = queue = WeightQueue()
    rows = deferring.run(F.embedding, (ids, table), {})
    with torch.no_grad():
        table.mul_(2.0)
    rows.sum().backward()
    queue.run()
    assert table.grad.sum() == 6
    y = deferring.run(F.linear, (x, layer), {})
    with torch.no_grad():
        layer.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_gradients_are_not_copied() -> None:
    weight, x = parameter(64, 64), plain(8, 64)
    deferring = Deferring()
    deferring.queue = queue = WeightQueue()
    deferring.run(F.linear, (x, weight), {}).sum().backward()
    (use,) = queue._uses
    made: list[int] = []
    of_weights = use._formula.of_weights

    class Noting:
        def of_weights(self, *args: Any) -> Any:
            grads = of_weights(*args)
            made.append(grads[0].data_ptr())
            return grads

    use._formula = Noting()
    queue.run()
    assert made == [weight.grad.data_ptr()]


@pytest.mark.cuda
def test_the_same_on_an_accelerator() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        x, weight, bias = plain(4, 32, 64), parameter(48, 64), parameter(48)
        images, kernel = plain(2, 8, 16, 16), parameter(12, 8, 3, 3)
        for function, args in (
            (F.linear, (x, weight, bias)),
            (F.linear, (x, weight, None)),
            (F.linear, (x[0], weight, bias)),
            (torch.matmul, (x, parameter(64, 24))),
            (F.conv2d, (images, kernel, parameter(12), 1, 1)),
            (F.conv_transpose2d, (images, parameter(8, 6, 2, 2), parameter(6), 2)),
        ):
            there = tuple(
                nn.Parameter(value.detach().to("cuda", dtype))
                if isinstance(value, nn.Parameter)
                else value.to("cuda", dtype)
                if isinstance(value, Tensor)
                else value
                for value in args
            )
            compare(function, there)


@pytest.mark.parametrize("case", ["linear", "matmul", "convolution"])
def test_autocast(case: str) -> None:
    function, args = {
        "linear": (F.linear, (plain(3, 5, 6), parameter(8, 6), parameter(8))),
        "matmul": (torch.matmul, (plain(3, 5, 6), parameter(6, 8))),
        "convolution": (F.conv2d, (plain(2, 4, 8, 8), parameter(6, 4, 3, 3), parameter(6))),
    }[case]
    with torch.autocast("cpu", torch.bfloat16):
        compare(function, args, formula=False)
