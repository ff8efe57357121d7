from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from fxpipe import ops
from fxpipe.capture.fallback import KeepWholeError, LookInsideError
from fxpipe.capture.script import Script
from fxpipe.capture.spans import Frame
from fxpipe.capture.trace import trace
from fxpipe.capture.values import Dependence, Values
from fxpipe.ir.spec import TensorSpec
from tests.unit.capture.small import Box, Pair, Result

X, Y = torch.randn(2), torch.randn(2)


@pytest.fixture
def script() -> Script:
    made = Script({}, {})
    made.frames.append(Frame("block", 0, None))
    return made


@pytest.fixture
def values(script: Script) -> Values:
    made = Values(script, lambda tensor: False)
    made.bind(X, script.placeholder("x", X), Dependence.INPUTS)
    return made


def test_plain_containers_stand_as_they_are(values: Values) -> None:
    x = values.known(X)
    assert values.argument([X, (1, None), {"k": X}]) == [x, (1, None), {"k": x}]
    assert values.argument(slice(None, 3)) == slice(None, 3)
    assert values.argument(torch.Size([2, 3])) == (2, 3)
    assert values.argument(np.float64(0.5)) == 0.5
    assert type(values.argument(np.float64(0.5))) is float
    assert values.argument(torch.float32) is torch.float32


def test_special_containers_are_rebuilt_by_a_node(values: Values, script: Script) -> None:
    node = values.argument(Pair(X, 1))
    assert node.target is ops.rebuild_tuple
    assert script.constants[node.args[0].target] is Pair
    assert values.argument(Result(X)).target is ops.rebuild_object
    assert script.body == ["rebuild_tuple", "rebuild_object"]


def test_objects_without_tensors_are_constants(values: Values, script: Script) -> None:
    settings = Box("quiet")
    node = values.argument(settings)
    assert script.constants[node.target] is settings
    assert values.argument(settings) is node
    assert script.body == []


def test_leaf_is_not_handed_objects_with_state(values: Values) -> None:
    values.argument(Result(X), leaf="block.leaf")
    with pytest.raises(LookInsideError, match="a Box that holds tensors") as caught:
        values.argument(Box(X), leaf="block.leaf")
    assert caught.value.path == "block.leaf"


def test_tensors_from_nowhere(values: Values, script: Script) -> None:
    assert values.argument(Y).op == "get_attr"
    with pytest.raises(KeepWholeError, match="could not see") as caught:
        values.argument(torch.ones(1, requires_grad=True) * 2)
    assert caught.value.path == "block"
    hidden = torch.ones(1)
    values.hidden[id(hidden)] = (hidden, "block.leaf")
    with pytest.raises(LookInsideError, match="by a hook"):
        values.argument(hidden)


def test_keys_that_cannot_stand_in_a_graph(values: Values) -> None:
    with pytest.raises(KeepWholeError, match="keys"):
        values.argument({frozenset((1, 2)): X})


def test_tuples_are_keys(values: Values) -> None:
    (key,) = values.argument({("a", (1, None)): X})
    assert key == ("a", (1, None))


def test_results_are_unpacked_at_once(values: Values, script: Script) -> None:
    result: dict[str, Any] = {"a": [Y, 3], "box": Box(torch.ones(1))}
    node = script.emit("call_module", "leaf", (), value=result)
    values.bind(result, node, Dependence.WEIGHTS)
    assert script.body == ["leaf", "getitem", "getitem_1", "getitem_2", "getattr_1"]
    assert values.known(Y).name == "getitem_1"
    assert values.known(result["box"]).name == "getitem_2"
    assert values.argument(result["box"]).name == "getitem_2"


def test_dependence(values: Values, script: Script) -> None:
    weight = torch.nn.Parameter(Y)
    assert values.dependence([3, "x", Y]) is Dependence.NOTHING
    assert values.dependence({"k": X}) is Dependence.INPUTS
    assert values.dependence((X, weight)) is Dependence.WEIGHTS


def test_sizes_that_depend_on_data(values: Values, script: Script) -> None:
    found = torch.ones(3)
    node = script.emit("call_method", "nonzero", (), value=found)
    values.bind(found, node, Dependence.INPUTS, sized_by_data=True)
    assert values.is_sized_by_data([X, found])
    assert not values.is_sized_by_data(X)


def test_packed_data_is_sized_by_data_and_indices_are_not(values: Values, script: Script) -> None:
    packed = pack_padded_sequence(
        torch.ones(2, 2, 1), torch.tensor([2, 1]), True, enforce_sorted=False
    )
    node = script.emit("call_module", "lstm", (), value=packed)
    values.bind(packed, node, Dependence.WEIGHTS)
    assert [values.is_sized_by_data(part) for part in packed] == [True, True, False, False]


def test_scalars_have_no_size(values: Values, script: Script) -> None:
    loss = torch.tensor(1.0)
    node = script.emit("call_function", torch.sum, (), value=loss)
    values.bind(loss, node, Dependence.INPUTS, sized_by_data=True)
    assert not values.is_sized_by_data(loss)


def test_aliases_are_forgotten_unless_returned(values: Values, script: Script) -> None:
    x = values.known(X)
    alias = script.emit("call_module", "drop", (x,), value=X)
    values.bind(X, alias, Dependence.WEIGHTS)
    assert values.known(X) is alias
    values.restore_aliases(script.frame.aliases, {"drop": ()})
    assert values.known(X) is alias
    values.restore_aliases(script.frame.aliases, {})
    assert values.known(X) is x


def test_a_weight_that_a_call_passed_on_is_read_anew_afterwards() -> None:
    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.weight.float()  # the very parameter, as it is one already

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = Norm()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.norm(x).relu())

    found = trace(Twice(), (torch.randn(4, 2),))
    assert [span.fixed for span in found.spans if span.path == "norm"] == [None, None]


def test_requires_grad_at_the_end(values: Values, script: Script) -> None:
    made = torch.zeros(3)
    node = script.emit("call_function", torch.zeros, (3,), value=made)
    values.bind(made, node, Dependence.NOTHING)
    made[:2].copy_(torch.ones(2, requires_grad=True))
    assert node.meta["spec"] == TensorSpec((3,), "float32", False)
    values.refresh()
    assert node.meta["spec"] == TensorSpec((3,), "float32", True)
