"""A capture with its costs as a chain: work per node, traffic per value, what each cut divides."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from fxpipe import ops
from fxpipe.analysis.cuts import legal_cuts
from fxpipe.analysis.effects import is_mutating, storages
from fxpipe.analysis.liveness import lifetimes
from fxpipe.ir.cluster import Cluster
from fxpipe.partitioners.rows import Chain, Traffic

if TYPE_CHECKING:
    import torch.fx

    from fxpipe.ir.capture import Capture
    from fxpipe.ir.cost import CostProfile

LINK: Final = Cluster(ranks=1, bandwidth=64e9)
"""The link that is assumed where no cluster is given: 64 GB/s, as a PCIe 5 bus has."""


def chain_of(
    capture: Capture,
    costs: CostProfile,
    cluster: Cluster | None,
    cuts: Sequence[int] | None = None,
) -> Chain:
    """The partition problem of a capture, with the places that `cuts` allows (None: all legal ones).

    The work of a node is its time forward and backward. A value that crosses costs each stage that reads
    it one transfer, and each stage that gets its gradient back another (the gradient has its size);
    values go straight to their readers, so a stage that is passed over pays nothing. Model inputs come
    from the caller under every plan and are left out. A cut costs one for every module call it divides.
    """
    body = capture.body
    link = cluster or LINK
    return Chain(
        work=[costs.nodes[node.name].total for node in body],
        cuts=legal_cuts(capture) if cuts is None else cuts,
        traffic=[
            Traffic(life.made, life.reads, link.transfer_time(life.nbytes), life.differentiable)
            for life in lifetimes(capture)
            if life.made >= 0 and life.reads and life.nbytes
        ],
        cut_costs={cut: float(n) for cut, n in enumerate(divided_calls(capture)) if n},
        solid=[makes_data(node) and costs.nodes[node.name].total > 0 for node in body],
    )


def divided_calls(capture: Capture) -> list[int]:
    """For each position 0 … len(body), how many module calls a cut there would divide.

    A module that decides on values of its data counts twice: called whole it decides for itself, divided
    it can only check that the decision is the recorded one.
    """
    position = {node.name: index for index, node in enumerate(capture.body)}
    decisions = {node.name for node in capture.body if node.target is ops.check_value}
    change = [0] * (len(position) + 2)
    for span in capture.spans:
        inside = [position[name] for name in span.nodes if name in position]
        if span.path and span.fixed is None and inside:
            count = 1 if decisions.isdisjoint(span.nodes) else 2
            change[min(inside) + 1] += count
            change[max(inside) + 1] -= count
    return list(accumulate(change[:-1]))


def makes_data(node: torch.fx.Node) -> bool:
    """Whether a node computes something: no view, no size, no taking apart of another's result."""
    if node.op == "call_module" or is_mutating(node):
        return True
    if node.target in (operator.getitem, getattr):
        return False
    made = set(storages(node))
    given = {storage for source in node.all_input_nodes for storage in storages(source)}
    known = "storages" in node.meta
    return bool(made - given) if known else True
