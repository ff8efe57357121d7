from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fxpipe.errors import ExecutionError
from fxpipe.runtime.values import edge_of, edges_of, map_tensors, roots, seal, tensors_in

Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Box:
    tensor: Tensor
    name: str


def nested() -> dict[str, Any]:
    return {
        "a": torch.ones(1),
        "b": [torch.ones(2), (3, None, "x", Pair(torch.ones(4), 5))],
        "c": OrderedDict(d=Box(torch.ones(5), "box")),
    }


def test_tensors_are_found_in_order() -> None:
    assert [t.numel() for t in tensors_in(nested())] == [1, 2, 4, 5]
    assert tensors_in(3) == []
    assert tensors_in(None) == []


def test_map_keeps_everything_else() -> None:
    value = nested()
    mapped = map_tensors(value, lambda tensor: tensor * 0)
    assert [t.sum().item() for t in tensors_in(mapped)] == [0.0] * 4
    assert [t.sum().item() for t in tensors_in(value)] == [1.0, 2.0, 4.0, 5.0]
    assert type(mapped["b"][1][3]) is Pair
    assert type(mapped["c"]) is OrderedDict
    assert mapped["c"]["d"].name == "box"
    assert mapped["b"][1][:3] == (3, None, "x")


def test_what_has_no_tensors_stays_the_same_object() -> None:
    value = [1, {"a": (2, 3)}]
    assert map_tensors(value, lambda tensor: tensor * 0) is value


def test_packed_sequences() -> None:
    packed = nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
    sealed = seal(packed)
    assert type(sealed) is type(packed)
    assert torch.equal(sealed.data, packed.data)
    assert sealed.data is not packed.data


def test_sealed_values_are_detached_and_marked() -> None:
    x = torch.ones(2, requires_grad=True)
    value = (x * 2, torch.ones(3), 7)
    sealed = seal(value)
    assert [t.requires_grad for t in tensors_in(sealed)] == [True, False]
    assert all(t.is_leaf for t in tensors_in(sealed))
    assert sealed[0].data_ptr() == value[0].data_ptr()
    assert sealed[2] == 7


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x,  # a leaf
        lambda x: x * 2,
        lambda x: torch.split(x, 1)[1],  # not the first output of its node
        Twice.apply,  # a node written in Python, which only its tensor keeps alive
    ],
)
def test_backward_from_an_edge_whose_tensor_is_gone(make: Any) -> None:
    x = torch.ones(2, requires_grad=True)
    y = make(x)
    grad = torch.full_like(y, 3.0).detach()
    (expected,) = torch.autograd.grad(make(x), x, grad)
    edge = edge_of(y)
    del y
    torch.autograd.backward((edge,), (grad,))
    assert x.grad is not None
    assert torch.equal(x.grad, expected)


def test_edges_match_the_marked_tensors() -> None:
    x = torch.ones(2, requires_grad=True)
    value = (x * 2, torch.ones(3), [x * 3])
    edges = edges_of(value, seal(value))
    assert isinstance(edges, tuple)
    assert len(edges) == 2
    assert edges_of(torch.ones(2), torch.ones(2)) is None
    assert edges_of((1, torch.ones(2)), (1, torch.ones(2))) is None
    assert edges_of(3, 3) is None


def test_a_gradient_that_would_be_lost() -> None:
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(ExecutionError, match=r"shape \(2,\) that requires grad"):
        edges_of(x * 2, torch.ones(2))


def test_roots_are_the_edges_with_a_gradient() -> None:
    x = torch.ones(2, requires_grad=True)
    one, two = edge_of(x * 2), edge_of(x * 3)
    grad = torch.ones(2)
    assert list(roots(one, grad)) == [(one, grad)]
    assert list(roots(one, None)) == []
    assert list(roots((one, two), (None, grad))) == [(two, grad)]
    assert list(roots((one, None), (grad, grad))) == [(one, grad)]
    assert list(roots(None, grad)) == []
