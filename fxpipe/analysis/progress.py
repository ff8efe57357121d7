"""A progress bar for work that turns out to be long."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

PATIENCE = 2.0
"""Seconds without a bar."""


class Step(Protocol):
    """Told that one more of the steps is done."""

    def __call__(self, total: int | None = None) -> None:
        """Advance by one; `total`: how many steps there will be, once that is known."""
        ...


@contextmanager
def progress(title: str, shown: bool = True) -> Iterator[Step]:
    """Counts steps; a bar appears on a terminal once the work has taken two seconds.

    Args:
        title: what is being done.
        shown: False for no bar at all.
    """
    if not (shown and sys.stderr.isatty()):
        yield lambda total=None: None
        return
    from rich.console import Console
    from rich.progress import Progress

    begun, done = time.monotonic(), 0
    with Progress(console=Console(stderr=True), transient=True, disable=False) as bar:
        task = bar.add_task(title, total=None, visible=False)

        def step(total: int | None = None) -> None:
            nonlocal done
            done += 1
            late = time.monotonic() - begun > PATIENCE
            bar.update(task, completed=done, visible=late, total=total or bar.tasks[0].total)

        yield step
