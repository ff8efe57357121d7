"""Types, autocast, the scaler, clipping, and what belongs to the caller's thread."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxpipe
from fxpipe.errors import ExecutionError
from tests.conformance.pipes import (
    CHUNKS,
    Setting,
    draw,
    draw_ints,
    each_recompute,
    each_setting,
    pair,
)
from tests.reference import run_eager_step, split

ONE = Setting("1f1b", 3, "inline")
LOCAL = Setting("1f1b", 3, "local")
W = 8
CUTS = ["norm", "c"]


class Mixed(nn.Module):
    """Operations that autocast treats each in its own way, and a weight that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(W, W), nn.Linear(W, W), nn.Linear(W, W)
        self.norm = nn.LayerNorm(W)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        x = self.norm(x).tanh()
        x = self.b(x) + self.b(x.exp())
        return self.c(x.softmax(-1))


def square(output: Tensor, target: Any = None) -> Tensor:
    return output.float().square().mean()


# ---- autocast ----------------------------------------------------------------------------------------


def autocast(dtype: torch.dtype = torch.bfloat16, **options: Any) -> AbstractContextManager[Any]:
    return torch.autocast("cpu", dtype, **options)


@each_setting
@each_recompute
@pytest.mark.parametrize("options", [{}, {"cache_enabled": False}], ids=["cached", "uncached"])
def test_autocast_around_a_step(setting: Setting, recompute: str, options: Any) -> None:
    x = draw(10, W)
    with pair(Mixed, setting, cuts=CUTS, recompute=recompute) as both:
        for _ in range(2):
            with autocast(**options):
                found = both.pipe.step(x, loss_fn=square)
            expected = run_eager_step(
                both.eager,
                (x,),
                chunks=CHUNKS,
                loss_fn=square,
                autocast=lambda: autocast(**options),
            )
            both.assert_step(found, expected)
            assert found.output.dtype is torch.bfloat16
        outside = both.pipe.step(x, loss_fn=square)
        assert outside.output.dtype is torch.float32
    assert not torch.is_autocast_enabled("cpu")


@each_setting
@each_recompute
def test_autocast_around_a_call_alone(setting: Setting, recompute: str) -> None:
    """The backward outside computes in the types of its forward, reruns included."""
    x = draw(10, W)
    with pair(Mixed, setting, cuts=CUTS, recompute=recompute) as both:
        with autocast():
            output = both.pipe(x)
        assert output.dtype is torch.bfloat16
        square(output).backward()
        parts = []
        for part in x.tensor_split(CHUNKS):
            with autocast():
                parts.append(both.eager(part))
        joined = torch.cat([part.detach() for part in parts]).requires_grad_()
        (grad,) = torch.autograd.grad(square(joined), joined)
        for part, piece in zip(parts, grad.split([3, 3, 2, 2]), strict=True):
            part.backward(piece)
        both.assert_state()


class Twice(nn.Module):
    """Multiplies by one weight twice."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(W, W)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.linear(x).tanh()).tanh()


def test_stages_take_no_kept_casts_from_each_other() -> None:
    """A stage that left autocast emptied the store of casts under another one's forward."""
    x = draw(8, W)
    with pair(lambda: nn.Sequential(*(Twice() for _ in range(3))), LOCAL, cuts=["1", "2"]) as both:
        with autocast():
            both.pipe.capture(x)
        for n, part in enumerate(both.model):
            part.linear.register_forward_hook(lambda *_, n=n: time.sleep(0.002 * (n + 1)))
        with autocast():
            found = both.pipe.step(x, loss_fn=square)
        expected = run_eager_step(
            both.eager, (x,), chunks=CHUNKS, loss_fn=square, autocast=autocast
        )
        both.assert_step(found, expected)


def test_a_part_without_autocast_inside_of_it() -> None:
    class Part(Mixed):
        def forward(self, x: Tensor) -> Tensor:
            x = self.a(x)
            with torch.autocast("cpu", enabled=False):
                x = self.b(x.float()).tanh()
            return self.c(x)

    x = draw(10, W)
    with pair(Part, LOCAL) as both:
        with autocast():
            found = both.pipe.step(x, loss_fn=square)
        expected = run_eager_step(
            both.eager, (x,), chunks=CHUNKS, loss_fn=square, autocast=autocast
        )
        both.assert_step(found, expected)


# ---- the scaler --------------------------------------------------------------------------------------


@contextmanager
def optimizers(both: Any) -> Iterator[list[torch.optim.Optimizer]]:
    yield [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (both.model, both.eager)]


