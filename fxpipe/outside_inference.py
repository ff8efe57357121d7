"""Out of inference mode, where operators that are made of others are not seen as these others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def outside_inference(model: torch.nn.Module) -> Iterator[None]:
    """``torch.no_grad`` in place of the caller's ``torch.inference_mode``, if it is in that.

    Without autograd's part, a composite operator (``gru``, ``einsum``) reaches a dispatch mode whole,
    and what is in it is then run without autocast: in other dtypes than the model computes in.

    A model that was made in inference mode is left in it: outside, its buffers cannot be written into.
    """
    tensors = (*model.parameters(), *model.buffers())
    if not torch.is_inference_mode_enabled() or any(tensor.is_inference() for tensor in tensors):
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield
