"""Torch functions: which are recorded, in which form, and which read values of their tensors."""

from __future__ import annotations

import operator
import types
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

import torch

from fxpipe import ops
from fxpipe.capture import checks, comparisons
from fxpipe.capture.comparisons import Comparison
from fxpipe.capture.naming import importable_name

_READS: Final = {
    "item", "__bool__", "__int__", "__float__", "__index__", "__complex__", "tolist", "numpy",
    "__array__", "equal", "allclose", "is_nonzero", "__contains__", "__dlpack__",
}  # fmt: skip
"""Functions that take values out of tensors into Python."""

_SIZED_BY_DATA: Final = {
    "nonzero", "masked_select", "unique", "unique_consecutive", "_unique2", "argwhere", "bincount",
    "_return_output", "_return_inverse", "_return_counts", "_unique_impl", "_unique_consecutive_impl",
    "_unique", "unique_dim", "_pack_padded_sequence", "_pad_packed_sequence",
}  # fmt: skip
"""Functions whose result's shape depends on values."""

_MAKES: Final = {
    "arange", "range", "zeros", "ones", "full", "empty", "rand", "randn", "randint", "eye",
}  # fmt: skip
"""Functions that make a tensor of numbers, which may themselves be tensors of one element."""

_RESHAPES: Final = {
    "new_zeros", "new_ones", "new_full", "new_empty", "view", "reshape", "expand", "repeat",
    "tile", "narrow", "unflatten", "broadcast_to",
}  # fmt: skip
"""The same, but that their first argument is no number."""

_SHAPED_AS_FIRST: Final = {
    "index_add", "index_copy", "index_fill", "index_put", "scatter", "scatter_add",
    "scatter_reduce", "masked_scatter", "masked_fill",
}  # fmt: skip
"""Functions whose result has the shape of their first argument."""

_RESHAPES_IN_PLACE: Final = {"resize_", "resize_as_", "set_", "squeeze_"}

_IN_PLACE_OPERATORS: Final = {
    "__iadd__", "__isub__", "__imul__", "__itruediv__", "__idiv__", "__ifloordiv__", "__imod__",
    "__ipow__", "__iand__", "__ior__", "__ixor__",
}  # fmt: skip

_PARTS: Final = {"__iter__": 0, "unbind": 1, "split": 2, "tensor_split": 2, "chunk": 2}
"""Functions that return as many tensors as a size says: position of the dimension's argument."""

_HOOKS: Final = {"register_hook", "retain_grad", "register_post_accumulate_grad_hook"}

_OPERATORS: Final[dict[str, Callable[..., Any]]] = {
    "__bool__": bool,
    "__int__": int,
    "__float__": float,
    "__index__": operator.index,
    "__complex__": complex,
    "__contains__": operator.contains,
    "__getitem__": operator.getitem,
    "__eq__": operator.eq,
    "__ne__": operator.ne,
    "__lt__": operator.lt,
    "__le__": operator.le,
    "__gt__": operator.gt,
    "__ge__": operator.ge,
    "__and__": operator.and_,
    "__or__": operator.or_,
    "__xor__": operator.xor,
    "__invert__": operator.invert,
    "__lshift__": operator.lshift,
    "__rshift__": operator.rshift,
    "__truediv__": operator.truediv,
    "__div__": operator.truediv,
    "__floordiv__": operator.floordiv,
    "__mod__": operator.mod,
    "__pow__": operator.pow,
    "__add__": operator.add,
    "__sub__": operator.sub,
    "__mul__": operator.mul,
    "__matmul__": operator.matmul,
    "__neg__": operator.neg,
    "__iadd__": operator.iadd,
    "__isub__": operator.isub,
    "__imul__": operator.imul,
    "__itruediv__": operator.itruediv,
    "__idiv__": operator.itruediv,
    "__ifloordiv__": operator.ifloordiv,
    "__imod__": operator.imod,
    "__ipow__": operator.ipow,
    "__iand__": operator.iand,
    "__ior__": operator.ior,
    "__ixor__": operator.ixor,
}
_REFLECTED: Final[dict[str, Callable[..., Any]]] = {
    "__radd__": operator.add,
    "__rsub__": operator.sub,
    "__rmul__": operator.mul,
    "__rtruediv__": operator.truediv,
    "__rdiv__": operator.truediv,
    "__rfloordiv__": operator.floordiv,
    "__rmod__": operator.mod,
    "__rpow__": operator.pow,
    "__rmatmul__": operator.matmul,
    "__rand__": operator.and_,
    "__ror__": operator.or_,
    "__rxor__": operator.xor,
    "__rlshift__": operator.lshift,
    "__rrshift__": operator.rshift,
}


