"""What a step is given, told apart: the model's arguments and the step's own."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from torch import Tensor, nn
from torch.optim import Optimizer

from fxpipe.optim.by_stage import require_no_closure
from fxpipe.runtime.loss import Call

_PAIR = "(args, kwargs), a tuple of positional and a dictionary of keyword arguments"

NO_SCALE: Final = float(1)
"""The scale of a step that is given none: an object of its own, which no scale of 1.0 is."""


def model_call(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    inputs: Any,
    told: Iterable[str],
) -> Call:
    """The arguments of the model: given beside those of the step, or apart as `inputs`.

    Args:
        model: its forward says what the arguments are called.
        args: positional arguments beside the step's.
        kwargs: keyword arguments beside the step's.
        inputs: all of the model's arguments as (args, kwargs); None: they are the others.
        told: the step's own arguments that the caller has given by name.

    Raises:
        TypeError: if both ways are used, or a name may be the model's as well as the step's.
    """
    if inputs is not None:
        if args or kwargs:
            raise TypeError(
                "inputs=(args, kwargs) are all of the model's arguments: give no others"
            )
        return read_call(inputs, "inputs")
    names = _open_names(model, len(args))
    if both := [name for name in told if name in names]:
        name = both[0]
        raise TypeError(
            f"both the model's forward and step have an argument {name!r}: give the model's as "
            f"inputs=(args, kwargs), as in pipe.step(inputs=((x,), {{{name!r}: ...}}), ...)"
        )
    return args, kwargs


def read_call(given: Any, source: str) -> Call:
    """(args, kwargs) as a caller gives them.

    Raises:
        TypeError: if they are something else.
    """
    is_pair = isinstance(given, tuple | list) and len(given) == 2
    if not is_pair or not isinstance(given[0], tuple | list) or not isinstance(given[1], Mapping):
        raise TypeError(f"{source} must be {_PAIR}, got {_kind(given)}")
    return tuple(given[0]), dict(given[1])


def ready_made(
    micro_batches: Any, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: Any, target: Any
) -> tuple[list[Call], list[Any]]:
    """The arguments and the target of every ready-made micro-batch.

    Args:
        micro_batches: (args, kwargs) or (args, kwargs, target) of each.
        args: of a whole batch; none may be given.
        kwargs: likewise.
        inputs: likewise.
        target: likewise.

    Raises:
        TypeError: if they are something else, or a whole batch is given as well.
        ValueError: if there is none.
    """
    if args or kwargs or inputs is not None or target is not None:
        raise TypeError(
            "micro_batches= holds the whole batch, each micro-batch with its target, as in "
            "[((x,), {}, y), ...]: give no other inputs and no target"
        )
    if isinstance(micro_batches, Mapping) or not isinstance(micro_batches, Iterable):
        raise TypeError(f"micro_batches must be an iterable, got {_kind(micro_batches)}")
    calls, targets = [], []
    for at, given in enumerate(micro_batches):
        source = f"micro-batch {at} of micro_batches"
        has_target = isinstance(given, tuple | list) and len(given) == 3
        calls.append(read_call(given[:2] if has_target else given, source))
        targets.append(given[2] if has_target else None)
    if not calls:
        raise ValueError("micro_batches is empty: there is nothing to run")
    return calls, targets


def given_names(
    target: object,
    loss_fn: object,
    weights: object,
    scale: object,
    keep_output: bool,
    optimizer: object,
) -> Iterator[str]:
    """Names of the step's own arguments that were given, of those that a model may have too."""
    if target is not None:
        yield "target"
    if loss_fn is not None:
        yield "loss_fn"
    if not isinstance(weights, str) or weights != "samples":
        yield "weights"
    if scale is not NO_SCALE:
        yield "scale"
    if not keep_output:
        yield "keep_output"
    if optimizer is not None:
        yield "optimizer"


def require_updates(optimizer: object, scale: object) -> None:
    """Check that an optimizer can make its step within the pipeline's.

    Raises:
        TypeError: if it is none, or its step needs a closure.
        ValueError: if the gradients are scaled by a `torch.amp.GradScaler`.
    """
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, got {optimizer!r}")
    require_no_closure(optimizer)
    if isinstance(scale, Tensor):
        raise ValueError(
            "optimizer= updates stages before a GradScaler has seen all gradients and taken its scale "
            "out of them: leave optimizer= out, and call scaler.step(optimizer) after the step"
        )


def _open_names(model: nn.Module, given: int) -> set[str]:
    """Names by which forward takes arguments that have not been given by position."""
    try:
        parameters = list(inspect.signature(model.forward).parameters.values())
    except (ValueError, TypeError):  # a built-in function may have none
        return set()
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    filled = [p for p in parameters if p.kind in by_position][:given]
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {p.name for p in parameters if p.kind in by_name} - {p.name for p in filled}


def _kind(given: Any) -> str:
    if isinstance(given, tuple | list):
        inner = ", ".join(type(each).__name__ for each in given)
        return f"a {type(given).__name__} of {len(given)} ({inner})"
    return f"a {type(given).__name__}"
