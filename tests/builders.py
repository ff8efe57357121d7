"""Captures, plans and bound stages made by hand, for tests that need no recorder.

capture = build_capture(model, x)           # torch.fx's symbolic trace, with all documented meta
plan = plan_at(capture, "up", "head")       # stages start at these nodes
stages = load_stages(generate(capture, plan, link(capture, plan), model), model, capture)
outputs = run_stages(stages, graph, x)      # one after the other, portals in a dictionary
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.fx
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fxpipe.codegen.load import StageModule, load
from fxpipe.ir.capture import Capture, Span
from fxpipe.ir.plan import PartitionPlan
from fxpipe.ir.signature import CallSignature, InputLeaf, OutputLeaf
from fxpipe.ir.spec import Opaque, TensorSpec, ValueSpec
from fxpipe.ir.stage import StageGraph, StageProgram
from fxpipe.ops import draws_random


def build_capture(model: nn.Module, *args: torch.Tensor, batch_dim: int | None = 0) -> Capture:
    """A capture of `model` called with tensors, by symbolic tracing and one run for the meta."""
    tracer = _Tracer()
    graph = tracer.trace(model)
    result = _flatten_output(graph)
    leaves = next(node for node in graph.nodes if node.op == "output").args[0]
    _Meta(model, graph).run(*args)
    names = [node.name for node in graph.nodes if node.op == "placeholder"]
    inputs = tuple(
        InputLeaf(name, name, spec_of(value), batch_dim)
        for name, value in zip(names, args, strict=True)
    )
    signature = CallSignature(
        input=_Tree(pytree.tree_flatten((args, {}))[1]),
        inputs=inputs,
        output=_Tree(result),
        outputs=tuple(OutputLeaf(batch_dim) for _ in leaves),
    )
    return Capture(
        graph=graph,
        spans=tuple(tracer.spans),
        signature=signature,
        constants=_constants(model, graph),
        model_class=f"{type(model).__module__}.{type(model).__qualname__}",
        training=model.training,
        mode="real",
        batch_size=len(args[0]) if args else 1,
    )


def plan_at(capture: Capture, *starts: str) -> PartitionPlan:
    """The plan whose stages start at the nodes named."""
    stage, stages = 0, {}
    for node in capture.body:
        if node.name in starts:
            stage += 1
        stages[node.name] = stage
    assert stage == len(starts), f"{starts} are not all among {list(stages)}"
    return PartitionPlan(stages, capture.fingerprint(), starts)


def bindings_of(
    program: StageProgram, model: nn.Module, capture: Capture, **further: Any
) -> dict[str, Any]:
    """Everything `program` has to be bound to, taken from the model and the capture."""
    tensors = {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }
    bound: dict[str, Any] = {"keyed": unkeyed, "device": torch.device("cpu"), **further}
    bound.update((local, model.get_submodule(path)) for local, path in program.modules.items())
    bound.update((local, tensors[name]) for local, name in program.tensors.items())
    for local, constant in program.constants.items():
        known = isinstance(constant, str) and constant in capture.constants
        bound[local] = capture.constants[constant] if known else constant
    return bound


@contextlib.contextmanager
def unkeyed(scope: str, draw: int) -> Iterator[None]:
    """Leaves random draws to the default generator."""
    yield


def load_stages(
    programs: Sequence[StageProgram], model: nn.Module, capture: Capture, **further: Any
) -> list[StageModule]:
    """The stages of `programs`, bound."""
    return [load(p, bindings_of(p, model, capture, **further)) for p in programs]


def run_stages(
    stages: Sequence[StageModule],
    programs: Sequence[StageProgram],
    graph: StageGraph,
    inputs: Mapping[str, Any] | Sequence[Any],
) -> tuple[Any, ...]:
    """The model's output leaves: the stages one after the other on one micro-batch.

    `inputs` are the model's inputs by name, or in the order of ``graph.inputs``.
    """
    if not isinstance(inputs, Mapping):
        inputs = dict(zip((edge.value for edge in graph.inputs), inputs, strict=True))
    values = dict(inputs)
    readers = {edge.value: edge.consumers for edge in graph.portals}
    held: dict[tuple[str, int], Any] = {}
    returned: tuple[Any, ...] = ()
    for index, (stage, program) in enumerate(zip(stages, programs, strict=True)):

        def stash(name: str, value: Any, index: int = index) -> None:
            assert name in portals_of(graph, index)
            held.update(((name, reader), value) for reader in readers[name])

        def pop(name: str, index: int = index) -> Any:
            return held.pop((name, index))

        returned = stage.forward(stash, pop, *(values[name] for name in program.inputs))
        assert isinstance(returned, tuple)
        values = dict(inputs) | dict(zip(program.outputs, returned, strict=True))
    assert not held, f"portals never popped: {list(held)}"
    computed = iter(returned)
    return tuple(
        graph.constants[index] if value is None else next(computed)
        for index, value in enumerate(graph.outputs)
    )


def portals_of(graph: StageGraph, stage: int) -> set[str]:
    """The portals that a stage makes."""
    return {edge.value for edge in graph.portals if edge.producer == stage}


def spec_of(value: Any) -> ValueSpec:
    """Shapes and dtypes of a value."""
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return TensorSpec(tuple(value.shape), dtype, value.requires_grad)
    if value is None or isinstance(value, bool | int | float | complex | str):
        return value
    if isinstance(value, tuple | list):
        return tuple(map(spec_of, value))
    if isinstance(value, dict):
        return {str(key): spec_of(item) for key, item in value.items()}
    return Opaque(type(value).__name__)


class _Tree:
    """A pytree's structure, as `fxpipe.ir.signature.Structure` wants it."""

    def __init__(self, spec: pytree.TreeSpec) -> None:
        self._spec = spec

    def unflatten(self, leaves: list[Any]) -> Any:
        return pytree.tree_unflatten(leaves, self._spec)


