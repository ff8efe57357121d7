"""The drop-in call: forwards now, backwards later, as eager would run them."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from fxpipe.errors import ExecutionError
from tests.conformance.harness import BACKENDS, build, differences, state_of
from tests.conformance.networks import Chain, ManyReaders, Normed, SkipNet
from tests.conformance.test_step import each_recompute, images, vectors
from tests.reference import run_eager_call

each_backend = pytest.mark.parametrize("backend", BACKENDS)


def joined_loss(outputs: Sequence[Tensor]) -> Tensor:
    return sum((output.square().sum() for output in outputs), torch.zeros(()))


def grads_of_joined(outputs: Sequence[Sequence[Tensor]]) -> list[tuple[Tensor, ...]]:
    """Per micro-batch, the gradients of `joined_loss` for its outputs."""
    columns = list(zip(*outputs, strict=True))
    joined = [
        torch.cat([piece.detach() for piece in column]).requires_grad_() for column in columns
    ]
    found = torch.autograd.grad(joined_loss(joined), joined)
    sizes = [piece.size(0) for piece in columns[0]]
    return list(zip(*(grad.split(sizes) for grad in found), strict=True))


@each_backend
@each_recompute
@pytest.mark.parametrize("stages", [1, 3])
@pytest.mark.parametrize("make", [Chain, ManyReaders, SkipNet])
def test_call_is_eager(backend: str, recompute: str, stages: int, make: type) -> None:
    model = make()
    eager = copy.deepcopy(model)
    args = images(10) if make is SkipNet else vectors(10)
    args[0].requires_grad_()
    rig = build(model, *args, stages=stages, backend=backend, recompute=recompute)
    call = rig.forward(*args)
    assert all(leaf.requires_grad for leaves in call.outputs for leaf in leaves)
    grads = rig.backward(call, grads_of_joined(call.outputs))
    expected = run_eager_call(eager, args, chunks=4, loss=joined_loss)
    assert differences(state_of(model), state_of(eager)) == []
    assert torch.equal(torch.cat([g[0] for g in grads]), expected.input_grads[0])
    rig.backend.close()


@each_backend
def test_two_calls_before_one_backward(backend: str) -> None:
    model = Chain()
    eager = copy.deepcopy(model)
    rig = build(model, *vectors(8), backend=backend)
    calls = [rig.forward(*vectors(rows)) for rows in (8, 12)]
    for call in reversed(calls):
        rig.backward(call, grads_of_joined(call.outputs))
    for rows in (12, 8):
        run_eager_call(eager, vectors(rows), chunks=4, loss=joined_loss)
    assert differences(state_of(model), state_of(eager)) == []
    rig.backend.close()


@each_backend
@each_recompute
def test_inputs_only_leaves_parameters_alone(backend: str, recompute: str) -> None:
    model = ManyReaders()
    eager = copy.deepcopy(model)
    (x,) = vectors(8)
    x.requires_grad_()
    rig = build(model, x, backend=backend, recompute=recompute)
    call = rig.forward(x)
    grads = rig.backward(call, grads_of_joined(call.outputs), inputs_only=True)
    assert all(parameter.grad is None for parameter in model.parameters())
    expected = run_eager_call(eager, (x,), chunks=4, loss=joined_loss)
    assert torch.equal(torch.cat([g[0] for g in grads]), expected.input_grads[0])
    rig.backend.close()


@each_backend
def test_a_call_runs_backward_once(backend: str) -> None:
    rig = build(Chain(), *vectors(8), backend=backend)
    call = rig.forward(*vectors(8))
    grads = grads_of_joined(call.outputs)
    rig.backward(call, grads)
    with pytest.raises(ExecutionError, match="has run already"):
        rig.backward(call, grads)
    rig.backend.close()


@each_backend
def test_outputs_without_gradient(backend: str) -> None:
    """Micro-batches and outputs that no gradient comes for are left out."""
    model = ManyReaders()
    eager = copy.deepcopy(model)
    rig = build(model, *vectors(8), backend=backend)
    call = rig.forward(*vectors(8))
    ones = torch.ones(2, 8)
    rig.backward(call, [(ones, None), (None, None), (None, ones), (None, None)])
    for m, n in ((0, 0), (2, 1)):
        eager(vectors(8)[0].tensor_split(4)[m])[n].backward(ones)
    assert differences(state_of(model), state_of(eager)) == []
    rig.backend.close()


@each_backend
def test_forward_without_graph_updates_statistics_once(backend: str) -> None:
    model = Normed()
    rig = build(model, *images(8), backend=backend)
    call = rig.forward(*images(8), keeps_graph=False)
    assert not any(leaf.requires_grad for leaves in call.outputs for leaf in leaves)
    assert model.body[1].num_batches_tracked == 1
    with pytest.raises(ExecutionError, match="without grad mode"):
        rig.backward(call, [(None,)] * 4)
    rig.backend.close()


@each_backend
def test_inference_mode(backend: str) -> None:
    model = Chain().eval()
    with torch.inference_mode():
        rig = build(model, *vectors(8), backend=backend)
        call = rig.forward(*vectors(8), keeps_graph=False)
        expected = torch.cat([model(part) for part in vectors(8)[0].tensor_split(4)])
    assert torch.equal(torch.cat([leaves[0] for leaves in call.outputs]), expected)
    assert call.outputs[0][0].is_inference()
    rig.backend.close()


@each_recompute
def test_outputs_that_are_taken_are_not_held(recompute: str) -> None:
    model = Chain()
    eager = copy.deepcopy(model)
    rig = build(model, *vectors(10), recompute=recompute)
    call = rig.forward(*vectors(10))
    outputs = call.take_outputs()
    held = [weakref.ref(leaf) for leaves in outputs for leaf in leaves]
    grads = grads_of_joined(outputs)
    del outputs
    assert [ref() for ref in held] == [None] * 4
    rig.backward(call, grads)
    run_eager_call(eager, vectors(10), chunks=4, loss=joined_loss)
    assert differences(state_of(model), state_of(eager)) == []
