from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from fxpipe.capture import draws
from fxpipe.capture.draws import PythonDraws
from fxpipe.capture.trace import trace
from fxpipe.errors import CaptureError
from fxpipe.generators import PythonGenerators
from tests.unit.capture import small
from tests.unit.capture.agree import assert_agrees

X = torch.randn(2, 4)


def test_draws_belong_to_a_leaf_or_to_what_is_around_it() -> None:
    watch = PythonDraws(PythonGenerators(), is_on=True)
    assert not watch.since_last()
    with watch.leaf() as quiet:
        pass
    with watch.leaf() as drew:
        random.random()
    assert (quiet.answer, drew.answer, watch.since_last(), watch.any) == (False, True, False, True)
    random.random()
    assert watch.since_last()
    assert not PythonDraws(PythonGenerators(), is_on=False).any


class Skips(nn.Module):
    """Stochastic depth: a layer is left out now and then."""

    def __init__(self, draw: object = random.random) -> None:
        super().__init__()
        self.body, self.draw = nn.Linear(4, 4), draw

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and self.draw() < 0.5:  # type: ignore[operator]
            return x
        return x + self.body(x)


class Deep(nn.Module):
    def __init__(self, *skips: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(skips)
        self.head = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Holds(nn.Module):
    """Draws from a generator of its own."""

    def __init__(self, generator: object) -> None:
        super().__init__()
        self.body, self.generator = nn.Linear(4, 4), generator

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) * float(self.generator.random())  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "layer",
    [
        lambda: Skips(),
        lambda: Skips(np.random.rand),
        lambda: Holds(random.Random(5)),
        lambda: Holds(np.random.default_rng(5)),
    ],
)
@pytest.mark.parametrize("mode", ["real", "fake"])
def test_the_innermost_module_that_draws_is_kept_whole(layer: object, mode: str) -> None:
    model = Deep(layer(), layer(), layer())  # type: ignore[operator]
    capture = trace(model, (X,), mode=mode)
    assert [leaf.path for leaf in capture.leaves] == ["layers.0", "layers.1", "layers.2"]
    assert capture.leaves[0].reason == draws.REASON
    marked = [n.name for n in capture.body if n.meta.get("python_random")]
    assert marked == ["layers_0", "layers_1", "layers_2"]
    with PythonGenerators().replayed(PythonGenerators().states()):
        random.seed(2)
        assert_agrees(capture, model, (X,))


def test_a_model_in_evaluation_mode_draws_nothing() -> None:
    assert trace(Deep(Skips()).eval(), (X,)).leaves == ()


@pytest.mark.parametrize("generator", [random.Random(5), np.random.default_rng(5)])
def test_generators_of_the_model_are_put_back(generator: object) -> None:
    model = Deep(Holds(generator), nn.Linear(4, 4))
    before = PythonGenerators([generator]).now()
    trace(model, (X,))
    assert PythonGenerators([generator]).now() == before


def test_a_generator_of_torch_that_a_module_holds_is_put_back_and_used() -> None:
    class Noise(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.generator = torch.Generator().manual_seed(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.rand(x.shape[1], generator=self.generator)

    model = small.Chain(small.Mlp(), Noise())
    before = model.parts[1].generator.get_state()
    capture = trace(model, (X,), mode="real")
    assert capture.leaves == ()
    assert torch.equal(model.parts[1].generator.get_state(), before)


class DrawsBefore(nn.Module):
    """Draws, and then calls layers only."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if random.random() < 0.5:
            return self.two(self.one(x))
        return self.one(self.two(x))


def test_draws_just_before_a_layer_are_the_callers() -> None:
    model = small.Chain(DrawsBefore(), nn.Linear(4, 40))
    assert [leaf.path for leaf in trace(model, (X,)).leaves] == ["parts.0"]


def test_most_of_a_model_is_not_kept_whole() -> None:
    model = small.Chain(DrawsBefore(), nn.Linear(4, 4))
    with pytest.raises(
        CaptureError, match=r"draws from random.*\n.*'parts.0'\n.*random.random\(\)"
    ):
        trace(model, (X,))
    with pytest.raises(CaptureError, match="the model's own forward") as caught:
        trace(DrawsBefore(), (X,))
    assert "What to do: switch this off by an option of the model" in str(caught.value)


@pytest.mark.parametrize(
    ("draw", "line"),
    [
        (lambda: random.random(), r"lambda: random.random\(\)"),
        (lambda: random.randint(0, 9), r"lambda: random.randint\(0, 9\)"),
        (lambda: float(np.random.rand()), r"in forward: def forward\(self"),
    ],
)
def test_the_line_that_draws_is_named(draw: object, line: str) -> None:
    class Draws(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * draw()  # type: ignore[operator]

    with pytest.raises(CaptureError, match=line):
        trace(Draws(), (X,))


def test_options_that_seem_to_be_the_cause_are_named() -> None:
    model = DrawsBefore()
    model.config = SimpleNamespace(
        layerdrop=0.1, hidden=8, apply_spec_augment=True, mask_time_prob=0.0
    )
    with pytest.raises(
        CaptureError, match=r"switch off what draws: config.layerdrop \(now 0.1\), "
    ):
        trace(model, (X,))
    inner = small.Chain(DrawsBefore(), nn.Linear(4, 4))
    inner.parts[0].drop_path = 0.2
    assert draws.options(inner, "parts.0") == {"parts.0.drop_path": 0.2}
    assert draws.options(inner, "parts.1") == {}


class Idle(nn.Module):
    """Stochastic depth that is switched off, but draws."""

    def __init__(self, layerdrop: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.layerdrop = layerdrop

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            number = random.uniform(0, 1)
            if self.training and (number < self.layerdrop):
                continue
            if random.random() <= -1 or random.random() >= 1.0:
                continue
            x = layer(x)
        return x


def test_numbers_that_are_compared_with_one_outcome_may_be_drawn() -> None:
    random.seed(3)
    before = random.getstate()
    model = Idle()
    capture = trace(model, (X,))
    assert random.getstate() == before
    assert not capture.leaves
    assert_agrees(capture, model, (X,), rows=4)


@pytest.mark.parametrize("layerdrop", [0.5, 1e-9])
def test_numbers_whose_outcome_is_open_are_refused(layerdrop: float) -> None:
    with pytest.raises(CaptureError, match=r"layerdrop \(now") as e:
        trace(Idle(layerdrop), (X,))
    assert "switch off what draws" in str(e.value)


def test_an_option_that_is_off_is_not_told_to_be_switched_off() -> None:
    class Odd(Idle):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if random.random() * 2 < self.layerdrop else self.layers[0](x)

    with pytest.raises(CaptureError, match=r"layerdrop \(now 0.0\) is off, yet a number is drawn"):
        trace(Odd(), (X,))


def test_beside_a_leaf_that_draws_every_draw_counts() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.idle, self.skips, self.rest = Idle(), Skips(), nn.Linear(4, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.rest(self.skips(self.idle(x)))

    capture = trace(Both(), (X,))
    assert [leaf.path for leaf in capture.leaves] == ["skips", "idle"]
