"""Values as JSON text and back, with a kind and a format version.

    {"fxpipe": "Cluster", "version": 1, "value": {"ranks": 2, "latency": 0.0, …}}

The cells of schedules are written as their text (``2F0``, ``2U``), transfers as lists. Tuples,
dicts and tensors in value specs are tagged: ``{"tuple": […]}``, ``{"tensor": ["int8", [8], false]}``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final, TypeAlias, TypeVar, assert_never

from fxpipe.errors import FormatError
from fxpipe.ir.action import (
    Action,
    Compute,
    Direction,
    Fused,
    Payload,
    Transfer,
    Update,
    cell_from_text,
)
from fxpipe.ir.cluster import Cluster
from fxpipe.ir.cost import CostProfile, NodeCost
from fxpipe.ir.findings import Findings, findings_from
from fxpipe.ir.plan import PartitionPlan
from fxpipe.ir.schedule import Schedule
from fxpipe.ir.spec import Opaque, TensorSpec
from fxpipe.ir.stage import Edge, StageGraph
from fxpipe.ir.timeline import Span, Timeline

VERSION: Final = 1
"""Raised whenever an older reader would misunderstand a newer file."""

Saved: TypeAlias = (
    PartitionPlan | CostProfile | Cluster | Schedule | Timeline | StageGraph | Findings
)
"""What can be saved."""

T = TypeVar("T", bound=Saved)


def to_json(value: Saved) -> str:
    """The value as JSON text.

    Raises:
        FormatError: if the value is none of those that are saved, or holds an object that is not.
    """
    codec = _CODECS.get(type(value).__name__)
    if codec is None:
        raise FormatError(f"{type(value).__name__} is not saved; {_known()} are")
    write, _ = codec
    body = {"fxpipe": type(value).__name__, "version": VERSION, "value": write(value)}
    return json.dumps(body, indent=1, ensure_ascii=False) + "\n"


def from_json(text: str, kind: type[T]) -> T:
    """The `kind` that `to_json` wrote, equal to what it was.

    Raises:
        FormatError: if the text is not JSON, of another version, of another kind, or damaged.
    """
    try:
        body = json.loads(text)
    except json.JSONDecodeError as error:
        raise FormatError(f"this is no JSON: {error}") from error
    if not isinstance(body, dict) or "fxpipe" not in body:
        raise FormatError("this JSON was not written by fxpipe: it has no 'fxpipe' entry")
    if body.get("version") != VERSION:
        raise FormatError(
            f"this file has format version {body.get('version')}, this fxpipe reads {VERSION}: "
            "make it again, or use the fxpipe that wrote it"
        )
    if body["fxpipe"] != kind.__name__:
        raise FormatError(f"this file holds a {body['fxpipe']}, not a {kind.__name__}")
    if kind.__name__ not in _CODECS:
        raise FormatError(f"{kind.__name__} is not saved; {_known()} are")
    _, read = _CODECS[kind.__name__]
    try:
        value = read(body["value"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"there is no {error}" if isinstance(error, KeyError) else str(error)
        raise FormatError(f"this {kind.__name__} file is damaged: {what}") from error
    assert isinstance(value, kind)
    return value


def _known() -> str:
    return ", ".join(_CODECS)


# ---- plan, costs, cluster ------------------------------------------------------------------------


def _write_plan(plan: PartitionPlan) -> Any:
    return {
        "stages": dict(plan.stages),
        "fingerprint": plan.fingerprint,
        "starts": list(plan.starts),
        "anchors": dict(plan.anchors),
    } | ({"idle": list(plan.idle)} if plan.idle else {})


def _read_plan(data: Any) -> PartitionPlan:
    return PartitionPlan(
        dict(data["stages"]),
        data["fingerprint"],
        tuple(data["starts"]),
        dict(data["anchors"]),
        tuple(data.get("idle", ())),
    )


def _write_costs(costs: CostProfile) -> Any:
    return {
        "nodes": {name: asdict(cost) for name, cost in costs.nodes.items()},
        "source": costs.source,
        "batch_size": costs.batch_size,
        "fingerprint": costs.fingerprint,
        "parameter_bytes": dict(costs.parameter_bytes),
    }


def _read_costs(data: Any) -> CostProfile:
    return CostProfile(
        {name: NodeCost(**cost) for name, cost in data["nodes"].items()},
        data["source"],
        data["batch_size"],
        data["fingerprint"],
        dict(data["parameter_bytes"]),
    )


def _read_cluster(data: Any) -> Cluster:
    return Cluster(**{**data, "speeds": tuple(data["speeds"])})


# ---- schedule, timeline --------------------------------------------------------------------------


def _write_schedule(schedule: Schedule) -> Any:
    body: dict[str, Any] = {"name": schedule.name}
    if schedule.replicas != 1:
        body["replicas"] = schedule.replicas
    return body | {"ranks": [" ".join(map(str, cells)) for cells in schedule.ranks]}


def _read_schedule(data: Any) -> Schedule:
    rows = (tuple(cell_from_text(word) for word in row.split()) for row in data["ranks"])
    return Schedule(tuple(rows), data["name"], data.get("replicas", 1))


def _write_timeline(timeline: Timeline) -> Any:
    return {
        "spans": [[s.rank, _write_action(s.action), s.start, s.end] for s in timeline.spans],
        "source": timeline.source,
        "peak_bytes": list(timeline.peak_bytes),
    }


def _read_timeline(data: Any) -> Timeline:
    spans = (Span(rank, _read_action(a), start, end) for rank, a, start, end in data["spans"])
    return Timeline(tuple(spans), data["source"], tuple(data["peak_bytes"]))


def _write_action(action: Action) -> Any:
    match action:
        case Compute() | Update():
            return str(action)
        case Transfer():
            return list(asdict(action).values())
        case _:
            assert_never(action)


def _read_action(data: Any) -> Action:
    if isinstance(data, str):
        action = cell_from_text(data)
        if isinstance(action, Fused):
            raise ValueError(f"{data!r} in a timeline: cells are opened there")
        return action
    direction, payload, value, source, target, micro_batch = data
    return Transfer(Direction(direction), Payload(payload), value, source, target, micro_batch)


# ---- stage graph ---------------------------------------------------------------------------------


def _write_graph(graph: StageGraph) -> Any:
    return {
        "num_stages": graph.num_stages,
        "inputs": [_write_edge(edge) for edge in graph.inputs],
        "edges": [_write_edge(edge) for edge in graph.edges],
        "outputs": list(graph.outputs),
        "constants": {str(at): _write_value(value) for at, value in graph.constants.items()},
    }


def _read_graph(data: Any) -> StageGraph:
    return StageGraph(
        data["num_stages"],
        tuple(_read_edge(edge) for edge in data["inputs"]),
        tuple(_read_edge(edge) for edge in data["edges"]),
        tuple(data["outputs"]),
        {int(at): _read_value(value) for at, value in data["constants"].items()},
    )


def _write_edge(edge: Edge) -> Any:
    return [edge.value, edge.producer, list(edge.consumers), _write_value(edge.spec)]


def _read_edge(data: Any) -> Edge:
    value, producer, consumers, spec = data
    return Edge(value, producer, tuple(consumers), _read_value(spec))


def _write_value(value: object) -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case complex():
            return {"complex": [value.real, value.imag]}
        case TensorSpec():
            return {"tensor": [value.dtype, list(value.shape), value.requires_grad]}
        case Opaque():
            return {"opaque": value.type_name}
        case tuple():
            return {"tuple": [_write_value(item) for item in value]}
        case dict():
            return {"dict": [[key, _write_value(item)] for key, item in value.items()]}
        case _:
            raise FormatError(f"a {type(value).__name__} inside a stage graph cannot be saved")


def _read_value(data: Any) -> Any:
    if not isinstance(data, dict):
        return data
    ((tag, body),) = data.items()
    match tag:
        case "complex":
            return complex(*body)
        case "tensor":
            dtype, shape, requires_grad = body
            return TensorSpec(tuple(shape), dtype, requires_grad)
        case "opaque":
            return Opaque(body)
        case "tuple":
            return tuple(_read_value(item) for item in body)
        case "dict":
            return {key: _read_value(item) for key, item in body}
        case _:
            raise ValueError(f"unknown tag {tag!r}")


_CODECS: Final[Mapping[str, tuple[Callable[[Any], Any], Callable[[Any], Saved]]]] = {
    "PartitionPlan": (_write_plan, _read_plan),
    "CostProfile": (_write_costs, _read_costs),
    "Cluster": (asdict, _read_cluster),
    "Schedule": (_write_schedule, _read_schedule),
    "Timeline": (_write_timeline, _read_timeline),
    "StageGraph": (_write_graph, _read_graph),
    "Findings": (asdict, findings_from),
}
