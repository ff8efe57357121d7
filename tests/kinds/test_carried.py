"""Tensors that a forward leaves in an attribute and its next run reads: kept whole, or refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fxpipe
from fxpipe.errors import CaptureError
from tests.cases.blocks import WIDTH, Block

State = Callable[["Part", Tensor], Tensor]


class Part(nn.Module):
    """A block that keeps something of each run for the next."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self.block, self.state = Block(), state
        self.mean, self.none, self.flag = torch.zeros(WIDTH), None, False
        self.found, self.items = {"mean": torch.zeros(WIDTH)}, []
        self.record = SimpleNamespace(mean=torch.zeros(WIDTH))
        self.register_buffer("late", None)
        self.register_buffer("early", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.block(x)
        return x + self.state(self, x.detach().flatten(0, -2).mean(0))


class Root(Part):
    """The same as the model's own forward."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self.last = Block()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(super().forward(x))


class Around(nn.Module):
    """The same in a small submodule."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self.one, self.part, self.two, self.three = Block(), Part(state), Block(), Block()

    def forward(self, x: Tensor) -> Tensor:
        return self.three(self.two(self.part(self.one(x))))


def replaces(part: Part, new: Tensor) -> Tensor:
    part.mean = 0.9 * part.mean + new
    return part.mean


def reads_first(part: Part, new: Tensor) -> Tensor:
    before, part.mean = part.mean, new
    return before


def starts_with_none(part: Part, new: Tensor) -> Tensor:
    part.none = new if part.none is None else 0.9 * part.none + new
    return part.none


def looks_for_none(part: Part, new: Tensor) -> Tensor:
    is_first, part.none = part.none is None, new
    return new if is_first else new * 2


def in_a_dict(part: Part, new: Tensor) -> Tensor:
    part.found["mean"] = 0.9 * part.found["mean"] + new
    return part.found["mean"]


def in_an_object(part: Part, new: Tensor) -> Tensor:
    part.record.mean = 0.9 * part.record.mean + new
    return part.record.mean


def in_a_list(part: Part, new: Tensor) -> Tensor:
    part.items.append(new)
    del part.items[:-3]
    return sum(part.items)


def counts_items(part: Part, new: Tensor) -> Tensor:
    part.items.append(new)
    return new * len(part.items)


def decides_on_it(part: Part, new: Tensor) -> Tensor:
    large, part.mean = bool(part.mean.abs().sum() > 0), new
    return new * 2 if large else new


def takes_it_once(part: Part, new: Tensor) -> Tensor:
    if part.mean is not None:
        new, part.mean = new + part.mean + 1, None
    return new


def empties_a_buffer(part: Part, new: Tensor) -> Tensor:
    if part.early is not None:
        new, part.early = new + part.early + 1, None
    return new


def counts_in_a_tensor(part: Part, new: Tensor) -> Tensor:
    part.none = torch.zeros(()) if part.none is None else part.none + 1
    return new * part.none


def draws_once(part: Part, new: Tensor) -> Tensor:
    if part.none is None:
        part.none = torch.rand(WIDTH)
    return new * part.none


def fills_late(part: Part, new: Tensor) -> Tensor:
    part.late = new if part.late is None else torch.maximum(part.late * 0.9, new)
    return part.late


def registers(part: Part, new: Tensor) -> Tensor:
    if not hasattr(part, "later"):
        part.register_buffer("later", new)
    else:
        part.later = torch.maximum(part.later * 0.9, new)
    return part.later


ONCE = [takes_it_once, empties_a_buffer, looks_for_none, fills_late, registers]
"""They do something else in their first run only."""
STATES = [
    replaces, reads_first, starts_with_none, in_a_dict, in_an_object, in_a_list,
    counts_items, decides_on_it, counts_in_a_tensor, *ONCE,
]  # fmt: skip


def keeps_for_others(part: Part, new: Tensor) -> Tensor:
    part.none, part.found["last"] = new, new
    part.items.append(new)
    return part.none + part.items[-1]


def makes_a_table(part: Part, new: Tensor) -> Tensor:
    if part.none is None:
        part.none = torch.zeros(4, WIDTH)
        part.none[:, 0::2] = torch.arange(WIDTH // 2).sin()
    return new * part.none[1]


def makes_tables(part: Part, new: Tensor) -> Tensor:
    if WIDTH not in part.found:
        part.found[WIDTH] = part.early.cos() + torch.linspace(0, 1, WIDTH)
    return new * part.found[WIDTH]


def registers_a_table(part: Part, new: Tensor) -> Tensor:
    if part.late is None:
        part.late = torch.linspace(0, 1, WIDTH)
    return new * part.late


def writes_in_place(part: Part, new: Tensor) -> Tensor:
    part.mean.mul_(0.9).add_(new)
    return part.mean * 1


def replaces_a_buffer(part: Part, new: Tensor) -> Tensor:
    part.early = 0.9 * part.early + new
    return part.early


NO_STATES = [
    keeps_for_others, makes_a_table, makes_tables, registers_a_table, writes_in_place,
    replaces_a_buffer,
]  # fmt: skip


def assert_steps_are_eager(model: nn.Module, stages: int, warm: bool) -> None:
    torch.manual_seed(0)
    plain = copy.deepcopy(model)
    if warm:
        with torch.no_grad():
            for each in (plain, model):
                each(torch.ones(2, 3, WIDTH))
    with fxpipe.compile(model, devices=["cpu"] * stages, chunks=4) as pipe:
        for _ in range(3):
            x, y = torch.randn(8, 3, WIDTH), torch.randn(8, 3, WIDTH)
            plain.zero_grad()
            pipe.zero_grad()
            found = pipe.step(x, target=y, loss_fn=F.mse_loss).loss
            total = torch.zeros(())
            for part, target in zip(x.tensor_split(4), y.tensor_split(4), strict=True):
                loss = F.mse_loss(plain(part), target) * 0.25
                loss.backward()
                total = total + loss.detach()
            assert torch.equal(found, total)
            for one, two in zip(plain.parameters(), pipe.parameters(), strict=True):
                assert torch.equal(one.grad, two.grad)


@pytest.mark.parametrize(
    ("state", "warm"),
    [
        *((state, False) for state in [*STATES, draws_once]),
        *((state, True) for state in STATES if state not in ONCE),
    ],
)
def test_state_in_the_model_s_own_forward_is_refused(state: State, warm: bool) -> None:
    torch.manual_seed(0)
    with pytest.raises(CaptureError, match="which a recording would freeze"):
        assert_steps_are_eager(Root(state), 2, warm)


@pytest.mark.parametrize("state", ONCE)
def test_what_is_done_once_is_recorded_once_it_is_done(state: State) -> None:
    torch.manual_seed(0)
    assert_steps_are_eager(Root(state), 2, warm=True)


@pytest.mark.parametrize("mode", ["real", "fake"])
def test_a_refusal_says_what_and_where(mode: str) -> None:
    wanted = (
        r"'none'(.|\n)*own forward(.|\n)*0\.9 \* part\.none(.|\n)*register_buffer(.|\n)*submodule"
    )
    with pytest.raises(CaptureError, match=wanted):
        fxpipe.trace(Root(starts_with_none), (torch.randn(4, 3, WIDTH),), mode=mode)


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("state", STATES)
def test_state_in_a_submodule_keeps_it_whole(state: State, stages: int) -> None:
    torch.manual_seed(0)
    assert_steps_are_eager(Around(state), stages, warm=False)


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("state", NO_STATES)
def test_what_is_no_state_is_recorded(state: State, stages: int, warm: bool) -> None:
    torch.manual_seed(0)
    assert_steps_are_eager(Root(state), stages, warm)


def test_a_module_s_state_that_the_model_reads_before_is_refused() -> None:
    class Reads(Around):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x + self.part.mean)

    torch.manual_seed(0)
    with pytest.raises(CaptureError, match="'mean'"):
        assert_steps_are_eager(Reads(replaces), 2, warm=False)


def test_a_dict_that_an_earlier_module_reads_in_the_next_run_is_refused() -> None:
    class Shares(Part):
        def __init__(self, state: State, found: dict[str, Tensor]) -> None:
            super().__init__(state)
            self.found = found

    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            found: dict[str, Tensor] = {}
            self.reads, self.one = Shares(reads_shared, found), Block()
            self.two, self.writes = Block(), Shares(writes_shared, found)

        def forward(self, x: Tensor) -> Tensor:
            return self.writes(self.two(self.one(self.reads(x))))

    torch.manual_seed(0)
    with pytest.raises(CaptureError, match="another module keeps a tensor"):
        assert_steps_are_eager(Reads(), 2, warm=False)


def reads_shared(part: Part, new: Tensor) -> Tensor:
    part.none = new
    return part.found.get("shared", new)


def writes_shared(part: Part, new: Tensor) -> Tensor:
    part.none = part.found["shared"] = new
    return new
