"""Tensors that a run of a model leaves in attributes, read by the run after it: state."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.fx
from torch import nn

from fxpipe import ops
from fxpipe.capture.fallback import KeepWholeError
from fxpipe.capture.leaves import is_layer
from fxpipe.capture.remedies import CARRIED
from fxpipe.capture.restore import ModelState
from fxpipe.ir.spec import TensorSpec

if TYPE_CHECKING:
    from fxpipe.capture.recorder import Recorder
    from fxpipe.capture.values import Values

_STORES: Final = (ops.set_attribute, ops.register_buffer)
_HELPERS: Final = (*_STORES, ops.set_item)
"""Helpers of ours that compute nothing out of anything else than their arguments."""


class CarriedError(KeepWholeError):
    """A run reads a tensor that an earlier one has left.

    Attributes:
        owner: path of the module that holds it; None if it is not known.
        name: of its attribute there.
    """

    owner: str | None = None
    name = ""


class Leftovers:
    """What an earlier run left, for the recording of the next one.

    A tensor computed from constants alone, such as a table made at first use, is no state: every run
    would compute the same.

    Args:
        left: id → the tensor, the path of the module that holds it (None: it is not known), and the name
            of its attribute there.
        values: of the earlier run.
        fixed: finds that run's `fixed_nodes`.
        constants: of that run.

    Attributes:
        made_by: nodes of the recording that read such tables → the earlier run's nodes that made them.
        constants: of the earlier run.
    """

    def __init__(
        self,
        left: Mapping[int, tuple[torch.Tensor, str | None, str]] | None = None,
        values: Values | None = None,
        fixed: Callable[[], frozenset[torch.fx.Node]] = frozenset,
        constants: Mapping[str, Any] | None = None,
    ) -> None:
        self._left = dict(left or {})
        self._values, self._find_fixed = values, fixed
        self._fixed: frozenset[torch.fx.Node] | None = None
        self.constants = constants or {}
        self.made_by: dict[torch.fx.Node, torch.fx.Node] = {}

    def __contains__(self, tensor: torch.Tensor) -> bool:
        """Whether the earlier run has left a tensor."""
        return id(tensor) in self._left

    def is_state(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor was left that another run would compute otherwise."""
        return tensor in self and self._table(tensor) is None

    def refuse_state(self, tensor: torch.Tensor, path: str, source: str) -> None:
        """Nothing, unless a tensor is state.

        Raises:
            CarriedError: if it is; `path` and `source` say where it is read.
        """
        if self.is_state(tensor):
            _, owner, name = self._left[id(tensor)]
            which = f"in its attribute {name!r} " if name else ""
            error = CarriedError(
                f"it goes on with a tensor that its run before has left {which}(from one micro-batch to "
                "the next), which a recording would freeze",
                path,
                source,
                remedy=CARRIED,
            )
            error.owner, error.name = owner, name
            raise error

    def note(self, tensor: torch.Tensor, node: torch.fx.Node) -> None:
        """A node of the recording reads a tensor."""
        made = self._table(tensor) if tensor in self else None
        if made is not None:
            self.made_by[node] = made

    def maker(self, tensor: torch.Tensor) -> str | None:
        """Path of the module that made a tensor in the earlier run; None if it is not known."""
        return None if self._values is None else self._values.maker(tensor)

    def _table(self, tensor: torch.Tensor) -> torch.fx.Node | None:
        """The node that made a tensor out of constants; None if it is made of anything else."""
        made = None if self._values is None else self._values.known(tensor)
        if made is None:
            return None
        if self._fixed is None:
            self._fixed = self._find_fixed()
        return made if made in self._fixed else None


