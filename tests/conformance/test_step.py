"""A step on every backend, schedule and recompute mode gives what eager gives, bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fxpipe.runtime.backends.inline import InlineBackend
from fxpipe.runtime.batch_norm import Statistics
from tests.conformance.harness import BACKENDS, Rig, build, differences, same, state_of
from tests.conformance.networks import Chain, Containers, ManyReaders, Noisy, Normed, SkipNet, Tied
from tests.losses import cross_entropy
from tests.reference import run_eager_step

Loss = Callable[[Any, Any], Tensor]


def vectors(rows: int) -> tuple[Tensor, ...]:
    return (torch.randn(rows, 8, generator=torch.Generator().manual_seed(rows)),)


def images(rows: int) -> tuple[Tensor, ...]:
    return (torch.randn(rows, 3, 8, 8, generator=torch.Generator().manual_seed(rows)),)


def words(rows: int) -> tuple[Tensor, ...]:
    return (torch.randint(0, 11, (rows, 5), generator=torch.Generator().manual_seed(rows)),)


def mean_square(output: Any, target: Any) -> Tensor:
    tensors = output if isinstance(output, tuple) else (output,)
    return sum((tensor.square().mean() for tensor in tensors), torch.zeros(()))


CASES: dict[str, tuple[type[nn.Module], Callable[[int], tuple[Tensor, ...]], Loss | None]] = {
    "chain": (Chain, vectors, mean_square),
    "skips": (SkipNet, images, mean_square),
    "many readers": (ManyReaders, vectors, mean_square),
    "containers": (Containers, lambda rows: (*vectors(rows), torch.tensor(1.5)), None),
}

each_backend = pytest.mark.parametrize("backend", BACKENDS)
each_schedule = pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
each_recompute = pytest.mark.parametrize("recompute", ["never", "except_last", "always"])


@each_backend
@each_schedule
@each_recompute
@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("case", CASES)
def test_step_is_eager(backend: str, schedule: str, recompute: str, stages: int, case: str) -> None:
    make, batch, loss_fn = CASES[case]
    model = make()
    eager = copy.deepcopy(model)
    rig = build(model, *batch(8), stages=stages, backend=backend, recompute=recompute)
    args = batch(10)  # another size than the recording's
    for n in range(2):
        outcome = rig.step(*args, chunks=4, schedule=schedule, number=n, loss_fn=loss_fn)
        expected = run_eager_step(eager, args, chunks=4, loss_fn=loss_fn)
        assert outcome.loss is not None
        assert expected.loss is not None
        assert torch.equal(outcome.loss, expected.loss)
        assert differences(state_of(model), state_of(eager)) == []
        for mine, eagers in zip(outcome.outputs, expected.outputs, strict=True):
            theirs = torch.utils._pytree.tree_leaves(eagers)
            tensors = [leaf for leaf in theirs if isinstance(leaf, Tensor)]
            assert all(map(same, [m for m in mine if isinstance(m, Tensor)], tensors))
    rig.backend.close()


@each_backend
@each_schedule
@each_recompute
@pytest.mark.parametrize("stages", [2, 3])
def test_tied_parameters_agree_up_to_rounding(
    backend: str, schedule: str, recompute: str, stages: int
) -> None:
    model = Tied()
    eager = copy.deepcopy(model)
    fired: list[str] = []
    rig = build(model, *words(8), stages=stages, backend=backend, recompute=recompute)
    model.embed.weight.register_hook(lambda grad: fired.append("hook"))
    target = words(8)[0]
    for n in range(3):
        outcome = rig.step(
            *words(8), schedule=schedule, number=n, loss_fn=cross_entropy, target=target
        )
        expected = run_eager_step(eager, words(8), chunks=4, loss_fn=cross_entropy, target=target)
        assert torch.equal(outcome.loss, expected.loss)
        mine, theirs = model.embed.weight.grad, eager.embed.weight.grad
        assert torch.allclose(mine, theirs, rtol=1e-5, atol=1e-7)
        assert same(model.mid.weight.grad, eager.mid.weight.grad)
    assert len(fired) == 3 * 2  # once per stage that reads it, at the end of each step
    assert model.head.weight is model.embed.weight
    rig.backend.close()


@each_backend
@each_recompute
@pytest.mark.parametrize("stages", [1, 3])
@pytest.mark.parametrize("batch_norm", ["deferred", "per_micro_batch"])
def test_batch_norm(backend: str, recompute: str, stages: int, batch_norm: str) -> None:
    model = Normed()
    eager = copy.deepcopy(model)
    rig = build(
        model,
        *images(8),
        stages=stages,
        backend=backend,
        recompute=recompute,
        batch_norm=batch_norm,
    )
    for n in range(2):
        rig.step(*images(10), number=n, loss_fn=mean_square)
        run_eager_step(
            eager,
            images(10),
            chunks=4,
            loss_fn=mean_square,
            deferred_norms=batch_norm == "deferred",
        )
    mine, theirs = state_of(model), state_of(eager)
    rounded = differences(mine, theirs)
    if batch_norm == "per_micro_batch":
        assert rounded == []
    assert all("running" in name for name in rounded)
    for name in rounded:
        assert torch.allclose(mine[name], theirs[name], rtol=1e-5, atol=1e-6)
    assert model.body[1].num_batches_tracked == (2 if batch_norm == "deferred" else 8)
    rig.backend.close()


@each_backend
@each_schedule
@each_recompute
def test_randomness_does_not_depend_on_stages_schedule_or_backend(
    backend: str, schedule: str, recompute: str
) -> None:
    first = Noisy()
    rig = build(copy.deepcopy(first), *vectors(8), stages=1)
    before = torch.get_rng_state()
    expected = rig.step(*vectors(10), number=3, seed=5, loss_fn=mean_square)
    assert torch.equal(before, torch.get_rng_state())
    other = build(copy.deepcopy(first), *vectors(8), stages=3, backend=backend, recompute=recompute)
    outcome = other.step(*vectors(10), number=3, seed=5, schedule=schedule, loss_fn=mean_square)
    assert torch.equal(outcome.loss, expected.loss)
    # `second` is called in two stages: its gradients are sums over micro-batches in each of them.
    one, two = state_of(rig.model), state_of(other.model)
    rounded = differences(one, two)
    assert all(name.startswith("second.") for name in rounded)
    assert all(torch.allclose(one[name], two[name], atol=1e-7) for name in rounded)
    another = other.step(*vectors(10), number=4, seed=5, schedule=schedule, loss_fn=mean_square)
    assert not torch.equal(outcome.loss, another.loss)
    other.backend.close()


@each_backend
def test_stages_that_share_a_rank(backend: str) -> None:
    model = ManyReaders()
    eager = copy.deepcopy(model)
    rig = build(model, *vectors(8), stages=4, ranks=2, backend=backend)
    outcome = rig.step(*vectors(8), schedule="gpipe", loss_fn=mean_square)
    expected = run_eager_step(eager, vectors(8), chunks=4, loss_fn=mean_square)
    assert torch.equal(outcome.loss, expected.loss)
    assert differences(state_of(model), state_of(eager)) == []
    rig.backend.close()


@each_backend
@each_recompute
def test_autocast_is_entered_anew_for_each_micro_batch(backend: str, recompute: str) -> None:
    def autocast() -> torch.autocast:
        return torch.autocast("cpu", torch.bfloat16)

    model = SkipNet()
    eager = copy.deepcopy(model)
    with autocast():
        rig = build(model, *images(8), backend=backend, recompute=recompute)
        outcome = rig.step(*images(8), loss_fn=mean_square)
    expected = run_eager_step(eager, images(8), chunks=4, loss_fn=mean_square, autocast=autocast)
    assert outcome.outputs[0][0].dtype == torch.bfloat16
    assert torch.equal(outcome.loss, expected.loss)
    assert differences(state_of(model), state_of(eager)) == []
    rig.backend.close()


@each_backend
def test_weights_and_input_gradients(backend: str) -> None:
    model = ManyReaders()
    eager = copy.deepcopy(model)
    (x,) = vectors(8)
    x.requires_grad_()
    rig = build(model, x, backend=backend)
    weights = [0.5, 0.25, 0.125, 2.0]
    outcome = rig.step(x, loss_fn=mean_square, weights=weights)
    expected = run_eager_step(eager, (x,), chunks=4, loss_fn=mean_square, weights=weights)
    assert torch.equal(outcome.loss, expected.loss)
    assert same(torch.cat([grads[0] for grads in outcome.input_grads]), expected.input_grads[0])
    assert x.grad is None
    rig.backend.close()


def test_the_timeline_has_every_computation() -> None:
    rig: Rig = build(Chain(), *vectors(8), stages=2)
    timeline = rig.step(*vectors(8), loss_fn=mean_square).timeline
    assert timeline.source == "run"
    assert [str(s.action) for s in timeline.compute_spans(1)] == [
        "1F0", "1B0", "1F1", "1B1", "1F2", "1B2", "1F3", "1B3"
    ]  # fmt: skip
    assert all(0 <= span.start <= span.end for span in timeline.spans)


class CatNet(nn.Module):
    """The gradient of `conv`'s output is a slice of the gradient of `cat`'s."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.head = nn.Conv2d(7, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.cat((self.conv(x), x), 1))


