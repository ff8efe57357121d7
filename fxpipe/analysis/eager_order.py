"""Cuts that change no order in which eager execution sums up the gradients of a tensor.

What returns its argument itself where it has nothing to do (``x.to(dtype)``, dropout in evaluation)
gives one tensor two names. If both cross a cut, the gradients of each are summed up on their own:

    eager             ((a + b) + c)    a: of a reader of x; b, c: of readers of x.float()
    both names cross  a + (b + c)
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import TYPE_CHECKING

from fxpipe.analysis.cuts import Bond, cuts_for_training, uncovered
from fxpipe.analysis.effects import storages
from fxpipe.analysis.liveness import positions
from fxpipe.ir.spec import TensorSpec

if TYPE_CHECKING:
    import torch.fx

    from fxpipe.ir.capture import Capture


def cuts_in_order(capture: Capture) -> tuple[int, ...]:
    """The cuts for training that no two names of one tensor cross, ascending.

    Takes time linear in the graph, and quadratic in the names of one tensor.
    """
    allowed = frozenset(uncovered(len(capture.body), _both_alive(capture)))
    return tuple(cut for cut in cuts_for_training(capture) if cut in allowed)


def _both_alive(capture: Capture) -> Iterator[Bond]:
    """For every two names of a tensor: from where both are there to the last that still reads both."""
    position = positions(capture)
    for names in _names(capture):
        lives = [
            (position.get(node, 0), max((position.get(user, 0) for user in node.users), default=0))
            for node in names
        ]
        for (one, one_read), (other, other_read) in combinations(lives, 2):
            first, last = max(one, other), min(one_read, other_read)
            if first < last:
                yield Bond(first, last, "one tensor has two names")


def _names(capture: Capture) -> list[list[torch.fx.Node]]:
    """The nodes that are one tensor, of each tensor that has several and that autograd follows."""
    first: dict[torch.fx.Node, torch.fx.Node] = {}
    names: dict[torch.fx.Node, list[torch.fx.Node]] = {}
    for node in capture.body:
        same = next((given for given in node.all_input_nodes if _are_same(given, node)), None)
        if same is not None:
            first[node] = first.get(same, same)
            names.setdefault(first[node], [first[node]]).append(node)
    return list(names.values())


def _are_same(one: torch.fx.Node, other: torch.fx.Node) -> bool:
    """Whether two nodes are one tensor, or at least look alike and have the same memory."""
    spec = one.meta.get("spec")
    followed = isinstance(spec, TensorSpec) and spec.requires_grad
    return followed and spec == other.meta.get("spec") and storages(one) == storages(other) != ()
