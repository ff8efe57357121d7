"""Module calls as rows of a tree: equal neighbours are one row, and what a call covers is left out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from fxpipe.ir.findings import Fate, SpanFinding


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """A line of the tree, for one or several calls.

    Attributes:
        name: the path below that of the module around it, indented; the first and the last of several.
        module_class: name of the class.
        calls: how many calls the line stands for.
        nodes: of all of them.
        share: of the cost, as text; empty if it is not known.
        note: what becomes of them in the stages, and why.
    """

    name: str
    module_class: str
    calls: int
    nodes: int
    share: str
    note: str


@dataclass
class _Call:
    """A call, the path of the module that makes it, and the calls that it makes."""

    found: SpanFinding
    around: str = ""
    inner: list[_Call] = field(default_factory=list)

    @property
    def is_called(self) -> bool:
        """Whether the stages call the module, so that what is inside is its own matter."""
        return self.found.fate is Fate.CALLED

    def key(self, hidden: bool) -> tuple[object, ...]:
        """Equal for calls that one line can stand for; `hidden`: those inside are not listed."""
        found = self.found
        own = (
            _pattern(found.path),
            found.module_class,
            found.nodes,
            found.fate,
            found.stages,
            _pattern(found.reason),
        )
        if hidden or self.is_called:
            return own
        return *own, tuple(each.key(hidden) for each in self.inner)

    @property
    def count(self) -> int:
        """How many calls are inside."""
        return len(self.inner) + sum(each.count for each in self.inner)


_Bundle = Sequence[_Call]
"""Calls in equal places of equal modules."""


def module_rows(spans: Sequence[SpanFinding], depth: int | None = None) -> Iterator[ModuleRow]:
    """The tree of the calls, the model first.

    Args:
        spans: parents before children.
        depth: number of levels, the model's not counted. None: all that are not inside of a called
            module if there is a plan, else three.
    """
    calls = [_Call(span) for span in spans]
    roots: list[_Call] = []
    for call in calls:
        parent = call.found.parent
        if parent is None:
            roots.append(call)
        else:
            call.around = calls[parent].found.path
            calls[parent].inner.append(call)
    if depth is None:
        depth = 3 if all(span.fate is None for span in spans) else len(spans)
    yield from _rows([[root] for root in roots], 0, depth)


def _rows(bundles: Sequence[_Bundle], level: int, depth: int) -> Iterator[ModuleRow]:
    for group in _groups(bundles, hidden=level >= depth):
        first = group[0]
        hidden = level >= depth or first.is_called
        note = _note(first.found)
        yield _row(group, level, _with_inner(note, group) if hidden else note)
        if not hidden:
            inner = list(zip(*(call.inner for call in group), strict=True))
            yield from _rows(inner, level + 1, depth)


def _groups(bundles: Sequence[_Bundle], hidden: bool) -> Iterator[_Bundle]:
    """Runs of equal neighbours, each made one bundle."""
    run: list[_Call] = []
    before: tuple[object, ...] = ()
    for bundle in bundles:
        key = bundle[0].key(hidden)
        if run and key != before:
            yield run
            run = []
        before = key
        run = [*run, *bundle]
    if run:
        yield run


def _row(group: _Bundle, level: int, note: str) -> ModuleRow:
    names = list(dict.fromkeys(_name(call) for call in group))
    name = names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"
    shares = [call.found.share for call in group if call.found.share is not None]
    return ModuleRow(
        name="  " * level + name,
        module_class=group[0].found.module_class,
        calls=len(group),
        nodes=sum(call.found.nodes for call in group),
        share=f"{sum(shares):.1%}" if shares else "",
        note=note,
    )


def _name(call: _Call) -> str:
    path = call.found.path
    if not path:
        return "(the model)"
    return path.removeprefix(f"{call.around}.") if call.around else path


def _note(found: SpanFinding) -> str:
    stages = ", ".join(map(str, found.stages))
    where = f"stage{'s' if len(found.stages) > 1 else ''} {stages}"
    match found.fate:
        case None:
            return f"written out, since {found.reason}" if found.reason else "called"
        case Fate.CALLED:
            return f"{where}: called"
        case Fate.DIVIDED:
            inner = " and ".join(map(str, found.stages[1:]))
            return f"{where}: divided, {inner} start{'' if found.stages[2:] else 's'} inside"
        case Fate.FLAT:
            return f"{where}: written out, since {found.reason}"
        case Fate.INSIDE | Fate.EMPTY:
            return str(found.fate)


def _with_inner(note: str, group: _Bundle) -> str:
    count = sum(call.count for call in group)
    if not count:
        return note
    inner = f"{count} {'call' if count == 1 else 'calls'} inside"
    if group[0].is_called:
        return f"{note}, with {inner}"
    return f"{note} ({inner})" if note else f"({inner})"


def _pattern(text: str) -> str:
    """A text with its numbers left out: ``h.0.attn`` and ``h.1.attn`` have the same."""
    return re.sub(r"\d+", "#", text)
