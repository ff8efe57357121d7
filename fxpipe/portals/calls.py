"""Calls of the user's modules that no cut divides, and that can be made again in a stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch.fx

from fxpipe.ir.capture import Capture, Span
from fxpipe.ir.plan import PartitionPlan
from fxpipe.ir.spec import Opaque, ValueSpec, tensor_specs


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """A call of one of the user's modules, in place of the nodes that it made when recorded.

    Attributes:
        span: the call.
        nodes: what it made.
        inner: the spans inside, calls that the module makes in its turn.
        writes: those of `nodes` that other steps read; they are found in the module's result.
    """

    span: Span
    nodes: tuple[torch.fx.Node, ...]
    inner: tuple[Span, ...]
    writes: tuple[torch.fx.Node, ...] = ()

    @property
    def reads(self) -> tuple[torch.fx.Node, ...]:
        """The values among the arguments."""
        return nodes_in((self.span.args, dict(self.span.kwargs)))


def nodes_in(argument: Any) -> tuple[torch.fx.Node, ...]:
    """The nodes inside an fx argument, in order, each once."""
    found: dict[torch.fx.Node, None] = {}
    torch.fx.node.map_arg(argument, lambda node: found.setdefault(node))
    return tuple(found)


def module_calls(capture: Capture, plan: PartitionPlan) -> Iterator[ModuleCall]:
    """The module calls that take the place of their nodes, outermost ones first, in recorded order."""
    return _Chooser(capture, plan).choose()


class _Chooser:
    """Goes through the spans, parents first, and takes those that can be called again."""

    def __init__(self, capture: Capture, plan: PartitionPlan) -> None:
        self.capture = capture
        self.plan = plan
        self.body = set(capture.body)
        self.order = {node: index for index, node in enumerate(capture.graph.nodes)}
        self.hidden: set[torch.fx.Node] = set()
        self.calls_seen: dict[tuple[int, str], int] = {}
        self.children: dict[int, list[int]] = {}
        for index, span in enumerate(capture.spans):
            if span.parent is not None:
                self.children.setdefault(span.parent, []).append(index)

    def choose(self) -> Iterator[ModuleCall]:
        """The module calls taken, in order of their start."""
        inside: set[int] = set()
        for index, span in enumerate(self.capture.spans):
            if span.parent in inside:
                inside.add(index)
                continue
            call = self.call_of(index, span)
            if call is not None and self.can_be_called(call):
                inside.add(index)
                self.note(call)
                yield call

    def call_of(self, index: int, span: Span) -> ModuleCall | None:
        """The span as a call; None if it lies in no stage, or in several, or cannot be repeated."""
        nodes = tuple(n for n in map(self.capture.node, span.nodes) if n in self.body)
        stages = {self.plan.stages[node.name] for node in nodes}
        if span.fixed is not None or len(stages) != 1:
            return None
        return ModuleCall(span, nodes, tuple(self.inner(index)))

    def inner(self, index: int) -> Iterator[Span]:
        for child in self.children.get(index, ()):
            yield self.capture.spans[child]
            yield from self.inner(child)

    def can_be_called(self, call: ModuleCall) -> bool:
        return (
            all(node.name in call.span.outputs for node in self.read_outside(call))
            and all(self.is_available(node, call) for node in call.reads)
            and self.hears_only_arguments(call)
            and self.counts_on(call)
        )

    def read_outside(self, call: ModuleCall) -> Iterator[torch.fx.Node]:
        inside = set(call.nodes)
        return (n for n in call.nodes if any(user not in inside for user in n.users))

    def is_available(self, node: torch.fx.Node, call: ModuleCall) -> bool:
        """Whether an argument exists where the call would stand."""
        if node.op == "get_attr":
            return True
        return node not in self.hidden and self.order[node] < self.order[call.nodes[0]]

    def hears_only_arguments(self, call: ModuleCall) -> bool:
        """Whether no value comes in past the arguments (through a closure of another stage, say)."""
        known = {*call.nodes, *call.reads}
        return all(
            node in known or node.op == "get_attr" or not _carries_data(node)
            for inner in call.nodes
            for node in inner.all_input_nodes
        )

    def counts_on(self, call: ModuleCall) -> bool:
        """Whether the calls of each module that draws stay numbered without gaps within the stage.

        Random numbers are keyed by a call's number, and the runtime counts the calls from the first one.
        """
        drawing = drawing_paths(call)
        last = {path: self.calls_seen.get((self._stage(call), path)) for path in drawing}
        for span in (call.span, *call.inner):
            if span.path in last:
                before = last[span.path]
                if before is not None and span.call != before + 1:
                    return False
                last[span.path] = span.call
        return True

    def note(self, call: ModuleCall) -> None:
        self.hidden.update(node for node in call.nodes if node.name not in call.span.outputs)
        for span in (call.span, *call.inner):
            self.calls_seen[self._stage(call), span.path] = span.call

    def _stage(self, call: ModuleCall) -> int:
        return self.plan.stages[call.nodes[0].name]


def drawing_paths(call: ModuleCall) -> Mapping[str, bool]:
    """Paths of the modules that draw random numbers in the call → whether they are one node (a leaf)."""
    found: dict[str, bool] = {}
    for node in call.nodes:
        if "rng" in node.meta and node.meta.get("draws"):
            found[scope_path(node)] = node.op == "call_module"
    return found


def scope_path(node: torch.fx.Node) -> str:
    """Path of the innermost module around a node that draws."""
    scope: str = node.meta["rng"][0]
    return scope.rpartition("#")[0]


def _carries_data(node: torch.fx.Node) -> bool:
    spec: ValueSpec = node.meta.get("spec")
    return isinstance(spec, Opaque) or next(tensor_specs(spec), None) is not None
