from __future__ import annotations

import torch
from torch import Tensor

from fxpipe.runtime.activations import Entry, Frame


def anchor() -> Tensor:
    return torch.zeros((), requires_grad=True)


def marked(*shape: int) -> Tensor:
    return torch.randn(*shape).requires_grad_()


def test_gradients_come_out_as_the_engine_made_them() -> None:
    x = marked(3, 4)
    entry = Entry([x], anchor())
    (opened,) = entry.close()
    (opened[:, 1:3].sum() * 2).backward()
    ((grad),) = entry.gradients()
    assert isinstance(grad, Tensor)
    assert torch.equal(grad[:, 1:3], torch.full((3, 2), 2.0))
    assert x.grad is None


def test_layout_of_gradients_is_kept() -> None:
    entry = Entry([marked(4, 3)], anchor())
    (opened,) = entry.close()
    grad = torch.randn(4, 5)[:, 1:4]
    opened.backward(grad)
    assert entry.gradients()[0].stride() == grad.stride() == (5, 1)  # type: ignore[union-attr]


def test_values_that_need_no_gradient_are_passed_as_they_are() -> None:
    x, plain = marked(2), torch.ones(2)
    entry = Entry([plain, x, 3, "text", None], anchor())
    values = entry.close()
    assert values[0] is plain
    assert values[2:] == [3, "text", None]
    (values[0] * values[1]).sum().backward()
    grads = entry.gradients()
    assert torch.equal(grads[1], torch.ones(2))  # type: ignore[arg-type]
    assert [grads[at] for at in (0, 2, 3, 4)] == [None] * 4


def test_containers_get_a_gradient_per_marked_tensor() -> None:
    value = {"a": marked(2), "n": 1, "b": [torch.ones(2), marked(3)]}
    entry = Entry([value, marked(1)], anchor())
    opened, other = entry.close()
    assert opened["n"] == 1
    (opened["b"][1].sum() * 5 + other.sum()).backward()
    first, second = entry.gradients()
    assert isinstance(first, tuple)
    assert first[0] is None
    assert torch.equal(first[1], torch.full((3,), 5.0))  # type: ignore[arg-type]
    assert torch.equal(second, torch.ones(1))  # type: ignore[arg-type]


def test_without_any_backward_there_are_no_gradients() -> None:
    for values in ([marked(2)], [torch.ones(2)], [], [3], [(marked(1), marked(2))]):
        entry = Entry(values, anchor())
        entry.close()
        assert all(grad is None or grad == (None, None) for grad in entry.gradients())
        assert len(entry.gradients()) == len(values)


def test_received_values_can_be_changed_in_place() -> None:
    x = marked(3)
    entry = Entry([x], anchor())
    (opened,) = entry.close()
    opened.mul_(2.0).add_(1.0)
    opened.sum().backward()
    assert torch.equal(entry.gradients()[0], torch.full((3,), 2.0))  # type: ignore[arg-type]


def test_only_what_leads_to_the_anchor() -> None:
    """Parameters get no gradient if the anchor is all that is asked for."""
    leaf, weight = anchor(), marked(2)
    entry = Entry([marked(2)], leaf)
    (opened,) = entry.close()
    torch.autograd.backward((opened * weight).sum(), inputs=[leaf])
    assert torch.equal(entry.gradients()[0], weight)  # type: ignore[arg-type]
    assert weight.grad is None
    assert leaf.grad is None


def test_a_frame_forgets_its_graph_but_not_what_it_hands_on() -> None:
    frame = Frame(2, 1)
    assert (frame.inputs, frame.sends, frame.handed) == ([None] * 2, [None], [None] * 2)
    assert len(frame.later) == 3
    frame.handed = [torch.ones(1), None]
    frame.root = marked(1)
    frame.entry = Entry([], anchor())
    frame.inputs = [torch.ones(1)]
    frame.forget_graph()
    assert frame.root is frame.entry is frame.replay is None
    assert frame.inputs == frame.later == frame.edges == frame.outputs == []
    assert frame.handed[0] is not None
