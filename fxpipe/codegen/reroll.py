"""A module call that no cut divides, as a call of the user's own module again.

The user's module runs its own Python: its hooks fire, a wrapped or compiled block stays one, and the
source of a stage reads like the user's model. Which calls are taken is decided together with the
edges, in `fxpipe.portals.steps`, since arguments of such a call have to be handed to its stage.
"""

from __future__ import annotations

from collections.abc import Iterator

from fxpipe.codegen.arguments import Arguments
from fxpipe.codegen.names import Names, quoted
from fxpipe.codegen.statements import Statement
from fxpipe.portals.calls import ModuleCall


def statements(call: ModuleCall, write: Arguments, names: Names) -> Iterator[Statement]:
    """The call, and the lines that take out of its result what others read.

    Args:
        call: the module call.
        write: writes the arguments.
        names: gives a free name for a result of several parts.
    """
    span = call.span
    method = ".forward" if span.via == "forward" else ""
    text = f"{write.bindings.module(span.path)}{method}({write.call(span.args, span.kwargs)})"
    where = dict(span.outputs)
    origin = f"{span.path or 'the model'}, call {span.call}"
    comment = f"{span.path or 'the model'}: {len(call.nodes)} nodes"
    wanted = call.writes
    if len(wanted) < 2:
        path = where[wanted[0].name] if wanted else ()
        yield Statement(text + _access(path), wanted, call.reads, origin, comment)
        return
    whole = next((node for node in wanted if not where[node.name]), None)
    if whole is not None:
        yield Statement(text, (whole,), call.reads, origin, comment)
        for node in wanted:
            if node is not whole:
                part = write.value(whole) + _access(where[node.name])
                yield Statement(part, (node,), (whole,), origin)
        return
    holder = names.take(f"{span.path or 'model'}_out")
    yield Statement(text, (), call.reads, origin, comment, holder=holder)
    for node in wanted:
        yield Statement(holder + _access(where[node.name]), (node,), (), origin)
    yield Statement(f"del {holder}", (), (), origin)


def _access(path: tuple[str | int, ...]) -> str:
    """``(0, "weights", ".hidden")`` as ``[0]['weights'].hidden``."""
    return "".join(
        step if isinstance(step, str) and step.startswith(".") else f"[{_key(step)}]"
        for step in path
    )


def _key(step: str | int) -> str:
    return quoted(step) if isinstance(step, str) else str(step)
