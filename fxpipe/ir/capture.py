"""`Capture`: one recorded run of a model, as a torch.fx graph with everything later steps need.

Facts about single nodes live in ``node.meta`` (all of them set by the recorder, never changed after):

    "path"      str               module the call was made in ("" is the model itself)
    "call"      int               which call of that module this was, counted from 0
    "source"    str               the user's line: 'file.py:12 in forward: x = self.conv(x)'
    "spec"      ValueSpec         shapes and dtypes of the value
    "storages"  tuple[int, ...]   ids of the storages the value's tensors live in (aliases share one)
    "mutates"   tuple[int, ...]   ids of the storages the node writes into
    "buffers"   tuple[str, ...]   names of the model's buffers, and of its parameters, the node changes
    "statistics"  tuple[str, ...]  buffers that a call_module node in evaluation would change in training
    "draws"     int               random draws the node makes (0: it is deterministic)
    "rng"       tuple[str, int]   (scope, first draw in it) of a node that draws; the scope is
                                  'path#call' of the innermost module and keys the random numbers
    "python_random"  bool         True for a leaf that draws from random or NumPy; else absent
    "regions"   tuple[int, ...]   autocast and grad-mode regions the node lies in (no cut inside one)
    "via"       str               how a call_module node called its module: "call", "forward", or
                                  "plain" (nn.Module's own call, past one that its class has)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from fxpipe.ir.spec import ValueSpec

if TYPE_CHECKING:
    import torch.fx

    from fxpipe.ir.cost import CostProfile
    from fxpipe.ir.plan import PartitionPlan
    from fxpipe.ir.signature import CallSignature


class Rebuilt(NamedTuple):
    """An argument of a span that is built anew for the call: an object, or a container it changes.

    Attributes:
        make: ``make(*leaves)`` builds it as it was before the call.
        leaves: fx arguments.
        number: tells apart the objects of a recording.
        before: tells apart what the object held at different times: its state before the call.
        after: and after it.
    """

    make: Callable[..., Any]
    leaves: tuple[Any, ...]
    number: int
    before: int
    after: int


class Inside(NamedTuple):
    """Where a value is found that a call does not hand out: in what a module inside has returned.

    Attributes:
        path: of the module inside, relative to the one called.
        call: how often it was called before in this call.
        steps: how to get from its result to the value.
    """

    path: str
    call: int
    steps: tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """One call of a module that the recorder looked through: which nodes it made, what went in and out.

    `args` and `kwargs` are what the caller passed, as fx arguments: containers and constants with
    `torch.fx.Node` leaves, or `Rebuilt`. `outputs` says where in the returned value each node is found:
    ``{"relu_3": ()}`` if the value itself, ``{"h": (0,), "attn": ("weights",)}`` by index or key, and
    ``(".hidden",)`` by attribute. `changed` says the same of nodes that the call put into an argument,
    first the argument's position or keyword: ``{"keys": ("cache", ".layers", 0)}``. `inside` says it of
    nodes that get out past both, by hooks on modules inside.
    """

    path: str
    call: int
    nodes: tuple[str, ...]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outputs: Mapping[str, tuple[str | int, ...]]
    parent: int | None
    via: str = "call"
    changed: Mapping[str, tuple[str | int, ...]] = field(default_factory=dict)
    inside: Mapping[str, Inside] = field(default_factory=dict)
    fixed: str | None = None
    """Why the call cannot be re-rolled into a call of the user's module; None if it can."""


