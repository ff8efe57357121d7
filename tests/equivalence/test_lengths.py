"""Sizes besides the batch's: marked, one recording serves them all; else each is recorded once."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxpipe
from tests.equivalence.compare import same
from tests.losses import mean_square
from tests.reference import run_eager_step
from tests.unit.capture.test_general import Attention, UNet

LENGTHS = (8, 5, 12, 3)


class Decoder(nn.Module):
    """Tokens, positions and a padding mask; returns its logits and how many steps there were."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(8, 20)

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> dict[str, Any]:
        length = ids.shape[1]
        h = self.table(ids)
        allowed = torch.tril(torch.ones(length, length, dtype=torch.bool))[None]
        if mask is not None:
            allowed = allowed & mask[:, None, :].bool()
        for block in self.blocks:
            h = block(h, allowed)
        return {"logits": self.head(h), "steps": length}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Attention(8)
        self.up, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, h: Tensor, allowed: Tensor) -> Tensor:
        rows, length, width = h.shape
        scores = (h @ h.transpose(1, 2)).masked_fill(~allowed, -1e9).softmax(-1)
        h = h + self.inner(scores @ h).view(rows, length, width)
        return self.norm(h + self.up(h).relu())


def words(rows: int, length: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    mask = torch.ones(rows, length)
    mask[1:, length - 1 :] = 0
    return (torch.randint(20, (rows, length)),), {"mask": mask}


def images(rows: int, length: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (torch.randn(rows, 1, length + 5, 2 * length),), {}


def of_words(output: Any, target: Any) -> Tensor:
    return output["logits"].square().mean() / output["steps"]


CASES = {
    "words": (Decoder, words, of_words, {"ids": {1: "length"}, "mask": {1: "length"}}),
    "images": (UNet, images, mean_square, {"x": {2: "height", -1: "width"}}),
}


def compiled(model: nn.Module, **options: Any) -> fxpipe.Pipeline:
    options = {"costs": "estimate", "threads_per_rank": 1, "chunks": 3, **options}
    return fxpipe.compile(model, ["cpu", "cpu"], **options)


def check_step(pipe: fxpipe.Pipeline, eager: nn.Module, batch: Any, loss: Any) -> None:
    """A step and a call in evaluation mode, against eager micro-batches."""
    args, kwargs = batch
    eager.zero_grad()
    pipe.zero_grad()
    wanted = run_eager_step(eager, args, kwargs, chunks=3, loss_fn=loss)
    found = pipe.step(*args, loss_fn=loss, **kwargs)
    same(found.loss, wanted.loss, "loss")
    for (name, one), two in zip(pipe.named_parameters(), eager.parameters(), strict=True):
        same(one.grad, two.grad, name)
    pipe.eval()
    eager.eval()
    with torch.no_grad():
        same(pipe(*args[:1], **kwargs), joined(eager, args, kwargs), "evaluation")
    pipe.train()
    eager.train()


def joined(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    parts = [
        model(*(a[at : at + 1] for a in args), **{k: v[at : at + 1] for k, v in kwargs.items()})
        for at in range(len(args[0]))
    ]
    if isinstance(parts[0], Tensor):
        return torch.cat(parts)
    return {"logits": torch.cat([p["logits"] for p in parts]), "steps": parts[0]["steps"]}


def recordings(pipe: fxpipe.Pipeline) -> int:
    return len(pipe._recordings._situations)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("is_marked", [True, False])
def test_steps_at_every_length(name: str, is_marked: bool) -> None:
    make, batch, loss, dynamic = CASES[name]
    torch.manual_seed(0)
    model = make()
    eager = copy.deepcopy(model)
    with compiled(model, dynamic=dynamic if is_marked else None) as pipe:
        for length in (*LENGTHS, LENGTHS[1]):
            check_step(pipe, eager, batch(3, length), loss)
        assert recordings(pipe) == (2 if is_marked else 2 * len(LENGTHS))


def test_a_length_of_one_has_a_recording_of_its_own() -> None:
    model = Decoder()
    eager = copy.deepcopy(model)
    with compiled(model, dynamic=CASES["words"][3]) as pipe:
        for length in (1, 4, 1, 6):
            check_step(pipe, eager, words(3, length), of_words)
        assert recordings(pipe) == 4


def test_another_structure_is_marked_by_the_same_names() -> None:
    model = Decoder()
    with compiled(model, dynamic=CASES["words"][3]) as pipe:
        for length in (4, 6):
            ids = words(3, length)[0][0]
            with torch.no_grad():
                pipe(ids)
                pipe(ids=ids, mask=torch.ones(3, length))
        assert recordings(pipe) == 2
        with pytest.raises(ValueError, match="'length', have sizes 6, 7"):
            pipe(ids, mask=torch.ones(3, 7))


def test_too_many_lengths_are_told_with_the_marks_to_set() -> None:
    with compiled(Decoder(), max_recordings=3) as pipe, torch.no_grad():
        for length in (4, 5, 6):
            pipe(*words(3, length)[0])
        with pytest.warns(UserWarning, match=r"dynamic=\{'ids': \{1: 'length'\}\}"):
            pipe(*words(3, 7)[0])
        assert recordings(pipe) == 3
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            pipe(*words(3, 8)[0])


class Windowed(nn.Module):
    """Does something else from length 20 on, in the model's own forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if x.shape[1] >= 20:
            h = h - h.mean(1, keepdim=True)
        return self.second(h)


def test_a_model_that_does_something_else_from_some_length_on() -> None:
    model = Windowed()
    eager = copy.deepcopy(model)

    def of(output: Tensor, target: Any) -> Tensor:
        return output.square().mean()

    lengths = (4, 7, 9, 30, 50, 90, 16, 19, 20, 30, 5)
    with compiled(model, dynamic={"x": {1: "length"}}) as pipe:
        for length in lengths:
            x = torch.randn(3, length, 4)
            wanted = run_eager_step(eager, (x,), chunks=3, loss_fn=of)
            same(pipe.step(x, loss_fn=of).loss, wanted.loss, f"loss at {length}")
        # short ones; long ones; 30, 19 and 20 as they are: the recordings around them part
        assert recordings(pipe) == 5
        clone = pipe.replace(schedule="gpipe")
    with clone:
        x = torch.randn(3, 70, 4)
        same(
            clone.step(x, loss_fn=of).loss,
            run_eager_step(eager, (x,), chunks=3, loss_fn=of).loss,
            "clone",
        )


class Masks(nn.Module):
    """Decides on its mask, whatever the length."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        h = self.first(x)
        if not mask.all():
            h = h * mask[..., None]
        return self.second(h)


def test_decisions_and_lengths() -> None:
    model = Masks()
    eager = copy.deepcopy(model)
    dynamic = {"x": {1: "length"}, "mask": {1: "length"}}

    def of(output: Any, target: Any) -> Tensor:
        return F.mse_loss(output, torch.zeros_like(output))

    with compiled(model, dynamic=dynamic) as pipe:
        for length in LENGTHS:
            mask = torch.ones(3, length)
            mask[2, 1:] = 0  # the third micro-batch decides otherwise
            args = (torch.randn(3, length, 4), mask)
            wanted = run_eager_step(eager, args, chunks=3, loss_fn=of)
            same(pipe.step(*args, loss_fn=of).loss, wanted.loss, "loss")
        for one, two in zip(model.parameters(), eager.parameters(), strict=True):
            same(one.grad, two.grad, "gradient")
        assert recordings(pipe) == 1
