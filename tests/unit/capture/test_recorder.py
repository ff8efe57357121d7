from __future__ import annotations

import pytest
import torch
import torch.fx
from torch import nn
from torch.nn import functional as F

from fxpipe import ops
from fxpipe.capture.trace import trace
from fxpipe.ir.capture import Capture
from fxpipe.ir.spec import TensorSpec
from tests.unit.capture import small

X = torch.randn(2, 4)
IMAGE = torch.randn(2, 4, 6, 6)

KEYS = {"path", "call", "source", "spec", "storages", "mutates", "buffers", "draws", "regions"}


def meta(capture: Capture, name: str, key: str) -> object:
    return capture.node(name).meta[key]


def test_every_node_has_every_fact() -> None:
    for model, args in ((small.ConvNet(), (IMAGE,)), (small.Noise(), (X,)), (small.Sizes(), (X,))):
        capture = trace(model, args)
        for node in capture.graph.nodes:
            if node.op == "output":
                continue
            assert set(node.meta) >= KEYS, node.name
            assert node.name.isidentifier()
            assert ("rng" in node.meta) is (node.meta["draws"] > 0)
            assert ("via" in node.meta) is (node.op == "call_module")


def test_place_of_a_node() -> None:
    capture = trace(small.ConvNet(), (IMAGE,))
    assert meta(capture, "blocks_1_conv", "path") == "blocks.1"
    assert meta(capture, "blocks_1_conv", "call") == 0
    assert meta(capture, "cat", "path") == ""
    assert capture.spec("head") == TensorSpec((2, 2), "float32", True)


def test_draws_are_keyed_by_the_innermost_module() -> None:
    capture = trace(small.Chain(small.Noise(), nn.Dropout(0.5)), (X,))
    drawing = {node.name: node.meta["rng"] for node in capture.body if node.meta["draws"]}
    assert drawing == {
        "randn_like": ("parts.0#0", 0),
        "dropout": ("parts.0#0", 1),
        "rand": ("parts.0#0", 2),
        "parts_1": ("parts.1#0", 0),
    }


def test_second_call_of_a_dropout_has_a_key_of_its_own() -> None:
    drop = nn.Dropout(0.5)
    capture = trace(small.Chain(drop, small.Mlp(), drop), (X,))
    drawing = [node.meta["rng"] for node in capture.body if node.meta["draws"]]
    assert drawing == [("parts.0#0", 0), ("parts.0#1", 0)]


def test_modules_that_draw_twice() -> None:
    capture = trace(nn.Sequential(nn.LSTM(4, 4, 3, dropout=0.5)), (X[:, None],))
    (node,) = [node for node in capture.body if node.op == "call_module"]
    assert node.meta["draws"] == 2


def test_evaluation_draws_nothing() -> None:
    capture = trace(small.ConvNet().eval(), (IMAGE,))
    assert {node.meta["draws"] for node in capture.body} == {0}


def test_writes_and_storages() -> None:
    capture = trace(small.ConvNet(), (IMAGE,))
    (made,) = meta(capture, "blocks_0_drop", "storages")  # type: ignore[misc]
    assert meta(capture, "blocks_0_drop", "mutates") == ()
    for name in ("add", "blocks_0_act"):
        assert meta(capture, name, "storages") == (made,)
        assert meta(capture, name, "mutates") == (made,)
    assert meta(capture, "cat", "storages") == meta(capture, "getitem", "storages")


def test_buffers_that_a_node_changes() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))
            self.norm = nn.BatchNorm2d(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return self.norm(x) * self.calls

    capture = trace(Counts(), (IMAGE,))
    assert meta(capture, "add", "buffers") == ("calls",)
    assert meta(capture, "norm", "buffers") == (
        "norm.running_mean",
        "norm.running_var",
        "norm.num_batches_tracked",
    )
    assert trace(Counts().eval(), (IMAGE,)).node("norm").meta["buffers"] == ()


def test_spectral_norm_changes_its_vectors() -> None:
    model = nn.Sequential(nn.utils.spectral_norm(nn.Linear(4, 4)))
    assert set(trace(model, (X,)).body[0].meta["buffers"]) == {"0.weight_u", "0.weight_v"}


def test_parameters_and_constants_are_read_by_name() -> None:
    table = torch.arange(4.0)

    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4, 4))
            self.plain = table

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.linear(x, self.weight) + self.plain

    capture = trace(Reads(), (X,))
    reads = [node.target for node in capture.graph.nodes if node.op == "get_attr"]
    assert reads == ["weight", "_fxpipe_constant_0"]
    assert capture.constants["_fxpipe_constant_0"] is table


def test_handwritten_function_is_one_node() -> None:
    capture = trace(small.Handwritten(), (X,))
    node = capture.body[-1]
    assert node.target is ops.apply_function
    assert node.args[0].target in capture.constants  # type: ignore[union-attr]
    assert capture.constants[str(node.args[0].target)] is small.Double  # type: ignore[union-attr]


def test_tensor_kept_on_the_model_is_a_node() -> None:
    capture = trace(small.Keeps(), (X,))
    assert [node.target for node in capture.body] == ["linear", ops.set_attribute, "mul"]


def test_fake_and_real_runs_write_the_same_graph() -> None:
    for model, args in ((small.ConvNet(), (IMAGE,)), (small.Noise(), (X,)), (small.Writes(), (X,))):
        real, fake = (trace(model, args, mode=mode) for mode in ("real", "fake"))
        assert real.fingerprint() == fake.fingerprint()
        assert [span.nodes for span in real.spans] == [span.nodes for span in fake.spans]
        for one, two in zip(real.graph.nodes, fake.graph.nodes, strict=True):
            assert one.meta == two.meta, one.name


@pytest.mark.parametrize("mode", ["real", "fake"])
def test_buffers_that_are_replaced_count_as_changed(mode: str) -> None:
    leaf = trace(small.Chain(small.KeepsBuffer()), (X,), mode=mode)
    assert meta(leaf, "parts_0", "buffers") == ("parts.0.average",)
    root = trace(small.KeepsBuffer(), (X,), mode=mode)
    assert meta(root, "set_attribute", "buffers") == ("average",)
