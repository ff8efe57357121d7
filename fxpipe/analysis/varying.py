"""Which of a model's results follow from the rows of the batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from fxpipe.analysis.effects import is_random, storages, written_storages

if TYPE_CHECKING:
    import torch.fx

    from fxpipe.ir.capture import Capture

_LOOK_AT_KIND_ONLY: Final = frozenset(
    {
        "new_zeros",
        "new_ones",
        "new_empty",
        "new_full",
        "zeros_like",
        "ones_like",
        "full_like",
        "empty_like",
    }
)
"""Operations that take no values from their first argument."""


def varying_outputs(capture: Capture) -> frozenset[int]:
    """Positions of the output leaves that depend on what is cut into micro-batches, or on chance.

    They may differ from micro-batch to micro-batch, even where they happen to be equal; a table or a
    weight among the results does not.
    """
    batched = {
        leaf.placeholder: leaf.batch_dim
        for leaf in capture.signature.placeholders
        if leaf.batch_dim is not None
    }
    varying: set[torch.fx.Node] = set()
    memory: set[int] = set()
    *body, output = capture.graph.nodes
    for node in body:
        reads = node.all_input_nodes
        if _is_size_of_other_dimension(node, batched):
            continue
        if _takes_no_values(node):
            reads = [read for read in reads if read is not node.args[0]]
        if (
            node.name in batched
            or is_random(node)
            or any(read in varying for read in reads)
            or not memory.isdisjoint(storages(node))
        ):
            varying.add(node)
            memory.update(written_storages(node))
    return frozenset(
        at
        for at, leaf in enumerate(output.args[0])
        if leaf in varying or (hasattr(leaf, "meta") and not memory.isdisjoint(storages(leaf)))
    )


def _is_size_of_other_dimension(node: torch.fx.Node, batched: Mapping[str | None, int]) -> bool:
    """Whether a node takes a size of an input that is the same in every micro-batch: a length."""
    if node.op != "call_method" or node.target != "size" or len(node.args) != 2:
        return False
    owner, dim = node.args
    return bool(batched.get(getattr(owner, "name", None), dim) != dim)


def _takes_no_values(node: torch.fx.Node) -> bool:
    target = node.target
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    return node.op in ("call_method", "call_function") and name in _LOOK_AT_KIND_ONLY
