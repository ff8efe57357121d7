"""Which parameters each node reads, and which are read by several nodes or stages (tied weights).

A parameter counts once, however many names it has: all of them are replaced by the first one that
``model.named_parameters()`` gives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from fxpipe.ir.capture import Capture


def node_parameters(
    capture: Capture, model: torch.nn.Module
) -> dict[str, tuple[torch.nn.Parameter, ...]]:
    """Node name → the parameters it reads, for every node of the body that reads any.

    A module that is called whole reads all of its parameters.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    parameters = dict(model.named_parameters(remove_duplicate=False))
    found: dict[str, tuple[torch.nn.Parameter, ...]] = {}
    for node in capture.body:
        reads = {
            id(p): p
            for source in node.all_input_nodes
            if source.op == "get_attr" and (p := parameters.get(str(source.target))) is not None
        }
        if node.op == "call_module":
            reads.update((id(p), p) for p in modules[str(node.target)].parameters())
        if reads:
            found[node.name] = tuple(reads.values())
    return found


def parameter_names(capture: Capture, model: torch.nn.Module) -> dict[str, tuple[str, ...]]:
    """Node name → names of the parameters it reads, for every node of the body that reads any."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        node: tuple(names[id(parameter)] for parameter in parameters)
        for node, parameters in node_parameters(capture, model).items()
    }


def parameter_bytes(capture: Capture, model: torch.nn.Module) -> dict[str, int]:
    """Node name → bytes of the parameters it reads, for every node of the body that reads any."""
    return {
        node: sum(parameter.nbytes for parameter in parameters)
        for node, parameters in node_parameters(capture, model).items()
    }


def shared_parameters(capture: Capture, model: torch.nn.Module) -> dict[str, tuple[str, ...]]:
    """Parameter name → the nodes that read it, for the parameters read by more than one node."""
    readers: dict[str, list[str]] = {}
    for node, names in parameter_names(capture, model).items():
        for name in names:
            readers.setdefault(name, []).append(node)
    return {name: tuple(nodes) for name, nodes in readers.items() if len(nodes) > 1}
