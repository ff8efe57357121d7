"""What is told of the modules that stay whole."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.fx
from torch import nn

from fxpipe.capture import remedies
from fxpipe.capture.fallback import Decisions
from fxpipe.capture.leaves import is_layer, leaf_reason
from fxpipe.capture.naming import qualified_class
from fxpipe.ir.capture import LeafReport


def leaf_reports(
    model: nn.Module, graph: torch.fx.Graph, decisions: Decisions
) -> tuple[LeafReport, ...]:
    """Every module that is one node although it is no layer of torch.nn, and why.

    First those that turned out to stay whole while the model was recorded, in the order in which they
    did, then those that hide their code from the start.
    """
    return (*_by_fallback(model, decisions), *_by_policy(model, graph, decisions))


def _by_fallback(model: nn.Module, decisions: Decisions) -> Iterator[LeafReport]:
    for path, why in decisions.leaves.items():
        if any(path.startswith(f"{outer}.") for outer in decisions.leaves):
            continue  # the module around it turned out to stay whole later
        yield LeafReport(
            path=path,
            module_class=qualified_class(model.get_submodule(path)),
            reason=why.reason,
            source=why.source,
            operation=why.operation,
            remedy=why.remedy,
        )


def _by_policy(
    model: nn.Module, graph: torch.fx.Graph, decisions: Decisions
) -> Iterator[LeafReport]:
    seen: set[str] = set(decisions.leaves)
    for node in graph.nodes:
        path = str(node.target)
        if node.op != "call_module" or path in seen:
            continue
        seen.add(path)
        module = model.get_submodule(path)
        if not is_layer(module):
            reason = leaf_reason(module) or "it computes otherwise where it is watched"
            source = node.meta["source"]
            yield LeafReport(path, qualified_class(module), reason, source, "", _remedy(module))


def _remedy(module: nn.Module) -> str:
    if module._backward_hooks or module._backward_pre_hooks:
        return remedies.BACKWARD_HOOKS
    if isinstance(module, torch.jit.ScriptModule) or _is_from(module, "torch._dynamo"):
        return remedies.COMPILED
    if isinstance(module, nn.TransformerEncoder):
        return remedies.FAST_PATH
    return remedies.UNWRAP


def _is_from(module: nn.Module, package: str) -> bool:
    return any(cls.__module__.startswith(package) for cls in type(module).__mro__)
