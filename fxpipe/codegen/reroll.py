"""A module call that no cut divides, as a call of the user's own module again.

The user's module runs its own Python: its hooks fire, a wrapped or compiled block stays one, and the
source of a stage reads like the user's model. Which calls are taken is decided together with the
edges, in `fxpipe.portals.steps`, since arguments of such a call have to be handed to its stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch.fx

from fxpipe.codegen.arguments import Arguments
from fxpipe.codegen.names import Names, quoted
from fxpipe.codegen.objects import Objects
from fxpipe.codegen.statements import Statement
from fxpipe.portals.calls import ModuleCall


def statements(
    call: ModuleCall, section: str, write: Arguments, objects: Objects, names: Names
) -> Iterator[Statement]:
    """The call, and the lines that take out of its result and its arguments what others read.

    Args:
        call: the module call.
        section: path of the module that makes it.
        write: writes the arguments.
        objects: the objects that the stage hands to calls.
        names: gives a free name for a result of several parts.
    """
    span = call.span
    origin = f"{span.path or 'the model'}, call {span.call}"
    yield from objects.made_for(span, section, origin)
    used = objects.used_by(span)
    method = ".forward" if span.via == "forward" else ""
    text = f"{write.bindings.module(span.path)}{method}({write.call(span.args, span.kwargs)})"
    line = partial(Statement, section=section, origin=origin)
    returned = {n: span.outputs[n.name] for n in call.writes if n.name in span.outputs}
    yield from _results(call, returned, text, partial(line, uses=used), write, names)
    for node in call.writes:
        if node not in returned:
            where, *steps = span.changed[node.name]
            holder = objects.holder(span, where)
            yield line(holder + _access(tuple(steps)), (node,), uses=(holder,))


def _results(
    call: ModuleCall,
    where: Mapping[torch.fx.Node, tuple[str | int, ...]],
    text: str,
    line: Callable[..., Statement],
    write: Arguments,
    names: Names,
) -> Iterator[Statement]:
    """The call, and where each of the values in its result is found."""
    if len(where) < 2:
        path = next(iter(where.values()), ())
        yield line(text + _access(path), tuple(where), call.reads)
        return
    whole = next((node for node, path in where.items() if not path), None)
    if whole is not None:
        yield line(text, (whole,), call.reads)
        for node, path in where.items():
            if node is not whole:
                yield line(write.value(whole) + _access(path), (node,), (whole,))
        return
    holder = names.take(f"{call.span.path or 'model'}_out")
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
