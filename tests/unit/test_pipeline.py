"""The pipeline as a user holds it: names, calls, situations, seeds, life."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import warnings
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxpipe
from fxpipe.errors import CaptureError, ExecutionError, FormatError, InfeasiblePlanError
from tests.reference import run_eager_step
from tests.unit.capture.small import Neighbours


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4)
        self.drop = nn.Dropout(0.0)
        self.alpha = 1.0

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.a(x) * self.alpha)
        return self.c(self.drop(self.b(h)) + h)


X = torch.randn(12, 8, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) % 4


def compiled(model: nn.Module, **options: object) -> fxpipe.Pipeline:
    options = {"costs": "estimate", "threads_per_rank": 1, "chunks": 4, **options}
    return fxpipe.compile(model, ["cpu", "cpu"], **options)


@pytest.fixture
def model() -> Net:
    torch.manual_seed(1)
    return Net()


@pytest.fixture
def pipe(model: Net) -> Iterator[fxpipe.Pipeline]:
    with compiled(model) as made:
        yield made


def rows(model: nn.Module, x: Tensor, chunks: int = 4) -> Tensor:
    """The model on each micro-batch."""
    return torch.cat([model(part) for part in x.tensor_split(min(chunks, len(x)))])


# ---- names -----------------------------------------------------------------------------------------


def test_it_has_the_models_names_and_objects(pipe: fxpipe.Pipeline, model: Net) -> None:
    assert list(pipe.state_dict()) == list(model.state_dict())
    assert all(a is b for a, b in zip(pipe.parameters(), model.parameters(), strict=True))
    assert [n for n, _ in pipe.named_modules()] == [n for n, _ in model.named_modules()]
    assert pipe.get_parameter("a.weight") is model.a.weight
    assert pipe.get_submodule("b") is model.b


def test_modes_are_the_models(pipe: fxpipe.Pipeline, model: Net) -> None:
    pipe.eval()
    assert not model.training
    assert not pipe.training
    model.train()
    assert pipe.training


def test_a_module_that_holds_it_saves_and_loads_it(pipe: fxpipe.Pipeline, model: Net) -> None:
    holder = nn.ModuleDict({"inner": pipe})
    state = {name: torch.zeros_like(value) for name, value in holder.state_dict().items()}
    assert "inner.a.weight" in state
    holder.load_state_dict(state)
    assert not model.a.weight.any()
    with pytest.raises(RuntimeError, match=r"size mismatch for a\.weight"):
        holder.load_state_dict({**state, "inner.a.weight": torch.zeros(1)})


def test_dtype_follows(pipe: fxpipe.Pipeline, model: Net) -> None:
    pipe(X)
    pipe.double()
    assert model.a.weight.dtype is torch.float64
    assert pipe(X.double()).dtype is torch.float64


# ---- before and after the first call ---------------------------------------------------------------


def test_nothing_is_known_before_the_first_call(pipe: fxpipe.Pipeline) -> None:
    for name in ("plan", "stage_graph", "stages", "schedule", "costs"):
        with pytest.raises(CaptureError, match="has not captured its model yet"):
            getattr(pipe, name)
    pipe(X)
    assert pipe.plan.num_stages == 2
    report = pipe.report()
    assert "predicted step of 4 micro-batches" in report
    assert "sent per micro-batch over 2 links, 0 B handed over within a rank (0% saved)" in report
    assert "stages 0, 1: divided, 1 starts inside" in report
    assert "Legal cuts: " in report


def test_a_plan_is_saved_and_loaded(pipe: fxpipe.Pipeline, model: Net) -> None:
    pipe(X)
    plan = fxpipe.from_json(fxpipe.to_json(pipe.plan), fxpipe.PartitionPlan)
    with compiled(model, cuts=plan, example_args=(X,)) as again:
        assert again.plan == pipe.plan
    with pytest.raises(InfeasiblePlanError, match="has 2 stages"):
        fxpipe.compile(model, ["cpu"] * 3, cuts=plan, chunks=4, example_args=(X,))


def test_costs_of_another_capture_are_refused(pipe: fxpipe.Pipeline) -> None:
    pipe(X)
    with pytest.raises(FormatError, match="another capture"):
        compiled(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), costs=pipe.costs, example_args=(X,))


# ---- calls -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [12, 5, 2, 1])
def test_any_number_of_rows(pipe: fxpipe.Pipeline, model: Net, count: int) -> None:
    with torch.no_grad():
        assert torch.equal(pipe(X[:count]), rows(model, X[:count]))


def test_an_empty_batch_is_refused(pipe: fxpipe.Pipeline) -> None:
    with pytest.raises(ValueError, match="0 rows"):
        pipe(X[:0])
    pipe(X)
    with pytest.raises(ValueError, match="0 rows"):
        pipe(X[:0])


def test_several_calls_before_one_backward(pipe: fxpipe.Pipeline, model: Net) -> None:
    (pipe(X).sum() + pipe(X * 2).sum()).backward()
    found = model.a.weight.grad.clone()
    model.zero_grad()
    (model(X).sum() + model(X * 2).sum()).backward()
    torch.testing.assert_close(found, model.a.weight.grad)


def test_gradients_that_cannot_be_had_are_refused(pipe: fxpipe.Pipeline, model: Net) -> None:
    loss = pipe(X).sum()
    with pytest.raises(ExecutionError, match=r"accumulated in \.grad"):
        torch.autograd.grad(loss, list(pipe.parameters()))
    assert model.a.weight.grad is None
    x = X.clone().requires_grad_()
    with pytest.raises(ExecutionError, match="cannot be differentiated again"):
        torch.autograd.grad(pipe(x).sum(), x, create_graph=True)


def test_gradients_of_inputs_alone_leave_the_parameters(pipe: fxpipe.Pipeline, model: Net) -> None:
    x = X.clone().requires_grad_()
    (found,) = torch.autograd.grad(pipe(x).sum(), x)
    assert model.a.weight.grad is None
    (expected,) = torch.autograd.grad(rows(model, x).sum(), x)
    torch.testing.assert_close(found, expected)


def test_inputs_made_by_one_graph_get_their_gradients_in_a_step() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.b(self.a(x) + y)

    source = X.clone().requires_grad_()
    shared = source * 2
    with compiled(Two()) as pipe:
        pipe.step(shared.sin(), shared.cos(), loss_fn=lambda output, _: output.mean())
        found = source.grad.clone()
        source.grad = None
        shared = source * 2
        pipe.module(shared.sin(), shared.cos()).mean().backward()
    torch.testing.assert_close(found, source.grad)


@pytest.mark.parametrize("backend", ["local", "inline"])
def test_a_call_from_inside_its_own_step_is_refused(model: Net, backend: str) -> None:
    with compiled(model, backend=backend) as pipe:
        with pytest.raises(ExecutionError, match="from inside its own step"):
            pipe.step(X, target=Y, loss_fn=lambda output, _: (output - pipe(X[:3])).mean())
        assert pipe.step(X, target=Y, loss_fn=F.cross_entropy).loss.isfinite()


def test_step_without_output(pipe: fxpipe.Pipeline) -> None:
    result = pipe.step(X, target=Y, loss_fn=F.cross_entropy, keep_output=False)
    assert result.output is None
    assert result.loss.dim() == 0


def test_a_loss_with_parameters_learns(pipe: fxpipe.Pipeline) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(2.0))

        def forward(self, output: Tensor, target: Tensor) -> Tensor:
            return F.cross_entropy(output * self.scale, target)

    loss = Scaled()
    pipe.step(X, target=Y, loss_fn=loss)
    assert loss.scale.grad is not None


# ---- what changes between calls ---------------------------------------------------------------------


def test_an_attribute_that_the_stages_have_written_out_is_followed(
    pipe: fxpipe.Pipeline, model: Net
) -> None:
    with torch.no_grad():
        pipe(X)
        model.alpha = 0.5
        assert torch.equal(pipe(X), rows(model, X))


def test_an_attribute_that_changes_at_every_call_is_warned_of(
    pipe: fxpipe.Pipeline, model: Net
) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for step in range(10):
            model.alpha = float(step)
            pipe(X)
    assert [w for w in seen if "alpha changed" in str(w.message)]


def test_a_replaced_module_is_followed(model: Net) -> None:
    with compiled(model, cuts=["b"]) as pipe:
        pipe(X)
        model.b = nn.Linear(16, 16)
        pipe.step(X, target=Y, loss_fn=F.cross_entropy)
        assert model.b.weight.grad is not None
        with torch.no_grad():
            assert torch.equal(pipe(X), rows(model, X))


def test_an_input_given_whole_stays_whole_when_the_batch_has_as_many_rows() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor, table: Tensor) -> Tensor:
            return self.b(self.a(x).relu()) @ table.T

    model, table = Table(), torch.randn(6, 8)
    with compiled(model) as pipe, torch.no_grad():
        for count in (12, 6, 3):
            parts = X[:count].tensor_split(min(4, count))
            expected = torch.cat([model(part, table) for part in parts])
            assert torch.equal(pipe(X[:count], table), expected)


def graph(nodes: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(nodes)
    edges = torch.randint(0, nodes, (2, 3 * nodes), generator=generator)
    return torch.randn(nodes, 4, generator=generator), edges


def test_a_graph_is_one_micro_batch_and_another_one_is_recorded_anew() -> None:
    model = Neighbours()
    with compiled(model, chunks=1) as pipe, torch.no_grad():
        for nodes in (9, 16, 9, 12):
            assert torch.equal(pipe(*graph(nodes)), model(*graph(nodes)))


def test_what_seemed_to_be_rows_may_turn_out_to_be_none() -> None:
    class Sized(Neighbours):
        """Its recording holds the number of nodes, unless that is known to be free."""

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            return super().forward(x, edges).view(len(x), 4) * int(x.shape[0])

    model, edges = Sized(), graph(6)[1]  # the last nodes have no edges
    with compiled(model, chunks=1) as pipe, torch.no_grad():
        for nodes in (16, 12, 6, 8, 7):
            x = graph(nodes)[0]
            assert torch.equal(pipe(x, edges), model(x, edges))
        for nodes in (9, 16, 9):
            assert torch.equal(pipe(*graph(nodes)), model(*graph(nodes)))
            x = graph(nodes + 5)[0]
            assert torch.equal(pipe(x, graph(nodes)[1]), model(x, graph(nodes)[1]))


def test_a_graph_cannot_be_cut_into_micro_batches() -> None:
    with (
        compiled(Neighbours(), chunks=2) as pipe,
        pytest.raises((IndexError, RuntimeError)) as caught,
    ):
        pipe(*graph(16))
    assert any("chunks=1" in note for note in caught.value.__notes__)


class Counts(Net):
    """Decides on a counter that its forward advances."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        h = self.a(x)
        if self.calls > 6:
            h = h * 2
        return self.c(self.b(h.relu()))


