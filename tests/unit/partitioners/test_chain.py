import random
from collections.abc import Sequence
from itertools import combinations

import pytest

from fxpipe.partitioners.chain import SLACK, bottleneck, solve, stage_seconds
from fxpipe.partitioners.rows import Chain, Traffic
from tests.block_partition import block_partition, heaviest_block


def sizes(cuts: Sequence[int], total: int) -> list[int]:
    ends = [*cuts, total]
    return [end - start for start, end in zip([0, *cuts], ends, strict=True)]


def solved(chain: Chain, stages: int) -> tuple[int, ...]:
    cuts = solve(chain, stages)
    assert cuts is not None
    return cuts


def seconds_by_definition(chain: Chain, cuts: Sequence[int]) -> list[float]:
    """Stage costs counted value by value and stage by stage."""
    ends = [*cuts, len(chain.work)]
    stage_of = [sum(i >= cut for cut in cuts) for i in range(len(chain.work))]
    total = [float(sum(chain.work[a:b])) for a, b in zip([0, *cuts], ends, strict=True)]
    for value in chain.traffic:
        home = stage_of[value.made]
        readers = sorted({stage_of[r] for r in value.reads} - {home})
        for reader in readers:  # straight from the producer
            total[reader] += value.seconds
        if value.comes_back:  # down the chain of readers
            for holder in [home, *readers][: len(readers)]:
                total[holder] += value.seconds
    return total


def best_by_trying(chain: Chain, stages: int) -> float:
    places = range(1, len(chain.work)) if chain.cuts is None else chain.cuts
    return min(max(seconds_by_definition(chain, cuts)) for cuts in combinations(places, stages - 1))


def random_chain(seed: int) -> tuple[Chain, int]:
    draw = random.Random(seed)
    size = draw.randint(1, 9)
    places = [i for i in range(1, size) if draw.random() < 0.8]
    traffic = []
    for made in range(size - 1):
        count = draw.randint(1, 3)
        reads = sorted({draw.randint(made + 1, size - 1) for _ in range(count)})
        traffic.append(Traffic(made, tuple(reads), draw.choice([0, 0.5, 2]), draw.random() < 0.8))
    work = [draw.choice([0.0, 1.0, draw.random() * 4]) for _ in range(size)]
    costs = {i: float(draw.randint(0, 3)) for i in places if draw.random() < 0.5}
    return Chain(work, places, traffic, costs), draw.randint(1, len(places) + 1)


@pytest.mark.parametrize("seed", range(150))
def test_no_partition_is_better(seed: int) -> None:
    chain, stages = random_chain(seed)
    plain = Chain(chain.work, chain.cuts, chain.traffic)
    best = best_by_trying(plain, stages)
    assert bottleneck(plain, solved(plain, stages)) == pytest.approx(best)
    assert bottleneck(chain, solved(chain, stages)) <= best * (1 + SLACK) + 1e-9


@pytest.mark.parametrize("seed", range(50))
def test_traffic_is_priced_per_receiving_stage(seed: int) -> None:
    chain, stages = random_chain(seed)
    cuts = solved(chain, stages)
    assert stage_seconds(chain, cuts) == pytest.approx(seconds_by_definition(chain, cuts))


@pytest.mark.parametrize(
    ("count", "blocks", "peer", "optimum"),
    [(10, 4, [2, 2, 2, 4], 3), (11, 4, [2, 2, 2, 5], 3), (15, 8, [1] * 7 + [8], 2)],
)
def test_equal_layers_on_which_block_partition_fails(
    count: int, blocks: int, peer: list[int], optimum: int
) -> None:
    costs = [1.0] * count
    assert block_partition(costs, blocks) == peer
    ours = sizes(solved(Chain(costs), blocks), count)
    assert max(ours) == optimum < max(peer)


def test_random_sequences_block_partition_is_often_worse_and_never_better() -> None:
    draw = random.Random(0)
    better = 0
    for _ in range(200):
        costs = [draw.random() for _ in range(draw.randint(8, 40))]
        blocks = draw.choice([2, 4, 8])
        peer = heaviest_block(costs, block_partition(costs, blocks))
        ours = bottleneck(Chain(costs), solved(Chain(costs), blocks))
        assert ours <= peer * (1 + 1e-9)
        better += ours < peer * (1 - 1e-9)
    assert better > 80


def test_equal_bottlenecks_are_made_even() -> None:
    # 13 equal items on 4 stages: 4 is the optimum, and 4 4 4 1 would be one too.
    assert sorted(sizes(solved(Chain([1.0] * 13), 4), 13)) == [3, 3, 3, 4]


def test_equal_bottlenecks_take_the_cut_that_less_crosses() -> None:
    thin, thick = Traffic(0, (1,), 0.2), Traffic(1, (2,), 0.3)
    chain = Chain([2.0, 0.1, 2.0, 9.0], traffic=[thin, thick, Traffic(2, (3,), 0.1)])
    assert solved(chain, 3) == (1, 3)


def test_cheap_cuts_are_worth_a_hundredth_but_no_more() -> None:
    def cut(extra: float) -> tuple[int, ...]:
        work = [10.0, extra, 10.0, 0.0]
        return solved(Chain(work, cuts=[1, 2], cut_costs={1: 2.0, 2: 1.0}), 2)

    assert cut(0.0) == (2,)
    assert cut(0.09) == (2,)
    lopsided = Chain([10.0, 0.3, 9.8], cuts=[1, 2], cut_costs={1: 2.0, 2: 1.0})
    assert solved(lopsided, 2) == (1,)


def test_no_slack_is_used_where_cuts_cost_alike() -> None:
    work = [10.0, 0.05, 9.99]
    costs = {1: 1.0, 2: 1.0}
    assert solved(Chain(work, cut_costs=costs), 2) == solved(Chain(work), 2)


def test_every_stage_gets_a_solid_item_where_possible() -> None:
    work = [5.0, 0.0, 0.0, 5.0, 0.0, 1.0]
    solid = [cost > 0 for cost in work]
    cuts = solved(Chain(work, solid=solid), 3)
    assert all(any(solid[a:b]) for a, b in zip([0, *cuts], [*cuts, 6], strict=True))
    assert solve(Chain(work, solid=solid), 5) is not None  # more stages than solid items


def test_a_heavy_item_does_not_hide_a_solution_with_solid_stages() -> None:
    # The quick guess puts the two zeros alone; every solid partition is heavier than its bound.
    chain = Chain([1.0, 0.0, 1.0], cuts=[1, 2], solid=[True, False, False])
    assert len(solved(chain, 3)) == 2


@pytest.mark.parametrize(
    ("chain", "stages"),
    [(Chain([1.0, 1.0]), 3), (Chain([1.0] * 5, cuts=[2]), 3), (Chain([1.0]), 0), (Chain([]), 1)],
)
def test_too_few_places_give_nothing(chain: Chain, stages: int) -> None:
    assert solve(chain, stages) is None


def test_one_stage_needs_no_cut() -> None:
    assert solve(Chain([1.0, 2.0]), 1) == ()


def test_costs_of_nothing_are_fine() -> None:
    assert len(solved(Chain([0.0] * 6), 3)) == 2


def test_the_result_is_the_same_every_time() -> None:
    chain, stages = random_chain(7)
    assert len({solve(chain, stages) for _ in range(3)}) == 1
