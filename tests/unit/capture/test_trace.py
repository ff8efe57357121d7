from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fxpipe.capture.trace import trace
from fxpipe.errors import CaptureError
from tests.unit.capture import small
from tests.unit.capture.agree import assert_agrees

X = torch.randn(2, 4, generator=torch.Generator().manual_seed(1))
IMAGE = torch.randn(2, 4, 6, 6, generator=torch.Generator().manual_seed(2))
TOKENS = torch.tensor([[1, 2, 3], [4, 5, 6]])

CALLS: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "convolutions": (small.ConvNet, (IMAGE,), {}),
    "a keyword": (small.ConvNet, (IMAGE,), {"scale": 2.0}),
    "regions": (small.TwoRegions, (X,), {}),
    "tied weights": (small.Tied, (TOKENS,), {}),
    "a decision kept inside": (lambda: small.Chain(small.Mlp(), small.Decides()), (X,), {}),
    "a tensor kept": (lambda: small.Chain(small.Mlp(), small.Keeps()), (X,), {}),
    "a tensor kept on the model": (small.Keeps, (X,), {}),
    "a buffer replaced": (lambda: small.Chain(small.KeepsBuffer(), small.Mlp()), (X,), {}),
    "a buffer of the model replaced": (small.KeepsBuffer, (X,), {}),
    "random in a module": (lambda: small.Chain(small.PythonRandom(), small.Mlp()), (X,), {}),
    "noise": (small.Noise, (X,), {}),
    "a handwritten function": (small.Handwritten, (X,), {}),
    "checkpoints": (small.Checkpointed, (X,), {}),
    "forward called directly": (small.CallsForward, (X,), {}),
    "writes": (small.Writes, (X,), {}),
    "sizes": (small.Sizes, (X,), {}),
    "rows in a module": (lambda: small.Chain(small.Mlp(), small.RowByRow()), (X,), {}),
    "vmap in a module": (lambda: small.Chain(small.Mlp(), small.Mapped()), (X,), {}),
    "containers": (small.Containers, ({"x": X, "more": [X, None]},), {"bias": X}),
    "keys that are tuples": (small.Relations, ({("a", "b"): X, ("b", "a"): X + 1},), {}),
    "a cache": (small.WithCache, (X,), {}),
    "a leaking hook": (small.Leaks, (X,), {}),
    "an LSTM": (small.Recurrent, (TOKENS,), {}),
    "a layer": (lambda: nn.Linear(4, 4), (X,), {}),
    "a transformer layer": (
        lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True),
        (X[:, None],),
        {},
    ),
    "a scripted module": (
        lambda: small.Chain(torch.jit.script(small.Mlp()), small.Mlp()),
        (X,),
        {},
    ),
    "spectral norm": (
        lambda: nn.Sequential(
            nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)),
            nn.utils.spectral_norm(nn.Linear(4, 4)),
        ),
        (X,),
        {},
    ),
}


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("mode", ["real", "fake"])
@pytest.mark.parametrize("name", CALLS)
def test_graph_computes_what_the_module_computes(name: str, mode: str, training: bool) -> None:
    make, args, kwargs = CALLS[name]
    model = make().train(training)
    capture = trace(model, args, kwargs, mode=mode)
    assert capture.mode == mode
    if name == "random in a module":  # draws from another generator, which agree() does not seed
        return
    assert_agrees(capture, model, args, kwargs)
    assert_agrees(capture, model, args, kwargs, rows=4)
    assert_agrees(capture, model, args, kwargs, rows=5)


def test_results_of_one_row_are_recorded_with_two() -> None:
    model = small.ConvNet()
    capture = trace(model, (IMAGE[:1],))
    assert capture.batch_size == 2
    assert_agrees(capture, model, (IMAGE,), rows=3)


def test_model_without_inputs() -> None:
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.start = nn.Parameter(torch.ones(2, 4))
            self.body = small.Mlp()

        def forward(self, factor: int = 2) -> torch.Tensor:
            return self.body(self.start) * factor

    model = Constant()
    capture = trace(model, kwargs={"factor": 3})
    assert capture.signature.placeholders == ()
    assert_agrees(capture, model, kwargs={"factor": 3})


