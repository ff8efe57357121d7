"""A module call that no cut divides, as a call of the user's own module again.

The user's module runs its own Python: its hooks fire, a wrapped or compiled block stays one, and the
source of a stage reads like the user's model. Which calls are taken is decided together with the
edges, in `fxpipe.portals.steps`, since arguments of such a call have to be handed to its stage.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from fxpipe.codegen.arguments import Arguments
from fxpipe.codegen.names import Names, quoted
from fxpipe.codegen.statements import Statement
from fxpipe.portals.calls import ModuleCall


def statements(
    call: ModuleCall, section: str, write: Arguments, names: Names
) -> Iterator[Statement]:
    """The call, and the lines that take out of its result what others read.

    Args:
        call: the module call.
        section: path of the module that makes it.
        write: writes the arguments.
        names: gives a free name for a result of several parts.
    """
    span = call.span
    method = ".forward" if span.via == "forward" else ""
    text = f"{write.bindings.module(span.path)}{method}({write.call(span.args, span.kwargs)})"
    origin = f"{span.path or 'the model'}, call {span.call}"
    line = partial(Statement, section=section, origin=origin)
    where = {node: span.outputs[node.name] for node in call.writes}
    if len(where) < 2:
        path = next(iter(where.values()), ())
        yield line(text + _access(path), call.writes, call.reads)
        return
    whole = next((node for node, path in where.items() if not path), None)
    if whole is not None:
        yield line(text, (whole,), call.reads)
        for node, path in where.items():
            if node is not whole:
                yield line(write.value(whole) + _access(path), (node,), (whole,))
        return
    holder = names.take(f"{span.path or 'model'}_out")
    yield line(text, (), call.reads, holder=holder)
    for node, path in where.items():
        yield line(holder + _access(path), (node,))
    yield line(f"del {holder}")


def _access(path: tuple[str | int, ...]) -> str:
    """``(0, "weights", ".hidden")`` as ``[0]['weights'].hidden``."""
    return "".join(
        step if isinstance(step, str) and step.startswith(".") else f"[{_key(step)}]"
        for step in path
    )


def _key(step: str | int) -> str:
    return quoted(step) if isinstance(step, str) else str(step)