def test_a_decision_on_a_counter_turns_in_the_middle_of_a_step() -> None:
    torch.manual_seed(2)
    model = Counts()
    eager = copy.deepcopy(model)
    with compiled(model, cuts=["b"]) as pipe:
        for _ in range(3):
            found = pipe.step(X, target=Y, loss_fn=F.cross_entropy)
            expected = run_eager_step(eager, (X,), chunks=4, loss_fn=F.cross_entropy, target=Y)
            assert torch.equal(found.loss, expected.loss)
            assert torch.equal(model.calls, eager.calls)


def test_masks_of_any_kind_in_one_batch() -> None:
    class Masked(Net):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            h = self.a(x).relu()
            if not bool(mask.all()):
                h = h * mask
            return self.c(self.b(h))

    torch.manual_seed(2)
    model, mask = Masked(), torch.ones(12, 16)
    mask[4:7] = 0.0
    eager = copy.deepcopy(model)
    with compiled(model, cuts=["b"]) as pipe:
        found = pipe.step(X, mask, target=Y, loss_fn=F.cross_entropy)
        expected = run_eager_step(eager, (X, mask), chunks=4, loss_fn=F.cross_entropy, target=Y)
        assert torch.equal(found.loss, expected.loss)
        for one, other in zip(model.parameters(), eager.parameters(), strict=True):
            assert torch.equal(one.grad, other.grad)


