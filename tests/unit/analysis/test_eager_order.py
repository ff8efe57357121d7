"""Two names of one tensor: where both are still read, a cut changes the order of a sum."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fxpipe.analysis.cuts import legal_cuts
from fxpipe.analysis.eager_order import cuts_in_order
from fxpipe.ir.capture import Capture
from tests.builders import build_capture


class Scaled(nn.Module):
    """A residual block whose norm works on what ``to`` returns: here its argument itself."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(x * self.weight)
        same = h.to(self.dtype)
        mean = same.mean(-1, keepdim=True)
        return h + (same - mean).to(h.dtype).sin()


def nodes_after(capture: Capture, cuts: tuple[int, ...]) -> list[str]:
    return [capture.body[cut].name for cut in cuts]


def test_no_cut_where_both_names_are_read_later() -> None:
    capture = build_capture(Scaled(torch.float32), torch.randn(4, 4))
    lost = sorted(set(legal_cuts(capture)) - set(cuts_in_order(capture)))
    assert nodes_after(capture, tuple(lost)) == ["mean", "sub"]


def test_a_copy_is_another_tensor() -> None:
    capture = build_capture(Scaled(torch.float64), torch.randn(4, 4))
    assert cuts_in_order(capture) == legal_cuts(capture)


def test_what_autograd_does_not_follow_is_not_summed_up() -> None:
    model = Scaled(torch.float32).requires_grad_(False)
    capture = build_capture(model, torch.randn(4, 4))
    assert cuts_in_order(capture) == legal_cuts(capture)


def test_three_names() -> None:
    class Thrice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            h = x * self.weight
            a = h.contiguous()  # read until `cos`, as `h` is later
            b = a.to(h.dtype)
            y = b.sin()
            y = y + a.cos()
            return y + h

    capture = build_capture(Thrice(), torch.randn(4, 4))
    lost = sorted(set(legal_cuts(capture)) - set(cuts_in_order(capture)))
    assert nodes_after(capture, tuple(lost)) == ["getattr_1", "to", "sin", "cos"]
