"""A forward run of a capture, node by node, that notes what each node costs.

The nodes build one autograd graph, as the model's own forward would. Autograd numbers its nodes in the
order they are made, so the numbers made while an fx node ran say which backward work is that node's.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

import torch
import torch.fx
from torch.autograd.graph import GradientEdge, get_gradient_edge, saved_tensors_hooks
from torch.utils._pytree import tree_leaves

from fxpipe import ops
from fxpipe.ir.spec import is_differentiable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fxpipe.analysis.meter import Meter
    from fxpipe.ir.capture import Capture

_SKIP = ("placeholder", "get_attr", "output")


class MeteredRun(torch.fx.Interpreter):
    """One forward of a capture on given inputs.

    Attributes:
        forward: node → seconds.
        flops: node → operations, if the meter counts them.
        saved: node → bytes it was the first to save for backward; parameters, buffers and the inputs of
            the model are left out, and what transforms of ``torch.func`` save. Filled by
            `run_counting_saved` only.
        entries: where gradients end that are no parameter's: at values made of nothing differentiable
            but parameters (the first convolution's output, an embedding).
    """

    def __init__(self, capture: Capture, model: torch.nn.Module, meter: Meter) -> None:
        super().__init__(model, graph=capture.graph)
        self.meter = meter
        self.forward: dict[str, float] = {}
        self.flops: dict[str, int] = {}
        self.saved: dict[str, int] = {}
        self.entries: list[GradientEdge] = []
        self._constants = capture.constants
        self._hooks: saved_tensors_hooks | None = None
        self._of_parameters: set[torch.fx.Node] = set()
        self._names: list[str] = []
        self._numbers: list[int] = []

    def run_counting_saved(self, inputs: Sequence[Any]) -> Any:
        """`run`, under hooks that see what is saved for backward; times are then not to be trusted."""
        tensors = [*self._model_tensors(), *inputs]
        seen = {key for t in tensors if isinstance(t, torch.Tensor) and (key := _storage(t))}
        names, saved = self._names, self.saved  # not the run itself, which holds the graph's edges

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            key = _storage(tensor)
            if key is not None and key not in seen and names:
                seen.add(key)
                saved[names[-1]] += tensor.untyped_storage().nbytes()
            return tensor.detach()

        self._hooks = saved_tensors_hooks(pack, lambda tensor: tensor)
        with self._hooks:
            return self.run(*inputs)

    def owner(self, autograd_node: torch.autograd.graph.Node) -> str | None:
        """The fx node that made an autograd node; None if it stood before the run (a parameter)."""
        number = autograd_node._sequence_nr()
        index = bisect_right(self._numbers, number) - 1
        return self._names[index] if 0 <= index and number < self._end else None

    def run_node(self, n: torch.fx.Node) -> Any:
        """The node's value; its cost is noted."""
        if n.op in _SKIP:
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        self._names.append(n.name)
        self._numbers.append(_next_number())
        self.saved[n.name] = 0
        operations, start = self.meter.flops(), self.meter.now()
        value = self.evaluate(n, args, kwargs)
        self.forward[n.name] = self.meter.now() - start
        self.flops[n.name] = self.meter.flops() - operations
        self._end = _next_number()
        self._note_entry(n, value)
        return value

    def evaluate(self, node: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The value of a node of the body; without hooks if it bears none (transforms of torch.func)."""
        try:
            return self._evaluate(node, args, kwargs)
        except RuntimeError as error:
            if self._hooks is None or "saved tensor hooks" not in str(error):
                raise
        self._hooks.__exit__()
        try:
            return self._evaluate(node, args, kwargs)
        finally:
            self._hooks.__enter__()

    def _evaluate(self, node: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if node.op == "call_module" and node.meta.get("via", "call") != "call":
            module = self.fetch_attr(str(node.target))
            return ops.entrance(module, node.meta["via"])(*args, **kwargs)
        return getattr(self, node.op)(node.target, args, kwargs)

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        """A parameter or buffer of the model, or a constant of the capture."""
        if target in self._constants:
            return self._constants[target]
        return self.fetch_attr(target)

    def _note_entry(self, node: torch.fx.Node, value: Any) -> None:
        """Remember the edge of a value that is the first on its path to need a gradient."""
        sources = node.all_input_nodes
        held = [s for s in sources if s.op == "get_attr" or s in self._of_parameters]
        if node.op != "call_module" and held and len(held) == len(sources):
            self._of_parameters.add(node)  # a weight transposed or expanded: still a parameter's
            return
        if any(s not in held and is_differentiable(s.meta.get("spec")) for s in sources):
            return
        for leaf in tree_leaves(value):
            if isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None:
                self.entries.append(get_gradient_edge(leaf))

    def _model_tensors(self) -> list[torch.Tensor]:
        return [*self.module.parameters(), *self.module.buffers()]


def _next_number() -> int:
    return int(torch._C._autograd._get_sequence_nr())


def _storage(tensor: torch.Tensor) -> int | None:
    """Identity of a tensor's memory; None if it has none of its own (sparse tensors)."""
    if tensor.layout is not torch.strided:
        return None
    return int(tensor.untyped_storage()._cdata)
