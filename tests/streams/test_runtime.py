"""The pipeline's runtime on virtual devices: no hazard, and the bits of the same pipeline on CPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fxpipe.runtime.backend import Backend
from fxpipe.runtime.backends.inline import InlineBackend
from fxpipe.runtime.backends.local import LocalBackend
from fxpipe.runtime.devices import open_lane
from fxpipe.runtime.lane import Lane
from fxpipe.runtime.stream_lane import StreamLane
from tests.conformance.networks import ManyReaders, Noisy, Normed, SkipNet, Tied
from tests.streams.callers import CALLERS, Caller, Streams
from tests.streams.rig import Cut, Rig, Setting
from tests.streams.two_stages import Constants, Joined
from tests.virtual.accelerator import VirtualAccelerator
from tests.virtual.faults import Call, FaultyAccelerator
from tests.virtual.hazards import Kind
from tests.virtual.memory import HOST

MODELS: dict[str, tuple[type[nn.Module], tuple[int, ...]]] = {
    "plain": (Joined, (6, 6)),
    "skips": (SkipNet, (6, 3, 8, 8)),
    "many readers": (ManyReaders, (6, 8)),
    "batch norms": (Normed, (6, 3, 12, 12)),
    "random": (Noisy, (6, 8)),
    "tied": (Tied, (6, 5)),
    "constants": (Constants, (6, 6)),
}
SETTINGS = {
    "1f1b": Setting(),
    "1f1b on one device": Setting(places=(0, 0)),
    "gpipe": Setting(schedule="gpipe"),
    "gpipe on one device, all recomputed": Setting((0, 0), schedule="gpipe", recompute="always"),
    "four ranks, some recomputed": Setting((0, 1, 1, 0), recompute="except_last"),
    "two stages per rank, all recomputed": Setting(stages_per_rank=2, recompute="always"),
    "host, device, host": Setting((None, 0, None)),
}
BACKENDS: dict[str, Callable[[], Backend]] = {
    "inline": InlineBackend,
    "local": lambda: LocalBackend(threads_per_rank=1),
}


@dataclass
class Case:
    """A model with its data."""

    model: nn.Module
    inputs: list[Tensor]
    target: Tensor


def case(name: str) -> Case:
    torch.manual_seed(0)
    make, shape = MODELS[name]
    model = make()
    x = torch.randint(0, 11, shape) if make is Tied else torch.randn(shape, requires_grad=True)
    with torch.no_grad(), torch.random.fork_rng():
        output = make()(x)
    return Case(model, [x], torch.randn_like(_first(output)))


@cache
def cut(name: str, stages: int) -> Cut:
    known = case(name)
    return Cut.of(known.model, known.inputs, stages)


def _first(output: Any) -> Tensor:
    first: Tensor = output[0] if isinstance(output, tuple) else output
    return first


def square(output: Any, target: Tensor) -> Tensor:
    return (_first(output) - target).square().mean()


Results = dict[str, Tensor]


class AtHome:
    """A caller without accelerator, in place of `Streams`."""

    def calling(self) -> AbstractContextManager[None]:
        return nullcontext()

    def updated(self) -> None:
        pass

    def load(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return list(tensors)


def train(rig: Rig, known: Case, streams: Streams | AtHome) -> Results:
    """Two steps as a user would make them, and everything they give."""
    optimiser = torch.optim.SGD(known.model.parameters(), lr=0.1)
    found: Results = {}
    for number in range(2):
        with streams.calling():
            *inputs, target = streams.load([*known.inputs, known.target])
            outcome = rig.step(inputs, target, square)
            del inputs, target
            for name, parameter in known.model.named_parameters():
                found[f"{number} grad {name}"] = parameter.grad.clone()
            for name, buffer in known.model.named_buffers():
                found[f"{number} {name}"] = buffer.clone()
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            streams.updated()
            found[f"{number} loss"] = outcome.loss * 1
            for m, (leaves, grads) in enumerate(
                zip(outcome.outputs, outcome.input_grads, strict=True)
            ):
                found[f"{number} output {m}"] = leaves[0].clone()
                found |= {f"{number} input {m}": g.clone() for g in grads if g is not None}
            del outcome, leaves, grads
    return found


def call(rig: Rig, known: Case, streams: Streams | AtHome) -> Results:
    """A differentiable call with the caller's own loss."""
    with streams.calling():
        *inputs, target = streams.load([*known.inputs, known.target])
        value, input_grads = rig.call(
            inputs, lambda joined: (joined - target.to(joined.device)).square().mean()
        )
        found = {"loss": value * 1}
        for name, parameter in known.model.named_parameters():
            found[f"grad {name}"] = parameter.grad.clone()
        for m, grads in enumerate(input_grads):
            found |= {f"input {m}": g.clone() for g in grads if g is not None}
    return found


def on_cpus(name: str, setting: Setting, run: Callable[..., Results] = train) -> Results:
    known = case(name)
    lanes = [open_lane(HOST) for _ in setting.places]
    rig = Rig(known.model, cut(name, setting.stages), setting, lanes, InlineBackend())
    return run(rig, known, AtHome())


