"""What a loss may read besides the result and the target: never the number of another micro-batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fxpipe
from fxpipe.errors import ExecutionError
from tests.conformance.pipes import draw

CHUNKS, WIDTH = 3, 4


class Part(nn.Module):
    """A layer that keeps something of its forward on itself."""

    def __init__(self, keep: Callable[[Part, Tensor], None] | None = None) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.keep = keep

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        if self.keep is not None:
            self.keep(self, x)
        return x.tanh()


def keep_loss(part: Part, x: Tensor) -> None:
    part.aux = x.pow(2).mean()  # type: ignore[assignment]


def keep_mask(part: Part, x: Tensor) -> None:
    part.mask = x > 0  # type: ignore[assignment]


def keep_in_list(part: Part, x: Tensor) -> None:
    part.seen = [x.detach().mean()]  # type: ignore[assignment]


def model_of(*keeps: Callable[[Part, Tensor], None] | None, norm: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    parts: list[nn.Module] = [Part(keep) for keep in keeps]
    for part in parts if norm else ():
        part.layer = nn.Sequential(part.layer, nn.BatchNorm1d(WIDTH))
    return nn.Sequential(*parts)


def step(
    model: nn.Module, loss_fn: Callable[[Any, Any], Tensor], backend: str = "inline", **choices: Any
) -> tuple[Tensor, list[Tensor | None]]:
    x = draw(CHUNKS * 2, WIDTH)
    with fxpipe.compile(
        model,
        devices=["cpu"] * 2,
        chunks=CHUNKS,
        backend=backend,
        batch_norm="per_micro_batch",
        **choices,
    ) as pipe:
        result = pipe.step(x, target=-x, loss_fn=loss_fn)
    return result.loss, [p.grad for p in model.parameters()]


def eager(
    model: nn.Module, loss_fn: Callable[[Any, Any], Tensor]
) -> tuple[Tensor, list[Tensor | None]]:
    total = torch.zeros(())
    for part in draw(CHUNKS * 2, WIDTH).split(2):
        loss = loss_fn(model(part), -part) * (1 / CHUNKS)
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.detach()
    return total, [p.grad for p in model.parameters()]


def with_all(model: nn.Module) -> Callable[[Any, Any], Tensor]:
    """The usual sum over all routers."""

    def loss_fn(output: Tensor, target: Tensor) -> Tensor:
        aux = sum(each.aux for each in model.modules() if hasattr(each, "aux"))
        return F.mse_loss(output, target) + 0.1 * aux

    return loss_fn


def masked(model: nn.Module) -> Callable[[Any, Any], Tensor]:
    return lambda output, target: ((output - target) * model[0].mask).pow(2).mean()  # type: ignore[index, union-attr]


def of_list(model: nn.Module) -> Callable[[Any, Any], Tensor]:
    return lambda output, target: F.mse_loss(output, target) * (1 + model[0].seen[0])  # type: ignore[index, union-attr]


each_backend = pytest.mark.parametrize("backend", ["inline", "local"])


@each_backend
@pytest.mark.parametrize("norm", [False, True], ids=["user's module", "shell"])
@pytest.mark.parametrize(
    ("keep", "loss_of", "name"),
    [(keep_loss, with_all, "aux"), (keep_mask, masked, "mask"), (keep_in_list, of_list, "seen")],
)
def test_what_an_earlier_stage_has_left_is_refused(
    keep: Any, loss_of: Any, name: str, norm: bool, backend: str
) -> None:
    model = model_of(keep, None, None, keep, norm=norm)
    told = rf"leaves in the module '0' \('{name}'\), in stage 0.*as a part of its result"
    with pytest.raises(ExecutionError, match=told):
        step(model, loss_of(model), backend)


@each_backend
@pytest.mark.parametrize("norm", [False, True], ids=["user's module", "shell"])
@pytest.mark.parametrize("recompute", ["never", "always"])
def test_what_the_last_stage_has_left_is_this_micro_batch_s(
    norm: bool, backend: str, recompute: str
) -> None:
    """Also where the stage calls shells."""
    plain, model = (model_of(None, None, None, keep_loss, norm=norm) for _ in range(2))
    expected, gradients = eager(plain, with_all(plain))
    loss, found = step(model, with_all(model), backend, recompute=recompute)
    assert torch.equal(loss, expected)
    assert all(map(torch.equal, found, gradients))  # type: ignore[arg-type]


def test_a_hook_that_collects_features() -> None:
    model, features = model_of(None, None, None, None), {}

    def hook(module: nn.Module, args: Any, output: Tensor) -> None:
        features["first"] = output

    model[0].register_forward_hook(hook)
    with pytest.raises(ExecutionError, match=r"in the module '0' .*'features'.*, in stage 0"):
        step(model, lambda output, target: F.mse_loss(output, target) + features["first"].mean())


def test_a_loss_that_hides_the_refusal() -> None:
    model = model_of(keep_mask, None, None, None)

    def loss_fn(output: Tensor, target: Tensor) -> Tensor:
        try:
            return masked(model)(output, target)
        except Exception:
            return output.mean()

    with pytest.raises(ExecutionError, match="'mask'"):
        step(model, loss_fn)


def test_what_is_returned_without_an_operation() -> None:
    model = model_of(keep_loss, None, None, None)
    with pytest.raises(ExecutionError, match="'aux'"):
        step(model, lambda output, target: model[0].aux)  # type: ignore[return-value]


def test_everything_else_may_be_read() -> None:
    """Class weights, a teacher, parameters, masks that are made once: they are of no micro-batch."""

    def keep_once(part: Part, x: Tensor) -> None:
        part.aux_of_last = x.mean()  # type: ignore[assignment]

    teacher, weights = model_of(None), torch.rand(WIDTH)

    def loss_on(model: nn.Module) -> Callable[[Any, Any], Tensor]:
        def loss_fn(output: Tensor, target: Tensor) -> Tensor:
            taught = teacher(target).detach()
            penalty = model[3].layer.weight.pow(2).sum()  # type: ignore[index, union-attr]
            return ((output - taught).pow(2) * weights * model[0].scale).mean() + penalty  # type: ignore[index, union-attr]

        return loss_fn

    plain, model = (model_of(keep_once, None, None, None) for _ in range(2))
    for each in (plain, model):
        each[0].register_buffer("scale", torch.full((WIDTH,), 2.0))
    expected, gradients = eager(plain, loss_on(plain))
    loss, found = step(model, loss_on(model))
    assert torch.equal(loss, expected)
    assert all(map(torch.equal, found, gradients))  # type: ignore[arg-type]


def test_a_result_that_is_kept_too() -> None:
    """The loss takes it from the result."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = model_of(keep_loss, None, None)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.parts(x), self.parts[0].aux  # type: ignore[return-value]

    def loss_fn(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
        return F.mse_loss(output[0], target) + output[1]

    plain, model = Both(), Both()
    expected, gradients = eager(plain, loss_fn)
    loss, found = step(model, loss_fn)
    assert torch.equal(loss, expected)
    assert all(map(torch.equal, found, gradients))  # type: ignore[arg-type]


def test_a_loss_that_is_compiled() -> None:
    """What watches the loss is no part of what is compiled."""
    compiled = torch.compile(F.mse_loss, backend="eager", fullgraph=True)
    plain, model = (model_of(keep_loss, None, None, None) for _ in range(2))
    expected, _ = eager(plain, F.mse_loss)
    loss, _ = step(model, lambda output, target: compiled(output, target) * 1)
    assert torch.equal(loss, expected)
