"""Inputs of every kind: how they are cut, what they may be called, ready-made micro-batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import fxpipe
from tests.conformance.pipes import (
    CHUNKS,
    SETTINGS,
    Setting,
    draw,
    draw_ints,
    each_recompute,
    each_setting,
    pair,
)
from tests.losses import mean_square
from tests.reference import run_eager_micro_batches, run_eager_step

ONE = Setting("1f1b", 3, "inline")
W = 6


class Deep(nn.Module):
    """Layers in a row, so that there is something to cut."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(W, W) for _ in range(4))

    def deep(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return x


# ---- rules for cutting -------------------------------------------------------------------------------


class Attention(Deep):
    """A mask over pairs of positions, which may have as many rows as the batch."""

    def forward(self, x: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
        x = self.deep(x + positions)
        scores = (x @ x.transpose(1, 2)).masked_fill(~mask, -1e4)
        return scores.softmax(-1) @ x


@each_setting
def test_a_mask_with_as_many_rows_as_the_batch_stays_whole(setting: Setting) -> None:
    x, mask, positions = draw(8, 8, W), torch.ones(8, 8).tril().bool(), draw(8, W, seed=1)
    whole = fxpipe.Replicate()
    with pair(Attention, setting, split={"mask": whole, "positions": whole}) as both:
        for rows in (8, 5):
            args = (x[:rows], mask, positions)
            found = both.pipe.step(*args, loss_fn=mean_square)
            expected = run_eager_step(
                both.eager, args, chunks=CHUNKS, loss_fn=mean_square, dims=(0, None, None)
            )
            both.assert_step(found, expected)
            assert torch.equal(found.output, torch.cat(expected.outputs))


class Sequences(Deep):
    """Time first, rows second; the lengths have their rows first."""

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        x = self.deep(x)
        steps = torch.arange(x.size(0)).unsqueeze(1)
        return x * (steps < lengths).unsqueeze(-1)


@each_setting
def test_rows_along_another_dimension(setting: Setting) -> None:
    with pair(Sequences, setting, split={"x": fxpipe.Split(1)}) as both:
        for length, rows in ((5, 7), (7, 7), (7, 4)):
            x, lengths = draw(length, rows, W), draw_ints(length, rows)
            target = draw(length, rows, W, seed=1)
            found = both.pipe.step(x, lengths, target=target, loss_fn=F.mse_loss)
            targets = iter(target.tensor_split(CHUNKS, 1))
            expected = run_eager_step(
                both.eager,
                (x, lengths),
                chunks=CHUNKS,
                loss_fn=lambda y, _, targets=targets: F.mse_loss(y, next(targets)),
                dims=(1, 0),
            )
            both.assert_step(found, expected)
            assert torch.equal(found.output, torch.cat(expected.outputs, 1))


@each_setting
def test_gradients_of_inputs_come_back_as_they_were_cut(setting: Setting) -> None:
    x = draw(5, 7, W).requires_grad_()
    lengths = draw_ints(5, 7)
    with pair(Sequences, setting, split={"x": fxpipe.Split(-2)}) as both:
        both.pipe.step(x, lengths, loss_fn=mean_square)
        expected = run_eager_step(
            both.eager, (x, lengths), chunks=CHUNKS, loss_fn=mean_square, dims=(1, 0)
        )
        assert torch.equal(x.grad, expected.input_grads[0])
        output = both.pipe(x, lengths)
        assert output.shape == x.shape
        (found,) = torch.autograd.grad(output.sum(), x)
        (whole,) = torch.autograd.grad(both.eager(x, lengths).sum(), x)
        torch.testing.assert_close(found, whole)


class Nested(Deep):
    def forward(self, batch: dict[str, Any], *, scale: float = 1.0) -> Tensor:
        pair = batch["pairs"]
        return self.deep(batch["x"] * scale) + pair[0].T + pair[1].sum()


def test_rules_reach_into_containers() -> None:
    rules = {"batch_pairs_0": fxpipe.Split(1), "batch_pairs_1": fxpipe.Replicate()}
    with pair(Nested, ONE, split=rules) as both:
        batch = {"x": draw(8, W), "pairs": (draw(W, 8, seed=1), draw(8, seed=2))}
        found = both.pipe.step(inputs=((batch,), {"scale": 0.5}), loss_fn=mean_square)
        expected = run_eager_step(
            both.eager,
            (batch,),
            {"scale": 0.5},
            chunks=CHUNKS,
            loss_fn=mean_square,
            dims=(0, 1, None),
        )
        both.assert_step(found, expected)


def test_everything_whole_is_one_micro_batch() -> None:
    class Graph(Deep):
        def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
            nodes = self.deep(nodes)
            return nodes.index_add(0, edges[1], nodes[edges[0]])

    rules = {"nodes": fxpipe.Replicate(), "edges": fxpipe.Replicate()}
    with pair(Graph, ONE, split=rules) as both:
        for count in (8, 5):
            args = (draw(count, W), draw_ints(count, 2, 9))
            found = both.pipe.step(*args, loss_fn=mean_square)
            loss = mean_square(both.eager(*args))
            loss.backward()
            assert torch.equal(found.loss, loss.detach())
            both.assert_state()


def test_targets_are_cut_by_rules_too() -> None:
    class Plain(Deep):
        def forward(self, x: Tensor) -> Tensor:
            return self.deep(x)

    rules = {"target_y": fxpipe.Split(1), "target_weight": fxpipe.Replicate()}
    x, target = draw(8, W), {"y": draw(W, 8, seed=1), "weight": draw(8, W, seed=2).abs()}

    def loss_fn(output: Tensor, target: dict[str, Tensor]) -> Tensor:
        return ((output - target["y"].T).square() * target["weight"].mean(0)).mean()

    with pair(Plain, ONE, split=rules) as both:
        found = both.pipe.step(x, target=target, loss_fn=loss_fn)
        expected = loss_fn(both.eager(x), target)
        torch.testing.assert_close(found.loss, expected.detach())
        with pytest.raises(ValueError, match=r"shape \(6, 8\) cannot be cut .* of 8 rows"):
            both.pipe.step(x, target=draw(W, 8), loss_fn=F.mse_loss)


@pytest.mark.parametrize(
    ("split", "error", "message"),
    [
        ({"masks": fxpipe.Split(0)}, ValueError, "a rule for 'masks', but the inputs are"),
        ({"x": fxpipe.Split(3)}, ValueError, "cuts 'x' along dimension 3"),
        ({"x": fxpipe.Split(2), "mask": fxpipe.Split(0)}, ValueError, "different sizes"),
        ({"x": 1}, TypeError, r"fxpipe.Split\(dim\) or fxpipe.Replicate\(\), got 'x': 1"),
        ([fxpipe.Split(1)], TypeError, "split must map names"),
    ],
)
def test_rules_that_do_not_fit(split: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        with pair(Attention, ONE, split=split) as both:
            both.pipe(draw(8, 5, W), torch.ones(5, 5).bool(), draw(5, W))


def test_a_copy_keeps_the_rules() -> None:
    whole = fxpipe.Replicate()
    with pair(Attention, ONE, split={"mask": whole, "positions": whole}) as both:
        args = (draw(8, 8, W), torch.ones(8, 8).tril().bool(), draw(8, W, seed=1))
        expected = both.pipe(*args)
        with both.pipe.replace(chunks=2) as other:
            torch.testing.assert_close(other(*args), expected)


# ---- names -------------------------------------------------------------------------------------------


class Named(Deep):
    """Its arguments are called like those of a step."""

    def forward(
        self,
        x: Tensor,
        target: Tensor | None = None,
        *,
        scale: float = 1.0,
        weights: Tensor | None = None,
        loss_fn: str = "tanh",
        inputs: Tensor | None = None,
    ) -> Tensor:
        y = self.deep(x) * scale
        for more in (target, weights, inputs):
            y = y if more is None else y + more
        return y.tanh() if loss_fn == "tanh" else y


@each_setting
def test_arguments_called_like_those_of_a_step(setting: Setting) -> None:
    x, more, target = draw(8, W), draw(8, W, seed=1), draw(8, W, seed=2)
    kwargs = {"target": more, "scale": 0.5, "weights": more, "inputs": more, "loss_fn": "none"}
    with pair(Named, setting) as both:
        found = both.pipe.step(inputs=((x,), kwargs), target=target, loss_fn=F.mse_loss, scale=2.0)
        expected = run_eager_step(
            both.eager, (x,), kwargs, chunks=CHUNKS, target=target, loss_fn=F.mse_loss, scale=2.0
        )
        both.assert_step(found, expected)
        assert torch.equal(both.pipe(x, **kwargs), found.output)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("target", draw(8, W)),
        ("scale", 1.0),
        ("scale", 0.5),
        ("weights", "sum"),
        ("loss_fn", mean_square),
    ],
)
def test_a_name_that_may_be_the_models_is_refused(name: str, value: Any) -> None:
    with pair(Named, ONE) as both:
        with pytest.raises(TypeError, match=f"the model's forward and step have .* '{name}'"):
            both.pipe.step(draw(8, W), **{name: value})


def test_what_was_given_by_position_is_no_doubt() -> None:
    class Two(Deep):
        def forward(self, x: Tensor, target: Tensor) -> Tensor:
            return self.deep(x) + target

    x, y, target = draw(8, W), draw(8, W, seed=1), draw(8, W, seed=2)
    with pair(Two, ONE) as both:
        found = both.pipe.step(x, y, target=target, loss_fn=F.mse_loss)
        expected = run_eager_step(
            both.eager, (x, y), chunks=CHUNKS, target=target, loss_fn=F.mse_loss
        )
        both.assert_step(found, expected)


# ---- ready-made micro-batches ------------------------------------------------------------------------


class Volumes(nn.Module):
    """Convolutions over volumes of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv3d(1, 4, 3, padding=1)
        self.middle = nn.Conv3d(4, 4, 3, padding=1)
        self.up = nn.Conv3d(8, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.down(x).relu()
        b = self.middle(F.max_pool3d(a, 2)).relu()
        return self.up(torch.cat((a, F.interpolate(b, size=a.shape[2:])), 1))


VOLUMES = [(1, 1, 4, 6, 8), (1, 1, 8, 4, 4), (2, 1, 4, 4, 4), (1, 1, 4, 6, 8), (1, 1, 6, 6, 6)]


@each_setting
@each_recompute
def test_volumes_of_different_sizes(setting: Setting, recompute: str) -> None:
    made = [
        ((draw(*shape, seed=n),), {}, draw(*shape, seed=10 + n)) for n, shape in enumerate(VOLUMES)
    ]
    with pair(Volumes, setting, recompute=recompute) as both:
        for micro_batches in (made, made[:2]):
            found = both.pipe.step(micro_batches=iter(micro_batches), loss_fn=F.mse_loss)
            expected = run_eager_micro_batches(
                both.eager,
                micro_batches,
                loss_fn=F.mse_loss,
                rows=[len(each[0][0]) for each in micro_batches],
            )
            both.assert_step(found, expected)
            assert isinstance(found.output, list)
            assert all(map(torch.equal, found.output, expected.outputs))


class Lengths(Deep):
    """Sequences with a loss inside, any length."""

    def forward(self, x: Tensor, scale: float = 1.0) -> dict[str, Any]:
        y = self.deep(x)
        return {"loss": (y * scale).square().sum() / y.size(0), "y": y, "length": y.size(1)}


def test_ready_made_micro_batches_with_other_arguments_each() -> None:
    made = [
        ((draw(2, 3, W),), {}),
        ((), {"x": draw(1, 5, W, seed=1)}),
        ((draw(3, 3, W, seed=2),), {"scale": 0.5}),
    ]
    with pair(Lengths, ONE) as both:
        found = both.pipe.step(micro_batches=made)
        expected = run_eager_micro_batches(both.eager, made, rows=[2, 1, 3])
        both.assert_step(found, expected)
        assert [output["length"] for output in found.output] == [3, 5, 3]
        for mine, theirs in zip(found.output, expected.outputs, strict=True):
            assert torch.equal(mine["y"], theirs["y"])
            assert torch.equal(mine["loss"], theirs["loss"])
        assert both.pipe.step(micro_batches=made, keep_output=False).output is None


def test_ready_made_micro_batches_after_and_before_whole_batches() -> None:
    x = draw(8, 3, W)
    with pair(Lengths, ONE) as both:
        for _ in range(2):
            made = [((part,), {}) for part in x.tensor_split(CHUNKS)]
            one = both.pipe.step(micro_batches=made)
            other = both.pipe.step(x)
            assert torch.equal(one.loss, other.loss)
            assert torch.equal(torch.cat([o["y"] for o in one.output]), other.output["y"])
        for _ in range(4):
            run_eager_step(both.eager, (x,), chunks=CHUNKS)
        both.assert_state()


def test_gradients_of_ready_made_inputs() -> None:
    source = draw(6, W).requires_grad_()
    twin = source.detach().clone().requires_grad_()

    def made(source: Tensor) -> list[Any]:
        doubled = source * 2
        return [((doubled[:2].unsqueeze(1),), {}), ((doubled[2:].unsqueeze(0),), {})]

    whole = draw(2, 3, W).requires_grad_()
    with pair(Lengths, ONE) as both:
        both.pipe.step(micro_batches=[*made(source), ((whole,), {}), ((whole,), {})])
        shares = (2 / 7, 1 / 7, 2 / 7, 2 / 7)
        parts = [*made(twin), ((whole.detach(),), {}), ((whole.detach(),), {})]
        loss = sum(both.eager(*a)["loss"] * w for (a, _), w in zip(parts, shares, strict=True))
        loss.backward()
        torch.testing.assert_close(source.grad, twin.grad)
        one = whole.detach().clone().requires_grad_()
        (both.eager(one)["loss"] * (4 / 7)).backward()
        torch.testing.assert_close(whole.grad, one.grad)


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm, self.head = nn.Linear(W, W), nn.LSTM(W, W), nn.Linear(W, 2)

    def forward(self, x: PackedSequence) -> Tensor:
        data = self.embed(x.data)
        packed = PackedSequence(data, x.batch_sizes, x.sorted_indices, x.unsorted_indices)
        output, _ = self.lstm(packed)
        padded, lengths = pad_packed_sequence(output, batch_first=True)
        return self.head(padded.sum(1) / lengths.unsqueeze(1))


def packed(*lengths: int) -> PackedSequence:
    padded = draw(len(lengths), max(lengths), W, seed=sum(lengths))
    return pack_padded_sequence(
        padded, torch.tensor(lengths), batch_first=True, enforce_sorted=False
    )


@pytest.mark.parametrize("setting", SETTINGS[::3], ids=str)
def test_packed_sequences(setting: Setting) -> None:
    made = [((packed(3, 5),), {}), ((packed(4, 1, 2),), {}), ((packed(5, 3),), {})]
    with pair(Packed, setting) as both:
        for _ in range(2):
            found = both.pipe.step(
                micro_batches=made, loss_fn=mean_square, weights=[2 / 7, 3 / 7, 2 / 7]
            )
            expected = run_eager_micro_batches(
                both.eager, made, loss_fn=mean_square, weights=[2 / 7, 3 / 7, 2 / 7], rows=[1, 1, 1]
            )
            both.assert_step(found, expected)
            assert all(map(torch.equal, found.output, expected.outputs))


class Decides(Deep):
    """Decides on its data."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.layers[0](x)
        if bool(mask.all()):
            return self.layers[1](x).tanh()
        return self.layers[2](x * mask.unsqueeze(-1)).tanh()


def test_ready_made_micro_batches_that_decide_on_their_data() -> None:
    made = []
    for n, length in enumerate((3, 4, 3, 4, 3)):
        mask = torch.ones(2, length)
        mask[0, 0] = float(n % 2)
        made.append(((draw(2, length, W, seed=n), mask), {}))
    with pair(Decides, ONE) as both:
        found = both.pipe.step(micro_batches=made, loss_fn=mean_square)
        expected = run_eager_micro_batches(both.eager, made, loss_fn=mean_square, rows=[2] * 5)
        both.assert_step(found, expected)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"micro_batches": []}, ValueError, "micro_batches is empty"),
        ({"micro_batches": [((draw(2, 3, W),), {})], "target": 1}, TypeError, "holds the whole"),
        ({"micro_batches": [draw(2, 3, W)]}, TypeError, "micro-batch 0 of micro_batches must be"),
        ({"micro_batches": draw(2, 2, 3, W)}, TypeError, "micro-batch 0 of micro_batches must be"),
        ({"micro_batches": [((draw(0, 3, W),), {})]}, ValueError, "0 rows"),
    ],
)
def test_what_are_no_micro_batches(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pair(Lengths, ONE) as both, pytest.raises(error, match=message):
        both.pipe.step(**options)


# ---- what inputs may be ------------------------------------------------------------------------------


class Point(NamedTuple):
    x: Tensor
    y: Tensor


@dataclass
class Sample:
    points: Point
    label: str
    extra: Any = None


class Anything(Deep):
    def forward(
        self,
        sample: Sample,
        flags: tuple[bool, int, None] = (True, 3, None),
        unused: Tensor | None = None,
        *,
        mode: str = "sum",
        table: list[Tensor] | None = None,
    ) -> Tensor:
        x = sample.points.x + sample.points.y
        if flags[0]:
            x = x * flags[1]
        y = self.deep(x)
        if table is not None:
            y = y + table[0]
        return y if mode == "sum" and sample.label == "a" else -y


@each_setting
def test_containers_flags_strings_and_tensors_that_nobody_reads(setting: Setting) -> None:
    def arguments(rows: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        sample = Sample(Point(draw(rows, W), draw(rows, W, seed=1)), "a")
        return (sample, (True, 2, None), draw(rows, 3)), {"table": [draw(W, seed=2)]}

    with pair(Anything, setting) as both:
        for rows in (8, 3):
            args, kwargs = arguments(rows)
            found = both.pipe.step(*args, loss_fn=mean_square, **kwargs)
            expected = run_eager_step(both.eager, args, kwargs, chunks=CHUNKS, loss_fn=mean_square)
            both.assert_step(found, expected)
        args[0].label = "b"
        found = both.pipe.step(*args, loss_fn=mean_square, mode="other")
        expected = run_eager_step(
            both.eager, args, {"mode": "other"}, chunks=CHUNKS, loss_fn=mean_square
        )
        both.assert_step(found, expected)


class Writes(Deep):
    """Writes into an input that has rows, and into one that has none."""

    def forward(self, x: Tensor, count: Tensor) -> Tensor:
        x += 1.0
        count += 1.0
        return self.deep(x * count)


@each_setting
@each_recompute
def test_inputs_that_the_model_writes_into(setting: Setting, recompute: str) -> None:
    """Each micro-batch has a copy: none sees what the others have counted."""
    with pair(Writes, setting, recompute=recompute) as both:
        x, count = draw(8, W), torch.zeros(3 * W)[:W]
        found = both.pipe.step(x, count, loss_fn=mean_square)
        expected = run_eager_step(
            both.eager, (draw(8, W), torch.zeros(W)), chunks=CHUNKS, loss_fn=mean_square
        )
        both.assert_step(found, expected)
        assert torch.equal(found.output, torch.cat(expected.outputs))
        assert torch.equal(x, draw(8, W) + 1), "the caller's tensors are as eager leaves them"
        assert torch.equal(count, torch.ones(W))


# ---- batches -----------------------------------------------------------------------------------------


@each_setting
def test_another_size_and_length_at_every_call(setting: Setting) -> None:
    with pair(Lengths, setting) as both:
        both.model.eval()
        both.eager.eval()
        with torch.no_grad():
            parts = [both.eager(part)["y"] for part in draw(5, 4, W).tensor_split(CHUNKS)]
            assert torch.equal(both.pipe(draw(5, 4, W))["y"], torch.cat(parts))
        for rows, length, training in ((8, 3, 1), (3, 3, 1), (1, 4, 0), (9, 2, 1), (2, 5, 0)):
            both.model.train(bool(training))
            both.eager.train(bool(training))
            x = draw(rows, length, W, seed=rows)
            found = both.pipe.step(x)
            expected = run_eager_step(both.eager, (x,), chunks=CHUNKS)
            both.assert_step(found, expected)
            assert found.output["y"].shape == (rows, length, W)


class Changes(Deep):
    """Takes an item out of a dictionary, puts another in, and fills a list."""

    def forward(self, batch: dict[str, Tensor], seen: list[Tensor]) -> Tensor:
        x = self.deep(batch.pop("x"))
        seen.append(x)
        batch["y"] = x * 2
        return batch["y"] + batch["shift"] + len(seen)


@each_recompute
def test_containers_that_the_model_changes_are_each_micro_batch_s_own(recompute: str) -> None:
    with pair(Changes, ONE, recompute=recompute) as both:
        batch: dict[str, Tensor] = {"x": draw(8, W), "shift": draw(8, W, seed=1)}
        seen: list[Tensor] = []
        found = both.pipe.step(batch, seen, loss_fn=mean_square)
        assert list(batch) == ["x", "shift"]
        assert seen == []
        calls = [
            (({"x": x, "shift": shift}, []), {})
            for x, shift in zip(
                *(value.tensor_split(CHUNKS) for value in batch.values()), strict=True
            )
        ]
        expected = run_eager_micro_batches(
            both.eager, calls, loss_fn=mean_square, weights=[0.25] * 4, rows=[2] * 4
        )
        both.assert_step(found, expected)


class Transposed(Deep):
    """Adds a table that has the rows last."""

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        return self.deep(x + table.t())


def test_a_transposed_table_does_not_tell_where_other_inputs_have_rows() -> None:
    """A square target, and inputs given by other names, were cut along the table's dimension."""
    with pair(Transposed, ONE, split={"table": fxpipe.Split(1)}) as both:
        x, table, target = draw(W, W), draw(W, W, seed=1), draw(W, W, seed=2)
        found = both.pipe.step(x, table, target=target, loss_fn=F.mse_loss)
        expected = run_eager_step(
            both.eager, (x, table), target=target, chunks=CHUNKS, loss_fn=F.mse_loss, dims=(0, 1)
        )
        both.assert_step(found, expected)
        assert torch.equal(both.pipe(x=x, table=table), found.output)
