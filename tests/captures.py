"""Captures made without the recorder: a chain of given costs, or a module traced by torch.fx."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx
from torch.utils._pytree import tree_flatten, tree_map

from fxpipe.ir.capture import Capture, Span
from fxpipe.ir.cost import CostProfile, NodeCost
from fxpipe.ir.signature import CallSignature, InputLeaf, OutputLeaf
from fxpipe.ir.spec import TensorSpec


def chain_capture(size: int, spec: TensorSpec | None = None) -> Capture:
    """A chain of `size` nodes, each reading the one before it; all values have one spec."""
    spec = spec or TensorSpec((1, 1), "float32", True)
    graph = torch.fx.Graph()
    value = graph.placeholder("x")
    value.meta["spec"] = spec
    for index in range(size):
        value = graph.call_function(torch.neg, (value,))
        value.meta.update(spec=spec, path="", call=0, source=f"model.py:{index + 1} in forward")
    graph.output((value,))
    return finish(graph)


def finish(graph: torch.fx.Graph, spans: Sequence[Span] = (), **changes: Any) -> Capture:
    """The capture around a graph whose nodes have their meta already."""
    leaves, outputs = [], []
    for node in graph.nodes:
        if node.op == "placeholder":
            leaves.append(InputLeaf(node.name, node.name, node.meta.get("spec"), 0))
        if node.op == "output":
            outputs = [OutputLeaf(0, True) for _ in node.args[0]]
    _, inputs = tree_flatten((tuple(leaves), {}))
    _, output = tree_flatten(tuple(outputs))
    options: dict[str, Any] = {
        "constants": {},
        "model_class": "tests.Model",
        "training": True,
        "mode": "real",
        "batch_size": 1,
    }
    options.update(changes)
    signature = CallSignature(inputs, tuple(leaves), output, tuple(outputs))
    return Capture(graph, tuple(spans), signature, **options)


def costs_of(capture: Capture, seconds: Sequence[float]) -> CostProfile:
    """A profile that gives the body's nodes these costs: a third forward, the rest backward."""
    nodes = {
        node.name: NodeCost(cost / 3, cost - cost / 3)
        for node, cost in zip(capture.body, seconds, strict=True)
    }
    return CostProfile(nodes, "measure", capture.batch_size, capture.fingerprint())


class _Storages:
    """Numbers for the memory of tensors, kept alive so that no address is used twice."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._alive: list[object] = []

    def of(self, value: Any) -> tuple[int, ...]:
        found = []
        for leaf in tree_flatten(value)[0]:
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                self._alive.append(storage)
                number = self._numbers.setdefault(storage._cdata, len(self._numbers))
                found.append(number)
        return tuple(dict.fromkeys(found))


class _Notes(torch.fx.Interpreter):
    """Runs a traced module once and writes specs, storages, mutations and buffers into the meta."""

    storages: _Storages

    def run_node(self, n: torch.fx.Node) -> Any:
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        tensors = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, torch.Tensor)]
        before = [(t, t._version) for t in tensors]
        module = self.submodules.get(n.target) if n.op == "call_module" else None
        buffers = dict(module.named_buffers(prefix=n.target)) if module is not None else {}
        versions = {name: buffer._version for name, buffer in buffers.items()}
        value = super().run_node(n)
        n.meta["spec"] = tree_map(_spec, value)
        n.meta["storages"] = self.storages.of(value)
        n.meta["mutates"] = self.storages.of([t for t, v in before if t._version != v])
        n.meta["buffers"] = tuple(k for k, b in buffers.items() if b._version != versions[k])
        n.meta["draws"] = int(isinstance(module, torch.nn.Dropout) and module.training)
        return value


def _spec(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return TensorSpec(tuple(value.shape), dtype, value.requires_grad)
    return value


def traced(model: torch.nn.Module, *inputs: torch.Tensor) -> Capture:
    """A capture of a module that ``torch.fx.symbolic_trace`` can read; its layers are the leaves.

    The spans are those of its own children that are no layers of torch.nn.
    """
    graph = torch.fx.Tracer().trace(model)
    notes = _Notes(model, graph=graph)
    notes.storages = _Storages()
    notes.garbage_collect_values = False
    notes.run(*inputs)
    calls: dict[str, int] = {}
    for node in graph.nodes:
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        inner = stack[:-1] if node.op == "call_module" else stack
        path = inner[-1][0] if inner else ""
        node.meta.setdefault("path", path)
        node.meta["call"] = calls.setdefault(path, 0)
        node.meta["source"] = f"model.py: {node.name}"
    _flat_output(graph)
    return finish(graph, _spans(graph), batch_size=int(inputs[0].shape[0]))


def _flat_output(graph: torch.fx.Graph) -> None:
    output = next(node for node in graph.nodes if node.op == "output")
    leaves = tree_flatten(output.args[0])[0]
    output.args = (tuple(leaves),)


def _spans(graph: torch.fx.Graph) -> list[Span]:
    found: dict[str, list[str]] = {"": []}
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        path = node.meta["path"]
        while True:
            found.setdefault(path, []).append(node.name)
            if not path:
                break
            path = path.rpartition(".")[0]
    paths = sorted(found, key=lambda path: (path != "", path.count(".")))
    return [
        Span(p, 0, tuple(found[p]), (), {}, {}, paths.index(p.rpartition(".")[0]) if p else None)
        for p in paths
    ]


GETITEM = operator.getitem
