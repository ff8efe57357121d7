"""What a leaf returns that cannot run on fake tensors: learnt from one run on synthetic data."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from fxpipe.capture.modules import Run
from fxpipe.capture.signature import flatten
from fxpipe.fake_model import FakeModel


def probe(
    fakes: FakeModel, module: nn.Module, run: Run, call: tuple[Any, Any], error: Exception
) -> Any:
    """A module's result for fake arguments, with fake tensors in it.

    The module runs once with its own parameters, on normally distributed numbers and on ones.

    Raises:
        Exception: `error`, if the module's parameters have no data either.
    """
    given, layout = flatten(call)
    with fakes.real(module):
        if any(tensor.is_meta for tensor in [*module.parameters(), *module.buffers()]):
            raise error
        args, kwargs = layout.unflatten([_synthetic(leaf) for leaf in given])
        result = run(*args, **kwargs)
    made, result_layout = flatten(result)
    return result_layout.unflatten([_fake(fakes, leaf) for leaf in made])


def _synthetic(leaf: Any) -> Any:
    if not isinstance(leaf, FakeTensor):
        return leaf
    if leaf.dtype.is_floating_point or leaf.dtype.is_complex:
        generator = torch.Generator(leaf.device).manual_seed(0)  # no draw of the model's own
        made = torch.randn(leaf.shape, dtype=leaf.dtype, device=leaf.device, generator=generator)
        return made.requires_grad_(leaf.requires_grad)
    return torch.ones(leaf.shape, dtype=leaf.dtype, device=leaf.device)


def _fake(fakes: FakeModel, leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    made = fakes.mode.from_tensor(leaf.detach(), static_shapes=True)
    if not leaf.requires_grad or leaf.is_leaf:
        return made.requires_grad_(leaf.requires_grad)
    with torch.enable_grad():
        return made.requires_grad_().clone()  # as a result that may be written into
