from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

import fxpipe
from fxpipe.errors import CaptureError
from fxpipe.regimes import Choice, Key, Regimes, covers


class Windowed(nn.Module):
    """Does something else from some length on."""

    def __init__(self, window: int = 100) -> None:
        super().__init__()
        self.linear, self.window = nn.Linear(4, 4), window

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] > self.window:
            x = x - x.mean(1, keepdim=True)
        return self.linear(x)


class Halved(nn.Module):
    """Takes half of the length, but for one length."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        return self.linear(x[:, : length // 2 - (length == 14)])


def at(length: int, model: nn.Module | None = None) -> fxpipe.Capture:
    x, model = torch.randn(2, length, 4), model or Windowed()
    return fxpipe.trace(model, (x,), dynamic={"x": {1: "length"}}, verify=False)


class Asked:
    """Chooses among real captures, and counts how often one had to be made to choose."""

    def __init__(self) -> None:
        self.regimes = Regimes()
        self.captures: dict[Key, list[fxpipe.Capture]] = {}
        self.made = self.compared = 0

    def choose(self, length: int) -> Choice:
        return self.regimes.choose(
            ("call",),
            {"length": length},
            self._made(length),
            lambda key: self.captures[key],
            self._holds(length),
        )

    def _holds(self, length: int) -> Callable[[fxpipe.Capture], bool]:
        def holds(capture: fxpipe.Capture) -> bool:
            self.compared += 1
            assert capture.holds_at is not None
            return capture.holds_at([torch.randn(2, length, 4)])

        return holds

    def _made(self, length: int) -> Callable[[], fxpipe.Capture]:
        def made() -> fxpipe.Capture:
            self.made += 1
            return at(length)

        return made

    def record(self, key: Key, length: int) -> None:
        self.captures[key] = [at(length)]
        self.regimes.note(("call",), key, self.captures[key][0])


def test_ranges() -> None:
    assert covers({"a": (2, 8), "b": (3, 3)}, {"a": 5, "b": 3})
    assert not covers({"a": (2, 8)}, {"a": 9})
    assert not covers({"a": (2, 8)}, {"b": 5})
    assert covers({}, {})


def test_a_recording_tells_its_sizes() -> None:
    assert at(8).ranges == {"length": (4, 16)}
    assert fxpipe.trace(Windowed(), (torch.randn(2, 8, 4),)).ranges == {}


def test_sizes_in_between_are_believed_and_those_beyond_are_tried() -> None:
    asked = Asked()
    assert asked.choose(8) == Choice(("call",))
    asked.record(("call",), 8)
    for length in (4, 9, 16):
        assert asked.choose(length) == Choice(("call",))
    assert asked.made == 0
    assert asked.choose(30) == Choice(("call",))
    assert asked.choose(55) == Choice(("call",))  # the recording for 30 went up to 60
    assert asked.made == 1


def test_another_way_has_a_recording_of_its_own() -> None:
    asked = Asked()
    asked.record(("call",), 8)
    assert asked.choose(400) == Choice(("call", 1))
    asked.record(("call", 1), 400)
    assert asked.choose(500) == Choice(("call", 1))
    assert asked.choose(2000) == Choice(("call", 1))
    assert asked.choose(8) == Choice(("call",))


def test_near_the_place_where_the_ways_part_sizes_are_recorded_as_they_are() -> None:
    asked = Asked()
    asked.record(("call",), 8)
    choice = asked.choose(120)
    assert not choice.is_free
    assert choice.key == ("call", (("length", 120),))
    assert asked.choose(120) == choice
    assert asked.made == 1


def test_without_free_sizes_there_is_nothing_to_choose() -> None:
    def never() -> fxpipe.Capture:
        raise CaptureError("not asked for")

    regimes = Regimes()
    regimes.note(("call",), ("call",), at(8))

    def choose(**sizes: int) -> Choice:
        return regimes.choose(("call",), sizes, never, lambda key: [], lambda capture: False)

    assert choose() == Choice(("call",))
    regimes.clear()
    assert choose(length=99) == Choice(("call",))


def test_where_fractions_are_computed_every_size_is_looked_at_once() -> None:
    asked, model = Asked(), Halved()
    capture = at(8, model)
    assert {"length": 8} in capture.only_sizes
    assert at(8).only_sizes == ()
    asked.captures[("call",)] = [capture]
    asked.regimes.note(("call",), ("call",), capture)
    assert asked.choose(8) == asked.choose(16) == Choice(("call",))
    assert asked.compared == 0
    for _ in range(2):
        assert asked.choose(13) == Choice(("call",))
        assert asked.choose(14) == Choice(("call", (("length", 14),)), is_free=False)
    assert asked.compared == 2
    assert asked.made == 0
