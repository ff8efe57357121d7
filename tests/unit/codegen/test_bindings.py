from __future__ import annotations

from fxpipe.codegen.bindings import Bindings


def test_names_follow_the_model() -> None:
    bound = Bindings()
    assert bound.module("down_1.conv") == "self.down_1_conv"
    assert bound.module("") == "self.model"
    assert bound.module("0") == "self.layer_0"
    assert bound.tensor("down_1.conv") == "self.down_1_conv_1"
    assert bound.constant("_fxpipe_constant_3") == "self.constant_3"
    assert bound.module("down_1.conv") == "self.down_1_conv"
    assert bound.modules == {"down_1_conv": "down_1.conv", "model": "", "layer_0": "0"}
    assert bound.tensors == {"down_1_conv_1": "down_1.conv"}
    assert bound.constants == {"constant_3": "_fxpipe_constant_3"}


def test_attributes_of_every_stage_are_not_taken() -> None:
    bound = Bindings()
    assert [bound.module(name) for name in ("forward", "keyed", "device")] == [
        "self.forward_1",
        "self.keyed_1",
        "self.device_1",
    ]


def test_objects_are_known_by_identity() -> None:
    bound = Bindings()
    first, second = [1], [1]
    function = lambda x: x  # noqa: E731
    assert bound.unwritten(first) == "self.list"
    assert bound.unwritten(second) == "self.list_1"
    assert bound.unwritten(first) == "self.list"
    assert bound.unwritten(function) == "self.lambda_1"
    assert bound.constants == {"list": first, "list_1": second, "lambda_1": function}
