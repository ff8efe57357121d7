"""Objects that module calls are handed and change, as local variables of a stage.

cache = self.new_cache(keys, values)     # as it was before the first call of the stage
h = self.layers_0(x, cache=cache)
h = self.layers_1(h, cache=cache)        # what the first call left in it
keys_1 = cache.layers[1].keys            # read by others
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from fxpipe.codegen.arguments import Arguments
from fxpipe.codegen.names import Names
from fxpipe.codegen.statements import Statement
from fxpipe.ir.capture import Rebuilt, Span
from fxpipe.portals.calls import nodes_in

_WORD: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
"""Where a word begins inside a class's name."""


class Objects:
    """The objects of one stage: which variable holds each, and what it holds now.

    Args:
        write: writes arguments; it is told the variables.
        names: gives free names.
    """

    def __init__(self, write: Arguments, names: Names) -> None:
        self._write = write
        self._names = names
        self._versions: dict[int, int] = {}

    def made_for(self, span: Span, section: str, origin: str) -> Iterator[Statement]:
        """The lines that build what a call is handed, where no variable holds it already."""
        for name, built in _objects(span):
            if self._versions.get(built.number) != built.before:
                holder = self._names.take(name)
                text = f"{self._maker(built, name)}({self._write.call(built.leaves, {})})"
                self._write.holders[built.number] = holder
                yield Statement(text, (), nodes_in(built.leaves), section, "", origin, holder)
            self._versions[built.number] = built.after

    def _maker(self, built: Rebuilt, name: str) -> str:
        return self._write.bindings.unwritten(built.make, f"new_{name}")

    def used_by(self, span: Span) -> tuple[str, ...]:
        """The variables that a call is handed."""
        return tuple(self._write.holders[built.number] for _, built in _objects(span))

    def holder(self, span: Span, where: str | int) -> str:
        """The variable of one argument."""
        built: Rebuilt = span.args[where] if isinstance(where, int) else span.kwargs[where]
        return self._write.holders[built.number]


def _objects(span: Span) -> Iterator[tuple[str, Rebuilt]]:
    """The objects among the arguments, each with a name for it."""
    named: Iterable[tuple[str | int, Any]] = [*enumerate(span.args), *span.kwargs.items()]
    for where, argument in named:
        if isinstance(argument, Rebuilt):
            name = where if isinstance(where, str) else getattr(argument.make, "name", "object")
            yield _WORD.sub("_", name).lower(), argument
