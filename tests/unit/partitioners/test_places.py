import pytest
import torch
from torch import nn

from fxpipe.errors import PartitionError
from fxpipe.partitioners.places import Places, leaf_calls
from tests.builders import build_capture


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lin(x).relu()


class Nothing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block, self.relu, self.nothing = Block(), Block(), nn.ReLU(), Nothing()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.block(self.stem(x) + 1)
        x = self.nothing(self.block(x))
        return self.relu(torch.exp(x))


@pytest.fixture
def places() -> Places:
    return Places(build_capture(Net(), torch.randn(2, 4)))


ORDER = ["stem_lin", "relu", "add", "block_lin", "relu_1", "block_lin_1", "relu_2", "exp", "relu_3"]


@pytest.mark.parametrize(
    ("name", "node"),
    [
        ("stem", "stem_lin"),
        ("stem.lin", "stem_lin"),
        ("block", "block_lin"),
        ("block@0", "block_lin"),
        ("block@1", "block_lin_1"),
        ("block.lin@1", "block_lin_1"),
        ("add", "add"),
        ("%add", "add"),
        ("exp", "exp"),
        ("relu", "relu_3"),  # the module's call: a module has precedence over a node
        ("%relu", "relu"),
        ("relu_1", "relu_1"),
    ],
)
def test_a_name_means_a_module_call_or_a_node(places: Places, name: str, node: str) -> None:
    assert ORDER[places.position(name)] == node


def test_every_place_has_a_name_that_leads_back(places: Places) -> None:
    names = [places.name(position) for position in range(len(ORDER))]
    assert names == [
        "stem", "%relu", "add", "block", "relu_1", "block@1", "relu_2", "exp", "relu",
    ]  # fmt: skip
    assert [places.position(name) for name in names] == list(range(len(ORDER)))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("blok", "did you mean 'block'"),
        ("lin", r"did you mean .*'stem\.lin'"),
        ("qqqqqq", "modules that ran are 'stem', 'block'"),
        ("block@2", r"has block@0, block@1"),
        ("block@x", "counted from 0"),
        ("nothing", "computes nothing"),
        ("%gone", "no node"),
        ("ad@1", "did you mean"),
    ],
)
def test_a_name_without_meaning_is_refused_with_advice(
    places: Places, name: str, message: str
) -> None:
    with pytest.raises(PartitionError, match=message):
        places.position(name)


def test_calls_of_layers_are_counted_per_module() -> None:
    body = build_capture(Net(), torch.randn(2, 4)).body
    calls = [call for call in leaf_calls(body) if call[0] is not None]
    assert calls == [("stem.lin", 0), ("block.lin", 0), ("block.lin", 1), ("relu", 0)]
