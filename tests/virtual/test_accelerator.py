"""Every fault is reported, and the right program beside it is not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from tests.virtual.accelerator import VirtualAccelerator
from tests.virtual.hazards import Kind


@pytest.fixture
def accelerator() -> Iterator[VirtualAccelerator]:
    with VirtualAccelerator(2).watch() as virtual:
        yield virtual


def on_device(accelerator: VirtualAccelerator, device: int = 0) -> Tensor:
    """A tensor that was on the device before any of the streams of a test began."""
    tensor = torch.ones(2, 2)
    accelerator.place([tensor], accelerator.devices[device])
    accelerator.synchronize_all()
    return tensor


def order(accelerator: VirtualAccelerator, first, then) -> None:
    accelerator.wait(then, accelerator.record(first))


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        (lambda x: x.add_(1), lambda x: x.neg(), Kind.READ_BEFORE_WRITE),
        (lambda x: x.neg(), lambda x: x.add_(1), Kind.WRITE_BEFORE_READ),
        (lambda x: x.zero_(), lambda x: x.zero_(), Kind.WRITE_BEFORE_READ),
        (lambda x: x.neg(), lambda x: x.neg(), None),
        (lambda x: x.view(4), lambda x: x.zero_(), None),
        (lambda x: torch.zeros_like(x), lambda x: x.zero_(), None),
        (lambda x: torch.neg(x, out=torch.empty_like(x)), lambda x: x.t().neg(), None),
        (lambda x: torch.cat([x, x]), lambda x: x[0].zero_(), Kind.WRITE_BEFORE_READ),
    ],
)
def test_streams_of_one_device(accelerator, before, after, kind, waits) -> None:
    x = on_device(accelerator)
    first, second = (accelerator.open(accelerator.devices[0]) for _ in range(2))
    with accelerator.use(first):
        before(x)
    if waits:
        order(accelerator, first, second)
    with accelerator.use(second):
        after(x)
    assert accelerator.report.kinds == ({kind} if kind and not waits else set())


@pytest.mark.parametrize("waits", [True, False])
def test_statistics_of_batch_norm_are_written(accelerator, waits) -> None:
    norm = nn.BatchNorm1d(2)
    accelerator.place(norm, accelerator.devices[0])
    x = on_device(accelerator)
    first, second = (accelerator.open(accelerator.devices[0]) for _ in range(2))
    with accelerator.use(first):
        norm(x)
    if waits:
        order(accelerator, first, second)
    with accelerator.use(second):
        norm.running_mean.neg()
    assert accelerator.report.kinds == (set() if waits else {Kind.READ_BEFORE_WRITE})


@pytest.mark.parametrize("waits", [True, False])
def test_backward_is_watched(accelerator, waits) -> None:
    layer = nn.Linear(2, 2)
    accelerator.place(layer, accelerator.devices[0])
    x = on_device(accelerator)
    first, second = (accelerator.open(accelerator.devices[0]) for _ in range(2))
    with accelerator.use(first):
        loss = layer(x).sum()
    if waits:
        order(accelerator, first, second)
    with accelerator.use(second):
        loss.backward()
        layer.weight.grad.neg()
    # The saved input and weight were there before; the sum's gradient is made on `second`.
    assert accelerator.report.kinds == set()
    with accelerator.use(first):
        layer.weight.grad.neg()
    assert accelerator.report.kinds == {Kind.READ_BEFORE_WRITE}


@pytest.mark.parametrize("keeps", [True, False])
def test_memory_read_elsewhere_must_be_kept(accelerator, keeps) -> None:
    first, second = (accelerator.open(accelerator.devices[0]) for _ in range(2))
    with accelerator.use(first):
        x = on_device(accelerator) + 1
    order(accelerator, first, second)
    with accelerator.use(second):
        x.neg()
    if keeps:
        accelerator.keep(x, second)
    del x
    with accelerator.use(first):
        torch.zeros(3, device=accelerator.devices[0])
    assert accelerator.report.kinds == (set() if keeps else {Kind.REUSED})


def test_memory_read_elsewhere_may_be_used_again_after_a_wait(accelerator) -> None:
    first, second = (accelerator.open(accelerator.devices[0]) for _ in range(2))
    with accelerator.use(first):
        x = on_device(accelerator) + 1
    order(accelerator, first, second)
    with accelerator.use(second):
        x.neg()
    del x
    order(accelerator, second, first)
    with accelerator.use(first):
        torch.zeros(3, device=accelerator.devices[0])
    assert not accelerator.report


def test_other_streams_get_none_of_a_streams_memory(accelerator) -> None:
    first, second, third = (accelerator.open(accelerator.devices[0]) for _ in range(3))
    with accelerator.use(first):
        x = on_device(accelerator) + 1
    order(accelerator, first, second)
    with accelerator.use(second):
        x.neg()
    del x
    with accelerator.use(third):
        torch.zeros(3, device=accelerator.devices[0])
    assert not accelerator.report


def test_operands_on_two_devices(accelerator) -> None:
    x, y = on_device(accelerator, 0), on_device(accelerator, 1)
    assert not accelerator.report
    x + y
    assert accelerator.report.kinds == {Kind.MIXED_DEVICES}


def test_a_tensor_of_the_host_beside_one_of_a_device(accelerator) -> None:
    x = on_device(accelerator)
    x * torch.tensor(2.0)  # a number may come from the host
    assert not accelerator.report
    x * torch.ones(2)
    assert accelerator.report.kinds == {Kind.MIXED_DEVICES}


def test_a_transfer_is_ordered_on_both_ends(accelerator) -> None:
    x = on_device(accelerator)
    y = accelerator.copy(x.add_(1), accelerator.devices[1])
    assert accelerator.device_of(y) == accelerator.devices[1]
    y.neg()
    assert torch.equal(accelerator.copy(y, torch.device("cpu")), torch.full((2, 2), 2.0))
    assert not accelerator.report


def test_a_transfer_does_not_wait_for_other_streams(accelerator) -> None:
    x = on_device(accelerator)
    with accelerator.use(accelerator.open(accelerator.devices[0])):
        x.add_(1)
    y = accelerator.copy(x, accelerator.devices[1])
    assert accelerator.report.kinds == {Kind.READ_BEFORE_WRITE}
    with accelerator.use(accelerator.open(accelerator.devices[1])):
        y.neg()
    assert len(accelerator.report.hazards) == 2


def test_tensors_made_and_moved_by_device_name(accelerator) -> None:
    device = accelerator.devices[1]
    made, moved = torch.zeros(2, device=device), torch.ones(2).to(device)
    assert accelerator.device_of(made) == accelerator.device_of(moved) == device
    made.copy_(moved)
    made += torch.ones(2).double().to(device=device, dtype=torch.float32)
    assert accelerator.device_of(torch.zeros(2)) == torch.device("cpu")
    assert not accelerator.report


def test_waiting_for_nothing(accelerator) -> None:
    accelerator.wait(accelerator.open(accelerator.devices[0]), accelerator.event())
    assert accelerator.report.kinds == {Kind.UNRECORDED}


@pytest.mark.parametrize("waits", [True, False])
def test_the_host_reads(accelerator, waits) -> None:
    x = on_device(accelerator)
    stream = accelerator.open(accelerator.devices[0])
    with accelerator.use(stream):
        x.add_(1)
    if waits:
        accelerator.synchronize(stream)
    assert torch.equal(accelerator.read(x), torch.full((2, 2), 2.0))
    assert accelerator.report.kinds == (set() if waits else {Kind.HOST_READ})


def test_item_waits_for_the_current_stream_only(accelerator) -> None:
    x = on_device(accelerator)
    stream = accelerator.open(accelerator.devices[0])
    with accelerator.use(stream):
        total = x.sum()
        assert total.item() == 4.0
    assert torch.equal(accelerator.read(total), torch.tensor(4.0))
    assert not accelerator.report
    with accelerator.use(stream):
        total += 1
    assert total.item() == 5.0
    assert accelerator.report.kinds == {Kind.READ_BEFORE_WRITE}


def test_an_event_holds_the_work_before_it_only(accelerator) -> None:
    x = on_device(accelerator)
    first, second = (accelerator.open(accelerator.devices[0]) for _ in range(2))
    event = accelerator.record(first)
    with accelerator.use(first):
        x.add_(1)
    accelerator.wait(second, event)
    with accelerator.use(second):
        x.neg()
    assert accelerator.report.kinds == {Kind.READ_BEFORE_WRITE}


def test_streams_in_use_are_nested(accelerator) -> None:
    default = accelerator.current(accelerator.devices[0])
    outer, inner = (accelerator.open(accelerator.devices[0]) for _ in range(2))
    with accelerator.use(outer):
        with accelerator.use(inner), accelerator.use(inner):
            assert accelerator.current(accelerator.devices[0]) is inner
        assert accelerator.current(accelerator.devices[0]) is outer
    assert accelerator.current(accelerator.devices[0]) is default


def test_nothing_is_watched_outside() -> None:
    accelerator = VirtualAccelerator(2)
    with accelerator.watch():
        x, y = on_device(accelerator, 0), on_device(accelerator, 1)
    x + y
    assert not accelerator.report
    assert str(accelerator.report) == "no hazard"
