"""The orders of torch.distributed.pipelining, computed by its own code without a process group."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from torch.distributed.pipelining import schedules as torch_schedules
from torch.distributed.pipelining.schedules import _Action

from fxpipe.ir.schedule import Schedule
from fxpipe.schedules.dualpipe_v import dualpipe_v
from fxpipe.schedules.forward_only import forward_only
from fxpipe.schedules.gpipe import gpipe
from fxpipe.schedules.interleaved_1f1b import interleaved_1f1b
from fxpipe.schedules.interleaved_zb import interleaved_zb
from fxpipe.schedules.looped_bfs import looped_bfs
from fxpipe.schedules.one_f_one_b import one_f_one_b
from fxpipe.schedules.zb_v import zb_v

SIZES = [(p, m) for p in (1, 2, 3, 4, 6, 8) for m in (1, 2, 3, 4, 6, 8, 12, 13, 24, 32)]


def _several(name: str, ranks: int, stages_per_rank: int, micro_batches: int) -> list[list[str]]:
    """torch's order for several stages per rank."""
    schedule = object.__new__(getattr(torch_schedules, name))
    schedule.pp_group_size = ranks
    schedule.n_local_stages = stages_per_rank
    schedule.num_stages = schedule._num_stages = ranks * stages_per_rank
    schedule._stages = [None] * stages_per_rank
    schedule._n_microbatches = micro_batches
    schedule.number_of_rounds = max(1, micro_batches // ranks)
    schedule.microbatches_per_round = micro_batches // schedule.number_of_rounds
    return [_words(schedule._calculate_single_rank_operations(rank)) for rank in range(ranks)]


def _one(name: str, ranks: int, micro_batches: int) -> list[list[str]]:
    """torch's order for one stage per rank."""
    schedule = object.__new__(getattr(torch_schedules, name))
    schedule._num_stages, schedule._n_microbatches = ranks, micro_batches
    order = schedule._get_pipeline_order()
    return [_words(order[rank]) for rank in range(ranks)]


def _run(name: str, rank: int, ranks: int, micro_batches: int) -> list[str]:
    """What a rank with one stage does in torch's loop, its stage replaced by one that takes notes."""
    notes: list[str] = []

    def note(kind: str) -> Callable[..., None]:
        return lambda micro_batch, *rest, **more: notes.append(f"{rank}{kind}{micro_batch}")

    def nothing(*rest: object, **more: object) -> list[object]:
        return []

    hooks = ("get_fwd_recv_ops", "get_fwd_send_ops", "get_bwd_recv_ops", "get_bwd_send_ops")
    stage = SimpleNamespace(
        stage_index=rank,
        forward_one_chunk=note("F"),
        backward_one_chunk=note("B"),
        perform_reduce_grad=nothing,
        **dict.fromkeys(hooks, nothing),
    )
    schedule = object.__new__(getattr(torch_schedules, name))
    schedule._num_stages, schedule._n_microbatches, schedule._stage = ranks, micro_batches, stage
    schedule.scale_grads = False
    schedule._check_inputs = lambda *given: ([()] * micro_batches, [{}] * micro_batches)
    for hook in ("_initialize_stage", "_maybe_compute_loss", "_maybe_get_loss", "_update_losses"):
        setattr(schedule, hook, nothing)
    schedule._step_microbatches()
    return notes


def _words(actions: list[_Action | None]) -> list[str]:
    """Computations; gradients between data-parallel replicas are not the schedule's business here."""
    words = [str(action) for action in actions if action is not None]
    return [word for word in words if "REDUCE_GRAD" not in word]


def _ours(schedule: Schedule) -> list[list[str]]:
    return [[str(cell) for cell in cells] for cells in schedule.ranks]


@pytest.mark.parametrize(("p", "m"), SIZES)
@pytest.mark.parametrize("v", [1, 2, 3])
def test_interleaved(p: int, m: int, v: int) -> None:
    """Where torch has an order: it wants the number of rounds to divide the micro-batches."""
    if m % max(1, m // p) == 0:
        expected = _several("ScheduleInterleaved1F1B", p, v, m)
        assert _ours(interleaved_1f1b(p * v, p, m)) == expected
        expected = _several("ScheduleInterleavedZeroBubble", p, v, m)
        assert _ours(interleaved_zb(p * v, p, m)) == expected


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_two_stages_in_a_v(p: int, m: int) -> None:
    assert _ours(zb_v(2 * p, p, m)) == _several("ScheduleZBVZeroBubble", p, 2, m)
    if m >= 2 * p:
        assert _ours(dualpipe_v(2 * p, p, m)) == _several("ScheduleDualPipeV", p, 2, m)


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_gpipe(p: int, m: int) -> None:
    assert _ours(gpipe(p, p, m)) == _one("ScheduleGPipe", p, m)


@pytest.mark.parametrize(("p", "m"), SIZES)
@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("ScheduleGPipe", gpipe),
        ("Schedule1F1B", one_f_one_b),
        ("_ScheduleForwardOnly", forward_only),
    ],
)
def test_what_torch_runs_with_one_stage_per_rank(
    name: str, ours: Callable[[int, int, int], Schedule], p: int, m: int
) -> None:
    """On every rank, the last one included, and with fewer micro-batches than ranks, too."""
    assert _ours(ours(p, p, m)) == [_run(name, rank, p, m) for rank in range(p)]


@pytest.mark.parametrize(("p", "m"), [(p, m) for p, m in SIZES if m >= p])
def test_1f1b_but_for_the_last_rank(p: int, m: int) -> None:
    """torch draws its 1F1B from a second description of it, which is wrong where no warm-up is.

    There, on the last rank, it leaves micro-batch 0's forward out and adds one that is not there. The
    loop that torch runs does what ours says: see above.
    """
    ours, theirs = _ours(one_f_one_b(p, p, m)), _one("Schedule1F1B", p, m)
    assert ours[:-1] == theirs[:-1]
    assert theirs[-1] == [
        word for at in range(m) for word in (f"{p - 1}F{at + 1}", f"{p - 1}B{at}")
    ]
    assert ours[-1] == [word for at in range(m) for word in (f"{p - 1}F{at}", f"{p - 1}B{at}")]


@pytest.mark.parametrize(("p", "m"), SIZES)
@pytest.mark.parametrize("v", [1, 2, 3])
def test_looped_bfs_but_for_descending_backwards(p: int, m: int, v: int) -> None:
    """torch takes the backwards of a stage last micro-batch first, and so turns sums around."""
    ours, theirs = _ours(looped_bfs(p * v, p, m)), _several("ScheduleLoopedBFS", p, v, m)
    for own, other in zip(ours, theirs, strict=True):
        half = v * m
        assert own[:half] == other[:half]
        turned = [other[half + v_at : half + v_at + m][::-1] for v_at in range(0, half, m)]
        assert own[half:] == [word for stage in turned for word in stage]
