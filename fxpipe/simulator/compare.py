"""A measured step beside its prediction, rank by rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from fxpipe.ir.schedule import Schedule
from fxpipe.ir.stage import StageGraph
from fxpipe.ir.timeline import Timeline
from fxpipe.simulator.rank_times import RankTimes, rank_times
from fxpipe.viz.tables import table
from fxpipe.viz.units import seconds_text

_HEADERS = ("rank", "", "busy", "bubble", "imbalance", "waiting", "transfer", "overhead")


@dataclass(frozen=True, slots=True)
class Comparison:
    """Where the ranks' time went in two timelines of the same step; ``str`` is a table.

    Attributes:
        measured: per rank.
        predicted: per rank.
    """

    measured: tuple[RankTimes, ...]
    predicted: tuple[RankTimes, ...]

    def __str__(self) -> str:
        rows = []
        for rank, (measured, predicted) in enumerate(
            zip(self.measured, self.predicted, strict=True)
        ):
            rows.append((str(rank), "measured", *_cells(measured, self.measured)))
            rows.append(("", "predicted", *_cells(predicted, self.predicted)))
        right = set(_HEADERS) - {""}
        return "\n".join([*self._head(), "", table(_HEADERS, rows, right=right)])

    def _head(self) -> Iterator[str]:
        yield f"measured   {_facts(self.measured)}"
        yield f"predicted  {_facts(self.predicted)}"
        if predicted := _step(self.predicted):
            yield f"measured / predicted: {_step(self.measured) / predicted:.2f}"


def compare(
    measured: Timeline,
    predicted: Timeline,
    graph: StageGraph,
    schedule: Schedule | None = None,
) -> Comparison:
    """A measured step beside a predicted one.

    Args:
        measured: what ran: `fxpipe.StepResult.timeline`.
        predicted: what was expected of as many ranks: `fxpipe.Pipeline.predict`.
        graph: the stages and the values between them.
        schedule: of both; knows the fused cells, if there are any.
    """
    return Comparison(rank_times(measured, graph, schedule), rank_times(predicted, graph, schedule))


def imbalance(times: RankTimes, ranks: Sequence[RankTimes]) -> float:
    """A rank's busy time over the mean of all ranks': 1.0 is balanced."""
    mean = fmean(one.busy for one in ranks)
    return times.busy / mean if mean else 1.0


def _step(ranks: Sequence[RankTimes]) -> float:
    return max((times.total for times in ranks), default=0.0)


def _facts(ranks: Sequence[RankTimes]) -> str:
    """The step, and its bubble by both conventions."""
    total = sum(times.total for times in ranks)
    busy = sum(times.busy for times in ranks)
    fraction = 1.0 - busy / total if total else 0.0
    ratio = total / busy - 1.0 if busy else 0.0
    return (
        f"step {seconds_text(_step(ranks))}, "
        f"bubble {fraction:.1%} of the total ({ratio:.1%} of ideal)"
    )


def _cells(times: RankTimes, ranks: Sequence[RankTimes]) -> tuple[str, ...]:
    return (
        seconds_text(times.busy),
        f"{times.bubble:.1%}",
        f"{imbalance(times, ranks):.2f}",
        seconds_text(times.waiting),
        seconds_text(times.transfer),
        seconds_text(times.overhead),
    )