@each_setting
def test_training_with_a_scaler(setting: Setting) -> None:
    """One that overflows at first: all stages skip the update together, and the scale is halved."""
    half = torch.float16
    with pair(Mixed, setting, cuts=CUTS) as both, optimizers(both) as (mine, theirs):
        scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**40) for _ in range(2)]
        scales = []
        for step in range(30):
            x = draw(8, W, seed=step)
            with autocast(half):
                found = both.pipe.step(x, loss_fn=square, scale=scalers[0].scale(torch.ones(())))
            expected = run_eager_step(
                both.eager,
                (x,),
                chunks=CHUNKS,
                loss_fn=square,
                scale=float(scalers[1].scale(torch.ones(()))),
                autocast=lambda: autocast(half),
            )
            assert torch.equal(found.loss, expected.loss)
            assert found.loss.isfinite()
            scalers[0].unscale_(mine)
            scalers[1].unscale_(theirs)
            norm = fxpipe.clip_grad_norm_(both.pipe, 0.5)
            assert (
                torch.equal(norm, torch.nn.utils.clip_grad_norm_(both.eager.parameters(), 0.5))
                or not norm.isfinite()
            )
            for scaler, optimizer in zip(scalers, (mine, theirs), strict=True):
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            scales.append(scalers[0].get_scale())
            assert scalers[0].get_scale() == scalers[1].get_scale()
        assert scales[0] < 2.0**40, "the first step overflows"
        assert scales[-1] == scales[-2], "and the last ones do not"
        for one, other in zip(both.model.parameters(), both.eager.parameters(), strict=True):
            assert torch.equal(one, other)
        assert not torch.equal(both.model.a.weight, pair_start())


def pair_start() -> Tensor:
    torch.manual_seed(0)
    return Mixed().a.weight


def test_a_scaler_over_the_drop_in_call() -> None:
    with pair(Mixed, LOCAL, cuts=CUTS) as both, optimizers(both) as (mine, _):
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        scaler.scale(square(both.pipe(draw(8, W)))).backward()
        scaler.unscale_(mine)
        square(both.eager(draw(8, W))).backward()
        for one, other in zip(both.model.parameters(), both.eager.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad)
        scaler.step(mine)


# ---- clipping ----------------------------------------------------------------------------------------


class TiedNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, W)
        self.a, self.b = nn.Linear(W, W), nn.Linear(W, W)
        self.head = nn.Linear(W, 11, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.b(self.a(self.table(ids)).tanh()))


@each_setting
@pytest.mark.parametrize("norm_type", [2.0, float("inf")])
def test_clipping_is_one_norm_and_tied_parameters_count_once(
    setting: Setting, norm_type: float
) -> None:
    ids, target = draw_ints(11, 8), draw_ints(11, 8, seed=1)
    with pair(TiedNet, setting) as both:
        both.pipe.step(ids, target=target, loss_fn=F.cross_entropy)
        F.cross_entropy(both.eager(ids), target).backward()
        found = fxpipe.clip_grad_norm_(both.pipe, 0.01, norm_type)
        expected = torch.nn.utils.clip_grad_norm_(both.eager.parameters(), 0.01, norm_type)
        torch.testing.assert_close(found, expected)
        for one, other in zip(both.model.parameters(), both.eager.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad)


# ---- types -------------------------------------------------------------------------------------------


@each_setting
@each_recompute
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_models_of_other_types(setting: Setting, recompute: str, dtype: torch.dtype) -> None:
    x = draw(10, W).to(dtype)

    def loss_fn(output: Tensor, target: Any) -> Tensor:
        assert output.dtype is dtype
        return output.square().mean()

    with pair(lambda: Mixed().to(dtype), setting, cuts=CUTS, recompute=recompute) as both:
        found = both.pipe.step(x, loss_fn=loss_fn, scale=8.0)
        expected = run_eager_step(both.eager, (x,), chunks=CHUNKS, loss_fn=loss_fn, scale=8.0)
        both.assert_step(found, expected)
        assert found.loss.dtype is dtype


def test_a_model_that_changes_its_type() -> None:
    with pair(Mixed, LOCAL, cuts=CUTS) as both:
        for dtype in (torch.float32, torch.float64, torch.float32):
            both.pipe.to(dtype)
            both.eager.to(dtype)
            both.model.zero_grad()
            both.eager.zero_grad()
            x = draw(8, W).to(dtype)
            found = both.pipe.step(x, loss_fn=lambda y, _: y.square().mean())
            expected = run_eager_step(
                both.eager, (x,), chunks=CHUNKS, loss_fn=lambda y, _: y.square().mean()
            )
            both.assert_step(found, expected)


# ---- the caller's state ------------------------------------------------------------------------------


