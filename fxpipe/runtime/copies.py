"""Second copies of stages: what cannot have one, and results that come back from several ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fxpipe.errors import ScheduleError
from fxpipe.ir.stage import StageProgram
from fxpipe.runtime.batch_norm import can_defer
from fxpipe.runtime.leaves import Leaves, Place
from fxpipe.runtime.swaps import is_compiled
from fxpipe.runtime.values import map_tensors
from fxpipe.runtime.weights import StageWeights

if TYPE_CHECKING:
    from fxpipe.runtime.step import Step

_INSTEAD = "or choose a schedule with one copy of every stage ('dualpipe-v', 'zb-v', '1f1b')"


def require_can_be_copied(model: nn.Module, program: StageProgram, weights: StageWeights) -> None:
    """Nothing, if two copies of a stage can work on micro-batches at the same time.

    Raises:
        ScheduleError: if micro-batches depend on one another, or a module cannot read other tensors
            than its own.
    """
    about = f"the schedule runs two copies of stage {program.stage} at the same time"
    changed = [name for name in program.buffers if any(weights.changed_places([name]))]
    if changed:
        holders = (model.get_submodule(name.rpartition(".")[0]) for name in changed)
        norms = "use batch_norm='deferred', " if all(map(can_defer, holders)) else ""
        raise ScheduleError(
            f"{about}, and each micro-batch changes {', '.join(changed)}, which the next one reads: "
            f"{norms}{_INSTEAD}"
        )
    if weights.generators:
        raise ScheduleError(
            f"{about}, and its forward draws from Python's, NumPy's or a module's own generator, one "
            f"micro-batch after another: draw with torch, {_INSTEAD}"
        )
    for path in program.called:
        for name, module in model.get_submodule(path).named_modules(prefix=path):
            fixed = is_compiled(module) or isinstance(module, torch.jit.ScriptModule)
            if fixed and any(True for _ in (*module.parameters(), *module.buffers())):
                raise ScheduleError(
                    f"{about}, and the compiled module {name!r} is bound to one set of parameters: "
                    f"leave it as Python, {_INSTEAD}"
                )


def require_one_loss(loss_fn: nn.Module, devices: Sequence[torch.device]) -> None:
    """Nothing, if the loss can be called by all copies of the last stage, which are on `devices`.

    Raises:
        ScheduleError: if it has parameters to train, or tensors that are not on all of them.
    """
    if len(devices) < 2:
        return
    if any(parameter.requires_grad for parameter in loss_fn.parameters()):
        raise ScheduleError(
            "the schedule runs two copies of the last stage at the same time, and the loss has "
            "parameters, to whose gradients both would add in an order that depends on luck: make "
            f"the loss a part of the model, {_INSTEAD}"
        )
    if len(set(devices)) > 1 and any(True for _ in (*loss_fn.parameters(), *loss_fn.buffers())):
        raise ScheduleError(
            "the schedule runs two copies of the last stage on different devices, and the loss has "
            f"tensors, which are on one of them: make the loss a part of the model, {_INSTEAD}"
        )


def require_no_hooks_on_sums(model: nn.Module, leaves: Mapping[Place, Leaves]) -> None:
    """Nothing, if no parameter that is read through leaves has a hook on its accumulated gradient.

    Eager calls such a hook after each micro-batch, with what has accumulated so far; a parameter whose
    gradient is added up from those of leaves has that value at no time.

    Args:
        model: the user's.
        leaves: what stages and their copies read in place of parameters.

    Raises:
        ScheduleError: if one has; the message names it.
    """
    readers: dict[Tensor, set[int]] = {}
    for (stage, _), of_stage in leaves.items():
        for tensor, leaf in of_stage.items():
            if leaf.requires_grad and getattr(tensor, "_post_accumulate_grad_hooks", None):
                readers.setdefault(tensor, set()).add(stage)
    if not readers:
        return
    name, stages = next((n, readers[p]) for n, p in model.named_parameters() if p in readers)
    if len(stages) > 1:
        about = f"stages {', '.join(map(str, sorted(stages)))} read {name!r}"
        instead = "or cut the model so that one stage reads it"
    else:
        about = f"the schedule runs two copies of stage {min(stages)}, which reads {name!r}"
        instead = _INSTEAD
    raise ScheduleError(
        f"{about}, and a hook waits for its accumulated gradient "
        "(register_post_accumulate_grad_hook), which is added up at the end of the step, not after "
        "each micro-batch: change the gradient after the step, take a hook that may see each "
        f"addend by itself (register_hook), {instead}"
    )


def bring_together(step: Step, last: torch.device, first: torch.device) -> None:
    """Results of micro-batches that went through different devices, on one device each.

    Args:
        step: when all its ranks have ended.
        last: where losses and outputs go.
        first: where the gradients of inputs go.
    """
    step.losses = [_on(loss, last) for loss in step.losses]
    step.outputs = [[_on(leaf, last) for leaf in leaves] for leaves in step.outputs]
    step.input_grads = [[_on(grad, first) for grad in grads] for grads in step.input_grads]


def _on(value: Any, device: torch.device) -> Any:
    def moved(tensor: Tensor) -> Tensor:
        if tensor.device == device:
            return tensor
        return tensor.detach().to(device).requires_grad_(tensor.requires_grad)

    return map_tensors(value, moved)
