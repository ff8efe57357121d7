from __future__ import annotations

from fxpipe.ir.plan import PartitionPlan
from fxpipe.viz.labels import labels, stage_rows


def _plan(*nodes: str) -> PartitionPlan:
    return PartitionPlan(dict.fromkeys(nodes, 0), "abc")


def test_runs_of_one_path_are_one_row() -> None:
    names = {"a": "net.conv", "b": "net.conv", "c": "net.relu", "d": "net.conv"}
    assert stage_rows(_plan("a", "b", "c", "d"), names, 0) == (
        "net.conv ×2",
        "net.relu",
        "net.conv",
    )


def test_paths_are_cut_where_rows_would_be_too_many() -> None:
    names = {f"n{i}": f"net.block{i // 4}.conv{i}" for i in range(12)}
    rows = stage_rows(_plan(*names), names, 0, limit=4)
    assert rows == ("net.block0 ×4", "net.block1 ×4", "net.block2 ×4")
    assert stage_rows(_plan(*names), names, 0, limit=2) == ("net ×12",)


def test_what_does_not_fit_is_counted() -> None:
    nodes = [f"n{i}" for i in range(9)]
    assert stage_rows(_plan(*nodes), {}, 0, limit=4) == ("n0", "n1", "n2", "… 6 more")


def test_only_the_stage_itself() -> None:
    plan = PartitionPlan({"a": 0, "b": 1}, "abc")
    assert stage_rows(plan, {}, 1) == ("b",)


def test_labels_of_a_capture() -> None:
    import torch
    from torch import nn

    from fxpipe.capture.trace import trace

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = torch.tanh(self.block(x)).view(-1)
            return y

    capture = trace(Net(), (torch.randn(4, 4),))
    assert list(labels(capture).values()) == ["block.0", "block.1", "tanh", "view"]
