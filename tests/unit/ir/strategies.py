"""Hypothesis strategies of the values between the compiler's steps. None of them needs torch."""

from __future__ import annotations

from hypothesis import strategies as st

from fxpipe.ir.action import (
    Action,
    Cell,
    Compute,
    Direction,
    Fused,
    Kind,
    Payload,
    Transfer,
    Update,
)
from fxpipe.ir.capture import LeafReport
from fxpipe.ir.cluster import Cluster
from fxpipe.ir.cost import CostProfile, NodeCost, StageCost
from fxpipe.ir.findings import (
    CrossingFinding,
    Fate,
    Findings,
    GuardFinding,
    InputFinding,
    SpanFinding,
    UnitFinding,
)
from fxpipe.ir.plan import NOWHERE, PartitionPlan
from fxpipe.ir.schedule import Schedule
from fxpipe.ir.spec import Opaque, TensorSpec, ValueSpec
from fxpipe.ir.stage import HOST, Edge, StageGraph
from fxpipe.ir.timeline import Span, Timeline

names = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)
seconds = st.floats(0, 1e3, allow_nan=False)
nbytes = st.integers(0, 2**40)


@st.composite
def tensors(draw: st.DrawFn) -> TensorSpec:
    shape = tuple(draw(st.lists(st.integers(0, 9), max_size=3)))
    dtype = draw(st.sampled_from(["float32", "bfloat16", "int64", "bool"]))
    return TensorSpec(shape, dtype, draw(st.booleans()) and dtype.endswith(("32", "16")))


def specs() -> st.SearchStrategy[ValueSpec]:
    """Any nested value."""
    leaves = st.one_of(
        tensors(),
        st.builds(Opaque, names),
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False),
        st.complex_numbers(allow_nan=False),
        st.text(max_size=5),
    )
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3).map(tuple), st.dictionaries(names, inner, max_size=3)
        ),
        max_leaves=5,
    )


@st.composite
def stage_graphs(draw: st.DrawFn, stages: int | None = None) -> StageGraph:
    """Any edges between stages that go forward: neighbours left out, portals, several readers."""
    num = draw(st.integers(1, 8)) if stages is None else stages
    readers = st.lists(st.integers(0, num - 1), min_size=1, unique=True).map(sorted).map(tuple)
    inputs = draw(st.lists(st.tuples(readers, tensors()), max_size=2))
    edges = []
    for producer in range(num - 1):
        later = st.lists(st.integers(producer + 1, num - 1), min_size=1, unique=True).map(sorted)
        for index, consumers in enumerate(draw(st.lists(later, max_size=2))):
            spec = draw(tensors())
            edges.append(Edge(f"v{producer}_{index}", producer, tuple(consumers), spec))
    return StageGraph(
        num,
        tuple(Edge(f"in{i}", HOST, consumers, spec) for i, (consumers, spec) in enumerate(inputs)),
        tuple(edges),
        ("y",),
    )


@st.composite
def saved_graphs(draw: st.DrawFn) -> StageGraph:
    """Stage graphs with any specs, outputs and constants."""
    graph = draw(stage_graphs())
    edges = tuple(Edge(e.value, e.producer, e.consumers, draw(specs())) for e in graph.edges)
    outputs = tuple(draw(st.lists(st.one_of(st.none(), names), max_size=4)))
    constants = {at: draw(specs()) for at, name in enumerate(outputs) if name is None}
    return StageGraph(graph.num_stages, graph.inputs, edges, outputs, constants)


@st.composite
def plans(draw: st.DrawFn) -> PartitionPlan:
    nodes = draw(st.lists(names, unique=True, max_size=12))
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(nodes) - 1)), max_size=4)))
    cuts = [cut for cut in cuts if cut < len(nodes)]
    stages = {name: sum(cut <= at for cut in cuts) for at, name in enumerate(nodes)}
    anchors = draw(st.dictionaries(names, st.integers(0, 5), max_size=3))
    starts = [nodes[cut] for cut in cuts]
    idle = [len(cuts) + 1 + n for n in range(draw(st.integers(0, 2)))] if nodes else []
    starts += [NOWHERE for _ in idle]
    return PartitionPlan(stages, draw(names), tuple(starts), anchors, tuple(idle))


