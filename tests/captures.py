"""Chains of given costs, as captures: for partitioners, which see no more of a model than that."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.fx
from torch.utils._pytree import tree_structure

from fxpipe.ir.capture import Capture
from fxpipe.ir.cost import CostProfile, NodeCost
from fxpipe.ir.signature import CallSignature, InputLeaf, OutputLeaf
from fxpipe.ir.spec import TensorSpec


class Structure:
    """The structure of some nested containers, as `CallSignature` wants it."""

    def __init__(self, example: object) -> None:
        self._spec = tree_structure(example)

    def unflatten(self, leaves: list[object]) -> object:
        return torch.utils._pytree.tree_unflatten(leaves, self._spec)


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
    return capture_of(graph)


def capture_of(graph: torch.fx.Graph) -> Capture:
    """The capture around a graph whose nodes have their meta; every placeholder is batched."""
    inputs = tuple(
        InputLeaf(node.name, node.name, node.meta.get("spec"), 0)
        for node in graph.nodes
        if node.op == "placeholder"
    )
    returned = next(node for node in graph.nodes if node.op == "output").args[0]
    outputs = tuple(OutputLeaf(0) for _ in returned)
    signature = CallSignature(Structure((inputs, {})), inputs, Structure(outputs), outputs)
    return Capture(graph, (), signature, {}, "tests.Model", True, "real", 1)


def costs_of(capture: Capture, seconds: Sequence[float]) -> CostProfile:
    """A profile that gives the body's nodes these costs: a third forward, the rest backward."""
    nodes = {
        node.name: NodeCost(cost / 3, cost - cost / 3)
        for node, cost in zip(capture.body, seconds, strict=True)
    }
    return CostProfile(nodes, "measure", capture.batch_size, capture.fingerprint())
