import pytest
import torch
from torch import nn

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