@dataclass(frozen=True, slots=True)
class Form:
    """How a call is written as a node; `writes_first`: its result is its first argument, changed."""

    op: str
    target: Callable[..., Any] | str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    writes_first: bool = False

    def result(self, returned: Any) -> Any:
        """The node's value, from what the call returned."""
        return self.args[0] if self.writes_first else returned


def as_node(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Form:
    """The form of a call: an operator, a method, a function, or a helper of ours."""
    name = str(getattr(func, "__name__", ""))
    if name == "__get__":
        return Form("call_function", getattr, (args[0], func.__self__.__name__), {})
    if name == "__set__":
        attribute = func.__self__.__name__
        return Form("call_function", ops.set_attribute, (args[0], attribute, args[1]), {}, True)
    if name == "__setitem__":
        return Form("call_function", ops.set_item, args, {}, True)
    if name in _OPERATORS and not kwargs:
        return Form("call_function", _OPERATORS[name], args, {})
    if name in _REFLECTED and not kwargs:
        return Form("call_function", _REFLECTED[name], args[::-1], {})
    if name in _HOOKS:
        return Form("call_function", ops.call_hook, (args[0], name, *args[1:]), kwargs, True)
    if is_method(func, name) and args:
        return Form("call_method", name, args, kwargs)
    if importable_name(func) is None:
        return Form("call_function", ops.call, args, kwargs)
    return Form("call_function", func, args, kwargs)


def is_method(func: Any, name: str) -> bool:
    """Whether a function is a method of tensors."""
    kinds = (types.MethodDescriptorType, types.WrapperDescriptorType)
    return getattr(torch.Tensor, name, None) is func or isinstance(func, kinds)


def may_record(func: Any) -> bool:
    """Whether a call could belong in the graph: looking at a tensor's text or type does not."""
    return getattr(func, "__name__", "") not in ("__repr__", "__format__", "__hash__")


def freezes(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether a call changes ``requires_grad`` of its first argument."""
    if func is torch.Tensor.requires_grad_:
        return bool((args[1] if len(args) > 1 else True) != args[0].requires_grad)
    is_setter = getattr(func, "__name__", "") == "__set__"
    return (
        is_setter and func.__self__.__name__ == "requires_grad" and args[1] != args[0].requires_grad
    )


def may_write(func: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a call may return an argument changed in place (cheap, and never wrongly False)."""
    name = str(getattr(func, "__name__", ""))
    in_place = name.endswith("_") or name in ("__set__", "__setitem__")
    return (
        in_place or bool(kwargs.get("inplace")) or kwargs.get("out") is not None or name in _HOOKS
    )


def reads_data(func: Any) -> bool:
    """Whether a call takes values out of tensors into Python."""
    return getattr(func, "__name__", "") in _READS


def is_condition(func: Any) -> bool:
    """Whether what `reads_data` takes out is a truth value: it is taken out to decide."""
    names = ("__bool__", "is_nonzero", "equal", "allclose", "__contains__")
    return getattr(func, "__name__", "") in names


def is_checkable(func: Any) -> bool:
    """Whether what `reads_data` takes out is a plain value, which a later run can compare."""
    return getattr(func, "__name__", "") not in ("numpy", "__array__", "__dlpack__")


def passes_if(func: Any, frame: FrameType) -> bool | None:
    """For which truth value of a tensor a frame goes on; None if it does more than raise otherwise."""
    name = getattr(func, "__name__", "")
    return checks.passes_if(frame, name == "item") if name in ("__bool__", "item") else None


def comparisons_of(
    func: Any, frame: FrameType, may_ask: Callable[[torch.Tensor], bool]
) -> tuple[Comparison, ...]:
    """What a frame does with the number that it takes out of a tensor, if it only compares it."""
    if getattr(func, "__name__", "") not in ("item", "__int__", "__float__"):
        return ()
    return comparisons.comparisons_of(frame, comparisons.reads_number, may_ask)


def is_fractional(value: Any) -> bool:
    """Whether what `reads_data` took out is a number that is no integer, or a list with one."""
    if isinstance(value, list | tuple):
        return any(map(is_fractional, value))
    return isinstance(value, float | complex)


def reads_size(func: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> bool:
    """Whether a call hands a tensor's size to Python, be it as the number of its parts.

    Parts along the last dimension do not count: it holds features.
    """
    name = getattr(func, "__name__", "")
    if name == "__get__":
        return bool(func.__self__.__name__ in ("shape", "nbytes"))
    if name in _PARTS and args and isinstance(args[0], torch.Tensor):
        named = (kwargs or {}).get("dim", 0)
        dim = args[_PARTS[name]] if 0 < _PARTS[name] < len(args) else named
        return args[0].dim() < 2 or dim not in (-1, args[0].dim() - 1)
    return name in ("size", "numel", "nelement", "__len__", "stride")


def reads_shape(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call gives all sizes of a tensor."""
    name = getattr(func, "__name__", "")
    if name == "__get__":
        return bool(func.__self__.__name__ == "shape")
    return name == "size" and len(args) == 1 and not kwargs


def read_dimension(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """The dimension whose size alone a call reads, counted from the first; None if it reads others."""
    name = getattr(func, "__name__", "")
    if name == "__len__":
        return 0
    place = 1 if name == "size" else _PARTS.get(name)
    if place is None or not isinstance(args[0], torch.Tensor):
        return None
    named = kwargs.get("dim", None if name == "size" else 0)
    dim = args[place] if 0 < place < len(args) else named
    return dim % args[0].dim() if isinstance(dim, int) and args[0].dim() else None


def takes_apart(func: Any) -> bool:
    """Whether a call returns as many tensors as a size says."""
    return getattr(func, "__name__", "") in _PARTS


def returns_parts(target: Any) -> bool:
    """Whether a node's target, a name or a function, returns as many tensors as a size says."""
    return (target if isinstance(target, str) else getattr(target, "__name__", "")) in _PARTS


def sized_dimensions(func: Any, args: tuple[Any, ...], result: Any) -> tuple[int, ...] | None:
    """The dimensions of a call's result whose sizes depend on values; None if the call tells none."""
    name = getattr(func, "__name__", "")
    if not isinstance(result, torch.Tensor):
        return None
    if name in ("nonzero", "argwhere", "masked_select"):
        return (0,)
    if name == "__getitem__" and _is_mask(args[1]):
        return (0,)
    return None


def is_sized_by_data(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the shape of a call's result depends on values of tensors."""
    name = str(getattr(func, "__name__", ""))
    if name in _SIZED_BY_DATA:
        return True
    if name in _MAKES or name in _RESHAPES:
        numbers = (*args[name in _RESHAPES :], *kwargs.values())
        return any(isinstance(n, torch.Tensor) for number in numbers for n in _items(number))
    if name == "where":
        return len(args) + len(kwargs) == 1
    if name == "one_hot":
        return bool((args[1] if len(args) > 1 else kwargs.get("num_classes", -1)) == -1)
    if name == "repeat_interleave":
        repeats = args[1] if len(args) > 1 else kwargs.get("repeats", args[0] if args else None)
        return isinstance(repeats, torch.Tensor) and kwargs.get("output_size") is None
    if name == "__getitem__":
        return any(_is_mask(index) or _has_tensor_bounds(index) for index in _items(args[1]))
    return False


def counted(func: Any, args: tuple[Any, ...]) -> list[torch.Tensor]:
    """Tensors whose numbers of elements that are not 0 tell the shape of a call's result.

    Empty: something else does, too.
    """
    name = getattr(func, "__name__", "")
    if name in ("nonzero", "argwhere", "where"):
        return [tensor for tensor in args if isinstance(tensor, torch.Tensor)]
    if name == "masked_select" and args[0].shape == args[1].shape:
        return [args[1]]
    if name == "__getitem__" and not any(map(_has_tensor_bounds, _items(args[1]))):
        return [index for index in _items(args[1]) if _is_mask(index)]
    return []


def is_shaped_as_first(func: Any) -> bool:
    """Whether a call's result has the shape of its first argument, whatever the others are."""
    name = str(getattr(func, "__name__", ""))
    if name in _SHAPED_AS_FIRST or name == "__setitem__":
        return True
    in_place = name.endswith("_") and not name.endswith("__")
    return (in_place and name not in _RESHAPES_IN_PLACE) or name in _IN_PLACE_OPERATORS


def _items(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def _is_mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)


def _has_tensor_bounds(index: Any) -> bool:
    bounds = (index.start, index.stop, index.step) if isinstance(index, slice) else ()
    return any(isinstance(bound, torch.Tensor) for bound in bounds)
