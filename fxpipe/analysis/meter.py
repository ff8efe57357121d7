"""What time is counted in: seconds of a wall clock, or of a nominal device that only adds up work."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry


class Meter(Protocol):
    """A clock, and a count of arithmetic."""

    def now(self) -> float:
        """Seconds since some moment."""
        ...

    def flops(self) -> int:
        """Floating-point operations since some moment; always 0 if they are not counted."""
        ...


class WallClock:
    """Real time; on accelerators every reading waits until the devices have done their work."""

    def __init__(self, devices: Sequence[torch.device] = ()) -> None:
        self._devices = devices

    def now(self) -> float:
        """Seconds of ``time.perf_counter``."""
        for device in self._devices:
            torch.accelerator.synchronize(device)
        return time.perf_counter()

    def flops(self) -> int:
        """0: a clock does not count operations."""
        return 0


@dataclass(frozen=True, slots=True)
class Device:
    """A nominal device: an operator takes a while to start, then its arithmetic or its memory traffic.

    The longer of the two counts: the roofline of Williams, Waterman and Patterson (CACM 2009).
    """

    flops_per_second: float
    bytes_per_second: float
    start: float

    def seconds(self, flops: int, nbytes: int) -> float:
        """Time for some operations and some bytes read or written."""
        return self.start + max(flops / self.flops_per_second, nbytes / self.bytes_per_second)


ACCELERATOR: Final = Device(flops_per_second=20e12, bytes_per_second=1e12, start=2e-6)
CPU_CORE: Final = Device(flops_per_second=100e9, bytes_per_second=5e9, start=5e-6)
"""Orders of magnitude in single precision; to a plan only their ratios matter."""


class NominalClock(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Time on a nominal device: goes on with every ATen operator that runs while the mode is active.

    Operators may run on fake tensors: shapes are all it looks at. Views cost nothing.
    """

    supports_higher_order_operators = True

    def __init__(self, device: Device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = device
        self._seconds = 0.0
        self._flops = 0

    def now(self) -> float:
        """Nominal seconds so far."""
        return self._seconds

    def flops(self) -> int:
        """Operations so far."""
        return self._flops

    def rewind(self, flops: int, seconds: float) -> None:
        """Back to an earlier reading: what was done since does not count."""
        self._flops, self._seconds = flops, seconds

    def add(self, flops: int, nbytes: int) -> None:
        """Let work pass that no operator stands for."""
        self._flops += flops
        self._seconds += self.device.seconds(flops, nbytes)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if isinstance(func, HigherOrderOperator):  # as long as it takes to read and write
            self.add(0, sum(x.numel() * x.element_size() for x in _tensors(args, kwargs, result)))
            return result
        if not (func.namespace == "prim" or func.is_view or str(func.overloadpacket) in _FREE):
            self.add(*_work(func, args, kwargs, result))
        return result


def _tensors(*values: Any) -> list[torch.Tensor]:
    return [x for x in tree_leaves(values) if isinstance(x, torch.Tensor)]


def _work(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> tuple[int, int]:
    """Operations and bytes of one operator call."""
    tensors = _tensors(args, kwargs, result)
    nbytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    packet = func.overloadpacket
    if packet in flop_registry:
        return int(flop_registry[packet](*args, **kwargs, out_val=result)), nbytes
    formula = _FORMULAS.get(str(packet))
    if formula is not None:
        return formula(*args), nbytes
    made = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
    return sum(tensor.numel() for tensor in made), nbytes


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any) -> int:
    batch_and_rows = query.numel() // query.shape[-1]
    return 2 * batch_and_rows * key.shape[-2] * (query.shape[-1] + value.shape[-1])


def _attention_backward(
    gradient: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any
) -> int:
    return 5 * _attention(query, key, value) // 2  # the scores once more, then four products


def _recurrent(inputs: torch.Tensor, *weights: Any) -> int:
    matrices = [w for w in weights[:4] if isinstance(w, torch.Tensor) and w.ndim == 2]
    rows = inputs.numel() // inputs.shape[-1]
    return 2 * rows * sum(matrix.numel() for matrix in matrices)


def _recurrent_backward(inputs: torch.Tensor, *weights: Any) -> int:
    return 2 * _recurrent(inputs, *weights)


_FREE: Final = frozenset(
    f"aten.{name}"
    for name in (
        "empty",
        "empty_like",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "lift_fresh",
    )
) | {"aten._unsafe_view"}
"""Operators that only make or name memory, besides views."""

_FORMULAS: Final[dict[str, Callable[..., int]]] = {
    "aten._scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "aten.mkldnn_rnn_layer": _recurrent,
    "aten.mkldnn_rnn_layer_backward": _recurrent_backward,
}
"""Operators with matrix products that torch's own table leaves out."""
