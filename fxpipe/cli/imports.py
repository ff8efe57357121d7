"""``package.module:name`` → the object."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import typer


def import_object(text: str, what: str) -> Any:
    """The object that ``package.module:name`` names; the current folder is importable.

    Raises:
        typer.BadParameter: if there is no such module or name.
    """
    module_name, colon, name = text.partition(":")
    if not (module_name and colon and name):
        raise typer.BadParameter(f"{text!r} is no {what}: expected package.module:name")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # Only if the module itself is missing: what its own imports lack is its author's business.
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise typer.BadParameter(f"there is no module {error.name!r} (for {text!r})") from error
        raise
    for part in name.split("."):
        if not hasattr(found, part):
            raise typer.BadParameter(f"{module_name} has no {name!r}")
        found = getattr(found, part)
    return found
