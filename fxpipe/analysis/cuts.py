"""Where a recorded run may be cut in two: the one place that knows.

A cut at position i separates body[i - 1] from body[i]; stages are the runs between cuts. Every rule
forbids the positions between two nodes that must share a stage:

- an autocast or grad-mode region is entered and left on one stage;
- a call that returns several values stays with the nodes that take them apart;
- memory is only written where it was made, so that a value is final when it crosses; inputs,
  parameters, buffers and constants that are written into are used on one stage only;
- a buffer that the forward changes is used on one stage only, and so is a module that stays whole and
  keeps tensors in other ways;
- a value stays with the call of ``torch.autograd.grad`` that differentiates by it, and with hooks on
  its gradient: they work on one autograd graph;
- a module that decides on a buffer which the run itself fills decides for itself, called whole;
- an object that is no tensor, plain constant or container of them does not cross.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import torch.autograd
import torch.fx

from fxpipe import ops
from fxpipe.analysis.effects import (
    changed_buffers,
    is_mutating,
    storages,
    training_buffers,
    written_storages,
)
from fxpipe.analysis.liveness import positions
from fxpipe.ir.spec import Opaque, TensorSpec, ValueSpec, tensor_specs

if TYPE_CHECKING:
    from fxpipe.ir.capture import Capture, Span

_MODE_SWITCHES: Final = (ops.enter_autocast, ops.exit_autocast, ops.set_grad_enabled)
_UNPACKERS: Final = (operator.getitem, getattr, "__getitem__")
_MAY_CROSS: Final = frozenset(
    {"dtype", "device", "layout", "memory_format", "slice", "range", "ellipsis", "bytes", "Size"}
)
"""Opaque values without state or tensors."""


@dataclass(frozen=True, slots=True)
class Bond:
    """Two nodes of the body, by position, that must share a stage, and why."""

    first: int
    last: int
    reason: str


def legal_cuts(capture: Capture) -> tuple[int, ...]:
    """The positions where the body may be cut, ascending.

    Position i means just before ``capture.body[i]``; 0 and ``len(body)`` are no cuts. Takes time linear
    in the graph.
    """
    return uncovered(len(capture.body), bonds(capture))


def cuts_for_training(capture: Capture) -> tuple[int, ...]:
    """The legal cuts that stay legal when a model recorded in evaluation is trained later.

    In evaluation the calls of one batch norm may be on two stages; in training they share statistics
    that each call changes.
    """
    graph = _Graph(capture)
    return uncovered(len(capture.body), (*bonds(capture), *_stateful(graph, training_buffers)))


def uncovered(size: int, found: Iterable[Bond]) -> tuple[int, ...]:
    """The positions 1 to size - 1 that no bond forbids, ascending."""
    change = [0] * (size + 2)
    for bond in found:
        change[bond.first + 1] += 1
        change[bond.last + 1] -= 1
    covered = list(accumulate(change))
    return tuple(i for i in range(1, size) if not covered[i])


def why_illegal(capture: Capture, index: int) -> str | None:
    """What forbids a cut just before ``body[index]``, every reason of it; None if it is legal."""
    size = len(capture.body)
    if not 0 < index < size:
        return f"a cut needs a node on both sides: positions 1 to {size - 1} of this graph have"
    reasons = [bond.reason for bond in bonds(capture) if bond.first < index <= bond.last]
    return "; ".join(dict.fromkeys(reasons)) or None


def bonds(capture: Capture) -> tuple[Bond, ...]:
    """Every pair of nodes that no cut may separate, in no particular order."""
    graph = _Graph(capture)
    found = (
        *_regions(graph),
        *_unpacked(graph),
        *_written(graph),
        *_stateful(graph),
        *_keeping(graph),
        *_differentiated(graph),
        *_deciding(graph, capture.spans),
        *_unmovable(graph),
    )
    return tuple(bond for bond in found if bond.first < bond.last)


def describe(node: torch.fx.Node) -> str:
    """A node with the user's line that made it, for messages."""
    source = node.meta.get("source", "")
    return f"{node.name!r} ({source})" if source else repr(node.name)


def is_mode_switch(node: torch.fx.Node) -> bool:
    """Whether the node begins or ends an autocast or grad-mode region."""
    return node.target in _MODE_SWITCHES


