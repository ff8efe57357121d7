"""One test per bug that once gave a wrong result, each with its story."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

import fxpipe
from fxpipe.analysis.cuts import legal_cuts
from fxpipe.capture.guards import failed_guard
from tests.losses import mean_square
from tests.reference import run_eager_step
from tests.unit.capture.small import Codebook


def compiled(model: nn.Module, cut: str = "1", **options: Any) -> fxpipe.Pipeline:
    options.setdefault("chunks", 4)
    return fxpipe.compile(
        model, ["cpu"] * 2, cuts=[cut], costs="estimate", threads_per_rank=1, **options
    )


def rows(count: int = 8, width: int = 8, seed: int = 1) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def grads_of(model: nn.Module) -> list[Tensor]:
    found = [parameter.grad for parameter in model.parameters()]
    assert all(grad is not None for grad in found)
    return [grad.clone() for grad in found if grad is not None]


def same(ones: list[Tensor], others: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(ones, others, strict=True))


# ---- buffers -------------------------------------------------------------------------------------


class Cumulative(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("total", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        self.total += x.detach().mean(0)
        return self.linear(x) * self.total


def spectral() -> nn.Module:
    return nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))


# The first forward of a call kept the user's own buffer for its rerun. The end of the call put the
# last value into that very buffer, before the backward came to rerun anything.
@pytest.mark.parametrize("make", [Cumulative, spectral])
@pytest.mark.parametrize("chunks", [1, 4])
def test_a_rerun_after_the_call_reads_the_buffer_of_its_forward(
    make: Callable[[], nn.Module], chunks: int
) -> None:
    found = []
    for recompute in ("never", "always"):
        torch.manual_seed(0)
        model = nn.Sequential(make(), make())
        with compiled(model, chunks=chunks, recompute=recompute) as pipe:
            for _ in range(2):
                mean_square(pipe(rows())).backward()
        found.append(grads_of(model) + [b.clone() for b in model.buffers()])
    assert same(*found)


# ---- the user's own checkpoints ------------------------------------------------------------------


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.drop(self.linear(x)))


class NoisyFunction(Noisy):
    """Draws by a function: the module runs under a dispatch mode."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(F.dropout(self.linear(x), 0.5))


class Checkpointed(nn.Module):
    """Checkpoints side by side, one in another, of a module that is called more than once."""

    def __init__(self, how: str, noisy: type[Noisy]) -> None:
        super().__init__()
        self.how = how
        self.left = noisy()
        self.right = noisy()

    def run(self, function: Callable[..., Tensor], *args: Tensor) -> Tensor:
        if self.how == "plain":
            return function(*args)
        result: Tensor = checkpoint(function, *args, use_reentrant=self.how == "reentrant")
        return result

    def both(self, x: Tensor) -> Tensor:
        return self.run(self.right, self.left(self.right(x)))

    def forward(self, x: Tensor) -> Tensor:
        first = self.run(self.left, x)
        second = self.run(self.right, x * 2)
        return self.run(self.both, second) + self.run(self.left, first)


# The backward ran the checkpoint's forward again with the counters, and the micro-batch, of whatever
# forward had come last: other dropout masks than the forward's.
@pytest.mark.parametrize("noisy", [Noisy, NoisyFunction])
@pytest.mark.parametrize("how", ["reentrant", "not reentrant"])
@pytest.mark.parametrize("recompute", ["never", "always"])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_dropout_in_checkpoints_of_the_user(
    noisy: type[Noisy], how: str, recompute: str, schedule: str
) -> None:
    found = []
    for kind in ("plain", how):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), Checkpointed(kind, noisy), Checkpointed(kind, noisy))
        with compiled(model, "2", seed=3, recompute=recompute, schedule=schedule) as pipe:
            pipe.step(rows(), loss_fn=mean_square)
            mean_square(pipe(rows())).backward()
        found.append(grads_of(model))
    # A reentrant checkpoint adds a shared module's gradients in an order of its own.
    for mine, plain in zip(*found, strict=True):
        assert torch.equal(mine, plain) or how == "reentrant"
        torch.testing.assert_close(mine, plain, rtol=1e-4, atol=1e-6)


