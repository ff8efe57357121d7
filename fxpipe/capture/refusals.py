"""Models that no run can be recorded of, told before anything runs."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from fxpipe.errors import CaptureError


def refuse(model: nn.Module) -> None:
    """Nothing, if a run of the model may be recorded.

    Raises:
        CaptureError: if it is compiled as a whole by ``torch.jit``, or has parameters without a shape.
    """
    if isinstance(model, torch.jit.ScriptModule):
        raise CaptureError(
            f"the model ({model.original_name}) is compiled by torch.jit as a whole, and cannot be "
            "looked into. What to do: compile the module itself, before torch.jit; or script parts of "
            "it only, which then stay whole"
        )
    lazy = [name for name, tensor in _tensors(model) if is_lazy(tensor)]
    if lazy:
        listed = ", ".join(map(repr, lazy[:3])) + (", …" if len(lazy) > 3 else "")
        raise CaptureError(
            f"{listed} has no shape yet, as its layer is a lazy one that was never called. What to do: "
            "call the model once, then make the optimiser and the pipeline"
        )


def _tensors(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]
