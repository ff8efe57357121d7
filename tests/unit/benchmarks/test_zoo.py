"""The zoo's table: what is asked of other front ends, in which process, and what is written."""

from __future__ import annotations

import os
import time

import pytest
import torch
from torch import Tensor, nn

from benchmarks.peers.capture_peers import PEERS, Verdict, judge, middle_of
from benchmarks.zoo.isolated import Outcome, isolated
from benchmarks.zoo.ours import Figures, figures
from benchmarks.zoo.page import Row, page
from tests.zoo.entry import Entry


class Tied(nn.Module):
    """One weight in the first and in the last layer, a batch norm between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.middle = nn.ModuleList([nn.Linear(6, 6), nn.BatchNorm1d(6)])
        self.last = nn.Linear(6, 6)
        self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).relu()
        for layer in self.middle:
            h = layer(h)
        return self.last(h)


class Decides(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) if len(x) > 1 and x.shape[1] == 6 else x


def rows(count: int, seed: int) -> tuple[tuple[Tensor], dict[str, Tensor]]:
    return (torch.randn(count, 6, generator=torch.Generator().manual_seed(seed)),), {}


TIED = Entry("tied", "here", Tied, rows, sizes=(5, 7))


def half(x: float) -> float:
    if x < 0:
        raise ValueError("negative")
    return x / 2


def test_a_call_in_another_process() -> None:
    assert isolated(half, 3.0, timeout=60).value == 1.5
    failed = isolated(half, -1.0, timeout=60)
    assert (failed.value, failed.error) == (None, "ValueError")
    assert "negative" in failed.message
    assert isolated(time.sleep, 600, timeout=0.2).error == "Timeout"
    assert isolated(os._exit, 3, timeout=60).error == "Died"


@pytest.mark.slow
def test_other_front_ends_are_asked_for_gradients_rows_and_modes() -> None:
    found = {name: judge(TIED, capture) for name, capture in PEERS.items()}
    for verdict in found.values():
        assert verdict.captured
        verdict.seconds = 0.0
    assert found["torch.fx.symbolic_trace"] == Verdict(True, 0.0, True, True, True)
    exported = found["torch.export"]
    assert (exported.right, exported.other_batch, exported.switches) == (True, True, False)
    # Each stage has a copy of the tied weight: no copy gets the whole gradient.
    assert found["torch.distributed.pipelining.pipeline"].right is False


def test_what_cannot_be_captured_names_the_exception() -> None:
    verdict = judge(Entry("decides", "here", Decides, rows), PEERS["torch.fx.symbolic_trace"])
    assert verdict == Verdict(error="RuntimeError")


def test_figures_of_fxpipe() -> None:
    found = figures(TIED, rounds=1, stages=(2,))
    assert (found.nodes, found.leaves, found.guards) == (5, [], 0)
    assert (found.stages, found.right, found.switches) == ([2], True, True)
    assert 0 < found.largest < 1
    assert found.seconds > 0


def test_the_middle_of_a_model() -> None:
    assert middle_of(Tied()) == "middle.1"
    assert middle_of(Decides()) is None
    assert middle_of(nn.Sequential(nn.ReLU(), nn.ReLU(), nn.ReLU())) == "1"


def test_the_page_counts_and_explains() -> None:
    good = Figures(nodes=5, leaves=[("m.Moe", "it decides")], stages=[2, 4], switches=True)
    bad = Figures(nodes=7, errors=["train, 2 stages: AssertionError: loss differs"])
    peer = Verdict(True, 0.5, True, False, None)
    made = [
        Row(TIED, Outcome(good), {"torch.export": Outcome(peer)}),
        Row(TIED, Outcome(bad), {"torch.export": Outcome(error="Timeout")}),
        Row(TIED, Outcome(error="CaptureError", message="no"), {"torch.export": Outcome(peer)}),
    ]
    text = page(made, (2, 4), rounds=5)
    assert "**2 of 3 captured, 1 as in eager execution.**" in text
    assert "| tied | here | 5 | 1 | 0 | 0% | 0.00 | 0.00 | 0.0 | 0 | 2, 4 | ✓ | ✓ |" in text
    assert "- tied: 1 × `m.Moe`: it decides" in text
    assert "- tied: train, 2 stages: AssertionError: loss differs" in text
    assert "| `torch.export` | 2 of 3 | 2 | 0 | 0 of 0 | 0.50 |" in text
    assert "| tied | ✓ ✓ ✓ | ✓ ✗ – |" in text
    assert "| tied | ✗ ✗ – | `Timeout` |" in text
