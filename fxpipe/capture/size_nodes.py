"""The nodes that compute numbers from the sizes of a call."""

from __future__ import annotations

from typing import Any

import torch.fx

from fxpipe.capture.axes import Axis, Sizes
from fxpipe.capture.formulas import Formula, Size, identity
from fxpipe.capture.naming import safe
from fxpipe.capture.record import Recording


class SizeNodes:
    """Writes formulas into a recording's graph, one node for each, right after its inputs.

    Args:
        recording: the recording; its graph and `Recording.formulas` are written into.
        sizes: its own sizes come first.
    """

    def __init__(self, recording: Recording, sizes: Sizes) -> None:
        self._recording, self._sizes = recording, sizes
        self._nodes: dict[Formula, torch.fx.Node] = {}

    def node(self, formula: Formula) -> torch.fx.Node:
        """The node of a formula; those of the formulas and sizes it is made of stand before it."""
        if formula not in self._nodes:
            is_size = len(formula.axes) == 1 and formula == identity(formula.axes[0])
            node = self._size(formula.axes[0]) if is_size else self._number(formula)
            self._nodes[formula] = _described(node, formula(self._sizes.points[0]))
            self._recording.formulas[node] = formula
        return self._nodes[formula]

    def _number(self, formula: Formula) -> torch.fx.Node:
        args = []
        for arg in formula.args:
            if isinstance(arg, Size):
                args.append(self.node(identity(arg.axis)))
            else:
                args.append(self.node(arg) if isinstance(arg, Formula) else arg)
        name = "_".join(_number_name(self._sizes.axes[axis]) for axis in formula.axes)
        return self._insert("call_function", formula.function, tuple(args), name)

    def _size(self, axis: int) -> torch.fx.Node:
        found = self._sizes.axes[axis]
        leaf, dim = found.places[0]
        name = "batch_size" if found.is_batch else found.mark.name
        return self._insert("call_method", "size", (self._recording.placeholders[leaf], dim), name)

    def _insert(self, op: str, target: Any, args: tuple[Any, ...], name: str) -> torch.fx.Node:
        graph = self._recording.graph
        before = [*self._nodes.values()] or [n for n in graph.nodes if n.op == "placeholder"]
        with graph.inserting_after(before[-1]):
            return graph.create_node(op, target, args, {}, name=safe(name))


def _number_name(axis: Axis) -> str:
    return "rows" if axis.is_batch else axis.mark.name


def _described(node: torch.fx.Node, value: float) -> torch.fx.Node:
    node.meta.update(
        path="", call=0, source="", spec=value, storages=(), mutates=(), buffers=(), draws=0, regions=()
    )  # fmt: skip
    return node
