from __future__ import annotations

import torch
from torch import nn

from fxpipe.runtime.leaves import NO_LEAVES, add_up, leaf_for, leaf_of

HERE, ELSEWHERE = torch.device("cpu"), torch.device("meta")


def test_a_leaf_has_the_memory_of_its_parameter_and_a_gradient_of_its_own() -> None:
    parameter = nn.Parameter(torch.ones(2))
    leaf = leaf_for(parameter, HERE, keeps_graph=True)
    assert isinstance(leaf, nn.Parameter)
    assert leaf is not parameter
    leaf.sum().backward()
    parameter.data.mul_(3)
    assert leaf.tolist() == [3.0, 3.0]
    assert parameter.grad is None


def test_what_gets_no_gradient_is_read_itself_where_it_is() -> None:
    parameter = nn.Parameter(torch.ones(2))
    buffer = torch.ones(2)
    assert leaf_for(parameter, HERE, keeps_graph=False) is None
    assert leaf_for(buffer, HERE, keeps_graph=True) is None
    for tensor in (parameter, buffer):
        there = leaf_for(tensor, ELSEWHERE, keeps_graph=False)
        assert there is not None
        assert there.device == ELSEWHERE
        assert type(there) is type(tensor)


def test_what_has_no_leaf_is_itself() -> None:
    one, other, leaf = torch.ones(1), torch.ones(1), torch.zeros(1)
    assert leaf_of({one: leaf}, one) is leaf
    assert leaf_of({one: leaf}, other) is other
    assert leaf_of({one: leaf}, None) is None


def test_gradients_are_added_in_stage_order_through_the_parameters_hooks() -> None:
    parameter = nn.Parameter(torch.zeros(1))
    parameter.grad = torch.tensor([1e8])
    seen: list[float] = []
    after: list[float] = []
    parameter.register_hook(lambda grad: seen.append(grad.item()))
    parameter.register_post_accumulate_grad_hook(lambda p: after.append(p.grad.item()))
    leaves = []
    for value in (-1e8, None, 1.0):
        leaf = nn.Parameter(torch.zeros(1))
        leaf.grad = None if value is None else torch.tensor([value])
        leaves.append({parameter: leaf})
    add_up([*leaves, NO_LEAVES])
    assert seen == [-1e8, 1.0]
    assert after == [0.0, 1.0]
    assert all(leaf.grad is None for each in leaves for leaf in each.values())