class _Tracer(torch.fx.Tracer):
    """Symbolic tracing that notes every module call as a span and every node's module and line."""

    def __init__(self) -> None:
        super().__init__()
        self.spans: list[Any] = []
        self._open: list[int] = []
        self._where: list[tuple[str, int]] = [("", 0)]
        self._calls: Counter[str] = Counter()

    def create_node(self, *args: Any, **kwargs: Any) -> torch.fx.Node:
        node = super().create_node(*args, **kwargs)
        path, call = self._where[-1]
        node.meta.update(path=path, call=call, source=_user_line())
        return node

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        path = self.path_of_module(m)
        call = self._calls[path]
        self._calls[path] += 1
        if self.is_leaf_module(m, path):
            made = super().call_module(m, forward, args, kwargs)
            made.node.meta["own"] = f"{path}#{call}"
            return made
        index, before = len(self.spans), len(self.graph.nodes)
        parent = self._open[-1] if self._open else None
        self.spans.append(None)
        self._open.append(index)
        self._where.append((path, call))
        result = forward(*args, **kwargs)
        self._where.pop()
        self._open.pop()
        nodes = tuple(n.name for n in list(self.graph.nodes)[before:] if n.op != "get_attr")
        found = torch.fx.node.map_aggregate((args, kwargs), _as_node)
        self.spans[index] = Span(
            path, call, nodes, found[0], found[1], dict(_outputs(result, ())), parent
        )
        return result


def _as_node(value: Any) -> Any:
    return value.node if isinstance(value, torch.fx.Proxy) else value


def _outputs(result: Any, at: tuple[str | int, ...]) -> Iterator[tuple[str, tuple[str | int, ...]]]:
    if isinstance(result, torch.fx.Proxy):
        yield result.node.name, at
    elif isinstance(result, tuple | list):
        for index, item in enumerate(result):
            yield from _outputs(item, (*at, index))
    elif isinstance(result, dict):
        for key, item in result.items():
            yield from _outputs(item, (*at, key))


def _user_line() -> str:
    frame = sys._getframe(1)
    here = (__file__, "/torch/")
    while frame.f_back is not None and any(part in frame.f_code.co_filename for part in here):
        frame = frame.f_back
    code = frame.f_code
    return f"{Path(code.co_filename).name}:{frame.f_lineno} in {code.co_name}"


def _flatten_output(graph: torch.fx.Graph) -> pytree.TreeSpec:
    output = next(node for node in graph.nodes if node.op == "output")
    plain = torch.fx.node.map_aggregate(output.args[0], lambda leaf: leaf)
    leaves, spec = pytree.tree_flatten(plain)
    output.args = (tuple(leaves),)
    return spec


def _constants(model: nn.Module, graph: torch.fx.Graph) -> dict[str, Any]:
    owned = {
        *(name for name, _ in model.named_parameters(remove_duplicate=False)),
        *(name for name, _ in model.named_buffers(remove_duplicate=False)),
    }
    found = {}
    for node in graph.nodes:
        if node.op == "get_attr" and node.target not in owned:
            value: Any = model
            for part in str(node.target).split("."):
                value = getattr(value, part)
            found[str(node.target)] = value
    return found


class _CountDraws(TorchDispatchMode):
    """Counts operators that take random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.draws = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.draws += draws_random(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


class _Meta(torch.fx.Interpreter):
    """Runs a graph once and writes the documented facts about each node into its meta."""

    def __init__(self, model: nn.Module, graph: torch.fx.Graph) -> None:
        super().__init__(model, garbage_collect_values=False, graph=graph)
        self._model = model
        self._draws: Counter[str] = Counter()
        self._storages: dict[int, int] = {}
        self._alive: list[Any] = []

    def run_node(self, n: torch.fx.Node) -> Any:
        if n.op == "output":
            return super().run_node(n)
        read = [
            tensor
            for node in n.all_input_nodes
            for tensor in pytree.tree_leaves(self.env[node])
            if isinstance(tensor, torch.Tensor)
        ]
        buffers = dict(self._model.named_buffers())
        versions = [tensor._version for tensor in read]
        before = {name: buffer.clone() for name, buffer in buffers.items()}
        with _CountDraws() as count:
            value = super().run_node(n)
        self._alive.append(value)
        tensors = [t for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]
        n.meta.update(
            spec=spec_of(value),
            storages=tuple(dict.fromkeys(map(self._storage, tensors))),
            mutates=tuple(
                self._storage(t) for t, v in zip(read, versions, strict=True) if t._version != v
            ),
            buffers=tuple(name for name, b in buffers.items() if not torch.equal(b, before[name])),
            draws=count.draws,
            regions=(),
            via="call",
        )
        if count.draws:
            scope = n.meta.get("own") or f"{n.meta['path']}#{n.meta['call']}"
            n.meta["rng"] = (scope, self._draws[scope])
            self._draws[scope] += count.draws
        return value

    def _storage(self, tensor: torch.Tensor) -> int:
        return self._storages.setdefault(tensor.untyped_storage()._cdata, len(self._storages))
