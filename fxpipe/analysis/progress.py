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

    def __call__(self) -> None:
        """Advance by one."""
        ...


@contextmanager
def progress(title: str, total: int, shown: bool = True) -> Iterator[Step]:
    """Counts steps; a bar appears on a terminal once the work has taken two seconds.

    Args:
        title: what is being done.
        total: number of steps.
        shown: False for no bar at all.
    """
    if not (shown and sys.stderr.isatty()):
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    begun, done = time.monotonic(), 0
    with Progress(console=Console(stderr=True), transient=True, disable=False) as bar:
        task = bar.add_task(title, total=total, visible=False)

        def step() -> None:
            nonlocal done
            done += 1
            late = time.monotonic() - begun > PATIENCE
            bar.update(task, completed=done, visible=late)

        yield step