def left_by(earlier: Recorder, held: ModelState) -> Leftovers:
    """What a run has left for the next one.

    Tensors that the model held before, parameters and buffers are no leftovers: a graph reads them as
    they are by then.
    """
    model = earlier.model
    own = {id(each) for each in (*model.parameters(), *model.buffers())}
    own |= {id(constant) for constant in earlier.script.constants.values()}
    left: dict[int, tuple[torch.Tensor, str | None, str]] = {
        id(tensor): (tensor, None, "")
        for tensor in earlier.values.tensors()
        if id(tensor) not in own and tensor not in held.held
    }
    paths = earlier.modules.paths
    for key, (tensor, module, name) in held.left_tensors().items():
        left[key] = tensor, paths[id(module)], name

    def fixed() -> frozenset[torch.fx.Node]:
        return fixed_in(earlier, held)

    return Leftovers(left, earlier.values, fixed, earlier.script.constants)


def fixed_in(recorder: Recorder, held: ModelState) -> frozenset[torch.fx.Node]:
    """The `fixed_nodes` of a recording that was just made."""
    replaced = held.held_in(_changed(held))
    weights = {name for name, _ in recorder.model.named_parameters(remove_duplicate=False)}
    script = recorder.script
    return fixed_nodes(script.graph, script.constants, weights, {id(each) for each in replaced})


def changed_tensors(model: nn.Module, held: ModelState) -> dict[str, tuple[str, ...]]:
    """Attributes in which a run has put other tensors: path of the module → names.

    Layers of torch.nn do not count: what they keep they make anew.
    """
    paths = {id(module): path for path, module in model.named_modules()}
    found: dict[str, dict[str, None]] = {}
    for module, name in _changed(held):
        if not is_layer(module):
            found.setdefault(paths[id(module)], {})[name] = None
    return {path: tuple(names) for path, names in found.items()}


def _changed(held: ModelState) -> list[tuple[nn.Module, str]]:
    left = [(module, name) for _, module, name in held.left_tensors().values()]
    return [*left, *((module, name) for _, module, name in held.gone_tensors())]


def fixed_nodes(
    graph: torch.fx.Graph,
    constants: Mapping[str, Any],
    weights: Collection[str],
    replaced: Collection[int],
) -> frozenset[torch.fx.Node]:
    """The nodes that do the same in every run: what they compute depends on constants alone.

    Buffers that nothing writes into are constant, and so are modules.

    Args:
        constants: of the graph.
        weights: names of the model's parameters.
        replaced: ids of tensors in whose attributes there are others by now.
    """
    mutated = {storage for node in graph.nodes for storage in node.meta.get("mutates", ())}
    buffers = {name for node in graph.nodes for name in node.meta.get("buffers", ())}

    def is_constant(node: torch.fx.Node) -> bool:
        name = str(node.target)
        if not mutated.isdisjoint(node.meta["storages"]):
            return False
        if name in constants:
            return id(constants[name]) not in replaced
        return name not in weights and name not in buffers

    fixed = {
        node
        for node in graph.nodes
        if (is_constant(node) if node.op == "get_attr" else _only_computes(node))
    }
    while True:
        before = len(fixed)
        written = {
            storage
            for node in graph.nodes
            if node not in fixed
            for storage in node.meta.get("mutates", ())
        }
        for node in graph.nodes:
            inputs_move = any(each not in fixed for each in node.all_input_nodes)
            if inputs_move or not written.isdisjoint(node.meta.get("storages", ())):
                fixed.discard(node)
        if len(fixed) == before:
            return frozenset(fixed)


def _only_computes(node: torch.fx.Node) -> bool:
    """Whether a node does the same whenever its inputs are the same, and nothing else than that."""
    if node.op not in ("call_function", "call_method") or node.meta.get("draws"):
        return False
    if node.target in _STORES:
        return True
    is_helper = getattr(node.target, "__module__", "") == ops.__name__
    return _has_tensors(node.meta["spec"]) and (not is_helper or node.target in _HELPERS)


def _has_tensors(spec: Any) -> bool:
    match spec:
        case TensorSpec():
            return True
        case tuple():
            return any(map(_has_tensors, spec))
        case dict():
            return any(map(_has_tensors, spec.values()))
        case _:
            return False
