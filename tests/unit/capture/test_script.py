from __future__ import annotations

import torch

from fxpipe.capture.script import CONSTANT, Script
from fxpipe.capture.spans import Frame
from fxpipe.capture.watch import Effects, storage_key
from fxpipe.ir.spec import TensorSpec

X = torch.zeros(2)


def test_nodes_get_their_facts() -> None:
    buffer = torch.zeros(3)
    script = Script({id(buffer): "norm.mean"}, {storage_key(buffer): "norm.mean"})
    script.frames.append(Frame("block", 2, None))
    script.regions.append(7)
    read = script.parameter(buffer)
    assert read is not None
    assert script.parameter(X) is None
    node = script.emit(
        "call_function", torch.add, (read, 1), value=X, effects=Effects(2, {storage_key(buffer)})
    )
    assert node.meta["source"].endswith("in test_nodes_get_their_facts: node = script.emit(")
    assert {key: node.meta[key] for key in node.meta if key != "source"} == {
        "path": "block",
        "call": 2,
        "spec": TensorSpec((2,), "float32"),
        "storages": (1,),
        "mutates": (0,),
        "buffers": ("norm.mean",),
        "draws": 2,
        "regions": (7,),
        "rng": ("block#2", 0),
    }
    again = script.emit("call_function", torch.add, (read, 1), value=X, effects=Effects(1))
    assert again.meta["rng"] == ("block#2", 2)
    other = script.emit("call_module", "drop", (), value=X, effects=Effects(1), scope="drop#0")
    assert other.meta["rng"] == ("drop#0", 0)
    assert script.body == ["add", "add_1", "drop"]


def test_one_node_per_attribute_and_constant() -> None:
    script = Script({id(X): "weight"}, {})
    assert script.parameter(X) is script.parameter(X)
    value = object()
    assert script.constant(value) is script.constant(value)
    assert script.constants == {f"{CONSTANT}0": value}
    assert script.constant(object()).target == f"{CONSTANT}1"


def test_values_are_kept_on_demand() -> None:
    script = Script({}, {})
    script.kept = {}
    value = torch.zeros(2)
    script.emit("call_method", "sin", (), value=[value, 3])
    value.add_(1)
    (kept,) = script.kept["sin"]
    assert kept.tolist() == [0, 0]
