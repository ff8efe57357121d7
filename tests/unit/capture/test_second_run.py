"""Modules that keep state in plain attributes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from fxpipe.capture.execute import GraphRunner
from fxpipe.capture.trace import trace
from fxpipe.errors import CaptureError

X = torch.randn(4, 4)


class Once(nn.Module):
    """Scales its weight in the first run."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.done = nn.Linear(4, 4), False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.done:
            with torch.no_grad():
                self.layer.weight.mul_(0.5)
            self.done = True
        return self.layer(x)


class Counts(Once):
    """Counts its calls, and nothing else comes of it."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.layer(x)


class Alternates(Once):
    """Another sign every time."""

    sign = 1

    def __init__(self) -> None:
        super().__init__()
        self.sign = 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.sign = -self.sign
        return self.layer(x) * self.sign


@pytest.mark.parametrize("mode", ["real", "fake"])
@pytest.mark.parametrize("dims", [[0], [None]])
@pytest.mark.parametrize("cls", [Once, Alternates])
def test_a_module_that_goes_on_otherwise_stays_whole(
    cls: type[nn.Module], dims: list[Any], mode: str
) -> None:
    model = nn.Sequential(nn.Linear(4, 40), nn.Linear(40, 4), cls())
    weight = model[2].layer.weight.clone()
    capture = trace(model, (X,), batch_dims=dims, mode=mode)
    assert [leaf.path for leaf in capture.leaves] == ["2"]
    assert torch.equal(model[2].layer.weight, weight)
    runner = GraphRunner.of(capture, model)
    twin = nn.Sequential(nn.Linear(4, 40), nn.Linear(40, 4), cls())
    twin.load_state_dict(model.state_dict())
    for _ in range(3):
        assert torch.equal(runner.run([X])[0], twin(X))


@pytest.mark.parametrize("cls", [Once, Alternates])
def test_most_of_a_model_is_refused(cls: type[nn.Module]) -> None:
    with pytest.raises(CaptureError, match=r"in a second run(.|\n)*call the model once") as e:
        trace(nn.Sequential(cls()), (X,))
    assert ("'done'" if cls is Once else "'sign'") in str(e.value)


def test_a_model_that_is_through_with_it_is_recorded() -> None:
    model = Once()
    model(X)
    assert not trace(model, (X,)).leaves


def test_counting_is_no_difference() -> None:
    model = Counts()
    capture = trace(model, (X,))
    assert not capture.leaves
    assert model.calls == 0


class WarmsUp(Once):
    """Counts up to a number of calls, and goes on otherwise from there."""

    def __init__(self, steps: int = 3, every: int = 0) -> None:
        super().__init__()
        self.calls, self.steps, self.every = 0, steps, every

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        later = self.calls % self.every == 0 if self.every else self.calls > self.steps
        return self.layer(x * 2 if later else x)


@pytest.mark.parametrize("mode", ["real", "fake"])
@pytest.mark.parametrize("dims", [[0], [None]])
@pytest.mark.parametrize("counted", [(1, 0), (3, 0), (70, 0), (20_000, 0), (0, 4), (0, 100)])
def test_a_counter_that_decides_later_keeps_its_module_whole(
    counted: tuple[int, int], dims: list[Any], mode: str
) -> None:
    model = nn.Sequential(nn.Linear(4, 40), nn.Linear(40, 4), WarmsUp(*counted))
    capture = trace(model, (X,), batch_dims=dims, mode=mode)
    (leaf,) = capture.leaves
    assert leaf.path == "2"
    assert "'calls'" in leaf.reason
    assert model[2].calls == 0


def test_a_counter_that_decides_later_for_most_of_a_model_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"in run \d+(.|\n)*'calls'(.|\n)*buffer"):
        trace(WarmsUp(), (X,))


def around(module: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), module, nn.Linear(4, 4), nn.Linear(4, 4))


class Notes(Once):
    """Keeps its state in something else than an attribute: in a dict, an object, a list, an iterator."""

    def __init__(self, state: Any, count: Callable[[Any], float]) -> None:
        super().__init__()
        self.state, self.count = state, count

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * 2 if self.count(self.state) < 1 else self.layer(x)


def count_items(state: list[int]) -> int:
    state.append(1)
    return len(state) - 1


def count_in_dict(state: dict[str, int]) -> int:
    state["count"] += 1
    return state["count"] - 1


def count_in_object(state: SimpleNamespace) -> int:
    state.count += 1
    return int(state.count) - 1


@pytest.mark.parametrize(
    ("state", "count"),
    [
        ([], count_items),
        ({"count": 0}, count_in_dict),
        (SimpleNamespace(count=0), count_in_object),
        (itertools.count(), next),
    ],
)
def test_state_in_objects_is_seen(state: Any, count: Callable[[Any], float]) -> None:
    model = around(Notes(state, count))
    before = str(state)
    capture = trace(model, (X,))
    assert [leaf.path for leaf in capture.leaves] == ["1"]
    assert "it changes its attribute 'state'" in capture.leaves[0].reason
    assert str(state) == before


def test_a_threshold_in_an_object_is_found() -> None:
    def late(state: SimpleNamespace) -> int:
        state.count += 1
        return int(state.count > 50)

    capture = trace(around(Notes(SimpleNamespace(count=0), late)), (X,))
    assert [leaf.path for leaf in capture.leaves] == ["1"]