@each_backend
@each_recompute
def test_gradients_keep_their_memory_layout(backend: str, recompute: str) -> None:
    """A sum over the slice itself and over a packed copy of it differ in the last bits."""
    model = CatNet()
    eager = copy.deepcopy(model)
    x = torch.randn(6, 3, 32, 32)
    rig = build(model, x, stages=2, cuts=["cat"], backend=backend, recompute=recompute)
    seen: list[bool] = []

    def watch(module: nn.Module, args: Any, output: Tensor) -> None:
        output.register_hook(lambda grad: seen.append(grad.is_contiguous()))

    handle = model.conv.register_forward_hook(watch)
    rig.step(x, chunks=2, loss_fn=mean_square)
    run_eager_step(eager, (x,), chunks=2, loss_fn=mean_square)
    assert seen == [False, False]
    handle.remove()
    assert differences(state_of(model), state_of(eager)) == []
    rig.backend.close()


class _Watched:
    """A lock that knows whether it is held."""

    def __init__(self) -> None:
        self.depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1


def test_everything_that_writes_into_the_model_is_done_in_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Forwards, running statistics and the gradients of shared parameters."""
    written: list[tuple[str, int]] = []
    backend = InlineBackend()
    turn = _Watched()
    monkeypatch.setattr(backend, "turn", turn)
    commit = Statistics.commit
    monkeypatch.setattr(
        Statistics, "commit", lambda self: (written.append(("norms", turn.depth)), commit(self))
    )
    model = Tied()
    rig = build(model, *words(8), backend=backend)
    for parameter in model.parameters():
        parameter.register_hook(lambda grad: written.append(("grad", turn.depth)))
    rig.step(*words(8), loss_fn=mean_square)
    call = rig.forward(*words(8))
    rig.backward(call, [[torch.ones_like(leaf) for leaf in leaves] for leaves in call.outputs])
    assert {what for what, _ in written} == {"norms", "grad"}
    assert all(depth == 1 for _, depth in written)
