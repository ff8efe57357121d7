"""Modules whose operators put off the gradients of their weights."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fxpipe.ir.stage import StageProgram, WeightScope
from fxpipe.products import FUNCTIONS, METHODS
from fxpipe.runtime.shells import Forward
from fxpipe.runtime.swaps import MakeForward, compiled_above
from fxpipe.runtime.weight_pass import Deferring


def weight_swaps(
    model: nn.Module,
    program: StageProgram,
    deferring: Deferring,
    current: Callable[[str], Any],
) -> dict[nn.Module, MakeForward]:
    """Module → its forward with the gradients of weights put off; compiled blocks stay as they are.

    Args:
        model: the user's.
        program: the stage's.
        deferring: runs the operators.
        current: name of a parameter → the tensor that the stage reads now.
    """
    found: dict[nn.Module, MakeForward] = {}
    for path in program.split_layers:
        if compiled_above(model, path) is None:
            found[model.get_submodule(path)] = _layer(deferring)
    for scope in program.split_scopes:
        if compiled_above(model, scope.path) is None:
            found[model.get_submodule(scope.path)] = _scope(deferring, scope, current)
    return found


def _layer(deferring: Deferring) -> MakeForward:
    def make(shell: nn.Module, usual: Forward) -> Forward:
        call = _CALLS[type(shell)]

        def forward(input: Tensor) -> Any:
            function, args = call(shell, input)
            return deferring.run(function, args, {})

        return forward

    return make


_Call = tuple[Callable[..., Any], tuple[Any, ...]]


def _linear(layer: Any, x: Tensor) -> _Call:
    return F.linear, (x, layer.weight, layer.bias)


def _embedding(layer: Any, x: Tensor) -> _Call:
    return F.embedding, (x, layer.weight, layer.padding_idx)


def _convolution(function: Callable[..., Any]) -> Callable[[Any, Tensor], _Call]:
    def call(layer: Any, x: Tensor) -> _Call:
        return function, (
            *(x, layer.weight, layer.bias),
            *(layer.stride, layer.padding, layer.dilation, layer.groups),
        )

    return call


def _transposed(function: Callable[..., Any]) -> Callable[[Any, Tensor], _Call]:
    def call(layer: Any, x: Tensor) -> _Call:
        return function, (
            *(x, layer.weight, layer.bias),
            *(layer.stride, layer.padding, layer.output_padding, layer.groups, layer.dilation),
        )

    return call


_CALLS: Final[Mapping[type[nn.Module], Callable[[Any, Tensor], _Call]]] = {
    nn.Linear: _linear,
    nn.Embedding: _embedding,
    nn.Conv1d: _convolution(F.conv1d),
    nn.Conv2d: _convolution(F.conv2d),
    nn.Conv3d: _convolution(F.conv3d),
    nn.ConvTranspose1d: _transposed(F.conv_transpose1d),
    nn.ConvTranspose2d: _transposed(F.conv_transpose2d),
    nn.ConvTranspose3d: _transposed(F.conv_transpose3d),
}


def _scope(deferring: Deferring, scope: WeightScope, current: Callable[[str], Any]) -> MakeForward:
    def make(shell: nn.Module, usual: Forward) -> Forward:
        def forward(*args: Any, **kwargs: Any) -> Any:
            if deferring.queue is None:
                return usual(*args, **kwargs)
            with _Redirect(deferring, [current(name) for name in scope.parameters]):
                return usual(*args, **kwargs)

        return forward

    return make


class _Redirect(TorchFunctionMode):
    """Inside, operators on some parameters are run by `Deferring`."""

    def __init__(self, deferring: Deferring, parameters: Iterable[Tensor]) -> None:
        super().__init__()
        self._deferring = deferring
        self._parameters = {id(parameter) for parameter in parameters}

    def __torch_function__(
        self,
        func: Any,
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """The operator's result."""
        if func in _OPERATORS and any(id(value) in self._parameters for value in args):
            return self._deferring.run(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


_OPERATORS: Final = FUNCTIONS | {getattr(Tensor, name) for name in METHODS}
