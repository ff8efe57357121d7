"""Gradients of operators with a weight, half by half, where no graph is needed to get autograd's bits.

Each formula calls what autograd's node of the operator calls, on operands of the same strides. So
operands must be as they were when that was compared (tests): plain strided tensors of one type, outside
of autocast. For anything else `formula_of` has no formula, and the operator gets a private graph.

A product of rows with a matrix, ``y = x m`` (m is the weight, or for linear layers its transpose), has

    gradient of x = g mᵀ        gradient of m = xᵀ g        gradient of the bias = sum of g over rows
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_TYPES: Final = frozenset({torch.float32, torch.float64, torch.bfloat16, torch.float16})
_DEVICES: Final = frozenset({"cpu", "cuda"})
"""Others have operators of their own for layers."""


class Formula(Protocol):
    """How one kind of operator is computed, and its gradients; `x` is its input, `g` of its result."""

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The operator's result, without a graph."""

    def of_input(self, g: Tensor, x: Tensor, weight: Tensor) -> Tensor | None:
        """Gradient of the input."""

    def of_weights(
        self, g: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Gradients of the weight, and of the bias where one is given."""


Found: TypeAlias = tuple[Formula, Tensor, Tensor, Tensor | None]
"""A formula, and the operator's input, weight and bias."""


def formula_of(function: Callable[..., Any], args: Sequence[Any]) -> Found | None:
    """The formula of a call with positional arguments; None where there is none with eager's bits."""
    rule = _RULES.get(function)
    found = rule(args) if rule is not None else None
    if found is None:
        return None
    _, x, weight, bias = found
    if type(x) is not Tensor or type(weight) is not nn.Parameter or not weight.requires_grad:
        return None
    if bias is not None and type(bias) is not nn.Parameter:
        return None
    is_usual = (
        weight.dtype in _TYPES
        and x.device.type in _DEVICES
        and x.layout is torch.strided
        and weight.layout is torch.strided
        and x.numel() != 0
        and (bias is None or bias.dtype is weight.dtype)
        and not torch.is_autocast_enabled(x.device.type)
    )
    return found if is_usual else None


# -- products ------------------------------------------------------------------------------------------


class _Product:
    """Rows times a matrix: ``x @ m``, with the bias added by the same operator."""

    def __init__(self, transposed: bool) -> None:
        self._transposed = transposed

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        matrix, rows = self._matrix(weight), _rows(x)
        y = torch.mm(rows, matrix) if bias is None else torch.addmm(bias, rows, matrix)
        return y if x.dim() == 2 else y.view(*x.shape[:-1], y.shape[1])

    def of_input(self, g: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        made = _of_left(_rows(g), _rows(x), self._matrix(weight))
        return made if x.dim() == 2 else made.reshape(x.shape)

    def of_weights(
        self, g: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        rows = _rows(g)
        of_bias = None if bias is None else rows.sum_to_size(bias.shape)
        if self._transposed and weight.stride() == (weight.shape[1], 1):  # the usual case, in short
            return rows.t().mm(_rows(x)), of_bias
        made = _of_right(rows, _rows(x), self._matrix(weight))
        return made.t() if self._transposed else made, of_bias

    def _matrix(self, weight: Tensor) -> Tensor:
        return weight.t() if self._transposed else weight


class _BiasApart(_Product):
    """The same, with the bias added by an operator of its own."""

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        assert bias is not None
        return super().forward(x, weight, None).add_(bias)

    def of_weights(
        self, g: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        of_bias = None if bias is None else g.sum_to_size(bias.shape)
        return super().of_weights(g, x, weight, None)[0], of_bias


class _Batched:
    """Products of matrices, one by one: ``torch.bmm(x, weight)``."""

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return torch.bmm(x, weight)

    def of_input(self, g: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        return g.bmm(weight.transpose(1, 2))

    def of_weights(
        self, g: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, None]:
        return x.transpose(1, 2).bmm(g), None


class _FromLeft:
    """A weight times a matrix: ``weight @ x``."""

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return torch.mm(weight, x)

    def of_input(self, g: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        return _of_right(g, weight, x)

    def of_weights(
        self, g: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, None]:
        return _of_left(g, weight, x), None


def _rows(x: Tensor) -> Tensor:
    return x if x.dim() == 2 else x.reshape(-1, x.shape[-1])


def _of_left(g: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Gradient of the left matrix of a product: in its memory order, as autograd makes it."""
    if _is_by_columns(left):
        return right.mm(g.t()).t()
    return g.mm(right.t())


def _of_right(g: Tensor, left: Tensor, right: Tensor) -> Tensor:
    if _is_by_columns(right):
        return g.t().mm(left).t()
    return left.t().mm(g)


def _is_by_columns(matrix: Tensor) -> bool:
    return matrix.stride() == (1, matrix.shape[0])


_LINEAR: Final = _Product(transposed=True)
_LINEAR_APART: Final = _BiasApart(transposed=True)
_TIMES_MATRIX: Final = _Product(transposed=False)
_MATRIX_TIMES: Final = _FromLeft()
_BATCHED: Final = _Batched()


def _linear(args: Sequence[Any]) -> Found | None:
    x, weight, bias = (*args, None)[:3]
    if weight.dim() != 2 or x.dim() < 2 or x.dtype is not weight.dtype:
        return None
    if bias is not None and bias.dim() != 1:
        return None
    is_apart = bias is not None and x.dim() > 2 and not x.is_contiguous()
    return _LINEAR_APART if is_apart else _LINEAR, x, weight, bias


def _mm(args: Sequence[Any]) -> Found | None:
    return _matmul(args) if args[0].dim() == 2 else None


def _matmul(args: Sequence[Any]) -> Found | None:
    left, right = args
    if left.dtype is not right.dtype or right.dim() != 2:
        return None
    if isinstance(right, nn.Parameter) and not isinstance(left, nn.Parameter):
        return (_TIMES_MATRIX, left, right, None) if left.dim() >= 2 else None
    if isinstance(left, nn.Parameter) and not isinstance(right, nn.Parameter):
        return (_MATRIX_TIMES, right, left, None) if left.dim() == 2 else None
    return None


def _bmm(args: Sequence[Any]) -> Found | None:
    x, weight = args
    return (_BATCHED, x, weight, None) if x.dtype is weight.dtype else None


def _addmm(args: Sequence[Any]) -> Found | None:
    if len(args) != 3:
        return None
    bias, x, weight = args
    if weight.dim() != 2 or x.dim() != 2 or x.dtype is not weight.dtype or bias.dim() > 2:
        return None
    return _TIMES_MATRIX, x, weight, bias


# -- convolutions --------------------------------------------------------------------------------------


class _Convolution:
    """A convolution, transposed or not, of any number of dimensions."""

    def __init__(self, *settings: Any) -> None:
        self._settings = settings  # stride, padding, dilation, transposed, output padding, groups

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return torch.convolution(x, weight, bias, *self._settings)

    def of_input(self, g: Tensor, x: Tensor, weight: Tensor) -> Tensor | None:
        return self._backward(g, x, weight, None, (True, False, False))[0]

    def of_weights(
        self, g: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        return self._backward(g, x, weight, bias, (False, True, bias is not None))[1:]

    def _backward(
        self, g: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, wanted: tuple[bool, ...]
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        sizes = None if bias is None else bias.shape
        made: tuple[Tensor | None, Tensor | None, Tensor | None]
        made = _convolution_backward(g, x, weight, sizes, *self._settings, wanted)
        return made


_convolution_backward: Final[Any] = torch.ops.aten.convolution_backward.default


def _convolution(dims: int) -> Callable[[Sequence[Any]], Found | None]:
    def rule(args: Sequence[Any]) -> Found | None:
        x, weight, bias, stride, padding, dilation, groups = _completed(args, 1, 0, 1, 1)
        if isinstance(padding, str):
            return None
        spread = (_each(stride, dims), _each(padding, dims), _each(dilation, dims))
        formula = _Convolution(*spread, False, (0,) * dims, groups)
        return _fitting(formula, dims, x, weight, bias)

    return rule


def _transposed(dims: int) -> Callable[[Sequence[Any]], Found | None]:
    def rule(args: Sequence[Any]) -> Found | None:
        x, weight, bias, stride, padding, more, groups, dilation = _completed(args, 1, 0, 0, 1, 1)
        spread = (_each(stride, dims), _each(padding, dims), _each(dilation, dims))
        formula = _Convolution(*spread, True, _each(more, dims), groups)
        return _fitting(formula, dims, x, weight, bias)

    return rule


def _fitting(
    formula: Formula, dims: int, x: Tensor, weight: Tensor, bias: Tensor | None
) -> Found | None:
    fits = x.dim() == weight.dim() == dims + 2 and x.dtype is weight.dtype
    return (formula, x, weight, bias) if fits else None


def _completed(args: Sequence[Any], *defaults: int) -> tuple[Any, ...]:
    """The arguments with the defaults of those not given: first of them the bias, None."""
    return (*args, *(None, *defaults)[len(args) - 2 :])


def _each(value: Any, dims: int) -> tuple[int, ...]:
    return (value,) * dims if isinstance(value, int) else tuple(value)


# -- lookups -------------------------------------------------------------------------------------------


class _Lookup:
    """Rows of a table."""

    def __init__(self, padding: int) -> None:
        self._padding = padding  # the row without a gradient, -1: none

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return torch.embedding(weight, x, self._padding, False, False)

    def of_input(self, g: Tensor, x: Tensor, weight: Tensor) -> None:
        return None

    def of_weights(
        self, g: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, None]:
        made: Tensor = _lookup_backward(g, x, weight.shape[0], self._padding, False)
        return made, None


_lookup_backward: Final[Any] = torch.ops.aten.embedding_dense_backward.default


def _embedding(args: Sequence[Any]) -> Found | None:
    x, weight, padding = (*args, None)[:3]
    if len(args) > 3 or weight.dim() != 2:
        return None
    row = -1 if padding is None else padding if padding >= 0 else weight.shape[0] + padding
    return _Lookup(row), x, weight, None


_RULES: Final[Mapping[Any, Callable[[Sequence[Any]], Found | None]]] = {
    F.linear: _linear,
    F.embedding: _embedding,
    F.conv1d: _convolution(1),
    F.conv2d: _convolution(2),
    F.conv3d: _convolution(3),
    F.conv_transpose1d: _transposed(1),
    F.conv_transpose2d: _transposed(2),
    F.conv_transpose3d: _transposed(3),
    torch.addmm: _addmm,
    **dict.fromkeys((torch.matmul, operator.matmul), _matmul),
    torch.mm: _mm,
    torch.bmm: _bmm,
    Tensor.addmm: _addmm,
    **dict.fromkeys((Tensor.matmul, Tensor.__matmul__), _matmul),
    Tensor.mm: _mm,
    Tensor.bmm: _bmm,
}
