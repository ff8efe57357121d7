"""Modules that no cut divides are called as the user's own: hooks, compiled and wrapped blocks."""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxpipe
from tests.equivalence.compare import grads_of, same_grads
from tests.reference import run_eager_step


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(width, 2 * width)
        self.second = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.gelu(self.first(x)))


class Wrapped(nn.Module):
    """As FSDP does it: gathers something before, and drops it after, its module's forward."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.log: list[str] = []

    def forward(self, *args: Any) -> Any:
        self.log.append("gather")
        try:
            return self.module(*args)
        finally:
            self.log.append("drop")


class Net(nn.Module):
    def __init__(self, width: int = 8, blocks: int = 4) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def make() -> Net:
    torch.manual_seed(5)
    return Net()


X = torch.randn(8, 8, generator=torch.Generator().manual_seed(1))
Y = torch.arange(8) % 3


def piped(model: nn.Module, **options: Any) -> fxpipe.Pipeline:
    return fxpipe.compile(
        model,
        ["cpu", "cpu"],
        chunks=4,
        example_args=(X,),
        cuts=["blocks.2"],
        costs="estimate",
        threads_per_rank=1,
        **options,
    )


@pytest.mark.parametrize("recompute", ["never", "always"])
def test_hooks_fire_as_often_as_in_eager_with_the_users_module(recompute: str) -> None:
    def count(model: Net) -> Counter[str]:
        seen: Counter[str] = Counter()
        names = {module: name for name, module in model.named_modules()}
        for name in ("blocks.0", "blocks.1.second", "blocks.3"):
            module = model.get_submodule(name)
            module.register_forward_pre_hook(lambda m, a: seen.update([f"before {names[m]}"]))
            module.register_forward_hook(lambda m, a, o: seen.update([f"after {names[m]}"]))
            module.register_full_backward_hook(
                lambda m, i, o: seen.update([f"backward {names[m]}"])
            )
        return seen

    eager, model = make(), make()
    expected, found = count(eager), count(model)
    run_eager_step(eager, (X,), chunks=4, loss_fn=F.cross_entropy, target=Y)
    with piped(model, recompute=recompute) as pipe:
        found.clear()
        pipe.step(X, target=Y, loss_fn=F.cross_entropy)
    for event, times in expected.items():
        again = recompute == "always" and not event.startswith("backward")
        assert found[event] == (2 * times if again else times), event
    same_grads(pipe, grads_of(eager), "hooks")


def test_a_hook_that_changes_the_result_changes_it() -> None:
    eager, model = make(), make()
    for net in (eager, model):
        net.blocks[1].register_forward_hook(lambda m, a, o: o * 2)
        net.blocks[2].register_full_backward_hook(lambda m, i, o: (i[0] * 3,))
    reference = run_eager_step(eager, (X,), chunks=4, loss_fn=F.cross_entropy, target=Y)
    with piped(model) as pipe:
        result = pipe.step(X, target=Y, loss_fn=F.cross_entropy)
    assert torch.equal(result.loss, reference.loss)
    same_grads(pipe, grads_of(eager), "hooks")


def test_hooks_of_a_divided_module_are_warned_of() -> None:
    model = make()
    model.register_forward_hook(lambda m, a, o: o * 2)
    with pytest.warns(UserWarning, match="the model has forward hooks, and a cut divides it"):
        pipe = piped(model)
    with pipe, torch.no_grad():
        expected = torch.cat([model(part) for part in X.tensor_split(4)])
        assert torch.equal(pipe(X), expected)


@pytest.mark.parametrize("backend", ["inline", "local"])
def test_a_compiled_block_stays_compiled(backend: str) -> None:
    runs = 0

    def counting(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        from torch._dynamo.backends.debugging import aot_eager

        compiled = aot_eager(graph, inputs)

        def run(*args: Any) -> Any:
            nonlocal runs
            runs += 1
            return compiled(*args)

        return run

    torch._dynamo.reset()
    eager, model = make(), make()
    for net in (eager, model):
        net.blocks[1] = torch.compile(net.blocks[1], backend=counting)
        net.blocks[3] = torch.compile(net.blocks[3], backend=counting)
    reference = run_eager_step(eager, (X,), chunks=4, loss_fn=F.cross_entropy, target=Y)
    with piped(model, backend=backend) as pipe:
        runs = 0
        result = pipe.step(X, target=Y, loss_fn=F.cross_entropy)
    assert runs == 2 * 4
    assert torch.equal(result.loss, reference.loss)
    same_grads(pipe, grads_of(eager), "compiled")


def test_a_wrapped_block_does_its_work_around_each_call() -> None:
    eager, model = make(), make()
    for net in (eager, model):
        net.blocks[0] = Wrapped(net.blocks[0])
        net.blocks[3] = Wrapped(net.blocks[3])
    reference = run_eager_step(eager, (X,), chunks=4, loss_fn=F.cross_entropy, target=Y)
    with piped(model) as pipe:
        for at in (0, 3):
            model.blocks[at].log.clear()
        result = pipe.step(X, target=Y, loss_fn=F.cross_entropy)
    assert model.blocks[0].log == ["gather", "drop"] * 4
    assert model.blocks[3].log == ["gather", "drop"] * 4
    assert torch.equal(result.loss, reference.loss)
    same_grads(pipe, grads_of(eager), "wrapped")


class OwnCall(Block):
    """Its ``__call__`` hands its forward something else than it got, as aggregations of graphs do."""

    def __call__(self, x: Tensor, *, times: int = 1) -> Tensor:
        return super().__call__(x * times) / times


@pytest.mark.parametrize("early", [True, False])
def test_hooks_of_a_module_with_a_call_of_its_own_fire(early: bool) -> None:
    """Also those that are registered after the model was captured."""

    class Scaled(Net):
        def forward(self, x: Tensor) -> Tensor:
            for times, block in enumerate(self.blocks, start=1):
                x = block(x, times=times)
            return self.head(x)

    torch.manual_seed(4)
    model = Scaled()
    model.blocks = nn.ModuleList(OwnCall(8) for _ in range(4))
    eager, seen = copy.deepcopy(model), Counter[str]()

    def hook(path: str) -> Any:
        return lambda module, args, output: seen.update([path])

    def register() -> None:
        for name, block in model.blocks.named_children():
            block.register_forward_hook(hook(name))

    if early:
        register()
    reference = run_eager_step(eager, (X,), chunks=4, loss_fn=F.cross_entropy, target=Y)
    with piped(model) as pipe:
        if not early:
            register()
        seen.clear()
        result = pipe.step(X, target=Y, loss_fn=F.cross_entropy)
        assert "ops.plain_call(self.blocks_3, " in pipe.stages[1].source
    assert seen == {name: 4 for name in "0123"}
    assert torch.equal(result.loss, reference.loss)
    same_grads(pipe, grads_of(eager), "own call")


@pytest.mark.parametrize("copying", ["deepcopy", "pickle"])
def test_a_copy_of_a_pipeline_has_its_own_model_and_the_same_cut(copying: str) -> None:
    model = make()
    with piped(model) as pipe:
        pipe.step(X, target=Y, loss_fn=F.cross_entropy)
        made = copy.deepcopy(pipe) if copying == "deepcopy" else pickle.loads(pickle.dumps(pipe))
        with made, torch.no_grad():
            assert made.steps_done == 1
            assert made.module is not model
            made.train()
            assert torch.equal(made(X), pipe(X))
            assert made.plan == pipe.plan


def test_an_input_given_whole_may_have_as_many_rows_as_a_micro_batch() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor, table: Tensor) -> Tensor:
            return self.second(self.first(x).relu()) @ table.T

    torch.manual_seed(2)
    model, table = Mixed(), torch.randn(2, 8)
    with (
        fxpipe.compile(model, ["cpu", "cpu"], chunks=4, cuts=["second"]) as pipe,
        torch.no_grad(),
    ):
        expected = torch.cat([model(part, table) for part in X.tensor_split(4)])
        assert torch.equal(pipe(X, table), expected)


def test_sequences_first_are_cut_along_the_batch() -> None:
    torch.manual_seed(3)
    model = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0)
    source, target = torch.randn(5, 6, 8), torch.randn(4, 6, 8)
    with fxpipe.compile(model, ["cpu", "cpu"], chunks=3) as pipe:
        parts = zip(source.tensor_split(3, 1), target.tensor_split(3, 1), strict=True)
        expected = torch.cat([model(s, t) for s, t in parts], 1)
        assert torch.equal(pipe(source, target), expected)
        parts = zip(source[:, :2].split(1, 1), target[:, :2].split(1, 1), strict=True)
        expected = torch.cat([model(s, t) for s, t in parts], 1)
        assert torch.equal(pipe(source[:, :2], target[:, :2]), expected)
