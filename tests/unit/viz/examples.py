"""A U-Net of three stages, as the drawings take it."""

from __future__ import annotations

from fxpipe.ir.plan import PartitionPlan
from fxpipe.ir.spec import TensorSpec
from fxpipe.ir.stage import HOST, Edge, StageGraph


def _float(*shape: int) -> TensorSpec:
    return TensorSpec(shape, "float32", requires_grad=True)


GRAPH = StageGraph(
    3,
    (Edge("image", HOST, (0,), TensorSpec((8, 1, 64, 64), "float32")),),
    (
        Edge("skip", 0, (2,), _float(8, 16, 64, 64)),
        Edge("down", 0, (1,), _float(8, 32, 32, 32)),
        Edge("up<1>", 1, (2,), _float(8, 16, 64, 64)),
    ),
    ("out",),
)

PLAN = PartitionPlan(
    {"conv": 0, "relu": 0, "conv_1": 1, "cat": 2, "conv_2": 2}, "abc", ("conv_1", "cat")
)

NAMES = {
    "conv": "down.conv",
    "relu": "down.relu",
    "conv_1": "middle",
    "cat": "up.cat",
    "conv_2": "up.conv",
}
