"""Names: of nodes, and of functions that generated source can import."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

import torch
import torch.fx

from fxpipe import ops

_RESERVED: Final = {
    "self",
    "stash",
    "pop",
    "keyed",
    "torch",
    "fxpipe",
    "operator",
    "ops",
    "forward",
}
"""Names that generated source uses for itself."""


def candidate(op: str, target: Callable[..., Any] | str) -> str:
    """The name a node asks for; the graph makes it unique and legal."""
    if op == "call_module" or op == "get_attr":
        return safe(str(target).replace(".", "_") or "model")
    name = target if isinstance(target, str) else str(getattr(target, "__name__", "call"))
    return safe(name.strip("_") or "call")


def safe(name: str) -> str:
    """The name as an identifier that generated source does not use for itself."""
    legal = "".join(letter if letter.isalnum() else "_" for letter in name)
    if not legal.isidentifier():
        legal = "_" + legal
    return legal + "_" if legal in _RESERVED else legal


def function_name(function: Any) -> str:
    """What a user knows a function by."""
    if isinstance(function, torch._ops.OpOverload):
        return str(function._schema.name).rpartition("::")[2]
    return str(getattr(function, "__name__", function))


def operation(node: torch.fx.Node) -> str:
    """What a node does, in words of the user's code."""
    if node.target is ops.check_value:
        value = node.args[0]
        return operation(value) if isinstance(value, torch.fx.Node) else ""
    if node.target in _WRITTEN:
        return _WRITTEN[node.target]
    return node.target if isinstance(node.target, str) else function_name(node.target)


_WRITTEN: Final[dict[Any, str]] = {
    ops.set_item: "x[…] = …",
    ops.set_attribute: "self.… = …",
    ops.register_buffer: "register_buffer",
}
"""Helpers → what is written for them."""


def importable_name(function: Callable[..., Any]) -> str | None:
    """``"package.module.name"`` if that is where `function` can be imported from, else None."""
    name = getattr(function, "__name__", "")
    module = getattr(function, "__module__", None) or ""
    for place, qualified in (
        (module, getattr(function, "__qualname__", name)),
        (module, name),
        ("torch", name),
        ("torch._C._nn", name),
        ("torch.nn.functional", name),
        ("torch._C", name),
    ):
        if _find(place, qualified) is function:
            return f"{place}.{qualified}"
    return None


def _find(module: str, qualified: str) -> object:
    found: object = sys.modules.get(module)
    for part in qualified.split("."):
        found = getattr(found, part, None)
    return found


def qualified_class(value: object) -> str:
    """Module and name of an object's class."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


def tensor_names(model: torch.nn.Module) -> dict[int, str]:
    """Id of every parameter and buffer → its first name."""
    names: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), name)
    for name, buffer in model.named_buffers(remove_duplicate=False):
        names.setdefault(id(buffer), name)
    return names
