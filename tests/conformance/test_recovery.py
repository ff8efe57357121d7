"""After a failure all is as before the step, and the next one has the bits of a fresh pipeline's."""

from __future__ import annotations

import copy
import ctypes
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fxpipe
from fxpipe import joined
from tests.conformance.harness import BACKENDS, differences, state_of
from tests.conformance.pipes import draw, each_recompute
from tests.conformance.test_leaks import CHUNKS, ROWS, WIDTH, MineError, Network, failing
from tests.equivalence.compare import buffers_of
from tests.losses import mean_square

each_backend = pytest.mark.parametrize("backend", BACKENDS)
each_setting = [
    each_backend,
    each_recompute,
    pytest.mark.parametrize("stages", [2, 3]),
    pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"]),
]
CUTS = ["norm", "third"]
Run = Callable[[], object]


def in_every_setting(test: Any) -> Any:
    for mark in each_setting:
        test = mark(test)
    return test


def compiled(model: nn.Module, stages: int = 3, **options: Any) -> fxpipe.Pipeline:
    options = {"cuts": CUTS[: stages - 1], "chunks": CHUNKS, "costs": "estimate", **options}
    return fxpipe.compile(model, ["cpu"] * stages, threads_per_rank=1, **options)


def network() -> Network:
    torch.manual_seed(0)
    return Network()


def generators() -> tuple[Any, ...]:
    """The states of the caller's generators."""
    return torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())


def step(pipe: fxpipe.Pipeline, **options: Any) -> Tensor:
    options = {"loss_fn": mean_square, **options}
    found = pipe.step(draw(ROWS, WIDTH), **options)
    assert found.loss is not None
    return found.loss


def failing_loss(output: Tensor, target: object) -> Tensor:
    raise MineError("loss")


def failing_hook(*_: object) -> None:
    raise MineError("hook")


def hooked(register: Callable[[Any], Any], run: Run) -> Run:
    def hooks() -> None:
        handle = register(failing_hook)
        try:
            run()
        finally:
            handle.remove()

    return hooks


def trapped(model: Network, place: str, at: int, error: type[BaseException], run: Run) -> Run:
    def traps() -> None:
        model.second.error = error
        with failing(model, place, 1, at):
            run()

    return traps


def failures(pipe: fxpipe.Pipeline, recompute: str) -> dict[str, tuple[type[BaseException], Run]]:
    """Ways to fail, each with the exception that comes out."""
    model = pipe.module
    assert isinstance(model, Network)
    last = {"never": 4, "except_last": 7, "always": 8}[recompute]
    memory = torch.OutOfMemoryError

    def plain() -> None:
        step(pipe)

    found: dict[str, tuple[type[BaseException], Run]] = {
        f"{error.__name__} in {place} {at}": (error, trapped(model, place, at, error, plain))
        for error in (MineError, memory, SystemExit)
        for place, at in (("forward", 2), ("forward", last), ("backward", 1), ("backward", 3))
    }
    found["loss"] = MineError, lambda: step(pipe, loss_fn=failing_loss)
    for register in (
        model.second.register_forward_pre_hook,
        model.second.register_forward_hook,
        model.second.register_full_backward_hook,
        model.first.layer.weight.register_hook,
        model.third.layer.weight.register_post_accumulate_grad_hook,
    ):
        found[f"{register.__qualname__}"] = MineError, hooked(register, plain)
    found["no loss"] = ValueError, lambda: step(pipe, loss_fn=lambda output, target: output)
    return found


@in_every_setting
def test_the_next_step_has_the_bits_of_a_fresh_pipeline(
    stages: int, schedule: str, recompute: str, backend: str
) -> None:
    options = {"schedule": schedule, "recompute": recompute, "backend": backend}
    fresh, model = network(), network()
    torch.manual_seed(5)
    with compiled(fresh, stages, **options) as other:
        expected = step(other)
    start = copy.deepcopy(model.state_dict())
    pipe = compiled(model, stages, **options)
    step(pipe)
    for name, (error, run) in failures(pipe, recompute).items():
        torch.manual_seed(5)
        model.load_state_dict(start)
        model.zero_grad()
        before, buffers, steps = generators(), buffers_of(model), pipe.steps_done
        try:
            with pytest.raises(error) as caught:
                run()
            assert_told(caught.value, stages)
            assert generators() == before
            assert differences(buffers_of(model), buffers) == []
            assert pipe.steps_done == steps
            assert set(vars(model.norm)) == set(vars(fresh.norm))
            model.zero_grad()
            loss = step(pipe)
            assert torch.equal(loss, expected)
            assert differences(state_of(model), state_of(fresh)) == []
        except BaseException as failure:
            failure.add_note(f"after: {name}")
            raise
    pipe.close()


def assert_told(error: BaseException, stages: int) -> None:
    """The notes say where it was; the exception is the user's own."""
    notes = "\n".join(error.__notes__)
    assert f" of {stages}, micro-batch " in notes
    if "forward" in str(error):
        assert "test_leaks.py" in notes
        assert ": raise probe.error(place)" in notes, "the source line"


