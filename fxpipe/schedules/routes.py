"""Which values, and gradients of values, a computation waits for and which it hands on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from fxpipe.ir.action import Kind, Payload
from fxpipe.ir.stage import HOST, StageGraph
from fxpipe.schedules.depend import MAKES, Result

Way: TypeAlias = tuple[Payload, str, int, int]
"""Payload, value, source stage, target stage."""


def routes_in(kind: Kind, stage: int, graph: StageGraph) -> Iterator[Way]:
    """What must come to a stage before it computes."""
    if kind is Kind.FORWARD:
        for edge in graph.reads(stage):
            if edge.producer != HOST:
                yield Payload.ACTIVATION, edge.value, edge.producer, stage
    elif Result.INPUT_GRAD in MAKES[kind]:
        for edge in (*graph.inputs, *graph.edges):
            if edge.is_differentiable and stage in (edge.producer, *edge.consumers):
                later = edge.next_reader(stage)
                if later is not None:
                    yield Payload.GRADIENT, edge.value, later, stage


def routes_out(kind: Kind, stage: int, graph: StageGraph) -> Iterator[Way]:
    """What goes out from a stage after it has computed."""
    if kind is Kind.FORWARD:
        for edge in graph.writes(stage):
            for reader in edge.consumers:
                yield Payload.ACTIVATION, edge.value, stage, reader
    elif Result.INPUT_GRAD in MAKES[kind]:
        for edge in graph.reads(stage):
            holder = edge.previous_holder(stage)
            if edge.is_differentiable and holder != HOST:
                yield Payload.GRADIENT, edge.value, stage, holder
