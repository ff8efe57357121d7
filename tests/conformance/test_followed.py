"""Models that are changed between steps: the next one is the changed model's."""

from __future__ import annotations

import copy
import enum
import types
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.flop_counter import FlopCounterMode

import fxpipe


class Way(enum.Enum):
    STRAIGHT = 1
    TWISTED = 2


class Net(nn.Module):
    """Its forward reads objects of all kinds; a cut divides it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(8, 8), Pair(), nn.Linear(8, 8)
        self.factors: Any = (1.0, 2.0)
        self.order = list(range(8))
        self.config = SimpleNamespace(scale=1.0)
        self.way = Way.STRAIGHT
        self.act: Any = torch.tanh
        self.shift = torch.ones(8)

    def helper(self, x: Tensor) -> Tensor:
        return x * 1.5

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.first(x)) * self.factors[1] * self.config.scale
        x = self.inner(x)[:, self.order] + self.shift
        if self.way is Way.TWISTED:
            x = x.flip(1)
        return self.last(self.helper(x))


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x).tanh())


def _tripled(module: nn.Module, args: Any, result: Tensor) -> Tensor:
    return result * 3


def _doubled(module: nn.Module, args: Any, kwargs: Any) -> Any:
    return (args[0] * 2,), kwargs


def _negated(self: nn.Module, x: Tensor) -> Tensor:
    return -x


CHANGES: dict[str, Callable[[Net], Any]] = {
    "hook": lambda m: m.register_forward_hook(_tripled),
    "hook that is always called": lambda m: m.register_forward_hook(_tripled, always_call=True),
    "pre hook with kwargs": lambda m: m.register_forward_pre_hook(_doubled, with_kwargs=True),
    "hook of a divided module": lambda m: m.inner.register_forward_hook(_tripled),
    "hook of a called module": lambda m: m.last.register_forward_hook(_tripled),
    "tuple": lambda m: setattr(m, "factors", (1.0, 5.0)),
    "list": lambda m: m.order.reverse(),
    "field": lambda m: setattr(m.config, "scale", 3.0),
    "enum": lambda m: setattr(m, "way", Way.TWISTED),
    "function": lambda m: setattr(m, "act", torch.sigmoid),
    "tensor": lambda m: setattr(m, "shift", torch.full((8,), 3.0)),
    "tensor in place": lambda m: m.shift.mul_(2),
    "shadowed method": lambda m: setattr(m, "helper", types.MethodType(_negated, m)),
}


def _pipe(model: nn.Module, **choices: Any) -> fxpipe.Pipeline:
    return fxpipe.compile(
        model,
        devices=["cpu", "cpu"],
        chunks=2,
        cuts=["inner.two"],
        costs="estimate",
        backend="inline",
        **choices,
    )


def _is_eager(pipe: fxpipe.Pipeline, model: nn.Module) -> bool:
    x, target = torch.randn(4, 8), torch.randn(4, 8)
    plain = copy.deepcopy(model)
    plain.zero_grad()
    model.zero_grad()
    for rows, wanted in zip(x.chunk(2), target.chunk(2), strict=True):
        (F.mse_loss(plain(rows), wanted) / 2).backward()
    pipe.step(x, target=target, loss_fn=F.mse_loss)
    pairs = zip(plain.parameters(), model.parameters(), strict=True)
    return all(torch.equal(a.grad, b.grad) for a, b in pairs)


@pytest.mark.filterwarnings("ignore:.*has forward hooks")
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_is_changed_between_steps_is_followed(change: Callable[[Net], Any]) -> None:
    torch.manual_seed(0)
    model = Net()
    with _pipe(model) as pipe:
        assert _is_eager(pipe, model)
        handle = change(model)
        assert _is_eager(pipe, model)
        if hasattr(handle, "remove"):
            handle.remove()
            assert _is_eager(pipe, model)


@pytest.mark.filterwarnings("ignore:.*has forward hooks")
def test_a_hook_of_all_modules_is_followed() -> None:
    torch.manual_seed(0)
    model = Net()

    def tripled(module: nn.Module, args: Any, result: Any) -> Any:
        return result * 3 if isinstance(module, Pair) else None

    with _pipe(model) as pipe:
        assert _is_eager(pipe, model)
        handle = register_module_forward_hook(tripled)
        try:
            assert _is_eager(pipe, model)
        finally:
            handle.remove()
        assert _is_eager(pipe, model)


def test_a_counter_of_torch_s_records_nothing_anew() -> None:
    torch.manual_seed(0)
    model, x = Net(), torch.randn(4, 8)
    with _pipe(model) as pipe:
        pipe.step(x, target=x, loss_fn=F.mse_loss)
        with FlopCounterMode(display=False) as counter:
            pipe.step(x, target=x, loss_fn=F.mse_loss)
    forward, backward = 4 * 2 * 4 * 8 * 8, (4 + 3) * 2 * 4 * 8 * 8
    assert counter.get_total_flops() == forward + backward


def test_a_backward_hook_that_scales_the_model_s_gradients_is_refused_by_name() -> None:
    torch.manual_seed(0)
    model = Net()

    def scaled(module: nn.Module, wanted: Any, given: Any) -> Any:
        return tuple(None if grad is None else grad * 7 for grad in wanted)

    x = torch.randn(4, 8, requires_grad=True)
    with _pipe(model) as pipe:
        pipe.step(x, target=torch.zeros(4, 8), loss_fn=F.mse_loss)
        model.register_full_backward_hook(scaled)
        with pytest.raises(fxpipe.errors.CaptureError, match="backward hooks"):
            pipe.step(x, target=torch.zeros(4, 8), loss_fn=F.mse_loss)


def test_a_backward_hook_of_the_model_that_only_looks_is_said_not_to_run() -> None:
    torch.manual_seed(0)
    model = Net()
    model.register_full_backward_hook(lambda module, wanted, given: None)
    x = torch.randn(4, 8)
    with _pipe(model) as pipe, pytest.warns(UserWarning, match="the model has backward hooks"):
        pipe.step(x, target=x, loss_fn=F.mse_loss)


def test_activations_that_hooks_keep_in_the_model_record_nothing_anew() -> None:
    torch.manual_seed(0)
    model = Net()
    seen: list[Tensor] = []
    model.first.register_forward_hook(lambda module, args, result: seen.append(result))
    model.features = seen  # type: ignore[assignment]
    model.latest = None  # type: ignore[assignment]
    model.last.register_forward_hook(lambda module, args, out: setattr(model, "latest", out))
    with _pipe(model) as pipe:
        x = torch.randn(4, 8)
        for _ in range(3):
            pipe(x).sum().backward()
            pipe.step(x, target=x, loss_fn=F.mse_loss)
        assert len(pipe._recordings._situations) == 1
    assert seen


SHAPES = {
    "vectors between": ([(2, 8), (8,)], [(2, 8), (3, 8)]),
    "vectors first": ([(8,)], [(2, 8), (3, 8), (8,)]),
    "of all kinds": ([(2, 8), (3, 4, 8), (1, 8), (8,)], [(3, 8), (8,), (1, 8)]),
}


@pytest.mark.parametrize(("before", "shapes"), SHAPES.values(), ids=SHAPES)
def test_weights_of_ready_made_micro_batches_do_not_depend_on_earlier_ones(
    before: list[tuple[int, ...]], shapes: list[tuple[int, ...]]
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    rows = [shape[0] if len(shape) > 1 else 1 for shape in shapes]
    with fxpipe.compile(model, devices=["cpu"] * 2, cuts=["2"], backend="inline") as pipe:
        for _ in range(2):
            _counted(pipe, before, 0)
            for at, own in enumerate(rows):
                assert _counted(pipe, shapes, at) == pytest.approx(own / sum(rows))
        with pytest.raises(ValueError, match="empty"):
            _counted(pipe, [(2, 8), (0, 8)], 0)


def _counted(pipe: fxpipe.Pipeline, shapes: list[tuple[int, ...]], at: int) -> float:
    """The weight of one of some micro-batches."""
    given = [
        ((torch.randn(shape),), {}, torch.tensor(float(number == at)))
        for number, shape in enumerate(shapes)
    ]
    result = pipe.step(micro_batches=given, loss_fn=lambda output, own: output.sum() * 0 + own)
    assert result.loss is not None
    return float(result.loss)


def test_a_batch_after_a_vector_is_cut() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    with fxpipe.compile(model, devices=["cpu"] * 2, chunks=4, cuts=["2"], backend="inline") as pipe:
        pipe.step(micro_batches=[((torch.randn(8),), {}, torch.randn(8))], loss_fn=F.mse_loss)
        calls: list[int] = []
        pipe.step(torch.randn(8, 8), target=torch.randn(8, 8), loss_fn=F.mse_loss)
        model[0].register_forward_hook(lambda *_: calls.append(1))
        pipe.step(torch.randn(8, 8), target=torch.randn(8, 8), loss_fn=F.mse_loss)
    assert len(calls) == 4


class Reader(nn.Module):
    """Reads what the model has left in a box: in a stage it cannot be called, so it is written out."""

    def __init__(self, box: list[Tensor]) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.box, self.scale = box, (2.0, 3.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.scale[0] + self.box[0]


class Boxed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.box: list[Tensor] = []
        self.first, self.reader, self.last = nn.Linear(8, 8), Reader(self.box), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        self.box[:] = [h.tanh()]
        return self.last(self.reader(h).relu())


@pytest.mark.filterwarnings("ignore:.*has forward hooks")
@pytest.mark.parametrize("change", ["hook", "tuple"])
def test_a_module_that_is_written_out_undivided_is_followed(change: str) -> None:
    torch.manual_seed(0)
    model = Boxed()
    x = torch.randn(4, 8)
    with fxpipe.compile(model, ["cpu"] * 2, 2, cuts=["last"], costs="estimate") as pipe:
        assert torch.equal(pipe(x), torch.cat([model(part) for part in x.chunk(2)]))
        found = fxpipe.examine(fxpipe.trace(model, (x,)), pipe.plan)
        assert {span.path: span.fate for span in found.spans}["reader"] == "written out"
        if change == "hook":
            model.reader.register_forward_hook(_tripled)
        else:
            model.reader.scale = (5.0, 3.0)
        assert torch.equal(pipe(x), torch.cat([model(part) for part in x.chunk(2)]))
