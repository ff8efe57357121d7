"""Keyed randomness: every random draw has a generator seeded by what it is, not by when it happens.

A draw's key is (seed, step, micro-batch, scope, ordinal in the scope). A scope is ``"path#call"`` of
the innermost module around the draw. So the number of stages, the schedule, threads and backends
change no number, and a recomputed forward draws what the first one drew.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from hashlib import blake2b
from typing import Final

import torch

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
    """The keys of one stage; which micro-batch it works on is set before each of its forwards.

    A stage runs one forward at a time, so this is no state that two forwards share.
    """

    def __init__(self) -> None:
        self._base = 0
        self._counters: list[CallCounter] = []

    def begin(self, step: int, micro_batch: int) -> None:
        """Work on a micro-batch of a step (by its key): calls are counted anew."""
        self._base = mix(step, micro_batch)
        for counter in self._counters:
            counter.restart()

    def scope(self, scope: str) -> int:
        """The key of a scope for the micro-batch at hand."""
        return mix(self._base, scope_hash(scope))

    def counter(self, path: str, first_call: int) -> CallCounter:
        """A counter of the calls of a module, restarted for every micro-batch."""
        made = CallCounter(path, first_call)
        self._counters.append(made)
        return made


class CallCounter:
    """Numbers the calls of a module within a micro-batch."""

    def __init__(self, path: str, first_call: int) -> None:
        self._path = path
        self._first = first_call
        self._next = first_call
        self._scopes: dict[int, str] = {}

    def restart(self) -> None:
        """Begin again with the first call."""
        self._next = self._first

    def next_scope(self) -> str:
        """``"path#call"`` of the call that starts now."""
        call = self._next
        self._next = call + 1
        if call not in self._scopes:
            self._scopes[call] = f"{self._path}#{call}"
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