@dataclass(frozen=True, slots=True)
class LeafReport:
    """A module that stays whole although it is no single torch.nn layer, and why.

    Attributes:
        path: of the module.
        module_class: its class.
        reason: why it is not looked into, as a sentence about the module.
        source: the user's line that is the reason.
        operation: what is called there, where it is a single call.
        remedy: what to change so that it can be looked into, and cut.
    """

    path: str
    module_class: str
    reason: str
    source: str = ""
    operation: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Capture:
    """A recorded run of a model.

    Attributes:
        graph: placeholders are the batched and replicated tensor inputs; ``get_attr`` nodes name
            parameters and buffers of the model, or entries of `constants`; the output node holds a
            flat tuple of output leaves (see `CallSignature.output`). Never mutated after recording.
        spans: the module calls looked through, in order of their start; children after parents.
        signature: how a call's arguments become placeholders and output leaves a result.
        constants: objects the graph refers to by ``get_attr`` that are not the model's own.
        model_class: qualified name of the model's class.
        training: the model's training flag when recorded.
        mode: ``"fake"`` or ``"real"``.
        batch_size: rows of the recorded micro-batch (specs hold for this size).
        leaves: modules that stay whole by fallback.
        ranges: name of a free dimension → its least and its largest recorded size.
        rows: the least and the largest number of rows that it was recorded with; None if no input has
            rows.
        only_rows: the numbers of rows that it was recorded with, where it computes fractions of them
            (``x.shape[0] // 2``): nothing is believed of others between these. Empty: all are.
        only_sizes: the same for free dimensions: each recording's sizes of those that it computes
            fractions of, by name.
        situation: hashable key of what the graph depends on besides the batch size.
        recorded_from: gives the module that was recorded, while it lives.
        holds_at: records the module once more, with the leaves of other arguments of the same
            structure, and says whether the graph is what comes out.
    """

    graph: torch.fx.Graph
    spans: tuple[Span, ...]
    signature: CallSignature
    constants: Mapping[str, Any]
    model_class: str
    training: bool
    mode: str
    batch_size: int
    leaves: tuple[LeafReport, ...] = ()
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    rows: tuple[int, int] | None = None
    only_rows: tuple[int, ...] = ()
    only_sizes: tuple[Mapping[str, int], ...] = ()
    situation: object = None
    recorded_from: Callable[[], torch.nn.Module | None] = field(
        default=type(None), repr=False, compare=False
    )
    holds_at: Callable[[list[Any]], bool] | None = field(default=None, repr=False, compare=False)
    _names: dict[str, torch.fx.Node] = field(default_factory=dict, repr=False, compare=False)

    def node(self, name: str) -> torch.fx.Node:
        """The node of that name.

        Raises:
            KeyError: if the graph has no such node.
        """
        if not self._names:
            self._names.update((node.name, node) for node in self.graph.nodes)
        return self._names[name]

    @property
    def body(self) -> tuple[torch.fx.Node, ...]:
        """The nodes that compute, in recorded order: what a plan distributes over stages."""
        skip = ("placeholder", "get_attr", "output")
        return tuple(node for node in self.graph.nodes if node.op not in skip)

    @property
    def has_rows(self) -> bool:
        """Whether some input is cut into micro-batches; else the sizes of inputs are fixed."""
        return any(leaf.batch_dim is not None for leaf in self.signature.inputs)

    @property
    def changed_state(self) -> tuple[str, ...]:
        """Names of the buffers and parameters that a run writes into or replaces."""
        changed = (name for node in self.graph.nodes for name in node.meta.get("buffers", ()))
        return tuple(dict.fromkeys(changed))

    def spec(self, name: str) -> ValueSpec:
        """Shapes and dtypes of a node's value at the recorded batch size."""
        value: ValueSpec = self.node(name).meta["spec"]
        return value

    def report(
        self,
        plan: PartitionPlan | None = None,
        *,
        costs: CostProfile | None = None,
        depth: int | None = None,
    ) -> str:
        """What the capture is made of, how well it can be cut, and what a plan makes of it, as text.

        Inputs and their free dimensions; the nodes of every module, and whether the stages call it;
        modules that stay whole, and how to change that; decisions on data; values that are no tensors
        and cross; the largest indivisible unit, which bounds how even stages can be.

        Args:
            plan: a cut of this capture; None: what holds for all of them.
            costs: what the nodes cost; None: estimated, if the module that was recorded still lives.
            depth: how many levels of modules are listed. None: all that are not inside of a called
                one if there is a plan, else three.

        Raises:
            IllegalPlanError: if the plan was made for another capture.
        """
        # The one import from a layer above: a report is looked for here (docs/adr).
        from fxpipe.findings.examine import report

        return report(self, plan, costs=costs, depth=depth)

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles do not know the module that was recorded."""
        return {**self.__dict__, "recorded_from": type(None), "holds_at": None}

    def fingerprint(self) -> str:
        """A short hash of the graph's text: a plan made for another graph is told apart by it."""
        lines = [f"{n.name}|{n.op}|{_target(n)}|{n.args}|{n.kwargs}" for n in self.graph.nodes]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Capture):
            return NotImplemented
        # By their text: the arguments of spans hold nodes, which compare by identity.
        return self.fingerprint() == other.fingerprint() and repr(self.spans) == repr(other.spans)

    def __hash__(self) -> int:
        return hash(self.fingerprint())

    def __str__(self) -> str:
        mode = "train" if self.training else "eval"
        return (
            f"Capture of {self.model_class} ({mode}, {self.mode} run, batch {self.batch_size}): "
            f"{len(self.body)} nodes, {len(self.spans)} module calls, {len(self.leaves)} fallback leaves"
        )


def _target(node: torch.fx.Node) -> str:
    target = node.target
    if isinstance(target, str):
        return target
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__qualname__', target)}"
