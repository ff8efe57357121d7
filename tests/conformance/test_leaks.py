"""However a step or a call ends, nothing of it stays alive: no activation, graph or thread."""

from __future__ import annotations

import gc
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

import fxpipe
from tests.conformance.harness import BACKENDS
from tests.conformance.pipes import draw, each_recompute
from tests.conformance.test_threads import wait_until_ended
from tests.losses import mean_square

each_backend = pytest.mark.parametrize("backend", BACKENDS)
each_schedule = pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
WIDTH, ROWS, CHUNKS = 8, 11, 4
"""The last micro-batch is smaller."""


class MineError(Exception):
    """An error of the user's own."""


class Ticket:
    """Lives as long as the graph that holds it."""


class Probe(nn.Module):
    """Notes what it has made, and fails where it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.seen: list[Callable[[], bool]] = []
        """Each tells whether something is gone."""
        self.fails_in = ""
        self.at = 2
        self.error: type[BaseException] = MineError

    def forward(self, x: Tensor) -> Tensor:
        y = Probed.apply(self.layer(x).tanh(), self)
        self.seen += [StorageWeakRef(t.untyped_storage()).expired for t in (x, y)]
        self.seen += [_gone(weakref.ref(t)) for t in (x, y)]
        return y


def _gone(ref: weakref.ref[Any]) -> Callable[[], bool]:
    return lambda: ref() is None


class Probed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, probe: Probe) -> Tensor:
        ctx.probe = probe
        ctx.ticket = Ticket()
        ctx.save_for_backward(x)
        probe.seen.append(_gone(weakref.ref(ctx.ticket)))
        _fail(probe, "forward")
        return x * 1.5

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        _fail(ctx.probe, "backward")
        return grad * ctx.saved_tensors[0], None


def _fail(probe: Probe, place: str) -> None:
    """Fail the `at`-th time that this place is passed."""
    if probe.fails_in.startswith(place):
        probe.at -= 1
        if probe.at == 0:
            if probe.fails_in.endswith("interrupted"):
                signal.raise_signal(signal.SIGINT)
            else:
                raise probe.error(place)


class Network(nn.Module):
    """Three stages; a value goes from the first to the last."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = Probe(), Probe(), Probe()
        self.norm = nn.BatchNorm1d(WIDTH)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        skip = self.first(x)
        return self.third(self.drop(self.second(self.norm(skip)))) + skip

    @property
    def probes(self) -> list[Probe]:
        return [self.first, self.second, self.third]


def failing_loss(output: Tensor, target: object) -> Tensor:
    raise MineError("loss")


def failing_hook(*_: object) -> None:
    raise MineError("hook")


Pipe = fxpipe.Pipeline


def whole_step(pipe: Pipe, model: Network) -> None:
    assert pipe.step(draw(ROWS, WIDTH), loss_fn=mean_square).output.shape == (ROWS, WIDTH)


def whole_call(pipe: Pipe, model: Network) -> None:
    mean_square(pipe(draw(ROWS, WIDTH))).backward()


def gradients_of_inputs(pipe: Pipe, model: Network) -> None:
    x = draw(ROWS, WIDTH).requires_grad_()
    (grad,) = torch.autograd.grad(mean_square(pipe(x)), x)
    assert grad.shape == x.shape


def dropped_call(pipe: Pipe, model: Network) -> None:
    output = pipe(draw(ROWS, WIDTH))
    assert not all(gone() for probe in model.probes for gone in probe.seen), "kept for backward"
    del output


def without_gradients(pipe: Pipe, model: Network) -> None:
    with torch.no_grad():
        pipe(draw(ROWS, WIDTH))
    with torch.inference_mode():
        pipe(draw(ROWS, WIDTH))


def evaluation(pipe: Pipe, model: Network) -> None:
    model.eval()
    pipe(draw(ROWS, WIDTH))
    model.train()


