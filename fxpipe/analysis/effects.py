"""Which nodes change state, and which draw random numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch.fx

    from fxpipe.ir.capture import Capture


@dataclass(frozen=True)
class Effects:
    """The nodes of a capture that are not plain functions of their inputs.

    Attributes:
        mutating: names of the nodes that write into a storage or a buffer, in recorded order.
        random: names of the nodes that draw random numbers, in recorded order.
        buffers: name of a buffer → the nodes that change it, in recorded order.
    """

    mutating: tuple[str, ...]
    random: tuple[str, ...]
    buffers: Mapping[str, tuple[str, ...]]


def effects(capture: Capture) -> Effects:
    """The nodes that mutate or draw, and the buffers the model's forward changes."""
    body = capture.body
    buffers: dict[str, list[str]] = {}
    for node in body:
        for name in changed_buffers(node):
            buffers.setdefault(name, []).append(node.name)
    return Effects(
        mutating=tuple(node.name for node in body if is_mutating(node)),
        random=tuple(node.name for node in body if is_random(node)),
        buffers={name: tuple(nodes) for name, nodes in buffers.items()},
    )


def is_random(node: torch.fx.Node) -> bool:
    """Whether the node draws random numbers."""
    return bool(node.meta.get("draws", 0))


def is_mutating(node: torch.fx.Node) -> bool:
    """Whether the node writes into memory that existed before it ran."""
    return bool(written_storages(node) or changed_buffers(node))


def storages(node: torch.fx.Node) -> tuple[int, ...]:
    """Ids of the storages the node's value lives in."""
    found: tuple[int, ...] = node.meta.get("storages", ())
    return found


def written_storages(node: torch.fx.Node) -> tuple[int, ...]:
    """Ids of the storages the node writes into."""
    found: tuple[int, ...] = node.meta.get("mutates", ())
    return found


def changed_buffers(node: torch.fx.Node) -> tuple[str, ...]:
    """Names of the model's buffers the node changes."""
    found: tuple[str, ...] = node.meta.get("buffers", ())
    return found


def training_buffers(node: torch.fx.Node) -> tuple[str, ...]:
    """Names of the model's buffers the node changes, or, recorded in evaluation, would in training."""
    found: tuple[str, ...] = node.meta.get("statistics", ())
    return (*changed_buffers(node), *found)