class ChecksItself(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)

    def inner(self, x: Tensor) -> Tensor:
        return torch.tanh(self.norm(self.linear(x)))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = checkpoint(self.inner, x, use_reentrant=False)
        return result


# Deferred batch norms counted what a checkpoint ran again as one more call.
def test_batch_norm_in_checkpoints_of_the_user_counts_once() -> None:
    model = nn.Sequential(ChecksItself(), ChecksItself())
    with compiled(model) as pipe:
        pipe.step(rows(), loss_fn=mean_square)
        mean_square(pipe(rows())).backward()
    assert model[0].norm.num_batches_tracked.item() == 2
    assert model[1].norm.num_batches_tracked.item() == 2


class Once(nn.Module):
    """A module under a checkpoint, or not."""

    def __init__(self, module: nn.Module, how: str) -> None:
        super().__init__()
        self.module = module
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(x)
        if self.how == "plain":
            return self.module(x)
        result: Tensor = checkpoint(self.module, x, use_reentrant=self.how == "reentrant")
        return result


# What a checkpoint ran again read the buffers as the forward of a later micro-batch had left them.
# (Eager reads them as the forward of this one has left them: it gives other gradients, too.)
@pytest.mark.parametrize("make", [Cumulative, spectral])
@pytest.mark.parametrize("how", ["reentrant", "not reentrant"])
@pytest.mark.parametrize("recompute", ["never", "always"])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_buffers_in_checkpoints_of_the_user(
    make: Callable[[], nn.Module], how: str, recompute: str, schedule: str
) -> None:
    found = []
    for kind in ("plain", how):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), Once(make(), kind), Once(make(), kind))
        with compiled(model, "2", recompute=recompute, schedule=schedule) as pipe:
            pipe.step(rows(), loss_fn=mean_square)
            mean_square(pipe(rows())).backward()
        found.append(grads_of(model) + [b.clone() for b in model.buffers()])
    assert same(*found)


class DrawsInside(ChecksItself):
    def inner(self, x: Tensor) -> Tensor:
        return F.dropout(super().inner(x), 0.5)


# What is drawn in a checkpoint inside of the module that has the keys cannot be drawn again by them.
def test_draws_that_cannot_be_repeated_are_refused() -> None:
    with (
        compiled(nn.Sequential(DrawsInside(), DrawsInside())) as pipe,
        pytest.raises(fxpipe.FxPipeError, match=r"recompute='always'"),
    ):
        pipe.step(rows(), loss_fn=mean_square)


class DrawsInBackward(Noisy):
    def forward(self, x: Tensor) -> Tensor:
        made = super().forward(x)
        if made.requires_grad:
            made.register_hook(lambda grad: self.drop(grad))
        return made


def test_dropout_that_only_the_backward_calls_is_refused() -> None:
    model = nn.Sequential(nn.Linear(8, 8), DrawsInBackward(), nn.Linear(8, 8))
    with (
        compiled(model, "2") as pipe,
        pytest.raises(fxpipe.FxPipeError, match="cannot be told which call"),
    ):
        pipe.step(rows(), loss_fn=mean_square)


# ---- shells --------------------------------------------------------------------------------------