class Makes(nn.Module):
    """Makes tensors, in the default type and in grad mode or not."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(W, W), nn.Linear(W, W)
        self.note = Note()

    def forward(self, x: Tensor) -> Tensor:
        x = self.note(self.a(x))
        return self.b(x) + torch.ones(W) + torch.linspace(0, 1, W)


class Note(nn.Module):
    """Notes what its thread is in."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Any, ...]] = []

    def forward(self, x: Tensor) -> Tensor:
        return x * 1.5


def noting(model: Makes) -> list[tuple[Any, ...]]:
    """What the stage's thread is in at each call of `note`."""
    seen: list[tuple[Any, ...]] = []
    model.note.register_forward_hook(
        lambda *_: seen.append(
            (
                torch.is_grad_enabled(),
                torch.is_inference_mode_enabled(),
                torch.get_default_dtype(),
                torch.is_autocast_enabled("cpu"),
            )
        )
    )
    return seen


@pytest.mark.parametrize("setting", [ONE, LOCAL], ids=str)
@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (contextlib.nullcontext, (True, False, torch.float32, False)),
        (torch.no_grad, (False, False, torch.float32, False)),
        (torch.inference_mode, (False, True, torch.float32, False)),
        (autocast, (True, False, torch.float32, True)),
    ],
)
def test_the_callers_modes_hold_in_the_stages(
    setting: Setting, mode: Any, expected: tuple[Any, ...]
) -> None:
    with pair(Makes, Setting(setting.schedule, 2, setting.backend)) as both:
        with mode():
            both.pipe.capture(draw(8, W))
            seen = noting(both.model)
            output = both.pipe(draw(8, W))
        assert seen == [expected] * CHUNKS
        assert output.requires_grad is expected[0]
        assert output.is_inference() is expected[1]


@pytest.mark.parametrize("setting", [ONE, LOCAL], ids=str)
def test_the_default_type_holds_in_the_stages(setting: Setting) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        with pair(Makes, setting) as both:
            x = draw(8, W).double()
            found = both.pipe.step(x, loss_fn=lambda y, _: y.square().mean())
            expected = run_eager_step(
                both.eager, (x,), chunks=CHUNKS, loss_fn=lambda y, _: y.square().mean()
            )
            both.assert_step(found, expected)
            assert found.output.dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("setting", [ONE, LOCAL], ids=str)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_calls_without_gradients_keep_nothing(setting: Setting, mode: Any) -> None:
    saved: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor.numel())
        return tensor

    with pair(Makes, setting) as both, mode():
        both.pipe.capture(draw(8, W))
        made: list[weakref.ref[Tensor]] = []
        handle = both.model.a.register_forward_hook(
            lambda module, args, output: made.append(weakref.ref(output))
        )
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            output = both.pipe(draw(8, W))
        handle.remove()
        assert saved == []
        assert len(made) == CHUNKS
        assert all(tensor() is None for tensor in made), "nothing holds what stages have made"
        assert not output.requires_grad
        with pytest.raises(ExecutionError, match="a step with backward needs grad mode"):
            both.pipe.step(draw(8, W), loss_fn=square)


@pytest.mark.parametrize("setting", [ONE, LOCAL], ids=str)
def test_deterministic_mode(setting: Setting) -> None:
    class Scatters(Mixed):
        def forward(self, x: Tensor) -> Tensor:
            index = torch.zeros(x.size(0), dtype=torch.long)
            picked = torch.zeros_like(x).index_put((index,), self.a(x), accumulate=True)
            return self.c(self.b(x + picked).cumsum(-1))

    torch.use_deterministic_algorithms(True)
    try:
        with pair(Scatters, setting) as both:
            found = both.pipe.step(draw(8, W), loss_fn=square)
            expected = run_eager_step(both.eager, (draw(8, W),), chunks=CHUNKS, loss_fn=square)
            both.assert_step(found, expected)
    finally:
        torch.use_deterministic_algorithms(False)


# ---- gradients ---------------------------------------------------------------------------------------


class Branches(nn.Module):
    """A part that is not used, a part that is frozen, a part without gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.frozen, self.unused, self.b, self.detached = (
            nn.Linear(W, W) for _ in range(5)
        )
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor, uses: bool = False) -> Tensor:
        h = self.frozen(self.a(x).tanh())
        with torch.no_grad():
            gate = self.detached(h).sigmoid()
        if uses:
            h = self.unused(h)
        return self.b(h * gate)


@each_setting
@each_recompute
def test_gradients_are_none_where_eagers_are(setting: Setting, recompute: str) -> None:
    x = draw(8, W)
    with pair(Branches, setting, recompute=recompute) as both:
        for uses in (False, True, False):
            both.model.zero_grad()
            both.eager.zero_grad()
            both.pipe.step(x, uses, loss_fn=square)
            run_eager_step(both.eager, (x, uses), chunks=CHUNKS, loss_fn=square)
            both.assert_state()
            assert (both.model.unused.weight.grad is None) is not uses
            assert both.model.detached.weight.grad is None
            assert both.model.frozen.weight.grad is None


@each_setting
def test_hooks_on_tensors_and_parameters_and_retained_gradients(setting: Setting) -> None:
    x = draw(8, W)
    seen: dict[str, list[Tensor]] = {"mine": [], "eager": []}
    with pair(Mixed, setting, cuts=CUTS) as both:
        both.pipe.capture(x)
        for name, model in (("mine", both.model), ("eager", both.eager)):
            kept = seen[name]
            made: list[Tensor] = []

            def hook(
                module: nn.Module, args: Any, output: Tensor, kept: Any = kept, made: Any = made
            ) -> None:
                output.retain_grad()
                output.register_hook(lambda grad: kept.append(grad.clone()))
                made.append(output)

            model.norm.register_forward_hook(hook)
            model.b.weight.register_hook(lambda grad, kept=kept: kept.append(grad.clone()))
            model.c.register_full_backward_hook(
                lambda module, gave, got, kept=kept: kept.append(got[0].clone())
            )
            if name == "mine":
                both.pipe.step(x, loss_fn=square)
            else:
                run_eager_step(both.eager, (x,), chunks=CHUNKS, loss_fn=square)
            kept += [tensor.grad for tensor in made]
        both.assert_state()
        assert len(seen["mine"]) == len(seen["eager"])
        key = lambda t: (tuple(t.shape), t.flatten().tolist())  # noqa: E731
        ours, theirs = sorted(seen["mine"], key=key), sorted(seen["eager"], key=key)
        assert all(map(torch.equal, ours, theirs))


@each_setting
def test_a_hook_may_change_a_gradient(setting: Setting) -> None:
    x = draw(8, W)
    with pair(Mixed, setting, cuts=CUTS) as both:
        for model in (both.model, both.eager):
            model.a.weight.register_hook(lambda grad: grad * 0.5)
            model.norm.register_forward_hook(
                lambda module, args, output: (
                    output.register_hook(lambda grad: grad.clamp(-0.01, 0.01)) and None
                )
            )
        found = both.pipe.step(x, loss_fn=square)
        both.assert_step(found, run_eager_step(both.eager, (x,), chunks=CHUNKS, loss_fn=square))


@each_setting
def test_retained_gradients_and_hooks_of_a_calls_result(setting: Setting) -> None:
    x = draw(8, W).requires_grad_()
    with pair(Mixed, setting, cuts=CUTS) as both:
        fired: list[Tensor] = []
        x.register_hook(fired.append)
        output = both.pipe(x)
        output.retain_grad()
        output.register_hook(lambda grad: grad * 2)
        output.square().sum().backward()
        assert torch.equal(output.grad, 4 * output.detach())
        assert len(fired) == 1
        assert torch.equal(fired[0], x.grad)


@each_setting
@each_recompute
def test_gradients_accumulate_over_steps_and_calls(setting: Setting, recompute: str) -> None:
    with pair(Mixed, setting, cuts=CUTS, recompute=recompute) as both:
        for seed in range(3):
            x = draw(8, W, seed=seed)
            both.pipe.step(x, loss_fn=square)
            run_eager_step(both.eager, (x,), chunks=CHUNKS, loss_fn=square)
        both.assert_state()
        x = draw(8, W, seed=9)
        both.pipe(x).sum().backward()
        pieces = split(((x,), {}), CHUNKS)[0]
        for output in [both.eager(*args) for args, _ in pieces]:
            output.backward(torch.ones_like(output))
        both.assert_state()


def test_what_cannot_be_differentiated_twice_is_refused() -> None:
    x = draw(8, W).requires_grad_()
    with pair(Mixed, LOCAL, cuts=CUTS) as both:
        with pytest.raises(ExecutionError, match="cannot be differentiated again"):
            torch.autograd.grad(both.pipe(x).sum(), x, create_graph=True)
        with pytest.raises(ExecutionError, match="cannot be differentiated again"):
            both.pipe(x).square().sum().backward(create_graph=True)
        loss = both.pipe(x).sum()
        loss.backward()
        with pytest.raises(ExecutionError, match="has already run"):
            loss.backward()
        assert all(p.grad is not None for p in both.model.parameters())
