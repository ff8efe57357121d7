import torch

from fxpipe.analysis.stand_in import empty, stand_in
from fxpipe.ir.spec import TensorSpec

FOLLOWED = TensorSpec((2, 3), "float32", True)
INTEGERS = TensorSpec((2,), "int64")


def test_a_value_has_the_recorded_structure() -> None:
    source = torch.ones(4, requires_grad=True)
    value = stand_in((FOLLOWED, {"ids": INTEGERS, "n": 3}, None), "cpu", [source], lambda: None)
    first, inner, nothing = value
    assert first.shape == (2, 3)
    assert first.requires_grad
    assert inner["ids"].dtype is torch.int64
    assert inner["n"] == 3
    assert nothing is None


def test_gradients_reach_the_sources_and_are_charged_once() -> None:
    charged = []
    sources = [torch.ones(4, requires_grad=True), torch.ones(2, 2, requires_grad=True)]
    a, b = stand_in((FOLLOWED, FOLLOWED), "cpu", sources, lambda: charged.append(1))
    gradients = torch.autograd.grad(a.sum() + b.sum(), sources)
    assert [g.shape for g in gradients] == [(4,), (2, 2)]
    assert charged == [1]


def test_without_grad_mode_nothing_is_followed() -> None:
    source = torch.ones(4, requires_grad=True)
    with torch.no_grad():
        assert not stand_in(FOLLOWED, "cpu", [source], lambda: None).requires_grad
    assert not stand_in(FOLLOWED, "cpu", [], lambda: None).requires_grad


def test_empty_lies_where_it_is_told() -> None:
    assert empty(FOLLOWED, "meta").is_meta