class _Graph:
    """A capture with the position of its nodes at hand."""

    def __init__(self, capture: Capture) -> None:
        self.nodes = tuple(capture.graph.nodes)
        self.body = capture.body
        self.position = positions(capture)

    def last_use(self, node: torch.fx.Node) -> int:
        """Position of the last reader; a model output is read at the end."""
        end = len(self.body) - 1
        return max((self.position.get(user, end) for user in node.users), default=-1)

    def copies(self, node: torch.fx.Node) -> tuple[int, ...]:
        """Where a value is made; of an input, which every stage has for itself, where it is read."""
        if node in self.position:
            return (self.position[node],)
        if node.op == "get_attr":  # modules read their parameters where nobody sees it
            return (0,)
        return tuple(self.position[user] for user in node.users if user in self.position)

    def first_use(self, node: torch.fx.Node) -> tuple[int, ...]:
        """Where a value's gradient comes together, which is what a hook on the value sees.

        The stage that reads a value first is handed the gradients of all later readers. Not so if it
        may be the very tensor that another node gave.
        """
        mine = set(storages(node))
        if node not in self.position or any(mine & {*storages(n)} for n in node.all_input_nodes):
            return self.copies(node)
        return (min(self.position[user] for user in node.users if user in self.position),)

    def between(self, found: Iterable[int], reason: str) -> Iterator[Bond]:
        """The bond from the first of some positions to the last; `reason` names them in braces."""
        where = sorted(found)
        if where and where[0] < where[-1]:
            first, last = self.body[where[0]], self.body[where[-1]]
            text = reason.format(first=describe(first), last=describe(last))
            yield Bond(where[0], where[-1], text)


def _regions(graph: _Graph) -> Iterator[Bond]:
    members: dict[int, list[int]] = {}
    for position, node in enumerate(graph.body):
        for region in node.meta.get("regions", ()):
            members.setdefault(region, []).append(position)
    for inside in members.values():
        before, after = min(inside) - 1, max(inside) + 1
        inside += [at for at in (before, after) if _is_switch_at(graph, at)]
        yield from graph.between(inside, "an autocast or grad-mode region from {first} to {last}")


def _is_switch_at(graph: _Graph, position: int) -> bool:
    return 0 <= position < len(graph.body) and is_mode_switch(graph.body[position])


def _unpacked(graph: _Graph) -> Iterator[Bond]:
    for node, position in graph.position.items():
        if _is_container(node.meta.get("spec")):
            is_whole = node.meta.get("read_whole")  # as many values as rows: none is sent
            users = [user for user in node.users if is_whole or user.target in _UNPACKERS]
            takers = [graph.position[user] for user in users if user in graph.position]
            yield from graph.between((position, *takers), "{last} takes apart what {first} returns")


def _is_container(spec: ValueSpec) -> bool:
    """Whether a value holds tensors without being one, as far as is known."""
    if isinstance(spec, TensorSpec):
        return False
    return bool(_opaque(spec) - _MAY_CROSS) or any(True for _ in tensor_specs(spec))


def _written(graph: _Graph) -> Iterator[Bond]:
    """From the node that made a storage, or the first that touches a foreign one, to the last write."""
    written: dict[int, list[int]] = {}
    for position, node in enumerate(graph.body):
        for storage in written_storages(node):
            written.setdefault(storage, []).append(position)
    if not written:
        return
    foreign = {s for node in graph.nodes if node not in graph.position for s in storages(node)}
    touched = _touched(graph, written, foreign)
    for storage, writes in written.items():
        yield from graph.between(
            (*touched.get(storage, ()), *writes),
            "{last} works on memory that is written in place since {first}",
        )


def _touched(
    graph: _Graph, written: dict[int, list[int]], foreign: set[int]
) -> dict[int, list[int]]:
    """Storage → positions that its writes must stay with: its maker, or all direct readers."""
    touched: dict[int, list[int]] = {}
    for position, node in enumerate(graph.body):
        for storage in storages(node):
            if storage in written and storage not in foreign:
                touched.setdefault(storage, [position])
        for source in node.all_input_nodes:
            for storage in storages(source) if source not in graph.position else ():
                if storage in written:
                    touched.setdefault(storage, []).append(position)
    return touched


