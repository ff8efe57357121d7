"""`Findings`: what a capture is made of, and what a plan makes of it, for people to read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fxpipe.ir.capture import LeafReport


class Fate(StrEnum):
    """What becomes of a module call in the source of the stages."""

    CALLED = "called"
    """No cut divides it: the user's own module is called."""
    INSIDE = "inside"
    """It belongs to a call, whose module makes it as ever."""
    DIVIDED = "divided"
    """A cut runs through it: its operations are written out in several stages."""
    FLAT = "written out"
    """No cut divides it, but it cannot be called on its own: its operations are written out."""
    EMPTY = "empty"
    """It computes nothing."""


@dataclass(frozen=True, slots=True)
class SpanFinding:
    """A module call that was looked into.

    Attributes:
        path: of the module ("" is the model).
        call: which call of it this is, counted from 0.
        module_class: name of the module's class, without its package; "" if it is not known.
        parent: index of the call around it in `Findings.spans`.
        nodes: nodes it made, inner calls included.
        share: of the cost of all nodes; None if the costs are not known.
        fate: what becomes of it; None without a plan.
        stages: the stages its nodes are in; empty without a plan.
        reason: which cuts divide it, or why it is written out; without a plan, why no plan calls it.
    """

    path: str
    call: int
    module_class: str
    parent: int | None
    nodes: int
    share: float | None = None
    fate: Fate | None = None
    stages: tuple[int, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class GuardFinding:
    """A decision on data that the recording depends on.

    Attributes:
        expression: what is computed, as Python would write it.
        expected: what came out when recorded, as text.
        path: of the module that decides.
        source: the user's line.
        inputs: names of the inputs it depends on.
        buffers: names of the buffers it depends on.
        called: path of the re-rolled module that decides anew in every run; None if none does.
    """

    expression: str
    expected: str
    path: str
    source: str
    inputs: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    called: str | None = None


@dataclass(frozen=True, slots=True)
class CrossingFinding:
    """A value that is no tensor and goes from one stage to another.

    Attributes:
        value: name of the node that makes it.
        text: what it was when recorded, as text.
        path: of the module that makes it.
        source: the user's line; the expression, if fxpipe has added it for the batch size.
        producer: its stage; None without a plan.
        consumers: the stages that read it; without a plan none, and legal cuts lie between its
            making and its last use.
    """

    value: str
    text: str
    path: str
    source: str
    producer: int | None = None
    consumers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class InputFinding:
    """One leaf of the arguments.

    Attributes:
        name: of the leaf.
        text: its dtype and shape, or the constant.
        batch_dim: the dimension cut into micro-batches; None if it is given whole.
        dynamic: further dimensions whose size is free, each with the name of the size.
        is_constant: whether it is no tensor, so that another value is another situation.
    """

    name: str
    text: str
    batch_dim: int | None
    dynamic: tuple[tuple[int, str], ...] = ()
    is_constant: bool = False


@dataclass(frozen=True, slots=True)
class UnitFinding:
    """Nodes that no cut can divide.

    Attributes:
        first: name of the first node.
        last: name of the last one.
        nodes: how many they are.
        path: of the innermost module around all of them.
        share: of the cost of all nodes; None if the costs are not known.
        reason: why no cut is legal in it.
    """

    first: str
    last: str
    nodes: int
    path: str
    share: float | None
    reason: str


@dataclass(frozen=True)
class Findings:
    """What is worth knowing before a model is cut, or of how a plan cuts it.

    Attributes:
        capture: the capture in a line.
        plan: the plan in a line; "" without one.
        costs: where the shares come from, in a line; "" if the costs are not known.
        num_nodes: of the body.
        inputs: the arguments, and which of their dimensions are free.
        spans: the module calls that were looked into, in order of their start.
        leaves: modules that stay whole though they are no layers of torch.nn.
        guards: the decisions on data that are checked ahead of each run.
        crossings: values that are no tensors and go from stage to stage.
        legal_cuts: number of positions where a cut is legal.
        largest: the unit with the largest share of the cost (of the nodes, if it is not known).
    """

    capture: str
    plan: str
    costs: str
    num_nodes: int
    inputs: tuple[InputFinding, ...]
    spans: tuple[SpanFinding, ...]
    leaves: tuple[LeafReport, ...]
    guards: tuple[GuardFinding, ...]
    crossings: tuple[CrossingFinding, ...]
    legal_cuts: int
    largest: UnitFinding | None


def findings_from(data: Mapping[str, Any]) -> Findings:
    """The findings that ``dataclasses.asdict`` took apart, with lists in place of tuples."""
    return Findings(
        capture=data["capture"],
        plan=data["plan"],
        costs=data["costs"],
        num_nodes=data["num_nodes"],
        inputs=tuple(
            InputFinding(**{**each, "dynamic": tuple((dim, name) for dim, name in each["dynamic"])})
            for each in data["inputs"]
        ),
        spans=tuple(_span_from(each) for each in data["spans"]),
        leaves=tuple(LeafReport(**each) for each in data["leaves"]),
        guards=tuple(
            GuardFinding(
                **{**each, "inputs": tuple(each["inputs"]), "buffers": tuple(each["buffers"])}
            )
            for each in data["guards"]
        ),
        crossings=tuple(
            CrossingFinding(**{**each, "consumers": tuple(each["consumers"])})
            for each in data["crossings"]
        ),
        legal_cuts=data["legal_cuts"],
        largest=None if data["largest"] is None else UnitFinding(**data["largest"]),
    )


def _span_from(data: Mapping[str, Any]) -> SpanFinding:
    fate = None if data["fate"] is None else Fate(data["fate"])
    return SpanFinding(**{**data, "fate": fate, "stages": tuple(data["stages"])})
