"""Bytes that each stage keeps from forward to backward, counted without an accelerator.

Resident memory says little about it (allocators keep what was freed). Counted instead, per stage: the
unique storages that autograd saves while the stage computes, and the values handed to the stage (the
hook does not see those that are kept to compute it again). Parameters and the caller's own tensors are
left out; a storage counts until it is freed.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

import torch
from torch import Tensor

import fxpipe


class SavedBytes:
    """Counts while `watch` is entered.

    The pipeline must run in the calling thread (``"inline"``) and have no portals (two stages have
    none): a popped value that is kept to run a stage again is not seen.

    Attributes:
        peak: per stage, the most bytes kept at once.
    """

    def __init__(self, stages: tuple[fxpipe.StageProgram, ...], ignore: Iterable[Tensor]) -> None:
        self._stage_of = {f"{program.class_name}.forward": program.stage for program in stages}
        self._ignored = {tensor.untyped_storage()._cdata for tensor in ignore}
        self._kept: list[dict[int, int]] = [{} for _ in stages]
        self.peak = [0] * len(stages)

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Count what is saved inside."""
        hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)
        sys.setprofile(self._entered)
        try:
            with hooks:
                yield
        finally:
            sys.setprofile(None)

    def _pack(self, tensor: Tensor) -> Tensor:
        self._keep(self._running_stage(), tensor)
        return tensor.detach()

    def _running_stage(self) -> int:
        """The stage whose source is on the stack; the loss belongs to the last stage."""
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            stage = self._stage(frame)
            if stage is not None:
                return stage
            frame = frame.f_back
        return len(self._kept) - 1

    def _entered(self, frame: FrameType, event: str, argument: object) -> None:
        """A stage is called: count its arguments."""
        stage = self._stage(frame) if event == "call" else None
        if stage is not None:
            names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
            for value in map(frame.f_locals.get, names):
                if isinstance(value, Tensor):
                    self._keep(stage, value)

    def _stage(self, frame: FrameType) -> int | None:
        if not frame.f_code.co_filename.startswith("<fxpipe stage"):
            return None
        return self._stage_of.get(frame.f_code.co_qualname)

    def _keep(self, stage: int, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, kept = storage._cdata, self._kept[stage]
        if key in self._ignored or key in kept:
            return
        kept[key] = storage.nbytes()
        weakref.finalize(storage, kept.pop, key, None)
        self.peak[stage] = max(self.peak[stage], sum(kept.values()))


def counted(
    pipe: fxpipe.Pipeline, step: Callable[[], object], ignore: Iterable[Tensor]
) -> list[int]:
    """Peak bytes per stage of one step of an inline pipeline."""
    counter = SavedBytes(pipe.stages, ignore)
    with counter.watch():
        step()
    return counter.peak
