"""Random programs of streams, events, copies of one block and host threads' waits, against brute force.

Brute force: every step is a node of a graph with an edge for each order that the device guarantees;
two accesses of one block, one of them a write, are a hazard if neither can reach the other.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import networkx as nx
import pytest
import torch

from tests.virtual.accelerator import VirtualAccelerator
from tests.virtual.hazards import Kind

STREAMS, BLOCKS, EVENTS, STEPS = 4, 3, 4, 20


@dataclass(frozen=True)
class Step:
    """``do`` is read, write, record, wait or host-wait; what it is done to depends on that."""

    do: str
    stream: int = 0
    block: int = 0
    event: int = 0


def random_program(seed: int) -> list[Step]:
    draw = random.Random(seed)
    streams, steps = draw.randint(1, STREAMS), draw.randint(3, STEPS)
    return [
        Step(
            draw.choices(("read", "write", "record", "wait", "host-wait"), weights=(6, 4, 5, 5, 1))[
                0
            ],
            draw.randrange(streams),
            draw.randrange(BLOCKS),
            draw.randrange(EVENTS),
        )
        for _ in range(steps)
    ]


def brute_force(program: list[Step]) -> tuple[int, int, int]:
    """How many reads, writes and waits are wrong."""
    order, wrong_waits = guaranteed_order(program)
    wrong = {"read": 0, "write": 0}
    for number, step in enumerate(program):
        if step.do in wrong:
            unordered = _rivals(program, number) - nx.ancestors(order, number)
            wrong[step.do] += bool(unordered)
    return wrong["read"], wrong["write"], wrong_waits


def guaranteed_order(program: list[Step]) -> tuple[nx.DiGraph, int]:
    """The graph of the steps, and how many waits are for an event that is not recorded."""
    order = nx.DiGraph()
    last: dict[object, int] = {}
    recorded: dict[int, int] = {}
    wrong_waits = 0
    for number, step in enumerate(program):
        order.add_node(number)
        mine = "host" if step.do == "host-wait" else step.stream
        before = [last.get(mine), last.get("host")]
        if step.do in ("wait", "host-wait"):
            before.append(recorded.get(step.event))
            wrong_waits += step.event not in recorded
        if step.do == "record":
            recorded[step.event] = number
        order.add_edges_from((earlier, number) for earlier in before if earlier is not None)
        last[mine] = number
    return order, wrong_waits


def _rivals(program: list[Step], number: int) -> set[int]:
    """The last write of the block before a step and, if the step writes, the reads since then."""
    block, rivals = program[number].block, set()
    for earlier in range(number - 1, -1, -1):
        step = program[earlier]
        if step.do in ("read", "write") and step.block == block:
            if step.do == "write":
                return rivals | {earlier}
            if program[number].do == "write":
                rivals.add(earlier)
    return rivals


def virtual(program: list[Step]) -> tuple[int, int, int]:
    """The same counts, as the virtual accelerator finds them."""
    accelerator = VirtualAccelerator(1)
    device = accelerator.devices[0]
    streams = [accelerator.open(device) for _ in range(STREAMS)]
    blocks = [torch.zeros(2) for _ in range(BLOCKS)]
    with accelerator.watch():
        for block in blocks:
            accelerator.memory_blocks.allocate(block, device, streams[0])
        events: dict[int, object] = {}
        wrong = {"read": 0, "write": 0, "wait": 0, "host-wait": 0, "record": 0}
        for step in program:
            before = sum(accelerator.report.hazards.values())
            _perform(accelerator, streams, blocks, events, step)
            wrong[step.do] += sum(accelerator.report.hazards.values()) > before
    assert wrong["record"] == 0
    return wrong["read"], wrong["write"], wrong["wait"] + wrong["host-wait"]


def _perform(accelerator, streams, blocks, events, step) -> None:
    stream = streams[step.stream]
    match step.do:
        case "read":
            with accelerator.use(stream):
                torch.neg(blocks[step.block])
        case "write":
            with accelerator.use(stream):
                blocks[step.block].fill_(1.0)
        case "record":
            events[step.event] = accelerator.record(stream)
        case "wait":
            accelerator.wait(stream, events.get(step.event, accelerator.event()))
        case "host-wait":
            accelerator.host_wait(events.get(step.event, accelerator.event()))


@pytest.mark.parametrize("block", range(20))
def test_agrees_with_reachability(block: int) -> None:
    found = set()
    for seed in range(block * 25, block * 25 + 25):
        program = random_program(seed)
        expected = brute_force(program)
        assert virtual(program) == expected, f"seed {seed}: {program}"
        found.add(tuple(count > 0 for count in expected))
    assert len(found) > 3  # right programs and wrong ones were among them


def test_a_program_without_hazards() -> None:
    program = [
        Step("write", stream=0),
        Step("record", stream=0),
        Step("wait", stream=1),
        Step("read", stream=1),
        Step("record", stream=1, event=1),
        Step("wait", stream=0, event=1),
        Step("write", stream=0),
    ]
    assert brute_force(program) == virtual(program) == (0, 0, 0)


def test_the_kinds_are_told_apart() -> None:
    accelerator = VirtualAccelerator(1)
    streams = [accelerator.open(accelerator.devices[0]) for _ in range(2)]
    with accelerator.watch():
        block = torch.zeros(2)
        accelerator.memory_blocks.allocate(block, accelerator.devices[0], streams[0])
        with accelerator.use(streams[0]):
            block.add_(1)
        with accelerator.use(streams[1]):
            block.neg()
        assert accelerator.report.kinds == {Kind.READ_BEFORE_WRITE}
        with accelerator.use(streams[0]):
            block.add_(1)
    assert accelerator.report.kinds == {Kind.READ_BEFORE_WRITE, Kind.WRITE_BEFORE_READ}
