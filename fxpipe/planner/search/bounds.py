"""No schedule of these stages on these ranks is shorter: what a makespan is measured against."""

from __future__ import annotations

from fxpipe.ir.action import Kind
from fxpipe.planner.search.problem import Problem
from fxpipe.planner.search.ways import Ways


def lower_bound(problem: Problem, *, split: bool = True, recompute: bool = False) -> float:
    """Seconds that every legal order of the problem takes at least.

    The largest of, over all ranks:

    - the chain: forward and backward of one micro-batch through all stages, with transfers;
    - head + work + tail: a rank cannot start before a value has come to it, then has all its work, and
      after its last action a gradient goes down the stages before. If backwards are split, that last
      action may be a weight half, which nobody waits for: then either all the work counts and no
      tail, or the tail, but none of the weight halves;
    - head + memory: every activation is kept while its micro-batch goes to the end and comes back. The
      bytes × seconds of all of them have to fit under the rank's limit.

    Where ranks slow each other down, all work takes at least as long as the number of ranks takes for it
    that is fastest together.

    With p equal ranks of v >= 2 stages in a loop or a V, enough memory and free links, that is
    ``m (F + I + W) + (p - 1) F / v``.

    Args:
        problem: stages, ranks, links and limits.
        split: whether backwards may be split.
        recompute: whether other stages than the problem's own may be recomputed as well.
    """
    placement = problem.placement
    copies: dict[tuple[int, ...], list[int]] = {}
    for m in range(problem.micro_batches):
        copies.setdefault(placement.ranks_for(m), []).append(m)
    ways = {ranks: Ways(problem, of[0], split=split) for ranks, of in copies.items()}
    bounds = [min(one.length for one in ways.values())]
    for rank in problem.ranks:
        parts = [
            _Part(problem, stage, one, len(copies[ranks]), split)
            for ranks, one in ways.items()
            for stage, home in enumerate(ranks)
            if home == rank
        ]
        if parts:
            bounds.append(_of_rank(parts, problem.limits[rank], split, recompute))
    if set(problem.cluster.speeds) == {1.0}:
        return max(bounds)
    return max(max(bounds) / max(problem.cluster.speeds), _shared(problem))


def _shared(problem: Problem) -> float:
    """Seconds that all the work takes, if as many ranks as are fastest together share it."""
    costs, cluster = problem.cut.costs, problem.cluster
    work = sum(cost.forward + cost.backward for cost in costs)
    work += sum(costs[stage].seconds(Kind.RECOMPUTE) for stage in problem.recomputed)
    fastest = max(busy * cluster.speed(busy) for busy in range(1, len(problem.ranks) + 1))
    return problem.micro_batches * work / fastest


class _Part:
    """A stage's share of a rank's step.

    Attributes:
        count: micro-batches that go through it.
        head: seconds before its first forward can start.
        tail: seconds after its last backward (input half) until all is over.
        work: seconds of a micro-batch, weight halves left out if they are apart.
        weight: seconds of a micro-batch's weight half, if it is apart.
    """

    def __init__(self, problem: Problem, stage: int, ways: Ways, count: int, split: bool) -> None:
        cost = problem.cut.costs[stage]
        self._cost = cost
        self._recomputed = stage in problem.recomputed
        self._back = Kind.BACKWARD_INPUT if split else Kind.BACKWARD
        self._life = ways.life(stage)
        self.count = count
        self.head = ways.heads[ways.number(Kind.FORWARD, stage)]
        self.tail = ways.tails[ways.number(self._back, stage)]
        self.work = cost.forward + cost.seconds(self._back)
        self.work += cost.seconds(Kind.RECOMPUTE) if self._recomputed else 0.0
        self.weight = cost.weight if split else 0.0

    def kept(self, recompute: bool) -> float:
        """Bytes × seconds for which a micro-batch's activations are kept at least."""
        cost = self._cost
        life = cost.forward + self._life
        late = cost.seconds(Kind.RECOMPUTE) + cost.seconds(self._back)
        again = cost.input_bytes * life + (cost.saved_bytes - cost.input_bytes) * late
        whole = cost.saved_bytes * life
        first = again if self._recomputed else min(again, whole) if recompute else whole
        return first + cost.kept_for_weight * self.weight


def _of_rank(parts: list[_Part], limit: float, split: bool, recompute: bool) -> float:
    head, tail = min(part.head for part in parts), min(part.tail for part in parts)
    work = sum(part.count * part.work for part in parts)
    weight = sum(part.count * part.weight for part in parts)
    kept = sum(part.count * part.kept(recompute) for part in parts)
    return max(
        head + work + tail,
        head + work + weight,
        head + (kept / limit if limit > 0 else 0.0),
    )
