"""Pipelines and threads: each works as if it were alone, or is refused; nothing waits forever."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxpipe
from fxpipe.errors import CaptureError, ExecutionError
from fxpipe.runtime.backends.local import LocalBackend
from tests.conformance.harness import BACKENDS, differences, state_of
from tests.conformance.pipes import draw
from tests.losses import mean_square

each_backend = pytest.mark.parametrize("backend", BACKENDS)
each_norm = pytest.mark.parametrize("batch_norm", ["deferred", "per_micro_batch"])
STEPS = 4


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 8), nn.BatchNorm1d(8)
    )


def compiled(model: nn.Module, **options: Any) -> fxpipe.Pipeline:
    options = {"chunks": 4, "costs": "estimate", "threads_per_rank": 1, **options}
    return fxpipe.compile(model, ["cpu", "cpu"], **options)


def in_threads(*runs: Callable[[], object]) -> list[BaseException]:
    """Run functions at the same time; what they raised."""
    errors: list[BaseException] = []

    def caught(run: Callable[[], object]) -> None:
        try:
            run()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=caught, args=(run,), daemon=True) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads), "they wait forever"
    return errors


def step(pipe: fxpipe.Pipeline) -> None:
    pipe.step(draw(8, 8), loss_fn=mean_square)


def call(pipe: fxpipe.Pipeline) -> None:
    mean_square(pipe(draw(8, 8))).backward()


def several(run: Callable[[fxpipe.Pipeline], None], pipe: fxpipe.Pipeline) -> Callable[[], None]:
    def runs() -> None:
        for _ in range(STEPS):
            run(pipe)

    return runs


def alone(run: Callable[[fxpipe.Pipeline], None], steps: int, **options: Any) -> nn.Module:
    """The model after so many steps one after another."""
    model = network()
    with compiled(model, backend="inline", **options) as pipe:
        for _ in range(steps):
            run(pipe)
    return model


@each_backend
@each_norm
@pytest.mark.parametrize("run", [step, call])
@pytest.mark.parametrize("pipelines", [1, 2])
def test_one_model_in_two_threads(
    backend: str, batch_norm: str, run: Callable[[fxpipe.Pipeline], None], pipelines: int
) -> None:
    """Also the recording of the first call: nothing of one step is seen by another.

    A call's forward and its backward are two turns. So after a call, only statistics are compared:
    gradients are added in another order if the forwards of two calls come first.
    """
    model = network()
    first = compiled(model, backend=backend, batch_norm=batch_norm)
    second = first if pipelines == 1 else compiled(model, backend=backend, batch_norm=batch_norm)
    assert in_threads(several(run, first), several(run, second)) == []
    expected = alone(run, 2 * STEPS, batch_norm=batch_norm)
    assert differences(state_of(model), state_of(expected)) == []
    first.close()
    second.close()


@each_backend
def test_two_models_in_two_threads(backend: str) -> None:
    models = [network(), network()]
    pipes = [compiled(model, backend=backend) for model in models]
    assert in_threads(*(several(step, pipe) for pipe in pipes)) == []
    expected = alone(step, STEPS)
    for model, pipe in zip(models, pipes, strict=True):
        assert differences(state_of(model), state_of(expected)) == []
        pipe.close()


@each_backend
def test_two_models_with_a_common_part_in_two_threads(backend: str) -> None:
    encoder = network()
    models = [nn.Sequential(encoder, nn.Linear(8, 8)) for _ in range(2)]
    pipes = [compiled(model, backend=backend) for model in models]
    assert in_threads(*(several(step, pipe) for pipe in pipes)) == []
    assert encoder[1].num_batches_tracked.item() == 2 * STEPS
    assert encoder.state_dict().keys() == network().state_dict().keys()
    for pipe in pipes:
        pipe.close()


def refuse_inside(run: Callable[[], object]) -> None:
    with pytest.raises(ExecutionError, match="from inside its own step") as caught:
        run()
    assert any("stage" in note for note in caught.value.__notes__)


@each_backend
def test_a_pipeline_inside_its_own_step_is_refused(backend: str) -> None:
    """In the loss, in a forward hook, in a hook of a step's and of a call's backward."""
    model = network()
    with compiled(model, backend=backend) as pipe, compiled(model, backend=backend) as other:
        for run in (step, call):  # recorded before there are hooks
            run(pipe)
            run(other)
        for inner in (pipe, other):

            def calls(*_: object, inner: fxpipe.Pipeline = inner) -> Any:
                with torch.enable_grad():
                    return inner(draw(8, 8)).mean()

            refuse_inside(lambda calls=calls: pipe.step(draw(8, 8), loss_fn=calls))
            hook = model[0].register_forward_hook(calls)
            refuse_inside(lambda: step(pipe))
            refuse_inside(lambda: call(pipe))
            hook.remove()
            hook = model[3].weight.register_hook(calls)
            refuse_inside(lambda: step(pipe))
            hook.remove()
            output = mean_square(pipe(draw(8, 8)))
            hook = model[3].weight.register_hook(calls)
            refuse_inside(output.backward)
            hook.remove()
        model.load_state_dict(network().state_dict())
        model.zero_grad()
        step(pipe)
        assert differences(state_of(model), state_of(alone(step, 1))) == []


@each_backend
@pytest.mark.parametrize("other_backend", BACKENDS)
def test_another_model_s_pipeline_inside_a_step(backend: str, other_backend: str) -> None:
    """A teacher in the loss, and in a hook."""
    teacher = network().eval()
    seen: list[Tensor] = []
    with (
        compiled(network(), backend=backend) as pipe,
        compiled(teacher, backend=other_backend) as other,
    ):
        expected = network().eval()(draw(2, 8))
        call(pipe)

        def distil(output: Tensor, target: object) -> Tensor:
            with torch.no_grad():
                seen.append(other(draw(2, 8)))
            return (output - seen[-1]).square().mean()

        pipe.step(draw(8, 8), loss_fn=distil)
        hook = pipe.module[0].weight.register_hook(torch.enable_grad()(lambda grad: step(other)))
        call(pipe)
        hook.remove()
    assert len(seen) == 4
    torch.testing.assert_close(seen[0], expected.detach())
    assert teacher[0].weight.grad is not None


@each_backend
def test_two_that_call_each_other_from_two_threads(backend: str) -> None:
    """One of them is told; the other one gets its turn."""
    pipes = [compiled(network(), backend=backend) for _ in range(2)]
    for pipe in pipes:
        step(pipe)
    both = threading.Barrier(2)

    def run(at: int) -> Callable[[], None]:
        waited: Sequence[bool] = [False]

        def loss(output: Tensor, target: object) -> Tensor:
            nonlocal waited
            if not waited[0]:
                waited = [True]
                both.wait(timeout=30)
            with torch.no_grad():
                pipes[1 - at](draw(8, 8))
            return mean_square(output)

        return lambda: pipes[at].step(draw(8, 8), loss_fn=loss)

    errors = in_threads(run(0), run(1))
    assert [type(error) for error in errors] == [ExecutionError]
    assert "two pipelines call each other" in str(errors[0])
    for pipe in pipes:
        step(pipe)
        pipe.close()


@each_backend
def test_a_pipeline_as_a_part_of_a_model_is_refused(backend: str) -> None:
    inner = compiled(network(), backend=backend)
    step(inner)
    outer = compiled(nn.Sequential(nn.Linear(8, 8), inner, nn.Linear(8, 8)), backend=backend)
    for run in (step, call):
        with pytest.raises(CaptureError, match=r"compile the whole model .* \(pipe.module\)"):
            run(outer)
        with pytest.raises(CaptureError, match=r"compile the whole model .* \(pipe.module\)"):
            run(compiled(inner, backend=backend))
    inner.module.zero_grad()
    inner.load_state_dict(network().state_dict())
    step(inner)
    assert differences(state_of(inner.module), state_of(alone(step, 1))) == []
    whole = nn.Sequential(nn.Linear(8, 8), inner.module, nn.Linear(8, 8))
    with compiled(whole, backend=backend) as pipe:
        step(pipe)
    inner.close()


def test_a_backend_that_is_used_inside_of_its_own_step_is_refused() -> None:
    backend = LocalBackend(1)
    pipe, other = (compiled(network(), backend=backend) for _ in range(2))
    step(pipe)
    step(other)

    def loss(output: Tensor, target: object) -> Tensor:
        step(other)
        return mean_square(output)

    with pytest.raises(ExecutionError, match="a backend of its own"):
        pipe.step(draw(8, 8), loss_fn=loss)
    step(other)
    step(pipe)
    backend.close()


def test_a_common_backend_is_waited_for_together_with_the_model() -> None:
    """One thread has the backend and wants a model; the other one has that model, and waits."""
    backend = LocalBackend(1)
    first, other = (compiled(network(), backend=backend) for _ in range(2))
    third = compiled(first.module, backend="local")
    for pipe in (first, other, third):
        step(pipe)
    inside = threading.Event()

    def loss(output: Tensor, target: object) -> Tensor:
        inside.set()
        with torch.no_grad():
            third(draw(8, 8))
        return mean_square(output)

    def waits() -> None:
        inside.wait(timeout=30)
        several(step, first)()

    assert in_threads(lambda: other.step(draw(8, 8), loss_fn=loss), waits) == []
    third.close()
    backend.close()


@pytest.mark.parametrize("common", ["model", "backend"])
def test_ctrl_c_while_another_thread_has_the_turn(common: str) -> None:
    """It does not wait for the other's end."""
    backend, model = LocalBackend(1), network()
    pipe = compiled(model, backend=backend)
    other = compiled(model) if common == "model" else compiled(network(), backend=backend)
    step(pipe)
    step(other)
    inside, interrupted = threading.Event(), threading.Event()

    def loss(output: Tensor, target: object) -> Tensor:
        if not inside.is_set():
            inside.set()
            interrupted.wait(timeout=30)
        return mean_square(output)

    thread = threading.Thread(target=lambda: other.step(draw(8, 8), loss_fn=loss))
    thread.start()
    inside.wait(timeout=30)
    press = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    press.start()
    with pytest.raises(KeyboardInterrupt):
        step(pipe)
    assert thread.is_alive()
    interrupted.set()
    thread.join(timeout=30)
    step(pipe)
    other.close()
    backend.close()


