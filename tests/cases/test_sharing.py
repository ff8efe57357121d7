"""One parameter under several names, one module in several places."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxpipe
from tests.cases.blocks import WIDTH, WORDS, Block, each, words
from tests.exact import CHUNKS, Kind, assert_exact_in_every_mode, vectors
from tests.reference import run_eager_step


class InputIsOutput(nn.Module):
    """The output layer's weight is the embedding's."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.first, self.second = Block(), Block()
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.second(self.first(self.embed(ids))))


class InThreeStages(nn.Module):
    """One weight in each of three stages, twice in the last and once transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.b.weight = self.c.weight = self.a.weight
        self.b.bias = self.a.bias

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.a(x))
        x = torch.tanh(self.b(x))
        return F.linear(self.c(x), self.a.weight.t())


class CalledAgain(nn.Module):
    """The same module in an early and in a late stage."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.shared = Block()

    def forward(self, x: Tensor) -> Tensor:
        return self.shared(self.leave(self.shared(self.enter(x))))


class Repeats(nn.Module):
    """Layers used over and over, in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            for layer in self.layers:
                x = x + layer(x)
        return x


class TwoNames(nn.Module):
    """One module under two names, called under both."""

    def __init__(self) -> None:
        super().__init__()
        self.one = Block()
        self.between = Block()
        self.two = self.one

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.between(self.one(x)))


class SharedBuffer(nn.Module):
    """Two modules read one buffer; a third reads it too and writes nothing."""

    class Shift(nn.Module):
        def __init__(self, table: Tensor) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)
            self.register_buffer("table", table)

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(self.layer(x) + self.table)

    def __init__(self) -> None:
        super().__init__()
        table = torch.linspace(-1, 1, WIDTH)
        self.one, self.two, self.three = (self.Shift(table) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.three(self.two(self.one(x)))


KINDS = {
    "embedding and head": Kind(
        InputIsOutput, words(), cuts=("first", "second"), tied=("embed.weight",)
    ),
    "three stages": Kind(
        InThreeStages, vectors(WIDTH), cuts=("b", "c"), tied=("a.weight", "a.bias")
    ),
    "a module called again": Kind(
        CalledAgain,
        vectors(WIDTH),
        cuts=("leave", "shared@1"),
        tied=("shared.layer.weight", "shared.layer.bias"),
    ),
    "layers in turn": Kind(
        Repeats,
        vectors(WIDTH),
        cuts=("layers.0@1", "layers.1@1"),
        tied=tuple(f"layers.{n}.layer.{what}" for n in (0, 1) for what in ("weight", "bias")),
    ),
    "two names": Kind(
        TwoNames,
        vectors(WIDTH),
        cuts=("between", "one@1"),
        tied=("one.layer.weight", "one.layer.bias"),
    ),
    "a buffer": Kind(SharedBuffer, vectors(WIDTH), cuts=("two", "three")),
}


@each(KINDS)
def test_shared_state_is_one(name: str, stages: int) -> None:
    assert_exact_in_every_mode(KINDS[name], stages)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def test_tied_weights_are_trained_as_one() -> None:
    """One gradient, one share in the norm, one update; both names lead to one tensor throughout."""
    kind = KINDS["embedding and head"]
    model, eager = kind.model(), kind.model()
    (ids,), _ = kind.data(8)
    with kind.pipe(model, 3) as pipe:
        ours = torch.optim.SGD(pipe.parameters(), lr=0.5, momentum=0.9)
        theirs = torch.optim.SGD(eager.parameters(), lr=0.5, momentum=0.9)
        for _ in range(2):
            ours.zero_grad()
            theirs.zero_grad()
            pipe.step(ids, target=ids, loss_fn=cross_entropy)
            run_eager_step(eager, (ids,), chunks=CHUNKS, loss_fn=cross_entropy, target=ids)
            norms = [nn.utils.clip_grad_norm_(m.parameters(), max_norm=0.5) for m in (pipe, eager)]
            torch.testing.assert_close(*norms)
            ours.step()
            theirs.step()
        assert len(ours.state) == len(theirs.state) == len(list(eager.parameters()))
        state = pipe.state_dict()
    assert model.head.weight is model.embed.weight
    assert state["head.weight"].data_ptr() == state["embed.weight"].data_ptr()
    torch.testing.assert_close(model.embed.weight, eager.embed.weight)


def test_sums_over_stages_are_the_same_bits_at_every_run() -> None:
    kind = KINDS["three stages"]
    found = []
    for _ in range(3):
        model = kind.model()
        with kind.pipe(model, 3, chunks=4) as pipe:
            args, kwargs = kind.data(8)
            pipe.step(*args, **kwargs, loss_fn=kind.loss)
        found.append(model.a.weight.grad)
    assert all(torch.equal(found[0], other) for other in found[1:])


def test_what_stages_share_is_reported() -> None:
    kind = KINDS["three stages"]
    with kind.pipe(kind.model(), 3) as pipe:
        report = pipe.report()
    assert "Parameters that several stages read: 2" in report
    rows = [line.split() for line in report.splitlines() if line.startswith("  a.")]
    assert ["a.weight", "256", "B", "0,", "1,", "2", "cpu"] in rows
    assert ["a.bias", "32", "B", "0,", "1", "cpu"] in rows
    kind = KINDS["a buffer"]
    with kind.pipe(kind.model(), 3) as pipe:
        assert "several stages read" not in pipe.report()


def test_a_tied_weight_stays_tied_in_a_plan() -> None:
    kind = KINDS["two names"]
    with kind.pipe(kind.model(), 2) as pipe:
        assert isinstance(pipe.plan, fxpipe.PartitionPlan)
        assert {name for name, _ in pipe.named_parameters()} == {
            "one.layer.weight",
            "one.layer.bias",
            "between.layer.weight",
            "between.layer.bias",
        }
