from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.amp.autocast_mode import autocast
from torch.utils import checkpoint as checkpoint_module
from torch.utils.checkpoint import checkpoint

from fxpipe.capture import patches
from fxpipe.capture.fallback import Decisions
from fxpipe.capture.patches import active, patched, without_checkpoints
from fxpipe.capture.recorder import Recorder
from fxpipe.capture.trace import trace
from fxpipe.errors import CaptureError
from tests.unit.capture import small

X = torch.randn(2, 4)


def places() -> list[object]:
    return [
        nn.Module.__call__,
        nn.Module.__setattr__,
        autocast.__enter__,
        autocast.__exit__,
        torch.inference_mode.__enter__,
        checkpoint_module._checkpoint_without_reentrant_generator,
        torch.jit.ScriptFunction.__call__,
        "apply" in vars(torch.autograd.function._SingleLevelFunction),
    ]


def test_patches_last_as_long_as_a_recording() -> None:
    before = places()
    one, two = (Recorder(small.Mlp(), Decisions()) for _ in range(2))
    assert active() is None
    with patched(one):
        assert active() is one
        with one.paused():
            assert active() is None
        assert all(a is not b for a, b in zip(places()[:-1], before[:-1], strict=True))
        with patched(two):
            pass
        assert nn.Module.__call__ is not before[0]
    assert active() is None
    assert places() == before


def test_forward_of_instances_is_put_back() -> None:
    model = small.Mlp()
    with patched(Recorder(model, Decisions())):
        assert "forward" in model.__dict__
        assert model.forward.__name__ == "forward"
        assert str(model.forward.__signature__).startswith("(x: ")
    assert "forward" not in model.__dict__


def test_forward_that_is_the_instances_own_stays() -> None:
    model = small.Mlp()

    def forward(x: torch.Tensor) -> torch.Tensor:
        return x

    model.forward = forward  # type: ignore[method-assign]
    with patched(Recorder(model, Decisions())):
        assert model.forward is forward
    assert model.forward is forward


def test_code_runs_through_patches_as_without_them() -> None:
    model, other = small.Checkpointed(), small.TwoRegions()
    torch.manual_seed(0)
    expected = model(X), other(X)
    with patched(Recorder(small.Mlp(), Decisions())) as _, torch.no_grad():
        pass
    recorder = Recorder(small.Mlp(), Decisions())
    with patched(recorder), recorder.paused():
        torch.manual_seed(0)
        found = model(X), other(X)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


def test_checkpoints_can_be_ignored() -> None:
    calls: list[int] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x.sin()

    x = X.clone().requires_grad_()
    for use_reentrant in (True, False):
        calls.clear()
        with without_checkpoints():
            y = checkpoint(function, x, use_reentrant=use_reentrant)
        y.sum().backward()
        assert len(calls) == 1
        checkpoint(function, x, use_reentrant=use_reentrant).sum().backward()
        assert len(calls) == 3


def test_inference_mode_keeps_a_module_whole() -> None:
    from fxpipe.capture.trace import trace

    class Infers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.inference_mode():
                y = self.linear(x)
            return y.clone()

    (leaf,) = trace(small.Chain(Infers(), small.Mlp()), (X,)).leaves
    assert (leaf.path, leaf.reason) == ("parts.0", "it switches to inference mode")


class BuiltIn(nn.Module):
    forward = staticmethod(torch.relu)


def test_forward_without_a_signature() -> None:
    from fxpipe.capture.trace import trace
    from tests.unit.capture.agree import assert_agrees

    for model in (BuiltIn(), small.Chain(small.Mlp(), BuiltIn())):
        assert_agrees(trace(model, (X,)), model, (X,), rows=4)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_nothing_stays_patched_after_a_failure(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, before = small.Chain(small.Mlp(), small.Mlp()), places()
    recorder = Recorder(model, Decisions())
    original, left = patches._Forward.install, [2]

    def install(forward: Any) -> None:
        left[0] -= 1
        if not left[0]:
            raise error
        original(forward)

    monkeypatch.setattr(patches._Forward, "install", install)
    with pytest.raises(error), patched(recorder):
        pass
    assert places() == before
    assert all("forward" not in module.__dict__ for module in model.modules())
    with pytest.raises(error), without_checkpoints():
        raise error
    assert places() == before


def test_nothing_stays_patched_if_a_patch_cannot_be_put_in_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = places()
    monkeypatch.delattr(patches, "_no_checkpoint")
    for _ in range(2):
        with pytest.raises(NameError), without_checkpoints():
            pass
        assert places() == before
    monkeypatch.undo()
    test_patches_last_as_long_as_a_recording()


@pytest.mark.parametrize("through_tensor", [True, False])
def test_a_module_that_calls_backward_stays_whole(through_tensor: bool) -> None:
    class Differentiates(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x.detach().requires_grad_()
            total = y.exp().sum()
            total.backward() if through_tensor else torch.autograd.backward(total)
            assert y.grad is not None
            return x * y.grad

    model = nn.Sequential(nn.Linear(4, 4), Differentiates())
    capture = trace(model, (torch.randn(2, 4),))
    assert [leaf.path for leaf in capture.leaves] == ["1"]
    with pytest.raises(CaptureError, match="accumulates gradients"):
        trace(Differentiates(), (torch.randn(2, 4),))