def on_devices(
    name: str,
    setting: Setting,
    accelerator: VirtualAccelerator,
    *,
    backend: str = "inline",
    caller: Caller = CALLERS["inputs on the host"],
    run: Callable[..., Results] = train,
    lane: Callable[..., Lane] = open_lane,
) -> Results:
    known = case(name)
    whole = cut(name, setting.stages)
    with accelerator.watch():
        devices = [
            HOST if place is None else accelerator.devices[place] for place in setting.places
        ]
        lanes = [lane(device, accelerator) for device in devices]
        runs_on = BACKENDS[backend]()
        rig = Rig(known.model, whole, setting, lanes, runs_on)
        found = run(rig, known, Streams(accelerator, caller))
        accelerator.synchronize_all()
        runs_on.close()
        return {key: accelerator.read(value) for key, value in found.items()}


def differences(one: Results, other: Results) -> list[str]:
    return [
        key
        for key in one.keys() | other.keys()
        if key not in one or key not in other or not torch.equal(one[key], other[key])
    ]


RUNS = [
    *((model, setting) for model in ("plain", "skips", "many readers") for setting in SETTINGS),
    *((model, "1f1b") for model in ("batch norms", "random", "tied", "constants")),
    *(
        (model, "four ranks, some recomputed")
        for model in ("batch norms", "random", "tied", "constants")
    ),
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("model", "setting"), RUNS)
def test_no_hazard_and_the_same_bits(model: str, setting: str, backend: str) -> None:
    accelerator = VirtualAccelerator(2)
    found = on_devices(model, SETTINGS[setting], accelerator, backend=backend)
    assert not accelerator.report, str(accelerator.report)
    assert differences(found, on_cpus(model, SETTINGS[setting])) == []


@pytest.mark.parametrize("seed", range(5))
def test_whatever_order_the_threads_come_in(seed: int) -> None:
    setting = SETTINGS["four ranks, some recomputed"]
    accelerator = VirtualAccelerator(2, delays=seed)
    found = on_devices("many readers", setting, accelerator, backend="local")
    assert not accelerator.report, str(accelerator.report)
    assert differences(found, on_cpus("many readers", setting)) == []


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("caller", CALLERS.values(), ids=CALLERS)
@pytest.mark.parametrize("run", [train, call])
def test_wherever_the_caller_is(run: Callable[..., Results], caller: Caller, backend: str) -> None:
    accelerator = VirtualAccelerator(2)
    found = on_devices(
        "many readers", Setting(), accelerator, backend=backend, caller=caller, run=run
    )
    assert not accelerator.report, str(accelerator.report)
    assert differences(found, on_cpus("many readers", Setting(), run)) == []


@pytest.mark.parametrize("setting", ["1f1b", "1f1b on one device"])
def test_every_call_left_out_is_reported(setting: str) -> None:
    """Each place in the lanes' code that records, waits, keeps or copies is needed by some caller."""
    reported: dict[Call, bool] = {}
    for caller in CALLERS.values():
        whole = FaultyAccelerator(2)
        on_devices("plain", SETTINGS[setting], whole, caller=caller)
        for left_out in whole.calls_of_lanes:
            if not reported.get(left_out):
                faulty = FaultyAccelerator(2, left_out)
                on_devices("plain", SETTINGS[setting], faulty, caller=caller)
                reported[left_out] = bool(faulty.report)
    assert len(reported) >= 10
    assert [str(call) for call, was_reported in reported.items() if not was_reported] == []


class NoStream(StreamLane):
    """The runtime forgets to issue its work to the compute stream."""

    def compute(self) -> AbstractContextManager[None]:
        return nullcontext()


class NoMark(StreamLane):
    """The runtime hands values on without a mark."""

    def mark(self) -> None:
        return None


class NoReceive(StreamLane):
    """The runtime takes what other ranks made as it is."""

    def receive(self, tensors: Sequence[Tensor], event: Any, source: Lane) -> list[Tensor]:
        return list(tensors)


class NoMove(StreamLane):
    """The runtime takes what the caller gave as it is."""

    def from_caller(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return list(tensors)


class NoBegin(StreamLane):
    """The runtime does not wait for the caller."""

    def begin(self, inputs: Any = ()) -> None:
        return None


class NoFinish(StreamLane):
    """The caller does not wait for the runtime."""

    def finish(self, outputs: Any = ()) -> None:
        return None


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("places", [(0, 1), (0, 0)])
@pytest.mark.parametrize("lane", [NoStream, NoMark, NoReceive, NoMove, NoBegin, NoFinish])
def test_every_use_of_a_lane_is_needed(
    lane: type[StreamLane], places: tuple[int, ...], backend: str
) -> None:
    accelerator = VirtualAccelerator(2)
    on_devices("plain", Setting(places), accelerator, backend=backend, lane=lane)
    assert accelerator.report.kinds & {
        Kind.READ_BEFORE_WRITE,
        Kind.WRITE_BEFORE_READ,
        Kind.MIXED_DEVICES,
        Kind.RACING_THREADS,
    }
