"""Keyed randomness: every random draw has a generator seeded by what it is, not by when it happens.

A draw's key is (seed, step, micro-batch, scope, ordinal in the scope). A scope is ``"path#call"`` of
the innermost module around the draw. So the number of stages, the schedule, threads and backends
change no number, and a recomputed forward draws what the first one drew: also where it is the user's own
`torch.utils.checkpoint` that runs a part of a forward again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch

from fxpipe.errors import ExecutionError
from fxpipe.runtime.reentry import checkpoints_around, may_be_in_checkpoint

_MASK: Final = (1 << 64) - 1


def mix(key: int, value: int) -> int:
    """A 64-bit integer of two, each bit of the result depending on all bits of both.

    The finaliser of splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
    generators", 2014).
    """
    z = (key ^ (value * 0x9E3779B97F4A7C15)) & _MASK
    z = (z + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


@lru_cache(maxsize=65536)
def scope_hash(scope: str) -> int:
    """A 64-bit integer of a scope, the same in every process."""
    return int.from_bytes(blake2b(scope.encode(), digest_size=8).digest(), "little")


def step_key(seed: int, step: int) -> int:
    """The key of a step."""
    return mix(mix(0, seed), step)


class StageKeys:
    """The keys of one stage; which micro-batch it works on is set before each forward and backward.

    A stage runs one forward or backward at a time, so this is no state that two of them share.

    Attributes:
        keeps_graph: whether a forward is running whose graph will be differentiated.
        in_backward: whether a backward is running.
    """

    def __init__(self) -> None:
        self.keeps_graph = False
        self.in_backward = False
        self._base = 0
        self._counters: list[CallCounter] = []
        # Checkpoint of the user's → the first call of each module inside it.
        self._first: WeakKeyDictionary[Any, dict[CallCounter, int]] = WeakKeyDictionary()
        # The same → per run of autograd, the next call of each module when it runs again.
        self._next: WeakKeyDictionary[Any, dict[int, dict[CallCounter, int]]] = WeakKeyDictionary()

    def begin(self, step: int, micro_batch: int, *, keeps_graph: bool = False) -> None:
        """Forward of a micro-batch of a step (by its key): calls are counted anew."""
        self._base = mix(step, micro_batch)
        self.keeps_graph = keeps_graph
        self.in_backward = False
        for counter in self._counters:
            counter.restart()

    def begin_backward(self, step: int, micro_batch: int) -> None:
        """Backward of a micro-batch: the user's own checkpoints will run parts of its forward again."""
        self._base = mix(step, micro_batch)
        self.keeps_graph = False
        self.in_backward = True

    def scope(self, scope: str) -> int:
        """The key of a scope for the micro-batch at hand."""
        return mix(self._base, scope_hash(scope))

    def counter(self, path: str, first_call: int) -> CallCounter:
        """A counter of the calls of a module, restarted for every micro-batch."""
        made = CallCounter(self, path, first_call)
        self._counters.append(made)
        return made

    def note(self, counter: CallCounter, call: int) -> None:
        """A call in a forward: the checkpoints around it will have to begin with it again."""
        self._note(checkpoints_around()[0], counter, call)

    def call_again(self, counter: CallCounter) -> int:
        """Which call of the forward it is that is made again in the backward.

        Raises:
            ExecutionError: if the forward has made no such call in a checkpoint.
        """
        inside, rerun = checkpoints_around()
        first = {} if rerun is None else self._first.get(rerun, {})
        if counter not in first:
            raise ExecutionError(
                f"the module {counter.path!r} draws random numbers and is called in a backward, where "
                "it cannot be told which call of the forward this repeats. torch.utils.checkpoint "
                "around whole modules can be told; for anything else, let fxpipe rerun the forward: "
                "fxpipe.compile(..., recompute='always')"
            )
        runs = self._next.setdefault(rerun, {})
        following = runs.setdefault(torch._C._current_graph_task_id(), {})
        call = following.get(counter, first[counter])
        following[counter] = call + 1
        self._note(inside, counter, call)
        return call

    def _note(self, regions: Iterable[Any], counter: CallCounter, call: int) -> None:
        for region in regions:
            self._first.setdefault(region, {}).setdefault(counter, call)


class CallCounter:
    """Numbers the calls of a module within a micro-batch.

    Attributes:
        path: of the module.
    """

    def __init__(self, keys: StageKeys, path: str, first_call: int) -> None:
        self.path = path
        self._keys = keys
        self._first = first_call
        self._next = first_call
        self._scopes: dict[int, str] = {}

    def restart(self) -> None:
        """Begin again with the first call."""
        self._next = self._first

    def next_scope(self) -> str:
        """``"path#call"`` of the call that starts now.

        Raises:
            ExecutionError: in a backward, if it is not known which call of the forward this repeats.
        """
        keys = self._keys
        if keys.in_backward:
            call = keys.call_again(self)
        else:
            call = self._next
            self._next = call + 1
            if keys.keeps_graph and may_be_in_checkpoint():
                keys.note(self, call)
        if call not in self._scopes:
            self._scopes[call] = f"{self.path}#{call}"
        return self._scopes[call]


class _Generators(threading.local):
    """One generator per thread and device: seeding one anew is cheaper than making one."""

    def __init__(self) -> None:
        self.by_device: dict[torch.device, torch.Generator] = {}


_GENERATORS: Final = _Generators()


def generator(key: int, device: torch.device) -> torch.Generator:
    """The calling thread's generator of a device, seeded with a key; good until it asks for the next."""
    held = _GENERATORS.by_device.get(device)
    if held is None:
        held = _GENERATORS.by_device[device] = torch.Generator(device)
    held.manual_seed(key)
    return held


_DEFAULT_LOCK: Final = threading.RLock()
"""Held while a default generator, which all threads share, is seeded with a key."""


@contextmanager
def seeded_default(key: int, device: torch.device) -> Iterator[None]:
    """A device's default generator seeded with a key; it is put back after.

    For what takes no generator: compiled functions, fused kernels of accelerators. Threads enter one
    after another.
    """
    with _DEFAULT_LOCK:
        default = default_generator(device)
        before = default.get_state()
        default.manual_seed(key)
        try:
            yield
        finally:
            default.set_state(before)


_SHARED_LOCK: Final = threading.RLock()
_IS_INSIDE: Final[ContextVar[bool]] = ContextVar("fxpipe_draws", default=False)


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Inside, no other thread runs a forward that draws from the generators of ``random`` or NumPy.

    All threads share these: one that puts them back to run a forward again would change what another
    one draws. A pipeline that is called inside is a part of the forward around it.
    """
    if _IS_INSIDE.get():
        yield
        return
    with _SHARED_LOCK:
        token = _IS_INSIDE.set(True)
        try:
            yield
        finally:
            _IS_INSIDE.reset(token)


@contextmanager
def undrawn_if_it_fails() -> Iterator[None]:
    """After an error inside, the caller's generator is as if nothing had been drawn from it."""
    before = torch.get_rng_state()
    try:
        yield
    except BaseException:
        torch.set_rng_state(before)
        raise


def default_generator(device: torch.device) -> torch.Generator:
    """The generator that operators on a device draw from when they are given none."""
    if device.type == "cpu":
        return torch.default_generator
    module = torch.get_device_module(device)
    module.init()
    index: int | None = device.index
    found: torch.Generator = module.default_generators[
        module.current_device() if index is None else index
    ]
    return found