def step_fails(
    place: str, probe: int = 1, at: int = 2, error: type[BaseException] = MineError
) -> Any:
    def run(pipe: Pipe, model: Network) -> None:
        with failing(model, place, probe, at), pytest.raises(error):
            pipe.step(draw(ROWS, WIDTH), loss_fn=mean_square)

    return run


def call_fails(place: str, error: type[BaseException] = MineError) -> Any:
    def run(pipe: Pipe, model: Network) -> None:
        with failing(model, place, 1, 2), pytest.raises(error):
            mean_square(pipe(draw(ROWS, WIDTH))).backward()

    return run


@contextmanager
def failing(model: Network, place: str, probe: int, at: int) -> Iterator[None]:
    model.probes[probe].fails_in, model.probes[probe].at = place, at
    yield
    model.probes[probe].fails_in = ""


def loss_fails(pipe: Pipe, model: Network) -> None:
    with pytest.raises(MineError):
        pipe.step(draw(ROWS, WIDTH), loss_fn=failing_loss)


def hook_fails(pipe: Pipe, model: Network) -> None:
    for register in (
        model.second.register_forward_pre_hook,
        model.second.register_forward_hook,
        model.second.register_full_backward_hook,
        model.second.register_full_backward_pre_hook,
        model.third.layer.weight.register_hook,
        model.third.layer.weight.register_post_accumulate_grad_hook,
    ):
        hook = register(failing_hook)
        with pytest.raises(MineError):
            pipe.step(draw(ROWS, WIDTH), loss_fn=mean_square)
        with pytest.raises(MineError):
            mean_square(pipe(draw(ROWS, WIDTH))).backward()
        hook.remove()


def joining_fails(pipe: Pipe, model: Network) -> None:
    """What is wrong with a target shows when it is cut; the optimiser fails after the step."""
    with pytest.raises(ValueError, match="rows"):
        pipe.step(draw(ROWS, WIDTH), target=draw(ROWS - 1), loss_fn=mean_square)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    whole_step(pipe, model)
    hook = optimizer.register_step_pre_hook(failing_hook)
    with pytest.raises(MineError):
        optimizer.step()
    hook.remove()


ENDS: dict[str, Callable[[Pipe, Network], None]] = {
    "step": whole_step,
    "call": whole_call,
    "gradients of inputs": gradients_of_inputs,
    "dropped call": dropped_call,
    "no gradients": without_gradients,
    "evaluation": evaluation,
    "forward of a step": step_fails("forward"),
    "first stage": step_fails("forward", 0),
    "last stage": step_fails("forward", 2),
    "backward of a step": step_fails("backward"),
    "forward of a call": call_fails("forward"),
    "backward of a call": call_fails("backward"),
    "loss": loss_fails,
    "hook": hook_fails,
    "around a step": joining_fails,
    "interrupt in forward": step_fails("forward interrupted", error=KeyboardInterrupt),
    "interrupt in backward": step_fails("backward interrupted", error=KeyboardInterrupt),
    "interrupt in a call": call_fails("backward interrupted", error=KeyboardInterrupt),
}


@contextmanager
def compiled(model: nn.Module, backend: str, **options: Any) -> Iterator[Pipe]:
    options = {"cuts": ["norm", "third"], "chunks": CHUNKS, "seed": 3, **options}
    with fxpipe.compile(
        model, ["cpu"] * 3, costs="estimate", threads_per_rank=1, backend=backend, **options
    ) as pipe:
        yield pipe


def tensors_alive() -> int:
    return sum(issubclass(type(found), Tensor) for found in gc.get_objects())


