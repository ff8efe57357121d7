"""Schedules with two copies of every stage: 1F1B's training up to rounding, the same at every run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxpipe
from tests.equivalence.split_models import MODELS, WIDTH, Convolutions
from tests.equivalence.test_schedules import Decoder, cross_entropy, decoder, squares, unet
from tests.reference import run_eager_step

TWO_COPIES = ("dualpipe", "chimera")
COUNTS = [(2, 1), (2, 2), (2, 4), (4, 1), (4, 2)]
"""Ranks, stages per rank."""
Made = tuple[nn.Module, Tensor, Tensor]


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    """Rounding is of no account next to a mistake."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@contextmanager
def compiled(model: nn.Module, schedule: Any, ranks: int = 2, **options: Any) -> Iterator[Any]:
    usual = {"chunks": 6, "costs": "estimate", "threads_per_rank": 1, "seed": 0}
    with fxpipe.compile(model, ["cpu"] * ranks, schedule=schedule, **{**usual, **options}) as pipe:
        yield pipe


def train(
    make: Callable[[], Made], loss_fn: Callable[[Any, Any], Tensor], schedule: str, **options: Any
) -> dict[str, Tensor]:
    """Losses, outputs and weights of two steps."""
    torch.manual_seed(3)
    model, x, target = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    found = {}
    with compiled(model, schedule, **options) as pipe:
        for step in range(2):
            optimizer.zero_grad()
            result = pipe.step(x, target=target, loss_fn=loss_fn)
            optimizer.step()
            found |= {f"loss {step}": result.loss, f"output {step}": result.output}
    return found | {name: tensor.detach() for name, tensor in model.state_dict().items()}


@cache
def one_copy(make: Callable[[], Made]) -> dict[str, Tensor]:
    """The same training with 1F1B."""
    return train(make, squares if make is unet else cross_entropy, "1f1b")


def same_up_to_rounding(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-9, atol=1e-11, msg=name)


@pytest.mark.parametrize("backend", ["inline", "local"])
@pytest.mark.parametrize(("ranks", "per_rank"), COUNTS)
@pytest.mark.parametrize("name", TWO_COPIES)
def test_a_unet_with_skips(name: str, ranks: int, per_rank: int, backend: str) -> None:
    options = {"ranks": ranks, "stages_per_rank": per_rank, "backend": backend}
    same_up_to_rounding(train(unet, squares, name, **options), one_copy(unet))


@pytest.mark.parametrize("recompute", ["never", "except_last", "always"])
@pytest.mark.parametrize(("ranks", "per_rank"), COUNTS)
@pytest.mark.parametrize("name", TWO_COPIES)
def test_a_decoder_with_tied_embeddings(
    name: str, ranks: int, per_rank: int, recompute: str
) -> None:
    options = {"ranks": ranks, "stages_per_rank": per_rank, "recompute": recompute}
    same_up_to_rounding(train(decoder, cross_entropy, name, **options), one_copy(decoder))


@pytest.mark.parametrize("make", [unet, decoder])
@pytest.mark.parametrize("name", TWO_COPIES)
def test_the_same_bits_at_every_run(name: str, make: Callable[[], Made]) -> None:
    loss_fn = squares if make is unet else cross_entropy
    runs = [train(make, loss_fn, name, backend=b) for b in ("inline", "local", "local")]
    for run in runs[1:]:
        assert [key for key, tensor in runs[0].items() if not torch.equal(run[key], tensor)] == []


@pytest.mark.parametrize(
    ("name", "recompute"), [("chimera", "never"), ("dualpipe", "never"), ("dualpipe", "always")]
)
@pytest.mark.parametrize("kind", MODELS)
def test_models_of_all_kinds(kind: str, name: str, recompute: str) -> None:
    """A copy reads no parameter of the user's: none is left out, and none counted twice."""

    def make() -> Made:
        torch.manual_seed(3)
        model = MODELS[kind]()
        if isinstance(model, Convolutions):
            return model, torch.randint(0, 11, (8, 6)), torch.randn(8)
        return model, torch.randn(8, 5, WIDTH), torch.randn(8)

    model, x, target = make()
    reference, *_ = make()
    eager = run_eager_step(reference, (x,), chunks=4, loss_fn=squares, target=target)
    with compiled(model, name, chunks=4, recompute=recompute) as pipe:
        result = pipe.step(x, target=target, loss_fn=squares)
    assert torch.equal(result.loss, eager.loss)
    for (path, parameter), other in zip(
        model.named_parameters(), reference.parameters(), strict=True
    ):
        assert (parameter.grad is None) == (other.grad is None), path
        if other.grad is not None:
            torch.testing.assert_close(parameter.grad, other.grad, msg=path)


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 9])
def test_any_number_of_micro_batches(rows: int) -> None:
    torch.manual_seed(3)
    model, reference = Decoder(), Decoder()
    reference.load_state_dict(model.state_dict())
    with compiled(model, "chimera", ranks=2, chunks=4) as pipe:
        for count in (4, rows):
            ids = torch.randint(0, 23, (count, 6))
            reference.zero_grad()
            eager = run_eager_step(
                reference, (ids,), chunks=min(4, count), loss_fn=cross_entropy, target=ids
            )
            pipe.zero_grad()
            found = pipe.step(ids, target=ids, loss_fn=cross_entropy)
            assert torch.equal(found.loss, eager.loss)
            for one, other in zip(model.parameters(), reference.parameters(), strict=True):
                torch.testing.assert_close(one.grad, other.grad)
        ready = [((ids[row : row + 1],), {}, ids[row : row + 1]) for row in range(len(ids))]
        pipe.step(micro_batches=ready * 6, loss_fn=cross_entropy)


