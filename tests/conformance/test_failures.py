"""Failures surface as themselves with notes, nothing hangs, nothing stays, and the next step works."""

from __future__ import annotations

import copy
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from fxpipe.errors import ScheduleError
from tests.conformance.harness import BACKENDS, build, differences, loss_task, state_of
from tests.conformance.networks import Normed
from tests.conformance.test_step import each_recompute, images, mean_square, vectors
from tests.reference import run_eager_step

each_backend = pytest.mark.parametrize("backend", BACKENDS)
each_place = pytest.mark.parametrize("place", ["forward", "backward", "loss"])


class MineError(Exception):
    """An error of the user's own."""


class Trap(nn.Module):
    """Fails where it is told, for rows that start with 99."""

    fails_in: str = ""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        if self.fails_in == "forward":
            raise MineError("forward")
        y = x * self.weight
        if self.fails_in == "backward" and y.requires_grad:
            y.register_hook(_fail)
        return y


def _fail(grad: Tensor) -> None:
    raise MineError("backward")


class Trapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.trap = Trap()
        self.last = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.trap(torch.tanh(self.first(x))))


def failing_loss(output: Any, target: Any) -> Tensor:
    raise MineError("loss")


@contextmanager
def trap_set(model: Trapped, place: str) -> Iterator[Callable[[Any, Any], Tensor]]:
    """The trap fails in a place; yields the loss function to use."""
    model.trap.fails_in = place
    try:
        yield failing_loss if place == "loss" else mean_square
    finally:
        model.trap.fails_in = ""


@each_backend
@each_recompute
@each_place
def test_a_failure_surfaces_and_the_next_step_works(
    backend: str, recompute: str, place: str
) -> None:
    model = Trapped()
    eager = copy.deepcopy(model)
    rig = build(model, *vectors(8), cuts=["trap", "last"], backend=backend, recompute=recompute)
    for _ in range(2):
        with trap_set(model, place) as loss_fn, pytest.raises(MineError, match=place) as caught:
            rig.step(*vectors(8), loss_fn=loss_fn)
        notes = "\n".join(caught.value.__notes__)
        stage = 2 if place == "loss" else 1
        assert f"stage {stage} of 3, micro-batch 0" in notes
    if place == "forward":
        assert "forward (1F0)" in notes
        assert "trap" in notes
    model.zero_grad()
    outcome = rig.step(*vectors(8), loss_fn=mean_square)
    expected = run_eager_step(eager, vectors(8), chunks=4, loss_fn=mean_square)
    assert torch.equal(outcome.loss, expected.loss)
    assert differences(state_of(model), state_of(eager)) == []
    rig.backend.close()


@each_backend
@each_place
def test_nothing_is_alive_after_a_failure(backend: str, place: str) -> None:
    model = Trapped()
    rig = build(model, *vectors(8), cuts=["trap", "last"], backend=backend)
    seen = _watch_outputs(model)
    gc.collect()
    gc.disable()
    try:
        with trap_set(model, place) as loss_fn, pytest.raises(MineError):
            rig.step(*vectors(8), loss_fn=loss_fn)
        assert seen
        assert [ref for ref in seen if ref() is not None] == []
    finally:
        gc.enable()
    rig.backend.close()


@each_backend
@each_recompute
def test_nothing_is_alive_after_a_step(backend: str, recompute: str) -> None:
    model = Trapped()
    rig = build(model, *vectors(8), cuts=["trap", "last"], backend=backend, recompute=recompute)
    seen = _watch_outputs(model)
    gc.collect()
    gc.disable()
    try:
        outcome = rig.step(*vectors(8), loss_fn=mean_square)
        assert len(seen) >= 3 * 4
        assert [ref for ref in seen if ref() is not None] == []
        assert outcome.loss is not None
    finally:
        gc.enable()
    rig.backend.close()


@each_backend
def test_a_dropped_call_frees_what_it_kept(backend: str) -> None:
    model = Trapped()
    rig = build(model, *vectors(8), cuts=["trap", "last"], backend=backend)
    kept: list[StorageWeakRef] = []  # the input is saved for the weight's gradient
    handle = model.trap.register_forward_pre_hook(
        lambda module, args: kept.append(StorageWeakRef(args[0].untyped_storage()))
    )
    gc.collect()
    gc.disable()
    try:
        call = rig.forward(*vectors(8))
        assert [ref.expired() for ref in kept] == [False] * 4
        del call
        assert [ref.expired() for ref in kept] == [True] * 4
    finally:
        gc.enable()
    handle.remove()
    rig.backend.close()