@each_backend
def test_steps_of_two_threads_with_an_optimiser(backend: str) -> None:
    """What is left of the optimiser's step at the end is made in the step's turn, too."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    model[2].weight = model[0].weight  # tied across stages: it is updated last
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    held: list[bool] = []
    with compiled(model, backend=backend, cuts=["2"]) as pipe:
        step(pipe)

        def other() -> None:
            with torch.no_grad():
                pipe(draw(8, 8))
            held.append(True)

        def update(*_: object) -> None:
            thread = threading.Thread(target=other)
            thread.start()
            thread.join(timeout=0.5)
            assert held == []

        optimizer.register_step_pre_hook(update)
        pipe.step(draw(8, 8), loss_fn=mean_square, optimizer=optimizer)
        deadline = time.monotonic() + 30
        while not held and time.monotonic() < deadline:
            time.sleep(0.01)
    assert held == [True]


@each_backend
def test_a_step_on_the_result_of_a_call(backend: str) -> None:
    """The step's gradient of its input goes back through the call, which has a turn of its own."""
    model, eager = network().eval(), network().eval()
    with compiled(model, backend=backend) as pipe:
        pipe.step(pipe(draw(8, 8)), loss_fn=mean_square)
    mean_square(eager(eager(draw(8, 8)))).backward()
    for one, other in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
