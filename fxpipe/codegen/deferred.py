"""Which operators of a stage can put off the gradients of their weights."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn

from fxpipe.codegen.split import StagePart
from fxpipe.ir.stage import WeightScope
from fxpipe.portals.calls import ModuleCall
from fxpipe.products import FUNCTIONS, LAYERS, METHODS


@dataclass(frozen=True)
class Deferred:
    """What of a stage is run through ``self.deferring``.

    Attributes:
        layers: paths of layers, wherever they are called.
        scopes: modules whose own forward calls such operators.
        nodes: nodes that the stage's source itself runs so.
        left: names of the trained parameters whose gradients come with those of the inputs all the same.
    """

    layers: tuple[str, ...] = ()
    scopes: tuple[WeightScope, ...] = ()
    nodes: frozenset[torch.fx.Node] = frozenset()
    left: tuple[str, ...] = ()


def deferred(part: StagePart, model: nn.Module) -> Deferred:
    """The operators of a stage that can be split.

    A parameter with a use that cannot be split is left alone altogether: one part of its gradient
    would come in the input pass and the other one in the weight pass, and the sum in another order.
    So is a stage that differentiates inside its forward: its weights are used in that backward too.
    """
    owners = dict(model.named_parameters(remove_duplicate=False))
    uses = {node: read for node in part.nodes if (read := _parameters_of(node, owners, model))}
    if any(node.target is torch.autograd.grad for node in part.nodes):
        return Deferred(left=_names(uses, model))
    whole = {node for node in uses if _can_split(node, owners, model)}
    while True:
        left = {id(p) for node, read in uses.items() if node not in whole for p in read}
        mixed = {node for node in whole if any(id(p) in left for p in uses[node])}
        if not mixed:
            break
        whole -= mixed
    found = _sorted(part, [node for node in part.nodes if node in whole])
    others = {node: read for node, read in uses.items() if node not in whole}
    return replace(found, left=_names(others, model))


def _names(uses: Mapping[torch.fx.Node, Sequence[Tensor]], model: nn.Module) -> tuple[str, ...]:
    """The names of the trained parameters among those used."""
    used = {id(p) for read in uses.values() for p in read if p.requires_grad}
    return tuple(name for name, p in model.named_parameters() if id(p) in used)


def _sorted(part: StagePart, nodes: Iterable[torch.fx.Node]) -> Deferred:
    called = {node for step in part.steps if isinstance(step, ModuleCall) for node in step.nodes}
    layers: dict[str, None] = {}
    scopes: dict[str, dict[str, None]] = defaultdict(dict)
    written = set()
    for node in nodes:
        if node.op == "call_module":
            layers[str(node.target)] = None
        elif node in called:
            names = (str(read.target) for read in node.all_input_nodes if read.op == "get_attr")
            scopes[node.meta["path"]].update(dict.fromkeys(names))
        else:
            written.add(node)
    return Deferred(
        tuple(layers),
        tuple(WeightScope(path, tuple(names)) for path, names in scopes.items()),
        frozenset(written),
    )


def _parameters_of(
    node: torch.fx.Node, owners: Mapping[str, Tensor], model: nn.Module
) -> tuple[Tensor, ...]:
    found = [
        owners[str(read.target)]
        for read in node.all_input_nodes
        if read.op == "get_attr" and str(read.target) in owners
    ]
    if node.op == "call_module":
        found.extend(model.get_submodule(str(node.target)).parameters())
    return tuple(found)


def _can_split(node: torch.fx.Node, owners: Mapping[str, Tensor], model: nn.Module) -> bool:
    if node.op == "call_module":
        return _is_splittable_layer(model.get_submodule(str(node.target))) and _is_plain_call(node)
    known = (
        node.target in METHODS
        if node.op == "call_method"
        else node.op == "call_function" and node.target in FUNCTIONS
    )
    if not known or node.meta.get("draws"):
        return False
    # Only whole parameters, as arguments of their own; the rest is numbers.
    named = [value for value in node.kwargs.values() if any(_nodes_in(value))]
    return (
        not named
        and all(
            isinstance(value, torch.fx.Node) or not any(_nodes_in(value)) for value in node.args
        )
        and not _has_special_embedding(node)
    )


def _is_splittable_layer(layer: nn.Module) -> bool:
    if type(layer) not in LAYERS or "forward" in layer.__dict__:
        return False
    if isinstance(layer, nn.Embedding):
        return not (layer.sparse or layer.scale_grad_by_freq or layer.max_norm is not None)
    return getattr(layer, "padding_mode", "zeros") == "zeros"


def _is_plain_call(node: torch.fx.Node) -> bool:
    return len(node.args) + len(node.kwargs) == 1


def _has_special_embedding(node: torch.fx.Node) -> bool:
    """Whether a lookup is one whose gradient is sparse or scaled, or that writes into its weight."""
    if node.target is not F.embedding:
        return False
    given = dict(zip(("input", "weight", "padding_idx", *_SPECIAL), node.args, strict=False))
    given.update(node.kwargs)
    return any(given.get(name) for name in ("max_norm", "scale_grad_by_freq", "sparse"))


_SPECIAL: Final = ("max_norm", "norm_type", "scale_grad_by_freq", "sparse")


def _nodes_in(value: Any) -> Iterator[torch.fx.Node]:
    found: list[torch.fx.Node] = []
    torch.fx.node.map_arg(value, found.append)
    return iter(found)
