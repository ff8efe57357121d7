"""Run a model and leave no trace of it."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fxpipe.gradients import Gradients
from fxpipe.held import Held
from fxpipe.originals import Originals


@contextmanager
def undisturbed(
    model: torch.nn.Module, training: bool, written: Iterable[str] = ()
) -> Iterator[None]:
    """The model in the given mode; afterwards all that a forward may change is put back.

    That is: training flags, buffers (values and identity), gradients, the parameters and buffers that
    are `written` into (by name), attributes of the modules with what the containers and objects among
    them hold (see `fxpipe.held`), and the states of the random generators
    of torch, Python and NumPy. If the model's own flag already is
    `training`, the flags of its submodules stay as the user set them.
    """
    # a scripted module keeps its attributes in compiled code: nothing to put back by identity
    modules = [m for m in model.modules() if not isinstance(m, torch.jit.ScriptModule)]
    scripted = [(m, m.training) for m in model.modules() if isinstance(m, torch.jit.ScriptModule)]
    attributes = [dict(vars(module)) for module in modules]
    registered = [dict(module._buffers) for module in modules]
    held = Held(value for names in attributes for value in names.values())
    tensors = [tensor for tensor in (*model.buffers(), *held.tensors) if _has_values(tensor)]
    values = [(tensor, tensor.detach().clone()) for tensor in tensors]
    try:
        with _generators_kept(model), Originals(model, written), Gradients(model, held.tensors):
            if model.training != training:
                model.train(training)
            yield
    finally:
        for module, before, buffers in zip(modules, attributes, registered, strict=True):
            _restore(vars(module), before)
            _restore(module._buffers, buffers)
        held.put_back()
        for module, flag in scripted:
            module.training = flag
        with torch.no_grad():
            for tensor, value in values:
                if not torch.equal(tensor, value):
                    tensor.copy_(value)


def devices_of(model: torch.nn.Module, *values: Any) -> tuple[torch.device, ...]:
    """The accelerators that hold parameters, buffers or given tensors; empty on a CPU or meta device."""
    tensors = [*model.parameters(), *model.buffers(), *values]
    found = {t.device for t in tensors if isinstance(t, torch.Tensor)}
    return tuple(sorted((d for d in found if d.type not in ("cpu", "meta")), key=str))


def _has_values(tensor: torch.Tensor) -> bool:
    plain = type(tensor) in (torch.Tensor, torch.nn.Buffer) and tensor.layout is torch.strided
    return plain and not tensor.is_meta


def _restore(held: dict[str, Any], before: dict[str, Any]) -> None:
    for name in [name for name in held if name not in before]:
        del held[name]
    for name, value in before.items():
        if held.get(name, held) is not value:
            held[name] = value


@contextmanager
def _generators_kept(model: torch.nn.Module) -> Iterator[None]:
    numpy = sys.modules.get("numpy")
    python_state = random.getstate()
    numpy_state = numpy.random.get_state() if numpy is not None else None
    accelerators = devices_of(model)
    kinds = {device.type for device in accelerators}
    try:
        with torch.random.fork_rng(
            [device for device in accelerators], device_type=next(iter(kinds), "cuda")
        ):
            yield
    finally:
        random.setstate(python_state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