@each_backend
def test_partial_gradients_stay(backend: str) -> None:
    """Those of the micro-batches that were through in the stage, and in those after it."""
    model = network()
    with compiled(model, backend=backend, schedule="gpipe") as pipe:
        step(pipe)
        model.zero_grad()
        with failing(model, "backward", 1, 3), pytest.raises(MineError):
            step(pipe)
    assert model.second.layer.weight.grad is not None
    assert model.third.layer.weight.grad is not None


class Jitter(nn.Module):
    """Random numbers that are not of torch's default generator."""

    def __init__(self) -> None:
        super().__init__()
        self.mine = torch.Generator()

    def forward(self, x: Tensor) -> Tensor:
        return x * (1.0 + random.random()) + torch.randn(x.shape, generator=self.mine)


class Draws(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.jitter = Jitter()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.jitter(self.first(x)))


@each_backend
def test_other_generators_go_back_too(backend: str) -> None:
    """Those of Python, and torch's that the model holds."""
    model = Draws()
    with fxpipe.compile(
        model, ["cpu"] * 2, CHUNKS, costs="estimate", backend=backend, threads_per_rank=1
    ) as pipe:
        random.seed(0)
        step(pipe)
        before = (*generators(), model.jitter.mine.get_state().tolist())
        for register in (model.last.register_forward_hook, model.first.weight.register_hook):
            with pytest.raises(MineError):
                hooked(register, lambda: step(pipe))()
            assert (*generators(), model.jitter.mine.get_state().tolist()) == before
        step(pipe)
        assert (*generators(), model.jitter.mine.get_state().tolist()) != before


@each_backend
@pytest.mark.parametrize("grad", [True, False])
def test_memory_runs_out_while_results_are_joined(
    backend: str, grad: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All has been computed; still it is no step, and no call."""

    def gather(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("no memory for the result")

    model = network()
    with compiled(model, backend=backend, batch_norm="per_micro_batch") as pipe:
        with nullcontext() if grad else torch.no_grad():
            pipe(draw(ROWS, WIDTH))
        step(pipe)
        before, buffers = generators(), buffers_of(model)
        with monkeypatch.context() as patch:
            patch.setattr(joined, "gather", gather)
            with pytest.raises(torch.OutOfMemoryError):
                step(pipe)
            with nullcontext() if grad else torch.no_grad(), pytest.raises(torch.OutOfMemoryError):
                pipe(draw(ROWS, WIDTH))
        assert differences(buffers_of(model), buffers) == []
        assert generators() == before
        step(pipe)


def throw_into(thread: threading.Thread, error: type[BaseException]) -> None:
    """What some debuggers and notebooks do to stop a thread."""
    assert thread.ident is not None
    thrown = ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident), ctypes.py_object(error)
    )
    assert thrown == 1


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("backend", "schedule", "recompute"),
    [("inline", "1f1b", "except_last"), ("local", "gpipe", "never"), ("local", "zb-h1", "always")],
)
def test_ctrl_c_at_random_moments(backend: str, schedule: str, recompute: str) -> None:
    """Each step has been made or not; in between there is nothing."""
    program = [sys.executable, "-m", "tests.conformance.interrupted"]
    program += [backend, schedule, recompute, "12"]
    subprocess.run(program, cwd=Path(__file__).parents[2], timeout=200, check=True)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("busy", [True, False])
def test_a_worker_s_death(rank: int, busy: bool) -> None:
    """In the middle of a step, or while it waits for work: what comes out says so."""
    model, fresh = network(), network()
    with compiled(fresh, seed=1) as other:
        expected = step(other)
    start = copy.deepcopy(model.state_dict())
    before = set(threading.enumerate())
    with compiled(model, seed=1) as pipe:
        for probe in model.probes:  # so that each rank has a thread of its own
            probe.register_forward_hook(lambda *_: time.sleep(1e-3))
        step(pipe)
        step(pipe)
        mine = [t for t in threading.enumerate() if t not in before]
        (thread,) = (t for t in mine if t.name == f"fxpipe-rank-{rank}")
        errors: list[BaseException] = []
        if busy:
            left = [thread]
            model.first.register_forward_hook(
                lambda *_: throw_into(left.pop(), MineError) if left else None
            )
        else:
            throw_into(thread, MineError)
        for _ in range(3):  # it may come only with the next work of the thread
            try:
                step(pipe)
            except (MineError, fxpipe.ExecutionError) as error:
                errors.append(error)
        assert errors
        model.load_state_dict(start)
        model.zero_grad()
        pipe.steps_done = 0
        assert torch.equal(step(pipe), expected)
        assert differences(state_of(model), state_of(fresh)) == []
    assert not {t for t in threading.enumerate() if t.name.startswith("fxpipe")} - before
