"""fx arguments as Python expressions."""

from __future__ import annotations

import cmath
import keyword
import math
import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from types import EllipsisType
from typing import Any, Final

import torch
import torch.fx
from torch.fx.immutable_collections import immutable_dict, immutable_list

from fxpipe.codegen.bindings import Bindings
from fxpipe.codegen.devices import Home
from fxpipe.codegen.imports import Imports
from fxpipe.codegen.names import quoted
from fxpipe.errors import CodegenError
from fxpipe.ir.capture import Rebuilt
from fxpipe.portals.calls import nodes_in

_NUMBER: Final = re.compile(r"[\d.]+(e[+-]?\d+)?")
_BRACKETS: Final[dict[type[Any], tuple[str, str]]] = {
    list: ("[", "]"),
    immutable_list: ("[", "]"),
    set: ("{", "}"),
}


def _is_word(key: str) -> bool:
    return key.isidentifier() and not keyword.iskeyword(key)


class Arguments:
    """Writes arguments of one stage; what has no text becomes an attribute of the stage.

    Args:
        value: the expression for a node's value.
        imports: gathers the imports of what is written by name.
        bindings: gathers the objects that are not written but bound.
        home: the devices that mean "the stage's device".
    """

    def __init__(
        self,
        value: Callable[[torch.fx.Node], str],
        imports: Imports,
        bindings: Bindings,
        home: Home,
    ) -> None:
        self.value = value
        self.imports = imports
        self.bindings = bindings
        self.home = home
        self.names_device = False
        self.holders: dict[int, str] = {}
        """Number of an object that is built anew → the local variable that holds it."""

    def text(self, argument: Any) -> str:
        """The expression for an argument of any kind.

        Raises:
            CodegenError: if a container of an unknown type holds values of the graph.
        """
        for kinds, write in self._writers():
            if isinstance(argument, kinds):
                return write(argument)
        return self._named(argument)

    def operand(self, argument: Any) -> str:
        """The expression, in parentheses where an operator beside it could tear it apart."""
        text = self.text(argument)
        plain = isinstance(argument, torch.fx.Node) or _NUMBER.fullmatch(text)
        return text if plain or text.isidentifier() else f"({text})"

    def subscript(self, argument: Any) -> str:
        """What stands between ``[`` and ``]``."""
        if type(argument) is tuple and argument:
            inner = ", ".join(map(self._index, argument))
            return f"{inner}," if len(argument) == 1 else inner
        return self._index(argument)

    def call(self, args: Iterable[Any], kwargs: Mapping[str, Any]) -> str:
        """What stands between ``(`` and ``)`` of a call."""
        parts = [self.text(argument) for argument in args]
        further = {key: value for key, value in kwargs.items() if not _is_word(key)}
        for key, value in kwargs.items():
            if key not in further:
                parts.append(f"{key}={self._keyword(key, value)}")
        if further:
            parts.append(f"**{self.text(further)}")
        return ", ".join(parts)

    def device(self) -> str:
        """The expression for the stage's device."""
        self.names_device = True
        return "self.device"

    def _keyword(self, key: str, value: Any) -> str:
        if key == "device" and isinstance(value, str) and self.home.covers(value):
            return self.device()
        return self.text(value)

    def _index(self, argument: Any) -> str:
        if not isinstance(argument, slice):
            return self.text(argument)
        ends = ["" if part is None else self.text(part) for part in (argument.start, argument.stop)]
        step = "" if argument.step is None else f":{self.text(argument.step)}"
        return f"{ends[0]}:{ends[1]}{step}"

    def _writers(self) -> Iterable[tuple[Any, Callable[[Any], str]]]:
        """Kinds of arguments with how they are written; the first kind that fits counts."""
        yield torch.fx.Node, self.value
        yield (bool, type(None)), repr
        yield EllipsisType, lambda _: "..."
        yield Enum, self._enum
        yield int, lambda number: repr(int(number))
        yield float, self._float
        yield complex, self._complex
        yield str, lambda text: quoted(str(text))
        yield bytes, lambda raw: repr(bytes(raw))
        yield torch.device, self._device
        yield (torch.dtype, torch.memory_format, torch.layout), self._torch_constant
        yield slice, self._slice
        yield torch.Size, self._size
        yield Rebuilt, lambda built: self.holders[built.number]
        yield tuple, self._tuple
        yield (list, set, frozenset), self._collection
        yield dict, self._dict
        yield range, repr

    def _float(self, number: float) -> str:
        if math.isfinite(number):
            return repr(float(number))
        self.imports.add("import math")
        if math.isnan(number):
            return "math.nan"
        return "math.inf" if number > 0 else "-math.inf"

    def _complex(self, number: complex) -> str:
        if cmath.isfinite(number):
            return repr(complex(number))
        return f"complex({self._float(number.real)}, {self._float(number.imag)})"

    def _enum(self, member: Enum) -> str:
        owner = self.imports.name_of(type(member))
        if owner is None or member.name not in type(member).__members__:
            return self.bindings.unwritten(member)
        return f"{owner}.{member.name}"

    def _device(self, device: torch.device) -> str:
        if self.home.covers(device):
            return self.device()
        self.imports.add("import torch")
        return f"torch.device({quoted(str(device))})"

    def _torch_constant(self, constant: Any) -> str:
        self.imports.add("import torch")
        return repr(constant)

    def _slice(self, part: slice) -> str:
        return f"slice({', '.join(self.text(end) for end in (part.start, part.stop, part.step))})"

    def _size(self, size: torch.Size) -> str:
        self.imports.add("import torch")
        return f"torch.Size([{', '.join(map(self.text, size))}])"

    def _tuple(self, items: tuple[Any, ...]) -> str:
        inner = ", ".join(map(self.text, items))
        if type(items) is tuple:
            return f"({inner},)" if len(items) == 1 else f"({inner})"
        owner = self.imports.name_of(type(items))
        if owner is not None and hasattr(items, "_fields"):
            return f"{owner}({inner})"
        return self._whole(items)

    def _collection(self, items: Any) -> str:
        kind = type(items)
        if kind is frozenset or (kind is set and not items):
            return f"{kind.__name__}({self._collection(set(items)) if items else ''})"
        if kind not in _BRACKETS:
            return self._whole(items)
        texts = [self.text(item) for item in items]
        opening, closing = _BRACKETS[kind]
        return f"{opening}{', '.join(sorted(texts) if kind is set else texts)}{closing}"

    def _dict(self, items: dict[Any, Any]) -> str:
        if type(items) not in (dict, immutable_dict):
            return self._whole(items)
        pairs = (f"{self.text(key)}: {self.text(value)}" for key, value in items.items())
        return f"{{{', '.join(pairs)}}}"

    def _named(self, found: Any) -> str:
        return self.imports.name_of(found) or self._whole(found)

    def _whole(self, found: Any) -> str:
        if nodes_in(found):
            kind = type(found)
            raise CodegenError(
                f"a {kind.__module__}.{kind.__qualname__} that holds values of the graph has no text: "
                f"{found!r}"
            )
        return self.bindings.unwritten(found)