def test_calls_have_eager_s_bits() -> None:
    """Evaluation and drop-in calls run through the first copy alone."""
    torch.manual_seed(3)
    model, ids, _ = decoder()
    expected = model(ids)
    with compiled(model, "dualpipe", chunks=4) as pipe:
        pipe.step(ids, target=ids, loss_fn=cross_entropy)
        pipe.zero_grad()
        pipe.eval()
        with torch.no_grad():
            torch.testing.assert_close(pipe(ids), expected.detach())
        pipe.train()
        cross_entropy(pipe(ids), ids).backward()
    reference = Decoder()
    reference.load_state_dict(model.state_dict())
    cross_entropy(reference(ids), ids).backward()
    for one, other in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


class Recurrent(nn.Module):
    """Layers that hold their parameters in a list, too."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LSTM(5, 6, num_layers=2, dropout=0.2, batch_first=True)
        self.second = nn.GRU(6, 3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(self.first(x)[0])[0]
        return y


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv1d(5, 8, 1), nn.BatchNorm1d(8), nn.Dropout(0.3)),
            *(nn.Conv1d(8, 5, 1), nn.BatchNorm1d(5)),
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return y


@pytest.mark.parametrize("name", TWO_COPIES)
@pytest.mark.parametrize("make", [Recurrent, Normed])
def test_draws_and_running_statistics_are_those_of_one_copy(
    make: Callable[[], nn.Module], name: str
) -> None:
    """Running statistics are made of the micro-batches in their order, whichever copy has seen them."""

    def example() -> Made:
        return make(), torch.randn(8, 5, 5), torch.randn(8)

    found, expected = (train(example, squares, schedule) for schedule in (name, "1f1b"))
    same_up_to_rounding(found, expected)
    if make is Normed:
        assert torch.equal(
            found["layers.1.num_batches_tracked"], expected["layers.1.num_batches_tracked"]
        )


class Spectral(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.utils.parametrizations.spectral_norm(nn.Linear(5, 5))
        self.second = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(self.first(x))
        return y


def test_what_passes_from_micro_batch_to_micro_batch_is_refused() -> None:
    x = torch.randn(8, 5, 5)
    with (
        compiled(Normed(), "chimera", batch_norm="per_micro_batch") as pipe,
        pytest.raises(
            fxpipe.ScheduleError, match=r"layers\.1\.running_mean.*batch_norm='deferred'"
        ),
    ):
        pipe.step(x, loss_fn=squares, target=x)
    with (
        compiled(Spectral(), "chimera") as pipe,
        pytest.raises(fxpipe.ScheduleError, match=r"first.*_u.*or choose a schedule with one copy"),
    ):
        pipe.step(x, loss_fn=squares, target=x)
    pipe = fxpipe.compile(Spectral().eval(), ["cpu"] * 2, chunks=4, schedule="chimera")
    with pipe:  # nothing changes in evaluation mode
        pipe.step(x, loss_fn=squares, target=x)


class Metric(nn.Module):
    """A loss with a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        loss: Tensor = self.weight * squares(output, target)
        return loss


def test_a_loss_with_parameters_is_refused() -> None:
    x = torch.randn(8, 5, WIDTH)
    with compiled(MODELS["blocks"](), "chimera") as pipe:
        with pytest.raises(fxpipe.ScheduleError, match="the loss has parameters"):
            pipe.step(x, loss_fn=Metric(), target=x)
        pipe.step(x, loss_fn=Metric().requires_grad_(False), target=x)