def _watch_outputs(model: nn.Module) -> list[weakref.ref[Any]]:
    """Weak references to the storages' tensors that the model's modules return from now on."""
    seen: list[weakref.ref[Any]] = []

    def note(module: nn.Module, args: Any, output: Tensor) -> None:
        seen.append(weakref.ref(output))

    for module in model.modules():
        if module is not model:
            module.register_forward_hook(note)
    return seen


@each_backend
def test_statistics_of_a_failed_step_are_dropped(backend: str) -> None:
    model = Normed()
    rig = build(model, *images(8), backend=backend)
    before = state_of(model)
    with pytest.raises(MineError):
        rig.step(*images(8), loss_fn=failing_loss)
    assert differences(before, state_of(model)) == []
    rig.backend.close()


@each_backend
@pytest.mark.parametrize(
    ("loss_fn", "message"),
    [
        (lambda output, target: output, "shape"),
        (lambda output, target: 3.0, "float"),
        (lambda output, target: output.detach().mean(), "does not depend on anything"),
        (None, "the output must be the loss or have one"),
    ],
)
def test_what_is_no_loss(backend: str, loss_fn: Any, message: str) -> None:
    rig = build(Trapped(), *vectors(8), backend=backend)
    with pytest.raises(ValueError, match=message):
        rig.step(*vectors(8), loss_fn=loss_fn)
    rig.backend.close()


@each_backend
def test_the_first_failure_wins_and_all_ranks_end(backend: str) -> None:
    """Every stage fails; one exception comes out, and the ranks do not wait for each other."""
    model = Trapped()
    rig = build(model, *vectors(8), cuts=["trap", "last"], backend=backend)

    def fail(module: nn.Module, args: Any) -> None:
        raise MineError(threading.current_thread().name)

    for module in (model.trap, model.last):
        module.register_forward_pre_hook(fail)
    with pytest.raises(MineError):
        rig.step(*vectors(8), loss_fn=mean_square)
    rig.backend.close()


@each_backend
def test_counts_that_do_not_fit(backend: str) -> None:
    rig = build(Trapped(), *vectors(8), backend=backend)
    executable = rig.executable("1f1b", 4)
    batches = rig.batches(vectors(8), 2)
    with pytest.raises(ScheduleError, match="for 4 micro-batches, the batch is cut into 2"):
        rig.runtime.run_step(executable, batches, loss_task(batches, mean_square), seed=0, step=0)
    rig.backend.close()


def test_other_forwards_end_at_their_next_module() -> None:
    """A stage that is in the middle of a long forward does not finish it when another one has failed."""
    modules = [nn.Linear(8, 8) for _ in range(6)]
    model = nn.Sequential(*modules)
    rig = build(model, *vectors(8), cuts=["3", "5"], backend="local")
    calls: list[int] = []
    in_place = torch.nn.modules.module._global_forward_pre_hooks

    def until(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 20
        while not condition() and time.monotonic() < deadline:
            time.sleep(1e-3)

    def wait(module: nn.Module, args: Any) -> None:
        calls.append(0)
        if len(calls) > 1:  # the second forward takes until the other stage has failed
            until(lambda: bool(in_place))

    def fail(module: nn.Module, args: Any) -> None:
        until(lambda: len(calls) > 2)  # the second forward has begun
        raise MineError("forward")

    handles = [modules[0].register_forward_pre_hook(wait)]
    handles += [modules[5].register_forward_pre_hook(fail)]
    handles += [modules[1].register_forward_pre_hook(lambda *_: calls.append(1))]
    with pytest.raises(MineError):
        rig.step(*vectors(8), loss_fn=mean_square)
    assert calls == [0, 1, 0], "the second forward has not gone on"
    assert not in_place
    for handle in handles:
        handle.remove()
    rig.step(*vectors(8), loss_fn=mean_square)
    rig.backend.close()
