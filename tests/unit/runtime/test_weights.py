from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fxpipe.ir.stage import RandomScope, StageProgram
from fxpipe.runtime.batch_norm import Statistics
from fxpipe.runtime.keyed import keyed_dropout
from fxpipe.runtime.leaves import NO_LEAVES
from fxpipe.runtime.rng import mix, scope_hash, step_key
from fxpipe.runtime.weights import StageWeights, owner_of, tied_parameters
from tests.unit.runtime.stages import as_it_is, program


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.block = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4))
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight
        self.scale = nn.Parameter(torch.ones(4))
        self.register_buffer("count", torch.zeros(()))


def weights(model: nn.Module, of: StageProgram, **options: Any) -> StageWeights:
    return StageWeights(
        model, of, options.pop("constants", {}), as_it_is, device=torch.device("cpu"), **options
    )


def step(**fields: Any) -> Any:
    usual = {
        "key": step_key(1, 2),
        "leaves": {},
        "statistics": Statistics(),
        "keeps": lambda micro_batch: True,
    }
    return SimpleNamespace(**{**usual, **fields})


def test_what_needs_no_swap_is_the_users_own() -> None:
    model = Model()
    table = torch.ones(3)
    of = program(
        0,
        ["x"],
        ["y"],
        modules={"linear": "block.0", "root": ""},
        tensors={"scale": "scale", "weight": "block.0.weight", "count": "count"},
        constants={"table": "_fxpipe_constant_0", "word": "plain", "function": len},
    )
    stage = weights(model, of, constants={"_fxpipe_constant_0": table}, defers_norms=False).module
    assert stage.linear is model.block[0]
    assert stage.root is model
    assert stage.scale is model.scale
    assert stage.weight is model.block[0].weight
    assert stage.count is model.count
    assert stage.table is table
    assert stage.word == "plain"
    assert stage.function is len
    assert stage.device == torch.device("cpu")


def test_dropouts_are_keyed_by_their_path_and_call() -> None:
    model = Model()
    of = program(
        0, ["x"], ["y"], modules={"block": "block"}, random=(RandomScope("block.1", 3, True),)
    )
    bound = weights(model, of, defers_norms=False)
    assert bound.module.block is not model.block
    assert bound.module.block[0] is model.block[0]
    x = torch.ones(8, 4)
    for micro_batch in range(2):
        bound.begin(step(), micro_batch, reruns=False)
        for call in (3, 4):
            scope = mix(mix(step_key(1, 2), micro_batch), scope_hash(f"block.1#{call}"))
            expected = keyed_dropout(model.block[1], x, mix(scope, 0))
            assert torch.equal(bound.module.block[1](x), expected)
    bound.follow()
    bound.changed.begin()
    model.eval()
    bound.follow()
    bound.changed.begin()
    bound.begin(step(), 0, reruns=False)
    assert torch.equal(bound.module.block[1](x), x)


def test_a_flat_draw_is_keyed_like_one_in_its_module() -> None:
    of = program(0, ["x"], ["y"], needs_keys=True)
    bound = weights(Model(), of)
    bound.begin(step(), 1, reruns=False)
    x = torch.ones(50)
    with bound.module.keyed("block.1#3", 0):
        found = torch.nn.functional.dropout(x, 0.5)
    scope = mix(mix(step_key(1, 2), 1), scope_hash("block.1#3"))
    assert torch.equal(found, keyed_dropout(nn.Dropout(0.5), x, mix(scope, 0)))


def test_norms_wait_or_do_not() -> None:
    for waits, tracked in ((True, 0), (False, 1)):
        model = Model()
        of = program(0, ["x"], ["y"], modules={"norm": "block.2"})
        bound = weights(model, of, defers_norms=waits)
        state = step()
        bound.begin(state, 0, reruns=False)
        bound.module.norm(torch.randn(8, 4))
        assert model.block[2].num_batches_tracked == tracked
        state.statistics.commit()
        assert model.block[2].num_batches_tracked == 1


def programs() -> list[StageProgram]:
    return [
        program(0, ["x"], ["a"], modules={"embed": "embed"}, tensors={"scale": "scale"}),
        program(1, ["a"], ["b"], modules={"block": "block"}),
        program(2, ["b"], ["c"], modules={"head": "head"}, tensors={"again": "scale"}),
    ]


def test_tied_parameters() -> None:
    model = Model()
    assert tied_parameters(model, programs()) == {
        model.embed.weight: (0, 2),
        model.scale: (0, 2),
    }


def tied_stages(model: Model) -> list[StageWeights]:
    tied = tied_parameters(model, programs())
    return [
        weights(model, of, tied=frozenset(p for p, at in tied.items() if of.stage in at))
        for of in programs()
    ]


def test_each_stage_has_leaves_of_its_own_with_the_same_memory() -> None:
    model = Model()
    stages = tied_stages(model)
    leaves = {stage.place: stage.new_leaves(True) for stage in stages}
    assert leaves[1, 0] is NO_LEAVES
    for at in (0, 2):
        stages[at].begin(step(leaves=leaves), 0, reruns=False)
    embed, head = stages[0].module.embed, stages[2].module.head
    assert embed is not model.embed
    assert embed.weight is not head.weight
    assert embed.weight.data_ptr() == head.weight.data_ptr() == model.embed.weight.data_ptr()
    assert stages[0].module.scale is not stages[2].module.again
    assert model.embed.weight is model.head.weight
    for at in (0, 2):
        stages[at].write_back()
        stages[at].changed.end(keep=True)
    assert embed.weight is model.embed.weight
    assert stages[2].module.again is model.scale


def test_leaves_only_where_gradients_are_wanted() -> None:
    model = Model()
    model.scale.requires_grad_(False)
    stage = tied_stages(model)[0]
    assert set(stage.new_leaves(True)) == {model.embed.weight}
    assert stage.new_leaves(False) == {}


def test_new_objects_are_followed() -> None:
    model = Model()
    of = program(0, ["x"], ["y"], tensors={"scale": "scale", "count": "count"}, buffers=("count",))
    bound = weights(model, of)
    model.scale = nn.Parameter(torch.zeros(4))
    bound.follow()
    bound.changed.begin()
    assert bound.module.scale is model.scale
    model.count = torch.ones(())  # by a forward, between two micro-batches
    bound.begin(step(), 0, reruns=False)
    assert torch.equal(bound.module.count, torch.ones(()))


def test_rerun_reads_the_buffers_of_its_forward() -> None:
    model = Model()
    of = program(0, ["x"], ["y"], tensors={"count": "count"}, buffers=("count",))
    bound = weights(model, of)
    state = step()
    bound.follow()
    bound.changed.begin()
    found = []
    for m in range(2):
        found.append(bound.begin(state, m, reruns=True))
        bound.module.count.add_(1)
    assert found[0] is not None
    with bound.again(state, 0, found[0]):
        assert bound.module.count.item() == 0
        bound.module.count.add_(1)
    assert model.count.item() == 2
    bound.write_back()
    bound.changed.end(keep=True)
    assert bound.module.count.item() == 2


@pytest.mark.parametrize("name", ["scale", "block.0.weight", "count", "block.2.running_mean"])
def test_owners(name: str) -> None:
    model = Model()
    holder, key = owner_of(model, name)
    found: Tensor = holder[key]
    assert found is dict([*model.named_parameters(), *model.named_buffers()])[name]


def test_all_that_a_stage_reads() -> None:
    model = Model()
    read = weights(model, programs()[0]).tensors()
    assert {id(t) for t in read} == {id(model.embed.weight), id(model.scale)}