node_costs = st.builds(NodeCost, seconds, seconds, seconds, nbytes, nbytes, nbytes)

profiles = st.builds(
    CostProfile,
    st.dictionaries(names, node_costs, max_size=6),
    st.sampled_from(["measure", "estimate"]),
    st.integers(1, 64),
    names,
    st.dictionaries(names, nbytes, max_size=6),
)

clusters = st.builds(
    Cluster,
    st.integers(1, 8),
    seconds,
    seconds,
    st.one_of(st.none(), nbytes),
    st.lists(st.floats(0.1, 1.0), min_size=1, max_size=4).map(tuple),
)

computes = st.builds(Compute, st.sampled_from(list(Kind)), st.integers(0, 9), st.integers(0, 9))

cells: st.SearchStrategy[Cell] = st.one_of(
    computes,
    st.builds(Fused, st.lists(computes, min_size=2, max_size=3).map(tuple)),
    st.builds(Update, st.integers(0, 9)),
)

schedules = st.builds(
    Schedule, st.lists(st.lists(cells).map(tuple)).map(tuple), names, st.integers(1, 2)
)

actions: st.SearchStrategy[Action] = st.one_of(
    computes,
    st.builds(Update, st.integers(0, 9)),
    st.builds(
        Transfer,
        st.sampled_from(list(Direction)),
        st.sampled_from(list(Payload)),
        names,
        st.integers(0, 9),
        st.integers(0, 9),
        st.integers(0, 9),
    ),
)

timelines = st.builds(
    Timeline,
    st.lists(st.builds(Span, st.integers(0, 4), actions, seconds, seconds)).map(tuple),
    st.sampled_from(["simulate", "run"]),
    st.lists(nbytes, max_size=4).map(tuple),
)


@st.composite
def stage_costs(draw: st.DrawFn, stages: int) -> list[StageCost]:
    """A cost per stage, in whole seconds so that sums are exact."""
    whole = st.integers(1, 9).map(float)
    costs = []
    for _ in range(stages):
        weight = draw(whole)
        backward = weight + draw(whole)
        costs.append(StageCost(draw(whole), backward, weight, draw(st.integers(0, 9))))
    return costs


@st.composite
def counts(draw: st.DrawFn) -> tuple[int, int, int]:
    """(stages, ranks, micro-batches) that a schedule can have."""
    ranks = draw(st.integers(1, 4))
    return draw(st.integers(ranks, 3 * ranks)), ranks, draw(st.integers(1, 9))


def _few(of: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(of, max_size=3).map(tuple)


_stages = _few(st.integers(0, 7))
findings = st.builds(
    Findings,
    names,
    names,
    names,
    st.integers(0, 99),
    inputs=_few(
        st.builds(
            InputFinding,
            names,
            names,
            st.none() | st.integers(0, 3),
            _few(st.tuples(st.integers(0, 3), names)),
            st.booleans(),
        )
    ),
    spans=_few(
        st.builds(
            SpanFinding,
            names,
            st.integers(0, 3),
            names,
            st.none() | st.integers(0, 9),
            st.integers(0, 9),
            st.none() | seconds,
            st.none() | st.sampled_from(Fate),
            _stages,
            names,
        )
    ),
    leaves=_few(st.builds(LeafReport, *[names] * 6)),
    guards=_few(st.builds(GuardFinding, *[names] * 4, _few(names), _few(names), st.none() | names)),
    crossings=_few(
        st.builds(CrossingFinding, *[names] * 4, st.none() | st.integers(0, 7), _stages)
    ),
    legal_cuts=st.integers(0, 99),
    largest=st.none()
    | st.builds(UnitFinding, names, names, st.integers(1, 9), names, st.none() | seconds, names),
)
