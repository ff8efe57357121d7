"""Each model, cut in two and three, under every schedule, recompute mode and backend: as in eager."""

from __future__ import annotations

import pytest
import torch

from tests.equivalence.compare import (
    RUNS,
    Snapshot,
    buffers_of,
    build,
    clone,
    compiled,
    grads_of,
    join,
    same,
    same_grads,
)
from tests.equivalence.models import EXAMPLES, Example
from tests.reference import run_eager_call, run_eager_step

ROWS = 6
SLOW = {"amoebanet", "resnet101"}
MODELS = [
    pytest.param(example, id=name, marks=[pytest.mark.slow] if name in SLOW else [])
    for name, example in EXAMPLES.items()
]
STAGES = pytest.mark.parametrize("stages", [2, 3])


@STAGES
@pytest.mark.parametrize("example", MODELS)
def test_step_is_eager_accumulation(example: Example, stages: int) -> None:
    model = build(example, dropout=0.0)
    eager = clone(model)
    args, kwargs = example.batch(ROWS)
    reference = run_eager_step(
        eager, args, kwargs, chunks=4, loss_fn=example.loss, deferred_norms=False
    )
    grads = grads_of(eager)
    weights = [2 / 6, 2 / 6, 1 / 6, 1 / 6]
    start = Snapshot(model)
    with compiled(example, model, stages, batch_norm="per_micro_batch") as pipe:
        for schedule, recompute, backend in RUNS:
            what = f"{schedule}, {recompute}, {backend}"
            start.restore()
            with pipe.replace(schedule=schedule, recompute=recompute, backend=backend) as run:
                result = run.step(*args, loss_fn=example.loss, **kwargs)
                assert torch.equal(result.loss, reference.loss), what
                same(result.output, join(reference.outputs, weights), what)
                same_grads(run, grads, what)
                same(buffers_of(model), reference.buffers, what)


@STAGES
@pytest.mark.parametrize("example", MODELS)
def test_call_is_eager_with_one_loss(example: Example, stages: int) -> None:
    model = build(example, dropout=0.0)
    args, kwargs = example.batch(ROWS)
    kwargs = {name: value for name, value in kwargs.items() if name != "labels"}
    if example.name in ("gpt2", "llama", "t5"):
        kwargs["use_cache"] = False  # joined outputs are tensors here, and a cache is none
    if example.name == "t5":
        kwargs["decoder_input_ids"] = torch.arange(5).repeat(ROWS, 1)
    eager = clone(model)

    def loss(output: object) -> torch.Tensor:
        leaves = torch.utils._pytree.tree_leaves(output)
        return sum(leaf.sin().mean() for leaf in leaves if leaf.requires_grad)

    reference = run_eager_call(eager, args, kwargs, chunks=4, loss=loss, deferred_norms=False)
    with compiled(example, model, stages, batch_norm="per_micro_batch") as pipe:
        output = pipe(*args, **kwargs)
        same(
            torch.utils._pytree.tree_map(torch.detach, output),
            join(reference.outputs, []),
            "output",
        )
        value = loss(output)
        value.backward()
        assert torch.equal(value.detach(), reference.loss)
        same_grads(pipe, grads_of(eager), "call")
        same(buffers_of(model), reference.buffers, "call")


@STAGES
@pytest.mark.parametrize("example", MODELS)
def test_eval_and_back(example: Example, stages: int) -> None:
    model = build(example, dropout=0.1)
    args, kwargs = example.batch(ROWS)
    with compiled(example, model, stages, chunks=3) as pipe:
        pipe.eval()
        before = buffers_of(model)
        with torch.no_grad():
            outputs = [
                model(
                    *(a[at : at + 2] for a in args),
                    **{k: v[at : at + 2] for k, v in kwargs.items()},
                )
                for at in (0, 2, 4)
            ]
            same(pipe(*args, **kwargs), join(outputs, [1 / 3] * 3), "eval")
        same(buffers_of(model), before, "eval")
        pipe.train()
        torch.manual_seed(3)
        first = pipe.step(*args, loss_fn=example.loss, **kwargs)
        assert all(module.training for module in model.modules())
        assert first.loss.isfinite()


@pytest.mark.parametrize("example", MODELS)
def test_dropout_draws_the_same_numbers_for_any_cut(example: Example) -> None:
    model = build(example, dropout=0.1)
    args, kwargs = example.batch(ROWS)
    start = Snapshot(model)
    with compiled(example, model, 1, backend="inline", batch_norm="per_micro_batch") as pipe:
        torch.manual_seed(11)
        expected = pipe.step(*args, loss_fn=example.loss, **kwargs)
        grads = grads_of(model)
        torch.manual_seed(12)
        other = pipe.step(*args, loss_fn=example.loss, **kwargs)
        if any(program.random or program.needs_keys for program in pipe.stages):
            assert not torch.equal(expected.loss, other.loss)
    for stages in (2, 3):
        start.restore()
        with compiled(example, model, stages, batch_norm="per_micro_batch") as pipe:
            for recompute in ("never", "always"):
                start.restore()
                torch.manual_seed(11)
                with pipe.replace(recompute=recompute) as run:
                    result = run.step(*args, loss_fn=example.loss, **kwargs)
                    assert torch.equal(result.loss, expected.loss)
                    same_grads(run, grads, f"{stages} stages, {recompute}")


@pytest.mark.parametrize("example", [m for m in MODELS if m.values[0].batch_norm])
def test_deferred_batch_norm_sees_the_whole_batch(example: Example) -> None:
    model = build(example, dropout=0.0)
    eager = clone(model)
    args, kwargs = example.batch(ROWS)
    reference = run_eager_step(eager, args, kwargs, chunks=4, loss_fn=example.loss)
    grads = grads_of(eager)
    with compiled(example, model, 2) as pipe:
        result = pipe.step(*args, loss_fn=example.loss, **kwargs)
    assert torch.equal(result.loss, reference.loss)
    same_grads(pipe, grads, "deferred")
    for name, buffer in model.named_buffers():
        torch.testing.assert_close(buffer, reference.buffers[name], msg=name)
