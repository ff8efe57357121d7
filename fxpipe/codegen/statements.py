"""Statements of a stage's forward, and where its local variables are let go."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import torch.fx

from fxpipe.codegen.names import quoted
from fxpipe.codegen.writer import Writer
from fxpipe.ir.spec import Opaque, TensorSpec, ValueSpec


@dataclass(frozen=True, slots=True)
class Statement:
    """One line: ``<writes> = text``, or `text` alone where nobody reads the value.

    Attributes:
        text: the expression, or a whole statement.
        writes: the node whose value it computes; none for a statement.
        reads: the values it needs.
        section: path of the module whose code it belongs to; None if it belongs to none.
        comment: the user's line.
        origin: what is remembered of the line for error notes.
        holder: a local variable that it assigns and that is no node's value.
        uses: variables for objects that module calls are handed, which it mentions.
        keyed: (scope, draw) of a line that draws random numbers itself.
    """

    text: str
    writes: tuple[torch.fx.Node, ...] = ()
    reads: tuple[torch.fx.Node, ...] = ()
    section: str | None = None
    comment: str = ""
    origin: str = ""
    holder: str = ""
    keyed: tuple[str, int] | None = None
    uses: tuple[str, ...] = ()


def write_body(
    statements: Sequence[Statement],
    returned: Sequence[torch.fx.Node],
    name: Callable[[torch.fx.Node], str],
    out: Writer,
) -> None:
    """Writes the statements, the return, and a ``del`` wherever a tensor is read for the last time.

    Python keeps a local variable until the function returns; the user's forward, which uses one
    variable again and again, lets its tensors go as it runs, and so does the stage. A comment line
    tells where the code of another module begins.
    """
    read = {node for statement in statements for node in statement.reads} | set(returned)
    freed = releases(statements, returned)
    ended = {holder: at for at, statement in enumerate(statements) for holder in statement.uses}
    section, comment = "", ""
    for index, statement in enumerate(statements):
        if statement.section is not None and statement.section != section:
            section, comment = statement.section, ""
            out.line(f"# in {section or 'the model'}:")
        _write(
            statement, read, "" if statement.comment == comment else statement.comment, name, out
        )
        comment = statement.comment or comment
        gone = [*map(name, freed[index]), *(each for each in ended if ended[each] == index)]
        if gone and index + 1 < len(statements):
            out.line(f"del {', '.join(gone)}", origin=statement.origin)
    values = ", ".join(map(name, returned))
    out.line(f"return ({values},)" if len(returned) == 1 else f"return ({values})")


def _write(
    statement: Statement,
    read: Collection[torch.fx.Node],
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


def releases(
    statements: Sequence[Statement], returned: Iterable[torch.fx.Node]
) -> tuple[tuple[torch.fx.Node, ...], ...]:
    """For each statement, the local variables to let go after it.

    Variables that share memory (a tensor and its views) go together, after the last use of any: before
    that nothing would be freed. What shares memory with a result, or with an argument that the caller
    holds anyway, is left alone.
    """
    made = [node for statement in statements for node in statement.writes]
    last: dict[torch.fx.Node, int] = {}
    for index, statement in enumerate(statements):
        last.update((node, index) for node in statement.reads)
    outside = {*returned, *(last.keys() - set(made))}
    kept = {memory for node in outside for memory in _memories(node)}
    heavy = [node for node in made if node in last and _is_heavy(node.meta.get("spec"))]
    freed: list[tuple[torch.fx.Node, ...]] = [() for _ in statements]
    for group in _sharing(heavy):
        if not group.memories & kept:
            freed[max(last[node] for node in group.nodes)] += tuple(group.nodes)
    order = {node: index for index, node in enumerate(made)}
    return tuple(tuple(sorted(nodes, key=order.__getitem__)) for nodes in freed)


@dataclass(eq=False)
class _Group:
    """Values that share memory, directly or through one another."""

    memories: set[object]
    nodes: list[torch.fx.Node]


def _sharing(nodes: Iterable[torch.fx.Node]) -> tuple[_Group, ...]:
    of: dict[object, _Group] = {}
    for node in nodes:
        group = _Group(_memories(node), [node])
        for known in {id(of[m]): of[m] for m in group.memories if m in of}.values():
            group = _Group(known.memories | group.memories, known.nodes + group.nodes)
        of.update(dict.fromkeys(group.memories, group))
    return tuple({id(group): group for group in of.values()}.values())


def _memories(node: torch.fx.Node) -> set[object]:
    """What stands for the memory of a value: its storages, or the node itself if none are known."""
    return set(node.meta.get("storages", ())) or {node}


def _is_heavy(spec: ValueSpec) -> bool:
    """Whether a value may hold memory: anything but numbers and text."""
    if isinstance(spec, tuple):
        return any(map(_is_heavy, spec))
    if isinstance(spec, dict):
        return any(map(_is_heavy, spec.values()))
    return isinstance(spec, Opaque | TensorSpec)
