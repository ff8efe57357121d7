"""Stages as files in a folder."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fxpipe.ir.stage import StageProgram


def write_stages(programs: Iterable[StageProgram], folder: str | Path) -> tuple[Path, ...]:
    """The files written, ``stage_0.py`` and so on; the folder is made if there is none.

    Each can be imported by itself: ``Stage0(model).forward(stash, pop, x)`` runs it on the modules of
    a model of the recorded class.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    written = []
    for program in programs:
        path = target / f"stage_{program.stage}.py"
        path.write_text(program.source, encoding="utf-8")
        written.append(path)
    return tuple(written)
