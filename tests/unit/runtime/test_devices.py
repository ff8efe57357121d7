"""Devices by name, lanes on a CPU, copies that keep their layout."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fxpipe.runtime import devices
from fxpipe.runtime.devices import TorchStreams, copy_with_strides, open_lane, resolve_devices
from fxpipe.runtime.plain_lane import PlainLane
from fxpipe.runtime.stream_lane import StreamLane
from tests.virtual.accelerator import VirtualAccelerator

CPU = torch.device("cpu")


class TestResolveDevices:
    def test_two_workers_without_accelerator(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(devices, "_every_accelerator", lambda: ())
        assert resolve_devices() == (CPU, CPU)

    def test_every_accelerator_there_is(self, monkeypatch: pytest.MonkeyPatch) -> None:
        there = (torch.device("cuda", 0), torch.device("cuda", 1))
        monkeypatch.setattr(devices, "_every_accelerator", lambda: there)
        monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 1)
        assert resolve_devices() == there
        assert resolve_devices(["cuda:0", "cuda:0", "cpu"]) == (there[0], there[0], CPU)
        assert resolve_devices(["cuda"]) == (there[1],)

    def test_names_and_devices_may_repeat(self) -> None:
        assert resolve_devices(["cpu"] * 3) == (CPU,) * 3
        assert resolve_devices(("cpu:0", CPU)) == (CPU, CPU)

    @pytest.mark.parametrize("name", ["gpu", "cuda:x", "", 3.5, None])
    def test_no_device(self, name: object) -> None:
        with pytest.raises(ValueError, match=r"is no device; there is cpu"):
            resolve_devices([name])  # type: ignore[list-item]

    @pytest.mark.parametrize("name", ["cuda:7", "xpu", "meta", "mps:0"])
    def test_a_device_that_is_not_there(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(devices, "_every_accelerator", lambda: (torch.device("cuda", 0),))
        with pytest.raises(ValueError, match=f"'{name}' is not there; there is cpu, cuda:0"):
            resolve_devices(["cpu", name])

    @pytest.mark.parametrize("one", ["cpu", CPU])
    def test_a_single_device_is_no_list(self, one: str | torch.device) -> None:
        with pytest.raises(ValueError, match=r"write devices=\['cpu'\]"):
            resolve_devices(one)  # type: ignore[arg-type]

    def test_an_empty_list(self) -> None:
        with pytest.raises(ValueError, match="devices is empty"):
            resolve_devices([])


class TestPlainLane:
    def test_a_cpu_works_at_once(self) -> None:
        lane = open_lane(CPU)
        assert isinstance(lane, PlainLane)
        assert lane.is_synchronous
        assert lane.mark() is None
        assert lane.memory() is None
        with lane.compute(), lane.compute():
            lane.synchronize()

    def test_values_are_handed_on_as_they_are(self) -> None:
        lane, other = open_lane(CPU), open_lane(CPU)
        given = [torch.ones(2), torch.zeros(3)]
        lane.begin(given)
        for got in (lane.receive(given, None, other), lane.from_caller(given)):
            assert [tensor is same for tensor, same in zip(got, given, strict=True)] == [True] * 2
        lane.finish(given)

    def test_parameters_stay(self) -> None:
        layer = nn.Linear(2, 2)
        before = [parameter.data_ptr() for parameter in layer.parameters()]
        open_lane(CPU).adopt(layer.parameters())
        assert [parameter.data_ptr() for parameter in layer.parameters()] == before


class TestStreamLane:
    def test_a_device_with_streams_gets_one(self) -> None:
        accelerator = VirtualAccelerator(1)
        lane = open_lane(accelerator.devices[0], accelerator)
        assert isinstance(lane, StreamLane)
        assert not lane.is_synchronous
        before = accelerator.current(lane.device)
        with lane.compute():
            inside = accelerator.current(lane.device)
            with lane.compute():
                assert accelerator.current(lane.device) is inside
        assert inside is not before
        assert accelerator.current(lane.device) is before

    def test_what_a_stage_made_on_the_host_stays_there(self) -> None:
        accelerator = VirtualAccelerator(2)
        with accelerator.watch():
            first, second = (open_lane(device, accelerator) for device in accelerator.devices)
            with first.compute():
                made = torch.ones(2, device=first.device)
            number = torch.tensor(3.0)
            got = second.receive([number, made], first.mark(), first)
            assert got[0] is number
            assert got[1].device == second.device
            assert first.receive([made], None, first)[0] is made
        assert not accelerator.report

    def test_parameters_move_with_their_gradients(self) -> None:
        accelerator = VirtualAccelerator(1)
        with accelerator.watch():
            lane = open_lane(accelerator.devices[0], accelerator)
            layer = nn.Linear(2, 2)
            layer(torch.ones(1, 2)).sum().backward()
            weight, expected = layer.weight, layer.weight.grad.clone()
            lane.adopt([*layer.parameters()])
            lane.adopt([*layer.parameters()])
            assert layer.weight is weight
            assert weight.device == weight.grad.device == lane.device
            with lane.compute():
                layer(torch.ones(1, 2, device=lane.device)).sum().backward()
            lane.synchronize()
            assert torch.equal(accelerator.read(weight.grad), 2 * expected)
        assert not accelerator.report

    def test_gradients_are_added_on_the_compute_stream(self) -> None:
        """The node that adds them is made when a parameter is first used, on the stream of then."""
        accelerator = VirtualAccelerator(1)
        lane = open_lane(accelerator.devices[0], accelerator)
        layer = nn.Linear(2, 2)
        lane.adopt(layer.parameters())
        nodes = [lane._accumulators[parameter] for parameter in layer.parameters()]
        layer(torch.ones(1, 2)).sum()
        used = [torch.autograd.graph.get_gradient_edge(p).node for p in layer.parameters()]
        assert nodes == used


TENSORS = {
    "packed": torch.arange(12.0).reshape(3, 4),
    "transposed": torch.arange(12.0).reshape(3, 4).t(),
    "with gaps": torch.arange(24.0).reshape(3, 8)[:, 2:6],
    "with an offset": torch.arange(12.0)[5:],
    "expanded": torch.arange(3.0).reshape(3, 1).expand(3, 4),
    "expanded from a number": torch.ones(()).expand(2, 3),
    "channels last": torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last),
    "a number": torch.tensor(3),
    "empty": torch.empty(0, 4),
    "every third": torch.arange(12)[::3],
    "complex": torch.arange(4.0).to(torch.complex64).conj(),
    "truth values": torch.tensor([True, False]),
}


@pytest.mark.parametrize("tensor", TENSORS.values(), ids=TENSORS)
def test_a_copy_keeps_values_and_strides(tensor: Tensor) -> None:
    copy = copy_with_strides(tensor, CPU, non_blocking=False)
    assert torch.equal(copy, tensor)
    assert copy.stride() == tensor.stride()
    assert copy.dtype == tensor.dtype
    assert tensor.numel() == 0 or copy.data_ptr() != tensor.data_ptr()


def test_a_sparse_copy() -> None:
    sparse = torch.eye(3).to_sparse()
    copy = copy_with_strides(sparse, CPU, non_blocking=False)
    assert copy.layout is torch.sparse_coo
    assert copy is not sparse
    assert torch.equal(copy.to_dense(), torch.eye(3))


def test_torch_streams_on_a_cpu_build() -> None:
    streams = TorchStreams()
    assert not streams.has_streams(CPU)
    assert streams.memory(CPU) is None
    tensor = torch.ones(2, requires_grad=True)
    assert streams.device_of(tensor) == CPU
    copy = streams.copy(tensor, CPU)
    assert torch.equal(copy, tensor)
    assert not copy.requires_grad


@pytest.mark.cuda
class TestOnADevice:
    """The same promises on an accelerator: short, and with both ranks on the first device."""

    def test_values_go_from_rank_to_rank(self) -> None:
        device = resolve_devices(["cuda:0"])[0]
        first, second = open_lane(device), open_lane(device)
        for lane in (first, second):
            lane.begin()
        (x,) = first.from_caller([torch.ones(1 << 20)])
        with first.compute():
            made = (x * 2).cumsum(0)
        (got,) = second.receive([made], first.mark(), first)
        with second.compute():
            result = got[-1] + 1
        for lane in (first, second):
            lane.finish([result])
        assert result.item() == 2.0 * (1 << 20) + 1

    def test_to_the_host_and_back(self) -> None:
        device, host = resolve_devices(["cuda:0", "cpu"])
        lane, plain = open_lane(device), open_lane(host)
        lane.begin()
        (x,) = lane.from_caller([torch.arange(24.0).reshape(3, 8)[:, 2:6]])
        with lane.compute():
            made = x + 1
        (back,) = plain.receive([made], lane.mark(), lane)
        lane.finish()
        assert back.device == host
        assert torch.equal(back, torch.arange(24.0).reshape(3, 8)[:, 2:6] + 1)
        assert x.stride() == (8, 1)
        use = lane.memory()
        assert use is not None
        assert 0 < use.allocated <= use.peak
