"""Options that a command line has and that would change nothing."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import typer

_GIVEN: Final = "COMMANDLINE"


def refuse_unused(context: typer.Context, names: Collection[str], because: str) -> None:
    """Nothing, if none of these options of the running command has been given.

    Args:
        context: of the running command.
        names: of the parameters.
        because: how the sentence ends that begins with the option.

    Raises:
        typer.BadParameter: if one has been given.
    """
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if option.name in names and source is not None and source.name == _GIVEN:
            raise typer.BadParameter(f"{option.opts[0]} {because}")
