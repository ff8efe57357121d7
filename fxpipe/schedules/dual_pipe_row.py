"""The order of one rank in DualPipe and DualPipeV: two directions that feed each other's bubbles."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from fxpipe.ir.action import Cell, Compute, Fused, Kind


class DualPipeRow:
    """What a rank at distance `depth` from the inputs does with its two chunks.

    Chunk 0 is on the way from the near input, chunk 1 on the way to the near loss. In the middle of the
    step a forward of one and a backward of the other share a cell. Near the end backwards are
    split, and their weight halves run last come first.

    Args:
        depth: the rank's distance from the rank with the inputs.
        depths: number of ranks on the way.
        micro_batches: on this way, at least ``2 * depths``.
        stages: of chunk 0 and of chunk 1.
        stride: numbers from one micro-batch of a chunk to its next.
        offsets: number of the first micro-batch of chunk 0 and of chunk 1.
    """

    def __init__(
        self,
        depth: int,
        depths: int,
        micro_batches: int,
        stages: tuple[int, int],
        stride: int = 1,
        offsets: tuple[int, int] = (0, 0),
    ) -> None:
        self._depth = depth
        self._depths = depths
        self._micro_batches = micro_batches
        self._stages = stages
        self._stride = stride
        self._offsets = offsets
        self._forwards = [0, 0]
        self._backwards = [0, 0]
        self._owed: deque[Compute] = deque()
        """Weight halves not run yet."""

    def cells(self) -> Iterator[Cell]:
        """The rank's cells, in order."""
        far = self._depths - 1 - self._depth
        for _ in range(2 * far):
            yield self._forward(0)
        for _ in range(self._depth + 1):
            yield self._forward(0)
            yield self._forward(1)
        for _ in range(far):
            yield self._input_half(1)
            yield self._owed.popleft()
            yield self._forward(1)
        yield from self._steady(far)
        yield from self._drain(far)

    def _steady(self, far: int) -> Iterator[Cell]:
        for turn in range(self._micro_batches - 2 * self._depths + self._depth + 1):
            if turn == 0 and far == 0:
                # Nothing to overlap with yet where the two directions meet.
                yield self._forward(0)
                yield self._backward(1)
            else:
                yield Fused((self._forward(0), self._backward(1)))
            yield Fused((self._forward(1), self._backward(0)))
        for _ in range(far):
            yield self._backward(1)
            yield Fused((self._forward(1), self._backward(0)))

    def _drain(self, far: int) -> Iterator[Cell]:
        """Backwards alone, from half of them on split."""
        whole = self._depth + 1
        for at in range(2 * whole):
            yield self._backward(1 - at % 2) if at < whole else self._input_half(1 - at % 2)
        for _ in range(far):
            yield self._owed.popleft()
            yield self._input_half(0)
        yield from self._owed

    def _forward(self, chunk: int) -> Compute:
        self._forwards[chunk] += 1
        return self._compute(Kind.FORWARD, chunk, self._forwards[chunk])

    def _backward(self, chunk: int) -> Compute:
        self._backwards[chunk] += 1
        return self._compute(Kind.BACKWARD, chunk, self._backwards[chunk])

    def _input_half(self, chunk: int) -> Compute:
        self._backwards[chunk] += 1
        self._owed.append(self._compute(Kind.BACKWARD_WEIGHT, chunk, self._backwards[chunk]))
        return self._compute(Kind.BACKWARD_INPUT, chunk, self._backwards[chunk])

    def _compute(self, kind: Kind, chunk: int, count: int) -> Compute:
        micro_batch = (count - 1) * self._stride + self._offsets[chunk]
        return Compute(kind, self._stages[chunk], micro_batch)
