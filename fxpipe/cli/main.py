"""``fxpipe``: the straight line, a subcommand per arrow."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fxpipe.cli import graph, plan, run, schedule, simulate, stages, trace
from fxpipe.errors import FxPipeError


class _Group(TyperGroup):
    """Says what fxpipe refuses in one message; errors of the user's own code keep their traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except FxPipeError as error:
            if ctx.params.get("traceback"):
                raise
            typer.echo(f"fxpipe: {type(error).__name__}: {error}", err=True)
            for note in getattr(error, "__notes__", ()):
                typer.echo(f"  {note}", err=True)
            raise typer.Exit(1) from error


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Pipeline parallelism for unmodified PyTorch models.",
    epilog="'fxpipe COMMAND --help' has examples.",
)


@app.callback()
def options(
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show where an error of fxpipe comes from.")
    ] = False,
) -> None:
    """Pipeline parallelism for unmodified PyTorch models."""


app.command(epilog=trace.EXAMPLES)(trace.trace)
app.command(epilog=plan.EXAMPLES)(plan.plan)
app.command(epilog=graph.EXAMPLES)(graph.graph)
app.command(epilog=stages.EXAMPLES)(stages.stages)
app.command(epilog=schedule.EXAMPLES)(schedule.schedule)
app.command(epilog=simulate.EXAMPLES)(simulate.simulate)
app.command(epilog=run.EXAMPLES)(run.run)