@pytest.fixture(autouse=True)
def without_what_was_there_before() -> Iterator[None]:
    """Garbage is looked for among the test's own objects only: that is fast."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@contextmanager
def nothing_stays(model: Network) -> Iterator[None]:
    """What the model makes inside is gone at once, not only when garbage is collected."""
    model.zero_grad()
    for probe in model.probes:
        probe.seen.clear()
    gc.collect()
    before, threads = tensors_alive(), set(threading.enumerate())
    gc.disable()
    try:
        yield
        left = [at for probe in model.probes for at, gone in enumerate(probe.seen) if not gone()]
        assert left == [], f"{len(left)} of {sum(len(probe.seen) for probe in model.probes)}"
    finally:
        gc.enable()
    model.zero_grad()
    assert tensors_alive() <= before
    assert set(threading.enumerate()) <= threads


@each_backend
@each_schedule
@each_recompute
def test_nothing_stays_however_it_ends(backend: str, schedule: str, recompute: str) -> None:
    forwards = {"never": 4, "except_last": 7, "always": 8}[recompute]
    ends = {**ENDS, "last forward, run again if any is": step_fails("forward", at=forwards)}
    model = Network()
    with compiled(model, backend, schedule=schedule, recompute=recompute) as pipe:
        for run in ends.values():  # all that is recorded once, and kept
            run(pipe, model)
        for name, run in ends.items():
            try:
                with nothing_stays(model):
                    run(pipe, model)
            except BaseException as error:
                error.add_note(f"after: {name}")
                raise


class Decides(Network):
    """Has a recording for each way that a micro-batch decides."""

    def forward(self, x: Tensor) -> Tensor:
        if bool((x.detach() > 0).all()):
            x = -x
        return super().forward(x)


@pytest.mark.slow
@each_backend
def test_a_thousand_steps(backend: str) -> None:
    """Of several sizes and variants, some of them dropped or failing: no object is left of any."""
    model = Decides()

    def run(pipe: Pipe, at: int) -> None:
        x = draw(8 + at % 4, WIDTH)
        x[: 3 * (at % 2)] = 1.0  # the first micro-batch decides otherwise
        if at % 20 == 3:
            del_me = pipe(x)
            del del_me
        elif at % 20 == 7:
            with failing(model, "backward", at % 3, 2), pytest.raises(MineError):
                pipe.step(x, loss_fn=mean_square)
        elif at % 20 == 11:
            with torch.no_grad():
                pipe(x)
        else:
            pipe.step(x, loss_fn=mean_square)
        for probe in model.probes:
            probe.seen.clear()

    with compiled(model, backend, cuts=None) as pipe:
        counts = []
        for at in range(1000):
            run(pipe, at)
            if at % 400 == 199:
                model.zero_grad()
                gc.collect()
                counts.append((tensors_alive(), len(gc.get_objects())))
        threads = threading.active_count()
        run(pipe, 0)
        assert threading.active_count() == threads
    (tensors, objects), *others = counts
    for more_tensors, more_objects in others:
        assert more_tensors <= tensors
        assert more_objects <= objects + 50


@each_backend
@pytest.mark.parametrize("end", ["step", "dropped call", "backward of a step", "no gradients"])
def test_a_dropped_pipeline_is_gone_with_its_threads(backend: str, end: str) -> None:
    model = Network()
    threads = set(threading.enumerate())
    with compiled(model, backend) as kept:
        pipe = kept.replace(schedule="gpipe")
    ENDS[end](pipe, model)
    ref, inside = weakref.ref(pipe), weakref.ref(pipe._recordings)
    mine = {t for t in threading.enumerate() if t.name.startswith("fxpipe-rank")} - threads
    del pipe, kept
    gc.collect()
    assert ref() is None
    assert inside() is None
    wait_until_ended(mine)


@each_backend
def test_a_result_keeps_what_its_backward_needs_and_nothing_more(backend: str) -> None:
    model = Network()
    with compiled(model, backend) as kept:
        pipe = kept.replace(schedule="gpipe")
    del kept
    loss = mean_square(pipe(draw(ROWS, WIDTH)))
    ref = weakref.ref(pipe._recordings)
    del pipe
    gc.collect()
    loss.backward()
    assert model.first.layer.weight.grad is not None
    del loss
    gc.collect()
    assert ref() is None
    assert all(gone() for probe in model.probes for gone in probe.seen)
