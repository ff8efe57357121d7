"""The tables that `Pipeline.report` shows."""

from __future__ import annotations

from fxpipe.compiler import Line
from fxpipe.findings.examine import examine
from fxpipe.ir.schedule import Schedule
from fxpipe.ir.timeline import Timeline
from fxpipe.schedules.sums import sums_note
from fxpipe.schedules.traffic import traffic
from fxpipe.viz.findings import sections
from fxpipe.viz.text import plan_table, rank_table
from fxpipe.viz.units import bytes_text


def report(line: Line, predicted: Timeline | None, micro_batches: int, schedule: Schedule) -> str:
    """The capture, the stages, the predicted step, and what the capture's own report says, as text.

    Args:
        line: what the compiler made.
        predicted: the simulated step; None if the costs are not known.
        micro_batches: of the predicted step.
        schedule: of this step.
    """
    graph = line.stage_graph
    parts = [
        str(line.capture),
        str(line.costs)
        if line.costs is not None
        else "costs not measured (a saved plan was given)",
        plan_table(graph, line.stage_costs(), line.placement, line.plan.starts),
        traffic(graph, line.placement).described(bytes_text),
    ]
    if graph.portals:
        parts.append("\n".join(str(edge) for edge in graph.portals))
    if predicted is not None:
        parts.append(
            f"predicted step of {micro_batches} micro-batches: {predicted.makespan * 1e3:.2f} ms, "
            f"bubble {predicted.bubble:.1%}\n{rank_table(predicted)}"
        )
    if note := sums_note(schedule):
        parts.append(note)
    parts += sections(examine(line.capture, line.plan, line.costs))
    return "\n\n".join(parts)
