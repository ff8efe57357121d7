"""`UpdateByStage`: a user's optimiser that takes its step for one stage after another."""

from __future__ import annotations

import inspect
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable
from typing import Any, Final

from torch import Tensor, optim
from torch.optim import optimizer as torch_optimizer

_BY_TENSOR: Final = frozenset(
    {
        *(optim.SGD, optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam, optim.Adamax),
        *(optim.Adagrad, optim.Adadelta, optim.RMSprop, optim.Rprop, optim.ASGD),
        *(optim.SparseAdam, optim.Adafactor),
    }
)
"""Optimisers that take every parameter's step on its own, and keep nothing that is common to several."""


class UpdateByStage:
    """The step of an optimiser, taken for a stage's parameters when their gradients are complete.

    The user's optimiser keeps all state, by parameter as ever, and its groups: learning rates that a
    scheduler has changed are those of the step. What follows is equal to one ``optimizer.step()`` when
    all gradients are there, bit for bit.

    An optimiser that is none of torch's by-tensor ones, or that has hooks (its own, or those of all
    optimisers), steps as a whole in `finish`: it may look at all gradients at once.

    Args:
        optimizer: the user's.
        waits: whether gradients may still change after a stage's backwards.

    Attributes:
        waits: whether all is left to `finish`.
    """

    def __init__(self, optimizer: optim.Optimizer, *, waits: bool = False) -> None:
        self._optimizer = optimizer
        self.waits = waits or not _can_be_divided(optimizer)
        self._due = {p: None for group in optimizer.param_groups for p in group["params"]}
        self._known = len(optimizer.state)
        self._lock = threading.Lock()

    def update(self, parameters: Iterable[Tensor]) -> None:
        """Take the step for those of the parameters that the optimiser has; on any thread."""
        if self.waits:
            return
        with self._lock:
            mine = {p for p in parameters if p in self._due}
            for parameter in mine:
                del self._due[parameter]
        self._step(mine)

    def finish(self) -> None:
        """Take the step for all parameters that are left; for the caller's thread, when all is done."""
        if self.waits:
            self._optimizer.step()
            return
        self._step(self._due)
        state: Any = self._optimizer.state
        if len(state) != self._known:  # threads have brought it into an order of their own
            for group in self._optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter in state:
                        state[parameter] = state.pop(parameter)
        # What a learning-rate scheduler looks at to see whether the optimiser has made its step.
        self._optimizer._opt_called = True  # type: ignore[attr-defined]

    def _step(self, parameters: Collection[Tensor]) -> None:
        """The step of an optimiser that has only these parameters, and the user's state and options."""
        groups = [
            {**group, "params": [p for p in group["params"] if p in parameters]}
            for group in self._optimizer.param_groups
        ]
        part: Any = object.__new__(type(self._optimizer))
        part.__dict__.update(self._optimizer.__dict__)
        part.__dict__.pop("step", None)  # a scheduler's, which counts the user's optimiser's steps
        part.param_groups = [group for group in groups if group["params"]]
        part._optimizer_step_pre_hooks = OrderedDict()
        part._optimizer_step_post_hooks = OrderedDict()
        if part.param_groups:
            part.step()


def _can_be_divided(optimizer: Any) -> bool:
    step = optimizer.__dict__.get("step")
    return (
        type(optimizer) in _BY_TENSOR
        and (step is None or hasattr(step, "_wrapped_by_lr_sched"))
        and not optimizer._optimizer_step_pre_hooks
        and not optimizer._optimizer_step_post_hooks
        and not torch_optimizer._global_optimizer_pre_hooks
        and not torch_optimizer._global_optimizer_post_hooks
        and not optimizer.defaults.get("differentiable", False)
    )


def require_no_closure(optimizer: optim.Optimizer) -> None:
    """Refuse an optimiser that evaluates the model itself, as often as it likes.

    Raises:
        TypeError: if its ``step`` cannot be called without a closure.
    """
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        name = type(optimizer).__name__
        raise TypeError(
            f"optimizer= makes one step with the gradients of this batch, and {name} "
            "evaluates the model several times in a step, by a closure: leave optimizer= out, and call "
            "optimizer.step(closure) with a closure that zeroes the gradients, runs pipe.step(...) and "
            "returns its loss"
        )
