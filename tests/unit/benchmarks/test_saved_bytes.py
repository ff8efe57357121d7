"""Bytes kept for backward, counted on stages whose sizes are known."""

from __future__ import annotations

import torch
from torch import nn

import fxpipe
from benchmarks.saved_bytes import counted

WIDTH, ROWS, CHUNKS = 16, 8, 4
ACTIVATION = ROWS // CHUNKS * WIDTH * 4


def peaks(schedule: str, recompute: str) -> list[int]:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh())
    x = torch.randn(ROWS, WIDTH)
    with fxpipe.compile(
        model,
        devices=["cpu", "cpu"],
        chunks=CHUNKS,
        cuts=["2"],
        example_args=(x,),
        schedule=schedule,
        recompute=recompute,
        backend="inline",
    ) as pipe:
        return counted(
            pipe,
            lambda: pipe.step(x, loss_fn=lambda output, _: output.sum()),
            ignore=(x, *model.parameters()),
        )


def test_gpipe_keeps_every_micro_batch_on_the_first_stage() -> None:
    assert peaks("gpipe", "never")[0] == CHUNKS * ACTIVATION  # what Tanh saves: its output


def test_one_f_one_b_keeps_two_micro_batches_on_the_first_of_two_stages() -> None:
    assert peaks("1f1b", "never")[0] <= 2 * ACTIVATION


def test_recomputation_keeps_what_was_handed_in() -> None:
    first, second = peaks("gpipe", "always")
    assert first <= ACTIVATION  # one micro-batch at a time: the input is the caller's
    assert CHUNKS * ACTIVATION <= second <= (CHUNKS + 2) * ACTIVATION
