from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import fxpipe
from fxpipe.ir.capture import Capture


class Net(nn.Module):
    def __init__(self, forward: Callable[[Net, Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.todo = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.todo(self, x)


def holds(capture: Capture, rows: int) -> bool:
    assert capture.holds_at is not None
    return capture.holds_at([torch.randn(rows, 4)])


@pytest.mark.parametrize("mode", ["real", "fake"])
def test_numbers_that_follow_the_rows(mode: str) -> None:
    net = Net(lambda net, x: net.b(net.a(x).reshape(2 * len(x), 2).reshape(-1, 4) / len(x)))
    capture = fxpipe.trace(net, (torch.randn(4, 4),), mode=mode)
    assert capture.rows == (2, 4)
    assert [holds(capture, rows) for rows in (1, 3, 40)] == [True, True, True]


@pytest.mark.parametrize("mode", ["real", "fake"])
def test_other_steps(mode: str) -> None:
    net = Net(lambda net, x: net.b(net.a(x) if len(x) > 1 else x))
    capture = fxpipe.trace(net, (torch.randn(4, 4),), mode=mode)
    assert [holds(capture, rows) for rows in (1, 3, 40)] == [False, True, True]


def test_other_numbers() -> None:
    net = Net(lambda net, x: net.b(net.a(x) * min(len(x), 8)))
    capture = fxpipe.trace(net, (torch.randn(4, 4),))
    assert [holds(capture, rows) for rows in (1, 8, 9)] == [True, True, False]


def test_other_arguments_of_a_module_that_makes_no_step_of_them() -> None:
    class Passes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: Tensor, times: int) -> Tensor:
            return self.inner(x)

    net = Net(lambda net, x: net.b(net.passes(x, 1 if len(x) < 9 else 2)))
    net.passes = Passes()
    capture = fxpipe.trace(net, (torch.randn(4, 4),))
    assert [holds(capture, rows) for rows in (1, 8, 9)] == [True, True, False]


def test_without_rows() -> None:
    capture = fxpipe.trace(Net(lambda net, x: net.b(x)), (torch.randn(4, 4),), batch_dims=[None])
    assert capture.rows is None


def test_what_the_model_raises_comes_out() -> None:
    def forward(net: Net, x: Tensor) -> Tensor:
        if len(x) == 1:
            raise ValueError("one row")
        return net.b(x)

    capture = fxpipe.trace(Net(forward), (torch.randn(4, 4),))
    with pytest.raises(ValueError, match="one row"):
        holds(capture, 1)


def test_a_graph_is_left_as_it_was() -> None:
    net = Net(lambda net, x: net.b(net.a(x) if len(x) > 1 else x))
    capture = fxpipe.trace(net, (torch.randn(4, 4),))
    before, state = capture.fingerprint(), copy.deepcopy(net.state_dict())
    for rows in (1, 9):
        holds(capture, rows)
    assert capture.fingerprint() == before
    for name, value in net.state_dict().items():
        assert torch.equal(value, state[name])


def test_neither_the_model_nor_inputs_are_held() -> None:
    net = Net(lambda net, x: net.b(net.a(x)))
    x = torch.randn(4, 4)
    capture = fxpipe.trace(net, (x,))
    seen = [weakref.ref(net), weakref.ref(x)]
    del net, x
    gc.collect()
    assert [each() for each in seen] == [None, None]
    assert not holds(capture, 1)


def test_copies_do_not_know_the_model() -> None:
    capture = fxpipe.trace(Net(lambda net, x: net.b(x)), (torch.randn(4, 4),))
    assert capture.__getstate__()["holds_at"] is None
