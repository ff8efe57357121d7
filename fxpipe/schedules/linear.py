"""The plainest stage graph: every stage reads the one before it. For schedules without a model."""

from __future__ import annotations

from fxpipe.ir.schedule import Schedule
from fxpipe.ir.spec import TensorSpec
from fxpipe.ir.stage import HOST, Edge, StageGraph
from fxpipe.schedules.numbers import require_all_stages


def linear(stages: int, nbytes: int = 4) -> StageGraph:
    """A chain of `stages` stages; each hands one differentiable value of `nbytes` bytes to the next.

    Raises:
        ValueError: if there is no stage.
    """
    if stages < 1:
        raise ValueError(f"a pipeline needs at least one stage, got {stages}")
    edges = tuple(Edge(f"x{s}", s, (s + 1,), _bytes(nbytes, True)) for s in range(stages - 1))
    source = Edge("x", HOST, (0,), _bytes(nbytes, False))
    return StageGraph(stages, (source,), edges, (f"x{stages - 1}",))


def chain_of(schedule: Schedule) -> StageGraph:
    """The chain of a schedule's stages.

    Raises:
        IllegalScheduleError: if some stage has no action.
        ValueError: if there is no stage.
    """
    require_all_stages(schedule)
    return linear(schedule.num_stages)


def _bytes(nbytes: int, requires_grad: bool) -> TensorSpec:
    return TensorSpec((nbytes,), "uint8", requires_grad)