class Reaches(Noisy):
    """Reaches its dropout by a reference that is made once, when the module is."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.call: Any
        if how == "bound method":
            self.call = self.run
        elif how == "partial":
            self.call = partial(Reaches.run, self)
        elif how == "closure":
            self.call = lambda x: self.run(x)
        elif how == "forward":
            self.forward = self.run  # type: ignore[method-assign]
        else:
            self.call = {"nested": [(self.drop,)]}

    def run(self, x: Tensor) -> Tensor:
        return torch.tanh(self.drop(self.linear(x)))

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.call, dict):
            return torch.tanh(self.call["nested"][0][0](self.linear(x)))
        result: Tensor = self.call(x)
        return result


# A reference past the shell led to the user's own dropout, which drew from the default generator: a
# rerun drew other numbers than its forward.
@pytest.mark.parametrize("how", ["bound method", "partial", "closure", "forward", "containers"])
def test_references_to_modules_lead_to_their_shells(how: str) -> None:
    found = []
    for recompute in ("never", "always"):
        torch.manual_seed(0)
        model = nn.Sequential(Reaches(how), Reaches(how))
        with compiled(model, seed=3, recompute=recompute) as pipe:
            before = torch.get_rng_state()
            pipe.step(rows(), loss_fn=mean_square)
            pipe.step(rows(), loss_fn=mean_square)
            assert recompute == "never" or torch.equal(before, torch.get_rng_state())
        found.append(grads_of(model))
    assert same(*found)


class Gated(Noisy):
    def __init__(self) -> None:
        super().__init__()
        self.gate = torch.zeros(())
        self.rows = 0

    def forward(self, x: Tensor) -> Tensor:
        self.rows = x.shape[0]
        return super().forward(x) * self.gate


# Hooks were given the user's module, but the forward ran on the shell: what one of them wrote, the
# other saw at the next call.
def test_hooks_and_forward_see_what_the_other_has_written() -> None:
    def set_gate(module: Gated, args: tuple[Tensor]) -> None:
        module.gate = args[0].detach().abs().mean()

    def note(module: Gated, args: tuple[Tensor], output: Tensor) -> None:
        seen.append((module.rows, output.detach().abs().sum().item() > 0))

    seen: list[tuple[int, bool]] = []
    model = nn.Sequential(nn.Linear(8, 8), Gated(), nn.Linear(8, 8))
    model[1].register_forward_pre_hook(set_gate)
    model[1].register_forward_hook(note)
    with compiled(model, "2", chunks=2) as pipe:
        pipe(rows(4))
        model[1].gate = torch.zeros(())
        model[1].rows = 0
        seen.clear()
        pipe(rows(4))
        assert seen == [(2, True), (2, True)]


# ---- sizes that depend on data ---------------------------------------------------------------------


class MeanOverSelected(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        h = self.first(x[mask])
        return self.second(h).square().sum() / h.shape[0]


# That a size depends on data was forgotten at every layer: the number of selected rows was taken for
# a multiple of the batch size.
def test_the_number_of_selected_rows_is_no_multiple_of_the_batch() -> None:
    mask, model, x = torch.tensor([True, False, True, True]), MeanOverSelected(), rows(4)
    capture = fxpipe.trace(model, (x, mask))
    assert failed_guard(capture, model, (x, mask.roll(1))) is None
    assert failed_guard(capture, model, (x, mask & mask.roll(1))) is not None


class PackedTagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(8, 8, batch_first=True)
        self.head = nn.Linear(8, 8)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        h, _ = self.recurrent(packed)
        return mean_square(self.head(pad_packed_sequence(h, batch_first=True)[0]))


# The longest sequence of the example was taken for that of every micro-batch.
def test_packed_sequences_are_as_long_as_the_longest_of_their_micro_batch() -> None:
    torch.manual_seed(0)
    model = PackedTagger()
    x, lengths = rows(4 * 6).view(4, 6, 8), torch.tensor([6, 6, 3, 2])
    expected = sum(model(x[part], lengths[part]) / 2 for part in (slice(0, 2), slice(2, 4)))
    with compiled(model, "head", chunks=2) as pipe:
        assert torch.equal(pipe.step(x, lengths).loss, expected)


# ---- the caller's tensors ------------------------------------------------------------------------


# A rerun read the caller's batch as it was by then: a loader that uses one buffer for all batches gave
# wrong gradients without a word.
def test_an_input_that_has_changed_before_the_rerun_is_told() -> None:
    with compiled(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), recompute="always") as pipe:
        x = rows()
        y = pipe(x)
        x.zero_()
        with pytest.raises(fxpipe.FxPipeError, match="changed in place since the forward"):
            mean_square(y).backward()
        mean_square(pipe(x)).backward()


class WritesIntoInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.last = nn.Linear(8, 8)

    def forward(self, x: Tensor, whole: Tensor) -> Tensor:
        x.mul_(2)
        whole.add_(1)
        return self.last(torch.tanh(self.first(x) * whole))


# A model that writes into its input wrote once more in the rerun; without reruns the next micro-batch
# wrote into what the graph of this one had saved.
@pytest.mark.parametrize("recompute", ["never", "except_last", "always"])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_inputs_that_the_model_writes_into(recompute: str, schedule: str) -> None:
    model = WritesIntoInput()
    eager = copy.deepcopy(model)
    x, whole = rows(), torch.ones(1, 8)
    with compiled(
        model,
        "last",
        recompute=recompute,
        schedule=schedule,
        example_args=(rows(), torch.ones(1, 8)),
    ) as pipe:
        pipe.step(x, whole, loss_fn=mean_square)
    again = rows()
    expected = run_eager_step(eager, (again, torch.ones(1, 8)), chunks=4, loss_fn=mean_square)
    assert expected.loss is not None
    assert same(grads_of(model), grads_of(eager))
    assert torch.equal(x, again)
    assert torch.equal(whole, torch.full((1, 8), 2.0)), "each micro-batch writes into a copy"


# ---- what belongs to a thread --------------------------------------------------------------------


class FailsInAutocast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
        self.last = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            x = self.second(self.first(x))
        return self.last(x.float())


# A failure inside one of the model's autocast regions left the thread in it: the caller's, whose own
# autocasts never emptied their cache again, and read old weights.
@pytest.mark.parametrize("backend", ["inline", "local"])
def test_a_failure_in_autocast_leaves_the_thread_as_it_was(backend: str) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    model = FailsInAutocast()
    with compiled(model, "last", backend=backend, example_args=(rows(),)) as pipe:
        pipe(rows())
        handle = model.second.register_forward_hook(fail)
        with pytest.raises(ZeroDivisionError):
            pipe(rows())
        handle.remove()
        assert not torch.is_autocast_enabled("cpu")
        assert torch.autocast_increment_nesting() == 1
        assert torch.autocast_decrement_nesting() == 0
        pipe(rows())
        with torch.no_grad():
            model.first.weight.mul_(3)
            torch.testing.assert_close(pipe(rows()), model(rows()), rtol=0.02, atol=0.02)


LEVEL: ContextVar[float] = ContextVar("LEVEL", default=1.0)


# The workers saw the context variables of the thread that had started them first.
def test_workers_see_the_callers_context_variables() -> None:
    seen: list[float] = []
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    with compiled(model, chunks=1, example_args=(rows(),)) as pipe:
        model[1].register_forward_hook(lambda *_: seen.append(LEVEL.get()))
        pipe(rows())
        seen.clear()
        pipe(rows())
        token = LEVEL.set(2.0)
        pipe(rows())
        LEVEL.reset(token)
    assert seen == [1.0, 2.0]


# ---- graphs --------------------------------------------------------------------------------------


class Force(nn.Module):
    """Gives the gradient of an energy: it differentiates inside its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            energy = torch.tanh(self.linear(x)).sum()
            return torch.autograd.grad(energy, x, create_graph=True)[0]