def _stateful(
    graph: _Graph, changes: Callable[[torch.fx.Node], tuple[str, ...]] = changed_buffers
) -> Iterator[Bond]:
    changed = {name for node in graph.body for name in changes(node)}
    users: dict[str, set[int]] = {name: set() for name in changed}
    owners: dict[str, set[str]] = {}
    for name in changed:
        for owner in _prefixes(name):
            owners.setdefault(owner, set()).add(name)
    for position, node in enumerate(graph.body):
        used = set(changes(node))
        used.update(str(n.target) for n in node.all_input_nodes if n.op == "get_attr")
        if node.op == "call_module":
            used |= owners.get(str(node.target), set())
        for name in used & changed:
            users[name].add(position)
    for name in sorted(changed):
        yield from graph.between(
            users[name],
            f"{{first}} and {{last}} share the buffer {name!r}, which the forward changes",
        )


def _keeping(graph: _Graph) -> Iterator[Bond]:
    """What a module that stays whole keeps in Python it may read in its next call."""
    calls: dict[str, list[int]] = {}
    for position, node in enumerate(graph.body):
        if node.op == "call_module" and node.meta.get("keeps"):
            calls.setdefault(str(node.target), []).append(position)
    for path, places in calls.items():
        yield from graph.between(
            places, f"{{first}} and {{last}} call {path!r}, which keeps tensors"
        )


def _prefixes(name: str) -> Iterator[str]:
    """The modules around a buffer, by path: 'a.b' and 'a' for 'a.b.running_mean'."""
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _differentiated(graph: _Graph) -> Iterator[Bond]:
    for node, position in graph.position.items():
        if node.target is torch.autograd.grad:
            inputs = node.args[1] if len(node.args) > 1 else node.kwargs["inputs"]
            reason, places = (
                "{last} differentiates by a value that {first} gives or reads",
                graph.copies,
            )
        elif node.target is ops.call_hook:
            inputs = node.args[0]
            reason, places = (
                "{last} hooks into the gradient of a value that {first} uses",
                graph.first_use,
            )
        else:
            continue
        sources: list[torch.fx.Node] = []
        torch.fx.node.map_arg(inputs, sources.append)
        for source in sources:
            yield from graph.between((position, *places(source)), reason)


def _deciding(graph: _Graph, spans: Sequence[Span]) -> Iterator[Bond]:
    """Nobody can tell ahead of a micro-batch what the layers of the one before put into a buffer."""
    decisions = [node for node in graph.body if node.target is ops.check_value]
    if not decisions:
        return
    writers = [node for node in graph.body if is_mutating(node)]
    writers = [node for node in writers if any(map(_is_layer, _ancestors(node)))]
    memory = {storage for node in writers for storage in written_storages(node)}
    names = {name for node in writers for name in changed_buffers(node)}
    for node in decisions:
        read = [n for n in _ancestors(node) if n.op == "get_attr"]
        read = [n for n in read if n.target in names or not memory.isdisjoint(storages(n))]
        around = [span for span in spans if span.path and node.name in span.nodes]
        if read and around and around[-1].fixed is None:
            inside = frozenset(around[-1].nodes)
            yield from graph.between(
                (at for at, each in enumerate(graph.body) if each.name in inside),
                f"{around[-1].path!r} decides on {str(read[0].target)!r}, which layers fill",
            )


def _is_layer(node: torch.fx.Node) -> bool:
    return node.op == "call_module"


def _ancestors(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """A node and all that it is computed from."""
    waiting, seen = [node], {node}
    while waiting:
        yield (last := waiting.pop())
        fresh = [source for source in last.all_input_nodes if source not in seen]
        seen.update(fresh)
        waiting += fresh


def _unmovable(graph: _Graph) -> Iterator[Bond]:
    for node, position in graph.position.items():
        kinds = _opaque(node.meta.get("spec")) - _MAY_CROSS
        if kinds:
            yield from graph.between(
                (position, max(position, graph.last_use(node))),
                f"{{last}} uses the {min(kinds)} that {{first}} returns, and such an object cannot go "
                "to another stage",
            )


def _opaque(spec: ValueSpec) -> set[str]:
    """Names of the types inside a value of which nothing else is known, without their modules."""
    if isinstance(spec, Opaque):
        return {spec.type_name.rpartition(".")[2]}
    if isinstance(spec, tuple):
        return {name for item in spec for name in _opaque(item)}
    if isinstance(spec, dict):
        return {name for item in spec.values() for name in _opaque(item)}
    return set()
