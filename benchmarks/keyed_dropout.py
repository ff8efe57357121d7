"""What keyed random numbers cost: GPT-2 with dropout 0.1, one thread, one stage, one micro-batch."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

import fxpipe
from benchmarks.contenders import intra_op_threads
from benchmarks.harness import Report, arguments, interleave, ratio


def main() -> None:
    options = arguments("keyed against default dropout", rounds=15).parse_args()
    rounds = 3 if options.quick else options.rounds
    report = Report(
        "keyed_dropout",
        "Keyed randomness: GPT-2 on one thread",
        ["attention", "dropout", "eager, default generator", "fxpipe, keyed", "fxpipe / eager"],
        remarks=[
            "One stage, one micro-batch, inline: what is left beside the keys is the runtime's own "
            "cost, shown by the rows without dropout."
        ],
    )
    for attention in ("sdpa", "eager"):
        for dropout in (0.0, 0.1):
            _measure(report, attention, dropout, rounds, options.quick)
    report.write(options.out)


def _measure(report: Report, attention: str, dropout: float, rounds: int, quick: bool) -> None:
    model = _gpt2(attention, dropout, quick)
    tokens = torch.randint(0, 1000, (2, 16) if quick else (8, 128))
    pipe = fxpipe.compile(
        copy.deepcopy(model),
        devices=["cpu"],
        chunks=1,
        example_kwargs={"input_ids": tokens, "labels": tokens},
        backend="inline",
        threads_per_rank=1,
        costs="estimate",
    )
    times = interleave({"eager": _eager(model, tokens), "fxpipe": _keyed(pipe, tokens)}, rounds)
    pipe.close()
    report.add(
        attention,
        dropout,
        times["eager"],
        times["fxpipe"],
        f"{1 / ratio(times['eager'], times['fxpipe']):.3f}",
    )


def _gpt2(attention: str, dropout: float, quick: bool) -> nn.Module:
    config = GPT2Config(
        vocab_size=1000,
        n_positions=128,
        n_embd=32 if quick else 384,
        n_layer=2 if quick else 6,
        n_head=2 if quick else 6,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        use_cache=False,
        attn_implementation=attention,
    )
    return GPT2LMHeadModel(config).train()


def _eager(model: nn.Module, tokens: Tensor) -> Callable[[], None]:
    def step() -> None:
        with intra_op_threads(1):
            model.zero_grad()
            model(input_ids=tokens, labels=tokens).loss.backward()

    return step


def _keyed(pipe: fxpipe.Pipeline, tokens: Tensor) -> Callable[[], None]:
    def step() -> None:
        with intra_op_threads(1):
            pipe.zero_grad()
            pipe.step(input_ids=tokens, labels=tokens, keep_output=False)

    return step


if __name__ == "__main__":
    main()
