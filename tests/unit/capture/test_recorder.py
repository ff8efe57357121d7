from __future__ import annotations

import pytest
import torch
import torch.fx
from torch import nn
from torch.nn import functional as F

from fxpipe import ops
from fxpipe.analysis.cuts import legal_cuts
from fxpipe.capture.trace import trace
from fxpipe.ir.capture import Capture
from fxpipe.ir.spec import TensorSpec
from tests.unit.capture import small
from tests.unit.capture.agree import assert_agrees

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


class KeepsMean(nn.Module):
    """Replaces a buffer at each call; it may start as None."""

    def __init__(self, start: torch.Tensor | None) -> None:
        super().__init__()
        self.register_buffer("mean", start)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = x.detach().mean(0)
        return x - self.mean


@pytest.mark.parametrize("mode", ["real", "fake"])
def test_every_replacement_of_a_buffer_counts(mode: str) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.keeps, self.linear = KeepsMean(torch.zeros(4)), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.keeps(self.linear(self.keeps(x)))

    capture = trace(Twice(), (X,), mode=mode)
    found = {node.name: node.meta["buffers"] for node in capture.body}
    assert found == {"keeps": ("keeps.mean",), "linear": (), "keeps_1": ("keeps.mean",)}
    assert legal_cuts(capture) == ()


@pytest.mark.parametrize("mode", ["real", "fake"])
def test_a_buffer_that_was_none_counts_as_changed(mode: str) -> None:
    for model in (KeepsMean(None), small.Chain(KeepsMean(None))):
        changed = [node.meta["buffers"] for node in trace(model, (X,), mode=mode).body]
        assert [names for names in changed if names] in ([("mean",)], [("parts.0.mean",)])


def test_writes_into_a_replaced_buffer_count() -> None:
    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            old = self.mean
            self.mean = x.detach().mean(0)
            self.mean.add_(1)
            self.mean = self.mean * 2
            return x - self.mean + old

    capture = trace(Root(), (X,))
    assert [n.name for n in capture.body if n.meta["buffers"]] == [
        "set_attribute",
        "add",
        "set_attribute_1",
    ]


def test_a_module_that_keeps_what_is_read_outside_is_looked_into() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("n", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.n = self.n + 1
            return x

    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.counts, self.linear = Counts(), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(self.counts(x)) * self.counts.n

    for model in (Reads(), small.Chain(Reads(), Reads(), small.Mlp())):
        capture = trace(model, (X,))
        assert capture.leaves == ()
        assert_agrees(capture, model, (X,), rows=3)
    changed = [n.meta["buffers"] for n in capture.body if n.meta["buffers"]]
    assert changed == [("parts.0.counts.n",), ("parts.1.counts.n",)]
