"""Calls of the user's modules that no cut divides, and that can be made again in a stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch.fx

from fxpipe.ir.capture import Capture, Span
from fxpipe.ir.findings import Fate
from fxpipe.ir.plan import PartitionPlan
from fxpipe.ir.spec import Opaque, ValueSpec, tensor_specs


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """A call of one of the user's modules, in place of the nodes that it made when recorded.

    Attributes:
        span: the call.
        nodes: what it made.
        inner: the spans inside, calls that the module makes in its turn.
        writes: those of `nodes` that other steps read; they are found in the module's result, in an
            argument that it changes, or in the result of a module inside.
    """

    span: Span
    nodes: tuple[torch.fx.Node, ...]
    inner: tuple[Span, ...]
    writes: tuple[torch.fx.Node, ...] = ()

    @property
    def reads(self) -> tuple[torch.fx.Node, ...]:
        """The values among the arguments."""
        return nodes_in((self.span.args, dict(self.span.kwargs)))

    @property
    def leaks(self) -> tuple[torch.fx.Node, ...]:
        """Those of `writes` that only modules inside hand out."""
        handed = {**self.span.outputs, **self.span.changed}
        return tuple(node for node in self.writes if node.name not in handed)


def nodes_in(argument: Any) -> tuple[torch.fx.Node, ...]:
    """The nodes inside an fx argument, in order, each once."""
    found: dict[torch.fx.Node, None] = {}
    torch.fx.node.map_arg(argument, lambda node: found.setdefault(node))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class SpanFate:
    """What becomes of a span under a plan.

    Attributes:
        fate: called, or not.
        stages: the stages its nodes are in, ascending.
        reason: which cuts divide it, or why it cannot be called.
        call: what takes the place of its nodes, if it is called.
    """

    fate: Fate
    stages: tuple[int, ...] = ()
    reason: str = ""
    call: ModuleCall | None = None


def module_calls(capture: Capture, plan: PartitionPlan) -> Iterator[ModuleCall]:
    """The module calls that take the place of their nodes, outermost ones first, in recorded order."""
    return (made.call for made in span_fates(capture, plan) if made.call is not None)


def span_fates(capture: Capture, plan: PartitionPlan) -> tuple[SpanFate, ...]:
    """What becomes of every span, in order of ``capture.spans``."""
    return tuple(_Chooser(capture, plan).fates())


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

    def fates(self) -> Iterator[SpanFate]:
        """One for each span; what is taken is noted for those that come after."""
        inside: set[int] = set()
        for index, span in enumerate(self.capture.spans):
            nodes = tuple(n for n in map(self.capture.node, span.nodes) if n in self.body)
            stages = tuple(sorted({self.plan.stages[node.name] for node in nodes}))
            if span.parent in inside:
                inside.add(index)
                yield SpanFate(Fate.INSIDE, stages)
                continue
            made = self.fate(index, nodes, stages)
            if made.call is not None:
                inside.add(index)
                self.note(made.call)
            yield made

    def fate(
        self, index: int, nodes: tuple[torch.fx.Node, ...], stages: tuple[int, ...]
    ) -> SpanFate:
        """What becomes of a span that is in no call taken so far."""
        if not stages:
            return SpanFate(Fate.EMPTY)
        if len(stages) > 1:
            return SpanFate(Fate.DIVIDED, stages, self.cuts_in(stages))
        call = ModuleCall(self.capture.spans[index], nodes, tuple(self.inner(index)))
        reason = call.span.fixed or self.why_not(call)
        if reason is not None:
            return SpanFate(Fate.FLAT, stages, reason)
        return SpanFate(Fate.CALLED, stages, call=call)

    def inner(self, index: int) -> Iterator[Span]:
        for child in self.children.get(index, ()):
            yield self.capture.spans[child]
            yield from self.inner(child)

    def cuts_in(self, stages: tuple[int, ...]) -> str:
        """The cuts between some stages, named as the plan names them."""
        starts = self.plan.starts or tuple(
            self.plan.nodes_of(stage)[0] for stage in range(1, self.plan.num_stages)
        )
        inner = starts[stages[0] : stages[-1]]
        return f"cut before {' and '.join(inner)}"

    def why_not(self, call: ModuleCall) -> str | None:
        """Why a span that lies in one stage cannot be called in it; None if it can."""
        outside = next((n for n in self.read_outside(call) if not is_found(n, call.span)), None)
        if outside is not None:
            return f"{outside.name} is read outside, and is not part of its result"
        missing = next((n for n in call.reads if not self.is_available(n, call)), None)
        if missing is not None:
            return f"its argument {missing.name} is not at hand where it would be called"
        unheard = self.unheard(call)
        if unheard is not None:
            return f"it reads {unheard.name}, which is not among its arguments"
        if not self.counts_on(call):
            return "an earlier call that draws random numbers is in another stage or written out"
        return None

    def read_outside(self, call: ModuleCall) -> Iterator[torch.fx.Node]:
        inside = set(call.nodes)
        return (n for n in call.nodes if any(user not in inside for user in n.users))

    def is_available(self, node: torch.fx.Node, call: ModuleCall) -> bool:
        """Whether an argument exists where the call would stand."""
        if node.op == "get_attr":
            return True
        return node not in self.hidden and self.order[node] < self.order[call.nodes[0]]

    def unheard(self, call: ModuleCall) -> torch.fx.Node | None:
        """A value that comes in past the arguments (through a closure of another stage, say)."""
        known = {*call.nodes, *call.reads}
        read = (node for inner in call.nodes for node in inner.all_input_nodes)
        strange = (node for node in read if node not in known and node.op != "get_attr")
        return next((node for node in strange if _carries_data(node)), None)

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
        self.hidden.update(node for node in call.nodes if not is_found(node, call.span))
        for span in (call.span, *call.inner):
            self.calls_seen[self._stage(call), span.path] = span.call

    def _stage(self, call: ModuleCall) -> int:
        return self.plan.stages[call.nodes[0].name]


def is_found(node: torch.fx.Node, span: Span) -> bool:
    """Whether a value made in a module call can be had after it."""
    return any(node.name in found for found in (span.outputs, span.changed, span.inside))


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
