from __future__ import annotations

import re

from fxpipe.ir.action import Compute
from fxpipe.ir.cost import StageCost
from fxpipe.ir.plan import Placement
from fxpipe.ir.spec import TensorSpec
from fxpipe.ir.stage import Edge, StageGraph
from fxpipe.ir.timeline import Span, Timeline
from fxpipe.viz.text import grid, plan_table, rank_table


def _timeline(*rows: str, source: str = "simulate") -> Timeline:
    """Rows of ``action@start-end``."""
    spans = []
    for rank, row in enumerate(rows):
        for word in row.split():
            action, _, times = word.partition("@")
            start, end = map(float, times.split("-"))
            spans.append(Span(rank, Compute.from_text(action), start, end))
    return Timeline(tuple(spans), source, (2048, 0)[: len(rows)])


STEP = _timeline("0F0@0-1 0B0@4-6", "1F0@1-2 1B0@2-4")


def test_a_cell_is_as_long_as_the_shortest_computation() -> None:
    assert grid(STEP) == "F0  .   .   .   B0  -\n.   F0  B0  -   .   ."


def test_another_unit() -> None:
    assert grid(STEP, 0.5) == "\n".join(
        [
            "F0  -   .   .   .   .   .   .   B0  -   -   -",
            ".   .   F0  -   B0  -   -   -   .   .   .   .",
        ]
    )


def test_a_long_timeline_is_kept_to_its_columns() -> None:
    long = _timeline("0F0@0-1 0F1@1-300")
    assert len(grid(long, columns=30).split()) == 30


def test_ranks_with_several_stages_name_them() -> None:
    assert grid(_timeline("0F0@0-1 1F0@1-2")) == "0F0  1F0"


def test_a_grid_starts_at_the_first_computation() -> None:
    assert grid(_timeline("0F0@7-8 0B0@8-9")) == "F0  B0"


def test_nothing_has_no_grid() -> None:
    assert grid(Timeline((), "run")) == ""


FLOAT = TensorSpec((256,), "float32", requires_grad=True)
GRAPH = StageGraph(
    3,
    (),
    (Edge("x", 0, (1,), FLOAT), Edge("y", 1, (2,), FLOAT), Edge("skip", 0, (2,), FLOAT)),
)


def test_plan_table() -> None:
    costs = [
        StageCost(0.001, 0.002, saved_bytes=2048, parameter_bytes=4096),
        StageCost(0.002, 0.002),
        StageCost(0.001, 0.002),
    ]
    table = plan_table(GRAPH, costs, Placement((0, 1, 0)), ("mid.conv", "up.conv"))
    header, _, *rows = [re.split(r"\s{2,}", line.strip()) for line in table.splitlines()]
    assert header[:3] == ["stage", "rank", "starts at"]
    assert header[3:] == ["params", "forward", "backward", "share", "kept", "in", "by portal"]
    assert rows == [
        ["0", "0", "4 KiB", "1 ms", "2 ms", "30.0%", "2 KiB"],
        ["1", "1", "mid.conv", "0 B", "2 ms", "2 ms", "40.0%", "0 B", "1 KiB"],
        ["2", "0", "up.conv", "0 B", "1 ms", "2 ms", "30.0%", "0 B", "1 KiB", "1 KiB from 0"],
    ]


def test_plan_table_without_costs() -> None:
    assert plan_table(GRAPH).splitlines()[0].split() == ["stage", "in", "by", "portal"]


def test_rank_table() -> None:
    assert rank_table(STEP).splitlines()[2:] == [
        "     0     3 s     3 s         50.0%           2 KiB",
        "     1     3 s     3 s         50.0%             0 B",
    ]
