"""The user's modules do in a stage what they do in eager: hooks, state, compiled blocks, surgery."""

from __future__ import annotations

import copy
import warnings
from types import MethodType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxpipe
from tests.conformance.harness import BACKENDS, build, differences, state_of
from tests.conformance.networks import Chain, Noisy
from tests.conformance.test_step import each_recompute, mean_square, vectors
from tests.reference import run_eager_step

each_backend = pytest.mark.parametrize("backend", BACKENDS)


class WithState(nn.Module):
    """Buffers changed in place and replaced, in leaves, in re-rolled modules, in a divided model."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))
        self.block = Averaging()
        self.last = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.block(torch.tanh(self.first(x))))


class Averaging(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("count", torch.zeros(()))
        self.seen = 0

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.mean = self.mean * 0.9 + x.mean(0) * 0.1
            self.count += 1
        self.seen = self.seen + 1
        return self.linear(x - self.mean) / self.count


@each_backend
@each_recompute
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("stages", [1, 3])
def test_buffers_are_read_and_updated_as_in_eager(
    backend: str, recompute: str, schedule: str, stages: int
) -> None:
    """A rerun reads them as its forward did, and is no second update."""
    model = WithState()
    eager = copy.deepcopy(model)
    rig = build(
        model,
        *vectors(8),
        stages=stages,
        cuts=["block", "last"] if stages == 3 else None,
        backend=backend,
        recompute=recompute,
    )
    for n in range(2):
        outcome = rig.step(*vectors(8), schedule=schedule, number=n, loss_fn=mean_square)
        expected = run_eager_step(eager, vectors(8), chunks=4, loss_fn=mean_square)
        assert torch.equal(outcome.loss, expected.loss)
        assert differences(state_of(model), state_of(eager)) == []
    if recompute == "never":
        assert model.block.seen == eager.block.seen == 8
    rig.backend.close()


@each_backend
def test_hooks_run_as_in_eager(backend: str) -> None:
    model = Noisy().eval()
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    eager = copy.deepcopy(model)
    rig = build(model.train(), *vectors(8), backend=backend)
    calls: list[tuple[str, bool]] = []

    def note(name: str, module: nn.Module) -> Any:
        return lambda found, *_: calls.append((name, found is module))

    for name, module in model.named_modules():
        if name and not list(module.children()):
            module.register_forward_hook(note(f"{name} forward", module))
            module.register_full_backward_hook(note(f"{name} backward", module))
    rig.step(*vectors(8), loss_fn=mean_square)
    assert all(right for _, right in calls)
    leaves = [
        name for name, module in eager.named_modules() if name and not list(module.children())
    ]
    for name in leaves:
        times = 2 * 4 if name.startswith("second") else 4
        assert sum(call == f"{name} forward" for call, _ in calls) == times
        assert sum(call == f"{name} backward" for call, _ in calls) == times
    rig.backend.close()


@each_backend
def test_a_hook_that_changes_gradients(backend: str) -> None:
    model = Chain()
    eager = copy.deepcopy(model)
    rig = build(model, *vectors(8), backend=backend)
    for one in (model, eager):
        one.layers[2].register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,))
        one.layers[4].weight.register_hook(lambda grad: grad * 3)
    rig.step(*vectors(8), loss_fn=mean_square)
    run_eager_step(eager, vectors(8), chunks=4, loss_fn=mean_square)
    assert differences(state_of(model), state_of(eager)) == []
    rig.backend.close()


class Compilable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.block = CompilableBlock()
        self.last = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.block(self.first(x)))


class CompilableBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.drop = nn.Dropout(0.5)
        self.last = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(self.first(x)))


@each_backend
@pytest.mark.parametrize("in_place", [True, False])
def test_a_compiled_block_runs_compiled_with_a_key_of_its_own(backend: str, in_place: bool) -> None:
    torch._dynamo.reset()
    model = Compilable()
    compiled_calls: list[int] = []

    def counting(module: Any, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            compiled_calls.append(1)
            return module(*args)

        return run

    def compile_block(of: Compilable) -> None:
        if in_place:
            of.block.compile(backend=counting)
        else:
            of.block = torch.compile(of.block, backend=counting)

    compile_block(model)
    losses = []
    for stages in (1, 3):
        copied = Compilable()
        compile_block(copied)
        copied.load_state_dict(model.state_dict())
        cuts = ["block", "last"] if stages == 3 else None
        rig = build(copied, *vectors(8), stages=stages, cuts=cuts, backend=backend)
        compiled_calls.clear()
        before = torch.get_rng_state()
        losses.append(rig.step(*vectors(8), loss_fn=mean_square).loss)
        losses.append(rig.step(*vectors(8), loss_fn=mean_square).loss)
        assert len(compiled_calls) == 2 * 4
        assert torch.equal(before, torch.get_rng_state())
        rig.backend.close()
    assert all(torch.equal(loss, losses[0]) for loss in losses)


@each_backend
def test_weights_that_are_replaced_or_loaded(backend: str) -> None:
    """A stage follows `load_state_dict(assign=True)`, `.data` and new Parameter objects."""
    model = Chain()
    rig = build(model, *vectors(8), backend=backend)
    rig.step(*vectors(8), loss_fn=mean_square)
    fresh = Chain()
    model.load_state_dict(fresh.state_dict(), assign=True)
    model.layers[0].weight = nn.Parameter(fresh.layers[0].weight.detach() * 2)
    model.layers[2].bias.data = torch.ones(8)
    eager = copy.deepcopy(model)
    model.zero_grad()
    eager.zero_grad()
    outcome = rig.step(*vectors(8), loss_fn=mean_square)
    expected = run_eager_step(eager, vectors(8), chunks=4, loss_fn=mean_square)
    assert torch.equal(outcome.loss, expected.loss)
    assert differences(state_of(model), state_of(eager)) == []
    rig.backend.close()


class Functional(nn.Module):
    """Parameters used by functions in the model itself: the stage reads them, not a module."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(8, 8))
        self.b = nn.Parameter(torch.randn(8))
        self.register_buffer("offset", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(x, self.a, self.b)
        y = torch.tanh(y) + self.offset
        return F.linear(y, self.a) * self.b


@each_backend
@each_recompute
def test_parameters_read_by_the_stage_itself(backend: str, recompute: str) -> None:
    model = Functional()
    eager = copy.deepcopy(model)
    rig = build(model, *vectors(8), stages=3, backend=backend, recompute=recompute)
    for n in range(2):
        rig.step(*vectors(8), number=n, loss_fn=mean_square)
        run_eager_step(eager, vectors(8), chunks=4, loss_fn=mean_square)
        for one in (model, eager):
            with torch.no_grad():
                one.b.sub_(0.1 * one.b.grad)
                one.offset = torch.ones(8)
    for mine, theirs in zip(model.parameters(), eager.parameters(), strict=True):
        assert torch.allclose(mine.grad, theirs.grad, rtol=1e-5, atol=1e-6)
    rig.backend.close()


def test_frozen_parameters() -> None:
    """A stage with nothing to differentiate passes over; parameters without grad get none."""
    model = Chain()
    model.layers[:4].requires_grad_(False)
    eager = copy.deepcopy(model)
    for recompute in ("never", "always"):
        rig = build(model, *vectors(8), stages=4, recompute=recompute)
        rig.step(*vectors(8), loss_fn=mean_square)
        run_eager_step(eager, vectors(8), chunks=4, loss_fn=mean_square)
        assert differences(state_of(model), state_of(eager)) == []
    assert model.layers[0].weight.grad is None


@each_backend
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
@pytest.mark.parametrize("how", ["forward", "class"])
def test_a_layer_that_is_given_another_forward_between_steps(
    backend: str, schedule: str, how: str
) -> None:
    model, eager = Chain(), Chain()
    eager.load_state_dict(model.state_dict())
    x = vectors(8)
    options = {"schedule": schedule, "backend": backend, "costs": "estimate"}
    with fxpipe.compile(model, ["cpu"] * 2, 4, **options) as pipe:
        pipe.step(*x, loss_fn=mean_square)
        model.zero_grad()
        for each in (model, eager):
            layer = each.layers[0]
            if how == "class":
                layer.__class__ = Twice
            else:
                layer.forward = MethodType(Twice.forward, layer)
        found = pipe.step(*x, loss_fn=mean_square)
    expected = run_eager_step(eager, x, {}, chunks=4, loss_fn=mean_square)
    assert torch.equal(found.loss, expected.loss)
    assert differences(state_of(model), state_of(eager)) == []


class Twice(nn.Linear):
    """Without its bias."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight) * 2


class Remembers(nn.Module):
    """The model itself keeps a buffer; a block that keeps one too lies in the second stage."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.block = nn.Linear(8, 8), Averaging()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).tanh()
        self.mean = self.mean * 0.9 + x.detach().mean(0) * 0.1
        return self.block((x - self.mean).relu())


@each_backend
@each_recompute
def test_a_model_that_keeps_something_in_itself(backend: str, recompute: str) -> None:
    """The stage that does so reads no other stage's parameters, and leaves its buffers alone."""
    model, eager = Remembers(), Remembers()
    eager.load_state_dict(model.state_dict())
    options = {"backend": backend, "recompute": recompute, "costs": "estimate", "cuts": ["block"]}
    with fxpipe.compile(model, ["cpu"] * 2, 4, **options) as pipe:
        for seed in range(3):  # gradients add up
            x = vectors(8 + seed)
            found = pipe.step(*x, loss_fn=mean_square)
            expected = run_eager_step(eager, x, {}, chunks=4, loss_fn=mean_square)
            assert torch.equal(found.loss, expected.loss)
            assert differences(state_of(model), state_of(eager)) == []
        first, second = pipe.stages
    assert [first.modules[local] for local in first.holders] == [""]
    assert first.called == ("first",)
    assert second.holders == ()


@pytest.mark.parametrize("path", ["", "layers", "layers.0", "layers.2"])
def test_hooks_that_come_and_go_between_steps(path: str) -> None:
    """Also those of modules that a cut divides."""
    model, eager = Chain(), Chain()
    eager.load_state_dict(model.state_dict())
    x = vectors(8)

    def steps(pipe: fxpipe.Pipeline) -> None:
        found = pipe.step(*x, loss_fn=mean_square)
        expected = run_eager_step(eager, x, {}, chunks=4, loss_fn=mean_square)
        assert torch.equal(found.loss, expected.loss)
        assert differences(state_of(model), state_of(eager)) == []

    with (
        warnings.catch_warnings(),
        fxpipe.compile(model, ["cpu"] * 2, 4, cuts=["layers.2"]) as pipe,
    ):
        warnings.filterwarnings("ignore", message=".*has forward hooks, and a cut divides it")
        steps(pipe)
        hooks = [
            each.get_submodule(path).register_forward_hook(lambda module, args, out: out * 3)
            for each in (model, eager)
        ]
        steps(pipe)
        for hook in hooks:
            hook.remove()
        steps(pipe)
