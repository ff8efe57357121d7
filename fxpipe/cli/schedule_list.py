"""All schedules with a name, a line each."""

from __future__ import annotations

from fxpipe.cli.grid import terminal_width
from fxpipe.schedules.forms import FORMS, summary
from fxpipe.viz.tables import table

_NOTE = """\
stages: per rank, as a schedule is made for and is given where --stages does not say otherwise.
best if: for p ranks, m micro-batches. All take any numbers, with at least one stage per rank, but those
marked "p even", which want an even number of ranks.
'fxpipe schedule search' looks for the fastest one that fits into --memory."""


def schedule_list() -> str:
    """A table of names, the counts they are made for, what they are and their papers."""
    rows = []
    for name, form in FORMS.items():
        best = ", ".join(filter(None, ["p even" * form.needs_even_ranks, form.best]))
        rows.append((name, str(form.stages_per_rank), best, summary(name).partition(": ")[2]))
    width = max(terminal_width(160), 80)
    return f"{table(('name', 'stages', 'best if', 'what'), rows, width=width)}\n\n{_NOTE}"