# A forward that is to be rerun saved nothing for backward, and was differentiated all the same.
def test_a_model_that_differentiates_in_its_forward_is_recomputed() -> None:
    found = []
    for recompute in ("never", "always"):
        torch.manual_seed(0)
        model = nn.Sequential(Force(), nn.Linear(8, 8))
        with compiled(model, recompute=recompute) as pipe:
            pipe.step(rows(), loss_fn=mean_square)
        found.append([model[0].linear.weight.grad, *grads_of(model[1])])
    assert same(*found)


class Keeps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.kept: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        made = torch.tanh(self.linear(x))
        self.kept.append(made)
        return made


def test_a_graph_that_recomputation_has_thrown_away_is_told() -> None:
    model = nn.Sequential(Keeps(), nn.Linear(8, 8))
    with compiled(model, recompute="always", example_args=(rows(),)) as pipe:
        pipe(rows())
        with pytest.raises(fxpipe.ExecutionError, match="recompute= has thrown its graph away"):
            model[0].kept[-1].sum().backward()


# ---- autograd inside forward -----------------------------------------------------------------------


class WritesThroughView(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        k = h.new_empty(h.shape)
        k[..., :4].copy_(h[..., :4])
        k[..., 4:].copy_(h[..., 4:])
        return self.second(k)


# A cut between what a forward differentiates and the call of torch.autograd.grad left the gradient
# without its way. A value written through a view was taken for one that needs no gradient.
@pytest.mark.parametrize(
    "make", [lambda: nn.Sequential(nn.Linear(8, 8), Force(), nn.Linear(8, 8)), WritesThroughView]
)
def test_steps_are_exact_at_every_cut_around_autograd_in_forward(
    make: Callable[[], nn.Module],
) -> None:
    torch.manual_seed(0)
    model = make()
    capture = fxpipe.trace(model, (rows(2),))
    for part in rows(4).split(2):
        (mean_square(model(part)) / 2).backward()
    expected = [p.grad for p in model.parameters() if p.grad is not None]
    for cut in legal_cuts(capture):
        model.zero_grad()
        with compiled(model, "%" + capture.body[cut].name, chunks=2) as pipe:
            pipe.step(rows(4), loss_fn=mean_square)
        assert same([p.grad for p in model.parameters() if p.grad is not None], expected)


# ---- results -----------------------------------------------------------------------------------------


class Similarity(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.second(self.first(x))
        return h @ h.T


# Results that belong to pairs of rows were joined where their shapes happened to agree.
@pytest.mark.parametrize("count", [4, 5])
def test_results_that_cannot_be_joined_are_told_for_each_micro_batch(count: int) -> None:
    model = Similarity()
    expected = [model(part) for part in rows(count).tensor_split(2)]
    with compiled(model, "second", chunks=2) as pipe:
        with pytest.warns(UserWarning, match="result 0 has shape .* is a list with that of each"):
            found = pipe(rows(count))
        assert isinstance(found, list)
        assert all(map(torch.equal, found, expected))
        sum(part.sum() for part in found).backward()
    grads = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    sum(part.sum() for part in expected).backward()
    assert all(torch.allclose(p.grad, g) for p, g in zip(model.parameters(), grads, strict=True))


# A forward that writes into a parameter (a codebook that follows what it is shown) had written into the
# model by the time it was captured, measured and verified.


@pytest.mark.parametrize("costs", ["measure", "estimate"])
@pytest.mark.parametrize("recompute", ["never", "always"])
def test_parameters_that_forward_writes_into_change_as_in_eager(recompute: str, costs: str) -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 4), Codebook(), nn.Linear(4, 4), nn.Linear(4, 2))
    eager = copy.deepcopy(model)
    x = torch.randn(7, 4)
    with fxpipe.compile(
        model, ["cpu", "cpu"], chunks=3, recompute=recompute, costs=costs, example_args=(x,)
    ) as pipe:
        assert all(map(torch.equal, model.parameters(), eager.parameters()))
        for _ in range(2):
            reference = run_eager_step(eager, (x,), chunks=3, loss_fn=mean_square)
            result = pipe.step(x, loss_fn=mean_square)
            assert torch.equal(result.loss, reference.loss)
            for one, two in zip(model.parameters(), eager.parameters(), strict=True):
                assert torch.equal(one, two)
                assert one.grad is two.grad is None or torch.equal(one.grad, two.grad)
