"""Other front ends that turn a module into a graph, asked what fxpipe is asked."""

from __future__ import annotations

import copy
import inspect
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from benchmarks.zoo.against_eager import (
    all_close,
    close,
    evaluated,
    fresh,
    parameters_of,
    result_of,
    switchable,
)
from tests.zoo.check import EXAMPLE_ROWS, model_of
from tests.zoo.entry import Entry

Capture: TypeAlias = Callable[[nn.Module, Any, bool], nn.Module]
"""(model, (args, kwargs), whether there are rows) → what was captured, called like the model."""


@dataclass
class Verdict:
    """How far a front end came with a model; None is what could not be asked.

    Attributes:
        seconds: to capture.
        right: outputs and gradients on fresh data are those of eager execution, up to rounding.
        other_batch: so are the outputs for another number of rows.
        switches: after ``eval()`` it computes what the model does; None also if that is the same.
        error: class of the first exception.
    """

    captured: bool = False
    seconds: float = 0.0
    right: bool | None = None
    other_batch: bool | None = None
    switches: bool | None = None
    error: str = ""


def judge(entry: Entry, capture: Capture) -> Verdict:
    """Capture the entry's model in training mode and compare what came out with the model."""
    torch.set_num_threads(1)
    verdict = Verdict()
    model, eager = model_of(entry), model_of(entry)
    begun = time.perf_counter()
    try:
        captured = capture(model, entry.batch(EXAMPLE_ROWS, 1), entry.batched)
    except Exception as error:
        verdict.error = type(error).__name__
        return verdict
    verdict.captured, verdict.seconds = True, time.perf_counter() - begun
    verdict.right = _ask(verdict, lambda: _is_right(entry, captured, eager))
    verdict.other_batch = _ask(verdict, lambda: _takes_other_rows(entry, captured, eager))
    if _modes_differ(entry):
        verdict.switches = _ask(verdict, lambda: _switches(entry, capture))
    return verdict


def _ask(verdict: Verdict, question: Callable[[], bool]) -> bool:
    """The answer; an exception is a no."""
    try:
        return question()
    except Exception as error:
        verdict.error = verdict.error or type(error).__name__
        return False


def _is_right(entry: Entry, captured: nn.Module, eager: nn.Module) -> bool:
    """Every copy of a parameter that was captured must have the gradient of the model's."""
    named = [(_original(name), parameter) for name, parameter in parameters_of(captured)]
    found = result_of(captured, fresh(entry), named)
    wanted = result_of(eager, fresh(entry), parameters_of(eager))
    grads = dict(wanted.grads)
    if not all(name in grads and close(grad, grads[name]) for name, grad in found.grads):
        return False
    identity = {name: id(parameter) for name, parameter in parameters_of(eager)}
    needed = {identity[name] for name, grad in wanted.grads if not close(grad, None)}
    return needed <= {identity[name] for name, _ in named} and all_close(
        found.tensors, wanted.tensors
    )


def _original(name: str) -> str:
    """A parameter's name in the model, without the stage that holds it."""
    return re.sub(r"^stages\.submod_\w*?\d+\.", "", name)


def _takes_other_rows(entry: Entry, captured: nn.Module, eager: nn.Module) -> bool:
    found = evaluated(captured, fresh(entry, rows=EXAMPLE_ROWS + 1))
    return all_close(found, evaluated(eager, fresh(entry, rows=EXAMPLE_ROWS + 1)))


def _modes_differ(entry: Entry) -> bool:
    model = switchable(entry)
    other = copy.deepcopy(model).eval()
    return not all_close(evaluated(model, fresh(entry)), evaluated(other, fresh(entry)))


def _switches(entry: Entry, capture: Capture) -> bool:
    model, eager = switchable(entry), switchable(entry).eval()
    captured = capture(model, entry.batch(EXAMPLE_ROWS, 1), entry.batched)
    captured.eval()
    return all_close(evaluated(captured, fresh(entry)), evaluated(eager, fresh(entry)))


# -- the front ends ------------------------------------------------------------------------------------


def by_symbolic_trace(model: nn.Module, batch: Any, batched: bool) -> nn.Module:
    """``torch.fx``: arguments that are not given keep their defaults if it cannot do without."""
    try:
        return torch.fx.symbolic_trace(model)
    except Exception:
        args, kwargs = batch
        parameters = inspect.signature(model.forward).parameters
        given = inspect.signature(model.forward).bind(*args, **kwargs).arguments
        absent = {
            name: parameter.default
            for name, parameter in parameters.items()
            if name not in given and parameter.default is not inspect.Parameter.empty
        }
        return torch.fx.symbolic_trace(model, concrete_args=absent)


def by_export(model: nn.Module, batch: Any, batched: bool) -> nn.Module:
    """``torch.export``, not strict; rows are free (without rows: all sizes are)."""
    let_caches_pass()
    args, kwargs = batch
    auto = torch.export.Dim.AUTO

    def free(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not leaf.dim():
            return None
        return {0: auto} if batched else dict.fromkeys(range(leaf.dim()), auto)

    shapes = pytree.tree_map(free, (args, kwargs))
    names = list(inspect.signature(model.forward).parameters)
    told = {**dict(zip(names, shapes[0], strict=False)), **shapes[1]}
    exported = torch.export.export(model, args, kwargs, dynamic_shapes=told, strict=False)
    return exported.module()


def let_caches_pass() -> None:
    """Teach ``torch.export`` the caches of transformers, as that library offers."""
    try:
        from transformers.integrations.executorch import register_dynamic_cache_export_support

        register_dynamic_cache_export_support()
    except (ImportError, ValueError):  # no such library; or known already
        return


def by_pipeline(model: nn.Module, batch: Any, batched: bool) -> nn.Module:
    """``torch.distributed.pipelining``: two stages, cut in the middle of the longest list of modules."""
    from torch.distributed.pipelining import SplitPoint, pipeline

    let_caches_pass()
    args, kwargs = batch
    middle = middle_of(model)
    split = {} if middle is None else {middle: SplitPoint.BEGINNING}
    return Stages(pipeline(model, args, kwargs, split_spec=split).split_gm)


class Stages(nn.Module):
    """The stages of a ``Pipe`` run one after the other, as autograd would have it.

    The pipe's own forward detaches what goes from stage to stage, and takes no containers.
    """

    def __init__(self, stages: torch.fx.GraphModule) -> None:
        super().__init__()
        self.stages = stages

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return torch.fx.Interpreter(self.stages).run(*pytree.tree_leaves((args, kwargs)))


def middle_of(model: nn.Module) -> str | None:
    """Path of the module in the middle of the longest list of modules; of all children if none."""
    lists = [
        (len(module), path)
        for path, module in model.named_modules()
        if isinstance(module, nn.ModuleList | nn.Sequential) and len(module) > 1
    ]
    if lists:
        _, path = max(lists, key=lambda item: item[0])
        names = [
            f"{path}.{name}".strip(".") for name, _ in model.get_submodule(path).named_children()
        ]
    else:
        names = [name for name, _ in model.named_children()]
    return names[len(names) // 2] if len(names) > 1 else None


PEERS: Final[dict[str, Capture]] = {
    "torch.fx.symbolic_trace": by_symbolic_trace,
    "torch.export": by_export,
    "torch.distributed.pipelining.pipeline": by_pipeline,
}
