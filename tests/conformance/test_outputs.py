"""Results of every kind: merged the way the inputs were cut, or told for each micro-batch."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from tests.conformance.pipes import (
    CHUNKS,
    Setting,
    draw,
    each_recompute,
    each_setting,
    pair,
)
from tests.reference import run_eager_step, split

ONE = Setting("1f1b", 3, "inline")
W = 6
ROWS = 10
SHARES = [3 / 10, 3 / 10, 2 / 10, 2 / 10]


class Pair(NamedTuple):
    first: Tensor
    second: Any


@dataclass
class Result:
    logits: Tensor
    hidden: tuple[Tensor, ...]
    loss: Tensor | None = None
    name: str = "result"


class Everything(nn.Module):
    """Results from every stage, of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(W, W) for _ in range(3))
        self.register_buffer("table", torch.arange(3.0))

    def forward(self, x: Tensor, whole: Tensor) -> dict[str, Any]:
        early = self.a(x)
        middle = self.b(early.tanh())
        late = self.c(middle.tanh())
        return {
            "result": Result(late, (early, middle), late.square().mean()),
            "pair": Pair(early * 2, [middle, None]),
            "input": x,
            "twice": (late, late),
            "view": early.view(-1, 2, W // 2),
            "transposed": middle.view(-1, 2, W // 2).transpose(1, 2),
            "expanded": late[:, :1].expand(-1, 4),
            "rows last": late.T,
            "integers": late.argmax(-1),
            "flags": early > 0,
            "complex": torch.complex(early, late),
            "mean": early.mean(),
            "complex mean": torch.complex(early, late).mean(),
            "count": (late > 0).sum(),
            "any": (late > 0).any(),
            "sums": late.sum(0),
            "rows": x.size(0),
            "width": x.size(1),
            "table": self.table * 2,
            "weight": self.c.weight,
            "whole": whole,
            "ordered": OrderedDict(one=late[:, 0], two="text"),
            "nothing": None,
            "flag": self.training,
            "pi": 3.25,
        }


def loss_of(output: dict[str, Any], target: Any = None) -> Tensor:
    result = output["result"]
    return (
        result.loss
        + result.hidden[0].square().mean()
        + output["pair"].second[0].square().mean()
        + output["complex"].abs().square().mean()
        + output["rows last"].square().mean()
    )


@each_setting
@each_recompute
def test_results_of_a_step(setting: Setting, recompute: str) -> None:
    x, whole = draw(ROWS, W), draw(7)
    with pair(Everything, setting, recompute=recompute) as both:
        found = both.pipe.step(x, whole, loss_fn=loss_of)
        expected = run_eager_step(both.eager, (x, whole), chunks=CHUNKS, loss_fn=loss_of)
        both.assert_step(found, expected)
        assert_merged(found.output, expected.outputs, x, whole)
        assert found.output["result"].loss.requires_grad is False


@each_setting
def test_results_of_a_call(setting: Setting) -> None:
    x, whole = draw(ROWS, W), draw(7)
    with pair(Everything, setting) as both:
        parts = [both.eager(*args) for args, _ in split(((x, whole), {}), CHUNKS)[0]]
        with torch.no_grad():
            assert_merged(both.pipe(x, whole), parts, x, whole)
        output = both.pipe(x, whole)
        assert_merged(output, parts, x, whole)
        assert output["result"].loss.requires_grad
        assert not output["integers"].requires_grad
        loss_of(output).backward()
        loss_of(both.eager(x, whole)).backward()
        for one, other in zip(both.model.parameters(), both.eager.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad)


def assert_merged(
    output: dict[str, Any], parts: list[dict[str, Any]], x: Tensor, whole: Tensor
) -> None:
    """Every result is what its micro-batches' results make."""

    def rows(get: Any, dim: int = 0) -> Tensor:
        return torch.cat([get(part) for part in parts], dim)

    def shares(get: Any) -> Tensor:
        pairs = list(zip(parts, SHARES, strict=True))
        total = get(pairs[0][0]) * pairs[0][1]
        for part, share in pairs[1:]:
            total = total + get(part) * share
        return total

    assert list(output) == list(parts[0])
    result = output["result"]
    assert isinstance(result, Result)
    assert torch.equal(result.logits, rows(lambda o: o["result"].logits))
    for n in range(2):
        assert torch.equal(result.hidden[n], rows(lambda o, n=n: o["result"].hidden[n]))
    assert torch.equal(result.loss, shares(lambda o: o["result"].loss))
    assert result.name == "result"
    assert isinstance(output["pair"], Pair)
    assert torch.equal(output["pair"].first, rows(lambda o: o["pair"].first))
    assert output["pair"].second[1] is None
    assert torch.equal(output["input"], x)
    assert output["twice"][0] is output["twice"][1]
    for name in ("view", "transposed", "expanded", "integers", "flags", "complex"):
        assert torch.equal(output[name], rows(lambda o, name=name: o[name])), name
    assert torch.equal(output["rows last"], rows(lambda o: o["rows last"], 1))
    for name in ("mean", "complex mean"):
        assert torch.equal(output[name], shares(lambda o, name=name: o[name])), name
    for name in ("count", "any", "sums"):
        assert isinstance(output[name], list)
        theirs = [part[name] for part in parts]
        assert all(map(torch.equal, output[name], theirs)), name
    assert output["rows"] == [3, 3, 2, 2]
    for name in ("width", "flag", "pi", "nothing"):
        assert output[name] == parts[0][name], name
    for name in ("table", "weight"):
        assert torch.equal(output[name], parts[0][name]), name
    assert torch.equal(output["whole"], whole)
    assert isinstance(output["ordered"], OrderedDict)
    assert torch.equal(output["ordered"]["one"], rows(lambda o: o["ordered"]["one"]))
    assert output["ordered"]["two"] == "text"


def test_whether_a_result_is_a_list_does_not_depend_on_data_or_divisibility() -> None:
    with pair(Everything, ONE) as both, torch.no_grad():
        zeros = both.pipe(torch.zeros(8, W), draw(7))
        assert len(zeros["count"]) == len(zeros["sums"]) == 4
        assert zeros["rows"] == [2, 2, 2, 2]
        alone = both.pipe(torch.zeros(1, W), draw(7))
        assert alone["rows"] == 1, "one micro-batch: what the model returns"
        assert alone["count"].dim() == 0


class Single(nn.Module):
    """One result of the kind asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(W, W) for _ in range(3))

    def forward(self, x: Tensor, kind: str) -> Any:
        early = self.a(x)
        late = self.c(self.b(early).tanh())
        match kind:
            case "input":
                return x
            case "early":
                return early
            case "nothing":
                return None
            case "list of one":
                return [late]
            case "nested":
                return ((late,), {"a": {"b": [early]}})
            case "scalar":
                return late.sum() / len(x)
            case "integer":
                return late.argmax(1)
            case _:
                return 3


@each_setting
@pytest.mark.parametrize(
    "kind",
    ["input", "early", "nothing", "list of one", "nested", "scalar", "integer", "number"],
)
def test_a_single_result(setting: Setting, kind: str) -> None:
    x = draw(8, W)
    with pair(Single, setting) as both, torch.no_grad():
        output = both.pipe(x, kind)
        parts = [both.eager(part, kind) for part in x.tensor_split(CHUNKS)]
        leaves, structure = torch.utils._pytree.tree_flatten(output)
        theirs = [torch.utils._pytree.tree_flatten(part) for part in parts]
        assert structure == theirs[0][1]
        for at, leaf in enumerate(leaves):
            pieces = [given[at] for given, _ in theirs]
            if not isinstance(leaf, Tensor):
                assert leaf == pieces[0]
            elif leaf.dim():
                assert torch.equal(leaf, torch.cat(pieces))
            else:
                assert torch.equal(leaf, sum(piece * 0.25 for piece in pieces))


@each_setting
def test_an_input_returned_unchanged_passes_its_gradient(setting: Setting) -> None:
    x = draw(8, W).requires_grad_()
    with pair(Single, setting) as both:
        both.pipe(x, "input").square().sum().backward()
        assert torch.equal(x.grad, 2 * x.detach())
        assert all(p.grad is None for p in both.model.parameters())


@each_setting
def test_a_result_used_twice_gets_both_gradients(setting: Setting) -> None:
    x, whole = draw(8, W), draw(7)
    with pair(Everything, setting) as both:
        one, other = both.pipe(x, whole)["twice"]
        (one.square().mean() + other.sin().mean()).backward()
        one, other = both.eager(x, whole)["twice"]
        (one.square().mean() + other.sin().mean()).backward()
        for mine, theirs in zip(both.model.parameters(), both.eager.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad)


@each_setting
def test_gradients_of_results_told_for_each_micro_batch(setting: Setting) -> None:
    x, whole = draw(8, W), draw(7)
    with pair(Everything, setting) as both:
        sums = both.pipe(x, whole)["sums"]
        weights = [draw(W, seed=n) for n in range(4)]
        sum((one * w).sum() for one, w in zip(sums, weights, strict=True)).backward()
        for part, weight in zip(x.tensor_split(CHUNKS), weights, strict=True):
            (both.eager(part, whole)["sums"] * weight).sum().backward()
        for mine, theirs in zip(both.model.parameters(), both.eager.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad)


def test_results_without_weights_told_are_averaged_by_rows_and_else_by_the_steps() -> None:
    x, whole = draw(8, W), draw(7)
    with pair(Everything, ONE) as both:
        means = [both.eager(part, whole)["mean"] for part in x.tensor_split(CHUNKS)]
        found = both.pipe.step(x, whole, loss_fn=loss_of, weights="sum").output["mean"]
        assert torch.equal(found, sum(means[1:], means[0]))
        told = both.pipe.step(x, whole, loss_fn=loss_of, weights=[0.0, 0.5, 0.5, 0.0])
        assert torch.equal(told.output["mean"], means[1] * 0.5 + means[2] * 0.5)


class Ragged(nn.Module):
    """Cuts its result to the longest row of the micro-batch."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(W, W), nn.Linear(W, W)
        self.cut = Cut()

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return self.b(self.cut(self.a(x), lengths))


class Cut(nn.Module):
    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return x[:, : int(lengths.max())]


@each_setting
def test_results_whose_other_dimensions_differ_are_told_apart(setting: Setting) -> None:
    x, lengths = draw(8, 5, W), torch.tensor([1, 2, 5, 4, 3, 3, 2, 1])
    stages = Setting(setting.schedule, 2, setting.backend)
    with pair(Ragged, stages) as both, torch.no_grad():
        output = both.pipe(x, lengths)
        assert [part.shape for part in output] == [(2, n, W) for n in (2, 5, 3, 2)]
        assert torch.equal(output[1], both.eager(x[2:4], lengths[2:4]))
        even = both.pipe(x, torch.full((8,), 4))
        assert even.shape == (8, 4, W)


class Views(nn.Module):
    """Two views of each row, one below the other."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(W, W), nn.Linear(W, W)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.one(x).tanh()
        return torch.cat((h, self.two(h))), h.repeat_interleave(2, 0)


@each_recompute
def test_several_rows_for_each_row_are_joined_by_micro_batches(recompute: str) -> None:
    with pair(Views, Setting("1f1b", 2, "inline"), recompute=recompute) as both:
        x = draw(ROWS, W)
        found = both.pipe(x)
        pieces, _, _ = split(((x,), {}), CHUNKS)
        expected = [both.eager(*args) for args, _ in pieces]
    for one, parts in zip(found, zip(*expected, strict=True), strict=True):
        assert torch.equal(one, torch.cat(parts))
