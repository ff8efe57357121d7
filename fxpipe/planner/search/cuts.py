"""The cuts a search may choose from: a given one, made coarser or finer, or one for every number."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from fxpipe.errors import ScheduleError
from fxpipe.ir.action import Kind
from fxpipe.ir.cost import StageCost, with_reads
from fxpipe.ir.stage import Edge, StageGraph
from fxpipe.planner.search.problem import Cut
from fxpipe.schedules.linear import linear

Costs: TypeAlias = Sequence[StageCost] | Callable[[int], Sequence[StageCost]]
"""Costs of the stages of one cut, or number of stages → costs of the stages of that cut."""

Graphs: TypeAlias = StageGraph | Callable[[int], StageGraph] | None
"""The stage graph of one cut, number of stages → graph, or nothing: every stage reads the one before."""


@dataclass(frozen=True)
class Cuts:
    """The cuts that a search chooses from.

    Attributes:
        cuts: in ascending numbers of stages.
        unit: how many of the units in which their bytes are counted make a byte.
    """

    cuts: tuple[Cut, ...]
    unit: int = 1


def cuts_of(costs: Costs, graph: Graphs, ranks: int, stages_per_rank: Sequence[int]) -> Cuts:
    """The cuts into so many stages per rank, as far as they can be had.

    A cut that is given is taken as it is, too. It gets coarser by merging neighbours, which is exact,
    and finer by dividing every stage into equal parts, which is an estimate (and needs a plain chain).

    Raises:
        ScheduleError: if there is no cut, if one has fewer stages than ranks, or if costs and graph do
            not belong together.
    """
    wanted = sorted({ranks * each for each in stages_per_rank if each > 0})
    if not callable(costs) and len(costs) < ranks:
        raise ScheduleError(
            f"{ranks} ranks for {len(costs)} stages: a rank would have nothing to do"
        )
    if callable(costs):
        made = [_made(costs, graph, stages) for stages in wanted]
        cuts = Cuts(tuple(made))
    else:
        if callable(graph):
            raise ScheduleError("graphs for every number of stages, but costs for one cut only")
        given = Cut(tuple(costs), graph or linear(len(costs)))
        given = given if graph is None else _reading(given)
        cuts = _derived(given, graph is None, sorted({*wanted, len(costs)}))
    if not cuts.cuts:
        raise ScheduleError(f"stages_per_rank is {tuple(stages_per_rank)}: there is nothing to try")
    for cut in cuts.cuts:
        if cut.graph.num_stages != cut.num_stages:
            raise ScheduleError(
                f"costs of {cut.num_stages} stages and a graph of {cut.graph.num_stages}"
            )
    return cuts


def _made(costs: Callable[[int], Sequence[StageCost]], graph: Graphs, stages: int) -> Cut:
    found = tuple(costs(stages))
    if len(found) != stages:
        raise ScheduleError(f"costs of {len(found)} stages where {stages} were asked for")
    if isinstance(graph, StageGraph):
        raise ScheduleError("costs for every number of stages, but the graph of one cut only")
    return _reading(Cut(found, graph(stages))) if graph else Cut(found, linear(stages))


def _reading(cut: Cut) -> Cut:
    """The cut with the bytes that its graph says every stage reads, where the costs do not know."""
    return Cut(with_reads(cut.costs, cut.graph), cut.graph)


def _derived(given: Cut, is_chain: bool, wanted: Sequence[int]) -> Cuts:
    """The cuts that follow from one, bytes in units that divide evenly."""
    have = given.num_stages
    parts = [stages // have for stages in wanted if stages % have == 0 and is_chain]
    unit = math.lcm(*(_unit(cost, count) for cost in given.costs for count in parts))
    given = Cut(tuple(counted(cost, unit) for cost in given.costs), given.graph)
    cuts = []
    for stages in wanted:
        if stages == have:
            cuts.append(given)
        elif stages % have == 0 and is_chain:
            cuts.append(_divided(given, stages // have))
        elif have % stages == 0:
            cuts.append(merged(given, have // stages))
    return Cuts(tuple(cuts), unit)


def _unit(cost: StageCost, parts: int) -> int:
    """How many units a byte has to have for the bytes of a stage to be divided evenly."""
    counts = (cost.saved_bytes, cost.kept_for_weight, cost.parameter_bytes)
    return math.lcm(*(parts // math.gcd(parts, count) for count in counts))


def counted(cost: StageCost, unit: int) -> StageCost:
    """A cost with its bytes in other units."""
    return replace(
        cost,
        saved_bytes=cost.saved_bytes * unit,
        weight_bytes=None if cost.weight_bytes is None else cost.weight_bytes * unit,
        input_bytes=cost.input_bytes * unit,
        parameter_bytes=cost.parameter_bytes * unit,
    )


def _divided(cut: Cut, parts: int) -> Cut:
    """Every stage of a chain in equal parts, each of which reads as much as the whole does."""
    costs = tuple(_part(cost, parts) for cost in cut.costs for _ in range(parts))
    return Cut(costs, linear(len(costs)))


def _part(cost: StageCost, parts: int) -> StageCost:
    return replace(
        cost,
        forward=cost.forward / parts,
        backward=cost.backward / parts,
        weight=cost.weight / parts,
        saved_bytes=cost.saved_bytes // parts,
        parameter_bytes=cost.parameter_bytes // parts,
        weight_bytes=None if cost.weight_bytes is None else cost.weight_bytes // parts,
        recompute=None if cost.recompute is None else cost.recompute / parts,
        update=cost.update / parts,
    )


def merged(cut: Cut, size: int) -> Cut:
    """The cut with each run of `size` stages made one."""
    edges = [_merged_edge(edge, size) for edge in cut.graph.edges]
    inputs = tuple(
        replace(edge, consumers=_stages(edge.consumers, size)) for edge in cut.graph.inputs
    )
    graph = replace(
        cut.graph,
        num_stages=cut.num_stages // size,
        inputs=inputs,
        edges=tuple(edge for edge in edges if edge is not None),
    )
    groups = [range(start, start + size) for start in range(0, cut.num_stages, size)]
    return Cut(tuple(_sum(cut, group) for group in groups), graph)


def _merged_edge(edge: Edge, size: int) -> Edge | None:
    """The edge between merged stages; None if its value stays in one."""
    producer = edge.producer // size
    consumers = tuple(at for at in _stages(edge.consumers, size) if at != producer)
    return replace(edge, producer=producer, consumers=consumers) if consumers else None


def _stages(stages: Sequence[int], size: int) -> tuple[int, ...]:
    return tuple(sorted({stage // size for stage in stages}))


def _sum(cut: Cut, group: range) -> StageCost:
    """The cost of stages that became one, which reads what its first stage and portals bring."""
    costs = [cut.costs[stage] for stage in group]
    later = [
        edge
        for edge in (*cut.graph.inputs, *cut.graph.edges)
        if edge.producer not in group
        and group[0] not in edge.consumers
        and any(stage in group for stage in edge.consumers)
    ]
    return StageCost(
        forward=sum(cost.forward for cost in costs),
        backward=sum(cost.backward for cost in costs),
        weight=sum(cost.weight for cost in costs),
        saved_bytes=sum(cost.saved_bytes for cost in costs),
        parameter_bytes=sum(cost.parameter_bytes for cost in costs),
        weight_bytes=sum(cost.kept_for_weight for cost in costs),
        input_bytes=costs[0].input_bytes + sum(edge.nbytes for edge in later),
        recompute=sum(cost.seconds(Kind.RECOMPUTE) for cost in costs),
        update=sum(cost.update for cost in costs),
    )
