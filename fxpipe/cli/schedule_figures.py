"""How good a schedule is: its length, its bubbles by every convention, what the ranks keep."""

from __future__ import annotations

from collections.abc import Iterator

from fxpipe.cli.chosen import Chosen
from fxpipe.errors import IllegalScheduleError
from fxpipe.ir.action import computes_of
from fxpipe.ir.timeline import Timeline
from fxpipe.schedules.forms import FORMS, Form
from fxpipe.schedules.memory import kept
from fxpipe.schedules.registry import SCHEDULES
from fxpipe.simulator.metrics import bubble_fraction, bubble_ratio, device_span_bubble
from fxpipe.viz.lanes import Clock
from fxpipe.viz.tables import table


def figures(timeline: Timeline, clock: Clock) -> str:
    """The step and its bubbles, each with the name of its convention."""
    rows = (
        ("step", clock(timeline.makespan), "first start to last end"),
        (
            "bubble, fraction of the total",
            f"{bubble_fraction(timeline):.1%}",
            "idle / (ranks × step)",
        ),
        (
            "bubble, ratio to the ideal",
            f"{bubble_ratio(timeline):.1%}",
            "idle / busy (Megatron-LM's)",
        ),
        (
            "bubble, fraction of the device span",
            f"{device_span_bubble(timeline):.1%}",
            "each rank from its own first action (zero-bubble papers')",
        ),
    )
    wide, value = max(len(row[0]) for row in rows), max(len(row[1]) for row in rows)
    return "\n".join(f"  {name:<{wide}}  {text:>{value}}  {what}" for name, text, what in rows)


def peaks_table(chosen: Chosen, clock: Clock) -> str:
    """Busy and idle time of every rank, and what it keeps at its peak beside the closed form."""
    timeline, form = chosen.timeline, form_of(chosen)
    expected = [closed_form(form, chosen, rank) for rank in range(timeline.num_ranks)]
    has_form = any(expected)
    headers = ["rank", "busy", "idle", "bubble", "kept", *(["closed form"] if has_form else [])]
    rows = []
    for rank, most in enumerate(chosen.kept):
        busy = timeline.busy(rank)
        idle = timeline.makespan - busy
        row = [str(rank), clock(busy), clock(idle), f"{idle / timeline.makespan:.1%}", f"{most:g}"]
        rows.append([*row, *([expected[rank]] if has_form else [])])
    return f"{table(headers, rows, right=set(headers))}\n\n{_note(form, has_form)}"


def form_of(chosen: Chosen) -> Form | None:
    """What is known of a schedule with a name; None for any other order, also if it is called so."""
    schedule = chosen.schedule
    form = FORMS.get(schedule.name)
    stages, ranks = schedule.num_stages, schedule.num_ranks
    if form is None or (form.needs_even_ranks and ranks % 2):
        return None
    if chosen.is_as_named:
        return form
    known = SCHEDULES[schedule.name](stages, ranks, schedule.num_micro_batches)
    return form if schedule == known else None


def closed_form(form: Form | None, chosen: Chosen, rank: int) -> str:
    """What a rank keeps by the closed form; empty where there is none for these counts."""
    stages, ranks = chosen.schedule.num_stages, chosen.schedule.num_ranks
    if form is None or stages % ranks:
        return ""
    peak = form.peak(ranks, stages // ranks, chosen.schedule.num_micro_batches, rank)
    return "" if peak is None else f"{'<= ' * form.is_bound}{peak:g}"


def require_memory(chosen: Chosen, limit: float) -> None:
    """Nothing, if no rank keeps more for backward than it may.

    Raises:
        IllegalScheduleError: naming, for each rank that does, position and action where it first does.
    """
    over = list(_over(chosen, limit))
    if over:
        lines = [f"  - {line}" for line in over]
        search = f"'fxpipe schedule search --memory {limit:g}' looks for one that fits"
        raise IllegalScheduleError("\n".join(["too much is kept:", *lines, search]))


def _over(chosen: Chosen, limit: float) -> Iterator[str]:
    """Where each rank first keeps too much."""
    for rank, cells in enumerate(chosen.schedule.ranks):
        positions = [at for at, cell in enumerate(cells) for _ in computes_of(cell)]
        actions = chosen.schedule.computes[rank]
        now = kept(actions, chosen.costs)
        for position, action, units in zip(positions, actions, now, strict=True):
            share = units / chosen.stages_per_rank
            if share > limit:
                yield (
                    f"rank {rank}, position {position}: {action} keeps {share:g} for backward, and "
                    f"{limit:g} are allowed"
                )
                break


def _note(form: Form | None, has_form: bool) -> str:
    kept = "kept: activations for backward at the peak, one being those of all stages of a rank"
    if form is None:
        return kept
    if not has_form:
        return f"{kept}\nclosed form: none for these counts"
    return f"{kept}\nclosed form: {form.formula}, of p ranks, v stages per rank, m micro-batches, rank r"
