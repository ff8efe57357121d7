from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from fxpipe.capture.execute import GraphRunner
from fxpipe.capture.guards import Ahead, GuardCheck, failed_guard, guards_of
from fxpipe.capture.trace import trace
from fxpipe.errors import CaptureError
from tests.unit.capture import small
from tests.unit.capture.agree import assert_agrees

X = torch.randn(2, 4)
ONES, HALF = torch.ones(2, 1), torch.tensor([[1.0], [0.0]])


@pytest.mark.parametrize("mode", ["real", "fake"])
def test_decisions_on_inputs_are_checked_before_a_run(mode: str) -> None:
    model = small.MaskDecides()
    capture = trace(model, (X,), {"mask": HALF}, mode=mode)
    assert len(guards_of(capture)) == 1
    assert_agrees(capture, model, (X,), {"mask": HALF}, rows=4)
    assert failed_guard(capture, model, (X,), {"mask": HALF * 0}) is None
    assert failed_guard(capture, model, (X,), {"mask": ONES}) is guards_of(capture)[0]


def test_other_decision_is_refused_while_running() -> None:
    model = small.MaskDecides()
    capture = trace(model, (X,), {"mask": HALF})
    with pytest.raises(CaptureError, match="decides on a value of its data"):
        GraphRunner.of(capture, model).run([X, ONES])


def test_each_decision_has_a_capture_of_its_own() -> None:
    model = small.MaskDecides()
    one, two = (trace(model, (X,), {"mask": mask}) for mask in (ONES, HALF))
    assert one != two
    assert failed_guard(one, model, (X,), {"mask": ONES}) is None


def test_model_without_decisions_has_no_guards() -> None:
    capture = trace(small.Mlp(), (X,))
    assert guards_of(capture) == ()
    assert failed_guard(capture, small.Mlp(), (X,)) is None


