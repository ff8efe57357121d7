from __future__ import annotations

import torch
from torch import nn

from fxpipe.portals.calls import ModuleCall
from fxpipe.portals.edges import link
from fxpipe.portals.steps import output_nodes, reads, stage_steps
from tests.builders import build_capture, plan_at


class Rows(nn.Module):
    """The batch size is asked for twice: for the block, and in vain."""

    class Block(nn.Module):
        def forward(self, x, rows):
            return x.reshape(rows, 6)

    def __init__(self) -> None:
        super().__init__()
        self.block = Rows.Block()

    def forward(self, x):
        rows, columns = x.size(0), x.size(1)
        parts = torch.split(x, 1)
        parts[1]
        columns + rows
        return self.block(torch.relu(x) + parts[0], rows), columns


def texts(steps) -> list[str]:
    return [s.span.path if isinstance(s, ModuleCall) else s.name for s in steps]


def test_what_nobody_reads_is_left_out() -> None:
    capture = build_capture(Rows(), torch.randn(2, 3, 2))
    (only,) = stage_steps(capture, plan_at(capture))
    assert texts(only) == ["size", "size_1", "split", "relu", "getitem_1", "add_1", "block"]


def test_numbers_cross_as_values_do() -> None:
    capture = build_capture(Rows(), torch.randn(2, 3, 2))
    graph = link(capture, plan_at(capture, "reshape"))
    assert [edge.value for edge in graph.edges] == ["size", "size_1", "add_1"]
    assert [edge.spec for edge in graph.edges[:2]] == [2, 3]


def test_reads() -> None:
    capture = build_capture(Rows(), torch.randn(2, 3, 2))
    (only,) = stage_steps(capture, plan_at(capture))
    assert [node.name for node in reads(only[-1])] == ["add_1", "size"]
    assert [node.name for node in reads(only[3])] == ["x"]


def test_output_nodes() -> None:
    capture = build_capture(Rows(), torch.randn(2, 3, 2))
    assert [node.name for node in output_nodes(capture)] == ["reshape", "size_1"]
