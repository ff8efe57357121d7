"""A function run in a process of its own: with a time limit, and whatever happens in it stays there."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any


@dataclass(frozen=True)
class Outcome:
    """What became of a call.

    Attributes:
        value: what the function returned.
        error: name of the exception's class; ``"Timeout"``, ``"Died"`` if the process ended by itself;
            "" if all went well.
        message: of the exception, with its traceback.
    """

    value: Any = None
    error: str = ""
    message: str = ""


def isolated(function: Callable[..., Any], *args: Any, timeout: float) -> Outcome:
    """The outcome of ``function(*args)`` in a child of this process.

    Where processes can be forked the child has all that is imported here, so that it starts at once.
    """
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("fork" if "fork" in methods else "spawn")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_run, args=(theirs, function, args), daemon=True)
    child.start()
    theirs.close()
    try:
        if not ours.poll(timeout):
            return Outcome(error="Timeout", message=f"no result after {timeout:.0f} s")
        outcome: Outcome = ours.recv()
        return outcome
    except EOFError:
        child.join()
        return Outcome(error="Died", message=f"exit code {child.exitcode}")
    finally:
        child.kill()
        child.join()
        ours.close()


def _run(out: Connection, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # libraries warn at length; what counts is in the outcome
        os.dup2(nowhere, stream)
    try:
        outcome = Outcome(function(*args))
    except Exception as error:
        outcome = Outcome(error=type(error).__name__, message=traceback.format_exc())
    out.send(outcome)
    out.close()