def test_meta_model_is_recorded_without_data() -> None:
    with torch.device("meta"):
        model = small.ConvNet()
    capture = trace(model, (IMAGE.to("meta"),))
    assert capture.mode == "fake"
    assert [node.name for node in capture.body][1:4] == [
        "blocks_0_conv",
        "blocks_0_norm",
        "blocks_0_drop",
    ]


def test_auto_runs_on_data_where_data_decides() -> None:
    model = small.MaskedLoss()
    capture = trace(model, (X, torch.tensor([1, 0])))
    assert capture.mode == "real"
    assert_agrees(capture, model, (X, torch.tensor([2, 1])))
    with pytest.raises(CaptureError, match="without data"):
        trace(model, (X, torch.tensor([1, 0])), mode="fake")


def test_unknown_mode() -> None:
    with pytest.raises(ValueError, match="'auto', 'real' or 'fake'"):
        trace(small.Mlp(), (X,), mode="symbolic")


@pytest.mark.parametrize("mode", ["real", "fake"])
def test_model_and_generators_are_left_as_they_were(mode: str) -> None:
    model = small.Chain(small.Noise(), small.KeepsBuffer(), small.Keeps(), nn.BatchNorm1d(4))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    objects = [id(tensor) for tensor in [*model.parameters(), *model.buffers()]]
    attributes = [dict(module.__dict__) for module in model.modules()]
    before = (torch.get_rng_state(), random.getstate(), str(np.random.get_state()))
    call = nn.Module.__call__
    trace(model, (X,), mode=mode)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert [id(tensor) for tensor in [*model.parameters(), *model.buffers()]] == objects
    assert [list(module.__dict__) for module in model.modules()] == [list(a) for a in attributes]
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), str(np.random.get_state())) == before[1:]
    assert nn.Module.__call__ is call
    assert all(parameter.grad is None for parameter in model.parameters())


class Interrupts(nn.Module):
    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.body = small.KeepsBuffer()
        self.error = error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.set_grad_enabled(False)
        self.body(x)
        torch.rand(1)
        raise self.error("stop")


@pytest.mark.parametrize("mode", ["real", "fake"])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_everything_is_put_back_when_the_model_fails(mode: str, error: type[BaseException]) -> None:
    model = Interrupts(error)
    parameter, average, random_state = model.body.body.linear.weight, model.body.average, None
    random_state = torch.get_rng_state()
    call = nn.Module.__call__
    with pytest.raises(error, match="stop"):
        trace(model, (X,), mode=mode)
    assert nn.Module.__call__ is call
    assert "forward" not in model.__dict__
    assert model.body.body.linear.weight is parameter
    assert model.body.average is average
    assert not average.any()
    assert torch.equal(torch.get_rng_state(), random_state)
    assert torch.is_grad_enabled()


def test_other_threads_are_not_recorded() -> None:
    other, stop, results = small.Mlp(), threading.Event(), []

    def run() -> None:
        while not stop.is_set():
            results.append(other(X).sum().item())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        captures = [trace(small.ConvNet(), (IMAGE,)) for _ in range(3)]
    finally:
        stop.set()
        thread.join()
    assert len(set(results)) == 1
    assert len({capture.fingerprint() for capture in captures}) == 1


def test_two_threads_record_at_once() -> None:
    models = [small.ConvNet() for _ in range(2)]
    found: dict[int, Any] = {}

    def run(index: int) -> None:
        found[index] = trace(models[index], (IMAGE,), verify=False)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1]
    assert_agrees(found[0], models[0], (IMAGE,))


class Rooted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = small.Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.body(x)
        return h if h.sum() > 0 else -h


def test_error_names_path_line_operation_reason_and_remedy() -> None:
    with pytest.raises(CaptureError) as caught:
        trace(Rooted(), (X,))
    text = str(caught.value)
    assert "depends on values of tensors" in text
    assert "the model's own forward" in text
    assert "test_trace.py" in text
    assert "return h if h.sum() > 0 else -h" in text
    assert "operation: __bool__" in text
    assert "What to do" in text
    assert "A fake run fails as well" in caught.value.__notes__[0]


