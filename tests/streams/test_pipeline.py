"""What a user does with a pipeline, on virtual devices: step, differentiable call, evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

import fxpipe
from fxpipe.runtime.devices import open_lane
from tests.conformance.networks import ManyReaders, Noisy, Normed, SkipNet, Tied
from tests.streams.two_stages import Joined
from tests.virtual.accelerator import VirtualAccelerator
from tests.virtual.memory import HOST

MODELS: dict[str, tuple[type[nn.Module], tuple[int, ...]]] = {
    "plain": (Joined, (6, 6)),
    "skips": (SkipNet, (6, 3, 8, 8)),
    "many readers": (ManyReaders, (6, 8)),
    "batch norms": (Normed, (6, 3, 12, 12)),
    "random": (Noisy, (6, 8)),
    "tied": (Tied, (6, 5)),
}
Results = dict[str, Tensor]


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualAccelerator]:
    """Pipelines made from here on run on virtual devices."""
    virtual = VirtualAccelerator(2)
    monkeypatch.setattr("fxpipe.pipeline.open_lane", lambda device: open_lane(device, virtual))
    monkeypatch.setattr(
        "fxpipe.compiler.resolve_devices", lambda names: tuple(virtual.devices[n] for n in names)
    )
    yield virtual
    assert not virtual.report, str(virtual.report)


def pipeline(
    name: str, devices: list, backend: str, schedule: str = "1f1b"
) -> tuple[fxpipe.Pipeline, Tensor]:
    torch.manual_seed(0)
    make, shape = MODELS[name]
    x = torch.randint(0, 11, shape) if make is Tied else torch.randn(shape)
    pipe = fxpipe.compile(
        make(),
        devices,
        3,
        example_args=(x,),
        costs="estimate",
        backend=backend,
        seed=0,
        schedule=schedule,
    )
    # Other situations are recorded now: recording is no part of a step.
    pipe.eval()
    with torch.no_grad():
        pipe.capture(x)
    pipe.train()
    return pipe, x


def use(pipe: fxpipe.Pipeline, x: Tensor) -> Results:
    """A step, a differentiable call, an evaluation, with what each gives."""
    optimiser = torch.optim.SGD(pipe.parameters(), lr=0.1)
    result = pipe.step(x, loss_fn=lambda output, _: _first(output).float().square().mean())
    assert result.loss is not None
    found = {"loss": result.loss * 1, "output": _first(result.output).clone()}
    found |= {f"grad {name}": p.grad.clone() for name, p in pipe.named_parameters()}
    optimiser.step()
    optimiser.zero_grad()

    loss = _first(pipe(x)).square().mean()
    loss.backward()
    found["loss of a call"] = loss.detach() * 1
    found |= {f"grad of a call {name}": p.grad.clone() for name, p in pipe.named_parameters()}
    optimiser.step()
    found |= {name: buffer.clone() for name, buffer in pipe.named_buffers()}

    pipe.eval()
    with torch.no_grad():
        found["evaluation"] = _first(pipe(x)) * 1
    return found


def _first(output: Tensor | tuple[Tensor, ...]) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


@pytest.mark.parametrize("backend", ["inline", "local"])
@pytest.mark.parametrize("places", [(0, 1), (0, 0)], ids=["two devices", "one device"])
@pytest.mark.parametrize("model", MODELS)
def test_no_hazard_and_the_same_bits(
    model: str, places: tuple[int, int], backend: str, accelerator: VirtualAccelerator
) -> None:
    pipe, x = pipeline(model, list(places), backend)
    with accelerator.watch():
        found = use(pipe, x)
        accelerator.synchronize_all()
        found = {name: accelerator.read(tensor) for name, tensor in found.items()}
        pipe.close()
    expected = on_cpus(model)
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []


def on_cpus(
    name: str,
    schedule: str = "1f1b",
    run: Callable[[fxpipe.Pipeline, Tensor], Results] | None = None,
) -> Results:
    """The same on the host alone; `run` in place of `use`."""
    with pytest.MonkeyPatch.context() as plain:
        plain.setattr("fxpipe.pipeline.open_lane", lambda device: open_lane(HOST))
        plain.setattr("fxpipe.compiler.resolve_devices", lambda names: (HOST, HOST))
        pipe, x = pipeline(name, [HOST, HOST], "inline", schedule)
        return (run or use)(pipe, x)


@pytest.mark.parametrize("places", [(0, 1), (0, 0)], ids=["two devices", "one device"])
def test_gradients_of_inputs_come_back_to_the_host(
    places: tuple[int, int], accelerator: VirtualAccelerator
) -> None:
    pipe, x = pipeline("many readers", list(places), "inline")
    pipe.capture(x.requires_grad_())
    with accelerator.watch():
        _first(pipe(x)).square().mean().backward()
        assert x.grad is not None
        assert x.grad.device == HOST
        assert torch.isfinite(x.grad).all()  # read without further care
        pipe.close()


@pytest.mark.cuda
@pytest.mark.parametrize("backend", ["inline", "local"])
def test_a_call_on_a_real_device(backend: str) -> None:
    """Its backward must not wait on the thread that autograd has for the device: it would not end."""
    make, shape = MODELS["many readers"]
    torch.manual_seed(0)
    plain, x = make().cuda(), torch.randn(shape, device="cuda", requires_grad=True)
    _first(plain(x)).square().mean().backward()
    expected = {name: p.grad.clone() for name, p in plain.named_parameters()}
    expected_x, x.grad = x.grad, None
    plain.zero_grad()
    with fxpipe.compile(plain, ["cuda:0"] * 3, 3, backend=backend, example_args=(x,)) as pipe:
        _first(pipe(x)).square().mean().backward()
        for name, parameter in pipe.named_parameters():
            torch.testing.assert_close(parameter.grad, expected[name])
        torch.testing.assert_close(x.grad, expected_x)
