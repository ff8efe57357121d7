"""Statements of a stage's forward, and where its local variables are let go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch.fx

from fxpipe.codegen.names import quoted
from fxpipe.codegen.writer import Writer
from fxpipe.ir.spec import Opaque, ValueSpec, tensor_specs


@dataclass(frozen=True, slots=True)
class Statement:
    """One line: ``<writes> = text``, or `text` alone where nobody reads the value.

    `holder` is a local variable that is no node's value; `keyed` is the (scope, draw) of a line that
    draws random numbers itself.
    """

    text: str
    writes: tuple[torch.fx.Node, ...] = ()
    reads: tuple[torch.fx.Node, ...] = ()
    origin: str = ""
    comment: str = ""
    holder: str = ""
    keyed: tuple[str, int] | None = None


def write_body(
    statements: Sequence[Statement],
    returned: Sequence[torch.fx.Node],
    arguments: Iterable[torch.fx.Node],
    name: Callable[[torch.fx.Node], str],
    out: Writer,
) -> None:
    """Writes the statements, the return, and a ``del`` wherever tensors are read for the last time.

    Python keeps a local variable until the function returns; the user's forward, which uses one
    variable again and again, lets its tensors go as it runs, and so does the stage.
    """
    read = {node for statement in statements for node in statement.reads} | set(returned)
    last = _last_uses(statements, keep={*returned, *arguments})
    shown = ""
    for index, statement in enumerate(statements):
        comment = statement.comment if statement.comment != shown else ""
        shown = statement.comment or shown
        _write(statement, read, comment, name, out)
        freed = last.get(index, ())
        if freed and index + 1 < len(statements):
            out.line(f"del {', '.join(map(name, freed))}", origin=statement.origin)
    values = ", ".join(map(name, returned))
    out.line(f"return ({values},)" if len(returned) == 1 else f"return ({values})")


def _write(
    statement: Statement,
    read: set[torch.fx.Node],
    comment: str,
    name: Callable[[torch.fx.Node], str],
    out: Writer,
) -> None:
    targets = [name(node) for node in statement.writes if node in read]
    if statement.holder:
        targets = [statement.holder]
    text = f"{targets[0]} = {statement.text}" if targets else statement.text
    if statement.keyed is None:
        out.line(text, comment=comment, origin=statement.origin)
        return
    scope, draw = statement.keyed
    with out.block(f"with self.keyed({quoted(scope)}, {draw}):", origin=statement.origin):
        out.line(text, comment=comment, origin=statement.origin)


def _last_uses(
    statements: Sequence[Statement], keep: set[torch.fx.Node]
) -> dict[int, tuple[torch.fx.Node, ...]]:
    """Index of a statement → the tensors of its own stage that no later one reads."""
    made = {node for statement in statements for node in statement.writes}
    last: dict[torch.fx.Node, int] = {}
    for index, statement in enumerate(statements):
        last.update((node, index) for node in statement.reads)
    found: dict[int, tuple[torch.fx.Node, ...]] = {}
    for node, index in last.items():
        if node in made and node not in keep and _is_heavy(node.meta.get("spec")):
            found[index] = (*found.get(index, ()), node)
    return found


def _is_heavy(spec: ValueSpec) -> bool:
    if isinstance(spec, tuple):
        return any(map(_is_heavy, spec))
    if isinstance(spec, dict):
        return any(map(_is_heavy, spec.values()))
    return isinstance(spec, Opaque) or next(tensor_specs(spec), None) is not None
