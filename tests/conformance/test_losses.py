"""Losses of the whole batch, whichever way they are reduced, and wherever they are computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxpipe
from tests.conformance.pipes import (
    CHUNKS,
    Setting,
    draw,
    draw_ints,
    each_recompute,
    each_setting,
    pair,
)
from tests.reference import run_eager_micro_batches, run_eager_step

ONE = Setting("1f1b", 3, "inline")
VOCABULARY, WIDTH, IGNORED = 11, 8, -100


class Tagger(nn.Module):
    """Scores for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.Sequential(
            *(layer for _ in range(3) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh()))
        )
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.blocks(self.table(ids)))


class TaggerWithLoss(Tagger):
    """Computes its own loss."""

    def forward(self, ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        scores = super().forward(ids)
        return {"loss": token_loss(scores, labels), "scores": scores}


def token_loss(scores: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


def token_sum(scores: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(
        scores.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum"
    )


def count_labels(args: tuple[Any, ...], kwargs: dict[str, Any], target: Any) -> Tensor:
    return (target != IGNORED).sum()


def count_own_labels(args: tuple[Any, ...], kwargs: dict[str, Any], target: Any) -> Tensor:
    return (kwargs["labels"] != IGNORED).sum()


def tokens(rows: int) -> tuple[Tensor, Tensor]:
    """Ids and labels: the first micro-batch has none, the second one a row, the others all."""
    ids = draw_ints(VOCABULARY, rows, 6, seed=rows)
    labels = ids.roll(-1, 1).clone()
    share = -(-rows // CHUNKS)
    labels[:share] = IGNORED
    labels[share : 2 * share, 1:] = IGNORED
    return ids, labels


def assert_close_to_the_whole_batch(
    model: nn.Module, eager: nn.Module, whole: Callable[[nn.Module], Tensor], loss: Tensor
) -> None:
    """Up to rounding, loss and gradients are those of one forward of everything."""
    eager.zero_grad()
    expected = whole(eager)
    expected.backward()
    torch.testing.assert_close(loss, expected.detach())
    for one, other in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


# ---- outside the model -------------------------------------------------------------------------------


@each_setting
@pytest.mark.parametrize("rows", [8, 11])
def test_mean_over_tokens(setting: Setting, rows: int) -> None:
    ids, labels = tokens(rows)
    options = {"target": labels, "loss_fn": token_loss, "weights": count_labels}
    with pair(Tagger, setting) as both:
        found = both.pipe.step(ids, **options)
        both.assert_step(found, run_eager_step(both.eager, (ids,), chunks=CHUNKS, **options))
        assert_close_to_the_whole_batch(
            both.model, both.eager, lambda m: token_loss(m(ids), labels), found.loss
        )
        assert found.output.shape == (rows, 6, VOCABULARY)


@each_setting
def test_sum(setting: Setting) -> None:
    ids, labels = tokens(10)
    with pair(Tagger, setting) as both:
        found = both.pipe.step(ids, target=labels, loss_fn=token_sum, weights="sum")
        expected = run_eager_step(
            both.eager, (ids,), chunks=CHUNKS, loss_fn=token_sum, target=labels, weights="sum"
        )
        both.assert_step(found, expected)
        assert_close_to_the_whole_batch(
            both.model, both.eager, lambda m: token_sum(m(ids), labels), found.loss
        )


@each_setting
def test_mean_over_rows(setting: Setting) -> None:
    ids, labels = draw_ints(VOCABULARY, 10, 6), draw_ints(VOCABULARY, 10, 6, seed=1)
    with pair(Tagger, setting) as both:
        found = both.pipe.step(ids, target=labels, loss_fn=token_loss)
        expected = run_eager_step(
            both.eager, (ids,), chunks=CHUNKS, loss_fn=token_loss, target=labels
        )
        both.assert_step(found, expected)
        assert_close_to_the_whole_batch(
            both.model, both.eager, lambda m: token_loss(m(ids), labels), found.loss
        )


@each_recompute
def test_a_micro_batch_without_a_label_is_left_out(recompute: str) -> None:
    """Its loss is not a number: nothing of it is run backward, or added up."""
    ids, labels = tokens(8)
    backwards: list[int] = []
    with pair(Tagger, ONE, recompute=recompute) as both:
        both.pipe.capture(ids)
        both.model.blocks[2].register_full_backward_hook(
            lambda m, i, o: backwards.append(len(o[0]))
        )
        found = both.pipe.step(ids, target=labels, loss_fn=token_loss, weights=count_labels)
        assert found.loss.isfinite()
        assert len(backwards) == 3
        assert all(p.grad.isfinite().all() for p in both.model.parameters())
        plain = both.pipe.step(ids, target=labels, loss_fn=token_loss)
        assert plain.loss.isnan()  # as in eager, if nobody says what the mean is over


def test_a_loss_is_not_asked_where_it_weighs_nothing() -> None:
    seen: list[int] = []

    def loss_fn(output: Tensor, target: Tensor) -> Tensor:
        seen.append(int(target[0]))
        return output.square().mean()

    with pair(Tagger, ONE) as both:
        target = torch.arange(4)
        both.pipe.step(tokens(4)[0], target=target, loss_fn=loss_fn, weights=[0.5, 0, 0.0, 2])
        assert seen == [0, 3]


@each_setting
def test_numbers_for_each_micro_batch(setting: Setting) -> None:
    ids, labels = tokens(8)
    weights = torch.tensor([0.0, 0.25, 0.125, 2.0])
    with pair(Tagger, setting) as both:
        found = both.pipe.step(ids, target=labels, loss_fn=token_loss, weights=weights)
        expected = run_eager_step(
            both.eager,
            (ids,),
            chunks=CHUNKS,
            loss_fn=token_loss,
            target=labels,
            weights=weights.tolist(),
        )
        both.assert_step(found, expected)


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.norm(self.a(x)).relu())


@each_setting
def test_batch_norm_counts_a_micro_batch_that_is_left_out(setting: Setting) -> None:
    x, weights = draw(12, 4), [1.0, 0.0, 0.5, 0.5]
    with pair(Normed, setting) as both:
        found = both.pipe.step(x, loss_fn=lambda y, _: y.square().mean(), weights=weights)
        expected = run_eager_step(
            both.eager,
            (x,),
            chunks=CHUNKS,
            loss_fn=lambda y, _: y.square().mean(),
            weights=weights,
            deferred_norms=False,
        )
        both.assert_step(found, expected)
        assert both.model.norm.num_batches_tracked == 4


def test_deferred_batch_norm_has_the_statistics_of_all_rows() -> None:
    x = draw(12, 4)
    with pair(Normed, ONE, batch_norm="deferred") as both:
        before = [p.clone() for p in both.model.parameters()]
        both.pipe.step(x, loss_fn=lambda y, _: y.square().mean(), weights=[0.0, 1.0, 0.0, 1.0])
        assert all(map(torch.equal, before, both.model.parameters()))
        expected = nn.BatchNorm1d(4)
        expected(both.model.a(x))
        assert both.model.norm.num_batches_tracked == 1
        torch.testing.assert_close(both.model.norm.running_mean, expected.running_mean)
        torch.testing.assert_close(both.model.norm.running_var, expected.running_var)


# ---- inside the model --------------------------------------------------------------------------------


@each_setting
@each_recompute
def test_own_loss_over_tokens(setting: Setting, recompute: str) -> None:
    ids, labels = tokens(10)
    with pair(TaggerWithLoss, setting, recompute=recompute) as both:
        found = both.pipe.step(ids, labels=labels, weights=count_own_labels)
        expected = run_eager_step(
            both.eager, (ids,), {"labels": labels}, chunks=CHUNKS, weights=count_own_labels
        )
        both.assert_step(found, expected)
        assert torch.equal(found.output["loss"], found.loss), "weighed like the loss of the batch"
        assert_close_to_the_whole_batch(
            both.model, both.eager, lambda m: m(ids, labels)["loss"], found.loss
        )


class Mixture(nn.Module):
    """Each layer has a loss of its own, made in an inner stage."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.routers = nn.ModuleList(nn.Linear(WIDTH, 3) for _ in range(4))
        self.side = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> dict[str, Any]:
        balance = x.new_zeros(())
        inner = []
        for layer, router in zip(self.layers, self.routers, strict=True):
            gate = router(x).softmax(-1)
            balance = balance + gate.square().sum(-1).mean()
            x = x + layer(x).tanh() * gate[:, :1]
            inner.append(self.side(x))
        return {"y": x, "balance": balance, "inner": inner[:2], "norm": x.square().mean()}


def supervised(output: dict[str, Any], target: Tensor) -> Tensor:
    deep = sum(F.cross_entropy(scores, target) for scores in output["inner"])
    return output["y"].square().mean() + 0.1 * output["balance"] + deep


@each_setting
def test_losses_of_inner_stages(setting: Setting) -> None:
    x, target = draw(10, WIDTH), draw_ints(2, 10)
    with pair(Mixture, setting) as both:
        found = both.pipe.step(x, target=target, loss_fn=supervised)
        expected = run_eager_step(
            both.eager, (x,), chunks=CHUNKS, loss_fn=supervised, target=target
        )
        assert torch.equal(found.loss, expected.loss)
        for name, parameter in both.eager.named_parameters():
            mine = both.model.get_parameter(name).grad
            if name.startswith("side."):  # read by several stages
                torch.testing.assert_close(mine, parameter.grad)
            else:
                assert torch.equal(mine, parameter.grad), name
        shares = [3 / 10, 3 / 10, 2 / 10, 2 / 10]
        balance = sum(o["balance"] * w for o, w in zip(expected.outputs, shares, strict=True))
        assert torch.equal(found.output["balance"], balance)
        assert_close_to_the_whole_batch(
            both.model, both.eager, lambda m: supervised(m(x), target), found.loss
        )


def contrast(output: Tensor, target: Any = None) -> Tensor:
    """Compares every row with every other one: no sum over rows."""
    return F.cross_entropy(output @ output.T, torch.arange(len(output)))


@each_setting
def test_a_loss_over_pairs_of_rows_is_exact_in_the_drop_in_call(setting: Setting) -> None:
    ids = tokens(8)[0]
    with pair(Tagger, setting) as both:
        loss = contrast(both.pipe(ids).flatten(1))
        loss.backward()
        assert_close_to_the_whole_batch(
            both.model, both.eager, lambda m: contrast(m(ids).flatten(1)), loss.detach()
        )
        both.model.zero_grad()
        both.eager.zero_grad()

        def in_step(output: Tensor, target: Any) -> Tensor:
            return contrast(output.flatten(1))

        found = both.pipe.step(ids, loss_fn=in_step)
        both.assert_step(found, run_eager_step(both.eager, (ids,), chunks=CHUNKS, loss_fn=in_step))


# ---- scale -------------------------------------------------------------------------------------------


@each_setting
@pytest.mark.parametrize("scale", [0.25, 3.0, torch.tensor(1024.0)])
def test_scale_is_of_the_gradients_and_not_of_the_loss(setting: Setting, scale: Any) -> None:
    ids, labels = tokens(10)
    with pair(Tagger, setting) as both:
        options = {"target": labels, "loss_fn": token_loss, "weights": count_labels}
        found = both.pipe.step(ids, scale=scale, **options)
        expected = run_eager_step(both.eager, (ids,), chunks=CHUNKS, scale=float(scale), **options)
        both.assert_step(found, expected)
        plain = both.pipe.step(ids, **options)
        assert torch.equal(plain.loss, found.loss)


def test_accumulation_over_steps() -> None:
    batches = [tokens(8), tokens(6), tokens(9)]
    with pair(Tagger, ONE) as both:
        for ids, labels in batches:
            options = {
                "target": labels,
                "loss_fn": token_loss,
                "weights": count_labels,
                "scale": 1 / 3,
            }
            both.pipe.step(ids, **options)
            run_eager_step(both.eager, (ids,), chunks=CHUNKS, **options)
        both.assert_state()


def test_gradients_of_inputs_are_scaled_too() -> None:
    with pair(Normed, ONE) as both:
        x = draw(8, 4).requires_grad_()
        both.pipe.step(x, loss_fn=lambda y, _: y.square().mean(), scale=4.0)
        expected = run_eager_step(
            both.eager,
            (x,),
            chunks=CHUNKS,
            loss_fn=lambda y, _: y.square().mean(),
            scale=4.0,
            deferred_norms=False,
        )
        assert torch.equal(x.grad, expected.input_grads[0])


def test_gradients_of_inputs_of_a_micro_batch_that_is_left_out_are_zero() -> None:
    with pair(Normed, ONE) as both:
        x = draw(8, 4).requires_grad_()
        weights = [1.0, 0.0, 1.0, 1.0]
        both.pipe.step(x, loss_fn=lambda y, _: y.square().mean(), weights=weights)
        assert not x.grad[2:4].any()
        assert x.grad[:2].all()


# ---- by hand, and what is refused --------------------------------------------------------------------


def test_one_step_by_hand_has_weights_too() -> None:
    ids, labels = tokens(8)
    torch.manual_seed(0)
    model = Tagger()
    capture = fxpipe.trace(model, (ids[:2],))
    plan = fxpipe.partition(capture, fxpipe.estimate(capture, model), stages=2)
    graph = fxpipe.link(capture, plan)
    stages = fxpipe.generate(capture, plan, graph, model)
    schedule = fxpipe.Schedule.from_text("0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1")
    programs = fxpipe.lower(schedule, graph)
    options = {"target": labels, "loss_fn": token_loss, "weights": count_labels, "scale": 2.0}
    found = fxpipe.run(model, capture, stages, graph, programs, (ids,), **options)
    grads = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad()
    expected = run_eager_step(model, (ids,), chunks=2, **options)
    assert torch.equal(found.loss, expected.loss)
    assert all(torch.equal(grads[name], grad) for name, grad in expected.grads.items())


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"weights": "mean"}, ValueError, "weights must be 'samples', 'sum', a function"),
        ({"weights": [1.0]}, ValueError, "1 weights are given for 4 micro-batches"),
        ({"weights": lambda *_: 0}, ValueError, "nothing to learn from in this batch"),
        ({"loss_fn": lambda y, t: y}, ValueError, "loss_fn returned a tensor of shape"),
        ({"loss_fn": lambda y, t: y.detach().mean()}, ValueError, "does not depend on anything"),
    ],
)
def test_what_is_no_loss(options: dict[str, Any], error: type[Exception], message: str) -> None:
    ids, labels = tokens(8)
    with pair(Tagger, ONE) as both:
        with pytest.raises(error, match=message):
            both.pipe.step(ids, **{"target": labels, "loss_fn": token_loss, **options})
        both.model.zero_grad()
        both.pipe.step(ids, target=labels, loss_fn=token_loss, weights=count_labels)


def test_ready_made_micro_batches_have_weights_too() -> None:
    lengths = [(2, 5), (1, 9), (3, 4)]
    made = []
    for n, (rows, length) in enumerate(lengths):
        ids = draw_ints(VOCABULARY, rows, length, seed=n)
        labels = ids.clone()
        labels[:, : 2 * n] = IGNORED
        made.append(((ids,), {}, labels))
    made.append(((draw_ints(VOCABULARY, 2, 5),), {}, torch.full((2, 5), IGNORED)))
    with pair(Tagger, ONE) as both:
        found = both.pipe.step(micro_batches=made, loss_fn=token_loss, weights=count_labels)
        expected = run_eager_micro_batches(
            both.eager, made, loss_fn=token_loss, weights=count_labels, rows=[2, 1, 3, 2]
        )
        both.assert_step(found, expected)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
@pytest.mark.parametrize("backend", ["inline", "local"])
def test_a_penalty_on_the_model_s_weights_in_the_loss(backend: str, schedule: str) -> None:
    """The last stage adds to the gradients of all, whenever it comes to it: up to rounding."""
    model, eager = Tagger().double(), Tagger().double()
    eager.load_state_dict(model.state_dict())
    ids = draw_ints(VOCABULARY, 6, 5)

    def penalized(of: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
        def loss(scores: Tensor, labels: Tensor) -> Tensor:
            return token_loss(scores, labels) + sum(p.square().sum() for p in of.parameters())

        return loss

    expected = run_eager_step(
        eager, (ids,), {}, chunks=CHUNKS, loss_fn=penalized(eager), target=ids
    )
    options = {"costs": "estimate", "backend": backend, "schedule": schedule}
    with fxpipe.compile(model, ["cpu"] * 3, CHUNKS, **options) as pipe:
        found = pipe.step(ids, target=ids, loss_fn=penalized(model))
    torch.testing.assert_close(found.loss, expected.loss)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected.grads[name])