# ---- seeds ------------------------------------------------------------------------------------------


def test_a_seed_and_the_number_of_steps_decide_the_draws(model: Net) -> None:
    model.drop.p = 0.5

    def losses(pipe: fxpipe.Pipeline, count: int) -> list[float]:
        steps = (pipe.step(X, target=Y, loss_fn=F.cross_entropy) for _ in range(count))
        return [step.loss.item() for step in steps]

    with compiled(model, seed=5) as pipe:
        whole = losses(pipe, 4)
        assert pipe.steps_done == 4
        assert len(set(whole)) == 4
        with pipe.replace(schedule="gpipe") as resumed:
            assert resumed.steps_done == 4
            resumed.steps_done = 2
            assert losses(resumed, 2) == whole[2:]


def test_without_a_seed_the_callers_generator_decides(model: Net) -> None:
    model.drop.p = 0.5
    with compiled(model) as pipe:
        pipe.capture(X)
        found = []
        for _ in range(2):
            torch.manual_seed(3)
            found.append(pipe.step(X, target=Y, loss_fn=F.cross_entropy).loss)
        assert torch.equal(*found)


def test_a_model_that_draws_nothing_leaves_the_generator(pipe: fxpipe.Pipeline) -> None:
    pipe.capture(X)
    before = torch.get_rng_state()
    pipe.step(X, target=Y, loss_fn=F.cross_entropy)
    assert torch.equal(torch.get_rng_state(), before)