def test_rows_that_decide_the_number_of_steps() -> None:
    with pytest.raises(CaptureError, match="with 4 rows instead of 2"):
        trace(small.RowByRow(), (X,))


def test_random_branch_at_the_root_names_the_remedy() -> None:
    with pytest.raises(CaptureError, match="layerdrop=0"):
        trace(small.PythonRandom(), (X,))


def test_leaves_by_fallback_are_reported() -> None:
    model = small.Chain(small.Mlp(), small.Decides())
    (report,) = trace(model, (X,)).leaves
    assert report.path == "parts.1"
    assert report.module_class.endswith("Decides")
    assert "values of tensors" in report.reason
    assert "return h * 2 if h.sum() > 0" in report.source


def test_same_capture_every_time() -> None:
    model = small.ConvNet()
    first, second = trace(model, (IMAGE,)), trace(model, (IMAGE,))
    assert first == second
    assert str(first.graph) == str(second.graph)
    assert "fallback leaves" in str(first)


def test_sequence_first_models_are_batched_along_dimension_one() -> None:
    model = small.Recurrent(batch_first=False)
    tokens = torch.arange(12).reshape(4, 3)
    capture = trace(model, (tokens,))
    assert [leaf.batch_dim for leaf in capture.signature.placeholders] == [1]
    assert [leaf.batch_dim for leaf in capture.signature.outputs] == [1, 1, 1]
    assert_agrees(capture, model, (tokens,), rows=5)


def test_what_takes_no_other_number_of_rows_has_none() -> None:
    model, x = small.Neighbours(), torch.randn(6, 4)
    edges = torch.tensor([[0, 5, 3, 2], [1, 4, 5, 0]])
    capture = trace(model, (x, edges))
    assert [leaf.batch_dim for leaf in capture.signature.placeholders] == [None, None]
    assert [leaf.batch_dim for leaf in capture.signature.outputs] == [None]
    assert_agrees(capture, model, (x, edges))


def test_rows_that_are_asked_for_must_be_taken() -> None:
    edges = torch.tensor([[0, 5, 3, 2], [1, 4, 5, 0]])
    with pytest.raises((IndexError, RuntimeError)) as caught:
        trace(small.Neighbours(), (torch.randn(6, 4), edges), batch_dims=(0, None))
    assert "on 3 rows, where the example" not in str(caught.value)
    assert any("chunks=1" in note for note in caught.value.__notes__)


def test_a_call_that_fails_anyway_raises_the_models_own_error() -> None:
    with pytest.raises(RuntimeError, match="6x3 and 4x4") as caught:
        trace(small.Mlp(), (torch.randn(6, 3),))
    assert not hasattr(caught.value, "__notes__")
    assert caught.value.__context__ is None


class MakesALayer(nn.Module):
    """Makes a layer when it runs first."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "late"):
            self.late = nn.Linear(x.shape[-1], 4)
        return self.late(self.one(x))


class Unregistered(nn.Module):
    """Has layers in a plain list."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(4, 4), nn.Linear(4, 4)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize("mode", ["real", "fake", "auto"])
@pytest.mark.parametrize("cls", [MakesALayer, Unregistered])
def test_parameters_that_are_not_the_model_s_are_told(cls: type[nn.Module], mode: str) -> None:
    model = cls()
    with pytest.raises(CaptureError, match="a parameter that is not among the model's") as caught:
        trace(model, (torch.randn(2, 4),), mode=mode)
    assert "nn.ModuleList" in str(caught.value)
    assert not hasattr(model, "late")


def test_a_layer_made_beforehand_is_recorded() -> None:
    model, x = MakesALayer(), torch.randn(2, 4)
    model(x)
    assert [node.target for node in trace(model, (x,)).body] == ["one", "late"]


def test_a_model_that_fails_anyhow_says_so() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(4, 4))
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes") as found:
        trace(model, (torch.randn(4, 8),), batch_dims=(0,))
    assert found.value.__notes__[0].startswith("The model fails on 2 rows and on 4")

    class Whole(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(4, 8) * 2

    with pytest.raises(RuntimeError, match="invalid for input of size") as found:
        trace(Whole(), (torch.randn(4, 8),), batch_dims=(0,))
    assert found.value.__notes__[0].startswith("To record it for every batch size")
