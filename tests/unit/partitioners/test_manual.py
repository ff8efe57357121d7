import pytest
import torch
from torch import nn

import fxpipe
from fxpipe.analysis.cuts import is_mode_switch, legal_cuts
from fxpipe.errors import IllegalPlanError, PartitionError
from fxpipe.ir.capture import Capture
from fxpipe.partitioners.manual import manual_cuts
from tests.builders import build_capture


@pytest.fixture
def capture() -> Capture:
    net = nn.Sequential(
        nn.Linear(4, 4),
        nn.ReLU(inplace=True),
        nn.Linear(4, 4),
        nn.ReLU(inplace=True),
        nn.Linear(4, 4),
    )
    return build_capture(net, torch.randn(2, 4))


def test_cuts_are_positions_in_recorded_order_however_they_are_given(capture: Capture) -> None:
    assert manual_cuts(capture, ["4", "2"]) == (2, 4)
    assert manual_cuts(capture, ()) == ()


def test_every_illegal_cut_is_explained_with_the_nearest_legal_ones(capture: Capture) -> None:
    with pytest.raises(IllegalPlanError) as error:
        manual_cuts(capture, ["1", "2", "3"])
    first, second = str(error.value).split("\n")[1:]
    assert "'1', between '_0' (" in first
    assert "and '_1' (" in first
    assert "written in place" in first
    assert first.endswith("The nearest places for a cut: '2'")
    assert second.endswith("The nearest places for a cut: '2' or '4'")


@pytest.mark.parametrize(
    ("cuts", "message"),
    [
        (["0"], "where the first stage starts anyway"),
        (["2", "_2"], "'_2' and '2' are the same place"),
        (["layer.7"], "no module that ran"),
        ("2", r"write \['2'\]"),
    ],
)
def test_cuts_that_make_no_sense_are_refused(
    capture: Capture, cuts: list[str], message: str
) -> None:
    with pytest.raises(PartitionError, match=message):
        manual_cuts(capture, cuts)


def test_a_graph_without_legal_places_says_so() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
    with pytest.raises(IllegalPlanError, match="nowhere in this graph"):
        manual_cuts(build_capture(net, torch.randn(2, 4)), ["1"])


class Guided(nn.Module):
    """A module that comes first in a region, and one that comes second."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three, self.four = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.one(x)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            guide = self.three(self.two(h))
        return self.four(h * guide)


def test_what_comes_first_in_a_region_stands_for_the_region() -> None:
    capture = fxpipe.trace(Guided(), (torch.randn(2, 4),))
    (position,) = manual_cuts(capture, ["two"])
    assert position in legal_cuts(capture)
    assert [str(node.target) for node in capture.body[:position]] == ["one"]
    assert is_mode_switch(capture.body[position])
    with pytest.raises(IllegalPlanError, match="grad-mode region"):
        manual_cuts(capture, ["three"])
