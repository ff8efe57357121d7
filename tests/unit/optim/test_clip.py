from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from fxpipe.optim.clip import clip_grad_norm_


def parameters(*grads: Tensor | None) -> list[nn.Parameter]:
    made = []
    for grad in grads:
        parameter = nn.Parameter(torch.zeros(3) if grad is None else torch.zeros_like(grad))
        parameter.grad = grad
        made.append(parameter)
    return made


@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.5, float("inf"), "inf"])
@pytest.mark.parametrize("max_norm", [0.5, 1e6])
@pytest.mark.parametrize("foreach", [None, True, False])
def test_it_is_torchs(norm_type: float, max_norm: float, foreach: bool | None) -> None:
    mine = parameters(torch.randn(3, 4), None, torch.randn(7), torch.randn(()))
    theirs = copy.deepcopy(mine)
    for one, other in zip(mine, theirs, strict=True):
        other.grad = None if one.grad is None else one.grad.clone()
    found = clip_grad_norm_(mine, max_norm, norm_type, foreach=foreach)
    expected = torch.nn.utils.clip_grad_norm_(theirs, max_norm, norm_type, foreach=foreach)
    assert torch.equal(found, expected)
    for one, other in zip(mine, theirs, strict=True):
        assert (one.grad is None and other.grad is None) or torch.equal(one.grad, other.grad)


def test_a_parameter_counts_once() -> None:
    (p,) = parameters(torch.tensor([3.0, 4.0]))
    assert clip_grad_norm_([p, p], 1.0).item() == 5.0
    torch.testing.assert_close(p.grad, torch.tensor([0.6, 0.8]))


def test_a_module_a_tensor_a_generator() -> None:
    model = nn.Linear(2, 1)
    model.weight.grad, model.bias.grad = torch.tensor([[2.0, 0.0]]), torch.tensor([1.5])
    assert clip_grad_norm_(model, 100.0).item() == 2.5
    assert clip_grad_norm_(model.weight, 100.0).item() == 2.0
    assert clip_grad_norm_((p for p in model.parameters()), 100.0).item() == 2.5


def test_no_gradients() -> None:
    assert clip_grad_norm_(parameters(None, None), 1.0).item() == 0.0


def test_norms_are_added_in_the_order_of_the_parameters() -> None:
    """Whichever types (or devices) they have: groups would add them in another order."""
    grads = [torch.randn(5, dtype=torch.float64 if n % 2 else torch.float32) for n in range(9)]
    norms = torch.stack([torch.linalg.vector_norm(grad).double() for grad in grads])
    assert torch.equal(clip_grad_norm_(parameters(*grads), 1e9), torch.linalg.vector_norm(norms))


def test_sparse_gradients() -> None:
    table = nn.Embedding(5, 2, sparse=True)
    table(torch.tensor([1, 1, 3])).sum().backward()
    dense = table.weight.grad.to_dense()
    assert torch.equal(clip_grad_norm_(table, 1.0), torch.linalg.vector_norm(dense))
    torch.testing.assert_close(
        table.weight.grad.to_dense(), dense / torch.linalg.vector_norm(dense)
    )


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_norm_that_is_not_finite(bad: float) -> None:
    with pytest.raises(RuntimeError, match=f"the norm of the gradients is {bad}"):
        clip_grad_norm_(parameters(torch.tensor([bad])), 1.0, error_if_nonfinite=True)
    assert not clip_grad_norm_(parameters(torch.tensor([bad])), 1.0).isfinite()
