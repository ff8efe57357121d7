"""`render`: one name for all drawings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from fxpipe.ir.plan import PartitionPlan
from fxpipe.ir.stage import StageGraph
from fxpipe.ir.timeline import Timeline
from fxpipe.viz.chrome import chrome_trace
from fxpipe.viz.dot import graph_dot
from fxpipe.viz.graph_svg import graph_svg
from fxpipe.viz.overlay_svg import overlay_svg
from fxpipe.viz.text import grid, plan_table
from fxpipe.viz.timeline_svg import timeline_svg

Form = Literal["text", "svg", "dot", "chrome"]


def render(
    value: Timeline | StageGraph,
    form: Form = "text",
    *,
    plan: PartitionPlan | None = None,
    names: Mapping[str, str] | None = None,
    predicted: Timeline | None = None,
) -> str:
    """The value as a drawing.

    A `Timeline` becomes ``text`` (a grid), ``svg`` or ``chrome`` (trace JSON for ui.perfetto.dev);
    a `StageGraph` ``text`` (a table), ``svg`` or ``dot``.

    Args:
        value: what to draw.
        form: how.
        plan: what the stages of a stage graph consist of.
        names: node name → label for it (see `fxpipe.viz.labels.labels`).
        predicted: what was expected of a measured timeline, drawn with it (``svg`` and ``chrome``).

    Raises:
        ValueError: if the value has no such form.
    """
    if predicted is not None:
        return _overlaid(value, predicted, form)
    match value, form:
        case Timeline(), "text":
            return grid(value)
        case Timeline(), "svg":
            return timeline_svg(value)
        case Timeline(), "chrome":
            return chrome_trace(value)
        case StageGraph(), "text":
            return plan_table(value, starts=plan.starts if plan is not None else ())
        case StageGraph(), "svg":
            return graph_svg(value, plan, names)
        case StageGraph(), "dot":
            return graph_dot(value, plan, names)
        case _:
            raise ValueError(f"a {type(value).__name__} has no form {form!r}")


def _overlaid(value: Timeline | StageGraph, predicted: Timeline, form: Form) -> str:
    match value, form:
        case Timeline(), "svg":
            return overlay_svg(value, predicted)
        case Timeline(), "chrome":
            return chrome_trace(value, predicted)
        case _:
            raise ValueError(f"a {type(value).__name__} has no form {form!r} with a prediction")
