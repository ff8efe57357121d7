"""What fxpipe makes of an entry of the zoo."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

import fxpipe
from benchmarks.harness import interleave
from benchmarks.zoo.against_eager import evaluated, fresh, switchable
from fxpipe import ops
from fxpipe.analysis.cuts import legal_cuts
from fxpipe.ir.capture import Capture
from fxpipe.ir.cost import CostProfile
from tests.zoo.check import EXAMPLE_ROWS, captured, check, compiled, lines_of, model_of
from tests.zoo.entry import Entry


@dataclass
class Figures:
    """A row of the table.

    Attributes:
        leaves: class and reason of every module that stays whole.
        largest: share of the estimated cost that no cut divides.
        seconds: to capture, without and with verification.
        passes: what verification adds, in forward and backward passes of the model.
        lines: of the longest forward of two stages.
        stages: numbers of stages in which all checks passed, in all modes.
        errors: of checks that did not, by mode and number of stages.
        switches: whether the pipeline follows ``eval()``; None if the modes compute the same.
    """

    nodes: int = 0
    leaves: list[tuple[str, str]] = field(default_factory=list)
    guards: int = 0
    largest: float = 0.0
    seconds: float = 0.0
    seconds_verified: float = 0.0
    passes: float = 0.0
    lines: int = 0
    stages: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    switches: bool | None = None

    @property
    def right(self) -> bool:
        """Whether all that was tried was as in eager execution."""
        return not self.errors


def figures(entry: Entry, rounds: int, stages: Sequence[int]) -> Figures:
    """Trace, cut, run and compare.

    Args:
        entry: of the zoo.
        rounds: measurements of each time.
        stages: numbers of stages to try, as far as the tiny model can be cut.
    """
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found = Figures()
    _measure(found, entry, rounds)
    with compiled(entry, model_of(entry), 2) as pipe:
        capture, costs = captured(pipe), pipe.costs
        assert costs is not None
        found.nodes = len(capture.body)
        found.leaves = [(leaf.module_class, leaf.reason) for leaf in capture.leaves]
        found.guards = sum(node.target is ops.check_value for node in capture.graph.nodes)
        found.largest = largest_share(capture, costs)
        found.lines = max(lines_of(pipe))
    for count in stages:
        if count <= entry.most_stages:
            _check(found, entry, count)
    found.switches = _switches(entry)
    return found


def _check(found: Figures, entry: Entry, count: int) -> None:
    known = len(found.errors)
    for mode in entry.modes:
        try:
            check(entry, mode, count)
        except Exception as error:
            found.errors.append(f"{mode}, {count} stages: {type(error).__name__}: {error}")
    if len(found.errors) == known:
        found.stages.append(count)


def _measure(found: Figures, entry: Entry, rounds: int) -> None:
    model = model_of(entry)
    args, kwargs = entry.batch(EXAMPLE_ROWS, 1)

    # A model may write into what it is given: a cache grows.
    batches = [entry.batch(EXAMPLE_ROWS, 1) for _ in range(rounds + 1)]

    def run() -> None:
        args, kwargs = batches.pop()
        entry.loss(model(*args, **kwargs)).backward()

    times = interleave(
        {
            "plain": lambda: fxpipe.trace(model, args, kwargs, verify=False),
            "verified": lambda: fxpipe.trace(model, args, kwargs),
            "model": run,
        },
        rounds,
    )
    found.seconds, found.seconds_verified = times["plain"].median, times["verified"].median
    found.passes = (found.seconds_verified - found.seconds) / times["model"].median


def largest_share(capture: Capture, costs: CostProfile) -> float:
    """The share of the cost of the dearest run of nodes that no cut divides."""
    names = [node.name for node in capture.body]
    bounds = [0, *legal_cuts(capture), len(names)]
    units = [_seconds(costs, names[begin:end]) for begin, end in itertools.pairwise(bounds)]
    return max(units) / max(sum(units), 1e-30)


def _seconds(costs: CostProfile, names: Sequence[str]) -> float:
    cost = costs.over(names)
    return cost.forward + cost.backward


def _switches(entry: Entry) -> bool | None:
    """Whether a pipeline made in training mode computes in ``eval()`` what the model does."""
    model, eager = switchable(entry), switchable(entry).eval()
    wanted = evaluated(eager, fresh(entry))
    training = evaluated(switchable(entry), fresh(entry))
    if all(map(torch.equal, wanted, training)):
        return None
    with compiled(entry, model, 2) as made, made.replace(chunks=1) as pipe:
        pipe.eval()
        found = evaluated(pipe, fresh(entry))
    return len(found) == len(wanted) and all(map(torch.equal, found, wanted))
