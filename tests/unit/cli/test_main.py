from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from click.testing import Result

from fxpipe.errors import PartitionError

CLI = Callable[..., Result]
COMMANDS = ("trace", "plan", "graph", "stages", "schedule", "simulate", "run")


def test_help_lists_every_command(fxpipe: CLI) -> None:
    output = fxpipe("--help").output
    for command in COMMANDS:
        assert re.search(rf"^  {command} +\w", output, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_examples(fxpipe: CLI, command: str) -> None:
    output = fxpipe(command, "--help").output
    assert f"Examples:\n  fxpipe {command} " in output


def test_an_error_of_fxpipe_is_one_message(fxpipe: CLI) -> None:
    words = ("plan", "tests.unit.cli.models:with_args", "--cuts", "gone", "--costs", "estimate")
    result = fxpipe(*words, code=1)
    assert result.output.startswith("fxpipe: PartitionError: 'gone' ")
    assert "Traceback" not in result.output
    with pytest.raises(PartitionError):
        fxpipe("--traceback", *words)


def test_an_error_of_the_users_code_keeps_its_type(fxpipe: CLI) -> None:
    with pytest.raises(RuntimeError, match="no model today"):
        fxpipe("plan", "tests.unit.cli.models:broken")
