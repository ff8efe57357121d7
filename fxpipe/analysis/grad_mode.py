"""In which grad mode a model was recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fxpipe import ops
from fxpipe.analysis.effects import storages
from fxpipe.ir.spec import is_differentiable

if TYPE_CHECKING:
    from fxpipe.ir.capture import Capture


def followed(capture: Capture) -> bool:
    """Whether autograd followed the forward from its start, as in training.

    Regions of another mode are steps of the graph, so the first of them tells. Without any, values tell
    that a gradient comes back to; a weight written in place is one of them in any mode,
    and so is what is marked by ``requires_grad_``.
    """
    for node in capture.body:
        if node.target is ops.set_grad_enabled:
            return not node.args[0]
    outside = [node for node in capture.graph.nodes if node.op in ("get_attr", "placeholder")]
    given = {key for node in outside for key in storages(node)}
    return any(
        is_differentiable(node.meta.get("spec")) and given.isdisjoint(storages(node))
        for node in capture.body
        if node.target not in ("requires_grad_", ops.set_attribute)
    )
