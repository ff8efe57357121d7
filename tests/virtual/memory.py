"""`Memory`: every storage as a block of a device's memory, with who read and wrote it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from tests.virtual.clocks import Actor, Moment
from tests.virtual.hazards import Kind, Report

HOST = torch.device("cpu")


@dataclass(eq=False)
class Block:
    """The memory of one storage.

    Attributes:
        storage: the storage, not kept alive.
        device: where it is.
        pool: the stream it was allocated on, to which it returns when Python drops it. None on the
            host, where memory is free again at once.
        write: the last write.
        reads: each actor's last read since then.
        uses: each actor's last deed of any kind.
        kept: the streams that ``record_stream`` named: the allocator waits for them by itself.
    """

    storage: StorageWeakRef
    device: torch.device
    pool: Actor | None
    write: Moment | None = None
    reads: dict[Actor, Moment] = field(default_factory=dict)
    uses: dict[Actor, Moment] = field(default_factory=dict)
    kept: set[Actor] = field(default_factory=set)


class Memory:
    """The blocks, and the rules of their use."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._blocks: dict[int, Block] = {}

    def block(self, tensor: Tensor) -> Block:
        """The tensor's block; memory never seen before is the host's."""
        storage = tensor.untyped_storage()
        block = self._blocks.get(storage._cdata)
        if block is None or block.storage.expired():
            block = Block(StorageWeakRef(storage), HOST, None)
            self._blocks[storage._cdata] = block
        return block

    def is_known(self, tensor: Tensor) -> bool:
        """Whether the tensor's storage has a block that is in use."""
        block = self._blocks.get(tensor.untyped_storage()._cdata)
        return block is not None and not block.storage.expired()

    def allocate(self, tensor: Tensor, device: torch.device, pool: Actor | None) -> None:
        """The tensor's storage is new memory of the device; it may be what `pool` got back before."""
        if pool is not None:
            for freed in self._take_freed(pool):
                self._check_reuse(freed, pool)
        storage = tensor.untyped_storage()
        self._blocks[storage._cdata] = Block(StorageWeakRef(storage), device, pool)

    def read(self, tensor: Tensor, moment: Moment, *, done: bool = False) -> None:
        """A deed reads the tensor; `done`: the host has waited for it, so nobody need any more."""
        block = self.block(tensor)
        if block.write is not None and not moment.actor.knows(block.write):
            on_host = block.device != HOST and not _is_stream(moment.actor)
            kind = Kind.HOST_READ if on_host else Kind.READ_BEFORE_WRITE
            self._report.add(kind, moment, block.write)
        block.reads[moment.actor] = moment
        if not done:
            block.uses[moment.actor] = moment

    def write(self, tensor: Tensor, moment: Moment) -> None:
        """A deed writes the tensor."""
        block = self.block(tensor)
        earlier = [*block.reads.values(), *([block.write] if block.write else [])]
        for other in earlier:
            if not moment.actor.knows(other):
                self._report.add(Kind.WRITE_BEFORE_READ, moment, other)
        block.write, block.reads = moment, {}
        block.uses[moment.actor] = moment

    def keep(self, tensor: Tensor, stream: Actor) -> None:
        """The allocator learns that the stream uses the tensor."""
        self.block(tensor).kept.add(stream)

    def _take_freed(self, pool: Actor) -> Iterator[Block]:
        for key, block in list(self._blocks.items()):
            if block.storage.expired() and block.pool in (pool, None):
                del self._blocks[key]
                if block.pool is pool:
                    yield block

    def _check_reuse(self, freed: Block, pool: Actor) -> None:
        for actor, use in freed.uses.items():
            if actor not in freed.kept and not pool.knows(use):
                self._report.add(Kind.REUSED, f"allocation on {pool.name}", use)


def _is_stream(actor: Actor) -> bool:
    return hasattr(actor, "device")
