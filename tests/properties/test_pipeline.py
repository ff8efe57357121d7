"""A pipeline is eager gradient accumulation, over random models, plans, schedules and modes."""

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import fxpipe
from fxpipe.analysis.cuts import legal_cuts
from fxpipe.capture.trace import trace
from fxpipe.ir.plan import PartitionPlan
from fxpipe.partitioners.assemble import plan_of
from tests.reference import Eager, run_eager_step
from tests.strategies import RANDOM, Recipe, RecipeModel, example, plans, recipes

ROWS = 9  # at least two for each of four micro-batches: batch norm needs them
MODES = st.fixed_dictionaries(
    {
        "schedule": st.sampled_from(["gpipe", "1f1b"]),
        "recompute": st.sampled_from(["never", "except_last", "always"]),
        "backend": st.sampled_from(["inline", "local"]),
        "chunks": st.integers(1, 4),
    }
)


def loss_of(output: Any, target: Any) -> Tensor:
    """Something that every output takes part in."""
    leaves = pytree.tree_leaves(output)
    return sum(((leaf - 0.1) ** 2).mean() * (n + 1) for n, leaf in enumerate(leaves))


def compiled(
    model: nn.Module, recipe: Recipe, plan: PartitionPlan, **options: Any
) -> fxpipe.Pipeline:
    return fxpipe.compile(
        model,
        ["cpu"] * plan.num_stages,
        example_args=example(recipe, ROWS),
        cuts=plan.starts,
        costs="estimate",
        threads_per_rank=1,
        **options,
    )


def shared_across_stages(pipe: fxpipe.Pipeline, model: nn.Module) -> set[str]:
    """Parameters that several stages read: their sums have another order than eager's."""
    names = {id(p): name for name, p in model.named_parameters()}
    seen: dict[str, int] = {}
    for program in pipe.stages:
        found = {
            names[id(_get(model, name))] for name in program.tensors.values() if _is(model, name)
        }
        for path in program.modules.values():
            found |= {names[id(p)] for p in model.get_submodule(path).parameters()}
        for name in found:
            seen[name] = seen.get(name, 0) + 1
    return {name for name, count in seen.items() if count > 1}


def _get(model: nn.Module, name: str) -> Any:
    return dict(model.named_parameters(remove_duplicate=False)).get(name)


def _is(model: nn.Module, name: str) -> bool:
    return _get(model, name) is not None


def check(
    result: Any, model: nn.Module, reference: Eager, shared: set[str], exact_buffers: bool
) -> None:
    assert torch.equal(result.loss, reference.loss)
    for name, parameter in model.named_parameters():
        expected = reference.grads[name]
        if expected is None or parameter.grad is None:
            assert parameter.grad is expected, name
        elif name in shared:
            torch.testing.assert_close(parameter.grad, expected)
        else:
            assert torch.equal(parameter.grad, expected), name
    for name, buffer in model.named_buffers():
        if exact_buffers:
            assert torch.equal(buffer, reference.buffers[name]), name
        else:
            torch.testing.assert_close(buffer, reference.buffers[name])


@settings(max_examples=40)
@given(recipes(without=RANDOM), st.data(), MODES, st.booleans())
def test_a_step_has_eager_s_bits(
    recipe: Recipe, data: st.DataObject, modes: dict[str, Any], deferred: bool
) -> None:
    model, eager = RecipeModel(recipe), RecipeModel(recipe)
    inputs = example(recipe, ROWS)
    plan = data.draw(plans(trace(model, inputs, verify=False)))
    reference = run_eager_step(
        eager, inputs, chunks=modes["chunks"], loss_fn=loss_of, deferred_norms=deferred
    )
    batch_norm = "deferred" if deferred else "per_micro_batch"
    with compiled(model, recipe, plan, batch_norm=batch_norm, **modes) as pipe:
        result = pipe.step(*inputs, target=None, loss_fn=loss_of)
        shared = shared_across_stages(pipe, model)
    check(result, model, reference, shared, exact_buffers=not deferred)


@settings(max_examples=25)
@given(recipes(), st.data(), MODES)
def test_cuts_schedules_and_modes_change_no_random_number(
    recipe: Recipe, data: st.DataObject, modes: dict[str, Any]
) -> None:
    inputs = example(recipe, ROWS)
    capture = trace(RecipeModel(recipe), inputs, verify=False)
    results = []
    whole = {"schedule": "gpipe", "recompute": "never", "backend": "inline"}
    for plan, options in (
        (plan_of(capture, ()), {**whole, "chunks": modes["chunks"]}),
        (data.draw(plans(capture)), modes),
    ):
        model = RecipeModel(recipe)
        with compiled(model, recipe, plan, seed=5, **options) as pipe:
            result = pipe.step(*inputs, target=None, loss_fn=loss_of)
            results.append((result, model, shared_across_stages(pipe, model)))
    (first, one, _), (second, other, shared) = results
    reference = Eager(
        first.loss,
        [],
        [],
        {name: p.grad for name, p in one.named_parameters()},
        dict(one.named_buffers()),
    )
    check(second, other, reference, shared, exact_buffers=False)


@settings(max_examples=15)
@given(recipes(without=RANDOM), st.data())
def test_the_drop_in_call_is_differentiable(recipe: Recipe, data: st.DataObject) -> None:
    model, eager = RecipeModel(recipe), RecipeModel(recipe)
    inputs = example(recipe, ROWS)
    capture = trace(model, inputs, verify=False)
    plan = plan_of(capture, legal_cuts(capture)[: data.draw(st.integers(0, 2))])
    with compiled(model, recipe, plan, chunks=1) as pipe:
        output = pipe(*inputs)
        expected = eager(*inputs)
        loss_of(output, None).backward()
        loss_of(expected, None).backward()
        shared = shared_across_stages(pipe, model)
    reference = Eager(
        None,
        [],
        [],
        {name: p.grad for name, p in eager.named_parameters()},
        dict(eager.named_buffers()),
    )
    ours = pytree.tree_leaves(output)
    theirs = pytree.tree_leaves(expected)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))

    class Loss:
        loss = torch.zeros(())

    reference.loss = Loss.loss
    check(Loss, model, reference, shared, exact_buffers=False)
