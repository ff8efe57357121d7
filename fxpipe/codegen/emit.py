"""One node of the graph as one line of source."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
import torch.fx

from fxpipe import ops
from fxpipe.codegen.arguments import Arguments
from fxpipe.errors import CodegenError

_INFIX: Final[dict[Callable[..., Any], str]] = {
    operator.add: "+",
    operator.sub: "-",
    operator.mul: "*",
    operator.truediv: "/",
    operator.floordiv: "//",
    operator.mod: "%",
    operator.pow: "**",
    operator.matmul: "@",
    operator.and_: "&",
    operator.or_: "|",
    operator.xor: "^",
    operator.lshift: "<<",
    operator.rshift: ">>",
    operator.lt: "<",
    operator.le: "<=",
    operator.eq: "==",
    operator.ne: "!=",
    operator.ge: ">=",
    operator.gt: ">",
    operator.is_: "is",
    operator.is_not: "is not",
}
_PREFIX: Final[dict[Callable[..., Any], str]] = {
    operator.neg: "-",
    operator.pos: "+",
    operator.invert: "~",
    operator.not_: "not ",
}
_METHOD_INFIX: Final = {
    **{name: sign for name, sign in (("add", "+"), ("sub", "-"), ("mul", "*"), ("div", "/"))},
    "matmul": "@",
    "__truediv__": "/",
    "__div__": "/",
    **{f"__{function.__name__.strip('_')}__": sign for function, sign in _INFIX.items()},
}
_REFLECTED: Final = {
    f"__r{name.strip('_')}__": sign
    for name, sign in _METHOD_INFIX.items()
    if sign in ("+", "-", "*", "/", "//", "%", "**", "@", "&", "|", "^")
}


def expression(node: torch.fx.Node, write: Arguments) -> str:
    """The Python expression that computes a node.

    Raises:
        CodegenError: if the node is none that computes, or its arguments have no text.
    """
    match node.op:
        case "call_module":
            module = write.bindings.module(str(node.target))
            via = node.meta.get("via", "call")
            return module_call(module, via, node.args, node.kwargs, write)
        case "call_method":
            return _method(str(node.target), node.args, node.kwargs, write)
        case "call_function":
            return _function(node.target, node.args, node.kwargs, write)
        case _:
            raise CodegenError(f"{node.name} is a {node.op}: no stage computes it")


def module_call(
    callee: str, via: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], write: Arguments
) -> str:
    """The expression that calls a module as it was called when recorded."""
    arguments = write.call(args, kwargs)
    if via == "plain":
        write.imports.add("from fxpipe import ops")
        return f"ops.plain_call({', '.join(filter(None, (callee, arguments)))})"
    return f"{callee}{'.forward' if via == 'forward' else ''}({arguments})"


def deferred_expression(node: torch.fx.Node, write: Arguments) -> str:
    """The same for an operator whose weights' gradients are put off."""
    if node.op == "call_method":
        run = f"self.deferring({str(node.target)!r})".replace("'", '"')
        return f"{run}({write.call(node.args, node.kwargs)})"
    name = write.imports.name_of(node.target) or write.bindings.unwritten(node.target)
    return f"self.deferring({name})({write.call(node.args, node.kwargs)})"


def _function(target: Any, args: Any, kwargs: Any, write: Arguments) -> str:
    if not kwargs:
        short = _as_operator(target, args, write)
        if short is not None:
            return short
    kwargs = _without_defaults(target, kwargs)
    name = write.imports.name_of(target) or write.bindings.unwritten(target)
    if target is ops.enter_autocast and write.home.covers_type(args[0]):
        return f"{name}({write.device()}.type, {write.call(args[1:], kwargs)})"
    return f"{name}({write.call(args, kwargs)})"


_variants: Final[Mapping[Any, Any]] = torch._jit_internal.boolean_dispatched
"""Functions of torch that stand for two, with and without ``return_indices``."""


def _without_defaults(target: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords that say more than the function's own defaults: a recording spells all of them."""
    try:
        known = inspect.signature(_variants.get(target, {}).get("if_false", target)).parameters
    except (TypeError, ValueError):  # many functions written in C++ have no signature
        return dict(kwargs)
    return {
        key: value
        for key, value in kwargs.items()
        if key not in known or not _is_same(known[key].default, value)
    }


def _is_same(default: Any, value: Any) -> bool:
    plain = isinstance(value, bool | int | float | str | None)
    return plain and type(default) is type(value) and bool(default == value)


def _as_operator(target: Any, args: Any, write: Arguments) -> str | None:
    """``a + b``, ``-a``, ``a[i]``, ``a.name``; None if the function is none of these."""
    if len(args) == 2:
        left, right = args
        if target in _INFIX:
            return _infix(left, _INFIX[target], right, write)
        if target is operator.getitem:
            return f"{write.operand(left)}[{write.subscript(right)}]"
        if target is getattr and isinstance(right, str) and right.isidentifier():
            return f"{write.operand(left)}.{right}"
    if len(args) == 1 and target in _PREFIX:
        return f"{_PREFIX[target]}{write.operand(args[0])}"
    return None


def _infix(left: Any, sign: str, right: Any, write: Arguments) -> str:
    # A negative number needs parentheses only on the left, where ** binds tighter than its sign.
    is_number = isinstance(right, int | float) and not isinstance(right, bool)
    other = write.text(right) if is_number else write.operand(right)
    return f"{write.operand(left)} {sign} {other}"


def _method(name: str, args: Any, kwargs: Any, write: Arguments) -> str:
    owner, *rest = args
    if len(rest) == 1 and not kwargs:
        other = rest[0]
        if name == "__getitem__":
            return f"{write.operand(owner)}[{write.subscript(other)}]"
        if name in _METHOD_INFIX:
            return _infix(owner, _METHOD_INFIX[name], other, write)
        # A value on the left would be asked first, by its own operator.
        if name in _REFLECTED and not isinstance(other, torch.fx.Node):
            return _infix(other, _REFLECTED[name], owner, write)
        if name == "to" and isinstance(other, str) and write.home.covers(other):
            return f"{write.operand(owner)}.to({write.device()})"
    if name in ("neg", "__neg__", "__invert__") and not rest and not kwargs:
        return f"{'~' if 'invert' in name else '-'}{write.operand(owner)}"
    return f"{write.operand(owner)}.{name}({write.call(rest, kwargs)})"
