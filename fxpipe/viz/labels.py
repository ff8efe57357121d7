"""Short names for the nodes of a capture, as the drawings of stage graphs take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fxpipe.ir.capture import Capture
from fxpipe.ir.plan import PartitionPlan

if TYPE_CHECKING:
    import torch.fx


def labels(capture: Capture) -> dict[str, str]:
    """Node name → where it stands in the model: the called module's path, or ``path.operation``."""
    return {node.name: _label(node) for node in capture.body}


def _label(node: torch.fx.Node) -> str:
    if node.op == "call_module":
        return str(node.target)
    path = node.meta.get("path", "")
    target = node.target
    operation = target if isinstance(target, str) else getattr(target, "__name__", str(target))
    return f"{path}.{operation}" if path else operation


def stage_rows(
    plan: PartitionPlan, names: Mapping[str, str], stage: int, limit: int = 16
) -> tuple[str, ...]:
    """What a stage consists of, in `limit` lines at most: runs of nodes with a common path.

    Paths are cut to the greatest depth at which the lines suffice: ``down1.conv``, or ``down1 ×14``
    for fourteen nodes under it.

    Args:
        plan: which nodes are in the stage.
        names: node name → label with dots (see `labels`); a node without one is shown by its name.
        stage: the stage.
        limit: number of lines.
    """
    paths = [names.get(node, node).split(".") for node in plan.nodes_of(stage)]
    rows: list[str] = []
    for depth in range(max(map(len, paths), default=1), 0, -1):
        rows = _runs([".".join(path[:depth]) for path in paths])
        if len(rows) <= limit:
            return tuple(rows)
    kept = rows[: limit - 1]
    return (*kept, f"… {len(rows) - len(kept)} more")


def _runs(prefixes: Sequence[str]) -> list[str]:
    runs: list[tuple[str, int]] = []
    for prefix in prefixes:
        if runs and runs[-1][0] == prefix:
            runs[-1] = (prefix, runs[-1][1] + 1)
        else:
            runs.append((prefix, 1))
    return [prefix if count == 1 else f"{prefix} ×{count}" for prefix, count in runs]