# ---- life -------------------------------------------------------------------------------------------


def test_a_closed_pipeline_says_so_and_its_model_works(model: Net) -> None:
    pipe = compiled(model)
    pipe(X)
    pipe.close()
    pipe.close()
    with pytest.raises(ExecutionError, match="closed"):
        pipe(X)
    model(X)


def test_its_threads_end_with_it(model: Net) -> None:
    before = set(threading.enumerate())
    pipe = compiled(model)
    pipe(X)
    assert len(set(threading.enumerate()) - before) >= 2
    del pipe
    gc.collect()
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("fxpipe"):
            thread.join(timeout=10)
            assert not thread.is_alive()


def test_a_copy_is_cut_alike_also_for_another_number_of_rows(model: Net) -> None:
    with compiled(model, cuts=["b"]) as pipe:
        pipe(X)
        with pickle.loads(pickle.dumps(pipe)) as made:
            assert torch.equal(made(X[:6]), pipe(X[:6]))
            assert made.plan.starts == pipe.plan.starts


def test_replace_takes_what_needs_no_other_cut(pipe: fxpipe.Pipeline) -> None:
    pipe(X)
    with pytest.raises(TypeError, match="cuts cannot be replaced"):
        pipe.replace(cuts=["b"])
    with pipe.replace(chunks=2) as other:
        assert other.plan == pipe.plan
        assert other.schedule.num_micro_batches == 2


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"devices": 2}, TypeError, "one entry per rank"),
        ({"devices": []}, ValueError, "devices is empty"),
        ({"devices": ["warp:0"]}, ValueError, "'warp:0' is no device"),
        ({"chunks": 0}, ValueError, "chunks must be at least 1"),
        ({"chunks": 2.5}, TypeError, "chunks must be an int"),
        ({"schedule": 7}, TypeError, "schedule must be a name"),
        ({"recompute": "sometimes"}, ValueError, "recompute must be one of"),
        ({"cuts": "b"}, TypeError, r"cuts=\['b'\]"),
        ({"example_args": X}, TypeError, "example_args must be a tuple"),
        ({"seed": 1.5}, TypeError, "seed must be an int"),
    ],
)
def test_misuse_is_told(
    model: Net, arguments: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        fxpipe.compile(model, **{"devices": ["cpu", "cpu"], **arguments})


def test_a_loss_that_is_no_function_is_told(pipe: fxpipe.Pipeline) -> None:
    with pytest.raises(TypeError, match="loss_fn must be a function"):
        pipe.step(X, loss_fn=3)
