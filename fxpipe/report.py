"""The tables that `Pipeline.report` shows."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Final

from torch import nn

from fxpipe.analysis.sharing import shared_parameters
from fxpipe.compiler import Line
from fxpipe.findings.examine import examine
from fxpipe.ir.schedule import Schedule
from fxpipe.ir.timeline import Timeline
from fxpipe.schedules.sums import sums_note
from fxpipe.schedules.traffic import traffic
from fxpipe.viz.findings import sections
from fxpipe.viz.tables import WIDTH, table
from fxpipe.viz.text import plan_table, rank_table
from fxpipe.viz.units import bytes_text

_SHARED_NOTE: Final = (
    "Each of these stages adds up its own gradients over the step; at its end they travel to where the "
    "parameter is kept, and are added there in the order of the stages. A stage on another device reads "
    "a copy, which is made anew at the beginning of every step."
)


def report(
    line: Line,
    predicted: Timeline | None,
    micro_batches: int,
    schedule: Schedule,
    model: nn.Module,
) -> str:
    """The capture, the stages, the predicted step, and what the capture's own report says, as text.

    Args:
        line: what the compiler made.
        predicted: the simulated step; None if the costs are not known.
        micro_batches: of the predicted step.
        schedule: of this step.
        model: that was recorded.
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
    if shared := shared_by_stages(line, model):
        parts.append(_shared(shared, model))
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


def shared_by_stages(line: Line, model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Parameter name → the stages that read it, for those that several stages read."""
    found = {}
    for name, nodes in shared_parameters(line.capture, model).items():
        stages = tuple(sorted({line.plan.stages[node] for node in nodes}))
        if len(stages) > 1:
            found[name] = stages
    return found


def _shared(shared: Mapping[str, tuple[int, ...]], model: nn.Module) -> str:
    rows = []
    for name, stages in shared.items():
        parameter = model.get_parameter(name)
        listed = ", ".join(map(str, stages))
        rows.append((name, bytes_text(parameter.nbytes), listed, str(parameter.device)))
    shown = table(("parameter", "size", "stages", "kept on"), rows, right=("size",))
    note = textwrap.fill(_SHARED_NOTE, WIDTH, initial_indent="  ", subsequent_indent="  ")
    return f"Parameters that several stages read: {len(rows)}\n{shown}\n{note}"