def halve(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(0.5)


@pytest.mark.parametrize("name", TWO_COPIES)
def test_hooks_that_wait_for_an_accumulated_gradient_are_refused(name: str) -> None:
    x, model = torch.randn(8, 5, WIDTH), MODELS["blocks"]()
    path, parameter = list(model.named_parameters())[-1]
    with compiled(model, name) as pipe:
        pipe.step(x, loss_fn=squares, target=x)
        hook = parameter.register_post_accumulate_grad_hook(halve)
        told = rf"two copies of stage 1, which reads '{path}'.*schedule with one copy"
        model.zero_grad()
        with pytest.raises(fxpipe.ScheduleError, match=told):
            pipe.step(x, loss_fn=squares, target=x)
        assert all(each.grad is None for each in model.parameters())
        squares(pipe(x), x).backward()  # through the first copy alone
        hook.remove()
        pipe.step(x, loss_fn=squares, target=x)


def test_also_of_a_parameter_that_several_stages_read() -> None:
    torch.manual_seed(3)
    model = nn.Sequential(*(nn.Linear(5, 5) for _ in range(4)))
    model[3].weight = model[0].weight
    x = torch.randn(8, 5)
    with compiled(model, "1f1b") as pipe:
        hook = model[0].weight.register_post_accumulate_grad_hook(halve)
        told = r"stages 0, 1 read '0\.weight'.*so that one stage reads it"
        with pytest.raises(fxpipe.ScheduleError, match=told):
            pipe.step(x, loss_fn=squares, target=x)
        with pytest.raises(fxpipe.ScheduleError, match=told):
            pipe(x)
        with torch.no_grad():
            pipe(x)
        hook.remove()
        model[1].weight.register_post_accumulate_grad_hook(halve)
        pipe.step(x, loss_fn=squares, target=x)


class Counting(nn.Module):
    """It keeps the last thing that it has seen, and writes into what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        memory.add_(x.detach().mean())
        y: Tensor = self.second(self.first(x) + memory)
        return y


def test_an_input_that_all_micro_batches_write_into_has_the_last_ones_values() -> None:
    torch.manual_seed(3)
    x, expected = torch.randn(8, 5), torch.zeros(5)
    model = Counting()
    for _ in range(5):
        memory = torch.zeros(5)
        with compiled(model, "chimera", chunks=4) as pipe:
            pipe.step(x, memory, loss_fn=squares, target=x)
        expected = torch.zeros(5) + x[6:].mean()
        assert torch.equal(memory, expected)


def test_a_schedule_of_ones_own() -> None:
    """Three copies of the first stage, two of the second, which share a rank with others."""
    text = """
        0F0 1F1 1B1 0B0
        1F0 0F1 1B0 1F2 1B2 0B1
        0F2 0B2
    """
    schedule = fxpipe.Schedule.from_text(text, replicas=3)
    torch.manual_seed(3)
    model, reference = Decoder(), Decoder()
    reference.load_state_dict(model.state_dict())
    ids = torch.randint(0, 23, (3, 6))
    run_eager_step(reference, (ids,), chunks=3, loss_fn=cross_entropy, target=ids)
    capture = fxpipe.trace(model, (ids[:2],))
    plan = fxpipe.partition(capture, fxpipe.estimate(capture, model), 2)
    graph = fxpipe.link(capture, plan)
    stages = fxpipe.generate(capture, plan, graph, model)
    programs = fxpipe.lower(schedule, graph)
    fxpipe.run(model, capture, stages, graph, programs, (ids,), target=ids, loss_fn=cross_entropy)
    for one, other in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


class Decides(nn.Module):
    """It goes one way for some micro-batches, another for others."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.other, self.last = (nn.Linear(5, 5) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            x = self.other(x).tanh()
        y: Tensor = self.last(self.first(x))
        return y


@pytest.mark.parametrize("backend", ["inline", "local"])
def test_micro_batches_that_go_different_ways(backend: str) -> None:
    torch.manual_seed(3)
    model, reference = Decides(), Decides()
    reference.load_state_dict(model.state_dict())
    signs = torch.tensor([1.0, 1.0, -1.0, -1.0, 1.0, -1.0]).repeat_interleave(2)
    x = torch.randn(12, 5).abs() * signs.unsqueeze(1)
    run_eager_step(reference, (x,), chunks=6, loss_fn=squares, target=x)
    with compiled(model, "chimera", backend=backend) as pipe:
        pipe.step(x, target=x, loss_fn=squares)
    for one, other in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_a_step_that_fails_leaves_the_next_one_alone() -> None:
    torch.manual_seed(3)
    model, ids, _ = decoder()

    def broken(output: Tensor, target: Tensor) -> Tensor:
        raise RuntimeError("no loss today")

    with compiled(model, "dualpipe") as pipe:
        with pytest.raises(RuntimeError, match="no loss today"):
            pipe.step(ids, target=ids, loss_fn=broken)
        pipe.zero_grad()
        pipe.step(ids, target=ids, loss_fn=cross_entropy)
    found = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    with compiled(model, "dualpipe") as pipe:
        pipe.step(ids, target=ids, loss_fn=cross_entropy)
    for parameter, grad in zip(model.parameters(), found, strict=True):
        assert torch.equal(parameter.grad, grad)


def test_what_the_search_finds_with_replicas_runs() -> None:
    torch.manual_seed(3)
    model, ids, _ = decoder()
    share = fxpipe.StageCost(forward=1.0, backward=2.0, weight=1.0, saved_bytes=1)
    found = fxpipe.search_schedule([share] * 2, ranks=2, micro_batches=4, replicas=True, seconds=1)
    with compiled(model, found.schedule, chunks=4) as pipe:
        pipe.step(ids, target=ids, loss_fn=cross_entropy)
    reference = Decoder()
    reference.load_state_dict(model.state_dict())
    run_eager_step(reference, (ids,), chunks=4, loss_fn=cross_entropy, target=ids)
    for one, other in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
