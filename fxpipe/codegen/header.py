"""The comment at the head of a stage's source: which plan made it, and what crosses its borders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from fxpipe.codegen.split import StagePart
from fxpipe.ir.capture import Capture
from fxpipe.ir.plan import PartitionPlan
from fxpipe.ir.spec import ValueSpec
from fxpipe.ir.stage import HOST, Edge, StageGraph

_MOST: Final = 4


def header(
    part: StagePart,
    capture: Capture,
    plan: PartitionPlan,
    graph: StageGraph,
    whole: Sequence[str] = (),
) -> Iterator[str]:
    """The lines of the comment, without the ``#``.

    Args:
        part: the stage.
        capture: what was recorded.
        plan: where it is cut.
        graph: what crosses the cuts.
        whole: of a stage whose backward is split, the parameters whose gradients are not split off.
    """
    mode = "train" if capture.training else "eval"
    sizes = ", ".join(str(len(plan.nodes_of(stage))) for stage in range(plan.num_stages))
    yield f"Stage {part.stage} (of {plan.num_stages}, counted from 0) of {capture.model_class}"
    yield ""
    yield f"recorded  in {mode} mode at batch size {capture.batch_size}, capture {plan.fingerprint}"
    yield f"plan      {sizes} nodes, cut before {', '.join(starts(capture, plan)) or 'nothing'}"
    yield f"nodes     {_run(part)}"
    reads = graph.reads(part.stage)
    writes = graph.writes(part.stage)
    yield from _edges("takes", (e for e in reads if not e.is_portal), _from)
    yield from _edges("pops", (e for e in reads if e.is_portal), _from)
    yield from _edges("stashes", (e for e in writes if e.is_portal), _to)
    yield from _edges("hands on", (e for e in writes if not e.is_portal), _to)
    if part.stage == graph.num_stages - 1:
        values = ", ".join(str(value) for value in graph.outputs if value is not None)
        yield f"returns   {values or 'nothing that was computed'}"
    if whole:
        more = f" and {len(whole) - _MOST} more" if len(whole) > _MOST else ""
        yield f"not split {', '.join(whole[:_MOST])}{more}: gradients come in the pass of the inputs"


def starts(capture: Capture, plan: PartitionPlan) -> tuple[str, ...]:
    """The first node of every stage but the first, as the plan names them."""
    if plan.starts:
        return plan.starts
    return tuple(plan.nodes_of(stage)[0] for stage in range(1, plan.num_stages))


def describe(spec: ValueSpec) -> str:
    """A value's shapes, short."""
    if isinstance(spec, tuple):
        return f"({', '.join(map(describe, spec))})"
    if isinstance(spec, dict):
        return "{" + ", ".join(f"{key}: {describe(value)}" for key, value in spec.items()) + "}"
    return str(spec)


def _run(part: StagePart) -> str:
    names = [node.name for node in part.nodes]
    if not names:
        return "none: what this stage has is not called"
    return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"


def _edges(word: str, edges: Iterable[Edge], end: Callable[[Edge], str]) -> Iterator[str]:
    for edge in edges:
        yield f"{word:9} {edge.value}: {describe(edge.spec)} {end(edge)}"


def _from(edge: Edge) -> str:
    return "from the caller" if edge.producer == HOST else f"from stage {edge.producer}"


def _to(edge: Edge) -> str:
    return f"to stage {' and '.join(map(str, edge.consumers))}"