class Longest(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = small.Mlp()

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return self.body(x[:, : lengths.max().item()].repeat(1, 2))


def test_numbers_taken_from_inputs_are_checked_too() -> None:
    lengths = torch.tensor([2, 1])
    capture = trace(Longest(), (X, lengths))
    assert failed_guard(capture, Longest(), (X, torch.tensor([1, 2]))) is None
    assert failed_guard(capture, Longest(), (X, torch.tensor([3, 2]))) is not None


class Counts(nn.Module):
    """Decides on a buffer after writing into it, and on an input after writing into that."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = small.Mlp(), small.Mlp()
        self.register_buffer("n", torch.zeros((), dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        x.add_(1)
        h = self.first(x)
        if self.n > 3:
            h = h * 2
        if x.sum() > 0:
            h = h * 3
        return self.second(h)


@pytest.mark.parametrize("mode", ["real", "fake"])
def test_checks_leave_inputs_and_buffers_alone(mode: str) -> None:
    model, x = Counts(), torch.zeros(2, 4)
    capture = trace(model, (x,), mode=mode)
    check = GuardCheck(capture, model)
    assert len(check.guards) == 2
    for _ in range(4):
        assert check.failed((x,)) is None
    assert model.n == 0
    assert not x.any()
    assert check.failed((x - 2,)) is check.guards[1]
    model.n.fill_(3)
    assert check.failed((x,)) is check.guards[0]
    assert model.n == 3


def test_checks_run_in_the_modes_of_the_model() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = small.Mlp()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                if (x @ x.t()).max() == 4.0:
                    return self.body(x)
            return self.body(x) * 2

    x = torch.full((2, 4), 1 + 2**-10)  # 1 in bfloat16
    model = Half()
    capture = trace(model, (x,))
    assert failed_guard(capture, model, (x,)) is None
    assert failed_guard(capture, model, (x * 2,)) is not None
    assert not torch.is_autocast_enabled("cpu")
    assert torch.autocast_increment_nesting() == 1
    assert torch.autocast_decrement_nesting() == 0


def test_checks_cost_what_they_need() -> None:
    model = small.MaskDecides()
    calls: list[int] = []
    model.register_forward_hook(lambda *args: calls.append(1))
    capture = trace(model, (X,), {"mask": HALF})
    check = GuardCheck(capture, model)
    calls.clear()
    assert check.failed((X,), {"mask": ONES}) is check.guards[0]
    assert len(check._part.nodes) < len(capture.body)
    assert not calls


def test_decision_on_a_buffer_that_a_layer_changes_cannot_be_checked() -> None:
    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.norm(x)
            return y * 2 if self.norm.num_batches_tracked > 3 else y

    with pytest.raises(CaptureError, match="depends on values of tensors"):
        trace(Late(), (X,))


class Scales(nn.Module):
    def __init__(self, read: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.body = small.Mlp()
        self.read = read
        self.register_buffer("factor", torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) * self.read(x)


@pytest.mark.parametrize("mode", ["real", "fake", "auto"])
@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.max().item(),
        lambda x: float(x.max()),
        lambda x: x[0, :1].tolist()[0],
        lambda x: 2 if x.max().item() * 2 > 1 else 3,
    ],
)
def test_fractional_numbers_out_of_inputs_are_refused(
    read: Callable[[torch.Tensor], Any], mode: str
) -> None:
    with pytest.raises(CaptureError, match=r"fractional number(.|\n)*compute with the tensor"):
        trace(Scales(read), (X,), mode=mode)


def test_comparisons_and_integers_stay_decisions() -> None:
    for read in (lambda x: 2 if x.max() > 1 else 3, lambda x: int(x.max())):
        assert len(guards_of(trace(Scales(read), (X,)))) == 1


def test_fractional_numbers_out_of_buffers_are_checked() -> None:
    model = Scales(lambda x: 0.0)
    model.read = lambda x: model.factor.item()
    capture = trace(model, (X,))
    check = GuardCheck(capture, model)
    assert check.failed((X * 2,)) is None
    model.factor.fill_(2.0)
    assert check.failed((X,)) is check.guards[0]


def test_small_module_that_takes_a_fractional_number_stays_whole() -> None:
    class Normalizes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x / x.abs().max().item()

    capture = trace(small.Chain(Normalizes(), small.Mlp()), (X,))
    assert [leaf.path for leaf in capture.leaves] == ["parts.0"]
    assert guards_of(capture) == ()


def test_so_does_a_large_module_inside_of_the_model() -> None:
    capture = trace(small.Chain(Scales(lambda x: x.max().item()), small.Mlp()), (X,))
    (leaf,) = capture.leaves
    assert leaf.path == "parts.0"
    assert "a fractional number out of an input" in leaf.reason


def test_a_decision_may_follow_the_batch_size() -> None:
    class CountsRows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = small.Mlp()

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return self.body(x) * int(mask.sum())

    model, mask = CountsRows(), torch.ones(4, 1, dtype=torch.long)
    capture = trace(model, (torch.randn(4, 4), mask))
    check = GuardCheck(capture, model)
    assert len(check.guards) == 1
    assert check.failed((torch.randn(4, 4), mask)) is None
    assert check.failed((torch.randn(3, 4), mask[:3])) is None
    assert check.failed((torch.randn(3, 4), mask[:3] * 2)) is check.guards[0]


class Warms(nn.Module):
    """Decides on a counter that it advances, before or after; in place, or by another tensor."""

    def __init__(self, advance: str) -> None:
        super().__init__()
        self.first, self.second = small.Mlp(), small.Mlp()
        self.advance = advance
        self.register_buffer("n", torch.zeros((), dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.advance == "before":
            self.n += 1
        elif self.advance == "replace":
            self.n = self.n + 1
        h = self.first(x)
        if self.n >= 2:
            h = h * 2
        if self.advance == "after":
            self.n += 1
        return self.second(h)


@pytest.mark.parametrize("mode", ["real", "fake"])
@pytest.mark.parametrize(
    ("advance", "before_it_turns"), [("before", 1), ("replace", 1), ("after", 2)]
)
def test_micro_batches_are_checked_in_turn(advance: str, before_it_turns: int, mode: str) -> None:
    model = Warms(advance)
    check = GuardCheck(trace(model, (X,), mode=mode), model)
    ahead = Ahead()
    for _ in range(before_it_turns):
        assert check.failed((X,), ahead=ahead) is None
    for _ in range(2):  # a check that fails leaves no trace
        assert check.failed((X,), ahead=ahead) is check.guards[0]
    assert ahead.buffers["n"] == before_it_turns
    held = model.n
    with ahead.in_model(model):
        other = GuardCheck(trace(model, (X,), mode=mode), model)
    assert model.n is held
    assert model.n == 0
    assert other.failed((X,), ahead=ahead) is None
    assert ahead.buffers["n"] == before_it_turns + 1
    assert check.failed((X,)) is None


def test_buffers_that_only_a_run_can_tell_are_not_carried() -> None:
    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = small.Mlp()
            self.register_buffer("largest", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            turned = self.largest > 5
            y = self.body(x)
            if turned:
                y = y * 2
            self.largest.copy_(y.detach().max())
            return y

    model, ahead = Late(), Ahead()
    check = GuardCheck(trace(model, (X,)), model)
    assert check.failed((X,), ahead=ahead) is None
    assert ahead.buffers == {}
